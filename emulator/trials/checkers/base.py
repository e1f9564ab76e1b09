"""What all checkers share: the log of a run, decoded once, and how a checker counts facts and reports breaks.

The log reads what actors store and send, with the trainer's reply keys where something is sealed to it. It trusts no
number that an actor has computed: it derives the agreed set S and its hash again, from lists and answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from dca_proto.crypto.masks import ENTRY_BYTES
from dca_proto.crypto.sealing import ID_BYTES, AgreementKey
from dca_proto.protocol.announcement import open_answer
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.round import ANNOUNCEMENTS as CLIENT_ANNOUNCEMENTS
from dca_proto.protocol.compute import round as node_round
from dca_proto.protocol.contribution import Kept
from dca_proto.protocol.effects import Channel, Effect, Persist, Send, Write
from dca_proto.protocol.events import Event
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.lists import answer_hash, list_hash
from dca_proto.protocol.records import decoded
from dca_proto.protocol.sessions import SESSIONS, StoredSession
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.messages import Announcement, Answer, PartialSum, Sealed, Signed
from dca_proto.protocol.wire.messages import Release as ReleaseBody
from emulator.pairs import Pairs
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.sim.trace import Entry as TraceEntry
from emulator.trials.checkers.recording import Recording
from emulator.trials.world import TrialWorld
from emulator.wire import Asked, asked_in, body_of, contributions_in

BROKEN_KEPT_MAX = 8
Key = tuple[bytes, bytes]
"""The id of a Compute node or a client, and a round's."""


class Entry(NamedTuple):
    """An entry of a list, and the node whose list it is."""

    client: bytes
    contribution: bytes
    charge: int
    holder: bytes

    @property
    def encoded(self) -> bytes:
        return self.client + self.contribution + self.charge.to_bytes(4, "little")


class Release(NamedTuple):
    """What an honest sender stores or sends: a node's partial sum, a data node's release, a client's report.

    `number`: 0 for the first in that round, then 1, ... `body`: a `PartialSum` or a `Release` message.
    """

    sender: bytes
    round_id: bytes
    number: int
    body: Any


class RunLog(Observer):
    """What happened in a run, decoded; it observes before all checkers.

    Attributes:
        checkers: who is notified of what was decoded (`Checker`).
        draws: what honest clients draw.
        announcements, requests: of each round, as the trainer stored them.
        asked: of each honest node or client and round: the announcement that it has stored first.
        ends, ended_hash: of each honest node and round: the end that is durable, and of which announcement.
        lists, answers: of each honest node and round: its frozen entries, and its stored answer.
        tags: of each honest node and round, its own tag of each entry of its stored lists.
        kept: of each Compute node and round, hostile ones too: contributions ever kept, by client and contribution id.
        pairs: the keys that clients share with Compute nodes.
        gathered: of each round without Compute nodes, what the trainer has stored of it, by client: the first of each.
    """

    def __init__(self, world: TrialWorld) -> None:
        self.checkers: list[Checker] = []
        self.draws = world.actors.mechanism = Recording(world.actors.mechanism)
        self.announcements: dict[bytes, Announcement] = {}
        self.requests: dict[bytes, OpenRound] = {}
        self.asked: dict[Key, Asked] = {}
        self.lists: dict[Key, bytes] = {}
        self.answers: dict[Key, Answer] = {}
        self.tags: defaultdict[Key, dict[bytes, bytes]] = defaultdict(dict)
        self.ends: dict[Key, str] = {}
        self.ended_hash: dict[Key, bytes] = {}
        self.kept: defaultdict[Key, dict[tuple[bytes, bytes], Kept]] = defaultdict(dict)
        self.pairs = Pairs(world.actors.federation.id)
        self.gathered: defaultdict[bytes, dict[bytes, Signed]] = defaultdict(dict)
        for process in world.simulator.machines:  # they have started, and made their first keys
            self.pairs.read(process)
            self.on_restart(process)
        self._world = world
        self._reply_keys: dict[bytes, AgreementKey] = {}
        self._opened: dict[bytes, Asked] = {}  # by the stored announcement
        self._announced: dict[bytes, Asked] = {}  # as the trainer stored it, by round
        self._entries: dict[bytes, bytes] = {}  # by list hash
        self._answers: dict[bytes, Answer] = {}  # by answer hash
        self._sent: defaultdict[Key, list[bytes]] = defaultdict(list)  # partial sums, releases and reports

    @property
    def dishonest(self) -> AbstractSet[bytes]:
        """Who need not keep to the protocol: adversaries, and ids of which two processes hold a copy."""
        return self._world.hostile | self._world.strangers | self._world.duplicated

    def announced_hash(self, round_id: bytes) -> bytes:
        """The hash of a round's announcement, as the trainer stored it."""
        return self._announced[round_id].hash

    def is_summed(self, round_id: bytes) -> bool:
        """Whether a round was announced as a secure sum."""
        announced = self.announcements.get(round_id)
        return announced is not None and announced.terms.is_summed

    def is_release(self, client: bytes, round_id: bytes, payload: bytes) -> bool:
        """Whether an honest client's message is a release or a report of that round."""
        return payload in self._sent[client, round_id]

    def agreed(self, release: Release) -> list[Entry] | None:
        """S, from the lists and the objections that a partial sum names; None where these do not fit together."""
        asked, named = self.asked.get((release.sender, release.round_id)), release.body.answers
        answers = [self._answers[one] for one in named if one in self._answers]
        if asked is None or not len(answers) == len(named) == len(asked.computes):
            return None
        union = self._union(asked, answers[0])
        if union is None or any(one.lists != answers[0].lists for one in answers):
            return None
        objected = {place for one in answers for place in _places_in(one.objections)}
        return [entry for place, entry in enumerate(union) if place not in objected]

    def _union(self, asked: Asked, answer: Answer) -> list[Entry] | None:
        """U, of the lists that an answer names; None where nobody has stored these."""
        lists = [self._entries[one] for one in answer.lists if one in self._entries]
        if not len(lists) == len(answer.lists) == len(asked.computes):
            return None
        pairs = zip(asked.computes, lists, strict=True)
        return [entry for holder, data in pairs for entry in entries_in(data, holder)]

    def _notify(self, method: str, *what: Any) -> None:
        for checker in self.checkers:
            getattr(checker, method)(*what)

    def on_restart(self, process: Process) -> None:
        """A client that starts again draws by new objects."""
        if isinstance(process.actor, Client):
            self.draws.watch(process.actor)

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Read which announcement an honest client answers: others ask before it is durable."""
        if process.role is not Channel.CLIENT or process.id in self.dishonest:
            return
        for effect in effects:
            if isinstance(effect, Persist) and effect.table == CLIENT_ANNOUNCEMENTS:
                self.asked.setdefault((process.id, effect.key), self._asked_in(effect.value))
        for round_id, made in contributions_in(effects):
            if (process.id, round_id) not in self.asked:
                self.asked[process.id, round_id] = self._announced[round_id]  # invariant 8 checks that
            self._notify("on_drawn", process, round_id, made)
            self.draws.drawn = None

    def _asked_in(self, payload: bytes) -> Asked:
        """The same object for all who store the same announcement."""
        if payload not in self._opened:
            self._opened[payload] = asked_in(payload)
        return self._opened[payload]

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Read all that has become durable; then notify the checkers."""
        self.pairs.on_commit(process, writes)
        events: list[tuple[Any, ...]] = []
        if process.role is Channel.CLIENT:
            events += [("on_paid", process, *one) for one in contributions_in(writes)]
        for write in writes:
            if isinstance(write, Persist):
                if process.role is Channel.TRAINER:
                    events += self._read_trainer(process, write)
                elif process.role is Channel.COMPUTE:
                    events += self._read_node(process, write)
                if write.table == LEDGER and process.id not in self.dishonest:
                    events.append(("on_charge", process, decoded(LEDGER, write.value, Charge)))
        for one in events:
            self._notify(*one)

    def on_send(self, process: Process, send: Send) -> None:
        """Read all answers, and what honest senders seal to the trainer."""
        if process.role is Channel.COMPUTE and send.to.channel is Channel.COMPUTE:
            body = body_of(send.payload)
            if isinstance(body, Answer):
                self._note_answer(process.id, body)
        if send.to.channel is not Channel.TRAINER or process.id in self.dishonest:
            return
        if process.role is Channel.COMPUTE or not self.is_summed(send.round_id):
            self._read_sealed(process, send.round_id, send.payload)

    def _read_trainer(self, process: Process, write: Persist) -> list[tuple[Any, ...]]:
        if write.table == trainer_round.ROUNDS:
            stored = decoded(write.table, write.value, trainer_round.StoredRound)
            if write.key not in self._announced:
                asked = self._announced[write.key] = self._asked_in(encode(stored.announcement))
                self.announcements[write.key], self.requests[write.key] = asked.body, stored.request
                self._reply_keys[write.key] = AgreementKey(stored.reply_secret)
            return [("on_trainer_round", process, write.key, stored)]
        if write.table == trainer_round.RELEASES:
            round_id, client = write.key[:ID_BYTES], write.key[ID_BYTES:]
            self.gathered[round_id].setdefault(client, decoded(write.table, write.value, Signed))
            return [("on_gathered", process, round_id, client)]
        return []

    def _read_node(self, process: Process, write: Persist) -> list[tuple[Any, ...]]:
        node, key, owner = process.id, (process.id, write.key[:ID_BYTES]), write.key[ID_BYTES:]
        if write.table == node_round.CONTRIBUTIONS:
            kept = Kept(write.value)
            self.kept[key].setdefault((owner, kept.contribution), kept)
            return [("on_kept", process, key[1], owner, kept)]
        if node in self.dishonest:
            return []
        if write.table == node_round.ANNOUNCEMENTS:
            return [("on_begun", process, self.asked.setdefault(key, self._asked_in(write.value)))]
        if write.table == SESSIONS:
            return [("on_session", process, write.key, decoded(SESSIONS, write.value, StoredSession))]
        if write.table == node_round.ROUNDS:
            stored = decoded(write.table, write.value, node_round.StoredRound)
            return [*self._read_round(process, key, stored), ("on_round", process, stored)]
        if write.table == node_round.LISTS:
            received = decoded(write.table, write.value, node_round.StoredList)
            self._note_list(key, owner, received.entries)
            for place, entry in enumerate(entries_in(received.entries, owner)):
                self.tags[key][entry.encoded] = received.tags[8 * place : 8 * place + 8]
        return []

    def _read_round(self, process: Process, key: Key, stored: node_round.StoredRound) -> list[tuple[Any, ...]]:
        events: list[tuple[Any, ...]] = []
        if stored.header is not None and key not in self.lists:
            self.lists[key] = stored.entries
            self._note_list(key, process.id, stored.entries)
            at = 8 * self.asked[key].computes.index(process.id)
            for entry in entries_in(stored.entries, process.id):
                kept = self.kept[key].get((entry.client, entry.contribution))
                self.tags[key][entry.encoded] = kept.tags[at : at + 8] if kept else b""
        if stored.answer is not None and key not in self.answers:
            body = decode_body(stored.answer.body)
            assert isinstance(body, Answer), "an honest node has made it"
            self.answers[key] = body
            self._note_answer(process.id, body)
            union, objected = self._union(self.asked[key], body), _places_in(body.objections)
            events.append(("on_answer", process, self.asked[key], union, objected))
        if stored.phase in node_round.ENDS:
            self.ends.setdefault(key, stored.phase)
            self.ended_hash.setdefault(key, stored.announcement_hash)
        if stored.phase == node_round.RELEASED and stored.final_message:
            self._read_sealed(process, stored.round_id, stored.final_message)
        return events

    def _note_list(self, key: Key, owner: bytes, entries: bytes) -> None:
        if key in self.asked:
            self._entries[list_hash(self.asked[key].hash, owner, entries)] = entries

    def _note_answer(self, node: bytes, body: Answer) -> None:
        self._answers[answer_hash(body.announcement_hash, node, body.lists, body.objections)] = body

    def _read_sealed(self, sender: Process, round_id: bytes, payload: bytes) -> None:
        """Open what is sealed to the trainer and bound to the announcement that its sender knows: a sum or a release.

        Aborts are not sealed. A client may also decline.
        """
        frame, known = decode_frame(payload), self._sent[sender.id, round_id]
        if payload in known or not isinstance(frame, Sealed) or round_id not in self._reply_keys:
            return  # invariants 2 and 4 report who takes part in a round that was never announced
        asked, is_node = self.asked[sender.id, round_id], sender.role is Channel.COMPUTE
        body = decode_body(open_answer(frame, self._reply_keys[round_id], asked.hash).body)
        if isinstance(body, PartialSum if is_node else ReleaseBody):
            known.append(payload)
            release = Release(sender.id, round_id, len(known) - 1, body)
            self._notify("on_partial_sum" if is_node else "on_release", release)


class Checker(Observer):
    """One of the eleven invariants, checked against everything that happens in a trial.

    Beside what every observer sees, the log notifies it of what it has decoded, after it has noted that itself:

        on_drawn(client, round_id, made)        an honest client is about to contribute, release or report
        on_paid(client, round_id, made)         that is durable
        on_charge(process, charge)              an entry of an honest actor's ledger is durable
        on_session(node, client, stored)        so is a session at an honest node
        on_begun(node, asked)                   so is an announcement at an honest node
        on_kept(node, round_id, client, kept)   so is a contribution at any node
        on_round(node, stored)                  so is a round's state at an honest node
        on_answer(node, asked, union, objected) so is the node's first answer: U (None of unknown lists), places in it
        on_trainer_round(trainer, round_id, stored)    so is a round's state at the trainer
        on_gathered(trainer, round_id, client)  so is a release or a report at the trainer
        on_partial_sum(release)                 each distinct partial sum of an honest node leaves
        on_release(release)                     so does each distinct release or report of an honest client

    Args:
        world: whose actors are observed. log: what has been decoded for all checkers.

    Attributes:
        number, name: of the invariant. checked: how many single facts were checked so far.
        broken: the first few breaks, as text. before: the facts in the trace until the first of them.
    """

    number: int
    name: str

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        self.world = world
        self.log = log
        self.checked = 0
        self.broken: list[str] = []
        self.before: list[TraceEntry] = []

    def _ignore(self, *what: Any) -> None:
        """By default a checker ignores an event."""

    on_drawn = on_paid = on_charge = on_session = on_begun = on_kept = on_round = on_answer = _ignore
    on_trainer_round = on_gathered = on_partial_sum = on_release = _ignore

    def finish(self) -> None:
        """The trial is over: check what can only be checked now."""

    def expect(self, holds: bool, what: str) -> None:
        """Count one fact, and keep `what` where it does not hold."""
        self.checked += 1
        if not holds:
            self.fail(what)

    def fail(self, what: str) -> None:
        """The invariant is broken."""
        simulator = self.world.simulator
        if not self.broken:
            self.before = list(simulator.trace.entries)
        if len(self.broken) < BROKEN_KEPT_MAX:
            self.broken.append(f"at {(simulator.now_ms - simulator.start_ms) / 1000:.3f} s: {what}")

    def is_honest(self, process: Process) -> bool:
        """Whether the process runs a production actor, and no other one has a copy of its disk."""
        return process.id not in self.log.dishonest

    def honest(self) -> list[Process]:
        """All such processes."""
        return [process for process in self.world.simulator.processes.values() if self.is_honest(process)]

    @property
    def all_nodes_are_honest(self) -> bool:
        return self.log.dishonest.isdisjoint(self.world.actors.computes)


def about(actor: Process | bytes, round_id: bytes) -> str:
    """Which actor and which round a finding concerns."""
    name = actor.name if isinstance(actor, Process) else actor.hex()[:8]
    return f"{name}, round {round_id.hex()[:8]}"


def release_in(frame: Signed) -> ReleaseBody:
    """What a data node or a client that reports has signed, and the trainer has checked."""
    body = decode_body(frame.body)
    assert isinstance(body, ReleaseBody), "the trainer keeps nothing else"
    return body


def entries_in(data: bytes, holder: bytes) -> list[Entry]:
    """The entries of a list; an honest actor has checked its length."""
    parts = (data[at : at + ENTRY_BYTES] for at in range(0, len(data), ENTRY_BYTES))
    return [
        Entry(one[:ID_BYTES], one[ID_BYTES : 2 * ID_BYTES], int.from_bytes(one[2 * ID_BYTES :], "little"), holder)
        for one in parts
    ]


def _places_in(objections: bytes) -> list[int]:
    """The places in U that an answer objects to."""
    return [int.from_bytes(objections[at : at + 4], "little") for at in range(0, len(objections), 4)]
