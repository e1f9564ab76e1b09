"""The federation file, which lists a federation's members, and its changes (DESIGN §2.1, §2.7).

Every participant gets the file out of band and takes keys from it alone. The enrolment key signs the file and each
client's certificate. Whoever holds that key can create Sybils, which the protocol cannot distinguish from clients. A
changed file has a higher number. The file may name *registrars*, whose keys sign certificates, too, within limits.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from functools import cached_property, lru_cache

import msgspec

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import Identity, actor_id, digest, verify
from dca_proto.errors import InputError, PeerError, UsageError
from dca_proto.protocol.federation_text import FileText, text_of
from dca_proto.protocol.names import MEMBER_NAME, seal_name, short_id, unwrap_name_key, wrap_name_key
from dca_proto.protocol.params import CERTIFICATES_KNOWN_MAX, DAY_MS
from dca_proto.protocol.records import Records, signed, unreadable
from dca_proto.protocol.wire.codec import body_of, encode, sign, verify_signed
from dca_proto.protocol.wire.fields import COLLUDING_MAX
from dca_proto.protocol.wire.messages import Certificate, FederationFile, FileStamp, Registrar, Signed
from dca_proto.wording import moment, parse_toml

FILES = "federation"
"""The store's table that holds the newest federation file."""
ALL_BUT_ONE = COLLUDING_MAX + 1
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


_ID = re.compile(r"\b[0-9a-f]{32}\b")


class Member(msgspec.Struct, frozen=True, dict=True):
    """A Compute node or a trainer: a name for people and an Ed25519 public key of 32 bytes.

    `name_key` is the federation's name key, sealed to this member by `sign_federation`; empty before that.
    """

    name: str
    key: bytes
    name_key: bytes = b""

    @cached_property
    def id(self) -> bytes:
        """A hash of the key, 16 bytes."""
        return actor_id(self.key)


class Federation(msgspec.Struct, frozen=True, dict=True):
    """The content of the federation file.

    Attributes:
        name: lower-case letters, digits and dashes. The federation's id depends on it.
        enrolment_key: Ed25519 public key that signs this file and clients' certificates.
        computes: the Compute nodes.
        trainers: the members that may announce rounds.
        number: 1 for the first file, one more with each change.
        revoked: ids of revoked members and clients, ascending.
        signature: the enrolment key's signature over the content; zeros until `sign_federation`.
        colluding: p as the owner states it, the most Compute nodes that may be corrupt; 0 for all but one.
        registrars: those who may sign clients' certificates besides the enrolment key.
    """

    name: str
    enrolment_key: bytes
    computes: tuple[Member, ...]
    trainers: tuple[Member, ...]
    number: int = 1
    revoked: tuple[bytes, ...] = ()
    signature: bytes = bytes(64)
    colluding: int = 0
    registrars: tuple[Registrar, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(f"federation name {self.name!r}: use up to 32 lower-case letters, digits and dashes")
        members: tuple[Member | Registrar, ...] = (*self.computes, *self.trainers, *self.registrars)
        invalid = [member.name for member in members if not MEMBER_NAME.fullmatch(member.name)]
        if invalid:
            raise InputError(
                f"federation {self.name!r}: a member is named {invalid[0][:80]!r}; use up to 64 letters, digits, "
                "spaces, dots, dashes and underscores, and begin with a letter, a digit or an underscore"
            )
        for field, values in (("name", [m.name for m in members]), ("key", [m.key for m in members])):
            if len(set(values)) != len(values):
                raise InputError(f"federation {self.name!r}: two members have the same {field}; give each its own")
        if any(len(key) != 32 for key in (self.enrolment_key, *(member.key for member in members))):
            raise InputError(f"federation {self.name!r}: a key is not 32 bytes (64 hexadecimal digits)")
        if list(self.revoked) != sorted(set(self.revoked)):
            raise InputError(f"federation {self.name!r}: revoked ids are repeated, or not in ascending order")
        revoked = [member.name for member in members if actor_id(member.key) in self._revoked]
        if revoked:
            raise InputError(f"federation {self.name!r}: the key of {revoked[0]} is revoked; use a new key")

    def __repr__(self) -> str:
        return f"Federation({self.name!r}, {self.title})"

    @property
    def stated(self) -> int:
        """`colluding` as a number that can be compared: all but one is larger than any other."""
        return self.colluding or ALL_BUT_ONE

    @property
    def p(self) -> int:
        """The most Compute nodes that may be corrupt, by this file alone."""
        return self.p_beside(0)

    def p_beside(self, pinned: int) -> int:
        """Return p for a member that keeps to a p of at least `pinned`: at most M - 1, and at least 1 (§2.7).

        So no threshold of p + 1 nodes is met by a single one, whatever the file says.
        """
        return max(1, min(max(self.stated, pinned), len(self.computes) - 1))

    @cached_property
    def id(self) -> bytes:
        """32 bytes to which every signature is bound, so that no message is valid in another federation."""
        return _id_of(self.name, self.enrolment_key)

    @cached_property
    def frame(self) -> Signed:
        """The file as a message, with its signature."""
        roles = (self.computes, self.trainers)
        computes, trainers = (
            tuple((member.name, member.key, member.name_key) for member in members) for members in roles
        )
        return Signed(
            encode(FederationFile(self.number, computes, trainers, self.revoked, self.colluding, self.registrars)),
            self.signature,
        )

    @cached_property
    def hash(self) -> bytes:
        """32 bytes that identify this file."""
        return digest(labels.FILE, self.id, self.frame.body)

    @property
    def title(self) -> str:
        """The file's number and hash, for people to compare."""
        return _title(self.number, self.hash)

    def compute(self, compute_id: bytes) -> Member:
        """Return the Compute node with this id. Raises `PeerError("unknown-compute")`."""
        return self._find(self._computes_by_id, compute_id, "unknown-compute")

    def trainer(self, trainer_id: bytes) -> Member:
        """Return the trainer with this id. Raises `PeerError("unknown-trainer")`."""
        return self._find(self._trainers_by_id, trainer_id, "unknown-trainer")

    def _find(self, members: dict[bytes, Member], member_id: bytes, code: str) -> Member:
        member = members.get(member_id)
        if member is None:
            raise PeerError(code, found=member_id.hex(), expected=f"an id of {self.title}")
        return member

    def has(self, trainer: bytes, computes: Iterable[bytes]) -> bool:
        """Return True if this file names the trainer and all Compute nodes of a round."""
        return trainer in self._trainers_by_id and all(compute in self._computes_by_id for compute in computes)

    def name_of(self, member_id: bytes) -> str:
        """Return a member's name; for an unknown id, the id in hexadecimal."""
        member = self._computes_by_id.get(member_id) or self._trainers_by_id.get(member_id)
        return member.name if member else member_id.hex()

    def name_key(self, identity: Identity) -> bytes | None:
        """Return the key of clients' names, sealed to this member; None for a client, or if the file has none."""
        member: Member | Registrar | None
        member = self._computes_by_id.get(identity.id) or self._trainers_by_id.get(identity.id)
        member = member or self._registrars_by_key.get(identity.public_key)
        if member is None or not member.name_key:
            return None
        with contextlib.suppress(PeerError):
            return unwrap_name_key(identity, self.id, self.enrolment_key, member.name_key)
        return None

    def person_name_of(self, member_id: bytes) -> str:
        """Return a member's name with its short id, as people read it; for an unknown id, the short id."""
        member = self._computes_by_id.get(member_id) or self._trainers_by_id.get(member_id)
        return f"{member.name} ({short_id(member_id)})" if member else short_id(member_id)

    def named(self, text: str) -> str:
        """Return a text with the names of Compute nodes and trainers in place of their ids."""
        return _ID.sub(lambda found: self.name_of(bytes.fromhex(found[0])), text)

    def is_server(self, member_id: bytes) -> bool:
        """Return True if the id belongs to a Compute node or a trainer."""
        return member_id in self._computes_by_id or member_id in self._trainers_by_id

    def computes_among(self, ids: Iterable[bytes]) -> frozenset[bytes]:
        """Return those of the ids that belong to Compute nodes."""
        return frozenset(self._computes_by_id).intersection(ids)

    def is_revoked(self, member_id: bytes) -> bool:
        """Return True if a member or a client was revoked, which cannot be undone."""
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

    @cached_property
    def signers(self) -> tuple[bytes, ...]:
        """The keys that sign clients' certificates: the enrolment key and the registrars'."""
        return (self.enrolment_key, *self._registrars_by_key)

    @cached_property
    def _registrars_by_key(self) -> dict[bytes, Registrar]:
        return {registrar.key: registrar for registrar in self.registrars}

    def registrar(self, signer: bytes) -> Registrar | None:
        """Return the registrar with this key; None for any other key."""
        return self._registrars_by_key.get(signer)

    def signer_of(self, certificate: Certificate) -> bytes:
        """Return the key of `signers` that signed a certificate, valid or not. Raises `PeerError("signature")`."""
        return known_signer(self.signers, self.id, certificate)

    def certified_client(self, certificate: Certificate) -> bytes:
        """Return the id of a certificate's client; its end is not checked. Raises `PeerError("signature")`."""
        self.signer_of(certificate)
        return actor_id(certificate.client_key)

    def check_certificate(self, certificate: Certificate, now_ms: int, *, signer: bytes = b"") -> bytes:
        """Check that a certificate is valid: signed, not expired, not revoked. Return the client's id.

        `signer`: the key that signed it, if the caller has checked its signature before. Raises `PeerError`.
        """
        self._check_registrar(signer or self.signer_of(certificate), certificate, now_ms)
        client = actor_id(certificate.client_key)
        if self.is_revoked(client):
            raise PeerError("revoked", found=client.hex(), expected=f"a client that {self.title} does not revoke")
        if now_ms >= certificate.expires_ms:
            found, now = f"a certificate until {moment(certificate.expires_ms)}", moment(now_ms)
            raise PeerError("certificate", found=found, expected=f"one that is valid on {now} by this clock")
        return client

    def _check_registrar(self, signer: bytes, certificate: Certificate, now_ms: int) -> None:
        """Check that a signer may sign this certificate. Raises `PeerError`."""
        if signer == self.enrolment_key:
            return
        registrar = self.registrar(signer)
        if registrar is None:
            found = f"a certificate of registrar {actor_id(signer).hex()}"
            raise PeerError("revoked", found=found, expected=f"a registrar of {self.title}")
        latest_ms = min(registrar.until_ms, now_ms + (registrar.days + 1) * DAY_MS)  # a day for wrong clocks
        if certificate.expires_ms > latest_ms:
            found = f"a certificate until {moment(certificate.expires_ms)}"
            raise PeerError("certificate", found=found, expected=f"{moment(latest_ms)} at most, of {registrar.name}")

    @cached_property
    def stamp(self) -> FileStamp:
        """The file's number and hash, as members send them."""
        return FileStamp(self.number, self.hash)

    def check_stamp(self, stamp: FileStamp) -> None:
        """Refuse a sender that follows another file of this number. Raises `PeerError`, which names both files."""
        if stamp.number == self.number and stamp.hash != self.hash:
            found = _title(stamp.number, stamp.hash)
            raise PeerError("federation", found=found, expected=f"{self.title}; give both the owner's newest file")

    def check_number(self, number: int, file_hash: bytes) -> None:
        """Refuse a round announced under a newer file, or under another of this number. Raises `PeerError`."""
        if number > self.number or (number == self.number and file_hash != self.hash):
            found = f"a round by {_title(number, file_hash)}"
            raise PeerError("federation", found=found, expected=f"one by {self.title}, which is known here, or older")

    def opened(self, frame: Signed) -> Federation:
        """Return the federation file in a message, if this federation's enrolment key signed it. Raises `PeerError`."""
        return _opened(self.name, self.enrolment_key, frame)

    def newer(self, other: Federation) -> Federation | None:
        """Return the `other` file of this federation if it is newer, else None.

        Raises `PeerError` if it has this file's number but another content, or if it takes a revocation back.
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
        """Return the file's text."""
        return text_of(self)

    @classmethod
    def from_toml(cls, text: str) -> Federation:
        """Parse the file's text and check its signature. Raises `UsageError`."""
        try:
            raw = msgspec.convert(parse_toml(text), FileText, strict=True)
        except ValueError as error:  # of TOML, or of msgspec
            raise InputError(f"federation file: {error}; `dca federation init` writes one") from None
        try:
            parsed = cls(
                raw.name,
                bytes.fromhex(raw.enrolment_key),
                tuple(Member(*m.fields) for m in raw.computes),
                tuple(Member(*m.fields) for m in raw.trainers),
                raw.number,
                tuple(bytes.fromhex(member_id) for member_id in raw.revoked),
                bytes.fromhex(raw.signature),
                raw.colluding,
                tuple(one.registrar for one in raw.registrars),
            )
            return parsed.opened(parsed.frame)
        except UsageError:
            raise
        except ValueError:
            raise InputError("federation file: a key is not hexadecimal; `dca federation init` writes one") from None
        except PeerError as error:
            if error.code == "malformed":
                raise InputError(f"federation file: members would refuse its content: {error.found}") from None
            raise InputError(
                "federation file: the enrolment key did not sign this content, so it was changed; get the file from "
                "its owner"
            ) from None


def sign_federation(authority: Identity, federation: Federation) -> Federation:
    """Sign a federation file, with the name key for each member.

    Raises `UsageError` for a wrong key, and for content that members would refuse.
    """
    _require_authority(authority, federation)
    computes, trainers = (
        tuple(_with_name_key(authority, federation, member) for member in members)
        for members in (federation.computes, federation.trainers)
    )
    registrars = tuple(
        msgspec.structs.replace(one, name_key=_sealed_name_key(authority, federation, one))
        for one in federation.registrars
    )
    unsigned = msgspec.structs.replace(federation, computes=computes, trainers=trainers, registrars=registrars)
    signature = sign(authority, federation.id, unsigned.frame.body).signature
    signed_file = msgspec.structs.replace(unsigned, signature=signature)
    return Federation.from_toml(signed_file.to_toml())


def newest_file(file: Federation, records: Records) -> Federation:
    """Return the newer of two files: the one given to an actor and the one in its store.

    Raises `UsageError` if they differ but have the same number, or if the newer one takes a revocation back.
    """
    for frame in (signed(FILES, value) for table, key, value in records if (table, key) == (FILES, file.id)):
        try:
            stored = file.opened(frame)
        except PeerError as error:
            raise unreadable(FILES, str(error)) from None
        try:
            return stored.newer(file) or file.newer(stored) or file
        except PeerError as error:
            raise InputError(f"the store has {stored.title}: {error}; get a newer file from its owner") from None
    return file


@lru_cache(maxsize=8)  # all actors of a process share one copy
def _opened(name: str, enrolment_key: bytes, frame: Signed) -> Federation:
    body = body_of(frame, FederationFile)
    computes, trainers = (tuple(Member(*fields) for fields in role) for role in (body.computes, body.trainers))
    verify_signed(frame, enrolment_key, _id_of(name, enrolment_key))
    try:
        content = (computes, trainers, body.number, body.revoked, frame.signature, body.colluding, body.registrars)
        return Federation(name, enrolment_key, *content)
    except UsageError as error:
        raise PeerError("malformed", found=str(error), expected="a federation file") from None


def enrol(signer: Identity, federation: Federation, client_key: bytes, expires_ms: int, name: str = "") -> Certificate:
    """Sign a client's certificate, which has its `name` unless that is empty. `signer`: as in `Federation.signers`.

    Raises `UsageError` for another signer, a revoked client, or a name that members would refuse.
    """
    name_key = signer.name_key
    if federation.registrar(signer.public_key) is None:
        _require_authority(signer, federation)
    else:
        opened = federation.name_key(signer)
        assert opened is not None, "the enrolment key seals it for each registrar"
        name_key = opened
    if federation.is_revoked(actor_id(client_key)):
        raise InputError(f"the key of {actor_id(client_key).hex()} is revoked for good; have the client make a new one")
    sealed = seal_name(name_key, client_key, expires_ms, name) if name else b""
    unsigned = Certificate(client_key, expires_ms, bytes(64), sealed)
    return msgspec.structs.replace(unsigned, signature=signer.sign(federation.id, _certified(unsigned)))


def _with_name_key(authority: Identity, federation: Federation, member: Member) -> Member:
    """Return the member with the name key, sealed to it. Raises `UsageError` if its key is no Ed25519 public key."""
    return Member(member.name, member.key, _sealed_name_key(authority, federation, member))


def _sealed_name_key(authority: Identity, federation: Federation, member: Member | Registrar) -> bytes:
    try:
        return wrap_name_key(authority, federation.id, member.key)
    except PeerError:
        raise InputError(
            f"federation {federation.name!r}: the key of {member.name} is no Ed25519 public key; use the one that "
            "`dca keygen` printed"
        ) from None


def _require_authority(authority: Identity, federation: Federation) -> None:
    if authority.public_key != federation.enrolment_key:
        raise InputError("this is not the federation file's enrolment key; use the one that `federation init` made")


@lru_cache(maxsize=CERTIFICATES_KNOWN_MAX)  # a client sends the same one in every round; failures are not cached
def known_signer(signers: tuple[bytes, ...], federation_id: bytes, certificate: Certificate) -> bytes:
    """Return what `find_signer` found for this certificate before. Raises as that."""
    return find_signer(signers, federation_id, certificate)


def find_signer(signers: tuple[bytes, ...], federation_id: bytes, certificate: Certificate) -> bytes:
    """Return which of the keys signed a certificate. Raises `PeerError("signature")` if none did."""
    for signer in signers[1:]:
        with contextlib.suppress(PeerError):
            verify(signer, federation_id, _certified(certificate), certificate.signature)
            return signer
    verify(signers[0], federation_id, _certified(certificate), certificate.signature)
    return signers[0]


def _certified(certificate: Certificate) -> bytes:
    expires = certificate.expires_ms.to_bytes(8, "little")
    return labels.CERTIFICATE + certificate.client_key + expires + certificate.name


def _id_of(name: str, enrolment_key: bytes) -> bytes:
    return digest(labels.FEDERATION, name.encode(), enrolment_key)


def _title(number: int, file_hash: bytes) -> str:
    return f"federation file {number} (hash {file_hash.hex()[:16]})"
