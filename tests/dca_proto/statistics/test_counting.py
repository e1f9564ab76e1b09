"""Counts of complete rows: free up to a weight, exact in integers, and means of the rows that are there."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dca_proto.crypto.fixedpoint import dequantise
from dca_proto.errors import UsageError
from dca_proto.statistics import Gradient, Histogram, Mean, Moments, NestedCounts, SecondMoments, Sum
from dca_proto.statistics.base import _REGISTRY
from dca_proto.statistics.contribution import client_sensitivity, contribution
from dca_proto.statistics.counting import COMPLETE_ROWS, Counting, about_missing
from dca_proto.statistics.moments import FREE_BOUND

F = 24


def a_box(*bounds: float) -> dict[str, Any]:
    n = len(bounds)
    return {"columns": tuple(f"c{j}" for j in range(n)), "centre": (0.0,) * n, "scale": (1.0,) * n, "bound": bounds}


PLAIN: list[Any] = [
    Sum(**a_box(1.0)),
    Sum(**a_box(1.0, 3.0)),
    Mean(**a_box(2.0, 1.0), radius=1.5),
    Moments(**a_box(1.0)),
    Moments(**a_box(FREE_BOUND)),
    Moments(**a_box(1.0, 2.0)),
    Moments(**a_box(5.0)),
    SecondMoments(**a_box(1.0)),
    SecondMoments(**a_box(1.0, 3.0)),
    Histogram(columns=("x",), edges=(0.0, 1.0, 2.0)),
    Histogram(columns=("x",), edges=(0.0, 1.0)),
    Gradient(**a_box(1.0, 4.0), theta=(0.5,), clip=1.0),
    NestedCounts(columns=("x",), lower=-2.0, upper=2.0, levels=2),
]


def rows_of(statistic: Any) -> np.ndarray:
    """A grid of the box with its ends and middles, and points beside them."""
    bounds = getattr(statistic, "bound", (2.0,))
    axes = [np.unique(np.r_[np.linspace(-c, c, 41 if len(bounds) == 1 else 13), 0.0, c / 2**0.5]) for c in bounds]
    return np.array(list(itertools.product(*axes)))


def test_each_statistic_that_counts_is_tested() -> None:
    missing = {kind for kind in _REGISTRY.values() if issubclass(kind, Counting)} - {type(one) for one in PLAIN}
    assert not missing, "add an instance of each to PLAIN, for the tests of this file"


@pytest.mark.parametrize("bits", [0, 4, F])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, 1.7])
@pytest.mark.parametrize("plain", PLAIN)
def test_no_two_rows_nor_a_row_and_a_missing_one_are_further_apart(plain: Any, share: float, bits: int) -> None:
    """Weights below, at and above the free one; it is attained there by a missing row, and below by two others."""
    unit = 2.0**-bits
    counted = replace(plain, count_weight=max(share * plain.free_weight(bits), unit) if share else 0.0)
    values = np.vstack([counted.evaluate(rows_of(plain), bits), np.zeros((1, counted.dimension), dtype=np.int64)])
    stated = counted.row_sensitivity(bits)
    apart = values[:, None].astype(object) - values if bits == F else values[:, None] - values
    widest = int((apart**2).sum(axis=2).max())
    assert widest <= stated.l2_squared
    assert int(np.abs(apart).sum(axis=2).max()) <= stated.l1
    assert int(np.abs(values).max()) <= stated.bound
    if bits == F and not getattr(plain, "radius", None):
        assert widest >= 0.97 * stated.l2_squared


@pytest.mark.parametrize("bits", [0, 4, F])
@pytest.mark.parametrize("plain", PLAIN)
def test_the_free_weight_costs_nothing_and_more_does(plain: Any, bits: int) -> None:
    for l1 in (False, True):
        weight = plain.free_weight(bits, l1=l1)
        without = plain.row_sensitivity(bits)
        at, above = (replace(plain, count_weight=w).row_sensitivity(bits) for w in (weight, weight + 2.0 ** (1 - bits)))
        name = "l1" if l1 else "l2_squared"
        if weight > 2.0**-bits:
            assert getattr(at, name) == getattr(without, name)
        assert getattr(above, name) > getattr(without, name)


def test_free_weights_are_those_of_the_proofs() -> None:
    assert Sum(**a_box(1.0, 2.0)).free_weight(F) == pytest.approx(math.sqrt(3 * 5))
    assert Mean(**a_box(2.0, 2.0), radius=1.5).free_weight(F) == pytest.approx(math.sqrt(3) * 1.5)
    assert Sum(**a_box(1.0)).free_weight(F, l1=True) == pytest.approx(1.0)
    c = FREE_BOUND
    assert Moments(**a_box(c)).free_weight(F) == pytest.approx(math.sqrt(3 * c**2 - c**4 / 4), rel=5e-3)
    assert SecondMoments(**a_box(2.0)).free_weight(F) == pytest.approx(math.sqrt(3 / 4) * 4)
    assert Histogram(columns=("x",), edges=(0.0, 1.0, 2.0)).free_weight(F) == 1.0


def test_means_and_moments_are_those_of_complete_rows_whatever_rows_a_client_has() -> None:
    """Clients of one to three rows, and of none; a row with a missing value in either column is incomplete."""
    rng = np.random.default_rng(1)
    clients = [rng.uniform(1, 3, size=(1 + index % 3, 2)) for index in range(60)]
    for index in range(0, 60, 4):
        clients[index][0, index % 2] = np.nan
    box = {"columns": ("a", "b"), "centre": (5.0, 5.0), "scale": (5.0, 5.0), "bound": (1.0, 1.0), "count_weight": 1.0}
    weights = np.concatenate([np.full(len(rows), 1 / len(rows)) for rows in clients])
    table = np.concatenate(clients)
    complete = np.isfinite(table).all(axis=1)
    expected = np.average(table[complete], axis=0, weights=weights[complete])
    squares = np.average((table[complete] - 5) ** 2, axis=0, weights=weights[complete])
    for kind, means in ((Mean, expected), (SecondMoments, squares), (Moments, np.r_[expected, squares])):
        statistic = kind(**box)
        value = dequantise(sum(contribution(statistic, rows, 0, F) for rows in clients), F)
        found = statistic.estimate(value, 60)
        np.testing.assert_allclose(found[:-1], means, rtol=2e-3)
        assert found[-1] == pytest.approx(weights[complete].sum(), abs=1e-3)
        assert statistic.labels()[-1] == COMPLETE_ROWS
    total = Sum(**box)
    value = dequantise(sum(contribution(total, rows, 3, F) for rows in clients), F)
    np.testing.assert_allclose(total.estimate(value, 60), np.r_[table[complete].sum(axis=0), complete.sum()], rtol=1e-5)


def test_the_stated_noise_of_a_mean_holds_that_of_its_denominator() -> None:
    """Against 4,000 noisy sums; 5 standard errors of a standard deviation."""
    rng, n, sigma = np.random.default_rng(2), 500, 4.0
    statistic = Mean(columns=("x",), centre=(0.0,), scale=(10.0,), bound=(1.0,), count_weight=1.5)
    value = np.array([0.9 * 400, 1.5 * 400])
    _, stated = statistic.estimate_with_noise(value, n, sigma)
    found = np.std([statistic.estimate(value + sigma * rng.standard_normal(2), n) for _ in range(4000)], axis=0)
    np.testing.assert_allclose(found, stated, rtol=5 / math.sqrt(8000))
    assert stated[0] == pytest.approx(10 * sigma / 400 * math.hypot(1, 0.9 / 1.5), rel=1e-2)
    plain = replace(statistic, count_weight=0.0)
    assert plain.estimate_with_noise(value[:1], n, sigma)[1] == pytest.approx([10 * sigma / n])
    _, forecast = statistic.estimate_with_noise(statistic.zero_sum(n), n, sigma)
    assert forecast == pytest.approx([10 * sigma / n, sigma / 1.5], rel=1e-2)


def test_with_so_few_clients_that_the_count_is_noise_all_values_are_taken_to_be_there() -> None:
    statistic = Mean(columns=("x",), centre=(5.0,), scale=(5.0,), bound=(1.0,), count_weight=1.5)
    found, noise = statistic.estimate_with_noise(np.array([2.0, 1.5 * 3]), 40, 6.0)
    assert found == pytest.approx([5 + 5 * 2.0 / 40, 3.0])
    assert noise == pytest.approx([5 * 6.0 / 40, 6.0 / 1.5])
    assert statistic.estimate_with_noise(np.array([2.0, 1.5 * 30]), 400, 6.0)[0] == pytest.approx([5 + 5 * 2 / 30, 30])


def test_a_count_of_no_rows_or_fewer_gives_finite_numbers() -> None:
    for plain in PLAIN:
        statistic = replace(plain, count_weight=plain.free_weight(F))
        for size in (0.0, -1e6, 1e15):
            value = np.full(statistic.dimension, size)
            assert np.isfinite(statistic.estimate(value, 10)).all()
            assert np.isfinite(statistic.estimate_with_noise(value, 10, 0.1)).all()


def test_a_warning_names_the_missing_share_with_its_uncertainty_where_noise_lets_it_be_seen() -> None:
    assert about_missing(200.0, 5.0, 400) == (
        "about 50 % of the clients (48 to 52 %) seem to lack a value: the estimates are of the others; find out "
        "whether those differ",
    )
    assert about_missing(385.0, 5.0, 400) == (), "three standard deviations may be noise"
    assert about_missing(9990.0, 0.1, 10_000) == (), "a thousandth is nothing to warn of"
    assert about_missing(400.0, 0.0, 400) == ()
    assert about_missing(405.0, 0.0, 400) == ()
    (text,) = about_missing(-1e9, 5.0, 400, "a value of x", of="rows")
    assert text.startswith("about 100 % of the rows (100 to 100 %) seem to lack a value of x")


def test_weights_that_cannot_be_are_refused() -> None:
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match=f"count_weight is {wrong:g}; give a finite number above 0, or 0"):
            Sum(**a_box(1.0), count_weight=wrong)
    with pytest.raises(UsageError, match=r"count_weight 0\.25 is not between one grid unit, 1, and"):
        client_sensitivity(Sum(**a_box(1.0), count_weight=0.25), 1, 0)
    assert Histogram(columns=("x",), edges=(0.0, 1.0, 2.0), count_weight=1.0).categories == 0
