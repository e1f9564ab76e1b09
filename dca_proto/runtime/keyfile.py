"""Reads and writes identities, certificates and the federation file.

A secret file is created readable by its owner only and never replaces another file. If others can read or change it, it
is refused. Certificates and the federation file are public. All three are short TOML texts:

    role = "client"             federation = "demo"             (see `Federation.to_toml`)
    id = "..."                  client_key = "..."
    public_key = "..."          expires_ms = 1790000000000
    secret = "..."              signature = "..."
                                name = "..."  (sealed; only Compute nodes and trainers can read it)
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Annotated

import msgspec

from dca_proto.crypto.sealing import KEY_BYTES, Identity, actor_id
from dca_proto.errors import InputError, PeerError, StorageError, UsageError
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.wire.messages import Certificate
from dca_proto.runtime.files import decode_text, full, open_input, read_text, unreadable
from dca_proto.wording import moment, parse_toml

ROLES = ("client", "compute", "trainer", "registrar", "authority")
"""The roles that have an identity; the authority's is the federation's enrolment key."""

_HEX_DIGITS = 2 * KEY_BYTES
_ENROL_ADVICE = "have the client enrolled: dca federation enrol"


class _KeyText(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    id: str
    public_key: str
    secret: str

    def __repr__(self) -> str:
        return f"_KeyText({self.role}, {self.id})"


class _CertificateText(msgspec.Struct, forbid_unknown_fields=True):
    federation: str
    client_key: str
    expires_ms: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    signature: str
    name: str = ""


def new_identity() -> Identity:
    """Return a fresh identity from the operating system's random generator."""
    return Identity(secrets.token_bytes(KEY_BYTES))


# --- identities -------------------------------------------------------------------------------------------------------


def write_identity(path: Path, role: str, identity: Identity) -> None:
    """Write an identity to a new file that only its owner can ever read.

    Raises `UsageError` if the role is unknown, the file exists already, or it cannot be written.
    """
    if role not in ROLES:
        raise UsageError(f"role {role!r} is unknown; use one of {', '.join(ROLES)}")
    text = (
        f"# Identity of a dca {role}. Secret: only its owner may read this file.\n"
        f'role = "{role}"\nid = "{identity.id.hex()}"\n'
        f'public_key = "{identity.public_key.hex()}"\nsecret = "{identity.seed.hex()}"\n'
    )
    write_private(path, text)


def read_identity(path: Path, role: str) -> Identity:
    """Read the identity in a key file.

    Raises `UsageError` if the file is missing, open to others, not a key file, or of another role.
    """
    expected = f"expected a key file as `dca keygen {path} --role {role}` writes it"
    try:
        text = msgspec.convert(parse_toml(read_private(path, expected)), _KeyText)
    except UsageError:
        raise
    except ValueError:
        raise InputError(f"{path} is not a key file; {expected}") from None
    try:
        identity = Identity(bytes.fromhex(text.secret))
    except UsageError:
        raise
    except ValueError:
        raise InputError(f"the secret in {path} is not hexadecimal; {expected}") from None
    if (text.public_key, text.id) != (identity.public_key.hex(), identity.id.hex()):
        raise InputError(f"{path} is damaged: its public key or id does not match its secret; restore it from a backup")
    if text.role != role:
        raise InputError(f"{path} is the identity of a {text.role}, expected that of a {role}; name the right file")
    return identity


def public_key(text: str) -> bytes | None:
    """Decode a key of 64 hexadecimal digits; None if `text` is not one."""
    with contextlib.suppress(ValueError):
        return bytes.fromhex(text) if len(text) == _HEX_DIGITS else None
    return None


# --- certificates -----------------------------------------------------------------------------------------------------


def certificate_path(identity: Path) -> Path:
    """Return a certificate's default path: beside the key file, with the suffix ``.cert``."""
    return identity.with_suffix(".cert")


def write_certificate(path: Path, federation: Federation, certificate: Certificate) -> None:
    """Write a certificate, replacing the one that it renews. Raises `UsageError` if it cannot be written."""
    text = (
        f"# Certificate of a dca client, until {moment(certificate.expires_ms)}. Not secret.\n"
        f'federation = "{federation.name}"\nclient_key = "{certificate.client_key.hex()}"\n'
        f'expires_ms = {certificate.expires_ms}\nsignature = "{certificate.signature.hex()}"\n'
    )
    if certificate.name:
        text += f'name = "{certificate.name.hex()}"  # sealed: only Compute nodes and trainers can read it\n'
    replace_file(path, text)


def replace_file(path: Path, text: str) -> None:
    """Write a public file atomically: readers see the old text or the new one. Raises `UsageError`."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror}") from None


def read_certificate(path: Path, federation: Federation, now_ms: int) -> Certificate:
    """Read a certificate that is valid in this federation now.

    Raises `UsageError` if the file is missing or is not a certificate, or if the certificate is expired, revoked or not
    signed by the federation's enrolment key.
    """
    certificate = parse_certificate(path)
    try:
        federation.check_certificate(certificate, now_ms)
    except PeerError as error:
        reasons = {"certificate": "has expired", "revoked": "is revoked for good, so make a new key"}
        reason = reasons.get(error.code, f"was not signed for federation {federation.name!r}")
        raise InputError(f"certificate {path} {reason}; {_ENROL_ADVICE}") from None
    return certificate


def certified_id(path: Path) -> bytes:
    """Return the id of the client in a certificate, valid or not. Raises `UsageError`."""
    return actor_id(parse_certificate(path).client_key)


def parse_certificate(path: Path) -> Certificate:
    """Read a certificate without checking it. Raises `UsageError` if the file is none."""
    try:
        text = msgspec.convert(parse_toml(_read_public(path, _ENROL_ADVICE)), _CertificateText)
        parts = (bytes.fromhex(part) for part in (text.client_key, text.signature, text.name))
        client_key, signature, name = parts
        return Certificate(client_key, text.expires_ms, signature, name)
    except UsageError:
        raise
    except ValueError:  # TOML, msgspec and hexadecimal errors are all ValueErrors
        raise InputError(f"{path} is not a certificate; {_ENROL_ADVICE}") from None


# --- the federation file ----------------------------------------------------------------------------------------------


def read_federation(path: Path) -> Federation:
    """Read a federation file. Raises `UsageError` that names the file."""
    advice = "run this where the owner's federation.toml is, or name that file, as in --federation FILE"
    text = _read_public(path, advice)
    try:
        return Federation.from_toml(text)
    except UsageError as error:
        raise InputError(f"{path}: {error}") from None


def _read_public(path: Path, advice: str) -> str:
    if not path.exists():
        raise InputError(f"{path.name} does not exist in {full(path).parent}; {advice}")
    return read_text(path, advice)


_OWNER_ONLY = 0o600
_BYTES_MAX = 1 << 16


def write_private(path: Path, text: str) -> None:
    """Write a new file of mode 0600. Raises `UsageError` if it exists or cannot be written."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    except FileExistsError:
        raise StorageError(f"{path} exists already and is not replaced; name another file, or move it away") from None
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        path.unlink()
        raise StorageError(f"cannot write {path}: {error.strerror}") from None


def replace_private(path: Path, text: str) -> None:
    """Write a file of mode 0600 atomically, in place of an earlier one. Raises `StorageError`."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    write_private(draft, text)
    try:
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror}") from None


def read_private(path: Path, advice: str = "") -> str:
    """Read a secret file; its mode is checked on the open file. `advice`: see `read_text`.

    Raises `UsageError` if the file cannot be read, is not text, or others can read or change it.
    """
    try:
        with open_input(path, advice) as file:
            _check_mode(path, os.fstat(file.fileno()).st_mode)
            content = file.read(_BYTES_MAX)
    except OSError as error:
        raise unreadable(path, error, advice) from None
    return decode_text(content, path, advice)


def read_password(path: Path) -> str:
    """Read the first line of a secret file. Raises `UsageError`, also if it is empty or not text."""
    lines = read_private(path).splitlines()
    if not lines or not lines[0]:
        raise InputError(f"password file {path} is empty: put the password in its first line")
    return lines[0]


def check_private(path: Path) -> None:
    """Raise `UsageError` if a secret file is unreadable or open to others; for files that a library reads itself."""
    with open_input(path) as file:
        _check_mode(path, os.fstat(file.fileno()).st_mode)


def _check_mode(path: Path, mode: int) -> None:
    if mode & 0o077:
        raise InputError(
            f"{path} can be read or changed by others: found mode {stat.S_IMODE(mode):04o}, expected 0600; "
            f"run: chmod 600 {path}"
        )
