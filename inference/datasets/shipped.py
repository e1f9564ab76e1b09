"""Data sets that scikit-learn ships.

Diabetes (Efron, Hastie, Johnstone and Tibshirani 2004): 442 patients.

Breast cancer, Wisconsin, diagnostic (Street, Wolberg and Mangasarian 1993; doi 10.24432/C5DW2B): ten measures of the
cell nuclei of 569 tumours: their mean, the standard error of that mean, and the mean of the three largest. Bounds
follow from the definition of each measure.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference.bounds import Interval
from inference.problem import Problem, Schema

# Known about these measurements without looking at these patients. None of it is read from the data.
DIABETES_BOUNDS = {
    "bmi": Interval(15, 40, "WHO classes of adults: below 16 is severe thinness, from 40 on obesity of class III"),
    "bp": Interval(60, 130, "mean arterial pressure: organs need 60 mmHg; 130 mmHg is 180/105, severe hypertension"),
    "s5": Interval(3.2, 6.2, "ln of serum triglycerides: 25 mg/dl is very low, 500 mg/dl severe hypertriglyceridaemia"),
    # No scale of this score was published; those who conduct such a study know theirs.
    "progression": Interval(0, 400, "points from 0 on; their scale was not published, and 400 stands for its end"),
}
DIABETES_UNITS = {"bmi": "kg/m²", "bp": "mmHg", "s5": "ln(mg/dl)", "progression": "points"}
_COLUMNS = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")  # of the file

# Lengths are in pixels of the microscope's pictures, in which a nucleus is well within a circle of radius 50.
# The others are ratios or shares as Street et al. define them in section 2.
MEASURES = {
    "radius": (50, "no nucleus is larger"),
    "texture": (128, "standard deviation of grey values of 8 bits"),
    "perimeter": (315, "that of a circle of radius 50"),
    "area": (7900, "that of a circle of radius 50"),
    "smoothness": (0.5, "deviation of a radius from its neighbours' mean, relative to it"),
    "compactness": (2, "perimeter² / (4π area) less 1: 2 for an ellipse seven times as long as wide"),
    "concavity": (2, "depth of dents, relative to the radius"),
    "concave points": (1, "a share of the outline"),
    "symmetry": (1, "a relative difference"),
    "fractal dimension": (0.5, "that of the outline, less 1: for a plane curve it is below 2"),
}
ERROR_PART = 6  # the standard error of 10 nuclei or more is at most a sixth of a range: (range/2)/√(10 - 1)
CANCER_BOUNDS = (
    {f"mean {name}": Interval(0, high, reason) for name, (high, reason) in MEASURES.items()}
    | {f"{name} error": Interval(0, high / ERROR_PART, reason) for name, (high, reason) in MEASURES.items()}
    | {f"worst {name}": Interval(0, high, reason) for name, (high, reason) in MEASURES.items()}
    | {"benign": Interval(0, 1, "0 malignant, 1 benign")}
)


def diabetes() -> Problem:
    """Load 442 patients: disease progression after one year on bmi, bp and s5 (Efron et al. 2004)."""
    features = ("bmi", "bp", "s5")
    data = _shipped("diabetes_data_raw.csv.gz")[:, [_COLUMNS.index(feature) for feature in features]]
    schema = Schema(features, "progression", DIABETES_BOUNDS, DIABETES_UNITS)
    return Problem("diabetes", schema, data, _shipped("diabetes_target.csv.gz").ravel())


def breast_cancer() -> Problem:
    """Load the tumours: is each benign (1) or malignant (0), as scikit-learn codes it?"""
    from sklearn.datasets import load_breast_cancer  # a large import that most users of this module do not need

    bunch = load_breast_cancer()
    schema = Schema(tuple(CANCER_BOUNDS)[:-1], "benign", CANCER_BOUNDS)
    return Problem("breast-cancer", schema, np.asarray(bunch.data, float), np.asarray(bunch.target, float))


def _shipped(name: str) -> NDArray[np.float64]:
    """Read a table that scikit-learn ships, without importing scikit-learn, which takes a second."""
    package = find_spec("sklearn")
    assert package is not None, "it is required"
    assert package.origin is not None, "it is a package"
    return np.loadtxt(Path(package.origin).parent / "datasets" / "data" / name, ndmin=2)
