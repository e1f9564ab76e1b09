"""What models of one sum share: Σ x of n values within public bounds, released by the statistic `sum`.

The column is centred at the middle of its bounds and measured in half-widths, so that any row is within [-1, 1] and a
missing value, which counts as the centre, changes the sum least.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference.models.conjugate.family import (
    Array,
    Family,
    Latent,
    Release,
)
from inference.models.conjugate.quadrature import draw_on_grid

REACH = 12.0  # standard deviations of the noise, around s̃, beyond which s is not looked for


@dataclass(frozen=True)
class ScalarFamily(Family):
    """A model whose sufficient statistic is Σ x.

    Attributes:
        parameter: its name. integers: whether the sum is a whole number.
    """

    parameter: ClassVar[str]
    integers: ClassVar[bool]

    @abstractmethod
    def log_marginal(self, s: Array, n: int) -> Array:
        """ln p(s) = ln ∫ p(s | θ) p(θ) dθ, up to a constant, for s inside its range."""

    def request(self, budget_share: float = 1.0) -> SecureSumRequest:
        centre, scale = [self.interval.centre], [self.interval.half_width]
        parameters = {"columns": [self.column], "centre": centre, "scale": scale, "bound": [1.0]}
        return SecureSumRequest("sum", parameters, budget_share, rows_max=1)

    def release(self, aggregate: NoisyAggregate) -> Release:
        n, scale = aggregate.contributors, self.interval.half_width
        value = scale * aggregate.value + self.interval.centre * n
        return Release(value, np.array([scale**2 * aggregate.noise_variance]), n)

    def exact(self, x: Array) -> Release:
        return Release(np.array([x.sum()]), np.zeros(1), len(x))

    def possible(self, s: Array, n: int) -> Array:
        return np.clip(s, n * self.interval.lower, n * self.interval.upper)

    def latent(self, release: Release, chains: int, draws: int, rng: np.random.Generator) -> Latent:
        value, variance, n = float(release.value[0]), float(release.noise_variance[0]), release.n

        def log_density(s: Array) -> Array:
            density: Array = self.log_marginal(s, n) - (s - value) ** 2 / (2 * variance)
            return density

        nearest, reach = float(self.possible(release.value, n)[0]), REACH * variance**0.5
        least, most, low, high = n * self.interval.lower, n * self.interval.upper, nearest - reach, nearest + reach
        if self.integers:
            least, most, low, high = np.ceil(least), np.floor(most), np.floor(low), np.ceil(high)
        sums = draw_on_grid(
            log_density, [(max(low, least), min(high, most))], chains * draws, rng, integers=self.integers
        )
        return Latent(sums.reshape(chains, draws, 1))
