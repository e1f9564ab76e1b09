"""Error messages name the nearest known name, and the parameter of the wrong type."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from sources import sources

import dca_proto
from dca_proto.cli.options import parse_bounds, parse_names, require_known
from dca_proto.errors import UsageError
from dca_proto.statistics import resolve
from dca_proto.statistics.categories import parse_categories
from dca_proto.wording import duration, moment, nearest, parse_json, parse_toml, split_list
from inference.errors import DataError

ROOT = Path(dca_proto.__file__).parent.parent
ONE = {"columns": ["a"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}
TWO = {"columns": ["a", "b"], "centre": [0.0] * 2, "scale": [1.0] * 2, "bound": [1.0] * 2}


def test_the_nearest_name_is_suggested_if_one_is_near() -> None:
    assert nearest("regresion", ("mean", "regression")) == " (did you mean 'regression'?)"
    assert nearest("xyz", ("mean", "regression")) == ""
    require_known("--statistic", "mean", ("mean", "sum"))
    with pytest.raises(UsageError, match=r"--plant 'nois' is unknown \(did you mean 'noise'\?\); known: noise, clip"):
        require_known("--plant", "nois", ("noise", "clip"))
    with pytest.raises(UsageError) as caught:
        require_known("--plant", "x" * 10_000, ("noise",))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("maen", ONE, "statistic 'maen' is unknown here (did you mean 'mean'?); known: "),
        ("mean", {"columns": ["a"]}, "statistic 'mean' needs the parameter 'centre', which is missing"),
        ("mean", {**ONE, "bonud": 1}, "statistic 'mean' has no parameter 'bonud' (did you mean 'bound'?); it takes: "),
        ("mean", {**ONE, "bound": 3}, "bound is a whole number, expected a list"),
        ("mean", {**ONE, "bound": ["x"]}, "bound[0] is a text, expected a number"),
        ("mean", {**ONE, "bound": [None]}, "bound[0] is nothing, expected a number"),
        ("mean", {**ONE, "radius": {}}, "radius is a table, expected a number or nothing"),
        ("mean", {**ONE, "radius": -1}, "radius is -1; give a finite number above 0"),
        ("regression", {**TWO, "weights": [1, 2]}, "weights has 2 values, expected 3"),
        ("regression", {**TWO, "weights": [1, 2, 1.5]}, "weights[2] is a number, expected a whole number"),
        ("regression", {**TWO, "intercept": "yes"}, "intercept is a text, expected true or false"),
        ("histogram", {"columns": ["a"], "edges": 3}, "edges is a whole number, expected a list"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_named(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(name, parameters)
    assert message in str(caught.value)
    assert "`" not in str(caught.value)


def test_bounds_that_name_a_file_and_malformed_bounds_give_different_errors() -> None:
    expected = "--bounds 'age': expected COL=LO:HI,... or the name of an existing TOML file"
    with pytest.raises(UsageError, match=expected):
        parse_bounds("age")
    with pytest.raises(DataError, match=r"bounds: cannot read nowhere.toml: No such file"):
        parse_bounds("nowhere.toml")
    assert parse_bounds("age=0:9") == {"age": [0, 9]}
    assert parse_bounds(None) is None


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a,b", ["a", "b"]),
        ("a, b ,", ["a", "b ", ""]),
        ('"Fracture, closed",Sprain', ["Fracture, closed", "Sprain"]),
        ('"a,b"=0:1,c=2:3', ["a,b=0:1", "c=2:3"]),
        ('5" pipe,x', ['5" pipe', "x"]),
        ("", [""]),
        ("a\nb,c", ["a\nb", "c"]),
    ],
)
def test_a_part_of_a_list_may_have_a_comma(text: str, parts: list[str]) -> None:
    assert split_list(text) == parts


def test_options_name_columns_and_categories_with_commas() -> None:
    assert parse_names('"weight, kg",age') == ["weight, kg", "age"]
    assert parse_bounds('"weight, kg"=0:200,age=0:9') == {"weight, kg": [0, 200], "age": [0, 9]}
    assert parse_categories(['diag="Fracture, closed",Sprain']) == {"diag": ("Fracture, closed", "Sprain")}


def test_times_and_durations_are_read_by_people() -> None:
    assert moment(1_796_054_053_352) == "2026-11-30 15:54:13 UTC"
    assert moment(-1) == "a time before 1970"
    assert moment(1e18) == "a time after the year 9999"
    shown = [duration(ms) for ms in (0, 347, 1_000, 12_345, -90_000, 150_000, 3_600_000, 7_300_000, 8 * 86_400_000)]
    assert shown == ["0 s", "0.35 s", "1 s", "12 s", "90 s", "2.5 minutes", "60 minutes", "2 hours", "8 days"]


@pytest.mark.parametrize(
    "deep",
    [
        "a = " + "[" * 20_000 + "]" * 20_000,
        "a" + ".a" * 1_000_000 + " = 1",  # tomllib would take hours
        "[a]\nb = 1\n[[ a" + """ . "a\\"." . 'a'""" * 300_000 + "]]",
        "a = [{b = 1, a" + ".a" * 1_000_000 + " = 1}]",
        "a = " + "{a = " * 9_000,
    ],
    ids=["lists", "a key", "a table", "a key in a table", "tables"],
)
def test_toml_that_is_nested_too_deeply_or_has_absurd_numbers_has_a_reason_of_one_line(deep: str) -> None:
    for text in (deep, "a = " + "9" * 5000):
        with pytest.raises(ValueError, match=r"^(it is nested more than 32 levels deep|a number has too many digits)$"):
            parse_toml(text)
    assert parse_toml("a = [[[1]]]") == {"a": [[[1]]]}
    key = ".".join(["a"] * 31)
    assert parse_toml(f"{key} = 1.5").keys() == {"a"}


def test_json_that_is_nested_too_deeply_or_has_absurd_numbers_has_a_reason_of_one_line() -> None:
    for text in ("[" * 100_000, "[" * 40 + "]" * 40, "9" * 5000):
        with pytest.raises(ValueError, match=r"^(it is nested more than 32 levels deep|a number has too many digits)$"):
            parse_json(text)
    assert parse_json('{"a": [1]}') == {"a": [1]}


def test_no_text_for_people_has_epoch_milliseconds() -> None:
    """In f-strings of the packages, a time in milliseconds stands inside `moment` or `duration`."""
    found = set()
    for path, nodes in sources("dca_proto", "inference"):
        for part in nodes:
            if isinstance(part, ast.FormattedValue) and ast.unparse(part.value).endswith("_ms"):
                found.add(f"{path}: {ast.unparse(part.value)}")
    read_by_programs = {"protocol/federation_text.py: one.until_ms", "runtime/keyfile.py: certificate.expires_ms"}
    assert found == {f"dca_proto/{one}" for one in read_by_programs}
