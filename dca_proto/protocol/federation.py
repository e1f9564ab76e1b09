"""Who belongs to a federation: the file that every participant gets out of band, and its changes (DESIGN §2.1, §2.7).

Members take keys from this file alone. The enrolment key signs it, and each client's certificate: whoever holds that
key can make Sybils, and nothing in the protocol can distinguish them from clients. A change is a file with a higher
number."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cached_property, lru_cache

import msgspec

from dca_proto.crypto.sealing import Identity, actor_id, digest, verify
from dca_proto.errors import InputError, PeerError, UsageError
from dca_proto.protocol.params import CERTIFICATES_KNOWN_MAX
from dca_proto.protocol.records import signed, unreadable
from dca_proto.protocol.wire.codec import body_of, encode, sign, verify_signed
from dca_proto.protocol.wire.messages import Certificate, FederationFile, FileStamp, Signed

FILES = "federation"
"""The store's table of the newest federation file."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_MEMBER = re.compile(r"\w[\w .-]{0,63}")  # also the name of its files


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
        enrolment_key: Ed25519 public key that signs this file and clients' certificates.
        computes: the Compute nodes. trainers: those who may announce rounds.
        number: 1, and one more with each change. revoked: ids of members and clients that were, ascending.
        signature: the enrolment key's, over all of this; zeros until `sign_federation`.
    """

    name: str
    enrolment_key: bytes
    computes: tuple[Member, ...]
    trainers: tuple[Member, ...]
    number: int = 1
    revoked: tuple[bytes, ...] = ()
    signature: bytes = bytes(64)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(f"federation name {self.name!r}: use up to 32 lower-case letters, digits and dashes")
        members = self.computes + self.trainers
        odd = [one.name for one in members if not _MEMBER.fullmatch(one.name)]
        if odd:
            raise InputError(
                f"federation {self.name!r}: a member is named {odd[0][:80]!r}; use up to 64 letters, digits, spaces, "
                "dots, dashes and underscores, and begin with none of the four"
            )
        for what, values in (("name", [m.name for m in members]), ("key", [m.key for m in members])):
            if len(set(values)) != len(values):
                raise InputError(f"federation {self.name!r}: a {what} stands there twice; each member has its own")
        if any(len(key) != 32 for key in (self.enrolment_key, *(member.key for member in members))):
            raise InputError(f"federation {self.name!r}: a key is not 32 bytes (64 hexadecimal digits)")
        if list(self.revoked) != sorted(set(self.revoked)):
            raise InputError(f"federation {self.name!r}: revoked ids are out of order, or one stands there twice")
        back = [member.name for member in members if member.id in self._revoked]
        if back:
            raise InputError(f"federation {self.name!r}: the key of {back[0]} is revoked; take a new one")

    def __repr__(self) -> str:
        return f"Federation({self.name!r}, {self.title})"

    @cached_property
    def id(self) -> bytes:
        """32 bytes that every signature is bound to: another federation's messages verify nowhere here."""
        return _id_of(self.name, self.enrolment_key)

    @cached_property
    def frame(self) -> Signed:
        """The file as a message: its content with its signature."""
        computes, trainers = (tuple((one.name, one.key) for one in role) for role in (self.computes, self.trainers))
        return Signed(encode(FederationFile(self.number, computes, trainers, self.revoked)), self.signature)

    @cached_property
    def hash(self) -> bytes:
        """32 bytes that identify this file."""
        return digest(b"dca4-file", self.id, self.frame.body)

    @property
    def title(self) -> str:
        """Number and hash, for people to compare."""
        return _title(self.number, self.hash)

    def compute(self, compute_id: bytes) -> Member:
        """The Compute node of that id. Raises `PeerError("unknown-compute")`."""
        return self._find(self._computes_by_id, compute_id, "unknown-compute")

    def trainer(self, trainer_id: bytes) -> Member:
        """The trainer of that id. Raises `PeerError("unknown-trainer")`."""
        return self._find(self._trainers_by_id, trainer_id, "unknown-trainer")

    def _find(self, members: dict[bytes, Member], member_id: bytes, code: str) -> Member:
        member = members.get(member_id)
        if member is None:
            raise PeerError(code, found=member_id.hex(), expected=f"an id of {self.title}")
        return member

    def has(self, trainer: bytes, computes: Iterable[bytes]) -> bool:
        """Whether this file names all members of a round."""
        return trainer in self._trainers_by_id and all(one in self._computes_by_id for one in computes)

    def name_of(self, member_id: bytes) -> str:
        """A member's name, or the id of somebody who is none."""
        member = self._computes_by_id.get(member_id) or self._trainers_by_id.get(member_id)
        return member.name if member else member_id.hex()

    def is_server(self, member_id: bytes) -> bool:
        """Whether it is a Compute node or a trainer."""
        return member_id in self._computes_by_id or member_id in self._trainers_by_id

    def is_revoked(self, member_id: bytes) -> bool:
        """Whether a member or a client was revoked, which cannot be undone."""
        return member_id in self._revoked

    @cached_property
    def _computes_by_id(self) -> dict[bytes, Member]:
        return {member.id: member for member in self.computes}

    @cached_property
    def _trainers_by_id(self) -> dict[bytes, Member]:
        return {member.id: member for member in self.trainers}

    @cached_property
    def _revoked(self) -> frozenset[bytes]:
        return frozenset(self.revoked)

    def check_certificate(self, certificate: Certificate, now_ms: int) -> bytes:
        """The client's id, if the certificate is this federation's, not expired and not revoked. Raises `PeerError`."""
        client = certified_client(self.enrolment_key, self.id, certificate)
        if self.is_revoked(client):
            raise PeerError("revoked", found=client.hex(), expected=f"a client that {self.title} does not revoke")
        if now_ms >= certificate.expires_ms:
            raise PeerError("certificate", found=f"expired at {certificate.expires_ms} ms", expected=f"after {now_ms}")
        return client

    @cached_property
    def stamp(self) -> FileStamp:
        """What members say of it when they connect."""
        return FileStamp(self.number, self.hash)

    def check_stamp(self, stamp: FileStamp) -> None:
        """Refuse whoever follows another file of this number, before a signature fails over it. Raises `PeerError`."""
        if stamp.number == self.number and stamp.hash != self.hash:
            found = _title(stamp.number, stamp.hash)
            raise PeerError("federation", found=found, expected=f"{self.title}; give both the owner's newest file")

    def check_number(self, number: int, file_hash: bytes) -> None:
        """Whether one who knows this file can judge a round that was announced by another. Raises `PeerError`."""
        if number > self.number or (number == self.number and file_hash != self.hash):
            found = f"a round by {_title(number, file_hash)}"
            raise PeerError("federation", found=found, expected=f"one by {self.title}, which is known here, or older")

    def opened(self, frame: Signed) -> Federation:
        """A file of this federation that came as a message. Raises `PeerError` where it is none."""
        return _opened(self.name, self.enrolment_key, frame)

    def newer(self, other: Federation) -> Federation | None:
        """The other file of this federation if it is the newer one.

        Raises `PeerError` where it has this file's number but not its content, or takes a revocation back.
        """
        if other.number < self.number or other.hash == self.hash:
            return None
        if other.number == self.number:
            raise PeerError("federation", found=f"two files of one number, also {other.title}", expected=self.title)
        if not self._revoked <= other._revoked:
            found = f"{other.title}, which takes a revocation back"
            raise PeerError("federation", found=found, expected=f"all that {self.title} revokes")
        return other

    def to_toml(self) -> str:
        """The file's text."""
        lines = [
            "# `dca federation` makes and signs this file. A change by hand breaks the signature.",
            f'name = "{self.name}"',
            f"number = {self.number}",
            f'enrolment_key = "{self.enrolment_key.hex()}"',
            f"revoked = {_quoted([one.hex() for one in self.revoked])}",
            f'signature = "{self.signature.hex()}"',
        ]
        for table, members in (("computes", self.computes), ("trainers", self.trainers)):
            for member in members:
                lines += ["", f"[[{table}]]", f"name = {_quoted(member.name)}", f'key = "{member.key.hex()}"']
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str) -> Federation:
        """Parse the file's text. Raises `UsageError`, also where the signature does not hold."""
        try:
            raw = msgspec.convert(tomllib.loads(text), _File, strict=True)
            given = cls(
                raw.name,
                bytes.fromhex(raw.enrolment_key),
                tuple(Member(m.name, bytes.fromhex(m.key)) for m in raw.computes),
                tuple(Member(m.name, bytes.fromhex(m.key)) for m in raw.trainers),
                raw.number,
                tuple(bytes.fromhex(one) for one in raw.revoked),
                bytes.fromhex(raw.signature),
            )
            return given.opened(given.frame)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            raise InputError(f"federation file: {error}; `dca federation init` writes one") from None
        except UsageError:
            raise
        except ValueError:
            raise InputError("federation file: a key is not hexadecimal; `dca federation init` writes one") from None
        except PeerError as error:
            if error.code == "malformed":
                raise InputError(f"federation file: content that no member would take: {error.found}") from None
            raise InputError(
                "federation file: its enrolment key did not sign this content: it was changed; get it from its owner"
            ) from None


class _FileMember(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    key: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    number: int
    enrolment_key: str
    signature: str
    revoked: list[str] = []
    computes: list[_FileMember] = []
    trainers: list[_FileMember] = []


def sign_federation(authority: Identity, federation: Federation) -> Federation:
    """The file with its signature. Raises `UsageError` for another key, and for content that no file can have."""
    _require_authority(authority, federation)
    signature = sign(authority, federation.id, federation.frame.body).signature
    finished = msgspec.structs.replace(federation, signature=signature)
    return Federation.from_toml(finished.to_toml())


def newest_file(given: Federation, records: Iterable[tuple[str, bytes, bytes]]) -> Federation:
    """The file that an actor was given, or the newer one that its store has.

    Raises `UsageError` where the enrolment key has signed two files of that number, or takes a revocation back.
    """
    for frame in (signed(FILES, value) for table, key, value in records if (table, key) == (FILES, given.id)):
        try:
            stored = given.opened(frame)
        except PeerError as error:
            raise unreadable(FILES, str(error)) from None
        try:
            return stored.newer(given) or given.newer(stored) or given
        except PeerError as error:
            raise InputError(f"the store has {stored.title}: {error}; get a newer file from its owner") from None
    return given


@lru_cache(maxsize=8)  # all actors of a process hold one copy
def _opened(name: str, enrolment_key: bytes, frame: Signed) -> Federation:
    """The federation of a file that the enrolment key signed. Raises `PeerError`."""
    body = body_of(frame, FederationFile)
    computes, trainers = (tuple(Member(*one) for one in role) for role in (body.computes, body.trainers))
    verify_signed(frame, enrolment_key, _id_of(name, enrolment_key))
    try:
        return Federation(name, enrolment_key, computes, trainers, body.number, body.revoked, frame.signature)
    except UsageError as error:
        raise PeerError("malformed", found=str(error), expected="a federation file") from None


def enrol(authority: Identity, federation: Federation, client_key: bytes, expires_ms: int) -> Certificate:
    """Sign a client's certificate. Raises `UsageError` if it is not the enrolment key, or the client's is revoked."""
    _require_authority(authority, federation)
    if federation.is_revoked(actor_id(client_key)):
        raise InputError(f"the key of {actor_id(client_key).hex()} is revoked for good; have the client make a new one")
    unsigned = Certificate(client_key, expires_ms, bytes(64))
    return Certificate(client_key, expires_ms, authority.sign(federation.id, _certified(unsigned)))


def _require_authority(authority: Identity, federation: Federation) -> None:
    if authority.public_key != federation.enrolment_key:
        raise InputError("this is not the federation file's enrolment key; use the one that `federation init` made")


@lru_cache(maxsize=CERTIFICATES_KNOWN_MAX)  # a client shows the same one in every round; what fails is not kept
def certified_client(enrolment_key: bytes, federation_id: bytes, certificate: Certificate) -> bytes:
    """The client's id, if the certificate is signed, whether it has expired or not. Raises `PeerError("signature")`."""
    verify(enrolment_key, federation_id, _certified(certificate), certificate.signature)
    return actor_id(certificate.client_key)


def _certified(certificate: Certificate) -> bytes:
    return b"dca1-certificate" + certificate.client_key + certificate.expires_ms.to_bytes(8, "little")


def _id_of(name: str, enrolment_key: bytes) -> bytes:
    return digest(b"dca4-federation", name.encode(), enrolment_key)


def _title(number: int, file_hash: bytes) -> str:
    return f"federation file {number} (hash {file_hash.hex()[:16]})"


def _quoted(value: str | list[str]) -> str:
    return msgspec.json.encode(value).decode()
