"""A posterior of distributed regression in the user's own units, and predictions from it.

The statistics are of standardised columns, and what is drawn are coefficients of those. `LinearFit` knows the way back,
for moments and for draws: slopes in target units per feature unit, and the intercept, which is there also where the
model has no constant (all columns are about public centres).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dca_proto.aggregate import NoisyAggregate
from inference.draws import InferenceData, inference_data, tails_of
from inference.models.linear.aggregate_stats import columns_of, fit_of, result_of
from inference.models.linear.nodes.observed import regressions
from inference.models.linear.nodes.posterior import DistributedPosterior
from inference.models.linear.result import LinearFit
from inference.problem import Schema

Array = NDArray[np.float64]

NO_REPAIR = "none"


@dataclass(frozen=True, eq=False)
class DistributedFit:
    """What a distributed regression learnt, in the units of its columns.

    Attributes:
        linear: coefficients, intercept, their standard deviations and predictions, from the posterior's moments; with
            the schema and what it rests on (`regression.RegressionResult`) where a job learnt it.
        sampled: the draws in standardised units, and what they are worth.
        features: names of the columns.
        left_out: which data nodes it was not learnt from, and why, in words; nothing where it was from all.
    """

    linear: LinearFit
    sampled: DistributedPosterior
    features: tuple[str, ...]
    left_out: str = ""

    @property
    def warnings(self) -> list[str]:
        """What speaks against it, a sentence each."""
        return [*([self.left_out] if self.left_out else []), *self.sampled.warnings]

    def draws(self) -> dict[str, Array]:
        """``coefficients`` (chains, draws, d), ``intercept`` and ``residual_sd`` (chains, draws), in their units."""
        return self._in_own_units(self.sampled.draws)

    def intervals(self, level: float = 0.9) -> dict[str, Array]:
        """Equal-tailed credible intervals: ``coefficients`` (d, 2), ``intercept`` (2,), ``residual_sd`` (2,).

        Those of the coefficients and of the intercept are exact where the posterior is Gaussian in closed form.

        Raises:
            DataError: the level is not between 0 and 1.
        """
        tails, linear = tails_of(level), self.linear
        found = {name: np.quantile(array, tails, axis=(0, 1)).T for name, array in self.draws().items()}
        if self.sampled.gaussian is None:
            return found
        reach = ndtri(tails)
        slopes = linear.coefficients[:, None] + linear.coefficient_sd[:, None] * reach
        return {**found, "coefficients": slopes, "intercept": linear.intercept + linear.intercept_sd * reach}

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Posterior predictive mean and standard deviation at rows ``X`` of shape ``(k, d)``, in target units."""
        return self.linear.predict(X)

    def predictive_draws(self, X: Array, rng: np.random.Generator) -> Array:
        """A target for each draw and each row of ``X``, shape ``(chains, draws, k)``, in target units."""
        rows = self.linear.standardised(X)
        seen = self.sampled.predictive_draws(rows if self.linear.constant else rows[:, 1:], rng)
        return np.asarray(self.linear.centre[-1] + self.linear.scale[-1] * seen)

    def inference_data(self, X: Array | None = None, rng: np.random.Generator | None = None) -> InferenceData:
        """All draws as ArviZ's common type, warm-up and what tells of the chains in groups of their own.

        Args:
            X: rows, shape ``(k, d)``; with them the group ``posterior_predictive`` holds a ``target`` for each.
            rng: for the residuals of these; by default one with the seed 0.

        Raises:
            DataError: ArviZ is not installed.
        """
        rng = np.random.default_rng(0) if rng is None else rng
        return inference_data(
            self.draws(),
            dims={"coefficients": ["feature"], "target": ["row"]},
            coords={"feature": self.features},
            attrs={"method": self.sampled.method, **self.sampled.attrs},
            posterior_predictive=None if X is None else {"target": self.predictive_draws(X, rng)},
            warmup_posterior=self._in_own_units(self.sampled.warmup) if self.sampled.warmup else None,
            sample_stats=self.sampled.sample_stats(),
        )

    def _in_own_units(self, drawn: Mapping[str, Array]) -> dict[str, Array]:
        theta = drawn["theta"]
        if not self.linear.constant:
            theta = np.concatenate([np.zeros((*theta.shape[:-1], 1)), theta], axis=-1)
        residual_sd = self.linear.scale[-1] * np.sqrt(drawn["sigma_y2"])
        return {**self.linear.in_own_units(theta), "residual_sd": residual_sd}


def in_own_units(
    aggregates: NoisyAggregate | Sequence[NoisyAggregate], sampled: DistributedPosterior, schema: Schema | None = None
) -> DistributedFit:
    """A posterior learnt from these aggregates, in the columns' own units.

    Args:
        schema: of the job that learnt it, if one did; `DistributedFit.linear` then is a `RegressionResult`.

    Raises:
        DataError: the aggregates do not fit together.
    """
    listed = regressions(aggregates)
    if schema is None:
        linear = fit_of(listed, sampled.moments)
    else:
        linear = result_of(listed, sampled.moments, schema, NO_REPAIR)
    return DistributedFit(linear, sampled, columns_of(listed)[:-1])
