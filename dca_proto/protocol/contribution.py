"""Contributions: a client adds noise, masks and seals its statistic; its holder opens it (DESIGN §2.6, §4.4).

The charge number of a contribution is encrypted, because it reveals how many rounds a client was ever charged for.
Compute nodes learn it, and recognise old copies of a ledger by it. The broker does not learn it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto import labels
from dca_proto.crypto.masks import (
    CHARGE_BYTES,
    TAG_BYTES,
    WORD_BYTES,
    ContributionKeys,
    contribution_keys,
    entry_of,
    masked,
)
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, SINGLE_USE_NONCE, Identity, Random, decrypt, derive, encrypt
from dca_proto.crypto.sealing import TAG_BYTES as SEAL_BYTES
from dca_proto.errors import PeerError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.records import unreadable
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import Contribution

_NODES_AT, _CHARGE_AT = 2 * ID_BYTES, 2 * ID_BYTES + 1
_TAGS_AT = _CHARGE_AT + CHARGE_BYTES


class ClientMessage(msgspec.Struct, frozen=True):
    """A client's message: stored before it is sent, then resent byte for byte until the receipt.

    Attributes:
        contribution: the contribution's id.
        payload: the encoded frame.
        receipt: the tag of the receipt, which proves that it was kept.
        late: the tag of the notice that it came too late.
    """

    contribution: bytes
    payload: bytes
    receipt: bytes
    late: bytes

    def __repr__(self) -> str:
        return f"ClientMessage({self.contribution.hex()}, <{len(self.payload)} bytes>)"


def hedged_root(
    identity: Identity, fresh: bytes, hello: bytes, announcement_hash: bytes, charge: int, value: NDArray[np.int64]
) -> bytes:
    """Derive the root of a contribution or release from 32 `fresh` random bytes and everything that it is used for.

    The noise key, the id and a release's receipt key are derived from the root, each under its own label. `hello` is
    the session's hash, `value` the quantised statistic.
    """
    message = b"".join((fresh, hello, announcement_hash, charge.to_bytes(CHARGE_BYTES, "little"), value.tobytes()))
    if len(message) > 1 << 16:
        message = message[: 3 * KEY_BYTES + CHARGE_BYTES] + hashlib.blake2b(message, person=labels.LONG_INPUT).digest()
    return identity.hedged(labels.ROOT, message)


def noise_key(root: bytes) -> bytes:
    """Return the key of a contribution's or release's noise. It never leaves the client."""
    return derive(root, labels.NOISE)


def contribution_id(root: bytes) -> bytes:
    """Return the public id of a contribution or release."""
    return derive(root, labels.CONTRIBUTION_ID, size=ID_BYTES)


def make_contribution(
    value: NDArray[np.int64],
    *,
    validated: ValidatedRound,
    mechanism: Mechanism,
    identity: Identity,
    hello: bytes,
    round_id: bytes,
    announcement_hash: bytes,
    charge: int,
    holder: bytes,
    holder_key: bytes,
    pair_keys: Sequence[bytes],
    random: Random,
) -> ClientMessage:
    """Noise, mask and seal one client's statistic.

    Args:
        value: the clipped, quantised statistic, shape ``(dimension,)``, in grid units.
        hello: hash of the client's session.
        charge: number of the charge in the client's ledger that pays for it.
        holder: id of the Compute node that receives the message.
        holder_key: the key shared with the holder.
        pair_keys: the keys shared with all M nodes, in the announcement's order.
    """
    root = hedged_root(identity, random(KEY_BYTES), hello, announcement_hash, charge, value)
    contribution = contribution_id(root)
    noise = mechanism.sample(validated.noise_variance, validated.dimension, noise_key(root))
    noisy = (value + noise).view(np.uint64)
    entry = entry_of(identity.id, contribution, charge)
    tags, y = masked(noisy, pair_keys, announcement_hash, entry)
    plaintext = b"".join((charge.to_bytes(CHARGE_BYTES, "little"), tags, y))
    keys = contribution_keys(holder_key, announcement_hash, contribution)
    associated = b"".join((announcement_hash, identity.id, holder, contribution))
    ciphertext = encrypt(keys.seal, SINGLE_USE_NONCE, plaintext, associated)
    payload = encode(Contribution(round_id, contribution, ciphertext))
    return ClientMessage(contribution, payload, keys.receipt, keys.late)


class HeldContribution(msgspec.Struct, frozen=True, gc=False):
    """A contribution at its holder.

    Attributes:
        record: the stored bytes: client, contribution id, M in one byte, charge number, M tags, masked vector.
    """

    record: bytes

    @property
    def entry(self) -> bytes:
        """Its entry in the holder's list."""
        return self.record[:_NODES_AT] + self.record[_CHARGE_AT:_TAGS_AT]

    @property
    def contribution(self) -> bytes:
        return self.record[ID_BYTES:_NODES_AT]

    @property
    def charge(self) -> int:
        return int.from_bytes(self.record[_CHARGE_AT:_TAGS_AT], "little")

    @property
    def tags(self) -> bytes:
        """The tags, `TAG_BYTES` for each node, in the announcement's order."""
        return self.record[_TAGS_AT : self._vector_at]

    @property
    def y(self) -> bytes:
        """The masked vector, `WORD_BYTES` for each coordinate."""
        return self.record[self._vector_at :]

    @property
    def _vector_at(self) -> int:
        return _TAGS_AT + TAG_BYTES * self.record[_NODES_AT]

    def __repr__(self) -> str:
        return f"HeldContribution({self.contribution.hex()}, <{len(self.record)} bytes>)"


def restore_contribution(table: str, record: bytes) -> HeldContribution:
    """Read a stored contribution. Raises `UsageError` if it is damaged."""
    kept = HeldContribution(record)
    size = len(record) - kept._vector_at if len(record) >= _TAGS_AT else 0
    if size <= 0 or size % WORD_BYTES:
        raise unreadable(table, f"{len(record)} bytes")
    return kept


def dimension_of(message: Contribution, nodes: int) -> int:
    """Return the dimension that a contribution's length implies, in a round whose own dimension is not known."""
    return max(len(message.ciphertext) - CHARGE_BYTES - TAG_BYTES * nodes - SEAL_BYTES, 0) // WORD_BYTES


def open_contribution(
    message: Contribution,
    *,
    pair_key: bytes,
    announcement_hash: bytes,
    client: bytes,
    holder: bytes,
    nodes: int,
    dimension: int,
) -> tuple[HeldContribution, ContributionKeys]:
    """Open a contribution at its holder; also return the keys for the holder's answer.

    Raises `PeerError`: ``contribution`` for a wrong length or charge number, ``ciphertext`` if it is not authentic.
    """
    expected = CHARGE_BYTES + TAG_BYTES * nodes + WORD_BYTES * dimension + SEAL_BYTES
    if len(message.ciphertext) != expected:
        raise PeerError("contribution", found=f"{len(message.ciphertext)} bytes", expected=f"{expected} bytes")
    keys = contribution_keys(pair_key, announcement_hash, message.contribution)
    associated = b"".join((announcement_hash, client, holder, message.contribution))
    opened = decrypt(keys.seal, SINGLE_USE_NONCE, message.ciphertext, associated)
    if opened.startswith(bytes(CHARGE_BYTES)):
        raise PeerError("contribution", found="charge number 0", expected="1 or more")
    return HeldContribution(b"".join((client, message.contribution, nodes.to_bytes(1, "little"), opened))), keys
