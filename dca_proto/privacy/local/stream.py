"""The uniform bits of a report: ChaCha20 under its key, in chunks of whole rows, and further bits for rare ties.

Each chunk has a ChaCha20 key of its own, derived from the report's key and the chunk's number by keyed BLAKE2b, so that
memory does not grow with the rows. The first rows do not depend on the number of rows. Further bits come from keyed
BLAKE2b of their position, and so leave all other words unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from itertools import count as naturals

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import KEY_BYTES, expand
from dca_proto.errors import UsageError

_CHUNK_BYTES = 2**18  # stays in the cache


class Stream:
    """Uniform words from one key of 32 fresh secret bytes, for one call of one mechanism.

    Raises `UsageError` for a key of another length or type.
    """

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            found = f"{type(key).__name__} of length {len(key)}" if hasattr(key, "__len__") else type(key).__name__
            raise UsageError(f"the key of a local report is a {found}, expected {KEY_BYTES} secret bytes")
        self._key = key

    def rows(self, rows: int, words: int, dtype: DTypeLike) -> Iterator[tuple[slice, NDArray[np.unsignedinteger]]]:
        """Yield the words of `rows` rows, chunk by chunk: a slice of rows, and their words, shape ``(len, words)``."""
        kind = np.dtype(dtype).newbyteorder("<")
        row_bytes = words * kind.itemsize
        step = max(1, _CHUNK_BYTES // row_bytes)
        for chunk, start in enumerate(range(0, rows, step)):
            part = slice(start, min(start + step, rows))
            stream = expand(self._derive(labels.LOCAL_CHUNK, chunk)[:KEY_BYTES], (part.stop - part.start) * row_bytes)
            yield part, np.frombuffer(stream, dtype=kind).reshape(-1, words)

    def further(self, row: int, word: int) -> Iterator[int]:
        """Yield words of 64 bits that continue one word of one row, without end."""
        for block in naturals():
            yield from struct.unpack("<8Q", self._derive(labels.LOCAL_SPARE, row, word, block))

    def _derive(self, label: bytes, *numbers: int) -> bytes:
        text = struct.pack(f"<{len(numbers)}Q", *numbers)
        return blake2b(text, key=self._key, person=label).digest()
