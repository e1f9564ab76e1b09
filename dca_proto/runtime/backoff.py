"""How long to wait before trying again: exponential and jittered, so that a swarm does not come back at once."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of `first_s`, doubled up to `most_s`, each spread evenly over its upper half."""

    first_s: float = 0.2
    most_s: float = 30.0

    def waits(self, rng: random.Random) -> Iterator[float]:
        """Endless waits in seconds."""
        wait_s = self.first_s
        while True:
            yield wait_s * (0.5 + 0.5 * rng.random())
            wait_s = min(2 * wait_s, self.most_s)


class Retries:
    """The waits of one connection. They begin anew only after it has lasted twice the longest of them.

    Two copies of one identity end each other's connections. Each try of theirs succeeds, so without this they would
    go on several times a second.

    Attributes:
        short: how many connections in a row have not lasted.
    """

    def __init__(self, backoff: Backoff, rng: random.Random) -> None:
        self._backoff = backoff
        self._rng = rng
        self._waits = backoff.waits(rng)
        self.short = 0

    def ended(self, lasted_s: float) -> None:
        """Note how long a connection lasted."""
        self.short += 1
        if lasted_s >= 2 * self._backoff.most_s:
            self.short = 0
            self._waits = self._backoff.waits(self._rng)

    def wait_s(self) -> float:
        """How long to wait before the next try, in seconds."""
        return next(self._waits)
