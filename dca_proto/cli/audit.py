"""`dca audit`: attacks the privacy claim of a round with all the knowledge of a coalition, and gives a verdict."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer
from rich.console import Console

from dca_proto import cli
from dca_proto import engine as engines
from dca_proto.cli import options
from dca_proto.cli.output import draw, keep_earlier, require_plot_target, result_console, say
from dca_proto.cli.progress import PatientBar
from dca_proto.cli.show import show
from dca_proto.crypto.sealing import Random
from dca_proto.errors import UsageError
from dca_proto.privacy.rounding import at_most
from dca_proto.protocol.terms import Windows
from dca_proto.report.charts import picture
from dca_proto.runtime.files import write_json
from dca_proto.testing import seeded
from emulator.claim import Claim
from emulator.coalition.actors import ActorRounds
from emulator.coalition.adversary import (
    Attacker,
    Experiment,
    calls_of,
    experiment,
    least_runs,
    observe,
    pilot_runs,
    require_runs,
    require_time,
)
from emulator.coalition.faults import FAULTS, RUNS_MIN, programme
from emulator.coalition.finding import REFUTED, STANDS, Result, find, same_law, watch
from emulator.coalition.programme import AuditedRounds, IdealRounds
from emulator.coalition.uniformity import views
from emulator.coalition.words import Audit, plan_lines, result
from emulator.coalition.worlds import STATISTICS, Coalition, Setting, Worlds, default_coalition, of_release
from emulator.report.audit import figures, page

_DEFAULT_RUNS, _DEFAULT_RUNS_PROTOCOL = 400_000, 400
_DEFAULT_COLUMNS = {"sum": 32, "mean": 32, "second-moments": 6, "regression": 3}  # with real actors
_SEED_BYTES = 6
OUTPUT = Result
EXAMPLES = """Examples:

  dca audit                                               epsilon 1, N = 10, T = 3: does the claim stand?

  dca audit --clients 100 --tolerate 10 --epsilon 2 --plot audit.png

  dca audit --plant noise-scaled-by-n                     a fault that the audit must detect (exit code 4)

  dca audit --coalition clients=7,computes=2,broker       more colluders than the claim covers

  dca audit --verified --clients 30                       a verified sum: the noise of public coins, proofs' words

  dca audit --protocol --coalition clients=4,computes=2,broker,trainer       what each of them sees in messages

  dca audit --protocol --coalition computes=3             all Compute nodes: the documented break

  dca audit --protocol --drop 4                           more than T - c clients drop out: the round is aborted

  dca audit --node-release --statistic regression         the release of one data node

  dca audit --protocol --rounds 500                       rounds of the real actors, on all cores
"""


@options.with_options(Claim, without=Windows.__struct_fields__)
def audit(
    chosen: options.Chosen,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds in each of the two worlds; by default 400000, or 400 with --protocol.")
    ] = None,
    coalition: Annotated[
        str | None,
        typer.Option(
            help="clients=A,omitting=B,left-out=D,computes=K,broker,trainer: A clients reveal their noise, B add none, "
            "D are ignored by K Compute nodes. By default T + 1 clients, M - 1 Compute nodes and the broker.",
            show_default=False,
        ),
    ] = None,
    drop: Annotated[int, options.DROP] = 0,
    plant: Annotated[
        str | None,
        typer.Option(help=f"Plant a fault: {', '.join(FAULTS)}.", autocompletion=options.completing(FAULTS)),
    ] = None,
    statistic: Annotated[str, typer.Option(help=f"What is summed: {', '.join(STATISTICS)}.")] = "sum",
    dimension: Annotated[
        int | None, typer.Option(help="Number of columns; by default 1 (regression: 2), or more with --protocol.")
    ] = None,
    bound: Annotated[float, options.BOUND] = 1.0,
    confidence: Annotated[float, typer.Option(help="Of the reported bounds; the verdict's is higher.")] = 0.95,
    seed: Annotated[int | None, options.SEED_OF_KEYS] = None,
    node_release: Annotated[bool, typer.Option("--node-release", help="Audit one data node's release.")] = False,
    protocol: Annotated[
        bool, typer.Option("--protocol", help="Run every round with real actors; show and test what messages show.")
    ] = False,
    engine: Annotated[str, typer.Option(help=f"With --protocol. {engines.HELP}")] = engines.LOCAL,
    plot: options.Plot = None,
    json_to: options.Json = None,
) -> int:
    """Attack the privacy claim with all that a coalition knows; exit code 4 if the claim is refuted.

    `dca schema audit` describes the fields of the JSON object. Fields that do not apply are null.
    """
    began_s = time.monotonic()
    console = result_console(json_to)
    require_plot_target(plot)
    if not 0.5 <= confidence < 1:
        raise UsageError(f"--confidence {confidence:g}: expected 0.5 to below 1")
    claim = Claim(**chosen)
    largest = default_coalition(claim.clients, claim.tolerate, claim.computes, drop)
    asked = Setting(
        **chosen,
        dropped=drop,
        statistic=statistic,
        columns=_columns(statistic, protocol) if dimension is None else dimension,
        bound=bound,
        coalition=largest if coalition is None else Coalition.parse(coalition),
    )
    if node_release:
        named = ("epsilon", "delta", "statistic", "columns", "bound")
        if asked != Setting(**{name: getattr(asked, name) for name in named}):
            raise UsageError(
                "--node-release audits one data node, which relies on no one else: leave out --clients, --tolerate, "
                "--colluders, --computes, --coalition, --drop and --verified"
            )
        asked = of_release(asked)
    asked.check()
    if not protocol:
        asked.check_sum()
    plan = _plan(asked, plant, protocol, engine, rounds, seed)
    world = Worlds(plan.setting)
    require_time(plan.setting.clients, world.size, plan.runs, protocol)
    for label, text in plan_lines(plan):
        say(console, label, text)
    random = os.urandom if seed is None else seeded(f"audit/{seed}")
    with engines.open_engine(engine) as opened:
        seen, same_law_p = _attack(plan, world, random, opened, console)
    watched = watch(world, random(_SEED_BYTES).hex(), same_law_p) if protocol else None
    finding = find(world, plan.programme, seen, views(world, plan.programme, random), confidence, watched)
    record = result(plan, finding, time.monotonic() - began_s)
    for place, item in enumerate(record.messages.sees if record.messages else ()):
        say(console, "" if place else "sees", item)
    show(console, figures(record), [(record.verdict, record.sentence)])
    keep_earlier(console, json_to, plot)
    write_json(record, json_to)
    if plot is not None and draw(console, plot, lambda place: picture(page(record).charts, place, _title(record))):
        say(console, "picture", str(plot))
    return cli.REFUTED if record.verdict == REFUTED else 0


def _columns(statistic: str, protocol: bool) -> int:
    return _DEFAULT_COLUMNS.get(statistic, 1) if protocol else 1 + (statistic == "regression")


def _plan(
    requested: Setting, plant: str | None, protocol: bool, engine: str, runs: int | None, seed: int | None
) -> Audit:
    """Return the operating point and the number of runs. Raises `UsageError` if options exclude each other."""
    if engine != engines.LOCAL and not protocol:
        raise UsageError("--engine goes with --protocol; the ideal functionality draws in this process")
    if requested.verified and protocol:
        raise UsageError(
            "--verified and --protocol exclude each other: the ideal functionality has the noise and the proofs of a "
            "verified sum; scripts/check_scenarios.py judges the noise of verified sums of real actors"
        )
    if plant is not None and protocol:
        raise UsageError("--plant and --protocol exclude each other: the real actors run the real program")
    chosen = programme(plant)
    usual, least = _DEFAULT_RUNS_PROTOCOL if protocol else _DEFAULT_RUNS, least_runs(requested, protocol)
    wanted = runs if runs is not None else max(usual, least)
    require_runs(requested, wanted, least, protocol)
    number = max(wanted, RUNS_MIN) if plant else wanted
    return Audit(
        setting=chosen.operating_point(requested),
        asked=requested,
        programme=chosen,
        protocol=protocol,
        runs=number,
        pilot_runs=pilot_runs(number, protocol),
        runs_asked=wanted,
        seed=seed,
    )


def _attack(
    plan: Audit, world: Worlds, random: Random, engine: engines.Engine, console: Console
) -> tuple[Experiment, float | None]:
    """Run the attack; with real actors, also return the p-value of their test against the ideal functionality."""
    adversary = Attacker(world, plan.programme)
    ideal = IdealRounds(world, plan.programme, random)
    calls = calls_of(world.size, plan.pilot_runs, plan.runs)
    rounds: AuditedRounds = ActorRounds(plan.setting, random, engine, calls) if plan.protocol else ideal
    with PatientBar(console, sum(runs for _, runs in calls), "rounds") as bar:
        seen = experiment(rounds, adversary, plan.pilot_runs, plan.runs, bar.advance)
    if not plan.protocol or not seen.has_sums or world.setting.has_all_computes:
        return seen, None
    reference = observe(ideal, adversary, seen.lines[0], _DEFAULT_RUNS // 10)
    return seen, same_law(seen.main, reference.samples)


def _title(run: Result) -> str:
    setting, fault = run.setting, f"planted fault: {run.fault}" if run.fault else ""
    swarm = "one data node" if setting.is_release else f"N = {setting.clients}, T = {setting.tolerate}"
    words = {STANDS: ": the claim stands", REFUTED: ": the claim is refuted"}
    heading = f"Audit{words.get(run.verdict, '')} ({fault or f'coalition {setting.coalition}'})"
    found = "no sum was released"
    if run.attack is not None:
        proved = at_most(run.attack.epsilon_lower_gdp)
        found = f"{run.attack.variance_ratio:.4g} of the variance needed is left, epsilon proved: {proved}"
    return f"{heading}\n{swarm}, {setting.promise}, {run.runs:,} rounds of each world\n{found}"
