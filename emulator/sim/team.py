"""Processes that run one program side by side, each with a number, and meet to swap bytes.

    every process:  work ... swap ... work ... swap ... result

All do the same number of swaps, and wait in them for the slowest, asleep. Process 0 is the one that was there; it
starts the others afresh and passes on what they send each other, so each of them has one pipe. A worker sends before it
reads and process 0 reads before it sends: with full pipes, too, one end of each is always being emptied.

A worker that fails before its last swap says why with its last breath; one that is killed is known by its exit code.
Either ends process 0's program with `WorkerError`, and that ends the others. When process 0 dies, however it does, the
workers end at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TypeVar

import msgspec

from emulator.engine.local import deaf, end_with

_STOP_S = 5.0
Result = TypeVar("Result")


class WorkerError(RuntimeError):
    """A worker ended before the program did: its number, and why.

    Attributes:
        was_killed: whether by SIGKILL, as the system does where memory is short.
    """

    def __init__(self, number: int, count: int, why: str, *, was_killed: bool = False) -> None:
        super().__init__(f"process {number} of {count} {why}")
        self.was_killed = was_killed


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

        Raises `WorkerError` in process 0 if a worker has failed or died.
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
            with self._telling(worker):
                worker.pipe.send_bytes(_encode([row[worker.number] for row in rows]))
        return [row[0] for row in rows]

    def _read(self, worker: _Worker) -> list[bytes]:
        with self._telling(worker):
            said: list[bytes] | _Trouble = _decode_said(worker.pipe.recv_bytes())
        if isinstance(said, _Trouble):
            raise WorkerError(worker.number, self.count, f"failed: {said.line}") from RuntimeError(said.trace)
        return said

    @contextlib.contextmanager
    def _telling(self, worker: _Worker) -> Iterator[None]:
        """Say what became of a worker whose pipe has ended."""
        try:
            yield
        except (EOFError, ConnectionError):
            worker.process.join(_STOP_S)
            code = worker.process.exitcode
            by_signal = code is not None and code < 0
            why = f"was killed by signal {-(code or 0)}" if by_signal else f"ended early with exit code {code}"
            raise WorkerError(worker.number, self.count, why, was_killed=code == -signal.SIGKILL) from None


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

    def __init__(self, number: int, count: int, program: Callable[[Team], object]) -> None:
        context = multiprocessing.get_context("spawn")
        self.number = number
        self.pipe, theirs = context.Pipe()
        arguments = (os.getpid(), number, count, theirs, program)
        self.process: SpawnProcess = context.Process(target=_serve, args=arguments, daemon=True)
        with deaf():  # Ctrl-C is for process 0 to answer
            self.process.start()
        theirs.close()

    def end(self, patience_s: float) -> None:
        """Be gone: by itself within that time, or by force."""
        self.process.join(patience_s)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()
        self.pipe.close()


def run_together(program: Callable[[Team], Result], count: int) -> Result:
    """Run a program in so many processes, this one among them, and give what it returns here.

    Args:
        program: a function that fresh processes can import by its name, or a partial of one. It runs in each with its
            place in the team, here as number 0. count: 1 runs it here alone.

    Raises:
        WorkerError: another one failed or died. And whatever the program raises here.
    """
    if count == 1:
        return program(Team())
    workers: list[_Worker] = []
    patience_s = 0.0
    try:
        for number in range(1, count):
            workers.append(_Worker(number, count, program))  # noqa: PERF401 - those that started must be ended
        result = program(_First(workers))
        patience_s = _STOP_S  # they are at their end, too
    finally:
        for worker in workers:
            worker.end(patience_s)
    return result


def _serve(parent: int, number: int, count: int, pipe: Connection, program: Callable[[Team], object]) -> None:
    """A worker's life."""
    end_with(parent)
    try:
        program(_Other(number, count, pipe))
    except _EndedError:
        return
    except Exception as error:  # of whatever kind, it is process 0 that has to tell it
        frame = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
        pipe.send_bytes(_encode(_Trouble(line, traceback.format_exc())))
