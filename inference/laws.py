"""What a posterior may have beside its draws: an exact law, predictions of rows, the distribution of new clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from inference.draws import CHAINS, DRAWS
from inference.jobs.estimates import Marginal, of_draws
from inference.jobs.summary import HeldOut
from inference.problem import Array, Problem

Draws = Mapping[str, Array]
Axes = Mapping[str, tuple[str, ...]]
Coords = Mapping[str, tuple[Any, ...]]
Sample = Callable[[np.random.Generator, int, int], dict[str, Array]]
"""Makes chains times draws of each parameter."""


class Predictive(Protocol):
    """The distribution of a new client's value and report, given the parameters."""

    @property
    def axes(self) -> Axes:
        """Names of the axes of each drawn array, after chains and draws."""

    def draws(self, parameters: Draws, clients: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draw as `Posterior.new_clients` describes, once for each draw of the parameters."""


class Predictor(Protocol):
    """What a model predicts at rows: a target, a class's probability, a curve. `Posterior.predict` checks the rows."""

    @property
    def features(self) -> tuple[str, ...] | None:
        """The names of the rows' columns, in order; None if it predicts at times, ``(k,)``, instead of rows."""

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the prediction, each ``(k,)``, at rows ``(k, d)``."""

    def simulate(self, X: Array, draws: Draws, rng: np.random.Generator, *, labels: bool = False) -> Array:
        """Draw the prediction for each draw of the parameters, ``(chains, draws, k)``.

        Args:
            labels: whether to draw the label of a class instead of its probability.
        """

    def held_out_scores(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut | None:
        """Return scores on rows that nobody learned from, with those of the model without privacy."""


class Moments(Protocol):
    """Moments and quantiles of each parameter that are better than those of the draws."""

    @property
    def mean(self) -> dict[str, Array]:
        """Posterior means."""

    @property
    def sd(self) -> dict[str, Array]:
        """Posterior standard deviations."""

    def quantile(self, q: Array) -> dict[str, Array] | None:
        """Return quantiles, shape of `q`, then the parameter's own axes; None if only draws have them."""


class Slopes(NamedTuple):
    """Which coordinates of a normal law are slopes that a prior may shrink (`inference.models.shrinkage`).

    Attributes:
        law: has ``with_shrunk`` and ``slopes_in_own_units``. mean, cov: of all coordinates, ``(p,)`` and ``(p, p)``.
        places: of the slopes among them, and column: the number of each one's column, each ``(q,)``.
        features: names of the columns. slab: sd of the normal prior of each slope, infinite if flat, ``(q,)``.
        unit: of an effect. stretch: sd of an unknown factor of all coordinates, in ``cov`` as stretch² mean meanᵀ.
    """

    law: Any
    mean: Array
    cov: Array
    places: NDArray[np.int64]
    column: NDArray[np.int64]
    features: tuple[str, ...]
    slab: Array
    unit: str
    stretch: float = 0.0


class Shrunk(NamedTuple):
    """What a law keeps of a prior that shrinks. Its mean and covariance are those of the draws.

    Attributes:
        drawn, warmup: draws of all coordinates after and during the warm-up, ``(chains, draws, p)``.
        before: draws of the slopes from the prior, in own units, ``(draws, slopes)``; nan for a flat one.
    """

    drawn: Array
    warmup: Array
    before: Array

    def figures(self, others: Array, slopes: Array) -> list[Marginal]:
        """Return the figures of other coordinates, then of slopes. Args: draws in own units, ``(chains, draws, k)``."""
        priors = [None if np.isnan(one).any() else one for one in self.before.T]
        alone = [of_draws(others[..., place]) for place in range(others.shape[-1])]
        return alone + [of_draws(slopes[..., place], prior) for place, prior in enumerate(priors)]

    def into(self, posterior: Any, own: Callable[[Array], Mapping[str, Array]], name: str) -> Any:
        """Return a law's posterior with these draws. Args: own: converts to own units. name: of the slopes."""
        draws = own(self.drawn)
        shape = draws[name].shape[2:]
        return replace(
            posterior,
            draws=draws,
            warmup=own(self.warmup),
            prior={} if np.isnan(self.before).any() else {name: self.before.reshape(-1, *shape)},
            sample=None,
            advice="take a stronger slab (prior_sd or prior_precision), or leave out columns that repeat others",
        )


class Drawn(Mapping[str, Array]):
    """Draws of an exact law, made at first use, the same each time."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    @cached_property
    def _made(self) -> dict[str, Array]:
        return self._sample(np.random.default_rng(0), CHAINS, DRAWS)

    def __getitem__(self, name: str) -> Array:
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)
