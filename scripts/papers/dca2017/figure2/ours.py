"""Algorithm 2 as this library has it, with estimated centres and with thresholds that were searched before.

A search sees no data, so that repeats of one experiment can share what it found.
"""

from __future__ import annotations

from math import ldexp, nan

import numpy as np

from dca_proto.learning.job import FRACTION_BITS
from dca_proto.statistics import resolve
from dca_proto.statistics.contribution import client_sensitivity
from inference.models.linear.projection import Thresholds
from inference.models.linear.result import LinearFit
from inference.models.linear.two_rounds import ESTIMATE, MOMENTS, regression_with_projection
from inference.problem import Schema
from inference.rounds import Rounds, run
from inference.scale import moments_parameters
from papers.dca2017.figure2.data import Array


def regression_with_thresholds(schema: Schema, rounds: Rounds, chosen: Array) -> LinearFit:
    """Two rounds and a fit.

    Args:
        chosen: bounds in standard deviations of each feature and of the target, shape ``(d + 1,)``.
    """
    found = Thresholds(float(chosen[0]), float(chosen[-1]), nan, tuple(chosen[:-1].tolist()))
    unused = np.random.default_rng(0)  # of the search
    return run(regression_with_projection(schema, rng=unused, centre=ESTIMATE, thresholds=found), rounds)


def moments_sensitivity(schema: Schema) -> float:
    """Of the first round's sums."""
    moments = resolve(MOMENTS, moments_parameters(schema.columns, schema.centres, schema.half_widths))
    return ldexp(client_sensitivity(moments, 0, FRACTION_BITS).l2, -FRACTION_BITS)
