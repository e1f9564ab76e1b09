"""Rows of a summary: one estimate each, with its posterior standard deviation, beside the one without privacy.

    {"name": "bmi", "unit": "points per kg/m²", "estimate": 8.1, "estimate_sd": 1.2, "nonprivate": 7.6, ...}

What is not known is None: a real federation's trainer has no rows to compute the non-private one from.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

Row = dict[str, Any]
Figure = tuple[float, float | None]
"""A mean and a standard deviation, if that is known."""


def row(name: str, unit: str, private: Figure, nonprivate: Figure | None) -> Row:
    """One estimate."""
    return {"name": name, "unit": unit, **figures(private, nonprivate)}


def figures(private: Figure, nonprivate: Figure | None) -> Row:
    """The figures of one estimate, without its name."""
    other = (None, None) if nonprivate is None else nonprivate
    return {
        "estimate": _plain(private[0]),
        "estimate_sd": _plain(private[1]),
        "nonprivate": _plain(other[0]),
        "nonprivate_sd": _plain(other[1]),
    }


def score(name: str, private: float, nonprivate: float | None, constant: float, *, higher_is_better: bool) -> Row:
    """A score on rows that were held out, beside the one without privacy and that of a constant prediction."""
    return {
        "name": name,
        "private": _plain(private),
        "nonprivate": _plain(nonprivate),
        "constant": _plain(constant),
        "higher_is_better": higher_is_better,
    }


def digits(value: float, count: int) -> str:
    """A figure for people, rounded to so many significant digits: 150 and not 1.5e+02."""
    return f"{float(f'{value:.{count}g}'):.6g}"


def rows_of(summary: Row) -> list[Row]:
    """All estimates of a summary, the intercept last."""
    found = [*summary.get("coefficients", []), *summary.get("estimates", [])]
    if summary.get("intercept"):
        found.append({"name": "intercept", "unit": "", **summary["intercept"]})
    return found


def _plain(value: float | None) -> float | None:
    """A number that JSON has."""
    return None if value is None or not isfinite(value) else float(value)
