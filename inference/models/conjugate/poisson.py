"""Poisson counts with a Gamma prior on their mean.

x ~ Poisson(λ),  λ ~ Gamma(a, rate b)    s = Σ x
λ | s ~ Gamma(a + s, rate b + n)         p(s) = Γ(a + s)/(Γ(a) s!) (b/(b + n))^a (n/(b + n))^s      (negative binomial)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammaln, pdtr, pdtrc

from inference.models.conjugate.family import Array, whole_bounds
from inference.models.conjugate.rate import RateFamily


@dataclass(frozen=True)
class Poisson(RateFamily):
    """Counts with public bounds, whole numbers both; ``rate`` is λ, their mean, by default of the bounds' middle."""

    name: ClassVar[str] = "poisson"
    learns: ClassVar[str] = "rate of counts in"
    integers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_bounds(self.name, self.column, self.interval, "give the least and the largest count")

    @property
    def prior_rate(self) -> float:
        return 1 / self.interval.centre if self.b is None else self.b

    def update(self, s: Array, n: int) -> Array:
        return np.concatenate([self.a + s, np.full_like(s, self.prior_rate + n)], axis=-1)

    def log_marginal(self, s: Array, n: int) -> Array:
        log_p: Array = gammaln(self.a + s) - gammaln(s + 1) - s * np.log1p(self.prior_rate / n)
        return log_p

    def outside(self, parameters: Mapping[str, Array]) -> Array:
        rate = parameters[self.parameter]
        above: Array = pdtrc(np.floor(self.interval.upper), rate)
        below = pdtr(np.ceil(self.interval.lower) - 1, rate) if self.interval.lower > 0 else 0.0
        return above + below
