"""Abalone: eight measurements of 4,177 animals, and the rings of their shells, from which their age follows.

Nash, Sellers, Talbot, Cawthorn and Ford 1994, "The Population Biology of Abalone (Haliotis species) in Tasmania", Sea
Fisheries Division, Technical Report 48; doi 10.24432/C55C7W, CC BY 4.0. Lengths and weights come divided by 200: a
length of 1 is 200 mm, a weight of 1 is 200 g.

Bounds are what is known of the species. The table "Statistics for numeric domains" in ``abalone.names`` has the minimum
and maximum of these very animals, which is not private: `PUBLISHED`, for repeating published experiments. The height's
is not from there, since that maximum is a slip of the pen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from inference.bounds import Interval
from inference.datasets.files import ARCHIVE, Source, find
from inference.problem import Array, Problem, Schema

Sex = Literal["as-published", "one-hot"]

SOURCE = Source(
    "abalone",
    "abalone.data",
    "de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f",
    f"{ARCHIVE}/1/abalone.zip",
    "abalone.data",
)
MEASURES = (
    "length",
    "diameter",
    "height",
    "whole weight",
    "shucked weight",
    "viscera weight",
    "shell weight",
)
TARGET = "rings"
NAMES_TABLE = {
    "length": (0.075, 0.815, 0.524, 0.120),
    "diameter": (0.055, 0.650, 0.408, 0.099),
    "height": (0.000, 1.130, 0.140, 0.042),
    "whole weight": (0.002, 2.826, 0.829, 0.490),
    "shucked weight": (0.001, 1.488, 0.359, 0.222),
    "viscera weight": (0.001, 0.760, 0.181, 0.110),
    "shell weight": (0.002, 1.005, 0.239, 0.139),
    "rings": (1, 29, 9.934, 3.224),
}
"""Minimum, maximum, mean and standard deviation of each column (abalone.names)."""

PUBLISHED_MEANS = {column: row[2] for column, row in NAMES_TABLE.items()}
"""Of the seven measures and the rings; nothing is published of the sexes but how they are coded."""

PUBLISHED = {
    column: Interval(row[0], row[1], "range in abalone.names", public=False) for column, row in NAMES_TABLE.items()
} | {
    "height": Interval(
        0, 0.41, "no shell is higher than half as long as the longest, 0.815 (abalone.names)", public=False
    )
}

# Shells of the blacklip abalone (Haliotis rubra) grow to some 200 mm, and animals of that size weigh up to 1 kg.
BOUNDS = {
    "length": Interval(0, 1, "shells of the species grow to some 200 mm"),
    "diameter": Interval(0, 1, "at right angles to the length, and shorter"),
    "height": Interval(0, 0.5, "a flat shell: at most half as high as the longest is long"),
    "whole weight": Interval(0, 5, "large animals weigh up to 1 kg"),
    "shucked weight": Interval(0, 2.5, "the meat: half of the whole"),
    "viscera weight": Interval(0, 1.25, "a quarter of the whole"),
    "shell weight": Interval(0, 2, "two fifths of the whole"),
    TARGET: Interval(0, 40, "about a ring a year; abalones live for 30 to 40 years"),
}
UNITS = dict.fromkeys(MEASURES[:3], "200 mm") | dict.fromkeys(MEASURES[3:], "200 g") | {TARGET: "rings"}

SEXES = {"as-published": ("sex",), "one-hot": ("sex=M", "sex=F", "sex=I")}


def schema(sex: Sex = "as-published") -> Schema:
    """Public bounds of the columns that this coding of the sex gives."""
    bounds = BOUNDS | {column: Interval(0, 1, "0 or 1 by its coding") for column in SEXES[sex]}
    features = (*SEXES[sex], *MEASURES)
    return Schema(features, TARGET, {column: bounds[column] for column in (*features, TARGET)}, UNITS)


def abalone(folder: Path | None = None, *, sex: Sex = "as-published") -> Problem:
    """Rings on sex and seven measures.

    Args:
        sex: "as-published" is one column as in the DCA paper's code, male 0, female and infant 1: the same eight
            features as Figure 2. "one-hot" is one column each for male, female and infant, which differ more than the
            sexes do.
    """
    cells = np.loadtxt(find(SOURCE, folder), delimiter=",", dtype=str)
    numbers = cells[:, 1:].astype(float)
    X = np.column_stack([_sexes(cells[:, 0], sex), numbers[:, :-1]])
    return Problem("abalone", schema(sex), X, numbers[:, -1])


def _sexes(letters: np.ndarray[tuple[int], np.dtype[np.str_]], sex: Sex) -> Array:
    if sex == "as-published":
        return np.asarray(letters != "M", float)
    return np.column_stack([np.asarray(letters == letter, float) for letter in "MFI"])
