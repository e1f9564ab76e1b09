"""Clipped gradients: what they are, that they never leave their ball, and refusals. Searches: test_l2_ball.py."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dca_proto.crypto.fixedpoint import dequantise
from dca_proto.errors import UsageError
from dca_proto.statistics import Gradient, resolve
from dca_proto.statistics.contribution import client_sensitivity, contribution

F = 24
BOX: dict[str, Any] = {
    "columns": ("a", "b", "y"),
    "centre": (1.0, -2.0, 0.0),
    "scale": (2.0, 0.5, 1.0),
    "bound": (1.5, 2.0, 3.0),
}
THETA = (0.4, -0.7, 0.3)


def scaled(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features with the constant first, and the target."""
    z = (rows - np.array(BOX["centre"])) / np.array(BOX["scale"])
    z = np.clip(z, -np.array(BOX["bound"]), np.array(BOX["bound"]))
    return np.insert(z[:, :-1], 0, 1.0, axis=1), z[:, -1]


def log_likelihood(family: str, theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    predictor = x @ theta
    if family == "normal":
        return float(-0.5 * ((y - predictor) ** 2).sum())
    return float(((y > 0) * predictor - np.logaddexp(0, predictor)).sum())


@pytest.mark.parametrize("family", ["normal", "bernoulli"])
def test_it_is_the_derivative_of_the_log_likelihood(family: str) -> None:
    statistic = Gradient(**BOX, theta=THETA, clip=50.0, family=family, intercept=True)
    rows = np.random.default_rng(4).normal(size=(30, 3))
    found = dequantise(statistic.evaluate(rows, F).sum(axis=0), F)
    x, y = scaled(rows)
    theta, h = np.array(THETA), 1e-5
    slopes = [
        (log_likelihood(family, theta + step, x, y) - log_likelihood(family, theta - step, x, y)) / (2 * h)
        for step in h * np.eye(3)
    ]
    np.testing.assert_allclose(found, slopes, atol=1e-4)
    assert statistic.labels() == ("gradient at 1", "gradient at a", "gradient at b")


def test_a_long_gradient_keeps_its_direction_and_becomes_as_long_as_the_clip() -> None:
    rows = np.array([[4.0, -1.0, 3.0], [-2.0, -1.0, -3.0]])
    long, short = (Gradient(**BOX, theta=THETA, clip=clip, intercept=True) for clip in (100.0, 0.25))
    whole, clipped = (dequantise(one.evaluate(rows, F), F) for one in (long, short))
    norms = np.linalg.norm(whole, axis=1, keepdims=True)
    assert (norms > 0.25).all()
    np.testing.assert_allclose(clipped, whole / norms * 0.25, atol=2.0**-F * 2)


def test_targets_0_and_1_may_be_mapped_to_minus_1_and_1() -> None:
    """As a request with bounds [0, 1] does."""
    rows = np.array([[0.3, 0.0], [0.3, 1.0]])
    plain = Gradient(
        columns=("a", "y"), centre=(0.0, 0.0), scale=(1.0, 1.0), bound=(1.0, 1.0), theta=(0.5,), clip=1.0,
        family="bernoulli",
    )  # fmt: skip
    mapped = Gradient(
        columns=("a", "y"), centre=(0.0, 0.5), scale=(1.0, 0.5), bound=(1.0, 1.0), theta=(0.5,), clip=1.0,
        family="bernoulli",
    )  # fmt: skip
    values = dequantise(plain.evaluate(rows, F), F)
    np.testing.assert_array_equal(values, dequantise(mapped.evaluate(rows, F), F))
    probability = 1 / (1 + math.exp(-0.15))
    np.testing.assert_allclose(values[:, 0], [-0.3 * probability, 0.3 * (1 - probability)], atol=1e-6)


@pytest.mark.parametrize("family", ["normal", "bernoulli"])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e20])
@settings(deadline=None, max_examples=60)  # the machine may be busy
@given(
    rows=hnp.arrays(np.float64, (4, 3), elements=st.floats()),
    theta=st.tuples(*[st.floats(-1, 1)] * 3),
    clip=st.sampled_from([2.0**-F, 1e-3, 1.0, 1e8]),
)
def test_no_row_and_no_theta_leaves_the_ball(
    family: str, size: float, rows: np.ndarray, theta: tuple[float, float, float], clip: float
) -> None:
    large = {**BOX, "bound": (1.5 * 2**20, 2.0, 3.0)}
    parameters = tuple(size * value for value in theta)
    statistic = Gradient(**large, theta=parameters, clip=clip, family=family, intercept=True)
    limit = math.floor(math.ldexp(clip, F))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for row in rows:
            vector = contribution(statistic, row[None], 1, F).tolist()
            assert sum(value**2 for value in vector) <= limit**2


def test_its_sensitivity_is_attained() -> None:
    """Opposite residuals on one row of equal features: 2·clip in L2, and 2·√d·clip in L1."""
    statistic = Gradient(**BOX, theta=(0.0, 0.0), clip=1.0)
    limit = statistic.row_sensitivity(F)
    assert limit.l2 == pytest.approx(2 * 2**F)
    assert limit.l1 == pytest.approx(2 * math.sqrt(2) * 2**F)
    left, right = statistic.evaluate(np.array([[3.0, -1.5, 3.0], [3.0, -1.5, -3.0]]), F)
    assert 0.99999 * limit.l2 <= np.linalg.norm(left - right) <= limit.l2
    assert 0.99999 * limit.l1 <= np.abs(left - right).sum() <= limit.l1
    assert client_sensitivity(statistic, 5, F).l2_squared == 25 * limit.l2_squared


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"theta": [0.1]}, "theta has 1 values for 2 features"),
        ({"theta": [0.1, math.nan]}, r"theta\[1\] is nan; give finite numbers"),
        ({"theta": [1e200, 0.0]}, r"a gradient can reach 3e\+200, expected below 1e\+100; lower bound or theta"),
        ({"theta": [1e308, 1e308]}, "a gradient can reach inf, expected below"),
        ({"clip": 0.0}, "clip is 0; give a finite number above 0"),
        ({"clip": math.inf}, "clip is inf"),
        ({"family": "gamma"}, "family 'gamma' is unknown; use one of normal, bernoulli, poisson, student"),
        ({"columns": ["y"], "centre": [0], "scale": [1], "bound": [1], "theta": []}, "no feature"),
        ({"columns": [], "centre": [], "scale": [], "bound": [], "theta": []}, "0 columns"),
        ({"intercept": True}, "theta has 2 values for 3 features"),
    ],
)
def test_parameters_are_checked(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        resolve("gradient", {**BOX, "theta": [0.5, 0.5], "clip": 1.0, **changes})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("clip", [1e-9, 1e10])
def test_the_clip_fits_the_grid(clip: float) -> None:
    with pytest.raises(UsageError, match=r"clip 1e.* fraction bits"):
        client_sensitivity(Gradient(**BOX, theta=(0.0, 0.0), clip=clip), 1, F)


@pytest.mark.parametrize(("family", "clip"), [("bernoulli", 0.8), ("student", 4.0)])
def test_rows_shortened_by_their_features_keep_the_scores_mean(family: str, clip: float) -> None:
    """One factor for all targets of the same features, and it leaves nothing to the clip: at most as long as that."""
    rng = np.random.default_rng(5)
    own = {**BOX, "bound": (12.0, 2.0, 300.0), "theta": (*THETA, 0.2) if family == "student" else THETA}
    features = rng.standard_normal((200, 2)) * [9.0, 1.0]
    targets = rng.standard_cauchy(200) * 5
    known = {**own, "family": family, "intercept": True, "information": 0.1}
    plain, weighted = Gradient(**known, clip=1e7), Gradient(**known, clip=clip, by_features=True)
    factors = []
    for sign in (1.0, -1.0):
        rows = np.column_stack([features, sign * targets])
        whole, shorter = (dequantise(one.evaluate(rows, F), F) for one in (plain, weighted))
        assert np.linalg.norm(shorter, axis=1).max() <= clip
        factors.append(np.linalg.norm(shorter, axis=1) / np.linalg.norm(whole, axis=1))
    np.testing.assert_allclose(*factors, rtol=2e-3)  # gradients are truncated
    assert factors[0].min() < 0.2 < 0.6 < factors[0].max() <= 1


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_curves_are_scores_and_information_of_a_root(family: str) -> None:
    """Of √(1 + x²) - 1 of each feature; they come last, and the count of rows after them."""
    rows = np.random.default_rng(4).normal([1.0, -2.0, 2.0], [1.5, 0.5, 0.5], size=(40, 3))
    known: dict[str, Any] = {"theta": THETA, "family": family, "intercept": True, "information": 0.5, "clip": 80.0}
    plain, more = (Gradient(**BOX, **known, curves=curves, count_weight=2.0) for curves in (False, True))
    found = np.asarray(dequantise(more.evaluate(rows, F), F))
    x, y = scaled(rows)
    u = x @ THETA
    chance = 1 / (1 + np.exp(-u))
    residual, q = ((y > 0) - chance, chance * (1 - chance)) if family == "bernoulli" else (y - np.exp(u), np.exp(u))
    f = np.sqrt(1 + x[:, 1:] ** 2) - 1
    crossed = [f[:, j] * x[:, i] * q / 2 for j in range(2) for i in range(3)]
    expected = np.column_stack([residual[:, None] * f, *crossed, q[:, None] * f**2 / 2, np.full(40, 2.0)])
    size = plain.dimension - 1
    before = np.asarray(dequantise(plain.evaluate(rows, F), F))
    np.testing.assert_allclose(found[:, :size], before[:, :-1], atol=1e-6)
    np.testing.assert_allclose(found[:, size:], expected, atol=1e-6)
    assert more.labels()[size:-1] == (
        *("gradient at curve of a", "gradient at curve of b"),
        *(f"information curve of {name}·{other}" for name in "ab" for other in ("1", "a", "b")),
        *(f"information curve of {name}·curve of {name}" for name in "ab"),
    )


def test_curves_need_an_intercept_and_the_information() -> None:
    with pytest.raises(UsageError, match="curves need an intercept and the information; ask for both, or leave"):
        Gradient(**BOX, theta=THETA, clip=1.0, intercept=True, curves=True)


def test_residuals_without_a_bound_cannot_be_shortened_by_features() -> None:
    with pytest.raises(UsageError, match="residuals of 'poisson' have no bound; use by_features with bernoulli or"):
        Gradient(**BOX, theta=THETA, clip=1.0, family="poisson", intercept=True, by_features=True)
