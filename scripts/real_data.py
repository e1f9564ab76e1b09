"""Real data sets of the scripts, with public bounds: those of `inference.datasets`, and three more files.

The UCI archive has all of them (CC BY 4.0). Bounds are what is known of a measurement, never a minimum or maximum of
the rows. A row with a missing value is left out.

- `bike` (`hour.csv`; Fanaee-T and Gama 2013, doi 10.24432/C5W894): rented bicycles in an hour on twelve features.
  ``holiday`` is 1 in 3 % of the hours. ``registered`` and ``casual`` are left out, since their sum is the target.
- `air-quality` (`air_quality_numeric.csv`; De Vito et al. 2008, doi 10.24432/C59K5F): carbon monoxide, of a reference
  analyser, on five sensors and the weather.
- `adult` without the first category of each nominal column, so that its coefficients do not depend on the prior.
  `adult-few` is 8,000 rows of it with age, years of education, hours of work and sex alone: logistic regression by
  scores, to which age and hours of work have a curved relation.
- `ccpp` (`CCPP.csv`; Tüfekci 2014, doi 10.24432/C5002N): a power plant's output on the weather and the vacuum.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from inference.bounds import Interval
from inference.datasets import abalone, adult, diabetes, wine
from inference.datasets.uci import Part
from inference.errors import DataError
from inference.problem import Array, Problem, Schema

BIKE = {
    "season": (1, 4), "yr": (0, 1), "mnth": (1, 12), "hr": (0, 23), "holiday": (0, 1), "weekday": (0, 6),
    "workingday": (0, 1), "weathersit": (1, 4), "temp": (0, 1), "atemp": (0, 1), "hum": (0, 1), "windspeed": (0, 1),
    "cnt": (0, 1000),
}  # fmt: skip
AIR = {
    "PT08.S1": (0, 3000), "PT08.S2": (0, 3000), "PT08.S3": (0, 3000), "PT08.S4": (0, 3000), "PT08.S5": (0, 3000),
    "T": (-20, 50), "RH": (0, 100), "AH": (0, 4), "CO": (0, 20),
}  # fmt: skip
CCPP = {"AT": (-10, 45), "V": (20, 90), "AP": (950, 1060), "RH": (0, 100), "PE": (400, 520)}
AIR_COLUMNS = (1, 4, 6, 8, 9, 10, 11, 12, 0)  # of the file, in the order of `AIR`
FEW, FEW_ROWS = ("age", "education-num", "hours-per-week", "sex=Male"), 8_000
MISSING = -200  # in the file of air quality
NEEDS = {
    "wine-red": "winequality-red.csv",
    "wine-white": "winequality-white.csv",
    "abalone": "abalone.data",
    "bike": "hour.csv",
    "air-quality": "air_quality_numeric.csv",
    "ccpp": "CCPP.csv",
    "adult": "adult.data",
    "adult-few": "adult.data",
}
"""The file that each data set needs; diabetes ships with scikit-learn."""


def folder_of(folder: Path | None) -> Path | None:
    """Return the folder of data files: the one given, or the one that DCA_DATA names; None without either."""
    named = os.environ.get("DCA_DATA")
    return folder or (Path(named) if named else None)


def is_there(name: str, folder: Path | None) -> bool:
    """Return whether the data set's file is in the folder, or needs none."""
    return name not in NEEDS or (folder is not None and (folder / NEEDS[name]).is_file())


@cache
def real_data(name: str, folder: Path | None = None) -> Problem:
    """Return all rows of a data set, or the training part of Adult. Raises `DataError` if its file is not there."""
    if not is_there(name, folder):
        raise DataError(f"{NEEDS[name]} is not in {folder or 'any folder'}; name the folder that has it")
    return _MADE[name](folder)


def _bike(folder: Path | None) -> Problem:
    return _problem("bike", BIKE, _table("bike", folder, skiprows=1, usecols=(*range(2, 14), 16)))


def _air(folder: Path | None) -> Problem:
    assert folder is not None
    lines = (folder / NEEDS["air-quality"]).read_text().splitlines()
    cells = [line.split(",")[:13] for line in lines if line.strip(",")]
    rows = np.array(cells, float)[:, AIR_COLUMNS]
    return _problem("air-quality", AIR, rows[(rows != MISSING).all(axis=1)])


def real_adult(folder: Path | None, part: Part = "train") -> Problem:
    """Load a part of Adult without the first category of each nominal column of several categories."""
    rows = adult(folder, part=part)
    groups: dict[str, list[str]] = {}
    for name in rows.schema.features:
        groups.setdefault(name.partition("=")[0], []).append(name)
    return rows.select(tuple(name for group in groups.values() for name in (group[1:] or group)))


def real_adult_few(folder: Path | None, part: Part = "train") -> Problem:
    """Load `FEW_ROWS` rows of a part of Adult with the features `FEW`."""
    rows = real_adult(folder, part).select(FEW)
    chosen = np.random.default_rng(4).choice(len(rows.y), FEW_ROWS, replace=False)
    return replace(rows, name="adult-few", X=rows.X[chosen], y=rows.y[chosen])


def _ccpp(folder: Path | None) -> Problem:
    return _problem("ccpp", CCPP, _table("ccpp", folder, skiprows=1))


def _table(name: str, folder: Path | None, *, skiprows: int, usecols: tuple[int, ...] | None = None) -> Array:
    assert folder is not None
    return np.loadtxt(folder / NEEDS[name], delimiter=",", skiprows=skiprows, usecols=usecols)


def _problem(name: str, bounds: Mapping[str, tuple[float, float]], rows: Array) -> Problem:
    *features, target = bounds
    schema = Schema(tuple(features), target, {column: Interval(*ends) for column, ends in bounds.items()})
    return Problem(name, schema, rows[:, :-1], rows[:, -1])


_MADE: dict[str, Callable[[Path | None], Problem]] = {
    "wine-red": lambda folder: wine("red", folder),
    "wine-white": lambda folder: wine("white", folder),
    "abalone": abalone,
    "bike": _bike,
    "air-quality": _air,
    "ccpp": _ccpp,
    "diabetes": lambda _: diabetes(),
    "adult": real_adult,
    "adult-few": real_adult_few,
}
