"""The weights and scales with the least total error: against grids and random ones, and never worse than none."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import numpy as np
import pytest

from dca_proto.errors import UsageError
from dca_proto.statistics import Regression, SecondMoments, Sum, resolve
from dca_proto.statistics.weights import best_regression_weights, best_scales

F = 24
SETTINGS = list(itertools.product([(1.0, 1.0), (1.0, 7.5), (5.0, 0.3)], [1, 2, 11], [None, 1.0], [False, True]))


def regression(bounds: tuple[float, float], d: int, radius: float | None, intercept: bool, **more: Any) -> Regression:
    feature, target = bounds
    names = (*(f"x{j}" for j in range(d)), "y")
    return Regression(
        columns=names, centre=(0.0,) * (d + 1), scale=(1.0,) * (d + 1), bound=(feature,) * d + (target,), radius=radius,
        intercept=intercept, **more,
    )  # fmt: skip


def error(statistic: Regression, weights: tuple[int, ...], importance: tuple[float, ...] = (1.0, 1.0, 1.0)) -> float:
    """Root of the total squared error per unit of 1/mu, as `noise_std` and the sensitivity give it."""
    weighted = msgspec.structs.replace(statistic, weights=weights)
    std = weighted.noise_std(math.ldexp(weighted.row_sensitivity(F).l2, -F))
    return math.sqrt((std**2 * np.repeat(importance, statistic.block_sizes)).sum())


@pytest.mark.parametrize("target_square", [False, True])
@pytest.mark.parametrize(("bounds", "d", "radius", "intercept"), SETTINGS)
def test_no_small_weights_are_better(
    bounds: tuple[float, float], d: int, radius: float | None, intercept: bool, target_square: bool
) -> None:
    """All triples with entries up to 8; and never worse than unit weights, exactly."""
    statistic = regression(bounds, d, radius, intercept, target_square=target_square)
    best = best_regression_weights(statistic, F)
    found = error(statistic, best)
    thirds = range(1, 9) if target_square else [1]
    grid = min(error(statistic, weights) for weights in itertools.product(range(1, 9), range(1, 9), thirds))
    assert found <= 1.005 * grid
    assert found <= error(statistic, (1, 1, 1))
    assert target_square or best[2] == 1
    assert best == best_regression_weights(msgspec.structs.replace(statistic, weights=(9, 1, 4)), F)


@pytest.mark.parametrize("importance", [(1.0, 100.0, 1e4), (1e6, 1.0, 1.0), (0.01, 1.0, 1.0)])
def test_no_random_weights_are_better(importance: tuple[float, float, float]) -> None:
    statistic = regression((1.0, 7.5), 5, 1.0, True, target_square=True)
    best = error(statistic, best_regression_weights(statistic, F, importance), importance)
    random = np.exp(np.random.default_rng(1).uniform(0, math.log(4096), size=(400, 3))).astype(int).tolist()
    assert best <= 1.005 * min(error(statistic, (a, b, c), importance) for a, b, c in random)


def test_what_they_gain() -> None:
    """A target of 7.5 beside features in a unit ball: less than a fifth of the error at d = 11."""
    statistic = regression((1.0, 7.5), 11, 1.0, False, target_square=True)
    best = best_regression_weights(statistic, F)
    assert error(statistic, best) < 0.2 * error(statistic, (1, 1, 1))


def test_extreme_bounds_end_at_the_largest_weight() -> None:
    statistic = regression((1.0, 4000.0), 3, 1.0, False, target_square=True)
    best = best_regression_weights(statistic, F)
    assert best[0] == max(best) <= 4096
    assert min(best) == 1
    assert error(statistic, best) < 0.32 * error(statistic, (1, 1, 1))  # all of it that is not of y² itself


def test_a_round_may_carry_them() -> None:
    statistic = regression((1.0, 7.5), 2, 1.0, True, target_square=True)
    best = best_regression_weights(statistic, F)
    parameters = {field: getattr(statistic, field) for field in statistic.__struct_fields__}
    carried = msgspec.json.decode(msgspec.json.encode({**parameters, "weights": best}))
    found = resolve("regression", carried)
    assert isinstance(found, Regression)
    assert found.weights == best


def total(statistic: Sum | SecondMoments, power: int, importance: np.ndarray) -> float:
    scale = np.array(statistic.scale)
    return statistic.row_sensitivity(40).l2 * math.sqrt(float((importance * scale ** (2 * power)).sum()))


@pytest.mark.parametrize("kind", [Sum, SecondMoments])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_other_scales_are_better(kind: type[Sum] | type[SecondMoments], weighted: bool) -> None:
    """Against 300 random ones; at unit importance the least is known: the sum of the coordinates' ranges."""
    power = 2 if kind is SecondMoments else 1
    bounds = (0.5, 1.0, 3.0, 10.0)
    importance = np.array([1.0, 4.0, 0.25, 0.01]) if weighted else np.ones(4)

    def at(scales: tuple[float, ...]) -> float:
        bound = tuple(c / scale for c, scale in zip(bounds, scales, strict=True))
        return total(kind(columns=tuple("abcd"), centre=(0.0,) * 4, scale=scales, bound=bound), power, importance)

    scales = best_scales(bounds, importance.tolist(), second_moments=kind is SecondMoments)
    best = at(scales)
    random = np.exp(np.random.default_rng(2).uniform(-2, 3, size=(300, 4))).tolist()
    assert best <= min(at(tuple(row)) for row in [*random, bounds, (1.0,) * 4]) * (1 + 1e-4)
    assert max(c / scale for c, scale in zip(bounds, scales, strict=True)) == pytest.approx(1.0)
    if not weighted:
        least = 2 * sum(bounds) if kind is Sum else sum(c * c for c in bounds)
        assert best * 2.0**-40 == pytest.approx(least, rel=1e-4)


def test_errors_relative_to_the_bounds_are_least_with_the_bounds_as_scales() -> None:
    bounds = (0.5, 2.0, 8.0)
    for second_moments, importance in ((False, [c**-2 for c in bounds]), (True, [c**-4 for c in bounds])):
        assert best_scales(bounds, importance, second_moments=second_moments) == pytest.approx(bounds)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (((1.0, 0.0),), "bounds has a value of 0; give finite numbers above 0"),
        (((1.0, math.inf),), "bounds has a value of inf"),
        (((),), "bounds is empty"),
        (((1.0,), (math.nan,)), "importance has a value of nan"),
        (((1.0, 2.0), (1.0,)), "importance has 1 values for 2 bounds"),
    ],
)
def test_figures_are_checked(arguments: tuple[Any, ...], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        best_scales(*arguments)


def test_importance_is_checked() -> None:
    statistic = regression((1.0, 1.0), 2, None, False)
    with pytest.raises(UsageError, match="importance has a value of -1"):
        best_regression_weights(statistic, F, (1.0, -1.0, 1.0))
    with pytest.raises(UsageError, match="importance has 2 values"):
        best_regression_weights(statistic, F, (1.0, 1.0))  # type: ignore[arg-type]
