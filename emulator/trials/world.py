"""Runs the federation of a scenario in virtual time, requests its rounds, records their ends, and mends all faults."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from dca_proto.crypto.sealing import ID_BYTES, digest
from dca_proto.errors import UsageError
from dca_proto.protocol.compute import round as node_round
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import Announced, Closed, Declined, LedgerReused, RoundCompleted, RoundFailed
from dca_proto.protocol.federation import FILES, Federation
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.fields import REPEATS_MAX
from dca_proto.protocol.wire.topics import topic_of
from dca_proto.runtime.parts import split
from emulator.sim.broker import BrokerLimits, SimBroker
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
"""Maps a packet to the packets that the broker handles instead: none, the same, or others."""


class Router(SimBroker):
    """The broker of a trial. It is honest unless a fault or an adversary adds to `tampers`, which see every packet.

    Attributes:
        passed: the last whole messages that it took.
    """

    def __init__(self, simulator: Simulator, options: BrokerLimits) -> None:
        super().__init__(simulator, options)
        self.passed: deque[Packet] = deque(maxlen=PACKETS_KEPT)
        self.tampers: list[Tamper] = []

    def take(self, uplink: Uplink, packet: Packet) -> None:
        """Take an arriving packet as the tampers change it."""
        if packet.payload is not None:
            self.passed.append(packet)
        packets: Sequence[Packet] = (packet,)
        for tamper in self.tampers:
            packets = [changed for part in packets for changed in tamper(part)]
        for changed in packets:
            super().take(uplink, changed)

    def inject_message(self, packet: Packet) -> None:
        """Deliver a whole message that no actor has sent, under the name in `packet.sender`."""
        topic = topic_of(self._simulator.federation, packet.to, packet.sender)
        for wire in split(packet.payload or b"", self.options.part_bytes_max):
            self.inject(topic, wire)


class TrialRound(msgspec.Struct, kw_only=True):
    """One round as its owner sees it. Times are Unix milliseconds of virtual time; None if not yet reached.

    Attributes:
        asked_ms: when it was requested. asked_start: how often the trainer had started at the last request; None if it
            was down then.
        refused: why the trainer rejected the request; empty if it did not.
        ended: the first report of its end. contributors: ids of the clients in its result.
        declined: why each client that declined it did so, as the client reported.
        repeat: the round that repeats it, because Compute nodes were lost in it; None if there is none.
    """

    request: OpenRound
    asked_ms: int
    asked_start: int | None = None
    refused: str = ""
    contributors: tuple[bytes, ...] = ()
    announced_ms: int | None = None
    closed_ms: int | None = None
    ended_ms: int | None = None
    ended: RoundCompleted | RoundFailed | None = None
    declined: dict[bytes, Declined] = {}
    repeat: TrialRound | None = None

    @property
    def id(self) -> bytes:
        return self.request.round_id

    @property
    def last(self) -> TrialRound:
        """The last repeat of this round; the round itself if there is none."""
        return self if self.repeat is None else self.repeat.last

    @property
    def is_to_repeat(self) -> bool:
        """True if its owner is about to repeat it."""
        may = isinstance(self.ended, RoundFailed) and self.ended.repeatable
        return may and self.repeat is None and len(self.request.repeats) < REPEATS_MAX


class TrialWorld(World, Observer):
    """The running federation of a trial. It also acts as the owner of the trainer, who requests rounds.

    Args:
        faulty: role -> function from its production class to a faulty one; see `TrialFederation`.

    Attributes:
        scenario, actors, simulator, computes, clients, trainer: as in `World`. router: the simulator's broker.
        rounds: all requested rounds, and their repeats. further: the round requested after healing; None before.
        hostile: ids of enrolled clients, Compute nodes and trainers that are hostile at any time.
        strangers: ids of clients that were never enrolled. enrolled: ids of those that were.
        altering: ids of Compute nodes that may spoil the value of a result (DESIGN §10).
        duplicated: ids of actors of which two processes have run, and of Compute nodes whose store was replaced by an
            old copy. DESIGN §10 states what either can break.
        restored: ids of clients whose store was replaced by an old copy.
        backed_up: ids of clients whose store was lost and made anew from a backup.
        warned_old: ids of clients that have reported that their ledger is an old copy.
        mended_ms: when all faults were mended; None before.
        killed_ms: id -> time of its last kill. injections: the faults, in the scenario's order.
    """

    actors: TrialFederation

    def __init__(self, scenario: Scenario, faulty: dict[str, Callable[[type], type]] | None = None) -> None:
        actors = TrialFederation(scenario, faulty or {})
        actors.check()
        simulator = Simulator(
            scenario.seed,
            federation=actors.federation.id,
            start_ms=scenario.start_ms,
            link=scenario.network,
            broker=scenario.broker,
            keep_facts_max=FACTS_KEPT,
            raise_crashes=False,
        )
        self.scenario: Scenario = scenario
        self.router = simulator.broker = Router(simulator, scenario.broker)
        self.rounds: list[TrialRound] = []
        self.further: TrialRound | None = None
        self.duplicated: set[bytes] = set()
        self.restored: set[bytes] = set()
        self.backed_up: set[bytes] = set()
        self.warned_old: set[bytes] = set()
        self.killed_ms: dict[bytes, int] = {}
        self.mended_ms: int | None = None
        super().__init__(actors, simulator)
        self._numbers = {client: index for index, client in enumerate(actors.clients)}
        self.enrolled = frozenset(actors.clients)
        enrolled = [one for one in scenario.adversaries if not HOSTILE[one.kind].is_stranger]
        of_kind = [(process.id, HOSTILE[one.kind]) for one in enrolled for process in self.processes_of(one.actor)]
        self.hostile = frozenset(actor for actor, _ in of_kind)
        altering = {actor for actor, kind in of_kind if "value" in kind.spoils}
        self.altering = frozenset(altering.intersection(actors.computes))
        simulator.observers.append(self)
        strangers: list[Process] = []
        for adversary in scenario.adversaries:
            if HOSTILE[adversary.kind].is_stranger:
                build = functools.partial(actors.stranger, len(strangers), adversary.amount)
                strangers.append(simulator.add(Channel.CLIENT, build))
            elif adversary.kind == "copier":
                self.router.tampers.append(functools.partial(self._copy, self.processes_of(adversary.actor)[0].id))
        self.strangers = frozenset(process.id for process in strangers)
        self.injections = [
            Injection(self, FAULTS[fault.kind], fault, number) for number, fault in enumerate(scenario.faults)
        ]

    def client_number(self, actor_id: bytes) -> int:
        """Return a client's number in the scenario. Raises `KeyError` for any other actor."""
        return self._numbers[actor_id]

    @property
    def faults(self) -> list[FaultOutcome]:
        """The outcome of each fault, in the scenario's order."""
        return [injection.record for injection in self.injections]

    def spoils(self) -> frozenset[str]:
        """Return what the scenario's adversaries may spoil: `value`, `round`, `consent` (see `adversary`)."""
        return frozenset[str]().union(*(HOSTILE[adversary.kind].spoils for adversary in self.scenario.adversaries))

    def _copy(self, copier: bytes, packet: Packet) -> Sequence[Packet]:
        """Add to every contribution, release or report of another client a copy in the copier's name."""
        copied = Channel.COMPUTE if self.scenario.rounds.is_summed else Channel.TRAINER
        if packet.to.channel is not copied or packet.sender not in self._numbers or packet.sender == copier:
            return (packet,)
        return packet, msgspec.structs.replace(packet, sender=copier)

    def processes_of(self, actor: str) -> list[Process]:
        """Return the processes that a name in a scenario stands for."""
        groups = {"clients": self.clients, "computes": self.computes, "trainer": [self.trainer], "broker": []}
        if actor in groups:
            return groups[actor]
        role, number = actor.split(" ")
        return [groups[f"{role}s"][int(number)]]

    def name_of(self, process: Process) -> str:
        """Return the name of a process in a scenario."""
        if process is self.trainer:
            return "trainer"
        for role, processes in (("client", self.clients), ("compute", self.computes)):
            if process in processes:
                return f"{role} {processes.index(process)}"
        return process.name

    def follows(self, process: Process) -> Federation:
        """Return the federation file that a process durably follows, as the owner signed it."""
        given = self.actors.given.get(process.id, self.actors.federation)
        stored = process.disk.records.get((FILES, given.id))
        return max(given, self.actors.files.get(stored or b"", given), key=lambda file: file.number)

    def tardiness_ms(self, process: Process) -> int:
        """Return by how much a process may be late if it is slow (ten batches and their writes) or its clock jumps."""
        own = [injection for injection in self.injections if process in self.processes_of(injection.fault.actor)]
        return sum(int(injection.kind.tardy * injection.amount) for injection in own)

    def open_at(self, log: TrialRound) -> list[str]:
        """Return where a round is still open, with its phase: the trainer, and Compute nodes that are not hostile."""
        where = ["its owner has yet to repeat it"] if log.is_to_repeat else []
        phase = phase_at(self.trainer, log.id)
        if log.ended is None and not log.refused:
            # A durable end counts even if it was not reported. An end that a slow trainer is still writing does not.
            table, kind = trainer_round.ROUNDS, trainer_round.StoredTrainerRound
            stored = self.trainer.disk.records.get((table, log.id))
            if phase not in _ENDED or stored is None or decoded(table, stored, kind).phase not in _ENDED:
                where.append(f"the trainer is {phase}")
        for number, process in enumerate(self.computes):
            phase = phase_at(process, log.id)
            if process.id not in self.hostile and phase in (*node_round.OPEN, DOWN):
                where.append(f"compute {number} is {phase}")
        return where

    @property
    def asked(self) -> int:
        """How many rounds were requested, without repeats."""
        return sum(not log.request.repeats for log in self.rounds)

    def ask(self, request: OpenRound) -> TrialRound:
        """Request a round from the trainer, now or as soon as it runs."""
        log = TrialRound(request=request, asked_ms=self.simulator.now_ms)
        self.rounds.append(log)
        self.requests.append(request)
        self._request(log)
        return log

    def _repeat(self, log: TrialRound) -> None:
        """Request a round again that was cancelled because of lost Compute nodes (DESIGN §4.8)."""
        fresh = digest(b"emulator-repeat", log.id)[:ID_BYTES]
        repeats = (*log.request.repeats, log.id)
        log.repeat = self.ask(msgspec.structs.replace(log.request, round_id=fresh, repeats=repeats))

    def _request(self, log: TrialRound) -> None:
        log.asked_start = self.trainer.starts if self.trainer.is_up else None
        try:
            self.simulator.command(self.trainer.id, log.request)
        except UsageError as error:
            log.refused = str(error)

    def _request_again(self) -> None:
        """After a restart of the trainer, request the rounds that it does not know."""
        for log in self._unknown_rounds():
            if log.asked_start != self.trainer.starts:
                self._request(log)

    def _unknown_rounds(self) -> list[TrialRound]:
        """Return the requested rounds that have not ended and that the trainer does not know."""
        trainer = self.trainer.actor
        waiting = [log for log in self.rounds if log.ended is None and not log.refused]
        return [log for log in waiting if trainer is not None and not trainer.knows(log.id)]

    def on_fact(self, process: Process, fact: object) -> None:
        match fact:
            case Refused() if process is self.trainer:
                for log in self._unknown_rounds()[:1]:  # a slow trainer refuses after `_request` has returned
                    log.refused = fact.text
            case LedgerReused():
                self.warned_old.add(process.id)
            case Announced() | Closed() | RoundCompleted() | RoundFailed() | Declined():
                for log in [log for log in self.rounds if log.id == fact.round_id]:
                    self._note_in(log, process, fact)

    def _note_in(
        self, log: TrialRound, process: Process, fact: Announced | Closed | RoundCompleted | RoundFailed | Declined
    ) -> None:
        now_ms = self.simulator.now_ms
        if isinstance(fact, Declined):
            if process.role is Channel.CLIENT:  # the trainer reports it, too
                log.declined.setdefault(process.id, fact)
        elif isinstance(fact, Announced):
            log.announced_ms = now_ms
        elif isinstance(fact, Closed):
            log.closed_ms = now_ms
        elif log.ended is None:
            log.ended_ms, log.ended, trainer = now_ms, fact, self.trainer.actor
            log.contributors = trainer.contributors(log.id) if isinstance(trainer, Trainer) else ()
            if log.is_to_repeat:
                self.simulator.after(OWNER_WAITS_MS, self._repeat, log)

    def on_kill(self, process: Process) -> None:
        self.killed_ms[process.id] = self.simulator.now_ms

    def on_restart(self, process: Process) -> None:
        if process is self.trainer:
            self.simulator.after(OWNER_WAITS_MS, self._request_again)

    def duplicate(self, original: Process) -> Process:
        """Start a second process with the same identity and a copy of the disk."""
        is_client = original.role is Channel.CLIENT
        index = (self.clients if is_client else self.computes).index(original)
        build = functools.partial(self.actors.client if is_client else self.actors.compute, index)
        self.duplicated.add(original.id)
        return self.simulator.add(original.role, build, link=self.scenario.network, disk=original.disk.copy())

    @property
    def copied(self) -> set[bytes]:
        """Return the ids of actors that have run with an old copy, from a backup, or twice."""
        return self.restored | self.duplicated | self.backed_up

    def mend(self) -> None:
        """End all faults and restart what is down.

        Links then lose nothing; their delay, jitter and reordering are at most 1 s each.

        Hostile clients, strangers, revoked clients and clients with copied or old stores are removed. Other hostile
        actors restart as honest ones. Clients that were warned that their ledger is an old copy restart, and so do
        those whose certificate would end. One server gets the owner's newest federation file.
        """
        self.mended_ms = self.simulator.now_ms
        for injection in self.injections:
            injection.stop()
        self.router.tampers.clear()
        options = self.scenario.network
        slow = {name: min(getattr(options, name), 1_000.0) for name in ("delay_ms", "jitter_ms", "reorder_ms")}
        for process in self.simulator.machines:
            process.kill_points = None
            process.link.options = msgspec.structs.replace(options, bandwidth_bytes_s=0.0, loss=0.0, **slow)
        self.actors.is_healed = True
        ending = self.actors.renew_certificates()
        for process in list(self.simulator.processes.values()):
            is_hostile, is_client = process.id in self.hostile, process.role is Channel.CLIENT
            if process.id in self.strangers or (is_hostile and is_client):
                process.kill("removed")
            elif is_client and process.id in self.duplicated | self.restored | self.actors.revoked:
                process.kill("to be enrolled anew")
            elif is_hostile:
                process.kill("to keep to the protocol")
                if process.role is Channel.COMPUTE:
                    _forget_open_rounds(process)
                process.restart()
            elif not process.is_up or process.id in self.warned_old or process.id in ending:
                process.restart()
        if len(self.actors.files) > 1:
            self._give_newest_file()

    def restart_warned(self) -> None:
        """Restart clients that a once hostile Compute node has warned of an old ledger since it forgot its rounds."""
        if not self.hostile.isdisjoint(self.actors.computes):
            for process in self.clients:
                if process.is_up and process.id in self.warned_old:
                    process.restart()

    def _give_newest_file(self) -> None:
        """Give a server the newest file, which revokes all that any file revokes; a newer one, if files disagree."""
        actors = self.actors
        numbers = [file.number for file in actors.files.values()]
        agree = len(set(numbers)) == len(numbers) and actors.revoked == frozenset(actors.newest.revoked)
        newest = actors.newest if agree else actors.revoke()
        server = next(one for one in (*self.computes, self.trainer) if newest.is_server(one.id))
        server.receive(server.id, encode(newest.frame))


def _forget_open_rounds(node: Process) -> None:
    """Delete the open rounds of a Compute node: after lying in a round it cannot continue it honestly."""
    records, table, kind = node.disk.records, node_round.ROUNDS, node_round.StoredComputeRound
    stored = [decoded(table, value, kind) for (name, _), value in records.items() if name == table]
    lost = {record.round_id for record in stored if record.phase in node_round.OPEN}
    of_rounds = (table, node_round.ANNOUNCEMENTS, node_round.CONTRIBUTIONS, node_round.LISTS, node_round.ANSWERS)
    for name, key in list(records):
        if name in of_rounds and key[:ID_BYTES] in lost:
            del records[name, key]
