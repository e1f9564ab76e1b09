"""`scripts/compare_noise.py`: gains of correlated noise beside what can be computed in other ways."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from compare_noise import NESTEROV, best_banded, bound, gain_of, sensitivity_squared, unequal_gain, workloads


def test_equal_independent_noise_gains_nothing() -> None:
    for workload in workloads(30).values():
        assert gain_of(workload, np.eye(30)) == pytest.approx(1)
        assert gain_of(workload, np.eye(30), missing=0.2) == pytest.approx(1)


def test_unequal_noise_gains_what_its_formula_gives() -> None:
    totals = workloads(40)["running totals"]
    weights = np.sqrt(np.linalg.norm(totals, axis=0))
    assert gain_of(totals, np.diag(weights)) == pytest.approx(unequal_gain(totals))
    assert unequal_gain(workloads(500)["running totals"]) == pytest.approx(math.sqrt(9 / 8), rel=3e-3)


@pytest.mark.parametrize("apart", [1, 3, 12])
def test_the_sensitivity_is_that_of_the_worst_client(apart: int) -> None:
    strategy = best_banded(workloads(12)["running totals"], 4, apart)
    found = 0.0
    for start in range(apart):
        days = range(start, 12, apart)
        for signs in itertools.product((-1, 1), repeat=len(days)):
            change = np.zeros(12)
            change[list(days)] = signs
            found = max(found, float(np.sum((strategy @ change) ** 2)))
    assert sensitivity_squared(strategy, apart) == pytest.approx(found)


def test_no_strategy_gains_more_than_the_bound() -> None:
    """Random strategies with entries of both signs, their sensitivity by all 2^9 changes."""
    rng, days = np.random.default_rng(5), 10
    signs = np.array(list(itertools.product((-1, 1), repeat=days)), dtype=float)
    for workload in workloads(days).values():
        independent = math.sqrt(days) * float(np.linalg.norm(workload))
        for _ in range(100):
            strategy = np.eye(days) + np.tril(rng.normal(scale=rng.uniform(0.01, 0.7), size=(days, days)), -1)
            sensitivity = math.sqrt(float(np.max(np.sum((signs @ strategy.T) ** 2, axis=1))))
            error = float(np.linalg.norm(workload @ np.linalg.inv(strategy))) * sensitivity
            assert independent / error <= bound(workload) <= unequal_gain(workload) * math.sqrt(NESTEROV) + 1e-12


def test_data_that_count_once_gain_what_is_known() -> None:
    """For 60 days, a client's data in one of them: independent noise has √30.5, the best factorisation about 2.6."""
    totals = workloads(60)["running totals"]
    assert 1.8 < gain_of(totals, best_banded(totals, 20, 60), 60) < 2.6
    assert gain_of(totals, best_banded(totals, 20, 60), 60, 0.2) < gain_of(totals, best_banded(totals, 20, 60), 60)
