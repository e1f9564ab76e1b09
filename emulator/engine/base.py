"""What all engines have in common: what they offer, and how work is done in its process."""

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
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NPROC")  # XLA's
DEATHS_MAX = 5  # then something is wrong with the machine, and no more items are spent on it
STOP_S = 10.0
Answer = tuple[Any, str]
"""A result and what went wrong, of which one is empty."""
Submit = Callable[[Any], "Future[Answer]"]
"""Has an item worked on in another process."""


class Refused(str):
    """What a `DcaError` said, with the exit code of a command that ends with it."""

    exit_code: int = UsageError.exit_code


def value_of(answer: Answer, whose: str = "") -> Any:
    """A result. Raises `UsageError` where the work raised a `DcaError`, else `RuntimeError` with the cause."""
    result, trouble = answer
    if isinstance(trouble, Refused):
        error = UsageError(f"{whose}{trouble}")
        error.exit_code = trouble.exit_code
        raise error
    if trouble:
        raise RuntimeError(f"{whose}{trouble}")
    return result


class Done(NamedTuple, Generic[T, R]):
    """What became of an item: its result, or why there is none: what was raised, or that its process died over it."""

    item: T
    result: R | None
    trouble: str = ""

    def value(self) -> R:
        """The result. Raises as `value_of` does."""
        whose = "" if isinstance(self.trouble, Refused) else f"{self.item}: "
        return cast(R, value_of((self.result, self.trouble), whose))


class WorkerDiedError(DcaError):
    """A worker's process ended before it was asked to, or too many did."""

    exit_code = 9


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
        answer = self._call(method, arguments)
        self._is_busy = False
        return value_of(answer, f"{self.name}: ")

    @abstractmethod
    def _call(self, method: str, arguments: tuple[Any, ...]) -> Answer: ...

    @abstractmethod
    def end(self) -> None:
        """Call the object's `close`, if it has one, and end its process; in the middle of a call, unwind that."""


class Engine(ABC):
    """Somewhere to work, as a context.

    Attributes:
        is_local: whether all processes are on this machine.
        died: what the future of an item raises whose process died.
    """

    is_local = True
    died: type[Exception]

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

        Raises:
            WorkerDiedError: too many processes have died; after the results that there are.
        """
        early: dict[int, Done[T, R]] = {}
        following = 0
        for (number, item), answer in self._answers(work, enumerate(items), processes or self._processes):
            if not ordered:
                yield Done(item, *answer)
                continue
            early[number] = Done(item, *answer)
            while following in early:
                yield early.pop(following)
                following += 1

    def _answers(
        self, work: Callable[[T], R], numbered: Iterator[tuple[int, T]], count: int
    ) -> Iterator[tuple[tuple[int, T], Answer]]:
        deaths = 0
        while True:
            lost: list[tuple[int, T]] = []
            with self._pool(work, count) as submit:
                yield from self._crowd(submit, numbered, count, lost)
            if not lost:
                return
            if deaths >= DEATHS_MAX:
                raise WorkerDiedError(f"{DEATHS_MAX} worker processes have died; see what ends them, then start again")
            for pair in lost:  # each alone, so that the one that kills its process is known
                with self._pool(work, 1) as submit:
                    try:
                        yield pair, submit(pair[1]).result()
                    except self.died as error:
                        deaths += 1
                        yield pair, (None, f"the worker process died over it twice ({self._why(error)})")

    def _crowd(
        self, submit: Submit, numbered: Iterator[tuple[int, T]], count: int, lost: list[tuple[int, T]]
    ) -> Iterator[tuple[tuple[int, T], Answer]]:
        """Results until there are no more items, or a process has died; then `lost` are those that it worked on."""
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
        """How many items are worked on at once, where nobody says it."""

    @abstractmethod
    def _pool(self, work: Callable[[Any], Any], count: int) -> AbstractContextManager[Submit]:
        """So many processes for a work, which end with the block, whatever they do."""

    def _why(self, error: Exception) -> str:
        return str(error).strip().splitlines()[0]

    @abstractmethod
    def worker(self, make: Callable[[], object], name: str, advice: str = "") -> Worker:
        """Start a process with the object that `make` returns there.

        Args: as of `Worker`.
        """


def attempt(work: Callable[..., Any], *arguments: Any) -> Answer:
    """What a call returns, or why it does not; in the process that works."""
    try:
        return work(*arguments), ""
    except DcaError as error:
        refused = Refused(error)
        refused.exit_code = error.exit_code
        return None, refused
    except Exception:  # reported with the results; the next item may be better
        return None, traceback.format_exc(limit=-4)


class Host:
    """A worker's object in its process, made as it is first called."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self._object: object = None

    def call(self, method: str, arguments: tuple[Any, ...]) -> Answer:
        """What a method returns, or why it does not."""
        return attempt(self._call, method, arguments)

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if self._object is None:
            self._object = self._make()
        return getattr(self._object, method)(*arguments)

    def close(self) -> None:
        """Let the object put away what it has."""
        if hasattr(self._object, "close"):
            self._object.close()
