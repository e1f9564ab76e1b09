"""The statement of a verified sum: the whole points of a statistic's range, and nothing beyond it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from exact_rounds import aggregate

from dca_proto.aggregate import RoundRequest
from dca_proto.crypto.bounded import Statement
from dca_proto.errors import ImplausibleSum
from dca_proto.plausibility import checked
from dca_proto.statistics import Sensitivity, Statistic, resolve
from dca_proto.statistics.base import built_in
from dca_proto.statistics.contribution import client_sensitivity, contribution
from dca_proto.statistics.statement import (
    _farthest_apart,
    fine_bits,
    liar_factor,
    moved,
    proven_sensitivity,
    range_statement,
)
from dca_proto.statistics.value_range import Combinations, ValueRange, box

BITS = 6
ALL = [one for kind in built_in().values() for one in kind.examples()]
BOXED = [one for one in ALL if one.is_boxed]


def stated_factor(statistic: Statistic, rows_max: int, bits: int) -> float:
    return liar_factor(range_statement(statistic, rows_max, bits), statistic, rows_max, bits)


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


def test_of_which_statistics_a_liar_can_send_nothing_that_an_honest_client_cannot() -> None:
    assert {one.name for one in BOXED} == {"histogram", "mean", "sum", "survival"}


@pytest.mark.parametrize("statistic", ALL, ids=lambda one: one.name)
@pytest.mark.parametrize("groups", [0, 1, 3])
def test_the_statement_holds_for_all_contributions_however_they_are_rounded(statistic: Statistic, groups: int) -> None:
    """And two of one dither are apart by no more than the cost counts. Grids are coarse, so most values are rounded."""
    group = statistic.rows_per_value
    rows_max, rows = groups * group, rows_of(statistic, 40 * group)
    for bits in (2, BITS):
        statement, fine = range_statement(statistic, rows_max, bits), fine_bits(bits)
        statement.check(2)
        reach = moved(statistic, rows_max, bits)
        most = reach.sensitivity + math.sqrt(statistic.dimension) * reach.is_rounded
        stated = proven_sensitivity(statistic, rows_max, bits)
        assert most <= stated.l2 * (1 + 1e-9), "a result states what is charged"
        assert stated.l2 <= math.hypot(most, 1) * (1 + 1e-9), "rounded up to a whole square"
        values = [
            contribution(statistic, rows[at * group : (at + max(groups, 2)) * group], rows_max, fine)
            for at in range(38)
        ]
        for dither in (0, 1 << 15, (1 << fine - bits) - 1):
            rounded = np.array([value + dither >> fine - bits for value in values])
            assert all(statement.holds(value) for value in rounded)
            apart = rounded[:, None].astype(float) - rounded
            assert np.linalg.norm(apart, axis=2).max() <= most * (1 + 1e-9)
            assert abs(apart).sum(axis=2).max() <= stated.l1
        assert not statement.holds(statement.clipped(np.full(statistic.dimension, 1 << 20)) + 1)
        sizes = np.array(statement.sizes) - 2  # rounding outward adds up to a unit at each end
        exact = client_sensitivity(statistic, rows_max, fine).l2 / 2.0 ** (fine - bits)
        assert np.linalg.norm(np.maximum(sizes, 0)) <= _loosest(statistic, rows_max, bits) * exact * (1 + 1e-6)


def _loosest(statistic: Statistic, rows_max: int, bits: int) -> float:
    """How far intervals reach beyond an honest client; no figure if limits of combinations or the norm hold it."""
    holds = statistic.is_boxed and statistic.value_range(bits).combinations
    by_norm = range_statement(statistic, rows_max, bits).norm is not None
    return math.inf if holds or by_norm else stated_factor(statistic, rows_max, bits)


IN_BALL = [one for one in ALL if range_statement(one, one.rows_per_value, 8).norm is not None]


def test_which_statistics_lie_in_a_ball() -> None:
    """And those whose count is so heavy that rows in a box are in one beside it."""
    assert {one.name for one in IN_BALL} == {
        "category-score", "gradient", "mean", "moments", "phases", "second-moments", "sum", "survival-score"
    }  # fmt: skip
    assert all(one in IN_BALL for one in ALL if one.name in ("category-score", "gradient", "survival-score"))
    assert all((one in IN_BALL) == (one.radius is not None) for one in ALL if one.name in ("mean", "sum"))


@pytest.mark.parametrize("statistic", IN_BALL, ids=lambda one: one.name)
@pytest.mark.parametrize("rows_max", [0, 1, 3])
def test_with_a_norm_a_liar_gets_hardly_farther_than_an_honest_client(statistic: Statistic, rows_max: int) -> None:
    """Points of the statement that are far apart, found by a search, are no farther than stated."""
    bits = 8
    statement, factor = range_statement(statistic, rows_max, bits), stated_factor(statistic, rows_max, bits)
    assert statement.norm is not None
    assert 1 <= factor < 1.2
    count, rng = statement.norm.count, np.random.default_rng(7)
    honest = moved(statistic, rows_max, bits).sensitivity
    lows, sizes = np.array(statement.lows), np.array(statement.sizes)
    reached = 0.0
    for _ in range(40):
        ends = []
        for side in (1, -1):
            last = rng.choice([0.0, 0.1, 0.2, 0.3, 1.0]) if side < 0 and statement.norm.slope else 1.0
            x = np.zeros(len(lows), dtype=np.int64)
            x[count:] = np.floor(last * sizes[count:])
            length = math.sqrt(statement.norm.most + statement.norm.slope * x[-1] * (count < len(lows)))
            direction = rng.normal(size=count) if not ends else -ends[0][:count].astype(float)
            x[:count] = np.trunc(direction / np.linalg.norm(direction) * length)
            x = np.minimum(np.maximum(x, lows), lows + sizes)
            ends.append(x)
        if all(statement.holds(x) for x in ends):
            reached = max(reached, float(np.linalg.norm(ends[0] - ends[1])) / honest)
    assert reached <= factor
    for at in range(count):  # a corner of the box is outside, whatever is left of the others
        corner = lows + sizes
        corner[at] = lows[at]
        if (corner[:count] ** 2).sum() > statement.norm.most + statement.norm.slope * int(corner[-1]):
            assert not statement.holds(corner)


def test_beside_a_count_the_farthest_points_are_those_of_a_search() -> None:
    """|v|² <= s + t·c on a fine grid of c for both points, at the weight √3, whose width is 1.0253 times 2 radii."""
    for most, slope, last in ((0.0, 1 / math.sqrt(3), math.sqrt(3)), (0.3, 2.0, 1.5), (0.1, 0.2, 9.0), (1.0, 5.0, 0.1)):
        c = np.linspace(0, last, 1001)
        lengths = np.sqrt(most + slope * c)
        squares = (lengths[:, None] + lengths) ** 2 + (c[:, None] - c) ** 2
        assert _farthest_apart(most, slope, last) == pytest.approx(math.sqrt(squares.max()), rel=1e-5)
    assert _farthest_apart(0.0, 1 / math.sqrt(3), math.sqrt(3)) / 2 == pytest.approx(1.0253, abs=1e-4)
    assert _farthest_apart(9.0, 0.0, 5.0) == 6


@pytest.mark.parametrize("rows_max", [0, 1, 2])
def test_a_norm_has_room_for_the_rounding_of_rows_at_the_end_of_a_ball(rows_max: int) -> None:
    """Rows of the full length, of all directions, beside a count; in means, a part of them is missing."""
    d = 5
    columns = {"columns": [f"x{k}" for k in range(d)], "centre": [0.0] * d, "scale": [1.0] * d, "bound": [1.0] * d}
    statistic = resolve("mean", {**columns, "radius": 1.0, "count_weight": math.sqrt(3)})
    rng, least = np.random.default_rng(8), math.inf
    for bits in (2, 6, 10):
        statement, fine = range_statement(statistic, rows_max, bits), fine_bits(bits)
        assert statement.norm is not None
        for turn in range(200):
            rows = rng.normal(size=(1 + turn % 3, d))
            rows *= 1.1 / np.linalg.norm(rows, axis=1)[:, None]
            if turn % 2:
                rows = np.concatenate([np.repeat(rows[:1], 3, axis=0), np.full((turn % 4, d), np.nan)])
            value = contribution(statistic, rows, rows_max, fine)
            for dither in (0, 1 << 15, (1 << fine - bits) - 1):
                x = value + dither >> fine - bits
                assert statement.holds(x)
                left = statement.norm.most + statement.norm.slope * x[-1] - (x[:d] ** 2).sum()
                least = min(least, left / (statement.norm.most + statement.norm.slope * x[-1]))
    assert least < 0.05, "the room is not much wider than necessary"


def farthest_apart(statement: Statement) -> float:
    """Vertices of what a statement allows are found by linear programs in random directions."""
    from scipy.optimize import linprog

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
    return math.sqrt(max(float(np.sum((a - b) ** 2)) for a in ends for b in ends))


@pytest.mark.parametrize("statistic", BOXED, ids=lambda one: one.name)
def test_no_two_points_of_a_statement_are_farther_apart_than_the_sensitivity(statistic: Statistic) -> None:
    apart = farthest_apart(range_statement(statistic, 1, BITS))
    assert apart**2 <= client_sensitivity(statistic, 1, BITS).l2_squared * (1 + 1e-9)


@pytest.mark.parametrize("statistic", BOXED, ids=lambda one: one.name)
@pytest.mark.parametrize("rows_max", [0, 1])
def test_no_two_points_of_a_statement_that_rounding_does_not_leave_are_farther_apart_than_counted(
    statistic: Statistic, rows_max: int
) -> None:
    reach = moved(statistic, rows_max, BITS)
    if not reach.is_rounded:
        assert farthest_apart(range_statement(statistic, rows_max, BITS)) <= reach.sensitivity * (1 + 1e-9)


def test_rounding_a_mean_of_rows_in_a_box_costs_nothing() -> None:
    """Whole numbers from -3 to 3 and from -1 to 1 are at most √(6² + 2²) apart, also where a mean was rounded."""
    means = resolve("mean", {"columns": ["x", "y"], "centre": [0.0] * 2, "scale": [1.0] * 2, "bound": [3.0, 1.0]})
    reach = moved(means, 0, 0)
    assert (reach.is_rounded, reach.sensitivity) == (False, pytest.approx(math.sqrt(40), rel=1e-9))
    assert reach.sensitivity >= math.sqrt(40)
    assert client_sensitivity(means, 0, 0).l2 > 1.2 * math.sqrt(40)


@pytest.mark.parametrize("statistic", BOXED, ids=lambda one: one.name)
@pytest.mark.parametrize("bits", [4, 10])
def test_room_for_rounding_lets_a_liar_no_farther_than_stated(statistic: Statistic, bits: int) -> None:
    """A mean of rows is rounded, and so its statement is wider than its range: less so on a finer grid."""
    honest = client_sensitivity(statistic, 0, fine_bits(bits)).l2 / 2.0 ** (fine_bits(bits) - bits)
    factor = stated_factor(statistic, 0, bits)
    assert farthest_apart(range_statement(statistic, 0, bits)) <= factor * honest * (1 + 1e-9)
    assert factor <= (1.6 if bits == 4 else 1.3)


def test_a_liar_may_spread_the_room_for_rounding_over_many_bins() -> None:
    votes = resolve("histogram", {"columns": ["x"], "edges": [float(edge) for edge in range(1001)]})
    statement = range_statement(votes, 0, 10)
    lies = np.zeros((2, 1000), dtype=np.int64)
    lies[0, :2] = lies[1, 2:4] = 1024, 1000
    assert all(statement.holds(lie) for lie in lies)
    most = math.sqrt(2) * 1024  # honest votes for two bins
    assert np.linalg.norm(lies[0] - lies[1]) > 1.3 * most
    assert 1.3 < stated_factor(votes, 0, 10) < 2
    assert stated_factor(votes, 1, 10) == 1


@pytest.mark.parametrize(("bits", "most"), [(4, 2.4), (8, 1.1)])
def test_a_count_beside_many_bins_hardly_helps_a_liar(bits: int, most: float) -> None:
    """Ten bins and their count: ends of the statement are found by linear programs."""
    bins = {"columns": ["x"], "edges": [float(edge) for edge in range(11)], "count_weight": 1.0}
    votes = resolve("histogram", bins)
    apart = farthest_apart(range_statement(votes, 0, bits)) / (math.sqrt(2) * 2**bits)
    assert 1 < apart <= stated_factor(votes, 0, bits) < most


def test_limits_of_a_mean_of_rows_leave_room_for_rounding() -> None:
    """A third of a vote in each of three bins is rounded up in all three, though they add up to one vote."""
    votes = resolve("histogram", {"columns": ["x"], "edges": [0.0, 1.0, 2.0, 3.0]})
    statement, fine = range_statement(votes, 0, 0), fine_bits(0)
    value = contribution(votes, np.array([[0.5], [1.5], [2.5]]), 0, fine)
    rounded = value + (1 << fine) - 1 >> fine
    assert rounded.tolist() == [1, 1, 1]
    assert statement.holds(rounded)
    assert moved(votes, 0, 0).is_rounded
    assert not range_statement(votes, 1, 0).holds(rounded)


def test_weights_that_are_no_ratios_are_proven_nearly() -> None:
    """Of (x, √2 x), √2 x_1 - x_2 is 0: a liar gets no farther than rounding does."""

    class Line(Statistic, frozen=True, kw_only=True):
        name = "line"

        @property
        def dimension(self) -> int:
            return 2

        def labels(self) -> tuple[str, ...]:
            return ("x", "more x")

        def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
            bound = math.ceil(math.sqrt(2) * 2**fraction_bits)
            return Sensitivity(l1=4 * bound, l2_squared=8 * bound**2, bound=bound)

        def value_range(self, fraction_bits: int) -> ValueRange:
            unit = 2.0**fraction_bits
            plain = box([-unit, -1.5 * unit], [unit, 1.5 * unit])
            weights = np.array([[math.sqrt(2), -1.0]])
            return ValueRange(
                plain.low, plain.high, plain.length, Combinations(("√2 x - y",), weights, np.array([-1.0]), np.ones(1))
            )

        def evaluate(self, rows: np.ndarray, fraction_bits: int) -> np.ndarray:
            return np.rint(rows * [1.0, math.sqrt(2)] * 2.0**fraction_bits).astype(np.int64)

    statement = range_statement(Line(columns=("x",)), 1, 8)
    (limit,) = statement.limits
    assert limit.weights[0] / -limit.weights[1] == pytest.approx(math.sqrt(2), abs=1e-5)
    assert limit.size / -limit.weights[1] < 12, "in units of the grid: rounding, and the finer grid's own"
    for x in np.linspace(-1, 1, 41):
        fine = np.rint(x * np.array([1.0, math.sqrt(2)]) * 2.0 ** fine_bits(8)).astype(np.int64)
        assert all(statement.holds(fine + dither >> 16) for dither in (0, 1 << 15, (1 << 16) - 1))
        assert not statement.holds((fine >> 16) + [0, 12])


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


@pytest.mark.parametrize("rows_max", [0, 1])
@pytest.mark.parametrize(("statistic", "columns"), [("moments", 100), ("mean", 256)])
def test_with_too_many_limits_a_client_proves_its_intervals_alone(statistic: str, columns: int, rows_max: int) -> None:
    """A count of a weight that is no ratio of whole numbers is compared with each of many columns."""
    each = {"centre": [0.0] * columns, "scale": [1.0] * columns, "bound": [1.0] * columns, "count_weight": math.sqrt(3)}
    many = resolve(statistic, {"columns": [f"x{place}" for place in range(columns)], **each})
    statement = range_statement(many, rows_max, 4)
    assert statement.limits == ()
    farthest = np.linalg.norm(np.array(statement.sizes, dtype=float))
    assert farthest <= stated_factor(many, rows_max, 4) * moved(many, rows_max, 4).sensitivity * (1 + 1e-9)
    statement.check(200)
