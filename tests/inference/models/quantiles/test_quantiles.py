"""Quantiles from nested counts: least squares, monotony, coverage with seeded noise, missing values, few values."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from dca_proto import JobTerms, UsageError
from dca_proto.statistics import NestedCounts
from dca_proto.testing import seeded
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.errors import DataError
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.jobs.settings import parse_words, settings_from
from inference.models.quantiles import distribution
from inference.models.quantiles.distribution import Cumulative, posterior_of
from inference.posterior import Posterior
from inference.problem import Problem, Schema
from inference.rounds import run

QUARTILES = (0.25, 0.5, 0.75)
QUARTERS = (17.976, 20.0, 22.024)  # those of a normal law with mean 20 and standard deviation 3


def fitted(
    x: np.ndarray, ends: tuple[float, float], epsilon: float = 1.0, seed: int = 0, **settings: object
) -> Posterior:
    """Fit the values of n clients by the job, over the ideal functionality. The noise is that of the seed."""
    job, n = find("quantiles"), len(x)
    schema = Schema((), "y", {"y": Interval(*ends)}, alone=True)
    own = settings_from(job.settings, settings, "quantiles")
    terms = JobTerms(epsilon=epsilon, delta=1e-5, clients=n, tolerate=n // 10, computes=(b"a", b"b"))
    known = Conditions(n, n // 10, 1.0, np.random.default_rng(1))
    released = run(
        job.make(schema, own, known), IdealSwarm(x[:, None], ["y"], terms, random=seeded(f"quantiles {seed}"))
    )
    posterior: Posterior = job.finish(released, schema, own, known)
    return posterior


def intervals(posterior: Posterior) -> np.ndarray:
    return np.array([one.marginal.interval for one in posterior.estimates()])


def noisy(x: np.ndarray, sd: float, levels: int = 3, seed: int = 1) -> tuple[Cumulative, np.ndarray, np.ndarray]:
    """Return a release with normal noise, its value, and the matrix of its coordinates, made from the bins' ends."""
    statistic = NestedCounts(columns=("y",), lower=0.0, upper=1.0, levels=levels, count_weight=1.5)
    finest, rows = 4**levels, []
    for level in range(1, levels + 1):
        for bin_ in range(4**level):
            middles = (np.arange(finest) + 0.5) / finest
            rows.append((middles >= bin_ / 4**level) & (middles < (bin_ + 1) / 4**level))
    design = np.vstack([*rows, 1.5 * np.ones(finest)]).astype(float)
    counts = np.histogram(x, bins=finest, range=(0, 1))[0]
    value = design @ counts + sd * np.random.default_rng(seed).standard_normal(len(design))
    solved = np.linalg.lstsq(design, value, rcond=None)[0]
    found = Cumulative(statistic, np.zeros(0), sd, len(x))
    return found, value, np.vstack([solved, np.zeros(finest)])


def test_the_counts_are_those_of_least_squares() -> None:
    """Against NumPy's solver and a matrix built from the bins' ends."""
    x = np.random.default_rng(0).beta(2, 5, 400)
    found, value, (expected, _) = noisy(x, 4.0)
    assert distribution._least_squares(found.statistic, value) == pytest.approx(expected, abs=1e-9)
    evaluated = found.statistic.evaluate(x[:, None], 0).sum(axis=0)
    exact, without, _ = noisy(x, 0.0)
    assert evaluated[:-1] == pytest.approx(without[:-1])
    assert exact.n == 400


@pytest.mark.long
def test_drawn_functions_have_the_noise_of_the_release_and_rise() -> None:
    """Noise alone: 4,000 draws; the false-alarm rate of the comparison at four standard errors is 1 in 16,000."""
    x = np.random.default_rng(0).random(200_000)
    sd = 900.0
    statistic = noisy(x, sd)[0].statistic
    counts = np.histogram(x, bins=64, range=(0, 1))[0].astype(float)
    cumulative = Cumulative(statistic, counts, sd, len(x))
    functions = cumulative.draws(4000, np.random.default_rng(3))
    assert (np.diff(functions, axis=1) >= 0).all()
    assert ((functions >= 0) & (functions[:, -1:] == 1)).all()
    released = []
    for seed in range(300):
        _, _, (solved, _) = noisy(x, sd, seed=seed)
        released.append(np.cumsum(solved)[31] / solved.sum())
    assert np.std(functions[:, 31]) == pytest.approx(np.std(released), rel=4 / np.sqrt(2 * 300))


def test_without_noise_quantiles_are_those_of_the_values() -> None:
    x = np.random.default_rng(0).gamma(2, 2, 20_000)
    statistic = NestedCounts(columns=("y",), lower=0.0, upper=30.0, levels=5, count_weight=1.0)
    posterior = posterior_of(Cumulative.exact(statistic, x), QUARTILES, rng=np.random.default_rng(0))
    bin_width = 30 / 4**5
    for estimate, truth in zip(posterior.estimates(), np.quantile(x, QUARTILES), strict=True):
        assert estimate.marginal.mean == pytest.approx(truth, abs=bin_width)
    density = 0.7 * 0.25  # near the median, about
    assert np.ptp(intervals(posterior)[1]) < 4 * 1.96 * 0.5 / np.sqrt(len(x)) / density + 2 * bin_width


def test_missing_values_are_counted_and_the_quantiles_are_of_the_others() -> None:
    x = np.random.default_rng(1).normal(20, 3, 3000)
    x[:1200] = np.nan
    posterior = fitted(x, (5, 35), epsilon=2.0)
    low, high = intervals(posterior)[1]
    assert low < 20 < high
    assert high - low < 2
    assert any("about 40 % of the clients" in warning for warning in posterior.warnings)


def test_noise_that_hides_everything_is_said() -> None:
    posterior = fitted(np.random.default_rng(0).normal(20, 3, 20), (5, 35), epsilon=0.05)
    assert any(
        "the noise hides how many of the 20 clients have a value of y" in warning for warning in posterior.warnings
    )
    low, high = intervals(posterior)[1]
    assert low < 20 < high


@pytest.mark.long
def test_few_values_whose_number_noise_hides_have_wide_intervals() -> None:
    """The noise of the number of values has a standard deviation of 5.3; 20 of 2,000 clients have one.

    Of 36 intervals at 95 %, fewer than 26 hold far less than once in 10,000 runs; the three of a fit are dependent.
    """
    rng, held = np.random.default_rng(0), 0
    for seed in range(12):
        posterior = fitted(np.r_[rng.normal(20, 3, 20), np.full(1980, np.nan)], (5, 35), seed=seed)
        assert any("% of the clients" in warning for warning in posterior.warnings)
        found = intervals(posterior)
        held += int(((found[:, 0] <= QUARTERS) & (np.array(QUARTERS) <= found[:, 1])).sum())
    assert held >= 26


def test_without_any_value_nothing_is_learned_but_the_bounds() -> None:
    fits = [fitted(np.full(2000, np.nan), (5, 35), seed=seed) for seed in range(9)]
    for posterior in fits:
        warnings = " ".join(posterior.warnings)
        assert "the noise hides how many of the 2000 clients have a value of y" in warnings
        assert "seem to lack a value of y" in warnings
    assert np.median([np.ptp(intervals(posterior)[1]) for posterior in fits]) > 15


def test_many_bins_take_little_memory() -> None:
    """1,024 bins: a chain of 1,000 drawn functions is 8 MiB; all four at once with their noise took 200."""
    x = np.random.default_rng(0).normal(20, 3, 2000)
    tracemalloc.start()
    try:
        fitted(x, (5, 35), levels=5)
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


def test_quantiles_have_different_names() -> None:
    posterior = fitted(np.random.default_rng(0).normal(20, 3, 200), (5, 35), probabilities=[0.1, 0.1000000001, 0.999])
    names = [one.name for one in posterior.estimates()]
    assert names == ["quantile 0.1 of y", "quantile 0.1000000001 of y", "quantile 0.999 of y"]


def test_other_quantiles_come_from_the_same_round() -> None:
    posterior = fitted(np.random.default_rng(0).normal(20, 3, 2000), (5, 35), epsilon=4.0)
    assert [one.name for one in posterior.estimates()] == ["lower quartile of y", "median of y", "upper quartile of y"]
    again = posterior.refit(probabilities=(0.9,))
    (only,) = again.estimates()
    assert only.name == "quantile 0.9 of y"
    assert only.marginal.interval is not None
    assert only.marginal.interval[0] < 20 + 3 * 1.2816 < only.marginal.interval[1]


def test_a_quantile_in_an_outer_bin_is_remarked() -> None:
    posterior = fitted(np.random.default_rng(0).normal(20, 3, 2000), (21, 35), epsilon=4.0)
    remarks = posterior.summary()["remarks"]
    assert remarks["at a bound"].startswith("lower quartile, median:")


@pytest.mark.parametrize(
    "values", [(), (0.5, 0.5), (0.0,), (1.0,), (float("nan"),), tuple(np.linspace(0.001, 0.9, 101))]
)
def test_probabilities_that_are_none_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(DataError, match="probabilities"):
        settings_from(find("quantiles").settings, {"probabilities": values}, "quantiles")


@pytest.mark.parametrize("words", [["probabilities=0.9"], ["probabilities=[0.9]"]])
def test_one_quantile_needs_no_list(words: list[str]) -> None:
    settings = settings_from(find("quantiles").settings, parse_words(words), "quantiles")
    assert settings == find("quantiles").settings(probabilities=(0.9,))


def test_bounds_that_are_too_near_are_shown_in_full() -> None:
    with pytest.raises(UsageError, match=r"bounds 1\.0:1\.000000000000001 are too near"):
        NestedCounts(columns=("y",), lower=1.0, upper=1.0 + 1e-15)


def test_a_reference_without_values_is_refused() -> None:
    schema = Schema((), "y", {"y": Interval(0, 1)}, alone=True)
    empty = Problem("none", schema, np.empty((3, 0)), np.full(3, np.nan))
    with pytest.raises(DataError, match="no value of y"):
        find("quantiles").reference(empty, find("quantiles").settings())
