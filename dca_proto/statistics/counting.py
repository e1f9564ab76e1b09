"""A count of complete rows beside other sums, so that means are those of the values that are present.

A row with a missing value is zero in every coordinate, and the public number of clients counts it. With a
``count_weight`` w a statistic has one more coordinate, which is w for a complete row. The ratio of a sum to the count
is then the mean over complete rows, and it stays right if clients send the mean of their rows.

**The count is free** up to a certain weight. Complete rows have the same count, so two of them stay as far apart as
before, Δ. A complete row and a missing one are the row's own length ℓ and w apart, at right angles. So

    Δ'² = max(Δ², max ℓ² + w²),    Δ'₁ = max(Δ₁, max ℓ₁ + w),

and the largest free weight is √(Δ² - max ℓ²), or Δ₁ - max ℓ₁ for noise that is calibrated to L1 distances
(`Counting.free_weight`). Rows of a centred box or ball have Δ = 2 max ℓ, so w = √3 max ℓ, or max ℓ₁.

What a mean pays is the noise of its denominator: a mean at z bounds from the centre has √(1 + z²/3) times the noise
that it would have if all rows were known to be complete. That is 1.04 at half of the bounds, at most 1.155.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dca_proto.crypto.fixedpoint import INTEGER_LIMIT
from dca_proto.errors import UsageError
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import Combinations, ValueRange, box

if TYPE_CHECKING:
    from dca_proto.aggregate import NoisyAggregate

_COMBINED_MAX = 256  # coordinates up to which each is compared with the count
_HIDDEN_SDS = 16.0  # least number of clients for the count to be used, in standard deviations of its noise
_STEP = 1e-3  # of a difference quotient, in standard deviations of the noise
_MISSING_SDS, _MISSING_LEAST = 4.0, 0.01  # standard deviations of the noise, and share of the clients
_INTERVAL_SDS = 1.96  # half of a 95 % interval
OF_THE_OTHERS = "the estimates are of the others; find out whether those differ"
COMPLETE_ROWS = "complete rows"
"""The label of the count."""


class Counting:
    """A base of statistics that may count complete rows in their last coordinate. It stands before `Statistic`.

    Attributes:
        count_weight: w, the count's coordinate for a complete row; 0 leaves the coordinate out. A field of the
            statistic's parameters.
    """

    count_weight: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.count_weight) and self.count_weight >= 0):
            raise UsageError(f"count_weight is {self.count_weight:g}; give a finite number above 0, or 0 for no count")
        super().__post_init__()  # type: ignore[misc]  # of a statistic

    @property
    def counts(self) -> bool:
        """Whether there is a count."""
        return self.count_weight > 0

    @property
    def compares_count(self) -> bool:
        """Whether `value_range` compares each coordinate with the count, or there is no count."""
        return not self.counts or self.plain_dimension <= _COMBINED_MAX

    @property
    @abstractmethod
    def plain_dimension(self) -> int:
        """Number of coordinates without the count."""

    @abstractmethod
    def plain_labels(self) -> tuple[str, ...]:
        """Return the labels without the count's."""

    @abstractmethod
    def lengths(self, fraction_bits: int) -> tuple[int, int]:
        """Return upper bounds of a row's L1 length and of its squared L2 length, in grid units, beside a count."""

    @abstractmethod
    def plain_sensitivity(self, fraction_bits: int) -> Sensitivity:
        """Return the sensitivity without the count; a missing row is zero."""

    @abstractmethod
    def plain_values(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        """Return `evaluate` without the count."""

    def free_weight(self, fraction_bits: int, *, l1: bool = False) -> float:
        """Return the largest count_weight that does not raise Δ₂ (or Δ₁): that of the grid."""
        plain = self.plain_sensitivity(fraction_bits)
        counting: Counting = replace(self, count_weight=1.0)  # type: ignore[type-var]  # a statistic is a struct
        length, length_squared = counting.lengths(fraction_bits)
        free = plain.l1 - length if l1 else math.isqrt(max(plain.l2_squared - length_squared, 0))
        return math.ldexp(max(free, 1), -fraction_bits)

    @cached_property
    def dimension(self) -> int:
        return self.plain_dimension + self.counts

    def labels(self) -> tuple[str, ...]:
        return (*self.plain_labels(), COMPLETE_ROWS) if self.counts else self.plain_labels()

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        plain = self.plain_sensitivity(fraction_bits)
        if not self.counts:
            return plain
        (l1, l2_squared), w = self.lengths(fraction_bits), self._weight(fraction_bits)
        return Sensitivity(
            l1=max(plain.l1, l1 + w), l2_squared=max(plain.l2_squared, l2_squared + w**2), bound=max(plain.bound, w)
        )

    @abstractmethod
    def plain_range(self, fraction_bits: int) -> ValueRange:
        """Return `value_range` without the count."""

    def value_range(self, fraction_bits: int) -> ValueRange:
        plain = self.plain_range(fraction_bits)
        if not self.counts:
            return plain
        weight, (_, squared) = float(self._weight(fraction_bits)), self.lengths(fraction_bits)
        longest = math.sqrt(squared + weight**2) * (1 + 2.0**-40)
        limits = box(np.append(plain.low, 0.0), np.append(plain.high, weight), longest)
        combinations = self.counted_combinations(plain, weight) if self.compares_count else None
        return replace(limits, combinations=combinations, complete_length=plain.length)

    def counted_combinations(self, limits: ValueRange, weight: float) -> Combinations:
        """Return what holds beside a count of weight w: each coordinate lies within its limits times the count.

        Args:
            limits: of a complete row, without the count.
        """
        low, high, d = limits.low, limits.high, self.plain_dimension
        width = high - low
        weights = np.concatenate([np.c_[np.eye(d), -end / weight] for end in (low, high)])
        names = tuple(f"{label} beside the count" for label in self.plain_labels()) * 2
        return Combinations(names, weights, np.r_[np.zeros(d), -width], np.r_[width, np.zeros(d)])

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        values = self.plain_values(rows, fraction_bits)
        if not self.counts:
            return values
        return np.concatenate([values, np.full((len(values), 1), self._weight(fraction_bits))], axis=1)

    def sums_and_rows(self, value: NDArray[np.float64], contributors: int) -> tuple[NDArray[np.float64], float]:
        """Split a (noisy) sum into its other coordinates and the number of complete rows: n without a count.

        With ``rows_max`` = 0 a client counts as the share of its rows that are complete.
        """
        return (value[:-1], float(value[-1]) / self.count_weight) if self.counts else (value, float(contributors))

    @abstractmethod
    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """Convert a (noisy) sum to units of the data; the last number is the count of complete rows, if any."""

    def estimate_with_noise(
        self, value: NDArray[np.float64], contributors: int, sigma: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the estimates and their noise, to first order: that of their own coordinate, and that of the count.

        If there are so few clients that the noise hides whether values are missing, all are taken to be there.
        """
        used, n = value.copy(), self.plain_dimension
        hidden = self.counts and contributors < _HIDDEN_SDS * sigma / self.count_weight
        if hidden:
            used[n:] = self.count_weight * contributors
        step, middle = _STEP * sigma, self.estimate(used, contributors)
        alone, count = np.zeros_like(value), np.zeros_like(value)
        alone[:n], count[n:] = step, step
        by_own, by_count = (self.estimate(used + part, contributors) - middle for part in (alone, count))
        if hidden:
            by_count[:n] = 0.0
            middle[n:] = value[n:] / self.count_weight
        return middle, np.hypot(by_own, by_count) / _STEP

    def zero_sum(self, contributors: int) -> NDArray[np.float64]:
        """Return the sum of complete rows that are zero in all other coordinates."""
        return np.append(np.zeros(self.plain_dimension), [self.count_weight * contributors] * self.counts)

    def _weight(self, fraction_bits: int) -> int:
        """Return w in grid units. Raises `UsageError` if it does not fit the grid."""
        weight = math.floor(math.ldexp(self.count_weight, fraction_bits))
        if not 1 <= weight < INTEGER_LIMIT:
            unit = math.ldexp(1, -fraction_bits)
            raise UsageError(
                f"count_weight {self.count_weight:g} is not between one grid unit, {unit:g}, and "
                f"{math.ldexp(INTEGER_LIMIT, -fraction_bits):g}; change it, or leave the count out"
            )
        return weight


class CompleteRows(NamedTuple):
    """The noisy number of complete rows in rounds, the standard deviation of its noise, and how many contributed."""

    rows: float
    sd: float
    contributors: int

    @classmethod
    def of(cls, rounds: Sequence[NoisyAggregate]) -> CompleteRows:
        """Return the count of rounds of one statistic; without one, all contributors with infinite noise."""
        contributors = sum(one.contributors for one in rounds)
        weight = float(rounds[0].parameters.get("count_weight", 0.0))
        if not weight:
            return cls(float(contributors), math.inf, contributors)
        rows = sum(float(one.value[-1]) for one in rounds) / weight
        return cls(rows, math.sqrt(sum(one.noise_variance for one in rounds)) / weight, contributors)

    def share(self, least: float) -> float:
        """Return the share of rows that are complete, `least` or more: 1 unless the count clearly shows less."""
        is_less = about_missing(self.rows, self.sd, self.contributors)
        return max(self.rows / self.contributors, least) if is_less else 1.0


def about_missing(
    rows: float, sd: float, n: int, what: str = "a value", *, of: str = "clients", so: str = OF_THE_OTHERS
) -> tuple[str, ...]:
    """Return a warning if clearly fewer rows are complete than contributed; false alarms: 3e-5.

    Args:
        rows: the noisy count of complete rows. sd: of its noise. n: number of contributors. of: their plural name.
        what: they lack, as text. so: what follows from it, and what to do.
    """
    lacking = n - rows
    if lacking < max(_MISSING_SDS * sd, _MISSING_LEAST * n):
        return ()
    low, most_likely, high = (_percent((lacking + side * sd) / n) for side in (-_INTERVAL_SDS, 0.0, _INTERVAL_SDS))
    share = f"about {most_likely} % of the {of} ({low} to {high} %) seem to lack {what}"
    return (f"{share}: {so}",)


def _percent(share: float) -> str:
    percent = 100 * min(max(share, 0.0), 1.0)
    return f"{percent:.0f}" if percent >= 10 else f"{percent:.2g}"
