"""The statement of a verified sum: the whole points of a statistic's range, and nothing beyond it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from exact_rounds import aggregate

from dca_proto.aggregate import RoundRequest
from dca_proto.errors import ImplausibleSum, UsageError
from dca_proto.plausibility import checked
from dca_proto.statistics import Statistic, registered, resolve
from dca_proto.statistics.base import _REGISTRY
from dca_proto.statistics.contribution import client_sensitivity, contribution
from dca_proto.statistics.statement import fine_bits, moved, range_statement

BITS = 6
BOXED = [one for name in registered() for one in _REGISTRY[name].examples() if one.is_boxed]


def rows_of(statistic: Statistic, count: int) -> np.ndarray:
    """Rows within the ranges of columns, at their ends and beyond, some with a missing value."""
    rng = np.random.default_rng(5)
    ranges = [statistic.ranges().get(column, (-9.0, 9.0)) for column in statistic.columns]
    low, high = np.array(ranges).T
    rows = rng.choice([*np.linspace(-0.5, 1.5, 9)], (count, len(low))) * (high - low) + low
    rows[rng.random(rows.shape) < 0.1] = np.nan
    whole = rng.random(count) < 0.5
    rows[whole] = np.rint(rows[whole])
    return rows


def test_sums_histograms_and_survival_counts_are_verified_and_others_refused() -> None:
    names = {one.name for one in BOXED}
    assert names == {"histogram", "mean", "sum", "survival"}
    for name in set(registered()) - names:
        for one in _REGISTRY[name].examples():
            with pytest.raises(UsageError, match="cannot be verified: its numbers do not each have bounds"):
                range_statement(one, 1, BITS)


@pytest.mark.parametrize("statistic", BOXED, ids=lambda one: one.name)
@pytest.mark.parametrize("rows_max", [1, 3])
def test_the_statement_holds_for_all_contributions(statistic: Statistic, rows_max: int) -> None:
    statement = range_statement(statistic, rows_max, BITS)
    statement.check(2)
    rows = rows_of(statistic, 300)
    values = [contribution(statistic, rows[at : at + rows_max], rows_max, BITS) for at in range(300 - rows_max)]
    assert all(statement.holds(value) for value in values)
    assert not statement.holds(statement.clipped(np.full(statistic.dimension, 1 << 20)) + 1)


@pytest.mark.parametrize("statistic", BOXED, ids=lambda one: one.name)
def test_no_two_points_of_a_statement_are_farther_apart_than_the_sensitivity(statistic: Statistic) -> None:
    """Vertices of the range are found by linear programs in random directions: the sensitivity is theirs."""
    from scipy.optimize import linprog

    statement = range_statement(statistic, 1, BITS)
    lows, highs = np.array(statement.lows), np.array(statement.lows) + statement.sizes
    weights = np.array([limit.weights for limit in statement.limits]).reshape(-1, len(lows))
    low = np.array([limit.low for limit in statement.limits])
    high = low + [limit.size for limit in statement.limits]
    rng = np.random.default_rng(6)
    directions = [*np.eye(len(lows)), *-np.eye(len(lows)), *rng.normal(size=(30, len(lows)))]
    ends = [
        linprog(one, np.vstack([weights, -weights]), np.r_[high, -low], bounds=[*zip(lows, highs, strict=True)]).x
        for one in directions
    ]
    apart = max(float(np.sum((a - b) ** 2)) for a in ends for b in ends)
    assert apart <= client_sensitivity(statistic, 1, BITS).l2_squared * (1 + 1e-9)


def test_a_limit_that_means_of_rows_may_break_is_refused() -> None:
    votes = resolve("histogram", {"columns": ["x"], "edges": [0.0, 1.0, 2.0]})
    with pytest.raises(UsageError, match="can be verified as a sum of rows only: give rows_max"):
        range_statement(votes, 0, BITS)


@pytest.mark.parametrize("rows_max", [1, 3])
@pytest.mark.parametrize("weight", [0.0, 1.732])
@pytest.mark.parametrize("bits", [2, 4])
def test_on_a_coarse_grid_no_value_at_its_ends_is_clipped(bits: int, weight: float, rows_max: int) -> None:
    """A grid that lacks the ends of a range may move no client's value: all would move alike."""
    columns = {"columns": ["x", "y"], "centre": [0.0, 0.0], "scale": [1.0, 1.0], "bound": [0.7, 3.1]}
    statistic = resolve("mean", {**columns, "count_weight": weight})
    statement, fine = range_statement(statistic, rows_max, bits), fine_bits(bits)
    rows = rows_of(statistic, 100)
    for at in range(100 - rows_max):
        value = contribution(statistic, rows[at : at + rows_max], rows_max, fine)
        for dither in (0, 1 << 15, (1 << 16) - 1):
            assert statement.holds(value + dither >> fine - bits)
    reach = moved(statistic, rows_max, bits)
    exact = client_sensitivity(statistic, rows_max, 40).l2 / 2.0 ** (40 - bits)
    assert reach.is_rounded
    assert reach.sensitivity == pytest.approx(exact, rel=1e-4)


def test_a_verified_sum_on_a_coarse_grid_is_possible() -> None:
    """A count of weight 5.477 sums up to more than 21 units of 1/4 for each row, which is where that grid ends."""
    statistic = {"columns": ("x",), "centre": (0.0,), "scale": (1.0,), "bound": (1.0,), "count_weight": 5.477}
    request, value = RoundRequest("mean", statistic, rows_max=3), np.array([0.0, 3 * 5.477 * 20_000])
    known = aggregate(value, 200.0, request, 20_000)
    verified = dataclasses.replace(known, rows_max=3, fraction_bits=2, verified=True)
    assert checked(verified).doubts == ()
    impossible = dataclasses.replace(verified, value=verified.value * 1.03)
    with pytest.raises(ImplausibleSum, match="outside its bounds"):
        checked(impossible)
