"""Poisson, Student-t and logistic regression: the terms that clients send for a row, and targets to simulate rows.

The parameters φ are θ and one more, which comes last: p = d + 2 in all.

x is a row's features with the constant 1 first, u = xᵀθ; θ has the intercept first. For each row clients send, by the
statistic "gradient", a *score* s(φ) and terms of the *information* E[s lᵀ | x], where l is the likelihood's own score.

**Poisson.** Counts y have mean λ = exp(u) and variance λ + κλ². The *dispersion* κ is 0 for Poisson counts, and above 0
if counts vary more (negative binomial: λ times a Gamma variable of mean 1 and variance κ). A round asks at a public
κ_k, the best estimate so far:

    s(θ) = (y - λ)/(1 + κ_k λ) x          mean zero at the true θ whatever κ and κ_k are
    l(θ) = (y - λ)/(1 + κλ) x
    E[s lᵀ | x] = λ/(1 + κ_k λ) x xᵀ

φ = (θ, κ). The divisor keeps rows with large means short. Without it, their residuals would grow with λ, and a clip
would cut most of them, mostly on the upper side. The term r²/(r² + λ), r = y - λ, informs about κ: it is bounded and
grows with κ. It is sent with the score.

**Student-t.** y = u + σ r, where r is Student's t with ν degrees of freedom; φ = (θ, ln σ); w = (ν + 1)/(ν + r²).

    s(φ) = (w r x, w r² - 1)              with respect to (θ/σ, ln σ): free of units
    l(φ) = (w r x/σ, w r² - 1)
    E[s lᵀ | x] = ((ν + 1)/((ν + 3) σ) x xᵀ, 2ν/(ν + 3))          block diagonal (Lange, Little and Taylor 1989);
                  the last is multiplied by the square of the constant in x, so that it has the rows' weights, too

An outlier's influence on θ is at most (ν + 1)/(2√ν) |x|, and falls with its distance. So a score's sensitivity is
bounded without a clip that distorts the likelihood.

**Bernoulli.** y is 0 or 1, p = 1/(1 + exp(-u)); s = l = (y - p) x and E[s lᵀ | x] = p(1 - p) x xᵀ. There is no other
parameter: the last coordinate of φ is a dummy κ that no data inform about and nothing depends on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, gammaincinv, ndtri, stdtrit

from inference.jobs.settings import require_positive
from inference.models.coefficients import IDENTITY, LOG, LOGIT
from inference.problem import Array

POISSON, STUDENT, BERNOULLI = "poisson", "student", "bernoulli"
PREDICTOR_MAX = 30.0  # largest log rate; only a diverging iterate exceeds it
DISPERSION_MIN = 1e-4  # below, simulated counts are Poisson
DEGREES_MAX = 5.0  # of Student-t; beyond, the bound of residuals is far above most of them, so the clip is modelled
LARGE = 100.0  # rate from which quantiles are approximated (Cornish and Fisher)


@dataclass(frozen=True)
class Family(ABC):
    """The interface of a model that is fitted from scores.

    Attributes:
        name: of the family in the statistic "gradient". link: of the mean, as in `Coefficients`.
        disperses: whether the last coordinate of φ is κ; the target then stays in its own units.
        sends_dispersion: whether clients can send κ's term.
        bounded: whether residuals are bounded so tightly that clients shorten rows by their features alone.
        prior_sd: of the slopes, when planning rounds.
    """

    name: ClassVar[str]
    link: ClassVar[str]
    disperses: ClassVar[bool] = True
    sends_dispersion: ClassVar[bool] = False
    prior_sd: ClassVar[float] = 1.0

    @property
    def bounded(self) -> bool:
        return True

    @property
    def parameters(self) -> dict[str, Any]:
        """The family's parameters of the statistic "gradient"."""
        return {"family": self.name, "intercept": True} | ({"by_features": True} if self.bounded else {})

    def score(self, phi: Array, x: Array, y: Array) -> Array:
        """Return s(φ_k) of each row, shape ``(m, p)``; 0 for κ, which has no score of mean zero.

        Args:
            x: shape ``(m, d + 1)``. y: ``(m,)``.
        """
        return np.column_stack([self.likelihood_score(phi, x, y), np.zeros(len(x))])

    def sent(self, phi: Array, x: Array, y: Array, dispersion: float) -> Array:
        """Return the scores that clients send, with κ's term times the weight ``dispersion``: shape ``(m, p)``."""
        return self.score(phi, x, y)

    def score_bound(self, phi: Array, x: Array, lengths: Array) -> Array:
        """Return the largest norm of what a row sends of s(φ) over all targets, ``(m,)``; only if `bounded`.

        Args:
            lengths: of each row's features, with those of curves if these are sent, ``(m,)``.
        """
        raise NotImplementedError

    @abstractmethod
    def likelihood_score(self, phi: Array, x: Array, y: Array) -> Array:
        """Return l(φ) of each row, for the parameters that have one: θ at least."""

    def mean(self, phi: Array, x: Array) -> Array:
        """Return E[y | x], shape ``(m,)``; for two classes P(y > 0). Only if `disperses`."""
        raise NotImplementedError

    def rise(self, phi: Array, x: Array) -> Array:
        """Return the derivative of `mean` by u, shape ``(m,)``. Only if `disperses`."""
        raise NotImplementedError

    def weight(self, phi: Array, x: Array) -> Array:
        """Return a of each row, shape ``(m,)``: s(φ) = a (y - E[y | x]) x. Only if `disperses`."""
        raise NotImplementedError

    @abstractmethod
    def curvature(self, phi: Array, x: Array) -> Array:
        """Return q of each row, shape ``(m,)``; clients send the terms of q x xᵀ."""

    def information(self, phi: Array, curved: Array) -> Array:
        """Return E[s lᵀ] of the parameters that have an l, given the mean of q x xᵀ, ``(d + 1, d + 1)``."""
        return curved

    @abstractmethod
    def targets(self, phi: Array, x: Array, uniform: Array) -> Array:
        """Draw targets for rows from the model, given uniform numbers of shape ``(m, 2)``: shape ``(m,)``."""


@dataclass(frozen=True)
class Poisson(Family):
    """Regression of counts."""

    name: ClassVar[str] = POISSON
    link: ClassVar[str] = LOG
    sends_dispersion: ClassVar[bool] = True

    @property
    def bounded(self) -> bool:
        return False

    def mean(self, phi: Array, x: Array) -> Array:
        return rate(phi, x)

    def rise(self, phi: Array, x: Array) -> Array:
        return rate(phi, x)

    def weight(self, phi: Array, x: Array) -> Array:
        return np.asarray(1 / (1 + max(phi[-1], 0.0) * rate(phi, x)))

    def sent(self, phi: Array, x: Array, y: Array, dispersion: float) -> Array:
        terms, mean = self.score(phi, x, y), rate(phi, x)
        terms[:, -1] = dispersion * (y - mean) ** 2 / ((y - mean) ** 2 + mean)
        return terms

    def likelihood_score(self, phi: Array, x: Array, y: Array) -> Array:
        return np.asarray((self.weight(phi, x) * (y - rate(phi, x)))[:, None] * x)

    def curvature(self, phi: Array, x: Array) -> Array:
        return self.weight(phi, x) * self.rise(phi, x)

    def targets(self, phi: Array, x: Array, uniform: Array) -> Array:
        mean = rate(phi, x)
        if phi[-1] > DISPERSION_MIN:
            mean = mean * phi[-1] * gammaincinv(1 / phi[-1], uniform[:, 1])
        return poisson_quantile(uniform[:, 0], mean)


@dataclass(frozen=True)
class Bernoulli(Family):
    """Regression of two classes; a target above 0 is the upper one."""

    name: ClassVar[str] = BERNOULLI
    link: ClassVar[str] = LOGIT
    prior_sd: ClassVar[float] = 2.0

    def mean(self, phi: Array, x: Array) -> Array:
        return np.asarray(expit(x @ phi[:-1]))

    def rise(self, phi: Array, x: Array) -> Array:
        p = expit(x @ phi[:-1])
        return np.asarray(p * (1 - p))

    def weight(self, phi: Array, x: Array) -> Array:
        return np.ones(len(x))

    def score_bound(self, phi: Array, x: Array, lengths: Array) -> Array:
        return np.asarray(expit(np.abs(x @ phi[:-1])) * lengths)

    def likelihood_score(self, phi: Array, x: Array, y: Array) -> Array:
        return np.asarray(((y > 0) - expit(x @ phi[:-1]))[:, None] * x)

    def curvature(self, phi: Array, x: Array) -> Array:
        return self.rise(phi, x)

    def targets(self, phi: Array, x: Array, uniform: Array) -> Array:
        return np.where(uniform[:, 0] < expit(x @ phi[:-1]), 1.0, -1.0)


@dataclass(frozen=True)
class StudentT(Family):
    """Regression with Student-t residuals. Attributes: degrees: ν, above 0; fewer give outliers less influence."""

    name: ClassVar[str] = STUDENT
    link: ClassVar[str] = IDENTITY
    disperses: ClassVar[bool] = False
    degrees: float = 4.0

    def __post_init__(self) -> None:
        require_positive("degrees", self.degrees)

    @property
    def bounded(self) -> bool:
        return self.degrees <= DEGREES_MAX

    @property
    def parameters(self) -> dict[str, Any]:
        return super().parameters | {"degrees": self.degrees}

    def score(self, phi: Array, x: Array, y: Array) -> Array:
        r = (y - x @ phi[:-1]) * np.exp(-phi[-1])
        weighted = (self.degrees + 1) / (self.degrees + r**2) * r
        return np.column_stack([weighted[:, None] * x, weighted * r - 1])

    def score_bound(self, phi: Array, x: Array, lengths: Array) -> Array:
        nu = self.degrees
        return np.asarray(np.hypot((nu + 1) / (2 * np.sqrt(nu)) * lengths, max(1.0, nu)))

    def likelihood_score(self, phi: Array, x: Array, y: Array) -> Array:
        score = self.score(phi, x, y)
        score[:, :-1] *= np.exp(-phi[-1])
        return score

    def curvature(self, phi: Array, x: Array) -> Array:
        return np.ones(len(x))

    def information(self, phi: Array, curved: Array) -> Array:
        nu, p = self.degrees, len(curved) + 1
        information = np.zeros((p, p))
        information[:-1, :-1] = (nu + 1) / (nu + 3) * np.exp(-phi[-1]) * curved
        information[-1, -1] = 2 * nu / (nu + 3) * curved[0, 0]
        return information

    def targets(self, phi: Array, x: Array, uniform: Array) -> Array:
        return np.asarray(x @ phi[:-1] + np.exp(phi[-1]) * stdtrit(self.degrees, uniform[:, 0]))


def rate(phi: Array, x: Array) -> Array:
    """Return λ of Poisson rows, shape ``(m,)``."""
    return np.asarray(np.exp(np.minimum(x @ phi[:-1], PREDICTOR_MAX)))


def poisson_quantile(q: Array, mean: Array) -> Array:
    """Return the smallest k with P(Y <= k) >= q, ``(m,)``: exact below a mean of `LARGE`, else off by at most 1."""
    z = ndtri(q)
    quantiles: Array = np.rint(np.maximum(mean + np.sqrt(mean) * z + (z**2 - 1) / 6, 0.0))
    few = mean < LARGE
    chance = np.exp(-mean[few])
    counts, below, k = np.zeros_like(chance), chance.copy(), 0
    while (left := below < q[few]).any() and k < 4 * LARGE:
        k += 1
        counts += left
        chance = chance * mean[few] / k
        below += chance
    quantiles[few] = counts
    return quantiles
