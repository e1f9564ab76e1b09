"""Splits large messages into parts and reassembles them, since brokers and devices limit the size of a packet.

    whole message    00 payload
    one of many      01 digest[16] index[u16] count[u16] piece

The digest is BLAKE2b over the whole payload. It identifies the message, so parts of a resent message complete an
earlier attempt. It is checked at the end, so a damaged or foreign part can spoil one message at most, and changes none.

The sender is not trusted: messages, parts, partial messages and their bytes are limited, per sender and in total. The
oldest partial message is dropped first. Age is the number of parts that arrived since, not a time.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, OrderedDict

import msgspec

from dca_proto.crypto import labels
from dca_proto.errors import UsageError
from dca_proto.protocol.params import MESSAGE_BYTES_MAX

PART_BYTES_DEFAULT = 256 * 1024
PART_BYTES_LEAST = 1024
_WHOLE = b"\x00"
_PART = 1
_HEAD = struct.Struct(">B16sHH")
_ENTRY_BYTES = 128  # memory overhead of a stored part
_PARTIAL_BYTES = 1024  # memory overhead of a partial message


class MessageCounts(msgspec.Struct, gc=False):
    """Counts of an actor's whole messages and their bytes, without MQTT's overhead."""

    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0


class PartLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver's limits. Beyond them, it drops the oldest partial message.

    A message has at most `message_bytes_max` bytes: three million numbers, or the list of half a million clients. All
    partial messages of one sender may take as much, so an unfinished message costs no more than a complete one.
    """

    message_bytes_max: int = MESSAGE_BYTES_MAX
    parts_max: int = 4096
    partial_per_sender_max: int = 8
    partial_max: int = 4096
    held_bytes_max: int = 256 << 20
    age_parts_max: int = 1_000_000


def split(payload: bytes, part_bytes_max: int = PART_BYTES_DEFAULT, *, retain: bool = False) -> list[bytes]:
    """Return the wire payloads that carry `payload`, each at most `part_bytes_max` bytes.

    Raises `UsageError` if it has more bytes or parts than receivers accept, or if it must be retained and needs several
    parts (a broker retains one payload per topic).
    """
    if len(payload) + len(_WHOLE) <= part_bytes_max:
        return [_WHOLE + payload]
    if retain:
        raise UsageError(
            f"a retained message must fit one part: found {len(payload)} bytes, expected below {part_bytes_max}"
        )
    room = part_bytes_max - _HEAD.size
    count = -(-len(payload) // room)
    limits = PartLimits()
    if len(payload) > limits.message_bytes_max:
        raise UsageError(
            f"found a message of {len(payload)} bytes, expected at most {limits.message_bytes_max}: ask for less"
        )
    if count > limits.parts_max:
        raise UsageError(
            f"a message of {len(payload)} bytes needs {count} parts of {part_bytes_max} bytes, receivers accept "
            f"{limits.parts_max}: raise part_bytes_max"
        )
    digest = _digest(payload)
    return [
        _HEAD.pack(_PART, digest, index, count) + payload[index * room : (index + 1) * room] for index in range(count)
    ]


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=16, person=labels.PARTS).digest()


class _Partial:
    """A message of which some parts have arrived."""

    __slots__ = ("bytes_held", "count", "pieces", "touched")

    def __init__(self, count: int) -> None:
        self.count = count
        self.pieces: dict[int, bytes] = {}
        self.bytes_held = _PARTIAL_BYTES
        self.touched = 0


class Assembler:
    """Reassembles messages from their parts, within limits.

    `dropped` counts the dropped wire payloads and partial messages by reason.
    """

    def __init__(self, limits: PartLimits | None = None) -> None:
        self._limits = limits or PartLimits()
        self._partials: OrderedDict[tuple[str, bytes], _Partial] = OrderedDict()  # least recently touched first
        self._per_sender: Counter[str] = Counter()  # partial messages
        self._bytes_of: Counter[str] = Counter()
        self._bytes_held = 0
        self._parts_seen = 0
        self.dropped: Counter[str] = Counter()

    def add(self, sender: str, wire: bytes) -> bytes | None:
        """Take one wire payload. Return the whole message if this completes it, else None."""
        if len(wire) > self._limits.message_bytes_max:
            self._drop("too large")
            return None
        if wire[:1] == _WHOLE:
            return wire[1:]
        if len(wire) <= _HEAD.size or wire[0] != _PART:
            self._drop("malformed")
            return None
        _, digest, index, count = _HEAD.unpack_from(wire)
        if not (2 <= count <= self._limits.parts_max and index < count):
            self._drop("malformed")
            return None
        return self._add_part((sender, digest), index, count, wire[_HEAD.size :])

    @property
    def bytes_held(self) -> int:
        """The memory that the partial messages take, in bytes."""
        return self._bytes_held

    def _add_part(self, key: tuple[str, bytes], index: int, count: int, piece: bytes) -> bytes | None:
        self._parts_seen += 1
        self._expire()
        partial = self._partials.get(key) or self._begin(key, count)
        if count != partial.count:
            self._forget(key, "inconsistent")
            return None
        partial.touched = self._parts_seen
        self._partials.move_to_end(key)
        if index not in partial.pieces:
            self._hold(key, partial, index, piece)
        most = self._limits.message_bytes_max + count * _ENTRY_BYTES + _PARTIAL_BYTES
        if partial.bytes_held > most:
            self._forget(key, "too large")
            return None
        if len(partial.pieces) == count:
            return self._complete(key, partial)
        while self._bytes_of[key[0]] > most:
            self._crowd_out(key[0])
        while self._bytes_held > self._limits.held_bytes_max:
            self._forget(next(iter(self._partials)), "crowded out")
        return None

    def _begin(self, key: tuple[str, bytes], count: int) -> _Partial:
        sender = key[0]
        if self._per_sender[sender] >= self._limits.partial_per_sender_max:
            self._crowd_out(sender)
        if len(self._partials) >= self._limits.partial_max:
            self._forget(next(iter(self._partials)), "crowded out")
        self._per_sender[sender] += 1
        partial = self._partials[key] = _Partial(count)
        self._count(key, partial.bytes_held)
        return partial

    def _hold(self, key: tuple[str, bytes], partial: _Partial, index: int, piece: bytes) -> None:
        partial.pieces[index] = piece
        partial.bytes_held += len(piece) + _ENTRY_BYTES
        self._count(key, len(piece) + _ENTRY_BYTES)

    def _count(self, key: tuple[str, bytes], more: int) -> None:
        self._bytes_held += more
        self._bytes_of[key[0]] += more

    def _complete(self, key: tuple[str, bytes], partial: _Partial) -> bytes | None:
        payload = b"".join(partial.pieces[index] for index in range(partial.count))
        if _digest(payload) != key[1]:
            self._forget(key, "damaged")
            return None
        self._forget(key)
        return payload

    def _crowd_out(self, sender: str) -> None:
        """Drop a sender's oldest partial message."""
        self._forget(next(key for key in self._partials if key[0] == sender), "crowded out")

    def _expire(self) -> None:
        oldest_allowed = self._parts_seen - self._limits.age_parts_max
        while self._partials and next(iter(self._partials.values())).touched < oldest_allowed:
            self._forget(next(iter(self._partials)), "aged out")

    def _forget(self, key: tuple[str, bytes], reason: str | None = None) -> None:
        partial = self._partials.pop(key)
        self._count(key, -partial.bytes_held)
        self._per_sender[key[0]] -= 1
        if not self._per_sender[key[0]]:
            del self._per_sender[key[0]], self._bytes_of[key[0]]
        if reason:
            self._drop(reason)

    def _drop(self, reason: str) -> None:
        self.dropped[reason] += 1
