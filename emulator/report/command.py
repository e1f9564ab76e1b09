"""`dca report`: one HTML page that shows a run at a glance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from dca_proto.cli.output import STDOUT, require_json_target, require_writable, say, whole_file, write_json
from dca_proto.core.errors import UsageError
from emulator.report.learned import Learned
from emulator.report.page import render
from emulator.report.reading import read_run

EXAMPLES = """Examples:

  dca swarm --json run.json && dca report run.json        writes run.html

  dca emulate replay 17 --json 17.json && dca report 17.json

  dca scaling --clients 100,1000 --dimension 10,100 --json scaling.json && dca report scaling.json

  dca audit --json audit.json; dca report audit.json --page audit/index.html
"""


def report(
    run: Annotated[Path, typer.Argument(help="What a command wrote with --json.", metavar="RUN.json")],
    output: Annotated[
        Path | None, typer.Option("--page", help="The page's file; by default beside RUN.json, with the suffix .html.")
    ] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", help="Write where the page is to a file, or - for stdout.")
    ] = None,
    no_reference: Annotated[
        bool, typer.Option("--no-reference", help="Leave out what epsilon does not cover.")
    ] = False,
) -> None:
    """Write one HTML page that shows a run: a swarm, an emulation, a sweep, a coalition, a scaling sweep or an audit.

    The page is whole in itself: it loads nothing from anywhere and runs no script. Fields of the JSON object: kind
    (report), page (its path), of (the kind of the run).
    """
    target = output if output is not None else run.with_suffix(".html")
    require_json_target(json_to)
    found = read_run(run)
    require_writable(target)
    if target.exists() and target.samefile(run):
        raise UsageError(f"--page {target} is the run itself; name another file")
    value = found.value
    if no_reference and isinstance(value, Learned):
        value = msgspec.structs.replace(value, not_covered_by_epsilon=None)
    text = render(found.kind.page(value), run.name)
    with whole_file(target) as place:
        place.write_text(text, encoding="utf-8")
    say(Console(stderr=json_to == STDOUT), "page", str(target))
    write_json({"kind": "report", "page": str(target), "of": found.name}, json_to)
