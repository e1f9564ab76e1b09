"""The data sets themselves. Files are read from the folder in DCA_DATA; tests that need them are skipped without it."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from io import BytesIO

import numpy as np
import pytest

from inference.bounds import Interval
from inference.datasets import DATASETS, abalone, adult, load, wine
from inference.datasets.files import FOLDER_VARIABLE
from inference.datasets.uci import Colour
from inference.problem import Problem
from papers.dca2017.data import BOUNDS, RANGES, off_by_one
from papers.mcmc2023.data import SHARES, air_quality, bike, power_plant, two_decimals, unpack
from papers.workbook import as_csv, rows

needs_files = pytest.mark.skipif(FOLDER_VARIABLE not in os.environ, reason=f"name the data's folder: {FOLDER_VARIABLE}")

SHAPES = {
    "diabetes": (442, 4),
    "breast-cancer": (569, 31),
    "simulated-trial": (600, 5),
    "wine-red": (1599, 12),
    "wine-white": (4898, 12),
    "abalone": (4177, 9),
    "adult": (32561, 91),
    "power-plant": (9568, 5),
    "bike": (17379, 13),
    "air-quality": (6941, 12),
}
SHIPPED = ("diabetes", "breast-cancer", "simulated-trial")
OF_PAPERS = {"power-plant": power_plant, "bike": bike, "air-quality": air_quality}
CLIPPED_MAX = 0.025  # share of rows with a value outside


@cache
def loaded(name: str) -> Problem:
    return OF_PAPERS[name]() if name in OF_PAPERS else load(name)


def outside(problem: Problem) -> int:
    """Rows with a value that a client would have to project."""
    bounds = [problem.schema.bounds[column] for column in problem.schema.columns]
    low, high = np.array([[one.lower, one.upper] for one in bounds]).T
    return int(((problem.rows < low) | (problem.rows > high)).any(axis=1).sum())


def test_every_data_set_has_its_shape_here() -> None:
    assert set(SHAPES) == {*DATASETS, *OF_PAPERS}


@pytest.mark.parametrize(
    "name", [name if name in SHIPPED else pytest.param(name, marks=needs_files) for name in SHAPES]
)
def test_rows_are_complete_bounds_have_reasons_and_hold_for_nearly_all(name: str) -> None:
    problem = loaded(name)
    assert problem.name == name
    assert problem.rows.shape == SHAPES[name]
    assert np.isfinite(problem.rows).all()
    assert problem.schema.private
    assert all(problem.schema.bounds[column].reason for column in problem.schema.columns)
    print(f"{name}: {outside(problem)} of {len(problem.y)} rows have a value outside the public bounds")
    assert outside(problem) <= CLIPPED_MAX * len(problem.y)


CODED = re.compile("0 or 1|0 malignant|code of its description|percentage|census|only people over|levels")


MEASURED = set(SHAPES) - {"simulated-trial"}  # whose rows were drawn within its bounds


@pytest.mark.parametrize(
    "name", [name if name in SHIPPED else pytest.param(name, marks=needs_files) for name in sorted(MEASURED)]
)
def test_hardening_12_no_bounds_are_the_rows_own(name: str) -> None:
    """Not even rounded; but for codes and percentages, whose ends follow from what they are."""
    problem = loaded(name)
    for column, values in zip(problem.schema.columns, problem.rows.T, strict=True):
        bounds = problem.schema.bounds[column]
        own = {float(f"{end:.{digits}g}") for end in (values.min(), values.max()) for digits in (3, 4, 17)} - {0.0}
        assert CODED.search(bounds.reason) or not {bounds.lower, bounds.upper} & own, (column, bounds)


@pytest.mark.parametrize("known", [*BOUNDS.values(), SHARES])
def test_ranges_that_were_published_with_rows_are_marked(known: dict[str, Interval]) -> None:
    assert not any(one.public for one in known.values())


@needs_files
@pytest.mark.parametrize(("colour", "faulty", "right"), [("red", 0.867, 1.375), ("white", 0.747, 1.115)])
def test_the_wine_fault_is_that_of_the_published_runs(colour: Colour, faulty: float, right: float) -> None:
    """MAE of predicting zero on the target scaled to a range of 10, within the 2 % that a split of the rows makes."""
    for as_published, expected in ((True, faulty), (False, right)):
        wines = wine(colour)
        y = (off_by_one(wines) if as_published else wines).y
        scaled = (y - y.mean()) * 10 / np.ptp(y)
        assert np.abs(scaled).mean() == pytest.approx(expected, rel=0.02)


@needs_files
def test_the_wine_fault_loses_the_last_row_for_one_of_zeros() -> None:
    right, faulty = wine("red"), off_by_one(wine("red"))
    np.testing.assert_array_equal(faulty.rows[0], 0)
    np.testing.assert_array_equal(faulty.rows[1:], right.rows[:-1])


@needs_files
@pytest.mark.parametrize("colour", ["red", "white"])
def test_published_means_of_wine_are_means(colour: Colour) -> None:
    """Within 0.6 standard deviations: the paper cuts them off after a digit or two (white pH: 3.1, and not 3.19)."""
    problem = wine(colour)
    published = np.array([RANGES[f"wine-{colour}"][name][2] for name in problem.schema.features])
    assert (np.abs(problem.X.mean(axis=0) - published) < 0.6 * problem.X.std(axis=0)).all()


@needs_files
def test_published_means_of_abalone_are_means() -> None:
    problem = abalone()
    found = problem.rows[:, 1:]
    np.testing.assert_allclose(found.mean(axis=0), [row[2] for row in RANGES["abalone"].values()], atol=6e-4)
    np.testing.assert_allclose(found.std(axis=0), [row[3] for row in RANGES["abalone"].values()], atol=6e-4)


@needs_files
def test_abalone_codes_the_sexes_as_published_or_one_by_one() -> None:
    published, each = abalone(), abalone(sex="one-hot")
    np.testing.assert_array_equal(each.X[:, :3].sum(axis=1), 1)
    np.testing.assert_array_equal(published.X[:, 0], 1 - each.X[:, 0])  # male 0, female and infant 1
    np.testing.assert_array_equal(published.X[:, 1:], each.X[:, 3:])
    assert published.X[:, 0].sum() == 1307 + 1342  # abalone.names: females and infants


@needs_files
def test_adult_has_an_official_test_part_and_a_category_for_missing() -> None:
    train, test = loaded("adult"), adult(part="test")
    assert (len(train.y), len(test.y)) == (32561, 16281)
    assert train.y.mean() == pytest.approx(0.2408, abs=5e-5)  # adult.names: 24.08 % above 50K in the training part
    assert test.y.mean() == pytest.approx(0.2362, abs=5e-5)
    names = train.schema.features
    for column in ("workclass", "occupation", "native-country", "race", "marital-status", "relationship"):
        chosen = [place for place, name in enumerate(names) if name.startswith(f"{column}=")]
        np.testing.assert_array_equal(train.X[:, chosen].sum(axis=1), 1)  # every person is in exactly one category
    assert train.X[:, names.index("occupation=?")].sum() == 1843


@needs_files
def test_power_plant_repeats_the_published_least_squares_error() -> None:
    """First 80 % of the rows, X standardised, y centred and divided by its maximum over all rows: 0.01269."""
    problem = power_plant()
    X = (problem.X - problem.X.mean(axis=0)) / problem.X.std(axis=0)
    y = problem.y - problem.y.mean()
    y /= np.abs(y).max()
    n = int(0.8 * len(y))
    beta = np.linalg.lstsq(X[:n], y[:n], rcond=None)[0]
    assert np.mean((X[n:] @ beta - y[n:]) ** 2) == pytest.approx(0.01269, abs=5e-5)


@needs_files
def test_bike_leaves_out_the_parts_of_its_target() -> None:
    assert not {"casual", "registered"} & set(loaded("bike").schema.features)
    published = bike(as_published=True)
    assert published.schema.features[-2:] == ("casual", "registered")
    np.testing.assert_array_equal(published.X[:, -2:].sum(axis=1), published.y)


@needs_files
def test_air_quality_leaves_out_what_is_missing() -> None:
    assert (loaded("air-quality").rows != -200).all()
    published = air_quality(as_published=True)
    assert published.rows.shape == (9357, 13)
    assert (published.rows == -200).sum(axis=0)[:3].tolist() == [1683, 366, 8443]
    assert outside(published) == 0


def workbook(
    cells: str, sheet: str = "xl/worksheets/sheet1.xml", sheets: str = '<sheet name="a" r:id="rId7"/>'
) -> BytesIO:
    """A workbook of one sheet with these cells."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    memory = BytesIO()
    with zipfile.ZipFile(memory, "w") as parts:
        parts.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{main}" xmlns:r="{relation}"><sheets>{sheets}</sheets></workbook>',
        )
        parts.writestr(
            "xl/_rels/workbook.xml.rels",
            '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
            '<Relationship Id="rId7" Target="worksheets/sheet1.xml"/></Relationships>',
        )
        shared = f'<sst xmlns="{main}"><si><t>AT</t><phoneticPr/></si><si><r><t>P</t></r><r><t>E</t></r></si></sst>'
        parts.writestr("xl/sharedStrings.xml", shared)
        parts.writestr(sheet, f'<worksheet xmlns="{main}"><sheetData>{cells}</sheetData></worksheet>')
    memory.seek(0)
    return memory


CELLS = (
    '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c></row>'
    '<row r="2"><c r="A2"><v>5.1100000000000003</v></c><c r="B2"><v>488</v></c></row>'
    '<row r="3"><c r="B3" t="inlineStr"><is><t>x</t></is></c><c r="AA3"><v>1e-3</v></c></row>'
)


def test_a_workbook_gives_numbers_and_texts_in_their_columns() -> None:
    read = list(rows(workbook(CELLS)))
    assert read[:2] == [["AT", "PE"], ["5.11", "488"]]
    assert (read[2][1], read[2][26], len(read[2])) == ("x", "0.001", 27)
    assert as_csv(workbook(CELLS)).startswith(b"AT,PE\n5.11,488\n")


def broken() -> Iterator[BytesIO]:
    yield BytesIO(b"no archive")
    yield workbook(CELLS, sheet="elsewhere.xml")
    yield workbook("<row>")
    yield workbook(CELLS, sheets="")
    yield workbook('<row r="1"><c r="A1" t="s"><v>9</v></c></row>')


@pytest.mark.parametrize("content", list(broken()), ids=["no archive", "no sheet", "no XML", "no list", "no text"])
def test_what_is_no_workbook_is_refused(content: BytesIO) -> None:
    with pytest.raises(ValueError, match="not a workbook"):
        list(rows(content))


def test_uci_workbooks_become_the_files_that_others_published() -> None:
    made = unpack(workbook(CELLS.partition('<row r="3">')[0]).read())
    assert made == b"AT,V,AP,RH,PE\n5.11,488\n"  # a header of ours, then the values
    hour = "".join(f'<c r="{letter}2"><v>9.125</v></c>' for letter in "ABCDEFGHIJKLMNO")
    made = two_decimals(workbook(f'<row r="1"><c r="A1" t="s"><v>0</v></c></row><row r="2">{hour}</row>').read())
    first, second, *_ = made.split(b"\r\n")
    assert first == b",".join([b"9.13"] * 13) + b",,"  # halves go up, as in a spreadsheet
    assert second == b"," * 14
