"""A local report's random stream with words that a test chooses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dca_proto.privacy.local.stream import Stream

KEY = bytes(range(32))


class Scripted(Stream):
    """A stream that returns given words."""

    words: np.ndarray
    later: tuple[int, ...] = ()

    def rows(self, rows: int, words: int, dtype: object) -> Iterator[tuple[slice, np.ndarray]]:
        assert self.words.shape == (rows, words)
        yield slice(0, rows), self.words

    def further(self, row: int, word: int) -> Iterator[int]:
        return iter(self.later)


def scripted(monkeypatch: pytest.MonkeyPatch, module: object, words: np.ndarray, later: tuple[int, ...] = ()) -> None:
    monkeypatch.setattr(module, "Stream", type("Told", (Scripted,), {"words": words, "later": later}))
