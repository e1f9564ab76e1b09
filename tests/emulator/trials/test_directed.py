"""Scenarios made by hand: each holds, and has the moment for which it was made.

`scripts/planted_faults.toml` names those that catch a planted fault, and `test_planted.py` plants it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trial_helpers import check_trial, facts_of

from dca_proto.protocol.facts import (
    Announced,
    ChargeReturned,
    FederationChanged,
    NodeAborted,
    NodesSilent,
    RoundCompleted,
)
from emulator.trials.directed import DIRECTED
from emulator.trials.world import TrialWorld


def at_once(world: TrialWorld) -> bool:
    """The request has a result from its first round."""
    return isinstance(world.rounds[0].ended, RoundCompleted)


def waited_ms(world: TrialWorld) -> int:
    """How long the first round took. The liar keeps to the protocol once the trial has healed."""
    return (world.rounds[0].ended_ms or 0) - world.rounds[0].asked_ms


def repeated(world: TrialWorld) -> bool:
    """The request has a result from a repeat, which one client paid for after the others."""
    last = world.rounds[0].last
    return bool(last.request.repeats) and isinstance(last.ended, RoundCompleted)


def returned(world: TrialWorld) -> int:
    """How many members got the first round's charge back, the trainer among them."""
    return sum(fact.round_id == world.rounds[0].id for fact in facts_of(world, ChargeReturned))


def waits_s(world: TrialWorld) -> list[int]:
    """How long each request waited until it was announced, or given up, in whole seconds."""
    rounds = [log for log in world.rounds if log is not world.further]
    return [((log.announced_ms or log.ended_ms or 0) - log.asked_ms) // SECOND_MS for log in rounds]


def liar_factors(world: TrialWorld) -> list[float]:
    """How many times as far as an honest client a liar gets, in each round with a result, of which there is one."""
    completed = facts_of(world, RoundCompleted)
    assert completed
    return [fact.aggregate.liar_factor or 9.9 for fact in completed]


def nodes_of(world: TrialWorld) -> list[str]:
    """The numbers of the nodes of each announced round; repeats come after what they repeat."""
    numbers = {node: str(number) for number, node in enumerate(world.actors.computes)}
    of = {fact.round_id: "".join(numbers[node] for node in fact.computes) for fact in facts_of(world, Announced)}
    return [of[log.id] for log in world.rounds if log.id in of and log is not world.further]


SECOND_MS = 1_000
WINDOWS_MS = 240_000
MOMENTS: dict[str, Callable[[TrialWorld], bool]] = {
    "a reboot where every round needs all nodes": lambda world: at_once(world) and bool(facts_of(world, NodesSilent)),
    "a trainer states how long it waits where every round needs all nodes": lambda world: (
        30_000 <= waited_ms(world) < 45_000 and returned(world) == 7
    ),
    "a node that owes its abort is back before its trainer": lambda world: nodes_of(world) == ["012", "01", "012"],
    "a trusted node is lost": lambda world: not at_once(world) and len(facts_of(world, Announced)) > 1,
    "the federation loses a node while a charge waits for aborts": lambda world: returned(world) == 0,
    "a node is revoked between its abort and another one": lambda world: (
        returned(world) == 7 and bool(facts_of(world, FederationChanged))
    ),
    "a client hears of the aborts from the repeat": repeated,
    "a node lies about whom it waits for": lambda world: at_once(world) and waited_ms(world) > WINDOWS_MS,
    "rows in a ball on the finest grid, without noise": lambda world: all(
        factor < 1.001 for factor in liar_factors(world)
    ),
    "clients prove that rows outside a ball are in it": lambda world: (
        {client for fact in facts_of(world, RoundCompleted) for client in fact.aggregate.unproven}
        == {world.clients[1].id}
    ),
    "a trainer cancels a round that has a result": lambda world: at_once(world) and returned(world) == 0,
    "a trainer chooses too few nodes": lambda world: (
        {fact.reason for fact in facts_of(world, NodeAborted)} >= {"p"} and bool(facts_of(world, RoundCompleted))
    ),
    "the file states a smaller p while a node is lost": lambda world: (
        at_once(world) and waited_ms(world) > 200_000 and world.actors.newest.p == 1
    ),
    "the file states a larger p while a node is lost": lambda world: (
        returned(world) == 7 and waited_ms(world) > WINDOWS_MS and world.actors.newest.p == 2
    ),
    "a round of fewer nodes comes after the file states a smaller p": lambda world: (
        nodes_of(world) == ["012", "01"] and len(world.rounds[1].declined) == 6
    ),
    "one node is dead when the request comes": lambda world: (waits_s(world), nodes_of(world)) == ([10], ["01"]),
    "too many nodes are dead when the request comes": lambda world: (waits_s(world), nodes_of(world)) == ([45], []),
    "a request states how long it waits for a dead node": lambda world: (waits_s(world), nodes_of(world)) == ([70], []),
    "a node is rebooted between two rounds": lambda world: (waits_s(world), nodes_of(world)) == ([0, 89], ["012"] * 2),
    "a request follows a round that ended for a node's silence": lambda world: (
        (waits_s(world), nodes_of(world)) == ([0, 45], ["012"])
    ),
    "old messages of a dead node come again": lambda world: (
        (waits_s(world), nodes_of(world)) == ([0, 10], ["012", "01"])
    ),
    "a node is lost in each round that it is in": lambda world: (
        nodes_of(world) == ["012", "01", "012", "01", "01", "012", "01", "01", "01", "012", "012", "01", "012"]
    ),
    "a flapping node takes the place of a dead one": lambda world: nodes_of(world) == ["012", "01", "012", "01", "12"],
}


def test_each_scenario_has_a_moment() -> None:
    assert MOMENTS.keys() == DIRECTED.keys()


@pytest.mark.parametrize("name", DIRECTED)
def test_a_scenario_made_by_hand_holds_and_has_its_moment(name: str) -> None:
    world, _ = check_trial(DIRECTED[name])
    assert MOMENTS[name](world)
