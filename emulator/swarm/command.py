"""`dca swarm`: start a broker, Compute nodes, clients and a trainer, and learn from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from dca_proto.aggregate import LdpReportRequest, NodeReleaseRequest, SecureSumRequest
from dca_proto.cli.options import DELTA, parse_names
from dca_proto.errors import UsageError
from dca_proto.jobs.forecast import EXACT
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.runtime.logs import configure_logs
from emulator import engine as engines
from emulator.counts import check_clients
from emulator.inexact import RoundedGaussian
from emulator.results import Run
from emulator.swarm.data import TEST_FRACTION, DataOptions, first_rows, problem_of
from emulator.swarm.learn import Lesson, check_outputs, learn
from emulator.swarm.options import SwarmOptions
from emulator.swarm.synthetic import CLIENTS, show_rounds
from inference.jobs import NAMES, find, require_kind
from inference.jobs.settings import parse_words, settings_from
from inference.jobs.summary import Summary
from inference.problem import split

_PROCESSES = 2
SHARED = ("computes", "tolerate", "colluders")
SUMS = ("clients", *SHARED)
"""Options about sums over many clients; all but the first mean nothing, either, where each client reports by itself."""

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
    job: Annotated[str | None, typer.Option(help=f"What is learned: {', '.join(NAMES)}.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the job, KEY=VALUE; repeat. One not known lists all."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="A data set by name, by default diabetes or the job's own.")
    ] = None,
    data_folder: Annotated[
        Path | None, typer.Option(help="Where data sets' files are, else that of DCA_DATA, else they are downloaded.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Your own data: a table with a header line.")] = None,
    target: Annotated[str | None, typer.Option(help="The CSV's column to predict.")] = None,
    bounds: Annotated[
        str | None, typer.Option(help="Public bounds of the CSV's columns: COL=LO:HI,... or a TOML file.")
    ] = None,
    bounds_from_data: Annotated[
        bool, typer.Option("--bounds-from-data", help="Read bounds from the data. For trial only: not private.")
    ] = False,
    categories: Annotated[
        list[str] | None, typer.Option(help="Public categories of a text column of the CSV, COL=A,B,C; repeat.")
    ] = None,
    missing: Annotated[
        str | None, typer.Option(help="CSV rows that lack a value: refuse (default), or zero, as in a federation.")
    ] = None,
    features: Annotated[str | None, typer.Option(help="Columns to predict from, A,B,C; by default all others.")] = None,
    dimension: Annotated[
        int | None, typer.Option(help="Hold plain rounds of a synthetic sum of that many numbers instead, with any N.")
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(help="N; by default one for each training row, or 1000 with --dimension."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--data-nodes", help="J data nodes with many rows each, that release by themselves."),
    ] = None,
    computes: Annotated[int, typer.Option(help="M, the number of Compute nodes.")] = 3,
    epsilon: Annotated[float, typer.Option(help="Privacy budget over all rounds.")] = 2.0,
    delta: Annotated[
        float, typer.Option(help="Its delta; not spent where reports are private by epsilon alone.")
    ] = DELTA,
    tolerate: Annotated[int | None, typer.Option(help="T, by default N / 10.")] = None,
    colluders: Annotated[int, typer.Option(help="c, how many of the T are reserved for colluders.")] = 0,
    drop: Annotated[
        int | None,
        typer.Option(help="K clients that vanish in each round, by default T / 2; 0 in jobs of many rounds."),
    ] = None,
    broker: Annotated[str, typer.Option(help="auto, embedded, mosquitto, or mqtt://host:port.")] = "auto",
    fast_noise: Annotated[
        bool, typer.Option("--fast-noise", help="Fast inexact noise. For emulation only: not private.")
    ] = False,
    connections: Annotated[
        str, typer.Option(help="each for one of each client, or shared by all clients of a process.")
    ] = "each",
    processes: Annotated[
        int | None,
        typer.Option(help="P, that run clients; 0 for all in one, the default but with --dimension or --engine: 2."),
    ] = None,
    engine: Annotated[str, typer.Option(help=engines.HELP)] = engines.LOCAL,
    rounds: Annotated[int | None, typer.Option(help="With --dimension: how many are held, by default 1.")] = None,
    seed: Annotated[int, typer.Option(help="Of data splits, drops and waiting times; never of keys or noise.")] = 0,
    no_reference: Annotated[
        bool,
        typer.Option("--no-reference", help="Leave out what epsilon does not cover; hold out no rows, learn from all."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Folder for result.json and coefficients.png, by default run.")
    ] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", help="Also write the result to a file, or - for stdout.")
    ] = None,
) -> int:
    """Learn from a swarm of clients, each with its own rows: a regression or another job; or hold rounds with any N."""
    configure_logs(level=logging.WARNING)
    check_clients(clients or 0)
    check_clients(nodes or 0, "--data-nodes")
    mechanism = RoundedGaussian() if fast_noise else EXACT
    learning = {"job": job, "data-nodes": nodes, "set": sets, "dataset": dataset, "csv": csv,
                "data-folder": data_folder,
                "target": target, "bounds": bounds, "bounds-from-data": bounds_from_data or None,
                "categories": categories or None, "missing": missing,
                "features": features, "no-reference": no_reference or None, "output": output}  # fmt: skip
    _refuse_the_others(dimension, learning, {"rounds": rounds})
    shared: dict[str, Any] = {"broker": broker, "seed": seed, "connections": connections, "mechanism": mechanism,
                              "engine": engine}  # fmt: skip
    if dimension is not None:
        number = CLIENTS if clients is None else clients
        plain = SwarmOptions(
            clients=number,
            dimension=dimension,
            computes=computes,
            rounds=1 if rounds is None else rounds,
            tolerated=number // 10 if tolerate is None else tolerate,
            colluders=colluders,
            dropped=drop or 0,
            processes=min(_PROCESSES, number) if processes is None else processes,
            budget=Budget(epsilon, delta),
            **shared,
        )
        return show_rounds(plain, json_to)
    data = DataOptions(
        dataset=dataset, folder=data_folder, csv=csv, target=target, bounds=bounds, bounds_from_data=bounds_from_data,
        categories=categories, missing=missing, features=parse_names(features),
    )  # fmt: skip
    if nodes is not None:
        _refuse(context, SUMS, _WITH_NODES)
    lesson = _lesson(job, sets, data, nodes, clients, seed, output or Path("run"), json_to, not no_reference)
    kind = lesson.job.kinds[0] if nodes is None else NodeReleaseRequest
    if kind is LdpReportRequest:
        _refuse(context, (*SHARED, "fast_noise"), f"in job {lesson.job.name!r} {_WITH_REPORTS}")
    is_summed = kind is SecureSumRequest
    tolerated = _tolerated(lesson, tolerate) if is_summed else 0
    options = SwarmOptions(
        clients=lesson.clients,
        computes=computes if is_summed else 0,
        budget=Budget(epsilon, DELTA if lesson.reports in PURE_MECHANISMS else delta),
        tolerated=tolerated,
        colluders=colluders,
        dropped=_dropped(lesson, tolerated) if drop is None else drop,
        batch=lesson.batch,
        processes=_PROCESSES * (engine != engines.LOCAL) if processes is None else processes,
        kind=kind,
        reports=lesson.reports,
        **shared,
    )
    return learn(lesson, options)


def _tolerated(lesson: Lesson, given: int | None) -> int:
    """T, where there are Compute nodes."""
    return lesson.clients // 10 if given is None else given


def _dropped(lesson: Lesson, tolerated: int) -> int:
    """Nobody in many rounds, which then end as soon as all have contributed: after one who has vanished, when quiet."""
    return 0 if lesson.job.iterative else tolerated // 2


def _lesson(
    job: str | None,
    sets: list[str] | None,
    data: DataOptions,
    nodes: int | None,
    clients: int | None,
    seed: int,
    output: Path,
    json_to: str | None,
    reference: bool,
) -> Lesson:
    """What is to be learned, of which data; nothing is started yet.

    Args:
        nodes: J, where clients are data nodes. clients: N, where they are not. reference: whether the result is held
            against the same model without privacy, and against rows that are held out.
    """
    found = find(job or NAMES[0])
    if nodes is not None:
        require_kind(found, NodeReleaseRequest)
        clients = nodes
    settings = settings_from(found.settings, parse_words(sets or ()), found.name)
    check_outputs(output, json_to)
    problem = problem_of(data, default=found.dataset, alone=not found.scored, needed=found.columns(settings))
    train, test = problem, None
    if found.scored and reference:
        train, test = split(problem, max(1, round(TEST_FRACTION * len(problem.y))), seed)
    if found.reports(settings) and clients is not None:
        train = first_rows(train, clients)
    return Lesson(
        job=found,
        settings=settings,
        train=train,
        test=test,
        clients=len(train.y) if clients is None else clients,
        reference=reference,
        output=output,
        json_to=json_to,
    )


_WITH_NODES = "with --data-nodes J each data node releases by itself, and there are no Compute nodes"
_WITH_REPORTS = "each client reports by itself, exactly, and there are no Compute nodes; leave it out"


def _refuse(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Refuse options that say nothing of those who release or report by themselves."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [f"--{name.replace('_', '-')}" for name, source in sources.items() if source and source.name != "DEFAULT"]
    if given:
        verb = "go" if given[1:] else "goes"
        raise UsageError(f"{', '.join(given)} {verb} with sums over many clients; {why}")


def _refuse_the_others(dimension: int | None, learning: dict[str, Any], fleet: dict[str, Any]) -> None:
    """Refuse options that only make sense without --dimension, or only with it."""
    wrong = fleet if dimension is None else learning
    given = [f"--{name}" for name, value in wrong.items() if value is not None]
    if not given:
        return
    names, verb = ", ".join(given), "go" if given[1:] else "goes"
    if dimension is None:
        raise UsageError(f"{names} {verb} with --dimension D, rounds of a synthetic sum; this swarm learns from data")
    raise UsageError(f"{names} {verb} with learning from data; with --dimension there are neither data nor a folder")
