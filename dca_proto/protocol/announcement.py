"""Checks that every participant makes of an announcement: signatures, deadlines, epochs, invitations (DESIGN §4.1-4.2).

A process caches verified announcements by their bytes, so its many clients verify each one once and share the copy.
Checks that depend on the clock are made each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import msgspec

from dca_proto.crypto.masks import holder_index
from dca_proto.crypto.sealing import AgreementKey, Random, check_public, digest, open_sealed, seal_to
from dca_proto.errors import PeerError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.kinds import ValidatedRound, validate_announcement
from dca_proto.protocol.params import EPOCH_KEYS_KNOWN_MAX, Limits, Timing
from dca_proto.protocol.wire.codec import body_of, decode_frame, encode, verify_signed
from dca_proto.protocol.wire.messages import Announcement, EpochKey, Invitation, Sealed, Signed

if TYPE_CHECKING:
    from dca_proto.protocol.policy import Policy, Refusal


class OpenedAnnouncement(msgspec.Struct, weakref=True, eq=False):
    """An announcement with verified signatures.

    Attributes:
        frame: the signed frame.
        payload: the encoded frame.
        body: the decoded announcement.
        hash: ah, the hash of the payload, 32 bytes.
        epochs: the Compute nodes' epoch keys, in the announcement's order.
        computes: the nodes' ids, in the same order.
        first_expiry_ms: when the first of these keys expires; None without Compute nodes.
        holders: addresses of the Compute nodes; without any, the trainer's.
        consents: cached decisions of this process's clients that depend only on the announcement and their policy.
    """

    frame: Signed
    payload: bytes
    body: Announcement
    hash: bytes
    epochs: tuple[EpochKey, ...]
    computes: tuple[bytes, ...]
    first_expiry_ms: int | None
    holders: tuple[Address, ...]
    consents: dict[object, tuple[ValidatedRound | Refusal, Policy, Mechanism]] = msgspec.field(default_factory=dict)
    _validated: dict[str, ValidatedRound] = msgspec.field(default_factory=dict)

    def validated(self, mechanism: Mechanism, limits: Limits) -> ValidatedRound:
        """Return the validated round, computed once per process. Raises `UsageError` if the announcement is invalid."""
        key = f"{mechanism.name}/{limits.dimension_max}"
        validated = self._validated.get(key)
        if validated is None:
            validated = self._validated[key] = validate_announcement(self.body, mechanism, limits)
        return validated

    def holder(self, client: bytes) -> Address:
        """Return the address of the Compute node that holds a client's contribution; without nodes, the trainer's."""
        return self.holders[holder_index(self.hash, client, len(self.holders))]


_verified: WeakValueDictionary[tuple[bytes, bytes], OpenedAnnouncement] = WeakValueDictionary()
"""Verified announcements that this process still uses, by encoded frame and federation file hash."""


def recall(payload: bytes, federation: Federation) -> OpenedAnnouncement | None:
    """Return the verified announcement of a payload, if this process has cached it."""
    return _verified.get((payload, federation.hash))


def announcement_hash(payload: bytes) -> bytes:
    """Return ah, which identifies an announcement and its signature, from its encoded frame."""
    return digest(b"dca4-announce", payload)


def open_announcement(frame: Signed, federation: Federation, limits: Limits) -> OpenedAnnouncement:
    """Check an announcement's signatures with the federation file's keys, and its reply key. Raises `PeerError`."""
    if len(frame.body) > limits.announcement_bytes_max:
        raise PeerError("size", found=f"{len(frame.body)} bytes", expected=f"<= {limits.announcement_bytes_max}")
    payload = encode(frame)
    known = recall(payload, federation)
    if known is not None:
        return known
    body = body_of(frame, Announcement)
    trainer = federation.trainer(body.trainer)
    federation.check_number(body.federation_number, body.federation_hash)  # first: its error names both files
    verify_signed(frame, trainer.key, federation.id)
    check_public(body.reply_key)
    if len(body.invited) not in (0, 32):
        raise PeerError("invited", found=f"a root of {len(body.invited)} bytes", expected="32 bytes, or none")
    epochs, computes = open_epoch_keys(body.terms.computes, federation)
    holders = tuple(Address(Channel.COMPUTE, compute) for compute in computes)
    opened = OpenedAnnouncement(
        frame,
        payload,
        body,
        announcement_hash(payload),
        epochs,
        computes,
        min((key.expires_ms for key in epochs), default=None),
        holders or (Address(Channel.TRAINER, body.trainer),),
    )
    return _verified.setdefault((payload, federation.hash), opened)


@lru_cache(maxsize=EPOCH_KEYS_KNOWN_MAX)  # an epoch's rounds repeat the same keys; failures are not cached
def open_epoch_keys(
    frames: tuple[Signed, ...], federation: Federation
) -> tuple[tuple[EpochKey, ...], tuple[bytes, ...]]:
    """Check signed epoch keys of distinct Compute nodes, expired or not; return keys and ids. Raises `PeerError`."""
    epochs = tuple(open_epoch_key(frame, federation) for frame in frames)
    computes = tuple(epoch.compute for epoch in epochs)
    if len(set(computes)) != len(computes):
        raise PeerError("computes", found="a Compute node twice", expected="distinct Compute nodes")
    return epochs, computes


def open_epoch_key(frame: Signed, federation: Federation) -> EpochKey:
    """Check a Compute node's signed epoch key with the federation file's keys. Raises `PeerError`."""
    key = body_of(frame, EpochKey)
    compute = federation.compute(key.compute)
    federation.check_stamp(key.file)
    verify_signed(frame, compute.key, federation.id)
    check_public(key.public)
    return key


def check_time(opened: OpenedAnnouncement, timing: Timing, now_ms: int, *, until_ms: int) -> None:
    """Refuse a round that begins too late, ends too far ahead, or outlasts its epoch keys.

    `until_ms` is `close_by` at a client, `commit_by` at a Compute node. Raises `PeerError`: ``late``, ``deadline`` or
    ``epoch``.
    """
    body = opened.body
    if now_ms >= until_ms:
        raise PeerError("late", found=f"now {now_ms}", expected=f"before {until_ms}")
    if not body.close_by_ms < body.commit_by_ms <= now_ms + timing.deadline_ahead_ms_max:
        raise PeerError("deadline", found=f"commit_by {body.commit_by_ms}", expected="after close_by, not far ahead")
    if opened.first_expiry_ms is None:
        return
    latest_ms = last_commit_ms(opened.first_expiry_ms, timing)
    if body.commit_by_ms > latest_ms:
        raise PeerError("epoch", found=f"commit_by {body.commit_by_ms}", expected=f"<= {latest_ms}, by the epoch keys")


def last_commit_ms(expires_ms: int, timing: Timing) -> int:
    """Return the latest `commit_by` for an epoch key: the abort grace must end before the key is deleted."""
    return expires_ms + timing.epoch_grace_ms - timing.abort_grace_ms


# --- invitations: a Merkle tree over the invited clients' ids (§4.9) ------------------------------------------------


def invitation_root(invited: Sequence[bytes]) -> bytes:
    """Return the Merkle root of strictly ascending ids; empty without ids, which invites everybody."""
    return _levels(invited)[-1][0] if invited else b""


def invitations(frame: Signed, invited: Sequence[bytes]) -> dict[bytes, Invitation]:
    """Return each invited client's message, by id. `invited` ascends strictly."""
    levels, messages = _levels(invited), {}
    for position, client in enumerate(invited):
        path, place = [], position
        for level in levels[:-1]:
            sibling = place ^ 1
            if sibling < len(level):
                path.append(level[sibling])
            place //= 2
        messages[client] = Invitation(frame, position, len(invited), tuple(path))
    return messages


def check_invitation(invitation: Invitation | None, client: bytes, body: Announcement) -> None:
    """Check that a client is invited: everybody is, or its path leads to the root. Raises `PeerError("invited")`."""
    if not body.invited:
        return
    if invitation is None or not 0 <= invitation.position < invitation.leaves:
        raise PeerError("invited", found="no path to the announced root", expected="an invitation of this client")
    place, width, path = invitation.position, invitation.leaves, iter(invitation.path)
    node = _leaf(client)
    while width > 1:
        if place ^ 1 < width:
            sibling = next(path, b"")
            node = _node(sibling, node) if place & 1 else _node(node, sibling)
        place, width = place // 2, (width + 1) // 2
    if node != body.invited or next(path, None) is not None:
        raise PeerError("invited", found="a path to another root", expected="an invitation of this client")


def check_invited(clients: Sequence[bytes], body: Announcement, limits: Limits) -> None:
    """Check, at a Compute node, that `clients` are exactly those that an announcement invites. Raises `PeerError`."""
    if len(clients) > limits.invited_max:
        raise PeerError("invited", found=f"{len(clients)} clients", expected=f"<= {limits.invited_max}")
    ascends = all(later > earlier for earlier, later in pairwise(clients))
    if bool(clients) != bool(body.invited) or not ascends or invitation_root(clients) != body.invited:
        raise PeerError("invited", found="ids of another root", expected="all clients that are invited, ascending")


def _levels(invited: Sequence[bytes]) -> list[list[bytes]]:
    """Return the tree's levels from the leaves to the root; an odd last node moves up unchanged."""
    levels = [[_leaf(client) for client in invited]]
    while len(level := levels[-1]) > 1:
        pairs = [_node(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
        levels.append(pairs + level[len(level) - len(level) % 2 :])
    return levels


def _leaf(client: bytes) -> bytes:
    return digest(b"dca4-leaf", client)


def _node(left: bytes, right: bytes) -> bytes:
    return digest(b"dca4-node", left, right)


# --- answers that only the trainer can read (§2.5) ------------------------------------------------------------------


def seal_answer(answer: Signed, opened: OpenedAnnouncement, random: Random) -> bytes:
    """Seal a signed answer to the announcement's trainer, bound to this round; return the encoded frame."""
    sealed = seal_to(opened.body.reply_key, encode(answer), opened.hash, random)
    return encode(Sealed(opened.body.round_id, *sealed))


def open_answer(frame: Sealed, reply_key: AgreementKey, opened_hash: bytes) -> Signed:
    """Decrypt what `seal_answer` sealed, or a list sealed to a Compute node's epoch key. Raises `PeerError`."""
    inner = decode_frame(open_sealed(reply_key, frame.ephemeral, frame.nonce, frame.ciphertext, opened_hash))
    if not isinstance(inner, Signed):
        raise PeerError("kind", found=type(inner).__name__, expected="Signed")
    return inner
