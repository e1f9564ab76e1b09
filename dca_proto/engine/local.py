"""The engine of this machine: joblib's loky for `map`, multiprocessing for workers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NoReturn

from dca_proto.engine.base import (
    STOP_S,
    THREADS,
    Answer,
    Engine,
    Submit,
    Worker,
    WorkerDiedError,
    WorkerHost,
    attempt,
    cores,
)

_LOOK_S = 0.2
_is_at_work = False  # whether SIGTERM must unwind work in this process


class LocalEngine(Engine):
    """Processes of this machine."""

    died = BrokenProcessPool

    @property
    def cores(self) -> int:
        return cores()

    @property
    def _processes(self) -> int:
        return cores()

    @contextlib.contextmanager
    def _pool(self, work: Callable[[Any], Any], count: int) -> Iterator[Submit]:
        """Processes with one thread each for BLAS and XLA. If one dies, all items in work are lost."""
        from joblib.externals.loky import ProcessPoolExecutor  # slow to import
        from joblib.externals.loky.backend import get_context

        before = set(multiprocessing.active_children())
        context = get_context("loky_init_main")  # imports the main script, so that work defined there is found
        with ProcessPoolExecutor(count, context=context, initializer=_begin, initargs=(os.getpid(),)) as executor:

            def submit(item: Any) -> Future[Answer]:
                try:
                    future: Future[Answer] = executor.submit(_attempt_here, work, item)
                except BrokenProcessPool as error:  # a process died since the last `wait`
                    future = Future()
                    future.set_exception(error)
                return future

            with ignoring_ctrl_c(), one_thread_each():
                executor.submit(os.getpid)  # starts all processes
            try:
                yield submit
            except BaseException:
                _end(set(multiprocessing.active_children()) - before)
                raise
            finally:
                executor.shutdown(kill_workers=True)

    def _why(self, error: Exception) -> str:
        found = re.search(r"exit codes of the workers are \{\w+\((-?\d+)\)", str(error))
        return f"exit code {found[1]}" if found else str(error)

    def worker(self, make: Callable[[], object], name: str, advice: str = "") -> Worker:
        return _LocalWorker(make, name, advice)


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Within the block, libraries and processes that start use one thread each for BLAS and XLA."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def ignoring_ctrl_c() -> Iterator[None]:
    """Within the block, processes that start ignore Ctrl-C."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _attempt_here(work: Callable[[Any], Any], item: Any) -> Answer:
    """As `attempt`; meanwhile SIGTERM unwinds the work."""
    global _is_at_work
    _is_at_work = True
    try:
        return attempt(work, item)
    except SystemExit:  # SIGTERM has unwound the work, and no one waits for a result
        os._exit(1)
    finally:
        _is_at_work = False


def _begin(parent: int) -> None:
    """Set up a new process: SIGTERM unwinds its work, and it ends with its parent."""
    signal.signal(signal.SIGTERM, _unwind)
    end_with(parent)


def _unwind(number: int, frame: object) -> NoReturn:
    if _is_at_work:
        sys.exit(128 + number)
    os._exit(128 + number)


def end_with(parent: int) -> None:
    """Make this process end as soon as its parent ends, even in the middle of work."""

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _end(processes: Iterable[Any]) -> None:
    """Ask processes to unwind and end, and wait at most `STOP_S`."""
    until_s = time.monotonic() + STOP_S
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(max(0.0, until_s - time.monotonic()))


def spawn(serve: Callable[..., None], *arguments: object, daemon: bool = False) -> tuple[SpawnProcess, Connection]:
    """Start a fresh process that ignores Ctrl-C, and return it with our end of a pipe to it.

    Args:
        serve: called there with this process's id, its end of the pipe, and `arguments`.
        daemon: as of multiprocessing: the process may start no processes of its own.
    """
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=serve, args=(os.getpid(), theirs, *arguments), daemon=daemon)
    with ignoring_ctrl_c():
        process.start()
    theirs.close()
    return process, pipe


def death_of(process: SpawnProcess, name: str, advice: str) -> WorkerDiedError:
    """Return an error that states how the process ended."""
    process.join(STOP_S)
    code = process.exitcode
    if code == -signal.SIGKILL:
        return WorkerDiedError(f"{name} was killed (the system does so when memory is full{advice and ': '}{advice})")
    ending = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
    return WorkerDiedError(f"{name} {ending}")


class _LocalWorker(Worker):
    """A process with a pipe to it."""

    def __init__(self, make: Callable[[], object], name: str, advice: str) -> None:
        super().__init__(name, advice)
        # sent with the first call: sending blocks until the process has started
        self._make: Callable[[], object] | None = make
        try:
            self._process, self._pipe = spawn(_serve)
        except OSError as error:  # too many processes or files, or memory is full
            raise WorkerDiedError(f"no process of {name} starts ({error})") from None

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Answer:
        try:
            if self._make is not None:
                self._pipe.send(self._make)
                self._make = None
            self._pipe.send((method, arguments))
            answer: Answer = self._pipe.recv()
        except (EOFError, OSError):
            raise death_of(self._process, f"the process of {self.name}", self._advice) from None
        return answer

    def end(self) -> None:
        if not self._is_busy:
            self._pipe.close()
            self._process.join(STOP_S)
        _end([self._process])
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(parent: int, pipe: Connection) -> None:
    global _is_at_work
    _is_at_work = True
    os.setsid()  # Linux schedules by session first (autogroup), so a session of its own gets a fair part of a busy CPU
    _begin(parent)
    with contextlib.suppress(EOFError, OSError):  # the parent has closed the pipe
        host = WorkerHost(pipe.recv())
        try:
            while True:
                pipe.send(host.call(*pipe.recv()))
        finally:
            host.close()
