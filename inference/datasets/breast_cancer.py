"""Breast cancer (Wisconsin, diagnostic): 30 measures of the cell nuclei of 569 tumours, from scikit-learn.

Street, Wolberg and Mangasarian 1993; doi 10.24432/C5DW2B. Bounds are the summary statistics of scikit-learn's
documentation of the data set, which lists minimum and maximum of each measure, rounded.
"""

from __future__ import annotations

import numpy as np

from inference.bounds import Interval
from inference.problem import Problem, Schema

TARGET = "benign"
MEAN = {
    "radius": (6.981, 28.11),
    "texture": (9.71, 39.28),
    "perimeter": (43.79, 188.5),
    "area": (143.5, 2501.0),
    "smoothness": (0.053, 0.163),
    "compactness": (0.019, 0.345),
    "concavity": (0.0, 0.427),
    "concave points": (0.0, 0.201),
    "symmetry": (0.106, 0.304),
    "fractal dimension": (0.05, 0.097),
}
ERROR = {
    "radius": (0.112, 2.873),
    "texture": (0.36, 4.885),
    "perimeter": (0.757, 21.98),
    "area": (6.802, 542.2),
    "smoothness": (0.002, 0.031),
    "compactness": (0.002, 0.135),
    "concavity": (0.0, 0.396),
    "concave points": (0.0, 0.053),
    "symmetry": (0.008, 0.079),
    "fractal dimension": (0.001, 0.03),
}
WORST = {
    "radius": (7.93, 36.04),
    "texture": (12.02, 49.54),
    "perimeter": (50.41, 251.2),
    "area": (185.2, 4254.0),
    "smoothness": (0.071, 0.223),
    "compactness": (0.027, 1.058),
    "concavity": (0.0, 1.252),
    "concave points": (0.0, 0.291),
    "symmetry": (0.156, 0.664),
    "fractal dimension": (0.055, 0.208),
}
RANGES = (
    {f"mean {name}": ends for name, ends in MEAN.items()}
    | {f"{name} error": ends for name, ends in ERROR.items()}
    | {f"worst {name}": ends for name, ends in WORST.items()}
)
FEATURES = tuple(RANGES)
REASON = "range in scikit-learn's documentation of the data set (summary statistics)"
BOUNDS = {name: Interval(low, high, REASON) for name, (low, high) in RANGES.items()} | {
    TARGET: Interval(0, 1, "0 malignant, 1 benign")
}


def breast_cancer() -> Problem:
    """Whether a tumour is benign (1) or malignant (0), as scikit-learn codes it; it ships the rows."""
    from sklearn.datasets import load_breast_cancer  # a large import that most users of this module do not need

    bunch = load_breast_cancer()
    schema = Schema(FEATURES, TARGET, BOUNDS)
    return Problem("breast-cancer", schema, np.asarray(bunch.data, float), np.asarray(bunch.target, float))
