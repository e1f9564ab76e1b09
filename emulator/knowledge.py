"""What others can learn: looks for secrets in all bytes that leave, and in what follows from them by DESIGN's labels.

A *secret* has owners, the only members that may know it. A *text* has readers: the members that can read it, or all.
The strongest coalition against a secret is everybody but its owners. It reads each text that one of its members can
read, so a secret must occur in no text with a reader who is not an owner. The same holds for what a reader can derive.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator import derivations

Members = frozenset[bytes]
"""Ids of members; as the readers of a text, empty if everybody can read it."""
EVERYBODY: Members = frozenset()
_WORD = 8
_HEX = re.compile(rb"[0-9a-f]{16,}")
_TABLE_BITS = 22
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hashing
_KEY_BYTES_MAX = 64  # of BLAKE2b


class Secret(NamedTuple):
    """A secret. `what`: its kind. `about`: whose it is. `owners`: the ids of those who may know it."""

    what: str
    about: str
    owners: Members

    def __str__(self) -> str:
        return f"{self.what} of {self.about}"


class Leak(NamedTuple):
    """A secret that others learn. `where`: the text or the value that gives it."""

    secret: Secret
    where: str

    def __str__(self) -> str:
        return f"{self.secret} is known to others: {self.where}"


class Knowledge:
    """The secrets of a run, and what leaves.

    A part of a secret counts as the secret: any of its words of 8 bytes, from its start on, as bytes or in hexadecimal.
    """

    def __init__(self) -> None:
        self._whole: dict[bytes, Secret] = {}
        self._words: dict[int, Secret] = {}
        self._texts: dict[bytes, tuple[Members, str]] = {}

    def keep(self, value: bytes, what: str, about: str, *owners: bytes) -> Secret | None:
        """Add a secret of at least 8 bytes. Return another secret that has the same value, if there is one."""
        secret = Secret(what, about, frozenset(owners))
        known = self._whole.setdefault(value, secret)
        if known is secret:
            for at in range(0, len(value) - _WORD + 1, _WORD):
                self._words.setdefault(int.from_bytes(value[at : at + _WORD], "little"), secret)
        return None if known == secret else known

    def hear(self, text: bytes, readers: Members, what: str) -> bool:
        """Add a text; return True if it is new. A text that is heard twice has the readers of both."""
        known = self._texts.get(text)
        if known is None:
            self._texts[text] = readers, what
            return True
        if known[0]:
            self._texts[text] = (known[0] | readers if readers else EVERYBODY), known[1]
        return False

    def __contains__(self, text: bytes) -> bool:
        """Return True if a text was heard."""
        return text in self._texts

    def __len__(self) -> int:
        return len(self._whole)

    @property
    def texts(self) -> list[tuple[bytes, Members, str]]:
        """All texts with their readers and descriptions."""
        return [(text, *known) for text, known in self._texts.items()]

    def samples(self) -> list[tuple[bytes, Secret]]:
        """Return one secret of each kind."""
        return list({secret.what: (value, secret) for value, secret in self._whole.items()}.values())

    def in_texts(self) -> Iterator[Leak]:
        """Yield the secrets that occur in a text which a member who is not an owner can read."""
        texts = [text for text in self._texts if len(text) >= _WORD]
        for text in texts[:]:
            for run in _HEX.findall(text):
                written = bytes.fromhex(run[: len(run) // 2 * 2].decode())
                self.hear(written, *self._texts[text])
                texts.append(written)
        joined = b"".join(texts)
        if not joined or not self._words:
            return
        starts, at = [], 0
        for text in texts:
            starts.append(at)
            at += len(text)
        table = np.zeros(1 << _TABLE_BITS, dtype=np.bool_)
        table[_places(np.array(list(self._words), dtype=np.uint64))] = True
        windows = np.ndarray((len(joined) - _WORD + 1,), dtype="<u8", buffer=joined, strides=(1,))
        for at in np.flatnonzero(table[_places(windows)]).tolist():
            secret = self._words.get(int(windows[at]))
            if secret is not None:
                place = bisect_right(starts, at) - 1
                readers, what = self._texts[texts[place]]
                if at + _WORD <= starts[place] + len(texts[place]) and not _may_know(readers, secret):
                    yield Leak(secret, f"it stands in {what}")

    def derived(self, value: bytes, readers: Members, what: str, messages: Iterable[bytes]) -> Iterator[Leak]:
        """Yield the secrets that readers of a value can derive with the labels of DESIGN, and with plain hashes.

        Args:
            messages: public values that enter together with the value as the key.
        """
        for how, result in _derivations(value, messages):
            leak = self._among(result, readers, f"{how} gives it from {what}")
            if leak is not None:
                yield leak
        if len(value) <= _KEY_BYTES_MAX:
            for first in _AS_KEYS:
                key = derivations.derive(value, first)
                for label in derivations.DERIVE:
                    how = f"the labels {first} and {label} give it from {what}"
                    leak = self._among(derivations.derive(key, label), readers, how)
                    if leak is not None:
                        yield leak

    def combined(self, values: Iterable[bytes]) -> Iterator[Leak]:
        """Yield the secrets that are a hash of up to three public values, one after the other."""
        known = list(values)
        for count in (1, 2, 3):
            for chosen in permutations(known, count):
                for label, result in _hashes(b"".join(chosen)):
                    leak = self._among(result, EVERYBODY, f"it is {label} of public values")
                    if leak is not None:
                        yield leak

    def _among(self, value: bytes, readers: Members, how: str) -> Leak | None:
        secret = self._words.get(int.from_bytes(value[:_WORD], "little"))
        return None if secret is None or _may_know(readers, secret) else Leak(secret, how)


_AS_KEYS = ("hedge", "root", "noise", "receipt-key")
"""Labels whose result is a key for others."""


def _may_know(readers: Members, secret: Secret) -> bool:
    return bool(readers) and readers <= secret.owners


def _places(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the place of each word in a table of 2^`_TABLE_BITS` bits."""
    return (words.astype(np.uint64) * _FACTOR) >> np.uint64(64 - _TABLE_BITS)


def _hashes(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the common hashes of data without a label."""
    for size in (32, 48):
        yield f"BLAKE2b-{8 * size}", hashlib.blake2b(data, digest_size=size).digest()
    yield "SHA-256", hashlib.sha256(data).digest()


def _derivations(value: bytes, messages: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield everything that a label makes of a value, and how."""
    yield from _hashes(value)
    for label in derivations.DIGEST:
        yield f"the label {label}", derivations.digest(label, value)
    for label in derivations.HASH:
        yield f"the label {label}", derivations.plain_hash(label, value)
    if len(value) <= _KEY_BYTES_MAX:
        for label in derivations.DERIVE:
            yield f"the label {label}", derivations.derive(value, label)
            for message in messages:
                yield f"the label {label} and public values", derivations.derive(value, label, message)
        for message in messages:
            yield "the label one", derivations.derive(value, "one", message, 64)
            yield "the label mask", derivations.tag_and_mask(value, message[:32], message[32:], 2)[8:]
