"""Scenarios in which Compute nodes are lost for good, or rebooted, at random moments; and what became of the request.

In others, too many nodes are down before the request: it has to end within a minute, at no charge. Or they are lost in
the midst of it: then it ends within a minute of the last loss, and charges come back once the nodes are up again.

The nodes keep to the protocol, and nothing else goes wrong. A node is struck at a random time, or as it stores a
random phase: before that, in the middle of the write, after it, or between its messages.

DESIGN §10 of the protocol states what is promised: a result after at most as many repeats as nodes were lost, and one
charge a client. Two moments are left out, because no protocol without a vote among the nodes can mend them:

    skew    a node is lost after its answer has left, or its release is stored, and before its sum has reached the
            trainer: the others release, or lack its answer
    race    a node that was silent comes back as the trainer cancels, so that some release and others abort
"""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

import msgspec

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute import round as node_round
from dca_proto.protocol.effects import Channel, Send
from dca_proto.protocol.facts import NodeAborted, Released, RoundCompleted
from dca_proto.protocol.records import decoded
from dca_proto.protocol.wire.messages import Answer, Sealed
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.sim.streams import Streams
from emulator.trials.checkers import checkers_of
from emulator.trials.scenario import Fault, Population, Rounds, Scenario
from emulator.trials.trial import begin
from emulator.trials.world import TrialWorld
from emulator.wire import body_of

CLIENTS = 8
BACK_MS, LATE_MS = (5_000, 90_000), (240_000, 3_000_000)
"""How long a reboot takes, and how long a node is away that comes back after the announced end of the round."""
WINDOW_S = 120.0
"""Both windows are longer than a reboot with its resends. A round closes as soon as all contributions are in."""
ENDED_MS, OVER_MS = 3_900_000, 4_200_000
"""A request has ended after the first of these times from its start, and all charges that return have done so."""
CHECKED = (1, 2, 4, 7, 8, 11, 19)
"""The invariants that are checked; a sweep of random scenarios has all."""
_FIRST_MS, _STEP_MS, _BRIEF_MS = 1_000, 500, 3_000  # a round takes less than that if nothing goes wrong
_KILLS = ("kill-before", "kill-torn", "kill-after", "kill-between")
_PHASES = (*node_round.OPEN, node_round.RELEASED)
LOST, REBOOTED, LATE, ABSENT, STRANDED = "lost", "rebooted", "late", "absent", "stranded"
_AGAIN_MS, _STATED_S = 1_200_000, 45.0
"""When too many lost nodes are up again, and the wait that a request states where every round needs all nodes."""


class LossScenario(NamedTuple):
    """A scenario: M, p, what strikes (`LOST`, `REBOOTED`, `LATE`, `ABSENT`, `STRANDED`), how many nodes, the seed."""

    computes: int
    colluding: int
    strikes: str
    nodes: int
    seed: int


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request.

    Attributes:
        has_result: whether it has a result. reason: why not. repeats: how many rounds came after its first.
        skew, race: whether these moments occurred.
        wait_ms: from the first loss of a node to the result; None without a loss before it.
        taken_ms: from the request to its end. left_ms: from the last loss of a node before its end; None without one.
        charges: the largest number of charges that a client bears for it, as soon as it has ended, and at the end.
        broken: the invariants that broke.
    """

    has_result: bool
    reason: str = ""
    repeats: int = 0
    skew: bool = False
    race: bool = False
    wait_ms: int | None = None
    taken_ms: int = 0
    left_ms: int | None = None
    charges: tuple[int, int] = (0, 0)
    broken: dict[int, str] = {}

    @property
    def is_excused(self) -> bool:
        """True if one of the two moments occurred that the promise leaves out."""
        return self.skew or self.race


def scenario_of(plan: LossScenario) -> Scenario:
    """Draw the scenario of a plan."""
    stream = Streams(plan.seed)(f"losses/{plan.computes}/{plan.colluding}/{plan.strikes}/{plan.nodes}")
    struck = stream.sample(range(plan.computes), plan.nodes)
    return Scenario(
        seed=plan.seed,
        heal_ms=ENDED_MS,
        population=Population(clients=CLIENTS, computes=plan.computes, colluding=plan.colluding),
        rounds=Rounds(
            first_ms=_FIRST_MS,
            tolerate=1,
            collect_s=WINDOW_S,
            commit_s=WINDOW_S,
            wait_s=_STATED_S if plan.strikes == STRANDED and plan.colluding == plan.computes - 1 else 0.0,
            roll_call=plan.strikes == ABSENT,
        ),
        faults=tuple(_strike(stream, f"compute {node}", plan.strikes) for node in struck),
    )


def _strike(stream: random.Random, actor: str, strikes: str) -> Fault:
    if strikes == LATE:
        kind, phase = stream.choice(_KILLS[2:]), node_round.ANSWERED
        return Fault(kind=kind, actor=actor, phase=phase, for_ms=stream.randint(*LATE_MS))
    if strikes == ABSENT:
        return Fault(kind="crash", actor=actor, at_ms=stream.randrange(_FIRST_MS), for_ms=ENDED_MS)
    for_ms = stream.randint(*BACK_MS) if strikes == REBOOTED else _AGAIN_MS if strikes == STRANDED else ENDED_MS
    if stream.random() < 0.5:
        return Fault(kind="crash", actor=actor, at_ms=_FIRST_MS + stream.randrange(_BRIEF_MS), for_ms=for_ms)
    return Fault(kind=stream.choice(_KILLS), actor=actor, phase=stream.choice(_PHASES), for_ms=for_ms)


def fate_of(plan: LossScenario) -> Fate:
    """Run the scenario of a plan under the checkers of `CHECKED`."""
    world = TrialWorld(scenario_of(plan))
    watch, checks = _Watch(world), checkers_of(world)
    checks[:] = [check for check in checks if check.number in CHECKED]  # of the log, too
    simulator = world.simulator
    simulator.observers += [watch, *checks]
    begin(world)
    until_ms = simulator.start_ms + ENDED_MS
    while simulator.now_ms < until_ms and not _has_ended(world):
        simulator.run(simulator.now_ms + _STEP_MS)
    at_once = watch.most_charges()
    if plan.strikes == STRANDED:  # the nodes come back when they would have, not once the request has ended
        simulator.run(simulator.start_ms + 2 * _AGAIN_MS)
    world.mend()
    simulator.run(simulator.start_ms + OVER_MS)
    for check in checks:
        check.finish()
    broken = {check.number: check.broken[0] for check in checks if check.broken}
    return watch.fate(at_once, broken)


def _has_ended(world: TrialWorld) -> bool:
    """Return True if the request has a result, or has failed and is not to be repeated."""
    last = world.rounds[0].last if world.rounds else None
    return last is not None and bool(last.ended or last.refused) and not last.is_to_repeat


class _Watch(Observer):
    """Notes what a fate consists of."""

    def __init__(self, world: TrialWorld) -> None:
        self._world = world
        self._answered: set[tuple[bytes, bytes]] = set()  # by round and node
        self._arrived: set[tuple[bytes, bytes]] = set()
        self._released: Counter[bytes] = Counter()
        self._aborted: set[bytes] = set()
        self._skew = False
        self._lost_ms: list[int] = []

    def on_send(self, process: Process, send: Send) -> None:
        if process.role is Channel.COMPUTE and isinstance(body_of(send.payload), Answer):
            self._answered.add((send.round_id, process.id))

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        if process is self._world.trainer and isinstance(frame := body_of(payload), Sealed):
            self._arrived.add((frame.round_id, sender))

    def on_kill(self, process: Process) -> None:
        if process.role is Channel.COMPUTE and self._world.mended_ms is None:
            self._lost_ms.append(self._world.simulator.now_ms)
            own = {key for key in self._answered - self._arrived if key[1] == process.id}
            stored = [
                decoded(table, value, node_round.StoredComputeRound)
                for (table, _), value in process.disk.records.items()
                if table == node_round.ROUNDS
            ]
            released = {one.round_id for one in stored if one.phase == node_round.RELEASED}  # it may not have told it
            self._skew |= any(round_id not in self._aborted for round_id, _ in own)
            self._skew |= any((round_id, process.id) not in self._arrived for round_id in released)

    def on_fact(self, process: Process, fact: object) -> None:
        if isinstance(fact, Released):
            self._released[fact.round_id] += 1
        elif isinstance(fact, NodeAborted):
            self._aborted.add(fact.round_id)

    def most_charges(self) -> int:
        """Return how many charges a client bears, at most."""
        ledgers = [client.actor.ledger for client in self._world.clients if isinstance(client.actor, Client)]
        return max(sum(not charge.returned for charge in ledger.charges) for ledger in ledgers)

    def fate(self, at_once: int, broken: dict[int, str]) -> Fate:
        """Return the fate of the request. `at_once`: the most charges of a client when it had ended."""
        log = self._world.rounds[0].last
        ended_ms, over_ms = log.ended_ms if isinstance(log.ended, RoundCompleted) else None, log.ended_ms or ENDED_MS
        return Fate(
            has_result=ended_ms is not None,
            reason="" if ended_ms else getattr(log.ended, "reason", log.refused or "open"),
            repeats=len(log.request.repeats),
            skew=self._skew,
            race=not self._released.keys().isdisjoint(self._aborted),
            taken_ms=(log.ended_ms or ENDED_MS) - self._world.rounds[0].asked_ms,
            wait_ms=max(0, ended_ms - self._lost_ms[0]) if ended_ms and self._lost_ms else None,
            left_ms=min((over_ms - at_ms for at_ms in self._lost_ms if at_ms <= over_ms), default=None),
            charges=(at_once, self.most_charges()),
            broken=broken,
        )
