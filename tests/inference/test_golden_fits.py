"""Each job's fit to fixed rows and noise has the estimates and standard deviations of `golden_fits.json`.

The scripts in `docs/measurements.md` measure that intervals hold. These tests show that fits are still those that were
measured: a hundredth of a standard deviation is seen.
"""

from __future__ import annotations

import json

import pytest
from long_cases import mostly_long

from inference.jobs import NAMES
from make_golden_fits import CASES, FILE, SAMPLED, TOLERANCE, apart

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))
SLOW = ("poisson-regression", "categorical", "logistic, ")


@pytest.mark.parametrize("name", mostly_long(CASES, lambda name: not name.startswith(SLOW)))
def test_a_fit_is_that_which_was_measured(name: str) -> None:
    """If it differs on purpose, run the job's script of `docs/measurements.md`, then `make_golden_fits.py`."""
    far = apart(CASES[name].fit(), GOLDEN[name])
    assert {figure: sds for figure, sds in far.items() if sds > TOLERANCE} == {}


def test_each_job_has_a_golden_fit() -> None:
    assert set(GOLDEN) == set(CASES)
    assert {case.job for case in CASES.values()} == {*NAMES} - {*SAMPLED}


def test_a_hundredth_of_an_estimate_or_of_its_spread_is_seen() -> None:
    before: dict[str, list[float | None]] = {"a": [1.0, 0.5, 0.0, 2.0], "b": [2.0, None, None, None]}
    assert apart(before, before) == {"a": 0, "b": 0}
    moved = apart({"a": [1.0, 0.51, 0.0, 1.98], "b": [2.1, None, None, None]}, before)
    assert moved == pytest.approx({"a": 0.04, "b": 0.05})
    with pytest.raises(ValueError, match="figures a; expected a, b"):
        apart({"a": before["a"]}, before)
    with pytest.raises(ValueError, match=r"b is \[2.0, 1.0, None, None\]; expected"):
        apart({**before, "b": [2.0, 1.0, None, None]}, before)
