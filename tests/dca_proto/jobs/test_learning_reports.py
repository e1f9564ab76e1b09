"""A job of LDP reports at a live trainer: killed anywhere it goes on, and what clients reported is recalled.

Real actors over a broker in memory, as in `test_learning`.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from memory_swarm import CLIENTS, PARAMETERS, SETTINGS, Killed, Power, PoweredJournal, Swarm, job_of, rounds_in
from virtual_time import run

from dca_proto.aggregate import LocalReports, NoisyAggregate, RoundRequest
from dca_proto.errors import RoundAborted, UsageError
from dca_proto.jobs.journal import Journal, Summed, _checksum, journal_path
from dca_proto.jobs.runner import JobRounds, learn
from dca_proto.privacy.mechanism import (
    ANALYTIC_GAUSSIAN,
    GRID_LAPLACE,
    LOCAL_MECHANISMS,
    RANDOMISED_RESPONSE,
    UNARY_ENCODING,
)
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.kinds import LdpReport
from dca_proto.protocol.wire.messages import Sealed
from dca_proto.testing import TestFederation

EDGES = {"columns": ["x"], "edges": [-0.5, 0.5, 1.5, 2.5]}
ReportedValues = list[list[list[float]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_path(tmp_path / "trainer.db", "means")


def reporters() -> Swarm:
    """Clients without any Compute node that takes part."""
    rows = [np.array([[index % 3.0]]) for index in range(CLIENTS)]
    policy = Policy(epsilon_per_round_max=4, epsilon_per_period_max=8)
    return Swarm(actors=TestFederation(CLIENTS, 2, rows=rows, policy=policy), loses=Sealed)


def ldp_request(mechanism: str, batch: int = 0, share: float = 0.25) -> RoundRequest:
    if mechanism in (RANDOMISED_RESPONSE, UNARY_ENCODING):
        return RoundRequest("histogram", EDGES, share, rows_max=1, batch=batch, kind=LdpReport(mechanism))
    return RoundRequest("sum", PARAMETERS, share, batch=batch, kind=LdpReport(mechanism))


def reports_of(aggregate: NoisyAggregate) -> LocalReports:
    assert aggregate.reports is not None
    return aggregate.reports


def gathering(*batches: int) -> Generator[RoundRequest, NoisyAggregate, ReportedValues]:
    """A job that gathers reports of everybody, and then of batches."""
    values = []
    for batch in batches:
        aggregate = yield ldp_request(GRID_LAPLACE, batch)
        values.append(reports_of(aggregate).values.tolist())
    return values


def test_a_job_of_reports_killed_anywhere_continues_without_a_double_charge(tmp_path: Path) -> None:
    """At every second point: before, while and after each entry is written, and around the trainer's transactions."""
    for point in range(1, 200, 2):
        path, swarm, power = tmp_path / f"{point}.journal", reporters(), Power(point)

        async def play(power: Power, path: Path = path, swarm: Swarm = swarm) -> ReportedValues:
            with contextlib.ExitStack() as stack:
                journal = stack.enter_context(PoweredJournal(path, SETTINGS, power))
                async with swarm.trainer(power) as trainer:
                    return await learn(gathering(0, 2), trainer, swarm.terms(), journal)

        async def story(power: Power = power, swarm: Swarm = swarm, play: Any = play) -> ReportedValues:
            async with swarm.up():
                try:
                    return await play(power)
                except Killed:
                    return await play(Power())

        whole, batch = run(story())
        assert (len(whole), len(batch)) == (CLIENTS, 2)
        assert sorted(swarm.charges()) == [1, 1, 2, 2]
        kept = [end.aggregate for _, end in rounds_in(path) if isinstance(end, Summed)]
        assert [reports_of(aggregate).values.tolist() for aggregate in kept] == [whole, batch]
        table = [msgspec.msgpack.decode(one.value) for one in swarm.store.load() if one.table == LEDGER]
        assert [one["epsilon"] for one in table] == pytest.approx([1.0, 1.0], rel=1e-5)
        if power.passed < point:
            break
    assert 20 < point < 199, "all points of the job"


@pytest.mark.parametrize("mechanism", LOCAL_MECHANISMS)
def test_each_clients_report_is_recalled_to_the_last_bit(path: Path, mechanism: str) -> None:
    """Vectors, categories and bits, with their types and shapes."""
    swarm = reporters()

    def keep() -> Generator[RoundRequest, NoisyAggregate, NoisyAggregate]:
        return (yield ldp_request(mechanism))

    fresh, recalled = (job_of(swarm, path, keep) for _ in range(2))
    assert len(swarm.announced) == 1
    for field in dataclasses.fields(NoisyAggregate):
        if field.name not in ("value", "reports"):
            assert getattr(fresh, field.name) == getattr(recalled, field.name), field.name
    assert fresh.value.tobytes() == recalled.value.tobytes()
    one, other = reports_of(fresh), reports_of(recalled)
    assert (one.values.dtype, one.values.shape) == (other.values.dtype, other.values.shape)
    assert one.values.tobytes() == other.values.tobytes()
    for field in dataclasses.fields(LocalReports):
        if field.name != "values":
            assert getattr(one, field.name) == getattr(other, field.name), field.name


def test_a_job_divides_epsilon_among_pure_reports_and_ends_when_it_is_spent() -> None:
    """Half of epsilon 2, twice; a third round has no room, though as Gaussian shares of mu² it would have."""
    swarm = reporters()

    async def story() -> list[tuple[float, float]]:
        spent = []
        async with swarm.up(), swarm.trainer() as trainer:
            rounds = JobRounds(trainer, swarm.terms(epsilon=2.0, delta=1e-6), None)
            for _ in range(2):
                await rounds.run_round(ldp_request(UNARY_ENCODING, share=0.5))
                spent.append((rounds.spent.pure, rounds.spent.gaussian))
            with pytest.raises(RoundAborted, match="the job's budget has no room for the round"):
                await rounds.run_round(ldp_request(UNARY_ENCODING, share=0.1))
        return spent

    assert run(story()) == [(pytest.approx(1.0, rel=1e-5), 0.0), (pytest.approx(2.0, rel=1e-5), 0.0)]
    assert swarm.charges() == [2] * CLIENTS


def test_a_job_with_another_mechanism_than_its_journal_is_refused(path: Path) -> None:
    swarm = reporters()
    job_of(swarm, path, lambda: gathering(0))

    def other() -> Generator[RoundRequest, NoisyAggregate, None]:
        yield ldp_request(ANALYTIC_GAUSSIAN)

    with pytest.raises(UsageError, match="has another kind, epsilon, delta, mu than in the journal"):
        job_of(swarm, path, other)


def test_a_journals_array_of_another_type_is_damage(path: Path) -> None:
    """A whole line with a right checksum, which this program did not write."""
    swarm = reporters()
    job_of(swarm, path, lambda: gathering(0))
    lines = path.read_bytes().splitlines()
    entry = msgspec.msgpack.decode(base64.b64decode(lines[-1].split(b" ")[1]))
    entry["aggregate"]["reports"]["values"][0] = "|O"
    body = msgspec.msgpack.encode(entry)
    checksum = _checksum(bytes.fromhex(lines[-2].split(b" ")[0].decode()), body)
    path.write_bytes(b"\n".join([*lines[:-1], checksum.hex().encode() + b" " + base64.b64encode(body), b""]))
    with pytest.raises(UsageError, match="is damaged: line 3 cannot be read"):
        Journal(path, SETTINGS)
