"""Public codes for the statistic "survival" that lower the noise of survival curves.

A round of plain counts has noise of variance σ² in each count, and a curve adds up many of them. A *strategy* B
releases B·counts instead, from which the counts are recovered. The noise of the result depends on B (matrix mechanism,
Li, Miklau, Hay, McGregor and Rastogi 2015). Let J be the Jacobian of the curve S(t_1), ..., S(t_K) by the counts, at a
public guess, and M = BᵀB. The curve's noise variance is tr(J M⁻¹ Jᵀ)·σ². σ² grows with the sensitivity: about the
largest diagonal entry of M, for centred columns. For weights u of the diagonal the best M is

    M = U⁻¹ᐟ² (U¹ᐟ² W U¹ᐟ²)¹ᐟ² U⁻¹ᐟ²,    W = JᵀJ,  U = diag(u),

(set the gradient of tr(W M⁻¹) + tr(U M) to zero). Increasing u where M's diagonal is large makes the diagonal even. A
tenth of the identity in W preserves the other directions, because the guess is never exact. Counts add up to the known
number of rows, so B's columns may be centred. Groups get blocks with one more coordinate, a constant, because the
number of rows of each group is unknown.

**The gain** (`test_survival_model.py` repeats the first column). Standard deviation of S(t_k)·n, averaged
over k, for one unit of σ/Δ, with plain counts / with these codes, for the guess S = ½ and 30 % censored:

    K       as guessed    S(t_K) = 0.1    70 % censored    hazard ~ t^1.5
    8       2.5 / 2.1     2.7 / 2.3       3.5 / 3.1        2.4 / 2.1
    12      3.0 / 2.3     3.2 / 2.6       4.2 / 3.4        2.9 / 2.3
    16      3.4 / 2.5     3.6 / 2.7       4.8 / 3.6        3.3 / 2.5
    24      4.1 / 2.7     4.4 / 2.9       5.7 / 4.0        4.0 / 2.7

At K = 16, binary trees over the intervals give 1.04 times the counts' noise, square roots of prefix sums 1.3 times. The
optimum under the exact constraint, found numerically, is about a tenth below these codes at the guess.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from inference.models.survival.curve import survival_curve
from inference.problem import Array

Codes = tuple[tuple[int, ...], ...]

SURVIVORS, CENSORED = 0.5, 0.3  # the public guess, at the end of the grid
OTHER_DIRECTIONS = 0.1  # weight of the identity in W
FLOOR = 1e-12  # of shares at risk
SIZE = 64  # length of the longest code; rounding to integers then costs less than a hundredth
CONSTANT = 32  # half of SIZE: measured best for 2 to 4 groups
ITERATIONS = 60


@lru_cache(maxsize=32)
def codes(intervals: int) -> Codes:
    """Return the code of each of a group's 2K + 1 cells; its last coordinate is a constant."""
    shares = guessed_shares(intervals)
    factor = strategy(curve_jacobian(shares))
    words = np.rint(factor * (SIZE / np.sqrt((factor**2).sum(axis=0).max()))).astype(int)
    words = np.vstack([words, np.full(len(shares), CONSTANT)])
    return tuple(map(tuple, words.T.tolist()))


def guessed_shares(intervals: int) -> Array:
    """Return the probability of each cell under constant hazards, shape ``(2K + 1,)``."""
    event, censoring = -np.log(SURVIVORS) / intervals, -np.log(1 - CENSORED) / intervals
    leave = event + censoring
    left = np.exp(-leave * np.arange(intervals + 1))
    gone = left[:-1] - left[1:]
    return np.concatenate([gone * event / leave, gone * censoring / leave, left[-1:]])


def curve_jacobian(shares: Array) -> Array:
    """Return ∂S(t_k)/∂(share of a cell), shape ``(K, 2K + 1)``, by central differences."""
    step = 1e-6 * np.eye(len(shares))
    above, below = survival_curve(shares + step, floor=FLOOR), survival_curve(shares - step, floor=FLOOR)
    return np.asarray((above - below).T / 2e-6)


def strategy(workload: Array) -> Array:
    """Return B, shape ``(m - 1, m)``, with nearly least noise in a workload on m counts of known sum."""
    m = workload.shape[1]
    centring = np.eye(m) - 1 / m
    W = centring @ workload.T @ workload @ centring
    W = W / np.trace(W) + OTHER_DIRECTIONS / m * centring
    u = np.full(m, 1 / m)
    for _ in range(ITERATIONS):
        root = np.sqrt(u)
        values, vectors = np.linalg.eigh(root[:, None] * W * root)
        square_root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
        M = centring @ (square_root / np.outer(root, root)) @ centring
        u = u * np.diag(M)
        u /= u.sum()
    values, vectors = np.linalg.eigh(M)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0))).T[1:])  # without the sum's direction, eigenvalue 0
