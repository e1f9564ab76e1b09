#!/usr/bin/env python
"""Proofs of bits and of norms under attack: how many cheats pass, how many honest contributions fail, what they cost.

A cheat is a client's vector of words that breaks the rules. Each is shared among M nodes, opened at random points, and
judged by the nodes' own rule. The error that is proven is below 2^-47 a trial, so no cheat may pass, and no honest
contribution may fail. Exit code 4 otherwise.

Eleven cheats break the proof that words are bits. The twelfth proves true bits, but votes in every bin: it breaks a
limit. Six more send rows outside a ball, or change the proof of their norm. Honest contributions are all different;
most have few coordinates, as those take the least time. What all cheats share, such as weights of points, is computed
once for all of them.

Examples:

    scripts/check_proofs.py                       10,000 openings a cheat, M and d; 1,000,000 honest contributions
    scripts/check_proofs.py --openings 2000 --honest 1000 --dimensions 1 10
    scripts/check_proofs.py --workers 2 --json -
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle
from multiprocessing import get_context
from typing import NamedTuple

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dca_proto.crypto.bit_proof import BlockSizes, opening, point, query, split
from dca_proto.crypto.bounded import Limit, Norm, Statement
from dca_proto.crypto.field import DEFAULT, PRIME, Elements
from dca_proto.crypto.norm import Wires
from dca_proto.privacy.verified import largest_step, noise_sd
from dca_proto.runtime.files import write_json

FAULT = 4
BOUND = 127
"""Of each coordinate in grid units: its number has eight bits. One noise bit stands beside it."""
NOISES = [(300, 7), (949, 7), (10_000, 7), (100_000, 5), (300, 16)]
"""Uniform numbers in a coordinate's noise, and their bits."""
_POINTS_AT_ONCE = 50
_VECTORS = 10
"""Different words of one cheat that are opened at the same points."""
_COORDINATES_AT_ONCE = 20_000
"""Of honest contributions that are opened at one point."""
RADIUS = 120
"""Of the ball of rows, where there is one."""
Rng = np.random.Generator


class Cell(NamedTuple):
    """What is tried: words of a cheat, or honest ones, of d coordinates, at M nodes."""

    cheat: str
    dimension: int
    nodes: int


class Task(NamedTuple):
    """A part of the work: points for each of ten vectors of each cheat, or so many honest contributions."""

    dimension: int
    nodes: tuple[int, ...]
    points: int
    honest: int
    seed: tuple[int, ...]


class Tried(NamedTuple):
    """How many openings of each cell there were, and how many of these were accepted."""

    trials: Counter[Cell]
    passed: Counter[Cell]


class Cost(NamedTuple):
    """Medians of repeats on this machine, in microseconds, and the bytes that a client sends."""

    dimension: int
    has_norm: bool
    upload_bytes: int
    client_us: float
    node_us: float


class Step(NamedTuple):
    """What the noise of so many uniform numbers costs, and how long the first check of an announcement computes it."""

    uniforms: int
    noise_bits: int
    kappa: float
    milliseconds: float


def _drawn(rng: Rng, *shape: int) -> Elements:
    return rng.integers(0, PRIME, shape).astype(np.uint64)


def bounded(dimension: int) -> Statement:
    """Return a statement of bounds alone."""
    return Statement.within(*(BOUND,) * dimension)


def voting(dimension: int) -> Statement:
    """Return the statement of a histogram: all votes together are at most twice the bound."""
    sizes = (2 * BOUND,) * dimension
    return Statement((0,) * dimension, sizes, 1, 1, (Limit((1,) * dimension, size=2 * BOUND),))


def rounded(dimension: int) -> Statement:
    """Return the statement of rows in a ball: each number is within the bound, and so is their norm."""
    bounds = Statement.within(*(BOUND,) * dimension)
    return msgspec.structs.replace(bounds, norm=Norm(dimension, RADIUS**2))


def in_ball(dimension: int, rng: Rng) -> np.ndarray:
    """Return whole numbers within the ball: of a random direction, and often of nearly the full length."""
    x = rng.normal(size=dimension)
    return np.trunc(x * (RADIUS * min(1.0, rng.uniform(0, 2)) / np.linalg.norm(x))).astype(np.int64)


def honest(statement: Statement, rng: Rng) -> Elements:
    """Return the words of a client that follows the protocol."""
    x = statement.lows + rng.integers(0, np.array(statement.sizes) + 1)
    if statement.limits:
        x = rng.multinomial(rng.integers(0, 2 * BOUND + 1), np.full(len(x), 1 / len(x)))
    if statement.norm is not None:
        x = in_ball(len(x), rng)
    return _proven(statement, x, rng)


def _proven(statement: Statement, x: np.ndarray, rng: Rng) -> Elements:
    bits = statement.encode(x, rng.integers(0, 2, statement.noise_size))
    return statement.prove(bits, _drawn(rng, statement.blinds))


def _with_value(value: int) -> Callable[[Statement, Rng], Elements]:
    def cheat(statement: Statement, rng: Rng) -> Elements:
        bits = rng.integers(0, 2, statement.block.bits)
        bits[rng.integers(len(bits))] = value
        return statement.prove(bits, _drawn(rng, statement.blinds))

    return cheat


def _changed(
    first: Callable[[BlockSizes], int], last: Callable[[BlockSizes], int]
) -> Callable[[Statement, Rng], Elements]:
    def cheat(statement: Statement, rng: Rng) -> Elements:
        words, block = honest(statement, rng), statement.block
        at = rng.integers(first(block), last(block))
        words[at] = (words[at] + rng.integers(1, PRIME, dtype=np.uint64)) % np.uint64(PRIME)
        return words

    return cheat


def _copied_quotient(statement: Statement, rng: Rng) -> Elements:
    """The quotient of another client's contribution."""
    block = statement.block
    words, other = _with_value(2)(statement, rng), honest(statement, rng)
    quotient = slice(block.words - block.quotient, block.words)
    words[quotient] = other[quotient]
    return words


def _fitted(statement: Statement, rng: Rng) -> Elements:
    """A quotient fitted to a guess of the point, in its first two coefficients."""
    block = statement.block
    words, weights = _with_value(3)(statement, rng), query(block, point(rng.bytes(64)))
    a, c = np.split(opening(block, words[np.newaxis, : block.words], weights)[0], 2)
    x, y = (int(part) for part in DEFAULT.minus(DEFAULT.minus(DEFAULT.times(a, a), a), c))
    at = block.words - block.quotient
    (p, q), (s, t) = ((int(u), int(v)) for u, v in weights[at : at + 2, 2:].T)
    inverse = pow((p * t - q * s) % PRIME, PRIME - 2, PRIME)
    words[at] = (int(words[at]) + (t * x - q * y) * inverse) % PRIME
    words[at + 1] = (int(words[at + 1]) + (p * y - s * x) * inverse) % PRIME
    return words


def _half_root(statement: Statement, rng: Rng) -> Elements:
    """Bits that are the two roots of x² - x = 1 where they exist, or 1/2: what looks symmetric about one half."""
    return _with_value((PRIME + 1) // 2)(statement, rng)


CHEATS: dict[str, Callable[[Statement, Rng], Elements]] = {
    "a bit is 2": _with_value(2),
    "a bit is -1": _with_value(-1),
    "a bit is 1/2": _half_root,
    "a bit is P - 2": _with_value(PRIME - 2),
    "all bits are random words": lambda statement, rng: statement.prove(
        rng.integers(0, PRIME, statement.block.bits), _drawn(rng, statement.blinds)
    ),
    "random words": lambda statement, rng: _drawn(rng, statement.words),
    "another bit after the proof": _changed(lambda block: 0, lambda block: block.bits),
    "another blind after the proof": _changed(lambda block: block.bits, lambda block: block.bits + block.blinds),
    "another quotient": _changed(lambda block: block.words - block.quotient, lambda block: block.words),
    "another client's quotient": _copied_quotient,
    "a quotient fitted to a guessed point": _fitted,
}


def _votes_everywhere(statement: Statement, rng: Rng) -> Elements:
    """Every bin is full, all bits are bits, and the number of the limit says that there is no vote."""
    bits = np.ones(statement.block.bits, dtype=np.int64)
    bits[-statement.noise_size - (2 * BOUND).bit_length() : -statement.noise_size] = 0
    return statement.prove(bits, _drawn(rng, statement.blinds))


VOTES = "a vote in every bin"


def _beyond(statement: Statement, rng: Rng) -> np.ndarray:
    """Return numbers within the bounds whose norm is just too large, or in a corner of the box."""
    d = len(statement.sizes)
    if d == 1 or rng.random() < 0.5:
        return np.array(statement.lows) * rng.choice([-1, 1], d)
    x = np.zeros(d, dtype=np.int64)
    x[rng.choice(d, 2, replace=False)] = RADIUS, 1
    return x


def _too_long(statement: Statement, rng: Rng) -> Elements:
    """True bits of numbers outside the ball; the norm's number has what is left modulo a power of two, or nothing."""
    return _proven(statement, _beyond(statement, rng), rng)


def _with_norms_number(change: Callable[[np.ndarray, Rng], np.ndarray]) -> Callable[[Statement, Rng], Elements]:
    """Prove a number outside the ball, with other bits of the norm's number."""

    def cheat(statement: Statement, rng: Rng) -> Elements:
        bits = statement.encode(_beyond(statement, rng), rng.integers(0, 2, statement.noise_size))
        end = len(bits) - statement.noise_size
        at = slice(end - statement.numbers[-1].bit_length(), end)
        bits[at] = change(bits[at], rng)
        return statement.prove(bits, _drawn(rng, statement.blinds))

    return cheat


def _of_other_numbers(statement: Statement, rng: Rng) -> Elements:
    """A norm of other numbers than those in the sum: of a row inside the ball."""
    words, other = _too_long(statement, rng), honest(statement, rng)
    words[statement.block.words :] = other[statement.block.words :]
    return words


def _changed_norm(first: Callable[[Wires], int], last: Callable[[Wires], int]) -> Callable[[Statement, Rng], Elements]:
    """Change a word of an honest proof of a norm."""

    def cheat(statement: Statement, rng: Rng) -> Elements:
        words, wires = honest(statement, rng), statement.wires
        assert wires is not None, "only statements with a norm are tried"
        at = statement.block.words + rng.integers(first(wires), last(wires))
        words[at] = (words[at] + rng.integers(1, PRIME, dtype=np.uint64)) % np.uint64(PRIME)
        return words

    return cheat


NORM_CHEATS: dict[str, Callable[[Statement, Rng], Elements]] = {
    "a row outside the ball": _too_long,
    "a row outside the ball that claims the norm 0": _with_norms_number(lambda bits, rng: np.ones_like(bits)),
    "a row outside the ball that claims any norm": _with_norms_number(lambda bits, rng: rng.integers(0, 2, len(bits))),
    "the norm of another row": _of_other_numbers,
    "another blind of a norm": _changed_norm(lambda wires: 0, lambda wires: wires.blinds),
    "another square": _changed_norm(lambda wires: wires.blinds, lambda wires: wires.words),
}


def verdicts(statement: Statement, vectors: Elements, nodes: int, points: list[Elements], rng: Rng) -> Iterator[int]:
    """Share vectors anew among nodes, and yield for each of them at how many points the nodes accept it."""
    pads = _drawn(rng, nodes - 1, *vectors.shape)
    shares, right = (*pads, split(DEFAULT, vectors, pads)), np.zeros(len(vectors), dtype=np.int64)
    for r in points:
        query = statement.query(r)
        total = np.sum([statement.opening(share, query) for share in shares], axis=0)
        right += statement.accepted(total % np.uint64(PRIME), r)
    yield from right.tolist()


def tried(task: Task) -> Tried:
    """Do a part of the work."""
    rng, found, d = np.random.default_rng(task.seed), Tried(Counter(), Counter()), task.dimension
    points = [point(rng.bytes(64)) for _ in range(task.points)]
    for statement, cheats in ((bounded(d), CHEATS), (voting(d), {VOTES: _votes_everywhere}), (rounded(d), NORM_CHEATS)):
        names = [name for name in cheats for _ in range(_VECTORS)]
        vectors = np.stack([cheats[name](statement, rng) for name in names])
        for nodes in task.nodes if points else ():
            for name, passed in zip(names, verdicts(statement, vectors, nodes, points, rng), strict=True):
                found.trials[Cell(name, d, nodes)] += len(points)
                found.passed[Cell(name, d, nodes)] += passed
    at_once, left = max(1, _COORDINATES_AT_ONCE // d), task.honest
    statements = cycle((bounded(d), voting(d), rounded(d)))
    while left > 0:
        statement, nodes = next(statements), int(rng.choice(task.nodes))
        vectors = np.stack([honest(statement, rng) for _ in range(min(at_once, left))])
        found.trials[Cell("honest", d, nodes)] += len(vectors)
        at = [point(rng.bytes(64))]
        found.passed[Cell("honest", d, nodes)] += sum(verdicts(statement, vectors, nodes, at, rng))
        left -= len(vectors)
    return found


def tasks(dimensions: list[int], nodes: list[int], points: int, honest_count: int, seed: int) -> list[Task]:
    """Return all work, in parts of some seconds: the largest first."""
    together = sum(1 / d for d in dimensions)
    found = []
    for d in sorted(dimensions, reverse=True):
        parts = -(-points // _POINTS_AT_ONCE)
        of_honest = round(honest_count / d / together)
        for part in range(parts):
            at_points, at_honest = (len(range(part, count, parts)) for count in (points, of_honest))
            found.append(Task(d, tuple(nodes), at_points, at_honest, (seed, d, part)))
    return found


def cost(statement: Statement, rng: Rng) -> Cost:
    """Time a client's proof and a node's opening."""
    bits, blinds = rng.integers(0, 2, statement.block.bits), _drawn(rng, statement.blinds)
    weights, shares = statement.query(point(rng.bytes(64))), _drawn(rng, 100, statement.words)
    statement.prove(bits, blinds)

    def median_us(call: Callable[[], object], each: int) -> float:
        times = []
        for _ in range(15):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return float(np.median(times)) / each * 1e6

    client = median_us(lambda: statement.prove(bits, blinds), 1)
    node = median_us(lambda: statement.opening(shares, weights), len(shares))
    return Cost(len(statement.sizes), statement.norm is not None, 4 * statement.words, client, node)


def step(uniforms: int, noise_bits: int) -> Step:
    """Compute κ, and time it."""
    start = time.perf_counter()
    found = largest_step.__wrapped__(uniforms, noise_bits)
    return Step(uniforms, noise_bits, found * noise_sd(uniforms, noise_bits), (time.perf_counter() - start) * 1e3)


def main() -> int:
    """Attack, measure and print."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--openings", type=int, default=10_000, help="of each cheat, M and d")
    parser.add_argument("--honest", type=int, default=1_000_000, help="honest contributions, in all")
    parser.add_argument("--dimensions", type=int, nargs="+", default=[1, 10, 100, 1_000], help="coordinates")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 3, 10], help="Compute nodes")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the cells to this file, or - for standard output")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    console = Console(file=sys.stderr if arguments.json == "-" else sys.stdout)
    costs = [cost(statement(d), rng) for d in arguments.dimensions for statement in (bounded, rounded)]
    points = -(-arguments.openings // _VECTORS)
    work = tasks(arguments.dimensions, arguments.nodes, points, arguments.honest, arguments.seed)
    found = Tried(Counter(), Counter())
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        for part in track(pool.map(tried, work), "openings", len(work), console=console):
            found.trials.update(part.trials)
            found.passed.update(part.passed)
    table = Table("words", "d", "M", "openings", "accepted", title="Cheats, and honest contributions")
    for name in [*CHEATS, VOTES, *NORM_CHEATS, "honest"]:
        rows = [cell for cell in found.trials if cell.cheat == name]
        table.add_row(
            name, ", ".join(str(d) for d in sorted({cell.dimension for cell in rows})),
            ", ".join(str(m) for m in sorted({cell.nodes for cell in rows})),
            f"{sum(found.trials[cell] for cell in rows):,}", f"{sum(found.passed[cell] for cell in rows):,}",
        )  # fmt: skip
    console.print(table)
    heads = ("d", "norm", "upload, bytes", "client, µs", "node, µs a client")
    prices = Table(*heads, title="Cost of a proof on this machine")
    for row in costs:
        prices.add_row(
            str(row.dimension), "yes" if row.has_norm else "", f"{row.upload_bytes:,}", f"{row.client_us:,.0f}",
            f"{row.node_us:,.1f}",
        )  # fmt: skip
    console.print(prices)
    steps = [step(uniforms, bits) for uniforms, bits in NOISES]
    noises = Table("uniform numbers", "bits", "κ", "first check, ms", title="Cost of their noise beside Gaussian noise")
    for one in steps:
        noises.add_row(f"{one.uniforms:,}", str(one.noise_bits), f"{one.kappa:.5f}", f"{one.milliseconds:.0f}")
    console.print(noises)
    if arguments.json:
        result = {
            "cells": [
                {**cell._asdict(), "trials": trials, "passed": found.passed[cell]}
                for cell, trials in sorted(found.trials.items())
            ],
            "costs": [row._asdict() for row in costs],
            "noises": [one._asdict() for one in steps],
        }
        write_json(result, arguments.json)
    wrong = [cell for cell, n in found.trials.items() if found.passed[cell] != (n if cell.cheat == "honest" else 0)]
    for cell in wrong:
        console.print(
            f"wrong: {cell.cheat}, d = {cell.dimension}, M = {cell.nodes}: {found.passed[cell]} of {found.trials[cell]}"
        )
    return FAULT if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
