"""Attacks 31 to 33: a malicious broker, a failing one, and half of the swarm that comes back at once."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from trial_helpers import FAST, check_trial, contributors, results, small

from dca_proto.protocol.effects import Send
from emulator.sim.broker import BrokerLimits
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.trials.scenario import Fault, Scenario
from emulator.trials.trial import begin
from emulator.trials.world import TrialWorld

EVERYTHING = tuple(
    Fault(kind=kind, actor="broker", at_ms=1_000, amount=40)
    for kind in ("replay", "replay-elsewhere", "spoof", "misdirect", "garbage", "forge")
)


def with_broker(scenario: Scenario, **options: object) -> Scenario:
    return msgspec.structs.replace(scenario, broker=BrokerLimits(**options))  # type: ignore[arg-type]


# 31: a malicious broker


def test_attack_31_what_a_broker_injects_changes_nothing() -> None:
    """Repeated, moved, under others' names, to others' inboxes, forged, and plain garbage: the sum is what it would
    have been, two rounds running (all checkers hold)."""
    honest, _ = check_trial(small(count=2, noise=False, clients=5))
    world, outcome = check_trial(small(*EVERYTHING, count=2, noise=False, clients=5))
    assert all(record.reached for record in world.faults)
    assert results(outcome) == ["completed", "completed"]
    for index in range(2):
        assert np.array_equal(value(world, index), value(honest, index))


def value(world: TrialWorld, index: int) -> np.ndarray:
    return world.rounds[index].ended.aggregate.value


@pytest.mark.parametrize("kind", ["swallow", "flip-bits", "truncate"])
def test_attack_31_a_broker_that_loses_or_damages_every_fifth_message(kind: str) -> None:
    """What is lost is sent again until it is answered; what is damaged is dropped, and is sent again, too: the round
    takes longer, and completes. (So do 59 of 60 over 20 seeds; where it is every third message, 50 of 60: deadlines are
    absolute, and resends become rarer.)"""
    bad = [Fault(kind=kind, actor=actor, at_ms=900, amount=0.2) for actor in ("clients", "computes", "trainer")]
    windows = dict.fromkeys(("collect_s", "commit_s"), 120)
    world, outcome = check_trial(small(*bad, clients=5, **windows))
    assert all(record.reached for record in world.faults)
    assert results(outcome) == ["completed"]
    assert contributors(world) >= 4


def test_attack_31_parts_of_messages_are_mixed() -> None:
    """A message of which a part is another's is none; it is sent again until it is whole.

    The trainer's fault delays the collecting, so that of the nodes, whose lists have parts, lasts until after it.
    """
    lasts_ms = {"trainer": 25_000, "computes": 80_000}
    scenario = small(
        *(Fault(kind="mix-parts", actor=actor, amount=0.2, for_ms=for_ms) for actor, for_ms in lasts_ms.items()),
        computes=6,
        clients=8,
        **dict.fromkeys(("collect_s", "commit_s"), 120),
    )
    world, outcome = check_trial(with_broker(scenario, part_bytes_max=400))
    assert all(record.reached for record in world.faults)
    assert results(outcome) == ["completed"]


@pytest.mark.parametrize("actor", ["clients", "computes", "trainer"])
def test_attack_31_a_broker_that_blocks_a_role_ends_rounds_and_no_more(actor: str) -> None:
    """Documented: it can. The round ends in words at whoever can still speak, and nothing was released.

    A trainer that hears nobody says that nodes did not answer: when it is heard again, its owner repeats the round.
    """
    world, outcome = check_trial(small(Fault(kind="swallow", actor=actor, amount=1)))
    assert results(outcome) == ["aborted", *["completed"] * (actor == "trainer")]
    assert outcome.ended.rounds[0].reason
    first, *repeats = world.rounds[:-1]  # the last is the further round
    assert [log.request.repeats for log in repeats] == [(first.id,)] * (actor == "trainer")
    assert world.mended_ms is not None
    assert all(log.asked_ms > world.mended_ms for log in repeats)


class Sizes(Observer):
    """What a broker sees: who sends to whom, when, and how much."""

    def __init__(self, world: TrialWorld) -> None:
        self.world = world
        self.seen: list[tuple[int, bytes, str, bytes, int]] = []

    def on_send(self, process: Process, send: Send) -> None:
        at_us = self.world.simulator.now_us
        self.seen.append((at_us, process.id, send.to.channel.value, send.to.id, len(send.payload)))


def test_attack_31_what_sizes_and_times_reveal() -> None:
    """Who takes part, when, and d: stated in the design. Not the data: other rows, the same sizes and times."""
    seen = []
    for row in (0.9, -0.9, np.nan):

        def prepare(world: TrialWorld, row: float = row) -> None:
            world.actors.rows[0] = np.full_like(world.actors.rows[0], row)
            world.simulator.observers.append(sizes := Sizes(world))
            seen.append(sizes.seen)

        _, outcome = check_trial(small(), prepare)
        assert results(outcome) == ["completed"]
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) > 30


# 32: failing brokers and connections


@pytest.mark.parametrize("at_ms", [1_005, 1_015, 1_025, 1_035, 1_050])
@pytest.mark.parametrize("kind", ["broker-restart", "broker-loss"])
def test_attack_32_a_broker_restart_at_any_step(kind: str, at_ms: int) -> None:
    """With its state or without: what it had acknowledged and lost is sent again until the receipt (attack 40)."""
    _, outcome = check_trial(small(Fault(kind=kind, actor="broker", at_ms=at_ms, for_ms=700), clients=3))
    assert results(outcome) == ["completed"]


@pytest.mark.parametrize("kind", ["partition", "partition-up", "partition-down"])
@pytest.mark.parametrize("actor", ["client 1", "compute 0", "trainer"])
def test_attack_32_a_partition_that_mends_in_time_costs_nothing(kind: str, actor: str) -> None:
    cut = Fault(kind=kind, actor=actor, at_ms=1_022, for_ms=1_500)
    world, outcome = check_trial(small(cut))
    assert results(outcome) == ["completed"]
    assert contributors(world) >= (3 if actor.startswith("client") else 4), "rounds close without one who is quiet"


def test_attack_32_a_slow_subscriber_whose_queue_overflows_asks_for_nothing_twice() -> None:
    """A Compute node is away while all contribute; its session holds one message. The others are acknowledged and
    lost, and the clients send them again: no receipt had come."""
    away = Fault(kind="overflow", actor="compute 0", at_ms=1_024, for_ms=2_000, amount=1)
    world, outcome = check_trial(small(away, clients=8))
    assert world.router.dropped["queue full"] > 0
    assert results(outcome) == ["completed"]
    assert contributors(world) == 8


def test_attack_32_sessions_that_expire_while_a_client_is_away() -> None:
    """What waited for it is gone; its join is sent again, and the trainer answers with its start."""
    away = Fault(kind="crash", actor="client 0", at_ms=1_028, for_ms=4_000)
    scenario = with_broker(small(away, clients=3), session_expiry_ms=1_000)
    world, outcome = check_trial(scenario)
    assert world.router.dropped["session expired"] > 0
    assert results(outcome) == ["completed"]
    assert contributors(world) == 3


def test_attack_32_no_persistent_sessions_at_all() -> None:
    away = Fault(kind="crash", actor="compute 0", at_ms=1_028, for_ms=1_000)
    _, outcome = check_trial(with_broker(small(away), persistent_sessions=False))
    assert results(outcome) == ["completed"]


def test_attack_32_an_oversized_packet_ends_its_connection_and_no_other() -> None:
    """A broker with a lower limit than the machines know: who sends too much is thrown out again and again, and the
    round ends in words. In parts that fit, it goes through."""
    world = TrialWorld(small())
    begin(world)
    world.router.options = msgspec.structs.replace(world.router.options, packet_bytes_max=300)
    world.simulator.run(world.simulator.start_ms + 60_000)
    assert world.router.dropped["packet too large"] > 0
    assert world.router.connections <= len(world.simulator.machines) + world.router.dropped["packet too large"]
    assert all(world.router.is_connected(one) for one in (*world.clients, *world.computes))
    assert world.rounds[0].ended is not None
    assert world.rounds[0].ended.reason
    _, outcome = check_trial(with_broker(small(), packet_bytes_max=300, part_bytes_max=300))
    assert results(outcome) == ["completed"]


def test_attack_32_two_connections_fight_over_one_id() -> None:
    """Each throws the other out. The client's round is one contribution or none, and nobody else's business."""
    world, outcome = check_trial(small(Fault(kind="duplicate-instance", actor="client 0", at_ms=200), clients=5))
    assert world.router.connections > 8 + 2, "again and again"
    assert results(outcome) == ["completed"]
    assert contributors(world) in (4, 5)


# 33: half the swarm reconnects at once


@pytest.mark.parametrize("connects_per_s_max", [0, 10])
@pytest.mark.parametrize("at_ms", [1_006, 1_030])
def test_attack_33_half_the_swarm_reconnects_at_once(connects_per_s_max: int, at_ms: int) -> None:
    """Also where the broker accepts few connections a second: the round goes its way, without those who come late."""
    storm = Fault(kind="reconnect-storm", actor="clients", at_ms=at_ms, for_ms=500)
    scenario = small(storm, clients=30, tolerate=2)
    world, outcome = check_trial(with_broker(scenario, connects_per_s_max=connects_per_s_max))
    assert world.faults[0].reached
    assert results(outcome) == ["completed"]
    assert contributors(world) >= 28
    assert scenario.network is FAST
