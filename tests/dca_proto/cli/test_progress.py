"""The bar that appears when work takes a while: on terminals only, not before its time, and gone at the end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import MofNCompleteColumn, TextColumn

from dca_proto.cli import progress
from dca_proto.cli.progress import PATIENCE_S, PatientBar, SamplingBar


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=80)


def shown(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


def test_short_work_shows_nothing(clock: Clock) -> None:
    to = console(terminal=True)
    with PatientBar(to, 10, "rounds") as bar:
        for _ in range(10):
            clock.now_s += PATIENCE_S / 11
            bar.advance(1)
    assert shown(to) == ""


def test_long_work_shows_all_that_was_done_before_too(clock: Clock) -> None:
    to = console(terminal=True)
    with PatientBar(to, 10, "rounds", TextColumn("{task.description}"), MofNCompleteColumn()) as bar:
        bar.advance(3)
        clock.now_s = PATIENCE_S + 0.1
        bar.advance(1)
        assert "4/10" in shown(to)
        bar.reach(9, "nearly")
    assert "nearly" in shown(to)


def test_output_without_a_terminal_has_no_control_codes(clock: Clock) -> None:
    to = console(terminal=False)
    with PatientBar(to, 10, "rounds") as bar:
        clock.now_s = 100.0
        bar.advance(5)
    assert shown(to) == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_sampling_has_a_bar_on_a_terminal_and_a_line_elsewhere(terminal: bool) -> None:
    where = console(terminal=terminal)
    with SamplingBar(where) as bar:
        bar(30, 40)
    output = shown(where)
    assert ("75%" in output) == terminal
    assert output.startswith("fitting     the rounds are done; computing the result from the releases\n") != terminal
