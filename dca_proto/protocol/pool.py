"""Work on many clients at once: a pure function over parts of them (DESIGN §7).

A Compute node checks signatures, agrees on keys and adds up masks for each of its clients. No client's part depends on
another's, so the runtime may give the node a `Pool` that spreads parts over processes of its trust domain
(`dca_proto.runtime.pool`). Results come in the order of the parts, so they do not depend on the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

PART_MAX = 1 << 14
"""Most items of a part: it bounds the memory of work on millions of clients."""
PART_US = 1e6
"""Longest part of work in this process, unless one item takes longer."""
A = TypeVar("A")
B = TypeVar("B")


class Pool:
    """Works in this process, one part after the other; subclasses use others.

    Args:
        on_part: called between the parts of long work, about once a second at least: the actor lives, and answers
            nobody.
    """

    def __init__(self, on_part: Callable[[], None] | None = None) -> None:
        self._on_part = on_part or (lambda: None)

    def pays(self, count: int, us: float) -> bool:
        """Return True if other processes now take work on `count` items of about `us` microseconds each."""
        return False

    def size(self, count: int, us: float) -> int:
        """Return how many items a part has, at most `PART_MAX`."""
        return PART_MAX

    def map(self, work: Callable[[A], B], parts: Iterable[A]) -> list[B]:
        """Apply a pure function, which a fresh process can import, to all parts; return the results in their order."""
        return [work(part) for part in parts]

    def spread(self, work: Callable[[A], B], count: int, us: float, part: Callable[[int, int], A]) -> Iterator[B]:
        """Apply `work` to parts of `count` items; `part` returns that of the items from a place up to another.

        Yields the results in their order: work in this process is done as they are taken, so none need be kept.
        """
        pays = self.pays(count, us)
        size = self.size(count, us) if pays else min(PART_MAX, max(1, int(PART_US / us)))
        parts = (part(start, min(start + size, count)) for start in range(0, count, size))
        if pays:
            yield from self.map(work, parts)
            return
        for number, one in enumerate(parts):
            if number > 0:
                self._on_part()
            yield work(one)
