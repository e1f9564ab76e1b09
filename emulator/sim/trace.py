"""The trace of a run: which fact came from whom, when. Facts hold no secret and no ciphertext, so neither does it.

Its digest identifies a run. It covers every fact ever noted, also those that are no longer kept, and every message:
when it left whom for whom, and its bytes. Where nobody asks for either, as in measurements, there is none.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import NamedTuple

import msgspec
import numpy as np

_DIGEST_BYTES = 16
_BUFFER_BYTES = 1 << 16


class Entry(NamedTuple):
    """One fact. `at_ms`: virtual Unix milliseconds. `actor`: the id of whoever reported it, empty for the emulator."""

    at_ms: int
    actor: bytes
    fact: object


class Trace:
    """Facts in the order in which they were reported.

    Args:
        keep_max: how many of the last ones are kept; None keeps all. 0 is no trace at all: nothing is hashed either.

    Attributes:
        entries: those that are kept. count: how many there were. is_on: whether anything is noted at all.
    """

    def __init__(self, keep_max: int | None = None) -> None:
        self.entries: deque[Entry] = deque(maxlen=keep_max)
        self.count = 0
        self.is_on = keep_max != 0
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_array)
        self._encoded = bytearray()

    def note(self, at_ms: int, actor: bytes, fact: object) -> None:
        """Add one fact."""
        if not self.is_on:
            return
        self.entries.append(Entry(at_ms, actor, fact))
        self.count += 1
        # MessagePack ends itself, so what follows what is plain without lengths. Fields go with their names, in order.
        self._absorb((at_ms, actor, type(fact).__name__, fact))

    def passed(self, at_us: int, sender: bytes, channel: str, receiver: bytes, payload: bytes) -> None:
        """Add a message to the digest alone."""
        if self.is_on:
            self._absorb((at_us, sender, channel, receiver, payload))

    def digest(self) -> str:
        """Hexadecimal BLAKE2b over all facts and messages so far."""
        self._hash.update(self._encoded)
        self._encoded.clear()
        return self._hash.hexdigest()

    def _absorb(self, plain: tuple[object, ...]) -> None:
        self._encoder.encode_into(plain, self._encoded, -1)
        if len(self._encoded) > _BUFFER_BYTES:
            self._hash.update(self._encoded)
            self._encoded.clear()


def _array(value: object) -> object:
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a fact holds a {type(value).__name__}; expected plain data")
