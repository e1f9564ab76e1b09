"""Invariant 6: hostile or damaged input never crashes, blocks or grows an actor, which drops, counts and reports it.

No message changes a store if nobody sent it, if it comes under another name, or if it has changed the store before. No
fact contains a key, a tag or a row, since logs, traces and reports are made of facts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol import charges, facts, keyring, own_session, restore, sessions
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.client import trust
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute import round as node_round
from dca_proto.protocol.compute.actor import SINCE, ComputeNode
from dca_proto.protocol.contribution import HeldContribution
from dca_proto.protocol.effects import Channel, Effect, Forget, Persist, Report, Send, Write
from dca_proto.protocol.events import Event, Received
from dca_proto.protocol.federation import FILES
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import decode_frame, encode
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, RunLog
from emulator.trials.world import TrialWorld
from emulator.wire import Accepted, body_of

CODES = frozenset({
    "announcement", "answer", "ask", "certificate", "ciphertext", "computes", "contribution", "deadline", "element",
    "epoch", "federation", "full", "hello", "holder", "ids", "invited", "key", "kind", "known-release", "known-round",
    "late", "ledger", "ledger-rollback", "length", "list", "malformed", "nonce", "phase", "receipt", "receiver",
    "registrar", "release", "releases", "replay", "revoked", "room", "second-contribution", "sender", "session",
    "sessions", "signature", "size", "topic", "unknown-compute", "unknown-round", "unknown-trainer",
    "version",
})  # fmt: skip
"""All codes under which an actor drops a message."""

_PREFIX = 8  # leading bytes by which a secret is recognised
_EPOCHS_MAX = 4
_HEX = re.compile(r"[0-9a-f]{16,}")
_LOOK_EVERY = 512  # handled events between two checks of an actor's memory
_SAME_EACH_TIME = (m.EpochKey, m.HelloWanted, m.Sessions)  # messages that belong to no round and may be repeated
_OPAQUE = (bytes, str, int, float, bool, type(None), np.ndarray)


class Inputs(Checker):
    """Checks crashes, drops, growth and leaked secrets at every honest actor.

    Attributes:
        revealed: the bytes in the facts of honest actors; those in texts from `finish` on.
    """

    number, name = 6, "hostile input"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._reported: Counter[tuple[bytes, int]] = Counter()  # drops by process and start
        self._handled: Counter[bytes] = Counter()
        self.revealed: set[bytes] = set()  # in all facts
        self._texts: set[str] = set()  # in all facts
        self._secrets: dict[bytes, str] = {}  # first bytes of a secret -> its description
        self._sent: defaultdict[bytes, set[bytes]] = defaultdict(set)  # payload -> ids that have really sent it
        for process in world.simulator.machines:  # they have started and sent these already
            if isinstance(process.actor, Client):
                self._sent[process.actor._session.hello].add(process.id)
            elif isinstance(process.actor, ComputeNode):
                self._sent[encode(process.actor._sign(process.actor._epoch_key()))].add(process.id)
        self._acting: defaultdict[bytes, list[bytes]] = defaultdict(list)  # process -> payloads with pending writes
        self._acted: defaultdict[bytes, set[bytes]] = defaultdict(set)  # process -> payloads with durable writes

    def on_crash(self, process: Process, error: Exception) -> None:
        if self.is_honest(process):
            self.fail(f"{process.name} crashes: {type(error).__name__}: {error}")

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """An actor counts and reports the same number of drops, and acts only upon genuine messages."""
        if process.actor is None or not self.is_honest(process):
            return
        reports = [effect.fact for effect in effects if isinstance(effect, Report)]
        drops = [fact for fact in reports if isinstance(fact, facts.Dropped)]
        for drop in drops:
            self.expect(drop.code in CODES, f"{process.name} drops under the unknown code {drop.code!r}")
            self.expect(bool(drop.detail), f"{process.name} drops a message without a reason")
        if drops:
            self._reported[process.id, process.starts] += len(drops)
            counted, reported = sum(process.actor.dropped.values()), self._reported[process.id, process.starts]
            self.expect(counted == reported, f"{process.name} counts {counted} drops and reports {reported}")
        writes = any(isinstance(effect, Persist | Forget) for effect in effects)
        if isinstance(event, Received) and (writes or len(reports) > len(drops)):
            self._check_origin(process, event, writes=writes)
        self._handled[process.id] += 1
        if self._handled[process.id] % _LOOK_EVERY == 0:
            self._check_memory(process)

    def on_send(self, process: Process, send: Send) -> None:
        """Note a genuine message."""
        self._sent[send.payload].add(process.id)

    def on_kill(self, process: Process) -> None:
        """Forget payloads with pending writes, which may come again."""
        self._acting.pop(process.id, None)

    def on_restore(self, process: Process) -> None:
        """Forget all payloads: an old copy of a store does not have the later ones."""
        self._acted.pop(process.id, None)

    def _check_origin(self, process: Process, event: Received, *, writes: bool) -> None:
        """A message that has an effect was sent by the actor that the topic names, and changes the store only once."""
        body, senders = body_of(event.payload), self._sent.get(event.payload)
        kind = type(body).__name__
        signed_by_owner = event.payload in self.world.actors.files
        genuine = (
            senders is not None
            or signed_by_owner
            or (isinstance(body, m.Invitation) and self._was_announced(body.announcement))
        )
        self.expect(genuine, f"{process.name} acts upon a forged {kind}")
        carried = isinstance(body, m.Abort | m.FederationFile) or process.role is Channel.CLIENT
        moved = not carried and event.sender not in (senders or {event.sender})
        self.expect(not moved, f"{process.name} acts upon a {kind} under another name than its sender's")
        again = writes and event.payload in self._acted[process.id] and not isinstance(body, _SAME_EACH_TIME)
        self.expect(not again, f"{process.name} acts upon the same {kind} twice")
        if writes:
            self._acting[process.id].append(event.payload)

    def _was_announced(self, announcement: m.Signed) -> bool:
        """Return True if the trainer has sent this announcement, in any invitation: its encoding may differ."""
        frames = (decode_frame(payload) for payload in self._sent if announcement.signature in payload)
        return any(getattr(frame, "announcement", frame) == announcement for frame in frames)

    @property
    def _rounds(self) -> int:
        """The number of rounds that were requested, or announced without a request."""
        requested = (request.round_id for request in self.world.requests)
        return len({*requested, *self.log.announcements, *self.log.stray})

    def _records_max(self, role: Channel) -> dict[str, int]:
        """Return the largest number of records in each table, given the rounds and the enrolled clients."""
        rounds, nodes, enrolled = self._rounds, len(self.world.computes), len(self.world.enrolled)
        if role is Channel.COMPUTE:
            return {
                FILES: 1,
                node_round.ROUNDS: rounds,
                node_round.ANNOUNCEMENTS: rounds,
                node_round.CONTRIBUTIONS: rounds * enrolled,
                node_round.LISTS: rounds * nodes,
                node_round.ANSWERS: rounds * nodes,
                sessions.SESSIONS: enrolled,
                charges.TABLE: 1 + enrolled // charges.PAGE,
                keyring.SEEN: nodes,
                keyring.TABLE: _EPOCHS_MAX,
                SINCE: 1,
            }
        if role is Channel.TRAINER:
            releases = rounds * enrolled
            return {FILES: 1, trainer_round.ROUNDS: rounds, LEDGER: rounds, trainer_round.RELEASES: releases}
        return {
            **dict.fromkeys((client_round.ROUNDS, client_round.ANNOUNCEMENTS), rounds),
            LEDGER: 2 * rounds,  # with those that a client books after it was restored
            restore.RESTORED: 1,
            trust.PIN: 1,
            client_round.DECLINES: min(rounds, client_round.DECLINES_MAX),
            own_session.HELLO: 1,
            FILES: 1,
            keyring.SEEN: nodes,
            keyring.TABLE: _EPOCHS_MAX,
        }

    def _check_memory(self, process: Process) -> None:
        """An actor's containers hold a bounded number of items for each round, each member and each coordinate."""
        assert process.actor is not None
        people = len(self.world.enrolled) + len(self.world.computes)
        each = 64 * people + 4 * self.world.scenario.population.dimension
        limit, count = 1000 + each * (1 + self._rounds), _items(process.actor)
        self.expect(count <= limit, f"{process.name} holds {count} items in memory, expected at most {limit}")

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Note payloads whose writes are durable, and epoch keys as secrets."""
        self._acted[process.id].update(self._acting.pop(process.id, ()))
        for write in writes:
            if isinstance(write, Persist) and write.table == keyring.TABLE:
                self._keep(write.value, "an epoch key")

    def on_kept(self, node: Process, round_id: bytes, client: bytes, kept: HeldContribution) -> None:
        self._keep(kept.tags, "tags")

    def on_trainer_round(self, trainer: Process, round_id: bytes, stored: trainer_round.StoredTrainerRound) -> None:
        self._keep(stored.reply_secret, "a reply key")

    def _keep(self, secret: bytes, description: str) -> None:
        if len(secret) >= _PREFIX:
            self._secrets[secret[:_PREFIX]] = description

    def on_paid(self, client: Process, round_id: bytes, outbound: object) -> None:
        if self.is_honest(client):
            self._check_seen(client, self.log.accepted[client.id, round_id])

    def on_begun(self, node: Process, accepted: Accepted) -> None:
        self._check_seen(node, accepted)

    def _check_seen(self, process: Process, accepted: Accepted) -> None:
        """An actor in a round has stored the epochs of the round's Compute nodes."""
        for key in accepted.epochs:
            seen = keyring.epoch_of(process.disk.records.get((keyring.SEEN, key.compute), b""))
            self.expect(seen >= key.epoch, f"{process.name} does not remember epoch {key.epoch} of a Compute node")

    def on_fact(self, process: Process, fact: object) -> None:
        """Collect the texts and bytes of facts."""
        if self.is_honest(process):
            leaves = list(_leaves(fact))
            self.revealed.update(leaf for leaf in leaves if isinstance(leaf, bytes))
            self._texts.update([repr(fact), *(leaf for leaf in leaves if isinstance(leaf, str))])

    def finish(self) -> None:
        """Stores and memory are within bounds, and no fact contains a secret."""
        for process in self.honest():
            limits = self._records_max(process.role)
            for table, count in Counter(table for table, _ in process.disk.records).items():
                limit = limits.get(table, 0)
                self.expect(count <= limit, f"{process.name} stores {count} records in {table!r}, limit {limit}")
            if process.actor is not None:
                self._check_memory(process)
        values = [float(value) for table in self.world.actors.rows for value in np.ravel(table)]
        known = {**self._secrets, **{np.float64(value).tobytes(): "a row" for value in values}}
        texts = [text for text in map(repr, values) if len(text) > 9]  # shorter ones occur by chance
        for text in self._texts:
            self.revealed.update(bytes.fromhex(run[: len(run) // 2 * 2]) for run in _HEX.findall(text))
            self.expect(not any(value in text for value in texts), "a fact reveals the value of a row")
        for data in self.revealed:
            windows = (data[start : start + _PREFIX] for start in range(len(data) - _PREFIX + 1))
            revealed = next((known[window] for window in windows if window in known), None)
            self.expect(revealed is None, f"a fact reveals {revealed}")


def _leaves(fact: object) -> Iterator[object]:
    """Yield the leaves of a fact; of a result, only ids and hashes."""
    if isinstance(fact, NoisyAggregate):
        fact = (fact.round_id, fact.announcement_hash, fact.contributors_hash)
    if isinstance(fact, msgspec.Struct):
        fact = msgspec.structs.astuple(fact)
    if isinstance(fact, tuple | list):
        for value in fact:
            yield from _leaves(value)
    else:
        yield fact


def _items(actor: Actor) -> int:
    """Return the total number of items in all containers that an actor reaches."""
    seen: set[int] = set()
    waiting: deque[object] = deque([actor])
    count = 0
    while waiting:
        value = waiting.popleft()
        if id(value) in seen or isinstance(value, _OPAQUE) or callable(value):
            continue
        seen.add(id(value))
        if isinstance(value, Mapping | set | frozenset | list | tuple | deque):
            count += len(value)
            waiting.extend(value.values() if isinstance(value, Mapping) else value)
        elif hasattr(value, "__dict__"):
            waiting.extend(vars(value).values())
        elif isinstance(value, msgspec.Struct):
            waiting.extend(msgspec.structs.astuple(value))
    return count
