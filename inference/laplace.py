"""Laplace's approximation to a posterior given a noisy sum; its mode is found by the Gauss-Newton method.

    value | θ ~ N(μ(θ) + o, C),   θ ~ N(m, P⁻¹)

is the law of a noisy sum by the central limit theorem. o and C depend on θ too, but slowly: they stay fixed during the
search for the mode, and are then computed again at the mode, `PASSES` times. The curvature JᵀC⁻¹J + P at the mode is
the posterior's precision, with J = ∂μ/∂θ. Steps are halved until they raise the density.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from inference.problem import Array

PASSES, STEPS, HALVINGS = 4, 60, 12
ENOUGH = 1e-6  # a step that gains less in the log density is the last
STEP_MAX = 1.0  # of any coordinate in one step; parameters are of that order
RIDGE = 1e-10  # of C's largest variance: without noise, coordinates that add up to the public n make C singular


class Law(NamedTuple):
    """The distribution of a sum, given θ of shape ``(p,)``.

    Attributes:
        mean: μ, shape ``(D,)``. jacobian: ∂μ/∂θ, shape ``(D, p)``. spread: o and C, ``(D,)`` and ``(D, D)``.
    """

    mean: Callable[[Array], Array]
    jacobian: Callable[[Array], Array]
    spread: Callable[[Array], tuple[Array, Array]]


class Mode(NamedTuple):
    """The mode θ, the covariance of the normal approximation, ``(p, p)``, and whether the mode was reached."""

    theta: Array
    cov: Array
    reached: bool


def posterior(law: Law, value: Array, centre: Array, precision: Array, start: Array) -> Mode:
    """Approximate the posterior of θ.

    Args:
        value: the noisy sum. centre, precision: m and the diagonal of P, ``(p,)``; 0 is flat. start: of θ.
    """
    theta = start
    for _ in range(PASSES):
        offset, cov = law.spread(theta)
        root = np.linalg.cholesky(cov + RIDGE * np.diag(cov).max() * np.eye(len(cov)))
        theta, curvature, reached = _ascend(law, value - offset, root, centre, precision, theta)
    return Mode(theta, np.asarray(np.linalg.inv(curvature), float), reached)


def _ascend(
    law: Law, value: Array, root: Array, centre: Array, precision: Array, theta: Array
) -> tuple[Array, Array, bool]:
    """Return the mode found from θ on, given C = root rootᵀ, the curvature there, and whether it was reached."""

    def white(right: Array) -> Array:
        return np.asarray(solve_triangular(root, right, lower=True), float)

    def loss(point: Array) -> float:
        residual, shift = white(value - law.mean(point)), point - centre
        return float(residual @ residual + shift @ (precision * shift)) / 2

    best, reached = loss(theta), False
    for _ in range(STEPS):
        slope = white(law.jacobian(theta))
        curvature = slope.T @ slope + np.diag(precision)
        step = np.linalg.solve(curvature, slope.T @ white(value - law.mean(theta)) + precision * (centre - theta))
        step *= min(1.0, STEP_MAX / max(float(np.abs(step).max()), np.finfo(float).tiny))
        trials = (theta + step * 0.5**k for k in range(HALVINGS))
        moved, lower = next(((point, lost) for point in trials if (lost := loss(point)) <= best), (theta, best))
        reached = best - lower < ENOUGH
        theta, best = moved, lower
        if reached:
            break
    return theta, curvature, reached
