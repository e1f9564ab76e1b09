"""Slots of an hour, a day and a week: in time zones whose clocks change, and in leap years."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest

from dca_proto.errors import UsageError
from dca_proto.jobs.calendar import DAY, HOUR, HOUR_MS, WEEK, Slot, Times, parse_period

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia")


def utc(slot: Slot) -> str:
    return f"{datetime.fromtimestamp(slot.at_ms / 1000, UTC):%Y-%m-%d %H:%M}"


def year(times: Times, begins: date) -> list[Slot]:
    return times.slots(begins, parse_period("1y").end(begins))


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("at", ["", "02:30", "23:59"])
@pytest.mark.parametrize("begins", [date(2026, 7, 1), date(2028, 1, 1), date(2011, 6, 1)])
def test_each_day_of_a_year_has_one_slot(zone: str, at: str, begins: date) -> None:
    slots = year(Times(every=DAY, at=at, timezone=zone), begins)
    skipped = zone == "Pacific/Apia" and begins.year == 2011  # it had no 30 December
    days = (parse_period("1y").end(begins) - begins).days
    assert len(slots) == days - skipped
    assert [one.number for one in slots] == list(range(len(slots)))
    assert all(22 * HOUR_MS < other.at_ms - one.at_ms < 26 * HOUR_MS for one, other in pairwise(slots)) or skipped
    assert len({one.name for one in slots}) == len(slots)


def test_clocks_that_change_move_no_slot_to_another_day() -> None:
    times = Times(every=DAY, at="02:30", timezone="Europe/Berlin")
    spring = times.slots(date(2027, 3, 27), date(2027, 3, 30))
    assert [utc(one) for one in spring] == ["2027-03-27 01:30", "2027-03-28 01:30", "2027-03-29 00:30"]
    autumn = times.slots(date(2027, 10, 30), date(2027, 11, 2))
    assert [utc(one) for one in autumn] == ["2027-10-30 00:30", "2027-10-31 00:30", "2027-11-01 01:30"]


def test_hourly_slots_are_an_hour_apart_whatever_the_clocks_show() -> None:
    times = Times(every=HOUR, at=":15", timezone="Europe/Berlin")
    assert [len(times.slots(day, day + timedelta(1))) for day in (date(2027, 3, 28), date(2027, 10, 31))] == [23, 25]
    slots = year(times, date(2027, 1, 1))
    assert {other.at_ms - one.at_ms for one, other in pairwise(slots)} == {HOUR_MS}
    assert (slots[0].name, len(slots)) == ("2026-12-31T23:15Z", 8760)


def test_weekly_slots_are_on_their_day() -> None:
    slots = year(Times(every=WEEK, on="sunday", at="06:00"), date(2027, 1, 1))
    assert {date.fromisoformat(one.name).weekday() for one in slots} == {6}
    assert (slots[0].name, len(slots)) == ("2027-01-03", 52)


@pytest.mark.parametrize(
    ("text", "begins", "end"),
    [
        ("1y", date(2028, 2, 29), date(2029, 3, 1)),
        ("4y", date(2028, 2, 29), date(2032, 2, 29)),
        ("1y", date(2027, 3, 1), date(2028, 3, 1)),
        ("26w", date(2027, 1, 1), date(2027, 7, 2)),
        ("90d", date(2027, 1, 1), date(2027, 4, 1)),
    ],
)
def test_a_period_ends_on_a_day(text: str, begins: date, end: date) -> None:
    assert parse_period(text).end(begins) == end


@pytest.mark.parametrize("begins", [date(2027, 1, 1), date(2028, 1, 1)])
def test_a_year_has_at_most_a_leap_day_more_than_planned(begins: date) -> None:
    assert len(year(Times(every=DAY), begins)) - parse_period("1y").count(DAY) == (begins.year == 2028)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": "days"}, "every = 'days' is unknown (did you mean 'day'?); expected hour, day, week"),
        ({"at": "25:00"}, "at = '25:00': expected a time, such as 06:00"),
        ({"every": HOUR, "at": "06:00"}, "at = '06:00': expected the minutes of an hour, such as :15"),
        ({"on": "monday"}, "on = 'monday': expected a weekday only for every = \"week\""),
        ({"every": WEEK, "on": "sonday"}, "(did you mean 'sunday'?)"),
        ({"timezone": "Europe/Berln"}, "timezone = 'Europe/Berln' is not known here"),
        ({"timezone": "../../etc/passwd"}, "is not known here"),
        ({"timezone": "\0"}, "is not known here"),
    ],
)
def test_times_that_cannot_be_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Times(**settings)
    assert message in str(refusal.value)


def test_too_many_slots_are_refused() -> None:
    with pytest.raises(UsageError, match="expected 1 to 16,384"):
        Times(every=HOUR).slots(date(2027, 1, 1), date(2127, 1, 1))
    with pytest.raises(UsageError, match="found 0 slots"):
        Times(every=WEEK, on="sunday").slots(date(2027, 1, 1), date(2027, 1, 2))
