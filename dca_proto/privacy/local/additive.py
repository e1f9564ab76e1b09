"""What the additive local mechanisms have in common: values are vectors on the grid, reports are these plus noise.

On the wire a report is a vector of the ring of integers modulo 2^64, as a data node's release is. It does not wrap: a
contribution stays below 2^53, and noise of S <= 2^80 or Δ1/ε < 2^53 leaves ±2^62 with a probability below 2^-1000.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.aggregate import LocalReports
from dca_proto.crypto.fixedpoint import from_ring, ring_from_bytes, ring_to_bytes, to_ring
from dca_proto.privacy.local.estimate import LocalEstimate, additive
from dca_proto.privacy.local.values import integers, within
from dca_proto.statistics.sensitivity import Sensitivity


class Additive:
    """Base of a mechanism that adds independent noise to each coordinate of a vector in grid units.

    What is abstract mypy checks: a struct's metaclass is not that of abstract classes.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """On the wire."""

    @property
    @abstractmethod
    def epsilon(self) -> float:
        """ε of each report."""

    @property
    @abstractmethod
    def delta(self) -> float:
        """δ of each report."""

    @property
    @abstractmethod
    def sensitivity(self) -> Sensitivity:
        """How far replacing a client's data moves its vector, and the box that this stands in."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """d."""

    @property
    @abstractmethod
    def noise_variance(self) -> float:
        """Of the noise in each coordinate of one report, in grid units squared."""

    @property
    @abstractmethod
    def noise_scale(self) -> float:
        """σ of Gaussian noise, b of Laplace noise, in grid units."""

    @abstractmethod
    def noise(self, count: int, key: bytes) -> NDArray[np.int64]:
        """So many independent samples, from 32 secret bytes."""

    def to_inputs(self, contributions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The contributions themselves, shape ``(n, dimension)``."""
        return contributions

    def randomise(self, values: ArrayLike, key: bytes) -> NDArray[np.int64]:
        """One report for each client.

        Args:
            values: vectors in grid units, shape ``(n, dimension)``, clipped so that the sensitivity is true of them.
            key: 32 fresh secret bytes, for this call alone.

        Returns:
            Vectors in grid units, shape ``(n, dimension)``.

        Raises:
            UsageError: values of another kind or outside the box (it does not say which), or a wrong key.
        """
        bound = self.sensitivity.bound
        held = within("values", integers("values", values, self.dimension), -bound, bound, "clip them first")
        return held + self.noise(held.size, key).reshape(held.shape)

    def encode(self, report: NDArray[np.int64]) -> bytes:
        """8 bytes a coordinate, little-endian, modulo 2^64."""
        return ring_to_bytes(to_ring(np.ascontiguousarray(report)))

    def decode(self, data: bytes) -> NDArray[np.int64]:
        """Inverse of `encode`, shape ``(dimension,)``. Raises `PeerError` for another length."""
        return from_ring(ring_from_bytes(data, self.dimension))

    def estimate(self, reports: ArrayLike) -> LocalEstimate:
        """The mean of the clients' vectors, in grid units. Raises `UsageError` where a report cannot be one."""
        return additive(reports, self.dimension, self.noise_variance)

    def variance_in_sum(self, unit: float) -> float:
        """Exactly that of one report's noise, in squared units of the statistic, `unit` of which are a grid unit."""
        return self.noise_variance * unit**2

    def summed(self, reports: NDArray[np.int64], unit: float) -> NDArray[np.float64]:
        """The sum of the reports, in the statistic's units, shape ``(dimension,)``."""
        total: NDArray[np.float64] = (reports.astype(np.float64) * unit).sum(axis=0)
        return total

    def decode_reports(self, reports: NDArray[np.int64], unit: float) -> LocalReports:
        """The reports in the statistic's units."""
        return LocalReports(
            values=reports.astype(np.float64) * unit,
            mechanism=self.name,
            epsilon=self.epsilon,
            delta=self.delta,
            noise_scale=self.noise_scale * unit,
        )
