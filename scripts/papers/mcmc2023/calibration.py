"""Are the posteriors of the third paper's methods calibrated? Coverage of credible intervals over data and noise.

**The game.** θ and Σ_x are drawn from the prior. σ_y² is, too (*no conflict*), or it is 1 (*conflict*: the paper's own
simulation, whose prior IG(20, 0.5) has a mean of 0.026). Rows are drawn given these. Each of J = 5 nodes releases its
statistic in a local round of the ideal functionality: replacement of one row, exact discrete noise, public bounds. Let
u be the truth's rank among the draws, between 0 and 1. A central interval of level L covers the truth if
|u - ½| <= L/2. If the posterior is right, u is uniform, independently for each data set. So without conflict,
MCMC-normalX must have nominal coverage, and so must the library's own sampler with an intercept. The latter has its own
data sets: features about a mean from its prior, a constant, and on average the part `MISSING` of the rows without a
value. The noise hides the missing rows at the smallest ε but not at the largest.

**The bounds** are public and so wide that hardly a row is clipped, because no method models clipping. κ = 30 makes the
variances of Σ_x vary around the identity by 28 %. With the paper's κ = d + 1, where Σ_x has no mean, half the rows of
some data sets would lie outside any bounds. The experiment counts the clipped rows.

**The band** (`experiment.band`) covers all levels, parameters and ε of one method. Draws of chains that have not mixed
do not follow the posterior, so in the judged cells all but a few data sets must have an R̂ below `MIXED`.

MCMC-B&S has its own release, with yᵀy, and another prior: θ given σ_y² is N(m, σ_y² Λ₀⁻¹). adaSSP is an estimate
without intervals, so it is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.table import Table
from scipy.special import ndtr

from dca_proto.privacy.budget import Budget
from dca_proto.privacy.rounding import at_least
from inference.mcmc.run import Options
from inference.models.linear.nodes import fixed_s_fast
from inference.models.linear.nodes import methods as nodes
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from inference.problem import Array, stream
from papers.experiment import BAND, Experiment, Result, band, option
from papers.mcmc2023.fits import crude_sigma_y2, split_rhat
from papers.mcmc2023.paper import BERNSTEIN_SHELDON, FAST, FIXED_S, NORMAL_X
from papers.mcmc2023.releases import local_round
from papers.mcmc2023.samplers.sampler import SAMPLERS, Length, kernel_of, sample
from papers.mcmc2023.simulated import inverse_wishart
from papers.picture import BLACK, COLOURS, GREY, MARKERS, drawing, legend
from papers.runner import Check, positive, table

D, NODES, ROWS = 2, 5, 2000  # rows of each node
EPSILONS, DELTA = (0.5, 2.0, 8.0), 1e-5
BOUND_X, BOUND_Y = 6.0, 6.0
KAPPA, SPREAD = 30.0, 0.25  # degrees of freedom of Σ_x, and the prior variance of each coefficient
CONFLICT = 1.0
LEVELS = (0.5, 0.8, 0.9, 0.95)
NORMAL = "normal"
JUDGED = (NORMAL_X, NORMAL)
METHODS = (NORMAL, *SAMPLERS, FAST)
CONSTANT, PRIOR_ROWS, MISSING = 1.0, 4.0, 0.05
"""With an intercept: the constant, k_0 of the features' mean, and the expected share of missing rows."""
OPTIONS = {"prior_rows": PRIOR_ROWS, "missing": MISSING}
MIXED, MIXED_SHARE = 1.05, 0.9
CHAINS = 2
DEFAULT_LENGTH = Length(1000, 1000, 5)
LENGTHS = {NORMAL: Length(300, 500), FIXED_S: Length(500, 500, 2)}
"""Samplers that need fewer iterations than the others."""
THIN_OF_NORMAL_X = {0.5: 20, 2.0: 10}
"""By ε, where the noise makes its chains slow."""


class Cell(NamedTuple):
    """All data sets of a method at an ε."""

    method: str
    epsilon: float
    conflict: bool  # whether the true σ_y² conflicts with its prior


@dataclass(frozen=True, eq=False)
class Truths:
    """Data sets as released, with the true parameters."""

    observed: tuple[NodeStatistics, ...]  # by data set
    values: Array  # θ and σ_y², (data sets, d + 1), or d + 2 with a constant
    clipped: float  # share of all rows


def prior(constant: bool = False) -> Prior:
    """Return the paper's prior of σ_y², and one of θ and Σ_x that admits public bounds."""
    d = D + constant
    Lambda = (KAPPA - D - 1) * np.eye(d)
    return Prior(np.zeros(d), SPREAD * np.eye(d), np.array(20.0), np.array(0.5), Lambda, np.array(KAPPA))


@lru_cache(maxsize=1)
def data_sets(epsilon: float, conflict: bool, square: bool, constant: bool, count: int, seed: int) -> Truths:
    """Draw and release data sets. All methods but the one with a constant share rows; yᵀy needs its own release."""
    name = f"calibration/{epsilon:g}/{conflict}{'/intercept' if constant else ''}"
    rng, noise = stream(seed, name), stream(seed, f"{name}/noise")
    drawn = [_rows(rng, conflict, constant) for _ in range(count)]
    bounds, budget, value = (BOUND_X, BOUND_Y), Budget(epsilon, DELTA), CONSTANT if constant else 0.0
    observed = tuple(
        local_round(list(rows), bounds, budget, noise.bytes, target_square=square, constant=value) for rows, _ in drawn
    )
    outside = [
        ((np.linalg.norm(rows[..., :-1], axis=-1) > BOUND_X) | (np.abs(rows[..., -1]) > BOUND_Y)).mean()
        for rows, _ in drawn
    ]
    return Truths(observed, np.array([values for _, values in drawn]), float(np.mean(outside)))


def _rows(rng: np.random.Generator, conflict: bool, constant: bool) -> tuple[Array, Array]:
    """Draw features and target of all nodes, shape ``(J, n, d + 1)``, and the true θ and σ_y²."""
    given = prior(constant)
    theta = given.m + np.linalg.cholesky(given.C) @ rng.standard_normal(len(given.m))
    sigma_y2 = CONFLICT if conflict else float(given.b / rng.gamma(given.a))
    lower = np.linalg.cholesky(inverse_wishart(given.Lambda[-D:, -D:], int(KAPPA), rng))
    x = rng.standard_normal((NODES, ROWS, D)) @ lower.T
    if constant:
        x += lower @ rng.standard_normal(D) / np.sqrt(PRIOR_ROWS)
    y = x @ theta[-D:] + np.sqrt(sigma_y2) * rng.standard_normal((NODES, ROWS))
    rows = np.concatenate([x, y[..., None]], axis=2)
    if constant:
        rows[..., -1] += CONSTANT * theta[0]
        complete = complete_rows(rng, ROWS, D + 1, MISSING, NODES)
        rows[np.arange(ROWS) >= complete[:, None]] = np.nan
    return rows, np.r_[theta, sigma_y2]


def complete_rows(rng: np.random.Generator, n: int, least: int, missing: float, count: int) -> Array:
    """Draw ``count`` numbers of complete rows out of n by p(m) ∝ exp(-(n - m)/(n missing)), m >= ``least``."""
    possible = np.arange(least, n + 1)
    weights = np.exp((possible - n) / (missing * n))
    return np.asarray(rng.choice(possible, size=count, p=weights / weights.sum()))


class Coverage(NamedTuple):
    """The coverage of a cell."""

    cell: Cell
    covered: dict[str, list[float]]  # by parameter, at each level
    bands: list[tuple[float, float]]  # at each level
    clipped: float  # share of rows
    mixed: list[float] | None  # share of data sets whose chains have mixed, by parameter; None without chains

    def outside(self) -> list[str]:
        """Describe the parameters and levels whose coverage is not in the band."""
        return [
            f"{name} at {level:.0%}: {share:.1%}"
            for name, shares in self.covered.items()
            for level, share, (low, high) in zip(LEVELS, shares, self.bands, strict=True)
            if not low <= share <= high
        ]


@dataclass(frozen=True, kw_only=True)
class Calibration(Experiment[Cell, list[Coverage]]):
    """Coverage of credible intervals of distributed Bayesian regression, over data and noise, for every method.

    Takes about 30 minutes on two idle cores. Exit code 4 if, without prior conflict, MCMC-normalX or its form with an
    intercept is outside a simultaneous 99 % band of nominal, or its chains have not mixed in over a tenth of the data
    sets. The other methods' coverage is reported beside the same band.
    """

    KIND, LABEL, DEPENDS = "mcmc-calibration", "calibration", ("seed", "repeats", "shorter")
    QUICK: ClassVar = {"repeats": 40, "shorter": 5, "epsilons": EPSILONS[1:2]}

    repeats: int = option(500, "data sets in each cell", type=positive, metavar="R")
    shorter: int = 1  # divisor of the lengths of chains
    epsilons: tuple[float, ...] = EPSILONS

    def cells(self) -> list[Cell]:
        return [Cell(method, e, conflict) for conflict in (False, True) for e in self.epsilons for method in METHODS]

    def work(self, cell: Cell) -> Result:
        constant = cell.method == NORMAL
        square = not constant and cell.method == BERNSTEIN_SHELDON
        truths = data_sets(cell.epsilon, cell.conflict, square, constant, self.repeats, self.seed)
        if cell.method == FAST:
            # A Gaussian over θ alone has a known distribution function; σ_y² is plugged in.
            crude = crude_sigma_y2(BOUND_Y)
            found = [fixed_s_fast.posterior(observed, prior(), crude) for observed in truths.observed]
            mean, sd = np.array([one.mean for one in found]), np.sqrt([np.diag(one.cov) for one in found])
            exact = ndtr((truths.values[:, :D] - mean) / sd)
            return {"clipped": truths.clipped, "places": exact.tolist(), "mixed": None}
        length, begun = LENGTHS.get(cell.method, DEFAULT_LENGTH), time.process_time()
        thin = THIN_OF_NORMAL_X.get(cell.epsilon, length.thin) if cell.method == NORMAL_X else length.thin
        length = Length(length.warmup // self.shorter, length.draws // self.shorter, thin)
        if constant:  # the library's sampler takes one data set after the other
            options = Options(chains=CHAINS, warmup=length.warmup, draws=length.draws, seed=self.seed)
            each = [nodes.sample(observed, prior(True), options, **OPTIONS).draws for observed in truths.observed]
            drawn = {name: np.stack([one[name] for one in each]) for name in ("theta", "sigma_y2")}
        else:
            kernel = kernel_of(cell.method, truths.observed[0])
            long = length._asdict()
            drawn = sample(kernel, truths.observed, prior(), chains=CHAINS, seed=self.seed, **long).draws
        draws = np.concatenate([drawn["theta"], drawn["sigma_y2"][..., None]], axis=-1)
        places = (np.sum(draws < truths.values[:, None, None, :], axis=(1, 2)) + 0.5) / (CHAINS * length.draws + 1)
        return {
            "clipped": truths.clipped,
            "places": np.round(places, 5).tolist(),
            "mixed": [float(np.mean(one < MIXED)) for one in split_rhat(draws).T],
            "seconds": time.process_time() - begun,
        }

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> list[Coverage]:
        found = []
        for cell, result in zip(cells, results, strict=True):
            off = np.abs(np.array(result["places"]) - 0.5)
            names = [*(f"θ{place}" for place in range(cell.method != NORMAL, D + 1)), "σ_y²"][: off.shape[1]]
            shares = {
                n: [float((own <= level / 2).mean()) for level in LEVELS] for n, own in zip(names, off.T, strict=True)
            }
            looked_at = len(LEVELS) * len(names) * len({one.epsilon for one in cells})
            bands = [band(level, len(off), looked_at) for level in LEVELS]
            found.append(Coverage(cell, shares, bands, result["clipped"], result["mixed"]))
        return found

    def notes(self, found: Sequence[Coverage]) -> dict[str, Any]:
        names = ("chains", "d", "nodes", "rows", "delta", "levels", "conflict", "bound_x", "bound_y", "kappa", "spread")
        constants = (CHAINS, D, NODES, ROWS, DELTA, LEVELS, CONFLICT, BOUND_X, BOUND_Y, KAPPA, SPREAD)
        return {
            **dict(zip(names, constants, strict=True)),
            "warmup_draws_thin": {"others": DEFAULT_LENGTH, **LENGTHS},
            "thin_of_judged": {at_least(epsilon): thin for epsilon, thin in THIN_OF_NORMAL_X.items()},
            "intercept": {"constant": CONSTANT, **OPTIONS},
            "coverage": [{**one.cell._asdict(), "covered": one.covered, "bands": one.bands} for one in found],
        }

    def tables(self, found: Sequence[Coverage]) -> Iterator[Table]:
        for conflict in (False, True):
            words = "σ_y² = 1 under IG(20, 0.5)" if conflict else "σ_y² from its prior"
            levels = [f"{level:.0%}" for level in LEVELS]
            shown = table(f"coverage in %, {words}; * outside the band", "method", "ε", "of", *levels, "R̂ < 1.05")
            for one in (one for one in found if one.cell.conflict == conflict):
                for place, (name, shares) in enumerate(one.covered.items()):
                    marks = ["" if low <= c <= high else "*" for c, (low, high) in zip(shares, one.bands, strict=True)]
                    mixed = "" if one.mixed is None else f"{one.mixed[place]:.0%}"
                    row = [f"{100 * share:.1f}{mark}" for share, mark in zip(shares, marks, strict=True)]
                    shown.add_row(one.cell.method, at_least(one.cell.epsilon), name, *row, mixed)
            yield shown

    def checks(self, found: Sequence[Coverage]) -> Iterator[Check]:
        """Check that without conflict the judged methods are calibrated, with mixed chains and hardly a clipped row."""
        calm = [one for one in found if not one.cell.conflict]
        judged = {method: [one for one in calm if one.cell.method == method] for method in JUDGED}
        for method, own in judged.items():
            wrong = [f"ε = {at_least(one.cell.epsilon)}: {words}" for one in own for words in one.outside()]
            looked_at = sum(len(LEVELS) * len(one.covered) for one in own)
            asked = f"all {looked_at} in a simultaneous {BAND:.0%} band of nominal"
            yield Check(f"coverage of {method}, no conflict", asked, "; ".join(wrong) or "all inside", not wrong)
        for method, own in judged.items():
            least = min(share for one in own for share in one.mixed or ())
            asked = f"R̂ below {MIXED:g} in {MIXED_SHARE:.0%} of the data sets, for each parameter and ε"
            name = f"chains of {method} have mixed, no conflict"
            yield Check(name, asked, f"{least:.1%} at least", least >= MIXED_SHARE)
        clipped = max(one.clipped for one in found)
        yield Check("rows that the bounds change", "at most 1 in 1000", f"{clipped:.1e}", clipped <= 1e-3)

    def draw(self, found: Sequence[Coverage], path: Path) -> None:
        methods = list(dict.fromkeys(one.cell.method for one in found))
        title = "coverage minus nominal, in percentage points; grey: simultaneous 99 % band"
        with drawing(path, rows=2, columns=len(methods), size=(3.4, 3.2), title=title) as panels:
            for one in found:
                axes = panels[int(one.cell.conflict), methods.index(one.cell.method)]
                words, ticks = "conflict" if one.cell.conflict else "no conflict", [100 * level for level in LEVELS]
                axes.set(title=f"{one.cell.method}, {words}", xlabel="nominal in %", xticks=ticks)
                _draw_cell(axes, one, self.epsilons.index(one.cell.epsilon))
            legend(panels)


def _draw_cell(axes: Any, one: Coverage, place: int) -> None:
    nominal = 100 * np.array(LEVELS)
    if place == 0:
        low, high = 100 * np.array(one.bands).T - nominal
        axes.fill_between(nominal, low, high, color=GREY, alpha=0.3, linewidth=0)
        axes.axhline(0, color=BLACK, linewidth=0.8)
    for name, shares in one.covered.items():
        hollow = {"markerfacecolor": "none"} if name == "σ_y²" else {}
        what = "σ_y²" if hollow else "θ"
        label = None if name in ("θ0", "θ2") else f"{what}, ε = {at_least(one.cell.epsilon)}"
        style = {"color": COLOURS[place], "marker": MARKERS[place], "linewidth": 0.8, "markersize": 5}
        axes.plot(nominal, 100 * np.array(shares) - nominal, label=label, **style, **hollow)
