"""Effective samples per second of the collapsed sampler and of MCMC-normalX, which have the same posterior.

Both run compiled by the same sampler, with as many chains, on the same problem, one after the other on one core, with
their own adaptation (α_j of each node and the walk over σ_y² of MCMC-normalX). Seconds are those of the processor, so
that other load on the machine does not count; compiling is left out. The effective sample size is ArviZ's bulk one over
all chains (Vehtari et al. 2021): the smallest of θ and σ_y², that of Σ_x (its eigenvalues' logarithms) and that of S
(the diagonals). **What is judged is the smallest of all**: where the chains of S stand still, θ is drawn quickly from
where S happens to be, and its own effective size says nothing of the posterior. (In one of three repeats at ε = 0.1,
MCMC-normalX's is 11,000 for θ and 5 for S.) Where chains have not mixed any figure says too much, in its favour.

The data are the paper's simulated ones (section 5.1) and its prior, with the exact Gaussian mechanism; every repeat has
other data and noise. MCMC-normalX gets many more iterations, in a like share of warm-up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from dca_proto.privacy.accounting import mu_of
from dca_proto.privacy.rounding import at_least
from emulator.experiments.picture import COLOURS, MARKERS, drawing
from emulator.experiments.runner import Check, table
from inference.draws import mixing
from inference.mcmc.kernel import Kernel
from inference.mcmc.sampler import Chains, sample
from inference.models.linear.nodes import collapsed, normal_x
from inference.models.linear.nodes.observed import Observed, Prior
from inference.problem import stream
from papers.mcmc2023 import releases
from papers.mcmc2023.data import Array, Statistics
from papers.mcmc2023.simulated import population

CHAINS = 4
PARTS = ("regression", "Sigma_x", "S")
WANTED = 5.0
ASKED = (5, 10)  # d and J of what must be shown


@dataclass(frozen=True)
class Effort:
    """Iterations of each chain: warm-up, and one kept draw for every `thin` after it."""

    warmup: int
    draws: int
    thin: int = 1


FULL = {collapsed.NAME: Effort(500, 1000), normal_x.NAME: Effort(10_000, 4000, 5)}
QUICK = {collapsed.NAME: Effort(200, 200), normal_x.NAME: Effort(1000, 500, 4)}


@dataclass(frozen=True)
class Cell:
    """A problem: d features, J nodes, n rows in all, ε, and which of the repeats."""

    d: int
    nodes: int
    rows: int
    epsilon: float
    repeat: int

    @property
    def setting(self) -> str:
        """All but the repeat."""
        return f"d = {self.d}, J = {self.nodes}, n = {self.rows}, ε = {at_least(self.epsilon)}"

    def __str__(self) -> str:
        return f"{self.setting}, repeat {self.repeat}"


SETTINGS = (
    *((5, 10, 100_000, epsilon) for epsilon in (0.1, 1.0, 10.0)),
    (2, 10, 100_000, 1.0),
    (5, 1, 100_000, 1.0),
    (5, 10, 400, 1.0),
)
QUICK_SETTINGS = ((5, 10, 100_000, 1.0), (2, 10, 100_000, 1.0))


def cells_of(settings: Sequence[tuple[int, int, int, float]], repeats: int) -> list[Cell]:
    """Every setting, so many times."""
    return [Cell(*setting, repeat) for repeat in range(repeats) for setting in settings]


def problem(cell: Cell, seed: int) -> tuple[Observed, Prior]:
    """Its own data, with the noise of the exact mechanism for the published sensitivity, and the published prior."""
    rng = stream(seed, f"efficiency/{cell}")
    of = population(cell.d, int(rng.integers(2**31)), cell.rows)
    sigma = releases.published_sensitivity(*of.bounds) / mu_of(cell.epsilon, 1 / cell.rows)
    exact = Statistics.of(of.X, of.y, cell.nodes)
    return releases.with_noise(exact, sigma, sigma, rng), Prior.published(cell.d, of.Lambda)


def measured(cell: Cell, seed: int, efforts: dict[str, Effort]) -> dict[str, Any]:
    """What both samplers did with one problem, by name."""
    observed, prior = problem(cell, seed)
    kernels = (collapsed.kernel(), normal_x.kernel())
    found = {kernel.name: _sampled(kernel, observed, prior, efforts[kernel.name], seed) for kernel in kernels}
    return {**found, "disagreement": _disagreement(*found.values())}


def _sampled(kernel: Kernel, observed: Observed, prior: Prior, effort: Effort, seed: int) -> dict[str, Any]:
    """Seconds of warm-up and of the draws, effective sample sizes, R̂, and the moments of θ."""
    names = ("theta", "sigma_y2", "Sigma_x", "S")
    sample(kernel, observed, prior, chains=CHAINS, warmup=1, draws=1, thin=effort.thin, names=names)  # compiles
    at: dict[int, float] = {}

    def heard(done: int, _: int) -> None:
        at[done] = time.process_time()

    began = time.process_time()
    made = sample(
        kernel, observed, prior, chains=CHAINS, warmup=effort.warmup, draws=effort.draws, thin=effort.thin,
        seed=seed, names=names, on_progress=heard,
    )  # fmt: skip
    warm = at[effort.warmup]
    theta = made.draws["theta"][0]
    return {
        "warmup_s": warm - began,
        "draws_s": max(at.values()) - warm,
        "iterations": CHAINS * effort.draws * effort.thin,
        **_diagnosed(made),
        "mean": theta.mean(axis=(0, 1)).tolist(),
        "sd": theta.std(axis=(0, 1)).tolist(),
        "acceptance": {name: float(array.mean()) for name, array in made.acceptance.items()},
        "divergences": int(made.divergences.sum()),
    }


def _diagnosed(made: Chains) -> dict[str, Any]:
    """The smallest effective sample size of each part, those of θ, and the largest R̂ of θ and σ_y²."""
    values = {name: array[0] for name, array in made.draws.items()}
    shape = values["sigma_y2"].shape
    parts = {
        "regression": np.concatenate([values["theta"], values["sigma_y2"][..., None]], axis=-1),
        "Sigma_x": np.log(np.linalg.eigvalsh(values["Sigma_x"])),
        "S": np.diagonal(values["S"], axis1=-2, axis2=-1).reshape(*shape, -1),
    }
    found = {
        name: mixing({name: array}, {name: [str(place) for place in range(array.shape[-1])]})
        for name, array in parts.items()
    }
    return {
        "ess": {name: min(one.bulk for one in all_of_it) for name, all_of_it in found.items()},
        "ess_theta": [one.bulk for one in found["regression"][:-1]],
        "r_hat": max(one.r_hat for one in found["regression"]),
    }


def _disagreement(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference between posterior means of θ, in standard errors from the effective sample sizes."""
    variance = sum(np.array(each["sd"]) ** 2 / np.array(each["ess_theta"]) for each in (one, other))
    return float(np.max(np.abs(np.array(one["mean"]) - np.array(other["mean"])) / np.sqrt(variance)))


@dataclass(frozen=True)
class Rates:
    """Effective samples per second of one sampler in one setting, over the repeats.

    Attributes:
        rates: by part, one for each repeat. with_warmup: of the regression's, with warm-up's seconds counted too.
        iteration_us: microseconds per iteration of one chain, the median. r_hat: the largest of all repeats.
    """

    setting: str
    method: str
    rates: dict[str, list[float]]
    with_warmup: list[float]
    iteration_us: float
    r_hat: float

    @property
    def slowest(self) -> list[float]:
        """Of each repeat, the smallest of all parts' rates."""
        return [min(rates) for rates in zip(*self.rates.values(), strict=True)]


def rates_of(cells: Sequence[Cell], results: Sequence[dict[str, Any]]) -> list[Rates]:
    """Of each setting and sampler."""
    found = []
    for setting in dict.fromkeys(cell.setting for cell in cells):
        own = [one for cell, one in zip(cells, results, strict=True) if cell.setting == setting]
        found += [_rates(setting, method, [one[method] for one in own]) for method in FULL]
    return found


def _rates(setting: str, method: str, runs: list[dict[str, Any]]) -> Rates:
    return Rates(
        setting,
        method,
        {part: [run["ess"][part] / run["draws_s"] for run in runs] for part in PARTS},
        [run["ess"]["regression"] / (run["warmup_s"] + run["draws_s"]) for run in runs],
        float(np.median([1e6 * run["draws_s"] / run["iterations"] for run in runs])),
        max(run["r_hat"] for run in runs),
    )


def checks(cells: Sequence[Cell], results: Sequence[dict[str, Any]]) -> list[Check]:
    """The collapsed sampler gives `WANTED` times as much in every repeat at d = 5, J = 10."""
    asked = {cell.setting for cell in cells if (cell.d, cell.nodes) == ASKED}
    found, made = rates_of(cells, results), []
    for better, other in zip(found[::2], found[1::2], strict=True):
        if better.setting in asked:
            gains = gains_of(better.slowest, other.slowest)
            words = f"{gains.min():.0f} to {gains.max():.0f} times"
            name = f"effective samples per second, the slowest of all parts, {better.setting}"
            made.append(Check(name, f"{WANTED:g} times MCMC-normalX's in every repeat", words, gains.min() >= WANTED))
    worst = max(one[collapsed.NAME]["r_hat"] for one in results)
    return [*made, Check("the collapsed chains have mixed", "R̂ at most 1.01", f"{worst:.4f}", worst <= 1.01)]


def gains_of(better: list[float], other: list[float]) -> Array:
    """How many times as much, by repeat."""
    gains: Array = np.array(better) / np.array(other)
    return gains


def rates_table(rates: Sequence[Rates]) -> Table:
    """Medians over repeats, and how much they spread."""
    shown = table(
        "effective samples per second: median (lowest to highest)",
        "setting", "sampler", "θ and σ_y²", "with warm-up", "Σ_x", "S", "µs per iteration", "largest R̂",
    )  # fmt: skip
    for one in rates:
        texts = [
            _spread(one.rates["regression"]),
            _spread(one.with_warmup),
            *(_spread(one.rates[p]) for p in PARTS[1:]),
        ]
        shown.add_row(one.setting, one.method, *texts, f"{one.iteration_us:.0f}", f"{one.r_hat:.3f}")
    return shown


def _spread(values: list[float]) -> str:
    return f"{np.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def draw(path: Path, rates: Sequence[Rates]) -> None:
    """Rates of θ and σ_y² by setting: filled without warm-up, open with it."""
    settings = list(dict.fromkeys(one.setting for one in rates))
    with drawing(path, size=(8.0, 0.6 * len(settings) + 1.5), title="effective samples per second, one core") as panels:
        axes = panels[0, 0]
        for place, method in enumerate(FULL):
            for one in (one for one in rates if one.method == method):
                height = settings.index(one.setting) + 0.15 * (place - 0.5)
                style = {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": ""}
                label = method if one.setting == settings[0] else None
                axes.plot(one.rates["regression"], [height] * len(one.with_warmup), label=label, **style)
                axes.plot(one.with_warmup, [height] * len(one.with_warmup), markerfacecolor="white", **style)
        axes.set(xscale="log", xlabel="smallest of θ and σ_y² (open: warm-up counted)", yticks=range(len(settings)))
        axes.set_yticklabels(settings)
        axes.invert_yaxis()
        axes.legend(frameon=False)
