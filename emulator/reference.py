"""How much noise a release must carry, by the papers' formulas: what the product makes is held against it.

Nothing of the product is imported.

Neighbours differ in all rows of one client; in a node release, in one row.

    δ(ε; μ) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ),  μ = Δ/σ            Balle and Wang (2018), theorem 8
    each of N clients adds variance σ²/n,  n = N - T - 1            DCA (2017), theorem 1
    Laplace noise of scale Δ₁/ε;  odds of e^ε                       Kulkarni et al. (2021), section 2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import e, erfc, exp, log, sqrt

ALARM = 1e-9
"""How likely a sound mechanism looks too weak by chance, at most, in each of the tests below."""


def delta_of(epsilon: float, mu: float) -> float:
    """The least δ at which a Gaussian release with μ = Δ/σ is (ε, δ)-private."""
    far = erfc((epsilon / mu + mu / 2) / sqrt(2))
    return (erfc((epsilon / mu - mu / 2) / sqrt(2)) - (exp(epsilon + log(far)) if far else 0.0)) / 2


@cache
def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ that is (ε, δ)-private."""
    return _largest(lambda mu: delta_of(epsilon, mu) <= delta)


def epsilon_of(mu: float, delta: float) -> float:
    """The least ε at that δ, a hair more."""
    return 1 / _largest(lambda inverse: delta_of(1 / inverse, mu) <= delta)


def _largest(holds: Callable[[float], bool]) -> float:
    """The largest number from 10⁻⁹ to 10³ for which a statement holds that holds for all smaller ones."""
    low, high = 1e-9, 1e3
    for _ in range(200):
        middle = sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def sensitivity(statistic: str, bounds: Sequence[float], rows: int = 1) -> tuple[float, float]:
    """Δ₁ and Δ₂ of a sum over rows (or of a mean) where `rows` rows of one client are replaced.

    Args:
        bounds: each column lies within ±bound; of a histogram, one number for each bin.
    """
    if statistic == "histogram":
        widths = [1.0] * min(len(bounds), 2)
    else:
        widths = [{"sum": 2 * bound, "mean": 2 * bound, "second-moments": bound**2}[statistic] for bound in bounds]
    return rows * sum(widths), rows * sqrt(sum(width**2 for width in widths))


def least_variance(l2: float, epsilon: float, delta: float, honest: int = 1) -> float:
    """The least variance of one client's noise where `honest` such noises must hide a client, in squared units."""
    return (l2 / mu_of(epsilon, delta)) ** 2 / honest


def too_little(squares: float, count: int, half: bool = True) -> bool:
    """Whether noise is surely less than it must be: a Chernoff bound of χ² (`half`), or of a sum of exponentials.

    Args:
        squares: the sum of squares over the least variance, or of |noise| over the least scale. count: how many.
    """
    part = squares / count if count else 1.0
    return part < 1 and (part * e ** (1 - part)) ** (count / 2 if half else count) < ALARM


def unlikely(hits: int, count: int, chance: float, *, above: bool) -> bool:
    """Whether hits among `count` are surely above (or below) what a chance allows (Chernoff and Hoeffding, 1963)."""
    part = hits / count if count else chance
    if (part <= chance) if above else (part >= chance):
        return False
    parts = ((part, chance), (1 - part, 1 - chance))
    return exp(-count * sum(p * log(p / q) for p, q in parts if p)) < ALARM
