"""CSV as people have it: one reader, so a device and a table on one machine see the same numbers."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import structlog
from structlog.testing import capture_logs

from dca_proto.errors import InputError
from dca_proto.runtime.csv_text import DELIMITERS, open_csv, parse_delimiter
from dca_proto.runtime.logs import configure_logs
from dca_proto.runtime.table import read_csv
from inference.bounds import Interval
from inference.datasets import from_csv
from inference.errors import DataError
from inference.problem import Problem

NAN = float("nan")
ROWS = [[50.709, 28.664, 77.051], [77.028, 32.096, 103.184]]
BOUNDS = dict.fromkeys(("age", "bmi", "y"), Interval(0, 200))
PLAIN = "age,bmi,y\n50.709,28.664,77.051\n77.028,32.096,103.184\n"


def both(path: Path, delimiter: str = "", columns: Sequence[str] = ("age", "bmi", "y")) -> np.ndarray:
    """The rows as both readers see them, once they agree."""
    rows = read_csv(path, delimiter=delimiter).rows(tuple(columns))
    problem = on_one_machine(path, delimiter, columns)
    np.testing.assert_array_equal(problem.rows, rows)
    return rows


def on_one_machine(path: Path, delimiter: str = "", columns: Sequence[str] = ("age", "bmi", "y")) -> Problem:
    bounds = {column: BOUNDS.get(column, Interval(-1, 1)) for column in columns}
    *features, target = columns
    return from_csv(path, target, bounds, features, alone=True, missing="zero", delimiter=delimiter)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (PLAIN, ""),
        (PLAIN.replace(",", ";"), "cells are separated by semicolons"),
        (PLAIN.replace(",", "\t"), "cells are separated by tabs"),
        (PLAIN.replace(",", ";").replace(".", ","), "semicolons; 1,5 is read as 1.5"),
        (PLAIN.replace(",", "\t").replace(".", ","), "tabs; 1,5 is read as 1.5"),
        ("\ufeff" + PLAIN, ""),
        (PLAIN.replace("\n", "\r\n"), ""),
        ("\ufeff" + PLAIN.replace("\n", "\r\n").replace(",", ";"), "semicolons"),
        ("\n" + PLAIN, ""),
        ("\r\n  \r\n" + PLAIN, ""),
        ("sep=;\r\n" + PLAIN.replace(",", ";"), "semicolons"),
        ("sep=,\n" + PLAIN, ""),
        (PLAIN.rstrip("\n"), ""),
        (PLAIN + "\n\n", ""),
        ('"age","bmi","y"\n"50.709","28.664","77.051"\n77.028, 32.096 ,103.184\n', ""),
    ],
)
def test_what_people_call_csv_is_read_as_it_is_meant(tmp_path: Path, text: str, note: str) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes(text.encode())
    before = structlog.get_config()
    configure_logs()  # as `dca client` does
    try:
        with capture_logs() as logs:
            assert both(path).tolist() == ROWS
    finally:
        structlog.configure(**before)
    assert [entry["log_level"] for entry in logs] == ["info"] * bool(note)
    assert note in str(logs), "a device says it"
    found = on_one_machine(path).note
    assert (note in found, bool(found)) == (True, bool(note)), "and so does a command"


@pytest.mark.parametrize("delimiter", [*DELIMITERS, "\\t", "|", ";", " "])
def test_a_delimiter_can_be_named(tmp_path: Path, delimiter: str) -> None:
    sign = parse_delimiter(delimiter)
    (tmp_path / "d.csv").write_text(PLAIN.replace(",", sign))
    assert both(tmp_path / "d.csv", sign).tolist() == ROWS


@pytest.mark.parametrize("wrong", ["::", "x", "1", ".", "-", '"', "commas", "\n", "\0"])
def test_a_sign_that_numbers_or_names_have_is_no_delimiter(wrong: str) -> None:
    with pytest.raises(InputError, match="expected one of comma, semicolon, tab, or a single sign"):
        parse_delimiter(wrong)


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("1_000", NAN),
        ("1e3", 1000),
        (" 7 ", 7),
        ("1.000,5", NAN),
        ("1,000,000", NAN),
        ("1 000", NAN),
        ("0x10", NAN),
        ("unavailable", NAN),
        ("nan", NAN),
        ("-inf", NAN),
        ("1e999", NAN),
        ("", NAN),
        ("-,5", -0.5),
    ],
)
def test_a_cell_is_the_same_number_everywhere(tmp_path: Path, cell: str, number: float) -> None:
    """Where commas separate cells, a quoted comma is no decimal mark: it is refused or missing, never misread."""
    path = tmp_path / "d.csv"
    for sign in ",;\t":
        path.write_text(f'age{sign}bmi{sign}y\n"{cell}"{sign}2{sign}3\n5{sign}6{sign}7\n')
        expected = NAN if sign == "," in cell else number
        np.testing.assert_array_equal(both(path), [[expected, 2, 3], [5, 6, 7]])


@pytest.mark.parametrize("sign", [";", "\t"])
def test_a_comma_beside_a_decimal_point_is_never_read_as_one(tmp_path: Path, sign: str) -> None:
    """It separated thousands: 1,234 was read as 1.234. The whole line decides, so both readers agree."""
    path = tmp_path / "d.csv"
    lines = ("age;bmi;y;note", "1,234;2.5;3;x", "1,5;2;3;A. B.", "1,5;2;3,5;1.2.3", "1,5;2;3;0.1", "7;8.5;9;x")
    path.write_text("\n".join(lines).replace(";", sign))
    expected = [[NAN, 2.5, 3], [1.5, 2, 3], [1.5, 2, 3.5], [NAN, 2, 3], [7, 8.5, 9]]
    np.testing.assert_array_equal(both(path), expected)
    with pytest.raises(DataError, match=r"row 1 .* 'age': found '1,234'.* line also has a decimal point: write 1234.5"):
        from_csv(path, "y", BOUNDS, ["age", "bmi"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no header; expected the columns' names in its first line"),
        ("\n \n", "has no header; expected the columns' names in its first line"),
        (",,\n1,2,3\n", "has no header; expected the columns' names in its first line"),
        (",age,bmi,y\n0,1,2,3\n", "first column has no name, as pandas writes an index; write the file with to_csv("),
        ("age,bmi,y,\n1,2,3,\n", "its last column has no name: the first line ends with a separator; remove it from"),
        ("age,,y\n1,2,3\n", "column 2 has no name; name it in the first line"),
        ("50.7,28.7,77.1\n77,32,103\n", "begins with numbers; expected the columns' names in its first line: put one"),
        ("50,7;28,7;77,1\n77;32;103\n", "begins with numbers; expected the columns' names in its first line: put one"),
        ("age,age,y\n1,2,3\n", "has one name for columns 1 and 2 of its first line; rename one"),
        ("2019,2020\n1,2\n", "as in x1,x2 (a name, such as a year, needs a letter: y2020)"),
        ('sep="\nage"bmi"y\n1"2"3\n', "line sep=\": delimiter '\"': expected one of comma, semicolon, tab, or a"),
        ("sep=1\nage1bmi1y\n51617\n", "line sep=1: delimiter '1': expected one of comma, semicolon, tab, or a"),
        ('"age,bmi,y\n1,2,3\n', "is not a CSV in UTF-8"),
    ],
)
def test_a_first_line_that_names_no_columns_is_named_in_words(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "d.csv"
    path.write_text(text)
    for reads, error in ((read_csv, InputError), (on_one_machine, DataError)):
        with pytest.raises(error) as caught:
            reads(path)
        assert message in str(caught.value)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(("encoding", "message"), [("latin-1", "is not UTF-8 text: see line 3"), ("utf-16", "UTF-16")])
def test_another_encoding_is_one_clear_line(tmp_path: Path, encoding: str, message: str) -> None:
    """On a device only the header decides, so that no row keeps a client from taking part; a warning counts others."""
    path = tmp_path / "d.csv"
    path.write_bytes("age,city,y\n1,Turku,3\n4,Åbo,6\n".encode(encoding))
    with pytest.raises(DataError, match=message) as caught:
        on_one_machine(path, columns=("age", "y"))
    assert "save it as UTF-8" in str(caught.value)
    if encoding == "utf-16":
        with pytest.raises(InputError, match="is not a CSV in UTF-8; save it as one"):
            read_csv(path)
        return
    with capture_logs() as logs:
        np.testing.assert_array_equal(read_csv(path).rows(("age", "city", "y")), [[1, NAN, 3], [4, NAN, 6]])
    assert [(entry["fields"], entry["not_utf8"]) for entry in logs] == [({"city": 2}, 1)]


def test_a_refused_cell_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    for text, message in (
        ('age,bmi,y\n"50,7",1,2\n', "found '50,7', expected a number without commas: write a decimal point, or sep"),
        ("age,bmi,y\n50,7,28,7,77,1\n", "found 6 cells, expected 3 as in the first line; if commas are decimal marks"),
        ("\nage,bmi,y\n1,2\n", "row 1 (line 3): found 2 cells, expected 3 as in the first line"),
        ('age,bmi,y\n1,2,3\n"4,5,6\n', "row 2 (line 3): d.csv is not CSV text here; look for a quote"),
        ("age,bmi,y\n1,1_000,3\n", "column 'bmi': found '1_000', expected a finite number"),
        ('\nsep=,\n\nage,bmi,y\n"1",2,3\n,2,3\n', "row 2 (line 6), column 'age': the value is missing"),
    ):
        path.write_text(text)
        with pytest.raises(DataError) as caught:
            from_csv(path, "y", BOUNDS)
        assert message in str(caught.value)
    path.write_text("y\n20,5\n")
    with pytest.raises(DataError, match="if commas are decimal marks, give --delimiter semicolon"):
        from_csv(path, "y", {"y": BOUNDS["y"]}, alone=True)
    assert from_csv(path, "y", {"y": BOUNDS["y"]}, alone=True, delimiter=";").y.tolist() == [20.5]
    path.write_text("5.1,3.5,setosa\n4.9,3.0,setosa\n")
    with pytest.raises(DataError, match=r"column 'y' is not in d.csv; .*; does the first line name the columns\?"):
        from_csv(path, "y", BOUNDS)


def test_an_emptied_cell_stays_a_row_also_in_a_file_of_one_column(tmp_path: Path) -> None:
    """Programs that write such a file leave a blank line. It was no row, and the rows after it moved up."""
    path = tmp_path / "d.csv"
    path.write_text("y\n20\n\n22\n\n")
    np.testing.assert_array_equal(both(path, columns=("y",)), [[20], [NAN], [22], [NAN]])
    path.write_text("x,y\n1,20\n\n3,22\n\n")
    assert len(read_csv(path)) == 2, "with more columns, a blank line has no cell that could be empty"


def test_no_row_changes_how_another_is_read(tmp_path: Path) -> None:
    """Only the first line decides what separates cells, so one row more or less cannot."""
    path = tmp_path / "d.csv"
    for odd in ("1;2;3", "1\t2\t3", "4,5,6,7", "4,5", '"', ",,", "x,y,z", "\udcff,1,2"):
        path.write_text(f"age,bmi,y\n1,2,3\n{odd}\n7,8,9\n", errors="surrogateescape")
        rows = read_csv(path).rows(("age", "bmi", "y"))
        assert rows[0].tolist() == [1, 2, 3]
        if odd != '"':  # an unclosed quote takes the lines after it along: PRIVACY.md, section 6
            assert (len(rows), rows[2].tolist()) == (3, [7, 8, 9])


CELLS = [
    "",
    '"',
    '""',
    '"x',
    "a\r\nb\n",
    "\r",
    ";",
    "\t",
    ",",
    "1,5",
    "1e999",
    "\0",
    "\ufeff1",
    "sep=;",
    "\\",
    "\u2028",
]
LONG = ["x" * 140_000, "x\n" * 70_000, "x" * 140_000 + '\n"\n', "7" * 140_000]
"""Beyond the longest cell of Python's reader, which then drops one line of it and takes the next for a row."""


@pytest.mark.parametrize("columns", [("y",), ("age", "y")])
@pytest.mark.parametrize("sign", [",", "\t"])
def test_whatever_a_cell_has_other_rows_stay(tmp_path: Path, sign: str, columns: Sequence[str]) -> None:
    path, rows = tmp_path / "d.csv", [[f"{row}.{place}" for place, _ in enumerate(columns)] for row in range(4)]
    for cell in CELLS + LONG:
        for row in (0, 3):
            table = [list(columns), *map(list, rows)]
            table[1 + row][0] = cell
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, delimiter=sign).writerows(table)
            found = both(path, sign, columns)
            assert len(found) == len(rows)
            others = [place for place in range(len(rows)) if place != row]
            assert found[others].tolist() == [list(map(float, rows[place])) for place in others]


def test_the_line_after_a_long_cell_is_named_rightly(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text('age,note,y\n1,"' + "x\n" * 70_000 + '",3\n1,x,\n')
    lacking: list[tuple[int, int]] = []
    with open_csv(path) as text:
        text.numbers({}, lambda missing: lacking.append((missing.row, missing.line)), ["age", "y"])
    assert [row for row, _ in lacking] == [1, 2]
    assert lacking[1][1] == 70_003


def test_names_and_categories_may_have_any_sign(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text('diag,"weight, kg",gain_$_loss_$\n"Fracture, closed",70,1\nSprain,80,2\n')
    listed = {"diag": ("Fracture, closed", "Sprain")}
    table = read_csv(path, listed)
    assert table.rows(("diag", "diag=Fracture, closed", "weight, kg", "gain_$_loss_$")).tolist() == [
        [0, 1, 70, 1],
        [1, 0, 80, 2],
    ]
    bounds = {"weight, kg": Interval(0, 200), "gain_$_loss_$": Interval(0, 9)}
    bounds["diag"] = Interval.of_labels("diag", listed["diag"])
    problem = from_csv(path, "gain_$_loss_$", bounds).with_indicators()
    assert problem.schema.features == ("diag=Sprain", "weight, kg")
    assert problem.rows.tolist() == [[0, 70, 1], [1, 80, 2]]


@pytest.mark.parametrize("hole", ["", "1.5"])
def test_the_time_to_read_a_file_grows_with_its_cells(tmp_path: Path, hole: str) -> None:
    """It grew with the square of the columns: 25 s for 5,000 rows of 450 columns, which take 0.8 s now.

    As many cells in ten times as many columns took ten times as long, with or without missing values.
    """

    def took_s(width: int, rows: int) -> float:
        path, names = tmp_path / f"{width}.csv", [f"c{place}" for place in range(width)]
        lines = [",".join([hole, *["1.25"] * (width - 1)])] * (rows - 1)
        path.write_text(
            "\n".join([",".join(names), *lines, lines[0].replace(hole, "1.25", 1) if hole else "1.25" + lines[0]])
        )
        began_s = time.process_time()
        found = from_csv(path, names[-1], dict.fromkeys(names, Interval(0, 2)), missing="zero")
        assert found.rows.shape == (rows, width)
        return time.process_time() - began_s

    assert min(took_s(400, 50) for _ in range(3)) < 4 * min(took_s(40, 500) for _ in range(3))
