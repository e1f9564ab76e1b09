"""Wall-clock time in Unix milliseconds, and the timers of one actor."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from typing import Protocol

from dca_proto.protocol.events import Timer

_LOOK_AGAIN_S = 60.0  # the wall clock may be set while we wait


class Alarm(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Never call."""


class Clock(Protocol):
    """What the runner knows of time; tests turn one by hand."""

    def now_ms(self) -> int:
        """Unix milliseconds."""

    def steady_ms(self) -> int:
        """Milliseconds since some moment, which nobody sets."""

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        """Call back at `at_ms`, or earlier for a new look at the clock."""


class SystemClock:
    """The machine's clock, on the running event loop."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        wait_s = min(max(at_ms - self.now_ms(), 0) / 1000, _LOOK_AGAIN_S)
        return asyncio.get_running_loop().call_later(wait_s, callback)


class Timers:
    """The timers that an actor has set: one heap; cancelled and replaced settings stay in it and are skipped."""

    def __init__(self) -> None:
        self._set: dict[Timer, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, Timer]] = []
        self._settings = 0

    def set(self, timer: Timer, at_ms: int) -> None:
        """Set `timer`, replacing an earlier setting."""
        self._settings += 1
        self._set[timer] = (at_ms, self._settings)
        heapq.heappush(self._heap, (at_ms, self._settings, timer))

    def cancel(self, timer: Timer) -> None:
        """Forget `timer`, if it is set."""
        self._set.pop(timer, None)

    def next_at_ms(self) -> int | None:
        """When the earliest timer is due."""
        while self._heap and self._is_stale(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Timer | None:
        """The earliest timer that is due, which is then no longer set."""
        at_ms = self.next_at_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        _, _, timer = heapq.heappop(self._heap)
        del self._set[timer]
        return timer

    def _is_stale(self, entry: tuple[int, int, Timer]) -> bool:
        at_ms, setting, timer = entry
        return self._set.get(timer) != (at_ms, setting)
