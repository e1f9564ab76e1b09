"""Laplace's approximation to a posterior given a noisy sum, its mode found by Gauss and Newton's method.

    value | θ ~ N(μ(θ) + o, C),   θ ~ N(m, P⁻¹)

is the law of a noisy sum by the central limit theorem. o and C depend on θ too, but slowly: they are held fixed while
the mode is sought, and worked out anew from there, `PASSES` times. The curvature JᵀC⁻¹J + P at the mode is the
posterior's precision, with J = ∂μ/∂θ. Steps are halved until they raise the density.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from inference.columns import Array

PASSES, STEPS, HALVINGS = 4, 60, 12
ENOUGH = 1e-6  # of the logarithm of the density: a step that gains less is the last
STEP_MAX = 1.0  # of any coordinate in one step; parameters are of that order
RIDGE = 1e-10  # of C's largest variance: coordinates that add up to n are public, and have none without noise


class Law(NamedTuple):
    """The law of a sum, given θ of shape ``(p,)``.

    Attributes:
        mean: μ, shape ``(D,)``. jacobian: ∂μ/∂θ, shape ``(D, p)``. spread: o and C, ``(D,)`` and ``(D, D)``.
    """

    mean: Callable[[Array], Array]
    jacobian: Callable[[Array], Array]
    spread: Callable[[Array], tuple[Array, Array]]


class Mode(NamedTuple):
    """θ, the covariance of the normal law there, ``(p, p)``, and whether it was reached."""

    theta: Array
    cov: Array
    reached: bool


def posterior(law: Law, value: Array, centre: Array, precision: Array, start: Array) -> Mode:
    """The posterior of θ.

    Args:
        value: the noisy sum. centre, precision: m and P of each coordinate, ``(p,)``; 0 is flat. start: θ.
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
    """The mode from θ on, given C = root rootᵀ, the curvature there, and whether it was reached."""

    def white(right: Array) -> Array:
        return np.asarray(solve_triangular(root, right, lower=True), float)

    def loss(at: Array) -> float:
        off, away = white(value - law.mean(at)), at - centre
        return float(off @ off + away @ (precision * away)) / 2

    best, reached = loss(theta), False
    for _ in range(STEPS):
        slope = white(law.jacobian(theta))
        curvature = slope.T @ slope + np.diag(precision)
        step = np.linalg.solve(curvature, slope.T @ white(value - law.mean(theta)) + precision * (centre - theta))
        step *= min(1.0, STEP_MAX / max(float(np.abs(step).max()), np.finfo(float).tiny))
        shorter = (step * 0.5**k for k in range(HALVINGS))
        found = next(((at, lost) for one in shorter if (lost := loss(at := theta + one)) <= best), (theta, best))
        reached = best - found[1] < ENOUGH
        theta, best = found
        if reached:
            break
    return theta, curvature, reached
