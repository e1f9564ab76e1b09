"""Categorical data with a Dirichlet prior: the share of each category.

    x ~ Categorical(θ),  θ ~ Dirichlet(α)    s_k = number of values k, Σ_k s_k = n
    θ | s ~ Dirichlet(α + s)                 p(s) ∝ Π_k Γ(α_k + s_k) / s_k!      (Dirichlet-multinomial)

**The Gibbs sampler.** With noise, p(s | s̃) ∝ p(s) Π_k N(s̃_k; s_k, variance) over the counts that add up to n. Given the
sum m of two of them, one is drawn from its conditional over 0..m:

    ln p(s_j | m) = f_j(s_j) + f_k(m - s_j),   f_k(t) = lnΓ(α_k + t) - lnΓ(t + 1) - (t - s̃_k)²/(2 variance)

Clients without a value are one more category, whose f is that of the number of missing values (`family`), times the
factor n!/Γ(Kα + n) of p(s). Each sweep pairs the categories at random and updates all pairs at once. The pairs are
disjoint, so they are independent given their sums. If 0..m has too many numbers, only every h-th is a candidate, s_j
among them. That leaves the conditional invariant. The stride h is one of two neighbouring numbers at random, so a chain
does not keep its remainder for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, gammaln

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from inference.errors import DataError
from inference.jobs.examples import COUNT
from inference.mcmc.sums import NoisySums
from inference.models.conjugate.family import Family, Latent, Released, log_missing, positive, whole_bounds
from inference.problem import Array
from inference.simplex import nearest_on_simplex

CATEGORIES_MAX = 2**16  # the most bins of a histogram
WORTH = 5.0  # the most values that the default prior is worth
WARMUP = 200  # sweeps; each random pairing halves the deviation of the start
POINTS = 128  # the most candidates of a conditional
MARGIN = 8.0  # half-width of a conditional's range, in standard deviations of the noise


@dataclass(frozen=True)
class Categorical(Family):
    """Categories numbered from the lower to the upper bound; values outside count in the first or the last.

    Attributes:
        alpha: of the prior, the same for every category, above 0; None: 1, or less of many categories, so that the
            prior is worth at most `WORTH` values, however many categories nobody is in.
    """

    name: ClassVar[str] = "categorical"
    learns: ClassVar[str] = "share of each category of"
    target: ClassVar[str] = COUNT
    clean: ClassVar[str] = "a column of categories"
    of_codes: ClassVar[bool] = True
    averages: ClassVar[bool] = False
    alpha: float | None = None

    def __post_init__(self) -> None:
        positive(alpha=self.alpha)
        whole_bounds(self.name, self.column, self.interval, "give the first and the last category")
        if self.categories > CATEGORIES_MAX:
            found = f"column {self.column!r} has {self.categories} categories"
            raise DataError(f"categorical: {found}; expected at most {CATEGORIES_MAX}: merge some")

    @property
    def weight(self) -> float:
        """α, or its default."""
        return min(1.0, WORTH / self.categories) if self.alpha is None else self.alpha

    @property
    def categories(self) -> int:
        """K."""
        return int(self.interval.upper - self.interval.lower) + 1

    def labels(self) -> dict[str, tuple[str, ...]]:
        return {"theta": tuple(self.interval.text(self.interval.lower + k) for k in range(self.categories))}

    def request(self) -> RoundRequest:
        edges = [self.interval.lower - 0.5 + k for k in range(self.categories + 1)]
        parameters = {"columns": [self.column], "edges": edges, "count_weight": 1.0}
        return RoundRequest("histogram", parameters, rows_max=1)

    def release(self, aggregate: NoisyAggregate) -> Released:
        variance, k = aggregate.noise_variance, self.categories
        *_, rows = aggregate.value
        noise = np.full(k, variance)
        return Released(aggregate.value[:k], np.zeros(k), noise, aggregate.contributors, float(rows), variance)

    def exact(self, x: Array) -> NoisySums:
        places = np.rint(x - self.interval.lower).astype(int)
        counts = np.bincount(places, minlength=self.categories).astype(float)
        return NoisySums(counts, np.zeros_like(counts), len(x))

    def possible(self, s: Array, n: Any) -> Array:
        """Return the nearest non-negative counts that add up to n, not rounded."""
        return nearest_on_simplex(s, n)

    def update(self, s: Array, n: Any) -> Array:
        return self.weight + s

    def moments(self, eta: Array) -> dict[str, tuple[Array, Array]]:
        total = eta.sum(axis=-1, keepdims=True)
        mean = eta / total
        return {"theta": (mean, mean * (1 - mean) / (total + 1))}

    def quantiles(self, eta: Array, q: Array) -> dict[str, Array]:
        """Return quantiles of each share's Beta distribution."""
        return {"theta": np.asarray(betaincinv(eta, eta.sum() - eta, q[..., None]))}

    def prior_quantiles(self, q: Array, n: int) -> dict[str, Array]:
        """Return exact quantiles of the prior: all counts are possible, so the bounds add nothing."""
        return self.quantiles(np.full(self.categories, self.weight), q)

    def draw(self, eta: Array, rng: np.random.Generator) -> dict[str, Array]:
        gamma = rng.standard_gamma(np.maximum(eta, 1e-3))  # smaller η make a share underflow anyway
        return {"theta": gamma / gamma.sum(axis=-1, keepdims=True)}

    def latent(self, release: Released, chains: int, draws: int, rng: np.random.Generator) -> tuple[Latent, Latent]:
        """Run the Gibbs sampler; half of the chains start near the nearest possible counts, half at even shares."""
        rows, n, k = release.nearest_rows(self.least), release.n, self.categories
        nearest = self.possible(release.given(rows).value, rows)
        target = Target(release.value, float(release.noise_variance[0]), self.weight)
        if release.rows_variance > 0:
            nearest = np.append(nearest, n - rows)
            target = replace(target, value=np.append(release.value, n - release.rows), clients=n)
        even = np.append(np.full(k, rows / k), np.full(len(nearest) - k, n - rows))
        starts = [
            rng.multinomial(int(n if len(nearest) > k else rows), part / part.sum(), count)
            for part, count in ((nearest, chains - chains // 2), (even, chains // 2))
        ]
        sums = gibbs(np.concatenate(starts), target, WARMUP + draws, rng)[..., :k]
        warmup, drawn = (Latent(part, part.sum(axis=-1)) for part in (sums[:, :WARMUP], sums[:, WARMUP:]))
        return warmup, drawn


@dataclass(frozen=True, eq=False)
class Target:
    """The law of the counts given s̃. A client without a value is in a further category, the last.

    Attributes:
        value: s̃, then the noisy number of missing values if there may be any; shape ``(K,)`` or ``(K + 1,)``, also
            with an axis of chains before it.
        variance: of the noise in each coordinate, above 0. alpha: of the prior.
        clients: their number, if values may be missing.
    """

    value: Array
    variance: float
    alpha: float
    clients: int | None = None

    def log_p(self, counts: Array, categories: Array, observed: Array) -> Array:
        """Return f of counts of categories, shapes that broadcast."""
        log_p = gammaln(self.alpha + counts) - gammaln(counts + 1)
        if self.clients is not None:
            k, rest = self.value.shape[-1] - 1, self.clients - counts
            own = log_missing(counts) + gammaln(rest + 1) - gammaln(k * self.alpha + rest)
            log_p = np.where(categories == k, own, log_p)
        return np.asarray(log_p - (counts - observed) ** 2 / (2 * self.variance))


def gibbs(start: NDArray[np.int64], target: Target, sweeps: int, rng: np.random.Generator) -> Array:
    """Return the counts after each sweep, shape ``(chains, sweeps, categories)``.

    Args:
        start: counts, shape ``(chains, categories)``; their sums do not change.
    """
    state, chains = start.astype(np.float64), np.arange(len(start))[:, None]
    value = np.broadcast_to(target.value, state.shape)
    out = np.empty((len(start), sweeps, state.shape[1]))
    half = state.shape[1] // 2
    for sweep in range(sweeps):
        order = rng.permuted(np.broadcast_to(np.arange(state.shape[1]), state.shape), axis=1)
        j, k = order[:, :half], order[:, half : 2 * half]
        first, second = state[chains, j], state[chains, k]
        drawn = _pair((first, j, value[chains, j]), (second, k, value[chains, k]), target, rng)
        state[chains, j], state[chains, k] = drawn, first + second - drawn
        out[:, sweep] = state
    return out


def _pair(
    one: tuple[Array, Array, Array], other: tuple[Array, Array, Array], target: Target, rng: np.random.Generator
) -> Array:
    """Draw the first of each pair of counts anew, given their sum m. Args: one, other: count, category and s̃."""
    (first, j, a), (second, k, b) = one, other
    m = first + second
    margin = MARGIN * np.sqrt(target.variance / 2)
    middle = np.clip((m + a - b) / 2, 0.0, m)
    low, high = np.maximum(0.0, middle - margin), np.minimum(m, middle + margin)
    stride = np.maximum(1.0, np.ceil((high - low) / (POINTS - 2)))
    stride += np.where(stride > 1, rng.integers(2, size=m.shape), 0)
    least = first - np.floor((first - np.ceil(low)) / stride) * stride  # the lowest from `low` on that leads to `first`
    t = least[..., None] + stride[..., None] * np.arange(POINTS)
    rest = m[..., None] - t
    inside = (t >= 0) & (rest >= 0)
    t, rest = np.where(inside, t, 0.0), np.where(inside, rest, 0.0)
    log_p = target.log_p(t, j[..., None], a[..., None]) + target.log_p(rest, k[..., None], b[..., None])
    log_p = np.where(inside, log_p, -np.inf)
    cumulative = np.cumsum(np.exp(log_p - log_p.max(axis=-1, keepdims=True)), axis=-1)
    chosen = (cumulative < rng.random(m.shape)[..., None] * cumulative[..., -1:]).sum(axis=-1)
    return np.asarray(np.take_along_axis(t, chosen[..., None], axis=-1)[..., 0])
