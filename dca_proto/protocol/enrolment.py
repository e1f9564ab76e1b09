"""How a device enrols with a one-time code: invitations, requests, and the registrar's decisions (DESIGN §2.9).

The operator hands a device a *bundle*: addresses, the CA, the federation file, and a code of 128 random bits. The
device makes its key, and sends code and public key to the registrar over TLS, which it verifies by the CA of the
bundle. The registrar signs the certificate, and lets the device into the broker. The registrar has a port of its own
and not a user at the broker: the broker, which many reach, sees no code and no password, and a registrar that is down
stops no round.

What an attacker gains, and what stops them:

| attacker | gains |
| --- | --- |
| steals a bundle before its use | one enrolment under that name. The device then gets `spent`: revoke the id |
| steals a bundle after its use | nothing: the code is spent, and only the same key gets the same answer again |
| records and replays an enrolment | nothing: TLS; the answer would only name the key that is enrolled already |
| runs or reads the broker | neither codes nor certificates; the passwords that clients send it, as before |
| opens connections, sends nothing | at most 16 of one address, of 256, each for ten seconds |
| guesses codes | 2⁻¹²⁸ a guess; wrong ones are answered after a pause |
| reads the registrar's book | names and ids; codes are stored hashed, passwords not at all |
| steals the registrar's key | Sybils up to its limit, and its clients' broker passwords, until it is revoked; no data |
| is a client, and renews without end | one certificate a day: the others' share of `per_day` remains |
| uses one code on two devices | the second is refused. A repeated request of one key gets the answer of the first |
| shows another CA | the device verifies the server by the bundle alone, and sends nothing |

Everything here is pure. `dca_proto.runtime.registrar` keeps the book and serves; `dca_proto.runtime.joining` asks.
"""

from __future__ import annotations

import base64
from typing import Annotated

import msgspec
from msgspec import Meta

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import Identity, actor_id, derive, digest, verify
from dca_proto.errors import PeerError
from dca_proto.protocol.federation import Federation, enrol
from dca_proto.protocol.params import DAY_MS
from dca_proto.protocol.wire.fields import Key, Signature, TimeMs
from dca_proto.protocol.wire.messages import Certificate, Registrar

CODE_BYTES = 16
MESSAGE_BYTES_MAX = 1 << 19
"""The largest message of a registrar; it holds a federation file."""
CLOCK_MS = 10 * 60 * 1000
"""How much the clocks of a device and the registrar may differ when a certificate is renewed."""
_PASSWORD_BYTES = 24

Code = Annotated[bytes, Meta(min_length=CODE_BYTES, max_length=CODE_BYTES)]


class Entrance(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The public part of a bundle: the registrar's host and port, the broker's URL, the CA (PEM), the file's text.

    `policy` is the text of a policy that it suggests; "" if none. It counts only if the device's owner accepts it.
    """

    host: str
    port: Annotated[int, Meta(ge=1, le=65535)]
    broker: str
    ca: str
    federation: str
    policy: str = ""

    @property
    def encoded(self) -> bytes:
        """Its encoding; without a policy, that of version 0.1.0, which has no such field."""
        fields = msgspec.structs.astuple(self)
        return msgspec.msgpack.encode(fields if self.policy else fields[:-1])

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for it in a link."""
        return digest(labels.ENTRANCE, self.encoded)[:16]


class Bundle(msgspec.Struct, frozen=True):
    """What a device gets: its name and its code, with the entrance. The code is secret until it is spent."""

    name: str
    code: bytes
    entrance: Entrance

    def __repr__(self) -> str:
        return f"Bundle({self.name!r}, code=<hidden>)"


class EntranceWanted(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True):
    """A device that has only a link asks for the entrance of this digest, and for the name of its code."""

    digest: Annotated[bytes, Meta(min_length=16, max_length=16)]


class Enrol(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True):
    """A device asks to enrol its key; its signature covers the code."""

    code: Code
    client_key: Key
    signature: Signature

    def __repr__(self) -> str:
        return f"Enrol({actor_id(self.client_key).hex()}, code=<hidden>)"


class Renew(msgspec.Struct, frozen=True, array_like=True, tag=3, forbid_unknown_fields=True):
    """A client asks for a certificate that ends later; its signature covers the time."""

    client_key: Key
    at_ms: TimeMs
    signature: Signature


class Enrolled(msgspec.Struct, frozen=True, array_like=True, tag=4, forbid_unknown_fields=True):
    """The registrar's answer: certificate, name, password for the broker, and the newest federation file's text."""

    certificate: Certificate
    name: str
    password: str
    federation: str

    def __repr__(self) -> str:
        return f"Enrolled({self.name!r}, password=<hidden>)"


class EntranceOpened(msgspec.Struct, frozen=True, array_like=True, tag=5, forbid_unknown_fields=True):
    """The answer to `EntranceWanted`: an encoded entrance."""

    encoded: msgspec.Raw

    @classmethod
    def of(cls, entrance: Entrance) -> EntranceOpened:
        """The answer with this entrance."""
        return cls(msgspec.Raw(entrance.encoded))

    @property
    def entrance(self) -> Entrance:
        """The entrance. Raises `msgspec.MsgspecError`."""
        return msgspec.msgpack.decode(self.encoded, type=Entrance)


class EnrolmentRefused(msgspec.Struct, frozen=True, array_like=True, tag=6, forbid_unknown_fields=True):
    """The registrar refuses: a short fixed code, and a sentence for people."""

    code: str
    reason: str


Request = EntranceWanted | Enrol | Renew
Answer = Enrolled | EntranceOpened | EnrolmentRefused


class BookedInvitation(msgspec.Struct, frozen=True):
    """An invitation in the registrar's book, by the hash of its code.

    Attributes:
        name: of the client. until_ms: when the code expires. days: validity of certificates.
        client_key: of the client that has spent the code; empty before. certificate: its newest one.
        is_cancelled: by the operator.
    """

    name: str
    until_ms: int
    days: int
    client_key: bytes = b""
    certificate: Certificate | None = None
    is_cancelled: bool = False


def code_hash(federation_id: bytes, code: bytes) -> bytes:
    """Return what the registrar stores of a code."""
    return digest(labels.ENROL_CODE, federation_id, code)


def enrol_request(identity: Identity, federation_id: bytes, code: bytes) -> Enrol:
    """Return the signed request of a device."""
    signature = identity.sign(federation_id, labels.ENROL_REQUEST + code + identity.public_key)
    return Enrol(code, identity.public_key, signature)


def renew_request(identity: Identity, federation_id: bytes, now_ms: int) -> Renew:
    """Return the signed request of a client for its next certificate."""
    signature = identity.sign(federation_id, _renewed(identity.public_key, now_ms))
    return Renew(identity.public_key, now_ms, signature)


def _renewed(client_key: bytes, at_ms: int) -> bytes:
    return labels.RENEW_REQUEST + client_key + at_ms.to_bytes(8, "little")


def broker_password(registrar: Identity, client: bytes) -> str:
    """Return a client's password for the broker; the same at each call, so it need not be stored."""
    secret = derive(registrar.seed, labels.BROKER_PASSWORD, client, _PASSWORD_BYTES)
    return base64.urlsafe_b64encode(secret).decode()


class Decision(msgspec.Struct, frozen=True):
    """A registrar's answer to a request for a certificate.

    `store`: the invitation as it is to be stored before the answer is sent; None if it has not changed.
    `is_alarm`: somebody else than the first device used a code.
    """

    answer: Enrolled | EnrolmentRefused
    store: BookedInvitation | None = None
    is_alarm: bool = False


class Desk(msgspec.Struct, frozen=True):
    """Decides what a registrar answers.

    Attributes:
        identity: the registrar's. federation: the newest file.
        enrolled: how many clients it has ever enrolled. issued: how many certificates in the last day.
        is_taken: another invitation has enrolled the key of the request.
    """

    identity: Identity
    federation: Federation
    enrolled: int
    issued: int
    is_taken: bool = False

    @property
    def limits(self) -> Registrar | None:
        """The registrar's own limits; None if the federation file does not name it."""
        return self.federation.registrar(self.identity.public_key)

    def enrol(self, request: Enrol, invitation: BookedInvitation | None, now_ms: int) -> Decision:
        """Decide on a request; `invitation` belongs to its code."""
        try:
            signed = labels.ENROL_REQUEST + request.code + request.client_key
            verify(request.client_key, self.federation.id, signed, request.signature)
        except PeerError:
            return _refused("signature", "the request was not signed by its own key")
        if invitation is None:
            return _refused("code", "this code is unknown; ask for a new invitation")
        if invitation.client_key and invitation.client_key != request.client_key:
            why = "this code was used by another device; ask for a new invitation, and report it if it was not you"
            return Decision(EnrolmentRefused("spent", why), is_alarm=True)
        if invitation.is_cancelled:
            return _refused("cancelled", "this invitation was cancelled; ask for a new one")
        if not invitation.client_key and now_ms >= invitation.until_ms:
            return _refused("expired", "this code has expired; ask for a new invitation")
        if self.federation.is_revoked(actor_id(request.client_key)):
            return _refused("revoked", "this key is revoked for good; make a new one")
        if self.is_taken:
            return _refused("taken", "this key is enrolled by another invitation; join in a new folder, with a new key")
        if invitation.certificate is not None and self._is_valid(invitation.certificate, now_ms):
            return self._answer(invitation)
        return self._issue(invitation, request.client_key, now_ms)

    def renew(self, request: Renew, invitation: BookedInvitation | None, now_ms: int) -> Decision:
        """Decide on a client's request for a later certificate; `invitation` is the one that it has spent."""
        try:
            signed = _renewed(request.client_key, request.at_ms)
            verify(request.client_key, self.federation.id, signed, request.signature)
        except PeerError:
            return _refused("signature", "the request was not signed by its own key")
        if abs(now_ms - request.at_ms) > CLOCK_MS:
            return _refused("clock", "the clocks of device and registrar differ by more than ten minutes; set them")
        if invitation is None or invitation.is_cancelled:
            return _refused("unknown", "this registrar did not enrol that key; ask for an invitation")
        return self._issue(invitation, request.client_key, now_ms)

    def _is_valid(self, certificate: Certificate, now_ms: int) -> bool:
        """Return True if the file's members accept it: limits or revocations may be newer than it."""
        try:
            self.federation.check_certificate(certificate, now_ms)
        except PeerError:
            return False
        return True

    def _check(self, client_key: bytes) -> Decision | None:
        """Return a refusal if nobody, or not this key, may have a certificate."""
        if self.limits is None:
            return _refused("registrar", "the federation file does not name this registrar; its operator has to act")
        if self.federation.is_revoked(actor_id(client_key)):
            return _refused("revoked", "this key is revoked for good; make a new one, with a new invitation")
        return None

    def _issue(self, invitation: BookedInvitation, client_key: bytes, now_ms: int) -> Decision:
        """Sign a certificate within the limits."""
        refused, limits = self._check(client_key), self.limits
        if refused is not None or limits is None:
            return refused or _refused("registrar", "")
        if not invitation.client_key and self.enrolled >= limits.clients:
            return _refused("limit", f"this registrar has enrolled {self.enrolled} clients, its limit; ask the owner")
        expires_ms = min(now_ms + min(invitation.days, limits.days) * DAY_MS, limits.until_ms)
        if expires_ms <= now_ms:
            return _refused("registrar", "this registrar's time is over; ask the owner for a newer federation file")
        if invitation.certificate is not None and abs(expires_ms - invitation.certificate.expires_ms) < DAY_MS:
            return self._answer(invitation)  # one a day for each client, or one of them could use up all of a day
        if self.issued >= limits.per_day:
            return _refused("rate", f"this registrar issues {limits.per_day} certificates a day; try again tomorrow")
        certificate = enrol(self.identity, self.federation, client_key, expires_ms, invitation.name)
        changed = msgspec.structs.replace(invitation, client_key=client_key, certificate=certificate)
        return self._answer(changed, changed)

    def _answer(self, invitation: BookedInvitation, store: BookedInvitation | None = None) -> Decision:
        assert invitation.certificate is not None, "it was just issued, or was before"
        password = broker_password(self.identity, actor_id(invitation.client_key))
        answer = Enrolled(invitation.certificate, invitation.name, password, self.federation.to_toml())
        return Decision(answer, store)


def _refused(code: str, reason: str) -> Decision:
    return Decision(EnrolmentRefused(code, reason))
