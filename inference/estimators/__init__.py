"""Faces for people who live in scikit-learn: `fit` from rows, from aggregates or over rounds, `predict`, `coef_`.

This package alone needs scikit-learn; the pure functions that it calls do not.
"""

from inference.estimators.linear import PrivateLinearRegression
from inference.estimators.logistic import PrivateLogisticRegression

__all__ = ["PrivateLinearRegression", "PrivateLogisticRegression"]
