"""The federation of a scenario in virtual time: what was asked for, what went wrong, and how it is mended."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import UsageError
from dca_proto.protocol.actor import NEW
from dca_proto.protocol.compute import round as node_round
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import Announced, Closed, LedgerReused, RoundCompleted, RoundFailed
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.topics import topic_of
from dca_proto.runtime.parts import split
from emulator.sim.broker import Broker, BrokerOptions
from emulator.sim.events import Observer, Refused
from emulator.sim.lane import Packet, Uplink
from emulator.sim.process import Process
from emulator.sim.simulator import Simulator
from emulator.sim.world import World
from emulator.trials.fault import DOWN, FaultOutcome, Injection, phase_at
from emulator.trials.faults import FAULTS
from emulator.trials.federation import TrialFederation
from emulator.trials.hostile import HOSTILE
from emulator.trials.scenario import Scenario

FACTS_KEPT, PACKETS_KEPT = 1_000, 400
OWNER_WAITS_MS = 500
_ENDED = (*trainer_round.ENDED, trainer_round.CLOSED)
Tamper = Callable[[Packet], Sequence[Packet]]
"""What becomes of a packet: itself, nothing, several, others."""


class Router(Broker):
    """The broker of a trial: honest until a fault or an adversary adds to `tampers`, which every packet passes.

    Attributes:
        passed: the last whole messages.
    """

    def __init__(self, simulator: Simulator, options: BrokerOptions) -> None:
        super().__init__(simulator, options)
        self.passed: deque[Packet] = deque(maxlen=PACKETS_KEPT)
        self.tampers: list[Tamper] = []

    def take(self, uplink: Uplink, packet: Packet) -> None:
        """A packet arrives, and is passed on as the tampers have it."""
        if packet.payload is not None:
            self.passed.append(packet)
        packets: Sequence[Packet] = (packet,)
        for tamper in self.tampers:
            packets = [changed for one in packets for changed in tamper(one)]
        for changed in packets:
            super().take(uplink, changed)

    def inject_message(self, packet: Packet) -> None:
        """Send a whole message that no actor has sent, under any name."""
        topic = topic_of(self._simulator.federation, packet.to, packet.sender)
        for wire in split(packet.payload or b"", self.options.part_bytes_max):
            self.inject(topic, wire)


class RoundLog(msgspec.Struct, kw_only=True):
    """One round as its owner sees it. Times are Unix milliseconds of virtual time, None before.

    Attributes:
        request: what was asked. asked_of: which start of the trainer it was asked of last, None while it was down.
        refused: why the trainer did not take it, if it did not.
        ended: `RoundCompleted` or `RoundFailed`, as it was first reported.
        contributors: ids of the clients in its result.
    """

    request: OpenRound
    asked_ms: int
    asked_of: int | None = None
    refused: str = ""
    contributors: tuple[bytes, ...] = ()
    announced_ms: int | None = None
    closed_ms: int | None = None
    ended_ms: int | None = None
    ended: RoundCompleted | RoundFailed | None = None

    @property
    def id(self) -> bytes:
        return self.request.round_id


class TrialWorld(World, Observer):
    """A trial's federation, running, and the owner of the trainer and the clients, who asks for rounds.

    Args:
        scenario: of what. faulty: as of `TrialFederation`.

    Attributes:
        scenario, actors, simulator, computes, clients, trainer: as in `World`. router: the simulator's broker.
        rounds: those that were asked for. further: the last of them, once all is mended; None before.
        hostile: ids of clients, Compute nodes and trainers that do not keep to the protocol, ever.
        strangers: ids of clients that were never enrolled. enrolled: ids of those that were.
        altering: ids of Compute nodes that may spoil a result's value, as documented.
        duplicated: ids that a second process with a copy of the disk used, too, and Compute nodes whose store was
            replaced by an old copy: what that may break is documented.
        restored: ids of clients whose store was replaced by an old copy.
        warned_old: ids of clients that have reported that their ledger is an old copy.
        killed_ms: id -> when it was last killed. injections: the faults, in the scenario's order.
    """

    actors: TrialFederation

    def __init__(self, scenario: Scenario, faulty: dict[str, Callable[[type], type]] | None = None) -> None:
        actors = TrialFederation(scenario, faulty or {})
        actors.check()
        simulator = Simulator(
            scenario.seed,
            federation=actors.federation.name,
            start_ms=scenario.start_ms,
            link=scenario.network,
            broker=scenario.broker,
            keep_facts_max=FACTS_KEPT,
            raise_crashes=False,
        )
        self.scenario: Scenario = scenario
        self.router = simulator.broker = Router(simulator, scenario.broker)
        self.rounds: list[RoundLog] = []
        self.further: RoundLog | None = None
        self.duplicated: set[bytes] = set()
        self.restored: set[bytes] = set()
        self.warned_old: set[bytes] = set()
        self.killed_ms: dict[bytes, int] = {}
        super().__init__(actors, simulator)
        self._numbers = {client: index for index, client in enumerate(actors.clients)}
        self.enrolled = frozenset(actors.clients)
        known = [(one, HOSTILE[one.kind]) for one in scenario.adversaries if not HOSTILE[one.kind].is_stranger]
        of_kind = [(process.id, kind) for one, kind in known for process in self.processes_of(one.actor)]
        self.hostile = frozenset(actor for actor, _ in of_kind)
        altering = {actor for actor, kind in of_kind if "value" in kind.spoils}
        self.altering = frozenset(altering.intersection(actors.computes))
        simulator.observers.append(self)
        strangers: list[Process] = []
        for one in scenario.adversaries:
            if HOSTILE[one.kind].is_stranger:
                build = functools.partial(actors.stranger, len(strangers), one.amount)
                strangers.append(simulator.add(Channel.CLIENT, build))
            elif one.kind == "copier":
                self.router.tampers.append(functools.partial(self._copy, self.processes_of(one.actor)[0].id))
        self.strangers = frozenset(process.id for process in strangers)
        self.injections = [
            Injection(self, FAULTS[fault.kind], fault, number) for number, fault in enumerate(scenario.faults)
        ]

    def client_number(self, actor_id: bytes) -> int:
        """A client's number in the scenario. Raises `KeyError` for any other actor."""
        return self._numbers[actor_id]

    @property
    def faults(self) -> list[FaultOutcome]:
        """What became of each fault, in the scenario's order."""
        return [injection.record for injection in self.injections]

    def spoils(self) -> frozenset[str]:
        """What the scenario's adversaries may spoil, as documented: of `value`, `round`, `consent`."""
        return frozenset[str]().union(*(HOSTILE[one.kind].spoils for one in self.scenario.adversaries))

    @property
    def has_batches(self) -> bool:
        """Whether a round asks some clients alone."""
        return bool(self.scenario.rounds.batch)

    def _copy(self, copier: bytes, packet: Packet) -> Sequence[Packet]:
        """Every contribution, release or report of others comes once more, as the copier's own."""
        copied = Channel.COMPUTE if self.scenario.rounds.is_summed else Channel.TRAINER
        if packet.to.channel is not copied or packet.sender not in self._numbers or packet.sender == copier:
            return (packet,)
        return packet, msgspec.structs.replace(packet, sender=copier)

    def processes_of(self, actor: str) -> list[Process]:
        """The processes that a scenario's name means."""
        groups = {"clients": self.clients, "computes": self.computes, "trainer": [self.trainer], "broker": []}
        if actor in groups:
            return groups[actor]
        role, number = actor.split(" ")
        return [groups[f"{role}s"][int(number)]]

    def name_of(self, process: Process) -> str:
        """What a scenario calls a process."""
        if process is self.trainer:
            return "trainer"
        for role, processes in (("client", self.clients), ("compute", self.computes)):
            if process in processes:
                return f"{role} {processes.index(process)}"
        return process.name

    def tardiness_ms(self, process: Process) -> int:
        """By how much a process may be late, for it is slow (over ten batches and their writes) or its clock jumps."""
        own = [one for one in self.injections if process in self.processes_of(one.fault.actor)]
        return sum(int(one.kind.tardy * one.amount) for one in own)

    def open_at(self, log: RoundLog) -> list[str]:
        """Where a round has not ended, and in which phase it is: at the trainer and at honest Compute nodes."""
        where = []
        phase = phase_at(self.trainer, log.id)
        if log.ended is None and not log.refused:
            # A durable end counts, though it was not reported; one that a slow trainer still writes does not.
            table, kind = trainer_round.ROUNDS, trainer_round.StoredRound
            stored = self.trainer.disk.records.get((table, log.id))
            if phase not in _ENDED or stored is None or decoded(table, stored, kind).phase not in _ENDED:
                where.append(f"the trainer is {phase}")
        for number, process in enumerate(self.computes):
            phase = phase_at(process, log.id)
            if process.id not in self.hostile and phase in (*node_round.OPEN, DOWN):
                where.append(f"compute {number} is {phase}")
        return where

    def ask(self, request: OpenRound) -> RoundLog:
        """Ask the trainer for a round, now or as soon as it runs."""
        log = RoundLog(request=request, asked_ms=self.simulator.now_ms)
        self.rounds.append(log)
        self.requests.append(request)
        self._command(log)
        return log

    def _command(self, log: RoundLog) -> None:
        log.asked_of = self.trainer.starts if self.trainer.is_up else None
        try:
            self.simulator.command(self.trainer.id, log.request)
        except UsageError as error:
            log.refused = str(error)

    def _ask_again(self) -> None:
        """The trainer has started again: ask for what it does not know."""
        for log in self._unknown():
            if log.asked_of != self.trainer.starts:
                self._command(log)

    def _unknown(self) -> list[RoundLog]:
        """Rounds that were asked for, have not ended, and that the trainer does not know."""
        waiting = [log for log in self.rounds if log.ended is None and not log.refused]
        return [log for log in waiting if phase_at(self.trainer, log.id) == NEW]

    def on_fact(self, process: Process, fact: object) -> None:
        now_ms = self.simulator.now_ms
        match fact:
            case Refused() if process is self.trainer:
                for log in self._unknown()[:1]:  # a slow trainer refuses later
                    log.refused = fact.text
            case LedgerReused():
                self.warned_old.add(process.id)
            case Announced() | Closed() | RoundCompleted() | RoundFailed():
                for log in [log for log in self.rounds if log.id == fact.round_id]:
                    if isinstance(fact, Announced):
                        log.announced_ms = now_ms
                    elif isinstance(fact, Closed):
                        log.closed_ms = now_ms
                    elif log.ended is None:
                        log.ended_ms, log.ended, trainer = now_ms, fact, self.trainer.actor
                        log.contributors = trainer.contributors(log.id) if isinstance(trainer, Trainer) else ()

    def on_kill(self, process: Process) -> None:
        self.killed_ms[process.id] = self.simulator.now_ms

    def on_restart(self, process: Process) -> None:
        if process is self.trainer:
            self.simulator.after(OWNER_WAITS_MS, self._ask_again)

    def duplicate(self, original: Process) -> Process:
        """Start a second process with a copy of the original's disk, as of now. It waits for its connection."""
        is_client = original.role is Channel.CLIENT
        index = (self.clients if is_client else self.computes).index(original)
        build = functools.partial(self.actors.client if is_client else self.actors.compute, index)
        self.duplicated.add(original.id)
        return self.simulator.add(original.role, build, link=self.scenario.network, disk=original.disk.copy())

    def mend(self) -> None:
        """Everything that was broken works again; clients whose ledger is an old copy start anew.

        Links lose nothing any more, and delay by a second at most.
        """
        for injection in self.injections:
            injection.stop()
        self.router.tampers.clear()
        options = self.scenario.network
        slow = {name: min(getattr(options, name), 1_000.0) for name in ("delay_ms", "jitter_ms", "reorder_ms")}
        for process in self.simulator.machines:
            process.kill_points = None
            process.link.options = msgspec.structs.replace(options, bandwidth_bytes_s=0.0, loss=0.0, **slow)
        self.actors.is_healed = True
        for process in list(self.simulator.processes.values()):
            is_hostile, is_client = process.id in self.hostile, process.role is Channel.CLIENT
            if process.id in self.strangers or (is_hostile and is_client):
                process.kill("removed")
            elif is_client and process.id in self.duplicated | self.restored:
                process.kill("to be enrolled anew")
            elif is_hostile:
                process.kill("to keep to the protocol")
                if process.role is Channel.COMPUTE:
                    _forget_open_rounds(process)
                process.restart()
            elif not process.is_up or process.id in self.warned_old:
                process.restart()


def _forget_open_rounds(node: Process) -> None:
    """A Compute node that has lied in a round cannot go on with it honestly."""
    records, table, kind = node.disk.records, node_round.ROUNDS, node_round.StoredRound
    stored = [decoded(table, value, kind) for (name, _), value in records.items() if name == table]
    lost = {one.round_id for one in stored if one.phase in node_round.OPEN}
    of_rounds = (table, node_round.ANNOUNCEMENTS, node_round.CONTRIBUTIONS, node_round.LISTS)
    for name, key in list(records):
        if name in of_rounds and key[:ID_BYTES] in lost:
            del records[name, key]
