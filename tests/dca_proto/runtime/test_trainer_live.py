"""A trainer in a process: what its caller receives, and when.

Everyone runs over a broker in memory, in virtual time; what must come later waits for what it must follow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from failing_rounds import AccountedFederation
from memory_broker import MemoryBroker, MemoryTransport
from round_helpers import begin, body_of
from virtual_time import LoopClock, run, started_ms

from dca_proto.errors import RoundAborted, UsageError
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.effects import Channel, Persist, Write
from dca_proto.protocol.facts import Announced, ChargeReturned, RoundCompleted, RoundFailed
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.policy import BudgetError, BudgetLimit
from dca_proto.protocol.trainer.round import ROUNDS, StoredTrainerRound
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Abort, Contribution
from dca_proto.protocol.wire.topics import subscriptions
from dca_proto.runtime.live import LiveTrainer
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.store import MemoryStore
from dca_proto.testing import Envelope, Network, NoNoise

ONE_ROUND = BudgetLimit(epsilon=1.2, delta=1e-6)
MINUTE_MS = 60_000
FEDERATION = bytes(32)
COMMON: Any = {"federation": FEDERATION, "clock": LoopClock()}


class Mute(MemoryTransport):
    """Loses its actor's contributions, and keeps back its aborts until what they must follow."""

    after: asyncio.Event | None = None

    async def publish(self, topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None) -> None:
        if isinstance(decode_frame(payload), Contribution):
            return
        if "/abort/" in topic and self.after is not None:
            await self.after.wait()
        await super().publish(topic, payload, retain)


class TrainersStore(MemoryStore):
    """Signals when a round is stored as failed."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = asyncio.Event()

    async def commit(self, writes: Sequence[Write]) -> None:
        await super().commit(writes)
        rounds = [one.value for one in writes if isinstance(one, Persist) and one.table == ROUNDS]
        if any(msgspec.msgpack.decode(value, type=StoredTrainerRound).phase == "failed" for value in rounds):
            self.failed.set()


def transport(broker: MemoryBroker, role: Channel, actor_id: bytes) -> Mute:
    return Mute(broker, actor_id.hex(), subscriptions(FEDERATION, role, actor_id))


@contextlib.asynccontextmanager
async def running(*members: tuple[Actor, Mute]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(Runner(one, way, MemoryStore(), **COMMON).run()) for one, way in members]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def charges(store: MemoryStore) -> list[tuple[int, bool]]:
    stored = [msgspec.msgpack.decode(one.value, type=Charge) for one in store.load() if one.table == LEDGER]
    return [(charge.number, charge.returned) for charge in stored]


def test_a_live_trainer_refuses_the_caller_and_continues_its_rounds() -> None:
    """Three requested at once, before the actor has seen any: the third is its caller's mistake alone."""
    actors = AccountedFederation(4, 3)

    async def play() -> list[object]:
        way = MemoryTransport(MemoryBroker(), actors.trainer_identity.id.hex(), ())
        async with LiveTrainer(actors.trainer(), way, MemoryStore(), **COMMON) as live:
            tasks = [asyncio.create_task(live.run_round(actors.request())) for _ in range(3)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done = [one.exception() if one.done() else None for one in tasks]
            for one in tasks:
                one.cancel()
            await asyncio.wait(tasks)
            return done

    first, second, third = run(play())
    assert (first, second) == (None, None)
    assert isinstance(third, UsageError)


def test_a_failure_is_raised_after_all_aborts_and_the_next_round_is_possible() -> None:
    """The second node's abort leaves after the first has ended the round at the trainer."""
    actors = AccountedFederation(3, 2, mechanism=NoNoise())
    actors.account = ONE_ROUND
    store, reports = TrainersStore(), []

    async def play() -> None:
        broker, actor = MemoryBroker(), actors.trainer()
        computes = [(one, transport(broker, Channel.COMPUTE, one.id)) for one in map(actors.compute, range(2))]
        clients = [(one, transport(broker, Channel.CLIENT, one.id)) for one in map(actors.client, range(3))]
        way = transport(broker, Channel.TRAINER, actor.id)
        async with (
            running(*computes, *clients),
            LiveTrainer(actor, way, store, **COMMON, on_report=reports.append) as live,
        ):
            computes[1][1].after = store.failed
            for number in (1, 2):
                store.failed.clear()
                with pytest.raises(RoundAborted, match=r"too-few.*; its charge came back to the account") as caught:
                    await live.run_round(actors.request())
                assert (caught.value.contributors, caught.value.needed) == (0, 2)
                assert charges(store) == [(one, True) for one in range(1, number + 1)]
            assert live._results == {}, "nothing is kept of rounds that are over"

    run(play())
    assert sum(isinstance(fact, ChargeReturned) for fact in reports) == 2


def earlier_failure() -> tuple[AccountedFederation, Network]:
    """A round ten minutes ago, of which the trainer received one abort of two; no node is up since."""
    actors = AccountedFederation(3, 2, mechanism=NoNoise())
    actors.account = ONE_ROUND
    network = actors.network(Network(started_ms() - 10 * MINUTE_MS))

    def tamper(one: Envelope) -> list[Envelope]:
        body = body_of(one.payload)
        lost = isinstance(body, Contribution) or (isinstance(body, Abort) and one.sender != actors.computes[0])
        return [] if lost else [one]

    network.tamper = tamper
    begin(actors, network)
    network.advance(network.now_ms + MINUTE_MS + 1)
    return actors, network


def records(network: Network, actor_id: bytes) -> list[tuple[str, bytes, bytes]]:
    return [(table, key, value) for (table, key), value in network.stores[actor_id].items()]


@pytest.mark.parametrize("nodes_are_up", [True, False])
def test_a_round_that_the_account_refuses_waits_for_charges_of_earlier_ones(nodes_are_up: bool) -> None:
    actors, network = earlier_failure()
    reports: list[object] = []
    announced = asyncio.Event()

    def note(fact: object) -> None:
        reports.append(fact)
        if isinstance(fact, Announced):
            announced.set()

    async def play() -> None:
        broker, actor = MemoryBroker(), actors.trainer(records(network, actors.trainer_identity.id))
        computes = [actors.compute(index, records(network, actors.computes[index])) for index in range(2)]
        ways = [(one, transport(broker, Channel.COMPUTE, one.id)) for one in computes]
        way = transport(broker, Channel.TRAINER, actor.id)
        async with (
            running(*ways) if nodes_are_up else contextlib.nullcontext(),
            LiveTrainer(actor, way, MemoryStore(), **COMMON, on_report=note) as live,
        ):
            task = asyncio.create_task(live.run_round(actors.request()))
            going_on = asyncio.create_task(announced.wait())
            await asyncio.wait([task, going_on], return_when=asyncio.FIRST_COMPLETED)
            going_on.cancel()
            task.cancel()
            await task

    with pytest.raises(asyncio.CancelledError if nodes_are_up else BudgetError):
        run(play())
    assert len([fact for fact in reports if isinstance(fact, RoundFailed)]) == 1
    assert len([fact for fact in reports if isinstance(fact, ChargeReturned)]) == nodes_are_up


def test_a_start_gives_old_results_to_those_who_ask_and_not_to_the_log() -> None:
    actors = AccountedFederation(3, 2, mechanism=NoNoise())
    network = actors.network(Network(started_ms() - 10 * MINUTE_MS))
    begin(actors, network)
    network.advance(network.now_ms + MINUTE_MS)
    (ended,) = network.reported(RoundCompleted)
    reports: list[object] = []

    async def play() -> float:
        actor = actors.trainer(records(network, actors.trainer_identity.id))
        way = transport(MemoryBroker(), Channel.TRAINER, actor.id)
        async with LiveTrainer(actor, way, MemoryStore(), **COMMON, on_report=reports.append) as live:
            await asyncio.sleep(0)
            request = msgspec.structs.replace(actors.request(), round_id=ended.round_id)
            return float((await live.resume_round(request)).value[0])

    assert run(play()) == ended.aggregate.value[0]
    assert not [fact for fact in reports if isinstance(fact, RoundCompleted)]
