"""Sums, products and histograms: no pair of rows is further apart than stated; where the statement is tight, some are.

These know the formulas; `test_statistic_check.py` searches every registered statistic without them.

The search starts from interior points, zeros and corners alike: the maximum need not lie at corners. All randomness is
seeded, and a search that finds too little cannot raise a false alarm in the "never exceeds" tests.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from dca_proto.errors import UsageError
from dca_proto.statistics import (
    ADD_OR_REMOVE_ONE_CLIENT,
    REPLACE_ONE_CLIENT,
    Histogram,
    Mean,
    Regression,
    SecondMoments,
    Sensitivity,
    Statistic,
    Sum,
)
from dca_proto.statistics.contribution import client_sensitivity, contribution

F = 24


def a_box(*bounds: float) -> dict[str, Any]:
    n = len(bounds)
    return {"columns": tuple(f"c{j}" for j in range(n)), "centre": (0.0,) * n, "scale": (1.0,) * n, "bound": bounds}


def regression(bounds: tuple[float, ...], target_square: bool) -> Regression:
    return Regression(**a_box(*bounds), target_square=target_square)


def stated(statistic: Statistic, fraction_bits: int = F) -> float:
    """The sensitivity of one row, in the statistic's own units."""
    return math.ldexp(client_sensitivity(statistic, 1, fraction_bits).l2, -fraction_bits)


# The squared distance of two rows' regression statistics, for the optimiser (regression.py has the formula).


def distance(z: np.ndarray, w: np.ndarray, target_square: bool) -> np.ndarray:
    """Distance of the statistics of rows z and w, over the last axis."""
    upper = np.triu_indices(z.shape[-1])
    difference = z[..., upper[0]] * z[..., upper[1]] - w[..., upper[0]] * w[..., upper[1]]
    return np.linalg.norm(difference if target_square else difference[..., :-1], axis=-1)


def _loss(point: np.ndarray, target_square: bool) -> tuple[float, np.ndarray]:
    z, w = np.split(point, 2)
    a, b, t = z * z, w * w, z @ w
    square = (a.sum() ** 2 + b.sum() ** 2 + ((a - b) ** 2).sum()) / 2 - t * t
    to_z = 2 * (a.sum() * z - t * w + (a - b) * z)
    to_w = 2 * (b.sum() * w - t * z + (b - a) * w)
    if not target_square:
        last = a[-1] - b[-1]
        square -= last**2
        to_z[-1] -= 4 * last * z[-1]
        to_w[-1] += 4 * last * w[-1]
    return -square, -np.concatenate([to_z, to_w])


def starts(bounds: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Points of the box with entries in the interior, at zero and at the bounds: shape ``(count, n)``."""
    kind = generator.integers(0, 4, size=(count, len(bounds)))
    signs = generator.choice([-1.0, 1.0], size=kind.shape)
    return bounds * np.choose(kind, [0 * signs, signs, signs, generator.uniform(-1, 1, size=kind.shape)])


def widest(bounds: tuple[float, ...], target_square: bool, climbs: int = 12) -> float:
    """The largest distance found: by random search, and by climbing from its best points."""
    c, generator = np.array(bounds), np.random.default_rng(20)
    z, w = starts(c, 20_000, generator), starts(c, 20_000, generator)
    found = distance(z, w, target_square)
    best = found.max()
    limits = list(zip(-c, c, strict=True)) * 2
    for index in np.argsort(found)[-climbs:]:
        start = np.clip(np.concatenate([z[index], w[index]]) * 0.98, *(s * np.tile(c, 2) for s in (-1, 1)))
        result = minimize(_loss, start, args=(target_square,), jac=True, method="L-BFGS-B", bounds=limits)
        best = max(best, float(distance(*np.split(result.x, 2), target_square)))
    return best


def at_corners(bounds: tuple[float, ...], target_square: bool) -> float:
    corners = np.array(list(itertools.product(*[(-c, c) for c in bounds])))
    return float(distance(corners[:, None], corners[None], target_square).max())


def test_the_search_measures_what_is_released() -> None:
    """The optimiser's distance and its gradient belong to the integers that a client contributes."""
    generator = np.random.default_rng(3)
    bounds = (1.0, 2.0, 0.5)
    z, w = generator.uniform(-0.5, 0.5, size=(2, 3))
    for target_square in (False, True):
        difference = np.diff(regression(bounds, target_square).evaluate(np.array([z, w]), 40), axis=0)
        released = math.ldexp(float(np.linalg.norm(difference)), -40)
        assert distance(z, w, target_square) == pytest.approx(released, abs=1e-5)
        point = np.concatenate([z, w])
        loss, gradient = _loss(point, target_square)
        assert math.sqrt(-loss) == pytest.approx(float(distance(z, w, target_square)))
        for axis, step in enumerate(1e-6 * np.eye(6)):
            slope = (_loss(point + step, target_square)[0] - _loss(point - step, target_square)[0]) / 2e-6
            assert gradient[axis] == pytest.approx(slope, abs=1e-6)


UNEQUAL = [
    (1.0, 2.0),
    (2.0, 1.0),
    (10.0, 1.0),
    (1.0, 10.0),
    (3.0, 0.2, 0.2, 0.2, 0.2, 0.2),
    (0.2, 0.2, 0.2, 0.2, 0.2, 3.0),
    (1.0, 1.0, 2.0),
    (1.0, 2.0, 3.0, 4.0),
    (0.3, 1.1, 0.7, 2.0, 1.9),
]
EQUAL = [(1.0,) * n for n in (2, 3, 4, 5, 7, 8)]


@pytest.mark.parametrize("target_square", [False, True])
@pytest.mark.parametrize("bounds", UNEQUAL + EQUAL)
def test_no_two_rows_exceed_the_stated_sensitivity(bounds: tuple[float, ...], target_square: bool) -> None:
    on_grid = tuple(math.floor(bound * 2 ** (F // 2)) / 2 ** (F // 2) for bound in bounds)
    assert widest(on_grid, target_square) <= stated(regression(bounds, target_square)) * (1 + 1e-12)


@pytest.mark.parametrize("target_square", [False, True])
@pytest.mark.parametrize(
    ("bounds", "exact"),
    [
        ((1.0, 1.0), 2.0),
        ((1.0,) * 12, 12.0),
        ((1.0, 1.0, math.sqrt(2)), 4.0),
        ((1.0, 1.0, 1.0), math.sqrt(8)),
        ((1.0,) * 5, math.sqrt(24)),
    ],
)
def test_the_sensitivity_is_attained(bounds: tuple[float, ...], exact: float, target_square: bool) -> None:
    statement = stated(regression(bounds, target_square))
    assert statement == pytest.approx(exact, rel=1e-3)  # √2 is cut to the grid
    assert widest(bounds, target_square) >= 0.99 * statement


@pytest.mark.parametrize("bounds", [(1.0, 2.0), (1.0, 10.0), (0.5, 1.0, 3.0), (1.0, 1.0, 1.0, 2.5)])
def test_without_y2_a_large_target_needs_less_and_that_is_exact(bounds: tuple[float, ...]) -> None:
    exact = 2 * bounds[-1] * math.sqrt(sum(c * c for c in bounds[:-1]))
    assert stated(regression(bounds, False)) == pytest.approx(exact, rel=1e-6)
    assert widest(bounds, False) == pytest.approx(exact, rel=1e-3)


def test_with_y2_a_large_target_needs_more() -> None:
    """The smaller bound is not for y²: a row and a missing one are 100.5 apart, where 20 is right without."""
    assert stated(regression((1.0, 10.0), False)) == pytest.approx(20.0)
    assert widest((1.0, 10.0), True) == pytest.approx(math.sqrt(10_101))


@pytest.mark.parametrize(
    ("bounds", "corner", "maximum"),
    [((10.0, 1.0), 20.0, 100.5), ((3.0, 0.2, 0.2, 0.2, 0.2, 0.2), 2.68, 9.10)],
)
def test_the_maximum_lies_inside_where_corners_give_far_less(
    bounds: tuple[float, ...], corner: float, maximum: float
) -> None:
    assert at_corners(bounds, True) == pytest.approx(corner, rel=5e-3)
    assert widest(bounds, True) == pytest.approx(maximum, rel=1e-3)
    assert maximum <= stated(regression(bounds, True)) <= 1.02 * maximum


def _shaped(z: np.ndarray, w: np.ndarray, factors: np.ndarray) -> np.ndarray:
    upper = np.triu_indices(z.shape[-1])
    return np.linalg.norm(
        factors * (z[..., upper[0]] * z[..., upper[1]] - w[..., upper[0]] * w[..., upper[1]]), axis=-1
    )


@pytest.mark.parametrize("seed", range(12))
def test_no_two_rows_exceed_it_with_weights_in_a_box(seed: int) -> None:
    """Random bounds and weights, with and without y²; the bound is not always attained, but never far from it."""
    generator = np.random.default_rng(100 + seed)
    n = int(generator.integers(2, 6))
    c = np.round(np.exp(generator.uniform(-1.2, 1.2, n)) * 2**10) / 2**10
    weights = [int(weight) for weight in generator.integers(1, 9, 3)]
    left, right = np.triu_indices(n)
    factors = np.array(
        [weights[int(i == n - 1) + int(j == n - 1)] for i, j in zip(left, right, strict=True)], dtype=float
    )
    factors[-1] *= seed % 2
    z, w = starts(c, 20_000, generator), starts(c, 20_000, generator)
    found = _shaped(z, w, factors)
    best = found.max()
    for index in np.argsort(found)[-4:]:
        start = 0.98 * np.concatenate([z[index], w[index]])
        climbed = minimize(
            lambda point: -_shaped(point[:n], point[n:], factors), start, method="L-BFGS-B",
            bounds=[(-limit, limit) for limit in c] * 2,
        )  # fmt: skip
        best = max(best, -float(climbed.fun))
    statistic = Regression(**a_box(*c.tolist()), weights=tuple(weights), target_square=bool(seed % 2))
    assert best <= stated(statistic) * (1 + 1e-12)
    assert best >= 0.85 * stated(statistic)


@pytest.mark.parametrize("target_square", [False, True])
@pytest.mark.parametrize("limits", [(3, 3), (1, 3), (3, 1), (2, 2, 2), (3, 2, 1), (1, 2, 3), (1, 1, 3), (3, 1, 1)])
def test_every_pair_of_a_small_grid(limits: tuple[int, ...], target_square: bool) -> None:
    """At f = 0 the rows are these integers, so this is no search but all there is; zero is among them."""
    statistic = regression(tuple(float(c) for c in limits), target_square)
    rows = np.array(list(itertools.product(*[range(-c, c + 1) for c in limits])), dtype=np.float64)
    values = statistic.evaluate(rows, 0)
    widest_square = max(int(((values - value) ** 2).sum(axis=1).max()) for value in values)
    statement = client_sensitivity(statistic, 1, 0).l2
    assert math.sqrt(widest_square) <= statement
    assert np.abs(values).max() == statistic.row_sensitivity(0).bound
    if len(set(limits)) == 1 or (not target_square and limits[-1] ** 2 >= sum(c * c for c in limits[:-1])):
        assert statement == pytest.approx(math.sqrt(widest_square))


@pytest.mark.parametrize("target_square", [False, True])
@pytest.mark.parametrize("limits", [(1, 1), (2, 1, 2), (1, 2, 3), (3, 1, 1)])
def test_the_constant_feature_is_covered(limits: tuple[int, ...], target_square: bool) -> None:
    """First the intercept's bound, then the columns'; every pair of rows, and of a row and a missing one."""
    constant, *bounds = limits
    statistic = Regression(
        **a_box(*map(float, bounds)), intercept=True, intercept_bound=float(constant), target_square=target_square
    )
    rows = np.array(list(itertools.product(*[range(-c, c + 1) for c in bounds])), dtype=np.float64)
    values = np.vstack([statistic.evaluate(rows, 0), np.zeros((1, statistic.dimension), dtype=np.int64)])
    widest_square = max(int(((values - value) ** 2).sum(axis=1).max()) for value in values)
    assert math.sqrt(widest_square) <= client_sensitivity(statistic, 1, 0).l2


def test_simple_statistics_state_their_exact_sensitivity() -> None:
    bounds = (1.0, 2.0, 0.5)
    assert stated(Sum(**a_box(*bounds))) == pytest.approx(2 * math.sqrt(5.25))
    assert stated(Mean(**a_box(*bounds))) == pytest.approx(2 * math.sqrt(5.25))
    assert stated(SecondMoments(**a_box(*bounds))) == pytest.approx(math.sqrt(1 + 16 + 1 / 16))
    assert stated(Histogram(columns=("x",), edges=(0.0, 1.0, 2.0))) == pytest.approx(math.sqrt(2))
    assert stated(Histogram(columns=("x",), edges=(0.0, 1.0))) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("statistic", "left", "right", "l1"),
    [
        (Sum(**a_box(1.0, 2.0, 0.5)), [1.0, -2.0, 0.5], [-1.0, 2.0, -0.5], 7.0),
        (SecondMoments(**a_box(1.0, 2.0, 0.5)), [1.0, -2.0, 0.5], [0.0, 0.0, 0.0], 5.25),
        (Histogram(columns=("x",), edges=(0.0, 1.0, 2.0)), [0.5], [1.5], 2.0),
        # Half of the coordinates change sign, a cut: 2·(4·4)/2 + 8 is stated, the diagonal's 4 idle here.
        (Regression(**a_box(1.0, 1.0, 1.0, 1.0)), [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, -1.0, -1.0], 11.0),
    ],
)
def test_the_l1_sensitivity_is_attained_or_near(
    statistic: Statistic, left: list[float], right: list[float], l1: float
) -> None:
    limit = client_sensitivity(statistic, 1, F)
    assert math.ldexp(limit.l1, -F) == pytest.approx(l1)
    found = int(np.abs(np.diff(statistic.evaluate(np.array([left, right]), F), axis=0)).sum())
    assert (found == limit.l1) != isinstance(statistic, Regression)
    assert 0.7 * limit.l1 <= found <= limit.l1


def test_rounding_a_mean_can_exceed_the_rows_own_sensitivity() -> None:
    """Why the mean has √d more: on a coarse grid, halves are rounded apart."""
    statistic = Histogram(columns=("x",), edges=(0.0, 1.0, 2.0, 3.0, 4.0))
    left = contribution(statistic, np.array([[0.5], [1.5]]), 0, 0)
    right = contribution(statistic, np.array([[2.5], [3.5]]), 0, 0)
    assert (left.tolist(), right.tolist()) == ([1, 1, 0, 0], [0, 0, 1, 1])
    assert (
        client_sensitivity(statistic, 1, 0).l2 < np.linalg.norm(left - right) < client_sensitivity(statistic, 0, 0).l2
    )


def test_many_rows_multiply_the_sensitivity_and_the_bound() -> None:
    statistic = Sum(**a_box(1.0))
    one, ten = client_sensitivity(statistic, 1, F), client_sensitivity(statistic, 10, F)
    assert ten.l2 == pytest.approx(10 * one.l2)
    assert ten.bound == 10 * one.bound
    mean = client_sensitivity(statistic, 0, F)
    assert mean.l2 == pytest.approx(one.l2 + 1, abs=1e-6)
    assert mean.bound == one.bound
    assert (ten.l1, ten.l2_squared) == (10 * one.l1, 100 * one.l2_squared)
    assert mean.l1 == one.l1 + 1


# The value


def test_figures_are_whole_numbers_above_zero() -> None:
    for wrong in (0, -1, 2.0, math.inf, math.nan, True):
        for name in ("l1", "l2_squared", "bound"):
            figures: dict[str, Any] = {"l1": 1, "l2_squared": 1, "bound": 1, name: wrong}
            with pytest.raises(UsageError, match=f"a sensitivity's {name} is {wrong}; state a whole number"):
                Sensitivity(**figures)


def test_relations_are_known_and_never_mixed() -> None:
    replaced = Sensitivity(l1=4, l2_squared=9, bound=2)
    removed = Sensitivity(l1=3, l2_squared=5, bound=7, relation=ADD_OR_REMOVE_ONE_CLIENT)
    assert replaced.relation == REPLACE_ONE_CLIENT
    replaced.require(REPLACE_ONE_CLIENT)
    removed.require(ADD_OR_REMOVE_ONE_CLIENT)
    for value, relation in ((replaced, ADD_OR_REMOVE_ONE_CLIENT), (removed, REPLACE_ONE_CLIENT)):
        with pytest.raises(UsageError, match=f"under {value.relation!r} was given where one under {relation!r}"):
            value.require(relation)
    with pytest.raises(UsageError, match=r"'add-or-remove-one-client' was given .* as_replacement"):
        replaced.jointly_with(removed)
    with pytest.raises(UsageError, match="relation 'neighbours' is unknown; use replace-one-client or add-or-remove"):
        Sensitivity(l1=1, l2_squared=1, bound=1, relation="neighbours")
    assert replaced.jointly_with(removed.as_replacement()) == Sensitivity(l1=10, l2_squared=29, bound=7)
    assert removed.jointly_with(removed).relation == ADD_OR_REMOVE_ONE_CLIENT
    assert replaced.as_replacement() == replaced == replaced.jointly_with()


@pytest.mark.parametrize("square", [1, 2, 2**52 + 1, 2**53 - 1, 10**30 + 1, 3 * 2**200 + 1, (2**63 - 1) ** 2])
def test_the_root_is_rounded_up(square: int) -> None:
    root = Sensitivity(l1=1, l2_squared=square, bound=1).l2
    assert square <= Fraction(root) ** 2 <= square * (1 + Fraction(1, 2**48))
