"""Engines on this machine: results in their order, work that dies or fails, workers with a state, and nothing left."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S

from dca_proto.engine import WorkerDiedError, open_engine
from dca_proto.engine.base import THREADS
from dca_proto.errors import UsageError


def square(number: int) -> tuple[int, int]:
    """The square, and who has made it."""
    return number**2, os.getpid()


def last_of_four(folder: str, number: int) -> tuple[int, int]:
    """The square, of 0 only after all others; and who has made it."""
    while number == 0 and len(list(Path(folder).iterdir())) < 3:
        time.sleep(0.01)
    (Path(folder) / str(number)).touch()
    return square(number)


def dies_once(path: str) -> int:
    """Takes its process with it, but not the second time."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 7


def leaves_word(path: str) -> None:
    """Runs for ever, and says so when it is ended."""
    Path(path).write_text(str(os.getpid()))
    try:
        while True:
            time.monotonic()
    finally:
        Path(path).write_text("unwound")


class Counter:
    """Something with a state."""

    def __init__(self, path: str = "") -> None:
        self.path, self.count = path, 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def refuse(self) -> None:
        raise UsageError("not like that")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        if self.path:
            Path(self.path).write_text(f"closed at {self.count}")


class ClosingIn:
    """Makes a counter that leaves word in a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self) -> Counter:
        return Counter(self.path)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [one for one in left if "resource_tracker" not in " ".join(one.cmdline())]


def test_results_come_as_they_are_done_or_in_the_items_order(tmp_path: Path) -> None:
    engine = open_engine()
    folders = [tmp_path / "any", tmp_path / "ordered"]
    for folder in folders:
        folder.mkdir()
    any_order, in_order = (functools.partial(last_of_four, str(folder)) for folder in folders)
    found = list(engine.map(any_order, range(4), processes=2))
    assert sorted(done.value()[0] for done in found) == [0, 1, 4, 9]
    assert found[-1].item == 0, "it took longest"
    assert len({done.value()[1] for done in found}) == 2
    ordered = [done.value()[0] for done in engine.map(in_order, range(4), processes=2, ordered=True)]
    assert ordered == [0, 1, 4, 9]


def test_items_are_taken_only_as_processes_are_free() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = open_engine().map(square, items(), processes=1)
    next(results)
    assert len(taken) <= 2
    results.close()  # type: ignore[attr-defined]


def test_a_scripts_own_work_finds_what_the_script_keeps(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from functools import cache\n"
        "from dca_proto.engine import open_engine\n"
        "@cache\n"
        "def kept():\n    return 40\n"
        "def work(item):\n    return kept() + item\n"
        "if __name__ == '__main__':\n"
        "    with open_engine() as engine:\n"
        "        print(sum(done.value() for done in engine.map(work, [1, 2], processes=2)))\n"
    )
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert ended.stdout == "83\n"


def test_processes_have_one_thread_each() -> None:
    (done,) = open_engine().map(os.getenv, [THREADS[0]], processes=1)
    assert done.value() == "1"


@pytest.mark.long
def test_a_map_whose_processes_die_repeatedly_raises_an_error() -> None:
    done: list[int] = []
    with pytest.raises(WorkerDiedError, match=r"^5 worker processes have died"):
        done.extend(one.item for one in open_engine().map(os._exit, range(1, 40), processes=1))
    assert done == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_work_that_died_is_tried_once_more(tmp_path: Path) -> None:
    found = {done.item: done.value() for done in open_engine().map(dies_once, [str(tmp_path / "a")], processes=2)}
    assert found == {str(tmp_path / "a"): 7}


def test_work_that_is_left_unwinds_and_ends(tmp_path: Path) -> None:
    word = tmp_path / "word"
    results = open_engine().map(slow_then_ever, [str(word), ""], processes=2)
    assert next(results).item == ""
    while not word.exists() or not word.read_text():
        time.sleep(0.01)
    results.close()  # type: ignore[attr-defined]
    assert word.read_text() == "unwound"


def slow_then_ever(path: str) -> None:
    """Runs for ever where there is a path."""
    if path:
        leaves_word(path)


def test_a_worker_keeps_its_state_and_is_closed(tmp_path: Path) -> None:
    with open_engine().worker(ClosingIn(tmp_path / "word"), "counting") as worker:
        assert [worker.call("add", number) for number in (3, 4)] == [3, 7]
        with pytest.raises(UsageError, match=r"^counting: not like that$"):
            worker.call("refuse")
        with pytest.raises(RuntimeError, match=r"counting: (.|\n)*AttributeError"):
            worker.call("nothing")
        assert worker.call("add", 1) == 8, "it goes on"
    assert (tmp_path / "word").read_text() == "closed at 8"


def test_a_worker_that_died_is_named_and_not_started_again() -> None:
    with open_engine().worker(Counter, "counting", "count less") as worker:
        with pytest.raises(WorkerDiedError, match=r"^the process of counting was killed \(.* is full: count less\)$"):
            worker.call("die")
        with pytest.raises(WorkerDiedError, match=r"^the process of counting was killed"):
            worker.call("add", 1)


@pytest.mark.parametrize("name", ["", "spark", "ray:", "http://head:10001"])
def test_another_engine_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"^--engine {name}: expected local, ray or ray://host:port$"):
        open_engine(name)


def test_without_ray_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"^--engine ray needs Ray, which is not installed: pip install .*cluster"):
        open_engine("ray")
    assert importlib.util.find_spec("joblib"), "the other engine needs only this"
