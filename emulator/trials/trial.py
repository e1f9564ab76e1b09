"""One trial: it checks safety under faults, then mends every fault, then checks liveness.

Liveness means two things. Within bounded virtual time, every requested round has ended at the trainer and at every
honest Compute node, with a result or an abort that states the reason. Then one further round of the honest population
completes. If too few clients have a session in it, it may fail, and the next one must complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dca_proto.protocol.actor import ActorRound, Table
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.protocol.lists import TOO_FEW
from dca_proto.protocol.params import Timing
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.trainer.actor import Trainer
from emulator.trials.checkers import checkers_of
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.view import Transcript, neighbour
from emulator.trials.faults import EPOCHS
from emulator.trials.outcome import Outcome, outcome_of
from emulator.trials.scenario import SILENT_MS, Scenario
from emulator.trials.world import TrialWorld

COMPARED = frozenset({5, 9})
"""The invariants whose full check needs another run: 5 compares with neighbouring data, 9 repeats the same seed."""
SLACK_MS = 150_000
"""Time for resends, back-off and settling after the mending, on top of the rounds' own windows."""
FURTHER_COLLECT_MS, FURTHER_COMMIT_MS = 400_000, 120_000
"""Windows of the further round. The first exceeds the five minutes within which actors publish keys that a broker lost.

If a second process ran a copy of a Compute node, or its clock leapt over epochs, the trial waits for that interval
first. Until then the last key that it published counts as the node's, and no process holds its secret."""
_ROUNDS: dict[str, type[ActorRound[Any]]] = {
    "client": client_round.ClientRound,
    "compute": compute_round.ComputeRound,
    "trainer": trainer_round.TrainerRound,
}
_TABLES: dict[str, Table] = {role: kind.table for role, kind in _ROUNDS.items()}
TRANSITIONS = tuple(
    f"{role}: {phase}, {event}"
    for role, table in _TABLES.items()
    for phase, event in table
    if (phase, event) != (compute_round.COLLECTING, compute_round.COMMIT)
)
"""The entries of the actors' tables: who, in which phase, at which event, such as "client: sent, receipt".

One is left out: no Compute node still collects at `commit_by`, since it froze its list at `close_by`."""
Checkers = Callable[[TrialWorld], Sequence[Checker]]
Make = Callable[[type], type]


def examine(
    scenario: Scenario,
    *,
    compare: bool = True,
    faulty: dict[str, Make] | None = None,
    on_world: Callable[[TrialWorld], None] = lambda _: None,
) -> Outcome:
    """Run a scenario under all checkers.

    Args:
        compare: whether to run it twice beforehand: once unchanged, for its digest, and once on neighbouring data.
        faulty: as for `run_trial`. on_world: called with each world before it runs.
    """
    recorded: list[tuple[Transcript, bytes]] = []
    digest: str | None = None

    def no_checkers(world: TrialWorld) -> list[Checker]:
        on_world(world)
        return []

    def recording(world: TrialWorld) -> list[Checker]:
        transcript = Transcript(world)
        world.simulator.observers.append(transcript)
        recorded.append((transcript, neighbour(world)))
        return no_checkers(world)

    def all_checkers(world: TrialWorld) -> list[Checker]:
        on_world(world)
        return checkers_of(world, neighbour=recorded[0] if recorded else None, digest=digest)

    if compare:
        digest = run_trial(scenario, checkers=no_checkers, faulty=faulty).digest
        run_trial(scenario, checkers=recording, faulty=faulty)
    return run_trial(scenario, checkers=all_checkers, faulty=faulty)


def run_trial(
    scenario: Scenario, *, checkers: Checkers = lambda _: (), faulty: dict[str, Make] | None = None
) -> Outcome:
    """Run one scenario. The same scenario gives the same outcome, except for `wall_s`.

    Args:
        checkers: makes the checkers of a world; each is added to the observers.
        faulty: role -> a function from its production class to a faulty one, to show that a checker notices the fault.
    """
    began_s = time.perf_counter()
    with _noted_transitions() as taken:
        world = TrialWorld(scenario, faulty)
        checks = list(checkers(world))
        world.simulator.observers += checks
        begin(world)
        world.simulator.run(world.simulator.start_ms + scenario.healed_ms)
        world.mend()
        why = _wait_for_ends(world)
        further = _further_round(world) if not why else "not asked for: a round has not ended"
        if TOO_FEW in further:  # in that round, the nodes asked for the Hellos that they lacked
            further = _further_round(world)
        if not why:  # an end that was durable, but not yet reported, may have been followed by a repeat
            why = _wait_for_ends(world)
        if further != "completed" and not further.startswith("not "):
            why.append(f"one more round: {further}")
        if scenario.epoch_ms < Timing().epoch_ms:  # short epochs: run on until keys are deleted and rounds forgotten
            longest_ms = max(log.request.collect_ms + 2 * log.request.commit_ms for log in world.rounds)
            world.simulator.run(world.simulator.now_ms + longest_ms + scenario.timing.retention_ms)
        for checker in checks:
            checker.finish()
    return outcome_of(world, checks, why, further, taken, time.perf_counter() - began_s)


def begin(world: TrialWorld) -> None:
    """Schedule the faults and the requests for rounds."""
    simulator, rounds = world.simulator, world.scenario.rounds
    for injection in world.injections:
        injection.arm()
    for index in range(rounds.count):
        at_ms = simulator.start_ms + rounds.asked_ms(index)
        simulator.at(at_ms, lambda: world.ask(world.actors.batch(world.asked)))


def _wait_for_ends(world: TrialWorld) -> list[str]:
    """Let virtual time pass until all rounds have ended or the time is over; return the rounds that are still open."""
    simulator, scenario = world.simulator, world.scenario
    skews = [int(fault.amount) for fault in scenario.faults if fault.kind.startswith("clock-")]
    latest_ms = max(simulator.now_ms, simulator.start_ms + scenario.rounds.end_ms)
    until_ms = latest_ms + scenario.rounds.longest_ms + 2 * max(skews, default=0) + SLACK_MS
    until_ms += scenario.timing.abort_grace_ms  # nodes that have answered, and a trainer with a sum, wait so long
    while simulator.now_ms < until_ms:
        if world.asked >= scenario.rounds.count and not any(world.open_at(log) for log in world.rounds):
            return []
        simulator.run(min(simulator.now_ms + 1_000, until_ms))
    ends = [f"round {log.id.hex()[:8]}: {', '.join(world.open_at(log))}" for log in world.rounds if world.open_at(log)]
    return [*ends, *simulator.pending()] if ends else []


def _further_round(world: TrialWorld) -> str:
    """Request one more round. Return `completed`, `not due: ...`, or how it failed."""
    world.restart_warned()
    simulator, limits = world.simulator, world.scenario.limits
    up = [process for process in world.clients if process.is_up]  # those without budget will decline
    able = sum(_has_budget(world, process.actor, process.now_ms) for process in up)
    tolerate = min(world.scenario.rounds.tolerate, able - 2)
    n_min, colluders = able - tolerate + limits.colluders_min, limits.colluders_min
    is_summed = world.scenario.rounds.is_summed  # without Compute nodes, one client is enough
    computes = [compute for compute in world.actors.computes if compute not in world.actors.revoked]
    if not world.actors.newest.is_server(world.trainer.id):
        return "not due: the trainer is revoked"
    if is_summed and (len(computes) < 2 or not set(computes).issuperset(world.actors.computes[: limits.trusted])):
        return "not due: a Compute node that policies require is revoked, or too few are left"
    if not (tolerate >= colluders and limits.allow(n_min, colluders) if is_summed else able):
        return f"not due: {able} honest clients have budget left, too few for the limits of the scenario"
    if not _has_budget(world, world.trainer.actor, simulator.now_ms):
        return "not due: the trainer's account is used up"
    leaps = [one for one in world.injections if one.record.reached and one.kind.amount == EPOCHS]
    renewed = {process.id for injection in leaps for process in injection.targets}
    if not (world.duplicated | renewed).isdisjoint(world.actors.computes):
        simulator.run(simulator.now_ms + world.actors.timing.epoch_publish_ms)
        up = [process for process in world.clients if process.is_up]
    _let_queues_empty(world)
    request = world.actors.request(
        **world.actors.terms_of(len(up) - able + tolerate, limits.colluders_min, computes),
        clients=len(up),
        collect_s=FURTHER_COLLECT_MS / 1000,
        commit_s=FURTHER_COMMIT_MS / 1000,
    )
    log = world.further = world.ask(request)
    until_ms = simulator.now_ms + 2 * FURTHER_COLLECT_MS + 3 * FURTHER_COMMIT_MS + Timing().settle_ms + 1_000
    while simulator.now_ms < until_ms and not (log.refused or (log.ended is not None and not world.open_at(log))):
        simulator.run(simulator.now_ms + 1_000)
        log = log.last
    if isinstance(log.ended, RoundCompleted):
        return "completed"
    if log.refused:
        return f"refused: {log.refused}"
    return f"aborted: {log.ended.reason}" if log.ended else "; ".join(world.open_at(log))


def _let_queues_empty(world: TrialWorld) -> None:
    """Let messages of earlier rounds pass where they take long: else a node would seem silent in the further round.

    A broker with one message under way at a time passes one in a round trip. The queue holds what was sent again, too.
    """
    simulator, network, broker = world.simulator, world.scenario.network, world.simulator.broker
    trip_ms = (2 * network.delay_ms + network.jitter_ms) / broker.options.inflight_max
    until_ms = simulator.now_ms + broker.options.queue_messages_max * trip_ms
    while broker.longest_queue * trip_ms > SILENT_MS / 2 and simulator.now_ms < until_ms:
        simulator.run(simulator.now_ms + 1_000)


def _has_budget(world: TrialWorld, actor: object, now_ms: int) -> bool:
    """Return True if a client's budget, or the trainer's account if it has one, allows one more round."""
    cost, account = world.scenario.rounds.cost, world.actors.account
    if isinstance(actor, Client):
        return world.actors.policy.check_budget(cost, actor.ledger, now_ms) is None
    return not isinstance(actor, Trainer) or account is None or account.check(cost, actor.ledger, now_ms) is None


class _NotingTable(dict[tuple[str, str], str]):
    """A table that notes which of its entries are looked up."""

    def __init__(self, role: str, taken: set[str]) -> None:
        super().__init__(_TABLES[role])
        self._role = role
        self._taken = taken

    def get(self, entry: tuple[str, str], default: str | None = None) -> str | None:  # type: ignore[override]
        if super().__contains__(entry):
            self._note(entry)
        return super().get(entry, default)

    def __contains__(self, entry: object) -> bool:
        """Return True if a phase accepts an event, and note the entry if no `get` will follow.

        No `get` follows a timer or a question that leaves the phase as it is. Nor does one follow a Compute node's
        deadline with that event: the node then looks up an abort.
        """
        is_entry = super().__contains__(entry)
        if is_entry and isinstance(entry, tuple) and (self[entry] == entry[0] or entry[1] == compute_round.COMMIT):
            self._note(entry)
        return is_entry

    def _note(self, entry: tuple[str, str]) -> None:
        self._taken.add(f"{self._role}: {entry[0]}, {entry[1]}")


@contextmanager
def _noted_transitions() -> Iterator[set[str]]:
    """Collect the table entries that all actors of this process take inside the `with` block."""
    taken: set[str] = set()
    for role, kind in _ROUNDS.items():
        kind.table = _NotingTable(role, taken)
    try:
        yield taken
    finally:
        for role, kind in _ROUNDS.items():
            kind.table = _TABLES[role]
