"""Linear regression from what rounds of the statistic "regression" released (supplement, eqs. 3 to 7).

Everything needed stands in the aggregates' own parameters: columns, centre, scale and bounds, the constant feature, the
weights of the blocks, the radius and what it is of. Several aggregates, of different clients, are one sum: their values
add up, and so do the variances of their noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dca_proto.aggregate import NoisyAggregate
from inference.columns import Array, Standardisation
from inference.draws import attributes
from inference.errors import DataError
from inference.jobs.estimates import BY_SD
from inference.mcmc.sums import NoisySums, check_once
from inference.models.coefficients import Coefficients
from inference.models.linear.closed_form import REPAIR, Noise, Posterior, SufficientStatistics, unpack
from inference.models.linear.prior import PRIOR_R2, fitted_to, prior_precision
from inference.models.linear.rows import about_columns, counted, max_complete_rows, with_weights
from inference.problem import Schema

Aggregates: TypeAlias = NoisyAggregate | Sequence[NoisyAggregate]

STATISTIC = "regression"
DEFAULTS: Mapping[str, Any] = {
    "intercept": False,
    "intercept_bound": 1.0,
    "target_square": False,
    "radius": None,
    "weights": (1, 1, 1),
    "whole_rows": False,
}
"""The statistic's parameters where a round does not name them."""
MUST_AGREE = ("columns", "centre", "scale", "bound", *(name for name in DEFAULTS if name != "weights"))


def checked(aggregates: Aggregates) -> list[NoisyAggregate]:
    """The aggregates as a list in which all fit together. Raises `DataError` as `statistics_of`."""
    listed = [aggregates] if isinstance(aggregates, NoisyAggregate) else list(aggregates)
    if not listed:
        raise DataError("no aggregate; give at least one of the statistic 'regression'")
    given = [parameters_of(one) for one in listed]
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
    """The statistic's parameters, the defaults filled in."""
    if aggregate.statistic != STATISTIC:
        raise DataError(f"an aggregate is of the statistic {aggregate.statistic!r}; expected {STATISTIC!r}")
    return {**DEFAULTS, **aggregate.parameters}


def constant_of(parameters: Mapping[str, Any]) -> float:
    """c, the value of the constant feature; 0 where there is none."""
    return float(parameters["intercept_bound"]) if parameters["intercept"] else 0.0


def require_plain_rows(parameters: Mapping[str, Any], name: str) -> None:
    """Raise `DataError` for sums of whole rows, which a model of unweighted rows takes for something else."""
    if parameters["whole_rows"]:
        raise DataError(
            f"the rows were scaled as a whole, their constant with them, which {name} does not describe; ask for a "
            "round without whole_rows"
        )


def unpacked(aggregate: NoisyAggregate) -> SufficientStatistics:
    """The statistics of one aggregate, a constant's own square as noisy as it was released."""
    parameters = parameters_of(aggregate)
    features = len(parameters["columns"]) - 1 + bool(parameters["intercept"])
    weights = tuple(parameters["weights"])
    return unpack(aggregate.value, features, aggregate.contributors, aggregate.noise_variance, weights=weights)


def summed(aggregates: Sequence[NoisyAggregate]) -> SufficientStatistics:
    """The statistics of all aggregates: sums of values and of variances."""
    parts = [unpacked(one) for one in aggregates]
    squares = [part.yy for part in parts if part.yy is not None]
    xx, xy = (np.sum([getattr(part, name) for part in parts], axis=0) for name in ("xx", "xy"))
    noise = Noise(*(np.sum([getattr(part.noise, name) for part in parts]) for name in ("xx", "xy", "yy")))
    yy = np.sum(squares, axis=0) if squares else None
    return SufficientStatistics(sum(part.n for part in parts), xx, xy, yy, noise)


def statistics_of(aggregates: Aggregates) -> SufficientStatistics:
    """The sufficient statistics over all rows of these aggregates, standardised as their parameters say.

    Where there is a constant, rows without a missing value are counted by its squares (`rows.counted`); of whole rows,
    by the trace of xx (`rows.with_weights`).

    Raises:
        DataError: there is none, one is of another statistic, one is there twice, or they do not fit together; or rows
            are scaled as a whole to a sphere whose radius is not the constant's value.
    """
    listed = checked(aggregates)
    found, parameters = summed(listed), parameters_of(listed[0])
    constant = constant_of(parameters)
    if not parameters["whole_rows"]:
        return counted(found, constant) if constant else found
    if parameters["radius"] != constant:
        raise DataError(
            f"whole rows have the radius {parameters['radius']:g} and the constant {constant:g}; expected "
            "the same, so that every row lies on the sphere"
        )
    return with_weights(found, constant)


def vector_of(found: SufficientStatistics, aggregates: Sequence[NoisyAggregate], *, squares: bool = True) -> NoisySums:
    """Statistics of these aggregates in one vector: unique terms of Σ xxᵀ row by row, Σ xy and, if wanted, Σ y²."""
    (i, j), noise = np.triu_indices(len(found.xy)), found.noise
    parts = [(found.xx[i, j], noise.xx), (found.xy, noise.xy)]
    if squares and found.yy is not None:
        parts.append((np.atleast_1d(np.asarray(found.yy)), noise.yy))
    value = np.concatenate([part for part, _ in parts])
    variance = np.concatenate([np.full(len(part), np.asarray(one, float)) for part, one in parts])
    if found.constant:
        variance[0] = noise.constant
    n = sum(one.contributors for one in aggregates)
    return NoisySums(value, variance, n, STATISTIC, parameters_of(aggregates[0]), {"n": n, **attributes(*aggregates)})


def sums_of(aggregates: Aggregates, *, labels: bool) -> NoisySums:
    """The sums as released, for a model of their law: a DCA sum, a trusted one, data nodes' or clients' reports.

    A constant's own square, the first of them, counts the rows without a missing value (`rows`); ``n`` is as many rows
    as can be.

    Args:
        labels: whether the target is a label, -1 or 1 in the statistic's units, of which there is no square.

    Raises:
        DataError: they are of another statistic or do not fit together, the target is no label, or too few rows.
    """
    listed = checked(aggregates)
    parameters = parameters_of(listed[0])
    require_plain_rows(parameters, "this model")
    if labels and not abs(parameters["bound"][-1] - 1) <= 1e-3:
        raise DataError(
            f"the target is clipped to ±{parameters['bound'][-1]:g} in units of its scale; logistic regression takes "
            "labels of -1 and 1, so scale it to ±1"
        )
    found = vector_of(summed(listed), listed, squares=not labels)
    value, variance, n = found.value, found.noise_variance, found.n
    if constant := constant_of(parameters):
        count = value[0] / constant**2
        most = int(max_complete_rows(count, variance[0] / constant**4, n))
        n = most if variance[0] > 0 else max(round(count), 1)
    if not np.all(np.isfinite(value)) or not np.all(variance >= 0):
        raise DataError("a sum is not finite or a variance of noise is below 0; check how it was released")
    if n < len(value):
        raise DataError(
            f"{n} rows are too few: this model needs at least {len(value)}, as many as there are sums, whose law is "
            "taken to be normal"
        )
    return replace(found, n=n, attrs={**found.attrs, "n": n})


def plausible_prior(statistics: SufficientStatistics, features: int, residual_variance: float | None = None) -> Array:
    """λ₀ of each coefficient such that d features explain half of the target on average, whatever the units: ``(m,)``.

    Mean squares are read from the (noisy) diagonal, no smaller than the standard deviation of its noise: what was
    released is public. Without yy the residual variance stands for the half that is not explained.
    """
    n, noise = statistics.n, statistics.noise
    squares = np.maximum(np.diagonal(statistics.xx), np.sqrt(noise.xx)) / n
    if statistics.yy is not None:
        target = float(np.maximum(statistics.yy, np.sqrt(noise.yy))) / n
    else:
        target = (1.0 if residual_variance is None else residual_variance) / (1 - PRIOR_R2)
    per_unit = prior_precision(features)[-len(squares) :]
    return np.asarray(per_unit * squares / target)


def fit_of(
    aggregates: Aggregates,
    found: Posterior,
    schema: Schema | None = None,
    repair: str | None = None,
    *,
    before: Sequence[NoisyAggregate] = (),
    **more: Any,
) -> Coefficients:
    """A posterior of standardised coefficients (a constant's first) in the columns' own units.

    Args:
        aggregates: that it is from. before: those of earlier rounds. schema: of the job that asked, if one did.
        more: of `Coefficients`.
    """
    listed = checked(aggregates)
    parameters, every = parameters_of(listed[0]), (*before, *listed)
    columns = Standardisation.of(parameters)
    if parameters["whole_rows"]:  # the model is linear in the features as they are
        columns = replace(columns, bound=np.full_like(columns.bound, inf), radius=inf)
    return Coefficients.of(
        columns,
        found,
        constant_of(parameters),
        contributors=sum(one.contributors for one in listed),
        private=(schema is None or schema.private) and all(one.private for one in every),
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
) -> Coefficients:
    """The regression from sums, whose ``refit`` takes another ``repair`` and ``prior_precision``.

    Args:
        aggregates: of a job's last round, or any that fit together.
        schema: of the job that asked, whose columns are in standard deviations; else scales may be anything.
        repair: of an indefinite matrix. prior_precision: λ₀ of each slope, in units of the scales, broadcastable to
            ``(d,)``; None: its scale is learned (`prior`), without a schema about that of `plausible_prior`.
        residual_variance: λ⁻¹, in squared units of the same; None: estimated.
        before: aggregates of earlier rounds. notes: warnings from these.
        by: what the scale of the columns is, as text.

    Raises:
        DataError: as `statistics_of`; the repair is unknown, or the prior does not fit.
    """
    listed = checked(aggregates)
    statistics, parameters = statistics_of(listed), parameters_of(listed[0])
    d = len(parameters["columns"]) - 1
    base = None if schema else plausible_prior(statistics, d, residual_variance)
    found = fitted_to(statistics, d, prior_precision, residual_variance, repair=repair, base=base)
    words = about_columns(statistics, parameters) if schema and parameters["whole_rows"] else ()
    own: dict[str, Any] = {"residual_variance": residual_variance, "before": before, "notes": notes, "by": by}
    again = partial(regression_of, listed, schema, repair=repair, **own)
    return fit_of(listed, found, schema, repair, before=before, warnings=(*notes, *words), again=again, by=by)
