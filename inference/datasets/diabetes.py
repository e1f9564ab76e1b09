"""Diabetes: 442 patients, from scikit-learn (Efron, Hastie, Johnstone and Tibshirani 2004)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference.bounds import Interval
from inference.problem import Problem, Schema

# What is known of these measurements without looking at these patients. None of it is read from the data.
DIABETES_BOUNDS = {
    "bmi": Interval(15, 40, "WHO classes of adults: below 16 is severe thinness, from 40 on obesity of class III"),
    "bp": Interval(60, 130, "mean arterial pressure: organs need 60 mmHg; 130 mmHg is 180/105, severe hypertension"),
    "s5": Interval(3.2, 6.2, "ln of serum triglycerides: 25 mg/dl is very low, 500 mg/dl severe hypertriglyceridaemia"),
    # No scale of this score was published; those who conduct such a study know theirs.
    "progression": Interval(0, 400, "points from 0 on; their scale was not published, and 400 stands for its end"),
}
DIABETES_UNITS = {"bmi": "kg/m²", "bp": "mmHg", "s5": "ln(mg/dl)", "progression": "points"}


_COLUMNS = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")  # of the file


def diabetes() -> Problem:
    """442 patients: disease progression after one year on bmi, bp and s5 (Efron et al. 2004; scikit-learn ships it)."""
    features = ("bmi", "bp", "s5")
    data = _shipped("diabetes_data_raw.csv.gz")[:, [_COLUMNS.index(feature) for feature in features]]
    schema = Schema(features, "progression", DIABETES_BOUNDS, DIABETES_UNITS)
    return Problem("diabetes", schema, data, _shipped("diabetes_target.csv.gz").ravel())


def _shipped(name: str) -> NDArray[np.float64]:
    """A table that scikit-learn ships, read without importing scikit-learn, which takes a second."""
    found = find_spec("sklearn")
    assert found is not None, "it is required"
    assert found.origin is not None, "it is a package"
    return np.loadtxt(Path(found.origin).parent / "datasets" / "data" / name, ndmin=2)
