"""How far the privacy noise carried a fitted mean: known to the trainer, for it knows each round's noise and its own
steps.

An iteration of `mean_field` with noise e_t in its gradient carries an error δ of the mean and u of the momentum to

    u_t = β₁ u_{t-1} + (1 - β₁)(e_t - H δ_{t-1})         δ_t = δ_{t-1} + a_t u_t

near the optimum, H being the curvature there. The fitted mean is the average of the last iterates, so its error is
Σ_t w_t e_t, and its variance Σ_t σ_t² w_t², with weights that follow from this linear recursion, run backwards once.

**H is taken to be 0.** The fit knows of H only what its own s says of the diagonal. With diag(1/s²) for H the result is
too small, because features are correlated: along the many directions in which the rows say little, nothing draws the
noise back. With H = 0 it is the same in all directions, and too large in those that the rows determine well. Measured
over 40 repeats of the noise alone (Adult: 10), the slopes' real spread, root mean square, was 0.98 and 1.03 times what
is reported on breast cancer (ε = 4 and 1), 0.69 and 0.71 on abalone, older than the median (ε = 1 and 0.3), and 1.00 on
Adult (ε = 1). That is in the mean over coordinates: of Adult's, nine in ten have between 0.3 and 1.7 times. That
mini-batches differ is not in it; over whole epochs most of that cancels. Nor is what clipping distorts (`models`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from inference.variational.mean_field import MOMENTUM


def noise_sd(rates: Sequence[float], noise_sds: Sequence[float], averaged: int) -> float:
    """Standard deviation that the privacy noise has in each coordinate of the average of the last iterates.

    Args:
        rates: a_t of each iteration (`mean_field.Info.rate`). averaged: how many last iterates.
        noise_sds: σ_t, of each coordinate of each iteration's gradient.
    """
    variance = of_mean = of_momentum = 0.0  # what the average owes to an error of δ_t, of u_t
    for t in reversed(range(len(rates))):
        if t >= len(rates) - averaged:
            of_mean += 1 / averaged
        of_momentum += rates[t] * of_mean
        variance += (noise_sds[t] * (1 - MOMENTUM) * of_momentum) ** 2
        of_momentum *= MOMENTUM
    return sqrt(variance)
