"""The public-key work of sessions for many clients at once: pure functions, which other processes can run (§2.3).

A Compute node checks two signatures and one key of each Hello, and agrees on a key with each client once an epoch.
`AgreedKeys` has the keys that it has agreed on.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec
import numpy as np

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import KEY_BYTES, AgreementKey, actor_id, check_public, digest
from dca_proto.errors import PeerError
from dca_proto.protocol.federation import find_signer
from dca_proto.protocol.keyring import epoch_bytes
from dca_proto.protocol.wire.codec import body_of, decode_frame, encode, verify_signed
from dca_proto.protocol.wire.messages import Certificate, Hello, Signed

CERTIFIED_BYTES = 32


def pair_key(
    own: AgreementKey, peer: bytes, federation_id: bytes, client: tuple[bytes, int], compute: tuple[bytes, int]
) -> bytes:
    """Return k_ij, the same on both sides. `client` and `compute` are (id, epoch of its key) pairs."""
    binding = [part for actor, epoch in (client, compute) for part in (actor, epoch_bytes(epoch))]
    return own.agree(labels.PAIR, peer, federation_id, *binding)


def hello_hash(payload: bytes) -> bytes:
    """Return the hash that identifies an encoded Hello."""
    return digest(labels.HELLO, payload)


def certified_bytes(certificate: Certificate) -> bytes:
    """Return what identifies a certificate in this process's memory: a hash of all its bytes."""
    return hashlib.blake2b(encode(certificate), digest_size=CERTIFIED_BYTES).digest()


class WaitingHello(NamedTuple):
    """What may be a Hello: its sender, the payload, and what is known of that client.

    Attributes:
        certified: the certificate that was checked before (`certified_bytes`), or zeros. signer: who signed that one.
        rank: of the client's newest session (`Session.rank`); only a higher one replaces it.
    """

    sender: bytes
    payload: bytes
    certified: bytes
    signer: bytes
    rank: tuple[int, int, bytes]


class CheckedHello(NamedTuple):
    """A Hello whose signatures and key were checked: its hash, the pair key for it, who signed the certificate."""

    hash: bytes
    key: bytes
    signer: bytes

    def __repr__(self) -> str:
        return f"CheckedHello({self.hash.hex()}, key=<hidden>)"


class HelloWork(msgspec.Struct, frozen=True):
    """Hellos for `check_hellos`.

    Attributes:
        federation: the federation's id. signers: the keys that sign certificates (`Federation.signers`).
        own: the Compute node's id. epoch, secret: its newest epoch and that epoch's key.
    """

    federation: bytes
    signers: tuple[bytes, ...]
    own: bytes
    epoch: int
    secret: bytes
    hellos: list[WaitingHello]

    def __repr__(self) -> str:
        return f"HelloWork(<{len(self.hellos)} Hellos>)"


def check_hellos(work: HelloWork) -> list[CheckedHello | None]:
    """Check the signatures and the key of each Hello, and agree on the pair key for it; None for a wrong one.

    Also None for what is no Hello, is another client's, or is older than a known one: no signature of it is checked.
    What depends on time, or on a federation file, is not checked.
    """
    own = AgreementKey(work.secret)
    return [_checked_hello(work, own, hello) for hello in work.hellos]


def _checked_hello(work: HelloWork, own: AgreementKey, hello: WaitingHello) -> CheckedHello | None:
    try:
        frame = decode_frame(hello.payload)
        if not isinstance(frame, Signed):
            return None
        body, frame_hash = body_of(frame, Hello), hello_hash(hello.payload)
        client = actor_id(body.certificate.client_key)
        if client != hello.sender or (body.epoch, body.serial, frame_hash) <= hello.rank:
            return None
        signer = hello.signer
        if certified_bytes(body.certificate) != hello.certified:
            signer = find_signer(work.signers, work.federation, body.certificate)
        verify_signed(frame, body.certificate.client_key, work.federation)
        check_public(body.public)
        key = pair_key(own, body.public, work.federation, (client, body.epoch), (work.own, work.epoch))
    except PeerError:
        return None
    return CheckedHello(frame_hash, key, signer)


class AgreeWork(msgspec.Struct, frozen=True):
    """Clients for `agree_all`: id, epoch of the session's key, and that key. Other fields are those of `HelloWork`."""

    federation: bytes
    own: bytes
    epoch: int
    secret: bytes
    clients: list[tuple[bytes, int, bytes]]

    def __repr__(self) -> str:
        return f"AgreeWork(<{len(self.clients)} clients>)"


def agree_all(work: AgreeWork) -> bytes:
    """Return the pair keys of clients whose keys were checked, joined."""
    own, node = AgreementKey(work.secret), (work.own, work.epoch)
    keys = [pair_key(own, public, work.federation, (client, epoch), node) for client, epoch, public in work.clients]
    return b"".join(keys)


class AgreedKeys:
    """A Compute node's pair keys of one of its epochs, by the clients' slots.

    Attributes:
        keys: shape ``(n, 32)``; zeros where none is known. known: which are, shape ``(n,)``.
    """

    def __init__(self) -> None:
        self.keys = np.zeros((0, KEY_BYTES), dtype=np.uint8)
        self.known = np.zeros(0, dtype=np.bool_)

    def grow(self, slots: int) -> None:
        """Make room for so many clients."""
        more = max(slots, 2 * len(self.known)) - len(self.known)
        if slots > len(self.known):
            self.keys = np.concatenate([self.keys, np.zeros((more, KEY_BYTES), dtype=np.uint8)])
            self.known = np.concatenate([self.known, np.zeros(more, dtype=np.bool_)])

    def get(self, slot: int) -> bytes | None:
        """Return a client's pair key, if it is known."""
        return self.keys[slot].tobytes() if self.known[slot] else None

    def note(self, slot: int, key: bytes) -> None:
        """Keep a client's pair key."""
        self.keys[slot], self.known[slot] = np.frombuffer(key, dtype=np.uint8), True

    def forget(self, slot: int) -> None:
        """Overwrite a client's pair key."""
        if slot < len(self.known):
            self.keys[slot], self.known[slot] = 0, False
