"""Logistic regression from one sum (`one_sum`) or many (`rounds`): `job`, `estimator`, `baseline` without privacy."""
