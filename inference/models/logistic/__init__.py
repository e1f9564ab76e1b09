"""Logistic regression from scores, gradients (`rounds`) or one sum (`one_sum`): `job`, `estimator`, `baseline`."""
