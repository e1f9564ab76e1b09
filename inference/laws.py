"""What a posterior may have beside its draws: an exact law, predictions of rows, the distribution of new clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from inference.draws import CHAINS, DRAWS
from inference.jobs.summary import HeldOut
from inference.problem import Array, Problem

Draws = Mapping[str, Array]
Axes = Mapping[str, tuple[str, ...]]
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
    """What a model predicts at rows: a target, a class's probability, a curve."""

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
