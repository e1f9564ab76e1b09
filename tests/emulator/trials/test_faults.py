"""Every kind of fault happens, does what it says, and is undone; under all checkers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from trial_helpers import FAST, check_trial, contributors, dropped, facts_of, results, small

from dca_proto.protocol.effects import Send
from dca_proto.protocol.facts import DataFailed, LedgerRestored, RoundFailed
from dca_proto.protocol.wire.messages import Abort, Hello
from emulator.sim.events import Observer
from emulator.sim.process import Process, usual_options
from emulator.trials.draw import draw_scenario
from emulator.trials.fault import PHASES
from emulator.trials.faults import FAULTS
from emulator.trials.scenario import Fault, Scenario
from emulator.trials.trial import run_trial
from emulator.trials.world import TrialWorld
from emulator.wire import body_of

DAY_MS = 86_400_000


def fault(kind: str, actor: str, **more: object) -> Fault:
    return Fault(kind=kind, actor=actor, **more)  # type: ignore[arg-type]


def starts(world: TrialWorld, actor: str) -> int:
    return world.processes_of(actor)[0].starts


def n_contributed(count: int) -> Callable[[TrialWorld], bool]:
    return lambda world: contributors(world) == count


def restarted(actor: str) -> Callable[[TrialWorld], bool]:
    return lambda world: starts(world, actor) > 1


def late(world: TrialWorld) -> bool:
    """The round took longer than the moment that it takes when nothing is slow."""
    log = world.rounds[0]
    return log.ended_ms is not None and log.ended_ms - log.asked_ms > 1_500


def has_dropped(*codes: str) -> Callable[[TrialWorld], bool]:
    return lambda world: any(dropped(world, code) for code in codes)


def follow(world: TrialWorld, number: int) -> bool:
    """Everybody follows the federation file with this number."""
    return all(world.follows(process).number == number for process in world.simulator.machines)


# kind -> the fault, and by what it is seen that it bites. Each round has four clients and tolerates one drop.
BITES: dict[str, tuple[Fault, Callable[[TrialWorld], bool]]] = {
    "vanish-before-sending": (fault("vanish-before-sending", "client 0"), n_contributed(3)),
    "vanish-sending": (fault("vanish-sending", "client 0"), lambda world: world.clients[0].starts > 1),
    "vanish-after-receipt": (fault("vanish-after-receipt", "client 0"), n_contributed(4)),
    "crash": (fault("crash", "compute 0", at_ms=1_200, for_ms=2_000), restarted("compute 0")),
    "kill-before": (fault("kill-before", "trainer", phase="committing"), restarted("trainer")),
    "kill-torn": (fault("kill-torn", "compute 1", phase="frozen"), restarted("compute 1")),
    "kill-after": (fault("kill-after", "client 2", phase="sent"), restarted("client 2")),
    "kill-between": (fault("kill-between", "compute 0", phase="frozen"), restarted("compute 0")),
    "flapping": (
        fault("flapping", "compute 0", at_ms=1_010, for_ms=3_000, amount=400),
        lambda world: starts(world, "compute 0") > 3,
    ),
    "slow": (fault("slow", "trainer", amount=400), late),
    "clock-ahead": (fault("clock-ahead", "client 1", amount=60_000), n_contributed(3)),
    "clock-behind": (fault("clock-behind", "compute 0", amount=2_000), lambda world: world.rounds[0].ended is not None),
    "disk-full": (fault("disk-full", "compute 1", at_ms=1_000, for_ms=500), restarted("compute 1")),
    "partition": (fault("partition", "client 3"), n_contributed(3)),
    "partition-up": (fault("partition-up", "client 3"), n_contributed(3)),
    "partition-down": (fault("partition-down", "client 3"), n_contributed(3)),
    "isolated": (fault("isolated", "compute 1", at_ms=1_000, for_ms=4_000), late),
    "congested": (fault("congested", "trainer", amount=400), late),
    "lossy": (fault("lossy", "trainer", amount=0.9), late),
    "narrow": (fault("narrow", "trainer", amount=1_000), late),
    "broker-restart": (fault("broker-restart", "broker", at_ms=1_010), late),
    "broker-loss": (fault("broker-loss", "broker", at_ms=1_010), late),
    "broker-kill": (fault("broker-kill", "broker", at_ms=1_000, amount=40), late),
    "cramped": (fault("cramped", "trainer", amount=1), lambda world: world.rounds[0].ended is not None),
    "overflow": (
        fault("overflow", "compute 0", amount=1, at_ms=1_040, for_ms=4_000),
        lambda world: world.router.dropped["queue full"] > 0,
    ),
    "reconnect-storm": (fault("reconnect-storm", "clients", at_ms=1_010), late),
    "duplicate-instance": (
        fault("duplicate-instance", "client 0", at_ms=1_050),
        lambda world: len(world.simulator.machines) == 8,
    ),
    "from-backup": (
        fault("from-backup", "client 0", at_ms=500, for_ms=3_000),
        lambda world: len(facts_of(world, LedgerRestored)) == 1,
    ),
    "restore": (fault("restore", "client 0", at_ms=500, for_ms=3_000), restarted("client 0")),
    "certificate-ends": (fault("certificate-ends", "client 0", at_ms=1_500), n_contributed(3)),
    "floors": (fault("floors", "compute 0", at_ms=500), lambda world: isinstance(world.rounds[0].ended, RoundFailed)),
    "policy": (fault("policy", "client 0", at_ms=500), n_contributed(3)),
    "new-file": (fault("new-file", "compute 0", at_ms=500), lambda world: follow(world, 2)),
    "new-p": (
        fault("new-p", "compute 0", at_ms=500),
        lambda world: follow(world, 2) and world.follows(world.trainer).colluding == 1,
    ),
    "revoke": (fault("revoke", "client 0", at_ms=500), n_contributed(3)),
    "two-files": (fault("two-files", "compute 0", at_ms=500), has_dropped("federation")),
    "wrong-files": (fault("wrong-files", "broker", at_ms=500, amount=8), has_dropped("federation", "malformed")),
    "withhold-files": (fault("withhold-files", "broker", at_ms=500), lambda world: follow(world, 2)),
    "neighbour": (fault("neighbour", "broker", at_ms=1_000), has_dropped("federation", "signature")),
    "clock-leap": (fault("clock-leap", "client 1", amount=2 * DAY_MS), n_contributed(3)),
    "clock-back": (fault("clock-back", "client 1", amount=3 * DAY_MS), n_contributed(3)),
    "data-fail": (fault("data-fail", "client 0"), lambda world: bool(facts_of(world, DataFailed))),
    "epoch-turn": (
        fault("epoch-turn", "broker", at_ms=1_020),
        lambda world: len([key for key in world.computes[0].disk.records if key[0] == "epoch"]) == 2,
    ),
    "swallow": (fault("swallow", "client 0", amount=1), n_contributed(3)),
    "false-receipts": (fault("false-receipts", "client 2"), has_dropped("receipt")),
    "flip-bits": (
        fault("flip-bits", "client 0", amount=1),
        has_dropped("ciphertext", "decode", "encoding", "malformed"),
    ),
    "truncate": (fault("truncate", "client 0", amount=1), n_contributed(3)),
    "relay": (fault("relay", "broker"), has_dropped("invited")),
    "replay": (fault("replay", "client 0", at_ms=1_500), lambda world: always(world)),
    "replay-elsewhere": (fault("replay-elsewhere", "client 0", at_ms=1_500), lambda world: always(world)),
    "spoof": (
        fault("spoof", "client 0", at_ms=1_500, amount=30),
        has_dropped("sender", "ciphertext", "kind", "unknown-compute", "holder"),
    ),
    "misdirect": (
        fault("misdirect", "broker", at_ms=1_500, amount=30),
        has_dropped("kind", "unknown-round", "ciphertext"),
    ),
    "forge": (fault("forge", "broker", at_ms=1_000, amount=30), has_dropped("signature")),
    "mix-parts": (fault("mix-parts", "trainer", amount=0.9, for_ms=2_500), late),
    "garbage": (fault("garbage", "broker", at_ms=500, amount=30), lambda world: any_dropped(world)),
}


def any_dropped(world: TrialWorld) -> bool:
    return any(one.actor.dropped for one in world.simulator.machines if one.actor is not None)


def always(world: TrialWorld) -> bool:
    """What was replayed changes nothing: that it came is seen in `test_replayed_messages_arrive`."""
    return True


def scenario_of(kind: str) -> Scenario:
    """The scenario in which a kind is to bite; exact links, so that nothing else does."""
    quiet = {"delay_ms": FAST.delay_ms, "jitter_ms": 0.0, "duplicate": 0.0, "reorder": 0.0}
    scenario = small(BITES[kind][0], collect_s=4, batch=3 if kind == "relay" else 0)
    parts = {"part_bytes_max": 300} if kind == "mix-parts" else {}
    return msgspec.structs.replace(
        scenario,
        network=msgspec.structs.replace(scenario.network, **quiet),
        broker=msgspec.structs.replace(scenario.broker, **parts),
    )


def test_the_table_is_whole() -> None:
    assert set(BITES) == set(FAULTS)
    for kind in FAULTS.values():
        assert kind.does
        assert kind.roles


@pytest.mark.parametrize("kind", BITES)
def test_each_kind_happens_bites_and_is_undone(kind: str) -> None:
    world, outcome = check_trial(scenario_of(kind))
    (record,) = world.faults
    assert record.reached, results(outcome)
    assert record.at_ms is not None
    assert BITES[kind][1](world), (results(outcome), outcome.ended.rounds)
    if FAULTS[kind].heals:
        assert record.until_ms is None or record.until_ms < healed_ms(world), "over by itself"
    gone = world.duplicated | world.restored | world.strangers | world.actors.revoked
    assert all(one.is_up for one in world.simulator.processes.values() if one.id not in gone)
    assert not any(one.disk.is_full or one.link.is_cut for one in world.simulator.machines)
    assert all(one.options == usual_options(one.role) for one in world.simulator.machines)


def healed_ms(world: TrialWorld) -> int:
    return world.scenario.healed_ms


def test_without_the_fault_it_is_not_seen() -> None:
    """So what `BITES` looks for is the fault's doing."""
    world, outcome = check_trial(small())
    assert results(outcome) == ["completed"]
    seen = {kind for kind, (_, bites) in BITES.items() if bites(world)}
    assert seen == {"vanish-after-receipt", "clock-behind", "cramped", "replay", "replay-elsewhere"}, (
        "these leave no trace"
    )


class Injected(Observer):
    """Counts whole messages that reach Compute nodes beyond those that were sent to them."""

    def __init__(self) -> None:
        self.surplus = 0

    def on_send(self, process: Process, send: Send) -> None:
        self.surplus -= send.to.channel.value == "compute"

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        is_broadcast = isinstance(body_of(payload), Hello | Abort)
        self.surplus += process.role.value == "compute" and not is_broadcast


@pytest.mark.parametrize("kind", ["replay", "replay-elsewhere"])
def test_replayed_messages_arrive(kind: str) -> None:
    """And change nothing: all checkers hold."""
    counts = []
    for faults in ((), (fault(kind, "client 0", at_ms=1_500, amount=20),)):
        scenario = scenario_of(kind)
        scenario = msgspec.structs.replace(scenario_of(kind), faults=faults)
        injected = Injected()
        world, outcome = check_trial(scenario, lambda world, one=injected: world.simulator.observers.append(one))
        assert results(outcome) == ["completed"]
        counts.append((injected.surplus, contributors(world)))
    (none, whole), (some, also) = counts
    assert none <= 0 < some
    assert whole == also == 4


@pytest.mark.parametrize("where", ["before", "torn", "after", "between"])
@pytest.mark.parametrize(("role", "phase"), [(role, phase) for role in PHASES for phase in PHASES[role]])
def test_attack_28_killed_at_every_transition(role: str, phase: str, where: str) -> None:
    """`kill -9` of any actor at any transition loses nothing that was promised and doubles nothing: all checkers hold.

    Phases of failure are reached by swallowing what a Compute node sends, so that the round is aborted.
    """
    actor = {"client": "client 1", "compute": "compute 0", "trainer": "trainer"}[role]
    strikes = fault(f"kill-{where}", actor, phase=phase)
    world, outcome = check_trial(
        failing(strikes) if phase in ("aborted", "returned", "failed") else declining(strikes, phase)
    )
    assert world.faults[0].reached, results(outcome)
    assert world.faults[0].phase == phase
    assert outcome.ended.further in (
        "completed",
        "not due: 0 honest clients have budget left, too few for the limits of the scenario",
    )


def failing(strikes: Fault) -> Scenario:
    """More clients vanish than may: every Compute node aborts, and charges come back."""
    away = [fault("vanish-before-sending", f"client {index}") for index in (2, 3)]
    return small(strikes, *away, commit_s=3)


def declining(strikes: Fault, phase: str) -> Scenario:
    """For a decline there are two rounds and a budget for one; what comes too late was cut off."""
    if phase == "missed":
        return small(strikes, fault("partition-up", "client 1", at_ms=900, for_ms=4_000))
    scenario = small(strikes, count=2, every_ms=4_000) if phase == "declined" else small(strikes)
    limits = msgspec.structs.replace(scenario.limits, epsilon_per_period_max=1.2)
    return msgspec.structs.replace(scenario, limits=limits) if phase == "declined" else scenario


@pytest.mark.long
def test_coverage_over_seeds() -> None:
    """Drawn scenarios reach most kinds of faults: 30 with faults, of small populations, at least two kinds in three."""
    drawn = map(draw_scenario, range(200))
    scenarios = [one for one in drawn if one.faults and one.population.clients <= 8][:30]
    outcomes = [run_trial(scenario) for scenario in scenarios]
    assert all(outcome.ok for outcome in outcomes), [one.seed for one in outcomes if not one.ok]
    reached = {one.kind for outcome in outcomes for one in outcome.faults if one.reached}
    assert len(reached) >= 2 * len(FAULTS) // 3, sorted(set(FAULTS) - reached)
