"""The registry of statistics: a user's own are a few lines, and are held to what they declare."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dca_proto.errors import UsageError
from dca_proto.statistics import (
    ADD_OR_REMOVE_ONE_CLIENT,
    Sensitivity,
    Statistic,
    Sum,
    base,
    register,
    registered,
    resolve,
)
from dca_proto.statistics.contribution import client_sensitivity, contribution

BOX = {"columns": ("a", "b"), "centre": (1.0, -2.0), "scale": (2.0, 0.5), "bound": (1.5, 2.0)}


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=f"'variance' is unknown here; known: {', '.join(registered())}$"):
        resolve("variance", {})
    with pytest.raises(UsageError) as caught:
        resolve("x" * 10_000, {})
    assert len(str(caught.value)) < 120 + len(", ".join(registered()))


class Above(Statistic, frozen=True, kw_only=True):
    """A user's own: how many rows lie above a public threshold, in each column."""

    name = "above"
    threshold: float

    @property
    def dimension(self) -> int:
        return len(self.columns)

    def labels(self) -> tuple[str, ...]:
        return tuple(f"{column} > {self.threshold:g}" for column in self.columns)

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        unit, d = 2**fraction_bits, self.dimension
        return Sensitivity(l1=d * unit, l2_squared=d * unit**2, bound=unit)

    def evaluate(self, rows: np.ndarray, fraction_bits: int) -> np.ndarray:
        return (rows > self.threshold).astype(np.int64) << fraction_bits


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of this test's own."""
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))


@pytest.mark.usefixtures("registry")
def test_a_user_registers_a_statistic_in_a_few_lines() -> None:
    register(Above)
    register(Above)  # importing a module again is no mistake
    assert "above" in registered()
    statistic = resolve("above", {"columns": ["a", "b"], "threshold": 1.0})
    rows = np.array([[2.0, 0.0], [3.0, 3.0], [math.nan, 9.0], [0.0, 0.0]])
    assert contribution(statistic, rows, 10, 2).tolist() == [8, 4]
    assert contribution(statistic, rows, 0, 2).tolist() == [2, 1]
    limit = client_sensitivity(statistic, 10, 2)
    assert limit.bound == 40
    assert (limit.l1, limit.l2_squared) == (80, 3200)
    mean = client_sensitivity(statistic, 0, 2)
    assert mean.l1 == 10
    assert mean.l2 == pytest.approx(math.sqrt(2) * 4 + math.sqrt(2), rel=0.02)  # 16·2 + 2 + 16 + 1
    assert statistic.ranges() == {}
    assert limit.relation == "replace-one-client"
    with pytest.raises(UsageError, match="0 columns"):
        resolve("above", {"columns": [], "threshold": 1.0})


def test_a_taken_or_empty_name_is_refused() -> None:
    class Impostor(Above, frozen=True, kw_only=True):
        name = "sum"

    class Nameless(Above, frozen=True, kw_only=True):
        name = ""

    for wrong in (Impostor, Nameless):
        with pytest.raises(UsageError, match="empty or taken"):
            register(wrong)
    assert isinstance(resolve("sum", BOX), Sum)


def test_a_users_statistic_is_held_to_what_it_declares() -> None:
    class Wild(Above, frozen=True, kw_only=True):
        def evaluate(self, rows: np.ndarray, fraction_bits: int) -> np.ndarray:
            return np.full((len(rows), 1), -(2**62), dtype=np.int64)

    class Floating(Above, frozen=True, kw_only=True):
        def evaluate(self, rows: np.ndarray, fraction_bits: int) -> np.ndarray:
            return rows

    class Wide(Above, frozen=True, kw_only=True):
        dimension = 2**24 + 1  # type: ignore[assignment]

    class Careless(Above, frozen=True, kw_only=True):
        def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
            return 2.0  # type: ignore[return-value]

    class Mixed(Above, frozen=True, kw_only=True):
        def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
            return Sensitivity(l1=1, l2_squared=1, bound=1, relation=ADD_OR_REMOVE_ONE_CLIENT)

    one = {"columns": ("a",), "threshold": 0.0}
    assert contribution(Wild(**one), np.ones((3, 1)), 3, 2).tolist() == [-12]
    with pytest.raises(UsageError, match=r"gave float64 of shape \(2, 1\); expected int64"):
        contribution(Floating(**one), np.ones((2, 1)), 1 + 1, 2)
    with pytest.raises(UsageError, match="dimension 16777217 is not in 1 to 16777216"):
        Wide(**one)
    with pytest.raises(UsageError, match=r"states 2\.0; row_sensitivity must give a Sensitivity"):
        client_sensitivity(Careless(**one), 1, 2)
    with pytest.raises(UsageError, match=r"'add-or-remove-one-client' was given .* 'replace-one-client' is needed"):
        client_sensitivity(Mixed(**one), 1, 2)
