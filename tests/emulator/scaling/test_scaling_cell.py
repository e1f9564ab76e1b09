"""Cells of a sweep, what is counted around actors, what objects hold, and the paper's figures beside ours."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.stats import binom

from dca_proto.errors import UsageError
from dca_proto.protocol.effects import Address, Channel, Report, Send
from dca_proto.protocol.events import Received, Started
from emulator.scaling.cell import Cell, SweepOptions, tolerated_of
from emulator.scaling.emulated import Metered, ProcessMeasurement, footprint
from emulator.scaling.figures import ActorMemory, CellMeasurement, RoundMeasurement, cell_figures
from emulator.scaling.measure import floor_by_role_us


def cell(**changes: Any) -> Cell:
    plain = {"clients": 1000, "dimension": 100, "computes": 10, "backend": "emulated"}
    return Cell(**{**plain, "tolerate": 10, "drop_rate": 0.0, "repeats": 3, **changes})


def held(wall_s: float, client_s: float, *, completed: bool = True) -> RoundMeasurement:
    roles = {"client": 2, "compute": 1, "trainer": 1}
    return RoundMeasurement(
        wall_s=wall_s,
        phases={"collect": 3 * wall_s / 4, "agree": wall_s / 4},
        core_s={"client": client_s, "compute": 1.0, "trainer": 0.5, "emulator": 0.25},
        messages=roles,
        bytes=roles,
        received=roles,
        received_bytes=roles,
        completed=completed,
        contributors=900,
    )


def test_a_sweep_is_the_product_cheapest_first_and_names_each_size_once() -> None:
    axes = {"clients": [1000, 10], "dimension": [5, 50], "computes": [3], "tolerate": [0.1, 0.11], "drop_rates": [0.0]}
    cells = SweepOptions(**axes, backend="emulated", repeats=1).cells()
    estimates = [one.estimate_s for one in cells]
    assert estimates == sorted(estimates)
    assert len(cells) == 2 * 2 + 2  # of 10 clients, 10 % and 11 % are both T = 1
    assert {(one.clients, one.tolerate) for one in cells} == {(10, 1), (1000, 100), (1000, 110)}


def test_t_is_a_share_below_one_and_a_number_from_one() -> None:
    assert [tolerated_of(given, 50) for given in (0, 0.1, 0.3, 1, 7)] == [0, 5, 15, 1, 7]
    assert tolerated_of(0.29, 100) == 29  # 0.29 * 100 is below 29 in floating point


@pytest.mark.parametrize("given", [-0.1, 1.5, math.inf, math.nan])
def test_other_t_are_refused(given: float) -> None:
    with pytest.raises(UsageError, match=r"--tolerate .*expected a share of N below 1, or a whole number"):
        tolerated_of(given, 50)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": 2}, "--clients 2: expected 3 to"),
        ({"clients": 10**8}, "--clients 100000000: expected 3 to 10,000,000"),
        ({"dimension": 0}, "--dimension 0: expected 1 to"),
        ({"dimension": 10**6}, "--dimension 1000000: expected 1 to 65,536, the bins of a histogram"),
        ({"computes": 1}, "M = 1 Compute nodes"),
        ({"tolerate": 999}, "N - T - 1 = 1000 - 999 - 1 is below 1"),
        ({"drop_rate": 1.0}, "--drop-rate 1: expected 0 to below 1"),
        ({"drop_rate": math.nan}, "--drop-rate nan"),
    ],
)
def test_sizes_that_no_round_can_have_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cell(**changes).check()


def test_table_1_is_beside_the_cells_that_it_has() -> None:
    assert cell().table_1_s == 2.86
    assert cell(clients=100_000, dimension=10_000).table_1_s == 1592.29
    for changes in ({"computes": 3}, {"clients": 500}, {"dimension": 11}, {"drop_rate": 0.1}):
        assert cell(**changes).table_1_s is None


FLOOR = {"client": 20.0, "compute": 21.0, "trainer": 0.0}


def observed(
    first: RoundMeasurement, rounds: list[RoundMeasurement], memory: ActorMemory | None = None
) -> CellMeasurement:
    return CellMeasurement(
        sessions_s=8.0, sessions_wall_s=4.0, first=first, rounds=rounds, memory=memory, peak_rss_mb=50.0
    )


def test_a_cell_is_the_medians_of_its_rounds_and_the_set_up_is_apart() -> None:
    rounds = [held(2.0, 3.0), held(1.43, 2.0), held(4.0, 2.5)]
    figures = msgspec.to_builtins(cell_figures(cell(), observed(held(9.0, 7.5), rounds), FLOOR))
    assert (figures["wall_s"], figures["wall_s_spread"]) == (2.0, (1.43, 4.0))
    assert figures["agreement_s"] == 7.5 + 1.0 - (2.5 + 1.0)
    assert figures["core_s_by_role"] == {"client": 2.5, "compute": 1.0, "trainer": 0.5, "emulator": 0.25}
    assert (figures["paper_s"], figures["ratio"]) == (2.86, pytest.approx(2.0 / 2.86))
    assert (figures["sessions_s"], figures["sessions_wall_s"], figures["first_round_wall_s"]) == (8.0, 4.0, 9.0)
    assert figures["us_per_contribution"] == {
        role: pytest.approx(1e6 * core_s / 900) for role, core_s in figures["core_s_by_role"].items()
    }
    assert figures["floor_us"] == FLOOR
    memory = ActorMemory(client=1, compute=2, trainer=3, compute_after=4)
    weighed = msgspec.to_builtins(cell_figures(cell(), observed(held(9.0, 7.5), rounds, memory), FLOOR))
    assert {key for key, value in weighed.items() if value != figures[key]} == {
        key for key in figures if "memory" in key
    }
    assert all(figures[key] is None for key in figures if "memory" in key)


def test_the_least_that_a_node_keeps_are_the_contributions_that_it_holds() -> None:
    assert cell().kept_bytes == (36 + 8 * 10 + 8 * 100) / 10
    memory = ActorMemory(client=1, compute=300_000, trainer=2, compute_after=5)
    seen = observed(held(1, 1), [held(1, 1, completed=False)], memory)
    figures = msgspec.to_builtins(cell_figures(cell(), seen, FLOOR))
    assert figures["compute_memory_least_bytes"] == 1000 * 91.6
    assert (figures["compute_memory_bytes"], figures["compute_memory_after_bytes"]) == (300_000, 5)
    assert (figures["success_rate"], figures["noise_sd"], figures["contributors"]) == (0.0, None, None)


@pytest.mark.parametrize(("clients", "tolerate", "rate"), [(10, 2, 0.1), (1000, 60, 0.05), (5, 0, 0.5), (9, 3, 0.0)])
def test_the_expected_success_is_the_binomial_tail(clients: int, tolerate: int, rate: float) -> None:
    one = cell(clients=clients, tolerate=tolerate, drop_rate=rate)
    assert one.expected_success == pytest.approx(binom.cdf(tolerate, clients, rate), rel=1e-9)


def test_live_as_many_drop_as_the_rate_says() -> None:
    live = cell(backend="mosquitto", clients=100, tolerate=10, drop_rate=0.1)
    assert live.expected_success == 1.0
    assert cell(backend="mosquitto", clients=100, tolerate=10, drop_rate=0.11).expected_success == 0.0


class Echo:
    """Answers every message twice, and says so."""

    id = b"e" * 16

    def handle(self, event: object, now_ms: int) -> list[object]:
        send = Send(Address(Channel.TRAINER, b"t" * 16), b"r" * 16, b"12345")
        return [send, send, Report("answered")] if isinstance(event, Received) else []


def test_a_meter_times_its_actor_passes_facts_on_and_hears_nothing_while_it_is_away() -> None:
    facts, away = [], set[bytes]()
    metered = Metered(Echo(), lambda actor, fact: facts.append((actor, fact)), away)  # type: ignore[arg-type]
    metered.handle(Started(), 0)
    assert len(metered.handle(Received(b"s" * 16, b"123"), 0)) == 3
    assert facts == [(Echo.id, "answered")]
    busy_ns = metered.busy_ns
    assert busy_ns > 0
    away.add(Echo.id)
    assert metered.handle(Received(b"s" * 16, b"123"), 0) == []
    assert (metered.busy_ns, len(facts)) == (busy_ns, 1)


def test_what_an_actor_used_is_its_part_of_the_time_that_the_process_was_on_a_core() -> None:
    """An actor was at work for half of 4 s awake, of which the process had 3 s of a core."""
    measured = ProcessMeasurement(
        core_s=3.0,
        waiting_s=1.0,
        awake_s=4.0,
        used={"client": {"busy_ns": 2 * 10**9}},
        at_s={"began": 0.0},
        result=None,
    )
    assert measured.role_s("client") == 1.5


def test_the_floor_grows_with_nodes_and_numbers_and_asks_nothing_of_the_trainer() -> None:
    small, wide, many = floor_by_role_us(3, 10), floor_by_role_us(3, 2000), floor_by_role_us(30, 10)
    for role in ("client", "compute"):
        assert 0 < small[role] < min(wide[role], many[role])
    assert small["trainer"] == 0


def test_a_footprint_counts_each_object_once_and_not_what_is_shared() -> None:
    block, shared = bytes(10_000), bytes(50_000)
    assert 10_000 < footprint({"a": block, "b": [block, block]}) < 11_000
    assert footprint([block, shared], [shared]) < 11_000
    assert 80_000 < footprint((np.zeros(10_000),)) < 81_000
    metered = Metered(Echo(), None, set())  # type: ignore[arg-type]
    small = footprint(metered)
    metered.busy_ns = 10**4000  # of a slot
    assert footprint(metered) > small + 1_600
    assert footprint(held(1.0, 1.0)) > 1_000  # of a record
