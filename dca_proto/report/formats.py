"""Formats numbers for people: few digits, and the unit on the same line."""

from __future__ import annotations

import math

from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.wording import with_minus

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PLAIN_MIN, _PLAIN_MAX = 1e-3, 1e7
TEXT_MAX = 2_000
MIB = 1 << 20
_ALSO_SHOWN = "\n\u00a0"  # breaks, and the space between a number and its unit
UNKNOWN = "–"
_SPACE = "\u00a0"


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with `digits` significant digits, but its whole part in full: 1,234 · 0.0123 · 1.2·10⁻⁵."""
    if value is None:
        return UNKNOWN
    if value == 0 or math.isinf(value):
        return {0.0: "0", math.inf: "∞"}.get(value, "−∞")
    rounded = float(f"{value:.{digits - 1}e}")
    if not _PLAIN_MIN <= abs(rounded) < _PLAIN_MAX:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        shown = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return with_minus(f"{shown}·10{str(int(exponent)).translate(_SUPERSCRIPT)}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return with_minus(f"{value:,.{places}f}")


def short(value: float, digits: int = 3) -> str:
    """Format as `number` does, without trailing zeros: for ticks, and for values that the user chose."""
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "·" not in text else text


def claimed(value: float | None, digits: int = 3) -> str:
    """Format a privacy figure that is spent, claimed or allowed, rounded up: 0.564 · 2 · 1.49·10⁻⁵."""
    return UNKNOWN if value is None else short(float(at_least(value, digits)), digits)


def proved(value: float | None, digits: int = 3) -> str:
    """Format a privacy figure that an attack proves, rounded down."""
    return UNKNOWN if value is None else short(float(at_most(value, digits)), digits)


def count(value: int | None) -> str:
    """Format a whole number: 12,345."""
    return UNKNOWN if value is None else with_minus(f"{value:,}")


def seconds(value: float | None) -> str:
    """Format a duration: 18 ms, 1.80 s, 3.2 min."""
    if value is None:
        return UNKNOWN
    for least, factor, unit in ((7200, 3600, "h"), (120, 60, "min"), (1, 1, "s"), (1e-3, 1e-3, "ms")):
        if value >= least:
            return f"{number(value / factor)}{_SPACE}{unit}"
    return f"{number(value * 1e6)}{_SPACE}µs" if value > 0 else f"0{_SPACE}s"


def size(value: float | None) -> str:
    """Format a number of bytes: 512 B, 233 kB, 1.20 GB."""
    if value is None:
        return UNKNOWN
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if value >= 10**power:
            return f"{number(value / 10**power)}{_SPACE}{unit}"
    return f"{number(value)}{_SPACE}B" if value % 1 else f"{value:.0f}{_SPACE}B"


def percent(part: float, *, signed: bool = False) -> str:
    """Format a part of one: 12.5 %; a part smaller than half of 0.01 % becomes "below 0.01 %"."""
    sign = "+" if signed and part > 0 else ""
    if 0 < abs(part) < 5e-5:
        return f"below{_SPACE}0.01{_SPACE}%"
    return f"{sign}{short(100 * part)}{_SPACE}%"


def setting(value: object) -> str:
    """Format a setting as it was given; floats are rounded up, so that no privacy figure is understated."""
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return at_least(value, 15)
        case list() | tuple():
            return ", ".join(map(setting, value))
        case None:
            return UNKNOWN
    return str(value)


def listed(names: list[str], most: int = 6) -> str:
    """Join names for a sentence: "a, b and c"; "a, b and 12 more"."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {count(len(names) - most + 1)} more"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def plain(text: str, longest: int = TEXT_MAX) -> str:
    """Return a text that is safe to show: printable, and at most `longest` characters."""
    cut = text if len(text) <= longest else f"{text[:longest]}…"
    if cut.isprintable():
        return cut
    return "".join(letter if letter.isprintable() or letter in _ALSO_SHOWN else "\ufffd" for letter in cut)
