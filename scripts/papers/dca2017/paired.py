"""The corrected configuration and ours over many draws of the noise, the former computed at once without encoding.

For each draw of the former: exact sums of the projected rows, plus unit normals times the protocol's standard deviation
(N clients, T = 0). For the same normals that is what the ideal functionality makes of them but for rounding to its
grid, and a test says so. All methods use the same normals, so that the comparison is paired by draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dca_proto.privacy.budget import Budget
from emulator.inexact import RoundedGaussian
from inference.locate import LEVELS
from inference.models.linear.closed_form import SufficientStatistics, symmetric
from inference.models.linear.job import regression_with_projection
from inference.problem import Problem
from inference.rounds import run
from papers.dca2017 import corrected
from papers.dca2017.data import BOUND, DELTA, Array
from papers.dca2017.rounds import DISTRIBUTED, swarm

_AT_ONCE = 20  # draws, so that the projected rows of all fit into a cache


Run = Callable[[Array, Array], Array]
"""Errors ``(draws,)`` for unit normals of the two rounds, each ``(draws, terms or more)``."""


def paired_errors(runs: Mapping[str, Run], columns: int, draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """What each of the runs makes of the same unit normals: mean absolute errors, each of shape ``(draws,)``.

    Args:
        columns: of the data, with the target.
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
    accounting: corrected.Accounting,
    first: Array,
    second: Array,
) -> Array:
    """The corrected configuration's, in target units, for unit normals of its rounds ``(draws, terms or more)``."""
    z, z_test = (_standardised(one, corrected.tenths(train.schema)) for one in (train, test))
    n, columns = z.shape
    d, terms = columns - 1, columns * (columns - 1) // 2 + columns - 1
    shares = sqrt(n / (n - 1))
    squares = (np.clip(z, -BOUND, BOUND) ** 2).sum(axis=0)
    squares = squares + shares * accounting.squares_std(epsilon, columns) * first[:, :columns]
    limits = corrected.limits_of(squares, n, chosen)
    std = shares * accounting.std(epsilon, limits)
    noise = second[:, :terms] * std[:, None]
    sums = gram(z, limits)
    xx, xy = sums[:, :d, :d] + symmetric(noise[:, :-d], d), sums[:, :d, d] + noise[:, -d:]
    beta = corrected.fit(SufficientStatistics(n, xx, xy, None, std**2), repair)
    predicted = beta @ z_test[:, :d].T
    missed: Array = corrected.tenths(train.schema)[-1] * np.abs(predicted - z_test[:, d]).mean(axis=1)
    return missed


def our_errors(train: Problem, test: Problem, epsilon: float, repair: str, first: Array, second: Array) -> Array:
    """Those of Algorithm 2 as this library has it, in target units, for unit normals ``(draws, terms or more)``."""
    return np.array([_missed(train, test, epsilon, repair, pair) for pair in zip(first, second, strict=True)])


def _missed(train: Problem, test: Problem, epsilon: float, repair: str, normals: tuple[Array, Array]) -> float:
    rounds = swarm(train, Budget(epsilon, DELTA), DISTRIBUTED, 0, "given", Given(normals))
    fitted = run(regression_with_projection(train.schema, repair=repair), rounds)
    return float(np.abs(fitted.predict(test.X)[0] - test.y).mean())


class Given(RoundedGaussian):
    """The emulation's noise of given unit normals, one array for each round in turn."""

    def __init__(self, normals: Iterable[Array]) -> None:
        self._normals = iter(normals)

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        """As `RoundedGaussian.sample`."""
        return np.rint(next(self._normals)[:dimension] * sqrt(variance)).astype(np.int64)


def gram(rows: Array, limits: Array) -> Array:
    """Σ zzᵀ of rows ``(n, c)`` projected to each of the limits ``(draws, c)``."""
    projected = np.clip(rows, -limits[:, None, :], limits[:, None, :])
    summed: Array = np.swapaxes(projected, 1, 2) @ projected
    return summed


def _standardised(part: Problem, widths: Array) -> Array:
    rows: Array = (part.rows - part.schema.centres) / widths
    return rows
