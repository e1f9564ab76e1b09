"""Thousands of clients behind one connection: production actors, whose effects the gateway carries out as a runner.

Only for tests: the clients' records are not durable, and the gateway holds all their keys. Tests can speed up the
clients' clock, to shorten the wait before messages are repeated.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.round import ROUNDS, StoredClientRound
from dca_proto.protocol.effects import CancelTimer, Channel, Effect, Persist, Send, SetTimer
from dca_proto.protocol.events import Event, Received, Started, Timer, TimerFired
from dca_proto.protocol.wire.topics import sender_of, topic_of
from dca_proto.runtime.transport import Transport

_PUBLISHING_MAX = 16  # mosquitto's limit in flight to a receiver, so that receivers keep up
_TICK_S = 0.05


class Gateway:
    """Runs client actors over one transport.

    Args:
        on_change: called when the gateway is open, and when the broker has accepted a message to a Compute node.
        keep_up: awaited with the number of started clients, so that the broker drops none of their Hellos.

    Attributes:
        stored: client -> the message that it stored with its charge.
        sent: (client, Compute node) -> messages that the broker accepted, in order, repeats included.
        reached: number of clients' contributions that the broker accepted, by Compute node.
        is_open: whether it is connected and subscribed.
    """

    def __init__(
        self,
        clients: Iterable[Client],
        transport: Transport,
        federation: bytes,
        on_change: Callable[[], None],
        keep_up: Callable[[int], Awaitable[None]],
    ) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.sent: dict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)
        self.reached: Counter[bytes] = Counter()
        self.is_open = False
        self._clients = {client.id: client for client in clients}
        self._transport = transport
        self._federation = federation
        self._on_change = on_change
        self._keep_up = keep_up
        self._outbox: asyncio.Queue[tuple[bytes, Send]] = asyncio.Queue()
        self._heap: list[tuple[int, int, bytes, Timer]] = []
        self._set: dict[tuple[bytes, Timer], int] = {}
        self._order = itertools.count()
        self._epoch_ms = self._shown_ms = _system_ms()
        self._speed = 1

    def hurry(self, speed: int) -> None:
        """Speed up the clients' clock by this factor from now on."""
        self._shown_ms, self._epoch_ms = self._now_ms(), _system_ms()
        self._speed = speed

    async def run(self) -> None:
        """Run until cancelled."""
        await self._transport.open()
        self.is_open = True
        self._on_change()
        try:
            async with asyncio.TaskGroup() as parts:
                for _ in range(_PUBLISHING_MAX):
                    parts.create_task(self._publish_all())
                parts.create_task(self._fire_all())
                parts.create_task(self._receive_all())
        finally:
            await self._transport.close()

    async def _receive_all(self) -> None:
        for started, client in enumerate(self._clients.values(), 1):
            self._handle(client, Started())
            await self._keep_up(started)
        while True:
            message = await self._transport.inbox.take()
            receiver = message.topic.split("/")[3]
            event = Received(sender_of(message.topic), message.payload)
            addressed = list(self._clients) if receiver == "all" else [bytes.fromhex(receiver)]
            for client_id in addressed:
                self._handle(self._clients[client_id], event)
                await asyncio.sleep(0)  # one by one, so that other tasks of the loop keep up

    async def _fire_all(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            while self._heap and self._heap[0][0] <= self._now_ms():
                _, order, client_id, timer = heapq.heappop(self._heap)
                if self._set.get((client_id, timer)) == order:
                    del self._set[client_id, timer]
                    self._handle(self._clients[client_id], TimerFired(timer))

    def _handle(self, client: Client, event: Event) -> None:
        for effect in client.handle(event, self._now_ms()):
            self._carry_out(client.id, effect)

    def _carry_out(self, client_id: bytes, effect: Effect) -> None:
        match effect:
            case Persist(table, _, value) if table == ROUNDS:
                made = msgspec.msgpack.decode(value, type=StoredClientRound).outbound
                if made is not None:
                    assert client_id not in self.stored, "one contribution a round"
                    self.stored[client_id] = made.payload
            case Send():
                self._outbox.put_nowait((client_id, effect))
            case SetTimer(timer, at_ms):
                self._set[client_id, timer] = order = next(self._order)
                heapq.heappush(self._heap, (at_ms, order, client_id, timer))
            case CancelTimer(timer):
                self._set.pop((client_id, timer), None)

    async def _publish_all(self) -> None:
        while True:
            client_id, send = await self._outbox.get()
            await self._transport.publish(topic_of(self._federation, send.to, client_id), send.payload, send.retain)
            if send.to.channel is Channel.COMPUTE:
                sent = self.sent[client_id, send.to.id]
                sent.append(send.payload)
                self.reached[send.to.id] += len(sent) == 1
                self._on_change()

    def _now_ms(self) -> int:
        return self._shown_ms + (_system_ms() - self._epoch_ms) * self._speed


def _system_ms() -> int:
    return time.time_ns() // 1_000_000
