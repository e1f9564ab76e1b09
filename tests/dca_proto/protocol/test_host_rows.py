"""The clients of one host: each gets its own value, whatever the others have, from few evaluations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dca_proto.protocol.client import rows as host_rows
from dca_proto.protocol.client.rows import HostRows
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Contribution
from dca_proto.statistics import Statistic, resolve
from dca_proto.statistics.contribution import contribution, counted_rows
from dca_proto.testing import TestFederation
from tests.helpers.statistic_samples import STATISTICS

BITS = 16
SUM = resolve("sum", {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]})


def tables_of(statistic: Statistic, clients: int, rows: int) -> NDArray[np.float64]:
    """Rows within and beyond the bounds, some of them missing."""
    rng = np.random.default_rng(1)
    tables = rng.normal(0, 2, (clients, rows, len(statistic.columns)))
    tables[rng.random(tables.shape) < 0.03] = np.nan
    return tables


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("rows_max", [0, 4])
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda one: type(one).name)
def test_each_client_of_a_host_gets_the_value_that_it_would_compute_alone(
    statistic: Statistic, rows_max: int, rows: int
) -> None:
    tables = tables_of(statistic, 5, rows)
    host = HostRows(statistic.columns, tables)
    for client, table in enumerate(tables):
        joint = host.member(client).value(statistic, rows_max, BITS)
        if joint is not None:
            assert joint.value.tolist() == contribution(statistic, table, rows_max, BITS).tolist()
            assert joint.rows == counted_rows(statistic, rows, rows_max)


class Counted:
    """Counts a statistic's evaluations, and how many rows each has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        evaluate = type(SUM).evaluate

        def counted(own: Statistic, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
            self.rows.append(len(rows))
            return evaluate(own, rows, fraction_bits)

        monkeypatch.setattr(type(SUM), "evaluate", counted)


def contributions_to_a_round(clients: int, rows: Any) -> list[bytes]:
    """The contributions of all clients to one announcement."""
    actors = TestFederation(clients, 2, rows=rows)
    network = actors.network()
    network.command(actors.trainer_identity.id, actors.request())
    network.deliver()
    sent = [envelope.payload for envelope in network.sent if isinstance(decode_frame(envelope.payload), Contribution)]
    assert len(sent) == clients
    return sent


def test_a_host_evaluates_the_statistic_once_for_all_clients_of_an_announcement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = np.linspace(-1, 1, 8).reshape(8, 1, 1)
    alone = contributions_to_a_round(8, list(tables))
    counted = Counted(monkeypatch)
    together = contributions_to_a_round(8, tables)
    assert (counted.rows.count(8), counted.rows.count(1)) == (1, 0), "the trainer evaluates others"
    assert together == alone, "byte for byte, with the same randomness"


def test_a_value_that_waits_for_its_client_cannot_be_changed() -> None:
    value = HostRows(("x",), np.ones((3, 1, 1))).member(1).value(SUM, 1, BITS)
    assert value is not None
    with pytest.raises(ValueError, match="read-only"):
        value.value[0] = 7


def test_clients_with_different_numbers_of_rows_are_evaluated_one_by_one() -> None:
    host = HostRows(("x",), [np.ones((1, 1)), np.ones((2, 1))])
    assert host.member(0).value(SUM, 1, BITS) is None


class Centred(type(SUM), frozen=True, kw_only=True):  # type: ignore[misc]
    """A user's own statistic that mixes rows by mistake."""

    def evaluate(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        values = super().evaluate(rows, fraction_bits)
        return values - values.mean(axis=0).astype(np.int64)


def test_no_clients_data_reach_anothers_value_even_if_a_users_own_statistic_mixes_rows() -> None:
    """Each client evaluates it on its own rows only."""
    centred = Centred(columns=SUM.columns, centre=SUM.centre, scale=SUM.scale, bound=SUM.bound)
    host = HostRows(("x",), np.array([0.25, 1.0, 0.5]).reshape(3, 1, 1))
    assert host.member(0).value(centred, 1, BITS) is None
    assert host.member(0).value(SUM, 1, BITS) is not None


def test_a_row_on_which_the_statistic_fails_spoils_no_other_clients_value(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = type(SUM).evaluate

    def fails(own: Statistic, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        if (rows > 0.9).any():
            raise ArithmeticError
        return evaluate(own, rows, fraction_bits)

    monkeypatch.setattr(type(SUM), "evaluate", fails)
    tables = np.array([0.25, 1.0, 0.5]).reshape(3, 1, 1)
    with_failure = contributions_to_a_round(3, tables)
    assert with_failure == contributions_to_a_round(3, list(tables))


def test_interleaved_announcements_take_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_rows, "_KEPT_WORDS", 20)
    monkeypatch.setattr(host_rows, "_BLOCK_CLIENTS", 8)
    host, tables = HostRows(("x",), np.linspace(-1, 1, 16).reshape(16, 1, 1)), np.linspace(-1, 1, 16)
    statistics = [resolve("sum", {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [b]}) for b in (1, 2, 3)]
    for client, x in enumerate(tables):
        for statistic in statistics:
            value = host.member(client).value(statistic, 1, BITS)
            assert value is not None
            assert value.value.tolist() == contribution(statistic, np.array([[x]]), 1, BITS).tolist()
            assert host._words <= 20


def test_a_host_remembers_few_statistics_however_little_their_values_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer may announce any number of rounds with large parameters."""
    monkeypatch.setattr(host_rows, "_KEPT_STATISTICS", 3)
    tables: list[NDArray[np.float64]] = [np.ones((1, 1)), np.ones((2, 1))]
    for host in (HostRows(("x",), np.ones((2, 1, 1))), HostRows(("x",), tables)):
        for bound in range(1, 9):
            statistic = resolve("sum", {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [float(bound)]})
            for client in (0, 1):
                host.member(client).value(statistic, 1, BITS)
            assert len({id(block.statistic) for block in host._blocks.values()}) == min(bound, 3)
