"""The embedded broker: amqtt as a process (``python -m dca_proto.runtime.embedded``), if mosquitto is missing.

It serves whoever reaches its port, without TLS and passwords: for trials on one machine. It ends when its standard
input does, so that it never outlives what started it. It forgets all at its end, and drops a message that its receiver
does not acknowledge within five seconds or before its device connects anew: the protocol's receipts and resends make up
for these.
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
    """Lets everyone in, and keeps sessions: amqtt's own anonymous plugin would forget them at disconnect."""

    async def authenticate(self, *, session: Session) -> bool:
        return True


class _Subscriptions(dict[str, list[tuple[Session, int]]]):
    """amqtt iterates over its subscriptions with awaits in between, while others subscribe: give it a copy."""

    def __iter__(self) -> Iterator[str]:
        return iter(list(super().__iter__()))

    def items(self) -> Any:
        return list(super().items())


class Embedded(Broker):  # type: ignore[misc]
    """amqtt, made fit for swarms in two ways that rest on its inner methods.

    It has an index of its filters: without it, every message is compared with every filter, level by level. Should a
    later amqtt not ask `_matches` any more, it is only as slow as before.

    A device may connect again before its old connection has ended. Here its session counts as connected as long as
    the newest connection lives, and a filter is that of its newest session. amqtt ends the session with whichever
    connection ends, and leaves a filter to the first of two sessions that came at once: nothing more is delivered.
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
        """File the filter, too; filters with ``#`` stay amqtt's own business."""
        filed, device = self._subscriptions.get(subscription[0], ()), session.client_id
        is_anothers = any(one.client_id == device and one is not session for one, _ in filed)
        if is_anothers and self._newest(session)[0] is session:
            self._del_subscription(subscription[0], session)
        code = await super().add_subscription(subscription, session)
        self._index.add(subscription[0], subscription[0])
        self._topic = ""
        return int(code)

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        """Retained messages go to who subscribed; amqtt would give a new session those of everybody's filters.

        Each client of a swarm has a retained Hello, and amqtt compares them all with each filter that anybody brings.
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
        """Keep it for who subscribes later, and file its topic."""
        if topic_name is not None:
            self._retained.add(topic_name, None)
        await super().retain_message(source_session, topic_name, data, qos)

    async def _publish_session_retained_messages(self, session: Session) -> None:
        """What waited for a session, at the start of a connection; an older one may have ended while it was made.

        amqtt would mark it as retained, which it is not: its receiver would drop it.
        """
        self._reconnect(session)
        handler, sends = self._get_handler(session), []
        while handler and not session.retained_messages.empty():
            waited = session.retained_messages.get_nowait()
            sends.append(handler.mqtt_publish(waited.topic, waited.data, waited.qos, retain=False))
        await asyncio.gather(*sends, return_exceptions=True)

    async def _handle_disconnect(self, client_session: Session, handler: Any, disconnect_waiter: Any) -> None:
        """End a connection, and its session with it where there is no newer one."""
        await super()._handle_disconnect(client_session, handler, disconnect_waiter)
        self._ended.add(handler)
        self._reconnect(client_session)

    def _reconnect(self, session: Session) -> None:
        """Have a session count as connected if its newest connection lives."""
        newest, handler = self._newest(session)
        if newest is session and handler not in self._ended and not session.transitions.is_connected():
            session.transitions.connect()

    def _newest(self, session: Session) -> Any:
        """The newest session of its client id, and the newest connection's handler; nothing once it is deleted."""
        return self._sessions.get(session.client_id, (None, None))

    def _matches(self, topic: str, a_filter: str) -> bool:
        if "#" in a_filter or topic.startswith("$"):
            return bool(super()._matches(topic, a_filter))
        if topic != self._topic:
            self._topic, self._matched = topic, frozenset(self._index.matching(topic))
        return a_filter in self._matched


def configuration(host: str, port: int, session_expiry_s: int) -> dict[str, Any]:
    """amqtt's configuration: one listener, no plugins but the door."""
    return {
        "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}},
        "plugins": {"dca_proto.runtime.embedded.TrustAll": {}},
        "session_expiry_interval": session_expiry_s,
    }


async def serve(host: str, port: int, session_expiry_s: int) -> None:
    """Run until SIGTERM, which the end of standard input raises, too. All is in memory: there is nothing to save."""
    broker = Embedded(configuration(host, port, session_expiry_s))
    await broker.start()
    asyncio.get_running_loop().add_reader(sys.stdin, signal.raise_signal, signal.SIGTERM)
    await asyncio.Event().wait()


def main() -> None:
    """The command line of the embedded broker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--session-expiry-s", type=int, required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    asyncio.run(serve(given.host, given.port, given.session_expiry_s))


if __name__ == "__main__":
    main()
