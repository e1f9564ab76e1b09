"""When does which pay? One regression at the same (ε, δ) by who adds the noise: data, rounds and fits as cells of work.

    local                  every client tells a report with all of the noise; the sum has n times its variance
    DCA, T = 0             the protocol's sum, if nobody drops out: N/(N - 1) times the trusted aggregator's variance
    DCA, T = 10 %          the same where a tenth may drop out, and does: a tenth fewer rows, and about that variance
    trusted aggregator     one draw of it

Statistic, weights, rows and the coefficients' prior are the same, and so are the fits of a release:

    noise-aware            the noise is in the model (`inference.models.fit.linear`)
    noise-naive            the sums are taken for exact: the conjugate posterior, with the nearest sums that can be sums
                           of squares (`inference.models.linear.closed_form`, spread as published). The model of the
                           former with its noise left out has no such sums, and a density that no chain can walk.

There are two sorts of data.

- *simulated*, at two numbers of clients: 2 features, normal with standard deviation 0.3 and a correlation of 0.3, a
  target with residuals of 0.2, coefficients drawn from the prior for each repeat. Bounds are ±1 and ±2, beyond which
  few values lie (0.1 % of the features'). Covered or not is each coefficient, by its central intervals; and the error
  is what new rows of the same law would have, in closed form.
- *wine* in the valid setting of Figure 4 (`regression_data`), with fewer repeats, as its fits take longer. The truth is
  not known: covered or not is each wine that was held out, by the central interval of its predictive distribution.

A repeat has the same rows for all ε and all four, so that they are compared in pairs; noise is each cell's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from math import ceil, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from dca_proto.aggregate import LdpReportRequest, NoisyAggregate, SecureSumRequest
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.learning.job import FRACTION_BITS, JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.statistics import Regression
from dca_proto.statistics.weights import best_regression_weights
from emulator.ideal import IdealSwarm
from inference.models.glm.sites import COEFFICIENTS, INTERCEPT
from inference.models.glm.sites import RESIDUAL_SD as RESIDUAL
from inference.models.linear.aggregate_stats import posterior_of
from inference.models.linear.repair import NEAREST_PSD
from inference.models.priors import RegressionPrior
from inference.problem import stream
from inference.releases.terms import GAUSSIAN
from papers.ldp2021.column_fits import mixed
from papers.ldp2021.regression_data import VALID, WINE, Array, Choices, split
from papers.ldp2021.regression_reports import TARGET, statistic_of

LOCAL, DCA, DCA_DROPS, TRUSTED = "local", "DCA, T = 0", "DCA, T = 10 %", "trusted aggregator"
TRUST = (LOCAL, DCA, DCA_DROPS, TRUSTED)
AWARE, NAIVE = "noise-aware", "noise-naive"
SIMULATED = {"simulated, 1,000 clients": 1000, "simulated, 10,000 clients": 10_000}
WINES = "wine, 5,198 clients"
EPSILONS, QUICK_EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0), (0.3, 3.0)
DELTA = 1e-5
LEVELS = (0.5, 0.9)
FEATURES, FEATURE_SD, CORRELATION, RESIDUAL_SD, REACH = 2, 0.3, 0.3, 0.2, 2.0
PRIOR = RegressionPrior(coefficient_sd=0.5, intercept_sd=0.2, feature_sd=0.5, feature_mean_sd=0.2, residual_sd=0.5)
REPEATS, QUICK_REPEATS, PART = 30, 4, 5
WINE_PART = 4  # of the repeats of simulated data one for each so many
ITERATIONS, QUICK_ITERATIONS = 600, 400
NAIVE_DRAWS = 2000
DROPPED = 0.1


class Rows(NamedTuple):
    """One repeat's rows, in the units of the model.

    Attributes:
        table: of all clients, the target last, shape ``(N, d + 1)``. statistic: of them.
        prior: of the model. truth: intercept and coefficients, ``(d + 1,)``, where they are known.
        tested: rows that are held out, the target last, where they are not. unit: of the target.
    """

    table: Array
    statistic: Regression
    prior: RegressionPrior
    truth: Array | None = None
    tested: Array | None = None
    unit: float = 1.0


@dataclass(frozen=True)
class Plan:
    """What is run: so many repeats of simulated data, by chains of so many iterations."""

    folder: Path | None
    seed: int
    repeats: int = REPEATS
    epsilons: tuple[float, ...] = EPSILONS
    iterations: int = ITERATIONS
    data: tuple[str, ...] = (*SIMULATED, WINES)

    def repeats_of(self, data: str) -> int:
        """How many of a sort of data."""
        return -(-self.repeats // WINE_PART) if data == WINES else self.repeats

    @property
    def settings(self) -> dict[str, Any]:
        """What a cell's results depend on beside it."""
        return {"seed": self.seed, "delta": DELTA, "iterations": self.iterations}


@dataclass(frozen=True)
class Cell:
    """Some repeats of data at an ε, by who adds the noise: ``count`` from the ``first`` on."""

    data: str
    trust: str
    epsilon: float
    first: int
    count: int

    def __str__(self) -> str:
        last = self.first + self.count - 1
        return f"{self.data}, {self.trust}, epsilon {self.epsilon:g}, repeats {self.first} to {last}"


def cells(plan: Plan) -> list[Cell]:
    """All of them, the repeats of the same after each other."""
    return [
        Cell(data, trust, epsilon, first, min(PART, plan.repeats_of(data) - first))
        for data in plan.data
        for trust in TRUST
        for epsilon in plan.epsilons
        for first in range(0, plan.repeats_of(data), PART)
    ]


def work(cell: Cell, plan: Plan) -> dict[str, Any]:
    """Of each repeat: both fits' test error and coverage, and the errors without privacy and without a model."""
    found: dict[str, Any] = {AWARE: [], NAIVE: [], "without privacy": [], "without a model": []}
    for repeat in range(cell.first, cell.first + cell.count):
        rows = rows_of(cell.data, plan, repeat)
        rng = stream(plan.seed, f"local/trust/{cell}/{repeat}")
        released = release(rows, cell.trust, cell.epsilon, rng)
        for name in (AWARE, NAIVE):
            drawn = aware(rows, released, plan.iterations, rng) if name == AWARE else naive(rows, released, rng)
            found[name].append(judged(rows, drawn, rng))
        found["without privacy"].append(_error(rows, _least_squares(rows.table)))
        found["without a model"].append(_error(rows, np.r_[rows.table[:, -1].mean(), np.zeros(_features(rows))]))
    return found


# --- data -------------------------------------------------------------------------------------------------------------


def rows_of(data: str, plan: Plan, repeat: int) -> Rows:
    """Those of a repeat."""
    if data == WINES:
        return _wines(plan, repeat)
    return simulated(SIMULATED[data], stream(plan.seed, f"local/trust/rows/{data}/{repeat}"))


def simulated(clients: int, rng: np.random.Generator) -> Rows:
    """As at the head."""
    truth = np.r_[PRIOR.intercept_sd, np.full(FEATURES, PRIOR.coefficient_sd)] * rng.standard_normal(FEATURES + 1)
    X = rng.standard_normal((clients, FEATURES)) @ _root().T
    y = truth[0] + X @ truth[1:] + RESIDUAL_SD * rng.standard_normal(clients)
    return Rows(np.column_stack([X, y]), _simulated_statistic(), PRIOR, truth)


def _root() -> Array:
    """A root of the simulated features' covariance."""
    correlations = np.full((FEATURES, FEATURES), CORRELATION) + (1 - CORRELATION) * np.eye(FEATURES)
    return np.asarray(FEATURE_SD * np.linalg.cholesky(correlations))


def _wines(plan: Plan, repeat: int) -> Rows:
    """Features within the ball of radius 1, as clients bring them there and whoever predicts does."""
    made = split(WINE, plan.folder, VALID, repeat, plan.seed, Choices())
    statistic = statistic_of(made, label=False, weighted=True)
    tested = np.column_stack([made.seen_test, made.y_test])
    return Rows(np.column_stack([made.X, made.y]), statistic, RegressionPrior(), None, tested, made.unit)


@lru_cache(maxsize=1)
def _simulated_statistic() -> Regression:
    """Sums of products with a constant, at the weights that make the total error least."""
    plain = Regression(
        columns=(*(f"x{place + 1}" for place in range(FEATURES)), TARGET),
        centre=(0.0,) * (FEATURES + 1),
        scale=(1.0,) * (FEATURES + 1),
        bound=(1.0,) * FEATURES + (REACH,),
        intercept=True,
        target_square=True,
    )
    return replace(plain, weights=best_regression_weights(plain, FRACTION_BITS))


def _features(rows: Rows) -> int:
    return len(rows.statistic.columns) - 1


# --- rounds and fits --------------------------------------------------------------------------------------------------


def release(rows: Rows, trust: str, epsilon: float, rng: np.random.Generator) -> NoisyAggregate:
    """The round, by the ideal functionality: the protocol's law."""
    clients = len(rows.table)
    dropped = ceil(DROPPED * clients) if trust == DCA_DROPS else 0
    terms = JobTerms(
        budget=Budget(epsilon, DELTA), clients=clients, tolerated=dropped, computes=(bytes(ID_BYTES), b"\1" * ID_BYTES)
    )
    absent = frozenset(rng.permutation(clients)[:dropped].tolist())
    swarm = IdealSwarm(
        rows.table, rows.statistic.columns, terms, absent=[absent], random=rng.bytes, trusted=trust == TRUSTED
    )
    asked = rows.statistic.name, to_builtins(rows.statistic)
    if trust == LOCAL:
        return swarm.hold(LdpReportRequest(*asked, rows_max=1, mechanism=GAUSSIAN))
    return swarm.hold(SecureSumRequest(*asked, rows_max=1))


class Drawn(NamedTuple):
    """Draws from a posterior, in the units of the model.

    Attributes:
        theta: intercept, then coefficients, shape ``(draws, d + 1)``. residual_sd: ``(draws,)``. r_hat: of chains.
    """

    theta: Array
    residual_sd: Array
    r_hat: float


def aware(rows: Rows, released: NoisyAggregate, iterations: int, rng: np.random.Generator) -> Drawn:
    """With the noise in the model."""
    from inference.models import fit  # JAX is slow to import

    found, diagnosis = mixed(partial(fit.linear, released, rows.prior), iterations, int(rng.integers(2**31)))
    theta = np.concatenate([found.draws[INTERCEPT][..., None], found.draws[COEFFICIENTS]], axis=-1)
    return Drawn(theta.reshape(-1, theta.shape[-1]), found.draws[RESIDUAL].ravel(), diagnosis.r_hat)


def naive(rows: Rows, released: NoisyAggregate, rng: np.random.Generator) -> Drawn:
    """The sums taken for exact."""
    constant = rows.statistic.intercept_bound
    sds = np.r_[rows.prior.intercept_sd / constant, np.full(_features(rows), rows.prior.coefficient_sd)]
    found = posterior_of(released, sds**-2, repair=NEAREST_PSD, noise_in_spread=False)
    theta = found.draws(rng, 1, NAIVE_DRAWS)[0] * np.r_[constant, np.ones(_features(rows))]
    return Drawn(theta, np.full(NAIVE_DRAWS, sqrt(found.residual_variance)), 1.0)


def judged(rows: Rows, drawn: Drawn, rng: np.random.Generator) -> dict[str, Any]:
    """A fit's test error, which part of what should be covered is, by level, and its R-hat."""
    return {
        "error": _error(rows, drawn.theta.mean(axis=0)),
        "covered": _covered(rows, drawn, rng),
        "r_hat": drawn.r_hat,
    }


def _error(rows: Rows, theta: Array) -> float:
    """Root mean squared error on new rows, in units of the target, of what predicts by ``theta``, ``(d + 1,)``."""
    if rows.truth is None:
        assert rows.tested is not None, "there are rows to test on"
        off = rows.tested[:, -1] - theta[0] - rows.tested[:, :-1] @ theta[1:]
        return rows.unit * float(np.sqrt(np.mean(off**2)))
    off = theta - rows.truth
    return sqrt(RESIDUAL_SD**2 + off[0] ** 2 + float(np.sum((_root().T @ off[1:]) ** 2)))


def _covered(rows: Rows, drawn: Drawn, rng: np.random.Generator) -> list[float]:
    """Part of the coefficients, or of the targets that are held out, that central intervals hold, by level."""
    below, truth = drawn.theta, rows.truth
    if truth is None:
        assert rows.tested is not None, "there are rows to test on"
        mean = drawn.theta[:, :1] + drawn.theta[:, 1:] @ rows.tested[:, :-1].T
        below = mean + drawn.residual_sd[:, None] * rng.standard_normal(mean.shape)
        truth = rows.tested[:, -1]
    place = np.mean(below < truth, axis=0)
    return [float(np.mean(np.abs(place - 0.5) <= level / 2)) for level in LEVELS]


def _least_squares(table: Array) -> Array:
    design = np.insert(table[:, :-1], 0, 1.0, axis=1)
    return np.asarray(np.linalg.lstsq(design, table[:, -1], rcond=None)[0])
