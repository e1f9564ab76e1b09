"""One process of a fleet: thousands of clients, or all Compute nodes, as its parent orders over standard input.

    python -m emulator.swarm.worker < orders > words

It ends when the parent closes the pipe or dies, and says in one line what it fails of. Its records are durable in a
database of its own, as on devices, and are thrown away with the fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.core import facts
from dca_proto.core.client import ClientActor
from dca_proto.core.compute import ComputeActor
from dca_proto.core.effects import Channel
from dca_proto.core.errors import DcaError
from dca_proto.core.machine import Actor
from dca_proto.core.params import Timing
from dca_proto.crypto.sealing import KEY_BYTES, Identity
from dca_proto.federation import Federation, enrol
from dca_proto.learning.forecast import EXACT
from dca_proto.logs import configure_logs
from dca_proto.net.inbox import CLIENT_LIMITS, InboxLimits
from dca_proto.net.mqtt import MqttTransport
from dca_proto.net.runner import Runner
from dca_proto.net.settings import BrokerSettings
from dca_proto.net.shared import SharedConnection
from dca_proto.net.store import SqliteStore
from dca_proto.net.topics import subscriptions
from dca_proto.net.transport import Transport
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.privacy.policy import Policy
from emulator.inexact import RoundedGaussian
from emulator.swarm import usage
from emulator.swarm.dropout import SwarmTransport, Vanished
from emulator.swarm.pipe import (
    SLOWEST_MAX,
    ClientOrders,
    ComputeOrders,
    Connected,
    Count,
    Failed,
    Late,
    Order,
    Prepare,
    Sessions,
    Setting,
    Totals,
    Word,
    read,
    send,
)
from emulator.swarm.rules import certificate_expiry_ms, floors, policy

MECHANISMS: dict[str, Mechanism] = {one.name: one for one in (EXACT, RoundedGaussian())}
COLUMN = "category"
KEEPALIVE_S = 1800  # a process with thousands of actors may be busy for long
_ANSWER_TIMEOUT_S = 120.0  # and so may the broker
_WORD_EVERY_S = 0.1


class Worker:
    """The actors of one process, their connections and their store.

    Args:
        setting: as the parent ordered. name: of the database. say: sends a word to the parent.
    """

    def __init__(self, setting: Setting, name: str, say: Callable[[Word], None]) -> None:
        self.vanished = Vanished()
        self.client_ids: dict[int, bytes] = {}
        self.runners: list[Runner] = []
        self._setting = setting
        self._say = say
        self._federation = Federation.from_toml(setting.federation)
        self._store = SqliteStore(Path(setting.directory) / f"{name}.db", os.urandom(KEY_BYTES))  # never opened again
        self._rng = random.Random(f"{setting.seed}/{name}")  # noqa: S311 - waiting times only
        self._ramp = asyncio.Semaphore(setting.connecting_max)
        self._transports: list[SwarmTransport] = []
        self._facts: Counter[str] = Counter()
        self._numbers: dict[bytes, int] = {}  # of the clients, by id
        self._late: deque[Late] = deque(maxlen=SLOWEST_MAX)
        self._sessions: dict[bytes, int] = {}  # of each Compute node, how many clients have one
        self._connected = 0
        self._told_s: dict[bytes, float] = {}
        self._means: dict[str, Any] = {
            "random": os.urandom,
            "mechanism": MECHANISMS[setting.mechanism],
            "timing": Timing(resend_first_ms=setting.resend_ms, resend_max_ms=4 * setting.resend_ms),
        }

    async def run(self, orders: Callable[[], Any]) -> None:
        """Run all actors until the orders end. Raises what an actor failed of, in a group."""
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(runner.run()) for runner in self.runners]
                while (order := await orders()) is not None:
                    self._obey(order)
                for task in running:
                    task.cancel()
        finally:
            await self._store.close()

    def _obey(self, order: Order) -> None:
        match order:
            case Prepare(vanishing):
                self.vanished.ids = frozenset(self.client_ids[number].hex() for number in vanishing)
                gc.collect()
                gc.freeze()  # a device's collector would not search the memory of thousands of others for garbage
                self._say(self._totals())
                self._late.clear()
            case Count():
                self._say(self._totals())

    # --- who runs here --------------------------------------------------------------------------------------------

    def add_clients(self, orders: ClientOrders) -> None:
        """Clients with fresh keys from the operating system, each of which is enrolled."""
        authority, places = Identity(orders.authority), range(orders.first, orders.first + orders.count)
        identities = {place: Identity(os.urandom(KEY_BYTES)) for place in places}
        self.client_ids = {place: one.id for place, one in identities.items()}
        self._numbers = {client: place for place, client in self.client_ids.items()}
        shared = SharedConnection(self._connect_shared) if orders.is_shared else None
        accepted, expires_ms = self._policy(), certificate_expiry_ms()
        for place, identity in identities.items():
            row = np.array([[float(place % orders.dimension)]])
            actor = ClientActor(
                identity,
                enrol(authority, self._federation, identity.public_key, expires_ms),
                self._federation,
                columns=(COLUMN,),
                rows=partial(_rows, row),
                policy=accepted,
                **self._means,
            )
            self._add(actor, Channel.CLIENT, shared)

    def add_computes(self, orders: ComputeOrders) -> None:
        """The Compute nodes of the federation file, each with a connection of its own."""
        setting = self._setting
        least = floors(setting.clients, setting.tolerated, setting.colluders)
        for seed in orders.identities:
            actor = ComputeActor(Identity(seed), self._federation, floors=least, **self._means)
            self._add(actor, Channel.COMPUTE, None)

    def _policy(self) -> Policy:
        setting = self._setting
        return policy(
            setting.clients,
            setting.tolerated,
            setting.colluders,
            computes=setting.computes,
            epsilon=setting.epsilon,
            delta=setting.delta,
        )

    def _add(self, actor: Actor, role: Channel, shared: SharedConnection | None) -> None:
        filters = subscriptions(self._federation.name, role, actor.id)
        limits = CLIENT_LIMITS if role is Channel.CLIENT else None
        if shared is not None:
            inner = shared.member(filters, limits)
        else:
            inner = self._connection(actor.id.hex(), filters, limits)
        transport = SwarmTransport(inner, self._ramp, self._count_connected, self.vanished.swallows)
        self._transports.append(transport)
        runner = Runner(
            actor,
            transport,
            self._store.view(actor.id),
            federation=self._federation.name,
            on_report=lambda fact: self._note(actor.id, fact),
        )
        self.runners.append(runner)

    def _connect_shared(self, filters: tuple[str, ...]) -> Transport:
        return self._connection(os.urandom(16).hex(), filters, None)

    def _connection(self, name: str, filters: tuple[str, ...], limits: InboxLimits | None) -> Transport:
        settings = BrokerSettings(url=self._setting.url, session_expiry_s=0, keepalive_s=KEEPALIVE_S)
        return MqttTransport(settings, name, filters, rng=self._rng, limits=limits, answer_timeout_s=_ANSWER_TIMEOUT_S)

    # --- what the parent is told ----------------------------------------------------------------------------------

    def _count_connected(self) -> None:
        self._connected += 1
        if self._connected == len(self.runners) or self._is_due(b""):
            self._say(Connected(self._connected))

    def _note(self, actor: bytes, fact: object) -> None:
        self._facts[f"dropped {fact.code}" if isinstance(fact, facts.Dropped) else type(fact).__name__] += 1
        match fact:
            case facts.SessionKept(_, count):
                self._sessions[actor] = count
                fewest = min(self._sessions.values()) if len(self._sessions) == len(self.runners) else 0
                if fewest == self._setting.clients or self._is_due(b"sessions"):
                    self._say(Sessions(fewest))
            case facts.Acknowledged():
                self._late.append(Late(self._numbers[actor], time.monotonic()))

    def _is_due(self, subject: bytes) -> bool:
        """Whether the parent has not heard of this for a moment."""
        now_s = time.monotonic()
        if now_s < self._told_s.get(subject, 0.0) + _WORD_EVERY_S:
            return False
        self._told_s[subject] = now_s
        return True

    def _totals(self) -> Totals:
        sent, lost = [runner.traffic for runner in self.runners], self._transports
        return Totals(
            messages=sum(one.messages_sent for one in sent) - sum(one.swallowed_messages for one in lost),
            bytes=sum(one.bytes_sent for one in sent) - sum(one.swallowed_bytes for one in lost),
            core_s=usage.core_s(),
            peak_rss_bytes=usage.peak_rss_bytes() or 0,
            transactions=self._store.transactions,
            facts=dict(self._facts),
            late=tuple(self._late),
        )


def _rows(row: NDArray[np.float64], columns: tuple[str, ...]) -> NDArray[np.float64]:
    return row


async def _work(words: BinaryIO) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    decoder = msgspec.msgpack.Decoder(Order)
    match await read(reader, decoder):
        case ClientOrders() as orders:
            worker = Worker(orders.setting, f"clients-{orders.first}", lambda word: send(words, word))
            worker.add_clients(orders)
        case ComputeOrders() as orders:
            worker = Worker(orders.setting, "computes", lambda word: send(words, word))
            worker.add_computes(orders)
        case _:
            return
    await worker.run(lambda: read(reader, decoder))


def main() -> int:
    """Obey orders from standard input, tell the parent on standard output, print all else to standard error."""
    configure_logs(level=logging.WARNING)
    words = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        asyncio.run(_work(words))
    except (DcaError, BaseExceptionGroup) as failure:
        error = _first(failure)
        if not isinstance(error, DcaError | BrokenPipeError):
            raise
        with contextlib.suppress(BrokenPipeError):  # then nobody is there to be told
            send(words, Failed(str(error)))
        return 1
    return 0


def _first(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


if __name__ == "__main__":
    sys.exit(main())
