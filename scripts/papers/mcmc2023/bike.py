"""Bike Sharing: bicycles rented in each hour of 2011 and 2012 in Washington, D.C.

Fanaee-T and Gama 2013, "Event labeling combining ensemble detectors and background knowledge", Progress in Artificial
Intelligence; doi 10.24432/C5W894, CC BY 4.0 (the authors ask to be cited). 17,379 hours.

Every rental is by a casual or by a registered user, so ``cnt = casual + registered`` in every row, and a regression
that has both as features has nothing to learn. They are left out here, unless one asks for the data as others published
them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from inference.bounds import Interval
from inference.datasets.files import ARCHIVE, Source, find
from inference.problem import Problem, Schema

SOURCE = Source(
    "bike",
    "hour.csv",
    "e03de4ee4ef4dc376ac6e04bf829673c6269e8eba5c60fa121640fa2f829504f",
    f"{ARCHIVE}/275/bike+sharing+dataset.zip",
    "hour.csv",
)
COLUMNS = (
    "instant", "dteday", "season", "yr", "mnth", "hr", "holiday", "weekday", "workingday", "weathersit", "temp",
    "atemp", "hum", "windspeed", "casual", "registered", "cnt",
)  # fmt: skip
FEATURES = COLUMNS[2:14]
PARTS = COLUMNS[14:16]
TARGET = "cnt"

CODED = "the code of its description (Readme.txt)"
NORMALISED = "a share of the largest value in these rows, by its description (Readme.txt)"
FLEET = "the operator had some 1,100 to 1,700 bicycles in these years, and hardly all are rented in the same hour"
BOUNDS = (
    {
        "season": Interval(1, 4, CODED),
        "yr": Interval(0, 1, CODED),
        "mnth": Interval(1, 12, CODED),
        "hr": Interval(0, 23, CODED),
        "holiday": Interval(0, 1, CODED),
        "weekday": Interval(0, 6, CODED),
        "workingday": Interval(0, 1, CODED),
        "weathersit": Interval(1, 4, CODED),
    }
    | {
        "temp": Interval(-0.5, 1.25, "from -20 to 50 °C"),
        "atemp": Interval(-0.6, 1.2, "from -30 to 60 °C"),
        "hum": Interval(0, 1, "a percentage"),
        "windspeed": Interval(0, 2, "a hurricane is faster than 118 km/h"),
    }
    | {name: Interval(0, 1000, FLEET) for name in (*PARTS, TARGET)}
)
SHARES = {name: Interval(0, 1, NORMALISED, public=False) for name in ("temp", "atemp", "windspeed")}
"""Bounds that follow from how these columns were divided, for repeating published experiments: not private."""
UNITS = {
    "hr": "h",
    "temp": "41 °C",
    "atemp": "50 °C",
    "hum": "100 %",
    "windspeed": "67 km/h",
    "casual": "rentals",
    "registered": "rentals",
    "cnt": "rentals",
}


def bike(folder: Path | None = None, *, as_published: bool = False) -> Problem:
    """Rentals in an hour on calendar and weather.

    Args:
        as_published: keep ``casual`` and ``registered``, as published experiments do; the target is then their sum.
    """
    features = (*FEATURES, *PARTS) if as_published else FEATURES
    columns = [COLUMNS.index(name) for name in (*features, TARGET)]
    rows = np.loadtxt(find(SOURCE, folder), delimiter=",", skiprows=1, usecols=columns)
    bounds = {name: BOUNDS[name] for name in (*features, TARGET)}
    return Problem("bike", Schema(features, TARGET, bounds, UNITS), rows[:, :-1], rows[:, -1])
