"""`dca swarm`: starts a broker, Compute nodes, clients and a trainer, and learns from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dca_proto import engine as engines
from dca_proto.cli import options
from dca_proto.cli.job_settings import JobName
from dca_proto.cli.swarm_job import DataOptions, JobSpec, check_outputs, first_rows, learn, problem_of
from dca_proto.errors import UsageError
from dca_proto.jobs.forecast import EXACT
from dca_proto.privacy.accounting import DELTA
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.protocol.terms import Clients, check_range
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, SecureSum
from dca_proto.results.run import Run
from dca_proto.runtime.logs import configure_logs
from dca_proto.runtime.run_ledger import RunLedger
from emulator.inexact import RoundedGaussian
from emulator.swarm.options import SwarmOptions
from inference.jobs import NAMES, find, require_kind
from inference.jobs.base import LearningJob
from inference.jobs.settings import parse_words, settings_from
from inference.jobs.summary import Summary
from inference.problem import hold_out, sites_of

_PROCESSES = 2
SHARED = ("computes", "tolerate", "colluders")
SUMS = ("clients", *SHARED)
"""Options about sums over many clients. Those of `SHARED` do not apply to jobs on LDP reports either."""

_SUMS = "sums over many clients"
_NO_COMPUTES = "and there are no Compute nodes"

OUTPUT = (Run, Summary)
EXAMPLES = """Examples:

  dca swarm                                   442 patients' diabetes data, everything by default

  dca swarm --dataset breast-cancer --job logistic --epsilon 4

  dca swarm --dashboard                       its rounds on a live page, at the address that it prints

  dca swarm --tolerate 40 --drop 40           as many drop as are tolerated

  dca swarm --job regression-mcmc --data-nodes 3 --epsilon 8     3 hospitals that release by themselves

  dca swarm --job ldp-histogram --epsilon 2   442 patients, each report private by itself; nobody is trusted

  dca swarm --job ldp-mean --set family=gaussian --set column=bmi

  dca swarm --job survival --set group=arm    a simulated trial: survival curves of its arms, and the log-rank test

  dca swarm --job synthetic --set bins=4 --epsilon 4      rows that resemble the patients', in run/synthetic.csv

  dca swarm --csv houses.csv --target price --bounds "rooms=0:10,area=0:400,price=0:1e6" --epsilon 4

  dca swarm --csv houses.csv --target price --bounds bounds.toml --ledger houses.ledger --ledger-epsilon 4
      several runs on the same rows, with epsilon 4 for all of them together; later runs need no --ledger-epsilon

  dca swarm --engine ray://head:10001 --processes 40 --broker mqtt://head:1883       on a cluster

  dca swarm --broker mosquitto --computes 5 --json result.json
"""


@options.with_options(
    SwarmOptions,
    without=("dropped", "batch", "mechanism", "kind", "reports", "dimension", "rounds"),
    shown={
        "clients": "one per training row",
        "processes": "0; 2 with --engine",
        "tolerate": "N / 10",
        "collect_s": "ten times the norm",
        "commit_s": "ten times the norm",
    },
)
def swarm(
    context: typer.Context,
    chosen: options.Chosen,
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
        str | None,
        typer.Option(
            help="CSV rows that lack a value: refuse (default), or zero: add zero to sums, as in a federation; nothing "
            "is filled in, and job describe counts them for the columns that they have."
        ),
    ] = None,
    features: options.Features = None,
    nodes: Annotated[
        int | None,
        typer.Option("--data-nodes", help="J data nodes with many rows each; every one releases its own noisy sum."),
    ] = None,
    drop: Annotated[
        int | None,
        typer.Option(help=options.DROP.help, show_default="T / 2; 0 in jobs of many rounds"),
    ] = None,
    fast_noise: options.FastNoise = False,
    no_reference: Annotated[
        bool,
        typer.Option("--no-reference", help="Compute nothing that epsilon does not cover; learn from all rows."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Folder for result.json and coefficients.png, by default run.")
    ] = None,
    json_to: options.Json = None,
    ledger: Annotated[
        Path | None, typer.Option(help="A file that adds up what runs on the same rows cost, and refuses one too many.")
    ] = None,
    ledger_epsilon: Annotated[
        float | None, typer.Option(help="The total of all runs in a new --ledger, at --delta.")
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show the rounds on a live page, also afterwards until Ctrl-C.")
    ] = False,
) -> int:
    """Learn a regression, or run another job, on a swarm of clients."""
    configure_logs(level=logging.WARNING)
    clients, tolerate = chosen.pop("clients", None), chosen.pop("tolerate", None)
    check_range("clients", clients, Clients)
    check_range("data-nodes", nodes, Clients)
    processes = _PROCESSES * (chosen.get("engine", engines.LOCAL) != engines.LOCAL)
    shared: dict[str, Any] = {"processes": processes, **chosen, "mechanism": RoundedGaussian() if fast_noise else EXACT}
    seed = chosen.get("seed", 0)
    data = DataOptions(**{name: context.params[name] for name in DataOptions.__struct_fields__})
    spec = _spec(find(job or NAMES[0]), sets, data, nodes, clients, seed, output or Path("run"), json_to, no_reference)
    spec = msgspec.structs.replace(spec, dashboard=dashboard)
    kind = spec.job.kinds[0] if nodes is None else NodeRelease
    if kind is NodeRelease:
        _refuse(context, SUMS, f"{_SUMS}; with data nodes each node releases by itself, {_NO_COMPUTES}")
    if kind is LdpReport:
        why = f"{_SUMS}; in job {spec.job.name!r} each client reports by itself, exactly, {_NO_COMPUTES}; leave it out"
        _refuse(context, (*SHARED, "fast_noise"), why)
    is_summed = kind is SecureSum
    tolerate = (spec.clients // 10 if tolerate is None else tolerate) * is_summed
    # a round ends early only if all contribute; after a drop it waits until no more arrive, too slow for many rounds
    dropped = 0 if spec.job.iterative else tolerate // 2
    if not is_summed:
        shared["computes"] = 0
    if spec.reports in PURE_MECHANISMS:
        shared["delta"] = DELTA
    swarm_options = SwarmOptions(
        clients=spec.clients,
        tolerate=tolerate,
        dropped=dropped if drop is None else drop,
        batch=spec.batch,
        kind=kind,
        reports=spec.reports,
        **shared,
    )
    spent = _ledger(ledger, ledger_epsilon, swarm_options.delta)
    return learn(msgspec.structs.replace(spec, ledger=spent), swarm_options)


def _ledger(path: Path | None, epsilon: float | None, delta: float) -> RunLedger | None:
    if path is None and epsilon is not None:
        raise UsageError("--ledger-epsilon goes with --ledger FILE, which adds up runs on the same rows")
    return None if path is None else RunLedger(path, epsilon, delta)


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
        require_kind(job, NodeRelease)
        clients = nodes
    settings = settings_from(job.settings, parse_words(sets or ()), job.name)
    column = job.site_column(settings)
    if column and nodes is not None:
        raise UsageError(f"--data-nodes {nodes} and --set site={column}: leave one out; the column has one node a code")
    if job.kinds[0] is NodeRelease and clients is None and not column:
        raise UsageError(f"job {job.name!r} learns from data nodes; give --data-nodes J, or --set site=COLUMN")
    check_outputs(output, json_to)
    needed = job.columns(settings)
    train = problem_of(
        data,
        default=job.dataset,
        alone=not job.scored,
        needed=needed,
        whole=job.whole,
        column=getattr(settings, "column", None),
    )
    train = job.read(train, settings)
    test = None
    if job.scored and not no_reference:
        train, test = hold_out(train, seed)
    if job.mechanism(settings) and clients is not None:
        train = first_rows(train, clients)
    sites = sites_of(train, column) if column else {}
    clients = len(sites) or clients
    return JobSpec(
        job=job,
        settings=settings,
        train=train,
        test=test,
        clients=len(train.y) if clients is None else clients,
        sites=sites,
        is_own=data.csv is not None,
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
