"""The methods of the third paper's experiments, each on all repeats of a cell at once.

A sampler runs one chain on each repeat, as published, in one compiled call; half of its iterations are warm-up. As
published, it also starts and steps as the code does: at θ = 0, the nearest positive semi-definite matrices plus I, and
a third of the target's bound for the variance σ_y², which walks with a standard deviation of 0.1. In the valid setting
it uses the library's defaults.

MCMC-normalX tunes its proposals of S_j as the code does, with two exceptions. They change a chain's speed, not its
limit (`adapted_as_published`):

- *The start of α_j.* The code has (n_j/10)². Here it is at least so large that a step is no longer than the noise
  (`normal_x.first_log_alpha`). It is larger than the code's on power plant and on one or two nodes of bike sharing,
  where steps are up to 1.3 times shorter until adaptation begins.
- *The adaptation.* The code smooths the decisions, A ← (1 - γ)A + γ·(1 if accepted, else 0), and then subtracts
  γ(A - 0.1) from ln α_j. Here it subtracts γ(p - 0.1) for the step's acceptance probability p, whose mean equals that
  of the decisions: the same fixed point, with less noise and no lag.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from inference.models.linear.nodes import fixed_s_fast
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from inference.problem import Array
from papers.experiment import C, Experiment, F, option
from papers.mcmc2023.data import SETTINGS
from papers.mcmc2023.paper import BERNSTEIN_SHELDON, FAST, FIXED_S, ITERATIONS, NORMAL_X
from papers.mcmc2023.samplers.kernel import ADAPT_FROM, Kernel, Schedule
from papers.mcmc2023.samplers.sampler import SAMPLERS, kernel_of, sample

COSTS = {BERNSTEIN_SHELDON: 20.0, NORMAL_X: 1.0, FIXED_S: 0.3}
"""Rough costs of an iteration."""
ITERATIONS_LEAST = 8
"""The fewest iterations of a sampler: four after warm-up, which split R̂ needs."""
_NEVER = 10**8  # an iteration that no chain reaches


def crude_sigma_y2(bound_y: float, *, as_published: bool = False) -> float:
    """Return σ̂_y² from ‖Y‖: a third of it is the standard deviation, but in the published code the variance."""
    return bound_y / 3 if as_published else (bound_y / 3) ** 2


def enough_iterations(text: str) -> int:
    """Parse an option that is a sampler's number of iterations."""
    number = int(text)
    if number < ITERATIONS_LEAST:
        raise argparse.ArgumentTypeError(f"{text} is below {ITERATIONS_LEAST}, of which half are warm-up")
    return number


@dataclass(frozen=True, kw_only=True)
class DistributedExperiment(Experiment[C, F]):
    """An experiment on the third paper's methods at J nodes, in two settings."""

    METHODS: ClassVar[tuple[str, ...]]
    WITH_BERNSTEIN_SHELDON: ClassVar[bool] = False
    """Whether MCMC-B&S runs without a request, with as many iterations as the other samplers."""

    setting: tuple[str, ...] = option(SETTINGS, "only this setting", action="append", choices=SETTINGS)
    iterations: int = option(ITERATIONS, "of all samplers but MCMC-B&S", type=enough_iterations, metavar="K")
    bernstein_sheldon: int | None = option(
        None,
        "iterations of MCMC-B&S, if it runs by default or is requested by this",
        type=enough_iterations,
        metavar="K",
    )

    def lengths(self) -> dict[str, int]:
        """Return the iterations of each method, 0 for closed forms; omit MCMC-B&S unless it was requested."""
        own = {method: self.iterations if method in SAMPLERS else 0 for method in self.METHODS}
        if BERNSTEIN_SHELDON in own:
            own[BERNSTEIN_SHELDON] = self.bernstein_sheldon or self.iterations * self.WITH_BERNSTEIN_SHELDON
        return {method: count for method, count in own.items() if count or method != BERNSTEIN_SHELDON}


def cost(method: str, iterations: int, nodes: int, d: int) -> float:
    return COSTS.get(method, 0.0) * iterations * nodes * (4 + d) ** 2


def named(setting: str, what: str, nodes: int, method: str, iterations: int) -> str:
    return f"{setting}, {what}, J = {nodes}, {method}" + (f", {iterations} iterations" if iterations else "")


class Fits(NamedTuple):
    """A method's results on R problems."""

    mean: Array  # posterior mean of θ, or its estimate, (R, d)
    theta: Array | None  # a sampler's draws of θ after warm-up, (R, draws, d)
    cov: Array | None  # closed-form covariance of θ, (R, d, d), if there is one
    report: dict[str, Any]  # figures of the sampler


def fitted(
    method: str,
    problems: Sequence[NodeStatistics],
    priors: Sequence[Prior],
    bounds_y: Sequence[float],
    iterations: int,
    seed: int,
    *,
    as_published: bool,
) -> Fits:
    """Run Bayes-fixedS-fast, or one chain of a sampler for each problem, whose first half is warm-up.

    Args:
        bounds_y: ‖Y‖ of each problem.
    """
    if method == FAST:
        sigma_y2 = [crude_sigma_y2(bound, as_published=as_published) for bound in bounds_y]
        exact = [fixed_s_fast.posterior(*one) for one in zip(problems, priors, sigma_y2, strict=True)]
        return Fits(np.stack([one.mean for one in exact]), None, np.stack([one.cov for one in exact]), {})
    half, kernel = iterations // 2, kernel_of(method, problems, bounds_y[0] / 3 if as_published else None)
    if as_published and method == NORMAL_X:
        kernel = adapted_as_published(kernel, iterations // 10)
    chains = sample(kernel, problems, priors, chains=1, warmup=half, draws=iterations - half, seed=seed)
    rhats, theta = split_rhat(chains.draws["theta"]).max(axis=1), chains.draws["theta"][:, 0]
    report = {
        "iterations": iterations,
        "seconds": round(chains.seconds, 2),
        "acceptance": {name: round(float(values.mean()), 4) for name, values in chains.acceptance.items()},
        "failed_iterations": int(chains.divergences.sum()),
        "split_rhat_median": round(float(np.median(rhats)), 4),
        "split_rhat_max": round(float(rhats.max()), 4),
        "sigma_y2": round(float(chains.draws["sigma_y2"].mean()), 6),
    }
    return Fits(theta.mean(axis=1), theta, None, report)


def split_rhat(draws: Array) -> Array:
    """Return R̂ of the halves of all chains (Gelman et al. 2013, 11.4), shape ``(R, parameters)``.

    Args:
        draws: of R problems, shape ``(R, chains, draws, parameters)``.
    """
    half = draws.shape[2] // 2
    halves = np.concatenate([draws[:, :, :half], draws[:, :, half : 2 * half]], axis=1)
    within = halves.var(axis=2, ddof=1).mean(axis=1)
    between = halves.mean(axis=2).var(axis=1, ddof=1)
    return np.asarray(np.sqrt((half - 1) / half + between / np.maximum(within, 1e-300)))


@cache
def adapted_as_published(kernel: Kernel, first: int) -> Kernel:
    """Return the kernel with the code's adaptation: γ_i = i^-0.6 for all iterations i, from `first` to the very end.

    The library counts i from the start of adaptation and stops after warm-up: it adapts faster, then not at all.
    """
    begun = round(ADAPT_FROM * _NEVER)

    def step(key: Any, state: Any, observed: NodeStatistics, prior: Prior, schedule: Schedule) -> Any:
        i = schedule.iteration
        late = Schedule((i >= first) * (begun + i), schedule.warmup * 0 + _NEVER)
        return kernel.step(key, state, observed, prior, late)

    return kernel._replace(step=step)
