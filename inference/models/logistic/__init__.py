"""Logistic regression from scores, gradients or one sum (`one_sum`): `job`, `estimator`."""
