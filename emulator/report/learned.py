"""What a job has learned: its estimates, its scores on rows that were held out, and their course over iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from emulator.report.bars import Bar, bars
from emulator.report.figures import UNKNOWN, counted, interval_words, number
from emulator.report.intervals import Estimate, Row, intervals
from emulator.report.markup import Child, element, table
from emulator.report.nodes import Sampling
from emulator.report.page import note
from emulator.report.plot import Axis, Series, axis_over, plot
from emulator.report.types import Amount, Count, Real

_ROWS_MAX = 60
Interval = tuple[Real, Real]
INTERCEPT = "intercept"
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


class Coefficient(Reference, frozen=True):
    """A posterior mean with its 95 % interval, with privacy and without, as far as known; also a point of a curve."""

    estimate: Real | None = None
    unit: str = ""
    interval_95: Interval | None = None
    contraction: Real | None = None
    naive: Real | None = None
    naive_interval_95: Interval | None = None
    at: Place | None = None


class Score(msgspec.Struct, frozen=True):
    """A score of predictions, beside the one without privacy and that of a constant prediction."""

    name: str
    private: Real | None
    nonprivate: Real | None
    constant: Real | None
    higher_is_better: bool = True


class HeldOut(msgspec.Struct, frozen=True):
    """Root mean square errors, or scores, on rows that were held out."""

    rows: Count
    rmse_private: Amount | None = None
    rmse_nonprivate: Amount | None = None
    rmse_zero: Amount | None = None
    scores: list[Score] = []

    @property
    def every_score(self) -> list[Score]:
        """The errors as a score, then the others."""
        if self.rmse_private is None:
            return self.scores
        return [Score("error", self.rmse_private, self.rmse_nonprivate, self.rmse_zero, False), *self.scores]


class Iteration(msgspec.Struct, frozen=True):
    """The score after an iteration."""

    number: Count
    name: str
    value: Real | None


class NotCovered(msgspec.Struct, frozen=True):
    """What comes from rows as they are, so that no epsilon covers it."""

    coefficients: list[Reference] = []
    estimates: list[Reference] = []
    intercept: Reference | None = None
    test: HeldOut | None = None
    iterations: list[Iteration] = []


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's result has, whoever held its rounds."""

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
        """Every estimate, the intercept last, beside the one without privacy where that is known."""
        others = {one.name: one for one in [*self._apart.coefficients, *self._apart.estimates]}
        found = [_beside(one, others.get(one.name)) for one in [*self.coefficients, *self.estimates]]
        return [*found, _beside(self.intercept, self._apart.intercept)] if self.intercept else found

    @property
    def _apart(self) -> NotCovered:
        return self.not_covered_by_epsilon or NotCovered()


def _beside(one: Coefficient, other: Reference | None) -> Coefficient:
    """An estimate with the one without privacy from the block, and from nowhere else."""
    known = other or Reference()
    interval = known.nonprivate_interval_95
    return msgspec.structs.replace(one, nonprivate=known.nonprivate, nonprivate_interval_95=interval)


def score_words(test: HeldOut) -> str:
    """The first score in words."""
    if not test.every_score:
        return "no score was recorded"
    first = test.every_score[0]
    if first.nonprivate is None:
        beside = f"{_known(first.constant)} by a constant prediction"
    else:
        beside = f"{_known(first.nonprivate)} without privacy"
    return f"test {first.name} {_known(first.private)} ({beside}; {UNCOVERED})"


def estimate_words(found: Sequence[Coefficient]) -> str:
    """The first estimate in words."""
    first = found[0]
    other = "" if first.nonprivate is None else f" ({_known(first.nonprivate)} {WITHOUT_PRIVACY})"
    return f"{first.name} {_words(first.estimate, first.interval_95)}{other}"


def _words(mean: float | None, interval: Interval | None) -> str:
    return _known(mean) if mean is None or interval is None else interval_words(mean, *interval)


def baseline_fact(test: HeldOut) -> Iterator[tuple[str, str]]:
    """What is reached without learning anything."""
    for one in test.every_score[:1]:
        label = "error of predicting the mean" if one.name == "error" else f"{one.name} of a constant prediction"
        yield f"{label}, {UNCOVERED}", _known(one.constant)


def warned(warnings: Sequence[str]) -> Iterator[Child]:
    """What speaks against taking the estimates at their word."""
    for text in warnings:
        yield note(f"{text[:1].upper()}{text[1:]}.")


def course(iterations: Sequence[Iteration], test: HeldOut | None) -> Iterator[Child]:
    """The score over the iterations, and where it would have ended without privacy."""
    known = [(float(one.number), one.value) for one in iterations if one.value is not None]
    if len(known) < 2:
        return
    name = iterations[-1].name
    goal = [one for one in (test.every_score if test else []) if one.name in name and one.nonprivate is not None]
    heights = [value for _, value in known] + [one.nonprivate for one in goal if one.nonprivate is not None]
    x = Axis("iteration", 0.0, max(at for at, _ in known) + 1.0, say=lambda tick: f"{tick:.0f}")
    series = [Series(name, known, 0, "solid", "disc")]
    for one in goal:
        assert one.nonprivate is not None, "chosen so"
        series.append(Series(WITHOUT_PRIVACY, [(x.low, one.nonprivate), (x.high, one.nonprivate)], 1, "dashed"))
    caption = "How well the parameters of each iteration do; each has cost one round."
    caption += f" Scores on held-out rows are {UNCOVERED}." if test else ""
    yield plot(series, x, axis_over(name, heights, log=False), caption=caption)


def estimates(found: Sequence[Coefficient], names: tuple[str, str], left_out: str | None) -> Iterator[Child]:
    """Each estimate with its interval, beside the one without privacy where that is known.

    Args:
        left_out: what is to be said of the intervals, if anything.
    """
    yield from _curves([one for one in found if one.at is not None], names)
    rows = [row for row in map(_row, [one for one in found if one.at is None][:_ROWS_MAX]) if row is not None]
    if rows:
        caption = "Posterior means, with 95 % intervals in brackets. Each row has a scale of its own. "
        caption += "The dotted line is zero."
        if any(one.contraction is not None for one in found):
            caption += " Contraction is the part of the prior's variance that the data took away; 0 % is the prior."
        caption += f" Of the intervals, {left_out}." if left_out else ""
        yield intervals(rows, names, caption=caption)


def _curves(found: Sequence[Coefficient], names: tuple[str, str]) -> Iterator[Child]:
    """Points of curves, each curve from 1 at 0, with their intervals."""
    if not found:
        return
    series, labels = [], list(dict.fromkeys(one.at.series for one in found if one.at))
    for tone, label in enumerate(labels):
        own = [(one.at.x, one) for one in found if one.at and one.at.series == label]
        spread = [(x, *one.interval_95) for x, one in own if one.interval_95]
        points = [(0.0, 1.0), *((x, one.estimate) for x, one in own if one.estimate is not None)]
        series.append(Series(f"{label}, {names[0]}", points, tone, "solid", "disc", spread))
        others = [(x, one.nonprivate) for x, one in own if one.nonprivate is not None]
        if others:
            series.append(Series(f"{label}, {names[1]}", [(0.0, 1.0), *others], tone, "dashed"))
    last = max(one.at.x for one in found if one.at)
    caption = "Posterior means with 95 % intervals, each of which holds by itself (pointwise)."
    yield plot(series, Axis("time", 0.0, 1.02 * last), Axis("probability", 0.0, 1.02), caption=caption)


def compared(found: Sequence[Coefficient], names: tuple[str, str], naive: str | None) -> Iterator[Child]:
    """Each estimate beside what the same reports say without a model of their noise, where that is known.

    Args:
        naive: what the latter is called.
    """
    if naive is None:
        return
    rows = [
        (
            one.name,
            _words(one.estimate, one.interval_95),
            _words(one.naive, one.naive_interval_95),
            _words(one.nonprivate, one.nonprivate_interval_95),
        )
        for one in found[:_ROWS_MAX]
    ]
    yield table(("", names[0], naive, names[1]), rows)


def scores(test: HeldOut, names: tuple[str, str]) -> Iterator[Child]:
    """Each score as bars."""
    for one in test.every_score:
        kinds = (one.private, one.nonprivate, one.constant)
        labels = (*names, "predicting the mean" if one.name == "error" else "a constant prediction")
        known = [(label, value, tone) for tone, (label, value) in enumerate(zip(labels, kinds, strict=True))
                 if value is not None]  # fmt: skip
        rows = f"on {counted(test.rows, 'row')} that nobody learned from: {UNCOVERED}."
        if one.name == "error":
            caption = f"Root mean square error {rows}"
        else:
            caption = f"{one.name} {rows} {'Higher' if one.higher_is_better else 'Lower'} is better."
        if all(value >= 0 for _, value, _ in known):
            yield bars([Bar(label, value, number(value), tone) for label, value, tone in known], caption=caption)
        else:
            yield element("h3", caption)
            yield table(("", one.name), [(label, number(value)) for label, value, _ in known])


def _row(one: Coefficient) -> Row | None:
    """None where there is no estimate."""
    private = _estimate(one.estimate, one.interval_95)
    if private is None:
        return None
    learned = "" if one.contraction is None else f"contraction {100 * one.contraction:.0f} %"
    about = "; ".join(filter(None, (one.unit, learned)))
    return Row(one.name, about, private, _estimate(one.nonprivate, one.nonprivate_interval_95))


def _estimate(mean: float | None, interval: Interval | None) -> Estimate | None:
    """A point, where no interval is known."""
    if mean is None:
        return None
    low, high = interval or (mean, mean)
    return Estimate(mean, low, high, _words(mean, interval))


def _known(value: float | None) -> str:
    return UNKNOWN if value is None else number(value)
