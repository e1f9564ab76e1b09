"""`dca report`: writes one HTML page that shows a run at a glance."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dca_proto.cli.options import Json
from dca_proto.cli.output import result_console, say
from dca_proto.errors import UsageError
from dca_proto.results.figure import about
from dca_proto.runtime.files import require_writable, whole_file, write_json

EXAMPLES = """Examples:

  dca swarm --json run.json && dca report run.json        writes run.html

  dca emulate replay 17 --json 17.json && dca report 17.json

  dca scaling --clients 100,1000 --dimension 10,100 --json scaling.json && dca report scaling.json

  dca swarm --job describe && dca report run/result.json --table table1.tex      also .md and .csv, for a paper

  dca audit --json audit.json; dca report audit.json --page audit/index.html
"""


class WrittenPage(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="report"):
    """The output of `dca report --json`: the path of the page, and the kind of the run that it shows."""

    page: Annotated[str, about("Its path.")]
    of: Annotated[str, about("The kind of the run that it shows.")]
    table: Annotated[str | None, about("The path of the table; null if none was asked for.")] = None


OUTPUT = WrittenPage


def report(
    run: Annotated[Path, typer.Argument(help="A file that a command wrote with --json.", metavar="RUN.json")],
    output: Annotated[
        Path | None, typer.Option("--page", help="The page's file; by default RUN.html, beside RUN.json.")
    ] = None,
    json_to: Json = None,
    no_reference: Annotated[
        bool, typer.Option("--no-reference", help="Leave out the results that epsilon does not cover.")
    ] = False,
    table: Annotated[
        Path | None,
        typer.Option(help="Also write the estimates as a table for a paper: FILE.md, FILE.tex or FILE.csv."),
    ] = None,
) -> None:
    """Write one HTML page that shows a run: a swarm, an emulation, a sweep, a coalition, a scaling sweep or an audit.

    The page is self-contained: it loads nothing and runs no script.
    """
    console = result_console(json_to)
    if find_spec("jinja2") is None or find_spec("matplotlib") is None:
        raise ModuleNotFoundError("for the page", name="jinja2")
    from dca_proto.report.page import render
    from dca_proto.report.paper import require_format, written
    from dca_proto.report.reading import read_page, read_summary

    if table is not None:
        require_format(table)
        require_writable(table)
    kind, page = read_page(run, reference=not no_reference)
    target = output if output is not None else run.with_suffix(".html")
    text_of_table = ""
    if table is not None:
        summary, contributors = read_summary(run)
        text_of_table = written(summary, table, contributors)
    require_writable(target)
    if target.exists() and target.samefile(run):
        raise UsageError(f"--page {target} is the run's own file; name another one")
    text = render(page, run.name)
    with whole_file(target) as place:
        place.write_text(text, encoding="utf-8")
    say(console, "page", str(target))
    if table is not None:
        with whole_file(table) as place:
            place.write_text(text_of_table, encoding="utf-8")
        say(console, "table", str(table))
    write_json(WrittenPage(page=str(target), table=None if table is None else str(table), of=kind), json_to)
