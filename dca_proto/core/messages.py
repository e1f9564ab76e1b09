"""The messages, one frozen type each (DESIGN §3, §4).

On the wire a payload is one MessagePack array, a *frame*:

    Signed   [1, body, signature]                        body: one of the bodies below, encoded
    Sealed   [2, round, ephemeral, nonce, ciphertext]    plaintext: an encoded Signed, for the round's trainer
    Share    [3, round, contribution, nonce, ciphertext]
                         plaintext: the charge's number (4 bytes, little-endian) and a share, for one Compute node
    Receipt  [4, round, contribution, tag]               proves a durable write to one client

Bodies are arrays too, and begin with the protocol's version behind their tag. Decoding is strict (`codec`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.shares import LOCAL

TEXT_CHARS_MAX = 500
Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Nonce = Annotated[bytes, Meta(min_length=24, max_length=24)]
Tag = Annotated[bytes, Meta(min_length=16, max_length=16)]
Count = Annotated[int, Meta(ge=0, lt=1 << 32)]
Number = Annotated[int, Meta(ge=1, lt=1 << 32)]
TimeMs = Annotated[int, Meta(ge=0, lt=1 << 53)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Scalar = bool | int | float | str
Parameter = Scalar | list[Scalar | list[Scalar]]
"""What a parameter of a statistic may be: nothing nested deeper than a table, and no extension types."""
Version = Annotated[int, Meta(ge=PROTOCOL_VERSION, le=PROTOCOL_VERSION)]


class _Frame(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Base of everything that is encoded: fields by position, nothing unknown."""


class Signed(_Frame, frozen=True, array_like=True, tag=1):
    """§3: a body and its sender's Ed25519 signature over the federation's hash and the body."""

    body: bytes
    signature: Signature

    def __repr__(self) -> str:  # the trainer keeps releases as they were signed
        return f"Signed(<{len(self.body)} bytes>)"


class Sealed(_Frame, frozen=True, array_like=True, tag=2):
    """§3: an encoded `Signed`, encrypted to the reply key of the round's announcement."""

    round_id: Id
    ephemeral: Key
    nonce: Nonce
    ciphertext: bytes


class Share(_Frame, frozen=True, array_like=True, tag=3):
    """§4.4: one Compute node's share of a contribution, with the number of the charge that pays for it."""

    round_id: Id
    contribution: Id
    nonce: Nonce
    ciphertext: bytes


class Receipt(_Frame, frozen=True, array_like=True, tag=4):
    """§4.4: a Compute node holds the share durably; `tag` is a MAC under the pair's round key.

    §4.8, §4.9: the trainer holds the release durably; `tag` is a MAC under the key that came inside it.
    """

    round_id: Id
    contribution: Id
    tag: Tag


Frame = Signed | Sealed | Share | Receipt


class Certificate(_Frame, frozen=True, array_like=True):
    """§2: the enrolment key's word that a client belongs to the federation until `expires_ms`."""

    client_key: Key
    expires_ms: TimeMs
    signature: Signature


class EpochKey(_Frame, frozen=True, array_like=True, tag=10):
    """§2: a Compute node's X25519 key for one epoch."""

    version: Version
    compute: Id
    epoch: Count
    public: Key
    expires_ms: TimeMs


class Announcement(_Frame, frozen=True, array_like=True, tag=11):
    """§4.1: what a trainer asks for. Every number that a client can compute itself is left out.

    Of a local round (§4.8) the encoding is `local`, and `computes` is empty. Where `mechanism` is a local one, it is a
    round of reports (§4.9).
    """

    version: Version
    round_id: Id
    trainer: Id
    statistic: Name
    parameters: dict[Name, Parameter]
    rows_max: Count
    fraction_bits: Annotated[int, Meta(ge=0, le=40)]
    mechanism: Name
    epsilon: float
    delta: float
    tolerated: Count
    colluders: Count
    encoding: Name
    computes: Annotated[tuple[Signed, ...], Meta(max_length=64)]
    reply_key: Key
    join_by_ms: TimeMs
    close_by_ms: TimeMs

    @property
    def local(self) -> bool:
        """Whether each participant releases by itself, to the trainer alone."""
        return self.encoding == LOCAL


class Join(_Frame, frozen=True, array_like=True, tag=12):
    """§4.2: a client takes part, with its X25519 key for its current epoch."""

    version: Version
    round_id: Id
    announcement_hash: Hash
    certificate: Certificate
    epoch: Count
    public: Key


class Decline(_Frame, frozen=True, array_like=True, tag=13):
    """§4.2: a client does not take part, and why, in numbers."""

    version: Version
    round_id: Id
    announcement_hash: Hash
    certificate: Certificate
    reason: Name
    found: Text
    expected: Text


class Terms(_Frame, frozen=True, array_like=True):
    """§4.3: what all participants of a round must agree on; its hash is the *session hash*."""

    announcement_hash: Hash
    clients: Count
    tolerated: Count
    colluders: Count
    roster_hash: Hash
    share_by_ms: TimeMs
    commit_by_ms: TimeMs


class Roster(_Frame, frozen=True, array_like=True, tag=14):
    """§4.3: the trainer's start for Compute nodes: the signed joins, sorted by client id."""

    version: Version
    round_id: Id
    terms: Terms
    announcement: Signed
    joins: tuple[Signed, ...]


class Ready(_Frame, frozen=True, array_like=True, tag=15):
    """§4.3: a Compute node has checked and stored the roster."""

    version: Version
    round_id: Id
    session_hash: Hash


class Start(_Frame, frozen=True, array_like=True, tag=16):
    """§4.3: the trainer's start for one client, with its position on the roster."""

    version: Version
    round_id: Id
    terms: Terms
    client: Id
    position: Count


class Frozen(_Frame, frozen=True, array_like=True, tag=17):
    """§4.5: hash of the list that a Compute node froze. `answer` marks a reply, which is not answered again."""

    version: Version
    round_id: Id
    session_hash: Hash
    list_hash: Hash
    count: Count
    answer: bool


class FrozenList(_Frame, frozen=True, array_like=True, tag=18):
    """§4.5: the list itself, sent where hashes differ: 20 bytes an entry (position, contribution id), by position."""

    version: Version
    round_id: Id
    session_hash: Hash
    entries: bytes


class PartialSum(_Frame, frozen=True, array_like=True, tag=19):
    """§4.5: what a Compute node releases, once.

    `contributors` has one bit a position; `views` are the list hashes of all nodes, in the announcement's order.
    """

    version: Version
    round_id: Id
    session_hash: Hash
    contributors_hash: Hash
    contributors: bytes
    views: tuple[Hash, ...]
    vector: bytes


class Abort(_Frame, frozen=True, array_like=True, tag=20):
    """§4.7: a Compute node's final word that it has released nothing for the round and never will."""

    version: Version
    round_id: Id
    session_hash: Hash
    reason: Name
    detail: Text
    contributors: Count
    needed: Count


class Query(_Frame, frozen=True, array_like=True, tag=21):
    """§4.6: the trainer asks a Compute node to repeat its last answer of a round."""

    version: Version
    round_id: Id
    session_hash: Hash


class Behind(_Frame, frozen=True, array_like=True, tag=22):
    """§4.4: a Compute node's word to a client that it refused its share: the number of the charge was used before.

    `highest` is the highest number that the node has seen of the client.
    """

    version: Version
    round_id: Id
    session_hash: Hash
    client: Id
    charge: Number
    highest: Count


class Release(_Frame, frozen=True, array_like=True, tag=23):
    """§4.8, §4.9: what a data node or a client says in a local round, private by itself, sealed to the trainer.

    `vector` is a data node's statistic with the whole noise, or a client's report. `rows` is how many rows count, and 1
    of a report; `contribution` the release's id, 16 random bytes, `receipt_key` the key of the MAC
    by which the trainer proves that it keeps the release.
    """

    version: Version
    round_id: Id
    announcement_hash: Hash
    certificate: Certificate
    rows: Count
    contribution: Id
    receipt_key: Key
    vector: bytes

    def __repr__(self) -> str:
        return f"Release({self.round_id.hex()}, {self.contribution.hex()}, <{len(self.vector)} bytes>)"


Body = (
    EpochKey
    | Announcement
    | Join
    | Decline
    | Roster
    | Ready
    | Start
    | Frozen
    | FrozenList
    | PartialSum
    | Abort
    | Query
    | Behind
    | Release
)
