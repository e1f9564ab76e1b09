"""The analytic Gaussian mechanism on the grid: a vector of integers plus one client's discrete Gaussian noise."""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.privacy import accounting
from dca_proto.privacy.accounting import check_mu
from dca_proto.privacy.local.additive import Additive
from dca_proto.privacy.mechanism import ANALYTIC_GAUSSIAN
from dca_proto.privacy.noise import discrete_gaussian
from dca_proto.statistics.sensitivity import REPLACE_ONE_CLIENT, Sensitivity


class AnalyticGaussian(Additive, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report is the client's vector plus independent discrete Gaussian noise N_Z(0, S) in each coordinate.

    (ε, δ)-locally private: S is that of one honest share (`accounting.share_variance` with `honest` = 1), calibrated by
    the exact formula of Balle and Wang (2018), theorem 8 (definition 2.3 of the LDP paper), and enlarged for the grid
    as proved at the head of `privacy.accounting`. The whole (ε, δ) curve is that of Gaussian differential privacy with
    `mu`, so several reports of a client compose by μ² = Σ μ_r².

    Attributes:
        epsilon, delta: ε and δ. dimension: d.
        sensitivity: how far replacing a client's data moves its vector, and the box that this stands in.
        mu: the Gaussian differential privacy parameter of a report; 0 is given for all that ε and δ allow.

    Raises:
        UsageError: an argument out of range, another neighbouring relation, or a noise too small for the grid.
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
        """S, of the noise in each coordinate, in grid units squared."""
        return accounting.share_variance(self.sensitivity.l2, self.mu, 1, self.dimension)

    @property
    def noise_scale(self) -> float:
        """√S, in grid units."""
        return math.sqrt(self.noise_variance)

    def noise(self, count: int, key: bytes) -> NDArray[np.int64]:
        """So many independent samples of N_Z(0, S), from 32 secret bytes."""
        return discrete_gaussian(self.noise_variance).sample(count, key)
