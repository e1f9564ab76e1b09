"""The link between one machine and the broker: how long a packet takes, and whether it gets through.

A lost packet is sent again after a while (by TCP, or MQTT's QoS 1), so loss shows as delay. Packets of one direction
keep their order unless one is held back on purpose. Each link and purpose has its own random stream.
"""

from __future__ import annotations

import random
from typing import Annotated

import msgspec

from emulator.sim.streams import Streams

_US = 1000
LOSS_MAX = 0.95  # a link that loses everything resends forever
Delay = Annotated[float, msgspec.Meta(ge=0, le=3_600_000)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]


class LinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The quality of a link. By default it duplicates and reorders some packets.

    Attributes:
        delay_ms, jitter_ms: one way; the jitter is uniform from 0. bandwidth_bytes_s: 0 is no limit.
        loss: probability that a transmission is lost; it is repeated after `retry_ms`.
        duplicate: probability that a packet arrives twice.
        reorder: probability that a packet is held back by up to `reorder_ms`, so that others overtake it.
    """

    delay_ms: Delay = 20.0
    jitter_ms: Delay = 10.0
    bandwidth_bytes_s: Annotated[float, msgspec.Meta(ge=0, le=1 << 30)] = 0.0
    loss: Annotated[float, msgspec.Meta(ge=0, le=LOSS_MAX)] = 0.0
    retry_ms: Annotated[float, msgspec.Meta(ge=1, le=3_600_000)] = 500.0
    duplicate: Probability = 0.02
    reorder: Probability = 0.05
    reorder_ms: Delay = 200.0


IDEAL = LinkOptions(delay_ms=0, jitter_ms=0, duplicate=0, reorder=0)
"""Delivers at once, once and in order: for measurements of everything else."""


class LinkDirection:
    """One direction of a link. `free_us`: when it can take the next packet. `last_us`: latest arrival in order."""

    __slots__ = ("free_us", "is_cut", "last_us")

    def __init__(self) -> None:
        self.is_cut = False
        self.clear()

    def clear(self) -> None:
        """Forget the packets in flight: their connection has ended."""
        self.free_us = self.last_us = 0


class Link:
    """One machine's link, in both directions.

    Args:
        streams: of the run. name: of this link in them.

    Attributes:
        options: may be replaced at any time. up, down: the directions to the broker, and from it.
    """

    __slots__ = ("_draws", "_name", "_streams", "down", "options", "up")

    def __init__(self, streams: Streams, name: str, options: LinkOptions) -> None:
        self.options = options
        self.up = LinkDirection()
        self.down = LinkDirection()
        self._streams = streams
        self._name = name
        self._draws: dict[str, random.Random] | None = None  # created on demand

    @property
    def is_cut(self) -> bool:
        """True if a direction is cut: connecting needs both."""
        return self.up.is_cut or self.down.is_cut

    @property
    def delay_us(self) -> int:
        """The time that an acknowledgement takes."""
        return int(self.options.delay_ms * _US)

    def flights_us(self, wire: LinkDirection, now_us: int, size: int) -> list[tuple[int, int]]:
        """Return the times at which a packet has left for good, and arrives; twice if it is duplicated."""
        options = self.options
        sent_us = now_us
        if options.bandwidth_bytes_s:  # the packet follows those before it
            sent_us = wire.free_us = max(now_us, wire.free_us) + int(1e6 * size / options.bandwidth_bytes_s)
        left_us, arrival_us = self._flight_us(sent_us)
        if self._happens("reorder", options.reorder):
            arrival_us += self._uniform_us("reorder-by", options.reorder_ms)
        else:
            arrival_us = wire.last_us = max(arrival_us, wire.last_us)
        if self._happens("duplicate", options.duplicate):
            again_us, late_us = self._flight_us(arrival_us)
            return [(left_us, arrival_us), (again_us, late_us)]
        return [(left_us, arrival_us)]

    def _flight_us(self, sent_us: int) -> tuple[int, int]:
        """Return when the first successful transmission begins and ends."""
        options = self.options
        while self._happens("loss", options.loss):
            sent_us += int(options.retry_ms * _US)
        return sent_us, sent_us + self.delay_us + self._uniform_us("jitter", options.jitter_ms)

    def _happens(self, purpose: str, probability: float) -> bool:
        return probability > 0 and self._draw(purpose) < probability

    def _uniform_us(self, purpose: str, width_ms: float) -> int:
        return int(self._draw(purpose) * width_ms * _US) if width_ms else 0

    def _draw(self, purpose: str) -> float:
        if self._draws is None:
            self._draws = {}
        stream = self._draws.get(purpose)
        if stream is None:
            stream = self._draws[purpose] = self._streams(f"link/{self._name}/{purpose}")
        return stream.random()
