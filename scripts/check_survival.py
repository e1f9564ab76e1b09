#!/usr/bin/env python
"""Survival analysis from secure sums: coverage of bands and hazard ratios, size of the log-rank test, lifelines.

Rounds are ideal with exact noise, N = 500 and 5,000, epsilon 0.5, 1 and 4, delta 1e-5, default settings.

- *Bands*: four laws of the event, with uniform or administrative censoring (nobody stays to the end). Coverage of
  pointwise 95 % bands, averaged over the 12 times, the laws and the repeats: 93 to 97 %.
- *Log-rank*: two arms with one hazard in three designs: equal arms; a quarter in one arm, which is censored sooner; a
  fifth that is censored far later. Rejections at level 5 %, over all designs: 4 to 6 %.
- *Hazard ratios*: an arm and two correlated normal features. Coverage of 95 % intervals, averaged over the three: at
  least 93 %, and at most 98 % except at N = 500, where the margins for nonlinearity matter.
- *Wide bounds*: features' bounds ten times as wide raise the ratios' errors by at most 15 %, at N = 5,000.
- *Each alone*: averages could hide a fault, so the bands of each law, the test of each design and the interval of each
  hazard ratio must keep the same limits, 2 points wider. Single times have no limit.
- *Without noise*: curves, where at least 25 are at risk, and hazard ratios are within 2 % of lifelines' on simulated
  patients (`scripts/survival_oracle.py`). With fewer at risk, half of a censored patient makes more difference.
- *Features of any law*: binary ones of 1, 3, 10 and 30 %, with a log hazard ratio of 0.4, and a log-normal one
  (sigma = 1) of 0.12 a unit, at N = 5,000, 20,000 and 50,000, epsilon 1 and 4. Over all six, 95 % intervals cover in
  85 to 98 % (and one standard error) of the fits without a warning; in each, in 78 % at least, or nine of ten fits that
  miss have a warning.
- *Log hazards*: 95 % intervals of those of four intervals, two normal features, N = 5,000, epsilon 1 and 4. Rows stay
  until the end, or few reach the last interval (*few*). Coverage of the four is 88 to 98 %, of each at least 84 %.

A right program fails by chance about once in 50 runs: standard errors are 0.3 % for coverage, 0.33 % for sizes (six of
them), 0.7 % for ratios' coverage; for one law 0.6 %, one design 0.57 %, one ratio 1.1 %, one law of features 1.6 %, and
3.9 % for one of its six settings. Exit code 4 if one of these limits is missed. Takes a quarter of an hour on two
cores; --quick runs a tenth of the repeats, with wider limits.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.rounding import at_least
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.datasets import simulated_trial
from inference.models.survival.hazards_fit import exact_hazards, hazards_job
from inference.models.survival.rounds import Columns, curves_job, exact_curves
from inference.problem import Array, Problem, Schema, stream
from inference.rounds import run
from papers.experiment import BlockExperiment, Result, mean_of
from papers.picture import COLOURS, GREY, MARKERS, drawing, epsilon_axis
from papers.runner import Check, table

DELTA, SIZES, EPSILONS = 1e-5, (500, 5_000), (0.5, 1.0, 4.0)
COMPUTES = tuple(bytes([index]) * 16 for index in range(3))
LAWS, DESIGNS = ("constant", "rising", "step", "administrative"), ("equal", "quarter", "fifth")
SHAPES = ("1 % binary", "3 % binary", "10 % binary", "30 % binary", "log-normal")
SHAPE_SIZES, SHAPE_EPSILONS, SHAPE_COVER, SHAPE_LEAST, WARNED = (
    (5_000, 20_000, 50_000),
    (1.0, 4.0),
    (0.85, 0.99),
    0.78,
    0.9,
)
STAY = {"stay": (1.0, 2.5), "few": (1.5, 1.2)}  # hazard, and when the last row leaves
HAZARDS, HAZARDS_EACH = (0.88, 0.98), 0.84
BLOCKS = 4  # cells of one kind, so that all cores have work
REPEATS = {"bands": 100, "log-rank": 360, "ratios": 100, "wide": 100, "shapes": 8, "hazards": 15}  # in each block
BANDS, LEVEL, RATIOS, NEAR = (0.93, 0.97), (0.04, 0.06), (0.93, 0.98), 0.02
LOOSE = 0.03  # how far --quick widens the limits
WIDE, WIDE_MAX, WIDE_N = 10.0, 1.15, 5_000  # factor of wide bounds, largest ratio of errors, and least rows
ALONE = 0.02  # how much wider the limits of one law, design or ratio are; with --quick, by twice LOOSE more
GRID = tuple(float(k) / 12 for k in range(1, 13))
EFFECTS = {"arm": -0.4, "x": 0.5, "y": -0.3}
ORACLE = Path(__file__).parent.parent / "tests/inference/models/survival/survival_oracle.json"


class Cell(NamedTuple):
    """Repeats of one kind in one setting."""

    kind: str
    law: str
    n: int
    epsilon: float
    block: int


def hold(job: Any, rows: Problem, epsilon: float) -> Any:
    """Return the job's result over ideal rounds with one client per row."""
    terms = JobTerms(epsilon=epsilon, delta=DELTA, clients=len(rows.y), tolerate=len(rows.y) // 10, computes=COMPUTES)
    return run(job, IdealSwarm(rows.rows, rows.schema.columns, terms))


def followed(died: Array, left: Array, others: dict[str, Array]) -> Problem:
    """Return rows of the time of death or leaving, whichever comes first, with further columns."""
    bounds = {
        "t": Interval(0, 1),
        "event": Interval(0, 1),
        **dict.fromkeys(others, Interval(-4, 4)),
        "arm": Interval(0, 1),
    }
    schema = Schema(("event", *others), "t", {name: bounds[name] for name in ("t", "event", *others)})
    events = (died <= left).astype(float)
    return Problem("made", schema, np.column_stack([events, *others.values()]), np.minimum(died, left))


def drawn(law: str, rng: np.random.Generator, n: int) -> tuple[Array, Array, Array]:
    """Draw each patient's times of death and leaving; return them with the true curve on the grid."""
    u, at, leave = rng.exponential(size=n), np.array(GRID), rng.uniform(0, 2.5, n)
    if law == "rising":
        return np.sqrt(u / 1.2), leave, np.exp(-1.2 * at**2)
    if law == "step":
        hazard = np.where(at < 0.5, 0.2 * at, 0.1 + 2.5 * (at - 0.5))
        return np.where(u < 0.1, u / 0.2, 0.5 + (u - 0.1) / 2.5), leave, np.exp(-hazard)
    if law == "administrative":
        return (u / 1.6) ** (1 / 1.2), rng.uniform(1 / 3, 1, n), np.exp(-1.6 * at**1.2)
    return u / 0.9, leave, np.exp(-0.9 * at)


def bands(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """Return the band's coverage over times, and its width."""
    died, left, true = drawn(cell.law, rng, cell.n)
    fit = hold(curves_job(Columns("t", "event", GRID), rng=rng), followed(died, left, {}), cell.epsilon)
    low, high = fit.predictor.band()[:, 0]
    return {"covered": float(((low <= true) & (true <= high)).mean()), "width": float((high - low).mean())}


def log_rank(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """Return whether the test rejects for two arms with one hazard."""
    share, first, second = {"equal": (0.5, 2.5, 2.5), "quarter": (0.25, 2.5, 1.2), "fifth": (0.2, 1.0, 4.0)}[cell.law]
    arm = (rng.random(cell.n) < share).astype(float)
    died = (rng.exponential(size=cell.n) / 0.8) ** 0.8
    rows = followed(died, rng.uniform(0, np.where(arm > 0, second, first)), {"arm": arm})
    fit = hold(curves_job(Columns("t", "event", GRID, "arm", 2), rng=rng), rows, cell.epsilon)
    return {"rejected": float(fit.predictor.log_rank.p_value < 0.05)}


def trial(rng: np.random.Generator, n: int) -> Problem:
    """Draw patients in two arms with two correlated normal features of mean 0 and variance 1."""
    arm, z, x = (rng.random(n) < 0.5).astype(float), rng.standard_normal(n), rng.standard_normal(n)
    y = 0.5 * x + np.sqrt(0.75) * z
    risk = EFFECTS["arm"] * arm + EFFECTS["x"] * x + EFFECTS["y"] * y
    died = (rng.exponential(size=n) / (1.2 * np.exp(risk))) ** (1 / 1.2)
    return followed(died, rng.uniform(0, 2.5, n), {"arm": arm, "x": x, "y": y})


def shapes(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """Return whether the interval of a feature of that law covers, whether the fit warns, and how far it is off."""
    arm, y = (rng.random(cell.n) < 0.5).astype(float), rng.standard_normal(cell.n)
    if cell.law == "log-normal":
        x, true, bounds = rng.lognormal(size=cell.n), 0.12, Interval(0, 30)
    else:
        x, true, bounds = (rng.random(cell.n) < float(cell.law.split()[0]) / 100).astype(float), 0.4, Interval(0, 1)
    risk = EFFECTS["arm"] * arm + true * x + EFFECTS["y"] * y
    died = (rng.exponential(size=cell.n) / np.exp(risk)) ** (1 / 1.2)
    rows = followed(died, rng.uniform(0, 2.5, cell.n), {"arm": arm, "x": x, "y": y})
    rows = rows.bounded({**rows.schema.bounds, "x": bounds})
    columns = Columns.of(rows.schema, "event", "arm", None, 4)
    fit, exact = hold(hazards_job(rows.schema, columns), rows, cell.epsilon), exact_hazards(rows, columns)
    missed, warned = bool(abs(fit.coefficients[0] - true) > 1.96 * fit.coefficient_sd[0]), bool(fit.warnings)
    return {
        "covered": float(not missed),
        "warned": float(warned),
        "warned_miss": float(missed and warned),
        "off": float(fit.coefficients[0] - true),
        "sd": float(fit.coefficient_sd[0]),
        "exact_off": float(exact.coefficients[0] - true),
        "exact_sd": float(exact.coefficient_sd[0]),
    }


def ratios(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """Return whether each log hazard ratio's interval covers, its width, and the error of its middle."""
    rows = trial(rng, cell.n)
    if cell.kind == "wide":
        features = {name: Interval(-4 * WIDE, 4 * WIDE) for name in ("x", "y")}
        rows = rows.bounded({**rows.schema.bounds, **features})
    fit = hold(hazards_job(rows.schema, Columns.of(rows.schema, "event", "arm", None, 4)), rows, cell.epsilon)
    mean = np.r_[fit.group_effects[0], fit.coefficients]
    sd = np.r_[fit.group_effects[1], fit.coefficient_sd]
    off = mean - np.array([*EFFECTS.values()])
    covered = np.abs(off) < 1.96 * sd
    return {
        "covered": float(covered.mean()),
        **{f"covered_{name}": float(one) for name, one in zip(EFFECTS, covered, strict=True)},
        "width": float(3.92 * sd.mean()),
        "square": float((off**2).mean()),
        **{f"off_{name}": float(one) for name, one in zip(EFFECTS, off, strict=True)},
    }


def log_hazards(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """Return whether each log hazard's interval covers, and how far it is off."""
    (rate, leave), x, y = STAY[cell.law], rng.standard_normal(cell.n), rng.standard_normal(cell.n)
    arm, effects = (rng.random(cell.n) < 0.5).astype(float), np.array([EFFECTS["x"], EFFECTS["y"]])
    died = rng.exponential(size=cell.n) / (rate * np.exp(EFFECTS["arm"] * arm + np.column_stack([x, y]) @ effects))
    rows = followed(died, rng.uniform(0, leave, cell.n), {"arm": arm, "x": x, "y": y})
    fit = hold(hazards_job(rows.schema, Columns.of(rows.schema, "event", "arm", None, 4)), rows, cell.epsilon)
    mean, sd = fit.log_hazards
    off = (mean - np.log(rate / 4) - fit.columns.centre @ effects) / sd
    covered = {f"covered_{k + 1}": float(abs(one) < 1.96) for k, one in enumerate(off)}
    return {**covered, "covered": float((np.abs(off) < 1.96).mean()), "off_last": float(off[-1])}


KINDS = {
    "bands": bands,
    "log-rank": log_rank,
    "ratios": ratios,
    "wide": ratios,
    "shapes": shapes,
    "hazards": log_hazards,
}


@cache
def without_noise() -> tuple[float, float]:
    """Return the largest relative distances to lifelines: of curves where 25 are at risk, and of hazard ratios."""
    oracle, far = json.loads(ORACLE.read_text(encoding="utf-8")), 0.0
    for size, rows in (("600", simulated_trial()), ("5000", simulated_trial(5_000, 1))):
        fit = exact_curves(rows, Columns("months", "event", tuple(oracle["times"]), "arm", 2), stream(0, "exact"))
        known = np.array(oracle["curves"][size]["at_risk"]) >= 25
        expected = np.array(oracle["curves"][size]["survival"])
        far = max(far, float(np.abs(fit.predictor.survival / expected - 1)[known].max()))
    rows = simulated_trial(20_000, 1)
    fitted = exact_hazards(rows, Columns.of(rows.schema, "event", "arm", None, 6))
    found = np.r_[fitted.group_effects[0], fitted.coefficients]
    return far, float(np.abs(found / np.array(oracle["cox"]) - 1).max())


@dataclass(frozen=True, kw_only=True)
class SurvivalCheck(BlockExperiment[Cell]):
    __doc__ = __doc__
    KIND, LABEL = "check-survival", "survival"

    def cells(self) -> list[Cell]:
        laws = {"bands": LAWS, "log-rank": DESIGNS, "ratios": ("normal",)}
        named = ((kind, law) for kind, of_kind in laws.items() for law in of_kind)
        found = [Cell(*one, *rest) for one in named for rest in product(SIZES, EPSILONS, range(BLOCKS))]
        found += [Cell("wide", "normal", WIDE_N, *rest) for rest in product(EPSILONS, range(BLOCKS))]
        of_shapes = product(SHAPES, SHAPE_SIZES, SHAPE_EPSILONS, range(BLOCKS))
        found += [
            Cell("hazards", law, WIDE_N, *rest) for law in STAY for rest in product(SHAPE_EPSILONS, range(BLOCKS))
        ]
        return [*found, *(Cell("shapes", *one) for one in of_shapes)]

    def cost(self, cell: Cell) -> float:
        return cell.n * REPEATS[cell.kind]

    def repeats(self, cell: Cell) -> int:
        return REPEATS[cell.kind]

    def once(self, cell: Cell, rng: np.random.Generator) -> dict[str, float]:
        return KINDS[cell.kind](cell, rng)

    def notes(self, found: list[Result]) -> dict[str, Any]:
        return {"delta": DELTA, "without_noise": without_noise()}

    def tables(self, found: list[Result]) -> Iterator[Table]:
        rows = table("survival", "N", "eps", "bands cover", "wide", "size", "ratios cover", "wide")
        figures = [("bands", "covered"), ("bands", "width"), ("log-rank", "rejected"), ("ratios", "covered"),
                   ("ratios", "width")]  # fmt: skip
        for n, epsilon in product(SIZES, EPSILONS):
            at = {"n": n, "epsilon": epsilon}
            row = [f"{mean_of(found, what, kind=kind, **at):.3f}" for kind, what in figures]
            rows.add_row(f"{n:,}", at_least(epsilon), *row)
        yield rows
        features = table("hazard ratios by the feature's law", "law", "N", "eps", "cover", "warned", "misses warned of",
                         "bias", "sd", "bias without noise", "sd")  # fmt: skip
        for shape, n, epsilon in product(SHAPES, SHAPE_SIZES, SHAPE_EPSILONS):
            known = {"kind": "shapes", "law": shape, "n": n, "epsilon": epsilon}
            own = {what: mean_of(found, what, **known) for what in ("covered", "warned", "warned_miss")}
            misses = 1 - own["covered"]
            told = f"{own['warned_miss'] / misses:.2f}" if misses > 0 else "-"
            figures = [f"{middle(found, what, known):+.3f}" for what in ("off", "sd", "exact_off", "exact_sd")]
            features.add_row(
                shape, f"{n:,}", at_least(epsilon), f"{own['covered']:.2f}", f"{own['warned']:.2f}", told, *figures
            )
        yield features

    def checks(self, found: list[Result]) -> Iterator[Check]:
        loose = LOOSE if self.share < 1 else 0.0
        for n, epsilon in product(SIZES, EPSILONS):
            open_end, place = n == SIZES[0], f"N = {n}, epsilon {at_least(epsilon)}"
            for kind, what, (low, high) in (
                ("bands", "covered", BANDS),
                ("log-rank", "rejected", LEVEL),
                ("ratios", "covered", (RATIOS[0], 1.0) if open_end else RATIOS),
            ):
                value, at = mean_of(found, what, kind=kind, n=n, epsilon=epsilon), {"n": n, "epsilon": epsilon}
                least, most = max(low - loose, 0.0), min(high + loose, 1.0)
                asked = f"{least:.2f} to {most:.2f}"
                yield Check(f"{kind}, {place}", asked, f"{value:.4f}", least <= value <= most)
                prior_counts = kind == "ratios" and n == SIZES[0]
                least, most = max(least - ALONE - loose, 0.0), 1.0 if prior_counts else min(most + ALONE + loose, 1.0)
                alone = _alone(found, kind, what, at)
                missed = ", ".join(name for name, one in alone.items() if not least <= one <= most)
                measured = f"{min(alone.values()):.4f} to {max(alone.values()):.4f}{missed and f'; not {missed}'}"
                yield Check(f"{kind}, each, {place}", f"{least:.2f} to {most:.2f}", measured, not missed)
        for epsilon in EPSILONS:
            at = {"n": WIDE_N, "epsilon": epsilon}
            wide, narrow = (mean_of(found, "square", kind=kind, **at) for kind in ("wide", "ratios"))
            ratio, most = float(np.sqrt(wide / narrow)), WIDE_MAX + 5 * loose
            name = f"errors of ratios within wide bounds, N = {WIDE_N}, epsilon {at_least(epsilon)}"
            yield Check(name, f"<= {most:.2f} times", f"{ratio:.3f}", ratio <= most)
        yield from of_shapes(found, 2 * loose)
        yield from of_hazards(found, 2 * loose)
        for name, far in zip(("curves", "hazard ratios"), without_noise(), strict=True):
            yield Check(f"{name} without noise, from lifelines", f"<= {NEAR}", f"{far:.4f}", far <= NEAR)

    def draw(self, found: list[Result], path: Path) -> None:
        """Draw coverage of bands, sizes and coverage of ratios over epsilon, with their limits."""
        panels_of = (
            ("bands", "covered", BANDS, "coverage of bands"),
            ("log-rank", "rejected", LEVEL, "size of the test"),
            ("ratios", "covered", RATIOS, "coverage of hazard ratios"),
        )
        with drawing(path, columns=3, size=(4.2, 3.6)) as panels:
            for axes, (kind, what, limits, label) in zip(panels[0], panels_of, strict=True):
                for n, colour, marker in zip(SIZES, COLOURS, MARKERS, strict=False):
                    heights = [mean_of(found, what, kind=kind, n=n, epsilon=epsilon) for epsilon in EPSILONS]
                    axes.plot(EPSILONS, heights, f"{marker}-", color=colour, label=f"N = {n:,}")
                for limit in limits:
                    axes.axhline(limit, color=GREY, linestyle=":")
                axes.set(xlabel="epsilon", ylabel=label)
                epsilon_axis(axes, EPSILONS)
            panels[0, 0].legend(frameon=False)


def middle(found: list[Result], what: str, where: dict[str, Any]) -> float:
    """Return the median over blocks of the mean: rare features have a few very wide intervals."""
    return float(np.median([mean_of(found, what, block=block, **where) for block in range(BLOCKS)]))


def of_shapes(found: list[Result], loose: float) -> Iterator[Check]:
    """Check the coverage of features of each law."""
    for shape in SHAPES:
        own = {"kind": "shapes", "law": shape}
        unwarned = 1 - mean_of(found, "warned", **own)
        missed = 1 - mean_of(found, "covered", **own) - mean_of(found, "warned_miss", **own)
        value = 1 - missed / unwarned if unwarned > 0 else 1.0
        least, most = SHAPE_COVER[0] - loose, min(SHAPE_COVER[1] + loose, 1.0)
        yield Check(
            f"{shape}, all fits without a warning", f"{least:.2f} to {most:.2f}", f"{value:.3f}", least <= value <= most
        )
        for n, epsilon in product(SHAPE_SIZES, SHAPE_EPSILONS):
            at = {"kind": "shapes", "law": shape, "n": n, "epsilon": epsilon}
            covered, told = mean_of(found, "covered", **at), mean_of(found, "warned_miss", **at)
            least = SHAPE_LEAST - 3 * loose
            holds = covered >= least or told >= WARNED * (1 - covered)
            asked = f">= {least:.2f}, or {WARNED:.0%} of misses warned of"
            yield Check(f"{shape}, N = {n}, epsilon {at_least(epsilon)}", asked, f"{covered:.3f}", holds)


def of_hazards(found: list[Result], loose: float) -> Iterator[Check]:
    """Check the coverage of log hazards, of all intervals and of each."""
    for law, epsilon in product(STAY, SHAPE_EPSILONS):
        own = {"kind": "hazards", "law": law, "epsilon": epsilon}
        value, place = mean_of(found, "covered", **own), f"log hazards, {law}, epsilon {at_least(epsilon)}"
        low, high = HAZARDS[0] - loose, min(HAZARDS[1] + loose, 1.0)
        yield Check(place, f"{low:.2f} to {high:.2f}", f"{value:.3f}", low <= value <= high)
        least = min(mean_of(found, f"covered_{k}", **own) for k in range(1, 5))
        asked = HAZARDS_EACH - 2 * loose
        yield Check(f"{place}, each", f">= {asked:.2f}", f"{least:.3f}", least >= asked)


def _alone(found: list[Result], kind: str, what: str, at: dict[str, Any]) -> dict[str, float]:
    """Return the figures of each law, design or hazard ratio."""
    if kind == "ratios":
        return {name: mean_of(found, f"{what}_{name}", kind=kind, **at) for name in EFFECTS}
    return {law: mean_of(found, what, kind=kind, law=law, **at) for law in (LAWS if kind == "bands" else DESIGNS)}


if __name__ == "__main__":
    sys.exit(SurvivalCheck.main())
