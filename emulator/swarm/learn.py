"""A learning run of a swarm: its data and options are checked, it runs, and its result is printed."""

from __future__ import annotations

import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from dca_proto.aggregate import LdpReportRequest, NodeReleaseRequest
from dca_proto.cli.job_run import JobRun, claimed_by, show_run, written
from dca_proto.cli.output import STDOUT, require_json_target, require_matplotlib, require_writable, say, write_json
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import StorageError, UsageError
from dca_proto.jobs.runner import RETRIES
from dca_proto.privacy.rounding import at_least, claim_words
from dca_proto.runtime.device import complete
from dca_proto.statistics.categories import parse_categories
from emulator.counts import check_counts, check_nodes, check_reporters
from emulator.results import Run
from emulator.swarm.live import Failure, Played, Swarm, play
from emulator.swarm.options import SwarmOptions
from emulator.swarm.progress import Progress, broker_words, who_words
from emulator.swarm.summary import TERMINATED, doubts, end_of, summarise
from inference.bounds import MissingBoundsError, given_bounds
from inference.datasets import from_csv, load
from inference.datasets.csv_file import MISSING, REFUSE
from inference.jobs.base import LearningJob, plan_words, uses
from inference.jobs.summary import Summary
from inference.problem import Problem

_DRAWING = "matplotlib.backends.backend_agg"  # imported while rounds wait for their clients
RESULT, PICTURE = "result.json", "coefficients.png"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be learned, from whom, and where the answer goes.

    Attributes:
        job, settings: by whom. train, test: rows for the clients, and those that are held out.
        clients: N, among whom the training rows are dealt; J, where they are data nodes. Where clients report, each
            has one of the rows.
        reference: whether the same model without privacy is shown beside the result.
        output: the folder of the result's files. json_to: a further file, or - for stdout.
    """

    job: LearningJob
    settings: Any
    train: Problem
    test: Problem | None
    clients: int
    output: Path
    reference: bool = True
    json_to: str | None = None

    @property
    def reports(self) -> str:
        """By which local mechanism clients report; "" where the job learns from sums."""
        return self.job.reports(self.settings)

    @property
    def batch(self) -> int:
        """B clients in the smallest round; 0 where all are asked in all rounds."""
        return self.job.batch(self.settings, self.clients)


def learn(spec: JobSpec, options: SwarmOptions) -> int:
    """Learn, show and write what was learned; the exit code.

    Raises:
        RoundAborted: a round was aborted; what there is is shown all the same.
        UsageError, DataError, TransportError: it cannot be learned like that; before anything is started.
        Exception: what the job raised that had its rounds and could not finish; what was released is written.
    """
    run = _Learning(spec, options, Console(stderr=spec.json_to == STDOUT))
    run.check()
    done = run.play()
    if done is None:
        return TERMINATED
    run.show(done)
    if run.unfinished is not None:
        raise run.unfinished
    return end_of(done)


def check_outputs(output: Path, json_to: str | None) -> None:
    """Refuse, before the work, what could not be written after it."""
    require_matplotlib()
    require_json_target(json_to)
    for name in (RESULT, PICTURE):
        require_writable(output / name, make_folders=True)


class _Learning:
    """One run of a job, shown on a console.

    Attributes:
        unfinished: why there is no result, although the rounds gave what it takes.

    Raises:
        DataError: there are too few rows to learn from.
    """

    def __init__(self, spec: JobSpec, options: SwarmOptions, console: Console) -> None:
        self._spec, self._options, self._console = spec, options, console
        self._rows = assign(spec.train.rows, spec.clients)
        self._doubts = doubts(spec.train.schema.read_columns, options.mechanism)
        self._run = JobRun(
            spec.job,
            spec.settings,
            spec.train.schema,
            options.terms(tuple(place.to_bytes(ID_BYTES, "big") for place in range(options.computes))),
            kind=options.kind,
            seed=options.seed,
            test=spec.test,
            on_iteration=lambda one: self._progress.iterated(one),
        )
        self._learned: Summary = {"test": None}
        self.unfinished: Exception | None = None

    # --- before it starts -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that can be refused before anything is started."""
        spec, options = self._spec, self._options
        spec.job.check(spec.train.schema, spec.settings)
        if options.kind is NodeReleaseRequest:
            least = spec.job.rows_least(spec.train.schema, spec.settings)
            check_nodes(spec.clients, len(spec.train.y), options.dropped, least)
        elif options.kind is LdpReportRequest:
            check_reporters(spec.clients, options.dropped)
        else:
            rows = len(spec.train.y)
            if not 1 <= spec.clients <= rows:
                raise UsageError(
                    f"--clients {spec.clients}: expected 1 to {rows}, the number of training rows; "
                    "with --dimension D, any number of clients can hold rounds of a synthetic sum"
                )
            for clients, tolerated in ((spec.clients, options.tolerated), options.smallest):
                check_counts(clients, options.computes, tolerated, options.colluders, options.dropped)
        options.check("lower --data-nodes" if options.kind is NodeReleaseRequest else "lower --clients")
        told = f"--epsilon {at_least(options.budget.epsilon)} --delta {at_least(options.delta)}"
        self._stages, _ = self._run.plan(told, options.mechanism)
        if options.reports:  # how many are asked at a time follows from the plan
            self._options = msgspec.structs.replace(options, batch=self._stages[0].batch)
        reference = spec.job.reference(spec.train.complete, spec.settings)  # refuses rows that cannot be learned from
        self._reference = reference if spec.reference else None

    # --- playing --------------------------------------------------------------------------------------------------

    def play(self) -> Run | None:
        """Run the job and say how it went, None if SIGTERM ended it; an abort is an outcome, all else is raised."""
        spec, options, began_s = self._spec, self._options, time.monotonic()
        self._say_plan()
        self._progress = Progress(
            self._console,
            options.batch or spec.clients if spec.job.iterative else spec.clients,
            "reported" if options.kind is LdpReportRequest else "data nodes released",
            iterative=spec.job.iterative,
        )
        retries = RETRIES if options.dropped <= options.room else 0  # where more drop, all would end alike
        job, columns = self._run.make(), spec.train.schema.columns
        with self._progress:
            done = complete(play(options, self._rows, columns, job, self._progress, self._started, retries))
        if done is None:
            return None
        if done.failure is None:
            done = self._finish(done)
        about = {"job": spec.job.name, "settings": asdict(spec.settings)}
        return summarise(done, self._doubts, wall_s=time.monotonic() - began_s, **about)

    def _started(self, swarm: Swarm) -> None:
        """The broker runs: time to say so, and to import what is needed once the rounds are over."""
        say(self._console, "broker", broker_words(swarm))
        Thread(target=import_module, args=(_DRAWING,), daemon=True).start()

    def _finish(self, done: Played) -> Played:
        """Learn of what the rounds gave, sampled first where it is to be; or note why nothing could be."""
        try:
            result = self._run.finish(done.result, self._console)
            self._learned = self._run.summarise(result, self._reference, self._spec.train.complete)
        except Exception as error:  # raised once what was released is written
            self.unfinished = error
            return done._replace(failure=Failure(str(error) or type(error).__name__))
        return done

    # --- what is shown --------------------------------------------------------------------------------------------

    def _say_plan(self) -> None:
        spec, options = self._spec, self._options
        say(self._console, "federation", who_words(options, [len(rows) for rows in self._rows], uses(self._stages)))
        held_out = "" if spec.test is None else f"; {len(spec.test.y)} rows held out"
        say(self._console, "model", f"{spec.job.model(spec.train.schema, spec.settings)}{held_out}")
        if lacking := len(spec.train.y) - len(spec.train.complete.y):
            of = f"{lacking} of {len(spec.train.y)} rows lack a value"
            say(self._console, "missing", f"{of}; each counts as zero in every sum, as in a federation")
        plan = f"{claim_words(options.budget.epsilon, options.delta)} {plan_words(self._stages)}"
        say(self._console, "plan", f"a trial that is not private: {'; '.join(self._doubts)}" if self._doubts else plan)

    def show(self, run: Run) -> None:
        """Files in the folder and the object for programs, then tables on the console."""
        summary, output = claimed_by(run, self._learned), self._spec.output
        plain = written(run, summary)
        write_json(plain, self._spec.json_to)
        if run.ok or self.unfinished is not None:
            try:
                output.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"cannot make folder {output}: {error.strerror}") from None
            write_json(plain, str(output / RESULT))
            if run.ok:
                self._run.draw(summary, output / PICTURE, run)
        show_run(self._console, run, summary)
        if not run.ok:
            self._say_advice(run)
            return
        say(self._console, "files", f"{output / RESULT} · {output / PICTURE}")
        say(self._console, "next", 'dca swarm --help · README: "Embed a client"')

    def _say_advice(self, run: Run) -> None:
        """What to try after an abort, where the numbers say it."""
        options, clients = self._options, self._spec.clients
        advice = ""
        if options.dropped > options.room:
            batch = options.batch or clients  # of which as large a part may drop as of all
            enough = options.colluders + (options.dropped - 1) * clients // batch + 1
            advice = f"raise --tolerate to {enough} or lower --drop to {options.room}"
        elif self.unfinished is not None:
            kept = f"what was released is in {self._spec.output / RESULT}"
            advice = f"{kept}; run again with other settings, --set KEY=VALUE"
        elif run.contributors_needed is not None:
            advice = f"this machine is too slow or too busy for {clients} clients; lower --clients"
        elif options.kind is NodeReleaseRequest:
            advice = "no release came in time: lower --data-nodes or --drop"
        elif options.kind is LdpReportRequest:
            advice = "no report came in time: lower --clients or --drop"
        if advice:
            say(self._console, "next", advice)


TEST_FRACTION = 0.225
_BOUNDS_ADVICE = (
    "give --bounds COL=LO:HI,... or a TOML file, from what is known of the measurement, or --categories COL=A,B,C of "
    "texts (or, for a trial that is not private, --bounds-from-data)"
)


class DataOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which data, as the options say.

    Attributes:
        dataset: name of a known one. data_folder: where its files are.
        csv, target, bounds: a table of one's own, its column to predict, its public bounds.
        categories: of its text columns. missing: what becomes of rows that lack a value.
        bounds_from_data: read them from the data instead; then nothing is private.
        features: columns to predict from, or None for all others.
    """

    dataset: str | None = None
    data_folder: Path | None = None
    csv: Path | None = None
    target: str | None = None
    bounds: str | None = None
    bounds_from_data: bool = False
    categories: list[str] | None = None
    missing: str | None = None
    features: list[str] | None = None


def problem_of(
    options: DataOptions, *, default: str = "diabetes", alone: bool = False, needed: tuple[str, ...] = ()
) -> Problem:
    """The problem that the options name.

    Args:
        default: the data set where they name none. needed: a table's columns that are read beside such a target.
        alone: whether a table's target is described and not predicted, so that no other column of it is needed.

    Raises:
        UsageError: the options exclude each other.
        DataError: the data cannot be had or used.
    """
    if options.csv is None:
        named = {"target": options.target, "bounds": options.bounds, "bounds-from-data": options.bounds_from_data,
                 "categories": options.categories, "missing": options.missing}  # fmt: skip
        if own := [f"--{name}" for name, value in named.items() if value]:
            raise UsageError(f"{', '.join(own)}: only with --csv; built-in data have their own")
        return load(options.dataset or default, options.features, folder=options.data_folder)
    if options.dataset is not None or options.data_folder is not None:
        other = "--dataset" if options.dataset is not None else "--data-folder"
        raise UsageError(f"--csv and {other} exclude each other; keep one")
    if options.target is None:
        raise UsageError("--csv needs --target COLUMN, the column to predict")
    if options.bounds is not None and options.bounds_from_data:
        raise UsageError("--bounds and --bounds-from-data exclude each other; keep one")
    if options.missing not in (None, *MISSING):
        raise UsageError(f"--missing {options.missing}: expected one of {', '.join(MISSING)}")
    given = {} if options.bounds is None else given_bounds(options.bounds)
    features = list(needed) if alone and options.features is None else options.features
    try:
        return from_csv(
            options.csv,
            options.target,
            given,
            features,
            trial_bounds=options.bounds_from_data,
            alone=alone,
            categories=parse_categories(options.categories or ()),
            missing=options.missing or REFUSE,
        )
    except MissingBoundsError as error:
        raise MissingBoundsError(error.columns, _BOUNDS_ADVICE) from None


def first_rows(train: Problem, clients: int) -> Problem:
    """As many rows as clients, each of whom reports one. Raises `UsageError` where there are fewer."""
    rows = len(train.y)
    if not 1 <= clients <= rows:
        raise UsageError(f"--clients {clients}: each reports one of the {rows} training rows, so give 1 to {rows}")
    return train.take(np.arange(clients))


def assign(rows: NDArray[np.float64], clients: int) -> list[NDArray[np.float64]]:
    """Deal rows to clients as evenly as possible; each contributes the mean of its own, a data node the sum."""
    return [rows[index::clients] for index in range(clients)]
