"""A client's rows may change while it runs: in a program's table, or in the file that it names."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from changes import following, payload_of
from patience import PATIENCE_S
from round_helpers import recompose
from runner_and_peer import RunnerAndPeer, echo
from structlog.testing import capture_logs

from dca_proto import Table
from dca_proto.errors import InputError, UsageError
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Contributed, Declined, RoundCompleted
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Contribution
from dca_proto.runtime import csv_text
from dca_proto.runtime.sources import csv_file as module
from dca_proto.runtime.sources.csv_file import CsvFeed, CsvSource
from dca_proto.testing import TestFederation

NAN = float("nan")


# --- a table ----------------------------------------------------------------------------------------------------------


def test_rows_are_replaced_and_appended() -> None:
    table = Table(["x", "y"], [[1.0, 2.0]])
    table.append([[3.0, NAN]])
    np.testing.assert_array_equal(table.rows(("y", "x")), [[2, 1], [NAN, 3]])
    table.append(np.arange(6.0).reshape(3, 2), keep=2)
    assert table.rows(("x",)).tolist() == [[2], [4]]
    table.append(np.empty((0, 2)), keep=0)
    assert len(table) == 0
    table.replace(np.array([[7.0, 8.0]]))
    assert table.rows(("y",)).tolist() == [[8]]


def test_rows_that_do_not_fit_change_nothing() -> None:
    table = Table(["x"], np.array([[1.0]]))
    for change in (table.replace, table.append):
        with pytest.raises(InputError, match=r"rows have shape \(1, 2\); expected \(m, 1\)"):
            change(np.array([[1.0, 2.0]]))
        with pytest.raises(InputError, match=r"rows are no array of numbers \(ValueError\)") as caught:
            change([["Alice"]])  # type: ignore[list-item]
        assert "Alice" not in str(caught.value)
    with pytest.raises(UsageError, match="keep is -1"):
        table.append(np.array([[2.0]]), keep=-1)
    assert table.rows(("x",)).tolist() == [[1]]


def test_a_table_may_have_no_rows_and_says_what_it_needs() -> None:
    table = Table(["x", "y"], [])
    assert table.rows(("x", "y")).shape == (0, 2)
    table.append([[1.0, NAN]])
    table.replace([])
    assert len(table) == 0
    with pytest.raises(UsageError, match="m lists of 2 numbers, one for each column, NaN where a value is missing"):
        table.append([1.0, 2.0])
    with pytest.raises(UsageError, match=r"found the text 'temperature', expected a list of names"):
        Table("temperature", [[1.0]])


def test_what_a_programs_array_masks_is_missing() -> None:
    """Below the mask there is a number that means nothing."""
    table = Table(["x"], np.ma.masked_equal([[1], [99]], 99))
    np.testing.assert_array_equal(table.rows(("x",)), [[1], [NAN]])


def test_what_a_program_does_with_its_own_arrays_changes_no_row() -> None:
    """What a round uses is fixed when it is answered."""
    rows = np.array([[1.0]])
    table = Table(["x"], rows)
    seen = table.rows(("x",))
    rows[:] = 2
    table.append(rows)
    rows[:] = 3
    assert (table.rows(("x",)).tolist(), seen.tolist()) == ([[1], [2]], [[1]])
    seen[:] = 9
    assert table.rows(("x",)).tolist() == [[1], [2]]


def test_threads_append_at_the_same_time_and_readers_see_whole_rows() -> None:
    table, torn = Table(["x", "y"], np.empty((0, 2))), []

    def write(number: int) -> None:
        for _ in range(200):
            table.append(np.full((1, 2), float(number)))

    def read() -> None:
        while any(writer.is_alive() for writer in writers):
            rows = table.rows(("x", "y"))
            torn.append(bool((rows[:, 0] != rows[:, 1]).any()))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in (*writers, reader):
        thread.join()
    assert np.bincount(table.rows(("x",))[:, 0].astype(int)).tolist() == [200] * 4
    assert not any(torn)


def test_a_change_of_a_table_waits_for_the_one_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads rarely meet in so short a time, so that the test above can pass without the lock."""
    table, alone = Table(["x"], [[1.0]]), []

    class Watched:
        lock = threading.Lock()

        def __enter__(self) -> None:
            self.lock.acquire()
            alone.append(True)

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    def joined(parts: list[np.ndarray]) -> np.ndarray:
        assert Watched.lock.locked()
        return concatenate(parts)

    concatenate = np.concatenate
    monkeypatch.setattr(table, "_changing", Watched())
    monkeypatch.setattr(np, "concatenate", joined)
    table.append([[2.0]])
    table.replace([[3.0]])
    assert len(alone) == 2


# --- a file -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "d.csv"
    made.write_text("x,y\n20,1\n")
    return made


def test_a_file_is_read_again_when_it_has_changed(path: Path) -> None:
    """Even if its size and, by a program that keeps times, its time of change are the same."""
    data = CsvFeed(CsvSource(file=path))
    assert data.rows(("x",)).tolist() == [[20]]
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_text("x,y\n26,1\n")
    os.utime(path, ns=times)
    assert data.rows(("x",)).tolist() == [[20]], "a round in progress is not disturbed"
    data.refresh()
    assert data.rows(("x",)).tolist() == [[26]]
    other = path.with_name("new.csv")
    other.write_text("y,x,z\n3,30,5\n1,31,5\n")
    other.replace(path)
    data.refresh()
    assert data.rows(("x", "y")).tolist() == [[30, 3], [31, 1]], "by name, wherever the columns are"
    assert data.columns == ("x", "y"), "what the client offers is as at the start"


def test_an_old_file_with_its_old_size_and_time_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `rsync --times` and `cp --preserve` leave it. The time of its node's change tells."""
    monkeypatch.setattr(module, "_RACY_NS", -(10**18))  # as if it were old
    data, before = CsvFeed(CsvSource(file=path)), path.stat()
    path.write_text("x,y\n26,1\n")
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # at most one tick of the file system's clock
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    data.refresh()
    assert data.rows(("x",)).tolist() == [[26]]


def test_an_unchanged_file_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that has just been written is: its time of change may be that of a second change."""
    reads = []
    monkeypatch.setattr(module, "read_csv", lambda *given: reads.append(given) or Table(["x"], np.ones((1, 1))))
    monkeypatch.setattr(module, "_RACY_NS", -(10**18))  # as if it were old
    data = CsvFeed(CsvSource(file=path))
    for _ in range(3):
        data.refresh()
    assert len(reads) == 1
    monkeypatch.setattr(module, "_RACY_NS", 10**18)
    path.write_text("x\n2\n")
    for _ in range(3):
        data.refresh()
    assert len(reads) == 4


def _missing(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (_missing, "No such file or directory"),
    "a folder": (_folder, "not a regular file"),
    "a pipe": (_pipe, "not a regular file"),
    "empty": (lambda path: path.write_text(""), "has no header"),
    "without a header": (lambda path: path.write_text("1,2\n3,4\n"), "begins with numbers"),
    "without a column": (lambda path: path.write_text("x,z\n1,2\n"), "has no column 'y' any more"),
    "another encoding": (lambda path: path.write_text("x,y\n1,2\n", encoding="utf-16"), "not a CSV in UTF-8"),
    "too large": (lambda path: path.write_text("x,y\n" + "1,2\n" * 30), "is larger than 99 bytes"),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_file_that_cannot_be_read_leaves_no_rows_until_it_can(
    broken: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client then contributes zero, and reports the error's type; one log line has the reason, and no value."""
    change, reason = BREAKS[broken]
    monkeypatch.setattr(csv_text, "CSV_BYTES_MAX", 99)
    data = CsvFeed(CsvSource(file=path))
    change(path)
    with capture_logs() as logs:
        for _ in range(3):
            data.refresh()
            with pytest.raises(UsageError, match=reason):
                data.rows(("x",))
    (entry,) = logs
    assert entry["event"] == "data cannot be read, so this client contributes zero"
    assert reason in entry["error"]
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    path.write_text("x,y\n26,1\n")
    data.refresh()
    assert data.rows(("x",)).tolist() == [[26]]


WRITERS: dict[str, tuple[int, Callable[[Path, int], object], list[list[float]] | str]] = {
    "once": (1, lambda path, time: path.write_text(f"x,y\n{30 + time},1\n1,2"), [[31], [1]]),
    "twice": (2, lambda path, time: path.write_text(f"x,y\n{30 + time},1\n1,2"), [[32], [1]]),
    "for ever": (99, lambda path, time: path.write_text(f"x,y\n{30 + time},1\n1,2"), "changes while it is read"),
    "half": (99, lambda path, time: path.write_text("x,y\n30,1\n"[: 1 + time % 2]), "changes while it is read|has no"),
    "appending": (99, lambda path, time: _append(path, f"{30 + time},1\n{40 + time}"), [[30], [31], [4132], [4233]]),
}
"""How often another program writes while the file is read, what, and what the client has in the end."""


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_that_changes_while_it_is_read(writer: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read again; lines that are appended to it do no harm, and the last one is not used before it is whole."""
    often, write, expected = WRITERS[writer]
    data, read, times = CsvFeed(CsvSource(file=path)), module.read_csv, []

    def disturbed(*given: object) -> Table:
        found = read(*given)  # type: ignore[arg-type]
        times.append(len(times))
        if len(times) <= often:
            write(path, len(times))
        return found

    def bytes_of(path: Path, **limit: int) -> bytes:
        content = opened(path, **limit)
        if often == 99:
            times.append(len(times))
            write(path, len(times))
        return content

    opened = module.read_input
    monkeypatch.setattr(module, "read_input", bytes_of)
    monkeypatch.setattr(module, "read_csv", disturbed)
    path.write_text("x,y\n30,1\n")
    data.refresh()
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            data.rows(("x",))
    else:
        assert data.rows(("x",)).tolist() == expected


def test_a_file_that_was_empty_when_it_was_opened_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that writes in place empties it first. Only an error of a file at rest counts."""
    data, read, times = CsvFeed(CsvSource(file=path)), module.read_csv, []

    def emptied(*given: object) -> Table:
        times.append(True)
        if len(times) == 1:
            path.write_text("")
        try:
            return read(*given)  # type: ignore[arg-type]
        finally:
            if len(times) == 1:
                path.write_text("x,y\n310,1\n")

    monkeypatch.setattr(module, "read_csv", emptied)
    data.refresh()
    assert data.rows(("x",)).tolist() == [[310]]
    assert len(times) > 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [(MemoryError(), "does not fit into memory"), (ValueError("36.6"), "cannot be read: ValueError;")],
)
def test_nothing_that_reading_a_file_can_raise_stops_a_client(
    error: Exception, reason: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = CsvFeed(CsvSource(file=path))

    def failing(*_: object) -> Table:
        raise error

    monkeypatch.setattr(module, "read_csv", failing)
    data.refresh()
    with pytest.raises(UsageError, match=reason) as caught:
        data.rows(("x",))
    assert "36.6" not in str(caught.value)


def test_at_the_start_an_unreadable_file_is_an_error(path: Path) -> None:
    path.unlink()
    with pytest.raises(UsageError, match="No such file"):
        CsvFeed(CsvSource(file=path))


def test_what_is_odd_in_a_file_is_logged_once_until_it_differs(path: Path) -> None:
    path.write_text("x;y\n1;2\nx;3\n")
    with capture_logs() as logs:
        data = CsvFeed(CsvSource(file=path))
        for _ in range(3):
            data.refresh()
        path.write_text("x;y\n1;z\nx;3\n")
        for _ in range(3):
            data.refresh()
    assert [entry["fields"] for entry in logs if "fields" in entry] == [{"x": 1}, {"x": 1, "y": 1}]
    assert data.format == "cells are separated by semicolons; 1,5 is read as 1.5"


def test_a_file_that_has_lost_its_header_leaves_no_cell_in_the_log(path: Path) -> None:
    """Its first row then seems to name the columns, and a warning counted odd cells by these names."""
    data = CsvFeed(CsvSource(file=path))
    with capture_logs() as logs:
        for text in ("Alice,36.6,F\nBob,37.1,M\n", "Alice,36.6,Alice\nBob,37.1,M\n", "36.6;Alice;F\n"):
            path.write_text(text)
            data.refresh()
    assert len(logs) == 3
    assert {entry["event"] for entry in logs} == {"data cannot be read, so this client contributes zero"}
    assert not any(cell in str(logs) for cell in ("Alice", "36.6", "Bob"))


def test_what_is_odd_again_after_it_was_mended_is_logged_again(path: Path) -> None:
    data = CsvFeed(CsvSource(file=path))
    with capture_logs() as logs:
        for cell in ("x", "1", "x"):
            path.write_text(f"x,y\n{cell},2\n")
            data.refresh()
    assert [entry["fields"] for entry in logs] == [{"x": 1}, {"x": 1}]


def test_lines_that_do_not_fit_tell_what_was_expected(path: Path) -> None:
    """A single column with decimal commas looks like two."""
    path.write_text("temperature\n20,5\n21,5\n")
    with capture_logs() as logs:
        data = CsvFeed(CsvSource(file=path))
        assert (
            len(CsvFeed(CsvSource(file=path, delimiter=";")).rows(("temperature",)))
            == len(data.rows(("temperature",)))
            == 2
        )
    (entry,) = (entry for entry in logs if entry["log_level"] == "warning")
    assert entry["lines"] == 2
    assert entry["expected"] == (
        "1 cell, separated by commas as in the first line; if another sign separates them, set delimiter"
    )


# --- the runner -------------------------------------------------------------------------------------------------------


def test_data_are_refreshed_in_a_thread_before_messages_are_handled() -> None:
    diary: list[str] = []

    async def scenario(pair: RunnerAndPeer) -> None:
        loop_thread, entered, may_end = threading.get_ident(), asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def refresh() -> None:
            assert threading.get_ident() != loop_thread
            diary.append("refreshed")
            loop.call_soon_threadsafe(entered.set)
            assert may_end.wait(PATIENCE_S)

        pair.runner._refresh = refresh
        await pair.send(b"1")
        await entered.wait()
        handled = [event for event in pair.actor.events if isinstance(event, Received)]
        assert (handled, diary) == ([], ["refreshed"]), "the loop goes on, and the message waits"
        may_end.set()
        assert (await pair.peer.inbox.take()).payload == b"1"
        assert diary == ["refreshed"], "nothing is read for the runner's own events"

    RunnerAndPeer(echo).play(scenario)


def test_only_an_announcement_of_a_new_round_makes_a_client_read_its_data() -> None:
    """A query for each receipt, or for whatever a stranger sends, would be a burden on the owner's database."""
    actors = TestFederation(4, 2)
    net = actors.network()
    net.command(actors.trainer_identity.id, actors.request())
    net.advance(net.now_ms + 60_000)
    assert net.reported(RoundCompleted)
    own, new, strange = net.actors[actors.clients[0]], actors.client(0), TestFederation(4, 2, name="strange").client(0)
    payloads = {one.payload for one in net.sent}
    (announcement,) = filter(new.needs_data, payloads)
    assert Channel.ANNOUNCE in {one.to.channel for one in net.sent if one.payload == announcement}
    assert not any(map(own.needs_data, payloads)), "it knows the round"
    assert not any(map(strange.needs_data, payloads))
    assert not new.needs_data(announcement[:-1] + bytes([announcement[-1] ^ 1]))
    assert not new.needs_data(b"")
    present, newer = payload_of(actors.federation), payload_of(following(actors))
    assert new.needs_data(newer), "its trainer may be new"
    assert not new.needs_data(present), "anybody can send it again"
    assert not new.needs_data(newer[:-1] + bytes([newer[-1] ^ 1]))


def test_a_client_whose_source_has_another_window_declines() -> None:
    """Whatever its rows are: the last hour of some and all that others ever measured would make no sum of anything."""
    actors = TestFederation(4, 2)
    net = actors.network()
    for place, window_s in enumerate((3600, 3600, 0, 86400)):
        client = net.actors[actors.clients[place]]
        client._consent = msgspec.structs.replace(client._consent, window_s=window_s)
    for asked in (0, 3600):
        net.command(actors.trainer_identity.id, actors.request(window_s=asked))
        net.advance(net.now_ms + 200_000)
    assert len(net.reported(Contributed)) == 4 + 2
    assert {(fact.client, fact.reason, fact.found, fact.expected) for fact in net.reported(Declined)} == {
        (actors.clients[2], "window", "a window of 3,600 s", "0: this client's source has no window"),
        (actors.clients[3], "window", "a window of 3,600 s", "86,400 s"),
    }


# --- a round in progress ----------------------------------------------------------------------------------------------


def test_rows_that_change_during_a_round_are_for_the_next_one() -> None:
    """The contribution is stored with its charge. What is sent again, also after a crash, is that one byte for byte.

    Two contributions to one round, with different rows, would cost twice what the client has charged.
    """
    actors = TestFederation(4, 2)
    net = actors.network()
    client = actors.clients[0]
    column = actors.request().parameters["columns"][0]
    table = Table([column], [[0.25]])

    def built(records: Iterable[tuple[str, bytes, bytes]]) -> Client:
        made = actors.client(0, records)
        recompose(made, rows=lambda columns: table.rows((column,) * len(columns)))
        return made

    net._build[client] = (Channel.CLIENT, built)
    net.restart(client)
    net.tamper = lambda envelope: () if envelope.to.id == client else (envelope,)  # no receipt arrives
    net.command(actors.trainer_identity.id, actors.request())
    net.advance(net.now_ms + 100)

    def contributed() -> list[bytes]:
        sent = [one.payload for one in net.sent if one.sender == client and one.to.channel is Channel.COMPUTE]
        return [payload for payload in sent if isinstance(decode_frame(payload), Contribution)]

    first = contributed()
    for rows in ([[0.75]], [[0.5], [0.5]], np.empty((0, 1))):
        table.replace(rows)
        net.restart(client)
        net.advance(net.now_ms + 60_000)
    assert len(contributed()) > len(first) + 2
    assert {*contributed()} == {first[0]}
