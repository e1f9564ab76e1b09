"""An event loop whose time passes only when nothing is left to do, so that windows cost no time and no load is felt."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to its next timer as soon as no callback is ready and no thread works for it.

    Attributes:
        now_s: the time of all such loops, which is never behind the machine's.
    """

    now_s = 0.0

    def __init__(self) -> None:
        super().__init__(_Jumping(self))
        self._clock_resolution = 1e-6  # a float of half a year's seconds has no nanoseconds: no timer would be due
        VirtualLoop.now_s = max(VirtualLoop.now_s, time.monotonic())
        self.threads_n = 0

    def time(self) -> float:
        return VirtualLoop.now_s

    def run_in_executor(self, executor: Any, work: Callable[..., R], *arguments: Any) -> asyncio.Future[R]:
        future = super().run_in_executor(executor, work, *arguments)
        self.threads_n += 1
        future.add_done_callback(self._note_end)
        return future

    def _note_end(self, _: object) -> None:
        self.threads_n -= 1


class _Jumping(selectors.DefaultSelector):
    """A selector that waits for threads alone; other waits are added to the loop's time."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if self._loop.threads_n:
            return super().select(None if timeout is None or timeout > 0 else 0)
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing is left that could happen"
            VirtualLoop.now_s += max(timeout, 0)
        return ready


def started_ms() -> int:
    """Return the date and time, in Unix milliseconds, at which the next loop starts: earlier loops were ahead."""
    return (time.time_ns() - time.monotonic_ns()) // 1_000_000 + round(max(VirtualLoop.now_s, time.monotonic()) * 1000)


class LoopClock:
    """A `Clock` of an actor that follows the running loop's time, virtual or not."""

    def __init__(self) -> None:
        self._ahead_ms = (time.time_ns() - time.monotonic_ns()) // 1_000_000

    def now_ms(self) -> int:
        return self._ahead_ms + self.steady_ms()

    def steady_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(max(at_ms - self.now_ms(), 0) / 1000, callback)


def run(story: Coroutine[Any, Any, R], limit_s: float = 3600) -> R:
    """Run a coroutine to its end in virtual time, of which it may take an hour."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(asyncio.wait_for(story, limit_s))
