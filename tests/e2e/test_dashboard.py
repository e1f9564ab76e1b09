"""`dca dashboard` beside a real actor, which is killed and starts again; and how the command ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE_S

from dca_proto.cli import main

pytestmark = pytest.mark.long


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A command, and the file that it prints into."""
    path = folder / f"{arguments[0]}.log"
    with path.open("wb") as printed:
        call = [sys.executable, "-m", "dca_proto.cli", *arguments]
        process = subprocess.Popen(call, cwd=folder, stdout=printed, stderr=subprocess.STDOUT, env={**os.environ})
    try:
        yield process, path
    finally:
        process.kill()
        process.wait()


def until(read: Callable[[], str], pattern: str) -> str:
    """Read again and again until there is a match."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := re.search(pattern, read())):
        assert time.monotonic() < deadline, f"{pattern}: {read()}"
        time.sleep(0.1)  # between looks; nothing is timed
    return found[0]


def page_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text


def test_the_page_survives_that_an_actor_is_killed_and_starts_again(tmp_path: Path) -> None:
    """Without a broker the node waits for one, which the page says."""
    broker = "mqtt://127.0.0.1:1"
    assert main(["federation", "init", str(tmp_path), "--computes", "2", "--clients", "3", "--broker", broker]) == 0
    node = ("compute", "compute-1.toml")
    with running(tmp_path, "dashboard", "compute-1.toml", "trainer.toml", "--listen", "127.0.0.1:0") as (board, log):
        url = until(log.read_text, r"http://127\.0\.0\.1:\d+/\?token=\S+")
        until(lambda: page_of(url), "compute-1.toml: its actor does not run")
        for kill in (signal.SIGKILL, signal.SIGTERM):
            with running(tmp_path, *node) as (process, _):
                text = until(lambda: page_of(url), r"compute compute-1: no connection for .*: cannot reach broker")
                assert "compute-1.toml: its actor does not run" not in text
                process.send_signal(kill)
                process.wait(PATIENCE_S)
            until(lambda: page_of(url), "compute-1.toml: its actor does not run")
        board.send_signal(signal.SIGTERM)
        assert board.wait(PATIENCE_S) == 0
    with running(tmp_path, "dashboard", "compute-1.toml", "--listen", "127.0.0.1:0") as (board, log):
        page_of(until(log.read_text, r"http://127\.0\.0\.1:\d+/\?token=\S+"))
        board.send_signal(signal.SIGINT)
        assert board.wait(PATIENCE_S) == 130
    assert "Traceback" not in log.read_text()
