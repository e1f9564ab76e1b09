"""Named statistics: what they compute, what they refuse, and what a client makes of its rows."""

from __future__ import annotations

import math
import re
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dca_proto.crypto.fixedpoint import dequantise
from dca_proto.errors import UsageError
from dca_proto.statistics import (
    Gradient,
    Histogram,
    Mean,
    Mixture,
    Moments,
    Regression,
    SecondMoments,
    Statistic,
    Sum,
    resolve,
)
from dca_proto.statistics.contribution import client_sensitivity, contribution

F = 20
BOX: dict[str, Any] = {
    "columns": ("a", "b", "y"),
    "centre": (1.0, -2.0, 0.5),
    "scale": (2.0, 0.5, 1.0),
    "bound": (1.5, 2.0, 1.25),
}
ALL = [
    Sum(**BOX),
    Mean(**BOX),
    SecondMoments(**BOX),
    Regression(**BOX),
    Regression(**BOX, intercept=True, target_square=True),
    Histogram(columns=("a",), edges=(0.0, 1.0, 2.5)),
    Mean(**BOX, radius=1.75),
    Regression(**BOX, intercept=True, target_square=True, radius=1.0, weights=(3, 2, 7)),
    Gradient(**BOX, theta=(0.5, -1.0), clip=2.0),
    Gradient(**BOX, theta=(0.5, -1.0, 0.25), clip=0.5, family="bernoulli", intercept=True),
    Moments(**BOX),
    Mixture(
        **BOX,
        log_weights=(0.0, 0.5),
        means=((0.5, 0.0, 1.0), (-0.5, 0.3, -1.0)),
        precisions=((1.0, 4.0, 2.0), (3.0, 0.0, 1.0)),
        offsets=(0.5, 1.0, 0.0),
        weights=(3, 2, 1),
    ),
]


def a_box(*bounds: float, **changes: Any) -> dict[str, Any]:
    names = tuple(f"c{j}" for j in range(len(bounds)))
    return {"columns": names, "centre": (0.0,) * len(bounds), "scale": (1.0,) * len(bounds), "bound": bounds, **changes}


def scaled(rows: np.ndarray) -> np.ndarray:
    z = (rows - np.array(BOX["centre"])) / np.array(BOX["scale"])
    return np.clip(z, -np.array(BOX["bound"]), np.array(BOX["bound"]))


def some_rows(m: int, width: int = 3) -> np.ndarray:
    return np.random.default_rng(7).normal(scale=2.0, size=(m, width))


# What is computed


@pytest.mark.parametrize("statistic", [Sum(**BOX), Mean(**BOX)])
def test_linear_statistics_are_the_scaled_columns(statistic: Statistic) -> None:
    rows = some_rows(50)
    values = dequantise(statistic.evaluate(rows, F), F)
    np.testing.assert_allclose(values, scaled(rows), rtol=0, atol=2.0**-F)


def test_second_moments_are_squares() -> None:
    rows = some_rows(50)
    values = dequantise(SecondMoments(**BOX).evaluate(rows, F), F)
    # One grid unit of 2^-10 in each factor, times both factors (at most 2 each).
    np.testing.assert_allclose(values, scaled(rows) ** 2, rtol=0, atol=4 * 2.0 ** -(F // 2))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("target_square", [False, True])
def test_regression_is_the_unique_products_in_the_stated_order(intercept: bool, target_square: bool) -> None:
    statistic = Regression(**BOX, intercept=intercept, intercept_bound=0.75, target_square=target_square)
    rows = some_rows(50)
    z = scaled(rows)
    x, y = z[:, :2], z[:, 2:]
    if intercept:
        x = np.hstack([np.full((50, 1), 0.75), x])
    d = x.shape[1]
    expected = [x[:, [i]] * x[:, [j]] for i in range(d) for j in range(i, d)] + [x * y] + [y * y] * target_square
    values = dequantise(statistic.evaluate(rows, F), F)
    np.testing.assert_allclose(values, np.hstack(expected), rtol=0, atol=4 * 2.0 ** -(F // 2))
    assert statistic.features == (("1",) if intercept else ()) + ("a", "b")
    assert statistic.target == "y"


def test_regression_products_are_exact_in_integers() -> None:
    """The released matrix is a true xxᵀ of integers: each row's has rank one to the last bit."""
    statistic = Regression(**a_box(2.0, 2.0, 2.0), target_square=True)
    aa, ab, bb, ay, by, yy = (int(v) for v in statistic.evaluate(np.array([[0.1234567, -1.7654321, 0.777]]), 40)[0])
    assert ab * ab == aa * bb
    assert ay * ay == aa * yy
    assert ab * by == bb * ay


def test_unpack_gives_back_the_matrices() -> None:
    statistic = Regression(**BOX, intercept=True, target_square=True)
    x, y = np.array([1.0, 0.5, -0.25]), 0.75
    value = np.concatenate([np.outer(x, x)[np.triu_indices(3)], x * y, [y * y]])
    xx, xy, yy = statistic.unpack(value)
    np.testing.assert_array_equal(xx, np.outer(x, x))
    np.testing.assert_array_equal(xy, x * y)
    assert yy == y * y
    assert Regression(**BOX, intercept=True).unpack(value[:-1])[2] is None
    with pytest.raises(UsageError, match=r"expected \(10,\)"):
        statistic.unpack(value[:-1])


def test_weights_are_multiplied_in_and_divided_out_again() -> None:
    plain = Regression(**BOX, intercept=True, target_square=True)
    weighted = Regression(**BOX, intercept=True, target_square=True, weights=(3, 2, 7))
    rows = some_rows(20)
    factors = np.repeat([3, 2, 7], [6, 3, 1])
    np.testing.assert_array_equal(weighted.evaluate(rows, F), plain.evaluate(rows, F) * factors)
    value = dequantise(weighted.evaluate(rows, F).sum(axis=0), F)
    sums = dequantise(plain.evaluate(rows, F).sum(axis=0), F)
    np.testing.assert_allclose(weighted.estimate(value, 20), sums)
    np.testing.assert_array_equal(plain.estimate(sums, 20), sums)
    for left, right in zip(weighted.unpack(value), plain.unpack(sums), strict=True):
        np.testing.assert_allclose(left, right)
    np.testing.assert_allclose(weighted.noise_std(42.0), [14.0] * 6 + [21.0] * 3 + [6.0])
    assert weighted.block_sizes == (6, 3, 1)


def test_noise_is_shaped_by_the_weights() -> None:
    """Noise of σ on the released value has σ/w after unpacking: χ², each of 10 false-alarms once in 10^6."""
    statistic = Regression(**BOX, intercept=True, target_square=True, weights=(8, 2, 1))
    generator = np.random.default_rng(8)
    noise = np.array([statistic.estimate(generator.normal(scale=3.0, size=10), 1) for _ in range(4000)])
    ratio = (noise**2).sum(axis=0) / statistic.noise_std(3.0) ** 2 / 4000
    assert np.abs(ratio - 1).max() < 5 * math.sqrt(2 / 4000)


def test_a_row_is_brought_into_the_ball_with_its_direction() -> None:
    statistic = Sum(**a_box(9.0, 9.0), radius=5.0)
    rows = np.array([[3.0, 4.0], [-6.0, 8.0], [1e9, 0.0], [0.5, 0.5], [9e99, 9e99]])
    values = dequantise(statistic.evaluate(rows, F), F)
    expected = [[3.0, 4.0], [-3.0, 4.0], [5.0, 0.0], [0.5, 0.5], [12.5**0.5] * 2]
    np.testing.assert_allclose(values, expected, rtol=0, atol=2.0**-F)
    assert (np.abs(values) <= np.abs(expected)).all()
    assert values[0].tolist() == [3.0, 4.0]  # on the sphere, exactly: not touched


def test_the_ball_of_a_regression_holds_the_features_alone() -> None:
    statistic = Regression(**a_box(9.0, 9.0, 20.0), radius=5.0, intercept=True, target_square=True)
    xx, xy, yy = statistic.unpack(dequantise(statistic.evaluate(np.array([[30.0, 40.0, 15.0]]), F)[0], F))
    x = np.array([1.0, *(5 * math.sqrt(0.5) * np.ones(2))])  # clamped to (9, 9) first: the box and the ball both apply
    np.testing.assert_allclose(xx, np.outer(x, x), atol=0.01)
    np.testing.assert_allclose(xy, 15 * x, atol=0.05)
    assert yy == 225


def test_unpack_inverts_evaluate() -> None:
    rows = np.array([[2.0, -1.75, 1.0], [0.0, -2.5, -0.5]])
    statistic = Regression(**BOX)
    xx, xy, _ = statistic.unpack(dequantise(contribution(statistic, rows, 2, F), F))
    z = scaled(rows)
    np.testing.assert_array_equal(xx, z[:, :2].T @ z[:, :2])
    np.testing.assert_array_equal(xy, z[:, :2].T @ z[:, 2])


def test_histogram_bins_are_half_open_and_the_outer_ones_take_the_rest() -> None:
    statistic = Histogram(columns=("x",), edges=(0.0, 1.0, 2.5))
    values = [[-1e300], [-0.0], [0.999], [1.0], [2.5], [7.0]]
    bins = statistic.evaluate(np.array(values), 4).tolist()
    assert bins == [[16, 0], [16, 0], [16, 0], [0, 16], [0, 16], [0, 16]]
    assert statistic.labels() == ("x in [0, 1)", "x in [1, 2.5]")


def test_histogram_of_categories() -> None:
    statistic = Histogram(columns=("k",), edges=(-0.5, 0.5, 1.5, 2.5))
    assert contribution(statistic, np.array([[0.0], [2.0], [2.0]]), 3, 0).tolist() == [1, 0, 2]


@pytest.mark.parametrize("statistic", ALL)
def test_every_coordinate_has_a_label_and_a_number(statistic: Statistic) -> None:
    rows = some_rows(4, len(statistic.columns))
    assert len(statistic.labels()) == statistic.dimension == len(set(statistic.labels()))
    assert statistic.evaluate(rows, F).shape == (4, statistic.dimension)
    assert np.abs(statistic.evaluate(1e3 * rows, F)).max() <= statistic.row_sensitivity(F).bound


def test_ranges_are_what_values_are_clamped_to() -> None:
    expected = {"a": (-2.0, 4.0), "b": (-3.0, -1.0), "y": (-0.75, 1.75)}
    for statistic in ALL:
        if not isinstance(statistic, Histogram):
            assert statistic.ranges() == expected
    assert Histogram(columns=("a",), edges=(0.0, 1.0, 2.5)).ranges() == {"a": (0.0, 2.5)}
    beyond, at = np.array([[4.5, -0.5, 9.0], [-99.0, -3.5, -9.0]]), np.array([[4.0, -1.0, 1.75], [-2.0, -3.0, -0.75]])
    for statistic in ALL:
        width = len(statistic.columns)
        np.testing.assert_array_equal(statistic.evaluate(beyond[:, :width], F), statistic.evaluate(at[:, :width], F))


def test_estimates_are_in_units_of_the_data() -> None:
    rows = np.array([[1.5, -2.25, 1.0], [2.0, -1.5, 0.0], [0.0, -2.0, 0.75]])
    values = dequantise(Sum(**BOX).evaluate(rows, F).sum(axis=0), F)
    squares = dequantise(SecondMoments(**BOX).evaluate(rows, F).sum(axis=0), F)
    np.testing.assert_allclose(Sum(**BOX).estimate(values, 3), rows.sum(axis=0))
    np.testing.assert_allclose(Mean(**BOX).estimate(values, 3), rows.mean(axis=0))
    deviations = np.mean((rows - np.array(BOX["centre"])) ** 2, axis=0)
    np.testing.assert_allclose(SecondMoments(**BOX).estimate(squares, 3), deviations)
    np.testing.assert_array_equal(Regression(**BOX).estimate(np.arange(5.0), 3), np.arange(5.0))


# What a client contributes


@pytest.mark.parametrize("statistic", ALL)
@pytest.mark.parametrize("rows_max", [0, 1, 3])
def test_no_rows_and_only_bad_rows_contribute_zero(statistic: Statistic, rows_max: int) -> None:
    width = len(statistic.columns)
    bad = np.zeros((4, width))
    bad[:, 0] = [math.nan, math.inf, -math.inf, math.nan]
    for rows in (bad, np.empty((0, width)), np.empty(0)):
        assert contribution(statistic, rows, rows_max, F).tolist() == [0] * statistic.dimension


def test_one_missing_value_makes_its_row_zero() -> None:
    statistic = Sum(**a_box(2.0, 2.0))
    rows = np.array([[1.0, 1.0], [1.0, math.nan], [0.5, 0.5]])
    assert contribution(statistic, rows, 5, 2).tolist() == [6, 6]
    # In a mean it counts in the denominator: (4 + 0 + 2)/3.
    assert contribution(statistic, rows, 0, 2).tolist() == [2, 2]


def test_only_the_first_rows_count_and_a_missing_one_takes_its_place() -> None:
    statistic = Sum(**a_box(8.0))
    rows = np.array([[1.0], [math.nan], [2.0], [4.0]])
    assert [contribution(statistic, rows, R, 0).tolist() for R in (1, 2, 3, 4, 100)] == [[1], [1], [3], [7], [7]]


def test_the_mean_is_rounded_to_the_nearest_integer() -> None:
    statistic = Sum(**a_box(8.0))
    for rows, expected in [
        ([1, 2], 2),
        ([1, 1, 2], 1),
        ([-1, -2], -1),
        ([-1, -1, -2], -1),
        ([-8] * 3, -8),
        ([8] * 7, 8),
    ]:
        assert contribution(statistic, np.array(rows, dtype=float).reshape(-1, 1), 0, 0).tolist() == [expected]


@settings(deadline=None)  # the machine may be busy
@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 40), st.just(2)), elements=st.floats(-3000, 3000)), st.data())
def test_the_mean_is_exact_where_a_plain_sum_would_overflow(rows: np.ndarray, data: st.DataObject) -> None:
    """4,000 rows of up to 2^52 grid units add up to 2^64; compared with fractions of Python's integers."""
    statistic = Sum(**a_box(4095.0, 4095.0))
    rows = np.tile(rows, (data.draw(st.sampled_from([1, 100])), 1))
    mean = contribution(statistic, rows, 0, 40)
    integers = statistic.evaluate(rows, 40).tolist()
    for column, got in zip(zip(*integers, strict=True), mean.tolist(), strict=True):
        assert got == math.floor(Fraction(sum(column), len(column)) + Fraction(1, 2))


def test_the_mean_of_many_rows_at_the_bound_is_the_bound() -> None:
    statistic = Sum(**a_box(8191.0))
    assert contribution(statistic, np.full((5000, 1), 1e9), 0, 40).tolist() == [8191 << 40]
    assert contribution(statistic, np.full((5000, 1), -1e9), 0, 40).tolist() == [-8191 << 40]


@pytest.mark.parametrize("statistic", ALL)
@pytest.mark.parametrize("rows_max", [0, 30])
def test_chunks_make_no_difference(statistic: Statistic, rows_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = some_rows(37, len(statistic.columns))
    whole = contribution(statistic, rows, rows_max, F)
    monkeypatch.setattr("dca_proto.statistics.contribution._CHUNK_WORDS", 7 * statistic.dimension)
    np.testing.assert_array_equal(contribution(statistic, rows, rows_max, F), whole)


@pytest.mark.parametrize("statistic", ALL)
@settings(deadline=None)  # the machine may be busy
@given(data=st.data(), rows_max=st.sampled_from([0, 1, 3]))
def test_no_value_of_a_row_makes_a_contribution_fail(statistic: Statistic, data: st.DataObject, rows_max: int) -> None:
    shape = st.tuples(st.integers(0, 5), st.just(len(statistic.columns)))
    rows = data.draw(hnp.arrays(np.float64, shape, elements=st.floats()))
    vector = contribution(statistic, rows, rows_max, F)
    limit = client_sensitivity(statistic, rows_max, F)
    assert vector.dtype == np.int64
    assert np.abs(vector).max() <= limit.bound
    assert sum(v * v for v in vector.tolist()) <= limit.l2_squared
    assert sum(abs(v) for v in vector.tolist()) <= limit.l1


def test_huge_values_and_tiny_scales_clamp_without_a_warning() -> None:
    statistic = Sum(**a_box(2.0, 2.0, centre=(-1e50, 1e50), scale=(1e-50, 1e-50)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert contribution(statistic, np.array([[1.7e308, -1.7e308]]), 1, 4).tolist() == [32, -32]


def test_bounds_are_clamped_to_the_grid_below() -> None:
    # 1.3 · 2^4 = 20.8: the nearest integer, 21, would lie outside of the bound.
    assert contribution(Sum(**a_box(1.3)), np.array([[9.0]]), 1, 4).tolist() == [20]


@pytest.mark.parametrize("rows", [np.zeros(3), np.zeros((2, 4)), np.zeros((1, 2, 3))])
def test_a_table_of_another_shape_is_refused(rows: np.ndarray) -> None:
    with pytest.raises(UsageError, match=r"expected \(m, 3\): a, b, y"):
        contribution(Sum(**BOX), rows, 1, F)


# What does not fit


@pytest.mark.parametrize("fraction_bits", [-2, 7, 42])
@pytest.mark.parametrize("statistic", ALL)
def test_fraction_bits_are_even_and_in_range(statistic: Statistic, fraction_bits: int) -> None:
    with pytest.raises(UsageError, match="fraction_bits"):
        client_sensitivity(statistic, 1, fraction_bits)
    with pytest.raises(UsageError, match="fraction_bits"):
        contribution(statistic, some_rows(2, len(statistic.columns)), 1, fraction_bits)


def test_products_need_an_even_number_of_fraction_bits() -> None:
    for statistic in (SecondMoments(**BOX), Regression(**BOX)):
        with pytest.raises(UsageError, match="choose an even number"):
            statistic.evaluate(some_rows(1), 7)


@pytest.mark.parametrize("rows_max", [-1, 2**30 + 1])
def test_rows_max_is_in_range(rows_max: int) -> None:
    with pytest.raises(UsageError, match="rows_max"):
        client_sensitivity(ALL[0], rows_max, F)


@pytest.mark.parametrize(
    ("statistic", "rows_max", "fraction_bits"),
    [
        (Sum(**a_box(1e300)), 1, 0),
        (Sum(**a_box(1e300)), 1, 40),
        (Sum(**a_box(8192.0)), 1, 40),
        (Sum(**a_box(8191.0)), 2, 40),
        (SecondMoments(**a_box(91.0)), 1, 40),
        (Regression(**a_box(1.0, 91.0), target_square=True), 1, 40),
        (Regression(**a_box(1.0, 1.0), intercept=True, intercept_bound=91.0), 0, 40),
        (Histogram(columns=("x",), edges=(0.0, 1.0)), 2**13, 40),
    ],
)
def test_what_exceeds_2_to_53_is_refused(statistic: Statistic, rows_max: int, fraction_bits: int) -> None:
    with pytest.raises(UsageError, match=r"fewer fraction bits|lower the fraction bits"):
        client_sensitivity(statistic, rows_max, fraction_bits)
    with pytest.raises(UsageError, match=r"fewer fraction bits|lower the fraction bits"):
        contribution(statistic, np.zeros((1, len(statistic.columns))), rows_max, fraction_bits)


def test_what_stays_just_below_2_to_53_is_taken() -> None:
    assert client_sensitivity(Sum(**a_box(8191.0)), 1, 40).bound == 8191 << 40
    assert client_sensitivity(SecondMoments(**a_box(90.0)), 1, 40).bound == (90 << 20) ** 2
    # Without y², a large target enters once per product.
    assert client_sensitivity(Regression(**a_box(1.0, 91.0)), 1, 40).bound == 91 << 40


@pytest.mark.parametrize(
    ("statistic", "fraction_bits", "remedy"),
    [
        (
            SecondMoments(**a_box(91.0)),
            40,
            r"lower the fraction bits to 38, or the bounds or rows_max by a factor of 2\^2",
        ),
        (SecondMoments(**a_box(1e4)), 40, "lower the fraction bits to 26, or the bounds"),
        (SecondMoments(**a_box(1e9)), 2, "; lower the bounds or rows_max by a factor of 2"),
    ],
)
def test_a_statistic_that_does_not_fit_the_grid_is_refused_with_a_remedy(
    statistic: Statistic, fraction_bits: int, remedy: str
) -> None:
    with pytest.raises(UsageError, match=remedy):
        client_sensitivity(statistic, 1, fraction_bits)


@pytest.mark.parametrize("fraction_bits", [20, 40])
def test_a_radius_fits_the_grid(fraction_bits: int) -> None:
    for radius, complaint in ((1e-13, "raise it or use more fraction bits"), (1e300, "use fewer fraction bits")):
        for statistic in (Sum(**BOX, radius=radius), Regression(**BOX, radius=radius)):
            with pytest.raises(UsageError, match=re.escape(f"radius {radius:g} is ") + f".*{complaint}"):
                client_sensitivity(statistic, 1, fraction_bits)


def test_a_bound_below_the_grid_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"bound 0\.01 of column 'c1' is below one grid unit of 0\.0156.*; raise it or use more"
    ):
        client_sensitivity(Sum(**a_box(1.0, 0.01)), 1, 6)


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("sum", {"columns": []}, "0 columns"),
        ("sum", {"columns": ["a", "b", "a"]}, "named twice"),
        ("sum", {"columns": ["a", "b", ""]}, "empty"),
        ("sum", {"columns": ["a", "b", "x" * 129]}, "longer than 128"),
        ("sum", {"columns": ["a", "b", "x\ny"]}, "not printable"),
        ("sum", {"columns": ["a", "b", 3]}, r"columns\[2\] is a whole number, expected a text"),
        ("sum", {"columns": "aby"}, "columns is a text, expected a list"),
        ("sum", {"columns": [f"c{j}" for j in range(4097)]}, "for 4097 columns"),
        ("sum", {"centre": [0.0]}, "centre has 1 values for 3 columns"),
        ("sum", {"centre": [0.0, math.nan, 0.0]}, "centre of column 'b' is nan; give a finite number, from -1e"),
        ("mean", {"scale": [1.0, math.inf, 1.0]}, "scale of column 'b' is inf; give a finite number above 0"),
        ("mean", {"scale": [1.0, 0.0, 1.0]}, "scale of column 'b' is 0; give a finite number above 0"),
        ("second-moments", {"bound": [1.0, -1.0, 1.0]}, "bound of column 'b' is -1; give a finite number above 0"),
        ("second-moments", {"bound": [1.0, "2", 1.0]}, r"bound\[1\] is a text, expected a number"),
        ("mean", {"bound": [math.inf, 1.0, 1.0]}, "bound of column 'a' is inf; give a finite number above 0"),
        ("mean", {"centre": [1.0, 1.0, -math.inf]}, "centre of column 'y' is -inf; give a finite number, from -1e"),
        ("sum", {"extra": 1}, "'sum' has no parameter 'extra'; it takes: columns"),
        ("regression", {"columns": ["y"], "centre": [0], "scale": [1], "bound": [1]}, "no feature"),
        ("regression", {"intercept_bound": 0.0}, "intercept_bound is 0"),
        ("regression", {"intercept_bound": math.inf}, "intercept_bound is inf"),
        ("regression", {"intercept": 1}, "intercept is a whole number, expected true or false"),
        ("regression", {"weights": [1, 0, 1]}, r"weights are \(1, 0, 1\); give three whole numbers from 1 to 4096"),
        ("regression", {"weights": [1, 1, 4097]}, "whole numbers from 1 to 4096"),
        ("regression", {"weights": [1, 1]}, "weights has 2 values, expected 3"),
        ("regression", {"weights": [1, 1.5, 1]}, r"weights\[1\] is a number, expected a whole number"),
        ("regression", {"radius": math.nan}, "radius is nan; give a finite number above 0"),
        ("regression", {"radius": -1.0}, "radius is -1; give a finite number above 0"),
        ("sum", {"radius": math.inf}, "radius is inf; give a finite number above 0"),
        ("mean", {"radius": 0.0}, "radius is 0; give a finite number above 0"),
        (
            "regression",
            {"columns": ["y"], "centre": [0], "scale": [1], "bound": [1], "intercept": True, "radius": 1.0},
            "a radius without features",
        ),
    ],
)
def test_parameters_of_columns_are_checked(name: str, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        resolve(name, {**BOX, **changes})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"columns": ["a", "b"]}, "2 columns; a histogram takes one"),
        ({"columns": []}, "0 columns; a histogram takes one"),
        ({"edges": [1.0]}, "1 edges"),
        ({"edges": [float(k) for k in range(2**16 + 2)]}, "65538 edges"),
        ({"edges": [0.0, 1.0, 1.0]}, "do not increase"),
        ({"edges": [0.0, math.nan, 1.0]}, "NaN or infinite"),
        ({"edges": [-math.inf, 0.0]}, "NaN or infinite"),
    ],
)
def test_parameters_of_histograms_are_checked(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        resolve("histogram", {"columns": ["x"], "edges": [0.0, 1.0], **changes})


def test_4096_columns_are_taken() -> None:
    assert Sum(**a_box(*[1.0] * 4096)).dimension == 4096
    with pytest.raises(UsageError, match="4097 columns"):
        Sum(**a_box(*[1.0] * 4097))
