"""Sensors' messages on MQTT topics: the last value of each, or its mean over the window, in bounded memory.

Each topic is a row. A message is a JSON object, whose numbers are found by name, or one plain number. Whatever else
comes is dropped and counted; it cannot stop the client. The connection is of its own, with a clean session, so nothing
from before it counts as new. For the same reason, a retained message is dropped: nobody knows how old it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
import structlog
from msgspec import Meta
from numpy.typing import NDArray

from dca_proto.errors import DcaError, InputError
from dca_proto.protocol.wire.fields import WindowSeconds
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.settings import BrokerSettings, anchored
from dca_proto.runtime.sources.base import Feed, Listed, Source, check_columns, check_listed, number_of
from dca_proto.runtime.table import Table
from dca_proto.runtime.transport import TOPIC_CHARS_MAX, Connected, Disconnected, Gone, Inbox, InboxLimits
from dca_proto.statistics.categories import check_categories, encode_category, numeric_columns
from dca_proto.wording import JsonObject, duration, listed, printable

_PARTS = 60  # of a window: a mean covers it to a sixtieth
_VALUES_MAX = 20_000  # topics times columns: 20 MB
_PAYLOAD_BYTES_MAX = 64 << 10
_AGAIN_S = 30.0

log = structlog.get_logger("dca.data")


class TopicSource(Source, frozen=True, kw_only=True):
    """``topic``: sensors' messages on MQTT topics, JSON objects or plain numbers. Each topic is a row.

    Args:
        topic: a topic filter, such as ``zigbee2mqtt/+``.
        columns: names of numbers in JSON objects; ``ENERGY.Power`` is ``Power`` in the object ``ENERGY``. A plain
            number is the value of the only column. true and false count as 1 and 0.
        take: ``last``: the last value of each column in the window. ``mean``: the mean of its values in the window, to
            a sixtieth of it.
        topics_max: how many topics to keep. Messages on others are dropped until one has been silent for a window.
        categories: of its columns of texts, in the order of their codes (`dca_proto.statistics.categories`); only the
            last values can be texts.
        broker: the sensors' broker: the section [data.broker], with the keys of [broker]. By default the client's own,
            if it needs no password and no certificate.
    """

    key: ClassVar[str] = "topic"

    topic: str
    columns: tuple[str, ...]
    take: Literal["last", "mean"] = "last"
    window_s: WindowSeconds = 3600
    topics_max: Annotated[int, Meta(ge=1, le=10_000)] = 256
    broker: BrokerSettings | None = None
    categories: Listed = msgspec.field(default_factory=dict)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers that the columns become."""
        return numeric_columns(self.columns, check_categories(self.categories))

    def __post_init__(self) -> None:
        check_columns("[data] columns", self.columns)
        check_listed("[data] columns", self.columns, self.categories, self.take)
        if not self.window_s:
            raise InputError("[data] window_s is 0; give a number of seconds, such as 3600")
        if self.topics_max * len(self.numbers) > _VALUES_MAX:
            found = f"{self.topics_max} topics of {len(self.numbers)} columns"
            raise InputError(
                f"[data] topics_max: found {found}, expected at most {_VALUES_MAX} values; lower topics_max"
            )
        levels = self.topic.split("/")
        wild = [level for level in levels if ("+" in level or "#" in level) and level not in ("+", "#")]
        if not self.topic or not self.topic.isprintable() or wild or "#" in levels[:-1]:
            raise InputError(f"[data] topic: found {self.topic!r}, expected a topic filter, such as zigbee2mqtt/+")
        if len(self.topic) > TOPIC_CHARS_MAX:
            raise InputError(f"[data] topic has {len(self.topic)} characters, expected at most {TOPIC_CHARS_MAX}")

    def anchored(self, directory: Path, broker: BrokerSettings) -> TopicSource:
        if self.broker is not None:
            if self.broker.password_file is not None and self.broker.username is None:
                raise InputError("[data.broker] password_file: found no username; give the user that it is for")
            return msgspec.structs.replace(self, broker=anchored(self.broker, directory))
        if broker.password_file is not None or broker.certificate is not None:  # a second session under that name
            raise InputError(
                "[data] topic: the client's own broker knows it by password or certificate, for one connection; "
                "name the sensors' broker in [data.broker]"
            )
        return msgspec.structs.replace(self, broker=broker)

    def open(self) -> TopicFeed:
        return TopicFeed(self)


class TopicFeed(Feed):
    """Receives messages and keeps what the window needs. `clock` returns seconds.

    `read_ms` is when the last message with a value came.
    """

    source: TopicSource

    def __init__(self, source: TopicSource, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or _seconds_with_sleep
        self._changing = threading.Lock()
        self._sensors: dict[str, _Sensor] = {}  # the longest silent first
        self._reason = "not connected yet"
        self._listed = check_categories(source.categories)
        super().__init__(source)

    def _first(self) -> tuple[str, ...]:
        """Read nothing: messages are still to come."""
        self.format = f"{self.source.title}: {listed(self.source.columns)}"
        return self.source.numbers

    @property
    def unheard(self) -> str:
        return f"no connection to the sensors' broker: {self._reason}" if self._reason else ""

    def refresh(self) -> None:
        """Compute the rows of this moment, quickly."""
        read_ms = self.read_ms
        super().refresh()
        self.read_ms = read_ms

    def _renew(self) -> None:
        now_s = self._clock()
        with self._changing:
            self._forget(now_s)
            rows = [sensor.row(self.source.take, now_s) for _, sensor in sorted(self._sensors.items())]
        if not rows:
            window = duration(1000 * self.source.window_s)
            raise InputError(f"data {self.source.place}: no value has come for {window}{self._why()}")
        self._table = Table(self.columns, np.array(rows))

    def _why(self) -> str:
        return f": {self._reason}" if self._reason else "; check the topic, the columns and the sensors"

    def take(self, topic: str, payload: bytes, is_retained: bool = False) -> None:
        """Take a message, which anybody may have written."""
        reason = self._take(topic, payload) if not is_retained else "retained"
        if reason:
            self.dropped[reason] += 1

    def _take(self, topic: str, payload: bytes) -> str:
        """Keep a message's numbers; return why it was dropped, or ""."""
        if len(topic) > TOPIC_CHARS_MAX:
            return "topic"
        if len(payload) > _PAYLOAD_BYTES_MAX:
            return "too large"
        try:
            content = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "not JSON"
        if isinstance(content, dict):
            values = self._numbers(_found(content, column) for column in self.source.columns)
        elif len(self.source.columns) == 1:
            values = self._numbers([content])
        else:
            return "not an object"
        if np.isnan(values).all():
            return "no number"
        return self._keep(topic, values)

    def _numbers(self, cells: Iterable[object]) -> NDArray[np.float64]:
        """Return the numbers of a message's values, one for each column."""
        found: list[float] = []
        for column, cell in zip(self.source.columns, cells, strict=True):
            if (texts := self._listed.get(column)) is None:
                found.append(number_of(cell))
                continue
            numbers = encode_category(cell, texts)
            if cell is not None and np.isnan(numbers[0]):
                self.dropped["not a category"] += 1
            found += numbers
        return np.array(found)

    def _keep(self, topic: str, values: NDArray[np.float64]) -> str:
        now_s = self._clock()
        with self._changing:
            sensor = self._sensors.pop(topic, None)
            if sensor is None:
                if len(self._sensors) >= self.source.topics_max:
                    self._forget(now_s)
                if len(self._sensors) >= self.source.topics_max:
                    return "too many topics"
                sensor = _Sensor(len(self.columns), self.source.window_s)
            self._sensors[topic] = sensor
            sensor.add(values, now_s)
        self.read_ms = time.time_ns() // 1_000_000
        return ""

    def _forget(self, now_s: float) -> None:
        while self._sensors and self._sensors[topic := next(iter(self._sensors))].is_silent(now_s):
            del self._sensors[topic]

    # --- the connection -----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        listening = asyncio.create_task(self._listen())
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def _listen(self) -> None:
        """Receive messages until cancelled, over one connection after the other."""
        assert self.source.broker is not None, "`anchored` has set it"
        settings = msgspec.structs.replace(self.source.broker, session_expiry_s=0)
        while True:
            try:
                await self._receive(settings)
            except DcaError as error:
                self._note(str(error))
            except Exception as error:  # the client goes on without data
                self._note(type(error).__name__)
            await asyncio.sleep(_AGAIN_S)

    async def _receive(self, settings: BrokerSettings) -> None:
        name = f"dca-data-{secrets.token_hex(6)}"  # 23 characters at most, as MQTT 3.1.1 allows
        transport = MqttTransport(
            settings,
            name[:23],
            (self.source.topic,),
            rng=random.Random(),  # noqa: S311 - the jitter of reconnects
            on_report=self._connection,
            inbox=_Messages(self.take),
        )
        try:
            await transport.open()
            await transport.inbox.take()  # raises once the transport has failed: nothing is put there
        finally:
            await transport.close()

    def _connection(self, fact: Connected | Disconnected | Gone) -> None:
        match fact:
            case Connected():
                self._reason = ""
                log.info("connected to the sensors' broker", url=fact.url)
            case Disconnected():
                self._note(fact.reason)

    def _note(self, reason: str) -> None:
        self._reason = printable(reason)
        log.warning("no connection to the sensors' broker", reason=self._reason)


class _Messages(Inbox):
    """Hands messages to the feed as they come."""

    def __init__(self, take: Callable[[str, bytes, bool], None]) -> None:
        super().__init__((), InboxLimits(messages_max=1))
        self._take = take

    def offer(self, topic: str, wire: bytes, *, retained: bool = False) -> None:
        self._take(topic, wire, retained)


class _Sensor:
    """One topic's values: the last of each column, and sums over the parts of the window."""

    __slots__ = ("_at_s", "_counts", "_last", "_numbers", "_part_s", "_sums", "_window_s")

    def __init__(self, width: int, window_s: float) -> None:
        self._window_s = window_s
        self._part_s = window_s / _PARTS
        self._last = np.full(width, np.nan)
        self._at_s = np.full(width, -np.inf)  # when the last value came
        self._sums = np.zeros((_PARTS, width))
        self._counts = np.zeros((_PARTS, width), dtype=np.int64)
        self._numbers = np.full(_PARTS, -1, dtype=np.int64)  # which part of time is kept at each place

    def add(self, values: NDArray[np.float64], now_s: float) -> None:
        given = ~np.isnan(values)
        self._last[given], self._at_s[given] = values[given], now_s
        number = int(now_s // self._part_s)
        place = number % _PARTS
        if self._numbers[place] != number:
            self._numbers[place], self._sums[place], self._counts[place] = number, 0, 0
        with np.errstate(over="ignore", invalid="ignore"):
            self._sums[place][given] += values[given]
        self._counts[place][given] += 1

    def row(self, take: str, now_s: float) -> NDArray[np.float64]:
        """Return a value for each column; NaN where the window has none, or has values whose sum is too large."""
        if take == "last":
            return np.where(self._at_s > now_s - self._window_s, self._last, np.nan)
        kept = self._numbers > int(now_s // self._part_s) - _PARTS
        counts = self._counts[kept].sum(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            sums = self._sums[kept].sum(axis=0)
        return np.where((counts > 0) & np.isfinite(sums), sums / np.maximum(counts, 1), np.nan)

    def is_silent(self, now_s: float) -> bool:
        return bool((self._at_s <= now_s - self._window_s).all())


def _found(content: JsonObject, column: str) -> object:
    """Return what an object has under a name, or under a path of names; None if nothing."""
    if column in content:
        return content[column]
    found: object = content
    for name in column.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _seconds_with_sleep() -> float:
    """Return seconds since the machine's start, which also pass while it sleeps (on Linux)."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
