"""Figures 2, 3 and 9 of the LDP paper: distances between posteriors, estimates on the simplex, and their checks.

Statistical tests are seeded; each states how often it would fail by chance with another seed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper_samples import shown
from scipy.stats import t

from inference.draws import Sampling
from papers.ldp2021 import click_distance as clicks
from papers.ldp2021 import share_estimates as shares
from papers.ldp2021 import sigmoid_gap as gap
from papers.ldp2021.click_distance import ClickDistance
from papers.ldp2021.column_fits import Diagnosis
from papers.ldp2021.share_estimates import POSTERIOR, PROJECTED, TRUE, Compared, ShareEstimates
from papers.ldp2021.sigmoid_gap import SigmoidGap

FIT = Diagnosis(r_hat=1.004, effective=800.0, attempts=1, divergences=0, seconds=0.2)


# --- Figure 2


def test_clicks_have_the_published_shape_and_are_one_data_set() -> None:
    """Counts within five standard deviations of n/rank's part (1e-5)."""
    records = clicks.clicks(1)
    assert (len(records), records.min(), records.max()) == (11_000, 0, 9)
    p = 1 / np.arange(1, 11) / np.sum(1 / np.arange(1, 11))
    counts = np.bincount(records)
    assert np.all(np.abs(counts - 11_000 * p) < 5 * np.sqrt(11_000 * p * (1 - p)))
    assert np.array_equal(records, clicks.clicks(1))
    assert not np.array_equal(records, clicks.clicks(2))


def test_distances_between_samples_of_one_posterior_are_small_and_distant_ones_have_known_distances() -> None:
    """4,000 independent draws: E|F̂ - F| is 0.006 at most, and 0.02 is never seen (1e-6)."""
    counts = np.array([300, 500, 200])
    right = np.random.default_rng(1).dirichlet(1 + counts, 4000)
    found = clicks.distances(right, counts)
    assert found["draws"].max() < 0.02
    assert found["unit"].max() < 0.02 * 0.1  # F̂ and F differ on a tenth of [0, 1] at most
    moved = clicks.distances(right + np.array([0.4, -0.3, 0.2]), counts)
    np.testing.assert_allclose(moved["unit"], [0.4, 0.3, 0.2], atol=1e-3)  # W1 of a shift is the shift
    np.testing.assert_allclose(moved["draws"], 0.5, atol=1e-3)


def test_an_empirical_distribution_function_counts_ties_by_half() -> None:
    points = np.array([0.0, 1.0, 1.5, 2.0, 3.0])
    assert clicks.empirical(np.array([1.0, 2.0]), points).tolist() == [0, 0.25, 0.5, 0.75, 1]


def found_clicks(means: list[float], limit: float, r_hat: float = 1.0) -> clicks.Found:
    distances = np.tile(np.array([*means, limit])[:, None, None], (1, 3, 10))
    return clicks.Found(dict.fromkeys(clicks.DISTANCES, distances), [FIT._replace(r_hat=r_hat)])


@pytest.mark.parametrize(
    ("found", "failing"),
    [
        (found_clicks([0.05, 0.02, 0.006], 0.005), 0),
        (found_clicks([0.05, 0.06, 0.006], 0.005), 1),  # does not fall
        (found_clicks([0.05, 0.02, 0.006], 0.003), 2),  # does not end near, by either distance
        (found_clicks([0.05, 0.04, 0.02], 0.02), 1),  # falls too little
        (found_clicks([0.05, 0.02, 0.006], 0.005, r_hat=1.2), 1),
    ],
)
def test_checks_of_figure_2_can_fail(found: clicks.Found, failing: int) -> None:
    assert sum(not check.holds for check in ClickDistance().checks(found)) == failing


# --- Figures 3 and 9


def compared(posterior: np.ndarray, projected: np.ndarray, clients: int = 500, epsilon: float = 0.5) -> Compared:
    return Compared(shares.Cell(epsilon, clients), {POSTERIOR: posterior, PROJECTED: projected}, [FIT])


def estimates(spread: float, repeats: int = 200, seed: int = 3) -> np.ndarray:
    return np.array(TRUE) + spread * np.random.default_rng(seed).standard_normal((repeats, 3))


def test_errors_are_root_mean_squares_over_shares() -> None:
    found = shares.errors(np.array([[0.7, 0.2, 0.1], [0.8, 0.1, 0.1], [1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(found, [0, np.sqrt(0.02 / 3), np.sqrt((0.09 + 0.04 + 0.01) / 3)], atol=1e-12)
    assert shares.useless() == pytest.approx(0.2625, abs=1e-4)


def test_trivial_and_unordered_solutions_are_counted_apart_and_together() -> None:
    found = shares.unusable(np.array([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.8, 0.2, 0.0], [1.0, 0.0, 0.0]]))
    assert found == (0.5, 0.25, 0.5, 0.75)


def test_the_reduction_is_of_means_and_its_interval_is_students_of_a_pair() -> None:
    rng = np.random.default_rng(4)
    projected = rng.gamma(4.0, 0.02, 200)
    exact = shares.reduction_of(0.8 * projected, projected, 1)
    assert exact == pytest.approx((0.2, 0.2, 0.2))
    posterior = 0.8 * projected + 0.01 * rng.random(200)
    found = shares.reduction_of(posterior, projected, 4)
    ratio = posterior.mean() / projected.mean()
    sd = np.std(posterior - ratio * projected, ddof=1) / projected.mean()
    assert found.mean == pytest.approx(1 - ratio)
    assert found.high - found.mean == pytest.approx(t.ppf(1 - 0.05 / 8, 199) * sd / np.sqrt(200))
    assert found.low + found.high == pytest.approx(2 * found.mean)


def test_the_reductions_interval_covers_the_truth_at_its_nominal_rate() -> None:
    """1,000 times 50 pairs at 95 %: outside of 93 % to 97 % in three seeds of a thousand."""
    rng = np.random.default_rng(5)
    projected = rng.gamma(4.0, 0.02, (1000, 50))
    posterior = 0.7 * projected + rng.gamma(4.0, 0.002, (1000, 50))
    true = 1 - (0.7 + 0.1)
    found = [shares.reduction_of(*pair, 1) for pair in zip(posterior, projected, strict=True)]
    assert 0.93 < np.mean([one.low < true < one.high for one in found]) < 0.97


def test_checks_of_figure_3_can_fail() -> None:
    def failing(one: Compared) -> list[str]:
        return [check.name.split(",")[0] for check in ShareEstimates().checks([one]) if not check.holds]

    near, far = estimates(0.04), estimates(0.05)
    assert failing(compared(near, far)) == []
    assert failing(compared(far, far)) == ["posterior mean ahead"]
    assert failing(compared(far, near)) == ["posterior mean ahead", "behind nowhere", "unusable solutions"]
    assert failing(compared(far, near, clients=5000)) == ["behind nowhere"]
    assert failing(replace(compared(near, far), fits=[FIT._replace(r_hat=1.15)])) == ["R-hat"]


def test_figures_are_plain_and_mark_the_papers_repeats(tmp_path: Path) -> None:
    experiment = ShareEstimates(epsilons=(0.5, 2.0))
    found = [
        compared(estimates(0.4 / e, seed=n), estimates(0.5 / e, seed=n), n, e) for e in (0.5, 2.0) for n in (100, 2000)
    ]
    assert [one.cell.judged for one in found] == [True, False, False, False]
    first = found[0].reduction(1)
    assert first.mean == pytest.approx(0.2)
    interval = experiment.notes(found)["reduction_of_first_50"][str(found[0].cell)]
    assert set(interval) == {"mean", "low", "high"}
    assert len(shown(experiment, found, tmp_path)) == 2


# --- from real reports on


@pytest.fixture
def weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the sampler's place, which takes long to compile: draws from the prior, weighed by section 11's likelihood."""
    nuts = pytest.importorskip("inference.mcmc.nuts")

    def sample(model: Any, data: Any, options: Any, *_: Any, **__: Any) -> Any:
        chains, draws, seed = options.chains, options.draws, options.seed
        rng = np.random.default_rng(seed)
        theta = rng.dirichlet(data["prior"]["concentration"], 20_000)
        named, p, q = theta @ np.transpose(data["patterns"]), data["p"], data["q"]
        log_weights = np.log((1 - p) / (1 - q) * (1 - named) + p / q * named) @ data["counts"]
        weights = np.exp(log_weights - log_weights.max())
        drawn = rng.choice(20_000, (chains, draws), p=weights / weights.sum())
        none = np.zeros(chains, int)
        return nuts.Sampled({"shares": theta[drawn]}, {}, Sampling(none, none + 0.9, none, none + 0.5, 1.0))

    monkeypatch.setattr(nuts, "sample", sample)


def test_both_estimates_are_of_the_same_reports(weighed: None) -> None:
    """At ε = 5 with 500 clients both are within 0.15 of the truth, six of their deviations (1e-8)."""
    cell, experiment = shares.Cell(5.0, 500, 0, 2), ShareEstimates(repeats=2)
    result = json.loads(json.dumps(experiment.work(cell)))
    (one,) = experiment.gather([cell], [result])
    for found in one.estimates.values():
        np.testing.assert_allclose(found, [TRUE, TRUE], atol=0.15)
        np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    assert 0 < np.abs(one.estimates[POSTERIOR] - one.estimates[PROJECTED]).max() < 0.06
    assert len(one.fits) == 2


def test_figure_2_from_reports_to_picture(weighed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer records and items: nearer at a larger ε (twenty times less noise: no chance otherwise)."""
    monkeypatch.setattr(clicks, "ITEMS", 3)
    monkeypatch.setattr(clicks, "RECORDS", 1000)
    clicks.clicks.cache_clear()
    experiment = ClickDistance(repeats=2, epsilons=(0.1, 5.0))
    cells = experiment.cells()
    found = experiment.gather(cells, [json.loads(json.dumps(experiment.work(cell))) for cell in cells])
    assert found.distances["unit"].shape == (3, 2, 3)
    nearer, far = found.distances["unit"][1].mean(), found.distances["unit"][0].mean()
    assert nearer < 0.5 * far
    assert experiment.notes(found)["data"].startswith("simulated: 1000 records")
    assert len(shown(experiment, found, tmp_path)) == 2
    clicks.clicks.cache_clear()


# --- Figure 6


def test_figure_6_shows_its_monte_carlo_error(tmp_path: Path) -> None:
    """A check would fail by chance once in 10⁷ seeds."""
    experiment = SigmoidGap(repeats=50)
    cells = experiment.cells()
    found = experiment.gather(cells, [experiment.work(cell) for cell in cells])
    assert [one.name for one in experiment.checks(found) if not one.holds] == []
    of_paper = [one for cell, one in found.items() if cell.order == 2]
    assert all(0.0005 < one[gap.PAPERS] < 0.0015 and 0.03 < one[gap.ROW_BY_ROW] < 0.05 for one in of_paper)
    assert [one.row_count for one in shown(experiment, found, tmp_path)] == [5, 5]
    planted = {cell: {**one, gap.PAPERS: 0.02} for cell, one in found.items()}  # a bias that is no noise
    assert [one.holds for one in experiment.checks(planted)] == [False, False]
