"""Building blocks of messages: checked field types, the base of encoded structs, and signed frames."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dca_proto.protocol.params import PROTOCOL_VERSION

NAME_CHARS_MAX = 64
TEXT_CHARS_MAX = 500
COMPUTES_MAX = 64
REPEATS_MAX = 3
"""How often a request is repeated without the Compute nodes that were silent."""
MEMBERS_MAX = 256
REVOKED_MAX = 1 << 13
"""`MEMBERS_MAX` members of each role and `REVOKED_MAX` revoked ids fit one retained federation file (256 KiB)."""
REGISTRARS_MAX = 16
REGISTRAR_DAYS_MAX = 3660
COLLUDING_MAX = MEMBERS_MAX - 1
"""The largest p that a federation file states."""
Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Tag = Annotated[bytes, Meta(min_length=16, max_length=16)]
COUNT_MAX = (1 << 32) - 1
Count = Annotated[int, Meta(ge=0, lt=COUNT_MAX + 1)]
Number = Annotated[int, Meta(ge=1, lt=1 << 32)]
TimeMs = Annotated[int, Meta(ge=0, lt=1 << 53)]
WINDOW_S_MAX = 366 * 24 * 3600
WindowSeconds = Annotated[int, Meta(ge=0, le=WINDOW_S_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
SEALED_NAME_BYTES = 88
SealedName = Annotated[bytes, Meta(max_length=SEALED_NAME_BYTES)]
WRAPPED_KEY_BYTES = 48
WrappedKey = Annotated[bytes, Meta(max_length=WRAPPED_KEY_BYTES)]
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Version = Annotated[int, Meta(ge=PROTOCOL_VERSION, le=PROTOCOL_VERSION)]


class Wire(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Base of encoded structs: fields by position, no unknown ones."""


class Signed(Wire, frozen=True, array_like=True, tag=1):
    """§3: a `body` and its sender's Ed25519 `signature` over the federation's id, the `version` and the body."""

    body: bytes
    signature: Signature
    version: Version = PROTOCOL_VERSION

    def __repr__(self) -> str:  # short, because the trainer stores signed releases
        return f"Signed(<{len(self.body)} bytes>)"


class Certificate(Wire, frozen=True, array_like=True):
    """§2.1: the enrolment key certifies that a client belongs to the federation until `expires_ms`.

    `client_key` is the client's Ed25519 key. `name` is the client's name, sealed under the name key; empty without one.
    The enrolment key's `signature` covers all three.
    """

    client_key: Key
    expires_ms: TimeMs
    signature: Signature
    name: SealedName
