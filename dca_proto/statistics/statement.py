"""What a client of a verified sum proves about its contribution (DESIGN §12): that it is in the statistic's range.

A range of an interval for each coordinate and limits of whole-number combinations can be proven exactly. Then a lying
client can do no more than lie within its bounds. A statistic whose values are in a ball, or are squares of each other,
has no such range, and cannot be verified yet.

A client evaluates its statistic on a finer grid, and rounds it with one dither (`fine_bits`). If the ends of the finer
range are points of the grid, then rounding stays within the range, and the sensitivity is that of the grid. Otherwise,
as with a count of the weight 1.732, the statement is wide enough for whatever rounding gives: clipping would move each
client's value, and the sum of all by many standard deviations of its noise. Intervals then end at the next point of the
grid, limits leave room for less than a unit of each coordinate, and rounding adds to the sensitivity (`moved`).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.bounded import Limit, Statement
from dca_proto.crypto.fixedpoint import FRACTION_BITS_MAX
from dca_proto.errors import UsageError
from dca_proto.statistics.base import Statistic
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.value_range import Combinations, ValueRange

DITHER_BITS = 16
"""A verified statistic is evaluated on a grid with so many more bits, and then rounded without bias."""
_DENOMINATOR_MAX = 2**20
_WEIGHTS_MAX = 2**17
_NEAR = 1e-5  # units of the grid: how far the end of a limit may be from a whole number


class Moved(NamedTuple):
    """How far a client can move a verified sum: Δ in grid units before rounding, and whether rounding adds to it."""

    sensitivity: float
    is_rounded: bool


def fine_bits(fraction_bits: int) -> int:
    """Return the fraction bits of the grid on which a client of a verified sum evaluates its statistic."""
    return min(fraction_bits + DITHER_BITS, FRACTION_BITS_MAX)


def moved(statistic: Statistic, rows_max: int, fraction_bits: int) -> Moved:
    """Return how far replacing one client's rows moves the rounded sum. Raises `UsageError` if values do not fit."""
    fine = fine_bits(fraction_bits)
    coarse, exact = statistic.value_range(fraction_bits), statistic.value_range(fine)
    if _ends_on_grid(coarse, exact, fine - fraction_bits):
        return Moved(client_sensitivity(statistic, rows_max, fraction_bits).l2, is_rounded=False)
    return Moved(math.ldexp(client_sensitivity(statistic, rows_max, fine).l2, fraction_bits - fine), is_rounded=True)


def _ends_on_grid(coarse: ValueRange, exact: ValueRange, more_bits: int) -> bool:
    """Return True if the range of one value on a grid of so many more bits ends where that of the grid does."""
    factor = 2**more_bits
    return bool((coarse.low * factor == exact.low).all() and (coarse.high * factor == exact.high).all())


def range_statement(statistic: Statistic, rows_max: int, fraction_bits: int) -> Statement:
    """Return the statement that a contribution is in a statistic's range, without noise.

    Raises:
        UsageError: the statistic cannot be verified, or not as a mean of rows; or its values do not fit the finer grid.
    """
    if not statistic.is_boxed:
        raise UsageError(
            f"statistic {statistic.name!r} with these parameters cannot be verified: its numbers do not each have "
            "bounds of their own. Leave verified out, or use a sum without a radius, a mean, a histogram or survival "
            "counts"
        )
    fine = fine_bits(fraction_bits)
    client_sensitivity(statistic, rows_max, fine)  # values fit 53 bits
    count, unit = rows_max // statistic.rows_per_value or 1, math.ldexp(1.0, fraction_bits - fine)
    limits, exact = statistic.value_range(fraction_bits), statistic.value_range(fine)
    lows = np.floor(count * exact.low * unit).astype(np.int64)
    highs = np.ceil(count * exact.high * unit).astype(np.int64)
    if limits.combinations is None or exact.combinations is None:
        return Statement(tuple(lows.tolist()), tuple((highs - lows).tolist()), 0, 1)
    if not rows_max:
        raise UsageError(
            f"statistic {statistic.name!r} can be verified as a sum of rows only: give rows_max, 1 for clients that "
            "have one row each"
        )
    low, high = count * limits.combinations.low, count * limits.combinations.high
    if not _ends_on_grid(limits, exact, fine - fraction_bits):
        # Σ w'x holds for the finer grid's weights w'. Rounding moves x by less than 1 in each coordinate.
        weights, changes = limits.combinations.weights, limits.combinations.weights - exact.combinations.weights
        room = abs(weights).sum(axis=1) + abs(changes) @ np.maximum(-lows, highs)
        low = np.minimum(low, count * exact.combinations.low * unit) - room
        high = np.maximum(high, count * exact.combinations.high * unit) + room
    combined = tuple(_combined(limits.combinations, low, high, lows, highs))
    return Statement(tuple(lows.tolist()), tuple((highs - lows).tolist()), 0, 1, combined)


def _combined(
    given: Combinations,
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    lows: NDArray[np.int64],
    highs: NDArray[np.int64],
) -> list[Limit]:
    """Return the limits low <= Σ w_k x_k <= high that the coordinates' own, `lows` and `highs`, do not imply."""
    found = []
    is_whole = (given.weights == np.rint(given.weights)).all(axis=1)
    if (~is_whole).sum() * given.weights.shape[1] > _WEIGHTS_MAX:
        raise UsageError(
            f"a verified sum has at most {_WEIGHTS_MAX} weights that are no whole numbers; use fewer cells"
        )
    rows = zip(given.names, given.weights, low.tolist(), high.tolist(), is_whole.tolist(), strict=True)
    for name, weights, least_real, most_real, whole_already in rows:
        whole, factor = (weights.astype(np.int64), 1) if whole_already else _whole(weights, name)
        least, most = math.ceil(factor * (least_real - _NEAR)), math.floor(factor * (most_real + _NEAR))
        ends = np.stack([whole * lows, whole * highs])
        if not (least <= ends.min(axis=0).sum() and ends.max(axis=0).sum() <= most):
            found.append(Limit(tuple(whole.tolist()), least, most - least))
    return found


def _whole(weights: NDArray[np.float64], name: str) -> tuple[NDArray[np.int64], int]:
    """Return whole numbers in the proportions of the weights, and the factor between them."""
    parts = [Fraction(weight).limit_denominator(_DENOMINATOR_MAX) for weight in weights.tolist()]
    factor = math.lcm(*(part.denominator for part in parts))
    apart = max(abs(float(part) - weight) for part, weight in zip(parts, weights.tolist(), strict=True))
    if factor > _DENOMINATOR_MAX or apart > 1e-9:
        raise UsageError(
            f"{name} cannot be verified: its weights are no ratios of small whole numbers; leave verified out"
        )
    return np.array([int(part * factor) for part in parts], dtype=np.int64), factor
