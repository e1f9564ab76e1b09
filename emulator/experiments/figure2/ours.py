"""Algorithm 2 as this library has it, with estimated centres and with thresholds that were searched before.

A search sees no data, so that repeats of one experiment can share what it found. What the first round asks for and what
is made of it stands here once more for many draws at once (`paired`); a test holds the two against each other.
"""

from __future__ import annotations

from math import ldexp, nan

import numpy as np

from dca_proto.core.job import FRACTION_BITS
from dca_proto.statistics import resolve
from dca_proto.statistics.contribution import client_sensitivity
from emulator.experiments.figure2.data import Array
from inference.algorithm2 import ESTIMATE, MOMENTS_BOUND, regression_with_projection
from inference.problem import Schema
from inference.projection import Thresholds
from inference.regression import LinearFit
from inference.rounds import Rounds, run
from inference.scale import means, standard_deviations

MOMENTS = "moments"


def regression_with_thresholds(schema: Schema, rounds: Rounds, chosen: Array) -> LinearFit:
    """Two rounds and a fit.

    Args:
        chosen: bounds in standard deviations of each feature and of the target, shape ``(d + 1,)``.
    """
    found = Thresholds(float(chosen[0]), float(chosen[-1]), nan, tuple(chosen[:-1].tolist()))
    unused = np.random.default_rng(0)  # of the search
    return run(regression_with_projection(schema, rng=unused, centre=ESTIMATE, thresholds=found), rounds)


def marginals(sums: Array, n: int, noise_variance: float) -> tuple[Array, Array]:
    """Means about the public centres and standard deviations, in half-widths of the bounds, each ``(..., d + 1)``.

    Args:
        sums: what the first round released: of x, then of x², where the half-width is `MOMENTS_BOUND`.
        n: rows. noise_variance: of each sum.
    """
    first, second = np.split(sums, 2, axis=-1)
    offsets = means(first / MOMENTS_BOUND, n, noise_variance / MOMENTS_BOUND**2)
    squares = second / MOMENTS_BOUND**2 - n * offsets**2
    stds = standard_deviations(squares.ravel(), n, noise_variance / MOMENTS_BOUND**4)
    return offsets, stds.reshape(squares.shape)


def moments_sensitivity(schema: Schema) -> float:
    """Of the first round's sums."""
    return ldexp(client_sensitivity(resolve(MOMENTS, _moments(schema)), 0, FRACTION_BITS).l2, -FRACTION_BITS)


def _moments(schema: Schema) -> dict[str, object]:
    bound = np.full(len(schema.columns), MOMENTS_BOUND)
    return _parameters(schema, schema.centres, schema.half_widths / MOMENTS_BOUND, bound)


def _parameters(schema: Schema, centre: Array, scale: Array, bound: Array) -> dict[str, object]:
    return {
        "columns": list(schema.columns),
        "centre": centre.tolist(),
        "scale": scale.tolist(),
        "bound": bound.tolist(),
    }
