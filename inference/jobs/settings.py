"""The settings of a job: a frozen dataclass with documented fields, read from a table or from ``key=value`` words.

    @dataclass(frozen=True)
    class Settings(JobSettings):
        repair: str = setting("noise-aware", "How an indefinite matrix is dealt with.", one_of(REPAIRS))

A field's type is what it accepts: ``int``, ``float`` (also a whole number), ``bool``, ``str``, or one of them or None,
or ``tuple[float, ...] | None``: a list, or a text such as ``0,40,80``, which needs no quotes in a shell.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from math import inf, isfinite
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from inference.errors import DataError, unknown

S = TypeVar("S")
Numbers = tuple[float, ...]
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "nothing",
    Numbers: "a list of numbers, such as 0,40,80",
}


def setting(default: Any, meaning: str, check: Callable[[str, Any], None] | None = None) -> Any:
    """A field of a job's settings with its default, its meaning in one line for people, and what refuses a value."""
    return field(default=default, metadata={"meaning": meaning, "check": check})


@dataclass(frozen=True)
class JobSettings:
    """Settings that refuse values as their fields say. Raises `DataError`."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if (check := one.metadata.get("check")) is not None:
                check(one.name, getattr(self, one.name))


def settings_from(kind: type[S], table: Mapping[str, Any], job: str) -> S:
    """A job's settings from a table of values.

    Args:
        kind: the job's settings. table: values by field. job: its name, for messages.

    Raises:
        DataError: a key is unknown (the nearest one is named), a value is of another type or out of its range.
    """
    types, given = get_type_hints(kind), {}
    for key, value in table.items():
        if not types:
            raise DataError(f"setting {key!r}: job {job!r} has no settings of its own; leave it out")
        if key not in types:
            raise unknown("setting", key, f"job {job!r}", types)
        given[key] = _accepted(key, value, types[key])
    return kind(**given)


def _accepted(key: str, value: object, wanted: Any) -> object:
    """The value as the setting takes it. Raises `DataError`."""
    accepted, plain = get_args(wanted) or (wanted,), type(value)
    if Numbers in accepted and value is not None:
        if (numbers := _numbers(value)) is not None and all(map(isfinite, numbers)):
            return numbers
    elif plain in accepted or (plain is int and float in accepted):
        if isinstance(value, float) and not isfinite(value):
            raise DataError(f"setting {key!r} is {value}; expected a finite number")
        return float(value) if isinstance(value, int) and plain not in accepted else value
    expected = " or ".join(_WORDS[one] for one in accepted if one is not NoneType)
    raise DataError(f"setting {key!r} is {value!r}, expected {expected}")


def _numbers(value: object) -> Numbers | None:
    """None of what is no list of numbers."""
    if isinstance(value, str):
        try:
            return tuple(float(part) for part in value.split(","))
        except ValueError:
            return None
    if not isinstance(value, list | tuple) or not all(type(one) in (int, float) for one in value):
        return None
    return tuple(map(float, value))


def parse_words(words: Iterable[str]) -> dict[str, Any]:
    """A table of ``key=value`` words; a value that is no JSON is a text. Raises `DataError` for anything else."""
    table: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key or key in table:
            raise DataError(f"setting {word!r}: expected key=value, each key once")
        try:
            table[key] = json.loads(value)
        except json.JSONDecodeError:
            table[key] = value
    return table


def described(kind: Any) -> list[tuple[str, Any, str]]:
    """Name, default and meaning of each setting, for a help text."""
    return [(one.name, one.default, str(one.metadata.get("meaning", ""))) for one in fields(kind)]


def one_of(known: Iterable[str]) -> Callable[[str, str], None]:
    """A check that refuses a text that is none of the known ones."""
    return partial(require_choice, known=tuple(known))


def within(least: float, most: float = inf) -> Callable[[str, float | None], None]:
    """What refuses a number that is not in this range; None passes."""

    def check(key: str, value: float | None) -> None:
        if value is not None and not least <= value <= most:
            wanted = f"{least:g} or more" if most == inf else f"{least:g} to {most:g}"
            raise DataError(f"setting {key!r} is {value:g}, expected {wanted}")

    return check


def given(settings: Any, names: Iterable[str]) -> dict[str, Any]:
    """Those of these settings that are set, by name."""
    return {name: value for name in names if (value := getattr(settings, name)) is not None}


def require_choice(key: str, value: str, known: Iterable[str]) -> None:
    """Refuse a text that is none of the known ones. Raises `DataError` that names the nearest."""
    if value not in (names := tuple(known)):
        raise unknown(key, value, None, names)


def require_count(key: str, value: int | None) -> None:
    """Refuse a number below 1; None passes. Raises `DataError`."""
    if value is not None and value < 1:
        raise DataError(f"setting {key!r} is {value}, expected at least 1")


def require_share(key: str, value: float) -> None:
    """Refuse a number that is not between 0 and 1. Raises `DataError`."""
    if not 0 < value < 1:
        raise DataError(f"setting {key!r} is {value:g}, expected a number between 0 and 1")


def require_positive(key: str, value: float | None) -> None:
    """Refuse a number that is not above 0; None passes. Raises `DataError`."""
    if value is not None and value <= 0:
        raise DataError(f"setting {key!r} is {value:g}, expected a number above 0")
