"""Point 2 of the hardening: damage, edits, and missing, doubled or old records stop the start of a store.

A store that has lost its newest transactions does not open either. What remains is shown, too: an old copy of all files
of a store opens.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dca_proto.cli.inspect import describe_store
from dca_proto.crypto.sealing import Identity
from dca_proto.errors import UsageError
from dca_proto.protocol.compute.round import CONTRIBUTIONS
from dca_proto.protocol.effects import Forget, Persist, Write
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.runtime import store
from dca_proto.runtime.counter import counter_path, make_counter, read_counter
from dca_proto.runtime.store import SqliteStore, StoreRecord
from dca_proto.runtime.store_check import read_store

KEY, OTHER = Identity(bytes(32)).store_key, Identity(b"\1" * 32).store_key
ROUNDS = "client-round"
ADVICE = r": start with a fresh one \(a client enrolled anew\), not with an old copy"
PAGE, FRAME = 4096, 4096 + 24


def charge(number: int) -> Persist:
    round_id = bytes([number]) * 16
    entry = Charge(round_id, "mean", bytes(16), mu=1.5, epsilon=8.4, delta=1e-6, at_ms=0, number=number)
    return Persist(LEDGER, round_id, msgspec.msgpack.encode(entry))


def filled(path: Path, *transactions: Sequence[Write], key: bytes = KEY) -> list[StoreRecord]:
    """A store after these transactions, closed; its records."""

    async def fill() -> list[StoreRecord]:
        store = SqliteStore(path, key)
        for writes in transactions:
            await store.commit(writes)
        records = store.load()
        await store.close()
        return records

    return asyncio.run(fill())


def opened(path: Path, key: bytes = KEY) -> list[StoreRecord]:
    return filled(path, key=key)


def read_or_error(path: Path) -> Any:
    """The records, or the line that stops the start."""
    try:
        return opened(path)
    except UsageError as error:
        return str(error)


def changed(path: Path, statement: str, *values: object) -> None:
    """The store as another hand might have left it."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of flushes are not what is tested."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as directory:
        yield Path(directory)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A client's store: four charges, two rounds, one of which was replaced."""
    place = tmp_path / "client.db"
    filled(
        place,
        [charge(1), Persist(ROUNDS, b"1" * 16, b"first")],
        [charge(2), charge(3)],
        [charge(4), Persist(ROUNDS, b"1" * 16, b"second"), Persist(ROUNDS, b"2" * 16, b"other")],
        [Forget(ROUNDS, b"2" * 16), Forget(ROUNDS, b"never was")],
    )
    return place


RECORD = f"record {'02' * 16} of table 'ledger' is not as this actor wrote it"
MISSING = r"records and a seal over 5: a record is missing, duplicated or outdated"


def test_hardening_2_an_untouched_store_opens_again_and_again(path: Path) -> None:
    before = opened(path)
    assert [(one.table, one.key[0]) for one in before] == [(ROUNDS, ord("1")), *((LEDGER, n) for n in (1, 2, 3, 4))]
    filled(path, [Forget(LEDGER, charge(4).key), charge(5)])
    filled(path, [Forget(LEDGER, charge(5).key), charge(4)])
    assert opened(path) == before
    assert [row[1:] for row in read_store(path, KEY)] == [(one.table, one.key, one.value) for one in before]


def with_less_spent(value: bytes) -> bytes:
    entry = msgspec.msgpack.decode(value, type=Charge)
    return msgspec.msgpack.encode(msgspec.structs.replace(entry, mu=0.0, epsilon=0.0))


def test_hardening_2_a_changed_field_names_file_and_record_and_what_to_do(path: Path) -> None:
    """The ledger's figures are whole afterwards, and lower."""
    value = with_less_spent(charge(2).value)
    changed(path, "UPDATE records SET value = ? WHERE kind = 'ledger' AND key = ?", value, charge(2).key)
    for read in (SqliteStore, read_store):
        with pytest.raises(UsageError, match=rf"^store {path} is damaged \({RECORD}\){ADVICE}[^\n]*$"):
            read(path, KEY)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE records SET tag = zeroblob(16) WHERE key = x'02020202020202020202020202020202'", RECORD),
        ("UPDATE records SET namespace = x'00' WHERE key = x'02020202020202020202020202020202'", RECORD),
        ("DELETE FROM records WHERE key = x'02020202020202020202020202020202'", f"4 {MISSING}"),
        ("DELETE FROM records", f"0 {MISSING}"),
        ("UPDATE records SET tag = 'text' WHERE key = x'02020202020202020202020202020202'", RECORD),
        ("UPDATE seal SET tag = 'text'", f"5 {MISSING}"),
        ("UPDATE seal SET records = 4", "5 records and a seal over 4"),
        ("UPDATE seal SET tag = zeroblob(16)", f"5 {MISSING}"),
        ("DELETE FROM seal", "another identity, or its seal is damaged"),
        ("INSERT INTO seal SELECT * FROM seal", "another identity, or its seal is damaged"),
        ("UPDATE records SET value = 'text'", "types"),
    ],
)
def test_hardening_2_missing_or_edited_records_stop_the_start(path: Path, statement: str, message: str) -> None:
    changed(path, statement)
    for read in (SqliteStore, read_store):
        with pytest.raises(UsageError, match=rf"^store {path} [^\n]*{message}[^\n]*{ADVICE[2:]}"):
            read(path, KEY)


@pytest.mark.parametrize("length", [0, 31, 35, 40])
def test_a_damaged_contribution_is_shown_as_unreadable(tmp_path: Path, length: int) -> None:
    """It ends before what stands at fixed places, or before the tags that its header counts."""
    filled(tmp_path / "compute.db", [Persist(CONTRIBUTIONS, bytes(32), b"\xff" * length)])
    (shown,) = describe_store(tmp_path / "compute.db")
    assert shown.keys() == {"kind", "unreadable", "size"}
    assert f"{length} bytes" in shown["unreadable"]


def row(path: Path, key: bytes) -> tuple[object, ...]:
    with closing(sqlite3.connect(path)) as connection:
        return tuple(connection.execute("SELECT * FROM records WHERE key = ?", (key,)).fetchone())


def test_hardening_2_an_old_record_with_its_own_tag_stops_the_start(path: Path, tmp_path: Path) -> None:
    """Each tag holds: only the seal knows which records belong together."""
    old, now = tmp_path / "old.db", charge(2).key
    shutil.copy(path, old)
    filled(path, [Persist(LEDGER, now, b"returned")])
    changed(path, "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?)", *row(old, now))
    with pytest.raises(UsageError, match=rf"5 {MISSING}"):
        SqliteStore(path, KEY)


def test_hardening_2_a_forgotten_record_that_is_put_back_stops_the_start(path: Path, tmp_path: Path) -> None:
    old, gone = tmp_path / "old.db", charge(2).key
    shutil.copy(path, old)
    filled(path, [Forget(LEDGER, gone)])
    changed(path, "INSERT INTO records VALUES (?, ?, ?, ?, ?)", *row(old, gone))
    with pytest.raises(UsageError, match=r"5 records and a seal over 4: a record is missing, duplicated or"):
        SqliteStore(path, KEY)


@pytest.mark.parametrize("column", ["namespace", "kind", "key"])
def test_hardening_2_a_record_under_another_name_stops_the_start(path: Path, column: str) -> None:
    """A copy of a round's record, under another table, key or owner, with the tag of the first."""
    values = {"namespace": "x'07'", "kind": "'client-roung'", "key": "x'07'"}
    columns = [values[one] if one == column else one for one in ("namespace", "kind", "key", "value", "tag")]
    changed(path, f"INSERT INTO records SELECT {', '.join(columns)} FROM records WHERE kind = '{ROUNDS}'")
    with pytest.raises(UsageError, match=r"record [0-9a-f]+ of table '[a-z-]+' is not as this actor wrote it"):
        SqliteStore(path, KEY)


def test_hardening_2_a_record_of_another_actor_of_a_shared_store_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"

    async def fill() -> None:
        store = SqliteStore(path, KEY)
        await store.view(b"a").commit([charge(1)])
        await store.view(b"b").commit([charge(2)])
        await store.close()

    asyncio.run(fill())
    changed(path, "UPDATE records SET namespace = x'63' WHERE namespace = x'61'")
    with pytest.raises(UsageError, match=rf"record {'01' * 16} of table 'ledger' is not as this actor wrote it"):
        SqliteStore(path, KEY)


def test_hardening_2_a_damaged_index_stops_the_start(path: Path) -> None:
    """A key stands in the table and in its index, by which records are found and replaced."""
    content, key = path.read_bytes(), charge(2).key
    places = [at for at in range(len(content)) if content.startswith(key, at)]
    assert len(places) > 2, "and in the charge itself"
    for at in places:
        damaged = bytearray(content)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="is damaged"):
            SqliteStore(path, KEY)


def test_hardening_2_another_actors_store_is_refused_with_a_reason(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(
        UsageError, match=r"written under another identity, or its counter client.db-counter is damaged"
    ):
        SqliteStore(path, OTHER)
    counter = counter_path(path).read_bytes()
    counter_path(path).unlink()
    with pytest.raises(UsageError, match=r"has lost its counter client.db-counter"):
        SqliteStore(path, OTHER)
    counter_path(path).write_bytes(counter)
    assert len(opened(path)) == 5
    assert path.read_bytes()[100:] == before[100:]


def test_hardening_2_no_flipped_bit_of_the_file_changes_what_is_read(path: Path, memory: Path) -> None:
    """Everywhere in the file: refused in one line that names it, or of no consequence (counters, unused room)."""
    before, content, copy = opened(path), path.read_bytes(), memory / "copy.db"
    shutil.copy(counter_path(path), counter_path(copy))
    generator = random.Random(2)
    refused = 0
    used = [at for at in range(100, len(content)) if content[at]]
    for at in [*range(100), *generator.sample(range(100, len(content)), 150), *generator.sample(used, 250)]:
        damaged = bytearray(content)
        damaged[at] ^= 1 << generator.randrange(8)
        copy.write_bytes(damaged)
        Path(f"{copy}-wal").unlink(missing_ok=True)
        found = read_or_error(copy)
        assert found == before or (str(copy) in found and "\n" not in found), at
        refused += isinstance(found, str)
    assert refused > 200


# --- the log that a kill leaves ---------------------------------------------------------------------------------------


class Killed:
    """A store whose process was killed after some transactions, each with one more charge.

    Attributes:
        states, ends, counters: the records, the log's length and the counter after each transaction.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "killed.db"
        self.states: list[list[StoreRecord]] = []
        self.ends: list[int] = []
        self.counters: list[bytes] = []
        asyncio.run(self._fill(directory / "live.db"))
        self.log = self.log_path.read_bytes()

    @property
    def log_path(self) -> Path:
        return Path(f"{self.path}-wal")

    async def _fill(self, live: Path) -> None:
        store = SqliteStore(live, KEY)
        for number in range(1, 5):
            await store.commit([charge(number)])
            self.states.append(store.load())
            self.ends.append(os.stat(f"{live}-wal").st_size)  # noqa: PTH116 - a test may wait for the disk
            self.counters.append(counter_path(live).read_bytes())
        shutil.copy(live, self.path)
        shutil.copy(f"{live}-wal", self.log_path)
        self.database = self.path.read_bytes()
        await store.close()

    def found(self, log: bytes | None, after: int = 4) -> Any:
        """What the next start reads with that log and the counter after that many transactions, or why not."""
        self.path.write_bytes(self.database)
        counter_path(self.path).write_bytes(self.counters[after - 1])
        self.log_path.unlink(missing_ok=True)
        if log is not None:
            self.log_path.write_bytes(log)
        return read_or_error(self.path)


@pytest.fixture(scope="module")
def killed(memory: Path) -> Killed:
    made = Killed(memory)
    assert made.ends[-1] == len(made.log)
    assert len({len(state) for state in made.states}) == 4
    return made


def test_hardening_2_an_untouched_log_is_read_whole(killed: Killed) -> None:
    assert killed.found(killed.log) == killed.states[-1]


def test_hardening_2_a_flipped_bit_in_the_log_takes_back_nothing_unnoticed(killed: Killed) -> None:
    """SQLite itself takes the log as ended there, and silently forgets every later charge."""
    generator = random.Random(3)
    heads = [32 + frame * FRAME + at for frame in range(killed.ends[-1] // FRAME) for at in range(24)]
    places = [*range(32), *heads, *generator.sample(range(32, len(killed.log)), 60)]
    refused = 0
    for place in places:
        damaged = bytearray(killed.log)
        damaged[place] ^= 1 << generator.randrange(8)
        found = killed.found(bytes(damaged))
        if found != killed.states[-1]:
            assert f"store {killed.path} lacks its last " in found, place
            assert killed.log_path.read_bytes() == damaged, "and the next start reports it, too"
            refused += 1
    assert refused > 0.9 * len(places)


def test_attack_57_no_cut_of_the_log_takes_back_a_transaction_unnoticed(killed: Killed) -> None:
    """The next start finds all that was acknowledged, or names what is lost, since when, and what to do."""
    cuts = random.Random(57).sample(range(len(killed.log)), 40)
    for cut in sorted({0, *killed.ends[:-1], *(end - 1 for end in killed.ends), *cuts}):
        kept = sum(end <= cut for end in killed.ends)
        lost = f"{4 - kept} transaction{'s' * (kept < 3)}"
        since = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        assert re.fullmatch(
            rf"store \S+killed.db lacks its last {lost}, {since}: its counter has 5, the last on .* UTC. The log "
            rf"killed.db-wal is cut, damaged or missing.*{ADVICE[2:]}.*",
            killed.found(killed.log[:cut]),
        ), cut
        if kept:
            assert killed.found(killed.log[:cut], after=kept) == killed.states[kept - 1], "killed when it had no more"
    assert "lacks its last 4 transactions" in killed.found(None)


def test_attack_57_a_missing_counter_or_store_is_named(killed: Killed) -> None:
    killed.found(killed.log)
    for log in (killed.log, None):
        killed.found(log)
        counter_path(killed.path).unlink()
        assert re.search(rf"has lost its counter killed.db-counter, .*{ADVICE[2:]}", read_or_error(killed.path))
    for left in (None, b""):
        killed.found(killed.log)
        killed.path.unlink()
        killed.log_path.unlink(missing_ok=True)
        if left is not None:
            killed.path.write_bytes(left)
        for read in (SqliteStore, read_store):
            with pytest.raises(UsageError, match=r"is missing or empty, but had 5 transactions, the last on .* UTC"):
                read(killed.path, KEY)
        assert killed.path.exists() == (left is not None)


def test_attack_57_a_damaged_counter_stops_the_start_unless_one_count_is_whole(killed: Killed) -> None:
    """As after a power failure while it was written: the count before is whole, and the store is one ahead of it."""
    whole = killed.counters[-1]
    for slot in (0, 1):
        torn = bytearray(whole)
        torn[slot * len(whole) // 2] ^= 1
        killed.found(killed.log)
        counter_path(killed.path).write_bytes(torn)
        assert read_or_error(killed.path) == killed.states[-1]
    for damaged in (b"", whole[:20], bytes(len(whole))):
        killed.found(killed.log)
        counter_path(killed.path).write_bytes(damaged)
        assert "or its counter killed.db-counter is damaged" in read_or_error(killed.path)


def test_attack_57_a_second_process_that_starts_at_once_does_not_replace_the_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find no store and no counter. Only one gets the lock, and its counter is the one that stays."""
    path, opened = tmp_path / "new.db", []
    monkeypatch.setattr(store, "_BUSY_S", 0.1)  # the second waits for the first, which waits for it to give up

    def try_to_open() -> None:
        with suppress(UsageError):
            opened.append(SqliteStore(path, KEY))

    def make_meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(store, "make_counter", make_counter)
        try_to_open()
        make_counter(*arguments)

    monkeypatch.setattr(store, "make_counter", make_meanwhile)
    try_to_open()
    (only,) = opened

    async def commit() -> None:
        await only.commit([Persist("ledger", b"1", b"charged")])
        await only.close()

    asyncio.run(commit())
    counted = read_counter(path, KEY)
    assert counted is not None
    assert counted.transactions == 2


def test_hardening_2_a_torn_last_transaction_is_none(killed: Killed) -> None:
    """As a power failure leaves it, before the counter is written: cut, or its frames written in any order."""
    for cut in range(killed.ends[-2], killed.ends[-1], 509):
        assert killed.found(killed.log[:cut], after=3) == killed.states[-2]
        torn = killed.log[: killed.ends[-2]] + bytes(cut - killed.ends[-2]) + killed.log[cut:]
        assert killed.found(torn, after=3) == (killed.states[-1] if torn == killed.log else killed.states[-2])


def test_hardening_2_undetected_is_only_an_old_copy_of_all_files(path: Path) -> None:
    """Consistent in themselves: only Compute nodes that have seen a charge's number notice (attack 44)."""
    old, counter = path.read_bytes(), counter_path(path).read_bytes()
    filled(path, [charge(5)])
    path.write_bytes(old)
    assert "lacks its last 1 transaction, since" in read_or_error(path)
    counter_path(path).write_bytes(counter)
    assert len(opened(path)) == 5


def test_hardening_2_a_store_of_an_earlier_format_is_refused_as_such(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[71] = 1
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"of another version \(found format 1, expected 3\): run the version that"):
        SqliteStore(path, KEY)


def test_hardening_2_tags_and_seal_show_nothing_of_the_key(path: Path) -> None:
    other = path.with_name("other.db")
    filled(other, [charge(1)], key=OTHER)
    assert KEY not in path.read_bytes()
    assert row(path, charge(1).key)[:-1] == row(other, charge(1).key)[:-1]
    assert row(path, charge(1).key)[-1] != row(other, charge(1).key)[-1]
