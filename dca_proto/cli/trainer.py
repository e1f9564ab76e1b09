"""`dca trainer` runs one round from the trainer's TOML file, and prints its private result."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console

from dca_proto.aggregate import NoisyAggregate
from dca_proto.cli import options
from dca_proto.cli.actor import CONFIG, JsonLogs, Metrics, configure_command_logs
from dca_proto.cli.ledger import account_line
from dca_proto.cli.output import Terminal, keep_earlier, result_console, say, table
from dca_proto.cli.reporter import Reporter
from dca_proto.errors import RoundAborted, UsageError
from dca_proto.privacy.mechanism import ANALYTIC_GAUSSIAN
from dca_proto.privacy.rounding import claim_words
from dca_proto.protocol.facts import RoundCompleted, RoundFailed
from dca_proto.results.lost import fields_of
from dca_proto.results.round import (
    NODES_NAME_ABSENT,
    Round,
    aborted_round,
    doubts,
    estimates,
    lost_words,
    over_words,
    remedy_of,
    round_of,
    sds_of,
)
from dca_proto.runtime.device import Device, load
from dca_proto.runtime.files import write_json
from dca_proto.runtime.live import abort_of
from dca_proto.runtime.process import TERMINATED, complete
from dca_proto.runtime.request import RoundSettings, open_round
from dca_proto.runtime.settings import convert
from dca_proto.wording import counted

OUTPUT = Round | list[Round]
EXAMPLES = (
    """Examples:

  dca trainer trainer.toml --statistic mean --columns x --bounds x=0:10 --epsilon 1 --delta 1e-6 --tolerate 2
  dca trainer trainer.toml --statistic histogram --columns age --parameter edges=[0,40,80] --epsilon 1 --delta 1e-6
  dca trainer trainer.toml --clients 100 --json -      run the file's [round], until 100 clients have answered
  dca trainer trainer.toml --kind node-release --rows-max 5000 --clients 4 ...
                                                       four hospitals each release a sum over their patients
  dca trainer trainer.toml --kind ldp-report --mechanism grid-laplace --clients 1000 --statistic mean \\
                           --columns x --bounds x=0:10 --epsilon 1
                                                       a thousand clients send reports that are private against
                                                       everybody, with delta 0; analytic-gaussian needs a delta
  dca trainer trainer.toml --kind ldp-report --mechanism unary-encoding --rows-max 1 --clients 1000 \\
                           --statistic histogram --columns age --parameter edges=[0,40,80] --epsilon 1
                                                       each client reports its category; with few categories,
                                                       randomised-response has less noise
  dca trainer trainer.toml --resume                    finish rounds of an earlier run, and collect the charges that
                                                       aborted rounds give back (--json: a list)

Example of a file:

"""
    + CONFIG.format(role="trainer", extra="")
    + """
  [account]                          # the limits on all rounds together, for each client; these are the defaults
  epsilon = 4
  delta = 1e-5
  period_days = 365
  epsilon_for_reports = 0            # the part kept for reports of delta 0; set it before the first round
  rounds_max = 16384                 # rounds of a client in a period, whatever they cost

  [round]                            # optional; options override it
  statistic = "mean"
  columns = ["x"]
  bounds = { x = [0, 10] }           # public, never read from the data
  epsilon = 1
  delta = 1e-6
  tolerate = 2
"""
)

_NONE_OPEN = "no round is open"
_COUNT_VARIANCE_LEAST = 10.0
"""Below this variance of the number of reports that name a category, its interval may cover less than 95 %."""


@options.with_options(RoundSettings)
def trainer(
    config: options.Config,
    chosen: options.Chosen,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Finish the store's rounds, show results, collect charges; run no new round."),
    ] = False,
    json_to: options.Json = None,
    metrics: Metrics = None,
    json_logs: JsonLogs = False,
) -> None:
    """Run one round as the trainer, and print the private result with its noise."""
    actor = load(config, roles=("trainer",), metrics=metrics)
    console = result_console(json_to, json_logs=json_logs)
    configure_command_logs(json_logs)
    if resume:
        if chosen:
            raise UsageError(f"--resume runs no new round: leave out --{next(iter(chosen)).replace('_', '-')}")
        _resume(actor, console, json_to, json_logs)
        return
    in_file = actor.config.round
    settings = {**({} if in_file is None else msgspec.structs.asdict(in_file)), **chosen}
    if not settings:
        raise UsageError("no round to run: give --statistic, --columns, --epsilon, --delta ..., or a [round] section")
    again = f"`dca trainer {config} --resume` gets its result, or the charges back"
    _run(actor, convert("round:", settings, RoundSettings), console, json_to, json_logs, again)


def _run(
    actor: Device, settings: RoundSettings, console: Console, json_to: str | None, json_logs: bool, again: str
) -> None:
    request = open_round(settings, actor.config.federation)
    expected = settings.clients
    with Reporter(Terminal(stderr=True), actor.name_of, expected, json_logs=json_logs, again=again) as reporter:
        reporter.waiting(f"connecting to {actor.config.broker.url}")
        try:
            aggregate = complete(actor.run_round(request, reporter))
        except KeyboardInterrupt:
            reporter.say(f"stopped: {reporter.open_words() or _NONE_OPEN}")
            raise
        except RoundAborted as error:
            keep_earlier(console, json_to)
            write_json(aborted_round(error, expected or None), json_to)
            if remedy := remedy_of(error):
                reporter.say(remedy)
            raise
        if aggregate is None:
            reporter.say(f"stopped: {reporter.open_words() or _NONE_OPEN}")
            raise typer.Exit(TERMINATED)
    keep_earlier(console, json_to)
    write_json(round_of(aggregate, alone=True), json_to)  # first, since its privacy cost is already spent
    _show(console, aggregate)
    console.print(f"account    {account_line(actor.config)}", soft_wrap=True)


def _resume(actor: Device, console: Console, json_to: str | None, json_logs: bool) -> None:
    with Reporter(Terminal(stderr=True), actor.name_of, json_logs=json_logs) as reporter:
        reporter.waiting("resuming")
        ended = complete(actor.resume(reporter))
    if ended is None:
        raise typer.Exit(TERMINATED)
    if not ended:
        raise UsageError("nothing to resume: the store has no open round, no result and no charge that may come back")
    results = [fact.aggregate for fact in ended if isinstance(fact, RoundCompleted)]
    aborts = [abort_of(fact, resumed=True) for fact in ended if isinstance(fact, RoundFailed)]
    keep_earlier(console, json_to)
    write_json([*(round_of(result, alone=True) for result in results), *map(aborted_round, aborts)], json_to)
    for aggregate in results:
        _show(console, aggregate)
    for remedy in dict.fromkeys(filter(None, map(remedy_of, aborts))):
        say(console, "advice", remedy)
    if aborts:
        raise aborts[-1]


def _show(console: Console, aggregate: NoisyAggregate) -> None:
    sds, interval = interval_of(aggregate)
    columns = ("", "private estimate" if aggregate.private else "estimate, not private", interval)
    rows = [
        (one.label, f"{one.value:.6g}", f"[{one.value - half:.6g}, {one.value + half:.6g}]")
        for one in estimates(aggregate)
        for half in [sds * one.noise_std]
    ]
    console.print(table(columns, rows, title=aggregate.statistic))
    for line in result_lines(aggregate):
        console.print(line, soft_wrap=True)
    for doubt in doubts(aggregate):
        say(console, "warning", doubt)


def interval_of(aggregate: NoisyAggregate) -> tuple[float, str]:
    """Return the half-width of an estimate's 95 % interval, in standard deviations of its noise, and a name for it."""
    reports, name = aggregate.reports, "95 % interval, noise only"
    if reports is not None and reports.mechanism != ANALYTIC_GAUSSIAN and reports.probabilities is not None:
        own, stray = reports.probabilities
        if aggregate.noise_variance * (own - stray) ** 2 < _COUNT_VARIANCE_LEAST:
            name = f"approximate {name}"
    return sds_of(aggregate), name


def result_lines(aggregate: NoisyAggregate) -> list[str]:
    """Return lines on a result's contributors, cost and round."""
    claim = "no privacy claim: the noise is not private"
    if aggregate.epsilon is not None and aggregate.delta is not None:
        whose = "every row's budget" if aggregate.nodes else "every participant's budget"
        claim = f"{claim_words(aggregate.epsilon, aggregate.delta)} of {whose}"
    source = (
        f"{aggregate.contributors:,} of {aggregate.clients:,} clients "
        f"(n_min = {aggregate.n_min:,}, c = {aggregate.colluders:,})"
    )
    if aggregate.reports is not None:
        source = f"{aggregate.contributors:,} reports by {aggregate.mechanism}, each private by itself"
    if aggregate.nodes:
        rows = ", ".join(f"{node.contributors:,}" for node in aggregate.nodes)
        of = f"{aggregate.contributors:,} rows of {aggregate.clients:,} data nodes"
        source = f"{of} ({rows}); each node added all the noise"
    found = Round(ok=True, **fields_of(aggregate.quorum))
    nodes = (("over", over_words(found)), ("lost", lost_words(found.lost)))
    over = [f"{label:<11}{text}" for label, text in nodes if text]
    missing = aggregate.clients - aggregate.contributors if aggregate.n_min else 0
    if missing:
        over.insert(0, f"missing    {counted(missing, 'client')}: declined, or absent; {NODES_NAME_ABSENT}")
    return [f"from       {source}", *over, f"spent      {claim}", f"round      {aggregate.round_id.hex()}"]
