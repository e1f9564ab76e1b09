"""A scenario in which everybody declines says so, and why: in its outcome, on the terminal, on the page, in a sweep."""

from __future__ import annotations

import msgspec
import pytest
from faulty_work import nothing
from trial_helpers import check_trial, small, with_limits

from dca_proto.cli.emulate_output import show_sweep, show_trial
from dca_proto.cli.output import result_console
from dca_proto.engine import Done
from dca_proto.protocol.wire.kinds import LDP_REPORT
from emulator.report import emulation as view
from emulator.trials.outcome import Outcome
from emulator.trials.scenario import Fault
from emulator.trials.sweep import Sweep

WHY = (
    "budget: found a total of epsilon 1 with this round; accepts <= 0.5 at delta 1e-06 in 365 days; at most 0.5 is left"
)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return check_trial(with_limits(small(count=2, every_ms=30_000), epsilon_per_period_max=0.5))[1]


def test_each_round_has_the_number_of_declines_and_their_reasons(outcome: Outcome) -> None:
    for one in outcome.ended.rounds:
        assert (one.result, one.declined, one.everybody_declined) == ("aborted", 4, True)
        assert one.why_declined == {WHY: 4}
    assert outcome.to_json()["outcome"]["rounds"][0]["why_declined"] == {WHY: 4}


def test_terminal_and_page_name_the_reason(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    show_trial(result_console(None), outcome)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"everybody declined all 2 rounds: {WHY} (8)" in printed
    assert "4 clients declined" in printed
    assert f"Everybody declined all 2 rounds: {WHY} (8)." in str(view.page(outcome).answer)


def test_a_sweep_counts_the_rounds_that_everybody_declined(
    outcome: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Sweep.begun(0, 1)
    found.note(Done(0, outcome), 1.0)
    found.note(Done(1, nothing(1)), 1.0)
    assert found.declined == {"budget": 2}
    show_sweep(result_console(None), found)
    assert "2 rounds by everybody: 2 budget" in " ".join(capsys.readouterr().out.split())


def test_reports_that_everybody_declines_are_named_too() -> None:
    reports = small(kind=LDP_REPORT, mechanism="analytic-gaussian")
    (one,) = check_trial(with_limits(reports, epsilon_per_period_max=0.5))[1].ended.rounds
    assert (one.declined, one.everybody_declined) == (4, True)


def test_a_client_that_is_away_has_not_declined() -> None:
    scenario = with_limits(small(Fault(kind="crash", actor="client 1")), epsilon_per_period_max=0.5)
    outcome = check_trial(msgspec.structs.replace(scenario, heal_ms=30_000))[1]
    assert outcome.ended.rounds[0].declined == 3
    assert not outcome.ended.rounds[0].everybody_declined
    assert view.all_declined(outcome) == ""
