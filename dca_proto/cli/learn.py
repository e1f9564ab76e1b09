"""`dca learn` runs a learning job as a federation's trainer; after a crash, the same command resumes it."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from rich.console import Console

from dca_proto.cli import options
from dca_proto.cli.actor import JsonLogs, Metrics, configure_command_logs
from dca_proto.cli.job_run import JobRun, claimed_by, doubted, iterated, job_round, show_run, written
from dca_proto.cli.job_settings import Draft, JobName, JobSettings, Task, beyond_default_limits, task_of
from dca_proto.cli.ledger import account_line
from dca_proto.cli.output import Terminal, keep_earlier, require_plot_target, result_console, say
from dca_proto.cli.reporter import ProgressReporter
from dca_proto.crypto.sealing import actor_id
from dca_proto.errors import DcaError, ImplausibleSum, RoundAborted, UsageError
from dca_proto.jobs.journal import Journal, newest_journal
from dca_proto.jobs.runner import FinishedRequest
from dca_proto.jobs.runner import learn as learn_over
from dca_proto.privacy.cost import total
from dca_proto.privacy.rounding import claim_words
from dca_proto.protocol.ledger import max_client_cost
from dca_proto.protocol.policy import BudgetError
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.results.round import abort_line, remedy_of
from dca_proto.results.run import Run, run_of
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.device import Device, load
from dca_proto.runtime.files import require_writable, whole_file, write_json
from dca_proto.runtime.keyfile import certified_id, read_certificate
from dca_proto.runtime.live import LiveTrainer
from dca_proto.runtime.logs import log
from dca_proto.runtime.process import TERMINATED, complete
from dca_proto.statistics.categories import parse_categories
from dca_proto.wording import counted, to_install
from inference.datasets import from_csv
from inference.jobs import NAMES
from inference.jobs.base import Stage, as_posterior, plan_words, uses
from inference.jobs.settings import parse_words
from inference.jobs.summary import Summary
from inference.problem import Problem, stream

SAME_COMMAND = "the same command continues from there"
DISCARD = "if its sum is false, --discard-round last runs the last round again, at its cost"
DRAWS_SUFFIX = ".nc"

OUTPUT = (Run, Summary)
EXAMPLES = """Examples:

  dca learn trainer.toml                                 the file's [job]; after a crash the same command resumes it

  dca learn trainer.toml --test held_out.csv --json result.json --plot coefficients.png

  dca learn trainer.toml --job logistic --epsilon 4 --set epochs=2

  dca learn trainer.toml --job synthetic --synthetic rows.csv

  dca learn trainer.toml --draws posterior.nc            for ArviZ: arviz.from_netcdf("posterior.nc")

Example of a file: [trainer], [broker] and [account] as `dca trainer --help` shows them, and

  [job]
  name = "regression"                # NAMES
  features = ["age", "bmi"]          # by default all columns with bounds except the target
  target = "pressure"
  bounds = { age = [0, 120], bmi = [10, 60], pressure = [60, 250] }   # public, never read from the data
  units = { age = "years" }          # optional, for display
  epsilon = 2                        # of all rounds together
  delta = 1e-5
  clients = 500                      # N, how many are expected
  tolerate = 50                      # T, how many may drop out of a round
  repair = "noise-aware"             # and other settings of the job

For job regression-mcmc, clients may be data nodes: each has many people's rows and releases its own sums. That is the
default if the federation file has no Compute nodes; otherwise give kind = "node-release". Leave out tolerate then.

Jobs ldp-histogram, ldp-quantiles, ldp-mean, ldp-regression and ldp-sgd ask each client for one report that is private
by itself. They need neither Compute nodes nor tolerate. The first three need a delta only for
mechanism = "analytic-gaussian". A file's [job] for the first:

  [job]
  name = "ldp-histogram"
  target = "age"
  bounds = { age = [0, 120] }
  edges = [0, 18, 40, 65, 120]       # or bins = 6, or values = 5 of a column of 0, 1, 2, 3, 4
  epsilon = 1
  clients = 5000

ldp-sgd and ldp-quantiles ask one group of clients after another, so they have to know them: invite = "certificates"
names a folder of their certificates from `dca federation`.

  dca learn trainer.toml --discard-round last            run the last round again, at its cost: a client sent false
                                                         numbers, and has been revoked

A job's results are kept beside the trainer's store, for example in trainer.regression.journal. To learn again, at a new
cost, give --again: the next journal is trainer.regression.2.journal, and calls without --again continue it. Settings
that apply after the rounds may change at no cost; the command names them at its end. For example, regression-mcmc may
change the draws, the prior and the method, and ldp-mean also the family.
""".replace("NAMES", ", ".join(NAMES[:4]) + ", ...")


@options.with_options(JobSettings, without=("units",), name=JobName, bounds=options.JobBounds)
def learn(
    config: options.Config,
    chosen: options.Chosen,
    sets: options.Sets = None,
    journal: options.Journal = None,
    discard_round: Annotated[
        str | None,
        typer.Option(
            help="Drop a round of the journal and those after it, and run them anew: its number or id, or last. Their "
            "cost stays spent."
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Learn anew, at a new cost, although the job has results: a new journal.")
    ] = False,
    test: Annotated[Path | None, typer.Option(help="CSV of the trainer's own rows to score the result on.")] = None,
    categories: options.Categories = None,
    delimiter: options.Delimiter = "",
    json_to: options.Json = None,
    plot: options.Plot = None,
    draws: Annotated[Path | None, typer.Option(help="Write draws of the posterior for ArviZ: FILE.nc.")] = None,
    synthetic: Annotated[Path | None, typer.Option(help="Write the rows of job synthetic: FILE.csv.")] = None,
    metrics: Metrics = None,
    json_logs: JsonLogs = False,
) -> int:
    """Learn from a federation's clients as its trainer: a regression or another job, in one or more rounds."""
    configure_command_logs(json_logs)
    actor = load(config, roles=("trainer",), metrics=metrics)
    table = {**(actor.config.job or {}), **chosen, **parse_words(sets or ())}
    if categories:
        table["bounds"] = {**table.get("bounds", {}), **parse_categories(categories)}
    task = task_of(table, actor.config.federation)
    outputs = Outputs(json_to, plot, draws, json_logs, synthetic)
    console = outputs.console()
    if draws is not None and not task.job.drawable:
        raise UsageError(f"--draws {draws}: job {task.job.name!r} gives a point estimate, no posterior; leave it out")
    if synthetic is not None and not task.job.makes_rows:
        raise UsageError(f"--synthetic {synthetic}: job {task.job.name!r} makes no rows; leave it out")
    invite = invited_by(actor, config.parent / task.settings.invite) if task.settings.invite else ()
    held_out = None
    if test is not None:
        if not task.job.scored:
            raise UsageError(f"--test {test}: job {task.job.name!r} makes no predictions to score; leave it out")
        held_out = from_csv(test, task.schema.target, task.schema.bounds, task.schema.features, delimiter=delimiter)
        if held_out.note:
            say(console, "test", held_out.note)
    elif delimiter:
        raise UsageError("--delimiter: only with --test, whose CSV it describes; leave it out")
    if again and (journal is not None or discard_round is not None):
        raise UsageError("--again begins a new journal: leave out --journal and --discard-round")
    path = journal or newest_journal(actor.config.files.store, task.job.name, again=again)
    if discard_round is not None and not path.exists():
        raise UsageError(f"--discard-round {discard_round}: there is no journal {path}; name the one with --journal")
    return _Run(actor, task, held_out, outputs, console, path, invite).run(discard_round)


def invited_by(actor: Device, folder: Path) -> tuple[bytes, ...]:
    """Return the ids of the clients with an unrevoked certificate in a folder. Raises `UsageError` if none is valid."""
    federation, now = actor.federation, now_ms()
    paths = [path for path in sorted(folder.glob("*.cert")) if not federation.is_revoked(certified_id(path))]
    certificates = [read_certificate(path, federation, now) for path in paths]
    if not certificates:
        raise UsageError(f"job: invite = {folder}: found no client's certificate (*.cert) in this folder")
    return tuple(sorted({actor_id(certificate.client_key) for certificate in certificates}))


class Outputs(NamedTuple):
    """The targets of the result: JSON (a file, or - for stdout), a picture, draws. And whether stderr gets JSON."""

    json_to: str | None
    plot: Path | None
    draws: Path | None
    json_logs: bool
    synthetic: Path | None = None

    def console(self) -> Console:
        """Return the console. Raise an error before the work if a target could not be written after it."""
        console = result_console(self.json_to, json_logs=self.json_logs)
        require_plot_target(self.plot)
        if self.synthetic is not None:
            require_writable(self.synthetic)
        if self.draws is not None:
            if self.draws.suffix != DRAWS_SUFFIX:
                raise UsageError(f"--draws {self.draws}: expected a name that ends in {DRAWS_SUFFIX}")
            require_writable(self.draws)
            if find_spec("arviz") is None:
                raise UsageError(f"--draws needs ArviZ, which is not installed: {to_install('samplers')}")
        return console


class _Run:
    """One call of the command, which begins or resumes a task.

    Args:
        actor: the trainer. task: the job. test: rows to score it on, if any. outputs, console: for the result.
        path: the journal. invite: ids of the clients to pick mini-batches from before the first round open to all.
    """

    def __init__(
        self,
        actor: Device,
        task: Task,
        test: Problem | None,
        outputs: Outputs,
        console: Console,
        path: Path,
        invite: tuple[bytes, ...],
    ) -> None:
        self._actor, self._task, self._outputs, self._path, self._invite = actor, task, outputs, path, invite
        self._console = console
        self._run = JobRun(
            task.job,
            task.own,
            task.schema,
            task.terms,
            kind=task.kind,
            seed=task.settings.seed,
            test=test,
            on_iteration=lambda iteration: self._reporter.iterated(iteration),
        )
        self._held: list[FinishedRequest] = []
        self._discarded: list[OpenRound] = []
        self._drafts: list[Draft] = []

    def run(self, discarded: str | None = None) -> int:
        """Learn, write and print the result; return the exit code. Raises `RoundAborted`.

        `discarded` names a round to drop from the journal first, as in `Journal.discard`.
        """
        stages = self._stages()
        self._reporter = ProgressReporter(
            Terminal(stderr=True),
            self._actor.name_of,
            self._task.settings.clients,
            stages,
            json_logs=self._outputs.json_logs,
            again=SAME_COMMAND,
        )
        with Journal(self._path, self._task.identity, free=self._task.free) as journal:
            self._say_plan(stages)
            if discarded is not None:
                numbers = ", ".join(map(str, journal.discard(discarded)))
                say(
                    self._console,
                    "discarded",
                    f"the result of round {numbers}; its cost stays spent, and it runs again",
                )
            self._discarded = journal.discarded
            limits = beyond_default_limits(self._drafts, self._task.cost) if journal.is_new else []
            if limits:
                beyond = "; ".join(limits)
                say(
                    self._console,
                    "note",
                    f"this job needs clients whose [policy] accepts more than the default: {beyond}",
                )
            try:
                with self._reporter:
                    result = complete(self._learn(journal))
                result = self._finish_job(result)
            except RoundAborted as error:
                remedy = remedy_of(error, SAME_COMMAND)
                if isinstance(error, ImplausibleSum) and self._held:
                    remedy += f", with --discard-round {self._held[-1].number}"
                self._fail(abort_line(error), remedy, error.contributors, error.needed)
                raise
            except KeyboardInterrupt:
                self._say_stopped(self._reporter.open_words() or SAME_COMMAND)
                raise
        if result is None:
            self._say_stopped(self._reporter.open_words() or SAME_COMMAND)
            return TERMINATED
        self._write_result(result)
        return 0

    async def _learn(self, journal: Journal) -> Any:
        try:
            return await self._learned(journal)
        except (DcaError, asyncio.CancelledError):
            raise
        except Exception as error:  # a job may fail on any sum, and the rounds' cost is already spent
            self._fail(str(error) or type(error).__name__, f"{SAME_COMMAND}; {DISCARD}")
            raise

    async def _learned(self, journal: Journal) -> Any:
        async with self._actor.live(self._reporter) as trainer:
            if journal.is_new:
                self._check_account(trainer)  # before the first await, so before it connects
            return await learn_over(
                self._run.make(),
                trainer,
                self._task.terms,
                journal,
                clients=self._invite,
                retries=self._task.settings.retries,
                on_round=self._on_round,
            )

    def _finish_job(self, learned: Any) -> Any:
        """Compute the job's result after disconnecting, if work is left to do."""
        job = self._task.job
        if learned is None:
            return None
        try:
            return self._run.finish(learned, Terminal(stderr=True, quiet=self._outputs.json_logs))
        except Exception as error:  # report any error, since the rounds' privacy cost is already spent
            other = f", also with another {', '.join(job.changeable)} at no cost" if job.changeable else ""
            self._fail(str(error) or type(error).__name__, f"{SAME_COMMAND}{other}; {DISCARD}")
            raise

    def _check_account(self, trainer: LiveTrainer) -> None:
        """Raise `BudgetError` if the account lacks room for all rounds of the job; for an iterative job, only warn."""
        try:
            trainer.check_job(self._task.cost)
        except BudgetError as refusal:
            if not self._task.job.iterative:
                raise
            self._say_on_stderr("account", f"this job will stop early: {refusal}")

    def _stages(self) -> list[Stage]:
        """Return the job's stages, after planning a round of each as its participants will."""
        task = self._task
        stages, self._drafts = self._run.plan(f"job: {claim_words(task.settings.epsilon, task.delta)}")
        if stages[0].batch and task.settings.clients > len(self._invite):
            raise UsageError(
                f"job {task.job.name!r} asks {task.settings.clients} clients in groups, and knows {len(self._invite)} "
                "of them; give invite = FOLDER with the clients' certificates in [job] of the file, or lower clients"
            )
        return stages

    def _on_round(self, finished: FinishedRequest) -> None:
        self._held.append(finished)
        self._reporter.ended(finished)

    # --- what is shown --------------------------------------------------------------------------------------------

    def _say_plan(self, stages: list[Stage]) -> None:
        task = self._task
        terms = f"{claim_words(task.settings.epsilon, task.delta)} {plan_words(stages)}"
        say(self._console, "job", f"{task.job.name}: {task.job.model(task.schema, task.own)}")
        n = task.settings.clients
        who = f"N = {n:,}, T = {task.settings.tolerate:,}"
        if task.kind is NodeRelease:
            who = f"J = {n:,} data nodes; each adds all the noise for one row"
        elif task.reports:
            reports = "one report" if uses(stages) == 1 else f"{uses(stages)} reports"
            who = f"N = {n:,} clients, each with {reports} by {task.reports}, private by itself"
        say(self._console, "plan", f"{terms}; {who}")

    def _say_stopped(self, remedy: str = SAME_COMMAND) -> None:
        """Print how many rounds are done and how to continue."""
        done = sum(held.aggregate is not None for held in self._held)
        self._say_on_stderr("stopped", f"{counted(done, 'round')} done and recorded in {self._path}; {remedy}")

    def _say_on_stderr(self, label: str, text: str) -> None:
        if self._outputs.json_logs:
            log.warning(label, text=text)
        else:
            say(Terminal(stderr=True), label, text)

    def _fail(self, reason: str, remedy: str, contributors: int | None = None, needed: int | None = None) -> None:
        run = self._run_record(ok=False, error=reason, remedy=remedy)
        if run.rounds and not run.rounds[-1].ok:
            run.rounds[-1] = msgspec.structs.replace(run.rounds[-1], contributors=contributors, n_min=needed)
        iterations = [iterated(iteration) for iteration in self._run.iterations]
        keep_earlier(self._console, self._outputs.json_to)
        write_json(written(run, doubted(run, {"test": None, "iterations": iterations})), self._outputs.json_to)
        self._say_stopped(remedy)

    def _run_record(self, **ending: Any) -> Run:
        """Return the record of the run."""
        task, rounds = self._task, [job_round(held) for held in self._held]
        completed = [round_ for round_ in rounds if round_.ok]
        return run_of(
            task.terms,
            task.kind,
            rounds,
            [] if all(round_.private for round_ in completed) else ["the noise is inexact"],
            kind="learn",
            job=task.job.name,
            federation=self._actor.config.federation.name,
            settings=task.table,
            batch=task.job.batch(task.own) or None,
            reports=task.reports or None,
            mechanism=completed[-1].mechanism or "" if completed else "",
            epsilon=self._epsilon(),
            delta=task.delta,
            **ending,
        )

    def _epsilon(self) -> float:
        """Return the ε of the job, with the rounds that were discarded from its journal."""
        task = self._task
        if not self._discarded:
            return task.settings.epsilon
        costs = [opened.cost_to_clients for opened in self._discarded]
        return total([task.cost, max_client_cost(costs)]).epsilon(task.delta)

    def _write_result(self, result: Any) -> None:
        """Write the files first, since their privacy cost is already spent; then print tables."""
        task, outputs = self._task, self._outputs
        run = self._run_record(ok=True)
        summary = claimed_by(run, self._run.summarise(result))
        keep_earlier(self._console, outputs.json_to, outputs.plot, outputs.draws, outputs.synthetic)
        write_json(written(run, summary), outputs.json_to)
        if outputs.draws is not None and task.job.drawable:
            drawn = result.inference_data(stream(task.settings.seed, "draws"))
            with whole_file(outputs.draws) as place:
                drawn.to_netcdf(str(place))
        if outputs.synthetic is not None:
            as_posterior(result).synthetic.write(outputs.synthetic)
        show_run(self._console, run, summary)
        if outputs.plot is not None:
            self._run.draw(self._console, summary, outputs.plot, run)
        say(self._console, "account", account_line(self._actor.config))
        free = f"with other {', '.join(task.job.changeable)}, it costs nothing; " if task.job.changeable else ""
        say(self._console, "journal", f"{self._path}; {free}to learn again, at a new cost, give --again")
