"""A swarm's record of its rounds: who dropped, who came late, and why a round was aborted."""

from __future__ import annotations

import io
from typing import Any

import msgspec
from report_samples import aborted_swarm, run_of
from rich.console import Console

from dca_proto.core import facts
from emulator.results import Round, Run, grouped
from emulator.swarm.summary import missing, round_figures
from emulator.swarm.timeline import Timeline
from emulator.swarm.view import aborted_lines, rounds_table

ROUND, CLIENTS = b"r" * 16, [bytes([place]) * 16 for place in range(10)]


def log_of(*told: tuple[bytes, object]) -> Any:
    timeline = Timeline(lambda: (0, 0), lambda log: None)
    timeline.note(b"trainer", facts.Announced(ROUND, "sum", 3))
    for actor, fact in told:
        timeline.note(actor, fact)
    return timeline.rounds[0]


def test_who_came_late_has_not_dropped() -> None:
    """Of ten, one declines, eight send, one of these vanishes, and five are there when the round closes."""
    sent = [(one, facts.Contributed(ROUND, "sum", 0.1)) for one in CLIENTS[:8]]
    declined = (b"trainer", facts.Declined(ROUND, CLIENTS[9], "epsilon", "2", "1"))
    failed = (b"trainer", facts.RoundFailed(ROUND, "too-few", 5, 9))
    log = log_of(*sent, declined, (b"trainer", facts.Closed(ROUND, 5, "deadline")), failed)
    log.vanished = frozenset(CLIENTS[:1])
    assert missing(10, log, len(log.sent - log.vanished)) == {"late": 2, "dropped": 2}


def test_a_contribution_to_another_round_is_not_counted() -> None:
    log = log_of((CLIENTS[0], facts.Contributed(b"x" * 16, "sum", 0.1)))
    assert log.sent == set()


def test_an_aborted_round_says_why_in_the_record_and_on_the_terminal() -> None:
    log = log_of((b"trainer", facts.RoundFailed(ROUND, "compute-2 aborted: too-few", 35, 308)))
    figures = round_figures(log, private=True)
    assert (figures["ok"], figures["error"], figures["needed"]) == (False, "compute-2 aborted: too-few", 308)
    one = Round(**figures, late=300, dropped=7)
    run = Run(ok=False, clients=342, computes=3, tolerated=34, rounds=[one] * 7)
    assert aborted_lines(run) == [("aborted", "rounds 1, 2, 3, 4 and 3 more: compute-2 aborted: too-few")]
    screen = io.StringIO()
    Console(file=screen, width=80).print(rounds_table(run))
    shown = screen.getvalue()
    assert "late" in shown
    assert "300" in shown


def test_rounds_of_one_sort_are_shown_together_once_there_are_many() -> None:
    one = run_of(aborted_swarm()).rounds[0]
    assert len(grouped([one] * 4)) == 4
    assert [len(group) for group in grouped([one, *[msgspec.structs.replace(one, ok=True)] * 4])] == [1, 4]
