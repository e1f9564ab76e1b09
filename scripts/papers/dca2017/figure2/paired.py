"""The corrected configuration and ours over many draws of the noise, computed at once without encoding.

For each draw: exact sums of the projected rows, plus unit normals times the protocol's standard deviation (N clients, T
= 0). For the same normals that is what the ideal functionality makes of them but for rounding to its grid, and a test
says so. All methods use the same normals, so that the comparison is paired by draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt

import numpy as np

from dca_proto.privacy.accounting import mu_of
from inference.models.linear.closed_form import SufficientStatistics, posterior, symmetric
from inference.models.linear.complete_rows import counted
from inference.models.linear.projection import prior_precision
from inference.models.linear.two_rounds import INTERCEPT_BOUND, STD_SHARE, box_sensitivity
from inference.problem import Problem
from inference.scale import FREE_BOUND, marginals
from papers.dca2017.figure2 import corrected
from papers.dca2017.figure2.data import BOUND, DELTA, Array
from papers.dca2017.figure2.ours import moments_sensitivity

_AT_ONCE = 20  # draws, so that the projected rows of all fit into a cache


Run = Callable[[Array, Array], Array]
"""Errors ``(draws,)`` for unit normals of the two rounds, each ``(draws, terms or more)``."""


def paired_errors(runs: Mapping[str, Run], columns: int, draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """What each of the runs makes of the same unit normals: mean absolute errors, each of shape ``(draws,)``.

    Args:
        columns: of the data, with the target.
    """
    first = rng.standard_normal((draws, 2 * columns))
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


def our_errors(
    train: Problem, test: Problem, epsilon: float, chosen: Array, repair: str, first: Array, second: Array
) -> Array:
    """Those of Algorithm 2 as this library has it, in target units, for unit normals ``(draws, terms)``."""
    schema, widths = train.schema, train.schema.half_widths
    z, z_test = (_standardised(one, widths) for one in (train, test))
    n = len(z)
    per_sensitivity = sqrt(n / (n - 1)) / mu_of(epsilon, DELTA)
    variance = (per_sensitivity * moments_sensitivity(schema)) ** 2 / STD_SHARE
    inside = FREE_BOUND * np.clip(z, -1, 1)
    offsets, stds = marginals(np.r_[inside.sum(axis=0), (inside**2).sum(axis=0)] + sqrt(variance) * first, n, variance)
    std = per_sensitivity * box_sensitivity((INTERCEPT_BOUND, *chosen)) / sqrt(1 - STD_SHARE)
    sums = gram(z, stds * chosen, offsets, constant=INTERCEPT_BOUND)
    inner = np.column_stack([np.ones(len(stds)), stds])
    statistics = _with_noise(sums / (inner[:, :, None] * inner[:, None, :]), std * second, n, std**2)
    beta = posterior(statistics, prior_precision(len(widths) - 1), repair=repair).mean
    draws = zip(beta, offsets, stds, strict=True)
    return np.array([widths[-1] * _missed(z_test - offset, one, std, chosen) for one, offset, std in draws])


def _with_noise(sums: Array, noise: Array, n: int, variance: float) -> SufficientStatistics:
    """Statistics of (constant, features, target) from their exact sums of products."""
    m = sums.shape[-1] - 1
    unique = m * (m + 1) // 2
    xx = sums[:, :m, :m] + symmetric(noise[:, :unique], m)
    xy, yy = sums[:, :m, m] + noise[:, unique : unique + m], sums[:, m, m] + noise[:, unique + m]
    return counted(SufficientStatistics(n, xx, xy, yy, variance), INTERCEPT_BOUND)


def _missed(z_test: Array, beta: Array, stds: Array, chosen: Array) -> float:
    limits = (stds * chosen)[:-1]
    x = np.clip(z_test[:, :-1], -limits, limits)
    predicted = stds[-1] * (beta[0] * INTERCEPT_BOUND + x @ (beta[1:] / stds[:-1]))
    return float(np.abs(predicted - z_test[:, -1]).mean())


def gram(rows: Array, limits: Array, offsets: Array | None = None, *, constant: float | None = None) -> Array:
    """Σ zzᵀ of rows ``(n, c)`` less each of the offsets, projected to each of the limits, both ``(draws, c)``.

    Args:
        constant: of a feature that comes first; None for none.
    """
    centred = rows if offsets is None else rows - offsets[:, None, :]
    projected = np.clip(centred, -limits[:, None, :], limits[:, None, :])
    if constant is not None:
        projected = np.insert(projected, 0, constant, axis=2)
    summed: Array = np.swapaxes(projected, 1, 2) @ projected
    return summed


def _standardised(part: Problem, widths: Array) -> Array:
    rows: Array = (part.rows - part.schema.centres) / widths
    return rows
