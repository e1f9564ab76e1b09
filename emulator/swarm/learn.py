"""A learning run of a swarm: what it is to learn is checked, it is played, and it is told on a console."""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec
from rich.console import Console

from dca_proto.aggregate import LdpReportRequest, NoAggregate, NodeReleaseRequest
from dca_proto.cli.job_run import JobRun
from dca_proto.cli.output import (
    STDOUT,
    require_json_target,
    require_matplotlib,
    require_writable,
    say,
    write_json,
)
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import RoundAborted, StorageError, UsageError
from dca_proto.jobs.runner import RETRIES
from dca_proto.privacy.rounding import at_least, claim_words
from dca_proto.runtime.device import complete
from emulator.counts import check_counts, check_nodes, check_reporters
from emulator.results import Run
from emulator.swarm.data import assign
from emulator.swarm.live import Swarm
from emulator.swarm.options import SwarmOptions
from emulator.swarm.progress import Bars, IterationBars, IterationLines, Lines, View
from emulator.swarm.summary import Failure, doubts, summarise
from emulator.swarm.view import (
    aborted_lines,
    closing_lines,
    dropped_lines,
    estimates_table,
    nodes_table,
    nodes_words,
    reporters_words,
    rounds_table,
    scores_table,
    times_table,
)
from inference.jobs.base import LearningJob, plan_words, uses
from inference.jobs.estimates import separated
from inference.jobs.summary import Summary
from inference.problem import Problem

TERMINATED = 143
_DRAWING = "matplotlib.backends.backend_agg"  # imported while rounds wait for their clients
RESULT, PICTURE = "result.json", "coefficients.png"


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
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


def learn(lesson: Lesson, options: SwarmOptions) -> int:
    """Learn, show and write what was learned; the exit code.

    Raises:
        RoundAborted: a round was aborted; what there is is shown all the same.
        UsageError, DataError, TransportError: it cannot be learned like that; before anything is started.
        Exception: what the job raised that had its rounds and could not finish; what was released is written.
    """
    run = _Learning(lesson, options, Console(stderr=lesson.json_to == STDOUT))
    run.check()
    done = run.play()
    if done is None:
        return TERMINATED
    run.show(done)
    if run.unfinished is not None:
        raise run.unfinished
    if not done.ok:
        raise RoundAborted(done.error or "", contributors=done.contributors_found, needed=done.contributors_needed)
    return 0


def check_outputs(output: Path, json_to: str | None) -> None:
    """Refuse, before the work, what could not be written after it."""
    require_matplotlib()
    require_json_target(json_to)
    for name in (RESULT, PICTURE):
        require_writable(output / name, make_folders=True)


class _Learning:
    """One run of a job, told on a console.

    Attributes:
        unfinished: why there is no result, although the rounds gave what it takes.

    Raises:
        DataError: there are too few rows to learn from.
    """

    def __init__(self, lesson: Lesson, options: SwarmOptions, console: Console) -> None:
        self._lesson = lesson
        self._options = options
        self._console = console
        self._rows = assign(lesson.train.rows, lesson.clients)
        self._doubts = doubts(lesson.train.schema.read_columns, options.mechanism)
        self._run = JobRun(
            lesson.job,
            lesson.settings,
            lesson.train.schema,
            options.terms(tuple(place.to_bytes(ID_BYTES, "big") for place in range(options.computes))),
            kind=options.kind,
            seed=options.seed,
            test=lesson.test,
            on_iteration=lambda one: self._view.iterated(one) if self._view is not None else None,
        )
        self._view: View | None = None
        self._result: Any = None
        self._failure: Failure | None = None
        self._learned: Summary = {"test": None}
        self.unfinished: Exception | None = None

    # --- before it starts -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that can be refused before anything is started."""
        lesson, options = self._lesson, self._options
        lesson.job.check(lesson.train.schema, lesson.settings)
        if options.kind is NodeReleaseRequest:
            least = lesson.job.rows_least(lesson.train.schema, lesson.settings)
            check_nodes(lesson.clients, len(lesson.train.y), options.dropped, least)
        elif options.kind is LdpReportRequest:
            check_reporters(lesson.clients, options.dropped)
        else:
            self._check_sums()
        options.check("lower --data-nodes" if options.kind is NodeReleaseRequest else "lower --clients")
        said = f"--epsilon {at_least(options.budget.epsilon)} --delta {at_least(options.delta)}"
        self._stages, _ = self._run.plan(said, options.mechanism)
        if options.reports:  # how many are asked at a time follows from the plan
            self._options = msgspec.structs.replace(options, batch=self._stages[0].batch)
        reference = lesson.job.reference(
            lesson.train.complete, lesson.settings
        )  # refuses rows that cannot be learned from
        self._reference = reference if lesson.reference else None

    def _check_sums(self) -> None:
        """N, M, T, c and K."""
        lesson, options, rows = self._lesson, self._options, len(self._lesson.train.y)
        if not 1 <= lesson.clients <= rows:
            raise UsageError(
                f"--clients {lesson.clients}: the {rows} training rows can be dealt to 1 to {rows} clients; "
                "any number of them can hold rounds of a synthetic sum, with --dimension D"
            )
        check_counts(lesson.clients, options.computes, options.tolerated, options.colluders, options.dropped)
        fewest, tolerated = options.smallest
        check_counts(fewest, options.computes, tolerated, options.colluders, options.dropped)

    # --- playing --------------------------------------------------------------------------------------------------

    def play(self) -> Run | None:
        """Run the job and say how it went, None if SIGTERM ended it; an abort is an outcome, all else is raised."""
        lesson, began_s = self._lesson, time.monotonic()
        self._say_plan()
        with tempfile.TemporaryDirectory(prefix="dca-swarm-") as directory:
            live = complete(self._play(Path(directory)))
        if live is None:
            return None
        if self._failure is None:
            self._finish()
        found = summarise(live, self._doubts, self._failure)
        about = {"job": lesson.job.name, "settings": asdict(lesson.settings)}
        return msgspec.structs.replace(found, **about, wall_s=time.monotonic() - began_s)

    async def _play(self, directory: Path) -> Swarm:
        """Hold the rounds, and stop all actors."""
        view = self._view = self._new_view()
        with view:
            columns = self._lesson.train.schema.columns
            async with Swarm(self._options, self._rows, columns, directory, view) as live:
                self._say_broker(live)
                drawing = asyncio.create_task(asyncio.to_thread(import_module, _DRAWING))
                self._failure = await self._learn(live)
                await drawing
        return live

    def _new_view(self) -> View:
        clients = self._lesson.clients
        released = "reported" if self._options.kind is LdpReportRequest else "data nodes released"
        if not self._lesson.job.iterative:
            return (Bars if self._console.is_terminal else Lines)(self._console, clients, released)
        asked = self._options.batch or clients
        return (IterationBars if self._console.is_terminal else IterationLines)(self._console, asked, released)

    async def _learn(self, live: Swarm) -> Failure | None:
        """None if the rounds gave what the job needs."""
        options = self._options
        try:
            retries = RETRIES if options.dropped <= options.room else 0  # where more drop, all would end alike
            self._result = await live.learn(self._run.make(), retries=retries)
        except RoundAborted as error:
            return Failure(error.reason, error.contributors, error.needed)
        except NoAggregate as ended:
            return Failure(ended.reason)
        return None

    def _finish(self) -> None:
        """Learn of what the rounds gave, sampled first where it is to be; or note why nothing could be."""
        try:
            self._result = self._run.finish(self._result, self._console)
            self._learned = self._run.summarise(self._result, self._reference, self._lesson.train.complete)
        except Exception as error:  # raised once what was released is written
            self.unfinished = error
            self._failure = Failure(str(error) or type(error).__name__)

    # --- what is told ---------------------------------------------------------------------------------------------

    def _say(self, label: str, text: str) -> None:
        say(self._console, label, text)

    def _say_plan(self) -> None:
        lesson, options = self._lesson, self._options
        self._say("federation", self._who())
        held_out = "" if lesson.test is None else f"; {len(lesson.test.y)} rows held out"
        self._say("model", f"{lesson.job.model(lesson.train.schema, lesson.settings)}{held_out}")
        if lacking := len(lesson.train.y) - len(lesson.train.complete.y):
            of = f"{lacking} of {len(lesson.train.y)} rows lack a value"
            self._say("missing", f"{of}; each counts as zero in every sum, as in a federation")
        plan = f"{claim_words(options.budget.epsilon, options.delta)} {plan_words(self._stages)}"
        self._say("plan", f"a trial that is not private: {'; '.join(self._doubts)}" if self._doubts else plan)

    def _who(self) -> str:
        options = self._options
        if options.kind is NodeReleaseRequest:
            return nodes_words([len(rows) for rows in self._rows], options.dropped)
        if options.kind is LdpReportRequest:
            return reporters_words(self._lesson.clients, options.reports, options.dropped, uses(self._stages))
        where = f" in {options.processes} processes" if options.processes else ""
        return (
            f"{options.clients} clients{where}, {options.computes} Compute nodes, T = {options.tolerated} "
            f"(c = {options.colluders} reserved for colluders), K = {options.dropped} drop in each round"
        )

    def _say_broker(self, live: Swarm) -> None:
        name = f"{live.broker_kind} {live.broker_version}".strip()
        self._say("broker", f"{name} at {live.broker_url}, {self._options.connected} connections")

    def show(self, run: Run) -> None:
        """Files in the folder and the object for programs, then tables on the console."""
        summary = self._summary(run)
        written = {**separated(summary), **msgspec.to_builtins(run)}
        write_json(written, self._lesson.json_to)
        if run.ok or self.unfinished is not None:
            self._write_files(run, written)
        self._console.print(rounds_table(run), times_table(run))
        if run.nodes:
            self._console.print(nodes_table(run))
        for line in (*aborted_lines(run), *dropped_lines(run)):
            self._say(*line)
        if not run.ok:
            self._say_advice(run)
            return
        self._console.print(estimates_table(summary))
        scores = scores_table(summary)
        if scores is not None:
            self._console.print(scores)
        for line in closing_lines(run, summary):
            self._say(*line)
        output = self._lesson.output
        self._say("files", f"{output / RESULT} · {output / PICTURE}")
        self._say("next", 'dca swarm --help · README: "Embed a client"')

    def _summary(self, run: Run) -> Summary:
        """What was learned, with what its tables need of the run."""
        claimed = {"private": run.private, "epsilon": run.epsilon, "delta": run.delta, "reports": run.reports}
        return cast(Summary, {**self._learned, **claimed})

    def _say_advice(self, run: Run) -> None:
        """What to try after an abort, where the numbers say it."""
        options, clients = self._options, self._lesson.clients
        if options.dropped > options.room:
            batch = options.batch or clients  # of which as large a part may drop as of all
            enough = options.colluders + (options.dropped - 1) * clients // batch + 1
            self._say("next", f"raise --tolerate to {enough} or lower --drop to {options.room}")
        elif self.unfinished is not None:
            kept = f"what was released is in {self._lesson.output / RESULT}"
            self._say("next", f"{kept}; run again with other settings, --set KEY=VALUE")
        elif run.contributors_needed is not None:
            self._say("next", f"this machine is too slow or too busy for {clients} clients; lower --clients")
        elif options.kind is NodeReleaseRequest:
            self._say("next", "no release came in time: lower --data-nodes or --drop")
        elif options.kind is LdpReportRequest:
            self._say("next", "no report came in time: lower --clients or --drop")

    def _write_files(self, run: Run, written: dict[str, Any]) -> None:
        output = self._lesson.output
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make folder {output}: {error.strerror}") from None
        write_json(written, str(output / RESULT))
        if not run.ok:
            return
        self._run.draw(self._summary(run), output / PICTURE, private=run.private, caption=caption(run))


def caption(run: Run) -> str:
    """Of the picture: what was spent, and on whose data."""
    if run.epsilon is None or run.delta is None:
        return f"not private: {'; '.join(run.not_private_because)}"
    claim = claim_words(run.epsilon, run.delta)
    most = max(one.contributors or 0 for one in run.rounds)  # of mini-batches, none is everybody
    if run.reports:
        return f"{claim}, {run.reported} reports"
    of = f"{most} rows of {len(run.nodes)} data nodes" if run.nodes else f"{most} contributors"
    return f"{claim}, {of}"
