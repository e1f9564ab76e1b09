"""Text columns: public lists of categories, the same on a device and in a table on one machine."""

from __future__ import annotations

import math
import re
import shlex
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from dca_proto import Table
from dca_proto.cli.swarm_job import DataOptions, problem_of
from dca_proto.errors import UsageError
from dca_proto.runtime.sources.base import table_of
from dca_proto.runtime.table import log_entry, read_csv
from dca_proto.statistics.categories import (
    categories_option,
    check_categories,
    coded,
    parse_categories,
    plain_name,
    text_of,
)
from inference.bounds import Interval, MissingBoundsError
from inference.datasets import from_csv
from inference.datasets.csv_file import texts_in
from inference.errors import DataError
from inference.problem import split

LISTED = {"smoker": ("no", "yes"), "city": ("Åbo", "Oulu", "Turku")}
TEXT = "age,smoker,city,cost\n40,yes,Åbo,7\n50, no ,Turku,8\n60,maybe,Oulu,9\n,yes,Oulu,10\n70,no,,eleven\n"
NUMBERS = {"age": Interval(0, 120), "cost": Interval(0, 20)}
TEXTS = {name: Interval.of_labels(name, labels) for name, labels in LISTED.items()}
BOUNDS = {**NUMBERS, **TEXTS}
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
        (["x=ä,a\u0308"], "column 'x' has 2 categories, 1 of them different"),
        ([f"x={','.join(map(str, range(1001)))}"], "list from 2 to 1000"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            parse_categories(lists)
    assert check_categories({}) == {}
    for odd in ("ab", [1, 2]):
        with pytest.raises(UsageError, match="categories that are no list of texts"):
            check_categories({"x": odd})  # type: ignore[dict-item]


def test_a_device_gives_codes_and_indicators_and_counts_unknown_values(path: Path) -> None:
    with capture_logs() as logs:
        table = read_csv(path, LISTED)
    assert table.columns == (
        "age", "smoker", "smoker=no", "smoker=yes", "smoker in {no, yes}",
        "city", "city=Åbo", "city=Oulu", "city=Turku", "city in {Åbo, Oulu, Turku}", "cost",
    )  # fmt: skip
    seen = table.rows(("smoker", "smoker=no", "smoker=yes", "city in {Åbo, Oulu, Turku}", "city=Turku"))
    expected = [[1, 0, 1, 0, 0], [0, 1, 0, 2, 1], [NAN, NAN, NAN, 1, 0], [1, 0, 1, 1, 0], [0, 1, 0, NAN, NAN]]
    np.testing.assert_array_equal(table.rows(("city",)), table.rows(("city in {Åbo, Oulu, Turku}",)))
    np.testing.assert_array_equal(seen, expected)
    assert [(entry["fields"], entry["lines"]) for entry in logs] == [({"smoker": 1, "cost": 1}, 0)]
    assert "maybe" not in str(logs), "values are private"
    with pytest.raises(UsageError, match="no column 'town', for which categories are listed"):
        read_csv(path, {"town": ("a", "b")})


def test_a_program_may_have_texts_with_listed_categories() -> None:
    """As of a data frame: an array of objects. Another text is missing, and counted without what it is."""
    rows = [[61.5, " drug", None], [NAN, "placebo", "f"], [70, "aspirin", "m"], [50, None, "f"]]
    listed = {"arm": ("placebo", "drug"), "sex": ("f", "m")}
    with capture_logs() as logs:
        table = Table(["age", "arm", "sex"], np.array(rows, dtype=object), categories=listed)
    assert table.columns == (
        "age", "arm", "arm=placebo", "arm=drug", "arm in {placebo, drug}", "sex", "sex=f", "sex=m", "sex in {f, m}",
    )  # fmt: skip
    expected = [[61.5, 1, 1, NAN], [NAN, 0, 0, 0], [70, NAN, NAN, 1], [50, NAN, NAN, 0]]
    np.testing.assert_array_equal(table.rows(("age", "arm", "arm=drug", "sex")), expected)
    assert [entry["fields"] for entry in logs] == [{"arm": 1}]
    assert "aspirin" not in str(logs)
    table.append([[40, "drug", "m"]])
    assert table.rows(("arm=drug", "sex"))[-1].tolist() == [1, 1]
    empty = Table(["arm"], [], categories={"arm": ("a", "b")})
    assert empty.rows(("arm=b",)).shape == (0, 1)
    for columns, lists, message in (
        (["age"], {"arm": ("a", "b")}, "column 'arm', which is not among the columns"),
        (["arm"], {"arm": ("a",)}, "1 categories"),
    ):
        with pytest.raises(UsageError, match=message):
            Table(columns, [], categories=lists)


def test_a_category_may_be_a_number_and_its_marks_may_be_letters_of_their_own(tmp_path: Path) -> None:
    """The same rows give the same numbers, however a source keeps them; what is unknown is missing and counted."""
    cells = [("2", "Köln"), ("1", "Ko\u0308ln"), ("3", "Ulm"), ("", "")]
    listed = {"grade": ("1", "2"), "town": ("Ko\u0308ln", "Bonn")}
    expected = [[1, 1, 0, 1], [0, 0, 0, 1], [NAN] * 4, [NAN] * 4]
    names = ("grade", "grade=2", "town", "town=Köln")
    path = tmp_path / "rows.csv"
    path.write_text("grade,town\n" + "".join(f"{grade},{town}\n" for grade, town in cells), encoding="utf-8")
    numbers = [[2, "Köln"], [1.0, "Ko\u0308ln"], [Decimal(3), "Ulm"], [None, NAN]]
    with capture_logs() as logs:
        tables = [
            read_csv(path, listed),
            Table(["grade", "town"], cells, categories=listed),
            Table(["grade", "town"], np.array(numbers, dtype=object), categories=listed),
            table_of(["grade", "town"], [*numbers[:3], [None, None]], "here", log_entry, listed),
        ]
    for table in tables:
        np.testing.assert_array_equal(table.rows(names), expected)
    assert [entry["fields"] for entry in logs] == [{"grade": 1, "town": 1}] * 4
    ends = {name: Interval.of_labels(name, labels) for name, labels in listed.items()}
    whole = from_csv(path, "grade", ends, ["town=Köln"], missing="zero")
    np.testing.assert_array_equal(whole.rows, [[1, 1], [1, 0], [NAN, NAN], [NAN, NAN]])


@pytest.mark.parametrize(("cell", "text"), [
    (True, "True"), (np.int64(7), "7"), (0.5, "0.5"), (Decimal("sNaN"), ""), (10**400, ""), (-math.inf, ""),
    (b"a", ""),
])  # fmt: skip
def test_a_cells_text(cell: object, text: str) -> None:
    assert text_of(cell) == text


def test_a_column_named_like_an_indicator_of_another_is_refused_everywhere(tmp_path: Path) -> None:
    """One of both would stand for the other: indicators for ages, say."""
    listed, message = {"arm": ("a", "b")}, "column 'arm=a' is twice: as itself, and as an indicator of texts"
    path = tmp_path / "rows.csv"
    path.write_text("arm,arm=a\na,7\nb,9\n")
    ends = {"arm": Interval.of_labels("arm", listed["arm"])}
    for read in (
        lambda: read_csv(path, listed),
        lambda: from_csv(path, "arm", ends, ["arm=a"]),
        lambda: Table(["arm", "arm=a"], [], categories=listed),
        lambda: table_of(["arm", "arm=a"], [], "here", log_entry, listed),
    ):
        with pytest.raises((UsageError, DataError), match=message):
            read()


def test_a_column_of_codes_has_a_name_for_each_list_and_order() -> None:
    """Commas and quotes in a label make no two lists alike; of a long list, a digest states it."""
    assert coded("arm", ("placebo", "drug")) == "arm in {placebo, drug}"
    long = [f"Fracture of bone {place}" for place in range(14)]
    named = coded("diagnosis", long)
    assert re.fullmatch(r"diagnosis in \{14 categories [0-9a-f]{12}\}", named)
    assert named == coded("diagnosis", tuple(long)), "the same in each process and from each type"
    assert named != coded("diagnosis", long[::-1])
    lists = [("a, b", "c"), ("a", "b, c"), ("a", "b", "c"), ('"a', "b"), ("a", "b"), ("b", "a"), ('"a, b"', "c")]
    assert len({coded("x", one) for one in lists}) == len(lists)
    assert {plain_name(coded("days in hospital", one)) for one in lists} == {"days in hospital"}
    assert plain_name("days in hospital") == "days in hospital"
    with pytest.raises(UsageError, match="in its name or a category"):
        check_categories({"arm in {a, b}": ("a", "b")})


@pytest.mark.parametrize("columns", [5, None, [1, 2], "age"])
def test_what_is_no_list_of_names_is_one_clear_error(columns: Any) -> None:
    with pytest.raises(UsageError, match="expected a list of names"):
        Table(columns, [])


def test_a_table_on_one_machine_gives_what_a_device_gives(path: Path) -> None:
    problem = from_csv(path, "cost", BOUNDS, missing="zero")
    assert problem.schema.columns == ("age", "smoker", "city", "cost")
    np.testing.assert_array_equal(problem.rows, read_csv(path, LISTED).rows(problem.schema.columns))
    problem = problem.with_indicators()
    assert problem.schema.features == ("age", "smoker=yes", "city=Oulu", "city=Turku"), "the first is compared with"
    assert problem.schema.bounds["city=Oulu"] == Interval(0, 1, "an indicator")
    assert problem.schema.private
    np.testing.assert_array_equal(problem.rows, read_csv(path, LISTED).rows(problem.schema.columns))
    assert problem.complete.rows.tolist() == [[40, 1, 0, 0, 7], [50, 0, 0, 1, 8]]
    train, test = split(problem, 2, 0)
    assert (len(train.y), len(test.y)) == (3, 2), "rows that lack a value are divided as all others are"


def test_a_text_can_be_the_target_and_columns_can_be_chosen(path: Path) -> None:
    coded = from_csv(path, "city", TEXTS, [], alone=True, missing="zero")
    assert coded.schema.bounds["city"] == Interval(0, 2, "codes of listed categories", labels=LISTED["city"])
    np.testing.assert_array_equal(coded.y, [0, 2, 1, 1, NAN])
    one = from_csv(path, "smoker", BOUNDS, ["city=Turku", "age"], missing="zero")
    assert one.schema.columns == ("city=Turku", "age", "smoker")
    assert one.with_indicators().schema == one.schema, "an indicator stays"
    chosen = from_csv(path, "cost", BOUNDS, ["smoker", "city"], missing="zero")
    assert chosen.with_indicators().schema.features == ("smoker=yes", "city=Oulu", "city=Turku")
    grouped = chosen.with_indicators(codes=("city",))
    assert grouped.schema.features == ("smoker=yes", "city"), "a group stays a column of codes"
    np.testing.assert_array_equal(grouped.values("city"), [0, 2, 1, 1, NAN])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "row 3 (line 4), column 'smoker': found 'maybe', expected one of no, yes; correct it"),
        ({"bounds": {**BOUNDS, "smoker": Interval(0, 1)}},
         "column 'smoker': found 'yes', expected a finite number; for texts, list the public categories (--categories"),
        ({"bounds": {**BOUNDS, "smoker": Interval.of_labels("smoker", ("no", "yes", "maybe"))}},
         "row 4 (line 5), column 'age': the value is missing; correct it, leave the row out, or let rows that lack "
         "a value take part as they do in a federation (--missing zero): nothing is filled in"),
        ({"bounds": {"town": Interval.of_labels("town", ("a", "b"))}}, "column 'town' is not in patients.csv"),
        ({"features": ["city=Rome"]}, "column 'city=Rome' is not in patients.csv"),
    ],
)  # fmt: skip
def test_mismatched_categories_are_a_one_line_error(path: Path, given: dict[str, object], message: str) -> None:
    with pytest.raises((DataError, UsageError)) as caught:
        from_csv(path, "cost", **{"bounds": BOUNDS, **given})  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_list_is_suggested_from_the_owners_own_file_and_said_to_be_read_from_it(path: Path) -> None:
    """A list with a comma, a quote or a space comes back from the option as it is in the file."""
    options = DataOptions(csv=path, target="cost", bounds="age=0:120,cost=0:20")
    with pytest.raises(MissingBoundsError) as caught:
        problem_of(options)
    assert "smoker, city: texts, such as --categories smoker=maybe,no,yes --categories 'city=Oulu" in str(caught.value)
    assert "not public" in str(caught.value)
    assert "the reference first" in str(caught.value)
    assert texts_in(path, ["age", "smoker", "nowhere"]) == {"smoker": ("maybe", "no", "yes")}, "age has numbers"
    odd = ("a, b", 'c "d"', "e f")
    option, value = shlex.split(categories_option("x y", odd))
    assert (option, parse_categories([value])) == ("--categories", {"x y": odd})


def test_the_column_that_a_job_describes_is_the_target(path: Path) -> None:
    options = DataOptions(csv=path, bounds="age=0:120,cost=0:20", categories=["city=Åbo,Oulu,Turku"], missing="zero")
    found = problem_of(options, alone=True, needed=("city", "age"), column="age")
    assert found.schema.columns == ("city", "age")
    both = problem_of(msgspec.structs.replace(options, target="cost"), alone=True, needed=("age",), column="age")
    assert both.schema.columns == ("age", "cost"), "a target that is given stays"
    with pytest.raises(UsageError, match="the column to describe"):
        problem_of(options, alone=True)


def test_trial_bounds_are_of_complete_rows_and_categories_stay_public(path: Path) -> None:
    problem = from_csv(path, "cost", TEXTS, trial_bounds=True, missing="zero")
    assert (problem.schema.bounds["age"].lower, problem.schema.bounds["age"].upper) == (40, 50)
    assert problem.schema.read_columns == ("age", "cost")
    with pytest.raises(MissingBoundsError, match="smoker, city"):
        from_csv(path, "cost", NUMBERS)
