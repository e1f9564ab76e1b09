"""Scenarios in files: read and checked, and written as TOML."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.errors import InputError
from dca_proto.wording import in_words, nearest
from emulator.trials.checks import check
from emulator.trials.scenario import Adversary, Fault, Scenario, to_plain


def load_scenario(path: Path) -> Scenario:
    """Read a scenario from a TOML file and check it. Raises `UsageError`: what was found, expected, and what to do."""
    try:
        return from_plain(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give the path of a scenario file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file; give a scenario in TOML") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None


def from_plain(plain: dict[str, Any], source: str = "scenario") -> Scenario:
    """A scenario from plain data, checked. Raises `UsageError`.

    Args:
        source: the file's name, for errors.
    """
    _check_keys(plain, Scenario, source)
    try:
        scenario = msgspec.convert(plain, Scenario)
    except msgspec.ValidationError as error:
        raise InputError(f"{source}: {in_words(error)}") from None
    check(scenario, source)
    return scenario


def to_toml(scenario: Scenario, *, short: bool = False) -> str:
    """The scenario as a TOML file; `short` leaves out what is usual, which reading it fills in again."""
    one = Scenario(faults=(Fault(kind="", actor=""),), adversaries=(Adversary(kind="", actor=""),))
    plain, usual = to_plain(scenario), to_plain(one) if short else {}
    tables: list[tuple[str, dict[str, Any], dict[str, Any]]] = [("", plain, usual)]
    for key, value in plain.items():
        if isinstance(value, dict):
            tables.append((f"[{key}]", value, usual.get(key, {})))
        elif isinstance(value, list):
            tables += [(f"[[{key}]]", table, usual[key][0] if short else {}) for table in value]
    parts = []
    for head, table, known in tables:
        told = [(key, value) for key, value in table.items() if not isinstance(value, dict | list)]
        lines = [f"{key} = {_scalar(value)}" for key, value in told if not short or known[key] != value]
        parts += ["\n".join([head] * bool(head) + lines)] if lines else []
    return ("\n" if short else "\n\n").join(parts) + "\n"


def _scalar(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool | str) else repr(value)


def _check_keys(plain: object, part: Any, where: str) -> None:
    """Refuse unknown keys, naming the one that was perhaps meant."""
    if not isinstance(plain, dict):
        return  # convert says what is wrong
    known = {field.name: field.type for field in msgspec.structs.fields(part)}
    for key, value in plain.items():
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}{nearest(key, known)}; known: {', '.join(known)}")
        inner = known[key]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            _check_keys(value, inner, f"{where}: {key}")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                _check_keys(item, inner.__args__[0], f"{where}: {key} {index + 1}")
