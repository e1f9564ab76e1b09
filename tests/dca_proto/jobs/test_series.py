"""The database of results has one writer, and a slot belongs to one plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from dca_proto.cli.results import _overview
from dca_proto.errors import StorageError, UsageError
from dca_proto.jobs.calendar import Slot
from dca_proto.jobs.series import Series
from dca_proto.results.series import SeriesResult

RESULT = SeriesResult(estimates=[])
FIRST, SECOND, THIRD = (Slot(number, f"day {number}", 1000 * number) for number in (1, 2, 3))


def test_a_second_schedule_may_read_but_not_write(tmp_path: Path) -> None:
    path = tmp_path / "jobs.results.db"
    with Series(path) as series:
        with pytest.raises(StorageError, match=r"jobs.results.db is in use by process \d+.*; stop that schedule"):
            Series(path)
        series.begin(series.adopt({}, FIRST.at_ms), "mean", FIRST)
        with Series(path, read_only=True) as reader:
            assert reader.jobs() == ["mean"]
    Series(path).close()


def test_a_second_schedule_may_not_write_by_another_name(tmp_path: Path) -> None:
    path, link, second = (tmp_path / name for name in ("jobs.results.db", "elsewhere.db", "second.db"))
    link.symlink_to(path)
    with Series(path), pytest.raises(StorageError, match=r"elsewhere.db is in use by process \d+"):
        Series(link)
    second.hardlink_to(path)
    for name in (path, second):
        with pytest.raises(StorageError, match=f"{name} has 2 names"):
            Series(name)
    with Series(second, read_only=True) as reader:
        assert reader.jobs() == []


def test_an_older_plan_does_not_take_back_the_slots_of_a_newer_one(tmp_path: Path) -> None:
    with Series(tmp_path / "jobs.results.db") as series:
        old = series.adopt({"epsilon": 1}, FIRST.at_ms)
        series.begin(old, "mean", FIRST)
        assert series.adopt({"epsilon": 1}, FIRST.at_ms) == old
        new = series.adopt({"epsilon": 2}, SECOND.at_ms)
        series.begin(new, "mean", SECOND)
        assert series.adopt({"epsilon": 2}, SECOND.at_ms) == new
        with pytest.raises(UsageError, match=r"has other settings \(epsilon\), and its slot day 2 of 'mean'"):
            series.adopt({"epsilon": 1}, FIRST.at_ms)


def test_an_overview_counts_slots_and_reads_only_the_last_result(tmp_path: Path) -> None:
    with Series(tmp_path / "jobs.results.db") as series:
        plan = series.adopt({}, FIRST.at_ms)
        for slot in (FIRST, SECOND):
            series.begin(plan, "mean", slot)
            series.finish("mean", slot, RESULT, 5000)
        series._connection.execute("UPDATE slots SET result = 'x' WHERE at_ms = ?", (FIRST.at_ms,))
        series.leave_out(plan, "mean", [THIRD], "off", 5000)
        found = _overview(series, "mean")
        assert (found.done, found.gaps) == (2, 1)
        assert found.last is not None
        assert (found.last.slot, found.last.result) == ("day 2", RESULT)
        series.begin(plan, "other", FIRST)
        assert _overview(series, "other").last is None
