"""Bayesian logistic regression for people who live in scikit-learn.

    PrivateLogisticRegression().fit(X, y)                  raw rows: the posterior's mode and curvature, without privacy
    PrivateLogisticRegression().fit(aggregate)             a sum of the statistic "regression" with a constant
    PrivateLogisticRegression(schema=schema).fit(rounds)   job `logistic` over a running trainer or ideal rounds

Columns are standardised first, so that the prior is in standard deviations whatever the units. An aggregate has the
prior in units of its own scale. The spread includes the privacy noise; `predict_proba` averages over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from inference.errors import DataError
from inference.models.estimator import PrivateEstimator, composed, required
from inference.models.linear.aggregate_stats import checked, parameters_of
from inference.models.logistic.baseline import LogisticPosterior, laplace
from inference.models.logistic.one_sum import one_sum_posterior
from inference.models.logistic.rounds import AUTO, logistic_regression
from inference.problem import Schema
from inference.rounds import Rounds, run
from inference.variational.generalised_linear_fit import GeneralisedLinearFit, probability
from inference.variational.mean_field_job import VariationalSettings
from inference.variational.models import PRIOR_SD

Array = NDArray[np.float64]

UNCHECKED = (
    "the coefficients suppose normal features, and an aggregate alone does not show whether they are normal; fit over "
    "rounds, whose first one shows it"
)


class PrivateLogisticRegression(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Bayesian logistic regression of two classes with intercept, from rows or over rounds.

    Args:
        prior_sd: of each coefficient, with columns in standard deviations.
        schema: names and public bounds of features and target; needed over rounds alone. The class above the middle of
            the target's bounds is the second one.
        method: "one-sum", "scores", "variational", or "auto", which takes one sum where features are about normal
            (`inference.models.logistic.rounds`); with epochs or batch it is variational.
        epochs, batch, clip, rate: of variational inference (`VariationalSettings`).
        random_state: seed of the Monte Carlo draws, or a numpy `Generator`. No noise comes from it. With rounds that a
            journal records, give a seed: a resumed job must ask the same.

    Attributes:
        classes_: the two labels; over rounds, the target's bounds.
        coef_, coef_sd_: posterior mean and standard deviation of the slopes of the log odds, in own units, shape
            ``(1, d)``. intercept_, intercept_sd_: of the log odds at features of zero, shape ``(1,)``.
        fit_: over rounds, the whole posterior (`inference.variational.generalised_linear_fit.GeneralisedLinearFit`).
        private_, epsilon_, delta_, warnings_, n_features_in_, feature_names_in_: `PrivateEstimator`.
    """

    def __init__(
        self,
        *,
        prior_sd: float = PRIOR_SD,
        schema: Schema | None = None,
        method: str = AUTO,
        epochs: int | None = None,
        batch: int = 0,
        clip: float | None = None,
        rate: float = VariationalSettings.rate,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.prior_sd = prior_sd
        self.schema = schema
        self.method = method
        self.epochs = epochs
        self.batch = batch
        self.clip = clip
        self.rate = rate
        self.random_state = random_state

    def decision_function(self, X: Any) -> Array:
        """The posterior mean of the log odds of the second class, shape ``(k,)``."""
        return self._log_odds(X)[0]

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the two classes, averaged over the posterior, shape ``(k, 2)``."""
        second = probability(*self._log_odds(X))
        return np.column_stack([1 - second, second])

    def predict(self, X: Any) -> NDArray[Any]:
        """The likelier class of each row, shape ``(k,)``."""
        above = self.decision_function(X) > 0
        labels: NDArray[Any] = self.classes_[above.astype(int)]
        return labels

    def _log_odds(self, X: Any) -> tuple[Array, Array]:
        """Mean and variance of each row's log odds."""
        check_is_fitted(self, "coef_")
        checked = self._checked(X)
        if self.fit_ is not None:
            return self.fit_.linear_predictor(checked)
        one = np.column_stack([np.ones(len(checked)), checked])
        return one @ self._exact.mean, np.einsum("ki,ij,kj->k", one, self._exact.cov, one)

    def _fit_rows(self, X: Any, y: Any) -> None:
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, second = np.unique(y, return_inverse=True)
        if len(self.classes_) > 2:
            raise DataError("Only binary classification is supported. The type of the target is multiclass.")
        if len(self.classes_) < 2:
            raise DataError(f"all rows are of one class, {self.classes_[0]!r}; expected rows of two classes")
        exact = laplace(X, second, self.prior_sd)
        self.fit_: GeneralisedLinearFit | None = None
        self._exact = exact
        self._keep(exact.mean, np.sqrt(np.diag(exact.cov)))

    def _fit_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> None:
        parameters = parameters_of(checked(aggregates)[0])
        rng = np.random.default_rng(self.random_state)
        found = one_sum_posterior(aggregates, self.prior_sd, rng)
        centre, scale, bound = (np.asarray(parameters[name], float) for name in ("centre", "scale", "bound"))
        to_own = np.diag(np.r_[1.0, 1 / scale[:-1]])
        to_own[0, 1:] = -centre[:-1] / scale[:-1]
        self.classes_ = centre[-1] + scale[-1] * bound[-1] * np.array([-1.0, 1.0])
        self._name_features(parameters["columns"][:-1])
        self.fit_ = None
        self._exact = LogisticPosterior(to_own @ found.mean, to_own @ found.cov @ to_own.T)
        self._keep(self._exact.mean, np.sqrt(np.diag(self._exact.cov)))

    def _fit_rounds(self, rounds: Rounds) -> bool:
        schema = required(self.schema)
        job = logistic_regression(
            schema,
            method=self.method,
            rng=np.random.default_rng(self.random_state),
            settings=VariationalSettings(epochs=self.epochs, batch=self.batch, clip=self.clip, rate=self.rate),
            prior_sd=self.prior_sd,
        )
        fit = run(job, rounds)
        bounds = schema.bounds[schema.target]
        self.classes_ = np.array([bounds.lower, bounds.upper])
        self._name_features(schema.features)
        self.fit_ = fit
        self._keep(np.r_[fit.intercept, fit.coefficients], np.r_[fit.intercept_sd, fit.coefficient_sd])
        return fit.private

    def _warnings(self) -> Sequence[str]:
        of_aggregates = self.fit_ is None and not self._named_by_rows
        return (UNCHECKED,) if of_aggregates else super()._warnings()

    def _spent(self, held: Sequence[tuple[RoundRequest, NoisyAggregate]]) -> tuple[float, float] | None:
        """(ε, δ) of a client that took part in the rounds of all clients and in as many others as there are epochs."""
        aggregates = [aggregate for _, aggregate in held]
        others = sum(request.statistic != "gradient" for request, _ in held)
        return composed(aggregates[: others + (self.fit_.fit.epochs if self.fit_ else 0)])

    def _keep(self, mean: Array, sd: Array) -> None:
        """Intercept and slopes, in that order."""
        self.intercept_, self.intercept_sd_ = mean[:1], sd[:1]
        self.coef_, self.coef_sd_ = mean[None, 1:], sd[None, 1:]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
