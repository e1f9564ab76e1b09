"""Invariant 13: what lacks an answer is repeated in time, and nothing is sent more often, or larger, than it needs.

The bounds follow DESIGN and the timers of `Timing` alone, on each machine's own clock:

- One event causes each message to a receiver once. An answer to the same receiver is repeated once a second at most
  (§7); the first may be repeated at once, since the first answer starts no wait.
- A message without an answer is repeated with exponential back-off: no repeat k comes earlier than 2 s · 2^k (60 s at
  most) after the one before, none later than half as much again, one step of back-off further. The waits are spread
  (§4): those of one trial do not all have the same length.
- Until its receipt, a client repeats its contribution; after the round it asks for missing aborts, for the grace. The
  trainer repeats announcements until the close, then `Close` and questions until the end. A Compute node repeats its
  list, then its answer, until it has its peers'. It publishes its epoch key every few minutes (§2.2, §4).
- A trainer asks a node that it has not heard for two seconds, every two seconds at most (§4.8).
- `Progress` comes at most every 50 ms, and only with another count, unless somebody asked for it (§4.5).
- Each kind of message has at most the bytes of its fields (§4.4, §4.7).

A machine may be late by what its faults explain (`TrialWorld.tardiness_ms`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute import round as node_round
from dca_proto.protocol.effects import Channel, Effect, Forget, Persist, Send
from dca_proto.protocol.events import Event, Received, Started, TimerFired
from dca_proto.protocol.params import Timing
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.wire import messages as m
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, Key, RunLog, about
from emulator.trials.world import TrialWorld

_SLACK_MS, _FAR_MS = 1_000, 1 << 62
_SPREAD_MIN, _SPREAD_PART = 6, 0.02
_TEXT_BYTES, _FRAME_BYTES, _SEAL_BYTES = 2_000, 320, 480
_PROOF_WORDS = 10_000  # of 8 bytes, for each coordinate: 300 noise numbers of 16 bits, and what proves them
_KINDS: dict[tuple[int, int], type] = {
    **{(int(kind.__struct_config__.tag), 0): kind for kind in get_args(m.Frame)},
    **{(1, int(kind.__struct_config__.tag)): kind for kind in get_args(m.Body)},
}
_KINDS |= {tags: m.Answer for tags, kind in _KINDS.items() if kind is m.VerifiedAnswer}
"""The kinds of messages, by the tag of the frame and, if it is signed, of the body. A verified answer is an answer."""
_ROUNDS: dict[Channel, tuple[str, Any]] = {
    Channel.CLIENT: (client_round.ROUNDS, client_round.StoredClientRound),
    Channel.COMPUTE: (node_round.ROUNDS, node_round.StoredComputeRound),
    Channel.TRAINER: (trainer_round.ROUNDS, trainer_round.StoredTrainerRound),
}
_ANSWERS = (m.HelloWanted, m.Receipt, m.ChargeReused)
"""Kinds that only answer messages, and that a sender repeats once a second at most."""
REPEATED: dict[tuple[Channel, str], frozenset[type]] = {
    (Channel.CLIENT, client_round.SENT): frozenset({m.Contribution, m.Sealed}),
    (Channel.COMPUTE, node_round.FROZEN): frozenset({m.Sealed, m.Query}),
    (Channel.COMPUTE, node_round.ANSWERED): frozenset({m.Answer, m.Query}),
    (Channel.TRAINER, trainer_round.COLLECTING): frozenset({m.Announcement, m.Invitation}),
    (Channel.TRAINER, trainer_round.COMMITTING): frozenset({m.Close, m.Query, m.Cancel}),
}
"""What an actor repeats in a phase, until the phase or the time for it is over."""
_ASK = "ask"


def kind_of(payload: bytes) -> type:
    """Return the kind of a message that an honest actor has encoded: of its body if it is signed."""
    frame = msgspec.msgpack.decode(payload)
    return _KINDS[frame[0], msgspec.msgpack.decode(frame[1])[0] if frame[0] == 1 else 0]


class Repeats:
    """Repeats of one actor in one phase of a round: `number` so far, the last at `last_ms`, the next by `due_ms`."""

    __slots__ = ("cap_ms", "due_ms", "kinds", "last_ms", "number", "stage")

    def __init__(self, stage: str, kinds: frozenset[type], now_ms: int, cap_ms: int) -> None:
        self.stage, self.kinds = stage, kinds
        self.number, self.cap_ms = 0, cap_ms
        self.begin(now_ms)

    def least_ms(self, number: int) -> int:
        return int(min(2_000 << min(number, 16), self.cap_ms))

    def begin(self, now_ms: int) -> None:
        """Wait for the next repeat. A client skips the shortest wait, so one step further is allowed."""
        self.last_ms = now_ms
        self.due_ms = now_ms + self.least_ms(self.number + 1) * 3 // 2


class Pace(Checker):
    """Checks every message of honest actors as it is handled, by the machine's own clock."""

    number, name = 13, "repeats in time and in measure"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._timing: Timing = world.actors.timing
        self._cramped = {
            process.id
            for fault in world.scenario.faults
            if fault.kind == "cramped"
            for process in world.processes_of(fault.actor)
        }
        self._answered: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        self._progress: dict[Key, tuple[int, bytes]] = {}
        self._repeats: dict[Key, Repeats] = {}
        self._asks: dict[Key, Repeats] = {}
        self._asked: Counter[Key] = Counter()  # how often a client has asked for aborts since its start
        self._seen: set[tuple[bytes, bytes, type, bytes]] = set()
        self._watched: dict[tuple[object, ...], int] = {}
        self._keys_ms: dict[bytes, int] = {}
        self._spread: defaultdict[Channel, list[float]] = defaultdict(list)
        self._starts: dict[bytes, int] = {}
        self._sizes = _sizes(world)

    def _lateness_ms(self, process: Process) -> int:
        return _SLACK_MS + self.world.tardiness_ms(process)

    # --- each event -----------------------------------------------------------------------------------------------

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Judge what an event causes."""
        is_start = type(event) is Started
        if not (effects or is_start) or not self.is_honest(process):
            return
        now_ms = process.now_ms
        if is_start:
            self._start(process, now_ms)
        sends = [effect for effect in effects if type(effect) is Send]
        if sends:
            self._judge_all(process, event, sends, now_ms)
        table, kind = _ROUNDS[process.role]
        for effect in effects:
            if (type(effect) is Persist or type(effect) is Forget) and effect.table == table:
                stored = decoded(table, effect.value, kind) if type(effect) is Persist else None
                self._enter(process, effect.key, stored, now_ms)
        if process.role is Channel.COMPUTE:
            self._check_epoch_key(process, effects, now_ms)

    def _judge_all(self, process: Process, event: Event, sends: Sequence[Send], now_ms: int) -> None:
        """Judge all messages that one event causes."""
        receivers = {(send.payload, send.to.id, send.to.channel) for send in sends}
        once = len(receivers) == len(sends)
        self.expect(once, f"{process.name}: one event sends a message to one receiver twice")
        repeated: defaultdict[bytes, set[type]] = defaultdict(set)
        for send in sends:
            kind = kind_of(send.payload)
            self._judge(process, event, send, kind, now_ms)
            known = (process.id, send.round_id, kind, send.to.id)
            if type(event) is TimerFired and event.timer.purpose == trainer_round.WATCH and kind is m.Query:
                self._watch(process, send, now_ms)
            elif type(event) is TimerFired and (known in self._seen or kind is m.AbortWanted):
                repeated[send.round_id].add(kind)
            elif send.round_id:
                is_new = known not in self._seen
                self._seen.add(known)
                if is_new and kind is m.Cancel and (process.id, send.round_id) in self._repeats:  # it begins anew
                    self._repeats[process.id, send.round_id].number = 0
                    self._repeats[process.id, send.round_id].begin(now_ms)
        for round_id, kinds in repeated.items():
            self._repeat(process, round_id, kinds, now_ms)
        self._asked.update({(process.id, one.round_id) for one in sends if kind_of(one.payload) is m.AbortWanted})

    def _judge(self, process: Process, event: Event, send: Send, kind: type, now_ms: int) -> None:
        """Judge one message: its size, and the pace of answers."""
        size, most = len(send.payload), self._sizes(kind, process.role, send.to.channel)
        self.expect(size <= most, f"{process.name}: {kind.__name__} of {size} bytes, {most} at most")
        if kind in _ANSWERS:
            times = self._answered[process.id, process.starts, kind, send.round_id, send.to.id]
            back = 1 if kind is m.HelloWanted else 2
            if len(times) >= back:
                ago_ms = now_ms - times[-back]
                paced = not 0 <= ago_ms < self._timing.again_ms
                self.expect(paced, f"{process.name}: {kind.__name__} to one receiver again after {ago_ms} ms")
            times.append(now_ms)
        elif kind is m.Progress:
            key = process.id, send.round_id
            last_ms, payload = self._progress.get(key, (0, b""))
            asked = type(event) is Started or (type(event) is Received and event.sender == send.to.id)
            if not asked and payload:
                ago_ms, who = now_ms - last_ms, about(process, send.round_id)
                self.expect(ago_ms >= self._timing.progress_ms or ago_ms < 0, f"{who}: Progress after {ago_ms} ms")
                self.expect(payload != send.payload, f"{who}: Progress without news")
            self._progress[key] = (last_ms if asked else now_ms), send.payload

    def _watch(self, trainer: Process, send: Send, now_ms: int) -> None:
        """A trainer asks each node of a round that it watches for a sign of life, every two seconds at most."""
        key = (trainer.id, send.round_id, send.to.id, trainer.starts)
        ago_ms = now_ms - self._watched.get(key, -_FAR_MS)
        paced = ago_ms >= self._timing.watch_ms or ago_ms < 0
        self.expect(paced, f"{about(trainer, send.round_id)}: it asks a node again after {ago_ms} ms")
        self._watched[key] = now_ms

    # --- repeats --------------------------------------------------------------------------------------------------

    def _start(self, process: Process, now_ms: int) -> None:
        """After a restart, repeats of all stored rounds begin anew. A clock that was set back restarts no back-off.

        Actors begin before anybody observes them, so a first start that is seen is a clock's.
        """
        if self._starts.get(process.id, 1) == process.starts:
            for known in (self._repeats, self._asks):
                for key, repeats in known.items():
                    if key[0] == process.id and repeats.last_ms:  # what is first due after `commit_by` has not begun
                        repeats.number += 1
                        repeats.begin(now_ms)
            return
        self._starts[process.id] = process.starts
        for known in (self._repeats, self._asks):
            for key in [key for key in known if key[0] == process.id]:
                del known[key]
        for key in [key for key in self._asked if key[0] == process.id]:
            del self._asked[key]
        table, kind = _ROUNDS[process.role]
        for (name, round_id), value in process.disk.records.items():
            if name == table:
                self._enter(process, round_id, decoded(table, value, kind), now_ms)

    def _enter(self, process: Process, round_id: bytes, stored: Any, now_ms: int) -> None:
        """Follow the phase of a round: `stored` is its new record, None if it is forgotten."""
        key, phase = (process.id, round_id), stored.phase if stored is not None else ""
        current = self._repeats.get(key)
        kinds = REPEATED.get((process.role, phase))
        if current is not None and (current.stage == phase or (kinds and process.role is Channel.COMPUTE)):
            current.stage, current.kinds = phase, kinds or current.kinds  # an answer continues the back-off of the list
        else:
            self._end(self._repeats, process, key, now_ms)
            if kinds:
                self._repeats[key] = Repeats(phase, kinds, now_ms, self._timing.resend_max_ms)
        if process.role is Channel.CLIENT:
            self._follow_ask(process, key, stored, now_ms)

    def _until_ms(self, process: Process, round_id: bytes, stage: str) -> int:
        """Return when the time for repeats is over; 0 if nobody has announced the round."""
        body = self._announcement(process, round_id)
        if body is None:
            return 0
        if stage == _ASK:
            return body.commit_by_ms + self._timing.abort_grace_ms
        announces = process.role is Channel.TRAINER and stage == trainer_round.COLLECTING
        return body.close_by_ms if announces else body.commit_by_ms

    def _announcement(self, process: Process, round_id: bytes) -> m.Announcement | None:
        accepted = self.log.accepted.get((process.id, round_id))
        return accepted.body if accepted is not None else self.log.announcements.get(round_id)

    def _follow_ask(self, process: Process, key: Key, stored: Any, now_ms: int) -> None:
        """A client asks for missing aborts after a secure sum that nobody answered, or that some nodes aborted."""
        aborted = stored.aborted_by if stored is not None else ()
        open_phases = (client_round.SENT, client_round.KEPT, client_round.MISSED)
        waits = stored is not None and stored.phase in open_phases
        body = self._announcement(process, key[1])
        if (
            not waits
            or body is None
            or not self.log.is_summed(key[1])
            or not (aborted or stored.phase == client_round.SENT)
        ):
            self._end(self._asks, process, key, now_ms)
        elif key not in self._asks:
            asks = Repeats(_ASK, frozenset({m.AbortWanted}), now_ms, self._timing.abort_grace_ms)
            asks.due_ms = max(now_ms, body.commit_by_ms) + self._timing.resend_max_ms * 3 // 2
            asks.last_ms, asks.number = 0, self._asked[key]  # a client asks after each start
            self._asks[key] = asks

    def _repeat(self, process: Process, round_id: bytes, kinds: set[type], now_ms: int) -> None:
        """A timer has repeated messages of a round."""
        for known in (self._repeats, self._asks):
            repeats = known.get((process.id, round_id))
            if repeats is None or not kinds & repeats.kinds:
                continue
            who, waited_ms, least_ms = about(process, round_id), now_ms - repeats.last_ms, 0
            least_ms = repeats.least_ms(max(0, repeats.number - (known is self._asks)))
            self.expect(
                waited_ms >= least_ms, f"{who}: {repeats.stage}, it repeats after {waited_ms} ms, {least_ms} at least"
            )
            self._check_due(repeats, process, round_id, now_ms)
            if self.world.tardiness_ms(process) == 0 and process.id not in self._cramped:
                base_ms = 2_000
                while base_ms * 2 <= waited_ms and base_ms < 32_000:
                    base_ms *= 2
                if base_ms <= waited_ms <= 1.5 * base_ms:
                    self._spread[process.role].append((waited_ms / base_ms - 1) * 2)
            repeats.number += 1
            repeats.begin(now_ms)

    def _check_due(self, repeats: Repeats, process: Process, round_id: bytes, now_ms: int) -> None:
        """No repeat is overdue, up to now or to the end of the time for repeats."""
        if process.id in self._cramped or not self.is_honest(process):
            return
        at_ms, who = min(now_ms, self._until_ms(process, round_id, repeats.stage)), about(process, round_id)
        late_ms = at_ms - repeats.due_ms - self._lateness_ms(process)
        names = ", ".join(sorted(kind.__name__ for kind in repeats.kinds))
        self.expect(late_ms <= 0, f"{who}: {repeats.stage}, and its {names} is not repeated for {late_ms} ms too long")

    def _end(self, table: dict[Key, Repeats], process: Process, key: Key, now_ms: int) -> None:
        repeats = table.pop(key, None)
        if repeats is not None:
            self._check_due(repeats, process, key[1], now_ms)

    # --- epoch keys, and the end ----------------------------------------------------------------------------------

    def _check_epoch_key(self, node: Process, effects: Sequence[Effect], now_ms: int) -> None:
        last_ms = self._keys_ms.get(node.id)
        if last_ms is not None and now_ms - last_ms > self._timing.epoch_publish_ms:
            late_ms = now_ms - last_ms - self._timing.epoch_publish_ms - self._lateness_ms(node)
            self.expect(late_ms <= 0, f"{node.name} publishes its epoch key {late_ms} ms too late")
        if any(type(one) is Send and one.to.channel is Channel.EPOCH for one in effects):
            self._keys_ms[node.id] = now_ms

    def on_kill(self, process: Process) -> None:
        """A killed actor repeats nothing until it starts again."""
        self._keys_ms.pop(process.id, None)
        for known in (self._repeats, self._asks):
            for key in [key for key in known if key[0] == process.id]:
                self._end(known, process, key, process.now_ms)

    def finish(self) -> None:
        """Check what still waits at the end, and the spread of all waits."""
        for process in self.honest():
            if process.is_up:
                for known in (self._repeats, self._asks):
                    for key in [key for key in known if key[0] == process.id]:
                        self._end(known, process, key, process.now_ms)
                if process.role is Channel.COMPUTE:
                    self._check_epoch_key(process, (), process.now_ms)
        for role, waits in self._spread.items():
            wide = max(waits) - min(waits)
            even = len(waits) >= _SPREAD_MIN and wide <= _SPREAD_PART
            self.expect(not even, f"{role.value}: {len(waits)} waits before repeats are spread over {wide:.0%}")


def _sizes(world: TrialWorld) -> Any:
    """Return a function from a message's kind, sender and channel to the most bytes that its fields take."""
    population = world.scenario.population
    nodes, clients, d = population.computes, population.clients, population.dimension
    words = {"second-moments": (d + 1) * (d + 2)}.get(population.statistic, d + 2)
    openings = 40 * clients * nodes if world.scenario.rounds.verified else 0
    words += _PROOF_WORDS * d if world.scenario.rounds.verified else 0
    announcement = 2_000 + 64 * d + 400 * nodes
    sizes: dict[type, int] = {
        m.Contribution: 160 + 8 * nodes + 8 * words,
        m.Receipt: 80,
        m.AbortWanted: announcement + 64,
        m.Cancel: announcement + _FRAME_BYTES,
        m.Announcement: announcement,
        m.Invitation: announcement + 34 * 32,
        m.InvitedRound: announcement + 16 * clients,
        m.Answer: _FRAME_BYTES + 34 * nodes + 4 * clients * nodes + openings,
        m.Abort: _FRAME_BYTES + _TEXT_BYTES + 2 * nodes * _FRAME_BYTES,
        m.Hello: 2 * _FRAME_BYTES,
        m.ChargesWanted: 3 * _FRAME_BYTES,  # with a Hello
        m.FederationFile: 1 << 20,
        m.Declines: _FRAME_BYTES + 18 * clients,
    }
    answer = _SEAL_BYTES + _TEXT_BYTES + 8 * words + 16 * clients + 34 * nodes
    listed = _SEAL_BYTES + 2 * _FRAME_BYTES + 44 * clients

    def most(kind: type, role: Channel, channel: Channel) -> int:
        if kind is m.Sealed:
            return answer if channel is Channel.TRAINER else listed
        return sizes.get(kind, _FRAME_BYTES)

    return most
