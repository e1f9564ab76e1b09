"""Rounds of the ideal functionality: the protocol's encoding and the exact variance of its noise.

Figure 2 draws the noise as rounded normals, so that runs with one seed share it: a trusted aggregator's run and a
distributed one differ only by the factor √(N/(N - T - 1)). Input perturbation is Theorem 1 at T = N - 2, where each
client's noise suffices for the whole sum. The regression without noise shows the cost of the projection alone ("proj
NP" in the figures).
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
"""Runs one round with its own budget."""


class Silent(RoundedGaussian):
    """A mechanism that states the emulation's noise variance but adds no noise."""

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        return np.zeros(dimension, dtype=np.int64)


@dataclass(frozen=True)
class Unnoised:
    """Rounds of the `noisy` swarm, with regressions by the `silent` one: not private, and marked as such."""

    noisy: Rounds
    silent: Rounds

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        if request.statistic != REGRESSION:
            return self.noisy.run_round(request)
        return replace(self.silent.run_round(request), noise_variance=0.0)


def rounds_of(train: Problem, budget: Budget, mode: str, random: Random, mechanism: Mechanism, computes: int) -> Rounds:
    """Return the rounds of one client per row.

    Args:
        mode: one of the four above. random: the source of the noise. computes: the number of Compute nodes.
    """
    n, columns = len(train.y), train.schema.columns
    ids = tuple(bytes([index + 1]) * 16 for index in range(computes))
    terms = JobTerms(
        epsilon=budget.epsilon, delta=budget.delta, clients=n, tolerate=n - 2 if mode == PERTURBED else 0, computes=ids
    )

    def of(mechanism: Mechanism) -> IdealSwarm:
        return IdealSwarm(train.rows, columns, terms, random=random, mechanism=mechanism, trusted=mode == TRUSTED)

    return Unnoised(of(mechanism), of(Silent())) if mode == UNNOISED else of(mechanism)


def swarm(
    train: Problem, budget: Budget, mode: str, seed: int, name: str, mechanism: RoundedGaussian | None = None
) -> Rounds:
    """Return rounds of Figure 2, with noise from the named stream; by default the emulation's rounded normals."""
    return rounds_of(train, budget, mode, stream(seed, name).bytes, mechanism or RoundedGaussian(), 2)


def round_by_round(train: Problem, mode: str, seed: int, name: str) -> Hold:
    """Return a function that runs each round with its own budget, and noise from a stream named by its statistic."""
    return lambda request, budget: swarm(train, budget, mode, seed, f"{name}/{request.statistic}").run_round(request)
