#!/usr/bin/env python
"""A malicious enrolled client: it attacks the broker and the members of its federation in many ways, one by one.

Its only secrets are its own key, certificate and password. `scripts/hostile_test.py` runs it against a federation and
checks that it has no effect. Run it only against a federation of your own.

Examples:

    scripts/hostile_client.py client-26.toml                     for a minute
    scripts/hostile_client.py client-26.toml --seconds 600 --seed 2 --json -
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import secrets
import ssl
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dca_proto.crypto.masks import ask_tag
from dca_proto.crypto.sealing import AgreementKey
from dca_proto.errors import PeerError
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.announcement import OpenedAnnouncement, open_announcement, seal_answer
from dca_proto.protocol.contribution import make_contribution
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.pairing import pair_key
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.wire.codec import decode_frame, encode, sign
from dca_proto.protocol.wire.kinds import SecureSum
from dca_proto.protocol.wire.messages import (
    Abort,
    AbortWanted,
    Announcement,
    Answer,
    Body,
    ChargeReused,
    Close,
    Contribution,
    Decline,
    Declines,
    EpochKey,
    Hello,
    HelloWanted,
    Progress,
    Query,
    SessionsWanted,
)
from dca_proto.protocol.wire.topics import root_of, subscriptions, topic_of
from dca_proto.runtime.config import read_config
from dca_proto.runtime.files import write_json
from dca_proto.runtime.keyfile import certificate_path, read_certificate, read_identity
from emulator.fuzz.forger import Forger, Known, Sealable, packet, publish

LOST = (OSError, ssl.SSLError, asyncio.IncompleteReadError, TimeoutError)
ANSWER_S, BURST_S = 5.0, 3.0
HEARD_MAX = 200
EPOCH_MS = Timing().epoch_ms


def text(value: str) -> bytes:
    """Encode a text for MQTT."""
    return len(value.encode()).to_bytes(2, "big") + value.encode()


class Wire:
    """A connection to the broker that can send any bytes.

    Args:
        heard: called with (topic, payload) of each message. acknowledges: whether it acknowledges messages.
    """

    def __init__(
        self,
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        heard: deque[tuple[str, bytes]],
        acknowledges: bool,
    ) -> None:
        self.reader, self.writer = connection
        self._heard, self._acknowledges = heard, acknowledges
        self._hearing = asyncio.create_task(self._hear())
        self.sent = 0

    async def send(self, data: bytes) -> None:
        """Send bytes; raise one of `LOST` if the connection has ended."""
        if self._hearing.done():
            raise ConnectionError("the broker has ended the connection")
        self.writer.write(data)
        self.sent += 1
        await asyncio.wait_for(self.writer.drain(), ANSWER_S)

    async def close(self) -> None:
        self._hearing.cancel()
        self.writer.transport.abort()
        await asyncio.gather(self._hearing, return_exceptions=True)

    async def _hear(self) -> None:
        while True:
            (head,) = await self.reader.readexactly(1)
            size, shift, more = 0, 0, 128
            while more & 128:
                (more,) = await self.reader.readexactly(1)
                size, shift = size | (more & 127) << shift, shift + 7
            body = await self.reader.readexactly(size)
            if head >> 4 == 3:
                at = 2 + int.from_bytes(body[:2], "big")
                qos = head >> 1 & 3
                self._heard.append((body[2:at].decode(), body[at + (2 if qos else 0) :]))
                if qos and self._acknowledges:
                    self.writer.write(packet(0x40, body[at : at + 2]))


class Attacker:
    """All attacks, with their state.

    Attributes:
        done: number of bursts, by attack. messages: packets that the broker accepted.
    """

    def __init__(self, path: Path, seed: int) -> None:
        config = read_config(path, ("client",))
        self.federation, self.settings = config.federation, config.broker
        self.identity = read_identity(config.files.identity, "client")
        self.certificate = read_certificate(certificate_path(config.files.identity), self.federation, _now_ms())
        self.rng = random.Random(seed)
        self.heard: deque[tuple[str, bytes]] = deque(maxlen=HEARD_MAX)
        self.own: list[tuple[str, bytes]] = []  # messages of its own, to be changed and repeated
        self.key, self.epoch = AgreementKey(secrets.token_bytes(32)), _now_ms() // EPOCH_MS
        self.done: Counter[str] = Counter()
        self.messages, self.charges = 0, _now_ms() // 1000 % (1 << 31)  # numbers that no earlier run has used
        self.members = [Address(Channel.COMPUTE, one.id) for one in self.federation.computes]
        self.members += [Address(Channel.TRAINER, one.id) for one in self.federation.trainers]

    # what it has

    def topic(self, to: Address, sender: bytes | None = None) -> str:
        return topic_of(self.federation.id, to, sender or self.identity.id)

    def any_topic(self) -> str:
        """Return the topic of a member's inbox, or of the Hellos."""
        return self.topic(self.rng.choice([*self.members, Address(Channel.HELLO)]))

    def signed(self, body: Body) -> bytes:
        return encode(sign(self.identity, self.federation.id, body))

    def hello(self, **changes: Any) -> bytes:
        """Return its own Hello, or a forged one."""
        ends_ms = (self.epoch + 1) * EPOCH_MS
        body = Hello(self.certificate, self.epoch, _now_ms(), self.key.public, ends_ms, self.federation.stamp)
        return self.signed(msgspec.structs.replace(body, **changes))

    def announced(self) -> list[OpenedAnnouncement]:
        """Return the announced rounds that it has heard of, the newest last."""
        found = []
        for topic, payload in list(self.heard):
            if "/announce/" in topic:
                with contextlib.suppress(PeerError, ValueError):
                    frame = decode_frame(payload[1:])
                    found.append(open_announcement(getattr(frame, "announcement", frame), self.federation, Limits()))
        return found

    def pair_keys(self, opened: OpenedAnnouncement) -> list[bytes]:
        own, federation = (self.identity.id, self.epoch), self.federation.id
        return [pair_key(self.key, one.public, federation, own, (one.compute, one.epoch)) for one in opened.epochs]

    def sealable(self) -> list[Sealable]:
        return [
            Sealable(one.body.round_id, one.hash, self.identity.id, node, key, 4 + 8 * len(one.computes) + 8)
            for one in self.announced()[-3:]
            if isinstance(one.body.kind, SecureSum)
            for node, key in zip(one.computes, self.pair_keys(one), strict=True)
        ]

    def forger(self) -> Forger:
        whole = [(topic, payload[1:]) for topic, payload in self.heard if payload[:1] == b"\0"]
        ids = [*(one.id for one in self.members), self.identity.id, bytes(16)]
        log = [*whole, *self.own, (self.topic(Address(Channel.HELLO)), self.hello())]
        return Forger(self.rng, Known(self.federation.id, ids, [self.identity], log, (), self.sealable()))

    # connections

    async def raw(self, *, tls: bool = True) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection without sending anything."""
        context = self.settings.tls_context() if tls else None
        name = self.settings.host if context else None
        opening = asyncio.open_connection(self.settings.host, self.settings.port, ssl=context, server_hostname=name)
        return await asyncio.wait_for(opening, ANSWER_S)

    def connect_packet(
        self, *, name: str | None = None, password: str | None = None, will: bytes = b"", flags: int = 0xC2
    ) -> bytes:
        own = self.identity.id.hex()
        shown = self.settings.read_password() if password is None else password
        head = text("MQTT") + bytes([4, flags]) + (60).to_bytes(2, "big")
        return packet(0x10, head + text(own) + will + text(name or own) + text(shown or ""))

    @contextlib.asynccontextmanager
    async def wire(self, *, acknowledges: bool = True, will: bytes = b"", flags: int = 0xC2) -> AsyncIterator[Wire]:
        """Connect under its own name; raise one of `LOST` if the broker refuses."""
        reader, writer = await self.raw()
        writer.write(self.connect_packet(will=will, flags=flags))
        try:
            answer = await asyncio.wait_for(reader.readexactly(4), ANSWER_S)
            if answer[3]:
                raise ConnectionError("refused")
        except LOST:
            writer.transport.abort()
            raise
        wire = Wire((reader, writer), self.heard, acknowledges)
        try:
            yield wire
        finally:
            self.messages += wire.sent
            await wire.close()

    async def listen(self, wire: Wire) -> None:
        filters = subscriptions(self.federation.id, Channel.CLIENT, self.identity.id)
        await wire.send(packet(0x82, b"\0\1" + b"".join(text(one) + b"\1" for one in filters)))

    # attacks: each one burst

    async def fuzz(self, wire: Wire) -> None:
        """Send the fuzzer's mutations of received and sent messages."""
        forger = self.forger()
        filters = [f"{self.topic(one).rpartition('/')[0]}/+" for one in (*self.members, Address(Channel.HELLO))]
        for _ in range(400):
            _, packets, spoils = forger.packets([self.rng.choice(filters)])
            if not spoils:
                await wire.send(b"".join(packets))

    async def replays(self, wire: Wire) -> None:
        for topic, payload in [*self.heard, *self.own] * 2:
            await wire.send(publish(topic, payload, 1))  # as it was: its access list forbids the sender
            await wire.send(publish(self.any_topic(), payload, 1))

    async def large_messages(self, wire: Wire) -> None:
        for _ in range(100):
            await wire.send(publish(self.any_topic(), b"\0" + self.rng.randbytes(250_000), 1))

    async def too_large_messages(self, wire: Wire) -> None:
        for _ in range(5):
            await wire.send(publish(self.any_topic(), bytes(10_000_000), 1))

    async def partial_messages(self, wire: Wire) -> None:
        """Send messages that never complete: many small ones and few large ones."""
        for _ in range(300):
            size = self.rng.choice((1, 100, 5_000, 250_000))
            digest = self.rng.choice((bytes(16), self.rng.randbytes(16)))
            place = self.rng.randrange(4000).to_bytes(2, "big") + (4096).to_bytes(2, "big")
            await wire.send(publish(self.any_topic(), b"\1" + digest + place + bytes(size), 1))

    async def retained(self, wire: Wire) -> None:
        odd = [
            f"{root_of(self.federation.id)}/{self.rng.randbytes(9).hex()}/all/{self.identity.id.hex()}"
            for _ in range(50)
        ]
        odd += [self.topic(Address(channel)) for channel in Channel if channel.is_broadcast]
        for topic in [*odd, *(self.topic(one) for one in self.members)]:
            data = publish(topic, b"\0" + self.rng.randbytes(self.rng.choice((10, 1000, 200_000))), 1)
            await wire.send(bytes([data[0] | 1]) + data[1:])
        data = publish(self.topic(Address(Channel.HELLO)), b"\0" + self.hello(), 1)
        await wire.send(bytes([data[0] | 1]) + data[1:])

    async def hellos(self, wire: Wire) -> None:
        """Send Hellos of other epochs, with keys of low order, ever newer, and with other certificates."""
        for count in range(100):
            ends_ms = (self.epoch + 1) * EPOCH_MS
            changes = self.rng.choice((
                {"epoch": max(0, self.epoch + self.rng.choice((-1000, -3, -1, 1, 2, 1000)))},
                {"serial": _now_ms() + count * 1000}, {"serial": (1 << 53) - 1}, {"public": bytes(32)},
                {"expires_ms": ends_ms + EPOCH_MS * 1000}, {"expires_ms": 0},
                {"certificate": msgspec.structs.replace(self.certificate, client_key=self.rng.randbytes(32))},
                {"certificate": msgspec.structs.replace(self.certificate, expires_ms=(1 << 53) - 1)},
            ))  # fmt: skip
            await wire.send(publish(self.topic(Address(Channel.HELLO)), b"\0" + self.hello(**changes), 1))
        await wire.send(publish(self.topic(Address(Channel.HELLO)), b"\0" + self.hello(), 1))

    async def contributions(self, wire: Wire) -> None:
        """Send contributions of wrong sizes, twice, with wrong tags, to wrong holders, for unannounced rounds."""
        forger, known = self.forger(), [one.body.round_id for one in self.announced()] or [bytes(16)]
        for _ in range(200):
            made = self.rng.choice((
                forger._contribution(b""),
                forger._contribution(b""),
                encode(Contribution(self.rng.choice(known), self.rng.randbytes(16), bytes(self.rng.randrange(500)))),
                encode(Contribution(self.rng.randbytes(16), bytes(16), bytes(self.rng.choice((60, 60_000))))),
            ))  # fmt: skip
            self.own = [*self.own[-50:], (self.any_topic(), made)]
            await wire.send(publish(self.any_topic(), b"\0" + made, 1))

    async def questions_for_aborts(self, wire: Wire) -> None:
        for opened in self.announced()[-20:] * 5:
            keys = self.pair_keys(opened) or [bytes(32)]
            tag = self.rng.choice((bytes(16), ask_tag(self.rng.choice(keys), opened.hash)))
            await wire.send(publish(self.any_topic(), b"\0" + encode(AbortWanted(opened.frame, tag)), 1))

    async def declines(self, wire: Wire) -> None:
        for opened in self.announced()[-20:] * 5:
            words = (self.rng.choice(("x", "\x1b[2J", "é" * 64)), "\x00" * 500, "\n" * 500)
            about = (opened.body.round_id, self.rng.choice((opened.hash, bytes(32))))
            body = Decline(*about, self.certificate, *words)
            sealed = seal_answer(sign(self.identity, self.federation.id, body), opened, secrets.token_bytes)
            await wire.send(publish(self.any_topic(), b"\0" + sealed, 1))

    async def both_answers(self, wire: Wire) -> None:
        """Contribute to the newest rounds as it should, and decline them as well, in either order."""
        for number, opened in enumerate(self.announced()[-5:]):
            if not isinstance(opened.body.kind, SecureSum):
                continue
            validated, holder = (
                opened.validated(DistributedDiscreteGaussian(), Limits()),
                opened.holder(self.identity.id),
            )
            keys, self.charges = self.pair_keys(opened), self.charges + 1
            contributed = make_contribution(
                np.zeros(validated.dimension, dtype=np.int64),
                validated=validated,
                mechanism=DistributedDiscreteGaussian(),
                identity=self.identity,
                hello=bytes(32),
                round_id=opened.body.round_id,
                announcement_hash=opened.hash,
                charge=self.charges,
                holder=holder.id,
                holder_key=keys[opened.computes.index(holder.id)],
                pair_keys=keys,
                random=secrets.token_bytes,
            )
            body = Decline(opened.body.round_id, opened.hash, self.certificate, "budget", "none is left", "more")
            declined = seal_answer(sign(self.identity, self.federation.id, body), opened, secrets.token_bytes)
            answers = [(holder, contributed.payload), (Address(Channel.TRAINER, opened.body.trainer), declined)]
            for to, payload in answers if number % 2 else reversed(answers):
                await wire.send(publish(self.topic(to), b"\0" + payload, 1))

    async def forged(self, wire: Wire) -> None:
        """Send messages that only nodes and trainers may send, with its own signature."""
        rounds = [(one.body.round_id, one.hash) for one in self.announced()] or [(bytes(16), bytes(32))]
        for _ in range(200):
            round_id, ah = self.rng.choice(rounds)
            node, head = self.rng.choice(self.members).id, (round_id, ah)
            body = self.rng.choice((
                Close(*head), Query(*head), Progress(*head, 25, 0, 0), Declines(*head, self.identity.id),
                SessionsWanted(self.federation.stamp, True, self.rng.randbytes(16)),
                Answer(*head, node, (bytes(32),) * 3, b""), Abort(*head, node, "too-few", "x" * 500, 0, 1, ()),
                EpochKey(node, self.epoch + 1000, self.key.public, (1 << 53) - 1, self.federation.stamp),
                HelloWanted(self.identity.id),
                ChargeReused(*head, self.identity.id, 1, 2**32 - 1),
            ))  # fmt: skip
            await wire.send(publish(self.any_topic(), b"\0" + self.signed(body), 1))
        for opened in self.announced()[-5:]:
            body = msgspec.structs.replace(opened.body, trainer=self.identity.id, round_id=self.rng.randbytes(16))
            assert isinstance(body, Announcement)
            await wire.send(publish(self.topic(Address(Channel.ANNOUNCE)), b"\0" + self.signed(body), 1))
            await wire.send(publish(self.any_topic(), b"\0" + self.signed(body), 1))

    async def subscriptions(self, wire: Wire) -> None:
        for filters in (("#",), ("dca/#",), ("$SYS/#",), ("+/+/+/+/+",), tuple(f"{n}/{'x' * 200}" for n in range(400))):
            await wire.send(packet(0x82, b"\0\1" + b"".join(text(one) + b"\1" for one in filters)))

    async def unfinished(self, wire: Wire) -> None:
        """Send QoS 2 without its second half; then questions without reading the answers."""
        for number in range(1, 500):
            await wire.send(publish(self.any_topic(), bytes(2000), 2, number))
        await wire.send(packet(0xC0, b"") * 10_000)

    # attacks that need no connection, or several

    async def strangers(self) -> None:
        """Attack without a password: others' names and passwords, random bytes, silent connections."""
        other = self.federation.computes[0].id.hex()
        for data in (
            self.connect_packet(password="wrong"), self.connect_packet(name=other),
            self.connect_packet(name="", password=""),
            packet(0x10, text("MQTT") + bytes([4, 2, 0, 60]) + text("")), publish(self.any_topic(), b"\0x", 1),
            self.rng.randbytes(500), b"\x10\xff\xff\xff\x7f" + bytes(1000), b"GET / HTTP/1.1\r\n\r\n",
        ):  # fmt: skip
            for tls in (True, False):
                _, writer = await self.raw(tls=tls)
                writer.write(data)
                await asyncio.sleep(0.01)
                writer.transport.abort()

    async def silent_connections(self) -> None:
        opened = [await self.raw(tls=False) for _ in range(50)]
        await asyncio.sleep(1)
        for _, writer in opened:
            writer.transport.abort()

    async def kills(self) -> None:
        """Connect and disconnect, over and over."""
        for _ in range(20):
            async with self.wire(flags=0xC0) as wire:
                await self.listen(wire)
                await wire.send(publish(self.any_topic(), bytes(5000), 1)[:-100])

    async def copies(self) -> None:
        """Open two connections with one identity, so that each ends the other."""
        for _ in range(20):
            async with self.wire() as one, self.wire() as other:
                for wire in (one, other):
                    with contextlib.suppress(*LOST):
                        await wire.send(publish(self.topic(Address(Channel.HELLO)), b"\0" + self.hello(), 1))

    async def deaf(self) -> None:
        """Subscribe, then acknowledge and read nothing for a while."""
        async with self.wire(acknowledges=False, flags=0xC0) as wire:
            await self.listen(wire)
            wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(2)

    async def wills(self) -> None:
        for to in (*self.members, Address(Channel.EPOCH), Address(Channel.ABORT)):
            for sender in (self.identity.id, to.id or self.members[0].id):
                async with self.wire(will=text(self.topic(to, sender)) + text("x" * 60_000), flags=0xE6):
                    pass

    # the whole

    async def run(self, seconds: float) -> None:
        """Run all attacks in random order, again and again."""
        over = time.monotonic() + seconds
        on_a_wire: tuple[Callable[[Wire], Awaitable[None]], ...] = (
            self.fuzz, self.replays, self.large_messages, self.too_large_messages, self.partial_messages, self.retained,
            self.hellos, self.contributions, self.questions_for_aborts, self.declines, self.both_answers, self.forged,
            self.subscriptions, self.unfinished,
        )  # fmt: skip
        alone = (self.strangers, self.silent_connections, self.kills, self.copies, self.deaf, self.wills)
        while time.monotonic() < over:
            attack = self.rng.choice((*on_a_wire, *on_a_wire, *alone))
            with contextlib.suppress(*LOST):
                async with asyncio.timeout(BURST_S + ANSWER_S):
                    await (attack() if attack in alone else self._on_a_wire(attack))
            self.done[attack.__name__] += 1

    async def _on_a_wire(self, attack: Callable[[Wire], Awaitable[None]]) -> None:
        async with self.wire() as wire:
            await self.listen(wire)
            await wire.send(publish(self.topic(Address(Channel.HELLO)), b"\0" + self.hello(), 1))
            await asyncio.sleep(0.2)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BURST_S):
                    await attack(wire)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="the client's TOML file")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write what was done to this file, or - for standard output")
    asked = parser.parse_args()
    attacker = Attacker(asked.config, asked.seed)
    asyncio.run(attacker.run(asked.seconds))
    write_json({"messages": attacker.messages, "attacks": dict(attacker.done)}, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
