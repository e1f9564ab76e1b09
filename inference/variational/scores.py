"""Scores of predictions on rows that the trainer holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inference.errors import DataError
from inference.problem import Array


def area_under_curve(scores: Array, positive: NDArray[np.bool_]) -> float:
    """Area under the ROC curve: the probability that a positive row scores above a negative one, ties counting half.

    Args:
        scores: shape ``(n,)``. positive: which rows are of the class sought, shape ``(n,)``.

    Raises:
        DataError: the rows are all of one class.
    """
    from scipy.stats import rankdata

    ones = int(positive.sum())
    zeros = len(positive) - ones
    if not ones or not zeros:
        raise DataError(f"{ones} rows of one class and {zeros} of the other to score on; expected some of each")
    above = float(rankdata(scores)[positive].sum()) - ones * (ones + 1) / 2  # Mann and Whitney's U
    return above / (ones * zeros)


def log_likelihood(p: Array, positive: NDArray[np.bool_]) -> float:
    """The mean over the rows of the logarithm of their class's probability, in nats. Args: p: of the class sought."""
    return float(np.mean(np.log(np.maximum(np.where(positive, p, 1 - p), 1e-12))))
