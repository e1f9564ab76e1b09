"""What an audit's guesses prove: known values, coverage in simulated experiments, and figures that must not mislead."""

from __future__ import annotations

import math

import numpy as np
import pytest
from long_cases import mostly_long
from numpy.typing import NDArray
from scipy.stats import norm

from dca_proto.privacy import accounting
from emulator.coalition.bounds import (
    Errors,
    Samples,
    approximate_trade_off,
    best_thresholds,
    count_errors,
    epsilon_lower_cp,
    epsilon_lower_gdp,
    gaussian_trade_off,
    mu_lower,
    upper_rate,
)

MU, DELTA = accounting.mu_of(1.0, 1e-6), 1e-6
EXPERIMENTS, RUNS, PILOT = 400, 2000, 500


def gaussian(generator: np.random.Generator, runs: int, mu: float = MU) -> Samples:
    """What an adversary sees of a mechanism that is exactly μ-private."""
    return generator.normal(mu / 2, 1, runs), generator.normal(-mu / 2, 1, runs)


def errors(positives: float, negatives: float, runs: int) -> Errors:
    return Errors(np.array(positives), np.array(negatives), runs)


# Clopper and Pearson's interval, as tabulated: 3 of 100 at two-sided 95 % is 0.62 % to 8.52 %.


@pytest.mark.parametrize(
    ("count", "runs", "risk", "bound"),
    [
        (3, 100, 0.025, 0.0852),
        (0, 10, 0.05, 1 - 0.05**0.1),
        (0, 100, 0.025, 0.0362),
        (5, 10, 0.025, 0.8129),
        (10, 10, 0.025, 1.0),
        (200_000, 400_000, 0.025, 0.5 + 1.96 * math.sqrt(0.25 / 400_000)),
    ],
)
def test_upper_bounds_of_a_rate_against_known_values(count: int, runs: int, risk: float, bound: float) -> None:
    assert upper_rate(np.array(count), runs, risk) == pytest.approx(bound, abs=6e-5)


def test_upper_bounds_of_a_rate_cover_it() -> None:
    """For binomial counts of rate 0.3 the bound at risk 5 % is below 0.3 with probability <= 5 %, summed exactly."""
    from scipy.stats import binom

    counts = np.arange(201)
    missed = upper_rate(counts, 200, 0.05) < 0.3
    assert 0.02 < binom.pmf(counts, 200, 0.3)[missed].sum() <= 0.05


def test_the_bounds_of_exact_rates_tend_to_the_truth() -> None:
    """A test at the middle of two unit normals that are 2 apart has both rates Φ(-1), and μ = 2."""
    rate = float(norm.cdf(-1))
    for runs, tolerance in ((10**4, 0.1), (10**8, 0.001)):
        bound = float(mu_lower(errors(rate * runs, rate * runs, runs), 0.95))
        assert 2 - tolerance < bound < 2
    assert float(epsilon_lower_cp(errors(rate * 1e8, rate * 1e8, 10**8), 0.0, 0.95)) == pytest.approx(
        math.log((1 - rate) / rate), rel=1e-3
    )


@pytest.mark.parametrize(("positives", "negatives"), [(0, 100), (100, 0), (100, 100), (50, 50)])
def test_guesses_that_prove_nothing_prove_zero(positives: int, negatives: int) -> None:
    nothing = errors(positives, negatives, 100)
    assert float(mu_lower(nothing, 0.95)) == 0
    assert epsilon_lower_gdp(nothing, DELTA, 0.95) == 0
    assert float(epsilon_lower_cp(nothing, DELTA, 0.95)) == 0


def test_perfect_guesses_prove_a_finite_epsilon() -> None:
    perfect = errors(0, 0, 1000)
    assert 5 < float(epsilon_lower_cp(perfect, DELTA, 0.95)) < math.log(1000)
    assert 5 < float(mu_lower(perfect, 0.95)) < 6


def test_errors_are_counted_on_the_right_side() -> None:
    zero, one = np.array([1.0, 2.0, 3.0]), np.array([-1.0, 0.0, 1.0])
    counted = count_errors((zero, one), np.array([-9.0, 0.0, 1.0, 9.0]))
    assert counted.false_positives.tolist() == [3, 1, 0, 0]
    assert counted.false_negatives.tolist() == [0, 0, 1, 3]
    assert counted.runs == 3


@pytest.mark.parametrize("mu", mostly_long([MU, 2.0], [MU]))
def test_lower_bounds_are_above_the_truth_in_at_most_one_experiment_of_twenty(mu: float) -> None:
    """400 seeded experiments with a mechanism that is exactly μ-private, thresholds chosen on pilot runs. Both rates
    are bounded at once, so a 95 % bound is too high in well below 2 % of them; at 2 %, more than 20 would have
    probability 8e-5."""
    generator, epsilon = np.random.default_rng(5), accounting.epsilon_of(mu, DELTA)
    counted = []
    for _ in range(EXPERIMENTS):
        cuts = best_thresholds(gaussian(generator, PILOT, mu), RUNS, DELTA, 0.95)
        counted.append(count_errors(gaussian(generator, RUNS, mu), np.array([cuts.gdp, cuts.cp])))
    positives, negatives = (np.array([one[kind] for one in counted]) for kind in (0, 1))
    by_gdp, by_cp = (Errors(positives[:, place], negatives[:, place], RUNS) for place in (0, 1))
    assert (mu_lower(by_gdp, 0.95) > mu).sum() <= 20
    assert (epsilon_lower_cp(by_cp, DELTA, 0.95) > epsilon).sum() <= 20


def test_the_gaussian_curve_lies_in_the_region_of_its_epsilon_and_touches_it() -> None:
    rates: NDArray[np.float64] = np.logspace(-7, 0, 2000)[:-1]
    slack = gaussian_trade_off(rates, MU) - approximate_trade_off(rates, 1.0, DELTA)
    assert slack.min() >= -1e-12
    assert slack.min() < 1e-9
