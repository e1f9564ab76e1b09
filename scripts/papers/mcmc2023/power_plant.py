"""Combined Cycle Power Plant: hourly electrical output of a plant in Turkey on the weather, 2006 to 2011.

Tüfekci 2014 and Kaya, Tüfekci and Gürgen 2012; doi 10.24432/C5002N, CC BY 4.0. 9,568 hours in the order of the first
sheet of UCI's workbook, which is shuffled. Bounds are physical: the ranges in UCI's description are the rows' own.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np

from inference.bounds import Interval
from inference.datasets.files import ARCHIVE, Source, find
from inference.problem import Problem, Schema
from papers.workbook import as_csv

FEATURES = ("AT", "V", "AP", "RH")
TARGET = "PE"


def unpack(workbook: bytes) -> bytes:
    """The first sheet as CSV. The header is ours: copies of the workbook call the target PE or EP."""
    _, _, values = as_csv(BytesIO(workbook)).partition(b"\n")
    return ",".join((*FEATURES, TARGET)).encode() + b"\n" + values


SOURCE = Source(
    "power-plant",
    "CCPP.csv",
    "3c1fc11025f8424f8d95802d8b7086dffd3f73a552c6dcab3d973620986194b2",
    f"{ARCHIVE}/294/combined+cycle+power+plant.zip",
    "CCPP/Folds5x2_pp.xlsx",
    unpack,
)
BOUNDS = {
    "AT": Interval(-20, 45, "weather of Turkey's lowlands, where such plants stand"),
    "V": Interval(20, 90, "steam behind a turbine: from a quarter of the atmosphere's 76 cmHg to a fifth more"),
    "AP": Interval(950, 1050, "weather moves 1013 mbar at sea level by 40 at most; some 200 m of height take 25"),
    "RH": Interval(0, 100, "a percentage"),
    "PE": Interval(400, 510, "at full load of 480 MW by design (Tüfekci 2014): heat takes a sixth, cold adds 6 %"),
}
UNITS = {"AT": "°C", "V": "cmHg", "AP": "mbar", "RH": "%", "PE": "MW"}


def power_plant(folder: Path | None = None) -> Problem:
    """Electrical output on ambient temperature, exhaust vacuum, ambient pressure and relative humidity."""
    rows = np.loadtxt(find(SOURCE, folder), delimiter=",", skiprows=1)
    return Problem("power-plant", Schema(FEATURES, TARGET, BOUNDS, UNITS), rows[:, :-1], rows[:, -1])
