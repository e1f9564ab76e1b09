"""A Poisson, Student-t or logistic regression in the user's own units, from released scores or from rows.

The model is linear in the standardised and clipped features z_j = clip((x_j - centre_j)/scale_j, ±bound_j):

    η = θ₀ + Σ_j θ_j z_j        counts: E[y] = exp(η)        Student-t: y = centre_y + scale_y (η + σ r)

A coefficient in the user's units is the slope inside the bounds. The posterior of φ = (θ, κ or ln σ) is normal, so η at
a row is normal with mean m and variance v, and the predictive law of a count has

    mean M = exp(m + v/2)       variance M + (1 + κ) exp(2m + 2v) - M².

**Prior.** θ_j ~ N(0, τ²), in units of a standardised feature; for counts θ₀ ~ N(ln(upper bound/3), 3²) and κ ~ N(0, 1),
for two classes θ₀ is as the slopes; for Student-t θ₀ ~ N(0, 3²) and ln σ ~ N(ln ½, 2²), the target standardised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from inference.draws import CHAINS, DRAWS, InferenceData, inference_data
from inference.errors import DataError
from inference.models.glm.families import Bernoulli, Family, Poisson, StudentT
from inference.models.glm.scoring import Normal, Prior, Rows, Score, Terms, posterior, squares_of
from inference.scale import standardisation
from inference.variational.standardise import Standardisation

Array = NDArray[np.float64]

STATISTIC, MOMENTS = "gradient", "moments"
PRIOR_SD = 1.0
AWAY_MAX = 0.3  # of a standardised slope, or of ln σ, from where the last round asked
STEPS, CONVERGED = 100, 1e-10  # of Fisher's scoring on rows, and its last step


@dataclass(frozen=True, eq=False)
class ScoredFit:
    """The posterior.

    Attributes:
        family: the model. columns: how the columns were standardised.
        posterior: of φ, shape ``(d + 2,)``. prior_sd: τ. prior: of φ.
        aggregates: what it was learned from; nothing where from rows.
        contributors: clients in the last round, or rows. private: False where no epsilon may be claimed.
    """

    family: Family
    columns: Standardisation
    posterior: Normal
    prior: Prior
    prior_sd: float
    aggregates: tuple[NoisyAggregate, ...]
    contributors: int
    private: bool

    @property
    def coefficients(self) -> Array:
        """Posterior mean slopes per feature unit: of the log rate, or of the target in its units. Shape ``(d,)``."""
        return (self._map @ self.posterior.mean[:-1])[1:]

    @property
    def coefficient_sd(self) -> Array:
        """Posterior standard deviations of the slopes, the privacy noise included, shape ``(d,)``."""
        return np.sqrt(np.diag(self.cov))[1:]

    @property
    def intercept(self) -> float:
        """Posterior mean of the log rate, or of the target, at features of zero."""
        return float((self._map @ self.posterior.mean[:-1])[0] + self._target[0])

    @property
    def intercept_sd(self) -> float:
        """Posterior standard deviation of the intercept."""
        return float(np.sqrt(self.cov[0, 0]))

    @property
    def cov(self) -> Array:
        """Posterior covariance of (intercept, slopes), shape ``(d + 1, d + 1)``."""
        return self._in_own_units(self.posterior.cov[:-1, :-1])

    @property
    def prior_sds(self) -> Array:
        """Prior standard deviations of (intercept, slopes), shape ``(d + 1,)``."""
        return np.sqrt(np.diag(self._in_own_units(np.diag(1 / self.prior.precision[:-1]))))

    @property
    def prior_means(self) -> Array:
        """Prior means of (intercept, slopes), shape ``(d + 1,)``."""
        found = self._map @ self.prior.mean[:-1]
        found[0] += self._target[0]
        return found

    @property
    def spread(self) -> tuple[float, float]:
        """Posterior mean and standard deviation of κ, or of σ in units of the target."""
        last, sd = float(self.posterior.mean[-1]), float(np.sqrt(self.posterior.cov[-1, -1]))
        if self.family.disperses:
            return max(last, 0.0), sd
        sigma = self._target[1] * np.exp(last)
        return float(sigma), float(sigma * sd)

    def linear_predictor(self, X: Array) -> tuple[Array, Array]:
        """Mean and variance of η at rows in their own units, shape ``(k, d)``: each ``(k,)``."""
        z = np.insert(self.columns.z(np.asarray(X, float)), 0, 1.0, axis=1)
        return z @ self.posterior.mean[:-1], np.einsum("ki,ij,kj->k", z, self.posterior.cov[:-1, :-1], z)

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Posterior predictive mean and standard deviation of the target at rows, each ``(k,)``, in its units."""
        mean, variance = self.linear_predictor(X)
        if isinstance(self.family, StudentT):
            centre, scale = self._target
            nu = self.family.degrees
            residual = np.exp(2 * self.posterior.mean[-1]) * (nu / (nu - 2) if nu > 2 else np.inf)
            return centre + scale * mean, scale * np.sqrt(variance + residual)
        rate = np.exp(mean + variance / 2)
        second = (1 + self.spread[0]) * np.exp(2 * (mean + variance))
        return rate, np.sqrt(rate + np.maximum(second - rate**2, 0.0))

    @property
    def warnings(self) -> list[str]:
        """What speaks against the posterior, a sentence each; empty where nothing does."""
        if not self.aggregates:
            return []
        asked = np.array(self.aggregates[-1].parameters["theta"])[1:]
        away = float(np.abs(self.posterior.mean[1 : 1 + asked.size] - asked).max())
        if away <= AWAY_MAX:
            return []
        return [
            f"the last round asked {away:.2g} from the result in one standardised parameter, too far for a linear "
            "approximation; ask for more rounds, or raise epsilon"
        ]

    def refit(self, prior_sd: float) -> ScoredFit:
        """The posterior of the same sums under another prior, at no price. Raises `DataError` of a fit from rows."""
        if not self.aggregates:
            raise DataError("this fit is from rows; fit them again with the other prior")
        return replace(fit_of(self.aggregates, prior_sd), private=self.private)

    def draws(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> dict[str, Array]:
        """Intercept and slopes in the user's units, ``(chains, draws)`` and ``(chains, draws, d)``."""
        drawn = rng.multivariate_normal(self.posterior.mean[:-1], self.posterior.cov[:-1, :-1], size=(chains, draws))
        own = drawn @ self._map.T
        return {"intercept": own[..., 0] + self._target[0], "coefficients": own[..., 1:]}

    def inference_data(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> InferenceData:
        """The draws as ArviZ's common type. Raises `DataError` without ArviZ."""
        attrs = {"method": "private Fisher scoring", "contributors": self.contributors, "private": self.private}
        return inference_data(
            self.draws(rng, chains, draws),
            dims={"coefficients": ["feature"]},
            coords={"feature": list(self.columns.columns[:-1])},
            attrs={**attrs, "family": self.family.name, "prior_sd": self.prior_sd},
        )

    @property
    def _target(self) -> tuple[float, float]:
        """Centre and scale of η in the units of what it predicts."""
        return (0.0, 1.0) if self.family.own_units else (float(self.columns.centre[-1]), float(self.columns.scale[-1]))

    @property
    def _map(self) -> Array:
        """From θ to (intercept less the target's centre, slopes) in the user's units, shape ``(d + 1, d + 1)``."""
        slopes = self._target[1] / self.columns.scale[:-1]
        found = np.diag(np.r_[self._target[1], slopes])
        found[0, 1:] = -slopes * self.columns.centre[:-1]
        return found

    def _in_own_units(self, cov: Array) -> Array:
        return self._map @ cov @ self._map.T


def fit_of(aggregates: Sequence[NoisyAggregate], prior_sd: float = PRIOR_SD) -> ScoredFit:
    """The posterior given released scores; everything else is in the aggregates' own parameters.

    Args:
        aggregates: of the job's rounds in their order; others than of the statistic "gradient" are left out.

    Raises:
        DataError: none is of that statistic with the information beside the gradient, or ``prior_sd`` is not above 0.
    """
    rounds = [one for one in aggregates if one.statistic == STATISTIC and one.parameters.get("information")]
    if not rounds:
        raise DataError(
            "no aggregate is of the statistic 'gradient' with its information; give those of a job "
            "'poisson-regression' or 'robust-regression'"
        )
    columns, family = columns_of(rounds[0]), family_of(rounds[0])
    scores, n = [_score(one, family) for one in rounds], rounds[-1].contributors
    prior = prior_of(family, columns, prior_sd)
    found, private = posterior(scores, simulated(aggregates), n, prior), all(one.private for one in aggregates)
    return ScoredFit(family, columns, found, prior, prior_sd, tuple(aggregates), n, private)


def simulated(aggregates: Sequence[NoisyAggregate]) -> Rows:
    """The simulation by the features' moments that the first round of scores has, and the public bounds."""
    first = next(one for one in aggregates if one.statistic == STATISTIC)
    family, columns = family_of(first), columns_of(first)
    squares = squares_of(_score(first, family), family, first.contributors)
    return rows_of(family, columns, squares, next((one for one in aggregates if one.statistic == MOMENTS), None))


def prior_of(family: Family, columns: Standardisation, prior_sd: float) -> Prior:
    """As at the head. Raises `DataError` where ``prior_sd`` is not above 0."""
    if not prior_sd > 0:
        raise DataError(f"prior_sd is {prior_sd:g}; expected a number above 0")
    slopes = np.full(len(columns.columns) - 1, prior_sd)
    if not family.tells and family.disperses:
        return Prior(np.zeros(slopes.size + 2), 1 / np.r_[prior_sd, slopes, 1.0] ** 2)
    if family.disperses:
        return Prior(np.r_[log(columns.bound[-1] / 3), 0 * slopes, 0.0], 1 / np.r_[3.0, slopes, 1.0] ** 2)
    return Prior(np.r_[0.0, 0 * slopes, log(0.5)], 1 / np.r_[3.0, slopes, 2.0] ** 2)


def rows_of(family: Family, columns: Standardisation, squares: Array, moments: NoisyAggregate | None = None) -> Rows:
    """The simulation for columns so standardised. Args: moments: with the public bounds."""
    bound, d = float(columns.bound[-1]), len(columns.columns) - 1
    ends = np.array([[-np.inf], [np.inf]]) * np.ones(d)
    if moments is not None and isinstance(family, Bernoulli):
        middle, half, times = (np.array(moments.parameters[name], float)[:d] for name in ("centre", "scale", "bound"))
        ends = (middle + np.array([[-1.0], [1.0]]) * half * times - columns.centre[:d]) / columns.scale[:d]
    return Rows(family, squares, ends, columns.bound[:-1], (-bound, bound))


def columns_of(aggregate: NoisyAggregate) -> Standardisation:
    """How a round's columns were standardised."""
    given = aggregate.parameters
    return Standardisation(tuple(given["columns"]), *(np.array(given[name]) for name in ("centre", "scale", "bound")))


def family_of(aggregate: NoisyAggregate) -> Family:
    """The model that a round asked for. Raises `DataError` for one that is not fitted here."""
    given = aggregate.parameters
    if given["family"] == Poisson.name:
        return Poisson()
    if given["family"] == Bernoulli.name:
        return Bernoulli()
    if given["family"] == StudentT.name:
        return StudentT(given["degrees"])
    raise DataError(
        f"an aggregate is of the family {given['family']!r}; expected {Poisson.name!r} or {StudentT.name!r}"
    )


def _score(aggregate: NoisyAggregate, family: Family) -> Score:
    given, value, d = aggregate.parameters, aggregate.value, len(aggregate.parameters["columns"])
    dispersion, terms = given.get("dispersion", 0.0), d * (d + 1) // 2
    theta, size = np.array(given["theta"], float), len(given["theta"])
    told = np.ones(d + 1, dtype=bool)
    score = value[:size]
    if family.disperses:
        told[-1] = dispersion > 0
        theta, score = np.r_[theta, 0.0], np.r_[score, value[-1] if dispersion else 0.0]
    asked = Terms(theta, given["clip"], given["information"], dispersion)
    return Score(asked, score, value[size : size + terms], aggregate.noise_variance, told)


# --- without privacy --------------------------------------------------------------------------------------------------


def exact_fit(X: Array, y: Array, family: Family, prior_sd: float = PRIOR_SD, names: Sequence[str] = ()) -> ScoredFit:
    """The same model from raw rows, without privacy: the posterior's mode, and a sandwich for its covariance.

    Args:
        X: shape ``(n, d)``. y: ``(n,)``, counts from 0 on for Poisson. names: of the features, then the target.

    Raises:
        DataError: a count is below 0, or all are 0; ``prior_sd`` is not above 0.
    """
    if family.disperses and (y.min() < 0 or not y.any()):
        raise DataError(f"counts lie in {y.min():g} to {y.max():g}; expected 0 or more, and one above 0")
    centre, scale = standardisation(np.column_stack([X, y]))
    if family.own_units:
        centre[-1], scale[-1] = 0.0, 1.0
    bound = np.r_[np.full(X.shape[1], np.inf), 3 * max(float(y.mean()), 1e-3) if family.disperses else np.inf]
    labels = tuple(names) or (*(f"x{j}" for j in range(X.shape[1])), "y")
    columns = Standardisation(labels, centre, scale, bound)
    prior = prior_of(family, columns, prior_sd)
    x, target = np.insert((X - centre[:-1]) / scale[:-1], 0, 1.0, axis=1), (y - centre[-1]) / scale[-1]
    found = _mode(family, x, target, prior)
    return ScoredFit(family, columns, found, prior, prior_sd, (), len(y), private=False)


def _mode(family: Family, x: Array, y: Array, prior: Prior) -> Normal:
    """Fisher's scoring; for counts κ is the moments' estimate."""
    phi, q, n = prior.mean.copy(), x.shape[1] + (not family.disperses), len(x)
    if family.disperses:
        phi[0] = log(max(float(y.mean()), 1e-9))
    for _ in range(STEPS):
        score, curved = family.score(phi, x, y)[:, :q], (x * family.curvature(phi, x)[:, None]).T @ x / n
        to_likelihood = np.ones(q) if family.disperses else np.r_[np.full(q - 1, np.exp(-phi[-1])), 1.0]
        slope = n * family.information(phi, curved) * to_likelihood[:, None] + np.diag(prior.precision[:q])
        pull = to_likelihood * score.sum(axis=0) + prior.precision[:q] * (prior.mean - phi)[:q]
        step = np.linalg.solve(slope, pull)
        phi[:q] += np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < CONVERGED:
            break
    inverse = np.linalg.inv(slope)
    centred = to_likelihood * score
    cov = np.zeros((phi.size, phi.size))
    cov[:q, :q] = inverse @ (centred.T @ centred + np.diag(prior.precision[:q])) @ inverse
    if family.disperses:
        mean = family.curvature(phi, x)
        excess = ((y - mean) ** 2 - y) / (mean**2).sum()
        phi[-1] = max(float(excess.sum()), 0.0)
        cov[-1, -1] = float((excess**2).sum())
    return Normal(phi, cov)
