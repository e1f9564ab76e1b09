"""The real store after a power failure in mid-write: SQLite's log cut off or damaged in its last transaction.

    database | log: head, transaction 1, ..., last transaction <- cut or flipped here

The counter is written after the transaction. So whatever the tail looks like, the store opens with the records as they
were before the last transaction or after it.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dca_proto.errors import UsageError
from dca_proto.protocol.effects import Forget, Persist, Write
from dca_proto.runtime.store import SqliteStore, StoreRecord

EARLIER: list[list[Write]] = [
    [Persist("ledger", bytes([number]), bytes([number]) * 900) for number in range(6)],
    [Persist("ledger", b"\x01", b"charged"), Persist("shares", b"a", b"s" * 3000)],
]
LAST: list[Write] = [Persist("ledger", b"\x02", b"charged again"), Persist("shares", b"b", b"t" * 9000)] + [
    Persist("round", bytes([number]), bytes(2000)) for number in range(4)
]
MEMORY = Path("/dev/shm")
KEY = bytes(32)
FRAME_HEAD_BYTES, LOG_HEAD_BYTES = 24, 32  # of SQLite's log, file format section 4


class TornStore:
    """A store as it lay on disk before its last transaction and after it, and its records then."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.before, self.after = asyncio.run(self._written())
        self.log = (directory / "after.db-wal").read_bytes()
        self.tail_at = len((directory / "before.db-wal").read_bytes())

    async def _written(self) -> tuple[list[StoreRecord], list[StoreRecord]]:
        store = SqliteStore(self.directory / "live.db", KEY)
        for writes in EARLIER:
            await store.commit(writes)
        before = store.load()
        self._copy("before")
        await store.commit(LAST)
        after = store.load()
        self._copy("after")
        await store.close()
        return before, after

    def _copy(self, name: str) -> None:
        for suffix in ("", "-wal", "-counter"):
            shutil.copy(self.directory / f"live.db{suffix}", self.directory / f"{name}.db{suffix}")

    def found(self, log: bytes) -> list[StoreRecord]:
        """What a store finds with that log beside the database."""
        path = self.directory / "found.db"
        shutil.copy(self.directory / "after.db", path)
        shutil.copy(self.directory / "before.db-counter", self.directory / "found.db-counter")
        (self.directory / "found.db-wal").write_bytes(log)

        async def opened() -> list[StoreRecord]:
            store = SqliteStore(path, KEY)
            records = store.load()
            await store.commit([Persist("goes", b"on", b"")])
            assert len(store.load()) == len(records) + 1
            await store.close()
            return records

        return asyncio.run(opened())


@pytest.fixture(scope="module")
def files() -> Iterator[TornStore]:
    """In memory where there is such a folder: hundreds of flushes are not what is tested."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        made = TornStore(Path(directory))
        assert made.before != made.after
        assert made.tail_at < len(made.log), "the last transaction is in the log"
        yield made


def test_untouched_copies_have_all_records(files: TornStore) -> None:
    assert files.found(files.log) == files.after
    assert files.found(files.log[: files.tail_at]) == files.before


@pytest.mark.long
def test_a_tail_that_is_cut_anywhere_is_not_there(files: TornStore) -> None:
    """At every frame's edges, the last bytes, and a sample of places in between: before, and after only if whole."""
    page = int.from_bytes(files.log[8:12], "big")
    frames = range(files.tail_at, len(files.log) + 1, page + FRAME_HEAD_BYTES)
    edges = {edge + off for edge in frames for off in (-1, 0, 1, FRAME_HEAD_BYTES)}
    sample = random.Random(28).sample(range(files.tail_at, len(files.log)), 60)
    cuts = sorted(cut for cut in edges | set(sample) if files.tail_at <= cut < len(files.log))
    assert len(cuts) > 70
    for cut in cuts:
        assert files.found(files.log[:cut]) == files.before, cut
        zeroed = files.log[:cut] + bytes(len(files.log) - cut)
        assert files.found(zeroed) == (files.after if zeroed == files.log else files.before), (cut, "zeros after")


def test_a_flipped_bit_anywhere_in_the_tail_undoes_it(files: TornStore) -> None:
    """Checksums of the log, each over all before it: what stands behind the damage counts as never written."""
    generator = random.Random(29)
    for place in generator.sample(range(files.tail_at, len(files.log)), 80):
        damaged = bytearray(files.log)
        damaged[place] ^= 1 << generator.randrange(8)
        assert files.found(bytes(damaged)) == files.before, place


def test_parts_of_the_tail_that_reached_the_disk_out_of_order_undo_it(files: TornStore) -> None:
    """A disk may write the second half first: without the first half it counts as never written."""
    middle = (files.tail_at + len(files.log)) // 2
    torn = files.log[: files.tail_at] + bytes(middle - files.tail_at) + files.log[middle:]
    assert files.found(torn) == files.before


# --- a kill, and a log that is cut afterwards -------------------------------------------------------------------------


WRITER = """
import asyncio, sys
from pathlib import Path
from dca_proto.protocol.effects import Forget, Persist
from dca_proto.runtime.store import SqliteStore

async def write():
    store = SqliteStore(Path(sys.argv[1]), bytes(32))
    number = sum(record.table == "t" for record in store.load())
    while True:
        writes = [Persist("t", number.to_bytes(4, "big"), b"v" * 500), Persist("other", b"k", bytes(number))]
        await store.commit(writes if number % 40 else [*writes, Forget("other", b"k")])  # merges the log into the file
        number += 1
        print(number, flush=True)  # as an actor sends a message: what it printed is acknowledged

asyncio.run(write())
"""


def acknowledged(path: Path, count: int) -> int:
    """Let a process write until it has acknowledged `count` transactions or more, and kill it; return how many."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(count):
            last = writer.stdout.readline()
        writer.kill()
        return int([last, *filter(None, writer.stdout.read().splitlines())][-1])


def kept(path: Path) -> int | None:
    """How many transactions a store finds; None if it does not open for a lack of some."""
    try:
        store = SqliteStore(path, KEY)
    except UsageError as error:
        if "lacks its last" not in str(error):
            raise
        return None
    found = sum(record.table == "t" for record in store.load())
    asyncio.run(store.close())
    return found


def copied(source: Path, target: Path) -> Path:
    """Copy the files of a store that nothing has open."""
    for suffix in ("", "-wal", "-shm", "-counter"):
        shutil.copy(f"{source}{suffix}", f"{target}{suffix}") if Path(f"{source}{suffix}").exists() else None
    return target


@pytest.mark.long
def test_attack_57_none_of_200_cuts_of_a_killed_stores_log_forgets_what_was_acknowledged() -> None:
    """20 kills, each at another number of transactions; after each, ten cuts at random places."""
    generator = random.Random(57)
    silent, named = [], 0
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        for kill in range(20):
            path = Path(directory) / f"{kill}.db"
            told = acknowledged(path, generator.randrange(2, 90))
            whole = kept(copied(path, path.with_name("whole.db")))
            assert whole in (told, told + 1), "a kill alone is no loss, and no false alarm"
            for _ in range(10):
                copy = copied(path, path.with_name("cut.db"))
                log = Path(f"{copy}-wal")
                with log.open("r+b") as file:
                    file.truncate(cut := generator.randrange(log.stat().st_size or 1))
                if not cut:
                    log.unlink()
                found = kept(copy)
                named += found is None
                if found is not None and found < told:
                    silent.append((kill, cut, found, told))
    assert not silent
    assert named > 150


@pytest.mark.long
def test_a_kill_at_any_moment_is_no_false_alarm() -> None:
    """One store, 60 lives: none forgets what was acknowledged, none refuses to start."""
    generator = random.Random(9)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        path, told = Path(directory) / "store.db", 0
        for _ in range(60):
            told = acknowledged(path, generator.randrange(1, 12))
            assert kept(copied(path, path.with_name("copy.db"))) in (told, told + 1)


# --- a full disk -----------------------------------------------------------------------------------------------------


FILLED = """
import asyncio, resource, signal, sys
from pathlib import Path
from dca_proto.protocol.effects import Forget, Persist
from dca_proto.errors import UsageError
from dca_proto.runtime.store import SqliteStore

async def fill():
    store = SqliteStore(Path(sys.argv[1]), bytes(32))
    await store.commit([Persist("t", b"first", b"kept")])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        for number in range(100):
            await store.commit([Persist("t", number.to_bytes(2, "big"), bytes(3000))])
    except UsageError as error:
        refused = number
        print(refused, error)
    try:
        await store.commit([Persist("t", b"small", b"x" * 9000), Persist("t", b"first", b"lost")])
    except UsageError:
        print("refused again")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await store.commit([Persist("t", b"last", b"there is room")])
    print([record.key.hex() for record in store.load()])
    await store.close()

asyncio.run(fill())
"""


def test_a_full_disk_refuses_whole_transactions_until_there_is_room(tmp_path: Path) -> None:
    """Attack 28: no file may grow beyond 300 kB, which fails writes as a full disk does."""
    path = tmp_path / "store.db"
    filled = subprocess.run([sys.executable, "-c", FILLED, str(path)], capture_output=True, text=True, check=False)
    assert filled.returncode == 0, filled.stderr
    refused, again, keys = filled.stdout.splitlines()
    number = int(refused.split()[0])
    assert 5 < number < 90
    assert "cannot write store" in refused
    assert "free disk space and start again" in refused
    assert again == "refused again"
    store = SqliteStore(path, KEY)
    found = {record.key: record.value for record in store.load()}
    asyncio.run(store.close())
    assert keys == str([key.hex() for key in sorted(found)])
    written = {one.to_bytes(2, "big"): bytes(3000) for one in range(number)}
    assert found == written | {b"first": b"kept", b"last": b"there is room"}


def test_a_full_database_refuses_only_what_does_not_fit(tmp_path: Path) -> None:
    """SQLite's own limit of pages, as where a quota ends: nothing of the transaction is done, its deletions neither."""

    async def write() -> None:
        store = SqliteStore(tmp_path / "store.db", KEY)
        await store.commit([Persist("t", b"old", b"o" * 20_000)])
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count={pages + 2}").fetchone()
        with pytest.raises(UsageError, match=r"cannot write store .* full; free disk space"):
            await store.commit([Persist("t", b"a", b"a"), Forget("t", b"old"), Persist("t", b"new", bytes(200_000))])
        assert [record.key for record in store.load()] == [b"old"]
        await store.commit([Forget("t", b"old"), Persist("t", b"new", bytes(10_000))])
        assert [record.key for record in store.load()] == [b"new"]
        await store.close()

    asyncio.run(write())
