"""Reads a file of standing jobs, and divides one budget among all their slots.

    [schedule]                         [[job]]
    trainer = "trainer.toml"           title = "daily mean"
    begins = 2027-01-01                every = "day"           # or hour, week
    lasts = "1y"                       at = "06:00"            # of an hour ":15"; of a week also on = "monday"
    epsilon = 2                        late = "6h"             # how late a slot may begin
    delta = 1e-5                       share = 1               # of the budget, relative to the other jobs
    timezone = "Europe/Berlin"         name = "gaussian"       # and the settings of `dca learn`, without a budget
    results = "jobs.results.db"        ...

Jobs get equal parts of μ², or parts in proportion to their `share`. The slots of a job get equal parts of the job's.
Gaussian rounds and node releases then cost μ√(part) each. ε-private reports get the ε that implies this μ. In a
schedule of nothing else the parts are of ε, if all slots together then get more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from dca_proto.cli.job_settings import Task, task_of
from dca_proto.errors import InputError, UsageError
from dca_proto.jobs.calendar import DAY, HOUR_MS, LENGTH_MS, Slot, Times, parse_period
from dca_proto.privacy.budget import Budget, RoundCost
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.privacy.rounding import claim_words
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.terms import SLACK_OF_ALL
from dca_proto.runtime.config import Config, read_config
from dca_proto.runtime.files import read_text
from dca_proto.runtime.settings import convert
from dca_proto.wording import JsonObject, nearest, parse_toml

ADVICE = "expected a file of standing jobs; `dca schedule --help` shows one"
TITLE_CHARS_MAX, JOBS_MAX = 60, 50
_LATE = re.compile(r"([1-9]\d{0,3})([mh])")
_LATE_PART = 4  # of the distance of two slots, by default
_MARGIN = 1 - 1e-8  # of each slot's share, so that their quoted ε stay within the budget


class ScheduleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[schedule]`.

    Attributes:
        trainer: the trainer's file. begins: the first day. lasts: the period, such as ``1y``, ``26w`` or ``90d``.
        epsilon, delta: the cost of all slots of all jobs together to each participant.
        timezone: of `begins` and of the slots. results: the database; by default ``FILE.results.db``.
    """

    trainer: Path
    begins: date
    lasts: str = "1y"
    epsilon: float
    delta: float
    timezone: str = "UTC"
    results: Path | None = None


class SlotSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a job that say when it runs; all others are those of `dca learn`.

    Attributes:
        title: names the series. every, at, on: as in `Times`. share: of the budget, relative to those of other jobs.
        late: how late a slot may begin, such as ``30m`` or ``6h``; by default a quarter of the time between two slots.
    """

    title: str
    every: str = DAY
    at: str = ""
    on: str = ""
    late: str = ""
    share: float = 1.0

    def __post_init__(self) -> None:
        if not (self.title.strip() == self.title and self.title.isprintable() and self.title):
            raise UsageError(f"title = {self.title[:64]!r}: expected printable text without spaces around it")
        if len(self.title) > TITLE_CHARS_MAX:
            raise UsageError(f"title has {len(self.title)} letters, expected at most {TITLE_CHARS_MAX}")
        if not 0 < self.share < math.inf:
            raise UsageError(f"share = {self.share:g}: expected a number above 0")
        if not 0 < self.late_ms < LENGTH_MS.get(self.every, LENGTH_MS[DAY]) - HOUR_MS * (self.every != "hour"):
            raise UsageError(
                f"late = {self.late!r}: expected less than the time between two slots, so that none overlap"
            )

    @property
    def late_ms(self) -> int:
        """How late a slot may begin."""
        if not self.late:
            return LENGTH_MS.get(self.every, LENGTH_MS[DAY]) // _LATE_PART
        found = _LATE.fullmatch(self.late)
        if not found:
            raise UsageError(f"late = {self.late[:32]!r}: expected minutes or hours, such as 30m or 6h")
        return int(found[1]) * (HOUR_MS if found[2] == "h" else HOUR_MS // 60)


SLOT_KEYS = SlotSettings.__struct_fields__


class PlannedSlots(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a schedule.

    Attributes:
        when: its section's own keys. table: its other keys, those of `dca learn`, with the budget of one slot.
        slots: of the period. cost: the (μ, ε, δ) of a slot.
    """

    when: SlotSettings
    table: JsonObject
    slots: list[Slot]
    cost: RoundCost

    @property
    def charge(self) -> PrivacyCost:
        """The cost of one slot to a participant."""
        return (
            Budget(self.cost.epsilon, self.cost.delta, SLACK_OF_ALL * _is_verified(self.table)).cost
            if self.cost.delta
            else PrivacyCost.of_pure(self.cost.epsilon)
        )

    def task(self, federation: Federation) -> Task:
        """Return the job with the Compute nodes that the federation has now. Raises `UsageError` or `DataError`."""
        return task_of(self.table, federation)


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A checked file of standing jobs.

    Attributes:
        path: the file. settings: of `[schedule]`. config: the trainer's. ends: the first day after the period.
        results: the path of the database. jobs: in order.
    """

    path: Path
    settings: ScheduleSettings
    config: Config
    ends: date
    results: Path
    jobs: list[PlannedSlots]

    @property
    def budget(self) -> Budget:
        """Of all slots together, for each participant."""
        return Budget(self.settings.epsilon, self.settings.delta)

    @property
    def begins_ms(self) -> int:
        """The time of the first slot."""
        return min(job.slots[0].at_ms for job in self.jobs)

    @property
    def last_ms(self) -> int:
        """The time of the last slot."""
        return max(job.slots[-1].at_ms for job in self.jobs)

    def identity(self, tasks: Sequence[Task]) -> JsonObject:
        """Return the settings that may not change while the plan runs: they determine slots, shares and sums."""
        own = {name: getattr(self.settings, name) for name in ("lasts", "epsilon", "delta", "timezone")}
        jobs = {
            job.when.title: {**msgspec.to_builtins(job.when), **task.identity, "late": ""}
            for job, task in zip(self.jobs, tasks, strict=True)
        }
        return {"begins": f"{self.settings.begins}", **own, "jobs": jobs}


def read_schedule(path: Path) -> Schedule:
    """Read and check a file of standing jobs, and the trainer's file that it names.

    Raises `UsageError`, which names the section and the key; the jobs' own settings are checked by `PlannedSlots.task`.
    """
    try:
        sections = parse_toml(read_text(path, ADVICE))
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise InputError(f"{path} is not valid TOML: {error}; {ADVICE}") from None
    for key in sections:
        if key not in ("schedule", "job"):
            raise InputError(f"{path}: unknown section [{key[:64]}]; expected [schedule] and [[job]]")
    tables = sections.get("job")
    if "schedule" not in sections or not isinstance(tables, list) or not 1 <= len(tables) <= JOBS_MAX:
        raise InputError(f"{path}: expected [schedule] and 1 to {JOBS_MAX} sections [[job]]; {ADVICE}")
    settings = convert(f"{path}: [schedule]", sections["schedule"], ScheduleSettings)
    folder = path.parent
    config = read_config(folder / settings.trainer, ("trainer",))
    try:
        ends = _end(settings)
        jobs = _planned(tables, settings, ends)
    except UsageError as error:
        raise InputError(f"{path}: {error}") from None
    results = folder / (settings.results or f"{path.stem}.results.db")
    return Schedule(path=path, settings=settings, config=config, ends=ends, results=results, jobs=jobs)


def _end(settings: ScheduleSettings) -> date:
    period = parse_period(settings.lasts, "lasts = ")
    try:
        return period.end(settings.begins)
    except (OverflowError, ValueError):
        raise UsageError("[schedule] begins and lasts: the period ends after the year 9999") from None


def _planned(tables: Sequence[Any], settings: ScheduleSettings, ends: date) -> list[PlannedSlots]:
    """Return the jobs with their slots and the cost of each. Raises `UsageError`."""
    whens, others = [], []
    for number, table in enumerate(tables, 1):
        if not isinstance(table, dict):
            raise UsageError(f"job {number}: expected a section [[job]]")
        where = f"job {table['title']!r}:" if isinstance(table.get("title"), str) else f"job {number}:"
        whens.append(_when(where, table))
        others.append({key: value for key, value in table.items() if key not in SLOT_KEYS})
        for key in ("epsilon", "delta"):
            if key in table:
                raise UsageError(f"{where} {key} is that of [schedule], which all slots share; leave it out")
    titles = sorted(when.title for when in whens)
    for one, other in pairwise(titles):
        if one == other:
            raise UsageError(f"two jobs have the title {one!r}; give each its own")
    times = [Times(every=when.every, at=when.at, on=when.on, timezone=settings.timezone) for when in whens]
    slots = [each.slots(settings.begins, ends) for each in times]
    pure = [_is_pure(table) for table in others]
    verified = sum(len(each) for table, each in zip(others, slots, strict=True) if _is_verified(table))
    budget = Budget(settings.epsilon, settings.delta, SLACK_OF_ALL * verified)
    shares = math.fsum(when.share for when in whens)
    parts = [when.share / shares * _MARGIN for when in whens]
    costs = budget.repeated_all(parts, [len(each) for each in slots], pure)
    jobs = []
    for when, table, own_slots, is_pure, cost in zip(whens, others, slots, pure, costs, strict=True):
        own = {"epsilon": cost.epsilon, **({} if is_pure else {"delta": cost.delta})}
        jobs.append(PlannedSlots(when=when, table={**table, **own}, slots=own_slots, cost=cost))
    spent = total(job.charge for job in jobs for _ in job.slots)
    assert spent.within(settings.epsilon, settings.delta), claim_words(spent.epsilon(settings.delta), settings.delta)
    return jobs


def _when(where: str, table: Mapping[str, Any]) -> SlotSettings:
    if "title" not in table:
        raise UsageError(f"{where} title is missing{nearest('title', table)}; it names the job's series")
    try:
        return convert(where, {key: value for key, value in table.items() if key in SLOT_KEYS}, SlotSettings)
    except UsageError as error:
        text = str(error)
        raise UsageError(text if text.startswith(where) else f"{where} {text}") from None


def _is_verified(table: Mapping[str, Any]) -> bool:
    return table.get("verified") is True


def _is_pure(table: Mapping[str, Any]) -> bool:
    """Return True for a job of ε-private reports. Raises `DataError` for an unknown one."""
    from inference.jobs import NAMES, find
    from inference.jobs.settings import described, settings_from

    job = find(str(table.get("name", NAMES[0])))
    own = {name for name, _, _ in described(job.settings)}
    settings = settings_from(job.settings, {key: value for key, value in table.items() if key in own}, job.name)
    return job.mechanism(settings) in PURE_MECHANISMS


def results_path(path: Path) -> Path:
    """Return the path of the results of a file of standing jobs, or the path itself if it is no TOML file.

    Raises `UsageError`.
    """
    return read_schedule(path).results if path.suffix == ".toml" else path
