"""A posterior known by its draws, in the user's units, with diagnostics; every fit that samples returns one.

**Mixing.** `inference.draws` has the rule for all fits: a warning from R̂ 1.01 on, and an error from 1.1 on, unless
``require_mixed`` is false.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import isfinite
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from inference.contraction import of_draws as contraction_of
from inference.draws import ACCEPT, ADVICE, InferenceData, Mixing, about_mixing, check_mixing, inference_data, mixing
from inference.errors import DataError
from inference.jobs.estimates import Estimate, Figure, of_draws
from inference.jobs.summary import Summary
from inference.posterior import Posterior
from inference.problem import Array, Schema

Draws = Mapping[str, Array]
P = TypeVar("P", bound="LocalPosterior")


class Sampling(NamedTuple):
    """Diagnostics of the chains after warm-up.

    Attributes:
        divergences: iterations that failed numerically. acceptance: mean acceptance probability. depth_hits: iterations
            that stopped at the largest tree. step_size: after adaptation. Each of shape ``(chains,)``.
        seconds: duration of sampling, including compilation if it was the first of its kind.
    """

    divergences: NDArray[np.int64]
    acceptance: Array
    depth_hits: NDArray[np.int64]
    step_size: Array
    seconds: float


class Predictive(Protocol):
    """The distribution of a new client's value and report, given the parameters."""

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the axes of each drawn array, after chains and draws."""

    def draws(self, parameters: Draws, clients: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draw as `LocalPosterior.new_clients` describes, once for each draw of the parameters."""


@dataclass(frozen=True, eq=False)
class LocalPosterior(Posterior):
    """A posterior known by its draws.

    Attributes:
        model: its name. draws: by parameter, shape ``(chains, draws, ...)``. prior: draws of the same parameters from
            the prior, shape ``(draws, ...)``, for parameters that have them.
        axes: names of a parameter's axes after the first two; coords: labels along each of them.
        sampling: diagnostics of NUTS; None for other samplers. warmup: draws from the chains' adaptation; empty unless
            requested. advice: what to change if chains have not mixed.
        predictive: the distribution of new clients, if the model defines it.
        notes: further sentences for `warnings`. attrs: provenance of the draws (mechanism, epsilon, delta, n).

    Raises:
        DataError: a draw is not finite.
    """

    model: str
    draws: Draws
    sampling: Sampling | None = None
    predictive: Predictive | None = None
    prior: Draws = field(default_factory=dict)
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coords: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    warmup: Draws = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    attrs: Mapping[str, object] = field(default_factory=dict)
    advice: str = ""

    def __post_init__(self) -> None:
        for name, array in self.draws.items():
            if not np.all(np.isfinite(array)):
                raise DataError(f"draws of {name} are not finite in model {self.model!r}; take another prior")

    def into(self, kind: type[P], **more: Any) -> P:
        """Return the same posterior as a subclass with more attributes."""
        return kind(**{attribute.name: getattr(self, attribute.name) for attribute in fields(self)}, **more)

    def figures(self, name: str) -> list[Figure]:
        """Return the figure of each number of a parameter, matrices row by row."""
        drawn, before = self.draws[name], self.prior.get(name)
        columns = drawn.reshape(*drawn.shape[:2], -1)
        priors = [None] * columns.shape[-1] if before is None else list(before.reshape(len(before), -1).T)
        return [of_draws(columns[..., place], prior) for place, prior in enumerate(priors)]

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Return the estimates of all parameters except matrices and constants."""
        return [
            Estimate(f"{name}[{label}]" if self.draws[name].ndim > 2 else name, "", figure)
            for name in self._numbers
            for label, figure in zip(self.labels(name) or ("",), self.figures(name), strict=True)
        ]

    def summary_extras(self) -> Summary:
        """Return the diagnostics of the draws."""
        (chains, draws), sampling, mixing = next(iter(self.draws.values())).shape[:2], self.sampling, self.mixing
        if sampling is None:
            return {}
        return {
            "sampling": {
                "method": "NUTS",
                "chains": chains,
                "draws": draws,
                "seconds": sampling.seconds,
                "r_hat_max": _extreme(max, [number.r_hat for number in mixing]),
                "ess_bulk_min": _extreme(min, [number.bulk for number in mixing]),
                "ess_tail_min": _extreme(min, [number.tail for number in mixing]),
                "acceptance": {"proposals": float(np.mean(sampling.acceptance))},
                "divergences": int(sampling.divergences.sum()),
            }
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
        """Central credible intervals, shape ``(..., 2)``. Raises `DataError` unless the level is between 0 and 1."""
        if not 0 < level < 1:
            raise DataError(f"the level of an interval is {level:g}; give a probability between 0 and 1, such as 0.9")
        tails = [(1 - level) / 2, (1 + level) / 2]
        return {name: np.moveaxis(np.quantile(array, tails, axis=(0, 1)), 0, -1) for name, array in self.draws.items()}

    @cached_property
    def mixing(self) -> list[Mixing]:
        """R̂ and effective draws of each number except matrices and constants; empty for independent draws.

        Raises:
            DataError: ArviZ is not installed.
        """
        if self.sampling is None and not self.warmup:
            return []
        return mixing({name: self.draws[name] for name in self._numbers},
                      {name: self.labels(name) for name in self._numbers})  # fmt: skip

    @cached_property
    def contraction(self) -> dict[str, Array]:
        """The contraction (`inference.contraction`) of each number that has a prior."""
        return {name: contraction_of(self.draws[name], prior) for name, prior in self.prior.items()}

    @property
    def _numbers(self) -> list[str]:
        """The names of the parameters except matrices and constants."""
        return [name for name, array in self.draws.items() if array.ndim <= 3 and np.ptp(array) > 0]

    def labels(self, name: str) -> tuple[Any, ...]:
        """Return the labels along a parameter's first own axis."""
        axes = self.axes.get(name, ())
        return self.coords[axes[0]] if axes else ()

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the draws, a sentence each; empty if there are none."""
        return [*self.about_mixing, *self._about_chains(), *self.notes]

    @property
    def about_mixing(self) -> list[str]:
        """Reasons to doubt that the chains have mixed."""
        try:
            return about_mixing(self.mixing, self.advice or ADVICE)
        except DataError as unknown:  # no ArviZ
            return [f"whether the chains have mixed is not known: {unknown}"]

    def _about_chains(self) -> list[str]:
        if self.sampling is None:
            return []
        words = []
        diverged, deep = int(self.sampling.divergences.sum()), int(self.sampling.depth_hits.sum())
        if diverged:
            words.append(
                f"{diverged} iterations after warm-up diverged, so the draws may miss a part of the posterior; take a "
                "stronger prior, or check that the reports are of this model"
            )
        if deep:
            words.append(
                f"{deep} iterations after warm-up stopped at the largest tree, so the chains move slowly; take a "
                "longer warm-up, or columns in units of similar size"
            )
        return words

    def require_mixed(self) -> Self:
        """Return the posterior if its chains agree.

        Raises:
            DataError: R̂ of a number is not below 1.1, or there are too few draws to say.
        """
        check_mixing(self.mixing, self.advice or f"{ADVICE}, or {ACCEPT}")
        return self

    def new_clients(self, clients: int = 1, seed: int = 0) -> dict[str, Array]:
        """Posterior predictive draws: ``value`` of new clients, and ``report`` if the model is of single reports.

        Shape ``(chains, draws, clients, ...)``.
        """
        if self.predictive is None:
            raise DataError(f"model {self.model!r} does not describe single clients")
        return self.predictive.draws(self.draws, clients, np.random.default_rng(seed))

    def inference_data(self, predicted: Draws | np.random.Generator | None = None) -> InferenceData:
        """Return all draws as ArviZ's common type; warm-up, prior and diagnostics are separate groups.

        Args:
            predicted: draws for the group ``posterior_predictive``, as from `new_clients`, or a generator to draw them
                with; models that do not describe single clients have none.

        Raises:
            DataError: ArviZ is not installed.
        """
        if isinstance(predicted, np.random.Generator):
            seed = int(predicted.integers(2**31))
            predicted = None if self.predictive is None else self.new_clients(seed=seed)
        stats, attrs = None, {"model": self.model, **self.attrs}
        if (sampling := self.sampling) is not None:
            attrs["sampling_time"] = sampling.seconds
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
            attrs=attrs,
            posterior_predictive=predicted,
            prior={name: array[None] for name, array in self.prior.items()} or None,
            warmup_posterior=self.warmup or None,
            sample_stats=stats,
        )


def _extreme(choose: Callable[[list[float]], float], numbers: list[float]) -> float | None:
    """Return the extreme, or None if there are no numbers or one is not finite."""
    return float(choose(numbers)) if numbers and all(map(isfinite, numbers)) else None
