"""Wine quality, abalone and adult, from the UCI archive.

Wine (Cortez, Cerdeira, Almeida, Matos and Reis 2009, "Modeling wine preferences by data mining from physicochemical
properties", Decision Support Systems 47(4); doi 10.24432/C56S3T, CC BY 4.0): eleven laboratory measurements and a taste
score of 1,599 red and 4,898 white wines. Bounds follow from law and chemistry, for any wine.

Abalone (Nash, Sellers, Talbot, Cawthorn and Ford 1994, "The Population Biology of Abalone (Haliotis species) in
Tasmania", Sea Fisheries Division, Technical Report 48; doi 10.24432/C55C7W, CC BY 4.0): eight measurements of 4,177
animals, and the number of rings in their shells, from which their age follows. Lengths and weights are divided by 200:
a length of 1 is 200 mm, a weight of 1 is 200 g. Bounds are what is known of the species.

Adult (Census Income; Kohavi 1996; doi 10.24432/C5XW20, CC BY 4.0): does a person earn more than 50,000 dollars a year?
From the US census of 1994: 32,561 people to train on and 16,281 in the official test part. The features are:

- ``age``, ``education-num`` and ``hours-per-week`` unchanged. ``education`` repeats its number, and is left out.
- ``capital-gain`` and ``capital-loss`` as ln(1 + dollars): most are 0, and a few are thousands.
- Each category of a nominal column as a column of 0 and 1, in the order of ``adult.names``: the list of categories is
  public, so the columns reveal nothing about the rows. A missing value, ``?``, is a category as well, since a value
  may be missing for a reason. Of the two sexes only ``sex=Male`` is a feature.
- ``fnlwgt`` is left out: it is the census's weight of a row, not a property of a person.
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

Colour = Literal["red", "white"]
Sex = Literal["as-published", "one-hot"]
Part = Literal["train", "test"]

SHA256 = {
    "winequality-red.csv": "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
    "winequality-white.csv": "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
    "abalone.data": "de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f",
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}

# European Union limits are those of Regulations 1308/2013 (annex VII) and 2019/934 (annexes I B and I C).
# OIV limits are the "maximum acceptable limits" of its International Code of Oenological Practices.
WINE_BOUNDS = {
    "fixed acidity": Interval(3, 20, "as tartaric acid: EU rules require at least 3.5; lemon juice has 50"),
    "volatile acidity": Interval(0, 2, "as acetic acid: the EU limit is 1.2, beyond which wine is vinegar"),
    "citric acid": Interval(0, 2, "the EU limit is 1"),
    "residual sugar": Interval(0, 50, "by EU labels dry up to 4 and sweet from 45"),
    "chlorides": Interval(0, 1, "as sodium chloride: the OIV limit"),
    "free sulfur dioxide": Interval(0, 200, "a part of the total: half of the limit for the sweetest wines"),
    "total sulfur dioxide": Interval(0, 400, "the EU limit for the sweetest wines; for dry ones it is 150 to 200"),
    "density": Interval(0.98, 1.06, "water with 15 % of alcohol; with 150 g/l of sugar"),
    "pH": Interval(2.5, 4.5, "as sour as lemonade; above 4.5 wine spoils"),
    "sulphates": Interval(0, 2.5, "as potassium sulphate: the OIV limit for special wines; for others it is 1"),
    "alcohol": Interval(7, 16, "EU rules require at least 8.5, and at most 15 unless the wine is fortified"),
    "quality": Interval(0, 10, "tasters graded from 0 (very bad) to 10 (excellent): Cortez et al. 2009, section 2.1"),
}
WINE_UNITS = {
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

# Shells of the blacklip abalone (Haliotis rubra) grow to some 200 mm, and animals of that size weigh up to 1 kg.
ABALONE_BOUNDS = {
    "length": Interval(0, 1, "shells of the species grow to some 200 mm"),
    "diameter": Interval(0, 1, "at right angles to the length, and shorter"),
    "height": Interval(0, 0.5, "shells are flat: at most half as high as the longest is long"),
    "whole weight": Interval(0, 5, "large animals weigh up to 1 kg"),
    "shucked weight": Interval(0, 2.5, "the meat: half of the whole"),
    "viscera weight": Interval(0, 1.25, "a quarter of the whole"),
    "shell weight": Interval(0, 2, "two fifths of the whole"),
    "rings": Interval(0, 40, "about a ring a year; abalones live for 30 to 40 years"),
}
MEASURES = tuple(ABALONE_BOUNDS)[:-1]
ABALONE_UNITS = dict.fromkeys(MEASURES[:3], "200 mm") | dict.fromkeys(MEASURES[3:], "200 g") | {"rings": "rings"}
SEXES = {"as-published": ("sex",), "one-hot": ("sex=M", "sex=F", "sex=I")}


def _find(dataset: str, file: str, archive: str, folder: Path | None) -> Path:
    return find(Source(dataset, file, SHA256[file], f"{ARCHIVE}/{archive}", file), folder)


def wine_schema() -> Schema:
    """Return the schema with public bounds of wines of any colour."""
    return Schema(tuple(WINE_BOUNDS)[:-1], "quality", WINE_BOUNDS, WINE_UNITS)


def wine(colour: Colour, folder: Path | None = None) -> Problem:
    """Load the wines: taste on eleven measurements of 1,599 red or 4,898 white ones."""
    name = f"wine-{colour}"
    path = _find(name, f"winequality-{colour}.csv", "186/wine+quality.zip", folder)
    rows = np.loadtxt(path, delimiter=";", skiprows=1)
    return Problem(name, wine_schema(), rows[:, :-1], rows[:, -1])


def abalone_schema(sex: Sex = "as-published") -> Schema:
    """Return the schema with public bounds of the columns under this coding of the sex."""
    bounds = {column: Interval(0, 1, "0 or 1 by its coding") for column in SEXES[sex]} | ABALONE_BOUNDS
    return Schema((*SEXES[sex], *MEASURES), "rings", bounds, ABALONE_UNITS)


def abalone(folder: Path | None = None, *, sex: Sex = "as-published") -> Problem:
    """Load the abalones: rings on sex and seven measurements.

    Args:
        sex: "as-published" is one column as in the DCA paper's code, male 0, female and infant 1: the same eight
            features as Figure 2. "one-hot" is one column each for male, female and infant, since infants differ more
            from both sexes than these differ from each other.
    """
    cells = np.loadtxt(_find("abalone", "abalone.data", "1/abalone.zip", folder), delimiter=",", dtype=str)
    letters, numbers = cells[:, 0], cells[:, 1:].astype(float)
    coded = [letters != "M"] if sex == "as-published" else [letters == letter for letter in "MFI"]
    X = np.column_stack([*(np.asarray(column, float) for column in coded), numbers[:, :-1]])
    return Problem("abalone", abalone_schema(sex), X, numbers[:, -1])


INCOME = "income>50K"
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", INCOME,
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
ADULT_BOUNDS = (
    NUMBERS
    | {name: Interval(0, 1, "0 or 1: a category of adult.names") for name in ONE_HOT}
    | {INCOME: Interval(0, 1, "0 or 1")}
)
ADULT_UNITS = {"age": "a", "capital-gain": "ln($)", "capital-loss": "ln($)", "hours-per-week": "h"}


def adult(folder: Path | None = None, *, part: Part = "train") -> Problem:
    """Load the training or test part: is the income above 50,000 dollars (1) or not (0)?"""
    path = _find("adult", "adult.data" if part == "train" else "adult.test", "2/adult.zip", folder)
    with path.open(encoding="ascii", newline="") as file:
        people = [row for row in csv.reader(file, skipinitialspace=True) if len(row) == len(COLUMNS)]
    table = dict(zip(COLUMNS, np.array(people).T, strict=True))
    numbers = {name: table[name].astype(float) for name in NUMBERS}
    logarithms = {name: np.log1p(numbers[name]) for name in LOGARITHMIC}
    one_hot = [table[column] == category for column, category in ONE_HOT.values()]
    X = np.column_stack([*(numbers | logarithms).values(), *one_hot]).astype(float)
    rich = np.char.rstrip(table[INCOME], ".") == ">50K"  # every label in the test part ends with a full stop
    return Problem("adult", Schema(FEATURES, INCOME, ADULT_BOUNDS, ADULT_UNITS), X, rich.astype(float))
