"""Each actor is killed at each step of a live round and started again from its database (DESIGN §7, attack 28).

Without noise the sum is exact: client i contributes 2^-(i + 1), so the sum shows who is in it. Whoever dies, the round
completes over all clients, every Compute node released one partial sum, every client was charged once and sent one
contribution, and a message sent again equals the first byte for byte.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import msgspec
import numpy as np
import pytest
from harness import Left, LiveActor, LiveFederation, Point, channel_of, records
from patience import PATIENCE_S

from dca_proto.protocol import charges, facts, ledger
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.params import Timing
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Sealed
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.keyfile import write_identity
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.transport import Message
from dca_proto.testing import NoNoise, TestFederation

CLIENTS, COMPUTES = 24, 3  # so many that each node holds some: false alarm 1e-4, as it is drawn from a hash
CLIENT, COMPUTE, TRAINER = Channel.CLIENT, Channel.COMPUTE, Channel.TRAINER
EPOCH, HELLO = Channel.EPOCH, Channel.HELLO

CLIENT_DIES = (
    Point(TRAINER, facts.Announced),  # no member has it yet
    Point(CLIENT, facts.Contributed),  # charged and stored, not sent
    Point(CLIENT, Left(COMPUTE)),  # sent, no receipt
    Point(CLIENT, facts.Acknowledged),
    Point(TRAINER, facts.RoundCompleted),
)
COMPUTE_DIES = (
    Point(TRAINER, facts.Announced),
    Point(COMPUTE, Left(TRAINER)),  # that it has the announcement
    Point(COMPUTE, facts.ContributionKept),  # stored, its receipt not sent
    Point(TRAINER, facts.Arrived, 2),
    Point(TRAINER, facts.Closed),
    Point(COMPUTE, facts.ListFrozen),  # stored, not sent
    Point(COMPUTE, Left(COMPUTE)),  # its list to one of its peers
    Point(COMPUTE, Left(COMPUTE), COMPUTES),  # its answer, or a list again
    Point(COMPUTE, facts.Released),  # stored, not sent
    Point(TRAINER, facts.RoundCompleted),
)
TRAINER_DIES = (
    Point(TRAINER, facts.Announced),  # stored, not sent
    Point(TRAINER, Left(COMPUTE)),  # announced to one of the nodes
    Point(TRAINER, Left(Channel.ANNOUNCE)),
    Point(TRAINER, facts.Arrived, 2),
    Point(TRAINER, facts.Closed),  # stored, not sent
    Point(COMPUTE, facts.ListFrozen),
    Point(COMPUTE, facts.Released),
    Point(COMPUTE, facts.Released, COMPUTES),
    Point(TRAINER, facts.RoundCompleted),
)
STORED = {facts.Contributed, facts.ContributionKept, facts.ListFrozen, facts.Released, facts.Announced, facts.Closed}
"""What an actor stores before it sends it: there `scripts/test` kills it, and `test_kill_points.py` at each step."""


def is_quick(role: Channel, point: Point) -> bool:
    return point.role == role and point.fact in STORED


DEATHS = [
    pytest.param(role, point, id=f"{role.value} at {point}", marks=[] if is_quick(role, point) else [pytest.mark.long])
    for role, points in ((CLIENT, CLIENT_DIES), (COMPUTE, COMPUTE_DIES), (TRAINER, TRAINER_DIES))
    for point in points
]


ROWS = [np.array([[2.0 ** -(index + 1)]]) for index in range(CLIENTS)]
HURRIED = Timing(resend_first_ms=200, resend_max_ms=2_000)
"""The clock is real. While an actor is away for long on a busy machine, the others do not wait longer and longer."""
WINDOWS = {"collect_s": PATIENCE_S, "commit_s": PATIENCE_S}
STARTS = 4  # of an interpreter, in the longest test


@pytest.mark.parametrize("any_broker", ["mosquitto", pytest.param("embedded", marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize(("role", "point"), DEATHS)
def test_a_killed_actor_continues_from_its_store(
    role: Channel, point: Point, any_broker: Broker, tmp_path: Path
) -> None:
    name = re.sub("[^a-z0-9]+", "-", f"{any_broker.kind[0]} {role.value[:2]} {point}".lower())[:32]

    async def scenario() -> None:
        actors = TestFederation(CLIENTS, COMPUTES, rows=ROWS, name=name, mechanism=NoNoise(), timing=HURRIED)
        live = LiveFederation(actors, tmp_path, lambda _: BrokerSettings(url=any_broker.url))
        victim = {CLIENT: live.clients[0], COMPUTE: live.computes[0], TRAINER: live.trainer}[role]
        request = actors.request(tolerate=0, **WINDOWS)  # else it closes without those who are slow
        async with live:
            await live.until(lambda: keys(live) == COMPUTES)  # else it asks for them first
            await live.until(lambda: sessions(live) == CLIENTS * COMPUTES)  # else a node misses clients, rightly
            live.kill_at(point, victim)
            live.trainer.runner.command(request)
            await live.until(lambda: live.is_killed)
            await victim.kill()
            await live.start(victim)
            await live.until(lambda: is_over(live, request.round_id))
        check_sum(live)
        for node in live.computes:
            await check_node(node)
        for member in live.clients:
            await check_client(member)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_wait_sees_a_state_that_no_fact_reports(embedded_broker: Broker, tmp_path: Path) -> None:
    """The trainer takes a node's key and reports nothing, and nobody else does anything: the wait ends nevertheless.

    Brokers may deliver retained keys as the very last message before a round.
    """

    async def scenario() -> None:
        actors = TestFederation(1, 1, name="last-key")
        live = LiveFederation(actors, tmp_path, lambda _: BrokerSettings(url=embedded_broker.url))
        node, trainer = live.computes[0], live.trainer
        async with live:
            await live.until(lambda: keys(live) == sessions(live) == 1)
            await live.until(lambda: live.has(Left(HELLO), live.clients[0]) and live.has(Left(EPOCH), node))
            ((topic, (key, *_)),) = ((topic, sent) for topic, sent in node.sent.items() if channel_of(topic) is EPOCH)
            trainer.actor._waiting._keys.clear()
            waiting = asyncio.create_task(live.until(lambda: keys(live) == 1))
            await asyncio.sleep(0)  # now it waits
            reported = len(live.facts)
            trainer.runner.transport.inbox.put(Message(topic, key))
            await waiting
            assert len(live.facts) == reported

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def keys(live: LiveFederation) -> int:
    """How many Compute nodes' keys the trainer has."""
    return len(live.trainer.actor._waiting._keys)


def sessions(live: LiveFederation) -> int:
    """How many sessions the Compute nodes keep together."""
    return sum(isinstance(noted.fact, facts.SessionKept) for noted in live.facts)


def is_over(live: LiveFederation, round_id: bytes) -> bool:
    """The trainer's latest process has reported the result, and no client waits for a receipt."""
    latest = [noted.fact for noted in live.facts if noted.life == live.trainer.life]
    completed = any(isinstance(fact, facts.RoundCompleted) for fact in latest)
    return completed and all(member.actor.phase(round_id) == client_round.KEPT for member in live.clients)


def check_sum(live: LiveFederation) -> None:
    completed = [noted.fact for noted in live.facts if isinstance(noted.fact, facts.RoundCompleted)]
    assert {fact.aggregate.value.tolist()[0] for fact in completed} == {1 - 2.0**-CLIENTS}
    assert {fact.aggregate.contributors for fact in completed} == {CLIENTS}
    assert not [noted.fact for noted in live.facts if isinstance(noted.fact, facts.RoundFailed | facts.NodeAborted)]


async def check_node(node: LiveActor) -> None:
    """One partial sum, however often it was sent."""
    assert len({payload for sent in node.sent_to(TRAINER) for payload in sent if is_sealed(payload)}) == 1
    (page,) = records(node.path, charges.TABLE)
    seen = charges.SeenCharges([(charges.TABLE, bytes(4), page)])
    assert [seen.highest(slot) for slot in range(CLIENTS)] == [1] * CLIENTS, "and the number of each client's charge"
    await check_released(node.path)


async def check_released(path: Path) -> None:
    """The round is over for good, and nothing of the contributions is left."""
    (stored,) = records(path, compute_round.ROUNDS)
    assert msgspec.msgpack.decode(stored, type=compute_round.StoredComputeRound).phase == compute_round.RELEASED
    assert records(path, compute_round.CONTRIBUTIONS) == records(path, compute_round.LISTS) == []


def is_sealed(payload: bytes) -> bool:
    return isinstance(decode_frame(payload), Sealed)


async def check_client(member: LiveActor) -> None:
    """One contribution, charged once, and to its holder the same bytes whenever they were sent."""
    (stored,) = records(member.path, ledger.TABLE)
    charge = msgspec.msgpack.decode(stored, type=Charge)
    assert (charge.number, charge.returned) == (1, False)
    (sent,) = member.sent_to(COMPUTE)
    assert len(set(sent)) == 1
    (left,) = records(member.path, client_round.ROUNDS)
    assert msgspec.msgpack.decode(left, type=client_round.StoredClientRound).outbound is None


class Process:
    """Compute node 0 as a device runs it: `python -m dca_proto compute.toml`, over as many lives as a test wants."""

    def __init__(self, actors: TestFederation, directory: Path, url: str) -> None:
        self.store = directory / "compute.db"
        self._config = directory / "compute.toml"
        write_identity(directory / "compute.key", "compute", actors.compute_identities[0])
        (directory / "federation.toml").write_text(actors.federation.to_toml())
        self._config.write_text(
            f'[compute]\nidentity = "compute.key"\nfederation = "federation.toml"\nstore = "{self.store.name}"\n'
            f'[broker]\nurl = "{url}"\n[floors]\nclients_min = 1\nhonest_min = 1\n'
        )

    async def start(self) -> None:
        command = (sys.executable, "-m", "dca_proto", str(self._config), "--log-json", "--verbose")
        self._process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
        await self.until("Connected")

    async def until(self, event: str) -> None:
        """Read its log until that event."""
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            if json.loads(line)["event"] == event:
                return
        raise AssertionError(f"it ended before {event}")

    async def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        await self._process.communicate()


@pytest.mark.long
@pytest.mark.parametrize("any_broker", ["mosquitto", pytest.param("embedded", marks=pytest.mark.long)], indirect=True)
def test_a_compute_process_killed_by_the_system_continues(any_broker: Broker, tmp_path: Path) -> None:
    """`kill -9` while it collects, when it has frozen, and when it has released; the others wait meanwhile.

    Real noise, as a real process knows no other: false alarm at 8 standard deviations below 1e-14. A mask
    that were missing, or counted twice, would be of the order of the ring.
    """

    async def scenario() -> None:
        actors = TestFederation(CLIENTS, COMPUTES, rows=ROWS, name=f"nine-{any_broker.kind}", timing=HURRIED)
        live = LiveFederation(actors, tmp_path, lambda _: BrokerSettings(url=any_broker.url))
        node, peer, late = Process(actors, tmp_path, any_broker.url), live.computes[1], live.clients[0]
        live.members.remove(live.computes[0])
        await node.start()
        try:
            async with live:
                live.kill_at(Point(TRAINER, facts.Announced), late)
                live.trainer.runner.command(actors.request(epsilon=20, tolerate=0, **WINDOWS))
                await node.until("ContributionKept")
                await node.kill()
                await late.kill()
                live.kill_at(Point(TRAINER, facts.Closed), peer)
                await node.start()
                await live.start(late)
                await node.until("ListFrozen")
                await node.kill()
                await peer.kill()
                await node.start()
                await live.start(peer)
                await node.until("Released")
                await node.kill()
                await node.start()
                await live.until(lambda: live.has(facts.RoundCompleted, live.trainer))
        finally:
            await node.kill()
        (aggregate,) = (noted.fact.aggregate for noted in live.facts if isinstance(noted.fact, facts.RoundCompleted))
        assert aggregate.contributors == CLIENTS
        await check_released(node.store)
        assert abs(aggregate.value[0] - (1 - 2.0**-CLIENTS)) < 8 * aggregate.noise_variance**0.5

    asyncio.run(asyncio.wait_for(scenario(), STARTS * PATIENCE_S))
