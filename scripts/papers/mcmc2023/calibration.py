"""Are the posteriors of the third paper's methods calibrated? Coverage of credible intervals over data and noise.

**The game.** θ and Σ_x are drawn from the prior, σ_y² too (*no conflict*) or it is 1 (*conflict*: the paper's own
simulation, whose prior IG(20, 0.5) has a mean of 0.026); rows are drawn given these; each of J = 5 nodes releases its
statistic in a local round of the ideal functionality: replacement of one row, exact discrete noise, public bounds. A
central interval of level L covers if the truth's place u among the draws has |u - ½| <= L/2. Under the right posterior
u is uniform, for each data set independently: where there is no conflict MCMC-normalX must cover as often as it says,
and so must the library's own sampler, with an intercept. That one has data sets of its own: features about a mean from
its prior, a constant, and `MISSING` of the rows without a value on average, which the noise hides at the smallest ε and
does not at the largest.

**The bounds** are public, and so wide that hardly a row is clipped, as no method models clipping: κ = 30 makes Σ_x vary
around the identity by 28 % per variance, while with the paper's κ = d + 1, without a mean, half the rows of some data
sets would lie outside any bounds. How many rows were clipped is counted.

**The band.** Of one method, K coverages are looked at (levels x coefficients and σ_y² x ε). If all are nominal each
count is binomial, so the counts all lie between the binomial quantiles at 0.005/K and 1 - 0.005/K with a probability of
99 % at least, whatever the dependence between them (Bonferroni). Draws of chains that have not met are none of the
posterior, so of the judged cells all but a few data sets must have an R̂ below `MIXED`.

MCMC-B&S has a release of its own, with yᵀy, and another prior: θ given σ_y² is N(m, σ_y² Λ₀⁻¹). adaSSP is an estimate
without intervals, and cannot take part.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from dca_proto.privacy.budget import Budget
from dca_proto.privacy.rounding import at_least
from emulator.experiments.picture import BLACK, COLOURS, GREY, MARKERS, drawing, legend
from emulator.experiments.runner import Check, table
from inference.mcmc.run import Options
from inference.models.linear.nodes import fixed_s_fast
from inference.models.linear.nodes import methods as nodes
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from inference.problem import stream
from papers.mcmc2023.kernels import SAMPLED, split_rhat
from papers.mcmc2023.releases import local_round
from papers.mcmc2023.samplers.methods import METHODS as METHOD_TABLE
from papers.mcmc2023.samplers.methods import kernel_of
from papers.mcmc2023.simulated import complete_rows, inverse_wishart

Array = NDArray[np.float64]

D, NODES, ROWS = 2, 5, 2000  # rows of each node
EPSILONS, DELTA = (0.5, 2.0, 8.0), 1e-5
BOUND_X, BOUND_Y = 6.0, 6.0
KAPPA, SPREAD = 30.0, 0.25  # of Σ_x, and the prior variance of each coefficient
CONFLICT = 1.0
LEVELS = (0.5, 0.8, 0.9, 0.95)
BAND = 0.99
NORMAL_X, NORMAL, FAST = "normal-x", "normal", "fast"
JUDGED = (NORMAL_X, NORMAL)
METHODS = (NORMAL, *SAMPLED, FAST)
CONSTANT, PRIOR_ROWS, MISSING = 1.0, 4.0, 0.05
"""Where there is an intercept: the constant, k_0 of the features' mean, and the expected share of missing rows."""
OPTIONS = {"prior_rows": PRIOR_ROWS, "missing": MISSING}
MIXED, MIXED_SHARE = 1.05, 0.9
CHAINS = 2


class Length(NamedTuple):
    """Of each chain, as `sampler.sample` has it."""

    warmup: int
    draws: int
    thin: int

    def shortened(self, by: int) -> Length:
        return Length(self.warmup // by, self.draws // by, self.thin)


DEFAULT_LENGTH = Length(1000, 1000, 5)
LENGTHS = {NORMAL: Length(300, 500, 1), "fixed-s": Length(500, 500, 2)}
"""Of samplers that need less than the others."""
THIN_OF_NORMAL_X = {0.5: 20, 2.0: 10}
"""At ε where the noise makes its chains crawl."""


@dataclass(frozen=True)
class Cell:
    """A method, an ε, and whether the truth is in conflict with the prior of σ_y²."""

    method: str
    epsilon: float
    conflict: bool

    def __str__(self) -> str:
        return f"{self.method}, epsilon {self.epsilon:g}, {'conflict' if self.conflict else 'no conflict'}"


@dataclass(frozen=True)
class Plan:
    """What is the same for all cells.

    Attributes:
        datasets: how many in each. shorter: by what the lengths of chains are divided. seed: of all streams.
    """

    datasets: int
    shorter: int
    seed: int


@dataclass(frozen=True, eq=False)
class Truths:
    """Data sets as released, with what they were made from.

    Attributes:
        observed: of each data set. values: θ and σ_y², shape ``(data sets, d + 1)``, and one more with a constant.
        clipped: share of all rows.
    """

    observed: tuple[NodeStatistics, ...]
    values: Array
    clipped: float


def prior(constant: bool = False) -> Prior:
    """The paper's for σ_y², and one for θ and Σ_x that public bounds can be stated under."""
    d = D + constant
    Lambda = (KAPPA - D - 1) * np.eye(d)
    return Prior(np.zeros(d), SPREAD * np.eye(d), np.array(20.0), np.array(0.5), Lambda, np.array(KAPPA))


@lru_cache(maxsize=1)
def data_sets(epsilon: float, conflict: bool, square: bool, constant: bool, count: int, seed: int) -> Truths:
    """The same for all methods but those that need yᵀy, whose rows are the same too, or a constant."""
    name = f"calibration/{epsilon:g}/{conflict}{'/intercept' if constant else ''}"
    rng, noise = stream(seed, name), stream(seed, f"{name}/noise")
    drawn = [_rows(rng, conflict, constant) for _ in range(count)]
    bounds, budget, value = (BOUND_X, BOUND_Y), Budget(epsilon, DELTA), CONSTANT if constant else 0.0
    observed = tuple(
        local_round(list(rows), bounds, budget, noise.bytes, target_square=square, constant=value) for rows, _ in drawn
    )
    outside = [_outside(rows) for rows, _ in drawn]
    return Truths(observed, np.array([values for _, values in drawn]), float(np.mean(outside)))


def _rows(rng: np.random.Generator, conflict: bool, constant: bool) -> tuple[Array, Array]:
    """Features and target of all nodes, shape ``(J, n, d + 1)``, and the true θ and σ_y²."""
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


def _outside(rows: Array) -> float:
    """Share of the rows that the bounds change."""
    return float(((np.linalg.norm(rows[..., :-1], axis=-1) > BOUND_X) | (np.abs(rows[..., -1]) > BOUND_Y)).mean())


def length_of(cell: Cell) -> Length:
    """Of its chains."""
    length = LENGTHS.get(cell.method, DEFAULT_LENGTH)
    if cell.method == NORMAL_X:
        length = length._replace(thin=THIN_OF_NORMAL_X.get(cell.epsilon, length.thin))
    return length


def work(cell: Cell, plan: Plan) -> dict[str, Any]:
    """Where the truth lies among the draws, for each data set and parameter, and how well the chains mixed."""
    constant = cell.method == NORMAL
    square = not constant and METHOD_TABLE[cell.method].target_square
    truths = data_sets(cell.epsilon, cell.conflict, square, constant, plan.datasets, plan.seed)
    shared = {"clipped": truths.clipped}
    if cell.method == FAST:
        return {**shared, "places": _places_of_fast(truths).tolist(), "mixed": None, "seconds": None}
    length, begun = length_of(cell).shortened(plan.shorter), time.process_time()
    drawn = _by_nuts(truths, length, plan.seed) if constant else _by_kernel(cell.method, truths, length, plan.seed)
    draws = np.concatenate([drawn["theta"], drawn["sigma_y2"][..., None]], axis=-1)
    places = (np.sum(draws < truths.values[:, None, None, :], axis=(1, 2)) + 0.5) / (CHAINS * length.draws + 1)
    mixed = [float(np.mean(one < MIXED)) for one in split_rhat(draws).T]
    return {**shared, "places": np.round(places, 5).tolist(), "mixed": mixed, "seconds": time.process_time() - begun}


def _by_kernel(method: str, truths: Truths, length: Length, seed: int) -> dict[str, Array]:
    """Draws of a sampler of the paper, for all data sets at once."""
    from papers.mcmc2023.samplers.sampler import sample  # needs JAX

    kernel = kernel_of(method, truths.observed[0])
    return sample(kernel, truths.observed, prior(), chains=CHAINS, seed=seed, **length._asdict()).draws


def _by_nuts(truths: Truths, length: Length, seed: int) -> dict[str, Array]:
    """Draws of the library's sampler, of one data set after the other."""
    how = Options(chains=CHAINS, warmup=length.warmup, draws=length.draws, seed=seed)
    found = [nodes.sample(observed, prior(True), how, **OPTIONS).draws for observed in truths.observed]
    return {name: np.stack([one[name] for one in found]) for name in ("theta", "sigma_y2")}


def _places_of_fast(truths: Truths) -> Array:
    """A Gaussian over θ alone, whose distribution function is known; σ_y² is plugged in."""
    from scipy.special import ndtr

    crude = fixed_s_fast.crude_sigma_y2(BOUND_Y)
    found = [fixed_s_fast.posterior(observed, prior(), crude) for observed in truths.observed]
    mean, sd = np.array([one.mean for one in found]), np.sqrt([np.diag(one.cov) for one in found])
    return np.asarray(ndtr((truths.values[:, :D] - mean) / sd))


def settings() -> dict[str, Any]:
    """What the data sets are like, as plain data."""
    bounds = {"bound_x": BOUND_X, "bound_y": BOUND_Y, "kappa": KAPPA, "prior_variance": SPREAD}
    lengths = {name: list(length) for name, length in LENGTHS.items()}
    return {
        "chains": CHAINS,
        "warmup_draws_thin": {"others": list(DEFAULT_LENGTH), **lengths},
        "thin_of_judged": {at_least(epsilon): thin for epsilon, thin in THIN_OF_NORMAL_X.items()},
        "d": D,
        "nodes": NODES,
        "rows": ROWS,
        "delta": DELTA,
        "levels": LEVELS,
        "conflict": CONFLICT,
        "intercept": {"constant": CONSTANT, **OPTIONS},
        **bounds,
    }


def figures_of(cells: Sequence[Cell], results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each cell: coverage by parameter and level, and what a binomial count would be within."""
    epsilons = len({cell.epsilon for cell in cells})
    found = []
    for cell, result in zip(cells, results, strict=True):
        places = np.array(result["places"])
        off = np.abs(places - 0.5)
        names = [*_coefficients(cell.method), "σ_y²"][: places.shape[1]]
        found.append({
            "method": cell.method,
            "epsilon": cell.epsilon,
            "conflict": cell.conflict,
            "data_sets": len(places),
            "coverage": {name: _coverage(off[:, place]) for place, name in enumerate(names)},
            "band": [band(level, len(places), len(LEVELS) * len(names) * epsilons) for level in LEVELS],
            "clipped": result["clipped"],
            "mixed": result["mixed"],
            "seconds": result["seconds"],
        })  # fmt: skip
    return found


def _coefficients(method: str) -> list[str]:
    """Names, the constant's first."""
    return [f"θ{place}" for place in range(method != NORMAL, D + 1)]


def _coverage(off: Array) -> list[float]:
    """At each level, of the truths' distances from the middle of their posteriors."""
    return [float((off <= level / 2).mean()) for level in LEVELS]


def band(level: float, count: int, looked_at: int) -> tuple[float, float]:
    """What `count` data sets' coverage lies within, for one of as many as are looked at."""
    from scipy.stats import binom

    tail = (1 - BAND) / looked_at / 2
    return float(binom.ppf(tail, count, level)) / count, float(binom.isf(tail, count, level)) / count


def outside(figures: dict[str, Any]) -> list[str]:
    """The parameters and levels at which a cell's coverage is not in the band."""
    return [
        f"{name} at {level:.0%}: {coverage:.1%}"
        for name, coverages in figures["coverage"].items()
        for level, coverage, (low, high) in zip(LEVELS, coverages, figures["band"], strict=True)
        if not low <= coverage <= high
    ]


def checks(found: Sequence[dict[str, Any]]) -> list[Check]:
    """MCMC-normalX and its form with an intercept are calibrated where their prior is right.

    And that is no accident of clipping, or of chains that have not met.
    """
    clipped = max(one["clipped"] for one in found)
    asked = [_check_coverage(method, _judged(found, method)) for method in JUDGED]
    asked += [_check_mixing(method, _judged(found, method)) for method in JUDGED]
    return [*asked, Check("rows that the bounds change", "at most 1 in 1000", f"{clipped:.1e}", clipped <= 1e-3)]


def _judged(found: Sequence[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    return [one for one in found if one["method"] == method and not one["conflict"]]


def _check_coverage(method: str, judged: Sequence[dict[str, Any]]) -> Check:
    wrong = [f"ε = {at_least(one['epsilon'])}: {words}" for one in judged for words in outside(one)]
    looked_at = sum(len(LEVELS) * len(one["coverage"]) for one in judged)
    asked = f"all {looked_at} in a simultaneous {BAND:.0%} band of nominal"
    return Check(f"coverage of {method}, no conflict", asked, "; ".join(wrong) or "all inside", not wrong)


def _check_mixing(method: str, judged: Sequence[dict[str, Any]]) -> Check:
    least = min(share for one in judged for share in one["mixed"])
    asked = f"R̂ below {MIXED:g} in {MIXED_SHARE:.0%} of the data sets, for each parameter and ε"
    return Check(f"chains of {method} have met, no conflict", asked, f"{least:.1%} at least", least >= MIXED_SHARE)


def coverage_table(found: Sequence[dict[str, Any]], conflict: bool) -> Table:
    """Coverage in percent, at each level; an asterisk where it is outside the band."""
    words = "σ_y² = 1 under IG(20, 0.5)" if conflict else "σ_y² from its prior"
    levels = [f"{level:.0%}" for level in LEVELS]
    shown = table(f"coverage in %, {words}; * outside the band", "method", "ε", "of", *levels, "R̂ < 1.05")
    for one in (one for one in found if one["conflict"] == conflict):
        for place, (name, coverages) in enumerate(one["coverage"].items()):
            marks = ["" if low <= c <= high else "*" for c, (low, high) in zip(coverages, one["band"], strict=True)]
            mixed = "" if one["mixed"] is None else f"{one['mixed'][place]:.0%}"
            cells = [f"{100 * c:.1f}{mark}" for c, mark in zip(coverages, marks, strict=True)]
            shown.add_row(one["method"], at_least(one["epsilon"]), name, *cells, mixed)
    return shown


def draw(path: Path, found: Sequence[dict[str, Any]]) -> None:
    """A panel for each method: coverage over nominal, θ filled and σ_y² hollow, by ε; conflict in the lower row."""
    methods, epsilons = _distinct(found, "method"), _distinct(found, "epsilon")
    title = "coverage minus nominal, in percentage points; grey: simultaneous 99 % band"
    with drawing(path, rows=2, columns=len(methods), size=(3.4, 3.2), title=title) as panels:
        for one in found:
            axes = panels[int(one["conflict"]), methods.index(one["method"])]
            words = "conflict" if one["conflict"] else "no conflict"
            axes.set(title=f"{one['method']}, {words}", xlabel="nominal in %", xticks=[100 * level for level in LEVELS])
            _draw_cell(axes, one, epsilons.index(one["epsilon"]))
        legend(panels)


def _draw_cell(axes: Any, one: dict[str, Any], place: int) -> None:
    nominal = 100 * np.array(LEVELS)
    if place == 0:
        low, high = 100 * np.array(one["band"]).T - nominal
        axes.fill_between(nominal, low, high, color=GREY, alpha=0.3, linewidth=0)
        axes.axhline(0, color=BLACK, linewidth=0.8)
    for name, coverages in one["coverage"].items():
        hollow = {"markerfacecolor": "none"} if name == "σ_y²" else {}
        what = "σ_y²" if hollow else "θ"
        label = None if name in ("θ0", "θ2") else f"{what}, ε = {at_least(one['epsilon'])}"
        style = {"color": COLOURS[place], "marker": MARKERS[place], "linewidth": 0.8, "markersize": 5}
        axes.plot(nominal, 100 * np.array(coverages) - nominal, label=label, **style, **hollow)


def _distinct(found: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return list(dict.fromkeys(one[name] for one in found))
