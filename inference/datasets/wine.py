"""Wine Quality, red and white: eleven laboratory measurements and a taste score of each wine.

Cortez, Cerdeira, Almeida, Matos and Reis 2009, "Modeling wine preferences by data mining from physicochemical
properties", Decision Support Systems 47(4); doi 10.24432/C56S3T, CC BY 4.0.

Bounds are what law and chemistry say of any wine. The paper's Table 1 has the minimum and maximum of these very wines,
which is not private: `PUBLISHED`, for repeating published experiments.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from inference.bounds import Interval
from inference.datasets.files import ARCHIVE, Source, find
from inference.problem import Problem, Schema

Colour = Literal["red", "white"]

URL = f"{ARCHIVE}/186/wine+quality.zip"
SOURCES = {
    "red": Source(
        "wine-red",
        "winequality-red.csv",
        "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
        URL,
        "winequality-red.csv",
    ),
    "white": Source(
        "wine-white",
        "winequality-white.csv",
        "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
        URL,
        "winequality-white.csv",
    ),
}

FEATURES = (
    "fixed acidity",
    "volatile acidity",
    "citric acid",
    "residual sugar",
    "chlorides",
    "free sulfur dioxide",
    "total sulfur dioxide",
    "density",
    "pH",
    "sulphates",
    "alcohol",
)
TARGET = "quality"
UNITS = {
    "fixed acidity": "g/dm³",
    "volatile acidity": "g/dm³",
    "citric acid": "g/dm³",
    "residual sugar": "g/dm³",
    "chlorides": "g/dm³",
    "free sulfur dioxide": "mg/dm³",
    "total sulfur dioxide": "mg/dm³",
    "density": "g/cm³",
    "sulphates": "g/dm³",
    "alcohol": "vol.%",
    "quality": "points",
}
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

PUBLISHED_MEANS = {
    colour: {feature: row[2] for feature, row in zip(FEATURES, table, strict=True)} for colour, table in TABLE_1.items()
}
"""Mean of each feature by colour; the paper gives none of the quality."""


PUBLISHED = {
    colour: {
        name: Interval(low, high, f"range of {colour} wines in Cortez et al. 2009, Table 1", public=False)
        for name, (low, high, _) in zip(FEATURES, table, strict=True)
    }
    for colour, table in TABLE_1.items()
}

# Limits of the European Union are those of Regulations 1308/2013 (annex VII) and 2019/934 (annexes I B and I C).
# OIV limits are the "maximum acceptable limits" of its International Code of Oenological Practices.
BOUNDS = {
    "fixed acidity": Interval(3, 20, "as tartaric acid: EU rules ask for 3.5 at least; lemon juice has 50"),
    "volatile acidity": Interval(0, 2, "as acetic acid: the EU limit is 1.2, beyond which wine is vinegar"),
    "citric acid": Interval(0, 2, "the EU limit is 1"),
    "residual sugar": Interval(0, 50, "by EU labels dry up to 4 and sweet from 45"),
    "chlorides": Interval(0, 1, "as sodium chloride: the OIV limit"),
    "free sulfur dioxide": Interval(0, 200, "a part of the total; half of what the sweetest wines may have"),
    "total sulfur dioxide": Interval(0, 400, "the EU limit of the sweetest wines; of dry ones it is 150 to 200"),
    "density": Interval(0.98, 1.06, "water with 15 % of alcohol; with 150 g/l of sugar"),
    "pH": Interval(2.5, 4.5, "as sour as lemonade; above 4.5 wine spoils"),
    "sulphates": Interval(0, 2.5, "as potassium sulphate: the OIV limit of special wines; of others it is 1"),
    "alcohol": Interval(7, 16, "EU rules ask for 8.5 at least, and for 15 at most of wine that is not fortified"),
    TARGET: Interval(0, 10, "tasters graded from 0 (very bad) to 10 (excellent): Cortez et al. 2009, section 2.1"),
}


def schema() -> Schema:
    """Public bounds of wines of any colour."""
    return Schema(FEATURES, TARGET, BOUNDS, UNITS)


def wine(colour: Colour, folder: Path | None = None, *, as_published: bool = False) -> Problem:
    """1,599 red or 4,898 white wines.

    Args:
        as_published: read off by one, as the code of the DCA paper does: the last wine is lost, and a row of zeros
            comes first, which stretches the range of several columns. To reproduce Figure 2's axes, and for nothing
            else.
    """
    rows = np.loadtxt(find(SOURCES[colour], folder), delimiter=";", skiprows=1)
    problem = Problem(f"wine-{colour}", schema(), rows[:, :-1], rows[:, -1])
    return _off_by_one(problem) if as_published else problem


def _off_by_one(problem: Problem) -> Problem:
    X, y = np.zeros_like(problem.X), np.zeros_like(problem.y)
    X[1:], y[1:] = problem.X[:-1], problem.y[:-1]
    return replace(problem, X=X, y=y)
