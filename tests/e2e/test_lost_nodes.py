"""A job over mosquitto whose Compute nodes are killed with SIGKILL: it goes on without them (DESIGN §4.8)."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from live_actors import WIDE, Actors, federation
from patience import PATIENCE_S

from dca_proto.aggregate import Job, NoisyAggregate, RoundRequest
from dca_proto.jobs.job import JobTerms
from dca_proto.jobs.runner import learn
from dca_proto.protocol.facts import Announced, NodesSilent, RoundCompleted, RoundFailed
from dca_proto.runtime import device
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.spending import read_ledger_view

CLIENTS, COMPUTES = 6, 4
PARAMETERS = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}


class Nodes:
    """The Compute nodes of a folder, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Nodes:
        for number in range(1, COMPUTES + 1):
            self.start(f"compute-{number}")
        return self

    def __exit__(self, *failure: object) -> None:
        for name in list(self._running):
            self.kill(name)

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "dca_proto", str(self._folder / f"{name}.toml")]
        self._running[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()


def sums(rounds: int) -> Job[list[NoisyAggregate]]:
    aggregates = []
    for _ in range(rounds):
        aggregates.append((yield RoundRequest("sum", PARAMETERS, budget_share=1 / rounds)))  # noqa: PERF401
    return aggregates


class Story:
    """A job's facts, during which nodes are killed and started: `steps` are done after that many announcements."""

    def __init__(self, nodes: Nodes, steps: dict[int, list[tuple[str, str]]]) -> None:
        self._nodes, self._steps = nodes, steps
        self.announced, self.failed = 0, 0
        self.silent: list[NodesSilent] = []
        self.waits_s: list[float] = []
        self._lost_at: float | None = None

    def __call__(self, fact: object) -> None:
        match fact:
            case Announced():
                self.announced += 1
                for what, name in self._steps.pop(self.announced, []):
                    self._do(what, name)
            case NodesSilent():
                self.silent.append(fact)
            case RoundFailed():
                self.failed += 1
            case RoundCompleted() if self._lost_at is not None and self.failed:
                self.waits_s.append(time.monotonic() - self._lost_at)
                self._lost_at = None

    def _do(self, what: str, names: str) -> None:
        for name in names.split():
            if what == "kill":
                self._nodes.kill(name)
                self._lost_at = self._lost_at or time.monotonic()
            else:
                self._nodes.start(name)


def played(folder: Path, steps: dict[int, list[tuple[str, str]]], rounds: int) -> tuple[list[NoisyAggregate], Story]:
    trainer = device.load(folder / "trainer.toml")
    computes = tuple(member.id for member in trainer.config.federation.computes)
    terms = JobTerms(epsilon=60.0, delta=1e-5, clients=CLIENTS, tolerate=0, computes=computes)
    with Nodes(folder) as nodes, Actors(folder, "client-*"):
        story = Story(nodes, steps)

        async def play() -> list[NoisyAggregate]:
            async with asyncio.timeout(PATIENCE_S * rounds), trainer.live(story) as live:
                return await learn(sums(rounds), live, terms)

        return asyncio.run(play()), story


@pytest.mark.long
@pytest.mark.parametrize(
    ("steps", "lost"),
    [
        ({2: [("kill", "compute-1")]}, 1),
        ({2: [("kill", "compute-1 compute-4")]}, 1),
        ({2: [("kill", "compute-1")], 4: [("kill", "compute-3")]}, 2),
        ({2: [("kill", "compute-1")], 4: [("start", "compute-1")], 5: [("kill", "compute-2")],
          7: [("start", "compute-2")], 8: [("kill", "compute-3")]}, 3),
    ],
    ids=["one", "two at once", "two", "in turn"],
)  # fmt: skip
def test_killed_nodes_cost_a_wait_and_no_charge(
    steps: dict[int, list[tuple[str, str]]], lost: int, mosquitto_broker: Broker, tmp_path: Path
) -> None:
    """Results are right, and each client pays once for each of them."""
    folder, rounds = tmp_path / "federation", 8 if lost == 3 else 5
    data = [f"x\n{index / 8}\n" for index in range(CLIENTS)]
    url = mosquitto_broker.url
    federation(folder, url, data, computes=COMPUTES, colluding=1, policy=WIDE, trainer="[account]\nepsilon = 60\n")
    results, story = played(folder, steps, rounds)
    whole = sum(index / 8 for index in range(CLIENTS))
    for one in results:
        assert one.contributors == CLIENTS
        assert abs(float(one.value[0]) - whole) < 6 * one.noise_variance**0.5
    assert story.failed <= lost, "at most one burnt round for each loss"
    for path in sorted(folder.glob("client-*.toml")):
        charges = read_ledger_view(path).ledger.charges
        assert sum(not charge.returned for charge in charges) == rounds
    print(f"waits: median {statistics.median(story.waits_s):.1f} s, worst {max(story.waits_s):.1f} s")
    assert max(story.waits_s) < PATIENCE_S
