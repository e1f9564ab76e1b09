"""The interface of all engines, and the code that runs work in its process."""

from __future__ import annotations

import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar, cast

from dca_proto.errors import DcaError, UsageError

T = TypeVar("T")
R = TypeVar("R")
LOCAL, RAY = "local", "ray"
HELP = "Where the work runs: local, ray (the cluster of RAY_ADDRESS or of this machine), or ray://host:port."
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NPROC")
"""Environment variables that limit the threads of BLAS, and (NPROC) of XLA."""
DEATHS_MAX = 5  # after that, the machine is probably at fault
STOP_S = 10.0
Answer = tuple[Any, str]
"""A result and an error text, one of which is empty."""
Submit = Callable[[Any], "Future[Answer]"]
"""Starts work on an item in another process."""


class RefusedWork(str):
    """The message of a `DcaError`, with its exit code."""

    exit_code: int = UsageError.exit_code


def value_of(answer: Answer, prefix: str = "") -> Any:
    """Return the result. Raises `UsageError` if the work raised a `DcaError`, else `RuntimeError` with the cause."""
    result, trouble = answer
    if isinstance(trouble, RefusedWork):
        error = UsageError(f"{prefix}{trouble}")
        error.exit_code = trouble.exit_code
        raise error
    if trouble:
        raise RuntimeError(f"{prefix}{trouble}")
    return result


class Done(NamedTuple, Generic[T, R]):
    """An item with its result, or with the reason why it has none: an exception, or the death of its process."""

    item: T
    result: R | None
    trouble: str = ""

    def value(self) -> R:
        """Return the result. Raises as `value_of` does."""
        prefix = "" if isinstance(self.trouble, RefusedWork) else f"{self.item}: "
        return cast(R, value_of((self.result, self.trouble), prefix))


class WorkerDiedError(DcaError):
    """A worker's process ended before it was asked to, or too many processes died."""

    exit_code = 9


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker(ABC):
    """An object in a process of its own; a context manager that ends the process.

    Args:
        name: for error messages. advice: what the user can do if the system kills the process because memory is full.
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
        """Call a method of the object and return its result; one call at a time.

        Raises:
            WorkerDiedError: the process ended. UsageError: the method raised a `DcaError`.
            RuntimeError: it raised something else; the message has the traceback.
        """
        self._is_busy = True  # stays True if this call is interrupted
        answer = self._call(method, arguments)
        self._is_busy = False
        return value_of(answer, f"{self.name}: ")

    @abstractmethod
    def _call(self, method: str, arguments: tuple[Any, ...]) -> Answer: ...

    @abstractmethod
    def end(self) -> None:
        """Call the object's `close`, if it has one, and end its process. If a call was interrupted, unwind it."""


class Engine(ABC):
    """A place to run work; a context manager.

    Attributes:
        is_local: whether all processes run on this machine.
        died: the exception type that an item's future raises if its process died.
    """

    is_local = True
    died: type[Exception]

    @property
    @abstractmethod
    def cores(self) -> int:
        """How many cores its machines have for this process."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *failure: object) -> None:
        self.end()

    def end(self) -> None:  # noqa: B027 - local processes end with their work
        """End what still runs."""

    def map(
        self, work: Callable[[T], R], items: Iterable[T], *, processes: int | None = None, ordered: bool = False
    ) -> Iterator[Done[T, R]]:
        """Yield the results of all items. An item is taken from `items` only when a process is free.

        Args:
            work: a pure function that a fresh process can import, or that can be pickled.
            processes: how many run at once; by default as many as there are cores.
            ordered: yield results in the items' order, not as they finish.

        Raises:
            WorkerDiedError: too many processes have died; raised after the results so far.
        """
        early: dict[int, Done[T, R]] = {}
        next_number = 0
        for (number, item), answer in self._answers(work, enumerate(items), processes or self._processes):
            if not ordered:
                yield Done(item, *answer)
                continue
            early[number] = Done(item, *answer)
            while next_number in early:
                yield early.pop(next_number)
                next_number += 1

    def _answers(
        self, work: Callable[[T], R], numbered: Iterator[tuple[int, T]], count: int
    ) -> Iterator[tuple[tuple[int, T], Answer]]:
        deaths = 0
        while True:
            lost: list[tuple[int, T]] = []
            with self._pool(work, count) as submit:
                yield from self._until_lost(submit, numbered, count, lost)
            if not lost:
                return
            if deaths >= DEATHS_MAX:
                raise WorkerDiedError(f"{DEATHS_MAX} worker processes have died; see what ends them, then start again")
            for pair in lost:  # each alone, to find the one that kills its process
                with self._pool(work, 1) as submit:
                    try:
                        yield pair, submit(pair[1]).result()
                    except self.died as error:
                        deaths += 1
                        yield pair, (None, f"the worker process died over it twice ({self._why(error)})")

    def _until_lost(
        self, submit: Submit, numbered: Iterator[tuple[int, T]], count: int, lost: list[tuple[int, T]]
    ) -> Iterator[tuple[tuple[int, T], Answer]]:
        """Yield results until no items remain or a process dies; then put the items in work into `lost`."""
        running: dict[Future[Answer], tuple[int, T]] = {}
        while running or not lost:
            while not lost and len(running) < count and (pair := next(numbered, None)) is not None:
                running[submit(pair[1])] = pair
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                pair = running.pop(future)
                if isinstance(future.exception(), self.died):
                    lost.append(pair)
                else:
                    yield pair, future.result()

    @property
    @abstractmethod
    def _processes(self) -> int:
        """The default number of items in work at once."""

    @abstractmethod
    def _pool(self, work: Callable[[Any], Any], count: int) -> AbstractContextManager[Submit]:
        """Start `count` processes for `work`; they end with the block, even in the middle of an item."""

    def _why(self, error: Exception) -> str:
        return (str(error).strip() or type(error).__name__).splitlines()[0]

    @abstractmethod
    def worker(self, make: Callable[[], object], name: str, advice: str = "") -> Worker:
        """Start a process that calls `make` and keeps the object that it returns. Other arguments: see `Worker`.

        Raises `WorkerDiedError` if the system, or the cluster, lets no process start.
        """


def attempt(work: Callable[..., Any], *arguments: Any) -> Answer:
    """Call `work` in this process, and return its result or its error."""
    try:
        return work(*arguments), ""
    except DcaError as error:
        refused = RefusedWork(error)
        refused.exit_code = error.exit_code
        return None, refused
    except Exception:  # reported with the results; the next item may be better
        return None, traceback.format_exc(limit=-4)


class WorkerHost:
    """A worker's object in its process; made at the first call."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self._object: object = None

    def call(self, method: str, arguments: tuple[Any, ...]) -> Answer:
        """Call a method, and return its result or its error."""
        return attempt(self._call, method, arguments)

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if self._object is None:
            self._object = self._make()
        return getattr(self._object, method)(*arguments)

    def close(self) -> None:
        """Close the object, if it has a `close`."""
        if hasattr(self._object, "close"):
            self._object.close()
