"""Invariant 11: a round whose faults stay within what the protocol promises completes. The promise is in DESIGN §3.

Whether a round is within it, is worked out from the scenario and from what went over the network and when: machines
that were down, links and brokers that were bad, Hellos that arrived, the first announcement, the first word of the
close. No actor is asked. It is cautious: a round that is left out may complete, too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from dca_proto.protocol.effects import Channel, Send
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.protocol.kinds import SecureSum
from dca_proto.protocol.wire.messages import Announcement, Close, Hello, Invitation, InvitedRound, Sealed
from emulator import reference
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.witness import Witness
from emulator.wire import body_of

if TYPE_CHECKING:
    from emulator.trials.world import RoundLog, TrialWorld

_NEVER = 1 << 62
_RECONNECT_MS, _AGAIN_MS, _RETRY_MS = 1_000, 4_000, 90_000
_LOSSES = 1e-6


class Completion(Checker):
    """Each round that is announced, when the trial is over."""

    number, name = 11, "completes within the promise"

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        super().__init__(world, witness)
        self._announced_ms: dict[bytes, int] = {}
        self._closing_ms: dict[bytes, int] = {}  # the first Close or list
        self._greeted: defaultdict[bytes, set[bytes]] = defaultdict(set)  # by client, the nodes that its Hello reached
        self._greeted_ms: dict[bytes, int] = {}  # when it reached the last of them
        self._down: defaultdict[bytes, list[tuple[int, int]]] = defaultdict(list)

    # --- the network's log -------------------------------------------------------------------------------------------

    def on_send(self, process: Process, send: Send) -> None:
        """Note when a round was announced, and when it began to close."""
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
        """Note whose Hello has reached all Compute nodes."""
        nodes = self._greeted[sender]
        if process.role is Channel.COMPUTE and process.id not in nodes and isinstance(body_of(payload), Hello):
            nodes.add(process.id)
            if len(nodes) == len(self.world.computes):
                self._greeted_ms[sender] = self.world.simulator.now_ms

    def on_kill(self, process: Process) -> None:
        """It is down from now on."""
        self._down[process.id].append((self.world.simulator.now_ms, _NEVER))

    def on_restart(self, process: Process) -> None:
        """It is up again."""
        if self._down[process.id]:
            begin_ms, _ = self._down[process.id].pop()
            self._down[process.id].append((begin_ms, self.world.simulator.now_ms))

    # --- the judgement -----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Each round that was promised has completed."""
        for place, log in enumerate(self.world.rounds):
            if self._is_promised(log, place + 1):
                done = isinstance(log.ended, RoundCompleted)
                self.expect(done, f"round {log.id.hex()[:8]} was within the promise, and did not complete")

    def _is_promised(self, log: RoundLog, count: int) -> bool:
        """Whether round number `count` stays within it."""
        world, announced = self.world, self.witness.announcements.get(log.id)
        begin_ms = self._announced_ms.get(log.id, _NEVER)
        if announced is None or begin_ms == _NEVER or not world.spoils() <= {"value"}:
            return False
        end_ms, epoch_ms = announced.commit_by_ms, world.scenario.epoch_ms
        if world.simulator.start_ms // epoch_ms != end_ms // epoch_ms or self._floods():
            return False
        servers = [world.trainer, *(world.computes if log.request.ask.computes else ())]
        if any(self._is_beyond(one, end_ms) for one in servers):
            return False
        invited = log.request.invited or world.actors.clients
        clients = [world.simulator.processes[one] for one in invited]
        policy, charge = world.actors.policy, (announced.mu, announced.epsilon, announced.delta)
        limits = policy.epsilon_per_period_max, policy.delta_max, policy.epsilon_for_reports
        fits = reference.is_within(reference.composed([charge] * count), *limits)
        if not fits or any(self._is_beyond(one, end_ms) for one in clients):
            return False
        return self._has_time(announced, servers, [one for one in clients if one.id not in self.witness.dishonest])

    def _has_time(self, announced: Announcement, servers: list[Process], clients: list[Process]) -> bool:
        """Whether enough clients, and all that serve the round, were there for long enough."""
        begin_ms, closing_ms = self._announced_ms[announced.round_id], self._closing_ms.get(announced.round_id, _NEVER)
        terms, limits = announced.terms, self.world.scenario.limits
        served_ms = max(self._steady_ms(one, begin_ms, min(closing_ms, announced.close_by_ms)) for one in servers)
        able = [
            one
            for one in clients
            if one.id not in self.world.actors.failing
            and self._due_ms(max(served_ms, self._steady_ms(one, begin_ms, announced.close_by_ms)), begin_ms, 2, 2)
            <= announced.close_by_ms
        ]
        if not isinstance(terms, SecureSum):
            return bool(able) and not self.world.scenario.rounds.expected
        greeted = all(self._greeted_ms.get(one.id, _NEVER) < begin_ms for one in clients)
        floors = max(limits.clients_min, limits.floor_clients_min), max(limits.honest_min, limits.floor_honest_min)
        meets = terms.fewest >= floors[0] and terms.honest >= floors[1] and terms.colluders >= limits.colluders_min
        if not (greeted and meets and len(able) >= terms.fewest):
            return False
        frozen_ms = min(closing_ms, announced.close_by_ms)
        agreed_ms = max(self._steady_ms(one, frozen_ms, announced.commit_by_ms) for one in servers)
        return self._due_ms(agreed_ms, frozen_ms, 3, 1) <= announced.commit_by_ms

    def _due_ms(self, steady_ms: int, since_ms: int, hops: int, chained: int) -> int:
        """When so many hops are made, if nothing is wrong from `steady_ms` on: after so many resends in a chain."""
        at_ms = steady_ms
        for _ in range(chained if steady_ms > since_ms else 0):
            at_ms += min(_RETRY_MS, int(1.5 * (at_ms - since_ms + _AGAIN_MS)))
        return at_ms + hops * self._hop_ms() + self._queued_ms()

    def _steady_ms(self, process: Process, begin_ms: int, end_ms: int) -> int:
        """When the last trouble of a machine, its link or the broker was over that began before `end_ms`."""
        times = [(start, end) for start, end in self._trouble(process) if start < end_ms and end > begin_ms]
        return max((end + _RECONNECT_MS for _, end in times), default=begin_ms)

    def _trouble(self, process: Process) -> list[tuple[int, int]]:
        """From when to when a machine was down, or it, its link or the broker was worse than the scenario says."""
        found = list(self._down[process.id])
        for fault in self.world.injections:
            kind, begin_ms = fault.fault.kind, fault.began_ms
            concerns = process in fault.targets or fault.fault.actor == "broker" or kind == "overflow"
            if begin_ms is None or not concerns or fault.kind.promise in ("seen", "harmless"):
                continue
            end_ms = _NEVER if fault.ended_ms is None else fault.ended_ms
            left_ms = {"slow": 20, "clogged": 2}.get(kind, 0) * int(fault.fault.amount) + 10_000 * (kind == "lossy")
            found.append((begin_ms, end_ms + left_ms))
        return found

    def _is_beyond(self, process: Process, end_ms: int) -> bool:
        """Whether something has happened to it, before the round's end, about which nothing is promised."""
        struck = [one for one in self.world.injections if process in one.targets and one.began_ms is not None]
        return any(one.kind.promise == "beyond" and one.began_ms < end_ms for one in struck if one.began_ms)

    def _floods(self) -> bool:
        """Whether a queue at the broker may overflow in a round that goes well."""
        return self._messages() > self.world.scenario.broker.queue_messages_max

    def _messages(self) -> int:
        """How many packets one machine may get in a round, and what is left of others."""
        parts = 1 if self.world.scenario.broker.part_bytes_max >= 1 << 14 else 4
        return parts * (len(self.world.actors.clients) + 50)

    def _hop_ms(self) -> int:
        """What a message takes at most from one machine to the other, over two links."""
        link = self.world.scenario.network
        losses = math.ceil(math.log(_LOSSES) / math.log(link.loss)) if link.loss else 0
        return int(2 * (link.delay_ms + link.jitter_ms + link.reorder_ms + losses * link.retry_ms))

    def _queued_ms(self) -> int:
        """How long the last of many messages waits for those before it."""
        link, window = self.world.scenario.network, self.world.scenario.broker.inflight_max
        trip_ms = 2 * link.delay_ms + link.jitter_ms + link.loss * link.retry_ms
        narrow_ms = 1e8 / link.bandwidth_bytes_s if link.bandwidth_bytes_s else 0
        return int(self._messages() / window * trip_ms + narrow_ms)
