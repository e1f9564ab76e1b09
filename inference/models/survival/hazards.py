"""Proportional hazards, constant within intervals: the job's rounds, and the posterior of raw rows or of releases.

Row i has the hazard λ_k·exp(x_iᵀβ) in interval k. The first effects are those of groups, 0 for the first group; the
others are those of features. `scoring` has the posterior from noisy scores. Without privacy it is that of the rows'
own likelihood. Priors are weak: log hazards N(·, 3²) about those with which half of the rows have an event, β
N(0, 2.5²) for standardised features and for groups.

The first round locates the features (`inference.locate`). It also shows the groups' shares, by which contrasts are
centred and scaled: with contrasts of even groups, 95 % intervals of a group of a tenth held in 81 %. All other rounds
ask for scores, at the public guess first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
from scipy.optimize import nnls

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol.wire.kinds import Kind, SecureSum
from dca_proto.statistics import SurvivalScore
from dca_proto.statistics.scaled import ANY
from dca_proto.statistics.survival_score import BEYOND, COUNT, contrast, even
from inference.columns import Standardisation, standardisation
from inference.draws import CHAINS, DRAWS, attributes
from inference.errors import DataError
from inference.jobs.estimates import BY_SD, Estimate, score, slope_axis
from inference.jobs.settings import ROWS_MAX, require_positive
from inference.jobs.summary import HeldOut
from inference.laws import Drawn, Draws, Shrunk, Slopes
from inference.locate import FREQUENCIES, LEVELS, beside_count, locate, phases_request
from inference.locate import STATISTIC as PHASES
from inference.models.coefficients import with_prior
from inference.models.score_regression import Normal, Prior, about_rows, asked_by, by_row, complete_of
from inference.models.shrinkage import shrinkable
from inference.models.survival import scoring
from inference.models.survival.doubts import reasons, warnings_of
from inference.models.survival.rounds import Columns, curves_statistic
from inference.models.survival.scoring import EFFECT_SD, SQUARES, TINY, Fitted, Released, Request, Rows
from inference.posterior import Posterior
from inference.problem import Array, Problem, Schema
from inference.rounds import Job, request_of

STD_SHARE = 0.1
SHARES = (1.0, 1.0, 2.0, 4.0)  # of the rounds of scores
LEAST_SHARE = 0.01  # of a group, relative to even groups
LOG_HAZARD = "log hazard ratio"
RATIO, GROUP_RATIO = "log_hazard_ratio", "group_log_hazard_ratio"


@dataclass(frozen=True, eq=False)
class Hazards:
    """The normal law of proportional hazards, constant within intervals.

    Attributes:
        columns: that the job read. centre, scale: of each feature, shape ``(d,)``.
        group_shares: of each further group, for its contrast, ``(G - 1,)``.
        theta: the normal law of ln λ_k l_k of each interval, then the effects of groups, then of standardised features.
        private: False if no epsilon may be claimed. prior_sd: of each effect in θ.
        warnings: reasons to doubt it. attrs: of the rounds, for `InferenceData`. method: as text.
        shrunk: the draws under a prior that shrinks effects of features; None under a normal one.
        coefficients, coefficient_sd: posterior mean and standard deviation of the log hazard ratio per unit of each
            feature, shape ``(d,)``. group_effects: both of each further group's log hazard ratio to the first.
        log_hazards: both of ln λ_k l_k of each interval, for a row of the first group at `centre`.
    """

    columns: Columns
    centre: Array
    scale: Array
    theta: Normal
    group_shares: Array
    private: bool = False
    prior_sd: float = EFFECT_SD
    warnings: Sequence[str] = ()
    attrs: Mapping[str, object] = field(default_factory=dict)
    refitter: Any = None
    method: str = ""
    shrunk: Shrunk | None = None
    coefficients: Array = field(init=False)
    coefficient_sd: Array = field(init=False)
    group_effects: tuple[Array, Array] = field(init=False)
    log_hazards: tuple[Array, Array] = field(init=False)

    def __post_init__(self) -> None:
        mean, sd = self.theta.mean, np.sqrt(np.diag(self.theta.cov))
        object.__setattr__(self, "coefficients", mean[self._effects] / self.scale)
        object.__setattr__(self, "coefficient_sd", sd[self._effects] / self.scale)
        size = contrast(self.group_shares)
        object.__setattr__(self, "group_effects", (size * mean[self._groups], size * sd[self._groups]))
        first = np.zeros((len(self.columns.times), mean.size))
        first[:, : len(first)], first[:, self._groups] = np.eye(len(first)), -size * self.group_shares
        spread = np.sqrt(np.einsum("ki,ij,kj->k", first, self.theta.cov, first))
        object.__setattr__(self, "log_hazards", (first @ mean, spread))

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return self.columns.features

    @property
    def _groups(self) -> slice:
        first = len(self.columns.times)
        return slice(first, first + self.columns.groups - 1)

    @property
    def _effects(self) -> slice:
        return slice(self._groups.stop, None)

    def log_hazard_ratio(self, features: Array, groups: Array | None = None) -> Array:
        """Return the log hazard ratio, ``(k,)``, of rows ``(k, d)`` to one of the first group at `centre`."""
        effect, own = np.r_[0.0, self.group_effects[0]], np.zeros(len(features))
        if groups is not None:
            own = effect[np.clip(np.rint(groups - self.columns.first_group), 0, len(effect) - 1).astype(int)]
        return np.asarray((features - self.centre) @ self.coefficients + own)

    def survival(self, features: Array, groups: Array | None = None) -> Array:
        """Return S(t_k) of rows, at the posterior mean, shape ``(k, K)``."""
        hazard = np.exp(self.log_hazards[0] + self.log_hazard_ratio(features, groups)[:, None])
        return np.asarray(np.exp(-np.cumsum(hazard, axis=1)))

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Return the log hazard ratios of groups, then of features, in own units."""
        names, units = [*self.columns.group_labels[1:], *self.columns.features], {} if schema is None else schema.units
        (of_groups, their_sd), scale = self.group_effects, np.r_[np.ones(self.columns.groups - 1), self.scale]
        mean, sd = np.r_[of_groups, self.coefficients], np.r_[their_sd, self.coefficient_sd]
        figures = with_prior(mean, sd, 0.0, self.prior_sd / scale)
        indicators = {*names[: len(their_sd)], *(() if schema is None else schema.references)}
        if self.shrunk is not None:
            drawn = self.shrunk.drawn
            figures = [*figures[: len(their_sd)], *self.shrunk.figures(drawn[..., :0], self.in_own_units(drawn)[RATIO])]
        return [
            Estimate(
                name,
                f"{LOG_HAZARD} per {units[name]}" if name in units else LOG_HAZARD,
                figure,
                axis=slope_axis(LOG_HAZARD, BY_SD, size, is_indicator=name in indicators),
            )
            for name, figure, size in zip(names, figures, scale, strict=True)
        ]

    def held_out_scores(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut:
        """Score by Harrell's concordance."""
        own, other = concordance(self, test), None if reference is None else concordance(reference, test)
        return {"rows": len(test.y), "scores": [score("concordance", own, other, 0.5, higher_is_better=True)]}

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Return mean and sd of the log hazard ratio of rows ``(k, d)`` to one at `centre` of the same group."""
        z = (np.asarray(X, float) - self.centre) / self.scale
        cov = self.theta.cov[self._effects, self._effects]
        return self.log_hazard_ratio(np.asarray(X, float)), np.sqrt(np.einsum("ki,ij,kj->k", z, cov, z))

    def simulate(self, X: Array, draws: Draws, rng: np.random.Generator, *, labels: bool = False) -> Array:
        """Return that ratio for each draw, ``(chains, draws, k)``; `rng` and `labels` are not used."""
        return np.asarray(draws[RATIO] @ (np.asarray(X, float) - self.centre).T)

    def sample(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> dict[str, Array]:
        """Draw the log hazard ratios of features and of groups."""
        return self.in_own_units(rng.multivariate_normal(self.theta.mean, self.theta.cov, (chains, draws)))

    def in_own_units(self, drawn: Array) -> dict[str, Array]:
        """Return the log hazard ratios of features and of groups. Args: drawn: of θ, ``(chains, draws, p)``."""
        posterior = {RATIO: drawn[..., self._effects] / self.scale}
        if self.columns.groups > 1:
            posterior[GROUP_RATIO] = contrast(self.group_shares) * drawn[..., self._groups]
        return posterior

    def shrinkable(self) -> Slopes:
        """Return the effects of features. Those of groups are what a study compares, and do not shrink."""
        places, d = np.arange(self.theta.mean.size)[self._effects], len(self.columns.features)
        slab = np.full(d, float(self.prior_sd))
        mean, cov = self.theta
        return Slopes(self, mean, cov, places, np.arange(d), self.columns.features, slab, LOG_HAZARD)

    def slopes_in_own_units(self, slopes: Array) -> Array:
        """Convert standardised effects, ``(..., d)``."""
        return np.asarray(slopes / self.scale)

    def with_shrunk(self, shrunk: Shrunk, mean: Array, cov: Array, **more: Any) -> Hazards:
        """Return the law with these draws and moments. Args: more: attributes."""
        return replace(self, shrunk=shrunk, theta=Normal(mean, cov), **more)

    @property
    def _compared(self) -> dict[str, str]:
        """The remark on the group with which the others are compared."""
        first, *others = self.columns.group_labels
        return {"groups": f"{', '.join(others)} against {first}"} if others else {}

    @property
    def _clearest(self) -> str:
        """The name of the effect that is largest in its posterior standard deviations."""
        return max(self.estimates(), key=lambda one: abs(one.marginal.mean) / (one.marginal.sd or 1.0)).name

    def posterior(self) -> Posterior:
        """Return the posterior of this law."""
        method = {"method": self.method} if self.method else {}
        found = Posterior(
            "survival-regression",
            Drawn(self.sample),
            axes={RATIO: ("feature",), GROUP_RATIO: ("group",)},
            coords={"feature": self.columns.features, "group": self.columns.group_labels[1:]},
            notes=tuple(self.warnings),
            attrs=self.attrs,
            table=self.estimates,
            extras=lambda: {
                "remarks": {"events": self.columns.coding, **self._compared, **method},
                "headline": self._clearest,
            },
            predictor=self,
            sample=self.sample,
            private=self.private,
            refitter=self.refitter,
        )
        return found if self.shrunk is None else self.shrunk.into(found, self.in_own_units, RATIO)


def concordance(fit: Hazards, rows: Problem) -> float:
    """Return the share of pairs of known order in which the row with the earlier event has the higher risk."""
    columns, duration = fit.columns, rows.values(fit.columns.duration)
    had = rows.values(columns.event) > columns.censored + 0.5
    groups = rows.values(columns.group) if columns.group else None
    risk = fit.log_hazard_ratio(np.column_stack([rows.values(name) for name in columns.features]), groups)
    pairs, higher = 0, 0.0
    for i in np.flatnonzero(had):  # row by row: a table of all pairs would need too much memory
        later = risk[(duration > duration[i]) | ((duration == duration[i]) & ~had)]
        pairs += later.size
        higher += float(np.sum(later < risk[i]) + 0.5 * np.sum(later == risk[i]))
    return higher / pairs if pairs else 0.5


# --- rounds -----------------------------------------------------------------------------------------------------------


def shares(std_share: float) -> list[float]:
    """Return the share of the job's μ² for each round of scores; later ones are nearer to the solution."""
    return [(1 - std_share) * share / sum(SHARES) for share in SHARES]


def hazards_job(
    schema: Schema,
    columns: Columns,
    *,
    kind: type[Kind] = SecureSum,
    rows_max: int = ROWS_MAX,
    std_share: float = STD_SHARE,
    prior_sd: float = EFFECT_SD,
) -> Job[Hazards]:
    """Run a round for centres and scales of the features, then those of scores.

    Args:
        std_share: the first round's share of the budget. prior_sd: as for `Hazards`; only the result depends on it.
            kind, rows_max: as for `curves_job`.
    """
    require_positive("prior_sd", prior_sd)
    located_columns = (*([columns.group] if columns.group else []), *columns.features)
    phases: NoisyAggregate = yield phases_request(schema, std_share, located_columns, kind, rows_max)
    located, n = locate(_of_features(phases, columns)), phases.contributors
    group_shares = shares_of_groups(phases, columns)
    rows = unknown = _unknown(phases, columns)
    prior = _prior(group_shares, columns, scoring.ASKED_SD)
    about = Normal(prior.mean, scoring.FIRST_SD**2 * np.eye(prior.mean.size))
    per_sensitivity = sqrt(phases.noise_variance * std_share) / phases.sensitivity
    aggregates = [phases]
    for share in shares(std_share):
        request = scoring.best_request(rows, about, n, per_sensitivity / sqrt(share), prior)
        statistic = statistic_of(schema, columns, located.centre, located.scale, request, group_shares)
        aggregates.append((yield request_of(statistic, share, kind, rows_max)))
        released = [_released(one) for one in aggregates[1:]]
        rows = unknown.like(released[0]).exposed(released)
        about = scoring.next_theta(released, rows, n, prior)
    return hazards_from(aggregates, columns, private=schema.private, prior_sd=prior_sd)


def _prior(group_shares: Array, columns: Columns, effect_sd: float) -> Prior:
    of_groups = effect_sd / contrast(group_shares)
    return scoring.prior_of(len(columns.times), np.r_[of_groups, np.full(len(columns.features), effect_sd)])


def _of_features(phases: NoisyAggregate, columns: Columns) -> NoisyAggregate:
    """Return the phases without the group's."""
    if not columns.group:
        return phases
    given, d = dict(phases.parameters), len(columns.features)
    given |= {name: given[name][-d:] for name in ("columns", "centre", "scale", "bound")}
    return replace(phases, parameters=given, value=phases.value.reshape(2, -1, LEVELS)[:, 1:].ravel())


def shares_of_groups(phases: NoisyAggregate, columns: Columns) -> Array:
    """Estimate the share of each further group from the phases of the group's column, ``(G - 1,)``.

    The phases of G numbers are linear in their shares: least squares, with shares of 1/G ± 1/G before.
    """
    groups, n = columns.groups, phases.contributors
    if groups == 1:
        return np.zeros(0)
    angles = FREQUENCIES[:, None] * np.linspace(-1, 1, groups)
    seen = phases.value.reshape(2, -1, LEVELS)[:, 0].ravel() / n
    sd = sqrt(phases.noise_variance / n**2 + 0.5 / n)
    design = np.vstack([np.cos(angles) / sd, np.sin(angles) / sd, groups * np.eye(groups)])
    found, _ = nnls(design, np.r_[seen / sd, np.ones(groups)])
    found = np.maximum(found / found.sum(), LEAST_SHARE / groups)
    return np.asarray((found / found.sum())[1:])


def _unknown(phases: NoisyAggregate, columns: Columns) -> Rows:
    """Return rows of which only public bounds, the features' places in these, and groups' shares are known."""
    own = _of_features(phases, columns)
    located, given = locate(own), Standardisation.of(own.parameters)
    ends = given.centre + given.scale * given.bound * np.array([[-1.0], [1.0]])
    group_shares = shares_of_groups(phases, columns)
    shares = np.r_[1 - group_shares.sum(), group_shares]
    return Rows.unknown(len(columns.times), shares, (ends - located.centre) / located.scale)


def statistic_of(
    schema: Schema, columns: Columns, centre: Array, scale: Array, request: Request, group_shares: Array | None = None
) -> SurvivalScore:
    """Return the statistic for features with these centres and scales, clipped only at their public bounds."""
    bounds = [schema.bounds[name] for name in columns.features]
    farthest = [one.half_width + abs(one.centre - place) for one, place in zip(bounds, centre, strict=True)]
    parts = [(0.0, columns.times[-1], BEYOND), (columns.censored + 0.5, 0.5, 3.0)]
    if columns.group:
        parts.append((float(columns.first_group), 1.0, float(columns.groups)))
    parts += [(float(c), float(s), float(far / s)) for c, s, far in zip(centre, scale, farthest, strict=True)]
    centres, scales, limits = zip(*parts, strict=True)
    coded = (ANY,) * (len(parts) - len(bounds))
    return SurvivalScore(
        columns=columns.names,
        centre=centres,
        scale=scales,
        bound=limits,
        within=(*coded, *((one.lower, one.upper) for one in bounds)),
        times=columns.times,
        groups=columns.groups,
        theta=tuple(map(float, request.theta)),
        clip=request.clip,
        information=request.information,
        squares=SQUARES,
        group_shares=() if group_shares is None else tuple(map(float, group_shares)),
        curves=request.curves,
    )


def _released(aggregate: NoisyAggregate) -> Released:
    statistic = asked_by(aggregate, SurvivalScore)
    value, (sent, entries, _) = by_row(aggregate, statistic), statistic.block_sizes
    weights, p = np.maximum(statistic.curves, TINY), sent - len(statistic.curves)
    squares = value[sent + entries : -1] * statistic.reach / statistic.squares
    return Released(
        Request(np.array(statistic.theta), statistic.reach, statistic.information, statistic.curves),
        score=value[:p],
        information=value[sent : sent + entries] / statistic.information,
        noise=aggregate.noise_variance / aggregate.contributors**2,
        complete=complete_of(aggregate, COUNT * statistic.reach),
        squares=squares[:p],
        curves=value[p:sent] / weights,
        curve_squares=squares[p:] / weights**2,
    )


def hazards_from(
    aggregates: Sequence[NoisyAggregate], columns: Columns, *, private: bool = True, prior_sd: float = EFFECT_SD
) -> Hazards:
    """Return the posterior given the releases of all rounds.

    Raises:
        DataError: the aggregates are of other statistics, or of other columns, groups or times; or ``prior_sd`` is not
            above 0.
    """
    names = [one.statistic for one in aggregates]
    if names[:1] != [PHASES] or set(names[1:]) != {SurvivalScore.name}:
        raise DataError(
            f"found aggregates of {', '.join(names)}; expected those of all rounds: phases, then {SurvivalScore.name}"
        )
    require_positive("prior_sd", prior_sd)
    phases, *scores = aggregates
    statistics = [asked_by(one, SurvivalScore) for one in scores]
    for one in statistics:
        if (one.columns, one.times, one.groups) != (columns.names, columns.times, columns.groups):
            raise DataError(
                f"an aggregate is of columns {', '.join(one.columns)} and {len(one.times)} intervals up to "
                f"{one.times[-1]:g}; expected {', '.join(columns.names)} and {len(columns.times)} up to "
                f"{columns.times[-1]:g}, so give the settings of the rounds"
            )
    n = scores[-1].contributors
    released = [_released(one) for one in scores]
    group_shares = np.array(statistics[0].group_shares)
    rows = _unknown(phases, columns).like(released[0]).exposed(released)
    theta = scoring.posterior(released, rows, n, _prior(group_shares, columns, prior_sd))
    begin = statistics[0].first_feature
    return Hazards(
        columns,
        np.array(statistics[0].centre[begin:]),
        np.array(statistics[0].scale[begin:]),
        theta,
        group_shares,
        private=(private := private and all(one.private for one in aggregates)),
        prior_sd=prior_sd,
        warnings=(
            *beside_count(about_rows(released[-1], reasons(columns)), locate(_of_features(phases, columns)).warnings),
            *warnings_of(released, rows, theta, n, columns, np.array(statistics[0].bound[begin:])),
        ),
        attrs={**attributes(scores[-1], private=private), "n": n},
        refitter=shrinkable(partial(hazards_from, tuple(aggregates), columns, private=private)),
    )


def exact_hazards(rows: Problem, columns: Columns, prior_sd: float = EFFECT_SD) -> Hazards:
    """Return the posterior given raw rows; rows that count as missing are left out."""
    table = rows.values(*columns.names)
    table = table[np.isfinite(table).all(axis=1)]
    table = table[curves_statistic(columns).counts(table)]
    moments = standardisation(table[:, -len(columns.features) :])
    group_shares = np.array(even(columns.groups))
    prior = _prior(group_shares, columns, prior_sd)
    statistic = statistic_of(rows.schema, columns, *moments, Request(prior.mean, 1.0, 1.0), group_shares)
    scaled = (table - np.array(statistic.centre)) / np.array(statistic.scale)
    lived, events = statistic.followed(scaled)
    theta = scoring.most_likely(Fitted(statistic.design(scaled), lived, events), prior)
    return Hazards(columns, *moments, theta, group_shares, prior_sd=prior_sd)
