"""Sensors' messages: windows, bounded memory, hostile payloads, and a real broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_S

from dca_proto.errors import UsageError
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.sources import Feed, read_source
from dca_proto.runtime.sources import topic as module
from dca_proto.runtime.sources.topic import TopicFeed, TopicSource

NAN = float("nan")
COLUMNS = ("temperature", "energy.power")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def feed_of(clock: Callable[[], float] | None = None, **settings: Any) -> TopicFeed:
    table = {"topic": "home/+", "columns": list(COLUMNS), **settings}
    source = read_source(table, Path(), BrokerSettings(url="mqtt://127.0.0.1"))
    assert isinstance(source, TopicSource)
    return TopicFeed(source, clock)


def rows(feed: TopicFeed, *columns: str) -> Any:
    feed.refresh()
    return feed.rows(columns or COLUMNS)


def values(feed: Feed) -> list[list[float]]:
    feed.refresh()
    return [] if feed.failure is not None else feed.rows(("t",)).tolist()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - messages come from another process
        await asyncio.sleep(0.01)


def test_each_topic_is_a_row_of_the_last_values() -> None:
    feed = feed_of(clock := Clock())
    assert feed.columns == COLUMNS
    feed.take("home/b", b'{"temperature": 20, "energy": {"power": 5}, "battery": "low"}')
    feed.take("home/a", b'{"temperature": 21.5}')
    feed.take("home/b", b'{"temperature": 22, "energy": 7}')
    np.testing.assert_array_equal(rows(feed), [[21.5, NAN], [22, 5]])
    clock.now_s += 3599
    feed.take("home/b", b'{"temperature": true}')
    clock.now_s += 1
    np.testing.assert_array_equal(rows(feed), [[1, NAN]])
    assert not feed.dropped


def test_a_topic_may_have_texts_with_listed_categories() -> None:
    listed = {"categories": {"arm": ["placebo", "drug"]}}
    feed = feed_of(Clock(), columns=["arm", "t"], **listed)
    assert feed.columns == ("arm", "arm=placebo", "arm=drug", "arm in {placebo, drug}", "t")
    for topic, payload in (
        ("a", b'{"arm": "drug", "t": 20}'),
        ("b", b'{"arm": "aspirin", "t": 21}'),
        ("c", b'{"t": 1}'),
    ):
        feed.take(f"home/{topic}", payload)
    found = rows(feed, "arm in {placebo, drug}", "arm=drug", "t")
    np.testing.assert_array_equal(found, [[1, 1, 20], [NAN, NAN, 21], [NAN, NAN, 1]])
    assert feed.dropped == {"not a category": 1}
    alone = feed_of(Clock(), columns=["arm"], **listed)
    alone.take("home/a", b'"placebo"')
    assert rows(alone, "arm", "arm=placebo").tolist() == [[0, 1]]
    for wrong, message in (({"take": "mean"}, "texts have no mean"), ({"columns": ["t"]}, "has no column 'arm'")):
        with pytest.raises(UsageError, match=message):
            feed_of(**{"columns": ["arm"], **listed, **wrong})


def test_a_plain_number_is_the_value_of_the_only_column() -> None:
    feed = feed_of(Clock(), columns=["x"])
    for payload in (b"20", b" 21.5\n", b'"22"', b"true"):
        feed.take("home/a", payload)
    assert rows(feed, "x").tolist() == [[1]]
    assert not feed.dropped
    two = feed_of(Clock())
    two.take("home/a", b"20")
    assert two.dropped == {"not an object": 1}


def test_the_mean_is_of_the_window_to_a_sixtieth() -> None:
    """Against all values: the window of the sums ends up to a sixtieth early."""
    clock, rng = Clock(), random.Random(1)
    feed, sent = feed_of(clock, columns=["x"], take="mean", window_s=600), []
    for _ in range(2000):
        clock.now_s += rng.expovariate(1 / 5)
        sent.append((clock.now_s, rng.gauss(clock.now_s / 1000, 1)))
        feed.take("home/a", str(sent[-1][1]).encode())
        if rng.random() < 0.02:
            (found,) = rows(feed, "x")[0]
            means = [
                np.mean([x for at_s, x in sent if at_s > clock.now_s - part]) for part in np.linspace(590, 600, 41)
            ]
            assert min(means) - 1e-9 <= found <= max(means) + 1e-9
    clock.now_s += 601
    with pytest.raises(UsageError, match="no value has come for 10 minutes"):
        rows(feed, "x")
    feed.take("home/a", b"3")
    assert rows(feed, "x").tolist() == [[3]]


HOSTILE = {
    b"": "not JSON",
    b"{": "not JSON",
    b"\xff\xfe\x00": "not JSON",
    b"[" * 60_000: "not JSON",
    b'{"a":' * 10_000: "not JSON",
    b'{"temperature": NaN}': "not JSON",
    b"[1, 2]": "not an object",
    b"null": "not an object",
    b'{"temperature": 1e999}': "no number",
    b'{"temperature": "' + b"9" * 5000 + b'"}': "no number",
    b'{"temperature": ' + b"9" * 5000 + b"}": "no number",
    b'{"temperature": [1]}': "no number",
    b'{"temperature": {"temperature": 1}}': "no number",
    b'{"other": 1}': "no number",
    b" " * (1 << 17): "too large",
}


@pytest.mark.parametrize("payload", HOSTILE, ids=lambda payload: f"{payload[:12]!r}")
def test_a_hostile_payload_is_dropped_and_counted(payload: bytes) -> None:
    feed = feed_of(Clock())
    feed.take("home/a", payload)
    assert sum(feed.dropped.values()) == 1
    if not feed.dropped["not JSON"]:  # what JSON allows differs between versions of msgspec
        assert feed.dropped == {HOSTILE[payload]: 1}
    with pytest.raises(UsageError):
        rows(feed)


def test_other_messages_are_dropped_and_counted() -> None:
    feed = feed_of(Clock())
    feed.take("home/a", b'{"temperature": 20}', True)
    feed.take("x" * 300, b'{"temperature": 20}')
    assert feed.dropped == {"retained": 1, "topic": 1}


def test_a_flood_of_topics_neither_grows_nor_displaces() -> None:
    feed = feed_of(clock := Clock(), columns=["x"], topics_max=3)
    feed.take("home/own", b"20")
    for number in range(500):
        feed.take(f"home/{number}", b"1e6")
    assert feed.dropped == {"too many topics": 498}
    assert len(feed._sensors) == 3
    clock.now_s += 3000
    feed.take("home/own", b"21")
    clock.now_s += 1000
    feed.take("home/new", b"22")
    assert sorted(rows(feed, "x").ravel()) == [21, 22], "those that are silent make room"


def test_a_flood_of_topics_does_not_look_at_all_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message would take as long as there are topics, in the client's event loop."""
    feed = feed_of(clock := Clock(), columns=["x"], topics_max=100)
    for number in range(100):
        clock.now_s += 1
        feed.take(f"home/{number}", b"20")
    looks: list[float] = []
    is_silent = module._Sensor.is_silent
    monkeypatch.setattr(module._Sensor, "is_silent", lambda self, now_s: looks.append(now_s) or is_silent(self, now_s))
    feed.take("home/0", b"21")
    for number in range(50):
        feed.take(f"home/new/{number}", b"20")
    assert len(looks) == 50
    clock.now_s += 3599
    feed.take("home/new", b"22")
    assert sorted(rows(feed, "x").ravel()) == [20, 21, 22], "the first topic has been heard again"


def test_a_mean_of_numbers_that_are_too_large_is_missing() -> None:
    feed = feed_of(Clock(), columns=["x"], take="mean")
    for number in (b"1e308", b"1e308", b"-1e308"):
        feed.take("home/a", number)
    np.testing.assert_array_equal(rows(feed, "x"), [[NAN]])


def test_random_payloads_never_raise() -> None:
    rng = random.Random(2)
    feed, letters = feed_of(Clock()), b'{}[]":,0123456789.eE-+truefalsn temperature\\u\xff\x00'
    for _ in range(3000):
        feed.take("home/a", bytes(rng.choices(letters, k=rng.randrange(40))))
    assert sum(feed.dropped.values()) > 2000


def test_no_value_yet_tells_why(tmp_path: Path) -> None:
    feed = feed_of(Clock())
    with pytest.raises(UsageError, match=r"data home/\+: no value has come for 60 minutes: not connected yet"):
        rows(feed)
    assert feed.read_ms is None
    feed.take("home/a", b'{"temperature": 1}')
    assert feed.read_ms is not None


def test_messages_of_a_real_broker_arrive(mosquitto_broker: Broker) -> None:
    """Over a connection of its own, which begins without what was retained or sent before."""
    import aiomqtt

    async def story() -> None:
        table = {"topic": "sensors/+/state", "columns": ["t"]}
        source = read_source(table, Path(), BrokerSettings(url=mosquitto_broker.url))
        feed = source.open()
        settings = BrokerSettings(url=mosquitto_broker.url)
        async with aiomqtt.Client(settings.host, settings.port) as sensors:
            await sensors.publish("sensors/old/state", b'{"t": 99}', qos=1, retain=True)
            async with feed.live():
                await until(lambda: feed.dropped["retained"] == 1)
                await sensors.publish("sensors/a/state", b'{"t": 20}', qos=1)
                await sensors.publish("sensors/b/state", b"no", qos=1)
                await sensors.publish("sensors/b/other", b'{"t": 21}', qos=1)
                await sensors.publish("sensors/b/state", b'{"t": 21}', qos=1)
                await until(lambda: len(values(feed)) == 2)
                assert feed.rows(("t",)).tolist() == [[20], [21]]
                assert feed.dropped == {"retained": 1, "not JSON": 1}
            await sensors.publish("sensors/old/state", b"", qos=1, retain=True)

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


def test_a_broker_that_is_away_is_no_end(tmp_path: Path) -> None:
    async def story() -> None:
        source = read_source({"topic": "a", "columns": ["t"]}, tmp_path, BrokerSettings(url="mqtt://127.0.0.1:1"))
        feed = source.open()
        async with feed.live():
            await until(lambda: not values(feed) and "cannot reach broker" in str(feed.failure))

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
