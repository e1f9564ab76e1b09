"""The independent reference for contributions, results and the noise that they must carry. It imports no product code.

Neighbours differ in all rows of one client; in a node release, in one row.

    δ(ε; μ) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ),  μ = Δ/σ            Balle and Wang (2018), theorem 8
    each of N clients adds variance σ²/n,  n = N - T - 1            DCA (2017), theorem 1
    Laplace noise of scale Δ₁/ε;  odds of e^ε                       Kulkarni et al. (2021), section 2
    μ(ε) = 2 Φ⁻¹(e^ε/(1 + e^ε)) of what is ε-private;  Σμ²          Dong, Roth and Su (2022), section 3

In units of 2^-f a statistic consists of integers. Its sum is taken modulo 2^64, and read as lying in [-2^63, 2^63).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import erfc, exp, floor, isfinite, ldexp, log, sinh, sqrt
from statistics import NormalDist
from typing import Any


def delta_of(epsilon: float, mu: float) -> float:
    """Return the least δ at which a Gaussian release with μ = Δ/σ is (ε, δ)-private."""
    far = erfc((epsilon / mu + mu / 2) / sqrt(2))
    return (erfc((epsilon / mu - mu / 2) / sqrt(2)) - (exp(epsilon + log(far)) if far else 0.0)) / 2


@cache
def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ that is (ε, δ)-private."""
    return _largest(lambda mu: delta_of(epsilon, mu) <= delta)


@cache
def epsilon_of(mu: float, delta: float) -> float:
    """Return the least ε at that δ, rounded up."""
    return 1 / _largest(lambda inverse: delta_of(1 / inverse, mu) <= delta)


def _largest(holds: Callable[[float], bool]) -> float:
    """Return the largest number from 10⁻⁹ to 10³ for which a monotone statement holds, by bisection."""
    low, high = 1e-9, 1e3
    for _ in range(200):
        middle = sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def sensitivity(statistic: str, bounds: Sequence[float], rows: int = 1) -> tuple[float, float]:
    """Return Δ₁ and Δ₂ of a sum over rows (or of a mean) if `rows` rows of one client are replaced.

    Args:
        bounds: each column lies within ±bound; for a histogram, any number for each bin.
    """
    if statistic == "histogram":
        widths = [1.0] * min(len(bounds), 2)
    else:
        widths = [{"sum": 2 * bound, "mean": 2 * bound, "second-moments": bound**2}[statistic] for bound in bounds]
    return rows * sum(widths), rows * sqrt(sum(width**2 for width in widths))


def sensitivity_of(statistic: str, parameters: Mapping[str, Any], rows: int = 1) -> tuple[float, float]:
    """Return Δ₁ and Δ₂ of a statistic with public parameters, in its own units."""
    bins = [1.0] * (len(parameters["edges"]) - 1) if statistic == "histogram" else []
    l1, l2 = sensitivity(statistic, bins or parameters["bound"], rows)
    if "radius" not in parameters:
        return l1, l2
    apart = 2 * rows * parameters["radius"]
    return min(l1, sqrt(len(parameters["bound"])) * apart), min(l2, apart)


def grid_sensitivity(
    statistic: str, parameters: Mapping[str, Any], rows_max: int, fraction_bits: int, *, of_row: bool = False
) -> tuple[float, float]:
    """Return Δ₁ and Δ₂ of a contribution in units of 2^-f: of one client's data, or of one of its rows.

    Means (`rows_max` = 0) are rounded, which moves each coordinate by at most one unit more.
    """
    l1, l2 = sensitivity_of(statistic, parameters, 1 if of_row else max(1, rows_max))
    d = 0 if rows_max else dimension(statistic, parameters)
    return ldexp(l1, fraction_bits) + d, ldexp(l2, fraction_bits) + sqrt(d)


def least_variance(l2: float, epsilon: float, delta: float, honest: int = 1) -> float:
    """Return the least variance of one client's noise if `honest` such noises must hide a client, in squared units."""
    return (l2 / mu_of(epsilon, delta)) ** 2 / honest


def composed(charges: Iterable[tuple[float, float, float, float]]) -> tuple[float, float, float, float]:
    """Return Σμ² of Gaussian releases, Σε and Σμ(ε)² of ε-private ones, and all slack.

    Each is (μ, ε, δ, slack), ε-private if δ = 0.
    """
    known = list(charges)
    pure = [epsilon for _, epsilon, delta, _ in known if not delta]
    squares = (4 * NormalDist().inv_cdf(1 / (1 + exp(epsilon))) ** 2 for epsilon in pure)
    return sum(mu**2 for mu, _, delta, _ in known if delta), sum(pure), sum(squares), sum(one[3] for one in known)


def is_within(spent: tuple[float, float, float, float], epsilon: float, delta: float, for_reports: float = 0.0) -> bool:
    """Return True if releases, as `composed`, are together (ε, δ)-private.

    for_reports: the part of ε that is reserved for ε-private releases; 0 reserves none.
    """
    gaussian, pure, converted, slack = spent
    for_sums = epsilon - for_reports
    parts = [for_sums * (100 - k) / 100 for k in range(100 if slack else 1)]
    rests = [(part, delta - slack * (1 + exp(min(part, 700)))) for part in parts]
    mu_max = max((mu_of(part, rest) for part, rest in rests if rest > 0), default=0.0)
    if for_reports:
        return pure <= for_reports and (not gaussian or sqrt(gaussian) <= mu_max)
    return (not gaussian and pure <= epsilon) or sqrt(gaussian + converted) <= mu_max


def dimension(statistic: str, parameters: Mapping[str, Any]) -> int:
    """Return the number of coordinates of a statistic."""
    return len(parameters["edges"]) - 1 if statistic == "histogram" else len(parameters["columns"])


def contribution(
    statistic: str, parameters: Mapping[str, Any], rows: Sequence[Sequence[float]], rows_max: int, fraction_bits: int
) -> list[int]:
    """Return a client's statistic before noise, in units of 2^-f: the sum over its first rows, or the mean of all.

    A row with a missing value adds zero, and counts in a mean's denominator. A mean is rounded to the nearest integer.

    Args:
        rows: of the statistic's columns, in units of the data. rows_max: how many rows are summed; 0 is the mean.
    """
    counted = rows[: rows_max or None]
    totals = [0] * dimension(statistic, parameters)
    for row in counted:
        if all(map(isfinite, row)):
            own = _of_row(statistic, parameters, row, fraction_bits)
            totals = [total + value for total, value in zip(totals, own, strict=True)]
    count = len(counted)
    return totals if rows_max or count <= 1 else [(2 * total + count) // (2 * count) for total in totals]


def _of_row(statistic: str, parameters: Mapping[str, Any], row: Sequence[float], fraction_bits: int) -> list[int]:
    if statistic == "histogram":
        edges = parameters["edges"]
        own = min(max(bisect_right(edges, row[0]) - 1, 0), len(edges) - 2)
        return [int(place == own) << fraction_bits for place in range(len(edges) - 1)]
    power = 2 if statistic == "second-moments" else 1
    columns = zip(row, *(parameters[name] for name in ("centre", "scale", "bound")), strict=True)
    found = [
        _on_grid((x - centre) / scale, bound, fraction_bits // power) ** power for x, centre, scale, bound in columns
    ]
    return _in_ball(found, floor(ldexp(parameters["radius"], fraction_bits))) if "radius" in parameters else found


def _in_ball(values: list[int], radius: int) -> list[int]:
    """Bring a row outside a ball to its surface, towards zero, by a factor that is a little too small."""
    square = sum(value**2 for value in values)
    if square <= radius**2:
        return values
    factor = radius / sqrt(float(square)) * (1 - (len(values) + 8) * 2.0**-52)
    return [int(value * factor) for value in values]


def bound_on_grid(statistic: str, bound: float, fraction_bits: int) -> float:
    """Return the largest value within a bound that clients clamp to: the next one below it on their grid."""
    bits = fraction_bits // (2 if statistic == "second-moments" else 1)
    return ldexp(_on_grid(bound, bound, bits), -bits)


def _on_grid(value: float, bound: float, bits: int) -> int:
    limit = floor(ldexp(bound, bits))
    return max(-limit, min(limit, round(ldexp(value, bits))))


def centred(word: int) -> int:
    """Return the signed integer that a sum modulo 2^64 represents."""
    return (word + 2**63) % 2**64 - 2**63


def odds(mechanism: str, epsilon: float, categories: int) -> tuple[float, float, float]:
    """Return the probabilities that a report names the client's category, another one, and any if it has none."""
    if mechanism == "unary-encoding":
        return 0.5, 1 / (exp(epsilon) + 1), 1 / (exp(epsilon) + 1)
    return exp(epsilon) / (exp(epsilon) + categories - 1), 1 / (exp(epsilon) + categories - 1), 1 / categories


def report_variance(
    mechanism: str, epsilon: float, delta: float, scales: tuple[float, float], categories: int
) -> float:
    """Return the least variance of one report's noise in the estimated sum, in squared units of `scales`.

    Args:
        scales: Δ₁ and Δ₂ in units of the grid. categories: k, for categorical mechanisms.
    """
    if mechanism in ("randomised-response", "unary-encoding"):
        own, other, _ = chances = odds(mechanism, epsilon, categories)
        return max(chance * (1 - chance) for chance in chances) / (own - other) ** 2
    if mechanism == "grid-laplace":
        return 1 / (2 * sinh(epsilon / scales[0] / 2) ** 2)
    return least_variance(scales[1], epsilon, delta)
