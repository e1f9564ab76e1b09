"""How large a value can be, of rows anywhere within a statistic's public ranges; so that no round pays for nothing.

Some parameters are valid, but leave no row a value worth its noise: a gradient's bound or dispersion, or an interval
to which values are clamped, is so small beside the grid or the sensitivity that every contribution is about zero. Each
statistic has its own such corners. So `require_reach` evaluates made-up rows, at the ends of the ranges and inside.
It reads public parameters alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.base import Statistic

_CLIENTS = 10**7  # of the largest federation
_VALUES, _WORDS = 64, 1 << 18
_FAR = 1e300  # so that no difference of two ends overflows


def require_reach(statistic: Statistic, fraction_bits: int) -> None:
    """Raise `UsageError` if a sum over the largest federation would be less than its noise, whatever its rows are.

    That is: if 10⁷ clients that all give the largest value found stay below the sensitivity, which is the sum's noise
    at μ = 1. A statistic without ranges, or that cannot be evaluated here, is not checked.
    """
    ranges = statistic.ranges()
    if any(column not in ranges for column in statistic.columns):
        return
    try:
        statistic.require_libraries()
        values = statistic.evaluate(_rows(statistic, ranges), fraction_bits)
    except Exception:  # a user's own statistic may raise anything; clients count its rows as zero
        return
    largest = float(np.linalg.norm(values.astype(np.float64), axis=1).max(initial=0.0))
    stated = statistic.stated_sensitivity(fraction_bits).l2
    if largest * _CLIENTS < stated:
        raise UsageError(
            f"with these parameters of {statistic.name!r}, no row has a value of more than {largest:.3g} grid units, "
            f"and the sensitivity is {stated:.3g}: the sum of {_CLIENTS:,} clients would be less than its noise; "
            "use more fraction bits, or parameters of about the data's own size"
        )


def _rows(statistic: Statistic, ranges: dict[str, tuple[float, float]]) -> NDArray[np.float64]:
    """Return rows of many values: each row at ends or inside, in half of the groups all rows alike."""
    group, width = statistic.rows_per_value, len(statistic.columns)
    count = max(4, min(_VALUES, _WORDS // max(group * width, statistic.dimension)))
    low, high = np.clip(np.array([ranges[column] for column in statistic.columns]).T, -_FAR, _FAR)
    share = np.abs(np.sin(np.arange(1.0, 1.0 + count * group * width)) * 43_758.5453).reshape(count, group, width) % 1
    share[1::4], share[2::4] = np.rint(share[1::4]), np.rint(share[2::4])  # at ends
    share[::2] = share[::2, :1]
    rows: NDArray[np.float64] = (low + (high - low) * share).reshape(-1, width)
    return rows
