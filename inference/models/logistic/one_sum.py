"""Logistic regression from one secure sum of [the unique terms of xxᵀ, xy], for features that are about normal.

    x ~ N(μ, Σ)        P(y = 1 | x) = 1/(1 + exp(-u)),  u = α + xᵀθ,  y in {-1, 1}        standardised columns
    g(u) = E[y | x] = tanh(u/2),  γ_k = E[dᵏg/duᵏ] under u ~ N(α + μᵀθ, θᵀΣθ)

Stein's lemma leaves one-dimensional means alone in the law of one row (constant c, x, y), and nothing is approximated:

    E[c x] = cμ      E[xxᵀ] = Σ + μμᵀ      E[c y] = cγ0      E[xy] = μγ0 + Σθγ1                              (1)

There are as many numbers in (1) as parameters φ = (α, θ, μ, Σ), so the sums identify them all. The sum over n rows plus
the privacy noise of known variances V is normal:

    released ~ N(n m(φ), n C(φ) + diag(V))                                                                  (2)

**Posterior.** `inference.laplace` finds the mode of (2) times a normal prior of φ, Σ by its Cholesky factor with
logarithms on the diagonal. The curvature there, JᵀK⁻¹J + P, is the posterior's precision (Laplace's approximation),
J = n ∂m/∂φ and K the covariance in (2). `scripts/check_logistic.py` measures how often its intervals hold.

**Clipping.** Clients bring their rows into a ball, for noise is proportional to its radius squared. Auxiliary rows that
the trainer draws from the model say what that takes off m(φ), and what C(φ) is. So clipping costs no bias where the
model holds, and the ball may be narrow.

**Features that are not normal** bias (1). Without noise, at θ = (1, -0.7, 0.3), the largest slope comes out as 1.07 of
uniform features, 0.90 of Student's t with 5 degrees, 0.84 of exponential ones, and 0.72 of binary ones that are 1 in a
tenth of the rows.

**Rows with a missing value** count as zero. Their share is a parameter, of which the constant's noisy square speaks
(`linear.rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import log2, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from inference import laplace
from inference.columns import Array, Standardisation, into_ball
from inference.errors import DataError
from inference.mcmc.sums import NoisySums
from inference.models.coefficients import LOGIT, Coefficients
from inference.models.linear.aggregate_stats import (
    STATISTIC,
    checked,
    constant_of,
    parameters_of,
    require_plain_rows,
    statistics_of,
    vector_of,
)

METHOD = "one sum of normal features, Laplace's approximation"
UNCHECKED = (
    "the coefficients suppose normal features, and an aggregate alone does not show whether they are normal; fit over "
    "rounds, whose first one shows it"
)
INSIDE = 0.95  # of normal rows are inside the ball
WEIGHTS = (1, 2, 1)  # of xxᵀ and xy: xy has few terms, is smaller, and decides most
MEAN_SD, ROOT_SD = 0.5, 0.5  # priors of μ and of Σ's Cholesky factor, about what the first round found
AUXILIARY, NUMBERS_MAX = 2**14, 4_000_000  # rows that the trainer draws, by Sobol's points, and numbers in them
TINY = 1e-12  # of a variance: a public constant has none
NODES = np.linspace(-9.0, 9.0, 601)  # the trapezoidal rule: exact to rounding for standard deviations up to 20
NODE_WEIGHTS = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()

TERMS_MAX = 600  # numbers in the sum, whose covariance is inverted
NOISE_MAX = 0.5  # of the noise in the features' covariance matrix, as its largest eigenvalue


def sum_request(columns: Standardisation, share: float) -> SecureSumRequest:
    """The round: products of standardised features in a ball, with a constant, and of these with the label."""
    d = len(columns.columns) - 1
    radius = radius_of(d)
    parameters = columns.parameters() | {"bound": [radius] * d + [1.0], "radius": radius, "intercept": True}
    return SecureSumRequest(STATISTIC, parameters | {"weights": list(WEIGHTS)}, budget_share=share)


def radius_of(d: int) -> float:
    """Of the ball that holds `INSIDE` of normal rows."""
    from scipy.stats import chi2  # slow to import

    return sqrt(float(chi2.ppf(INSIDE, d)))


def too_noisy(d: int, noise_per_sensitivity: float, n: int) -> list[str]:
    """Why the sum of n rows of d features would not do, whatever these are like; a sentence each.

    Args:
        noise_per_sensitivity: standard deviation of the noise of the sum for each unit of its L2 sensitivity.
    """
    if (terms := (d + 1) * (d + 4) // 2) > TERMS_MAX:
        return [f"{d} features make a sum of {terms} numbers, more than {TERMS_MAX}"]
    sensitivity = sqrt(2) * (radius_of(d) ** 2 + 2 * WEIGHTS[1])  # about
    noise = 2 * sqrt(d + 1) * sensitivity * noise_per_sensitivity / n
    if noise <= NOISE_MAX:
        return []
    return [f"the noise in the features' covariances would be {noise:.2g} of their variance, above {NOISE_MAX:g}"]


class Found(NamedTuple):
    """What a sum says.

    Attributes:
        mean, cov: of (α, θ), standardised: shapes ``(d + 1,)`` and ``(d + 1, d + 1)``.
        feature_mean, feature_cov: the mode of μ and Σ.
    """

    mean: Array
    cov: Array
    feature_mean: Array
    feature_cov: Array


def one_sum_posterior(aggregate: NoisyAggregate | Sequence[NoisyAggregate], prior_sd: float) -> Found:
    """The posterior given the sum of `sum_request`, or several of different clients.

    Args:
        prior_sd: of α and of each of θ, about 0, in standardised units.

    Raises:
        DataError: what `statistics_of` refuses, rows were scaled as a whole, or there is no constant.
    """
    listed = checked(aggregate)
    parameters = parameters_of(listed[0])
    require_plain_rows(parameters, "logistic regression from one sum")
    if not parameters["intercept"]:
        raise DataError("the sum has no constant; ask for the statistic 'regression' with intercept=True")
    if parameters["target_square"]:
        raise DataError("the sum holds the target's squares, which say nothing about a label; leave them out")
    sums = vector_of(statistics_of(listed), listed)
    sums = replace(sums, value=sums.value / sums.n, noise_variance=sums.noise_variance / sums.n**2)  # of a row
    law = _Law(sums)
    start, precision = law.start(), law.prior_precision(prior_sd)
    found = laplace.posterior(
        laplace.Law(law.mean, law.jacobian, law.spread), sums.value, np.zeros_like(start), precision, start
    )
    parts, own = law.parts(found.theta), slice(1, 2 + law.d)
    return Found(found.theta[own], found.cov[own, own], parts.mu, parts.root @ parts.root.T)


def fit_of(aggregates: NoisyAggregate | Sequence[NoisyAggregate], prior_sd: float) -> Coefficients:
    """The regression from sums alone; ``prior_sd`` in units of their scale. Raises `DataError` as `one_sum_posterior`.

    The ball is that in which clients summed; the log odds are linear beyond it.
    """
    listed = checked(aggregates)
    columns = Standardisation.of(parameters_of(listed[0]))
    bound = np.r_[np.full(len(columns.bound) - 1, np.inf), columns.bound[-1]]
    found = regression_of(listed, replace(columns, bound=bound, radius=np.inf), prior_sd)
    return replace(found, warnings=(UNCHECKED,), again=partial(fit_of, listed))


def regression_of(sums: Sequence[NoisyAggregate], columns: Standardisation, prior_sd: float) -> Coefficients:
    """The regression from one sum over these clients, whose columns are so standardised."""
    found = one_sum_posterior(sums, prior_sd)
    return Coefficients(
        columns=columns,
        link=LOGIT,
        mean=found.mean,
        cov=found.cov,
        prior_sd=prior_sd,
        method=METHOD,
        contributors=sum(one.contributors for one in sums),
        private=all(one.private for one in sums),
        aggregates=tuple(sums),
    )


class _Parts(NamedTuple):
    """φ: the share of complete rows, α, θ, μ, and the Cholesky factor of Σ."""

    share: float
    alpha: float
    theta: Array
    mu: Array
    root: Array


class _Law:
    """The law of one row's statistics: m(φ), its Jacobian, and by auxiliary rows C(φ) and what clipping takes off."""

    def __init__(self, sums: NoisySums) -> None:
        from scipy.stats.qmc import Sobol  # slow to import

        columns = Standardisation.of(sums.parameters)
        self.d, self._n, self._noise = len(columns.bound) - 1, sums.n, sums.noise_variance
        self._constant, self._bound, self._radius = constant_of(sums.parameters), columns.bound[:-1], columns.radius
        self._lower, self._pairs = np.tril_indices(self.d), np.triu_indices(self.d + 1)
        size = len(self._pairs[0]) + self.d + 1
        power = int(log2(min(AUXILIARY, NUMBERS_MAX // size)))
        self._z = ndtri(Sobol(self.d, rng=np.random.default_rng(0)).random_base2(power).clip(TINY, 1 - TINY))

    def start(self) -> Array:
        """All rows complete, the columns as the first round found them, and nothing learned."""
        return np.asarray(np.r_[1.0, np.zeros(1 + 2 * self.d + len(self._lower[0]))])

    def prior_precision(self, prior_sd: float) -> Array:
        """Of each of φ, about 0: shape ``(p,)``."""
        sds = [prior_sd] * (self.d + 1) + [MEAN_SD] * self.d + [ROOT_SD] * len(self._lower[0])
        return np.asarray(np.r_[0.0, np.array(sds) ** -2])

    def parts(self, phi: Array) -> _Parts:
        """φ by name."""
        d, root = self.d, np.zeros((self.d, self.d))
        root[self._lower] = phi[2 + 2 * d :]
        root[np.diag_indices(d)] = np.exp(np.diag(root))
        return _Parts(phi[0], phi[1], phi[2 : 2 + d], phi[2 + d : 2 + 2 * d], root)

    def mean(self, phi: Array) -> Array:
        """m of rows that nobody clips, in the order of the statistic: equation (1)."""
        share, alpha, theta, mu, root = self.parts(phi)
        cov = root @ root.T
        a = cov @ theta
        g0, g1 = sigmoid_means(float(alpha + mu @ theta), float(theta @ a))
        second = np.pad(cov, ((1, 0), (1, 0)))
        xx, xy = expected_products(np.r_[self._constant, mu], second, np.r_[0.0, a], g0, g1)
        return np.asarray(share * np.r_[xx[self._pairs], xy])

    def jacobian(self, phi: Array) -> Array:
        """∂m/∂φ, by central differences: shape ``(D, p)``."""
        steps = 1e-5 * np.eye(len(phi))
        return np.stack([(self.mean(phi + one) - self.mean(phi - one)) / 2e-5 for one in steps], axis=1)

    def spread(self, phi: Array) -> tuple[Array, Array]:
        """What clipping adds to m, and the covariance of the sum for each row: shapes ``(D,)`` and ``(D, D)``.

        Both are of the same auxiliary rows, so that the first one's Monte Carlo error is a part of a small number.
        """
        share, alpha, theta, mu, root = self.parts(phi)
        x = mu + self._z @ root.T
        seen = into_ball(np.clip(x, -self._bound, self._bound), self._radius)
        g = np.tanh((alpha + x @ theta) / 2)[:, None]
        whole, seen = (np.insert(one, 0, self._constant, axis=1) for one in (x, seen))
        of_whole, of_seen = (
            np.concatenate([one[:, self._pairs[0]] * one[:, self._pairs[1]], one * g], axis=1) for one in (whole, seen)
        )
        cov, label = np.cov(of_seen, rowvar=False), slice(-self.d - 1, None)
        cov[label, label] += (seen * (1 - g**2)).T @ seen / len(x)
        noise = np.diag(self._noise + TINY)
        return share * (of_seen - of_whole).mean(axis=0), share * cov / self._n + noise


def expected_products(mu: Any, V: Any, a: Any, g0: Any, g1: Any) -> tuple[Any, Any]:
    """E[xxᵀ] and E[xy] of equation (1), x ~ N(μ, V) with the constant first and a = Vθ: NumPy's arrays or JAX's."""
    return V + mu[:, None] * mu, mu * g0 + a * g1


def sigmoid_means(mean: float, variance: float) -> tuple[float, float]:
    """γ0 and γ1: E[g] and E[g'] of g(u) = tanh(u/2) under u ~ N(mean, variance)."""
    g = np.tanh((mean + sqrt(variance) * NODES) / 2)
    return float(NODE_WEIGHTS @ g), float(NODE_WEIGHTS @ (1 - g**2)) / 2
