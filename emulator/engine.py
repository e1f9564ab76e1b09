"""Where work runs: on this machine's cores, or on a cluster. Everything here that needs processes takes them from here.

    map      pure work on many items, in the order in which it is done or in that of the items
    worker   an object that lives in a process of its own, whose methods are called

`local` maps by joblib's loky. Its workers are processes of multiprocessing, because loky ends a process that has grown
by 300 MB. `ray` maps by Ray's tasks, and its workers are Ray's actors.

Mapped work must be pure: a result depends on its item alone. So it is the same on every engine, and work whose process
died is tried a second time, alone. Work that dies twice is named, and the other items go on. A worker has a state, so
nothing of it is tried again: its next call raises `WorkerDiedError`, which names it.

A process ends with the one that started it, however that ends. Ctrl-C is for that one to answer: the others do not
receive it, and get SIGTERM, which unwinds what they do.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, cast

from dca_proto.core.errors import DcaError, UsageError

T = TypeVar("T")
R = TypeVar("R")
LOCAL, RAY = "local", "ray"
HELP = "Where the work runs: local, ray (the cluster of RAY_ADDRESS or of this machine), or ray://host:port."
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NPROC")  # XLA's
DEATHS_MAX = 5  # then something is wrong with the machine, and no more items are spent on it
STOP_S = 10.0
_LOOK_S = 0.2
RESULT, REFUSED, FAILED = range(3)  # how a call of a worker went
_is_at_work = False  # whether SIGTERM has something to unwind in this process
Answer = tuple[Any, str]
"""A result and what went wrong, of which one is empty."""


class Done(NamedTuple, Generic[T, R]):
    """What became of an item: its result, or why there is none: what was raised, or that its process died over it."""

    item: T
    result: R | None
    trouble: str = ""

    def value(self) -> R:
        """The result. Raises `RuntimeError`, with the cause, where there is none."""
        if self.trouble:
            raise RuntimeError(f"{self.item}: {self.trouble}")
        return cast(R, self.result)


class WorkerDiedError(UsageError):
    """A worker's process ended before it was told to."""


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_engine(name: str = LOCAL) -> Engine:
    """The engine of that name, to be used as a context.

    Args:
        name: as `--engine` has it; see `HELP`.

    Raises:
        UsageError: there is none of that name, Ray is not installed, or no cluster answers.
    """
    if name == LOCAL:
        return _Local()
    if name == RAY or name.startswith(f"{RAY}://"):
        from emulator.cluster import RayEngine  # which needs what a cluster needs

        return RayEngine(name)
    raise UsageError(f"--engine {name}: expected local, ray or ray://host:port")


class Worker(ABC):
    """An object in a process of its own, as a context that ends it.

    Args:
        name: whom it runs. advice: what to do where the system kills it for want of memory.
    """

    def __init__(self, name: str, advice: str) -> None:
        self.name = name
        self._advice = advice
        self._is_busy = False

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *failure: object) -> None:
        self.end()

    def call(self, method: str, *arguments: Any) -> Any:
        """What the method returns; one call at a time.

        Raises:
            WorkerDiedError: the process ended. UsageError: the method raised a `DcaError`.
            RuntimeError: it raised something else; with where.
        """
        self._is_busy = True  # and stays so where this call is interrupted
        kind, value = self._call(method, arguments)
        self._is_busy = False
        if kind == RESULT:
            return value
        raise (UsageError if kind == REFUSED else RuntimeError)(f"{self.name}: {value}")

    @abstractmethod
    def _call(self, method: str, arguments: tuple[Any, ...]) -> tuple[int, Any]: ...

    @abstractmethod
    def end(self) -> None:
        """Call the object's `close`, if it has one, and end its process; in the middle of a call, unwind that."""


class Engine(ABC):
    """Somewhere to work, as a context.

    Attributes:
        is_local: whether all processes are on this machine.
    """

    is_local = True

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *failure: object) -> None:
        self.end()

    def end(self) -> None:  # noqa: B027 - local processes end with their work
        """End what still runs."""

    def map(
        self, work: Callable[[T], R], items: Iterable[T], *, processes: int | None = None, ordered: bool = False
    ) -> Iterator[Done[T, R]]:
        """The results of all items, as they come or in the items' order. An item is taken once a process is free.

        Args:
            work: pure; a function that a fresh process can import or that can be pickled.
            processes: at once; by default all cores.
        """
        early: dict[int, Done[T, R]] = {}
        following = 0
        for (number, item), answer in self._answers(work, enumerate(items), processes):
            if not ordered:
                yield Done(item, *answer)
                continue
            early[number] = Done(item, *answer)
            while following in early:
                yield early.pop(following)
                following += 1

    @abstractmethod
    def _answers(
        self, work: Callable[[T], R], numbered: Iterator[tuple[int, T]], processes: int | None
    ) -> Iterator[tuple[tuple[int, T], Answer]]: ...

    @abstractmethod
    def worker(self, make: Callable[[], object], name: str, advice: str = "") -> Worker:
        """Start a process with the object that `make` returns there.

        Args: as of `Worker`.
        """


def attempt(work: Callable[[Any], Any], item: Any) -> Answer:
    """An item's result; in the process that works."""
    global _is_at_work
    _is_at_work = True
    try:
        return work(item), ""
    except Exception:  # told where the results are; the next item may be better
        return None, traceback.format_exc(limit=-4)
    except SystemExit:  # the work is unwound, and nobody waits for more
        os._exit(1)
    finally:
        _is_at_work = False


class Host:
    """A worker's object in its process, made as it is first called."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self._object: object = None

    def call(self, method: str, arguments: tuple[Any, ...]) -> tuple[int, Any]:
        """How it went, and what it returned or why it did not."""
        try:
            if self._object is None:
                self._object = self._make()
            return RESULT, getattr(self._object, method)(*arguments)
        except DcaError as error:
            return REFUSED, str(error)
        except Exception:
            return FAILED, traceback.format_exc(limit=-4)

    def close(self) -> None:
        """Let the object put away what it has."""
        if hasattr(self._object, "close"):
            self._object.close()


# --- this machine ----------------------------------------------------------------------------------------------------


class _Local(Engine):
    """Processes of this machine."""

    def _answers(
        self, work: Callable[[T], R], numbered: Iterator[tuple[int, T]], processes: int | None
    ) -> Iterator[tuple[tuple[int, T], Answer]]:
        count, deaths = processes or cores(), 0
        while deaths < DEATHS_MAX:
            lost: list[tuple[int, T]] = []
            with _pool(count) as submit:
                yield from _crowd(submit, work, numbered, count, lost)
            if not lost:
                return
            for pair in lost:  # each alone, so that the one that kills its process is known
                with _pool(1) as submit:
                    try:
                        yield pair, submit(attempt, work, pair[1]).result()
                    except BrokenProcessPool as error:
                        deaths += 1
                        yield pair, (None, f"the worker process died over it twice ({_exit_codes(error)})")

    def worker(self, make: Callable[[], object], name: str, advice: str = "") -> Worker:
        return _LocalWorker(make, name, advice)


def _crowd(
    submit: Callable[..., Future[Answer]],
    work: Callable[[T], R],
    numbered: Iterator[tuple[int, T]],
    count: int,
    lost: list[tuple[int, T]],
) -> Iterator[tuple[tuple[int, T], Answer]]:
    """Results until there are no more items, or a process has died; then `lost` are those that were being worked on."""
    running: dict[Future[Answer], tuple[int, T]] = {}
    while not lost:
        while len(running) < count and (pair := next(numbered, None)) is not None:
            running[submit(attempt, work, pair[1])] = pair
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            pair = running.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                lost.append(pair)
            else:
                yield pair, future.result()
    wait(running)  # the pool has given up all of them, or they were done just before
    for future, pair in running.items():
        if isinstance(future.exception(), BrokenProcessPool):
            lost.append(pair)
        else:
            yield pair, future.result()


@contextlib.contextmanager
def _pool(count: int) -> Iterator[Callable[..., Future[Answer]]]:
    """So many processes, with one thread each for BLAS and XLA; yields what submits work to them."""
    from joblib.externals.loky import ProcessPoolExecutor  # slow to import

    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(
        count, initializer=_begin, initargs=(os.getpid(),), env=dict.fromkeys(THREADS, "1")
    ) as executor:

        def submit(*work: Any) -> Future[Answer]:
            try:
                future: Future[Answer] = executor.submit(*work)
            except BrokenProcessPool as error:  # since the last look
                future = Future()
                future.set_exception(error)
            return future

        with deaf():
            executor.submit(os.getpid)  # which starts all processes
        try:
            yield submit
        except BaseException:
            _end(set(multiprocessing.active_children()) - before)
            raise
        finally:
            executor.shutdown(kill_workers=True)


def _exit_codes(error: BrokenProcessPool) -> str:
    found = re.search(r"exit codes of the workers are \{\w+\((-?\d+)\)", str(error))
    return f"exit code {found[1]}" if found else str(error)


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """What is computed here meanwhile has one thread each for BLAS and XLA; more than cores wait for each other."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Processes that are started meanwhile do not hear Ctrl-C."""
    answer = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, answer)


def _begin(parent: int) -> None:
    """At the start of a process: SIGTERM unwinds it, and it ends with its parent."""
    signal.signal(signal.SIGTERM, _unwind)
    end_with(parent)


def _unwind(number: int, frame: object) -> NoReturn:
    if _is_at_work:
        sys.exit(128 + number)
    os._exit(128 + number)


def end_with(parent: int) -> None:
    """Have this process end with the one that started it, in the middle of whatever it is."""

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _end(processes: Iterable[Any]) -> None:
    """Have processes unwind and end, for as long as that may take."""
    until_s = time.monotonic() + STOP_S
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(max(0.0, until_s - time.monotonic()))


class _LocalWorker(Worker):
    """A process with a pipe to it."""

    def __init__(self, make: Callable[[], object], name: str, advice: str) -> None:
        super().__init__(name, advice)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(os.getpid(), theirs, make))
        with deaf():
            self._process.start()
        theirs.close()

    def _call(self, method: str, arguments: tuple[Any, ...]) -> tuple[int, Any]:
        try:
            self._pipe.send((method, arguments))
            answer: tuple[int, Any] = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(STOP_S)
            ending = _ending(self._process.exitcode, self._advice)
            raise WorkerDiedError(f"the process of {self.name} {ending}") from None
        return answer

    def end(self) -> None:
        if not self._is_busy:
            self._pipe.close()
            self._process.join(STOP_S)
        _end([self._process])
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(parent: int, pipe: Connection, make: Callable[[], object]) -> None:
    """A local worker's life."""
    global _is_at_work
    _is_at_work = True
    _begin(parent)
    host = Host(make)
    with contextlib.suppress(EOFError, OSError):  # the parent has what it wanted
        while True:
            pipe.send(host.call(*pipe.recv()))
    host.close()


def _ending(code: int | None, advice: str) -> str:
    if code == -signal.SIGKILL:
        return f"was killed (by the system, where memory runs out{advice and ': '}{advice})"
    return f"was ended by signal {-code}" if code is not None and code < 0 else f"ended by itself with {code}"
