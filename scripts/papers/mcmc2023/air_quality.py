"""Air Quality: hourly readings of gas sensors and weather beside a road in an Italian city, March 2004 to April 2005.

De Vito, Massera, Piga, Martinotto and Di Francia 2008, Sensors and Actuators B 129(2); doi 10.24432/C59K5F, CC BY 4.0;
its description asks for research use only. 9,357 hours.

A missing reading is written as -200. Taken for a number it turns the task into predicting what is missing. So the
column ``NMHC(GT)``, whose analyser failed after six weeks, is left out here, and then every hour that lacks a reading:
6,941 are left. Who wants the data as others published them gets the -200 with them.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from io import BytesIO
from pathlib import Path

import numpy as np

from inference.bounds import Interval
from inference.datasets.files import ARCHIVE, Source, find
from inference.problem import Array, Problem, Schema
from papers.workbook import rows as sheet_rows

MISSING = -200.0
COLUMNS = (
    "CO(GT)", "PT08.S1(CO)", "NMHC(GT)", "C6H6(GT)", "PT08.S2(NMHC)", "NOx(GT)", "PT08.S3(NOx)", "NO2(GT)",
    "PT08.S4(NO2)", "PT08.S5(O3)", "T", "RH", "AH",
)  # fmt: skip
TARGET = "AH"
FAILED = "NMHC(GT)"
URL = f"{ARCHIVE}/360/air+quality.zip"
BLANK_LINES = 114


def two_decimals(workbook: bytes) -> bytes:
    """UCI's workbook without date and time, with two decimals, as its table shows and others published it."""
    lines = [",".join(map(_shown, row[2:15])) for row in list(sheet_rows(BytesIO(workbook)))[1:] if any(row)]
    return "".join(f"{line},,\r\n" for line in (*lines, *["," * 12] * BLANK_LINES)).encode()


def _shown(number: str) -> str:
    return str(Decimal(number).quantize(Decimal("0.01"), ROUND_HALF_UP))


SOURCE = Source(
    "air-quality",
    "AirQualityUCI.csv",
    "edcba3469f7e4a13c4897b64f412ebc06914a55c86ffb9af03ad0fa9d0858722",
    URL,
    "AirQualityUCI.csv",
)
SOURCE_AS_PUBLISHED = Source(
    "air-quality",
    "air_quality_numeric.csv",
    "252736b87316085de1f2d91939f0f3b96b73f7d4e58e8fef207415313a3b1b60",
    URL,
    "AirQualityUCI.xlsx",
    two_decimals,
)
STREET = "a generous range for a busy street; the description states none"
SENSOR = (
    "response of a metal oxide sensor; the description states no range, so a round number beyond what such boards give"
)
BOUNDS = {
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
UNITS = {
    "CO(GT)": "mg/m³",
    "NMHC(GT)": "µg/m³",
    "C6H6(GT)": "µg/m³",
    "NOx(GT)": "ppb",
    "NO2(GT)": "µg/m³",
    "T": "°C",
    "RH": "%",
}


def air_quality(folder: Path | None = None, *, as_published: bool = False) -> Problem:
    """Absolute humidity on the other readings.

    Args:
        as_published: all 9,357 rows and 12 features with -200 for a missing reading, as published experiments use them.
            The bounds are widened to it.
    """
    if as_published:
        rows = _numbers(find(SOURCE_AS_PUBLISHED, folder), ",", 0)
        bounds = {name: Interval(MISSING, BOUNDS[name].upper, "and -200 for a missing reading") for name in COLUMNS}
        return _problem(COLUMNS, rows, bounds)
    rows = _numbers(find(SOURCE, folder), ";", 2)
    kept = [name for name in COLUMNS if name != FAILED]
    rows = rows[:, [COLUMNS.index(name) for name in kept]]
    complete = (rows != MISSING).all(axis=1)
    return _problem(tuple(kept), rows[complete], {name: BOUNDS[name] for name in kept})


def _problem(columns: tuple[str, ...], rows: Array, bounds: dict[str, Interval]) -> Problem:
    return Problem("air-quality", Schema(columns[:-1], TARGET, bounds, UNITS), rows[:, :-1], rows[:, -1])


def _numbers(path: Path, delimiter: str, first: int) -> Array:
    """The 13 columns from the first on, of lines that are not blank; a decimal comma is a point."""
    lines = path.read_text(encoding="ascii").splitlines()
    cells = [line.replace(",", "." if delimiter == ";" else ",").split(delimiter)[first:] for line in lines]
    return np.array([row[: len(COLUMNS)] for row in cells if row[0] and not row[0].startswith("CO")], dtype=float)
