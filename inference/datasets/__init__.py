"""Data sets by name: each a `Problem` with public bounds.

General layout:
    files                        where a file is found: a folder, or downloaded once; always checked by its SHA-256
    csv_file                     problems from a CSV file of the user's own
    shipped                      diabetes and breast cancer, with scikit-learn
    uci                          wine, abalone and adult, from the UCI archive
    simulated_trial              a simulated clinical trial, for survival analysis

Bounds are constants from what is known of a measurement, each with its reason; they are never read from the rows, and
are no minimum or maximum that somebody else read from them. A client projects what lies outside into them.
Options of a data set are arguments of its own function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from inference.datasets.csv_file import from_csv
from inference.datasets.shipped import breast_cancer, diabetes
from inference.datasets.simulated_trial import simulated_trial
from inference.datasets.uci import abalone, adult, wine
from inference.errors import unknown
from inference.problem import Problem, Schema, split, stream

__all__ = [
    "DATASETS",
    "Problem",
    "Schema",
    "abalone",
    "adult",
    "breast_cancer",
    "diabetes",
    "from_csv",
    "load",
    "simulated_trial",
    "split",
    "stream",
    "wine",
]

DATASETS: dict[str, Callable[[Path | None], Problem]] = {
    "diabetes": lambda _: diabetes(),
    "breast-cancer": lambda _: breast_cancer(),
    "simulated-trial": lambda _: simulated_trial(),
    "wine-red": partial(wine, "red"),
    "wine-white": partial(wine, "white"),
    "abalone": abalone,
    "adult": adult,
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
