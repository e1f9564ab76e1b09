"""The one door: from a file that anybody may have written to a typed run. What is wrong with it is told in one line."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dca_proto.core.errors import InputError
from dca_proto.wording import in_words, nearest
from emulator.report.kinds import KINDS, Kind
from emulator.report.markup import plain

FILE_BYTES_MAX = 64 * 1024 * 1024
_EXPECTED = "expected the JSON file of a run"
_OLD = {"rounds": "swarm", "epsilon_claimed": "audit"}
"""Keys by which files are known that were written before they said their kind."""
_SHOWN_MAX = 60
_RANGE = re.compile(r"Expected `(?:int|float)` (?P<limit>[<>]=? \S+) - at `\$\.?(?P<place>[^`]*)`")


class Run(NamedTuple):
    """A run and its kind."""

    name: str
    kind: Kind
    value: Any


def read_run(path: Path) -> Run:
    """Read a run's JSON file. Raises `UsageError`: what was found, what was expected, what to do."""
    found = _decode(path, _bytes_of(path))
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no JSON object; {_EXPECTED}, as dca swarm --json {path.name} writes it")
    name = _kind_of(path, found)
    kind = KINDS[name]
    try:
        return Run(name, kind, msgspec.convert(found, kind.read))
    except msgspec.ValidationError as error:
        said = plain(_RANGE.sub(_out_of_range, in_words(error)), 300)
        raise InputError(
            f"{path} is of kind {name}, but {said}; make a new one with `{kind.command} --json {path.name}`"
        ) from None


def _out_of_range(found: re.Match[str]) -> str:
    return f"{found['place']} is out of range, expected a number {found['limit']}"


def _bytes_of(path: Path) -> bytes:
    """The content of an ordinary file of a bounded size."""
    try:
        about = path.stat()
        if stat.S_ISDIR(about.st_mode):
            raise InputError(f"{path} is a folder; {_EXPECTED}, such as {path / 'result.json'}")
        if not stat.S_ISREG(about.st_mode):
            raise InputError(f"{path} is no ordinary file; {_EXPECTED}")
        if about.st_size > FILE_BYTES_MAX:
            raise InputError(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB; {_EXPECTED}, which are smaller")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; {_EXPECTED}") from None


def _decode(path: Path, content: bytes) -> Any:
    if not content.strip():
        raise InputError(f"{path} is empty; {_EXPECTED}")
    try:
        return msgspec.json.decode(content)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8; {_EXPECTED}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not JSON: {error}; {_EXPECTED}") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply; {_EXPECTED}") from None


def _kind_of(path: Path, found: dict[str, Any]) -> str:
    """The name of its kind. Raises `UsageError`."""
    known, kind = ", ".join(KINDS), found.get("kind")
    if kind is None:
        likely = [name for key, name in _OLD.items() if key in found]
        commands = [KINDS[name].command for name in likely or KINDS]
        made = " or ".join(f"`{command} --json {path.name}`" for command in commands)
        raise InputError(
            f'{path} has no "kind", as files of older versions; expected {known}: make a new one with {made}'
        )
    if not isinstance(kind, str) or kind not in KINDS:
        shown, hint = plain(repr(kind), _SHOWN_MAX), nearest(kind, KINDS) if isinstance(kind, str) else ""
        raise InputError(f"{path} is of kind {shown}{hint}, which has no page; expected {known}")
    return kind
