"""Categorical data with a Dirichlet prior: the share of each category.

    x ~ Categorical(θ),  θ ~ Dirichlet(α)    s_k = number of values k, Σ_k s_k = n
    θ | s ~ Dirichlet(α + s)                 p(s) ∝ Π_k Γ(α_k + s_k) / s_k!      (Dirichlet-multinomial)

**The Gibbs sampler.** With noise, p(s | s̃) ∝ p(s) Π_k N(s̃_k; s_k, variance) over the counts that add up to n. Given the
sum m of two of them, one is drawn from its conditional over 0..m:

    ln p(s_j | m) = f_j(s_j) + f_k(m - s_j),   f_k(t) = lnΓ(α_k + t) - lnΓ(t + 1) - (t - s̃_k)²/(2 variance)

Each sweep pairs the categories at random and updates all pairs at once. The pairs are disjoint, so they are independent
given their sums. If 0..m has too many numbers, only every h-th is a candidate, s_j among them. That leaves the
conditional invariant. The stride h is one of two neighbouring numbers at random, so a chain does not keep its remainder
for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, gammaln

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference.errors import DataError
from inference.mcmc.sums import NoisySums
from inference.models.conjugate.family import Family, positive, whole_bounds
from inference.problem import Array
from inference.simplex import nearest_on_simplex

CATEGORIES_MAX = 2**16  # the most bins of a histogram
WARMUP = 200  # sweeps; each random pairing halves the deviation of the start
POINTS = 128  # the most candidates of a conditional
MARGIN = 8.0  # half-width of a conditional's range, in standard deviations of the noise


@dataclass(frozen=True)
class Categorical(Family):
    """Categories numbered from the lower to the upper bound; values outside count in the first or the last.

    Attributes:
        alpha: of the prior, the same for every category, above 0.
    """

    name: ClassVar[str] = "categorical"
    learns: ClassVar[str] = "share of each category of"
    alpha: float = 1.0

    def __post_init__(self) -> None:
        positive(self.name, alpha=self.alpha)
        whole_bounds(self.name, self.column, self.interval, "give the first and the last category")
        if self.categories > CATEGORIES_MAX:
            found = f"column {self.column!r} has {self.categories} categories"
            raise DataError(f"categorical: {found}; expected at most {CATEGORIES_MAX}: merge some")

    @property
    def categories(self) -> int:
        """K."""
        return int(self.interval.upper - self.interval.lower) + 1

    def labels(self) -> dict[str, tuple[str, ...]]:
        return {"theta": tuple(str(int(self.interval.lower) + k) for k in range(self.categories))}

    def request(self) -> SecureSumRequest:
        edges = [self.interval.lower - 0.5 + k for k in range(self.categories + 1)]
        return SecureSumRequest("histogram", {"columns": [self.column], "edges": edges}, rows_max=1)

    def release(self, aggregate: NoisyAggregate) -> NoisySums:
        variance = np.full(self.categories, aggregate.noise_variance)
        return NoisySums(aggregate.value, variance, aggregate.contributors)

    def exact(self, x: Array) -> NoisySums:
        places = np.rint(x - self.interval.lower).astype(int)
        counts = np.bincount(places, minlength=self.categories).astype(float)
        return NoisySums(counts, np.zeros_like(counts), len(x))

    def possible(self, s: Array, n: int) -> Array:
        """Return the nearest non-negative counts that add up to n, not rounded."""
        return nearest_on_simplex(s, n)

    def update(self, s: Array, n: int) -> Array:
        return self.alpha + s

    def moments(self, eta: Array) -> dict[str, tuple[Array, Array]]:
        total = eta.sum(axis=-1, keepdims=True)
        mean = eta / total
        return {"theta": (mean, mean * (1 - mean) / (total + 1))}

    def quantiles(self, eta: Array, q: Array) -> dict[str, Array]:
        """Return quantiles of each share's Beta distribution."""
        return {"theta": np.asarray(betaincinv(eta, eta.sum() - eta, q[..., None]))}

    def prior_quantiles(self, q: Array, n: int) -> dict[str, Array]:
        """Return exact quantiles of the prior: all counts are possible, so the bounds add nothing."""
        return self.quantiles(np.full(self.categories, self.alpha), q)

    def draw(self, eta: Array, rng: np.random.Generator) -> dict[str, Array]:
        gamma = rng.standard_gamma(np.maximum(eta, 1e-3))  # smaller η make a share underflow anyway
        return {"theta": gamma / gamma.sum(axis=-1, keepdims=True)}

    def latent(self, release: NoisySums, chains: int, draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Run the Gibbs sampler; half of the chains start near the nearest possible counts, half at even shares."""
        nearest = self.possible(release.value, release.n)
        shares = nearest / nearest.sum()
        shares /= max(shares.sum(), 1.0)  # `multinomial` refuses sums above 1 by rounding
        near = rng.multinomial(release.n, shares, chains - chains // 2)
        far = rng.multinomial(release.n, np.full(self.categories, 1 / self.categories), chains // 2)
        start = np.concatenate([near, far])
        sums = gibbs(start, release.value, float(release.noise_variance[0]), self.alpha, WARMUP + draws, rng)
        return sums[:, :WARMUP], sums[:, WARMUP:]


def gibbs(
    start: NDArray[np.int64], value: Array, variance: float, alpha: float, sweeps: int, rng: np.random.Generator
) -> Array:
    """Return the counts after each sweep, shape ``(chains, sweeps, K)``.

    Args:
        start: counts, shape ``(chains, K)``; their sums do not change. value: s̃, shape ``(K,)`` or ``(chains, K)``.
        variance: of the noise in each coordinate, above 0. alpha: of the prior.
    """
    state, chains = start.astype(np.float64), np.arange(len(start))[:, None]
    value = np.broadcast_to(value, state.shape)
    out = np.empty((len(start), sweeps, state.shape[1]))
    half = state.shape[1] // 2
    for sweep in range(sweeps):
        order = rng.permuted(np.broadcast_to(np.arange(state.shape[1]), state.shape), axis=1)
        j, k = order[:, :half], order[:, half : 2 * half]
        first, second = state[chains, j], state[chains, k]
        drawn = _pair(first, second, value[chains, j], value[chains, k], variance, alpha, rng)
        state[chains, j], state[chains, k] = drawn, first + second - drawn
        out[:, sweep] = state
    return out


def _pair(
    first: Array, second: Array, a: Array, b: Array, variance: float, alpha: float, rng: np.random.Generator
) -> Array:
    """Draw the first of each pair of counts anew, given their sum m and both s̃ (a and b); all of one shape."""
    m = first + second
    margin = MARGIN * np.sqrt(variance / 2)
    middle = np.clip((m + a - b) / 2, 0.0, m)
    low, high = np.maximum(0.0, middle - margin), np.minimum(m, middle + margin)
    stride = np.maximum(1.0, np.ceil((high - low) / (POINTS - 2)))
    stride += np.where(stride > 1, rng.integers(2, size=m.shape), 0)
    least = first - np.floor((first - np.ceil(low)) / stride) * stride  # the lowest from `low` on that leads to `first`
    t = least[..., None] + stride[..., None] * np.arange(POINTS)
    rest = m[..., None] - t
    inside = (t >= 0) & (rest >= 0)
    t, rest = np.where(inside, t, 0.0), np.where(inside, rest, 0.0)
    log_p = gammaln(alpha + t) - gammaln(t + 1) + gammaln(alpha + rest) - gammaln(rest + 1)
    log_p -= ((t - a[..., None]) ** 2 + (rest - b[..., None]) ** 2) / (2 * variance)
    log_p = np.where(inside, log_p, -np.inf)
    cumulative = np.cumsum(np.exp(log_p - log_p.max(axis=-1, keepdims=True)), axis=-1)
    chosen = (cumulative < rng.random(m.shape)[..., None] * cumulative[..., -1:]).sum(axis=-1)
    return np.asarray(np.take_along_axis(t, chosen[..., None], axis=-1)[..., 0])
