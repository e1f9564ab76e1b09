"""Makes hostile variants of sent messages, by seed: changed, signed and sealed again, split, under odd topics."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dca_proto.crypto.masks import contribution_keys
from dca_proto.crypto.sealing import SINGLE_USE_NONCE, Identity, encrypt, seal_to
from dca_proto.protocol.wire.codec import decode_frame, encode, sign
from dca_proto.protocol.wire.messages import Contribution, Sealed, Signed
from dca_proto.runtime.parts import split

EDGES: tuple[Any, ...] = (
    *(0, 1, -1, 2**16, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, -(2**63), 2**64 - 1),
    *(0.0, -0.0, 0.5, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
    *(b"", b"\0", bytes(16), bytes(32), b"\xff" * 32, bytes(64), bytes(4096)),
    *("", "x", "\x1b[2J", "é" * 300, None, True, False, [], [[]], {}, {"x": 1}, [0] * 100),
)
"""Values that replace a field."""
_PACKET_EVERY = 200  # such a packet ends the connection
_RETAINED = 0.05  # the receiver drops most retained messages at once


class SealedSecret(msgspec.Struct, frozen=True):
    """The plaintext of a sealed message. `public`, `hash`: the key and announcement that it was sealed to.

    `label`: the purpose of its key.
    """

    round_id: bytes
    sender: bytes
    receiver: bytes
    label: bytes
    public: bytes
    hash: bytes
    inner: bytes


class Sealable(msgspec.Struct, frozen=True):
    """A contribution that a client could make. `length`: of its plaintext."""

    round_id: bytes
    hash: bytes
    client: bytes
    holder: bytes
    pair_key: bytes
    length: int


class Known(msgspec.Struct, frozen=True):
    """The knowledge of an attacker.

    Attributes:
        federation_id: part of every signature. ids: of actors that it may impersonate.
        keys: identities that it can sign with. log: past messages, as (topic, whole payload).
        secrets: sealed messages that it has opened. sealable: contributions that it can seal.
    """

    federation_id: bytes
    ids: Sequence[bytes]
    keys: Sequence[Identity]
    log: Sequence[tuple[str, bytes]]
    secrets: Sequence[SealedSecret] = ()
    sealable: Sequence[Sealable] = ()


class Forger:
    """Makes hostile inputs from messages of past rounds.

    Args:
        rng: source of all randomness. known: the attacker's knowledge.
    """

    def __init__(self, rng: random.Random, known: Known) -> None:
        self.rng = rng
        self._known, self._made = known, 0
        self._keys = {identity.id: identity for identity in known.keys}
        self._secrets = [secret for secret in known.secrets if secret.sender in self._keys]
        ways: tuple[tuple[int, Callable[[bytes], bytes]], ...] = (
            (3, self._bytes),
            (3, self._tree),
            (4, self._signed),
            (1, self._same),
            (1, self._noise),
            (1, self._contribution),
            (2, self._sealed),
        )
        self._ways = [way for weight, way in ways for _ in range(weight)]

    def packets(self, topics: Sequence[str]) -> tuple[str, list[bytes], bool]:
        """Return an input for an actor with these topic filters: its kind, its packets, and whether they may end the
        connection.
        """
        self._made += 1
        if self._made % _PACKET_EVERY == 0:
            return "packet", [self._raw()], True
        draw = self.rng.random()
        sent, payload = self.rng.choice(self._known.log)
        for _ in range(8):  # prefer messages meant for this actor
            if any(_fits(pattern, sent) for pattern in topics):
                break
            sent, payload = self.rng.choice(self._known.log)
        topic = self._topic(self.rng.choice(topics), bytes.fromhex(sent.rpartition("/")[2]))
        if draw < 0.15:
            return "topic", [self._publish(self._odd_topic(topic), b"\0" + payload)], False
        way, variant = self._forged(payload)
        if draw < 0.3:
            return "parts", [self._publish(topic, part) for part in self._parts(variant)], False
        return way.__name__.strip("_"), [self._publish(topic, b"\0" + variant)], False

    def forge(self, payload: bytes) -> bytes:
        """Return a hostile variant of a message."""
        return self._forged(payload)[1]

    def _forged(self, payload: bytes) -> tuple[Callable[[bytes], bytes], bytes]:
        way = self.rng.choice(self._ways)
        return way, way(payload)

    def _publish(self, topic: str | bytes, payload: bytes) -> bytes:
        qos, number = self.rng.choice((0, 1, 1, 1, 2)), self.rng.choice((0, 1, 2, 65_535))
        return publish(topic, payload, qos, number, retain=self.rng.random() < _RETAINED)

    # topics and packets

    def _topic(self, topic_filter: str, sender: bytes) -> str:
        """Return a topic that matches the filter, usually with the true sender."""
        claimed = sender if self.rng.random() < 0.7 else self.rng.choice(self._known.ids)
        *head, _ = topic_filter.split("/")
        return "/".join([*head, claimed.hex()])

    def _odd_topic(self, topic: str) -> str | bytes:
        parts, rng = topic.split("/"), self.rng
        place = rng.randrange(len(parts))
        long = "f" * rng.choice((31, 33, 64, 40_000))
        odd = ("", "+", "#", "\0", "é", "\ud800", long, parts[place].upper(), "$SYS", "a/b")
        match rng.randrange(4):
            case 0:
                parts[place] = rng.choice(odd)
            case 1:
                parts[-1] = rng.choice(odd)
            case 2:
                parts.insert(place, rng.choice(odd))
            case 3:
                return self._bytes(topic.encode())
        return "/".join(parts)[:60_000] or "x"

    def _parts(self, payload: bytes) -> list[bytes]:
        """Split a message in parts, some lost, repeated, reordered, damaged or made up."""
        parts, rng = split(payload, max(64, len(payload) // self.rng.randrange(2, 10) + 25)), self.rng
        for _ in range(rng.randrange(4)):
            place = rng.randrange(len(parts))
            match rng.randrange(5):
                case 0:
                    parts[place] = self._bytes(parts[place])
                case 1 if len(parts) > 1:
                    del parts[place]
                case 2:
                    parts.append(parts[place])
                case 3:
                    digest = rng.choice((bytes(16), rng.randbytes(16)))
                    claimed = b"".join(rng.choice((0, 1, 2, 255, 4095, 65_535)).to_bytes(2, "big") for _ in range(2))
                    parts.append(b"\1" + digest + claimed + rng.randbytes(rng.randrange(300)))
                case _:
                    rng.shuffle(parts)
        return parts

    def _raw(self) -> bytes:
        """Return raw bytes for the connection: malformed or unexpected packets."""
        rng = self.rng
        topic, payload = rng.choice(self._known.log)
        match rng.randrange(6):
            case 0:
                return rng.randbytes(rng.randrange(1, 200))
            case 1:
                return self._bytes(publish(topic, b"\0" + payload, 1))
            case 2:
                return packet(rng.randrange(256), rng.randbytes(rng.randrange(40)))
            case 3:
                return bytes([rng.randrange(256)]) + b"\xff" * rng.randrange(6) + rng.randbytes(20)
            case 4:
                return packet(rng.choice((0x20, 0x40, 0x50, 0x62, 0x70, 0x90, 0xB0)), bytes(rng.randrange(5)))
            case _:
                return publish(topic, payload)[: rng.randrange(1, 30)]

    # messages

    def _same(self, payload: bytes) -> bytes:
        return payload

    def _noise(self, payload: bytes) -> bytes:
        return self.rng.randbytes(self.rng.randrange(200))

    def _bytes(self, payload: bytes) -> bytes:
        """Flip, change, cut, repeat or insert bytes."""
        data, rng = bytearray(payload), self.rng
        for _ in range(rng.randrange(1, 5)):
            place = rng.randrange(len(data) + 1)
            match rng.randrange(6):
                case 0 if place < len(data):
                    data[place] ^= 1 << rng.randrange(8)
                case 1 if place < len(data):
                    data[place] = rng.randrange(256)
                case 2:
                    data[place:place] = rng.randbytes(rng.randrange(1, 9))
                case 3 if rng.random() < 0.3:
                    del data[place:]
                case 4:
                    data[place:place] = data[place : place + rng.randrange(40)]
                case _:
                    del data[place : place + rng.randrange(3)]
        return bytes(data)

    def _tree(self, payload: bytes) -> bytes:
        """Change some values in a MessagePack array, which stays well-formed."""
        tree = msgspec.msgpack.decode(payload)
        for _ in range(self.rng.randrange(1, 3)):
            self._change(tree)
        return msgspec.msgpack.encode(tree)

    def _change(self, tree: Any) -> None:
        """Change one value anywhere in the tree."""
        rng = self.rng
        while True:
            places = list(range(len(tree)) if isinstance(tree, list) else tree)
            if not places:
                return
            place = rng.choice(places)
            inner = tree[place]
            if isinstance(inner, list | dict) and inner and rng.random() < 0.8:
                tree = inner
                continue
            alike = [edge for edge in EDGES if type(edge) is type(inner)]
            match rng.randrange(10):
                case 0 | 1 | 2 if isinstance(inner, bytes):
                    tree[place] = rng.randbytes(len(inner))
                case 3 if isinstance(inner, bytes):
                    tree[place] = self._bytes(inner)
                case 0 | 1 | 2 if isinstance(inner, int | float) and abs(inner) < 2**62:
                    tree[place] = inner + rng.choice((-1, 1, 1000, 10**6, -(10**6)))
                case 4 if isinstance(tree, list):
                    tree.insert(place, copy.deepcopy(rng.choice((inner, *EDGES))))
                case 5:
                    tree[place] = copy.deepcopy(rng.choice(EDGES))
                case _ if alike:
                    tree[place] = copy.deepcopy(rng.choice(alike))
            return

    def _signed(self, payload: bytes) -> bytes:
        """Change the body of a signed message and sign it anew, with its author's key if the attacker has it."""
        tree = msgspec.msgpack.decode(payload)
        rng = self.rng
        inside = (part for part in (tree, *tree) if isinstance(part, list) and part and part[0] == 1)
        frame = next(inside, None)
        if frame is None:
            return self._tree(payload)
        frame[1] = self._tree(frame[1])
        identity = rng.choice(list(self._keys.values()))
        named = [key for key in self._keys.values() if key.id in frame[1] or key.public_key in frame[1]]
        if named and rng.random() < 0.9:
            identity = named[0]
        frame[2] = sign(identity, self._known.federation_id, frame[1]).signature
        return msgspec.msgpack.encode(tree)

    def _sealed(self, payload: bytes) -> bytes:
        """Change the content of a sealed message, sign and seal it anew."""
        if not self._secrets:
            return self._tree(payload)
        secret = self.rng.choice(self._secrets)
        frame = decode_frame(secret.inner)
        assert isinstance(frame, Signed), "what is sealed is signed"
        body = self._tree(frame.body)
        signed = encode(sign(self._keys[secret.sender], self._known.federation_id, body))
        inner = self.rng.choice((signed, signed, signed, self._bytes(secret.inner), secret.inner))
        sealed = seal_to(secret.label, secret.public, inner, secret.hash, self.rng.randbytes)
        return encode(Sealed(secret.round_id, *sealed))

    def _contribution(self, payload: bytes) -> bytes:
        """Return a correctly sealed contribution with a random plaintext."""
        if not self._known.sealable:
            return self._tree(payload)
        sealable, identity = self.rng.choice(self._known.sealable), self.rng.randbytes(16)
        hidden = self.rng.randbytes(max(0, sealable.length + self.rng.choice((0, 0, 0, 1, -1, 8, -8, 1000))))
        bound = b"".join((sealable.hash, sealable.client, sealable.holder, identity))
        seal = contribution_keys(sealable.pair_key, sealable.hash, identity).seal
        ciphertext = encrypt(seal, SINGLE_USE_NONCE, hidden, bound)
        return encode(Contribution(sealable.round_id, identity, ciphertext))


def packet(head: int, body: bytes) -> bytes:
    """Return an MQTT packet."""
    size, left = b"", len(body)
    while left or not size:
        left, low = left >> 7, left & 127
        size += bytes([low | (left > 0) << 7])
    return bytes([head]) + size + body


def publish(topic: str | bytes, payload: bytes, qos: int = 0, number: int = 1, *, retain: bool = False) -> bytes:
    """Return a PUBLISH packet. `retain`: with the flag of a retained message."""
    name = topic.encode(errors="surrogatepass") if isinstance(topic, str) else topic
    place = number.to_bytes(2, "big") if qos else b""
    return packet(0x30 | qos << 1 | retain, len(name).to_bytes(2, "big") + name + place + payload)


def _fits(topic_filter: str, topic: str) -> bool:
    levels = zip(topic_filter.split("/"), topic.split("/"), strict=True)
    return all(level in ("+", other) for level, other in levels)
