"""Invariant 6: hostile or damaged input never crashes, blocks or grows an actor; it is counted, dropped and named.

No store changes for a message that nobody sent, that comes under another name, or that has changed it before.

Keys are deleted in time. And no fact holds a secret: no key, no tag, no row. Facts are what logs, traces and reports
are made of.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dca_proto.aggregate import NoisyAggregate
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.charges import PAGE
from dca_proto.protocol.charges import TABLE as SEEN_CHARGES
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.round import ANNOUNCEMENTS, DECLINES, DECLINES_MAX
from dca_proto.protocol.client.round import ROUNDS as CLIENT_ROUNDS
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.round import ANNOUNCEMENTS as NODE_ANNOUNCEMENTS
from dca_proto.protocol.compute.round import CONTRIBUTIONS, ENDS, LISTS, RELEASED, ROUNDS
from dca_proto.protocol.compute.round import StoredRound as NodeRound
from dca_proto.protocol.contribution import Kept
from dca_proto.protocol.effects import Channel, Effect, Forget, Persist, Report, Send, Write
from dca_proto.protocol.events import Event, Received
from dca_proto.protocol.facts import Dropped
from dca_proto.protocol.keyring import SEEN, epoch_of
from dca_proto.protocol.keyring import TABLE as EPOCHS
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.records import decoded
from dca_proto.protocol.sessions import HELLO, SESSIONS
from dca_proto.protocol.trainer.round import RELEASES
from dca_proto.protocol.trainer.round import ROUNDS as TRAINER_ROUNDS
from dca_proto.protocol.trainer.round import StoredRound as TrainerRound
from dca_proto.protocol.wire.codec import decode_frame, encode
from dca_proto.protocol.wire.messages import Abort, EpochKey, FederationFile, HelloWanted, Invitation, Sessions, Signed
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.witness import Witness
from emulator.wire import body_of, contributions_in

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld

CODES = frozenset({
    "announcement", "answer", "ask", "certificate", "ciphertext", "computes", "contribution", "deadline", "epoch",
    "federation", "full", "hello", "holder", "invited", "key", "kind", "known-release", "known-round", "late",
    "ledger", "ledger-rollback", "length", "list", "malformed", "phase", "receipt", "receiver", "release",
    "releases", "replay", "revoked", "rounds", "second-contribution", "sender", "session", "sessions", "signature",
    "size", "topic", "unknown-compute", "unknown-round", "unknown-trainer",
})  # fmt: skip
"""All codes under which an actor drops a message."""

_PREFIX = 8  # bytes of a secret that give it away
_EPOCHS_MAX = 4
_HEX = re.compile(r"[0-9a-f]{16,}")
_SLACK_MS = 5_000
_LOOK_EVERY = 512  # handled events between two looks at an actor's memory
_WORK = (CONTRIBUTIONS, LISTS)
_SAME_EACH_TIME = (EpochKey, HelloWanted, Sessions)  # words about no round, which may be true again
_OPAQUE = (bytes, str, int, float, bool, type(None), np.ndarray)


class Inputs(Checker):
    """Crashes, drops, growth and secrets, at every honest actor."""

    number, name = 6, "hostile input"

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        super().__init__(world, witness)
        self._told: Counter[tuple[bytes, int]] = Counter()  # drops by process and start
        self._handled: Counter[bytes] = Counter()
        self._bytes: set[bytes] = set()  # of all facts
        self._texts: set[str] = set()
        self._secrets: dict[bytes, str] = {}  # first bytes -> what it is
        self._sent: defaultdict[bytes, set[bytes]] = defaultdict(set)  # payload -> who has really sent it
        for process in world.simulator.machines:  # they have started, and said who they are
            if isinstance(process.actor, Client):
                self._sent[process.actor._session.hello].add(process.id)
            elif isinstance(process.actor, ComputeNode):
                self._sent[encode(process.actor._sign(process.actor._epoch_key()))].add(process.id)
        self._acting: defaultdict[bytes, list[bytes]] = defaultdict(list)  # payloads whose writes wait, by process
        self._acted: defaultdict[bytes, set[bytes]] = defaultdict(set)  # payloads whose writes are durable

    # --- crashes and drops -------------------------------------------------------------------------------------------

    def on_crash(self, process: Process, error: Exception) -> None:
        """No honest actor ever raises."""
        if self.is_honest(process):
            self.fail(f"{process.name} crashes: {type(error).__name__}: {error}")

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """What is dropped is counted in the actor and told to its owner, in equal numbers."""
        if process.actor is None or not self.is_honest(process):
            return
        drops = [one.fact for one in effects if isinstance(one, Report) and isinstance(one.fact, Dropped)]
        start = process.id, process.starts
        self._told[start] += len(drops)
        for drop in drops:
            self.expect(drop.code in CODES, f"{process.name} drops under the unknown code {drop.code!r}")
            self.expect(bool(drop.detail), f"{process.name} drops a message without a word")
        if drops:
            counted = sum(process.actor.dropped.values())
            told = self._told[start]
            self.expect(counted == told, f"{process.name} counts {counted} drops and tells of {told}")
        if isinstance(event, Received) and any(_acts(one) for one in effects):
            self._check_origin(process, event, writes=any(isinstance(one, Persist | Forget) for one in effects))
        self._handled[process.id] += 1
        if self._handled[process.id] % _LOOK_EVERY == 0:
            self._check_memory(process)

    # --- forged, moved and repeated messages -------------------------------------------------------------------------

    def on_send(self, process: Process, send: Send) -> None:
        """What really leaves a process is no forgery."""
        self._sent[send.payload].add(process.id)

    def on_kill(self, process: Process) -> None:
        """What was not durable may be asked for again."""
        self._acting.pop(process.id, None)

    def on_restore(self, process: Process) -> None:
        """An old copy of a store does not know what came since."""
        self._acted.pop(process.id, None)

    def _check_origin(self, process: Process, event: Received, *, writes: bool) -> None:
        """What changes something was sent, by whom the topic names, and has not changed the store before."""
        body, senders = body_of(event.payload), self._sent.get(event.payload)
        kind = type(body).__name__
        genuine = senders is not None or (isinstance(body, Invitation) and self._was_announced(body.announcement))
        self.expect(genuine, f"{process.name} acts upon a forged {kind}")
        carried = isinstance(body, Abort | FederationFile) or process.role is Channel.CLIENT
        moved = not carried and event.sender not in (senders or {event.sender})
        self.expect(not moved, f"{process.name} acts upon a {kind} under another name than its sender's")
        again = writes and event.payload in self._acted[process.id] and not isinstance(body, _SAME_EACH_TIME)
        self.expect(not again, f"{process.name} acts upon the same {kind} twice")
        if writes:
            self._acting[process.id].append(event.payload)

    def _was_announced(self, announcement: Signed) -> bool:
        """Whether the trainer has sent it, in whatever invitation: a path may be written in two ways."""
        frames = (decode_frame(one) for one in self._sent if announcement.signature in one)
        return any(getattr(one, "announcement", one) == announcement for one in frames)

    # --- growth ------------------------------------------------------------------------------------------------------

    def _check_records(self, process: Process) -> None:
        """Tables have no more records than what was asked for and enrolled can account for."""
        found = Counter(table for table, _ in process.disk.records)
        most = self._records_max(process.role)
        for table, count in found.items():
            limit = most.get(table, 0)
            self.expect(count <= limit, f"{process.name} stores {count} records of {table!r}, at most {limit} belong")

    @property
    def _rounds(self) -> int:
        """How many were asked for, or announced unasked."""
        return len({*(one.round_id for one in self.world.requests), *self.witness.announcements})

    def _records_max(self, role: Channel) -> dict[str, int]:
        rounds, nodes = self._rounds, len(self.world.computes)
        if role is Channel.COMPUTE:
            enrolled = len(self.world.enrolled)
            return {
                ROUNDS: rounds,
                NODE_ANNOUNCEMENTS: rounds,
                CONTRIBUTIONS: rounds * enrolled,
                LISTS: rounds * nodes,
                SESSIONS: enrolled,
                SEEN_CHARGES: 1 + enrolled // PAGE,
                SEEN: nodes,
                EPOCHS: _EPOCHS_MAX,
            }
        if role is Channel.TRAINER:
            return {TRAINER_ROUNDS: rounds, LEDGER: rounds, RELEASES: rounds * len(self.world.enrolled)}
        kept = dict.fromkeys((CLIENT_ROUNDS, ANNOUNCEMENTS, LEDGER), rounds)
        return {**kept, DECLINES: min(rounds, DECLINES_MAX), HELLO: 1, SEEN: nodes, EPOCHS: _EPOCHS_MAX}

    def _check_ended(self, process: Process) -> None:
        """Rounds are forgotten when their time is over; contributions, lists and sums are, sooner (DESIGN §4.7, §8)."""
        timing, late_ms = self.world.cast.timing, self.world.tardiness_ms(process) + _SLACK_MS
        kept_ms = {
            Channel.CLIENT: timing.abort_grace_ms,
            Channel.COMPUTE: max(timing.retention_ms, 2 * timing.epoch_ms + timing.epoch_grace_ms),
            Channel.TRAINER: timing.retention_ms,
        }[process.role]
        table = {Channel.CLIENT: CLIENT_ROUNDS, Channel.COMPUTE: ROUNDS, Channel.TRAINER: TRAINER_ROUNDS}[process.role]
        for round_id in {key[:ID_BYTES] for name, key in process.disk.records if name == table}:
            announced, who = self.witness.announcements.get(round_id), f"{process.name}, round {round_id.hex()[:8]}"
            ago_ms = process.now_ms - late_ms - (announced.commit_by_ms if announced else process.now_ms)
            self.expect(ago_ms <= kept_ms, f"{who}: it keeps a round whose time is over")
            if process.role is Channel.COMPUTE:
                stored = decoded(ROUNDS, process.disk.records[ROUNDS, round_id], NodeRound)
                secret = stored.phase == RELEASED and bool(stored.word) and ago_ms > timing.abort_grace_ms
                self.expect(not secret, f"{who}: it keeps a sum that nobody may ask for any more")
                held = [name for name, key in process.disk.records if key[:ID_BYTES] == round_id and name in _WORK]
                self.expect(stored.phase not in ENDS or not held, f"{who}: it has ended, and keeps {len(held)} records")

    def _check_epochs(self, process: Process) -> None:
        """A key is deleted when its epoch and the grace are over, and the node or client has had the time for it."""
        timing, late_ms = self.world.cast.timing, self.world.tardiness_ms(process) + _SLACK_MS
        for table, key in process.disk.records:
            if table == EPOCHS:
                over_ms = (int.from_bytes(key, "big") + 1) * timing.epoch_ms + timing.epoch_grace_ms
                if process.role is Channel.CLIENT:
                    over_ms += timing.hello_spread_ms
                holds = process.now_ms <= over_ms + late_ms
                self.expect(holds, f"{process.name} keeps the key of an epoch that is over")

    def _check_memory(self, process: Process) -> None:
        """Containers hold a fixed number of things, and so many for each round and each actor."""
        assert process.actor is not None
        people = len(self.world.enrolled) + len(self.world.computes)
        limit = 1000 + 64 * people * (1 + self._rounds)
        found = items(process.actor)
        self.expect(found <= limit, f"{process.name} holds {found} things in memory, at most {limit} belong")

    # --- secrets -----------------------------------------------------------------------------------------------------

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Collect what nobody may tell: keys, masked vectors, secrets of sealed answers."""
        self._acted[process.id].update(self._acting.pop(process.id, ()))
        self._check_seen(process, writes)
        for write in writes:
            if not isinstance(write, Persist):
                continue
            if write.table == EPOCHS:
                self._keep(write.value, "an epoch key")
            elif write.table == CONTRIBUTIONS:
                self._keep(Kept(write.value).tags, "tags")
            elif write.table == TRAINER_ROUNDS:
                self._keep(decoded(TRAINER_ROUNDS, write.value, TrainerRound).reply_secret, "a reply key")

    def _check_seen(self, process: Process, writes: Sequence[Write]) -> None:
        """Whoever takes part in a round has stored which epochs its Compute nodes have shown."""
        rounds = {round_id for round_id, _ in contributions_in(writes)}
        rounds |= {one.key for one in writes if isinstance(one, Persist) and one.table == NODE_ANNOUNCEMENTS}
        for round_id in rounds if self.is_honest(process) else ():
            for key in self.witness.asked[process.id, round_id].epochs:
                seen = epoch_of(process.disk.records.get((SEEN, key.compute), b""))
                self.expect(seen >= key.epoch, f"{process.name} does not remember epoch {key.epoch} of a Compute node")

    def _keep(self, secret: bytes, what: str) -> None:
        if len(secret) >= _PREFIX:
            self._secrets[secret[:_PREFIX]] = what

    def on_fact(self, process: Process, fact: object) -> None:
        """Collect what was told."""
        if self.is_honest(process):
            self._texts.add(repr(fact))
            for leaf in _leaves(fact):
                if isinstance(leaf, bytes):
                    self._bytes.add(leaf)
                elif isinstance(leaf, str):
                    self._texts.add(leaf)

    def finish(self) -> None:
        """Look at stores, at memory and through all facts."""
        for process in self.world.simulator.processes.values():
            if self.is_honest(process):
                self._check_records(process)
                if process.actor is not None:
                    self._check_memory(process)
                    self._check_epochs(process)
                    self._check_ended(process)
        self._check_facts()

    def _check_facts(self) -> None:
        rows = {_bytes_of(value): "a row" for table in self.world.cast.rows for value in np.ravel(table)}
        known = {**self._secrets, **rows}
        for data in self._bytes:
            self._check_bytes(data, known)
        values = {repr(float(value)) for table in self.world.cast.rows for value in np.ravel(table)}
        telling = [value for value in values if len(value) > 9]  # short ones are everywhere
        for text in self._texts:
            for run in _HEX.findall(text):
                self._check_bytes(bytes.fromhex(run[: len(run) // 2 * 2]), known)
            self.expect(not any(value in text for value in telling), "a fact tells the value of a row")

    def _check_bytes(self, data: bytes, known: Mapping[bytes, str]) -> None:
        windows = (data[start : start + _PREFIX] for start in range(len(data) - _PREFIX + 1))
        found = next((known[window] for window in windows if window in known), None)
        self.expect(found is None, f"a fact tells {found}")


def _acts(effect: Effect) -> bool:
    """Whether something is stored, or told as a fact, beyond that a message was dropped."""
    return isinstance(effect, Persist | Forget) or (isinstance(effect, Report) and not isinstance(effect.fact, Dropped))


def _bytes_of(value: float) -> bytes:
    return np.float64(value).tobytes()


def _leaves(fact: object) -> Iterator[object]:
    """The bytes and texts of a fact, of a result all but the public sum itself."""
    if isinstance(fact, msgspec.Struct):
        for value in msgspec.structs.astuple(fact):
            yield from _leaves(value)
    elif isinstance(fact, tuple | list):
        for value in fact:
            yield from _leaves(value)
    elif isinstance(fact, NoisyAggregate):
        yield from (fact.round_id, fact.announcement_hash, fact.contributors_hash)
    else:
        yield fact


def items(actor: Actor) -> int:
    """How many things the containers that an actor reaches hold, all together."""
    seen: set[int] = set()
    waiting: deque[object] = deque([actor])
    count = 0
    while waiting:
        value = waiting.popleft()
        if id(value) in seen or isinstance(value, _OPAQUE) or callable(value):
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            count += len(value)
            waiting.extend(value.values())
        elif isinstance(value, set | frozenset | list | tuple | deque):
            count += len(value)
            waiting.extend(value)
        elif hasattr(value, "__dict__"):
            waiting.extend(vars(value).values())
        elif isinstance(value, msgspec.Struct):
            waiting.extend(msgspec.structs.astuple(value))
    return count
