"""What a private regression is held against: the same model on the raw rows, and no model at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inference.datasets import Problem
from inference.errors import DataError
from inference.linear_regression import posterior, summarise
from inference.regression import RegressionResult

Array = NDArray[np.float64]

FLAT = 1e-6  # prior precision: nothing beside one row's, yet it bears columns that are constant or repeated


def nonprivate_regression(train: Problem) -> RegressionResult:
    """Ordinary least squares with intercept on the raw rows: no bounds, no projection, no noise, a flat prior.

    The strongest honest opponent: the posterior mean is the least-squares solution, and the residual variance the
    unbiased one.

    Raises:
        DataError: if there are no more rows than coefficients.
    """
    rows = train.rows
    n, m = rows.shape  # m counts the features and the intercept
    if n <= m:
        raise DataError(
            f"{n} rows cannot determine {m} coefficients and a residual variance; take more rows or fewer features"
        )
    centre, scale = rows.mean(axis=0), rows.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    z = (rows - centre) / scale
    exact = summarise(np.column_stack([np.ones(n), z[:, :-1]]), z[:, -1])
    first = posterior(exact, FLAT)
    fitted = posterior(exact, FLAT, first.residual_variance * n / (n - m))
    unprojected = np.full(m, np.inf)
    return RegressionResult(train.schema, fitted, centre, scale, unprojected, "none", n, private=False)


def zero_predictor(train: Problem) -> float:
    """The best prediction that uses no features: the mean target of the training rows, in target units."""
    return float(train.y.mean())


def rmse(predicted: Array | float, y: Array) -> float:
    """Root mean squared error, in target units."""
    return float(np.sqrt(np.mean((y - predicted) ** 2)))
