"""All keys, tags and hashes of DESIGN §2 and §9, derived a second time, for checkers.

Nothing here calls the product. The labels are written out from the table of DESIGN §9, so that a wrong or shared label
in the code shows as a difference. A test compares `LABELS` with that table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from nacl import bindings
from nacl.exceptions import CryptoError

PREFIX = b"dca5-"
DERIVE = (
    "hedge", "epoch", "root", "noise", "contrib-id", "receipt-key", "noise-chunk", "noise-spare", "local-chunk",
    "local-spare", "store", "store-owner", "store-tag", "store-sum", "store-seal", "store-count", "one", "ask",
    "backup", "receipt", "late", "names", "name-nonce", "broker-pass", "blinds", "noise-bits", "rounding", "coin",
    "point",
)  # fmt: skip
DIGEST = (
    "federation", "file", "pair", "ephemeral", "reply", "peer-list", "announce", "leaf", "node", "hello", "list", "set",
    "answer", "releases", "test-random", "names-wrap", "enrol-code", "entrance",
    "challenge", "categories",
)  # fmt: skip
HASH = ("id", "long-input", "parts", "journal")
LABELS = {
    "derive": DERIVE,
    "digest": DIGEST,
    "hash": HASH,
    "SHAKE128": ("mask", "share", "noise-coins"),
    "Ed25519": ("signature", "certificate", "enrol-request", "renew-request"),
}
"""All labels by how they are used, without the prefix."""

TAG_BYTES, WORD_BYTES = 8, 8
_SPONGE_BYTES_MAX, _INPUT_BYTES_MAX, _HEAD_BYTES = 1024, 1 << 16, 100
_HEDGE = PREFIX + b"hedge"


def derive(key: bytes, label: str, message: bytes = b"", size: int = 32) -> bytes:
    """Return BLAKE2b under a key, personalised with a label."""
    return hashlib.blake2b(message, digest_size=size, key=key, person=PREFIX + label.encode()).digest()


def digest(label: str, *parts: bytes) -> bytes:
    """Return BLAKE2b-256 of parts, each behind its length in 8 bytes, personalised with a label."""
    framed = b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)])
    return hashlib.blake2b(framed, digest_size=32, person=PREFIX + label.encode()).digest()


def plain_hash(label: str, data: bytes, size: int = 64) -> bytes:
    """Return BLAKE2b of data, without lengths or a key, personalised with a label."""
    return hashlib.blake2b(data, digest_size=size, person=PREFIX + label.encode()).digest()


# --- the secrets of an identity (§2.6, §8) ----------------------------------------------------------------------------


def hedge(seed: bytes) -> bytes:
    """Return the secret of an identity that hedges its randomness."""
    return derive(seed, "hedge")


def epoch_secret(hedged: bytes, fresh: bytes, epoch: int, now_ms: int) -> bytes:
    """Return an epoch's X25519 secret. `hedged`: the identity's `hedge`. `fresh`: 32 random bytes."""
    return derive(hedged, "epoch", fresh + epoch.to_bytes(4, "big") + now_ms.to_bytes(8, "big"))


def root(hedged: bytes, fresh: bytes, hello: bytes, announcement_hash: bytes, charge: int, value: bytes) -> bytes:
    """Return the root of a contribution, release or report. `value`: the statistic, as 64-bit words."""
    message = b"".join((fresh, hello, announcement_hash, charge.to_bytes(4, "little"), value))
    if len(message) > _INPUT_BYTES_MAX:
        message = message[:_HEAD_BYTES] + plain_hash("long-input", message)
    return derive(hedged, "root", message)


# --- what a client and a Compute node share (§2.4) --------------------------------------------------------------------


def pair_key(
    secret: bytes, peer: bytes, own: bytes, federation: bytes, client: tuple[bytes, int], node: tuple[bytes, int]
) -> bytes:
    """Return k_ij.

    Args:
        secret, own: key pair of either side. peer: the other side's public key. federation: its id.
        client, node: id and epoch of each.
    """
    ends = [part for actor, epoch in (client, node) for part in (actor, epoch.to_bytes(4, "big"))]
    return digest("pair", bindings.crypto_scalarmult(secret, peer), *sorted((peer, own)), federation, *ends)


def tag_and_mask(pair: bytes, announcement_hash: bytes, entry: bytes, dimension: int) -> bytes:
    """Return the tag and mask of one pair for one entry: 8 bytes and d words."""
    size = TAG_BYTES + WORD_BYTES * dimension
    sponge = hashlib.shake_128(pair + PREFIX + b"mask" + announcement_hash + entry)
    if size <= _SPONGE_BYTES_MAX:
        return sponge.digest(size)
    head = sponge.digest(TAG_BYTES + 32)
    return head[:TAG_BYTES] + bindings.randombytes_buf_deterministic(size - TAG_BYTES, head[TAG_BYTES:])


def contribution_keys(pair: bytes, announcement_hash: bytes, contribution: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the key that encrypts one contribution, its receipt, and the notice that it was late."""
    keys = derive(pair, "one", announcement_hash + contribution, 64)
    return keys[:32], keys[32:48], keys[48:]


def opened_contribution(
    pair: bytes, announcement_hash: bytes, client: bytes, holder: bytes, contribution: bytes, ciphertext: bytes
) -> bytes | None:
    """Return the plaintext of a contribution; None if it is not sealed as DESIGN §4.4 specifies."""
    key = contribution_keys(pair, announcement_hash, contribution)[0]
    return _decrypted(key, bytes(24), ciphertext, announcement_hash + client + holder + contribution)


# --- sealed messages (§2.5, §4.7) -------------------------------------------------------------------------------------


def sealing_key(label: str, secret: bytes, peer: bytes, own: bytes) -> bytes:
    """Return the key of a sealed message. `secret`, `own`: key pair of one side. `peer`: the other's public key."""
    return digest(label, bindings.crypto_scalarmult(secret, peer), *sorted((peer, own)))


def opened(key: bytes, nonce: bytes, ciphertext: bytes, announcement_hash: bytes) -> bytes | None:
    """Return the plaintext of a sealed message; None if it is not sealed under this key."""
    return _decrypted(key, nonce, ciphertext, announcement_hash)


def ephemeral_secret(
    candidates: Iterable[bytes], ephemeral: bytes, public: bytes, plaintext: bytes, announcement_hash: bytes
) -> bytes | None:
    """Return the secret of a sealed message's key; None if it follows from none of the `candidates`."""
    for fresh in candidates:
        secret = digest("ephemeral", fresh, public, plaintext, announcement_hash)
        if bindings.crypto_scalarmult_base(secret) == ephemeral:
            return secret
    return None


def _decrypted(key: bytes, nonce: bytes, ciphertext: bytes, associated: bytes) -> bytes | None:
    try:
        return bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(ciphertext, associated, nonce, key)
    except (CryptoError, ValueError):
        return None
