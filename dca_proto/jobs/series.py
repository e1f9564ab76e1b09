"""The results of standing jobs: one durable database with a row for each slot that has ended or begun.

A slot is written before its round is announced (`begin`), and again when it has ended (`finish`, `leave_out`). Each
write is flushed to disk before the call returns. So a restarted schedule knows which slots are over, and a killed one
repeats none. A slot that ended without a result is a *gap* and states its reason.

The database belongs to one trainer. Its rows contain only what the trainer knows: private results and their reasons.

**A plan** is a period with its budget and its jobs. Its settings may not change while it runs, since the shares of the
budget follow from them. The next period is a new plan, and the series of its jobs go on.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.errors import InputError, StorageError, UsageError
from dca_proto.jobs.calendar import Slot
from dca_proto.results.series import BEGUN, DONE, FAILED, MISSED, SeriesResult, SeriesSlot
from dca_proto.runtime.locks import locked, release, require_one_name
from dca_proto.wording import JsonObject, moment, nearest

_APPLICATION_ID = 0x44434153  # "DCAS"
_FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS plans (number INTEGER PRIMARY KEY, begins_ms INTEGER NOT NULL, settings BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS slots (
    job TEXT NOT NULL, at_ms INTEGER NOT NULL, name TEXT NOT NULL, plan INTEGER NOT NULL, state TEXT NOT NULL,
    ended_ms INTEGER, reason TEXT NOT NULL DEFAULT '', charged INTEGER NOT NULL DEFAULT 0, result BLOB,
    PRIMARY KEY (job, at_ms));
"""
_COLUMNS = "name, at_ms, state, ended_ms, reason, charged, result"  # as `_slot` takes them
_BUSY_S = 10.0


class SlotCounts(msgspec.Struct, frozen=True):
    """How many slots of a job have ended in each way."""

    done: int = 0
    failed: int = 0
    missed: int = 0


class Series:
    """The open database of a schedule's results. Close it, or use it in `with`.

    Args:
        path: the file; created if missing, readable by the owner only.
        read_only: open an existing one while a schedule may run.

    Only one process at a time may write. Its lock is a file beside the database, `FILE-lock`. A
    file with several hard links is refused.

    Raises:
        StorageError: it cannot be opened, is something else, or another process writes to it.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self._lock = path, -1
        if read_only and not path.exists():
            raise InputError(f"{path} does not exist: no schedule has written results there yet; name its jobs file")
        if path.is_dir():
            raise InputError(f"{path} is a folder, not a regular file; name a file of results")
        try:
            self._open(path, read_only=read_only)
        except BaseException:
            self._unlock()
            raise

    def _open(self, path: Path, *, read_only: bool) -> None:
        with self._explained():
            if not read_only:
                require_one_name(path)
                place = path.resolve()  # SQLite's own files are beside it, too
                place = place.with_name(f"{place.name}-lock")
                remedy = "stop that schedule, or name another file of results"
                self._lock = locked(place, os.O_RDWR | os.O_CREAT, f"the file of results {path}", remedy)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            mode = "ro" if read_only else "rw"
            address = f"{path.absolute().as_uri()}?mode={mode}"
            # a schedule stores a result in a thread, one at a time
            self._connection = sqlite3.connect(
                address, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._check()
            if not read_only:
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute("PRAGMA synchronous=FULL")
                self._connection.executescript(_SCHEMA)
                self._connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
                self._connection.execute(f"PRAGMA user_version={_FORMAT}")

    def _check(self) -> None:
        (found,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (tables,) = self._connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if tables and found != _APPLICATION_ID:
            raise StorageError(f"{self.path} is no database of a schedule's results; name another file")
        if tables and version != _FORMAT:
            raise StorageError(
                f"{self.path} has format {version}, expected {_FORMAT}; use the version of the program that wrote it"
            )

    def close(self) -> None:
        """Close the file, so that another process may write."""
        self._connection.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            release(self._lock)
            self._lock = -1

    def __enter__(self) -> Series:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # --- plans --------------------------------------------------------------------------------------------------------

    def adopt(self, settings: JsonObject, begins_ms: int) -> int:
        """Return the number of the plan with these settings; a new plan is added.

        Args:
            settings: plain JSON values that identify the plan. begins_ms: the time of its first slot.

        Raises:
            UsageError: another plan has slots at or after that time, also if this one is older.
        """
        plain = msgspec.json.encode(settings, order="sorted")
        with self._explained():
            known = self._connection.execute("SELECT number, settings FROM plans ORDER BY number DESC").fetchall()
            own = next((int(number) for number, found in known if bytes(found) == plain), None)
            query = "SELECT job, name, plan FROM slots WHERE at_ms >= ? AND plan IS NOT ? ORDER BY at_ms DESC"
            if (taken := self._connection.execute(query, (begins_ms, own)).fetchone()) is not None:
                job, name, plan = taken
                other = msgspec.json.decode(dict(known)[plan])
                names = [key for key in {**other, **settings} if other.get(key) != settings.get(key)]
                raise UsageError(
                    f"the plan under way in {self.path} has other settings ({', '.join(sorted(names))}), and its slot "
                    f"{name} of {job!r} is not before this one; keep the settings, or begin the new plan on a later day"
                )
            if own is not None:
                return own
            row = self._connection.execute(
                "INSERT INTO plans (begins_ms, settings) VALUES (?, ?) RETURNING number", (begins_ms, plain)
            ).fetchone()
        return int(row[0])

    # --- slots --------------------------------------------------------------------------------------------------------

    def begin(self, plan: int, job: str, slot: Slot) -> None:
        """Write that a slot is about to run. Does nothing if it has begun before."""
        row = (job, slot.at_ms, slot.name, plan, BEGUN)
        self._write("INSERT OR IGNORE INTO slots (job, at_ms, name, plan, state) VALUES (?, ?, ?, ?, ?)", [row])

    def finish(self, job: str, slot: Slot, result: SeriesResult, now_ms: int) -> None:
        """Write the result of a slot that has begun."""
        row = (DONE, now_ms, msgspec.json.encode(result), job, slot.at_ms)
        self._write("UPDATE slots SET state = ?, ended_ms = ?, result = ? WHERE job = ? AND at_ms = ?", [row])

    def fail(self, job: str, slot: Slot, reason: str, now_ms: int, *, charged: bool) -> None:
        """Write that a slot that has begun ended without a result, and whether its charge remains."""
        row = (FAILED, now_ms, reason, charged, job, slot.at_ms)
        update = "UPDATE slots SET state = ?, ended_ms = ?, reason = ?, charged = ? WHERE job = ? AND at_ms = ?"
        self._write(update, [row])

    def leave_out(self, plan: int, job: str, slots: Iterable[Slot], reason: str, now_ms: int) -> None:
        """Write that these slots were not tried."""
        rows = [(job, slot.at_ms, slot.name, plan, MISSED, now_ms, reason) for slot in slots]
        columns = "job, at_ms, name, plan, state, ended_ms, reason"
        self._write(f"INSERT OR IGNORE INTO slots ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)  # noqa: S608

    def states(self, plan: int, job: str) -> dict[int, str]:
        """Return the state of each slot of a job in a plan, by its time."""
        query = "SELECT at_ms, state FROM slots WHERE plan = ? AND job = ?"
        with self._explained():
            return dict(self._connection.execute(query, (plan, job)))

    def counts(self, plan: int, job: str) -> SlotCounts:
        """Return how many slots of a job in a plan have ended."""
        query = "SELECT state, COUNT(*) FROM slots WHERE plan = ? AND job = ? AND state != ? GROUP BY state"
        with self._explained():
            return SlotCounts(**dict(self._connection.execute(query, (plan, job, BEGUN))))

    # --- reading ------------------------------------------------------------------------------------------------------

    def jobs(self) -> list[str]:
        """Return the titles of all jobs that have a slot, sorted."""
        with self._explained():
            return [title for (title,) in self._connection.execute("SELECT DISTINCT job FROM slots ORDER BY job")]

    def all_counts(self, job: str) -> SlotCounts:
        """Return how many slots of a job have ended, in all plans."""
        query = "SELECT state, COUNT(*) FROM slots WHERE job = ? AND state != ? GROUP BY state"
        with self._explained():
            return SlotCounts(**dict(self._connection.execute(query, (job, BEGUN))))

    def last_done(self, job: str) -> SeriesSlot | None:
        """Return the last slot of a job that has a result."""
        query = f"SELECT {_COLUMNS} FROM slots WHERE job = ? AND state = ? ORDER BY at_ms DESC LIMIT 1"  # noqa: S608
        with self._explained():
            row = self._connection.execute(query, (job, DONE)).fetchone()
        return None if row is None else _slot(*row)

    def slots(self, job: str, last: int | None = None) -> list[SeriesSlot]:
        """Return the slots of a job in order, or the `last` so many. Raises `UsageError` for an unknown job."""
        if job not in (known := self.jobs()):
            listed = ", ".join(map(repr, known)) or "none yet"
            raise UsageError(f"job {job[:64]!r} has no slot in {self.path}{nearest(job, known)}; jobs: {listed}")
        query = f"SELECT {_COLUMNS} FROM slots WHERE job = ? ORDER BY at_ms DESC LIMIT ?"  # noqa: S608
        with self._explained():
            rows = self._connection.execute(query, (job, -1 if last is None else last)).fetchall()
        return [_slot(*row) for row in reversed(rows)]

    def _write(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """Execute a statement for each row in one transaction, durable on return."""
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany(statement, rows)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise StorageError(f"{self.path} is no database of a schedule's results; name another file") from None
            what = " ".join(str(error).split())
            raise StorageError(f"cannot use the results {self.path}: {what}; check the file, or restore it") from None
        except OSError as error:
            raise StorageError(f"cannot open {self.path}: {error.strerror}; check the path and its rights") from None


def _slot(
    name: str, at_ms: int, state: str, ended_ms: int | None, reason: str, charged: int, result: bytes | None
) -> SeriesSlot:
    try:
        found = None if result is None else msgspec.json.decode(result, type=SeriesResult)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StorageError(f"the result of {moment(at_ms)} cannot be read; restore the file of results") from None
    return SeriesSlot(
        slot=name, at_ms=at_ms, state=state, ended_ms=ended_ms, reason=reason, charged=bool(charged), result=found
    )
