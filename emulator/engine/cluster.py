"""The engine of a cluster of Ray: tasks and actors, on all of its machines. See `emulator.engine`.

Each machine needs this project, in the same version. What is to be done travels as bytes, and is read where a mistake
in reading it can be told.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from dca_proto.errors import UsageError
from dca_proto.wording import to_install
from emulator.engine.base import (
    DEATHS_MAX,
    RAY,
    STOP_S,
    THREADS,
    Answer,
    Engine,
    Host,
    Worker,
    WorkerDiedError,
    attempt,
    too_many_died,
)

T = TypeVar("T")
R = TypeVar("R")


class RayEngine(Engine):
    """A cluster that runs, or (`ray`, where none does) a new one with this machine's cores.

    Args and raises: as of `open_engine`.
    """

    is_local = False

    def __init__(self, name: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to its makers
        try:
            import ray as library
        except ImportError:
            raise UsageError(f"--engine {name} needs Ray, which is not installed: {to_install('cluster')}") from None
        self._ray: Any = library
        ray = self._ray
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            address = None if name == RAY else name
            try:
                ray.init(address, log_to_driver=False, logging_level="ERROR")
            except Exception as error:  # of many kinds
                line = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise UsageError(f"--engine {name}: no cluster answers ({line}); start one with `ray start`") from None

    def end(self) -> None:
        if self._is_ours:
            self._ray.shutdown()

    def _answers(
        self, work: Callable[[T], R], numbered: Iterator[tuple[int, T]], processes: int | None
    ) -> Iterator[tuple[tuple[int, T], Answer]]:
        ray = self._ray
        remote = ray.remote(num_cpus=1, max_retries=1)(attempt)
        sealed = functools.partial(_run, ray.cloudpickle.dumps(work))
        count = processes or 2 * int(ray.cluster_resources().get("CPU", 1))  # one waits beside each that runs
        running: dict[Any, tuple[int, T]] = {}
        deaths = 0
        try:
            while True:
                while len(running) < count and deaths < DEATHS_MAX and (pair := next(numbered, None)) is not None:
                    running[remote.remote(sealed, pair[1])] = pair
                if not running and next(numbered, None) is not None:  # as on this machine, items are left
                    raise too_many_died()
                if not running:
                    return
                ray.wait(list(running))
                for reference in ray.wait(list(running), num_returns=len(running), timeout=0)[0]:
                    pair = running.pop(reference)
                    try:
                        yield pair, ray.get(reference)
                    except ray.exceptions.RayError as error:
                        deaths += 1
                        yield pair, (None, f"the worker process died over it twice ({_first_line(error)})")
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def worker(self, make: Callable[[], object], name: str, advice: str = "") -> Worker:
        return _RayWorker(self._ray, make, name, advice)


class _RayWorker(Worker):
    """An actor of Ray. It reserves no cores: whoever starts workers knows how many there are."""

    def __init__(self, ray: Any, make: Callable[[], object], name: str, advice: str) -> None:
        super().__init__(name, advice)
        self._ray = ray
        make_there = functools.partial(_make, ray.cloudpickle.dumps(make))
        self._actor = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(Host).remote(make_there)

    def _call(self, method: str, arguments: tuple[Any, ...]) -> tuple[int, Any]:
        try:
            answer: tuple[int, Any] = self._ray.get(self._actor.call.remote(method, arguments))
        except self._ray.exceptions.RayError as error:
            raise WorkerDiedError(f"the process of {self.name} died ({_first_line(error)})") from None
        return answer

    def end(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            if not self._is_busy:
                self._ray.get(self._actor.close.remote(), timeout=STOP_S)
        self._ray.kill(self._actor)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


@functools.lru_cache(maxsize=4)
def _read(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - of the program that started this process


def _run(data: bytes, item: Any) -> Any:
    os.environ.update(dict.fromkeys(THREADS, "1"))  # XLA reads it late, and Ray has told BLAS before
    return _read(data)(item)


def _make(data: bytes) -> object:
    return _read(data)()
