"""Distributed linear regression with projection: Algorithm 2 of the DCA paper, as a learning job of two rounds.

    step 1   round 1: noisy phases of the columns, within the public bounds -> centres, scales      `locate`
    step 2   the target's bound q, from what is public and the noise                                `whole_rows`
    step 3   round 2: noisy statistics of whole rows, scaled to the unit sphere                     `closed_form`

What differs from the paper's algorithm, each for a measured reason:

- **Phases** and not second moments in round 1: public bounds may be far too wide and off the middle. The noise of
  moments grows with their width, that of phases does not. At N·ε of 2,000 or more, ten times the width costs less than
  5 %.
- **Whole rows on a sphere** and not each column within ±p: no bias from skewed features, and less noise. No threshold
  is searched: 0.02 s take the place of minutes at 200 features.
- An **intercept**, as a public constant feature of one standard deviation. Its weight matters little from 0.7 to 1.2.
- **y²**, for the residual variance: the sensitivity covers it already, so it is free.
- The two rounds are accounted for jointly: they get ``std_share`` and the rest of the squared Gaussian DP parameter.
- The prior's scale is learned (`prior`).

`scripts/compare_regressions.py` measures its errors beside other software, and `docs/learning.md` has the figures.

The job is sans-IO. How noisy the second round will be follows from what the first one carried: noise scales with the
sensitivity and with one over the square root of the share. So the job needs to know neither T nor the budget.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference.errors import DataError
from inference.locate import locate, located_by
from inference.models.coefficients import Coefficients
from inference.models.linear.aggregate_stats import STATISTIC, learned_from
from inference.models.linear.repair import REPAIR, check_repair
from inference.models.linear.whole_rows import sensitivity, target_bound
from inference.problem import Schema
from inference.rounds import Job

Array = NDArray[np.float64]

RADIUS = 1.0
STD_SHARE = 0.2


def regression_with_projection(
    schema: Schema, *, std_share: float = STD_SHARE, repair: str = REPAIR, prior_precision: ArrayLike | None = None
) -> Job[Coefficients]:
    """The job: yields two `SecureSumRequest`s, is sent their `NoisyAggregate`s, returns the regression.

    Args:
        schema: columns and their public bounds.
        std_share: the first round's share of the budget, in (0, 1).
        repair, prior_precision: as of `learned_from`; ``refit`` gives others from the same sums.

    Raises:
        DataError: ``std_share`` is not inside (0, 1), or the repair is unknown.
    """
    check_repair(repair)
    if not 0 < std_share < 1:
        raise DataError(f"std_share is {std_share}; expected a number between 0 and 1")
    phases: NoisyAggregate = yield located_by(schema, std_share, schema.columns)
    located = locate(phases)
    per_sensitivity = sqrt(phases.noise_variance * std_share / (1 - std_share)) / phases.sensitivity
    bound = target_bound(phases.contributors, len(schema.features), lambda bound: per_sensitivity * sensitivity(bound))
    aggregate: NoisyAggregate = yield SecureSumRequest(
        STATISTIC, parameters(schema, located.centre, located.scale, bound), budget_share=1 - std_share
    )
    return learned_from(
        aggregate, schema, repair=repair, prior_precision=prior_precision, before=(phases,), notes=located.warnings
    )


def parameters(schema: Schema, centre: Array, scale: Array, bound: float) -> dict[str, object]:
    """Of round 2: rows in scales about centres, on the unit sphere; features are clipped to the public bounds alone."""
    farthest = (schema.half_widths + np.abs(schema.centres - centre)) / scale
    return {
        "columns": list(schema.columns),
        "centre": centre.tolist(),
        "scale": scale.tolist(),
        "bound": [*farthest[:-1].tolist(), bound],
        "intercept": True,
        "intercept_bound": RADIUS,
        "target_square": True,
        "radius": RADIUS,
        "whole_rows": True,
    }
