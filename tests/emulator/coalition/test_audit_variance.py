"""How much noise an audit finds on a line: known values, coverage in simulated experiments, and what is no noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2

from emulator.coalition.bounds import Scatter, Spread, noticeable

EXPERIMENTS = 400
AXIS = np.array([[1.0]])


def scatter(*sides: list[list[float]]) -> Scatter:
    found = Scatter(len(sides[0][0]))
    for side, rows in enumerate(sides):
        found.add(side, np.array(rows))
    return found


def test_the_variance_interval_covers_the_truth_as_often_as_it_says() -> None:
    """400 seeded experiments: 95 % intervals cover 380 on average, 363 to 397 within 4 standard deviations (false alarm
    6e-5); the one-sided limit at 10 % is above the truth in 360, 336 to 384."""
    samples = np.random.default_rng(6).normal(0, 1, (EXPERIMENTS, 300))
    found = [Spread(float(one.var(ddof=1)), 299) for one in samples]
    intervals = [one.interval(0.95) for one in found]
    assert 363 <= sum(low <= 1 <= high for low, high in intervals) <= 397
    assert 336 <= sum(one.upper(0.1) >= 1 for one in found) <= 384


def test_the_variance_is_pooled_within_the_worlds() -> None:
    found = scatter([[101.0], [103.0]], [[-1.0], [1.0], [0.0]]).along(AXIS)[0]
    assert (found.variance, found.degrees) == (pytest.approx(4 / 3), 3)
    assert found.upper(0.5) == pytest.approx(4 / chi2.ppf(0.5, 3))


def test_second_moments_added_up_in_blocks_are_those_of_all_runs() -> None:
    generator = np.random.default_rng(8)
    mixed = generator.normal(0, 1, (2, 900, 3)) @ generator.normal(0, 1, (3, 3)) + np.array([5.0, 0.0, -2.0])
    found = Scatter(3)
    for side in (0, 1):
        for block in np.split(mixed[side], [1, 400]):
            found.add(side, block)
    expected = (np.cov(mixed[0].T) + np.cov(mixed[1].T)) / 2
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-10)
    line = np.array([0.6, 0.0, 0.8])
    assert found.along(line[None])[0].variance == pytest.approx(line @ expected @ line)
    assert found.degrees == 2 * 899


def test_a_projections_rounding_is_no_variance() -> None:
    """The difference of two coordinates with the same noise, on a line that floating point cannot hold exactly."""
    noise = np.random.default_rng(9).normal(0, 1e9, 1000).tolist()
    found = scatter([[one, one] for one in noise], [[one, one] for one in noise]).along(np.array([[1, -1]]) / 2**0.5)[0]
    assert found.variance == 0
    assert found.interval(0.95) == (0, 0)


def test_no_runs_have_no_variance() -> None:
    assert Scatter(2).covariance.tolist() == [[0, 0], [0, 0]]
    assert Scatter(2).degrees == 0


def test_what_can_be_noticed_shrinks_with_the_runs() -> None:
    """The standard error of a variance is √(2/degrees); 2.5e-5 is 4.06 of them, for the verdict and for the miss."""
    assert noticeable(800_000, 2.5e-5) == pytest.approx(2 * 4.06 * math.sqrt(2 / 800_000), rel=0.01)
    assert noticeable(2000, 2.5e-5) > noticeable(20_000, 2.5e-5) > noticeable(800_000, 2.5e-5)
