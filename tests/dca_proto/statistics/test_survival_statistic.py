"""The statistic "survival": which cell a row falls into, and that no two rows are further apart than is stated."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from dca_proto.errors import UsageError
from dca_proto.statistics import Survival, resolve
from dca_proto.statistics.contribution import client_sensitivity, contribution

F = 24
TIMES = (1.0, 2.0, 4.0)
NAMES = ("event 0 to 1", "event 1 to 2", "event 2 to 4", "censored 0 to 1", "censored 1 to 2", "censored 2 to 4",
         "beyond 4")  # fmt: skip


@pytest.mark.parametrize(
    ("duration", "event", "cell"),
    [
        (0.0, 1, "event 0 to 1"),
        (1.0, 1, "event 0 to 1"),
        (1.0, 0, "censored 1 to 2"),  # at risk in the whole of the first interval
        (0.0, 0, "censored 0 to 1"),
        (1.5, 1, "event 1 to 2"),
        (4.0, 1, "event 2 to 4"),
        (3.9, 0, "censored 2 to 4"),
        (4.0, 0, "beyond 4"),
        (4.1, 1, "beyond 4"),
        (-3.0, 1, "missing"),
        (1.0, 2, "missing"),
        (1e300, 0, "beyond 4"),
    ],
)
def test_the_cell_of_a_row(duration: float, event: int, cell: str) -> None:
    statistic = Survival(columns=("months", "died"), times=TIMES)
    assert statistic.labels() == NAMES
    value = statistic.evaluate(np.array([[duration, event]]), F)
    assert value.tolist() == [[int(name == cell) << F for name in NAMES]]


def test_cumulative_sums_of_the_cells_are_the_at_risk_counts_of_kaplan_and_meier() -> None:
    """Durations on the grid, with many ties: at risk at t_k are all that last at least as long."""
    rng = np.random.default_rng(5)
    rows = np.column_stack([rng.integers(1, 7, 300), rng.integers(0, 2, 300)]).astype(float)
    statistic = Survival(columns=("t", "d"), times=(1.0, 2.0, 3.0, 4.0, 5.0))
    counts = (contribution(statistic, rows, len(rows), F) >> F).astype(int)
    events, censored = counts[:5], counts[5:10]
    for k, time in enumerate(statistic.times):
        at_risk = counts[10] + events[k:].sum() + censored[k + 1 :].sum()
        assert at_risk == (rows[:, 0] >= time).sum()
        assert events[k] == ((rows[:, 0] == time) & (rows[:, 1] == 1)).sum()


def test_groups_have_cells_of_their_own_and_a_missing_row_counts_nowhere() -> None:
    statistic = Survival(columns=("t", "d", "arm"), times=(1.0,), groups=3)
    rows = np.array([[0.5, 1, 0], [0.5, 0, 1], [2, 1, 1.2], [2, 1, 9], [2, 1, -4], [np.nan, 1, 0]])
    counts = contribution(statistic, rows, 10, F) >> F
    assert counts.tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 0], "unknown groups are missing, too"
    assert statistic.ranges() == {"t": (0.0, 1.0), "d": (0.0, 1.0), "arm": (0.0, 2.0)}


def test_codes_may_begin_at_1() -> None:
    """The coding of R's data sets: status 1 is censored and 2 dead, groups are 1 and 2."""
    rows = np.array([[0.5, 0, 0], [0.5, 1, 1], [2.0, 0, 1], [0.5, 1, 0]])
    zero = Survival(columns=("t", "d", "arm"), times=(1.0,), groups=2)
    one = Survival(columns=("t", "d", "arm"), times=(1.0,), groups=2, censored=1, first_group=1)
    assert (one.evaluate(rows + np.array([0, 1, 1]), F) == zero.evaluate(rows, F)).all()
    assert one.ranges() == {"t": (0.0, 1.0), "d": (1.0, 2.0), "arm": (1.0, 2.0)}


def test_counts_have_the_sensitivity_of_a_histogram_and_codes_have_their_own() -> None:
    counts = Survival(columns=("t", "d"), times=TIMES)
    assert client_sensitivity(counts, 1, F).l2_squared == 2 << 2 * F
    codes = ((3, 0), (0, 4), (-2, -2), (1, 1), (0, 0), (2, 2), (1, -1))
    coded = Survival(columns=("t", "d"), times=TIMES, codes=codes)
    every = np.array([*codes, (0, 0)])  # a missing row is zero
    widest = max(int(((a - b) ** 2).sum()) for a, b in product(every, every))
    assert coded.row_sensitivity(F).l2_squared == widest << 2 * F, "exact: attained"
    assert coded.row_sensitivity(0).bound == 4
    assert coded.evaluate(np.array([[1.5, 1.0]]), 2).tolist() == [[0, 16]]


def test_a_missing_row_may_be_the_farthest() -> None:
    off_centre = Survival(columns=("t", "d"), times=(1.0,), codes=((5,), (4,), (3,)))
    assert off_centre.row_sensitivity(0).l2_squared == 25


def test_codes_of_groups_are_blocks() -> None:
    codes = ((2, 1), (-1, 1), (0, 1))
    coded = Survival(columns=("t", "d", "arm"), times=(1.0,), groups=2, codes=codes)
    value = coded.evaluate(np.array([[0.5, 1.0, 1.0], [9.0, 1.0, 0.0]]), 0)
    assert value.tolist() == [[0, 0, 2, 1], [0, 1, 0, 0]]
    assert coded.row_sensitivity(0).l2_squared == 5 + 5, "two events, in different groups"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"times": []}, "times are none"),
        ({"times": [2.0, 1.0]}, "times are 2, 1; give at least one, finite, above 0 and increasing"),
        ({"times": [0.0]}, "times are 0"),
        ({"groups": 0}, "0 groups and 1 intervals"),
        ({"groups": 2}, "columns are t, d; expected duration, event and group"),
        ({"groups": 400}, "at most 1024 cells"),
        ({"codes": [[1], [2]]}, "codes: 2 words"),
        ({"codes": [[1], [2], [3, 4]]}, "codes: 3 words"),
        ({"codes": [[0], [0], [0]]}, "not all of them 0"),
        ({"codes": [[1], [2], [5000]]}, "within ±4096"),
    ],
)
def test_parameters_are_checked(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        resolve("survival", {"columns": ["t", "d"], "times": [1.0], **changes})
