"""Rounds of the ideal functionality: the protocol's encoding and the exact variance of its noise.

In Figure 2 the noise is drawn as rounded normals, so that runs of one seed share it: a trusted aggregator's and a
distributed run's differ by the factor √(N/(N - T - 1)) alone. Input perturbation is Theorem 1 at T = N - 2, where
everybody's own noise is enough for the whole sum. Without noise in the regression, what is left is the cost of the
projection ("proj NP" in the figures).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
Hold = Callable[[RoundRequest, Budget], NoisyAggregate]
"""Holds one round at a budget of its own."""


class Silent(RoundedGaussian):
    """The emulation's noise with its size stated and nothing added."""

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        return np.zeros(dimension, dtype=np.int64)


@dataclass(frozen=True)
class Unnoised:
    """The rounds of a swarm, but regressions are those of the `silent` one: not private, and marked as such."""

    noisy: Rounds
    silent: Rounds

    def hold(self, request: RoundRequest) -> NoisyAggregate:
        if request.statistic != REGRESSION:
            return self.noisy.hold(request)
        return replace(self.silent.hold(request), noise_variance=0.0)


def rounds_of(train: Problem, budget: Budget, mode: str, random: Random, mechanism: Mechanism, computes: int) -> Rounds:
    """Those of everybody who holds a row.

    Args:
        mode: one of the four above. random: the bytes that the noise comes from. computes: how many Compute nodes.
    """
    n, columns = len(train.y), train.schema.columns
    ids = tuple(bytes([index + 1]) * 16 for index in range(computes))
    terms = JobTerms(budget=budget, clients=n, tolerated=n - 2 if mode == PERTURBED else 0, computes=ids)

    def of(mechanism: Mechanism) -> IdealSwarm:
        return IdealSwarm(train.rows, columns, terms, random=random, mechanism=mechanism, trusted=mode == TRUSTED)

    return Unnoised(of(mechanism), of(Silent())) if mode == UNNOISED else of(mechanism)


def swarm(
    train: Problem, budget: Budget, mode: str, seed: int, name: str, mechanism: RoundedGaussian | None = None
) -> Rounds:
    """Those of Figure 2, whose noise comes from the stream of that name; by default the emulation's."""
    return rounds_of(train, budget, mode, stream(seed, name).bytes, mechanism or RoundedGaussian(), 2)


def round_by_round(train: Problem, mode: str, seed: int, name: str) -> Hold:
    """Rounds that each have a budget of their own, and noise from the stream of their statistic's name."""
    return lambda request, budget: swarm(train, budget, mode, seed, f"{name}/{request.statistic}").hold(request)
