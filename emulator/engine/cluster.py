"""The engine of a Ray cluster: tasks and actors on all of its machines. See `emulator.engine`.

Each machine needs this project in the same version. Work travels as pickled bytes, and is unpickled within the task, so
that an error there is reported like an error of the work.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from dca_proto.errors import UsageError
from dca_proto.wording import to_install
from emulator.engine.base import RAY, STOP_S, THREADS, Answer, Engine, Host, Submit, Worker, WorkerDiedError, attempt


class RayEngine(Engine):
    """A running cluster; for `ray`, if none runs, a new one with this machine's cores. Arguments: see `open_engine`."""

    is_local = False

    def __init__(self, name: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
        try:
            import ray as library
        except ImportError:
            raise UsageError(f"--engine {name} needs Ray, which is not installed: {to_install('cluster')}") from None
        self._ray: Any = library
        self.died = self._ray.exceptions.RayError
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            address = None if name == RAY else name
            try:
                self._ray.init(address, log_to_driver=False, logging_level="ERROR")
            except Exception as error:  # Ray raises many types here
                lines = str(error).strip().splitlines() or [type(error).__name__]
                why = " ".join(dict.fromkeys([lines[0], lines[-1].strip()]))  # the head's traceback ends with its error
                raise UsageError(f"--engine {name}: no cluster answers ({why}); start one with `ray start`") from None

    def end(self) -> None:
        if self._is_ours:
            self._ray.shutdown()

    @property
    def _processes(self) -> int:
        return 2 * int(self._ray.cluster_resources().get("CPU", 1))  # one queued for each that runs

    @contextlib.contextmanager
    def _pool(self, work: Callable[[Any], Any], count: int) -> Iterator[Submit]:
        remote = self._ray.remote(num_cpus=1, max_retries=0)(attempt)
        sealed = functools.partial(_run, self._ray.cloudpickle.dumps(work))
        running: dict[Future[Answer], Any] = {}

        def submit(item: Any) -> Future[Answer]:
            reference = remote.remote(sealed, item)
            future: Future[Answer] = reference.future()
            running[future] = reference
            future.add_done_callback(lambda done: running.pop(done, None))  # so that the cluster frees the result
            return future

        try:
            yield submit
        finally:
            for reference in list(running.values()):
                self._ray.cancel(reference, force=True)

    def worker(self, make: Callable[[], object], name: str, advice: str = "") -> Worker:
        return _RayWorker(self, self._ray, make, name, advice)


class _RayWorker(Worker):
    """A Ray actor. It reserves no cores: the caller decides how many workers to start."""

    def __init__(self, engine: RayEngine, ray: Any, make: Callable[[], object], name: str, advice: str) -> None:
        super().__init__(name, advice)
        self._engine, self._ray = engine, ray
        make_there = functools.partial(_make, ray.cloudpickle.dumps(make))
        self._actor = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(Host).remote(make_there)

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Answer:
        try:
            answer: Answer = self._ray.get(self._actor.call.remote(method, arguments))
        except self._engine.died as error:
            raise WorkerDiedError(f"the process of {self.name} died ({self._engine._why(error)})") from None
        return answer

    def end(self) -> None:
        with contextlib.suppress(self._engine.died):
            if not self._is_busy:
                self._ray.get(self._actor.close.remote(), timeout=STOP_S)
        self._ray.kill(self._actor)


@functools.lru_cache(maxsize=4)
def _read(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - sent by the program that started this process


def _run(data: bytes, item: Any) -> Any:
    os.environ.update(dict.fromkeys(THREADS, "1"))  # in time for XLA; Ray has limited BLAS before
    return _read(data)(item)


def _make(data: bytes) -> object:
    return _read(data)()
