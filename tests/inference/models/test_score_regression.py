"""The regression that all rounds of scores end with."""

from __future__ import annotations

import numpy as np
import pytest

from inference.models.score_regression import Prior, regressed


def test_one_round_is_a_normal_mean_with_a_normal_prior() -> None:
    """The sampling error and the round's error add up."""
    seen = [(np.eye(2), np.full(2, 20.0), np.array([1.0, 2.0]))]
    found = regressed(Prior(np.full(2, 0.5), np.ones(2)), 100.0 * np.eye(2), seen)
    variance = 1 / 20 + 1 / 100
    expected = (np.array([1.0, 2.0]) / variance + 0.5) / (1 / variance + 1)
    assert found.mean == pytest.approx(expected)
    assert np.diag(found.cov) == pytest.approx(1 / (1 / variance + 1))


def test_a_coordinate_that_no_round_sees_keeps_its_prior_however_many_rows_there_are() -> None:
    """Counts without a term for their dispersion; before, the sampling error's precision was singular."""
    slope = 2.0**16 * np.array([[2.0, 1.0], [0.0, 0.0]])
    own = slope.T @ slope
    prior = Prior(np.zeros(2), np.ones(2))
    found = regressed(prior, own, [(slope, np.array([2.0**-20, 0.0]), slope @ np.array([0.5, 0.0]))])
    unseen, seen = np.array([1.0, -2.0]) / np.sqrt(5), np.array([2.0, 1.0]) / np.sqrt(5)
    assert found.mean @ seen == pytest.approx(2 * 0.5 / np.sqrt(5), rel=1e-3)
    assert found.mean @ unseen == pytest.approx(0.0, abs=1e-6)
    assert unseen @ found.cov @ unseen == pytest.approx(1.0, rel=1e-6)
