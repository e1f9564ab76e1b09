"""A job over mosquitto with TLS whose Compute nodes are killed with SIGKILL goes on without them (DESIGN §4.8)."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_actors import WIDE, Actors, federation
from patience import PATIENCE_S

from dca_proto.aggregate import Job, NoisyAggregate, RoundRequest
from dca_proto.jobs.job import JobTerms
from dca_proto.jobs.journal import Journal, journal_path
from dca_proto.jobs.runner import FinishedRequest, learn
from dca_proto.protocol.facts import Announced, RoundCompleted
from dca_proto.runtime import device
from dca_proto.runtime.broker import Broker, BrokerOptions, TlsFiles, launch_broker
from dca_proto.runtime.config import read_config
from dca_proto.runtime.spending import read_ledger_view
from dca_proto.runtime.status import ask_status

CLIENTS, COMPUTES, P = 6, 4, 1
Plan = list[list[int]]
"""The numbers of the nodes that are killed in the midst of each round."""
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

    def start_again(self, name: str) -> None:
        """Start a killed node, and wait until it is connected."""
        self.start(name)
        store, until_s = read_config(self._folder / f"{name}.toml").files.store, time.monotonic() + PATIENCE_S
        while (found := ask_status(store)) is None or not found.connected:
            assert time.monotonic() < until_s, f"{name} does not start"
            time.sleep(0.1)


@pytest.fixture
def secure_broker(mosquitto_installed: None, authority: Path, tmp_path: Path) -> Iterator[Broker]:
    tls = TlsFiles(authority / "ca.pem", authority / "broker.pem", authority / "broker.key")
    with asyncio.Runner() as loop:
        launched = launch_broker(tmp_path / "broker", BrokerOptions(kind="mosquitto", tls=tls))
        yield loop.run(launched.__aenter__())
        loop.run(launched.__aexit__(None, None, None))


def one_sum() -> Job[NoisyAggregate]:
    return (yield RoundRequest("sum", PARAMETERS, budget_share=1.0))


def several_sums(rounds: int) -> Job[list[NoisyAggregate]]:
    """A job of several rounds."""
    aggregates = []
    for _ in range(rounds):
        aggregates.append((yield RoundRequest("sum", PARAMETERS, budget_share=1 / rounds)))  # noqa: PERF401
    return aggregates


class Story:
    """The facts of a job, whose next announcement is the moment to kill some nodes."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.doomed: list[str] = []
        self.announced = 0
        self.kill_at: dict[int, list[str]] = {}
        """The nodes that die at an announcement, by its number."""
        self.waits_s: list[float] = []
        self._lost_at: float | None = None

    def __call__(self, fact: object) -> None:
        match fact:
            case Announced() if self._is_due():
                self._lost_at = time.monotonic()
                for name in self.doomed:
                    self._nodes.kill(name)
                self.doomed = []
            case RoundCompleted() if self._lost_at is not None:
                self.waits_s.append(time.monotonic() - self._lost_at)
                self._lost_at = None

    def _is_due(self) -> bool:
        self.announced += 1
        self.doomed = self.doomed or self.kill_at.get(self.announced, [])
        return bool(self.doomed)


def played(folder: Path, plan: Plan, *, restarts: bool) -> tuple[list[NoisyAggregate], Story]:
    """Run a job for each round of the plan; with `restarts`, killed nodes are back before the next one."""
    trainer = device.load(folder / "trainer.toml")
    computes = tuple(member.id for member in trainer.config.federation.computes)
    terms = JobTerms(epsilon=6.0, delta=1e-6, clients=CLIENTS, tolerate=0, computes=computes)
    with Nodes(folder) as nodes, Actors(folder, "client-*"):
        story, results = Story(nodes), []

        async def play() -> None:
            async with asyncio.timeout(PATIENCE_S * len(plan)), trainer.live(story) as live:
                for numbers in plan:
                    names = [f"compute-{number}" for number in numbers]
                    story.doomed = [*names]
                    results.append(await learn(one_sum(), live, terms))
                    for name in names if restarts else ():
                        await asyncio.to_thread(nodes.start_again, name)

        asyncio.run(play())
        return results, story


def secured_federation(folder: Path, broker: Broker, authority: Path) -> Path:
    """Make everybody's files, with TLS."""
    data = [f"x\n{index / 8}\n" for index in range(CLIENTS)]
    account = "[account]\nepsilon = 60\n"
    federation(folder, broker.url, data, computes=COMPUTES, colluding=P, policy=WIDE, trainer=account)
    for path in folder.glob("*.toml"):
        trusting = f'[broker]\nca = "{authority / "ca.pem"}"\n'
        path.write_text(path.read_text().replace("[broker]\n", trusting))
    return folder


def check_result(one: NoisyAggregate, killed: set[str]) -> None:
    """False alarm: noise beyond six standard deviations, 2e-9."""
    assert one.contributors == CLIENTS
    assert abs(float(one.value[0]) - sum(index / 8 for index in range(CLIENTS))) < 6 * one.noise_variance**0.5
    assert len(one.quorum.nodes) > one.quorum.p == P
    assert killed <= {gone.node for gone in one.quorum.lost} - {*one.quorum.nodes}


def check_ledgers(folder: Path, results: int) -> None:
    """Each client bears one charge a result."""
    for path in sorted(folder.glob("client-*.toml")):
        charges = read_ledger_view(path).ledger.charges
        assert sum(not charge.returned for charge in charges) == results


@pytest.mark.long
@pytest.mark.parametrize(
    ("plan", "restarts"),
    [
        ([[], [1], [], []], False),
        ([[], [1, 4], [], []], False),
        ([[], [1], [2], [3], [4], []], True),
    ],
    ids=["one", "two at once", "all in turn"],
)
def test_killed_nodes_cost_a_wait_and_no_charge(
    plan: Plan, restarts: bool, secure_broker: Broker, authority: Path, tmp_path: Path
) -> None:
    """Results are right and name their nodes and the lost ones, and each client pays once for each of them."""
    folder = secured_federation(tmp_path / "federation", secure_broker, authority)
    results, story = played(folder, plan, restarts=restarts)
    for one, killed in zip(results, plan, strict=True):
        check_result(one, {f"compute-{number}" for number in killed})
    check_ledgers(folder, len(plan))
    print(f"waits: median {statistics.median(story.waits_s):.1f} s, worst {max(story.waits_s):.1f} s")
    assert max(story.waits_s) < PATIENCE_S


@pytest.mark.long
def test_a_job_of_several_rounds_goes_on_when_a_node_is_killed_and_comes_back(
    secure_broker: Broker, authority: Path, tmp_path: Path
) -> None:
    """One journal, six rounds: compute-1 is killed in the second; it starts again; compute-4 is killed in the sixth.

    Announcement 3 repeats the second round, so the sixth is announcement 7.
    """
    folder = secured_federation(tmp_path / "federation", secure_broker, authority)
    trainer = device.load(folder / "trainer.toml")
    computes = tuple(member.id for member in trainer.config.federation.computes)
    terms = JobTerms(epsilon=36.0, delta=1e-6, clients=CLIENTS, tolerate=0, computes=computes)
    returned: list[threading.Thread] = []
    with Nodes(folder) as nodes, Actors(folder, "client-*"):
        story = Story(nodes)
        story.kill_at = {2: ["compute-1"], 7: ["compute-4"]}

        def after(ended: FinishedRequest) -> None:
            if ended.number == 3:
                returned.append(threading.Thread(target=nodes.start_again, args=("compute-1",)))
                returned[0].start()

        async def play() -> list[NoisyAggregate]:
            async with asyncio.timeout(4 * PATIENCE_S), trainer.live(story) as live:
                with Journal(journal_path(trainer.config.files.store, "sums"), {"job": "sums"}) as journal:
                    return await learn(several_sums(6), live, terms, journal, on_round=after)

        results = asyncio.run(play())
        returned[0].join()
    for number, one in enumerate(results, 1):
        check_result(one, {2: {"compute-1"}, 6: {"compute-4"}}.get(number, set()))
    assert "compute-1" not in results[2].quorum.nodes, "it is still down"
    check_ledgers(folder, 6)
    charged = read_ledger_view(folder / "trainer.toml").ledger.charges
    assert (len(charged), sum(not one.returned for one in charged)) == (8, 6)
