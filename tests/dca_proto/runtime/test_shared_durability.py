"""Clients of a shared loop, whose process is killed or whose disk is full: no contribution leaves unpaid or twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from memory_broker import MemoryBroker, MemoryTransport
from round_helpers import begin, losing, sent
from runner_and_peer import HandClock, settle

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.round import ROUNDS
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Announcement, Contribution
from dca_proto.protocol.wire.topics import subscriptions, topic_of
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.shared_loop import SharedLoop
from dca_proto.runtime.store import SqliteStore
from dca_proto.testing import TestFederation

CLIENTS, KEY = 4, bytes(32)
BEFORE, AFTER = "before the transaction", "after the transaction"


class Killed(Exception):  # noqa: N818 - what ends the process in this test
    """The process is killed, or its disk is full."""


class Process:
    """Clients of one process, with one store. It is killed at its nth transaction, before or after that is durable."""

    def __init__(self, actors: TestFederation, path: Path, now_ms: int, killed: tuple[int, str] | None = None) -> None:
        self.store = SqliteStore(path, KEY)
        self.actors = actors
        self.sent: dict[bytes, list[bytes]] = {}  # contributions, by client
        self.clients = [actors.client(index, self.store.load(id_)) for index, id_ in enumerate(actors.clients)]
        self.loaded = {client.id for client in self.clients if client.ledger.charges}
        self.durable: set[tuple[bytes, str, bytes]] = set()  # records, by client, table and key
        self._clock, self._killed, self._transact = HandClock(), killed, self.store._transact
        self._clock.ms = now_ms
        self.store._transact = self._transacted  # type: ignore[method-assign]

    def _transacted(self, group: list[Any]) -> None:
        now = self.store.transactions + 1
        if (now, BEFORE) == self._killed:
            raise Killed
        self._transact(group)
        if (now, AFTER) == self._killed:
            raise Killed
        self.durable |= {(commit.namespace, write.table, write.key) for commit in group for write in commit.writes}

    def _runner(self, broker: MemoryBroker, client: Client) -> Runner:
        federation = self.actors.federation.id
        transport = MemoryTransport(broker, client.id.hex(), subscriptions(federation, Channel.CLIENT, client.id))
        publish = transport.publish

        def published(topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None) -> Any:
            frame = decode_frame(payload)
            if isinstance(frame, Contribution):
                known = {(client.id, table, frame.round_id) for table in (LEDGER, ROUNDS)}
                assert known <= self.durable or client.id in self.loaded, "it leaves before its charge is durable"
                self.sent.setdefault(client.id, []).append(payload)
            return publish(topic, payload, retain)

        transport.publish = published  # type: ignore[method-assign]
        return Runner(client, transport, self.store.view(client.id), federation=federation, clock=self._clock)

    async def _written(self) -> None:
        """Let everything that can go on, go on, until no transaction is under way."""
        await settle()
        while self.store._writer is not None:
            await asyncio.sleep(0)
            if self.store._writer is None:
                await settle()

    def run(self, announcement: bytes) -> None:
        """Run until nothing happens any more, or the process is killed."""

        async def scenario() -> None:
            broker, trainer = MemoryBroker(), self.actors.trainer_identity.id
            loop = SharedLoop(self.store, self._clock)
            running = asyncio.create_task(loop.run([self._runner(broker, client) for client in self.clients]))
            topic = topic_of(self.actors.federation.id, Address(Channel.ANNOUNCE), trainer)
            peer = MemoryTransport(broker, "peer", ())
            await peer.open()
            for _ in range(2):
                await self._written()
                await peer.publish(topic, announcement)
            await self._written()
            running.cancel()
            (ended,) = await asyncio.gather(running, return_exceptions=True)
            if isinstance(ended, BaseExceptionGroup):
                assert ended.split(Killed)[1] is None, ended
            await peer.close()
            await self.store.close()

        asyncio.run(scenario())


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("transaction", [1, 2])
def test_a_contribution_leaves_only_with_a_durable_charge_whenever_the_process_is_killed(
    tmp_path: Path, transaction: int, when: str
) -> None:
    actors = TestFederation(CLIENTS, 2)
    network = actors.network()
    network.tamper = losing(Contribution)
    begin(actors, network)
    announcement = sent(network, Announcement)[0].payload
    first = Process(actors, tmp_path / "host.db", network.now_ms, (transaction, when))
    first.run(announcement)
    second = Process(actors, tmp_path / "host.db", network.now_ms)
    charged = {client.id: len(client.ledger.charges) for client in second.clients}
    assert all(charged[client] == 1 for client in first.sent)
    second.run(announcement)
    for client in second.clients:
        assert len(client.ledger.charges) == 1
        messages = {*first.sent.get(client.id, []), *second.sent[client.id]}
        assert len(messages) == 1, "the stored message is sent again, and no other"
