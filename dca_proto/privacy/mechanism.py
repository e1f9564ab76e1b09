"""Noise mechanisms, by the name that an announcement carries.

An actor is constructed with the mechanism that it offers for sums, and for what data nodes release; any other name is
refused. A device offers the distributed discrete Gaussian and nothing else there. For reports (DESIGN §5.2) every actor
offers the four *local mechanisms* of `dca_proto.privacy.local`. All that a file can choose among are these four.
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
"""The names of the mechanisms of report rounds."""
PURE_MECHANISMS = (GRID_LAPLACE, RANDOMISED_RESPONSE, UNARY_ENCODING)
"""Those of them that are ε-private; their δ is 0."""


class Mechanism(Protocol):
    """What actors need of a noise mechanism."""

    @property
    def name(self) -> str:
        """The name on the wire."""

    @property
    def private(self) -> bool:
        """Whether an epsilon may be claimed for a sum made with it."""

    def share_variance(self, sensitivity: float, mu: float, honest: int, dimension: int) -> int:
        """S: variance of one client's share, in squared grid units, so that `honest` shares give `mu`."""

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        """One client's noise, shape ``(dimension,)``, in grid units, from a fresh secret key of 32 bytes."""


class DistributedDiscreteGaussian:
    """Exact discrete Gaussian shares N_Z(0, S) whose sum makes the release private (DCA, Theorem 1)."""

    name = "distributed-discrete-gaussian"
    private = True

    def share_variance(self, sensitivity: float, mu: float, honest: int, dimension: int) -> int:
        return accounting.share_variance(sensitivity, mu, honest, dimension)

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        return discrete_gaussian(variance).sample(dimension, key)
