"""The cost of a verified sum against exact laws of its noise: integers and sums of positive terms, no Fourier sums.

Everything is deterministic: no test has a chance of a false alarm.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from statistics import NormalDist

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.privacy import verified
from dca_proto.privacy.verified import TAU, kappa, largest_step, noise_sd, release_cost

Array = NDArray[np.float64]


def counts(uniforms: int, bits: int) -> list[int]:
    """How many of the (2^bits)^uniforms outcomes have each sum."""
    found = [1]
    for _ in range(uniforms):
        total = [0, *accumulate(found + [0] * ((1 << bits) - 1))]
        found = [total[j + 1] - total[max(0, j + 1 - (1 << bits))] for j in range(len(total) - 1)]
    return found


def quantile(share: mpmath.mpf) -> mpmath.mpf:
    """z with P(N(0, 1) >= z) = share, in 40 digits."""
    z = mpmath.mpf(-NormalDist().inv_cdf(float(share)))
    for _ in range(3):
        z += (mpmath.erfc(z / mpmath.sqrt(2)) / 2 - share) / mpmath.npdf(z)
    return z


@pytest.mark.parametrize(("uniforms", "bits"), [(300, 1), (301, 2), (300, 3)])
def test_the_largest_step_is_that_of_the_exact_law_rounded_up(uniforms: int, bits: int) -> None:
    with mpmath.workdps(40):
        law = counts(uniforms, bits)
        tail = list(accumulate(reversed(law)))[::-1]
        quantiles = []
        for count in tail[len(law) // 2 :]:
            quantiles.append(quantile(mpmath.mpf(count) / mpmath.mpf(2) ** (uniforms * bits)))
            if count << 64 < 1 << uniforms * bits:
                break
        exact = max(high - low for low, high in pairwise(quantiles))
        assert exact <= largest_step(uniforms, bits) <= exact * (1 + mpmath.mpf("1e-4"))


@pytest.mark.parametrize(
    ("uniforms", "bits", "expected"), [(300, 7, 1.0432), (949, 7, 1.0131), (10**4, 7, 1.0012), (10**6, 4, 1.0)]
)
def test_kappa_is_what_the_design_says(uniforms: int, bits: int, expected: float) -> None:
    """The excess is about 12.4 / uniforms at many bits; the block's bounds add up to 1.5e-4."""
    assert expected <= kappa(uniforms, bits) + 5e-5
    assert kappa(uniforms, bits) <= expected + 2e-4


@pytest.mark.parametrize(("uniforms", "bits"), [(300, 1), (700, 5), (10**5, 16), (10**7, 2)])
def test_values_and_tails_agree_with_each_other_and_lie_within_their_bounds(uniforms: int, bits: int) -> None:
    """S(t) - S(t + 1) = P(Z = t) at all distances; the two sums run along different lines."""
    sd, odd = noise_sd(uniforms, bits), uniforms * ((1 << bits) - 1) % 2
    x = np.unique(np.floor(np.linspace(0, 9.5, 40) * sd)) + odd / 2
    value, tail, after = (
        verified._enclosed(uniforms, bits, sd, at, survival) for at, survival in ((x, False), (x, True), (x + 1, True))
    )
    assert (value[0] > 0).all()
    assert (tail[1] / tail[0] < 1 + 1e-8).all()
    assert (tail[0] - after[1] <= value[1]).all()
    assert (value[0] <= tail[1] - after[0]).all()
    if not odd:
        assert tail[0, 0] <= 0.5 + value[1, 0] / 2 <= tail[1, 0] + value[1, 0]


# --- the privacy-loss distribution of exact sums ----------------------------------------------------------------------


def exact_delta(law: Array, shifts: tuple[int, ...], epsilon: float) -> float:
    """δ(ε) of coordinates with independent noise of that law, moved by `shifts`: a sum of positive terms."""
    padded = [np.pad(law, (0, shift)) for shift in shifts]
    moved = [np.pad(law, (shift, 0)) for shift in shifts]
    p, q = moved[0], padded[0]
    for one, other in zip(moved[1:], padded[1:], strict=True):
        p, q = np.multiply.outer(p, one).ravel(), np.multiply.outer(q, other).ravel()
    return float(np.maximum(0, p - math.exp(epsilon) * q).sum())


def gaussian_delta(mu: float, epsilon: float) -> float:
    with mpmath.workdps(120):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return float(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))


LAW = np.array([float(mpmath.mpf(count) / mpmath.mpf(2) ** 300) for count in counts(300, 1)])
EPSILONS = [0.0, 0.1, 1.0, 3.0, 5.0, 8.0, 10.0, 12.0, 15.0, 20.0, 30.0, 40.0]


@pytest.mark.parametrize("shifts", [(1,), (7,), (20,), (60,), (5, 12), pytest.param((1, 1, 1), marks=pytest.mark.long)])
def test_the_exact_loss_is_what_mu_and_slack_promise(shifts: tuple[int, ...]) -> None:
    """Several coordinates, or as many releases of one: exact laws compose to no more than the claims do."""
    law = LAW[65:236] if len(shifts) > 2 else LAW  # cut where it is 1e-22: an infinite loss far below the slack
    cost = release_cost(math.hypot(*shifts), len(shifts), 300, 1, 1)
    for epsilon in EPSILONS:
        promised = gaussian_delta(cost.mu, epsilon) + (1 + math.exp(epsilon)) * cost.slack
        assert exact_delta(law, shifts, epsilon) <= promised * (1 + 1e-9), epsilon


@pytest.mark.parametrize("shifts", [(7,), (20,)])
def test_mu_alone_is_a_false_claim(shifts: tuple[int, ...]) -> None:
    """Far out, one neighbour's values are impossible under the other: δ stays above that of every Gaussian."""
    mu = release_cost(math.hypot(*shifts), len(shifts), 300, 1, 1).mu
    false = [e for e in np.linspace(1, 200, 100) if exact_delta(LAW, shifts, float(e)) > gaussian_delta(mu, float(e))]
    assert false, "some ε shows it"
    assert exact_delta(LAW, shifts, 200.0) > 0


def test_less_mu_is_a_false_claim_even_with_its_slack() -> None:
    """The step is taken by the threshold where the tail falls below τ: nothing is given away."""
    cost = release_cost(20, 1, 300, 1, 1)
    excess = [
        exact_delta(LAW, (20,), e) - gaussian_delta(cost.mu / kappa(300, 1), e) - (1 + math.exp(e)) * cost.slack
        for e in EPSILONS
    ]
    assert max(excess) > 0


# --- statistics -------------------------------------------------------------------------------------------------------


def test_a_structured_statistic_pays_for_its_rounding_and_a_box_does_not() -> None:
    boxed, structured = (release_cost(30.0, 9, 1000, 1, 7, structured=flag) for flag in (False, True))
    assert structured.mu / boxed.mu == pytest.approx(33 / 30, rel=1e-12)
    assert structured.slack == boxed.slack == 9 * TAU == 9 / 2**64
    assert boxed.mu == pytest.approx(kappa(1000, 7) * 30 / noise_sd(1000, 7), rel=1e-8)


def test_one_dither_moves_neighbours_apart_by_less_than_a_unit_in_each_coordinate() -> None:
    rng = np.random.default_rng(12)
    v, moves, dither = rng.normal(0, 20, (5000, 6)), rng.normal(0, 1, (5000, 6)), rng.random((5000, 1))
    apart = np.linalg.norm(np.floor(v + moves + dither) - np.floor(v + dither), axis=1)
    assert (apart <= np.linalg.norm(moves, axis=1) + math.sqrt(6)).all()
    assert (apart > np.linalg.norm(moves, axis=1)).any(), "Δ alone would be too little"
    edge = np.full(6, 0.5)  # two rows that hardly differ: for some dither, all coordinates move
    assert np.linalg.norm(np.floor(edge + 1e-9 + 0.5) - np.floor(edge - 1e-9 + 0.5)) == pytest.approx(math.sqrt(6))


@pytest.mark.parametrize("bound", [1, 5])
def test_a_box_stays_a_box_when_it_is_rounded(bound: int) -> None:
    v = np.linspace(-bound, bound, 41)
    for dither in np.linspace(0, 1, 50, endpoint=False):
        assert abs(np.floor(v + dither)).max() <= bound


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1.0, 1, 299, 1, 7), "299 uniform numbers"),
        ((1.0, 1, 300, 1, 0), "of 0 bits"),
        ((1.0, 1, 300, 1, 17), "of 17 bits"),
        ((0.0, 1, 300, 1, 7), "sensitivity of 0.0"),
        ((math.inf, 1, 300, 1, 7), "sensitivity of inf"),
        ((math.nan, 1, 300, 1, 7), "sensitivity of nan"),
        ((1.0, 0, 300, 1, 7), "over 0 coordinates"),
    ],
)
def test_a_cost_out_of_range_is_refused(arguments: tuple[float, int, int, int, int], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        release_cost(*arguments)
