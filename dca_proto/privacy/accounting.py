"""Cost and noise of a release: the exact Gaussian trade-off, its composition, and each client's share of the noise.

A release with L2 sensitivity Δ and Gaussian noise of standard deviation σ is μ-private (Gaussian differential privacy,
Dong, Roth and Su 2022), μ = Δ/σ. Equivalently, it is (ε, δ(ε; μ))-private for every ε >= 0 at once, where

    δ(ε; μ) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)                    (Balle and Wang 2018, theorem 8).

A client's budget is kept in μ, composes exactly as μ² = Σ μ_r², and is shown as (ε, δ). `mu_of` and `epsilon_of` allow
for an error in ln δ of `_LOG_ERROR` (1 + ε), some ten times the largest error observed, so they never promise more than
is true. "From the continuous Gaussian to the grid" in PRIVACY.md proves the variance of a share.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from fractions import Fraction

from dca_proto.errors import UsageError
from dca_proto.privacy.noise import MAX_VARIANCE, MIN_VARIANCE
from dca_proto.privacy.rounding import at_least, at_most

_LOG_ERROR = 1e-12
_SMOOTHING = 9  # s² of the lemma above, s = 3
_WIDENING = Fraction(1, 10**9)  # ω
CLIENTS_MAX = 10_000_000
"""Largest number of clients in a federation: "Up to ten million clients" in PRIVACY.md shows that they fit."""
MU_MAX = 20.0
"""Largest μ of a release, ε = 294 at δ = 1e-6. A larger one protects nobody, and the proof above does not cover it."""
DELTA = 1e-5
"""The default δ of all budgets and limits."""
_MU_MIN = 1e-40
_DIMENSION_MAX = 2**40
_EPSILON_MIN = 1e-100
PURE_MAX = 500.0
"""Largest ε of an ε-private release, far above what mechanisms offer; beyond it, normal tails underflow floats."""
_PURE_MU_MAX = 70.0  # above the μ of that ε
_HALVINGS = 47
_ROUNDING = 2.0**-50  # relative, of what remains of δ
_SHORTER, _EPSILON_PART, _THIRDS = 1 - 1e-4, 1e-4, 40  # of the search for the best ε' <= ε, if ε costs too much slack
_STEPS_MAX = 100  # towards an ε with slack; a slack far below δ needs two or three
_WRAP_BITS = 40  # a sum leaves `largest_sum` with probability β = 2^-40 at most
_HALF_RULE = (  # nodes x > 0 and weights of the 10-point Gauss-Legendre rule; the nodes -x have the same weights
    (0.14887433898163122, 0.29552422471475287),
    (0.4333953941292472, 0.26926671930999635),
    (0.6794095682990244, 0.21908636251598204),
    (0.8650633666889845, 0.1494513491505806),
    (0.9739065285171717, 0.06667134430868814),
)
_MU_INTEGRATED = 0.5  # below this μ the difference of two Mills ratios is integrated
_FRACTION_FROM = 3.0  # from this s on, Mills' ratio is computed as a continued fraction
_FRACTION_TERMS = 40


def delta_of(epsilon: float, mu: float) -> float:
    """Return δ(ε; μ) of the Gaussian mechanism, with relative error below 1e-12 (1 + ε) (0.0 below the least float).

    Raises `UsageError` for a negative or infinite ε or μ.
    """
    _require("epsilon", epsilon, 0 <= epsilon < math.inf, "a finite number >= 0")
    _require("mu", mu, 0 <= mu < math.inf, "a finite number >= 0")
    return min(1.0, math.exp(_log_delta(epsilon, mu))) if mu else 0.0


@functools.lru_cache(maxsize=1024)
def mu_of(epsilon: float, delta: float, slack: float = 0.0) -> float:
    """Return the largest μ that is (ε, δ)-private, rounded down: the true δ(ε; μ) never exceeds δ.

    It is within 1e-9 relative of the largest for δ <= 0.9, and less close as δ nears 1. With a slack (`verified`), it
    is the largest for δ - (1 + e^ε')·slack at any ε' <= ε, since what is (ε', δ)-private is (ε, δ)-private; 0.0 if
    there is none. Raises `UsageError` for an ε that is not positive and finite, a δ outside (0, 1), or a negative
    slack.
    """
    _require("epsilon", epsilon, _EPSILON_MIN <= epsilon < math.inf, "a finite number > 0 (1e-100 at least)")
    _require("delta", delta, 0 < delta < 1, "a number in (0, 1), such as 1e-6")
    if slack:
        return _mu_with_slack(epsilon, delta, slack)
    target = math.log(delta)
    return _bisect(lambda mu: _log_delta_bound(epsilon, mu) <= target)[0]


@functools.lru_cache(maxsize=1024)
def epsilon_of(mu: float, delta: float, slack: float = 0.0) -> float:
    """Return the smallest ε >= 0 for which μ is (ε, δ)-private, rounded up: the true δ(ε; μ) never exceeds δ.

    With a slack (`verified`), it is the smallest with δ(ε; μ) + (1 + e^ε)·slack <= δ; infinite if none is found.
    Raises `UsageError` for a negative or infinite μ, a δ outside (0, 1), or a negative slack.
    """
    if slack:
        return with_slack(lambda rest: epsilon_of(mu, rest), delta, slack)
    _require("mu", mu, 0 <= mu < math.inf, "a finite number >= 0")
    _require("delta", delta, 0 < delta < 1, "a number in (0, 1), such as 1e-6")
    target = math.log(delta)
    if mu == 0 or _log_delta_bound(0.0, mu) <= target:
        return 0.0
    precise = _bisect(lambda epsilon: _log_delta_bound(epsilon, mu) > target)[1]
    short = float(f"{precise:.12g}")  # the largest μ that is (1, δ)-private gives ε = 1, not 1.0000000001
    return short if short < precise and _log_delta_bound(short, mu) <= target else precise


def _mu_with_slack(epsilon: float, delta: float, slack: float) -> float:
    """Return the largest μ(ε', δ - (1 + e^ε')·slack) for ε' <= ε.

    It grows with ε' until Φ(-μ/2 - ε'/μ) = slack, where more ε' costs as much of δ as it gains, and falls from there.
    """

    def at(part: float) -> float:
        rest = _without_slack(part, delta, slack)
        return mu_of(part, rest) if rest > 0 else 0.0

    whole = at(epsilon)
    if whole > at(epsilon * _SHORTER):
        return whole
    low, high = epsilon * _EPSILON_PART, epsilon
    for _ in range(_THIRDS):
        third = (high - low) / 3
        low, high = (low, high - third) if at(low + third) >= at(high - third) else (low + third, high)
    return max(whole, at(low))


def _without_slack(epsilon: float, delta: float, slack: float) -> float:
    """Return δ - (1 + e^ε)·slack, rounded down."""
    _require("slack", slack, 0 <= slack < math.inf, "a finite number >= 0")
    if epsilon > PURE_MAX:  # far beyond a promise, and e^ε would soon overflow
        return 0.0
    return (delta - (1 + math.exp(epsilon)) * slack * (1 + _ROUNDING)) * (1 - _ROUNDING)


def with_slack(epsilon_at: Callable[[float], float], delta: float, slack: float) -> float:
    """Return the smallest ε with ε = `epsilon_at`(δ - (1 + e^ε)·slack), or the next above; infinite if none is found.

    `epsilon_at` gives the ε of releases without their slack at some δ. It is approached from below: a larger ε leaves
    less of δ, which asks for a larger ε.
    """
    epsilon = epsilon_at(delta)
    for _ in range(_STEPS_MAX if slack else 0):
        rest = _without_slack(epsilon, delta, slack)
        if rest <= 0:
            return math.inf
        needed = epsilon_at(rest)
        if needed <= epsilon:
            return epsilon
        epsilon = needed
    return math.inf if slack else epsilon


@functools.lru_cache(maxsize=1024)
def mu_of_pure(epsilon: float) -> float:
    """Return the smallest μ such that ε-private implies μ-private: 2 Φ⁻¹(e^ε/(1 + e^ε)), rounded up (`privacy.cost`).

    Raises `UsageError` for an ε that is not positive, or above 500.
    """
    _require(
        "epsilon", epsilon, _EPSILON_MIN <= epsilon <= PURE_MAX, f"above 0 and at most {at_most(PURE_MAX)} at delta 0"
    )
    return _bisect(lambda mu: pure_of_mu(mu) < epsilon)[1]


def pure_of_mu(mu: float) -> float:
    """Return the largest ε such that ε-private implies μ-private: ln(Φ(μ/2)/Φ(-μ/2)), rounded down (616 at most)."""
    z = min(mu, _PURE_MU_MAX) / math.sqrt(8)
    if z < 0.5:  # Φ(μ/2)/Φ(-μ/2) = (1 + erf z)/(1 - erf z)
        return 2 * math.atanh(math.erf(z)) * (1 - _LOG_ERROR)
    return math.log(math.erfc(-z) / math.erfc(z)) * (1 - _LOG_ERROR)


def compose(mus: Iterable[float]) -> float:
    """Return √Σμ², rounded up: the μ of several releases on the same data (Dong, Roth and Su 2022, corollary 3.3).

    Raises `UsageError` for a negative or infinite μ.
    """
    parts = list(mus)
    for mu in parts:
        _require("mu", mu, 0 <= mu < math.inf, "a finite number >= 0")
    total = math.hypot(*parts)
    return total if total == 0 or len(parts) == 1 else total * (1 + 2.0**-50)


@functools.lru_cache(maxsize=1024)
def share_variance(sensitivity: float, mu: float, honest: int, dimension: int) -> int:
    """Return S, the variance of one client's discrete Gaussian share, in squared grid units.

    The sum of `honest` such shares makes a release of that sensitivity μ-private against an adversary who knows all
    other shares (NeurIPS 2017, Theorem 1, with the exact Gaussian and the lemma above):
    S = ⌈(Δ²/μ² (1 + ω) + 9)/honest⌉.

    Args:
        sensitivity: 0 < Δ <= 2^63, L2, in grid units, under the relation the caller claims.
        mu: μ of the release, from `mu_of`.
        honest: N - T - 1 (n_min - 1 - c), the fewest noise shares in a sum that the adversary does not know.
        dimension: d, coordinates of the release.

    Raises:
        UsageError: an argument is out of range, no share is honest, or the sampler cannot draw S.
    """
    _require("sensitivity", sensitivity, 0 < sensitivity <= 2**63, "above 0 and at most 2^63 grid units")
    _require("mu", mu, _MU_MIN <= mu <= MU_MAX, f"{_MU_MIN} to {at_most(MU_MAX)}: ask for another epsilon")
    _require("dimension", dimension, 1 <= dimension <= _DIMENSION_MAX, "1 to 2^40")
    _require("N - T - 1", honest, honest >= 1, "at least 1 honest noise share: take more clients or a smaller T")
    total = (Fraction(sensitivity) / Fraction(mu)) ** 2 * (1 + _WIDENING) + _SMOOTHING
    variance = math.ceil(total / honest)
    if MIN_VARIANCE <= variance <= MAX_VARIANCE:
        return variance
    if variance < MIN_VARIANCE:
        # One more bit doubles Δ, except for its part of about √d that comes from rounding a mean to the grid.
        scaling = max(sensitivity - math.sqrt(dimension) - 2, 1.0)
        missing = math.log2(math.sqrt((MIN_VARIANCE - 1) * honest) * mu / scaling)
        enough = math.ceil(total / (MIN_VARIANCE - 1)) - 1
        remedy = f"use at least {_even(math.ceil(missing))} more fraction bits"
        remedy += f", or N - T - 1 of at most {enough}" * (enough >= 1)
    else:
        enough = math.ceil(total / MAX_VARIANCE)
        remedy = f"use at least {_even(math.ceil(math.log2(variance / MAX_VARIANCE) / 2))} fewer fraction bits"
        remedy += f", or N - T - 1 of at least {enough}" * (enough < CLIENTS_MAX)
    raise UsageError(
        f"a noise share's standard deviation is {math.sqrt(variance):.6g} grid units (sensitivity "
        f"{sensitivity:.6g}, mu {at_least(mu)}, {honest} honest shares), expected 8 to 2^40: {remedy}"
    )


def _even(bits: int) -> int:
    """Round up to an even number of at least 2: rows are quantised on a grid of half the fraction bits."""
    return max(2, bits + bits % 2)


@functools.lru_cache(maxsize=1024)
def largest_sum(bound: int, clients: int, variance: int, dimension: int) -> int:
    """Bound the magnitude of every coordinate of the noisy sum, in grid units, except with probability β = 2^-40.

    All N clients' noise counts, since nobody may have dropped out. A discrete Gaussian's tail is at most that of the
    Gaussian of the same S, so N C_∞ + √(N S 2 ln(2d/β)) bounds all d coordinates with that probability. `bound` is
    C_∞, the largest magnitude of a contribution's coordinate, in grid units; `variance` is S, in squared grid units.
    Raises `UsageError` for an argument out of range.
    """
    for name, number, least in (("bound", bound, 0), ("N", clients, 1), ("variance", variance, 0), ("d", dimension, 1)):
        _require(name, number, number >= least, f"at least {least}")
    logarithm = Fraction(math.log(2 * dimension) + _WRAP_BITS * math.log(2) + 1e-9)
    return clients * bound + math.isqrt(math.ceil(clients * variance * 2 * logarithm)) + 1


def ring_bits(bound: int, clients: int, variance: int, dimension: int) -> int:
    """Return the bits, sign included, that the noisy sum may need; the ring modulo 2^64 has 64. See `largest_sum`."""
    return largest_sum(bound, clients, variance, dimension).bit_length() + 1


def check_ring(bound: int, clients: int, variance: int, dimension: int) -> None:
    """Refuse a round whose sum (see `largest_sum`) could leave the signed range of the ring modulo 2^64.

    The `UsageError` names how many fewer fraction bits, or how many clients, would fit.
    """
    largest = largest_sum(bound, clients, variance, dimension)
    if largest < 2**63:
        return
    data = clients * bound
    noise = largest - data
    remedy = f"use at least {_even((largest + 2**40).bit_length() - 63)} fewer fraction bits"  # at most 2^40 is fixed
    fitting = (2**63 - 1 - noise) // bound if bound else 0
    if fitting > 1 and variance * clients <= MAX_VARIANCE * fitting:  # fewer clients can carry the same noise
        remedy += f", or N of at most {fitting}"
    raise UsageError(
        f"the sum of {clients} contributions can reach {largest:.3g} grid units ({data:.3g} of data, {noise:.3g} of "
        f"noise), expected less than 2^63: {remedy}"
    )


def _log_delta(epsilon: float, mu: float) -> float:
    """Return ln δ(ε; μ) for ε >= 0, μ > 0."""
    t = epsilon / mu - mu / 2
    if t > 1e150:
        return -math.inf
    log_density = -t * t / 2 - math.log(2 * math.pi) / 2
    if mu <= _MU_INTEGRATED:
        middle, half = t + mu / 2, mu / 2
        slopes = [w * (mills(middle - half * x)[1] + mills(middle + half * x)[1]) for x, w in _HALF_RULE]
        difference = half * math.fsum(slopes)
    elif t > 0:
        difference = mills(t)[0] - mills(t + mu)[0]
    else:
        return math.log(math.erfc(t / math.sqrt(2)) / 2 - math.exp(log_density) * mills(t + mu)[0])
    return log_density + math.log(difference) if difference > 0 else -math.inf


def _log_delta_bound(epsilon: float, mu: float) -> float:
    """Return an upper bound of ln δ(ε; μ) in spite of rounding (t loses digits if ε/μ and μ/2 are large and close)."""
    return _log_delta(epsilon, mu) + _LOG_ERROR * (1 + epsilon)


def mills(s: float) -> tuple[float, float]:
    """Return M(s) = Φ(-s)/φ(s) and -M'(s) = 1 - s M(s), for s >= -1."""
    if s < _FRACTION_FROM:
        ratio = math.sqrt(math.pi / 2) * math.exp(s * s / 2) * math.erfc(s / math.sqrt(2))
        return ratio, 1 - s * ratio
    rest = 0.0  # M(s) = 1/(s + 1/(s + 2/(s + 3/(s + ...)))) (Laplace)
    for k in range(_FRACTION_TERMS, 0, -1):
        rest = k / (s + rest)
    ratio = 1 / (s + rest)
    return ratio, rest * ratio


def _bisect(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Return two numbers, 2^-47 apart relative: `holds` is true of the first and false of the second.

    `holds` must be true for small positive numbers and false for large ones.
    """
    low, high = 1.0, 2.0
    while not holds(low):
        low, high = low / 2, low
    while holds(high):
        low, high = high, high * 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def _require(name: str, found: float, fits: bool, expected: str) -> None:
    if not fits:
        raise UsageError(f"{name} is {found}, expected {expected}")


def check_mu(mu: float, epsilon: float, delta: float, slack: float = 0.0) -> None:
    """Refuse a μ that, with its slack, is not (ε, δ)-private, or that is too large for any round.

    The `UsageError` names the largest μ that may be announced.
    """
    largest, quoted = mu_of(epsilon, delta, slack), f"epsilon {at_least(epsilon)} at delta {at_least(delta)}"
    if not 0 < mu <= largest and not min(mu, largest) > MU_MAX:
        raise UsageError(f"mu is {mu!r}, expected above 0 and at most {largest!r}, which is {quoted}")
    if mu > MU_MAX:
        most = math.floor(epsilon_of(MU_MAX, delta))
        raise UsageError(
            f"{quoted} is more than can be planned with, {most}; that protects nobody "
            "either: lower epsilon to 10 at most, better to 1"
        )
