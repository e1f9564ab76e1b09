"""The counter of a store's transactions: one flush serves many of them, and none is left out at the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dca_proto.runtime import counter
from dca_proto.runtime.counter import Count, CounterFile, counter_path, make_counter, read_counter

KEY = bytes(32)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store's path, with a counter; the pause after a flush ends only when the counter is closed."""
    monkeypatch.setattr(counter, "_PAUSE_S", 3600)
    path = tmp_path / "client.db"
    make_counter(path, KEY, Count())
    return path


def write_all(file: CounterFile, most: int) -> None:
    for number in range(1, most + 1):
        file.write(Count(number, 5))


def test_one_flush_serves_many_transactions_and_the_last_is_flushed_before_the_end(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Count | None] = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: flushed.append(read_counter(store, KEY)))
    file = CounterFile(os.open(counter_path(store), os.O_RDWR), KEY)
    write_all(file, 100)
    file.close()
    assert flushed[-1] == Count(100, 5)
    assert 1 <= len(flushed) <= 2, "at once, and at the end"


def test_a_count_that_cannot_be_flushed_fails_the_next_transaction(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError("disk failed")

    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(counter, "_PAUSE_S", 0)
    file = CounterFile(os.open(counter_path(store), os.O_RDWR), KEY)
    with pytest.raises(OSError, match="disk failed"):
        write_all(file, 1_000_000)  # until the thread's failure is seen
    file.close()
