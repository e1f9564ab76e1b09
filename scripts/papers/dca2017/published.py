"""The experiments as the authors ran them. **Not private as claimed**: kept to explain the published figures.

The authors' code differs from the paper, and from a valid privacy claim. With n rows, d features, bounds c = 7.5:

- The regressions without projection assume a bound of 5 but do not clip to it; columns reach 8 to 9.
- The round for standard deviations has Δ = √(d c² + c_y²) for sums of squares, whose sensitivity is √(d c⁴ + c_y⁴).
- The threshold search multiplies unit noise by Δ⁴: its variable already holds Δ² and is squared again. Its auxiliary x
  is normalised by rows, and it uses the whole ε. As a result, its choice hardly depends on ε.
- The classical Gaussian mechanism, √(2 ln(1.25/δ)) Δ/ε, is used at every ε; its proof needs ε < 1.
- Data are centred and scaled by their own statistics; wines are read off by one (`data`).
- 30 % of ε and of δ go to the standard deviations; negative variances become 0.5; λ = λ₀ = 1. Eigenvalues of the noisy
  matrix are replaced by their absolute values, which the paper does not mention.
"""

from __future__ import annotations

from math import log, sqrt

import numpy as np

from inference.models.linear.closed_form import SufficientStatistics, posterior, symmetric
from inference.problem import Array
from papers.dca2017.data import BOUND, DELTA

STD_SHARE = 0.3
UNCLIPPED_BOUND = 5.0
REPLACEMENT = 0.5  # for a negative variance
SEARCH_REPEATS = 20
THRESHOLDS = np.arange(1, 21) / 10
# The authors test on all n auxiliary rows. At n = 3000, testing on other rows moves the choice by at most one step of
# the grid, as another seed does.
_TEST_ROWS = 1000


def classical_sigma(epsilon: float, delta: float = DELTA) -> float:
    """Return σ per unit of sensitivity, eq. (1) of the paper."""
    return sqrt(2 * log(1.25 / delta)) / epsilon


def std_sensitivity(features: int, bound: float = BOUND) -> float:
    """Return the sensitivity that the authors assumed for the sums of squares of d features and the target."""
    return sqrt((features + 1) * bound**2)


def box_sensitivity(bounds: Array) -> Array:
    """Return Δ of supplement eq. (12), without y², for bounds ``(..., d + 1)`` of the features and the target."""
    squares = bounds**2
    x, y = squares[..., :-1], squares[..., -1]
    pairs = x.sum(axis=-1) ** 2 - (x**2).sum(axis=-1)  # twice Σ c_j² c_k² over j < k
    return np.asarray(np.sqrt((x**2).sum(axis=-1) + 2 * pairs + 4 * x.sum(axis=-1) * y))


def search(n: int, features: int, epsilon: float, rng: np.random.Generator) -> tuple[float, float]:
    """Run the published threshold search; return multiples of the standard deviation for features and target."""
    d, unit = features, classical_sigma(epsilon) * sqrt(n / (n - 1))
    errors = np.zeros((len(THRESHOLDS), len(THRESHOLDS)))
    for _ in range(SEARCH_REPEATS):
        x = rng.standard_normal((n, d))
        x -= x.mean(axis=0)
        x /= np.linalg.norm(x, axis=1, keepdims=True)  # not in eqs. (4) to (6)
        y = x @ rng.standard_normal(d) + rng.standard_normal(n)
        y -= y.mean()
        noise = unit * rng.standard_normal((SEARCH_REPEATS, d * (d + 1) // 2 + d))
        limits = THRESHOLDS * x.std(ddof=1), THRESHOLDS * y.std(ddof=1)
        for row, p in enumerate(limits[0]):
            errors[row] += _search_errors(x, y, p, limits[1], noise)
    best, best_target = np.unravel_index(np.argmin(errors), errors.shape)
    return float(THRESHOLDS[best]), float(THRESHOLDS[best_target])


def _search_errors(x: Array, y: Array, p: float, targets: Array, noise: Array) -> Array:
    """Return mean absolute errors on the auxiliary rows for one threshold of the features and each of the target."""
    d = x.shape[1]
    clipped = np.clip(x, -p, p)
    bounds = np.column_stack([np.full((len(targets), d), p), targets])
    fourth = box_sensitivity(bounds)[:, None, None] ** 4
    U, V = symmetric(noise[:, : -d or None], d), noise[:, -d:]
    xx = clipped.T @ clipped + U * fourth[..., None]  # (targets, draws, d, d)
    xy = (clipped.T @ np.clip(y[:, None], -targets, targets)).T[:, None] + V * fourth
    beta = np.linalg.solve(xx + np.eye(d), xy[..., None])[..., 0]
    predicted = np.tensordot(beta, x[:_TEST_ROWS], axes=(-1, 1))
    return np.asarray(np.abs(predicted - y[:_TEST_ROWS]).mean(axis=(1, 2)))


def maes(
    train: Array, test: Array, epsilon: float, chosen: tuple[float, float], rng: np.random.Generator
) -> dict[str, float]:
    """Return each method's mean absolute error on rows of scaled columns, the target last, shapes ``(n, d + 1)``."""
    n, columns = train.shape
    multiples = np.array([chosen[0]] * (columns - 1) + [chosen[1]])
    whole, rest = classical_sigma(epsilon), classical_sigma((1 - STD_SHARE) * epsilon, (1 - STD_SHARE) * DELTA)
    of_squares, shares = classical_sigma(STD_SHARE * epsilon, STD_SHARE * DELTA), sqrt(n / (n - 1))
    # Here, too, the trusted aggregator assumes a bound of 5 and does not clip to it.
    sigma = of_squares * std_sensitivity(columns - 1, UNCLIPPED_BOUND) / n
    trusted = multiples * np.sqrt(positive(train.var(axis=0) + sigma * rng.standard_normal(columns)))
    sigma = of_squares * std_sensitivity(columns - 1) * shares
    squares = (np.clip(train, -BOUND, BOUND) ** 2).sum(axis=0) + sigma * rng.standard_normal(columns)
    distributed = np.minimum(multiples * np.sqrt(positive(squares / n)), BOUND)

    def error(limit: Array | None, sigma: float) -> float:
        rows = train if limit is None else np.clip(train, -limit, limit)
        bounds = np.full(columns, UNCLIPPED_BOUND) if limit is None else limit
        return _mae(rows, test, sigma * float(box_sensitivity(bounds)), rng)

    return {
        "NP": error(None, 0),
        "proj NP": error(distributed, 0),
        "TA": error(None, whole),
        "DDP": error(None, whole * shares),
        "input perturbed": error(None, whole * sqrt(n)),
        "proj TA": error(trusted, rest),
        "proj DDP": error(distributed, rest * shares),
        "zero predictor": float(np.abs(test[:, -1]).mean()),
    }


def positive(variances: Array) -> Array:
    """Replace variances that the noise made negative by 0.5 (supplement, section 2)."""
    return np.where(variances > 0, variances, REPLACEMENT)


def _mae(rows: Array, test: Array, sigma: float, rng: np.random.Generator) -> float:
    x, y = rows[:, :-1], rows[:, -1]
    n, d = x.shape
    noise = sigma * rng.standard_normal(d * (d + 1) // 2 + d)
    statistics = SufficientStatistics(n, x.T @ x + symmetric(noise[:-d], d), x.T @ y + noise[-d:])
    fitted = posterior(statistics, 1.0, 1.0, repair="absolute", noise_in_spread=False)  # λ = λ₀ = 1
    return float(np.abs(test[:, :-1] @ fitted.mean - test[:, -1]).mean())
