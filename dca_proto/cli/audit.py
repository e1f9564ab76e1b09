"""`dca audit`: attacks the privacy claim of a round with all the knowledge of a coalition, and gives a verdict."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer
from rich.console import Console

from dca_proto import cli
from dca_proto.cli import options
from dca_proto.cli.output import draw, keep_earlier, require_plot_target, result_console, say
from dca_proto.cli.progress import PatientBar
from dca_proto.cli.show import show
from dca_proto.crypto.sealing import Random
from dca_proto.errors import UsageError
from dca_proto.privacy.accounting import DELTA
from dca_proto.privacy.rounding import at_most
from dca_proto.runtime.files import write_json
from dca_proto.testing import seeded
from emulator import engine as engines
from emulator.audit.adversary import (
    Adversary,
    Experiment,
    experiment,
    observe,
    pilot_runs,
    require_runs,
    require_time,
    survey_runs,
)
from emulator.audit.faults import FAULTS, RUNS_MIN, programme
from emulator.audit.finding import REFUTED, STANDS, Audit, Finding, Result, find, plan_lines, result, same_law
from emulator.audit.programme import IdealRounds, Rounds
from emulator.audit.protocol import ProtocolRounds
from emulator.audit.uniformity import views
from emulator.audit.worlds import STATISTICS, Coalition, Setting, World, default_coalition, of_release
from emulator.report.audit import figures, page
from emulator.report.charts import picture

_DEFAULT_RUNS, _DEFAULT_RUNS_PROTOCOL = 400_000, 400

OUTPUT = Result
EXAMPLES = """Examples:

  dca audit                                               epsilon 1, N = 10, T = 3: does the claim stand?

  dca audit --clients 100 --tolerate 10 --epsilon 2 --plot audit.png

  dca audit --plant noise-scaled-by-n                     a fault that the audit must detect (exit code 4)

  dca audit --coalition clients=7,computes=2,broker       more colluders than the claim covers

  dca audit --node-release --statistic regression         the release of one data node

  dca audit --protocol --rounds 500                       rounds of the real actors, on all cores
"""


def audit(
    clients: Annotated[int, options.CLIENTS] = 10,
    tolerate: Annotated[int, options.TOLERATE] = 3,
    colluders: Annotated[int, options.COLLUDERS] = 0,
    epsilon: Annotated[float, options.EPSILON_OF_CLAIM] = 1.0,
    delta: Annotated[float, options.DELTA_OF_CLAIM] = DELTA,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds in each of the two worlds; by default 400000, or 400 with --protocol.")
    ] = None,
    computes: Annotated[int, options.COMPUTES] = 3,
    coalition: Annotated[
        str | None,
        typer.Option(help="clients=K,computes=J,broker; by default T + 1, M - 1 and the broker.", show_default=False),
    ] = None,
    drop: Annotated[int, options.DROP] = 0,
    plant: Annotated[
        str | None,
        typer.Option(help=f"Plant a fault: {', '.join(FAULTS)}.", autocompletion=options.completing(FAULTS)),
    ] = None,
    statistic: Annotated[str, typer.Option(help=f"What is summed: {', '.join(STATISTICS)}.")] = "sum",
    dimension: Annotated[int | None, typer.Option(help="Number of columns; by default 1 (regression: 2).")] = None,
    bound: Annotated[float, options.BOUND] = 1.0,
    confidence: Annotated[float, typer.Option(help="Of the reported bounds; the verdict's is higher.")] = 0.95,
    seed: Annotated[int | None, options.SEED_OF_KEYS] = None,
    node_release: Annotated[bool, typer.Option("--node-release", help="Audit one data node's release.")] = False,
    protocol: Annotated[bool, typer.Option("--protocol", help="Run every round with the real actors.")] = False,
    engine: Annotated[str, typer.Option(help=f"With --protocol. {engines.HELP}")] = engines.LOCAL,
    plot: options.Plot = None,
    json_to: options.Json = None,
) -> int:
    """Attack the privacy claim with all the knowledge of a coalition; exit code 4 if the claim is refuted.

    `dca schema audit` describes the fields of the JSON object. Fields that do not apply are null.
    """
    began_s = time.monotonic()
    console = result_console(json_to)
    require_plot_target(plot)
    if not 0.5 <= confidence < 1:
        raise UsageError(f"--confidence {confidence:g}: expected 0.5 to below 1")
    asked = Setting(
        clients=clients,
        tolerated=tolerate,
        colluders=colluders,
        computes=computes,
        dropped=drop,
        epsilon=epsilon,
        delta=delta,
        statistic=statistic,
        columns=dimension if dimension is not None else 1 + (statistic == "regression"),
        bound=bound,
        coalition=(
            default_coalition(clients, tolerate, computes, drop) if coalition is None else Coalition.parse(coalition)
        ),
    )
    if node_release:
        named = ("epsilon", "delta", "statistic", "columns", "bound")
        if asked != Setting(**{name: getattr(asked, name) for name in named}):
            raise UsageError(
                "--node-release audits one data node, which relies on no one else: leave out --clients, --tolerate, "
                "--colluders, --computes, --coalition and --drop"
            )
        asked = of_release(asked)
    asked.check()
    plan = _plan(asked, plant, protocol, engine, rounds, seed)
    world = World(plan.setting)
    require_time(plan.setting.clients, world.size, plan.runs, protocol)
    for label, text in plan_lines(plan):
        say(console, label, text)
    random = os.urandom if seed is None else seeded(f"audit/{seed}")
    with engines.open_engine(engine) as chosen:
        seen, same_law_p = _attack(plan, world, random, chosen, console)
    finding = find(world, seen, views(world, plan.programme, random), confidence, same_law_p)
    record = result(plan, finding, seen.main, time.monotonic() - began_s)
    show(console, figures(record), [(record.verdict, record.sentence)])
    keep_earlier(console, json_to, plot)
    write_json(record, json_to)
    title = _title(plan, finding)
    if plot is not None and draw(console, plot, lambda place: picture(page(record).charts, place, title)):
        say(console, "picture", str(plot))
    return cli.REFUTED if finding.verdict == REFUTED else 0


def _plan(asked: Setting, plant: str | None, protocol: bool, engine: str, runs: int | None, seed: int | None) -> Audit:
    """Return the operating point and the number of runs. Raises `UsageError` if options exclude each other."""
    if engine != engines.LOCAL and not protocol:
        raise UsageError("--engine goes with --protocol; the ideal functionality draws in this process")
    if plant is not None and protocol:
        raise UsageError("--plant and --protocol exclude each other: the real actors run the real program")
    chosen = programme(plant)
    wanted = runs if runs is not None else (_DEFAULT_RUNS_PROTOCOL if protocol else _DEFAULT_RUNS)
    require_runs(wanted, protocol)
    number = max(wanted, RUNS_MIN) if plant else wanted
    return Audit(
        setting=chosen.operating_point(asked),
        asked=asked,
        programme=chosen,
        protocol=protocol,
        runs=number,
        pilot_runs=pilot_runs(number, protocol),
        runs_asked=wanted,
        seed=seed,
    )


def _attack(
    plan: Audit, world: World, random: Random, engine: engines.Engine, console: Console
) -> tuple[Experiment, float | None]:
    """Run the attack; with real actors, also return the p-value of their test against the ideal functionality."""
    adversary = Adversary(world, plan.programme)
    ideal = IdealRounds(world, plan.programme, random)
    rounds: Rounds = ProtocolRounds(plan.setting, random, engine) if plan.protocol else ideal
    total = survey_runs(world.size, plan.pilot_runs) + plan.pilot_runs + plan.runs
    with PatientBar(console, 2 * total, "rounds") as bar:
        seen = experiment(rounds, adversary, plan.pilot_runs, plan.runs, bar.advance)
    if not plan.protocol:
        return seen, None
    reference = observe(ideal, adversary, seen.lines[0], _DEFAULT_RUNS // 10)
    return seen, same_law(seen.main, reference.samples)


def _title(plan: Audit, finding: Finding) -> str:
    setting, fault = plan.setting, f"planted fault: {plan.programme.name}" if plan.programme.name else ""
    swarm = "one data node" if setting.is_release else f"N = {setting.clients}, T = {setting.tolerated}"
    point = f"{swarm}, {setting.promise}"
    words = {STANDS: ": the claim stands", REFUTED: ": the claim is refuted"}
    return (
        f"Audit{words.get(finding.verdict, '')} ({fault or f'coalition {setting.coalition}'})\n"
        f"{point}, {plan.runs:,} rounds of each world\n"
        f"{finding.variance_ratio:.4g} of the variance needed is left, epsilon proved: "
        f"{at_most(finding.epsilon_lower_gdp)}"
    )
