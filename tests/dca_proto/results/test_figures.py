"""What follows from the fields of a record: the schema, the site's page, tables and lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import inspect
from pages import outline_of
from report_samples import SAMPLES
from schemas import COMMANDS

from dca_proto.aggregate import NoisyAggregate
from dca_proto.cli import output_of
from dca_proto.cli.output import schema_of
from dca_proto.protocol.terms import Terms
from dca_proto.report.formats import UNKNOWN
from dca_proto.report.run import rounds_table, times_table
from dca_proto.report.tables import as_text, columns_of, lines_of
from dca_proto.results.figure import about, compute_fields, computed, figure, figures_of
from dca_proto.results.round import Round
from dca_proto.results.run import SETTING, Run

ROOT = Path(__file__).parents[3]
PATHS = [("swarm",), ("learn",), ("trainer",), ("ledger",), ("account",), ("keygen",), ("inspect",), ("report",),
         ("scaling",), ("audit",), ("federation", "show"), ("emulate", "run"), ("emulate", "sweep")]  # fmt: skip


class Sample(msgspec.Struct, kw_only=True):
    """A record with a figure of each sort."""

    met: Annotated[int | None, figure("met", "People that were met.", table="people")] = None
    left: Annotated[dict[str, int], figure("left", "By reason.", table="people")] = {}
    again: Annotated[int, figure("again", table="people")] = 1
    took_s: Annotated[float | None, figure("took", unit="s", table="people", several="sum")] = None
    hidden: Annotated[str, about("Shown by nobody.")] = "x"
    exact: Annotated[float, figure("exact", table="people", page_only=True)]
    most: Annotated[int, about("The larger of two.", of=lambda one: max(one.met or 0, one.again))] = 0

    def __post_init__(self) -> None:
        compute_fields(self)

    @property
    def double(self) -> Annotated[float, figure("twice", table="people")]:
        """Twice the exact one."""
        return 2 * self.exact


def test_a_table_has_a_column_for_each_figure_that_is_not_its_default() -> None:
    one = Sample(met=3, left={"tired": 2, "late": 1}, took_s=1.5, exact=0.5)
    other = Sample(met=5, took_s=0.25, exact=0.5)
    shown = {"met": ["3–5", "3"], "left": ["0–3", "3"], "took": ["1.75 s", "1.50 s"], "twice": ["1.00", "1.00"]}
    found = columns_of(Sample, "people", [[one, other], [one]])
    assert {name: [cell.replace("\u00a0", " ") for cell in cells] for name, cells in found.items()} == shown
    on_page = columns_of(
        Sample, "people", [[one], [Sample(exact=1.0)]], titles={"met": "seen", "left": ""}, on_page=True
    )
    assert [*on_page] == ["seen", "took", "exact", "twice"]
    assert on_page["seen"] == ["3", UNKNOWN]
    assert columns_of(Sample, "nowhere", [[one]]) == {}


def test_lines_leave_out_what_has_no_value() -> None:
    assert lines_of(Sample(met=0, exact=1e-9), "people") == [
        ("met", "0"), ("again", "1"), ("exact", "1·10⁻⁹"), ("twice", "2·10⁻⁹"),
    ]  # fmt: skip


def test_a_field_that_follows_from_others_is_computed_when_the_record_is_made_changed_or_read() -> None:
    one = Sample(met=3, exact=1.0)
    assert (one.most, msgspec.structs.replace(one, again=5).most) == (3, 5)
    assert msgspec.json.decode(b'{"exact": 1, "met": 4, "most": 9}', type=Sample).most == 4, "none that is given"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.018, "s", "18.0 ms"), (2_000.0, "ms", "2.00 s"), (5.0, "µs", "5.00 µs"), (2_000, "bytes", "2.00 kB"),
        (1.0, "MiB", "1.05 MB"), (1_234, "", "1,234"), (True, "", "yes"), (None, "s", UNKNOWN), ("a", "", "a"),
        ([1, 2], "", "1 and 2"), ({"a": 1, "b": 2}, "", "3"),
    ],
)  # fmt: skip
def test_a_value_is_formatted_by_its_type_and_unit(value: Any, unit: Any, text: str) -> None:
    assert as_text(value, unit).replace("\u00a0", " ") == text


def test_the_schema_has_the_title_the_meaning_and_the_unit() -> None:
    fields = msgspec.json.schema(Round)["$defs"]["Round"]["properties"]
    assert fields["wall_s"].items() >= {
        "title": "in all", "description": "From the announcement to the end.", "unit": "s",
    }.items()  # fmt: skip
    assert fields["error"]["description"] == "Why it has no result."


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_a_record_gives_the_meaning_of_each_of_its_fields(path: tuple[str, ...]) -> None:
    """Of records that describe themselves by their fields; in others, a docstring does."""
    records = schema_of(output_of(COMMANDS[path[0]], path[-1]))["$defs"]
    fields = {name: record.get("properties", {}) for name, record in records.items()}
    described = {name: own for name, own in fields.items() if any("description" in one for one in own.values())}
    for own in described.values():
        own.pop("kind", None)  # the tag of a record
    assert described, "at least its own record"
    assert [
        (name, key) for name, own in described.items() for key, one in own.items() if not one.get("description")
    ] == []


def some(kind: inspect.Type) -> Any:
    """A value of a field that is not its default; None for those that no table shows by themselves."""
    match kind:
        case inspect.Metadata():
            return some(kind.type)
        case inspect.UnionType():
            return next(filter(None, map(some, kind.types)), None)
        case inspect.IntType():
            return 2
        case inspect.FloatType():
            return 1.0
        case inspect.StrType():
            return "x"
        case inspect.ListType(inspect.StrType()):
            return ["x"]
        case inspect.DictType(inspect.StrType(), inspect.IntType() | inspect.FloatType()):
            return {"x": 1}
    return None


def test_a_figure_of_a_round_is_shown_where_its_field_says() -> None:
    """On the terminal those that are not for pages only; the page has all."""
    known: Any = inspect.type_info(Round)
    full = {field.name: value for field in known.fields if (value := some(field.type)) is not None}
    assert {"clients", "declined", "noise_variance", "computes", "closed", "bytes"} <= {*full}
    run = Run(ok=True, clients=9, computes=2, tolerate=1, rounds=[Round(ok=True, **full)])
    heads = [name for block in (*rounds_table(run), *times_table(run)) for name in getattr(block, "header", ())]
    shown = [one for one in figures_of(Round).values() if one.table in ("rounds", "times")]
    assert {one.title for one in shown if not one.page_only} - {*heads} == {"arrived"}, (
        "for sums, who contributed is it"
    )
    rows = outline_of({**msgspec.to_builtins(run), "kind": "swarm"}).rows
    heads = [cell for row in rows for cell in row]
    assert {one.title for one in shown} - {*heads} == {"arrived"}


MAKERS = {
    Round: (
        "dca_proto/results/lost.py",
        "dca_proto/results/round.py",
        "emulator/swarm/summary.py",
        "dca_proto/cli/job_run.py",
    ),
    Run: (
        "dca_proto/results/run.py",
        "emulator/swarm/summary.py",
        "dca_proto/cli/learn.py",
        "dca_proto/cli/swarm_job.py",
    ),
}
"""The files that make each record."""


@pytest.mark.parametrize("record", MAKERS)
def test_each_field_of_a_record_is_computed(record: type[msgspec.Struct]) -> None:
    """It is named where the record is made, copied by its name, or has `of`; of the value, other tests know more."""
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in MAKERS[record])
    text = re.sub(r'\b(figure|about)\(\s*"[^"]*"', "", text)  # a title may be the name of its field
    source = NoisyAggregate if record is Round else Terms  # whose fields of the same name are copied
    alike = {*source.__annotations__, *vars(source), *computed(record)}
    missing = [name for name in {*record.__struct_fields__} - alike if not re.search(rf'\b{name}=|"{name}"', text)]
    assert missing == []


def test_the_setting_of_a_run_has_its_figures() -> None:
    rows = outline_of(SAMPLES["fleet"]()).rows
    for line in (["processes", "2"], ["until all had sessions", "13.4 s"], ["tolerated dropouts (T)", "100"]):
        assert line in rows
    assert any(one.table == SETTING for one in figures_of(Run).values())
