"""The additive model of costs, its error on cells held out, and what is predicted from it."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from dca_proto.errors import UsageError
from emulator.scaling.cell import Size
from emulator.scaling.costs import FIGURES, TERMS, fit_all, fit_costs, hold_out, usable, worst
from emulator.scaling.figures import Figures
from emulator.scaling.predict import Machine, far_beyond, parse_size, predict

COSTS = {"1": 1e-3, "N": 4e-4, "d": 1e-6, "M": 1e-3, "M2": 1e-5, "N M": 6e-5, "M d": 1e-8, "N d": 2e-8, "N d/M": 1e-8,
         "N M d": 3e-9}  # fmt: skip


def figure(key: str, role: str, size: Size) -> float:
    """What the model says if every term costs what `COSTS` says."""
    return sum(COSTS[term] * TERMS[term](size) for term in FIGURES[key, role])


def cells(computes: tuple[int, ...] = (3, 10), error: float = 0.0, seed: int = 1) -> list[Figures]:
    """Cells whose every figure follows the model, with errors of measurement up to `error`."""
    rng = np.random.default_rng(seed)

    def made(n: int, d: int, m: int) -> Figures:
        roles: dict[str, dict[str, float]] = {}
        for key, role in FIGURES:
            if role:
                seen = figure(key, role, Size(n, d, m)) * (1 + error * rng.uniform(-1, 1))
                roles.setdefault(key, {})[role] = float(seen)
        size = {"clients": n, "dimension": d, "computes": m, "backend": "emulated"}
        more = {"agreement_s": n * m * 6e-5, "sessions_s": n * m * 1e-4, "core_s": 1.0}
        return msgspec.convert({**size, **roles, **more, "wall_s": float(n * m)}, Figures)

    return [made(n, d, m) for n, d, m in itertools.product((100, 1000, 10_000), (10, 100, 1000), computes)]


def test_costs_are_recovered() -> None:
    sizes = [Size(n, d, m) for n, d, m in itertools.product((100, 1000, 5000), (10, 100, 1000), (3, 10))]
    values = [2e-4 * one.clients + 7e-9 * one.clients * one.computes * one.dimension for one in sizes]
    costs = fit_costs(sizes, values, ("N", "N M", "N d", "N M d"))
    assert costs.each == pytest.approx([2e-4, 0, 0, 7e-9], rel=1e-6, abs=1e-12)
    low, high = costs.interval(Size(10**7, 10**4, 10))
    assert low == pytest.approx(high) == pytest.approx(costs.at(Size(10**7, 10**4, 10)))


def test_no_cost_is_negative() -> None:
    """Even where a falling figure asks for it."""
    sizes = [Size(100, d, 3) for d in (10, 100, 1000)]
    costs = fit_costs(sizes, [3.0, 2.0, 1.0], ("N", "N d"))
    assert (costs.each >= 0).all()
    assert costs.interval(Size(100, 10, 3))[0] >= 0


def test_held_out_cells_are_predicted_within_their_errors_of_measurement() -> None:
    """Figures err by up to 10 %; ten sweeps are seeded, so the outcome is fixed. 25 % is what the command allows."""
    for seed in range(10):
        held_out = hold_out(cells(error=0.1, seed=seed))
        assert abs(worst(held_out).error) < 0.25
        assert all(abs(one.error) < 0.35 for one in held_out)


def test_the_largest_are_held_out_and_not_fitted() -> None:
    measured = cells()
    plain = hold_out(measured)
    assert {(one.clients, one.dimension) for one in plain} == {
        (10_000, 1000),
        (10_000, 100),
    }  # 4 of 18, by N d and time
    for one in measured:
        if (one.clients, one.dimension) == (10_000, 1000):
            one.core_s_by_role["client"] *= 5
    disturbed = hold_out(measured)
    assert [one.predicted for one in plain] == pytest.approx([one.predicted for one in disturbed])
    assert abs(worst(plain).error) < 1e-6
    assert worst(disturbed).quantity == "client core seconds"  # and it is seen
    assert worst(disturbed).error < -0.5


def test_what_a_cell_measured_does_not_decide_whether_it_is_held_out() -> None:
    def held(cells_: list[Figures]) -> set[tuple[int, int, int]]:
        return {(one.clients, one.dimension, one.computes) for one in hold_out(cells_)}

    measured = cells()
    slow = [replace(one, wall_s=1e6 if one.clients == 1000 else 1.0) for one in measured]
    assert held(slow) == held(measured)


@pytest.mark.parametrize("role", ["client", "compute", "trainer"])
@pytest.mark.parametrize("figure", ["core_s_by_role", "messages", "bytes", "memory_bytes"])
def test_the_error_of_each_predicted_figure_is_reported(role: str, figure: str) -> None:
    measured = cells()
    largest = max(measured, key=lambda one: (one.clients * one.dimension, one.computes))
    getattr(largest, figure)[role] *= 1000
    assert worst(hold_out(measured)).error < -0.25


def test_what_the_emulator_itself_takes_is_no_part_of_what_is_predicted() -> None:
    measured = cells()
    for one in measured:
        one.core_s_by_role["emulator"] *= 1 + (one.dimension == 1000)
    assert abs(worst(hold_out(measured)).error) < 1e-6


def test_too_few_cells_and_others_make_no_calibration() -> None:
    measured = cells((10,))
    assert len(usable(measured)) == 9
    with pytest.raises(UsageError, match=r"6 emulated cells without drop-outs; a calibration needs 7"):
        usable(measured[:6])
    with pytest.raises(UsageError, match="0 emulated cells"):
        usable([replace(one, drop_rate=0.1) for one in measured])
    with pytest.raises(UsageError, match="0 emulated cells"):
        usable([replace(one, backend="mosquitto") for one in measured])


def test_a_prediction_adds_up_and_states_its_assumptions() -> None:
    measured = cells()
    size = Size(10**7, 10**4, 10)
    prediction = predict(size, fit_all(measured), measured, Machine())
    client, compute = prediction.roles["client"], prediction.roles["compute"]
    assert client.core_s.value == pytest.approx(figure("core_s_by_role", "client", size))
    assert client.core_s.interval[0] <= client.core_s.value * (1 + 1e-9)
    assert client.machines is None  # they are the clients' own
    assert compute.core_s_each == pytest.approx(compute.core_s.value / 10)
    passed = sum(figure(key, role, size) for key in ("messages", "received") for role in prediction.roles)
    assert prediction.broker.messages_s == pytest.approx(passed / 3600)
    assert prediction.agreement_s == pytest.approx(1e8 * 6e-5)
    assert prediction.sessions_s == pytest.approx(1e8 * 1e-4)
    assumptions = " ".join(prediction.assumptions)
    assert "10,000 times the largest calibrated N d (10,000,000)" in assumptions
    assert "clients is raised" not in assumptions  # 10^7 clients are the protocol's limit
    beyond = predict(replace(size, clients=10**7 + 1), fit_all(measured), measured, Machine())
    assert "limit of 10,000,000 clients is raised" in " ".join(beyond.assumptions)
    assert "garbage collector is off" in assumptions


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((100_000, 1_000, 30), []),
        ((500_000, 3_000, 3), ["N = 500,000 is 50 times the largest calibrated N (10,000)"]),
        (
            (10**7, 20_000, 10),
            ["N = 10,000,000 is 1,000 times the largest calibrated N (10,000)", "d = 20,000 is 20 times the largest"],
        ),
        ((100, 10_000, 3), []),
        ((9, 10, 3), ["N = 9 is 11 times less than the smallest calibrated N (100)"]),
    ],
)
def test_a_size_far_beyond_the_calibrated_ones_has_a_warning(size: tuple[int, int, int], expected: list[str]) -> None:
    found = list(far_beyond(Size(*size), cells()))
    assert len(found) == len(expected), found
    for text, start in zip(found, expected, strict=True):
        assert text.startswith(start)
        assert "calibrate with --" in text


@pytest.mark.parametrize(
    ("machine", "round_s", "machines", "tightest"),
    [
        ({"cores": 1.0, "load": 1.0}, 100.0, 3, "cores"),  # 250 core seconds in 100 s
        ({"cores": 1.0, "load": 0.5}, 100.0, 5, "cores"),
        ({"memory_gb": 2.5e-7, "load": 1.0}, 1e9, 1, "memory"),
        ({"memory_gb": 1e-7, "load": 1.0}, 1e9, 3, "memory"),
        ({"network_gbit": 1e-9, "load": 1.0}, 400.0, 10, "network"),  # 500 B at 0.125 B/s in 400 s
    ],
)
def test_machines_are_counted_for_what_is_tightest(
    machine: dict[str, float], round_s: float, machines: int, tightest: str
) -> None:
    """A made-up calibration: everything of a Compute node is 250, and so are its bytes each way."""
    measured = cells()
    costs = fit_all(measured)
    sizes = [Size(1, 1, 1), Size(1, 1, 2), Size(1, 1, 3)]
    each = fit_costs(sizes, [250.0 * one.computes for one in sizes], ("M",))
    of_one = fit_costs(sizes, [250.0] * 3, ("1",))
    for key in ("core_s_by_role", "bytes", "received_bytes"):
        costs[key, "compute"] = each
    costs["memory_bytes", "compute"] = of_one
    need = predict(Size(3, 1, 3), costs, measured, Machine(**machine, round_s=round_s)).roles["compute"]
    assert (need.machines, need.tightest) == (3 * machines, tightest)


def test_a_calibration_with_one_m_predicts_no_other() -> None:
    measured = cells((10,))
    costs = fit_all(measured)
    assert predict(Size(1000, 10, 10), costs, measured, Machine(round_s=60)).computes == 10
    with pytest.raises(UsageError, match=r"computes=5: the calibration was measured with M = 10 only"):
        predict(Size(1000, 10, 5), costs, measured, Machine(round_s=60))


def test_a_calibration_that_lacks_a_figure_is_refused() -> None:
    measured = [replace(one, received=None) for one in cells()]
    with pytest.raises(
        UsageError, match=r"no received of client, received of compute, received of trainer; measure again"
    ):
        predict(Size(1000, 10, 10), fit_all(measured), measured, Machine(round_s=60))


def test_a_question_is_read() -> None:
    assert parse_size("clients=1e7,dimension=1e4,computes=10") == Size(10**7, 10**4, 10)
    assert parse_size(" computes=3, clients=5 , dimension=1") == Size(5, 1, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "client=1e7,dimension=1,computes=3",
            r"'client' is unknown \(did you mean 'clients'\?\); expected clients, dim",
        ),
        ("clients=1e7,computes=3", "dimension is missing; expected clients=...,dimension=...,computes=..."),
        ("clients,dimension=1,computes=3", "'clients': expected clients=NUMBER, once"),
        ("clients=5,clients=6,dimension=1,computes=3", "'clients=6': expected clients=NUMBER, once"),
        ("clients=many,dimension=1,computes=3", "clients=many: expected a whole number from 3 to"),
        ("clients=5.5,dimension=1,computes=3", "clients=5.5: expected a whole number"),
        ("clients=nan,dimension=1,computes=3", "clients=nan: expected a whole number"),
        ("clients=2,dimension=1,computes=3", "clients=2: expected a whole number from 3"),
        ("clients=5,dimension=1,computes=99", "computes=99: expected a whole number from 2 to 64"),
        ("", "'' is unknown"),
    ],
)
def test_questions_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_size(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cores": 0}, "--machine-cores 0: expected a number above 0"),
        ({"broker_messages_s": -1}, "--broker-messages-s -1"),
        ({"load": 1.5}, r"--load 1.5: expected a part above 0, at most 1"),
        ({"memory_gb": float("inf")}, "--machine-memory-gb inf"),
    ],
)
def test_machines_that_cannot_be_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Machine(**changes).check()
