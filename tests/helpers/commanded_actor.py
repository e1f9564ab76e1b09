"""Actors that carry out a test's commands, for tests of the layers between actors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dca_proto.protocol.effects import Address, Channel, Effect, Send
from dca_proto.protocol.events import Command, Event, Received, Started, TimerFired
from emulator.sim.broker import BrokerLimits
from emulator.sim.link import LinkOptions
from emulator.sim.process import Process, ProcessOptions
from emulator.sim.simulator import Simulator

PLAIN = LinkOptions(delay_ms=10, jitter_ms=0, duplicate=0, reorder=0)
"""10 ms each way, once, in order."""
ROUND = b"r" * 16


class CommandedActor:
    """Carries out commanded effects, records all events, and persists nothing of its own."""

    def __init__(self, actor_id: bytes, heard: list[tuple[int, Event]], records: list[Any]) -> None:
        self.id = actor_id
        self.heard = heard
        self.records = records

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        if isinstance(event, Command):
            return list(event.request)  # type: ignore[call-overload]
        self.heard.append((now_ms, event))
        return []


class CommandedWorld:
    """Commanded Compute nodes on one simulator. `heard[i]`: (clock, event) of node i, over all its starts."""

    def __init__(
        self, count: int, *, link: LinkOptions = PLAIN, broker: BrokerLimits | None = None, seed: int = 1
    ) -> None:
        self.simulator = Simulator(seed, link=link, broker=broker)
        self.broker = self.simulator.broker
        self.heard: list[list[tuple[int, Event]]] = [[] for _ in range(count)]
        self.machines = [self.add(index) for index in range(count)]
        self.start_ms = self.simulator.now_ms

    def add(self, index: int, options: ProcessOptions | None = None, link: LinkOptions | None = None) -> Process:
        def build(records: Iterable[Any]) -> Any:
            return CommandedActor(self.id(index), self.heard[index], list(records))

        return self.simulator.add(Channel.COMPUTE, build, options, link)

    @staticmethod
    def id(index: int) -> bytes:
        return bytes([index + 1]) * 16

    def do(self, process: Process | int, *effects: Effect) -> None:
        one = self.machines[process] if isinstance(process, int) else process
        one.deliver(Command(effects))

    def send(self, sender: int, receiver: int, *payloads: bytes) -> None:
        self.do(sender, *(Send(Address(Channel.COMPUTE, self.id(receiver)), ROUND, one) for one in payloads))

    def run(self, ms: int) -> None:
        self.simulator.run(self.simulator.now_ms + ms)

    def messages(self, index: int) -> list[bytes]:
        return [event.payload for _, event in self.heard[index] if isinstance(event, Received)]

    def times(self, index: int) -> list[int]:
        """Return the arrival times of messages since the start."""
        return [at - self.start_ms for at, event in self.heard[index] if isinstance(event, Received)]

    def fired(self, index: int) -> list[tuple[int, str]]:
        return [
            (at - self.start_ms, event.timer.purpose)
            for at, event in self.heard[index]
            if isinstance(event, TimerFired)
        ]

    def starts(self, index: int) -> int:
        return sum(isinstance(event, Started) for _, event in self.heard[index])


def numbered(count: int) -> list[bytes]:
    return [number.to_bytes(2, "big") for number in range(count)]
