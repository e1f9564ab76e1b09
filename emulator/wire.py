"""Messages and stored records, decoded for observers: bodies, announcements and contributions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import PeerError
from dca_proto.protocol.announcement import announcement_hash
from dca_proto.protocol.client.round import ROUNDS as CLIENT_ROUNDS
from dca_proto.protocol.client.round import StoredRound as ClientRound
from dca_proto.protocol.contribution import Outbound
from dca_proto.protocol.effects import Effect, Persist
from dca_proto.protocol.kinds import SecureSum
from dca_proto.protocol.records import decoded
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.messages import Announcement, Body, EpochKey, Frame, InvitedRound, Signed


class Asked(NamedTuple):
    """An announcement as an honest member has stored it: its hash, its nodes' keys, and at nodes who is invited."""

    body: Announcement
    hash: bytes
    epochs: tuple[EpochKey, ...]
    invited: frozenset[bytes] | None

    @property
    def computes(self) -> tuple[bytes, ...]:
        return tuple(key.compute for key in self.epochs)

    @property
    def terms(self) -> SecureSum:
        assert isinstance(self.body.terms, SecureSum), "no other has Compute nodes"
        return self.body.terms

    def holder(self, client: bytes) -> bytes:
        """Who holds a client's contribution: multiply-shift hashing, keyed by the announcement's hash (DESIGN §4.4)."""
        factor = int.from_bytes(self.hash[:8], "little") | 1
        hashed = factor * int.from_bytes(client[:8], "little") + int.from_bytes(self.hash[8:16], "little")
        return self.computes[(hashed % 2**64 >> 32) * len(self.epochs) >> 32]


def body_of(payload: bytes) -> Body | Frame | None:
    """The body of a signed message, or the frame itself; None where it cannot be read."""
    try:
        frame = decode_frame(payload)
        return decode_body(frame.body) if isinstance(frame, Signed) else frame
    except PeerError:
        return None


def asked_in(payload: bytes) -> Asked:
    """An announcement as a Compute node has stored it."""
    frame = decode_frame(payload)
    invited = None
    if isinstance(frame, InvitedRound):
        invited = frozenset(ids_in(frame.clients))
        frame = frame.announcement
    assert isinstance(frame, Signed), "an honest node has checked it"
    body = decode_body(frame.body)
    assert isinstance(body, Announcement), "an honest node has checked it"
    keys = [decode_body(one.body) for one in body.terms.computes] if isinstance(body.terms, SecureSum) else []
    epochs = tuple(key for key in keys if isinstance(key, EpochKey))
    return Asked(body, announcement_hash(encode(frame)), epochs, invited)


def ids_in(data: bytes) -> list[bytes]:
    """The ids that stand one after the other."""
    return [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]


def contributions_in(effects: Iterable[Effect]) -> list[tuple[bytes, Outbound]]:
    """What a client is about to send, with the round's id: in the write that pays for it, and in no later one."""
    found = []
    for effect in effects:
        if isinstance(effect, Persist) and effect.table == CLIENT_ROUNDS:
            stored = decoded(CLIENT_ROUNDS, effect.value, ClientRound)
            if stored.outbound is not None and not stored.aborted_by:
                found.append((effect.key, stored.outbound))
    return found
