"""Invariant 15: what is due is done at once, and what is not due is not done (DESIGN §4.5, §4.7, §4.8).

Redundancy hides who does not act: another message, a resend or a deadline does it later. So each actor is judged by
what it does with the very message that makes it act.

- A Compute node aborts with the first genuine abort of a peer, and freezes with the trainer's `Close`.
- It repeats the receipt of a contribution that it keeps, and its messages of a round for whoever asks, once a second.
- It asks no client for a Hello that it has.
- A client publishes its Hello when a node asks, once a second.
- The trainer closes a round if all expected contributions have arrived, if n_max have, if n_min have and arrivals are
  quiet, or at `close_by`; never earlier, and not later. Its knowledge is computed from what reached it.
- In a round without any trouble, the result comes within four hops of the close.

An actor that has answered the same peer within the last second need not answer again. A machine may be late by what its
faults explain.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol.announcement import announcement_hash
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute import round as node_round
from dca_proto.protocol.contribution import ClientMessage
from dca_proto.protocol.effects import Channel, Effect, Persist, Send
from dca_proto.protocol.events import Event, Received
from dca_proto.protocol.keyring import TABLE as EPOCHS
from dca_proto.protocol.keyring import epoch_bytes
from dca_proto.protocol.records import decoded
from dca_proto.protocol.sessions import SESSIONS, StoredSession
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.kinds import SecureSum
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, Key, RunLog, about
from emulator.trials.checkers.pace import kind_of
from emulator.trials.world import TrialWorld
from emulator.wire import body_of, counts_of

_SLACK_MS = 1_000


class _Collecting:
    """What the trainer knows of an open secure sum: each node's highest count, who declined, the last arrival."""

    def __init__(self, body: m.Announcement, hashed: bytes, kind: SecureSum, expected: int, announced_ms: int) -> None:
        self.body, self.hash, self.limits, self.expected = body, hashed, counts_of(kind), expected
        self.announced_ms = self.last_ms = announced_ms
        self.counts: dict[bytes, int] = {}
        self.declined: set[bytes] = set()

    def note(self, node: bytes, count: int, now_ms: int) -> None:
        """Note a node's count: it never shrinks."""
        if count > self.counts.get(node, -1):
            self.counts[node] = count
            self.last_ms = now_ms if count else self.last_ms

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def quiet_ms(self) -> int:
        """When arrivals count as quiet: after 500 ms, and half of the time that they have taken (§4.8)."""
        return self.last_ms + max(500, (self.last_ms - self.announced_ms) // 2)

    def reason(self, now_ms: int, unknown: int) -> bool:
        """Return True if there is a reason to close now; `unknown` clients may have declined, too."""
        enough, is_quiet = self.total >= self.limits.n_min, now_ms >= self.quiet_ms
        awaited = max(0, self.expected - len(self.declined) - unknown)
        complete = self.expected > 0 and self.total >= awaited and (enough or is_quiet or not awaited)
        return complete or self.total >= self.limits.n_max or (enough and is_quiet) or now_ms >= self.body.close_by_ms


class Dues(Checker):
    """Checks what honest actors do with each message."""

    number, name = 15, "acts when it is due"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._timing = world.actors.timing
        self._heard: set[tuple[bytes, bytes, bytes]] = set()  # node, round and author of each answer that came
        self._phases: dict[Key, str] = {}  # in memory, by Compute node and round
        self._sent_ms: dict[tuple[bytes, bytes, bytes], int] = {}  # last message by sender, round and receiver
        self._greeted_ms = {client.id: client.now_ms for client in world.clients}  # they have started just now
        self._up_ms = 0  # when the trainer started last
        self._collecting: dict[bytes, _Collecting] = {}
        self._declines: dict[bytes, bytes] = {}  # the client, by sealed decline
        self._contributions: dict[bytes, tuple[bytes, ClientMessage]] = {}  # client and contents, by message
        self._uncounted_ms: dict[Key, int] = {}  # since when a node has a contribution that it has not reported

    def on_paid(self, client: Process, round_id: bytes, outbound: ClientMessage) -> None:
        self._contributions[outbound.payload] = client.id, outbound

    def on_restart(self, process: Process) -> None:
        """A restarted actor remembers what is durable."""
        for key in [key for key in self._phases if key[0] == process.id]:
            del self._phases[key]
        if process.role is Channel.COMPUTE:
            for (table, round_id), value in process.disk.records.items():
                if table == node_round.ROUNDS:
                    self._phases[process.id, round_id] = decoded(table, value, node_round.StoredComputeRound).phase
        for sent in [sent for sent in self._sent_ms if sent[0] == process.id]:
            del self._sent_ms[sent]
        for key in [key for key in self._uncounted_ms if key[0] == process.id]:
            del self._uncounted_ms[key]
        self._greeted_ms.pop(process.id, None)
        if process is self.world.trainer:  # it has forgotten who declined and what arrived
            self._collecting.clear()
            self._up_ms = process.now_ms
            for (table, round_id), value in process.disk.records.items():
                if table == trainer_round.ROUNDS:
                    self._follow(process, round_id, value)

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Judge what an actor does with a message, and note its phases."""
        if process.id in self.log.dishonest:
            return
        if process.role is Channel.TRAINER:
            self._judge_trainer(process, event, effects)
        elif type(event) is Received:
            self._judge_answer(process, event, effects)
        now_ms = process.now_ms
        if process.role is Channel.COMPUTE and self._uncounted_ms:
            self._judge_count(process, effects, now_ms)
        for effect in effects:
            if type(effect) is Send:
                self._sent_ms[process.id, effect.round_id, effect.to.id] = now_ms
                if effect.to.channel is Channel.HELLO:
                    self._greeted_ms[process.id] = now_ms
            elif type(effect) is Persist and process.role is Channel.COMPUTE:
                self._note_at_node(process, effect, effects)
            elif type(effect) is Persist and effect.table == client_round.ROUNDS:
                self._declines[decoded(effect.table, effect.value, client_round.StoredClientRound).decline] = process.id

    def _note_at_node(self, node: Process, write: Persist, effects: Sequence[Effect]) -> None:
        """Note a round's new phase, or a new contribution."""
        if write.table == node_round.CONTRIBUTIONS:
            self._expect_receipt(node, write, effects)
            self._uncounted_ms.setdefault((node.id, write.key[:ID_BYTES]), node.now_ms)
        elif write.table == node_round.ROUNDS:
            stored = decoded(write.table, write.value, node_round.StoredComputeRound)
            self._phases[node.id, write.key] = stored.phase

    # --- nodes and clients ----------------------------------------------------------------------------------------

    def _judge_answer(self, process: Process, event: Received, effects: Sequence[Effect]) -> None:
        if process.role is Channel.COMPUTE and event.payload in self._contributions:
            client, outbound = self._contributions[event.payload]
            if client == event.sender:
                self._judge_receipt(process, event, effects)
                self._judge_wanted(process, client, outbound, effects)
            return
        body = body_of(event.payload)
        if process.role is Channel.CLIENT:
            if isinstance(body, m.HelloWanted) and body.client == process.id:
                self._judge_hello(process, event, effects)
        elif isinstance(body, m.Answer):
            self._heard.add((process.id, body.round_id, body.compute))
        elif isinstance(body, m.Abort | m.Close | m.Query):
            accepted = self.log.accepted.get((process.id, body.round_id))
            if accepted is None or body.announcement_hash != accepted.hash:
                return
            signer = body.compute if isinstance(body, m.Abort) else event.sender
            role = Channel.TRAINER if signer == accepted.body.trainer else Channel.COMPUTE
            of_round = {*accepted.computes, accepted.body.trainer} - {process.id}
            is_named = self.world.follows(process).is_server(signer)  # no actor heeds a revoked member
            if signer in of_round and is_named and self.log.is_genuine(event.payload, signer, role):
                self._judge_in_round(process, event, body, effects)

    def _judge_in_round(
        self, node: Process, event: Received, body: m.Abort | m.Close | m.Query, effects: Sequence[Effect]
    ) -> None:
        """Judge what a Compute node does with a genuine abort, close or question about its announcement."""
        key, who = (node.id, body.round_id), about(node, body.round_id)
        before, after = self._phases.get(key, ""), self._phase_after(body.round_id, effects)
        is_trainers = event.sender == self.log.accepted[key].body.trainer
        if isinstance(body, m.Abort):
            aborts = before not in node_round.OPEN or after == node_round.ABORTED
            self.expect(aborts, f"{who}: {before}, it goes on after a peer's abort")
        elif isinstance(body, m.Close) and is_trainers:
            freezes = before != node_round.COLLECTING or after in (*node_round.ENDS, *node_round.OPEN[1:])
            self.expect(freezes, f"{who}: it goes on collecting after the trainer's Close")
        elif isinstance(body, m.Query) and before in (*node_round.OPEN, *node_round.ENDS):
            over_ms = self.log.accepted[key].body.commit_by_ms + self._timing.abort_grace_ms
            has_heard = (*key, event.sender) in self._heard  # it has the list, then, and there is no other answer yet
            has_words = is_trainers or not (
                before == node_round.COLLECTING or (before == node_round.FROZEN and has_heard)
            )
            kept = before != node_round.RELEASED or (is_trainers and node.now_ms < over_ms)
            if has_words and kept:
                self._expect_answer(node, body.round_id, event.sender, effects, "a question")

    def _judge_count(self, node: Process, effects: Sequence[Effect], now_ms: int) -> None:
        """A node reports a new contribution after 50 ms, unless the round is closed before (§4.5)."""
        sent = {one.round_id for one in effects if type(one) is Send and one.to.channel is Channel.TRAINER}
        for key, since_ms in list(self._uncounted_ms.items()):
            if key[0] == node.id:
                late_ms = now_ms - since_ms - 50 - _SLACK_MS - self.world.tardiness_ms(node)
                self.expect(late_ms <= 0, f"{about(node, key[1])}: it reports a contribution {late_ms} ms too late")
                if key[1] in sent or late_ms > 0 or self._phases.get(key) != node_round.COLLECTING:
                    del self._uncounted_ms[key]

    def _phase_after(self, round_id: bytes, effects: Sequence[Effect]) -> str:
        written = [one for one in effects if type(one) is Persist and one.table == node_round.ROUNDS]
        phases = [
            decoded(one.table, one.value, node_round.StoredComputeRound).phase for one in written if one.key == round_id
        ]
        return phases[-1] if phases else ""

    def _judge_receipt(self, node: Process, event: Received, effects: Sequence[Effect]) -> None:
        """A kept contribution that comes again gets its receipt again, until the round is unloaded."""
        round_id, contribution = _round_and_id(event.payload)
        key = node.id, round_id
        phase, accepted = self._phases.get(key, ""), self.log.accepted.get(key)
        kept = (event.sender, contribution) in self.log.kept[key]
        loaded = phase in node_round.OPEN or (
            phase == node_round.RELEASED
            and accepted is not None
            and node.now_ms < accepted.body.commit_by_ms + self._timing.abort_grace_ms
        )
        if kept and loaded:
            self._expect_answer(node, round_id, event.sender, effects, "a contribution that it keeps")

    def _judge_wanted(self, node: Process, client: bytes, outbound: ClientMessage, effects: Sequence[Effect]) -> None:
        """A node that has the session of a contribution opens it, instead of asking for a Hello."""
        record, round_id = node.disk.records.get((SESSIONS, client)), _round_and_id(outbound.payload)[0]
        accepted, copied = self.log.accepted.get((node.id, round_id)), self.world.copied
        if record is None or accepted is None or not copied.isdisjoint((client, node.id)):
            return
        if any(type(one) is Send and one.to.id == client and kind_of(one.payload) is m.HelloWanted for one in effects):
            stored, grace_ms = decoded(SESSIONS, record, StoredSession), self._timing.epoch_grace_ms
            own = accepted.epochs[accepted.computes.index(node.id)]
            if node.disk.records.get((EPOCHS, epoch_bytes(own.epoch))) != self.log.pairs.secret_of(own.public):
                return  # its clock was set back, and it has deleted the key of the round
            key = self.log.pairs.sealed_with(own, client, accepted.hash, outbound.contribution, outbound.receipt)
            known = any(
                session.public == key and node.now_ms < min(session.expires_ms + grace_ms, session.certificate_ms)
                for session in (stored.current, stored.previous)
                if session is not None
            )
            self.expect(not known, f"{node.name} asks {client.hex()[:8]} for a Hello that it has")

    def _expect_answer(self, node: Process, round_id: bytes, to: bytes, effects: Sequence[Effect], what: str) -> None:
        lasts_ms = [self._sent_ms.get((node.id, known, to), -1 << 60) for known in (round_id, b"")]
        answers = any(type(one) is Send and one.to.id == to for one in effects)
        paced = any(0 <= node.now_ms - last_ms < self._timing.again_ms for last_ms in lasts_ms)
        self.expect(answers or paced, f"{about(node, round_id)}: it does not answer {what} of {to.hex()[:8]}")

    def _judge_hello(self, client: Process, event: Received, effects: Sequence[Effect]) -> None:
        known = {member.id for member in self.world.follows(client).computes}  # a removed node gets no answer
        if event.sender in known and self.log.is_genuine(event.payload, event.sender):
            ago_ms = client.now_ms - self._greeted_ms.get(client.id, -1 << 60)
            greets = any(type(one) is Send and one.to.channel is Channel.HELLO for one in effects)
            paced = 0 <= ago_ms < self._timing.again_ms
            self.expect(greets or paced, f"{client.name} is asked for its Hello, and publishes none")

    # --- the trainer ----------------------------------------------------------------------------------------------

    def _judge_trainer(self, trainer: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Follow what the trainer knows of its rounds, and judge when it closes them."""
        now_ms = trainer.now_ms
        if type(event) is Received:
            self._note_arrival(event, now_ms)
        for effect in effects:
            if type(effect) is not Persist:
                continue
            if effect.table == trainer_round.RELEASES:
                self._expect_receipt(trainer, effect, effects)
            elif effect.table == trainer_round.ROUNDS:
                self._follow(trainer, effect.key, effect.value)
        for round_id, known in self._collecting.items():
            self._judge_open(trainer, round_id, known)

    def _follow(self, trainer: Process, round_id: bytes, record: bytes) -> None:
        """Note a round that begins, and judge one that closes."""
        stored = decoded(trainer_round.ROUNDS, record, trainer_round.StoredTrainerRound)
        known = self._collecting.get(round_id)
        if stored.phase == trainer_round.COLLECTING:
            body = body_of(encode(stored.announcement))
            if known is None and isinstance(body, m.Announcement) and isinstance(body.kind, SecureSum):
                expected = stored.request.answers_expected
                hashed = announcement_hash(encode(stored.announcement))
                self._collecting[round_id] = _Collecting(body, hashed, body.kind, expected, stored.announced_ms)
        elif known is not None:
            if stored.phase == trainer_round.COMMITTING:
                reason = known.reason(trainer.now_ms, self._unknown_clients)
                found = f"{known.total} contributions of {known.expected}, {len(known.declined)} declines"
                self.expect(reason, f"{about(trainer, round_id)}: it closes without a reason: {found}")
            self._judge_time(trainer, round_id, known)
            del self._collecting[round_id]

    @property
    def _unknown_clients(self) -> int:
        """The number of clients whose declines are not known here."""
        return len(self.log.dishonest & (self.world.enrolled | self.world.strangers))

    def _judge_open(self, trainer: Process, round_id: bytes, collecting: _Collecting) -> None:
        """Judge a round that the trainer has left open after an event."""
        who = about(trainer, round_id)
        complete = 0 < collecting.expected <= collecting.total and collecting.total >= collecting.limits.n_min
        self.expect(not complete, f"{who}: all {collecting.total} contributions have arrived, and it does not close")
        self.expect(collecting.total < collecting.limits.n_max, f"{who}: it is full, and the trainer does not close it")
        self._judge_time(trainer, round_id, collecting)

    def _judge_time(self, trainer: Process, round_id: bytes, collecting: _Collecting) -> None:
        """No round is open for longer than until its arrivals are quiet, or `close_by`."""
        now_ms, who = trainer.now_ms, about(trainer, round_id)
        late_ms = _SLACK_MS + self.world.tardiness_ms(trainer)
        due_ms = collecting.body.close_by_ms
        if collecting.total >= collecting.limits.n_min:
            due_ms = min(due_ms, collecting.quiet_ms)
        due_ms = max(due_ms, self._up_ms)
        self.expect(now_ms <= due_ms + late_ms, f"{who}: it should have closed {now_ms - due_ms} ms ago")

    def _note_arrival(self, event: Received, now_ms: int) -> None:
        client = self._declines.get(event.payload)
        if client == event.sender:
            for known in self._collecting.values():
                known.declined.add(client)
        elif _is_progress(event.payload) and isinstance(body := body_of(event.payload), m.Progress):
            known_round = self._collecting.get(body.round_id)
            if known_round is None or body.announcement_hash != known_round.hash:
                return
            if self.log.is_genuine(event.payload, event.sender):
                known_round.note(event.sender, body.count, now_ms)

    def _expect_receipt(self, keeper: Process, write: Persist, effects: Sequence[Effect]) -> None:
        """What is kept for the first time gets its receipt with the same event."""
        client, who = write.key[ID_BYTES:], about(keeper, write.key[:ID_BYTES])
        answers = any(type(one) is Send and one.to.id == client for one in effects)
        self.expect(answers, f"{who}: it keeps what {client.hex()[:8]} sent, without a receipt")

    def finish(self) -> None:
        """Judge the rounds that are still open."""
        trainer = self.world.trainer
        for round_id, known in self._collecting.items() if trainer.is_up and self.is_honest(trainer) else ():
            self._judge_open(trainer, round_id, known)


def _round_and_id(payload: bytes) -> tuple[bytes, bytes]:
    """Return the round and the contribution id of an encoded contribution."""
    frame = msgspec.msgpack.decode(payload)
    return frame[1], frame[2][:ID_BYTES]


def _is_progress(payload: bytes) -> bool:
    """Return True if a well-formed message is a `Progress`."""
    try:
        return kind_of(payload) is m.Progress
    except (KeyError, IndexError, TypeError, ValueError, msgspec.DecodeError):
        return False
