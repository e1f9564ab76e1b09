"""Processes that run one program side by side, each with a number, and meet to swap bytes.

    every process:  work ... swap ... work ... swap ... result

All do the same number of swaps, and wait in them for the slowest, asleep. Process 0 is the one that was there; it
starts the others afresh and passes on what they send each other, so each of them has one pipe. A worker sends before it
reads and process 0 reads before it sends: with full pipes, too, one end of each is always being emptied.

A worker that fails before its last swap says why with its last breath; one that is killed is known by its exit code.
Either ends process 0's program with an error, and that ends the others. When process 0 dies, however it does, the
workers end at once.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import msgspec

from emulator.engine.local import death_of, end_with, spawn

_STOP_S = 5.0
Result = TypeVar("Result")


class _EndedError(Exception):
    """Process 0 has ended its program; it knows why."""


class _Trouble(msgspec.Struct, frozen=True):
    """A worker's last words."""

    line: str
    trace: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_said = msgspec.msgpack.Decoder(list[bytes] | _Trouble).decode


class Team:
    """One process's place among those that run a program. This is that of a process alone.

    Attributes:
        number: from 0. count: how many there are. waited_s: seconds spent in swaps so far, waiting for others.
    """

    def __init__(self, number: int = 0, count: int = 1) -> None:
        self.number = number
        self.count = count
        self.waited_s = 0.0

    def swap(self, outgoing: Sequence[bytes]) -> list[bytes]:
        """Hand over `outgoing[p]` to process p, and take what each has for this one, in their order.

        Raises, in process 0, `WorkerDiedError` if a worker has died, and `RuntimeError` if its program has failed.
        """
        began_s, worked_s = time.perf_counter(), time.process_time()
        incoming = self._pass(outgoing)
        self.waited_s += time.perf_counter() - began_s - (time.process_time() - worked_s)
        return incoming

    def gather(self, value: bytes) -> list[bytes]:
        """Everybody's value, in the order of their numbers; nobody goes on before all have come."""
        return self.swap([value] * self.count)

    def _pass(self, outgoing: Sequence[bytes]) -> list[bytes]:
        return list(outgoing)


class _First(Team):
    """Process 0's place: it has a pipe to each of the others."""

    def __init__(self, workers: Sequence[_Worker]) -> None:
        super().__init__(0, len(workers) + 1)
        self._workers = workers

    def _pass(self, outgoing: Sequence[bytes]) -> list[bytes]:
        rows = [outgoing, *(self._read(worker) for worker in self._workers)]
        for worker in self._workers:
            with worker.alive():
                worker.pipe.send_bytes(_encode([row[worker.number] for row in rows]))
        return [row[0] for row in rows]

    def _read(self, worker: _Worker) -> list[bytes]:
        with worker.alive():
            said: list[bytes] | _Trouble = _decode_said(worker.pipe.recv_bytes())
        if isinstance(said, _Trouble):
            raise RuntimeError(f"{worker.name} failed: {said.line}") from RuntimeError(said.trace)
        return said


class _Other(Team):
    """A worker's place."""

    def __init__(self, number: int, count: int, pipe: Connection) -> None:
        super().__init__(number, count)
        self._pipe = pipe

    def _pass(self, outgoing: Sequence[bytes]) -> list[bytes]:
        try:
            self._pipe.send_bytes(_encode(outgoing))
            return _decode(self._pipe.recv_bytes())
        except (EOFError, ConnectionError):
            raise _EndedError from None


class _Worker:
    """A process that process 0 has started, and the pipe to it."""

    def __init__(self, number: int, count: int, program: Callable[[Team], object], advice: str) -> None:
        self.number = number
        self.name = f"process {number} of {count}"
        self._advice = advice
        self._process, self.pipe = spawn(_serve, number, count, program, daemon=True)

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Say what became of it where its pipe ends."""
        try:
            yield
        except (EOFError, ConnectionError):
            raise death_of(self._process, self.name, self._advice) from None

    def end(self, patience_s: float) -> None:
        """Be gone: by itself within that time, or by force."""
        self._process.join(patience_s)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()
        self.pipe.close()


def run_together(program: Callable[[Team], Result], count: int, advice: str = "") -> Result:
    """Run a program in so many processes, this one among them, and give what it returns here.

    Args:
        program: a function that fresh processes can import by its name, or a partial of one. It runs in each with its
            place in the team, here as number 0. count: 1 runs it here alone.
        advice: what to do where the system kills a process for want of memory.

    Raises:
        WorkerDiedError: another one died. RuntimeError: its program failed. And whatever the program raises here.
    """
    if count == 1:
        return program(Team())
    workers: list[_Worker] = []
    patience_s = 0.0
    try:
        for number in range(1, count):
            workers.append(_Worker(number, count, program, advice))  # noqa: PERF401 - those that started must be ended
        result = program(_First(workers))
        patience_s = _STOP_S  # they are at their end, too
    finally:
        for worker in workers:
            worker.end(patience_s)
    return result


def _serve(parent: int, pipe: Connection, number: int, count: int, program: Callable[[Team], object]) -> None:
    """A worker's life."""
    end_with(parent)
    try:
        program(_Other(number, count, pipe))
    except _EndedError:
        return
    except Exception as error:  # of whatever kind: process 0 reports it
        frame = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
        pipe.send_bytes(_encode(_Trouble(line, traceback.format_exc())))
