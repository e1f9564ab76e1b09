"""Clients and Compute nodes of a federation's folder, in a thread; and policies that let rounds through."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from dca_proto.runtime import device
from dca_proto.runtime.transport import Connected

LET_THROUGH = """clients_min = 1
honest_min = 1
"""
WIDE = """epsilon_per_round_max = 100
epsilon_per_period_max = 100
delta_max = 1e-5
"""


class Actors:
    """Clients and Compute nodes of a folder's files, in a thread with an event loop of its own."""

    def __init__(self, folder: Path) -> None:
        self._paths = [*sorted(folder.glob("client-*.toml")), *sorted(folder.glob("compute-*.toml"))]
        self._connected = threading.Semaphore(0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> Actors:
        self._thread.start()
        for _ in self._paths:
            assert self._connected.acquire(timeout=30)
        return self

    def __exit__(self, *failure: object) -> None:
        self._loop.call_soon_threadsafe(self._all.cancel)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        self._all = asyncio.gather(*(device.load(path).run(self._note) for path in self._paths))
        with pytest.raises(asyncio.CancelledError):
            await self._all

    def _note(self, fact: object) -> None:
        if isinstance(fact, Connected):
            self._connected.release()
