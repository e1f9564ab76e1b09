"""What a job has learned: estimates, scores on rows that were held out, their course, what draws and reports are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from emulator.report.charts import Axis, Estimate, Series, bars, intervals, lines
from emulator.report.figures import UNKNOWN, count, counted, interval_words, number, percent, seconds
from emulator.report.page import Block, Cell, Note, Section, Table, settings
from emulator.results import Amount, Count, Node, Real, Reports

ROWS_MAX, _PANELS_MAX = 60, 8
Interval = tuple[Real, Real]
INTERCEPT = "intercept"
_POINTS = "Points, of which this job gives no intervals."
UNCOVERED = "not covered by epsilon"
WITHOUT_PRIVACY = f"without privacy, {UNCOVERED}"


class Reference(msgspec.Struct, frozen=True):
    """The same estimate without privacy."""

    nonprivate: Real | None = None
    nonprivate_interval_95: Interval | None = None
    name: str = INTERCEPT


class Place(msgspec.Struct, frozen=True):
    """Where an estimate stands in a curve of that name."""

    series: str
    x: Real


class Standard(msgspec.Struct, frozen=True):
    """How an estimate stands on one axis with others of that unit: (value - centre)·scale."""

    unit: str
    scale: Real
    centre: Real = 0.0


class Coefficient(Reference, frozen=True):
    """A posterior mean with its 95 % interval, with privacy and without, as far as known; also a point of a curve."""

    estimate: Real | None = None
    unit: str = ""
    interval_95: Interval | None = None
    contraction: Real | None = None
    naive: Real | None = None
    naive_interval_95: Interval | None = None
    at: Place | None = None
    standard: Standard | None = None

    def words(self, kind: str = "estimate") -> str:
        """The estimate, the "naive" or the "nonprivate" one with its interval in brackets."""
        mean, interval = self.of(kind)
        if mean is None:
            return UNKNOWN
        return number(mean) if interval is None else interval_words(mean, *interval)

    def of(self, kind: str) -> tuple[float | None, Interval | None]:
        """Its mean and interval."""
        ends = "interval_95" if kind == "estimate" else f"{kind}_interval_95"
        return getattr(self, kind), getattr(self, ends)

    def on_axis(self, kind: str) -> Estimate | None:
        """Where it lies on its panel's axis; a point, where no interval is known."""
        mean, interval = self.of(kind)
        if mean is None:
            return None
        own = self.standard or Standard("", 1.0)
        found = [(end - own.centre) * own.scale for end in (mean, *(interval or (mean, mean)))]
        return Estimate(*found)


class Score(msgspec.Struct, frozen=True):
    """A score of predictions, beside the one without privacy and that of a constant prediction."""

    name: str
    private: Real | None
    nonprivate: Real | None
    constant: Real | None
    higher_is_better: bool = True
    unit: str = ""

    def said(self, value: float | None) -> str:
        """A value with its unit."""
        return f"{number(value)} {self.unit}".strip() if value is not None else UNKNOWN

    @property
    def of_constant(self) -> str:
        """What a prediction without learning is called."""
        return "predicting the mean" if self.name == "error" else "a constant prediction"


class HeldOut(msgspec.Struct, frozen=True):
    """Root mean square errors in `unit`, or scores, on rows that were held out."""

    rows: Count
    rmse_private: Amount | None = None
    rmse_nonprivate: Amount | None = None
    rmse_zero: Amount | None = None
    unit: str = ""
    scores: list[Score] = []

    @property
    def every_score(self) -> list[Score]:
        """The errors as a score, then the others."""
        if self.rmse_private is None:
            return [
                msgspec.structs.replace(one, unit=self.unit if one.name.endswith("error") else "")
                for one in self.scores
            ]
        error = Score("error", self.rmse_private, self.rmse_nonprivate, self.rmse_zero, False, self.unit)
        return [error, *self.scores]


class Iteration(msgspec.Struct, frozen=True):
    """The score after an iteration."""

    number: Count
    name: str
    value: Real | None


class Sampling(msgspec.Struct, frozen=True):
    """Draws of a posterior, and how well their chains agree; what closed forms have not is None."""

    method: str
    chains: Count
    draws: Count
    seconds: Amount | None = None
    r_hat_max: Amount | None = None
    ess_bulk_min: Amount | None = None
    ess_tail_min: Amount | None = None
    acceptance: dict[str, Amount] = {}
    divergences: Count | None = None


class NotCovered(msgspec.Struct, frozen=True):
    """What comes from rows as they are, so that no epsilon covers it."""

    coefficients: list[Reference] = []
    estimates: list[Reference] = []
    intercept: Reference | None = None
    test: HeldOut | None = None
    iterations: list[Iteration] = []


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a job's result, whoever held its rounds."""

    private: bool = True
    epsilon: Amount | None = None
    delta: Amount | None = None
    coefficients: list[Coefficient] = []
    estimates: list[Coefficient] = []
    intercept: Coefficient | None = None
    iterations: list[Iteration] = []
    not_covered_by_epsilon: NotCovered | None = None
    warnings: list[str] = []
    repair: str | None = None
    sampling: Sampling | None = None
    reports: str | None = None
    naive_title: str | None = None
    interval_note: str | None = None
    remarks: dict[str, str] = {}

    @property
    def test(self) -> HeldOut | None:
        """Errors or scores on rows that were held out."""
        return self._apart.test

    @property
    def course(self) -> list[Iteration]:
        """The score over the iterations."""
        return self._apart.iterations or self.iterations

    @property
    def every_estimate(self) -> list[Coefficient]:
        """Every estimate, the intercept last, beside the one without privacy from the block and from nowhere else."""
        others = {one.name: one for one in [*self._apart.coefficients, *self._apart.estimates]}
        found = [_beside(one, others.get(one.name)) for one in [*self.coefficients, *self.estimates]]
        return [*found, _beside(self.intercept, self._apart.intercept)] if self.intercept else found

    @property
    def kinds(self) -> dict[str, str]:
        """The estimates that there are, by what they are called."""
        named = {"estimate": "private" if self.private else "not private", "naive": self.naive_title or ""}
        named["nonprivate"] = WITHOUT_PRIVACY
        if not self.naive_title:
            del named["naive"]
        return {kind: name for kind, name in named.items()
                if any(one.of(kind)[0] is not None for one in self.every_estimate)}  # fmt: skip

    @property
    def _apart(self) -> NotCovered:
        return self.not_covered_by_epsilon or NotCovered()


def _beside(one: Coefficient, other: Reference | None) -> Coefficient:
    known = other or Reference()
    interval = known.nonprivate_interval_95
    return msgspec.structs.replace(one, nonprivate=known.nonprivate, nonprivate_interval_95=interval)


def learned_words(found: Learned) -> str:
    """The result in a few words: the first score, else the first estimate; empty where there is neither."""
    if found.test is not None and found.test.every_score:
        first = found.test.every_score[0]
        other = f"{first.said(first.constant)} by {first.of_constant}"
        if first.nonprivate is not None:
            other = f"{first.said(first.nonprivate)} without privacy"
        return f": test {first.name} {first.said(first.private)} ({other}; {UNCOVERED})"
    if not found.every_estimate:
        return ""
    one = found.every_estimate[0]
    other = "" if one.nonprivate is None else f" ({number(one.nonprivate)} {WITHOUT_PRIVACY})"
    return f": {one.name} {one.words()}{other}"


def lead_of(found: Learned) -> list[Section]:
    """Estimates with their intervals, and what speaks against taking them at their word."""
    title = "Coefficients" if found.coefficients else "Estimates"
    warnings = [Note(f"{text[:1].upper()}{text[1:]}.") for text in found.warnings]
    return [(title, _estimates(found)), ("Warnings", warnings)]


def sections_of(found: Learned) -> list[Section]:
    """Scores, the course of iterations, what draws are worth, and what else the job has to say."""
    said = {**found.remarks, **({"repair of the noisy matrix": found.repair} if found.repair else {})}
    return [
        ("Score", _scores(found.test, found.kinds.get("estimate", "private"))),
        ("Iterations", _course(found.course, found.test)),
        ("Draws", _draws(found.sampling)),
        ("Remarks", settings(said.items())),
    ]


def _estimates(found: Learned) -> list[Block]:
    every, kinds = found.every_estimate, found.kinds
    if not kinds:
        return []
    has_intervals = any(one.of(kind)[1] is not None for one in every for kind in kinds)
    caption = "Posterior means, with 95\u00a0% intervals in brackets." if has_intervals else _POINTS
    if any(one.contraction is not None for one in every):
        caption += " Contraction is the part of the prior's variance that the data took away; 0\u00a0% is the prior."
    caption += f" Of the intervals, {found.interval_note}." if found.interval_note else ""
    curved = [one for one in every if one.at is not None]
    drawn = [_curves(curved, kinds)] if curved else []
    flat = [one for one in every if one.at is None and one.name != INTERCEPT and one.estimate is not None]
    panels: dict[str, list[Coefficient]] = {}
    for one in flat[:ROWS_MAX]:
        panels.setdefault(one.standard.unit if one.standard else one.unit, []).append(one)
    if 0 < len(panels) <= _PANELS_MAX:
        groups = [(unit, [(one.name, [one.on_axis(kind) for kind in kinds]) for one in rows])
                  for unit, rows in panels.items()]  # fmt: skip
        told = "Lines reach over 95\u00a0% intervals; the dotted line is zero." if has_intervals else _POINTS
        drawn.append(intervals(groups, list(kinds.values()), caption=told))
    contracted = [""] if any(one.contraction is not None for one in every) else []
    rows: list[list[str | Cell]] = [
        [Cell(one.name, one.unit), *(one.words(kind) for kind in kinds),
         *(UNKNOWN if one.contraction is None else percent(round(one.contraction, 3)) for _ in contracted)]
        for one in every[:ROWS_MAX]
    ]  # fmt: skip
    return [*drawn, Table(("", *kinds.values(), *("contraction" for _ in contracted)), rows), Note(caption)]


def _curves(found: Sequence[Coefficient], kinds: dict[str, str]) -> Any:
    """Points of curves, each curve from 1 at 0, with their intervals."""
    series = []
    for tone, label in enumerate(dict.fromkeys(one.at.series for one in found if one.at)):
        own = [(one.at.x, one) for one in found if one.at and one.at.series == label]
        for kind, name in kinds.items():
            points = [(0.0, 1.0), *((x, mean) for x, one in own if (mean := one.of(kind)[0]) is not None)]
            spread = [(x, *one.interval_95) for x, one in own if one.interval_95] if kind == "estimate" else []
            line: Any = "-" if kind == "estimate" else "--"
            series.append(Series(f"{label}, {name}", points, tone, line, "o" if spread else "", spread))
    caption = "Posterior means with 95 % intervals, each of which holds by itself (pointwise)."
    return lines(series, Axis("time", low=0.0), Axis("probability", low=0.0, high=1.02), caption=caption)


def _scores(test: HeldOut | None, private: str) -> list[Block]:
    """Each score beside the one without privacy and that of a constant prediction."""
    if test is None:
        return []
    compared = [WITHOUT_PRIVACY] if any(one.nonprivate is not None for one in test.every_score) else []
    rows: list[list[str | Cell]] = []
    for one in test.every_score:
        name = "root mean square error" if one.name == "error" else one.name
        better = "higher is better" if one.higher_is_better else "lower is better"
        others = [one.said(one.nonprivate) for _ in compared]
        constant = Cell(one.said(one.constant), one.of_constant)
        rows.append([Cell(name, better), one.said(one.private), *others, constant])
    told = f"On {counted(test.rows, 'row')} that nobody learned from: {UNCOVERED}."
    return [Table(("", private, *compared, "without learning"), rows), Note(told)]


def _course(iterations: Sequence[Iteration], test: HeldOut | None) -> list[Block]:
    """The score over the iterations, and where it would have ended without privacy."""
    known = [(float(one.number), one.value) for one in iterations if one.value is not None]
    if len(known) < 2:
        return []
    name, ends = iterations[-1].name, (known[0][0], known[-1][0])
    series = [Series(name, known, 0, "-", "o")]
    scores = [one for one in (test.every_score if test else []) if one.name in name]
    levels = [one.nonprivate for one in scores if one.nonprivate is not None]
    series += [Series(WITHOUT_PRIVACY, [(at, level) for at in ends], 1, "--") for level in levels]
    caption = "How well the parameters of each iteration do; each has cost one round."
    caption += f" Scores on held-out rows are {UNCOVERED}." if test else ""
    return [lines(series, Axis("iteration", whole=True), Axis(name), caption=caption)]


def _draws(sampling: Sampling | None) -> list[Block]:
    """What the draws are worth, figure by figure."""
    if sampling is None:
        return []
    if sampling.r_hat_max is None and not sampling.acceptance:
        return [Note(f"Method {sampling.method} has the posterior in closed form; its draws are independent.")]
    return settings([
        ("method", sampling.method),
        ("chains × draws", f"{count(sampling.chains)} × {count(sampling.draws)}"),
        ("R-hat, at most", UNKNOWN if sampling.r_hat_max is None else f"{sampling.r_hat_max:.4f}"),
        ("effective draws for the middle, at least", _whole(sampling.ess_bulk_min)),
        ("effective draws for the tails, at least", _whole(sampling.ess_tail_min)),
        *((f"accepted moves of {block}", percent(round(rate, 2))) for block, rate in sampling.acceptance.items()),
        ("iterations that failed", count(sampling.divergences)),
        ("time", seconds(sampling.seconds)),
    ])  # fmt: skip


def _whole(value: float | None) -> str:
    return UNKNOWN if value is None else count(round(value))


# --- what was released one by one -------------------------------------------------------------------------------------


def nodes_of(nodes: Sequence[Node]) -> list[Block]:
    """One line for each data node."""
    if not nodes:
        return []
    told = "Each data node added the whole noise for one row by itself, before anything left it; how many rows it has "
    rows = [
        (str(place if one.number is None else one.number), count(one.rows), number(one.noise_sd))
        for place, one in enumerate(nodes[:ROWS_MAX], 1)
    ]
    return [Note(f"{told}is public."), Table(("data node", "rows", "noise in each value (sd)"), rows)]


def reports_of(
    mechanism: str | None, rounds: Sequence[tuple[int, float | None, Reports | None]], names: Sequence[str]
) -> list[Block]:
    """Of a job on reports: how many there are, and of its only round what they are like.

    Args:
        rounds: of each, how many reports, the variance of the noise in their sum, and what they are like.
        names: of the categories, where they have any.
    """
    known = [(n, variance, one) for n, variance, one in rounds if one is not None]
    if not known or mechanism is None:
        return []
    told = f"{counted(sum(n for n, _, _ in known), 'report')} by {mechanism}, of one client each. A report had its "
    blocks: list[Block] = [
        Note(f"{told}whole noise before it left its client, so that nobody had to be trusted, whoever colludes.")
    ]
    n, variance, last = known[-1]
    if len(known) == 1 and last.told is not None and last.probabilities is not None:
        labels = names if len(names) == len(last.told) else [f"category {place}" for place in range(len(last.told))]
        caption = "How many reports name each category. One that nobody is in would be named by about "
        caption += f"{count(round(n * last.probabilities[1]))}, by chance."
        shown = [(label, float(many), count(many)) for label, many in zip(labels, last.told, strict=True)]
        blocks.append(bars(shown, caption=caption))
    elif len(known) == 1 and last.histogram is not None and len(last.histogram.counts) > 1:
        found = last.histogram
        width = (found.high - found.low) / len(found.counts)
        points = [(found.low + (place + 0.5) * width, float(many)) for place, many in enumerate(found.counts)]
        caption = "How the reports are spread. What is beyond the public bounds, ±1, is noise; the model weighs it so."
        series = [Series("reports", points, 0, "-", "o")]
        blocks.append(lines(series, Axis("report, in units of the public bounds"), Axis("reports", low=0.0),
                            caption=caption))  # fmt: skip
    if variance is not None and n:
        rows = [
            ("in one report", number(math.sqrt(variance / n))),
            (f"in the sum of {count(n)}", number(math.sqrt(variance))),
        ]
        blocks.append(Table(("noise in each value, in the statistic's units", "sd at most"), rows))
    return blocks
