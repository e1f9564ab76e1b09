"""Named random streams of one seed: one more draw for one purpose does not change those for any other."""

from __future__ import annotations

import random

from dca_proto.crypto.sealing import digest


class Streams:
    """The streams of a seed.

    Args:
        seed: any number or text; equal ones give equal streams.
    """

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self._streams: dict[str, random.Random] = {}

    def __call__(self, name: str) -> random.Random:
        """The stream of one purpose, such as ``link/loss``; the same object each time."""
        stream = self._streams.get(name)
        if stream is None:
            start = int.from_bytes(digest(b"dca-stream", f"{self.seed}/{name}".encode()), "big")
            stream = self._streams[name] = random.Random(start)  # noqa: S311 - of the emulated world, never of keys
        return stream
