"""What clients reported, each private by itself, beside what the noise alone would look like."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from emulator.report.bars import Bar, bars
from emulator.report.figures import count, counted, number
from emulator.report.markup import Child, table
from emulator.report.page import note
from emulator.report.plot import Axis, Series, axis_over, plot
from emulator.report.types import Amount, Count, Real


class Histogram(msgspec.Struct, frozen=True):
    """How many reports lie in each of some bins of equal width between `low` and `high`, in units of the scale."""

    low: Real
    high: Real
    counts: list[Count]


class Reports(msgspec.Struct, frozen=True):
    """Of one round.

    Attributes:
        noise_scale, probabilities: as of `dca_proto.aggregate.LocalReports`.
        told: how many reports name each category. histogram: of reports of one number.
    """

    noise_scale: Amount = 0.0
    probabilities: tuple[Amount, Amount] | None = None
    told: list[Count] | None = None
    histogram: Histogram | None = None


class Reported(Protocol):
    """A round, as far as it is looked at here."""

    @property
    def contributors(self) -> int | None: ...
    @property
    def noise_variance(self) -> float | None: ...
    @property
    def reports(self) -> Reports | None: ...


def told(mechanism: str | None, rounds: Sequence[Reported], names: Sequence[str]) -> Iterator[Child]:
    """Of a job on reports: how many there are, and of its only round what they are like.

    Args:
        names: of the categories, where they have any.
    """
    known = [one for one in rounds if one.reports is not None]
    if not known or mechanism is None:
        return
    reports = sum(one.contributors or 0 for one in known)
    yield note(
        f"{counted(reports, 'report')} by {mechanism}, of one client each. A report had its whole noise before it left "
        "its client, so that nobody had to be trusted with anything, whoever colludes."
    )
    last, n = known[-1], known[-1].contributors or 0
    assert last.reports is not None, "chosen so"
    if len(known) == 1 and last.reports.told is not None and last.reports.probabilities is not None:
        yield _categories(last.reports.told, last.reports.probabilities, n, names)
    elif len(known) == 1 and last.reports.histogram is not None:
        yield from _histogram(last.reports.histogram)
    if last.noise_variance is not None and n:
        one, together = math.sqrt(last.noise_variance / n), math.sqrt(last.noise_variance)
        rows = [("in one report", number(one)), (f"in the sum of {count(n)}", number(together))]
        yield table(("noise in each value, in the statistic's units", "sd at most"), rows)


def _categories(found: list[int], chances: tuple[float, float], n: int, names: Sequence[str]) -> Child:
    labels = names if len(names) == len(found) else [f"category {place}" for place in range(len(found))]
    rows = [Bar(label, many, count(many)) for label, many in zip(labels, found, strict=True)]
    stray = count(round(n * chances[1]))
    caption = f"How many reports name each category. One that nobody is in would be named by about {stray}, by chance."
    return bars(rows, caption=caption)


def _histogram(found: Histogram) -> Iterator[Child]:
    if not found.counts or not found.low < found.high:
        return
    width = (found.high - found.low) / len(found.counts)
    points = [(found.low + (place + 0.5) * width, float(many)) for place, many in enumerate(found.counts)]
    most = max(many for _, many in points)
    x = Axis("report, in units of the public bounds", found.low, found.high)
    ends = [
        Series("where values are clipped", [(end, 0.0), (end, most)], 1, "dashed", in_legend=end > 0)
        for end in filter(x.holds, (-1.0, 1.0))
    ]
    series = [Series("reports", points, 0, "solid", "disc"), *ends]
    caption = "How the reports are spread. What is beyond the bounds is noise; the model weighs it as such."
    yield plot(series, x, axis_over("reports in a bin", [0.0, most], log=False), caption=caption)
