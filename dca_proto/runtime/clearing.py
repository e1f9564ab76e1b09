"""Makes a broker forget the messages that it retains below a topic; `dca broker clear` calls it.

A broker with an access list accepts any subscription, and then keeps silent about what the user may not read. So each
look first leaves a message of its own, on a topic that nobody else uses, and must see it.
"""

from __future__ import annotations

import asyncio
import secrets

import msgspec

from dca_proto.errors import TransportError, UsageError
from dca_proto.runtime.aiomqtt_connection import AiomqttConnection
from dca_proto.runtime.connection import NUMBERS, REFUSED, Connect, ConnectRefused, Listener, Published, in_words
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.wording import counted

_QUIET_S = 1.0  # a broker sends what it retains at once; so long after the last message, all have arrived
_TIMEOUT_S = 20.0
_LOOKS = 3  # an actor that still runs may publish meanwhile


async def clear_retained(
    settings: BrokerSettings, root: str, quiet_s: float = _QUIET_S, senders: frozenset[str] | None = None
) -> int:
    """Remove the retained messages on topics below `root`, and return how many topics had one.

    Args:
        settings: where and how to connect; the session is a new one, and ends with the connection.
        quiet_s: no message for so long means that all have arrived.
        senders: ids in hexadecimal of those whose messages are removed; None for everybody's.

    Raises:
        UsageError: the broker refuses the user or the topics, or messages remain or come back.
        TransportError: the broker cannot be reached, or the connection ended.
    """
    removed: set[str] = set()
    for _ in range(_LOOKS):
        found = await _clear_once(settings, root, quiet_s, senders)
        if not found:
            return len(removed)
        removed |= found
    raise UsageError(
        f"{counted(len(found), 'retained message')} came back at {settings.url}: stop the federation's actors, and "
        "clear as a user who may write all of its topics"
    )


async def _clear_once(settings: BrokerSettings, root: str, quiet_s: float, senders: frozenset[str] | None) -> set[str]:
    """Remove what is retained, and return the topics that had a message."""
    topics: set[str] = set()
    own = f"{root}/clear/all/{secrets.token_hex(16)}"
    events: asyncio.Queue[int] = asyncio.Queue()  # 0 for a retained message, else the number of an acknowledged publish

    def deliver(published: Published) -> bool:
        if published.is_retained and published.topic is not None and published.payload:  # else of an actor that runs
            topics.add(published.topic)
            events.put_nowait(0)
        return True

    hello = Connect(
        msgspec.structs.replace(settings, session_expiry_s=0), f"dca-clear-{secrets.token_hex(6)}",
        settings.username, settings.read_password(), settings.tls_context(), _TIMEOUT_S,
    )  # fmt: skip
    connection = AiomqttConnection(hello, Listener(deliver, events.put_nowait))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await connection.open()
            connection.publish(1, own, b"seen?", True, None)
            await _next(connection, events, _TIMEOUT_S)
            codes = await connection.subscribe([f"{root}/#"])
        await _silence(connection, events, quiet_s)
        if max(codes) >= REFUSED or own not in topics:
            user = settings.username or "a user without a name"
            raise UsageError(
                f"{settings.url} does not let {user} read and write all topics of the federation; clear as its operator"
            )
        chosen = sorted(topic for topic in topics if topic == own or _is_by(topic, senders))
        under_way: set[int] = set()
        for place, topic in enumerate(chosen):
            number = place % NUMBERS + 1
            connection.publish(number, topic, b"", True, None)
            under_way.add(number)
            while len(under_way) >= connection.unacknowledged_max:
                under_way.discard(await _next(connection, events, _TIMEOUT_S))
        while under_way:
            under_way.discard(await _next(connection, events, _TIMEOUT_S))
        return {*chosen} - {own}
    except ConnectRefused as error:
        raise UsageError(f"{settings.url}: {error}; give the operator's --password-file") from None
    except TimeoutError:
        raise TransportError(f"{settings.url} does not answer within {_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise TransportError(f"{settings.url}: {in_words(error)}; is the broker up?") from None
    finally:
        await connection.leave()


def _is_by(topic: str, senders: frozenset[str] | None) -> bool:
    """Return True if one of these may send to a topic, which ends in its sender's id."""
    return senders is None or topic.rpartition("/")[2] in senders


async def _silence(connection: AiomqttConnection, events: asyncio.Queue[int], quiet_s: float) -> None:
    """Wait until no retained message has come for so long."""
    while True:
        try:
            await _next(connection, events, quiet_s)
        except TimeoutError:
            return


async def _next(connection: AiomqttConnection, events: asyncio.Queue[int], timeout_s: float) -> int:
    """Return the next event. Raises `TimeoutError`, or `TransportError` if the connection ended."""
    coming = asyncio.create_task(events.get())
    try:
        waited: list[asyncio.Future[object]] = [coming, connection.lost]  # type: ignore[list-item]
        done, _ = await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if coming in done:
            return coming.result()
        if done:
            raise TransportError(f"the connection was lost: {connection.lost.result()}")
        raise TimeoutError
    finally:
        coming.cancel()
