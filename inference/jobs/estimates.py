"""Estimates with their 95 % intervals, with and without privacy, as rows of a `summary.Summary` and as tables.

Each job computes its intervals from its posterior: `normal`, `student`, or quantiles of draws (`of_draws`).

Two kinds of figures come from raw rows, so no ε covers them: estimates without privacy, and scores on held-out rows.
Files put them in a separate block (`separated`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import floor, isfinite, log10
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from dca_proto.privacy.rounding import claim_words
from dca_proto.wording import DIGITS_MAX, digits
from inference.contraction import contraction, percent
from inference.jobs.summary import (
    Draws,
    Ends,
    Family,
    Figures,
    Place,
    Row,
    Score,
    Standard,
    Summary,
    TableCell,
    estimate_of,
)

CONTRACTION = "contraction"
_CONTRACTIONS_MAX = 6  # up to this many are named one by one
NOT_COVERED = "not_covered_by_epsilon"
WITHOUT_PRIVACY = "without privacy"
UNCOVERED = "not covered by epsilon"
HELD_OUT = "held-out"  # prefix of the names of scores that come from raw rows
LEVEL = 0.95  # of all intervals
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
BY_SD = "private standard deviation"
BY_BOUNDS = "half-width of the public bounds"
SHARE, COUNTED = "share", "n"
DIFFERENCE, LESS = "difference", " less "
"""The figure of two groups of a table, and what stands between their names."""
QUARTILES = ("lower quartile", "median", "upper quartile")
LOCATIONS = ("mean", *QUARTILES)
"""Figures of a column of numbers that have its values' place, so that they share an axis."""
COEFFICIENTS, ESTIMATES, INTERCEPT = "coefficients", "estimates", "intercept"
"""The tables of a summary."""
_PLACES_MAX = 6  # after the decimal point; smaller numbers get an exponent


class Marginal(NamedTuple):
    """The law of one number: its mean, with standard deviation and the ends of the 95 % interval if they are known.

    Attributes:
        prior: the ends of the prior's central 95 % interval, for a posterior with a proper prior.
    """

    mean: float
    sd: float | None = None
    interval: tuple[float, float] | None = None
    prior: tuple[float, float] | None = None

    @property
    def contraction(self) -> float | None:
        """How much of the prior's spread is gone (`inference.contraction`); None if there is no posterior."""
        if self.interval is None or self.prior is None:
            return None
        return float(contraction(np.ptp(self.interval), np.ptp(self.prior)))


def normal(mean: float, sd: float) -> Marginal:
    """Return the marginal of a normal law; its interval is 1.96 standard deviations to either side."""
    return student(mean, sd, np.inf)


def student(mean: float, scale: float, degrees: float) -> Marginal:
    """Return the marginal of Student's t about the mean.

    Args:
        scale: the standard error, reported as the standard deviation. degrees: of freedom; infinite means normal.
    """
    half_width = scale * float(ndtri(TAILS[1]) if np.isinf(degrees) else stdtrit(degrees, TAILS[1]))
    return Marginal(float(mean), float(scale), (float(mean) - half_width, float(mean) + half_width))


def of_draws(array: NDArray[np.float64], prior: NDArray[np.float64] | None = None) -> Marginal:
    """Return mean, standard deviation and equal-tailed quantiles of draws of one number.

    Args:
        prior: draws of the same number from the prior, or None.
    """
    before = None if prior is None else _quantiles(prior)
    return Marginal(float(np.mean(array)), float(np.std(array)), _quantiles(array), before)


def _quantiles(array: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(array, TAILS)
    return float(low), float(high)


class Estimate(NamedTuple):
    """One number of a posterior.

    Attributes:
        name, unit: for people. marginal: its mean, sd and intervals. table: its table in the summary.
        axis: how a picture shows it, by a scale and a centre that are public or private, never from raw rows.
        place: its position on a curve. naive: the estimate without a model of the reports' noise.
        family: of differences whose intervals hold together.
    """

    name: str
    unit: str
    marginal: Marginal
    table: str = ESTIMATES
    axis: Standard | None = None
    place: Place | None = None
    naive: Marginal | None = None
    family: Family | None = None

    def row(self, other: Marginal | None) -> Row:
        """Return its row of the summary, with the estimate without privacy."""
        row = cast(Row, {"name": self.name, "unit": self.unit, **figures(self.marginal, other)})
        if self.axis is not None:
            row["standard"] = self.axis
        if self.place is not None:
            row["at"] = self.place
        if self.family is not None:
            row["family"] = self.family
        if self.naive is not None:
            row["naive"], row["naive_sd"] = _plain(self.naive.mean), _plain(self.naive.sd)
            row["naive_interval_95"] = _ends(self.naive.interval)
        return row


def figures(private: Marginal, nonprivate: Marginal | None) -> Figures:
    """Return the figures of one estimate, without its name."""
    other = nonprivate or Marginal(np.nan)
    return {
        "estimate": _plain(private.mean),
        "estimate_sd": _plain(private.sd),
        "interval_95": _ends(private.interval),
        "prior_interval_95": _ends(private.prior),
        "contraction": _plain(private.contraction),
        "nonprivate": _plain(other.mean),
        "nonprivate_sd": _plain(other.sd),
        "nonprivate_interval_95": _ends(other.interval),
    }


def slope_axis(target: str, by: str, scale: float, *, is_indicator: bool) -> Standard:
    """Return how a picture shows a slope: times a scale of its feature; that of an indicator as it is, 1 against 0.

    Args:
        target: the unit of the predicted value. by: the kind of scale, `BY_SD` or `BY_BOUNDS`.
    """
    if is_indicator:
        return Standard(unit=f"{target}, the category against its reference", scale=1.0, centre=0.0)
    return Standard(unit=f"{target} per {by} of the feature", scale=float(scale), centre=0.0)


def score(name: str, private: float, nonprivate: float | None, constant: float, *, higher_is_better: bool) -> Score:
    """Return a score on held-out rows, with the one without privacy and that of a constant prediction."""
    return {
        "name": name,
        "private": _plain(private),
        "nonprivate": _plain(nonprivate),
        "constant": _plain(constant),
        "higher_is_better": higher_is_better,
    }


def separated(summary: Summary) -> Summary:
    """Return a summary for files: figures from raw rows move to `NOT_COVERED`, which is None if there are none.

    Args:
        summary: of a job, with its iterations if it has any.
    """
    kept: dict[str, Any] = {**summary}
    apart: dict[str, Any] = {}
    for key in ("coefficients", "estimates", "marginals"):
        if key in kept:
            pairs = [_parted(row) for row in kept[key]]
            kept[key], others = [own for own, _ in pairs], [other for _, other in pairs if other]
            apart |= {key: others} if others else {}
    if kept.get("intercept"):
        kept["intercept"], other = _parted(kept["intercept"])
        apart |= {"intercept": other} if other else {}
    test, iterations = kept.pop("test", None), kept.get("iterations", [])
    apart |= {"test": test} if test else {}
    if any(iteration["name"].startswith(HELD_OUT) for iteration in iterations):
        apart["iterations"] = kept.pop("iterations")
    why = "computed from rows as they are, without noise"
    return cast(Summary, {**kept, NOT_COVERED: {"why": why, **apart} if apart else None})


def _parted(row: Mapping[str, object]) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Split a row into its private part and, with the row's name, its figures without privacy; empty if unknown."""
    own = {key: value for key, value in row.items() if not key.startswith("nonprivate")}
    other = {key: value for key, value in row.items() if key not in own}
    named = {key: row[key] for key in ("name",) if key in row}
    return own, {} if all(value is None for value in other.values()) else named | other


def claim(summary: Summary) -> str:
    """Return the epsilon and delta that a private summary claims, as text."""
    epsilon, delta = summary["epsilon"], summary["delta"]
    assert epsilon is not None, "it is private"
    assert delta is not None, "it is private"
    return claim_words(epsilon, delta)


def rounded(value: float | None) -> str:
    """Format a score for people."""
    return "–" if value is None else digits(value, 4)


def interval_words(mean: float, interval: Sequence[float] | None, count: int = 4) -> str:
    """Format an estimate for people, such as "7.27 [2.1, 12.4]".

    The ends are rounded to two digits of half the interval's width, the mean to one digit more.

    Args:
        count: significant digits of a mean without an interval.
    """
    if interval is None:
        return digits(mean, count)
    low, high = interval
    half = (high - low) / 2
    if not half > 0:
        return f"{digits(mean, count)} [{digits(low, count)}, {digits(high, count)}]"
    places = 1 - floor(log10(half))
    return f"{_rounded(mean, places + 1)} [{_rounded(low, places)}, {_rounded(high, places)}]"


def _rounded(value: float, places: int) -> str:
    """Format a number with `places` digits after the decimal point; negative places round to tens, hundreds, etc."""
    number = round(value, places) + 0.0  # no negative zero
    if places > _PLACES_MAX or abs(number) >= 10**DIGITS_MAX:
        return f"{value:.3g}"
    return f"{number:,.{max(places, 0)}f}"


def table_of(summary: Summary, rows: Sequence[Row], *, compared: bool) -> tuple[str, list[str], list[list[str]]]:
    """Return a table of estimates for people: its title, the names of its columns, and the texts of its cells.

    Args:
        rows: of the summary, to be shown. compared: include the estimates without privacy.
    """
    naive = summary.get("naive_title")
    kinds = {"estimate": "private" if summary["private"] else "not private"}
    kinds |= {"naive": naive.replace(", ", ",\n")} if naive else {}  # at 80 columns numbers need the room
    kinds |= {"nonprivate": f"not covered by ε:\n{WITHOUT_PRIVACY}"} if compared else {}
    title = "posterior: mean [95 % interval]"
    if rows and all(row["interval_95"] is None for row in rows):
        has_others = compared and any(row["nonprivate_interval_95"] for row in rows)
        title = "estimates; without privacy: mean [95 % interval]" if has_others else "estimates"
    units = {row["unit"] for row in rows if row["name"] != INTERCEPT}
    own = not naive and len(units) != 1  # a column of units; the title has a single unit, which leaves room for names
    if not naive and not own:
        title = ", ".join(filter(None, (title, *units)))
    cells = []
    for row in rows:
        name = f"{row['name']} ({row['unit']})" if naive and row["unit"] else row["name"]
        cells.append([name, *(_words(row, kind) for kind in kinds), *([row["unit"]] if own else [])])
    return title, ["", *kinds.values(), *(["unit"] if own else [])], cells


def _words(row: Row, kind: str) -> str:
    """Format one estimate with its interval; a naive one has none, since its interval means little."""
    point = estimate_of(row, kind)
    if point.mean is None:
        return "–"
    return digits(point.mean, 3) if kind == "naive" else interval_words(point.mean, point.interval)


def names_of(groups: Sequence[str]) -> tuple[str, list[str]]:
    """Return the column that all names of groups and pairs of them begin with, or "", and the names without it.

    So "arm=drug" and "arm=drug less arm=both" become "arm", and "drug" and "drug less both".
    """
    column, sign, _ = groups[0].partition("=") if groups else ("", "", "")
    if not sign or not all(group.startswith(column + sign) for group in groups):
        return "", [*groups]
    return column, [LESS.join(one.removeprefix(column + sign) for one in group.split(LESS)) for group in groups]


def difference_words(cell: TableCell) -> str:
    """Name a difference by its groups, as in "drug less both", or "worse: drug less both" for shares."""
    of = cell["figure"].removeprefix(DIFFERENCE).removeprefix(f" of {cell['column']} = ")
    (groups,) = names_of([cell["group"]])[1]
    return f"{of}: {groups}" if of else groups


def learned_lines(summary: Summary) -> list[tuple[str, str]]:
    """Return how much was learned, and the warnings: a label and a text each."""
    learned = contraction_words(rows_of(summary))
    return [
        *([(CONTRACTION, learned)] if learned else []),
        *(("warning", text) for text in summary.get("warnings", [])),
    ]


def contraction_words(rows: Sequence[Row]) -> str:
    """Describe how much was learned of each estimate; of many, the least and the most. Empty if it is unknown."""
    known = [(part, row["name"]) for row in rows if (part := row.get("contraction")) is not None]
    if not known:
        return ""
    if len(known) <= _CONTRACTIONS_MAX:
        words = ", ".join(f"{percent(part)} of {name}" for part, name in known)
    else:
        words = " to ".join(f"{percent(part)} ({name})" for part, name in (min(known), max(known)))
    return f"{words} (0 % is the prior)"


def sampling_words(sampling: Draws) -> str:
    """Describe the number and quality of a posterior's draws, in one line."""
    words = f"{sampling['chains']} chains of {sampling['draws']} draws by method {sampling['method']}"
    bulk, tail = sampling["ess_bulk_min"], sampling["ess_tail_min"]
    if sampling["r_hat_max"] is None or bulk is None or tail is None:
        return words if sampling["acceptance"] else f"{words}, in closed form"
    words += f"; R-hat at most {sampling['r_hat_max']:.3f}, at least {min(bulk, tail):.0f} effective draws"
    accepted = ", ".join(f"{100 * rate:.0f} % of {block}" for block, rate in sampling["acceptance"].items())
    return f"{words}; accepted {accepted}; {sampling['seconds']:.1f} s" if accepted else words


def rows_of(summary: Summary) -> list[Row]:
    """Return all estimates of a summary, the intercept last."""
    rows = [*summary.get("coefficients", []), *summary.get("estimates", [])]
    if (intercept := summary.get("intercept")) is not None:
        rows.append(cast(Row, {"name": INTERCEPT, "unit": "", **intercept}))
    return rows


def _plain(value: float | None) -> float | None:
    """Return a number that JSON can hold, or None."""
    return None if value is None or not isfinite(value) else float(value)


def _ends(interval: Iterable[float] | None) -> Ends | None:
    """Return both ends as JSON numbers, or None unless both are finite."""
    ends = [] if interval is None else [_plain(end) for end in interval]
    return [end for end in ends if end is not None] if ends and None not in ends else None
