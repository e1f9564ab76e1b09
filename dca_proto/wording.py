"""Parts of texts: the nearest known name, lists of names, what to install, msgspec's findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import msgspec

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
    """The hint " (did you mean 'name'?)" for the known name most like the given one, or nothing."""
    near = get_close_matches(text, list(names), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first names in a row, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def counted(value: int, noun: str) -> str:
    """A whole number of things: "1 round", "3,000 rounds"."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def to_install(extra: str) -> str:
    """The command that installs an optional part of this project, and where to type it."""
    return f"pip install -e '.[{extra}]' in the checkout"


def in_words(error: msgspec.ValidationError) -> str:
    """What msgspec found in a table: the key, what stands there, and what is expected."""
    text = str(error)
    where = _PLACE.search(text)
    if where is None or not (mismatch := _MISMATCH.match(text)):
        return text
    if mismatch["length"]:
        return f"{where['place']} has {mismatch['found']} values, expected {mismatch['length']}"
    wanted = " or ".join(_TYPES.get(part, part) for part in mismatch["wanted"].split(" | "))
    return f"{where['place']} is {_TYPES.get(mismatch['found'], mismatch['found'])}, expected {wanted}"
