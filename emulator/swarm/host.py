"""The actors of one process, thousands of clients or all Compute nodes or both, with their connections and their store.

A host runs in a loop: in the swarm's own, or (`HostProcess`) in a thread of a worker of an engine, which asks it for
what it has to tell. Its records are durable in a database of its own, as on devices, and are thrown away with it.
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
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.sealing import KEY_BYTES, Identity
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.protocol import facts
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.federation import Federation, enrol
from dca_proto.protocol.wire.topics import subscriptions
from dca_proto.runtime.inbox import CLIENT_LIMITS, InboxLimits
from dca_proto.runtime.logs import configure_logs
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.shared import SharedConnection
from dca_proto.runtime.store import SqliteStore
from dca_proto.runtime.transport import Transport
from emulator.swarm import usage
from emulator.swarm.dropout import SwarmTransport, Vanished
from emulator.swarm.options import CONNECTIONS, SwarmOptions, certificate_expiry_ms

SLOWEST_MAX = 5
"""How many slow clients a round names."""
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


class State(msgspec.Struct, frozen=True):
    """How many actors of a host have a connection, and how many clients a session at every Compute node."""

    connected: int
    sessions: int


class Late(msgspec.Struct, frozen=True):
    """A client, by number, that was among the last of its process to have its receipt, so many seconds ago."""

    client: int
    ago_s: float


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Of one process, since its start.

    Attributes:
        messages, bytes: of each role that its actors sent and that reached the broker.
        core_s: of the processor. peak_rss_bytes: the most memory that it had.
        facts: how many of each kind its actors reported; dropped messages by their code.
        late: the last clients of the round, since it was prepared.
    """

    messages: dict[str, int]
    bytes: dict[str, int]
    core_s: float
    peak_rss_bytes: int
    facts: dict[str, int] = {}
    late: tuple[Late, ...] = ()


class Charges:
    """What clients were charged and not given back, and how many sent what was not lost.

    Attributes:
        sent: of each round.
    """

    def __init__(self) -> None:
        self.sent: Counter[bytes] = Counter()
        self._prices: dict[tuple[bytes, bytes], PrivacyCost] = {}

    def note(self, client: bytes, fact: object, *, is_lost: bool = False) -> None:
        """Take in a client's fact; what it contributes may be lost."""
        match fact:
            case facts.Contributed(round_id):
                self._prices[client, round_id] = fact.price
                self.sent[round_id] += not is_lost
            case facts.ChargeReturned(round_id):
                self._prices.pop((client, round_id), None)

    def spent(self, delta: float) -> float:
        """The epsilon, at that delta, of the client that spent the most.

        Whoever was charged has spent, with or without a result, until M signed aborts give it back.
        """
        by_client: dict[bytes, list[PrivacyCost]] = defaultdict(list)
        for (client, _), price in self._prices.items():
            by_client[client].append(price)
        alike = {tuple(one) for one in by_client.values()}  # most clients spend the same
        return max((total(one).epsilon(delta) for one in alike), default=0.0)


class Host:
    """The actors of one process.

    Args:
        orders: what to run. changed: called when `state` has changed.

    Attributes:
        client_ids: in the order of their numbers. store: of all actors.
    """

    def __init__(self, orders: Orders, changed: Callable[[], None] = lambda: None) -> None:
        options = orders.options
        lost = Channel.COMPUTE if options.is_summed else Channel.TRAINER
        self.client_ids: list[bytes] = []
        self._orders, self._changed = orders, changed
        self._federation = Federation.from_toml(orders.federation)
        self._vanished = Vanished(lost)
        self._charges = Charges()
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
        self.store = SqliteStore(file, os.urandom(KEY_BYTES))  # never opened again
        self._shared = SharedConnection(self._connect_shared) if options.connections == CONNECTIONS[1] else None
        self._add_computes()
        self._add_clients()
        self._numbers = {client: number for number, client in enumerate(self.client_ids, orders.first)}

    async def run(self) -> None:
        """Run all actors until this is cancelled. Raises what an actor failed of."""
        try:
            async with asyncio.TaskGroup() as group:
                for _, runner, _ in self._runners:
                    group.create_task(runner.run())
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        finally:
            await self.store.close()

    def prepare(self, vanished: frozenset[str]) -> Totals:
        """For a round in which these clients vanish, ids in hexadecimal, and all others are back."""
        self._vanished.ids = vanished
        found = self.totals()
        self._late.clear()
        return found

    def state(self) -> State:
        """How far connecting has come."""
        nodes = len(self._orders.nodes)
        return State(self._connected, min(self._sessions.values()) if nodes and len(self._sessions) == nodes else 0)

    def totals(self) -> Totals:
        """What was sent and used so far."""
        messages, size, now_s = Counter[str](), Counter[str](), time.monotonic()
        for role, runner, lost in self._runners:
            messages[role] += runner.traffic.messages_sent - lost.swallowed_messages
            size[role] += runner.traffic.bytes_sent - lost.swallowed_bytes
        return Totals(
            messages=dict(messages),
            bytes=dict(size),
            core_s=usage.core_s(),
            peak_rss_bytes=usage.peak_rss_bytes() or 0,
            facts=dict(self._facts),
            late=tuple(Late(self._numbers[client], now_s - at_s) for client, at_s in self._late),
        )

    def charges(self) -> tuple[dict[bytes, int], float]:
        """How many clients sent a contribution in each round, and the epsilon that one has spent at most."""
        return dict(self._charges.sent), self._charges.spent(self._orders.options.delta)

    # --- who runs here --------------------------------------------------------------------------------------------

    def _add_clients(self) -> None:
        """Clients with fresh keys from the operating system, each of which is enrolled."""
        orders = self._orders
        if not orders.rows:
            return
        accepted, expires_ms = orders.options.policy(), certificate_expiry_ms()
        authority = Identity(orders.authority)
        place = {column: index for index, column in enumerate(orders.columns)}
        for rows in orders.rows:
            identity = Identity(os.urandom(KEY_BYTES))
            self.client_ids.append(identity.id)
            actor = Client(
                identity,
                enrol(authority, self._federation, identity.public_key, expires_ms),
                self._federation,
                columns=place,
                rows=partial(_columns_of, rows, place),
                policy=accepted,
                **self._means,
            )
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
        transport = SwarmTransport(inner, self._ramp, self._count_connected, self._vanished.swallows)
        runner = Runner(
            actor,
            transport,
            self.store.view(actor.id),
            federation=self._federation.name,
            on_report=partial(self._note, actor.id),
        )
        self._runners.append((role.value, runner, transport))

    def _connect_shared(self, filters: tuple[str, ...]) -> Transport:
        return self._connection(os.urandom(16).hex(), filters)

    def _connection(self, name: str, filters: tuple[str, ...], limits: InboxLimits | None = None) -> Transport:
        return connect(self._orders.url, name, filters, self._rng, limits)

    # --- what happens ---------------------------------------------------------------------------------------------

    def _count_connected(self) -> None:
        self._connected += 1
        self._changed()

    def _note(self, actor: bytes, fact: object) -> None:
        self._facts[f"dropped {fact.code}" if isinstance(fact, facts.Dropped) else type(fact).__name__] += 1
        match fact:
            case facts.SessionKept(_, count):
                self._sessions[actor] = count
                self._changed()
            case facts.Acknowledged():
                self._late.append((actor, time.monotonic()))
            case facts.Contributed() | facts.ChargeReturned():
                self._charges.note(actor, fact, is_lost=actor.hex() in self._vanished.ids)


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


def _first_of(*futures: Future[Any]) -> None:
    """Wait until one is done."""
    wait(futures, return_when=FIRST_COMPLETED)


class HostProcess:
    """A host in a process of its own: its loop is a thread, which each call waits for.

    Args:
        orders: as of `Host`.

    Raises, in each call, what an actor failed of.
    """

    def __init__(self, orders: Orders) -> None:
        configure_logs(level=logging.WARNING)
        options, self._stack = orders.options, contextlib.ExitStack()
        is_each = options.connections == CONNECTIONS[0]
        usage.require_connections(len(orders.rows) * is_each + len(orders.nodes) + 1, None)
        if orders.directory is None:
            directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dca-swarm-"))
            orders = msgspec.structs.replace(orders, directory=directory)
        self._ready: Future[Host] = Future()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._live, args=(orders,), daemon=True)
        self._thread.start()

    def client_ids(self) -> list[bytes]:
        """Of its clients, once all are made."""
        _first_of(self._ready, self._ended)
        return self._ask(lambda host: host.client_ids)

    def state(self) -> State:
        """As of `Host`."""
        return self._ask(Host.state)

    def prepare(self, vanished: frozenset[str]) -> Totals:
        """As of `Host`."""
        gc.collect()
        gc.freeze()  # a device's collector would not search the memory of thousands of others for garbage
        return self._ask(lambda host: host.prepare(vanished))

    def totals(self) -> Totals:
        """As of `Host`."""
        return self._ask(Host.totals)

    def charges(self) -> tuple[dict[bytes, int], float]:
        """As of `Host`."""
        return self._ask(Host.charges)

    def close(self) -> None:
        """Stop the actors, and throw away their records."""
        _first_of(self._ready, self._ended)
        if not self._ended.done():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        self._stack.close()

    def _ask(self, do: Callable[[Host], T]) -> T:
        answer: Future[T] = Future()
        _first_of(self._ready, self._ended)
        if not self._ended.done():
            self._loop.call_soon_threadsafe(self._answer, answer, do)
            _first_of(answer, self._ended)
        if not answer.done():
            self._ended.result()
        return answer.result()

    def _answer(self, answer: Future[T], do: Callable[[Host], T]) -> None:
        try:
            answer.set_result(do(self._ready.result()))
        except Exception as error:
            answer.set_exception(error)

    def _live(self, orders: Orders) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            try:
                asyncio.run(self._run(orders))
            except Exception as error:
                self._ended.set_exception(error)
        if not self._ended.done():
            self._ended.set_result(None)

    async def _run(self, orders: Orders) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._loop, self._task = asyncio.get_running_loop(), task
        host = Host(orders)
        self._ready.set_result(host)
        await host.run()
