"""Priors of the fits (LDP paper, section 8), and draws from them to compare with posteriors.

    model          prior                                                               default, given bounds
    gaussian       mean ~ N(m, s²), sd: ln a + l N(0, 1), or far below             m the middle; see `within`
    exponential    rate ~ Gamma(a, rate r)
    poisson        rate ~ Gamma(a, rate r)
    geometric      probability ~ Beta(a, b)                                            uniform
    histogram      shares ~ Dirichlet(α, ..., α)                                       α = 1
    regressions    θ ~ N(0, s² I), Σ = diag(τ) Ω diag(τ), Ω ~ LKJ(2), τ ~ N(0, t² I)   see `within`; the paper: √5, √2.5

The paper leaves the numbers of the first three open. Bounds may be far too wide. So the defaults of rates take from
them only a weak scale, over several powers of ten: the largest mean that is possible. Below it, the prior of a Poisson
rate is nearly τ^(ν - 1), ν = ¼, and that of an exponential rate flat in its logarithm. The logarithm of a normal
column's standard deviation is N(ln a, l²) with probability 0.9, and else N(ln a - 5 l, (2.5 l)²): about a fifth
of the half-width, or one to four powers of ten below. So bounds of 1000 standard deviations do not overrule the data,
and if noise hides the spread, its interval reaches from nearly nothing up to what the noise can hide.

**Regressions.** The paper's numbers are for columns of about unit variance. Clients clip their columns to public
bounds, within which a standard deviation of √2.5 is impossible. If the noise hides how many rows are complete, such a
prior puts most of the posterior on few complete rows with features far beyond their bounds. Chains diverge at the edge
of that region (diabetes, ε = 8: 235 of 4,000 draws). So the default of this prior follows from the bounds too.

**Variance or standard deviation?** In N(0, 5 I) and N(0, 2.5 I) an identity matrix makes the second argument a
covariance, so that the standard deviations here are √5 and √2.5.

**Half-normal.** Flipping the sign of τ_j together with the signs of Ω's row and column j gives the same Σ and the same
LKJ density. So the sign is not identified: τ ~ N is the same prior of Σ as |τ|, which is half-normal and has one mode
instead of 2^d. The paper gives no prior for the standard deviation of the residuals; it is half-normal too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf, sqrt
from typing import ClassVar

import numpy as np

from inference.bounds import Interval
from inference.columns import PRIOR_BOUND_SDS
from inference.errors import DataError
from inference.jobs.settings import require_finite, require_positive
from inference.problem import Array

Draws = dict[str, Array]
OPEN = 0.25  # ν, as in `conjugate.scalar`; the central 95 % of a Gamma of this shape begin at 1e-6 of its end
SD_USUAL, LOG_SD = 0.2, 0.8  # a of a normal sd, in half-widths, and l
FAR_BELOW, FAR_DOWN, FAR_SD = 0.1, 5.0, 2.5  # probability of the second law; its ln a and its sd, in units of l
FLAT, SHORTEST = 0.02, 3e-4  # shape of an exponential rate's prior, nearly flat in ln rate; the mean where it ends
MISSING_PRIOR = 0.5, 1.0  # Beta law of the share of clients without a value, as in `conjugate.family`: most near none
NORMAL, SPREAD, GAMMA, BETA = "normal", "spread", "gamma", "beta"
"""Laws of a parameter: N(first, second²), of an sd with a = first and l = second, Gamma(first, rate second), Beta."""
Sites = Mapping[str, tuple[str, str, str]]
"""The law of each parameter, and the two fields of the prior that hold the law's numbers."""


@dataclass(frozen=True)
class _AboveZero:
    """A prior whose fields are finite and above 0; those named in `anywhere` are only finite."""

    anywhere: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            check = require_finite if field.name in self.anywhere else require_positive
            check(field.name, number)


@dataclass(frozen=True)
class ColumnPrior(_AboveZero):
    """A prior of the parameters of a column's family, in the column's own units."""

    sites: ClassVar[Sites]

    def draws(self, rng: np.random.Generator, count: int) -> Draws:
        """Draw each parameter, shape ``(count,)``."""
        drawn = {}
        for name, (law, *numbers) in self.sites.items():
            first, second = (getattr(self, number) for number in numbers)
            if law == NORMAL:
                drawn[name] = first + second * rng.standard_normal(count)
            elif law == SPREAD:
                down = second * np.where(rng.random(count) < FAR_BELOW, FAR_DOWN, 0.0)
                apart = second * np.where(down > 0, FAR_SD, 1.0)
                drawn[name] = first * np.exp(apart * rng.standard_normal(count) - down)
            else:
                drawn[name] = rng.gamma(first, 1 / second, count) if law == GAMMA else rng.beta(first, second, count)
        return drawn


@dataclass(frozen=True)
class GaussianPrior(ColumnPrior):
    """mean ~ N(``mean``, ``mean_sd``²), sd as above with a = ``sd``, l = ``log_sd``."""

    mean: float
    mean_sd: float
    sd: float
    log_sd: float
    anywhere: ClassVar[tuple[str, ...]] = ("mean",)
    sites: ClassVar[Sites] = {"mean": (NORMAL, "mean", "mean_sd"), "sd": (SPREAD, "sd", "log_sd")}

    @classmethod
    def within(cls, bounds: Interval) -> GaussianPrior:
        """Return the prior for these public bounds: the mean lies inside, the sd's scale is open."""
        half = bounds.half_width
        return cls(bounds.centre, half / 2, SD_USUAL * half, LOG_SD)

    def rescaled(self, origin: float, unit: float) -> GaussianPrior:
        """Return this prior for the column (x - origin)/unit."""
        return GaussianPrior((self.mean - origin) / unit, self.mean_sd / unit, self.sd / unit, self.log_sd)


@dataclass(frozen=True)
class RatePrior(ColumnPrior):
    """rate ~ Gamma(``shape``, rate ``rate``), for exponential or Poisson data."""

    shape: float
    rate: float
    sites: ClassVar[Sites] = {"rate": (GAMMA, "shape", "rate")}

    @classmethod
    def of_exponential(cls, high: float) -> RatePrior:
        """Return the prior for data clipped to [0, high]: the rate is below 1/(`SHORTEST` high)."""
        return cls(FLAT, SHORTEST * high)

    @classmethod
    def of_poisson(cls, high: float) -> RatePrior:
        """Return the prior for counts clipped to 0..high: their mean, the rate, is below high."""
        return cls(OPEN, OPEN * PRIOR_BOUND_SDS / high)


@dataclass(frozen=True)
class ProbabilityPrior(ColumnPrior):
    """probability ~ Beta(``successes``, ``failures``), for geometric data."""

    successes: float = 1.0
    failures: float = 1.0
    sites: ClassVar[Sites] = {"probability": (BETA, "successes", "failures")}


@dataclass(frozen=True)
class DirichletPrior:
    """shares ~ Dirichlet(``concentration``): one number for all categories, or one for each."""

    concentration: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        if not np.all((given := np.asarray(self.concentration, float)) > 0) or not np.all(np.isfinite(given)):
            raise DataError(f"DirichletPrior: concentration is {self.concentration}; give finite numbers above 0")

    def of(self, categories: int) -> Array:
        """Return α of each category, shape ``(categories,)``. Raises `DataError` for another number of categories."""
        given = np.asarray(self.concentration, float)
        if given.ndim and given.shape != (categories,):
            raise DataError(
                f"DirichletPrior: {given.size} concentrations for {categories} categories; give one for each, or one "
                "number for all"
            )
        return np.broadcast_to(given, (categories,)).copy()

    def draws(self, rng: np.random.Generator, count: int, categories: int) -> Draws:
        """Draw ``shares``, shape ``(count, categories)``."""
        return {"shares": rng.dirichlet(self.of(categories), count)}


@dataclass(frozen=True)
class RegressionPrior(_AboveZero):
    """The prior of linear and logistic regression, in units of the statistic's scale; the defaults are the paper's.

    Attributes:
        coefficient_sd: standard deviation of each slope, about 0. intercept_sd: of the prediction where all features
            are 0 (at their public centres), about 0.
        lkj: η of Ω ~ LKJ(η); 1 is uniform over correlation matrices, larger values favour weak correlations.
        feature_sd: scale of the half-normal standard deviations τ of the features.
        feature_mean_sd: of the features' means, about the public centres, if there is an intercept. (Without one the
            features are taken to be centred.)
        residual_sd: scale of the half-normal standard deviation of the residuals; not used in logistic regression.
    """

    coefficient_sd: float = sqrt(5.0)
    intercept_sd: float = sqrt(5.0)
    lkj: float = 2.0
    feature_sd: float = sqrt(2.5)
    feature_mean_sd: float = 1.0
    residual_sd: float = sqrt(2.5)

    @classmethod
    def within(cls, bounds: Array, *, logistic: bool) -> RegressionPrior:
        """Return the prior for columns within these bounds; the paper's if the bounds are unknown.

        Standard deviations and means are those of `GaussianPrior.within`. Coefficients of standardised columns hardly
        exceed 1 unless two cancel; coefficients of log odds keep the paper's prior.

        Args:
            bounds: half-widths about 0 of the features, then the target, in units of the scale; shape ``(d + 1,)``.
        """
        x, y = float(np.mean(bounds[:-1])), float(bounds[-1])
        if not x < inf:
            return cls()
        prior = cls(feature_sd=x / 2, feature_mean_sd=x / PRIOR_BOUND_SDS)
        return prior if logistic else replace(prior, coefficient_sd=y / x, intercept_sd=y / 2, residual_sd=y / 2)

    def draws(self, rng: np.random.Generator, count: int, features: int) -> Draws:
        """Draw the models' sites: shape (count, features), but (count,) for ``alpha`` and ``residual_sd``."""

        def normal(sd: float, *shape: int) -> Array:
            return sd * rng.standard_normal((count, *shape))

        return {
            "theta": normal(self.coefficient_sd, features),
            "alpha": normal(self.intercept_sd),
            "feature_mean": normal(self.feature_mean_sd, features),
            "feature_sd": np.abs(normal(self.feature_sd, features)),
            "residual_sd": np.abs(normal(self.residual_sd)),
        }
