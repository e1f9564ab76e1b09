"""Runs the work of a process to its end: signals, and what is left of its memory."""

from __future__ import annotations

import asyncio
import ctypes
import resource
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
TERMINATED = 143
"""The exit code after SIGTERM has ended the work."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _HEAP_BYTES = -1, -3, 128 << 10  # <malloc.h>, and what glibc starts with


def complete(work: Coroutine[Any, Any, T]) -> T | None:
    """Run `work` and return its result, or None if SIGTERM ended it. Ctrl-C raises KeyboardInterrupt after cleanup.

    If this process, or one that it starts, crashes or is ended by a watchdog, no file has its memory: keys are in it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _return_freed_memory()

    async def stoppable() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(stoppable())
    except asyncio.CancelledError:
        return None


def _return_freed_memory() -> None:
    """Make glibc return large freed blocks, and the free end of its heap, to the system.

    By default, the first large block that is freed raises both thresholds, up to 32 and 64 MiB. Later blocks then share
    a heap with small objects, which keep it from shrinking: a flood of announcements leaves 40 MiB more.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # not in musl
        for threshold in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            mallopt(threshold, _HEAP_BYTES)
