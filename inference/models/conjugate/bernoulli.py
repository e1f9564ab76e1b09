"""Bernoulli data with a Beta prior: the share of ones.

x ~ Bernoulli(θ),  θ ~ Beta(α, β)        s = Σ x
θ | s ~ Beta(α + s, β + n - s)           p(s) ∝ C(n, s) B(α + s, β + n - s)      (Beta-binomial)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import betaincinv, betaln

from inference.errors import DataError
from inference.models.conjugate.family import Array, positive
from inference.models.conjugate.scalar import ScalarFamily


@dataclass(frozen=True)
class Bernoulli(ScalarFamily):
    """Attributes: alpha, beta: of the prior, above 0; 1 and 1 are uniform. The bounds must be 0 and 1."""

    name: ClassVar[str] = "bernoulli"
    learns: ClassVar[str] = "share of ones in"
    parameter: ClassVar[str] = "theta"
    integers: ClassVar[bool] = True
    alpha: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        positive(self.name, alpha=self.alpha, beta=self.beta)
        if (self.interval.lower, self.interval.upper) != (0, 1):
            found = f"{self.interval.lower:g}:{self.interval.upper:g}"
            raise DataError(f"bernoulli: column {self.column!r} has bounds {found}; expected 0:1, of zeros and ones")

    def update(self, s: Array, n: int) -> Array:
        return np.concatenate([self.alpha + s, self.beta + n - s], axis=-1)

    def log_marginal(self, s: Array, n: int) -> Array:
        log_p: Array = betaln(self.alpha + s, self.beta + n - s) - betaln(s + 1, n - s + 1)
        return log_p

    def moments(self, eta: Array) -> dict[str, tuple[Array, Array]]:
        a, total = eta[..., 0], eta.sum(axis=-1)
        mean = a / total
        return {self.parameter: (mean, mean * (1 - mean) / (total + 1))}

    def quantiles(self, eta: Array, q: Array) -> dict[str, Array]:
        return {self.parameter: np.asarray(betaincinv(eta[0], eta[1], q))}

    def draw(self, eta: Array, rng: np.random.Generator) -> dict[str, Array]:
        return {self.parameter: rng.beta(eta[..., 0], eta[..., 1])}
