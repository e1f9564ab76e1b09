"""Rows of a summary: one estimate each, with its posterior standard deviation, beside the one without privacy.

    {"name": "bmi", "unit": "points per kg/m²", "estimate": 8.1, "estimate_sd": 1.2, "nonprivate": 7.6, ...}

Where the posterior is known by its draws, rows have credible intervals too (`with_interval`).

What is not known is None: a real federation's trainer has no rows to compute the non-private one from.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from statistics import NormalDist
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


def with_interval(row: Row, interval: Iterable[float], level: float) -> Row:
    """A row with its own credible interval, and a normal one about the estimate without privacy."""
    reach = NormalDist().inv_cdf((1 + level) / 2)
    mean, sd = row["nonprivate"], row["nonprivate_sd"]
    return {
        **row,
        "interval": [float(end) for end in interval],
        "nonprivate_interval": None if mean is None or sd is None else [mean - reach * sd, mean + reach * sd],
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


def sampling_words(sampling: Row) -> str:
    """What the draws of a posterior are worth, in one line."""
    told = f"{sampling['chains']} chains of {sampling['draws']} draws by method {sampling['method']}"
    if sampling["r_hat_max"] is None:
        return told if sampling["acceptance"] else f"{told}, in closed form"
    fewest = min(sampling["ess_bulk_min"], sampling["ess_tail_min"])
    told += f"; R-hat at most {sampling['r_hat_max']:.3f}, at least {fewest:.0f} effective draws"
    accepted = ", ".join(f"{100 * rate:.0f} % of {block}" for block, rate in sampling["acceptance"].items())
    return f"{told}; accepted {accepted}; {sampling['seconds']:.1f} s" if accepted else told


def rows_of(summary: Row) -> list[Row]:
    """All estimates of a summary, the intercept last."""
    found = [*summary.get("coefficients", []), *summary.get("estimates", [])]
    if summary.get("intercept"):
        found.append({"name": "intercept", "unit": "", **summary["intercept"]})
    return found


def _plain(value: float | None) -> float | None:
    """A number that JSON has."""
    return None if value is None or not isfinite(value) else float(value)
