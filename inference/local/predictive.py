"""What a new client is like, given the parameters: its value, and the report that it would send.

For each draw of the parameters the values of as many clients as are asked for, before they are clipped, and their
reports, clipped and with the mechanism's noise: draws of the posterior predictive. Reports that look nothing like the
ones that came in speak against the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.local.reports import Categories, Scalars

Array = NDArray[np.float64]
VALUE, REPORT = "value", "report"
EXPONENTIAL, GAUSSIAN, GEOMETRIC, POISSON = "exponential", "gaussian", "geometric", "poisson"


@dataclass(frozen=True, eq=False)
class ScalarClient:
    """One column's value of that family, and its report."""

    family: str
    reports: Scalars

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Of what is drawn."""
        return {VALUE: ("client",), REPORT: ("client",)}

    def draws(self, parameters: Mapping[str, Array], clients: int, rng: np.random.Generator) -> dict[str, Array]:
        """``value`` and ``report``, shape ``(chains, draws, clients)``, in the column's own units."""
        given = {name: array[..., None] for name, array in parameters.items()}
        shape = (*next(iter(parameters.values())).shape, clients)
        value = self._values(given, shape, rng)
        clipped = np.clip(value, self.reports.bounds.lower, self.reports.bounds.upper)
        noise = rng.laplace if self.reports.laplace else rng.normal
        return {VALUE: value, REPORT: clipped + noise(0.0, self.reports.scale, shape)}

    def _values(self, given: Mapping[str, Array], shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        if self.family == GAUSSIAN:
            return np.asarray(rng.normal(given["mean"], given["sd"], shape), float)
        if self.family == EXPONENTIAL:
            return rng.exponential(1 / given["rate"], shape)
        if self.family == POISSON:
            return rng.poisson(given["rate"], shape).astype(float)
        return np.asarray(rng.geometric(given["probability"], shape) - 1, float)


@dataclass(frozen=True, eq=False)
class CategoryClient:
    """One category, told as one or as bits."""

    reports: Categories

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Of what is drawn."""
        told = ("client", "category") if self.reports.unary else ("client",)
        return {VALUE: ("client",), REPORT: told}

    def draws(self, parameters: Mapping[str, Array], clients: int, rng: np.random.Generator) -> dict[str, Array]:
        """``value`` and ``report``: categories ``(chains, draws, clients)``; bits have an axis of categories more."""
        shares = parameters["shares"]
        below = np.cumsum(shares, axis=-1)[..., None, :-1]
        value = np.sum(rng.random((*shares.shape[:-1], clients, 1)) >= below, axis=-1)
        k, p, q = self.reports.categories, self.reports.p, self.reports.q
        if self.reports.unary:
            chance = np.where(np.arange(k) == value[..., None], p, q)
            return {VALUE: value.astype(float), REPORT: (rng.random(chance.shape) < chance).astype(float)}
        moved = np.where(rng.random(value.shape) < p, 0, rng.integers(1, k, value.shape))
        return {VALUE: value.astype(float), REPORT: ((value + moved) % k).astype(float)}
