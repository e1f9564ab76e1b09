"""Attacks 16, 41, 44, 52: a trainer that equivocates, announces beyond policy, closes early, or speaks for others."""

from __future__ import annotations

import pytest
from trial_helpers import check_trial, contributors, dropped, facts_of, results, small, with_limits

from dca_proto.protocol.facts import Declined, ListFrozen
from dca_proto.protocol.wire.kinds import NODE_RELEASE
from emulator.trials.hostile import HOSTILE
from emulator.trials.scenario import Adversary, Scenario
from emulator.trials.world import TrialWorld

KINDS = [name for name, kind in HOSTILE.items() if kind.role == "trainer"]


def under(hostile: str, amount: int = 0, **rounds: object) -> Scenario:
    adversaries = (Adversary(kind=hostile, actor="trainer", amount=amount),)
    return small(adversaries=adversaries, clients=6, computes=3, **rounds)


def spent(world: TrialWorld) -> list[int]:
    """How many charges each client has that were not returned."""
    ledgers = [client.actor.ledger for client in world.clients]
    return [sum(not charge.returned for charge in ledger.charges) for ledger in ledgers]


@pytest.mark.parametrize("hostile", KINDS)
@pytest.mark.parametrize("terms", [{}, {"kind": NODE_RELEASE, "rows_max": 1}], ids=["sum", "node releases"])
def test_whatever_a_trainer_does_nobody_releases_or_pays_more(hostile: str, terms: dict[str, object]) -> None:
    """All checkers hold, and once it keeps to the protocol a round completes."""
    world, outcome = check_trial(under(hostile, count=2, every_ms=9_000, **terms))
    assert outcome.ended.further == "completed"
    assert world.hostile == {world.trainer.id}
    further = 2 * HOSTILE[hostile].amounts[0] if hostile == "many-rounds" else 0
    assert max(spent(world)) <= 3 + further, "one charge for each round and client"


def test_attack_41_two_announcements_under_one_id_charge_each_client_once() -> None:
    """Whoever follows the one that the nodes do not hold pays for nothing (documented); nothing is released."""
    world, outcome = check_trial(under("two-announcements"))
    assert results(outcome) == ["aborted"]
    assert dropped(world, "known-round") or dropped(world, "announcement")


def test_halves_that_are_too_small_leave_the_round_whole() -> None:
    scenario = small(adversaries=(Adversary(kind="two-halves", actor="trainer"),), clients=3, computes=2)
    world, outcome = check_trial(scenario)
    assert results(outcome) == ["completed"]
    assert len(world.rounds[0].contributors) == 3


def test_attack_44_an_early_close_leaves_stragglers_out_or_aborts() -> None:
    world, outcome = check_trial(under("close-early", amount=6))
    assert outcome.ended.rounds[0].result in ("completed", "aborted")
    counts = [fact.count for fact in facts_of(world, ListFrozen)]
    assert min(counts) < 2, "somebody froze before all had contributed"


def test_attack_16_what_policies_forbid_is_declined() -> None:
    scenario = with_limits(under("ask-too-much", count=3, every_ms=9_000), clients_min=5)
    world, _ = check_trial(scenario)
    assert {"epsilon", "delta", "mu", "clients", "honest", "announcement"} & {
        fact.reason for fact in facts_of(world, Declined)
    }
    assert sum(spent(world)) < 4 * 6, "not all that was asked for was agreed to"


def test_attack_52_aborts_in_the_nodes_names_return_no_charge() -> None:
    world, outcome = check_trial(under("usurp", amount=20))
    assert results(outcome) == ["completed"]
    assert contributors(world) == 6
    assert dropped(world, "signature")
    assert spent(world) == [2] * 6, "for this round and the one after healing"
