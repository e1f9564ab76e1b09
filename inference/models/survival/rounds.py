"""The rounds of the survival jobs, and what comes of them: curves in one round, proportional hazards in two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NodeReleaseRequest, NoisyAggregate, RoundRequest, SecureSumRequest
from dca_proto.statistics import Survival, SurvivalRegression, resolve
from inference.bounds import Interval
from inference.draws import CHAINS, DRAWS, InferenceData, inference_data
from inference.errors import DataError, unknown
from inference.mcmc.sums import NoisySums
from inference.models.survival.codes import codes
from inference.models.survival.curve import Counts, LogRank, counts_of, curves, exact_counts, log_rank
from inference.models.survival.hazards import Fitted, Layout, fit, statistic_of
from inference.problem import Problem, Schema
from inference.rounds import Job
from inference.scale import marginals, moments_parameters, standardisation

Array = NDArray[np.float64]
ROWS_MAX = 100_000  # of a data node, unless asked for more
MOMENTS_SHARE = 0.1
INTERVALS_MAX = 100  # whose codes take about a second; the time grows with their cube
BITS = 24  # of the grid of exact sums, as of a round's


@dataclass(frozen=True)
class Columns:
    """Which columns a survival job reads, and its grid.

    Attributes:
        duration, event: the columns. times: t_1 < ... < t_K, in units of the duration.
        group: a column of 0, 1, ..., G - 1, or None. groups: G. features: in a regression.

    Raises:
        DataError: no times, or more than `INTERVALS_MAX`.
    """

    duration: str
    event: str
    times: tuple[float, ...]
    group: str | None = None
    groups: int = 1
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.times) <= INTERVALS_MAX:
            raise DataError(f"a grid of {len(self.times)} times; expected 1 to {INTERVALS_MAX}, the ends of intervals")

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of the statistics."""
        return (self.duration, self.event, *([self.group] if self.group else []), *self.features)

    @property
    def group_labels(self) -> tuple[str, ...]:
        """Such as "arm 0" and "arm 1"; "all" without groups."""
        return tuple(f"{self.group} {g}" for g in range(self.groups)) if self.group else ("all",)

    @classmethod
    def of(
        cls, schema: Schema, event: str, group: str | None, times: tuple[float, ...] | None, intervals: int
    ) -> Columns:
        """The columns that a schema has: its target is the duration.

        Args:
            times: the grid; by default as many intervals of one length, up to the duration's upper bound.

        Raises:
            DataError: a column is not there, groups are not numbered from 0, or there is no grid.
        """
        for kind, name in (("event", event), ("group", group)):
            if name is not None and name not in schema.features:
                raise unknown(f"{kind} column", name, "the data", schema.features)
        if group == event:
            raise DataError(f"column {event!r} is both the event and the group; name two columns")
        groups = 1 if group is None else _groups(group, schema.bounds[group])
        others = tuple(name for name in schema.features if name not in (event, group))
        return cls(schema.target, event, times or _grid(schema, intervals), group, groups, others)


def _groups(column: str, bounds: Interval) -> int:
    whole = bounds.lower == 0 and float(bounds.upper).is_integer()
    if not whole:
        found = f"{bounds.lower:g}:{bounds.upper:g}"
        raise DataError(f"group column {column!r} has bounds {found}; number the groups from 0, as in 0:1 for two")
    return int(bounds.upper) + 1


def _grid(schema: Schema, intervals: int) -> tuple[float, ...]:
    end = schema.bounds[schema.target].upper
    if intervals < 1 or end <= 0:
        raise DataError(f"{intervals} intervals up to {end:g}; expected at least one, and a duration bounded above 0")
    return tuple(float(end * k / intervals) for k in range(1, intervals + 1))


def _request(
    kind: type[RoundRequest], statistic: str, parameters: dict[str, object], share: float, rows_max: int
) -> RoundRequest:
    """Of a client's rows the first counts in a secure sum; of a data node's all up to `rows_max`."""
    rows = rows_max if issubclass(kind, NodeReleaseRequest) else 1
    return kind(statistic, parameters, budget_share=share, rows_max=rows)


def _parameters(statistic: Survival | SurvivalRegression) -> dict[str, object]:
    """As plain values."""
    return {name: _plain(getattr(statistic, name)) for name in statistic.__struct_fields__}


def _plain(value: object) -> object:
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


# --- curves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SurvivalFit:
    """Posterior survival curves of one or more groups.

    Attributes:
        columns: what was read. counts: what the release says of the cells. seed: of the draws.
        private: False where no epsilon may be claimed. attrs: what `InferenceData` carries of the round.
    """

    columns: Columns
    counts: Counts
    seed: int
    private: bool
    attrs: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def draws(self) -> Array:
        """Of S(t_k), shape ``(chain, draw, G, K)``, independent."""
        drawn = curves(self.counts, CHAINS * DRAWS, np.random.default_rng(self.seed))
        return drawn.reshape(CHAINS, DRAWS, *drawn.shape[1:])

    @property
    def times(self) -> Array:
        """t_1, ..., t_K."""
        return np.array(self.columns.times)

    @property
    def survival(self) -> Array:
        """The posterior mean of S(t_k), shape ``(G, K)``."""
        return np.asarray(self.draws.mean(axis=(0, 1)))

    def band(self, level: float = 0.95) -> Array:
        """Ends of central credible intervals, shape ``(2, G, K)``: pointwise, so that each holds by itself at `level`.

        That all of a curve is within its band is less probable than `level`.
        """
        return np.asarray(np.quantile(self.draws, [(1 - level) / 2, (1 + level) / 2], axis=(0, 1)))

    @cached_property
    def restricted_mean(self) -> Array:
        """Draws of the mean duration up to t_K: the area under each curve, shape ``(chain, draw, G)``."""
        lengths = np.diff(self.times, prepend=0.0)
        before = np.concatenate([np.ones((*self.draws.shape[:-1], 1)), self.draws[..., :-1]], axis=-1)
        return np.asarray(((before + self.draws) / 2) @ lengths)

    @cached_property
    def log_rank(self) -> LogRank | None:
        """The test that all groups have one hazard; None of one group."""
        return log_rank(self.counts)

    @property
    def warnings(self) -> list[str]:
        """What speaks against taking the curves at their word, a sentence each."""
        found = []
        if self.counts.rows_missing:
            found.append(
                f"fewer rows were counted than contributed, by {-self.counts.surplus:.1f} standard deviations of the "
                "noise; rows with a missing value count as zero, and the curves take them for rows like all"
            )
        weak = float(np.ptp(self.band(), axis=0).max())
        if weak > 0.5:
            found.append(
                f"a band is {weak:.2f} wide: little was learned there; give fewer intervals or a larger epsilon"
            )
        return found

    def inference_data(self) -> InferenceData:
        """The draws as ArviZ's type. Raises `DataError` where ArviZ is missing."""
        return inference_data(
            {"survival": self.draws, "restricted_mean": self.restricted_mean},
            dims={"survival": ["group", "time"], "restricted_mean": ["group"]},
            coords={"group": self.columns.group_labels, "time": self.columns.times},
            attrs={"model": "survival", **self.attrs},
        )


def curves_job(
    columns: Columns,
    *,
    rng: np.random.Generator,
    private: bool = True,
    kind: type[RoundRequest] = SecureSumRequest,
    rows_max: int = ROWS_MAX,
) -> Job[SurvivalFit]:
    """The job: one round with the whole budget, then the posterior.

    Args:
        rng: for the posterior's draws; nothing private depends on it. private: False where bounds were read from the
            data. kind: `SecureSumRequest`, or `NodeReleaseRequest` of data nodes with up to `rows_max` rows each.
    """
    statistic = curves_statistic(columns)
    aggregate: NoisyAggregate = yield _request(kind, statistic.name, _parameters(statistic), 1.0, rows_max)
    return curves_from(aggregate, columns, rng, private=private)


def curves_statistic(columns: Columns) -> Survival:
    """Of one round."""
    return Survival(
        columns=columns.names[: 2 + (columns.groups > 1)],
        times=columns.times,
        groups=columns.groups,
        codes=codes(len(columns.times)),
    )


def curves_from(
    aggregate: NoisyAggregate, columns: Columns, rng: np.random.Generator, *, private: bool = True
) -> SurvivalFit:
    """The posterior of what a round released."""
    sums = NoisySums.of(aggregate)
    counts = counts_of(sums, curves_statistic(columns))
    return _curves(counts, columns, rng, private and aggregate.private, sums.attrs)


def exact_curves(rows: Problem, columns: Columns, rng: np.random.Generator) -> SurvivalFit:
    """The same from rows at hand, without noise."""
    table = rows.rows[:, [rows.schema.columns.index(name) for name in columns.names[: 2 + (columns.groups > 1)]]]
    return _curves(exact_counts(curves_statistic(columns), table), columns, rng, False, {})


def _curves(
    counts: Counts, columns: Columns, rng: np.random.Generator, private: bool, attrs: Mapping[str, object]
) -> SurvivalFit:
    claimed = {} if private else {"private": False, "epsilon": None, "delta": None, "mu": None}
    return SurvivalFit(columns, counts, int(rng.integers(2**63)), private, {**attrs, **claimed})


# --- proportional hazards ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HazardsFit:
    """Posterior of proportional hazards, constant within intervals.

    Attributes:
        columns: what was read. layout, fitted: of the parameters, in standardised units.
        centre, scale: of each feature, as the first round said, shape ``(d,)``.
        private: False where no epsilon may be claimed. attrs: what `InferenceData` carries of the rounds.
    """

    columns: Columns
    layout: Layout
    fitted: Fitted
    centre: Array
    scale: Array
    private: bool
    attrs: Mapping[str, object] = field(default_factory=dict)

    def _marginal(self, block: str) -> tuple[Array, Array]:
        place = self.layout.places[block]
        return self.fitted.theta[place], np.sqrt(np.diag(self.fitted.covariance)[place])

    @property
    def coefficients(self) -> Array:
        """Posterior mean of the log hazard ratio of one more unit of each feature, shape ``(d,)``."""
        return np.asarray(self._marginal("effect")[0] / self.scale)

    @property
    def coefficient_sd(self) -> Array:
        """Its posterior standard deviation."""
        return np.asarray(self._marginal("effect")[1] / self.scale)

    @property
    def group_effects(self) -> tuple[Array, Array]:
        """Posterior mean and standard deviation of each further group's log hazard ratio to group 0."""
        return self._marginal("group_effect")

    def log_hazard_ratio(self, features: Array, groups: Array | None = None) -> Array:
        """Of rows to a row of group 0 with features at `centre`, shape ``(k,)`` of features ``(k, d)``."""
        effect = np.r_[0.0, self.group_effects[0]]
        own = 0.0 if groups is None else effect[np.clip(np.rint(groups), 0, len(effect) - 1).astype(int)]
        return np.asarray((features - self.centre) @ self.coefficients + own)

    def survival(self, features: Array, groups: Array | None = None) -> Array:
        """S(t_k) of rows, at the posterior mean, shape ``(k, K)``."""
        hazard = np.exp(self._marginal("log_hazard")[0] + self.log_hazard_ratio(features, groups)[:, None])
        return np.asarray(np.exp(-np.cumsum(hazard, axis=1)))

    @property
    def warnings(self) -> list[str]:
        """What speaks against taking the coefficients at their word, a sentence each."""
        if self.fitted.converged:
            return []
        return ["the posterior's mode was not reached: the noise hides too much; give fewer intervals or more budget"]

    def inference_data(self, rng: np.random.Generator) -> InferenceData:
        """Draws of the normal posterior as ArviZ's type. Raises `DataError` where ArviZ is missing."""
        drawn = rng.multivariate_normal(self.fitted.theta, self.fitted.covariance, (CHAINS, DRAWS))
        at = self.layout.places
        posterior = {"log_hazard_ratio": drawn[..., at["effect"]] / self.scale}
        dims, coords = {"log_hazard_ratio": ["feature"]}, {"feature": self.columns.features}
        if self.layout.groups > 1:
            posterior["group_log_hazard_ratio"] = drawn[..., at["group_effect"]]
            dims["group_log_hazard_ratio"] = ["group"]
            coords["group"] = self.columns.group_labels[1:]
        return inference_data(posterior, dims=dims, coords=coords, attrs={"model": "survival-regression", **self.attrs})


def hazards_job(
    schema: Schema,
    columns: Columns,
    *,
    kind: type[RoundRequest] = SecureSumRequest,
    rows_max: int = ROWS_MAX,
    moments_share: float = MOMENTS_SHARE,
) -> Job[HazardsFit]:
    """The job: a round for centres and scales of the features, then one for the regression.

    Args:
        moments_share: the first round's share of the budget. The others as of `curves_job`.
    """
    bounds = [schema.bounds[name] for name in columns.features]
    middle, half = np.array([one.centre for one in bounds]), np.array([one.half_width for one in bounds])
    parameters = moments_parameters(columns.features, middle, half)
    moments: NoisyAggregate = yield _request(kind, "moments", parameters, moments_share, rows_max)
    offsets, sds = marginals(moments.value, moments.contributors, moments.noise_variance)
    centre, scale = middle + offsets * half, sds * half
    statistic = statistic_of(columns.names, columns.times, columns.groups, centre, scale)
    released: NoisyAggregate = yield _request(kind, statistic.name, _parameters(statistic), 1 - moments_share, rows_max)
    return hazards_from(released, columns, private=schema.private and moments.private)


def hazards_from(released: NoisyAggregate, columns: Columns, *, private: bool = True) -> HazardsFit:
    """The posterior of what the second round released, whose parameters tell what the first one found.

    Raises:
        DataError: the aggregate is of another statistic, or of other columns, groups or times.
    """
    statistic = resolve(released.statistic, dict(released.parameters))
    if not isinstance(statistic, SurvivalRegression):
        raise DataError(f"the aggregate is of statistic {released.statistic!r}; expected 'survival-regression'")
    centre, scale = np.array(statistic.centre), np.array(statistic.scale)
    if statistic != statistic_of(columns.names, columns.times, columns.groups, centre, scale):
        raise DataError(
            f"the aggregate is of columns {', '.join(statistic.columns)} and {len(statistic.times)} intervals up to "
            f"{statistic.times[-1]:g}; expected {', '.join(columns.names)} and {len(columns.times)} up to "
            f"{columns.times[-1]:g}, so give the settings of the round"
        )
    layout = Layout(len(columns.times), columns.groups, len(columns.features))
    sums, private = NoisySums.of(released), private and released.private
    claimed = {} if private else {"private": False, "epsilon": None, "delta": None, "mu": None}
    fitted = fit(sums, layout, statistic)
    return HazardsFit(columns, layout, fitted, centre, scale, private, {**sums.attrs, **claimed})


def exact_hazards(rows: Problem, columns: Columns) -> HazardsFit:
    """The same model from rows at hand: their exact sums."""
    table = rows.rows[:, [rows.schema.columns.index(name) for name in columns.names]]
    centre, scale = standardisation(table[:, -len(columns.features) :])
    statistic = statistic_of(columns.names, columns.times, columns.groups, centre, scale)
    value = statistic.evaluate(table, BITS).sum(axis=0) / 2.0**BITS
    layout = Layout(len(columns.times), columns.groups, len(columns.features))
    fitted = fit(NoisySums(value, np.zeros_like(value), len(table)), layout, statistic)
    return HazardsFit(columns, layout, fitted, centre, scale, private=False)
