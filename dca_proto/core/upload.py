"""A contribution on its way: noise, shares, round keys and receipts (DESIGN §4.4).

Pure functions that a client and a Compute node both build on; the benchmark of the core times exactly these.

The number of the charge that pays for a contribution travels inside the encryption: it says how many rounds a client
was ever charged for. Compute nodes learn that, for they tell old copies of a ledger by it; the broker does not, unless
one of them has to say so (`Behind`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.core.codec import encode
from dca_proto.core.errors import PeerError
from dca_proto.core.fixedpoint import to_ring
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.messages import Share
from dca_proto.core.plan import Plan
from dca_proto.core.sealing import ID_BYTES, KEY_BYTES, NONCE_BYTES, TAG_BYTES, Random, decrypt, derive, encrypt
from dca_proto.core.shares import share_bodies, vector_node

CHARGE_BYTES = 4


class Contribution(msgspec.Struct, frozen=True):
    """What a client stores before its first send, and resends byte for byte.

    Attributes:
        contribution: the id, 16 random bytes, the same for all Compute nodes.
        messages: the M encoded `Share` frames. receipt_tags: the M tags that prove their arrival.
    """

    contribution: bytes
    messages: tuple[bytes, ...]
    receipt_tags: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"Contribution({self.contribution.hex()}, {len(self.messages)} messages)"


def round_key(pair_key: bytes, session_hash: bytes, client: bytes, compute: bytes, contribution: bytes) -> bytes:
    """The key of one share: bound to the session, the pair and the contribution."""
    return derive(pair_key, b"dca1-round", session_hash + client + compute + contribution)


def receipt_tag(key: bytes) -> bytes:
    """The MAC by which a Compute node proves to the client that it holds the share of that round key."""
    return derive(key, b"dca1-receipt", size=TAG_BYTES)


def associated_data(session_hash: bytes, position: int, contribution: bytes) -> bytes:
    """What a share's encryption is bound to; the session hash covers announcement, N, T, c and roster."""
    return session_hash + position.to_bytes(4, "little") + contribution


def plaintext(charge: int, body: bytes) -> bytes:
    """What a share's encryption hides: the charge's number, and the share's bytes."""
    return charge.to_bytes(CHARGE_BYTES, "little") + body


def add_noise(value: NDArray[np.int64], plan: Plan, mechanism: Mechanism, root: bytes) -> NDArray[np.uint64]:
    """The value with the client's own noise share, in the ring."""
    noise = mechanism.sample(plan.share_variance, plan.dimension, derive(root, b"dca1-noise"))
    return to_ring(value + noise)


def make_contribution(
    value: NDArray[np.int64],
    *,
    plan: Plan,
    mechanism: Mechanism,
    encoding: str,
    round_id: bytes,
    session_hash: bytes,
    client: bytes,
    position: int,
    charge: int,
    computes: Sequence[bytes],
    pair_keys: Sequence[bytes],
    random: Random,
) -> Contribution:
    """Noise, split and seal one client's statistic.

    Args:
        value: the clipped, encoded statistic, shape ``(dimension,)``, in grid units.
        charge: the number in the client's ledger of the charge that pays for it.
        computes: ids of the M Compute nodes in the announcement's order. pair_keys: the keys agreed with each.
        random: the operating system's generator; noise and seeds come from 32 fresh bytes that are not kept.
    """
    root = random(KEY_BYTES)
    contribution = random(ID_BYTES)
    nonces = random(NONCE_BYTES * len(computes))
    noisy = add_noise(value, plan, mechanism, root)
    bodies = share_bodies(noisy, root, len(computes), vector_node(round_id, client, len(computes)), encoding)
    associated = associated_data(session_hash, position, contribution)
    messages, tags = [], []
    for index, (compute, pair_key, body) in enumerate(zip(computes, pair_keys, bodies, strict=True)):
        key = round_key(pair_key, session_hash, client, compute, contribution)
        nonce = nonces[NONCE_BYTES * index : NONCE_BYTES * (index + 1)]
        ciphertext = encrypt(key, nonce, plaintext(charge, body), associated)
        messages.append(encode(Share(round_id, contribution, nonce, ciphertext)))
        tags.append(receipt_tag(key))
    return Contribution(contribution, tuple(messages), tuple(tags))


def open_share(
    share: Share, *, pair_key: bytes, session_hash: bytes, client: bytes, position: int, compute: bytes
) -> tuple[bytes, int, bytes]:
    """The round key, the charge's number and the body of a share that reached a Compute node.

    Args:
        client: id of its sender, at `position` on the roster. compute: id of the Compute node that opens it.

    Raises:
        PeerError: ``ciphertext`` where it is not authentic, ``share`` where no charge has such a number.
    """
    key = round_key(pair_key, session_hash, client, compute, share.contribution)
    opened = decrypt(key, share.nonce, share.ciphertext, associated_data(session_hash, position, share.contribution))
    charge, body = int.from_bytes(opened[:CHARGE_BYTES], "little"), opened[CHARGE_BYTES:]
    if charge == 0:
        raise PeerError("share", found="charge number 0", expected="1 or more")
    return key, charge, body
