"""A schedule over a swarm in memory and in virtual time: a daily mean whose process tests kill and start again."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from memory_swarm import Power, Swarm, ask

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.jobs.calendar import DAY, Slot, Times
from dca_proto.jobs.runner import FinishedRequest
from dca_proto.jobs.series import Series
from dca_proto.jobs.standing import Fact, Prepared, Standing, StandingJob
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.results.series import SeriesEstimate, SeriesResult, SeriesSlot
from dca_proto.runtime.live import LiveTrainer

TITLE, HOUR_MS = "daily mean", 3_600_000
LATE_MS = 6 * HOUR_MS


def one_sum() -> Generator[RoundRequest, NoisyAggregate, float]:
    """A job of one round that spends the whole budget of its slot."""
    aggregate = yield ask(share=1.0)
    return float(aggregate.value[0])


def record(value: float, held: Sequence[FinishedRequest]) -> SeriesResult:
    estimate = SeriesEstimate(name="sum", estimate=value, sd=0.1, interval_95=[value - 0.2, value + 0.2])
    (aggregate,) = [one.aggregate for one in held if one.aggregate is not None]
    return SeriesResult(estimates=[estimate], contributors=aggregate.contributors, rounds=[aggregate.round_id.hex()])


class PoweredSeries(Series):
    """The series of a process that is killed before or after a transaction."""

    power = Power()

    def _write(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        self.power.point()
        super()._write(statement, rows)
        self.power.point()


@dataclass
class Year:
    """A daily job over some days from tomorrow, on a swarm's clock.

    Attributes:
        ahead_ms: added to the clock, as if it were set.
        facts: of all processes.
    """

    swarm: Swarm
    folder: Path
    days: int
    budget: Budget = field(default_factory=lambda: Budget(4.0, 1e-6))
    facts: list[Fact] = field(default_factory=list)
    ahead_ms: int = 0

    def __post_init__(self) -> None:
        self.job: StandingJob | None = None

    def now_ms(self) -> int:
        return self.swarm._clock.now_ms() + self.ahead_ms

    def made(self) -> StandingJob:
        """The job; its slots begin on the next day of the swarm's clock at the first call."""
        if self.job is None:
            begins = datetime.fromtimestamp(self.now_ms() / 1000, UTC).date().toordinal() + 1
            slots = Times(every=DAY, at="06:00").slots(date.fromordinal(begins), date.fromordinal(begins + self.days))
            cost = self.budget.repeated(1 - 1e-8, len(slots))
            terms = self.swarm.terms(epsilon=cost.epsilon, delta=cost.delta)
            prepared = Prepared(make=one_sum, terms=terms, settings={"job": "sum"}, record=record)
            self.job = StandingJob(TITLE, DAY, slots, LATE_MS, PrivacyCost.of_mu(terms.budget.mu), lambda: prepared)
        return self.job

    async def process(self, trainer: LiveTrainer, power: Power | None = None, look_s: float = 1800) -> None:
        """One process of the schedule, until its last slot or its death."""
        path = self.folder / "jobs.results.db"
        with PoweredSeries(path) as series:
            series.power = power or Power()
            job = self.made()
            plan = series.adopt({"days": self.days}, job.slots[0].at_ms)
            standing = Standing(
                [job], trainer, series, plan, self.folder, self, on_fact=self.facts.append, look_s=look_s
            )
            await standing.run()

    def slots(self) -> list[SeriesSlot]:
        with Series(self.folder / "jobs.results.db", read_only=True) as series:
            return series.slots(TITLE)

    def at(self, number: int) -> Slot:
        return self.made().slots[number]
