"""Logistic regression by variational inference: `job`, `estimator`, and the fit without privacy (`baseline`)."""
