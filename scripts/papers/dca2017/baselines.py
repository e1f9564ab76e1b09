"""What a private regression is held against, each as a `Method` with the same face: rows in, a regression out.

non-private          least squares on the raw rows
trusted aggregator   the same job as the private one, over rounds in which one trusted party adds the noise once
input perturbation   each client adds noise to its own row, and nothing is aggregated in secret
zero predictor       no features: the mean of the target, the private error beyond which nothing has been learnt
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dca_proto.privacy.rounding import at_least
from inference.columns import standardisation
from inference.errors import DataError
from inference.models.coefficients import Coefficients
from inference.models.linear.baselines import nonprivate_regression, of_rows
from inference.models.linear.closed_form import Posterior, SufficientStatistics, posterior, summarise
from inference.models.linear.prior import prior_precision
from inference.models.linear.repair import REPAIR
from inference.problem import Problem, Schema
from inference.rounds import Job, Rounds, run

Array = NDArray[np.float64]


class Method(Protocol):
    """A way to learn a regression.

    Attributes:
        name: for tables and figures.
    """

    @property
    def name(self) -> str: ...

    def fit(self, train: Problem) -> Coefficients:
        """Learn from these rows."""


@dataclass(frozen=True)
class NonPrivate:
    """`nonprivate_regression`."""

    name: str = "non-private"

    def fit(self, train: Problem) -> Coefficients:
        """Learn from these rows."""
        return nonprivate_regression(train)


@dataclass(frozen=True)
class ZeroPredictor:
    """The best prediction that uses no features: the mean target of the training rows."""

    name: str = "zero predictor"

    def fit(self, train: Problem) -> Coefficients:
        """Learn from these rows."""
        m = train.X.shape[1] + 1
        centre, scale = standardisation(train.rows)
        return of_rows(
            train.rows, Posterior(np.zeros(m), np.zeros((m, m)), np.asarray(1.0)), centre, scale, train.schema
        )


@dataclass(frozen=True)
class ByRounds:
    """A learning job over rounds: the private method itself, or its trusted aggregator.

    Attributes:
        job: makes the job of a schema. rounds: makes the rounds of these rows; for a trusted aggregator, rounds whose
            noise is added once, without the shares that colluders would know.
    """

    name: str
    job: Callable[[Schema], Job[Coefficients]]
    rounds: Callable[[Problem], Rounds]

    def fit(self, train: Problem) -> Coefficients:
        """Learn from these rows."""
        return run(self.job(train.schema), self.rounds(train))


@dataclass(frozen=True)
class InputPerturbation:
    """Each client brings its row into the public bounds and adds Gaussian noise: local differential privacy.

    A row is released whole, so that its L2 sensitivity is 2√(d + 1) half-widths, and each column gets noise of that
    over μ. The naive regression takes noisy rows for rows, as published. The corrected one takes what the noise adds to
    the moments away again: with z̃ = z + η, E z̃z̃ᵀ = zzᵀ + σ²I. Both are about the means of the noisy rows.

    Attributes:
        mu: the Gaussian DP parameter of one row's release. rng: draws the noise.
        corrected: whether the noise's own moments are taken out. repair: one of `REPAIRS`, of what is then indefinite.
    """

    mu: float
    rng: np.random.Generator
    name: str = "input perturbation"
    corrected: bool = False
    repair: str = REPAIR

    def fit(self, train: Problem) -> Coefficients:
        """Learn from these rows. Raises `DataError` for a μ that is not above 0."""
        if not self.mu > 0:
            raise DataError(f"mu is {at_least(self.mu)}; expected a number above 0")
        schema, n = train.schema, len(train.y)
        z = np.clip((train.rows - schema.centres) / schema.half_widths, -1, 1)
        variance = 4 * z.shape[1] / self.mu**2
        noisy = z + self.rng.normal(scale=sqrt(variance), size=z.shape)
        means = noisy.mean(axis=0)
        centred = noisy - means
        statistics = summarise(centred[:, :-1], centred[:, -1])
        if self.corrected:
            statistics = without_noise_moments(statistics, variance)
        slopes = posterior(statistics, prior_precision(len(schema.features))[1:], repair=self.repair)
        of_means = (slopes.residual_variance + self.corrected * variance * (1 + slopes.mean @ slopes.mean)) / n
        cov = np.pad(slopes.cov, ((1, 0), (1, 0)))
        cov[0, 0] = of_means
        fitted = Posterior(np.r_[0.0, slopes.mean], cov, slopes.residual_variance)
        centre = schema.centres + means * schema.half_widths
        repair = self.repair if self.corrected else "none"
        found = of_rows(train.rows, fitted, centre, schema.half_widths, schema)
        return replace(found, repair=repair, private=schema.private)


def without_noise_moments(noisy: SufficientStatistics, variance: float) -> SufficientStatistics:
    """Moments of noisy rows about their means as noisy moments of rows: k σ² is taken from each column's own square.

    k = n - 1, since the mean took its part of the noise along. What is left of the noise in Σ z̃_j z̃_k has the variance
    k σ² (σ² + v_j + v_k) with v the columns' own variances, and twice that in squares. One figure stands for all terms,
    with the mean of v, at least 0.
    """
    assert noisy.yy is not None
    k, d = noisy.n - 1, noisy.xy.size
    xx, yy = noisy.xx - k * variance * np.eye(d), noisy.yy - k * variance
    own = max(float(np.trace(xx) + yy) / (noisy.n * (d + 1)), 0.0)
    return SufficientStatistics(noisy.n, xx, noisy.xy, yy, k * variance * (variance + 2 * own))
