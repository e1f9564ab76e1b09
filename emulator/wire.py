"""Decodes messages and stored records for observers: bodies, announcements, contributions and vectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dca_proto.crypto.masks import RingVector
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import PeerError
from dca_proto.protocol.announcement import announcement_hash
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.client.round import ROUNDS as CLIENT_ROUNDS
from dca_proto.protocol.contribution import ClientMessage
from dca_proto.protocol.effects import Effect, Persist
from dca_proto.protocol.records import decoded
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.kinds import SecureSum, VerifiedSum
from dca_proto.protocol.wire.messages import Announcement, Body, EpochKey, Frame, InvitedRound, Signed
from emulator import reference, verified


class Counts(NamedTuple):
    """n_min and n_max of a secure sum, and the number of its noises that a coalition does not know, at least."""

    n_min: int
    n_max: int
    honest: int


def counts_of(kind: SecureSum) -> Counts:
    """Return what N, T, c and n_max of a secure sum state (DESIGN §4.1), without the code under test."""
    n_min = kind.clients - kind.tolerate + kind.colluders
    return Counts(n_min, kind.most or 2 * kind.clients, n_min - 1 - kind.colluders)


class Accepted(NamedTuple):
    """An announcement as an honest member stored it.

    `invited`: the clients invited, as a Compute node stores them; None if all are.
    """

    body: Announcement
    hash: bytes
    epochs: tuple[EpochKey, ...]
    invited: frozenset[bytes] | None

    @property
    def computes(self) -> tuple[bytes, ...]:
        return tuple(key.compute for key in self.epochs)

    @property
    def counts(self) -> Counts:
        """The numbers of a secure sum."""
        assert isinstance(self.body.kind, SecureSum), "only secure sums have Compute nodes"
        return counts_of(self.body.kind)

    def holder(self, client: bytes) -> bytes:
        """Return the holder of a client's contribution, by multiply-shift hashing (DESIGN §4.4)."""
        factor = int.from_bytes(self.hash[:8], "little") | 1
        hashed = factor * int.from_bytes(client[:8], "little") + int.from_bytes(self.hash[8:16], "little")
        return self.computes[(hashed % 2**64 >> 32) * len(self.epochs) >> 32]


def body_of(payload: bytes) -> Body | Frame | None:
    """Return the body of a signed message, the frame of an unsigned one, or None if it cannot be decoded."""
    try:
        frame = decode_frame(payload)
        return decode_body(frame.body) if isinstance(frame, Signed) else frame
    except PeerError:
        return None


def decode_accepted(payload: bytes) -> Accepted:
    """Decode an announcement, or an announcement with its invited clients, as an honest member stored it."""
    frame = decode_frame(payload)
    invited = None
    if isinstance(frame, InvitedRound):
        invited = frozenset(ids_in(frame.clients))
        frame = frame.announcement
    assert isinstance(frame, Signed), "an honest member has checked it"
    body = decode_body(frame.body)
    assert isinstance(body, Announcement), "an honest member has checked it"
    keys = [decode_body(signed.body) for signed in body.epochs]
    epochs = tuple(key for key in keys if isinstance(key, EpochKey))
    return Accepted(body, announcement_hash(encode(frame)), epochs, invited)


def statement_of(body: Announcement) -> verified.Statement | None:
    """Return what each client of a verified sum proves; None of any other round."""
    kind = body.kind
    if not isinstance(kind, VerifiedSum):
        return None
    terms = (body.statistic, body.parameters, body.rows_max, body.fraction_bits)
    return verified.statement_of(*terms, kind.noises, kind.noise_bits)


def slack_of(body: Announcement) -> float:
    """Return the slack that a round costs each participant beside its μ; 0 unless it is a verified sum."""
    is_verified = isinstance(body.kind, VerifiedSum)
    return verified.slack(reference.dimension(body.statistic, body.parameters)) if is_verified else 0.0


def words_in(data: bytes) -> RingVector:
    """Decode a vector of 64-bit words."""
    return np.frombuffer(data, dtype="<u8").astype(np.uint64)


def ids_in(data: bytes) -> list[bytes]:
    """Split concatenated ids."""
    return [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]


def contributions_in(effects: Iterable[Effect]) -> list[tuple[bytes, ClientMessage]]:
    """Return the contributions that these writes of a client pay for, each with its round id."""
    contributions = []
    for effect in effects:
        if isinstance(effect, Persist) and effect.table == CLIENT_ROUNDS:
            stored = decoded(CLIENT_ROUNDS, effect.value, client_round.StoredClientRound)
            if stored.outbound is not None and not stored.aborted_by:
                contributions.append((effect.key, stored.outbound))
    return contributions
