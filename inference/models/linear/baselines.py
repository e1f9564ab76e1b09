"""Linear regression from raw rows, without privacy, to compare a private regression with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from inference.columns import Standardisation, standardisation
from inference.errors import DataError
from inference.models.coefficients import Coefficients
from inference.models.linear.closed_form import NormalBeta, posterior, summarise
from inference.problem import Array, Problem, Schema

FLAT = 1e-6  # prior precision: negligible beside one row's, but enough for constant or repeated columns


def nonprivate_regression(train: Problem) -> Coefficients:
    """Fit ordinary least squares with intercept to the raw rows: no bounds, no projection, no noise, a flat prior.

    It is the strongest fair baseline: the posterior mean is the least-squares solution, and the residual variance the
    unbiased one. Each coefficient has a Student's t law, with n - m degrees of freedom for m coefficients.

    Raises:
        DataError: there are not more rows than coefficients.
    """
    n, m = train.rows.shape  # m counts the features and the intercept
    if n <= m:
        raise DataError(
            f"{n} rows cannot determine {m} coefficients and a residual variance; take more rows or fewer features"
        )
    return replace(exact_fit(train.rows, FLAT, schema=train.schema), degrees=n - m)


def exact_fit(
    rows: Array, prior_precision: ArrayLike, residual_variance: float | None = None, schema: Schema | None = None
) -> Coefficients:
    """Regress the last column of raw rows on the others, all scaled to mean 0 and standard deviation 1.

    Args:
        rows: shape ``(n, d + 1)``. prior_precision: λ₀ of intercept and slopes, broadcastable to ``(d + 1,)``.
        residual_variance: λ⁻¹; None estimates it, without bias if there are more rows than coefficients.
    """
    n, m = rows.shape
    centre, scale = standardisation(rows)
    z = (rows - centre) / scale
    exact = summarise(np.column_stack([np.ones(n), z[:, :-1]]), z[:, -1])
    if residual_variance is None:
        unbiased = n / (n - m) if n > m else 1.0
        residual_variance = float(posterior(exact, prior_precision).residual_variance) * unbiased
    return of_rows(rows, posterior(exact, prior_precision, residual_variance), centre, scale, schema)


def of_rows(rows: Array, fitted: NormalBeta, centre: Array, scale: Array, schema: Schema | None) -> Coefficients:
    """Convert a posterior from raw rows with these centres and scales to own units."""
    names = (*(f"x{j}" for j in range(rows.shape[1] - 1)), "y") if schema is None else schema.columns
    columns = Standardisation(names, centre, scale, np.full(rows.shape[1], np.inf))
    return Coefficients.of(columns, fitted, 1.0, contributors=len(rows), schema=schema, repair="none")
