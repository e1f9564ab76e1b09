"""Helpers for texts: spelling hints, lists of names, counts, times, install commands, errors in plain words.

`parse_toml` and `parse_json` are the one way to read texts of these formats that a person may have written.
"""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import msgspec

JsonObject = dict[str, Any]
"""An object of JSON or a table of TOML: before its keys are checked, or for others to read."""
YEAR_10000_MS = 253_402_300_800_000
"""The first time that `datetime` cannot represent, in Unix milliseconds."""

T = TypeVar("T")
_DEPTH_MAX = 32
DIGITS_MAX = 9
"""Digits of a number for people before its decimal point; a larger one gets an exponent."""
_IDS_MAX = 5  # members whom a sentence names
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
PRINTED_CHARS_MAX = 1000
"""The limit for a text that may come from a peer: twice the longest field of a message."""
_TOO_DEEP = f"it is nested more than {_DEPTH_MAX} levels deep"
_KEY_PART = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_TOO_LONG_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*(?:{_KEY_PART}[ \t]*\.[ \t]*){{{_DEPTH_MAX}}}", re.MULTILINE)
"""A key of TOML with more parts than levels. To parse it takes time in the square of its length."""
_ALSO_SHOWN = "\n\u00a0"  # a line break, and the space between a number and its unit
_TYPES = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing",
    "object": "a table",
    "str": "a text",
}
_MISMATCH = re.compile(r"Expected `(?P<wanted>[^`]+)`(?: of length (?P<length>\d+))?, got `?(?P<found>\w+)`?")
_PLACE = re.compile(r" - at `\$\.?(?P<place>[^`]*)`$")


def nearest(text: str, names: Iterable[str]) -> str:
    """Return the hint " (did you mean 'name'?)" for the known name most like `text`; "" if none is close."""
    near = get_close_matches(text, list(names), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def shown(text: str) -> str:
    """Return a text for a terminal: characters that would control it, or change the writing direction, are escaped."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in _ALSO_SHOWN else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()


def printable(text: str) -> str:
    """Truncate a text that may come from a peer, and escape control characters and line breaks."""
    short = text if len(text) <= PRINTED_CHARS_MAX else f"{text[:PRINTED_CHARS_MAX]}... ({len(text)} characters)"
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in short)


def toml_text(text: str) -> str:
    """Return a text as TOML's basic string, with its quotes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: object) -> str:
    """Return a value of a setting as TOML, on one line: a text, a number, a truth value, a list or a table of these."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return toml_text(value)
        case list() | tuple():
            return f"[{', '.join(toml_value(one) for one in value)}]"
        case dict():
            pairs = [
                f"{key if _BARE_KEY.fullmatch(key) else toml_text(key)} = {toml_value(one)}"
                for key, one in value.items()
            ]
            return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
        case _:
            return repr(value)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first `most` names, separated by commas, and the number of further ones."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def ids_in_words(ids: Sequence[bytes], name_of: Callable[[bytes], str] = lambda one: "") -> str:
    """Return the names of the first five members, their short ids where no name is known, and dots for further ones."""
    named = [name_of(one) or one.hex()[:12] for one in ids[:_IDS_MAX]]
    return ", ".join(named) + ", ..." * (len(ids) > _IDS_MAX)


def with_minus(number: str) -> str:
    """Return a number as text with a minus sign for its hyphen, as pages and pictures show it."""
    return number.replace("-", "−")


def counted(value: int, noun: str) -> str:
    """Return a count with its noun: "1 round", "3,000 rounds"."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def unanswered(names: Sequence[str], for_ms: float) -> str:
    """Return which actors have not answered for how long: "a, b have not answered for 12 s"."""
    return f"{listed(names)} {'has' if len(names) == 1 else 'have'} not answered for {duration(for_ms)}"


def moment(at_ms: float) -> str:
    """Return a time in Unix milliseconds for people: "2026-11-28 20:15:03 UTC"."""
    if not 0 <= at_ms < YEAR_10000_MS:
        return "a time before 1970" if at_ms < 0 else "a time after the year 9999"
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def iso(at_ms: float) -> str:
    """Return a time in Unix milliseconds as UTC in ISO 8601."""
    with suppress(ValueError, OverflowError):
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return "9999-12-31T23:59:59Z"


def duration(ms: float) -> str:
    """Return a duration for people, to two digits at least: "0.35 s", "12 s", "3.5 minutes", "26 hours", "40 days"."""
    seconds = abs(ms) / 1000
    for unit, size, enough in (("days", 86_400, 2), ("hours", 3600, 2), ("minutes", 60, 2)):
        if seconds >= enough * size:
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds)} s"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def to_install(extra: str) -> str:
    """Return the command that installs an optional part of this project: in a checkout, or for a release."""
    if (Path(__file__).parents[1] / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]' in the checkout"
    return f"pip install 'dca-proto[{extra}]', or 'FILE.whl[{extra}]' of this release"


def in_words(error: msgspec.ValidationError) -> str:
    """Return msgspec's error about a table in plain words: the key, the value's type and the expected type."""
    text = str(error)
    where = _PLACE.search(text)
    if where is None or not (mismatch := _MISMATCH.match(text)):
        return text
    if mismatch["length"]:
        return f"{where['place']} has {mismatch['found']} values, expected {mismatch['length']}"
    wanted = " or ".join(_TYPES.get(part, part) for part in mismatch["wanted"].split(" | "))
    return f"{where['place']} is {_TYPES.get(mismatch['found'], mismatch['found'])}, expected {wanted}"


def parse_toml(text: str) -> JsonObject:
    """Parse TOML. Raises `ValueError` with a reason of one line, also if it is nested too deeply."""
    with _parsing():
        if _TOO_LONG_KEY.search(text):
            raise ValueError(_TOO_DEEP)
        return _shallow(tomllib.loads(text))


def parse_json(text: str) -> Any:
    """Parse JSON. Raises `ValueError` with a reason of one line, also if it is nested too deeply."""
    with _parsing():
        return _shallow(json.loads(text))


@contextmanager
def _parsing() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ValueError("a number has too many digits") from None
        raise


def _shallow(value: T) -> T:
    """Return the value. Raises `ValueError` if it is nested too deeply for those who use it."""
    level: list[object] = [value]
    for _ in range(_DEPTH_MAX):
        tables = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        if not tables:
            return value
        level = [part for parts in tables for part in parts]
    raise ValueError(_TOO_DEEP)


def digits(value: float, count: int) -> str:
    """Format a number with `count` significant digits for people: 1,500, not 1.5e+03."""
    rounded_value = float(f"{value:.{count}g}")
    if 1e-4 <= abs(rounded_value) < 10**DIGITS_MAX:
        places = max(0, count - 1 - floor(log10(abs(rounded_value))))
        text = f"{rounded_value:,.{places}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{rounded_value:.{count}g}"


def split_list(text: str) -> list[str]:
    """Split a list at its commas; a part with a comma stands in double quotes, as in ``"Fracture, closed",Sprain``."""
    try:
        return next(csv.reader([text], skipinitialspace=True, strict=False), []) or [text]
    except csv.Error:  # a line break, for example
        return text.split(",")
