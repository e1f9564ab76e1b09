#!/usr/bin/env python
"""Proofs of bits under attack: how many cheats pass, how many honest contributions fail, and what they cost.

A cheat is a client's vector of words that breaks the rules. Each is shared among M nodes, opened at random points, and
judged by the nodes' own rule. The error that is proven is below 2^-47 a trial, so no cheat may pass, and no honest
contribution may fail. Exit code 4 otherwise.

Examples:

    scripts/check_proofs.py                       10,000 points a cheat, 1,000,000 honest openings: twenty minutes
    scripts/check_proofs.py --points 200 --honest 1000 --dimensions 1 10
    scripts/check_proofs.py --json -
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from dca_proto.crypto.bit_proof import Block, accepted, opening, point, prove, query, split
from dca_proto.crypto.bounded import Statement
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
"""Different words of one cheat; each is opened at all points."""
Rng = np.random.Generator


class Cell(NamedTuple):
    """A row of the result: `passed` of `trials` openings were accepted."""

    cheat: str
    dimension: int
    nodes: int
    trials: int
    passed: int


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


def honest(statement: Statement, rng: Rng) -> Elements:
    """Return the words of a client that follows the protocol."""
    x = statement.lows + rng.integers(0, np.array(statement.sizes) + 1)
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


def openings(block: Block, vectors: Elements, nodes: int, count: int, rng: Rng, advance: Callable[[int], None]) -> int:
    """Return how often a vector is accepted: each is shared anew, and opened, at `count` points."""
    passed = 0
    for start in range(0, count, _POINTS_AT_ONCE):
        pads = _drawn(rng, nodes - 1, *vectors.shape)
        shares = [*pads, split(block.field, vectors, pads)]
        for _ in range(min(_POINTS_AT_ONCE, count - start)):
            weights = query(block, point(rng.bytes(64)))
            passed += int(accepted(block.field, [opening(block, share, weights) for share in shares]).sum())
        advance(min(_POINTS_AT_ONCE, count - start))
    return passed


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
    parser.add_argument("--points", type=int, default=1_000, help="points for each of ten vectors of a cheat")
    parser.add_argument("--honest", type=int, default=1_000_000, help="openings of honest contributions, in all")
    parser.add_argument("--dimensions", type=int, nargs="+", default=[1, 10, 100, 1_000], help="coordinates")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 3, 10], help="Compute nodes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the cells to this file, or - for standard output")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    statements = [Statement.within(*(BOUND,) * d) for d in arguments.dimensions]
    cells, costs = [], [cost(statement, rng) for statement in statements]
    each = max(arguments.honest // (len(statements) * _VECTORS * 10), 1)
    console = Console(file=sys.stderr if arguments.json == "-" else sys.stdout)
    with Progress(console=console) as progress:
        work = len(statements) * (len(arguments.nodes) * len(CHEATS) * arguments.points + each)
        task = progress.add_task("openings", total=work)

        def advance(count: int) -> None:
            progress.advance(task, count)

        for statement in statements:
            d, block = len(statement.sizes), statement.block
            for nodes in arguments.nodes:
                for name, cheat in CHEATS.items():
                    vectors = np.stack([cheat(statement, rng) for _ in range(_VECTORS)])
                    passed = openings(block, vectors, nodes, arguments.points, rng, advance)
                    cells.append(Cell(name, d, nodes, _VECTORS * arguments.points, passed))
            vectors = np.stack([honest(statement, rng) for _ in range(_VECTORS * 10)])
            cells.append(Cell("honest", d, 2, each * len(vectors), openings(block, vectors, 2, each, rng, advance)))
    table = Table("words", "d", "M", "openings", "accepted", title="Cheats, and honest contributions")
    for name in [*CHEATS, "honest"]:
        rows = [cell for cell in cells if cell.cheat == name]
        table.add_row(
            name, ", ".join(str(d) for d in sorted({cell.dimension for cell in rows})),
            ", ".join(str(m) for m in sorted({cell.nodes for cell in rows})),
            f"{sum(cell.trials for cell in rows):,}", f"{sum(cell.passed for cell in rows):,}",
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
            "cells": [cell._asdict() for cell in cells],
            "costs": [row._asdict() for row in costs],
            "noises": [one._asdict() for one in steps],
        }
        write_json(result, arguments.json)
    wrong = [cell for cell in cells if cell.passed != (cell.trials if cell.cheat == "honest" else 0)]
    for cell in wrong:
        console.print(f"wrong: {cell.cheat}, d = {cell.dimension}, M = {cell.nodes}: {cell.passed} of {cell.trials}")
    return FAULT if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
