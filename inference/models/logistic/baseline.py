"""Bayesian logistic regression from raw rows, without privacy: Laplace's approximation (Bishop 2006, section 4.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.models.coefficients import Coefficients
from inference.models.glm.families import Bernoulli
from inference.models.glm.scored_fit import exact_fit


def laplace(X: NDArray[np.float64], y: NDArray[Any], prior_sd: float, names: Sequence[str] = ()) -> Coefficients:
    """The mode of the posterior of intercept and slopes, and the inverse of its curvature there.

    Args:
        X: features, shape ``(n, d)``. y: 1 or 0 (or true or false) for each row, shape ``(n,)``.
        prior_sd: τ, of the intercept and of each slope, with columns in standard deviations. names: of the features.

    Raises:
        DataError: ``prior_sd`` is not above 0.
    """
    return exact_fit(X, np.asarray(y, float), Bernoulli(), prior_sd, (*names, "y") if names else ())
