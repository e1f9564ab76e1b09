"""`dca swarm`: start a broker, Compute nodes, clients and a trainer, and learn a regression from them."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from dca_proto.core.errors import RoundAborted, UsageError
from dca_proto.core.shares import ENCODINGS, SEED
from dca_proto.device import complete
from dca_proto.logs import configure_logs
from emulator.job import Budget, check_counts, regression_sensitivity
from emulator.summary import failed, learned, summarise
from emulator.swarm import Swarm, SwarmOptions
from emulator.view import LiveView, closing_lines, coefficients_table, dropped_lines, rounds_table, times_table
from inference.algorithm2 import regression_with_projection
from inference.baselines import nonprivate_regression
from inference.bounds import Interval, parse_bounds, read_bounds
from inference.datasets import Problem, from_csv, load, split, stream
from inference.regression import RegressionResult

TEST_FRACTION = 0.225
TERMINATED = 143
_BROKERS = ("auto", "embedded", "mosquitto")

EXAMPLES = """Examples:

  dca swarm                                   442 patients' diabetes data, everything by default

  dca swarm --tolerate 40 --drop 40           as many drop as are tolerated

  dca swarm --csv houses.csv --target price --bounds "rooms=0:10,area=0:400,price=0:1e6" --epsilon 4

  dca swarm --broker mosquitto --computes 5 --share-encoding vector --json result.json
"""


def swarm(
    dataset: Annotated[str, typer.Option(help="A built-in data set.")] = "diabetes",
    csv: Annotated[Path | None, typer.Option(help="Your own data: numbers with a header line.")] = None,
    target: Annotated[str | None, typer.Option(help="The CSV's column to predict.")] = None,
    bounds: Annotated[
        str | None, typer.Option(help="Public bounds of the CSV's columns: COL=LO:HI,... or a TOML file.")
    ] = None,
    bounds_from_data: Annotated[
        bool, typer.Option("--bounds-from-data", help="Read bounds from the data. For trial only: not private.")
    ] = False,
    features: Annotated[str | None, typer.Option(help="Columns to predict from, A,B,C; by default all others.")] = None,
    clients: Annotated[int | None, typer.Option(help="N; by default one for each training row.")] = None,
    computes: Annotated[int, typer.Option(help="M, the number of Compute nodes.")] = 3,
    epsilon: Annotated[float, typer.Option(help="Privacy budget over all rounds.")] = 2.0,
    delta: Annotated[float, typer.Option(help="Its delta.")] = 1e-5,
    tolerate: Annotated[int | None, typer.Option(help="T, by default N / 10.")] = None,
    colluders: Annotated[int, typer.Option(help="c, how many of the T are reserved for colluders.")] = 0,
    drop: Annotated[int | None, typer.Option(help="K clients that vanish in each round, by default T / 2.")] = None,
    share_encoding: Annotated[str, typer.Option(help="seed or vector.")] = SEED,
    broker: Annotated[str, typer.Option(help="auto, embedded, mosquitto, or mqtt://host:port.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of data splits, drops and waiting times; never of keys or noise.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for result.json and coefficients.png.")] = Path("run"),
    json_to: Annotated[
        str | None, typer.Option("--json", help="Also write the result to a file, or - for stdout.")
    ] = None,
) -> int:
    """Learn a Bayesian regression from a swarm of clients, each with its own rows and its own connection."""
    configure_logs(level=logging.WARNING)
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
    )
    _check(options, number, len(train.y))
    console = Console(stderr=json_to == "-")
    run = _Run(options, train, test, deal(train.rows, number), console)
    summary = run.play()
    if summary is None:
        return TERMINATED
    _write(summary, run.result, train, output, json_to, console)
    if not summary["ok"]:
        raise RoundAborted(
            summary["error"], contributors=summary["contributors_found"], needed=summary["contributors_needed"]
        )
    return 0


def _problem(
    dataset: str, csv: Path | None, target: str | None, bounds: str | None, from_data: bool, features: str | None
) -> Problem:
    chosen = None if features is None else [name.strip() for name in features.split(",")]
    if csv is None:
        if target or bounds or from_data:
            raise UsageError("--target, --bounds and --bounds-from-data go with --csv; built-in data have their own")
        return load(dataset, chosen)
    if target is None:
        raise UsageError("--csv needs --target COLUMN, the column to predict")
    if bounds is not None and from_data:
        raise UsageError("--bounds and --bounds-from-data exclude each other; keep one")
    return from_csv(csv, target, _bounds(bounds), chosen, trial_bounds=from_data)


def _bounds(text: str | None) -> dict[str, Interval]:
    if text is None:
        return {}
    return parse_bounds(text) if "=" in text else read_bounds(Path(text))


def _check(options: SwarmOptions, clients: int, rows: int) -> None:
    """Everything that can be refused before anything is started."""
    if not 1 <= clients <= rows:
        raise UsageError(f"--clients {clients}: the {rows} training rows can be dealt to 1 to {rows} clients")
    check_counts(clients, options.computes, options.tolerated, options.colluders, options.dropped)
    _ = options.budget.mu
    if options.encoding not in ENCODINGS:
        raise UsageError(f"--share-encoding {options.encoding}: expected {' or '.join(ENCODINGS)}")
    if options.broker not in _BROKERS and "://" not in options.broker:
        raise UsageError(f"--broker {options.broker}: expected {', '.join(_BROKERS)} or mqtt://host:port")


def deal(rows: NDArray[np.float64], clients: int) -> list[NDArray[np.float64]]:
    """Deal rows to clients as evenly as possible; each contributes the mean of its own."""
    return [rows[index::clients] for index in range(clients)]


class _Run:
    """One run of the job, with its progress on a console."""

    def __init__(
        self,
        options: SwarmOptions,
        train: Problem,
        test: Problem,
        rows: list[NDArray[np.float64]],
        console: Console,
    ) -> None:
        self.result: RegressionResult | None = None
        self._options = options
        self._train = train
        self._test = test
        self._rows = rows
        self._console = console

    def play(self) -> dict[str, Any] | None:
        """Run the job and say how it went, None if SIGTERM ended it; an abort is an outcome, all else is raised."""
        with tempfile.TemporaryDirectory(prefix="dca-swarm-") as directory:
            return complete(self._play(Path(directory)))

    async def _play(self, directory: Path) -> dict[str, Any]:
        options, schema, began_s = self._options, self._train.schema, time.monotonic()
        self._say_plan()
        with LiveView(self._console, len(self._rows)) as view:
            async with Swarm(
                options, self._rows, schema.columns, directory, on_connect=view.connected, on_change=view.changed
            ) as live:
                outcome = await self._learn(live)
                private = schema.private
                summary = summarise(live, options, len(self._rows), private, outcome)
        summary["wall_s"] = time.monotonic() - began_s
        return summary

    async def _learn(self, live: Swarm) -> dict[str, Any]:
        schema = self._train.schema
        sensitivity = regression_sensitivity(schema.features, schema.target)
        job = regression_with_projection(schema, sensitivity=sensitivity, rng=stream(self._options.seed, "auxiliary"))
        try:
            self.result = await live.learn(job)
        except RoundAborted as error:
            return failed(error.reason, error.contributors, error.needed)
        return learned(self.result, self._train, self._test)

    def _say_plan(self) -> None:
        options, clients = self._options, len(self._rows)
        say: Callable[[str], None] = lambda line: self._console.print(line, highlight=False, soft_wrap=True)  # noqa: E731
        say(
            f"federation {clients} clients, {options.computes} Compute nodes, T = {options.tolerated} "
            f"(c = {options.colluders} reserved for colluders), K = {options.dropped} drop in each round"
        )
        features = ", ".join(self._train.schema.features)
        say(f"model      {self._train.schema.target} on {features}; {len(self._test.y)} rows held out")
        if self._train.schema.private:
            budget = options.budget
            say(
                f"plan       epsilon {budget.epsilon:g}, delta {budget.delta:g} over 2 rounds: "
                "10 % of the budget on scales, 90 % on the regression"
            )
        else:
            say("plan       a trial: bounds are read from the data, so this is not private")


def _write(
    summary: dict[str, Any],
    result: RegressionResult | None,
    train: Problem,
    output: Path,
    json_to: str | None,
    console: Console,
) -> None:
    """Tables on the console, files in the folder, and the object for programs."""
    console.print(rounds_table(summary), times_table(summary))
    for line in dropped_lines(summary):
        console.print(line, highlight=False, soft_wrap=True)
    text = json.dumps(summary, indent=2, allow_nan=False)
    if json_to == "-":
        sys.stdout.write(text + "\n")
    elif json_to is not None:
        Path(json_to).write_text(text + "\n", encoding="utf-8")
    if result is None:
        return
    from inference.report import plot_coefficients  # matplotlib takes a second, and an abort needs no picture

    output.mkdir(parents=True, exist_ok=True)
    (output / "result.json").write_text(text + "\n", encoding="utf-8")
    picture = plot_coefficients(
        result, nonprivate_regression(train), output / "coefficients.png", caption=_caption(summary)
    )
    console.print(coefficients_table(summary))
    for line in closing_lines(summary):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"files      {output / 'result.json'}  {picture}", highlight=False, soft_wrap=True)
    console.print('next       dca swarm --help · README: "Embed a client"', highlight=False)


def _caption(summary: dict[str, Any]) -> str:
    if not summary["private"]:
        return "not private: bounds read from the data"
    return f"epsilon {summary['epsilon']:g}, delta {summary['delta']:g}, {summary['contributors']} contributors"
