#!/usr/bin/env python
"""What lying clients can do to a mean, beside other systems at equal privacy: the error in units of unavoidable noise.

N clients hold numbers on 0..1, drawn uniformly anew each time. K of them lie together: they want the mean as high as
they can get it, know everybody's numbers, and do not add their noise. All systems are (ε, δ)-private for each honest
client against a coalition of the liars, one curious client and all servers but one; up to T clients may lie or drop
out, and nobody drops out. The error is the root-mean-square one against the true mean of all clients, divided by the
standard deviation of a trusted party's noise. The systems:

- *no check*: a secure sum. One liar makes it whatever it wants.
- *refuse the impossible*: the same, and a sum that honest clients cannot have made is refused (`plausibility`). The
  liars keep the sum where it is accepted in 99 of 100 rounds.
- *random groups*: the same in eleven groups, put together at random, and the median of their means.
- *nodes add the noise* (as DAP with proofs of range, Prio3): M nodes, each with the whole noise, as any M - 1 of them
  may collude. Liars stay on 0..1: they send 1.
- *GOPA* (Sabater, Bellet and Ramon 2022), with proofs of range and of noise: clients add the noise, and masks that
  cancel between neighbours on a graph. In its best case, all clients are neighbours and nobody drops out.
- *verified sum*: proven bounds, and noise of uniform numbers that public coins flip (DESIGN §12). Liars send 1, and
  noise bits of their choice.

Examples:

    scripts/compare_robustness.py                        the table: ten seconds
    scripts/compare_robustness.py --epsilon 0.5 --liars 0 5 50
    scripts/compare_robustness.py --json - --plot robustness.svg

Exit code 4 if an error is beside what follows from theory, by more than five of its standard errors.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dca_proto import drawing
from dca_proto.plausibility import REFUSED
from dca_proto.privacy.accounting import mu_of
from dca_proto.privacy.rounding import at_least
from dca_proto.privacy.verified import TAU, release_cost
from dca_proto.runtime.files import write_json

FAULT = 4
GROUPS = 11
NOISE_BITS = 6
_LIMITS = 3  # of a sum of one column: least, largest, length
_ACCEPTED = 2.33  # standard deviations of noise that the liars leave below the limit: 1 round in 100 is refused
_AT_ONCE = 100  # rounds whose noise bits are in memory
_PICTURE_MAX = 300.0
Array = NDArray[np.float64]


class Setting(NamedTuple):
    """What all systems have in common."""

    clients: int
    tolerate: int
    nodes: int
    epsilon: float
    delta: float

    @property
    def honest(self) -> int:
        """Clients whose noise the coalition does not know."""
        return self.clients - self.tolerate - 1

    @property
    def trusted_sd(self) -> float:
        """Of a trusted party's noise in the sum."""
        return 1 / mu_of(self.epsilon, self.delta)

    @property
    def sd(self) -> float:
        """Of the noise in the sum of all clients, if each adds enough for the honest ones to suffice."""
        return self.trusted_sd * math.sqrt(self.clients / self.honest)


class Cell(NamedTuple):
    """The error of one system with some liars, in standard deviations of a trusted party's noise; None: any.

    `error` is its standard error, `expected` what theory says, if it says something simple.
    """

    system: str
    liars: int
    rmse: float | None
    error: float = 0.0
    expected: float | None = None


def honest_sums(setting: Setting, liars: int, repeats: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the sums of all true numbers, and of those of the honest clients, ``(repeats,)``; the liars are first."""
    x = rng.random((repeats, setting.clients))
    return x.sum(axis=1), x[:, liars:].sum(axis=1)


def refused_beyond(clients: int, sd: float) -> float:
    """Return the largest sum that liars aim at: what is refused less what the noise may add."""
    return clients + (math.sqrt(2 * math.log(_LIMITS / REFUSED)) - _ACCEPTED) * sd


def refusing(setting: Setting, liars: int, repeats: int, rng: np.random.Generator) -> Array:
    """Errors of a sum that is refused if it is impossible."""
    truth, _ = honest_sums(setting, liars, repeats, rng)
    noise = rng.normal(0, setting.sd, repeats)
    reached = refused_beyond(setting.clients, setting.sd) if liars else truth
    return reached + noise - truth


def grouped(setting: Setting, liars: int, repeats: int, rng: np.random.Generator) -> Array:
    """Errors of the median of the means of random groups, of which each is refused if it is impossible."""
    x = rng.random((repeats, setting.clients))
    order = rng.permuted(np.tile(np.arange(setting.clients), (repeats, 1)), axis=1)
    means = []
    for members in np.array_split(order, GROUPS, axis=1):
        size = members.shape[1]
        sd = setting.trusted_sd * math.sqrt(size / (size - math.ceil(setting.tolerate / GROUPS) - 1))
        sums = np.take_along_axis(x, members, axis=1).sum(axis=1)
        sums = np.where((members < liars).any(axis=1), refused_beyond(size, sd), sums)
        means.append((sums + rng.normal(0, sd, repeats)) / size)
    return np.median(means, axis=0) * setting.clients - x.sum(axis=1)


def noised_by_nodes(setting: Setting, liars: int, repeats: int, rng: np.random.Generator) -> Array:
    """Errors if each node adds the whole noise to a sum of proven numbers."""
    truth, honest = honest_sums(setting, liars, repeats, rng)
    return honest + liars + rng.normal(0, setting.trusted_sd * math.sqrt(setting.nodes), repeats) - truth


def gopa(setting: Setting, liars: int, repeats: int, rng: np.random.Generator) -> Array:
    """Errors if clients add proven noise to proven numbers, and all masks cancel."""
    truth, honest = honest_sums(setting, liars, repeats, rng)
    return honest + liars + rng.normal(0, setting.sd, repeats) - truth


def verified_grid(setting: Setting) -> int:
    """Return R, the largest grid on 0..R for which one noise number of each client is private enough."""
    mu = mu_of(setting.epsilon, setting.delta, TAU)
    size = math.floor(mu / release_cost(1.0, 1, setting.honest, 1, NOISE_BITS).mu)
    assert release_cost(float(size), 1, setting.honest, 1, NOISE_BITS).mu <= mu
    return size


def verified(setting: Setting, liars: int, repeats: int, rng: np.random.Generator) -> Array:
    """Errors of sums of bits on a grid with dithered rounding, whose noise bits are flipped by coins."""
    size, errors = verified_grid(setting), []
    weights = 1 << np.arange(NOISE_BITS)
    for start in range(0, repeats, _AT_ONCE):
        count = min(_AT_ONCE, repeats - start)
        x = rng.random((count, setting.clients))
        sent = np.floor(x * size + rng.random(x.shape))
        sent[:, :liars] = size
        bits, coins = rng.integers(0, 2, (2, count, setting.clients, NOISE_BITS), dtype=np.int8)
        bits[:, :liars] = 1  # the largest noise that there is, before the coins
        noise = ((bits ^ coins) * weights).sum(axis=(1, 2)) - setting.clients * (2**NOISE_BITS - 1) / 2
        errors.append((sent.sum(axis=1) + noise) / size - x.sum(axis=1))
    return np.concatenate(errors)


def verified_sd(setting: Setting) -> float:
    """Return the standard deviation of noise and rounding in a verified sum."""
    uniform = (4**NOISE_BITS - 1) / 12
    rounding = 1 / 6  # of a number anywhere between two grid points
    return math.sqrt(setting.clients * (uniform + rounding)) / verified_grid(setting)


System = Callable[[Setting, int, int, np.random.Generator], Array]
SYSTEMS: dict[str, System | None] = {
    "no check": None,
    "refuse the impossible": refusing,
    "random groups, median": grouped,
    "nodes add the noise": noised_by_nodes,
    "GOPA": gopa,
    "verified sum": verified,
}


def in_range(setting: Setting, sd: float, liars: int) -> float:
    """Return the error if liars stay on 0..1: each adds 1/2 on average, and the numbers it hides vary."""
    return math.sqrt(sd**2 + (liars / 2) ** 2 + liars / 12) / setting.trusted_sd


def expected(system: str, setting: Setting, liars: int) -> float | None:
    """Return the error that follows from theory, or None."""
    if system == "refuse the impossible":
        if not liars:
            return setting.sd / setting.trusted_sd
        shift = refused_beyond(setting.clients, setting.sd) - setting.clients / 2
        return math.sqrt(setting.sd**2 + shift**2 + setting.clients / 12) / setting.trusted_sd
    sds = {
        "nodes add the noise": setting.trusted_sd * math.sqrt(setting.nodes),
        "GOPA": setting.sd,
        "verified sum": verified_sd(setting),
    }
    return in_range(setting, sds[system], liars) if system in sds else None


def cell(system: str, setting: Setting, liars: int, repeats: int, seed: int) -> Cell:
    """Run the rounds of one system with some liars."""
    run = SYSTEMS[system]
    if run is None and liars:
        return Cell(system, liars, None)
    rng = np.random.default_rng([seed, list(SYSTEMS).index(system), liars])
    squares = (run or refusing)(setting, liars, repeats, rng) ** 2
    rmse = math.sqrt(squares.mean())
    error = float(squares.std(ddof=1)) / math.sqrt(repeats) / (2 * rmse)
    known = expected("refuse the impossible" if run is None else system, setting, liars)
    return Cell(system, liars, rmse / setting.trusted_sd, error / setting.trusted_sd, known)


def main() -> int:
    """Simulate, print, draw."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000, help="N, 352 or more (default: 1000)")
    parser.add_argument("--tolerate", type=int, default=50, help="T, clients that may lie or drop out (default: 50)")
    parser.add_argument("--nodes", type=int, default=3, help="M (default: 3)")
    parser.add_argument("--epsilon", type=float, default=1.0, help="ε (default: 1)")
    parser.add_argument("--delta", type=float, default=1e-5, help="δ (default: 1e-5)")
    parser.add_argument("--liars", type=int, nargs="+", default=[0, 1, 3, 10, 30], help="K, up to T")
    parser.add_argument("--repeats", type=int, default=2_000, help="rounds for each cell (default: 2000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write the cells; - for standard output")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the picture: png, svg or pdf")
    options = parser.parse_args()
    setting = Setting(options.clients, options.tolerate, options.nodes, options.epsilon, options.delta)
    if setting.honest < 300 or not all(0 <= liars <= options.tolerate for liars in options.liars):
        parser.error("N - T - 1 has to be 300 or more, and each number of liars from 0 to T")
    if options.nodes < 2 or options.repeats < 2 or not 0.01 <= options.epsilon <= 10 or not 1e-12 <= options.delta < 1:
        parser.error("expected two nodes and two repeats or more, epsilon from 0.01 to 10, delta from 1e-12")
    console = Console(stderr=options.json == "-")
    keys = [(system, liars) for system in SYSTEMS for liars in sorted(set(options.liars))]
    cells = [
        cell(system, setting, liars, options.repeats, options.seed)
        for system, liars in track(keys, "rounds", console=Console(stderr=True))
    ]
    show(console, setting, cells)
    write_json({"setting": setting._asdict(), "cells": [one._asdict() for one in cells]}, options.json)
    if options.plot is not None:
        plot(cells, options.plot)
    wrong = [
        one for one in cells
        if one.rmse is not None and one.expected is not None and abs(one.rmse - one.expected) > 5 * one.error
    ]  # fmt: skip
    for one in wrong:
        console.print(f"wrong: {one}")
    return FAULT if wrong else 0


def show(console: Console, setting: Setting, cells: list[Cell]) -> None:
    """Print the table."""
    counts = sorted({one.liars for one in cells})
    of = f"{setting.clients} clients, in noise sds of a trusted party, ε = {at_least(setting.epsilon)}"
    title = f"error of a mean over {of}"
    worst = max(one.error / one.rmse for one in cells if one.rmse is not None)
    table = Table("liars", *map(str, counts), title=title, caption=f"standard errors: {100 * worst:.1f} % at most")
    for system in SYSTEMS:
        found = {one.liars: one.rmse for one in cells if one.system == system}
        table.add_row(system, *(shown(found[liars]) for liars in counts))
    console.print(table)


def shown(rmse: float | None) -> str:
    """Format an error."""
    return "any" if rmse is None else f"{rmse:.2f}" if rmse < 20 else f"{rmse:.0f}"


def plot(cells: list[Cell], path: Path) -> None:
    """Draw the errors: a line for each system, the number of liars across."""
    counts = sorted({one.liars for one in cells})
    places = list(range(len(counts)))
    colours, markers = (*drawing.PALETTE[1:], drawing.PALETTE[0]), "xs^vDo"
    with drawing.picture(8, 3.8, {"font.size": 9}) as figure:
        axes = figure.subplots()
        for system, colour, marker in zip(SYSTEMS, colours, markers, strict=True):
            found = {one.liars: one.rmse for one in cells if one.system == system}
            heights = [_PICTURE_MAX if (rmse := found[liars]) is None else rmse for liars in counts]
            best = system == "verified sum"
            style = {"linewidth": 3.2, "zorder": 2} if best else {"linewidth": 1.3, "zorder": 3}
            axes.plot(places, heights, marker=marker, markersize=5, color=colour, label=system, **style)
        axes.axhline(1, color=drawing.INK, linewidth=0.8, linestyle=":")
        axes.set(yscale="log", ylim=(0.8, 1.15 * _PICTURE_MAX), xlabel="lying clients")
        axes.set_ylabel("error, in noise sds of a trusted party")
        axes.set_xticks(places, [str(liars) for liars in counts])
        axes.set_yticks([1, 2, 5, 10, 20, 50, 100, _PICTURE_MAX], ["1", "2", "5", "10", "20", "50", "100", "any"])
        axes.tick_params(which="minor", labelleft=False)
        axes.grid(color=drawing.GRID, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(frameon=False, fontsize=8, loc="outside right upper")
        figure.savefig(path, dpi=drawing.DPI)


if __name__ == "__main__":
    sys.exit(main())
