"""Text columns: public lists of categories, the same on a device and in a table on one machine."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from dca_proto.errors import UsageError
from dca_proto.runtime.table import read_csv
from dca_proto.statistics.categories import check_categories, parse_categories
from inference.bounds import Interval, MissingBoundsError
from inference.datasets import from_csv
from inference.errors import DataError
from inference.problem import split

LISTED = {"smoker": ("no", "yes"), "city": ("Åbo", "Oulu", "Turku")}
TEXT = "age,smoker,city,cost\n40,yes,Åbo,7\n50, no ,Turku,8\n60,maybe,Oulu,9\n,yes,Oulu,10\n70,no,,eleven\n"
BOUNDS = {"age": Interval(0, 120), "cost": Interval(0, 20)}
NAN = math.nan


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "patients.csv"
    made.write_text(TEXT, encoding="utf-8")
    return made


def test_options_list_different_categories() -> None:
    assert parse_categories(["smoker=no, yes", "city=Åbo,Oulu,Turku"]) == LISTED
    for lists, message in (
        (["smoker"], "expected COL=a,b,c"),
        (["=a,b"], "expected COL=a,b,c"),
        (["x=a,b", "x=c,d"], "each column once"),
        (["x=a"], "column 'x' has 1 categories, 1 of them different"),
        (["x=a,a"], "column 'x' has 2 categories, 1 of them different"),
        (["x=a,,b"], "column 'x' has the category ''; expected a printable text"),
        (["x=a,b\x1b[2J"], "has the category 'b\\x1b[2J'"),
        ([f"x={','.join(map(str, range(1001)))}"], "list from 2 to 1000"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            parse_categories(lists)
    assert check_categories({}) == {}


def test_a_device_gives_codes_and_indicators_and_counts_unknown_values(path: Path) -> None:
    with capture_logs() as logs:
        table = read_csv(path, LISTED)
    assert table.columns == (
        "age", "smoker", "smoker=no", "smoker=yes", "city", "city=Åbo", "city=Oulu", "city=Turku", "cost",
    )  # fmt: skip
    seen = table.rows(("smoker", "smoker=no", "smoker=yes", "city", "city=Turku"))
    expected = [[1, 0, 1, 0, 0], [0, 1, 0, 2, 1], [NAN, NAN, NAN, 1, 0], [1, 0, 1, 1, 0], [0, 1, 0, NAN, NAN]]
    np.testing.assert_array_equal(seen, expected)
    assert [(entry["fields"], entry["lines"]) for entry in logs] == [({"smoker": 1, "cost": 1}, 0)]
    assert "maybe" not in str(logs), "values are private"
    with pytest.raises(UsageError, match="no column 'town', for which categories are listed"):
        read_csv(path, {"town": ("a", "b")})


def test_a_table_on_one_machine_gives_what_a_device_gives(path: Path) -> None:
    problem = from_csv(path, "cost", BOUNDS, categories=LISTED, missing="zero")
    assert problem.schema.features == ("age", "smoker=yes", "city=Oulu", "city=Turku"), "the first is compared with"
    assert problem.schema.bounds["city=Oulu"] == Interval(0, 1, "an indicator")
    assert problem.schema.private
    np.testing.assert_array_equal(problem.rows, read_csv(path, LISTED).rows(problem.schema.columns))
    assert problem.complete.rows.tolist() == [[40, 1, 0, 0, 7], [50, 0, 0, 1, 8]]
    train, test = split(problem, 2, 0)
    assert (len(train.y), len(test.y)) == (3, 2), "rows that lack a value are divided as all others are"


def test_a_text_can_be_the_target_and_columns_can_be_chosen(path: Path) -> None:
    coded = from_csv(path, "city", None, [], alone=True, categories=LISTED, missing="zero")
    assert coded.schema.bounds["city"] == Interval(0, 2, "codes of listed categories")
    np.testing.assert_array_equal(coded.y, [0, 2, 1, 1, NAN])
    one = from_csv(path, "smoker", BOUNDS, ["city=Turku", "age"], categories=LISTED, missing="zero")
    assert one.schema.columns == ("city=Turku", "age", "smoker")
    assert from_csv(path, "cost", BOUNDS, ["smoker"], categories=LISTED, missing="zero").schema.features == (
        "smoker=yes",
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"categories": LISTED}, "row 3 (line 4), column 'smoker': found 'maybe', expected one of no, yes; correct it"),
        ({"categories": {"city": LISTED["city"]}, "bounds": {**BOUNDS, "smoker": Interval(0, 1)}},
         "column 'smoker': found 'yes', expected a finite number; for texts, list the public categories (--categories"),
        ({"categories": {"smoker": ("no", "yes", "maybe"), "city": LISTED["city"]}},
         "row 4 (line 5), column 'age': the value is missing; correct it, leave the row out, or let rows that lack"),
        ({"categories": {"town": ("a", "b")}}, "column 'town' is not in patients.csv"),
        ({"categories": {"smoker": ("no", "no")}}, "2 categories, 1 of them different"),
        ({"categories": LISTED, "features": ["city=Rome"]}, "column 'city=Rome' is not in patients.csv"),
    ],
)  # fmt: skip
def test_mismatched_categories_are_a_one_line_error(path: Path, given: dict[str, object], message: str) -> None:
    with pytest.raises((DataError, UsageError)) as caught:
        from_csv(path, "cost", **{"bounds": BOUNDS, **given})  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_trial_bounds_are_of_complete_rows_and_categories_stay_public(path: Path) -> None:
    problem = from_csv(path, "cost", None, trial_bounds=True, categories=LISTED, missing="zero")
    assert (problem.schema.bounds["age"].lower, problem.schema.bounds["age"].upper) == (40, 50)
    assert problem.schema.read_columns == ("age", "cost")
    with pytest.raises(MissingBoundsError, match="smoker, city"):
        from_csv(path, "cost", BOUNDS)
