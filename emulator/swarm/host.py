"""Runs the actors of one process: thousands of clients, all Compute nodes, or both, with connections and a store.

Clients may vanish for a round: their connection drops what they contribute or release, as if a device had lost its
network. In the next round they are back. The actors are the production ones, and do not know of it.

A host runs in an event loop of its own, in a thread of this process or of an engine's worker (`HostThread`). The swarm
queries it. Its records are durable in a database, as on devices, which is deleted when the host ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import logging
import os
import random
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from dca_proto.crypto.sealing import KEY_BYTES, Identity
from dca_proto.protocol import facts
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.rows import HostRows
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.federation import Federation, enrol
from dca_proto.protocol.wire.topics import subscriptions
from dca_proto.results.round import Traffic
from dca_proto.runtime.logs import configure_logs
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.settings import BrokerSettings, Version
from dca_proto.runtime.shared import SharedConnection
from dca_proto.runtime.shared_loop import SharedLoop
from dca_proto.runtime.store import SqliteStore
from dca_proto.runtime.transport import CLIENT_LIMITS, InboxLimits, Transport
from emulator.swarm.options import CONNECTIONS, SwarmOptions
from emulator.swarm.usage import Usage, require_connections

SLOWEST_MAX = 5
"""How many slow clients a round names."""
FLEET_FROM = 300
"""A process that serves more clients uses the MQTT client for fleets, which takes a fifth of the CPU a packet."""
MqttClient = Literal["aiomqtt", "fleet"]
_CERTIFICATE_S = 30 * 24 * 3600
_KEEPALIVE_S = 1800  # long, because a process with thousands of actors may be busy for minutes
_ANSWER_TIMEOUT_S = 120.0  # long, because the broker may be busy too
T = TypeVar("T")


class HostConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a host. It holds keys, and travels through the engine's pipes, never through the broker.

    Attributes:
        options: of the swarm. federation: text of its file. name: of the host.
        url: of the broker. client, version: of MQTT.
        directory: for records; None makes a temporary one.
        nodes: seeds of its Compute nodes' identities. authority: seed of the key that enrols clients.
        first: number of its first client. rows: of each of its clients, shape ``(m, len(columns))``.
    """

    options: SwarmOptions
    federation: str
    url: str
    client: MqttClient
    version: Version
    name: str
    directory: str | None
    nodes: tuple[bytes, ...] = ()
    authority: bytes = b""
    first: int = 0
    rows: tuple[Any, ...] = ()
    columns: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"HostConfig({self.name}, <keys>)"


class SwarmHost:
    """The actors of one process."""

    def __init__(self, config: HostConfig) -> None:
        options = config.options
        lost = Channel.COMPUTE if options.is_summed else Channel.TRAINER
        self._clients: list[Client] = []
        self._config = config
        self._federation = Federation.from_toml(config.federation)
        self._vanished = Vanished(lost)
        self._sent: Counter[bytes] = Counter()  # by round, how many clients contributed and had not vanished
        self._rng = random.Random(f"{options.seed}/{config.name}")  # noqa: S311 - waiting times only
        self._ramp = asyncio.Semaphore(options.connecting_max)
        self._runners: list[tuple[str, Runner, SwarmTransport]] = []
        self._facts: Counter[str] = Counter()
        self._late: deque[tuple[bytes, float]] = deque(maxlen=SLOWEST_MAX)
        self._sessions: dict[bytes, int] = {}  # by Compute node, how many clients have a session there
        self._connected = 0
        self._actor_options: dict[str, Any] = {
            "random": os.urandom,
            "mechanism": options.mechanism,
            "timing": options.timing(),
        }
        assert config.directory is not None, "HostThread makes one"
        file = Path(config.directory) / f"{config.name.replace(' ', '-')}.db"
        self._store = SqliteStore(file, os.urandom(KEY_BYTES))  # never opened again
        self._shared = (
            SharedConnection(lambda filters: self._connection(os.urandom(16).hex(), filters))
            if options.connections == CONNECTIONS[1]
            else None
        )
        self._add_computes()
        self._add_clients()
        self._numbers = {client.id: number for number, client in enumerate(self._clients, config.first)}

    async def run(self) -> None:
        """Run all actors until cancelled. Raises the first error of an actor."""
        try:
            async with asyncio.TaskGroup() as group:
                for role, runner, _ in self._runners:
                    if role != Channel.CLIENT.value:
                        group.create_task(runner.run())
                clients = [runner for role, runner, _ in self._runners if role == Channel.CLIENT.value]
                group.create_task(SharedLoop(self._store).run(clients))
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        finally:
            await self._store.close()

    def client_ids(self) -> list[bytes]:
        """Return the ids of its clients, in the order of their numbers."""
        return [client.id for client in self._clients]

    def prepare(self, vanished: frozenset[str]) -> Usage:
        """Prepare for a round in which these clients vanish (ids in hexadecimal), and return the totals before it."""
        gc.collect()
        gc.freeze()  # on a device, the collector would not search the memory of thousands of other actors
        self._vanished.ids = vanished
        usage = self.totals()
        self._late.clear()
        return usage

    def state(self) -> tuple[int, int]:
        """Return how many actors are connected, and how many clients have a session at every Compute node here."""
        nodes = len(self._config.nodes)
        return self._connected, min(self._sessions.values()) if nodes and len(self._sessions) == nodes else 0

    def totals(self) -> Usage:
        """Return what was sent and used so far."""
        sent, now_s = dict[str, Traffic](), time.monotonic()
        for role, runner, transport in self._runners:
            own = Traffic(runner.traffic.messages_sent, runner.traffic.bytes_sent)
            sent[role] = sent.get(role, Traffic()) + own - transport.swallowed
        late = tuple((self._numbers[client], now_s - at_s) for client, at_s in self._late)
        return Usage.here(self._config.name, sent=sent, facts=dict(self._facts), late=late)

    def charges(self) -> tuple[dict[bytes, int], float]:
        """Return how many clients sent a contribution in each round, and the largest epsilon that any has spent.

        A charged client has spent, with or without a result, until M signed aborts refund it.
        """
        delta, costs = self._config.options.delta, {client.ledger.spent() for client in self._clients}
        return dict(self._sent), max((cost.epsilon(delta) for cost in costs), default=0.0)

    # --- actors ---------------------------------------------------------------------------------------------------

    def _add_clients(self) -> None:
        """Add enrolled clients with fresh keys from the operating system."""
        config = self._config
        if not config.rows:
            return
        policy, expires_ms = config.options.policy(), int((time.time() + _CERTIFICATE_S) * 1000)
        authority = Identity(config.authority)
        rows = HostRows(config.columns, config.rows)
        for number in range(len(config.rows)):
            identity = Identity(os.urandom(KEY_BYTES))
            actor = Client(
                identity,
                enrol(authority, self._federation, identity.public_key, expires_ms),
                self._federation,
                columns=config.columns,
                rows=rows.member(number),
                policy=policy,
                **self._actor_options,
            )
            self._clients.append(actor)
            self._add(actor, Channel.CLIENT)

    def _add_computes(self) -> None:
        for key in self._config.nodes:
            floors = self._config.options.floors
            node = ComputeNode(Identity(key), self._federation, floors=floors, **self._actor_options)
            self._add(node, Channel.COMPUTE)

    def _add(self, actor: Actor, role: Channel) -> None:
        filters = subscriptions(self._federation.id, role, actor.id)
        limits = CLIENT_LIMITS if role is Channel.CLIENT else None
        if role is Channel.CLIENT and self._shared is not None:
            inner = self._shared.member(filters, limits)
        else:
            inner = self._connection(actor.id.hex(), filters, limits)
        transport = SwarmTransport(inner, self._ramp, self._opened, self._vanished.swallows)
        runner = Runner(
            actor,
            transport,
            self._store.view(actor.id),
            federation=self._federation.id,
            on_report=partial(self._note, actor.id),
        )
        self._runners.append((role.value, runner, transport))

    def _connection(self, name: str, filters: tuple[str, ...], limits: InboxLimits | None = None) -> Transport:
        config = self._config
        return connect(config.url, config.client, config.version, name, filters, self._rng, limits)

    # --- reports --------------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        self._connected += 1

    def _note(self, actor: bytes, fact: object) -> None:
        self._facts[f"dropped {fact.code}" if isinstance(fact, facts.Dropped) else type(fact).__name__] += 1
        match fact:
            case facts.SessionKept(_, count):
                self._sessions[actor] = count
            case facts.Acknowledged():
                self._late.append((actor, time.monotonic()))
            case facts.Contributed(round_id):
                self._sent[round_id] += actor.hex() not in self._vanished.ids


def client_for(served: int) -> MqttClient:
    """Return the MQTT client of a process that serves so many clients: those that it runs, or all as a Compute node."""
    return "fleet" if served > FLEET_FROM else "aiomqtt"


def connect(
    url: str,
    client: MqttClient,
    version: Version,
    name: str,
    filters: tuple[str, ...],
    rng: random.Random,
    limits: InboxLimits | None = None,
) -> Transport:
    """Return the connection of an actor in a swarm; timeouts are long, as thousands may share the broker.

    The client for fleets speaks MQTT 3.1.1 where its library for 5 is missing.
    """
    if client == "fleet" and importlib.util.find_spec("mqtt5") is None:
        version = "3.1.1"
    settings = BrokerSettings(url=url, client=client, version=version, session_expiry_s=0, keepalive_s=_KEEPALIVE_S)
    return MqttTransport(settings, name, filters, rng=rng, limits=limits, answer_timeout_s=_ANSWER_TIMEOUT_S)


def _first(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


class Vanished:
    """The clients that have vanished in this round. Their contributions or releases are lost.

    Args:
        to: the channel on which these are sent.

    Attributes:
        ids: of the clients, in hexadecimal; replaced in each round.
    """

    def __init__(self, to: Channel = Channel.COMPUTE) -> None:
        self.ids: frozenset[str] = frozenset()
        self._lost = to.value

    def swallows(self, topic: str) -> bool:
        """Return True if a message on this topic is a contribution or a release of a vanished client."""
        *_, channel, _receiver, sender = topic.split("/")
        return channel == self._lost and sender in self.ids


class SwarmTransport:
    """One actor's connection in a swarm. Few open at once, to spare the broker; messages of vanished clients are lost.

    Args:
        inner: the real connection. ramp: limits how many connect at once. on_open: called once connected.
        swallows: returns True if a message on a topic is to be lost.

    Attributes:
        swallowed: the traffic lost so far.
    """

    def __init__(
        self, inner: Transport, ramp: asyncio.Semaphore, on_open: Callable[[], None], swallows: Callable[[str], bool]
    ) -> None:
        self.inbox = inner.inbox
        self._inner = inner
        self._ramp = ramp
        self._on_open = on_open
        self._swallows = swallows
        self.swallowed = Traffic()

    async def open(self) -> None:
        async with self._ramp:
            await self._inner.open()
        self._on_open()

    def publish(
        self, topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None
    ) -> Awaitable[None]:
        if not self._swallows(topic):
            return self._inner.publish(topic, payload, retain, expires_s)
        self.swallowed += Traffic(1, len(payload))
        return asyncio.sleep(0)

    async def close(self) -> None:
        await self._inner.close()


class HostThread:
    """A host in a thread with an event loop of its own."""

    def __init__(self, config: HostConfig) -> None:
        configure_logs(level=logging.WARNING)
        options, self._stack = config.options, contextlib.ExitStack()
        is_each = options.connections == CONNECTIONS[0]
        require_connections(len(config.rows) * is_each + len(config.nodes) + 1, None)
        if config.directory is None:
            directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dca-swarm-"))
            config = msgspec.structs.replace(config, directory=directory)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._await(self._start(config))

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the host and return its result. Raises the error of an actor, if one failed."""
        return self._await(self._answer(method, arguments))

    def close(self) -> None:
        """Stop the actors, and delete their records."""
        self._await(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        gc.unfreeze()
        self._stack.close()

    async def _start(self, config: HostConfig) -> None:
        self._host = SwarmHost(config)
        self._running = asyncio.create_task(self._host.run())

    async def _answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if self._running.done():
            self._running.result()
        return getattr(self._host, method)(*arguments)

    async def _end(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
