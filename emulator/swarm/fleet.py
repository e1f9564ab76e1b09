"""A fleet: tens of thousands of client actors in a few processes, and plain rounds of a synthetic sum of d numbers.

    this process     broker's launch, trainer, progress, figures
    one process      the M Compute nodes, each with its own connection
    P processes      N/P clients each, over a connection each or one for all of a process

Actors, cryptography, noise, connections and durable records are those of devices. Whatever is started ends with the
fleet, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from dca_proto.aggregate import NoisyAggregate
from dca_proto.core.effects import Channel
from dca_proto.core.errors import RoundAborted, UsageError
from dca_proto.core.params import Timing
from dca_proto.core.trainer import TrainerActor
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, Identity
from dca_proto.federation import Federation, Member, sign_federation
from dca_proto.net.broker import Broker, BrokerOptions, Kind, launch_broker
from dca_proto.net.live import LiveTrainer
from dca_proto.net.mqtt import MqttTransport, require_broker
from dca_proto.net.settings import BrokerSettings
from dca_proto.net.store import SqliteStore
from dca_proto.net.topics import subscriptions
from dca_proto.privacy.policy import Allowance
from emulator.results import Run
from emulator.swarm import usage
from emulator.swarm.fleet_options import FleetOptions
from emulator.swarm.fleet_summary import RoundCounts, Starting, Usage, summarise
from emulator.swarm.pipe import ClientOrders, ComputeOrders, Connected, Count, Prepare, Sessions, Setting, Totals, Word
from emulator.swarm.rules import unless_one_ends
from emulator.swarm.timeline import RoundLog, Timeline
from emulator.swarm.worker import KEEPALIVE_S
from emulator.swarm.workers import WorkerProcess
from inference.datasets import stream

_CONNECTING_MAX = 96  # in all processes together: mosquitto's backlog is 100
_ANSWER_TIMEOUT_S = 120.0  # of a broker that thousands connect to
_SETTLING_S = 10.0
_LOOK_S = 0.05


class Watcher(Protocol):
    """Who is shown how a fleet goes on."""

    def connected(self, count: int, total: int) -> None:
        """So many actors of so many have a connection."""

    def sessions(self, count: int, total: int) -> None:
        """So many clients of so many have a session at every Compute node."""

    def changed(self, log: RoundLog) -> None:
        """A round has gone on."""


OnProgress = Callable[[str, int, int], None]
"""Is called with a phase (connect, sessions, collect or agree), how many are through with it, and of how many."""


def run_fleet(options: FleetOptions, on_progress: OnProgress | None = None) -> Run:
    """Start a fleet, hold its rounds, end it, and say what they took; an abort is an outcome, told in the result.

    Returns:
        What it took.

    Raises:
        UsageError: it cannot be held, or a process, the broker or an actor failed.
        TransportError: the broker cannot be reached.
    """
    return asyncio.run(hold_rounds(options, _Progress(options.clients, on_progress or _nobody)))


async def hold_rounds(options: FleetOptions, watcher: Watcher, on_start: Callable[[Fleet], None] | None = None) -> Run:
    """As `run_fleet`, in a running loop; `on_start` is called once the broker runs."""
    options.check()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dca-fleet-") as directory:
        async with Fleet(options, Path(directory), watcher, on_start) as fleet:
            await fleet.hold_all()
            summary = fleet.summary()
    return msgspec.structs.replace(summary, wall_s=time.monotonic() - began_s)


class _Progress:
    """A watcher that tells a function."""

    def __init__(self, clients: int, tell: OnProgress) -> None:
        self._clients = clients
        self._tell = tell

    def connected(self, count: int, total: int) -> None:
        self._tell("connect", count, total)

    def sessions(self, count: int, total: int) -> None:
        self._tell("sessions", count, total)

    def changed(self, log: RoundLog) -> None:
        if "collect" not in log.ends_s:
            self._tell("collect", log.arrived, self._clients)
        else:
            self._tell("agree", int(log.aggregate is not None), 1)


def _nobody(phase: str, count: int, total: int) -> None:
    """Nobody asked for progress."""


class Fleet:
    """A running fleet, as an asynchronous context: within it, everybody is connected and has sessions.

    Args:
        options: checked. directory: for records and logs. watcher: is shown how it goes on.
        on_start: called once the broker runs.

    Attributes:
        broker_url, broker_kind, broker_version: of the broker in use.
    """

    def __init__(
        self, options: FleetOptions, directory: Path, watcher: Watcher, on_start: Callable[[Fleet], None] | None
    ) -> None:
        self.broker_url, self.broker_kind, self.broker_version = options.broker, "external", ""
        self._options = options
        self._directory = directory
        self._watcher = watcher
        self._on_start = on_start
        self._authority, self._trainer_identity, *self._nodes = (
            Identity(os.urandom(KEY_BYTES)) for _ in range(2 + options.computes)
        )
        unsigned = Federation(
            f"fleet-{secrets.token_hex(4)}",  # a broker may be shared with others
            self._authority.public_key,
            tuple(Member(f"compute-{place + 1}", one.public_key) for place, one in enumerate(self._nodes)),
            (Member("trainer", self._trainer_identity.public_key),),
        )
        self._federation = sign_federation(self._authority, unsigned)
        self._timeline = Timeline(lambda: (0, 0), watcher.changed)
        self._drops = stream(options.seed, "drop")
        self._counts: list[RoundCounts] = []
        self._workers: list[WorkerProcess] = []
        self._broker: Broker | None = None
        self._all_connected, self._all_known = asyncio.Event(), asyncio.Event()
        self._connecting_s = self._sessions_s = self._sessions_core_s = 0.0
        self._stack = contextlib.AsyncExitStack()
        self._watched: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Fleet:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._stack.aclose()

    async def hold_all(self) -> None:
        """Hold the rounds, until one is aborted."""
        with contextlib.suppress(RoundAborted):
            for _ in range(self._options.rounds):
                await unless_one_ends(self._hold(), self._watched)

    def summary(self) -> Run:
        """What its rounds took."""
        starting = Starting(self._connecting_s, self._sessions_s, self._sessions_core_s)
        return summarise(self, self._options, self._timeline.rounds, self._counts, starting)

    # --- starting -------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        options = self._options
        is_ours = "://" not in options.broker
        in_a_process = -(-options.clients // options.processes) if options.connections == "each" else 1
        usage.require_connections(in_a_process, options.connected if is_ours else None)
        if is_ours:
            kind = msgspec.convert(options.broker, Kind)
            launched = launch_broker(self._directory / "broker", BrokerOptions(kind=kind))
            self._broker = broker = await self._stack.enter_async_context(launched)
            self.broker_url, self.broker_kind, self.broker_version = broker.url, broker.kind, broker.version
            self._watched.append(asyncio.create_task(broker.ended()))
        else:
            await require_broker(self.broker_url)
        if self._on_start is not None:
            self._on_start(self)
        self._stack.push_async_callback(self._stop_workers)
        began_s = time.monotonic()
        await self._start_workers()
        store = SqliteStore(self._directory / "trainer.db", self._trainer_identity.store_key)
        self._stack.push_async_callback(store.close)
        self._trainer = await self._stack.enter_async_context(self._live_trainer(store))
        await unless_one_ends(self._all_connected.wait(), self._watched)
        self._connecting_s = time.monotonic() - began_s
        await unless_one_ends(self._all_known.wait(), self._watched)
        self._sessions_s = time.monotonic() - began_s
        self._sessions_core_s = (await unless_one_ends(self._usage(), self._watched)).core_s

    async def _start_workers(self) -> None:
        setting = self._setting()
        nodes = ComputeOrders(setting, tuple(bytes(one.seed) for one in self._nodes))
        orders: list[tuple[str, int, ClientOrders | ComputeOrders]] = [("the Compute nodes", len(self._nodes), nodes)]
        is_shared = self._options.connections == "shared"
        for first, count in self._options.splits():
            theirs = ClientOrders(setting, self._authority.seed, first, count, self._options.dimension, is_shared)
            orders.append((f"clients {first} to {first + count - 1}", count, theirs))
        for number, (name, count, order) in enumerate(orders):
            worker = WorkerProcess(name, count, self._directory / f"worker-{number}.log", self._heed_of(number))
            self._workers.append(worker)
            await worker.start(order)
            self._watched.append(asyncio.create_task(worker.listen()))

    def _setting(self) -> Setting:
        options = self._options
        return Setting(
            federation=self._federation.to_toml(),
            url=self.broker_url,
            directory=str(self._directory),
            clients=options.clients,
            computes=options.computes,
            tolerated=options.tolerated,
            colluders=options.colluders,
            epsilon=options.budget.epsilon,
            delta=options.budget.delta,
            mechanism=options.mechanism.name,
            seed=options.seed,
            connecting_max=max(1, _CONNECTING_MAX // (options.processes + 1)),
            resend_ms=options.resend_ms(),
        )

    def _live_trainer(self, store: SqliteStore) -> LiveTrainer:
        options, identity = self._options, self._trainer_identity
        actor = TrainerActor(
            identity,
            self._federation,
            account=Allowance(epsilon=options.budget.epsilon, delta=options.budget.delta),
            random=os.urandom,
            mechanism=options.mechanism,
            timing=Timing(resend_first_ms=options.resend_ms(), resend_max_ms=4 * options.resend_ms()),
        )
        return LiveTrainer(
            actor,
            self._connection(identity.id.hex(), subscriptions(self._federation.name, Channel.TRAINER, identity.id)),
            store.view(identity.id),
            federation=self._federation.name,
            on_report=lambda fact: self._timeline.note(identity.id, fact),
        )

    def _connection(self, name: str, filters: tuple[str, ...]) -> MqttTransport:
        settings = BrokerSettings(url=self.broker_url, session_expiry_s=0, keepalive_s=KEEPALIVE_S)
        rng = random.Random(self._options.seed)  # noqa: S311 - waiting times only
        return MqttTransport(settings, name, filters, rng=rng, answer_timeout_s=_ANSWER_TIMEOUT_S)

    # --- rounds ---------------------------------------------------------------------------------------------------

    async def _hold(self) -> None:
        vanishing = self._draw()
        before = await self._prepare(vanishing)
        terms = self._options.terms(tuple(one.id for one in self._nodes))
        request = terms.open(self._options.request(), os.urandom(ID_BYTES))
        try:
            aggregate = await self._trainer.hold(request)
        except RoundAborted as error:
            self._require_announced(error)
            self._counts.append(RoundCounts(before, await self._usage(), vanishing))
            raise
        self._counts.append(RoundCounts(before, await self._settled(aggregate.contributors), vanishing))

    def _require_announced(self, error: RoundAborted) -> None:
        """Of a round that was never announced there is nothing to tell but why. Raises `UsageError`."""
        number = len(self._counts) + 1
        if len(self._timeline.rounds) < number:
            raise UsageError(f"round {number} was never announced: {error.reason}") from None

    def _draw(self) -> tuple[int, ...]:
        """Who vanishes in the next round."""
        chosen = self._drops.choice(self._options.clients, self._options.dropped, replace=False)
        return tuple(sorted(map(int, chosen)))

    async def _prepare(self, vanishing: tuple[int, ...]) -> Usage:
        """Tell the processes whose clients they are; what is used so far."""
        theirs = [
            tuple(number for number in vanishing if first <= number < first + count)
            for first, count in self._options.splits()
        ]
        return await self._usage((Prepare(()), *map(Prepare, theirs)))

    async def _settled(self, contributors: int) -> Usage:
        """What is used once the clients have their receipts, so that it counts for this round."""
        give_up_s = time.monotonic() + _SETTLING_S
        expected = contributors + sum(one.contributors for one in self._aggregates()[:-1])
        while True:
            now = await self._usage()
            if now.facts.get("Acknowledged", 0) >= expected or time.monotonic() > give_up_s:
                return now
            await asyncio.sleep(_LOOK_S)

    def _aggregates(self) -> list[NoisyAggregate]:
        return [log.aggregate for log in self._timeline.rounds if log.aggregate is not None]

    async def _usage(self, orders: Sequence[Prepare | Count] | None = None) -> Usage:
        """What every role has sent and used so far, asked of each process with an order of its own."""
        asked = zip(self._workers, orders or [Count()] * len(self._workers), strict=True)
        computes, *clients = await asyncio.gather(*(worker.ask(order) for worker, order in asked))
        sent = self._trainer.runner.traffic
        own = Totals(
            messages=sent.messages_sent,
            bytes=sent.bytes_sent,
            core_s=usage.core_s(),
            peak_rss_bytes=usage.peak_rss_bytes() or 0,
            transactions=0,
            facts={},
        )
        broker_s = usage.core_s_of(self._broker.pid) if self._broker is not None else None
        broker_rss = usage.peak_rss_bytes(self._broker.pid) if self._broker is not None else None
        return Usage(own, computes, tuple(clients), broker_s, broker_rss)

    # --- what workers say -----------------------------------------------------------------------------------------

    def _heed_of(self, number: int) -> Callable[[Word], None]:
        return lambda word: self._heed(self._workers[number], word)

    def _heed(self, worker: WorkerProcess, word: Word) -> None:
        match word:
            case Connected(count):
                worker.connected = count
                self._show_connected()
            case Sessions(count):
                self._watcher.sessions(count, self._options.clients)
                if count == self._options.clients:
                    self._all_known.set()

    def _show_connected(self) -> None:
        connected, total = (sum(getattr(one, name) for one in self._workers) for name in ("connected", "actors"))
        self._watcher.connected(connected, total)
        if connected == self._options.clients + self._options.computes:
            self._all_connected.set()

    async def _stop_workers(self) -> None:
        for task in self._watched:
            task.cancel()
        await asyncio.gather(*self._watched, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._workers))
