"""Ranges and means that were published with the rows of wine and abalone, and the published code's misreading of wine.

Wine: Cortez et al. 2009, Table 1. Abalone: the table "Statistics for numeric domains" in ``abalone.names``. They are
the minimum and maximum of these very rows, which is not private: for repeating published experiments, and nothing else.
The height's is not from there, since that maximum is a slip of the pen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from inference.bounds import Interval
from inference.datasets.uci import WINE_BOUNDS
from inference.problem import Problem

FEATURES = tuple(WINE_BOUNDS)[:-1]
TABLE_1: dict[str, tuple[tuple[float, float, float], ...]] = {
    "red": (
        (4.6, 15.9, 8.3),
        (0.1, 1.6, 0.5),
        (0.0, 1.0, 0.3),
        (0.9, 15.5, 2.5),
        (0.01, 0.61, 0.08),
        (1, 72, 14),
        (6, 289, 46),
        (0.990, 1.004, 0.996),
        (2.7, 4.0, 3.3),
        (0.3, 2.0, 0.7),
        (8.4, 14.9, 10.4),
    ),
    "white": (
        (3.8, 14.2, 6.9),
        (0.1, 1.1, 0.3),
        (0.0, 1.7, 0.3),
        (0.6, 65.8, 6.4),
        (0.01, 0.35, 0.05),
        (2, 289, 35),
        (9, 440, 138),
        (0.987, 1.039, 0.994),
        (2.7, 3.8, 3.1),
        (0.2, 1.1, 0.5),
        (8.0, 14.2, 10.4),
    ),
}
"""Minimum, maximum and mean of each feature (Cortez et al. 2009, Table 1)."""

WINE_MEANS = {
    colour: {feature: row[2] for feature, row in zip(FEATURES, table, strict=True)} for colour, table in TABLE_1.items()
}
"""Mean of each feature by colour; the paper gives none of the quality."""


WINE = {
    colour: {
        name: Interval(low, high, f"range of {colour} wines in Cortez et al. 2009, Table 1", public=False)
        for name, (low, high, _) in zip(FEATURES, table, strict=True)
    }
    for colour, table in TABLE_1.items()
}

NAMES_TABLE = {
    "length": (0.075, 0.815, 0.524, 0.120),
    "diameter": (0.055, 0.650, 0.408, 0.099),
    "height": (0.000, 1.130, 0.140, 0.042),
    "whole weight": (0.002, 2.826, 0.829, 0.490),
    "shucked weight": (0.001, 1.488, 0.359, 0.222),
    "viscera weight": (0.001, 0.760, 0.181, 0.110),
    "shell weight": (0.002, 1.005, 0.239, 0.139),
    "rings": (1, 29, 9.934, 3.224),
}
"""Minimum, maximum, mean and standard deviation of each column (abalone.names)."""

ABALONE_MEANS = {column: row[2] for column, row in NAMES_TABLE.items()}
"""Of the seven measures and the rings; nothing is published of the sexes but how they are coded."""

ABALONE = {
    column: Interval(row[0], row[1], "range in abalone.names", public=False) for column, row in NAMES_TABLE.items()
} | {
    "height": Interval(
        0, 0.41, "no shell is higher than half as long as the longest, 0.815 (abalone.names)", public=False
    )
}


def off_by_one(problem: Problem) -> Problem:
    """Wines as the code of the DCA paper reads them: the last wine is lost, and a row of zeros comes first.

    That stretches the range of several columns. It reproduces the axes of Figure 2.
    """
    X, y = np.zeros_like(problem.X), np.zeros_like(problem.y)
    X[1:], y[1:] = problem.X[:-1], problem.y[:-1]
    return replace(problem, X=X, y=y)
