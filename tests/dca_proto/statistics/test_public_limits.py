"""Each registered statistic keeps the limits that it states: a column's range, a coordinate's bound, the grid."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from statistic_samples import KINDS, STATISTICS

from dca_proto.errors import UsageError
from dca_proto.statistics import Moments, Regression, SecondMoments, Statistic
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.counting import Counting

ROOT = Path(__file__).parents[3]
F = 24
NEAR = 0.28  # of a range of width 1, above the distance up to which codes are near enough


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda one: one.name)
def test_values_beyond_a_columns_range_are_alike(statistic: Statistic) -> None:
    """So a policy's `bounds`, which are held against the range, limit what clients send.

    Codes that are near enough count as their code; hence the distances beyond a range are a part of it, or more.
    """
    rng, k, ranges = np.random.default_rng(5), statistic.rows_per_value, statistic.ranges()
    assert set(ranges) == set(statistic.columns)
    rows = rng.choice([-9.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.4, 2.0, 9.0], size=(300 * k, len(statistic.columns)))
    for place, column in enumerate(statistic.columns):
        low, high = ranges[column]
        width = high - low
        for end, away in ((low, -width), (high, width)):
            near, far = rows.copy(), rows.copy()
            near[:, place], far[:, place] = end + NEAR * away, end + 1e6 * away
            np.testing.assert_array_equal(statistic.evaluate(near, F), statistic.evaluate(far, F), err_msg=column)


def test_the_target_of_whole_rows_has_the_range_of_the_row_that_is_scaled_down_most() -> None:
    box: dict[str, Any] = {"columns": ("a", "y"), "centre": (0.0, 10.0), "scale": (1.0, 5.0), "bound": (3.0, 2.0)}
    whole = Regression(**box, radius=1.0, whole_rows=True)
    assert whole.ranges() == {"a": (-3.0, 3.0), "y": (10.0 - 30.0, 10.0 + 30.0)}
    constant = Regression(**box, radius=1.0, whole_rows=True, intercept=True, intercept_bound=4.0)
    assert constant.ranges()["y"] == (10.0 - 50.0, 10.0 + 50.0)
    wide = Regression(**box, radius=9.0, whole_rows=True)
    assert wide.ranges() == Regression(**box, radius=1.0).ranges() == {"a": (-3.0, 3.0), "y": (0.0, 20.0)}
    y = np.array([[3.0, 10 + 29.0], [3.0, 10 + 30.0], [3.0, 10 + 1e9]])
    sent = whole.evaluate(y, F)
    assert (sent[0] < sent[1]).any(), "the range is no wider than it must be"
    np.testing.assert_array_equal(sent[1], sent[2])


@pytest.mark.parametrize("bits", [0, 4, F])
@pytest.mark.parametrize("kind", [Moments, SecondMoments])
def test_squares_about_a_constant_keep_their_bound_if_they_have_but_one_grid_unit(
    kind: type[Counting], bits: int
) -> None:
    """At bounds just below two units, half of the bound's square rounds to more than the square of the one unit."""
    unit = math.ldexp(1, -bits // 2)
    for bound in (1.0, 1.5, 1.9, 1.97, 1.999):
        box: dict[str, Any] = {"columns": ("x",), "centre": (0.0,), "scale": (1.0,), "bound": (bound * unit,)}
        statistic: Any = kind(**box, count_weight=2.0**-bits)
        values = np.vstack([statistic.evaluate(unit * np.array([[-2.0], [-1.0], [0.0], [1.0]]), bits)])
        stated = statistic.row_sensitivity(bits)
        assert np.abs(values).max() <= stated.bound
        both = np.vstack([values, np.zeros_like(values[:1])])
        apart = both[:, None] - both
        assert (apart**2).sum(axis=2).max() <= stated.l2_squared
        assert np.abs(apart).sum(axis=2).max() <= stated.l1


@pytest.mark.parametrize("statistic", [one for one in STATISTICS if hasattr(one, "bound")], ids=lambda one: one.name)
def test_bounds_that_do_not_fit_the_grid_are_refused_before_anybody_takes_part(statistic: Any) -> None:
    none = {"offsets": ()} if hasattr(statistic, "offsets") else {}  # they are limited by the bounds
    tiny = replace(statistic, bound=(*statistic.bound[:-1], 1e-9), **none)
    with pytest.raises(UsageError, match=r"bound 1e-09 of column '.*' is below one grid unit"):
        client_sensitivity(tiny, 0, 0)


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda one: one.name)
def test_the_largest_numbers_are_values_like_any_other(statistic: Statistic) -> None:
    """Warnings are errors in tests, and an error would make the row a missing one."""
    k, width = statistic.rows_per_value, len(statistic.columns)
    for size in (1.7e308, -1.7e308, 5e-324):
        statistic.evaluate(np.full((k, width), size), 40)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_built_in_statistic_names_the_tests_of_its_sensitivity(kind: type[Statistic]) -> None:
    """The table in PRIVACY.md is made of these; tests/test_tidy.py compares it."""
    assert kind.proofs
    for proof in kind.proofs:
        named = re.findall(r"`(\S+\.py)`", f"`statistics/base.py` {proof.proof} {proof.tests}")
        assert any(name.startswith("test_") for name in named), proof.tests
        for name in named:
            assert [*ROOT.rglob(f"tests/**/{name}")] or (ROOT / "dca_proto" / name).exists(), name
