"""A mixture's expected sufficient statistics: their values, their exact integers, and how far two rows are apart."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from dca_proto.crypto.fixedpoint import dequantise
from dca_proto.errors import UsageError
from dca_proto.statistics import Mixture, resolve
from dca_proto.statistics.contribution import client_sensitivity, contribution
from dca_proto.statistics.moments import FREE_BOUND

F = 24


def mixture(*bounds: float, components: int = 2, **changes: Any) -> Mixture:
    n = len(bounds)
    places = np.linspace(-1, 1, components)
    plain: dict[str, Any] = {
        "columns": tuple(f"c{j}" for j in range(n)),
        "centre": (0.0,) * n,
        "scale": (1.0,) * n,
        "bound": bounds,
        "log_weights": tuple(float(k) / 10 for k in range(components)),
        "means": tuple((float(place),) * n for place in places),
        "precisions": ((4.0,) * n,) * components,
    }
    return Mixture(**{**plain, **changes})


def best_offsets(bounds: tuple[float, ...], weights: tuple[int, int, int]) -> tuple[float, ...]:
    """As the file's head says."""
    return tuple(min(c * c, (c * c + (weights[1] / weights[2]) ** 2) / 2) for c in bounds)


# What it says.


def test_responsibilities_are_those_of_the_mixture() -> None:
    generator = np.random.default_rng(2)
    weights, means, variances = (
        np.array([0.2, 0.5, 0.3]),
        generator.normal(size=(3, 2)),
        generator.uniform(0.1, 2, (3, 2)),
    )
    reference = GaussianMixture(3, covariance_type="diag")
    reference.weights_, reference.means_, reference.covariances_ = weights, means, variances
    reference.precisions_cholesky_ = 1 / np.sqrt(variances)
    statistic = mixture(
        9.0, 9.0,
        log_weights=tuple((np.log(weights) - np.log(variances).sum(axis=1) / 2).tolist()),
        means=tuple(map(tuple, means.tolist())),
        precisions=tuple(map(tuple, (1 / variances).tolist())),
    )  # fmt: skip
    rows = generator.normal(size=(50, 2), scale=2)
    np.testing.assert_allclose(statistic.responsibilities(rows), reference.predict_proba(rows), atol=1e-12)


def test_sums_are_unpacked_in_the_units_of_the_scales() -> None:
    generator = np.random.default_rng(3)
    rows = generator.uniform(-1, 1, size=(80, 2))
    for weights, offsets in (((1, 1, 1), ()), ((3, 1, 2), (0.625, 0.0))):
        statistic = mixture(1.0, 1.0, components=3, weights=weights, offsets=offsets)
        value = dequantise(contribution(statistic, rows, 80, F), F)
        counts, sums, squares = statistic.unpack(value)
        r = statistic.responsibilities(rows)
        np.testing.assert_allclose(counts, r.sum(axis=0), atol=0.01)
        np.testing.assert_allclose(sums, r.T @ rows, atol=0.02)  # 80 rows on a grid of 2^-12
        np.testing.assert_allclose(squares, r.T @ rows**2, atol=0.04)
        estimated = statistic.estimate(value, 80).reshape(3, 5)
        np.testing.assert_allclose(estimated[:, :3], np.column_stack([counts, sums]))
        h = np.array(offsets or (0.0, 0.0))
        np.testing.assert_allclose(estimated[:, 3:], squares - counts[:, None] * h, atol=1e-12)
    assert statistic.dimension == 15
    assert statistic.labels()[:6] == ("r1", "r1·c0", "r1·c1", "r1·(c0² - 0.625)", "r1·c1²", "r2")


def test_rows_far_from_every_component_and_precisions_of_any_size_give_numbers() -> None:
    for precision in (0.0, 1e-300, 1e60):
        statistic = mixture(5.0, precisions=((precision,), (precision,)), means=((-4.0,), (-4.5,)))
        r = statistic.responsibilities(np.array([[5.0], [-5.0], [0.0]]))
        assert np.isfinite(r).all()
        np.testing.assert_allclose(r.sum(axis=1), 1.0)


# Its integers.


@pytest.mark.parametrize("fraction_bits", [0, 8, 24, 40])
@pytest.mark.parametrize("weights", [(1, 1, 1), (7, 4096, 3)])
def test_they_are_products_of_integers_truncated(fraction_bits: int, weights: tuple[int, int, int]) -> None:
    """Against fractions, at every precision; at 40 bits the responsibilities have fewer, and products fit 64 bits."""
    h = (0.5, 2.25)
    statistic = mixture(1.0, 2.0, weights=weights, offsets=h)
    rows = np.random.default_rng(8).uniform(-2.5, 2.5, size=(20, 2))
    found = statistic.evaluate(rows, fraction_bits)
    half, (w1, w2, w3) = fraction_bits // 2, weights
    x = np.rint(np.ldexp(np.clip(rows, [-1.0, -2.0], [1.0, 2.0]), half))
    r = statistic.responsibilities(np.ldexp(x, -half))
    offsets = [round(math.ldexp(one, fraction_bits)) for one in h]
    largest = max(
        w1 << fraction_bits,
        w2 * 2 ** (half + 1) << half,
        *(w3 * max(h, c * c * 4**half - h) for c, h in zip((1, 2), offsets, strict=True)),
    )
    g = min(fraction_bits, 61 - largest.bit_length())
    for row in range(20):
        squares = [w3 * (int(c) ** 2 - h) for c, h in zip(x[row], offsets, strict=True)]
        v = [w1 << fraction_bits, *((w2 * int(c)) << half for c in x[row]), *squares]
        shares = [math.floor(Fraction(float(one)) * 2**g) for one in r[row]]
        assert sum(shares) <= 2**g
        assert found[row].tolist() == [int(Fraction(share * one, 2**g)) for share in shares for one in v]


def test_shares_never_add_up_to_more_than_one() -> None:
    """What the bound stands on: of 4,096 equal shares and of few uneven ones, at the finest grid that there is."""
    for components in (2, 3, 7, 4096):
        statistic = mixture(
            1.0, components=components, precisions=((0.0,),) * components, log_weights=(0.0,) * components
        )
        assert np.floor(np.ldexp(statistic.responsibilities(np.zeros((1, 1))), 40)).sum() <= 2**40
    logs = np.random.default_rng(9).normal(scale=5, size=(300, 5))
    r = np.array([mixture(1.0, components=5, precisions=((0.0,),) * 5, log_weights=tuple(one)).responsibilities(
        np.zeros((1, 1)))[0] for one in logs.tolist()])  # fmt: skip
    assert np.floor(np.ldexp(r, 40)).sum(axis=1).max() <= 2**40


# Its sensitivity.


def vectors(
    bounds: tuple[float, ...], weights: tuple[int, int, int], offsets: tuple[float, ...], generator: np.random.Generator
) -> np.ndarray:
    """φ of rows inside, at zero, at faces and at corners, with responsibilities of every kind for two components."""
    c, count = np.array(bounds), 1500
    kind = generator.integers(0, 4, size=(count, len(c)))
    signs = generator.choice([-1.0, 1.0], size=kind.shape)
    x = c * np.choose(kind, [0 * signs, signs, signs, generator.uniform(-1, 1, size=kind.shape)])
    first = np.choose(
        generator.integers(0, 3, size=count), [0 * x[:, 0], 0 * x[:, 0] + 1, generator.uniform(size=count)]
    )
    w1, w2, w3 = weights
    h = np.array(offsets or (0.0,) * len(bounds))
    v = np.concatenate([np.full((count, 1), w1), w2 * x, w3 * (x**2 - h)], axis=1)
    r = np.stack([first, 1 - first], axis=1)
    return (r[:, :, None] * v[:, None, :]).reshape(count, -1)


CASES = [
    ((1.0,), (1, 1, 1)),
    ((1.0, 2.0, 0.5), (1, 1, 1)),
    ((0.7,) * 8, (1, 1, 1)),
    ((0.3, 0.4), (1, 8, 1)),
    ((1.0, 1.0), (5, 1, 3)),
    ((2.0, 3.0), (1, 1, 4)),
]


@pytest.mark.parametrize("shifted", ["not", "best", "far"])
@pytest.mark.parametrize(("bounds", "weights"), CASES)
def test_no_two_rows_exceed_it_whatever_their_responsibilities(
    bounds: tuple[float, ...], weights: tuple[int, int, int], shifted: str
) -> None:
    """With offsets far above the best ones, rows at zero are the longest."""
    offsets = {"not": (), "best": best_offsets(bounds, weights), "far": tuple(4 * c * c for c in bounds)}[shifted]
    phi = vectors(bounds, weights, offsets, np.random.default_rng(7))
    squares = np.square(phi).sum(axis=1)
    apart = np.sqrt(max((squares[:, None] + squares - 2 * phi @ phi.T).max(), squares.max()))
    statistic = mixture(*bounds, weights=weights, offsets=offsets)
    stated = math.ldexp(client_sensitivity(statistic, 1, F).l2, -F)
    assert apart <= stated * (1 + 2.0**-9)  # the bounds are cut to the grid


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("bounds", "weights"), CASES)
def test_it_is_attained(bounds: tuple[float, ...], weights: tuple[int, int, int], shifted: bool) -> None:
    """By opposite corners of the box in two components, or by the widest pair of each column in one; and by
    parameters that there may really be."""
    corner, (_, w2, w3) = np.array([bounds]), weights
    steps = corner.T * np.linspace(-1, 1, 401)
    t, s = corner.T - steps, corner.T + steps
    widest = steps[np.arange(len(bounds)), (t**2 * (w2**2 + (w3 * s) ** 2)).argmax(axis=1)]
    far = tuple((place,) * len(bounds) for place in (-1e3, 1e3))
    same: dict[str, Any] = {"weights": weights, "offsets": best_offsets(bounds, weights) if shifted else ()}
    apart = mixture(*bounds, means=far, log_weights=(0.0, 0.0), **same)
    alike = mixture(*bounds, means=far[:1] * 2, log_weights=(0.0, -1e4), **same)
    best = max(
        float(np.linalg.norm(np.diff(one.evaluate(np.vstack([corner, other]), F).astype(float), axis=0)))
        for one, other in ((apart, -corner), (alike, widest[None]))
    )
    assert 0.999 * client_sensitivity(alike, 1, F).l2 <= best <= client_sensitivity(alike, 1, F).l2


def best_mixture(bound: float, columns: int, more: float = 1.0) -> Mixture:
    """As the file's head says; `more`: times as much weight of the counts."""
    w2, w3 = 64, math.floor(64 * FREE_BOUND / bound)
    (h,) = best_offsets((bound,), (1, w2, w3))
    w1 = math.floor(more * math.sqrt(columns * (2 * (w2 * bound) ** 2 - (w3 * h) ** 2)))
    return mixture(*(bound,) * columns, weights=(w1, w2, w3), offsets=(h,) * columns)


@pytest.mark.parametrize("bound", [FREE_BOUND, 3.0])
@pytest.mark.parametrize("columns", [1, 2, 7, 30])
def test_counts_and_squares_are_free_at_the_best_offsets_and_weights(columns: int, bound: float) -> None:
    """The sensitivity is that of w₂Σx alone; with counts of a tenth more it is not."""
    best, more = (
        math.ldexp(client_sensitivity(best_mixture(bound, columns, factor), 1, F).l2, -F) for factor in (1.0, 1.1)
    )
    linear = 64 * 2 * bound * math.sqrt(columns)
    assert best == pytest.approx(linear, rel=1e-3)  # bounds are cut to the grid
    assert more > 1.01 * linear


@pytest.mark.parametrize(
    ("bound", "plain_bound", "expected"),
    [(FREE_BOUND, 1.0, [1.02, 1.71, 2.73]), (3.0, 3.0, [2.24, 1.22, 18.2])],
)
def test_how_much_better_the_best_settings_are(bound: float, plain_bound: float, expected: list[float]) -> None:
    """At ten columns, beside equal weights without offsets: the figures of the file's head."""
    best, plain = best_mixture(bound, 10), mixture(*(plain_bound,) * 10)
    unit = bound / plain_bound  # columns of the same data
    noise = client_sensitivity(best, 1, F).l2 / np.array(best.weights)
    counts, sums, squares = noise / np.array([1.0, unit, unit**2])
    ratios = client_sensitivity(plain, 1, F).l2 / np.array([sums, squares, counts])
    assert ratios == pytest.approx(expected, rel=0.01)


def test_components_cost_nothing() -> None:
    few, many = (client_sensitivity(mixture(1.0, 1.0, components=k), 1, F).l2 for k in (2, 50))
    assert many == pytest.approx(few, rel=1e-5)


@pytest.mark.parametrize("fraction_bits", [0, 2, 4])
def test_every_pair_of_rows_of_a_small_grid(fraction_bits: int) -> None:
    """Where rounding weighs most; random parameters; every pair, and every row and a missing one."""
    generator, unit = np.random.default_rng(6), 2 ** (fraction_bits // 2)
    for _ in range(20 // unit):
        statistic = mixture(
            2.0, 1.0, components=3,
            log_weights=tuple(generator.normal(size=3).tolist()),
            means=tuple(map(tuple, generator.normal(size=(3, 2)).tolist())),
            precisions=tuple(map(tuple, generator.exponential(size=(3, 2)).tolist())),
            offsets=tuple(generator.uniform(0, 4, size=2).tolist()),
        )  # fmt: skip
        x, y = np.meshgrid(np.arange(-2 * unit, 2 * unit + 1) / unit, np.arange(-unit, unit + 1) / unit)
        values = statistic.evaluate(np.stack([x.ravel(), y.ravel()], axis=1), fraction_bits)
        values = np.vstack([values, np.zeros((1, values.shape[1]), dtype=np.int64)])
        apart = values[:, None] - values
        limit = statistic.row_sensitivity(fraction_bits)
        assert (apart**2).sum(axis=2).max() <= limit.l2_squared
        assert np.abs(apart).sum(axis=2).max() <= limit.l1
        assert np.abs(values).max() <= limit.bound


# What is refused.

PARAMETERS = {
    "columns": ["a"], "centre": [0.0], "scale": [1.0], "bound": [1.0],
    "log_weights": [0.0, 0.0], "means": [[0.0], [1.0]], "precisions": [[1.0], [1.0]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"log_weights": [0.0]}, "log_weights has 1 values; give 2 to 4096 components"),
        ({"log_weights": [0.0, math.inf]}, "log_weights has a value of inf; give finite numbers"),
        ({"means": [[0.0]]}, "means has 1 rows for 2 components; give one for each"),
        ({"means": [[0.0], [1.0, 2.0]]}, "means has a row of 2 values for 1 columns; give one for each"),
        ({"precisions": [[1.0], [-0.5]]}, "precisions has a value of -0.5; give finite numbers of at least 0"),
        ({"precisions": [[1.0], [math.nan]]}, "precisions has a value of nan"),
        (
            {"precisions": [[1.0], [1e101]]},
            r"a log density can reach 5e\+101, expected below 1e\+100; lower precisions, bound, means or log_weights",
        ),
        ({"bound": [1.7e308], "means": [[0.0], [1.7e308]]}, "a log density can reach inf, expected below 1e"),
        ({"log_weights": [0.0, 1.7e308], "bound": [1e49]}, r"a log density can reach 1.7e\+308, expected below 1e"),
        ({"log_weights": [0.0, 1.7e308], "precisions": [[1e308], [1.0]]}, "a log density can reach inf"),
        ({"offsets": [1.0, 2.0]}, "offsets has a row of 2 values for 1 columns; give one for each"),
        ({"offsets": [-1.0]}, "offsets has a value of -1; give finite numbers of at least 0"),
        ({"offsets": [1e30]}, "give finite numbers of at most 4 times the squared bound"),
        ({"weights": [1, 0, 1]}, r"weights are \(1, 0, 1\); give three whole numbers from 1 to 4096"),
    ],
)
def test_refusals_say_what_to_change(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        resolve("mixture", {**PARAMETERS, **change})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bound": [1e12], "offsets": [1e24]}, "a contribution to 'mixture' can reach .* expected below 2.53"),
        ({"bound": [1e49]}, r"bound 1e\+49 of column 'a' is not below"),
        ({"bound": [1e-9]}, "bound 1e-09 of column 'a' is below one grid unit"),
    ],
)
def test_what_does_not_fit_the_grid_is_refused_before_anybody_takes_part(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        client_sensitivity(resolve("mixture", {**PARAMETERS, **change}), 1, F)
