"""Priors of the fits (LDP paper, section 8), and draws from them to compare posteriors with.

    model          prior                                                               by default, of bounds
    gaussian       mean ~ N(m, s²), sd ~ Gamma(a, rate r)                              m the middle; see `within`
    exponential    rate ~ Gamma(a, rate r)
    poisson        rate ~ Gamma(a, rate r)
    geometric      probability ~ Beta(a, b)                                            uniform
    histogram      shares ~ Dirichlet(α, ..., α)                                       α = 1
    regressions    θ ~ N(0, s² I), Σ = diag(τ) Ω diag(τ), Ω ~ LKJ(2), τ ~ N(0, t² I)   see `within`; the paper: √5, √2.5

The paper leaves the first three's numbers open. Here they follow from the public bounds by default: whoever states
bounds means that nearly all values lie inside, so a standard deviation (or the mean of what is never negative) is about
a third of the half-width (of the range), within a factor of some three either way.

**Regressions.** The paper's numbers are for columns of about unit variance. Clients clip theirs to public bounds, and
between those a standard deviation of √2.5 is impossible. Under noise that hides how many rows are complete, such a
prior makes most of the posterior a world of few complete rows with features far beyond their bounds, and chains
diverge at its edge (diabetes, ε = 8: 235 of 4,000 draws). So by default this prior follows from the bounds too.

**Variance or standard deviation?** In N(0, 5 I) and N(0, 2.5 I) an identity matrix makes the second argument a
covariance, so that the standard deviations here are √5 and √2.5.

**Half-normal.** A scale τ_j and -τ_j with the signs of Ω's row and column j turned give the same Σ, and the LKJ density
does not change under that. So the sign is not identified, and τ ~ N with either sign is the same prior of Σ as |τ|,
which is half-normal and has one mode in the place of 2^d. The standard deviation of the residuals, of which the paper
says nothing, is half-normal too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf, sqrt
from typing import ClassVar

import numpy as np

from inference.bounds import Interval
from inference.columns import PRIOR_BOUND_SDS, Array
from inference.errors import DataError

Draws = dict[str, Array]
SHAPE = 2.0  # of a Gamma by default: zero has no density, and the 90 % between 0.18 and 2.4 means
NORMAL, GAMMA, BETA = "normal", "gamma", "beta"
"""Laws of a parameter: N(first, second²), Gamma(first, rate second), Beta(first, second)."""
Sites = Mapping[str, tuple[str, str, str]]
"""By parameter its law, and the two fields of the prior that are that law's numbers."""


@dataclass(frozen=True)
class _AboveZero:
    """Fields are finite and above 0, but for `anywhere`, which are finite."""

    anywhere: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            if field.name in self.anywhere and not abs(number) < inf:
                raise DataError(f"{type(self).__name__}: {field.name} is {number:g}; give a finite number")
            if field.name not in self.anywhere and not 0 < number < inf:
                raise DataError(f"{type(self).__name__}: {field.name} is {number:g}; give a finite number above 0")


@dataclass(frozen=True)
class ColumnPrior(_AboveZero):
    """Of the parameters of a column's law, in its own units."""

    sites: ClassVar[Sites]

    def draws(self, rng: np.random.Generator, count: int) -> Draws:
        """Of each parameter, shape ``(count,)``."""
        found = {}
        for name, (law, *numbers) in self.sites.items():
            first, second = (getattr(self, number) for number in numbers)
            if law == NORMAL:
                found[name] = first + second * rng.standard_normal(count)
            else:
                found[name] = rng.gamma(first, 1 / second, count) if law == GAMMA else rng.beta(first, second, count)
        return found


@dataclass(frozen=True)
class GaussianPrior(ColumnPrior):
    """mean ~ N(``mean``, ``mean_sd``²), sd ~ Gamma(``shape``, rate ``rate``)."""

    mean: float
    mean_sd: float
    shape: float
    rate: float
    anywhere: ClassVar[tuple[str, ...]] = ("mean",)
    sites: ClassVar[Sites] = {"mean": (NORMAL, "mean", "mean_sd"), "sd": (GAMMA, "shape", "rate")}

    @classmethod
    def within(cls, bounds: Interval) -> GaussianPrior:
        """That of a column with these public bounds: the mean is somewhere inside, the sd about a third of half."""
        sd = bounds.half_width / PRIOR_BOUND_SDS
        return cls(bounds.centre, bounds.half_width / 2, SHAPE, SHAPE / sd)

    def seen_from(self, origin: float, unit: float) -> GaussianPrior:
        """The same of a column measured from ``origin`` on in ``unit``."""
        return GaussianPrior((self.mean - origin) / unit, self.mean_sd / unit, self.shape, self.rate * unit)


@dataclass(frozen=True)
class RatePrior(ColumnPrior):
    """rate ~ Gamma(``shape``, rate ``rate``), of exponential or Poisson data."""

    shape: float
    rate: float
    sites: ClassVar[Sites] = {"rate": (GAMMA, "shape", "rate")}

    @classmethod
    def of_exponential(cls, high: float) -> RatePrior:
        """That of data clipped to [0, high]: their mean is about a third of it, so the rate is 3/high."""
        return cls(SHAPE, SHAPE * high / PRIOR_BOUND_SDS)

    @classmethod
    def of_poisson(cls, high: float) -> RatePrior:
        """That of counts clipped to 0..high: their mean, the rate, is about a third of it."""
        return cls(SHAPE, SHAPE * PRIOR_BOUND_SDS / high)


@dataclass(frozen=True)
class ProbabilityPrior(ColumnPrior):
    """probability ~ Beta(``successes``, ``failures``), of geometric data."""

    successes: float = 1.0
    failures: float = 1.0
    sites: ClassVar[Sites] = {"probability": (BETA, "successes", "failures")}


@dataclass(frozen=True)
class DirichletPrior:
    """shares ~ Dirichlet(``concentration``), the same for every category or one number for each."""

    concentration: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        if not np.all((given := np.asarray(self.concentration, float)) > 0) or not np.all(np.isfinite(given)):
            raise DataError(f"DirichletPrior: concentration is {self.concentration}; give finite numbers above 0")

    def of(self, categories: int) -> Array:
        """α of each category, shape ``(categories,)``. Raises `DataError` where it is of another number of them."""
        given = np.asarray(self.concentration, float)
        if given.ndim and given.shape != (categories,):
            raise DataError(
                f"DirichletPrior: {given.size} concentrations for {categories} categories; give one for each, or one "
                "number for all"
            )
        return np.broadcast_to(given, (categories,)).copy()

    def draws(self, rng: np.random.Generator, count: int, categories: int) -> Draws:
        """``shares``, shape ``(count, categories)``."""
        return {"shares": rng.dirichlet(self.of(categories), count)}


@dataclass(frozen=True)
class RegressionPrior(_AboveZero):
    """Of linear and logistic regression, in units of the statistic's scale; its defaults are the paper's.

    Attributes:
        coefficient_sd: of each slope, about 0. intercept_sd: of what is predicted where all features are 0 (the public
            centres), about 0.
        lkj: η of Ω ~ LKJ(η); 1 is uniform over correlation matrices, more leans towards none.
        feature_sd: of the half-normal standard deviations τ of the features.
        feature_mean_sd: of the features' means, about the public centres, where there is an intercept. (Without one
            the features are taken to be centred.)
        residual_sd: of the half-normal standard deviation of the residuals; of no use in logistic regression.
    """

    coefficient_sd: float = sqrt(5.0)
    intercept_sd: float = sqrt(5.0)
    lkj: float = 2.0
    feature_sd: float = sqrt(2.5)
    feature_mean_sd: float = 1.0
    residual_sd: float = sqrt(2.5)

    @classmethod
    def within(cls, bounds: Array, *, logistic: bool) -> RegressionPrior:
        """That of columns within these bounds; the paper's where they are not known.

        Standard deviations and means are those of `GaussianPrior.within`. A coefficient of standardised columns is
        hardly above 1, or two of them cancel; one of log odds has the paper's prior.

        Args:
            bounds: of the features, then the target, about 0, in units of the scale; shape ``(d + 1,)``.
        """
        x, y = float(np.mean(bounds[:-1])), float(bounds[-1])
        if not x < inf:
            return cls()
        found = cls(feature_sd=x / 2, feature_mean_sd=x / PRIOR_BOUND_SDS)
        return found if logistic else replace(found, coefficient_sd=y / x, intercept_sd=y / 2, residual_sd=y / 2)

    def draws(self, rng: np.random.Generator, count: int, features: int) -> Draws:
        """By the models' sites: (count, features), and (count,) of ``alpha`` and ``residual_sd``."""

        def normal(sd: float, *shape: int) -> Array:
            return sd * rng.standard_normal((count, *shape))

        return {
            "theta": normal(self.coefficient_sd, features),
            "alpha": normal(self.intercept_sd),
            "feature_mean": normal(self.feature_mean_sd, features),
            "feature_sd": np.abs(normal(self.feature_sd, features)),
            "residual_sd": np.abs(normal(self.residual_sd)),
        }
