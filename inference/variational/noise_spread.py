"""How far the privacy noise carried a fitted mean: known to the trainer, for it knows each round's noise and its own
steps.

An iteration of `mean_field` with noise e_t in its gradient carries an error δ of the mean and u of the momentum to

    u_t = β₁ u_{t-1} + (1 - β₁)(e_t - H δ_{t-1})         δ_t = δ_{t-1} + a_t u_t

near the optimum, H being the curvature there. The fitted mean is the average of the last iterates, so its error is
Σ_t w_t e_t, and its variance Σ_t σ_t² w_t², with weights that follow from this linear recursion, run backwards once.

H is a number here, the same in all directions: the sum over clients of a guess of a row's curvature. Directions
of less information have more noise than that, and directions of more information have less. The difference between
mini-batches is left out; most of it cancels over whole epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from inference.variational.mean_field import MOMENTUM


def noise_sd(rates: Sequence[float], noise_sds: Sequence[float], averaged: int, curvature: float) -> float:
    """Standard deviation that the privacy noise has in each coordinate of the average of the last iterates.

    Args:
        rates: a_t of each iteration (`mean_field.Info.rate`). averaged: how many last iterates.
        curvature: H, at least 0. noise_sds: σ_t, of each coordinate of each iteration's gradient.
    """
    variance = of_mean = of_momentum = 0.0  # what the average owes to an error of δ_t, of u_t
    for t in reversed(range(len(rates))):
        if t >= len(rates) - averaged:
            of_mean += 1 / averaged
        of_momentum += rates[t] * of_mean
        variance += (noise_sds[t] * (1 - MOMENTUM) * of_momentum) ** 2
        of_mean -= (1 - MOMENTUM) * curvature * of_momentum
        of_momentum *= MOMENTUM
    return sqrt(variance)
