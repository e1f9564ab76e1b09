"""The actors of one process, thousands of clients or all Compute nodes or both, with their connections and their store.

Clients may vanish: in a round nothing that they contribute or release gets through; in the next they are back. The
actors are the production ones and know nothing of it. The connection swallows what a dropped client sends, as a device
does that has lost its network.

A host runs in a loop of its own, in a thread of this process or of an engine's worker (`HostThread`). The swarm asks
it for what it has to tell. Its records are durable in a database of its own, as on devices. They end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
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
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.sealing import KEY_BYTES, Identity
from dca_proto.protocol import facts
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.federation import Federation, enrol
from dca_proto.protocol.wire.topics import subscriptions
from dca_proto.runtime.logs import configure_logs
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.shared import SharedConnection
from dca_proto.runtime.store import SqliteStore
from dca_proto.runtime.transport import CLIENT_LIMITS, InboxLimits, Transport
from emulator.results import Traffic
from emulator.swarm.options import CONNECTIONS, SwarmOptions
from emulator.swarm.usage import Usage, require_connections

SLOWEST_MAX = 5
"""How many slow clients a round names."""
_CERTIFICATE_S = 30 * 24 * 3600
_KEEPALIVE_S = 1800  # a process with thousands of actors may be busy for long
_ANSWER_TIMEOUT_S = 120.0  # and so may the broker
T = TypeVar("T")


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a host is to run. Keys travel here, by the engine's pipes, and never over the broker.

    Attributes:
        options: of the swarm. federation: the file's text. url: the broker's. name: of the host.
        directory: for records; None makes one.
        nodes: keys of its Compute nodes. authority: key that enrols clients.
        first: the number of its first client. rows: of each of its clients, shape ``(m, len(columns))``.
    """

    options: SwarmOptions
    federation: str
    url: str
    name: str
    directory: str | None
    nodes: tuple[bytes, ...] = ()
    authority: bytes = b""
    first: int = 0
    rows: tuple[Any, ...] = ()
    columns: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Orders({self.name}, <keys>)"


class Host:
    """The actors of one process.

    Args:
        orders: what to run.
    """

    def __init__(self, orders: Orders) -> None:
        options = orders.options
        lost = Channel.COMPUTE if options.is_summed else Channel.TRAINER
        self._clients: list[Client] = []
        self._orders = orders
        self._federation = Federation.from_toml(orders.federation)
        self._vanished = Vanished(lost)
        self._sent: Counter[bytes] = Counter()  # of each round, how many clients sent what was not lost
        self._rng = random.Random(f"{options.seed}/{orders.name}")  # noqa: S311 - waiting times only
        self._ramp = asyncio.Semaphore(options.connecting_max)
        self._runners: list[tuple[str, Runner, SwarmTransport]] = []
        self._facts: Counter[str] = Counter()
        self._late: deque[tuple[bytes, float]] = deque(maxlen=SLOWEST_MAX)
        self._sessions: dict[bytes, int] = {}  # of each Compute node, how many clients have one
        self._connected = 0
        self._means: dict[str, Any] = {
            "random": os.urandom,
            "mechanism": options.mechanism,
            "timing": options.timing(),
        }
        assert orders.directory is not None, "whoever runs it has made one"
        file = Path(orders.directory) / f"{orders.name.replace(' ', '-')}.db"
        self._store = SqliteStore(file, os.urandom(KEY_BYTES))  # never opened again
        self._shared = (
            SharedConnection(lambda filters: self._connection(os.urandom(16).hex(), filters))
            if options.connections == CONNECTIONS[1]
            else None
        )
        self._add_computes()
        self._add_clients()
        self._numbers = {one.id: number for number, one in enumerate(self._clients, orders.first)}

    async def run(self) -> None:
        """Run all actors until this is cancelled. Raises what an actor failed of."""
        try:
            async with asyncio.TaskGroup() as group:
                for _, runner, _ in self._runners:
                    group.create_task(runner.run())
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        finally:
            await self._store.close()

    def client_ids(self) -> list[bytes]:
        """Of its clients, in the order of their numbers."""
        return [one.id for one in self._clients]

    def prepare(self, vanished: frozenset[str]) -> Usage:
        """For a round in which these clients vanish, ids in hexadecimal, and all others are back."""
        gc.collect()
        gc.freeze()  # a device's collector would not search the memory of thousands of others for garbage
        self._vanished.ids = vanished
        found = self.totals()
        self._late.clear()
        return found

    def state(self) -> tuple[int, int]:
        """How many actors have a connection, and how many clients a session at every Compute node here."""
        nodes = len(self._orders.nodes)
        return self._connected, min(self._sessions.values()) if nodes and len(self._sessions) == nodes else 0

    def totals(self) -> Usage:
        """What was sent and used so far."""
        sent, now_s = dict[str, Traffic](), time.monotonic()
        for role, runner, transport in self._runners:
            own = Traffic(runner.traffic.messages_sent, runner.traffic.bytes_sent)
            sent[role] = sent.get(role, Traffic()) + own - transport.swallowed
        late = tuple((self._numbers[client], now_s - at_s) for client, at_s in self._late)
        return Usage.here(self._orders.name, sent=sent, facts=dict(self._facts), late=late)

    def charges(self) -> tuple[dict[bytes, int], float]:
        """How many clients sent a contribution in each round, and the epsilon that one has spent at most.

        Whoever was charged has spent, with or without a result, until M signed aborts give it back.
        """
        delta, alike = self._orders.options.delta, {one.ledger.spent() for one in self._clients}
        return dict(self._sent), max((spent.epsilon(delta) for spent in alike), default=0.0)

    # --- who runs here --------------------------------------------------------------------------------------------

    def _add_clients(self) -> None:
        """Clients with fresh keys from the operating system, each of which is enrolled."""
        orders = self._orders
        if not orders.rows:
            return
        accepted, expires_ms = orders.options.policy(), int((time.time() + _CERTIFICATE_S) * 1000)
        authority = Identity(orders.authority)
        place = {column: index for index, column in enumerate(orders.columns)}
        for rows in orders.rows:
            identity = Identity(os.urandom(KEY_BYTES))
            actor = Client(
                identity,
                enrol(authority, self._federation, identity.public_key, expires_ms),
                self._federation,
                columns=place,
                rows=partial(_columns_of, rows, place),
                policy=accepted,
                **self._means,
            )
            self._clients.append(actor)
            self._add(actor, Channel.CLIENT)

    def _add_computes(self) -> None:
        for key in self._orders.nodes:
            floors = self._orders.options.floors
            self._add(ComputeNode(Identity(key), self._federation, floors=floors, **self._means), Channel.COMPUTE)

    def _add(self, actor: Actor, role: Channel) -> None:
        filters = subscriptions(self._federation.name, role, actor.id)
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
            federation=self._federation.name,
            on_report=partial(self._note, actor.id),
        )
        self._runners.append((role.value, runner, transport))

    def _connection(self, name: str, filters: tuple[str, ...], limits: InboxLimits | None = None) -> Transport:
        return connect(self._orders.url, name, filters, self._rng, limits)

    # --- what happens ---------------------------------------------------------------------------------------------

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


def connect(
    url: str, name: str, filters: tuple[str, ...], rng: random.Random, limits: InboxLimits | None = None
) -> Transport:
    """A connection of an actor to a broker that thousands use."""
    settings = BrokerSettings(url=url, session_expiry_s=0, keepalive_s=_KEEPALIVE_S)
    return MqttTransport(settings, name, filters, rng=rng, limits=limits, answer_timeout_s=_ANSWER_TIMEOUT_S)


def _columns_of(rows: NDArray[np.float64], place: dict[str, int], columns: tuple[str, ...]) -> NDArray[np.float64]:
    return rows[:, [place[column] for column in columns]]


def _first(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


class Vanished:
    """Who has vanished, and what is lost with them: every contribution that they send, or every release.

    Args:
        to: the channel on which they send it.

    Attributes:
        ids: of clients, in hexadecimal; replaced from round to round.
    """

    def __init__(self, to: Channel = Channel.COMPUTE) -> None:
        self.ids: frozenset[str] = frozenset()
        self._lost = to.value

    def swallows(self, topic: str) -> bool:
        """Whether a message on this topic is a contribution, or a release, of a client that has dropped."""
        *_, channel, _receiver, sender = topic.split("/")
        return channel == self._lost and sender in self.ids


class SwarmTransport:
    """One actor's connection in a swarm: opened few at a time, so that the broker is not stormed, and cut by dropouts.

    Args:
        inner: the real connection. ramp: how many may connect at once. on_open: called once connected.
        swallows: whether a message on a topic is lost.

    Attributes:
        swallowed: what was lost so far.
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

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> Awaitable[None]:
        if not self._swallows(topic):
            return self._inner.publish(topic, payload, retain)
        self.swallowed += Traffic(1, len(payload))
        return asyncio.sleep(0)

    async def close(self) -> None:
        await self._inner.close()


class HostThread:
    """A host in a thread with a loop of its own.

    Args:
        orders: as of `Host`.
    """

    def __init__(self, orders: Orders) -> None:
        configure_logs(level=logging.WARNING)
        options, self._stack = orders.options, contextlib.ExitStack()
        is_each = options.connections == CONNECTIONS[0]
        require_connections(len(orders.rows) * is_each + len(orders.nodes) + 1, None)
        if orders.directory is None:
            directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dca-swarm-"))
            orders = msgspec.structs.replace(orders, directory=directory)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._await(self._start(orders))

    def call(self, method: str, *arguments: Any) -> Any:
        """What a method of the host returns. Raises what an actor failed of."""
        return self._await(self._answer(method, arguments))

    def close(self) -> None:
        """Stop the actors, and throw away their records."""
        self._await(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        gc.unfreeze()
        self._stack.close()

    async def _start(self, orders: Orders) -> None:
        self._host = Host(orders)
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
