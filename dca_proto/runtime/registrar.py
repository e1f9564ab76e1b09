"""A registrar at work: it answers enrolments over TLS, and lets clients into mosquitto without a restart (DESIGN §2.9).

`dca_proto.runtime.registrar_file` has its file. It runs as the broker's user on the broker's machine. The book is the
truth: both lists of the broker follow from it and from the federation file. They are written before each answer, at the
start, and when the federation file changes. A Compute node or trainer that the federation file names and `members` does
not is new: its files, but for its key, are then in the folder `new-members/NAME`, for its machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from dca_proto.crypto.sealing import Identity, actor_id
from dca_proto.errors import DcaError, InputError, StorageError
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.enrolment import (
    Answer,
    BookedInvitation,
    Decision,
    Desk,
    Enrol,
    Enrolled,
    EnrolmentRefused,
    EntranceOpened,
    EntranceWanted,
    Renew,
    Request,
    broker_password,
    code_hash,
)
from dca_proto.protocol.federation import Federation, Member
from dca_proto.protocol.names import short_id
from dca_proto.protocol.params import DAY_MS
from dca_proto.results.status import Status
from dca_proto.runtime.access import NEW_MEMBERS, OPERATOR, access_lines, is_mosquitto, operator_lines, password_line
from dca_proto.runtime.book import Book
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.config import actor_text
from dca_proto.runtime.endings import OF_REGISTRAR, EndWarner, tls_ends, warnings_of
from dca_proto.runtime.files import read_text
from dca_proto.runtime.keyfile import check_private, read_federation, read_identity, replace_file, replace_private
from dca_proto.runtime.registrar_file import RegistrarFile
from dca_proto.runtime.status import answering, status_path, store_bytes
from dca_proto.runtime.supervisor import Supervisor
from dca_proto.runtime.tls_messages import Arrival, decode_request, peer_of, receive, send, start_tls
from dca_proto.wording import counted, iso, printable

log = structlog.get_logger("dca.registrar")
_TIMEOUT_S = 10.0
_CONNECTIONS_MAX = 256
_PEER_CONNECTIONS_MAX = 16  # of one address: whoever holds all of them open keeps nobody else away
_PAUSE_S = 1.0  # after a wrong code
_LOOK_S = 5.0  # between looks at the federation file
_REQUEST_BYTES_MAX = 1024


class RegistrarServer:
    """Answers enrolments by a registrar's file. `run` serves until it is cancelled."""

    def __init__(self, file: RegistrarFile) -> None:
        self._file = file
        self._identity: Identity = read_identity(file.identity, "registrar")
        self._federation = read_federation(file.federation)
        if self._federation.registrar(self._identity.public_key) is None:
            raise InputError(
                f"{file.federation} does not name the registrar of {file.identity}; the owner does that: "
                f"dca federation add-registrar NAME={self._identity.public_key.hex()}"
            )
        check_private(file.key)
        self._seen = _stamp(file.federation)
        self._lines: dict[bytes, str] = {}  # of mosquitto's passwords, by client: a hash takes longer than a lookup
        self._listed: set[bytes] | None = None  # the clients in mosquitto's files; None if these may be wrong
        self._book = Book(file.book)
        self._ends = tls_ends(
            {"TLS certificate": file.certificate, "broker's certificate": file.broker_certificate, "CA": file.ca}
        )
        self._connections: set[asyncio.Task[None]] = set()
        self._of_peer: Counter[str] = Counter()
        self._untold = ""  # why mosquitto was not told to read its files
        self._unmade = ""  # which new member's files were not written, and why
        self._refused: Counter[str] = Counter()
        self._started_s = time.monotonic()

    @property
    def federation(self) -> Federation:
        """The newest federation file."""
        return self._federation

    def ends(self) -> dict[str, int]:
        """Return when its certificates end, and its time by the federation file; the same mapping at each call."""
        named = self._federation.registrar(self._identity.public_key)
        self._ends[OF_REGISTRAR] = 0 if named is None else named.until_ms
        return self._ends

    def status(self) -> Status:
        """Return its state, for `dca status`."""
        at_ms, running_s = now_ms(), time.monotonic() - self._started_s
        named, issued = self._federation.registrar(self._identity.public_key), self._book.issued(at_ms - DAY_MS)
        invited = [one.invitation for one in self._book.all()]
        enrolled = sum(bool(one.client_key) for one in invited)
        unspent = sum(not one.client_key and not one.is_cancelled and one.until_ms > at_ms for one in invited)
        warnings = warnings_of(self.ends(), at_ms)
        if named is None:
            warnings = ["the federation file does not name it, so it enrols nobody: dca federation add-registrar"]
        elif enrolled >= named.clients:
            warnings.append(
                f"it has enrolled {counted(enrolled, 'client')}, its limit: dca federation add-registrar raises it"
            )
        elif issued >= named.per_day:
            warnings.append(
                f"it has issued {issued:,} certificates today, its limit: others have to wait until tomorrow"
            )
        if self._untold:
            warnings.append(f"mosquitto was not told to read its files again: {self._untold}")
        if self._unmade:
            warnings.append(f"the files of new member {self._unmade}")
        return Status(
            role="registrar", name="registrar" if named is None else named.name, id=self._identity.id.hex(),
            federation=self._federation.name, file=self._federation.number, at=iso(at_ms), running_s=running_s,
            broker=self._file.broker, connected=True, since_s=running_s, epoch=at_ms // DAY_MS,
            store_bytes=store_bytes(self._file.book), enrolled=enrolled, invited=unspent, issued=issued,
            enrolled_most=None if named is None else named.clients, dropped=dict(self._refused), warnings=warnings,
            certificates={what: iso(end_ms) for what, end_ms in self.ends().items()},
        )  # fmt: skip

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Write the broker's lists, and serve until cancelled. Raises `UsageError` if the address cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._file.certificate, self._file.key)
            self.write_lists()
            server = await asyncio.get_running_loop().create_server(
                lambda: Arrival(lambda transport: self._admit(transport, context)),
                self._file.listen or self._file.address,
                self._file.port,
            )
        except OSError as error:
            where = f"{self._file.listen or self._file.address}:{self._file.port}"
            raise InputError(f"the registrar cannot serve at {where}: {error.strerror or error}") from None
        supervisor = Supervisor()
        supervisor.connection("")
        try:
            async with answering(status_path(self._file.book), self.status), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow())
                tasks.create_task(EndWarner("registrar", self.ends()).run())
                tasks.create_task(supervisor.run())
                if ready is not None:
                    ready.set()
                await asyncio.Event().wait()
        finally:
            server.close()
            for connection in self._connections:
                connection.cancel()
            self._book.close()

    async def _follow(self) -> None:
        """Read the federation file again when it has changed."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                self.refresh()
                self.follow_book()
            except DcaError as error:  # a full disk, for example: the next look tries again
                log.error("the broker's lists", reason=str(error))

    def refresh(self) -> None:
        """Adopt a newer federation file, and write the broker's lists by it. A damaged or older one changes nothing."""
        stamp = _stamp(self._file.federation)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            newer = self._federation.newer(self._federation.opened(read_federation(self._file.federation).frame))
        except DcaError as error:
            log.warning("federation file", path=str(self._file.federation), refused=str(error))
            return
        if newer is not None:
            self._federation = newer
            self.ends()
            log.info("federation file", number=newer.number)
            self.write_lists()

    # --- the broker's lists ---------------------------------------------------------------------------------------

    def write_lists(self) -> None:
        """Write mosquitto's passwords and access list, and have it read them."""
        self._listed = None
        clients = self._clients()
        passwords = [*self._server_lines(), *(self._password_line(client) for client in clients)]
        replace_private(self._file.passwords, "".join(f"{line}\n" for line in passwords))
        replace_private(self._file.access, "".join(f"{line}\n" for line in self._access(clients)))
        self._reload()
        self._listed = set(clients)
        self._hand_over_all()

    def follow_book(self) -> None:
        """Write the lists if the book has changed beside this process, by a cancellation, or if a write failed."""
        if set(self._clients()) != self._listed:
            self.write_lists()
        elif self._unmade:
            self._hand_over_all()

    def _clients(self) -> list[bytes]:
        """Return the ids of the clients that may use the broker."""
        invitations = [one.invitation for one in self._book.all()]
        clients = [actor_id(one.client_key) for one in invitations if one.client_key and not one.is_cancelled]
        return [client for client in clients if not self._federation.is_revoked(client)]

    def _password_line(self, client: bytes) -> str:
        if client not in self._lines:
            self._lines[client] = password_line(client.hex(), broker_password(self._identity, client))
        return self._lines[client]

    def _server_lines(self) -> Iterator[str]:
        """Yield the lines of the operator, and of the members that the federation file names now."""
        lines = self._given_lines()
        if OPERATOR in lines:
            yield lines[OPERATOR]
        for member in (*self._federation.computes, *self._federation.trainers):
            yield lines.get(member.id.hex()) or self._password_line(member.id)

    def _given_lines(self) -> dict[str, str]:
        """Return the lines of `members`, by user name."""
        return {line.partition(":")[0]: line for line in read_text(self._file.members).splitlines()}

    def _servers(self) -> dict[Channel, tuple[Member, ...]]:
        return {Channel.COMPUTE: self._federation.computes, Channel.TRAINER: self._federation.trainers}

    def _hand_over_all(self) -> None:
        """Write the files of new members, after the lists: these take revoked members' passwords away in any case."""
        known, self._unmade = self._given_lines(), ""
        everybody = ((role, member) for role, members in self._servers().items() for member in members)
        for role, member in ((role, one) for role, one in everybody if one.id.hex() not in known):
            try:
                self._hand_over(role, member)
            except (DcaError, OSError) as error:
                self._unmade = f"{member.name} were not written: {error}"
                log.error("new member", name=member.name, reason=str(error))

    def _hand_over(self, channel: Channel, member: Member) -> None:
        """Write what a new member's machine needs but its key, unless it is there.

        A member that comes back under its old name has a new key, so a new password: all of its files are replaced.
        """
        folder, role = self._file.members.parent / NEW_MEMBERS / member.name, channel.value
        secret, password = folder / f"{role}.password", broker_password(self._identity, member.id) + "\n"
        if secret.exists() and read_text(secret) == password:
            if read_federation(folder / "federation.toml").number < self._federation.number:
                replace_file(folder / "federation.toml", self._federation.to_toml())
            return
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make folder {folder}: {error.strerror}") from None
        replace_file(folder / "ca.pem", read_text(self._file.ca))
        replace_file(folder / "federation.toml", self._federation.to_toml())
        replace_file(folder / f"{role}.toml", actor_text(role, self._file.broker))
        replace_private(secret, password)  # last: it says that all are there
        log.info("new member", role=role, name=member.name, folder=str(folder))

    def _access(self, clients: list[bytes]) -> Iterator[str]:
        named = self._servers()
        servers = {role: [member.id.hex() for member in members] for role, members in named.items()}
        everybody = [(role, member.id) for role, members in named.items() for member in members]
        for role, member in [*everybody, *((Channel.CLIENT, client) for client in clients)]:
            yield from access_lines(self._federation.id, servers, role, member)
        yield from operator_lines(self._federation.id)

    def _reload(self) -> None:
        """Send SIGHUP to mosquitto. Without one, it reads the files when it starts."""
        try:
            pid = int(self._file.pid_file.read_text(encoding="ascii"))
            if not is_mosquitto(pid):
                raise ValueError(f"{self._file.pid_file} does not name its process")
            os.kill(pid, signal.SIGHUP)
            self._untold = ""
        except (OSError, ValueError) as error:
            self._untold = printable(str(error))
            log.warning("mosquitto was not told to read its files again", reason=str(error))

    # --- requests -------------------------------------------------------------------------------------------------

    def _admit(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        """Serve a connection, unless there are too many. Those that have not shown TLS yet count, too."""
        peer = peer_of(transport.get_extra_info("peername"))
        if len(self._connections) >= _CONNECTIONS_MAX or self._of_peer[peer] >= _PEER_CONNECTIONS_MAX:
            transport.abort()  # a device asks again
            return
        transport.pause_reading()  # until TLS reads
        self._of_peer[peer] += 1
        task = asyncio.get_running_loop().create_task(self._serve(transport, context))
        self._connections.add(task)

        def gone(task: asyncio.Task[None]) -> None:
            self._connections.discard(task)
            self._of_peer[peer] -= 1
            self._of_peer += Counter()  # forgets those without a connection

        task.add_done_callback(gone)

    async def _serve(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        """Answer one request. No peer holds a connection longer than the time-out, whatever it does."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                reader, writer = await start_tls(transport, context, _TIMEOUT_S, _REQUEST_BYTES_MAX)
                request = decode_request(await receive(reader, _REQUEST_BYTES_MAX))
                answer = self.answer(request, now_ms())
                if isinstance(answer, EnrolmentRefused):
                    await asyncio.sleep(_PAUSE_S)
                await send(writer, answer)
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError) as error:
            log.warning("request dropped", reason=type(error).__name__)
        except DcaError as error:
            log.error("request failed", reason=str(error))
        finally:
            if writer is not None:
                writer.close()
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(_PAUSE_S):
                        await writer.wait_closed()
            transport.abort()

    def answer(self, request: Request, at_ms: int) -> Answer:
        """Decide on a request; store what changes before this returns."""
        self.refresh()
        match request:
            case EntranceWanted():
                entrance = self._book.entrance(request.digest)
                return (
                    EnrolmentRefused("code", "this link is unknown")
                    if entrance is None
                    else EntranceOpened.of(entrance)
                )
            case Enrol():
                code = code_hash(self._federation.id, request.code)
                return self._decided(request, code, at_ms)
            case Renew():
                return self._decided(request, request.client_key, at_ms)

    def _decided(self, request: Enrol | Renew, where: bytes, at_ms: int) -> Answer:
        made: list[tuple[Decision, BookedInvitation | None]] = []

        def decide(invitation: BookedInvitation | None, enrolled: int, issued: int) -> BookedInvitation | None:
            is_taken = isinstance(request, Enrol) and self._book.is_taken(request.client_key, where)
            desk = Desk(self._identity, self._federation, enrolled, issued, is_taken)
            if isinstance(request, Enrol):
                decision = desk.enrol(request, invitation, at_ms)
            else:
                decision = desk.renew(request, invitation, at_ms)
            made.append((decision, invitation))
            return decision.store

        self._book.change(where, decide, at_ms, by_client=isinstance(request, Renew))
        ((decision, known),) = made
        self._log(decision, known)
        answer = decision.answer
        if isinstance(answer, Enrolled) and actor_id(answer.certificate.client_key) not in (self._listed or ()):
            self.write_lists()  # not after a repeat, with which a client could keep this and mosquitto busy
        return decision.answer

    def _log(self, decision: Decision, invitation: BookedInvitation | None) -> None:
        name = invitation.name if invitation is not None else ""
        if decision.is_alarm:
            assert invitation is not None, "somebody used its code"
            log.error("a code was used twice", name=name, first=actor_id(invitation.client_key).hex())
        elif isinstance(decision.answer, EnrolmentRefused):
            self._refused[decision.answer.code] += 1
            log.warning("refused", code=decision.answer.code, name=name)
        else:
            client = short_id(actor_id(decision.answer.certificate.client_key))
            log.info("enrolled" if decision.store is not None else "answered again", name=name, client=client)


def _stamp(path: Path) -> tuple[int, int, int]:
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino
    return 0, 0, 0
