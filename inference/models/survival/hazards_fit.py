"""Proportional hazards: the job's rounds, and the law given raw rows or releases.

`scoring` has the posterior from noisy scores. Without privacy it is that of the rows' own likelihood. Priors are weak:
log hazards N(·, 3²) about those with which half of the rows have an event, β N(0, 2.5²) for standardised features and
for groups.

The first round locates the features (`inference.locate`). It also shows the groups' shares, by which contrasts are
centred and scaled: with contrasts of even groups, 95 % intervals of a group of a tenth held in 81 %. All other rounds
ask for scores, at the public guess first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf, sqrt

import numpy as np
from scipy.optimize import nnls

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.protocol.wire.kinds import Kind, SecureSum
from dca_proto.statistics import SurvivalScore
from dca_proto.statistics.scaled import ANY
from dca_proto.statistics.survival_score import BEYOND, COUNT, contrast, even
from inference.columns import Standardisation, standardisation
from inference.errors import DataError
from inference.jobs.settings import ROWS_MAX, require_positive
from inference.locate import FREQUENCIES, LEVELS, locate, phases_request
from inference.locate import STATISTIC as PHASES
from inference.models.doubts import about_data, about_not_counted
from inference.models.score_regression import TINY, Normal, Prior, asked_by, by_row, complete_of
from inference.models.score_rounds import ROUNDS, STD_SHARE, score_rounds
from inference.models.shrinkage import shrinkable
from inference.models.survival import scoring
from inference.models.survival.doubts import warnings_of
from inference.models.survival.hazards import Hazards
from inference.models.survival.rounds import Columns, curves_statistic
from inference.models.survival.scoring import EFFECT_SD, SQUARES, Fitted, Released, Request, Rows
from inference.problem import Array, Problem, Schema
from inference.rounds import Job, request_of

LEAST_SHARE = 0.01  # of a group, relative to even groups


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
    group_shares, unknown = shares_of_groups(phases, columns), _unknown(phases, columns)
    prior = _prior(group_shares, columns, scoring.ASKED_SD)

    def ask(aggregates: Sequence[NoisyAggregate], noise: float, share: float, last: bool) -> RoundRequest:
        rows, about = unknown, Normal(prior.mean, scoring.FIRST_SD**2 * np.eye(prior.mean.size))
        if released := [_released(one) for one in aggregates[1:]]:
            rows = unknown.like(released[0]).exposed(released)
            about = scoring.next_theta(released, rows, n, prior)
        request = scoring.best_request(rows, about, n, noise, prior)
        statistic = statistic_of(schema, columns, located.centre, located.scale, request, group_shares)
        return request_of(statistic, share, kind, rows_max)

    aggregates = yield from score_rounds(phases, ROUNDS, std_share, ask)
    return hazards_from(aggregates, columns, schema, prior_sd=prior_sd)


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
    aggregates: Sequence[NoisyAggregate],
    columns: Columns,
    schema: Schema | None = None,
    *,
    prior_sd: float = EFFECT_SD,
) -> Hazards:
    """Return the posterior given the releases of all rounds.

    Args:
        schema: of the job, if a job asked. prior_sd: of each effect.

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
    features = _features_of(statistics[0])
    return Hazards(
        columns=features,
        layout=columns,
        group_shares=group_shares,
        mean=theta.mean,
        cov=theta.cov,
        prior_sd=prior_sd,
        warnings=(
            *about_data(about_not_counted(released[-1].complete, columns.reasons), [_of_features(phases, columns)]),
            *warnings_of(released, rows, theta, n, columns, features.bound),
        ),
        refitter=shrinkable(partial(hazards_from, tuple(aggregates), columns, schema)),
    ).learned_from(aggregates, scores, schema)


def _features_of(statistic: SurvivalScore) -> Standardisation:
    """Return how clients standardise the features."""
    begin = statistic.first_feature
    centre, scale, bound = (np.array(getattr(statistic, name)[begin:]) for name in ("centre", "scale", "bound"))
    return Standardisation(statistic.columns[begin:], centre, scale, bound, ends=np.array(statistic.within[begin:]).T)


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
    return Hazards(
        columns=Standardisation(columns.features, *moments, np.full(len(columns.features), inf)),
        layout=columns,
        group_shares=group_shares,
        mean=theta.mean,
        cov=theta.cov,
        prior_sd=prior_sd,
    )
