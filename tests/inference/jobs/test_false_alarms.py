"""No job warns of clean data: the short form of `scripts/check_false_alarms.py`, with fixed seeds."""

from __future__ import annotations

import pytest
from ideal_report_jobs import sampled
from long_cases import mostly_long

from check_false_alarms import alarms, designs, most, warned
from inference.jobs import NAMES

SAMPLED = ("ldp-histogram", "ldp-mean", "ldp-regression")
SLOW = ("poisson-regression", "multinomial-regression", "categorical")  # a second for each fit
PLAIN = mostly_long([name for name in NAMES if name not in SAMPLED], lambda name: name not in SLOW)


@pytest.mark.parametrize("name", [*PLAIN, *(pytest.param(name, marks=[sampled, pytest.mark.long]) for name in SAMPLED)])
def test_clean_data_get_no_warning(name: str) -> None:
    """One fit to the plainest design shows a warning that always comes."""
    assert warned(name, designs(name)[0], 0) == []


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SAMPLED])
def test_clean_data_rarely_get_a_warning(name: str) -> None:
    """Four fits to each design."""
    found = alarms(name, 4)
    assert found.are_rare, found.warnings


@pytest.mark.parametrize(("fits", "count"), [(1, 1), (4, 2), (16, 3), (80, 9)])
def test_few_warnings_are_chance(fits: int, count: int) -> None:
    """Of 80 fits of a job that warns in one of twenty, more than 9 warn in 0.65 % and more than 8 in 1.8 % of runs."""
    assert most(fits) == count
