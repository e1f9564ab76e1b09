"""No job warns of clean data: at most one fit in twenty has any warning.

All seeds are fixed, so nothing here is by chance.
"""

from __future__ import annotations

from math import comb

import pytest
from clean_designs import warned
from ideal_report_jobs import sampled

from inference.jobs import NAMES, find
from inference.jobs.examples import DESIGNS, Design

SHARE_MAX = 0.05
SAMPLED = ("ldp-histogram", "ldp-mean", "ldp-regression")
SLOW = ("poisson-regression", "multinomial-regression", "categorical")  # a second for each fit
LONG, OF_REPORTS = 20, 4  # fits of each design


def most(fits: int) -> int:
    """Return how many fits may warn: a job that warns in one of twenty is refused with a probability below 1 %."""
    chances = [comb(fits, k) * SHARE_MAX**k * (1 - SHARE_MAX) ** (fits - k) for k in range(fits + 1)]
    return next(count for count in range(fits + 1) if sum(chances[: count + 1]) > 0.99)


def designs(name: str) -> list[Design]:
    return DESIGNS[find(name).clean.designs]


def alarms(name: str, fits: int) -> list[list[str]]:
    found = [warned(name, design, seed) for design in designs(name) for seed in range(fits)]
    return [warnings for warnings in found if warnings]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*SAMPLED, *SLOW)])
def test_clean_data_get_no_warning(name: str) -> None:
    """One fit to the plainest design shows a warning that always comes; the long test has all designs."""
    assert warned(name, designs(name)[0], 0) == []


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SAMPLED])
def test_clean_data_rarely_get_a_warning(name: str) -> None:
    found = alarms(name, LONG)
    assert len(found) <= most(LONG * len(designs(name))), found


@sampled
@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLED)
def test_reports_of_clean_data_rarely_get_a_warning(name: str) -> None:
    found = alarms(name, OF_REPORTS)
    assert len(found) <= most(OF_REPORTS * len(designs(name))), found
