"""The engine of a Ray cluster: tasks and actors on all of its machines. See `dca_proto.engine`.

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
from pathlib import Path
from typing import Any

from dca_proto.engine.base import (
    RAY,
    STOP_S,
    THREADS,
    Answer,
    Engine,
    Submit,
    Worker,
    WorkerDiedError,
    WorkerHost,
    attempt,
)
from dca_proto.errors import UsageError
from dca_proto.wording import to_install

ANSWER_S = 20.0
"""How long a cluster's address may take to answer; Ray itself would wait for minutes."""
_CLIENT = f"{RAY}://"
_HEALTH = "/grpc.health.v1.Health/Check"


class RayEngine(Engine):
    """A running cluster; for `ray`, if none runs, a new one with this machine's cores. Arguments: see `open_engine`."""

    is_local = False

    def __init__(self, name: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
        os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # else a call without a connection would join or start a cluster
        try:
            import ray as library
        except ImportError:
            raise UsageError(f"--engine {name} needs Ray, which is not installed: {to_install('cluster')}") from None
        self._ray: Any = library
        self.died = self._ray.exceptions.RayError
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            address = None if name == RAY else name
            if trouble := _why_not(address or os.environ.get("RAY_ADDRESS", "")):
                raise UsageError(f"--engine {name}: no cluster answers ({trouble}); start one with `ray start`")
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
    def cores(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 1))

    @property
    def _processes(self) -> int:
        return 2 * self.cores  # one queued for each that runs

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


def _why_not(address: str) -> str:
    """Ask the head at an address whether it lives. Return why it does not, or "" if it may.

    Args:
        address: host:port of a head, or ray://host:port of its server for programs elsewhere. Any other form, as
            "auto", is left to Ray.
    """
    import grpc  # comes with Ray

    server = address.removeprefix(_CLIENT)
    if ":" not in server or "://" in server:
        return ""
    with _channel(grpc, server) as channel:
        try:
            channel.unary_unary(_HEALTH)(b"", timeout=ANSWER_S, wait_for_ready=True)
        except grpc.RpcError as error:
            code = error.code()
        else:
            return ""
    if code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
        return f"{address} is silent for {ANSWER_S:g} s"
    if code is grpc.StatusCode.UNIMPLEMENTED and server == address:
        return f"{address} is no head; for the server of programs elsewhere write {_CLIENT}{address}"
    return ""


def _channel(grpc: Any, server: str) -> Any:
    """Return a channel to a server, with Ray's own certificates where `RAY_USE_TLS` asks for them."""
    options = [("grpc.enable_http_proxy", 0)]  # as Ray has it
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return grpc.insecure_channel(server, options)
    try:
        files = [Path(os.environ[f"RAY_TLS_{name}"]).read_bytes() for name in ("CA_CERT", "SERVER_KEY", "SERVER_CERT")]
    except (KeyError, OSError) as error:
        raise UsageError(f"RAY_USE_TLS needs RAY_TLS_CA_CERT, _SERVER_KEY and _SERVER_CERT: found {error!r}") from None
    return grpc.secure_channel(server, grpc.ssl_channel_credentials(*files), options)


class _RayWorker(Worker):
    """A Ray actor. It reserves no cores: the caller decides how many workers to start."""

    def __init__(self, engine: RayEngine, ray: Any, make: Callable[[], object], name: str, advice: str) -> None:
        super().__init__(name, advice)
        self._engine, self._ray = engine, ray
        make_there = functools.partial(_make, ray.cloudpickle.dumps(make))
        try:
            self._actor = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(WorkerHost).remote(make_there)
        except Exception as error:  # Ray raises many types once its connection is lost
            raise WorkerDiedError(f"no process of {name} starts ({engine._why(error)})") from None

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Answer:
        try:
            answer: Answer = self._ray.get(self._actor.call.remote(method, arguments))
        except Exception as error:  # errors of the object are part of the answer; of Ray, there are many types
            raise WorkerDiedError(f"the process of {self.name} died ({self._engine._why(error)})") from None
        return answer

    def end(self) -> None:
        with contextlib.suppress(Exception):  # it has ended, or the whole cluster
            if not self._is_busy:
                self._ray.get(self._actor.close.remote(), timeout=STOP_S)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)


@functools.lru_cache(maxsize=4)
def _read(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - sent by the program that started this process


def _run(data: bytes, item: Any) -> Any:
    os.environ.update(dict.fromkeys(THREADS, "1"))  # in time for XLA; Ray has limited BLAS before
    return _read(data)(item)


def _make(data: bytes) -> object:
    return _read(data)()
