"""Gaussian data of unknown mean and variance with a Normal-Inverse-Gamma prior.

    x ~ N(μ, σ²),  μ | σ² ~ N(m, σ²/κ),  σ² ~ Inverse-Gamma(a, b)            s = (Σ x, Σ x²), x̄ = Σ x/n

    η = (m', κ', a', b'):   κ' = κ + n,  a' = a + n/2
                            m' = (κ m + Σ x)/κ'
                            b' = b + S/2 + κ n (x̄ - m)²/(2 κ')       S = Σ x² - n x̄²
    p(Σ x, S) ∝ S^((n-3)/2) b'^(-a')                                 the marginal of μ and σ² (S is σ² times a χ²_{n-1})

Inside, x is measured from the centre of its bounds in half-widths: z. The grid is laid over (Σ z, S), whose area is
that of (Σ z, Σ z²). The round's scale is the one that makes the squares' noise least without costing Σ z anything: see
`dca_proto.statistics.moments`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammainccinv, ndtr, stdtrit

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference.columns import FREE_BOUND
from inference.errors import DataError
from inference.models.conjugate.family import Family, Latent, Release, positive
from inference.models.conjugate.quadrature import draw_on_grid
from inference.problem import Array

MARGIN = 12.0  # standard deviations of the noise, around s̃, beyond which s is not looked for
NARROWEST = 0.01  # standard deviation, in half-widths, that the prior allows for by default
VALUES_MIN = 4  # below, S has no density that falls to zero at zero


@dataclass(frozen=True)
class Gaussian(Family):
    """Attributes, of the prior, in the column's own units; what is left out follows from the bounds.

    m: prior mean; the centre. kappa: how many values it counts for. a: 2a values are known of σ²;
    b: of σ², which is hardly below b/10; by default b is a hundredth of the half-width, squared.

    The defaults leave the scale open. An inverse gamma falls with exp(-(b + κ(x̄ - m)²/2)/σ²), so that b and κ of the
    bounds' own size would overrule data that are much narrower than their bounds, wherever the noise lets them.
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
        """(m, κ, a, b) of z."""
        centre, scale = self.interval.centre, self.interval.half_width
        m = 0.0 if self.m is None else (self.m - centre) / scale
        b = NARROWEST**2 if self.b is None else self.b / scale**2
        return m, self.kappa, self.a, b

    def request(self, budget_share: float = 1.0) -> SecureSumRequest:
        centre, scale = [self.interval.centre], [self.interval.half_width / FREE_BOUND]
        parameters = {"columns": [self.column], "centre": centre, "scale": scale, "bound": [FREE_BOUND]}
        return SecureSumRequest("moments", parameters, budget_share, rows_max=1)

    def release(self, aggregate: NoisyAggregate) -> Release:
        """Σ z and Σ z²."""
        if aggregate.contributors < VALUES_MIN:
            raise DataError(f"gaussian: {aggregate.contributors} clients contributed; expected at least {VALUES_MIN}")
        power = np.array([FREE_BOUND, FREE_BOUND**2])
        return Release(aggregate.value / power, aggregate.noise_variance / power**2, aggregate.contributors)

    def exact(self, x: Array) -> Release:
        z = (x - self.interval.centre) / self.interval.half_width
        return Release(np.array([z.sum(), (z**2).sum()]), np.zeros(2), len(x))

    def possible(self, s: Array, n: int) -> Array:
        """Σ z within the bounds; then Σ z² from (Σ z)²/n to n."""
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
        """b' of Σ z and S."""
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
        """Of Student's t with 2a degrees of freedom, and of the Inverse-Gamma."""
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

    def latent(self, release: Release, chains: int, draws: int, rng: np.random.Generator) -> Latent:
        n, value, variance = release.n, release.value, release.noise_variance
        shape = self.prior[2] + n / 2

        def log_density(first: Array, spread: Array) -> Array:
            likely = (n - 3) / 2 * np.log(spread) - shape * np.log(self._rate(first, spread, n))
            squares = spread + first**2 / n
            noise = (first - value[0]) ** 2 / variance[0] + (squares - value[1]) ** 2 / variance[1]
            return np.asarray(likely - noise / 2)

        draws_of = draw_on_grid(log_density, self._box(release), chains * draws, rng)
        first, spread = draws_of[:, 0], draws_of[:, 1]
        return Latent(np.stack([first, spread + first**2 / n], axis=-1).reshape(chains, draws, 2))

    def _box(self, release: Release) -> list[tuple[float, float]]:
        """Where Σ z and S can be, given s̃ and that |z| <= 1."""
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
