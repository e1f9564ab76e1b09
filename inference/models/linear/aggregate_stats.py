"""Linear regression from aggregates of the statistic "regression" (supplement, eqs. 3 to 7).

The aggregates' own parameters contain everything needed: columns, centre, scale and bounds, the constant feature, the
weights of the blocks, and whether the radius is that of the features or of whole rows. Several aggregates of different
clients form one sum: values and noise variances add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dca_proto.aggregate import NoisyAggregate
from inference.columns import Standardisation
from inference.draws import all_private, attributes
from inference.errors import DataError
from inference.jobs.estimates import BY_SD
from inference.locate import ROUGHLY, means
from inference.locate import STATISTIC as PHASES
from inference.mcmc.sums import Aggregates, NoisySums, as_list, check_once
from inference.models.coefficients import Coefficients
from inference.models.linear.closed_form import REPAIR, Noise, NormalBeta, SufficientStatistics, unpack
from inference.models.linear.prior import PRIOR_R2, fitted_to, prior_precision, slab_scale
from inference.models.linear.rows import (
    about_boxes,
    about_columns,
    about_complete,
    anchored,
    counted,
    curved,
    max_complete_rows,
    with_weights,
)
from inference.models.shrinkage import shrinkable
from inference.problem import Array, Schema

STATISTIC = "regression"
DEFAULTS: Mapping[str, Any] = {
    "intercept": False,
    "intercept_bound": 1.0,
    "target_square": False,
    "radius": None,
    "weights": (1, 1, 1),
    "whole_rows": False,
    "within": (),
}
"""Defaults of the statistic's parameters."""
MUST_AGREE = ("columns", "centre", "scale", "bound", *(name for name in DEFAULTS if name != "weights"))


def checked(aggregates: Aggregates) -> list[NoisyAggregate]:
    """Return the aggregates as a list. Raises `DataError` if there is none or they do not fit together."""
    listed = as_list(aggregates)
    if not listed:
        raise DataError("no aggregate; give at least one of the statistic 'regression'")
    given = [parameters_of(aggregate) for aggregate in listed]
    first, *others = ({key: list(v) if isinstance(v := one[key], tuple) else v for key in MUST_AGREE} for one in given)
    check_once(listed)
    for place, other in enumerate(others, start=2):
        for key, value in other.items():
            if value != first[key]:
                raise DataError(
                    f"aggregate {place} has {key} {value}, the first has {first[key]}; only sums of the same statistic "
                    "add up"
                )
    return listed


def parameters_of(aggregate: NoisyAggregate) -> dict[str, Any]:
    """Return the statistic's parameters with defaults filled in. Raises `DataError` for another statistic."""
    if aggregate.statistic != STATISTIC:
        raise DataError(f"an aggregate is of the statistic {aggregate.statistic!r}; expected {STATISTIC!r}")
    return {**DEFAULTS, **aggregate.parameters}


def constant_of(parameters: Mapping[str, Any]) -> float:
    """Return c, the value of the constant feature; 0 if there is none."""
    return float(parameters["intercept_bound"]) if parameters["intercept"] else 0.0


def require_plain_rows(parameters: Mapping[str, Any], name: str) -> None:
    """Raise `DataError` for sums of whole rows, which a model of unweighted rows would misread."""
    if parameters["whole_rows"]:
        raise DataError(
            f"the rows were scaled as a whole, including their constant, and {name} does not model that; ask for a "
            "round without whole_rows"
        )


def unpacked(aggregate: NoisyAggregate) -> SufficientStatistics:
    """Return the statistics of one aggregate; a constant's square stays as released."""
    parameters = parameters_of(aggregate)
    features = len(parameters["columns"]) - 1 + bool(parameters["intercept"])
    weights = tuple(parameters["weights"])
    return unpack(aggregate.value, features, aggregate.contributors, aggregate.noise_variance, weights=weights)


def summed(aggregates: Sequence[NoisyAggregate]) -> SufficientStatistics:
    """Return the statistics of all aggregates: values and variances add up."""
    parts = [unpacked(aggregate) for aggregate in aggregates]
    squares = [part.yy for part in parts if part.yy is not None]
    xx, xy = (np.sum([getattr(part, name) for part in parts], axis=0) for name in ("xx", "xy"))
    noise = Noise(*(np.sum([getattr(part.noise, name) for part in parts]) for name in ("xx", "xy", "yy")))
    yy = np.sum(squares, axis=0) if squares else None
    return SufficientStatistics(sum(part.n for part in parts), xx, xy, yy, noise)


def statistics_of(aggregates: Aggregates) -> SufficientStatistics:
    """Return the sufficient statistics over all rows of these aggregates, standardised by their parameters.

    If there is a constant, the sum of its squares estimates the number of complete rows (`rows.counted`); for whole
    rows the trace of xx does (`rows.with_weights`).

    Raises:
        DataError: there is no aggregate, one is of another statistic, one occurs twice, or they do not fit together; or
            whole rows are scaled to a sphere whose radius is not the constant's value.
    """
    listed = checked(aggregates)
    statistics, parameters = summed(listed), parameters_of(listed[0])
    constant = constant_of(parameters)
    if not parameters["whole_rows"]:
        return counted(statistics, constant) if constant else statistics
    if not 0 < constant <= parameters["radius"]:
        raise DataError(
            f"whole rows have the radius {parameters['radius']:g} and the constant {constant:g}; expected a constant "
            "above 0 and no larger, so that no row is scaled up"
        )
    return with_weights(statistics, constant, parameters["radius"])


def vector_of(
    statistics: SufficientStatistics, aggregates: Sequence[NoisyAggregate], *, squares: bool = True
) -> NoisySums:
    """Join the statistics to one vector: unique terms of Σ xxᵀ row by row, Σ xy and, if ``squares``, Σ y²."""
    (i, j), noise = np.triu_indices(len(statistics.xy)), statistics.noise
    parts = [(statistics.xx[i, j], noise.xx), (statistics.xy, noise.xy)]
    if squares and statistics.yy is not None:
        parts.append((np.atleast_1d(np.asarray(statistics.yy)), noise.yy))
    value = np.concatenate([part for part, _ in parts])
    variance = np.concatenate([np.full(len(part), np.asarray(s2, float)) for part, s2 in parts])
    if statistics.constant:
        variance[0] = noise.constant
    n = sum(aggregate.contributors for aggregate in aggregates)
    return NoisySums(value, variance, n, STATISTIC, parameters_of(aggregates[0]), {"n": n, **attributes(*aggregates)})


def sums_of(aggregates: Aggregates, *, labels: bool) -> NoisySums:
    """Return the released sums for a model of their distribution, whatever released them.

    A constant's square, the first sum, is kept: it counts the complete rows (`rows`). ``n`` is the largest possible
    number of rows.

    Args:
        labels: whether the target is a label, -1 or 1 in the statistic's units; the sum of its squares is left out.

    Raises:
        DataError: the aggregates do not fit together, the target is not ±1, a number is not finite, or there are too
            few rows.
    """
    listed = checked(aggregates)
    parameters = parameters_of(listed[0])
    require_plain_rows(parameters, "this model")
    if labels and not abs(parameters["bound"][-1] - 1) <= 1e-3:
        raise DataError(
            f"the target is clipped to ±{parameters['bound'][-1]:g} in units of its scale; logistic regression takes "
            "labels of -1 and 1, so scale it to ±1"
        )
    sums = vector_of(summed(listed), listed, squares=not labels)
    value, variance, n = sums.value, sums.noise_variance, sums.n
    if constant := constant_of(parameters):
        count = value[0] / constant**2
        most = int(max_complete_rows(count, variance[0] / constant**4, n))
        n = most if variance[0] > 0 else max(round(count), 1)
    if not np.all(np.isfinite(value)) or not np.all(variance >= 0):
        raise DataError("a sum is not finite or a variance of noise is below 0; check how it was released")
    if n < len(value):
        raise DataError(
            f"{n} rows are too few: this model needs at least {len(value)}, as many as there are sums, because it "
            "takes the sums to be normal"
        )
    return replace(sums, n=n, attrs={**sums.attrs, "n": n})


def plausible_prior(statistics: SufficientStatistics, features: int, residual_variance: float | None = None) -> Array:
    """Return λ₀ of each coefficient, ``(m,)``: in any units, d features explain half of the target on average.

    Mean squares come from the noisy diagonal, and are at least the standard deviation of its noise; what was released
    is public. Without yy the residual variance stands for the unexplained half.
    """
    n, noise = statistics.n, statistics.noise
    squares = np.maximum(np.diagonal(statistics.xx), np.sqrt(noise.xx)) / n
    if statistics.yy is not None:
        target = float(np.maximum(statistics.yy, np.sqrt(noise.yy))) / n
    else:
        target = (1.0 if residual_variance is None else residual_variance) / (1 - PRIOR_R2)
    per_unit = prior_precision(features)[-len(squares) :]
    return np.asarray(per_unit * squares / target)


def coefficients_of(
    aggregates: Aggregates,
    fitted: NormalBeta,
    schema: Schema | None = None,
    repair: str | None = None,
    *,
    before: Sequence[NoisyAggregate] = (),
    **more: Any,
) -> Coefficients:
    """Convert a posterior of standardised coefficients (a constant's first) to the columns' own units.

    Args:
        aggregates: the posterior's source. before: aggregates of earlier rounds. schema: of the job, if a job asked.
        more: further attributes of `Coefficients`.
    """
    listed = checked(aggregates)
    parameters, every = parameters_of(listed[0]), (*before, *listed)
    columns = Standardisation.of(parameters)
    if parameters["whole_rows"]:  # the model is linear in the unclipped features
        columns = replace(columns, bound=np.full_like(columns.bound, inf), radius=inf, ends=None)
    return Coefficients.of(
        columns,
        fitted,
        constant_of(parameters),
        contributors=sum(aggregate.contributors for aggregate in listed),
        private=all_private(every, schema),
        schema=schema,
        aggregates=every,
        repair=repair,
        **more,
    )


def regression_of(
    aggregates: Aggregates,
    schema: Schema | None = None,
    *,
    repair: str = REPAIR,
    prior_precision: ArrayLike | None = None,
    residual_variance: float | None = None,
    before: tuple[NoisyAggregate, ...] = (),
    notes: tuple[str, ...] = (),
    by: str = BY_SD,
    scale: float | None = None,
) -> Coefficients:
    """Return the regression from sums; its ``refit`` takes another ``repair`` and ``prior_precision``.

    Args:
        aggregates: of a job's last round, or any that fit together.
        schema: of the job, if a job asked; columns are then in standard deviations, else in any scale.
        repair: of an indefinite matrix. prior_precision: λ₀ of each slope, in units of the scales, broadcastable to
            ``(d,)``. None learns its scale (`prior`), without a schema about that of `plausible_prior`.
        residual_variance: λ⁻¹, in squares of the same units; None estimates it.
        before: aggregates of earlier rounds. notes: warnings from these.
        by: describes the scale of the columns, as text. scale: as for `prior.fitted_to`.

    Raises:
        DataError: as for `statistics_of`; the repair is unknown, or the prior does not match the features.
    """
    listed = checked(aggregates)
    statistics, parameters = statistics_of(listed), parameters_of(listed[0])
    d = len(parameters["columns"]) - 1
    base = None if schema else plausible_prior(statistics, d, residual_variance)
    located = next((means(one) for one in before if one.statistic == PHASES), None)
    if parameters["whole_rows"]:
        statistics = curved(statistics, located)
    fitted = fitted_to(statistics, d, prior_precision, residual_variance, repair=repair, base=base, scale=scale)
    if parameters["whole_rows"]:
        fitted = anchored(fitted, statistics, parameters, sum(one.contributors for one in listed), located)
    doubts: tuple[str, ...] = ()
    if schema and parameters["whole_rows"]:
        doubts = about_columns(statistics, fitted, parameters)
        if not any(one.startswith(ROUGHLY) for one in notes):  # which says how many, from the first round
            doubts += about_complete(summed(listed), parameters)
    elif schema and parameters["intercept"]:
        doubts = about_boxes(summed(listed), parameters)
    own: dict[str, Any] = {"residual_variance": residual_variance, "before": before, "notes": notes, "by": by}
    again = partial(regression_of, listed, schema, repair=repair, prior_precision=prior_precision, **own)
    own = {"warnings": (*notes, *doubts), "refitter": shrinkable(again), "by": by}
    own["slab"] = None if scale or prior_precision is not None else partial(again, scale=slab_scale(d))
    return coefficients_of(listed, fitted, schema, repair, before=before, **own)
