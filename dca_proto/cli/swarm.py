"""`dca swarm`: starts a broker, Compute nodes, clients and a trainer, and learns from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from dca_proto.aggregate import LdpReportRequest, NodeReleaseRequest, SecureSumRequest
from dca_proto.cli import options
from dca_proto.cli.job_settings import JobName
from dca_proto.cli.output import keep_earlier, result_console, say
from dca_proto.cli.show import show
from dca_proto.cli.swarm_job import DataOptions, JobSpec, check_outputs, first_rows, learn, problem_of
from dca_proto.cli.swarm_progress import Progress, broker_words, who_words
from dca_proto.errors import UsageError
from dca_proto.jobs.forecast import EXACT
from dca_proto.privacy.accounting import DELTA
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.privacy.rounding import claim_words
from dca_proto.runtime.device import TERMINATED, complete
from dca_proto.runtime.files import write_json
from dca_proto.runtime.logs import configure_logs
from dca_proto.wording import counted
from emulator import engine as engines
from emulator.counts import check_clients
from emulator.inexact import RoundedGaussian
from emulator.report.run import aborted_lines, missing_lines, synthetic_lines, tables
from emulator.results import Run
from emulator.swarm import synthetic
from emulator.swarm.options import SwarmOptions
from emulator.swarm.summary import exit_code, not_private_because
from inference.jobs import NAMES, find, require_kind
from inference.jobs.base import LearningJob
from inference.jobs.settings import parse_words, settings_from
from inference.jobs.summary import Summary
from inference.problem import hold_out

_PROCESSES = 2
SHARED = ("computes", "tolerate", "colluders")
SUMS = ("clients", *SHARED)
"""Options about sums over many clients. Those of `SHARED` do not apply to jobs on LDP reports either."""

LEARNING = ("job", "sets", "dataset", "data_folder", "csv", "target", "bounds", "bounds_from_data", "categories",
            "delimiter", "missing", "features", "nodes", "no_reference", "output")  # fmt: skip
"""Options that apply only to a swarm that learns."""
_SUMS = "sums over many clients"
_NO_COMPUTES = "and there are no Compute nodes"

OUTPUT = (Run, Summary)
EXAMPLES = """Examples:

  dca swarm                                   442 patients' diabetes data, everything by default

  dca swarm --dataset breast-cancer --job logistic --epsilon 4

  dca swarm --tolerate 40 --drop 40           as many drop as are tolerated

  dca swarm --job regression-mcmc --data-nodes 3 --epsilon 8     3 hospitals that release by themselves

  dca swarm --job ldp-histogram --epsilon 2   442 patients, each report private by itself; nobody is trusted

  dca swarm --job ldp-mean --set family=gaussian --set column=bmi

  dca swarm --job survival --set group=arm    a simulated trial: survival curves of its arms, and the log-rank test

  dca swarm --csv houses.csv --target price --bounds "rooms=0:10,area=0:400,price=0:1e6" --epsilon 4

  dca swarm --dimension 10 --clients 10000 --broker mosquitto --connections shared

  dca swarm --dimension 10 --clients 100000 --engine ray://head:10001 --processes 40 --broker mqtt://head:1883

  dca swarm --broker mosquitto --computes 5 --json result.json
"""


def swarm(
    context: typer.Context,
    job: JobName = None,
    sets: options.Sets = None,
    dataset: Annotated[
        str | None, typer.Option(help="A data set by name; by default diabetes, or the job's own.")
    ] = None,
    data_folder: Annotated[
        Path | None, typer.Option(help="Folder of data sets; by default DCA_DATA. Without either, they are downloaded.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Your own data: a table with a header line.")] = None,
    target: options.Target = None,
    bounds: Annotated[str | None, typer.Option(help=options.BOUNDS)] = None,
    bounds_from_data: Annotated[
        bool, typer.Option("--bounds-from-data", help="Read bounds from the data. For trial only: not private.")
    ] = False,
    categories: options.Categories = None,
    delimiter: options.Delimiter = "",
    missing: Annotated[
        str | None, typer.Option(help="CSV rows that lack a value: refuse (default), or zero, as in a federation.")
    ] = None,
    features: options.Features = None,
    dimension: Annotated[
        int | None, typer.Option(help="Do not learn; run rounds of a synthetic sum of this many numbers, with any N.")
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(help=options.CLIENTS.help, show_default="one per training row; 1000 with --dimension"),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--data-nodes", help="J data nodes with many rows each; every one releases its own noisy sum."),
    ] = None,
    computes: Annotated[int, options.COMPUTES] = 3,
    epsilon: Annotated[float, options.EPSILON] = 2.0,
    delta: Annotated[float, options.DELTA_OF_BUDGET] = DELTA,
    tolerate: Annotated[int | None, options.TOLERATE_TENTH] = None,
    colluders: Annotated[int, options.COLLUDERS] = 0,
    drop: Annotated[
        int | None,
        typer.Option(help=options.DROP.help, show_default="T / 2; 0 in jobs of many rounds"),
    ] = None,
    broker: Annotated[str, typer.Option(help="auto, embedded, mosquitto, or mqtt://host:port.")] = "auto",
    fast_noise: Annotated[
        bool, typer.Option("--fast-noise", help="Fast inexact noise. For emulation only: not private.")
    ] = False,
    connections: Annotated[
        str, typer.Option(help="each: one for each client; shared: one for all clients of a process.")
    ] = "each",
    processes: Annotated[
        int | None,
        typer.Option(help="P processes for clients; 0 runs all in one. By default 0; 2 with --dimension or --engine."),
    ] = None,
    engine: Annotated[str, typer.Option(help=engines.HELP)] = engines.LOCAL,
    rounds: Annotated[int | None, typer.Option(help="With --dimension: how many rounds, by default 1.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of data splits, drops and waits; never of keys or noise.")] = 0,
    no_reference: Annotated[
        bool,
        typer.Option("--no-reference", help="Compute nothing that epsilon does not cover; learn from all rows."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Folder for result.json and coefficients.png, by default run.")
    ] = None,
    json_to: options.Json = None,
) -> int:
    """Learn a regression, or run another job, on a swarm of clients; or run rounds of a synthetic sum with any N."""
    configure_logs(level=logging.WARNING)
    check_clients(clients or 0)
    check_clients(nodes or 0, "--data-nodes")
    if dimension is None:
        _refuse(context, ("rounds",), "--dimension D, rounds of a synthetic sum; without it the swarm learns from data")
    else:
        _refuse(context, LEARNING, "learning from data; with --dimension there are neither data nor a folder")
    shared: dict[str, Any] = {
        "colluders": colluders, "broker": broker, "seed": seed, "connections": connections, "engine": engine,
        "mechanism": RoundedGaussian() if fast_noise else EXACT,
    }  # fmt: skip
    if dimension is not None:
        number = synthetic.CLIENTS if clients is None else clients
        rounds_of = SwarmOptions(
            clients=number,
            dimension=dimension,
            computes=computes,
            rounds=1 if rounds is None else rounds,
            tolerated=number // 10 if tolerate is None else tolerate,
            dropped=drop or 0,
            processes=min(_PROCESSES, number) if processes is None else processes,
            budget=Budget(epsilon, delta),
            **shared,
        )
        return _show_rounds(rounds_of, json_to)
    if nodes is not None:
        _refuse(context, SUMS, f"{_SUMS}; with --data-nodes J each data node releases by itself, {_NO_COMPUTES}")
    data = DataOptions(**{name: context.params[name] for name in DataOptions.__struct_fields__})
    spec = _spec(find(job or NAMES[0]), sets, data, nodes, clients, seed, output or Path("run"), json_to, no_reference)
    kind = spec.job.kinds[0] if nodes is None else NodeReleaseRequest
    if kind is LdpReportRequest:
        why = f"{_SUMS}; in job {spec.job.name!r} each client reports by itself, exactly, {_NO_COMPUTES}; leave it out"
        _refuse(context, (*SHARED, "fast_noise"), why)
    is_summed = kind is SecureSumRequest
    tolerated = (spec.clients // 10 if tolerate is None else tolerate) * is_summed
    # a round ends early only if all contribute; after a drop it waits until no more arrive, too slow for many rounds
    dropped = 0 if spec.job.iterative else tolerated // 2
    swarm_options = SwarmOptions(
        clients=spec.clients,
        computes=computes * is_summed,
        budget=Budget(epsilon, DELTA if spec.reports in PURE_MECHANISMS else delta),
        tolerated=tolerated,
        dropped=dropped if drop is None else drop,
        batch=spec.batch,
        processes=_PROCESSES * (engine != engines.LOCAL) if processes is None else processes,
        kind=kind,
        reports=spec.reports,
        **shared,
    )
    return learn(spec, swarm_options)


def _spec(
    job: LearningJob,
    sets: list[str] | None,
    data: DataOptions,
    nodes: int | None,
    clients: int | None,
    seed: int,
    output: Path,
    json_to: str | None,
    no_reference: bool,
) -> JobSpec:
    """Load the data and check the settings of the job. Arguments: see `swarm`."""
    if nodes is not None:
        require_kind(job, NodeReleaseRequest)
        clients = nodes
    settings = settings_from(job.settings, parse_words(sets or ()), job.name)
    check_outputs(output, json_to)
    train, test = problem_of(data, default=job.dataset, alone=not job.scored, needed=job.columns(settings)), None
    if job.scored and not no_reference:
        train, test = hold_out(train, seed)
    if job.mechanism(settings) and clients is not None:
        train = first_rows(train, clients)
    return JobSpec(
        job=job,
        settings=settings,
        train=train,
        test=test,
        clients=len(train.y) if clients is None else clients,
        reference=not no_reference,
        output=output,
        json_to=json_to,
    )


def _refuse(context: typer.Context, names: Iterable[str], purpose: str) -> None:
    """Refuse these options if the user gave any. Raises `UsageError` that states what they go with."""
    sources = {option.opts[0]: context.get_parameter_source(option.name or "") for option in context.command.params
               if option.name in names}  # fmt: skip
    given = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
    if given:
        raise UsageError(f"{', '.join(given)} {'go' if given[1:] else 'goes'} with {purpose}")


def _show_rounds(options: SwarmOptions, json_to: str | None) -> int:
    """Run the rounds, print and write their measurements, and return the exit code.

    Raises:
        RoundAborted: a round was aborted; the measurements are printed before.
        UsageError, TransportError: as `run_rounds`.
    """
    console = result_console(json_to)
    synthetic.check(options)
    say(console, "federation", who_words(options))
    reasons, budget = not_private_because((), options.mechanism), options.budget
    terms = f"not private: {'; '.join(reasons)}" if reasons else f"{claim_words(budget.epsilon, budget.delta)} in all"
    numbers = counted(options.dimension, "number")
    say(console, "plan", f"{counted(options.rounds, 'round')} of a synthetic sum of {numbers}; {terms}")
    with Progress(console, options.clients) as progress:
        run = complete(
            synthetic.hold_rounds(options, progress, lambda swarm: say(console, "broker", broker_words(swarm)))
        )
    if run is None:
        return TERMINATED
    keep_earlier(console, json_to)
    write_json(run, json_to)
    show(console, tables(run), [*aborted_lines(run), *missing_lines(run), *synthetic_lines(run)])
    return exit_code(run)
