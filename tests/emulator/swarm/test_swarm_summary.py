"""A swarm's record of its rounds: who dropped, who came late, and why a round was aborted."""

from __future__ import annotations

import io
from typing import Any

import msgspec
from report_samples import aborted_swarm, run_of
from rich.console import Console

from dca_proto.cli.show import show
from dca_proto.protocol import facts
from dca_proto.report.run import aborted_lines, privacy_lines, rounds_table
from dca_proto.results.run import Run, grouped
from emulator.swarm.summary import missing, public_round
from emulator.swarm.timeline import Timeline

ROUND, CLIENTS = b"r" * 16, [bytes([place]) * 16 for place in range(10)]


def log_of(*noted: object) -> Any:
    timeline = Timeline(lambda log: None)
    timeline.note(facts.Announced(ROUND, "sum", 3))
    for fact in noted:
        timeline.note(fact)
    return timeline.rounds[0]


def test_who_came_late_has_not_dropped() -> None:
    """Of ten, one declines, eight send, one of these vanishes, and five are there when the round closes."""
    declined = facts.Declined(ROUND, CLIENTS[9], "epsilon", "2", "1")
    log = log_of(declined, facts.Closed(ROUND, 5, "deadline"), facts.RoundFailed(ROUND, "too-few", 5, 9))
    assert missing(10, log, sent=7) == {"late": 2, "dropped": 2}


def test_an_aborted_round_has_its_reason_in_the_record_and_on_the_terminal() -> None:
    log = log_of(facts.RoundFailed(ROUND, "compute-2 aborted: too-few", 35, 308))
    one = public_round(log, private=True, late=300, dropped=7)
    assert (one.ok, one.error, one.n_min) == (False, "compute-2 aborted: too-few", 308)
    run = Run(ok=False, clients=342, computes=3, tolerate=34, rounds=[one] * 7)
    assert aborted_lines(run) == [("aborted", "rounds 1, 2, 3, 4 and 3 more: compute-2 aborted: too-few")]
    screen = io.StringIO()
    show(Console(file=screen, width=80), rounds_table(run))
    shown = screen.getvalue()
    assert "late" in shown
    assert "300" in shown


def test_rounds_of_one_sort_are_shown_together_once_there_are_many() -> None:
    one = run_of(aborted_swarm()).rounds[0]
    assert len(grouped([one] * 4)) == 4
    assert [len(group) for group in grouped([one, *[msgspec.structs.replace(one, ok=True)] * 4])] == [1, 4]


def test_a_run_states_that_its_contributions_are_proven_if_those_of_all_rounds_are() -> None:
    one = run_of(aborted_swarm()).rounds[0]
    proven = msgspec.structs.replace(one, verified=True)
    for rounds, says in ([proven, proven], True), ([proven, one], False):
        run = Run(ok=True, clients=342, computes=3, tolerate=34, private=True, epsilon=1, delta=1e-5, rounds=rounds)
        assert ("verified" in dict(privacy_lines(run))) == says
