"""Breast cancer (Wisconsin, diagnostic): 30 measures of the cell nuclei of 569 tumours, from scikit-learn.

Street, Wolberg and Mangasarian 1993; doi 10.24432/C5DW2B. Of each tumour's nuclei, ten measures: their mean, the
standard error of that mean, and the mean of the three largest. Bounds follow from what a measure is.
"""

from __future__ import annotations

import numpy as np

from inference.bounds import Interval
from inference.problem import Problem, Schema

TARGET = "benign"
# Lengths are in pixels of the microscope's pictures, in which a nucleus is well within a circle of radius 50.
# The others are ratios or shares as Street et al. define them in section 2.
MEASURES = {
    "radius": (50, "no nucleus is larger"),
    "texture": (128, "standard deviation of grey values of 8 bits"),
    "perimeter": (315, "of a circle of radius 50"),
    "area": (7900, "of a circle of radius 50"),
    "smoothness": (0.5, "how far a radius is from its neighbours' mean, as a part of it"),
    "compactness": (2, "perimeter² / (4π area) less 1: 2 of an ellipse seven times as long as wide"),
    "concavity": (2, "depth of dents, beside the radius"),
    "concave points": (1, "a share of the outline"),
    "symmetry": (1, "a relative difference"),
    "fractal dimension": (0.5, "of the outline, less 1: a plane curve's is below 2"),
}
ERROR_PART = 6  # the standard error of 10 nuclei or more is at most a sixth of a range: (range/2)/√(10 - 1)
BOUNDS = (
    {f"mean {name}": Interval(0, high, reason) for name, (high, reason) in MEASURES.items()}
    | {f"{name} error": Interval(0, high / ERROR_PART, reason) for name, (high, reason) in MEASURES.items()}
    | {f"worst {name}": Interval(0, high, reason) for name, (high, reason) in MEASURES.items()}
)
FEATURES = tuple(BOUNDS)
BOUNDS |= {TARGET: Interval(0, 1, "0 malignant, 1 benign")}


def breast_cancer() -> Problem:
    """Whether a tumour is benign (1) or malignant (0), as scikit-learn codes it; it ships the rows."""
    from sklearn.datasets import load_breast_cancer  # a large import that most users of this module do not need

    bunch = load_breast_cancer()
    schema = Schema(FEATURES, TARGET, BOUNDS)
    return Problem("breast-cancer", schema, np.asarray(bunch.data, float), np.asarray(bunch.target, float))
