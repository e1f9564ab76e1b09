"""`dca swarm`: start a broker, Compute nodes, clients and a trainer, and learn a regression from them."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.cli.output import (
    STDOUT,
    require_json_target,
    require_matplotlib,
    require_writable,
    say,
    whole_file,
    write_json,
)
from dca_proto.core.budget import Budget
from dca_proto.core.errors import RoundAborted, UsageError
from dca_proto.core.forecast import EXACT, planned
from dca_proto.core.sealing import ID_BYTES
from dca_proto.core.shares import ENCODINGS, SEED
from dca_proto.device import complete
from dca_proto.logs import configure_logs
from emulator.inexact import RoundedGaussian
from emulator.job import Terms, check_counts, regression_sensitivity
from emulator.swarm.fleet_command import CLIENTS, hold_fleet
from emulator.swarm.fleet_options import FleetOptions
from emulator.swarm.live import Swarm, SwarmOptions, check_broker
from emulator.swarm.summary import doubts, failed, learned, summarise
from emulator.swarm.view import (
    Bars,
    Lines,
    closing_lines,
    coefficients_table,
    dropped_lines,
    rounds_table,
    times_table,
)
from inference.algorithm2 import STD_SHARE, regression_with_projection
from inference.baselines import nonprivate_regression
from inference.bounds import MissingBoundsError, given_bounds
from inference.datasets import Problem, Schema, from_csv, load, split, stream
from inference.regression import RegressionResult
from inference.report import plot_coefficients

TEST_FRACTION = 0.225
TERMINATED = 143
RESULT, PICTURE = "result.json", "coefficients.png"
_BOUNDS_ADVICE = (
    "give --bounds COL=LO:HI,... or a TOML file, from what is known of the measurement "
    "(or, for a trial that is not private, --bounds-from-data)"
)

EXAMPLES = """Examples:

  dca swarm                                   442 patients' diabetes data, everything by default

  dca swarm --tolerate 40 --drop 40           as many drop as are tolerated

  dca swarm --csv houses.csv --target price --bounds "rooms=0:10,area=0:400,price=0:1e6" --epsilon 4

  dca swarm --dimension 10 --clients 10000 --broker mosquitto --connections shared

  dca swarm --broker mosquitto --computes 5 --share-encoding vector --json result.json
"""


def swarm(
    dataset: Annotated[str | None, typer.Option(help="A built-in data set, by default diabetes.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Your own data: numbers with a header line.")] = None,
    target: Annotated[str | None, typer.Option(help="The CSV's column to predict.")] = None,
    bounds: Annotated[
        str | None, typer.Option(help="Public bounds of the CSV's columns: COL=LO:HI,... or a TOML file.")
    ] = None,
    bounds_from_data: Annotated[
        bool, typer.Option("--bounds-from-data", help="Read bounds from the data. For trial only: not private.")
    ] = False,
    features: Annotated[str | None, typer.Option(help="Columns to predict from, A,B,C; by default all others.")] = None,
    dimension: Annotated[
        int | None, typer.Option(help="Hold plain rounds of a synthetic sum of that many numbers instead, with any N.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="N; by default one for each training row, or 1000 with --dimension.")
    ] = None,
    computes: Annotated[int, typer.Option(help="M, the number of Compute nodes.")] = 3,
    epsilon: Annotated[float, typer.Option(help="Privacy budget over all rounds.")] = 2.0,
    delta: Annotated[float, typer.Option(help="Its delta.")] = 1e-5,
    tolerate: Annotated[int | None, typer.Option(help="T, by default N / 10.")] = None,
    colluders: Annotated[int, typer.Option(help="c, how many of the T are reserved for colluders.")] = 0,
    drop: Annotated[
        int | None, typer.Option(help="K clients that vanish in each round, by default T / 2, or 0 with --dimension.")
    ] = None,
    share_encoding: Annotated[str, typer.Option(help="seed or vector.")] = SEED,
    broker: Annotated[str, typer.Option(help="auto, embedded, mosquitto, or mqtt://host:port.")] = "auto",
    fast_noise: Annotated[
        bool, typer.Option("--fast-noise", help="Fast inexact noise. For emulation only: not private.")
    ] = False,
    connections: Annotated[
        str | None, typer.Option(help="With --dimension: one for each client, or shared by those of a process.")
    ] = None,
    processes: Annotated[int | None, typer.Option(help="With --dimension: P, that run clients, by default 2.")] = None,
    rounds: Annotated[int | None, typer.Option(help="With --dimension: how many are held, by default 1.")] = None,
    seed: Annotated[int, typer.Option(help="Of data splits, drops and waiting times; never of keys or noise.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Folder for result.json and coefficients.png, by default run.")
    ] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", help="Also write the result to a file, or - for stdout.")
    ] = None,
) -> int:
    """Learn a Bayesian regression from a swarm of clients, each with its own rows; or hold rounds with any N."""
    configure_logs(level=logging.WARNING)
    mechanism = RoundedGaussian() if fast_noise else EXACT
    learning = {
        "dataset": dataset,
        "csv": csv,
        "target": target,
        "bounds": bounds,
        "features": features,
        "output": output,
        "bounds-from-data": bounds_from_data or None,
    }
    _refuse_the_others(dimension, learning, {"connections": connections, "processes": processes, "rounds": rounds})
    if dimension is not None:
        number = CLIENTS if clients is None else clients
        fleet = FleetOptions(
            clients=number,
            dimension=dimension,
            computes=computes,
            rounds=1 if rounds is None else rounds,
            tolerated=number // 10 if tolerate is None else tolerate,
            colluders=colluders,
            dropped=drop or 0,
            encoding=share_encoding,
            connections="each" if connections is None else connections,
            processes=min(2, number) if processes is None else processes,
            broker=broker,
            budget=Budget(epsilon, delta),
            seed=seed,
            mechanism=mechanism,
        )
        return hold_fleet(fleet, json_to)
    output = output or Path("run")
    _check_outputs(output, json_to)
    problem = _problem(dataset, csv, target, bounds, bounds_from_data, features)
    train, test = split(problem, max(1, round(TEST_FRACTION * len(problem.y))), seed)
    number = len(train.y) if clients is None else clients
    tolerated = number // 10 if tolerate is None else tolerate
    options = SwarmOptions(
        computes=computes,
        budget=Budget(epsilon, delta),
        tolerated=tolerated,
        colluders=colluders,
        dropped=tolerated // 2 if drop is None else drop,
        encoding=share_encoding,
        broker=broker,
        seed=seed,
        mechanism=mechanism,
    )
    _check(options, train, number)
    run = _Run(options, train, test, number, Console(stderr=json_to == STDOUT))
    summary = run.play()
    if summary is None:
        return TERMINATED
    run.show(summary, output, json_to)
    if not summary["ok"]:
        raise RoundAborted(
            summary["error"], contributors=summary["contributors_found"], needed=summary["contributors_needed"]
        )
    return 0


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


def _check_outputs(output: Path, json_to: str | None) -> None:
    """Refuse, before the work, what could not be written after it."""
    require_matplotlib()
    require_json_target(json_to)
    for name in (RESULT, PICTURE):
        require_writable(output / name, make_folders=True)


def _problem(
    dataset: str | None, csv: Path | None, target: str | None, bounds: str | None, from_data: bool, features: str | None
) -> Problem:
    chosen = None if features is None else [name.strip() for name in features.split(",")]
    if csv is None:
        if target or bounds or from_data:
            raise UsageError("--target, --bounds and --bounds-from-data go with --csv; built-in data have their own")
        return load(dataset or "diabetes", chosen)
    if dataset is not None:
        raise UsageError("--csv and --dataset exclude each other; keep one")
    if target is None:
        raise UsageError("--csv needs --target COLUMN, the column to predict")
    if bounds is not None and from_data:
        raise UsageError("--bounds and --bounds-from-data exclude each other; keep one")
    given = {} if bounds is None else given_bounds(bounds)
    try:
        return from_csv(csv, target, given, chosen, trial_bounds=from_data)
    except MissingBoundsError as error:
        raise MissingBoundsError(error.columns, _BOUNDS_ADVICE) from None


def _check(options: SwarmOptions, train: Problem, clients: int) -> None:
    """Everything else that can be refused before anything is started."""
    rows = len(train.y)
    if not 1 <= clients <= rows:
        raise UsageError(
            f"--clients {clients}: the {rows} training rows can be dealt to 1 to {rows} clients; "
            "any number of them can hold rounds of a synthetic sum, with --dimension D"
        )
    check_counts(clients, options.computes, options.tolerated, options.colluders, options.dropped)
    if options.encoding not in ENCODINGS:
        raise UsageError(f"--share-encoding {options.encoding}: expected {' or '.join(ENCODINGS)}")
    check_broker(options.broker)
    _check_budget(options, train.schema, clients)


def _check_budget(options: SwarmOptions, schema: Schema, clients: int) -> None:
    """Plan a round for each share of the budget, as its participants will."""
    budget = options.budget
    _ = budget.mu
    first = next(_job(schema, options.seed))
    terms = Terms(
        budget=budget,
        clients=clients,
        tolerated=options.tolerated,
        colluders=options.colluders,
        computes=tuple(place.to_bytes(ID_BYTES, "big") for place in range(options.computes)),
    )
    for share in (STD_SHARE, 1 - STD_SHARE):
        try:
            planned(terms.open(replace(first, budget_share=share), bytes(ID_BYTES)), clients, options.mechanism)
        except UsageError as error:
            raise UsageError(
                f"--epsilon {budget.epsilon:g} --delta {budget.delta:g}: no round can be held with "
                f"{_percent(share)} of that: {error}"
            ) from None


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _job(schema: Schema, seed: int) -> Generator[RoundRequest, NoisyAggregate, RegressionResult]:
    sensitivity = regression_sensitivity(schema.features, schema.target)
    return regression_with_projection(schema, sensitivity=sensitivity, rng=stream(seed, "auxiliary"))


def deal(rows: NDArray[np.float64], clients: int) -> list[NDArray[np.float64]]:
    """Deal rows to clients as evenly as possible; each contributes the mean of its own."""
    return [rows[index::clients] for index in range(clients)]


class _Run:
    """One run of the job with that many clients, told on a console.

    Raises:
        DataError: there are too few rows to learn from.
    """

    def __init__(self, options: SwarmOptions, train: Problem, test: Problem, clients: int, console: Console) -> None:
        self._options = options
        self._train = train
        self._test = test
        self._rows = deal(train.rows, clients)
        self._console = console
        self._reference = nonprivate_regression(train)
        self._doubts = doubts(train.schema.private, options.mechanism)
        self._result: RegressionResult | None = None

    def play(self) -> dict[str, Any] | None:
        """Run the job and say how it went, None if SIGTERM ended it; an abort is an outcome, all else is raised."""
        self._say_plan()
        with tempfile.TemporaryDirectory(prefix="dca-swarm-") as directory:
            return complete(self._play(Path(directory)))

    async def _play(self, directory: Path) -> dict[str, Any]:
        options, schema, began_s = self._options, self._train.schema, time.monotonic()
        view = (Bars if self._console.is_terminal else Lines)(self._console, len(self._rows))
        with view:
            async with Swarm(
                options, self._rows, schema.columns, directory, on_connect=view.connected, on_change=view.changed
            ) as live:
                self._say_broker(live)
                outcome = await self._learn(live)
                summary = summarise(live, options, len(self._rows), self._doubts, outcome)
        summary["wall_s"] = time.monotonic() - began_s
        return summary

    async def _learn(self, live: Swarm) -> dict[str, Any]:
        try:
            self._result = await live.learn(_job(self._train.schema, self._options.seed))
        except RoundAborted as error:
            return failed(error.reason, error.contributors, error.needed)
        return learned(self._result, self._reference, self._train, self._test)

    # --- what is told ---------------------------------------------------------------------------------------------

    def _say(self, label: str, text: str) -> None:
        say(self._console, label, text)

    def _say_plan(self) -> None:
        options, schema = self._options, self._train.schema
        self._say(
            "federation",
            f"{len(self._rows)} clients, {options.computes} Compute nodes, T = {options.tolerated} "
            f"(c = {options.colluders} reserved for colluders), K = {options.dropped} drop in each round",
        )
        features = ", ".join(schema.features)
        self._say("model", f"{schema.target} on {features}; {len(self._test.y)} rows held out")
        plan = (
            f"epsilon {options.budget.epsilon:g}, delta {options.budget.delta:g} over 2 rounds: {_percent(STD_SHARE)} "
            f"of the budget on scales, {_percent(1 - STD_SHARE)} on the regression"
        )
        self._say("plan", f"a trial that is not private: {'; '.join(self._doubts)}" if self._doubts else plan)

    def _say_broker(self, live: Swarm) -> None:
        name = f"{live.broker_kind} {live.broker_version}".strip()
        connections = len(self._rows) + self._options.computes + 1
        self._say("broker", f"{name} at {live.broker_url}, {connections} connections")

    def show(self, summary: dict[str, Any], output: Path, json_to: str | None) -> None:
        """Files in the folder and the object for programs, then tables on the console."""
        write_json(summary, json_to)
        if self._result is not None:
            self._write_files(self._result, summary, output)
        self._console.print(rounds_table(summary), times_table(summary))
        for line in dropped_lines(summary):
            self._say(*line)
        if self._result is None:
            self._say_advice()
            return
        self._console.print(coefficients_table(summary))
        for line in closing_lines(summary):
            self._say(*line)
        self._say("files", f"{output / RESULT} · {output / PICTURE}")
        self._say("next", 'dca swarm --help · README: "Embed a client"')

    def _say_advice(self) -> None:
        """What to try after an abort, where the numbers say it."""
        options = self._options
        room = options.tolerated - options.colluders
        if options.dropped > room:
            enough = options.dropped + options.colluders
            self._say("next", f"raise --tolerate to {enough} or lower --drop to {room}")

    def _write_files(self, result: RegressionResult, summary: dict[str, Any], output: Path) -> None:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make folder {output}: {error.strerror}") from None
        write_json(summary, str(output / RESULT))
        with whole_file(output / PICTURE) as place:
            plot_coefficients(result, self._reference, place, caption=_caption(summary))


def _caption(summary: dict[str, Any]) -> str:
    if not summary["private"]:
        return f"not private: {'; '.join(summary['not_private_because'])}"
    return f"epsilon {summary['epsilon']:g}, delta {summary['delta']:g}, {summary['contributors']} contributors"
