"""Checks that every participant makes of an announcement: signatures, deadlines, epochs, invitations (DESIGN §4.1-4.2).

A process caches verified announcements by their bytes, so its many clients verify each one once and share the copy.
Checks that depend on the clock are made each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from weakref import WeakValueDictionary

import msgspec

from dca_proto.crypto import labels
from dca_proto.crypto.masks import holder_index
from dca_proto.crypto.sealing import ID_BYTES, AgreementKey, Random, check_public, digest, open_sealed, seal_to
from dca_proto.errors import PeerError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.params import EPOCH_KEYS_KNOWN_MAX, Limits, Timing
from dca_proto.protocol.policy import Policy, Refusal
from dca_proto.protocol.validation import ValidatedRound, validate_announcement
from dca_proto.protocol.wire.codec import body_of, decode_frame, encode, verify_signed
from dca_proto.protocol.wire.messages import Announcement, EpochKey, Invitation, Sealed, Signed
from dca_proto.wording import duration, moment


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
    return digest(labels.ANNOUNCEMENT, payload)


def open_announcement(
    frame: Signed, federation: Federation, limits: Limits, *, is_stored: bool = False
) -> OpenedAnnouncement:
    """Check an announcement's signatures with the federation file's keys, and its reply key. Raises `PeerError`.

    One that `is_stored` was verified before. So it may name Compute nodes that the file does not name any more.
    """
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
    if body.epochs and not body.kind.is_summed:
        raise PeerError("computes", found=f"{len(body.epochs)} Compute nodes", expected="none in a round of its kind")
    epochs, computes = open_epoch_keys(body.epochs, federation, is_stored=is_stored)
    is_present = len(federation.computes_among(computes)) == len(computes)
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
    return _verified.setdefault((payload, federation.hash), opened) if is_present else opened


@lru_cache(maxsize=EPOCH_KEYS_KNOWN_MAX)  # an epoch's rounds repeat the same keys; failures are not cached
def open_epoch_keys(
    frames: tuple[Signed, ...], federation: Federation, *, is_stored: bool = False
) -> tuple[tuple[EpochKey, ...], tuple[bytes, ...]]:
    """Check signed epoch keys of distinct Compute nodes, expired or not; return keys and ids. Raises `PeerError`.

    `is_stored`: of an announcement that was verified before; nodes may have left since.
    """
    read = [body_of(frame, EpochKey) for frame in frames]
    known = federation.computes_among(key.compute for key in read)
    epochs = tuple(
        key if is_stored and key.compute not in known else open_epoch_key(frame, federation)
        for key, frame in zip(read, frames, strict=True)
    )
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
    clocks = f"this clock or that of {body.trainer.hex()} is wrong"
    if now_ms >= until_ms:
        expected = (
            f"before {moment(until_ms)}, {duration(now_ms - until_ms)} earlier; {clocks}, or the message was delayed"
        )
        raise PeerError("late", found=f"a round's announcement at {moment(now_ms)} by this clock", expected=expected)
    if body.close_by_ms >= body.commit_by_ms:
        raise PeerError("deadline", found="a round that ends before it closes", expected="close_by before commit_by")
    if body.commit_by_ms > now_ms + timing.deadline_ahead_ms_max:
        found = f"a round that ends on {moment(body.commit_by_ms)}, {duration(body.commit_by_ms - now_ms)} from now"
        expected = f"at most {duration(timing.deadline_ahead_ms_max)} after {moment(now_ms)} by this clock; {clocks}"
        raise PeerError("deadline", found=found, expected=expected)
    if opened.first_expiry_ms is None:
        return
    latest_ms = last_commit_ms(opened.first_expiry_ms, timing)
    if body.commit_by_ms > latest_ms:
        found, expected = f"a round that ends on {moment(body.commit_by_ms)}", f"until {moment(latest_ms)}"
        raise PeerError("epoch", found=found, expected=f"{expected}, as its epoch keys allow")


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


def check_invited(ids: bytes, body: Announcement, limits: Limits) -> None:
    """Check, at a Compute node, that `ids` are exactly the clients that an announcement invites. Raises `PeerError`."""
    if len(ids) > ID_BYTES * limits.invited_max:
        raise PeerError("invited", found=f"{len(ids) // ID_BYTES} clients", expected=f"<= {limits.invited_max}")
    clients = [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]
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
    return digest(labels.LEAF, client)


def _node(left: bytes, right: bytes) -> bytes:
    return digest(labels.NODE, left, right)


# --- messages that only their receiver can read (§2.5, §4.7) ---------------------------------------------------------


def seal_answer(answer: Signed, opened: OpenedAnnouncement, random: Random) -> bytes:
    """Seal a signed answer to the announcement's trainer, bound to this round; return the encoded frame."""
    return _sealed(labels.REPLY, answer, opened, opened.body.reply_key, random)


def open_answer(frame: Sealed, reply_key: AgreementKey, opened_hash: bytes) -> Signed:
    """Decrypt what `seal_answer` sealed. Raises `PeerError`."""
    return _unsealed(labels.REPLY, frame, reply_key, opened_hash)


def seal_list(message: Signed, opened: OpenedAnnouncement, public: bytes, random: Random) -> bytes:
    """Seal a signed list to another Compute node's epoch key, bound to this round; return the encoded frame."""
    return _sealed(labels.PEER_LIST, message, opened, public, random)


def open_list(frame: Sealed, epoch_key: AgreementKey, opened_hash: bytes) -> Signed:
    """Decrypt what `seal_list` sealed. Raises `PeerError`."""
    return _unsealed(labels.PEER_LIST, frame, epoch_key, opened_hash)


def _sealed(label: bytes, message: Signed, opened: OpenedAnnouncement, public: bytes, random: Random) -> bytes:
    return encode(Sealed(opened.body.round_id, *seal_to(label, public, encode(message), opened.hash, random)))


def _unsealed(label: bytes, frame: Sealed, key: AgreementKey, opened_hash: bytes) -> Signed:
    inner = decode_frame(open_sealed(label, key, frame.ephemeral, frame.nonce, frame.ciphertext, opened_hash))
    if not isinstance(inner, Signed):
        raise PeerError("kind", found=type(inner).__name__, expected="Signed")
    return inner
