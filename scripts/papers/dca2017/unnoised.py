"""Rounds whose regression has no noise: what is left then is the cost of the projection ("proj NP" in the figures)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from emulator.inexact import RoundedGaussian
from inference.models.linear.aggregate_stats import STATISTIC as REGRESSION
from inference.rounds import Rounds


class Silent(RoundedGaussian):
    """The emulation's noise with its size told and nothing added."""

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        return np.zeros(dimension, dtype=np.int64)


class Unnoised:
    """The rounds of a swarm, but regressions without noise: not private, and said to have none.

    Args:
        noisy: answers all else. silent: rounds of the same rows, made with `Silent`.
    """

    def __init__(self, noisy: Rounds, silent: Rounds) -> None:
        self._noisy, self._silent = noisy, silent

    def hold(self, request: RoundRequest) -> NoisyAggregate:
        """One round."""
        if request.statistic != REGRESSION:
            return self._noisy.hold(request)
        return replace(self._silent.hold(request), noise_variance=0.0)
