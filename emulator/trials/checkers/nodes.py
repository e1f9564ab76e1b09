"""Invariant 19: a round has the right Compute nodes, and a request waits for them as long as it should (DESIGN §4.1).

- Where the trainer calls the roll, each node of a round has itself sent the trainer something lately, since the
  trainer's start, and since a round ended for its silence. What the broker delivers again does not count.
- A request waits as long as it states. By default it waits 45 seconds for a node that has sent nothing in that sense,
  otherwise for its time to collect. It does not end for silent nodes if p + 1 others are left.
- A round has p + 1 nodes at least, or all of a request that names fewer; a round
  without a sum has none. Until the time at which a request may leave out nodes that do not answer, it has all nodes but
  those that owe a cancelled round an abort or a sum, those that flap, and those that have said that they have fewer
  than n_min clients, if p + 1 others remain. The first request after a start of the trainer waits two seconds for what
  nodes owe, and has those that have sent it.
- A repeat comes once the charge of each round that it repeats has come back, and each of these lost a node.

Which nodes owe something or flap follows from the trainer's records, by the text of §4.8.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from dca_proto.protocol.effects import Channel, Effect, Forget, Persist, Report, Send
from dca_proto.protocol.events import Command, Event, Received
from dca_proto.protocol.facts import Dropped, RoundFailed
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import Announcement, EpochKey, Sessions
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, RunLog
from emulator.trials.world import TrialWorld
from emulator.wire import Accepted, body_of, decode_accepted

_SLACK_MS = 1_000
_LEFT_OUT_MAX = 8  # requests


class _Request(NamedTuple):
    """A request: when it came, and its nodes that owed something or flapped then.

    `owing` are the nodes that certainly did, `indebted` those that may have, which depends on their latest keys. `late`
    are those of them that have owed it since an earlier run of the trainer, and that no request has waited for.
    """

    at_ms: int
    collect_ms: int
    wait_ms: int
    named: frozenset[bytes]
    owing: frozenset[bytes]
    indebted: frozenset[bytes]
    flapping: frozenset[bytes]
    late: frozenset[bytes]


class _Known(NamedTuple):
    """A round of the trainer's records."""

    stored: trainer_round.StoredTrainerRound
    accepted: Accepted

    @property
    def indebted(self) -> frozenset[bytes]:
        """The silent nodes that have sent neither an abort nor a sum."""
        return frozenset(self.stored.silent).difference(self.stored.aborted_by, dict(self.stored.partials))


class Nodes(Checker):
    """Compares the Compute nodes of each announcement with those that the request and earlier rounds allow."""

    number, name = 19, "rounds of the right nodes"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._timing = world.actors.timing
        self._sent_ms: dict[bytes, int] = {}  # when each Compute node last sent the trainer something
        self._lost_ms: dict[bytes, int] = {}  # when a round last ended for a node's silence
        self._up_ms = world.simulator.now_ms  # when the trainer started
        self._keys: defaultdict[bytes, set[bytes]] = defaultdict(set)  # that it got since then, by Compute node
        self._counts: dict[bytes, tuple[int, int]] = {}  # each node's last number of sessions, and when it came
        self._requests: dict[bytes, _Request] = {}
        self._rounds: dict[bytes, _Known] = {}
        self._old: frozenset[bytes] = frozenset()  # nodes that may have owed something when the trainer started

    def on_send(self, process: Process, send: Send) -> None:
        """Note when a Compute node sends what the trainer can take for an answer."""
        if process.role is Channel.COMPUTE and send.to.channel in (Channel.TRAINER, Channel.ABORT):
            self._sent_ms[process.id] = self.world.simulator.now_ms

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        if process is self.world.trainer and isinstance(key := body_of(payload), EpochKey):
            self._keys[sender].add(key.public)

    def on_restart(self, process: Process) -> None:
        """A trainer that starts again remembers its records, and has heard nobody."""
        if process is self.world.trainer:
            self._up_ms = self.world.simulator.now_ms
            self._keys.clear()
            self._counts.clear()
            self._requests.clear()
            self._rounds.clear()
            for (table, round_id), value in process.disk.records.items():
                if table == trainer_round.ROUNDS:
                    self._note(round_id, value)
            self._old = self._indebted

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Follow the trainer's rounds, and judge those that it announces."""
        if process is not self.world.trainer or not self.is_honest(process):
            return
        if isinstance(event, Received) and isinstance(count := body_of(event.payload), Sessions):
            is_taken = not any(isinstance(one, Report) and isinstance(one.fact, Dropped) for one in effects)
            self._counts |= {event.sender: (count.count, self.world.simulator.now_ms)} if is_taken else {}
        if isinstance(event, Command) and isinstance(event.request, OpenRound):
            self._requests[event.request.round_id] = self._request(process, event.request)
        for effect in effects:
            if type(effect) is Persist and effect.table == trainer_round.ROUNDS:
                is_new = effect.key not in self._rounds
                known = self._note(effect.key, effect.value)
                if is_new and known.accepted.body.kind.is_summed:
                    self._judge(process, known, self._requests.get(effect.key))
                elif is_new:
                    self.expect(not known.accepted.computes, f"{self._about(known.accepted.body)} has Compute nodes")
            elif type(effect) is Forget and effect.table == trainer_round.ROUNDS:
                self._rounds.pop(effect.key, None)

    def on_fact(self, process: Process, fact: object) -> None:
        """Note for which nodes' silence a round ends; judge the wait of a request that ends without a round."""
        if process is not self.world.trainer or not isinstance(fact, RoundFailed) or not self.is_honest(process):
            return
        now_ms, known = self.world.simulator.now_ms, self._rounds.get(fact.round_id)
        if known is not None:
            self._lost_ms |= dict.fromkeys(known.indebted, now_ms)
        elif fact.lost and self.world.scenario.rounds.roll_call and fact.round_id in self._requests:
            self._judge_wait(process, fact, self._requests[fact.round_id])

    def _judge_wait(self, process: Process, fact: RoundFailed, request: _Request) -> None:
        """Judge a request that ends without a round, since nodes are silent."""
        lost = {member.id for member in self.world.follows(process).computes if member.name in fact.lost}
        now_ms, wait_ms, others = self.world.simulator.now_ms, request.collect_ms, request.named - lost
        enough = len(others) > self.log.colluding.of(process)
        self.expect(not enough, f"round {fact.round_id.hex()[:8]} is given up, though {len(others)} nodes are left")
        if any(self._sent_ms.get(node, 0) <= self._silent_since_ms(node) for node in lost):
            wait_ms = min(wait_ms, self._timing.hopeless_ms)
        wait_ms = request.wait_ms or wait_ms
        taken_ms = now_ms - request.at_ms
        fits = wait_ms <= taken_ms <= wait_ms + _SLACK_MS + self.world.tardiness_ms(process)
        self.expect(fits, f"round {fact.round_id.hex()[:8]}: it has waited {taken_ms} ms for nodes, not {wait_ms}")
        self._lost_ms |= dict.fromkeys(lost, now_ms)

    def _note(self, round_id: bytes, record: bytes) -> _Known:
        stored = decoded(trainer_round.ROUNDS, record, trainer_round.StoredTrainerRound)
        before = self._rounds.get(round_id)
        accepted = before.accepted if before is not None else decode_accepted(encode(stored.announcement))
        known = self._rounds[round_id] = _Known(stored, accepted)
        return known

    def _silent_since_ms(self, node: bytes) -> int:
        """Return since when a node has to have sent something, however long ago that is."""
        return max(self._up_ms, self._lost_ms.get(node, 0))

    def _request(self, trainer: Process, request: OpenRound) -> _Request:
        """Note a request, with those of its nodes that the file names; with all of the file, if these are too few."""
        file = self.world.follows(trainer)
        in_file, asked = frozenset(member.id for member in file.computes), frozenset(request.computes)
        named = asked & in_file
        if len(named) <= self.log.colluding.of(trainer):
            named = in_file if asked <= in_file.union(file.revoked) else asked
        debts = [
            (node, known.accepted.epochs[known.accepted.computes.index(node)].public)
            for known in self._rounds.values()
            for node in known.indebted & in_file
        ]
        owing = frozenset(node for node, public in debts if self._keys[node] <= {public})
        indebted = frozenset(node for node, _ in debts)
        flapping, late = self._flapping(), self._old & owing & named - self._flapping()
        late = late if len(named - owing) >= self.log.colluding.of(trainer) + 1 else frozenset()
        self._old -= named
        times = (self.world.simulator.now_ms, request.collect_ms, request.wait_ms)
        return _Request(*times, named, owing, indebted, flapping, late)

    @property
    def _indebted(self) -> frozenset[bytes]:
        """The nodes of which some round waits for an abort or a sum."""
        return frozenset[bytes]().union(*(known.indebted for known in self._rounds.values()))

    def _flapping(self) -> frozenset[bytes]:
        """Return the nodes that were lost in each of the last rounds that they were in, and are still left out (§4.8).

        After n > 1 losses in a row, a node is left out of 2^(n - 2) requests, at most eight. Repeats do not count.
        """
        rounds = sorted(self._rounds.values(), key=lambda known: known.stored.announced_ms)
        sums = [known for known in rounds if known.accepted.body.kind.is_summed]
        flapping = set[bytes]()
        for node in {node for known in sums for node in known.stored.silent}:
            losses = missed = 0
            for known in sums:
                if node in dict(known.stored.partials):
                    losses = 0
                elif node in known.stored.silent:
                    losses, missed = losses + 1, 0
                elif node not in known.accepted.computes and not known.stored.request.repeats:
                    missed += 1
            if losses > 1 and missed < min(2 ** (losses - 2), _LEFT_OUT_MAX):
                flapping.add(node)
        return frozenset(flapping)

    def _judge(self, trainer: Process, known: _Known, request: _Request | None) -> None:
        """Judge a round that is about to be announced."""
        body, nodes, who = known.accepted.body, frozenset(known.accepted.computes), self._about(known.accepted.body)
        for ended in known.stored.request.repeats:
            earlier = self._rounds.get(ended)
            fits = earlier is None or (earlier.stored.phase == trainer_round.RETURNED and bool(earlier.stored.silent))
            self.expect(fits, f"{who} repeats round {ended.hex()[:8]}, which lost no node or keeps its charge")
        now_ms, needed = self.world.simulator.now_ms, self.log.colluding.of(trainer) + 1
        named = needed if request is None else len(request.named)
        self.expect(len(nodes) >= min(needed, named), f"{who} has {len(nodes)} nodes, of which all may be corrupt")
        if request is None or self.world.tardiness_ms(trainer):
            return
        if self.world.scenario.rounds.roll_call:
            since_ms = request.at_ms - self._timing.lately_ms - _SLACK_MS
            since = {node: max(since_ms, self._silent_since_ms(node)) for node in nodes}
            unheard = {node for node in nodes if self._sent_ms.get(node, 0) <= since[node]}
            self.expect(not unheard, f"{who} has {self._names(unheard)}, which has not answered")
        window_ms = body.close_by_ms - known.stored.announced_ms
        if now_ms - request.at_ms >= min(self._timing.leave_ms, window_ms // 2):
            return  # nodes that do not answer are left out, and others take their places
        still = self._indebted  # others have paid since
        owing, flapping = nodes & request.owing & still, nodes & request.flapping
        self.expect(not owing or len(nodes - owing) < needed, f"{who} has {self._names(owing)}, which owes something")
        fits = not flapping or len(nodes - flapping) < needed
        self.expect(fits, f"{who} has {self._names(flapping)}, which flaps")
        poor = {node for node, (count, _) in self._counts.items() if count < body.kind.n_min}
        asked = {node for node in nodes & poor if self._counts[node][1] >= request.at_ms}
        fits = not asked or len(nodes - asked) < needed
        self.expect(fits, f"{who} has {self._names(asked)}, which has fewer clients than the round needs")
        waited = now_ms - request.at_ms >= self._timing.watch_ms or not request.late & still
        self.expect(waited, f"{who} does not wait for {self._names(request.late & still)}, which may be back")
        indebted = request.indebted - (request.late - still)
        missing = request.named - nodes - indebted - request.flapping - poor
        self.expect(not missing, f"{who} leaves out {self._names(missing)}, which owes nothing and does not flap")

    def _about(self, body: Announcement) -> str:
        return f"round {body.round_id.hex()[:8]}"

    def _names(self, nodes: frozenset[bytes] | set[bytes]) -> str:
        return ", ".join(self.world.name_of(node) for node in self.world.computes if node.id in nodes)
