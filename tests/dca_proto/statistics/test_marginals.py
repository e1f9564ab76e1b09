"""Counts in the cells of marginals: beside NumPy's histograms, with missing values; the sensitivity is attained."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from exact_rounds import aggregate

from dca_proto.aggregate import RoundRequest
from dca_proto.errors import ImplausibleSum, UsageError
from dca_proto.plausibility import checked
from dca_proto.statistics import Marginals
from dca_proto.statistics.contribution import contribution

BITS = 8
THREE: dict[str, Any] = {
    "columns": ("x", "k", "g"), "lower": (0.0, 1.0, 0.0), "upper": (8.0, 3.0, 1.0), "bins": (4, 0, 0)
}  # fmt: skip
PAIRS = Marginals(**THREE, marginals=((0,), (0, 1), (1, 2)), weights=(2, 3, 5))


def rows(n: int = 200) -> np.ndarray:
    rng = np.random.default_rng(4)
    return np.column_stack([rng.uniform(0, 8, n), rng.integers(1, 4, n), rng.integers(0, 2, n)]).astype(float)


def tables(found: np.ndarray) -> list[np.ndarray]:
    counts = PAIRS.estimate(found * 2.0**-BITS, 1)
    return [counts[part].reshape(PAIRS.shape(places)) for part, places in zip(PAIRS.slices, PAIRS.tables, strict=True)]


def test_counts_are_those_of_histograms() -> None:
    x, k, g = (given := rows()).T
    alone, first, second = tables(contribution(PAIRS, given, 10**6, BITS))
    assert alone.tolist() == [*np.histogram(x, [0, 2, 4, 6, 8])[0], 0]
    np.testing.assert_array_equal(first[:4, :3], np.histogram2d(x, k, [[0, 2, 4, 6, 8], [0.5, 1.5, 2.5, 3.5]])[0])
    np.testing.assert_array_equal(second[:3, :2], np.histogram2d(k, g, [[0.5, 1.5, 2.5, 3.5], [-0.5, 0.5, 1.5]])[0])
    assert first.sum() == second.sum() == len(given)


def test_a_value_that_is_missing_or_no_code_has_a_cell_of_its_own() -> None:
    alone, first, second = tables(contribution(PAIRS, np.array([[math.nan, 1.5, 9.0], [99.0, 2.0, 0.0]]), 10, BITS))
    assert alone.tolist() == [0, 0, 0, 1, 1], "a number beyond the bounds counts in the outer bin"
    assert first[4, 3] == first[3, 1] == 1
    assert second[3, 2] == second[1, 0] == 1


def test_two_rows_attain_the_sensitivity_and_none_exceeds_it() -> None:
    """All pairs of cells."""
    corners = np.array(list(product([1.0, 3.0, 5.0, 7.0, math.nan], [1.0, 2.0, 3.0, 0.0], [0.0, 1.0, 0.5])))
    whole = Marginals(**THREE, marginals=((0,), (1, 2), (0, 1, 2)), weights=(2, 3, 5))
    values = whole.evaluate(corners, BITS).astype(float)
    apart = values[:, None] - values
    stated = whole.row_sensitivity(BITS)
    assert np.square(apart).sum(axis=-1).max() == stated.l2_squared == 2 * (4 + 9 + 25) << 2 * BITS
    assert np.abs(apart).sum(axis=-1).max() == stated.l1 == 2 * (2 + 3 + 5) << BITS


def test_marginals_that_contradict_each_other_are_seen() -> None:
    """A client that adds 40 rows to one table alone."""
    value = contribution(PAIRS, rows(), 10**6, BITS).astype(float) * 2.0**-BITS
    request = RoundRequest(PAIRS.name, msgspec.to_builtins(PAIRS))
    assert checked(aggregate(value, 1.0, request, 200)).doubts == ()
    value[PAIRS.slices[1].start] += 40 * 3
    with pytest.raises(ImplausibleSum, match="x × k"):
        checked(aggregate(value, 1.0, request, 200))


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"bins": (4, 0)}, "one of each for each column"),
        ({"lower": (8.0, 1.0, 0.0)}, "the lower one first"),
        ({"lower": (0.0, 0.5, 0.0)}, "whole numbers"),
        ({"bins": (999, 0, 0)}, "1 to 256"),
        ({"upper": (5e-324, 3.0, 1.0)}, "too near"),
        ({"marginals": ((1, 0),)}, "increasing places"),
        ({"marginals": ((0, 3),)}, "increasing places"),
        ({"marginals": ((),)}, "increasing places"),
        ({"marginals": ((0,), (0,))}, "each once"),
        ({"weights": (1, 2)}, "2 weights of 3 marginals"),
        ({"weights": (1, 2, 0)}, "whole numbers"),
    ],
)
def test_parameters_are_checked(wrong: dict[str, Any], found: str) -> None:
    with pytest.raises(UsageError, match=found):
        Marginals(**{**THREE, **wrong})
