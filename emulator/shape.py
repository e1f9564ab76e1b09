"""The shape of noise: counts that follow exactly known laws if noise has the law that it should have.

Each value becomes its place u in its law, which is exactly uniform on (0, 1) and independent of all other places: the
probability of a smaller value, plus a random part of the probability of the value itself (the randomised probability
integral transform). So noises of any scale and law are judged together, and the reports of categorical mechanisms, too.

| counted | finds |
| --- | --- |
| 64 levels of u, folded and unfolded, coarse and fine | sign, mean, scale, kurtosis, any other law |
| min(u, 1 - u) below 2⁻⁷ to 2⁻¹⁸ | clipped, light and heavy tails |
| the sum of -ln 2 min(u, 1 - u), an exponential variable | too little or too much noise |
| 8 levels at each coordinate, by the sign of the value, by turn | noise that depends on them |
| sum and difference, modulo 8, of the levels of two places | correlated, repeated, shared, mirrored noise |
| the noise modulo 16 and 15 | lattices, rounding |
| equal stretches of noise | streams with a period, keys used twice |
| equal values | clipped noise, noise of few digits |

Sums and differences modulo 8 along a chain of pairs are independent and uniform, since the chain can be computed from
them and its first level. So all counts are binomial, exactly. Each is judged by Chernoff's bound from both sides, with
Bonferroni's correction for all tests: correct noise fails any of them with a probability below `alarm`, at any size.

Counts are integers. They add up over trials in any order (`Shape.add`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import blake2b
from math import erfc, exp, inf, lgamma, log, pi, sqrt, tanh
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

ALARM = 1e-9
"""The largest probability with which a trial calls correct noise misshapen."""
ALARM_POOLED = 1e-6
"""The same for all trials of a sweep together, or all rounds of an investigation."""
_LEVELS, _COARSE = 64, 8
_TAIL_FIRST, _TAIL_LAST = 7, 18  # exponents of the tails' probabilities on each side
_MODULI = (16, 15)
_NEAR = 8  # coordinates up to this distance are compared at every distance
_FIXED = 1 << 20  # sums are kept as integers
_LEAST_PLACE = 2.0**-60
_REPEAT_ALARM = 1e-12
_GRID_DRAWS = 64
_PRINTS, _PRINTS_KEPT, _REPEATS_KEPT = 4, 1 << 14, 8
Places = NDArray[np.float64]
Values = NDArray[np.int64]


def of_gaussian(noise: Values, variance: ArrayLike, dither: np.random.Generator) -> Places:
    """Return the places of discrete Gaussian noise. `variance`: S >= 64, of each value or of all."""
    deviation = np.sqrt(np.asarray(variance, dtype=np.float64))
    size = np.abs(noise).astype(np.float64)
    t = (size + 0.5) / deviation
    tail = np.array([erfc(each) for each in (t / sqrt(2)).ravel().tolist()]).reshape(t.shape) / 2
    # Σ f(k) over k > x, by the midpoint rule of Euler and Maclaurin: off by less than 10⁻³ φ(t)/S²
    above = tail - t * np.exp(-t * t / 2) / (sqrt(2 * pi) * 24 * deviation**2)
    own = np.exp(-((size / deviation) ** 2) / 2) / (sqrt(2 * pi) * deviation)
    return _placed(noise, above, above + own, dither)


def of_laplace(noise: Values, decay: ArrayLike, dither: np.random.Generator) -> Places:
    """Return the places of discrete Laplace noise, P(x) ∝ exp(-decay |x|)."""
    size, falls = np.abs(noise).astype(np.float64), np.asarray(decay, dtype=np.float64)
    above = np.exp(-falls * (size + 1)) / (1 + np.exp(-falls))
    least = np.exp(-falls * size) / (1 + np.exp(-falls))
    zero = 1 / (1 + np.exp(-falls))  # P(X > -1) = 1 - P(X > 0)
    return _placed(noise, above, np.where(noise == 0, zero, least), dither)


def _placed(noise: Values, above: Places, from_here: Places, dither: np.random.Generator) -> Places:
    """Return places from P(X > |x|) and P(X >= |x|) of a symmetric law; exact in both tails up to `_LEAST_PLACE`."""
    part = above + (from_here - above) * dither.random(noise.shape)
    return np.where(noise > 0, 1 - part, part)


def of_choice(low: ArrayLike, chance: ArrayLike, dither: np.random.Generator) -> Places:
    """Return the places of outcomes of probability `chance`, if all outcomes before them have `low` together."""
    chances = np.asarray(chance, dtype=np.float64)
    return np.asarray(low, dtype=np.float64) + chances * dither.random(chances.shape)


class Verdict(NamedTuple):
    """The result of all tests: their number, a bound on the probability of the worst, and what failed, as sentences."""

    tests: int
    p_value: float
    broken: tuple[str, ...]


class NoiseTable(NamedTuple):
    """Noise of one law, a row for each draw, a column for each coordinate.

    Attributes:
        law: a name. places: of each value. noise: in grid units; None for categories.
        largest: the largest probability of a single value, in grid units. values: what the noise was added to; None if
            it is unknown. clients, rounds: of each draw, in the order in which they were made.
    """

    law: str
    places: Places
    noise: Values | None = None
    largest: float = 1.0
    values: Values | None = None
    clients: tuple[Any, ...] = ()
    rounds: tuple[Any, ...] = ()


class Shape(msgspec.Struct, kw_only=True):
    """Counts of noise, by law and kind of count.

    Attributes:
        draws: number of values of each law. levels: counts of ordered cells of equal probability.
        cells: counts of cells of equal probability without an order. tails: counts by exponent; see `_tails`.
        sums: Σ -ln 2 min(u, 1 - u) in units of 2⁻²⁰, and its number of terms.
        prints: hashes of draws that no other draw can equal. repeats: what was drawn twice, as text.
    """

    draws: dict[str, int] = {}
    levels: dict[str, list[int]] = {}
    cells: dict[str, list[int]] = {}
    tails: dict[str, list[int]] = {}
    sums: dict[str, list[int]] = {}
    prints: list[int] = []
    repeats: list[str] = []

    def add(self, other: Shape) -> None:
        """Add the counts of other noise; the order of additions makes no difference to the verdict."""
        for law, count in other.draws.items():
            self.draws[law] = self.draws.get(law, 0) + count
        for name in ("levels", "cells", "tails", "sums"):
            own, more = getattr(self, name), getattr(other, name)
            for label, counts in more.items():
                own[label] = [a + b for a, b in zip(own.get(label, [0] * len(counts)), counts, strict=True)]
        same = set(self.prints).intersection(other.prints)
        more_repeats = [*other.repeats, *(["two trials have the same noise"] if same else [])]
        self.repeats = sorted({*self.repeats, *more_repeats})[:_REPEATS_KEPT]
        self.prints = sorted({*self.prints, *other.prints})[:_PRINTS_KEPT]  # the smallest, in whatever order they came

    def count(self, table: NoiseTable, dither: np.random.Generator) -> None:
        """Count the noise of a table."""
        law, places = table.law, np.clip(table.places, _LEAST_PLACE, 1 - 2.0**-53)
        self.draws[law] = self.draws.get(law, 0) + places.size
        outer = np.minimum(places, 1 - places)
        self._count(self.levels, law, (places * _LEVELS).astype(np.int64), _LEVELS)
        exponents = np.minimum(np.floor(-np.log2(outer)), _TAIL_LAST).astype(np.int64)
        self._count(self.tails, law, exponents, _TAIL_LAST + 1)
        self._add_spread(law, outer)
        coarse = (places * _COARSE).astype(np.int64)
        for column in range(min(_NEAR, places.shape[1])):
            self._count(self.levels, f"{law} at coordinate {column + 1}", coarse[:, column], _COARSE)
        if table.values is not None:
            for sign, name in ((-1, "negative"), (0, "zero"), (1, "positive")):
                self._count(self.levels, f"{law} of {name} values", coarse[np.sign(table.values) == sign], _COARSE)
        self._count_pairs(law, coarse, dither)
        if table.clients:
            self._count_turns(law, coarse, table.clients, table.rounds)
        if table.noise is not None:
            self._count_noise(table, table.noise)

    def count_line(self, label: str, places: Places) -> None:
        """Count independent places in levels and their spread only."""
        inside = np.clip(places, _LEAST_PLACE, 1 - 2.0**-53)
        self._count(self.levels, label, (inside * _COARSE).astype(np.int64), _COARSE)
        self._add_spread(label, np.minimum(inside, 1 - inside))

    def _add_spread(self, label: str, outer: Places) -> None:
        total = self.sums.setdefault(label, [0, 0])
        total[0] += int(np.rint(-np.log(2 * outer) * _FIXED).sum())
        total[1] += outer.size

    @staticmethod
    def _count(counts: dict[str, list[int]], label: str, cells: Values, size: int) -> None:
        if cells.size:
            own, more = counts.get(label), np.bincount(cells.ravel(), minlength=size).tolist()
            counts[label] = more if own is None else [a + b for a, b in zip(own, more, strict=True)]

    def _pair(self, label: str, first: Values, second: Values) -> None:
        """Count the levels of pairs, which must be the edges of a forest."""
        self._count(self.cells, f"{label}, differences", (first - second) % _COARSE, _COARSE)
        self._count(self.cells, f"{label}, sums", (first + second) % _COARSE, _COARSE)

    def _count_pairs(self, law: str, coarse: Values, dither: np.random.Generator) -> None:
        """Compare coordinates at each small distance, at powers of two, and at a random distance in each draw."""
        width = coarse.shape[1]
        far = [1 << power for power in range(4, width.bit_length()) if 1 << power < width]
        for step in (*range(1, min(_NEAR, width)), *far):
            self._pair(f"{law}, coordinates {step} apart", coarse[:, :-step], coarse[:, step:])
        if width > 2 * _NEAR:
            for row in coarse:
                step = int(dither.integers(_NEAR, width))
                self._pair(f"{law}, coordinates far apart", row[:-step], row[step:])

    def _count_turns(self, law: str, coarse: Values, clients: Sequence[Any], rounds: Sequence[Any]) -> None:
        """Compare consecutive clients of a round, and consecutive draws of a client; and its first draw with others."""
        of_round: dict[Any, int] = {}
        of_client: dict[Any, int] = {}
        mates, turns, first = [], [], []
        for row, (client, round_id) in enumerate(zip(clients, rounds, strict=True)):
            before = of_round.get(round_id)
            if before is not None and clients[before] != client:
                mates.append((before, row))
            if client in of_client:
                turns.append((of_client[client], row))
            else:
                first.append(row)
            of_round[round_id] = of_client[client] = row
        again = np.setdiff1d(np.arange(len(coarse)), first)
        self._count(self.levels, f"{law} of first draws", coarse[first], _COARSE)
        self._count(self.levels, f"{law} of later draws", coarse[again], _COARSE)
        for name, pairs in (("clients of a round", mates), ("draws of a client", turns)):
            if pairs:
                before_, after = (coarse[list(rows)] for rows in zip(*pairs, strict=True))
                self._pair(f"{law}, {name}", before_, after)
                self._pair(f"{law}, {name} one coordinate on", before_[:, :-1], after[:, 1:])

    def _count_noise(self, table: NoiseTable, noise: Values) -> None:
        """Count residues; find grids, equal stretches and equal draws."""
        law, scale = table.law, 1 / table.largest
        for modulus in (one for one in _MODULI if 4 * one < scale):  # residues are uniform to 10⁻²⁰
            self._count(self.cells, f"{law} modulo {modulus}", noise % modulus, modulus)
        flat = noise.ravel()
        if flat.size >= _GRID_DRAWS and scale > 4:
            grid = int(np.gcd.reduce(flat - flat[0]))
            self.repeats += [f"all {law} lies on a grid of {grid} units"] if grid != 1 else []
        pairs = flat.size - len(np.unique(flat))  # at least half as many disjoint pairs are equal
        if pairs > 2 * equal_pairs(flat.size, table.largest):
            self.repeats += [f"only {flat.size - pairs:,} of {flat.size:,} values of {law} are different"]
        length = stretch_length(flat.size, table.largest)
        if length <= noise.shape[1]:
            windows = np.lib.stride_tricks.sliding_window_view(noise, length, axis=1).reshape(-1, length)
            packed = np.ascontiguousarray(windows).view(np.dtype((np.void, 8 * length)))
            again = len(windows) - len(np.unique(packed))
            stretch = f"{length} values" if length > 1 else "value"
            self.repeats += [f"{again} stretches of {stretch} of {law} come again"] if again else []
        if noise.shape[1] * log(scale) > 64 * log(2):
            hashes = (blake2b(row.astype("<i8").tobytes(), digest_size=8).digest() for row in noise[:_PRINTS])
            self.prints += [int.from_bytes(one, "little") for one in hashes]

    def verdict(self, alarm: float) -> Verdict:
        """Judge all counts together. Correct noise is called misshapen with a probability below `alarm`."""
        judged = [(label, events, np.array(counts)) for label, events, counts in self._counted()]
        hits = np.concatenate([np.zeros(0), *(events.members @ counts for _, events, counts in judged)])
        chances = np.concatenate([np.zeros(0), *(events.chances for _, events, _ in judged)])
        sizes = [len(events.names) for _, events, _ in judged]
        totals = np.repeat(np.array([counts.sum() for *_, counts in judged], dtype=np.float64), sizes)
        bounds = _log_p(hits, totals, chances)
        failed: list[tuple[float, str]] = []
        tests, worst = len(bounds) + len(self.sums), min(bounds, default=0.0)
        limit = log(alarm / (2 * tests)) if tests else 0.0
        for law, (total, count) in self.sums.items():
            part = total / _FIXED / count
            worst = min(worst, bound := _log_p_of_mean(part, count))
            failed += [(bound, f"{law}: it has {part:.4g} times the spread expected")] if bound < limit else []
        ends = np.cumsum(sizes)
        for place in np.flatnonzero(bounds < limit).tolist():
            group = int(np.searchsorted(ends, place, side="right"))
            label, events, counts = judged[group]
            failed.append((bounds[place], f"{label}: {events.sentence(place - int(ends[group]), counts)}"))
        if self.repeats:
            worst = min(worst, log(_REPEAT_ALARM))
        sentences = [f"{text} (p < {_p_value(bound, tests):.2g})" for bound, text in sorted(failed)]
        return Verdict(tests, _p_value(worst, tests), (*dict.fromkeys(self.repeats), *sentences))

    def _counted(self) -> Iterator[tuple[str, Events, list[int]]]:
        """Yield all counts with the events that are judged."""
        for label, counts in self.levels.items():
            yield label, _intervals(len(counts)), counts
        for label, counts in self.cells.items():
            yield label, _cells(len(counts)), counts
        for label, counts in self.tails.items():
            yield label, _tails(), counts


class Events(NamedTuple):
    """Events that consist of counted cells.

    Attributes:
        members: which cells each event has, shape ``(events, cells)``. chances, names: of each event.
    """

    members: NDArray[np.int64]
    chances: NDArray[np.float64]
    names: tuple[str, ...]

    def sentence(self, event: int, counts: Values) -> str:
        """Return how often an event was counted, and how often it is expected."""
        total, hits = int(counts.sum()), int(self.members[event] @ counts)
        return f"{hits:,} of {total:,} {self.names[event]}, expected {total * self.chances[event]:,.6g}"


@cache
def _intervals(size: int) -> Events:
    """Return all dyadic intervals of ordered cells, and of cells folded at the median."""
    rows, names = [], []
    part = 1
    while part < size:
        for low in range(0, size, part):
            own = np.zeros(size, dtype=np.int64)
            own[low : low + part] = 1
            rows.append(own)
            names.append(f"lie between the quantiles {low / size:.3g} and {(low + part) / size:.3g}")
            if low < size // 2 and part < size // 2:
                rows.append(own + own[::-1])
                names.append(f"lie between the quantiles {low / size:.3g} and {(low + part) / size:.3g} of either side")
        part *= 2
    members = np.array(rows)
    return Events(members, members.sum(axis=1) / size, tuple(names))


@cache
def _cells(size: int) -> Events:
    """Return single cells, without an order."""
    members = np.eye(size, dtype=np.int64)
    return Events(members, np.full(size, 1 / size), tuple(f"fall into cell {place}" for place in range(size)))


@cache
def _tails() -> Events:
    """Return the tails: min(u, 1 - u) < 2^-j, of counts by the whole part of -log2 of it."""
    powers = np.arange(_TAIL_FIRST, _TAIL_LAST + 1)
    members = (np.arange(_TAIL_LAST + 1) >= powers[:, None]).astype(np.int64)
    chances = np.ldexp(1.0, 1 - powers)
    return Events(members, chances, tuple(f"lie in the outer {chance:.3g} of both tails" for chance in chances))


def _log_p(hits: Places, totals: Places, chances: Places) -> Places:
    """Bound the probability of so many, or so few, hits from one side (Chernoff; Hoeffding, 1963)."""
    part = hits / totals
    with np.errstate(divide="ignore", invalid="ignore"):
        yes = np.where(part > 0, part * np.log(part / chances), 0.0)
        no = np.where(part < 1, (1 - part) * np.log((1 - part) / (1 - chances)), 0.0)
    bounds: Places = np.minimum(-totals * (yes + no), 0.0)
    return bounds


def _log_p_of_mean(part: float, count: int) -> float:
    """Bound the probability of so large, or so small, a mean of `count` exponential variables from one side."""
    return count * (1 - part + log(part)) if part > 0 else -inf


def stretch_length(size: int, largest: float) -> int:
    """Return the least length of stretches of noise of which no two of `size` are equal by chance.

    Two stretches, also overlapping ones, are equal with a probability of at most `largest` to the power of the length.
    """
    return 1 + int((2 * log(max(size, 2)) - log(_REPEAT_ALARM)) / -log(min(largest, 0.99)))


def equal_pairs(size: int, largest: float) -> int:
    """Return a number k such that no k disjoint pairs of `size` values of noise are equal by chance.

    k disjoint pairs are equal with a probability of at most `largest` to the power of k, and there are fewer than
    (size² / 2)^k / k! ways to choose them.
    """
    mean, k = size * size / 2 * largest, 1
    while k * log(max(mean, 1e-300)) - lgamma(k + 1) > log(_REPEAT_ALARM):
        k = 1 + int(1.1 * k)
    return k


def largest_of_gaussian(variance: float) -> float:
    """Return a bound on the probability of any one value of discrete Gaussian noise."""
    return 1 / sqrt(2 * pi * variance)


def largest_of_laplace(decay: float) -> float:
    """Return the probability of zero in discrete Laplace noise."""
    return tanh(decay / 2)


def _p_value(log_p: float, tests: int) -> float:
    return min(1.0, 2 * max(tests, 1) * exp(max(log_p, -600.0)))
