"""The effect of clipping on the gradients of a logistic regression, and the best clip, from rows the trainer simulates.

    s = (y - p) x, p = 1/(1 + exp(-xᵀθ))     the gradient of one row, the constant first in x
    s̃                                         the same, brought into the ball of radius C
    b = E[s̃],  D = E[s̃ sᵀ],  K = E[s̃ s̃ᵀ]      over rows x and labels drawn from the model at θ; E[s] = 0            (1)

By the central limit theorem the mean gradient of n clients at θ, where θ* is the truth near it, is

    ḡ = b + D(θ* - θ) + η + e,    η ~ N(0, K/n),  e ~ N(0, V)  the privacy noise                               (2)

since ∂E[s̃]/∂θ* = E[s̃ sᵀ]. So D is the curvature: it pulls an error back, and determines the spread. Only rows are
simulated; the sum over labels y in {0, 1} is exact.

**The best clip.** Noise grows with C, and distortion falls. With the posterior's precision Λ = P + DᵀA⁻¹D, where
A = K/n + V(C), the planned C minimises

    tr Λ⁻¹ + |w Λ⁻¹ DᵀA⁻¹ b|²                                                                                 (3)

w is 1; it is a third if the result is corrected for b, since a model of the rows is never quite right. For the same
reason the spread includes a third of that correction.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit

from inference.problem import Array

ROWS = 4000
CLIPS = np.geomspace(0.2, 2.0, 15)  # in units of √d, about the norm of a row
CORRECTED = 1 / 3  # the part of b assumed to remain after its correction
LOG_ODDS_SD, LOG_ODDS = 1.5, -1.0  # of simulated rows if nothing is known


class Rows(NamedTuple):
    """Simulated rows, ``(m, d)`` with the constant first, and the trainer's guess of θ, ``(d,)``."""

    x: Array
    theta: Array


class Expected(NamedTuple):
    """b ``(d,)``, D and K ``(d, d)`` of equation (1)."""

    shift: Array
    slope: Array
    cov: Array


def unknown_rows(dimension: int, seed: int = 0) -> Rows:
    """Simulate independent standard normal features, all of the same influence."""
    rng, d = np.random.default_rng(seed), dimension - 1
    x = np.insert(rng.standard_normal((ROWS, d)), 0, 1.0, axis=1)
    return Rows(x, np.r_[LOG_ODDS, np.resize([1.0, -1.0], d) * LOG_ODDS_SD / np.sqrt(max(d, 1))])


def expected(rows: Rows, clip: float) -> Expected:
    """Return equation (1) at C."""
    x, p = rows.x, expit(rows.x @ rows.theta)
    norm = np.linalg.norm(x, axis=1)
    up, down = (np.minimum(residual, clip / norm) for residual in (1 - p, p))
    residual, m = (p * up - (1 - p) * down), len(x)
    slope = p * (1 - p) * (up + down)
    cov = p * up**2 + (1 - p) * down**2
    return Expected(residual @ x / m, (x * slope[:, None]).T @ x / m, (x * cov[:, None]).T @ x / m)


def planned_clip(rows: Rows, n: int, noise_per_sensitivity: float, prior_precision: float, *, corrected: bool) -> float:
    """Return the C that minimises (3).

    Args:
        noise_per_sensitivity: noise standard deviation, per unit of the L2 sensitivity 2C, of one sum that gets all the
            remaining budget. prior_precision: of each coefficient.
        corrected: True if b is corrected for.
    """
    d = len(rows.theta)
    clips, part = CLIPS * np.sqrt(d), CORRECTED if corrected else 1.0
    losses = []
    for clip in clips:
        moments = expected(rows, clip)
        noise = (2 * clip * noise_per_sensitivity / n) ** 2
        cov, gain = _gain(moments, n, noise, prior_precision)
        losses.append(np.trace(cov) + part**2 * np.sum((gain @ moments.shift) ** 2))
    return float(clips[int(np.argmin(losses))])


def posterior(
    rows: Rows, clip: float, gradient: Array, at: Array, n: float, noise: float, prior_precision: float
) -> tuple[Array, Array]:
    """Return mean and covariance of θ by (2), given the data's mean gradient at θ: shapes ``(d,)`` and ``(d, d)``.

    Args:
        gradient: ḡ. noise: its variance in each coordinate. at: θ. prior_precision: of each coefficient.
    """
    moments = expected(rows, clip)
    cov, gain = _gain(moments, n, noise, prior_precision)
    wrong = CORRECTED * gain @ moments.shift
    mean = gain @ (gradient - moments.shift + moments.slope @ at)
    return np.asarray(mean), np.asarray(cov + np.outer(wrong, wrong))


def clipped_share(rows: Rows, clip: float) -> float:
    """Return the share of gradients longer than C, for rows such as these."""
    p, norm = expit(rows.x @ rows.theta), np.linalg.norm(rows.x, axis=1)
    return float(np.mean(p * ((1 - p) * norm > clip) + (1 - p) * (p * norm > clip)))


def stretch(rows: Rows, clip: float) -> float:
    """Return how much the clip enlarges coefficients, as a part of them, for rows such as these."""
    moments = expected(rows, clip)
    off = np.linalg.solve(moments.slope, moments.shift)
    return float(off @ rows.theta / (rows.theta @ rows.theta))


def _gain(moments: Expected, n: float, noise: float, prior_precision: float) -> tuple[Array, Array]:
    """Return Λ⁻¹ and Λ⁻¹DᵀA⁻¹."""
    d = len(moments.shift)
    pull = np.linalg.solve(moments.cov / n + noise * np.eye(d), moments.slope).T
    cov: Array = np.asarray(np.linalg.inv(pull @ moments.slope + prior_precision * np.eye(d)), float)
    return cov, cov @ pull
