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

from dca_proto.protocol.wire.fields import (
    COLLUDING_MAX,
    COMPUTES_MAX,
    MEMBERS_MAX,
    REGISTRAR_DAYS_MAX,
    REGISTRARS_MAX,
    REPEATS_MAX,
    REVOKED_MAX,
    Count,
    Hash,
    Id,
    Key,
    Name,
    Number,
    Tag,
    Text,
    TimeMs,
    WindowSeconds,
    Wire,
    WrappedKey,
)
from dca_proto.protocol.wire.fields import Certificate as Certificate
from dca_proto.protocol.wire.fields import Signed as Signed
from dca_proto.protocol.wire.kinds import Kind

Scalar = bool | int | float | str
Parameter = Scalar | list[Scalar | list[Scalar]]
"""A parameter of a statistic: nested no deeper than a table, without extension types. A list may leave out a value."""


class Sealed(Wire, frozen=True, array_like=True, tag=2):
    """§2.5, §4.7: an encoded `Signed`, encrypted to the announcement's reply key, or to a Compute node's epoch key.

    `ephemeral` is the sender's X25519 key for this message, `nonce` that of the cipher.
    """

    round_id: Id
    ephemeral: Key
    nonce: Annotated[bytes, Meta(min_length=24, max_length=24)]
    ciphertext: bytes


class Contribution(Wire, frozen=True, array_like=True, tag=3):
    """§4.4: a client's masked vector, tags and charge number, sealed to its holder as `ciphertext`.

    `contribution` is the contribution's id.
    """

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
    """§4.2: an `announcement` for one invited client, with the `path` that proves the invitation (§4.9).

    The client's leaf is at `position` among `leaves`.
    """

    announcement: Signed
    position: Count
    leaves: Count
    path: Annotated[tuple[Hash, ...], Meta(max_length=32)]


class InvitedRound(Wire, frozen=True, array_like=True, tag=6):
    """§4.2: an `announcement` for a Compute node, with the ids of all invited `clients`, ascending, 16 bytes each."""

    announcement: Signed
    clients: bytes


class AbortWanted(Wire, frozen=True, array_like=True, tag=7):
    """§4.8: a client asks for the aborts of the `announcement` that it contributed to.

    `tag` proves that it has the pair key.
    """

    announcement: Signed
    tag: Tag


Frame = Signed | Sealed | Contribution | Receipt | Invitation | InvitedRound | AbortWanted


class RoundMessage(Wire, frozen=True, array_like=True):
    """The base of messages about one announcement: `announcement_hash` is *ah*."""

    round_id: Id
    announcement_hash: Hash


Members = Annotated[tuple[tuple[Name, Key, WrappedKey], ...], Meta(max_length=MEMBERS_MAX)]


class Registrar(Wire, frozen=True, array_like=True):
    """§2.8: a registrar, which may sign clients' certificates within these limits.

    `name` is for people, `key` its Ed25519 key, `name_key` the name key sealed to it. No certificate of it is valid
    after `until_ms`. `clients` is the most clients that a Compute node accepts from it, `days` the longest validity of
    a certificate, `per_day` the most certificates that it issues in a day.
    """

    name: Name
    key: Key
    name_key: WrappedKey
    until_ms: TimeMs
    clients: Annotated[int, Meta(ge=1, lt=1 << 32)]
    days: Annotated[int, Meta(ge=1, le=REGISTRAR_DAYS_MAX)]
    per_day: Annotated[int, Meta(ge=1, lt=1 << 32)]


class FederationFile(Wire, frozen=True, array_like=True, tag=27):
    """§2.7: the members of the federation, signed by its enrolment key; anybody may pass it on.

    `number` is one more with each change. `computes` and `trainers` are names, Ed25519 keys, and the name key sealed
    to each. `revoked` are the revoked ids, ascending. `colluding` is p, the most Compute nodes that may be corrupt; 0
    for all but one. `registrars` may sign clients' certificates.
    """

    number: Number
    computes: Members
    trainers: Members
    revoked: Annotated[tuple[Id, ...], Meta(max_length=REVOKED_MAX)]
    colluding: Annotated[int, Meta(ge=0, le=COLLUDING_MAX)]
    registrars: Annotated[tuple[Registrar, ...], Meta(max_length=REGISTRARS_MAX)]


class FileStamp(Wire, frozen=True, array_like=True):
    """§2.7: `number` and `hash` of the federation file that the sender follows."""

    number: Number
    hash: Hash


class EpochKey(Wire, frozen=True, array_like=True, tag=10):
    """§2.2: a Compute node's X25519 key `public` for one `epoch`, which ends at `expires_ms`.

    `compute` is the node's id, `file` the federation file that it follows.
    """

    compute: Id
    epoch: Count
    public: Key
    expires_ms: TimeMs
    file: FileStamp


class Hello(Wire, frozen=True, array_like=True, tag=11):
    """§2.3: a client's X25519 key `public` for one `epoch`, which ends at `expires_ms`.

    `serial` is the time at which the key was made. `certificate` names the client, `file` the federation file that it
    follows.
    """

    certificate: Certificate
    epoch: Count
    serial: TimeMs
    public: Key
    expires_ms: TimeMs
    file: FileStamp


class HelloWanted(Wire, frozen=True, array_like=True, tag=12):
    """§2.3: a Compute node asks the `client` for its Hello: no session opens its message, or its tag fails."""

    client: Id


class Announcement(Wire, frozen=True, array_like=True, tag=13):
    """§4.1: a trainer announces a round. It omits every number that a client can compute itself.

    `federation_number` and `federation_hash` identify the newest federation file that the `trainer` knows. `statistic`
    with its `parameters`, `rows_max` and `fraction_bits` define the sum: `rows_max` is 0 for the mean of a client's
    rows, R for the sum of at most R. `mu` is charged and determines the noise; (`epsilon`, `delta`) quotes it. `kind`
    has the terms of the round's kind. `epochs` are the Compute nodes' signed epoch keys, none in a kind without them.
    `reply_key` is the trainer's X25519 key for this round. `invited` is the Merkle root of the invited clients' ids
    (§4.9); empty if everybody is invited. No contribution counts after `close_by_ms`. The round has ended at
    `commit_by_ms`. `ended` are the signed aborts of the cancelled rounds that this round repeats (§4.8).
    `window_s` is from how many seconds ago a client's rows have to be; 0 for any.
    """

    round_id: Id
    trainer: Id
    federation_number: Number
    federation_hash: Hash
    statistic: Name
    parameters: dict[Name, Parameter]
    rows_max: Count
    fraction_bits: Annotated[int, Meta(ge=0, le=40)]
    mu: float
    epsilon: float
    delta: float
    kind: Kind
    epochs: Annotated[tuple[Signed, ...], Meta(max_length=COMPUTES_MAX)]
    reply_key: Key
    invited: Annotated[bytes, Meta(max_length=32)]
    close_by_ms: TimeMs
    commit_by_ms: TimeMs
    ended: Annotated[tuple[Signed, ...], Meta(max_length=REPEATS_MAX * COMPUTES_MAX)] = ()
    window_s: WindowSeconds = 0


class Decline(RoundMessage, frozen=True, array_like=True, tag=14):
    """§4.3: a client declines a round: the fixed `reason`, what it `found`, and what it `expected`.

    `certificate` names the client.
    """

    certificate: Certificate
    reason: Name
    found: Text
    expected: Text


class Progress(RoundMessage, frozen=True, array_like=True, tag=15):
    """§4.5: a Compute node has stored the round, and holds `count` contributions.

    `declined` is the number of its clients that declined, as the trainer last told it (`Declines`). `twice` is the
    number of those that have contributed as well. `stage` is 0 while it collects, 1 once its list is frozen, 2 once it
    has answered. `waits_for` are the places, in the announcement's order, of the nodes whose list or answer it lacks, 1
    byte each, ascending.
    """

    count: Count
    declined: Count
    twice: Count
    stage: Annotated[int, Meta(ge=0, le=2)] = 0
    waits_for: Annotated[bytes, Meta(max_length=COMPUTES_MAX)] = b""


class Declines(RoundMessage, frozen=True, array_like=True, tag=28):
    """§4.8: the trainer tells a Compute node which of the clients that it holds have declined.

    `clients` are their ids, ascending, 16 bytes each.
    """

    clients: bytes


class Close(RoundMessage, frozen=True, array_like=True, tag=16):
    """§4.8: the trainer waits for no further contribution."""


class ListHeader(RoundMessage, frozen=True, array_like=True, tag=17):
    """§4.7: `list_hash`, the hash of a Compute node's frozen list, and `count`, its length; signed once."""

    list_hash: Hash
    count: Count


class VerifiedHeader(ListHeader, frozen=True, array_like=True, tag=32):
    """§12: the header of a list of `count` entries in a verified sum. `list_hash` covers the node's `coin`, too."""

    coin: Id


class FrozenList(Wire, frozen=True, array_like=True, tag=18):
    """§4.7: a list for one peer, the `receiver`.

    It has the signed `header`, the `entries` (36 bytes each), and the peer's `tags` (8 bytes each).
    """

    round_id: Id
    receiver: Id
    header: Signed
    entries: bytes
    tags: bytes


class Answer(RoundMessage, frozen=True, array_like=True, tag=19):
    """§4.7: `lists`, the hashes of all lists in the announcement's order, and a node's objections.

    `compute` is the node: peers pass its answer on. `objections` are positions in the union of the lists, ascending, 4
    bytes each, little-endian.
    """

    compute: Id
    lists: Annotated[tuple[Hash, ...], Meta(max_length=COMPUTES_MAX)]
    objections: bytes


class VerifiedAnswer(Answer, frozen=True, array_like=True, tag=33):
    """§12: an `Answer` (`compute`, `lists`, `objections`) of a verified sum, with the node's `openings`.

    They are its shares of A, C and, if there are limits, E: 8 bytes each, of all entries to which it does not object.
    """

    openings: bytes


class PartialSum(RoundMessage, frozen=True, array_like=True, tag=20):
    """§4.7: a Compute node's partial sum, released once, sealed to the trainer.

    `set_hash` and `count` describe A. `answers` are the hashes of all answers in the announcement's order. `clients`
    are the ids of the clients in A whose contributions the node holds, ascending. `vector` has d words.
    """

    set_hash: Hash
    count: Count
    answers: Annotated[tuple[Hash, ...], Meta(max_length=COMPUTES_MAX)]
    clients: bytes
    vector: bytes


class VerifiedPart(PartialSum, frozen=True, array_like=True, tag=34):
    """§12: a `PartialSum` (`set_hash`, `count`, `answers`, `clients`, `vector`) and who `failed`: ids, ascending."""

    failed: bytes


class Abort(RoundMessage, frozen=True, array_like=True, tag=21):
    """§4.8: a Compute node's final statement that it has released nothing of this announcement and never will.

    `compute` is the node. `reason` is a fixed word, `detail` explains it to people. `contributors` and `needed` state
    how many contributed and how many were needed, if they were too few. `evidence` holds the signed list headers that
    prove equivocation or an invalid list; empty for other reasons.
    """

    compute: Id
    reason: Name
    detail: Text
    contributors: Count
    needed: Count
    evidence: Annotated[tuple[Signed, ...], Meta(max_length=2 * COMPUTES_MAX)]


class Cancel(RoundMessage, frozen=True, array_like=True, tag=29):
    """§4.8: the trainer ends a round. A Compute node that has not released aborts.

    It encloses the signed `announcement`, for nodes that have not heard of the round.
    """

    announcement: Signed


class SessionsWanted(Wire, frozen=True, array_like=True, tag=25):
    """§4.1: a trainer asks a Compute node how many clients have a session, and for its epoch key if `is_keyless`.

    `nonce` are fresh random bytes. The answer names them. `file` is the federation file that the trainer follows.
    """

    file: FileStamp
    is_keyless: bool
    nonce: Id


class Sessions(Wire, frozen=True, array_like=True, tag=26):
    """§4.1: `count` clients have a session at this Compute node. `nonce` is the question's.

    `at_ms` is the time by the node's clock, for the trainer's status.
    """

    nonce: Id
    count: Count
    at_ms: TimeMs


class Query(RoundMessage, frozen=True, array_like=True, tag=22):
    """§4.7: a peer or the trainer asks a Compute node to repeat its stored messages of a round."""


class ChargeReused(RoundMessage, frozen=True, array_like=True, tag=23):
    """§4.5, §4.6: a Compute node has seen this `charge` number of the `client` before; `highest` is the highest."""

    client: Id
    charge: Number
    highest: Count


class Release(RoundMessage, frozen=True, array_like=True, tag=24):
    """§5: a data node's release or a client's report, private by itself, sealed to the trainer.

    `certificate` names the client.
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


class ChargesWanted(Wire, frozen=True, array_like=True, tag=30):
    """§8.1: a restored client asks a Compute node for its highest charge number. `nonce` are fresh random bytes.

    `hello` is the client's newest Hello. The node forgets the client's earlier session before it answers.
    """

    hello: Signed
    nonce: Id


class ChargesStated(Wire, frozen=True, array_like=True, tag=31):
    """§8.1: the answer to `ChargesWanted`: the `highest` charge number of the `client` that the node has recorded.

    `nonce` is the question's. The node's store has recorded numbers since `since_ms`, by the node's clock. `file` is
    the federation file that it follows: the client asks the Compute nodes of the newest one.
    """

    client: Id
    nonce: Id
    highest: Count
    since_ms: TimeMs
    file: FileStamp


Body = (
    EpochKey | Hello | HelloWanted | Announcement | Decline | Progress | Declines | Close | ListHeader
    | VerifiedHeader | FrozenList | Answer | VerifiedAnswer | PartialSum | VerifiedPart | Abort | Query | Cancel
    | ChargeReused | Release | SessionsWanted | Sessions | FederationFile | ChargesWanted | ChargesStated
)  # fmt: skip
