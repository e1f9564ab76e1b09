"""The parent's side of a worker process: starts it, speaks with it, notices its end, and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from dca_proto.core.errors import UsageError
from emulator.swarm.pipe import Count, Failed, Order, Prepare, Totals, Word, framed, read

_STOP_S = 10.0


class WorkerProcess:
    """A process of a fleet.

    Args:
        name: whom it runs, for messages. actors: how many. log_path: where it prints what goes wrong.
        heed: called with every word of it but `Totals` and `Failed`.

    Attributes:
        connected: how many of its actors have a connection.
    """

    def __init__(self, name: str, actors: int, log_path: Path, heed: Callable[[Word], None]) -> None:
        self.name = name
        self.actors = actors
        self.connected = 0
        self._log_path = log_path
        self._heed = heed
        self._process: asyncio.subprocess.Process | None = None
        self._asked: asyncio.Future[Totals] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self, orders: Order) -> None:
        """Start it with its first orders; outside the terminal's process group, so that Ctrl-C reaches the parent."""
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "emulator.swarm.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._tell(orders)

    def _tell(self, order: Order) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(framed(order))

    async def ask(self, order: Prepare | Count) -> Totals:
        """What its actors have sent and used so far, with the order carried out."""
        self._asked = asyncio.get_running_loop().create_future()
        self._tell(order)
        return await self._asked

    async def listen(self) -> None:
        """Hear its words until it ends, which is always a failure. Raises `UsageError` that names the cause."""
        assert self._process is not None
        assert self._process.stdout is not None
        decoder = msgspec.msgpack.Decoder(Word)
        while (word := await read(self._process.stdout, decoder)) is not None:
            if isinstance(word, Failed):
                raise UsageError(f"{self.name}: {word.error}")
            if isinstance(word, Totals):
                if self._asked is not None and not self._asked.done():
                    self._asked.set_result(word)
            else:
                self._heed(word)
        raise UsageError(f"the process of {self.name} {_ending(await self._process.wait())}: {self._last_line()}")

    async def stop(self) -> None:
        """End it, politely first."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if not isinstance(error, TimeoutError):
                raise

    def _last_line(self) -> str:
        text = self._log_path.read_text(encoding="utf-8", errors="replace")
        return (text.strip().splitlines() or ["it said nothing"])[-1]


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (by the system, where memory runs out: use fewer --clients)"
    if code < 0:
        return f"was ended by signal {-code}"
    return f"ended by itself with {code}"
