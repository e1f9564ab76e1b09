"""The emulator against the real thing: one scenario without faults in virtual time, and on mosquitto over connections.

Both play the same cast: the same keys, and for each start of each actor the same random bytes. Two rounds, one in each
encoding of shares, a local one, and one of reports. What is compared:

- every application message: its sender, round, channel, receiver, kind of frame and size in bytes, as a multiset; so
  messages and bytes per role and kind, and what each kind of actor received. Contents differ, for they hold times.
- every fact of every actor, as a multiset, all fields but: times; which client was the how-manieth (the order in which
  messages come is the network's), where the numbers themselves are compared; and hashes, for all cover what the trainer
  signed, with its times. The noisy sums and the reports agree in every bit, so all noise was drawn alike.
- what the trainer says while it waits for keys that have not come yet is left out: it may be asked before or after.

Resends are minutes away on both sides, so nothing is said twice.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import Connected, Left, LiveFederation

from dca_proto.core import facts
from dca_proto.core.codec import decode_frame
from dca_proto.core.effects import Channel, Send
from dca_proto.core.params import Timing
from dca_proto.core.topics import topic_of
from dca_proto.net.broker import Broker
from dca_proto.net.settings import BrokerSettings
from dca_proto.testing import Cast
from emulator.sim.events import Observer
from emulator.sim.link import LinkOptions
from emulator.sim.process import Process
from emulator.sim.simulator import Simulator
from emulator.sim.world import World

CLIENTS, COMPUTES = 12, 3
SUMMED: tuple[dict[str, Any], ...] = ({"encoding": "seed"}, {"encoding": "vector", "tolerated": 2})
LOCAL = {"encoding": "local", "tolerated": 0, "computes": ()}
ROUNDS = (*SUMMED, {**LOCAL, "rows_max": 1}, {**LOCAL, "mechanism": "grid-laplace", "delta": 0.0})
NAME = "fidelity"
PATIENCE_S = 30
NOT_COMPARED = ("share_by_ms", "roster_hash", "session_hash", "contributors_hash")
ORDER = ("count",)

Messages = Counter[tuple[str, str, int]]
Facts = Counter[tuple[bytes, str, str]]


class Account:
    """What happened: messages by topic, kind of frame and size; facts by actor; traffic by role; sums by round."""

    def __init__(self) -> None:
        self.messages: Messages = Counter()
        self.facts: Facts = Counter()
        self.counts: Facts = Counter()
        self.sums: dict[bytes, bytes] = {}
        self.traffic: dict[Channel, Counter[str]] = {}

    def add_message(self, topic: str, payload: bytes) -> None:
        self.messages[topic, type(decode_frame(payload)).__name__, len(payload)] += 1

    def add_fact(self, actor: bytes, fact: Any) -> None:
        if isinstance(fact, facts.WaitingForKeys | Connected | Left) or not isinstance(fact, msgspec.Struct):
            return
        kind, fields = type(fact).__name__, msgspec.structs.asdict(fact)
        if isinstance(fact, facts.RoundCompleted):
            self.sums[fact.round_id] = fact.aggregate.value.tobytes()
            fields["aggregate"] = compared(msgspec.to_builtins(fact.aggregate, enc_hook=np.ndarray.tolist))
        for name in ORDER:
            if name in fields:
                self.counts[actor, kind, str(fields.pop(name))] += 1
        self.facts[actor, kind, str({name: fields[name] for name in fields if name not in NOT_COMPARED})] += 1

    def add_traffic(self, role: Channel, traffic: Any) -> None:
        names = ("messages_sent", "bytes_sent", "messages_received", "bytes_received")
        self.traffic.setdefault(role, Counter()).update({name: getattr(traffic, name) for name in names})


def compared(aggregate: dict[str, Any]) -> dict[str, Any]:
    """A result, and those of its nodes, without what is not compared."""
    kept = {name: value for name, value in aggregate.items() if name not in NOT_COMPARED}
    return {**kept, "nodes": [compared(node) for node in aggregate["nodes"]]}


def cast() -> Cast:
    actors = Cast(CLIENTS, COMPUTES, name=NAME, timing=Timing(resend_first_ms=120_000, resend_max_ms=240_000))
    actors.policy = msgspec.structs.replace(actors.policy, rows_of_many=True)
    return actors


# --- in virtual time -------------------------------------------------------------------------------------------------


class Listener(Observer):
    def __init__(self, account: Account) -> None:
        self.account = account

    def on_send(self, process: Process, send: Send) -> None:
        self.account.add_message(topic_of(NAME, send.to, send.round_id, process.id), send.payload)

    def on_fact(self, process: Process, fact: object) -> None:
        self.account.add_fact(process.id, fact)


def emulated(start_ms: int) -> Account:
    actors = cast()
    for role, count in ((actors.compute, COMPUTES), (actors.client, CLIENTS), (lambda _: actors.trainer(), 1)):
        for index in range(count):
            role(index)  # the live federation makes each actor once before it starts, to know its id
    link = LinkOptions(delay_ms=2, jitter_ms=2, duplicate=0, reorder=0)
    simulator = Simulator(1, federation=NAME, start_ms=start_ms, link=link)
    account = Account()
    simulator.observers.append(Listener(account))
    world = World(actors, simulator)
    simulator.run(start_ms + 1000)
    for number, changes in enumerate(ROUNDS, start=1):
        world.open_round(**changes)
        simulator.run_while(lambda number=number: len(account.sums) < number, simulator.now_ms + 50_000)
        simulator.run(simulator.now_ms + 500)
    for process in simulator.machines:
        account.add_traffic(process.role, process.traffic)
    return account


# --- on mosquitto ----------------------------------------------------------------------------------------------------


async def live(broker: Broker, directory: Path) -> Account:
    actors = cast()
    federation = LiveFederation(actors, directory, lambda actor_id: BrokerSettings(url=broker.url))
    async with federation, asyncio.timeout(PATIENCE_S):
        await federation.until(lambda: all(federation.has(Left(Channel.EPOCH), node) for node in federation.computes))
        for number, changes in enumerate(ROUNDS, start=1):
            federation.trainer.runner.command(actors.request(**changes))
            await federation.until(functools.partial(is_over, federation, number))
        await quiet(federation)
    account = Account()
    for member in federation.members:
        account.add_traffic(member.role, member.runner.traffic)
        for topic, payloads in member.sent.items():
            for payload in payloads:
                account.add_message(topic, payload)
    for noted in federation.facts:
        account.add_fact(noted.actor.id, noted.fact)
    return account


def is_over(federation: LiveFederation, rounds: int) -> bool:
    """Whether everybody has come to the end of so many rounds."""
    done = Counter(type(noted.fact) for noted in federation.facts)
    expected = {
        facts.RoundCompleted: rounds,
        facts.Released: min(rounds, len(SUMMED)) * COMPUTES,
        facts.AllReceived: rounds * CLIENTS,
    }
    return all(done[kind] >= count for kind, count in expected.items())


async def quiet(federation: LiveFederation) -> None:
    """Until whatever was sent has been received: each inbox message once, each broadcast by all that listen."""
    expected = listeners(topic for member in federation.members for topic in sent_topics(member.sent))
    while received(federation) < expected:  # noqa: ASYNC110 - nobody tells of the last message
        await asyncio.sleep(0.01)


def received(federation: LiveFederation) -> int:
    return sum(member.runner.traffic.messages_received for member in federation.members)


def sent_topics(sent: dict[str, list[bytes]]) -> Iterable[str]:
    return (topic for topic, payloads in sent.items() for _ in payloads)


def listeners(topics: Iterable[str]) -> int:
    counts = {"announce": CLIENTS, "abort": CLIENTS + COMPUTES + 1, "epoch": 1}
    return sum(counts.get(topic.split("/")[3], 1) for topic in topics)


# --- side by side ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(mosquitto_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> tuple[Account, Account]:
    start_ms = int(time.time() * 1000)
    directory = tmp_path_factory.mktemp("fidelity")
    return emulated(start_ms), asyncio.run(live(mosquitto_broker, directory))


def test_the_same_messages_of_the_same_sizes_are_sent(both: tuple[Account, Account]) -> None:
    ours, theirs = both
    assert ours.messages == theirs.messages
    assert sum(ours.messages.values()) > len(SUMMED) * CLIENTS * COMPUTES * 2 + CLIENTS * 2


def test_each_role_sends_and_receives_the_same_number_of_messages_and_bytes(both: tuple[Account, Account]) -> None:
    ours, theirs = both
    assert ours.traffic == theirs.traffic
    assert set(ours.traffic) == {Channel.CLIENT, Channel.COMPUTE, Channel.TRAINER}


def test_each_actor_reports_the_same_facts(both: tuple[Account, Account]) -> None:
    ours, theirs = both
    assert ours.facts == theirs.facts
    assert ours.counts == theirs.counts
    assert sum(ours.facts.values()) > len(ROUNDS) * CLIENTS * 4


def test_the_noisy_sums_agree_in_every_bit(both: tuple[Account, Account]) -> None:
    ours, theirs = both
    assert len(ours.sums) == len(ROUNDS)
    assert ours.sums == theirs.sums
