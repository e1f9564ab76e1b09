"""Judges the shape of noise that has a row for each run: of single clients, and of all that a coalition does not know.

Noise of plain rounds is discrete Gaussian. In a verified sum, it is a sum of uniform numbers: the coins make each of
them uniform, whatever its client chose. Their law is computed from that of one number alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.shape import NoiseTable, Places, Shape, Values, largest_of_gaussian, of_gaussian

_RANDOM_LINES = 4
_ROWS_WAIT_MIN, _VALUES_WAIT = 16, 1 << 16


class Law(Protocol):
    """The law of one value."""

    @property
    def largest(self) -> float:
        """A bound on the probability of any one value."""

    def places(self, noise: Values, terms: int, signs: int, dither: np.random.Generator) -> Places:
        """Return the places of sums of independent values.

        Args:
            noise: the sums. terms: how many values each adds or subtracts. signs: how many more it adds.
        """


class GaussianLaw(NamedTuple):
    """Discrete Gaussian noise of this variance."""

    variance: float

    @property
    def largest(self) -> float:
        return largest_of_gaussian(self.variance)

    def places(self, noise: Values, terms: int, signs: int, dither: np.random.Generator) -> Places:
        return of_gaussian(noise, terms * self.variance, dither)


class Uniforms(NamedTuple):
    """A sum of `numbers` independent uniform numbers on 0..2^bits - 1, less `less`."""

    numbers: int
    bits: int
    less: int

    @property
    def largest(self) -> float:
        return float(_chances(self.numbers, self.bits).own.max())

    def places(self, noise: Values, terms: int, signs: int, dither: np.random.Generator) -> Places:
        top = self.numbers * ((1 << self.bits) - 1)
        chances = _chances(terms * self.numbers, self.bits)  # the law is symmetric, so signs make no difference
        at = (2 * noise + signs * (2 * self.less - top) + terms * top) // 2
        known = np.clip(at, 0, terms * top)
        part = dither.random(noise.shape) * chances.own[known]
        below, above = chances.below[known] + part, chances.above[known] + part
        places = np.where(2 * known < terms * top, below, 1 - above)
        return np.where(at < 0, 0.0, np.where(at > terms * top, 1.0, places))


class _Chances(NamedTuple):
    """Of each value: its own probability, and that of all values below it and above it."""

    own: NDArray[np.float64]
    below: NDArray[np.float64]
    above: NDArray[np.float64]


@lru_cache(maxsize=32)
def _chances(numbers: int, bits: int) -> _Chances:
    """Return the law of a sum of uniform numbers, to about 10⁻¹³."""
    size = numbers * ((1 << bits) - 1) + 1
    length = 1 << size.bit_length()
    one = np.zeros(length)
    one[: 1 << bits] = 2.0**-bits
    own = np.maximum(np.fft.irfft(np.fft.rfft(one) ** numbers, length)[:size], 0.0)
    below = np.concatenate([[0.0], np.cumsum(own)[:-1]])
    return _Chances(own, below, below[::-1])


class Rows:
    """Judges rows of independent noise: coordinate by coordinate, and along lines across the coordinates.

    Args:
        name: of the noise. law: of each coordinate. size: number of coordinates.
        dither: for places, and for the signs of some lines.

    Attributes:
        shape: the counts so far, after `flush`.
    """

    def __init__(self, name: str, law: Law, size: int, dither: np.random.Generator) -> None:
        self.shape = Shape()
        self._name, self._law, self._dither = name, law, dither
        self._lines = {"sum": np.ones(size, dtype=np.int64), "alternating sum": np.resize([1, -1], size)}
        for number in range(_RANDOM_LINES):
            self._lines[f"sum with random signs {number + 1}"] = 2 * dither.integers(0, 2, size) - 1
        self._waiting: list[tuple[Values, Any, Any]] = []

    def add(self, row: Values, client: Any = 0, round_id: Any = None) -> None:
        """Add a row; the number of rows that wait to be counted is bounded."""
        self._waiting.append((row, client, round_id if round_id is not None else len(self._waiting)))
        if len(self._waiting) >= max(_ROWS_WAIT_MIN, _VALUES_WAIT // row.size):
            self.flush()

    def flush(self) -> None:
        """Count the rows that wait."""
        if self._waiting:
            rows, clients, rounds = zip(*self._waiting, strict=True)
            self._waiting.clear()
            self.count(np.array(rows), clients, rounds)

    def count(self, noise: Values, clients: tuple[Any, ...] = (), rounds: tuple[Any, ...] = ()) -> None:
        """Count some rows at once, which are compared with each other if their clients and rounds are given."""
        law, size, dither = self._law, noise.shape[1], self._dither
        places = law.places(noise, 1, 1, dither)
        self.shape.count(NoiseTable(self._name, places, noise, law.largest, None, clients, rounds), dither)
        if size == 1:
            return
        for name, line in self._lines.items():
            along = law.places(noise @ line, size, int(line.sum()), dither)
            self.shape.count_line(f"{self._name}, {name}", along)
        apart = (noise[:, : size // 2 * 2 : 2] - noise[:, 1::2]).ravel()
        self.shape.count_line(f"{self._name}, differences of neighbours", law.places(apart, 2, 0, dither))
