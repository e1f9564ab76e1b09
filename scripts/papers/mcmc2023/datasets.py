"""The data sets of the third paper's tables, with public bounds: power plant, bike sharing and air quality.

**Combined Cycle Power Plant**: hourly electrical output of a plant in Turkey on the weather, 2006 to 2011. Tüfekci 2014
and Kaya, Tüfekci and Gürgen 2012; doi 10.24432/C5002N, CC BY 4.0. 9,568 hours in the order of the first sheet of UCI's
workbook, which is shuffled. Bounds are physical: the ranges in UCI's description are the rows' own.

**Bike Sharing**: bicycles rented in each hour of 2011 and 2012 in Washington, D.C. Fanaee-T and Gama 2013, "Event
labeling combining ensemble detectors and background knowledge", Progress in Artificial Intelligence; doi
10.24432/C5W894, CC BY 4.0 (the authors ask to be cited). 17,379 hours. Every rental is by a casual or by a registered
user, so ``cnt = casual + registered`` in every row, and a regression that has both as features has nothing to learn.
They are left out here, unless one asks for the data as others published them.

**Air Quality**: hourly readings of gas sensors and weather beside a road in an Italian city, March 2004 to April 2005.
De Vito, Massera, Piga, Martinotto and Di Francia 2008, Sensors and Actuators B 129(2); doi 10.24432/C59K5F, CC BY 4.0;
its description asks for research use only. 9,357 hours. A missing reading is written as -200. Taken for a number it
turns the task into predicting what is missing. So the column ``NMHC(GT)``, whose analyser failed after six weeks, is
left out here, and then every hour that lacks a reading: 6,941 are left. Who wants the data as others published them
gets the -200 with them.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from io import BytesIO
from pathlib import Path

import numpy as np

from inference.bounds import Interval
from inference.datasets.files import ARCHIVE, Source, find
from inference.problem import Array, Problem, Schema
from papers.workbook import as_csv
from papers.workbook import rows as sheet_rows

# Power plant

PLANT_COLUMNS = ("AT", "V", "AP", "RH", "PE")  # the target last


def unpack(workbook: bytes) -> bytes:
    """The first sheet as CSV. The header is ours: copies of the workbook call the target PE or EP."""
    _, _, values = as_csv(BytesIO(workbook)).partition(b"\n")
    return ",".join(PLANT_COLUMNS).encode() + b"\n" + values


PLANT_HASH = "3c1fc11025f8424f8d95802d8b7086dffd3f73a552c6dcab3d973620986194b2"
PLANT_URL = f"{ARCHIVE}/294/combined+cycle+power+plant.zip"
PLANT_SOURCE = Source("power-plant", "CCPP.csv", PLANT_HASH, PLANT_URL, "CCPP/Folds5x2_pp.xlsx", unpack)
PLANT_BOUNDS = {
    "AT": Interval(-20, 45, "weather of Turkey's lowlands, where such plants stand"),
    "V": Interval(20, 90, "steam behind a turbine: from a quarter of the atmosphere's 76 cmHg to a fifth more"),
    "AP": Interval(950, 1050, "weather moves 1013 mbar at sea level by 40 at most; some 200 m of height take 25"),
    "RH": Interval(0, 100, "a percentage"),
    "PE": Interval(400, 510, "at full load of 480 MW by design (Tüfekci 2014): heat takes a sixth, cold adds 6 %"),
}
PLANT_UNITS = {"AT": "°C", "V": "cmHg", "AP": "mbar", "RH": "%", "PE": "MW"}


def power_plant(folder: Path | None = None) -> Problem:
    """Electrical output on ambient temperature, exhaust vacuum, ambient pressure and relative humidity."""
    rows = np.loadtxt(find(PLANT_SOURCE, folder), delimiter=",", skiprows=1)
    schema = Schema(PLANT_COLUMNS[:-1], PLANT_COLUMNS[-1], PLANT_BOUNDS, PLANT_UNITS)
    return Problem("power-plant", schema, rows[:, :-1], rows[:, -1])


# Bike sharing

BIKE_HASH = "e03de4ee4ef4dc376ac6e04bf829673c6269e8eba5c60fa121640fa2f829504f"
BIKE_SOURCE = Source("bike", "hour.csv", BIKE_HASH, f"{ARCHIVE}/275/bike+sharing+dataset.zip", "hour.csv")
BIKE_COLUMNS = (
    "instant", "dteday", "season", "yr", "mnth", "hr", "holiday", "weekday", "workingday", "weathersit", "temp",
    "atemp", "hum", "windspeed", "casual", "registered", "cnt",
)  # fmt: skip
BIKE_FEATURES = BIKE_COLUMNS[2:14]
PARTS = BIKE_COLUMNS[14:16]
BIKE_TARGET = "cnt"
CODED = "the code of its description (Readme.txt)"
CODES = {
    "season": (1, 4), "yr": (0, 1), "mnth": (1, 12), "hr": (0, 23), "holiday": (0, 1), "weekday": (0, 6),
    "workingday": (0, 1), "weathersit": (1, 4),
}  # fmt: skip
NORMALISED = "a share of the largest value in these rows, by its description (Readme.txt)"
FLEET = "the operator had some 1,100 to 1,700 bicycles in these years, and hardly all are rented in the same hour"
BIKE_BOUNDS = {
    **{name: Interval(*ends, CODED) for name, ends in CODES.items()},
    "temp": Interval(-0.5, 1.25, "from -20 to 50 °C"),
    "atemp": Interval(-0.6, 1.2, "from -30 to 60 °C"),
    "hum": Interval(0, 1, "a percentage"),
    "windspeed": Interval(0, 2, "a hurricane is faster than 118 km/h"),
    **{name: Interval(0, 1000, FLEET) for name in (*PARTS, BIKE_TARGET)},
}
SHARES = {name: Interval(0, 1, NORMALISED, public=False) for name in ("temp", "atemp", "windspeed")}
"""Bounds that follow from how these columns were divided, for repeating published experiments: not private."""
BIKE_UNITS = {
    "hr": "h", "temp": "41 °C", "atemp": "50 °C", "hum": "100 %", "windspeed": "67 km/h", "casual": "rentals",
    "registered": "rentals", "cnt": "rentals",
}  # fmt: skip


def bike(folder: Path | None = None, *, as_published: bool = False) -> Problem:
    """Rentals in an hour on calendar and weather.

    Args:
        as_published: keep ``casual`` and ``registered``, as published experiments do; the target is then their sum.
    """
    features = (*BIKE_FEATURES, *PARTS) if as_published else BIKE_FEATURES
    columns = [BIKE_COLUMNS.index(name) for name in (*features, BIKE_TARGET)]
    rows = np.loadtxt(find(BIKE_SOURCE, folder), delimiter=",", skiprows=1, usecols=columns)
    bounds = {name: BIKE_BOUNDS[name] for name in (*features, BIKE_TARGET)}
    return Problem("bike", Schema(features, BIKE_TARGET, bounds, BIKE_UNITS), rows[:, :-1], rows[:, -1])


# Air quality

MISSING = -200.0
AIR_TARGET = "AH"
FAILED = "NMHC(GT)"
BLANK_LINES = 114


def two_decimals(workbook: bytes) -> bytes:
    """UCI's workbook without date and time, with two decimals, as its table shows and others published it."""

    def shown(number: str) -> str:
        return str(Decimal(number).quantize(Decimal("0.01"), ROUND_HALF_UP))

    lines = [",".join(map(shown, row[2:15])) for row in list(sheet_rows(BytesIO(workbook)))[1:] if any(row)]
    return "".join(f"{line},,\r\n" for line in (*lines, *["," * 12] * BLANK_LINES)).encode()


URL = f"{ARCHIVE}/360/air+quality.zip"
AIR_HASH = "edcba3469f7e4a13c4897b64f412ebc06914a55c86ffb9af03ad0fa9d0858722"
AIR_SOURCE = Source("air-quality", "AirQualityUCI.csv", AIR_HASH, URL, "AirQualityUCI.csv")
PUBLISHED_HASH = "252736b87316085de1f2d91939f0f3b96b73f7d4e58e8fef207415313a3b1b60"
AIR_AS_PUBLISHED = Source(
    "air-quality", "air_quality_numeric.csv", PUBLISHED_HASH, URL, "AirQualityUCI.xlsx", two_decimals
)
STREET = "a generous range for a busy street; the description states none"
SENSOR = (
    "response of a metal oxide sensor; the description states no range, so a round number beyond what such boards give"
)
AIR_BOUNDS = {
    "CO(GT)": Interval(0, 20, STREET),
    "PT08.S1(CO)": Interval(0, 3000, SENSOR),
    "NMHC(GT)": Interval(0, 2000, STREET),
    "C6H6(GT)": Interval(0, 100, STREET),
    "PT08.S2(NMHC)": Interval(0, 3000, SENSOR),
    "NOx(GT)": Interval(0, 2000, STREET),
    "PT08.S3(NOx)": Interval(0, 3000, SENSOR),
    "NO2(GT)": Interval(0, 500, STREET),
    "PT08.S4(NO2)": Interval(0, 3000, SENSOR),
    "PT08.S5(O3)": Interval(0, 3000, SENSOR),
    "T": Interval(-20, 50, "weather of a city in Italy"),
    "RH": Interval(0, 100, "a percentage"),
    "AH": Interval(0, 3, "10 g/m³ each: saturated air at 29 °C holds 29 g/m³"),
}
AIR_COLUMNS = tuple(AIR_BOUNDS)
AIR_UNITS = {
    "CO(GT)": "mg/m³", "NMHC(GT)": "µg/m³", "C6H6(GT)": "µg/m³", "NOx(GT)": "ppb", "NO2(GT)": "µg/m³", "T": "°C",
    "RH": "%",
}  # fmt: skip


def air_quality(folder: Path | None = None, *, as_published: bool = False) -> Problem:
    """Absolute humidity on the other readings.

    Args:
        as_published: all 9,357 rows and 12 features with -200 for a missing reading, as published experiments use them.
            The bounds are widened to it.
    """
    if as_published:
        rows, columns = _numbers(find(AIR_AS_PUBLISHED, folder), ",", 0), AIR_COLUMNS
        reason = "and -200 for a missing reading"
        bounds = {name: Interval(MISSING, AIR_BOUNDS[name].upper, reason) for name in columns}
    else:
        columns = tuple(name for name in AIR_COLUMNS if name != FAILED)
        places = [AIR_COLUMNS.index(name) for name in columns]
        rows = _numbers(find(AIR_SOURCE, folder), ";", 2)[:, places]
        rows, bounds = rows[(rows != MISSING).all(axis=1)], {name: AIR_BOUNDS[name] for name in columns}
    return Problem("air-quality", Schema(columns[:-1], AIR_TARGET, bounds, AIR_UNITS), rows[:, :-1], rows[:, -1])


def _numbers(path: Path, delimiter: str, first: int) -> Array:
    """The 13 columns from the first on, of lines that are not blank; a decimal comma is a point."""
    lines = path.read_text(encoding="ascii").splitlines()
    cells = [line.replace(",", "." if delimiter == ";" else ",").split(delimiter)[first:] for line in lines]
    return np.array([row[: len(AIR_COLUMNS)] for row in cells if row[0] and not row[0].startswith("CO")], dtype=float)
