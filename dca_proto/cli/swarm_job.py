"""Runs a learning job in a swarm: checks data and options, runs the rounds, prints and writes the result."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from dca_proto.cli.job_run import JobRun, claimed_by, show_run, written
from dca_proto.cli.output import keep_earlier, require_matplotlib, result_console, say
from dca_proto.cli.swarm_board import Both, SwarmBoard, shown
from dca_proto.cli.swarm_progress import SwarmProgress, broker_words, who_words
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import StorageError, UsageError
from dca_proto.jobs.runner import RETRIES
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.privacy.rounding import at_least, claim_words
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease
from dca_proto.results.run import Run
from dca_proto.runtime.files import require_writable, write_json
from dca_proto.runtime.process import TERMINATED, complete
from dca_proto.runtime.run_ledger import RunLedger
from dca_proto.statistics.categories import categories_option, parse_categories
from dca_proto.wording import counted
from emulator.counts import check_dropped, check_nodes
from emulator.swarm.live import Swarm, SwarmResult, run_swarm
from emulator.swarm.options import SwarmOptions
from emulator.swarm.summary import exit_code, not_private_because, summarise
from inference.bounds import MissingBoundsError, as_interval, given_bounds
from inference.datasets import from_csv, load
from inference.datasets.csv_file import MISSING, REFUSE, texts_in
from inference.jobs.base import LearningJob, as_posterior, plan_words, uses
from inference.jobs.summary import Summary
from inference.problem import Problem, assign

_RUNS = 5  # of which the output states what they cost together
_DRAWING = "matplotlib.backends.backend_agg"  # imported while rounds wait for their clients
RESULT, PICTURE, ROWS = "result.json", "coefficients.png", "synthetic.csv"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A job to run, its data, and where its result goes.

    Attributes:
        job, settings: the job. train, test: the clients' rows, and the held-out rows.
        clients: N clients, or J data nodes, that share the training rows. If clients send LDP reports, each has one.
        sites: the places of each data node's rows, by its name, if a column names them; empty to deal rows out evenly.
        is_own: whether the rows are the user's own, on which other runs may have spent.
        reference: whether to show the same model without privacy beside the result. Otherwise nothing is computed from
            the rows but what the clients send.
        output: the folder of the result's files. json_to: a further file, or - for stdout.
        dashboard: whether to serve a page on the rounds, until Ctrl-C.
        ledger: what adds up runs on the same rows; None if nothing does.
    """

    job: LearningJob
    settings: Any
    train: Problem
    test: Problem | None
    clients: int
    output: Path
    sites: dict[str, NDArray[np.intp]] = {}
    is_own: bool = False
    reference: bool = True
    json_to: str | None = None
    dashboard: bool = False
    ledger: RunLedger | None = None

    @property
    def reports(self) -> str:
        """The local mechanism of the clients' reports; "" if the job learns from sums."""
        return self.job.mechanism(self.settings)

    @property
    def scored_on(self) -> Problem | None:
        """The held-out rows that have all of their values; None if no row does."""
        complete = None if self.test is None else self.test.complete
        return complete if complete is not None and len(complete.y) else None

    @property
    def batch(self) -> int:
        """B, the number of clients in the smallest round; 0 if every round asks all clients."""
        return self.job.batch(self.settings)


def learn(spec: JobSpec, options: SwarmOptions) -> int:
    """Run the job, print and write its result, and return the exit code.

    Raises:
        RoundAborted: a round was aborted; the rounds so far are printed before.
        UsageError, DataError, TransportError: the job cannot run with these options or data; raised before anything
            is started.
        Exception: the rounds succeeded, but the job could not finish; the released sums are written before.
    """
    learning = _Learning(spec, options, result_console(spec.json_to))
    learning.check()
    with learning.page():
        run = learning.run()
        if run is None:
            return TERMINATED
        learning.show(run)
    if learning.unfinished is not None:
        raise learning.unfinished
    return exit_code(run)


def check_outputs(output: Path, json_to: str | None) -> None:
    """Refuse outputs that could not be written, before the work starts."""
    require_matplotlib()
    result_console(json_to)
    for name in (RESULT, PICTURE):
        require_writable(output / name, make_folders=True)


class _Learning:
    """One run of a job, with its console.

    Attributes:
        unfinished: the error of a job that had all its rounds and could not finish.

    Raises:
        DataError: there are too few rows for the fit without privacy.
    """

    def __init__(self, spec: JobSpec, options: SwarmOptions, console: Console) -> None:
        self._spec, self._options, self._console = spec, options, console
        rows = spec.train.rows
        self._rows = [rows[places] for places in spec.sites.values()] or assign(rows, spec.clients)
        self._not_private = not_private_because(spec.train.schema.read_columns, options.mechanism)
        self._run = JobRun(
            spec.job,
            spec.settings,
            spec.train.schema,
            options.terms(tuple(place.to_bytes(ID_BYTES, "big") for place in range(options.computes))),
            kind=options.kind,
            seed=options.seed,
            test=spec.scored_on,
            on_iteration=lambda iteration: self._progress.iterated(iteration),
        )
        self._board = (
            SwarmBoard(options.batch or spec.clients, f"A swarm of {counted(spec.clients, 'client')}: {spec.job.name}")
            if spec.dashboard
            else None
        )
        self._learned: Summary = {"test": None}
        self._rows_made: Any = None
        self.unfinished: Exception | None = None

    # --- before it starts -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse unusable options or data before anything is started."""
        spec, options = self._spec, self._options
        spec.job.check(spec.train.schema, spec.settings)
        if options.kind is NodeRelease:
            least = spec.job.rows_least(spec.train.schema, spec.settings)
            check_nodes(spec.clients, len(spec.train.y), options.dropped, least)
        elif options.kind is LdpReport:
            check_dropped(options.dropped, spec.clients, answer="report")
        else:
            rows = len(spec.train.y)
            if not 1 <= spec.clients <= rows:
                raise UsageError(
                    f"--clients {spec.clients}: expected 1 to {rows}, the number of training rows; "
                    "`dca fleet` runs rounds of a synthetic sum with any number of clients"
                )
            options.check_counts()
        options.check("lower --data-nodes" if options.kind is NodeRelease else "lower --clients")
        budget = f"--epsilon {at_least(options.epsilon)} --delta {at_least(options.spent_delta)}"
        self._stages, _ = self._run.plan(budget, options.mechanism)
        if options.reports:  # the plan decides how many clients a step asks
            self._options = msgspec.structs.replace(options, batch=self._stages[0].batch)
        if spec.ledger is not None:
            spec.ledger.check(self._cost, self._not_private)
        self._complete, self._reference = None, None
        if spec.reference:
            self._complete = spec.train.complete
            known = spec.train if spec.job.whole else self._complete
            self._reference = spec.job.reference(known, spec.settings)  # refuses rows that teach nothing

    @property
    def _cost(self) -> PrivacyCost:
        """What the run costs each participant, at most."""
        is_pure = self._options.reports in PURE_MECHANISMS
        return PrivacyCost.of_pure(self._options.epsilon) if is_pure else self._run.terms.budget.cost

    def page(self) -> AbstractContextManager[None]:
        """Return what serves the dashboard, if it is asked for."""
        return shown(self._board, self._console)

    # --- rounds ---------------------------------------------------------------------------------------------------

    def run(self) -> Run | None:
        """Run the job and return its record, also of an aborted round; None if SIGTERM ended it."""
        spec, options, began_s = self._spec, self._options, time.monotonic()
        self._say_plan()
        self._progress = SwarmProgress(
            self._console,
            options.batch or spec.clients if spec.job.iterative else spec.clients,
            "reported" if options.kind is LdpReport else "data nodes released",
            iterative=spec.job.iterative,
        )
        retries = RETRIES if options.dropped <= options.room else 0  # if more drop, every attempt would be aborted
        job, columns = self._run.make(), spec.train.schema.asked
        if spec.ledger is not None:
            spec.ledger.spend(spec.job.name, self._cost)
        with self._progress:
            watcher = self._progress if self._board is None else Both(self._progress, self._board)
            result = complete(run_swarm(options, self._rows, columns, job, watcher, self._started, retries))
        if result is None:
            return None
        if result.failure is None:
            result = self._finish(result)
        about = {"job": spec.job.name, "settings": asdict(spec.settings)}
        return summarise(result, self._not_private, wall_s=time.monotonic() - began_s, **about)

    def _started(self, swarm: Swarm) -> None:
        """Describe the broker, and import what is needed after the rounds while they wait."""
        say(self._console, "broker", broker_words(swarm))
        if self._board is not None:
            self._board.started(swarm)
        Thread(target=import_module, args=(_DRAWING,), daemon=True).start()

    def _finish(self, done: SwarmResult) -> SwarmResult:
        """Learn from the rounds' results; if that fails, keep the error."""
        try:
            names = list(self._spec.sites)
            sites = {client: names[number] for client, number in done.swarm.numbers.items()} if names else {}
            result = self._run.finish(done.result, self._console, sites)
            self._learned = self._run.summarise(result, self._reference, self._complete)
            self._rows_made = as_posterior(result).synthetic
        except Exception as error:  # raised after the released sums are written
            self.unfinished = error
            return done._replace(failure=str(error) or type(error).__name__)
        return done

    # --- output ---------------------------------------------------------------------------------------------------

    def _say_plan(self) -> None:
        spec, options = self._spec, self._options
        say(self._console, "federation", who_words(options, [len(rows) for rows in self._rows], uses(self._stages)))
        if spec.train.note:
            say(self._console, "data", spec.train.note)
        held_out = "" if spec.test is None else f"; {len(spec.test.y):,} rows held out"
        say(self._console, "model", f"{spec.job.model(spec.train.schema, spec.settings)}{held_out}")
        if self._complete is not None and (lacking := len(spec.train.y) - len(self._complete.y)):
            of = f"{lacking:,} of {len(spec.train.y):,} rows lack a value (a count that ε does not cover)"
            how = "counts for the columns that it has" if spec.job.whole else "counts as zero in every sum"
            say(self._console, "missing", f"{of}; each {how}, as in a federation")
        plan = f"{claim_words(options.epsilon, options.spent_delta)} {plan_words(self._stages)}"
        if self._not_private:
            plan = f"a trial that is not private: {'; '.join(self._not_private)}"
        say(self._console, "plan", plan)

    def show(self, run: Run) -> None:
        """Write the files, then print the tables."""
        summary, output = claimed_by(run, self._learned), self._spec.output
        views = (output / PICTURE, (output / RESULT).with_suffix(".html"), output / ROWS)
        plain = written(run, summary)
        folder = (output / RESULT, *views) if run.ok or self.unfinished is not None else ()
        keep_earlier(self._console, self._spec.json_to, *folder)
        write_json(plain, self._spec.json_to)
        if folder:
            try:
                output.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"cannot make folder {output}: {error.strerror}") from None
            write_json(plain, str(output / RESULT))
            for view in views:  # of the earlier result; it is kept
                view.unlink(missing_ok=True)
        show_run(self._console, run, summary)
        if not run.ok:
            self._say_advice(run)
            return
        self._say_hints(run)
        files = [output / RESULT]
        if self._run.draw(self._console, summary, output / PICTURE, run):
            files.append(output / PICTURE)
        if self._rows_made is not None:
            self._rows_made.write(output / ROWS)
            files.append(output / ROWS)
        say(self._console, "files", " · ".join(map(str, files)))
        say(self._console, "next", 'dca swarm --help · README: "Embed a client"')

    def _say_hints(self, run: Run) -> None:
        """Print why fewer rows count than the table has, and what further runs on the owner's own rows cost."""
        options = self._options
        if options.dropped and not self._spec.job.scored:
            who = counted(options.dropped, "data node" if options.kind is NodeRelease else "client")
            say(self._console, "drop", f"{who} dropped out on purpose and count nowhere; --drop 0 keeps all")
        if self._spec.ledger is not None:
            say(self._console, "ledger", self._spec.ledger.words())
        elif self._spec.is_own and run.private:
            cost, delta = self._cost, options.spent_delta
            claim = claim_words(total([cost] * _RUNS).epsilon(delta), delta)
            kept = "without --ledger FILE, add up yourself what all runs on these rows cost"
            one = f"pure:{at_least(cost.pure)}" if cost.is_pure else f"gaussian:{at_least(self._run.terms.budget.mu)}"
            say(
                self._console,
                "adds up",
                f"{kept}: {_RUNS} such runs would cost {claim} together (dca account --also {one})",
            )

    def _say_advice(self, run: Run) -> None:
        """Print what to try after an abort, if the numbers suggest it."""
        options, clients = self._options, self._spec.clients
        advice = ""
        if options.dropped > options.room:
            batch = options.batch or clients  # the same part of it may drop as of all
            enough = options.colluders + (options.dropped - 1) * clients // batch + 1
            advice = f"raise --tolerate to {enough} or lower --drop to {options.room}"
        elif self.unfinished is not None:
            advice = f"the released sums are in {self._spec.output / RESULT}; run again with other --set KEY=VALUE"
        elif run.aborted is not None and run.aborted.unproven_clients:
            advice = "find out why the proofs failed, or raise --tolerate: it is the room for clients that fail"
        elif run.aborted is not None and run.aborted.n_min is not None:
            advice = f"this machine is too slow or too busy for {clients} clients; lower --clients"
        elif options.kind is NodeRelease:
            advice = "no release came in time: lower --data-nodes or --drop"
        elif options.kind is LdpReport:
            advice = "no report came in time: lower --clients or --drop"
        if advice:
            say(self._console, "next", advice)


_BOUNDS_ADVICE = (
    "give --bounds COL=LO:HI,... or a TOML file, from what is known of the measurement; for text columns give "
    "--categories COL=A,B,C (or, for a trial that is not private, --bounds-from-data)"
)


_READ = "alphabetical, read from this file, so not public: state them from the study's plan, the reference first"


class DataOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that select the data.

    Attributes:
        dataset: name of a built-in data set. data_folder: where its files are.
        csv, target, bounds: the user's own table, its column to predict, its public bounds.
        categories: of its text columns. missing: how to treat rows that lack a value.
        delimiter: the sign between its cells; "" to detect it.
        bounds_from_data: read the bounds from the data; then nothing is private.
        features: columns to predict from, or None for all others.
    """

    dataset: str | None = None
    data_folder: Path | None = None
    csv: Path | None = None
    target: str | None = None
    bounds: str | None = None
    bounds_from_data: bool = False
    categories: list[str] | None = None
    delimiter: str = ""
    missing: str | None = None
    features: list[str] | None = None


def problem_of(
    options: DataOptions,
    *,
    default: str = "diabetes",
    alone: bool = False,
    needed: tuple[str, ...] = (),
    whole: bool = False,
    column: str | None = None,
) -> Problem:
    """Load the problem that the options name.

    Args:
        default: the data set if they name none.
        alone: the job describes the target and predicts nothing, so that a table needs no features.
        needed: columns of a table that such a job reads besides the target.
        whole: the job describes all columns with bounds, so that a table needs no target.
        column: which a job describes, if its settings name one: the target of a table, unless one is given.

    Raises:
        UsageError: the options exclude each other.
        DataError: the data cannot be loaded or used.
    """
    if options.csv is None:
        named = {"target": options.target, "bounds": options.bounds, "bounds-from-data": options.bounds_from_data,
                 "categories": options.categories, "delimiter": options.delimiter,
                 "missing": options.missing}  # fmt: skip
        if own := [f"--{name}" for name, value in named.items() if value]:
            raise UsageError(f"{', '.join(own)}: only with --csv; built-in data have their own")
        return load(options.dataset or default, options.features, folder=options.data_folder)
    if options.dataset is not None or options.data_folder is not None:
        other = "--dataset" if options.dataset is not None else "--data-folder"
        raise UsageError(f"--csv and {other} exclude each other; keep one")
    target = options.target or column or ""
    if not target and not whole:
        raise UsageError(f"--csv needs --target COLUMN, the column to {'describe' if alone else 'predict'}")
    if options.bounds is not None and options.bounds_from_data:
        raise UsageError("--bounds and --bounds-from-data exclude each other; keep one")
    if options.missing not in (None, *MISSING):
        raise UsageError(f"--missing {options.missing}: expected one of {', '.join(MISSING)}")
    given = {} if options.bounds is None else given_bounds(options.bounds)
    given |= {name: as_interval(name, labels) for name, labels in parse_categories(options.categories or ()).items()}
    needed = tuple(name for name in needed if name != target)
    features = list(needed) if alone and options.features is None else options.features
    if whole:
        features, target = _described(list(dict.fromkeys([*(options.features or given), *needed])), target)
    try:
        return from_csv(
            options.csv,
            target,
            given,
            features,
            trial_bounds=options.bounds_from_data,
            alone=alone,
            missing=options.missing or REFUSE,
            delimiter=options.delimiter,
        )
    except MissingBoundsError as error:
        read = texts_in(options.csv, error.columns, options.delimiter)
        advice = [_BOUNDS_ADVICE] if len(read) < len(error.columns) else []
        if read:
            listed = " ".join(categories_option(column, texts) for column, texts in read.items())
            advice.append(f"{', '.join(read)}: texts, such as {listed} ({_READ})")
        raise MissingBoundsError(error.columns, "; ".join(advice)) from None


def _described(columns: list[str], target: str) -> tuple[list[str], str]:
    """Return the features and the target of a job that describes all columns alike: the last one, unless it is given.

    Raises `UsageError` if there are none.
    """
    if not columns:
        raise UsageError("--csv: name the columns to describe by --bounds COL=LO:HI,... and --categories COL=A,B,C")
    target = target or columns[-1]
    return [name for name in columns if name != target], target


def first_rows(train: Problem, clients: int) -> Problem:
    """Return one row for each client. Raises `UsageError` if there are fewer rows than clients."""
    rows = len(train.y)
    if not 1 <= clients <= rows:
        raise UsageError(f"--clients {clients}: each reports one of the {rows} training rows, so give 1 to {rows}")
    return train.take(np.arange(clients))
