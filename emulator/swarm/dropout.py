"""Clients that vanish: in a round nothing that they contribute or release gets through; in the next they are back.

The actors are the production ones and know nothing of it. The connection swallows what a dropped client sends, as a
device does that has lost its network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from dca_proto.protocol.effects import Channel
from dca_proto.runtime.transport import Transport
from inference.datasets import stream


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


class Dropouts:
    """Which K of the clients drop in which round, drawn anew for each from the stream ``seed/drop``.

    Args:
        clients: ids. count: K. seed: of the draws.
    """

    def __init__(self, clients: Sequence[bytes], count: int, seed: int) -> None:
        self._clients = list(clients)
        self._count = count
        self._rng = stream(seed, "drop")

    def next_round(self, invited: Collection[bytes] = ()) -> frozenset[str]:
        """Draw who drops in the round that is announced next: ids in hexadecimal.

        Args:
            invited: the clients that the round is for; nobody named is everybody.
        """
        named = frozenset(invited)
        asked = [client for client in self._clients if not named or client in named]
        chosen = self._rng.choice(len(asked), self._count, replace=False)
        return frozenset(asked[index].hex() for index in chosen)


class SwarmTransport:
    """One actor's connection in a swarm: opened few at a time, so that the broker is not stormed, and cut by dropouts.

    Args:
        inner: the real connection. ramp: how many may connect at once. on_open: called once connected.
        swallows: whether a message on a topic is lost.

    Attributes:
        swallowed_messages, swallowed_bytes: what was lost so far.
    """

    def __init__(
        self, inner: Transport, ramp: asyncio.Semaphore, on_open: Callable[[], None], swallows: Callable[[str], bool]
    ) -> None:
        self.inbox = inner.inbox
        self._inner = inner
        self._ramp = ramp
        self._on_open = on_open
        self._swallows = swallows
        self.swallowed_messages = 0
        self.swallowed_bytes = 0

    async def open(self) -> None:
        async with self._ramp:
            await self._inner.open()
        self._on_open()

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> Awaitable[None]:
        if not self._swallows(topic):
            return self._inner.publish(topic, payload, retain)
        self.swallowed_messages += 1
        self.swallowed_bytes += len(payload)
        return asyncio.sleep(0)

    async def close(self) -> None:
        await self._inner.close()
