"""Rounds survive Compute nodes that are rebooted, come back after the end, or are gone once they have released."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from trial_helpers import check_trial, results, small

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.facts import Released
from dca_proto.protocol.wire.messages import Answer
from emulator.sim.events import Observer
from emulator.sim.lane import Packet
from emulator.sim.process import Process
from emulator.trials.losses import ABSENT, LATE, LOST, REBOOTED, STRANDED, Fate, LossScenario, fate_of, scenario_of
from emulator.trials.scenario import Fault, Scenario
from emulator.trials.world import TrialWorld
from emulator.wire import body_of

BRIEF_MS = 200


class GoneOnceReleased(Observer):
    """The first Compute node is lost for good as soon as its sum has left."""

    def __init__(self, world: TrialWorld) -> None:
        self._world = world

    def on_fact(self, process: Process, fact: object) -> None:
        if process is self._world.computes[0] and isinstance(fact, Released) and self._world.further is None:
            self._world.simulator.after(BRIEF_MS, process.kill, "gone")


def test_an_answer_that_one_node_has_reaches_all() -> None:
    """The author of an answer is gone; a peer that has it passes it on."""

    def lose_an_answer(world: TrialWorld) -> None:
        author, deprived = (process.id for process in world.computes[:2])

        def tamper(packet: Packet) -> Sequence[Packet]:
            body = body_of(packet.payload or b"") if packet.to.id == deprived and packet.sender == author else None
            return () if isinstance(body, Answer) else (packet,)

        world.router.tampers.append(tamper)
        world.simulator.observers.append(GoneOnceReleased(world))

    scenario = msgspec.structs.replace(small(computes=3, collect_s=10, commit_s=30), heal_ms=60_000)
    _, outcome = check_trial(scenario, lose_an_answer)
    assert results(outcome) == ["completed"]


def away(kind: str, phase: str, computes: int) -> Scenario:
    """A node is away for two minutes, beyond the announced end and the trainer's patience."""
    gone = Fault(kind=kind, actor="compute 1", phase=phase, for_ms=120_000)
    return msgspec.structs.replace(small(gone, computes=computes, collect_s=10, commit_s=10), heal_ms=300_000)


def charges(world: TrialWorld) -> set[bool]:
    """Whether the clients' charges for the first round have come back."""
    ledgers = [client.actor.ledger for client in world.clients if isinstance(client.actor, Client)]
    return {ledger[world.rounds[0].id].returned for ledger in ledgers}


@pytest.mark.parametrize("kind", ["kill-before", "kill-torn"])
@pytest.mark.parametrize("computes", [2, 3])
def test_a_node_that_comes_back_after_the_end_completes_the_round(kind: str, computes: int) -> None:
    """It had sent its answer, so the others have released: with its sum, each client has paid for a result."""
    world, outcome = check_trial(away(kind, "released", computes))
    assert results(outcome) == ["completed"]
    assert (world.rounds[0].ended_ms or 0) > world.simulator.start_ms + 120_000
    assert charges(world) == {False}


@pytest.mark.parametrize("kind", ["kill-after", "kill-between"])
def test_a_node_that_comes_back_too_late_releases_nothing_in_vain(kind: str) -> None:
    """It has not sent its answer. The trainer holds no sum and has ended the round: all charges come back."""
    world, outcome = check_trial(away(kind, "answered", 3))
    assert results(outcome) == ["aborted"]
    assert charges(world) == {True}


@pytest.mark.parametrize(
    "plan", [LossScenario(3, 0, REBOOTED, 3, 2), LossScenario(4, 0, REBOOTED, 4, 1), LossScenario(3, 1, LOST, 0, 4)]
)
def test_a_plan_gives_one_fate(plan: LossScenario) -> None:
    assert fate_of(plan) == fate_of(plan) == msgspec.structs.replace(fate_of(plan), has_result=True, charges=(1, 1))


@pytest.mark.parametrize(
    ("plan", "repeats"), [(LossScenario(3, 1, LOST, 1, 3), 1), (LossScenario(4, 1, LOST, 2, 0), 2)]
)
def test_a_request_is_repeated_without_the_lost_nodes_at_one_charge(plan: LossScenario, repeats: int) -> None:
    fate = fate_of(plan)
    assert (fate.has_result, fate.repeats, fate.charges, fate.broken) == (True, repeats, (1, 1), {})
    assert 8_000 <= (fate.wait_ms or 0) <= 15_000 * repeats


@pytest.mark.parametrize("size", [(3, 0, 1), (4, 1, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_with_too_few_nodes_up_a_request_ends_within_a_minute_at_no_charge(
    size: tuple[int, int, int], seed: int
) -> None:
    computes, colluding, nodes = size
    fate = fate_of(LossScenario(computes, colluding, ABSENT, nodes, seed))
    assert (fate.has_result, fate.charges, fate.broken) == (False, (0, 0), {})
    assert "nothing was charged" in fate.reason
    assert 45_000 <= fate.taken_ms <= 60_000


@pytest.mark.parametrize("size", [(3, 2, 1), (3, 1, 2), (4, 1, 3)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_request_that_loses_too_many_nodes_ends_within_a_minute_and_its_charges_come_back(
    size: tuple[int, int, int], seed: int
) -> None:
    """Where each round needs all nodes, it states that it waits 45 seconds. A loss at the end may cost nothing."""
    computes, colluding, nodes = size
    fate = fate_of(LossScenario(computes, colluding, STRANDED, nodes, seed))
    assert fate.broken == {}
    if not (fate.has_result or fate.is_excused):
        assert 8_000 < (fate.left_ms or 0) <= 60_000
        assert fate.charges[1] == 0


def test_plans_strike_as_many_nodes_as_they_say() -> None:
    for strikes, nodes in ((LOST, 0), (LOST, 2), (REBOOTED, 4), (LATE, 1), (ABSENT, 3), (STRANDED, 3)):
        faults = scenario_of(LossScenario(4, 1, strikes, nodes, 3)).faults
        assert len({fault.actor for fault in faults}) == len(faults) == nodes


def test_a_fate_is_excused_by_two_moments_only() -> None:
    assert not Fate(has_result=False).is_excused
    assert Fate(has_result=False, skew=True).is_excused
    assert Fate(has_result=False, race=True).is_excused
