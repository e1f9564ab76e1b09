"""Attacks 28 and 29: full and damaged disks, two processes with one identity, clean-up that races a running round.

That `kill -9` at each transition loses and doubles nothing is in `test_faults`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from trial_helpers import check_trial, contributors, dropped, results, small

from dca_proto.errors import UsageError
from dca_proto.protocol.compute.round import CONTRIBUTIONS
from dca_proto.protocol.compute.round import ROUNDS as NODE_ROUNDS
from dca_proto.protocol.effects import Write
from dca_proto.protocol.facts import RoundFailed
from dca_proto.protocol.trainer.round import ROUNDS as TRAINER_ROUNDS
from emulator.sim.events import Observer
from emulator.sim.process import KillPoint, Process
from emulator.trials.outcome import UNREPORTED
from emulator.trials.scenario import Fault
from emulator.trials.trial import begin
from emulator.trials.world import TrialWorld


class Moments(Observer):
    """When an actor writes, in milliseconds since the start."""

    def __init__(self, world: TrialWorld, actor: str) -> None:
        self.at_ms: list[int] = []
        self._simulator = world.simulator
        self._process = world.processes_of(actor)[0]

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        if process is self._process:
            self.at_ms.append(self._simulator.now_ms - self._simulator.start_ms)


@pytest.mark.parametrize(("actor", "steps"), [("client 0", 2), ("compute 0", 4), ("trainer", 4)])
def test_attack_28_a_disk_that_is_full_ends_the_process_and_nothing_leaves(actor: str, steps: int) -> None:
    """At each step of a round that stores anything. Freed and started again, the process goes on from what was durable
    (all checkers hold)."""
    scenario, seen = small(clients=3, tolerate=0), []

    def watch(world: TrialWorld) -> None:
        seen.append(Moments(world, actor))
        world.simulator.observers.append(seen[-1])

    world, _ = check_trial(scenario, watch)
    ended_ms = world.rounds[0].ended_ms - world.simulator.start_ms
    moments = sorted({at_ms for at_ms in seen[0].at_ms if 0 < at_ms <= ended_ms})
    assert len(moments) >= steps
    for at_ms in moments:
        full = Fault(kind="disk-full", actor=actor, at_ms=at_ms, for_ms=2_000)
        world, outcome = check_trial(msgspec.structs.replace(scenario, faults=(full,)))
        assert outcome.faults[0].reached
        assert outcome.faults[0].at_ms == at_ms
        assert results(outcome) == ["completed"]
        assert not world.processes_of(actor)[0].disk.is_full


@pytest.mark.parametrize("actor", ["client 0", "compute 0", "trainer"])
def test_attack_28_a_damaged_record_stops_the_start_and_names_its_table(actor: str) -> None:
    """Whatever table it is in: to go on without it could spend twice or release twice."""
    world, _ = check_trial(small(clients=3))
    process = world.processes_of(actor)[0]
    tables = {table for table, _ in process.disk.records}
    assert len(tables) >= 2
    for table in sorted(tables - {"announcement", "hello"}):  # without these a round ends, and a Hello is made anew
        damaged = process.disk.copy()
        key = next(key for other, key in damaged.records if other == table)
        damaged.records[table, key] = b"\xc1" + damaged.records[table, key][:5]
        with pytest.raises(UsageError, match=f"the store's table '{table}' cannot be read") as refusal:
            process._build(damaged.load())
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("at_ms", [500, 1_008, 1_020, 1_030, 1_050])
@pytest.mark.parametrize("actor", ["client 0", "compute 0"])
def test_attack_28_two_processes_with_one_identity(actor: str, at_ms: int) -> None:
    """A copy of the disk runs beside the original, at any step. Nobody else is hurt; a real store is locked by its
    process, so that only a copy can do so."""
    duplicate = Fault(kind="duplicate-instance", actor=actor, at_ms=at_ms)
    world, outcome = check_trial(small(duplicate, clients=5, computes=2, count=2, every_ms=3_000))
    assert world.faults[0].reached
    assert len(world.duplicated) == 1
    assert results(outcome) == ["completed", "completed"]
    assert contributors(world) in (4, 5), "without a client's contribution, or with one"


@pytest.mark.parametrize("where", ["before", "torn"])
def test_attack_29_the_trainer_dies_before_it_has_saved_the_round(where: str) -> None:
    """Nothing has left for that id, so its owner asks again, and one round is held."""
    kill = Fault(kind=f"kill-{where}", actor="trainer", phase="collecting")
    world, outcome = check_trial(small(kill))
    assert world.faults[0].reached
    assert results(outcome) == ["completed"]
    assert len(world.trainer.actor.ledger.charges) == 1 + (outcome.ended.further == "completed")
    assert world.trainer.starts == 2


def test_attack_29_the_trainer_dies_after_it_saved_the_round_and_before_it_announced_it() -> None:
    kill = Fault(kind="kill-after", actor="trainer", phase="collecting")
    world, outcome = check_trial(small(kill))
    assert results(outcome) == ["completed"]
    assert len({log.id for log in world.rounds[:1]}) == 1


@pytest.mark.parametrize("phase", ["failed", "returned"])
def test_a_stored_failure_that_was_not_reported_is_reported_at_the_next_start(phase: str) -> None:
    """The process dies between the two: the owner would wait for ever."""
    away = [Fault(kind="vanish-before-sending", actor=f"client {number}") for number in (2, 3)]
    kill = Fault(kind="kill-after", actor="trainer", phase=phase)
    world, outcome = check_trial(small(kill, *away))
    assert world.faults[0].phase == phase
    assert isinstance(world.rounds[0].ended, RoundFailed)
    assert results(outcome) == ["aborted"]
    assert outcome.ended.rounds[0].reason != UNREPORTED


def test_attack_29_a_contribution_that_comes_after_clean_up_open_nothing() -> None:
    """A client is cut off with its contribution on its way; it comes when the node has let the round out of memory."""
    cut = Fault(kind="partition-up", actor="client 0", at_ms=1_005, for_ms=4_000_000)
    world, outcome = check_trial(small(cut, heal_ms=4_001_500))
    assert results(outcome) == ["completed"]
    assert contributors(world) == 3
    assert dropped(world, "phase") + dropped(world, "unknown-round") > 0
    assert not [key for node in world.computes for key in node.disk.records if key[0] == CONTRIBUTIONS]


def test_attack_29_clean_up_of_one_round_leaves_a_running_one_alone() -> None:
    """The second round waits for a client that vanished while nodes delete the first's sum; then it completes."""
    away, seen = Fault(kind="partition-up", actor="clients", at_ms=3_610_000, for_ms=30_000), []

    def look(world: TrialWorld) -> None:
        first, second = (world.computes[0].actor._rounds[log.id] for log in world.rounds)
        seen.append((bool(first.stored.final_message), first.phase, second.is_loaded, second.phase))

    def prepare(world: TrialWorld) -> None:
        for at_ms in (3_625_000, 3_638_000):
            world.simulator.at(world.simulator.start_ms + at_ms, look, world)

    world, outcome = check_trial(small(away, count=2, every_ms=3_620_000, collect_s=24), prepare)
    assert seen == [(True, "released", True, "collecting"), (False, "released", True, "collecting")]
    assert results(outcome) == ["completed", "completed"]
    assert [contributors(world, 0), contributors(world, 1)] == [4, 4]


def test_attack_29_a_node_that_dies_in_its_clean_up_does_not_open_the_round_again() -> None:
    """Killed in the transaction that lets go of what it had released: its next start knows the round as ended."""
    world = TrialWorld(small())
    begin(world)
    simulator, node = world.simulator, world.computes[0]
    simulator.run(simulator.start_ms + 20_000)
    before = dict(node.disk.records)
    node.plan_kill(KillPoint(node.disk.transactions, "torn"))
    simulator.run(simulator.start_ms + 4_000_000)
    assert not node.is_up
    assert node.disk.records == before
    node.restart()
    simulator.run(simulator.start_ms + 4_020_000)
    assert node.actor.phase(world.rounds[0].id) == "released"
    assert [key for key in node.disk.records if key[0] == NODE_ROUNDS]


@pytest.mark.long
def test_attack_29_the_trainer_forgets_a_round_only_after_its_retention() -> None:
    world, _ = check_trial(small())
    day_ms = 24 * 3600 * 1000
    known = [key for table, key in world.trainer.disk.records if table == TRAINER_ROUNDS]
    assert len(known) == 2
    world.simulator.run(world.simulator.now_ms + 8 * day_ms)
    assert not [key for table, key in world.trainer.disk.records if table == TRAINER_ROUNDS]
    with pytest.raises(UsageError, match="is known already"):
        world.simulator.command(world.trainer.id, world.rounds[0].request)
