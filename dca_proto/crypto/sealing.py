"""All cryptographic primitives except masks: libsodium through PyNaCl, and BLAKE2b.

| purpose | primitive |
| --- | --- |
| identities, signatures | Ed25519, over the federation's id and the message |
| key agreement | X25519: once per pair and epoch, and once per answer sealed to the trainer's reply key |
| encryption | XChaCha20-Poly1305 with a key for one message |
| hashing, key derivation | BLAKE2b with a personalisation per purpose (RFC 7693; `labels`) |
| expansion of seeds | ChaCha20 (RFC 8439), as libsodium's `randombytes_buf_deterministic` |

Every source of randomness is an argument: the runtime passes the operating system's, the emulator a seeded stream.
Objects that hold secrets do not show them in their `repr`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from functools import cached_property

from nacl import bindings
from nacl._sodium import ffi, lib
from nacl.exceptions import CryptoError

from dca_proto.crypto import labels
from dca_proto.errors import PeerError, UsageError

Random = Callable[[int], bytes]
"""Returns that many random bytes."""

ID_BYTES = 16
KEY_BYTES = 32
NONCE_BYTES = 24
TAG_BYTES = 16


def digest(label: bytes, *parts: bytes) -> bytes:
    """Return BLAKE2b-256 of the parts, each prefixed with its length, with a label of `labels`."""
    framed = b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)])
    return hashlib.blake2b(framed, digest_size=32, person=label).digest()


def derive(key: bytes, label: bytes, message: bytes = b"", size: int = KEY_BYTES) -> bytes:
    """Derive a key of `size` bytes for one purpose from another key: keyed BLAKE2b."""
    return hashlib.blake2b(message, digest_size=size, key=key, person=label).digest()


def actor_id(public_key: bytes) -> bytes:
    """Return an actor's 16-byte id: a hash of its Ed25519 public key."""
    return hashlib.blake2b(public_key, digest_size=ID_BYTES, person=labels.ID).digest()


class Identity:
    """A long-term Ed25519 identity, from a seed of 32 secret bytes."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != KEY_BYTES:
            raise UsageError(f"an identity needs {KEY_BYTES} secret bytes, found {len(seed)}")
        self.public_key, self._secret = bindings.crypto_sign_seed_keypair(seed)
        self.id = actor_id(self.public_key)

    @property
    def seed(self) -> bytes:
        """The secret seed, to be written to a file that only its owner can read."""
        return self._secret[:KEY_BYTES]

    @cached_property
    def hedge(self) -> bytes:
        """A secret for `hedged`: derived keys stay secret even if the random generator repeats (DESIGN §2.6)."""
        return derive(self.seed, labels.HEDGE)

    def hedged(self, label: bytes, message: bytes, size: int = KEY_BYTES) -> bytes:
        """Derive bytes for one purpose from the identity's secret and a message that contains fresh randomness."""
        return derive(self.hedge, label, message, size)

    @property
    def store_key(self) -> bytes:
        """The secret with which the actor authenticates the records of its store (DESIGN §8)."""
        return derive(self.seed, labels.STORE)

    @property
    def name_key(self) -> bytes:
        """The secret with which an enrolment key seals clients' names (DESIGN §2.1)."""
        return derive(self.seed, labels.NAMES)

    def agree(self, label: bytes, peer: bytes, *binding: bytes) -> bytes:
        """Return the secret that this identity shares with another one, whose Ed25519 public key is `peer`.

        Both keys are mapped to X25519. Ed25519 and X25519 may share a key pair (Thormarker 2021, ePrint 2021/509).
        Raises `PeerError("key")` if the peer's key is no Ed25519 public key.
        """
        try:
            public = bindings.crypto_sign_ed25519_pk_to_curve25519(peer)
        except (CryptoError, ValueError, RuntimeError):
            raise PeerError("key", found="no point of the curve", expected="an Ed25519 public key") from None
        return AgreementKey(bindings.crypto_sign_ed25519_sk_to_curve25519(self._secret)).agree(label, public, *binding)

    def sign(self, federation_id: bytes, body: bytes) -> bytes:
        """Return a signature of 64 bytes, bound to one federation."""
        return bindings.crypto_sign(_signed_bytes(federation_id, body), self._secret)[:64]

    def __repr__(self) -> str:
        return f"Identity(id={self.id.hex()})"


def verify(public_key: bytes, federation_id: bytes, body: bytes, signature: bytes) -> None:
    """Check a signature. Raises `PeerError("signature")`."""
    try:
        bindings.crypto_sign_open(signature + _signed_bytes(federation_id, body), public_key)
    except (CryptoError, ValueError):
        raise PeerError("signature", found="no valid signature", expected=actor_id(public_key).hex()) from None


def _signed_bytes(federation_id: bytes, body: bytes) -> bytes:
    return labels.SIGNATURE + federation_id + body


class AgreementKey:
    """An X25519 key pair, from 32 secret bytes: an actor's for one epoch, or a trainer's for one round."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.public = bindings.crypto_scalarmult_base(secret)

    def agree(self, label: bytes, peer_public: bytes, *binding: bytes) -> bytes:
        """Return the pair's shared secret: X25519, hashed with both public keys and `binding`.

        Both sides get the same secret if they agree on its `label` and on `binding`. Raises `PeerError("key")`
        if the peer's key is a point of low order.
        """
        point = _shared_point(self.secret, peer_public)
        return digest(label, point, *sorted((self.public, peer_public)), *binding)

    def __repr__(self) -> str:
        return f"AgreementKey(public={self.public.hex()})"


def check_public(key: bytes) -> None:
    """Reject an X25519 public key of low order. Raises `PeerError("key")`."""
    _shared_point(bytes(KEY_BYTES), key)


def _shared_point(secret: bytes, public: bytes) -> bytes:
    try:
        return bindings.crypto_scalarmult(secret, public)
    except (CryptoError, ValueError, RuntimeError):
        raise PeerError("key", found="a point of low order", expected="an X25519 public key") from None


_NULL = ffi.NULL
SINGLE_USE_NONCE = bytes(NONCE_BYTES)
"""The nonce for a key that encrypts a single message."""


def encrypt(key: bytes, nonce: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """Encrypt with XChaCha20-Poly1305: return ciphertext and 16-byte tag.

    This calls libsodium directly: PyNaCl's wrapper formats its error messages on every call, which takes most of its
    time.
    """
    _check_sizes(key, nonce)
    sealed = bytearray(len(plaintext) + TAG_BYTES)
    lib.crypto_aead_xchacha20poly1305_ietf_encrypt(
        ffi.from_buffer(sealed), _NULL, plaintext, len(plaintext), associated, len(associated), _NULL, nonce, key
    )
    return bytes(sealed)


def decrypt(key: bytes, nonce: bytes, ciphertext: bytes, associated: bytes) -> bytes:
    """Decrypt what `encrypt` returned. Raises `PeerError("ciphertext")` if it is not authentic."""
    _check_sizes(key, nonce)
    opened = bytearray(max(0, len(ciphertext) - TAG_BYTES))
    failed = lib.crypto_aead_xchacha20poly1305_ietf_decrypt(
        ffi.from_buffer(opened), _NULL, _NULL, ciphertext, len(ciphertext), associated, len(associated), nonce, key
    )
    if failed:
        raise PeerError("ciphertext", found="not authentic", expected="a message for this round and pair")
    return bytes(opened)


def _check_sizes(key: bytes, nonce: bytes) -> None:
    if len(key) != KEY_BYTES or len(nonce) != NONCE_BYTES:
        raise ValueError(f"a key of {len(key)} and a nonce of {len(nonce)} bytes; expected {KEY_BYTES}, {NONCE_BYTES}")


def same(mac: bytes, claimed: bytes) -> bool:
    """Return True if two MACs are equal, in constant time."""
    return hmac.compare_digest(mac, claimed)


def seal_to(
    label: bytes, public: bytes, plaintext: bytes, associated: bytes, random: Random
) -> tuple[bytes, bytes, bytes]:
    """Encrypt to an X25519 public key with a fresh key: return (ephemeral public key, nonce, ciphertext).

    `label` is the purpose of the message.
    The fresh key also depends on the plaintext. So two plaintexts never share a key, even if the random generator
    repeats.
    """
    ephemeral = AgreementKey(digest(labels.EPHEMERAL, random(KEY_BYTES), public, plaintext, associated))
    nonce = random(NONCE_BYTES)
    return ephemeral.public, nonce, encrypt(ephemeral.agree(label, public), nonce, plaintext, associated)


def open_sealed(
    label: bytes, key: AgreementKey, ephemeral: bytes, nonce: bytes, ciphertext: bytes, associated: bytes
) -> bytes:
    """Decrypt what `seal_to` returned. Raises `PeerError`."""
    return decrypt(key.agree(label, ephemeral), nonce, ciphertext, associated)


def expand(seed: bytes, size: int) -> bytes:
    """Expand a 32-byte seed to `size` pseudo-random bytes: ChaCha20."""
    if len(seed) != KEY_BYTES:
        raise ValueError(f"a seed of {len(seed)} bytes; expected {KEY_BYTES}")
    expanded = bytearray(size)
    lib.randombytes_buf_deterministic(ffi.from_buffer(expanded), size, seed)
    return bytes(expanded)


def expand_rows(buffer: memoryview, seeds: Sequence[bytes]) -> None:
    """Write the bytes of `expand` of each seed into rows of the same size that fill a buffer, without a copy."""
    size = len(buffer) // max(len(seeds), 1)
    if any(len(seed) != KEY_BYTES for seed in seeds) or size * len(seeds) != len(buffer):
        raise ValueError(f"{len(buffer)} bytes, from {len(seeds)} seeds of {KEY_BYTES} bytes")
    first = ffi.from_buffer(buffer)
    for row, seed in enumerate(seeds):
        lib.randombytes_buf_deterministic(first + size * row, size, seed)


def expand_into(buffer: bytearray, start: int, size: int, seed: bytes) -> None:
    """Write the bytes of `expand` into `buffer` at `start`, without a copy."""
    if len(seed) != KEY_BYTES or start < 0 or start + size > len(buffer):
        raise ValueError(f"{size} bytes at {start} of {len(buffer)}, from a seed of {len(seed)}")
    lib.randombytes_buf_deterministic(ffi.from_buffer(buffer) + start, size, seed)
