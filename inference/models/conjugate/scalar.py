"""Conjugate models of a number, from Σ x over n values within public bounds, released by the statistic `sum`.

    Bernoulli     x ~ Bernoulli(θ), θ ~ Beta(α, β)             θ | s ~ Beta(α + s, β + n - s)
                  p(s) ∝ C(n, s) B(α + s, β + n - s)                                        (Beta-binomial)
    Poisson       x ~ Poisson(λ), λ ~ Gamma(a, rate b)         λ | s ~ Gamma(a + s, rate b + n)
                  p(s) = Γ(a + s)/(Γ(a) s!) (b/(b + n))^a (n/(b + n))^s                     (negative binomial)
    Exponential   x ~ λ exp(-λ x), λ ~ Gamma(a, rate b)        λ | s ~ Gamma(a + n, rate b + s)
                  p(s) ∝ s^(n-1) / (b + s)^(a+n)                                   (a Gamma mixed over its rate)

The column is centred at the middle of its bounds and measured in half-widths. So every row is within [-1, 1], and a
missing value, which counts as the centre, changes the sum least.

`Gaussian` uses two sums, those of the statistic `moments`:

    x ~ N(μ, σ²),  μ | σ² ~ N(m, σ²/κ),  σ² ~ Inverse-Gamma(a, b)            s = (Σ x, Σ x²), x̄ = Σ x/n

    η = (m', κ', a', b'):   κ' = κ + n,  a' = a + n/2
                            m' = (κ m + Σ x)/κ'
                            b' = b + S/2 + κ n (x̄ - m)²/(2 κ')       S = Σ x² - n x̄²
    p(Σ x, S) ∝ S^((n-3)/2) b'^(-a')                                 the marginal of μ and σ² (S is σ² times a χ²_{n-1})

The code works with z, which is x centred and scaled as above. The grid covers (Σ z, S); an area there equals the same
area of (Σ z, Σ z²). The round's scale minimises the squares' noise without adding noise to Σ z
(`dca_proto.statistics.moments`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import betaincinv, betaln, gammainccinv, gammaincinv, gammaln, ndtr, pdtr, pdtrc, stdtrit

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference.columns import FREE_BOUND
from inference.errors import DataError
from inference.mcmc.sums import NoisySums
from inference.models.conjugate.family import Family, positive, whole_bounds
from inference.models.conjugate.quadrature import draw_on_grid
from inference.problem import Array

SHORTEST = 0.01  # smallest mean that the default prior allows for, in units of the bounds' middle
NARROWEST = 0.01  # smallest standard deviation that the default prior allows for, in half-widths
VALUES_MIN = 4  # below, the density of S does not fall to zero at zero
MARGIN = 12.0  # half-width of the search for s around s̃, in standard deviations of the noise


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
        """Return ln p(s) = ln ∫ p(s | θ) p(θ) dθ, up to a constant, for s inside its range."""

    def request(self) -> SecureSumRequest:
        centre, scale = [self.interval.centre], [self.interval.half_width]
        parameters = {"columns": [self.column], "centre": centre, "scale": scale, "bound": [1.0]}
        return SecureSumRequest("sum", parameters, rows_max=1)

    def release(self, aggregate: NoisyAggregate) -> NoisySums:
        n, scale = aggregate.contributors, self.interval.half_width
        value = scale * aggregate.value + self.interval.centre * n
        return NoisySums(value, np.array([scale**2 * aggregate.noise_variance]), n)

    def exact(self, x: Array) -> NoisySums:
        return NoisySums(np.array([x.sum()]), np.zeros(1), len(x))

    def possible(self, s: Array, n: int) -> Array:
        return np.clip(s, n * self.interval.lower, n * self.interval.upper)

    def latent(self, release: NoisySums, chains: int, draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
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
        return sums[:0], sums.reshape(chains, draws, 1)


@dataclass(frozen=True)
class Bernoulli(ScalarFamily):
    """Zeros and ones; the bounds must be 0:1. Attributes: alpha, beta: of the prior, above 0; 1 and 1 are uniform."""

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
            raise DataError(f"bernoulli: column {self.column!r} has bounds {found}; expected 0:1, for zeros and ones")

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
        a, b: of the prior, above 0; None: b follows from the middle of the bounds.
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
        """b, or its default."""

    def moments(self, eta: Array) -> dict[str, tuple[Array, Array]]:
        return {self.parameter: (eta[..., 0] / eta[..., 1], eta[..., 0] / eta[..., 1] ** 2)}

    def quantiles(self, eta: Array, q: Array) -> dict[str, Array]:
        return {self.parameter: np.asarray(gammaincinv(eta[0], q) / eta[1])}

    def draw(self, eta: Array, rng: np.random.Generator) -> dict[str, Array]:
        return {self.parameter: rng.gamma(eta[..., 0]) / eta[..., 1]}


@dataclass(frozen=True)
class Poisson(RateFamily):
    """Counts, with whole bounds. ``rate`` is λ, their mean; the default prior's mean is the bounds' middle."""

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
    """Times; ``rate`` is λ, one over their mean, in the inverse of the column's unit.

    The default prior leaves the scale open down to means of a hundredth of the bounds' middle. p(s) falls with
    exp(-n b/s), so a b as large as the middle would overrule data that are much smaller than their bounds.
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


@dataclass(frozen=True)
class Gaussian(Family):
    """Normal data, with a Normal-Inverse-Gamma prior in the column's own units.

    Attributes:
        m: prior mean; None: the bounds' centre. kappa: the number of values that m is worth.
        a: the prior of σ² is worth 2a values. b: σ² is hardly below b/10; None: (a hundredth of the half-width)².

    The defaults leave the scale open. An inverse gamma falls with exp(-(b + κ(x̄ - m)²/2)/σ²). So b and κ as large as
    the bounds would overrule data that are much narrower than their bounds, if the noise is large.
    """

    name: ClassVar[str] = "gaussian"
    learns: ClassVar[str] = "mean and variance of"
    m: float | None = None
    kappa: float = 1e-4
    a: float = 0.1
    b: float | None = None

    def __post_init__(self) -> None:
        positive(self.name, kappa=self.kappa, a=self.a, b=1.0 if self.b is None else self.b)
        if self.m is not None and not np.isfinite(self.m):
            raise DataError(f"gaussian: prior parameter m is {self.m:g}; give a finite number")

    @property
    def prior(self) -> tuple[float, float, float, float]:
        """(m, κ, a, b) for z."""
        centre, scale = self.interval.centre, self.interval.half_width
        m = 0.0 if self.m is None else (self.m - centre) / scale
        b = NARROWEST**2 if self.b is None else self.b / scale**2
        return m, self.kappa, self.a, b

    def request(self) -> SecureSumRequest:
        centre, scale = [self.interval.centre], [self.interval.half_width / FREE_BOUND]
        parameters = {"columns": [self.column], "centre": centre, "scale": scale, "bound": [FREE_BOUND]}
        return SecureSumRequest("moments", parameters, rows_max=1)

    def release(self, aggregate: NoisyAggregate) -> NoisySums:
        """Return Σ z and Σ z²."""
        if aggregate.contributors < VALUES_MIN:
            raise DataError(f"gaussian: {aggregate.contributors} clients contributed; expected at least {VALUES_MIN}")
        power = np.array([FREE_BOUND, FREE_BOUND**2])
        return NoisySums(aggregate.value / power, aggregate.noise_variance / power**2, aggregate.contributors)

    def exact(self, x: Array) -> NoisySums:
        z = (x - self.interval.centre) / self.interval.half_width
        return NoisySums(np.array([z.sum(), (z**2).sum()]), np.zeros(2), len(x))

    def possible(self, s: Array, n: int) -> Array:
        """Bring Σ z within the bounds, then Σ z² between (Σ z)²/n and n."""
        first = np.clip(s[..., 0], -n, n)
        return np.stack([first, np.clip(s[..., 1], first**2 / n, n)], axis=-1)

    def update(self, s: Array, n: int) -> Array:
        first, spread = s[..., 0], s[..., 1] - s[..., 0] ** 2 / n
        m, kappa, a, _ = self.prior
        after = kappa + n
        rate = self._rate(first, spread, n)
        eta = [(kappa * m + first) / after, np.full_like(first, after), np.full_like(first, a + n / 2), rate]
        return np.stack(eta, axis=-1)

    def _rate(self, first: Array, spread: Array, n: int) -> Array:
        """Return b' given Σ z and S."""
        m, kappa, _, b = self.prior
        return np.asarray(b + spread / 2 + kappa * n * (first / n - m) ** 2 / (2 * (kappa + n)))

    def moments(self, eta: Array) -> dict[str, tuple[Array, Array]]:
        m, kappa, a, b = np.moveaxis(eta, -1, 0)
        centre, scale = self.interval.centre, self.interval.half_width
        variance = b / (a - 1)
        return {
            "mean": (centre + scale * m, scale**2 * variance / kappa),
            "variance": (scale**2 * variance, scale**4 * variance**2 / (a - 2)),
        }

    def quantiles(self, eta: Array, q: Array) -> dict[str, Array]:
        """Return quantiles of Student's t with 2a degrees of freedom, and of the Inverse-Gamma."""
        m, kappa, a, b = eta
        centre, scale = self.interval.centre, self.interval.half_width
        return {
            "mean": np.asarray(centre + scale * (m + np.sqrt(b / (a * kappa)) * stdtrit(2 * a, q))),
            "variance": np.asarray(scale**2 * b / gammainccinv(a, q)),
        }

    def draw(self, eta: Array, rng: np.random.Generator) -> dict[str, Array]:
        m, kappa, a, b = np.moveaxis(eta, -1, 0)
        variance = b / rng.gamma(a)
        mean = m + np.sqrt(variance / kappa) * rng.standard_normal(m.shape)
        return {
            "mean": self.interval.centre + self.interval.half_width * mean,
            "variance": self.interval.half_width**2 * variance,
        }

    def latent(self, release: NoisySums, chains: int, draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
        n, value, variance = release.n, release.value, release.noise_variance
        shape = self.prior[2] + n / 2

        def log_density(first: Array, spread: Array) -> Array:
            likely = (n - 3) / 2 * np.log(spread) - shape * np.log(self._rate(first, spread, n))
            squares = spread + first**2 / n
            noise = (first - value[0]) ** 2 / variance[0] + (squares - value[1]) ** 2 / variance[1]
            return np.asarray(likely - noise / 2)

        first, spread = draw_on_grid(log_density, self._box(release), chains * draws, rng).T
        sums = np.stack([first, spread + first**2 / n], axis=-1)
        return sums[:0], sums.reshape(chains, draws, 2)

    def _box(self, release: NoisySums) -> list[tuple[float, float]]:
        """Return the possible ranges of Σ z and S, given s̃ and |z| <= 1."""
        n, (first, squares) = release.n, self.possible(release.value, release.n)
        margin = MARGIN * np.sqrt(release.noise_variance)
        low, high = max(-float(n), float(first - margin[0])), min(float(n), float(first + margin[0]))
        nearest = 0.0 if low <= 0 <= high else min(low**2, high**2) / n
        farthest = max(low**2, high**2) / n
        least = max(0.0, float(squares - margin[1]) - farthest)
        most = min(float(n), float(squares + margin[1])) - nearest
        return [(low, high), (least, max(most, least + 1e-9 * n))]

    def outside(self, parameters: Mapping[str, Array]) -> Array:
        mean, sd = parameters["mean"], np.sqrt(parameters["variance"])
        below, above = ndtr((self.interval.lower - mean) / sd), ndtr((mean - self.interval.upper) / sd)
        return np.asarray(below + above)
