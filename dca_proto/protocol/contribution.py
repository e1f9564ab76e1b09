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
from dca_proto.crypto.bit_proof import pack, split
from dca_proto.crypto.bounded import Statement
from dca_proto.crypto.field import ELEMENT_BYTES, PRIME, Elements
from dca_proto.crypto.masks import (
    CHARGE_BYTES,
    TAG_BYTES,
    ContributionKeys,
    contribution_keys,
    entry_of,
    masked,
)
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, SINGLE_USE_NONCE, Identity, Random, decrypt, derive, encrypt
from dca_proto.crypto.sealing import TAG_BYTES as SEAL_BYTES
from dca_proto.crypto.shares import pads_of, random_bits, uniform_elements
from dca_proto.errors import PeerError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.records import unreadable
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import Contribution
from dca_proto.statistics.statement import DITHER_BITS, evaluated_bits

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


def value_bits(validated: ValidatedRound, fraction_bits: int) -> int:
    """Return the fraction bits on whose grid a client evaluates its statistic: in a verified sum, a finer one."""
    return evaluated_bits(fraction_bits, is_verified=validated.statement is not None)


def _rounded(value: NDArray[np.int64], bits: int, root: bytes) -> NDArray[np.int64]:
    """Round a value down by so many bits, after adding one uniform dither to all coordinates: without bias."""
    dither = int.from_bytes(derive(root, labels.ROUNDING, size=DITHER_BITS // 8), "little") & (1 << bits) - 1
    found: NDArray[np.int64] = value + dither >> bits
    return found


def proven_words(statement: Statement, value: NDArray[np.int64], root: bytes) -> Elements:
    """Return the words of a verified contribution: bits of its value and of noise, blinds, proofs (DESIGN §12)."""
    noise = random_bits(derive(root, labels.NOISE_BITS), statement.noise_size)
    blinds = uniform_elements(derive(root, labels.BLINDS), statement.blinds)
    return statement.prove(statement.encode(value, noise), blinds)


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
    failures: list[str] | None = None,
) -> ClientMessage:
    """Noise, mask and seal one client's statistic; in a verified sum, round and prove it.

    Args:
        value: the clipped, quantised statistic, shape ``(dimension,)``, in units of the grid of `value_bits`.
        hello: hash of the client's session.
        charge: number of the charge in the client's ledger that pays for it.
        holder: id of the Compute node that receives the message.
        holder_key: the key shared with the holder.
        pair_keys: the keys shared with all M nodes, in the announcement's order.
        failures: gets a word if the value breaks a limit of the statement: then it counts as zero.
    """
    root = hedged_root(identity, random(KEY_BYTES), hello, announcement_hash, charge, value)
    contribution = contribution_id(root)
    entry = entry_of(identity.id, contribution, charge)
    if validated.statement is None:
        noise = mechanism.sample(validated.noise_variance, validated.dimension, noise_key(root))
        noisy = (value + noise).view(np.uint64)
        tags, y = masked(noisy, pair_keys, announcement_hash, entry)
    else:
        fraction_bits = -int(np.log2(validated.unit))
        rounded = _rounded(value, value_bits(validated, fraction_bits) - fraction_bits, root)
        rounded = validated.statement.clipped(rounded)
        if not validated.statement.holds(rounded):
            rounded = np.zeros_like(rounded)
            if failures is not None:
                failures.append("OutOfLimits")
        tags, _ = masked(np.zeros(0, dtype=np.uint64), pair_keys, announcement_hash, entry)
        words = proven_words(validated.statement, rounded, root)
        pads = pads_of(pair_keys, [entry] * len(pair_keys), announcement_hash, len(words))
        y = pack(split(validated.statement.field, words, pads))
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
        """The masked vector: 8 bytes for each coordinate; in a verified sum, 4 for each word."""
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
    if size <= 0 or size % ELEMENT_BYTES:
        raise unreadable(table, f"{len(record)} bytes")
    return kept


def vector_bytes_of(message: Contribution, nodes: int) -> int:
    """Return the size of y that a contribution's length implies, in a round whose own numbers are not known."""
    return max(len(message.ciphertext) - CHARGE_BYTES - TAG_BYTES * nodes - SEAL_BYTES, 0)


def open_contribution(
    message: Contribution,
    *,
    pair_key: bytes,
    announcement_hash: bytes,
    client: bytes,
    holder: bytes,
    nodes: int,
    vector_bytes: int,
    is_verified: bool = False,
) -> tuple[HeldContribution, ContributionKeys]:
    """Open a contribution at its holder; also return the keys for the holder's answer.

    Raises `PeerError`: ``contribution`` for a wrong length, charge number or word, ``ciphertext`` if it is not
    authentic.
    """
    expected = CHARGE_BYTES + TAG_BYTES * nodes + vector_bytes + SEAL_BYTES
    if len(message.ciphertext) != expected:
        raise PeerError("contribution", found=f"{len(message.ciphertext)} bytes", expected=f"{expected} bytes")
    keys = contribution_keys(pair_key, announcement_hash, message.contribution)
    associated = b"".join((announcement_hash, client, holder, message.contribution))
    opened = decrypt(keys.seal, SINGLE_USE_NONCE, message.ciphertext, associated)
    if opened.startswith(bytes(CHARGE_BYTES)):
        raise PeerError("contribution", found="charge number 0", expected="1 or more")
    if is_verified and (np.frombuffer(opened, dtype="<u4", offset=CHARGE_BYTES + TAG_BYTES * nodes) >= PRIME).any():
        raise PeerError("contribution", found="a word that is P or more", expected=f"elements below {PRIME}")
    return HeldContribution(b"".join((client, message.contribution, nodes.to_bytes(1, "little"), opened))), keys
