"""When standing jobs run: slots of an hour, a day or a week in a time zone, for a period that begins on a date.

    times = Times(every=DAY, at="06:00", timezone="Europe/Berlin")
    slots = times.slots(date(2027, 1, 1), parse_period("1y").end(date(2027, 1, 1)))

**Clocks that change.** A day has one daily slot, and a week one weekly slot, also where it has 23 or 25 hours. Where
clocks skip the time of a slot, it is as much later as they jump; where the time occurs twice, the slot is at the first.
Hourly slots are an hour apart, whatever the clocks show, so a day with 25 hours has 25.

Everything follows from the dates: a clock that is set, or a restart, changes no slot.
"""

from __future__ import annotations

import re
from calendar import isleap
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from dca_proto.errors import UsageError
from dca_proto.wording import counted, nearest

HOUR, DAY, WEEK = "hour", "day", "week"
EVERY = (HOUR, DAY, WEEK)
ADVERBS = {HOUR: "hourly", DAY: "daily", WEEK: "weekly"}
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
HOUR_MS = 3_600_000
LENGTH_MS = {HOUR: HOUR_MS, DAY: 24 * HOUR_MS, WEEK: 7 * 24 * HOUR_MS}
"""The usual distance of two slots."""
SLOTS_MAX = 16_384
"""The most slots of one job: what a client's policy allows in a year by default."""
_PERIOD = re.compile(r"([1-9]\d{0,3})([dwy])")
_UNITS = {"d": "day", "w": "week", "y": "year"}
_YEAR_DAYS, _YEARS_MAX = 365, 100
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_MINUTE = re.compile(r":([0-5]\d)")

Every = Annotated[str, Meta(description=f"How often: {', '.join(EVERY)}.", examples=list(EVERY))]


class Slot(NamedTuple):
    """One planned run of a job: its number (0, 1, ...), its name (a date, or a date with the hour), and its time."""

    number: int
    name: str
    at_ms: int


class Period(NamedTuple):
    """A number of days, weeks or years."""

    number: int
    unit: str

    @property
    def words(self) -> str:
        """The period for people: "1 year"."""
        return counted(self.number, _UNITS[self.unit])

    @property
    def days(self) -> int:
        """The number of days; a year has 365."""
        return self.number * {"d": 1, "w": 7, "y": _YEAR_DAYS}[self.unit]

    def end(self, begins: date) -> date:
        """Return the first day after the period. A year from 29 February ends on 1 March.

        Raises `ValueError` or `OverflowError` beyond the year 9999.
        """
        if self.unit != "y":
            return begins + timedelta(days=self.days)
        year, month, day = begins.year + self.number, begins.month, begins.day
        if (month, day) == (2, 29) and not isleap(year):
            month, day = 3, 1
        return date(year, month, day)

    def count(self, every: str) -> int:
        """Return the largest number of slots that a period of so many days can have, in UTC."""
        days = self.days
        return {HOUR: 24 * days, DAY: days, WEEK: -(-days // 7)}[every]


def parse_period(text: str, where: str = "") -> Period:
    """Parse ``1y``, ``26w`` or ``90d``. Raises `UsageError`, which begins with `where`."""
    found = _PERIOD.fullmatch(text)
    period = Period(int(found[1]), found[2]) if found else None
    if period is None or period.days > _YEARS_MAX * _YEAR_DAYS:
        raise UsageError(f"{where}{text[:32]!r}: expected a number of days, weeks or years, such as 90d, 26w or 1y")
    return period


def require_every(text: str, where: str = "") -> str:
    """Return a word of `EVERY`. Raises `UsageError`, which begins with `where`."""
    if text not in EVERY:
        raise UsageError(f"{where}{text[:32]!r} is unknown{nearest(text[:32], EVERY)}; expected {', '.join(EVERY)}")
    return text


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """When a job runs.

    Attributes:
        every: ``hour``, ``day`` or ``week``. at: ``HH:MM`` of a day, or ``:MM`` of an hour. on: the day of a week.
        timezone: a name of the IANA database, such as ``Europe/Berlin``.

    Raises:
        UsageError: a value is unknown, or does not fit `every`.
    """

    every: str = DAY
    at: str = ""
    on: str = ""
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        require_every(self.every, "every = ")
        if self.at and not self._clock.fullmatch(self.at):
            form = "the minutes of an hour, such as :15" if self.every == HOUR else "a time, such as 06:00"
            raise UsageError(f"at = {self.at[:32]!r}: expected {form}")
        if self.on and (self.every != WEEK or self.on not in WEEKDAYS):
            expected = f"one of {', '.join(WEEKDAYS)}" if self.every == WEEK else 'a weekday only for every = "week"'
            raise UsageError(f"on = {self.on[:32]!r}: expected {expected}{nearest(self.on[:32], WEEKDAYS)}")
        zone_of(self.timezone)

    @property
    def _clock(self) -> re.Pattern[str]:
        return _MINUTE if self.every == HOUR else _CLOCK

    def slots(self, begins: date, ends: date) -> list[Slot]:
        """Return the slots from the start of one day to the start of another, in order.

        Raises `UsageError` if there are none, or too many.
        """
        found = [Slot(number, *named) for number, named in enumerate(self._named(begins, ends))]
        if not 1 <= len(found) <= SLOTS_MAX:
            raise UsageError(
                f"found {counted(len(found), 'slot')} from {begins} to {ends}, expected 1 to {SLOTS_MAX:,}: choose "
                "another period, or run less often"
            )
        assert all(one.at_ms < other.at_ms for one, other in pairwise(found)), "slots are in order"
        return found

    def _named(self, begins: date, ends: date) -> Iterator[tuple[str, int]]:
        zone, found = zone_of(self.timezone), self._clock.fullmatch(self.at)
        if self.every == HOUR:
            at_ms = _instant(begins, time(), zone) + 60_000 * (int(found[1]) if found else 0)
            end_ms = min(_instant(ends, time(), zone), at_ms + (SLOTS_MAX + 1) * HOUR_MS)
            for moment_ms in range(at_ms, end_ms, HOUR_MS):
                yield f"{datetime.fromtimestamp(moment_ms / 1000, UTC):%Y-%m-%dT%H:%MZ}", moment_ms
            return
        clock = time(int(found[1]), int(found[2])) if found else time()
        weekday, last_ms = WEEKDAYS.index(self.on or WEEKDAYS[0]), -1
        for ahead in range((ends - begins).days):
            day = begins + timedelta(days=ahead)
            if self.every == WEEK and day.weekday() != weekday:
                continue
            at_ms = _instant(day, clock, zone)
            if at_ms > last_ms:  # a zone that changed sides of the date line has skipped a day
                yield f"{day}", at_ms
                last_ms = at_ms


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone. Raises `UsageError`."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise UsageError(
            f"timezone = {name[:64]!r} is not known here: expected a name such as 'UTC' or 'Europe/Berlin'; a system "
            "without a database of time zones needs `pip install tzdata`"
        ) from None


def _instant(day: date, clock: time, zone: ZoneInfo) -> int:
    """Return a local time in Unix milliseconds: the first of two, and later by the jump where clocks skip it."""
    return round(datetime.combine(day, clock, zone).timestamp()) * 1000
