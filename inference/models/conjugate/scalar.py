"""Conjugate models of a number, from Σ x over n values within public bounds, released by the statistic `sum`.

    Bernoulli     x ~ Bernoulli(θ), θ ~ Beta(α, β)             θ | s ~ Beta(α + s, β + n - s)
                  p(s) ∝ C(n, s) B(α + s, β + n - s)                                        (Beta-binomial)
    Poisson       x ~ Poisson(λ), λ ~ Gamma(a, rate b)         λ | s ~ Gamma(a + s, rate b + n)
                  p(s) = Γ(a + s)/(Γ(a) s!) (b/(b + n))^a (n/(b + n))^s                     (negative binomial)
    Exponential   x ~ λ exp(-λ x), λ ~ Gamma(a, rate b)        λ | s ~ Gamma(a + n, rate b + s)
                  p(s) ∝ s^(n-1) / (b + s)^(a+n)                                   (a Gamma mixed over its rate)

The column is centred at the middle of its bounds and measured in half-widths, so that every row is within [-1, 1].

`Gaussian` uses two sums, those of the statistic `moments`:

    x ~ N(μ, σ²),  μ | σ² ~ N(m, σ²/κ),  σ² ~ Inverse-Gamma(a, b)            s = (Σ x, Σ x²), x̄ = Σ x/n

    η = (m', κ', a', b'):   κ' = κ + n,  a' = a + n/2
                            m' = (κ m + Σ x)/κ'
                            b' = b + S/2 + κ n (x̄ - m)²/(2 κ')       S = Σ x² - n x̄²
    p(Σ x, S) ∝ S^((n-3)/2) b'^(-a')                                 the marginal of μ and σ² (S is σ² times a χ²_{n-1})

**Default priors leave the scale open.** Bounds may be far too wide, and then an ordinary prior overrules the data: an
inverse gamma law falls with exp(-b/σ²), so a b as large as the bounds forbids a σ that is much smaller. So the default
prior of a scale τ (a variance, a mean) is p(τ) ∝ τ^(ν - 1) with ν = `OPEN`. So a = ν for a Poisson law, and a = -ν, b
almost 0 for the mean of an exponential law (with b = 0 its rate would have no posterior mean). A normal law has a = -ν
- ½ and b = 0, because μ | σ² of a tiny κ has a density of σ⁻¹ wherever the data can be. The bounds make these priors
proper. Where the noise hides τ, the posterior is this prior up to the largest τ that the noise can hide. Its central 95
% then reach from 4e-7 of that to 0.9 of it, and a warning says so. A larger ν would miss small τ, a smaller one those
that noise hardly hides: with ν = 0.25, intervals hold 91 % or more of the truths between (1,000 simulated releases
each), with ν = 0.02 down to 68 %. With the noisy count of values and next to a bound they hold less: of Poisson rates
of 0.02 to 0.1 within 0:20, for 5,000 clients and ε = 1, 95 % intervals hold 79 to 90 % (120 releases each).

The code works with z, which is x centred and scaled as above. The grid covers (Σ z, S); an area there equals the same
area of (Σ z, Σ z²). The round's scale minimises the squares' noise without adding noise to Σ z
(`dca_proto.statistics.moments`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import betaincinv, betaln, gammainccinv, gammaincinv, gammaln, ndtr, pdtr, pdtrc, stdtrit

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.statistics.moments import Moments
from inference.columns import COUNT_WEIGHT, FREE_BOUND, MOMENTS_COUNT_WEIGHT
from inference.errors import DataError
from inference.jobs.examples import CLASS, COUNT, NUMBER, TIME
from inference.jobs.settings import require_finite
from inference.mcmc.sums import NoisySums
from inference.models.conjugate.family import PRIOR, Family, Latent, Released, positive, whole_bounds
from inference.models.conjugate.quadrature import Grid
from inference.problem import Array

OPEN = 0.25  # ν of the default priors of a scale: p(τ) ∝ τ^(ν - 1)
SHORTEST = 1e-7  # smallest mean of the default prior of an exponential law, in units of the bounds' middle
KAPPA = 1e-12  # number of values that the default prior mean of a normal law is worth
VALUES_MIN = 6  # below, the variance of σ² has no mean under the default prior
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
        """Return ln p(s) = ln ∫ p(s | θ) p(θ) dθ for s inside its range, up to a constant of the prior alone."""

    def request(self) -> RoundRequest:
        centre, scale = [self.interval.centre], [self.interval.half_width]
        parameters = {"columns": [self.column], "centre": centre, "scale": scale, "bound": [1.0]}
        return RoundRequest("sum", {**parameters, "count_weight": COUNT_WEIGHT}, rows_max=1)

    def release(self, aggregate: NoisyAggregate) -> Released:
        scale, variance, n = self.interval.half_width, aggregate.noise_variance, aggregate.contributors
        (total, count), weight = aggregate.value, aggregate.parameters["count_weight"]
        noise, centre = np.array([scale**2 * variance]), np.array([self.interval.centre])
        return Released(np.array([scale * total]), centre, noise, n, float(count) / weight, variance / weight**2)

    def exact(self, x: Array) -> NoisySums:
        return NoisySums(np.array([x.sum()]), np.zeros(1), len(x))

    def possible(self, s: Array, n: Any) -> Array:
        return np.clip(s, n * self.interval.lower, n * self.interval.upper)

    def grid(self, sums: NoisySums) -> Grid:
        """Return p(s | s̃) of n complete values."""
        variance, n, nearest = float(sums.noise_variance[0]), sums.n, float(self.possible(sums.value, sums.n)[0])
        margin = MARGIN * variance**0.5
        value = nearest + np.clip(float(sums.value[0]) - nearest, -2 * margin, 2 * margin)

        def log_density(s: Array) -> Array:
            return np.asarray(self.log_marginal(s, n) - (s - value) ** 2 / (2 * variance))

        least, most, low, high = n * self.interval.lower, n * self.interval.upper, nearest - margin, nearest + margin
        if self.integers:
            least, most, low, high = np.ceil(least), np.floor(most), np.floor(low), np.ceil(high)
        return Grid.of(log_density, [(max(low, least), min(high, most))], integers=self.integers)

    def latent(self, release: Released, chains: int, draws: int, rng: np.random.Generator) -> tuple[Latent, Latent]:
        return mixed(release, self.least, self.grid, chains, draws, rng)


def mixed(
    release: Released,
    least: int,
    grid: Callable[[NoisySums], Grid],
    chains: int,
    draws: int,
    rng: np.random.Generator,
) -> tuple[Latent, Latent]:
    """Return independent draws of (n, s): of n by its probability and evidence, then of s on the grid given n."""
    counts, log_p = release.counts(least)
    grids = [grid(release.given(int(rows))) for rows in counts]
    log_p = log_p + np.array([one.log_total for one in grids])
    p = np.exp(log_p - log_p.max())
    sizes = rng.multinomial(chains * draws, p / p.sum())
    sums = np.concatenate([one.draw(size, rng) for one, size in zip(grids, sizes, strict=True)])
    order = rng.permutation(chains * draws)
    rows = np.repeat(counts, sizes)[order].reshape(chains, draws).astype(float)
    return Latent(sums[:0], rows[:0, 0]), Latent(sums[order].reshape(chains, draws, -1), rows)


@dataclass(frozen=True)
class Bernoulli(ScalarFamily):
    """Zeros and ones; the bounds must be 0:1. Attributes: alpha, beta: of the prior, above 0; 1 and 1 are uniform."""

    name: ClassVar[str] = "bernoulli"
    learns: ClassVar[str] = "share of ones in"
    target: ClassVar[str] = CLASS
    clean: ClassVar[str] = "a column of classes"
    of_codes: ClassVar[bool] = True
    parameter: ClassVar[str] = "theta"
    integers: ClassVar[bool] = True
    alpha: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        positive(alpha=self.alpha, beta=self.beta)
        if (self.interval.lower, self.interval.upper) != (0, 1):
            found = f"{self.interval.lower:g}:{self.interval.upper:g}"
            raise DataError(f"bernoulli: column {self.column!r} has bounds {found}; expected 0:1, for zeros and ones")

    def update(self, s: Array, n: Any) -> Array:
        return np.stack([self.alpha + s[..., 0], self.beta + n - s[..., 0]], axis=-1)

    def log_marginal(self, s: Array, n: int) -> Array:
        binomial = -betaln(s + 1, n - s + 1) - np.log(n + 1)
        return np.asarray(binomial + betaln(self.alpha + s, self.beta + n - s))

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
        a, b: of the prior, above 0; None leaves the scale open.
    """

    parameter: ClassVar[str] = "rate"
    a: float | None = None
    b: float | None = None

    def __post_init__(self) -> None:
        if self.interval.lower < 0:
            raise DataError(
                f"{self.name}: column {self.column!r} has the lower bound {self.interval.lower:g}; give one from 0 on"
            )
        positive(a=self.a, b=self.b)

    @property
    @abstractmethod
    def prior(self) -> tuple[float, float]:
        """(a, b), or their defaults."""

    def moments(self, eta: Array) -> dict[str, tuple[Array, Array]]:
        return {self.parameter: (eta[..., 0] / eta[..., 1], eta[..., 0] / eta[..., 1] ** 2)}

    def quantiles(self, eta: Array, q: Array) -> dict[str, Array]:
        return {self.parameter: np.asarray(gammaincinv(eta[0], q) / eta[1])}

    def draw(self, eta: Array, rng: np.random.Generator) -> dict[str, Array]:
        return {self.parameter: rng.gamma(eta[..., 0]) / eta[..., 1]}


@dataclass(frozen=True)
class Poisson(RateFamily):
    """Counts, with whole bounds. ``rate`` is λ, their mean; the mean of the default prior is the bounds' middle."""

    name: ClassVar[str] = "poisson"
    learns: ClassVar[str] = "rate of counts in"
    target: ClassVar[str] = COUNT
    clean: ClassVar[str] = "a column of counts"
    assumes: ClassVar[str] = (
        "counts vary as much as Poisson's law has it. One sum cannot show whether they vary more, and then intervals "
        "are too narrow; job gaussian learns the mean of any column"
    )
    scale: ClassVar[str] = "rate"
    counts: ClassVar[bool] = True
    integers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_bounds(self.name, self.column, self.interval, "give the least and the largest count")

    @property
    def prior(self) -> tuple[float, float]:
        a = OPEN if self.a is None else self.a
        return a, a / self.interval.centre if self.b is None else self.b

    def update(self, s: Array, n: Any) -> Array:
        a, b = self.prior
        return np.stack(np.broadcast_arrays(a + s[..., 0], np.asarray(b + n, float)), axis=-1)

    def log_marginal(self, s: Array, n: int) -> Array:
        a, b = self.prior
        return np.asarray(gammaln(a + s) - gammaln(s + 1) - s * np.log1p(b / n) - a * np.log(b + n))

    def outside(self, parameters: Mapping[str, Array]) -> Array:
        rate = parameters[self.parameter]
        above: Array = pdtrc(np.floor(self.interval.upper), rate)
        below = pdtr(np.ceil(self.interval.lower) - 1, rate) if self.interval.lower > 0 else 0.0
        return above + below


@dataclass(frozen=True)
class Exponential(RateFamily):
    """Times; ``rate`` is λ, one over their mean, in the inverse of the column's unit."""

    name: ClassVar[str] = "exponential"
    learns: ClassVar[str] = "rate of waiting times in"
    target: ClassVar[str] = TIME
    clean: ClassVar[str] = "a column of waits"
    assumes: ClassVar[str] = (
        "times vary as much as an exponential law has it. One sum cannot show whether they do, and intervals may be "
        "too narrow; job gaussian learns the mean of any column"
    )
    scale: ClassVar[str] = "rate"
    hidden_below: ClassVar[bool] = False
    integers: ClassVar[bool] = False

    @property
    def prior(self) -> tuple[float, float]:
        b = SHORTEST * self.interval.centre if self.b is None else self.b
        return -OPEN if self.a is None else self.a, b

    def update(self, s: Array, n: Any) -> Array:
        a, b = self.prior
        return np.stack(np.broadcast_arrays(np.asarray(a + n, float), b + s[..., 0]), axis=-1)

    def log_marginal(self, s: Array, n: int) -> Array:
        a, b = self.prior
        return np.asarray((n - 1) * np.log(s) - (a + n) * np.log(b + s) + gammaln(a + n) - gammaln(n))

    def outside(self, parameters: Mapping[str, Array]) -> Array:
        rate = parameters[self.parameter]
        inside = np.exp(-rate * self.interval.lower) - np.exp(-rate * self.interval.upper)
        return np.asarray(1 - inside)


@dataclass(frozen=True)
class Gaussian(Family):
    """Normal data, with a Normal-Inverse-Gamma prior in the column's own units.

    Attributes:
        m: prior mean; None: the bounds' centre. kappa: the number of values that m is worth.
        a: the prior of σ² is worth 2a values. b: σ² is hardly below b/10. None leaves the scale open.

    The prior of σ² falls with exp(-κ(x̄ - m)²/2σ²), too. So a κ that is not tiny would overrule narrow data whose mean
    is far from m.
    """

    name: ClassVar[str] = "gaussian"
    learns: ClassVar[str] = "mean and variance of"
    target: ClassVar[str] = NUMBER
    clean: ClassVar[str] = "a normal column"
    least: ClassVar[int] = VALUES_MIN
    scale: ClassVar[str] = "variance"
    m: float | None = None
    kappa: float = KAPPA
    a: float | None = None
    b: float | None = None

    def __post_init__(self) -> None:
        positive(kappa=self.kappa, a=self.a, b=self.b)
        require_finite(f"{PRIOR}m", self.m)

    @property
    def prior(self) -> tuple[float, float, float, float]:
        """(m, κ, a, b) for z."""
        centre, scale = self.interval.centre, self.interval.half_width
        m = 0.0 if self.m is None else (self.m - centre) / scale
        a = -0.5 - OPEN if self.a is None else self.a
        return m, self.kappa, a, (self.b or 0.0) / scale**2

    def request(self) -> RoundRequest:
        centre, scale = [self.interval.centre], [self.interval.half_width / FREE_BOUND]
        parameters = {"columns": [self.column], "centre": centre, "scale": scale, "bound": [FREE_BOUND]}
        return RoundRequest("moments", {**parameters, "count_weight": MOMENTS_COUNT_WEIGHT}, rows_max=1)

    def release(self, aggregate: NoisyAggregate) -> Released:
        """Return Σ z and Σ z²; the squares were released about a constant (`dca_proto.statistics.moments`)."""
        statistic = Moments(**aggregate.parameters)
        sums, rows = statistic.sums_and_rows(aggregate.value, aggregate.contributors)
        power = np.array([FREE_BOUND, FREE_BOUND**2])
        about = np.array([0.0, float(statistic.shifts[0])]) / power
        noise, weight = aggregate.noise_variance, statistic.count_weight
        return Released(sums / power, about, noise / power**2, aggregate.contributors, rows, noise / weight**2)

    def exact(self, x: Array) -> NoisySums:
        z = (x - self.interval.centre) / self.interval.half_width
        return NoisySums(np.array([z.sum(), (z**2).sum()]), np.zeros(2), len(x))

    def possible(self, s: Array, n: Any) -> Array:
        """Bring Σ z within the bounds, then Σ z² between (Σ z)²/n and n."""
        first = np.clip(s[..., 0], -n, n)
        return np.stack([first, np.clip(s[..., 1], first**2 / n, n)], axis=-1)

    def update(self, s: Array, n: Any) -> Array:
        first, n = s[..., 0], np.asarray(n, float)
        spread = np.maximum(s[..., 1] - first**2 / n, 0.0)
        m, kappa, a, _ = self.prior
        eta = [(kappa * m + first) / (kappa + n), kappa + n, a + n / 2, self._rate(first, spread, n)]
        return np.stack(np.broadcast_arrays(*eta), axis=-1)

    def _rate(self, first: Array, spread: Array, n: Any) -> Array:
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

    def grid(self, sums: NoisySums) -> Grid:
        """Return p(Σ z, S | s̃) of n complete values."""
        n, variance, nearest = sums.n, sums.noise_variance, self.possible(sums.value, sums.n)
        _, kappa, a, _ = self.prior
        margin, shape = MARGIN * np.sqrt(variance), a + n / 2
        value = nearest + np.clip(sums.value - nearest, -2 * margin, 2 * margin)
        constant = gammaln(shape) - gammaln((n - 1) / 2) - (n * np.log(2) + np.log(n) + np.log(kappa + n)) / 2

        def log_density(first: Array, spread: Array) -> Array:
            likely = (n - 3) / 2 * np.log(spread) - shape * np.log(self._rate(first, spread, n))
            squares = spread + first**2 / n
            noise = (first - value[0]) ** 2 / variance[0] + (squares - value[1]) ** 2 / variance[1]
            return np.asarray(likely - noise / 2 + constant)

        return Grid.of(log_density, self._box(n, nearest, margin))

    def latent(self, release: Released, chains: int, draws: int, rng: np.random.Generator) -> tuple[Latent, Latent]:
        warmup, (drawn, rows) = mixed(release, self.least, self.grid, chains, draws, rng)
        first, spread = drawn[..., 0], drawn[..., 1]
        return warmup, Latent(np.stack([first, spread + first**2 / rows], axis=-1), rows)

    def _box(self, n: int, nearest: Array, margin: Array) -> list[tuple[float, float]]:
        """Return the possible ranges of Σ z and S within the margin of the nearest possible sum, given |z| <= 1."""
        first, squares = nearest
        low, high = max(-float(n), float(first - margin[0])), min(float(n), float(first + margin[0]))
        closest = 0.0 if low <= 0 <= high else min(low**2, high**2) / n
        farthest = max(low**2, high**2) / n
        least = max(0.0, float(squares - margin[1]) - farthest)
        most = min(float(n), float(squares + margin[1])) - closest
        return [(low, high), (least, max(most, least + 1e-9 * n))]

    def outside(self, parameters: Mapping[str, Array]) -> Array:
        mean, sd = parameters["mean"], np.sqrt(parameters["variance"])
        below, above = ndtr((self.interval.lower - mean) / sd), ndtr((mean - self.interval.upper) / sd)
        return np.asarray(below + above)
