"""A run, decoded once for all checkers: announcements, lists, answers, durable contributions, releases, ends.

It reads what Compute nodes, data nodes and clients that report store and send, with the trainer's reply keys where
something is sealed to it. It trusts no number that an actor has worked out: the agreed set S and its hash are worked
out again here from lists and answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, NamedTuple

from dca_proto.crypto.masks import ENTRY_BYTES
from dca_proto.crypto.sealing import ID_BYTES, AgreementKey
from dca_proto.protocol.announcement import open_answer
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
from emulator.trials.checkers.base import Checker
from emulator.wire import Asked, asked_in, body_of, contributions_in

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld

Of = tuple[bytes, bytes]
"""The id of a Compute node or a client, and a round's."""


class Entry(NamedTuple):
    """An entry of a list, and in whose list it stands."""

    client: bytes
    contribution: bytes
    charge: int
    holder: bytes

    @property
    def encoded(self) -> bytes:
        return self.client + self.contribution + self.charge.to_bytes(4, "little")


class Release(NamedTuple):
    """A partial sum of an honest node, stored or on its way; `number` is 0 for its first in that round, then 1, ..."""

    node: bytes
    round_id: bytes
    number: int
    partial: PartialSum


class Released(NamedTuple):
    """What an honest data node releases to the trainer, or an honest client reports; `number` as of `Release`."""

    client: bytes
    round_id: bytes
    number: int
    body: ReleaseBody


class Witness(Observer):
    """Looks on before all checkers.

    Attributes:
        checkers: they get what was decoded (`Checker`).
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
        self.announcements: dict[bytes, Announcement] = {}
        self.requests: dict[bytes, OpenRound] = {}
        self.asked: dict[Of, Asked] = {}
        self.lists: dict[Of, bytes] = {}
        self.answers: dict[Of, Answer] = {}
        self.tags: defaultdict[Of, dict[bytes, bytes]] = defaultdict(dict)
        self.ends: dict[Of, str] = {}
        self.ended_hash: dict[Of, bytes] = {}
        self.kept: defaultdict[Of, dict[tuple[bytes, bytes], Kept]] = defaultdict(dict)
        self.pairs = Pairs(world.actors.federation.id)
        self.gathered: defaultdict[bytes, dict[bytes, Signed]] = defaultdict(dict)
        for process in world.simulator.machines:  # they have started, and made their first keys
            self.pairs.read(process)
        self._world = world
        self._dishonest = world.hostile | world.strangers
        self._twins = 0
        self._reply: dict[bytes, tuple[AgreementKey, bytes]] = {}
        self._opened: dict[bytes, Asked] = {}  # by the stored announcement
        self._announced: dict[bytes, Asked] = {}  # as the trainer stored it, by round
        self._entries: dict[bytes, bytes] = {}  # by list hash
        self._said: dict[bytes, Answer] = {}  # by answer hash
        self._sent: defaultdict[Of, list[bytes]] = defaultdict(list)  # partial sums, releases and reports

    @property
    def dishonest(self) -> AbstractSet[bytes]:
        """Who need not keep to the protocol: adversaries, and ids of which two processes hold a copy."""
        if len(self._world.twinned) != self._twins:
            self._twins = len(self._world.twinned)
            self._dishonest |= self._world.twinned
        return self._dishonest

    def announced_hash(self, round_id: bytes) -> bytes:
        """The hash of a round's announcement, as the trainer stored it."""
        return self._reply[round_id][1]

    def knows(self, client: bytes, asked: Asked) -> bool:
        """Whether a client has stored that announcement, and no other one of its round."""
        own = self.asked.get((client, asked.body.round_id))
        return own is not None and own.hash == asked.hash

    def is_summed(self, round_id: bytes) -> bool:
        """Whether a round was announced as a secure sum."""
        announced = self.announcements.get(round_id)
        return announced is not None and announced.terms.is_summed

    def is_release(self, client: bytes, round_id: bytes, payload: bytes) -> bool:
        """Whether an honest client's message is a release or a report of that round."""
        return payload in self._sent[client, round_id]

    def agreed(self, release: Release) -> list[Entry] | None:
        """S, from the lists and the objections that a partial sum names; None where these do not fit together."""
        asked, named = self.asked.get((release.node, release.round_id)), release.partial.answers
        answers = [self._said[one] for one in named if one in self._said]
        if asked is None or not len(answers) == len(named) == len(asked.computes):
            return None
        union = self._union(asked, answers[0])
        if union is None or any(one.lists != answers[0].lists for one in answers):
            return None
        objected = {place for one in answers for place in _places_of(one.objections)}
        return [entry for place, entry in enumerate(union) if place not in objected]

    def _union(self, asked: Asked, answer: Answer) -> list[Entry] | None:
        """U, of the lists that an answer names; None where nobody has stored these."""
        lists = [self._entries[one] for one in answer.lists if one in self._entries]
        if not len(lists) == len(answer.lists) == len(asked.computes):
            return None
        pairs = zip(asked.computes, lists, strict=True)
        return [entry for holder, data in pairs for entry in entries_of(data, holder)]

    def _tell(self, what: str, *told: Any) -> None:
        for checker in self.checkers:
            getattr(checker, what)(*told)

    # --- looking on --------------------------------------------------------------------------------------------------

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Read to what announcement an honest client answers: others ask before it is durable."""
        if process.role is not Channel.CLIENT or process.id in self.dishonest:
            return
        for effect in effects:
            if isinstance(effect, Persist) and effect.table == CLIENT_ANNOUNCEMENTS:
                self.asked.setdefault((process.id, effect.key), self._asked_in(effect.value))
        for round_id, made in contributions_in(effects):
            self.asked.setdefault((process.id, round_id), self._announced[round_id])  # as invariant 8 says
            self._tell("on_drawn", process, round_id, made)

    def _asked_in(self, payload: bytes) -> Asked:
        """Of all who store the same announcement, the same object."""
        if payload not in self._opened:
            self._opened[payload] = asked_in(payload)
        return self._opened[payload]

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Read what has become durable; then report it."""
        self.pairs.on_commit(process, writes)
        told: list[tuple[Any, ...]] = []
        if process.role is Channel.CLIENT:
            told += [("on_paid", process, *one) for one in contributions_in(writes)]
        for write in writes:
            if isinstance(write, Persist):
                read = {Channel.TRAINER: self._read_trainer, Channel.COMPUTE: self._read_node}.get(process.role)
                told += read(process, write) if read is not None else ()
                if write.table == LEDGER and process.id not in self.dishonest:
                    told.append(("on_charge", process, decoded(LEDGER, write.value, Charge)))
        for one in told:
            self._tell(*one)

    def on_send(self, process: Process, send: Send) -> None:
        """Read what honest Compute nodes, data nodes and clients that report send to the trainer; and all answers."""
        if process.role is Channel.COMPUTE and send.to.channel is Channel.COMPUTE:
            body = body_of(send.payload)
            if isinstance(body, Answer):
                self._note_answer(process.id, body)
        if send.to.channel is not Channel.TRAINER or process.id in self.dishonest:
            return
        if process.role is Channel.COMPUTE or not self.is_summed(send.round_id):
            self._read_word(process, send.round_id, send.payload)

    def _read_trainer(self, process: Process, write: Persist) -> list[tuple[Any, ...]]:
        if write.table == trainer_round.ROUNDS:
            stored = decoded(write.table, write.value, trainer_round.StoredRound)
            if write.key not in self._reply:
                asked = self._announced[write.key] = self._asked_in(encode(stored.announcement))
                self.announcements[write.key], self.requests[write.key] = asked.body, stored.request
                self._reply[write.key] = AgreementKey(stored.reply_secret), asked.hash
            return [("on_trainer_round", process, write.key, stored)]
        if write.table == trainer_round.RELEASES:
            round_id, client = write.key[:ID_BYTES], write.key[ID_BYTES:]
            self.gathered[round_id].setdefault(client, decoded(write.table, write.value, Signed))
            return [("on_gathered", process, round_id, client)]
        return []

    def _read_node(self, process: Process, write: Persist) -> list[tuple[Any, ...]]:
        node, of, owner = process.id, (process.id, write.key[:ID_BYTES]), write.key[ID_BYTES:]
        if write.table == node_round.CONTRIBUTIONS:
            kept = Kept(write.value)
            self.kept[of].setdefault((owner, kept.contribution), kept)
            return [("on_kept", process, of[1], owner, kept)]
        if node in self.dishonest:
            return []
        if write.table == node_round.ANNOUNCEMENTS:
            return [("on_begun", process, self.asked.setdefault(of, self._asked_in(write.value)))]
        if write.table == SESSIONS:
            return [("on_session", process, write.key, decoded(SESSIONS, write.value, StoredSession))]
        if write.table == node_round.ROUNDS:
            stored = decoded(write.table, write.value, node_round.StoredRound)
            return [*self._read_round(process, of, stored), ("on_round", process, stored)]
        if write.table == node_round.LISTS:
            told = decoded(write.table, write.value, node_round.StoredList)
            self._note_list(of, owner, told.entries)
            for place, entry in enumerate(entries_of(told.entries, owner)):
                self.tags[of][entry.encoded] = told.tags[8 * place : 8 * place + 8]
        return []

    def _read_round(self, process: Process, of: Of, stored: node_round.StoredRound) -> list[tuple[Any, ...]]:
        told: list[tuple[Any, ...]] = []
        if stored.header is not None and of not in self.lists:
            self.lists[of] = stored.entries
            self._note_list(of, process.id, stored.entries)
            at = 8 * self.asked[of].computes.index(process.id)
            for entry in entries_of(stored.entries, process.id):
                kept = self.kept[of].get((entry.client, entry.contribution))
                self.tags[of][entry.encoded] = kept.tags[at : at + 8] if kept else b""
        if stored.answer is not None and of not in self.answers:
            body = decode_body(stored.answer.body)
            assert isinstance(body, Answer), "an honest node has made it"
            self.answers[of] = body
            self._note_answer(process.id, body)
            union, objected = self._union(self.asked[of], body), _places_of(body.objections)
            told.append(("on_answer", process, self.asked[of], union, objected))
        if stored.phase in node_round.ENDS:
            self.ends.setdefault(of, stored.phase)
            self.ended_hash.setdefault(of, stored.announcement_hash)
        if stored.phase == node_round.RELEASED and stored.word:
            self._read_word(process, stored.round_id, stored.word)
        return told

    def _note_list(self, of: Of, owner: bytes, entries: bytes) -> None:
        if of in self.asked:
            self._entries[list_hash(self.asked[of].hash, owner, entries)] = entries

    def _note_answer(self, node: bytes, body: Answer) -> None:
        self._said[answer_hash(body.announcement_hash, node, body.lists, body.objections)] = body

    def _read_word(self, sender: Process, round_id: bytes, payload: bytes) -> None:
        """What was sealed to the trainer, about the announcement that its sender knows: a sum, a release or a report.

        Aborts are not sealed. A client may also say that it declines.
        """
        frame, known = decode_frame(payload), self._sent[sender.id, round_id]
        if payload in known or not isinstance(frame, Sealed):
            return
        asked, is_node = self.asked[sender.id, round_id], sender.role is Channel.COMPUTE
        body = decode_body(open_answer(frame, self._reply[round_id][0], asked.hash).body)
        if isinstance(body, PartialSum if is_node else ReleaseBody):
            known.append(payload)
            make: Any = Release if is_node else Released
            self._tell("on_release" if is_node else "on_alone", make(sender.id, round_id, len(known) - 1, body))


def release_in(frame: Signed) -> ReleaseBody:
    """What a data node or a client that reports has signed, and the trainer has checked."""
    body = decode_body(frame.body)
    assert isinstance(body, ReleaseBody), "the trainer keeps nothing else"
    return body


def entries_of(data: bytes, holder: bytes) -> list[Entry]:
    """The entries of a list; whoever is honest has checked its length."""
    parts = (data[at : at + ENTRY_BYTES] for at in range(0, len(data), ENTRY_BYTES))
    return [
        Entry(one[:ID_BYTES], one[ID_BYTES : 2 * ID_BYTES], int.from_bytes(one[2 * ID_BYTES :], "little"), holder)
        for one in parts
    ]


def _places_of(objections: bytes) -> list[int]:
    """The places in U that an answer objects to."""
    return [int.from_bytes(objections[at : at + 4], "little") for at in range(0, len(objections), 4)]
