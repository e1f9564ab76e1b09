#!/usr/bin/env python
"""Linear regression in two rounds: coverage of the coefficients' 90 % intervals.

Rows are simulated, and rounds are the ideal functionality with the exact noise: two Compute nodes, no dropouts, delta
1e-5. There are three features; the target is linear in them, with an intercept and normal residuals of variance 1.
Public bounds are typical guesses: ±5 for normal features, 0 to 100 for log-normal ones, ±30 for Student's t with 3
degrees of freedom. So the job must estimate scales and centres. Slopes of standardised features are of two kinds:

- *drawn* for each release, from a normal law in which the features explain half of the target on average, as the prior
  assumes.
- *fixed*: 1, -0.7 and 0.3 in every release. Their coverage is frequentist.

The checks, for each kind of slopes and features, N and epsilon, use 200 releases (120 of 50,000 rows). At least 0.85 of
all intervals cover the truth, and at least 0.80 of the worst coefficient's (the intercept is one). If N·epsilon is at
least 2,000, at most 0.99 do, since the intercept's allow for a skewed target and slopes of skewed features for a curved
relation; of the slopes of normal features, at most 0.96. Below, they may be wider than needed. A cell is *warned*, and
has no limit, if at least 95 % of its results warn that noise hides the columns' centres, so that intervals may be too
narrow. The table marks it.

The limit of normal features' slopes is of the true coverage: a measured one fails if chance would bring one so far
above in less than 1 of 100 runs. Other limits include no margin for chance. The table has the standard error of a
coverage over releases, because intervals of one release are dependent. If each interval covered in exactly 90 % of
releases, the standard errors would be 0.012 and 0.021 (0.015 and 0.027 at 50,000 rows), and some cell of 72 would fail
in about 2 % of runs. With --quick there are 40 releases, and all margins are twice as wide, so it misses small faults.

If the upper bounds are moved so that the range is ten times as wide, the root mean square error rises by at most 5 % if
N·epsilon is at least 2,000. Below, noise eventually hides the centres, and the result warns.

Takes seven minutes on two cores; --quick, with N up to 5,000 and few releases, two minutes. Exit code 4 if a check
fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.table import Table

from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.rounding import at_least
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.locate import HIDDEN
from inference.models.linear.job import regression_with_projection
from inference.problem import Array, Problem, Schema, stream
from inference.rounds import run
from papers.experiment import DEPENDENT, FALSE_ALARM, Experiment, Result, outside
from papers.picture import COLOURS, MARKERS, drawing
from papers.runner import Check, table

DRAWN, FIXED = TRUTHS = ("drawn", "fixed")
SLOPES, INTERCEPT = np.array([1.0, -0.7, 0.3]), 0.5
KINDS = ("normal", "log-normal", "t3", "collinear")
EPSILONS, DELTA = (0.5, 1.0, 4.0), 1e-5
FEATURES, CORRELATION, REACH = len(SLOPES), 0.95, 1.6448536269514722
LEVEL, MARGIN, WORST_MARGIN, RELEASES = 0.90, 0.05, 0.10, 40  # in each batch
OVER = 0.09  # margin of the largest coverage
SLOPES_MOST = 0.96  # the true coverage of normal features' slopes
BATCHES = {500: 5, 5_000: 5, 50_000: 3}
MUCH_DATA = 2_000  # least N·epsilon at which intervals must not be too wide, although bounds may be
WIDER, WIDER_LOSS = 10, 0.05
WARNED = 0.95  # share of results
BOUNDS = {"normal": (-5, 5), "log-normal": (0, 100), "t3": (-30, 30), "collinear": (-5, 5)}
TARGET = {"normal": 12, "log-normal": 100, "t3": 60, "collinear": 12}
DEVIATION = {"normal": 1.0, "log-normal": np.sqrt((np.e - 1) * np.e), "t3": np.sqrt(3.0), "collinear": 1.0}
COMPUTES = (bytes([1]) * 16, bytes([2]) * 16)


class Cell(NamedTuple):
    """Releases of one kind of slopes and features."""

    truth: str
    kind: str
    n: int
    epsilon: float
    releases: int
    batch: int
    seed: int


def features(kind: str, n: int, rng: np.random.Generator) -> Array:
    """Shape ``(n, FEATURES)``."""
    normal = rng.standard_normal((n, FEATURES))
    if kind == "log-normal":
        return np.exp(normal)
    if kind == "t3":
        return rng.standard_t(3, (n, FEATURES))
    common = rng.standard_normal((n, 1)) if kind == "collinear" else 0.0
    share = CORRELATION if kind == "collinear" else 0.0
    mixed: Array = np.sqrt(1 - share) * normal + np.sqrt(share) * common
    return mixed


def problem(truth: str, kind: str, n: int, rng: np.random.Generator) -> tuple[Problem, Array]:
    """Draw rows with their schema, and the true slopes."""
    standard = SLOPES if truth == FIXED else rng.standard_normal(FEATURES) / np.sqrt(FEATURES)
    slopes: Array = standard / DEVIATION[kind]
    X = features(kind, n, rng)
    y = INTERCEPT + X @ slopes + rng.standard_normal(n)
    names = tuple(f"x{j}" for j in range(FEATURES))
    ends = {**dict.fromkeys(names, BOUNDS[kind]), "y": (-TARGET[kind], TARGET[kind])}
    bounds = {name: Interval(*one) for name, one in ends.items()}
    return Problem(kind, Schema(names, "y", bounds), X, y), slopes


def fit(rows: Problem, epsilon: float, rng: np.random.Generator) -> Any:
    """Run the regression with its default settings."""
    terms = JobTerms(epsilon=epsilon, delta=DELTA, clients=len(rows.y), tolerate=0, computes=COMPUTES)
    return run(
        regression_with_projection(rows.schema), IdealSwarm(rows.rows, rows.schema.columns, terms, random=rng.bytes)
    )


def work(cell: Cell) -> dict[str, Any]:
    """Return the estimates' errors in their standard deviations, and errors with the given bounds and wider ones."""
    rng = stream(cell.seed, f"{cell.truth}/{cell.kind}/{cell.n}/{cell.epsilon:g}/{cell.batch}")
    off: list[list[float]] = []
    squares: list[float] = []
    wide: list[float] = []
    warned = 0
    for _ in range(cell.releases):
        rows, slopes = problem(cell.truth, cell.kind, cell.n, rng)
        result = fit(rows, cell.epsilon, rng)
        error = np.r_[result.intercept - INTERCEPT, result.coefficients - slopes]
        warned += any(HIDDEN in one for one in result.warnings)
        off.append((error / np.r_[result.intercept_sd, result.coefficient_sd]).tolist())
        if cell.batch == 0 and cell.truth == DRAWN:  # wide bounds need fewer releases
            X = features(cell.kind, 1000, rng)
            ends = rows.schema.bounds.items()
            wider = {name: Interval(one.lower, one.lower + WIDER * 2 * one.half_width) for name, one in ends}
            widened = fit(rows.bounded(wider), cell.epsilon, rng)
            for one, errors in ((result, squares), (widened, wide)):
                errors.append(float(1 + np.mean((one.predict(X)[0] - INTERCEPT - X @ slopes) ** 2)))
    return {**cell._asdict(), "off": off, "warned": warned, "mse": squares, "mse_wider": wide}


def summary(off: Array) -> dict[str, Any]:
    """Return the coverage of all intervals, its standard error over releases, and that of the worst coefficient.

    Args:
        off: in standard deviations, shape ``(releases, coefficients)``.
    """
    covers = np.abs(off) <= REACH
    return {
        "releases": len(off),
        "coverage": float(covers.mean()),
        "error": float(covers.mean(axis=1).std(ddof=1) / np.sqrt(len(off))),
        "intercept": float(covers[:, 0].mean()),
        "slopes": float(covers[:, 1:].mean()),
        "worst": float(covers.mean(axis=0).min()),
        "spread_of_errors": float(off.std()),
    }


def merged(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge batches: one summary for each kind of slopes and features, N and ε."""
    groups: dict[tuple[str, str, int, float], list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault((one["truth"], one["kind"], one["n"], one["epsilon"]), []).append(one)
    figures = []
    for (truth, kind, n, epsilon), parts in groups.items():
        figure = {"truth": truth, "kind": kind, "n": n, "epsilon": epsilon}
        figure |= summary(np.concatenate([one["off"] for one in parts]))
        figure["warned"] = sum(one["warned"] for one in parts) / figure["releases"]
        if truth == DRAWN:
            exact, wide = (np.concatenate([one[key] for one in parts]) for key in ("mse", "mse_wider"))
            figure |= {"rmse": float(np.sqrt(np.median(exact))), "rmse_wider": float(np.sqrt(np.median(wide)))}
        figures.append(figure)
    return sorted(figures, key=lambda one: (one["truth"], KINDS.index(one["kind"]), one["n"], one["epsilon"]))


def checks(figures: list[dict[str, Any]], margins: float) -> list[Check]:
    """Check each kind of slopes by its worst cell and the number of cells that miss a limit; `margins` is a factor."""
    asked = []
    for truth in TRUTHS:
        own = [one for one in figures if one["truth"] == truth]
        unwarned = [one for one in own if one["warned"] < WARNED]
        for name, key, limit, sign, group in (
            ("coverage, least", "coverage", LEVEL - margins * MARGIN, -1, unwarned),
            ("coverage, largest", "coverage", LEVEL + margins * OVER, 1, [one for one in unwarned if _many(one)]),
            ("worst coefficient, least", "worst", LEVEL - margins * WORST_MARGIN, -1, unwarned),
        ):
            over = [sign * (one[key] - limit) for one in group]
            worst, missed = group[int(np.argmax(over))], sum(one > 0 for one in over)
            place = f"{worst['kind']}, N {worst['n']:,}, epsilon {at_least(worst['epsilon'])}"
            measured = f"{worst[key]:.3f} ({place}); {missed} of {len(group)} cells miss it"
            measured += f"; {len(own) - len(unwarned)} warned" if sign < 0 and len(unwarned) < len(own) else ""
            asked.append(
                Check(f"{truth} slopes: {name}", f"{'>=' if sign < 0 else '<='} {limit:g}", measured, missed == 0)
            )
    normal = [one for one in figures if one["kind"] == "normal" and _many(one) and one["warned"] < WARNED]
    chances = [outside(one["slopes"], one["releases"] * FEATURES / DEPENDENT, 0.0, SLOPES_MOST) for one in normal]
    missed, most = sum(one < FALSE_ALARM / len(normal) for one in chances), max(one["slopes"] for one in normal)
    measured = f"{most:.3f}; {missed} of {len(normal)} cells miss it"
    asked.append(
        Check("slopes of normal features, largest", f"<= {SLOPES_MOST:g}, but for chance", measured, missed == 0)
    )
    loss = [one["rmse_wider"] / one["rmse"] - 1 for one in figures if "rmse" in one and _many(one)]
    asked.append(
        Check("loss from bounds ten times as wide", f"<= {WIDER_LOSS}", f"{max(loss):.3f}", max(loss) <= WIDER_LOSS)
    )
    return asked


def _many(one: dict[str, Any]) -> bool:
    return bool(one["n"] * one["epsilon"] >= MUCH_DATA)


@dataclass(frozen=True, kw_only=True)
class LinearCoverage(Experiment[Cell, list[Result]]):
    __doc__ = __doc__
    KIND, LABEL, QUICK_CHECKS, DEPENDS = "check-linear-coverage", "releases", True, ()
    QUICK: ClassVar = {"batches": dict.fromkeys((500, 5_000), 1), "margins": 2.0}

    batches: dict[int, int] = field(default_factory=lambda: BATCHES)
    margins: float = 1.0

    def cells(self) -> list[Cell]:
        """Return the cells in batches, so that all cores are busy to the end."""
        return [
            Cell(truth, kind, n, epsilon, RELEASES, batch, self.seed)
            for n, truth, kind, epsilon in product(self.batches, TRUTHS, KINDS, EPSILONS)
            for batch in range(self.batches[n])
        ]

    def work(self, cell: Cell) -> Result:
        return work(cell)

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> list[Result]:
        return merged(list(results))

    def notes(self, found: list[Result]) -> dict[str, Any]:
        return {"figures": found}

    def tables(self, found: list[Result]) -> Iterator[Table]:
        shares = ("coverage", "error", "intercept", "worst", "spread_of_errors", "warned", "rmse", "rmse_wider")
        places = ("slopes", "features", "N", "eps", "releases")
        heads = ("coverage", "s.e.", "intercept", "worst", "sd of z", "warned", "RMSE", "wider")
        rows = table("90 % intervals of coefficients", *places, *heads)
        for one in found:
            counts = [one["truth"], one["kind"], f"{one['n']:,}", at_least(one["epsilon"]), str(one["releases"])]
            rows.add_row(*counts, *(f"{one[key]:.3f}" if key in one else "" for key in shares))
        yield rows

    def checks(self, found: list[Result]) -> list[Check]:
        return checks(found, self.margins)

    def draw(self, found: list[Result], path: Path) -> None:
        """Draw coverage over N by kind, one panel for each ε; fixed slopes are dashed."""
        with drawing(path, columns=len(EPSILONS)) as panels:
            for axes, epsilon in zip(panels[0], EPSILONS, strict=True):
                for kind, colour, marker in zip(KINDS, COLOURS, MARKERS, strict=False):
                    for truth, style in zip(TRUTHS, ("-", "--"), strict=True):
                        place = (truth, kind, epsilon)
                        own = [one for one in found if (one["truth"], one["kind"], one["epsilon"]) == place]
                        heights, label = [one["coverage"] for one in own], f"{kind}, {truth}"
                        axes.plot([one["n"] for one in own], heights, marker + style, color=colour, label=label)
                axes.axhspan(LEVEL - MARGIN, LEVEL + OVER, color="0.9", zorder=0)
                axes.set(xscale="log", xlabel="N", ylim=(0.5, 1.0), title=f"epsilon {at_least(epsilon)}")
            panels[0, 0].set_ylabel("share of 90 % intervals that hold")
            panels[0, 0].legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    sys.exit(LinearCoverage.main())
