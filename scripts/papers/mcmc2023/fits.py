"""The methods of the third paper's experiments, each on all repeats of a cell at once.

A sampler runs one chain on each of the repeats, as published, in one compiled call; half of its iterations are warm-up.
As published it also starts and steps as the code does: at θ = 0, the nearest positive semi-definite matrices plus I,
and a third of the target's bound for the variance σ_y², which walks with a standard deviation of 0.1. In the valid
setting it has the library's defaults.

How MCMC-normalX tunes its proposals of S_j is the code's but for two things, which change how fast a chain moves, never
where it goes to (`adapted_as_published`):

- *The start of α_j.* The code has (n_j/10)²; here it is at least what makes a step no longer than the noise
  (`normal_x.first_log_alpha`). That is more on power plant (832,113, 33,285 and 8,310 at J = 1, 5 and 10, where the
  code has 585,990, 23,440 and 5,852) and on one or two nodes of bike sharing, so that steps are up to 1.3 times
  shorter there until adaptation begins.
- *What adapts it.* The code smooths the decisions, A ← (1 - γ)A + γ·(1 if accepted, else 0), and then subtracts
  γ(A - 0.1) from ln α_j. Here it is γ(p - 0.1) with this step's acceptance probability p, whose mean is that of the
  decisions: the same fixed point, with less noise and no lag.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from emulator.experiments import student
from inference.models.linear.nodes import fixed_s_fast
from inference.models.linear.nodes.observed import NodeStatistics, Prior
from papers.mcmc2023.data import Array
from papers.mcmc2023.kernels import split_rhat
from papers.mcmc2023.paper import BERNSTEIN_SHELDON, FIXED_S, NORMAL_X
from papers.mcmc2023.samplers.methods import kernel_of

_NAMES = {
    NORMAL_X: "normal-x",
    FIXED_S: "fixed-s",
    BERNSTEIN_SHELDON: "bernstein-sheldon",
}
SAMPLERS = tuple(_NAMES)
COSTS = {BERNSTEIN_SHELDON: 20.0, NORMAL_X: 1.0, FIXED_S: 0.3}
"""Of an iteration, roughly, for the order of the work."""
ITERATIONS_LEAST = 8
"""Of a sampler: the four draws after warm-up that R̂ of their halves needs."""
_NEVER = 10**8  # an iteration that no chain comes to


class Length(NamedTuple):
    """Of a chain: iterations, of which the first half is warm-up, and how many there are for each draw that is kept."""

    iterations: int
    thin: int = 1


class Sampled(NamedTuple):
    """Of R repeats: draws of θ after warm-up, shape ``(R, draws, d)``, and what there is to say of the run."""

    theta: Array
    report: dict[str, Any]


def enough_iterations(text: str) -> int:
    """The type of an option that is a sampler's number of iterations."""
    number = int(text)
    if number < ITERATIONS_LEAST:
        raise argparse.ArgumentTypeError(f"{text} is below {ITERATIONS_LEAST}, of which half are warm-up")
    return number


def lengths(methods: Sequence[str], iterations: int, of_bernstein_sheldon: int | None) -> dict[str, int]:
    """Iterations of each of these methods, 0 of those that need none; without MCMC-B&S where that is given none.

    Args:
        iterations, of_bernstein_sheldon: at least `ITERATIONS_LEAST`.
    """
    own = dict.fromkeys(methods, 0) | {method: iterations for method in methods if method in SAMPLERS}
    if BERNSTEIN_SHELDON in own:
        own[BERNSTEIN_SHELDON] = of_bernstein_sheldon or 0
    return {method: count for method, count in own.items() if count or method != BERNSTEIN_SHELDON}


def sampled(
    method: str,
    problems: Sequence[NodeStatistics],
    prior: Prior | Sequence[Prior],
    length: Length,
    seed: int,
    bound_y: float | None = None,
) -> Sampled:
    """One chain for each problem.

    Args:
        method: one of `SAMPLERS`. bound_y: ‖Y‖ for the sampler as published; None for the library's defaults.
    """
    from papers.mcmc2023.samplers.sampler import sample  # JAX is slow to import: closed forms need none

    half = length.iterations // 2
    chains = sample(
        _kernel(method, problems, length, bound_y),
        problems,
        prior,
        chains=1,
        warmup=half,
        draws=(length.iterations - half) // length.thin,
        thin=length.thin,
        seed=seed,
    )
    theta, sigma_y2 = chains.draws["theta"][:, 0], chains.draws["sigma_y2"][:, 0]
    rhats = split_rhat(chains.draws["theta"]).max(axis=1)
    report = {
        "iterations": length.iterations,
        "seconds": round(chains.seconds, 2),
        "acceptance": {name: round(float(values.mean()), 4) for name, values in chains.acceptance.items()},
        "failed_iterations": int(chains.divergences.sum()),
        "split_rhat_median": round(float(np.median(rhats)), 4),
        "split_rhat_max": round(float(rhats.max()), 4),
        "sigma_y2": round(float(sigma_y2.mean()), 6),
    }
    return Sampled(theta, report)


def _kernel(method: str, problems: Sequence[NodeStatistics], length: Length, bound_y: float | None) -> Any:
    if bound_y is None:
        return kernel_of(_NAMES[method], problems)
    if method == BERNSTEIN_SHELDON:
        from papers.mcmc2023.samplers.bernstein_sheldon import PUBLISHED

        return kernel_of(_NAMES[method], problems, **PUBLISHED, sigma_y2_start=bound_y / 3)
    published = {"ridge": 1.0, "sigma_y2_start": bound_y / 3, "sigma_y2_step": 0.1}
    if method == FIXED_S:
        return kernel_of(_NAMES[method], problems, **published)
    return adapted_as_published(kernel_of(_NAMES[method], problems, **published, target=0.1), length.iterations // 10)


@cache
def adapted_as_published(kernel: Any, first: int) -> Any:
    """The kernel with the code's adaptation: by γ_i = i^-0.6 of all iterations i, from the first on to the very end.

    The library counts i from where adaptation begins, and stops with the warm-up: it adapts faster, and then no more.
    """
    from papers.mcmc2023.samplers.kernel import Schedule
    from papers.mcmc2023.samplers.residual_variance import ADAPT_FROM

    begun = round(ADAPT_FROM * _NEVER)

    def step(key: Any, state: Any, observed: NodeStatistics, prior: Prior, schedule: Schedule) -> Any:
        i = schedule.iteration
        late = Schedule((i >= first) * (begun + i), schedule.warmup * 0 + _NEVER)
        return kernel.step(key, state, observed, prior, late)

    return kernel._replace(step=step)


def fast(problems: Sequence[NodeStatistics], priors: Sequence[Prior], sigma_y2: Sequence[float]) -> tuple[Array, Array]:
    """Means (R, d) and covariances (R, d, d) of Bayes-fixedS-fast."""
    found = [fixed_s_fast.posterior(*one) for one in zip(problems, priors, sigma_y2, strict=True)]
    return np.stack([one.mean for one in found]), np.stack([one.cov for one in found])


def interval(values: Array, level: float = 0.9) -> tuple[float, float]:
    """Student's interval for the mean of independent runs: from mean - t sd/√n to mean + t sd/√n (Table 2)."""
    reach = student.t_half_width(values, level)
    return float(values.mean() - reach), float(values.mean() + reach)
