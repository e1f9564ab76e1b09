"""What a client of a verified sum proves about its contribution (DESIGN §12): that it is in the statistic's range.

A range of an interval for each coordinate, limits of combinations, and the norm of values in a ball can be proven. If
the statistic has no limits but intervals and combinations (`Statistic.is_boxed`), a lying client can do no more than
lie within its bounds. Values that are squares and products of each other fill only a part of their intervals. There a
liar can move a sum farther than any honest client: by a public factor (`liar_factor`), which results state.

A client evaluates its statistic on a finer grid, and rounds it with one dither (`fine_bits`). If a statistic has no
other limits, and the ends of the finer range are points of the grid, then rounding stays within the range, and the
sensitivity is that of the grid. Otherwise, as with a count of the weight 1.732, the statement is wide enough for
whatever rounding gives: clipping would move each client's value, and the sum of all by many standard deviations of its
noise. Intervals then end at the next point of the grid, limits leave room for less than a unit of each coordinate, and
rounding adds to the sensitivity (`moved`). A liar can use that room, which counts in its factor.

A norm is Σ x_k² <= s + t·c: c is the count of complete rows beside a ball, if there is one. Then a client with few
complete rows has as little room as it needs. DESIGN §12 derives s and t.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.bounded import Limit, Norm, Statement
from dca_proto.crypto.fixedpoint import FRACTION_BITS_MAX
from dca_proto.statistics.base import Statistic
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import Combinations, ValueRange

BOUNDS, BOUNDS_AND_NORM, BOUNDS_ALONE = "bounds", "bounds and norm", "bounds without the norm"
"""What clients prove: of values that are in no ball, of values in a ball, and of those whose norm does not fit."""
DITHER_BITS = 16
"""A verified statistic is evaluated on a grid with so many more bits, and then rounded without bias."""
_DENOMINATOR_MAX = 2**20
_WEIGHTS_MAX = 2**17
_COMBINED_MAX = 2**28
_HALVINGS = 24
_NEAR = 1e-5  # units of the grid: how far the end of a limit may be from a whole number
_BALL, _SMALLER = 1.25, 1.05
"""A norm is worth its proof if a ball is at most so much wider than Δ, and its box so much wider than the ball."""


class Moved(NamedTuple):
    """How far a client can move a verified sum: Δ in grid units before rounding, and whether rounding adds to it."""

    sensitivity: float
    is_rounded: bool


def fine_bits(fraction_bits: int) -> int:
    """Return the fraction bits of the grid on which a client of a verified sum evaluates its statistic."""
    return min(fraction_bits + DITHER_BITS, FRACTION_BITS_MAX)


def evaluated_bits(fraction_bits: int, *, is_verified: bool) -> int:
    """Return the fraction bits of the grid on which clients evaluate the statistic of a round."""
    return fine_bits(fraction_bits) if is_verified else fraction_bits


class _Ball(NamedTuple):
    """The ball of some values: the L2 norm of the first `numbers` coordinates is at most `radius`.

    Beside a count of complete rows, it is at most that of their part of all rows; the count of all is `weight`, else 0.
    """

    numbers: int
    radius: float
    weight: float

    def of(self, values: int) -> _Ball:
        """Return the ball of a sum of so many values."""
        return self._replace(radius=values * self.radius, weight=values * self.weight)

    @property
    def width(self) -> float:
        """How far apart two values can be, at most."""
        if not self.weight:
            return 2 * self.radius
        return _farthest_apart(0.0, self.radius**2 / self.weight, self.weight)

    def norm(self, moved_by: float) -> Norm:
        """Return the norm with room for rounding that moves each coordinate by less than `moved_by`."""
        room = moved_by * math.sqrt(self.numbers)
        if not self.weight:
            return Norm(self.numbers, math.ceil((self.radius + room) ** 2))
        slope = math.ceil((self.radius**2 + self.radius * room) / self.weight)
        return Norm(self.numbers, math.ceil(slope * moved_by + self.radius * room + room**2), slope)


def _farthest_apart(most: float, slope: float, last: float) -> float:
    """Return how far apart two points (v, c) can be with |v|² <= most + slope·c and 0 <= c <= last.

    With a² = most + slope·c and b of the other point, the square is (a + b)² + ((a² - b²)/slope)², which grows with a
    up to ρ. There the derivative in b is zero where b(ρ - b) = slope²/2: the smaller root is a maximum.
    """
    nearest, farthest = math.sqrt(most), math.sqrt(most + slope * last)
    if not slope:
        return 2 * nearest
    turning = (farthest - math.sqrt(max(farthest**2 - 2 * slope**2, 0.0))) / 2
    ends = (nearest, farthest, min(max(turning, nearest), farthest))
    return max(math.hypot(farthest + b, (farthest**2 - b**2) / slope) for b in ends)


class _Ranges(NamedTuple):
    """The range of one value on the grid of a sum and, in units of the same grid, on the finer one."""

    coarse: ValueRange
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    exact: Combinations | None
    unit: float
    stays: bool
    is_boxed: bool
    ball: _Ball


def _ranges(statistic: Statistic, rows_max: int, fraction_bits: int) -> _Ranges:
    """Return the ranges, and whether rounding stays within them. A mean of rows may break limits of combinations."""
    fine = fine_bits(fraction_bits)
    coarse, exact = statistic.value_range(fraction_bits), statistic.value_range(fine)
    unit = math.ldexp(1.0, fraction_bits - fine)
    low, high = exact.low * unit, exact.high * unit
    ends_on_grid = bool((coarse.low == low).all() and (coarse.high == high).all())
    holds = rows_max > 0 or coarse.combinations is None
    is_boxed = statistic.is_boxed
    stays = is_boxed and ends_on_grid and holds
    if coarse.combinations is not None and _are_too_many(coarse.combinations.weights):
        coarse, is_boxed = msgspec.structs.replace(coarse, combinations=None), False
    count, complete = len(low), exact.complete_length
    ball = _Ball(count - 1, complete * unit, float(high[-1])) if complete else _Ball(count, exact.length * unit, 0.0)
    return _Ranges(coarse, low, high, exact.combinations, unit, stays, is_boxed, ball)


def _are_too_many(weights: NDArray[np.float64]) -> bool:
    """Return True if limits would take too much time and memory: then a client proves the intervals alone."""
    is_whole = (weights == np.rint(weights)).all(axis=1)
    return bool((~is_whole).sum() * weights.shape[1] > _WEIGHTS_MAX)


def proven_sensitivity(statistic: Statistic, rows_max: int, fraction_bits: int) -> Sensitivity:
    """Return how far replacing one client's rows moves a verified sum after rounding: what its cost is computed from.

    Where values stay within their intervals, which a client proves, they are no farther apart than the ends of these.
    Otherwise rounding moves each coordinate of a value on the finer grid by less than a unit.
    """
    ranges, fine = _ranges(statistic, rows_max, fraction_bits), fine_bits(fraction_bits)
    stated = client_sensitivity(statistic, rows_max, fraction_bits)
    if not ranges.stays:
        exact, d = client_sensitivity(statistic, rows_max, fine), statistic.dimension
        l1 = math.ceil(math.ldexp(exact.l1, fraction_bits - fine)) + d
        l2_squared = math.ceil((math.ldexp(exact.l2, fraction_bits - fine) + math.sqrt(d)) ** 2)
        return msgspec.structs.replace(stated, l1=l1, l2_squared=l2_squared)
    lows, highs = _ends(ranges, rows_max // statistic.rows_per_value or 1)
    sizes: list[int] = (highs - lows).tolist()
    l1, l2_squared = min(stated.l1, sum(sizes)), min(stated.l2_squared, sum(size**2 for size in sizes))
    return msgspec.structs.replace(stated, l1=l1, l2_squared=l2_squared)


def moved(statistic: Statistic, rows_max: int, fraction_bits: int) -> Moved:
    """Return how far replacing one client's rows moves the sum before rounding, or after it if that stays in range.

    Raises `UsageError` if values do not fit.
    """
    if _ranges(statistic, rows_max, fraction_bits).stays:
        return Moved(proven_sensitivity(statistic, rows_max, fraction_bits).l2, is_rounded=False)
    fine = fine_bits(fraction_bits)
    return Moved(math.ldexp(client_sensitivity(statistic, rows_max, fine).l2, fraction_bits - fine), is_rounded=True)


def proven_limit(statement: Statement, statistic: Statistic, rows_max: int, fraction_bits: int) -> str:
    """Return which limit each client of a verified sum proves to keep.

    Args:
        statement: what each client proves of the statistic.
    """
    if statement.norm is not None:
        return BOUNDS_AND_NORM
    honest = moved(statistic, rows_max, fraction_bits).sensitivity / (rows_max // statistic.rows_per_value or 1)
    ranges = _ranges(statistic, rows_max, fraction_bits)
    return BOUNDS if ranges.is_boxed or not _is_ball(ranges, honest) else BOUNDS_ALONE


def liar_factor(statement: Statement, statistic: Statistic, rows_max: int, fraction_bits: int) -> float:
    """Return how much farther a lying client can move a verified sum than an honest one can, in L2 norm, at most.

    Args:
        statement: what each client proves of the statistic.
    """
    ranges = _ranges(statistic, rows_max, fraction_bits)
    if ranges.stays and ranges.is_boxed:
        return 1.0
    count, honest = rows_max // statistic.rows_per_value or 1, moved(statistic, rows_max, fraction_bits).sensitivity
    farthest = float(np.linalg.norm(np.array(statement.sizes, dtype=np.float64)))
    if (norm := statement.norm) is not None:
        farthest = min(farthest, _farthest_apart(norm.most, norm.slope, statement.sizes[-1]))
    wider = 1 + _rounding(ranges, count, *_ends(ranges, count)) if ranges.is_boxed else math.inf
    return max(1.0, min(farthest / honest, wider))


def _rounding(ranges: _Ranges, count: int, lows: NDArray[np.int64], highs: NDArray[np.int64]) -> float:
    """Return by which part of itself a range grows, at most, since its statement leaves room for rounding.

    {y: Ay <= b + room} lies in c + (1 + r)·({x: Ax <= b} - c) if room <= r·(b - Ac), for any c. Those tried are the
    middle of the coordinates, and points between it and zero, with the count's middle. Of an equality, which is that of
    bins and their count, one side is enough: bins that add up to no more than the count are no farther apart.
    """
    exact, coarse = ranges.exact, ranges.coarse.combinations
    low, high = count * ranges.low, count * ranges.high
    below, above = low - lows, highs - high
    weights = np.zeros((0, len(low)))
    if exact is not None and coarse is not None:
        weights, far = exact.weights, np.maximum(-lows, highs)
        apart = np.array([near / factor for _, factor, near in (_whole_of(one, far) for one in coarse.weights)])
        room = abs(coarse.weights - weights) @ far + 2 * apart + 2 * _NEAR  # of whole weights, for the finer grid's
        unit = ranges.unit * count
        least, most = _with_room(ranges, coarse, exact, count, far)
        # The coordinates' ends may imply more.
        ends = np.stack([weights * lows, weights * highs])
        least = np.maximum(least - room, ends.min(axis=0).sum(axis=1))
        most = np.minimum(most + room, ends.max(axis=0).sum(axis=1))
        below = np.append(below, np.maximum(exact.low * unit - least, 0.0))
        above = np.append(above, np.maximum(most - exact.high * unit, 0.0))
        below[len(lows) :][exact.low == exact.high] = 0.0
        least = np.where(exact.low == exact.high, -math.inf, exact.low * unit)
        low, high = np.append(low, least), np.append(high, exact.high * unit)
    room, found = np.concatenate([below, above]), math.inf
    middle, is_count = (low + high)[: len(lows)] / 2, (weights < 0).any(axis=0)
    for halvings in range(_HALVINGS):
        centre = np.where(is_count, middle, middle / 2.0**halvings)
        at = np.append(centre, weights @ centre)
        slack = np.concatenate([at - low, high - at])
        if (slack >= 0).all() and (slack[room > 0] > 0).all():
            found = min(found, float((room[room > 0] / slack[room > 0]).max(initial=0.0)))
    return found


def range_statement(statistic: Statistic, rows_max: int, fraction_bits: int) -> Statement:
    """Return the statement that a contribution is in a statistic's range, without noise.

    It has a norm if values lie in a ball, and the squares of any numbers within their bounds fit the field.

    Raises:
        UsageError: the statistic's values do not fit the finer grid.
    """
    fine = fine_bits(fraction_bits)
    client_sensitivity(statistic, rows_max, fine)  # values fit 53 bits
    count, ranges = rows_max // statistic.rows_per_value or 1, _ranges(statistic, rows_max, fraction_bits)
    lows, highs = _ends(ranges, count)
    limits, exact, combined = ranges.coarse.combinations, ranges.exact, []
    if limits is not None and exact is not None:
        low, high = count * limits.low, count * limits.high
        if not ranges.stays:
            low, high = _with_room(ranges, limits, exact, count, np.maximum(-lows, highs))
        combined = _combined(limits, low, high, lows, highs)
    statement = Statement(tuple(lows.tolist()), tuple((highs - lows).tolist()), 0, 1, tuple(combined))
    if ranges.is_boxed or not _is_ball(ranges, moved(statistic, rows_max, fraction_bits).sensitivity / count):
        return statement
    with_norm = msgspec.structs.replace(statement, norm=ranges.ball.of(count).norm(1 + ranges.unit))
    return with_norm if with_norm.norm_reach < statement.field.prime else statement


def _is_ball(ranges: _Ranges, honest: float) -> bool:
    """Return True if values lie in a ball about as wide as two honest ones are apart, and their box is wider."""
    width = ranges.ball.width
    return width <= _BALL * honest and _SMALLER * width <= float(np.linalg.norm(ranges.high - ranges.low))


def _with_room(
    ranges: _Ranges, coarse: Combinations, exact: Combinations, count: int, far: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of combinations of so many values, with room for rounding. Args: far: of each coordinate.

    Σ w'x holds for the finer grid's weights w'. Rounding moves x by less than 1 in each coordinate.
    """
    room = abs(coarse.weights).sum(axis=1) + abs(coarse.weights - exact.weights) @ far
    low = np.minimum(count * coarse.low, count * exact.low * ranges.unit) - room
    return low, np.maximum(count * coarse.high, count * exact.high * ranges.unit) + room


def _ends(ranges: _Ranges, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the least and the largest of each coordinate of so many values, as points of the grid."""
    return np.floor(count * ranges.low).astype(np.int64), np.ceil(count * ranges.high).astype(np.int64)


def _combined(
    combinations: Combinations,
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    lows: NDArray[np.int64],
    highs: NDArray[np.int64],
) -> list[Limit]:
    """Return the limits low <= Σ w_k x_k <= high that the coordinates' own, `lows` and `highs`, do not imply."""
    far = np.maximum(-lows, highs)
    found = [_whole_of(weights, far) for weights in combinations.weights]
    whole = np.array([one for one, _, _ in found], dtype=np.int64).reshape(-1, len(lows))
    factor, apart = (np.array([one[part] for one in found], dtype=np.float64) for part in (1, 2))
    room = apart + factor * _NEAR
    least, most = np.ceil(factor * low - room), np.floor(factor * high + room)
    ends = whole * lows, whole * highs
    is_implied = (least <= np.minimum(*ends).sum(axis=1)) & (np.maximum(*ends).sum(axis=1) <= most)
    return [
        Limit(tuple(whole[at].tolist()), int(least[at]), int(most[at]) - int(least[at]))
        for at in np.flatnonzero(~is_implied).tolist()
    ]


def _whole_of(weights: NDArray[np.float64], far: NDArray[np.int64]) -> tuple[NDArray[np.int64], float, float]:
    """Return whole weights, the factor between them and the given ones, and how far their combinations are apart."""
    is_whole = (weights == np.rint(weights)).all()
    whole, factor = (weights.astype(np.int64), 1.0) if is_whole else _whole(weights, far)
    return whole, factor, float(abs(whole - factor * weights) @ far)


def _whole(weights: NDArray[np.float64], far: NDArray[np.int64]) -> tuple[NDArray[np.int64], float]:
    """Return whole numbers in the proportions of the weights, or nearly so, and the factor between them.

    Args:
        far: the largest absolute value of each coordinate. Combinations of them fit any field of 31 bits.
    """
    different, places = np.unique(weights, return_inverse=True)  # few: counts of rows have one weight in all limits
    parts = [Fraction(weight).limit_denominator(_DENOMINATOR_MAX) for weight in different.tolist()]
    factor = math.lcm(*(part.denominator for part in parts))
    apart = max(abs(float(part) - weight) for part, weight in zip(parts, different.tolist(), strict=True))
    if factor <= _DENOMINATOR_MAX and apart <= 1e-9:
        return np.array([int(part * factor) for part in parts], dtype=np.int64)[places], factor
    most = min(float(_DENOMINATOR_MAX), _COMBINED_MAX / max(float(abs(weights) @ far), 1.0))
    power = 2.0 ** math.floor(math.log2(most))  # the last bits of weights differ by machine: now they hardly matter
    return np.rint(power * weights).astype(np.int64), power
