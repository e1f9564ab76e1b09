"""A device joins a federation by an invitation, or renews its certificate (DESIGN §2.9).

Each step can be repeated after a kill at any point: the key is written first and kept; the registrar gives one key the
same answer again; the actor's file is written last, so whoever has it has all else. Nothing is overwritten but what a
repeat writes in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from pathlib import Path

import msgspec

from dca_proto.crypto.sealing import Identity
from dca_proto.errors import InputError, PeerError, StorageError, TransportError, UsageError
from dca_proto.protocol.enrolment import (
    MESSAGE_BYTES_MAX,
    Answer,
    Bundle,
    Enrolled,
    EnrolmentRefused,
    Entrance,
    EntranceOpened,
    EntranceWanted,
    Request,
    enrol_request,
    renew_request,
)
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.names import check_name
from dca_proto.protocol.wire.messages import Certificate
from dca_proto.runtime.aiomqtt_connection import AiomqttConnection
from dca_proto.runtime.bundle import InvitationLink, check_entrance
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.config import actor_text
from dca_proto.runtime.connection import LOGIN_REFUSED, Connect, ConnectRefused, Listener
from dca_proto.runtime.files import read_text
from dca_proto.runtime.keyfile import (
    new_identity,
    parse_certificate,
    read_federation,
    read_identity,
    replace_file,
    replace_private,
    write_certificate,
    write_identity,
)
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.tls_messages import receive, send

_TIMEOUT_S = 20.0
_TRIES, _PAUSE_S = 100, 0.2
_REQUESTS, _AGAIN_S = 6, 0.5
CONFIG, POLICY = "client.toml", "policy.toml"


class Joined(msgspec.Struct, frozen=True):
    """What a device has after joining: its file, its name and id, its certificate; `is_new` unless it was there.

    `ends_later`: of a renewal, whether the certificate ends later than the one before.
    """

    config: Path
    name: str
    id: bytes
    certificate: Certificate
    federation: Federation
    is_new: bool = True
    ends_later: bool = True


async def join(
    bundle: Bundle, folder: Path, data: Path | None, policy: Path | None = None, accepted: str = "",
    *, sleep_max_s: float = 0,
) -> Joined:  # fmt: skip
    """Make the key, enrol it, and write the client's files into a folder.

    Args:
        folder: created if missing. data: a CSV file; None if a program passes the data.
        policy: the owner's policy file, with its folder. accepted: the text of the policy that the owner has accepted;
            it becomes a file in the folder. sleep_max_s: the longest sleep of a client that sleeps.

    Raises:
        UsageError: the registrar refuses, or a file of the folder belongs to another client.
        TransportError: the registrar or the broker cannot be reached.
    """
    federation = check_entrance(bundle.entrance)
    known = folder / "federation.toml"
    if known.exists() and read_federation(known).id != federation.id:
        raise InputError(f"{folder} belongs to another federation; name another folder")
    _check_room(folder, accepted)
    is_old = (folder / "client.key").exists()
    identity = _identity(folder)
    remedy = f"; move {folder} away (the store in it has what this key spent), and repeat the command" if is_old else ""
    request = enrol_request(identity, federation.id, bundle.code)
    enrolled = await _enrolled(bundle.entrance, request, dict.fromkeys(("revoked", "taken"), remedy))
    newest = _checked(enrolled, identity, federation)
    is_new = not (folder / CONFIG).exists()
    _write(folder, bundle.entrance, enrolled, newest)
    if is_new:
        secret = folder / "client.password"
        url = bundle.entrance.broker
        settings = BrokerSettings(url=url, ca=folder / "ca.pem", password_file=secret, session_expiry_s=0)
        await _admitted(settings, identity.id)
        if accepted:
            replace_private(folder / POLICY, accepted)
        limits = Path(POLICY) if accepted else policy
        replace_private(folder / CONFIG, actor_text("client", url, data, enrolled.name, limits, sleep_max_s))
    return Joined(folder / CONFIG, enrolled.name, identity.id, enrolled.certificate, newest, is_new)


def _check_room(folder: Path, accepted: str) -> None:
    """Refuse to replace a policy file of the owner's by an accepted policy. Raises `UsageError`."""
    path = folder / POLICY
    if accepted and path.exists() and not (folder / CONFIG).exists() and read_text(path) != accepted:
        raise InputError(f"{path} exists already and is not replaced; give --policy {path} to take it, or move it away")


async def renew(entrance: Entrance, folder: Path) -> Joined:
    """Get a client's next certificate. Raises as `join`."""
    if not (folder / CONFIG).exists():
        raise InputError(f"{folder} has no {CONFIG}; join first: dca join BUNDLE")
    federation = read_federation(folder / "federation.toml")
    if federation.id != check_entrance(entrance).id:
        raise InputError(f"{folder} belongs to another federation than the invitation; name its own")
    identity = read_identity(folder / "client.key", "client")
    enrolled = await _enrolled(entrance, renew_request(identity, federation.id, now_ms()))
    newest = _checked(enrolled, identity, federation)
    before_ms = _expires_ms(folder / "client.cert")
    _write(folder, entrance, enrolled, newest)
    ends_later = enrolled.certificate.expires_ms > before_ms
    return Joined(folder / CONFIG, enrolled.name, identity.id, enrolled.certificate, newest, False, ends_later)


def _expires_ms(certificate: Path) -> int:
    """Return when a certificate ends; 0 if it is missing or damaged."""
    with contextlib.suppress(UsageError):
        return parse_certificate(certificate).expires_ms
    return 0


async def open_link(link: InvitationLink) -> Entrance:
    """Fetch the entrance of a link. Nothing secret leaves: the server is verified only by what it sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    opened = await _ask(link.host, link.port, context, EntranceWanted(link.digest))
    if isinstance(opened, EnrolmentRefused):
        raise InputError(f"the registrar refuses this link ({opened.code}): {opened.reason}")
    with contextlib.suppress(msgspec.MsgspecError):
        if isinstance(opened, EntranceOpened) and (entrance := opened.entrance).digest == link.digest:
            return entrance
    raise InputError(f"{link.host}:{link.port} is not the registrar of this link; nothing was sent to it")


def _identity(folder: Path) -> Identity:
    """Return the folder's key, a new one in a new folder."""
    path = folder / "client.key"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make folder {folder}: {error.strerror}") from None
    if path.exists():
        return read_identity(path, "client")
    identity = new_identity()
    draft = folder / f".client.key.{identity.id.hex()}"  # a kill while it is written leaves no half of a key
    write_identity(draft, "client", identity)
    try:
        path.hardlink_to(draft)
    except FileExistsError:  # of the same command, at the same time: its key may be enrolled by now
        return read_identity(path, "client")
    except OSError:  # a file system without links
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return identity


def _write(folder: Path, entrance: Entrance, enrolled: Enrolled, federation: Federation) -> None:
    path = folder / "federation.toml"
    replace_file(folder / "ca.pem", entrance.ca)
    if not path.exists() or read_federation(path).number < federation.number:
        replace_file(path, federation.to_toml())
    write_certificate(folder / "client.cert", federation, enrolled.certificate)
    replace_private(folder / "client.password", enrolled.password + "\n")


def _checked(enrolled: Enrolled, identity: Identity, federation: Federation) -> Federation:
    """Check a registrar's answer; return the newest federation file. Raises `InputError`."""
    try:
        signed = federation.opened(Federation.from_toml(enrolled.federation).frame)
        newest = federation.newer(signed) or federation
        if not enrolled.password or not enrolled.password.isprintable():
            raise InputError(
                "the registrar's answer is not valid: an odd password; report it to the federation's owner"
            )
        check_name(enrolled.name)
        if newest.check_certificate(enrolled.certificate, now_ms()) == identity.id:
            return newest
        raise InputError("the registrar sent another client's certificate; report it to the federation's owner")
    except PeerError as error:
        raise InputError(f"the registrar's answer is not valid: {error}") from None


async def _enrolled(entrance: Entrance, request: Request, remedies: dict[str, str] | None = None) -> Enrolled:
    """Return the registrar's answer. `remedies`: what a device then does, by the code of a refusal."""
    try:
        context = ssl.create_default_context(cadata=entrance.ca)
    except (ssl.SSLError, ValueError):
        raise InputError("the invitation's CA is damaged; get the invitation again") from None
    answer = await _ask(entrance.host, entrance.port, context, request)
    if isinstance(answer, EnrolmentRefused):
        remedy = (remedies or {}).get(answer.code, "")
        raise InputError(f"the registrar refuses ({answer.code}): {answer.reason}{remedy}")
    if not isinstance(answer, Enrolled):
        raise InputError("the registrar's answer is not valid: another kind of message")
    return answer


async def _ask(host: str, port: int, context: ssl.SSLContext, request: Request) -> Answer:
    """Send a request and return the answer. Raises `TransportError`, or `InputError` for a wrong certificate.

    A registrar that has too many connections drops this one; each request may be repeated.
    """
    for again in range(1, _REQUESTS):
        with contextlib.suppress(_DroppedError):
            return await _ask_once(host, port, context, request)
        await asyncio.sleep(_AGAIN_S * again * (1 + random.random()))  # noqa: S311 - spreads devices that start together
    return await _ask_once(host, port, context, request)


class _DroppedError(TransportError):
    """The registrar ended the connection without an answer."""


async def _ask_once(host: str, port: int, context: ssl.SSLContext, request: Request) -> Answer:
    where = f"the registrar at {host}:{port}"
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context, limit=MESSAGE_BYTES_MAX)
            try:
                await send(writer, request)
                answer: Answer = msgspec.msgpack.decode(await receive(reader, MESSAGE_BYTES_MAX), type=Answer)
                return answer
            finally:
                writer.close()
    except ssl.SSLCertVerificationError as error:
        raise InputError(
            f"{where} is not the one of the invitation, and got no code: {error.verify_message}; do not try again "
            "before you know why"
        ) from None
    except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        kind = (
            _DroppedError if isinstance(error, ConnectionResetError | asyncio.IncompleteReadError) else TransportError
        )
        raise kind(f"{where} does not answer ({reason}); check the network, and try again") from None
    except msgspec.MsgspecError:
        raise TransportError(f"{where} sent what is no answer; is it a registrar?") from None


async def _admitted(settings: BrokerSettings, client: bytes) -> None:
    """Wait until the broker knows the new password: mosquitto reads it again within moments."""
    hello = Connect(
        settings, client.hex(), client.hex(), settings.read_password(), settings.tls_context(), _TIMEOUT_S
    )  # fmt: skip
    for tries_left in reversed(range(_TRIES)):
        connection = AiomqttConnection(hello, Listener(lambda published: False, lambda number: None))
        try:
            await connection.open()
            return
        except ConnectRefused as error:
            if error.code not in LOGIN_REFUSED or not tries_left:
                raise UsageError(f"enrolled, but {settings.url} does not let it in: {error}; try again") from None
        except (OSError, TransportError) as error:
            raise TransportError(f"enrolled, but the broker cannot be reached: {error}; try again") from None
        finally:
            await connection.leave()
        await asyncio.sleep(_PAUSE_S)
