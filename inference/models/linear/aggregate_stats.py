"""Linear regression from what rounds of the statistic "regression" released (supplement, eqs. 3 to 7).

Everything needed stands in the aggregates' own parameters: columns, centre, scale and bounds, the constant feature, the
weights of the blocks, the radius and what it is of. Several aggregates, of different clients, are one sum: their values
add up, and so do the variances of their noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.aggregate import NoisyAggregate
from inference.columns import Standardisation
from inference.errors import DataError
from inference.jobs.estimates import BY_SD
from inference.mcmc.sums import check_once
from inference.models.coefficients import Coefficients
from inference.models.linear.closed_form import Noise, Posterior, SufficientStatistics, posterior, unpack
from inference.models.linear.complete_rows import counted
from inference.models.linear.prior import PRIOR_R2, fitted_to, prior_precision
from inference.models.linear.repair import REPAIR
from inference.models.linear.whole_rows import about_columns, with_weights
from inference.problem import Schema

Array = NDArray[np.float64]

STATISTIC = "regression"
DEFAULTS: Mapping[str, Any] = {
    "intercept": False,
    "intercept_bound": 1.0,
    "target_square": False,
    "radius": None,
    "weights": (1, 1, 1),
    "whole_rows": False,
}
"""What the statistic's parameters are where a round does not name them."""
MUST_AGREE = (
    *("columns", "centre", "scale", "bound", "intercept", "intercept_bound", "radius", "target_square", "whole_rows"),
)


def statistics_of(aggregates: NoisyAggregate | Sequence[NoisyAggregate]) -> SufficientStatistics:
    """The sufficient statistics over all rows of these aggregates, standardised as their parameters say.

    Where there is a constant, rows without a missing value are counted by its squares (`complete_rows.counted`); of
    whole rows, by the trace of xx (`whole_rows.with_weights`).

    Raises:
        DataError: there is none, one is of another statistic, one is there twice, or they do not fit together; or rows
            are scaled as a whole to a sphere whose radius is not the constant's value.
    """
    listed = checked(aggregates)
    summed, parameters = _summed([unpacked(one) for one in listed]), parameters_of(listed[0])
    if parameters["whole_rows"]:
        constant = parameters["intercept_bound"] if parameters["intercept"] else 0.0
        if parameters["radius"] != constant:
            raise DataError(
                f"whole rows have the radius {parameters['radius']:g} and the constant {constant:g}; expected "
                "the same, so that every row lies on the sphere"
            )
        return with_weights(summed, constant)
    return counted(summed, parameters["intercept_bound"]) if parameters["intercept"] else summed


def posterior_of(
    aggregates: NoisyAggregate | Sequence[NoisyAggregate],
    prior_precision: ArrayLike,
    residual_variance: ArrayLike | None = None,
    *,
    repair: str = REPAIR,
    noise_in_spread: bool = True,
) -> Posterior:
    """The posterior over the standardised coefficients (the constant's first, if there is one), supplement eqs. 3 to 7.

    Args:
        aggregates: one or several. The others as for `closed_form.posterior`.

    Raises:
        DataError: as `statistics_of` and `posterior`.
    """
    statistics = statistics_of(aggregates)
    return posterior(statistics, prior_precision, residual_variance, repair=repair, noise_in_spread=noise_in_spread)


def columns_of(aggregates: NoisyAggregate | Sequence[NoisyAggregate]) -> tuple[str, ...]:
    """The features, then the target. Raises `DataError` as `statistics_of`."""
    return tuple(parameters_of(checked(aggregates)[0])["columns"])


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
    precision: Array = per_unit * squares / target
    return precision


def fit_of(
    sums: NoisyAggregate | Sequence[NoisyAggregate],
    fitted: Posterior,
    schema: Schema | None = None,
    repair: str | None = None,
    **more: Any,
) -> Coefficients:
    """A posterior from `posterior_of`, in the columns' own units.

    Args:
        sums: aggregates that it is from. schema: of the job that asked, if one did. more: of `Coefficients`.
    """
    listed = checked(sums)
    parameters = parameters_of(listed[0])
    whole = bool(parameters["whole_rows"])  # the model is linear in the features as they are
    mean, cov, before = fitted.mean, fitted.cov, fitted.prior_variance
    if not parameters["intercept"]:
        mean, cov = np.r_[0.0, mean], np.pad(cov, ((1, 0), (1, 0)))
        before = None if before is None else np.r_[0.0, before]
    bound = np.full(len(parameters["bound"]), inf) if whole else np.asarray(parameters["bound"], float)
    centre, scale = (np.asarray(parameters[name], float) for name in ("centre", "scale"))
    known = {
        "columns": Standardisation(tuple(parameters["columns"]), centre, scale, bound),
        "mean": mean,
        "cov": cov,
        "prior_sd": None if before is None else np.sqrt(before),
        "residual_variance": float(fitted.residual_variance),
        "constant": parameters["intercept_bound"] if parameters["intercept"] else 0.0,
        "radius": inf if whole or parameters["radius"] is None else parameters["radius"],
        "contributors": sum(one.contributors for one in listed),
        "private": (schema is None or schema.private) and all(one.private for one in listed),
        "schema": schema,
        "aggregates": tuple(listed),
        "repair": repair,
    }
    return Coefficients(**{**known, **more})


def fit_aggregates(
    sums: Sequence[NoisyAggregate],
    *,
    prior_precision: ArrayLike | None = None,
    residual_variance: float | None = None,
    repair: str = REPAIR,
) -> Coefficients:
    """The regression from sums alone, whose scales need not be standard deviations; all three may change in a refit.

    Args:
        prior_precision: λ₀ of each slope, in units of the sums' scales; None: that of `plausible_prior`, with its scale
            learned. residual_variance: λ⁻¹, in squared units of the same; None: estimated.
    """
    statistics, (*features, _) = statistics_of(sums), columns_of(sums)
    base = plausible_prior(statistics, len(features), residual_variance)
    fitted = fitted_to(statistics, len(features), prior_precision, residual_variance, repair=repair, base=base)
    again = partial(fit_aggregates, sums, residual_variance=residual_variance, repair=repair)
    return fit_of(sums, fitted, repair=repair, again=again)


def learned_from(
    sums: NoisyAggregate,
    schema: Schema,
    *,
    repair: str = REPAIR,
    prior_precision: ArrayLike | None = None,
    before: tuple[NoisyAggregate, ...] = (),
    notes: tuple[str, ...] = (),
    by: str = BY_SD,
) -> Coefficients:
    """The regression of a job over this schema, whose columns are in standard deviations.

    Args:
        sums: of the job's last round. before: those of earlier ones. notes: what these say against the result.
        repair: of an indefinite matrix. prior_precision: λ₀ of each slope, columns in standard deviations,
            broadcastable to ``(d,)``; None: its scale is learned (`prior`). Both are the arguments of ``refit``.
        by: what the scale of the columns is, in words.

    Raises:
        DataError: the repair is unknown, or the prior does not fit.
    """
    statistics, parameters = statistics_of(sums), parameters_of(sums)
    fitted = fitted_to(statistics, len(schema.features), prior_precision, repair=repair)
    words = about_columns(statistics, parameters) if parameters["whole_rows"] else ()
    return fit_of(
        sums,
        fitted,
        schema,
        repair,
        private=schema.private and all(one.private for one in (*before, sums)),
        aggregates=(*before, sums),
        warnings=(*notes, *words),
        again=partial(learned_from, sums, schema, repair=repair, before=before, notes=notes, by=by),
        by=by,
    )


def checked(aggregates: NoisyAggregate | Sequence[NoisyAggregate]) -> list[NoisyAggregate]:
    """The aggregates as a list in which all fit together."""
    listed = [aggregates] if isinstance(aggregates, NoisyAggregate) else list(aggregates)
    if not listed:
        raise DataError("no aggregate; give at least one of the statistic 'regression'")
    first = parameters_of(listed[0])
    check_once(listed)
    for place, other in enumerate(listed[1:], start=2):
        parameters = parameters_of(other)
        for key in MUST_AGREE:
            if _plain(parameters[key]) != _plain(first[key]):
                raise DataError(
                    f"aggregate {place} has {key} {_plain(parameters[key])}, the first has {_plain(first[key])}; "
                    "only sums of the same statistic add up"
                )
    return listed


def parameters_of(aggregate: NoisyAggregate) -> dict[str, Any]:
    """The statistic's parameters, the defaults filled in."""
    if aggregate.statistic != STATISTIC:
        raise DataError(f"an aggregate is of the statistic {aggregate.statistic!r}; expected {STATISTIC!r}")
    return {**DEFAULTS, **aggregate.parameters}


def require_plain_rows(parameters: Mapping[str, Any], name: str) -> None:
    """Raise `DataError` for sums of whole rows, which a model of unweighted rows takes for something else."""
    if parameters["whole_rows"]:
        raise DataError(
            f"the rows were scaled as a whole, their constant with them, which {name} does not describe; ask for a "
            "round without whole_rows"
        )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def unpacked(aggregate: NoisyAggregate) -> SufficientStatistics:
    """The statistics of one aggregate, a constant's own square as noisy as it was released."""
    parameters = parameters_of(aggregate)
    features = len(parameters["columns"]) - 1 + bool(parameters["intercept"])
    return unpack(
        aggregate.value,
        features,
        aggregate.contributors,
        aggregate.noise_variance,
        weights=tuple(parameters["weights"]),
    )


def _summed(parts: Sequence[SufficientStatistics]) -> SufficientStatistics:
    """Sums and variances of all parts."""
    noises = [part.noise for part in parts]
    squares = [part.yy for part in parts if part.yy is not None]
    return SufficientStatistics(
        n=sum(part.n for part in parts),
        xx=np.sum([part.xx for part in parts], axis=0),
        xy=np.sum([part.xy for part in parts], axis=0),
        yy=np.sum(squares, axis=0) if squares else None,
        noise_variance=Noise(*(np.sum([getattr(one, block) for one in noises]) for block in ("xx", "xy", "yy"))),
    )
