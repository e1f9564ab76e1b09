"""What all checkers need of a run, decoded once: announcements, lists, answers, durable contributions, releases, ends.

It reads what Compute nodes, data nodes and clients that report store and send, with the trainer's reply keys where
something is sealed to it. It trusts no number that an actor has worked out: the agreed set S and its hash are worked
out again here from lists and answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

from dca_proto.crypto.masks import ENTRY_BYTES
from dca_proto.crypto.sealing import ID_BYTES, AgreementKey
from dca_proto.protocol.announcement import announcement_hash, open_answer
from dca_proto.protocol.client.round import ANNOUNCEMENTS as CLIENT_ANNOUNCEMENTS
from dca_proto.protocol.compute.round import (
    ANNOUNCEMENTS,
    CONTRIBUTIONS,
    ENDS,
    LISTS,
    RELEASED,
    ROUNDS,
    StoredList,
    StoredRound,
)
from dca_proto.protocol.contribution import Kept
from dca_proto.protocol.effects import Channel, Effect, Persist, Send, Write
from dca_proto.protocol.events import Event
from dca_proto.protocol.lists import answer_hash, list_hash
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.trainer.round import RELEASES
from dca_proto.protocol.trainer.round import ROUNDS as TRAINER_ROUNDS
from dca_proto.protocol.trainer.round import StoredRound as TrainerRound
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.messages import Announcement, Answer, PartialSum, Sealed, Signed
from dca_proto.protocol.wire.messages import Release as ReleaseBody
from emulator.pairs import Pairs
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.wire import Asked, asked_in, body_of, contributions_in

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld


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
    """What an honest data node releases to the trainer, or an honest client reports; `number` is 0 for its first one in
    that round, then 1, ..."""

    client: bytes
    round_id: bytes
    number: int
    body: ReleaseBody


def release_in(frame: Signed) -> ReleaseBody:
    """What a data node or a client that reports has signed, and the trainer has checked."""
    body = decode_body(frame.body)
    assert isinstance(body, ReleaseBody), "the trainer keeps nothing else"
    return body


Of = tuple[bytes, bytes]
"""The id of a Compute node or a client, and a round's."""


class Witness(Observer):
    """Looks on before all checkers.

    Attributes:
        announcements, requests: of each round, as the trainer stored them.
        asked: of each honest node or client and round: the announcement that it has stored first.
        ends, ended_hash: of each honest node and round: the end that is durable, and of which announcement.
        lists, answers: of each honest node and round: its frozen entries, and its stored answer.
        tags: of each honest node and round, its own tag of each entry of its stored lists.
        kept: of each Compute node and round, hostile ones too: contributions ever kept, by client and contribution id.
        pairs: the keys that clients share with Compute nodes.
        on_release: called with each distinct partial sum of an honest node, when it is stored or leaves.
        on_alone: called with each distinct release of an honest data node, or report of a client, when it leaves.
        gathered: of each round without Compute nodes, what the trainer has stored of it, by client: the first of each.
    """

    def __init__(self, world: TrialWorld) -> None:
        self.announcements: dict[bytes, Announcement] = {}
        self.requests: dict[bytes, OpenRound] = {}
        self.asked: dict[Of, Asked] = {}
        self.lists: dict[Of, bytes] = {}
        self.answers: dict[Of, Answer] = {}
        self.tags: defaultdict[Of, dict[bytes, bytes]] = defaultdict(dict)
        self.ends: dict[Of, str] = {}
        self.ended_hash: dict[Of, bytes] = {}
        self.kept: defaultdict[Of, dict[tuple[bytes, bytes], Kept]] = defaultdict(dict)
        self.pairs = Pairs(world.cast.federation.id)
        self.on_release: list[Callable[[Release], None]] = []
        self.on_alone: list[Callable[[Released], None]] = []
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
        self._released: defaultdict[Of, list[bytes]] = defaultdict(list)
        self._sent: defaultdict[Of, list[bytes]] = defaultdict(list)

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
        answers = [self._said.get(one) for one in named]
        if asked is None or len(answers) != len(asked.computes) or None in answers:
            return None
        known = [one for one in answers if one is not None]
        union = self._union(asked, known[0])
        if union is None or any(one.lists != known[0].lists for one in known):
            return None
        objected = {place for one in known for place in places_of(one.objections)}
        return [entry for place, entry in enumerate(union) if place not in objected]

    def union(self, of: Of) -> list[Entry] | None:
        """U, of the lists that an honest node's stored answer names; None where nobody has stored these."""
        return self._union(self.asked[of], self.answers[of])

    def _union(self, asked: Asked, answer: Answer) -> list[Entry] | None:
        lists = [self._entries.get(one) for one in answer.lists]
        if len(lists) != len(asked.computes) or None in lists:
            return None
        pairs = zip(asked.computes, lists, strict=True)
        return [entry for holder, data in pairs for entry in entries_of(data or b"", holder)]

    # --- looking on --------------------------------------------------------------------------------------------------

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Read to what announcement an honest client answers: others ask before it is durable."""
        if process.role is Channel.CLIENT and process.id not in self.dishonest:
            for effect in effects:
                if isinstance(effect, Persist) and effect.table == CLIENT_ANNOUNCEMENTS:
                    self.asked.setdefault((process.id, effect.key), self._asked_in(effect.value))
            for round_id, _ in contributions_in(effects):
                self.asked.setdefault((process.id, round_id), self._announced[round_id])  # as invariant 8 says

    def _asked_in(self, payload: bytes) -> Asked:
        """Of all who store the same announcement, the same object."""
        found = self._opened.get(payload)
        if found is None:
            found = self._opened[payload] = asked_in(payload)
        return found

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Read what has become durable."""
        self.pairs.on_commit(process, writes)
        if process.role is Channel.TRAINER:
            self._read_trainer(writes)
        elif process.role is Channel.COMPUTE:
            for write in writes:
                if isinstance(write, Persist):
                    self._read_node(process.id, write)

    def on_send(self, process: Process, send: Send) -> None:
        """Read what honest Compute nodes, data nodes and clients that report send to the trainer; and all answers."""
        if process.role is Channel.COMPUTE and send.to.channel is Channel.COMPUTE:
            body = body_of(send.payload)
            if isinstance(body, Answer):
                self._note_answer(process.id, body)
        if send.to.channel is not Channel.TRAINER or process.id in self.dishonest:
            return
        if process.role is Channel.COMPUTE:
            self._read_word(process.id, send.round_id, send.payload)
        elif process.role is Channel.CLIENT and not self.is_summed(send.round_id):
            self._read_release(process.id, send.round_id, send.payload)

    def _read_trainer(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, Persist) and write.table == TRAINER_ROUNDS and write.key not in self._reply:
                stored = decoded(TRAINER_ROUNDS, write.value, TrainerRound)
                body = decode_body(stored.announcement.body)
                assert isinstance(body, Announcement), "the trainer made it"
                self.announcements[write.key] = body
                self.requests[write.key] = stored.request
                hashed = announcement_hash(encode(stored.announcement))
                self._reply[write.key] = AgreementKey(stored.reply_secret), hashed
                self._announced[write.key] = self._asked_in(encode(stored.announcement))
            elif isinstance(write, Persist) and write.table == RELEASES:
                kept = self.gathered[write.key[:ID_BYTES]]
                kept.setdefault(write.key[ID_BYTES:], decoded(RELEASES, write.value, Signed))

    def _read_node(self, node: bytes, write: Persist) -> None:
        if write.table == CONTRIBUTIONS:
            kept = Kept(write.value)
            self.kept[node, write.key[:ID_BYTES]].setdefault((write.key[ID_BYTES:], kept.contribution), kept)
        elif node in self.dishonest:
            return
        elif write.table == ANNOUNCEMENTS and (node, write.key) not in self.asked:
            self.asked[node, write.key] = self._asked_in(write.value)
        elif write.table == ROUNDS:
            self._read_round(node, decoded(ROUNDS, write.value, StoredRound))
        elif write.table == LISTS:
            told, of, owner = (
                decoded(LISTS, write.value, StoredList),
                (node, write.key[:ID_BYTES]),
                write.key[ID_BYTES:],
            )
            self._note_list(of, owner, told.entries)
            for place, entry in enumerate(entries_of(told.entries, owner)):
                self.tags[of][entry.encoded] = told.tags[8 * place : 8 * place + 8]

    def _read_round(self, node: bytes, stored: StoredRound) -> None:
        of = node, stored.round_id
        if stored.header is not None and of not in self.lists:
            self.lists[of] = stored.entries
            self._note_list(of, node, stored.entries)
            self._note_own_tags(of)
        if stored.answer is not None and of not in self.answers:
            body = decode_body(stored.answer.body)
            assert isinstance(body, Answer), "an honest node has made it"
            self.answers[of] = body
            self._note_answer(node, body)
        if stored.phase in ENDS:
            self.ends.setdefault(of, stored.phase)
            self.ended_hash.setdefault(of, stored.announcement_hash)
        if stored.phase == RELEASED and stored.word:
            self._read_word(node, stored.round_id, stored.word)

    def _note_list(self, of: Of, owner: bytes, entries: bytes) -> None:
        if of in self.asked:
            self._entries[list_hash(self.asked[of].hash, owner, entries)] = entries

    def _note_own_tags(self, of: Of) -> None:
        node, asked = of[0], self.asked[of]
        at = 8 * asked.computes.index(node)
        for entry in entries_of(self.lists[of], node):
            kept = self.kept[of].get((entry.client, entry.contribution))
            self.tags[of][entry.encoded] = kept.tags[at : at + 8] if kept else b""

    def _note_answer(self, node: bytes, body: Answer) -> None:
        self._said[answer_hash(body.announcement_hash, node, body.lists, body.objections)] = body

    def _read_word(self, node: bytes, round_id: bytes, payload: bytes) -> None:
        """A node's last word: a partial sum is sealed to the trainer, an abort is not."""
        known = self._released[node, round_id]
        if payload in known:
            return
        frame = decode_frame(payload)
        if not isinstance(frame, Sealed):
            return
        body = self._opened_answer(node, round_id, frame)
        if isinstance(body, PartialSum):
            known.append(payload)
            for call in self.on_release:
                call(Release(node, round_id, len(known) - 1, body))

    def _opened_answer(self, sender: bytes, round_id: bytes, frame: Sealed) -> object:
        """What was sealed to the trainer, about the announcement that its sender knows."""
        return decode_body(open_answer(frame, self._reply[round_id][0], self.asked[sender, round_id].hash).body)

    def _read_release(self, client: bytes, round_id: bytes, payload: bytes) -> None:
        """A client's word in a round without Compute nodes: what it releases, or that it declines."""
        known = self._sent[client, round_id]
        if payload in known:
            return
        frame = decode_frame(payload)
        assert isinstance(frame, Sealed), "a client seals what it says to a trainer"
        body = self._opened_answer(client, round_id, frame)
        if isinstance(body, ReleaseBody):
            known.append(payload)
            for call in self.on_alone:
                call(Released(client, round_id, len(known) - 1, body))


def entries_of(data: bytes, holder: bytes) -> list[Entry]:
    """The entries of a list; whoever is honest has checked its length."""
    parts = (data[at : at + ENTRY_BYTES] for at in range(0, len(data), ENTRY_BYTES))
    return [
        Entry(one[:ID_BYTES], one[ID_BYTES : 2 * ID_BYTES], int.from_bytes(one[2 * ID_BYTES :], "little"), holder)
        for one in parts
    ]


def places_of(objections: bytes) -> list[int]:
    """The places in U that an answer objects to."""
    return [int.from_bytes(objections[at : at + 4], "little") for at in range(0, len(objections), 4)]
