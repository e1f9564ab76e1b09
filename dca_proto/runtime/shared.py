"""Shares one broker connection among many actors: for a gateway of devices, or thousands of clients on one machine.

    members' publish --> one Transport --> broker
    broker --> one Transport --> by topic filter --> each member's own bounded inbox

Each member is an ordinary `Transport`. The connection subscribes once to each filter of any member, so a broadcast
crosses it once and goes to all members that subscribe. It opens with the first member and closes with the last; a
member that opens after that connects anew.

The connection's owner sees what a broker sees: ciphertexts and topics. If the broker lets a user write only under its
own id, it must let this user write under the ids of all members.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from dca_proto.errors import DcaError, TransportError, UsageError
from dca_proto.protocol.wire.topics import FilterTree
from dca_proto.runtime.transport import InboxLimits, Pending, Transport, closed


class SharedConnection:
    """A connection that many members share. `connect` makes an unopened transport from all topic filters."""

    def __init__(self, connect: Callable[[tuple[str, ...]], Transport]) -> None:
        self._connect = connect
        self._filters: dict[str, None] = {}
        self._listening: FilterTree[Pending] = FilterTree()
        self._inboxes: list[Pending] = []
        self._members = 0  # open members
        self._connection: Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None

    def member(self, subscriptions: tuple[str, ...], limits: InboxLimits | None = None) -> Transport:
        """Make the transport of one member with its topic filters. Make all members before the first one opens.

        Raises `UsageError` if the connection is open: its subscriptions are fixed.
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
        """Count a member as open and connect, or wait for another member's attempt. Raises as `Transport.open`."""
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
        """Count a member as closed; the last one closes the connection."""
        self._members -= 1
        if self._members:
            return
        opening, self._opening = self._opening, None
        assert opening is not None, "a member enters before it leaves"
        if _has_failed(opening):
            return  # every member got the error and may try again
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

    def publish(self, topic: str, payload: bytes, retain: bool, expires_s: float | None) -> Awaitable[None]:
        """Publish for a member."""
        assert self._connection is not None, "an open member has an open connection"
        return self._connection.publish(topic, payload, retain, expires_s)

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
                await asyncio.sleep(0)  # let members take their messages
        except DcaError as error:  # the connection closed or failed
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
        """Counts of dropped messages to this member, by reason."""
        return self.inbox.dropped

    async def open(self) -> None:
        self.inbox.check()
        await self._shared.enter()
        self._is_open = True

    def publish(
        self, topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None
    ) -> Awaitable[None]:
        self.inbox.check()
        if not self._is_open:
            raise TransportError("the transport is not open")
        return self._shared.publish(topic, payload, retain, expires_s)

    async def close(self) -> None:
        self.inbox.fail(closed())
        if self._is_open:
            self._is_open = False
            await self._shared.leave()
