"""What the two models with a Gamma prior share: a rate λ ~ Gamma(a, rate b) whose posterior is Gamma(η₁, rate η₂)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammaincinv

from inference.errors import DataError
from inference.models.conjugate.family import Array, positive
from inference.models.conjugate.scalar import ScalarFamily


@dataclass(frozen=True)
class RateFamily(ScalarFamily):
    """Attributes: a, b: of the prior, above 0; without b, it follows from the middle of the bounds."""

    parameter: ClassVar[str] = "rate"
    a: float = 1.0
    b: float | None = None

    def __post_init__(self) -> None:
        if self.interval.lower < 0:
            raise DataError(
                f"{self.name}: column {self.column!r} has the lower bound {self.interval.lower:g}; give one from 0 on"
            )
        positive(self.name, a=self.a, b=self.prior_rate)

    @property
    @abstractmethod
    def prior_rate(self) -> float:
        """b, or what takes its place."""

    def moments(self, eta: Array) -> dict[str, tuple[Array, Array]]:
        return {self.parameter: (eta[..., 0] / eta[..., 1], eta[..., 0] / eta[..., 1] ** 2)}

    def quantiles(self, eta: Array, q: Array) -> dict[str, Array]:
        return {self.parameter: np.asarray(gammaincinv(eta[0], q) / eta[1])}

    def draw(self, eta: Array, rng: np.random.Generator) -> dict[str, Array]:
        return {self.parameter: rng.gamma(eta[..., 0]) / eta[..., 1]}
