"""Phases at doubling frequencies: what they say of a column, and that no two rows are further apart than stated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dca_proto.crypto.fixedpoint import dequantise
from dca_proto.errors import UsageError
from dca_proto.statistics import Phases

F = 24


def of_columns(*bounds: float, levels: int) -> Phases:
    n = len(bounds)
    named: dict[str, Any] = {"columns": tuple(f"c{j}" for j in range(n)), "centre": (0.0,) * n, "scale": (1.0,) * n}
    return Phases(**named, bound=bounds, levels=levels)


def test_the_mean_is_the_characteristic_function() -> None:
    statistic = Phases(columns=("a", "b"), centre=(1.0, 0.0), scale=(2.0, 1.0), bound=(9.0, 9.0), levels=3)
    rows = np.random.default_rng(1).normal([1.5, 0.3], [1.0, 0.5], (100_000, 2))
    value = dequantise(statistic.evaluate(rows, F).sum(axis=0), F)
    levels = 2.0 ** np.arange(3)
    mean, sd = np.array([0.25, 0.3])[:, None], np.array([0.5, 0.5])[:, None]
    expected = np.exp(1j * levels * mean - (levels * sd) ** 2 / 2)
    np.testing.assert_allclose(statistic.unpack(value) / len(rows), expected, atol=0.02)  # 6 standard errors
    assert statistic.labels()[0] == "cos 1·a"
    assert statistic.labels()[-1] == "sin 4·b"
    assert len(statistic.labels()) == statistic.dimension


@pytest.mark.parametrize("levels", range(1, 11))
def test_no_two_values_are_further_apart_than_stated(levels: int) -> None:
    """Every pair of a grid of 4,001 values of one column: the distance depends on their difference alone."""
    statistic, unit = of_columns(math.pi, levels=levels), 2.0**F
    values = statistic.evaluate(np.linspace(-math.pi, math.pi, 4001)[:, None], F).astype(np.float64)
    squared = ((values - values[0]) ** 2).sum(axis=1).max()
    stated = statistic.row_sensitivity(F)
    assert squared <= stated.l2_squared
    assert stated.l2_squared <= squared + (4 / 3 + 0.01) * unit**2  # 3K is attained
    assert np.abs(values - values[0]).sum(axis=1).max() <= stated.l1
    assert (values**2).sum(axis=1).max() <= stated.l2_squared  # a missing row
    assert np.abs(values).max() <= stated.bound


def test_columns_add_up_and_rounding_is_in_it_on_the_coarsest_grid() -> None:
    rng, statistic = np.random.default_rng(2), of_columns(3.0, 1.0, 2.0, levels=5)
    for fraction_bits in (0, 2, 4):
        left, right = (statistic.evaluate(rng.uniform(-3, 3, (100_000, 3)), fraction_bits) for _ in range(2))
        assert ((left - right) ** 2).sum(axis=1).max() <= statistic.row_sensitivity(fraction_bits).l2_squared
    alone = of_columns(3.0, levels=5).row_sensitivity(F).l2_squared
    assert statistic.row_sensitivity(F).l2_squared == pytest.approx(3 * alone, rel=1e-5)


def test_values_beyond_the_bound_count_as_the_bound() -> None:
    statistic = of_columns(1.0, levels=4)
    assert (statistic.evaluate(np.array([[1e300]]), F) == statistic.evaluate(np.array([[1.0]]), F)).all()


@pytest.mark.parametrize("levels", [0, 21])
def test_levels_have_a_range(levels: int) -> None:
    with pytest.raises(UsageError, match=f"levels is {levels}; give a whole number from 1 to 20"):
        of_columns(1.0, levels=levels)
