"""Noise mechanisms, by the name that an announcement carries.

An actor is constructed with the mechanism that it offers for sums, and for what data nodes release; any other name is
refused. A device offers the distributed discrete Gaussian and nothing else there. For reports (DESIGN §5.2) every actor
offers the four *local mechanisms* of `dca_proto.privacy.local`. All that a file can choose among are these four.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.privacy import accounting
from dca_proto.privacy.noise import discrete_gaussian

if TYPE_CHECKING:  # what is loaded with the first report round
    from dca_proto.aggregate import LocalReports
    from dca_proto.privacy.local.values import LocalEstimate

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


class LocalMechanism(Protocol):
    """A local randomiser (Kasiviswanathan et al. 2008): each client's report is private by itself.

    It works on *values*, one for each client, which `to_inputs` makes of contributions. Only the values and the key are
    secret. Its fields are its parameters.
    """

    @property
    def name(self) -> str:
        """The name on the wire."""

    @property
    def epsilon(self) -> float:
        """ε of each single report."""

    @property
    def delta(self) -> float:
        """δ of each single report; 0 where the mechanism is purely ε-private."""

    def to_inputs(self, contributions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The values of clients whose contributions, in grid units, are the rows of an ``(n, dimension)`` table."""

    def randomise(self, values: ArrayLike, key: bytes) -> NDArray[Any]:
        """One report for each of the values, from 32 fresh secret bytes for this call alone."""

    def encode(self, report: NDArray[Any]) -> bytes:
        """One report on the wire: of the same length, whatever it says."""

    def decode(self, data: bytes) -> NDArray[Any]:
        """Inverse of `encode`. Raises `PeerError` for bytes that encode no report."""

    def estimate(self, reports: ArrayLike) -> LocalEstimate:
        """What the reports say together of the mean of the values."""

    def variance_in_sum(self, unit: float) -> float:
        """What one report's noise adds to the variance of each coordinate of `summed`, at most."""

    def summed(self, reports: NDArray[Any], unit: float) -> NDArray[np.float64]:
        """The sum over the clients of what they hold, estimated from their reports; unbiased, in the statistic's units.

        Args:
            reports: one or more. unit: the size of a grid unit in the statistic's units, here and below.
        """

    def decode_reports(self, reports: NDArray[Any], unit: float) -> LocalReports:
        """Reports with all that is known of how they were made."""
