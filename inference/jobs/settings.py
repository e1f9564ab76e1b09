"""The settings of a job: a frozen dataclass with documented fields, read from a table or from ``key=value`` words.

    @dataclass(frozen=True)
    class Settings(JobSettings):
        repair: str = setting("noise-aware", "How to repair an indefinite matrix.", one_of(REPAIRS))

A field's type states what it accepts: ``int``, ``float`` (also a whole number), ``bool``, ``str``, one of them or None,
or ``tuple[float, ...] | None``: a list, or a text such as ``0,40,80``, which needs no quotes in a shell. Numbers are
finite. A field of `names` also takes a list of texts.

**One declaration a hyperparameter.** Making the dataclass checks all of its values, whoever makes it: a command, a job,
or an estimator, whose ``settings`` names the dataclass of its job. Model functions that take single values call the
same checks (`require_positive` and so on).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from math import inf, isfinite
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from dca_proto.wording import parse_json
from inference.errors import DataError, unknown

S = TypeVar("S")
ROWS_MAX = 100_000  # of a data node, by default
Numbers = tuple[float, ...]
LARGEST, FOUND_CHARS_MAX = sys.float_info.max, 60
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "nothing",
    Numbers: "a list of numbers, such as 0,40,80",
}


def setting(default: Any, meaning: str, check: Callable[[str, Any], None] | None = None, *, names: bool = False) -> Any:
    """Return a settings field with its default, its meaning in one line for people, and a check that refuses values.

    Args:
        names: whether it is a text of names by commas, as in sex,smoker; a list of texts is accepted, too.
    """
    return field(default=default, metadata={"meaning": meaning, "check": check, "names": names})


def one_column() -> Any:
    """Return the setting ``column`` of a job that describes one column."""
    return setting(None, "Which column; by default the target.")


def rows_of_nodes() -> Any:
    """Return the setting ``rows_max`` of a job that data nodes can release to."""
    return setting(ROWS_MAX, "Number of rows of a data node that count, the first ones.", require_count)


def first_share(default: float) -> Any:
    """Return the setting ``std_share`` of a job whose first round locates columns."""
    return setting(default, "The first round's share of the budget, between 0 and 1.", require_share)


@dataclass(frozen=True)
class JobSettings:
    """Settings that check types and values as their fields define. Raises `DataError`."""

    def __post_init__(self) -> None:
        types = get_type_hints(type(self))
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.metadata.get("names") and isinstance(value, list | tuple):
                value = _joined(entry.name, value)
            value = _accepted(entry.name, value, types[entry.name])
            object.__setattr__(self, entry.name, value)
            if (check := entry.metadata.get("check")) is not None:
                check(entry.name, value)


def settings_from(kind: type[S], table: Mapping[str, Any], job: str) -> S:
    """Make a job's settings from a table of values.

    Args:
        kind: the job's settings. table: values by field. job: its name, for messages.

    Raises:
        DataError: a key is unknown (the error names the nearest one), or a value has a wrong type or is out of range.
    """
    known = get_type_hints(kind)
    for key in table:
        if not known:
            raise DataError(f"setting {key!r}: job {job!r} has no settings of its own; leave it out")
        if key not in known:
            raise unknown("setting", key, f"job {job!r}", known)
    return kind(**table)


def _accepted(key: str, value: object, wanted: Any) -> object:
    """Return the value in the setting's type. Raises `DataError`."""
    value = value.item() if isinstance(value, np.generic) else value
    accepted = (wanted,) if get_origin(wanted) is tuple else get_args(wanted) or (wanted,)
    plain = type(value)
    if Numbers in accepted and value is not None:
        if (numbers := _numbers(value)) is not None and all(map(isfinite, numbers)):
            return numbers
    elif plain in accepted or (plain is int and float in accepted and is_number(value)):
        if isinstance(value, float) and not isfinite(value):
            raise DataError(f"setting {key!r} is {value}; expected a finite number")
        return float(value) if isinstance(value, int) and plain not in accepted else value
    expected = " or ".join(_WORDS[kind] for kind in accepted if kind is not NoneType)
    raise DataError(f"setting {key!r} is {repr(value)[:FOUND_CHARS_MAX]}, expected {expected}")


def _joined(key: str, listed: Iterable[object]) -> str:
    """Return names as one text, by commas. Raises `DataError` unless they are texts without one."""
    for name in listed:
        if not isinstance(name, str) or "," in name:
            raise DataError(f"setting {key!r} lists {name!r}, expected texts without commas, as in ['sex', 'smoker']")
    return ",".join(map(str, listed))


def _numbers(value: object) -> Numbers | None:
    """Return a tuple of numbers, or None if the value is no list of numbers; a number alone is a list of one."""
    if is_number(value):
        value = (value,)
    if isinstance(value, str):
        try:
            return tuple(float(part) for part in value.split(","))
        except ValueError:
            return None
    if not isinstance(value, list | tuple | np.ndarray) or not all(map(is_number, value)):
        return None
    return tuple(map(float, value))


def is_number(value: object) -> bool:
    """Return whether a value is a number, finite or not; True, False and integers beyond all floats are none."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= LARGEST
    return isinstance(value, float | np.integer | np.floating)


def parse_words(words: Iterable[str]) -> dict[str, Any]:
    """Parse ``key=value`` words; a value that is not JSON is a text. Raises `DataError` for anything else."""
    table: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key or key in table:
            raise DataError(f"setting {word!r}: expected key=value, each key once")
        try:
            table[key] = parse_json(value)
        except ValueError:
            table[key] = value
    return table


def described(kind: Any) -> list[tuple[str, Any, str]]:
    """Return name, default and meaning of each setting, for a help text."""
    return [(setting.name, setting.default, str(setting.metadata.get("meaning", ""))) for setting in fields(kind)]


def one_of(choices: Iterable[str]) -> Callable[[str, str], None]:
    """Return a check that refuses a text unless it is one of the known ones."""
    return partial(require_choice, choices=tuple(choices))


def within(least: float, most: float = inf) -> Callable[[str, float | None], None]:
    """Return a check that refuses a number outside this range; None passes."""

    def check(key: str, value: float | None) -> None:
        wanted = f"{least:g} or more" if most == inf else f"{least:g} to {most:g}"
        _require(key, value, lambda number: least <= number <= most, wanted)

    return check


def given(settings: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return these settings by name, without those that are None."""
    return {name: value for name in names if (value := getattr(settings, name)) is not None}


def require_choice(key: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a text unless it is one of the known ones. Raises `DataError` with the nearest."""
    names = tuple(choices)
    if not isinstance(value, str):
        raise DataError(f"setting {key!r} is {value!r}, expected one of {', '.join(names)}")
    if value not in names:
        raise unknown(key, value, None, names)


def require_count(key: str, value: int | None) -> None:
    """Refuse anything but a whole number of at least 1; None passes. Raises `DataError`."""
    _require(key, value, lambda number: number >= 1 and number == int(number), "a whole number, at least 1")


def require_share(key: str, value: float) -> None:
    """Refuse anything but a number between 0 and 1. Raises `DataError`."""
    _require(key, value, lambda number: 0 < number < 1, "a number between 0 and 1")


def require_positive(key: str, value: float | None) -> None:
    """Refuse anything but a finite number above 0; None passes. Raises `DataError`."""
    _require(key, value, lambda number: number > 0, "a number above 0")


def require_finite(key: str, value: float | None) -> None:
    """Refuse anything but a finite number; None passes. Raises `DataError`."""
    _require(key, value, lambda number: True, "a finite number")


def require_text(key: str, value: str) -> None:
    """Refuse anything but a text that is not empty. Raises `DataError`."""
    if not isinstance(value, str) or not value:
        raise DataError(f"setting {key!r} is {value!r}, expected a text")


def require_flag(key: str, value: bool) -> None:
    """Refuse anything but True or False. Raises `DataError`."""
    if not isinstance(value, bool | np.bool_):
        raise DataError(f"setting {key!r} is {value!r}, expected true or false")


def _require(key: str, value: Any, accepts: Callable[[float], bool], wanted: str) -> None:
    """Refuse anything but a finite number that is accepted; None passes."""
    if value is not None and not (is_number(value) and isfinite(value) and accepts(value)):
        found = f"{value:g}" if isinstance(value, float) else repr(value)[:FOUND_CHARS_MAX]
        raise DataError(f"setting {key!r} is {found}, expected {wanted}")
