"""The analytic Gaussian mechanism on the grid: a vector of integers plus one client's discrete Gaussian noise."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.core import accounting
from dca_proto.core.noise import discrete_gaussian
from dca_proto.local.estimate import LocalEstimate, additive
from dca_proto.local.values import integers, within
from dca_proto.statistics.sensitivity import REPLACE_ONE_CLIENT, Sensitivity


class AnalyticGaussian(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report is the client's vector plus independent discrete Gaussian noise N_Z(0, S) in each coordinate.

    (ε, δ)-locally private: S is that of one honest share (`accounting.share_variance` with `honest` = 1), calibrated by
    the exact formula of Balle and Wang (2018), theorem 8 (definition 2.3 of the LDP paper), and enlarged for the grid
    as proved at the head of `core.accounting`. The whole (ε, δ) curve is that of Gaussian differential privacy with
    `mu`, so several reports of a client compose by μ² = Σ μ_r².

    Attributes:
        epsilon, delta: ε and δ. dimension: d.
        sensitivity: how far replacing a client's data moves its vector, and the box that this stands in.

    Raises:
        UsageError: an argument out of range, another neighbouring relation, or a noise too small for the grid.
    """

    epsilon: float
    delta: float
    sensitivity: Sensitivity
    dimension: int = 1
    name: ClassVar[str] = "analytic-gaussian"

    def __post_init__(self) -> None:
        self.sensitivity.require(REPLACE_ONE_CLIENT)
        discrete_gaussian(self.noise_variance)

    @property
    def mu(self) -> float:
        """The Gaussian differential privacy parameter of a report."""
        return accounting.mu_of(self.epsilon, self.delta)

    @property
    def noise_variance(self) -> int:
        """S, of the noise in each coordinate, in grid units squared."""
        return accounting.share_variance(self.sensitivity.l2, self.mu, 1, self.dimension)

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
        noise = discrete_gaussian(self.noise_variance).sample(held.size, key)
        return held + noise.reshape(held.shape)

    def estimate(self, reports: ArrayLike) -> LocalEstimate:
        """The mean of the clients' vectors, in grid units. Raises `UsageError` where a report cannot be one."""
        return additive(reports, self.dimension, float(self.noise_variance))
