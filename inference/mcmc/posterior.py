"""The posterior of every fit that is known by its draws: draws of the posterior in the user's units, with diagnostics.

**Mixing.** `inference.draws` has the rule of all fits: a warning from R̂ 1.01 on, and from 1.1 on an error, unless
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
    """A posterior by its draws.

    Attributes:
        model: its name. draws: by parameter, shape ``(chains, draws, ...)``. prior: draws of the same parameters from
            the prior, shape ``(draws, ...)``, as far as there are any.
        axes: names of a parameter's axes after the first two; coords: labels along each of them.
        sampling: how the chains fared; None of other than NUTS. warmup: draws made while chains adapted; empty unless
            they were asked for. advice: what to change where chains have not mixed.
        predictive: what new clients are like, where the model says it.
        notes: further sentences for `warnings`. attrs: what the draws rest on (mechanism, epsilon, delta, n).

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
        """The same as another class of draws, which has more attributes."""
        return kind(**{one.name: getattr(self, one.name) for one in fields(self)}, **more)

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
        (chains, draws), found, mixing = next(iter(self.draws.values())).shape[:2], self.sampling, self.mixing
        if found is None:
            return {}
        return {
            "sampling": {
                "method": "NUTS",
                "chains": chains,
                "draws": draws,
                "seconds": found.seconds,
                "r_hat_max": _extreme(max, [one.r_hat for one in mixing]),
                "ess_bulk_min": _extreme(min, [one.bulk for one in mixing]),
                "ess_tail_min": _extreme(min, [one.tail for one in mixing]),
                "acceptance": {"proposals": float(np.mean(found.acceptance))},
                "divergences": int(found.divergences.sum()),
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
        """Central credible intervals, shape ``(..., 2)``. Raises `DataError`: the level is not between 0 and 1."""
        if not 0 < level < 1:
            raise DataError(f"the level of an interval is {level:g}; give a probability between 0 and 1, such as 0.9")
        tails = [(1 - level) / 2, (1 + level) / 2]
        return {name: np.moveaxis(np.quantile(array, tails, axis=(0, 1)), 0, -1) for name, array in self.draws.items()}

    @cached_property
    def mixing(self) -> list[Mixing]:
        """R̂ and effective draws of each number but matrices and constants; none of independent draws.

        Raises:
            DataError: ArviZ is not installed.
        """
        if self.sampling is None and not self.warmup:
            return []
        return mixing({name: self.draws[name] for name in self._numbers},
                      {name: self.labels(name) for name in self._numbers})  # fmt: skip

    @cached_property
    def contraction(self) -> dict[str, Array]:
        """How much was learned of each number that has a prior (`inference.contraction`)."""
        return {name: contraction_of(self.draws[name], prior) for name, prior in self.prior.items()}

    @property
    def _numbers(self) -> list[str]:
        """The parameters but for matrices and constants."""
        return [name for name, array in self.draws.items() if array.ndim <= 3 and np.ptp(array) > 0]

    def labels(self, name: str) -> tuple[Any, ...]:
        """Along a parameter's first own axis."""
        axes = self.axes.get(name, ())
        return self.coords[axes[0]] if axes else ()

    @property
    def warnings(self) -> list[str]:
        """What speaks against taking the draws at their word, a sentence each; empty if nothing does."""
        return [*self.about_mixing, *self._about_chains(), *self.notes]

    @property
    def about_mixing(self) -> list[str]:
        """What speaks against the chains."""
        try:
            return about_mixing(self.mixing, self.advice or ADVICE)
        except DataError as unknown:  # no ArviZ
            return [f"whether the chains have mixed is not known: {unknown}"]

    def _about_chains(self) -> list[str]:
        if self.sampling is None:
            return []
        found = []
        diverged, deep = int(self.sampling.divergences.sum()), int(self.sampling.depth_hits.sum())
        if diverged:
            found.append(
                f"{diverged} iterations after warm-up diverged, so the draws may miss a part of the posterior; take a "
                "stronger prior, or check that the reports are of this model"
            )
        if deep:
            found.append(
                f"{deep} iterations after warm-up stopped at the largest tree, so the chains move slowly; take a "
                "longer warm-up, or columns in units of similar size"
            )
        return found

    def require_mixed(self) -> Self:
        """The same, if the chains have found the same posterior.

        Raises:
            DataError: R̂ of a number is not below 1.1, or there are too few draws to say.
        """
        check_mixing(self.mixing, self.advice or f"{ADVICE}, or {ACCEPT}")
        return self

    def new_clients(self, clients: int = 1, seed: int = 0) -> dict[str, Array]:
        """Posterior predictive draws: ``value`` of new clients, and ``report`` where the model is of single reports.

        Shape ``(chains, draws, clients, ...)``.
        """
        if self.predictive is None:
            raise DataError(f"model {self.model!r} does not say what single clients are like")
        return self.predictive.draws(self.draws, clients, np.random.default_rng(seed))

    def inference_data(self, predicted: Draws | np.random.Generator | None = None) -> InferenceData:
        """All draws as ArviZ's common type; warm-up, prior and the chains' diagnostics in groups of their own.

        Args:
            predicted: draws for the group ``posterior_predictive``, as from `new_clients`, or a generator for them;
                a model that does not say what clients are like has none.

        Raises:
            DataError: ArviZ is not installed.
        """
        if isinstance(predicted, np.random.Generator):
            seed = int(predicted.integers(2**31))
            predicted = None if self.predictive is None else self.new_clients(seed=seed)
        stats, attrs = None, {"model": self.model, **self.attrs}
        if (found := self.sampling) is not None:
            attrs["sampling_time"] = found.seconds
            stats = {
                "divergences": np.asarray(found.divergences, float),
                "acceptance_rate": found.acceptance,
                "reached_max_tree_depth": np.asarray(found.depth_hits, float),
                "step_size": found.step_size,
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
    """None of nothing, and of what ArviZ cannot say."""
    return float(choose(numbers)) if numbers and all(map(isfinite, numbers)) else None
