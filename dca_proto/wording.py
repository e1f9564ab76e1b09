"""Helpers for texts: spelling hints, lists of names, counts, install commands, msgspec errors in plain words."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import msgspec

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


def toml_text(text: str) -> str:
    """Return a text as TOML's basic string, with its quotes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first `most` names, separated by commas, and the number of further ones."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def counted(value: int, noun: str) -> str:
    """Return a count with its noun: "1 round", "3,000 rounds"."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def to_install(extra: str) -> str:
    """Return the command that installs an optional part of this project, and where to run it."""
    return f"pip install -e '.[{extra}]' in the checkout"


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


def split_list(text: str) -> list[str]:
    """Split a list at its commas; a part with a comma stands in double quotes, as in ``"Fracture, closed",Sprain``."""
    try:
        return next(csv.reader([text], skipinitialspace=True, strict=False), []) or [text]
    except csv.Error:  # a line break, for example
        return text.split(",")
