"""A Poisson, Student-t or logistic regression in the user's own units, from released scores or from rows.

`inference.models.coefficients` describes the model in the user's units. The posterior of φ = (θ, κ or ln σ) is normal.

**Prior.** θ_j ~ N(0, τ²), in units of a standardised feature. For counts θ₀ ~ N(ln(upper bound/3), 3²) and κ ~ N(0, 1);
for two classes θ₀ has the slopes' prior; for Student-t θ₀ ~ N(0, 3²) and ln σ ~ N(ln ½, 2²), the target standardised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf, log
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma

from dca_proto.aggregate import NoisyAggregate
from dca_proto.statistics.counting import CompleteRows, about_missing
from dca_proto.wording import listed
from inference.columns import Standardisation, standardisation
from inference.errors import DataError
from inference.jobs.settings import require_positive
from inference.models.coefficients import DISPERSION, RESIDUAL_SCALE, Coefficients, Spread
from inference.models.doubts import (
    AWAY_MAX,
    TOGETHER,
    about_collinearity,
    about_data,
    about_far_request,
    about_separate,
    inseparable,
    repeated,
    together,
)
from inference.models.glm.curves import Curvature, Places, curvature
from inference.models.glm.families import DISPERSION_MIN, Bernoulli, Family, Poisson, StudentT
from inference.models.glm.scoring import Curves, NoisyScore, Request, Rows, posterior, squares_of
from inference.models.law import FISHER_SCORING
from inference.models.linear.closed_form import symmetric
from inference.models.score_regression import Normal, Prior
from inference.models.shrinkage import shrinkable
from inference.problem import Array, Schema

STATISTIC = "gradient"
PRIOR_SD = 1.0
SPREAD_MAX = 2.5  # largest standard deviation of rows' log odds at which intervals of uncertain effects hold
UNSURE = 0.08  # standard deviation of a standardised effect from which it counts as uncertain
SHARE_LEAST = 0.02  # of rows that are complete: of a site without one the noisy count may be negative
FAR_SCALE = -1.0  # ln of the residual scale over the start, below which it is too large: bias 15 % at -1.2
AWAY_MAX_OF_LINEAR = 0.3  # as `AWAY_MAX`, for Student-t, and for ln σ, whose scores must be linear between them
FAMILIES: dict[str, type[Family]] = {family.name: family for family in (Poisson, Bernoulli, StudentT)}
STEPS, CONVERGED = 100, 1e-10  # of Fisher scoring on rows: the most steps, and the size of the last
KAPPA_MAX, KAPPA_CONVERGED, KAPPA_STEP = 100.0, 1e-7, 1e-4  # of κ on rows: largest, last step, relative difference


class Scores(NamedTuple):
    """Released scores: the rounds, the family and columns they asked about, and the parsed sums."""

    rounds: list[NoisyAggregate]
    family: Family
    columns: Standardisation
    scores: list[NoisyScore]

    @classmethod
    def of(cls, aggregates: Sequence[NoisyAggregate]) -> Scores:
        """Select and parse the rounds of scores among the aggregates. Raises `DataError` as `regression_of_scores`."""
        rounds = [one for one in aggregates if one.statistic == STATISTIC and one.parameters.get("information")]
        if not rounds:
            raise DataError(
                "no aggregate is of the statistic 'gradient' with its information; give those of all rounds of a job "
                "'poisson-regression', 'robust-regression' or 'logistic'"
            )
        family = family_of(rounds[0])
        return cls(rounds, family, Standardisation.of(rounds[0].parameters), [_score(one, family) for one in rounds])

    @property
    def complete(self) -> CompleteRows:
        """The last round's count of complete rows."""
        return CompleteRows.of(self.rounds[-1:])

    @property
    def missing(self) -> tuple[str, ...]:
        """A warning if clearly fewer rows are complete than contributed, by the last round's count."""
        return about_missing(*self.complete, of="rows" if self.rounds[-1].nodes else "clients")

    @property
    def share(self) -> float:
        """The share of rows that are complete: 1 unless the count clearly shows less."""
        return self.complete.share(SHARE_LEAST)

    @property
    def rows(self) -> Rows:
        """Simulated rows with the features' moments from the first round."""
        squares = squares_of(self.scores[0], self.family, self.rounds[0].contributors * self.share)
        return rows_of(self.family, self.columns, squares)

    def phi(self, prior_sd: float) -> Normal:
        """Return the posterior of φ, shapes ``(d + 2,)`` and ``(d + 2, d + 2)``."""
        prior = prior_of(self.family, self.columns, prior_sd)
        return posterior(self.scores, self.rows, self.rounds[-1].contributors * self.share, prior)

    def curvature(self, phi: Normal) -> Curvature | None:
        """Return what the last round shows of curves, if it asked for them. Args: phi: the posterior."""
        return curvature(self.scores[-1], self.rows, self.rounds[-1].contributors * self.share, phi)


def regression_of_scores(
    aggregates: Sequence[NoisyAggregate],
    prior_sd: float = PRIOR_SD,
    *,
    schema: Schema | None = None,
    notes: tuple[str, ...] = (),
) -> Coefficients:
    """Return the posterior given released scores; the aggregates' own parameters contain everything else.

    Args:
        aggregates: of the job's rounds in order; only those of the statistic "gradient" inform the posterior.
        schema: of the job, if a job asked. notes: further warnings.

    Raises:
        DataError: no aggregate has that statistic with its information, or ``prior_sd`` is not above 0.
    """
    released = Scores.of(aggregates)
    phi = released.phi(prior_sd)
    curved, warnings = released.curvature(phi), warnings_of(released, phi)
    if curved:
        places = Places.of_one(curved.shift.size)
        warnings += curved.warnings(phi, released.columns.columns, places, schema)
        phi = curved.widen(phi, places)
    own: dict[str, Any] = {"prior_sd": prior_sd, "schema": schema, "notes": notes}
    law = _coefficients(released.family, released.columns, phi, prior_sd)
    return replace(
        law.learned_from(aggregates, released.rounds, schema),
        method=FISHER_SCORING,
        warnings=(*notes, *about_data(released.missing, aggregates), *warnings),
        refitter=shrinkable(partial(regression_of_scores, tuple(aggregates), **own)),
    )


def warnings_of(released: Scores, phi: Normal) -> list[str]:
    """Return reasons to doubt this posterior of φ given the rounds."""
    first, logistic = released.scores[0], isinstance(released.family, Bernoulli)
    squares, noise = symmetric(first.curved)[1:, 1:], float(np.sqrt(first.noise_variance))
    warnings = list(about_collinearity(released.columns.columns, squares, noise))
    asked = np.array(released.rounds[-1].parameters["theta"])
    away = float(np.abs(phi.mean[: asked.size] - asked).max())
    advice = "raise epsilon" if logistic else "ask for more rounds, or raise epsilon"  # `logistic` sets no rounds
    warnings += about_far_request(away, AWAY_MAX if released.family.disperses else AWAY_MAX_OF_LINEAR, advice)
    if isinstance(released.family, StudentT) and phi.mean[-1] < FAR_SCALE:
        warnings.append(
            f"the {RESIDUAL_SCALE} is far below the target's spread, from which the rounds began, so it is probably "
            "stated too large, by a tenth to the double; its interval may fail; those of coefficients are not concerned"
        )
    if not warnings:
        features = released.columns.columns[:-1]
        mixed = inseparable(features, phi.cov[1:-1, 1:-1])
        if not mixed and not logistic and together(phi.cov[1:-1, 1:-1]) >= TOGETHER:
            mixed = _hidden(released, features)
        warnings += [about_separate(mixed)] if mixed else []
    if logistic and (strong := _strong(released, phi)):
        warnings.append(
            f"noise hides how large the effects of {listed(strong, len(strong))} are, because most odds are large or "
            "small; they may be larger than their intervals; raise epsilon, or take more rows"
        )
    return warnings


def _hidden(released: Scores, features: Sequence[str]) -> list[str]:
    """Return what `repeated` does of the first round's features."""
    first, squares = released.scores[0], released.rows.squares / released.rows.squares[0, 0]
    unit = float(symmetric(first.curved)[0, 0])
    mean = squares[0, 1:]
    return repeated(features, squares[1:, 1:] - np.outer(mean, mean), float(np.sqrt(first.noise_variance)) / unit)


def _strong(released: Scores, phi: Normal) -> list[str]:
    """Return the features with the largest effects, if log odds vary by `SPREAD_MAX` and noise leaves them unsure.

    Most rows then inform about little, rounds bend, and estimates are too small.
    """
    effects, sds = np.abs(phi.mean[1:-1]), np.sqrt(np.diag(phi.cov))[1:-1]
    large = effects > effects.max() / 2
    if np.std(released.rows.x @ phi.mean[:-1]) < SPREAD_MAX or sds[large].max() < UNSURE:
        return []
    return [name for name, one in zip(released.columns.columns, large, strict=False) if one]


def _coefficients(family: Family, columns: Standardisation, phi: Normal, prior_sd: float) -> Coefficients:
    """Convert φ to a regression and, from its last coordinate, a spread."""
    last, sd = float(phi.mean[-1]), float(np.sqrt(phi.cov[-1, -1]))
    spread, residual = None, 0.0
    if isinstance(family, StudentT):
        sigma, nu = float(columns.scale[-1] * np.exp(last)), family.degrees
        spread = Spread(RESIDUAL_SCALE, sigma, sigma * sd)
        residual = np.exp(2 * last) * (nu / (nu - 2) if nu > 2 else inf)
    elif family.sends_dispersion:
        spread = Spread(DISPERSION, max(last, 0.0), sd)
    prior = prior_of(family, columns, prior_sd)
    return Coefficients(
        columns=columns,
        link=family.link,
        mean=phi.mean[:-1],
        cov=phi.cov[:-1, :-1],
        prior_mean=prior.mean[:-1],
        prior_sd=prior.precision[:-1] ** -0.5,
        residual_variance=residual,
        spread=spread,
    )


def prior_of(family: Family, columns: Standardisation, prior_sd: float) -> Prior:
    """Return the prior described above. Raises `DataError` if ``prior_sd`` is not above 0."""
    require_positive("prior_sd", prior_sd)
    slopes = np.full(len(columns.columns) - 1, prior_sd)
    first, first_sd, last, last_sd = 0.0, 3.0, log(0.5), 2.0
    if isinstance(family, Bernoulli):
        first, first_sd, last, last_sd = 0.0, prior_sd, 0.0, 1.0
    elif family.disperses:
        first, first_sd, last, last_sd = log(columns.bound[-1] / 3), 3.0, 0.0, 1.0
    return Prior(np.r_[first, 0 * slopes, last], 1 / np.r_[first_sd, slopes, last_sd] ** 2)


def rows_of(family: Family, columns: Standardisation, squares: Array) -> Rows:
    """Return simulated rows for these columns."""
    bound = float(columns.bound[-1])
    return Rows(family, squares, columns.bound[:-1], (-bound, bound))


def family_of(aggregate: NoisyAggregate) -> Family:
    """Return the model that a round asked about. Raises `DataError` if it is not one of `FAMILIES`."""
    name = aggregate.parameters["family"]
    if name not in FAMILIES:
        raise DataError(f"an aggregate is of the family {name!r}; expected one of: {', '.join(FAMILIES)}")
    return StudentT(aggregate.parameters["degrees"]) if name == StudentT.name else FAMILIES[name]()


def _score(aggregate: NoisyAggregate, family: Family) -> NoisyScore:
    given, value, d = aggregate.parameters, aggregate.value, len(aggregate.parameters["columns"])
    dispersion, terms = given.get("dispersion", 0.0), d * (d + 1) // 2
    theta, size = np.array(given["theta"], float), len(given["theta"])
    observed = np.ones(d + 1, dtype=bool)
    score = value[:size]
    if family.disperses:
        observed[-1] = dispersion > 0
        theta, score = (
            np.r_[theta, given.get("overdispersion", 0.0)],
            np.r_[score, value[size + terms] if dispersion else 0.0],
        )
    asked = Request(theta, given["clip"], given["information"], dispersion, given.get("curves", False))
    curves, first = None, size + terms + (dispersion > 0)
    if asked.curves:
        own = np.split(value[first : first + (d - 1) * (d + 2)], [d - 1, (d - 1) * (d + 1)])
        curves = Curves(own[0], own[1].reshape(d - 1, d), own[2])
    return NoisyScore(asked, score, value[size : size + terms], aggregate.noise_variance, observed, curves)


def exact_fit(
    X: Array, y: Array, family: Family, prior_sd: float = PRIOR_SD, names: Sequence[str] = ()
) -> Coefficients:
    """Fit the same model to raw rows, without privacy.

    The result is the posterior's mode with a sandwich covariance; for two classes, with the inverse curvature. Counts
    are negative binomial with the most likely κ, as in private rounds: if the mean is no log-linear function of the
    features, slopes depend on how rows of large means are weighted, and those of Poisson's likelihood are others.

    Args:
        X: shape ``(n, d)``. y: ``(n,)``, counts from 0 on for Poisson. names: of the features, then the target.

    Raises:
        DataError: a count is below 0, or all are 0; ``prior_sd`` is not above 0.
    """
    if family.sends_dispersion and (y.min() < 0 or not y.any()):
        raise DataError(f"counts lie in {y.min():g} to {y.max():g}; expected 0 or more, and one above 0")
    centre, scale = standardisation(np.column_stack([X, y]))
    if family.disperses:
        centre[-1], scale[-1] = 0.0, 1.0
    bound = np.r_[np.full(X.shape[1], np.inf), 3 * max(float(y.mean()), 1e-3) if family.disperses else np.inf]
    labels = tuple(names) or (*(f"x{j}" for j in range(X.shape[1])), "y")
    columns = Standardisation(labels, centre, scale, bound)
    prior = prior_of(family, columns, prior_sd)
    x, target = np.insert((X - centre[:-1]) / scale[:-1], 0, 1.0, axis=1), (y - centre[-1]) / scale[-1]
    return replace(_coefficients(family, columns, _mode(family, x, target, prior), prior_sd), contributors=len(y))


def _mode(family: Family, x: Array, y: Array, prior: Prior) -> Normal:
    """Find the mode by Fisher scoring; for counts, in turn with the most likely κ."""
    phi = prior.mean.copy()
    if not family.sends_dispersion:
        return _scored(family, x, y, prior, phi)
    phi[0], phi[-1] = log(max(float(y.mean()), 1e-9)), 0.0
    for _ in range(STEPS):
        found, before = _scored(family, x, y, prior, phi), phi[-1]
        phi = found.mean.copy()
        phi[-1], found.cov[-1, -1] = _dispersion(y, family.mean(phi, x))
        if abs(phi[-1] - before) < KAPPA_CONVERGED:
            break
    return Normal(phi, found.cov)


def _scored(family: Family, x: Array, y: Array, prior: Prior, start: Array) -> Normal:
    """Find the mode by Fisher scoring, of θ alone for a family with κ: it stays as it is at the start."""
    phi, q, n = start.copy(), x.shape[1] + (not family.disperses), len(x)
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
    cov[:q, :q] = inverse
    if not isinstance(family, Bernoulli):  # counts may be overdispersed, and residuals may have outliers
        cov[:q, :q] = inverse @ (centred.T @ centred + np.diag(prior.precision[:q])) @ inverse
    return Normal(phi, cov)


def _dispersion(y: Array, mean: Array) -> tuple[float, float]:
    """Return the most likely κ of negative binomial counts of these means, and its sandwich variance.

    κ is 0 if counts vary no more than Poisson's; its variance is then that of the moments' estimate.
    """

    def scores(kappa: float) -> Array:
        """The derivative of each row's log likelihood."""
        r = 1 / kappa
        digammas = digamma(y + r) - digamma(r)
        return np.asarray(r**2 * (np.log1p(kappa * mean) - digammas) + r * y - (y + r) * mean / (1 + kappa * mean))

    excess = ((y - mean) ** 2 - y) / (mean**2).sum()
    if excess.sum() <= 0 or scores(DISPERSION_MIN).sum() <= 0:
        return 0.0, float((excess**2).sum())
    if scores(KAPPA_MAX).sum() >= 0:
        kappa = KAPPA_MAX
    else:
        kappa = float(brentq(lambda at: scores(at).sum(), DISPERSION_MIN, KAPPA_MAX))
    width = kappa * KAPPA_STEP
    falls = (scores(kappa - width).sum() - scores(kappa + width).sum()) / (2 * width)
    return kappa, float((scores(kappa) ** 2).sum() / falls**2)
