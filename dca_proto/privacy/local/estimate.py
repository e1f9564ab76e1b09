"""What many local reports say together. Floating point is fine here: reports are private already."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.privacy.local.values import counted, integers


@dataclass(frozen=True, eq=False)
class LocalEstimate:
    """An unbiased estimate of the mean of what the clients hold, over the noise of their reports.

    Attributes:
        mean: in grid units, or for categories the share of each; shape ``(dimension,)``. Not forced into its range:
            shares may be negative and need not sum to 1.
        variance: an unbiased estimate of the variance that the noise gives to `mean`, the clients' data held fixed;
            exact for additive noise. Shape ``(dimension,)``.
        reports: how many reports it is from.
    """

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    reports: int


def additive(reports: ArrayLike, dimension: int, noise_variance: float) -> LocalEstimate:
    """The mean of reports of shape ``(n, dimension)`` with independent noise. Raises `UsageError` for other shapes."""
    table = integers("reports", reports, columns=dimension)
    count = counted(table)
    return LocalEstimate(table.mean(axis=0), np.full(dimension, noise_variance / count), count)


def shares(counts: NDArray[np.int64], reports: int, own: int, stray: int, one: int) -> LocalEstimate:
    """Of counts of reports that name each category, named with probability p = own/one by those who hold it and
    q = stray/one by others: (mean - q)/(p - q), the unbiased one (`variance_of_shares` says how far off)."""
    mean = (counts / reports - stray / one) / ((own - stray) / one)
    return LocalEstimate(mean, variance_of_shares(mean, reports, own, stray, one), reports)


def variance_of_shares(held: ArrayLike, reports: int, own: int, stray: int, one: int) -> NDArray[np.float64]:
    """(f p(1-p) + (1-f) q(1-q)) / (n (p-q)²), exact where a share f of the n reporting clients holds the category.

    As this is linear in f, the unbiased estimate of f put in for it gives an unbiased estimate.
    """
    f = np.asarray(held, dtype=np.float64)
    p_var, q_var = (number / one * ((one - number) / one) for number in (own, stray))
    variance: NDArray[np.float64] = (f * p_var + (1 - f) * q_var) / (reports * ((own - stray) / one) ** 2)
    return variance
