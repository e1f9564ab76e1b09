#!/usr/bin/env python
"""A malicious trainer of the federation file: it floods Compute nodes and one client with validly signed messages.

Its only secrets are its own key and password. `scripts/hostile_test.py` runs it against a federation, and measures the
others' memory after each quarter of each flood. Run it only against a federation of your own. The floods, in turn:

    refused     announcements of 500 KB with 16,384 invited clients, below every node's floors
    open        the same within the floors
    nearly-free rounds of 500 KB that cost one client as little as a round may
    questions   copies of one question for sessions, and as many that differ

Examples:

    scripts/hostile_trainer.py trainer-2.toml CLIENT_ID --count 250
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.crypto.sealing import AgreementKey, digest
from dca_proto.privacy import accounting
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.announcement import invitation_root, invitations
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.params import MU_MIN
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode, sign
from dca_proto.protocol.wire.kinds import SecureSum
from dca_proto.protocol.wire.messages import Announcement, Body, EpochKey, InvitedRound, SessionsWanted, Signed
from dca_proto.protocol.wire.topics import subscriptions, topic_of
from dca_proto.runtime.config import read_config
from dca_proto.runtime.keyfile import read_identity
from dca_proto.runtime.mqtt import MqttTransport

EDGES, INVITED, FEW_EDGES = 55_000, 1 << 14, 2_000
KEYS_S, SETTLE_S, QUARTERS, AT_ONCE = 30.0, 4.0, 4, 4
COLLECT_MS, COMMIT_MS = 600_000, 60_000


class HostileTrainer:
    """All floods, with their state."""

    def __init__(self, path: Path, victim: bytes, count: int) -> None:
        config = read_config(path, ("trainer",))
        self.federation, self.victim, self.count = config.federation, victim, count
        self.identity = read_identity(config.files.identity, "trainer")
        filters = subscriptions(self.federation.id, Channel.TRAINER, self.identity.id)
        rng = random.Random(1)
        self.transport = MqttTransport(config.broker, self.identity.id.hex(), filters, rng=rng)
        self.keys: dict[bytes, Signed] = {}
        self.has_keys = asyncio.Event()
        self.nodes = [member.id for member in self.federation.computes]

    async def listen(self) -> None:
        """Keep the nodes' epoch keys; drop everything else."""
        while True:
            while (message := self.transport.inbox.poll()) is not None:
                frame = decode_frame(message.payload)
                if isinstance(frame, Signed) and isinstance(body := decode_body(frame.body), EpochKey):
                    self.keys[body.compute] = frame
                    if len(self.keys) == len(self.nodes):
                        self.has_keys.set()
            await asyncio.sleep(0.02)

    def announcement(self, edges: int, **changes: Any) -> Announcement:
        """Return the announcement of a secure sum that is valid for nodes and clients, but for the changes."""
        grid = [index / edges for index in range(edges + 1)]
        request = OpenRound(
            round_id=secrets.token_bytes(16), kind=SecureSum(clients=25, tolerate=4), computes=tuple(self.nodes),
            statistic="histogram", parameters={"columns": ["x"], "edges": grid}, rows_max=1, fraction_bits=8,
            epsilon=2 * accounting.epsilon_of(MU_MIN, 1e-6), delta=1e-6, mu=MU_MIN,
            collect_s=COLLECT_MS / 1000, commit_s=COMMIT_MS / 1000,
        )  # fmt: skip
        file, keys = (self.federation.number, self.federation.hash), tuple(self.keys[node] for node in self.nodes)
        mechanism, reply = DistributedDiscreteGaussian(), AgreementKey(secrets.token_bytes(32)).public
        now_ms = time.time_ns() // 1_000_000
        body = request.announcement(self.identity.id, file, mechanism, keys, reply, now_ms)
        return msgspec.structs.replace(body, **changes)

    def signed(self, body: Body) -> Signed:
        return sign(self.identity, self.federation.id, body)

    async def send(self, channel: Channel, to: bytes, payload: bytes) -> None:
        await self.transport.publish(topic_of(self.federation.id, Address(channel, to), self.identity.id), payload)

    # floods: each yields after every round

    async def refused(self) -> AsyncIterator[None]:
        async for _ in self._to_nodes(n_min=2):
            yield

    async def open(self) -> AsyncIterator[None]:
        async for _ in self._to_nodes(n_min=21):
            yield

    async def _to_nodes(self, n_min: int) -> AsyncIterator[None]:
        ids = sorted(digest(b"hostile", index.to_bytes(4, "big"))[:16] for index in range(INVITED))
        body = self.announcement(EDGES, invited=invitation_root(ids))
        kind = body.kind
        assert isinstance(kind, SecureSum), "asked for above"
        kind = msgspec.structs.replace(kind, tolerate=kind.clients + kind.colluders - n_min)
        body = msgspec.structs.replace(body, kind=kind)
        for _ in range(self.count):
            frame = self.signed(msgspec.structs.replace(body, round_id=secrets.token_bytes(16)))
            payload = encode(InvitedRound(frame, b"".join(ids)))
            await asyncio.gather(*(self.send(Channel.COMPUTE, node, payload) for node in self.nodes))
            yield

    async def nearly_free(self) -> AsyncIterator[None]:
        body = self.announcement(EDGES, invited=invitation_root([self.victim]))
        for _ in range(self.count):
            frame = self.signed(msgspec.structs.replace(body, round_id=secrets.token_bytes(16)))
            to_nodes = encode(InvitedRound(frame, self.victim))
            await asyncio.gather(*(self.send(Channel.COMPUTE, node, to_nodes) for node in self.nodes))
            await self.send(Channel.CLIENT, self.victim, encode(invitations(frame, [self.victim])[self.victim]))
            yield

    async def questions(self) -> AsyncIterator[None]:
        first = encode(self.signed(SessionsWanted(self.federation.stamp, True, bytes(16))))
        for number in range(8 * self.count):
            other = SessionsWanted(self.federation.stamp, True, secrets.token_bytes(16))
            payload = encode(self.signed(other)) if number % 2 else first
            await asyncio.gather(*(self.send(Channel.COMPUTE, node, payload) for node in self.nodes))
            yield

    async def run(self) -> None:
        """Run all floods, and print a line of JSON after each quarter."""
        await self.transport.open()
        listening = asyncio.create_task(self.listen())
        try:
            await asyncio.wait_for(self.has_keys.wait(), KEYS_S)
            for flood in (self.refused, self.open, self.nearly_free, self.questions):
                total, done = self.count * (8 if flood == self.questions else 1), 0
                async for _ in flood():
                    done += 1
                    if done * QUARTERS % total < QUARTERS:
                        await asyncio.sleep(SETTLE_S)
                        quarter = done * QUARTERS // total
                        print(json.dumps({"flood": flood.__name__, "quarter": quarter, "sent": done}), flush=True)
        finally:
            listening.cancel()
            await self.transport.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="the trainer's TOML file")
    parser.add_argument("victim", type=bytes.fromhex, help="id of the client that the nearly free rounds invite")
    parser.add_argument("--count", type=int, default=250, help="rounds in each flood; a multiple of four")
    asked = parser.parse_args()
    asyncio.run(HostileTrainer(asked.config, asked.victim, asked.count).run())


if __name__ == "__main__":
    main()
