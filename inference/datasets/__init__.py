"""Data sets by name: each a `Problem` with public bounds, one file for each source.

General layout:
    files                        where a file is found: a folder, or downloaded once; always checked by its SHA-256
    csv_file                     problems from a CSV file of the user's own
    diabetes, breast_cancer      ship with scikit-learn
    wine, abalone, adult,
    power_plant, bike,
    air_quality                  from the UCI archive
    gdsc                         drug sensitivity of cell lines, from files that one has to ask for (not in `load`)
    workbook                     reads the .xlsx files among them

Bounds are constants from what is known of a measurement, each with its reason; they are never read from the rows, and
are no minimum or maximum that somebody else read from them. A client projects what lies outside into them.
Options of a data set are arguments of its own function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from inference.datasets.abalone import abalone
from inference.datasets.adult import adult
from inference.datasets.air_quality import air_quality
from inference.datasets.bike import bike
from inference.datasets.breast_cancer import breast_cancer
from inference.datasets.csv_file import from_csv
from inference.datasets.diabetes import diabetes
from inference.datasets.power_plant import power_plant
from inference.datasets.wine import wine
from inference.errors import unknown
from inference.problem import Problem, Schema, split, stream

__all__ = [
    "DATASETS",
    "Problem",
    "Schema",
    "abalone",
    "adult",
    "air_quality",
    "bike",
    "breast_cancer",
    "diabetes",
    "from_csv",
    "load",
    "power_plant",
    "split",
    "stream",
    "wine",
]

DATASETS: dict[str, Callable[[Path | None], Problem]] = {
    "diabetes": lambda _: diabetes(),
    "breast-cancer": lambda _: breast_cancer(),
    "wine-red": partial(wine, "red"),
    "wine-white": partial(wine, "white"),
    "abalone": abalone,
    "adult": adult,
    "power-plant": power_plant,
    "bike": bike,
    "air-quality": air_quality,
}


def load(name: str, features: Sequence[str] | None = None, *, folder: Path | None = None) -> Problem:
    """A data set by name, with some of its features only if these are named.

    Args:
        folder: holds the data set's file; else that of the environment variable ``DCA_DATA``; else it is downloaded
            once.

    Raises:
        DataError: the name or a feature is unknown, or the file cannot be had or is another one.
    """
    if name not in DATASETS:
        raise unknown("dataset", name, "the built-in ones", DATASETS)
    problem = DATASETS[name](folder)
    return problem if features is None else problem.select(tuple(features))
