"""Names of clients: sealed in their certificates, and read by Compute nodes and trainers (DESIGN §2.1).

The *name key* follows from the enrolment key. The federation file has it once for each Compute node and trainer, sealed
to that member. A client's certificate has its name sealed under that key, padded to one length. So the broker, which
passes both on, learns neither a name nor its length.
"""

from __future__ import annotations

import re
from collections import OrderedDict

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import NONCE_BYTES, SINGLE_USE_NONCE, Identity, actor_id, decrypt, derive, encrypt
from dca_proto.errors import InputError, PeerError
from dca_proto.protocol.wire.fields import SEALED_NAME_BYTES
from dca_proto.protocol.wire.messages import Certificate

MEMBER_NAME = re.compile(r"\w[\w .-]{0,63}")
"""The name of a member or a client; it is also used for file names."""
NAME_BYTES_MAX = 48
"""A client's name, in UTF-8; each is padded to this size."""
KNOWN_MAX = 1 << 16
"""The most names of clients that a trainer remembers."""
_SHORT_DIGITS = 8


def short_id(member_id: bytes) -> str:
    """Return the first digits of an id, for people."""
    return member_id.hex()[:_SHORT_DIGITS]


def check_name(name: str) -> str:
    """Return a client's name. Raises `InputError` if a certificate cannot have it."""
    if MEMBER_NAME.fullmatch(name) and len(name.encode()) <= NAME_BYTES_MAX:
        return name
    raise InputError(
        f"a client is named {name[:80]!r}; use letters, digits, spaces, dots, dashes and underscores, at most "
        f"{NAME_BYTES_MAX} bytes, and begin with a letter, a digit or an underscore"
    )


def wrap_name_key(authority: Identity, federation_id: bytes, member_key: bytes) -> bytes:
    """Return the name key, sealed to a Compute node or a trainer. Raises `PeerError("key")` for an invalid key."""
    key = authority.agree(labels.NAMES_WRAP, member_key, federation_id)
    return encrypt(key, SINGLE_USE_NONCE, authority.name_key, federation_id)


def unwrap_name_key(identity: Identity, federation_id: bytes, enrolment_key: bytes, wrapped: bytes) -> bytes:
    """Return the name key that the enrolment key sealed to a member. Raises `PeerError`."""
    return decrypt(
        identity.agree(labels.NAMES_WRAP, enrolment_key, federation_id), SINGLE_USE_NONCE, wrapped, federation_id
    )


def seal_name(name_key: bytes, client_key: bytes, expires_ms: int, name: str) -> bytes:
    """Return a client's name, sealed for one certificate: a nonce that depends on the name, then the ciphertext."""
    padded, about = check_name(name).encode().ljust(NAME_BYTES_MAX, b"\0"), _about(client_key, expires_ms)
    nonce = derive(name_key, labels.NAME_NONCE, about + padded, NONCE_BYTES)
    return nonce + encrypt(name_key, nonce, padded, about)


def open_name(name_key: bytes, certificate: Certificate) -> str:
    """Return the name in a certificate; empty if it has none that this key opens."""
    sealed = certificate.name
    if len(sealed) != SEALED_NAME_BYTES:
        return ""
    about = _about(certificate.client_key, certificate.expires_ms)
    try:
        name = decrypt(name_key, sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about).rstrip(b"\0").decode()
        return check_name(name)
    except (PeerError, UnicodeDecodeError, InputError):
        return ""


def _about(client_key: bytes, expires_ms: int) -> bytes:
    return client_key + expires_ms.to_bytes(8, "little")


class KnownNames:
    """Names of clients that a trainer has learned from certificates; the oldest is forgotten first."""

    def __init__(self, name_key: bytes | None) -> None:
        self._key = name_key
        self._names: OrderedDict[bytes, str] = OrderedDict()

    def learn(self, certificate: Certificate) -> None:
        """Remember the name in a certificate whose signature was checked, if there is one."""
        name = "" if self._key is None else open_name(self._key, certificate)
        if name:
            client = actor_id(certificate.client_key)
            self._names[client] = name
            self._names.move_to_end(client)
            if len(self._names) > KNOWN_MAX:
                self._names.popitem(last=False)

    def get(self, client: bytes) -> str:
        """Return a client's name; empty if it is not known."""
        return self._names.get(client, "")
