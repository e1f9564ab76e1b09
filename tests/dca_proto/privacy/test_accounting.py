"""The accounting against 60-digit arithmetic, the papers' figures, and exact discrete laws.

Only seeded random inputs and exact comparisons: no test here has a chance of a false alarm.
"""

from __future__ import annotations

import math
import random
from decimal import Decimal, localcontext
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dca_proto.errors import UsageError
from dca_proto.privacy.accounting import (
    MU_MAX,
    check_ring,
    compose,
    delta_of,
    epsilon_of,
    largest_sum,
    mu_of,
    ring_bits,
    share_variance,
)


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def log_uniform(source: random.Random, low: float, high: float) -> float:
    return math.exp(source.uniform(math.log(low), math.log(high)))


@pytest.mark.parametrize("draws", [300, pytest.param(2000, marks=pytest.mark.long)])
def test_sigma_never_overspends_and_wastes_less_than_a_millionth(draws: int) -> None:
    """Random (ε in [0.01, 40], δ in [1e-12, 0.1]): σ holds δ in 60 digits, and σ a millionth smaller does not."""
    source = random.Random(2017)
    corners = [(epsilon, delta) for epsilon in (0.01, 40.0) for delta in (1e-12, 0.1)]
    drawn = [(log_uniform(source, 0.01, 40), log_uniform(source, 1e-12, 0.1)) for _ in range(draws)]
    for epsilon, delta in corners + drawn:
        mu = mu_of(epsilon, delta)
        with mpmath.workdps(60):
            sigma = 1 / mpmath.mpf(mu)
            assert exact_delta(epsilon, 1 / sigma) <= delta, (epsilon, delta)
            assert exact_delta(epsilon, (1 + mpmath.mpf("1e-6")) / sigma) > delta, (epsilon, delta)
        assert mu < MU_MAX


def test_the_noise_that_is_drawn_has_that_sigma() -> None:
    """On a fine grid: the honest shares' variance, less the grid's price, is σ², and no more than need be."""
    source = random.Random(2021)
    for _ in range(300):
        mu = mu_of(log_uniform(source, 0.01, 40), log_uniform(source, 1e-12, 0.1))
        sensitivity, honest = log_uniform(source, 1e6, 1e9), source.randint(1, 1000)
        variance = share_variance(sensitivity, mu, honest, 10)
        needed = (Fraction(sensitivity) / Fraction(mu)) ** 2
        assert needed < honest * variance - 9
        assert honest * (variance - 1) < needed * (1 + Fraction(2, 10**9)) + 9


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 1e-15), (60, 1e-15), (1e-3, 0.1), (60, 0.9), (1e-9, 1e-15)])
def test_mu_holds_at_the_corners(epsilon: float, delta: float) -> None:
    mu = mu_of(epsilon, delta)
    assert exact_delta(epsilon, mu) <= delta < exact_delta(epsilon, mu * (1 + 1e-6))


def test_delta_is_right_to_ten_digits() -> None:
    source = random.Random(2018)
    for _ in range(500):
        epsilon, mu = log_uniform(source, 1e-3, 60), log_uniform(source, 1e-4, 15)
        truth = exact_delta(epsilon, mu)
        assert abs(delta_of(epsilon, mu) - truth) <= 1e-10 * truth + 1e-300, (epsilon, mu)
    assert delta_of(1.0, 0.0) == 0.0
    assert delta_of(0.0, 1.0) == pytest.approx(math.erf(0.5 / math.sqrt(2)), rel=1e-12)


def test_epsilon_is_rounded_up_and_inverts_mu() -> None:
    source = random.Random(2019)
    for _ in range(500):
        epsilon, delta = log_uniform(source, 0.01, 40), log_uniform(source, 1e-12, 0.01)
        mu = mu_of(epsilon, delta)
        back = epsilon_of(mu, delta)
        assert exact_delta(back, mu) <= delta, (epsilon, delta)
        assert back <= epsilon * (1 + 1e-9)
        assert exact_delta(back * (1 - 1e-6), mu) > delta, (epsilon, delta)


def test_epsilon_is_zero_where_delta_alone_pays() -> None:
    assert epsilon_of(0.0, 1e-6) == 0.0
    assert epsilon_of(1e-7, 1e-6) == 0.0


@pytest.mark.parametrize(("epsilon", "sigma"), [(1, 3.186), (10**0.5, 1.169), (10, 0.455), (10**1.5, 0.194)])
def test_sigma_per_unit_of_sensitivity_is_the_exact_column_of_the_table(epsilon: float, sigma: float) -> None:
    """σ per unit sensitivity at δ = 1e-4; the classical rule has 0.434 and 0.137 for the last two: too little."""
    assert 1 / mu_of(epsilon, 1e-4) == pytest.approx(sigma, abs=6e-4)


def test_composition_is_the_root_of_the_sum_of_squares_rounded_up() -> None:
    assert compose([]) == 0.0
    assert compose([0.3]) == 0.3
    source = random.Random(2020)
    for _ in range(200):
        mus = [log_uniform(source, 1e-6, 5) for _ in range(source.randint(2, 40))]
        with localcontext() as context:
            context.prec = 60
            truth = sum(Decimal(mu) ** 2 for mu in mus).sqrt()
            assert truth <= Decimal(compose(mus)) <= truth * (1 + Decimal("1e-14"))


def test_two_rounds_planned_jointly_cost_what_the_design_says() -> None:
    """At ε = 1, δ = 1e-4 a tenth of μ² for the first round leaves σ = 3.36 Δ for the second."""
    mu = mu_of(1.0, 1e-4)
    assert 1 / (mu * math.sqrt(0.9)) == pytest.approx(3.36, abs=0.005)
    assert compose([mu * math.sqrt(0.1), mu * math.sqrt(0.9)]) == pytest.approx(mu, rel=1e-14)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_bad_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(UsageError, match="epsilon"):
        mu_of(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_bad_delta_is_refused(delta: float) -> None:
    with pytest.raises(UsageError, match="delta"):
        mu_of(1.0, delta)
    with pytest.raises(UsageError, match="delta"):
        epsilon_of(1.0, delta)


@pytest.mark.parametrize("mu", [-1.0, math.inf, math.nan])
def test_bad_mu_is_refused(mu: float) -> None:
    for call in (lambda: delta_of(1.0, mu), lambda: epsilon_of(mu, 1e-5), lambda: compose([1.0, mu])):
        with pytest.raises(UsageError, match="mu"):
            call()


def test_share_variance_is_the_least_that_pays_for_noise_and_grid() -> None:
    sensitivity, mu, honest = 12345.678, 0.31, 7
    variance = share_variance(sensitivity, mu, honest, 10)
    needed = (sensitivity / mu) ** 2 * (1 + 1e-9) + 9
    assert honest * (variance - 1) < needed <= honest * variance


def test_share_variance_is_exact_where_floats_are_not() -> None:
    """At Δ = 2^39, μ = 1/2 the squares have 81 bits: S must not be rounded down by a float."""
    variance = share_variance(2.0**39, 0.5, 3, 1)
    assert variance == -(-((2**80) * (10**9 + 1) + 9 * 10**9) // (3 * 10**9))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1000.0, 0.5, 0, 1), "N - T - 1 is 0.*smaller T"),
        ((10.0, 1.0, 2, 1), "at least 2 more fraction bits, or N - T - 1 of at most 1$"),
        ((100.0, 1.0, 20000, 1), "at least 4 more fraction bits, or N - T - 1 of at most 158$"),
        ((5.0, 1.0, 2, 1), "at least 4 more fraction bits$"),
        ((2.0**42, 1.0, 1, 1), "at least 4 fewer fraction bits, or N - T - 1 of at least 17$"),
        ((2.0**62, 1.0, 1, 1), "at least 24 fewer fraction bits$"),
        ((0.0, 1.0, 2, 1), "sensitivity"),
        ((math.nan, 1.0, 2, 1), "sensitivity"),
        ((1000.0, 0.0, 2, 1), "mu"),
        ((1000.0, 21.0, 2, 1), "mu is 21.0, expected 1e-40 to 20: ask for another epsilon"),
        ((1000.0, 1.0, 2, 0), "dimension"),
    ],
)
def test_share_variance_refuses(arguments: tuple[float, float, int, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        share_variance(*arguments)


def test_the_honest_shares_that_a_refusal_names_are_the_most_that_fit() -> None:
    with pytest.raises(UsageError, match=r"N - T - 1 of at most 158$"):
        share_variance(100.0, 1.0, 500, 1)
    assert share_variance(100.0, 1.0, 158, 1) == 64
    with pytest.raises(UsageError):
        share_variance(100.0, 1.0, 159, 1)


def share_law(variance: int, honest: int) -> np.ndarray:
    """The exact law of the sum of `honest` discrete Gaussians, by convolution (doubles: absolute error below 1e-15)."""
    reach = 20 * math.isqrt(variance)
    x = np.arange(-reach, reach + 1, dtype=float)
    one = np.exp(-x * x / (2 * variance))
    law = one = one / one.sum()
    for _ in range(honest - 1):
        law = np.convolve(law, one)
    return law


@pytest.mark.parametrize(("sensitivity", "honest"), [(1, 3), (4, 3), (13, 3), (29, 5), (7, 1)])
def test_the_discrete_sum_is_private_as_promised(sensitivity: int, honest: int) -> None:
    """d = 1, √S = 8 (the coarsest grid): the exact δ of the discrete sum is at most δ(ε; μ) at 60 values of ε."""
    mu = sensitivity / math.sqrt((64 * honest - 9) / (1 + 1e-9)) * (1 + 1e-12)
    assert share_variance(sensitivity, mu, honest, 1) == 64
    law = share_law(64, honest)
    shifted = np.concatenate([np.zeros(sensitivity), law])
    law = np.concatenate([law, np.zeros(sensitivity)])
    for epsilon in np.linspace(0.0, 4.0 * mu + mu * mu / 2, 60):
        discrete = np.maximum(law - math.exp(epsilon) * shifted, 0).sum()
        assert discrete <= delta_of(float(epsilon), mu) + 1e-15


def test_the_grid_has_to_be_paid_for() -> None:
    """Without the variance s² = 9 the promise would be false: some exact δ exceeds δ(ε; Δ/√(nS)) at S = 64, Δ = 1."""
    law, mu = share_law(64, 3), 1 / math.sqrt(64 * 3)
    ahead, behind = np.append(law, 0.0), np.insert(law, 0, 0.0)
    excess = [
        np.maximum(ahead - math.exp(epsilon) * behind, 0).sum() / delta_of(float(epsilon), mu)
        for epsilon in np.linspace(0.01, 0.3, 200)
    ]
    assert max(excess) > 1.001


def log_ratio(up: mpmath.mpf, down: mpmath.mpf) -> mpmath.mpf:
    """ln((1 + η_a)/(1 - η_b)) for a² = up, b² = down, η_s = 2 Σ_k exp(-2π²s²k²) (from k = 5 on below 1e-1900)."""

    def eta(square: mpmath.mpf) -> mpmath.mpf:
        return 2 * sum(mpmath.exp(-2 * mpmath.pi**2 * square * k * k) for k in range(1, 5))

    return mpmath.log((1 + eta(up)) / (1 - eta(down)))


@pytest.mark.parametrize("variance", [64, 100, 10**6])
@pytest.mark.parametrize("honest", [1, 2, 1000])
@pytest.mark.parametrize("dimension", [1, 10**5])
def test_the_widening_absorbs_the_slack_of_the_lemma(variance: int, honest: int, dimension: int) -> None:
    """With κ and τ' summed as they stand: e^{dη} δ(ε - 2dη; μ/√(1+ω)) <= δ(ε; μ), in 200 digits."""
    with mpmath.workdps(200):
        eta = log_ratio(mpmath.mpf(variance * honest - 9), mpmath.mpf(9))
        for k in range(1, min(honest, 20)):
            eta += log_ratio(*2 * [mpmath.mpf(variance * k) / (k + 1)])
        eta += max(0, honest - 20) * log_ratio(*2 * [mpmath.mpf(variance) / 2])
        assert eta < mpmath.mpf("1.5e-77")

        def delta(epsilon: mpmath.mpf, mu: mpmath.mpf) -> mpmath.mpf:
            return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)

        for mu in map(mpmath.mpf, (1e-6, 0.3, 4, 20)):
            for epsilon in (mu / 100, mu, mu * mu / 2 + 5 * mu):
                inner = delta(epsilon - 2 * dimension * eta, mu / mpmath.sqrt(1 + mpmath.mpf("1e-9")))
                assert mpmath.exp(dimension * eta) * inner <= delta(epsilon, mu)


def test_ring_takes_what_fits_and_refuses_what_does_not() -> None:
    check_ring(2**40, 10**6, 2**60, 10**4)
    with pytest.raises(UsageError, match=r"at least 2 fewer fraction bits, or N of at most 1023$"):
        check_ring(2**53, 2**10, 64, 1)
    with pytest.raises(UsageError, match=r"at least 4 fewer fraction bits, or N of at most 1023$"):
        check_ring(2**53, 2**12, 64, 1)
    check_ring(2**53, 1023, 64, 1)
    check_ring(2**51, 2**10, 64, 1)
    check_ring(2**49, 2**12, 64, 1)


def test_the_bits_of_the_ring_count_data_noise_and_sign() -> None:
    assert largest_sum(1000, 10, 0, 1) == 10_001
    assert ring_bits(1000, 10, 0, 1) == 15
    assert ring_bits(0, 1, 2**80, 1) == 44
    assert ring_bits(2**62 - 10**6, 2, 64, 1) == 64


def test_ring_counts_the_noise() -> None:
    """At N = 1, S = 2^80, d = 1 the noise alone reaches 2^40 √(2 ln 2^41) = 2^40 · 7.54."""
    noise = math.ceil(2**40 * math.sqrt(2 * 41 * math.log(2)))
    check_ring(2**63 - noise - 10**6, 1, 2**80, 1)
    with pytest.raises(UsageError, match="2\\^63"):
        check_ring(2**63 - noise, 1, 2**80, 1)
    with pytest.raises(UsageError):
        check_ring(2**63 - noise - 10**6, 1, 2**80, 10)
    check_ring(2**61 - noise, 4, 2**80, 1)
    with pytest.raises(UsageError, match="2\\^63"):
        check_ring(2**61 - noise // 2, 4, 2**80, 1)


@pytest.mark.parametrize("arguments", [(-1, 3, 64, 1), (1, 0, 64, 1), (1, 3, -1, 1), (1, 3, 64, 0)])
def test_ring_refuses_nonsense(arguments: tuple[int, int, int, int]) -> None:
    with pytest.raises(UsageError, match="at least"):
        check_ring(*arguments)
