"""A connection by aiomqtt, the usual MQTT client for asyncio. Only its public members are used, but in `_Client`.

aiomqtt runs paho-mqtt within the event loop. What they do otherwise than we need, and the answer here:

- A message is acknowledged once it is in aiomqtt's queue. Our queue passes it on at once, so it is delivered before,
  and if it is refused, `_Client` acknowledges no more.
- A topic that MQTT forbids ends the connection, and its socket would stay open. Entering the client again closes it, in
  a thread. So `_Client` first ends the watching of it, which only the event loop's own thread may do.
- Connecting blocks a thread of the default pool: at most 5 s for TCP, and as long for TLS. `leave` waits for it.
- A loss before CONNACK is not noticed: the transport's timeout ends the attempt.
- A client without an answer to CONNECT keeps its socket. Leaving it as if it had connected closes that.
- The socket of a failed TLS handshake waits for the garbage collector: ours closes itself.
- With MQTT 5, the broker's limit on unacknowledged publishes is hidden: ten are under way, fewer than any default.
- TCP_NODELAY is off: it is set before the first answer.
- Before Python 3.12, it waits in a way that can swallow a cancellation. So only tasks of our own enter and leave it.
- A socket is watched for writing one turn of the event loop late. It may be closed by then, and its number be that of
  another socket. `_Client` looks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, cast

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from dca_proto.errors import TransportError
from dca_proto.runtime.connection import (
    FILTERS_MAX,
    PACKET_BYTES_MAX,
    UNACKNOWLEDGED_MAX,
    Connect,
    ConnectRefused,
    Listener,
    Published,
    end_of,
)

_GRACE_S = 1.0
_WRITE_S = 0.05  # more than a turn of the event loop, which writes DISCONNECT and closes the socket
_KEEPALIVE_TIMEOUT, _UNSPECIFIED = 141, 128  # reason codes
_RECEIVE_MAXIMUM = 10
"""How many publishes are under way with MQTT 5. aiomqtt hides the broker's limit; by default, that is 10 or more."""
_logger = logging.getLogger("dca.aiomqtt")
_logger.setLevel(logging.CRITICAL)  # the transport reports what is wrong, once, and without what came from outside


class AiomqttConnection:
    """A `Connection` by aiomqtt. Each has a client of its own, so that nothing of an earlier connection is sent."""

    def __init__(self, hello: Connect, listener: Listener) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.unacknowledged_max = UNACKNOWLEDGED_MAX if hello.version == "3.1.1" else _RECEIVE_MAXIMUM
        self._listener = listener
        self._keepalive_s = hello.settings.keepalive_s
        self._is_version_5 = hello.version == "5"
        self._has_socket = asyncio.Event()
        self._entering: asyncio.Task[aiomqtt.Client] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._is_stuck = False  # an exception ended the connection, and left its socket open
        self.certificate_end_ms: int | None = None
        if hello.tls is not None:
            seen = {"seen": staticmethod(self._take_certificate)}
            hello.tls.sslsocket_class = type("_OwnSocket", (_ClosingSocket,), seen)
        self._client = _Client(
            hello.settings.host,
            hello.settings.port,
            username=hello.username,
            password=hello.password,
            logger=_logger,
            identifier=hello.client_id,
            queue_type=_queue_type(listener, lambda: self._client.acknowledge_no_more()),
            will=None if hello.will is None else aiomqtt.Will(hello.will, b""),
            **_session(hello),
            **_route(hello),
            timeout=hello.answer_timeout_s,
            keepalive=self._keepalive_s,
            max_inflight_messages=UNACKNOWLEDGED_MAX,
            tls_context=hello.tls,
            socket_options=cast(Any, [_NoDelay(self._has_socket)]),
        )
        self._client.pending_calls_threshold = UNACKNOWLEDGED_MAX

    def _take_certificate(self, certificate: Mapping[str, Any] | None) -> None:
        self.certificate_end_ms = end_of(certificate)

    async def open(self) -> None:
        self._entering = asyncio.create_task(self._client.__aenter__())
        try:
            await asyncio.shield(self._entering)  # its thread cannot be cancelled: `leave` waits for it
        except aiomqtt.MqttCodeError as error:
            if isinstance(error.rc, ReasonCode):
                raise ConnectRefused(error.rc.value, str(error.rc)) from None
            raise TransportError(str(error)) from None
        except aiomqtt.MqttError as error:
            cause = error.__context__
            raise cause if isinstance(cause, OSError) else TransportError(str(error)) from None
        self._watching = asyncio.create_task(self._watch())

    async def subscribe(self, topic_filters: Sequence[str]) -> Sequence[int]:
        codes: list[int] = []
        for start in range(0, len(topic_filters), FILTERS_MAX):
            filters = [(topic_filter, 1) for topic_filter in topic_filters[start : start + FILTERS_MAX]]
            asking: asyncio.Future[Sequence[Any]] = asyncio.create_task(self._client.subscribe(filters))
            try:
                either: list[asyncio.Future[Any]] = [asking, self.lost]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not asking.done() or asking.exception():
                    reason = self.lost.result() if self.lost.done() else str(asking.exception())
                    raise TransportError(f"connection lost while subscribing: {reason}")
            finally:
                asking.cancel()
            codes += [code.value if isinstance(code, ReasonCode) else code for code in asking.result()]
        return codes

    def publish(self, number: int, topic: str, payload: bytes, retain: bool, expiry_s: int | None) -> None:
        sending = self._loop.create_task(self._publish(number, topic, payload, retain, expiry_s))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    async def leave(self) -> None:
        """Disconnect, even before the connection is complete. Waits for a thread that connects, at most 10 s.

        A task that is cancelled meanwhile goes on until then, and is cancelled then.
        """
        await _whole(self._leave())

    async def _leave(self) -> None:
        tasks: set[asyncio.Task[Any]] = {*self._sending, *filter(None, [self._watching])}
        if self._entering is not None:
            if not self._entering.done():
                connected = asyncio.create_task(self._has_socket.wait())
                await asyncio.wait({self._entering, connected}, return_when=asyncio.FIRST_COMPLETED)
                tasks.add(connected)
            is_connected = self._watching is not None
            is_closed = await self._exit(_GRACE_S if is_connected else _WRITE_S)
            if is_connected and (self._is_stuck or not is_closed):
                await self._close_by_connecting()
            tasks.add(self._entering)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _exit(self, timeout_s: float) -> bool:
        """Leave the client, and return False if it has not left in time. Before CONNACK, it never knows when it has."""
        self._client.timeout = timeout_s
        try:
            await self._client.__aexit__(None, None, None)
        except aiomqtt.MqttError:
            return False
        return True

    async def _close_by_connecting(self) -> None:
        """Close a socket that the client has left open: when it connects again, it first closes the one that it had."""
        with contextlib.suppress(aiomqtt.MqttError, OSError):
            await self._exit(_WRITE_S)
            self._client.unwatch()
            await self._client.__aenter__()
            await self._exit(_GRACE_S)

    async def _publish(self, number: int, topic: str, payload: bytes, retain: bool, expiry_s: int | None) -> None:
        properties = None
        if self._is_version_5 and expiry_s is not None:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.MessageExpiryInterval = expiry_s
        with contextlib.suppress(aiomqtt.MqttError):  # lost: the next connection sends it again
            await self._client.publish(topic, payload, qos=1, retain=retain, properties=properties, timeout=math.inf)
            self._listener.acknowledged(number)

    async def _watch(self) -> None:
        """Wait for the end of the connection: our queue has no message to iterate over."""
        try:
            await anext(aiter(self._client.messages))
        except aiomqtt.MqttError as error:
            self.lost.set_result(self._reason(error.__cause__))

    def _reason(self, cause: BaseException | None) -> str:
        """Return why the connection has ended, in words."""
        if not isinstance(cause, aiomqtt.MqttCodeError):
            self._is_stuck = cause is not None
            return "it ended" if cause is None else "the broker sent a topic that MQTT forbids"
        code = cause.rc.value if isinstance(cause.rc, ReasonCode) else cause.rc
        if code == _KEEPALIVE_TIMEOUT:
            return f"the broker was silent for {self._keepalive_s} s"
        return "it ended" if code in (0, _UNSPECIFIED) else f"it ended: {str(cause.rc).lower()} ({code})"


async def _whole(work: Coroutine[Any, Any, None]) -> None:
    """Do work that must not be cancelled in the middle. A cancellation is raised when it is done."""
    working, cancelled = asyncio.create_task(work), None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    await working


def _session(hello: Connect) -> dict[str, Any]:
    """Return the client's arguments that depend on the version of MQTT."""
    expiry_s = hello.session_expiry_s
    if hello.version == "3.1.1":
        return {"protocol": aiomqtt.ProtocolVersion.V311, "clean_session": expiry_s == 0}
    if hello.is_probe:
        return {"protocol": aiomqtt.ProtocolVersion.V5, "clean_start": True}
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = expiry_s
    properties.ReceiveMaximum = UNACKNOWLEDGED_MAX
    properties.MaximumPacketSize = PACKET_BYTES_MAX
    return {"protocol": aiomqtt.ProtocolVersion.V5, "clean_start": expiry_s == 0, "properties": properties}


def _route(hello: Connect) -> dict[str, Any]:
    """Return the client's arguments that depend on how the broker is reached."""
    route: dict[str, Any] = {}
    if (path := hello.settings.websocket_path) is not None:
        route |= {"transport": "websockets", "websocket_path": path}
    if (proxy := hello.proxy) is not None:
        import socks  # of the extra `proxy`

        route["proxy"] = aiomqtt.ProxySettings(
            proxy_type=socks.HTTP if proxy.scheme == "http" else socks.SOCKS5,
            proxy_addr=proxy.host,
            proxy_port=proxy.port,
            proxy_username=proxy.username,
            proxy_password=proxy.password,
        )
    return route


def _queue_type(listener: Listener, on_refused: Callable[[], None]) -> type[asyncio.Queue[aiomqtt.Message]]:
    """Return a type of queues that hold nothing, but pass each message to the listener, who may refuse it."""

    class Passing(asyncio.Queue[aiomqtt.Message]):
        def put_nowait(self, message: aiomqtt.Message) -> None:
            if not listener.deliver(Published(message.topic.value, message.payload, message.retain)):
                on_refused()

    return Passing


class _Client(aiomqtt.Client):
    """aiomqtt's client, which does not watch a closed socket for writing, and can stop to acknowledge messages."""

    def acknowledge_no_more(self) -> None:
        """Acknowledge neither the message that is being delivered nor any later one."""
        self._client.manual_ack_set(True)

    def unwatch(self) -> None:
        """Stop watching the socket that is open. The thread that connects anew closes it, and must not do so itself."""
        sock = self._client.socket()
        if sock is not None and sock.fileno() >= 0:
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        def write() -> None:
            try:
                client.loop_write()
            except Exception as error:
                if not self._disconnected.done():
                    self._disconnected.set_exception(error)

        def watch() -> None:
            if client.socket() is sock:
                self._loop.add_writer(sock.fileno(), write)

        self._loop.call_soon_threadsafe(watch)  # a thread that connects calls this, too


class _NoDelay:
    """The socket option TCP_NODELAY. It is read, and so sets the event, when there is a socket with a connection."""

    def __init__(self, has_socket: asyncio.Event) -> None:
        self._has_socket = has_socket

    def __iter__(self) -> Iterator[int]:
        self._has_socket.set()
        return iter((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1))


class _ClosingSocket(ssl.SSLSocket):
    """A TLS socket that is closed if its handshake fails. `seen` takes the broker's certificate."""

    seen: Callable[[Mapping[str, Any] | None], None]

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise
        self.seen(self.getpeercert())
