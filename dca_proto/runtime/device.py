"""Runs one actor from its TOML file, without the command line and with few dependencies, as on a device.

    python -m dca_proto client.toml

or, in your own program:

    table = Table(["temperature"], rows)
    client = device.load("client.toml", table)
    asyncio.run(client.run(on_report=print))     # meanwhile: table.append([[21.5]]), in this or another thread

Code of the other roles is imported only when needed, so that a client starts fast and stays small.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from dca_proto.aggregate import NoisyAggregate
from dca_proto.crypto.sealing import Identity
from dca_proto.errors import InputError, RoundAborted, UsageError
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.facts import RoundCompleted, RoundFailed
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.pool import Pool
from dca_proto.protocol.records import Records
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.topics import subscriptions, topic_of
from dca_proto.results.status import ScheduledJob
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.config import (
    ROLES,
    ClientFiles,
    ComputeFiles,
    Config,
    NodeFiles,
    ServerFiles,
    check_known,
    read_config,
)
from dca_proto.runtime.doors import open_doors
from dca_proto.runtime.endings import BY_REGISTRAR, OF_CLIENT, EndWarner, certificate_ends
from dca_proto.runtime.keyfile import certificate_path, read_certificate, read_federation, read_identity, replace_file
from dca_proto.runtime.listen import MetricsSettings
from dca_proto.runtime.logs import FactLog, configure_logs
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.process import TERMINATED, complete
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.sleep import fall_asleep, wake
from dca_proto.runtime.sources import Feed
from dca_proto.runtime.status import Watch, status_of
from dca_proto.runtime.store import SqliteStore
from dca_proto.runtime.supervisor import Supervisor
from dca_proto.runtime.table import Table
from dca_proto.runtime.transport import CLIENT_LIMITS, Transport

if TYPE_CHECKING:  # only a trainer needs it
    from dca_proto.runtime.live import LiveTrainer

log = structlog.get_logger("dca.device")
Report = Callable[[object], None]
Build = Callable[[Records, Pool], Actor]


class Parts(msgspec.Struct, frozen=True):
    """An actor that is ready to run, with its transport and its database."""

    actor: Actor
    transport: Transport
    store: SqliteStore
    watch: Watch


class Device:
    """An actor that its file describes. It has no open connection or store yet.

    Args:
        config: a checked configuration. identity: from its key file.
        build: makes the actor from the records of its store, and a Compute node with a pool of processes.
        data: a client's source of data, which is read before each round; None if a program passes the data.
        ends: when a client's certificate ends, by what it is.
    """

    def __init__(
        self,
        config: Config,
        identity: Identity,
        build: Build,
        data: Feed | None = None,
        ends: dict[str, int] | None = None,
    ) -> None:
        self.config = config
        self.data = data
        self.id = identity.id
        self._store_key = identity.store_key
        self._build = build
        self._actor: Actor | None = None
        self._own_ends = ends or {}
        self.schedule: Callable[[], list[ScheduledJob]] = list
        """Returns the state of a trainer's standing jobs, for its status."""

    @property
    def role(self) -> str:
        """``client``, ``compute`` or ``trainer``."""
        return self.config.role

    @property
    def name(self) -> str:
        """Its name for people: a member's in the federation file; a client's own, or that of its key file."""
        files = self.config.files
        return files.own_name if isinstance(files, ClientFiles) else self.federation.name_of(self.id)

    @cached_property
    def ends(self) -> dict[str, int]:
        """When each certificate ends that the actor depends on, in Unix milliseconds, by what it is."""
        return certificate_ends(self.config.broker, self._own_ends)

    @property
    def actor(self) -> Actor:
        """The actor, once its store is open."""
        assert self._actor is not None, "inside `open`"
        return self._actor

    @property
    def federation(self) -> Federation:
        """The newest federation file that is known."""
        return self.config.federation if self._actor is None else self._actor.federation

    def name_of(self, member: bytes) -> str:
        """Return a member's or client's name with its short id, as people read it."""
        return self.config.federation.person_name_of(member) if self._actor is None else self._actor.name_of(member)

    def _is_server(self, member: bytes) -> bool:
        known = self.config.federation if self._actor is None else self._actor.federation
        return member != self.id and known.is_server(member)

    async def run(self, on_report: Report | None = None) -> None:
        """Run a client or a Compute node until cancelled. Calls `on_report` with every fact.

        Raises `UsageError` if the broker refuses the actor, or if its store cannot be used.
        """
        async with self.open(on_report) as parts, contextlib.AsyncExitStack() as living:
            if self.data is not None:
                await living.enter_async_context(self.data.live())
            runner = Runner(
                parts.actor,
                parts.transport,
                parts.store,
                federation=self.config.federation.id,
                on_report=parts.watch,
                refresh=None if self.data is None else self.data.refresh,
                needs_data=getattr(parts.actor, "needs_data", lambda payload: True),
                look_ahead=getattr(parts.actor, "look_ahead", None),
                takes_long=getattr(parts.actor, "takes_long", None),
            )
            async with self._attended(runner, parts.watch):
                await runner.run()

    async def run_round(self, request: OpenRound, on_report: Report | None = None) -> NoisyAggregate:
        """Run one round as a trainer and return its result. Raises `RoundAborted`, and the errors of `run`."""
        async with self.live(on_report) as trainer:
            return await trainer.run_repeated(request)

    @contextlib.asynccontextmanager
    async def live(self, on_report: Report | None = None) -> AsyncIterator[LiveTrainer]:
        """Yield a trainer that can run several rounds, until the context ends. Raises `UsageError`."""
        async with self._trainer(on_report) as trainer, trainer:
            yield trainer

    async def resume(self, on_report: Report | None = None) -> list[RoundCompleted | RoundFailed]:
        """Finish the rounds in a trainer's store and return how each ended, including rounds finished before.

        This includes failed rounds whose charge may still come back: the trainer asks again for the missing aborts.
        """
        async with self._trainer(on_report) as trainer:
            return await trainer.finish()

    @contextlib.asynccontextmanager
    async def _trainer(self, on_report: Report | None) -> AsyncIterator[LiveTrainer]:
        """Yield a trainer that does not run yet. Raises `UsageError` for another role."""
        from dca_proto.protocol.trainer.actor import Trainer
        from dca_proto.runtime.live import LiveTrainer

        async with self.open(on_report) as parts:
            if not isinstance(parts.actor, Trainer):
                raise UsageError(f"only a trainer runs and resumes rounds, found a {self.role}; use `run` instead")
            federation = self.config.federation.id
            live = LiveTrainer(parts.actor, parts.transport, parts.store, federation=federation, on_report=parts.watch)
            async with self._attended(live.runner, parts.watch):
                yield live

    @contextlib.asynccontextmanager
    async def _attended(self, runner: Runner, watch: Watch) -> AsyncIterator[None]:
        """Answer `dca status`, warn before certificates end, and tell the supervisor, until the context ends."""
        supervisor = Supervisor()
        watch.on_connection = supervisor.connection
        warner = EndWarner(self.name, self.ends)
        tasks = [asyncio.create_task(work) for work in (warner.run(), supervisor.run(lambda: runner.is_busy))]
        files = self.config.files
        wake(files.store)
        try:
            async with open_doors(self.config, lambda: status_of(self, runner, watch)):
                yield
        except asyncio.CancelledError:
            if isinstance(files, ClientFiles) and files.sleep_max_s:
                fall_asleep(files.store, status_of(self, runner, watch))
            raise
        finally:
            supervisor.tell("STOPPING=1")
            for task in tasks:
                task.cancel()

    @contextlib.asynccontextmanager
    async def open(self, on_report: Report | None = None) -> AsyncIterator[Parts]:
        """Restore the actor from its store; the store is closed when the context ends. Raises `UsageError`."""
        config = self.config
        kept = config.files.store if config.role == "trainer" else None  # beside it, the latest results
        watch = Watch(on_report, self.name_of, self._is_server, kept)
        watch.ends = self.ends
        transport = MqttTransport(
            config.broker,
            self.id.hex(),
            subscriptions(config.federation.id, Channel(config.role), self.id),
            rng=random.Random(),  # noqa: S311 - the jitter of reconnects
            limits=CLIENT_LIMITS if config.role == "client" else None,
            on_report=watch,
            will=None if config.role == "client" else topic_of(config.federation.id, Address(Channel.GONE), self.id),
        )
        store = SqliteStore(self.config.files.store, self._store_key)
        try:
            with _pool(config.files, Supervisor().alive) as pool:
                actor = self._actor = self._build(store.load(), pool)
                self._write_file(actor.federation)
                try:
                    yield Parts(actor, transport, store, watch)
                finally:
                    self._write_file(actor.federation)
        finally:
            await store.close()

    def _write_file(self, federation: Federation) -> None:
        """Replace the federation file on disk if the actor knows a newer one; commands read members from it.

        A file of another federation stays: its owner has put it there in the meantime.
        """
        path = self.config.files.federation
        try:
            found = read_federation(path)
            if found.id == federation.id and found.number < federation.number:
                replace_file(path, federation.to_toml())
        except UsageError as error:
            log.warning("federation file not replaced", newer=federation.title, error=str(error))


# --- from files -------------------------------------------------------------------------------------------------------


def load(
    path: Path | str,
    data: Table | None = None,
    *,
    roles: Iterable[str] = ROLES,
    accept_p: int = 0,
    metrics: str | None = None,
) -> Device:
    """Read and check an actor's TOML file and the files that it names. Opens no connection and no store.

    Args:
        path: the TOML file.
        data: a client's data, in place of the source that the file names. The program may change it meanwhile.
        roles: the accepted roles; by default any.
        accept_p: if not 0, in place of the policy's.
        metrics: if not None, a loopback address in place of the section [metrics].

    Raises:
        UsageError: a file is missing or wrong, and the message names it; or `data` is no `Table`.
    """
    path = Path(path)
    if data is not None and not isinstance(data, Table):
        raise UsageError(f"found data of type {type(data).__name__}, expected a Table: Table(columns, rows)")
    config = read_config(path, roles)
    if accept_p:
        config = msgspec.structs.replace(config, policy=msgspec.structs.replace(config.policy, accept_p=accept_p))
    if metrics is not None:
        config = msgspec.structs.replace(config, metrics=MetricsSettings(listen=metrics))
    identity = read_identity(config.files.identity, config.role)
    if config.role == "client":
        if data is not None:
            build, ends = _client(config, identity, data)
            return Device(config, identity, build, None, ends)
        if config.source is None:
            raise InputError(
                f'{path}: found no data, expected [client] data = "FILE.csv", a section [data] or data from the program'
            )
        feed = config.source.open()
        build, ends = _client(config, identity, feed)
        return Device(config, identity, build, feed, ends)
    if data is not None:
        raise InputError(f"{path}: a {config.role} has no data of its own; only a client does")
    members = config.federation.computes if config.role == "compute" else config.federation.trainers
    if identity.public_key not in [member.key for member in members]:  # the others would ignore its messages
        raise InputError(
            f"{config.files.federation} names no {config.role} with the key of {config.files.identity}; "
            "use the federation file that names it"
        )
    return Device(config, identity, (_compute if config.role == "compute" else _trainer)(config, identity))


def _client(config: Config, identity: Identity, table: Table | Feed) -> tuple[Build, dict[str, int]]:
    """Return what makes the client, and when its certificate ends, by what it is."""
    from dca_proto.protocol.client.actor import Client

    files = config.files
    assert isinstance(files, ClientFiles), "the role's own section"
    path = files.certificate or certificate_path(files.identity)
    certificate = read_certificate(path, config.federation, now_ms())
    if files.policy is None:  # devices with other columns may share a policy file
        check_known("bounds of the policy", config.policy.bounds, table.columns)
    if certificate.client_key != identity.public_key:
        raise InputError(f"certificate {path} is another client's; name the one for {files.identity}")

    def build(records: Records, pool: Pool) -> Actor:
        return Client(
            identity,
            certificate,
            config.federation,
            columns=table.columns,
            rows=table.rows,
            window_s=table.window_s,
            random=secrets.token_bytes,
            policy=config.policy,
            records=records,
        )

    is_own = config.federation.signer_of(certificate) == config.federation.enrolment_key
    return build, {OF_CLIENT if is_own else BY_REGISTRAR: certificate.expires_ms}


def _compute(config: Config, identity: Identity) -> Build:
    from dca_proto.protocol.compute.actor import ComputeNode

    files = config.files
    assert isinstance(files, ComputeFiles), "the role's own section"
    return lambda records, pool: ComputeNode(
        identity,
        config.federation,
        random=secrets.token_bytes,
        floors=config.floors,
        limits=files.limits,
        timing=files.timing,
        records=records,
        pool=pool,
    )


@contextlib.contextmanager
def _pool(files: NodeFiles, on_part: Callable[[], None] | None = None) -> Iterator[Pool]:
    """Yield what does an actor's work on many clients: a Compute node's may be other processes. `on_part`: see `Pool`.

    A node gives its keys to no cluster that it was not told by address: Ray itself would join any whose address
    somebody has left in /tmp, or start one that other machines can reach. Raises `UsageError`.
    """
    if not isinstance(files, ComputeFiles) or files.processes == 1:
        yield Pool(on_part)
        return
    from dca_proto.engine import RAY, open_engine  # only a Compute node needs them
    from dca_proto.runtime.pool import ProcessPool

    if files.engine == RAY and ":" not in (found := os.environ.get("RAY_ADDRESS", "")):
        raise UsageError(
            f'[compute] engine = "ray" needs the cluster\'s address: found RAY_ADDRESS={found!r}, expected host:port; '
            f'or write engine = "ray://host:port"'
        )
    with ProcessPool(open_engine(files.engine), files.processes, on_part=on_part) as pool:
        yield pool


def _trainer(config: Config, identity: Identity) -> Build:
    from dca_proto.protocol.trainer.actor import Trainer

    files = config.files
    assert isinstance(files, ServerFiles), "the role's own section"
    return lambda records, pool: Trainer(
        identity,
        config.federation,
        random=secrets.token_bytes,
        account=config.account,
        roll_call=True,
        timing=files.timing,
        records=records,
    )


def run(path: Path, *, json_logs: bool = False, verbose: bool = False) -> int:
    """Run the actor of a file and log its facts. A trainer runs the round in its file and prints the result.

    Returns:
        The exit code: 0; 3 if the round was aborted; 143 if SIGTERM ended a round.

    Raises:
        UsageError, TransportError: as `Device.run`.
    """
    configure_logs(json=json_logs, level=logging.DEBUG if verbose else logging.INFO)
    device = load(path)
    if device.role != "trainer":
        complete(device.run(FactLog(device.name_of)))
        return 0
    from dca_proto.results.round import abort_line, round_of
    from dca_proto.runtime.request import open_round

    if device.config.round is None:
        raise InputError(f"{path}: a trainer needs the section [round], which names the statistic and its cost")
    request = open_round(device.config.round, device.config.federation)
    try:
        aggregate = complete(device.run_round(request, FactLog(device.name_of)))
    except RoundAborted as error:
        sys.stderr.write(f"dca: {abort_line(error)}\n")
        return 3
    if aggregate is None:
        return TERMINATED
    sys.stdout.write(msgspec.json.encode(round_of(aggregate, alone=True)).decode() + "\n")
    return 0
