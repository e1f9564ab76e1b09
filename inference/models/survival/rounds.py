"""The rounds of survival analysis and their results: curves in one round, proportional hazards in two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np

from dca_proto.aggregate import NodeReleaseRequest, NoisyAggregate, RoundRequest, SecureSumRequest
from dca_proto.statistics import Survival, SurvivalRegression, resolve
from inference.columns import standardisation
from inference.draws import CHAINS, DRAWS, InferenceData, attributes, inference_data
from inference.errors import DataError, unknown
from inference.jobs.estimates import BY_SD, Estimate, score, standard_unit
from inference.jobs.summary import HeldOut, Place, Standard, Summary
from inference.laplace import Mode
from inference.locate import about_collinearity, locate, phases_request
from inference.mcmc.posterior import LocalPosterior
from inference.mcmc.sums import NoisySums
from inference.models.coefficients import with_prior
from inference.models.survival import curve
from inference.models.survival.codes import codes
from inference.models.survival.curve import PRIOR_ROWS, Counts, LogRank
from inference.models.survival.hazards import EFFECT_SD, Model, statistic_of
from inference.posterior import Posterior
from inference.problem import Array, Problem, Schema
from inference.rounds import Job

INTERVALS_MAX = 100  # their codes take about a second; the time grows with the cube
ROWS_MAX = 100_000  # default for a data node
STD_SHARE = 0.1
ASSUMED = (
    "assumed normal within groups; for binary, skewed or heavy-tailed features, intervals hold less often as rows and "
    "budget grow"
)
LOG_HAZARD = "log hazard ratio"
BITS = 24  # fractional bits of exact sums, as in a round


@dataclass(frozen=True)
class Columns:
    """The columns that a survival job reads, and its grid.

    Attributes:
        duration, event: column names. times: t_1 < ... < t_K, in units of the duration.
        group: name of a column of 0, 1, ..., G - 1, or None. groups: G. features: of a regression.

    Raises:
        DataError: there are no times, or more than `INTERVALS_MAX`.
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
        """All columns, in the order of the statistics."""
        return (self.duration, self.event, *([self.group] if self.group else []), *self.features)

    @property
    def group_labels(self) -> tuple[str, ...]:
        """Labels such as "arm 0" and "arm 1"; "all" without groups."""
        return tuple(f"{self.group} {g}" for g in range(self.groups)) if self.group else ("all",)

    @classmethod
    def of(
        cls, schema: Schema, event: str, group: str | None, times: tuple[float, ...] | None, intervals: int
    ) -> Columns:
        """Return the columns of a schema; its target is the duration.

        Args:
            times: the grid. None: ``intervals`` intervals of equal length, up to the duration's upper bound.

        Raises:
            DataError: a column is missing or used twice, groups are not numbered from 0, or there is no grid.
        """
        for kind, name in (("event", event), ("group", group)):
            if name is not None and name not in schema.features:
                raise unknown(f"{kind} column", name, "the data", schema.features)
        if group == event:
            raise DataError(f"column {event!r} is both the event and the group; name two columns")
        groups, end = 1, schema.bounds[schema.target].upper
        if group is not None:
            bounds = schema.bounds[group]
            if bounds.lower != 0 or not float(bounds.upper).is_integer():
                found = f"group column {group!r} has bounds {bounds.lower:g}:{bounds.upper:g}"
                raise DataError(f"{found}; number the groups from 0, as in 0:1 for two")
            groups = int(bounds.upper) + 1
        if not times and (intervals < 1 or end <= 0):
            found = f"{intervals} intervals up to {end:g}"
            raise DataError(f"{found}; expected at least one, and a duration bounded above 0")
        grid = times or tuple(float(end * k / intervals) for k in range(1, intervals + 1))
        features = tuple(name for name in schema.features if name not in (event, group))
        return cls(schema.target, event, grid, group, groups, features)


def _request(
    statistic: Survival | SurvivalRegression, share: float, kind: type[RoundRequest], rows_max: int
) -> RoundRequest:
    """Return the request. In a secure sum each client's first row counts, at a data node up to `rows_max` rows."""
    given = {name: getattr(statistic, name) for name in statistic.__struct_fields__}
    rows = rows_max if issubclass(kind, NodeReleaseRequest) else 1
    return kind(statistic.name, json.loads(json.dumps(given)), budget_share=share, rows_max=rows)


# --- curves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class SurvivalFit(LocalPosterior):
    """Posterior survival curves of one or more groups.

    Draws are independent: ``survival`` is S(t_k), shape ``(chain, draw, G, K)``; ``restricted_mean`` is the mean
    duration up to t_K, the area under each curve, shape ``(chain, draw, G)``.

    Attributes:
        columns: that the job read. counts: of the cells, as released.
        private: False if no epsilon may be claimed.
    """

    columns: Columns
    counts: Counts
    private: bool
    refitter: Any = None

    @property
    def survival(self) -> Array:
        """The posterior mean of S(t_k), shape ``(G, K)``."""
        return self.mean["survival"]

    def band(self, level: float = 0.95) -> Array:
        """Return the ends of pointwise central credible intervals, shape ``(2, G, K)``.

        Each interval by itself has the probability `level`; a whole curve lies within its band less often.
        """
        return np.moveaxis(self.intervals(level)["survival"], -1, 0)

    @cached_property
    def log_rank(self) -> LogRank | None:
        """The test that all groups have the same hazard; None for one group."""
        return curve.log_rank(self.counts)

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Return S(t_k) of each group, and mean durations."""
        columns, axis = self.columns, Standard(unit="probability", scale=1.0, centre=0.0)
        unit = "" if schema is None else schema.units.get(columns.duration, "")
        points = product(columns.group_labels, columns.times)
        curves = [
            Estimate(f"S({time:g}), {label}", "", figure, axis=axis, place=Place(series=label, x=time))
            for (label, time), figure in zip(points, self.figures("survival"), strict=True)
        ]
        means = zip(columns.group_labels, self.figures("restricted_mean"), strict=True)
        return curves + [Estimate(f"mean to {columns.times[-1]:g}, {label}", unit, figure) for label, figure in means]

    def summary_extras(self) -> Summary:
        """Return the log-rank test and remarks."""
        remarks = {"bands": "intervals are pointwise: each holds by itself, not the whole curve at once"}
        if (test := self.log_rank) is None:
            return {"log_rank": None, "remarks": remarks}
        remarks["log-rank"] = (
            f"chi-squared {test.statistic:.2f} with {test.degrees} degree{'s' * (test.degrees > 1)} of freedom, "
            f"p = {test.p_value:.2g}; its variance includes the privacy noise"
        )
        return {
            "log_rank": {"statistic": test.statistic, "degrees": test.degrees, "p_value": test.p_value},
            "remarks": remarks,
        }

    @property
    def warnings(self) -> list[str]:
        warnings = []
        if self.counts.rows_missing:
            warnings.append(
                f"fewer rows were counted than contributed, by {-self.counts.surplus:.1f} standard deviations of the "
                "noise; rows with a missing value count as zero, but the curves treat them like all others"
            )
        widest = float(np.ptp(self.band(), axis=0).max())
        if widest > 0.5:
            warnings.append(
                f"a band is {widest:.2f} wide: little was learned there; give fewer intervals or a larger epsilon"
            )
        return warnings


def curves_statistic(columns: Columns) -> Survival:
    """Return the statistic of the job `survival`."""
    names, times = columns.names[: 2 + (columns.groups > 1)], columns.times
    return Survival(columns=names, times=times, groups=columns.groups, codes=codes(len(times)))


def curves_job(
    columns: Columns,
    *,
    rng: np.random.Generator,
    private: bool = True,
    kind: type[RoundRequest] = SecureSumRequest,
    rows_max: int = ROWS_MAX,
    prior_rows: float = PRIOR_ROWS,
) -> Job[SurvivalFit]:
    """Run one round with the whole budget and return the posterior.

    Args:
        rng: for the posterior's draws; the privacy noise does not use it. private: False if bounds were read from the
            data. kind: `SecureSumRequest`, or `NodeReleaseRequest` for data nodes with up to `rows_max` rows each.
        prior_rows: as for `curves_from`.
    """
    aggregate: NoisyAggregate = yield _request(curves_statistic(columns), 1.0, kind, rows_max)
    return curves_from(aggregate, columns, int(rng.integers(2**63)), private=private, prior_rows=prior_rows)


def curves_from(
    aggregate: NoisyAggregate, columns: Columns, seed: int, *, private: bool = True, prior_rows: float = PRIOR_ROWS
) -> SurvivalFit:
    """Return the posterior given a round's release.

    Args:
        seed: of the posterior's draws. prior_rows: number of rows that the Dirichlet prior of the cells is worth.
    """
    sums = NoisySums.of(aggregate)
    return _curves(
        columns,
        curve.counts_of(sums, curves_statistic(columns), prior_rows),
        seed,
        private=private and aggregate.private,
        attrs={**sums.attrs, **attributes(aggregate, private=private)},
        refitter=partial(curves_from, aggregate, columns, seed, private=private),
    )


def exact_curves(
    rows: Problem, columns: Columns, rng: np.random.Generator, prior_rows: float = PRIOR_ROWS
) -> SurvivalFit:
    """Return the posterior given raw rows, without noise."""
    statistic = curves_statistic(columns)
    counts = curve.exact_counts(statistic, rows.values(*statistic.columns), prior_rows)
    return _curves(columns, counts, int(rng.integers(2**63)), private=False)


def _curves(columns: Columns, counts: Counts, seed: int, **more: Any) -> SurvivalFit:
    def drawn(survival: Array) -> dict[str, Array]:
        lengths = np.diff(np.array(columns.times), prepend=0.0)
        before = np.concatenate([np.ones((*survival.shape[:-1], 1)), survival[..., :-1]], axis=-1)
        return {"survival": survival, "restricted_mean": np.asarray(((before + survival) / 2) @ lengths)}

    curves = curve.curves(counts, CHAINS * DRAWS, np.random.default_rng(seed))
    return SurvivalFit(
        model="survival",
        draws=drawn(curves.reshape(CHAINS, DRAWS, *curves.shape[1:])),
        prior=drawn(curve.prior_curves(counts, DRAWS, np.random.default_rng(0))),
        axes={"survival": ("group", "time"), "restricted_mean": ("group",)},
        coords={"group": columns.group_labels, "time": columns.times},
        columns=columns,
        counts=counts,
        **more,
    )


# --- proportional hazards ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HazardsFit(Posterior):
    """The posterior of proportional hazards, constant within intervals.

    Attributes:
        columns: that the job read. centre, scale: of each feature, from the first round, shape ``(d,)``.
        model, fitted: the model and the posterior of its parameters, in standardised units.
        private: False if no epsilon may be claimed. prior_sd: of the log hazard ratio of each standardised feature and
            of each group.
        about_columns: warnings about centres, scales and features.
        attrs: of the rounds, for `InferenceData`.
        coefficients, coefficient_sd: posterior mean and standard deviation of the log hazard ratio per unit of each
            feature, shape ``(d,)``. group_effects: both of each further group's log hazard ratio to group 0.
    """

    columns: Columns
    centre: Array
    scale: Array
    model: Model
    fitted: Mode
    private: bool = False
    prior_sd: float = EFFECT_SD
    about_columns: tuple[str, ...] = ()
    attrs: Mapping[str, object] = field(default_factory=dict)
    refitter: Any = None
    coefficients: Array = field(init=False)
    coefficient_sd: Array = field(init=False)
    group_effects: tuple[Array, Array] = field(init=False)

    def __post_init__(self) -> None:
        mean, sd, at = self.fitted.theta, np.sqrt(np.diag(self.fitted.cov)), self.model.places
        effect, of_group = at["effect"], at["group_effect"]
        object.__setattr__(self, "coefficients", mean[effect] / self.scale)
        object.__setattr__(self, "coefficient_sd", sd[effect] / self.scale)
        object.__setattr__(self, "group_effects", (mean[of_group], sd[of_group]))

    def log_hazard_ratio(self, features: Array, groups: Array | None = None) -> Array:
        """Return the log hazard ratio, ``(k,)``, of rows ``(k, d)`` to a row of group 0 with features at `centre`."""
        effect = np.r_[0.0, self.group_effects[0]]
        own = 0.0 if groups is None else effect[np.clip(np.rint(groups), 0, len(effect) - 1).astype(int)]
        return np.asarray((features - self.centre) @ self.coefficients + own)

    def survival(self, features: Array, groups: Array | None = None) -> Array:
        """Return S(t_k) of rows, at the posterior mean, shape ``(k, K)``."""
        log_hazard = self.fitted.theta[self.model.places["log_hazard"]]
        hazard = np.exp(log_hazard + self.log_hazard_ratio(features, groups)[:, None])
        return np.asarray(np.exp(-np.cumsum(hazard, axis=1)))

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Return the log hazard ratios of groups, then of features, in own units."""
        names, units = [*self.columns.group_labels[1:], *self.columns.features], {} if schema is None else schema.units
        (of_groups, their_sd), scale = self.group_effects, np.r_[np.ones(self.columns.groups - 1), self.scale]
        mean, sd = np.r_[of_groups, self.coefficients], np.r_[their_sd, self.coefficient_sd]
        figures, axis = with_prior(mean, sd, 0.0, self.prior_sd / scale), standard_unit(LOG_HAZARD, BY_SD)
        return [
            Estimate(
                name,
                f"{LOG_HAZARD} per {units[name]}" if name in units else LOG_HAZARD,
                figure,
                axis=Standard(unit=axis, scale=float(size), centre=0.0),
            )
            for name, figure, size in zip(names, figures, scale, strict=True)
        ]

    def summary_extras(self) -> Summary:
        return {"remarks": {"features": ASSUMED}}

    def held_out_scores(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut:
        """Score by Harrell's concordance."""
        own, other = concordance(self, test), None if reference is None else concordance(reference, test)
        return {"rows": len(test.y), "scores": [score("concordance", own, other, 0.5, higher_is_better=True)]}

    @property
    def warnings(self) -> list[str]:
        far = "the posterior's mode was not reached: the noise hides too much; give fewer intervals or more budget"
        return [*self.about_columns, *([] if self.fitted.reached else [far])]

    def inference_data(self, rng: np.random.Generator) -> InferenceData:
        """Return draws of the posterior as ArviZ's `InferenceData`. Raises `DataError` if ArviZ is missing."""
        drawn, at = rng.multivariate_normal(self.fitted.theta, self.fitted.cov, (CHAINS, DRAWS)), self.model.places
        posterior = {"log_hazard_ratio": drawn[..., at["effect"]] / self.scale}
        dims, coords = {"log_hazard_ratio": ["feature"]}, {"feature": self.columns.features}
        if self.columns.groups > 1:
            posterior["group_log_hazard_ratio"] = drawn[..., at["group_effect"]]
            dims["group_log_hazard_ratio"] = ["group"]
            coords["group"] = self.columns.group_labels[1:]
        return inference_data(posterior, dims=dims, coords=coords, attrs={"model": "survival-regression", **self.attrs})


def concordance(fit: HazardsFit, rows: Problem) -> float:
    """Return the share of pairs of known order in which the row with the earlier event has the higher risk."""
    columns, duration, had = fit.columns, rows.values(fit.columns.duration), rows.values(fit.columns.event) > 0.5
    groups = rows.values(columns.group) if columns.group else None
    risk = fit.log_hazard_ratio(np.column_stack([rows.values(name) for name in columns.features]), groups)
    pairs, higher = 0, 0.0
    for i in np.flatnonzero(had):  # row by row: a table of all pairs would need too much memory
        later = risk[(duration > duration[i]) | ((duration == duration[i]) & ~had)]
        pairs += later.size
        higher += float(np.sum(later < risk[i]) + 0.5 * np.sum(later == risk[i]))
    return higher / pairs if pairs else 0.5


def hazards_job(
    schema: Schema,
    columns: Columns,
    *,
    kind: type[RoundRequest] = SecureSumRequest,
    rows_max: int = ROWS_MAX,
    std_share: float = STD_SHARE,
    prior_sd: float = EFFECT_SD,
) -> Job[HazardsFit]:
    """Run a round for centres and scales of the features, then one for the regression.

    Args:
        std_share: the first round's share of the budget. prior_sd: as for `HazardsFit`. kind, rows_max: as for
            `curves_job`.
    """
    phases: NoisyAggregate = yield phases_request(schema, std_share, columns.features, kind, rows_max)
    located = locate(phases)
    statistic = statistic_of(columns.names, columns.times, columns.groups, located.centre, located.scale)
    aggregate: NoisyAggregate = yield _request(statistic, 1 - std_share, kind, rows_max)
    return hazards_from(phases, aggregate, columns, private=schema.private, prior_sd=prior_sd)


def hazards_from(
    phases: NoisyAggregate,
    aggregate: NoisyAggregate,
    columns: Columns,
    *,
    private: bool = True,
    prior_sd: float = EFFECT_SD,
) -> HazardsFit:
    """Return the posterior given the releases of both rounds.

    Raises:
        DataError: the aggregate is of another statistic, or of other columns, groups or times.
    """
    statistic = resolve(aggregate.statistic, dict(aggregate.parameters))
    if not isinstance(statistic, SurvivalRegression):
        raise DataError(f"the aggregate is of statistic {aggregate.statistic!r}; expected 'survival-regression'")
    centre, scale = np.array(statistic.centre), np.array(statistic.scale)
    if statistic != statistic_of(columns.names, columns.times, columns.groups, centre, scale):
        raise DataError(
            f"the aggregate is of columns {', '.join(statistic.columns)} and {len(statistic.times)} intervals up to "
            f"{statistic.times[-1]:g}; expected {', '.join(columns.names)} and {len(columns.times)} up to "
            f"{columns.times[-1]:g}, so give the settings of the round"
        )
    model, sums = Model(statistic), NoisySums.of(aggregate)
    fitted = model.posterior(sums, prior_sd)
    factor = model.parts(fitted.theta).factor
    noise = float(np.sqrt(sums.noise_variance.max())) / statistic.square_weight / sums.n
    return HazardsFit(
        columns,
        centre,
        scale,
        model,
        fitted,
        private=(private := private and phases.private and aggregate.private),
        prior_sd=prior_sd,
        about_columns=(*locate(phases).warnings, *about_collinearity(columns.features, factor @ factor.T, noise)),
        attrs={**sums.attrs, **attributes(aggregate, private=private)},
        refitter=partial(hazards_from, phases, aggregate, columns, private=private),
    )


def exact_hazards(rows: Problem, columns: Columns, prior_sd: float = EFFECT_SD) -> HazardsFit:
    """Return the posterior given the exact sums of raw rows."""
    table = rows.values(*columns.names)
    moments = standardisation(table[:, -len(columns.features) :])
    model = Model(statistic_of(columns.names, columns.times, columns.groups, *moments))
    value = model.statistic.evaluate(table, BITS).sum(axis=0) / 2.0**BITS
    fitted = model.posterior(NoisySums(value, np.zeros_like(value), len(table)), prior_sd)
    return HazardsFit(columns, *moments, model, fitted, prior_sd=prior_sd)
