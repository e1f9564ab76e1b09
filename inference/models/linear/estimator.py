"""Bayesian linear regression with scikit-learn's interface.

    PrivateLinearRegression().fit(X, y)                       raw rows: without privacy
    PrivateLinearRegression().fit(aggregates)                 from released sums of the statistic "regression"
    PrivateLinearRegression(schema=schema).fit(rounds)        Algorithm 2 over a running trainer or ideal rounds

Rows are standardised first, so the prior is in standard deviations whatever the units. The posterior mean then equals
scikit-learn's `Ridge` with alpha = λ⁻¹ λ₀ on standardised columns, and `LinearRegression` at λ₀ = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dca_proto.aggregate import NoisyAggregate
from inference.errors import DataError
from inference.jobs.settings import require_flag, require_positive
from inference.models.coefficients import Coefficients
from inference.models.estimator import PrivateRegressor, required
from inference.models.linear.aggregate_stats import regression_of
from inference.models.linear.baselines import exact_fit
from inference.models.linear.closed_form import REPAIR
from inference.models.linear.job import STD_SHARE, Settings, regression_in_bounds, regression_with_projection
from inference.models.linear.prior import check_precision, prior_precision
from inference.problem import Schema
from inference.rounds import Job


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLinearRegression(PrivateRegressor):
    """Bayesian linear regression with intercept, from rows, aggregates or over rounds.

    Args:
        prior_precision: λ₀ of each slope, broadcastable to ``(d,)``, with columns in standard deviations (rows, rounds)
            or in units of the aggregates' ``scale``. None: the features explain half of the target's variance on
            average; from noisy sums that scale is learned (`inference.models.linear.prior`).
        residual_variance: λ⁻¹, in squares of the same units; None estimates it. It must be None over rounds.
        repair: of an indefinite noisy matrix, one of `inference.models.linear.closed_form.REPAIRS`.
        schema: names and public bounds of features and target; needed only over rounds.
        projection: True runs Algorithm 2 in two rounds; False runs one round within the public bounds.
        std_share: Algorithm 2's setting (`inference.models.linear.job`).

    Attributes:
        coef_, coef_sd_: posterior mean and standard deviation of the slopes, in own units, shape ``(d,)``.
        intercept_, intercept_sd_: of the target at features of zero.
        residual_sd_: of the target about its prediction, in target units.
        repair_: the repair used; "none" on rows.
        fit_: the whole posterior (`inference.models.coefficients.Coefficients`); with ``draws`` and ``refit``.
        private_, epsilon_, delta_, warnings_, n_features_in_, feature_names_in_: `PrivateEstimator`.
    """

    settings = Settings
    own = ("prior_precision",)  # of each slope
    prior_precision: ArrayLike | None = None
    residual_variance: float | None = None
    repair: str = REPAIR
    schema: Schema | None = None
    projection: bool = True
    std_share: float = STD_SHARE

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_precision(self.prior_precision)
        require_positive("residual_variance", self.residual_variance)
        require_flag("projection", self.projection)

    def _of_rows(self, X: Any, y: Any) -> Coefficients:
        X, y = self._validated(X, y)
        slopes = prior_precision(X.shape[1])[1:] if self.prior_precision is None else self.prior_precision
        prior = np.r_[0.0, np.broadcast_to(np.asarray(slopes, float), X.shape[1:])]
        return exact_fit(np.column_stack([X, y]), prior, self.residual_variance)

    def _of_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> Coefficients:
        given = {"prior_precision": self.prior_precision, "residual_variance": self.residual_variance}
        return regression_of(aggregates, repair=self.repair, **given)  # type: ignore[arg-type]

    def _job(self) -> Job[Coefficients]:
        schema = required(self.schema)
        if self.residual_variance is not None:
            raise DataError(
                f"residual_variance is {self.residual_variance}, but rounds run a job that estimates it; it serves "
                "rows and aggregates, so leave it out"
            )
        if not self.projection:
            return regression_in_bounds(schema, repair=self.repair, prior_precision=self.prior_precision)
        return regression_with_projection(
            schema, std_share=self.std_share, repair=self.repair, prior_precision=self.prior_precision
        )

    def _keep(self, fit: Coefficients) -> None:
        super()._keep(fit)
        self.repair_ = fit.repair
        self.residual_sd_ = float(fit.columns.scale[-1] * np.sqrt(fit.residual_variance))
