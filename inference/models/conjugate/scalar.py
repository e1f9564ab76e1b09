"""Models of one sum, Σ x of n values within public bounds, released by the statistic `sum`.

    Bernoulli     x ~ Bernoulli(θ), θ ~ Beta(α, β)             θ | s ~ Beta(α + s, β + n - s)
                  p(s) ∝ C(n, s) B(α + s, β + n - s)                                        (Beta-binomial)
    Poisson       x ~ Poisson(λ), λ ~ Gamma(a, rate b)         λ | s ~ Gamma(a + s, rate b + n)
                  p(s) = Γ(a + s)/(Γ(a) s!) (b/(b + n))^a (n/(b + n))^s                     (negative binomial)
    Exponential   x ~ λ exp(-λ x), λ ~ Gamma(a, rate b)        λ | s ~ Gamma(a + n, rate b + s)
                  p(s) ∝ s^(n-1) / (b + s)^(a+n)                                   (a Gamma mixed over its rate)

The column is centred at the middle of its bounds and measured in half-widths, so that any row is within [-1, 1] and a
missing value, which counts as the centre, changes the sum least.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import betaincinv, betaln, gammaincinv, gammaln, pdtr, pdtrc

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference.errors import DataError
from inference.models.conjugate.family import Family, Latent, Release, positive, whole_bounds
from inference.models.conjugate.quadrature import draw_on_grid
from inference.problem import Array

SHORTEST = 0.01  # mean, in units of the bounds' middle, that the prior allows for by default
MARGIN = 12.0  # standard deviations of the noise, around s̃, beyond which s is not looked for


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
            return np.asarray(self.log_marginal(s, n) - (s - value) ** 2 / (2 * variance))

        nearest, margin = float(self.possible(release.value, n)[0]), MARGIN * variance**0.5
        least, most, low, high = n * self.interval.lower, n * self.interval.upper, nearest - margin, nearest + margin
        if self.integers:
            least, most, low, high = np.ceil(least), np.floor(most), np.floor(low), np.ceil(high)
        sums = draw_on_grid(
            log_density, [(max(low, least), min(high, most))], chains * draws, rng, integers=self.integers
        )
        return Latent(sums.reshape(chains, draws, 1))


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
        return np.asarray(betaln(self.alpha + s, self.beta + n - s) - betaln(s + 1, n - s + 1))

    def moments(self, eta: Array) -> dict[str, tuple[Array, Array]]:
        a, total = eta[..., 0], eta.sum(axis=-1)
        mean = a / total
        return {self.parameter: (mean, mean * (1 - mean) / (total + 1))}

    def quantiles(self, eta: Array, q: Array) -> dict[str, Array]:
        return {self.parameter: np.asarray(betaincinv(eta[0], eta[1], q))}

    def draw(self, eta: Array, rng: np.random.Generator) -> dict[str, Array]:
        return {self.parameter: rng.beta(eta[..., 0], eta[..., 1])}


@dataclass(frozen=True)
class RateFamily(ScalarFamily):
    """A rate λ ~ Gamma(a, rate b), whose posterior is Gamma(η₁, rate η₂).

    Attributes:
        a, b: of the prior, above 0; without b, it follows from the middle of the bounds.
    """

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
        return np.asarray(gammaln(self.a + s) - gammaln(s + 1) - s * np.log1p(self.prior_rate / n))

    def outside(self, parameters: Mapping[str, Array]) -> Array:
        rate = parameters[self.parameter]
        above: Array = pdtrc(np.floor(self.interval.upper), rate)
        below = pdtr(np.ceil(self.interval.lower) - 1, rate) if self.interval.lower > 0 else 0.0
        return above + below


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
        return np.asarray((n - 1) * np.log(s) - (self.a + n) * np.log(self.prior_rate + s))

    def outside(self, parameters: Mapping[str, Array]) -> Array:
        rate = parameters[self.parameter]
        inside = np.exp(-rate * self.interval.lower) - np.exp(-rate * self.interval.upper)
        return np.asarray(1 - inside)
