"""Phases of columns at doubling frequencies, in one round: they locate a column's centre and scale.

For each column, let x = (value - centre)/scale, clamped to ±bound. For each level k = 0, ..., K - 1 the coordinates are
cos(2^k x) and sin(2^k x). Their mean over rows is the column's characteristic function at 2^k. Its angle gives the
centre, finer with each level. Its magnitude shrinks from the level at which 2^k times the spread reaches 1, so that
level gives the scale, on a logarithmic grid. Unlike that of moments, the sensitivity does not grow with the bounds.

**Sensitivity.** Two values t apart are 2 - 2cos(2^k t) = 4 sin²(2^k t/2) apart at level k, squared. With u_k =
sin²(2^k t/2), the double-angle formula is u_{k+1} = 4u_k(1 - u_k), and for every u

    3/4 + (u - 4u(1 - u))/3 - u = 3/4 - 2u + 4u²/3 = (4u - 3)²/12 >= 0.

So u_k <= 3/4 + (u_k - u_{k+1})/3. Summed over the levels the differences telescope:

    Σ_k 4u_k <= 3K + 4(u_0 - u_K)/3 <= 3K + 4/3.

With t = 2π/3 all u_k are 3/4 and the sum is 3K, so the bound is tight to 4/3. A missing row is zero, K from any value.
Columns vary independently, so D columns add up to D·min(4K, 3K + 4/3). In L1 a column's 2K coordinates are at most
√(2K) times its L2 distance apart.

**The grid.** Coordinates are rounded to 2^-f. Each is off by half a unit plus the float error of a cosine, which is far
below another half. So two rows' difference is off by at most 2 units per coordinate; the sensitivity includes that.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.scaled import ScaledColumns, example_box, example_ends, half_bits
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import ValueRange, box

LEVELS = 9
"""The default; with bounds of ±1.25 it resolves spreads from a third of the half-width down to a 300th."""
LEVELS_MAX = 20
"""2^20 times a value is still exact to 2^-30 in a float."""


@register
class Phases(ScaledColumns, frozen=True, kw_only=True):
    """Σcos(2^k x) for each column and level, column by column, then Σsin(2^k x) likewise.

    Attributes:
        levels: K, from 1 to 20.
    """

    name = "phases"
    proofs = (
        Proof(
            "phases, D columns at K doubling frequencies",
            "√(D·min(4K, 3K + 4/3))·2^f + 2√(2DK), whatever the bounds are",
            "√(2DK)·Δ₂",
            "`test_phases.py`: all pairs of a fine grid, tight to 4/3",
        ),
    )

    levels: int = LEVELS

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        box = example_box(1.0, 3.0)
        return cls(**box, levels=4), cls(**box, levels=4, within=example_ends(2))

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= LEVELS_MAX:
            raise UsageError(f"levels is {self.levels}; give a whole number from 1 to {LEVELS_MAX}")
        super().__post_init__()

    @property
    def dimension(self) -> int:
        return 2 * len(self.columns) * self.levels

    def labels(self) -> tuple[str, ...]:
        return tuple(
            f"{wave} {2**k}·{column}" for wave in ("cos", "sin") for column in self.columns for k in range(self.levels)
        )

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        self.limits(half_bits(fraction_bits))  # refuses bounds that do not fit the grid, before anybody takes part
        unit, rounding = 1 << fraction_bits, 2 * math.sqrt(self.dimension)
        apart = math.sqrt(len(self.columns) * min(4 * self.levels, 3 * self.levels + 4 / 3))
        l2 = (apart * unit + rounding) * (1 + 1e-12)
        return Sensitivity(
            l1=math.ceil(l2 * math.sqrt(self.dimension)), l2_squared=math.ceil(l2**2 * (1 + 1e-12)), bound=unit
        )

    def value_range(self, fraction_bits: int) -> ValueRange:
        """Each pair of a cosine and a sine has length 1, up to the grid."""
        unit, d = np.full(self.dimension, 2.0**fraction_bits), self.dimension
        return box(-unit, unit, math.sqrt(d / 2) * 2.0**fraction_bits + math.sqrt(d))

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        x = self.clamped(rows, half_bits(fraction_bits))
        angles = (x[:, :, None] * 2.0 ** np.arange(self.levels)).reshape(len(rows), -1)
        waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        values: NDArray[np.int64] = np.rint(np.ldexp(waves, fraction_bits)).astype(np.int64)
        return values

    def unpack(self, value: NDArray[np.float64]) -> NDArray[np.complex128]:
        """Return a (noisy) sum as Σexp(i 2^k x), shape ``(D, K)``."""
        cosines, sines = value.reshape(2, len(self.columns), self.levels)
        return cosines + 1j * sines
