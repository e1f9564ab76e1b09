"""A swarm in memory whose trainer tests start and kill, and small jobs for it; shared by the tests of learning."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from memory_broker import MemoryBroker, MemoryTransport
from virtual_time import LoopClock, run

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import NoAggregate
from dca_proto.jobs.job import JobTerms
from dca_proto.jobs.journal import Entry, Failed, Journal, Opened, Summed
from dca_proto.jobs.runner import learn
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.effects import Channel, Write
from dca_proto.protocol.facts import Announced, Dropped
from dca_proto.protocol.policy import BudgetLimit
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Contribution
from dca_proto.protocol.wire.topics import subscriptions
from dca_proto.runtime.live import LiveTrainer
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.store import MemoryStore
from dca_proto.testing import NoNoise, TestFederation

CLIENTS, COMPUTES = 4, 2
SETTINGS = {"job": "means", "rounds": 3}
PARAMETERS = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}
ROWS = [np.array([[(index + 1) / 16]]) for index in range(CLIENTS)]
WHOLE = 10 / 16
TERMS = {"epsilon", "delta", "commit_s"}


class Killed(Exception):  # noqa: N818 - what ends a process in these tests
    """A simulated power failure."""


class Power:
    """A power supply that fails at the nth point that a run passes; 0 for never."""

    def __init__(self, fails_at: int = 0) -> None:
        self.passed = 0
        self._fails_at = fails_at

    def point(self) -> None:
        self.passed += 1
        if self.passed == self._fails_at:
            raise Killed


class PoweredStore(MemoryStore):
    """The store of a process that is killed before or after a transaction."""

    power = Power()

    async def commit(self, writes: Sequence[Write]) -> None:
        self.power.point()
        await super().commit(writes)
        self.power.point()


class PoweredJournal(Journal):
    """The journal of a process that is killed before, after or while it writes an entry."""

    def __init__(self, path: Path, settings: dict[str, Any], power: Power) -> None:
        self._power = power
        super().__init__(path, settings)

    def append(self, entry: Entry) -> None:
        self._power.point()
        super().append(entry)
        try:
            self._power.point()
        except Killed:
            self._file.truncate(self._end - 7)
            raise
        self._power.point()


class Muted(MemoryTransport):
    """A transport that loses messages of one type while it is muted."""

    is_muted = False
    loses: type = Contribution

    async def publish(self, topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None) -> None:
        if not (self.is_muted and isinstance(decode_frame(payload), self.loses)):
            await super().publish(topic, payload, retain, expires_s)


class Swarm:
    """Clients and Compute nodes that stay up, and a trainer that tests start and kill.

    Args:
        account: the trainer's. actors: by default, with `ROWS` and without noise.
        loses: the type of message that a muted swarm loses.
        broker: may have other swarms.

    Attributes:
        dropped: the messages that any of its actors dropped.
        running: the tasks of the clients and Compute nodes, by id; a test cancels one to lose it.
    """

    def __init__(
        self,
        account: BudgetLimit | None = None,
        actors: TestFederation | None = None,
        loses: type = Contribution,
        broker: MemoryBroker | None = None,
    ) -> None:
        self.actors = actors or TestFederation(CLIENTS, COMPUTES, rows=ROWS, mechanism=NoNoise())
        self.store = PoweredStore()
        self.account = account
        self.announced: list[bytes] = []
        self.dropped: list[Dropped] = []
        self.running: dict[bytes, asyncio.Task[None]] = {}
        self._broker = broker or MemoryBroker()
        self._clock = LoopClock()
        self.clients = [self.actors.client(index) for index in range(len(self.actors.clients))]
        self._nodes = [self.actors.compute(index) for index in range(len(self.actors.computes))]
        self._ways: list[Muted] = []
        self._is_muted: Callable[[], bool] = lambda: False
        self._loses = loses

    def way(self, role: Channel, actor_id: bytes) -> Muted:
        return Muted(self._broker, actor_id.hex(), subscriptions(self.actors.federation.id, role, actor_id))

    def mute(self, is_muted: Callable[[], bool]) -> None:
        """Lose messages while `is_muted` returns True; it is called at every announcement of a round."""
        self._is_muted = is_muted
        self._hush()

    def _hush(self) -> None:
        for way in self._ways:
            way.is_muted, way.loses = self._is_muted(), self._loses

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        self._ways = [self.way(Channel.CLIENT, one.id) for one in self.clients]
        self._hush()
        members: list[tuple[Actor, Muted]] = [*zip(self.clients, self._ways, strict=True)]
        members += [(one, self.way(Channel.COMPUTE, one.id)) for one in self._nodes]
        common: Any = {"federation": self.actors.federation.id, "clock": self._clock, "on_report": self._note}
        runners = [Runner(one, way, MemoryStore(), **common) for one, way in members]
        tasks = [asyncio.create_task(runner.run()) for runner in runners]
        self.running = dict(zip((one.id for one, _ in members), tasks, strict=True))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    @contextlib.asynccontextmanager
    async def trainer(self, power: Power | None = None) -> AsyncIterator[LiveTrainer]:
        """Start one process of the trainer from its store."""
        self.store.power = power or Power()
        actors = self.actors
        records = self.store.load()
        parts = actors._common(records, "trainer")
        actor = Trainer(actors.trainer_identity, actors.federation, account=self.account, roll_call=True, **parts)
        way = self.way(Channel.TRAINER, actor.id)
        async with LiveTrainer(
            actor, way, self.store, federation=actors.federation.id, on_report=self._note, clock=self._clock
        ) as live:
            yield live

    def _note(self, fact: object) -> None:
        if isinstance(fact, Dropped):
            self.dropped.append(fact)
        if isinstance(fact, Announced):
            self.announced.append(fact.round_id)
            self._hush()

    def charges(self) -> list[int]:
        """Return the number of charged rounds of each client."""
        return [len([one for one in client.ledger.charges if not one.returned]) for client in self.clients]

    def terms(self, **changes: Any) -> JobTerms:
        plain = {
            "epsilon": 4.0,
            "delta": 1e-6,
            "clients": len(self.clients),
            "tolerate": 0,
            "computes": self.actors.computes,
        }
        return JobTerms(**{**plain, **changes})


class LoadedTrainer:
    """A substitute for the device of a trainer's file; its swarm runs in the same event loop while the trainer does."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm

    @contextlib.asynccontextmanager
    async def live(self, on_report: object) -> AsyncIterator[LiveTrainer]:
        async with self._swarm.up(), self._swarm.trainer() as trainer:
            yield trainer


def ask(batch: int = 0, share: float = 0.1) -> RoundRequest:
    return RoundRequest("sum", PARAMETERS, budget_share=share, batch=batch)


def means(*batches: int) -> Generator[RoundRequest, NoisyAggregate, list[float]]:
    """A job that sums the column over all clients, then over batches."""
    sums = []
    for batch in batches:
        aggregate = yield ask(batch)
        sums.append(float(aggregate.value[0]))
    return sums


def modest(*batches: int) -> Generator[RoundRequest, NoisyAggregate, tuple[list[float], str]]:
    """The same job, which accepts fewer rounds."""
    sums: list[float] = []
    try:
        for batch in batches:
            aggregate = yield ask(batch)
            sums.append(float(aggregate.value[0]))
    except NoAggregate as ended:
        return sums, ended.reason
    return sums, ""


def rounds_in(path: Path) -> list[tuple[Opened, Summed | Failed | None]]:
    """Return all rounds of a journal."""
    with Journal(path, SETTINGS) as journal:
        return [attempt for number in range(1, 20) for attempt in journal.recall(number).attempts]


def job_of(
    swarm: Swarm,
    path: Path,
    job: Callable[[], Generator[RoundRequest, NoisyAggregate, Any]],
    kind: type[Journal] = Journal,
    **changes: Any,
) -> Any:
    """Run a job in a new trainer process, with changed terms or arguments of `learn`; return its result."""
    terms = swarm.terms(**{key: changes.pop(key) for key in TERMS & changes.keys()})

    async def story() -> Any:
        with kind(path, SETTINGS) as journal:
            async with swarm.up(), swarm.trainer() as trainer:
                return await learn(job(), trainer, terms, journal, **changes)

    return run(story())
