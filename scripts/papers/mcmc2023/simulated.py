"""Figures 2 and 4 of the third paper: errors and distances over ε on simulated data, for J nodes (section 5.1).

    V    d × d independent normals, Λ = VᵀV        θ ~ N(0, I),  Σ_x ~ IW(Λ, d + 1)
    x ~ N(0, Σ_x),  y = xᵀθ + N(0, 1)              n = 10⁵ rows for d = 2 and d = 5, as in the code and Figure 2

There is one data set for each d, and the prior knows its Λ. The difficulty depends on Σ_x, and the authors' is unknown.
But without privacy, the squared errors of θ add up to tr(Σ_x⁻¹)/n and those of predictions to d/n on average, and
Figure 2 prints both. Of `CANDIDATES` draws of Σ_x, the one that comes nearest to these is used.

**As published**, ‖X‖ and ‖Y‖ are the largest of the rows and the noise is the published one (`releases`), which is not
private as claimed. **Valid**, rows are clipped at four standard deviations of the population, which the simulation
knows: features to a ball, by the direction that varies most, and the target. The noise is for the replacement of a row,
by the exact mechanism, in a local round. This setting has another prior, too: the law of θ, and IG(2, 1) for σ_y².

A run is one method at one J and all ε; it samples the 50 repeats at each ε together. As published, the prior conflicts
with the data: it has θ_j ~ N(0, 0.026) and σ_y² ~ IG(20, 0.5), whose mean is 0.026, but the data have θ_j ~ N(0, 1) and
σ_y² = 1.

**Figure 2**: squared errors of θ and of predictions, d = 2 and d = 5.

    estimation    mean over the coordinates of (θ̂ - θ)²             θ̂ the posterior mean
    prediction    E (xᵀθ̂ - xᵀθ)² = (θ̂ - θ)ᵀ Σ_x (θ̂ - θ)

The paper defines both by the posterior mean. But for samplers, its code averages the prediction error over draws of θ,
so that it includes the posterior's variance; for Bayes-fixedS-fast and adaSSP it does not. The JSON has both; the
figure as published follows the code.

**Figure 4**: squared maximum mean discrepancy of private and non-private posteriors of θ, d = 2.

    k(x, y) = (2πh)^(-d/2) exp(-|x - y|²/(2h)),  h = 0.1
    MMD² = mean of k over pairs of different x + the same over y - 2·mean of k over all x and y

(Gretton et al. 2012, lemma 6: unbiased, so it can be below 0.) As in the code, x are 2000 draws of the non-private
posterior, and y a hundred draws of a chain, evenly spaced after warm-up (every 50th of 5000). For Bayes-fixedS-fast, y
are 500 draws; the code's 2000 have the same mean.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.table import Table

from dca_proto.privacy.budget import Budget
from dca_proto.privacy.rounding import at_least
from inference.draws import R_HAT_REQUIRED
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from inference.problem import Array, stream
from papers import picture
from papers.experiment import F, Result, option, over_epsilon
from papers.mcmc2023 import fits, releases
from papers.mcmc2023.data import PUBLISHED, TITLES, VALID, Statistics, blocks
from papers.mcmc2023.paper import (
    ADASSP,
    BERNSTEIN_SHELDON,
    EPSILONS,
    FAST,
    FIXED_S,
    FLOOR_STYLE,
    NODES,
    NON_PRIVATE,
    REPEATS,
    STYLES,
)  # fmt: skip
from papers.mcmc2023.samplers.sampler import SAMPLERS
from papers.runner import Check, table

ROWS, DELTA = 100_000, 1e-5
SDS, CANDIDATES = 4.0, 100
PRIOR_A, PRIOR_B = 20.0, 0.5
ESTIMATION, PREDICTION, AVERAGED = MEASURES = ("estimation", "prediction", "prediction over draws")
DRAWN = {PUBLISHED: AVERAGED, VALID: PREDICTION}
"""The error of predictions that the figure shows."""
NEAR = 10.0
GROWTH = 1.5  # an error that rises by more than this factor from one ε to the next counts as growing
D_OF_DISTANCES = 2
BANDWIDTH, DRAWS, DRAWS_OF_FAST, KEPT = 0.1, 2000, 500, 100
FALLEN = 0.1  # required ratio of the distance at the largest ε to that at the smallest


@dataclass(frozen=True, eq=False)
class Population:
    """The parameters of the population, and its rows ``X`` (n, d) and ``y`` (n,)."""

    theta: Array
    Sigma_x: Array
    Lambda: Array
    X: Array
    y: Array

    @property
    def bounds(self) -> tuple[float, float]:
        """‖X‖ and ‖Y‖ as published: the largest over the rows."""
        return float(np.linalg.norm(self.X, axis=1).max()), float(np.abs(self.y).max())

    @property
    def public(self) -> tuple[float, float]:
        """The radius of the features and the bound of the target in the valid setting."""
        largest = float(np.linalg.eigvalsh(self.Sigma_x)[-1])
        return SDS * math.sqrt(largest), SDS * math.sqrt(float(self.theta @ self.Sigma_x @ self.theta) + 1)


class Work(NamedTuple):
    """A run of one method."""

    setting: str
    d: int
    nodes: int
    method: str
    iterations: int = 0  # of a sampler; 0 for other methods

    def __str__(self) -> str:
        return fits.named(self.setting, f"d = {self.d}", *self[2:])


@lru_cache(maxsize=4)
def population(d: int, seed: int, rows: int = ROWS) -> Population:
    """Simulate the data set of d features."""
    rng, (estimation, prediction) = stream(seed, f"distributed/simulated/{d}"), NON_PRIVATE[d]

    def covariance() -> tuple[Array, Array]:
        V = rng.standard_normal((d, d))
        return V.T @ V, inverse_wishart(V.T @ V, d + 1, rng)

    def mismatch(drawn: tuple[Array, Array]) -> float:
        """Return the absolute log ratio of tr(Σ_x⁻¹)/d to its value in the paper's non-private errors."""
        return abs(math.log(float(np.trace(np.linalg.inv(drawn[1]))) * prediction / (d**2 * estimation)))

    Lambda, Sigma_x = min((covariance() for _ in range(CANDIDATES)), key=mismatch)
    theta = rng.standard_normal(d)
    X = rng.standard_normal((rows, d)) @ np.linalg.cholesky(Sigma_x).T
    return Population(theta, Sigma_x, Lambda, X, X @ theta + rng.standard_normal(rows))


def inverse_wishart(Lambda: Array, degrees: int, rng: np.random.Generator) -> Array:
    """Draw the inverse of Σ ggᵀ over `degrees` vectors g ~ N(0, Λ⁻¹)."""
    normals = rng.standard_normal((degrees, len(Lambda))) @ np.linalg.cholesky(np.linalg.inv(Lambda)).T
    return np.asarray(np.linalg.inv(normals.T @ normals), float)


def non_private(of: Population) -> tuple[Array, Array, float, float]:
    """Return the non-private conjugate posterior: μ_n and A_n⁻¹ of θ ~ N(μ_n, σ_y² A_n⁻¹), a_n and b_n of σ_y² ~ IG."""
    precision = of.X.T @ of.X + PRIOR_B / (PRIOR_A - 1) * np.eye(len(of.theta))  # as in the published code
    mean, spread = np.linalg.solve(precision, of.X.T @ of.y), np.linalg.inv(precision)
    b = PRIOR_B + 0.5 * float(of.y @ of.y - mean @ precision @ mean)
    return np.asarray(mean, float), np.asarray(spread, float), PRIOR_A + len(of.y) / 2, max(b, PRIOR_B)


@lru_cache(maxsize=8)
def _released(
    setting: str, d: int, nodes: int, square: bool, seed: int, each: tuple[float, ...]
) -> tuple[NodeStatistics, ...]:
    """Release each problem at its ε: the same for all methods but the one that needs yᵀy."""
    of = population(d, seed)
    rng = stream(seed, f"distributed/simulated/noise/{setting}/{d}/{nodes}/{square}")
    if setting == PUBLISHED:
        exact, bounds = Statistics.of(of.X, of.y, nodes), of.bounds
        return tuple(releases.published(exact, *bounds, epsilon, DELTA, rng, square) for epsilon in each)
    parts, public = [np.column_stack([of.X[part], of.y[part]]) for part in blocks(len(of.y), nodes)], of.public
    budgets = [Budget(epsilon, DELTA) for epsilon in each]
    return tuple(releases.local_round(parts, public, one, rng.bytes, target_square=square) for one in budgets)


@dataclass(frozen=True, kw_only=True)
class SimulatedExperiment(fits.DistributedExperiment[Work, F]):
    """An experiment on the simulated data, for each number in `dimension`."""

    QUICK: ClassVar = {"repeats": 5, "epsilons": (0.1, 1.0, 10.0), "nodes": (5,), "iterations": 400}
    WITH_BERNSTEIN_SHELDON: ClassVar = True
    DEPENDS = ("seed", "repeats", "epsilons")

    repeats: int = REPEATS
    epsilons: tuple[float, ...] = EPSILONS
    nodes: tuple[int, ...] = NODES
    dimension: tuple[int, ...] = (2, 5)

    def cells(self) -> list[Work]:
        return [
            Work(setting, d, nodes, method, iterations)
            for setting in self.setting
            for d in self.dimension
            for nodes in self.nodes
            for method, iterations in self.lengths().items()
        ]

    def cost(self, cell: Work) -> float:
        return fits.cost(cell.method, cell.iterations, cell.nodes, cell.d)

    def made(self, work: Work) -> fits.Fits:
        """Run one method at J nodes. Its problems are the repeats of the first ε, then those of the next."""
        of, is_published = population(work.d, self.seed), work.setting == PUBLISHED
        bounds, each = of.bounds if is_published else of.public, np.repeat(self.epsilons, self.repeats).tolist()
        if work.method == ADASSP:
            rng = stream(self.seed, f"distributed/simulated/adaSSP/{work.setting}/{work.d}/{work.nodes}")
            exact = Statistics.of(of.X, of.y, work.nodes)
            found = [releases.adassp_estimate(exact, *bounds, is_published, one, DELTA, rng) for one in each]
            return fits.Fits(np.stack(found), None, None, {})
        prior = releases.published_prior(work.d, of.Lambda)
        if not is_published:
            wide = (np.zeros(work.d), np.eye(work.d), np.array(2.0), np.array(1.0))
            prior = Prior(*wide, of.Lambda, np.array(work.d + 1.0))
        problems = _released(*work[:3], work.method == BERNSTEIN_SHELDON, self.seed, tuple(each))
        priors, bounds_y = [prior] * len(each), [bounds[1]] * len(each)
        return fits.fitted(
            work.method, problems, priors, bounds_y, work.iterations, self.seed, as_published=is_published
        )

    def by_epsilon(self, values: Array) -> Array:
        """Return values of the problems in shape ``(ε, repeats, ...)``."""
        return values.reshape(len(self.epsilons), self.repeats, *values.shape[1:])

    def notes(self, found: F) -> dict[str, Any]:
        return {"delta": DELTA, "rows": ROWS}

    def panels(self, path: Path, rows: Sequence[Any], nodes: Sequence[Any], title: str, fill: Any) -> None:
        """Draw a panel over ε for each row and J; `fill` draws its content and returns the label of its y axis."""
        with picture.drawing(path, rows=len(rows), columns=len(nodes), size=(4.4, 3.7), title=title) as panels:
            for line, row in zip(panels, rows, strict=True):
                for axes, J in zip(line, nodes, strict=True):
                    height = fill(axes, row, J)
                    axes.set(yscale="log")
                    picture.epsilon_axis(axes, self.epsilons)
                line[0].set_ylabel(height)
            for axes in panels[-1]:
                axes.set_xlabel("ε")
            picture.legend(panels)


# Figure 2


@dataclass(frozen=True)
class Curves:
    """All errors."""

    found: Mapping[Work, Mapping[str, Array]]  # (ε, repeats), by work and measure
    floors: Mapping[int, Mapping[str, float]]  # without privacy, by d and measure
    zeros: Mapping[int, Mapping[str, float]]  # of the zero predictor, by d and measure
    r_hats: Mapping[Work, tuple[float, float]]  # of θ: median and maximum over ε and repeats, for samplers

    def mean(self, work: Work, measure: str) -> Array:
        return np.asarray(self.found[work][measure].mean(axis=1))

    def works(self, setting: str, d: int, nodes: int) -> list[Work]:
        return [one for one in self.found if one[:3] == (setting, d, nodes)]

    def distinct(self, name: str) -> list[Any]:
        return list(dict.fromkeys(getattr(one, name) for one in self.found))


def _errors(off: Array, Sigma_x: Array) -> dict[str, Any]:
    """Return the errors of estimates with differences `off` from the truth, ``(..., d)``."""
    return {ESTIMATION: (off**2).mean(axis=-1), PREDICTION: ((off @ Sigma_x) * off).sum(axis=-1)}


@dataclass(frozen=True, kw_only=True)
class Figure2(SimulatedExperiment[Curves]):
    """Figure 2 of the third paper: errors of distributed private regression on simulated data over ε.

    Takes about 30 minutes on two idle cores (estimated from parts of it); as published (not private as claimed) and
    valid. MCMC-normalX has not mixed at d = 5 after the paper's 10,000 iterations; R-hat of all samplers is printed.
    Exit code 4 if errors do not fall with ε, or another check printed at the end fails.

    --plot NAME.png draws the published setting there and the valid one as NAME-valid.png.
    """

    KIND, LABEL = "mcmc-figure-2", "errors"
    METHODS: ClassVar = (*SAMPLERS, FAST, ADASSP)

    dimension: tuple[int, ...] = option((2, 5), "only this d", action="append", type=int, choices=(2, 5), metavar="d")

    def work(self, cell: Work) -> Result:
        began = time.perf_counter()
        of, found = population(cell.d, self.seed), self.made(cell)
        measured = _errors(found.mean - of.theta, of.Sigma_x)
        measured[AVERAGED] = measured[PREDICTION]
        if found.theta is not None:
            measured[AVERAGED] = _errors(found.theta - of.theta, of.Sigma_x)[PREDICTION].mean(axis=-1)
        plain = {name: self.by_epsilon(values).tolist() for name, values in measured.items()}
        return {**plain, **found.report, "wall_seconds": round(time.perf_counter() - began, 2)}

    def gather(self, cells: Sequence[Work], results: Sequence[Result]) -> Curves:
        floors: dict[int, dict[str, float]] = {}
        zeros: dict[int, dict[str, float]] = {}
        for d in dict.fromkeys(work.d for work in cells):
            of = population(d, self.seed)
            for kept, off in ((floors, non_private(of)[0] - of.theta), (zeros, of.theta)):
                estimation, prediction = map(float, _errors(off, of.Sigma_x).values())
                kept[d] = {ESTIMATION: estimation, PREDICTION: prediction, AVERAGED: prediction}
        both = list(zip(cells, results, strict=True))
        found = {work: {name: np.array(one[name]) for name in MEASURES} for work, one in both}
        mixing = {w: (one["split_rhat_median"], one["split_rhat_max"]) for w, one in both if "split_rhat_max" in one}
        return Curves(found, floors, zeros, mixing)

    def notes(self, found: Curves) -> dict[str, Any]:
        return {**super().notes(found), "non_private": found.floors, "zero_predictor": found.zeros}

    def tables(self, found: Curves) -> Iterator[Table]:
        for setting in found.distinct("setting"):
            for measure in (ESTIMATION, DRAWN[setting]):
                title = f"{TITLES[setting]}: mean squared error of {measure}; *: no better than zero"
                shown = over_epsilon(title, "d, J, method", self.epsilons)
                for d in found.distinct("d"):
                    zero = found.zeros[d][measure]
                    for nodes in found.distinct("nodes"):
                        shown.add_section()
                        for work in found.works(setting, d, nodes):
                            means = found.mean(work, measure)
                            row = (f"[dim]{one:.2e}*[/]" if one >= zero else f"{one:.2e} " for one in means)
                            shown.add_row(f"{d}, {nodes}, {work.method}", *row)
                    shown.add_row(f"{d}, no privacy", f"{found.floors[d][measure]:.2e}")
                yield shown
        yield from _mixing(found)

    def draw(self, found: Curves, path: Path) -> None:
        for place, setting in enumerate(found.distinct("setting")):

            def fill(axes: Any, row: tuple[int, str], J: int, setting: str = setting) -> str:
                d, measure = row
                for work in found.works(setting, d, J):
                    axes.plot(self.epsilons, found.mean(work, measure), label=work.method, **STYLES[work.method])
                slow = [(work.method, found.r_hats.get(work, (1.0, 1.0))[0]) for work in found.works(setting, d, J)]
                words = "\n".join(f"{method}: R̂ {r_hat:.2f}" for method, r_hat in slow if r_hat > R_HAT_REQUIRED)
                axes.text(0.98, 0.78, words, transform=axes.transAxes, fontsize=9, ha="right", va="top")
                axes.axhline(found.floors[d][measure], label="no privacy", **FLOOR_STYLE)
                picture.zero_line(axes, found.zeros[d][measure])
                axes.set_title(f"d = {d}, J = {J}")
                return f"{measure}: squared error"

            rows = [(d, measure) for d in found.distinct("d") for measure in (DRAWN[setting], ESTIMATION)]
            title = f"Errors on simulated data, n = {ROWS:,}, δ = {at_least(DELTA)}: {TITLES[setting]}"
            beside = path.with_stem(f"{path.stem}-{setting.replace(' ', '-')}") if place else path
            self.panels(beside, rows, found.distinct("nodes"), title, fill)

    def checks(self, found: Curves) -> Iterator[Check]:
        for setting in found.distinct("setting"):
            growing = []
            for work in (one for one in found.found if one.setting == setting):
                means = found.mean(work, ESTIMATION)
                growing += [str(work)] if means[-1] > means[0] or (means[1:] > GROWTH * means[:-1]).any() else []
            words = "; ".join(growing) or "everywhere"
            yield Check(f"errors fall with ε, {setting}", "for every method, d and J", words, not growing)
        for d in found.distinct("d"):
            ends = [float(found.mean(work, ESTIMATION)[-1]) for work in found.works(PUBLISHED, d, 1)]
            if ends:
                floor, name = found.floors[d][ESTIMATION], f"as published, d = {d}, J = 1, largest ε"
                asked = f"the best within a factor of {NEAR:g} of no privacy, {floor:.1e}"
                yield Check(name, asked, f"{min(ends):.1e}", min(ends) <= NEAR * floor)
        for method in (FIXED_S, FAST):
            better: list[bool] = []
            for work in (one for one in found.found if (one.method, one.setting) == (method, PUBLISHED)):
                other = Work(PUBLISHED, work.d, work.nodes, ADASSP)
                better += list(found.mean(work, ESTIMATION) < found.mean(other, ESTIMATION))
            if better:
                share, asked = float(np.mean(better)), "in most cells (the paper: in almost all)"
                yield Check(f"{method} nearer than adaSSP, as published", asked, f"in {100 * share:.0f} %", share > 0.5)


def _mixing(found: Curves) -> Iterator[Table]:
    """Yield a table of the samplers' split R̂."""
    title = f"split R̂ of θ, median and (largest) over ε and repeats; above {R_HAT_REQUIRED:g} chains have not mixed"
    shown = table(title, "setting, d, J", *(methods := list(dict.fromkeys(work.method for work in found.r_hats))))
    for where in dict.fromkeys(work[:3] for work in found.r_hats):
        own = (found.r_hats[one] if (one := _sampled(found, where, method)) else None for method in methods)
        shown.add_row(
            ", ".join(map(str, where)), *("" if one is None else f"{one[0]:.2f} ({one[1]:.2f})" for one in own)
        )
    if methods:
        yield shown


def _sampled(found: Curves, where: tuple[Any, ...], method: str) -> Work | None:
    return next((work for work in found.r_hats if work[:3] == where and work.method == method), None)


# Figure 4


@dataclass(frozen=True, kw_only=True)
class Figure4(SimulatedExperiment[dict[Work, Array]]):
    """Figure 4 of the third paper: the distance of private posteriors to the non-private one (MMD²), over ε.

    Takes about 5 minutes on two idle cores. Exit code 4 if a distance does not fall with ε.
    """

    KIND, LABEL = "mcmc-figure-4", "distances"
    METHODS: ClassVar = (*SAMPLERS, FAST)

    dimension: tuple[int, ...] = (D_OF_DISTANCES,)

    def work(self, cell: Work) -> Result:
        began = time.perf_counter()
        mean, spread, a, b = non_private(population(cell.d, self.seed))
        rng = stream(self.seed, f"distributed/mmd/{cell.d}")
        sigma_y2 = b / rng.gamma(a, size=(DRAWS, 1))
        reference = mean + np.sqrt(sigma_y2) * (rng.standard_normal((DRAWS, cell.d)) @ np.linalg.cholesky(spread).T)
        within, rng = _mean_apart(reference, BANDWIDTH), stream(self.seed, f"distributed/mmd/{cell}")
        found, values = self.made(cell), []
        for problem in range(len(self.epsilons) * self.repeats):
            if found.theta is not None:
                every = max(1, found.theta.shape[1] // KEPT)
                draws = found.theta[problem, every - 1 :: every]
            else:
                assert found.cov is not None
                root = np.linalg.cholesky(found.cov[problem])
                draws = found.mean[problem] + rng.standard_normal((DRAWS_OF_FAST, cell.d)) @ root.T
            values.append(mmd_squared(reference, draws, within=within))
        plain = {"mmd": self.by_epsilon(np.array(values)).tolist()}
        return {**plain, **found.report, "wall_seconds": round(time.perf_counter() - began, 2)}

    def gather(self, cells: Sequence[Work], results: Sequence[Result]) -> dict[Work, Array]:
        """Return means over repeats, shape ``(ε,)``."""
        return {cell: np.mean(one["mmd"], axis=1) for cell, one in zip(cells, results, strict=True)}

    def notes(self, found: Mapping[Work, Array]) -> dict[str, Any]:
        return {**super().notes(dict(found)), "bandwidth": BANDWIDTH}

    def tables(self, found: Mapping[Work, Array]) -> Iterator[Table]:
        for setting in dict.fromkeys(work.setting for work in found):
            shown = over_epsilon(f"{TITLES[setting]}: mean MMD², d = {D_OF_DISTANCES}", "J, method", self.epsilons)
            for work, means in found.items():
                if work.setting == setting:
                    shown.add_row(f"{work.nodes}, {work.method}", *(f"{value:.2e}" for value in means))
            yield shown

    def checks(self, found: Mapping[Work, Array]) -> Iterator[Check]:
        asked = f"at the largest ε at most {FALLEN:g} of that at the smallest"
        for work, means in found.items():
            words = f"{means[0]:.2e} to {means[-1]:.2e}"
            yield Check(f"MMD² falls, {work}", asked, words, means[-1] <= FALLEN * means[0])

    def draw(self, found: Mapping[Work, Array], path: Path) -> None:
        def fill(axes: Any, setting: str, J: int) -> str:
            for work, means in found.items():
                if (work.setting, work.nodes) == (setting, J):
                    axes.plot(self.epsilons, means, label=work.method, **STYLES[work.method])
            axes.set_title(f"J = {J}\n{TITLES[setting]}", fontsize=11)
            return "MMD²"

        settings, nodes = (list(dict.fromkeys(work[place] for work in found)) for place in (0, 2))
        title = f"MMD² to the posterior without privacy: d = {D_OF_DISTANCES}, n = {ROWS:,}"
        self.panels(path, settings, nodes, title, fill)


def mmd_squared(x: Array, y: Array, h: float = BANDWIDTH, *, within: float | None = None) -> float:
    """Return the unbiased estimate of MMD² between samples ``x`` (m, d) and ``y`` (n, d).

    Args:
        within: the mean of exp(-|x - x'|²/(2h)) over pairs of different x, if it is already known.
    """
    own = _mean_apart(x, h) if within is None else within
    across = float(_exponentials(x, y, h).mean())
    return math.pow(2 * math.pi * h, -x.shape[1] / 2) * (own + _mean_apart(y, h) - 2 * across)


def _mean_apart(x: Array, h: float) -> float:
    m = len(x)
    return float((_exponentials(x, x, h).sum() - m) / (m * (m - 1)))


def _exponentials(x: Array, y: Array, h: float) -> Array:
    """Return exp(-|x - y|²/(2h)), shape ``(m, n)``."""
    squares = sum(np.subtract.outer(x[:, j], y[:, j]) ** 2 for j in range(x.shape[1]))
    return np.asarray(np.exp(squares / (-2 * h)))
