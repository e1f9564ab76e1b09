"""Adult (Census Income): does a person earn more than 50,000 dollars a year? From the US census of 1994.

Kohavi 1996; doi 10.24432/C5XW20, CC BY 4.0. 32,561 people to train on and 16,281 of the official test part.

What becomes a feature:

- ``age``, ``education-num`` and ``hours-per-week`` as they are. ``education`` is the same as its number, and is left
  out.
- ``capital-gain`` and ``capital-loss`` as ln(1 + dollars): most are 0, and a few are thousands.
- Each category of a nominal column as a column of its own that is 0 or 1, in the order of ``adult.names``: the list of
  categories is public, so which of them occur here reveals nothing. A missing value, ``?``, is a category as well,
  for one may be missing for a reason. Of the two sexes only ``sex=Male`` is there.
- ``fnlwgt`` is left out: it is a weight that the census gives to a row, and says nothing about a person.
"""

from __future__ import annotations

import csv
from math import log
from pathlib import Path
from typing import Literal

import numpy as np

from inference.bounds import Interval
from inference.datasets.files import ARCHIVE, Source, find
from inference.problem import Problem, Schema

Part = Literal["train", "test"]

URL = f"{ARCHIVE}/2/adult.zip"
SOURCES = {
    "train": Source(
        "adult", "adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", URL, "adult.data"
    ),
    "test": Source(
        "adult", "adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", URL, "adult.test"
    ),
}
TARGET = "income>50K"
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", TARGET,
)  # fmt: skip
DOLLARS_MAX = 99_999
NUMBERS = {
    "age": Interval(17, 90, "adult.names: only people over 16; the census reports 90 and above as 90"),
    "education-num": Interval(1, 16, "adult.names: 16 levels, from preschool to doctorate"),
    "capital-gain": Interval(0, log(1 + DOLLARS_MAX), "the census reports 99,999 dollars and above as 99,999"),
    "capital-loss": Interval(0, log(1 + DOLLARS_MAX), "never negative; the same largest amount as for gains"),
    "hours-per-week": Interval(1, 99, "the census reports 99 hours and above as 99"),
}
LOGARITHMIC = ("capital-gain", "capital-loss")
CATEGORIES = {
    "workclass": (
        "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay",
        "Never-worked", "?",
    ),
    "marital-status": (
        "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed", "Married-spouse-absent",
        "Married-AF-spouse",
    ),
    "occupation": (
        "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty",
        "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving",
        "Priv-house-serv", "Protective-serv", "Armed-Forces", "?",
    ),
    "relationship": ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Male",),
    "native-country": (
        "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany", "Outlying-US(Guam-USVI-etc)",
        "India", "Japan", "Greece", "South", "China", "Cuba", "Iran", "Honduras", "Philippines", "Italy", "Poland",
        "Jamaica", "Vietnam", "Mexico", "Portugal", "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador",
        "Taiwan", "Haiti", "Columbia", "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia",
        "El-Salvador", "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands", "?",
    ),
}  # fmt: skip
ONE_HOT = {f"{column}={category}": (column, category) for column, known in CATEGORIES.items() for category in known}
FEATURES = (*NUMBERS, *ONE_HOT)
BOUNDS = (
    NUMBERS
    | {name: Interval(0, 1, "0 or 1: a category of adult.names") for name in ONE_HOT}
    | {TARGET: Interval(0, 1, "0 or 1")}
)
UNITS = {"age": "a", "capital-gain": "ln($)", "capital-loss": "ln($)", "hours-per-week": "h"}


def adult(folder: Path | None = None, *, part: Part = "train") -> Problem:
    """Whether the income is above 50,000 dollars (1) or not (0), of the training or the official test part."""
    path = find(SOURCES[part], folder)
    with path.open(encoding="ascii", newline="") as file:
        people = [row for row in csv.reader(file, skipinitialspace=True) if len(row) == len(COLUMNS)]
    table = dict(zip(COLUMNS, np.array(people).T, strict=True))
    numbers = {name: table[name].astype(float) for name in NUMBERS}
    logarithms = {name: np.log1p(numbers[name]) for name in LOGARITHMIC}
    one_hot = [table[column] == category for column, category in ONE_HOT.values()]
    X = np.column_stack([*(numbers | logarithms).values(), *one_hot]).astype(float)
    rich = np.char.rstrip(table[TARGET], ".") == ">50K"  # in the test part every label ends with a full stop
    return Problem("adult", Schema(FEATURES, TARGET, BOUNDS, UNITS), X, rich.astype(float))
