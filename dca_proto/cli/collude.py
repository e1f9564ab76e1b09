"""`dca emulate collude`: finds out what a coalition sees in rounds of real actors, and what it learns."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from dca_proto import cli
from dca_proto.cli import options
from dca_proto.cli.output import keep_earlier, result_console, say
from dca_proto.cli.progress import PatientBar
from dca_proto.cli.show import show
from dca_proto.privacy.accounting import DELTA
from dca_proto.runtime.files import write_json

RUNS_DEFAULT = 100
_SEED_BYTES = 6

OUTPUT = "emulator.collusion.finding:Result"
EXAMPLES = """Examples:

  dca emulate collude --colluding-broker --colluding-trainer      the worst coalition that the claim covers

  dca emulate collude --colluding-computes 3              all M Compute nodes: the documented break

  dca emulate collude --revealing 7                       more colluding clients than T + 1

  dca emulate collude --colluders 1 --revealing 2 --silent 2

  dca emulate collude --revealing 4 --left-out 3          its Compute nodes leave out as many honest clients as they can

  dca emulate collude --silent 4                          more than T - c clients drop out: the round is aborted
"""


def collude(
    clients: Annotated[int, options.CLIENTS] = 10,
    computes: Annotated[int, options.COMPUTES] = 3,
    tolerate: Annotated[int, options.TOLERATE] = 3,
    colluders: Annotated[int, options.COLLUDERS] = 0,
    dimension: Annotated[int, typer.Option(help="d, how many columns are summed.")] = 32,
    epsilon: Annotated[float, options.EPSILON_OF_CLAIM] = 1.0,
    delta: Annotated[float, options.DELTA_OF_CLAIM] = DELTA,
    nodes: Annotated[
        int | None, typer.Option("--colluding-computes", help="K Compute nodes collude; by default M - 1.")
    ] = None,
    revealing: Annotated[
        int | None, typer.Option(help="A clients reveal their noise; by default as many as the claim covers.")
    ] = None,
    omitting: Annotated[int, typer.Option(help="B clients add no noise.")] = 0,
    silent: Annotated[int, typer.Option(help="C clients have a session and send nothing.")] = 0,
    left_out: Annotated[int, typer.Option(help="D honest clients, ignored by the colluding Compute nodes.")] = 0,
    broker: Annotated[bool, typer.Option("--colluding-broker", help="The broker colludes.")] = False,
    trainer: Annotated[bool, typer.Option("--colluding-trainer", help="The trainer colludes.")] = False,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds in each of the two worlds; by default 100, or more.")
    ] = None,
    seed: Annotated[int | None, options.SEED_OF_KEYS] = None,
    json_to: options.Json = None,
) -> int:
    """Show what a coalition sees, the noise that it cannot remove, and the epsilon that this implies.

    Exit code 4 if a documented claim does not hold. `dca schema emulate collude` describes the fields of the JSON
    object. Fields that do not apply are null.
    """
    # slow to import, since they need scipy.stats; other commands of the group do not
    from emulator.collusion.coalition import Case, Coalition, Setting, worst_revealing
    from emulator.collusion.finding import REFUTED, case_lines, investigate, least_runs, require_runs, result
    from emulator.report.collusion import figures

    began_s, console = time.monotonic(), result_console(json_to)
    setting = Setting(
        clients=clients,
        computes=computes,
        tolerated=tolerate,
        colluders=colluders,
        dimension=dimension,
        epsilon=epsilon,
        delta=delta,
    )
    coalition = Coalition(
        nodes=computes - 1 if nodes is None else nodes,
        revealing=worst_revealing(setting, omitting + silent + left_out) if revealing is None else revealing,
        omitting=omitting,
        silent=silent,
        left_out=left_out,
        broker=broker,
        trainer=trainer,
    )
    case = Case(setting, coalition)
    repeats = max(RUNS_DEFAULT, least_runs(setting, coalition.nodes)) if rounds is None else rounds
    require_runs(setting, coalition.nodes, repeats)
    chosen = int.from_bytes(os.urandom(_SEED_BYTES), "big") if seed is None else seed
    for label, text in case_lines(case, repeats, chosen):
        say(console, label, text)
    with PatientBar(console, 2 * repeats, "rounds") as bar:
        finding = investigate(case, repeats, str(chosen), bar.advance)
    for place, item in enumerate(finding.sees or ["nothing"]):
        say(console, "" if place else "sees", item)
    record = result(case, finding, repeats, chosen, time.monotonic() - began_s)
    show(console, figures(record), [(record.verdict, record.why)])
    keep_earlier(console, json_to)
    write_json(record, json_to)
    return cli.REFUTED if record.verdict == REFUTED else 0
