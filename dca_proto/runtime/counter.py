"""A file beside a store with the number of its transactions, so that the loss of the last ones is noticed.

    client.db            the store
    client.db-wal        its log: the newest transactions, while an actor runs and after a kill
    client.db-counter    the number of durable transactions

A store whose log is cut or missing is whole in itself, but older. The counter states how far the store must reach. It
is written after each transaction is durable, and before anybody hears of that transaction. So it is never ahead of the
store, and after a kill at most one transaction behind.

The file has two slots that are written in turn: if a power failure tears one, the other is valid. Each holds the
number, the time, and a MAC under the store's key.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from pathlib import Path
from typing import NamedTuple

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import derive, same
from dca_proto.runtime.files import read_input, sync_folder
from dca_proto.runtime.locks import release

_SLOT = struct.Struct("<QQ16s")
_SLOT_BYTES = 4096  # a torn write damages one sector
_MAC_BYTES = 16
_PAUSE_S = 0.01


class Count(NamedTuple):
    """The number of transactions, and when the last one was written, in Unix milliseconds."""

    transactions: int = 0
    at_ms: int = 0

    def next(self) -> Count:
        """Return the count with one more transaction, which is written now."""
        return Count(self.transactions + 1, time.time_ns() // 1_000_000)


def counter_path(store: Path) -> Path:
    """Return the path of a store's counter."""
    return Path(f"{store}-counter")


def store_files(store: Path) -> tuple[Path, ...]:
    """Return the paths of all files that a store may have: the database, its log and index, and the counter."""
    return store, Path(f"{store}-wal"), Path(f"{store}-shm"), counter_path(store)


class CounterFile:
    """The open counter of a store, from `locked`: as long as it is open, no other process can open the store.

    `write` returns before the count is flushed: a thread does that at once, so that no transaction waits for it, and
    then pauses, so that one flush serves many transactions. A killed process loses no count. A power failure may lose
    those of the last milliseconds; the store itself is flushed before each. Raises `OSError`.
    """

    def __init__(self, descriptor: int, key: bytes) -> None:
        self._descriptor = descriptor
        self._key = key
        self._failure: OSError | None = None
        self._changed, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._flush, name="dca-counter", daemon=True)
        self._thread.start()

    def write(self, count: Count) -> None:
        """Replace the older of the two counts. Raises `OSError`, also if an earlier count could not be flushed."""
        if self._failure is not None:
            raise self._failure
        os.pwrite(self._descriptor, _slot(count, self._key), count.transactions % 2 * _SLOT_BYTES)
        if not self._changed.is_set():
            self._changed.set()

    def close(self) -> None:
        """Flush and close the file."""
        self._ending.set()
        self._changed.set()
        self._thread.join()
        release(self._descriptor)

    def _flush(self) -> None:
        is_ending = False
        while not is_ending:
            self._changed.wait()
            is_ending = self._ending.is_set()
            self._changed.clear()
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:
                self._failure = error
            self._ending.wait(_PAUSE_S)


def make_counter(store: Path, key: bytes, count: Count) -> None:
    """Write a counter that only its owner can read: durably, and as a whole or not at all. Raises `OSError`."""
    path = counter_path(store)
    draft = Path(f"{path}.new")
    slot = _slot(count, key).ljust(_SLOT_BYTES, b"\0")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, 2 * slot)  # its whole length now, so that later writes change only its content
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.replace(path)
    sync_folder(path.parent)


def read_counter(store: Path, key: bytes | None) -> Count | None:
    """Return the count beside a store, not authenticated without a key; None if the file does not exist.

    Raises `ValueError` if the file is damaged, `InputError` if it cannot be read.
    """
    if not counter_path(store).exists():
        return None
    content = read_input(counter_path(store))
    counts = []
    for at in (0, _SLOT_BYTES):
        slot = content[at : at + _SLOT.size]
        if len(slot) == _SLOT.size:
            count = Count(*_SLOT.unpack(slot)[:2])
            if key is None or same(_slot(count, key), slot):
                counts.append(count)
    if not counts:
        raise ValueError("neither of its counts is authentic")
    return max(counts)


def _slot(count: Count, key: bytes) -> bytes:
    head = struct.pack("<QQ", *count)
    return head + derive(key, labels.STORE_COUNT, head, _MAC_BYTES)
