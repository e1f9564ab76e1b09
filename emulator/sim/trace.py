"""The trace of a run: facts with time and actor. Facts contain no secret and no ciphertext.

The digest identifies a run. It covers every fact, also those no longer kept, and every message: time, sender, receiver
and bytes. Measurements disable the trace.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import NamedTuple

import msgspec
import numpy as np

_DIGEST_BYTES = 16
_BUFFER_BYTES = 1 << 16


class TraceEntry(NamedTuple):
    """One fact. `at_ms`: virtual Unix milliseconds. `actor`: id of the reporting actor, empty for the emulator."""

    at_ms: int
    actor: bytes
    fact: object


class Trace:
    """Facts in the order of their reports, and a digest.

    Args:
        keep_max: number of last facts to keep; None keeps all, 0 disables the trace and the digest.

    Attributes:
        entries: the kept facts. count: number of all facts. is_on: False if the trace is disabled.
    """

    def __init__(self, keep_max: int | None = None) -> None:
        self.entries: deque[TraceEntry] = deque(maxlen=keep_max)
        self.count = 0
        self.is_on = keep_max != 0
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_array)
        self._encoded = bytearray()

    def note(self, at_ms: int, actor: bytes, fact: object) -> None:
        """Add one fact."""
        if not self.is_on:
            return
        self.entries.append(TraceEntry(at_ms, actor, fact))
        self.count += 1
        # MessagePack values mark their own end, so concatenation is unambiguous. Fields are encoded by name, in order.
        self._absorb((at_ms, actor, type(fact).__name__, fact))

    def passed(self, at_us: int, sender: bytes, channel: str, receiver: bytes, payload: bytes) -> None:
        """Add a message to the digest alone."""
        if self.is_on:
            self._absorb((at_us, sender, channel, receiver, payload))

    def digest(self) -> str:
        """Return the hexadecimal BLAKE2b digest of all facts and messages so far."""
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
