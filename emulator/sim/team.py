"""Processes that run one program side by side, each with a number, and swap bytes at common points.

    every process:  work ... swap ... work ... swap ... result

All do the same number of swaps, and sleep in a swap until the slowest arrives. Process 0 is the caller. It starts the
others and forwards their messages, so each worker has one pipe. A worker sends before it reads, and process 0 reads
before it sends, so full pipes cannot block each other.

A worker that fails before its last swap sends the reason; a killed worker is known by its exit code. Either raises an
error in process 0, which ends the other workers. If process 0 dies in any way, the workers end at once.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TypeVar

import msgspec

from dca_proto.engine.local import death_of, end_with, spawn

_STOP_S = 5.0
Result = TypeVar("Result")


class _EndedError(Exception):
    """Process 0 has ended its program."""


class _Failure(msgspec.Struct, frozen=True):
    """The error of a worker's program."""

    line: str
    trace: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes] | _Failure).decode


class Team:
    """The place of one process in a team. This class is the place of a single process.

    Attributes:
        number: from 0. count: number of processes. waited_s: seconds spent waiting in swaps so far.
    """

    def __init__(self, number: int = 0, count: int = 1) -> None:
        self.number = number
        self.count = count
        self.waited_s = 0.0

    def swap(self, outgoing: Sequence[bytes]) -> list[bytes]:
        """Send `outgoing[p]` to each process p; return the bytes from each process, by number.

        In process 0, raises `WorkerDiedError` if a worker has died, and `RuntimeError` if its program has failed.
        """
        began_s, worked_s = time.perf_counter(), time.process_time()
        incoming = self._pass(outgoing)
        self.waited_s += time.perf_counter() - began_s - (time.process_time() - worked_s)
        return incoming

    def gather(self, value: bytes) -> list[bytes]:
        """Return the values of all processes, by number, once all have called this."""
        return self.swap([value] * self.count)

    def _pass(self, outgoing: Sequence[bytes]) -> list[bytes]:
        return list(outgoing)


class _Leader(Team):
    """The place of process 0. `workers`: the processes that it has started, and its pipe to each.

    Args:
        advice: what to do if the system kills a process for lack of memory.
    """

    def __init__(self, count: int, advice: str) -> None:
        super().__init__(0, count)
        self.workers: list[tuple[SpawnProcess, Connection]] = []
        self._advice = advice

    def _pass(self, outgoing: Sequence[bytes]) -> list[bytes]:
        rows = [list(outgoing)]
        for number, (_, pipe) in enumerate(self.workers, 1):
            with self._alive(number):
                row = _decode(pipe.recv_bytes())
            if isinstance(row, _Failure):
                raise RuntimeError(f"{self._name(number)} failed: {row.line}") from RuntimeError(row.trace)
            rows.append(row)
        for number, (_, pipe) in enumerate(self.workers, 1):
            with self._alive(number):
                pipe.send_bytes(_encode([row[number] for row in rows]))
        return [row[0] for row in rows]

    def _name(self, number: int) -> str:
        return f"process {number} of {self.count}"

    @contextlib.contextmanager
    def _alive(self, number: int) -> Iterator[None]:
        """Raise `WorkerDiedError` with the worker's exit if its pipe is closed."""
        try:
            yield
        except (EOFError, ConnectionError):
            raise death_of(self.workers[number - 1][0], self._name(number), self._advice) from None


class _Worker(Team):
    """The place of a worker."""

    def __init__(self, number: int, count: int, pipe: Connection) -> None:
        super().__init__(number, count)
        self._pipe = pipe

    def _pass(self, outgoing: Sequence[bytes]) -> list[bytes]:
        try:
            self._pipe.send_bytes(_encode(outgoing))
            incoming = _decode(self._pipe.recv_bytes())
        except (EOFError, ConnectionError):
            raise _EndedError from None
        assert isinstance(incoming, list), "process 0 raises its errors and sends none"
        return incoming


def run_together(program: Callable[[Team], Result], count: int, advice: str = "") -> Result:
    """Run a program in `count` processes, including this one as number 0, and return its result here.

    Args:
        program: a function that fresh processes can import by name, or a partial of one. It is called with the
            process's place in the team. count: 1 runs it only here.
        advice: what to do if the system kills a process for lack of memory.

    Raises:
        WorkerDiedError: a worker died. RuntimeError: a worker's program failed. Also any error of the program here.
    """
    if count == 1:
        return program(Team())
    first, patience_s = _Leader(count, advice), 0.0
    try:
        for number in range(1, count):
            first.workers.append(spawn(_serve, number, count, program, daemon=True))
        result = program(first)
        patience_s = _STOP_S  # the workers are about to end, too
    finally:
        for process, pipe in first.workers:
            process.join(patience_s)
            if process.is_alive():
                process.terminate()
                process.join()
            pipe.close()
    return result


def _serve(parent: int, pipe: Connection, number: int, count: int, program: Callable[[Team], object]) -> None:
    end_with(parent)
    try:
        program(_Worker(number, count, pipe))
    except _EndedError:
        return
    except Exception as error:  # process 0 reports it
        frame = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
        pipe.send_bytes(_encode(_Failure(line, traceback.format_exc())))
