"""The store contract, in memory and in SQLite; then what only a file can get wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dca_proto.cli import main
from dca_proto.errors import UsageError
from dca_proto.protocol.effects import Forget, Persist
from dca_proto.runtime.counter import counter_path
from dca_proto.runtime.keyfile import read_identity
from dca_proto.runtime.store import MemoryStore, SqliteStore, StoreRecord
from dca_proto.runtime.store_check import read_store, reader

AnyStore = MemoryStore | SqliteStore
KEY = bytes(32)


@pytest.fixture(params=["memory", "sqlite"])
def reopened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], AnyStore]:
    """Opens the same store again and again; the caller closes."""
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "store.db", KEY)
    memory = MemoryStore()
    return lambda: memory


def test_records_come_back_in_order_replaced_and_forgotten(reopened: Callable[[], AnyStore]) -> None:
    async def scenario() -> None:
        store = reopened()
        assert store.load() == []
        await store.commit([Persist("b", b"1", b"one"), Persist("a", b"\xff", b""), Persist("a", b"\x00", b"x")])
        await store.commit([Persist("b", b"1", b"uno"), Forget("a", b"\x00"), Forget("a", b"never was")])
        await store.commit([Persist("c", b"k", b"1"), Forget("c", b"k"), Persist("c", b"k", b"2")])
        await store.close()
        store = reopened()
        assert store.load() == [
            StoreRecord("a", b"\xff", b""),
            StoreRecord("b", b"1", b"uno"),
            StoreRecord("c", b"k", b"2"),
        ]
        await store.close()

    asyncio.run(scenario())


def test_views_are_apart(reopened: Callable[[], AnyStore]) -> None:
    async def scenario() -> None:
        store = reopened()
        await store.commit([Persist("t", b"k", b"root")])
        await asyncio.gather(*(store.view(bytes([n])).commit([Persist("t", b"k", bytes([n]))]) for n in range(5)))
        await store.close()
        store = reopened()
        assert [store.view(bytes([n])).load() for n in range(5)] == [
            [StoreRecord("t", b"k", bytes([n]))] for n in range(5)
        ]
        assert store.load() == [StoreRecord("t", b"k", b"root")]
        await store.close()

    asyncio.run(scenario())


def test_commits_that_arrive_together_share_a_transaction(tmp_path: Path) -> None:
    """The first starts at once; the other 349, arriving while it runs, make one more."""

    async def scenario() -> None:
        store = SqliteStore(tmp_path / "store.db", KEY)
        views = [store.view(n.to_bytes(16, "big")) for n in range(350)]
        await asyncio.gather(*(view.commit([Persist("t", b"k", b"v")]) for view in views))
        assert store.transactions <= 2
        assert all(view.load() for view in views)
        await store.close()

    asyncio.run(scenario())


def test_a_cancelled_commit_harms_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore(tmp_path / "store.db", KEY)
        impatient = asyncio.create_task(store.commit([Persist("t", b"1", b"v")]))
        patient = asyncio.create_task(store.commit([Persist("t", b"2", b"v")]))
        await asyncio.sleep(0)
        impatient.cancel()
        await patient
        assert [record.key for record in store.load()] == [b"1", b"2"]
        await store.close()

    asyncio.run(scenario())


WRITER = """
import asyncio, sys
from pathlib import Path
from dca_proto.protocol.effects import Persist
from dca_proto.runtime.store import SqliteStore

async def write():
    store = SqliteStore(Path(sys.argv[1]), bytes(32))
    number = len(store.load())
    while True:
        await store.commit([Persist("t", number.to_bytes(4, "big"), b"v" * 500)])
        print(number, flush=True)
        number += 1

asyncio.run(write())
"""


def test_kill_in_mid_write_loses_nothing_committed(tmp_path: Path) -> None:
    """Attack 28: killed at random moments, the store holds all that was confirmed, and at most one more."""
    path = tmp_path / "store.db"
    rng = random.Random(28)
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(rng.randrange(5, 40)):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        confirmed = [line for line in writer.stdout.read().splitlines() if line]
        writer.stdout.close()
        writer.wait()
        store = SqliteStore(path, KEY)
        keys = [int.from_bytes(record.key, "big") for record in store.load()]
        asyncio.run(store.close())
        assert keys == list(range(len(keys)))
        assert not confirmed or len(keys) in (int(confirmed[-1]) + 1, int(confirmed[-1]) + 2)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    try:
        writer.stdout.readline()
        with pytest.raises(UsageError, match=rf"store .*store.db is in use by process {writer.pid}, which began"):
            SqliteStore(path, KEY)
    finally:
        writer.kill()
        writer.stdout.close()
        writer.wait()


def test_a_second_opening_in_one_process_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", KEY)
    with pytest.raises(UsageError, match="in use"):
        SqliteStore(tmp_path / "store.db", KEY)
    asyncio.run(store.close())


def test_the_file_is_the_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch(0o666)
    store = SqliteStore(path, KEY)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    asyncio.run(store.close())


@pytest.mark.parametrize("content", [b"hosts: localhost\n", b"SQLite format 3\0" + bytes(60)])
def test_a_file_that_is_no_store_is_not_touched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    path.chmod(0o644)
    before = path.stat()
    with pytest.raises(UsageError, match="something else"):
        SqliteStore(path, KEY)
    assert path.read_bytes() == content
    assert (path.stat().st_mode, path.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_file_is_no_store() -> None:
    mode = Path(os.devnull).stat().st_mode
    with pytest.raises(UsageError, match="something else"):
        SqliteStore(Path(os.devnull), KEY)
    assert Path(os.devnull).stat().st_mode == mode


def test_a_store_killed_before_its_first_record_is_opened_again(tmp_path: Path) -> None:
    """The mark is in the file itself, not in a log that has yet to be merged."""
    path = tmp_path / "store.db"
    opened = "import os, sys, pathlib; from dca_proto.runtime.store import SqliteStore"
    command = f"{opened}; SqliteStore(pathlib.Path(sys.argv[1]), bytes(32)); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", command, str(path)], check=False).returncode == 9
    store = SqliteStore(path, KEY)
    assert store.load() == []
    asyncio.run(store.close())


@pytest.mark.parametrize("damage", ["header", "middle", "text"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "store.db"

    async def fill() -> None:
        store = SqliteStore(path, KEY)
        await store.commit([Persist("t", n.to_bytes(4, "big"), bytes(500)) for n in range(200)])
        await store.close()

    asyncio.run(fill())
    content = bytearray(path.read_bytes())
    if damage == "header":
        content[:16] = bytes(16)
    elif damage == "middle":
        content[4096 : len(content) // 2] = random.Random(1).randbytes(len(content) // 2 - 4096)
    else:
        content = bytearray(b"this is no database, it is a letter of some length " * 200)
    path.write_bytes(content)
    advice = "a client enrolled anew.*not with an old copy"
    with pytest.raises(UsageError, match=rf"store .*store.db is damaged[^\n]*{advice}[^\n]*$"):
        SqliteStore(path, KEY)


def test_somebody_elses_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE photos (name TEXT)")
    other.close()
    with pytest.raises(UsageError, match="is a database of something else"):
        SqliteStore(path, KEY)
    other = sqlite3.connect(path)
    assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("photos",)]
    assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    other.close()


def test_an_impossible_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot open store .*No such file"):
        SqliteStore(tmp_path / "missing" / "store.db", KEY)


def test_a_full_disk_fails_the_commit_and_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore(tmp_path / "store.db", KEY)
        await store.commit([Persist("t", b"before", b"v")])
        store._connection.execute("PRAGMA max_page_count = 8")  # as if the disk ended there
        with pytest.raises(UsageError, match=r"cannot write store .*full; free disk space"):
            await store.commit([Persist("t", b"small", b"v"), Persist("t", b"large", bytes(1 << 20))])
        assert [record.key for record in store.load()] == [b"before"]
        await store.close()

    asyncio.run(scenario())


def test_a_full_disk_fails_the_commit_of_many_views_and_changes_none(tmp_path: Path) -> None:
    """The writes of all actors that share a transaction are durable, or none is."""

    async def scenario() -> None:
        store = SqliteStore(tmp_path / "store.db", KEY)
        store._connection.execute("PRAGMA max_page_count = 8")
        small, large = [Persist("t", b"small", b"v")], [Persist("t", b"large", bytes(1 << 20))]
        with pytest.raises(UsageError, match=r"cannot write store .*full; free disk space"):
            await store.commit_all([(b"one", small), (b"two", large)])
        assert [*store.load(b"one"), *store.load(b"two")] == []
        await store.commit_all([(b"one", small), (b"two", small)])
        assert [record.key for view in (b"one", b"two") for record in store.load(view)] == [b"small"] * 2
        await store.close()

    asyncio.run(scenario())


def on_disk(directory: Path, content: bytes) -> bool:
    return any(content in file.read_bytes() for file in directory.iterdir())


def test_deleted_records_are_overwritten(tmp_path: Path) -> None:
    secret = random.Random(5).randbytes(600)

    async def scenario() -> None:
        store = SqliteStore(tmp_path / "store.db", KEY)
        await store.commit([Persist("t", b"k", secret), Persist("t", b"other", b"stays")])
        assert on_disk(tmp_path, secret[:64])
        await store.commit([Forget("t", b"k")])
        assert not on_disk(tmp_path, secret[:64])
        await store.close()

    asyncio.run(scenario())


def test_records_do_not_show_their_values() -> None:
    assert "hidden" not in repr(StoreRecord("t", b"k", b"hidden"))


def test_a_schema_that_is_no_text_is_damage(tmp_path: Path) -> None:
    """SQLite quotes the schema's own damaged bytes, and then its message is no text itself."""
    path = tmp_path / "store.db"
    store = SqliteStore(path, KEY)
    asyncio.run(store.close())
    content = path.read_bytes()
    where = content.index(b"CREATE TABLE")
    path.write_bytes(content[:where] + b"\xe8" * 12 + content[where + 12 :])
    for read in (SqliteStore, read_store):
        with pytest.raises(UsageError, match=r"store .*store.db is damaged"):
            read(path, KEY)


def test_a_compacted_store_is_small_and_has_the_same_records(tmp_path: Path) -> None:
    """By the command, which refuses a store that is in use."""
    call = ["federation", "init", str(tmp_path / "demo"), "--computes", "2", "--broker", "mqtt://127.0.0.1:1"]
    assert main(call) == 0
    file, path = tmp_path / "demo" / "compute-1.toml", tmp_path / "demo" / "compute-1.db"
    key = read_identity(tmp_path / "demo" / "compute-1.key", "compute").store_key

    async def fill() -> list[StoreRecord]:
        store = SqliteStore(path, key)
        await store.commit([Persist("x", bytes([number]), bytes(20_000)) for number in range(100)])
        await store.commit([Forget("x", bytes([number])) for number in range(1, 100)])
        assert main(["store", "compact", str(file)]) == 8
        kept = store.load()
        await store.close()
        return kept

    kept = asyncio.run(fill())
    before = path.stat().st_size
    assert before > 2_000_000
    assert main(["store", "compact", str(file)]) in (None, 0)
    assert path.stat().st_size < 100_000
    again = SqliteStore(path, key)
    assert again.load() == kept
    asyncio.run(again.close())


def test_a_second_process_behind_a_replaced_counter_cannot_write_over_the_first(tmp_path: Path) -> None:
    """A tool that restores files gives the counter another inode, and so takes the lock away."""
    path = tmp_path / "store.db"

    async def scenario() -> None:
        first = SqliteStore(path, KEY)
        await first.commit([Persist("t", b"k", b"first")])
        shutil.copy(counter_path(path), tmp_path / "copy")
        (tmp_path / "copy").replace(counter_path(path))
        second = SqliteStore(path, KEY)
        await second.commit([Persist("t", b"k", b"second")])
        with pytest.raises(UsageError, match="was written by another process"):
            await first.commit([Persist("t", b"k", b"lost")])
        await first.close()
        await second.commit([Persist("t", b"l", b"third")])
        await second.close()

    asyncio.run(scenario())
    assert [value for *_, value in read_store(path, KEY)] == [b"second", b"third"]


def test_a_deleted_value_leaves_the_log_once_a_command_has_read_it(tmp_path: Path) -> None:
    path, secret = tmp_path / "store.db", b"secret of an old epoch"

    async def scenario() -> None:
        store = SqliteStore(path, KEY)
        await store.commit([Persist("epochs", b"k", secret)])
        with contextlib.closing(reader(path)) as reading:
            reading.execute("BEGIN")
            reading.execute("SELECT * FROM records").fetchall()
            await store.commit([Forget("epochs", b"k")])
            assert secret in path.with_name("store.db-wal").read_bytes()
        await store.commit([Persist("other", b"k", b"")])
        assert secret not in path.read_bytes() + path.with_name("store.db-wal").read_bytes()
        await store.close()

    asyncio.run(scenario())


def test_a_store_is_compacted_without_a_temporary_file_and_not_while_it_is_read(tmp_path: Path) -> None:
    path, opened = tmp_path / "store.db", set[str]()
    store = SqliteStore(path, KEY)
    asyncio.run(store.commit([Persist("t", bytes([number]), bytes(100_000)) for number in range(100)]))

    def look() -> None:
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                opened.add(link.readlink().name)

    store._connection.set_progress_handler(look, 10)
    with contextlib.closing(reader(path)) as reading:
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM records").fetchall()
        with pytest.raises(UsageError, match="is being read by another process"):
            store.compact()
    store.compact()
    asyncio.run(store.close())
    assert "store.db" in opened
    assert not [name for name in opened if name.startswith("etilqs")]  # SQLite's name of a temporary file


def test_an_opening_that_fails_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    with monkeypatch.context() as patch:
        patch.setattr("dca_proto.runtime.store.SCHEMA", ("no statement",))
        with pytest.raises(UsageError, match="syntax error"):
            SqliteStore(path, KEY)
    asyncio.run(SqliteStore(path, KEY).close())
