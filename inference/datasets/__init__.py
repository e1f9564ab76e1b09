"""Data sets by name: each a `Problem` with public bounds.

Layout:
    files                        finds a file in a folder, or downloads it once; always checks its SHA-256
    csv_file                     problems from the user's own CSV file
    shipped                      diabetes and breast cancer, shipped with scikit-learn
    uci                          wine, abalone and adult, from the UCI archive
    simulated_trial              a simulated clinical trial, for survival analysis

Bounds are constants from what is known of a measurement, each with its reason. They are never read from the rows, nor
are they a minimum or maximum that somebody else read from them. A client clips values outside to them.
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
    """Load a data set by name, optionally with only some of its features.

    Args:
        folder: holds the data set's file. The default is the environment variable ``DCA_DATA``; without it, the file
            is downloaded once.

    Raises:
        DataError: the name or a feature is unknown, or the file is unavailable or has another content.
    """
    if name not in DATASETS:
        raise unknown("dataset", name, "the built-in ones", DATASETS)
    problem = DATASETS[name](folder)
    return problem if features is None else problem.select(tuple(features))
