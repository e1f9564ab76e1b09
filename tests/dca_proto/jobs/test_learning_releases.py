"""A job of node releases at a live trainer: killed anywhere it goes on; what a failed round has cost, it keeps.

Real actors over a broker in memory, as in `test_learning`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from memory_swarm import (
    CLIENTS,
    COMPUTES,
    PARAMETERS,
    SETTINGS,
    Killed,
    Power,
    PoweredJournal,
    Swarm,
    job_of,
    rounds_in,
)
from virtual_time import run

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import RoundAborted, UsageError
from dca_proto.jobs.journal import Failed, Journal, Summed, journal_path
from dca_proto.jobs.runner import JobRounds, learn
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.protocol.wire.messages import Sealed
from dca_proto.testing import NoNoise, TestFederation

ROWS = [np.array([[(index + 1) / 16]] * (index + 2)) for index in range(CLIENTS)]
SUMS = [(index + 2) * (index + 1) / 16 for index in range(CLIENTS)]
Releases = list[list[float]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_path(tmp_path / "trainer.db", "means")


def nodes(mechanism: Any = None) -> Swarm:
    """Data nodes of two to five rows."""
    policy = Policy(rows_of_many=True, epsilon_per_round_max=20, epsilon_per_period_max=40)
    actors = TestFederation(CLIENTS, COMPUTES, rows=ROWS, policy=policy, mechanism=mechanism or NoNoise())
    return Swarm(actors=actors, loses=Sealed)


def ask(batch: int = 0, share: float = 0.1) -> RoundRequest:
    return RoundRequest("sum", PARAMETERS, budget_share=share, rows_max=10, batch=batch, kind=NodeRelease())


def releases(*batches: int, share: float = 0.1) -> Generator[RoundRequest, NoisyAggregate, Releases]:
    """A job that gathers what all data nodes release, and then batches of them."""
    released = []
    for batch in batches:
        aggregate = yield ask(batch, share)
        assert aggregate.value.tolist() == [sum(float(node.value[0]) for node in aggregate.nodes)]
        released.append(sorted(float(node.value[0]) for node in aggregate.nodes))
    return released


async def play(swarm: Swarm, path: Path, power: Power | None = None) -> Releases:
    """A process of the trainer that runs the job from its beginning, or goes on with it."""
    power = power or Power()
    with contextlib.ExitStack() as stack:
        journal = stack.enter_context(PoweredJournal(path, SETTINGS, power))
        async with swarm.trainer(power) as trainer:
            return await learn(releases(0, 2), trainer, swarm.terms(), journal)


@pytest.mark.long
def test_a_job_of_node_releases_killed_anywhere_continues_without_a_double_charge(tmp_path: Path) -> None:
    """Before, while and after each entry is written, and before and after each of the trainer's transactions."""
    for point in range(1, 200):
        path, swarm, power = tmp_path / f"{point}.journal", nodes(), Power(point)

        async def story(path: Path = path, swarm: Swarm = swarm, power: Power = power) -> Releases:
            async with swarm.up():
                try:
                    return await play(swarm, path, power)
                except Killed:
                    return await play(swarm, path)

        whole, batch = run(story())
        assert whole == SUMS
        assert len(batch) == 2
        assert sorted(swarm.charges()) == [1, 1, 2, 2]
        assert [type(end) for _, end in rounds_in(path)] == [Summed] * 2
        table = [msgspec.msgpack.decode(one.value) for one in swarm.store.load() if one.table == LEDGER]
        assert sorted(len(one["clients"]) for one in table) == [0, 2]
        if power.passed < point:
            break
    assert 20 < point < 199, "all points of the job"


def test_a_round_without_any_release_keeps_its_charge_and_is_repeated(path: Path) -> None:
    """The data nodes received the announcement, and paid; their releases were lost. So both rounds count."""
    swarm = nodes()
    swarm.mute(lambda: len(swarm.announced) < 2)

    async def story() -> tuple[Releases, float]:
        with Journal(path, SETTINGS) as journal:
            async with swarm.up(), swarm.trainer() as trainer:
                rounds = JobRounds(trainer, swarm.terms(), journal)
                aggregate = await rounds.run_round(ask())
                return [[float(node.value[0]) for node in aggregate.nodes]], rounds.spent.mu

    released, spent = run(story())
    assert sorted(released[0]) == SUMS
    assert spent == pytest.approx(0.2**0.5 * swarm.terms().budget.mu)
    (first, lost), (second, end) = rounds_in(path)
    assert isinstance(lost, Failed)
    assert lost.charged
    assert lost.reason.startswith("no data node released anything; 0 declined; clients may have released")
    assert isinstance(end, Summed)
    assert first.round.round_id != second.round.round_id
    assert swarm.charges() == [2] * CLIENTS


def test_a_failed_round_that_spent_the_whole_budget_is_not_repeated() -> None:
    swarm = nodes()
    swarm.mute(lambda: True)

    async def story() -> None:
        async with swarm.up(), swarm.trainer() as trainer:
            await learn(releases(0, share=1.0), trainer, swarm.terms())

    why = "no data node released anything; .* the job's budget has no room for the round: failed rounds"
    with pytest.raises(RoundAborted, match=why) as caught:
        run(story())
    assert caught.value.remedy.startswith("start the job again, at a new cost, with another journal, or drop")
    assert len(swarm.announced) == 1
    assert swarm.charges() == [1] * CLIENTS


# The journal


def test_each_data_nodes_release_is_recalled_to_the_last_bit(path: Path) -> None:
    """With its noise, and as arrays and not as what they were written as."""
    swarm = nodes(DistributedDiscreteGaussian())

    def keep() -> Generator[RoundRequest, NoisyAggregate, NoisyAggregate]:
        return (yield ask())

    fresh, recalled = (job_of(swarm, path, keep) for _ in range(2))
    assert len(swarm.announced) == 1
    assert len(fresh.nodes) == len(recalled.nodes) == CLIENTS
    for one, other in zip((fresh, *fresh.nodes), (recalled, *recalled.nodes), strict=True):
        for field in dataclasses.fields(NoisyAggregate):
            if field.name not in ("value", "nodes"):
                assert getattr(one, field.name) == getattr(other, field.name), field.name
        assert one.value.tobytes() == other.value.tobytes()
    assert {node.noise_variance for node in recalled.nodes} == {fresh.noise_variance / CLIENTS}


def test_a_job_that_asks_for_a_sum_where_it_had_node_releases_is_refused(path: Path) -> None:
    swarm = nodes()
    job_of(swarm, path, lambda: releases(0))

    def other() -> Generator[RoundRequest, NoisyAggregate, None]:
        yield RoundRequest("sum", PARAMETERS, budget_share=0.1, rows_max=10)

    with pytest.raises(UsageError, match="has another kind than in the journal"):
        job_of(swarm, path, other)
