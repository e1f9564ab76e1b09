"""Each kind of source is read again before a round, counts as no rows while it fails, and keeps what is private."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from patience import PATIENCE_S
from recorder import Recorder
from structlog.testing import capture_logs

from dca_proto.errors import InputError, UsageError
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.sources import SOURCES, Feed, read_source
from dca_proto.runtime.sources.base import number_of
from dca_proto.runtime.sources.topic import TopicFeed

BROKER = BrokerSettings(url="mqtt://127.0.0.1")
NAN = float("nan")


class Example(NamedTuple):
    """A source that has one row of the columns ``x`` and ``y``.

    Attributes:
        table: the section [data].
        write: makes or changes what it reads, so that the row is (x, 1). The first argument is the folder.
        spoil: makes it unreadable.
        reason: what the error then contains.
    """

    table: dict[str, Any]
    write: Callable[[Path, float], object]
    spoil: Callable[[Path], object]
    reason: str


def _database(folder: Path, x: float) -> None:
    (folder / "d.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(folder / "d.db")) as database, database:
        database.execute("CREATE TABLE readings (time, x, y)")
        database.executemany(
            "INSERT INTO readings VALUES (?, ?, ?)", [(time.time() - 7200, 99, 99), (time.time(), x, 1)]
        )


def _recorder(folder: Path, x: float) -> None:
    (folder / "ha.db").unlink(missing_ok=True)
    recorder = Recorder(folder / "ha.db")
    recorder.state("sensor.x", str(x), time.time())
    recorder.state("binary_sensor.y", "on", time.time() - 9000)


def _function(folder: Path, x: float) -> None:
    sys.modules["own_sensors"].value = x  # type: ignore[attr-defined]


EXAMPLES = {
    "file": Example(
        {"file": "d.csv"},
        lambda folder, x: (folder / "d.csv").write_text(f"x,y\n{x},1\n"),
        lambda folder: (folder / "d.csv").unlink(),
        "No such file",
    ),
    "sqlite": Example(
        {"sqlite": "d.db", "query": "SELECT x, y FROM readings WHERE time >= :since", "window_s": 3600},
        _database,
        lambda folder: (folder / "d.db").write_bytes(b"no database, and long enough to be read as the head of one" * 9),
        "SQLITE_NOTADB",
    ),
    "home_assistant": Example(
        {"home_assistant": "ha.db", "entities": {"x": "sensor.x", "y": "binary_sensor.y"}},
        _recorder,
        lambda folder: (folder / "ha.db").unlink(),
        "No such file",
    ),
    "python": Example(
        {"python": "own_sensors:read", "columns": ["x", "y"]},
        _function,
        lambda folder: _function(folder, NAN),
        "ZeroDivisionError",
    ),
}
ELSEWHERE = {"postgres": "test_postgres.py", "topic": "test_topic.py"}
"""Kinds that need a server; their file has the same checks."""
OWN_SENSORS = """
value = 0.0

def read():
    if value != value:
        raise ZeroDivisionError("36.6")
    return [[value, 1]]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_sensors.py").write_text(OWN_SENSORS)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("own_sensors", None)
    __import__("own_sensors")
    yield tmp_path
    sys.modules.pop("own_sensors", None)


def opened(table: dict[str, Any], folder: Path) -> Feed:
    return read_source(table, folder, BROKER).open()


def test_each_kind_has_an_example() -> None:
    assert EXAMPLES.keys() | ELSEWHERE.keys() == SOURCES.keys()
    assert all(Path(__file__).with_name(name).exists() for name in ELSEWHERE.values())


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_source_is_read_again_before_each_round(kind: str, folder: Path) -> None:
    example = EXAMPLES[kind]
    example.write(folder, 20.5)
    feed = opened(example.table, folder)
    assert feed.columns == ("x", "y")
    assert feed.rows(("y", "x")).tolist() == [[1, 20.5]]
    read_ms = feed.read_ms
    assert read_ms is not None
    example.write(folder, 26)
    assert feed.rows(("x",)).tolist() == [[20.5]], "a round in progress is not disturbed"
    feed.refresh()
    assert feed.rows(("x",)).tolist() == [[26]]
    assert feed.read_ms is not None
    assert feed.read_ms >= read_ms


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_source_that_fails_has_no_rows_until_it_can_be_read(kind: str, folder: Path) -> None:
    """One log line has the reason, and no value: it may be private."""
    example = EXAMPLES[kind]
    example.write(folder, 20)
    feed = opened(example.table, folder)
    read_ms = feed.read_ms
    example.spoil(folder)
    with capture_logs() as logs:
        for _ in range(2):
            feed.refresh()
            with pytest.raises(UsageError, match=example.reason):
                feed.rows(("x",))
    assert feed.failure is not None
    assert "36.6" not in str(feed.failure)
    assert [entry["event"] for entry in logs] == ["data cannot be read, so this client contributes zero"]
    assert feed.read_ms == read_ms, "of the last read that succeeded"
    example.write(folder, 26)
    feed.refresh()
    assert feed.failure is None
    assert feed.rows(("x",)).tolist() == [[26]]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_at_the_start_a_source_that_cannot_be_read_is_an_error(kind: str, folder: Path) -> None:
    example = EXAMPLES[kind]
    example.write(folder, 20)
    source = read_source(example.table, folder, BROKER)
    assert source.is_there
    example.spoil(folder)
    with pytest.raises(UsageError, match=example.reason):
        source.open()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_key_of_no_source_is_named_with_the_nearest(kind: str, folder: Path) -> None:
    with pytest.raises(InputError, match=r"unknown key 'window'.*window_s"):
        read_source({**EXAMPLES[kind].table, "window": 1}, folder, BROKER)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({}, "found no source, expected one of file, sqlite"),
    "misspelt": ({"sqllite": "d.db"}, "did you mean 'sqlite'"),
    "two": ({"file": "d.csv", "topic": "a"}, "found file and topic"),
    "window beyond a year": ({"file": "d.csv", "window_s": 1e9}, "window_s is 1e"),
    "no window in the query": ({"sqlite": "d.db", "query": "SELECT 1 AS x", "window_s": 60}, "without :since"),
    "no window": ({"sqlite": "d.db", "query": "SELECT 1 AS x WHERE 1 > :since"}, ":since without a window"),
    "a password in a URL": ({"postgres": "postgresql://u:hunter2@h/d", "query": "SELECT 1"}, "with password_file"),
    "a password with a slash": ({"postgres": "postgresql://u:hunter2/@h/d", "query": "SELECT 1"}, "with password_file"),
    "another URL": ({"postgres": "mysql://h/d", "query": "SELECT 1"}, "expected postgresql://user@host"),
    "a password of a query": ({"postgres": "postgresql:///d?password=hunter2", "query": "SELECT 1"}, "another URL"),
    "a password without a host": ({"postgres": "postgresql://u:hunter2/d", "query": "SELECT 1"}, "another URL"),
    "no database": ({"postgres": "postgresql://h", "query": "SELECT 1"}, "expected postgresql://user@host"),
    "no function": ({"python": "sensors", "columns": ["x"]}, "expected module:function"),
    "no columns": ({"python": "sensors:read", "columns": []}, "expected 1 to"),
    "a column twice": ({"python": "sensors:read", "columns": ["x", "x"]}, "named twice"),
    "no entities": ({"home_assistant": "ha.db", "entities": {}}, "expected 1 to"),
    "a filter": ({"topic": "a/#/b", "columns": ["x"]}, "expected a topic filter"),
    "part of a level": ({"topic": "a/b+", "columns": ["x"]}, "expected a topic filter"),
    "no window of a topic": ({"topic": "a", "columns": ["x"], "window_s": 0}, "window_s is 0"),
    "too much memory": ({"topic": "a", "columns": ["x", "y", "z"], "topics_max": 9999}, "lower topics_max"),
    "a password for nobody": (
        {"topic": "a", "columns": ["x"], "broker": {"url": "mqtt://h", "password_file": "p"}},
        "found no username",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_section_is_refused_in_a_line(wrong: str, tmp_path: Path) -> None:
    table, expected = WRONG[wrong]
    with pytest.raises(UsageError, match=expected) as caught:
        read_source(table, tmp_path, BROKER)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_broker_that_knows_the_client_by_password_is_not_asked_for_sensors(tmp_path: Path) -> None:
    """A second connection under its name would end the first."""
    own = msgspec.structs.replace(BROKER, password_file=tmp_path / "p")
    table = {"topic": "a", "columns": ["x"]}
    with pytest.raises(InputError, match=r"name the sensors' broker in \[data.broker\]"):
        read_source(table, tmp_path, own)
    source = read_source({**table, "broker": {"url": "mqtt://sensors", "ca": None}}, tmp_path, own)
    assert isinstance(source.open(), TopicFeed)


def test_what_counts_as_a_number() -> None:
    for value in (1, 1.0, True, "1", " 1e0", msgspec.json.decode(b"1.0")):
        assert number_of(value) == 1
    for value in (None, "", "on", "1_0", "nan", "inf", float("inf"), b"1", [1], 10**400, "9" * 500, Decimal("sNaN")):
        assert np.isnan(number_of(value)), value


# --- databases and functions ------------------------------------------------------------------------------------------


def test_odd_values_of_a_query_are_counted_once_and_not_shown(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "d.db")) as database, database:
        database.execute("CREATE TABLE r (x)")
        database.executemany("INSERT INTO r VALUES (?)", [(1,), ("36.6",), ("Alice",), (None,), (b"Bob",)])
    with capture_logs() as logs:
        feed = opened({"sqlite": "d.db", "query": "SELECT x FROM r"}, folder)
        feed.refresh()
    np.testing.assert_array_equal(feed.rows(("x",)), [[1], [36.6], [NAN], [NAN], [NAN]])
    (entry,) = logs
    assert entry["fields"] == {"x": 2}


def test_a_query_may_return_texts_with_listed_categories(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "d.db")) as database, database:
        database.execute("CREATE TABLE r (arm, age)")
        database.executemany("INSERT INTO r VALUES (?, ?)", [("drug", 60), ("aspirin", 70), (None, 80), (1, 90)])
    given = {"sqlite": "d.db", "query": "SELECT arm, age FROM r"}
    with capture_logs() as logs:
        feed = opened({**given, "categories": {"arm": ["placebo", "drug"]}}, folder)
    assert feed.columns == ("arm", "arm=placebo", "arm=drug", "arm in {placebo, drug}", "age")
    rows = feed.rows(("arm in {placebo, drug}", "arm=drug", "age"))
    np.testing.assert_array_equal(rows, [[1, 1, 60], [NAN, NAN, 70], [NAN, NAN, 80], [NAN, NAN, 90]])
    assert [entry["fields"] for entry in logs if "fields" in entry] == [{"arm": 2}]
    with pytest.raises(InputError, match="no column 'sex', for which categories are listed"):
        opened({**given, "categories": {"sex": ["f", "m"]}}, folder)


def test_a_text_that_is_not_utf_8_is_missing_and_the_others_count(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "d.db")) as database, database:
        database.execute("CREATE TABLE r (x)")
        database.execute("INSERT INTO r VALUES (1), (CAST(x'ff41' AS TEXT))")
    feed = opened({"sqlite": "d.db", "query": "SELECT x FROM r"}, folder)
    np.testing.assert_array_equal(feed.rows(("x",)), [[1], [NAN]])


def test_a_read_leaves_a_programs_own_lock_on_its_database(folder: Path) -> None:
    """A process that opens and closes the file itself would lose it, and another could then write at the same time."""
    _database(folder, 1)
    other = "import sqlite3; sqlite3.connect('d.db', timeout=0).execute('BEGIN IMMEDIATE')"
    with closing(sqlite3.connect(folder / "d.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        opened({"sqlite": "d.db", "query": "SELECT x FROM readings"}, folder)
        found = subprocess.run([sys.executable, "-c", other], cwd=folder, capture_output=True, text=True, check=False)
    assert "database is locked" in found.stderr


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_no_database(kind: str, folder: Path) -> None:
    (folder / "d.db").mkdir() if kind == "folder" else os.mkfifo(folder / "d.db")
    with pytest.raises(InputError, match=f"a {kind}"):
        opened({"sqlite": "d.db", "query": "SELECT 1 AS x"}, folder)


QUERIES = {
    "SELECT x FROM nowhere": "no such table: nowhere",
    "SELEKT 1": "syntax error",
    "SELECT 1 AS x; SELECT 2": "one statement",
    "DELETE FROM readings": "not authorized|readonly",
    "ATTACH 'other.db' AS other": "not authorized|SQLITE_AUTH",
    "PRAGMA writable_schema = 1": "not authorized|SQLITE_AUTH",
    "SELECT 1 AS x, 2 AS x": "named twice",
    "SELECT :until AS x": "until",
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n": "more than 100 rows",
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT sum(x) AS x FROM n": "within 0.2 s",
    "SELECT abs(-9223372036854775808) AS x": "SQLITE_ERROR",
    "SELECT zeroblob(9999999) AS x": "SQLITE_TOOBIG|too big",
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_only_reads_and_ends(query: str, folder: Path) -> None:
    _database(folder, 1)
    before = (folder / "d.db").read_bytes()
    timeout_s = 0.2 if "0.2 s" in QUERIES[query] else PATIENCE_S  # the others end by themselves
    with pytest.raises(InputError, match=QUERIES[query]):
        opened({"sqlite": "d.db", "query": query, "rows_max": 100, "timeout_s": timeout_s}, folder)
    assert (folder / "d.db").read_bytes() == before
    assert not (folder / "other.db").exists()


def test_a_function_gets_the_windows_begin(folder: Path) -> None:
    module = sys.modules["own_sensors"]
    module.read = lambda since_s: [[since_s, None]]  # type: ignore[attr-defined]
    feed = opened({**EXAMPLES["python"].table, "window_s": 3600}, folder)
    assert abs(feed.rows(("x",))[0, 0] - (time.time() - 3600)) < 60
    module.read = lambda since_s: []  # type: ignore[attr-defined]
    feed.refresh()
    assert feed.rows(("x", "y")).shape == (0, 2)
    module.read = lambda since_s: [[1]]  # type: ignore[attr-defined]
    feed.refresh()
    with pytest.raises(UsageError, match="rows have shape"):
        feed.rows(("x",))


def test_a_function_that_never_returns_does_not_stop_the_client(folder: Path) -> None:
    """It is not called again meanwhile, so that threads do not pile up."""
    module, may_return, calls = sys.modules["own_sensors"], threading.Event(), []
    feed = opened({**EXAMPLES["python"].table, "timeout_s": 0.5}, folder)

    def hanging() -> list[list[float]]:
        calls.append(True)
        may_return.wait()
        return [[5, 5]]

    module.read = hanging  # type: ignore[attr-defined]
    feed.refresh()
    assert "was not read within 0.5 s" in str(feed.failure)
    feed.refresh()
    assert "an earlier read has not ended yet" in str(feed.failure)
    assert len(calls) == 1
    may_return.set()
    for _ in range(1000):
        feed.refresh()
        if feed.failure is None:
            break
        time.sleep(0.01)
    assert feed.rows(("x",)).tolist() == [[5]]


def test_a_client_that_ends_does_not_wait_for_a_function(folder: Path) -> None:
    module, has_begun, may_return = sys.modules["own_sensors"], threading.Event(), threading.Event()
    feed = opened({**EXAMPLES["python"].table, "timeout_s": 600}, folder)

    def hanging() -> list[list[float]]:
        has_begun.set()
        may_return.wait()
        return [[5, 5]]

    module.read = hanging  # type: ignore[attr-defined]

    async def story() -> None:
        async with feed.live():
            reading = asyncio.create_task(asyncio.to_thread(feed.refresh))
            await asyncio.to_thread(has_begun.wait)
        await reading

    with capture_logs() as logs:
        asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    may_return.set()
    assert feed.failure is not None
    assert not logs, "that the client ends is no fault of the data"


def test_what_a_function_masks_is_missing(folder: Path) -> None:
    feed = opened(EXAMPLES["python"].table, folder)
    module = sys.modules["own_sensors"]
    module.read = lambda: np.ma.masked_equal([[1, 99]], 99)  # type: ignore[attr-defined]
    feed.refresh()
    np.testing.assert_array_equal(feed.rows(("x", "y")), [[1, NAN]])
    module.read = lambda: [["Alice", 1]]  # type: ignore[attr-defined]
    feed.refresh()
    assert "rows are no array of numbers" in str(feed.failure)
    assert "Alice" not in str(feed.failure)


def test_a_function_that_ends_the_process_does_not(folder: Path) -> None:
    feed = opened(EXAMPLES["python"].table, folder)
    sys.modules["own_sensors"].read = sys.exit  # type: ignore[attr-defined]
    feed.refresh()
    assert feed.failure is not None


# --- Home Assistant ---------------------------------------------------------------------------------------------------


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "ha.db")


def _entities(recorder: Recorder, **more: Any) -> Feed:
    entities = {"kitchen": "sensor.kitchen", "hall": "sensor.hall"}
    return opened({"home_assistant": str(recorder.path), "entities": entities, **more}, recorder.path.parent)


def test_the_mean_weights_each_state_with_how_long_it_held(recorder: Recorder) -> None:
    """Home Assistant writes changes only: 10 for 3000 s, away for 300 s, 20 for 300 s."""
    now_s = time.time()
    recorder.state("sensor.kitchen", "10", now_s - 5000)
    recorder.state("sensor.kitchen", "unavailable", now_s - 600)
    recorder.state("sensor.kitchen", "20", now_s - 300)
    recorder.state("sensor.hall", "15", now_s - 90_000)
    feed = _entities(recorder, take="mean")
    np.testing.assert_allclose(feed.rows(("kitchen", "hall")), [[(10 * 3000 + 20 * 300) / 3300, 15]], rtol=0.01)
    recorder.state("sensor.hall", "unavailable", now_s)
    last = _entities(recorder)
    np.testing.assert_array_equal(last.rows(("kitchen", "hall")), [[20, NAN]])


def test_hours_are_rows(recorder: Recorder) -> None:
    now_s = time.time() // 3600 * 3600
    for entity, base in (("sensor.kitchen", 20.0), ("sensor.hall", 15.0)):
        for hours in range(30):
            if (entity, hours) != ("sensor.hall", 1):
                recorder.hour(entity, base + hours, now_s - 3600 * hours)
    feed = _entities(recorder, take="hours", window_s=4 * 3600)
    np.testing.assert_array_equal(feed.rows(("kitchen", "hall"))[-3:], [[22, 17], [21, NAN], [20, 15]])
    assert len(feed.rows(("kitchen",))) in (4, 5)


def test_an_unknown_entity_is_named_with_the_nearest(recorder: Recorder) -> None:
    recorder.state("sensor.kitchen", "10", time.time())
    recorder.state("sensor.hallway", "10", time.time())
    with pytest.raises(InputError, match=r"'sensor.hall' is not in table states_meta .*did you mean 'sensor.hallway'"):
        _entities(recorder)


def test_a_recorder_that_has_stopped_has_no_data(recorder: Recorder) -> None:
    """Its last states would otherwise count for ever."""
    for entity in ("sensor.kitchen", "sensor.hall"):
        recorder.state(entity, "10", time.time() - 7200)
    with pytest.raises(InputError, match="has recorded nothing for 60 minutes"):
        _entities(recorder)
    assert _entities(recorder, window_s=9000).rows(("hall",)).tolist() == [[10]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("DROP TABLE schema_changes", "no schema of Home Assistant; expected 38 or newer"),
        ("UPDATE schema_changes SET schema_version = 30", "schema 30; expected 38 or newer"),
    ],
)
def test_another_schema_is_refused(recorder: Recorder, change: str, expected: str) -> None:
    with closing(sqlite3.connect(recorder.path)) as database, database:
        database.execute(change)
    with pytest.raises(InputError, match=expected):
        _entities(recorder)


def test_home_assistant_may_write_meanwhile(recorder: Recorder) -> None:
    for entity in ("sensor.kitchen", "sensor.hall"):
        recorder.state(entity, "10", time.time())
    with closing(sqlite3.connect(recorder.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE states SET state = '11'")
        feed = _entities(recorder)
        assert feed.rows(("hall",)).tolist() == [[10]]
        writer.execute("COMMIT")
        feed.refresh()
        assert feed.rows(("hall",)).tolist() == [[11]]
