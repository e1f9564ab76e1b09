"""A Compute node's messages on the way to a sum; a verified one adds a coin, openings, who failed (DESIGN §4.7, §12).

All that differs between the messages of both kinds of sums stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dca_proto.crypto import labels
from dca_proto.crypto.field import ELEMENT_BYTES
from dca_proto.crypto.sealing import KEY_BYTES, Identity, Random
from dca_proto.crypto.shares import COIN_BYTES
from dca_proto.errors import PeerError
from dca_proto.protocol.lists import TOO_FEW, TOO_MANY, answer_hash, encode_places, list_hash
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.kinds import SecureSum
from dca_proto.protocol.wire.messages import (
    Answer,
    ListHeader,
    PartialSum,
    VerifiedAnswer,
    VerifiedHeader,
    VerifiedPart,
)
from dca_proto.wording import counted, ids_in_words

if TYPE_CHECKING:
    from dca_proto.protocol.compute.agreement import AgreedSet, Judgement
    from dca_proto.protocol.compute.round import ComputeRound

_PLACE_BYTES = 4


def new_header(current: ComputeRound, entries: bytes, identity: Identity, random: Random) -> ListHeader:
    """Return the header of a node's list; in a verified sum, with a fresh coin that nobody else knows."""
    about, count = (current.id, current.hash), len(current.kept)
    if not current.is_verified:
        return ListHeader(*about, list_hash(current.hash, identity.id, entries), count)
    coin = identity.hedged(labels.COIN, b"".join((random(KEY_BYTES), current.hash, entries)), COIN_BYTES)
    return VerifiedHeader(*about, list_hash(current.hash, identity.id, entries, coin), count, coin)


def new_answer(current: ComputeRound, judgement: Judgement) -> Answer:
    """Return a node's answer to all lists."""
    hashes = tuple(current.lists[compute].hash for compute in current.computes)
    fields = (current.id, current.hash, current.own, hashes, encode_places(judgement.objections))
    return VerifiedAnswer(*fields, judgement.openings) if current.is_verified else Answer(*fields)


def new_part(
    current: ComputeRound, chosen: AgreedSet, answers: Sequence[Answer], clients: bytes, vector: bytes
) -> PartialSum:
    """Return a node's partial sum over A, from all answers; `clients` and `vector` are as in `PartialSum`."""
    hashes = tuple(
        answer_hash(current.hash, compute, answer.lists, answer.objections, openings_of(answer))
        for compute, answer in zip(current.computes, answers, strict=True)
    )
    fields = (current.id, current.hash, chosen.hash, chosen.count, hashes, clients, vector)
    return VerifiedPart(*fields, b"".join(chosen.failed)) if current.is_verified else PartialSum(*fields)


def coin_of(header: ListHeader) -> bytes:
    """Return the coin in a list's header; empty but in a verified sum."""
    return header.coin if isinstance(header, VerifiedHeader) else b""


def openings_of(answer: Answer) -> bytes:
    """Return the openings in an answer; empty but in a verified sum."""
    return answer.openings if isinstance(answer, VerifiedAnswer) else b""


def answer_bytes(answer: Answer) -> int:
    """Return the size of the parts of an answer that grow with the number of clients."""
    return len(answer.objections) + len(openings_of(answer))


def check_kind(message: ListHeader | Answer, *, is_verified: bool) -> None:
    """Check that a header or an answer is of the round's kind. Raises `PeerError("kind")`."""
    if isinstance(message, VerifiedHeader | VerifiedAnswer) is not is_verified:
        raise PeerError("kind", found=type(message).__name__, expected="a message of a round of this kind")


def check_answer(answer: Answer, validated: ValidatedRound, union: int) -> None:
    """Check the kind of an answer, and its size in a round with so many entries at most. Raises `PeerError`."""
    statement = validated.statement
    check_kind(answer, is_verified=statement is not None)
    bytes_max = (_PLACE_BYTES if statement is None else _PLACE_BYTES + ELEMENT_BYTES * statement.opened) * union
    if answer_bytes(answer) > bytes_max:
        found = f"{answer_bytes(answer)} bytes of objections and openings"
        raise PeerError("answer", found=found, expected=f"<= {bytes_max}")


def size_words(
    kind: SecureSum, count: int, failed: Sequence[bytes], name_of: Callable[[bytes], str]
) -> tuple[str, str]:
    """Return the code and the words of an abort of a sum over too few or too many clients."""
    is_few = count < kind.n_min
    limit = f"{kind.n_min} were needed" if is_few else f"{kind.n_max} are allowed"
    words = f"{counted(count, 'client')} contributed, {limit}{failed_words(failed, name_of)}"
    return TOO_FEW if is_few else TOO_MANY, words


def failed_words(failed: Sequence[bytes], name_of: Callable[[bytes], str]) -> str:
    """Return the clients whose proofs failed, as the end of a sentence."""
    if not failed:
        return ""
    return f"; the proofs of {len(failed)} failed: {ids_in_words(failed, name_of)}"


def busy_words(validated: ValidatedRound) -> str:
    """Return what each node of a verified round has to check before it answers, for one that ends without an answer."""
    return "" if validated.work is None else f"; each node had to check {validated.work.in_words}"
