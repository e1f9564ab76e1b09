"""Runs one actor from its TOML file, without the command line and with few dependencies, as on a device.

    python -m dca_proto client.toml

or, in your own program:

    table = Table(["temperature"], rows)
    client = device.load(Path("client.toml"), table)
    asyncio.run(client.run(on_report=print))     # meanwhile: table.append([[21.5]]), in this or another thread

Code of the other roles is imported only when needed, so that a client starts fast and stays small.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import structlog

from dca_proto.aggregate import NoisyAggregate
from dca_proto.crypto.sealing import Identity
from dca_proto.errors import InputError, RoundAborted, UsageError
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import RoundCompleted, RoundFailed
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.records import Records
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.topics import subscriptions
from dca_proto.runtime.config import ROLES, ClientFiles, Config, check_known, read_config
from dca_proto.runtime.csv_text import parse_delimiter
from dca_proto.runtime.keyfile import certificate_path, read_certificate, read_federation, read_identity, replace_file
from dca_proto.runtime.logs import FactLog, configure_logs
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.runner import Runner, now_ms
from dca_proto.runtime.store import SqliteStore
from dca_proto.runtime.table import DataFile, Table
from dca_proto.runtime.transport import CLIENT_LIMITS, Transport

if TYPE_CHECKING:  # only a trainer needs it
    from dca_proto.runtime.live import LiveTrainer

log = structlog.get_logger("dca.device")
T = TypeVar("T")
Report = Callable[[object], None]
TERMINATED = 143
"""The exit code after SIGTERM has ended the work."""


class Parts(msgspec.Struct, frozen=True):
    """An actor that is ready to run, with its transport and its database."""

    actor: Actor
    transport: Transport
    store: SqliteStore


class Device:
    """An actor that its file describes. It has no open connection or store yet.

    Args:
        config: a checked configuration. identity: from its key file.
        build: makes the actor from the records of its store.
        data: a client's file of data, which is read again when it has changed; None if a program passes them.
    """

    def __init__(
        self,
        config: Config,
        identity: Identity,
        build: Callable[[Records], Actor],
        data: DataFile | None = None,
    ) -> None:
        self.config = config
        self.data = data
        self.id = identity.id
        self._store_key = identity.store_key
        self._build = build

    @property
    def role(self) -> str:
        """``client``, ``compute`` or ``trainer``."""
        return self.config.role

    async def run(self, on_report: Report | None = None) -> None:
        """Run a client or a Compute node until cancelled. Calls `on_report` with every fact.

        Raises `UsageError` if the broker refuses the actor, or if its store cannot be used.
        """
        async with self.open(on_report) as parts:
            runner = Runner(
                parts.actor,
                parts.transport,
                parts.store,
                federation=self.config.federation.name,
                on_report=on_report,
                refresh=None if self.data is None else self.data.refresh,
            )
            await runner.run()

    async def run_round(self, request: OpenRound, on_report: Report | None = None) -> NoisyAggregate:
        """Run one round as a trainer and return its result. Raises `RoundAborted`, and the errors of `run`."""
        async with self.live(on_report) as trainer:
            return await trainer.run_round(request)

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

        name = self.config.federation.name
        async with self.open(on_report) as parts:
            if not isinstance(parts.actor, Trainer):
                raise UsageError(f"only a trainer runs and resumes rounds, found a {self.role}; use `run` instead")
            yield LiveTrainer(parts.actor, parts.transport, parts.store, federation=name, on_report=on_report)

    @contextlib.asynccontextmanager
    async def open(self, on_report: Report | None = None) -> AsyncIterator[Parts]:
        """Restore the actor from its store; the store is closed when the context ends. Raises `UsageError`."""
        config = self.config
        transport = MqttTransport(
            config.broker,
            self.id.hex(),
            subscriptions(config.federation.name, Channel(config.role), self.id),
            rng=random.Random(),  # noqa: S311 - the jitter of reconnects
            limits=CLIENT_LIMITS if config.role == "client" else None,
            on_report=on_report,
        )
        store = SqliteStore(self.config.files.store, self._store_key)
        try:
            actor = self._build(store.load())
            self._write_file(actor.federation)
            try:
                yield Parts(actor, transport, store)
            finally:
                self._write_file(actor.federation)
        finally:
            await store.close()

    def _write_file(self, known: Federation) -> None:
        """Replace the federation file on disk if the actor knows a newer one; commands read members from it.

        A file of another federation stays: its owner has put it there in the meantime.
        """
        path = self.config.files.federation
        try:
            found = read_federation(path)
            if found.id == known.id and found.number < known.number:
                replace_file(path, known.to_toml())
        except UsageError as error:
            log.warning("federation file not replaced", newer=known.title, error=str(error))


# --- from files -------------------------------------------------------------------------------------------------------


def load(path: Path, data: Table | None = None, *, roles: Iterable[str] = ROLES) -> Device:
    """Read and check an actor's TOML file and the files that it names. Opens no connection and no store.

    Args:
        path: the TOML file.
        data: a client's data, in place of the CSV that the file names. The program may change it while the client runs.
        roles: the accepted roles; by default any.

    Raises:
        UsageError: a file is missing or wrong; the message names it.
    """
    config = read_config(path, roles)
    identity = read_identity(config.files.identity, config.role)
    if config.role == "client":
        if data is not None:
            return Device(config, identity, _client(config, identity, data))
        assert isinstance(config.files, ClientFiles), "the role's own section"
        if config.files.data is None:
            raise InputError(f'{path}: found no data, expected [client] data = "FILE.csv" or data from the program')
        delimiter = parse_delimiter(config.files.delimiter)
        file = DataFile(config.files.data, config.files.categories, delimiter)
        return Device(config, identity, _client(config, identity, file), file)
    if data is not None:
        raise InputError(f"{path}: a {config.role} has no data of its own; only a client does")
    members = config.federation.computes if config.role == "compute" else config.federation.trainers
    if identity.public_key not in [member.key for member in members]:  # the others would ignore its messages
        raise InputError(
            f"{config.files.federation} names no {config.role} with the key of {config.files.identity}; "
            "use the federation file that names it"
        )
    return Device(config, identity, (_compute if config.role == "compute" else _trainer)(config, identity))


def _client(config: Config, identity: Identity, table: Table | DataFile) -> Callable[[Records], Actor]:
    from dca_proto.protocol.client.actor import Client

    files = config.files
    assert isinstance(files, ClientFiles), "the role's own section"
    path = files.certificate or certificate_path(files.identity)
    certificate = read_certificate(path, config.federation, now_ms())
    if files.policy is None:  # devices with other columns may share a policy file
        check_known("bounds of the policy", config.policy.bounds, table.columns)
    if certificate.client_key != identity.public_key:
        raise InputError(f"certificate {path} is another client's; name the one for {files.identity}")
    return lambda records: Client(
        identity,
        certificate,
        config.federation,
        columns=table.columns,
        rows=table.rows,
        random=secrets.token_bytes,
        policy=config.policy,
        records=records,
    )


def _compute(config: Config, identity: Identity) -> Callable[[Records], Actor]:
    from dca_proto.protocol.compute.actor import ComputeNode

    return lambda records: ComputeNode(
        identity, config.federation, random=secrets.token_bytes, floors=config.floors, records=records
    )


def _trainer(config: Config, identity: Identity) -> Callable[[Records], Actor]:
    from dca_proto.protocol.trainer.actor import Trainer

    return lambda records: Trainer(
        identity, config.federation, random=secrets.token_bytes, account=config.account, records=records
    )


# --- running until the end --------------------------------------------------------------------------------------------


def complete(work: Coroutine[Any, Any, T]) -> T | None:
    """Run `work` and return its result, or None if SIGTERM ended it. Ctrl-C raises KeyboardInterrupt after cleanup."""

    async def stoppable() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(stoppable())
    except asyncio.CancelledError:
        return None


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
        complete(device.run(FactLog()))
        return 0
    from dca_proto.runtime.outcome import abort_line, outcome
    from dca_proto.runtime.request import open_round

    if device.config.round is None:
        raise InputError(f"{path}: a trainer needs the section [round], which names the statistic and its cost")
    request = open_round(device.config.round, device.config.federation)
    try:
        aggregate = complete(device.run_round(request, FactLog()))
    except RoundAborted as error:
        sys.stderr.write(f"dca: {abort_line(error)}\n")
        return 3
    if aggregate is None:
        return TERMINATED
    sys.stdout.write(msgspec.json.encode(outcome(aggregate)).decode() + "\n")
    return 0
