#!/usr/bin/env python
"""Proofs of bits under attack: how many cheats pass, how many honest contributions fail, and what they cost.

A cheat is a client's vector of words that breaks the rules. Each is shared among M nodes, opened at random points, and
judged by the nodes' own rule. The error that is proven is below 2^-47 a trial, so no cheat may pass, and no honest
contribution may fail. Exit code 4 otherwise.

Eleven cheats break the proof that words are bits. The twelfth proves true bits, but votes in every bin: it breaks a
limit. Honest contributions are all different; most have few coordinates, as those take the least time. What all cheats
share, such as weights of points, is computed once for all of them.

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

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dca_proto.crypto.bit_proof import Block, opening, point, prove, query, split
from dca_proto.crypto.bounded import Limit, Statement
from dca_proto.crypto.field import DEFAULT, PRIME, Elements
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


def honest(statement: Statement, rng: Rng) -> Elements:
    """Return the words of a client that follows the protocol."""
    x = statement.lows + rng.integers(0, np.array(statement.sizes) + 1)
    if statement.limits:
        x = rng.multinomial(rng.integers(0, 2 * BOUND + 1), np.full(len(x), 1 / len(x)))
    bits = statement.encode(x, rng.integers(0, 2, statement.noise_size))
    return prove(statement.block, bits, _drawn(rng, statement.block.blinds))


def _with_value(value: int) -> Callable[[Statement, Rng], Elements]:
    def cheat(statement: Statement, rng: Rng) -> Elements:
        bits = rng.integers(0, 2, statement.block.bits)
        bits[rng.integers(len(bits))] = value
        return prove(statement.block, bits, _drawn(rng, statement.block.blinds))

    return cheat


def _changed(first: Callable[[Block], int], last: Callable[[Block], int]) -> Callable[[Statement, Rng], Elements]:
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
    words[-block.quotient :] = other[-block.quotient :]
    return words


def _fitted(statement: Statement, rng: Rng) -> Elements:
    """A quotient fitted to a guess of the point, in its first two coefficients."""
    words, weights = _with_value(3)(statement, rng), query(statement.block, point(rng.bytes(64)))
    a, c = np.split(opening(statement.block, words[np.newaxis], weights)[0], 2)
    x, y = (int(part) for part in DEFAULT.minus(DEFAULT.minus(DEFAULT.times(a, a), a), c))
    at = len(words) - statement.block.quotient
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
    "all bits are random words": lambda statement, rng: prove(
        statement.block, rng.integers(0, PRIME, statement.block.bits), _drawn(rng, statement.block.blinds)
    ),
    "random words": lambda statement, rng: _drawn(rng, statement.block.words),
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
    return prove(statement.block, bits, _drawn(rng, statement.block.blinds))


VOTES = "a vote in every bin"


def verdicts(statement: Statement, vectors: Elements, nodes: int, points: list[Elements], rng: Rng) -> Iterator[int]:
    """Share vectors anew among nodes, and yield for each of them at how many points the nodes accept it."""
    pads = _drawn(rng, nodes - 1, *vectors.shape)
    weights = np.concatenate([statement.query(r) for r in points], axis=1)
    parts = [statement.field.matrix_product(share, weights) for share in (*pads, split(DEFAULT, vectors, pads))]
    totals = np.split(np.sum(parts, axis=0) % np.uint64(PRIME), len(points), axis=1)
    right = [statement.accepted(total, r) for total, r in zip(totals, points, strict=True)]
    yield from np.sum(right, axis=0).tolist()


def tried(task: Task) -> Tried:
    """Do a part of the work."""
    rng, found, d = np.random.default_rng(task.seed), Tried(Counter(), Counter()), task.dimension
    points = [point(rng.bytes(64)) for _ in range(task.points)]
    for statement, cheats in ((bounded(d), CHEATS), (voting(d), {VOTES: _votes_everywhere})):
        names = [name for name in cheats for _ in range(_VECTORS)]
        vectors = np.stack([cheats[name](statement, rng) for name in names])
        for nodes in task.nodes if points else ():
            for name, passed in zip(names, verdicts(statement, vectors, nodes, points, rng), strict=True):
                found.trials[Cell(name, d, nodes)] += len(points)
                found.passed[Cell(name, d, nodes)] += passed
    at_once, statements, left = max(1, _COORDINATES_AT_ONCE // d), cycle((bounded(d), voting(d))), task.honest
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
    block, bits = statement.block, rng.integers(0, 2, statement.block.bits)
    blinds, weights = _drawn(rng, block.blinds), query(block, point(rng.bytes(64)))
    shares = _drawn(rng, 100, block.words)
    prove(block, bits, blinds)

    def median_us(call: Callable[[], object], each: int) -> float:
        times = []
        for _ in range(15):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return float(np.median(times)) / each * 1e6

    client = median_us(lambda: prove(block, bits, blinds), 1)
    node = median_us(lambda: opening(block, shares, weights), len(shares))
    return Cost(len(statement.sizes), 4 * block.words, client, node)


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
    costs = [cost(bounded(d), rng) for d in arguments.dimensions]
    points = -(-arguments.openings // _VECTORS)
    work = tasks(arguments.dimensions, arguments.nodes, points, arguments.honest, arguments.seed)
    found = Tried(Counter(), Counter())
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        for part in track(pool.map(tried, work), "openings", len(work), console=console):
            found.trials.update(part.trials)
            found.passed.update(part.passed)
    table = Table("words", "d", "M", "openings", "accepted", title="Cheats, and honest contributions")
    for name in [*CHEATS, VOTES, "honest"]:
        rows = [cell for cell in found.trials if cell.cheat == name]
        table.add_row(
            name, ", ".join(str(d) for d in sorted({cell.dimension for cell in rows})),
            ", ".join(str(m) for m in sorted({cell.nodes for cell in rows})),
            f"{sum(found.trials[cell] for cell in rows):,}", f"{sum(found.passed[cell] for cell in rows):,}",
        )  # fmt: skip
    console.print(table)
    prices = Table("d", "upload, bytes", "client, µs", "node, µs a client", title="Cost of a proof on this machine")
    for row in costs:
        prices.add_row(str(row.dimension), f"{row.upload_bytes:,}", f"{row.client_us:,.0f}", f"{row.node_us:,.1f}")
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
