"""The emulator against the real thing: one scenario without faults in virtual time, and on mosquitto over connections.

Both play the same actors: the same keys, and for each start of each actor the same random bytes. Two secure sums, one
round of node releases, and one of reports, announced in virtual time in the millisecond in which the live trainer
announced them, of actors that have the same X25519 keys in store: so announcements are the same in every bit,
and with them holders, noise and hashes. Compared are:

- every application message: its sender, round, channel, receiver, kind of frame and size in bytes, as a multiset; so
  messages and bytes per role and kind, and what each kind of actor received.
- every fact of every actor, as a multiset, with all hashes; but for which client was the how-manieth (the order in
  which messages come is the network's), where the numbers themselves are compared. The noisy sums and the reports agree
  in every bit, so all noise was drawn alike.
- how often a node reports its progress to the trainer depends on the network: that, and what the trainer sends while it
  waits for keys that have not come yet, is left out.

Resends are minutes away on both sides, so no message is sent twice.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import Connected, Left, LiveFederation
from patience import PATIENCE_S

from dca_proto.protocol import facts
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.effects import Channel, Persist, Send
from dca_proto.protocol.events import Started
from dca_proto.protocol.params import Timing
from dca_proto.protocol.wire.codec import decode_body, decode_frame
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease
from dca_proto.protocol.wire.messages import Announcement, EpochKey, Progress, Sessions, SessionsWanted, Signed
from dca_proto.protocol.wire.topics import topic_of
from dca_proto.runtime.broker import Broker, BrokerOptions, launch_broker
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.testing import TestFederation
from emulator.sim.events import Observer
from emulator.sim.link import LinkOptions
from emulator.sim.process import Process
from emulator.sim.simulator import Simulator
from emulator.sim.world import World

CLIENTS, COMPUTES = 12, 3
SUMMED: tuple[dict[str, Any], ...] = ({"tolerate": 1}, {"tolerate": 3, "colluders": 1})
RELEASED: tuple[dict[str, Any], ...] = (
    {"kind": NodeRelease(), "rows_max": 1},
    {"kind": LdpReport("grid-laplace"), "delta": 0.0},
)
ROUNDS = (*SUMMED, *RELEASED)
NAME = "fidelity"
COLLECT_MS = 60_000
NOT_COMPARED = (facts.WaitingForKeys, facts.Arrived, Connected, Left)
RUNS = 3
BETWEEN_S = 0.3
"""Between live rounds, so that in virtual time, too, one is over when the next is announced."""

Messages = Counter[tuple[str, str, int]]
Facts = Counter[tuple[bytes, str, str]]


class RunRecord:
    """What happened: messages by topic, kind of frame and size; facts by actor; traffic by role; sums by round."""

    def __init__(self) -> None:
        self.messages: Messages = Counter()
        self.facts: Facts = Counter()
        self.counts: Facts = Counter()
        self.sums: dict[bytes, bytes] = {}
        self.traffic: dict[Channel, Counter[str]] = {}
        self.announced_ms: list[int] = []

    def add_message(self, topic: str, payload: bytes) -> None:
        frame = decode_frame(payload)
        body = decode_body(frame.body) if isinstance(frame, Signed) else frame
        to = Channel(topic.split("/")[2])
        if isinstance(body, Progress | Sessions) or (isinstance(body, EpochKey) and to is Channel.TRAINER):
            self._leave_out(len(payload), Channel.COMPUTE, Channel.TRAINER)
            return
        if isinstance(body, SessionsWanted):  # a trainer queries again a node that has not answered
            self._leave_out(len(payload), Channel.TRAINER, Channel.COMPUTE)
            return
        self.messages[topic, type(body).__name__, len(payload)] += 1

    def _leave_out(self, size: int, sender: Channel, receiver: Channel) -> None:
        """A message whose number depends on how fast others are."""
        for role, way in ((sender, "sent"), (receiver, "received")):
            self.traffic.setdefault(role, Counter()).subtract({f"messages_{way}": 1, f"bytes_{way}": size})

    def add_fact(self, actor: bytes, fact: Any) -> None:
        if isinstance(fact, NOT_COMPARED) or not isinstance(fact, msgspec.Struct):
            return
        kind, fields = type(fact).__name__, msgspec.structs.asdict(fact)
        if isinstance(fact, facts.RoundCompleted):
            self.sums[fact.round_id] = fact.aggregate.value.tobytes()
            fields["aggregate"] = msgspec.to_builtins(fact.aggregate, enc_hook=np.ndarray.tolist)
        if "count" in fields:
            self.counts[actor, kind, str(fields.pop("count"))] += 1
        self.facts[actor, kind, str(fields)] += 1

    def add_traffic(self, role: Channel, traffic: Any) -> None:
        names = ("messages_sent", "bytes_sent", "messages_received", "bytes_received")
        self.traffic.setdefault(role, Counter()).update({name: getattr(traffic, name) for name in names})


class Prepared(TestFederation):
    """Nodes and clients that made their X25519 keys before: else these hang on the millisecond of the start."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(CLIENTS, COMPUTES, name=NAME, timing=Timing(resend_first_ms=120_000, resend_max_ms=240_000))
        self.policy = msgspec.structs.replace(self.policy, rows_of_many=True)
        self._computes = [stored(super(Prepared, self).compute(index), now_ms) for index in range(COMPUTES)]
        self._clients = [stored(super(Prepared, self).client(index), now_ms) for index in range(CLIENTS)]

    def compute(self, index: int, records: Any = ()) -> ComputeNode:
        return super().compute(index, records or self._computes[index])

    def client(self, index: int, records: Any = ()) -> Client:
        return super().client(index, records or self._clients[index])


def stored(actor: Actor, now_ms: int) -> list[tuple[str, bytes, bytes]]:
    """What an actor has in store once it has started."""
    return [(one.table, one.key, one.value) for one in actor.handle(Started(), now_ms) if isinstance(one, Persist)]


# --- in virtual time -------------------------------------------------------------------------------------------------


class Listener(Observer):
    def __init__(self, account: RunRecord, federation: bytes) -> None:
        self.account, self.federation = account, federation

    def on_send(self, process: Process, send: Send) -> None:
        self.account.add_message(topic_of(self.federation, send.to, process.id), send.payload)

    def on_fact(self, process: Process, fact: object) -> None:
        self.account.add_fact(process.id, fact)


def emulated(now_ms: int, announced_ms: Sequence[int]) -> RunRecord:
    actors = Prepared(now_ms)
    for role, count in ((actors.compute, COMPUTES), (actors.client, CLIENTS), (lambda _: actors.trainer(), 1)):
        for index in range(count):
            role(index)  # the live federation makes each actor once before it starts, to know its id
    link = LinkOptions(delay_ms=2, jitter_ms=2, duplicate=0, reorder=0)
    simulator = Simulator(1, federation=actors.federation.id, start_ms=announced_ms[0] - 1000, link=link)
    account = RunRecord()
    simulator.observers.append(Listener(account, actors.federation.id))
    world = World(actors, simulator)
    for done, (at_ms, changes) in enumerate(zip(announced_ms, ROUNDS, strict=True)):
        simulator.run(at_ms)
        assert len(account.sums) == done
        world.open_round(**changes, collect_s=COLLECT_MS / 1000)
    simulator.run(at_ms + 500)
    for process in simulator.machines:
        account.add_traffic(process.role, process.traffic)
    return account


# --- on mosquitto ----------------------------------------------------------------------------------------------------


async def live(broker: Broker, directory: Path, now_ms: int) -> RunRecord:
    actors = Prepared(now_ms)
    federation = LiveFederation(actors, directory, lambda actor_id: BrokerSettings(url=broker.url))
    async with federation, asyncio.timeout(PATIENCE_S):
        await federation.until(lambda: all(federation.has(Left(Channel.EPOCH), node) for node in federation.computes))
        await federation.until(
            lambda: all(federation.has(Left(Channel.HELLO), client) for client in federation.clients)
        )
        await quiet(federation)  # a node that lacks a session asks for it, and the client then draws once more
        for number, changes in enumerate(ROUNDS, start=1):
            federation.trainer.runner.command(actors.request(**changes, collect_s=COLLECT_MS / 1000))
            await federation.until(functools.partial(is_over, federation, number))
            await asyncio.sleep(BETWEEN_S)
        await quiet(federation)
    account = RunRecord()
    for member in federation.members:
        account.add_traffic(member.role, member.runner.traffic)
        for topic, payloads in member.sent.items():
            for payload in payloads:
                account.add_message(topic, payload)
                if topic.split("/")[2] == Channel.ANNOUNCE.value:
                    account.announced_ms.append(announced_ms(payload))
    for noted in federation.facts:
        account.add_fact(noted.actor.id, noted.fact)
    return account


def announced_ms(payload: bytes) -> int:
    """When the trainer announced that round."""
    frame = decode_frame(payload)
    assert isinstance(frame, Signed)
    body = decode_body(frame.body)
    assert isinstance(body, Announcement)
    return body.close_by_ms - COLLECT_MS


def is_over(federation: LiveFederation, rounds: int) -> bool:
    """Whether everybody has come to the end of so many rounds."""
    done = Counter(type(noted.fact) for noted in federation.facts)
    expected = {
        facts.RoundCompleted: rounds,
        facts.Released: min(rounds, len(SUMMED)) * COMPUTES,
        facts.Acknowledged: rounds * CLIENTS,
    }
    return all(done[kind] >= count for kind, count in expected.items())


async def quiet(federation: LiveFederation) -> None:
    """Until what everybody has sent so far is received: each inbox message once, each broadcast by all that listen."""
    expected = listeners(topic for member in federation.members for topic in sent_topics(member.sent))
    while received(federation) < expected:  # noqa: ASYNC110 - nothing reports the last message
        await asyncio.sleep(0.01)


def received(federation: LiveFederation) -> int:
    return sum(member.runner.traffic.messages_received for member in federation.members)


def sent_topics(sent: dict[str, list[bytes]]) -> Iterable[str]:
    return (topic for topic, payloads in sent.items() for _ in payloads)


def listeners(topics: Iterable[str]) -> int:
    counts = {"announce": CLIENTS, "abort": CLIENTS + COMPUTES + 1, "epoch": 1, "hello": COMPUTES}
    return sum(counts.get(topic.split("/")[2], 1) for topic in topics)


# --- side by side ----------------------------------------------------------------------------------------------------


async def alone(folder: Path, now_ms: int) -> RunRecord:
    """Play live on a broker of its own, which retains nothing of an earlier run."""
    async with launch_broker(folder / "broker", BrokerOptions(kind="mosquitto")) as broker:
        return await live(broker, folder, now_ms)


@pytest.fixture(scope="module")
def both(mosquitto_installed: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, RunRecord]:
    """A live actor on a machine that stalls may ask once more: what differs three times in a row differs."""
    for _ in range(RUNS):
        now_ms = int(time.time() * 1000)
        theirs = asyncio.run(alone(tmp_path_factory.mktemp("fidelity"), now_ms))
        ours = emulated(now_ms, theirs.announced_ms)
        if (ours.messages, ours.facts, ours.traffic) == (theirs.messages, theirs.facts, theirs.traffic):
            break
    return ours, theirs


def test_the_same_messages_of_the_same_sizes_are_sent(both: tuple[RunRecord, RunRecord]) -> None:
    ours, theirs = both
    assert ours.messages == theirs.messages
    assert sum(ours.messages.values()) > len(ROUNDS) * CLIENTS * 2 + CLIENTS


def test_each_role_sends_and_receives_the_same_number_of_messages_and_bytes(both: tuple[RunRecord, RunRecord]) -> None:
    ours, theirs = both
    assert ours.traffic == theirs.traffic
    assert set(ours.traffic) == {Channel.CLIENT, Channel.COMPUTE, Channel.TRAINER}


def test_each_actor_reports_the_same_facts(both: tuple[RunRecord, RunRecord]) -> None:
    ours, theirs = both
    assert ours.facts == theirs.facts
    assert ours.counts == theirs.counts
    assert sum(ours.facts.values()) > len(ROUNDS) * CLIENTS * 3 + COMPUTES * CLIENTS


def test_the_noisy_sums_agree_in_every_bit(both: tuple[RunRecord, RunRecord]) -> None:
    ours, theirs = both
    assert len(ours.sums) == len(ROUNDS)
    assert ours.sums == theirs.sums
