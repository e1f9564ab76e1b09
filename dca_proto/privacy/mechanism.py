"""Noise mechanisms, by the name that an announcement carries.

An actor is constructed with the mechanism that it offers for secure sums and node releases; it refuses any other name.
A device offers only the distributed discrete Gaussian. For LDP reports (DESIGN §5.2) every actor offers the four *local
mechanisms* of `dca_proto.privacy.local`. Configuration files can choose among these four only.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dca_proto.privacy import accounting
from dca_proto.privacy.noise import discrete_gaussian

ANALYTIC_GAUSSIAN, GRID_LAPLACE = "analytic-gaussian", "grid-laplace"
RANDOMISED_RESPONSE, UNARY_ENCODING = "randomised-response", "unary-encoding"
LOCAL_MECHANISMS = (ANALYTIC_GAUSSIAN, GRID_LAPLACE, RANDOMISED_RESPONSE, UNARY_ENCODING)
"""Names of the mechanisms for report rounds."""
PURE_MECHANISMS = (GRID_LAPLACE, RANDOMISED_RESPONSE, UNARY_ENCODING)
"""The ε-private mechanisms; their δ is 0."""


class Mechanism(Protocol):
    """The interface that actors need of a noise mechanism."""

    @property
    def name(self) -> str:
        """Name on the wire."""

    @property
    def private(self) -> bool:
        """True if an epsilon may be claimed for a sum made with this mechanism."""

    def share_variance(self, sensitivity: float, mu: float, honest: int, dimension: int) -> int:
        """Return S, the variance of one client's share in squared grid units, so that `honest` shares give `mu`."""

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        """Return one client's noise, shape ``(dimension,)``, in grid units, from a fresh secret key of 32 bytes."""


class DistributedDiscreteGaussian:
    """Exact discrete Gaussian shares N_Z(0, S) whose sum makes the release private (DCA, Theorem 1)."""

    name = "distributed-discrete-gaussian"
    private = True

    def share_variance(self, sensitivity: float, mu: float, honest: int, dimension: int) -> int:
        return accounting.share_variance(sensitivity, mu, honest, dimension)

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        return discrete_gaussian(variance).sample(dimension, key)
