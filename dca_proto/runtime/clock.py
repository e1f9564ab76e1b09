"""Time for actors: the machine's clock, and what tests turn by hand in its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

_RECHECK_S = 60.0  # someone may set the wall clock during a wait


class Alarm(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Cancel the call."""


class Clock(Protocol):
    """The runner's source of time; tests advance one by hand."""

    def now_ms(self) -> int:
        """Unix milliseconds."""

    def steady_ms(self) -> int:
        """Milliseconds since some moment, on a clock that cannot be set."""

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        """Call back at `at_ms`, or earlier so that the clock is read again."""


def now_ms() -> int:
    """Return the machine's time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


class SystemClock:
    """The machine's clock, on the running event loop."""

    def now_ms(self) -> int:
        return now_ms()

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        wait_s = min(max(at_ms - self.now_ms(), 0) / 1000, _RECHECK_S)
        return asyncio.get_running_loop().call_later(wait_s, callback)
