"""Poisson, Student-t and logistic regression: what clients send of a row, and targets to simulate it with.

The parameters φ are θ and one more, last: p = d + 2 of them.

x is a row's features with the constant 1 first, u = xᵀθ; θ has the intercept first. Of each row clients send, by the
statistic "gradient", a *score* s(φ), and with it terms of the *information* E[s lᵀ | x], l the likelihood's own score.

**Poisson.** Counts y of mean λ = exp(u) and variance λ + κλ². κ, the *dispersion*, is 0 of Poisson counts, and above 0
where counts vary more than that (negative binomial: λ times a Gamma variable of mean 1 and variance κ). A round asks at
a public κ_k, its best estimate so far:

    s(θ) = (y - λ)/(1 + κ_k λ) x          mean zero at the true θ whatever κ and κ_k are
    l(θ) = (y - λ)/(1 + κλ) x
    E[s lᵀ | x] = λ/(1 + κ_k λ) x xᵀ

φ = (θ, κ). The divisor keeps rows of large means short. Residuals grow with λ there, and a clip would cut most of them,
mostly on the upper side. The term r²/(r² + λ), r = y - λ, informs about κ: bounded, and the larger the more κ is. It
comes with the score.

**Student-t.** y = u + σ r, r of Student's t with ν degrees of freedom; φ = (θ, ln σ); w = (ν + 1)/(ν + r²).

    s(φ) = (w r x, w r² - 1)              with respect to (θ/σ, ln σ): free of units
    l(φ) = (w r x/σ, w r² - 1)
    E[s lᵀ | x] = ((ν + 1)/((ν + 3) σ) x xᵀ, 2ν/(ν + 3))          block diagonal (Lange, Little and Taylor 1989);
                  the last is that times the square of the constant in x, so that it has the rows' weights, too

**Bernoulli.** y is 0 or 1, p = 1/(1 + exp(-u)); s = l = (y - p) x and E[s lᵀ | x] = p(1 - p) x xᵀ. There is no other
parameter: the last of φ is a κ that no report informs about, and that nothing depends on.

An outlier's influence on θ is at most (ν + 1)/(2√ν) |x|, and falls with its distance. So a score's sensitivity is
bounded without a clip that distorts the likelihood (Student-t).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, gammaincinv, ndtri, stdtrit

from inference.columns import Array
from inference.models.coefficients import IDENTITY, LOG, LOGIT

POISSON, STUDENT, BERNOULLI = "poisson", "student", "bernoulli"
PREDICTOR_MAX = 30.0  # of a log rate: beyond, only an iterate that went astray is
DISPERSION_MIN = 1e-4  # below, counts are drawn as Poisson's
DEGREES_MAX = 5.0  # of Student-t: beyond, a residual's bound is far above most, and the clip is in the model instead
LARGE = 100.0  # rate, from which on quantiles are Cornish and Fisher's


@dataclass(frozen=True)
class Family(ABC):
    """What the engine asks of a model.

    Attributes:
        name: of the family in the statistic "gradient". link: of the mean, as of `Coefficients`.
        own_units: whether the target is left in its own units.
        disperses: whether the last of φ is κ. sends_dispersion: whether clients can send a term of it.
        bounded: whether residuals are, and so narrowly that rows are best shortened by their features alone.
        prior_sd: of the slopes, where rounds are planned.
    """

    name: ClassVar[str]
    link: ClassVar[str]
    own_units: ClassVar[bool] = True
    disperses: ClassVar[bool] = True
    sends_dispersion: ClassVar[bool] = False
    prior_sd: ClassVar[float] = 1.0

    @property
    def bounded(self) -> bool:
        """As above."""
        return True

    @property
    def parameters(self) -> dict[str, Any]:
        """Of the statistic."""
        return {"family": self.name, "intercept": True} | ({"by_features": True} if self.bounded else {})

    @abstractmethod
    def score(self, phi: Array, x: Array, y: Array) -> Array:
        """s(φ_k) of each row, shape ``(m, p)``, 0 in the place of a parameter without a score of mean zero, as κ.

        Args:
            x: shape ``(m, d + 1)``. y: ``(m,)``.
        """

    def sent(self, phi: Array, x: Array, y: Array, dispersion: float) -> Array:
        """What clients send in the score's place: with κ's term, times the weight ``dispersion``: shape ``(m, p)``."""
        return self.score(phi, x, y)

    def score_bound(self, phi: Array, x: Array) -> Array:
        """The largest norm of s(φ) at rows' features, whatever the targets are, shape ``(m,)``; only if `bounded`."""
        raise NotImplementedError

    @abstractmethod
    def likelihood_score(self, phi: Array, x: Array, y: Array) -> Array:
        """l(φ) of each row, of those parameters that have one: θ at least."""

    @abstractmethod
    def curvature(self, phi: Array, x: Array) -> Array:
        """q of each row, shape ``(m,)``: the terms of q x xᵀ are sent."""

    def information(self, phi: Array, curved: Array) -> Array:
        """E[s lᵀ], given the mean of q x xᵀ, ``(d + 1, d + 1)``: of the parameters that have an l."""
        return curved

    @abstractmethod
    def targets(self, phi: Array, x: Array, uniform: Array) -> Array:
        """Targets that the model draws for rows, from uniform numbers of shape ``(m, 2)``: shape ``(m,)``."""


@dataclass(frozen=True)
class Poisson(Family):
    """Counts."""

    name: ClassVar[str] = POISSON
    link: ClassVar[str] = LOG
    sends_dispersion: ClassVar[bool] = True

    @property
    def bounded(self) -> bool:
        return False

    def score(self, phi: Array, x: Array, y: Array) -> Array:
        return np.column_stack([self.likelihood_score(phi, x, y), np.zeros(len(x))])

    def sent(self, phi: Array, x: Array, y: Array, dispersion: float) -> Array:
        found, mean = self.score(phi, x, y), rate(phi, x)
        found[:, -1] = dispersion * (y - mean) ** 2 / ((y - mean) ** 2 + mean)
        return found

    def likelihood_score(self, phi: Array, x: Array, y: Array) -> Array:
        mean = rate(phi, x)
        return np.asarray(((y - mean) / (1 + max(phi[-1], 0.0) * mean))[:, None] * x)

    def curvature(self, phi: Array, x: Array) -> Array:
        mean = rate(phi, x)
        return np.asarray(mean / (1 + max(phi[-1], 0.0) * mean))

    def targets(self, phi: Array, x: Array, uniform: Array) -> Array:
        mean = rate(phi, x)
        if phi[-1] > DISPERSION_MIN:
            mean = mean * phi[-1] * gammaincinv(1 / phi[-1], uniform[:, 1])
        return poisson_quantile(uniform[:, 0], mean)


@dataclass(frozen=True)
class Bernoulli(Family):
    """Two classes: the upper one where the target is above 0."""

    name: ClassVar[str] = BERNOULLI
    link: ClassVar[str] = LOGIT
    prior_sd: ClassVar[float] = 2.0

    def score(self, phi: Array, x: Array, y: Array) -> Array:
        return np.column_stack([self.likelihood_score(phi, x, y), np.zeros(len(x))])

    def score_bound(self, phi: Array, x: Array) -> Array:
        return np.asarray(expit(np.abs(x @ phi[:-1])) * np.linalg.norm(x, axis=1))

    def likelihood_score(self, phi: Array, x: Array, y: Array) -> Array:
        return np.asarray(((y > 0) - expit(x @ phi[:-1]))[:, None] * x)

    def curvature(self, phi: Array, x: Array) -> Array:
        p = expit(x @ phi[:-1])
        return np.asarray(p * (1 - p))

    def targets(self, phi: Array, x: Array, uniform: Array) -> Array:
        return np.where(uniform[:, 0] < expit(x @ phi[:-1]), 1.0, -1.0)


@dataclass(frozen=True)
class StudentT(Family):
    """Attributes: degrees: ν, above 0; the fewer, the less outliers count."""

    name: ClassVar[str] = STUDENT
    link: ClassVar[str] = IDENTITY
    own_units: ClassVar[bool] = False
    disperses: ClassVar[bool] = False
    degrees: float = 4.0

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

    def score_bound(self, phi: Array, x: Array) -> Array:
        nu = self.degrees
        return np.asarray(np.hypot((nu + 1) / (2 * np.sqrt(nu)) * np.linalg.norm(x, axis=1), max(1.0, nu)))

    def likelihood_score(self, phi: Array, x: Array, y: Array) -> Array:
        found = self.score(phi, x, y)
        found[:, :-1] *= np.exp(-phi[-1])
        return found

    def curvature(self, phi: Array, x: Array) -> Array:
        return np.ones(len(x))

    def information(self, phi: Array, curved: Array) -> Array:
        nu, p = self.degrees, len(curved) + 1
        found = np.zeros((p, p))
        found[:-1, :-1] = (nu + 1) / (nu + 3) * np.exp(-phi[-1]) * curved
        found[-1, -1] = 2 * nu / (nu + 3) * curved[0, 0]
        return found

    def targets(self, phi: Array, x: Array, uniform: Array) -> Array:
        return np.asarray(x @ phi[:-1] + np.exp(phi[-1]) * stdtrit(self.degrees, uniform[:, 0]))


def rate(phi: Array, x: Array) -> Array:
    """λ of Poisson rows, shape ``(m,)``."""
    return np.asarray(np.exp(np.minimum(x @ phi[:-1], PREDICTOR_MAX)))


def poisson_quantile(q: Array, mean: Array) -> Array:
    """The smallest counts k with P(Y <= k) >= q: exact below a mean of `LARGE`, one off at most beyond: ``(m,)``."""
    z = ndtri(q)
    found: Array = np.rint(np.maximum(mean + np.sqrt(mean) * z + (z**2 - 1) / 6, 0.0))
    few = mean < LARGE
    chance = np.exp(-mean[few])
    counts, below, k = np.zeros_like(chance), chance.copy(), 0
    while (left := below < q[few]).any() and k < 4 * LARGE:
        k += 1
        counts += left
        chance = chance * mean[few] / k
        below += chance
    found[few] = counts
    return found
