"""The columns of survival analysis, the round of survival curves, and its result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise, product
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol.wire.kinds import Kind, SecureSum
from dca_proto.statistics import Survival
from dca_proto.statistics.survival import CELLS_MAX
from inference.bounds import Interval
from inference.draws import CHAINS, DRAWS, all_private, attributes
from inference.errors import DataError, unknown
from inference.jobs.estimates import LEVEL, Estimate
from inference.jobs.settings import ROWS_MAX, require_count, require_positive
from inference.jobs.summary import LogRank as LogRankSummary
from inference.jobs.summary import Place, Standard, Summary
from inference.laws import Draws
from inference.mcmc.sums import NoisySums
from inference.models.doubts import not_counted
from inference.models.survival import curve
from inference.models.survival.codes import codes
from inference.models.survival.curve import PRIOR_ROWS, Counts, LogRank
from inference.posterior import Posterior, tails_of
from inference.problem import Array, Problem, Schema, unit_of
from inference.rounds import Job, request_of

INTERVALS_MAX = 100  # their codes take about a second; the time grows with the cube
FINEST = 12  # intervals of the curves' sum, at least: rows that are censored within one are at risk for part of it
SPREAD_PLACES = 0.25  # warn if the unknown places of the censored rows make more than this share of a variance of S
SURVIVAL = "survival"  # the name of the parameter S


@dataclass(frozen=True)
class Columns:
    """The columns that a survival job reads, and its grid.

    Attributes:
        duration, event: column names. times: t_1 < ... < t_K, in units of the duration, of which a result speaks.
        group: name of a column of G consecutive numbers, or None. groups: G. features: of a regression.
        censored: the event column's code of a censored row; an event is the next number. first_group: the first
            group's number. texts: labels of the event's codes and of the groups, or none.
        finest: the least number of intervals of `grid`, if the cells suffice. two_valued: features with two values.
        named: whether people named the times.

    Raises:
        DataError: there are no times, or more than `INTERVALS_MAX`.
    """

    duration: str
    event: str
    times: tuple[float, ...]
    group: str | None = None
    groups: int = 1
    features: tuple[str, ...] = ()
    censored: int = 0
    first_group: int = 0
    finest: int = 1
    texts: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    two_valued: tuple[str, ...] = ()
    named: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.times) <= INTERVALS_MAX:
            raise DataError(f"a grid of {len(self.times)} times; expected 1 to {INTERVALS_MAX}, the ends of intervals")

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, in the order of the statistics."""
        return (self.duration, self.event, *([self.group] if self.group else []), *self.features)

    @cached_property
    def grid(self) -> tuple[float, ...]:
        """The times of the sum: `times` and, evenly between them, more, so that no interval is long.

        No interval is longer than a share 1/`finest` of t_K, or than fits into the statistic's cells.
        """
        for parts in range(self.finest, 1, -1):
            grid: list[float] = []
            for left, right in pairwise((0.0, *self.times)):
                pieces = ceil(parts * (right - left) / self.times[-1] * (1 - 1e-9))
                grid += [left + (right - left) * k / pieces for k in range(1, pieces)] + [right]
            if self.groups * (2 * len(grid) + 1) <= CELLS_MAX:
                return tuple(grid)
        return self.times

    @property
    def group_labels(self) -> tuple[str, ...]:
        """Labels such as "arm 0" and "arm 1", or "arm=placebo" and "arm=drug"; "all" without groups."""
        if self.group is None:
            return ("all",)
        numbers = range(self.first_group, self.first_group + self.groups)
        return tuple(f"{self.group}={text}" for text in self.texts[1]) or tuple(f"{self.group} {g}" for g in numbers)

    @property
    def coding(self) -> str:
        """The codes of the event column, for people."""
        censored, event = self.texts[0] or (self.censored, self.censored + 1)
        return f"{self.event} {censored} = censored, {event} = event"

    @property
    def reasons(self) -> str:
        """Why rows may not count."""
        return f"they lack a value, have a negative duration, or codes other than {self.coding}"

    @classmethod
    def of(
        cls,
        schema: Schema,
        event: str,
        group: str | None,
        times: tuple[float, ...] | None,
        intervals: int,
        finest: int = 1,
    ) -> Columns:
        """Return the columns of a schema; its target is the duration.

        Args:
            times: the grid. None: ``intervals`` intervals of equal length, up to the duration's upper bound.
                finest: as for the record.

        Raises:
            DataError: a column is missing or used twice, its bounds are no codes of events or groups, durations may be
                below 0, there is no grid, or it ends beyond the durations' bound.
        """
        for kind, name in (("event", event), ("group", group)):
            if name is not None and name not in schema.features:
                error = unknown(f"{kind} column", name, "the features", schema.features)
                raise DataError(f"{error}; name the {kind} column among them, too")
        if group == event:
            raise DataError(f"column {event!r} is both the event and the group; name two columns")
        duration, end = schema.bounds[schema.target], schema.bounds[schema.target].upper
        if duration.lower < 0:
            found = f"duration {schema.target!r} has bounds {duration.lower:g}:{end:g}"
            raise DataError(f"{found}; durations start at 0, so remove rows below 0 and give 0:{max(end, 0):g}")
        censored = _first_code(event, schema.bounds[event])
        groups, first, texts = 1, 0, (schema.bounds[event].labels, schema.bounds[group].labels if group else ())
        if group is not None:
            bounds = schema.bounds[group]
            if bounds.lower not in (0, 1) or not float(bounds.upper).is_integer():
                found = f"group column {group!r} has bounds {bounds.lower:g}:{bounds.upper:g}"
                raise DataError(f"{found}; number the groups from 0 or 1, as in 0:1 or 1:2 for two")
            first, groups = int(bounds.lower), int(bounds.upper - bounds.lower) + 1
        if not times and (intervals < 1 or end <= 0):
            found = f"{intervals} intervals up to {end:g}"
            raise DataError(f"{found}; expected at least one, and a duration bounded above 0")
        if times and times[-1] > end:
            found = f"setting 'times' ends at {times[-1]:g}, beyond the upper bound of {schema.target!r}, {end:g}"
            raise DataError(f"{found}, where nobody is followed; end the grid at {end:g}, or state a wider bound")
        grid = times or tuple(float(end * k / intervals) for k in range(1, intervals + 1))
        features = tuple(name for name in schema.features if name not in (event, group))
        known: dict[str, Any] = {"groups": groups, "features": features, "finest": finest, "texts": texts}
        known |= {"censored": censored, "first_group": first}
        return cls(schema.target, event, grid, group, **known, two_valued=schema.two_valued, named=bool(times))


def _first_code(event: str, bounds: Interval) -> int:
    """Return the code of censored rows: 0 for bounds 0:1, 1 for bounds 1:2. Raises `DataError` for others."""
    found = bounds.lower, bounds.upper
    if found not in ((0, 1), (1, 2)):
        raise DataError(
            f"event column {event!r} has bounds {found[0]:g}:{found[1]:g}; expected 0:1 (0 = censored, 1 = event) or "
            "1:2 (1 = censored, 2 = event), so recode other events as censored, or as the event"
        )
    return int(found[0])


# --- curves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DrawnCurves:
    """Predicts survival at times from draws of curves.

    Attributes:
        times: the grid. draws: S(t_k), shape ``(chains, draws, G, K)``.
    """

    times: tuple[float, ...]
    draws: Array
    features = None

    def predict(self, times: Array) -> tuple[Array, Array]:
        """Return mean and sd of each group's S at these times, each ``(G, k)``, interpolated linearly on the grid."""
        drawn = self.simulate(times, {SURVIVAL: self.draws}, np.random.default_rng(0))
        return drawn.mean(axis=(0, 1)), drawn.std(axis=(0, 1))

    def simulate(self, times: Array, draws: Draws, rng: np.random.Generator, *, labels: bool = False) -> Array:
        """Return S of each draw and group at these times, ``(chains, draws, G, k)``; `rng` and `labels` are not used.

        Raises:
            DataError: a time is below 0 or beyond the grid.
        """
        asked, grid = np.asarray(times, dtype=np.float64), np.r_[0.0, self.times]
        if not ((asked >= 0) & (asked <= grid[-1])).all():
            raise DataError(f"times from {asked.min():g} to {asked.max():g}; the grid is from 0 to {grid[-1]:g}")
        drawn = draws[SURVIVAL]
        begun = np.concatenate([np.ones((*drawn.shape[:-1], 1)), drawn], axis=-1)
        place = np.clip(np.searchsorted(grid, asked, side="right") - 1, 0, grid.size - 2)
        share = (asked - grid[place]) / (grid[place + 1] - grid[place])
        return np.asarray(begun[..., place] + share * (begun[..., place + 1] - begun[..., place]))

    def held_out_scores(self, reference: Any, train: Problem | None, test: Problem) -> None:
        """Return nothing: curves score no rows."""


@dataclass(frozen=True, eq=False)
class Curves(DrawnCurves):
    """Survival curves of one or more groups, and what their counts show beside them.

    Attributes:
        columns: that the job read. counts: of the cells, as released.
    """

    columns: Columns
    counts: Counts

    @property
    def places(self) -> NDArray[np.intp]:
        """The places of the times in the grid, ``(K,)``."""
        return np.searchsorted(self.columns.grid, self.times)

    @cached_property
    def survival(self) -> Array:
        """The posterior mean of S(t_k), shape ``(G, K)``."""
        return np.asarray(self.draws.mean(axis=(0, 1)))

    def band(self, level: float = LEVEL) -> Array:
        """Return the ends of pointwise central credible intervals, shape ``(2, G, K)``.

        Each interval by itself has the probability `level`; a whole curve lies within its band less often.
        """
        return np.asarray(np.quantile(self.draws, tails_of(level), axis=(0, 1)))

    @cached_property
    def log_rank(self) -> LogRank | None:
        """The test that all groups have the same hazard; None for one group."""
        return curve.log_rank(self.counts)

    def summary(self) -> Summary:
        """Return numbers at risk, the log-rank test and remarks."""
        remarks = {
            "events": self.columns.coding,
            "bands": "intervals are pointwise: each holds by itself, not the whole curve at once",
        }
        begun = [0, *(1 + self.places)]
        numbers, sds = (of_grid[:, begun] for of_grid in self.counts.at_risk)
        known: Summary = {
            "at_risk": [
                {"series": label, "x": [0.0, *self.columns.times], "number": number.tolist(), "sd": sd.tolist()}
                for label, number, sd in zip(self.columns.group_labels, numbers, sds, strict=True)
            ],
            "remarks": remarks,
            "named_times": self.columns.named,
        }
        if (test := self.log_rank) is None:
            return {"log_rank": None, **known}
        remarks["log-rank"] = (
            f"chi-squared {test.statistic:.2f} with {test.degrees} degree{'s' * (test.degrees > 1)} of freedom, "
            f"p = {test.p_value:.2g}; its variance includes the privacy noise"
        )
        log_rank: LogRankSummary = {"statistic": test.statistic, "degrees": test.degrees, "p_value": test.p_value}
        return {"log_rank": log_rank, **known}

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons to doubt the curves, a sentence each."""
        warnings = []
        if self.counts.rows_missing:
            warnings.append(not_counted(self.counts.missing, self.columns.reasons))
        widest = float(np.ptp(self.band(), axis=0).max())
        if widest > 0.5:
            warnings.append(
                f"a band is {widest:.2f} wide: little was learned there; give fewer intervals or a larger epsilon"
            )
        if (blurred := self._blurred) is not None:
            left, right = blurred
            warnings.append(
                f"many rows are censored close together between {left:g} and {right:g}, when exactly the sum does not "
                f"show, so S is uncertain from {right:g} on; give more 'times' between {left:g} and {right:g}"
            )
        return tuple(warnings)

    @property
    def _blurred(self) -> tuple[float, float] | None:
        """The interval whose censored rows make most of a variance of S, by their unknown times; None if none does."""
        if self.counts.places is not None:
            return None
        parts = self.counts.spread_of_places**2
        variance = np.log(np.maximum(self.draws, np.finfo(float).tiny)).var(axis=(0, 1))
        shares = np.cumsum(parts, axis=1)[:, self.places] / np.maximum(variance, np.finfo(float).tiny)
        group, time = np.unravel_index(int(shares.argmax()), shares.shape)
        if shares[group, time] <= SPREAD_PLACES:
            return None
        worst = int(parts[group, : self.places[time] + 1].argmax())
        return (0.0, *self.columns.grid)[worst], self.columns.grid[worst]


def _table(posterior: Posterior, columns: Columns, schema: Schema | None) -> list[Estimate]:
    """Return S(t_k) of each group, and mean durations."""
    axis, unit = Standard(unit="probability", scale=1.0, centre=0.0), unit_of(schema, columns.duration)
    time_axis = columns.duration if unit in ("", columns.duration) else f"{columns.duration} ({unit})"
    points = product(columns.group_labels, columns.times)
    curves = [
        Estimate(f"S({time:g}), {label}", "", figure, axis=axis, place=Place(series=label, x=time, axis=time_axis))
        for (label, time), figure in zip(points, posterior.figures(SURVIVAL), strict=True)
    ]
    means = zip(columns.group_labels, posterior.figures("restricted_mean"), strict=True)
    return curves + [Estimate(f"mean to {columns.times[-1]:g}, {label}", unit, figure) for label, figure in means]


def curves_statistic(columns: Columns) -> Survival:
    """Return the statistic of the job `survival`."""
    names, times = columns.names[: 2 + (columns.groups > 1)], columns.grid
    return Survival(
        columns=names,
        times=times,
        groups=columns.groups,
        codes=codes(len(times)),
        censored=columns.censored,
        first_group=columns.first_group,
    )


def curves_job(
    columns: Columns,
    *,
    rng: np.random.Generator,
    schema: Schema | None = None,
    kind: type[Kind] = SecureSum,
    rows_max: int = ROWS_MAX,
    prior_rows: float = PRIOR_ROWS,
) -> Job[Posterior]:
    """Run one round with the whole budget and return the posterior.

    Args:
        rng: for the posterior's draws; the privacy noise does not use it. schema: of the job.
        kind: `SecureSum`, or `NodeRelease` for data nodes with up to `rows_max` rows each.
        prior_rows: as for `curves_from`.
    """
    require_positive("prior_rows", prior_rows)
    require_count("rows_max", rows_max)
    aggregate: NoisyAggregate = yield request_of(curves_statistic(columns), 1.0, kind, rows_max)
    return curves_from(aggregate, columns, int(rng.integers(2**63)), schema, prior_rows=prior_rows)


def curves_from(
    aggregate: NoisyAggregate,
    columns: Columns,
    seed: int,
    schema: Schema | None = None,
    *,
    prior_rows: float = PRIOR_ROWS,
) -> Posterior:
    """Return the posterior given a round's release.

    Args:
        seed: of the posterior's draws. schema: of the job, if a job asked.
        prior_rows: number of rows that the Dirichlet prior of the cells is worth.
    """
    sums = NoisySums.of(aggregate)
    return _curves(
        columns,
        curve.counts_of(sums, curves_statistic(columns), prior_rows),
        seed,
        private=all_private([aggregate], schema),
        attrs={**sums.attrs, **attributes(aggregate, schema=schema)},
        refitter=partial(curves_from, aggregate, columns, seed, schema),
    )


def exact_curves(
    rows: Problem, columns: Columns, rng: np.random.Generator, prior_rows: float = PRIOR_ROWS
) -> Posterior:
    """Return the posterior given raw rows, without noise."""
    statistic = curves_statistic(columns)
    counts = curve.exact_counts(statistic, rows.values(*statistic.columns), prior_rows)
    return _curves(columns, counts, int(rng.integers(2**63)), private=False)


def _curves(columns: Columns, counts: Counts, seed: int, **more: Any) -> Posterior:
    places = np.searchsorted(columns.grid, columns.times)

    def drawn(survival: Array) -> dict[str, Array]:
        lengths = np.diff(np.array(columns.grid), prepend=0.0)
        before = np.concatenate([np.ones((*survival.shape[:-1], 1)), survival[..., :-1]], axis=-1)
        return {SURVIVAL: survival[..., places], "restricted_mean": np.asarray(((before + survival) / 2) @ lengths)}

    curves = curve.curves(counts, CHAINS * DRAWS, np.random.default_rng(seed))
    posterior = Posterior(
        model="survival",
        draws=drawn(curves.reshape(CHAINS, DRAWS, *curves.shape[1:])),
        prior=drawn(curve.prior_curves(counts, DRAWS, np.random.default_rng(0))),
        axes={SURVIVAL: ("group", "time"), "restricted_mean": ("group",)},
        coords={"group": columns.group_labels, "time": columns.times},
        **more,
    )
    found = Curves(columns.times, posterior.draws[SURVIVAL], columns, counts)
    table = partial(_table, posterior, columns)
    return replace(posterior, notes=found.doubts, table=table, extras=found.summary, predictor=found)
