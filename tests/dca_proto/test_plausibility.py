"""Sums that honest clients cannot have made are refused; those of honest clients are not, however extreme."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from exact_rounds import aggregate
from statistic_samples import BOX, STATISTICS, THREE

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import ImplausibleSum
from dca_proto.plausibility import beyond, checked, possible_reports
from dca_proto.privacy.local import AnalyticGaussian, GridLaplace, RandomisedResponse, UnaryEncoding
from dca_proto.statistics import Histogram, Mean, Moments, Regression, Statistic, Sum, base, register
from dca_proto.statistics.contribution import client_sensitivity, contribution

N, UNIT = 24, 2.0**-24


def released(statistic: Statistic, value: Any, sigma: float, n: int = N, **changes: Any) -> NoisyAggregate:
    request = RoundRequest(statistic.name, msgspec.to_builtins(statistic))
    given = aggregate(np.asarray(value, dtype=np.float64) * np.ones(statistic.dimension), sigma**2, request, n)
    return dataclasses.replace(given, **changes)


def refused(given: NoisyAggregate) -> str:
    with pytest.raises(ImplausibleSum) as caught:
        checked(given)
    return caught.value.reason


# Honest clients


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda one: one.name)
def test_honest_sums_pass_without_a_warning_also_at_the_corners(statistic: Statistic) -> None:
    """False alarms: at most 1e-4 for each of the 8 sums."""
    rng, width, k = np.random.default_rng(8), len(statistic.columns), statistic.rows_per_value
    sigma = 3.0 * client_sensitivity(statistic, k, 24).l2 * UNIT
    for place in range(8):
        rows = rng.choice([-9.0, 0.5, 9.0] if place % 2 else [-9.0, 9.0, np.nan], size=(k, width))
        alike = N * contribution(statistic, rows, k, 24) * UNIT
        for sd in (0.0, sigma):
            noisy = released(statistic, alike + sd * rng.standard_normal(statistic.dimension), sd, rows_max=k)
            assert checked(noisy).doubts == ()


RATES = [
    ("a coordinate", Mean(**BOX), [N, N * 3.0]),
    ("a length", Sum(columns=tuple("abcdef"), centre=(0.0,) * 6, scale=(1.0,) * 6, bound=(9.0,) * 6, radius=1.0),
     [N, 0, 0, 0, 0, 0]),
    ("a combination", Histogram(columns=("a",), edges=tuple(range(9))), [N / 8] * 8),
    ("a matrix", Regression(**THREE, intercept=True), [0.0] * 9),
]  # fmt: skip


@pytest.mark.parametrize(("limit", "statistic", "value"), RATES, ids=[one[0] for one in RATES])
def test_the_stated_probability_bounds_the_rate_at_the_limits(
    limit: str, statistic: Statistic, value: list[float]
) -> None:
    """Of 400 honest sums exactly at a limit, at most 10 % exceed what has 5 % (false alarm: below 1e-4)."""
    rng, sigma = np.random.default_rng(9), 2.0
    texts = [
        beyond(statistic, released(statistic, np.array(value) + sigma * rng.standard_normal(len(value)), sigma), 0.05)
        for _ in range(400)
    ]
    assert sum(map(bool, texts)) <= 40


# Lies


@pytest.mark.parametrize("lie", ["words", 1e6, -1e6, 2.0**39, -(2.0**39), math.nan, math.inf])
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda one: one.name)
def test_numbers_that_no_clients_can_send_are_refused(statistic: Statistic, lie: Any) -> None:
    rng = np.random.default_rng(10)
    value = rng.integers(-(2**63), 2**63, statistic.dimension) * UNIT if lie == "words" else lie
    assert refused(released(statistic, value, 5.0)).startswith("at least one of the 24 contributions was outside its")


def test_the_error_names_the_number_and_what_honest_clients_give() -> None:
    mean = Mean(columns=("x",), centre=(0.5,), scale=(0.5,), bound=(1.0,))
    assert refused(released(mean, -1.3e11, 2.0)) == (
        "at least one of the 24 contributions was outside its bounds: x is -2.708e+09, and honest clients give 0 to 1, "
        "with noise of at most 0.275"
    )
    (doubt,) = checked(released(mean, 24 + 2.0 * 5.5, 2.0)).doubts
    assert doubt.startswith("at least one of the 24 contributions was outside its bounds, or the noise is as large as")
    assert checked(released(mean, 24 + 2.0 * 3.0, 2.0)).doubts == ()


@pytest.mark.parametrize(
    ("statistic", "value", "text"),
    [
        (Moments(columns=("x",), centre=(0.0,), scale=(1.0,), bound=(9.0,)), [150, 300], "sums of squares"),
        (Histogram(columns=("a",), edges=tuple(range(9))), [20] * 8, "the sum of all bins is 160, and honest clients"),
        (Histogram(columns=("a",), edges=tuple(range(33))), [-0.9] * 32, "the sum of all bins is -28.8"),
        (Regression(**THREE, target_square=True), [15, 60, 150, 0, 0, 90], "products of features and target"),
        (Regression(**THREE, radius=1.0), [20, 0, 20, 0, 0], "the sum of the features' squares is 40"),
        (Sum(**BOX, radius=1.5), [24, 36], "the sum's length is 43.27"),
    ],
)
def test_joint_limits_see_what_single_coordinates_hide(statistic: Statistic, value: list[float], text: str) -> None:
    """Every coordinate is within its own limits."""
    limits = statistic.value_range(24)
    assert (np.array(value) <= N * limits.high * UNIT + 1).all()
    assert (np.array(value) >= N * limits.low * UNIT - 1).all()
    assert text in refused(released(statistic, value, 0.3))


def test_sums_of_many_rows_and_of_data_nodes_have_their_own_limits() -> None:
    mean = Mean(columns=("x",), centre=(0.0,), scale=(1.0,), bound=(1.0,))
    assert checked(released(mean, 100.0, 1.0, rows_max=5)).doubts == ()
    assert "honest clients give -1 to 1" in refused(released(mean, 100.0, 1.0, rows_max=1))
    of_node = {"relation": "replace-one-row", "rows_max": 500, "clients": 1}
    assert checked(released(mean, 100.0, 1.0, n=100, **of_node)).doubts == ()
    text = refused(released(mean, 120.0, 1.0, n=100, **of_node))
    assert text.startswith("a data node's release over 100 rows is")
    assert "x is 1.2, and honest clients give -1 to 1" in text
    node = released(mean, 120.0, 1.0, n=100, **of_node)
    assert "a data node's release over 100 rows" in refused(dataclasses.replace(node, nodes=(node,)))
    good = released(mean, 100.0, 1.0, n=100, **of_node)
    left_out = dataclasses.replace(good, nodes=(good,), doubts=("a data node was left out",))
    assert checked(checked(left_out)).doubts == left_out.doubts, "a second check, as of a recalled round, keeps it"


def test_a_statistic_of_a_users_own_is_held_to_its_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))

    @register
    class Own(Mean, frozen=True, kw_only=True):
        name = "users-own"
        value_range = Statistic.value_range

    own = Own(**BOX)
    limits = own.value_range(24)
    assert limits.high.tolist() == [3 << 24] * 2
    assert limits.length == pytest.approx(3 * math.sqrt(2) * 2**24)
    assert checked(released(own, [60, 70], 1.0)).doubts == ()
    assert "a is 4.167" in refused(released(own, [100, 70], 1.0))


# LDP reports


def test_reports_where_the_noise_does_not_reach_are_recognised() -> None:
    mean, rng = Mean(**BOX), np.random.default_rng(11)
    sensitivity = client_sensitivity(mean, 1, 24)
    honest = np.tile(np.array([[1 << 24, -3 << 24]]), (2000, 1))
    for mechanism in (GridLaplace(0.5, sensitivity, 2), AnalyticGaussian(0.5, 1e-5, sensitivity, 2)):
        reports = mechanism.randomise(honest, rng.bytes(32))
        assert possible_reports(mechanism, mean, 1, 24, reports).all()  # false alarm: 1e-9
        reports[3] = rng.integers(-(2**63), 2**63, 2)
        reports[5, 1] = 10**6 << 24
        reports[7] = np.iinfo(np.int64).min
        assert np.flatnonzero(~possible_reports(mechanism, mean, 1, 24, reports)).tolist() == [3, 5, 7]


def test_bits_that_are_too_many_or_too_few_are_recognised() -> None:
    rng, histogram = np.random.default_rng(12), Histogram(columns=("a",), edges=tuple(range(301)))
    mechanism = UnaryEncoding(2.0, 300)
    reports = mechanism.randomise(rng.integers(-1, 300, 2000), rng.bytes(32))
    assert possible_reports(mechanism, histogram, 1, 24, reports).all()
    reports[3] = rng.random(300) < 0.5
    reports[4], reports[5] = True, False
    assert np.flatnonzero(~possible_reports(mechanism, histogram, 1, 24, reports)).tolist() == [3, 4, 5]
    response = RandomisedResponse(2.0, 300)
    drawn = response.randomise(rng.integers(-1, 300, 50), rng.bytes(32))
    assert possible_reports(response, histogram, 1, 24, drawn).all()
