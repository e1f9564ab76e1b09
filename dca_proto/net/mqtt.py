"""The transport over MQTT 3.1.1, QoS 1, on aiomqtt.

One task per transport lives through connections: connect, subscribe, deliver until the connection is lost, back off,
connect again. `publish` waits for a connection and for the broker's acknowledgement; when the connection is lost under
it, it starts over on the next one. A fresh aiomqtt client per connection keeps every connection's state to itself.

The client id is the actor's id in hexadecimal (32 characters; MQTT 3.1.1 obliges brokers to take only 23, those we know
take more). With a persistent session the broker keeps subscriptions and queued messages while the actor is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import aiomqtt
import msgspec
import structlog
from paho.mqtt import client as mqtt
from paho.mqtt.reasoncodes import ReasonCode

from dca_proto.core.errors import DcaError, TransportError, UsageError
from dca_proto.net.backoff import Backoff, Retries
from dca_proto.net.inbox import Inbox, InboxLimits, closed
from dca_proto.net.parts import split
from dca_proto.net.settings import BrokerSettings
from dca_proto.net.transport import Connected, Disconnected, Message

_QOS = 1
_ANSWER_TIMEOUT_S = 10.0  # for CONNACK and SUBACK
_GRACE_S = 1.0
_SUSPICIOUS = 3  # connections in a row that ended soon
_RETRY_S = 0.05
_REFUSED = {4, 5, 134, 135}  # bad user name or password, not authorised: of MQTT 3.1.1, and as paho renames them
_SUBSCRIPTION_REFUSED = 0x80
_FILTERS_MAX = 256  # in one SUBSCRIBE; a gateway has thousands
_NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

_LIBRARY_LOG = logging.getLogger("dca.aiomqtt")
_LIBRARY_LOG.setLevel(logging.CRITICAL)  # what it warns of is meant, or comes to us as an exception

log = structlog.get_logger("dca.mqtt")


class _Client(aiomqtt.Client):
    """The library's, with three of its inner methods replaced.

    It looks after its keepalive every second: a 60th of it is often enough. Thousands of connections in one process
    would otherwise keep it from its work.

    It ends the connection over a topic that is no valid text, or has a wildcard; a broker would deliver that message
    for ever. It puts all others into a queue without bound. Here all go to the inbox at once, which drops what it must.

    It asks the loop to write to a socket by its number, a moment later. By then the number may be another socket's.
    """

    inbox: Inbox

    def _on_message(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            self.inbox.dropped["topic"] += 1
        else:
            self.inbox.offer(topic, bytes(message.payload), retained=message.retain)

    def _on_socket_register_write(self, client: mqtt.Client, userdata: Any, sock: Any) -> None:
        def write() -> None:
            try:
                client.loop_write()
            except Exception as error:  # as the library does: it ends the connection
                if not self._disconnected.done():
                    self._disconnected.set_exception(error)

        def register() -> None:
            if sock.fileno() >= 0:
                self._loop.add_writer(sock, write)

        self._loop.call_soon_threadsafe(register)

    async def _misc_loop(self) -> None:
        period_s = max(1.0, self._client.keepalive / 60)
        while self._client.loop_misc() == mqtt.MQTT_ERR_SUCCESS:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(period_s)


class MqttTransport:
    """A `Transport` over an MQTT broker.

    Args:
        settings: where and how to connect.
        client_id: the actor's id in hexadecimal.
        subscriptions: topic filters, renewed at every connection.
        rng: draws the jitter of reconnects; no secret depends on it.
        limits: bounds on what waits to be received.
        backoff: how long to wait between reconnects.
        answer_timeout_s: how long the broker may take to accept a connection.
        on_report: called with `Connected` and `Disconnected`; by default they are logged.

    Raises:
        UsageError: TLS or password files cannot be used.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        client_id: str,
        subscriptions: tuple[str, ...],
        *,
        rng: random.Random,
        limits: InboxLimits | None = None,
        backoff: Backoff | None = None,
        answer_timeout_s: float = _ANSWER_TIMEOUT_S,
        on_report: Callable[[Connected | Disconnected], None] | None = None,
    ) -> None:
        self._settings = settings
        self._client_id = client_id
        self._subscriptions = subscriptions
        self._retries = Retries(backoff or Backoff(), rng)
        self._report = on_report or _log
        self._answer_timeout_s = answer_timeout_s
        self._password = settings.read_password()
        self._tls = settings.tls_context()
        self._inbox = Inbox(subscriptions, limits)
        self._client: aiomqtt.Client | None = None
        self._changed = asyncio.Event()  # connected, or failed for good
        self._unacknowledged: set[asyncio.Timeout] = set()
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._inbox.check()
        try:
            client = await self._connect()
        except TransportError as error:
            client = await self._connect_again(error, final=UsageError)
        else:
            self._report(Connected(self._settings.url))
        self._keeper = asyncio.create_task(self._keep_connected(client))
        self._keeper.add_done_callback(self._keeper_ended)
        await asyncio.sleep(0)  # from its first turn on, the keeper cleans up after itself even when cancelled

    async def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        for part in split(payload, self._settings.part_bytes_max, retain=retain):
            while not await self._publish_part(topic, part, retain):
                pass

    async def receive(self) -> Message:
        return await self._inbox.take()

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        self._fail(closed())

    @property
    def dropped(self) -> Counter[str]:
        """How many received payloads were dropped, by reason."""
        return self._inbox.dropped

    async def _publish_part(self, topic: str, part: bytes, retain: bool) -> bool:
        client = await self._connected()
        scope = asyncio.timeout(None)  # ended when the connection is; on a living one MQTT forbids to send again
        try:
            async with scope:
                self._unacknowledged.add(scope)
                try:
                    await client.publish(topic, part, _QOS, retain, timeout=math.inf)
                finally:
                    self._unacknowledged.discard(scope)
        except TimeoutError:
            return False
        except aiomqtt.MqttError:  # the connection is going down: let its keeper notice
            await asyncio.sleep(_RETRY_S)
            return False
        return True

    async def _connected(self) -> aiomqtt.Client:
        while self._client is None:
            self._inbox.check()
            await self._changed.wait()
        return self._client

    async def _keep_connected(self, client: aiomqtt.Client) -> None:
        """Deliver, and connect again for ever, also to a broker that refuses us now: it may have run out of memory."""
        now = asyncio.get_running_loop().time
        while True:
            since = now()
            try:
                lost = await self._deliver(client)
            finally:
                await _leave(client)
            self._retries.ended(now() - since)
            client = await self._connect_again(lost)

    async def _deliver(self, client: aiomqtt.Client) -> TransportError:
        """Deliver until the connection is lost, let publishes that wait for an answer start over, and say why."""
        self._client = client
        self._changed.set()
        try:
            await anext(client.messages)  # none comes: it raises what ends the connection
            reason = "it ended"
        except aiomqtt.MqttError as error:
            reason = _in_words(error)
        finally:
            self._client = None
            self._changed.clear()
            now = asyncio.get_running_loop().time()
            for scope in self._unacknowledged:
                scope.reschedule(now)
        return TransportError(f"lost the connection to broker {self._settings.url}: {reason}")

    async def _connect_again(self, reason: DcaError, *, final: type[DcaError] | tuple[()] = ()) -> aiomqtt.Client:
        """Report the loss, try until there is a connection, and report that. Raises what is `final`."""
        now = asyncio.get_running_loop().time
        since, told = now(), ""
        while True:
            if str(reason) != told:
                told = str(reason)
                self._report(Disconnected(self._settings.url, told + self._suspicion()))
            await asyncio.sleep(self._retries.wait_s())
            try:
                client = await self._connect()
            except final:
                raise
            except DcaError as error:
                reason = error
            else:
                self._report(Connected(self._settings.url, now() - since))
                return client

    def _suspicion(self) -> str:
        """What connections that all end soon may mean."""
        if self._retries.short < _SUSPICIOUS:
            return ""
        return f"; {self._retries.short} connections have ended soon: does another process use this identity?"

    async def _connect(self) -> aiomqtt.Client:
        client = self._new_client()
        try:
            await _enter(client)
        except aiomqtt.MqttError as error:
            raise self._explained(error) from None
        try:
            codes = await _subscribe_all(client, self._subscriptions)
        except aiomqtt.MqttError as error:
            await _leave(client)
            raise self._explained(error) from None
        except asyncio.CancelledError:
            await _leave(client)
            raise
        if any(_value(code) >= _SUBSCRIPTION_REFUSED for code in codes):
            await _leave(client)
            raise UsageError(f"{self._settings.url} refused subscriptions of {self._client_id}: see its access list")
        return client

    def _new_client(self) -> aiomqtt.Client:
        client = _Client(
            self._settings.host,
            self._settings.port,
            identifier=self._client_id,
            username=self._settings.username,
            password=self._password,
            clean_session=self._settings.session_expiry_s == 0,
            keepalive=self._settings.keepalive_s,
            max_inflight_messages=0,  # no limit: the caller bounds what it publishes at once
            timeout=self._answer_timeout_s,
            logger=_LIBRARY_LOG,
            tls_context=self._tls,
            socket_options=[_NODELAY],
        )
        client.inbox = self._inbox
        client.pending_calls_threshold = 1 << 16  # many publishes in flight are meant
        return client

    def _explained(self, error: aiomqtt.MqttError) -> DcaError:
        url = self._settings.url
        if isinstance(error, aiomqtt.MqttCodeError) and _value(error.rc) in _REFUSED:
            name = self._settings.username or "none given"
            return UsageError(f"broker {url} refused user name ({name}) or password: check username and password_file")
        reason = _in_words(error)
        if "timed out" in reason:
            return TransportError(f"cannot reach broker at {url}: no answer; does it speak MQTT, and TLS as we do?")
        advice = "check ca" if "CERTIFICATE" in reason else "is it running?"
        return TransportError(f"cannot reach broker at {url}: {reason}; {advice}")

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        """An error of ours ends the transport, and so the actor: it must not seem to be connected for ever."""
        if not keeper.cancelled():
            self._fail(TransportError(f"the connection was given up: {keeper.exception()!r}"))

    def _fail(self, failure: DcaError) -> None:
        self._inbox.fail(failure)
        self._changed.set()


async def require_broker(url: str) -> None:
    """See that a broker for a trial answers, before anything is started that would wait for it.

    Raises:
        TransportError: it cannot be reached. UsageError: it refuses us.
    """
    name = os.urandom(16).hex()
    settings = BrokerSettings(url=url, session_expiry_s=0)
    probe = MqttTransport(settings, name, (name,), rng=random.Random(), answer_timeout_s=_ANSWER_TIMEOUT_S)  # noqa: S311
    await _leave(await probe._connect())


def _log(fact: Connected | Disconnected) -> None:
    """A loss is a warning."""
    tell = log.warning if isinstance(fact, Disconnected) else log.info
    tell(type(fact).__name__, **msgspec.structs.asdict(fact))


def _in_words(error: aiomqtt.MqttError) -> str:
    reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
    return reason[:1].lower() + reason[1:]


def _value(code: int | ReasonCode | None) -> int:
    return code.value if isinstance(code, ReasonCode) else code or 0


async def _enter(client: aiomqtt.Client) -> None:
    """Connect. The library connects in a thread, which cannot be cancelled: give it a moment, then undo."""
    entering = asyncio.ensure_future(client.__aenter__())
    try:
        await asyncio.shield(entering)
    except asyncio.CancelledError:
        await asyncio.wait([entering], timeout=_GRACE_S)
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        await _leave(client)
        raise
    except aiomqtt.MqttError:
        await _leave(client)
        raise


async def _subscribe_all(client: aiomqtt.Client, topic_filters: tuple[str, ...]) -> list[int | ReasonCode]:
    """Subscribe to any number of filters, in packets of limited size."""
    codes: list[int | ReasonCode] = []
    for first in range(0, len(topic_filters), _FILTERS_MAX):
        codes += await _subscribe(client, topic_filters[first : first + _FILTERS_MAX])
    return codes


async def _subscribe(client: aiomqtt.Client, topic_filters: tuple[str, ...]) -> Sequence[int | ReasonCode]:
    """Subscribe. The library alone would wait out its timeout for the answer even where the connection is lost."""
    subscribing = asyncio.ensure_future(client.subscribe([(topic_filter, _QOS) for topic_filter in topic_filters]))
    lost = client._disconnected
    either: tuple[asyncio.Future[Any], ...] = (subscribing, lost)
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            raise aiomqtt.MqttError("connection lost while subscribing") from lost.exception()
        return subscribing.result()
    finally:
        subscribing.cancel()
        await asyncio.gather(subscribing, return_exceptions=True)


async def _leave(client: aiomqtt.Client) -> None:
    """Disconnect, also from a connection half made, without waiting for an answer that will not come."""
    client.timeout = 0.0
    with contextlib.suppress(aiomqtt.MqttError):
        await client.__aexit__(None, None, None)
    for _ in range(3):  # the library's housekeeping task ends in these turns of the loop
        await asyncio.sleep(0)
