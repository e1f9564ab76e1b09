"""Linear regression within the public bounds: one round without projection, the paper's straightforward BLR.

Columns are measured in half-widths c_j of their public bounds, so that every bound is 1. Bounds are thought to be three
standard deviations wide on either side (`scale`), so that slopes in half-widths are slopes in standard deviations, and
a constant feature of a third of a half-width is one of one standard deviation, as in Algorithm 2.
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference.columns import PRIOR_BOUND_SDS
from inference.jobs.estimates import BY_BOUNDS
from inference.models.coefficients import Coefficients
from inference.models.linear.aggregate_stats import STATISTIC, learned_from
from inference.models.linear.repair import REPAIR, check_repair
from inference.problem import Schema
from inference.rounds import Job

INTERCEPT_BOUND = 1 / PRIOR_BOUND_SDS


def regression_in_bounds(
    schema: Schema, *, repair: str = REPAIR, prior_precision: ArrayLike | None = None
) -> Job[Coefficients]:
    """The job: yields one `RoundRequest`, is sent its `NoisyAggregate`, returns the regression.

    Args:
        schema: columns and their public bounds. repair, prior_precision: as of `learned_from`.

    Raises:
        DataError: the repair is unknown.
    """
    check_repair(repair)
    aggregate: NoisyAggregate = yield SecureSumRequest(STATISTIC, _parameters(schema))
    return learned_from(aggregate, schema, repair=repair, prior_precision=prior_precision, by=BY_BOUNDS)


def _parameters(schema: Schema) -> dict[str, object]:
    return {
        "columns": list(schema.columns),
        "centre": [float(centre) for centre in schema.centres],
        "scale": [float(width) for width in schema.half_widths],
        "bound": [1.0] * len(schema.columns),
        "intercept": True,
        "intercept_bound": INTERCEPT_BOUND,
        "target_square": True,
    }
