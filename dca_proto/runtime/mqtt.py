"""The transport over MQTT 3.1.1 or 5, QoS 1.

One task per transport connects, subscribes, delivers until the connection is lost, backs off and reconnects. Packets
that the broker has not acknowledged are sent again on the next connection, in order.

The client id is the actor's id in hexadecimal: 32 characters. MQTT requires brokers to accept only 23; those that we
know accept more. In a persistent session the broker keeps subscriptions and messages while the actor is away.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import math
import os
import random
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterator

import msgspec
import structlog

from dca_proto.errors import DcaError, LoginError, TransportError, UsageError
from dca_proto.runtime.connection import (
    LOGIN_REFUSED,
    NUMBERS,
    REFUSED,
    UNSUPPORTED_VERSION,
    Connect,
    Connection,
    ConnectRefused,
    Listener,
    LostWhileConnecting,
    Published,
    certificate_advice,
    check_topic,
    in_words,
    login_error,
)
from dca_proto.runtime.fleet_connection import FleetConnection
from dca_proto.runtime.parts import split
from dca_proto.runtime.settings import BrokerSettings, Version
from dca_proto.runtime.transport import Connected, Disconnected, Gone, Inbox, InboxLimits, closed
from dca_proto.wording import to_install

_ANSWER_TIMEOUT_S = 10.0  # for TCP, TLS, CONNACK and SUBACK
_SUSPICIOUS = 3  # short connections in a row
_TOO_LARGE = 2  # connections in a row that ended while a packet was on its way that is larger than any before
_EXPIRY_S_MAX = 2**32 - 1  # of MQTT 5

log = structlog.get_logger("dca.mqtt")


class _Outgoing(msgspec.Struct, eq=False):
    """A message on its way in one or more packets.

    Attributes:
        waiting: how many packets are not yet acknowledged.
        expires_at: on the event loop's clock; None if it never expires.
    """

    topic: str
    retain: bool
    waiting: int
    done: asyncio.Future[None]
    expires_at: float | None = None

    def expiry_s(self, now: float) -> int | None:
        """Return for how many seconds the broker may deliver it, at least one."""
        at = self.expires_at
        return None if at is None else min(max(1, math.ceil(at - now)), _EXPIRY_S_MAX)

    def acknowledged(self) -> None:
        self.waiting -= 1
        if not self.waiting and not self.done.done():
            self.done.set_result(None)


class MqttTransport:
    """A `Transport` over an MQTT broker.

    Args:
        settings: where and how to connect.
        client_id: the actor's id in hexadecimal.
        subscriptions: topic filters, renewed at every connection.
        rng: draws the jitter of reconnects; no secret depends on it.
        limits: bounds on received messages that wait. inbox: takes these, in place of one for the protocol's.
        backoff: how long to wait between reconnects.
        answer_timeout_s: how long the broker may take to accept a connection.
        on_report: called with `Connected`, `Disconnected` and `Gone`; by default they are logged.
        will: the topic on which the broker publishes an empty message if a connection breaks off; None without one.

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
        on_report: Callable[[Connected | Disconnected | Gone], None] | None = None,
        will: str | None = None,
        inbox: Inbox | None = None,
    ) -> None:
        self._brokers = settings.brokers()
        self._tried = 0  # number of the broker in use
        self._lost_url = settings.url
        self._version: Version | None = None if settings.version == "auto" else settings.version
        self._proxy = settings.read_proxy()
        _require_extra(settings)
        self._client_id = client_id
        self._username = settings.username or (client_id if settings.password_file else None)
        self._subscriptions = subscriptions
        self._retries = Retries(backoff or Backoff(), rng)
        self._report = on_report or _log
        self._answer_timeout_s = answer_timeout_s
        self._password = settings.read_password()
        self._tls = settings.tls_context()
        self._will = will
        self.inbox = Inbox(subscriptions, limits) if inbox is None else inbox
        self.inbox.on_gone = lambda member: self._report(Gone(member))
        self._connection: Connection | None = None
        self._number = 0  # the id of the last packet
        self._unsent: deque[tuple[_Outgoing, bytes]] = deque()  # packets, in order
        self._sent: dict[int, tuple[_Outgoing, bytes]] = {}  # unacknowledged packets by id, in order
        self._largest_taken = 0  # bytes of the largest packet that the broker has acknowledged
        self._lost_with_larger = 0  # how many connections in a row ended while a larger packet was on its way
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self.inbox.check()
        try:
            connection = await self._connect()
        except TransportError as error:
            connection = await self._connect_again(error, final=UsageError)
        else:
            self._report(Connected(self._settings.url, certificate_end_ms=connection.certificate_end_ms))
        self._keeper = asyncio.create_task(self._keep_connected(connection))
        self._keeper.add_done_callback(self._keeper_ended)
        await asyncio.sleep(0)  # let the keeper enter its `try`: then it disconnects even if cancelled

    def publish(
        self, topic: str, payload: bytes, retain: bool = False, expires_s: float | None = None
    ) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self.inbox.check()
        if retain and expires_s is not None:
            raise ValueError("a retained message does not expire: found both retain and expires_s")
        parts = split(payload, self._settings.part_bytes_max, retain=retain)
        check_topic(topic)
        expires_at = None if expires_s is None else loop.time() + expires_s
        outgoing = _Outgoing(topic, retain, len(parts), done, expires_at)
        self._unsent.extend((outgoing, part) for part in parts)
        self._send_waiting()
        return done

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
        self._fail(closed())
        if keeper is not None:
            await asyncio.wait([keeper])

    @property
    def dropped(self) -> Counter[str]:
        """Counts of dropped received payloads, by reason."""
        return self.inbox.dropped

    def _send_waiting(self) -> None:
        """Send packets up to the limit on unacknowledged ones; skip those of cancelled or failed messages."""
        while self._unsent and self._connection is not None and len(self._sent) < self._connection.unacknowledged_max:
            outgoing, part = self._unsent.popleft()
            if outgoing.done.done():
                continue
            self._number = self._number % NUMBERS + 1
            while self._number in self._sent:
                self._number = self._number % NUMBERS + 1
            self._sent[self._number] = outgoing, part
            expiry_s = outgoing.expiry_s(asyncio.get_running_loop().time())
            self._connection.publish(self._number, outgoing.topic, part, outgoing.retain, expiry_s)

    def _acknowledged(self, number: int) -> None:
        if number in self._sent:
            outgoing, part = self._sent.pop(number)
            self._largest_taken = max(self._largest_taken, _packet_bytes(outgoing, part))
            outgoing.acknowledged()
            self._send_waiting()

    def _refused(self, number: int, reason: str) -> None:
        """Fail a message that the broker refuses; others may pass."""
        if number in self._sent:
            outgoing, _ = self._sent.pop(number)
            if not outgoing.done.done():
                outgoing.done.set_exception(UsageError(f"the broker refused a message: {reason}"))
            self._send_waiting()

    def _drop(self, reason: str) -> None:
        self.inbox.dropped[reason] += 1

    def _deliver(self, published: Published) -> bool:
        """Take a message. After `close`, refuse it: the broker keeps it for the next connection."""
        if published.topic is None:
            self._drop("topic")
        elif not self.inbox.is_closed:
            self.inbox.offer(published.topic, published.payload, retained=published.is_retained)
        return not self.inbox.is_closed

    async def _keep_connected(self, connection: Connection) -> None:
        """Use connections one after the other, for ever, even if the broker refuses us: it may be out of memory."""
        now = asyncio.get_running_loop().time
        while True:
            since = now()
            self._lost_url = self._settings.url
            try:
                lost = await self._use(connection)
            finally:
                await connection.leave()
            self._retries.ended(now() - since)
            connection = await self._connect_again(lost)

    async def _use(self, connection: Connection) -> TransportError:
        """Send waiting packets until the connection is lost; return the reason."""
        self._connection = connection
        self._send_waiting()
        try:
            await asyncio.wait([connection.lost])
        finally:
            self._connection = None
            largest = max(itertools.starmap(_packet_bytes, self._sent.values()), default=0)
            self._unsent.extendleft(reversed(self._sent.values()))
            self._sent.clear()
        reason = f"lost the connection to broker {self._settings.url}: {connection.lost.result()}"
        self._lost_with_larger = self._lost_with_larger + 1 if largest > self._largest_taken else 0
        if self._lost_with_larger >= _TOO_LARGE:
            reason += (
                f", again while a packet of {largest:,} bytes was on its way, larger than any before: "
                "its max_packet_size may be less; raise that (in mosquitto.conf), or set a lower part_bytes_max here"
            )
        return TransportError(reason)

    async def _connect_again(self, reason: DcaError, *, final: type[DcaError] | tuple[()] = ()) -> Connection:
        """Report the loss, reconnect until it succeeds, and report that. Raises errors of the types in `final`.

        Each reason is reported once: several brokers may be away for days, each for a reason of its own.
        """
        now = asyncio.get_running_loop().time
        since, url = now(), self._lost_url
        reported: set[str] = set()
        while True:
            if str(reason) not in reported:
                reported.add(str(reason))
                suspicion = ""
                if self._retries.short >= _SUSPICIOUS and self._lost_with_larger < _TOO_LARGE:
                    soon = f"{self._retries.short} connections have ended soon"
                    suspicion = f"; {soon}: does another process use this identity?"
                self._report(Disconnected(url, f"{reason}{suspicion}"))
            await asyncio.sleep(self._retries.wait_s())
            url = self._settings.url
            try:
                connection = await self._connect()
            except final:
                raise
            except DcaError as error:
                reason = error
            else:
                self._report(Connected(self._settings.url, now() - since, connection.certificate_end_ms))
                return connection

    @property
    def _settings(self) -> BrokerSettings:
        """The settings of the broker in use."""
        return self._brokers[self._tried]

    async def _connect(self) -> Connection:
        """Connect to the broker in use. If that fails, or it refuses us, the next one is in use. Raises as `open`."""
        try:
            self._version = self._version or await self._probe()
            return await self._connect_as(self._version)
        except DcaError:
            self._lost_url = self._settings.url
            self._version = None if self._settings.version == "auto" else self._version  # the next may differ
            self._tried = (self._tried + 1) % len(self._brokers)
            raise

    async def _probe(self) -> Version:
        """Ask the broker for MQTT 5, without name, password and properties, as a stranger: it keeps no session of ours.

        With a certificate that may be a name, the broker is not asked, and 3.1.1 is used.
        """
        settings = self._settings
        if settings.certificate is not None:
            return "3.1.1"
        hello = Connect(
            settings, os.urandom(16).hex(), tls=self._tls,
            answer_timeout_s=self._answer_timeout_s, version="5", is_probe=True, proxy=self._proxy,
        )  # fmt: skip
        connection = connect(hello, Listener(lambda published: False, lambda number: None))
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                await connection.open()
        except ConnectRefused as error:
            return "3.1.1" if error.code == UNSUPPORTED_VERSION else "5"
        except (TimeoutError, TransportError):
            return "3.1.1"
        except OSError as error:
            raise self._explained(error) from None
        finally:
            await connection.leave()
        return "5"

    async def _connect_as(self, version: Version) -> Connection:
        settings = self._settings
        hello = Connect(
            settings, self._client_id, self._username, self._password, self._tls,
            self._answer_timeout_s, version, proxy=self._proxy, will=self._will,
        )  # fmt: skip
        connection = connect(hello, Listener(self._deliver, self._acknowledged, self._refused, self._drop))
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                await connection.open()
                codes = await connection.subscribe(self._subscriptions)
            if max(codes, default=0) >= REFUSED:
                raise LoginError(f"{settings.url} refused subscriptions of {self._client_id}: see its access list")
        except BaseException as error:
            await connection.leave()
            if isinstance(error, ConnectRefused) and error.code in LOGIN_REFUSED:
                raise login_error(settings.url, self._username) from None
            if isinstance(error, OSError | TransportError):  # `TimeoutError` is an `OSError`
                raise self._explained(error) from None
            raise
        return connection

    def _explained(self, error: OSError | TransportError) -> TransportError:
        url = self._settings.url
        if isinstance(error, TimeoutError):
            advice = "check that it speaks MQTT, and whether it needs TLS (mqtts://)"
            return TransportError(f"cannot reach broker at {url}: no answer; {advice}")
        if isinstance(error, ConnectRefused):
            return TransportError(f"cannot reach broker at {url}: {error}")
        advice = f"are it and the proxy {self._settings.proxy} running?" if self._proxy else "is it running?"
        if isinstance(error, ssl.SSLCertVerificationError):
            advice = certificate_advice(error)
        elif self._tls is not None and isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError):
            advice = "does that port speak TLS? Without TLS, the URL begins with mqtt://"
        elif self._tls is None and isinstance(error, LostWhileConnecting):
            advice = "does that port need TLS? Then the URL begins with mqtts://"
        return TransportError(f"cannot reach broker at {url}: {in_words(error)}; {advice}")

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        """Fail the transport if the keeper crashed, so that the actor ends and does not seem connected."""
        if not keeper.cancelled():
            self._fail(TransportError(f"an internal error ended the connection: {keeper.exception()!r}"))

    def _fail(self, failure: DcaError) -> None:
        self.inbox.fail(failure)
        for outgoing, _ in (*self._sent.values(), *self._unsent):
            if not outgoing.done.done():
                outgoing.done.set_exception(failure)
        self._unsent.clear()


def connect(hello: Connect, listener: Listener) -> Connection:
    """Return an unopened connection of the client that the settings name."""
    if hello.settings.client == "fleet":
        return FleetConnection(hello, listener)
    from dca_proto.runtime.aiomqtt_connection import AiomqttConnection  # a fleet does without it

    return AiomqttConnection(hello, listener)


def _require_extra(settings: BrokerSettings) -> None:
    """Raise `UsageError` if a library is missing that these settings need."""
    if settings.proxy is not None and importlib.util.find_spec("socks") is None:
        raise UsageError(f"[broker] proxy: {to_install('proxy')}")
    if settings.client == "fleet" and settings.version != "3.1.1" and importlib.util.find_spec("mqtt5") is None:
        raise UsageError(f'[broker] client = "fleet" with version {settings.version}: {to_install("fleet")}')


def _packet_bytes(outgoing: _Outgoing, part: bytes) -> int:
    """Return the size of a packet without its head, which has a few bytes."""
    return 2 + len(outgoing.topic) + len(part)


async def require_broker(url: str) -> None:
    """Check that a broker answers, before starting anything that would wait for it.

    Raises `TransportError` if it cannot be reached, `UsageError` if it refuses us.
    """
    name = os.urandom(16).hex()
    settings = BrokerSettings(url=url, session_expiry_s=0)
    probe = MqttTransport(settings, name, (name,), rng=random.Random(), answer_timeout_s=_ANSWER_TIMEOUT_S)  # noqa: S311
    await (await probe._connect()).leave()


def _log(fact: Connected | Disconnected | Gone) -> None:
    if not isinstance(fact, Gone):  # who is a member is not known here
        method = log.warning if isinstance(fact, Disconnected) else log.info
        method(type(fact).__name__, **msgspec.structs.asdict(fact))


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential backoff: waits from `first_s`, doubled up to `most_s`, each uniform over its upper half."""

    first_s: float = 0.2
    most_s: float = 30.0

    def waits(self, rng: random.Random) -> Iterator[float]:
        """Yield waits in seconds, without end."""
        wait_s = self.first_s
        while True:
            yield wait_s * (0.5 + 0.5 * rng.random())
            wait_s = min(2 * wait_s, self.most_s)


class Retries:
    """The waits between one actor's connections. They start over only after a connection lasted twice the longest wait.

    Two processes with the same identity end each other's connections. Each of their attempts succeeds, so without this
    rule they would reconnect several times a second.

    Attributes:
        short: how many connections in a row were too short.
    """

    def __init__(self, backoff: Backoff, rng: random.Random) -> None:
        self._backoff = backoff
        self._rng = rng
        self._waits = backoff.waits(rng)
        self.short = 0

    def ended(self, lasted_s: float) -> None:
        """Note how long a connection lasted."""
        self.short += 1
        if lasted_s >= 2 * self._backoff.most_s:
            self.short = 0
            self._waits = self._backoff.waits(self._rng)

    def wait_s(self) -> float:
        """Return the seconds to wait before the next attempt."""
        return next(self._waits)
