"""One simulation in several processes: each runs some of the actors, and all are always at the same virtual instant.

A step is everything that was due at that instant when the step began; what it causes belongs to the next one. Between
two steps the processes swap packets for each other's actors, and how far they could go: the clock moves when nobody has
anything left to do now, and then for all to the next thing that anybody has to do. That is conservative simulation with
no lookahead. It pays where much falls on one instant, as over ideal links. There a round takes about ten steps, and
each broadcast one for every 2,048 sessions of a process: 25 for 100,000 clients in two processes.

The order in which packets of others come is that of the processes' numbers, and within one the order in which they left
it. So the same seed in as many processes gives the same run, and the same facts of each actor. Another number of
processes gives other orders of arrival, as a network does, and for actors with streams of their own the same values.

A packet to one actor travels once, to its process; a broadcast once to each process. Links, sessions and limits are
modelled where the actor is; of the broker there is one everywhere, and stopping it is not for a simulation like this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dca_proto.testing import TestFederation
from emulator.sim.broker import Broker, BrokerOptions
from emulator.sim.lane import Packet
from emulator.sim.simulator import US, Simulator
from emulator.sim.team import Team

_NEVER_US = 1 << 62


class _Said(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What one process sends to another between two steps.

    Attributes:
        next_us: when it has something to do, or has given another something to do. is_over: it wants to go no further.
        packets: for actors of the other.
    """

    next_us: int
    is_over: bool
    packets: list[Packet]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Said).decode


class PartitionLink(Broker):
    """The broker as one process sees it: it knows where the actors of others are.

    Args:
        number: of this process, out of `count`. homes: actor id -> number of its process, for all actors.

    Attributes:
        leaving: for each process, the packets that are to go there.
    """

    def __init__(
        self, simulator: Simulator, options: BrokerOptions, number: int, count: int, homes: Mapping[bytes, int]
    ) -> None:
        super().__init__(simulator, options)
        self._number = number
        self._others = [other for other in range(count) if other != number]
        self._homes = homes
        self.leaving: list[list[Packet]] = [[] for _ in range(count)]

    def land(self, packet: Packet) -> None:
        """A packet comes from another process."""
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
    """The actors of one process, in step with those of the others, who all make the same calls to `run`.

    Args:
        seed, and any options of `Simulator`. team: this process's place.
        homes: actor id -> number of the process that runs it, for all actors.
    """

    broker: PartitionLink

    def __init__(self, seed: int | str, team: Team, homes: Mapping[bytes, int], **options: Any) -> None:
        super().__init__(seed, **options)
        self.broker = PartitionLink(self, self.broker.options, team.number, team.count, homes)
        self._team = team
        self._homes = homes

    def has(self, actor_id: bytes) -> bool:
        """Whether an actor runs in this process."""
        return self._homes[actor_id] == self._team.number

    def run_while(self, condition: Callable[[], bool], until_ms: int) -> bool:
        """Let virtual time pass while `condition` holds in all processes; whether it ended before `until_ms`.

        It is looked at between two steps.
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
        """Swap packets; when the next thing happens anywhere, and whether anybody wants to go no further."""
        leaving, next_us = self.broker.leaving, self._next_us()
        said = self._team.swap([_encode(_Said(next_us, is_over, packets)) for packets in leaving])
        for packets in leaving:
            packets.clear()
        everybody = [_decode(one) for one in said]
        for one in everybody:
            for packet in one.packets:
                self.broker.land(packet)
        return min(one.next_us for one in everybody), any(one.is_over for one in everybody)

    def _next_us(self) -> int:
        if self._soon or any(self.broker.leaving):
            return self.now_us
        return self._heap[0] if self._heap else _NEVER_US

    def _step(self) -> None:
        """All that is due now, and nothing of what that causes."""
        heap, soon, asked = self._heap, self._soon, len(self._soon)
        while heap and heap[0] <= self.now_us:
            call, arguments = self._next_planned()
            call(*arguments)
        for _ in range(asked):
            call, arguments = soon.popleft()
            call(*arguments)


def assign(actors: TestFederation, count: int) -> dict[bytes, int]:
    """Actor id -> number of its process: clients and Compute nodes evenly, the trainer in 0, which is dealt to last."""
    homes = {actor: place % count for ids in (actors.clients, actors.computes) for place, actor in enumerate(ids, 1)}
    return {**homes, actors.trainer_identity.id: 0}
