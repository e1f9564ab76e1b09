"""One simulation in several processes. Each runs some of the actors; all are always at the same virtual instant.

A step runs all calls that were due at that instant when the step began; calls that they schedule run in later steps.
Between two steps the processes swap packets for each other's actors, and the times of their next calls. When no process
has a call left at this instant, all clocks move to the earliest next call. This is conservative simulation without
lookahead. It pays if many calls fall on one instant, as over ideal links. There a round takes about ten steps, and each
broadcast one step for every 2,048 sessions of a process: 25 for 100,000 clients in two processes.

Packets from other processes arrive in the order of the processes' numbers, then in the order of sending. So the same
seed in the same number of processes gives the same run, and the same facts of each actor. Another number of processes
changes orders of arrival, as a network does, but not the values of actors with random streams of their own.

A packet to one actor travels once, to its process; a broadcast travels once to each process. Links, sessions and limits
are modelled in the actor's process. Every process has its own part of the broker, so the broker cannot be stopped here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dca_proto.testing import TestFederation
from emulator.sim.broker import BrokerLimits, SimBroker
from emulator.sim.lane import Packet
from emulator.sim.simulator import US, Simulator
from emulator.sim.team import Team

_NEVER_US = 1 << 62


class _Status(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The message of one process to another between two steps.

    Attributes:
        next_us: time of its next call, or of a packet that it sends. is_over: its run has met its condition.
        packets: for actors of the receiver.
    """

    next_us: int
    is_over: bool
    packets: list[Packet]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Status).decode


class PartitionLink(SimBroker):
    """The broker in one process. It forwards packets for actors of other processes.

    Args:
        number: of this process, out of `count`. homes: actor id -> number of its process, for all actors.

    Attributes:
        leaving: for each process, the packets to send there.
    """

    def __init__(
        self, simulator: Simulator, options: BrokerLimits, number: int, count: int, homes: Mapping[bytes, int]
    ) -> None:
        super().__init__(simulator, options)
        self._number = number
        self._others = [other for other in range(count) if other != number]
        self._homes = homes
        self.leaving: list[list[Packet]] = [[] for _ in range(count)]

    def land(self, packet: Packet) -> None:
        """Route a packet from another process."""
        super()._route(packet)

    def _route(self, packet: Packet) -> None:
        if packet.to.channel.is_broadcast:
            for other in self._others:
                self.leaving[other].append(packet)
        else:
            home = self._homes.get(packet.to.id, self._number)
            if home != self._number:
                self.leaving[home].append(packet)
                return
        super()._route(packet)


class Region(Simulator):
    """The simulator of one process, in step with the others. All processes must make the same calls to `run`.

    Args:
        seed, and any options of `Simulator`. team: this process's place in the team.
        homes: actor id -> number of the process that runs it, for all actors.
    """

    broker: PartitionLink

    def __init__(self, seed: int | str, team: Team, homes: Mapping[bytes, int], **options: Any) -> None:
        super().__init__(seed, **options)
        self.broker = PartitionLink(self, self.broker.options, team.number, team.count, homes)
        self._team = team
        self._homes = homes

    def has(self, actor_id: bytes) -> bool:
        """Return True if an actor runs in this process."""
        return self._homes[actor_id] == self._team.number

    def run_while(self, condition: Callable[[], bool], until_ms: int) -> bool:
        """Let virtual time pass while `condition` holds in all processes, as tested between steps.

        Return True if the condition ended the run before `until_ms`.
        """
        until_us = until_ms * US
        while True:
            next_us, is_over = self._meet(is_over=not condition())
            if is_over:
                return True
            if next_us > until_us:
                self.now_us = max(self.now_us, until_us)
                return False
            self.now_us = max(self.now_us, next_us)
            self._step()

    def _meet(self, *, is_over: bool) -> tuple[int, bool]:
        """Swap packets. Return the time of the next call anywhere, and whether any process's run is over."""
        leaving = self.broker.leaving
        next_us = self._heap[0] if self._heap else _NEVER_US
        if self._soon or any(leaving):
            next_us = self.now_us
        replies = self._team.swap([_encode(_Status(next_us, is_over, packets)) for packets in leaving])
        for packets in leaving:
            packets.clear()
        statuses = [_decode(reply) for reply in replies]
        for status in statuses:
            for packet in status.packets:
                self.broker.land(packet)
        return min(status.next_us for status in statuses), any(status.is_over for status in statuses)

    def _step(self) -> None:
        """Run all calls that are due now, without those that they schedule."""
        heap, soon, due = self._heap, self._soon, len(self._soon)
        while heap and heap[0] <= self.now_us:
            call, arguments = self._next_planned()
            call(*arguments)
        for _ in range(due):
            call, arguments = soon.popleft()
            call(*arguments)


def assign(actors: TestFederation, count: int) -> dict[bytes, int]:
    """Return the process number of each actor: clients and Compute nodes in turn from 1 on, the trainer in 0."""
    homes = {actor: place % count for ids in (actors.clients, actors.computes) for place, actor in enumerate(ids, 1)}
    return {**homes, actors.trainer_identity.id: 0}
