"""The embedded broker, for machines without mosquitto: amqtt as a process (``python -m dca_proto.runtime.embedded``).

It accepts every connection, without TLS or passwords: it is for trials on one machine. It exits at the end of its
standard input, so it never outlives the process that started it. It keeps nothing on disk. It drops a message that the
receiver does not acknowledge within five seconds, or before the receiver reconnects. The protocol's receipts and
resends make up for such losses.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

from amqtt.broker import Broker
from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session

from dca_proto.protocol.wire.topics import FilterTree


class TrustAll(BaseAuthPlugin):  # type: ignore[misc]
    """Lets everyone in and keeps sessions. amqtt's own anonymous plugin would forget them at disconnect."""

    async def authenticate(self, *, session: Session) -> bool:
        return True


class _Subscriptions(dict[str, list[tuple[Session, int]]]):
    """Iterates over copies: amqtt awaits while it iterates, and other clients subscribe in the meantime."""

    def __iter__(self) -> Iterator[str]:
        return iter(list(super().__iter__()))

    def items(self) -> Any:
        return list(super().items())


class Embedded(Broker):  # type: ignore[misc]
    """amqtt with two changes for swarms. Both override its private methods.

    It indexes the topic filters; amqtt itself compares every message with every filter, level by level. If a later
    amqtt no longer calls `_matches`, it is only as slow as before.

    A device may reconnect before its old connection has ended. Here its session counts as connected as long as the
    newest connection lives, and a filter belongs to the client's newest session. In amqtt itself, any connection's end
    ends the session, and of two sessions opened at once the first keeps the filter: delivery stops.
    """

    def __init__(self, configuration: dict[str, Any]) -> None:
        super().__init__(configuration)
        self._subscriptions = _Subscriptions()
        self._ended: WeakSet[Any] = WeakSet()  # handlers of connections
        self._index: FilterTree[str] = FilterTree()
        self._topic = ""
        self._matched: frozenset[str] = frozenset()
        self._retained: FilterTree[None] = FilterTree()  # topics that have, or once had, a retained message

    async def add_subscription(self, subscription: tuple[str, int], session: Session) -> int:
        """Index the filter, and take it from an older session of the same client."""
        subscribers, client = self._subscriptions.get(subscription[0], ()), session.client_id
        has_older = any(other.client_id == client and other is not session for other, _ in subscribers)
        if has_older and self._newest(session)[0] is session:
            self._del_subscription(subscription[0], session)
        code = await super().add_subscription(subscription, session)
        self._index.add(subscription[0], subscription[0])
        self._topic = ""
        return int(code)

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        """Send retained messages only for the session's own filters; amqtt sends a new session those of all filters.

        Every client of a swarm has a retained Hello, and amqtt compares all of them with each new filter.
        """
        is_own = any(subscriber is session for subscriber, _ in self._subscriptions.get(subscription[0], ()))
        if is_own and ("#" in subscription[0] or self._retained.has_topic(subscription[0])):
            await super()._publish_retained_messages_for_subscription(subscription, session)

    async def retain_message(
        self,
        source_session: Session | None,
        topic_name: str | None,
        data: bytes | bytearray | None,
        qos: int | None = None,
    ) -> None:
        """Retain the message for later subscribers, and index its topic."""
        if topic_name is not None:
            self._retained.add(topic_name, None)
        await super().retain_message(source_session, topic_name, data, qos)

    async def _publish_session_retained_messages(self, session: Session) -> None:
        """Send the messages that waited for the session, when a connection starts.

        amqtt would mark them as retained, and the receiver would drop them. An older connection may have ended while
        this one was made, so set the session's state first.
        """
        self._reconnect(session)
        handler, sends = self._get_handler(session), []
        while handler and not session.retained_messages.empty():
            message = session.retained_messages.get_nowait()
            sends.append(handler.mqtt_publish(message.topic, message.data, message.qos, retain=False))
        await asyncio.gather(*sends, return_exceptions=True)

    async def _handle_disconnect(self, client_session: Session, handler: Any, disconnect_waiter: Any) -> None:
        """End a connection, and its session too unless a newer connection exists."""
        await super()._handle_disconnect(client_session, handler, disconnect_waiter)
        self._ended.add(handler)
        self._reconnect(client_session)

    def _reconnect(self, session: Session) -> None:
        """Mark a session as connected if its newest connection lives."""
        newest, handler = self._newest(session)
        if newest is session and handler not in self._ended and not session.transitions.is_connected():
            session.transitions.connect()

    def _newest(self, session: Session) -> Any:
        """Return the client's newest session and the handler of its newest connection; (None, None) if deleted."""
        return self._sessions.get(session.client_id, (None, None))

    def _matches(self, topic: str, a_filter: str) -> bool:
        if "#" in a_filter or topic.startswith("$"):
            return bool(super()._matches(topic, a_filter))
        if topic != self._topic:
            self._topic, self._matched = topic, frozenset(self._index.matching(topic))
        return a_filter in self._matched


def configuration(host: str, port: int, session_expiry_s: int) -> dict[str, Any]:
    """Return amqtt's configuration: one listener, and `TrustAll` as the only plugin."""
    return {
        "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}},
        "plugins": {"dca_proto.runtime.embedded.TrustAll": {}},
        "session_expiry_interval": session_expiry_s,
    }


async def serve(host: str, port: int, session_expiry_s: int) -> None:
    """Run until SIGTERM; the end of standard input raises it too. All state is in memory, so nothing is saved."""
    broker = Embedded(configuration(host, port, session_expiry_s))
    await broker.start()
    asyncio.get_running_loop().add_reader(sys.stdin, signal.raise_signal, signal.SIGTERM)
    await asyncio.Event().wait()


def main() -> None:
    """Run the embedded broker's command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--session-expiry-s", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    asyncio.run(serve(arguments.host, arguments.port, arguments.session_expiry_s))


if __name__ == "__main__":
    main()
