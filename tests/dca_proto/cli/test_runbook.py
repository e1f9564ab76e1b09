"""The runbook of `docs/operate.md`: each row's command prints what the row states, and its remedy ends that.

Each row has a fault of that kind, planted in a trial federation. Statuses come from sockets that answer as actors do.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from status_samples import status_of

from dca_proto.cli import main
from dca_proto.jobs.calendar import Slot
from dca_proto.jobs.series import Series
from dca_proto.protocol.effects import Persist
from dca_proto.protocol.facts import NodesSilent
from dca_proto.results.status import ScheduledJob
from dca_proto.runtime import status as status_module
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.config import read_config
from dca_proto.runtime.counter import counter_path
from dca_proto.runtime.endings import OF_BROKER, warnings_of
from dca_proto.runtime.keyfile import read_identity
from dca_proto.runtime.silence import silent_words
from dca_proto.runtime.sleep import fall_asleep
from dca_proto.runtime.status import answering, status_path
from dca_proto.runtime.store import SqliteStore
from dca_proto.wording import iso

PAGE = Path(__file__).parents[3] / "docs/operate.md"
DAY_MS = 86_400_000


class Row(NamedTuple):
    """A row of the table: what is seen, what is typed, what it means, what to do."""

    seen: str
    typed: str
    meaning: str
    remedy: str


def section(title: str) -> str:
    return PAGE.read_text(encoding="utf-8").split(f" {title}\n", 1)[1].split("\n#", 1)[0]


def rows() -> list[Row]:
    cells = [
        line.strip("|").split(" | ") for line in section("When something is wrong").splitlines() if line[:1] == "|"
    ]
    return [
        Row(seen.strip().strip("`"), typed.strip("`"), meaning, remedy) for seen, typed, meaning, remedy in cells[2:]
    ]


# --- faults -----------------------------------------------------------------------------------------------------------


def opened(name: str) -> SqliteStore:
    config = read_config(Path(f"{name}.toml"))
    return SqliteStore(config.files.store, read_identity(config.files.identity, config.role).store_key)


@contextlib.contextmanager
def used(name: str = "client", *, then: Callable[[], object] = lambda: None) -> Iterator[None]:
    """An actor that ran and has a backup; `then` something happens to it."""

    async def run(number: int) -> None:
        store = opened(name)
        await store.commit([Persist("declined", bytes([number]) * 16, b"")] if number else [])
        await store.close()

    asyncio.run(run(0))
    assert main(["store", "backup", f"{name}.toml", "--to", f"{name}.backup"]) in (None, 0)
    then()
    yield


@contextlib.contextmanager
def answers(role: str = "client", name: str = "client", **known: Any) -> Iterator[None]:
    """An actor that answers with this status, and with the warnings that follow from it."""
    plain: dict[str, Any] = {
        "clock_offset_s": {}, "certificates": {}, "data_error": "", "schedule": [], "rounds": [], "results": [],
        "last": None, "warnings": [],
    }  # fmt: skip
    status = status_of(role, name=name, **{**plain, **known})
    status = msgspec.structs.replace(status, warnings=[*status.warnings, *status_module._warnings(status)])
    ready, loop, done = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with answering(status_path(read_config(Path(f"{name}.toml")).files.store), lambda: status):
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    with used(name):
        thread.start()
        ready.wait()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(done.set)
            thread.join()
            loop.close()


@contextlib.contextmanager
def overslept() -> Iterator[None]:
    path = Path("client.toml")
    path.write_text(path.read_text().replace("store =", "sleep_max_s = 60\nstore ="))
    with used():
        fall_asleep(Path("client.db"), status_of("client", name="client", at=iso(now_ms() - DAY_MS)))
        yield


@contextlib.contextmanager
def silent_node() -> Iterator[None]:
    fact = NodesSilent(round_id=bytes(16), computes=(b"a" * 16,), others=(b"b" * 16,), spare=0, waited_ms=9000)
    with answers("trainer", "trainer", warnings=[silent_words(fact, lambda node: "berlin")]):
        yield


@contextlib.contextmanager
def with_gap() -> Iterator[None]:
    (jobs,) = re.findall(r"(?s)```toml\n(# jobs.toml\n.*?)```", (PAGE.parent / "howto/schedule.md").read_text())
    Path("jobs.toml").write_text(jobs.replace("demo/", ""))
    with Series(Path("jobs.results.db")) as series:
        slot = Slot(1, "2026-11-01", 1000)
        series.leave_out(series.adopt({}, slot.at_ms), "daily mean", [slot], "only 3 clients answered", 2000)
    yield


@contextlib.contextmanager
def revoked() -> Iterator[None]:
    assert main(["federation", "revoke", "client-1"]) in (None, 0)
    yield


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    store = opened("compute")
    try:
        yield
    finally:
        asyncio.run(store.close())


def restored_without_statement() -> None:
    subprocess.run("rm trainer.db*", shell=True, check=True)
    assert main(["store", "restore", "trainer.toml", "--from", "trainer.backup"]) in (None, 0)


def forgotten() -> None:
    for path in (Path("client.db"), counter_path(Path("client.db"))):
        path.unlink()


def changed(place: str = "client.db") -> None:
    content = bytearray(Path(place).read_bytes())
    content[:16] = bytes(16)
    Path(place).write_bytes(content)


def rolled_back() -> None:
    """Commit once more, then put the older database back, as who copies files does."""
    shutil.copy("client.db", "old.db")

    async def run() -> None:
        store = opened("client")
        await store.commit([Persist("rounds", bytes(16), b"")])
        await store.close()

    asyncio.run(run())
    Path("old.db").replace("client.db")


SOON = now_ms() + 6 * DAY_MS
ENDING = ScheduledJob(title="daily mean", next=iso(now_ms()), done=1, gaps=0, of=9, lasts_to=iso(SOON))
WAITING = status_of().rounds
FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "its actor does not run": used,
    "it overslept": overslept,
    "no connection for": partial(answers, connected=False, away_because="connection refused"),
    "waits for": partial(answers, "trainer", "trainer", rounds=WAITING),
    "not answered for": silent_node,
    "the clock of": partial(answers, "trainer", "trainer", clock_offset_s={"berlin (01020304)": -90.0}),
    "the data cannot be read": partial(answers, data_error="readings.csv: no such file"),
    "no new data arrive": partial(answers, warnings=["no new data arrive: no connection to the sensors' broker"]),
    "certificate ends in": partial(answers, warnings=warnings_of({"client's certificate": SOON}, now_ms())),
    "broker's certificate ends in": partial(answers, warnings=warnings_of({OF_BROKER: SOON}, now_ms())),
    "lasts to": partial(answers, "trainer", "trainer", schedule=[ENDING]),
    "gap": with_gap,
    "revoked": revoked,
    "left epsilon 0 ": partial(used, "trainer", then=restored_without_statement),
    "there is no store": partial(used, then=forgotten),
    "expected 0600": partial(used, then=lambda: Path("client.key").chmod(0o644)),
    "is damaged": partial(used, then=changed),
    "lacks its last": partial(used, then=rolled_back),
    "lost its counter": partial(used, then=lambda: counter_path(Path("client.db")).unlink()),
    "is in use": in_use,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runbook") / "demo"
    call = ["federation", "init", str(folder), "--computes", "2", "--clients", "1", "--broker", "mqtt://127.0.0.1:1"]
    assert main(call) in (None, 0)
    for role in ("client", "compute"):
        for path in folder.glob(f"{role}-1.*"):
            text = path.read_text()
            if path.suffix == ".toml":
                (folder / f"{role}.toml").write_text(text.replace(f"{role}-1", role))
                path.unlink()
            else:
                shutil.copy(path, folder / path.name.replace("-1", ""))
    (folder / "compute-2.toml").unlink()  # it runs on another machine
    return folder


@pytest.fixture
def demo(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(made, tmp_path / "demo")
    monkeypatch.chdir(tmp_path / "demo")


def typed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Everything that a command prints, on one line, with single spaces."""
    program, *arguments = shlex.split(command)
    assert program == "dca"
    capsys.readouterr()
    main(arguments)
    printed = capsys.readouterr()
    return " ".join((printed.out + printed.err).split())


def test_each_row_has_a_fault_and_each_fault_a_row() -> None:
    assert [row.seen for row in rows()] == list(FAULTS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.seen)
def test_each_command_of_the_runbook_prints_what_is_seen(
    demo: None, capsys: pytest.CaptureFixture[str], row: Row
) -> None:
    with answers(), answers("compute", "compute"):
        assert row.seen not in typed(row.typed, capsys), "it is not seen when all is well"
    with FAULTS[row.seen]():
        assert row.seen in typed(row.typed, capsys)
    if "](#restore)" in row.remedy:
        (block,) = re.findall(r"(?s)```text\n(.*?)```", section("Restore"))
        move, restore = block.splitlines()
        Path("client.db-shm").touch()  # so that the shell finds a file, also after the store itself is lost
        subprocess.run(move, shell=True, check=True)
        assert "restored" in typed(restore, capsys)
        assert row.seen not in typed(row.typed, capsys)
    for command in re.findall(r"`(chmod .*?)`", row.remedy):
        subprocess.run(command, shell=True, check=True)
        assert row.seen not in typed(row.typed, capsys)
