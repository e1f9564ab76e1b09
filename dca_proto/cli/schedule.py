"""`dca schedule` runs standing jobs as a federation's trainer: hourly, daily, weekly, with one budget for a period."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from dca_proto.cli.actor import JsonLogs, configure_command_logs
from dca_proto.cli.job_run import JobRun, claimed_by, doubted, job_round
from dca_proto.cli.job_settings import Draft, Task
from dca_proto.cli.learn import invited_by
from dca_proto.cli.options import Json
from dca_proto.cli.output import Terminal, result_console, say
from dca_proto.cli.reporter import Reporter
from dca_proto.cli.schedule_file import PlannedSlots, Schedule, read_schedule
from dca_proto.jobs.calendar import ADVERBS
from dca_proto.jobs.runner import FinishedRequest
from dca_proto.jobs.series import Series
from dca_proto.jobs.standing import (
    NOT_RUN,
    EndsSoon,
    Fact,
    Prepared,
    SlotDelayed,
    SlotEnded,
    SlotsMissed,
    Standing,
    StandingJob,
)
from dca_proto.privacy.cost import total
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.privacy.rounding import at_least, claim_words
from dca_proto.protocol.policy import BudgetError
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.results.figure import Amount, Count, about
from dca_proto.results.round import NORMAL_SDS, REPORT_SDS, about_bounds
from dca_proto.results.run import run_of
from dca_proto.results.series import SeriesEstimate, SeriesResult
from dca_proto.results.status import ScheduledJob
from dca_proto.runtime.clock import SystemClock, now_ms
from dca_proto.runtime.device import Device, load
from dca_proto.runtime.files import write_json
from dca_proto.runtime.logs import log
from dca_proto.runtime.process import TERMINATED, complete
from dca_proto.statistics import resolve
from dca_proto.wording import counted, digits, duration, iso, moment
from inference.jobs.estimates import interval_words, rows_of

_LABELS_MAX = 4
_UNKNOWN = (
    "how wide its intervals will be depends on the rows, too; learn it from made-up rows, as docs/planning.md shows "
    'under "How exact will a job be?"'
)
EXAMPLES = """Examples:

  dca schedule jobs.toml --plan          what it will cost and how exact it will be; runs nothing
  dca schedule jobs.toml                 run until the period is over; after a crash or a restart, the same command
  dca results "daily mean" --last 7      what it has found

Example of a file:

  [schedule]
  trainer = "trainer.toml"               # [job] and [round] of that file do not matter here
  begins = 2027-01-01
  lasts = "1y"                           # or 26w, 90d
  epsilon = 2                            # of all slots of all jobs together, for each participant
  delta = 1e-5
  timezone = "Europe/Berlin"             # by default UTC

  [[job]]
  title = "daily mean"
  every = "day"                          # or hour, week
  at = "06:00"                           # of an hour: ":15"; of a week also on = "monday"
  late = "6h"                            # how late it may begin; later it is left out, and the series has a gap
  share = 2                              # of the budget, relative to the other jobs
  name = "gaussian"                      # this and all below: the settings of `dca learn`, without epsilon and delta
  target = "temperature"
  bounds = { temperature = [-20, 40] }
  units = { temperature = "°C" }
  clients = 5000
  tolerate = 500
  window_s = 86400                       # optional: only of clients whose source has this window

The results are kept beside the file, in jobs.results.db. The trainer runs this schedule alone; other rounds of the
federation need another trainer.
"""


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a schedule, before it runs."""

    title: Annotated[str, about("The name of its series.")]
    job: Annotated[str, about("The learning job.")]
    every: Annotated[str, about("hour, day or week.")]
    slots: Annotated[Count, about("How often it runs in the period.")]
    first: Annotated[str, about("The time of its first slot, in UTC.")]
    last: Annotated[str, about("The time of its last slot, in UTC.")]
    epsilon: Annotated[Amount, about("The cost of one slot to each participant.")]
    delta: Annotated[Amount, about("As epsilon.")]
    mu: Annotated[Amount, about("The same cost as a parameter of Gaussian differential privacy.")]
    within: Annotated[
        dict[str, Amount],
        about("Half-widths of 95 % intervals of the noise in a mean or a share, by column; empty if rows decide it."),
    ] = {}
    target: Annotated[str, about("The column that it describes or predicts.")]
    unit: Annotated[str, about("Of its target.")] = ""
    warnings: Annotated[list[str], about("What makes its results worth little.")] = []


class SchedulePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dca schedule --plan --json`."""

    begins: Annotated[str, about("The first day.")]
    ends: Annotated[str, about("The first day after the period.")]
    epsilon: Annotated[Amount, about("Of all slots of all jobs together, for each participant.")]
    delta: Annotated[Amount, about("As epsilon.")]
    epsilon_planned: Annotated[Amount, about("What all slots together cost at delta.")]
    jobs: Annotated[list[PlannedJob], about("In the file's order.")]
    results: Annotated[str, about("The database of the results.")]


OUTPUT = SchedulePlan


def schedule(
    file: Annotated[Path, typer.Argument(help="The file of standing jobs.", metavar="JOBS.toml")],
    plan: Annotated[bool, typer.Option("--plan", help="Print what it costs and how exact it is; run nothing.")] = False,
    json_to: Json = None,
    json_logs: JsonLogs = False,
) -> int:
    """Run standing jobs as a federation's trainer, each slot once, with one budget for a period."""
    console = result_console(json_to, json_logs=json_logs)
    configure_command_logs(json_logs)
    found = read_schedule(file)
    actor = load(file.parent / found.settings.trainer, roles=("trainer",))
    tasks = [job.task(actor.config.federation) for job in found.jobs]
    planned = planned_schedule(found, tasks)
    write_json(planned, json_to)
    show_plan(console, planned)
    if plan:
        return 0
    with Series(found.results) as series:
        number = series.adopt(found.identity(tasks), found.begins_ms)
        return _Service(found, actor, series, number, console, json_logs=json_logs).run()


# --- the plan ---------------------------------------------------------------------------------------------------------


def planned_schedule(found: Schedule, tasks: Sequence[Task]) -> SchedulePlan:
    """Return the plan, after planning a round of each job as its participants will. Raises `UsageError`."""
    spent = total(job.charge for job in found.jobs for _ in job.slots)
    return SchedulePlan(
        begins=f"{found.settings.begins}",
        ends=f"{found.ends}",
        epsilon=found.settings.epsilon,
        delta=found.settings.delta,
        epsilon_planned=min(spent.epsilon(found.settings.delta), found.settings.epsilon),  # it is rounded up
        jobs=[_planned_job(job, task) for job, task in zip(found.jobs, tasks, strict=True)],
        results=str(found.results),
    )


def _planned_job(job: PlannedSlots, task: Task) -> PlannedJob:
    said = f"job {job.when.title!r}: {claim_words(job.cost.epsilon, job.cost.delta)} a slot"
    _, drafts = _job_run(task).plan(said)
    within = _within(task, drafts[0])
    return PlannedJob(
        title=job.when.title,
        job=task.job.name,
        every=job.when.every,
        slots=len(job.slots),
        first=iso(job.slots[0].at_ms),
        last=iso(job.slots[-1].at_ms),
        epsilon=job.cost.epsilon,
        delta=job.cost.delta,
        mu=job.cost.mu,
        within=within,
        target=task.schema.target,
        unit=task.schema.units.get(task.schema.target, ""),
        warnings=_useless(task, within),
    )


def _within(task: Task, draft: Draft) -> dict[str, float]:
    """Return how far the noise moves the means that are a job's result, if all clients contribute."""
    announcement, planned = draft
    summed = announcement.statistic == "sum"  # the job's estimate is of a mean, in the units of its column
    statistic = resolve("mean" if summed else announcement.statistic, announcement.parameters)
    if isinstance(announcement.kind, NodeRelease) or statistic.dimension > 100:
        return {}  # the number of rows is not known
    wanted = task.job.averaged(task.schema, task.own)
    n = task.settings.clients
    _, noise = statistic.estimate_with_noise(statistic.zero_sum(n), n, planned.variance_of_sum(n) ** 0.5)
    sds = REPORT_SDS if task.reports in PURE_MECHANISMS else NORMAL_SDS
    pairs = zip(statistic.labels(), noise.tolist(), strict=True)
    return {label: sds * sd for label, sd in pairs if label in wanted}


def _useless(task: Task, within: dict[str, float]) -> list[str]:
    """Return a warning for each estimate whose interval is wider than its column's public bounds."""
    warnings = []
    for label, half in within.items():
        bounds = task.schema.bounds.get(label)
        if bounds is not None:
            ends, unit = (bounds.lower, bounds.upper), task.schema.units.get(label, "")
            warnings += [warning] if (warning := about_bounds(label, half, ends, unit=unit)) else []
    return warnings


def show_plan(console: Console, planned: SchedulePlan) -> None:
    """Print a line for each job, and the budget."""
    period = f"{planned.begins} to {planned.ends}"
    say(console, "budget", f"{claim_words(planned.epsilon, planned.delta)} for each participant, from {period}")
    for job in planned.jobs:
        within = ", ".join(f"{label} ± {digits(half, 2)}" for label, half in job.within.items())
        if job.target in job.within:
            within = f"± {digits(job.within[job.target], 2)} {job.unit}".strip()
        what = "each mean" if job.target in job.within else "each"  # job exponential reports a rate, too
        exact = f": {what} within {within} (95 % of the noise)" if within else ""
        say(
            console,
            "job",
            f"{job.title}: {counted(job.slots, f'{ADVERBS[job.every]} slot')} of {job.job}, each at epsilon "
            f"{at_least(job.epsilon)}{exact}; first {job.first}, last {job.last}",
        )
        if not job.within:
            say(console, "exactness", f"{job.title}: {_UNKNOWN}")
        for warning in job.warnings:
            say(console, "warning", f"{job.title}: {warning}")


def _job_run(task: Task) -> JobRun:
    return JobRun(
        task.job, task.own, task.schema, task.terms, task.kind, task.settings.seed, None, lambda iteration: None
    )


# --- the service ------------------------------------------------------------------------------------------------------


def slot_result(
    task: Task, run: JobRun, result: Any, finished: Sequence[FinishedRequest], federation: str
) -> SeriesResult:
    """Return what a series keeps of a job's result."""
    rounds = [job_round(each) for each in finished]
    private = all(one.private for one in rounds if one.ok)
    record = run_of(
        task.terms,
        task.kind,
        rounds,
        [] if private else ["the noise is inexact"],
        kind="learn",
        job=task.job.name,
        federation=federation,
        settings=task.table,
        batch=task.job.batch(task.own) or None,
        reports=task.reports or None,
        mechanism="",
        epsilon=task.settings.epsilon,
        delta=task.delta,
        ok=True,
    )
    finished = run.finish(result, Terminal(stderr=True, quiet=True))
    summary = claimed_by(record, doubted(record, run.summarise(finished)))
    estimates = [
        SeriesEstimate(
            name=row["name"],
            unit=row["unit"],
            estimate=row["estimate"],
            sd=row["estimate_sd"],
            interval_95=row["interval_95"],
        )
        for row in rows_of(summary)
    ]
    return SeriesResult(
        estimates=estimates,
        contributors=max((one.contributors or 0 for one in rounds), default=0),
        epsilon=record.epsilon,
        delta=record.delta,
        warnings=summary.get("warnings", []),
        rounds=msgspec.to_builtins(rounds),
    )


class _Service:
    """One call of the command, which begins or continues a plan."""

    def __init__(
        self, found: Schedule, actor: Device, series: Series, number: int, console: Console, *, json_logs: bool
    ) -> None:
        self._found, self._actor, self._series, self._number = found, actor, series, number
        self._console, self._json_logs = console, json_logs
        self._jobs = [self._standing(job) for job in found.jobs]
        actor.schedule = self.status

    def run(self) -> int:
        """Run until the period is over; return the exit code."""
        with Reporter(Terminal(stderr=True), self._actor.name_of, json_logs=self._json_logs) as self._reporter:
            done = complete(self._run())
        if done is None:
            return TERMINATED
        for job in self._jobs:
            counts = self._series.counts(self._number, job.title)
            gaps = f", {counted(counts.failed + counts.missed, 'gap')}" if counts.failed + counts.missed else ""
            say(self._console, "over", f"{job.title}: {counts.done:,} of {counted(len(job.slots), 'slot')} done{gaps}")
        return 0

    async def _run(self) -> bool:
        async with self._actor.live(self._reporter) as trainer:
            standing = Standing(
                self._jobs,
                trainer,
                self._series,
                self._number,
                self._found.results.parent,
                SystemClock(),
                self._note,
            )
            left = total(job.cost for job in self._jobs for _ in standing.left(job))
            try:
                trainer.check_job(left)
            except BudgetError as refusal:
                self._warn(
                    f"the account has no room for all slots that are left, so some will have no result: {refusal}"
                )
            await standing.run()
        return True

    def _standing(self, job: PlannedSlots) -> StandingJob:
        def prepare() -> Prepared:
            device = self._actor
            task = job.task(device.federation)
            run = _job_run(task)
            name = device.config.federation.name
            invite = task.settings.invite
            return Prepared(
                make=run.make,
                terms=task.terms,
                settings=task.identity,
                record=lambda result, finished: slot_result(task, run, result, finished, name),
                free=task.free,
                clients=invited_by(device, self._found.path.parent / invite) if invite else (),
                retries=task.settings.retries,
            )

        return StandingJob(job.when.title, job.when.every, job.slots, job.when.late_ms, job.charge, prepare)

    # --- what is shown ------------------------------------------------------------------------------------------------

    def status(self) -> list[ScheduledJob]:
        """Return the state of each job, for `dca status`."""
        at_ms = now_ms()
        lasts_ms = self._lasts_ms(at_ms)
        states = []
        for job in self._jobs:
            counts = self._series.counts(self._number, job.title)
            following = next((slot for slot in job.slots if slot.at_ms > at_ms), None)
            states.append(
                ScheduledJob(
                    title=job.title,
                    next=None if following is None else iso(following.at_ms),
                    done=counts.done,
                    gaps=counts.failed + counts.missed,
                    of=len(job.slots),
                    lasts_to=iso(lasts_ms),
                )
            )
        return states

    def _lasts_ms(self, at_ms: int) -> int:
        """Return the time of the last slot for which both the plan and the account have room."""
        coming = sorted((slot.at_ms, job.cost) for job in self._jobs for slot in job.slots if slot.at_ms > at_ms)
        account, actor = self._actor.config.account, self._actor.actor
        assert isinstance(actor, Trainer), "the roles were checked"
        least, most = 0, len(coming)  # so many slots fit, and at most so many
        while least < most:
            middle = (least + most + 1) // 2
            cost = total(each for _, each in coming[:middle])
            fits = account.check(cost, actor.ledger, coming[middle - 1][0], rounds=middle) is None
            least, most = (middle, most) if fits else (least, middle - 1)
        return coming[least - 1][0] if least else at_ms

    def _note(self, fact: Fact) -> None:
        match fact:
            case SlotEnded(job, slot, result, reason) if result is None:
                self._warn(f"{job} {slot.name}: no result: {reason}")
            case SlotsMissed(job, slots):
                named = slots[0].name if len(slots) == 1 else f"{slots[0].name} to {slots[-1].name}"
                self._warn(f"{job} {named}: {counted(len(slots), 'gap')}, since {NOT_RUN} then")
            case SlotEnded(job, slot, result):
                assert result is not None, "the case above"
                text = ", ".join(
                    f"{one.name} {interval_words(one.estimate, one.interval_95)}"
                    for one in result.estimates[:_LABELS_MAX]
                    if one.estimate is not None
                )
                self._say(f"{job} {slot.name}: {text}, from {result.contributors:,} contributors")
            case SlotDelayed(job, slot, reason, until_ms):
                self._say(f"{job} {slot.name}: no result yet, tried again until {moment(until_ms)}: {reason}")
            case EndsSoon(at):
                self._warn(
                    f"the budget ends in {duration(max(at - now_ms(), 0))}, with the last slot on {moment(at)}: plan "
                    "the next period, in this file or another"
                )

    def _say(self, text: str) -> None:
        if self._json_logs:
            log.info("schedule", text=text)
        else:
            self._reporter.say(text)

    def _warn(self, text: str) -> None:
        if self._json_logs:
            log.warning("schedule", text=text)
        else:
            self._reporter.say(f"warning: {text}")
