"""What the dashboard shows of a swarm, from the log of its rounds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exact_rounds import aggregate
from patience import PATIENCE_S

from dca_proto.aggregate import RoundRequest
from dca_proto.cli import swarm_board
from dca_proto.cli.status import details
from dca_proto.cli.swarm_board import Both, SwarmBoard
from dca_proto.dashboard.memory import Memory
from dca_proto.dashboard.view import view_of
from dca_proto.protocol import facts
from dca_proto.runtime.clock import now_ms
from emulator.swarm.live import Watcher
from emulator.swarm.timeline import RoundLog, Timeline

BOX = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [10.0]}
MADE = aggregate(np.array([6.0]), 0.25, RoundRequest("mean", BOX), 3)
CLIENTS = tuple(bytes([number]) * 16 for number in range(5))


def board_of(*reported: object) -> SwarmBoard:
    """The board of a swarm of five whose trainer has reported these facts."""
    board = SwarmBoard(5, "A swarm of 5 clients: mean")
    watcher = Both(Watcher(), board)
    timeline = Timeline(watcher.changed)
    swarm: Any = SimpleNamespace(timeline=timeline, broker_url="mqtt://127.0.0.1:1")
    board.started(swarm)
    watcher.connected(5, 5)
    watcher.sessions(5, 5)
    for fact in reported:
        timeline.note(fact)
    return board


OPEN = (
    facts.Announced(CLIENTS[0], "mean", 1, CLIENTS[:2]),
    facts.Declined(CLIENTS[0], CLIENTS[1], "epsilon", "3", "at most 1"),
    facts.Arrived(CLIENTS[0], 2, 5),
)


def test_before_it_starts_and_after_it_has_ended_no_round_is_open() -> None:
    assert SwarmBoard(5, "").look()[0].actors == []
    board = board_of(*OPEN)
    board.end()
    assert board.look()[0].actors[0].rounds == []


def test_an_open_round_has_its_phase_and_its_arrivals() -> None:
    (status,) = board_of(*OPEN).look()[0].actors
    (round_,) = status.rounds
    assert (round_.statistic, round_.phase, round_.arrived, round_.expected) == ("mean", "collect", 2, 5)
    assert (status.sessions, status.declines, status.ended) == (5, {"epsilon": 1}, {})


def test_an_ended_round_has_a_result_and_who_did_not_take_part() -> None:
    board = board_of(*OPEN, facts.Closed(CLIENTS[0], 3, "quiet"), facts.RoundCompleted(CLIENTS[0], MADE))
    assert board._swarm is not None
    log: RoundLog = board._swarm.timeline.rounds[0]
    log.asked = CLIENTS
    (status,) = board.look()[0].actors
    assert status.ended == {"completed": {"quiet": 1}}
    assert status.declines == {"epsilon": 1, "no answer": 1}
    assert [*status.phases] == ["collect", "agree"]
    assert (status.contributions, status.results[0].outcomes[0].value) == (3, 2.0)
    view = view_of(board.look()[0], Memory(), watched=board.description)
    assert (view.title, view.is_well) == ("A swarm of 5 clients: mean", True)
    assert not {"store", "messages sent", "bytes received", "inbox"} & {label for label, _ in details(status)}


def test_a_result_keeps_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another time in each look would draw its chart again."""
    board = board_of(*OPEN, facts.RoundCompleted(CLIENTS[0], MADE))
    before = board.look()[0].actors[0].results
    monkeypatch.setattr(swarm_board, "now_ms", lambda: now_ms() + 60_000)
    assert board.look()[0].actors[0].results == before


def test_a_failed_round_has_its_reason() -> None:
    failed = facts.RoundFailed(CLIENTS[0], "as it is", 2, 4)
    (status,) = board_of(*OPEN, failed).look()[0].actors
    assert (status.ended, status.rounds, status.results) == ({"failed": {"too few": 1}}, [], [])


@pytest.mark.long
def test_a_swarm_shows_its_rounds_until_ctrl_c(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "dca_proto.cli", "swarm", "--clients", "30", "--computes", "2", "--dashboard"]
    path = tmp_path / "printed"
    with path.open("w") as printed:
        swarm = subprocess.Popen(
            call, cwd=tmp_path, stdout=printed, stderr=subprocess.STDOUT, env={**os.environ, "COLUMNS": "200"}
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "stays until Ctrl-C" not in path.read_text():
            assert swarm.poll() is None, path.read_text()
            assert time.monotonic() < deadline, path.read_text()
            time.sleep(0.1)  # between looks; nothing is timed
        (url,) = re.findall(r"http://127\S+", path.read_text())
        text = ""
        while "No round is open." not in text:  # the page shows the last look, which may be of a moment before
            assert time.monotonic() < deadline, text
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                text = answer.read().decode()
            time.sleep(0.1)  # between looks; nothing is timed
        assert "A swarm of 30 clients: regression" in text
        assert "regression" in text.partition('id="results"')[2]
        swarm.send_signal(signal.SIGINT)
        assert swarm.wait(PATIENCE_S) == 0
    finally:
        swarm.kill()
        swarm.wait()
