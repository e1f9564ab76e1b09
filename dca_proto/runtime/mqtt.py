"""The transport over MQTT 3.1.1, QoS 1.

One task per transport connects, subscribes, delivers until the connection is lost, backs off and reconnects. Packets
that the broker has not acknowledged are sent again on the next connection, in order.

The client id is the actor's id in hexadecimal: 32 characters. MQTT 3.1.1 requires brokers to accept only 23; those that
we know accept more. With a persistent session the broker keeps subscriptions and queued messages while the actor is
away.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterator

import msgspec
import structlog

from dca_proto.errors import DcaError, LoginError, TransportError, UsageError
from dca_proto.runtime.connection import NUMBERS, Connection, Published, connect, in_words, publish, topic_name
from dca_proto.runtime.parts import split
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.transport import Connected, Disconnected, Inbox, InboxLimits, closed

_ANSWER_TIMEOUT_S = 10.0  # for TCP, TLS, CONNACK and SUBACK
_SUSPICIOUS = 3  # short connections in a row
_REFUSED = (4, 5)  # bad user name or password, not authorised
_SUBSCRIPTION_REFUSED = 0x80
_UNACKNOWLEDGED_MAX = 256  # packets; more only slow a broker down

log = structlog.get_logger("dca.mqtt")


class _Outgoing(msgspec.Struct, eq=False):
    """A message on its way in one or more packets; `waiting` counts those not yet acknowledged."""

    name: bytes
    retain: bool
    waiting: int
    done: asyncio.Future[None]

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
        limits: bounds on received messages that wait.
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
        self._username = settings.username or (client_id if settings.password_file else None)
        self._subscriptions = subscriptions
        self._retries = Retries(backoff or Backoff(), rng)
        self._report = on_report or _log
        self._answer_timeout_s = answer_timeout_s
        self._password = settings.read_password()
        self._tls = settings.tls_context()
        self.inbox = Inbox(subscriptions, limits)
        self._connection: Connection | None = None
        self._number = 0  # the id of the last packet
        self._unsent: deque[tuple[_Outgoing, bytes]] = deque()  # packets, in order
        self._sent: dict[int, tuple[_Outgoing, bytes]] = {}  # unacknowledged packets by id, in order
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self.inbox.check()
        try:
            connection = await self._connect()
        except TransportError as error:
            connection = await self._connect_again(error, final=UsageError)
        else:
            self._report(Connected(self._settings.url))
        self._keeper = asyncio.create_task(self._keep_connected(connection))
        self._keeper.add_done_callback(self._keeper_ended)
        await asyncio.sleep(0)  # let the keeper enter its `try`: then it disconnects even if cancelled

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.inbox.check()
        parts = split(payload, self._settings.part_bytes_max, retain=retain)
        outgoing = _Outgoing(topic_name(topic), retain, len(parts), done)
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
        while self._unsent and self._connection is not None and len(self._sent) < _UNACKNOWLEDGED_MAX:
            outgoing, part = self._unsent.popleft()
            if outgoing.done.done():
                continue
            self._number = self._number % NUMBERS + 1
            while self._number in self._sent:
                self._number = self._number % NUMBERS + 1
            self._sent[self._number] = outgoing, part
            self._connection.send(publish(self._number, outgoing.name, part, outgoing.retain))

    def _acknowledged(self, number: int) -> None:
        if number in self._sent:
            self._sent.pop(number)[0].acknowledged()
            self._send_waiting()

    def _deliver(self, published: Published) -> None:
        if published.topic is None:
            self.inbox.dropped["topic"] += 1
        else:
            self.inbox.offer(published.topic, published.payload, retained=published.is_retained)

    async def _keep_connected(self, connection: Connection) -> None:
        """Use connections one after the other, for ever, even if the broker refuses us: it may be out of memory."""
        now = asyncio.get_running_loop().time
        while True:
            since = now()
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
            self._unsent.extendleft(reversed(self._sent.values()))
            self._sent.clear()
        return TransportError(f"lost the connection to broker {self._settings.url}: {connection.lost.result()}")

    async def _connect_again(self, reason: DcaError, *, final: type[DcaError] | tuple[()] = ()) -> Connection:
        """Report the loss, reconnect until it succeeds, and report that. Raises errors of the types in `final`."""
        now = asyncio.get_running_loop().time
        since, reported = now(), ""
        while True:
            if str(reason) != reported:
                reported = str(reason)
                suspicion = ""
                if self._retries.short >= _SUSPICIOUS:
                    soon = f"{self._retries.short} connections have ended soon"
                    suspicion = f"; {soon}: does another process use this identity?"
                self._report(Disconnected(self._settings.url, reported + suspicion))
            await asyncio.sleep(self._retries.wait_s())
            try:
                connection = await self._connect()
            except final:
                raise
            except DcaError as error:
                reason = error
            else:
                self._report(Connected(self._settings.url, now() - since))
                return connection

    async def _connect(self) -> Connection:
        settings, connection = self._settings, Connection(self._deliver, self._acknowledged)
        hello = connect(
            self._client_id,
            clean=settings.session_expiry_s == 0,
            keepalive_s=settings.keepalive_s,
            username=self._username,
            password=self._password,
        )
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                self._check(await connection.open(settings.host, settings.port, self._tls, hello, settings.keepalive_s))
                codes = await connection.subscribe(self._subscriptions)
            if max(codes, default=0) >= _SUBSCRIPTION_REFUSED:
                raise LoginError(f"{settings.url} refused subscriptions of {self._client_id}: see its access list")
        except BaseException as error:
            await connection.leave()
            if isinstance(error, OSError | TransportError):  # `TimeoutError` is an `OSError`
                raise self._explained(error) from None
            raise
        return connection

    def _check(self, code: int) -> None:
        """Raise an error unless the broker's return code means accepted."""
        if code in _REFUSED:
            name = self._username or "none given"
            raise LoginError(
                f"broker {self._settings.url} refused user name ({name}) or password: check username and password_file"
            )
        if code:
            raise TransportError(f"it refused with code {code}")

    def _explained(self, error: OSError | TransportError) -> TransportError:
        url = self._settings.url
        if isinstance(error, TimeoutError):
            advice = "check that it speaks MQTT, and whether it needs TLS (mqtts://)"
            return TransportError(f"cannot reach broker at {url}: no answer; {advice}")
        advice = "check ca" if isinstance(error, ssl.SSLCertVerificationError) else "is it running?"
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


async def require_broker(url: str) -> None:
    """Check that a broker answers, before starting anything that would wait for it.

    Raises `TransportError` if it cannot be reached, `UsageError` if it refuses us.
    """
    name = os.urandom(16).hex()
    settings = BrokerSettings(url=url, session_expiry_s=0)
    probe = MqttTransport(settings, name, (name,), rng=random.Random(), answer_timeout_s=_ANSWER_TIMEOUT_S)  # noqa: S311
    await (await probe._connect()).leave()


def _log(fact: Connected | Disconnected) -> None:
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
