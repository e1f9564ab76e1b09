"""What all participants of a round must see alike: announcement, roster and session hash (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from weakref import WeakValueDictionary

import msgspec

from dca_proto.core.codec import decode_body, decode_frame, encode, verify_signed
from dca_proto.core.errors import PeerError
from dca_proto.core.federation import Federation
from dca_proto.core.messages import Announcement, EpochKey, Sealed, Signed, Terms
from dca_proto.core.params import EPOCH_KEYS_KNOWN_MAX, Limits, Timing
from dca_proto.core.sealing import AgreementKey, Random, check_public, digest, open_sealed, seal_to


class OpenedAnnouncement(msgspec.Struct, frozen=True, weakref=True):
    """An announcement whose signatures hold.

    Attributes:
        frame: as it was signed. body: what it says. hash: of the frame, 32 bytes.
        epochs: the Compute nodes' epoch keys, in the announcement's order. computes: their ids, in the same order.
    """

    frame: Signed
    body: Announcement
    hash: bytes
    epochs: tuple[EpochKey, ...]
    computes: tuple[bytes, ...]


_held: WeakValueDictionary[bytes, OpenedAnnouncement] = WeakValueDictionary()
"""What this process's actors hold, by hash: each of many clients checks an announcement, and they keep one copy."""


def announcement_hash(frame: Signed) -> bytes:
    """Identifies an announcement, signature included."""
    return digest(b"dca1-announce", encode(frame))


def session_hash(terms: Terms) -> bytes:
    """Identifies a round as started: announcement, N, T, c, roster and deadlines."""
    return digest(b"dca1-session", encode(terms))


def roster_hash(members: Sequence[tuple[bytes, Signed]]) -> bytes:
    """Hash over the (client id, signed join) pairs, which stand sorted by id."""
    return digest(b"dca1-roster", *(part for client, join in members for part in (client, encode(join))))


def list_hash(session: bytes, entries: bytes) -> bytes:
    """Hash of a frozen list, and of the agreed set S, of one session."""
    return digest(b"dca1-list", session, entries)


def seal_answer(answer: Signed, opened: OpenedAnnouncement, random: Random) -> bytes:
    """An encoded frame that only the announcement's trainer can read, and only as part of this round."""
    sealed = seal_to(opened.body.reply_key, encode(answer), opened.hash, random)
    return encode(Sealed(opened.body.round_id, *sealed))


def open_answer(frame: Sealed, reply_key: AgreementKey, opened_hash: bytes) -> Signed:
    """Inverse of `seal_answer`, at the trainer. Raises `PeerError`."""
    plaintext = open_sealed(reply_key, frame.ephemeral, frame.nonce, frame.ciphertext, opened_hash)
    inner = decode_frame(plaintext)
    if not isinstance(inner, Signed):
        raise PeerError("kind", found=type(inner).__name__, expected="Signed")
    return inner


def open_announcement(frame: Signed, federation: Federation, limits: Limits) -> OpenedAnnouncement:
    """Check an announcement's signatures against the federation file, and its reply key. Raises `PeerError`."""
    if len(frame.body) > limits.announcement_bytes_max:
        raise PeerError("size", found=f"{len(frame.body)} bytes", expected=f"<= {limits.announcement_bytes_max}")
    body = decode_body(frame.body)
    if not isinstance(body, Announcement):
        raise PeerError("kind", found=type(body).__name__, expected="Announcement")
    verify_signed(frame, federation.trainer(body.trainer).key, federation.hash)
    check_public(body.reply_key)
    epochs, computes = open_epoch_keys(body.computes, federation)
    opened = OpenedAnnouncement(frame, body, announcement_hash(frame), epochs, computes)
    return _held.setdefault(opened.hash, opened)


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
    """Check a Compute node's signed epoch key against the federation file. Raises `PeerError`."""
    claimed = decode_body(frame.body)
    if not isinstance(claimed, EpochKey):
        raise PeerError("kind", found=type(claimed).__name__, expected="EpochKey")
    verify_signed(frame, federation.compute(claimed.compute).key, federation.hash)
    return claimed


def check_join_time(opened: OpenedAnnouncement, timing: Timing, now_ms: int) -> None:
    """No round is joined after its deadline, far ahead of it, or with keys that have expired. Raises `PeerError`."""
    body = opened.body
    if now_ms >= body.join_by_ms:
        raise PeerError("late", found=f"now {now_ms}", expected=f"before join_by {body.join_by_ms}")
    if not body.join_by_ms < body.close_by_ms <= now_ms + timing.deadline_ahead_ms_max:
        raise PeerError("deadline", found=f"close_by {body.close_by_ms}", expected="after join_by and not far ahead")
    over_ms = now_ms - timing.epoch_grace_ms
    expired = [epoch.compute.hex() for epoch in opened.epochs if over_ms >= epoch.expires_ms]
    if expired:
        raise PeerError("epoch", found=f"expired keys of {', '.join(expired)}", expected="current epoch keys")


def check_terms(terms: Terms, opened: OpenedAnnouncement, now_ms: int) -> None:
    """A start must repeat what was announced and leave time to share. Raises `PeerError`."""
    body = opened.body
    if terms.announcement_hash != opened.hash:
        raise PeerError("announcement", found="another announcement's hash", expected=opened.hash.hex())
    if (terms.tolerated, terms.colluders) != (body.tolerated, body.colluders):
        raise PeerError(
            "terms",
            found=f"T = {terms.tolerated}, c = {terms.colluders}",
            expected=f"T = {body.tolerated}, c = {body.colluders} as announced",
        )
    if not now_ms < terms.share_by_ms < terms.commit_by_ms <= body.close_by_ms:
        raise PeerError(
            "late",
            found=f"now {now_ms}, share_by {terms.share_by_ms}, commit_by {terms.commit_by_ms}",
            expected=f"now < share_by < commit_by <= close_by {body.close_by_ms}",
        )
