"""Expected sufficient statistics of a Gaussian mixture with diagonal covariances, at public variational parameters.

For one row x of d columns, K components, and everything in units of the scales:

    r_k     responsibilities, proportional to exp(log_weights_k - ½ Σ_j precisions_kj (x_j - means_kj)²)
    φ(x)    for each k: w₁ r_k, then w₂ r_k x_j for all j, then w₃ r_k (x_j² - h_j) for all j

A step of variational Bayes for the mixture needs only their sums over rows from the data (Bishop 2006, eqs. 10.51 to
10.53). Its log weights are E[ln π_k] + ½ Σ_j (E[ln λ_kj] - 1/β_k), its means m_kj and its precisions E[λ_kj].
The public offsets h_j (0 by default) only lower the sensitivity; `unpack` adds them again.

**Sensitivity.** Write φ = r ⊗ v with v = (w₁, w₂ x, w₃ (x² - h)), and use only that r_k >= 0 and Σ r_k <= 1, so that
|r| <= 1. Two rows are apart by

    |φ - φ'|² = |r|²|v|² + |r'|²|v'|² - 2 (r·r')(v·v').

If v·v' >= 0 that is at most |v|² + |v'|², as r·r' >= 0; if v·v' < 0 it is at most |v|² + |v'|² - 2 v·v', as
r·r' <= |r||r'| <= 1. Hence, for rows of the box |x_j| <= c_j,

    Δ² = max(2 (w₁² + Σ_j max over x_j of w₂² x_j² + w₃² (x_j² - h_j)²),
             Σ_j max over x_j, x'_j of w₂² t² + w₃² t²s²),          t = x_j - x'_j, s = x_j + x'_j.

The first is for two rows in different components. It does not depend on K, so further components cost nothing. Its
inner maximum is convex in x_j² and so at 0 or c_j: max(w₃² h_j², w₂² c_j² + w₃² (c_j² - h_j)²). It is least if both are
equal, at the offset h_j = (c_j² + (w₂/w₃)²)/2, or at c_j² if that is smaller. The second is for two rows in one
component; it equals that of `moments` and does not depend on h. A missing row is zero, nearer than the first. Both
maxima are attained. In L1, |φ|₁ <= |r|₁|v|₁, and a distance is at most twice that.

**The best settings.** The sums of x alone have Δ = 2 w₂√Σ c_j². For equal bounds c, three choices leave Δ unchanged:

    w₃ <= w₂ FREE_BOUND/c                    the squares are free, as in `moments`
    h = (c² + (w₂/w₃)²)/2                    minimises the first maximum
    w₁² <= d (2 w₂² c² - w₃² h²)             the counts are free: w₁ = 1.4 √d w₂ for c = FREE_BOUND and w₃ = w₂

At d = 10, equal weights without offsets are worse. With scales such that c = 1, their best, they have 1.02 times the
noise in the sums, 1.7 in the squares (here about h) and 2.7 in the counts. At c = 3 the factors are 2.2, 1.2 and 18.

**In integers.** Rows are quantised first: V = (w₁ 2^f, w₂ X_j 2^{f/2}, w₃ (X_j² - H_j)) is exact on the grid of 2^-f,
and the above holds for it. R_k = floor(2^g r_k) has a sum of at most 2^g, as the floats' sum exceeds 1 by at most
(K + 1)·2^-53, which for K <= 4096 is less than a unit of 2^-g. Then R_k V_i/2^g is truncated towards zero. That moves
two numbers of one sign apart by less than 1 and those of different signs nearer to each other, so that D coordinates
add at most √D to Δ2 and D to Δ1. The number of bits g is f, or less if needed to keep R_k V_i below 2^62.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import PublicParameters
from dca_proto.errors import UsageError
from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.moments import widest_squared
from dca_proto.statistics.regression import WEIGHT_MAX
from dca_proto.statistics.scaled import ScaledColumns, example_box, example_ends, half_bits
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import ValueRange, box, total_of

COMPONENTS_MAX = 2**12
_PRODUCT_BITS = 61  # keeps R_k V_i below 2^62
_EXPONENT_MAX = 1e100
Vector = tuple[float, ...]


@register
class Mixture(ScaledColumns, frozen=True, kw_only=True):
    """Sums of responsibilities, and of x and x² of each column weighted by them, for each component.

    The head of this file derives the best bounds, offsets and weights.

    Attributes:
        log_weights: one for each of K components, 2 to 4096; finite, and only their differences matter.
        means: per component, one for each column, in units of the scaled columns (0 is the public centre).
        precisions: per component, one for each column, in 1/units², 0 or above.
        offsets: h of each column, subtracted from its squares, in squared units of the scaled columns, 0 or above;
            empty for zeros.
        weights: integers from 1 to 4096 that multiply r, rx and r(x² - h) before the noise.
    """

    name = "mixture"
    proofs = (
        Proof(
            "mixture, D coordinates",
            "max(√2·|v|, that of both weighted moments) + √D, with the longest v = (w₁, w₂x, w₃(x² - h)); any K",
            "2|v|₁ + D",
            "`test_mixture_statistic.py`: attained to 0.1 %",
        ),
    )

    log_weights: Vector
    means: tuple[Vector, ...]
    precisions: tuple[Vector, ...]
    offsets: Vector = ()
    weights: tuple[int, int, int] = (1, 1, 1)

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        two: dict[str, Any] = {
            **example_box(1.0, 3.0),
            "log_weights": (0.0, 0.5),
            "means": ((0.5, 0.0), (-0.5, 0.3)),
            "precisions": ((1.0, 4.0), (3.0, 0.0)),
            "offsets": (0.5, 10.0),
            "weights": (3, 2, 1),
        }
        return cls(**two), cls(**two, within=example_ends(2))

    @classmethod
    def planned(cls, columns: Sequence[str], parameters: Mapping[str, Any]) -> PublicParameters:
        """Return two components, or as many as a given list has, all at the centre: the noise is that of any others."""
        lists = [
            parameters[key] for key in ("log_weights", "means", "precisions") if isinstance(parameters.get(key), list)
        ]
        count, d = len(lists[0]) if lists else 2, len(columns)
        return {"log_weights": [0.0] * count, "means": [[0.0] * d] * count, "precisions": [[1.0] * d] * count}

    def __post_init__(self) -> None:
        if not 2 <= self.components <= COMPONENTS_MAX:
            raise UsageError(f"log_weights has {self.components} values; give 2 to {COMPONENTS_MAX} components")
        self._check_numbers("log_weights", (self.log_weights,), len(self.log_weights), -math.inf)
        for field, least in (("means", -math.inf), ("precisions", 0.0)):
            values = getattr(self, field)
            if len(values) != self.components:
                raise UsageError(f"{field} has {len(values)} rows for {self.components} components; give one for each")
            self._check_numbers(field, values, len(self.columns), least)
        if self.offsets:
            self._check_numbers("offsets", (self.offsets,), len(self.columns), 0.0)
            if any(h > 4 * c * c for h, c in zip(self.offsets, self.bound, strict=False)):
                raise UsageError(
                    f"offsets are {self.offsets}; give finite numbers of at most 4 times the squared bound"
                )
        if not all(type(w) is int and 1 <= w <= WEIGHT_MAX for w in self.weights):
            raise UsageError(f"weights are {self.weights}; give three whole numbers from 1 to {WEIGHT_MAX}")
        super().__post_init__()
        if not (largest := self._largest()) < _EXPONENT_MAX:
            raise UsageError(
                f"a log density can reach {largest:.3g}, expected below {_EXPONENT_MAX:g}; "
                "lower precisions, bound, means or log_weights"
            )

    @staticmethod
    def _check_numbers(field: str, rows: tuple[Vector, ...], width: int, least: float) -> None:
        above = f" of at least {least:g}" if least > -math.inf else ""
        for row in rows:
            if len(row) != width:
                raise UsageError(f"{field} has a row of {len(row)} values for {width} columns; give one for each")
            wrong = [value for value in row if not (math.isfinite(value) and value >= least)]
            if wrong:
                raise UsageError(f"{field} has a value of {wrong[0]:g}; give finite numbers{above}")

    @property
    def components(self) -> int:
        """K."""
        return len(self.log_weights)

    @property
    def dimension(self) -> int:
        return self.components * (1 + 2 * len(self.columns))

    def labels(self) -> tuple[str, ...]:
        squares = (f"·({j}² - {h:.4g})" if h else f"·{j}²" for j, h in zip(self.columns, self._subtracted, strict=True))
        per_component = ["", *(f"·{column}" for column in self.columns), *squares]
        return tuple(f"r{k}{text}" for k in range(1, self.components + 1) for text in per_component)

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        limits, unit = self.limits(half_bits(fraction_bits)), 1 << half_bits(fraction_bits)
        widest = self._widest(fraction_bits)
        apart = sum(widest_squared(limit, unit, self.weights[1:]) for limit in limits)
        bits, (w1, w2, w3) = half_bits(fraction_bits), self.weights
        columns = zip(limits, self._offsets(fraction_bits), strict=True)
        parts = (max((w3 * h) ** 2, ((w2 * c) << bits) ** 2 + (w3 * (c**2 - h)) ** 2) for c, h in columns)
        longest = int((w1 << fraction_bits) ** 2 + sum(parts))  # the largest |V|²
        exact, d = max(2 * longest, apart), self.dimension
        return Sensitivity(
            l1=2 * sum(widest) + d, l2_squared=exact + d + math.isqrt(4 * exact * d) + 1, bound=max(widest)
        )

    def value_range(self, fraction_bits: int) -> ValueRange:
        """Responsibilities lie in 0 to 1 and add up to at most 1; the rest lies in the range of V."""
        bits, offsets, (w1, w2, w3) = half_bits(fraction_bits), self._offsets(fraction_bits), self.weights
        limits = self.limits(bits)
        x = np.array([float((w2 * c) << bits) for c in limits])
        least = np.array([float(-w3 * h) for h in offsets])
        most = np.array([float(w3 * (c**2 - h)) for c, h in zip(limits, offsets, strict=True)])
        one = float(w1 << fraction_bits)
        low, high = np.r_[0.0, -x, least], np.r_[one, x, most]
        K, d = self.components, self.dimension
        limit = box(np.tile(low, K), np.tile(high, K), self.row_sensitivity(fraction_bits).l2)
        counts = total_of("the sum of all responsibilities", d, one, slice(None, None, len(low)))
        return ValueRange(limit.low, limit.high, limit.length, counts)

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        bits = half_bits(fraction_bits)
        x = self.quantised(rows, bits)
        w1, w2, w3 = self.weights
        ones = np.full((len(x), 1), w1 << fraction_bits, dtype=np.int64)
        offsets = np.array(self._offsets(fraction_bits), dtype=np.int64)
        v = np.concatenate([ones, (w2 * x) << bits, w3 * (x * x - offsets)], axis=1)
        g = min(fraction_bits, _PRODUCT_BITS - max(self._widest(fraction_bits)).bit_length())
        r = np.floor(np.ldexp(self.responsibilities(np.ldexp(x.astype(np.float64), -bits)), g)).astype(np.int64)
        products = r[:, :, None] * v[:, None, :]
        truncated: NDArray[np.int64] = np.sign(products) * (np.abs(products) >> g)
        return truncated.reshape(len(x), self.dimension)

    def responsibilities(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return r of rows in units of the scales, shape ``(m, d)`` to ``(m, K)``, computed in logarithms."""
        log_weights, means, precisions = self._natural
        logs = log_weights - (np.square(x[:, None, :] - means) * precisions).sum(axis=2) / 2
        weights: NDArray[np.float64] = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def unpack(
        self, value: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Split a (noisy) sum into Σr, shape ``(K,)``, Σrx and Σrx², shapes ``(K, d)``, in units of the scales.

        The weights are divided out and h is added again. With independent noise e of the released standard deviation,
        the noise is e₁/w₁ in the counts, e₂/w₂ in the sums, and e₃/w₃ + h e₁/w₁ in the squares (e₁ of their component).
        """
        d, blocks = len(self.columns), value.reshape(self.components, -1)
        w1, w2, w3 = self.weights
        counts = blocks[:, 0] / w1
        return counts, blocks[:, 1 : 1 + d] / w2, blocks[:, 1 + d :] / w3 + counts[:, None] * self._subtracted

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        """The sums in units of the scales, with the weights divided out; squares stay less h, as the labels say."""
        weights: NDArray[np.float64] = np.repeat(np.array(self.weights, np.float64), (1, *2 * (len(self.columns),)))
        return (value.reshape(self.components, -1) / weights).ravel()

    @cached_property
    def _natural(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Log weights, means and precisions as arrays, built once for all chunks of rows."""
        return np.array(self.log_weights), np.array(self.means), np.array(self.precisions)

    @property
    def _subtracted(self) -> NDArray[np.float64]:
        """h of each column, shape ``(d,)``."""
        return np.array(self.offsets or (0.0,) * len(self.columns), dtype=np.float64)

    def _offsets(self, fraction_bits: int) -> tuple[int, ...]:
        """H_j: h_j to the nearest grid unit, as integers of any size."""
        return tuple(round(math.ldexp(h, fraction_bits)) for h in self.offsets) or (0,) * len(self.columns)

    def _widest(self, fraction_bits: int) -> tuple[int, ...]:
        """The largest magnitude of each coordinate of V."""
        bits, offsets = half_bits(fraction_bits), self._offsets(fraction_bits)
        limits, (w1, w2, w3) = self.limits(bits), self.weights
        squares = (w3 * max(h, c**2 - h) for c, h in zip(limits, offsets, strict=True))
        return (w1 << fraction_bits, *((w2 * c) << bits for c in limits), *squares)

    def _largest(self) -> float:
        """Return an upper bound of the magnitude of any row's log weight, and of all intermediate results."""
        log_weights, means, precisions = self._natural
        with np.errstate(over="ignore"):
            reach = np.array(self.bound) + np.abs(means)
            return float(np.maximum(reach**2, 1.0).sum() * precisions.max(initial=1.0) + np.abs(log_weights).max())
