"""The methods of Figures 4 and 5 on one repeat's rows: a score on the test rows, and a report of the run.

    sufficient statistics   noise-aware posterior given the sum of the reports (section 13): tight, and as published
    perturbed inputs        noise-aware posterior given each report (12.2): the paper's polynomial of order 2, the next
                            even order, 4, and the exact sigmoid
    LDP-SGD                 section 4.2, by `inference.models.glm.sgd`: at its default rate, and at those of a grid,
                            whose best rate is known in hindsight only
    ridge                   (S + λI)⁻¹z of the releases with the paper's noise, λ = 4s√d, S made positive semi-definite
    no privacy              the same posterior from the exact sums of the same clipped rows; and least squares or
                            maximum-likelihood logistic regression on rows that are not clipped
    no model                the mean of the target; for labels, an AUC of ½

All models of one setting have the same features, and all or none have an intercept. A posterior predicts a number by
its mean, and a label by its mean probability. LDP-SGD's parameters are public: groups of the paper's order, each client
once, C = 1. The paper (after Wang et al. 2019) asks for groups of the order d log d/ε², names no constant, and gives no
rule for steps. Here the steps are those for convex functions whose noisy gradients have E|ḡ|² <= ρ² (Bassily, Smith and
Thakurta 2014), and the last half of the iterates is averaged (Rakhlin, Shamir and Sridharan 2012):

    η_t = rate/(ρ√t),      ρ² = C² + d s²,      s² the variance of the noise in each coordinate of the mean gradient

**Reports.** Each client has one row and reports it without messages, by the product's mechanisms with exact noise.

    sufficient statistics   xxᵀ, xy and, for a number, y², of features within the ball of radius 1 and |y| <= R_y
    inputs                  features within that ball with (1 - c)ε, and the label by randomised response with cε
    gradients               what a job asks for round by round (`Reporters`)

**Tight** is this library's noise: the exact sensitivity, and the block weights that minimise the total error. **As
published** is Corollary 3.1 or 13.1 with equal weights: Δ² = 3R_y⁴/2 + 2R_y² + 2, and 4½ for labels. Both bounds hold;
the first is 1.24 times the exact value at R_y = 2, the second is exact. With a constant feature, which the paper does
not have, neither would hold. As σ = Δ/μ, that noise equals the exact one at a smaller μ, and is drawn this way.

`Reporters` equals `emulator.ideal.IdealSwarm` for one row and one report per client, bit for bit if the keys are equal.
But a group of B of N clients costs it B evaluations instead of N, and LDP-SGD has thousands of groups. A client has
(ε, δ) for one report; a job that asks for more ends with an error.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.special import expit

from dca_proto.aggregate import LocalReports, NoisyAggregate, RoundRequest
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES
from dca_proto.errors import NoAggregate, UsageError
from dca_proto.jobs.job import FRACTION_BITS
from dca_proto.privacy.accounting import epsilon_of, mu_of
from dca_proto.privacy.local import AnalyticGaussian, RandomisedResponse
from dca_proto.protocol.wire.kinds import LdpReport
from dca_proto.statistics import Regression, Sensitivity, Statistic, Sum, resolve
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.weights import best_regression_weights
from inference.columns import Standardisation, into_ball
from inference.models import fit
from inference.models.glm.families import Bernoulli
from inference.models.glm.scored_fit import exact_fit
from inference.models.glm.sgd import groups
from inference.models.priors import RegressionPrior
from inference.models.scores import area_under_curve
from inference.posterior import Posterior
from inference.problem import Array
from inference.variational.models import BERNOULLI, NORMAL
from papers.ldp2021.column_fits import mixed
from papers.ldp2021.regression_data import BALL, Split

TIGHT, COROLLARY = "sufficient statistics, this library's noise", "sufficient statistics, the paper's noise"
RIDGE = "ridge, the paper's noise"
INPUTS_2, INPUTS_4, INPUTS = "perturbed inputs, order 2", "perturbed inputs, order 4", "perturbed inputs, exact"
ORDERS = {INPUTS_2: 2, INPUTS_4: 4, INPUTS: None}
SGD, SGD_ALL = "LDP-SGD", "LDP-SGD, all records"
BAYES, CLASSICAL, NO_MODEL = WITHOUT_NOISE = ("no privacy, clipped rows", "no privacy, maximum likelihood", "no model")
SAME_RELEASES = {RIDGE: COROLLARY}
"""Methods that learn from another's releases, with the same noise."""
PER_INPUT = (*ORDERS, SGD)
"""The methods that get 10,000 of Adult's records."""
KEPT = 200  # draws that probabilities are averaged over
PENALTY = 4.0
"""λ of the ridge in units of s√d: the largest eigenvalue of the noise in S is at most 2s√d on average."""
VAGUE = 1e3  # the prior's standard deviation in "maximum likelihood"
CLIP, AVERAGED, STEPS_MAX = 1.0, 0.5, 2000  # of LDP-SGD
UNCLIPPED = 1e6  # of columns in LDP-SGD as published
ROWS_MAX = 1
UNIT = math.ldexp(1.0, -FRACTION_BITS)
WIDE = 1000.0
"""The bound of each column before a row is clipped to the ball: so wide that it has no effect."""
TARGET = "y"


class Terms(NamedTuple):
    """ε and δ of all that a client reports."""

    epsilon: float
    delta: float


def exact_sensitivity(statistic: Statistic) -> Sensitivity:
    """Return the sensitivity of a client's report, as the protocol computes it."""
    return client_sensitivity(statistic, ROWS_MAX, FRACTION_BITS)


def corollary(target_bound: float, *, label: bool) -> float:
    """Return Δ2² for R = 1 and equal weights, without a constant feature: Corollary 3.1, or 13.1 for labels ±1."""
    return 4.5 if label else 1.5 * target_bound**4 + 2 * target_bound**2 + 2


class Reporters:
    """Rounds of clients that have one row each, ``(n, columns)``, and report once (`inference.rounds.Rounds`).

    Args:
        terms: of each report. rng: draws the order of the clients, and all keys.
    """

    def __init__(self, rows: Array, columns: Sequence[str], terms: Terms, rng: np.random.Generator) -> None:
        self._rows, self._columns, self._terms, self._rng = rows, tuple(columns), terms, rng
        self._left = rng.permutation(len(rows))

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        """Run a round of reports by the analytic Gaussian mechanism.

        Raises:
            NoAggregate: too few clients have budget left.
            UsageError: the request has other columns or terms.
        """
        by = request.kind.mechanism
        if by != AnalyticGaussian.name or request.rows_max != ROWS_MAX or request.budget_share != 1:
            raise UsageError(f"found a request of {by!r}; expected one report with the whole budget")
        statistic = resolve(request.statistic, request.parameters)
        if statistic.columns != self._columns:
            raise UsageError(f"found columns {', '.join(statistic.columns)}; expected {', '.join(self._columns)}")
        count = request.batch or len(self._rows)
        if count > len(self._left):
            raise NoAggregate(f"the round needs {count} clients; {len(self._left)} have not spent their budget")
        asked, self._left = self._left[:count], self._left[count:]
        mechanism = AnalyticGaussian(*self._terms, exact_sensitivity(statistic), statistic.dimension)
        values = statistic.evaluate(self._rows[asked], FRACTION_BITS)
        reports = mechanism.decode_reports(mechanism.randomise(values, self._rng.bytes(KEY_BYTES)), UNIT)
        session = self._rng.bytes(KEY_BYTES)
        return NoisyAggregate(
            value=reports.values.sum(axis=0),
            noise_variance=count * mechanism.noise_variance * UNIT**2,
            statistic=request.statistic,
            parameters=request.parameters,
            contributors=count,
            clients=count,
            n_min=0,
            colluders=0,
            mechanism=mechanism.name,
            sensitivity=mechanism.sensitivity.l2 * UNIT,
            relation=mechanism.sensitivity.relation,
            sigma_local=mechanism.noise_scale * UNIT,
            epsilon=mechanism.epsilon,
            delta=mechanism.delta,
            mu=mechanism.mu,
            round_id=self._rng.bytes(ID_BYTES),
            announcement_hash=session,
            contributors_hash=session,
            reports=reports,
        )


def names_of(rows: Split) -> tuple[str, ...]:
    """Return the names of the features, then of the target."""
    return (*(f"x{place + 1}" for place in range(rows.X.shape[1])), TARGET)


def statistic_of(rows: Split, *, label: bool, weighted: bool) -> Regression:
    """Return the statistic of the sufficient statistics' round."""
    names = names_of(rows)
    d = len(names) - 1
    plain = Regression(
        columns=names,
        centre=(0.0,) * (d + 1),
        scale=(1.0,) * (d + 1),
        bound=(1.0,) * d + (rows.target_bound,),
        radius=BALL,
        intercept=rows.intercept,
        target_square=not label,
    )
    weights = best_regression_weights(plain, FRACTION_BITS) if weighted else plain.weights
    return replace(plain, weights=weights, bound=(WIDE,) * d + (rows.target_bound,))


def sufficient(rows: Split, terms: Terms, rng: np.random.Generator, *, label: bool, tight: bool) -> NoisyAggregate:
    """Return the sum of all clients' reports of their sufficient statistics.

    As published (not tight), ε is lowered so that the exact noise equals the paper's; with a constant feature this
    raises `UsageError`.
    """
    statistic = statistic_of(rows, label=label, weighted=tight)
    if not tight:
        if rows.intercept:
            raise UsageError("Corollaries 3.1 and 13.1 exclude a constant feature; use the exact sensitivity")
        exact = exact_sensitivity(statistic).l2 * UNIT
        looser = max(1.0, math.sqrt(corollary(rows.target_bound, label=label)) / exact)
        terms = Terms(epsilon_of(mu_of(*terms) / looser, terms.delta), terms.delta)
    by = AnalyticGaussian.name
    request = RoundRequest(statistic.name, to_builtins(statistic), rows_max=ROWS_MAX, kind=LdpReport(by))
    return Reporters(_table(rows, rows.X), names_of(rows), terms, rng).run_round(request)


def ridge(released: NoisyAggregate) -> Array:
    """Return θ of a ridge whose penalty follows from the noise alone, shape ``(d,)``."""
    blocks = resolve(released.statistic, released.parameters).unpack(released.value)  # type: ignore[attr-defined]
    eigenvalues, vectors = np.linalg.eigh(blocks[0])
    sd, d = sqrt(float(np.max(released.noise_variance))), len(eigenvalues)
    return np.asarray(vectors @ ((vectors.T @ blocks[1]) / (eigenvalues.clip(0) + PENALTY * sd * sqrt(d))))


def unnoised(rows: Split, *, label: bool) -> NoisyAggregate:
    """Return the same sums of the same clipped rows, without noise; not private."""
    noisy = sufficient(rows, Terms(1.0, 1e-5), np.random.default_rng(0), label=label, tight=True)
    statistic = resolve(noisy.statistic, noisy.parameters)
    total = statistic.evaluate(_table(rows, rows.X), FRACTION_BITS).sum(axis=0) * UNIT
    return dataclasses.replace(noisy, value=total, noise_variance=0.0, private=False, reports=None)


def inputs(rows: Split, terms: Terms, share: float, rng: np.random.Generator) -> tuple[LocalReports, LocalReports]:
    """Return all clients' perturbed features and labels; `share` is c, the label's part of ε. Features get all δ."""
    names = names_of(rows)[:-1]
    d = len(names)
    ball = Sum(columns=names, centre=(0.0,) * d, scale=(1.0,) * d, bound=(WIDE,) * d, radius=BALL)
    mechanism = AnalyticGaussian((1 - share) * terms.epsilon, terms.delta, exact_sensitivity(ball), d)
    values = ball.evaluate(rows.X, FRACTION_BITS)
    features = mechanism.decode_reports(mechanism.randomise(values, rng.bytes(KEY_BYTES)), UNIT)
    response = RandomisedResponse(share * terms.epsilon, 2)
    labels: NDArray[np.int64] = (rows.y > 0).astype(np.int64)
    return features, response.decode_reports(response.randomise(labels, rng.bytes(KEY_BYTES)), UNIT)


def _table(rows: Split, X: Array) -> Array:
    return np.column_stack([X, rows.y])


class Conditions(NamedTuple):
    """The settings of one run."""

    terms: Terms  # of each client; unused by methods without noise
    label: bool  # True if the target is a label
    rate: float | None = None  # of LDP-SGD; None for 1
    share: float = 0.5  # c: the label's part of ε
    iterations: int = 1000  # of each chain, half of them warm-up


class Result(NamedTuple):
    """A score on the test rows, and further figures of the run."""

    score: float
    report: dict[str, Any]


def scored(method: str, rows: Split, conditions: Conditions, rng: np.random.Generator) -> Result:
    """Run a method; the score is the AUC for labels, else the root mean squared error in units of the data."""
    report: dict[str, Any] = {}
    if method in (SGD, SGD_ALL):
        predicted, report = _descended(rows, conditions, rng)
    elif method == CLASSICAL:
        predicted = _classical(rows, conditions.label)
    elif method == RIDGE:
        predicted = rows.X_test @ ridge(sufficient(rows, conditions.terms, rng, label=conditions.label, tight=False))
    elif method == NO_MODEL:
        predicted = np.full(len(rows.y_test), rows.y.mean())
    else:
        fitted, how = mixed(_fit(method, rows, conditions, rng), conditions.iterations, int(rng.integers(2**31)))
        predicted, report = _predicted(fitted, rows.seen_test, conditions.label), how._asdict()
    if conditions.label:
        return Result(area_under_curve(predicted, rows.y_test > 0), report)
    return Result(rows.unit * float(np.sqrt(np.mean((predicted - rows.y_test) ** 2))), report)


def _fit(method: str, rows: Split, conditions: Conditions, rng: np.random.Generator) -> Callable[..., Posterior]:
    """Draw the reports; return a function that fits the posterior, given the sampling options."""
    label, terms, prior = conditions.label, conditions.terms, RegressionPrior()
    if method in ORDERS:
        from papers.ldp2021 import chebyshev  # imports JAX, which is slow and which other methods do not need

        features, labels = inputs(rows, terms, conditions.share, rng)
        mean = None if ORDERS[method] is None else chebyshev.clipped(ORDERS[method])
        return partial(fit.row_regression, features, prior, labels=labels, intercept=rows.intercept, mean=mean)
    if method == BAYES:
        released = unnoised(rows, label=label)
    else:
        released = sufficient(rows, terms, rng, label=label, tight=method == TIGHT)
    return partial(fit.regression, released, prior, logistic=label)


def _predicted(found: Posterior, X: Array, label: bool) -> Array:
    """Return the mean over draws of the target, or of a label's probability of being 1, shape ``(k,)``."""
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
    number, size = groups(len(rows.y), group_size(dimension, terms.epsilon), STEPS_MAX)
    bounds = np.r_[np.ones(d), rows.target_bound] if rows.private else np.full(d + 1, UNCLIPPED)
    columns = Standardisation(names, np.zeros(d + 1), np.ones(d + 1), bounds)
    asked = columns.parameters() | {"clip": CLIP, "family": family, "intercept": rows.intercept}
    X = into_ball(rows.X, BALL) if rows.private else rows.X  # as published, only the job's gradients are clipped
    reporters, rate = Reporters(_table(rows, X), names, terms, rng), conditions.rate or 1.0
    iterates, noise_sd = [np.zeros(dimension)], []
    for t in range(1, number + 1):
        parameters, by = asked | {"theta": iterates[-1].tolist()}, AnalyticGaussian.name
        reports = reporters.run_round(RoundRequest("gradient", parameters, rows_max=1, batch=size, kind=LdpReport(by)))
        gradient, variance = reports.value / size, reports.noise_variance / size**2
        noise_sd.append(sqrt(variance))
        iterates.append(iterates[-1] + gain(rate, t, dimension, variance) * gradient)
    theta = np.mean(iterates[-max(1, round(AVERAGED * number)) :], axis=0)
    z = columns.z(rows.seen_test)
    report = {"groups": number, "group_size": size, "noise_sd": round(noise_sd[0], 4)}
    return (np.insert(z, 0, 1.0, axis=1) if rows.intercept else z) @ theta, report


def group_size(dimension: int, epsilon: float) -> int:
    """Return G = ⌈d max(ln d, 1)/ε²⌉."""
    return ceil(dimension * max(log(dimension), 1.0) / epsilon**2)


def gain(rate: float, number: int, dimension: int, variance: float) -> float:
    """Return η_t of the module's docstring, for the noise variance in each coordinate of the mean gradient."""
    return rate / (sqrt(CLIP**2 + dimension * variance) * sqrt(number))


def _classical(rows: Split, label: bool) -> Array:
    """Return the predictions of least squares or logistic regression on rows that are not clipped."""
    if label:
        fitted = exact_fit(rows.X, np.asarray(rows.y > 0, float), Bernoulli(), VAGUE)
        return np.asarray(expit(fitted.linear_predictor(rows.X_test)[0]))
    design, tested = (np.insert(X, 0, 1.0, axis=1) for X in (rows.X, rows.X_test))
    return np.asarray(tested @ np.linalg.lstsq(design, rows.y, rcond=None)[0])
