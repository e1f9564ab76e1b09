"""What clients of one row each report, without messages: the real mechanisms of the product, exact noise.

    sufficient statistics   xxᵀ, xy and, of a number, y², of features within the ball of radius 1 and |y| <= R_y
    inputs                  features within that ball with (1 - c)ε, and the label by randomised response with cε
    gradients               whatever a job asks for round by round (`Reporters`)

**Tight** is this library's: the exact sensitivity, and the weights of the blocks that make the total error least.
**As published** is Corollary 3.1 or 13.1 with equal weights: Δ² = 3R_y⁴/2 + 2R_y² + 2, and 4½ for labels. Both bounds
hold; the first is 1.24 times the exact value at R_y = 2, the second is exact. With a constant feature, which the paper
does not have, neither would hold. As σ = Δ/μ, that noise is the exact one at a smaller μ, and so drawn.

`Reporters` is `emulator.ideal.IdealSwarm` for one row each and one report each, to the bit where the keys are the same;
a group of B of N clients costs it B and not N, of which LDP-SGD has thousands. A client has (ε, δ) for one report: a
job that asks for more is ended.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray

from dca_proto.aggregate import LdpReportRequest, LocalReports, NoAggregate, NoisyAggregate, RoundRequest
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES
from dca_proto.errors import UsageError
from dca_proto.jobs.job import FRACTION_BITS
from dca_proto.privacy.accounting import epsilon_of, mu_of
from dca_proto.privacy.local import AnalyticGaussian, RandomisedResponse
from dca_proto.statistics import Regression, Sensitivity, Statistic, Sum, resolve
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.weights import best_regression_weights
from inference.columns import into_ball
from inference.problem import Array
from papers.ldp2021.regression_data import BALL, Split

ROWS_MAX = 1
UNIT = math.ldexp(1.0, -FRACTION_BITS)
WIDE = 1000.0
"""Where columns are clamped before a row is brought into the ball, which bounds them anyway: nowhere."""
TARGET = "y"


class Terms(NamedTuple):
    """ε and δ of each client's report, or of all that it reports."""

    epsilon: float
    delta: float


def exact_sensitivity(statistic: Statistic) -> Sensitivity:
    """Of a client's report, as the protocol has it."""
    return client_sensitivity(statistic, ROWS_MAX, FRACTION_BITS)


def corollary(target_bound: float, *, label: bool) -> float:
    """Δ2² of R = 1 and equal weights, without a constant feature: Corollary 3.1, or 13.1 of labels -1 and 1."""
    return 4.5 if label else 1.5 * target_bound**4 + 2 * target_bound**2 + 2


class Reporters:
    """Clients, each with a row of ``(n, columns)``, of which each reports once (`inference.rounds.Rounds`).

    Args:
        columns: their names. terms: of each report. rng: of who is asked when, and of all keys.
    """

    def __init__(self, rows: Array, columns: Sequence[str], terms: Terms, rng: np.random.Generator) -> None:
        self._rows, self._columns, self._terms, self._rng = rows, tuple(columns), terms, rng
        self._left = rng.permutation(len(rows))

    def hold(self, request: RoundRequest) -> NoisyAggregate:
        """A round of reports by the analytic Gaussian mechanism.

        Raises:
            NoAggregate: fewer clients than are asked for have not reported yet.
            UsageError: the request is of other columns or terms.
        """
        by = request.mechanism if isinstance(request, LdpReportRequest) else ""
        if by != AnalyticGaussian.name or request.rows_max != ROWS_MAX or request.budget_share != 1:
            raise UsageError(f"found a request of {by!r}; expected one report with the whole budget")
        statistic = resolve(request.statistic, request.parameters)
        if statistic.columns != self._columns:
            raise UsageError(f"found columns {', '.join(statistic.columns)}; expected {', '.join(self._columns)}")
        count = request.batch or len(self._rows)
        if count > len(self._left):
            raise NoAggregate(f"{count} clients are asked for, and {len(self._left)} have not spent their budget")
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
            fewest=0,
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
    """Of the features, then the target."""
    return (*(f"x{place + 1}" for place in range(rows.X.shape[1])), TARGET)


def statistic_of(rows: Split, *, label: bool, weighted: bool) -> Regression:
    """The sufficient statistics' round, public but for what `Split` reads from rows as published."""
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
    """All clients' reports of their sufficient statistics, summed.

    As published (not tight) the terms are those at which the exact noise is the one that the paper has at the given
    ones; with a constant feature that raises `UsageError`.
    """
    statistic = statistic_of(rows, label=label, weighted=tight)
    if not tight:
        if rows.intercept:
            raise UsageError("Corollaries 3.1 and 13.1 are without a constant feature; use the exact sensitivity")
        exact = exact_sensitivity(statistic).l2 * UNIT
        looser = max(1.0, math.sqrt(corollary(rows.target_bound, label=label)) / exact)
        terms = Terms(epsilon_of(mu_of(*terms) / looser, terms.delta), terms.delta)
    by = AnalyticGaussian.name
    request = LdpReportRequest(statistic.name, to_builtins(statistic), rows_max=ROWS_MAX, mechanism=by)
    return Reporters(_table(rows, rows.X), names_of(rows), terms, rng).hold(request)


def unnoised(rows: Split, *, label: bool) -> NoisyAggregate:
    """The same sums of the same clipped rows, without noise; not private."""
    noisy = sufficient(rows, Terms(1.0, 1e-5), np.random.default_rng(0), label=label, tight=True)
    statistic = resolve(noisy.statistic, noisy.parameters)
    total = statistic.evaluate(_table(rows, rows.X), FRACTION_BITS).sum(axis=0) * UNIT
    return dataclasses.replace(noisy, value=total, noise_variance=0.0, private=False, reports=None)


def inputs(rows: Split, terms: Terms, share: float, rng: np.random.Generator) -> tuple[LocalReports, LocalReports]:
    """Perturbed features and labels of all clients. share: c, the label's part of ε; δ is all of the features'."""
    names = names_of(rows)[:-1]
    d = len(names)
    ball = Sum(columns=names, centre=(0.0,) * d, scale=(1.0,) * d, bound=(WIDE,) * d, radius=BALL)
    mechanism = AnalyticGaussian((1 - share) * terms.epsilon, terms.delta, exact_sensitivity(ball), d)
    values = ball.evaluate(rows.X, FRACTION_BITS)
    features = mechanism.decode_reports(mechanism.randomise(values, rng.bytes(KEY_BYTES)), UNIT)
    response = RandomisedResponse(share * terms.epsilon, 2)
    labels: NDArray[np.int64] = (rows.y > 0).astype(np.int64)
    return features, response.decode_reports(response.randomise(labels, rng.bytes(KEY_BYTES)), UNIT)


def gradient_reporters(rows: Split, terms: Terms, rng: np.random.Generator) -> Reporters:
    """Clients for LDP-SGD, which clips gradients: as published rows are left as they are, else within the ball."""
    X = into_ball(rows.X, BALL) if rows.private else rows.X
    return Reporters(_table(rows, X), names_of(rows), terms, rng)


def _table(rows: Split, X: Array) -> Array:
    return np.column_stack([X, rows.y])
