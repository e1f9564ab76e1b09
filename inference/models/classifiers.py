"""Estimators of classes: two, from log odds; or several, in an order or without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dca_proto.aggregate import NoisyAggregate
from inference.errors import DataError
from inference.jobs.examples import CLASS, GRADE, KIND
from inference.models.categories.law import Categories
from inference.models.estimator import JobEstimator
from inference.models.expected import probability
from inference.posterior import Posterior
from inference.problem import Array
from inference.rounds import Rounds


class JobClassifier(ClassifierMixin, JobEstimator):  # type: ignore[misc]
    """The base class of regressions with a target of two classes.

    Attributes:
        classes_: the two labels; over rounds, the target's bounds.
    """

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
        odds: tuple[Array, Array] = self.fit_.predictor.linear_predictor(self._checked(X))
        return odds

    def _validated(self, X: Any, y: Any) -> tuple[Array, Array]:
        X, second = numbered(self, X, y)
        if len(self.classes_) > 2:
            raise DataError("Only binary classification is supported. The type of the target is multiclass.")
        return X, second

    def _of_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> Any:
        fit = super()._of_aggregates(aggregates)
        columns = fit.columns
        self.classes_ = columns.centre[-1] + columns.scale[-1] * columns.bound[-1] * np.array([-1.0, 1.0])
        return fit

    def _over_rounds(self, rounds: Rounds) -> Posterior:
        fit = super()._over_rounds(rounds)
        assert self.schema is not None, "rounds need it"
        bounds = self.schema.bounds[self.schema.target]
        self.classes_ = np.array(bounds.labels or [bounds.lower, bounds.upper])
        return fit

    def _keep(self, fit: Posterior) -> None:
        super()._keep(fit)
        for name in ("coef_", "coef_sd_", "coef_interval_", "intercept_", "intercept_sd_"):
            setattr(self, name, np.array([getattr(self, name)]))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class CategoryClassifier(ClassifierMixin, JobEstimator):  # type: ignore[misc]
    """The base class of regressions with a target of several classes.

    Attributes:
        classes_: the labels, in order; over rounds and from aggregates, the codes within the target's bounds.
        coef_, coef_sd_: of log odds; ``(1, d)`` if the classes have an order, else ``(K - 1, d)`` to the first class.
            coef_interval_: 95 % intervals, of the shape of `coef_` and then 2.
        intercept_, intercept_sd_: ``(K - 1,)``, intercepts; of ordered classes thresholds.
    """

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, averaged over the posterior, shape ``(k, K)``."""
        check_is_fitted(self, "fit_")
        chances: Array = self.fit_.predictor.chances(self._checked(X))
        return chances

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row, shape ``(k,)``."""
        most_probable = self.predict_proba(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[most_probable]
        return labels

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = self._learns.target == GRADE  # of classes without an order
        return tags

    def _validated(self, X: Any, y: Any) -> tuple[Array, Array]:
        return numbered(self, X, y)

    def _keep(self, fit: Posterior) -> None:
        law: Categories = fit.predictor
        if not self._named_by_rows:
            self._name_features(law.features)
            self.classes_ = np.array(law.texts or law.codes)
        self.coef_, self.coef_sd_ = np.atleast_2d(law.effects), np.atleast_2d(law.effect_sd)
        self.coef_interval_ = fit.slopes()[2].reshape(*self.coef_.shape, 2)
        for name, value in (("intercept_", law.offsets), ("intercept_sd_", law.offset_sd)):
            setattr(self, name, value)


def numbered(estimator: JobEstimator, X: Any, y: Any) -> tuple[Array, Array]:
    """Check rows with classes; return each row's number of its class, and keep the labels as ``classes_``."""
    X, y = validate_data(estimator, estimator._coded(X), y, dtype=np.float64)
    check_classification_targets(y)
    labels, numbers = np.unique(y, return_inverse=True)
    if estimator.schema is not None and (listed := estimator.schema.bounds[estimator.schema.target].labels):
        if odd := sorted({*labels.tolist()} - {*listed}, key=str):
            raise DataError(f"the target has {odd[0]!r}; expected its labels: {', '.join(listed)}")
        labels, numbers = np.array(listed), np.array([listed.index(one) for one in y.tolist()])
    estimator.classes_ = labels
    if len(labels) < 2:
        raise DataError(f"all rows are of one class, {labels[0]!r}; expected rows of two classes")
    return X, numbers.astype(float)


CLASSIFIERS: dict[str, type[Any]] = {CLASS: JobClassifier, GRADE: CategoryClassifier, KIND: CategoryClassifier}
"""The base class of an estimator by the kind of its target."""
