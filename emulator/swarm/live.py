"""A live swarm: a broker, a trainer, M Compute nodes and N clients, all real actors over real MQTT connections.

Without Compute nodes, the clients are J data nodes, each of which releases a noisy sum over its own rows, or N clients
that send LDP reports of one row each.

    P = 0    all actors run in this process
    P >= 1   this process starts the broker, runs the trainer and collects the figures; one process runs the Compute
             nodes; P processes run N/P clients each, on this machine or (`--engine`) on others

Every client has its own identity, certificate and records, and by default its own connection. Keys and noise come from
the operating system, never from a seed. Everything that is started is stopped again, whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import random
import secrets
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import Job, NoisyAggregate
from dca_proto.crypto.sealing import KEY_BYTES, Identity
from dca_proto.engine import Engine, open_engine
from dca_proto.errors import NoAggregate, RoundAborted, UsageError
from dca_proto.jobs.runner import learn
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.federation import Federation, Member, sign_federation
from dca_proto.protocol.policy import BudgetLimit
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.topics import subscriptions
from dca_proto.results.round import Traffic
from dca_proto.runtime.broker import Broker, BrokerKind, BrokerOptions, launch_broker
from dca_proto.runtime.live import LiveTrainer
from dca_proto.runtime.mqtt import require_broker
from dca_proto.runtime.settings import Version
from dca_proto.runtime.store import SqliteStore
from emulator.swarm import usage
from emulator.swarm.host import HostConfig, HostThread, client_for, connect
from emulator.swarm.options import SwarmOptions
from emulator.swarm.timeline import RELEASE_PHASES, SUM_PHASES, RoundLog, Timeline
from emulator.swarm.usage import ALL, TRAINER, Usage
from inference.datasets import stream

R = TypeVar("R")
T = TypeVar("T")
_SETTLING_S = 10.0
_POLL_S, _POLL_LATER_S = 0.05, 1.0


class Watcher:
    """Is notified of a swarm's progress. This one ignores it; subclasses show it."""

    def connected(self, count: int, total: int) -> None:
        """`count` of `total` actors are connected."""

    def sessions(self, count: int, total: int) -> None:
        """`count` of `total` clients have a session at every Compute node."""

    def changed(self, log: RoundLog) -> None:
        """A round has changed."""


class SwarmResult(NamedTuple):
    """A swarm that has run, with its job's result or the reason why there is none."""

    swarm: Swarm
    result: Any
    failure: str | None


async def run_swarm(
    options: SwarmOptions,
    rows: Sequence[NDArray[np.float64]],
    columns: tuple[str, ...],
    job: Job[Any],
    watcher: Watcher,
    on_start: Callable[[Swarm], None] = lambda _: None,
    retries: int = 0,
) -> SwarmResult:
    """Run a job in a swarm of its own. An abort is returned, other errors are raised.

    Arguments and errors: see `Swarm` and `Swarm.learn`.
    """
    with tempfile.TemporaryDirectory(prefix="dca-swarm-") as directory:
        async with Swarm(options, rows, columns, Path(directory), watcher, on_start) as swarm:
            try:
                return SwarmResult(swarm, await swarm.learn(job, retries=retries), None)
            except NoAggregate as ended:  # also `RoundAborted`
                failure = ended.reason
    return SwarmResult(swarm, None, failure)


class Keys(msgspec.Struct, frozen=True):
    """Fresh identities and the federation that names them."""

    federation: Federation
    authority: Identity
    trainer: Identity
    computes: tuple[Identity, ...]


def fresh_keys(computes: int) -> Keys:
    """Return a federation with keys from the operating system."""
    authority, trainer, *nodes = (Identity(os.urandom(KEY_BYTES)) for _ in range(2 + computes))
    members = tuple(Member(f"compute-{number}", identity.public_key) for number, identity in enumerate(nodes, 1))
    name = f"swarm-{secrets.token_hex(4)}"  # unique, because a broker may be shared
    unsigned = Federation(name, authority.public_key, members, (Member("trainer", trainer.public_key),))
    return Keys(sign_federation(authority, unsigned), authority, trainer, tuple(nodes))


class _HostProxy:
    """A host in a thread or process of its own. Calls run one at a time, in threads that cancellation does not stop."""

    def __init__(self, call: Callable[..., Any], end: Callable[[], None]) -> None:
        self._ask, self._stop = call, end
        self._turn = threading.Lock()
        self._has_ended = False

    async def call(self, method: str, *arguments: Any) -> Any:
        return await asyncio.to_thread(self._call, method, *arguments)

    def _call(self, method: str, *arguments: Any) -> Any:
        with self._turn:  # a cancelled call may get its turn after the end
            return None if self._has_ended else self._ask(method, *arguments)

    async def end(self) -> None:
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        is_free = self._turn.acquire(timeout=_SETTLING_S)
        self._has_ended = True
        self._stop()
        if is_free:
            self._turn.release()


class Swarm:
    """A running swarm; an asynchronous context manager. Inside, every actor is connected and every client has sessions.

    Args:
        options: checked. rows: each client's rows, of shape (m, number of columns). columns: their names.
        directory: for the broker and the actors' records. watcher: is notified of progress.
        on_start: called once the broker runs.

    Attributes:
        timeline: of the rounds so far. numbers: each client's index in `rows`, by its id.
        broker_kind, broker_version, broker_url: of the broker in use.
        connect_s, sessions_s: seconds from the start of the first process until all are connected, and until all have
            sessions. core_s: processor seconds by role until then.
        sent: after a job has ended, how many clients sent a contribution in each round.
        spent: the largest epsilon that a client has spent.
    """

    def __init__(
        self,
        options: SwarmOptions,
        rows: Sequence[NDArray[np.float64]],
        columns: tuple[str, ...],
        directory: Path,
        watcher: Watcher,
        on_start: Callable[[Swarm], None] = lambda _: None,
    ) -> None:
        self.broker_url, self.broker_kind, self.broker_version = options.broker, "external", ""
        self._mqtt_version: Version = "3.1.1"  # of any broker
        self.timeline = Timeline(watcher.changed, phases=SUM_PHASES if options.is_summed else RELEASE_PHASES)
        self.numbers: dict[bytes, int] = {}
        self.connect_s = self.sessions_s = 0.0
        self.core_s: dict[str, float] = {}
        self.sent: dict[bytes, int] = {}
        self.spent = 0.0
        self.options = options
        self._rows, self._columns, self._directory = rows, columns, directory
        self._watcher, self._on_start = watcher, on_start
        self._keys = fresh_keys(options.computes)
        self._hosts: dict[str, _HostProxy] = {}
        self._states: dict[str, tuple[int, int]] = {}
        self._broker: Broker | None = None
        self._is_trainer_connected = False
        self._all_connected, self._all_known = asyncio.Event(), asyncio.Event()
        self._stack = contextlib.AsyncExitStack()
        self._watched: list[asyncio.Task[None]] = []

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
        """Run a job and return its result.

        Args:
            retries: how often an aborted round is repeated.

        Raises:
            RoundAborted: a round ended without a result that the job needs.
            UsageError, TransportError: an actor or a process failed.
        """
        trainer = _SwarmTrainer(self._trainer, self)
        terms = self.options.terms(tuple(identity.id for identity in self._keys.computes))
        try:
            result = await learn(job, trainer, terms, clients=tuple(self.numbers), retries=retries)
        except (RoundAborted, NoAggregate):
            await self._collect_charges()
            raise
        await self._collect_charges()
        return result

    async def _collect_charges(self) -> None:
        for sent, spent in await asyncio.gather(*(host.call("charges") for host in self._hosts.values())):
            self.spent = max(self.spent, spent)
            for round_id, count in sent.items():
                self.sent[round_id] = self.sent.get(round_id, 0) + count

    async def run_round(self, request: OpenRound) -> NoisyAggregate:
        """Run one round, in which some clients, drawn anew, vanish. Raises as `learn`."""
        vanished = self._dropouts.next_round(request.invited)
        before, count = await self._usage("prepare", vanished), len(self.timeline.rounds)
        try:
            aggregate = await unless_one_ends(self._trainer.run_round(request), self._watched)
        except RoundAborted as error:
            if len(self.timeline.rounds) > count:
                await self._complete(request, vanished, before, 0)
            elif self.options.dimension:  # there is no round to report
                raise UsageError(f"round {count + 1} was never announced: {error.reason}") from None
            raise
        await self._complete(request, vanished, before, min(aggregate.contributors, self.timeline.rounds[-1].arrived))
        return aggregate

    async def _complete(self, request: OpenRound, vanished: frozenset[str], before: Usage, receipts: int) -> None:
        """Complete the log of the round that has ended, after `receipts` clients have got their receipts."""
        log = self.timeline.rounds[-1]
        log.asked = request.invited or tuple(self.numbers)
        log.vanished = frozenset(map(bytes.fromhex, vanished))
        log.clients = self._trainer.contributors(request.round_id)
        log.before, log.after = before, await self._settled(receipts, before)

    # --- starting -------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        engine = self._stack.enter_context(open_engine(self.options.engine))
        if "://" not in self.broker_url:
            kind = msgspec.convert(self.options.broker, BrokerKind)
            launched = launch_broker(self._directory / "broker", BrokerOptions(kind=kind))
            self._broker = broker = await self._stack.enter_async_context(launched)
            self.broker_url, self.broker_kind, self.broker_version = broker.url, broker.kind, broker.version
            self._mqtt_version = broker.mqtt_version
            self._watched.append(asyncio.create_task(broker.ended()))
        else:
            await require_broker(self.broker_url)
        self._on_start(self)
        began_s = time.monotonic()
        self._stack.push_async_callback(self._stop)
        await unless_one_ends(self._start_hosts(engine), self._watched)
        store = SqliteStore(self._directory / "trainer.db", self._keys.trainer.store_key)
        self._stack.push_async_callback(store.close)
        self._dropouts = Dropouts(tuple(self.numbers), self.options.dropped, self.options.seed)
        self._trainer = await self._stack.enter_async_context(self._live_trainer(store))
        self._is_trainer_connected = True
        self._check_states()
        await unless_one_ends(self._all_connected.wait(), self._watched)
        self.connect_s = time.monotonic() - began_s
        if self.options.is_summed:
            await unless_one_ends(self._all_known.wait(), self._watched)
        self.sessions_s = time.monotonic() - began_s
        self.core_s = (await self._usage()).core_s_by_role()

    async def _start_hosts(self, engine: Engine) -> None:
        options = self.options
        if options.processes:
            places = [("the Compute nodes", "compute", 0, 0)] if options.is_summed else []
            for number, (first, count) in enumerate(options.splits(), 1):
                places.append((f"clients {first} to {first + count - 1}", f"client {number}", first, count))
            for label, name, first, count in places:
                config = self._config(name, first, count, is_here=engine.is_local)
                worker = engine.worker(functools.partial(HostThread, config), label, "use fewer --clients")
                self._hosts[name] = _HostProxy(functools.partial(worker.call, "call"), worker.end)
        else:
            host = HostThread(self._config(ALL, 0, len(self._rows), is_here=True))
            self._hosts[ALL] = _HostProxy(host.call, host.close)
        self._watched += [asyncio.create_task(self._poll(name)) for name in self._hosts]
        ids = await asyncio.gather(*(host.call("client_ids") for host in self._hosts.values()))
        self.numbers = {client: number for number, client in enumerate(itertools.chain.from_iterable(ids))}

    def _config(self, name: str, first: int, count: int, *, is_here: bool) -> HostConfig:
        """Return the configuration of a host with these clients; `compute` and `ALL` run all Compute nodes too."""
        has_nodes = name in (ALL, "compute")
        return HostConfig(
            options=self.options,
            federation=self._keys.federation.to_toml(),
            url=self.broker_url,
            client=client_for(self.options.clients if has_nodes else count),
            version=self._mqtt_version,
            name=name,
            directory=str(self._directory) if is_here else None,
            nodes=tuple(bytes(identity.seed) for identity in self._keys.computes) if has_nodes else (),
            authority=self._keys.authority.seed,
            first=first,
            rows=tuple(self._rows[first : first + count]),
            columns=self._columns,
        )

    def _live_trainer(self, store: SqliteStore) -> LiveTrainer:
        identity, federation, budget = self._keys.trainer, self._keys.federation, self.options.budget
        actor = Trainer(
            identity,
            federation,
            account=BudgetLimit(epsilon=budget.epsilon, delta=budget.delta),
            random=os.urandom,
            mechanism=self.options.mechanism,
            timing=self.options.timing(),
        )
        rng = random.Random(self.options.seed)  # noqa: S311 - waiting times only
        topics = subscriptions(federation.id, Channel.TRAINER, identity.id)
        here = 0 if self.options.processes else self.options.clients
        mqtt = client_for(here), self._mqtt_version
        transport = connect(self.broker_url, *mqtt, identity.id.hex(), topics, rng)
        live = store.view(identity.id)
        return LiveTrainer(actor, transport, live, federation=federation.id, on_report=self.timeline.note)

    # --- what hosts report ----------------------------------------------------------------------------------------

    async def _poll(self, name: str) -> None:
        """Query a host's state again and again. Raises its error if it ends."""
        while True:
            self._states[name] = await self._hosts[name].call("state")
            self._check_states()
            await asyncio.sleep(_POLL_S if not self._all_known.is_set() else _POLL_LATER_S)

    def _check_states(self) -> None:
        clients, total = self.options.clients, self.options.clients + self.options.computes + 1
        connected = sum(actors for actors, _ in self._states.values()) + self._is_trainer_connected
        if not self._all_connected.is_set():
            self._watcher.connected(connected, total)
            if connected == total:
                self._all_connected.set()
        sessions = max((count for _, count in self._states.values()), default=0)
        if not self._all_known.is_set() and sessions:
            self._watcher.sessions(sessions, clients)
            if sessions == clients:
                self._all_known.set()

    async def _settled(self, receipts: int, before: Usage) -> Usage:
        """Wait until the clients have their receipts, so that these count for this round, and return the usage."""
        now, give_up_s = await self._usage(), time.monotonic() + _SETTLING_S
        known = before.facts.get("Acknowledged", 0)
        while self.options.processes and now.facts.get("Acknowledged", 0) - known < receipts:
            if time.monotonic() > give_up_s:
                break
            await asyncio.sleep(_POLL_S)
            now = await self._usage()
        return now

    async def _usage(self, method: str = "totals", *arguments: Any) -> Usage:
        """Call a method of every host that returns its usage, and return the usage of all processes."""
        calls = asyncio.gather(*(host.call(method, *arguments) for host in self._hosts.values()))
        of_hosts: list[Usage] = await unless_one_ends(calls, self._watched)
        sent = self._trainer.runner.traffic
        own = Usage.here(TRAINER, sent={TRAINER: Traffic(sent.messages_sent, sent.bytes_sent)})
        return Usage.of([own, *of_hosts, *([] if self._broker is None else [usage.broker_usage(self._broker.pid)])])

    async def _stop(self) -> None:
        for task in self._watched:
            task.cancel()
        await asyncio.gather(*self._watched, return_exceptions=True)
        await asyncio.gather(*(host.end() for host in self._hosts.values()))


class Dropouts:
    """Draws the K clients that drop out of each round, from the stream ``seed/drop``.

    Args:
        clients: ids. count: K. seed: of the draws.
    """

    def __init__(self, clients: Sequence[bytes], count: int, seed: int) -> None:
        self._clients = list(clients)
        self._count = count
        self._rng = stream(seed, "drop")

    def next_round(self, invited: Collection[bytes] = ()) -> frozenset[str]:
        """Return the clients that drop out of the next round: ids in hexadecimal.

        Args:
            invited: the clients that the round asks; if empty, all.
        """
        named = frozenset(invited)
        asked = [client for client in self._clients if not named or client in named]
        chosen = self._rng.choice(len(asked), self._count, replace=False)
        return frozenset(asked[index].hex() for index in chosen)


class _SwarmTrainer:
    """The trainer that a job in a swarm uses: its rounds are those of the swarm, with clients that vanish."""

    def __init__(self, trainer: LiveTrainer, swarm: Swarm) -> None:
        self.check, self.contributors, self.is_charged = trainer.check, trainer.contributors, trainer.is_charged
        self.run_round, self.resume_round = swarm.run_round, trainer.resume_round


async def unless_one_ends(waiting: Awaitable[T], watched: Sequence[asyncio.Task[None]]) -> T:
    """Return the result of `waiting`; raise the error of a task of `watched` if one ends first, for none should."""
    task = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait([task, *watched], return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = [other for other in watched if other.done()]
        if not task.done():
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # whatever is raised instead, asyncio does not report this one as never retrieved
    for other in ended:
        other.result()
    return task.result()
