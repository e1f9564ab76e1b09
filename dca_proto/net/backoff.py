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
