"""The statistics that trials ask for, by name: public parameters and columns for a number of coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dca_proto.privacy.mechanism import RANDOMISED_RESPONSE, UNARY_ENCODING

Parameters = dict[str, Any]
CATEGORICAL = (RANDOMISED_RESPONSE, UNARY_ENCODING)
"""The mechanisms whose reports name categories: a histogram's bins, two or more."""


def _columns(dimension: int) -> Parameters:
    """Each column within [-1, 1]."""
    names = [f"x{index}" for index in range(dimension)]
    ones = [1.0] * dimension
    return {"columns": names, "centre": [0.0] * dimension, "scale": ones, "bound": ones}


def _bins(dimension: int) -> Parameters:
    """As many bins between -1 and 1."""
    return {"columns": ["x0"], "edges": [-1 + 2 * index / dimension for index in range(dimension + 1)]}


STATISTICS: dict[str, Callable[[int], Parameters]] = {
    "sum": _columns,
    "mean": _columns,
    "second-moments": _columns,
    "histogram": _bins,
}
