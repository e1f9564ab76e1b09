"""Worker processes that each take one seed at a time. One that dies is noticed, named and replaced."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

from emulator.sim.team import end_with_parent

_STOP_S = 5.0
_DEATHS_MAX = 5  # then something is wrong with the machine, and no more seeds are spent on it


class Done(NamedTuple):
    """What became of a seed: its result, or why there is none: what was raised, or that the worker died over it."""

    seed: int
    result: dict[str, Any] | None
    trouble: str = ""


Work = Callable[[int], dict[str, Any]]
"""Makes plain data of a seed; a function that a fresh process can import by its name."""


class _Worker(NamedTuple):
    process: SpawnProcess
    connection: Connection


class Workers:
    """So many processes, as a context; those that still run when it ends are ended.

    Args:
        work: what each does. count: how many.
    """

    def __init__(self, work: Work, count: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._work = work
        self._workers = [self._start() for _ in range(count)]
        self._busy: dict[_Worker, int] = {}
        self._deaths = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *failure: object) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(_STOP_S)
            worker.connection.close()

    def results(self, seeds: Iterator[int]) -> Iterator[Done]:
        """Hand out seeds until there are no more, and give what comes back, in the order in which it does."""
        for worker in self._workers:
            self._hand_out(worker, seeds)
        while self._busy:
            ready = wait([worker.connection for worker in self._busy])
            for worker in [one for one in self._busy if one.connection in ready]:
                done = self._take(worker)
                alive = worker if worker.process.is_alive() else self._replace(worker)
                if self._deaths < _DEATHS_MAX:
                    self._hand_out(alive, seeds)
                yield done

    def _hand_out(self, worker: _Worker, seeds: Iterator[int]) -> None:
        seed = next(seeds, None)
        if seed is not None:
            self._busy[worker] = seed
            worker.connection.send(seed)

    def _take(self, worker: _Worker) -> Done:
        seed = self._busy.pop(worker)
        try:
            return Done(seed, *worker.connection.recv())
        except (EOFError, ConnectionResetError):
            worker.process.join()
            self._deaths += 1
            return Done(seed, None, f"the worker process died over it (exit code {worker.process.exitcode})")

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._work), daemon=True)
        answer = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is for us to answer
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, answer)
        theirs.close()
        return _Worker(process, ours)

    def _replace(self, dead: _Worker) -> _Worker:
        dead.connection.close()
        fresh = self._start()
        self._workers[self._workers.index(dead)] = fresh
        return fresh


def _serve(connection: Connection, work: Work) -> None:
    """A worker's life."""
    end_with_parent()
    while True:
        try:
            seed = connection.recv()
        except EOFError:
            return  # the parent has what it wanted
        try:
            connection.send((work(seed), ""))
        except Exception:  # a bug of the emulator, told where the sweep is; the next seed may be better
            connection.send((None, traceback.format_exc(limit=-4)))
