"""Who belongs to a federation: the file that every participant gets out of band (DESIGN §2).

Clients and Compute nodes take keys from this file alone. The enrolment key signs each client's certificate: whoever
holds it can make Sybils, and nothing in the protocol can tell them from clients.
"""

from __future__ import annotations

import re
import tomllib
from functools import cached_property, lru_cache

import msgspec

from dca_proto.core.codec import encode
from dca_proto.core.errors import PeerError, UsageError
from dca_proto.core.messages import Certificate
from dca_proto.core.params import CERTIFICATES_KNOWN_MAX
from dca_proto.core.sealing import Identity, actor_id, digest, verify

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


class Member(msgspec.Struct, frozen=True, dict=True):
    """A Compute node or a trainer: a name for people and an Ed25519 public key of 32 bytes."""

    name: str
    key: bytes

    @cached_property
    def id(self) -> bytes:
        """16 bytes: a hash of the key."""
        return actor_id(self.key)


class Federation(msgspec.Struct, frozen=True, dict=True):
    """The federation file's content.

    Attributes:
        name: lower-case letters, digits and dashes; part of every topic.
        enrolment_key: Ed25519 public key that signs clients' certificates.
        computes: the Compute nodes. trainers: those who may announce rounds.
    """

    name: str
    enrolment_key: bytes
    computes: tuple[Member, ...]
    trainers: tuple[Member, ...]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"federation name {self.name!r}: use up to 32 lower-case letters, digits and dashes")
        members = self.computes + self.trainers
        for what, values in (("name", [m.name for m in members]), ("key", [m.key for m in members])):
            if len(set(values)) != len(values):
                raise UsageError(f"federation {self.name!r}: a {what} stands there twice; each member has its own")
        if any(len(key) != 32 for key in (self.enrolment_key, *(member.key for member in members))):
            raise UsageError(f"federation {self.name!r}: a key is not 32 bytes (64 hexadecimal digits)")

    @cached_property
    def hash(self) -> bytes:
        """32 bytes that every signature is bound to: another federation's messages verify nowhere here."""
        return digest(b"dca1-federation", self.name.encode(), encode(self))

    def compute(self, compute_id: bytes) -> Member:
        """The Compute node of that id. Raises `PeerError("unknown-compute")`."""
        return _find(self._computes_by_id, compute_id, "unknown-compute")

    def trainer(self, trainer_id: bytes) -> Member:
        """The trainer of that id. Raises `PeerError("unknown-trainer")`."""
        return _find(self._trainers_by_id, trainer_id, "unknown-trainer")

    @cached_property
    def _computes_by_id(self) -> dict[bytes, Member]:
        return {member.id: member for member in self.computes}

    @cached_property
    def _trainers_by_id(self) -> dict[bytes, Member]:
        return {member.id: member for member in self.trainers}

    def check_certificate(self, certificate: Certificate, now_ms: int) -> bytes:
        """The client's id, if the certificate is this federation's and has not expired. Raises `PeerError`."""
        client = certified_client(self.enrolment_key, self.hash, certificate)
        if now_ms >= certificate.expires_ms:
            raise PeerError("certificate", found=f"expired at {certificate.expires_ms} ms", expected=f"after {now_ms}")
        return client

    def to_toml(self) -> str:
        """The file's text."""
        lines = [f'name = "{self.name}"', f'enrolment_key = "{self.enrolment_key.hex()}"']
        for table, members in (("computes", self.computes), ("trainers", self.trainers)):
            for member in members:
                lines += ["", f"[[{table}]]", f"name = {_quoted(member.name)}", f'key = "{member.key.hex()}"']
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str) -> Federation:
        """Parse the file's text. Raises `UsageError`."""
        try:
            raw = msgspec.convert(tomllib.loads(text), _File, strict=True)
            return cls(
                raw.name,
                bytes.fromhex(raw.enrolment_key),
                tuple(Member(m.name, bytes.fromhex(m.key)) for m in raw.computes),
                tuple(Member(m.name, bytes.fromhex(m.key)) for m in raw.trainers),
            )
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            raise UsageError(f"federation file: {error}; `dca federation init` writes one") from None
        except UsageError:
            raise
        except ValueError:
            raise UsageError("federation file: a key is not hexadecimal; `dca federation init` writes one") from None


class _FileMember(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    key: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    enrolment_key: str
    computes: list[_FileMember] = []
    trainers: list[_FileMember] = []


def enrol(authority: Identity, federation: Federation, client_key: bytes, expires_ms: int) -> Certificate:
    """Sign a client's certificate with the federation's enrolment identity. Raises `UsageError` for another key."""
    if authority.public_key != federation.enrolment_key:
        raise UsageError("this is not the federation file's enrolment key; use the one that `federation init` made")
    unsigned = Certificate(client_key, expires_ms, bytes(64))
    return Certificate(client_key, expires_ms, authority.sign(federation.hash, _certified(unsigned)))


@lru_cache(maxsize=CERTIFICATES_KNOWN_MAX)  # a client shows the same one in every round; what fails is not kept
def certified_client(enrolment_key: bytes, federation_hash: bytes, certificate: Certificate) -> bytes:
    """The client's id, if the certificate is signed, whether it has expired or not. Raises `PeerError("signature")`."""
    verify(enrolment_key, federation_hash, _certified(certificate), certificate.signature)
    return actor_id(certificate.client_key)


def _certified(certificate: Certificate) -> bytes:
    return b"dca1-certificate" + certificate.client_key + certificate.expires_ms.to_bytes(8, "little")


def _find(members: dict[bytes, Member], member_id: bytes, code: str) -> Member:
    member = members.get(member_id)
    if member is None:
        raise PeerError(code, found=member_id.hex(), expected="an id of the federation file")
    return member


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
