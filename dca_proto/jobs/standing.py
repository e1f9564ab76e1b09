"""Runs standing jobs on a running trainer: each slot once, in its time, with one budget for the period.

    standing = Standing(jobs, trainer, series, plan, folder=Path("."))
    await standing.run()

**A slot is charged once.** Each has a share of the budget and a journal of its own (`jobs.journal`), whose rounds never
exceed that share, in spite of retries and restarts. A killed schedule finishes the slot that it had begun, from the
same journal. Once the result is in the series, the journal is deleted.

**No catching up.** A slot begins at its time, or late by at most `late_ms`. One that was not begun by then is a gap. A
slot whose round fails is tried again until then, as far as its share allows: after 1/8, 3/8 and 7/8 of `late_ms`. A
clock that is set forward makes gaps; a clock that is set back runs no slot twice.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dca_proto.aggregate import Job, NoisyAggregate
from dca_proto.errors import DcaError, RoundAborted, StorageError, TransportError, UsageError
from dca_proto.jobs.calendar import LENGTH_MS, Slot
from dca_proto.jobs.journal import Journal
from dca_proto.jobs.runner import RETRIES, FinishedRequest, JobTrainer, learn
from dca_proto.jobs.series import Series
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.results.series import BEGUN, DONE, SeriesResult
from dca_proto.wording import JsonObject, duration, printable

LOOK_S = 30.0
"""How often a waiting schedule reads the clock, which may be set."""
WARN_MS = LENGTH_MS["week"]
"""How long before the end of the period a schedule says so."""
_FIRST_PAUSE = 1 / 8  # of the time that a slot may be late; each pause is twice the one before
NOT_RUN = "the schedule did not run"


class ScheduleClock(Protocol):
    """The time of a schedule."""

    def now_ms(self) -> int:
        """Unix milliseconds."""


@dataclass(frozen=True)
class Prepared:
    """A job that is ready to run once.

    Attributes:
        make: returns the generator of rounds. terms: of its rounds, with the slot's share of the budget.
        settings, free: identify the job in its journal, and which of them may change.
        record: makes the result to keep of the job's, and the requests that it made. It may take long.
        clients: to pick mini-batches from before the first round open to all.
    """

    make: Callable[[], Job[Any]]
    terms: Any
    settings: JsonObject
    record: Callable[[Any, Sequence[FinishedRequest]], SeriesResult]
    free: tuple[str, ...] = ()
    clients: tuple[bytes, ...] = ()
    retries: int = RETRIES


@dataclass(frozen=True)
class StandingJob:
    """A job with its slots.

    Attributes:
        title: names its series. every: how often it runs. slots: of the period, in order.
        late_ms: how late a slot may begin. cost: of each slot to a participant.
        prepare: called before each slot, since the federation's Compute nodes may have changed. Raises `UsageError`.
    """

    title: str
    every: str
    slots: Sequence[Slot]
    late_ms: int
    cost: PrivacyCost
    prepare: Callable[[], Prepared]


@dataclass(frozen=True)
class SlotEnded:
    """Fact: a slot has ended, with a result or with the reason why there is none."""

    job: str
    slot: Slot
    result: SeriesResult | None
    reason: str = ""


@dataclass(frozen=True)
class SlotsMissed:
    """Fact: the schedule did not run when these slots were due."""

    job: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class SlotDelayed:
    """Fact: a slot has no result yet and is tried again, at most until `until_ms`."""

    job: str
    slot: Slot
    reason: str
    until_ms: int


@dataclass(frozen=True)
class EndsSoon:
    """Fact: the last slot of a period is at most a week away."""

    at_ms: int


Fact = SlotEnded | SlotsMissed | SlotDelayed | EndsSoon


@dataclass
class Standing:
    """A schedule under way.

    Attributes:
        jobs, trainer, series: what runs where. plan: the number of the plan in the series.
        folder: where the journals of slots under way are. clock: read before each slot.
        on_fact: called with each fact. look_s: how often the clock is read while nothing is due.
    """

    jobs: Sequence[StandingJob]
    trainer: JobTrainer
    series: Series
    plan: int
    folder: Path
    clock: ScheduleClock
    on_fact: Callable[[Fact], None] = lambda fact: None
    look_s: float = LOOK_S

    async def run(self) -> None:
        """Run all slots that are left; return after the last one.

        Raises `TransportError` if the connection was closed, `StorageError` if a result cannot be stored.
        """
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dca-schedule")
        work = [asyncio.create_task(self._run_job(job)) for job in self.jobs]
        warning = asyncio.create_task(self._warn())
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_EXCEPTION)
            for task in work:
                if task.done():
                    task.result()
        finally:
            for task in (*work, warning):
                task.cancel()
            await asyncio.wait((*work, warning))
            self._thread.shutdown(wait=False)

    def left(self, job: StandingJob) -> list[Slot]:
        """Return the slots of a job that have not ended, in order."""
        states = self.series.states(self.plan, job.title)
        return [slot for slot in job.slots if states.get(slot.at_ms, BEGUN) == BEGUN]

    # --- one job ------------------------------------------------------------------------------------------------------

    async def _run_job(self, job: StandingJob) -> None:
        states = self.series.states(self.plan, job.title)
        begun = {at_ms for at_ms, state in states.items() if state == BEGUN}
        for slot in job.slots:
            if states.get(slot.at_ms) == DONE:  # its process was killed before it had deleted the journal
                self.journal_path(job, slot).unlink(missing_ok=True)
        waiting = deque(self.left(job))
        while waiting:
            slot = waiting[0]
            if slot.at_ms not in begun:
                await self._until(slot.at_ms)
                least_ms = self.clock.now_ms() - job.late_ms
                if over := [
                    one for one in waiting if one.at_ms < least_ms and one.at_ms not in begun
                ]:  # the machine was off or slept, or its clock was set
                    self._leave_out(job, over)
                    waiting = deque(one for one in waiting if one not in over)
                    continue
                self.series.begin(self.plan, job.title, slot)
            waiting.popleft()
            await self._run_slot(job, slot)

    def _leave_out(self, job: StandingJob, slots: Sequence[Slot]) -> None:
        now_ms = self.clock.now_ms()
        self.series.leave_out(self.plan, job.title, slots, NOT_RUN, now_ms)
        self.on_fact(SlotsMissed(job.title, tuple(slots)))

    async def _run_slot(self, job: StandingJob, slot: Slot) -> None:
        """Run a slot that has begun until it has a result, or its time is over."""
        pause_ms, until_ms = job.late_ms * _FIRST_PAUSE, slot.at_ms + job.late_ms
        place = self.journal_path(job, slot)
        while (failure := await self._try(job, slot, place)) is not None:
            again_ms = self.clock.now_ms() + pause_ms
            if failure.has_sums or again_ms > until_ms:
                reason = f"{failure.reason}; its sums are in {place}" if failure.has_sums else failure.reason
                self.series.fail(job.title, slot, reason, self.clock.now_ms(), charged=failure.charged)
                self.on_fact(SlotEnded(job.title, slot, None, reason))
                break
            self.on_fact(SlotDelayed(job.title, slot, failure.reason, until_ms))
            await self._until(again_ms)
            pause_ms *= 2
        if failure is None or not failure.has_sums:
            place.unlink(missing_ok=True)

    async def _try(self, job: StandingJob, slot: Slot, place: Path) -> _Failure | None:
        """Run a slot's job, or finish it, and store its result; return why it has none."""
        held: list[FinishedRequest] = []
        gate = _Gate(self.trainer, self.clock, slot.at_ms + job.late_ms)

        def note(ended: FinishedRequest) -> None:
            held.append(ended)
            gate.has_sum |= ended.aggregate is not None

        try:
            prepared = job.prepare()
            with Journal(place, {**prepared.settings, "slot": slot.name}, free=prepared.free) as journal:
                learned = await learn(
                    prepared.make(),
                    gate,
                    prepared.terms,
                    journal,
                    clients=prepared.clients,
                    retries=prepared.retries,
                    on_round=note,
                )
            work = functools.partial(prepared.record, learned, held)
            result = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (TransportError, StorageError):
            raise
        except (RoundAborted, UsageError) as error:
            return _Failure(printable(str(error)), gate.has_charge)
        except Exception as error:  # a job may fail on any sum: the other jobs go on
            if gate.is_broken:
                raise
            return _Failure(printable(f"the job failed on its sums: {error or type(error).__name__}"), True, True)
        self.series.finish(job.title, slot, result, self.clock.now_ms())
        self.on_fact(SlotEnded(job.title, slot, result))
        return None

    def journal_path(self, job: StandingJob, slot: Slot) -> Path:
        """Return the path of the journal of a slot under way."""
        plain = re.sub(r"[^a-z0-9]+", "-", job.title.lower()).strip("-")[:32]
        short = hashlib.blake2b(job.title.encode(), digest_size=4).hexdigest()
        name = f"{self.series.path.stem}.{plain}-{short}.{slot.name.replace(':', '')}.journal"
        return self.folder / name

    # --- time ---------------------------------------------------------------------------------------------------------

    async def _until(self, at_ms: float) -> None:
        """Wait until the clock shows this time; it is read again and again, since it may be set."""
        while (left_ms := at_ms - self.clock.now_ms()) > 0:  # noqa: ASYNC110 - no event tells of a clock that is set
            await asyncio.sleep(min(left_ms / 1000, self.look_s))

    async def _warn(self) -> None:
        last_ms = max(job.slots[-1].at_ms for job in self.jobs)
        await self._until(last_ms - WARN_MS)
        self.on_fact(EndsSoon(last_ms))


class _Failure(NamedTuple):
    """Why a slot has no result; whether its charge remains, and whether its sums are there, in its journal."""

    reason: str
    charged: bool
    has_sums: bool = False


class _Gate:
    """The trainer as one slot may use it: it starts no first round when the slot's time is over."""

    def __init__(self, trainer: JobTrainer, clock: ScheduleClock, until_ms: int) -> None:
        self._trainer, self._clock, self._until_ms = trainer, clock, until_ms
        self._rounds: set[bytes] = set()
        self.has_sum = False  # its job may then finish
        self.is_broken = False  # the trainer itself has failed

    @property
    def has_charge(self) -> bool:
        """True if a round of the slot has kept its charge."""
        return any(self._trainer.is_charged(round_id) for round_id in self._rounds)

    async def check(self, request: OpenRound) -> None:
        """As the trainer's, but only in the slot's time."""
        late_ms = self._clock.now_ms() - self._until_ms
        if late_ms > 0 and not self.has_sum:
            raise RoundAborted(f"the time of the slot was over {duration(late_ms)} ago")
        await self._trainer.check(request)

    async def run_round(self, request: OpenRound) -> NoisyAggregate:
        """As the trainer's."""
        return await self._result(request.round_id, self._trainer.run_round(request))

    async def resume_round(self, request: OpenRound) -> NoisyAggregate:
        """As the trainer's."""
        return await self._result(request.round_id, self._trainer.resume_round(request))

    async def _result(self, round_id: bytes, result: Awaitable[NoisyAggregate]) -> NoisyAggregate:
        self._rounds.add(round_id)
        try:
            return await result
        except DcaError:
            raise
        except Exception:
            self.is_broken = True
            raise

    def contributors(self, round_id: bytes) -> tuple[bytes, ...]:
        """As the trainer's."""
        return self._trainer.contributors(round_id)

    def is_charged(self, round_id: bytes) -> bool:
        """As the trainer's."""
        self._rounds.add(round_id)  # one of the slot's, perhaps of an earlier process
        return self._trainer.is_charged(round_id)
