"""What a client of a verified sum proves about its contribution (DESIGN §12): that it is in the statistic's range.

A range of an interval for each coordinate and limits of whole-number combinations can be proven exactly. Then a lying
client can do no more than lie within its bounds. A statistic whose values are in a ball, or are squares of each other,
has no such range, and cannot be verified yet.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.bounded import Limit, Statement
from dca_proto.errors import UsageError
from dca_proto.statistics.base import Statistic
from dca_proto.statistics.value_range import ValueRange

_DENOMINATOR_MAX = 2**20
_WEIGHTS_MAX = 2**17
_NEAR = 1e-5  # units of the grid: how far the end of a limit may be from a whole number


def range_statement(statistic: Statistic, rows_max: int, fraction_bits: int) -> Statement:
    """Return the statement that a contribution is in a statistic's range, without noise.

    Raises:
        UsageError: the statistic cannot be verified, or not as a mean of rows.
    """
    if not statistic.is_boxed:
        raise UsageError(
            f"statistic {statistic.name!r} with these parameters cannot be verified: its values are not in a box. "
            "Leave verified out, or use a sum without a radius, a mean, a histogram or survival counts"
        )
    limits, count = statistic.value_range(fraction_bits), rows_max // statistic.rows_per_value or 1
    lows = count * np.floor(limits.low).astype(np.int64)
    highs = count * np.ceil(limits.high).astype(np.int64)
    combined = tuple(_combined(limits, lows, highs, count))
    if combined and not rows_max:
        raise UsageError(
            f"statistic {statistic.name!r} can be verified as a sum of rows only: give rows_max, 1 for clients that "
            "have one row each"
        )
    return Statement(tuple(lows.tolist()), tuple((highs - lows).tolist()), 0, 1, combined)


def _combined(limits: ValueRange, lows: NDArray[np.int64], highs: NDArray[np.int64], count: int) -> list[Limit]:
    """Return the limits of combinations that the coordinates' own do not imply."""
    if limits.combinations is None:
        return []
    given, found = limits.combinations, []
    is_whole = (given.weights == np.rint(given.weights)).all(axis=1)
    if (~is_whole).sum() * given.weights.shape[1] > _WEIGHTS_MAX:
        raise UsageError(
            f"a verified sum has at most {_WEIGHTS_MAX} weights that are no whole numbers; use fewer cells"
        )
    rows = zip(given.names, given.weights, given.low, given.high, is_whole.tolist(), strict=True)
    for name, weights, low, high, whole_already in rows:
        whole, factor = (weights.astype(np.int64), 1) if whole_already else _whole(weights, name)
        least, most = math.ceil(count * factor * (low - _NEAR)), math.floor(count * factor * (high + _NEAR))
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
        raise UsageError(f"{name} cannot be verified: its weights are no ratios of small whole numbers")
    return np.array([int(part * factor) for part in parts], dtype=np.int64), factor
