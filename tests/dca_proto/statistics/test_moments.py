"""The first two moments in one round: what they say, and that squares are free up to the bound that is claimed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dca_proto.crypto.fixedpoint import dequantise
from dca_proto.statistics import Moments, Sum
from dca_proto.statistics.contribution import client_sensitivity, contribution
from dca_proto.statistics.moments import FREE_BOUND

F = 24
GOLDEN = (1 + math.sqrt(5)) / 2


def a_box(*bounds: float, centre: float = 0.0, scale: float = 1.0) -> dict[str, Any]:
    n = len(bounds)
    return {
        "columns": tuple(f"c{j}" for j in range(n)),
        "centre": (centre,) * n,
        "scale": (scale,) * n,
        "bound": bounds,
    }


def test_they_give_means_and_mean_squares_in_the_units_of_the_data() -> None:
    rows = np.random.default_rng(3).uniform(-2, 3, size=(200, 2)) * np.array([1.0, 10.0])
    statistic = Moments(
        columns=("a", "b"), centre=(0.5, 5.0), scale=(2.5 / FREE_BOUND, 25 / FREE_BOUND), bound=(FREE_BOUND,) * 2
    )
    value = dequantise(sum(contribution(statistic, row[None], 1, F) for row in rows), F)
    mean, square = np.split(statistic.estimate(value, 200), 2)
    # A row is rounded by half of 2^-12 of its scale at most, and so are the means.
    np.testing.assert_allclose(mean, rows.mean(axis=0), atol=25 / FREE_BOUND * 2.0**-13)
    np.testing.assert_allclose(square, np.square(rows - np.array([0.5, 5.0])).mean(axis=0), rtol=1e-3)
    assert statistic.labels() == ("a", "b", "a²", "b²")


def test_the_integers_are_exact() -> None:
    statistic = Moments(**a_box(1.0, 2.0))
    found = statistic.evaluate(np.array([[0.25, -7.0]]), F)
    assert found.tolist() == [[2**22, -(2**25), 2**20, 2**26]]


@pytest.mark.parametrize("fraction_bits", [0, 2, 4, 6])
def test_every_pair_of_rows_of_a_small_grid(fraction_bits: int) -> None:
    """Bounds of 1 to 24 grid units, from far below to far above the free one; no search: all pairs, zero among them."""
    unit = 2 ** (fraction_bits // 2)
    for limit in range(1, 25):
        statistic = Moments(**a_box(limit / unit))
        rows = np.arange(-limit, limit + 1)[:, None] / unit
        values = statistic.evaluate(rows, fraction_bits)
        apart = values[:, None] - values
        widest = int((apart**2).sum(axis=2).max())
        stated = statistic.row_sensitivity(fraction_bits)
        assert widest <= stated.l2_squared
        assert np.abs(apart).sum(axis=2).max() == stated.l1
        assert np.abs(values).max() == stated.bound
        free = 4 * (limit / unit) ** 2 <= GOLDEN**5
        assert not free or widest == stated.l2_squared == (2 * limit * unit) ** 2
        assert free or widest >= stated.l2_squared * (1 - 1 / limit**2), "a maximum between grid points"


def test_squares_are_free_up_to_the_free_bound_and_no_further() -> None:
    assert 0.999 * math.sqrt(GOLDEN**5 / 4) < FREE_BOUND <= math.sqrt(GOLDEN**5 / 4)
    for bounds in ((1.0,), (FREE_BOUND,), (0.1, 1.0, FREE_BOUND)):
        both, linear = (client_sensitivity(kind(**a_box(*bounds)), 1, F).l2 for kind in (Moments, Sum))
        assert both == pytest.approx(linear, rel=1e-3)  # of the one, the bound is cut to half of the bits
    above = client_sensitivity(Moments(**a_box(FREE_BOUND + 0.01)), 1, F).l2
    assert above > math.ldexp(2 * (FREE_BOUND + 0.01), F) * (1 + 1e-6)


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (FREE_BOUND, 0.4), (2.5, 1.0), (7.5, 0.01, 3.0)])
def test_no_two_rows_exceed_it_and_some_attain_it(bounds: tuple[float, ...]) -> None:
    """A column's distance depends on that column alone, so a fine grid of pairs of each is a search of all."""
    square = 0.0
    for bound in bounds:
        x = np.linspace(-bound, bound, 1501)
        t, s = x[:, None] - x, x[:, None] + x
        square += float((t**2 * (1 + s**2)).max())
    stated = math.ldexp(client_sensitivity(Moments(**a_box(*bounds)), 1, F).l2, -F)
    assert 0.999 * stated <= math.sqrt(square) <= stated * (1 + 2.0**-10)  # the bounds are cut to the grid
