"""An announcement as every participant checks it: signatures, deadlines, epochs and invitations (DESIGN §4.1, §4.2).

A process remembers the announcements that it has verified, by every byte: each of many clients that it holds checks the
same one, and they keep one copy and one set of numbers. What depends on the clock is checked each time.
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
from dca_proto.protocol.kinds import SecureSum, ValidatedRound, validate_announcement
from dca_proto.protocol.params import EPOCH_KEYS_KNOWN_MAX, Limits, Timing
from dca_proto.protocol.wire.codec import body_of, decode_frame, encode, verify_signed
from dca_proto.protocol.wire.messages import Announcement, EpochKey, Invitation, Sealed, Signed

if TYPE_CHECKING:
    from dca_proto.protocol.policy import Policy, Refusal


class OpenedAnnouncement(msgspec.Struct, weakref=True, eq=False):
    """An announcement whose signatures hold.

    Attributes:
        frame: as it was signed; payload: encoded. body: what it says. hash: ah, of the frame, 32 bytes.
        epochs: the Compute nodes' epoch keys, in the announcement's order. computes: their ids, in the same order.
        first_expiry_ms: when the first of these keys expires. holders: the nodes' addresses.
        consents: what clients of this process found that depends on the announcement and their policy alone.
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
        """What it asks, worked out once in a process. Raises `UsageError` where it cannot be asked."""
        key = f"{mechanism.name}/{limits.dimension_max}"
        found = self._validated.get(key)
        if found is None:
            found = self._validated[key] = validate_announcement(self.body, mechanism, limits)
        return found

    def holder(self, client: bytes) -> Address:
        """The Compute node that holds a client's contribution; the trainer of a round without any."""
        return self.holders[holder_index(self.hash, client, len(self.holders))]


_verified: WeakValueDictionary[tuple[bytes, bytes], OpenedAnnouncement] = WeakValueDictionary()
"""What this process's actors hold, by the encoded frame and the federation file's hash."""


def recall(payload: bytes, federation: Federation) -> OpenedAnnouncement | None:
    """The announcement of a payload, if this process holds it verified."""
    return _verified.get((payload, federation.hash))


def announcement_hash(payload: bytes) -> bytes:
    """ah: identifies an announcement, signature included, by its encoded frame."""
    return digest(b"dca4-announce", payload)


def open_announcement(frame: Signed, federation: Federation, limits: Limits) -> OpenedAnnouncement:
    """Check an announcement's signatures by the federation file's keys, and its reply key. Raises `PeerError`."""
    if len(frame.body) > limits.announcement_bytes_max:
        raise PeerError("size", found=f"{len(frame.body)} bytes", expected=f"<= {limits.announcement_bytes_max}")
    payload = encode(frame)
    known = recall(payload, federation)
    if known is not None:
        return known
    body = body_of(frame, Announcement)
    trainer = federation.trainer(body.trainer)
    federation.check_number(body.federation_number, body.federation_hash)  # before a signature fails over it
    verify_signed(frame, trainer.key, federation.id)
    check_public(body.reply_key)
    if len(body.invited) not in (0, 32):
        raise PeerError("invited", found=f"a root of {len(body.invited)} bytes", expected="32 bytes, or none")
    signed = body.terms.computes if isinstance(body.terms, SecureSum) else ()
    epochs, computes = open_epoch_keys(signed, federation)
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


@lru_cache(maxsize=EPOCH_KEYS_KNOWN_MAX)  # they stay the same for an epoch, round after round; what fails is not kept
def open_epoch_keys(
    frames: tuple[Signed, ...], federation: Federation
) -> tuple[tuple[EpochKey, ...], tuple[bytes, ...]]:
    """The signed epoch keys of distinct Compute nodes, expired or not, and the nodes' ids. Raises `PeerError`."""
    epochs = tuple(open_epoch_key(frame, federation) for frame in frames)
    computes = tuple(epoch.compute for epoch in epochs)
    if len(set(computes)) != len(computes):
        raise PeerError("computes", found="a Compute node twice", expected="distinct Compute nodes")
    return epochs, computes


def open_epoch_key(frame: Signed, federation: Federation) -> EpochKey:
    """Check a Compute node's signed epoch key by the federation file's keys. Raises `PeerError`."""
    claimed = body_of(frame, EpochKey)
    compute = federation.compute(claimed.compute)
    federation.check_stamp(claimed.file)
    verify_signed(frame, compute.key, federation.id)
    check_public(claimed.public)
    return claimed


def check_time(opened: OpenedAnnouncement, timing: Timing, now_ms: int, *, until_ms: int) -> None:
    """No round is begun too late, far ahead, or with keys that do not outlast it.

    `until_ms` is `close_by` at a client, `commit_by` at a Compute node. Raises `PeerError`: ``late``, ``deadline`` or
    ``epoch``.
    """
    body = opened.body
    if now_ms >= until_ms:
        raise PeerError("late", found=f"now {now_ms}", expected=f"before {until_ms}")
    if not body.close_by_ms < body.commit_by_ms <= now_ms + timing.deadline_ahead_ms_max:
        raise PeerError("deadline", found=f"commit_by {body.commit_by_ms}", expected="after close_by, not far ahead")
    if opened.first_expiry_ms is not None and body.commit_by_ms > last_commit_ms(opened.first_expiry_ms, timing):
        latest_ms = last_commit_ms(opened.first_expiry_ms, timing)
        raise PeerError("epoch", found=f"commit_by {body.commit_by_ms}", expected=f"<= {latest_ms}, by the epoch keys")


def last_commit_ms(expires_ms: int, timing: Timing) -> int:
    """The latest `commit_by` that leaves the abort grace before an epoch key that expires then is deleted."""
    return expires_ms + timing.epoch_grace_ms - timing.abort_grace_ms


# --- invitations: a Merkle tree over the invited clients' ids (§4.9) ------------------------------------------------


def invitation_root(invited: Sequence[bytes]) -> bytes:
    """The root over ids that ascend strictly; empty for nobody, which asks everybody."""
    return _levels(invited)[-1][0] if invited else b""


def invitations(frame: Signed, invited: Sequence[bytes]) -> dict[bytes, Invitation]:
    """Each invited client's own message, by id. `invited` ascends strictly."""
    levels, made = _levels(invited), {}
    for position, client in enumerate(invited):
        path, place = [], position
        for level in levels[:-1]:
            sibling = place ^ 1
            if sibling < len(level):
                path.append(level[sibling])
            place //= 2
        made[client] = Invitation(frame, position, len(invited), tuple(path))
    return made


def check_invitation(invitation: Invitation | None, client: bytes, body: Announcement) -> None:
    """Whether a client is asked at all: everybody is, or its path leads to the root. Raises `PeerError("invited")`."""
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
    """At a Compute node: whether these are all clients that an announcement invites. Raises `PeerError`."""
    if len(clients) > limits.invited_max:
        raise PeerError("invited", found=f"{len(clients)} clients", expected=f"<= {limits.invited_max}")
    ascends = all(later > earlier for earlier, later in pairwise(clients))
    if bool(clients) != bool(body.invited) or not ascends or invitation_root(clients) != body.invited:
        raise PeerError("invited", found="ids of another root", expected="all clients that are invited, ascending")


def _levels(invited: Sequence[bytes]) -> list[list[bytes]]:
    """The tree from its leaves to its root; an odd last node moves up unchanged."""
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
    """An encoded frame that only the announcement's trainer can read, and only as part of this round."""
    sealed = seal_to(opened.body.reply_key, encode(answer), opened.hash, random)
    return encode(Sealed(opened.body.round_id, *sealed))


def open_answer(frame: Sealed, reply_key: AgreementKey, opened_hash: bytes) -> Signed:
    """Inverse of `seal_answer`, at the trainer. Raises `PeerError`."""
    inner = decode_frame(open_sealed(reply_key, frame.ephemeral, frame.nonce, frame.ciphertext, opened_hash))
    if not isinstance(inner, Signed):
        raise PeerError("kind", found=type(inner).__name__, expected="Signed")
    return inner
