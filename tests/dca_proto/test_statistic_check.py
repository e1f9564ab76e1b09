"""An adversarial search over every registered statistic, and the faults that it must catch.

The search never reads what a statistic states. A search that finds too little cannot raise a false alarm.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from statistic_samples import KINDS, STATISTICS

from dca_proto import statistics
from dca_proto.statistic_check import check_statistic, farthest
from dca_proto.statistics import Sensitivity, Statistic, Sum
from dca_proto.statistics.contribution import client_sensitivity, contribution, row_sensitivity

BITS = (4, pytest.param(24, marks=pytest.mark.long))
"""Of the fraction; on the coarse grid, rounding adds the most to a distance."""
FORGOTTEN = 1.05
"""How far what is found exceeds a statement that forgets a factor √d, at least."""


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_some_example_sets_each_parameter_of_a_built_in_statistic(kind: type[Statistic]) -> None:
    """So whoever adds a statistic, or a parameter, has it searched."""
    examples = kind.examples()
    assert examples, f"{kind.__name__}.examples() is empty"
    assert all(type(example) is kind for example in examples)
    for field in msgspec.structs.fields(kind):
        alike = field.required or all(getattr(example, field.name) == field.default for example in examples)
        assert field.required or not alike, f"no example of {kind.__name__} sets {field.name!r}"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_package_exports_each_built_in_statistic(kind: type[Statistic]) -> None:
    assert getattr(statistics, kind.__name__) is kind


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda one: one.name)
def test_no_two_rows_are_farther_apart_than_stated(statistic: Statistic, bits: int) -> None:
    """And what is found would exceed a statement without its factor √d, of half the L1, or of half the bound."""
    found, stated, d = check_statistic(statistic, bits), statistic.value_sensitivity(bits), statistic.dimension
    assert math.sqrt(found.l2_squared) >= (stated.l2 / math.sqrt(d) * FORGOTTEN if d > 1 else stated.l2 * (1 - 1e-9))
    assert math.sqrt(found.l2_squared) > 0.5 * stated.l2
    assert found.l1 > 0.4 * stated.l1
    assert found.bound >= 0.5 * stated.bound


def clients_of(statistic: Statistic, bits: int) -> list[np.ndarray]:
    """Clients with the farthest rows, once or more; with rows of all kinds; without rows, or with none that counts."""
    k, width, rng = statistic.rows_per_value, len(statistic.columns), np.random.default_rng(5)
    found = farthest(statistic, bits, rounds=10)
    groups = [*found.l1_rows, *found.l2_rows]
    clients = [np.concatenate([group] * count) for group in groups for count in (1, 2, 5)]
    clients += [np.empty((0, width)), np.full((3 * k, width), np.nan), np.concatenate(groups)]
    kinds = [np.array([-4.0, 4.0]), np.linspace(-4, 4, 33), np.array([-1e9, 0.0, 1e9]), np.array([np.nan, -4.0, 4.0])]
    sizes = rng.integers(0, 7 * k, size=160)
    return clients + [rng.choice(kinds[place % 4], size=(m, width)) for place, m in enumerate(sizes)]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda one: one.name)
def test_no_two_clients_are_farther_apart_than_stated(statistic: Statistic, bits: int) -> None:
    clients = clients_of(statistic, bits)
    for rows_max in (0, statistic.rows_per_value, 5 * statistic.rows_per_value):
        values = np.array([contribution(statistic, rows, rows_max, bits) for rows in clients], dtype=np.float64)
        stated = client_sensitivity(statistic, rows_max, bits)
        assert max(float(np.linalg.norm(values - value, axis=1).max()) for value in values) <= stated.l2
        assert max(float(np.abs(values - value).sum(axis=1).max()) for value in values) <= stated.l1
        assert np.abs(values).max() <= stated.bound


@pytest.mark.parametrize("statistic", [one for one in STATISTICS if one.rows_per_value > 1], ids=lambda one: one.name)
def test_one_row_of_a_data_node_moves_a_group_no_farther_than_stated(statistic: Statistic) -> None:
    found = farthest(statistic, 24, one_row=True)
    stated = row_sensitivity(statistic, 4 * statistic.rows_per_value, 24)
    assert 0.9 * stated.l2 <= math.sqrt(found.l2_squared) <= stated.l2
    assert found.l1 <= stated.l1


# Faults that it catches

BOX: dict[str, Any] = {"columns": ("a", "b", "c"), "centre": (0.0,) * 3, "scale": (1.0,) * 3, "bound": (1.0,) * 3}


class Forgetful(Sum, frozen=True, kw_only=True):
    """States another sensitivity than `Sum` does."""

    l1: float = 1.0
    l2: float = 1.0
    largest: float = 1.0

    def plain_sensitivity(self, fraction_bits: int) -> Sensitivity:
        true = super().plain_sensitivity(fraction_bits)
        square = math.ceil(true.l2_squared * self.l2**2)
        return Sensitivity(l1=math.ceil(true.l1 * self.l1), l2_squared=square, bound=int(true.bound * self.largest))


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (
            {"l2": 1 / math.sqrt(3)},
            r"the L2 distance is 3.464\d+ \(58117981 grid units\), between rows .* states 2 \(33554432",
        ),
        ({"l2": 0.999}, "the L2 distance is"),
        ({"l1": 0.999}, "the L1 distance is"),
        ({"largest": 0.5}, "the largest coordinate is"),
    ],
)
def test_a_statement_that_is_too_small_is_caught(fault: dict[str, float], complaint: str) -> None:
    check_statistic(Forgetful(**BOX))
    with pytest.raises(AssertionError, match=complaint):
        check_statistic(Forgetful(**BOX, **fault))


class Ranked(Sum, frozen=True, kw_only=True):
    """A row's value depends on the other rows."""

    def plain_values(self, rows: np.ndarray, fraction_bits: int) -> np.ndarray:
        values = super().plain_values(rows, fraction_bits)
        return values - values.max(axis=0)


class Narrow(Sum, frozen=True, kw_only=True):
    """States a range that some rows leave."""

    def plain_range(self, fraction_bits: int) -> Any:
        stated = super().plain_range(fraction_bits)
        return msgspec.structs.replace(stated, high=stated.high / 2)


class Long(Sum, frozen=True, kw_only=True):
    """States that values are shorter than some are."""

    def plain_range(self, fraction_bits: int) -> Any:
        return msgspec.structs.replace(super().plain_range(fraction_bits), length=2.0**fraction_bits)


class Peak(Sum, frozen=True, kw_only=True):
    """Far only between a narrow interior peak and its mirror image, which no corner shows."""

    def plain_values(self, rows: np.ndarray, fraction_bits: int) -> np.ndarray:
        x = super().plain_values(rows, fraction_bits)
        away = np.abs(np.abs(x[:, :1]) * 2.0**-fraction_bits - 0.37)
        return x // 4 + (np.sign(x) * np.exp(-20 * away) * 2.0**fraction_bits).astype(np.int64)


def test_other_broken_promises_are_caught() -> None:
    with pytest.raises(AssertionError, match="gives a row another value alone than among other rows"):
        check_statistic(Ranked(**BOX))
    with pytest.raises(AssertionError, match=r"coordinate \d of the value of rows \[\[.* is above its range: it is"):
        check_statistic(Narrow(**BOX))
    with pytest.raises(
        AssertionError, match=r"the value of rows \[\[.* is 1\.\d+ \([\d.]+ grid units\) long; .* has 1 \("
    ):
        check_statistic(Long(**BOX))


def test_maxima_inside_the_box_are_found() -> None:
    found = farthest(Peak(**BOX), 24)
    assert np.abs(found.l2_rows[:, 0, 0]) == pytest.approx([0.37, 0.37], abs=0.01)
    assert math.ldexp(math.sqrt(found.l2_squared), -24) == pytest.approx(2 * math.hypot(1.0925, 1.25, 1.25), rel=1e-3)


def test_the_search_repeats_itself() -> None:
    left, right = (farthest(STATISTICS[0], 24, rounds=5) for _ in range(2))
    assert (left.l1, left.l2_squared) == (right.l1, right.l2_squared)
    np.testing.assert_array_equal(left.l2_rows, right.l2_rows)
