"""Regressions with a normal law: one class for every source, be it rounds, rows or reports.

The model is linear in the standardised, projected features z_j = clip((x_j - centre_j)/scale_j, ±bound_j). If the
columns have a radius, features are also brought into a ball of that radius, just as clients do:

    η = c θ₀ + Σ_j θ_j z_j,   θ ~ N(mean, cov), the privacy noise included            c: the constant feature, mostly 1

    identity    y = centre_y + scale_y (η + residual)         linear regression, also with Student-t residuals
    logit       P(y = 1) = 1/(1 + exp(-η))                    classes
    log         E[y] = exp(η)                                 counts, of variance λ + κλ² about their mean λ

A coefficient in the user's units is the slope inside the bounds. At a given row, η is normal (`expected`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, log
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from dca_proto.aggregate import NoisyAggregate
from inference.columns import Standardisation
from inference.contraction import contraction
from inference.draws import CHAINS, DRAWS
from inference.errors import DataError
from inference.jobs.estimates import (
    BY_SD,
    COEFFICIENTS,
    INTERCEPT,
    Estimate,
    Marginal,
    normal,
    score,
    slope_axis,
    student,
)
from inference.jobs.summary import HeldOut, Summary
from inference.laws import Drawn, Draws, Shrunk, Slopes
from inference.models.expected import limited, probability, probability_square
from inference.models.linear import closed_form
from inference.posterior import Posterior, refitted
from inference.problem import Array, Problem, Schema

IDENTITY, LOGIT, LOG = LINKS = ("identity", "logit", "log")
LOG_ODDS, LOG_MEAN = "log odds", "the mean's logarithm"
LOG_MOST = 40.0  # ln of the largest mean count if there is no public bound; it prevents overflow
DISPERSION, RESIDUAL_SCALE = "dispersion", "residual scale"


@dataclass(frozen=True, eq=False, kw_only=True)
class NormalLaw:
    """θ ~ N(mean, cov) for columns standardised by `columns`; cov includes the privacy noise.

    Attributes:
        names: of θ's coordinates. columns: how clients standardise and project features and target.
        mean, cov: shapes ``(p,)`` and ``(p, p)``.
        prior_mean, prior_sd: of each coordinate of θ, broadcastable to ``(p,)``. An infinite sd is a flat prior; None
            means that there is no prior, or that it is not normal.
        method: as text. contributors: number of clients, or of rows. private: False if no epsilon may be claimed.
        iterations: number of gradient rounds that ran. epochs: number of rounds that asked each client.
        stopped: why fewer rounds ran than planned, as a sentence. aggregates: the source, if they are kept.
        warnings: reasons to doubt it. refitter: as for `Posterior`. stretch: sd of an unknown factor of θ, in ``cov``.
        shrunk: the draws under a prior that shrinks (`inference.models.shrinkage`); None under a normal one.
    """

    names: tuple[str, ...]
    columns: Standardisation
    mean: Array
    cov: Array
    prior_mean: ArrayLike = 0.0
    prior_sd: ArrayLike | None = None
    method: str = ""
    contributors: int = 0
    private: bool = False
    iterations: int = 0
    epochs: int = 0
    stopped: str = ""
    aggregates: tuple[NoisyAggregate, ...] = ()
    warnings: tuple[str, ...] = ()
    refitter: Any = None
    stretch: float = 0.0
    shrunk: Shrunk | None = None

    @property
    def sd(self) -> Array:
        """Posterior standard deviations of θ, shape ``(p,)``."""
        return np.sqrt(np.diag(self.cov))

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Return the table; `schema` gives the units."""
        figures = with_prior(self.mean, self.sd, self.prior_mean, self.prior_sd)
        return [Estimate(name, "", figure) for name, figure in zip(self.names, figures, strict=True)]

    def in_own_units(self, drawn: Array) -> dict[str, Array]:
        """Return draws of θ, shape ``(..., p)``, by parameter."""
        return {"theta": drawn}

    def sample(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> dict[str, Array]:
        """Return independent draws by parameter."""
        return self.in_own_units(rng.multivariate_normal(self.mean, self.cov, size=(chains, draws), method="eigh"))

    @property
    def attrs(self) -> dict[str, object]:
        """The provenance of the draws."""
        names = ("method", "contributors", "iterations", "private")
        return {**{name: getattr(self, name) for name in names}, "stopped": self.stopped or None}

    def extras(self) -> Summary:
        """Return further entries of the summary."""
        remarks: Summary = {"remarks": {"method": self.method}} if self.method else {}
        return {**remarks, "stopped": self.stopped or None}

    def refit(self, **prior: Any) -> Any:
        """Return the law under another prior. Arguments and errors as for `Posterior.refit`."""
        return refitted(self.refitter, **prior)

    def with_shrunk(self, shrunk: Shrunk, mean: Array, cov: Array, **more: Any) -> Self:
        """Return the law with these draws and moments. Args: more: attributes."""
        return replace(self, shrunk=shrunk, mean=mean, cov=cov, prior_sd=None, **more)

    def posterior(self) -> Posterior:
        """Return the posterior of this law."""
        found = Posterior(
            self.method or "normal",
            Drawn(self.sample),
            axes={"theta": ("parameter",), COEFFICIENTS: ("feature",)},
            coords={"parameter": self.names, "feature": self.names[1:]},
            notes=self.warnings,
            attrs=self.attrs,
            table=self.estimates,
            extras=self.extras,
            predictor=self if isinstance(self, Coefficients) else None,
            sample=self.sample,
            private=self.private,
            refitter=self.refitter,
        )
        return found if self.shrunk is None else self.shrunk.into(found, self.in_own_units, COEFFICIENTS)


class Spread(NamedTuple):
    """The spread of targets about their mean, κ or σ in units of the target: its posterior mean and sd."""

    name: str
    mean: float
    sd: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Coefficients(NormalLaw):
    """The posterior of an intercept and slopes, in this order.

    Attributes:
        link: one of `LINKS`. constant: c; 0 if there is no intercept (then θ₀ is 0).
        residual_variance: of η's residuals if the link is the identity.
        spread: of the targets, if it is a separate parameter. degrees: of freedom of Student's t, whose scale is
            ``cov``; infinite for a normal posterior.
        schema: of the columns, if known. repair: how an indefinite noisy matrix was repaired.
        by: describes the scale of the columns, as text. point: whether this is a point estimate without a spread.
        more: further entries of the summary. most: ln u, if it does not follow from the aggregates.
        slab: makes this fit under a wide normal prior, if its own has a learned scale (`shrinkage`).
        coefficients, coefficient_sd: posterior mean and standard deviation of the slopes per feature unit, ``(d,)``.
        intercept, intercept_sd: of the prediction at features of zero. covariance: of intercept and slopes,
            ``(d + 1, d + 1)``.
    """

    names: tuple[str, ...] = ()
    link: str = IDENTITY
    constant: float = 1.0
    residual_variance: float = 0.0
    spread: Spread | None = None
    degrees: float = inf
    schema: Schema | None = None
    repair: str | None = None
    by: str = BY_SD
    point: bool = False
    more: Summary = field(default_factory=Summary)
    most: float | None = None
    slab: Any = None
    coefficients: Array = field(init=False)
    coefficient_sd: Array = field(init=False)
    intercept: float = field(init=False)
    intercept_sd: float = field(init=False)
    covariance: Array = field(init=False)
    _target: tuple[float, float] = field(init=False)  # centre and scale of η in the target's units
    _map: Array = field(init=False)  # from θ to (intercept minus the target's centre, slopes)

    def __post_init__(self) -> None:
        columns, (centre, unit) = self.columns, (0.0, 1.0)
        if self.link == IDENTITY:
            centre, unit = float(columns.centre[-1]), float(columns.scale[-1])
        slopes = unit / columns.scale[:-1]
        to_own = np.diag(np.r_[unit * self.constant, slopes])
        to_own[0, 1:] = -slopes * columns.centre[:-1]
        mean, cov = to_own @ self.mean, to_own @ self.cov @ to_own.T
        derived = {"names": (INTERCEPT, *columns.columns[:-1]), "_target": (centre, unit), "_map": to_own,
                   "coefficients": mean[1:], "coefficient_sd": np.sqrt(np.diag(cov)[1:]), "covariance": cov,
                   "intercept": float(mean[0] + centre), "intercept_sd": float(np.sqrt(cov[0, 0]))}  # fmt: skip
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, columns: Standardisation, theta: closed_form.NormalBeta, constant: float, **more: Any) -> Coefficients:
        """Convert a posterior of standardised coefficients (the constant's first unless c is 0); more: attributes."""
        mean, cov, prior = theta.mean, theta.cov, theta.prior_variance
        if not constant:
            mean, cov = np.r_[0.0, mean], np.pad(cov, ((1, 0), (1, 0)))
            prior = None if prior is None else np.r_[0.0, prior]
        more |= {"mean": mean, "cov": cov, "prior_sd": None if prior is None else np.sqrt(prior)}
        return cls(columns=columns, constant=constant, residual_variance=float(theta.residual_variance), **more)

    @property
    def priors(self) -> tuple[Array, Array] | None:
        """Prior means and standard deviations, each ``(d + 1,)``; None without a prior."""
        if self.prior_sd is None:
            return None
        mean = self._map @ np.broadcast_to(np.asarray(self.prior_mean, float), self.mean.shape)
        mean[0] += self._target[0]
        squares = self._map**2
        with np.errstate(invalid="ignore"):  # 0 times an infinite sd counts as 0
            parts = np.where(squares > 0, squares * np.asarray(self.prior_sd, float) ** 2, 0.0)
        return mean, np.sqrt(parts.sum(axis=1))

    @property
    def contraction(self) -> Array | None:
        """Contraction of each coefficient, ``(d + 1,)`` (`inference.contraction`); None without a prior."""
        return None if self.priors is None else contraction(np.sqrt(np.diag(self.covariance)), self.priors[1])

    def figures(self) -> list[Marginal]:
        """Return the figures of the intercept, then of each slope."""
        if self.shrunk is not None:
            own = self.in_own_units(self.shrunk.drawn)
            return self.shrunk.figures(own[INTERCEPT][..., None], own[COEFFICIENTS])
        mean, sd = np.r_[self.intercept, self.coefficients], np.r_[self.intercept_sd, self.coefficient_sd]
        if self.point:
            return [Marginal(float(value)) for value in mean]
        before = self.priors or (0.0, None)
        return with_prior(mean, sd, before[0], before[1], degrees=self.degrees)

    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        known = schema or self.schema
        rows = rows_of_slopes(self.figures(), self.columns.columns, known, self.link, self.columns.scale[:-1], self.by)
        if self.spread is not None:
            unit = known.units.get(known.target, known.target) if known and self.link == IDENTITY else ""
            rows.append(Estimate(self.spread.name, unit, normal(*self.spread[1:])))
        return rows

    def shrinkable(self) -> Slopes:
        """Return the slopes, and the prior that limits them."""
        law = self if self.slab is None else self.slab()
        d, unit = len(law.names) - 1, {IDENTITY: "units of the target's scale", LOGIT: LOG_ODDS, LOG: LOG_MEAN}
        slab = np.broadcast_to(np.asarray(inf if law.prior_sd is None else law.prior_sd, float), law.mean.shape)[1:]
        own = np.arange(d)
        return Slopes(law, law.mean, law.cov, 1 + own, own, law.names[1:], slab, unit[law.link], law.stretch)

    def slopes_in_own_units(self, slopes: Array) -> Array:
        """Convert standardised slopes, ``(..., d)``."""
        return np.asarray(slopes * np.diag(self._map)[1:])

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return self.names[1:]

    def standardised(self, X: Array) -> Array:
        """Return rows as the model takes them: standardised, the constant feature first, shape ``(k, d + 1)``."""
        return np.insert(self.columns.z(np.asarray(X, float)), 0, self.constant, axis=1)

    def linear_predictor(self, X: Array) -> tuple[Array, Array]:
        """Return mean and variance of η, each ``(k,)``, at rows ``(k, d)`` in their own units."""
        z = self.standardised(X)
        return z @ self.mean, np.einsum("ki,ij,kj->k", z, self.cov, z)

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Return the posterior predictive mean and standard deviation of the target, each ``(k,)``, at rows ``(k, d)``.

        With the logit link they are those of the upper class's probability. A point estimate's deviation is nan.
        """
        mean, sd = self._predicted(X)
        return mean, np.full_like(sd, np.nan) if self.point else sd

    def _predicted(self, X: Array) -> tuple[Array, Array]:
        mean, variance = self.linear_predictor(X)
        if self.link == IDENTITY:
            centre, unit = self._target
            return centre + unit * mean, unit * np.sqrt(variance + self.residual_variance)
        if self.link == LOGIT:
            p = probability(mean, variance)
            return p, np.sqrt(np.maximum(probability_square(mean, variance) - p**2, 0.0))
        rate = limited(mean, variance, self.log_most)
        second = (1 + self._dispersion) * limited(mean, variance, self.log_most, power=2)
        return rate, np.sqrt(rate + np.maximum(second - rate**2, 0.0))

    @property
    def log_most(self) -> float:
        """ln u; u is a count's public bound if the posterior is from rounds."""
        if self.most is not None:
            return self.most
        return log(float(self.columns.bound[-1])) if self.aggregates else LOG_MOST

    @property
    def _dispersion(self) -> float:
        return 0.0 if self.spread is None else self.spread.mean

    def predict_proba(self, X: Array) -> Array:
        """Return P(y = 1) of rows, averaged over the posterior, shape ``(k,)``."""
        return probability(*self.linear_predictor(X))

    def sample(self, rng: np.random.Generator, chains: int = CHAINS, draws: int = DRAWS) -> dict[str, Array]:
        if self.point:
            raise DataError(
                "this regression is a point estimate, without draws and intervals; take a job that has them"
            )
        return super().sample(rng, chains, draws)

    def in_own_units(self, drawn: Array) -> dict[str, Array]:
        """Convert draws of θ, shape ``(..., d + 1)``, to the user's units: ``intercept`` and ``coefficients``."""
        own = drawn @ self._map.T
        return {INTERCEPT: own[..., 0] + self._target[0], COEFFICIENTS: own[..., 1:]}

    def simulate(self, X: Array, draws: Draws, rng: np.random.Generator, *, labels: bool = False) -> Array:
        """Draw a target, a class's probability or label for each draw and row: ``(chains, draws, k)``, own units."""
        seen = self.columns.seen(X)
        eta = draws[COEFFICIENTS] @ seen.T + draws[INTERCEPT][..., None]
        if self.link == LOGIT:
            return np.asarray(rng.random(eta.shape) < expit(eta), float) if labels else np.asarray(expit(eta))
        if self.link == LOG:
            k = max(self._dispersion, 1e-9)
            rate = np.exp(np.minimum(eta, self.log_most)) * k * rng.standard_gamma(1 / k, eta.shape)
            return np.asarray(rng.poisson(rate), float)
        residual = np.sqrt(self.residual_variance) * rng.standard_normal(eta.shape)
        return np.asarray(eta + self._target[1] * residual)

    @property
    def attrs(self) -> dict[str, object]:
        return {**super().attrs, "target": self.columns.columns[-1], "repair": self.repair}

    def extras(self) -> Summary:
        known: Summary = {**super().extras(), **self.more}
        return known if self.repair is None else {**known, "repair": self.repair}

    def held_out_scores(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut | None:
        """Score by what suits the link: root mean square error, scores of probabilities, or mean absolute error."""
        other = None if reference is None else reference.predict(test.X)[0]
        return scored(self.link, self.predict(test.X)[0], other, train, test, absolute=self.spread is not None)


def with_prior(
    mean: Array, sd: Array, prior_mean: ArrayLike = 0.0, prior_sd: ArrayLike | None = None, degrees: float = inf
) -> list[Marginal]:
    """Return figures of a normal (or Student's t) posterior, with the interval of the normal prior if there is one."""
    figures = [student(m, s, degrees) for m, s in zip(mean, sd, strict=True)]
    if prior_sd is None:
        return figures
    before = np.broadcast_to(np.asarray(prior_mean, float), mean.shape), np.broadcast_to(prior_sd, mean.shape)
    priors = [normal(float(m), float(s)).interval for m, s in zip(*before, strict=True)]
    return [figure._replace(prior=prior) for figure, prior in zip(figures, priors, strict=True)]


def rows_of_slopes(
    figures: list[Marginal], columns: tuple[str, ...], schema: Schema | None, link: str, scale: Array, by: str
) -> list[Estimate]:
    """Return the rows of the table of an intercept and slopes.

    Args:
        figures: of the intercept, then of each slope. columns: the features, then the target.
        scale: of each feature in its own units, public or privately estimated; plots multiply the coefficient by it.
        by: describes the scale, as text.
    """
    (*features, target), units = columns, {} if schema is None else schema.units
    own = units.get(target, target)
    predicted = {IDENTITY: own, LOG: f"log {own}", LOGIT: LOG_ODDS}[link]
    known, rows = {} if schema is None else schema.references, [Estimate(INTERCEPT, "", figures[0], INTERCEPT)]
    for name, figure, size in zip(features, figures[1:], scale, strict=True):
        per = units.get(name, f"unit of {name}" if link == IDENTITY else "")
        unit = f"{predicted} per {per}" if per else predicted
        axis = slope_axis(predicted, by, size, is_indicator=name in known)
        rows.append(Estimate(name, unit, figure, COEFFICIENTS, axis))
    return rows


def scored(
    link: str, own: Array, other: Array | None, train: Problem | None, test: Problem, *, absolute: bool = False
) -> HeldOut:
    """Score predictions of the test rows, shape ``(k,)``, beside those without privacy and those of a constant.

    With the logit link: the AUC, if both classes occur, and the mean log likelihood of a row; else root mean squared
    errors. Without training rows the constant is taken from the test rows. Args: absolute: whether to score mean
    absolute errors, because outliers would dominate squared errors.
    """
    rows, constant = len(test.y), (train or test).y
    if link == LOGIT:
        positive = is_positive(test)
        beside = None if other is None else log_likelihood(other, positive)
        alone = log_likelihood(np.full(rows, is_positive(train or test).mean()), positive)
        scores = [score("log likelihood", log_likelihood(own, positive), beside, alone, higher_is_better=True)]
        if 0 < positive.sum() < rows:
            area = None if other is None else area_under_curve(other, positive)
            scores.insert(0, score("AUC", area_under_curve(own, positive), area, 0.5, higher_is_better=True))
        return {"rows": rows, "scores": scores}
    unit = test.schema.units.get(test.schema.target, f"units of {test.schema.target}")
    if absolute:
        predictions = (own, other, np.median(constant))
        errors = [None if guess is None else float(np.mean(np.abs(test.y - guess))) for guess in predictions]
        scores = [score("mean absolute error", *errors, higher_is_better=False)]  # type: ignore[arg-type]
        return {"rows": rows, "unit": unit, "scores": scores}
    return {
        "rows": rows,
        "unit": unit,
        "rmse_private": rmse(own, test.y),
        "rmse_nonprivate": None if other is None else rmse(other, test.y),
        "rmse_zero": rmse(np.full(rows, constant.mean()), test.y),
    }


def is_positive(rows: Problem) -> NDArray[np.bool_]:
    """Return which rows belong to the upper class: target above the middle of its bounds."""
    return np.asarray(rows.y > rows.schema.centres[-1])


def area_under_curve(scores: Array, positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve: P(a positive row scores above a negative one), ties counting half.

    Args:
        scores: shape ``(n,)``. positive: which rows are of the positive class, shape ``(n,)``.

    Raises:
        DataError: all rows are of one class.
    """
    from scipy.stats import rankdata

    ones = int(positive.sum())
    zeros = len(positive) - ones
    if not ones or not zeros:
        raise DataError(f"{ones} rows of one class and {zeros} of the other to score on; expected some of each")
    above = float(rankdata(scores)[positive].sum()) - ones * (ones + 1) / 2  # Mann and Whitney's U
    return above / (ones * zeros)


def log_likelihood(p: Array, positive: NDArray[np.bool_]) -> float:
    """Return the mean log likelihood of a row, in nats. Args: p: probability of the positive class."""
    return float(np.mean(np.log(np.maximum(np.where(positive, p, 1 - p), 1e-12))))


def rmse(predicted: Array, y: Array) -> float:
    """Return the root mean squared error, in target units."""
    return float(np.sqrt(np.mean((y - predicted) ** 2)))
