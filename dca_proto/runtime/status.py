"""Answers `dca status`: a process makes a record of its actor's state, and gives it away over a local socket.

The socket is beside the actor's store: ``client.db-status``, of mode 0600. Whoever connects sends ``status`` and a line
end, and receives one JSON object. The door is checked from both sides: the actor answers processes of its own user and
of root only, a few at a time, within seconds; the command connects to a socket of its own user, or as root to any, and
reads a bounded answer of known fields. A door that cannot be opened is logged, and stops nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import stat
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from dca_proto.errors import InputError, StorageError
from dca_proto.protocol import facts
from dca_proto.protocol.params import DAY_MS
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.results.lost import Lost
from dca_proto.results.status import LastRound, RoundStatus, Status
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.counter import store_files
from dca_proto.runtime.endings import OF_BROKER, warnings_of
from dca_proto.runtime.latest import keep_results, read_results
from dca_proto.runtime.logs import FactLog
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.silence import silent_words
from dca_proto.runtime.tally import Tally
from dca_proto.runtime.transport import Connected, Disconnected, Gone
from dca_proto.wording import iso, printable

if TYPE_CHECKING:
    from dca_proto.runtime.device import Device

log = structlog.get_logger("dca.status")
_QUESTION = b"status\n"
_AT_ONCE, _PATIENCE_S = 4, 5.0
_ANSWER_BYTES_MAX = 4 << 20
_NAMES_MAX, _ROUNDS_MAX = 100, 100
_GONE_AGAIN_S = 60.0
_SOON_MS = 7 * DAY_MS  # before the end of a schedule's budget
_CLOCK_S = 60.0  # deadlines are minutes away
_PEER = struct.Struct("3i")  # process, user and group of the other side


def status_path(store: Path) -> Path:
    """Return the path of an actor's socket: beside its store."""
    return Path(f"{store}-status")


def _log_connection(fact: object) -> None:
    if isinstance(fact, Connected | Disconnected | Gone):
        FactLog()(fact)


class Watch:
    """Notes an actor's facts that its status needs, and passes them on. `name_of` gives members' names.

    That a member is gone, anybody may say, and as often as they like. It is passed on once a minute of each Compute
    node and trainer, which `is_server` knows, and of nobody else.

    A trainer has a `store`, beside which its latest results are kept.
    """

    def __init__(
        self,
        on_report: Callable[[object], None] | None,
        name_of: Callable[[bytes], str],
        is_server: Callable[[bytes], bool] = lambda member: False,
        store: Path | None = None,
    ) -> None:
        self._pass_on = on_report or _log_connection
        self._name_of = name_of
        self._is_server = is_server
        self._gone_s: dict[bytes, float] = {}  # when it was last passed on, by member
        self.started_s = self.since_s = time.monotonic()
        self.is_connected, self.reason = False, "connecting"
        self.last: LastRound | None = None
        self.data_error = ""
        self.read_ms: int | None = None
        self.connections_lost = 0
        self._absent: tuple[bytes, tuple[bytes, ...]] = b"", ()  # clients of the last round that reported any
        self.tally = Tally(lambda: iso(now_ms()))
        self._store = store
        if store is not None:
            self.tally.results.extend(read_results(store))
        self.on_connection: Callable[[str], None] = lambda reason: None  # empty with a connection
        self.ends: dict[str, int] = {}  # of certificates; a connection by TLS shows the broker's

    def __call__(self, fact: object) -> None:
        match fact:
            case Connected():
                self._connected(fact)
            case Disconnected(_, reason):
                if self.is_connected:
                    self.is_connected, self.since_s = False, time.monotonic()
                    self.connections_lost += 1
                self.reason = reason
                self.on_connection(printable(reason))
            case Gone(sender) if not self._is_news(sender):
                return
            case facts.DataFailed(_, _, error):
                self.data_error = error
            case facts.Contributed():
                self.read_ms = now_ms()
            case facts.Absent(round_id, clients):
                self._absent = round_id, clients
        if (noted := self._ended(fact)) is not None:
            round_id, what, ok = noted
            absent, unproven = self._absent[1] if self._absent[0] == round_id else (), _unproven(fact)
            self.last = LastRound(
                at=iso(now_ms()),
                round_id=round_id.hex(),
                what=printable(what),
                ok=ok,
                absent=self._names(absent),
                absent_more=max(len(absent) - _NAMES_MAX, 0),
                unproven=self._names(unproven),
                unproven_more=max(len(unproven) - _NAMES_MAX, 0),
            )
        self.tally.note(fact)
        if isinstance(fact, facts.RoundCompleted) and self._store is not None:
            keep_results(self._store, self.tally.results)
        self._pass_on(fact)

    def _names(self, clients: tuple[bytes, ...]) -> list[str]:
        return [printable(self._name_of(client)) for client in clients[:_NAMES_MAX]]

    def _connected(self, fact: Connected) -> None:
        self.is_connected, self.reason, self.since_s = True, "", time.monotonic()
        if fact.certificate_end_ms is not None:
            self.ends[OF_BROKER] = fact.certificate_end_ms
        self.on_connection("")

    def _is_news(self, member: bytes) -> bool:
        now_s = time.monotonic()
        if not self._is_server(member) or now_s < self._gone_s.get(member, -math.inf) + _GONE_AGAIN_S:
            return False
        self._gone_s[member] = now_s
        return True

    def _ended(self, fact: object) -> tuple[bytes, str, bool] | None:
        match fact:
            case facts.RoundCompleted(round_id, aggregate):
                of = f" of {aggregate.clients:,}" if aggregate.n_min else ""
                return round_id, f"{aggregate.statistic} from {aggregate.contributors:,}{of} contributors", True
            case facts.RoundFailed(round_id, reason):
                return round_id, f"no result: {reason}", False
            case facts.Released(round_id, contributors):
                return round_id, f"released a sum over {contributors:,} contributions", True
            case facts.NodeAborted(round_id, compute, reason, detail):
                return round_id, f"{self._name_of(compute)} aborted: {reason}: {detail}", False
            case facts.Contributed(round_id, statistic):
                return round_id, f"contributed to {statistic}", True
            case facts.Declined(round_id, client, reason, found, expected):
                return round_id, f"{self._name_of(client)} declined: {reason}: found {found}; accepts {expected}", True
        return None


def _unproven(fact: object) -> tuple[bytes, ...]:
    """Return the clients of a round that has ended whose proofs failed, as far as the fact names them."""
    match fact:
        case facts.RoundCompleted(_, aggregate):
            return aggregate.unproven
        case facts.Released() | facts.NodeAborted():
            return fact.unproven
    return ()


def status_of(device: Device, runner: Runner, watch: Watch) -> Status:
    """Return the record of a running actor."""
    config, actor, at_ms = device.config, device.actor, now_ms()
    waiting = actor.waiting(at_ms, _ROUNDS_MAX)
    limit = {"client": config.policy.budget_limit, "trainer": config.account}.get(config.role)
    lacks = getattr(actor, "lacks_charges", "")  # of a client
    sessions = getattr(actor, "sessions", None)
    dropped: Counter[str] = Counter(actor.dropped) + runner.dropped + Counter(getattr(runner.transport, "dropped", {}))
    read_ms = watch.read_ms if device.data is None else device.data.read_ms
    error = watch.data_error if device.data is None or device.data.failure is None else str(device.data.failure)
    away = actor.lost_nodes(at_ms) if isinstance(actor, Trainer) else None
    status = Status(
        role=config.role,
        name=printable(device.name),
        id=actor.id.hex(),
        federation=actor.federation.name,
        file=actor.federation.number,
        at=iso(at_ms),
        running_s=time.monotonic() - watch.started_s,
        broker=config.broker.url,
        connected=watch.is_connected,
        since_s=time.monotonic() - watch.since_s,
        away_because=printable(watch.reason),
        connections_lost=watch.connections_lost,
        epoch=at_ms // actor.timing.epoch_ms,
        sessions=None if sessions is None else sessions.count_valid(at_ms),
        rounds=[_round_status(one, actor.name_of) for one in waiting],
        last=watch.last,
        ended=watch.tally.ended,
        contributions=watch.tally.contributions,
        unproven_clients=watch.tally.unproven,
        declines=dict(watch.tally.declines),
        phases=watch.tally.phases,
        results=[*watch.tally.results],
        epsilon_left=None if limit is None or lacks else limit.left(getattr(actor, "ledger"), at_ms),  # noqa: B009
        epsilon_allowed=limit.epsilon if limit is not None else None,
        delta=limit.delta if limit is not None else None,
        period_days=limit.period_days if limit is not None else None,
        dropped=dict(dropped),
        data_dropped={} if device.data is None else dict(device.data.dropped),
        store_bytes=store_bytes(config.files.store),
        log_bytes=_log_bytes(),
        **msgspec.structs.asdict(runner.traffic),
        inbox=len(runner.transport.inbox),
        outbox=runner.pending,
        clock_offset_s={actor.name_of(node): ahead / 1000 for node, ahead in getattr(actor, "ahead_ms", {}).items()},
        certificates={what: iso(end_ms) for what, end_ms in device.ends.items()},
        data_source=None if device.data is None else printable(device.data.source.title),
        data_read=None if read_ms is None else iso(read_ms),
        data_error=printable(error),
        schedule=device.schedule(),
        lost=[] if away is None else [Lost(actor.name_of(node), iso(since_ms)) for node, since_ms in away[1].items()],
    )
    warnings = [*_warnings(status), *warnings_of(device.ends, at_ms), *([lacks] if lacks else [])]
    warnings += [] if away is None else [silent_words(away[0], actor.name_of)]
    unheard = "" if device.data is None or device.data.failure is not None else device.data.unheard
    warnings += [f"no new data arrive: {printable(unheard)}"] if unheard else []
    return msgspec.structs.replace(status, warnings=warnings)


def _warnings(status: Status) -> list[str]:
    found = []
    if not status.connected:
        found.append(f"no connection for {status.since_s:,.0f} s: {status.away_because}")
    for name, offset_s in status.clock_offset_s.items():
        if abs(offset_s) > _CLOCK_S:
            found.append(f"the clock of {name} is {offset_s:+,.0f} s ahead of this one: correct the wrong one")
    found += _about_schedule(status)
    if status.data_error:
        found.append(f"the data cannot be read, so they count as missing: {status.data_error}")
    return found


def _about_schedule(status: Status) -> list[str]:
    """Return a warning if a schedule ends within a week, or if the account has no room for all of it."""
    soon = iso(now_ms() + _SOON_MS)
    return [
        f"the budget of schedule {job.title!r} lasts to {job.lasts_to}: plan the next period"
        for job in status.schedule
        if job.next is not None and job.lasts_to < soon
    ]


def _round_status(one: Any, name_of: Callable[[bytes], str]) -> RoundStatus:
    return RoundStatus(
        round_id=one.round_id.hex(),
        statistic=printable(one.statistic),
        phase=one.phase,
        until=None if one.until_ms is None else iso(one.until_ms),
        arrived=one.arrived,
        expected=one.expected,
        waits_for=[printable(name_of(member)) for member in one.members[:_NAMES_MAX]],
        more=max(len(one.members) - _NAMES_MAX, 0),
    )


def store_bytes(store: Path) -> int:
    """Return the size of a store's files."""
    size = 0
    for path in store_files(store):
        with contextlib.suppress(OSError):
            size += path.stat().st_size
    return size


def _log_bytes() -> int | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        about = os.fstat(sys.stderr.fileno())
        return about.st_size if stat.S_ISREG(about.st_mode) else None
    return None


# --- the actor's side -------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def answering(path: Path, make: Callable[[], Status]) -> AsyncIterator[None]:
    """Answer questions at a socket until the context ends."""
    try:
        listening = _listen(path)
    except OSError as error:
        log.warning("no status: the socket cannot be made", path=str(path), error=error.strerror or str(error))
        yield
        return
    busy = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal busy
        busy += 1
        try:
            if busy <= _AT_ONCE and _is_owner(writer.get_extra_info("socket")):
                async with asyncio.timeout(_PATIENCE_S):
                    if await reader.readexactly(len(_QUESTION)) == _QUESTION:
                        writer.write(msgspec.json.encode(make()))
                        await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # whoever asked has gone, or never asked
        finally:
            busy -= 1
            writer.close()

    server = await asyncio.start_unix_server(answer, sock=listening, limit=2 * len(_QUESTION))
    try:
        yield
    finally:
        server.close()
        _remove(path)


def _listen(path: Path) -> socket.socket:
    """Return a listening socket that only its owner can ever reach. It replaces the one of a process that has died."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        draft.unlink(missing_ok=True)
        made.bind(_short(folder, draft))
        draft.chmod(0o600)  # nobody can connect before `listen`
        draft.replace(path)
        made.listen(_AT_ONCE)
        made.setblocking(False)
    except BaseException:
        made.close()
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(folder)
    return made


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _short(folder: int, path: Path) -> str:
    """Return a path through an open folder: a socket's address has at most 107 bytes."""
    through = f"/proc/self/fd/{folder}"
    return f"{through}/{path.name}" if Path(through).exists() else str(path)


def _is_owner(connection: socket.socket) -> bool:
    """Return True if the other side is of this user or of root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the socket's mode alone decides
    _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return user in (0, os.geteuid())


# --- the command's side -----------------------------------------------------------------------------------------------


def ask_status(store: Path) -> Status | None:
    """Ask the actor with this store for its status; None if it does not run.

    Raises `UsageError` if what stands there is no socket of this user, or what answers is no actor.
    """
    path = status_path(store)
    try:
        about = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}; run the command as the actor's user") from None
    is_trusted = os.geteuid() == 0 or about.st_uid in (0, os.geteuid())  # root may ask every actor
    if not stat.S_ISSOCK(about.st_mode) or not is_trusted:
        raise InputError(f"{path} is no socket of this user, so it was not asked; run the command as the actor's user")
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(_PATIENCE_S)
            asking.connect(_short(folder, path))
            asking.sendall(_QUESTION)
            answer = _read_all(asking)
    except ConnectionRefusedError:
        return None
    except OSError as error:
        what = f"did not answer {'in time' if isinstance(error, TimeoutError) else f'({error.strerror})'}"
        raise StorageError(f"the actor at {path} {what}; is its process stopped?") from None
    finally:
        os.close(folder)
    try:
        return msgspec.json.decode(answer, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(
            f"what answers at {path} is no actor of this version; run the command of its version"
        ) from None


def _read_all(asking: socket.socket) -> bytes:
    found, until_s = bytearray(), time.monotonic() + _PATIENCE_S
    while len(found) <= _ANSWER_BYTES_MAX and time.monotonic() < until_s:
        part = asking.recv(1 << 16)
        if not part:
            return bytes(found)
        found += part
    raise TimeoutError
