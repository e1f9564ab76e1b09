"""Bounds, CSV files and splits: what is accepted, and the one line that a wrong input gets."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from inference.bounds import Interval, bounds_from_data, given_bounds, parse_bounds, read_bounds
from inference.datasets import Schema, diabetes, from_csv, load, split, stream
from inference.errors import DataError

BOUNDS = {"age": Interval(0, 120), "weight": Interval(30, 200)}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "patients.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_interval_centre_and_half_width() -> None:
    assert (Interval(15, 40).centre, Interval(15, 40).half_width) == (27.5, 12.5)


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (float("nan"), 1), (0, float("inf")), (-1e308, 1e308)])
def test_invalid_intervals_are_refused(low: float, high: float) -> None:
    with pytest.raises(DataError, match="expected finite LO < HI"):
        Interval(low, high)


def test_parse_bounds_reads_every_column() -> None:
    parsed = parse_bounds("age=0:120, t=-1e-3:2.5,a=b=0:1")
    assert parsed == {"age": Interval(0, 120), "t": Interval(-0.001, 2.5), "a=b": Interval(0, 1)}


@pytest.mark.parametrize("text", ["age", "age=1", "age=1:x", "=1:2", "age=1:2,age=1:3", "age=3:2", "age=1:2:3"])
def test_parse_bounds_names_the_error(text: str) -> None:
    with pytest.raises(DataError, match=r"age|=1:2"):
        parse_bounds(text)


def test_read_bounds_reads_toml(tmp_path: Path) -> None:
    path = tmp_path / "bounds.toml"
    path.write_text('age = [0, 120]\n"blood pressure" = [60.0, 140.0]\n')
    assert read_bounds(path) == {"age": Interval(0, 120), "blood pressure": Interval(60, 140)}


@pytest.mark.parametrize("text", ["age 1", "age = 3", "age = [1]", "age = [1, 2, 3]", "age = [[1], 2]", "age = [2, 1]"])
def test_read_bounds_refuses_other_content(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bounds.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=r"age|not TOML"):
        read_bounds(path)


def test_read_bounds_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.toml: No such file"):
        read_bounds(tmp_path / "nowhere.toml")


def test_given_bounds_are_a_file_where_there_is_one_else_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.toml").write_text("age = [0, 120]\n")
    assert given_bounds("a=b.toml") == given_bounds("age=0:120") == {"age": Interval(0, 120)}
    many = ",".join(f"column{i}=0:1" for i in range(500))  # longer than any file's name
    assert len(given_bounds(many)) == 500
    with pytest.raises(DataError, match=r"No such file.*; give COL=LO:HI,\.\.\. or a TOML file"):
        given_bounds("nowhere.toml")


def test_bounds_from_data_are_the_extremes() -> None:
    assert bounds_from_data(["a"], np.array([[3.0], [1.0]]))["a"].lower == 1.0
    with pytest.raises(DataError, match="'a' has a single value"):
        bounds_from_data(["a"], np.ones((3, 1)))


def test_csv_gives_a_problem(tmp_path: Path) -> None:
    problem = from_csv(write(tmp_path, "age,name,weight\n40,Ann,70.5\n\n50,Bob,80\n"), "weight", BOUNDS, ["age"])
    assert (problem.name, problem.schema.columns, problem.schema.private) == ("patients", ("age", "weight"), True)
    np.testing.assert_array_equal(problem.rows, [[40, 70.5], [50, 80]])


def test_csv_without_features_uses_all_other_columns(tmp_path: Path) -> None:
    bounds = BOUNDS | {"height": Interval(100, 220)}
    problem = from_csv(write(tmp_path, "age,weight,height\n40,70,180\n"), "weight", bounds)
    assert problem.schema.features == ("age", "height")


def test_csv_tolerates_a_byte_order_mark_and_spaces(tmp_path: Path) -> None:
    assert from_csv(write(tmp_path, "\ufeffage, weight\n 40, 70\n"), "weight", BOUNDS).X[0, 0] == 40


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("old", "'old', expected a finite number; for texts, list the public categories"),
        (" ", "is missing"),
        ("nan", "finite"),
        ("-inf", "finite"),
        ("1e999", "finite"),
    ],
)
def test_csv_names_row_and_column_of_a_bad_cell(tmp_path: Path, cell: str, message: str) -> None:
    path = write(tmp_path, f"age,weight\n40,70\n{cell},80\n")
    with pytest.raises(DataError, match=rf"patients\.csv, row 2 \(line 3\), column 'age': .*{message}"):
        from_csv(path, "weight", BOUNDS)


def test_csv_ignores_bad_cells_in_columns_that_are_not_used(tmp_path: Path) -> None:
    assert len(from_csv(write(tmp_path, "age,weight,x\n40,70,\n"), "weight", BOUNDS, ["age"]).y) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,weight\n40\n", "row 1 .*found 1 cells, expected 2"),
        ("age,weight\n", "has no rows"),
        ("", "has no header"),
        ("age,age,weight\n1,2,3\n", "has one name for columns 1 and 2"),
        ('age,weight\n"40,70\n', "is not CSV text"),
    ],
)
def test_csv_refuses_damaged_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_csv(write(tmp_path, text), "weight", BOUNDS)


def test_csv_refuses_other_encodings_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(b"age,gr\xf6\xdfe\n1,2\n")
    with pytest.raises(DataError, match="UTF-8"):
        from_csv(path, "age", BOUNDS)
    with pytest.raises(DataError, match="No such file"):
        from_csv(tmp_path / "nowhere.csv", "age", BOUNDS)


def test_csv_suggests_the_nearest_column(tmp_path: Path) -> None:
    path = write(tmp_path, "age,weight\n40,70\n")
    with pytest.raises(DataError, match=r"column 'agee' is not in patients.csv \(did you mean 'age'\?\)"):
        from_csv(path, "weight", BOUNDS, ["agee"])
    with pytest.raises(DataError, match=r"column 'wieght' .*'weight'"):
        from_csv(path, "weight", BOUNDS | {"wieght": Interval(0, 1)})


def test_csv_without_bounds_names_the_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "age,weight,height\nx,70,180\n")  # the bad cell must not hide the missing option
    with pytest.raises(DataError, match="bounds are missing for: height, weight"):
        from_csv(path, "weight", {"age": Interval(0, 120)})


def test_trial_bounds_are_marked_as_not_private(tmp_path: Path) -> None:
    problem = from_csv(write(tmp_path, "age,weight\n40,70\n50,80\n"), "weight", None, trial_bounds=True)
    assert not problem.schema.private
    assert problem.schema.bounds["age"] == Interval(40, 50, "read from the data: not private", public=False)


def test_schema_refuses_no_features_and_repeated_columns() -> None:
    with pytest.raises(DataError, match="no features"):
        Schema((), "weight", BOUNDS)
    with pytest.raises(DataError, match="columns repeat"):
        Schema(("age", "weight"), "weight", BOUNDS)


def test_a_schema_accepts_pairs_as_bounds_and_refuses_others_in_one_line() -> None:
    pairs = Schema(["age"], "risk", {"age": (0, 120), "risk": [0, 1]})  # type: ignore[arg-type,dict-item]
    assert (pairs.features, pairs.bounds["age"], pairs.bounds["risk"]) == (("age",), Interval(0, 120), Interval(0, 1))
    for features, bounds, message in (
        (("age",), {"age": (0, 1, 2), "risk": (0, 1)}, "bounds of column 'age': found '0:1:2', expected two numbers"),
        (("age",), {"age": (1, 0), "risk": (0, 1)}, "column 'age': bounds 1:0 are not an interval"),
        (("age",), [("age", 1)], "bounds are a list; give a dictionary"),
        ("age", {"age": (0, 1), "risk": (0, 1)}, "features are the text 'age'; give a tuple of names"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            Schema(features, "risk", bounds)  # type: ignore[arg-type]


def test_diabetes_has_442_patients_and_a_reason_for_every_bound() -> None:
    problem = diabetes()
    assert problem.rows.shape == (442, 4)
    assert all(problem.schema.bounds[column].reason for column in problem.schema.columns)
    assert 15 < problem.X[:, 0].mean() < 40  # in kg/m², not standardised


def test_load_selects_features_and_suggests_names() -> None:
    problem = load("diabetes", ["s5", "bmi"])
    np.testing.assert_array_equal(problem.X, diabetes().X[:, [2, 0]])
    assert problem.schema.columns == ("s5", "bmi", "progression")
    with pytest.raises(DataError, match="did you mean 'diabetes'"):
        load("diabetis")
    with pytest.raises(DataError, match=r"feature 'bmj'.*'bmi'"):
        load("diabetes", ["bmj"])


def test_split_is_a_partition_that_the_seed_fixes() -> None:
    problem = diabetes()
    train, test = split(problem, 100, seed=3)
    assert (len(train.y), len(test.y)) == (342, 100)
    np.testing.assert_array_equal(np.sort(np.r_[train.y, test.y]), np.sort(problem.y))
    np.testing.assert_array_equal(test.X, split(problem, 100, seed=3)[1].X)
    assert not np.array_equal(test.y, split(problem, 100, seed=4)[1].y)


@pytest.mark.parametrize("test_rows", [0, 442, -1])
def test_split_refuses_an_empty_side(test_rows: int) -> None:
    with pytest.raises(DataError, match="expected at least one to test on and one to learn from"):
        split(diabetes(), test_rows, seed=0)


def test_streams_with_different_names_are_different() -> None:
    assert stream(1, "a").random() == stream(1, "a").random() != stream(1, "b").random()
