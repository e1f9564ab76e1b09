"""Processes that run one program side by side, each with a number, and meet to swap bytes.

    every process:  work ... swap ... work ... swap ... result

All do the same number of swaps, and wait in them for the slowest, asleep. Process 0 is the one that was there; it
starts the others afresh and passes on what they send each other, so each of them has one pipe. A worker sends before it
reads and process 0 reads before it sends: with full pipes, too, one end of each is always being emptied.

A worker that fails before its last swap sends the reason; one that is killed is known by its exit code. Either ends
process 0's program with an error, and that ends the others. When process 0 dies, however it does, the workers end at
once.
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

from emulator.engine.local import death_of, end_with, spawn

_STOP_S = 5.0
Result = TypeVar("Result")


class _EndedError(Exception):
    """Process 0 has ended its program, for a reason that it knows."""


class _Failure(msgspec.Struct, frozen=True):
    """Why a worker's program failed."""

    line: str
    trace: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes] | _Failure).decode


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
    """Process 0's place. `workers`: the processes that it has started, and its pipe to each.

    Args:
        advice: what to do where the system kills a process for want of memory.
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
        """Report how a worker has ended where its pipe ends."""
        try:
            yield
        except (EOFError, ConnectionError):
            raise death_of(self.workers[number - 1][0], self._name(number), self._advice) from None


class _Other(Team):
    """A worker's place."""

    def __init__(self, number: int, count: int, pipe: Connection) -> None:
        super().__init__(number, count)
        self._pipe = pipe

    def _pass(self, outgoing: Sequence[bytes]) -> list[bytes]:
        try:
            self._pipe.send_bytes(_encode(outgoing))
            incoming = _decode(self._pipe.recv_bytes())
        except (EOFError, ConnectionError):
            raise _EndedError from None
        assert isinstance(incoming, list), "process 0 raises its own errors"
        return incoming


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
    first, patience_s = _First(count, advice), 0.0
    try:
        for number in range(1, count):
            first.workers.append(spawn(_serve, number, count, program, daemon=True))
        result = program(first)
        patience_s = _STOP_S  # they are at their end, too
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
        program(_Other(number, count, pipe))
    except _EndedError:
        return
    except Exception as error:  # of whatever kind: process 0 reports it
        frame = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
        pipe.send_bytes(_encode(_Failure(line, traceback.format_exc())))
