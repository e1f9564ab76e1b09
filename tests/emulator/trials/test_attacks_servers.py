"""Attack 26: Compute nodes that drop, alter, withhold, equivocate, lie: detected, or documented."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from trial_helpers import check_trial, contributors, facts_of, results, small

from dca_proto.protocol.facts import Declined, LedgerReused, NodeAborted, RoundCompleted
from emulator.trials.hostile import HOSTILE
from emulator.trials.scenario import Adversary, Scenario
from emulator.trials.world import TrialWorld

SEED = 7
"""With which Compute node 1 holds clients in the rounds below, unless another seed stands there."""


def against(
    kind: str, amount: int = 0, actor: str = "compute 1", seed: int = SEED, clients: int = 6, **rounds: object
) -> Scenario:
    adversary = Adversary(kind=kind, actor=actor, amount=amount)
    return small(adversaries=(adversary,), clients=clients, computes=3, seed=seed, **rounds)


def value(world: TrialWorld) -> np.ndarray:
    fact = world.rounds[0].ended
    assert isinstance(fact, RoundCompleted)
    return fact.aggregate.value


def test_each_kind_states_what_it_spoils() -> None:
    for name, kind in HOSTILE.items():
        assert kind.does, name
        assert kind.spoils <= {"value", "round", "consent"}


@pytest.mark.parametrize(("dropped", "colluders", "ends"), [(1, 0, "completed"), (1, 1, "completed"),
                                                            (2, 1, "aborted")])  # fmt: skip
def test_attack_26_a_node_drops_honest_clients_up_to_t_minus_c(dropped: int, colluders: int, ends: str) -> None:
    """Documented: up to T - c of them are out of the sum unnoticed, which has its noise all the same; beyond, the
    honest nodes abort with figures, and release nothing."""
    clients = 30  # a node holds fewer than two of them in one of 10,000 rounds
    world, outcome = check_trial(against("drop-clients", dropped, clients=clients, tolerate=2, colluders=colluders))
    assert results(outcome) == [ends]
    first = outcome.ended.rounds[0]
    if ends == "completed":
        assert contributors(world) == clients - dropped
        assert first.noise_variance >= first.noise_floor
    else:
        assert (first.contributors, first.needed) == (clients - dropped, clients - 2 + colluders)
        assert {fact.reason for fact in facts_of(world, NodeAborted)} == {"too-few"}


def test_attack_26_an_altered_sum_that_no_clients_can_make_is_refused_and_stays_spent() -> None:
    """Masks do not cancel any more. What is claimed of privacy still holds (checkers 1, 2, 4, 5)."""
    world, outcome = check_trial(against("alter-sum", noise=False))
    assert results(outcome) == ["aborted"]
    assert outcome.spoils == ("round", "value")
    assert "was outside its bounds" in outcome.ended.rounds[0].reason
    assert not world.trainer.actor.ledger[world.rounds[0].id].returned


def test_attack_26_a_withheld_sum_keeps_the_result_from_the_trainer_until_the_node_gives_it() -> None:
    """The trainer waits for it, up to an hour after `commit_by`; here the node gives it once the trial has healed."""
    world, outcome = check_trial(against("withhold-sum"))
    assert results(outcome) == ["completed"]
    first = world.rounds[0]
    assert first.ended_ms > first.announced_ms + first.request.collect_ms + first.request.commit_ms
    assert len(world.trainer.actor.ledger.charges) == 2
    assert not world.trainer.actor.ledger[world.rounds[0].id].returned, "the others have released: it stays spent"


def test_attack_26_a_silent_node_ends_the_round_and_its_peers_name_it() -> None:
    world, outcome = check_trial(against("silent"))
    assert results(outcome) == ["aborted"]
    aborts = [fact for fact in facts_of(world, NodeAborted) if fact.compute != world.actors.computes[1]]
    assert {fact.reason for fact in aborts} == {"peer-silent"}
    assert all("compute-1" in fact.detail for fact in aborts)


def test_attack_26_an_equivocating_node_spoils_the_round_and_gets_no_second_sum() -> None:
    """Answers carry all list hashes as each node saw them: honest nodes see two, and release nothing."""
    _, outcome = check_trial(against("equivocate", tolerate=2, seed=9))
    assert results(outcome) == ["aborted"]
    assert " has other lists" in outcome.ended.rounds[0].reason


def test_attack_26_an_abort_signed_after_a_release() -> None:
    """Nothing comes of it but an aborted round or a result: no charge comes back where anybody honest has released."""
    world, outcome = check_trial(against("abort-late"))
    assert results(outcome)[0] in ("aborted", "completed")
    if results(outcome) == ["completed"]:
        assert not world.trainer.actor.ledger[world.rounds[0].id].returned


def test_attack_26_a_node_that_calls_ledgers_old_makes_clients_decline_until_their_next_start() -> None:
    """Documented. Those whom it lies about are out of that sum, and of the next; no budget is lost."""
    world, outcome = check_trial(against("call-old", 4, tolerate=4, count=2, every_ms=25_000))
    lied_about = len(world.warned_old)
    assert 1 <= lied_about <= 4, "those whom it holds, in the first round or in the second"
    assert results(outcome) == ["completed", "completed"]
    assert contributors(world, 1) == 6 - lied_about
    declines = [fact for fact in facts_of(world, Declined) if fact.client in world.warned_old]
    assert {fact.reason for fact in declines} <= {"ledger"}
    assert facts_of(world, LedgerReused) or declines
    assert outcome.ended.further == "completed"
    assert contributors(world, 2) == 6, "all are back after a start"


@pytest.mark.parametrize("kind", ["out-of-range", "wrong-tags", "two-faced", "sybil", "copier", "wrong-holder"])
def test_hostile_clients_spoil_what_is_documented_and_no_more(kind: str) -> None:
    """A client can spoil a round (by any numbers) or drop; it cannot crash or block anybody, or be counted twice."""
    world, outcome = check_trial(against(kind, actor="client 2", noise=False))
    honest, _ = check_trial(small(clients=6, computes=3, seed=SEED, noise=False))
    if kind == "out-of-range":
        assert results(outcome) == ["aborted"]
        assert "at least one of the 6 contributions was outside its bounds" in outcome.ended.rounds[0].reason
        return
    assert results(outcome) == ["completed"]
    out = kind in ("wrong-tags", "sybil", "wrong-holder")
    assert contributors(world) == (5 if out else 6)
    if kind in ("copier", "two-faced"):
        assert np.allclose(value(world), value(honest)), "the first counts; a copied ciphertext opens nowhere"
        dropped = sum((node.actor.dropped for node in world.computes), Counter())
        assert dropped["second-contribution" if kind == "two-faced" else "holder"] >= 1
