"""The journal's file: what is torn, damaged, another job's or another process's."""

from __future__ import annotations

import base64
import dataclasses
import errno
import os
import stat
from collections.abc import Generator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from memory_swarm import SETTINGS, Swarm, ask, job_of, means, rounds_in

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import UsageError
from dca_proto.jobs.journal import Failed, Journal, Summed, _checksum, journal_path, newest_journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_path(tmp_path / "trainer.db", "means")


# The file


@pytest.fixture
def written(path: Path) -> Path:
    """A journal of three rounds, one of which was aborted."""
    swarm = Swarm()
    swarm.mute(lambda: len(swarm.announced) == 2)
    job_of(swarm, path, lambda: means(0, 2))
    return path


def numbers_of(path: Path) -> list[tuple[int, type]]:
    return [(opened.number, type(end)) for opened, end in rounds_in(path)]


def test_each_entry_is_on_the_disk_before_the_next_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (flushed.append(path.stat().st_size), sync(file)))
    with Journal(path, SETTINGS) as journal:
        assert flushed == [path.stat().st_size] * 2, "the directory, too"
        journal.append(Failed(bytes(16), "x", None, None, charged=False))
        assert flushed[2:] == [path.stat().st_size]


def test_a_torn_last_entry_is_dropped_and_written_over(written: Path) -> None:
    data = written.read_bytes()
    *whole, last = data.splitlines(keepends=True)
    before = b"".join(whole)
    for size in (0, 1, 30, 33, 34, len(last) // 2, len(last) - 2, len(last) - 1):
        written.write_bytes(before + last[:size])
        assert numbers_of(written) == [(1, Summed), (2, Failed), (2, type(None))]
    blank = before + bytes(len(last) - 1) + b"\n"
    written.write_bytes(blank)  # blocks that were allocated and never written
    with Journal(written, SETTINGS) as journal:
        (opened, _) = journal.recall(2).attempts[-1]
        journal.append(Failed(opened.round.round_id, "x", None, None, charged=False))
    assert numbers_of(written) == [(1, Summed), (2, Failed), (2, Failed)]


def test_other_damage_is_reported_and_left_unchanged(written: Path) -> None:
    data = written.read_bytes()
    lines = data.splitlines(keepends=True)
    last = len(data) - len(lines[-1])
    damages = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(0, last, 13)]
    damages += [data[: len(lines[0]) - 1] + b" " + data[len(lines[0]) :], data[: last - 1] + b"x" + data[last:]]
    damages += [b"".join(lines[:at] + lines[at + 1 :]) for at in range(len(lines) - 1)]
    damages += [
        b"".join([*lines[:1], lines[2], lines[1], *lines[3:]]),
        b"\n" + data,
        b"my own notes",
        b"my own\nnotes\n",
    ]
    for damaged in damages:
        written.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"the journal .*\.journal is damaged: (line \d|its)"):
            Journal(written, SETTINGS)
        assert written.read_bytes() == damaged
    written.write_bytes(data)
    assert len(numbers_of(written)) == 3


def test_a_torn_first_line_is_begun_again(path: Path) -> None:
    Journal(path, SETTINGS).close()
    data = path.read_bytes()
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        Journal(path, SETTINGS).close()
        assert path.read_bytes() == data


def test_a_journal_of_another_format_is_refused_as_such(written: Path) -> None:
    """Format 1 had entries that this program cannot read."""
    first, *_ = written.read_bytes().splitlines()
    entry = msgspec.msgpack.decode(base64.b64decode(first.split(b" ")[1]))
    body = msgspec.msgpack.encode({**entry, "format": 1})
    checksum = _checksum(bytes(16), body)
    line = checksum.hex().encode() + b" " + base64.b64encode(body) + b"\n"
    written.write_bytes(line + b"entries of old\n")
    with pytest.raises(UsageError, match="has format 1, expected 3: continue with the version of the program"):
        Journal(written, SETTINGS)


def test_a_job_that_runs_again_gets_the_next_journal(tmp_path: Path) -> None:
    store, names = tmp_path / "trainer.db", []
    for again in (False, True, False, True, True, False):
        path = newest_journal(store, "means", again=again)
        names.append(path.name)
        Journal(path, SETTINGS).close()
    assert names == [f"trainer.means.{one}journal" for one in ("", "2.", "2.", "3.", "4.", "4.")]
    assert newest_journal(store, "other", again=True).name == "trainer.other.journal"
    for one in ("", "2."):  # deleted ones make no old journal the newest
        (tmp_path / f"trainer.means.{one}journal").unlink()
    (tmp_path / "trainer.means.old.journal").touch()
    assert [newest_journal(store, "means", again=again).name for again in (False, True)] == [
        f"trainer.means.{number}.journal" for number in (4, 5)
    ]


def test_a_job_whose_rounds_cost_nothing_gives_way_to_a_corrected_one(written: Path) -> None:
    """As after a misspelt column, which every client declined. A charge, a sum or an open round keeps the job."""
    opened = [one for one, _ in rounds_in(written)]
    other = {**SETTINGS, "clients": 99}
    for charged, is_open, takes_over in ((False, False, True), (True, False, False), (False, True, False)):
        written.unlink()
        with Journal(written, SETTINGS) as journal:
            for one in opened[:2]:
                journal.append(one)
                if not (is_open and one is opened[1]):
                    journal.append(Failed(one.round.round_id, "all declined", None, None, charged=charged))
        if takes_over:
            with Journal(written, other) as journal:
                assert journal.is_new
            with Journal(written, other) as journal:  # it has begun anew, durably
                assert journal.is_new
        else:
            with pytest.raises(UsageError, match="is the journal of a job with another clients"):
                Journal(written, other)


def test_entries_out_of_place_are_damage(written: Path) -> None:
    """Well-formed lines that no job writes."""
    with Journal(written, SETTINGS) as journal:
        journal.append(Failed(bytes(16), "x", None, None, charged=False))
    with pytest.raises(UsageError, match="an entry Failed is out of place"):
        Journal(written, SETTINGS)


def test_a_recalled_result_equals_the_original_to_the_last_bit(written: Path) -> None:
    swarm, got = Swarm(), []

    def keep() -> Generator[RoundRequest, NoisyAggregate, list[NoisyAggregate]]:
        return [(yield ask(0)), (yield ask(2))]

    again = written.with_name("again.journal")
    fresh = job_of(swarm, again, keep)
    got = job_of(swarm, again, keep)
    for one, other in zip(fresh, got, strict=True):
        for field in dataclasses.fields(NoisyAggregate):
            value, recalled = getattr(one, field.name), getattr(other, field.name)
            assert np.array_equal(value, recalled) if field.name == "value" else value == recalled, field.name
    strange = np.array([0.1, -0.0, 5e-324, np.inf, -np.inf, np.nan])
    with Journal(written, SETTINGS) as journal:
        (opened, _) = journal.recall(2).attempts[-1]
        journal.append(opened)
        journal.append(Summed(opened.round.round_id, dataclasses.replace(fresh[0], value=strange), ()))
    with Journal(written, SETTINGS) as journal:
        end = journal.recall(2).attempts[-1][1]
        assert isinstance(end, Summed)
        assert end.aggregate.value.tobytes() == strange.tobytes()


def test_only_its_owner_reads_it_and_one_process_at_a_time(path: Path) -> None:
    with Journal(path, SETTINGS):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(UsageError, match=r"is in use by process \d+, which began .* ago; wait for it, or stop it"):
            Journal(path, SETTINGS)
    Journal(path, SETTINGS).close()


def test_a_journal_that_cannot_be_opened_or_written_is_a_one_line_error(path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot open the journal .*: No such file or directory; check"):
        Journal(path / "x", SETTINGS)
    journal = Journal(path, SETTINGS)
    journal.close()
    full = Journal(path, SETTINGS)
    full._file.close()
    full._file = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115, PTH123
    with pytest.raises(UsageError, match="cannot write the journal"):
        full.append(Failed(bytes(16), "x", None, None, charged=False))
    full.close()


def test_a_disk_without_locks_or_durable_names_is_a_one_line_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", refuse)
        with pytest.raises(UsageError, match=r"cannot lock the journal .*: No locks available; put it on another"):
            Journal(path, SETTINGS)
    opened = os.open

    def open_files_only(name: Path, flags: int, *mode: int) -> int:
        if Path(name).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(name, flags, *mode)

    monkeypatch.setattr(os, "open", open_files_only)
    with pytest.raises(UsageError, match=r"cannot make the journal .* durable: .*: Permission denied"):
        Journal(path, SETTINGS)
