"""Rows of a summary: one estimate each, with its posterior standard deviation, beside the one without privacy.

    {"name": "bmi", "unit": "points per kg/m²", "estimate": 8.1, "estimate_sd": 1.2, "nonprivate": 7.6, ...}

Where the posterior is known by its draws, rows have credible intervals too (`with_interval`), and of reports what they
say without a model of their noise (`with_naive`); the summary then says under `NAIVE` what that estimate is called.

What is not known is None: a real federation's trainer has no rows to compute the non-private one from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from statistics import NormalDist
from typing import Any

import numpy as np

from inference.draws import Mixing

Row = dict[str, Any]
NAIVE = "naive_title"
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


def with_naive(row: Row, naive: Figure) -> Row:
    """A row with the estimate that leaves the reports' noise out of the model."""
    return {**row, "naive": _plain(naive[0]), "naive_sd": _plain(naive[1])}


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


def table_of(summary: Row, rows: Sequence[Row], *, compared: bool) -> tuple[str, list[str], list[list[str]]]:
    """A table of estimates for people: its title, the names of its columns, and a text for each of its cells.

    With naive estimates beside the others there are intervals in the place of standard deviations.

    Args:
        rows: of the summary that are to be shown. compared: whether the estimates without privacy are among them.
    """
    naive = summary.get(NAIVE)
    kinds = {"estimate": "private" if summary["private"] else "not private"}
    kinds |= {"naive": naive} if naive else {}
    kinds |= {"nonprivate": "without privacy"} if compared else {}
    if naive:
        title = f"posterior, mean and {100 * summary['interval_level']:g} % interval"
        return title, ["", *kinds.values()], [[_named(row), *(_brief(row, kind) for kind in kinds)] for row in rows]
    cells = [[row["name"], *(_words(row, kind) for kind in kinds), row["unit"]] for row in rows]
    is_point = rows and all(row["estimate_sd"] is None for row in rows)
    return "estimates" if is_point else "posterior, mean ± standard deviation", ["", *kinds.values(), "unit"], cells


def _words(row: Row, kind: str, count: int = 4) -> str:
    """One estimate with its standard deviation."""
    if row[kind] is None:
        return "–"
    sd = row[f"{kind}_sd"]
    return digits(row[kind], count) + (f" ± {digits(sd, 2)}" if sd is not None else "")


def _brief(row: Row, kind: str) -> str:
    """One estimate in three digits: the posterior's with its interval, a naive one alone."""
    if row[kind] is None or kind == "nonprivate":
        return _words(row, kind, 3)
    if kind == "naive":
        return digits(row[kind], 3)
    low, high = (digits(end, 3) for end in row["interval"])
    return f"{digits(row[kind], 3)} ({low} to {high})"


def _named(row: Row) -> str:
    return f"{row['name']} ({row['unit']})" if row["unit"] else str(row["name"])


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


def sampling_row(
    method: str,
    size: tuple[int, int],
    seconds: float,
    mixing: Sequence[Mixing],
    acceptance: Mapping[str, Any],
    divergences: Any,
) -> Row:
    """What draws are worth; None where the posterior is known in closed form, and draws are independent.

    Args:
        size: how many chains, and draws of each. mixing: of each number that was drawn, if that is to be told.
        acceptance: by block, of each chain. divergences: of each chain; None where there can be none.
    """
    return {
        "method": method,
        "chains": size[0],
        "draws": size[1],
        "seconds": seconds,
        "r_hat_max": _extreme(max, [one.r_hat for one in mixing]),
        "ess_bulk_min": _extreme(min, [one.bulk for one in mixing]),
        "ess_tail_min": _extreme(min, [one.tail for one in mixing]),
        "acceptance": {block: float(np.mean(rates)) for block, rates in acceptance.items()},
        "divergences": None if divergences is None else int(np.sum(divergences)),
    }


def _extreme(choose: Any, numbers: Sequence[float]) -> float | None:
    """None of nothing, and of what ArviZ cannot say."""
    return float(choose(numbers)) if numbers and all(map(isfinite, numbers)) else None


def _plain(value: float | None) -> float | None:
    """A number that JSON has."""
    return None if value is None or not isfinite(value) else float(value)
