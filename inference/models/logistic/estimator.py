"""Bayesian logistic regression with scikit-learn's interface.

    PrivateLogisticRegression().fit(X, y)                  raw rows: the posterior's mode and curvature, without privacy
    PrivateLogisticRegression().fit(aggregates)            rounds of scores, or sums of the statistic "regression"
    PrivateLogisticRegression(schema=schema).fit(rounds)   job `logistic` over a running trainer or ideal rounds

Columns are standardised first, so the prior is in standard deviations whatever the units. For aggregates the prior is
in units of their own scale. The spread includes the privacy noise; `predict_proba` averages over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from inference.errors import DataError
from inference.locate import STATISTIC as PHASES
from inference.models.coefficients import Coefficients, probability
from inference.models.estimator import RegressionEstimator, composed, required
from inference.models.glm.families import Bernoulli
from inference.models.glm.scored_fit import STATISTIC as SCORES
from inference.models.glm.scored_fit import exact_fit, regression_of_scores
from inference.models.logistic.job import AUTO, Settings, logistic_regression
from inference.models.logistic.one_sum import regression_of_sum
from inference.problem import Array, Schema
from inference.rounds import Job
from inference.variational.mean_field_job import VariationalSettings
from inference.variational.models import PRIOR_SD


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLogisticRegression(ClassifierMixin, RegressionEstimator):  # type: ignore[misc]
    """Bayesian logistic regression of two classes with intercept, from rows, aggregates or over rounds.

    Args:
        prior_sd: of each coefficient, with columns in standard deviations.
        schema: names and public bounds of features and target; needed only over rounds. The class above the middle of
            the target's bounds is the second one.
        method: "scores", "one-sum", "variational" or "auto". "auto" takes scores if noise and the number of features
            allow (`inference.models.logistic.job`), and variational inference if one of its settings is given.
        epochs, batch, clip, rate: settings of variational inference (`VariationalSettings`).
        random_state: seed of the Monte Carlo draws, or a numpy `Generator`. The privacy noise does not use it. If a
            journal records the rounds, give a seed, because a resumed job must ask the same.

    Attributes:
        classes_: the two labels; over rounds, the target's bounds.
        coef_, coef_sd_: posterior mean and standard deviation of the slopes of the log odds, in own units, shape
            ``(1, d)``. intercept_, intercept_sd_: of the log odds at features of zero, shape ``(1,)``.
        fit_: the whole posterior (`inference.models.coefficients.Coefficients`), with ``refit``.
        private_, epsilon_, delta_, warnings_, n_features_in_, feature_names_in_: `PrivateEstimator`.
    """

    settings = Settings
    prior_sd: float = PRIOR_SD
    schema: Schema | None = None
    method: str = AUTO
    epochs: int | None = None
    batch: int = 0
    clip: float | None = None
    rate: float = VariationalSettings.rate
    random_state: int | np.random.Generator | None = None

    def decision_function(self, X: Any) -> Array:
        """Return the posterior mean of the log odds of the second class, shape ``(k,)``."""
        return self._log_odds(X)[0]

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of the two classes, averaged over the posterior, shape ``(k, 2)``."""
        second = probability(*self._log_odds(X))
        return np.column_stack([1 - second, second])

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the more probable class of each row, shape ``(k,)``."""
        is_second = self.decision_function(X) > 0
        labels: NDArray[Any] = self.classes_[is_second.astype(int)]
        return labels

    def _log_odds(self, X: Any) -> tuple[Array, Array]:
        """Return mean and variance of each row's log odds."""
        check_is_fitted(self, "fit_")
        return self.fit_.linear_predictor(self._checked(X))

    def _of_rows(self, X: Any, y: Any) -> Coefficients:
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, second = np.unique(y, return_inverse=True)
        if len(self.classes_) > 2:
            raise DataError("Only binary classification is supported. The type of the target is multiclass.")
        if len(self.classes_) < 2:
            raise DataError(f"all rows are of one class, {self.classes_[0]!r}; expected rows of two classes")
        return exact_fit(X, second.astype(float), Bernoulli(), self.prior_sd)

    def _of_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> Coefficients:
        if {aggregate.statistic for aggregate in aggregates} == {PHASES}:
            raise DataError(
                "found the round of phases alone; expected all rounds of a job 'logistic', or a sum 'regression'"
            )
        scored = any(aggregate.statistic == SCORES for aggregate in aggregates)
        fit = (
            regression_of_scores(aggregates, self.prior_sd) if scored else regression_of_sum(aggregates, self.prior_sd)
        )
        columns = fit.columns
        self.classes_ = columns.centre[-1] + columns.scale[-1] * columns.bound[-1] * np.array([-1.0, 1.0])
        return fit

    def _job(self) -> Job[Coefficients]:
        schema = required(self.schema)
        bounds = schema.bounds[schema.target]
        self.classes_ = np.array([bounds.lower, bounds.upper])
        return logistic_regression(
            schema,
            method=self.method,
            rng=np.random.default_rng(self.random_state),
            settings=VariationalSettings(epochs=self.epochs, batch=self.batch, clip=self.clip, rate=self.rate),
            prior_sd=self.prior_sd,
        )

    def _spent(self, fit: Any, results: Sequence[tuple[RoundRequest, NoisyAggregate]]) -> tuple[float, float] | None:
        """Return (ε, δ) for a client in all rounds that ask every client, and in one round of gradients per epoch."""
        aggregates = [aggregate for _, aggregate in results]
        others = sum(request.statistic != "gradient" for request, _ in results)
        return composed(aggregates[: others + fit.epochs])

    def _keep(self, fit: Coefficients) -> None:
        super()._keep(fit)
        for name in ("coef_", "coef_sd_", "intercept_", "intercept_sd_"):
            setattr(self, name, np.array([getattr(self, name)]))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
