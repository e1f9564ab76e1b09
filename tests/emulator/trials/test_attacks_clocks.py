"""Attacks 25 and 30: clocks early, late and skewed; keys that turn in mid-round, or are gone too early."""

from __future__ import annotations

import re

import msgspec
import pytest
from trial_helpers import check_trial, contributors, results, small

from dca_proto.protocol.compute.round import RELEASED
from dca_proto.protocol.params import Timing
from emulator.trials.scenario import EPOCH_MS_MIN, Fault
from emulator.trials.world import TrialWorld

MINUTE_MS = 60_000


@pytest.mark.parametrize("kind", ["clock-ahead", "clock-behind"])
@pytest.mark.parametrize("actor", ["client 0", "compute 0", "trainer", "clients", "computes"])
@pytest.mark.parametrize("amount", [500.0, 3_000.0, 2.0 * MINUTE_MS])
def test_attack_25_clocks_that_are_wrong(kind: str, actor: str, amount: float) -> None:
    """Every round ends, none is charged twice, and a small error costs nothing (all checkers hold)."""
    world, outcome = check_trial(small(Fault(kind=kind, actor=actor, amount=amount), collect_s=6))
    assert world.faults[0].reached
    if amount == 500:
        assert results(outcome) == ["completed"]
        assert contributors(world) == 4


def test_attack_25_a_client_far_ahead_misses_the_round_and_no_other_is_hurt() -> None:
    world, outcome = check_trial(small(Fault(kind="clock-ahead", actor="client 0", amount=10.0 * MINUTE_MS)))
    assert results(outcome) == ["completed"]
    assert contributors(world) == 3
    assert world.clients[0].actor.dropped["late"] >= 1
    assert world.actors.clients[0] not in world.rounds[0].contributors


def test_attack_25_a_node_far_ahead_refuses_the_round_which_ends_in_words() -> None:
    """It never collects for a round whose deadline is over by its own clock: no round opens after its deadline."""
    world, outcome = check_trial(small(Fault(kind="clock-ahead", actor="compute 1", amount=10.0 * MINUTE_MS)))
    assert results(outcome) == ["aborted"]
    reason = outcome.ended.rounds[0].reason
    assert reason.startswith("compute-1 aborted the round: found a round's announcement at ")
    assert re.search(r"by this clock; expected before .* earlier; this clock or that of trainer is wrong", reason)
    charges = [charge for client in world.clients for charge in client.actor.ledger.charges]
    assert [charge.returned for charge in charges] == [True, False] * 4, (
        "of the round before healing, and the further one"
    )


def test_attack_25_clocks_that_jump_in_mid_round() -> None:
    """Back and forth: an epoch's number never goes back, deadlines stay absolute, and the round ends."""
    jumps = [
        Fault(kind=kind, actor=actor, at_ms=at_ms, for_ms=1_500, amount=20_000)
        for at_ms, kind in ((1_020, "clock-ahead"), (3_000, "clock-behind"))
        for actor in ("compute 0", "trainer", "client 1")
    ]
    world, outcome = check_trial(small(*jumps, clients=5))
    assert all(record.reached for record in world.faults)
    assert outcome.ended.live


@pytest.mark.parametrize("at_ms", [900, 1_005, 1_012, 1_020, 1_030, 1_040, 1_060, 1_100, 2_000])
@pytest.mark.parametrize("counted", [True, False])
def test_attack_30_keys_turn_in_mid_round(at_ms: int, counted: bool) -> None:
    """At any moment of a round: its masks are of the keys that were announced, which are kept until it ends."""
    turn = Fault(kind="epoch-turn", actor="broker", at_ms=at_ms)
    world, outcome = check_trial(small(turn, clients=3, counted=counted, collect_s=2))
    assert results(outcome) == ["completed"]
    assert contributors(world) == 3


def test_attack_30_old_keys_are_deleted_when_their_grace_is_over() -> None:
    """Forward secrecy: what an epoch's contributions were sealed with is gone from every disk."""
    world, _ = check_trial(small(Fault(kind="epoch-turn", actor="broker", at_ms=1_030)))
    assert all(len(epochs(world, number)) == 2 for number in range(2))
    world.simulator.run(world.simulator.now_ms + Timing().epoch_grace_ms + 10 * MINUTE_MS)
    assert all(len(epochs(world, number)) == 1 for number in range(2))


def epochs(world: TrialWorld, number: int) -> list[bytes]:
    return [key for table, key in world.computes[number].disk.records if table == "epoch"]


def test_attack_30_an_old_key_that_is_deleted_early_costs_the_round_and_nothing_else() -> None:
    """A node that lost its key in mid-round can open no contribution: the round is aborted, charges return."""

    def lose(world: TrialWorld) -> None:
        node = world.computes[0]

        def deleted() -> None:
            for key in epochs(world, 0):
                del node.disk.records["epoch", key]
            node.restart()

        world.simulator.at(world.simulator.start_ms + 1_028, deleted)

    world, outcome = check_trial(small(clients=5), lose)
    assert world.computes[1].actor.phase(world.rounds[0].id) != RELEASED
    assert results(outcome) == ["aborted"]
    assert all(client.actor.ledger[world.rounds[0].id].returned for client in world.clients)
    assert outcome.ended.further == "completed", "with a key of the same epoch, made anew"


@pytest.mark.parametrize("epochs", [1.0, 1.3, 2.5])
@pytest.mark.parametrize("kind", ["clock-leap", "clock-back"])
@pytest.mark.parametrize("groups", [("computes",), ("computes", "trainer"), ("computes", "clients", "trainer")])
def test_attack_49_clocks_that_leap_break_nothing(kind: str, epochs: float, groups: tuple[str, ...]) -> None:
    """Several clocks run epochs ahead or behind and are set right: budgets, epochs and Hellos hold, rounds complete."""
    leaps = [Fault(kind=kind, actor=group, at_ms=500, for_ms=12_000, amount=epochs * EPOCH_MS_MIN) for group in groups]
    crash = Fault(kind="crash", actor="trainer", at_ms=1_500, for_ms=500)
    scenario = small(*leaps, crash, count=4, every_ms=6_000)
    world, outcome = check_trial(msgspec.structs.replace(scenario, epoch_ms=EPOCH_MS_MIN))
    assert outcome.ended.further == "completed"
    assert all(fault.reached for fault in world.faults)
