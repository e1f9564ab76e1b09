"""Rounds of the ideal functionality for Figure 2: the protocol's encoding and the exact variance of its noise.

The noise is drawn as rounded normals, so that runs of one seed share it: a trusted aggregator's and a distributed run's
differ by the factor √(N/(N - T - 1)) alone. Input perturbation is Theorem 1 at T = N - 2, where everybody's own noise
is enough for the whole sum. Without noise in the regression, what is left is the cost of the projection.
"""

from __future__ import annotations

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.learning.job import JobTerms
from dca_proto.privacy.budget import Budget
from emulator.ideal import IdealSwarm
from emulator.inexact import RoundedGaussian
from inference.problem import Problem, stream
from inference.rounds import Rounds
from papers.dca2017.unnoised import Silent, Unnoised

TRUSTED, DISTRIBUTED, PERTURBED = "trusted aggregator", "distributed", "input perturbation"
UNNOISED = "distributed, the regression without noise"
_COMPUTES = (bytes([1]) * 16, bytes([2]) * 16)


def swarm(
    train: Problem, budget: Budget, mode: str, seed: int, name: str, mechanism: RoundedGaussian | None = None
) -> Rounds:
    """Everybody who holds a row.

    Args:
        mode: one of the four above. seed, name: of the random stream that the noise comes from.
        mechanism: of the noise; None: the emulation's.
    """
    n = len(train.y)
    tolerated = n - 2 if mode == PERTURBED else 0
    terms = JobTerms(budget=budget, clients=n, tolerated=tolerated, computes=_COMPUTES)

    def held(mechanism: RoundedGaussian) -> IdealSwarm:
        random = stream(seed, name).bytes
        rows, columns, trusted = train.rows, train.schema.columns, mode == TRUSTED
        return IdealSwarm(rows, columns, terms, random=random, mechanism=mechanism, trusted=trusted)

    noisy = held(mechanism or RoundedGaussian())
    return Unnoised(noisy, held(Silent())) if mode == UNNOISED else noisy


class RoundByRound:
    """Rounds that each have a budget of their own."""

    def __init__(self, train: Problem, mode: str, seed: int, name: str) -> None:
        self._train, self._mode, self._seed, self._name = train, mode, seed, name

    def hold(self, request: RoundRequest, budget: Budget) -> NoisyAggregate:
        """One round; its noise comes from the stream of its statistic's name."""
        name = f"{self._name}/{request.statistic}"
        return swarm(self._train, budget, self._mode, self._seed, name).hold(request)
