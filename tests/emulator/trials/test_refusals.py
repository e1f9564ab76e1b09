"""Refusals of the actors: found in the source, counted where they are executed, and judged by `check_scenarios`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from sources import sources
from trial_helpers import check_trial, small, with_limits

from emulator.trials import refusals
from emulator.trials.scenario import Adversary

SCRIPTS = Path(__file__).parents[3] / "scripts"
TESTS = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.delitem(sys.modules, "check_scenarios", raising=False)
    import check_scenarios

    return check_scenarios


def test_every_peer_error_of_the_actors_is_a_site() -> None:
    raised = [
        node
        for _, nodes in sources("dca_proto/crypto", "dca_proto/privacy/local", "dca_proto/protocol")
        for node in nodes
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and ast.unparse(node.exc.func) == "PeerError"
    ]
    sites = refusals.sites()
    assert len(set(sites)) == len(sites)
    assert sum(": drops" in site for site in sites) == len(raised) > 80


@pytest.mark.long
def test_executed_refusals_are_noted_and_others_are_not() -> None:
    with refusals.noted() as executed:
        check_trial(small())
        quiet = set(executed)
        check_trial(with_limits(small(count=2, every_ms=4_000), epsilon_per_period_max=1.2))
        check_trial(small(adversaries=(Adversary(kind="wrong-holder", actor="client 0"),)))
    assert "protocol/policy.py BudgetLimit.check: declines budget" in executed - quiet
    assert "protocol/compute/actor.py ComputeNode._on_contribution: drops holder" in executed - quiet
    assert executed <= set(refusals.sites())


def test_functions_work_as_before_and_keep_their_lines() -> None:
    from dca_proto.errors import PeerError
    from dca_proto.protocol.wire.codec import decode_frame

    with refusals.noted() as executed, pytest.raises(PeerError) as caught:
        decode_frame(b"\xc1")
    assert executed == {"protocol/wire/codec.py _decode: drops malformed"}
    assert caught.traceback[-1].path.name == "codec.py"
    line = Path(str(caught.traceback[-1].path)).read_text().splitlines()[caught.traceback[-1].lineno]
    assert "PeerError" in line


def test_a_sweep_that_misses_a_refusal_fails_and_so_does_a_list_that_is_out_of_date(script: object) -> None:
    counts = {"a": 3, "b": 2, "c": 0, "d": 6, "f": 5}
    wrong = list(script.wrong_refusals(counts, {"c": "why", "d": "why", "e": "why", "f": "why"}))  # type: ignore[attr-defined]
    assert [("b;" in line, "take it off" in line, "not in the code" in line) for line in wrong] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]


def test_listed_refusals_exist_and_have_a_reason_and_a_test(script: object) -> None:
    listed = script.rare()  # type: ignore[attr-defined]
    assert listed.keys() <= set(refusals.sites())
    assert all(len(entry.why) > 20 for entry in listed.values())
    written = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    missing = {entry.test for entry in listed.values() if f"\ndef {entry.test}(" not in written}
    assert not missing, f"tests that rare_refusals.toml names and nobody wrote: {missing}"
