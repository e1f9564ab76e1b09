"""A simulated clinical trial, to try survival analysis without data of your own. None of its patients is real.

600 patients enter over two years. The trial ends three years after the first one's entry, so patients are censored
between month 12 and 36, or earlier if they leave. A random half gets the treatment. Without treatment, at average age
(65 years) and severity (5), the hazard of death rises with t^0.2, and half of the patients survive 24 months. The log
hazard ratios are `TRUTH`.
"""

from __future__ import annotations

import numpy as np

from inference.bounds import Interval
from inference.problem import Problem, Schema

PATIENTS, SEED = 600, 20261123
TRUTH = {"arm": -0.6, "age": 0.03, "severity": 0.2}
BOUNDS = {
    "event": Interval(0, 1, "1 for a death, 0 for a patient who was censored"),
    "arm": Interval(0, 1, "1 for the treatment, 0 for the control"),
    "age": Interval(40, 90, "years: the trial admits these ages"),
    "severity": Interval(0, 10, "points of a score from 0 to 10"),
    "months": Interval(0, 36, "the trial ends after 36 months"),
}
_MEDIAN, _SHAPE, _LEAVE = 24.0, 1.2, 0.005


def simulated_trial(patients: int = PATIENTS, seed: int = SEED) -> Problem:
    """Simulate patients: months to death or censoring on event, arm, age and severity."""
    rng = np.random.default_rng(seed)
    arm = rng.permutation(np.arange(patients) % 2).astype(float)
    age = np.clip(np.round(rng.normal(65, 8, patients)), 40, 90)
    severity = np.clip(np.round(rng.normal(5, 1.5, patients), 1), 0, 10)
    risk = TRUTH["arm"] * arm + TRUTH["age"] * (age - 65) + TRUTH["severity"] * (severity - 5)
    death = _MEDIAN * (rng.exponential(1 / np.log(2), patients) * np.exp(-risk)) ** (1 / _SHAPE)
    censored = np.minimum(rng.uniform(12, 36, patients), rng.exponential(1 / _LEAVE, patients))
    months = np.round(np.minimum(death, censored), 2)
    X = np.column_stack([(death <= censored).astype(float), arm, age, severity])
    schema = Schema(
        ("event", "arm", "age", "severity"),
        "months",
        BOUNDS,
        {"months": "months", "age": "years", "severity": "points"},
    )
    return Problem("simulated-trial", schema, X, np.asarray(months, dtype=np.float64))
