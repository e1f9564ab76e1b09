"""The statistic "category-score": scores of ordered and other categories, their weights, and their sensitivity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

from dca_proto.errors import UsageError
from dca_proto.statistics import CategoryScore
from dca_proto.statistics.category_score import COUNT
from dca_proto.statistics.contribution import client_sensitivity

F, K, D = 24, 4, 2
ORDERED = np.array([-1.2, 0.1, 1.5, 0.6, -0.4])
NOMINAL = np.array([[0.3, 0.5, -0.2], [0.0, 0.1, 0.4], [-0.6, -0.3, 0.2], [0.2, 0.0, -0.1]])
KINDS = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "nominal"])


def a_score(ordered: bool, **changes: Any) -> CategoryScore:
    """Four categories coded 3 to 6, and two features."""
    parameters: dict[str, Any] = {
        "columns": ("x", "z", "y"),
        "centre": (0.0, 0.0, 3.0),
        "scale": (1.0, 1.0, 1.0),
        "bound": (30.0, 30.0, 3.0),
        "classes": K,
        "ordered": ordered,
        "theta": tuple((ORDERED if ordered else NOMINAL).ravel().tolist()),
        "clip": 2.0,
        "information": 0.4,
        "cubes": 0.1,
    }
    return CategoryScore(**{**parameters, **changes})


def some_rows(n: int, spread: float = 1.0, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.normal(scale=spread, size=(n, D)), rng.integers(3, 3 + K, n)])


def sent(statistic: CategoryScore, rows: np.ndarray) -> np.ndarray:
    return statistic.evaluate(rows, F) / 2.0**F


def chances(ordered: bool, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The probabilities of the four categories, written down anew."""
    if not ordered:
        each = theta.reshape(K, D + 1)
        return np.asarray(softmax(each[:, 0] + x @ each[:, 1:].T, axis=1))
    below = expit(theta[: K - 1] - (x @ theta[K - 1 :])[:, None])
    return np.diff(np.column_stack([np.zeros(len(x)), below, np.ones(len(x))]), axis=1)


def mean_score(ordered: bool, theta: np.ndarray, asked: np.ndarray, x: np.ndarray) -> np.ndarray:
    """E[t | x] of a row whose code has the chances at θ, if a round asks at ``asked``: from the scores themselves."""
    statistic = a_score(ordered, theta=tuple(asked), clip=1e4)
    p = chances(ordered, theta, x)
    of = [sent(statistic, np.column_stack([x, np.full(len(x), 3 + k)])) for k in range(K)]
    return np.asarray(sum(p[:, k : k + 1] * of[k] for k in range(K)))[:, : statistic.block_sizes[0]]


@KINDS
def test_the_score_is_the_derivative_of_the_likelihood(ordered: bool) -> None:
    """All of it for nominal categories, and that of the slopes for ordered ones."""
    rows, statistic = some_rows(40), a_score(ordered, clip=1e4)
    theta, step = np.array(statistic.theta), 1e-5
    code = rows[:, -1].astype(int) - 3

    def log_likelihood(at: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(chances(ordered, at, rows[:, :D])[np.arange(len(rows)), code]))

    moves = step * np.eye(theta.size)
    gradient = np.column_stack([(log_likelihood(theta + m) - log_likelihood(theta - m)) / (2 * step) for m in moves])
    value = sent(statistic, rows)
    if ordered:
        assert value[:, K : K + D] == pytest.approx(gradient[:, K - 1 :], abs=1e-5)
        indicators = (code[:, None] == np.arange(K)) - chances(True, theta, rows[:, :D])
        assert value[:, :K] == pytest.approx(indicators, abs=1e-6)
    else:
        assert value[:, : theta.size] == pytest.approx(gradient, abs=1e-5)
    cubes = statistic.labels().index("cube of x")
    assert value[:, cubes : cubes + D] == pytest.approx(0.1 * rows[:, :D] ** 3, abs=1e-6)
    assert value[:, -1] == pytest.approx(COUNT * statistic.reach, rel=1e-6)


@KINDS
def test_curves_are_further_features_without_effects(ordered: bool) -> None:
    """Rows are as long, and send the same, as those of a table that has the curves as columns."""
    rows, u = some_rows(60), 0.7
    curved = u * (np.sqrt(1 + rows[:, :D] ** 2) - 1)
    table = np.column_stack([rows[:, :D], curved, rows[:, -1]])
    theta = np.r_[ORDERED, np.zeros(D)] if ordered else np.hstack([NOMINAL, np.zeros((K, D))]).ravel()
    box = {"centre": (0.0,) * 4 + (3.0,), "scale": (1.0,) * 5, "bound": (30.0,) * 4 + (3.0,)}
    whole = a_score(ordered, columns=("x", "z", "v", "w", "y"), theta=tuple(theta), cubes=0.0, **box)
    statistic = a_score(ordered, curves=u, cubes=0.0)
    np.testing.assert_allclose(sent(statistic, rows), sent(whole, table), atol=2e-6)
    assert len(statistic.labels()) == statistic.dimension == whole.dimension
    assert statistic.labels()[K + D if ordered else D + 1].endswith("curve of x")


@KINDS
def test_the_mean_of_the_score_is_zero_at_the_truth_and_grows_with_the_information(ordered: bool) -> None:
    """The terms of the information are those of the derivative of E[t | x] by the true θ."""
    statistic, x = a_score(ordered, clip=1e4), some_rows(12)[:, :D]
    theta, step = np.array(statistic.theta), 1e-4
    assert mean_score(ordered, theta, theta, x) == pytest.approx(0, abs=1e-6)

    def slope(place: int) -> np.ndarray:
        move = step * np.eye(theta.size)[place]
        later, earlier = (mean_score(ordered, theta + side * move, theta, x) for side in (1, -1))
        return np.asarray((later - earlier) / (2 * step))

    value = sent(statistic, np.column_stack([x, np.full(len(x), 3.0)]))
    known = {label: value[:, place] / 0.4 for place, label in enumerate(statistic.labels())}
    if ordered:
        by_threshold, by_x = slope(1), slope(K - 1)  # that between codes 1 and 2, and the first feature
        f, g = known["information 1|2"], known["information' 1|2·x"]
        assert by_threshold[:, :K] == pytest.approx(np.column_stack([0 * f, f, -f, 0 * f]), abs=1e-3)
        assert by_threshold[:, K] == pytest.approx(-g, abs=1e-3)
        fx = np.column_stack([known[f"information {k}|{k + 1}·x"] for k in range(K - 1)])
        assert by_x[:, :K] == pytest.approx(-np.diff(fx, axis=1, prepend=0.0, append=0.0), abs=1e-3)
        assert by_x[:, K] == pytest.approx(known["information x·x"], abs=1e-3)
        assert by_x[:, K + 1] == pytest.approx(known["information x·z"], abs=1e-3)
    else:
        by_x = slope(1 * (D + 1) + 1)  # category 1, the first feature
        assert by_x[:, D + 2] == pytest.approx(
            sum(known[f"information {p} x·x"] for p in ("0,1", "1,2", "1,3")), abs=1e-3
        )
        assert by_x[:, 2 * (D + 1) + 2] == pytest.approx(-known["information 1,2 x·z"], abs=1e-3)


@KINDS
def test_the_weights_depend_on_features_alone(ordered: bool) -> None:
    """So the score's mean stays zero: rows of the same features but other codes have the same factor."""
    rows = some_rows(200, spread=3.0)
    statistic = a_score(ordered)
    p, terms, _ = statistic.block_sizes
    far, near = (sent(one, rows)[:, p : p + terms] for one in (statistic, a_score(ordered, clip=1e4)))
    other = rows.copy()
    other[:, -1] = 3 + (other[:, -1] - 2) % K
    np.testing.assert_array_equal(far, sent(statistic, other)[:, p : p + terms])
    assert (np.linalg.norm(far, axis=1) < 0.7 * np.linalg.norm(near, axis=1)).mean() > 0.3


@KINDS
def test_rows_stay_in_the_ball_by_their_weights(ordered: bool) -> None:
    """The exact projection changes only rounding: without it, rows would be as short; every category is tried."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        theta = rng.normal(scale=2.0, size=5 if ordered else K * (D + 1))
        theta[: K - 1] = np.sort(theta[: K - 1]) if ordered else theta[: K - 1]
        statistic = a_score(
            ordered, theta=tuple(theta), information=float(rng.lognormal()), clip=float(rng.lognormal()), cubes=0.5
        )
        rows = np.concatenate([some_rows(300, spread=float(rng.lognormal(sigma=2.0)), seed=7)] * K)
        rows[:, -1] = np.repeat(np.arange(3, 3 + K), 300)
        values = statistic.gradient(theta, statistic.clamped(rows, F))
        assert np.linalg.norm(values, axis=1).max() <= statistic.clip * (1 + 1e-12)
        limit = math.floor(statistic.clip * 2**F)
        assert client_sensitivity(statistic, 1, F).l2_squared == (2 * limit) ** 2


def test_codes_that_are_no_categories_count_as_missing() -> None:
    statistic, rows = a_score(True), some_rows(5)
    rows[:, -1] = [3, 6.1, 4.5, -40, 90]
    value = sent(statistic, rows)
    assert (np.abs(value[:2]).sum(axis=1) > 0).all()
    assert not value[2].any()
    assert not value[3].any()  # clamped to minus the bound, which is no code
    ends = ((-9.0, 9.0), (-9.0, 9.0), (3.0, 6.0))
    within = sent(a_score(True, within=ends), rows)
    np.testing.assert_array_equal(within[3], sent(statistic, np.r_[rows[3, :D], 3.0][None])[0])
    np.testing.assert_array_equal(within[4], sent(statistic, np.r_[rows[4, :D], 6.0][None])[0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": 1}, "1 classes; give 2 to 50"),
        ({"theta": (0.0, 1.0)}, "theta has 2 values; expected 5 for 4 ordered classes and 2 features"),
        ({"theta": (0.0, 2.0, 1.0, 0.0, 0.0)}, "have to increase"),
        ({"information": 0.0}, "information is 0"),
        ({"cubes": math.inf}, "cubes is inf"),
    ],
)
def test_parameters_that_no_round_can_have_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        a_score(True, **changes)
