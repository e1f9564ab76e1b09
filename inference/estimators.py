"""Estimators with the interface of scikit-learn: `fit` from rows, from aggregates or over rounds, `predict`, `coef_`.

Each is defined beside its model. Only estimators need scikit-learn; the pure functions that they call do not.
"""

from inference.models.glm.estimator import PrivatePoissonRegression, PrivateRobustRegression
from inference.models.linear.estimator import PrivateLinearRegression
from inference.models.logistic.estimator import PrivateLogisticRegression
from inference.models.survival.estimator import PrivateKaplanMeier, PrivateProportionalHazards

__all__ = ["PrivateKaplanMeier", "PrivateLinearRegression", "PrivateLogisticRegression", "PrivatePoissonRegression",
           "PrivateProportionalHazards", "PrivateRobustRegression"]  # fmt: skip
