"""What one row of a data node moves: no more than is stated, whatever it holds, and never taken for a client."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hospitals import Hospitals
from round_helpers import begin, results

from dca_proto.errors import UsageError
from dca_proto.protocol import facts
from dca_proto.statistics import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW, Sensitivity, base, resolve
from dca_proto.statistics.contribution import client_sensitivity, contribution, row_sensitivity
from dca_proto.statistics.sum import Sum


class Picky(Sum, frozen=True, kw_only=True):  # type: ignore[misc]
    """A user's own, which fails on a row above 0.75, and with it on all that come in one call."""

    name = "picky"

    def evaluate(self, rows: np.ndarray, fraction_bits: int) -> np.ndarray:
        if (rows > 0.75).any():
            raise ArithmeticError(f"cannot stand {rows.max()}")
        return super().evaluate(rows, fraction_bits)


@pytest.mark.parametrize("row", [0.0, -1.0, np.nan, 0.9, 1e300])
def test_whatever_one_row_holds_it_moves_a_release_by_no_more_than_is_stated(
    monkeypatch: pytest.MonkeyPatch, row: float
) -> None:
    """A statistic that fails on one row of a hundred must not take the ninety-nine with it: its noise is for one."""
    monkeypatch.setitem(base._REGISTRY, "picky", Picky)
    rows, place = np.full((100, 1), 0.5), 37
    rows[place] = row
    actors = Hospitals(1, rows=[rows])
    network, _ = begin(actors, statistic="picky", rows_max=100)
    (result,) = results(network)
    assert result.contributors == 100
    assert abs(result.value[0] - 50.0) <= result.sensitivity
    assert [fact.error for fact in network.reported(facts.DataFailed)] == ["ArithmeticError"] * (row > 0.75)
    assert "0.9" not in repr(network.facts)


def test_outside_the_protocol_a_failing_statistic_raises() -> None:
    picky = Picky(columns=("x",), centre=(0.0,), scale=(1.0,), bound=(1.0,))
    with pytest.raises(ArithmeticError, match=r"cannot stand 0\.9"):
        contribution(picky, np.array([[0.5], [0.9]]), 2, 24)
    failed: list[Exception] = []
    assert contribution(picky, np.array([[0.5], [0.9], [0.25]]), 3, 24, failures=failed).tolist() == [3 << 22]
    assert [type(error) for error in failed] == [ArithmeticError]


def test_a_row_is_no_client() -> None:
    statistic = resolve("sum", {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]})
    row, client = row_sensitivity(statistic, 100, 24), client_sensitivity(statistic, 100, 24)
    assert (client.l1, client.l2_squared) == (100 * row.l1, 100**2 * row.l2_squared)
    assert (client.bound, client.relation, row.relation) == (row.bound, REPLACE_ONE_CLIENT, REPLACE_ONE_ROW)
    assert row == msgspec.structs.replace(row_sensitivity(statistic, 1, 24), bound=100 * 2**24)
    for mixed in (lambda: row.jointly_with(client), lambda: client.jointly_with(row), row.as_replacement):
        with pytest.raises(UsageError, match="replace-one-row"):
            mixed()
    with pytest.raises(UsageError, match="was given where one under 'replace-one-client' is needed; state it under"):
        Sensitivity(l1=1, l2_squared=1, bound=1, relation=REPLACE_ONE_ROW).require(REPLACE_ONE_CLIENT)
