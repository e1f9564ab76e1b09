"""Logistic regression from one secure sum of [the unique terms of xxᵀ, xy], for approximately normal features.

    x ~ N(μ, Σ)        P(y = 1 | x) = 1/(1 + exp(-u)),  u = α + xᵀθ,  y in {-1, 1}        standardised columns
    g(u) = E[y | x] = tanh(u/2),  γ_k = E[dᵏg/duᵏ] under u ~ N(α + μᵀθ, θᵀΣθ)

By Stein's lemma the means of one row (constant c, x, y) need only one-dimensional means, so nothing is approximated:

    E[c x] = cμ      E[xxᵀ] = Σ + μμᵀ      E[c y] = cγ0      E[xy] = μγ0 + Σθγ1                              (1)

(1) has as many numbers as there are parameters φ = (α, θ, μ, Σ), so the sums identify them all. The sum over n rows
plus the privacy noise of known variances V is normal:

    released ~ N(n m(φ), n C(φ) + diag(V))                                                                  (2)

**Posterior.** `inference.laplace` finds the mode of (2) times a normal prior of φ; Σ is represented by its Cholesky
factor with logarithms on the diagonal. The curvature there, JᵀK⁻¹J + P, is the posterior's precision (Laplace's
approximation), with J = n ∂m/∂φ and K the covariance in (2). `scripts/check_logistic.py` measures its coverage.

**Clipping.** Clients bring their rows into a ball, because noise is proportional to its radius squared. From auxiliary
rows, drawn from the model, the trainer computes how clipping changes m(φ), and C(φ). So clipping causes no bias if the
model holds, and the ball may be narrow.

**Features that are not normal** bias (1). Without noise, at θ = (1, -0.7, 0.3), the estimate of the largest slope is
1.07 for uniform features, 0.90 for Student's t with 5 degrees, 0.84 for exponential features, and 0.72 for binary
features that are 1 in a tenth of the rows.

**Rows with a missing value** count as zero. The share of complete rows is a parameter; the constant's noisy square
informs about it (`linear.rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import log2, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from inference import laplace
from inference.columns import Standardisation, into_ball
from inference.draws import all_private
from inference.errors import DataError
from inference.jobs.settings import require_positive
from inference.mcmc.sums import Aggregates, NoisySums
from inference.models.coefficients import LOGIT, Coefficients
from inference.models.linear.aggregate_stats import (
    STATISTIC,
    checked,
    constant_of,
    parameters_of,
    require_plain_rows,
    statistics_of,
    summed,
    vector_of,
)
from inference.models.score_regression import TINY, spread_points
from inference.models.shrinkage import shrinkable
from inference.problem import Array

METHOD = "one sum of normal features, Laplace's approximation"
UNCHECKED = (
    "the coefficients assume normal features, and an aggregate alone does not show whether they are normal; fit over "
    "rounds: the first round shows it"
)
INSIDE = 0.95  # share of normal rows inside the ball
WEIGHTS = (1, 2, 1)  # of xxᵀ, xy and y²: xy has few terms, is smaller, and matters most
MEAN_SD, ROOT_SD = 0.5, 0.5  # priors of μ and of Σ's Cholesky factor, about the first round's standardisation
AUXILIARY, NUMBERS_MAX = 2**14, 4_000_000  # the most auxiliary rows (Sobol points), and numbers in them
NODES = np.linspace(-9.0, 9.0, 601)  # the trapezoidal rule: exact to rounding for standard deviations up to 20
NODE_WEIGHTS = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()

TERMS_MAX = 600  # the most numbers in the sum; its covariance is inverted
NOISE_MAX = 0.5  # largest eigenvalue of the noise in the features' covariance matrix


def sum_request(columns: Standardisation, share: float) -> RoundRequest:
    """Return the request: products of standardised features in a ball, with a constant, and products with the label."""
    d = len(columns.columns) - 1
    radius = radius_of(d)
    parameters = columns.parameters() | {"bound": [radius] * d + [1.0], "radius": radius, "intercept": True}
    return RoundRequest(STATISTIC, parameters | {"weights": list(WEIGHTS)}, budget_share=share)


def radius_of(d: int) -> float:
    """Return the radius of the ball that contains a share `INSIDE` of normal rows."""
    from scipy.stats import chi2  # slow to import

    return sqrt(float(chi2.ppf(INSIDE, d)))


def too_noisy(d: int, noise_per_sensitivity: float, n: int) -> list[str]:
    """Return the reasons, as text, why the sum of n rows of d features would be too long or too noisy.

    Args:
        noise_per_sensitivity: standard deviation of the sum's noise for each unit of its L2 sensitivity.
    """
    if (terms := (d + 1) * (d + 4) // 2) > TERMS_MAX:
        return [f"{d} features make a sum of {terms} numbers, more than {TERMS_MAX}"]
    sensitivity = sqrt(2) * (radius_of(d) ** 2 + 2 * WEIGHTS[1])  # about
    noise = 2 * sqrt(d + 1) * sensitivity * noise_per_sensitivity / n
    if noise <= NOISE_MAX:
        return []
    return [f"the noise in the features' covariances would be {noise:.2g} of their variance, above {NOISE_MAX:g}"]


class OneSumLaw(NamedTuple):
    """The posterior given one sum.

    Attributes:
        mean, cov: of (α, θ), standardised: shapes ``(d + 1,)`` and ``(d + 1, d + 1)``.
        feature_mean, feature_cov: the mode of μ and Σ.
    """

    mean: Array
    cov: Array
    feature_mean: Array
    feature_cov: Array


def one_sum_posterior(aggregate: Aggregates, prior_sd: float) -> OneSumLaw:
    """Return the posterior given the sum of `sum_request`, or several over different clients.

    Args:
        prior_sd: of α and of each coordinate of θ, about 0, in standardised units.

    Raises:
        DataError: `statistics_of` refuses the sums, rows were scaled as a whole, there is no constant, or the sums
            contain the target's squares.
    """
    listed = checked(aggregate)
    parameters = parameters_of(listed[0])
    require_plain_rows(parameters, "logistic regression from one sum")
    if not parameters["intercept"]:
        raise DataError("the sum has no constant; ask for the statistic 'regression' with intercept=True")
    if parameters["target_square"]:
        raise DataError("the sum has the target's squares, which do not inform about a label; leave out target_square")
    sums = vector_of(statistics_of(listed), listed)
    sums = replace(sums, value=sums.value / sums.n, noise_variance=sums.noise_variance / sums.n**2)  # per row
    law = _Law(sums)
    start, precision = law.start(), law.prior_precision(prior_sd)
    mode = laplace.posterior(
        laplace.Law(law.mean, law.jacobian, law.spread), sums.value, np.zeros_like(start), precision, start
    )
    parts, own = law.parts(mode.theta), slice(1, 2 + law.d)
    return OneSumLaw(mode.theta[own], mode.cov[own, own], parts.mu, parts.root @ parts.root.T)


def regression_of_sum(aggregates: Aggregates, prior_sd: float) -> Coefficients:
    """Return the regression from sums alone; ``prior_sd`` in units of their scale. Raises as `one_sum_posterior`.

    The clients' ball limits only their sums: the log odds are linear beyond it.
    """
    listed = checked(aggregates)
    columns = Standardisation.of(parameters_of(listed[0]))
    bound = np.r_[np.full(len(columns.bound) - 1, np.inf), columns.bound[-1]]
    regression = one_sum_regression(listed, replace(columns, bound=bound, radius=np.inf), prior_sd)
    return replace(
        regression,
        warnings=(*about_rows(listed), UNCHECKED),
        refitter=shrinkable(partial(regression_of_sum, listed, prior_sd=prior_sd)),
    )


def about_rows(sums: Sequence[NoisyAggregate]) -> tuple[str, ...]:
    """Warn if clearly fewer rows are complete than contributed."""
    return summed(sums).about_rows(constant_of(parameters_of(sums[0])))


def one_sum_regression(sums: Sequence[NoisyAggregate], columns: Standardisation, prior_sd: float) -> Coefficients:
    """Return the regression from sums of columns standardised in this way."""
    posterior = one_sum_posterior(sums, prior_sd)
    return Coefficients(
        columns=columns,
        link=LOGIT,
        mean=posterior.mean,
        cov=posterior.cov,
        prior_sd=prior_sd,
        method=METHOD,
        contributors=sum(aggregate.contributors for aggregate in sums),
        private=all_private(sums),
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
    """The law of one row's statistics: m(φ), its Jacobian and, from auxiliary rows, C(φ) and the effect of clipping."""

    def __init__(self, sums: NoisySums) -> None:
        columns = Standardisation.of(sums.parameters)
        self.d, self._n, self._noise = len(columns.bound) - 1, sums.n, sums.noise_variance
        self._constant, self._bound, self._radius = constant_of(sums.parameters), columns.bound[:-1], columns.radius
        self._lower, self._pairs = np.tril_indices(self.d), np.triu_indices(self.d + 1)
        size = len(self._pairs[0]) + self.d + 1
        power = int(log2(min(AUXILIARY, NUMBERS_MAX // size)))
        self._z = ndtri(spread_points(self.d, power).clip(TINY, 1 - TINY))

    def start(self) -> Array:
        """Return φ of complete rows whose columns match the first round's standardisation, with slopes of 0."""
        return np.asarray(np.r_[1.0, np.zeros(1 + 2 * self.d + len(self._lower[0]))])

    def prior_precision(self, prior_sd: float) -> Array:
        """Return the prior precision of each coordinate of φ, about 0: shape ``(p,)``."""
        require_positive("prior_sd", prior_sd)
        sds = [prior_sd] * (self.d + 1) + [MEAN_SD] * self.d + [ROOT_SD] * len(self._lower[0])
        return np.asarray(np.r_[0.0, np.array(sds) ** -2])

    def parts(self, phi: Array) -> _Parts:
        """Split φ into its parts."""
        d, root = self.d, np.zeros((self.d, self.d))
        root[self._lower] = phi[2 + 2 * d :]
        root[np.diag_indices(d)] = np.exp(np.diag(root))
        return _Parts(phi[0], phi[1], phi[2 : 2 + d], phi[2 + d : 2 + 2 * d], root)

    def mean(self, phi: Array) -> Array:
        """Return m of unclipped rows, in the statistic's order: equation (1)."""
        share, alpha, theta, mu, root = self.parts(phi)
        cov = root @ root.T
        a = cov @ theta
        g = np.tanh((float(alpha + mu @ theta) + sqrt(float(theta @ a)) * NODES) / 2)
        g0, g1 = float(NODE_WEIGHTS @ g), float(NODE_WEIGHTS @ (1 - g**2)) / 2
        second = np.pad(cov, ((1, 0), (1, 0)))
        xx, xy = expected_products(np.r_[self._constant, mu], second, np.r_[0.0, a], g0, g1)
        return np.asarray(share * np.r_[xx[self._pairs], xy])

    def jacobian(self, phi: Array) -> Array:
        """Return ∂m/∂φ by central differences: shape ``(D, p)``."""
        steps = 1e-5 * np.eye(len(phi))
        return np.stack([(self.mean(phi + one) - self.mean(phi - one)) / 2e-5 for one in steps], axis=1)

    def spread(self, phi: Array) -> tuple[Array, Array]:
        """Return the change of m by clipping, and the sum's covariance per row: shapes ``(D,)`` and ``(D, D)``.

        Clipped and unclipped means use the same auxiliary rows, so the change has only a small Monte Carlo error.
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
    """Return E[xxᵀ] and E[xy] of equation (1); x ~ N(μ, V), the constant first, a = Vθ; NumPy or JAX arrays."""
    return V + mu[:, None] * mu, mu * g0 + a * g1
