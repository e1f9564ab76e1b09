"""The log of a run, decoded once for all checkers, and the base class of checkers.

The log reads what actors store and send; the trainer's reply keys open what is sealed to the trainer. It does not trust
the agreed set A of any actor: it derives A and its hash again from lists and answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.masks import RingVector
from dca_proto.crypto.sealing import ID_BYTES, AgreementKey
from dca_proto.errors import PeerError
from dca_proto.protocol.announcement import open_answer
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.round import ANNOUNCEMENTS as CLIENT_ANNOUNCEMENTS
from dca_proto.protocol.compute import round as node_round
from dca_proto.protocol.contribution import HeldContribution
from dca_proto.protocol.effects import Channel, Effect, Persist, Send, Write
from dca_proto.protocol.events import Event
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.lists import answer_hash
from dca_proto.protocol.records import decoded
from dca_proto.protocol.sessions import SESSIONS, StoredSession
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.messages import Announcement, Answer, PartialSum, Release, Sealed, Signed
from emulator import reference, verified
from emulator.derivations import TAG_BYTES, digest
from emulator.pairs import Pairs
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.sim.trace import TraceEntry
from emulator.trials.checkers.colluding import Colluding
from emulator.trials.checkers.entries import Entry, entries_in, places_in, words_of
from emulator.trials.checkers.genuine import Genuine
from emulator.trials.checkers.recording import Recording
from emulator.trials.world import TrialWorld
from emulator.wire import Accepted, body_of, contributions_in, decode_accepted, ids_in, words_in

BROKEN_KEPT_MAX = 8
Key = tuple[bytes, bytes]
"""The id of a Compute node or client, and a round id."""


class ReleasedVector(NamedTuple):
    """A Compute node's partial sum, a data node's release or a client's report, from an honest sender.

    `number`: 0 for the sender's first in that round, then 1, ... `body`: a `PartialSum` or `Release` message.
    """

    sender: bytes
    round_id: bytes
    number: int
    body: Any


class RunLog(Observer):
    """The decoded events of a run. It observes before the checkers, and notifies them.

    Attributes:
        checkers: notified of the decoded events. draws: the noise that honest clients draw.
        announcements, requests: by round id, as the trainer stored them.
        accepted: by honest member and round: the first announcement that it stored.
        ends, ended_hash: by honest node and round: the durable final phase, and the hash of its announcement.
        lists, answers: by honest node and round: its frozen entries, and its stored answer.
        tags: by honest node and round: the node's own tag of each entry in the lists that it stored.
        kept: by Compute node (also hostile) and round: all contributions ever kept, by client and contribution id.
        quantised: by round, honest client and contribution id: the number of rows counted, and their statistic before
            noise, by the reference; in a verified sum, on the finer grid.
        stray: ids of rounds that a hostile trainer has announced and not stored.
        pairs: the keys that clients share with Compute nodes. colluding: p, as each member counts.
        stored_releases: by round without Compute nodes: the first release or report of each client that the trainer
            stored.
    """

    def __init__(self, world: TrialWorld) -> None:
        self.checkers: list[Checker] = []
        self._world = world
        self.draws = world.actors.mechanism = Recording(world.actors.mechanism)
        self.announcements: dict[bytes, Announcement] = {}
        self.requests: dict[bytes, OpenRound] = {}
        self.accepted: dict[Key, Accepted] = {}
        self.lists: dict[Key, bytes] = {}
        self.answers: dict[Key, Answer] = {}
        self.tags: defaultdict[Key, dict[bytes, bytes]] = defaultdict(dict)
        self.ends: dict[Key, str] = {}
        self.ended_hash: dict[Key, bytes] = {}
        self.kept: defaultdict[Key, dict[tuple[bytes, bytes], HeldContribution]] = defaultdict(dict)
        self.quantised: dict[tuple[bytes, bytes, bytes], tuple[int, NDArray[np.int64]]] = {}
        self.pairs = Pairs(world.actors.federation.id)
        self.stored_releases: defaultdict[bytes, dict[bytes, Signed]] = defaultdict(dict)
        self.colluding = Colluding(world)
        for process in world.simulator.machines:  # they have started and have made their first keys
            self.pairs.read(process)
            self.on_restart(process)
        self.stray: set[bytes] = set()
        self.is_genuine = Genuine(world)
        self._reply_keys: dict[bytes, AgreementKey] = {}
        self._opened: dict[bytes, Accepted] = {}  # by the stored announcement
        self._announced: dict[bytes, Accepted] = {}  # by round, as the trainer stored it
        self._entries: dict[bytes, bytes] = {}  # by list hash
        self._answers: dict[bytes, Answer] = {}  # by answer hash
        self._words: dict[tuple[bytes, bytes], verified.Elements | None] = {}  # by round and entry
        self._sent: defaultdict[Key, list[bytes]] = defaultdict(list)  # partial sums, releases and reports

    @property
    def dishonest(self) -> AbstractSet[bytes]:
        """The ids that may break the protocol: adversaries, and ids that two processes share."""
        return self._world.hostile | self._world.strangers | self._world.duplicated

    def announced_hash(self, round_id: bytes) -> bytes:
        """Return the hash of a round's announcement as the trainer stored it."""
        return self._announced[round_id].hash

    def announced(self, round_id: bytes) -> Accepted | None:
        """Return a round's announcement as the trainer stored it; None if it has stored none."""
        return self._announced.get(round_id)

    def is_summed(self, round_id: bytes) -> bool:
        """Return True if a round was announced as a secure sum."""
        announced = self.announcements.get(round_id)
        return announced is not None and announced.kind.is_summed

    def is_release(self, client: bytes, round_id: bytes, payload: bytes) -> bool:
        """Return True if an honest client's message is a release or report of that round."""
        return payload in self._sent[client, round_id]

    def agreed(self, release: ReleasedVector) -> list[Entry] | None:
        """Return A by the lists and objections that a partial sum names; None if they are unknown or inconsistent.

        In a verified sum, also without the clients whose proofs failed, by the partial sum itself.
        """
        accepted, named = self.accepted.get((release.sender, release.round_id)), release.body.answers
        answers = [self._answers[hashed] for hashed in named if hashed in self._answers]
        if accepted is None or not len(answers) == len(named) == len(accepted.computes):
            return None
        union = self._union(accepted, answers[0])
        if union is None or any(answer.lists != answers[0].lists for answer in answers):
            return None
        objected = {place for answer in answers for place in places_in(answer.objections)}
        failed = ids_in(getattr(release.body, "failed", b""))
        return [entry for place, entry in enumerate(union) if place not in objected and entry.client not in failed]

    def challenge(self, release: ReleasedVector) -> bytes:
        """Return the seed of a verified sum's coins, by the lists that a partial sum names; `agreed` has found them."""
        accepted = self.accepted[release.sender, release.round_id]
        return verified.challenge(accepted.hash, self._answers[release.body.answers[0]].lists)

    def _union(self, accepted: Accepted, answer: Answer) -> list[Entry] | None:
        """Return U, the union of the lists that an answer names; None if nobody has stored one of them."""
        lists = [self._entries[hashed] for hashed in answer.lists if hashed in self._entries]
        if not len(lists) == len(answer.lists) == len(accepted.computes):
            return None
        pairs = zip(accepted.computes, lists, strict=True)
        return [entry for holder, data in pairs for entry in entries_in(data, holder)]

    def _notify(self, method: str, *arguments: Any) -> None:
        for checker in self.checkers:
            getattr(checker, method)(*arguments)

    def on_restart(self, process: Process) -> None:
        """Record the draws of a restarted client, whose objects are new."""
        if isinstance(process.actor, Client):
            self.draws.watch(process.actor)

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Note which announcement an honest client answers; checkers need it before it is durable."""
        if process.role is not Channel.CLIENT or process.id in self.dishonest:
            return
        for effect in effects:
            if isinstance(effect, Persist) and effect.table == CLIENT_ANNOUNCEMENTS:
                self.accepted.setdefault((process.id, effect.key), self._decode_accepted(effect.value))
        for round_id, outbound in contributions_in(effects):
            if (process.id, round_id) not in self.accepted:
                self.accepted[process.id, round_id] = self._announced[round_id]  # invariant 8 reports that it is lost
            body = self.accepted[process.id, round_id].body
            self.quantised[round_id, process.id, outbound.contribution] = self._quantise(process.id, body)
            self._notify("on_drawn", process, round_id, outbound)
            self.draws.drawn = None

    def _quantise(self, client: bytes, body: Announcement) -> tuple[int, NDArray[np.int64]]:
        """Return the number of a client's rows that count now, and what it must encode before noise."""
        actors, columns = self._world.actors, msgspec.convert(body.parameters["columns"], list[str])
        places = [actors.columns.index(column) for column in columns]
        table = actors.rows[self._world.client_number(client)][:, places]
        rows = [] if client in actors.failing else table.tolist()
        bits = body.fraction_bits + (verified.more_bits(body.fraction_bits) if body.kind.is_verified else 0)
        own = reference.contribution(body.statistic, body.parameters, rows, body.rows_max, bits)
        return min(len(rows), body.rows_max), np.array(own, dtype=np.int64)

    def unmasked(self, node: bytes, accepted: Accepted, entry: Entry) -> RingVector | None:
        """Return what a contribution that a node keeps encoded, without its masks, which are computed anew.

        None if the node does not keep it, or if no keys of its client give its tags.
        """
        kept = self.kept[node, accepted.body.round_id].get((entry.client, entry.contribution))
        if kept is None:
            return None
        total = words_in(kept.y)
        for place in range(len(accepted.epochs)):
            mask = self.mask(accepted, place, entry, kept.tags[TAG_BYTES * place : TAG_BYTES * (place + 1)])
            if mask is None:
                return None
            total = total + mask  # modulo 2^64
        return total

    def words(self, accepted: Accepted, entry: Entry) -> verified.Elements | None:
        """Return the words of a verified contribution that its holder keeps; None as for `unmasked`."""
        known = accepted.body.round_id, entry.encoded
        if known not in self._words:
            kept = self.kept[entry.holder, accepted.body.round_id].get((entry.client, entry.contribution))
            self._words[known] = None if kept is None else words_of(self.pairs, accepted, entry, kept)
        return self._words[known]

    def mask(self, accepted: Accepted, place: int, entry: Entry, tag: bytes) -> RingVector | None:
        """Return a node's mask of an entry; None if no key of its client gives that tag."""
        dimension = reference.dimension(accepted.body.statistic, accepted.body.parameters)
        data = self.pairs.mask(accepted.epochs[place], entry.client, tag, accepted.hash, entry.encoded, dimension)
        return None if data is None else words_in(data)

    def _decode_accepted(self, payload: bytes) -> Accepted:
        """Decode an announcement once for all members that store it."""
        if payload not in self._opened:
            self._opened[payload] = decode_accepted(payload)
        return self._opened[payload]

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Decode the writes that have become durable, then notify the checkers."""
        self.pairs.on_commit(process, writes)
        paid = contributions_in(writes) if process.role is Channel.CLIENT else ()
        events: list[tuple[Any, ...]] = [("on_paid", process, *contribution) for contribution in paid]
        for write in writes:
            if isinstance(write, Persist):
                if process.role is Channel.TRAINER:
                    events += self._read_trainer(process, write)
                elif process.role is Channel.COMPUTE:
                    events += self._read_node(process, write)
                if write.table == LEDGER and process.id not in self.dishonest:
                    events.append(("on_charge", process, decoded(LEDGER, write.value, Charge)))
        for event in events:
            self._notify(*event)

    def on_send(self, process: Process, send: Send) -> None:
        """Decode answers, and what honest senders seal to the trainer."""
        if process.role is Channel.TRAINER and process.id in self.dishonest and send.round_id not in self._announced:
            self.stray.add(send.round_id)
        if process.role is Channel.COMPUTE and send.to.channel is Channel.COMPUTE:
            body = body_of(send.payload)
            if isinstance(body, Answer):
                self._note_answer(body.compute, body)
        if send.to.channel is not Channel.TRAINER or process.id in self.dishonest:
            return
        if process.role is Channel.COMPUTE or not self.is_summed(send.round_id):
            self._read_sealed(process, send.round_id, send.payload)

    def _read_trainer(self, process: Process, write: Persist) -> list[tuple[Any, ...]]:
        if write.table == trainer_round.ROUNDS:
            stored = decoded(write.table, write.value, trainer_round.StoredTrainerRound)
            if write.key not in self._announced:
                accepted = self._announced[write.key] = self._decode_accepted(encode(stored.announcement))
                self.announcements[write.key], self.requests[write.key] = accepted.body, stored.request
                self._reply_keys[write.key] = AgreementKey(stored.reply_secret)
            return [("on_trainer_round", process, write.key, stored)]
        if write.table == trainer_round.RELEASES:
            round_id, client = write.key[:ID_BYTES], write.key[ID_BYTES:]
            self.stored_releases[round_id].setdefault(client, decoded(write.table, write.value, Signed))
            return [("on_stored_release", process, round_id, client)]
        return []

    def _read_node(self, process: Process, write: Persist) -> list[tuple[Any, ...]]:
        node, key, owner = process.id, (process.id, write.key[:ID_BYTES]), write.key[ID_BYTES:]
        if write.table == node_round.CONTRIBUTIONS:
            kept = HeldContribution(write.value)
            self.kept[key].setdefault((owner, kept.contribution), kept)
            return [("on_kept", process, key[1], owner, kept)]
        if node in self.dishonest:
            return []
        if write.table == node_round.ANNOUNCEMENTS:
            return [("on_begun", process, self.accepted.setdefault(key, self._decode_accepted(write.value)))]
        if write.table == SESSIONS:
            return [("on_session", process, write.key, decoded(SESSIONS, write.value, StoredSession))]
        if write.table == node_round.ROUNDS:
            stored = decoded(write.table, write.value, node_round.StoredComputeRound)
            return [*self._read_round(process, key, stored), ("on_round", process, stored)]
        if write.table == node_round.LISTS:
            received = decoded(write.table, write.value, node_round.StoredList)
            self._note_list(key, owner, received.entries, received.header)
            for place, entry in enumerate(entries_in(received.entries, owner)):
                self.tags[key][entry.encoded] = received.tags[8 * place : 8 * place + 8]
        return []

    def _read_round(self, process: Process, key: Key, stored: node_round.StoredComputeRound) -> list[tuple[Any, ...]]:
        events: list[tuple[Any, ...]] = []
        if stored.header is not None and key not in self.lists:
            self.lists[key] = stored.entries
            self._note_list(key, process.id, stored.entries, stored.header)
            at = 8 * self.accepted[key].computes.index(process.id)
            for entry in entries_in(stored.entries, process.id):
                kept = self.kept[key].get((entry.client, entry.contribution))
                self.tags[key][entry.encoded] = kept.tags[at : at + 8] if kept else b""
        if stored.answer is not None and key not in self.answers:
            body = decode_body(stored.answer.body)
            assert isinstance(body, Answer), "an honest node has made it"
            self.answers[key] = body
            self._note_answer(process.id, body)
            union, objected = self._union(self.accepted[key], body), places_in(body.objections)
            events.append(("on_answer", process, self.accepted[key], union, objected))
        if stored.phase in node_round.ENDS:
            self.ends.setdefault(key, stored.phase)
            self.ended_hash.setdefault(key, stored.announcement_hash)
        if stored.phase == node_round.RELEASED and stored.final_message:
            self._read_sealed(process, stored.round_id, stored.final_message)
        return events

    def _note_list(self, key: Key, owner: bytes, entries: bytes, header: Signed) -> None:
        if key in self.accepted:
            coin = getattr(decode_body(header.body), "coin", b"")
            hashed = digest("list", self.accepted[key].hash, owner, entries, *([coin] if coin else []))
            self._entries[hashed] = entries

    def _note_answer(self, node: bytes, body: Answer) -> None:
        openings = getattr(body, "openings", b"")
        self._answers[answer_hash(body.announcement_hash, node, body.lists, body.objections, openings)] = body

    def _read_sealed(self, sender: Process, round_id: bytes, payload: bytes) -> None:
        """Open a partial sum, release or report that is sealed to the trainer; a decline needs no note."""
        frame, known = decode_frame(payload), self._sent[sender.id, round_id]
        if payload in known or not isinstance(frame, Sealed) or round_id in self.stray:
            return  # the last is a decline: nobody pays for such a round (invariant 4) or begins it (invariant 2)
        accepted, is_node = self.accepted.get((sender.id, round_id)), sender.role is Channel.COMPUTE
        if round_id not in self._reply_keys:
            self._notify("on_unannounced", sender, round_id)
            return
        if accepted is None:
            return  # it declines: it has stored nothing of the announcement
        try:
            body = decode_body(open_answer(frame, self._reply_keys[round_id], accepted.hash).body)
        except PeerError:
            assert sender.id in self._world.copied, "else it forgets no announcement, and declines no other"
            return
        if isinstance(body, PartialSum if is_node else Release):
            known.append(payload)
            release = ReleasedVector(sender.id, round_id, len(known) - 1, body)
            self._notify("on_partial_sum" if is_node else "on_release", release)


class Checker(Observer):
    """Checks one invariant against the events of a trial. Docstrings of its methods state what must hold.

    Besides the events of every observer, it gets these from the log, which has recorded them before:

        on_drawn(client, round_id, outbound)    an honest client is about to contribute, release or report
        on_paid(client, round_id, outbound)     a client has durably paid for that

    an honest actor has made durable:
        on_charge(process, charge)                     an entry of its ledger
        on_session(node, client, stored)               a client's session
        on_begun(node, accepted)                       an announcement
        on_round(node, stored)                         its state of a round
        on_answer(node, accepted, union, objected)     its first answer: U (None if a list is unknown), places in U

    any node, or the trainer, has made durable:
        on_kept(node, round_id, client, kept)          a contribution
        on_trainer_round(trainer, round_id, stored)    its state of a round
        on_stored_release(trainer, round_id, client)   a release or report

    an honest member stores, or sends to the trainer:
        on_partial_sum(release)                        a partial sum not seen before
        on_release(release)                            a release or report not seen before
        on_unannounced(sender, round_id)               a sealed message of a round that was never announced

    Args:
        world: the trial that is observed. log: the decoded events.

    Attributes:
        number, name: of the invariant. checked: number of facts checked so far.
        broken: the first few breaks, as text. before: the trace's last facts at the first break.
    """

    number: int
    name: str

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        self.world = world
        self.log = log
        self.checked = 0
        self.broken: list[str] = []
        self.before: list[TraceEntry] = []

    def _ignore(self, *arguments: Any) -> None: ...

    on_drawn = on_paid = on_charge = on_session = on_begun = on_kept = on_round = on_answer = _ignore
    on_trainer_round = on_stored_release = on_partial_sum = on_release = on_unannounced = _ignore

    def finish(self) -> None:
        """Check at the end of the trial what can only be checked then."""

    def expect(self, holds: bool, failure: str) -> None:
        """Count a checked fact; record `failure` if it does not hold."""
        self.checked += 1
        if not holds:
            self.fail(failure)

    def fail(self, failure: str) -> None:
        """Record that the invariant is broken."""
        simulator = self.world.simulator
        if not self.broken:
            self.before = list(simulator.trace.entries)
        if len(self.broken) < BROKEN_KEPT_MAX:
            self.broken.append(f"at {(simulator.now_ms - simulator.start_ms) / 1000:.3f} s: {failure}")

    def is_honest(self, process: Process) -> bool:
        """Return True if the process runs a production actor and no other process has a copy of its disk."""
        return process.id not in self.log.dishonest

    def honest(self) -> list[Process]:
        """Return all honest processes."""
        return [process for process in self.world.simulator.processes.values() if self.is_honest(process)]

    @property
    def all_nodes_are_honest(self) -> bool:
        return self.log.dishonest.isdisjoint(self.world.actors.computes)


def about(actor: Process | bytes, round_id: bytes) -> str:
    """Return the actor and the round of a failure, as text."""
    name = actor.name if isinstance(actor, Process) else actor.hex()[:8]
    return f"{name}, round {round_id.hex()[:8]}"


def release_in(frame: Signed) -> Release:
    """Decode a release or report that the trainer has kept."""
    body = decode_body(frame.body)
    assert isinstance(body, Release), "the trainer keeps only releases and reports"
    return body
