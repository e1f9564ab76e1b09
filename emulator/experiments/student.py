"""Student's interval for the mean of independent runs, alone or together with others."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def t_half_width(values: NDArray[np.float64], level: float, count: int = 1) -> float:
    """Half of the interval's width, t sd/√n; infinite for fewer than two values.

    Args:
        values: of the runs, shape ``(n,)``. level: with which `count` such intervals hold together (Bonferroni).
    """
    from scipy.stats import t  # slow to import

    if len(values) < 2:
        return math.inf
    quantile = t.ppf(1 - (1 - level) / (2 * count), len(values) - 1)
    return float(quantile * values.std(ddof=1) / math.sqrt(len(values)))
