"""Regression of whole rows within a ball: unbiased for whatever features, and as sensitive as stated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dca_proto.crypto.fixedpoint import dequantise
from dca_proto.errors import UsageError
from dca_proto.statistics import Regression

F = 24


def on_the_sphere(features: int, target: float, *, target_square: bool = True, radius: float = 1.0) -> Regression:
    n = features + 1
    return Regression(
        columns=tuple(f"c{j}" for j in range(n)), centre=(0.0,) * n, scale=(1.0,) * n,
        bound=(*[100.0] * features, target), intercept=True, target_square=target_square,
        radius=radius, whole_rows=True,
    )  # fmt: skip


def test_a_row_is_scaled_with_its_constant_and_its_target() -> None:
    statistic = on_the_sphere(2, 9.0)
    row = np.array([2.0, 2.0, 6.0])  # (1, 2, 2) has norm 3
    xx, xy, yy = statistic.unpack(dequantise(statistic.evaluate(row[None], F)[0], F))
    whole = np.array([1.0, 2.0, 2.0]) / 3
    np.testing.assert_allclose(xx, np.outer(whole, whole), atol=2.0**-11)
    np.testing.assert_allclose(xy, 2 * whole, atol=2.0**-10)
    assert yy == pytest.approx(4.0, abs=2.0**-10)


def test_a_row_inside_stays_and_a_far_target_is_clamped_after_scaling() -> None:
    statistic = on_the_sphere(1, 2.0, radius=3.0)
    values = dequantise(statistic.evaluate(np.array([[1.0, 1.5], [1.0, 1e300], [30.0, 10.0]]), F), F)
    np.testing.assert_allclose(values[0], [1, 1, 1, 1.5, 1.5, 2.25], atol=1e-6)
    assert values[1][-1] == 4.0
    assert values[2][-1] == pytest.approx((10 * 3 / math.hypot(1, 30)) ** 2, abs=0.01)


@pytest.mark.parametrize("kind", ["log-normal", "heavy-tailed"])
def test_its_least_squares_are_unbiased_where_clipped_features_are_not(kind: str) -> None:
    rng = np.random.default_rng(5)
    x = np.exp(rng.standard_normal((200_000, 2))) if kind == "log-normal" else rng.standard_t(3, (200_000, 2))
    beta = np.array([0.5, 1.0, -1.0])
    rows = np.column_stack([x, beta[0] + x @ beta[1:] + rng.standard_normal(len(x))])
    statistic = on_the_sphere(2, 9.0)
    xx, xy, _ = statistic.unpack(dequantise(statistic.evaluate(rows, F).sum(axis=0), F))
    assert np.linalg.solve(xx, xy) == pytest.approx(beta, abs=0.03)  # 5 standard errors at least


def apart(statistic: Regression, left: np.ndarray, right: np.ndarray) -> float:
    values = [statistic.evaluate(side, F).astype(np.float64) for side in (left, right)]
    return float(np.linalg.norm(values[0] - values[1], axis=1).max())


@pytest.mark.parametrize("features", [1, 2, 5])
@pytest.mark.parametrize(("target", "target_square"), [(0.5, True), (1.0, True), (3.0, True), (1.0, False)])
def test_no_pair_of_rows_is_further_apart_than_stated(features: int, target: float, target_square: bool) -> None:
    rng, statistic = np.random.default_rng(7), on_the_sphere(features, target, target_square=target_square)
    stated, n = statistic.row_sensitivity(F).l2, 100_000
    sides = [rng.standard_t(1, (n, features + 1)) for _ in range(2)]
    for side in sides:
        side[:, -1] *= 100  # mostly clamped
    assert apart(statistic, *sides) <= stated
    missing = statistic.evaluate(sides[0], F).astype(np.float64)
    assert float(np.linalg.norm(missing, axis=1).max()) <= stated
    if features > 1:
        assert mirrored(statistic, target) >= 0.99 * stated
    assert mirrored(statistic, target) <= stated


def mirrored(statistic: Regression, target: float) -> float:
    """The largest distance of far rows (cos a, sin a) and (sin a, cos a), one at the largest target, one at any."""
    angle, level = (grid.ravel() for grid in np.meshgrid(np.linspace(0, math.pi, 91), np.linspace(-target, target, 81)))
    sides = np.zeros((2, angle.size, len(statistic.columns)))
    sides[0, :, 0], sides[1, :, 0] = 99 * np.cos(angle), 99 * np.sin(angle)
    if len(statistic.columns) > 2:
        sides[0, :, 1], sides[1, :, 1] = 99 * np.sin(angle), 99 * np.cos(angle)
    sides[0, :, -1], sides[1, :, -1] = 1e6, level * np.hypot(1, np.linalg.norm(sides[1, :, :-1], axis=1))
    return apart(statistic, *sides)


def test_it_needs_a_radius() -> None:
    with pytest.raises(UsageError, match="whole_rows without a radius"):
        Regression(columns=("a", "y"), centre=(0.0,) * 2, scale=(1.0,) * 2, bound=(1.0,) * 2, whole_rows=True)
