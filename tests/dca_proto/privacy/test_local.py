"""The local mechanisms' reports have the stated law, mean and variance.

Keys are fixed, so a test that passes keeps passing. For correct mechanisms and keys chosen at random all tests here
together fail with a probability below 1e-2.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dca_proto.privacy.local import AnalyticGaussian, GridLaplace, RandomisedResponse, UnaryEncoding
from dca_proto.privacy.local.additive import sample
from dca_proto.statistics.sensitivity import Sensitivity

COUNT = 300_000
GRID = Sensitivity(l1=3 * 2**20, l2_squared=3 * 2**40, bound=2**20)


def key_of(number: int) -> bytes:
    return number.to_bytes(32, "little")


def laplace_cdf(x: np.ndarray, rate: float) -> np.ndarray:
    """P(X <= x) of the discrete Laplace distribution, x integers."""
    tail = np.exp(-rate * np.where(x >= 0, x + 1, -x)) / (1 + math.exp(-rate))
    return np.where(x >= 0, 1 - tail, tail)


RATES = [Fraction(3), Fraction(1), Fraction(1, 3), Fraction(1, 100), Fraction(0.3) / 2**20, Fraction(1, 2**50)]


@pytest.mark.parametrize("rate", RATES)
def test_laplace_law(rate: Fraction) -> None:
    """χ² over up to 200 cells of about equal mass and the two tails. False alarm: 1e-4 each."""
    samples = sample(rate, COUNT, key_of(rate.denominator % 2**60 + rate.numerator % 2**60))
    cuts = np.round(stats.laplace.ppf(np.linspace(0.005, 0.995, 199), scale=1 / float(rate)))
    ends = np.unique(np.r_[cuts, -1, 0] if rate < 3 else [-2, -1, 0, 1]).astype(np.int64)
    seen = np.bincount(np.searchsorted(ends, samples), minlength=len(ends) + 1)
    expected = COUNT * np.diff(laplace_cdf(ends, float(rate)), prepend=0.0, append=1.0)
    assert stats.chisquare(seen, expected).pvalue > 1e-4


@pytest.mark.parametrize("rate", [Fraction(1), Fraction(1, 1000), Fraction(1, 2**52)])
def test_laplace_moments(rate: Fraction) -> None:
    """Mean and variance within 4 standard errors (the kurtosis is 6); low bits even. False alarm: 2e-4 each."""
    samples = sample(rate, COUNT, key_of(7))
    variance = 1 / (2 * math.sinh(float(rate) / 2) ** 2)
    z = samples / math.sqrt(variance)
    assert abs(z.mean()) < 4 / math.sqrt(COUNT)
    kurtosis = 6 + 2 * math.sinh(float(rate) / 2) ** 2
    assert abs(np.square(z).mean() - 1) < 4 * math.sqrt((kurtosis - 1) / COUNT)
    if rate < Fraction(1, 10**6):
        assert stats.chisquare(np.bincount(samples & 255)).pvalue > 1e-4


def test_laplace_samples_of_two_keys_and_of_neighbouring_rows_are_uncorrelated() -> None:
    """Within 4.5 standard errors. False alarm: 2e-5."""
    rate = Fraction(1, 1000)
    first, second = (sample(rate, COUNT, key_of(number)) * float(rate) / math.sqrt(2) for number in (1, 2))
    for product in (first * second, first[1:] * first[:-1]):
        assert abs(product.mean()) < 4.5 / math.sqrt(len(product))


@pytest.mark.parametrize("one", [AnalyticGaussian(1.0, 1e-6, GRID, 3), GridLaplace(1.0, GRID, 3)])
def test_a_mean_of_vectors_is_unbiased_with_the_stated_variance(one: AnalyticGaussian | GridLaplace) -> None:
    """100,000 clients; each coordinate within 4 standard errors, and so is the spread of the reports (kurtosis at most
    6). False alarm: 4e-4 each."""
    values = np.tile([2**20, 0, -12345], (100_000, 1))
    reports = one.randomise(values, key_of(11))
    found = one.estimate(reports)
    assert (np.abs(found.mean - values[0]) < 4 * np.sqrt(found.variance)).all()
    spread = (reports - values).var(axis=0) / one.noise_variance
    assert (np.abs(spread - 1) < 4 * math.sqrt(5 / len(reports))).all()


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("kind", [RandomisedResponse, UnaryEncoding])
def test_shares_of_categories_are_unbiased(
    kind: type[RandomisedResponse] | type[UnaryEncoding], epsilon: float
) -> None:
    """The paper's weights 0.7, 0.2, 0.1 (and a fourth category that nobody has); each share of 200,000 reports within
    4.5 standard errors, exact and estimated. False alarm: 6e-5 each."""
    truth = np.array([0.7, 0.2, 0.1, 0.0])
    one = kind(epsilon, 4)
    values = np.repeat(np.arange(4), (truth * 200_000).astype(int))
    found = one.estimate(one.randomise(values, key_of(12)))
    assert (np.abs(found.mean - truth) < 4.5 * np.sqrt(one.variance(truth, 200_000))).all()
    assert found.variance == pytest.approx(one.variance(truth, 200_000), rel=0.1)


def test_every_other_category_is_equally_likely() -> None:
    """χ² of 200,000 reports of one category. False alarm: 1e-4."""
    one = RandomisedResponse(0.5, 7)
    own, stray = map(float, one.probabilities)
    seen = np.bincount(one.randomise(np.full(200_000, 5), key_of(13)), minlength=7)
    expected = np.full(7, stray)
    expected[5] = own
    assert stats.chisquare(seen, 200_000 * expected).pvalue > 1e-4


def test_the_bits_of_a_report_are_independent() -> None:
    """χ² of all 8 reports of 3 bits, 200,000 of them. False alarm: 1e-4."""
    one = UnaryEncoding(1.0, 3)
    own, stray = map(float, one.probabilities)
    bits = one.randomise(np.full(200_000, 1), key_of(14))
    seen = np.bincount(bits @ np.array([4, 2, 1]), minlength=8)
    ones = np.array([stray, own, stray])
    patterns = np.array([[pattern >> 2 & 1, pattern >> 1 & 1, pattern & 1] for pattern in range(8)])
    expected = np.where(patterns, ones, 1 - ones).prod(axis=1)
    assert stats.chisquare(seen, 200_000 * expected).pvalue > 1e-4
