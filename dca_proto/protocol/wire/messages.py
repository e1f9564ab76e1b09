"""The messages, one frozen type each (DESIGN §3, §4).

On the wire a payload is one MessagePack array, a *frame*:

    Signed        [1, body, signature, version]               body: one of the bodies below, encoded
    Sealed        [2, round, ephemeral, nonce, ciphertext]    plaintext: an encoded Signed
    Contribution  [3, round, contribution, ciphertext]        to its holder; `protocol.contribution` has the plaintext
    Receipt       [4, round, contribution, tag]               proves a durable write to one client
    Invitation    [5, announcement, position, leaves, path]   a signed announcement for one invited client
    InvitedRound  [6, announcement, clients]                  the same for Compute nodes, with all invited ids
    AbortWanted   [7, announcement, tag]                      a client asks a Compute node for a round's aborts

Bodies are arrays too. Decoding is strict (`codec`).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from dca_proto.protocol.kinds import Terms
from dca_proto.protocol.wire.fields import (
    COMPUTES_MAX,
    MEMBERS_MAX,
    REVOKED_MAX,
    Count,
    Hash,
    Id,
    Key,
    Name,
    Number,
    Signature,
    Tag,
    Text,
    TimeMs,
    Wire,
)
from dca_proto.protocol.wire.fields import Signed as Signed

Scalar = bool | int | float | str
Parameter = Scalar | list[Scalar | list[Scalar]]
"""A parameter of a statistic: nested no deeper than a table, without extension types."""


class Sealed(Wire, frozen=True, array_like=True, tag=2):
    """§2.5, §4.7: an encoded `Signed`, encrypted to the announcement's reply key, or to a Compute node's epoch key."""

    round_id: Id
    ephemeral: Key
    nonce: Annotated[bytes, Meta(min_length=24, max_length=24)]
    ciphertext: bytes


class Contribution(Wire, frozen=True, array_like=True, tag=3):
    """§4.4: a client's masked vector, tags and charge number, sealed to its holder."""

    round_id: Id
    contribution: Id
    ciphertext: bytes


class Receipt(Wire, frozen=True, array_like=True, tag=4):
    """§4.5, §5.3: the holder has stored the contribution durably, or the trainer the release.

    `tag` is a MAC under the pair key, or under the key in the release. A different MAC under the same key proves that
    the message came too late and was not kept.
    """

    round_id: Id
    contribution: Id
    tag: Tag


class Invitation(Wire, frozen=True, array_like=True, tag=5):
    """§4.2: an announcement for one invited client, with the path that proves the invitation (§4.9)."""

    announcement: Signed
    position: Count
    leaves: Count
    path: Annotated[tuple[Hash, ...], Meta(max_length=32)]


class InvitedRound(Wire, frozen=True, array_like=True, tag=6):
    """§4.2: an announcement for a Compute node, with the ids of all invited clients, ascending, 16 bytes each."""

    announcement: Signed
    clients: bytes


class AbortWanted(Wire, frozen=True, array_like=True, tag=7):
    """§4.8: a client asks for the aborts of a round that it contributed to; `tag` proves that it has the pair key."""

    announcement: Signed
    tag: Tag


Frame = Signed | Sealed | Contribution | Receipt | Invitation | InvitedRound | AbortWanted


class RoundMessage(Wire, frozen=True, array_like=True):
    """The base of messages about one announcement."""

    round_id: Id
    announcement_hash: Hash


class Certificate(Wire, frozen=True, array_like=True):
    """§2.1: the enrolment key certifies that a client belongs to the federation until `expires_ms`."""

    client_key: Key
    expires_ms: TimeMs
    signature: Signature


Members = Annotated[tuple[tuple[Name, Key], ...], Meta(max_length=MEMBERS_MAX)]


class FederationFile(Wire, frozen=True, array_like=True, tag=27):
    """§2.7: the members of the federation, signed by its enrolment key; anybody may pass it on.

    `revoked` are the revoked ids, ascending.
    """

    number: Number
    computes: Members
    trainers: Members
    revoked: Annotated[tuple[Id, ...], Meta(max_length=REVOKED_MAX)]


class FileStamp(Wire, frozen=True, array_like=True):
    """§2.7: identifies the federation file that the sender follows."""

    number: Number
    hash: Hash


class EpochKey(Wire, frozen=True, array_like=True, tag=10):
    """§2.2: a Compute node's X25519 key for one epoch."""

    compute: Id
    epoch: Count
    public: Key
    expires_ms: TimeMs
    file: FileStamp


class Hello(Wire, frozen=True, array_like=True, tag=11):
    """§2.3: a client's X25519 key for one epoch. `serial` is the time at which the key was made."""

    certificate: Certificate
    epoch: Count
    serial: TimeMs
    public: Key
    expires_ms: TimeMs
    file: FileStamp


class HelloWanted(Wire, frozen=True, array_like=True, tag=12):
    """§2.3: a Compute node asks a client for its Hello: no session opens its message, or its tag fails."""

    client: Id


class Announcement(Wire, frozen=True, array_like=True, tag=13):
    """§4.1: a trainer announces a round. It omits every number that a client can compute itself.

    `federation_number` and `federation_hash` identify the newest federation file that the trainer knows. `mu` is
    charged and determines the noise; (`epsilon`, `delta`) quotes it. `invited` is the Merkle root of the invited
    clients' ids (§4.9); empty if everybody is invited.
    """

    round_id: Id
    trainer: Id
    federation_number: Number
    federation_hash: Hash
    statistic: Name
    parameters: dict[Name, Parameter]
    rows_max: Count
    fraction_bits: Annotated[int, Meta(ge=0, le=40)]
    mechanism: Name
    mu: float
    epsilon: float
    delta: float
    terms: Terms
    reply_key: Key
    invited: Annotated[bytes, Meta(max_length=32)]
    close_by_ms: TimeMs
    commit_by_ms: TimeMs


class Decline(RoundMessage, frozen=True, array_like=True, tag=14):
    """§4.3: a client declines a round: the reason, what it found and what it would accept."""

    certificate: Certificate
    reason: Name
    found: Text
    expected: Text


class Progress(RoundMessage, frozen=True, array_like=True, tag=15):
    """§4.5: a Compute node has stored the round, and holds `count` contributions."""

    count: Count


class Close(RoundMessage, frozen=True, array_like=True, tag=16):
    """§4.8: the trainer waits for no further contribution."""


class ListHeader(RoundMessage, frozen=True, array_like=True, tag=17):
    """§4.7: the hash (`lists.list_hash`) and length of a Compute node's frozen list, signed once."""

    list_hash: Hash
    count: Count


class FrozenList(Wire, frozen=True, array_like=True, tag=18):
    """§4.7: a list for one peer: its signed header, the entries (36 bytes each), and the peer's tags (8 bytes each)."""

    round_id: Id
    receiver: Id
    header: Signed
    entries: bytes
    tags: bytes


class Answer(RoundMessage, frozen=True, array_like=True, tag=19):
    """§4.7: the hashes of all M lists, in the announcement's order, and a node's objections.

    `objections` are positions in the union of the lists, ascending, 4 bytes each, little-endian.
    """

    lists: Annotated[tuple[Hash, ...], Meta(max_length=COMPUTES_MAX)]
    objections: bytes


class PartialSum(RoundMessage, frozen=True, array_like=True, tag=20):
    """§4.7: a Compute node's partial sum, released once, sealed to the trainer.

    `set_hash` and `count` describe S. `answers` are the hashes of all answers in the announcement's order. `clients`
    are the ids of the clients in S whose contributions the node holds, ascending.
    """

    set_hash: Hash
    count: Count
    answers: Annotated[tuple[Hash, ...], Meta(max_length=COMPUTES_MAX)]
    clients: bytes
    vector: bytes


class Abort(RoundMessage, frozen=True, array_like=True, tag=21):
    """§4.8: a Compute node's final statement that it has released nothing of this announcement and never will.

    `evidence` holds the signed list headers that prove equivocation or an invalid list; empty for other reasons.
    """

    compute: Id
    reason: Name
    detail: Text
    contributors: Count
    needed: Count
    evidence: Annotated[tuple[Signed, ...], Meta(max_length=2 * COMPUTES_MAX)]


class SessionsWanted(Wire, frozen=True, array_like=True, tag=25):
    """§4.1: a trainer asks a Compute node how many clients have a session, and for its epoch key if `is_keyless`."""

    file: FileStamp
    is_keyless: bool


class Sessions(Wire, frozen=True, array_like=True, tag=26):
    """§4.1: how many clients have a session at this Compute node."""

    count: Count


class Query(RoundMessage, frozen=True, array_like=True, tag=22):
    """§4.7: a peer or the trainer asks a Compute node to repeat its stored messages of a round."""


class ChargeReused(RoundMessage, frozen=True, array_like=True, tag=23):
    """§4.5, §4.6: a Compute node has seen this charge number before; `highest` is the highest it has seen."""

    client: Id
    charge: Number
    highest: Count


class Release(RoundMessage, frozen=True, array_like=True, tag=24):
    """§5: a data node's release or a client's report, private by itself, sealed to the trainer.

    `vector` is a data node's statistic with the whole noise, or a client's report. `rows` is the number of rows that
    count, 1 for a report. `contribution` is the release's id. `receipt_key` is the key of the receipt's MAC.
    """

    certificate: Certificate
    rows: Count
    contribution: Id
    receipt_key: Key
    vector: bytes

    def __repr__(self) -> str:
        return f"Release({self.round_id.hex()}, {self.contribution.hex()}, <{len(self.vector)} bytes>)"


Body = (
    EpochKey
    | Hello
    | HelloWanted
    | Announcement
    | Decline
    | Progress
    | Close
    | ListHeader
    | FrozenList
    | Answer
    | PartialSum
    | Abort
    | Query
    | ChargeReused
    | Release
    | SessionsWanted
    | Sessions
    | FederationFile
)
