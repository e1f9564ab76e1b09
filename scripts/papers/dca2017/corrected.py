"""The published configuration with its faults corrected and nothing else changed; by rounds, and over many draws.

Bounds of ±7.5 hold, because every client projects its row to them. Sensitivities are right: supplement eq. (12) for the
regression, which has neither intercept nor y², and √(d + 1) c² for the sums of squares. The noise is that of the exact
(analytic) Gaussian mechanism. 30 % of ε and of δ pay for the standard deviations, 70 % for the regression. The
threshold search uses the noise of the second round: eqs. (4) to (6), λ = λ₀ = 1, 20 repeats, a grid of 20 points from
0.1 to 2.1. The caller chooses how search and regression repair an indefinite matrix. `Accounting` replaces parts of the
configuration by ours, one after the other, to show which of them help.

The ideal functionality runs the rounds. Its noise follows the tighter sensitivity that the protocol knows; a smaller ε
raises it to what eq. (12) requires.

**Paired.** `corrected_errors` and `our_errors` use the same unit normals, so that the comparison is paired by draw. The
former adds them, times the protocol's standard deviation (N clients, T = 0), to exact sums. But for rounding to a grid,
the ideal functionality does the same, as a test confirms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ldexp, sqrt

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import RoundRequest
from dca_proto.jobs.job import FRACTION_BITS
from dca_proto.privacy.accounting import epsilon_of, mu_of
from dca_proto.privacy.budget import Budget
from dca_proto.statistics import Regression
from dca_proto.statistics.contribution import client_sensitivity
from emulator.inexact import RoundedGaussian
from inference.locate import LEVELS
from inference.models.linear.closed_form import SufficientStatistics, posterior, symmetric, unpack
from inference.models.linear.job import regression_with_projection
from inference.problem import Array, Problem, Schema
from inference.rounds import run
from papers.dca2017.data import BOUND, DELTA
from papers.dca2017.published import SEARCH_REPEATS, STD_SHARE, box_sensitivity, positive
from papers.dca2017.rounds import DISTRIBUTED, Hold, swarm

THRESHOLDS = np.linspace(0.1, 2.1, 20)
_ROWS_MAX, _TEST_ROWS = 1000, 500  # of the auxiliary data; sums of more rows are scaled up from these
JOINT_SHARE = 0.1  # the standard deviations' share of μ², the squared Gaussian DP parameter
_AT_ONCE = 20  # draws at once, so that their projected rows fit into a cache

Run = Callable[[Array, Array], Array]
"""Errors ``(draws,)`` for unit normals of the two rounds, each ``(draws, terms or more)``."""


def shares(epsilon: float) -> tuple[Budget, Budget]:
    """Return (ε, δ) of the two rounds, divided as published; joint accounting would allow more."""
    first = Budget(STD_SHARE * epsilon, STD_SHARE * DELTA)
    return first, Budget((1 - STD_SHARE) * epsilon, (1 - STD_SHARE) * DELTA)


@dataclass(frozen=True)
class Accounting:
    """The noise of a trusted aggregator in the two rounds; by default that of the corrected configuration."""

    joint: bool = False  # both rounds share one μ², of which the first has `JOINT_SHARE`
    tight: bool = False  # the regression has the least known sensitivity, not that of eq. (12)

    def squares_std(self, epsilon: float, columns: int) -> float:
        """Return the standard deviation in each of the first round's sums of squares; `columns` include the target."""
        return sqrt(columns) * BOUND**2 / self._mus(epsilon)[0]

    def std(self, epsilon: float, limits: Array) -> Array:
        """Return the standard deviation in each coordinate of the second round, for bounds ``(..., d + 1)``."""
        sensitivity = least_sensitivity(limits) if self.tight else box_sensitivity(limits)
        return sensitivity / self._mus(epsilon)[1]

    def _mus(self, epsilon: float) -> tuple[float, float]:
        if self.joint:
            whole = mu_of(epsilon, DELTA)
            return whole * sqrt(JOINT_SHARE), whole * sqrt(1 - JOINT_SHARE)
        first, second = shares(epsilon)
        return mu_of(first.epsilon, first.delta), mu_of(second.epsilon, second.delta)


SEPARATE = Accounting()


def least_sensitivity(limits: Array) -> Array:
    """Return Σ c_j², or 2 c_y √(Σ c_x²) if c_y² > Σ c_x²: without y², for bounds ``(..., d + 1)``."""
    x, y = (limits[..., :-1] ** 2).sum(axis=-1), limits[..., -1] ** 2
    return np.asarray(np.where(y > x, 2 * np.sqrt(x * y), x + y))


def search(
    n: int, features: int, epsilon: float, repair: str, rng: np.random.Generator, accounting: Accounting = SEPARATE
) -> tuple[float, float]:
    """Return the thresholds of features and target, in standard deviations, with the smallest mean absolute error."""
    d, k = features, min(n, _ROWS_MAX)
    x, x_test = rng.standard_normal((k, d)), rng.standard_normal((_TEST_ROWS, d))  # (4)
    beta = rng.standard_normal((SEARCH_REPEATS, d))  # (5)
    y, y_test = (rows @ beta.T + rng.standard_normal((len(rows), SEARCH_REPEATS)) for rows in (x, x_test))  # (6)
    noise = rng.standard_normal((SEARCH_REPEATS, 1, d * (d + 1) // 2 + d))
    spread = np.sqrt((beta**2).sum(axis=1) + 1)  # of each draw's target
    targets = THRESHOLDS * spread[:, None]  # (draws, g)
    xy_of = np.clip(y.T[:, None, :], -targets[..., None], targets[..., None])  # (draws, g, k)
    errors = []
    for p in THRESHOLDS:
        clipped = np.clip(x, -p, p)
        bounds = np.concatenate([np.full((*targets.shape, d), p), targets[..., None]], axis=-1)
        std = accounting.std(epsilon, bounds)
        added = noise * std[..., None]
        xx = clipped.T @ clipped * (n / k) + symmetric(added[..., :-d], d)
        noisy = SufficientStatistics(n, xx, xy_of @ clipped * (n / k) + added[..., -d:], None, std**2)
        missed = np.abs(fit(noisy, repair) @ x_test.T - y_test.T[:, None, :]).mean(axis=-1)
        errors.append((missed / spread[:, None]).mean(axis=0))
    best, best_target = np.unravel_index(np.argmin(errors), (len(THRESHOLDS), len(THRESHOLDS)))
    return float(THRESHOLDS[best]), float(THRESHOLDS[best_target])


def fit(statistics: SufficientStatistics, repair: str) -> Array:
    """Return β̂ with λ = λ₀ = 1, shape ``(..., d)``."""
    return np.asarray(posterior(statistics, 1.0, 1.0, repair=repair).mean)


def limits_of(squares: Array, n: int, chosen: tuple[float, float]) -> Array:
    """Return projection bounds ``(..., d + 1)`` for noisy sums of squares and the chosen multiples, at most 7.5."""
    multiples = np.array([chosen[0]] * (squares.shape[-1] - 1) + [chosen[1]])
    return np.asarray(np.minimum(multiples * np.sqrt(positive(squares / n)), BOUND))


def regression(
    schema: Schema, hold: Hold, epsilon: float, repair: str, chosen: tuple[float, float] | None = None
) -> Array:
    """Return β̂ of Algorithm 2 for chosen thresholds: standard deviations, then the regression of projected rows.

    Without thresholds, run one round within ±7.5. The regression's round gets a smaller ε, at which the noise for the
    tight sensitivity equals that of eq. (12) at the round's share.
    """
    limits, budget = np.full(len(schema.columns), BOUND), Budget(epsilon, DELTA)
    if chosen is not None:
        first, budget = shares(epsilon)
        squares = hold(RoundRequest("second-moments", _parameters(schema, limits)), first)
        limits = limits_of(squares.value, squares.contributors, chosen)
    ratio = tight_sensitivity(schema, limits) / float(box_sensitivity(limits))
    smaller = Budget(epsilon_of(mu_of(budget.epsilon, budget.delta) * ratio, budget.delta), budget.delta)
    released = hold(RoundRequest("regression", _parameters(schema, limits)), smaller)
    return fit(unpack(released.value, len(schema.features), released.contributors, released.noise_variance), repair)


def predictions(schema: Schema, beta: Array, X: Array) -> Array:
    """Return ŷ = xᵀβ̂ in target units, for rows in their own units, which are not projected."""
    z = (X - schema.centres[:-1]) / tenths(schema)[:-1]
    return np.asarray(schema.centres[-1] + tenths(schema)[-1] * (z @ beta))


def tenths(schema: Schema) -> Array:
    """Return a tenth of each column's range: the unit of the paper's scale."""
    return np.asarray(schema.half_widths / BOUND)


def tight_sensitivity(schema: Schema, limits: Array) -> float:
    """Return the regression's sensitivity as the protocol computes it."""
    ones, zeros = (1.0,) * limits.size, (0.0,) * limits.size
    bound = tuple(float(one) for one in limits)
    statistic = Regression(columns=schema.columns, centre=zeros, scale=ones, bound=bound)
    return ldexp(client_sensitivity(statistic, 0, FRACTION_BITS).l2, -FRACTION_BITS)


def _parameters(schema: Schema, limits: Array) -> dict[str, object]:
    centre, scale, bound = ([float(one) for one in values] for values in (schema.centres, tenths(schema), limits))
    return {"columns": list(schema.columns), "centre": centre, "scale": scale, "bound": bound}


def paired_errors(runs: Mapping[str, Run], columns: int, draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """Return each run's mean absolute errors for the same unit normals, each of shape ``(draws,)``.

    Args:
        columns: number of columns, including the target.
    """
    first = rng.standard_normal((draws, 2 * LEVELS * columns))
    second = rng.standard_normal((draws, (columns * (columns + 1) // 2) + columns + 1))
    parts = [slice(start, start + _AT_ONCE) for start in range(0, draws, _AT_ONCE)]
    return {name: np.concatenate([run(first[one], second[one]) for one in parts]) for name, run in runs.items()}


def corrected_errors(
    train: Problem,
    test: Problem,
    epsilon: float,
    chosen: tuple[float, float],
    repair: str,
    accounting: Accounting,
    first: Array,
    second: Array,
) -> Array:
    """Return the corrected configuration's errors in target units; normals have shape ``(draws, terms or more)``."""
    widths = tenths(train.schema)
    z, z_test = ((one.rows - one.schema.centres) / widths for one in (train, test))
    n, columns = z.shape
    d, terms = columns - 1, columns * (columns - 1) // 2 + columns - 1
    spread = sqrt(n / (n - 1))
    squares = (np.clip(z, -BOUND, BOUND) ** 2).sum(axis=0)
    squares = squares + spread * accounting.squares_std(epsilon, columns) * first[:, :columns]
    limits = limits_of(squares, n, chosen)
    std = spread * accounting.std(epsilon, limits)
    noise = second[:, :terms] * std[:, None]
    projected = np.clip(z, -limits[:, None, :], limits[:, None, :])
    sums = np.swapaxes(projected, 1, 2) @ projected
    xx, xy = sums[:, :d, :d] + symmetric(noise[:, :-d], d), sums[:, :d, d] + noise[:, -d:]
    beta = fit(SufficientStatistics(n, xx, xy, None, std**2), repair)
    return np.asarray(widths[-1] * np.abs(beta @ z_test[:, :d].T - z_test[:, d]).mean(axis=1))


def our_errors(train: Problem, test: Problem, epsilon: float, repair: str, first: Array, second: Array) -> Array:
    """Return the errors of our Algorithm 2 in target units; normals have shape ``(draws, terms or more)``."""
    errors = []
    for normals in zip(first, second, strict=True):
        rounds = swarm(train, Budget(epsilon, DELTA), DISTRIBUTED, 0, "given", Given(normals))
        fitted = run(regression_with_projection(train.schema, repair=repair), rounds)
        errors.append(float(np.abs(fitted.predict(test.X)[0] - test.y).mean()))
    return np.array(errors)


class Given(RoundedGaussian):
    """The emulation's noise from given unit normals, one array for each round in turn."""

    def __init__(self, normals: Iterable[Array]) -> None:
        self._normals = iter(normals)

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        return np.rint(next(self._normals)[:dimension] * sqrt(variance)).astype(np.int64)
