"""The methods of Figures 4 and 5 on one repeat's rows: a score on the rows to test on, and what the work reports.

    sufficient statistics   noise-aware posterior given the sum of the reports (section 13): tight, and as published
    perturbed inputs        noise-aware posterior given each report (12.2): the paper's polynomial of order 2, the next
                            even order, 4, and the sigmoid itself
    LDP-SGD                 section 4.2, by `inference.models.glm.sgd`: at its default rate, and at those of a grid, of
                            which the best at each ε is known in hindsight only
    no privacy              the same posterior from the exact sums of the same clipped rows; and least squares or
                            logistic regression (of maximum likelihood) on rows that are not clipped
    no model                the mean of the target; of labels an AUC of ½

All models of one setting have the same features, and an intercept or none. A posterior's prediction of a number is its
mean, and of a label its mean probability. LDP-SGD's parameters are public: groups of the paper's order, each client
once, C = 1. The paper (after Wang et al. 2019) asks for groups of the order d log d/ε², names no constant, and gives no
rule for steps. Here they are those of convex functions whose noisy gradients have E|ḡ|² <= ρ² (Bassily, Smith and
Thakurta 2014), of which the last half of the iterates is averaged (Rakhlin, Shamir and Sridharan 2012):

    η_t = rate/(ρ√t),      ρ² = C² + d s²,      s² the variance of the noise in each coordinate of the mean gradient
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from inference.bounds import Interval
from inference.columns import Standardisation
from inference.mcmc.posterior import LocalPosterior
from inference.models import fit
from inference.models.glm.families import Bernoulli
from inference.models.glm.regression import LocalRegression
from inference.models.glm.scored_fit import exact_fit
from inference.models.glm.sgd import Gain, SgdSettings, groups, ldp_sgd
from inference.models.priors import RegressionPrior
from inference.problem import Array, Schema
from inference.rounds import run
from inference.variational.models import BERNOULLI, NORMAL
from inference.variational.scores import area_under_curve
from papers.ldp2021.column_fits import mixed
from papers.ldp2021.regression_data import Split
from papers.ldp2021.regression_reports import Terms, gradient_reporters, inputs, names_of, sufficient, unnoised

TIGHT, COROLLARY = "sufficient statistics", "sufficient statistics, the paper's noise"
INPUTS_2, INPUTS_4, INPUTS = "perturbed inputs, order 2", "perturbed inputs, order 4", "perturbed inputs, exact"
ORDERS = {INPUTS_2: 2, INPUTS_4: 4, INPUTS: None}
SGD, SGD_ALL = "LDP-SGD", "LDP-SGD, all records"
BAYES, CLASSICAL, NO_MODEL = WITHOUT_NOISE = ("no privacy, Bayes", "no privacy, maximum likelihood", "no model")
PER_INPUT = (*ORDERS, SGD)
"""Of Adult these have 10,000 of the records."""
KEPT = 200  # draws that probabilities are averaged over
VAGUE = 1e3  # the prior's standard deviation in "maximum likelihood"
CLIP, AVERAGED, STEPS_MAX = 1.0, 0.5, 2000  # of LDP-SGD
UNCLIPPED = 1e6  # of columns in LDP-SGD as published


class Conditions(NamedTuple):
    """Of one run: what is public, and how long chains are."""

    terms: Terms  # of each client; without meaning where there is no noise
    label: bool  # whether the target is one
    rate: float | None = None  # of LDP-SGD; None for 1
    share: float = 0.5  # c: the label's part of ε
    iterations: int = 1000  # of each chain, half of them warm-up


class Result(NamedTuple):
    """A score on the rows to test on, and what else there is to say of the run."""

    score: float
    report: dict[str, Any]


def scored(method: str, rows: Split, conditions: Conditions, rng: np.random.Generator) -> Result:
    """One run of a method: AUC of labels, else the root mean squared error in units of the data."""
    report: dict[str, Any] = {}
    if method in (SGD, SGD_ALL):
        predicted, report = _descended(rows, conditions, rng)
    elif method == CLASSICAL:
        predicted = _classical(rows, conditions.label)
    elif method == NO_MODEL:
        predicted = np.full(len(rows.y_test), rows.y.mean())
    else:
        fitted, how = mixed(_fit(method, rows, conditions, rng), conditions.iterations, int(rng.integers(2**31)))
        predicted, report = _predicted(fitted, rows.seen_test, conditions.label), how._asdict()
    if conditions.label:
        return Result(area_under_curve(predicted, rows.y_test > 0), report)
    return Result(rows.unit * float(np.sqrt(np.mean((predicted - rows.y_test) ** 2))), report)


def _fit(method: str, rows: Split, conditions: Conditions, rng: np.random.Generator) -> Callable[..., LocalRegression]:
    """The posterior given reports that are drawn now, but for how to sample."""
    label, terms, prior = conditions.label, conditions.terms, RegressionPrior()
    if method in ORDERS:
        from papers.ldp2021 import chebyshev  # JAX is slow to import, and the other methods need none

        features, labels = inputs(rows, terms, conditions.share, rng)
        mean = None if ORDERS[method] is None else chebyshev.clipped(ORDERS[method])
        return lambda **how: fit.logistic_inputs(features, labels, prior, intercept=rows.intercept, mean=mean, **how)
    if method == BAYES:
        released = unnoised(rows, label=label)
    else:
        released = sufficient(rows, terms, rng, label=label, tight=method == TIGHT)
    of_sums = fit.logistic if label else fit.linear
    return lambda **how: of_sums(released, prior, **how)


def _predicted(found: LocalPosterior, X: Array, label: bool) -> Array:
    """The mean over draws of the target, or of a label's probability to be 1, shape ``(k,)``; rows as they are."""
    slopes = found.draws["coefficients"].reshape(-1, X.shape[1])
    constants = found.draws["intercept"].reshape(-1)
    if not label:
        return np.asarray(X @ slopes.mean(axis=0) + constants.mean())
    kept = slice(None, None, max(1, len(slopes) // KEPT))
    return np.asarray(expit(X @ slopes[kept].T + constants[kept]).mean(axis=1))


def _descended(rows: Split, conditions: Conditions, rng: np.random.Generator) -> tuple[Array, dict[str, Any]]:
    terms, names = conditions.terms, names_of(rows)
    d, family = len(names) - 1, BERNOULLI if conditions.label else NORMAL
    dimension = d + rows.intercept
    settings = SgdSettings(family, rows.intercept, CLIP, gain(conditions.rate or 1.0, dimension), AVERAGED)
    plan = groups(len(rows.y), group_size(dimension, terms.epsilon), STEPS_MAX)
    bounds = np.r_[np.ones(d), rows.target_bound] if rows.private else np.full(d + 1, UNCLIPPED)
    columns = Standardisation(names, np.zeros(d + 1), np.ones(d + 1), bounds)
    ends = {name: Interval(-end, end, public=rows.private) for name, end in zip(names, bounds.tolist(), strict=True)}
    job = ldp_sgd(Schema(names[:-1], names[-1], ends), plan, settings, columns=columns)
    found = run(job, gradient_reporters(rows, terms, rng))
    report = {"groups": plan.number, "group_size": plan.size, "noise_sd": round(found.noise_sd[0], 4)}
    return found.linear_predictor(rows.seen_test)[0], report


def group_size(dimension: int, epsilon: float) -> int:
    """G = ⌈d max(ln d, 1)/ε²⌉."""
    return ceil(dimension * max(log(dimension), 1.0) / epsilon**2)


def gain(rate: float, dimension: int) -> Gain:
    """η_t, as at the head."""
    return lambda number, variance: rate / (sqrt(CLIP**2 + dimension * variance) * sqrt(number))


def _classical(rows: Split, label: bool) -> Array:
    """Predictions of least squares, or of logistic regression, from rows that are not clipped."""
    if label:
        fitted = exact_fit(rows.X, np.asarray(rows.y > 0, float), Bernoulli(), VAGUE)
        return np.asarray(expit(fitted.linear_predictor(rows.X_test)[0]))
    design, tested = (np.insert(X, 0, 1.0, axis=1) for X in (rows.X, rows.X_test))
    return np.asarray(tested @ np.linalg.lstsq(design, rows.y, rcond=None)[0])
