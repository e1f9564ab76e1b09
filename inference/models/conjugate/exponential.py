"""Exponential waiting times with a Gamma prior on their rate.

x ~ λ exp(-λ x),  λ ~ Gamma(a, rate b)   s = Σ x
λ | s ~ Gamma(a + n, rate b + s)         p(s) ∝ s^(n-1) / (b + s)^(a+n)      (a Gamma mixed over its rate)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from inference.models.conjugate.family import Array
from inference.models.conjugate.rate import RateFamily

SHORTEST = 0.01  # mean, in units of the bounds' middle, that the prior allows for by default


@dataclass(frozen=True)
class Exponential(RateFamily):
    """Times with public bounds; ``rate`` is λ, one over their mean, in the inverse of the column's unit.

    By default the prior leaves the scale open down to means of a hundredth of the bounds' middle: p(s) falls with
    exp(-n b/s), so that a b of the middle's own size would overrule data that are much smaller than their bounds.
    """

    name: ClassVar[str] = "exponential"
    learns: ClassVar[str] = "rate of waiting times in"
    integers: ClassVar[bool] = False
    a: float = 0.1

    @property
    def prior_rate(self) -> float:
        return SHORTEST * self.interval.centre if self.b is None else self.b

    def update(self, s: Array, n: int) -> Array:
        return np.concatenate([np.full_like(s, self.a + n), self.prior_rate + s], axis=-1)

    def log_marginal(self, s: Array, n: int) -> Array:
        log_p: Array = (n - 1) * np.log(s) - (self.a + n) * np.log(self.prior_rate + s)
        return log_p

    def outside(self, parameters: Mapping[str, Array]) -> Array:
        rate = parameters[self.parameter]
        inside = np.exp(-rate * self.interval.lower) - np.exp(-rate * self.interval.upper)
        return np.asarray(1 - inside)
