"""What all checkers need of a run, decoded once: rosters, frozen lists, durable shares, releases and ends.

It reads what honest Compute nodes store and send, and honest data nodes and clients that report, with the trainer's
reply keys where something is sealed to it. It trusts no number that an actor has worked out: N - T + c, the roster's
members and its hash are worked out again here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

from dca_proto.core.codec import decode_body, decode_frame
from dca_proto.core.commit import Entries, parse_entries
from dca_proto.core.compute import ROUNDS, SHARES
from dca_proto.core.compute_round import ENDS, RELEASED, StoredRound
from dca_proto.core.effects import Channel, Forget, Persist, Send, Write
from dca_proto.core.messages import Announcement, PartialSum, Roster, Sealed, Signed, Terms
from dca_proto.core.messages import Release as ReleaseBody
from dca_proto.core.records import decoded
from dca_proto.core.round import announcement_hash, open_answer, roster_hash, session_hash
from dca_proto.core.sealing import ID_BYTES, AgreementKey
from dca_proto.core.trainer_round import RELEASES
from dca_proto.core.trainer_round import ROUNDS as TRAINER_ROUNDS
from dca_proto.core.trainer_round import StoredRound as TrainerRound
from emulator.sim.events import Observer
from emulator.sim.process import Process
from emulator.trials.wire import members_of

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld


class SeenRoster(NamedTuple):
    """A roster that an honest Compute node has stored.

    Attributes:
        announcement, terms: of the round. session: the terms' hash.
        clients: ids, in their order. hash: worked out from the joins that came, whatever the terms say.
    """

    announcement: Announcement
    terms: Terms
    session: bytes
    clients: tuple[bytes, ...]
    hash: bytes

    @property
    def needed(self) -> int:
        """N - T + c, from the announcement's T and c and the number of joins."""
        return len(self.clients) - self.announcement.tolerated + self.announcement.colluders


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


class Kept(NamedTuple):
    """A share that a Compute node has durably kept."""

    contribution: bytes
    body: bytes


Of = tuple[bytes, bytes]
"""A Compute node's id and a round's."""


class Witness(Observer):
    """Looks on before all checkers.

    Attributes:
        announcements: of each round, as the trainer stored it.
        rosters, lists, ends: of each honest node and round: its roster, its frozen list, and the end that is durable.
        shares: of each Compute node and round, hostile ones too: what it has ever kept, by position.
        on_release: called with each distinct partial sum of an honest node, when it is stored or leaves.
        on_local: called with each distinct release of an honest data node, or report of a client, when it leaves.
        gathered: of each local or report round, what the trainer has stored of it, by client: the first of each.
    """

    def __init__(self, world: TrialWorld) -> None:
        self.announcements: dict[bytes, Announcement] = {}
        self.rosters: dict[Of, SeenRoster] = {}
        self.lists: dict[Of, Entries] = {}
        self.ends: dict[Of, str] = {}
        self.shares: defaultdict[Of, dict[int, Kept]] = defaultdict(dict)
        self.on_release: list[Callable[[Release], None]] = []
        self.on_local: list[Callable[[Released], None]] = []
        self.gathered: defaultdict[bytes, dict[bytes, Signed]] = defaultdict(dict)
        self._world = world
        self._dishonest = world.hostile_clients | world.hostile_computes | world.strangers
        self._twins = 0
        self._reply: dict[bytes, tuple[AgreementKey, bytes]] = {}
        self._released: defaultdict[Of, list[bytes]] = defaultdict(list)
        self._sent: defaultdict[Of, list[bytes]] = defaultdict(list)
        self._known: dict[Signed, SeenRoster] = {}

    @property
    def dishonest(self) -> AbstractSet[bytes]:
        """Who need not keep to the protocol: adversaries, and ids of which two processes hold a copy."""
        if len(self._world.twinned) != self._twins:
            self._twins = len(self._world.twinned)
            self._dishonest |= self._world.twinned
        return self._dishonest

    def announced_hash(self, round_id: bytes) -> bytes:
        """The hash of a round's announcement."""
        return self._reply[round_id][1]

    def roster_of(self, round_id: bytes) -> SeenRoster | None:
        """The roster of a round, as any honest node has it."""
        return next((roster for (_, one), roster in self.rosters.items() if one == round_id), None)

    # --- looking on --------------------------------------------------------------------------------------------------

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Read what has become durable at the trainer and at Compute nodes."""
        if process.role is Channel.TRAINER:
            self._read_trainer(writes)
        elif process.role is Channel.COMPUTE:
            for write in writes:
                if isinstance(write, Forget):
                    continue
                if write.table == SHARES:
                    self._read_share(process.id, write)
                elif write.table == ROUNDS and process.id not in self.dishonest:
                    self._read_round(process.id, decoded(ROUNDS, write.value, StoredRound))

    def on_send(self, process: Process, send: Send) -> None:
        """Read what honest Compute nodes, data nodes and clients that report send to the trainer."""
        if send.to.channel is not Channel.TRAINER or process.id in self.dishonest:
            return
        if process.role is Channel.COMPUTE:
            self._read_answer(process.id, send.round_id, send.payload)
        elif process.role is Channel.CLIENT and self.is_local(send.round_id):
            self._read_release(process.id, send.round_id, send.payload)

    def is_local(self, round_id: bytes) -> bool:
        """Whether a round was announced as a local one, or as one of reports."""
        announced = self.announcements.get(round_id)
        return announced is not None and announced.local

    def is_release(self, client: bytes, round_id: bytes, payload: bytes) -> bool:
        """Whether an honest client's message is a release or a report of that round."""
        return payload in self._sent[client, round_id]

    def _read_trainer(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, Persist) and write.table == TRAINER_ROUNDS and write.key not in self._reply:
                stored = decoded(TRAINER_ROUNDS, write.value, TrainerRound)
                body = decode_body(stored.announcement.body)
                assert isinstance(body, Announcement), "the trainer made it"
                self.announcements[write.key] = body
                self._reply[write.key] = AgreementKey(stored.reply_secret), announcement_hash(stored.announcement)
            elif isinstance(write, Persist) and write.table == RELEASES:
                kept = self.gathered[write.key[:ID_BYTES]]
                kept.setdefault(write.key[ID_BYTES:], decoded(RELEASES, write.value, Signed))

    def _read_share(self, node: bytes, write: Persist) -> None:
        round_id, position = write.key[:ID_BYTES], int.from_bytes(write.key[ID_BYTES:], "big")
        self.shares[node, round_id][position] = Kept(write.value[:ID_BYTES], write.value[ID_BYTES:])

    def _read_round(self, node: bytes, stored: StoredRound) -> None:
        of = node, stored.round_id
        if stored.roster is not None and of not in self.rosters:
            self.rosters[of] = self._seen(stored.roster)
        if stored.entries and of not in self.lists:
            self.lists[of] = parse_entries(stored.entries, len(self.rosters[of].clients))
        if stored.phase in ENDS:
            self.ends.setdefault(of, stored.phase)
        if stored.phase == RELEASED and stored.answer:
            self._read_answer(node, stored.round_id, stored.answer)

    def _seen(self, frame: Signed) -> SeenRoster:
        """All nodes get the same bytes: they are read once."""
        if frame not in self._known:
            body = decode_body(frame.body)
            assert isinstance(body, Roster), "an honest node has stored it"
            announcement = decode_body(body.announcement.body)
            assert isinstance(announcement, Announcement), "an honest node has checked it"
            members = members_of(body)
            clients = tuple(client for client, _ in members)
            hashes = session_hash(body.terms), roster_hash(members)
            self._known[frame] = SeenRoster(announcement, body.terms, hashes[0], clients, hashes[1])
        return self._known[frame]

    def _read_answer(self, node: bytes, round_id: bytes, payload: bytes) -> None:
        """A node's last word: a partial sum is sealed to the trainer, an abort is not."""
        known = self._released[node, round_id]
        if payload in known:
            return
        frame = decode_frame(payload)
        if not isinstance(frame, Sealed):
            return
        body = decode_body(open_answer(frame, *self._reply[round_id]).body)
        if isinstance(body, PartialSum):
            known.append(payload)
            for call in self.on_release:
                call(Release(node, round_id, len(known) - 1, body))

    def _read_release(self, client: bytes, round_id: bytes, payload: bytes) -> None:
        """A client's word in a local round or one of reports: what it releases, or that it declines."""
        known = self._sent[client, round_id]
        if payload in known:
            return
        frame = decode_frame(payload)
        assert isinstance(frame, Sealed), "a client seals what it says to a trainer"
        body = decode_body(open_answer(frame, *self._reply[round_id]).body)
        if isinstance(body, ReleaseBody):
            known.append(payload)
            for call in self.on_local:
                call(Released(client, round_id, len(known) - 1, body))
