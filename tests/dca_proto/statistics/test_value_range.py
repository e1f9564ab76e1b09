"""Values of all kinds of rows lie in the stated range, for every registered statistic; its ends are attained."""

from __future__ import annotations

import math

import numpy as np
import pytest
from statistic_samples import STATISTICS

from dca_proto.statistics import Statistic
from dca_proto.statistics.base import built_in
from dca_proto.statistics.contribution import contribution
from dca_proto.statistics.value_range import CONSTANT

WIDER = ("mixture", "gradient", "phases", "survival-score", "category-score")
"""Statistics whose range is wider than what rows reach; so are ranges of balls."""


def test_every_registered_statistic_is_tried() -> None:
    """Statistics that other tests have registered keep the default, or state their own test."""
    assert {*built_in()} == {statistic.name for statistic in STATISTICS}


def values_of(statistic: Statistic, bits: int, rows_max: int = 1) -> np.ndarray:
    """Contributions of rows at corners, inside, far outside and with missing values, and of groups of like rows."""
    rng, width, k = np.random.default_rng(3), len(statistic.columns), statistic.rows_per_value
    kinds = [np.array([-9.0, 0.0, 9.0]), np.linspace(-4, 4, 65), np.array([-1e300, 1e300, 0.5]), np.array([np.nan, 2])]
    rows = [rng.choice(kinds[place % 4], size=(k, width)) for place in range(400)]
    rows += [np.repeat(table[:1], k, axis=0) for table in rows[:200]]
    rows += [np.repeat(rng.choice([-1.0, 1.0, 1.4, -1.4, 2, -2], size=(1, width)), k, axis=0) for _ in range(300)]
    rows += [rng.choice([0.0, 0.5, 1.0, 1.4, 2, 9], size=(k, width)) for _ in range(300)]  # with codes of events
    least = max(rows_max, k) if rows_max else 0
    return np.array([contribution(statistic, table, least, bits) for table in rows], dtype=np.float64)


@pytest.mark.parametrize("bits", [4, 24])
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda one: one.name)
def test_values_lie_in_the_range_and_reach_its_ends(statistic: Statistic, bits: int) -> None:
    limits, values = statistic.value_range(bits), values_of(statistic, bits)
    assert (limits.low <= 0).all()
    assert (limits.high >= 0).all()
    assert (values >= limits.low).all()
    assert (values <= limits.high).all()
    assert np.linalg.norm(values, axis=1).max() <= limits.length
    stated = statistic.stated_sensitivity(bits)
    assert np.maximum(limits.high, -limits.low).max() <= stated.bound
    assert limits.length <= stated.l2 * (1 + 1e-9)
    narrower = getattr(statistic, "radius", None) or getattr(statistic, "within", ())
    if bits > 4 and statistic.name not in WIDER and not narrower:
        assert (values.max(axis=0) >= limits.high * (1 - 2**-10)).all()
        assert (values.min(axis=0) <= limits.low * (1 - 2**-10)).all()
    if limits.combinations is not None:
        found = values @ limits.combinations.weights.T
        assert (found >= limits.combinations.low - 1e-3).all()
        assert (found <= limits.combinations.high + 1e-3).all()


@pytest.mark.parametrize(
    "statistic", [one for one in STATISTICS if one.value_range(24).squares], ids=lambda one: one.name
)
def test_matrices_of_values_have_no_eigenvalue_below_zero(statistic: Statistic) -> None:
    limits, values = statistic.value_range(24), values_of(statistic, 24)
    assert limits.squares is not None
    places, factors = limits.squares.places, limits.squares.factors
    np.testing.assert_array_equal(places, places.transpose(0, 2, 1))
    for value in values[::23]:
        matrices = factors * np.where(places == CONSTANT, 1.0, value[places])
        least = np.linalg.eigvalsh(matrices)[:, 0]
        rounding = limits.squares.rounding * places.shape[1]
        assert (least >= -rounding - 1e-12 * np.abs(matrices).max(axis=(1, 2))).all()


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda one: one.name)
def test_means_of_rows_stay_in_the_range(statistic: Statistic) -> None:
    limits, rng = statistic.value_range(8), np.random.default_rng(4)
    tables = rng.choice([-9.0, -1.0, 0.3, 1.0, 9.0, np.nan], size=(100, 6, len(statistic.columns)))
    values = np.array([contribution(statistic, table, 0, 8) for table in tables], dtype=np.float64)
    assert (values >= limits.low).all()
    assert (values <= limits.high).all()
    assert np.linalg.norm(values, axis=1).max() <= limits.length + math.sqrt(statistic.dimension) / 2
