"""Additive local mechanisms: values are vectors on the grid, and a report is a value plus noise.

On the wire a report is a vector over the integers modulo 2^64, like a data node's release. It does not wrap: a
contribution stays below 2^53, and noise of S <= 2^80 or Δ1/ε < 2^53 leaves ±2^62 with a probability below 2^-1000.

Laplace noise has P(x) = (1-a)/(1+a) a^|x| on the integers, a = e^-t, t = ε/Δ1 a rational number: ε is the binary
fraction that the float is, Δ1 an integer (Dwork, McSherry, Nissim and Smith 2006, definition 2.4 of the LDP paper; on
integers Ghosh, Roughgarden and Sundararajan 2009). "Laplace noise on the grid" in PRIVACY.md has its exact sampler. A
sample far out, or a tie, takes longer: there is no defence against an observer who times a device to the microsecond.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from fractions import Fraction
from functools import lru_cache
from math import sinh
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.aggregate import LocalReports
from dca_proto.crypto.fixedpoint import from_ring, ring_from_bytes, ring_to_bytes, to_ring
from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.accounting import check_mu
from dca_proto.privacy.local.chance import HEAD_BITS, Chance
from dca_proto.privacy.local.stream import Stream
from dca_proto.privacy.local.values import LocalEstimate, check_range, integers, report_count, require_epsilon
from dca_proto.privacy.mechanism import ANALYTIC_GAUSSIAN, GRID_LAPLACE
from dca_proto.privacy.noise import discrete_gaussian
from dca_proto.privacy.rounding import at_least
from dca_proto.statistics.sensitivity import REPLACE_ONE_CLIENT, Sensitivity

_LAST_EXPONENT = 12  # e^-12 < 2^-17
_LOW_BITS_MAX = 56


class Additive:
    """Base class of mechanisms that add independent noise to each coordinate of a vector in grid units.

    Only mypy enforces its abstract methods, since a struct cannot have the metaclass of abstract classes.

    Attributes:
        name: on the wire. epsilon, delta: of each report. dimension: d.
        sensitivity: how far replacing a client's data moves its vector, and the box that holds the vector.
    """

    __slots__ = ()
    name: ClassVar[str]
    epsilon: float
    delta: float
    sensitivity: Sensitivity
    dimension: int

    @property
    @abstractmethod
    def noise_variance(self) -> float:
        """Variance of the noise in each coordinate of one report, in squared grid units."""

    @property
    @abstractmethod
    def noise_scale(self) -> float:
        """σ of Gaussian noise, or b of Laplace noise, in grid units."""

    @abstractmethod
    def noise(self, count: int, key: bytes) -> NDArray[np.int64]:
        """Return `count` independent samples from 32 secret bytes."""

    def to_inputs(self, contributions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the contributions themselves, shape ``(n, dimension)``."""
        return contributions

    def randomise(self, values: ArrayLike, key: bytes) -> NDArray[Any]:
        """Return one report per client: vectors in grid units, shape ``(n, dimension)``, like the values.

        Clip the values first, so that the sensitivity holds for them. `key` is 32 fresh secret bytes, for this call
        alone. Raises `UsageError` for values of another type or outside the box (without the value), or a wrong key.
        """
        bound = self.sensitivity.bound
        vectors = check_range("values", integers("values", values, self.dimension), -bound, bound, "clip them first")
        return vectors + self.noise(vectors.size, key).reshape(vectors.shape)

    def encode(self, report: NDArray[Any]) -> bytes:
        """Encode in 8 bytes per coordinate, little-endian, modulo 2^64."""
        return ring_to_bytes(to_ring(np.ascontiguousarray(report)))

    def decode(self, data: bytes) -> NDArray[np.int64]:
        """Inverse of `encode`, shape ``(dimension,)``. Raises `PeerError` for another length."""
        return from_ring(ring_from_bytes(data, self.dimension))

    def estimate(self, reports: ArrayLike) -> LocalEstimate:
        """Estimate the mean of the clients' vectors, in grid units. Raises `UsageError` for an impossible report."""
        table = integers("reports", reports, columns=self.dimension)
        count = report_count(table)
        return LocalEstimate(table.mean(axis=0), np.full(self.dimension, self.noise_variance / count), count)

    def variance_in_sum(self, unit: float) -> float:
        """The exact variance of one report's noise, in squared units of the statistic; a grid unit is `unit`."""
        return self.noise_variance * unit**2

    def summed(self, reports: NDArray[Any], unit: float) -> NDArray[np.float64]:
        """Return the sum of the reports, in the statistic's units, shape ``(dimension,)``."""
        total: NDArray[np.float64] = (reports.astype(np.float64) * unit).sum(axis=0)
        return total

    def decode_reports(self, reports: NDArray[Any], unit: float) -> LocalReports:
        """Return the reports in the statistic's units."""
        return LocalReports(
            values=reports.astype(np.float64) * unit,
            mechanism=self.name,
            epsilon=self.epsilon,
            delta=self.delta,
            noise_scale=self.noise_scale * unit,
        )


class AnalyticGaussian(Additive, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report is the client's vector plus independent discrete Gaussian noise N_Z(0, S) in each coordinate.

    (ε, δ)-locally private: S is the variance for one honest share (`accounting.share_variance` with `honest` = 1).
    It is calibrated by the exact formula of Balle and Wang (2018), theorem 8 (definition 2.3 of the LDP paper), and
    enlarged for the grid as proved in PRIVACY.md. The whole (ε, δ) curve is that of Gaussian
    differential privacy with `mu`, so several reports of a client compose by μ² = Σ μ_r².

    Attributes:
        epsilon, delta: ε and δ. dimension: d.
        sensitivity: how far replacing a client's data moves its vector, and the box that holds the vector.
        mu: the Gaussian differential privacy parameter of a report; pass 0 for the largest that ε and δ allow.

    Raises:
        UsageError: an argument is out of range, the neighbouring relation is another, or the noise is too small for the
            grid.
    """

    epsilon: float
    delta: float
    sensitivity: Sensitivity
    dimension: int = 1
    mu: float = 0.0
    name: ClassVar[str] = ANALYTIC_GAUSSIAN

    def __post_init__(self) -> None:
        self.sensitivity.require(REPLACE_ONE_CLIENT)
        if not self.mu:
            msgspec.structs.force_setattr(self, "mu", accounting.mu_of(self.epsilon, self.delta))
        check_mu(self.mu, self.epsilon, self.delta)
        discrete_gaussian(self.noise_variance)

    @property
    def noise_variance(self) -> int:
        """S, the variance of the noise in each coordinate, in squared grid units."""
        return accounting.share_variance(self.sensitivity.l2, self.mu, 1, self.dimension)

    @property
    def noise_scale(self) -> float:
        """√S, in grid units."""
        return math.sqrt(self.noise_variance)

    def noise(self, count: int, key: bytes) -> NDArray[np.int64]:
        """Return `count` independent samples of N_Z(0, S) from 32 secret bytes."""
        return discrete_gaussian(self.noise_variance).sample(count, key)


class GridLaplace(Additive, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report is the client's vector plus independent discrete Laplace noise in each coordinate.

    Exactly (ε, 0)-locally private: the probabilities of a report z under v and v' have the ratio
    Π_j a^(|z_j - v_j| - |z_j - v'_j|) <= a^-|v - v'|_1 <= e^(t Δ1) = e^ε. (Reducing a report modulo 2^64 changes
    nothing: it is computed from z.)

    Attributes:
        epsilon: ε, as the exact binary fraction that the float is. dimension: d.
        sensitivity: how far (L1) replacing a client's data moves its vector, and the box that holds the vector.

    Raises:
        UsageError: an argument is out of range, the neighbouring relation is another, or the sampler cannot draw Δ1/ε.
    """

    epsilon: float
    sensitivity: Sensitivity
    dimension: int = 1
    name: ClassVar[str] = GRID_LAPLACE
    delta: ClassVar[float] = 0.0  # type: ignore[misc]

    def __post_init__(self) -> None:
        self.sensitivity.require(REPLACE_ONE_CLIENT)
        require_epsilon(self.epsilon)
        if self.dimension < 1:
            raise UsageError(f"dimension is {self.dimension}, expected at least 1")
        largest = self.epsilon * 2.0**_LOW_BITS_MAX / _LAST_EXPONENT
        if self.sensitivity.l1 > largest:
            raise UsageError(
                f"the L1 sensitivity is {self.sensitivity.l1} grid units, expected at most {largest:.3g} at epsilon "
                f"{at_least(self.epsilon)}: use fewer fraction bits, or a larger epsilon"
            )

    @property
    def rate(self) -> Fraction:
        """t = ε/Δ1, exactly: the noise's probability falls by e^-t per grid unit."""
        return Fraction(self.epsilon) / self.sensitivity.l1

    @property
    def noise_variance(self) -> float:
        """2a/(1-a)², the variance of the noise in each coordinate, in squared grid units."""
        return 1 / (2 * sinh(float(self.rate) / 2) ** 2)

    @property
    def noise_scale(self) -> float:
        """b = Δ1/ε, in grid units."""
        return 1 / float(self.rate)

    def noise(self, count: int, key: bytes) -> NDArray[np.int64]:
        """Return `count` independent samples from 32 secret bytes."""
        return sample(self.rate, count, key)


class _Events(NamedTuple):
    """A sample's events (the m low bits, B, anything above the low bits), and their probabilities' first bits."""

    chances: tuple[Chance, ...]
    heads: NDArray[np.uint32]


@lru_cache(maxsize=64)
def _events(rate: Fraction) -> _Events:
    low_bits = 0
    while rate * 2**low_bits < _LAST_EXPONENT:
        low_bits += 1
    bits = [Chance(rate * 2**i, 1) for i in range(low_bits)]
    chances = (*bits, Chance(rate, 1), Chance(rate * 2**low_bits, 0))
    return _Events(chances, np.array([chance.first_bits(HEAD_BITS) for chance in chances], dtype=np.uint32))


def sample(rate: Fraction, count: int, key: bytes) -> NDArray[np.int64]:
    """Return `count` independent samples of P(x) ∝ e^(-rate |x|) from 32 secret bytes.

    The first samples do not depend on `count`. Raises `UsageError` for a key of another length.
    """
    chances, heads = _events(rate)
    stream = Stream(key)
    samples = np.empty(count, dtype=np.int64)
    for part, words in stream.rows(count, len(chances), np.uint32):
        happened = words < heads
        above = np.zeros(len(words), dtype=np.uint64)
        unsettled = words == heads
        unsettled[:, -1] |= happened[:, -1]
        for row, event in np.argwhere(unsettled).tolist():
            further = stream.further(part.start + row, event)
            if words[row, event] == heads[event]:
                happened[row, event] = chances[event].decides(further, int(heads[event]), HEAD_BITS)
            if event == len(chances) - 1 and happened[row, event]:
                above[row] = 1 + chances[event].run(further)
        samples[part] = _assemble(happened, above)
    return samples


def _assemble(happened: NDArray[np.bool_], above: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Assemble x from its parts; -1 - G is G with all bits inverted."""
    low_bits = happened.shape[1] - 2
    low = np.zeros((len(happened), 8), dtype=np.uint8)
    packed = np.packbits(happened[:, :low_bits], axis=1, bitorder="little")
    low[:, : packed.shape[1]] = packed
    magnitude = low.view("<u8")[:, 0] + (above << np.uint64(low_bits))
    signed: NDArray[np.int64] = magnitude.astype(np.uint64).view(np.int64) ^ -happened[:, low_bits].astype(np.int64)
    return signed
