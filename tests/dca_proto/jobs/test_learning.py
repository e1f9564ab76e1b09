"""A learning job at a live trainer: whatever ends its process, wherever, the job goes on as if nothing had been.

Real actors over a broker in memory, in virtual time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from memory_swarm import (
    CLIENTS,
    PARAMETERS,
    SETTINGS,
    WHOLE,
    Killed,
    LoadedTrainer,
    Power,
    PoweredJournal,
    Swarm,
    ask,
    job_of,
    means,
    modest,
    rounds_in,
)
from virtual_time import run

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.cli.job_run import job_round
from dca_proto.errors import NoAggregate, RoundAborted, UsageError
from dca_proto.jobs.journal import Entry, Failed, Journal, Summed, journal_path
from dca_proto.jobs.runner import FinishedRequest, JobRounds, _aborted, learn
from dca_proto.jobs.sync import TrainerRounds
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.facts import RoundFailed
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.policy import BudgetLimit
from dca_proto.protocol.trainer.round import ROUNDS
from dca_proto.runtime.live import abort_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_path(tmp_path / "trainer.db", "means")


# Kills


async def play(swarm: Swarm, path: Path, power: Power | None = None, **changes: Any) -> list[float]:
    """A process of the trainer that runs the job from its beginning, or goes on with it."""
    power = power or Power()
    with contextlib.ExitStack() as stack:
        journal = stack.enter_context(PoweredJournal(path, SETTINGS, power))
        async with swarm.trainer(power) as trainer:
            return await learn(means(0, 2, 2), trainer, swarm.terms(), journal, **changes)


def killed_at(point: int, path: Path) -> tuple[bool, Swarm]:
    """The job with a kill at one point, and gone on with; whether that point was reached."""
    swarm, power = Swarm(), Power(point)

    async def story() -> list[float]:
        async with swarm.up():
            try:
                return await play(swarm, path, power)
            except Killed:
                return await play(swarm, path)

    whole, first, second = run(story())
    assert whole == WHOLE
    assert first + second == WHOLE, "the second batch is of those who were not in the first"
    return power.passed >= point, swarm


@pytest.mark.long
def test_a_job_killed_anywhere_continues_without_a_double_charge(tmp_path: Path) -> None:
    """Before, while and after each entry is written, and before and after each of the trainer's transactions."""
    for point in range(1, 200):
        path = tmp_path / f"{point}.journal"
        was_reached, swarm = killed_at(point, path)
        assert swarm.charges() == [2] * CLIENTS
        assert [type(end) for _, end in rounds_in(path)] == [Summed] * 3
        table = [msgspec.msgpack.decode(one.value) for one in swarm.store.load() if one.table == LEDGER]
        assert sorted(len(one["clients"]) for one in table) == [0, 2, 2]
        if not was_reached:
            break
    assert 30 < point < 199, "all points of the job"


def test_a_finished_job_returns_its_result_without_a_trainer(path: Path) -> None:
    swarm = Swarm()

    async def story() -> tuple[list[float], list[float], list[FinishedRequest]]:
        results: list[FinishedRequest] = []
        async with swarm.up():
            first = await play(swarm, path)
        count = len(swarm.announced)
        second = await play(swarm, path, on_round=results.append)
        assert len(swarm.announced) == count
        return first, second, results

    first, second, results = run(story())
    assert first == second
    assert [(one.number, one.attempts, one.recalled, one.reason) for one in results] == [
        (number, 1, True, "") for number in (1, 2, 3)
    ]


class Unending(Journal):
    """A journal of a process that is killed before it writes its first result."""

    def append(self, entry: Entry) -> None:
        if isinstance(entry, Summed):
            raise Killed
        super().append(entry)


async def killed_after_a_round(swarm: Swarm, path: Path) -> None:
    """The first round is done at the trainer, and the journal does not know it."""
    with pytest.raises(Killed), Unending(path, SETTINGS) as journal:
        async with swarm.trainer() as trainer:
            await learn(means(0, 2, 2), trainer, swarm.terms(), journal)


def test_a_round_whose_result_is_forgotten_is_repeated(path: Path) -> None:
    """The next process comes after the trainer has forgotten it: only its charge is left."""
    swarm, results = Swarm(), []

    async def story() -> list[float]:
        async with swarm.up():
            await killed_after_a_round(swarm, path)
            for key in [key for key in swarm.store._records if key[0] == ROUNDS]:
                del swarm.store._records[key]
            return await play(swarm, path, on_round=results.append)

    assert run(story())[0] == WHOLE
    opened, failed = rounds_in(path)[0]
    assert isinstance(failed, Failed)
    assert failed.charged
    gone = f"round {opened.round.round_id.hex()} is over, and the trainer's store no longer has its result"
    assert failed.reason == gone
    assert (results[0].attempts, results[0].recalled) == (2, False)


def test_a_jobs_cost_includes_a_failed_round_that_kept_its_charge(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm()
    monkeypatch.setattr("dca_proto.jobs.sync.device.load", lambda *given, **roles: LoadedTrainer(swarm))

    async def story() -> None:
        async with swarm.up():
            await killed_after_a_round(swarm, path)

    run(story())
    for key in [key for key in swarm.store._records if key[0] == ROUNDS]:
        del swarm.store._records[key]
    with Journal(path, SETTINGS) as journal, TrainerRounds(path, swarm.terms(), journal) as rounds:
        assert rounds.spent.mu == 0
        rounds.run_round(ask())
        assert rounds.spent.mu == pytest.approx((0.1 + 0.1) ** 0.5 * swarm.terms().budget.mu), "the lost one too"
        rounds.run_round(ask(2))
        rounds.run_round(ask(2))
        assert rounds.spent.mu == pytest.approx((0.1 + 0.1 + 0.1) ** 0.5 * swarm.terms().budget.mu), "one of two"
    assert swarm.charges() == [3] * CLIENTS


def test_a_returned_charge_costs_nothing(path: Path) -> None:
    swarm = Swarm()
    swarm.mute(lambda: len(swarm.announced) < 2)

    async def story() -> float:
        async with swarm.up(), swarm.trainer() as trainer:
            rounds = JobRounds(trainer, swarm.terms(), None)
            await rounds.run_round(ask())
            return rounds.spent.mu

    assert run(story()) == pytest.approx(0.1**0.5 * swarm.terms().budget.mu)
    assert len(swarm.announced) == 2


def test_a_late_caller_receives_the_end_of_a_round(path: Path) -> None:
    """A trainer reports what it finished when it starts; a caller that comes later gets the same result."""
    swarm, failures = Swarm(), []

    async def story() -> tuple[float, float]:
        async with swarm.up():
            await killed_after_a_round(swarm, path)
            ((opened, _),) = rounds_in(path)
            async with swarm.trainer() as trainer:
                early = await trainer.resume_round(opened.round)
                late = await trainer.resume_round(opened.round)
                swarm.mute(lambda: True)
                lost = swarm.terms().open(ask(), bytes(16))
                for _ in range(2):
                    with pytest.raises(RoundAborted, match="too-few") as caught:
                        await trainer.resume_round(lost)
                    failures.append((str(caught.value), caught.value.contributors))
            return float(early.value[0]), float(late.value[0])

    assert run(story()) == (WHOLE, WHOLE)
    assert failures[0] == failures[1]
    assert failures[0][1] == 0


# Rounds that fail


def test_an_aborted_round_is_repeated_under_a_fresh_id(path: Path) -> None:
    swarm = Swarm()
    swarm.mute(lambda: len(swarm.announced) < 3)
    results: list[FinishedRequest] = []
    assert job_of(swarm, path, lambda: means(0), on_round=results.append) == [WHOLE]
    assert [one.attempts for one in results] == [3]
    assert len(set(swarm.announced)) == 3
    ends = [end for _, end in rounds_in(path)]
    assert [type(end) for end in ends] == [Failed, Failed, Summed]
    assert not any(end.charged for end in ends[:2] if isinstance(end, Failed)), "it came back against all aborts"
    assert swarm.charges() == [1] * CLIENTS


def test_a_job_whose_attempts_are_all_aborted_ends_early_and_is_recalled_so(path: Path) -> None:
    swarm = Swarm()
    swarm.mute(lambda: len(swarm.announced) > 1)
    sums, reason = job_of(swarm, path, lambda: modest(0, 2), retries=1)
    assert sums == [WHOLE]
    assert "too-few" in reason
    assert len(swarm.announced) == 3
    first, second = (opened.round.invited for opened, _ in rounds_in(path)[1:])
    assert sorted((*first, *second)) == sorted(swarm.actors.clients), "tried with others, as nobody had paid"
    swarm.mute(lambda: False)
    assert job_of(swarm, path, lambda: modest(0, 2), retries=5) == (sums, reason)
    assert len(swarm.announced) == 3, "that request is over"
    with pytest.raises(RoundAborted, match="too-few"):
        job_of(swarm, path, lambda: means(0, 2))


def test_a_jobs_record_of_an_abort_says_how_many_proofs_failed(path: Path) -> None:
    """From the trainer's error to the journal, from there to the error of a job that goes on, and to its record."""
    swarm = Swarm()
    opened = swarm.terms().open(ask(2), bytes(16))
    trainer: Any = SimpleNamespace(is_charged=lambda round_id: False)

    async def too_few() -> NoisyAggregate:
        raise abort_of(RoundFailed(opened.round_id, "too-few: the proofs of 4 failed", 2, 3, unproven=4))

    async def story() -> Any:
        with Journal(path, SETTINGS) as journal:
            return await JobRounds(trainer, swarm.terms(), journal)._end_of(opened, too_few())

    end = run(story())
    assert _aborted(end).unproven == 4
    terms = {"request": ask(2), "aggregate": None, "reason": end.reason, "attempts": 1, "recalled": False}
    assert job_round(FinishedRequest(number=1, **terms, unproven=end.unproven)).unproven_clients == 4


def test_a_batch_with_a_returned_charge_is_not_used(path: Path) -> None:
    """The first batch is aborted and the other half invited instead; so the next batch is the first one again."""
    swarm = Swarm()
    swarm.mute(lambda: len(swarm.announced) == 2)
    job_of(swarm, path, lambda: means(0, 2, 2))
    first, second, third = (set(opened.round.invited) for opened, _ in rounds_in(path)[1:])
    assert first == third
    assert not first & second
    assert swarm.charges() == [2] * CLIENTS


def test_a_batch_whose_charge_is_kept_is_used(path: Path) -> None:
    swarm = Swarm()
    rounds = JobRounds(None, swarm.terms(), None)
    one, two, *others = swarm.actors.clients
    for charged, used in ((True, 1), (False, 1)):
        opened = swarm.terms().open(ask(2), bytes(16), (one, two))
        rounds._note(opened, Failed(opened.round_id, "x", None, None, charged))
        assert [rounds._batches._uses[client] for client in (one, two, *others)] == [used, used, 0, 0]


def test_a_job_that_continues_without_a_sum_receives_the_same_error_again(path: Path) -> None:
    """Also where it was killed before it had the next one."""
    swarm = Swarm()
    swarm.mute(lambda: len(swarm.announced) < 2)

    def stubborn() -> Generator[RoundRequest, NoisyAggregate, list[float | None]]:
        sums: list[float | None] = []
        for _ in range(2):
            try:
                aggregate = yield ask()
                sums.append(float(aggregate.value[0]))
            except NoAggregate:
                sums.append(None)
        return sums

    with pytest.raises(Killed):
        job_of(swarm, path, stubborn, kind=Unending, retries=0)
    assert job_of(swarm, path, stubborn, retries=0) == [None, WHOLE]
    assert job_of(swarm, path, stubborn, retries=0) == [None, WHOLE]
    assert len(swarm.announced) == 2


@pytest.mark.parametrize("why", ["aborts", "account"])
def test_a_request_that_ended_the_job_is_tried_again_by_the_next_process(path: Path, why: str) -> None:
    """The job could not do without its sum; so the error is not final, as long as it does not continue."""
    swarm, results = Swarm(BudgetLimit(epsilon=1e-3, delta=1e-6) if why == "account" else None), []
    swarm.mute(lambda: why == "aborts")
    for _ in range(2):
        with pytest.raises(RoundAborted, match="too-few" if why == "aborts" else "the federation's account"):
            job_of(swarm, path, lambda: means(0), retries=0, on_round=results.append)
    swarm.mute(lambda: False)
    swarm.account = None
    assert job_of(swarm, path, lambda: means(0), retries=0, on_round=results.append) == [WHOLE]
    attempts = [1, 2, 3] if why == "aborts" else [0, 0, 1]
    assert [(one.attempts, one.recalled) for one in results] == [(count, False) for count in attempts]


def test_a_spent_budget_ends_the_job_early(path: Path) -> None:
    """Room for the round of everybody and one epoch of batches, of which each is a quarter of the square."""
    swarm = Swarm(BudgetLimit(epsilon=2.0, delta=1e-6))
    room = (swarm.account.mu / Budget(4.0, 1e-6).mu) ** 2  # type: ignore[union-attr]
    share = room / 2.5

    def job() -> Generator[RoundRequest, NoisyAggregate, tuple[int, str]]:
        rounds_n = 0
        try:
            for batch in (0, 2, 2, 2):
                yield ask(batch, share)
                rounds_n += 1
        except NoAggregate as ended:
            return rounds_n, ended.reason
        raise AssertionError

    rounds_n, reason = job_of(swarm, path, job)
    assert rounds_n == 3
    assert reason.startswith("the federation's account: found a total of epsilon")
    assert len(swarm.announced) == 3, "the fourth was not announced"
    assert swarm.charges() == [2] * CLIENTS
    swarm.account = None
    assert job_of(swarm, path, job) == (3, reason), "a job gets the same answer again"


def test_a_batch_needs_somebody_to_pick_of(path: Path) -> None:
    swarm = Swarm()
    with pytest.raises(
        UsageError, match="the job's request 1 asks for a batch of 2 clients, and no client is known yet"
    ):
        job_of(swarm, path, lambda: means(2))
    sums, reason = job_of(swarm, path, lambda: modest(2, 2, 5), clients=swarm.actors.clients)
    assert sum(sums) == WHOLE
    assert reason == "a batch of 5 clients was requested and 4 are available; request 1 to 4"


def test_an_impossible_round_leaves_nothing_behind(path: Path) -> None:
    swarm = Swarm()
    with pytest.raises(UsageError, match="bound"):
        job_of(swarm, path, wrong)
    assert rounds_in(path) == []
    assert job_of(swarm, path, lambda: means(0)) == [WHOLE]


def wrong() -> Generator[RoundRequest, NoisyAggregate, None]:
    yield RoundRequest("sum", {**PARAMETERS, "bound": [-1.0]})


# Another job


def test_a_job_with_other_requests_is_refused(path: Path) -> None:
    swarm = Swarm()
    job_of(swarm, path, lambda: means(0, 2))

    def other(**changes: Any) -> Generator[RoundRequest, NoisyAggregate, None]:
        yield dataclasses.replace(ask(), **changes)

    for changes, name in (
        ({"rows_max": 3}, "rows_max"),
        ({"budget_share": 0.2}, "epsilon, mu"),
        ({"parameters": {**PARAMETERS, "bound": [0.5]}}, "parameters"),
    ):
        with pytest.raises(UsageError, match=rf"request 1 of the job has another {name} than in the journal"):
            job_of(swarm, path, lambda changes=changes: other(**changes))
    with pytest.raises(UsageError, match="request 2 of the job has another batch than"):
        job_of(swarm, path, lambda: means(0, 3))
    with pytest.raises(UsageError, match="request 1 of the job has another epsilon, delta, mu than"):
        job_of(swarm, path, lambda: other(), delta=1e-7)
    assert job_of(swarm, path, lambda: other(), commit_s=7.0) is None, "patience may change"
    same = {**PARAMETERS, "columns": ("x",)}
    assert job_of(swarm, path, lambda: other(parameters=same)) is None, "a tuple is a list on the wire"


def test_a_journal_with_a_round_belongs_to_one_job(path: Path) -> None:
    Journal(path, SETTINGS).close()
    Journal(path, {**SETTINGS, "rounds": 4}).close()
    Journal(path, SETTINGS).close()
    job_of(Swarm(), path, lambda: means(0))
    with pytest.raises(UsageError, match=r"is the journal of a job with another extra, rounds; use the settings"):
        Journal(path, {**SETTINGS, "rounds": 4, "extra": [1]})
    Journal(path, {**SETTINGS}).close()


def test_an_unwritable_journal_still_ends_the_trainers_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The context of synchronous callers, whose thread would otherwise outlive it for ever."""
    swarm = Swarm()
    monkeypatch.setattr("dca_proto.jobs.sync.device.load", lambda *given, **roles: LoadedTrainer(swarm))
    with Journal(path, SETTINGS) as journal:
        rounds = TrainerRounds(path, swarm.terms(), journal, clients=swarm.actors.clients)
        with pytest.raises(UsageError, match="disk is full"), rounds:  # noqa: PT012
            with pytest.raises(NoAggregate):
                rounds.run_round(ask(5))
            monkeypatch.setattr(journal, "append", refuse)
    assert "dca-trainer" not in [thread.name for thread in threading.enumerate()]


def refuse(entry: Entry) -> None:
    raise UsageError("the disk is full")
