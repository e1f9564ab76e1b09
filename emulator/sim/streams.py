"""Named random streams of one seed. A draw from one stream does not change the others."""

from __future__ import annotations

import random

from dca_proto.crypto.sealing import digest


class Streams:
    """The streams of a seed, which is any number or text."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self._streams: dict[str, random.Random] = {}

    def __call__(self, name: str) -> random.Random:
        """Return the stream of one purpose, such as ``link/loss``; the same object each time."""
        stream = self._streams.get(name)
        if stream is None:
            start = int.from_bytes(digest(b"dca-stream", f"{self.seed}/{name}".encode()), "big")
            stream = self._streams[name] = random.Random(start)  # noqa: S311 - of the emulated world, never of keys
        return stream
