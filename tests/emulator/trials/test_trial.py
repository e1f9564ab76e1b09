"""A trial: the same scenario gives the same run, it ends live, and its outcome says what happened."""

from __future__ import annotations

import json

import msgspec
import pytest
from trial_helpers import check_trial, contributors, results, run, small, with_limits

from dca_proto.errors import UsageError
from dca_proto.protocol.effects import Channel, Effect, Send
from dca_proto.protocol.events import Event
from emulator.sim.simulator import START_MS
from emulator.trials.draw import draw_scenario
from emulator.trials.scenario import EPOCH_MS_MIN, Adversary, Fault, Scenario
from emulator.trials.trial import run_trial
from emulator.trials.world import TrialWorld


def test_a_quiet_trial_completes_and_one_round_more() -> None:
    world, outcome = check_trial(small(clients=5, computes=3, count=2))
    assert results(outcome) == ["completed", "completed"]
    assert outcome.ended.further == "completed"
    assert outcome.ended.live
    assert contributors(world) == 5
    assert not outcome.drops
    assert {one.number for one in outcome.invariants} >= set(range(1, 16))


def test_another_seed_is_another_run() -> None:
    assert len({run_trial(draw_scenario(seed)).digest for seed in range(4)}) == 4


def test_one_more_fault_does_not_reshuffle_the_rest() -> None:
    """A fault that does nothing more than be there leaves keys, data and links as they were."""
    _, plain = check_trial(small(seed=3))
    _, other = check_trial(small(Fault(kind="crash", actor="client 0", at_ms=60_000), seed=3, heal_ms=40_000))
    assert plain.ended.rounds[0].phases == other.ended.rounds[0].phases


def test_the_outcome_as_json() -> None:
    faults = (Fault(kind="vanish-before-sending", actor="client 1"), Fault(kind="crash", actor="trainer", at_ms=20_000))
    _, outcome = check_trial(small(*faults, clients=5))
    plain = json.loads(json.dumps(outcome.to_json()))
    assert {"kind", "ok", "seed", "digest", "outcome", "invariants", "faults", "options", "traffic", "drops",
            "last_facts", "replay", "wall_s", "virtual_s"} <= set(plain)  # fmt: skip
    assert (plain["kind"], plain["ok"], plain["seed"]) == ("emulation", True, 1)
    first = plain["outcome"]["rounds"][0]
    assert (first["result"], first["clients"], first["contributors"], first["needed"]) == ("completed", 5, 4, 4)
    assert first["noise_variance"] >= first["noise_floor"] > 0
    assert list(first["phases"]) == ["collect", "commit"]
    ends = [time for span in first["phases"].values() for time in span]
    assert ends == sorted(ends)
    assert ends[0] >= 1_000, "in milliseconds since the start"
    assert plain["drops"] == [{"client": 1, "at_ms": plain["drops"][0]["at_ms"], "phase": "collect"}]
    assert [one["reached"] for one in plain["faults"]] == [True, True]
    assert plain["faults"][1]["at_ms"] == 20_000
    assert set(plain["traffic"]) == {"client", "compute", "trainer"}
    assert plain["traffic"]["client"]["bytes"] > plain["traffic"]["client"]["messages"] > 0
    assert any("RoundCompleted" in fact for fact in plain["last_facts"])
    assert plain["options"]["population"]["clients"] == 5


def test_secrets_are_in_no_outcome() -> None:
    world, outcome = check_trial(small(seed=8))
    text = json.dumps(outcome.to_json())
    for table in world.actors.rows:
        assert repr(float(table[0, 0])) not in text


def test_why_no_further_round_is_due() -> None:
    tight = with_limits(small(), epsilon_per_period_max=1.05)
    _, outcome = check_trial(tight)
    assert results(outcome) == ["completed"]
    assert outcome.ended.further.startswith("not due: 0 honest clients have budget left")
    _, outcome = check_trial(with_limits(small(), account_epsilon=1.05))
    assert outcome.ended.further == "not due: the trainer's account is used up"
    _, outcome = check_trial(with_limits(small(count=2, every_ms=20_000), account_epsilon=1.05))
    assert results(outcome) == ["completed", "aborted"], "and the account refuses"
    floors = with_limits(small(), floor_clients_min=4, clients_min=4)
    _, outcome = check_trial(floors)
    assert results(outcome) == ["aborted"], "n_min is below the floors"
    assert outcome.ended.further.startswith("not due: 4 honest clients have budget left, too few")


@pytest.mark.parametrize(
    ("rounds", "words"),
    [({"fraction_bits": 1}, "choose an even number"), ({"fraction_bits": 0, "epsilon": 20.0}, "more fraction bits")],
)
def test_a_question_that_nobody_could_be_asked_is_the_scenarios_mistake(rounds: dict[str, float], words: str) -> None:
    """Before anything runs: it would abort each round, and look like a bug."""
    with pytest.raises(UsageError, match=words):
        run_trial(small(**rounds))


class Mute:
    """Plants: a trainer that never tells the Compute nodes of its rounds."""

    @staticmethod
    def make(honest: type) -> type:
        def handle(self: object, event: Event, now_ms: int) -> list[Effect]:
            effects = honest.handle(self, event, now_ms)  # type: ignore[attr-defined]
            return [one for one in effects if not (isinstance(one, Send) and one.to.channel is Channel.COMPUTE)]

        return type("Muted", (honest,), {"handle": handle})


@pytest.mark.long
def test_a_planted_mistake_runs_in_place_of_the_honest_actor_and_is_seen() -> None:
    _, outcome = run(small(), faulty={"trainer": Mute.make})
    assert not outcome.ok
    assert not outcome.ended.live
    assert outcome.ended.further.startswith("aborted: compute-")
    assert outcome.ended.why == (f"one more round: {outcome.ended.further}",)


def test_a_crash_of_an_actor_is_no_crash_of_the_emulator() -> None:
    """Invariant 6 judges it."""

    def make(honest: type) -> type:
        def handle(self: object, event: Event, now_ms: int) -> list[Effect]:
            raise ZeroDivisionError("a bug")

        return type("Crashing", (honest,), {"handle": handle})

    _, outcome = run(small(), faulty={"client": make})
    assert [one.number for one in outcome.invariants if not one.ok][:1] == [6]
    assert not outcome.ok


def test_healing_in_mid_round_lets_it_complete() -> None:
    """All Compute nodes are cut off while the round runs; mended before its deadline, it completes."""
    cut = Fault(kind="partition", actor="computes", at_ms=1_030)
    _, outcome = check_trial(small(cut, heal_ms=3_000))
    assert results(outcome) == ["completed"]
    world, outcome = check_trial(small(cut))
    assert results(outcome) == ["aborted", "completed"]  # its owner repeats it, after the healing
    first, repeat, _ = world.rounds
    assert repeat.request.repeats == (first.id,)
    assert world.mended_ms is not None
    assert repeat.asked_ms > world.mended_ms


def test_the_owner_asks_a_trainer_once_for_each_of_its_starts() -> None:
    """It has just started, and asks nodes for keys that the broker has lost: it knows the round, which is held once."""
    lost = Fault(kind="broker-loss", actor="broker", at_ms=500, for_ms=100)
    down = Fault(kind="crash", actor="trainer", at_ms=1_000, for_ms=1_900)
    _, outcome = check_trial(small(lost, down, first_ms=3_000))
    assert results(outcome) == ["completed"]


def test_where_a_trial_begins() -> None:
    day_ms = 24 * 3600 * 1000
    assert small().start_ms % day_ms == day_ms // 3
    assert small(Fault(kind="epoch-turn", actor="broker", at_ms=777)).start_ms % day_ms == day_ms - 777
    assert small().start_ms // day_ms == START_MS // day_ms


def test_the_world_knows_who_is_who() -> None:
    adversaries = (
        Adversary(kind="sybil", actor="client 2"),
        Adversary(kind="silent", actor="compute 1"),
        Adversary(kind="stranger", actor="stranger 0"),
    )
    world = TrialWorld(small(adversaries=adversaries))
    assert world.hostile == {world.actors.clients[2], world.actors.computes[1]}
    assert len(world.strangers) == 1
    assert not world.strangers & world.enrolled
    assert world.enrolled == set(world.actors.clients)
    assert world.client_number(world.actors.clients[3]) == 3
    assert world.spoils() == {"round"}
    with pytest.raises(KeyError):
        world.client_number(world.actors.computes[0])
    names = [world.name_of(one) for one in (world.trainer, world.clients[1], world.computes[0])]
    assert names == ["trainer", "client 1", "compute 0"]


def test_numbers_of_the_broker_and_the_network_are_the_scenarios() -> None:
    scenario = small()
    scenario = msgspec.structs.replace(scenario, broker=msgspec.structs.replace(scenario.broker, part_bytes_max=300))
    world, outcome = check_trial(scenario)
    assert results(outcome) == ["completed"]
    assert world.router.options == scenario.broker
    assert world.router.packets > sum(one.traffic.messages_sent for one in world.simulator.machines), "in parts"


def test_an_epoch_may_end_between_the_announcement_and_the_lists() -> None:
    """Contributions come only after the turn: nodes open them, and each other's lists, with the keys of the epoch."""
    turn = Fault(kind="epoch-turn", actor="broker", at_ms=3_000)
    late = Fault(kind="partition-up", actor="clients", at_ms=1_002, for_ms=5_000)
    world, outcome = check_trial(msgspec.structs.replace(small(turn, late), epoch_ms=EPOCH_MS_MIN))
    assert outcome.ended.rounds[0].result == "completed"
    collected, frozen = outcome.ended.rounds[0].phases["collect"]
    assert collected < 3_000 < frozen
    assert contributors(world) == 4


@pytest.mark.long
def test_drawn_scenarios_have_such_epochs() -> None:
    drawn = [draw_scenario(seed) for seed in range(300)]
    late = [one for one in drawn if {("epoch-turn", "broker"), ("partition-up", "clients")} <= _named(one)]
    assert len(late) >= 3
    turns = [sum(fault.kind == "epoch-turn" for fault in one.faults) for one in drawn]
    assert max(turns) == 1


def _named(scenario: Scenario) -> set[tuple[str, str]]:
    return {(fault.kind, fault.actor) for fault in scenario.faults}
