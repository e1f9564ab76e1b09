"""Statistics in an L2 ball: rows never leave it, and their sensitivity is right and attained, with weights too.

All searches are seeded. They look for a pair further apart than is stated; finding too little is no false alarm, but
where a bound is claimed tight, a pair that attains it is constructed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dca_proto.statistics import Gradient, Histogram, Mean, Regression, SecondMoments, Statistic, Sum
from dca_proto.statistics.regression_sensitivity import RowLimits, _ball, regression_sensitivity
from dca_proto.statistics.scaled import ball_limit, into_ball

F = 24
HUGE = 2.0**500


def a_box(*bounds: float) -> dict[str, Any]:
    n = len(bounds)
    return {"columns": tuple(f"c{j}" for j in range(n)), "centre": (0.0,) * n, "scale": (1.0,) * n, "bound": bounds}


# No row leaves the ball


def norm_squared(row: np.ndarray) -> int:
    return sum(int(value) ** 2 for value in row)


@settings(deadline=None, max_examples=300)  # the machine may be busy
@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 4), st.integers(1, 12)),
        elements=st.one_of(
            st.floats(-HUGE, HUGE),
            st.floats(-1e4, 1e4),
            st.sampled_from([0.0, -0.0, 5e-324, -2.2e-308, 1.0, -1.0, 2.0**53, HUGE, -HUGE]),
            st.integers(-(2**53), 2**53).map(float),
        ),
    ),
    st.one_of(st.integers(1, 2**53 - 1), st.integers(1, 20), st.sampled_from([1, 2**26, 2**53 - 1])),
)
def test_no_row_leaves_the_ball(values: np.ndarray, limit: int) -> None:
    for row, inside in zip(values, into_ball(values, limit), strict=True):
        assert norm_squared(inside) <= limit**2
        assert all(abs(int(new)) <= abs(old) and new * old >= 0 for new, old in zip(inside, row, strict=True))


@pytest.mark.parametrize("d", [1, 2, 3, 100, 4095])
@pytest.mark.parametrize("limit", [1, 3, 10**6, 2**40 + 1, 2**53 - 1])
def test_no_row_on_or_near_the_sphere_leaves_it(d: int, limit: int) -> None:
    """Rows of every size, scaled to the sphere as well as floats can, a few last places in or out, and far outside."""
    generator = np.random.default_rng(d + limit)
    rows = generator.normal(size=(60, d)) * generator.choice([1.0, 1e-3, 1e3], size=(60, d))
    rows *= (limit / np.sqrt(np.square(rows).sum(axis=1)))[:, None]
    rows *= (1 + generator.integers(-40, 41, size=60) * 2.0**-52)[:, None]
    for factor in (1.0, 1 + 1e-9, 1e10, 1e90):
        inside = into_ball(rows * factor, limit)
        worst = max(map(norm_squared, inside))
        assert worst <= limit**2
        if limit >= 10**6:  # and hardly smaller: truncation costs at most one unit per coordinate
            assert math.sqrt(worst) >= limit * (1 - 1e-8) - math.sqrt(d)


def test_points_on_the_sphere_stay_and_their_neighbours_outside_do_not() -> None:
    side = 2**52
    on = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, -5.0]])
    assert into_ball(on, 5).tolist() == on.astype(int).tolist()
    # 3·2^50, 4·2^50 is on the sphere of 5·2^50 exactly; one unit more in one coordinate is outside by 1e-16 relative,
    # which the floats' sum of squares cannot tell.
    near = np.array([[3.0 * 2**50, 4.0 * 2**50], [3.0 * 2**50 + 1, 4.0 * 2**50]])
    kept, moved = into_ball(near, 5 * 2**50)
    assert kept.tolist() == near[0].astype(int).tolist()
    assert norm_squared(near[1]) > (5 * 2**50) ** 2 >= norm_squared(moved)
    assert into_ball(np.array([[float(side), 0.0], [float(side + 1), 0.0]]), side).tolist()[0] == [side, 0]
    assert into_ball(np.empty((0, 3)), 5).shape == (0, 3)


def test_tiny_values_are_zero_and_an_inner_row_is_truncated() -> None:
    assert into_ball(np.array([[5e-324, -1.99, 1e-300, 2.0]]), 3).tolist() == [[0, -1, 0, 2]]
    assert ball_limit("radius", 1.3, 4) == 20


# The search: any statistic, as it is released


def _climb(statistic: Statistic, l1: bool, fraction_bits: int, pairs: int = 150, rounds: int = 150) -> int:
    """The largest distance (L1, or squared L2) found by random changes of pairs of rows that are kept if they help.

    Rows start at zeros, corners, inside and far outside; every third second row is missing.
    """
    generator, width = np.random.default_rng(17), len(statistic.columns)
    reach = np.array(getattr(statistic, "bound", (2.0,) * width))
    kind = generator.integers(0, 4, size=(2, pairs, width))
    z = reach * np.choose(
        kind, [0.0, generator.choice([-1.0, 1.0], kind.shape), generator.uniform(-1, 1, kind.shape), 3.0]
    )
    missing = np.arange(pairs) % 3 == 0
    best = np.full(pairs, -1, dtype=object)
    for step in range(rounds):
        change = generator.normal(size=z.shape) * reach * 0.6 ** (step // 10)
        change *= generator.random(z.shape) < 0.5
        trial = z + (change if step else 0.0)
        left, right = (statistic.evaluate(row, fraction_bits).astype(object) for row in trial)
        right[missing] = 0
        found = np.abs(left - right).sum(axis=1) if l1 else ((left - right) ** 2).sum(axis=1)
        better = found > best
        best[better] = found[better]
        z[:, better] = trial[:, better]
    return int(best.max())


def _searched() -> Iterator[Statistic]:
    yield from (Sum(**a_box(1.0, 2.0), radius=1.5), Mean(**a_box(1.0, 1.0, 1.0), radius=9.0))
    yield Sum(**a_box(*[1.0] * 6), radius=0.75)
    yield SecondMoments(**a_box(1.0, 0.5, 2.0))
    yield Histogram(columns=("x",), edges=(-2.0, -1.0, 0.0, 3.0))
    for bounds, radius in [
        ((2.0, 1.0), 1.0),
        ((1.0, 1.0, 1.0), 1.0),
        ((2.0, 2.0, 2.0, 3.0), 1.0),
        ((1.0, 1.0, 2.0), None),
    ]:
        for weights in ((1, 1, 1), (3, 1, 1), (1, 4, 1), (2, 1, 5)):
            for intercept in (False, True):
                yield Regression(
                    **a_box(*bounds), radius=radius, weights=weights, intercept=intercept, intercept_bound=0.75,
                    target_square=intercept or weights != (1, 4, 1),
                )  # fmt: skip
    yield Gradient(**a_box(1.0, 2.0, 2.0), theta=(1.0, -1.0), clip=1.5)
    yield Gradient(**a_box(1.0, 2.0, 2.0), theta=(1.0, -1.0, 0.5), clip=0.5, family="bernoulli", intercept=True)


SEARCHED = list(_searched())


def _name(statistic: Statistic) -> str:
    fields = ("bound", "radius", "weights", "intercept", "target_square", "clip")
    return f"{statistic.name} " + " ".join(str(getattr(statistic, field, "")) for field in fields)


@pytest.mark.parametrize("statistic", SEARCHED, ids=_name)
def test_no_search_exceeds_what_is_stated(statistic: Statistic) -> None:
    stated = statistic.row_sensitivity(F)
    squared, absolute = _climb(statistic, False, F), _climb(statistic, True, F)
    assert squared <= stated.l2_squared
    assert absolute <= stated.l1
    if not isinstance(statistic, Regression | Gradient):
        assert squared >= 0.98 * stated.l2_squared


# The regression's ball


def attained(d: int, weights: tuple[int, int, int], target: float, constant: float, target_square: bool) -> float:
    """The share of what is stated that pairs (cos θ, sin θ, 0...), (sin θ, cos θ, 0...), y = s, any y' attain."""
    statistic = Regression(
        **a_box(*[1.0] * d, target), radius=1.0, weights=weights, target_square=target_square,
        intercept=constant > 0, intercept_bound=constant or 1.0,
    )  # fmt: skip
    angle, last = np.meshgrid(np.linspace(0, math.pi, 61), np.linspace(-target, target, 33))
    rows = np.zeros((2, angle.size, d + 1))
    rows[0, :, 0] = rows[1, :, 1] = np.cos(angle).ravel()
    rows[0, :, 1] = rows[1, :, 0] = np.sin(angle).ravel()
    rows[0, :, -1], rows[1, :, -1] = target, last.ravel()
    left, right = (statistic.evaluate(side, F).astype(np.float64) for side in rows)
    found = float(np.linalg.norm(left - right, axis=1).max())
    stated = statistic.row_sensitivity(F).l2
    assert found <= stated
    return found / stated


@pytest.mark.parametrize("d", [2, 3, 10])
@pytest.mark.parametrize("target_square", [False, True])
@pytest.mark.parametrize("target", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 4, 1), (5, 2, 1), (1, 2, 9), (2, 3, 4)])
def test_the_balls_sensitivity_is_attained(
    d: int, weights: tuple[int, int, int], target: float, target_square: bool
) -> None:
    assert attained(d, weights, target, 0.0, target_square) >= 0.99


@pytest.mark.parametrize("d", [2, 10])
@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 4, 1), (5, 2, 1), (1, 2, 9)])
@pytest.mark.parametrize(("constant", "target"), [(0.5, 0.5), (1.0, 1.0), (3.0, 1.0), (1.0, 4.0)])
def test_with_an_intercept_it_is_attained_too(
    d: int, weights: tuple[int, int, int], constant: float, target: float
) -> None:
    """Unless a row against a missing one is what counts: a large constant's own square."""
    largest = attained(d, weights, target, constant, True)
    if largest < 0.99:
        statistic = Regression(
            **a_box(*[1.0] * d, target), radius=1.0, weights=weights, target_square=True, intercept=True,
            intercept_bound=constant,
        )  # fmt: skip
        row = statistic.evaluate(np.array([[1.0] + [0.0] * (d - 1) + [target]]), F).astype(np.float64)
        assert float(np.linalg.norm(row)) >= 0.99 * statistic.row_sensitivity(F).l2


def stated(radius: float, target: float, target_square: bool, weights: tuple[int, int, int] = (1, 1, 1)) -> float:
    statistic = Regression(**a_box(9.0, 9.0, target), radius=radius, target_square=target_square, weights=weights)
    return math.ldexp(statistic.row_sensitivity(F).l2, -F)


def test_known_values() -> None:
    """LDP paper: 2.121 at R = R_y = 1 (its Corollary 3.1: 2.345), √22 at R_y = 2 (5.831). ICML 2023, replacement:
    √2(X² + Y²/2) for Y² <= 2X², 2XY beyond."""
    assert stated(1.0, 1.0, True) == pytest.approx(1.5 * math.sqrt(2), rel=1e-6)
    assert stated(1.0, 2.0, True) == pytest.approx(math.sqrt(22), rel=1e-6)
    for X, Y in ((1.0, 0.25), (2.0, 1.0), (1.0, 1.25), (1.0, 1.5), (0.5, 3.0)):
        exact = math.sqrt(2) * (X**2 + Y**2 / 2) if Y**2 <= 2 * X**2 else 2 * X * Y
        assert stated(X, Y, False) == pytest.approx(exact, rel=1e-6)
        assert stated(X, Y, False) > math.sqrt(X**4 + X**2 * Y**2) * 1.4  # that of adding or removing


def lemma_13_1(R: float, weights: tuple[int, int, int]) -> float:
    """LDP paper, logistic regression with labels -1 and 1: σ2 = 1/w1 of xxᵀ and σ1 = 1/w2 of xy; here times 1/σ1."""
    A, B, _ = (w**2 for w in weights)
    return math.sqrt(B) * math.sqrt(B / (2 * A) + 2 * R**2 + 2 * A / B * R**4)


@pytest.mark.parametrize("R", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("weights", [(1, 1, 1), (2, 1, 1), (1, 3, 1), (5, 7, 1)])
def test_labels_of_logistic_regression(R: float, weights: tuple[int, int, int]) -> None:
    """All pairs of rows with labels ±1, in steps of 2° and R/4, d = 2: what is stated is attained; Lemma 13.1 is that
    for σ2² <= 2σ1²R² (2.121 at R = 1), and more beyond, where 2R/σ1 is exact."""
    angles, radii = np.deg2rad(np.arange(0, 360, 2)), R * np.linspace(0, 1, 5)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)[None] * radii[:, None, None]
    points = np.unique(points.reshape(-1, 2), axis=0)
    rows = np.concatenate([np.insert(points, 2, label, axis=1) for label in (-1.0, 1.0)])
    statistic = Regression(**a_box(9.0, 9.0, 1.0), radius=R, weights=weights)
    values = statistic.evaluate(rows, F) * 2.0**-F
    lengths = (values**2).sum(axis=1)
    widest = math.sqrt((lengths[:, None] + lengths - 2 * values @ values.T).max())
    A, B, _ = (w**2 for w in weights)
    exact = lemma_13_1(R, weights) if B <= 2 * A * R**2 else 2 * R * weights[1]
    assert exact <= lemma_13_1(R, weights) * (1 + 1e-12)
    assert stated(R, 1.0, False, weights) == pytest.approx(exact, rel=1e-6)
    assert exact * (1 - 1e-3) <= widest <= stated(R, 1.0, False, weights) * (1 + 1e-9)
    if R == 1 and weights == (1, 1, 1):
        assert exact == pytest.approx(math.sqrt(4.5))


def lemma(R: float, target: float, weights: tuple[int, int, int]) -> float:
    """Lemma 3.1 of the LDP paper, times w1 = 1/σ1."""
    A, B, C = (w**2 for w in weights)
    return math.sqrt(B**2 * target**4 / (2 * A) + 2 * A * R**4 + 2 * B * target**2 * R**2 + C * target**4)


@pytest.mark.parametrize("target", [0.25, 1.0, 2.0, 7.5])
@pytest.mark.parametrize("weights", list(itertools.product([1, 3, 8], repeat=3)))
def test_never_more_than_lemma_3_1(weights: tuple[int, int, int], target: float) -> None:
    assert stated(1.0, target, True, weights) <= lemma(1.0, target, weights) * (1 + 1e-9)


def test_the_larger_of_two_extremes_is_no_bound() -> None:
    """The trap: at w = (1, 8, 14), R = R_y = 1 the largest distance is at a y' that is neither 0 nor -y."""
    statistic = Regression(**a_box(9.0, 9.0, 1.0), radius=1.0, target_square=True, weights=(1, 8, 14))
    A, B, C = 1, 64, 196
    nothing = 2 * A + B + C
    opposite = 4 * B  # x' = x: the products' signs cannot all be opposite
    rows = np.array([[1.0, 0.0, 1.0], [1.0, 0.0, -0.21]])
    found = float(np.linalg.norm(np.diff(statistic.evaluate(rows, F), axis=0))) * 2.0**-F
    assert found**2 > 1.04 * max(nothing, opposite)
    assert found <= math.ldexp(statistic.row_sensitivity(F).l2, -F)


def _slow_square(A: int, B: int, C: int, rho: int, s: int, k: int) -> Fraction:
    """The largest Δ² over all integers y' and real t, straight from the formula before its cases were distinguished."""
    best = Fraction(A * (k**2 + k * rho + rho**2) + B * (k + rho) * s**2 + C * s**4)
    for v in range(-s, s + 1):
        t = min(max(Fraction(-(A * k + B * s * v), 2 * A), Fraction(-rho)), Fraction(rho))
        square = A * (2 * rho**2 - 2 * t * t + k * (2 * rho - 2 * t))
        square += B * (rho * (s**2 + v**2) - 2 * t * s * v + k * (s - v) ** 2) + C * (s**2 - v**2) ** 2
        best = max(best, square)
    return best


@settings(deadline=None, max_examples=300)  # the machine may be busy
@given(st.tuples(*[st.integers(1, 12)] * 3), st.integers(1, 40), st.integers(1, 25), st.integers(0, 40), st.booleans())
def test_the_search_over_y_is_exact(
    weights: tuple[int, int, int], radius: int, target: int, constant: int, target_square: bool
) -> None:
    limits = RowLimits(constant, (10**6, 10**6), radius, target, target_square)
    A, B, C = weights[0] ** 2, weights[1] ** 2, weights[2] ** 2 * target_square
    assert _ball(limits, A, B, C) == math.ceil(_slow_square(A, B, C, radius**2, target, constant**2))


@pytest.mark.parametrize("constant", [0, 1, 3])
@pytest.mark.parametrize("weights", [(1, 1, 1), (2, 1, 1), (1, 3, 1), (1, 2, 5)])
@pytest.mark.parametrize(("bounds", "radius"), [((3, 3, 2), 3), ((2, 3, 3), 2), ((2, 2, 1), None), ((3, 3), 2)])
def test_every_pair_of_a_small_grid(
    bounds: tuple[int, ...], radius: int | None, weights: tuple[int, int, int], constant: int
) -> None:
    """At f = 0 these are all rows there are, and a missing one; L1 as well."""
    statistic = Regression(
        **a_box(*map(float, bounds)), radius=radius and float(radius), weights=weights, target_square=True,
        intercept=constant > 0, intercept_bound=float(constant or 1),
    )  # fmt: skip
    rows = np.array(list(itertools.product(*[range(-c, c + 1) for c in bounds])), dtype=np.float64)
    values = np.vstack([statistic.evaluate(rows, 0), np.zeros((1, statistic.dimension), dtype=np.int64)])
    values = np.unique(values, axis=0)
    stated = statistic.row_sensitivity(0)
    assert max(int(((values - value) ** 2).sum(axis=1).max()) for value in values) <= stated.l2_squared
    assert max(int(np.abs(values - value).sum(axis=1).max()) for value in values) <= stated.l1
    assert np.abs(values).max() <= stated.bound


def test_box_and_ball_both_apply_and_the_smaller_figure_holds() -> None:
    box, ball = Sum(**a_box(1.0, 1.0)), Sum(**a_box(1.0, 1.0), radius=1.25)
    assert math.ldexp(ball.row_sensitivity(F).l2, -F) == pytest.approx(2.5)
    assert Sum(**a_box(1.0, 1.0), radius=7.0).row_sensitivity(F) == box.row_sensitivity(F)
    assert Sum(**a_box(9.0, 9.0), radius=1.0).row_sensitivity(F).bound == 2**F
    wide = Regression(**a_box(1.0, 1.0, 1.0), radius=100.0)
    assert wide.row_sensitivity(F) == Regression(**a_box(1.0, 1.0, 1.0)).row_sensitivity(F)
    # One feature: its ball is a box, and the box's bound, 2 at R = s = 1, is the smaller of the two.
    assert regression_sensitivity(RowLimits(0, (5,), 1, 1, True), (1, 1, 1)).l2_squared == 4
