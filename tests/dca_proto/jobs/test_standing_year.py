"""A daily schedule over a year in virtual time, with processes killed and the broker restarted at random."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from memory_broker import MemoryBroker
from memory_swarm import ROWS, Muted, Swarm
from standing_work import Year
from virtual_time import run

from dca_proto.privacy.cost import total
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.params import Timing
from dca_proto.protocol.policy import BudgetLimit
from dca_proto.protocol.wire.topics import subscriptions
from dca_proto.results.series import DONE, FAILED, MISSED
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.store import MemoryStore
from dca_proto.testing import NoNoise, TestFederation

DAYS, CLIENTS, COMPUTES = 365, 5, 3


class Outages(MemoryBroker):
    """A broker that is down at times, and forgets what it kept when it comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.is_up = asyncio.Event()
        self.is_up.set()

    async def restart(self, down_s: float) -> None:
        self.is_up.clear()
        await asyncio.sleep(down_s)
        self._retained.clear()
        for session in self._sessions.values():
            session.waiting.clear()
        self.is_up.set()


class Slow(Muted):
    """A transport with delays, which waits while the broker is down."""

    rng = random.Random(0)

    async def publish(self, topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None) -> None:
        await asyncio.sleep(self.rng.uniform(0.05, 1.5))
        broker = self._broker
        assert isinstance(broker, Outages)
        await broker.is_up.wait()
        if self._open:
            await super().publish(topic, payload, retain, expires_s)


class Lives:
    """The clients and nodes of a swarm, each with a store, that a test kills and starts again."""

    def __init__(self, swarm: Swarm, broker: Outages) -> None:
        self.swarm, self.broker = swarm, broker
        builds: dict[bytes, tuple[Channel, Callable[..., Actor]]] = {}
        for index, client in enumerate(swarm.actors.clients):
            builds[client] = Channel.CLIENT, functools.partial(swarm.actors.client, index)
        for index, node in enumerate(swarm.actors.computes):
            builds[node] = Channel.COMPUTE, functools.partial(swarm.actors.compute, index)
        self._builds = builds
        self._stores = {member: MemoryStore() for member in builds}
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self.actors: dict[bytes, Any] = {}

    def start(self, member: bytes) -> None:
        role, build = self._builds[member]
        store = self._stores[member]
        actor = self.actors[member] = build(store.load())
        federation = self.swarm.actors.federation.id
        way = Slow(self.broker, member.hex(), subscriptions(federation, role, member))
        runner = Runner(actor, way, store, federation=federation, clock=self.swarm._clock)
        self._tasks[member] = asyncio.create_task(runner.run())

    async def kill(self, member: bytes) -> None:
        self._tasks[member].cancel()
        await asyncio.wait([self._tasks[member]])

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        for member in self._builds:
            self.start(member)
        try:
            yield
        finally:
            for member in self._builds:
                await self.kill(member)


class World:
    """A year, and who is killed when."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        actors = TestFederation(
            CLIENTS,
            COMPUTES,
            rows=[*ROWS, ROWS[0]],
            mechanism=NoNoise(),
            timing=Timing(epoch_publish_ms=3_600_000),
            colluding=1,
            name=f"year-{seed}",
        )
        self.broker = Outages()
        self.swarm = Swarm(BudgetLimit(epsilon=4.0, delta=1e-6), actors, broker=self.broker)
        self.swarm.way = lambda role, member: Slow(  # type: ignore[method-assign]
            self.broker, member.hex(), subscriptions(actors.federation.id, role, member)
        )
        self.year = Year(self.swarm, folder, days=DAYS)
        self.lives = Lives(self.swarm, self.broker)
        self.killed = dict.fromkeys(("schedule", "node", "client", "broker"), 0)
        self.process: asyncio.Task[None] | None = None

    def down_s(self) -> float:
        """How long something is down: mostly seconds or minutes, at times most of a day."""
        return min(self.rng.lognormvariate(4.5, 2.2), 20 * 3600)

    async def keep_running(self) -> None:
        """Run the schedule; whenever its process was killed, start it again after a while."""
        while True:
            self.process = asyncio.create_task(self._process())
            await asyncio.wait([self.process])
            if not self.process.cancelled():
                self.process.result()
                return
            await asyncio.sleep(self.down_s())

    async def _process(self) -> None:
        async with self.swarm.trainer() as trainer:
            await self.year.process(trainer)

    async def strike(self) -> None:
        """Kill something around most slots."""
        for slot in self.year.made().slots:
            if self.rng.random() < 0.35:
                continue
            at_ms = slot.at_ms + 1000 * self.rng.uniform(-60, 25)
            await asyncio.sleep(max(0, at_ms - self.year.now_ms()) / 1000)
            what = self.rng.choice(list(self.killed))
            self.killed[what] += 1
            if what == "schedule":
                if self.process is not None:
                    self.process.cancel()
            elif what == "broker":
                await self.broker.restart(min(self.down_s(), 3600))
            else:
                actors = self.swarm.actors
                member = self.rng.choice(actors.computes if what == "node" else actors.clients)
                await self.lives.kill(member)
                await asyncio.sleep(min(self.down_s(), 9 * 3600))
                self.lives.start(member)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_a_year_of_days_is_complete_but_for_stated_gaps_and_costs_what_was_planned(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    year = world.year

    async def story() -> None:
        year.made()
        async with world.lives.up():
            striking = asyncio.create_task(world.strike())
            await world.keep_running()
            striking.cancel()

    run(story(), (DAYS + 3) * 86_400)
    slots = year.slots()
    assert [one.at_ms for one in slots] == [one.at_ms for one in year.made().slots], "each day has one row"
    states = [one.state for one in slots]
    assert set(states) <= {DONE, FAILED, MISSED}
    assert states.count(DONE) > 0.8 * DAYS
    assert min(world.killed.values()) > DAYS // 20
    whole = [round(16 * float(rows[0, 0])) for rows in world.swarm.actors.rows]
    for one in slots:
        if one.state != DONE:
            assert one.reason, "a gap is stated"
            continue
        assert one.result is not None
        found, count = one.result.estimates[0].estimate, one.result.contributors
        assert found is not None
        assert count is not None
        left_out = sum(whole) - round(16 * found)
        assert (count == CLIENTS) == (left_out == 0), "the value is the exact sum of those who contributed"
        assert left_out == 0 or left_out in whole
    kept = [one for one in slots if one.charged]
    each = year.made().cost
    account = world.swarm.actors.trainer(world.swarm.store.load()).ledger
    assert account.spent().gaussian == pytest.approx((states.count(DONE) + len(kept)) * each.gaussian, rel=1e-9)
    assert total([each] * DAYS).within(year.budget.epsilon, year.budget.delta)
    for client in world.swarm.actors.clients:
        charged = world.lives.actors[client].ledger.spent().gaussian / each.gaussian
        assert charged <= states.count(DONE) + len(kept) + 1e-6, "nobody paid for more than the account"
