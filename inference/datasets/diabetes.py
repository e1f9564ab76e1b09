"""Diabetes: 442 patients, from scikit-learn (Efron, Hastie, Johnstone and Tibshirani 2004)."""

from __future__ import annotations

import numpy as np

from inference.bounds import Interval
from inference.problem import Problem, Schema

# What is known of these measurements without looking at these patients. None of it is read from the data.
DIABETES_BOUNDS = {
    "bmi": Interval(15, 40, "WHO classes of adults: below 16 is severe thinness, from 40 on obesity of class III"),
    "bp": Interval(60, 130, "mean arterial pressure: organs need 60 mmHg; 130 mmHg is 180/105, severe hypertension"),
    "s5": Interval(3.2, 6.2, "ln of serum triglycerides: 25 mg/dl is very low, 500 mg/dl severe hypertriglyceridaemia"),
    "progression": Interval(25, 346, "the range of the score that the data set's documentation states"),
}
DIABETES_UNITS = {"bmi": "kg/m²", "bp": "mmHg", "s5": "ln(mg/dl)", "progression": "points"}


def diabetes() -> Problem:
    """442 patients: disease progression after one year on bmi, bp and s5 (Efron et al. 2004; scikit-learn ships it)."""
    from sklearn.datasets import load_diabetes  # a large import that most users of this module do not need

    bunch = load_diabetes(scaled=False)
    features = ("bmi", "bp", "s5")
    columns = [bunch.feature_names.index(feature) for feature in features]
    schema = Schema(features, "progression", DIABETES_BOUNDS, DIABETES_UNITS)
    return Problem("diabetes", schema, np.asarray(bunch.data[:, columns], float), np.asarray(bunch.target, float))
