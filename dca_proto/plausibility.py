"""Recognises a sum that honest clients cannot have made: from the statistic's public range, n, and the noise.

A sum of n values of honest clients lies in n times the range of one value (`dca_proto.statistics.value_range`), plus
noise of a known law. So each limit of the range gives a test, with a bound on the probability that honest clients'
noise exceeds it. With σ² the noise's variance in each coordinate, t >= 0:

- one coordinate, or a combination with weights w: beyond |w|σ√(2t) with probability e^-t on each side. A discrete
  Gaussian is sub-Gaussian with its variance (Canonne, Kamath and Steinke 2020), and so are sums of them.
- the L2 norm of d coordinates: beyond σ√(d + 2√(dt) + 2t) with probability e^-t (Hsu, Kakade and Zhang 2012).
- the least eigenvalue of an m by m matrix whose entries have noise of at most s: below -s(2√m + 2√t) with
  probability e^-t. For normal noise the largest eigenvalue has a mean of at most 2s√m (Sudakov and Fernique: its
  increments are at most those of the Gaussian orthogonal ensemble) and is Lipschitz with √2 s. On the grid, s² grows
  by 9 units² and the limit by as much for N(0, 9): with it, discrete noise is normal up to 1e-70.

The K limits of one aggregate share the probability: t = ln(K/p). An aggregate is *refused* (`ImplausibleSum`) at
p = 1e-9, and gets a warning at p = 1e-4. These are upper bounds for any data; most data are far from their limits.

What lies within is not noticed: one client can move each coordinate by n times its range, plus noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from dca_proto.errors import ImplausibleSum
from dca_proto.statistics import REPLACE_ONE_ROW, Statistic, resolve
from dca_proto.statistics.categories import plain_name
from dca_proto.statistics.statement import evaluated_bits
from dca_proto.statistics.value_range import CONSTANT, Combinations, Numbers, Squares, ValueRange

if TYPE_CHECKING:  # devices that only take part in sums start faster
    from dca_proto.privacy.local import LocalMechanism

REFUSED, DOUBTED = 1e-9, 1e-4
"""Probabilities, for honest clients, of a refusal and of a warning."""
GRID_STD = 3.0  # noise with which the grid's noise is normal, in grid units
MATRIX_MAX = 512  # larger matrices are not tested: eigenvalues take time
_RELATIVE = 1e-12  # of floating-point sums
Finding = tuple[float, str]


class _Sum(NamedTuple):
    """A sum in grid units, of `number` values, with noise of `sigma`; `rounding` is a grid unit of each client.

    `contributors` are clients, or a data node's rows: what estimates are divided by.
    """

    value: Numbers
    sigma: float
    number: int
    rounding: float
    contributors: int


def checked(aggregate: NoisyAggregate) -> NoisyAggregate:
    """Return the aggregate, with a warning if it is hardly possible. Raises `ImplausibleSum` if it is impossible.

    Data nodes' releases are checked one by one. LDP reports are checked before they are added up
    (`protocol.release.merge_reports`).
    """
    if aggregate.reports is not None:
        return aggregate
    if aggregate.nodes:
        nodes = tuple(checked(node) for node in aggregate.nodes)
        return dataclasses.replace(aggregate, nodes=nodes, doubts=tuple(doubts_of([aggregate, *nodes])))
    names = [plain_name(name) for name in aggregate.parameters["columns"]]
    statistic = resolve(aggregate.statistic, {**aggregate.parameters, "columns": names})
    if impossible := beyond(statistic, aggregate, REFUSED):
        raise ImplausibleSum(f"{_accused(aggregate)}: {impossible}")
    if doubted := beyond(statistic, aggregate, DOUBTED):
        who = f"{_accused(aggregate)}, or the noise is as large as in one of {1 / DOUBTED:,.0f} rounds"
        return dataclasses.replace(aggregate, doubts=(f"{who}: {doubted}",))
    return aggregate


def beyond(statistic: Statistic, aggregate: NoisyAggregate, chance: float) -> str:
    """Return a limit that a sum exceeds, as text, or "" if honest clients exceed none but with this probability."""
    if not np.isfinite(aggregate.value).all():
        return "a number is not finite"
    bits = evaluated_bits(aggregate.fraction_bits, is_verified=aggregate.verified)
    unit = 2.0**-bits  # a verified sum may lie where its coarse grid's range does not reach
    rounded = 2.0 ** (bits - aggregate.fraction_bits)
    rows, group = aggregate.rows_max, statistic.rows_per_value
    if aggregate.relation == REPLACE_ONE_ROW:
        count, clients = aggregate.contributors // group, 1
    else:
        count, clients = aggregate.contributors * (max(rows // group, 1)), aggregate.contributors
    sigma = math.sqrt(aggregate.noise_variance) / unit
    given = _Sum(aggregate.value / unit, sigma, count, clients * rounded, aggregate.contributors)
    limits = statistic.value_range(bits)
    t = math.log(_limits_in(limits) / chance)
    findings = (  # the plainest first
        _far_coordinate(given, limits, t, statistic, unit),
        _far_combination(given, limits.combinations, t, unit),
        _negative_square(given, limits.squares, t, unit),
        _far_norm(given, limits, t, unit),
    )
    return next((text for excess, text in findings if excess > 0), "")


def _accused(aggregate: NoisyAggregate) -> str:
    if aggregate.relation == REPLACE_ONE_ROW:
        return f"a data node's release over {aggregate.contributors} rows is outside its bounds"
    return f"at least one of the {aggregate.contributors} contributions was outside its bounds"


def _limits_in(limits: ValueRange) -> int:
    """K."""
    combinations = 0 if limits.combinations is None else len(limits.combinations.names)
    squares = 0 if limits.squares is None else len(limits.squares.places)
    return 2 * len(limits.low) + 1 + 2 * combinations + squares


def _slack(total: _Sum, largest: float) -> float:
    """Rounding: half a grid unit for the mean of each client's rows, and floating-point arithmetic."""
    return total.rounding + _RELATIVE * total.number * largest


def _far_coordinate(total: _Sum, limits: ValueRange, t: float, statistic: Statistic, unit: float) -> Finding:
    low, high = total.number * limits.low, total.number * limits.high
    noise = total.sigma * math.sqrt(2 * t) + _slack(total, float(np.maximum(limits.high, -limits.low).max()))
    excess = np.maximum(low - total.value, total.value - high) - noise
    place = int(np.argmax(excess))
    relative = float(excess[place]) / noise
    if not relative > 0:
        return 0.0, ""

    def estimated(number: float) -> float:
        """Return the estimate if all others are at their largest, so that a count of rows is that of all."""
        numbers = high * unit
        numbers[place] = number * unit
        return float(statistic.estimate(numbers, total.contributors)[place])

    ends = sorted((estimated(low[place]), estimated(high[place])))
    by_noise = abs(estimated(low[place] + noise) - estimated(low[place]))
    return relative, (
        f"{statistic.labels()[place]} is {estimated(total.value[place]):.4g}, and honest clients give {ends[0]:.4g} to "
        f"{ends[1]:.4g}, with noise of at most {by_noise:.3g}"
    )


def _far_norm(total: _Sum, limits: ValueRange, t: float, unit: float) -> Finding:
    d = len(total.value)
    noise = total.sigma * math.sqrt(d + 2 * math.sqrt(d * t) + 2 * t) + _slack(total, limits.length) * math.sqrt(d)
    found, most = float(np.linalg.norm(total.value)), total.number * limits.length
    relative = (found - most - noise) / noise
    text = f"the sum's length is {found * unit:.4g}, and honest clients give at most {most * unit:.4g}"
    return relative, f"{text}, with noise of at most {noise * unit:.3g}"


def _far_combination(total: _Sum, limits: Combinations | None, t: float, unit: float) -> Finding:
    if limits is None:
        return 0.0, ""
    found, lengths = limits.weights @ total.value, np.linalg.norm(limits.weights, axis=1)
    rounding = np.abs(limits.weights).sum(axis=1) * _slack(total, 1.0)
    low, high = total.number * limits.low, total.number * limits.high
    noise = total.sigma * lengths * math.sqrt(2 * t) + rounding + _RELATIVE * np.maximum(np.abs(low), np.abs(high))
    relative = (np.maximum(low - found, found - high) - noise) / noise
    place = int(np.argmax(relative))
    return float(relative[place]), (
        f"{limits.names[place]} is {found[place] * unit:.4g}, and honest clients give {low[place] * unit:.4g} to "
        f"{high[place] * unit:.4g}, with noise of at most {noise[place] * unit:.3g}"
    )


def _negative_square(total: _Sum, limits: Squares | None, t: float, unit: float) -> Finding:
    if limits is None or (m := limits.places.shape[1]) > MATRIX_MAX:
        return 0.0, ""
    values = np.r_[total.value, float(total.number)]  # the last one is `CONSTANT`
    matrices = limits.factors * values[limits.places]
    noisy = np.where(limits.places == CONSTANT, 0.0, np.abs(limits.factors)).max(axis=(1, 2))
    reach = 2 * math.sqrt(m) + 2 * math.sqrt(t)
    grid = GRID_STD if total.sigma else 0.0
    noise = noisy * (math.hypot(total.sigma, grid) + grid) * reach
    rounding = noisy * m * (total.rounding + limits.rounding * total.number)
    noise += rounding + _RELATIVE * m * np.abs(matrices).max(axis=(1, 2))
    least = np.linalg.eigvalsh(matrices)[:, 0]
    relative = (-least - noise) / noise
    place = int(np.argmax(relative))
    return float(relative[place]), (
        f"no rows have these {limits.what}: their matrix has an eigenvalue of {least[place] * unit:.4g}, and honest "
        f"clients give at least {-noise[place] * unit:.3g}, by noise"
    )


def possible_reports(
    mechanism: LocalMechanism, statistic: Statistic, rows_max: int, fraction_bits: int, reports: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return which LDP reports an honest client may have made, shape ``(n,)``; all of them but with p = 1e-9.

    A vector's coordinates must lie where the noise reaches from the range. Unary encoding sets independent bits with
    means that add up to m: at least x of k are set with a probability of at most e^(-k KL(x/k, m/k)) (Hoeffding 1963).
    Randomised response can give any category.
    """
    from dca_proto.privacy.local import GridLaplace, RandomisedResponse, UnaryEncoding  # late: as above

    if isinstance(mechanism, RandomisedResponse):
        return np.ones(len(reports), dtype=np.bool_)
    t = math.log(2 * max(reports.size, 1) / REFUSED)
    if isinstance(mechanism, UnaryEncoding):
        (p, q), k = map(float, mechanism.probabilities), reports.shape[1]
        shares = reports.mean(axis=1)
        fewest, most = k * q, p + (k - 1) * q
        rare = np.where(shares > most / k, _divergence(shares, most / k), 0.0)
        rare = np.where(shares < fewest / k, _divergence(shares, fewest / k), rare)
        return np.asarray(k * rare <= t)
    limits, count = statistic.value_range(fraction_bits), max(rows_max // statistic.rows_per_value, 1)
    reach = t if isinstance(mechanism, GridLaplace) else math.sqrt(2 * t)
    noise = mechanism.noise_scale * reach + 1 + _RELATIVE * count * limits.length
    low, high = count * limits.low - noise, count * limits.high + noise
    return np.asarray(((low <= reports) & (reports <= high)).all(axis=1))


def _divergence(x: Numbers, m: float) -> Numbers:
    """KL divergence of coins with chances x and 0 < m < 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = np.where(x > 0, x * np.log(x / m), 0.0)
        tails = np.where(x < 1, (1 - x) * np.log((1 - x) / (1 - m)), 0.0)
    return np.asarray(heads + tails)


def doubts_of(aggregates: Sequence[NoisyAggregate]) -> list[str]:
    """Return the warnings of several rounds, each once."""
    return list(dict.fromkeys(text for aggregate in aggregates for text in aggregate.doubts))


assert CONSTANT == -1, "`_negative_square` appends the constant"
