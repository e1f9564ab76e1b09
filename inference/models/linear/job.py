"""Jobs `regression` and `regression-bounded`: linear regression over two rounds, or over one.

**`regression`** is Algorithm 2 of the DCA paper, distributed linear regression with projection.

    step 1   round 1: noisy phases of the columns, within the public bounds -> centres, scales      `locate`
    step 2   the radius R and the target's bound q, from public figures and the noise               `rows`
    step 3   round 2: noisy statistics of whole rows, scaled into the ball                          `closed_form`
    step 4   the intercept is corrected by the target's mean, of round 1                            `rows.anchored`

Differences from the paper: phases find centres and scales; whole rows are scaled, and features are clipped only at
their public bounds; the threshold follows from the noise; the model has an intercept, and learns its prior's scale; and
clients also send y², without extra cost. `DESIGN.md` gives the reasons (section 2), `scripts/compare_regressions.py`
and `scripts/check_real_data.py` compare the errors with other methods. The two rounds share one budget: the first gets
``std_share`` of the squared Gaussian DP parameter, the second the rest. The noise of the second round follows from that
of the first: it is proportional to the sensitivity, and inversely proportional to the square root of the share. So the
job needs to know neither T nor the budget. The constant column's weight (`intercept_bound`) matters little from 0.7 to
1.2.

**`regression-bounded`** is the paper's straightforward BLR, without projection. Columns are measured in half-widths of
their public bounds. The job assumes that a half-width is three standard deviations. So the intercept's column is a
third of a half-width: one standard deviation, as in Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from inference.columns import PRIOR_BOUND_SDS, Standardisation
from inference.errors import DataError
from inference.jobs.base import Conditions, Estimable, Stage, one_round, two_rounds
from inference.jobs.estimates import BY_BOUNDS
from inference.jobs.examples import NUMBER
from inference.jobs.settings import first_share, one_of, require_positive, setting
from inference.locate import Located, about_clamped, locate, means, phases_request
from inference.models.coefficients import Coefficients
from inference.models.linear.aggregate_stats import STATISTIC, regression_of
from inference.models.linear.baselines import exact_fit, nonprivate_regression
from inference.models.linear.closed_form import REPAIR, REPAIRS
from inference.models.linear.prior import check_precision, prior_precision, slab_scale
from inference.models.linear.rows import Plan, bends, plan, sensitivity
from inference.models.shrinkage import NONE, SHRINKAGE, Shrinkage, ShrunkJob
from inference.problem import Array, Problem, Schema
from inference.rounds import Job

CONSTANT = 1.0
STD_SHARE = 0.2
INTERCEPT_BOUND = 1 / PRIOR_BOUND_SDS


def regression_with_projection(
    schema: Schema, *, std_share: float = STD_SHARE, repair: str = REPAIR, prior_precision: ArrayLike | None = None
) -> Job[Coefficients]:
    """Run linear regression over two rounds: centres and scales, then the statistics of scaled rows.

    Args:
        schema: columns and their public bounds. std_share: the first round's share of the budget, in (0, 1).
        repair, prior_precision: as for `regression_of`; ``refit`` takes others, with the same sums.

    Raises:
        DataError: ``std_share`` is not inside (0, 1), or the repair is unknown.
    """
    Settings(std_share=std_share, repair=repair)  # checks them
    check_precision(prior_precision)
    phases: NoisyAggregate = yield phases_request(schema, std_share, schema.columns)
    located = locate(phases)
    per_sensitivity = sqrt(phases.noise_variance * std_share / (1 - std_share)) / phases.sensitivity
    d, seen = len(schema.features), means(phases)
    skewed = float(seen.shown[:-1].max(initial=0.0))
    bend = float((bends((seen.shown + seen.skewed)[:-1] / 2) ** 2).mean())  # noise may hide half of the skewness
    planned = plan(phases.contributors, d, lambda q, r: per_sensitivity * sensitivity(q, r), bend, skewed)
    aggregate: NoisyAggregate = yield RoundRequest(STATISTIC, parameters(schema, located, planned), 1 - std_share)
    notes = (*located.warnings, *about_clamped(phases, schema.target))
    return regression_of(
        aggregate, schema, repair=repair, prior_precision=prior_precision, before=(phases,), notes=notes
    )


def parameters(schema: Schema, located: Located, planned: Plan) -> dict[str, object]:
    """Return the parameters of round 2: standardised rows in a ball; only public bounds clip features."""
    columns = located.standardisation(schema, np.inf)
    farthest = columns.farthest(schema)
    whole = replace(columns, bound=np.r_[farthest[:-1], planned.bound], radius=planned.radius).parameters()
    return whole | {"intercept": True, "intercept_bound": CONSTANT, "target_square": True, "whole_rows": True}


def regression_in_bounds(
    schema: Schema, *, repair: str = REPAIR, prior_precision: ArrayLike | None = None
) -> Job[Coefficients]:
    """Run linear regression over one round. Arguments and errors as for `regression_with_projection`."""
    BoundedSettings(repair=repair)  # checks it
    check_precision(prior_precision)
    asked = Standardisation.within_bounds(schema).parameters()
    asked |= {"intercept": True, "intercept_bound": INTERCEPT_BOUND, "target_square": True}
    aggregate: NoisyAggregate = yield RoundRequest(STATISTIC, asked)
    return regression_of(aggregate, schema, repair=repair, prior_precision=prior_precision, by=BY_BOUNDS)


@dataclass(frozen=True)
class BoundedSettings(Shrinkage):
    """Settings of `regression-bounded`."""

    repair: str = setting(REPAIR, f"How to repair an indefinite noisy matrix: {', '.join(REPAIRS)}.", one_of(REPAIRS))
    prior_precision: float | None = setting(
        None,
        "Precision of each slope's prior, in standard deviations; by default its scale is learned.",
        require_positive,
    )


@dataclass(frozen=True)
class Settings(BoundedSettings):
    """Settings of `regression`."""

    std_share: float = first_share(STD_SHARE)


OWN: dict[str, Callable[[str, Any], object]] = {
    "prior_precision": lambda name, value: check_precision(value),  # of each slope
    "residual_variance": require_positive,
}


def of_rows(X: Array, y: Array, estimator: Any) -> Coefficients:
    """Return the posterior given raw rows; the mean is scikit-learn's `Ridge` with alpha = λ⁻¹ λ₀."""
    n, m = len(X), X.shape[1] + 1
    if estimator.shrinkage != NONE and estimator.residual_variance is None and n <= m:
        raise DataError(
            f"{n} rows cannot determine {m} coefficients and the residual variance that shrinkage="
            f"{estimator.shrinkage} needs; take more rows, give residual_variance, or leave out shrinkage"
        )
    slopes = prior_precision(X.shape[1])[1:] if estimator.prior_precision is None else estimator.prior_precision
    prior = np.r_[0.0, np.broadcast_to(np.asarray(slopes, float), X.shape[1:])]
    rows = np.column_stack([X, y])
    fit = exact_fit(rows, prior, estimator.residual_variance)
    wide = partial(exact_fit, rows, prior / slab_scale(X.shape[1]), estimator.residual_variance)
    return replace(fit, slab=wide) if estimator.prior_precision is None else fit


def of_released(aggregates: Sequence[NoisyAggregate], estimator: Any) -> Coefficients:
    """Return the posterior given sums of the statistic "regression"."""
    more = {"prior_precision": estimator.prior_precision, "residual_variance": estimator.residual_variance}
    return regression_of(aggregates, repair=estimator.repair, **more)


class Bounded(ShrunkJob):
    """Linear regression within the public bounds, one round."""

    name, settings = "regression-bounded", BoundedSettings
    changeable = ("repair", "prior_precision", *SHRINKAGE)
    about = "linear regression in one round, from the public bounds alone"
    estimator = Estimable("PrivateBoundedRegression", NUMBER, of_rows, of_released, OWN)

    def plan(self, schema: Schema, settings: Any, conditions: Conditions) -> list[Stage]:
        return one_round("the regression")

    def rounds(self, schema: Schema, settings: Any, conditions: Conditions) -> Job[Coefficients]:
        return regression_in_bounds(schema)

    def reference(self, train: Problem, settings: object) -> Coefficients:
        """Fit ordinary least squares to the raw rows."""
        return nonprivate_regression(train)


class Projected(Bounded):
    """Linear regression with projection, Algorithm 2: centres and scales first, then the regression."""

    name, settings = "regression", Settings
    about = "linear regression in two rounds; bounds may be wide (Algorithm 2)"
    estimator = Bounded.estimator._replace(name="PrivateLinearRegression")

    def plan(self, schema: Schema, settings: Any, conditions: Conditions) -> list[Stage]:
        return two_rounds(settings.std_share)

    def rounds(self, schema: Schema, settings: Any, conditions: Conditions) -> Job[Coefficients]:
        return regression_with_projection(schema, std_share=settings.std_share)
