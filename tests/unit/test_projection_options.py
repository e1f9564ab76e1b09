"""Algorithm 2 with its options: estimated centres, the repair, one threshold for each feature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dca_proto.learning.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.statistics.moments import FREE_BOUND
from dca_proto.testing import seeded
from emulator.ideal import IdealSwarm
from inference import scale
from inference.bounds import Interval
from inference.errors import DataError
from inference.models.linear import two_rounds
from inference.models.linear.baselines import rmse
from inference.models.linear.projection import Thresholds, search_thresholds
from inference.models.linear.result import RegressionResult
from inference.models.linear.two_rounds import box_sensitivity, regression_with_projection
from inference.problem import Problem, Schema
from inference.rounds import run
from inference.scale import means, standard_deviations

OFF_CENTRE = Schema(("a", "b"), "y", {"a": Interval(0, 30), "b": Interval(-1, 5), "y": Interval(-200, 1000)})


def problem(n: int, seed: int) -> Problem:
    """Features and target some three standard deviations off the middle of their bounds."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(6, 3, n), rng.normal(0.2, 0.6, n)])
    return Problem("off centre", OFF_CENTRE, X, 80 + 10 * X[:, 0] - 50 * X[:, 1] + rng.normal(0, 20, n))


def swarm(train: Problem, epsilon: float) -> IdealSwarm:
    terms = JobTerms(budget=Budget(epsilon, 1e-5), clients=len(train.y), tolerated=0, computes=(bytes(16), b"\1" * 16))
    return IdealSwarm(train.rows, train.schema.columns, terms, random=seeded(f"options {epsilon}"))


def learn(train: Problem, epsilon: float, **options: Any) -> RegressionResult:
    return run(regression_with_projection(OFF_CENTRE, rng=np.random.default_rng(1), **options), swarm(train, epsilon))


# Centres


def test_means_follow_the_data_where_they_speak_and_fall_back_on_the_centre() -> None:
    np.testing.assert_allclose(means(np.array([500.0, -200.0]), 1000, 1.0), [0.5, -0.2], rtol=1e-4)
    np.testing.assert_allclose(means(np.array([500.0, -200.0]), 1000, 1e9), 0, atol=1e-3)


def test_sums_are_asked_for_at_the_bound_that_makes_squares_free() -> None:
    assert scale.FREE_BOUND == FREE_BOUND


def test_estimated_centres_and_deviations_are_near_the_truth() -> None:
    train = problem(2000, 1)
    result = learn(train, 50.0, centre="estimate")
    np.testing.assert_allclose(result.centre, train.rows.mean(axis=0), atol=0.05 * train.rows.std(axis=0).max())
    np.testing.assert_allclose(result.scale, train.rows.std(axis=0), rtol=0.15)
    about_public = learn(train, 50.0)
    np.testing.assert_array_equal(about_public.centre, OFF_CENTRE.centres)
    assert (about_public.scale > 2 * train.rows.std(axis=0)).all()


def test_estimated_centres_learn_more_where_public_ones_are_poor() -> None:
    train, test = problem(1000, 2), problem(1000, 3)
    errors = {
        centre: rmse(learn(train, 2.0, centre=centre).predict(test.X)[0], test.y) for centre in ("public", "estimate")
    }
    assert errors["estimate"] < 0.85 * errors["public"]


def test_estimating_centres_asks_for_both_moments_with_the_same_share() -> None:
    job = regression_with_projection(OFF_CENTRE, rng=np.random.default_rng(1), centre="estimate", std_share=0.2)
    first = next(job)
    assert (first.statistic, first.budget_share) == ("moments", 0.2)
    assert first.parameters["bound"] == [FREE_BOUND] * 3
    np.testing.assert_allclose(np.array(first.parameters["scale"]) * FREE_BOUND, OFF_CENTRE.half_widths)


def test_estimated_deviations_weigh_the_noise_of_squares_in_half_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    weighed = []

    def spy(squares: np.ndarray, n: int, noise_variance: float) -> np.ndarray:
        weighed.append(noise_variance)
        return standard_deviations(squares, n, noise_variance)

    monkeypatch.setattr(scale, "standard_deviations", spy)
    job = regression_with_projection(OFF_CENTRE, rng=np.random.default_rng(1), centre="estimate")
    moments = swarm(problem(50, 6), 2.0).hold(next(job))
    job.send(moments)
    unit = np.array(moments.parameters["scale"]) / OFF_CENTRE.half_widths  # of what was squared and summed
    np.testing.assert_allclose(weighed * 3, moments.noise_variance * unit**4)


def test_predictions_get_back_the_variance_that_projecting_the_target_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Projected to 0.7 standard deviations, a target loses most of its spread; 95 % intervals still hold as much."""
    monkeypatch.setattr(two_rounds, "search_thresholds", lambda *_, **__: Thresholds(3.0, 0.7, 0.0, (3.0, 3.0)))
    train, test = problem(2000, 7), problem(2000, 8)
    result = learn(train, 50.0, centre="estimate")
    mean, sd = result.predict(test.X)
    assert (np.abs(test.y - mean) < 1.96 * sd).mean() > 0.95


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"centre": "mean"}, "centre 'mean' is unknown; known: public, estimate"),
        ({"repair": "best"}, "repair 'best' is unknown"),
        ({"std_share": 1.0}, "std_share is 1.0; expected a number between 0 and 1"),
    ],
)
def test_options_that_are_not_there_are_refused_before_any_round(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        next(regression_with_projection(OFF_CENTRE, rng=np.random.default_rng(1), **options))


# Repair and thresholds


@pytest.mark.parametrize("repair", ["noise-aware", "nearest-psd", "absolute"])
def test_search_and_regression_use_the_same_repair_and_the_result_names_it(
    repair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def spy(*given: Any, **options: Any) -> Any:
        asked.update(options)
        return search_thresholds(*given, **options, grid=np.array([0.7, 1.5]))

    monkeypatch.setattr(two_rounds, "search_thresholds", spy)
    assert learn(problem(200, 4), 1.0, repair=repair).repair == repair
    assert asked["repair"] == repair
    assert asked["each"] is False


def test_each_features_threshold_goes_into_the_second_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def dear(bounds: tuple[float, ...]) -> float:
        return 20 * bounds[1] ** 2 + box_sensitivity(bounds)

    def small(*given: Any, **options: Any) -> Any:
        return search_thresholds(*given, **options, grid=np.array([0.5, 1.0, 2.0]))

    monkeypatch.setattr(two_rounds, "search_thresholds", small)
    result = learn(problem(200, 5), 2.0, sensitivity=dear, each_threshold=True)
    assert result.thresholds[0] < result.thresholds[1]
    assert result.thresholds.shape == (3,)
