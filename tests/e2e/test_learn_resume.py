"""A job whose trainer is killed with SIGKILL, again and again, over a real broker; the last process finishes it.

The column's sum over everybody and over two batches, of half of the clients each: three rounds, two for each client.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from live_actors import WIDE, Actors, federation
from patience import PATIENCE_S

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import UsageError
from dca_proto.jobs.job import JobTerms
from dca_proto.jobs.journal import Journal, journal_path
from dca_proto.jobs.sync import TrainerRounds
from dca_proto.runtime import device
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.spending import read_ledger_view
from inference.rounds import Job, run

CLIENTS = 6
SETTINGS = {"job": "sums"}
PARAMETERS = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}
KILLS = ("Announced 1", "Closed 2")
"""At which fact, the how manyeth of its kind, each process ends itself: in the first round, and in the second."""


def sums() -> Job[list[NoisyAggregate]]:
    aggregates = []
    for batch in (0, CLIENTS // 2, CLIENTS // 2):
        aggregates.append((yield RoundRequest("sum", PARAMETERS, budget_share=0.3, batch=batch)))  # noqa: PERF401
    return aggregates


def terms_of(trainer: device.Device) -> JobTerms:
    computes = tuple(member.id for member in trainer.config.federation.computes)
    return JobTerms(epsilon=60.0, delta=1e-5, clients=CLIENTS, tolerate=0, computes=computes)


def process(file: Path, kind: str, count: int) -> None:
    """What a process does that is killed: `python test_learn_resume.py trainer.toml FACT COUNT`."""
    import signal

    from dca_proto.jobs.runner import learn

    seen: Counter[str] = Counter()

    def note(fact: object) -> None:
        seen[type(fact).__name__] += 1
        if seen[kind] == count:
            os.kill(os.getpid(), signal.SIGKILL)

    async def play() -> None:
        trainer = device.load(file)
        with Journal(journal_path(trainer.config.files.store, "sums"), SETTINGS) as journal:
            async with trainer.live(note) as live:
                await learn(sums(), live, terms_of(trainer), journal)

    asyncio.run(play())


@pytest.fixture
def folder(embedded_broker: Broker, tmp_path: Path) -> Path:
    """A federation's files."""
    data = [f"x\n{index / 8}\n" for index in range(1, CLIENTS + 1)]
    federation(tmp_path, embedded_broker.url, data, policy=WIDE, trainer="[account]\nepsilon = 60\n")
    return tmp_path


@pytest.mark.long
def test_a_job_survives_kill_9_at_every_stage_without_a_double_charge(folder: Path) -> None:
    file = folder / "trainer.toml"
    trainer = device.load(file)
    path = journal_path(trainer.config.files.store, "sums")
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # the helpers beside this folder
    with Actors(folder):
        for kill in KILLS:
            call = [sys.executable, __file__, str(file), *kill.split()]
            killed = subprocess.run(call, check=False, timeout=PATIENCE_S, env=own)
            assert killed.returncode == -9, kill
        with Journal(path, SETTINGS) as journal, TrainerRounds(file, terms_of(trainer), journal) as rounds:
            with pytest.raises(UsageError, match="in use by process"), TrainerRounds(file, terms_of(trainer)):
                raise AssertionError("what the thread's start raises is raised here")
            whole, first, second = run(sums(), rounds)
    with pytest.raises(UsageError, match="inside `with TrainerRounds"):
        rounds.run_round(RoundRequest("sum", PARAMETERS))
    assert (whole.contributors, first.contributors, second.contributors) == (6, 3, 3)
    noise = (whole.noise_variance + first.noise_variance + second.noise_variance) ** 0.5
    # false alarm: three noises beyond 7 standard deviations, below 1e-11
    assert abs(float(whole.value[0] - first.value[0] - second.value[0])) < 7 * noise
    clients = [read_ledger_view(folder / f"client-{index}.toml") for index in range(1, CLIENTS + 1)]
    assert [len(client.ledger.charges) for client in clients] == [2] * CLIENTS
    assert [len(charge.clients) for charge in read_ledger_view(file).ledger.charges] == [0, 3, 3]


if __name__ == "__main__":
    process(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
