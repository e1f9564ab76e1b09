"""The local mechanisms: their privacy by enumeration, their estimators by enumeration, their refusals."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from math import exp
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scripted import KEY, scripted

from dca_proto import statistics
from dca_proto.errors import UsageError
from dca_proto.privacy.accounting import mu_of, share_variance
from dca_proto.privacy.local import (
    AnalyticGaussian,
    GridLaplace,
    LocalMechanism,
    RandomisedResponse,
    UnaryEncoding,
    additive,
    categorical,
    registered,
    resolve,
    stream,
)
from dca_proto.statistics.contribution import client_sensitivity, contribution
from dca_proto.statistics.sensitivity import ADD_OR_REMOVE_ONE_CLIENT, Sensitivity

ROOT = Path(__file__).parents[3]
EPSILONS = [1e-6, 0.1, 1.0, 3.7, 20.0, 36.0]
GRID = Sensitivity(l1=700, l2_squared=250_000, bound=1000)
ALL: list[tuple[LocalMechanism, Any]] = [
    (AnalyticGaussian(1.0, 1e-6, GRID, 3), np.arange(30).reshape(10, 3)),
    (GridLaplace(1.0, GRID, 3), np.arange(30).reshape(10, 3)),
    (RandomisedResponse(1.0, 4), np.arange(12) % 4),
    (UnaryEncoding(1.0, 4), np.arange(12) % 4),
]


# Privacy, exactly.


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("categories", [2, 3, 10, 2**20])
def test_randomised_response_keeps_its_ratio(epsilon: float, categories: int) -> None:
    """p/q <= e^ε, and no closer than the 64 bits ask for."""
    own, stray = RandomisedResponse(epsilon, categories).probabilities
    assert own + (categories - 1) * stray == 1
    assert own > stray > 0
    with mpmath.workdps(60):
        limit = mpmath.exp(mpmath.mpf(epsilon))
        ratio = mpmath.mpf(own.numerator * stray.denominator) / (own.denominator * stray.numerator)
        rounding = (limit + categories) ** 2 / limit / 2**64
        assert limit * (1 - rounding) < ratio <= limit


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_unary_encoding_keeps_its_ratio_over_all_reports(epsilon: float) -> None:
    """All 2^4 reports under all pairs of 4 categories."""
    one, categories = UnaryEncoding(epsilon, 4), range(4)
    own, stray = one.probabilities
    assert own == Fraction(1, 2)

    def probability(report: tuple[int, ...], held: int) -> Fraction:
        ones = [own if place == held else stray for place in categories]
        total = Fraction(1)
        for bit, p in zip(report, ones, strict=True):
            total *= p if bit else 1 - p
        return total

    reports = list(itertools.product([0, 1], repeat=4))
    assert all(sum(probability(report, held) for report in reports) == 1 for held in categories)
    worst = max(
        probability(report, held) / probability(report, other)
        for report in reports
        for held, other in itertools.permutations(categories, 2)
    )
    with mpmath.workdps(60):
        limit = mpmath.exp(mpmath.mpf(epsilon))
        ratio = mpmath.mpf(worst.numerator) / worst.denominator
        assert limit * (1 - (limit + 1) ** 2 / limit / 2**63) < ratio <= limit


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.3])
def test_laplace_on_the_grid_keeps_its_ratio(epsilon: float) -> None:
    """The law that `test_the_parts_make_up_the_law` finds: P(z - v)/P(z - v') over all |v - v'| <= Δ1."""
    rate = GridLaplace(epsilon, Sensitivity(l1=5, l2_squared=25, bound=9)).rate
    assert rate * 5 == Fraction(epsilon), "ε to its last bit"
    assert max(abs(z - v) - abs(z) for z in range(-40, 41) for v in range(-5, 6)) == 5, "and so e^(5 rate) at most"


@pytest.mark.parametrize(
    ("epsilon", "delta", "l2"), [(0.5, 1e-5, 20), (1.0, 1e-6, 10), (4.0, 1e-3, 40), (10, 1e-9, 70)]
)
def test_the_gaussians_exact_discrete_delta_is_within_delta(epsilon: float, delta: float, l2: int) -> None:
    """Σ_x max(0, P(x) - e^ε P(x - Δ)) of the discrete Gaussian itself, in 40 digits."""
    one = AnalyticGaussian(epsilon, delta, Sensitivity(l1=l2, l2_squared=l2 * l2, bound=l2))
    assert one.noise_variance == share_variance(float(l2), mu_of(epsilon, delta), 1, 1)
    reach = 14 * int(one.noise_variance**0.5) + l2
    with mpmath.workdps(40):
        weights = [mpmath.exp(mpmath.mpf(-x * x) / (2 * one.noise_variance)) for x in range(-reach, reach + 1)]
        factor = mpmath.exp(mpmath.mpf(epsilon))
        excess = (weights[i] - factor * weights[i + l2] for i in range(len(weights) - l2))
        true = mpmath.fsum(e for e in excess if e > 0) / mpmath.fsum(weights)
    assert 0.9 * delta < true <= delta


# What a word of the stream becomes.


def test_each_word_gives_the_report_that_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    one = RandomisedResponse(1.0, 4)
    own, stray = one._weights
    words = [0, own - 1, own, own + stray - 1, own + stray, own + 2 * stray, 2**64 - 1]
    scripted(monkeypatch, categorical, np.array(words, dtype=np.uint64)[:, None])
    assert one.randomise([2] * len(words), KEY).tolist() == [2, 2, 3, 3, 0, 1, 1]
    assert own + 3 * stray == 2**64


def test_each_word_gives_the_bit_that_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    one = UnaryEncoding(1.0, 4)
    stray, half = one._weights[1], 2**63
    words = [[0, stray - 1, stray, 2**64 - 1], [half - 1, 0, 0, 0], [half, stray, half - 1, half]]
    scripted(monkeypatch, categorical, np.array(words, dtype=np.uint64))
    assert one.randomise([3, 0, 0], KEY).astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]


def test_known_answers() -> None:
    """Devices of any kind and version must report the same from the same key."""
    zeros = np.zeros((4, 1), dtype=np.int64)
    wide = Sensitivity(l1=2**24, l2_squared=2**48, bound=2**24)
    assert AnalyticGaussian(1.0, 1e-6, wide).randomise(zeros, KEY).ravel().tolist() == KNOWN["analytic-gaussian"]
    assert GridLaplace(1.0, wide).randomise(zeros, KEY).ravel().tolist() == KNOWN["grid-laplace"]
    assert GridLaplace(1.0, wide).randomise(np.zeros((9000, 1), int), KEY)[-2:, 0].tolist() == KNOWN["further on"]
    assert RandomisedResponse(1.0, 5).randomise([0, 1, 2, 3, 4, 0], KEY).tolist() == KNOWN["randomised-response"]
    bits = UnaryEncoding(1.0, 5).randomise([0, 1, 2], KEY)
    assert bits.astype(int).tolist() == KNOWN["unary-encoding"]


KNOWN: dict[str, Any] = {
    "analytic-gaussian": [44145673, -86537782, -61326019, -20931299],
    "grid-laplace": [-28228478, 73067358, 13933784, -1940600],
    "further on": [-30159455, -37994622],
    "randomised-response": [1, 1, 2, 1, 4, 1],
    "unary-encoding": [[0, 1, 1, 0, 1], [0, 1, 1, 0, 0], [0, 1, 1, 1, 1]],
}


@pytest.mark.parametrize(("one", "values"), ALL, ids=lambda value: getattr(value, "name", ""))
def test_one_key_gives_one_report_whatever_follows(
    one: LocalMechanism, values: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_CHUNK_BYTES", 100)
    together = one.randomise(values, KEY)
    assert np.array_equal(together, one.randomise(values, KEY))
    assert not np.array_equal(together, one.randomise(values, bytes(32)))
    for count in (0, 1, 7):
        assert np.array_equal(one.randomise(values[:count], KEY), together[:count])
    assert len(together) == len(values)


# Estimators, by enumeration of all reports.


def outcomes(one: RandomisedResponse | UnaryEncoding, held: tuple[int, ...]) -> list[tuple[Any, Fraction]]:
    """All reports that these clients may give, with their probabilities."""
    own, stray = one.probabilities
    k = one.categories
    found = []
    if isinstance(one, RandomisedResponse):
        for reported in itertools.product(range(k), repeat=len(held)):
            odds = [own if a == b else stray for a, b in zip(reported, held, strict=True)]
            found.append((np.array(reported), odds))
    else:
        for bits in itertools.product([0, 1], repeat=k * len(held)):
            table = np.array(bits).reshape(-1, k)
            ones = [own if place == row else stray for row in held for place in range(k)]
            found.append((table, [p if bit else 1 - p for bit, p in zip(bits, ones, strict=True)]))
    return [(report, Fraction(np.prod(odds))) for report, odds in found]


@pytest.mark.parametrize(
    ("one", "held"),
    [
        (RandomisedResponse(0.8, 2), (0, 1, 1)),
        (RandomisedResponse(1.3, 3), (0, 2, 2)),
        (UnaryEncoding(0.8, 2), (0, 1, 1)),
        (UnaryEncoding(1.3, 3), (0, 2, 2)),
    ],
)
def test_shares_are_unbiased_with_the_stated_variance(
    one: RandomisedResponse | UnaryEncoding, held: tuple[int, ...]
) -> None:
    """Over all reports with their exact probabilities: mean, variance, and the mean of the estimated variance."""
    truth = np.bincount(held, minlength=one.categories) / len(held)
    chances = outcomes(one, held)
    odds = np.array([float(p) for _, p in chances])
    found = [one.estimate(report) for report, _ in chances]
    means, variances = np.array([one.mean for one in found]), np.array([one.variance for one in found])
    assert sum(p for _, p in chances) == 1
    assert odds @ means == pytest.approx(truth, abs=1e-12)
    assert odds @ (means - truth) ** 2 == pytest.approx(one.variance(truth, len(held)), rel=1e-9)
    assert odds @ variances == pytest.approx(one.variance(truth, len(held)), rel=1e-9)
    assert (variances > 0).all()
    assert {one.reports for one in found} == {len(held)}


def test_the_papers_printed_estimator_is_biased_and_ours_is_not() -> None:
    """Of a share f the mean bit is f/2 + (1-f)/(e^ε + 1) (q f + (1-p)(1-f) in the letters of eq. (9))."""
    epsilon, f = 1.0, 0.3
    p, q = exp(epsilon) / (exp(epsilon) + 1), 0.5
    one = UnaryEncoding(epsilon, 2)
    mean = f * q + (1 - f) * (1 - p)
    assert (mean - (1 - p)) / (q - (1 - p)) == pytest.approx(f)
    printed = (mean - q) / (p - q)
    assert abs(printed - f) > 0.9
    n = 10**6  # reports with exactly that mean bit
    bits = np.zeros((n, 2), dtype=np.bool_)
    bits[: round(mean * n), 0] = True
    assert one.estimate(bits).mean[0] == pytest.approx(f, abs=1e-5)


def test_binary_response_is_the_papers_estimator() -> None:
    """(Σz/n + p - 1)/(2p - 1), section 2.1."""
    one = RandomisedResponse(1.2, 2)
    p, bits = float(one.probabilities[0]), np.array([0, 1, 1, 0, 1])
    assert one.estimate(bits).mean[1] == pytest.approx((0.6 + p - 1) / (2 * p - 1))


@pytest.mark.parametrize("one", [AnalyticGaussian(1.0, 1e-6, GRID, 2), GridLaplace(1.0, GRID, 2)])
def test_additive_reports_are_averaged(one: AnalyticGaussian | GridLaplace) -> None:
    found = one.estimate([[1, 20], [3, 40]])
    assert found.mean.tolist() == [2, 30]
    assert found.variance.tolist() == [one.noise_variance / 2] * 2


@pytest.mark.parametrize("rate", [Fraction(20), Fraction(1), Fraction(1, 50)])
def test_laplace_variance_is_that_of_the_law(rate: Fraction) -> None:
    l1 = rate.denominator
    x = np.arange(0, 3000)
    law = np.exp(-float(rate) * x) * np.tanh(float(rate) / 2)
    one = GridLaplace(float(rate * l1), Sensitivity(l1=l1, l2_squared=l1 * l1, bound=1))
    assert one.noise_variance == pytest.approx(2 * (law @ (x * x)))


# Refusals.


def fails(call: Callable[[], object], said: str) -> str:
    with pytest.raises(UsageError, match=said) as caught:
        call()
    return str(caught.value)


SECRET = 987654
BAD_VALUES: list[tuple[LocalMechanism, Any, str]] = [
    (ALL[0][0], [[1, SECRET, 0]], "outside -1000 to 1000: clip them first"),
    (ALL[0][0], [[1, 0]], r"shape \(1, 2\), expected \(n, 3\)"),
    (ALL[1][0], [[1, -SECRET, 0]], "outside -1000 to 1000: clip them first"),
    (ALL[1][0], [[1.5, float(SECRET), 0]], "type float64, expected integers"),
    (ALL[1][0], [1, 2, 3], r"shape \(3,\), expected \(n, 3\)"),
    (ALL[2][0], [0, SECRET], "outside 0 to 3: number the categories from 0"),
    (ALL[2][0], [-SECRET], "outside 0 to 3"),
    (ALL[2][0], [True, False], "type bool, expected integers"),
    (ALL[2][0], np.array([SECRET], dtype=np.uint64), "type uint64"),
    (ALL[2][0], np.array(str(SECRET)), r"shape \(\)"),
    (ALL[2][0], [str(SECRET)], "expected integers"),
    (ALL[3][0], [0, SECRET], "outside 0 to 3"),
    (ALL[3][0], [[0]], r"shape \(1, 1\)"),
    (ALL[3][0], [SECRET + 0.5], "type float64"),
]


@pytest.mark.parametrize(("one", "values", "said"), BAD_VALUES)
def test_an_error_about_a_value_does_not_contain_the_value(one: LocalMechanism, values: Any, said: str) -> None:
    message = fails(lambda: one.randomise(values, KEY), said)
    assert str(SECRET) not in message


@pytest.mark.parametrize(("one", "values"), ALL, ids=lambda value: getattr(value, "name", ""))
def test_a_wrong_key_is_refused(one: LocalMechanism, values: Any) -> None:
    for key in (b"k" * 31, "k" * 32):
        assert "kk" not in fails(lambda key=key: one.randomise(values, key), "expected 32 secret bytes")


@pytest.mark.parametrize(
    ("one", "reports", "said"),
    [
        (ALL[0][0], np.zeros((0, 3), int), "0 reports"),
        (ALL[1][0], [[0.5, 0, 0]], "reports are of type float64"),
        (ALL[2][0], np.zeros(0, int), "0 reports"),
        (ALL[2][0], [4], "reports are outside 0 to 3"),
        (ALL[3][0], [[0, 1, 2, 0]], "reports are outside 0 to 1"),
        (ALL[3][0], [[0, 1, 1]], r"shape \(1, 3\), expected \(n, 4\)"),
        (ALL[3][0], np.zeros((0, 4), bool), "0 reports"),
    ],
)
def test_what_cannot_be_a_report_is_refused(one: LocalMechanism, reports: Any, said: str) -> None:
    fails(lambda: one.estimate(reports), said)


BESIDE = Sensitivity(l1=1, l2_squared=1, bound=1, relation=ADD_OR_REMOVE_ONE_CLIENT)
TINY, HUGE = Sensitivity(l1=1, l2_squared=1, bound=1), Sensitivity(l1=2**60, l2_squared=2**120, bound=2**60)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf"), 100.5, "1"])
def test_an_epsilon_out_of_range_is_refused(epsilon: Any) -> None:
    for make in (lambda: RandomisedResponse(epsilon, 2), lambda: UnaryEncoding(epsilon, 2)):
        fails(make, "epsilon is .*, expected a number above 0 and at most 100")
    fails(lambda: GridLaplace(epsilon, GRID), "epsilon is")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RandomisedResponse(1.0, 1), "categories is 1, expected 2 to 1048576"),
        (lambda: UnaryEncoding(1.0, 2**21), "categories is 2097152, expected 2 to 1048576"),
        (lambda: RandomisedResponse(1e-20, 2), "epsilon 1e-20 is too small"),
        (lambda: UnaryEncoding(1e-20, 2), "epsilon 1e-20 is too small"),
        (lambda: GridLaplace(1.0, BESIDE), "'add-or-remove-one-client' was given where .*replace-one-client"),
        (lambda: AnalyticGaussian(1.0, 1e-6, BESIDE), "'add-or-remove-one-client' was given where"),
        (lambda: GridLaplace(1.0, HUGE), "L1 sensitivity .* expected at most 6e.15 at epsilon 1: use fewer fraction"),
        (lambda: GridLaplace(1.0, GRID, 0), "dimension is 0"),
        (lambda: AnalyticGaussian(1.0, 1e-6, GRID, 0), "dimension is 0"),
        (lambda: AnalyticGaussian(1.0, 1e-6, TINY), "expected 8 to 2.40: use .*more fraction bits"),
        (lambda: AnalyticGaussian(1.0, 1e-6, HUGE), "use .*fewer fraction bits"),
        (lambda: AnalyticGaussian(1.0, 1.0, GRID), "delta is 1.0"),
        (lambda: AnalyticGaussian(float("nan"), 1e-6, GRID), "epsilon is nan"),
    ],
)
def test_a_mechanism_that_cannot_be_is_refused(make: Callable[[], object], said: str) -> None:
    fails(make, said)


def test_the_smallest_epsilon_that_is_promised_works_for_every_number_of_categories() -> None:
    for categories in (2, 2**10, 2**20):
        promised = re.compile("expected at least (.*)")
        refused = fails(lambda: RandomisedResponse(categories**2 / 2**66, categories), "is too small")  # noqa: B023
        RandomisedResponse(float(promised.search(refused)[1]), categories)
        UnaryEncoding(2.0**-50, categories)


@pytest.mark.parametrize("made", [RandomisedResponse, UnaryEncoding])
@pytest.mark.parametrize("epsilon", [1e-18, 1e-17, 1e-16, 1e-15, 1e-14, 1e-8, 36.0, 37.5, 40.0, 100.0])
def test_whatever_is_accepted_can_be_estimated_from(
    made: type[RandomisedResponse | UnaryEncoding], epsilon: float
) -> None:
    """Where p and q differed in 64 bits, but not as floats, a plan divided by zero; at p = 1 no fit took it."""
    if epsilon < 1e-15 or (epsilon > 36 and made is RandomisedResponse):
        fails(lambda: made(epsilon, 2), "is too small for 2 categories" if epsilon < 1 else "is too large")
        return
    mechanism = made(epsilon, 2)
    p, q = mechanism.probabilities
    largest = max(float(one * (1 - one)) for one in (p, q)) / float(p - q) ** 2
    assert mechanism.variance_in_sum(1.0) >= largest * (1 - 1e-12)
    decoded = mechanism.decode_reports(mechanism.randomise(np.array([0, 1]), bytes(32)), 1.0)
    assert decoded.categories == 2
    assert 0 < decoded.probabilities[1] < decoded.probabilities[0] < 1  # type: ignore[index]


# By name.


@pytest.mark.parametrize(("one", "values"), ALL, ids=lambda value: getattr(value, "name", ""))
def test_a_mechanism_is_found_by_its_name(one: LocalMechanism, values: Any) -> None:
    fields = {field: getattr(one, field) for field in one.__struct_fields__}
    assert resolve(one.name, fields) == one
    assert one.name in registered()
    assert (one.epsilon, one.delta) == (1.0, 1e-6 if one.name == "analytic-gaussian" else 0)
    with pytest.raises(AttributeError):
        one.epsilon = 2.0


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("subtractive", {}, "'subtractive' is unknown here; known: analytic-gaussian, grid-laplace"),
        ("unary-encoding", {"epsilon": 1.0}, "parameters of local mechanism 'unary-encoding': .*categories"),
        ("unary-encoding", {"epsilon": 1.0, "categories": 1}, "categories is 1, expected 2"),
        ("grid-laplace", {"epsilon": 1.0, "scale": 1.0, "sensitivity": GRID}, "unknown field `scale`"),
    ],
)
def test_a_wrong_name_or_parameter_is_refused(name: str, parameters: dict[str, Any], said: str) -> None:
    fails(lambda: resolve(name, parameters), said)


def test_a_device_can_use_them() -> None:
    absent = ("typer", "rich", "scipy", "sklearn", "matplotlib", "iotcore", "mpmath", "dp_accounting")
    probe = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import dca_proto.privacy.local"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("rows_max", [0, 2])
def test_a_statistics_contributions_can_be_reported(rows_max: int) -> None:
    """As the package's head says; 400 clients. Each mean within 4.5 standard errors. False alarm: 6e-5."""
    statistic = statistics.resolve(
        "mean", {"columns": ["x", "y"], "centre": [5.0, 0], "scale": [5.0, 1], "bound": [1.0, 1]}
    )
    sensitivity = client_sensitivity(statistic, rows_max, 24)
    rows = [np.array([[index % 11, 9.0], [index % 7, -0.5]]) for index in range(400)]
    held = [contribution(statistic, one, rows_max, 24) for one in rows]
    for mechanism in (
        AnalyticGaussian(1.0, 1e-6, sensitivity, statistic.dimension),
        GridLaplace(1.0, sensitivity, statistic.dimension),
    ):
        found = mechanism.estimate(mechanism.randomise(held, KEY))
        assert (np.abs(found.mean - np.mean(held, axis=0)) < 4.5 * np.sqrt(found.variance)).all()


def test_laplace_is_drawn_by_the_sampler_that_was_proved() -> None:
    one = GridLaplace(0.5, GRID, 2)
    expected = additive.sample(Fraction(1, 1400), 6, KEY).reshape(3, 2)
    assert np.array_equal(one.randomise(np.full((3, 2), 7), KEY), expected + 7)
