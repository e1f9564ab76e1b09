"""One connection to the broker for many actors: a gateway that serves devices, or thousands of clients on one machine.

    members' publish --> one Transport --> broker
    broker --> one Transport --> by topic filter --> each member's own bounded inbox --> members' receive

Each member is a `Transport` like any other. The connection subscribes to what any member subscribes to, each filter
once, so a broadcast crosses it once and is handed to all who listen. It is opened with the first member and closed with
the last; who opens later connects anew.

Who runs the connection sees what a broker sees, ciphertexts and topics, and no more. A broker that lets each user write
only under its own id must let this one write under the ids of all members.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from dca_proto.errors import DcaError, TransportError, UsageError
from dca_proto.protocol.wire.topics import FilterTree
from dca_proto.runtime.transport import InboxLimits, Message, Pending, Transport, closed


class SharedConnection:
    """A connection that many members share; `connect` makes it, not yet open, from all topic filters."""

    def __init__(self, connect: Callable[[tuple[str, ...]], Transport]) -> None:
        self._connect = connect
        self._filters: dict[str, None] = {}
        self._listening: FilterTree[Pending] = FilterTree()
        self._inboxes: list[Pending] = []
        self._members = 0  # that are open
        self._connection: Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None

    def member(self, subscriptions: tuple[str, ...], limits: InboxLimits | None = None) -> Transport:
        """A transport of one member, with its topic filters. All are to be made before the first is opened.

        Raises `UsageError` if the connection is open: its subscriptions are settled.
        """
        if self._connection is not None:
            raise UsageError("a shared connection takes no new member once it is open; make all members first")
        inbox = Pending(limits)
        self._inboxes.append(inbox)
        for topic_filter in subscriptions:
            self._filters[topic_filter] = None
            self._listening.add(topic_filter, inbox)
        return _Member(self, inbox)

    async def enter(self) -> None:
        """A member opens: connect, or wait for who does. Raises as `Transport.open`."""
        if self._opening is None or _has_failed(self._opening):
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        self._members += 1
        try:
            await asyncio.shield(opening)
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """A member closes; the last one closes the connection."""
        self._members -= 1
        if self._members:
            return
        opening, self._opening = self._opening, None
        assert opening is not None, "who leaves has entered"
        if _has_failed(opening):
            return  # everybody has got the error, and may try again
        reader, self._reader = self._reader, None
        connection, self._connection = self._connection, None
        tasks = [task for task in (opening, reader) if task is not None]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.wait(tasks)
        finally:
            if connection is not None:
                await connection.close()

    def publish(self, topic: str, payload: bytes, retain: bool) -> Awaitable[None]:
        """Publish for a member."""
        assert self._connection is not None, "an open member has an open connection"
        return self._connection.publish(topic, payload, retain)

    async def _open(self) -> None:
        if self._connection is None:
            self._connection = self._connect(tuple(self._filters))
        await self._connection.open()
        self._reader = asyncio.create_task(self._hand_out(self._connection))

    async def _hand_out(self, connection: Transport) -> None:
        try:
            while True:
                message = await connection.inbox.take()
                for inbox in dict.fromkeys(self._listening.matching(message.topic)):
                    inbox.put(message)
                await asyncio.sleep(0)  # while more waits, members take theirs
        except DcaError as error:  # the connection's own end
            for inbox in self._inboxes:
                inbox.fail(error)


def _has_failed(opening: asyncio.Task[None]) -> bool:
    return opening.done() and not opening.cancelled() and opening.exception() is not None


class _Member:
    """One member's `Transport`."""

    def __init__(self, shared: SharedConnection, inbox: Pending) -> None:
        self._shared = shared
        self.inbox = inbox
        self._is_open = False

    @property
    def dropped(self) -> Counter[str]:
        """How many messages to this member were dropped, by reason."""
        return self.inbox.dropped

    async def open(self) -> None:
        self.inbox.check()
        await self._shared.enter()
        self._is_open = True

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> Awaitable[None]:
        self.inbox.check()
        if not self._is_open:
            raise TransportError("the transport is not open")
        return self._shared.publish(topic, payload, retain)

    async def receive(self) -> Message:
        return await self.inbox.take()

    async def close(self) -> None:
        self.inbox.fail(closed())
        if self._is_open:
            self._is_open = False
            await self._shared.leave()
