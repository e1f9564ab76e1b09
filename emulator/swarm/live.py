"""A live swarm: a broker, M Compute nodes, N clients and a trainer, all real actors over real MQTT connections.

Or a broker, J data nodes and a trainer: clients with the rows of many people each, that release by themselves. Or a
broker, N clients that report by themselves, each its own row, and a trainer.

Every client has its own identity, certificate and records, and by default its own connection; keys and noise come from
the operating system, never from a seed. Everything that is started is stopped again, whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import (
    Job,
    LdpReportRequest,
    NodeReleaseRequest,
    NoisyAggregate,
    RoundRequest,
    SecureSumRequest,
)
from dca_proto.core import facts
from dca_proto.core.client import ClientActor
from dca_proto.core.compute import ComputeActor
from dca_proto.core.effects import Channel
from dca_proto.core.errors import UsageError
from dca_proto.core.machine import Actor
from dca_proto.core.params import Timing
from dca_proto.core.request import OpenRound, tolerated_of
from dca_proto.core.trainer import TrainerActor
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, Identity
from dca_proto.federation import Federation, Member, enrol, sign_federation
from dca_proto.learning.job import JobTerms
from dca_proto.learning.runner import learn
from dca_proto.net.broker import BrokerOptions, Kind, launch_broker
from dca_proto.net.inbox import CLIENT_LIMITS, InboxLimits
from dca_proto.net.live import LiveTrainer
from dca_proto.net.mqtt import MqttTransport, require_broker
from dca_proto.net.runner import Runner
from dca_proto.net.settings import BrokerSettings, check_url
from dca_proto.net.shared import SharedConnection
from dca_proto.net.store import SqliteStore
from dca_proto.net.topics import subscriptions
from dca_proto.net.transport import Transport
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.mechanism import PURE_MECHANISMS, DistributedDiscreteGaussian, Mechanism
from dca_proto.privacy.policy import Allowance, Policy
from emulator.swarm.dropout import Dropouts, SwarmTransport
from emulator.swarm.rules import certificate_expiry_ms, floors, node_policy, policy, reporter_policy, unless_one_ends
from emulator.swarm.timeline import RELEASE_PHASES, SUM_PHASES, RoundLog, Timeline

R = TypeVar("R")

CONNECTIONS = ("each", "shared")
_BROKERS = ("auto", "embedded", "mosquitto")
_CONNECTING_MAX = 32
_TIMING = Timing(resend_first_ms=5_000)
_WINDOW_MS = 120_000
_VAIN_MS = 2_000  # how long contributions are waited for where more clients drop than may, and a little for each client
_VAIN_EACH_MS = 10
_RELEASING_MS = 2_000  # half of how long is waited where a data node or a reporting client drops, and a little for each
_RELEASING_EACH_MS = 20


class SwarmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a swarm is made of.

    Attributes:
        computes: M. budget: of the whole job. tolerated: T, of a round of everybody. colluders: c.
        dropped: K clients that drop in each round.
        batch: B clients in each round at least, or 0 where all are asked in all rounds.
        seed: of drops and waiting times, never of keys or noise.
        broker: ``auto``, ``embedded``, ``mosquitto``, or the URL of one that runs.
        connections: one for ``each`` client, or ``shared`` by all clients.
        mechanism: of every actor; by default the exact one, without which nothing is private.
        kind: of all rounds. Without Compute nodes M = T = c = 0.
        reports: of LDP reports, the local mechanism by which clients report; "" of any other kind.
    """

    computes: int
    budget: Budget
    tolerated: int
    colluders: int
    dropped: int
    broker: str
    seed: int
    batch: int = 0
    connections: str = CONNECTIONS[0]
    mechanism: Mechanism = msgspec.field(default_factory=DistributedDiscreteGaussian)
    kind: type[RoundRequest] = SecureSumRequest
    reports: str = ""

    def connected(self, clients: int) -> int:
        """Connections at the broker: of so many clients, the Compute nodes and the trainer."""
        return (clients if self.connections == CONNECTIONS[0] else 1) + self.computes + 1

    @property
    def is_summed(self) -> bool:
        """Whether there are Compute nodes."""
        return self.kind is SecureSumRequest

    @property
    def delta(self) -> float:
        """What the rounds spend: none, where reports are private by epsilon alone."""
        return 0.0 if self.reports in PURE_MECHANISMS else self.budget.delta

    def smallest(self, clients: int) -> tuple[int, int]:
        """N and T of the smallest round, where so many clients are there in all."""
        fewest = self.batch or clients
        return fewest, tolerated_of(fewest, clients, self.tolerated, self.colluders)

    def room(self, clients: int) -> int:
        """How many may drop of the smallest round, where so many clients are there in all."""
        return self.smallest(clients)[1] - self.colluders if self.is_summed else clients - 1


def check_connections(connections: str) -> None:
    """Refuse another way to connect. Raises `UsageError`."""
    if connections not in CONNECTIONS:
        raise UsageError(f"--connections {connections}: expected {' or '.join(CONNECTIONS)}")


class Cast(msgspec.Struct, frozen=True):
    """Fresh identities and the federation that names them."""

    federation: Federation
    authority: Identity
    trainer: Identity
    computes: tuple[Identity, ...]
    clients: tuple[Identity, ...]


def check_broker(broker: str) -> None:
    """Refuse what is neither a kind of broker nor the URL of one. Raises `UsageError`."""
    if broker in _BROKERS:
        return
    if "://" not in broker:
        raise UsageError(f"--broker {broker}: expected {', '.join(_BROKERS)} or mqtt://host:port")
    check_url("--broker", broker)


def fresh_cast(clients: int, computes: int) -> Cast:
    """A federation with keys from the operating system."""
    authority, trainer, *others = (Identity(os.urandom(KEY_BYTES)) for _ in range(2 + computes + clients))
    nodes = tuple(Member(f"compute-{i + 1}", one.public_key) for i, one in enumerate(others[:computes]))
    name = f"swarm-{secrets.token_hex(4)}"  # a broker may be shared with others
    unsigned = Federation(name, authority.public_key, nodes, (Member("trainer", trainer.public_key),))
    federation = sign_federation(authority, unsigned)
    return Cast(federation, authority, trainer, tuple(others[:computes]), tuple(others[computes:]))


class _Announcer:
    """The trainer as a job sees it, in a swarm: each round has its own dropouts, and whoever fails ends the waiting.

    Args:
        trainer: the real one. swarm: whose rounds they are. dropouts: drawn anew before each announcement.
        watched: tasks that are to go on.
    """

    def __init__(
        self, trainer: LiveTrainer, swarm: Swarm, dropouts: Dropouts, watched: Sequence[asyncio.Task[None]]
    ) -> None:
        self._trainer = trainer
        self._swarm = swarm
        self._dropouts = dropouts
        self._watched = watched
        self.check, self.contributors, self.is_charged = trainer.check, trainer.contributors, trainer.is_charged

    async def hold(self, request: OpenRound) -> NoisyAggregate:
        """As the trainer."""
        vanished = frozenset(map(bytes.fromhex, self._dropouts.next_round(request.invited)))
        rounds = self._swarm.timeline.rounds
        before = len(rounds)
        try:
            return await unless_one_ends(self._trainer.hold(request), self._watched)
        finally:
            for log in rounds[before:]:
                log.asked, log.vanished = request.invited or tuple(self._swarm.numbers), vanished
                log.clients = self._trainer.contributors(request.round_id)

    async def rejoin(self, request: OpenRound) -> NoisyAggregate:
        """As the trainer; a swarm has no second life, so nothing is drawn."""
        return await unless_one_ends(self._trainer.rejoin(request), self._watched)


class Swarm:
    """A running swarm, as an asynchronous context.

    Args:
        options: what it is made of.
        rows: each client's rows, of shape (m, number of columns). columns: their names.
        directory: for the broker and the actors' records.
        on_connect: called with how many actors of how many are connected.
        on_change: called as a round goes on.

    Attributes:
        timeline: of the rounds held so far. numbers: each client's place in `rows`, by its id.
        broker_kind, broker_version, broker_url: of the broker in use.
    """

    def __init__(
        self,
        options: SwarmOptions,
        rows: Sequence[NDArray[np.float64]],
        columns: tuple[str, ...],
        directory: Path,
        *,
        on_connect: Callable[[int, int], None],
        on_change: Callable[[RoundLog], None],
    ) -> None:
        self.timeline = Timeline(self._traffic, on_change, phases=SUM_PHASES if options.is_summed else RELEASE_PHASES)
        self.broker_kind = "external"
        self.broker_version = ""
        self._options = options
        self._rows = rows
        self._place = {column: place for place, column in enumerate(columns)}
        self._directory = directory
        self._on_connect = on_connect
        self._cast = fresh_cast(len(rows), options.computes)
        ids = [one.id for one in self._cast.clients]
        lost = Channel.COMPUTE if options.is_summed else Channel.TRAINER
        self._dropouts = Dropouts(ids, options.dropped, options.seed, lost)
        self._shared = SharedConnection(self._connect_shared) if options.connections == "shared" else None
        self._timing_rng = random.Random(options.seed)  # noqa: S311 - waiting times only
        self._ramp = asyncio.Semaphore(_CONNECTING_MAX)
        self._runners: list[Runner] = []
        self._connections: list[SwarmTransport] = []
        self._connected = 0
        self._all_connected, self._all_known = asyncio.Event(), asyncio.Event()
        self._sessions: dict[bytes, int] = {}  # of each Compute node, how many clients have one
        self._stack = contextlib.AsyncExitStack()
        self.broker_url = options.broker
        self.numbers = {one: number for number, one in enumerate(ids)}
        self._means: dict[str, Any] = {"random": os.urandom, "mechanism": options.mechanism, "timing": _TIMING}

    async def __aenter__(self) -> Swarm:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._stack.aclose()

    async def learn(self, job: Job[R], *, retries: int = 0) -> R:
        """Run a learning job to its result.

        Args:
            retries: how often an aborted round is held anew.

        Raises:
            RoundAborted: a round ended without a result, and the job could not do without.
            UsageError, TransportError: an actor failed.
        """
        trainer = _Announcer(self._trainer, self, self._dropouts, self._running)
        clients = [one.id for one in self._cast.clients]
        return await learn(job, trainer, self._terms(), clients=clients, retries=retries)

    # --- starting -------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        if "://" not in self.broker_url:
            kind = msgspec.convert(self._options.broker, Kind)
            launched = launch_broker(self._directory / "broker", BrokerOptions(kind=kind))
            broker = await self._stack.enter_async_context(launched)
            self.broker_url, self.broker_kind, self.broker_version = broker.url, broker.kind, broker.version
        else:
            await require_broker(self.broker_url)
        store = SqliteStore(self._directory / "actors.db", os.urandom(KEY_BYTES))  # never opened again
        self._stack.push_async_callback(store.close)
        self._actors = [*self._computes(store), *self._clients(store)]
        self._stack.push_async_callback(self._stop_actors)
        self._running = [asyncio.create_task(runner.run()) for runner in self._actors]
        budget = self._options.budget
        account = Allowance(epsilon=budget.epsilon, delta=budget.delta)
        trainer = TrainerActor(self._cast.trainer, self._cast.federation, account=account, **self._means)
        live = LiveTrainer(
            trainer,
            self._transport(trainer.id, Channel.TRAINER),
            store.view(trainer.id),
            federation=self._cast.federation.name,
            on_report=lambda fact: self.timeline.note(trainer.id, fact),
        )
        self._runners = [*self._actors, live.runner]
        self._trainer = await self._stack.enter_async_context(live)
        await unless_one_ends(self._all_connected.wait(), self._running)
        if self._options.is_summed:
            await unless_one_ends(self._all_known.wait(), self._running)
        gc.collect()
        gc.freeze()  # a device's collector would not search the memory of hundreds of others for garbage
        self._stack.callback(gc.unfreeze)

    def _computes(self, store: SqliteStore) -> list[Runner]:
        if not self._options.is_summed:
            return []
        least = floors(*self._options.smallest(len(self._rows)), self._options.colluders)
        return [
            self._runner(ComputeActor(one, self._cast.federation, floors=least, **self._means), Channel.COMPUTE, store)
            for one in self._cast.computes
        ]

    def _clients(self, store: SqliteStore) -> list[Runner]:
        accepted = self._policy()
        return [self._client(index, accepted, store) for index in range(len(self._rows))]

    def _policy(self) -> Policy:
        options, budget = self._options, self._options.budget
        if options.kind is NodeReleaseRequest:
            return node_policy(budget.epsilon, budget.delta)
        if options.kind is LdpReportRequest:
            return reporter_policy(budget.epsilon, budget.delta)
        return policy(
            *options.smallest(len(self._rows)),
            options.colluders,
            computes=options.computes,
            epsilon=budget.epsilon,
            delta=budget.delta,
        )

    def _client(self, index: int, accepted: Policy, store: SqliteStore) -> Runner:
        identity, cast = self._cast.clients[index], self._cast
        actor = ClientActor(
            identity,
            enrol(cast.authority, cast.federation, identity.public_key, certificate_expiry_ms()),
            cast.federation,
            columns=self._place,
            rows=lambda columns: self._rows[index][:, [self._place[column] for column in columns]],
            policy=accepted,
            **self._means,
        )
        return self._runner(actor, Channel.CLIENT, store)

    def _runner(self, actor: Actor, role: Channel, store: SqliteStore) -> Runner:
        return Runner(
            actor,
            self._transport(actor.id, role),
            store.view(actor.id),
            federation=self._cast.federation.name,
            on_report=lambda fact: self._note(actor.id, fact),
        )

    def _note(self, actor: bytes, fact: object) -> None:
        if isinstance(fact, facts.SessionKept):
            self._sessions[actor] = fact.count
            counts = self._sessions.values()
            if len(counts) == self._options.computes and min(counts) == len(self._rows):
                self._all_known.set()
        self.timeline.note(actor, fact)

    def _transport(self, actor_id: bytes, role: Channel) -> SwarmTransport:
        topics = subscriptions(self._cast.federation.name, role, actor_id)
        is_client = role is Channel.CLIENT
        limits = CLIENT_LIMITS if is_client else None
        inner: Transport
        if is_client and self._shared is not None:
            inner = self._shared.member(topics, limits)
        else:
            inner = self._connection(actor_id.hex(), topics, limits)
        connection = SwarmTransport(inner, self._ramp, self._count_connected, self._dropouts.swallows)
        self._connections.append(connection)
        return connection

    def _connect_shared(self, topics: tuple[str, ...]) -> Transport:
        return self._connection(os.urandom(ID_BYTES).hex(), topics, None)

    def _connection(self, name: str, topics: tuple[str, ...], limits: InboxLimits | None) -> Transport:
        settings = BrokerSettings(url=self.broker_url, session_expiry_s=0)
        return MqttTransport(settings, name, topics, rng=self._timing_rng, limits=limits)

    def _count_connected(self) -> None:
        self._connected += 1
        total = len(self._runners)
        self._on_connect(self._connected, total)
        if self._connected == total:
            self._all_connected.set()

    # --- running --------------------------------------------------------------------------------------------------

    async def _stop_actors(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _traffic(self) -> tuple[int, int]:
        """Messages and bytes that reached the broker: what a dropped client handed over did not."""
        sent, lost = [runner.traffic for runner in self._runners], self._connections
        messages = sum(one.messages_sent for one in sent) - sum(one.swallowed_messages for one in lost)
        return messages, sum(one.bytes_sent for one in sent) - sum(one.swallowed_bytes for one in lost)

    def _terms(self) -> JobTerms:
        options = self._options
        collect_ms, commit_ms = self._windows_ms()
        return JobTerms(
            budget=options.budget,
            clients=len(self._rows),
            tolerated=options.tolerated,
            colluders=options.colluders,
            computes=tuple(one.id for one in self._cast.computes),
            collect_window_ms=collect_ms,
            commit_window_ms=commit_ms,
        )

    def _windows_ms(self) -> tuple[int, int]:
        """How long contributions are waited for, and how long nodes may take to agree: at most, and seldom so long.

        A sum closes when all have come, or when enough have and the rest are quiet. What is released without Compute
        nodes has no such rule: where somebody drops, its round ends with its windows.
        """
        options = self._options
        if options.dropped and not options.is_summed:
            half_ms = _RELEASING_MS + _RELEASING_EACH_MS * len(self._rows)
            return half_ms, half_ms
        if options.dropped > options.room(len(self._rows)):
            return _VAIN_MS + _VAIN_EACH_MS * len(self._rows), _WINDOW_MS
        return _WINDOW_MS, _WINDOW_MS
