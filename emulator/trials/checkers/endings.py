"""Invariants 7 and 11: every round ends, neither too early nor too late; a round within the promise completes.

A round ends with a result, or with an abort that names its reason. After its end a Compute node keeps no contributions
or lists of it; after its grace, no sum; after its retention, nothing but charges. No secret of an epoch outlives the
epoch's grace (DESIGN §2.2, §4.7, §4.8, §8).

emulator/DESIGN.md §3 states the promise of completion. The checker decides from the scenario and the network whether a
round is within it: machines that were down, bad links and brokers, Hellos that arrived, the first announcement, the
first Close or list. It uses no actor's state. It is cautious: rounds outside the promise may complete as well.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol.client.round import DECLINES as DECLINED
from dca_proto.protocol.compute import round as node_round
from dca_proto.protocol.effects import Channel, Forget, Send, Write
from dca_proto.protocol.facts import Declined, NodeAborted, RoundCompleted, RoundFailed
from dca_proto.protocol.keyring import TABLE as EPOCHS
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.wire.kinds import SecureSum
from dca_proto.protocol.wire.messages import (
    Abort,
    Announcement,
    Cancel,
    Close,
    Hello,
    Invitation,
    InvitedRound,
    Progress,
    Sealed,
)
from emulator import reference
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, Key, RunLog, about
from emulator.trials.world import TrialRound, TrialWorld
from emulator.wire import Accepted, body_of, counts_of, slack_of

_SLACK_MS, _GRACE_MS = 1_000, 4_000
_NEVER = 1 << 62
_RECONNECT_MS, _AGAIN_MS, _RETRY_MS = 1_000, 4_000, 90_000
_LOSSES = 1e-6


class Endings(Checker):
    """Each requested round ends in time, at the trainer and at each honest node that has stored it."""

    number, name = 7, "every round ends"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._ended_ms: dict[bytes, int] = {}  # by the trainer's own clock
        self._up_ms: dict[bytes, int] = {}  # last start of each process, by its own clock
        self._crashed: set[bytes] = set()
        self._heard_ms: dict[Key, int] = {}  # when a node stored an announcement, by the node's clock
        self._collected: set[Key] = set()
        self._aborted: set[bytes] = set()  # rounds of which the trainer has received an abort
        self._summed: set[bytes] = set()  # rounds of which the trainer has stored a partial sum
        self._answered: set[Key] = set()
        self._cancelled: set[bytes] = set()
        self._silent: set[bytes] = set()  # rounds that a node aborted because a peer was silent
        self._progress: dict[Key, tuple[int, Progress]] = {}  # at the trainer, by node and round: when, and the last

    def on_crash(self, process: Process, error: Exception) -> None:
        """Note processes that broke invariant 6."""
        self._crashed.add(process.id)

    def on_restart(self, process: Process) -> None:
        """Note the start: no process ends a round while it is down."""
        self._up_ms[process.id] = process.now_ms

    def on_trainer_round(self, trainer: Process, round_id: bytes, stored: trainer_round.StoredTrainerRound) -> None:
        """A durable failure ends the round, even if a kill keeps the trainer from reporting it."""
        self._summed |= {round_id} if stored.partials else set()
        if stored.phase in (trainer_round.FAILED, trainer_round.RETURNED):
            known, announced = round_id in self._ended_ms, self.log.announcements[round_id]
            self._end(trainer, round_id, stored.reason)
            early_ms = announced.commit_by_ms - trainer.now_ms - _SLACK_MS - self.world.tardiness_ms(trainer)
            refused, liars = stored.implausible, bool(self.log.dishonest) or not self.all_nodes_are_honest
            self.expect(liars or not refused, f"round {round_id.hex()[:8]} is refused, though nobody lied")
            if not known and self.all_nodes_are_honest and self.is_honest(trainer) and announced.kind.is_summed:
                gave_up = early_ms > 0 and round_id not in self._aborted | self._cancelled and not refused
                self.expect(not gave_up, f"round {round_id.hex()[:8]} fails before its end, though nobody aborted it")

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        """Note what the trainer gets: aborts from any sender, and the nodes' reports."""
        if process is not self.world.trainer:
            return
        body = body_of(payload)
        if isinstance(body, Abort):
            self._aborted.add(body.round_id)
            self._silent |= {body.round_id} if body.reason == "peer-silent" else set()
        elif isinstance(body, Progress):
            self._progress[sender, body.round_id] = process.now_ms, body

    def on_send(self, process: Process, send: Send) -> None:
        """A trainer cancels a round early only if it cannot end with all of its Compute nodes (DESIGN §4.8)."""
        if process.role is not Channel.TRAINER or send.round_id in self._cancelled:
            return
        if isinstance(body_of(send.payload), Cancel):
            self._cancelled.add(send.round_id)
            accepted = self.log.announced(send.round_id)
            if accepted is not None and self.is_honest(process) and not self.world.tardiness_ms(process):
                self._check_cause(process, accepted)

    def _check_cause(self, trainer: Process, accepted: Accepted) -> None:
        """Before `commit_by`: a node is silent while p + 1 others are not, or p + 1 nodes report that they wait.

        Or so many are silent that no repeat is possible, in a federation that can repeat rounds at all or for the time
        that the request states.
        """
        round_id = accepted.body.round_id
        needed = self.log.colluding.needed(trainer, round_id)
        if trainer.now_ms >= accepted.body.commit_by_ms:
            return
        last = [self._progress.get((node, round_id)) for node in accepted.computes]
        since_ms = trainer.now_ms - self.world.actors.timing.silent_ms + _SLACK_MS
        others = [one for one in last if one is not None and one[0] > since_ms]
        waiting = [one for one in last if one is not None and one[1].waits_for]
        request = self.log.requests[round_id]
        stated_ms, begun_ms = request.wait_ms, accepted.body.close_by_ms - request.collect_ms
        since_ms = trainer.now_ms - (stated_ms or self.world.actors.timing.hopeless_ms) + _SLACK_MS
        has_spare = bool(stated_ms) or len(self.world.follows(trainer).computes) > needed
        gone = [one for one in last if has_spare and (begun_ms if one is None else one[0]) <= since_ms]
        is_silent = (needed <= len(others) < len(last) or bool(gone)) and round_id not in self._summed
        cause = is_silent or len(waiting) >= needed
        self.expect(cause, f"round {round_id.hex()[:8]} is cancelled, though it waits for no lost node")

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """No secret of an epoch is deleted before the grace is over, unless it is of a far future one."""
        for write in writes:
            if type(write) is Forget and write.table == EPOCHS and self.is_honest(process):
                timing, epoch = self.world.actors.timing, int.from_bytes(write.key, "big")
                early_ms = (epoch + 1) * timing.epoch_ms + timing.epoch_grace_ms - process.now_ms
                due = early_ms <= 0 or epoch > process.now_ms // timing.epoch_ms + 1
                self.expect(due, f"{process.name} deletes the secret of epoch {epoch} {early_ms} ms too early")

    def on_begun(self, node: Process, accepted: Accepted) -> None:
        self._heard_ms[node.id, accepted.body.round_id] = node.now_ms

    def on_round(self, node: Process, stored: node_round.StoredComputeRound) -> None:
        """A node that runs collects until `close_by`, and no longer."""
        key = node.id, stored.round_id
        self._answered |= {key} if stored.phase == node_round.ANSWERED else set()
        if stored.phase == node_round.COLLECTING or key not in self._heard_ms or key in self._collected:
            return
        self._collected.add(key)
        due_ms = max(self.log.accepted[key].body.close_by_ms, self._heard_ms[key], self._up_ms.get(node.id, 0))
        late_ms = node.now_ms - due_ms - _SLACK_MS - self.world.tardiness_ms(node)
        self.expect(late_ms <= 0, f"{node.name} has collected for round {key[1].hex()[:8]} {late_ms} ms too long")

    def on_fact(self, process: Process, fact: object) -> None:
        """Note ends. Aborts, failures and declines give a reason, and no node gives up before `commit_by`."""
        if not self.is_honest(process) and process is not self.world.trainer:
            return
        match fact:
            case RoundCompleted():
                self._ended_ms.setdefault(fact.round_id, process.now_ms)
            case RoundFailed():
                self._end(process, fact.round_id, fact.reason)
                lost = fact.round_id in self._cancelled | self._silent
                self.expect(
                    lost or not fact.repeatable, f"round {fact.round_id.hex()[:8]} is to be repeated, but lost no node"
                )
            case NodeAborted():
                self.expect(bool(fact.reason and fact.detail), f"{process.name} aborts without a reason")
                accepted = self.log.accepted.get((process.id, fact.round_id))
                own = fact.reason == "peer-silent" and fact.detail.startswith("no ")  # not reported by a peer
                if own and accepted is not None:
                    over_ms = accepted.body.commit_by_ms
                    waited = process.now_ms + _SLACK_MS + self.world.tardiness_ms(process) >= over_ms
                    self.expect(waited, f"{about(process, fact.round_id)}: it gives up before commit_by")
            case Declined():
                self.expect(bool(fact.reason and fact.expected), f"{process.name} declines without a reason")

    def _end(self, trainer: Process, round_id: bytes, reason: str) -> None:
        self._ended_ms.setdefault(round_id, trainer.now_ms)
        self.expect(bool(reason.strip()), f"round {round_id.hex()[:8]} fails without a reason")

    def finish(self) -> None:
        """Check all rounds and disks, at the end of the trial."""
        refused = {log.id for log in self.world.rounds if log.refused}
        for request in self.world.requests:
            if request.round_id not in refused:
                self._check_trainer(request.round_id)
        for node in self.world.computes:
            if self.is_honest(node):
                self._check_node(node)
        for process in self.honest():
            if process.is_up:
                self._check_forgotten(process)

    def _check_trainer(self, round_id: bytes) -> None:
        name, trainer = round_id.hex()[:8], self.world.trainer
        ended_ms, announced = self._ended_ms.get(round_id), self.log.announcements.get(round_id)
        if ended_ms is None or announced is None:  # a round that failed before its announcement gave a reason
            pending = "; ".join(self.world.simulator.pending()[:4] or ["nothing is left to happen"])
            self.expect(ended_ms is not None, f"round {name} has not ended at the trainer ({pending})")
            return
        settle_ms = 2 * self.world.actors.timing.settle_ms + _SLACK_MS + self.world.tardiness_ms(trainer)
        window_ms = self.log.requests[round_id].commit_ms if self.log.is_summed(round_id) else 0
        if round_id in self._summed:  # the other nodes may still release
            window_ms = max(window_ms, self.world.actors.timing.abort_grace_ms)
        due_ms = max(announced.commit_by_ms + window_ms, self._up_ms.get(trainer.id, 0)) + settle_ms
        self.expect(ended_ms <= due_ms, f"round {name} ended {ended_ms - due_ms} ms after its announced end")

    def _check_node(self, node: Process) -> None:
        """After healing every node runs (invariant 6 reports crashes), and has ended its rounds."""
        self.expect(node.is_up or node.id in self._crashed, f"{node.name} is down after healing")
        for (compute, round_id), accepted in self.log.accepted.items() if node.is_up else ():
            late_ms = self.world.actors.timing.late_ms if (compute, round_id) in self._answered else 0
            over_ms = max(accepted.body.commit_by_ms + late_ms, self._up_ms.get(node.id, 0)) + _SLACK_MS
            if compute == node.id and node.now_ms > over_ms + self.world.tardiness_ms(node):
                phase = self.log.ends.get((compute, round_id), "open")
                self.expect(phase in node_round.ENDS, f"{node.name} has not ended round {round_id.hex()[:8]}")

    def _check_forgotten(self, process: Process) -> None:
        """Records have left the disk once their time is over."""
        timing, records = self.world.actors.timing, process.disk.records
        slack_ms = _SLACK_MS + self.world.tardiness_ms(process)
        kept_ms = {
            Channel.CLIENT: timing.abort_grace_ms + timing.kept_ms,
            Channel.COMPUTE: max(timing.retention_ms, 2 * timing.epoch_ms + timing.epoch_grace_ms),
            Channel.TRAINER: timing.retention_ms,
        }[process.role]
        for round_id, announced in self.log.announcements.items():
            left = {table for table, key in records if key[:ID_BYTES] == round_id} - {LEDGER, DECLINED}
            who, ago_ms = about(process, round_id), process.now_ms - slack_ms - announced.commit_by_ms
            over = process.now_ms - slack_ms > max(announced.commit_by_ms + kept_ms, self._up_ms.get(process.id, 0))
            self.expect(not (over and left), f"{who}: it keeps {', '.join(sorted(left))}, though its time is over")
            if process.role is Channel.COMPUTE and (node_round.ROUNDS, round_id) in records:
                stored = decoded(node_round.ROUNDS, records[node_round.ROUNDS, round_id], node_round.StoredComputeRound)
                secret = (
                    stored.phase == node_round.RELEASED
                    and stored.final_message
                    and ago_ms > timing.abort_grace_ms + _GRACE_MS
                )
                self.expect(not secret, f"{who}: it keeps its sum after the grace")
                ended = stored.phase in node_round.ENDS
                work = left.intersection((node_round.CONTRIBUTIONS, node_round.LISTS, node_round.ANNOUNCEMENTS))
                self.expect(not (ended and work), f"{who}: it has ended, but keeps {', '.join(sorted(work))}")
        late_ms = slack_ms + (timing.hello_spread_ms if process.role is Channel.CLIENT else 0)
        epochs = [int.from_bytes(key, "big") for table, key in records if table == EPOCHS]
        past_ms = process.now_ms - timing.epoch_grace_ms - late_ms
        over_epochs = [epoch for epoch in epochs if (epoch + 1) * timing.epoch_ms < past_ms]
        self.expect(not over_epochs, f"{process.name} keeps the secrets of epochs {over_epochs}, which are over")


class Completion(Checker):
    """Each announced round within the promise has completed at the end of the trial."""

    number, name = 11, "completes within the promise"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._announced_ms: dict[bytes, int] = {}
        self._closing_ms: dict[bytes, int] = {}  # the first Close or list
        self._greeted: defaultdict[bytes, set[bytes]] = defaultdict(set)  # client -> nodes that its Hello has reached
        self._greeted_ms: dict[bytes, int] = {}  # client -> when its Hello reached the last node
        self._down: defaultdict[bytes, list[tuple[int, int]]] = defaultdict(list)

    def on_send(self, process: Process, send: Send) -> None:
        """Note when a round was first announced, and when it began to close."""
        now_ms, channel = self.world.simulator.now_ms, send.to.channel
        if process.role is Channel.TRAINER and send.round_id not in self._closing_ms:
            body = body_of(send.payload)
            if isinstance(body, Announcement | Invitation | InvitedRound):
                self._announced_ms.setdefault(send.round_id, now_ms)
            elif isinstance(body, Close):
                self._closing_ms[send.round_id] = now_ms
        elif process.role is channel is Channel.COMPUTE and isinstance(body_of(send.payload), Sealed):
            self._closing_ms.setdefault(send.round_id, now_ms)

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        """Note the clients whose Hello has reached all Compute nodes."""
        nodes = self._greeted[sender]
        if process.role is Channel.COMPUTE and process.id not in nodes and isinstance(body_of(payload), Hello):
            nodes.add(process.id)
            if len(nodes) == len(self.world.computes):
                self._greeted_ms[sender] = self.world.simulator.now_ms

    def on_kill(self, process: Process) -> None:
        """Note the beginning of its downtime."""
        self._down[process.id].append((self.world.simulator.now_ms, _NEVER))

    def on_restart(self, process: Process) -> None:
        """Note the end of its downtime."""
        if self._down[process.id]:
            begin_ms, _ = self._down[process.id].pop()
            self._down[process.id].append((begin_ms, self.world.simulator.now_ms))

    def finish(self) -> None:
        """Each round within the promise has completed."""
        for place, log in enumerate(self.world.rounds):
            if self._is_promised(log, place + 1):
                last = log.last  # a repeat may come into trouble of its own
                done = isinstance(last.ended, RoundCompleted)
                if last is log or done or self._is_promised(last, place + 1):
                    self.expect(done, f"round {log.id.hex()[:8]} was within the promise, but did not complete")
                if done and last is log and self.log.is_summed(log.id):
                    self._check_steps(log)

    def _check_steps(self, log: TrialRound) -> None:
        """Without trouble after the close, the result comes within four hops: close, lists, answers, partial sums."""
        frozen_ms = min(self._closing_ms.get(log.id, _NEVER), self.log.announcements[log.id].close_by_ms)
        servers, ended_ms = (self.world.trainer, *self.world.computes), log.ended_ms or 0
        if all(self._steady_ms(server, frozen_ms, ended_ms) == frozen_ms for server in servers):
            late_ms = ended_ms - self._due_ms(frozen_ms, frozen_ms, 4, 0) - _SLACK_MS
            self.expect(late_ms <= 0, f"round {log.id.hex()[:8]} completes {late_ms} ms later than its steps take")

    def _is_promised(self, log: TrialRound, count: int) -> bool:
        """Return True if round number `count`, from 1, is within the promise."""
        world, announced = self.world, self.log.announcements.get(log.id)
        begin_ms = self._announced_ms.get(log.id, _NEVER)
        if announced is None or begin_ms == _NEVER or not world.spoils() <= {"value"}:
            return False
        changes = [one.began_ms for one in world.injections if one.kind.at_all and one.began_ms is not None]
        if self._lacks_a_trusted_node(log) or any(began_ms < announced.commit_by_ms for began_ms in changes):
            return False
        end_ms, epoch_ms = announced.commit_by_ms, world.scenario.epoch_ms
        overflows = self._messages() > world.scenario.broker.queue_messages_max
        if overflows or world.simulator.start_ms // epoch_ms != end_ms // epoch_ms:
            return False
        servers = [world.trainer, *(world.computes if log.request.computes else ())]
        if any(self._is_beyond(server, end_ms) for server in servers):
            return False
        invited = log.request.invited or world.actors.clients
        clients = [world.simulator.processes[client] for client in invited]
        policy, charge = world.actors.policy, (announced.mu, announced.epsilon, announced.delta, slack_of(announced))
        limits = policy.epsilon_per_period_max, policy.delta_max, policy.epsilon_for_reports
        fits = reference.is_within(reference.composed([charge] * count), *limits)
        if not fits or any(self._is_beyond(client, end_ms) for client in clients):
            return False
        return self._has_time(announced, servers, [client for client in clients if client.id not in self.log.dishonest])

    def _lacks_a_trusted_node(self, log: TrialRound) -> bool:
        """Return True if policies trust a node that no round has, or that was lost and is left out of this one."""
        scenario, accepted = self.world.scenario, self.log.announced(log.id)
        if not scenario.has_trusted_nodes or accepted is None or not scenario.rounds.is_summed:
            return not scenario.has_trusted_nodes
        trusted = self.world.actors.computes[: scenario.limits.trusted]
        return any(node not in accepted.computes and self._down[node] for node in trusted)

    def _has_time(self, announced: Announcement, servers: list[Process], clients: list[Process]) -> bool:
        """Return True if enough clients, the trainer and the round's nodes were up for long enough."""
        begin_ms, closing_ms = self._announced_ms[announced.round_id], self._closing_ms.get(announced.round_id, _NEVER)
        kind, limits, frozen_ms = announced.kind, self.world.scenario.limits, min(closing_ms, announced.close_by_ms)
        served_ms = max(self._steady_ms(server, begin_ms, frozen_ms) for server in servers)
        able = [
            client
            for client in clients
            if client.id not in self.world.actors.failing
            and self._due_ms(max(served_ms, self._steady_ms(client, begin_ms, announced.close_by_ms)), begin_ms, 2, 2)
            <= announced.close_by_ms
        ]
        if not isinstance(kind, SecureSum):
            return bool(able) and not self.world.scenario.rounds.clients
        greeted = all(self._greeted_ms.get(client.id, _NEVER) < begin_ms for client in clients)
        n_min = counts_of(kind).n_min
        allowed = limits.allow(n_min, kind.colluders)
        if not (greeted and allowed and len(able) >= n_min):
            return False
        agreed_ms = max(self._steady_ms(server, frozen_ms, announced.commit_by_ms) for server in servers)
        return self._due_ms(agreed_ms, frozen_ms, 3, 1) <= announced.commit_by_ms

    def _due_ms(self, steady_ms: int, since_ms: int, hops: int, chained: int) -> int:
        """Return when messages have passed `hops` hops, if nothing is wrong from `steady_ms` on.

        chained: number of resends in a chain that may come first, if there was trouble after `since_ms`.
        """
        at_ms = steady_ms
        for _ in range(chained if steady_ms > since_ms else 0):
            at_ms += min(_RETRY_MS, int(1.5 * (at_ms - since_ms + _AGAIN_MS)))
        link, window = self.world.scenario.network, self.world.scenario.broker.inflight_max
        losses = math.ceil(math.log(_LOSSES) / math.log(link.loss)) if link.loss else 0
        hop_ms = int(2 * (link.delay_ms + link.jitter_ms + link.reorder_ms + losses * link.retry_ms))  # upper bound
        trip_ms = 2 * link.delay_ms + link.jitter_ms + link.loss * link.retry_ms
        narrow_ms = 1e8 / link.bandwidth_bytes_s if link.bandwidth_bytes_s else 0
        queued_ms = int(self._messages() / window * trip_ms + narrow_ms)  # the last message waits for the others
        return at_ms + hops * hop_ms + queued_ms

    def _steady_ms(self, process: Process, begin_ms: int, end_ms: int) -> int:
        """Return the end of the last trouble that began before `end_ms`, or `begin_ms`.

        Trouble: the machine was down, or it, its link or the broker was worse than the scenario says.
        """
        trouble = list(self._down[process.id])
        for injection in self.world.injections:
            fault, kind = injection.fault, injection.kind
            concerns = process in injection.targets or fault.actor == "broker" or fault.kind == "overflow"
            if injection.began_ms is not None and concerns and kind.promise not in ("seen", "harmless"):
                times, more_ms = kind.outlasts
                ended_ms = _NEVER if injection.ended_ms is None else injection.ended_ms
                trouble.append((injection.began_ms, ended_ms + times * int(fault.amount) + more_ms))
        ends = [end + _RECONNECT_MS for start, end in trouble if start < end_ms and end > begin_ms]
        return max(ends, default=begin_ms)

    def _is_beyond(self, process: Process, end_ms: int) -> bool:
        """Return True if a fault outside the promise struck the process before the round's end."""
        began = [
            injection.began_ms
            for injection in self.world.injections
            if process in injection.targets and injection.kind.promise == "beyond"
        ]
        return any(began_ms is not None and began_ms < end_ms for began_ms in began)

    def _messages(self) -> int:
        """Return an upper bound on the packets that one machine gets in a round, including leftovers of others."""
        parts = 1 if self.world.scenario.broker.part_bytes_max >= 1 << 14 else 4
        return parts * (len(self.world.actors.clients) + 50)
