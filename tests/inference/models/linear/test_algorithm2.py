"""Algorithm 2 over the real protocol, both of its rounds by production actors, against the ideal functionality."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import ks_2samp

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.play import play
from dca_proto.testing import TestFederation, seeded
from emulator.ideal import IdealSwarm, noisy_sum
from inference.bounds import Interval
from inference.models.coefficients import Coefficients
from inference.models.linear.job import regression_with_projection
from inference.problem import Schema
from inference.rounds import Rounds, run

CLIENTS, COMPUTES, BY_PROTOCOL, BY_IDEAL = 6, 2, 30, 150
NOW_MS = 1_700_000_000_000
SCHEMA = Schema(("x",), "y", {"x": Interval(-4, 4), "y": Interval(0, 100)})
ROWS = np.array([[-2.0, 20.0], [-1.0, 45.0], [0.0, 50.0], [0.5, 41.0], [1.5, 70.0], [3.0, 85.0]])


class Recording(DistributedDiscreteGaussian):
    """The production mechanism, which also remembers what its noise was drawn from."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        self.keys.append(key)
        return super().sample(variance, dimension, key)


class Protocol:
    """Rounds of production actors, which stay the same from round to round."""

    def __init__(self, actors: TestFederation) -> None:
        self._random = seeded(f"rounds of {actors.federation.name}")
        self._terms = terms(actors)
        self._trainer = actors.trainer()
        self._computes = [actors.compute(index) for index in range(COMPUTES)]
        self._clients = [actors.client(index) for index in range(CLIENTS)]

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        opened = self._terms.open(request, self._random(16))
        return play(self._trainer, self._computes, self._clients, opened, NOW_MS)


class Replayed:
    """The ideal functionality with the noise that a protocol drew, round by round."""

    def __init__(self, actors: TestFederation, keys: Sequence[bytes]) -> None:
        self._actors, self._keys, self._random = actors, list(keys), seeded("replayed")

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        keys, self._keys = self._keys[:CLIENTS], self._keys[CLIENTS:]
        opened = terms(self._actors).open(request, self._random(16))
        return noisy_sum(opened, self._actors.rows, self._actors.columns, frozenset(), keys=keys)


def actors_of(name: str, mechanism: DistributedDiscreteGaussian | None = None) -> TestFederation:
    rows = [row[None] for row in ROWS]
    return TestFederation(CLIENTS, COMPUTES, columns=SCHEMA.columns, rows=rows, name=name, mechanism=mechanism)


def terms(actors: TestFederation) -> JobTerms:
    return JobTerms(epsilon=4.0, delta=1e-6, clients=CLIENTS, tolerate=1, computes=actors.computes)


def fit(rounds: Rounds) -> Coefficients:
    return run(regression_with_projection(SCHEMA), rounds)


def test_with_the_protocols_noise_the_ideal_functionality_gives_the_same_in_every_bit() -> None:
    mechanism = Recording()
    actors = actors_of("algorithm-2", mechanism)
    protocol = fit(Protocol(actors))
    assert len(mechanism.keys) == 2 * CLIENTS
    ideal = fit(Replayed(actors, mechanism.keys))
    for field in ("mean", "cov", "residual_variance", "columns.scale", "columns.centre"):
        values = []
        for result in (protocol, ideal):
            value: object = result
            for name in field.split("."):
                value = getattr(value, name)
            values.append(np.asarray(value).tobytes())
        assert values[0] == values[1], field
    assert protocol.private
    assert ideal.private


@pytest.mark.long
def test_the_regression_has_the_same_law() -> None:
    """Slope, its standard deviation and the intercept of 30 seeded runs of the protocol and 150 of the ideal one,
    by two-sample Kolmogorov and Smirnov at 1e-3 each: false alarms below 3e-3 under other seeds, and none
    on these."""

    def figures(rounds: Rounds) -> list[float]:
        result = fit(rounds)
        return [result.coefficients[0], result.coefficient_sd[0], result.intercept]

    protocol = np.array([figures(Protocol(actors_of(f"law-{index}"))) for index in range(BY_PROTOCOL)])
    random = seeded("law")
    ideal = np.array(
        [figures(IdealSwarm(ROWS, SCHEMA.columns, terms(actors_of("law")), random=random)) for _ in range(BY_IDEAL)]
    )
    assert len(set(protocol[:, 0])) == BY_PROTOCOL
    for ours, theirs in zip(protocol.T, ideal.T, strict=True):
        assert ks_2samp(ours, theirs).pvalue > 1e-3
