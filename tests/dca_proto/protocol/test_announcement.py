"""An announcement as every participant checks it: signatures, deadlines, epochs, memory, and invitations."""

from __future__ import annotations

import gc
import hashlib
from typing import Any

import msgspec
import pytest

import dca_proto.protocol.announcement as module
from dca_proto.crypto.sealing import AgreementKey, Identity
from dca_proto.errors import PeerError
from dca_proto.protocol.announcement import (
    OpenedAnnouncement,
    check_invitation,
    check_time,
    invitation_root,
    invitations,
    last_commit_ms,
    open_announcement,
    open_answer,
    open_epoch_keys,
    recall,
    seal_answer,
)
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.wire.codec import encode, sign
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, SecureSum
from dca_proto.protocol.wire.messages import Announcement, EpochKey, Invitation, Query, Signed
from dca_proto.testing import TestFederation, seeded

NOW_MS = 1_700_000_000_000
TIMING = Timing()
CAST = TestFederation(4, 3)
OTHER = TestFederation(4, 3, name="other")
REPLY = AgreementKey(bytes(range(32)))
QUESTION = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}


def epoch_key(index: int, actors: TestFederation = CAST, **changes: Any) -> Signed:
    public = AgreementKey(bytes((index + 1,)) * 32).public
    plain = EpochKey(actors.computes[index], 9, public, NOW_MS + 10_000_000, actors.federation.stamp)
    signer = changes.pop("signer", actors.compute_identities[index])
    return sign(signer, actors.federation.id, msgspec.structs.replace(plain, **changes))


def announcement(**changes: Any) -> Announcement:
    keys = changes.pop("keys", tuple(epoch_key(index) for index in range(3)))
    plain = Announcement(
        b"r" * 16, CAST.trainer_identity.id, 1, CAST.federation.hash, "sum", QUESTION, 0, 24,
        0.2, 1.0, 1e-6, SecureSum("distributed-discrete-gaussian", 4, 1), keys,
        REPLY.public, b"", NOW_MS + 1000, NOW_MS + 2000,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def signed(body: Any = None, signer: Identity | None = None, actors: TestFederation = CAST) -> Signed:
    return sign(signer or CAST.trainer_identity, actors.federation.id, announcement() if body is None else body)


def opened(limits: Limits | None = None, **changes: Any) -> OpenedAnnouncement:
    return open_announcement(signed(announcement(**changes)), CAST.federation, limits or Limits())


def refusal(frame: Signed, limits: Limits | None = None) -> str:
    with pytest.raises(PeerError) as caught:
        open_announcement(frame, CAST.federation, limits or Limits())
    return caught.value.code


# Signatures


def test_an_announcement_opens_with_all_that_it_binds() -> None:
    frame = signed()
    found = open_announcement(frame, CAST.federation, Limits())
    assert (found.frame, found.payload, found.body) == (frame, encode(frame), announcement())
    assert found.computes == CAST.computes
    assert [key.compute for key in found.epochs] == list(CAST.computes)
    framed = len(found.payload).to_bytes(8, "little") + found.payload
    assert found.hash == hashlib.blake2b(framed, digest_size=32, person=b"dca5-announce").digest()


def test_ah_is_of_the_signature_too() -> None:
    """So that two signatures of one body (Ed25519 makes one, a hostile trainer more) are two announcements."""
    assert len({opened().hash, opened(mu=0.1).hash, opened(invited=b"i" * 32).hash}) == 3
    frame = signed()
    other = Signed(frame.body, frame.signature[:-1] + bytes((frame.signature[-1] ^ 1,)))
    assert module.announcement_hash(encode(frame)) != module.announcement_hash(encode(other))


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (signed(signer=CAST.client_identities[0]), "signature"),
        (signed(actors=OTHER), "signature"),
        (signed(announcement(trainer=CAST.computes[0])), "unknown-trainer"),
        (signed(announcement(reply_key=bytes(32))), "key"),
        (signed(announcement(invited=b"i" * 31)), "invited"),
        (signed(announcement(invited=b"i")), "invited"),
        (signed(announcement(keys=(epoch_key(0), epoch_key(0)))), "computes"),
        (signed(announcement(keys=(epoch_key(0), epoch_key(0, epoch=8)))), "computes"),
        (signed(announcement(keys=(epoch_key(0), epoch_key(1, signer=CAST.compute_identities[0])))), "signature"),
        (signed(announcement(keys=(epoch_key(0), epoch_key(1, actors=OTHER)))), "unknown-compute"),
        (signed(announcement(keys=(epoch_key(0), epoch_key(1, public=bytes(32))))), "key"),
        (signed(announcement(keys=(epoch_key(0), signed(Query(bytes(16), bytes(32)))))), "kind"),
        (signed(Query(bytes(16), bytes(32))), "kind"),
        (signed(announcement(kind=NodeRelease())), "computes"),
        (signed(announcement(kind=LdpReport("grid-laplace"), keys=(epoch_key(0),))), "computes"),
        (Signed(b"", bytes(64)), "malformed"),
    ],
)
def test_what_opens_as_no_announcement(frame: Signed, code: str) -> None:
    assert refusal(frame) == code
    assert refusal(frame) == code, "what failed is not remembered as good"


def test_every_byte_of_the_body_is_signed() -> None:
    frame = signed()
    for at in range(3, len(frame.body)):
        body = frame.body[:at] + bytes((frame.body[at] ^ 1,)) + frame.body[at + 1 :]
        assert refusal(Signed(body, frame.signature)) in (
            "signature", "malformed", "kind", "unknown-trainer", "unknown-compute", "federation", "key", "computes",
            "invited",
        )  # fmt: skip


def test_an_announcement_that_is_too_long_is_not_even_decoded() -> None:
    frame = signed()
    limit = len(frame.body)
    assert refusal(frame, Limits(announcement_bytes_max=limit - 1)) == "size"
    open_announcement(frame, CAST.federation, Limits(announcement_bytes_max=limit))


def test_a_round_without_compute_nodes_is_held_by_its_trainer() -> None:
    found = opened(kind=NodeRelease(), keys=())
    assert (found.epochs, found.computes, found.first_expiry_ms) == ((), (), None)
    holder = found.holder(CAST.clients[0])
    assert (holder.channel, holder.id) == (Channel.TRAINER, CAST.trainer_identity.id)
    summed = opened().holder(CAST.clients[0])
    assert summed.channel is Channel.COMPUTE
    assert summed.id in CAST.computes


# Memory


@pytest.mark.long
def test_a_process_verifies_an_announcement_once_while_it_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[bytes] = []
    verify = module.verify_signed

    def counting(frame: Signed, *rest: Any) -> None:
        counted.append(frame.body)
        verify(frame, *rest)

    monkeypatch.setattr(module, "verify_signed", counting)
    frame = signed(announcement(round_id=b"once" * 4))
    first = open_announcement(frame, CAST.federation, Limits())
    assert counted.count(frame.body) == 1
    again = open_announcement(Signed(frame.body, frame.signature), CAST.federation, Limits())
    assert again is first is recall(encode(frame), CAST.federation)
    assert counted.count(frame.body) == 1
    del first, again
    gc.collect()
    assert recall(encode(frame), CAST.federation) is None, "nobody holds it any more"
    open_announcement(frame, CAST.federation, Limits())
    assert counted.count(frame.body) == 2


def test_what_is_remembered_is_of_every_byte_and_of_one_federation() -> None:
    frame = signed()
    held = open_announcement(frame, CAST.federation, Limits())
    assert held is recall(encode(frame), CAST.federation)
    assert recall(encode(frame), OTHER.federation) is None
    payload = encode(frame)
    for at in range(len(payload)):
        assert recall(payload[:at] + bytes((payload[at] ^ 1,)) + payload[at + 1 :], CAST.federation) is None
    bad = Signed(frame.body, frame.signature[:5] + bytes((frame.signature[5] ^ 1,)) + frame.signature[6:])
    assert refusal(bad) == "signature", "while the good one is held"


def test_epoch_keys_are_verified_once_for_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    open_epoch_keys.cache_clear()
    first, second = opened(round_id=b"a" * 16), opened(round_id=b"b" * 16)
    assert first.epochs is second.epochs
    assert open_epoch_keys.cache_info().misses == 1


# Time


def check(found: OpenedAnnouncement, now_ms: int, until_ms: int | None = None) -> str | None:
    try:
        check_time(found, TIMING, now_ms, until_ms=found.body.close_by_ms if until_ms is None else until_ms)
    except PeerError as error:
        return error.code
    return None


def test_no_round_is_begun_from_its_deadline_on() -> None:
    """A client's is `close_by`, a Compute node's `commit_by`."""
    found = opened()
    for until_ms in (found.body.close_by_ms, found.body.commit_by_ms):
        assert check(found, until_ms - 1, until_ms) is None
        assert check(found, until_ms, until_ms) == "late"


def test_deadlines_are_in_order_and_not_far_ahead() -> None:
    far_ms = TIMING.deadline_ahead_ms_max
    late_key = tuple(epoch_key(index, expires_ms=NOW_MS + 2 * far_ms) for index in range(3))
    assert check(opened(commit_by_ms=NOW_MS + far_ms, keys=late_key), NOW_MS) is None
    assert check(opened(commit_by_ms=NOW_MS + far_ms + 1, keys=late_key), NOW_MS) == "deadline"
    assert check(opened(close_by_ms=NOW_MS + 2000), NOW_MS) == "deadline", "close_by is commit_by"
    assert check(opened(close_by_ms=NOW_MS + 2001), NOW_MS) == "deadline"
    assert check(opened(close_by_ms=NOW_MS + 1999), NOW_MS) is None


def test_every_epoch_key_outlasts_the_round_and_the_abort_grace() -> None:
    """Two hours of the key's grace, less the hour in which aborts can be asked for; the first key to end decides."""
    assert last_commit_ms(5, TIMING) == 5 + TIMING.epoch_grace_ms - TIMING.abort_grace_ms
    for place in range(3):
        keys = tuple(
            epoch_key(index, expires_ms=NOW_MS - (3_600_000 - 5000 if index == place else 0)) for index in range(3)
        )
        assert check(opened(keys=keys, commit_by_ms=NOW_MS + 5000), NOW_MS) is None
        assert check(opened(keys=keys, commit_by_ms=NOW_MS + 5001), NOW_MS) == "epoch"
    assert check(opened(kind=NodeRelease(), keys=(), commit_by_ms=NOW_MS + 10**9), NOW_MS) is None, "there are no keys"


# Invitations


IDS = sorted(hashlib.blake2b(bytes((index,)), digest_size=16).digest() for index in range(33))
FRAME = Signed(b"announcement", bytes(64))


def framed(person: bytes, *parts: bytes) -> bytes:
    data = b"".join(piece for part in parts for piece in (len(part).to_bytes(8, "little"), part))
    return hashlib.blake2b(data, digest_size=32, person=person).digest()


def root_by_hand(ids: list[bytes]) -> bytes:
    """By recursion: the left part holds the largest power of two below the number of leaves."""
    if len(ids) == 1:
        return framed(b"dca5-leaf", ids[0])
    left = 1 << (len(ids) - 1).bit_length() - 1
    return framed(b"dca5-node", root_by_hand(ids[:left]), root_by_hand(ids[left:]))


def admits(invitation: Invitation | None, client: bytes, root: bytes) -> bool:
    try:
        check_invitation(invitation, client, announcement(invited=root))
    except PeerError as error:
        return error.code != "invited"
    return True


@pytest.mark.parametrize("count", [*range(1, 18), 31, 32, 33])
def test_each_invited_client_has_a_path_and_nobody_else(count: int) -> None:
    """Odd sizes, too: there a last node moves up unchanged, and its path is shorter."""
    ids = IDS[:count]
    root, made = invitation_root(ids), invitations(FRAME, ids)
    assert root == root_by_hand(ids)
    assert list(made) == ids
    for client, one in made.items():
        assert one.announcement == FRAME
        assert admits(one, client, root)
        assert not any(admits(one, other, root) for other in ids if other != client)
        assert not admits(one, b"x" * 16, root)
        assert len(one.path) <= (count - 1).bit_length()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_a_path_that_was_changed_leads_nowhere(count: int) -> None:
    ids = IDS[:count]
    root = invitation_root(ids)
    for client, one in invitations(FRAME, ids).items():
        changed = [
            msgspec.structs.replace(one, path=(*one.path, bytes(32))),
            msgspec.structs.replace(one, path=(*one.path, root)),
            msgspec.structs.replace(one, position=count),
            msgspec.structs.replace(one, leaves=0),
            None,
        ]
        changed += [msgspec.structs.replace(one, position=place) for place in range(count) if place != one.position]
        if one.path:
            flipped = bytes((one.path[0][0] ^ 1,)) + one.path[0][1:]
            changed += [
                msgspec.structs.replace(one, path=one.path[:-1]),
                msgspec.structs.replace(one, path=one.path[1:]),
                msgspec.structs.replace(one, path=(flipped, *one.path[1:])),
                msgspec.structs.replace(one, path=(bytes(32), *one.path)),
            ]
        assert [wrong for wrong in changed if admits(wrong, client, root)] == []


def test_an_inner_node_is_no_client() -> None:
    """A second preimage: leaves and inner nodes are hashed under labels of their own, whatever stands for an id."""
    ids = IDS[:4]
    root, one = invitation_root(ids), invitations(FRAME, ids)[IDS[0]]
    left, right = (
        framed(b"dca5-node", *(framed(b"dca5-leaf", client) for client in half)) for half in (ids[:2], ids[2:])
    )
    assert framed(b"dca5-node", left, right) == root
    for fake in (left, left[:16], left + right, ids[0] + ids[1]):
        shorter = msgspec.structs.replace(one, position=0, leaves=2, path=(right,))
        assert not admits(shorter, fake, root)
        assert not admits(msgspec.structs.replace(shorter, leaves=1, path=()), fake, root)
    assert not admits(msgspec.structs.replace(one, leaves=1, position=0, path=()), root, root)
    doubled = [*IDS[:3], IDS[2]]
    assert invitation_root(IDS[:3]) != invitation_root(doubled), "an odd last leaf is not doubled"


def test_who_asks_everybody_needs_no_path_and_gets_none() -> None:
    assert invitation_root([]) == b""
    assert admits(None, IDS[0], b"")
    assert admits(invitations(FRAME, IDS[:3])[IDS[0]], IDS[0], b"")
    assert invitations(FRAME, []) == {}


def test_an_invitation_contains_only_hashes_of_the_others() -> None:
    one = invitations(FRAME, IDS[:8])[IDS[0]]
    assert not any(client in encode(one) for client in IDS[:8])


# Answers


def test_an_answer_is_read_by_its_trainer_as_part_of_its_round_only() -> None:
    body = Query(b"r" * 16, bytes(32))
    answer, round_ = sign(CAST.client_identities[0], CAST.federation.id, body), opened()
    frame = module.decode_frame(seal_answer(answer, round_, seeded("answers")))
    assert open_answer(frame, REPLY, round_.hash) == answer  # type: ignore[arg-type]
    for key, hashed in ((AgreementKey(bytes(32)), round_.hash), (REPLY, opened(mu=0.1).hash)):
        with pytest.raises(PeerError, match="ciphertext"):
            open_answer(frame, key, hashed)  # type: ignore[arg-type]
