"""Rounds of the ideal functionality: the protocol's encoding and the exact variance of its noise.

In Figure 2 the noise is drawn as rounded normals, so that runs of one seed share it: a trusted aggregator's and a
distributed run's differ by the factor √(N/(N - T - 1)) alone. Input perturbation is Theorem 1 at T = N - 2, where
everybody's own noise is enough for the whole sum. Without noise in the regression, what is left is the cost of the
projection ("proj NP" in the figures).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.crypto.sealing import Random
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.mechanism import Mechanism
from emulator.ideal import IdealSwarm
from emulator.inexact import RoundedGaussian
from inference.models.linear.aggregate_stats import STATISTIC as REGRESSION
from inference.problem import Problem, stream
from inference.rounds import Rounds

TRUSTED, DISTRIBUTED, PERTURBED = "trusted aggregator", "distributed", "input perturbation"
UNNOISED = "distributed, the regression without noise"


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


def rounds_of(train: Problem, budget: Budget, mode: str, random: Random, mechanism: Mechanism, computes: int) -> Rounds:
    """Everybody who holds a row.

    Args:
        mode: one of the four above. random: the bytes that the noise comes from. computes: how many Compute nodes.
    """
    n, columns = len(train.y), train.schema.columns
    ids = tuple(bytes([index + 1]) * 16 for index in range(computes))
    terms = JobTerms(budget=budget, clients=n, tolerated=n - 2 if mode == PERTURBED else 0, computes=ids)

    def held(mechanism: Mechanism) -> IdealSwarm:
        return IdealSwarm(train.rows, columns, terms, random=random, mechanism=mechanism, trusted=mode == TRUSTED)

    return Unnoised(held(mechanism), held(Silent())) if mode == UNNOISED else held(mechanism)


def swarm(
    train: Problem, budget: Budget, mode: str, seed: int, name: str, mechanism: RoundedGaussian | None = None
) -> Rounds:
    """Those of Figure 2, whose noise comes from the stream of that name; by default the emulation's."""
    return rounds_of(train, budget, mode, stream(seed, name).bytes, mechanism or RoundedGaussian(), 2)


class RoundByRound:
    """Rounds that each have a budget of their own."""

    def __init__(self, train: Problem, mode: str, seed: int, name: str) -> None:
        self._train, self._mode, self._seed, self._name = train, mode, seed, name

    def hold(self, request: RoundRequest, budget: Budget) -> NoisyAggregate:
        """One round; its noise comes from the stream of its statistic's name."""
        name = f"{self._name}/{request.statistic}"
        return swarm(self._train, budget, self._mode, self._seed, name).hold(request)
