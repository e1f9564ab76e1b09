"""Theorems 3 and 4 in small, Figure 1(b) from the code's own plans, and that both are the ideal functionality's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dca_proto.jobs.job import JobTerms
from emulator.ideal import IdealSwarm
from inference.problem import stream
from papers.dca2017 import efficiency as e
from papers.dca2017.figure_1b import TOLERATED, factors, measured

SIZES = (25_000, 50_000, 100_000)


@pytest.fixture(scope="module")
def results() -> list[dict[str, object]]:
    """Sizes at which every line is fitted, two data sets of each."""
    cells = [e.Cell(model, n, k, 50, 1) for model in e.MODELS for n in SIZES for k in range(2)]
    return [e.work(cell) for cell in cells]


def test_slopes_are_minus_one_and_the_sampling_errors_is_not(results: list[dict[str, object]]) -> None:
    """Seeded. A median over 100 errors is known to 8 % or so, so that a slope over a factor of 4 has a standard error
    of 0.08 for one epsilon and 0.05 for the mean of three: within 0.25 of -1 with a false alarm below 1e-5."""
    lines = e.lines(results, seed=1)
    assert [(line.estimator, line.epsilon) for line in lines] == [(m, eps) for m in e.MODEL_OF for eps in e.EPSILONS]
    for estimator in e.MODEL_OF:
        own = [line for line in lines if line.estimator == estimator]
        assert np.mean([line.slope for line in own]) == pytest.approx(-1, abs=0.25)
        assert all(line.slope_low < line.slope < line.slope_high for line in own)
        assert own[0].median[0] > own[1].median[0] > own[2].median[0]  # less noise at a larger epsilon
    n, medians, _ = e.sampling(results, e.MEAN_NAME)
    assert n == list(SIZES)
    assert 2 * 5 * e.MEAN_SD / math.sqrt(n[0]) > medians[0] > 0.2 * 5 * e.MEAN_SD / math.sqrt(n[0])


@pytest.mark.parametrize("model", e.MODELS)
def test_its_sums_are_those_of_the_ideal_functionality(model: str) -> None:
    """The same noise variance, and the same rows' noisy sum within 6 standard deviations: false alarm below 1e-7."""
    n, epsilon = 500, 1.0
    plan = e.plan_of(e.request_of(model), n, epsilon)
    total, _ = e._sums(e.Cell(model, n, 0, 1, 1), plan, stream(1, "rows"))
    rows = e.draw(model, stream(1, "rows"), n)
    terms = JobTerms(epsilon=epsilon, delta=e.DELTA, clients=n, tolerate=0, computes=e.COMPUTES)
    columns = e.request_of(model).parameters["columns"]
    aggregate = IdealSwarm(rows, columns, terms, random=stream(1, "noise").bytes).run_round(e.request_of(model))
    assert aggregate.noise_variance == pytest.approx(n * plan.noise_variance * plan.unit**2, rel=1e-12)
    np.testing.assert_allclose(aggregate.value, total * plan.unit, atol=6 * math.sqrt(aggregate.noise_variance))


def test_the_fit_begins_where_the_noise_is_small() -> None:
    for model in e.MODELS:
        starts = [e.fit_from(model, epsilon) for epsilon in e.EPSILONS]
        assert starts == sorted(starts, reverse=True)
        assert starts[0] < 30_000


def test_a_plan_never_has_less_noise_than_theorem_1_and_hardly_more() -> None:
    for tolerate in TOLERATED:
        every = list(factors(tolerate))
        assert every[0].clients == tolerate + 2
        assert every[0].variance == pytest.approx(tolerate + 2, rel=1e-3)  # one honest noise must do what all add
        assert all(0 <= factor.excess < 1e-3 for factor in every)


def test_drawn_noise_has_the_planned_variance() -> None:
    """5 standard errors of a variance over 4000 coordinates; false alarm below 1e-6."""
    assert measured(20, 5, seed=1) == pytest.approx(20 / 14, rel=5 * math.sqrt(2 / 4000))
