"""Effective samples per second of samplers of MCMC-normalX's posterior, on the paper's simulated data.

    library     NumPyro's NUTS on `inference.models.linear.nodes.model`: θ integrated out, coordinates from the data
    blackjax    BlackJAX's NUTS and window adaptation on the same density in the same coordinates, if it is installed
    textbook    NumPyro's NUTS on the textbook model, whose every quantity is a site: the oracle of the above
    normal-x    the paper's Algorithm 1, compiled

All run four chains on the same problem (section 5.1 of the paper, its prior, exact Gaussian noise), one after the
other. Seconds are CPU time, so that other load on the machine does not count; they include warm-up but not compiling.
The effective sample size (ESS) is ArviZ's bulk ESS over all chains (Vehtari et al. 2021), computed for θ and σ_y², for
Σ_x (logarithms of its eigenvalues) and for S (its diagonals). **The score is the smallest of all**, because θ mixes
quickly even if the chains of S stand still. If chains have not mixed, any score is too high.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.util import constrain_fn, potential_energy
from rich.table import Table

from dca_proto.privacy.accounting import mu_of
from dca_proto.privacy.rounding import at_least
from inference.draws import mixing
from inference.mcmc import nuts
from inference.mcmc.run import Options
from inference.models.linear.nodes import methods as nodes
from inference.models.linear.nodes import model as library
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from inference.problem import Array, stream
from papers.experiment import Experiment, Result
from papers.mcmc2023 import releases
from papers.mcmc2023.data import Statistics
from papers.mcmc2023.samplers import normal_x
from papers.mcmc2023.samplers import sampler as kernels
from papers.mcmc2023.samplers.sampler import Length
from papers.mcmc2023.simulated import population
from papers.picture import COLOURS, MARKERS, drawing
from papers.runner import Check, table

CHAINS = 4
NAMES = ("theta", "sigma_y2", "Sigma_x", "S")
LIBRARY, BLACKJAX, TEXTBOOK, NORMAL_X = "library", "blackjax", "textbook", "normal-x"
METHODS = (LIBRARY, *((BLACKJAX,) if find_spec("blackjax") else ()), TEXTBOOK, NORMAL_X)
ASKED = (5, 10)  # d and J of what must be shown
WANTED = {TEXTBOOK: 2.0, NORMAL_X: 5.0, BLACKJAX: 0.5}
"""The least ratio of the library's effective samples per second to the other sampler's there, median over repeats."""
Draws = Mapping[str, Array]
NUTS, GIBBS = Length(500, 500), Length(10_000, 2000, 5)


class Cell(NamedTuple):
    """A problem and a method."""

    d: int  # features
    nodes: int
    rows: int  # of all nodes
    epsilon: float
    repeat: int
    method: str

    @property
    def setting(self) -> str:
        """The problem in words, without the repeat."""
        return f"d = {self.d}, J = {self.nodes}, n = {self.rows}, ε = {at_least(self.epsilon)}"


def problem(cell: Cell, seed: int) -> tuple[NodeStatistics, Prior]:
    """Return the cell's data, with exact noise for the published sensitivity, and the published prior."""
    rng = stream(seed, f"efficiency/{cell.setting}, repeat {cell.repeat}")
    of = population(cell.d, int(rng.integers(2**31)), cell.rows)
    sigma = releases.published_sensitivity(*of.bounds) / mu_of(cell.epsilon, 1 / cell.rows)
    exact = Statistics.of(of.X, of.y, cell.nodes)
    return releases.with_noise(exact, sigma, sigma, rng), releases.published_prior(cell.d, of.Lambda)


def textbook(data: Mapping[str, Any]) -> None:
    """Define the node model of centred features with nothing integrated out. Data: ``observed`` and ``prior``."""
    observed, prior = data["observed"], data["prior"]
    d = observed.z.shape[1]
    theta = numpyro.sample("theta", dist.MultivariateNormal(prior.m, prior.C))
    sigma_y2 = numpyro.sample("sigma_y2", dist.InverseGamma(prior.a, prior.b))
    precision = numpyro.sample("precision", dist.Wishart(prior.kappa, rate_matrix=prior.Lambda))
    Sigma = numpyro.deterministic("Sigma_x", jnp.linalg.inv(precision))
    L = numpyro.sample("L", dist.WishartCholesky(observed.n, scale_tril=jnp.linalg.cholesky(Sigma)))
    S = numpyro.deterministic("S", L @ jnp.swapaxes(L, -1, -2))
    i, j = jnp.triu_indices(d)
    sd = jnp.sqrt(observed.variance_S)[:, None]
    numpyro.sample("noisy S", dist.Normal(S[:, i, j], sd).to_event(2), obs=observed.S[:, i, j])
    V = sigma_y2 * S + observed.variance_z[:, None, None] * jnp.eye(d)
    numpyro.sample("noisy z", dist.MultivariateNormal(S @ theta, V).to_event(1), obs=observed.z)


def _run_of(method: str, observed: NodeStatistics, prior: Prior, length: Length) -> Callable[[int], Draws]:
    """Return a function from a seed to a method's draws."""
    options = Options(chains=CHAINS, warmup=length.warmup, draws=length.draws)
    data: dict[str, Any] = {"observed": observed, "prior": prior}
    if method == BLACKJAX:
        return _by_blackjax(observed, prior, length)
    if method == LIBRARY:
        data["frame"] = library.frame(observed, prior)
        settings: Any = {"dense": False, "target": nodes.TARGET, "keep": NAMES}
        model = library.NodeRegression(False)
        return lambda seed: nuts.sample(model, data, replace(options, seed=seed), **settings).draws
    if method == TEXTBOOK:
        scales = np.maximum(observed.n, 1.0)[:, None, None] * np.asarray(prior.Lambda) / prior.kappa
        start = {"L": np.linalg.cholesky(scales), "precision": np.linalg.inv(prior.Lambda) * prior.kappa}
        return lambda seed: nuts.sample(textbook, data, replace(options, seed=seed), start, keep=NAMES).draws

    def run(seed: int) -> Draws:
        lengths = length._asdict()
        chains = kernels.sample(normal_x.kernel(), observed, prior, chains=CHAINS, seed=seed, names=NAMES, **lengths)
        return {name: array[0] for name, array in chains.draws.items()}

    return run


def _by_blackjax(observed: NodeStatistics, prior: Prior, length: Length) -> Callable[[int], Draws]:
    import blackjax  # type: ignore[import-not-found]  # no dependency

    model = library.NodeRegression(False)
    data = {"observed": observed, "prior": prior, "frame": library.frame(observed, prior)}
    with jax.enable_x64(True):
        data = jax.tree.map(jnp.asarray, data)
    d, J = observed.features, observed.nodes
    shapes = {"x_0": (d * (d + 1) // 2,), "x": (J, d * (d + 1) // 2), "sigma_y2": (), "white": (d,)}

    def chain(key: Any, data: Any) -> Any:
        place, warm, walk = jax.random.split(key, 3)
        parts = jax.random.split(place, len(shapes))
        z = {n: jax.random.uniform(k, s, minval=-1.0) for (n, s), k in zip(shapes.items(), parts, strict=True)}

        def density(z: Any) -> Any:
            return -potential_energy(model, (data,), {}, z)

        adapted = blackjax.window_adaptation(blackjax.nuts, density, target_acceptance_rate=nodes.TARGET)
        (state, tuned), _ = adapted.run(warm, z, num_steps=length.warmup)
        move = blackjax.nuts(density, **tuned).step

        def step(state: Any, key: Any) -> Any:
            state, _ = move(key, state)
            found = constrain_fn(model, (data,), {}, state.position, return_deterministic=True)
            return state, {name: found[name] for name in NAMES}

        return jax.lax.scan(step, state, jax.random.split(walk, length.draws))[1]

    chains = jax.jit(jax.vmap(chain, in_axes=(0, None)))

    def run(seed: int) -> Draws:
        with jax.enable_x64(True):
            found = chains(jax.random.split(jax.random.key(seed), CHAINS), data)
            return {name: np.asarray(array) for name, array in found.items()}

    return run


def _diagnosed(values: Draws) -> dict[str, Any]:
    """Return the smallest effective sample size of each part, those of θ, and the largest R̂ of all parts."""
    shape = values["sigma_y2"].shape
    parts = {
        "regression": np.concatenate([values["theta"], values["sigma_y2"][..., None]], axis=-1),
        "Sigma_x": np.log(np.linalg.eigvalsh(values["Sigma_x"])),
        "S": np.diagonal(values["S"], axis1=-2, axis2=-1).reshape(*shape, -1),
    }
    found = {name: mixing({name: array}, {}) for name, array in parts.items()}
    return {
        "ess": {name: min(one.bulk for one in all_of_it) for name, all_of_it in found.items()},
        "ess_theta": [one.bulk for one in found["regression"][:-1]],
        "r_hat": max(one.r_hat for each in found.values() for one in each),
    }


def disagreement(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference between posterior means of θ, in standard errors by effective sample size."""
    variance = sum(np.array(each["sd"]) ** 2 / np.array(each["ess_theta"]) for each in (one, other))
    return float(np.max(np.abs(np.array(one["mean"]) - np.array(other["mean"])) / np.sqrt(variance)))


class Rates(NamedTuple):
    """The efficiency of one sampler in one setting."""

    rates: list[float]  # effective samples per second of the slowest part, by repeat
    r_hat: float  # the largest of all repeats
    ess: float  # the smallest of all repeats


def rates_of(found: Mapping[Cell, Result]) -> dict[tuple[str, str], Rates]:
    """Return the rates by setting and sampler."""
    grouped: dict[tuple[str, str], list[Result]] = {}
    for cell, result in found.items():
        grouped.setdefault((cell.setting, cell.method), []).append(result)
    rates = {}
    for key, runs in grouped.items():
        least = [min(run["ess"].values()) for run in runs]
        each = [ess / run["seconds"] for ess, run in zip(least, runs, strict=True)]
        rates[key] = Rates(each, max(run["r_hat"] for run in runs), min(least))
    return rates


@dataclass(frozen=True, kw_only=True)
class Efficiency(Experiment[Cell, dict[Cell, Result]]):
    """Effective samples per second of the library's sampler of node releases, and of others of its posterior.

    Takes about 10 minutes on one idle core. The others are NUTS on the textbook model, MCMC-normalX, and BlackJAX if it
    is installed (it is no dependency). Exit code 4 if the library's chains have not mixed, samplers disagree, or the
    library's rate at d = 5, J = 10 is too low beside another's.
    """

    KIND, LABEL, DEPENDS, ALONE = "mcmc-efficiency", "effective samples", ("seed", "shorter"), True
    QUICK: ClassVar = {"problems": ((2, 3, 100_000, 1.0),), "repeats": 1, "shorter": 5}

    problems: tuple[tuple[int, int, int, float], ...] = (
        *((5, 10, 100_000, epsilon) for epsilon in (0.1, 1.0, 10.0)),
        (2, 10, 100_000, 1.0),
        (5, 1, 100_000, 1.0),
        (5, 10, 400, 1.0),
    )
    repeats: int = 2
    shorter: int = 1

    def cells(self) -> list[Cell]:
        return [Cell(*one, repeat, m) for repeat in range(self.repeats) for one in self.problems for m in METHODS]

    def work(self, cell: Cell) -> Result:
        length = GIBBS if cell.method == NORMAL_X else NUTS
        length = Length(length.warmup // self.shorter, length.draws // self.shorter, length.thin)
        run = _run_of(cell.method, *problem(cell, self.seed), length)
        run(self.seed)  # compiles
        began = time.process_time()
        draws = run(self.seed)
        figures = {"seconds": time.process_time() - began, **_diagnosed(draws)}
        theta = draws["theta"]
        return figures | {"mean": theta.mean(axis=(0, 1)).tolist(), "sd": theta.std(axis=(0, 1)).tolist()}

    def notes(self, found: Mapping[Cell, Result]) -> dict[str, Any]:
        return {"chains": CHAINS, "nuts": NUTS, "gibbs": GIBBS}

    def tables(self, found: Mapping[Cell, Result]) -> Iterator[Table]:
        heads = ("problem", "sampler", "median", "range", "R̂", "least ESS")
        shown = table("effective samples per processor second", *heads)
        for key, one in rates_of(found).items():
            spread = f"{min(one.rates):.3g} to {max(one.rates):.3g}"
            shown.add_row(*key, f"{np.median(one.rates):.3g}", spread, f"{one.r_hat:.3f}", f"{one.ess:.0f}")
        yield shown

    def checks(self, found: Mapping[Cell, Result]) -> Iterator[Check]:
        own, rates = {cell[:-1]: run for cell, run in found.items() if cell.method == LIBRARY}, rates_of(found)
        worst = max(run["r_hat"] for run in own.values())
        yield Check("the library's chains have mixed", "R̂ at most 1.02", f"{worst:.4f}", worst <= 1.02)
        beside = [(own[cell[:-1]], run) for cell, run in found.items() if cell.method != LIBRARY]
        apart = max((disagreement(*both) for both in beside if both[1]["r_hat"] < 1.01), default=0.0)
        yield Check("samplers that have mixed agree on θ", "within 5 standard errors", f"{apart:.2f}", apart < 5)
        for method in METHODS[1:]:
            ratios = [
                rate / other
                for (setting, name), one in rates.items()
                if name == LIBRARY and setting.startswith("d = 5, J = 10") and (setting, method) in rates
                for rate, other in zip(one.rates, rates[setting, method].rates, strict=True)
            ]
            if ratios:
                least, asked = float(np.median(ratios)), f"{WANTED[method]:g} times at d = {ASKED[0]}, J = {ASKED[1]}"
                yield Check(f"ESS per second beside {method}", asked, f"{least:.2f}", least >= WANTED[method])

    def draw(self, found: Mapping[Cell, Result], path: Path) -> None:
        rates = rates_of(found)
        settings = list(dict.fromkeys(setting for setting, _ in rates))
        with drawing(path, size=(7.0, 3.6), title="effective samples per processor second") as panels:
            axes = panels[0, 0]
            for place, method in enumerate(METHODS):
                own = {settings.index(s): float(np.median(one.rates)) for (s, m), one in rates.items() if m == method}
                axes.plot(list(own), list(own.values()), MARKERS[place], color=COLOURS[place], label=method)
            axes.set(yscale="log", xticks=range(len(settings)))
            axes.set_xticklabels([one.replace(", n", "\nn") for one in settings], fontsize=6)
            axes.legend(fontsize=7)
