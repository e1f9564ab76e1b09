"""Standing jobs run each slot once, in its time, whatever happens to the process, the nodes and the clock."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from memory_swarm import WHOLE, Killed, Power, Swarm
from standing_work import HOUR_MS, LATE_MS, TITLE, Year
from virtual_time import run

from dca_proto.jobs.standing import NOT_RUN, EndsSoon, SlotDelayed
from dca_proto.protocol.policy import BudgetLimit
from dca_proto.results.series import DONE, FAILED, MISSED

WEEK_S = 8 * 86_400


def states(year: Year) -> list[str]:
    return [one.state for one in year.slots()]


def check_series(year: Year) -> None:
    """Each slot has one row, a result that is the truth, and at most one charge of its share."""
    slots = year.slots()
    assert [one.at_ms for one in slots] == [one.at_ms for one in year.made().slots]
    for one in slots:
        if one.result is not None:
            assert one.result.estimates[0].estimate == pytest.approx(WHOLE)
    done = sum(one.state == DONE for one in slots)
    kept = sum(one.charged for one in slots)
    assert max(year.swarm.charges()) == done + kept
    for client in year.swarm.clients:
        spent = client.ledger.spent()
        assert spent.gaussian == pytest.approx((done + kept) * year.made().cost.gaussian, rel=1e-6)
        assert spent.within(year.budget.epsilon, year.budget.delta)
    assert not list(year.folder.glob("*.journal")), "a slot that is over has no journal"


def test_each_day_has_its_result_and_the_end_is_announced(tmp_path: Path) -> None:
    year = Year(Swarm(), tmp_path, days=9)

    async def story() -> None:
        async with year.swarm.up(), year.swarm.trainer() as trainer:
            await year.process(trainer)

    run(story(), 10 * 86_400)
    assert states(year) == [DONE] * 9
    check_series(year)
    assert [fact for fact in year.facts if isinstance(fact, EndsSoon)] == [EndsSoon(year.at(8).at_ms)]


@pytest.mark.long
@pytest.mark.parametrize("what", ["series", "store"])
def test_a_schedule_killed_at_any_point_charges_no_slot_twice_and_loses_no_result(tmp_path: Path, what: str) -> None:
    """Each process runs two days and is killed once, at each point of its writes in turn; the next one goes on."""

    def lives(fails_at: int, folder: Path) -> tuple[Year, int]:
        folder.mkdir()
        year = Year(Swarm(), folder, days=2)
        power = Power(fails_at)
        mine, its = (power, Power()) if what == "series" else (Power(), power)

        async def story() -> None:
            async with year.swarm.up():
                with contextlib.suppress(Killed):
                    async with year.swarm.trainer(its) as trainer:
                        await year.process(trainer, mine)
                if power.passed >= fails_at > 0:
                    async with year.swarm.trainer() as trainer:
                        await year.process(trainer)

        run(story(), 3 * 86_400)
        return year, power.passed

    _, points = lives(0, tmp_path / "whole")
    assert points > 4
    for fails_at in range(1, points + 1):
        year, _ = lives(fails_at, tmp_path / f"{fails_at}")
        assert states(year) == [DONE] * 2, fails_at
        check_series(year)


def test_a_schedule_that_was_off_states_its_gaps_and_does_not_catch_up(tmp_path: Path) -> None:
    year = Year(Swarm(), tmp_path, days=6)

    async def story() -> None:
        async with year.swarm.up():
            year.made()
            await asyncio.sleep((year.at(3).at_ms + LATE_MS + HOUR_MS - year.now_ms()) / 1000)
            async with year.swarm.trainer() as trainer:
                await year.process(trainer)

    run(story(), WEEK_S)
    assert states(year) == [MISSED] * 4 + [DONE] * 2
    assert {one.reason for one in year.slots()[:4]} == {NOT_RUN}
    assert len(year.swarm.announced) == 2
    check_series(year)


def test_a_slot_that_is_late_by_less_than_it_may_still_runs(tmp_path: Path) -> None:
    year = Year(Swarm(), tmp_path, days=2)

    async def story() -> None:
        async with year.swarm.up():
            year.made()
            await asyncio.sleep((year.at(0).at_ms + LATE_MS - HOUR_MS - year.now_ms()) / 1000)
            async with year.swarm.trainer() as trainer:
                await year.process(trainer)

    run(story(), WEEK_S)
    assert states(year) == [DONE] * 2
    check_series(year)


@pytest.mark.parametrize("set_hours", [-30, 30])
def test_a_clock_that_is_set_runs_no_slot_twice(tmp_path: Path, set_hours: int) -> None:
    year = Year(Swarm(), tmp_path, days=5)

    async def story() -> None:
        async with year.swarm.up(), year.swarm.trainer() as trainer:
            work = asyncio.create_task(year.process(trainer))
            await asyncio.sleep((year.made().slots[1].at_ms + HOUR_MS - year.now_ms()) / 1000)
            year.ahead_ms = set_hours * HOUR_MS
            await work

    run(story(), WEEK_S)
    assert states(year) == [DONE] * 5 if set_hours < 0 else [DONE] * 2 + [MISSED] + [DONE] * 2
    check_series(year)


def test_a_lost_node_delays_a_slot_and_then_leaves_a_gap(tmp_path: Path) -> None:
    """Without its second node no sum is possible: day 0 is a gap, day 1 has a result once the node is back."""
    year = Year(Swarm(), tmp_path, days=3)

    async def story() -> None:
        async with year.swarm.up(), year.swarm.trainer() as trainer:
            node = year.swarm.running[year.swarm.actors.computes[1]]
            node.cancel()
            await year.process(trainer)

    run(story(), WEEK_S)
    assert states(year) == [FAILED] * 3
    assert any(isinstance(fact, SlotDelayed) and fact.job == TITLE for fact in year.facts)
    assert all(one.reason for one in year.slots())
    check_series(year)


def test_slots_beyond_the_account_are_gaps_and_cost_nothing(tmp_path: Path) -> None:
    year = Year(Swarm(account=BudgetLimit(epsilon=2.0, delta=1e-6)), tmp_path, days=4)

    async def story() -> None:
        async with year.swarm.up(), year.swarm.trainer() as trainer:
            await year.process(trainer)

    run(story(), WEEK_S)
    found = states(year)
    assert found[0] == DONE
    assert found[-1] == FAILED
    assert "the federation's account" in year.slots()[-1].reason
    check_series(year)
