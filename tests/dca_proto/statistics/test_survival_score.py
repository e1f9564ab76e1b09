"""The statistic "survival-score": scores of proportional hazards, their weights, and their sensitivity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dca_proto.errors import UsageError
from dca_proto.statistics import SurvivalScore
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.survival_score import COUNT, CUBES

F = 24
TIMES = (1.0, 2.0, 4.0)


def a_score(**changes: Any) -> SurvivalScore:
    """Three intervals, two groups coded 1 and 2, events coded 1 and 2, and two features."""
    parameters: dict[str, Any] = {
        "columns": ("t", "d", "arm", "x", "y"),
        "times": TIMES,
        "groups": 2,
        "centre": (0.0, 1.5, 1.0, 0.0, 0.0),
        "scale": (4.0, 0.5, 1.0, 1.0, 1.0),
        "bound": (2.0, 3.0, 2.0, 30.0, 30.0),
        "theta": (-1.0, -0.5, -1.5, 0.2, 0.3, -0.4),
        "clip": 2.0,
        "information": 0.4,
        "squares": 0.3,
    }
    return SurvivalScore(**{**parameters, **changes})


def some_rows(n: int, spread: float = 1.0, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    codes = rng.integers(1, 3, (n, 2))
    return np.column_stack([rng.uniform(0, 5, n), codes, rng.normal(scale=spread, size=(n, 2))])


def sent(statistic: SurvivalScore, rows: np.ndarray) -> np.ndarray:
    return statistic.evaluate(rows, F) / 2.0**F


def test_the_score_and_information_are_derivatives_of_the_likelihood() -> None:
    """With a reach that shortens no row; the likelihood is written down anew."""
    rows, far = some_rows(40), {"clip": 1e4}
    statistic = a_score(**far)

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        arm = 2.0 * (rows[:, 2] - 1) - 1  # of variance 1 if the arms are even
        eta = np.column_stack([arm, rows[:, 3:]]) @ theta[3:]
        ends, starts = np.array(TIMES), np.r_[0.0, TIMES[:-1]]
        lived = np.clip(rows[:, :1] - starts, 0, ends - starts)
        total = (lived * np.exp(theta[:3]) / (ends - starts)).sum(axis=1) * np.exp(eta)
        event = (rows[:, 1] == 2) & (rows[:, 0] <= 4)
        interval = np.minimum(np.searchsorted(ends, rows[:, 0]), 2)
        return np.asarray(event * (theta[interval] + eta) - total)

    theta, step = np.array(statistic.theta), 1e-4
    moves = step * np.eye(6)
    gradient = np.column_stack([(log_likelihood(theta + m) - log_likelihood(theta - m)) / (2 * step) for m in moves])
    value = sent(statistic, rows)
    assert value[:, :6] == pytest.approx(gradient, abs=1e-5)
    later = sent(a_score(theta=tuple(theta + 1e-4 * np.eye(6)[4]), **far), rows)
    earlier = sent(a_score(theta=tuple(theta - 1e-4 * np.eye(6)[4]), **far), rows)
    information = -(later - earlier)[:, :6] / 2e-4  # the column of x
    names = statistic.labels()
    for row, name in enumerate(["interval 1·x", "interval 2·x", "interval 3·x", "arm, group 2·x", "x·x", "x·y"]):
        assert 0.4 * information[:, row] == pytest.approx(value[:, names.index(f"information {name}")], abs=2e-3)
    cube = value[:, names.index("cube of x")]
    assert cube == pytest.approx(CUBES * value[:, names.index("information x·x")] * rows[:, 3], abs=1e-5)
    assert value[:, names.index("square of x")] == pytest.approx(0.3 / statistic.reach * value[:, 4] ** 2, abs=1e-5)


def test_scores_of_curves_are_those_of_a_squared_feature() -> None:
    """They equal the score of a feature x² of effect 0; their squares come last, before the count."""
    rows, curves = some_rows(40), (0.5, 0.2)
    value = sent(a_score(clip=1e4, curves=curves), rows)
    squared = np.column_stack([rows, rows[:, 3:] ** 2])
    wide = a_score(
        columns=("t", "d", "arm", "x", "y", "xx", "yy"), clip=1e4, theta=(*a_score().theta, 0.0, 0.0),
        centre=(0.0, 1.5, 1.0, 0.0, 0.0, 0.0, 0.0), scale=(4.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0),
        bound=(2.0, 3.0, 2.0, 30.0, 30.0, 900.0, 900.0),
    )  # fmt: skip
    assert value[:, 6:8] == pytest.approx(sent(wide, squared)[:, 6:8] * curves, abs=1e-5)
    assert value.shape[1] == sent(a_score(clip=1e4), rows).shape[1] + 4
    reach = a_score(clip=1e4).reach
    assert value[:, -3:-1] == pytest.approx(0.3 / reach * value[:, 6:8] ** 2, abs=1e-5)


def test_the_weights_depend_on_features_alone() -> None:
    """So the score's mean stays zero: rows of the same features but other times have the same factor."""
    rows = some_rows(200, spread=3.0)
    full, short = sent(a_score(clip=1e4), rows), sent(a_score(), rows)
    factor = short[:, 4] / full[:, 4]
    other = rows.copy()
    other[:, :2] = some_rows(200, seed=8)[:, :2]
    assert sent(a_score(), other)[:, 4] / sent(a_score(clip=1e4), other)[:, 4] == pytest.approx(factor, rel=1e-3)
    assert (factor < 0.9).mean() > 0.5


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_no_two_rows_are_further_apart_than_stated_and_some_come_near(seed: int) -> None:
    """Random parameters and rows, far ones and a missing one; no row leaves the ball before its integers are cut."""
    rng = np.random.default_rng(seed)
    statistic = a_score(
        theta=tuple(rng.normal(-0.5, 1.5, 6)),
        clip=float(rng.uniform(0.5, 9)),
        information=float(rng.uniform(0.03, 2)),
        curves=(0.5, float(rng.uniform(0, 2))) if seed % 2 else (),
    )
    rows = np.vstack([some_rows(300, spread, seed) for spread in (0.3, 1.0, 5.0, 40.0)])
    rows[::7, 3] = rng.choice([-1e300, 1e300, 0.0], len(rows[::7]))
    values = np.vstack([sent(statistic, rows), np.zeros(statistic.dimension)])
    stated = math.ldexp(client_sensitivity(statistic, 1, F).l2, -F)
    assert stated == pytest.approx(2 * statistic.clip, rel=1e-6)
    apart = np.linalg.norm(values[:, None] - values[None], axis=2).max()
    assert 0.4 * stated < apart <= stated
    with np.errstate(over="ignore"):
        own = statistic.gradient(np.array(statistic.theta), statistic.clamped(rows, F))
    assert np.linalg.norm(own, axis=1).max() <= statistic.clip * (1 + 1e-9), "the weights alone keep it in the ball"


def test_rows_of_unknown_codes_or_negative_durations_are_missing() -> None:
    statistic = a_score()
    good = [1.0, 1, 2, 0.5, 0.5]
    bad = np.array([[-1.0, 1, 2, 0, 0], [1, 0, 2, 0, 0], [1, 7, 2, 0, 0], [1, 1, 0, 0, 0], [1, 1, 3, 0, 0]])
    values = sent(statistic, np.vstack([good, bad]))
    assert values[0, -1] == pytest.approx(COUNT * statistic.reach, abs=1e-6)
    assert not values[1:].any()
    assert statistic.ranges()["t"] == (0.0, 4.0)
    assert statistic.ranges()["d"] == (1.0, 2.0)
    assert statistic.ranges()["arm"] == (1.0, 2.0)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"times": ()}, "times are none"),
        ({"groups": 0}, "0 groups"),
        ({"information": 0.0}, "information is 0"),
        ({"squares": 0.0}, "squares is 0"),
        ({"curves": (0.1,)}, "curves has 1 values; expected 2, one for each feature"),
        ({"curves": (0.1, -1.0)}, "curves are 0.1, -1; give numbers of 0 or more"),
        ({"theta": (0.0,)}, "theta has 1 values; expected 6"),
        ({"clip": -1.0}, "clip"),
        ({"bound": (2.0, 1.0, 2.0, 3.0, 3.0)}, "above their largest codes"),
        ({"scale": (1.0, 0.5, 1.0, 1.0, 1.0)}, "in units of 4"),
        ({"columns": ("t", "d", "arm")}, "name the features after them"),
    ],
)
def test_parameters_are_checked(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        a_score(**changes)
