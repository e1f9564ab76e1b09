"""The result of every fit that samples: draws of the posterior in the user's units, with diagnostics.

**Mixing.** `inference.draws` has the rule of all fits: a warning from R̂ 1.01 on, and from 1.1 on an error, unless
``require_mixed`` is false.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from inference.contraction import of_draws as contraction_of
from inference.draws import InferenceData, Mixing, about_mixing, check_mixing, inference_data, mixing, tails_of
from inference.errors import DataError
from inference.jobs.estimates import Figure, of_draws, sampling_row
from inference.jobs.summary import Summary
from inference.posterior import Estimate, Posterior
from inference.problem import Schema

Array = NDArray[np.float64]
Draws = Mapping[str, Array]


class Sampling(NamedTuple):
    """How the chains fared after warm-up.

    Attributes:
        divergences: iterations that failed numerically. acceptance: mean acceptance probability. depth_hits: iterations
            that stopped at the largest tree. step_size: after adaptation. Each of shape ``(chains,)``.
        seconds: that sampling took, compiling included where it was the first of its kind.
    """

    divergences: NDArray[np.int64]
    acceptance: Array
    depth_hits: NDArray[np.int64]
    step_size: Array
    seconds: float


class Predictive(Protocol):
    """What a client's value and its report are like, given the parameters (`predictive`)."""

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the axes of what is drawn, after chains and draws."""

    def draws(self, parameters: Draws, clients: int, rng: np.random.Generator) -> dict[str, Array]:
        """As `LocalPosterior.new_clients`, for each draw of the parameters."""


@dataclass(frozen=True, eq=False)
class LocalPosterior(Posterior):
    """A model's posterior given noisy reports or sums.

    Attributes:
        model: its name. draws: by parameter, shape ``(chains, draws, ...)``. prior: draws of the same parameters from
            the prior, shape ``(draws, ...)``, as far as there are any.
        axes: names of a parameter's axes after the first two; coords: labels along each of them.
        warmup: draws made while the chains adapted; empty unless they were asked for.
        sampling: how the chains fared. predictive: what new clients are like, where the model says it.
        notes: further sentences for `warnings`. attrs: what the draws rest on (mechanism, epsilon, delta, n).

    Raises:
        DataError: a draw is not finite.
    """

    model: str
    draws: Draws
    sampling: Sampling
    predictive: Predictive | None = None
    prior: Draws = field(default_factory=dict)
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coords: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warmup: Draws = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    attrs: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, array in self.draws.items():
            if not np.all(np.isfinite(array)):
                raise DataError(f"draws of {name} are not finite in model {self.model!r}; take another prior")

    def figures(self, name: str) -> list[Figure]:
        """Of each number of a parameter, matrices row by row."""
        drawn, before = self.draws[name], self.prior.get(name)
        columns = drawn.reshape(*drawn.shape[:2], -1)
        priors = [None] * columns.shape[-1] if before is None else list(before.reshape(len(before), -1).T)
        return [of_draws(columns[..., place], prior) for place, prior in enumerate(priors)]

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Of all parameters but matrices and constants."""
        return [
            Estimate(f"{name}[{label}]" if self.draws[name].ndim > 2 else name, "", figure)
            for name in self._numbers
            for label, figure in zip(self.labels(name) or ("",), self.figures(name), strict=True)
        ]

    def more(self) -> Summary:
        """What the draws are worth."""
        drawn, (chains, draws) = self.sampling, next(iter(self.draws.values())).shape[:2]
        acceptance = {"proposals": drawn.acceptance}
        return {
            "sampling": sampling_row("NUTS", (chains, draws), drawn.seconds, self.mixing, acceptance, drawn.divergences)
        }

    @property
    def mean(self) -> dict[str, Array]:
        """Posterior mean of each parameter."""
        return {name: np.asarray(array.mean(axis=(0, 1))) for name, array in self.draws.items()}

    @property
    def sd(self) -> dict[str, Array]:
        """Posterior standard deviation of each parameter."""
        return {name: np.asarray(array.std(axis=(0, 1))) for name, array in self.draws.items()}

    def intervals(self, level: float = 0.9) -> dict[str, Array]:
        """Central credible intervals of each parameter, shape ``(..., 2)``.

        Raises:
            DataError: the level is not between 0 and 1.
        """
        tails = tails_of(level)
        return {name: np.moveaxis(np.quantile(array, tails, axis=(0, 1)), 0, -1) for name, array in self.draws.items()}

    @cached_property
    def mixing(self) -> list[Mixing]:
        """R̂ and effective draws of each number; none of matrices and constants. Raises `DataError` without ArviZ."""
        return mixing(
            {name: self.draws[name] for name in self._numbers}, {name: self.labels(name) for name in self._numbers}
        )

    @cached_property
    def contraction(self) -> dict[str, Array]:
        """How much was learned of each number that has a prior (`inference.contraction`)."""
        return {name: contraction_of(self.draws[name], prior) for name, prior in self.prior.items()}

    @property
    def _numbers(self) -> list[str]:
        """The parameters but for matrices and constants."""
        return [name for name, array in self.draws.items() if array.ndim <= 3 and np.ptp(array) > 0]

    def labels(self, name: str) -> tuple[str, ...]:
        """Along a parameter's first own axis."""
        axes = self.axes.get(name, ())
        return self.coords[axes[0]] if axes else ()

    @cached_property
    def warnings(self) -> list[str]:
        """What speaks against taking the draws at their word, a sentence each; empty if nothing does."""
        return [*about_mixing(self.mixing), *self._about_chains(), *self.notes]

    def _about_chains(self) -> list[str]:
        found = []
        diverged, deep = int(self.sampling.divergences.sum()), int(self.sampling.depth_hits.sum())
        if diverged:
            found.append(
                f"{diverged} iterations after warm-up diverged, so the draws may miss a part of the posterior; take a "
                "prior that says more, or look at whether the reports are of this model"
            )
        if deep:
            found.append(
                f"{deep} iterations after warm-up stopped at the largest tree, so the chains move slowly; take a "
                "longer warm-up, or columns in units of similar size"
            )
        return found

    def require_mixed(self) -> LocalPosterior:
        """The same, if the chains have found the same posterior.

        Raises:
            DataError: R̂ of a number is not below 1.1, or there are too few draws to say.
        """
        check_mixing(self.mixing)
        return self

    def new_clients(self, clients: int = 1, seed: int = 0) -> dict[str, Array]:
        """Posterior predictive draws: ``value`` of new clients, and ``report`` where the model is of single reports.

        Shape ``(chains, draws, clients, ...)``.
        """
        if self.predictive is None:
            raise DataError(f"model {self.model!r} does not say what single clients are like")
        return self.predictive.draws(self.draws, clients, np.random.default_rng(seed))

    def inference_data(self, predicted: Draws | None = None) -> InferenceData:
        """All draws as ArviZ's common type; warm-up, prior and what tells of the chains in groups of their own.

        Args:
            predicted: draws for the group ``posterior_predictive``, as from `new_clients`.

        Raises:
            DataError: ArviZ is not installed.
        """
        sampling = self.sampling
        stats = {
            "divergences": np.asarray(sampling.divergences, float),
            "acceptance_rate": sampling.acceptance,
            "reached_max_tree_depth": np.asarray(sampling.depth_hits, float),
            "step_size": sampling.step_size,
        }
        return inference_data(
            self.draws,
            dims={**self.axes, **(self.predictive.axes if self.predictive else {})},
            coords=self.coords,
            attrs={"model": self.model, "sampling_time": sampling.seconds, **self.attrs},
            posterior_predictive=predicted,
            prior={name: array[None] for name, array in self.prior.items()} or None,
            warmup_posterior=self.warmup or None,
            sample_stats=stats,
        )
