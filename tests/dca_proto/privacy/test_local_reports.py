"""Reports of the local mechanisms: of clients without a category, as bytes, and as sums."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scripted import KEY, scripted

from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy.accounting import mu_of
from dca_proto.privacy.local import (
    MISSING,
    AnalyticGaussian,
    GridLaplace,
    LocalMechanism,
    RandomisedResponse,
    UnaryEncoding,
    categorical,
    mechanism_of,
)
from dca_proto.statistics import Sensitivity, resolve
from dca_proto.statistics.contribution import client_sensitivity, contribution

ROOT = Path(__file__).parents[3]
GRID = Sensitivity(l1=700, l2_squared=250_000, bound=1000)
EPSILONS = [1e-6, 0.1, 1.0, 3.7, 20.0, 36.0]
ALL: list[LocalMechanism] = [
    AnalyticGaussian(1.0, 1e-6, GRID, 3),
    GridLaplace(1.0, GRID, 3),
    RandomisedResponse(1.0, 4),
    UnaryEncoding(1.0, 4),
    UnaryEncoding(1.0, 8),
    UnaryEncoding(1.0, 9),
]
HISTOGRAM = resolve("histogram", {"columns": ["x"], "edges": [-0.5, 0.5, 1.5, 2.5, 3.5]})


def ids(one: Any) -> str:
    return f"{one.name}-{getattr(one, 'categories', '')}" if hasattr(one, "name") else str(one)


# A client without a category


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("categories", [2, 3, 2**20])
def test_the_response_of_a_category_drawn_evenly_lies_between_the_others(epsilon: float, categories: int) -> None:
    """Every report has 1/k, exactly: the mean of p and k - 1 times q. So each ratio is p k or 1/(q k), at most p/q."""
    p, q = RandomisedResponse(epsilon, categories).probabilities
    missing = (p + (categories - 1) * q) / categories
    assert missing == Fraction(1, categories)
    assert q < missing < p
    assert max(p / missing, missing / q) <= p / q


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_bit_of_ones_own_is_private_beside_every_category(epsilon: float) -> None:
    """All 2^4 reports, with a category and without: no ratio above e^ε, and none above that of two categories."""
    p, q = UnaryEncoding(epsilon, 4).probabilities

    def probability(report: tuple[int, ...], own: int | None) -> Fraction:
        ones = [p if place == own else q for place in range(4)]
        return Fraction(math.prod(one if bit else 1 - one for bit, one in zip(report, ones, strict=True)))

    reports = list(itertools.product([0, 1], repeat=4))
    ratios = [probability(one, None) / probability(one, 2) for one in reports]
    worst = max(*ratios, *(1 / ratio for ratio in ratios))
    with mpmath.workdps(60):
        assert worst <= (1 - q) / q
        assert mpmath.mpf(worst.numerator) / worst.denominator <= mpmath.exp(mpmath.mpf(epsilon))


def test_a_missing_category_is_drawn_from_words_that_nothing_else_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words from the last whole multiple of k on are skipped; the one after it decides, and then the response's own."""
    one = RandomisedResponse(1.0, 3)
    own, _ = one._weights
    words = np.array([[0], [own], [0]], dtype=np.uint64)
    scripted(monkeypatch, categorical, words, later=(2**64 - 1, 7))  # 2^64 = 1 modulo 3, 7 is category 1
    assert one.randomise([MISSING, MISSING, 2], KEY).tolist() == [1, 2, 2]


def test_missing_ones_change_no_others_report() -> None:
    for one in (RandomisedResponse(1.0, 5), UnaryEncoding(1.0, 5)):
        with_all, without = (one.randomise(held, KEY) for held in ([0, 1, 2, 3], [0, MISSING, 2, MISSING]))
        assert np.array_equal(with_all[[0, 2]], without[[0, 2]])


def test_missing_ones_have_their_law() -> None:
    """30,000 of them; each category, or bit, within 4.5 standard errors. False alarm: 7e-6 for each of 8 figures."""
    held = np.full(30_000, MISSING)
    result = np.bincount(RandomisedResponse(1.0, 4).randomise(held, KEY), minlength=4) / len(held)
    assert (np.abs(result - 1 / 4) < 4.5 * math.sqrt(3 / 16 / len(held))).all()
    one = UnaryEncoding(1.0, 4)
    q = float(one.probabilities[1])
    bits = one.randomise(held, KEY).mean(axis=0)
    assert (np.abs(bits - q) < 4.5 * math.sqrt(q * (1 - q) / len(held))).all()


def test_what_missing_ones_count_in_an_estimate() -> None:
    """1/k in every category by randomised response, nothing by unary encoding; in expectation, exactly."""
    p, q = RandomisedResponse(1.3, 5).probabilities
    assert (Fraction(1, 5) - q) / (p - q) == Fraction(1, 5)
    assert UnaryEncoding(1.3, 5).stray_of_missing == float(UnaryEncoding(1.3, 5).probabilities[1])


def test_values_below_the_missing_one_are_refused() -> None:
    for one in (RandomisedResponse(1.0, 4), UnaryEncoding(1.0, 4)):
        with pytest.raises(UsageError, match="outside 0 to 3"):
            one.randomise([MISSING - 1], KEY)


# Contributions to values


def test_a_contribution_is_the_value_of_a_vector_and_its_place_that_of_a_category() -> None:
    rows = [np.array([[value]]) for value in (2.0, 99.0, -3.0, math.nan)] + [np.zeros((0, 1))]
    held = np.array([contribution(HISTOGRAM, one, 1, 24) for one in rows])
    for one in (RandomisedResponse(1.0, 4), UnaryEncoding(1.0, 4)):
        assert one.to_inputs(held).tolist() == [2, 3, 0, MISSING, MISSING]
    assert np.array_equal(GridLaplace(1.0, GRID, 4).to_inputs(held), held)


# Bytes


@pytest.mark.parametrize("one", ALL, ids=ids)
def test_a_report_goes_through_its_bytes(one: LocalMechanism) -> None:
    values = np.arange(30).reshape(10, 3) if hasattr(one, "dimension") else np.arange(10) % 4
    for report in one.randomise(values, KEY):
        encoded = one.encode(report)
        assert np.array_equal(one.decode(encoded), report)
        assert one.decode(encoded).dtype == report.dtype
        assert len(encoded) == len(one.encode(one.randomise(values, KEY)[0]))


def test_the_bytes_are_those_of_the_design() -> None:
    assert GridLaplace(1.0, GRID, 2).encode(np.array([1, -2])) == b"\1" + bytes(7) + b"\xfe" + b"\xff" * 7
    assert RandomisedResponse(1.0, 300).encode(np.array(258)) == b"\2\1\0\0"
    bits = np.zeros(10, dtype=np.bool_)
    bits[[0, 3, 9]] = True
    assert UnaryEncoding(1.0, 10).encode(bits) == b"\x09\x02"


@pytest.mark.parametrize(
    ("one", "data", "code"),
    [
        (AnalyticGaussian(1.0, 1e-6, GRID, 3), bytes(23), "length"),
        (GridLaplace(1.0, GRID, 3), bytes(25), "length"),
        (RandomisedResponse(1.0, 4), bytes(3), "length"),
        (RandomisedResponse(1.0, 4), b"\4\0\0\0", "release"),
        (UnaryEncoding(1.0, 4), bytes(2), "length"),
        (UnaryEncoding(1.0, 4), b"\x10", "release"),
        (UnaryEncoding(1.0, 8), bytes(2), "length"),
        (UnaryEncoding(1.0, 9), b"\xff\x02", "release"),
    ],
    ids=ids,
)
def test_other_bytes_are_no_report(one: LocalMechanism, data: bytes, code: str) -> None:
    with pytest.raises(PeerError) as caught:
        one.decode(data)
    assert caught.value.code == code


def test_every_byte_string_that_is_taken_is_some_reports_own() -> None:
    """All 2^16 of two bytes for ten bits, and all of one byte for four: those taken encode to the same bytes again."""
    for one, size, taken in ((UnaryEncoding(1.0, 10), 2, 2**10), (UnaryEncoding(1.0, 4), 1, 2**4)):
        found = 0
        for number in range(256**size):
            data = number.to_bytes(size, "little")
            try:
                report = one.decode(data)
            except PeerError:
                continue
            assert one.encode(report) == data
            found += 1
        assert found == taken


# Sums


def test_vectors_are_summed_in_the_statistics_units() -> None:
    one = GridLaplace(1.0, GRID, 2)
    reports = np.array([[2**20, -4], [2**21, 1]])
    assert one.summed(reports, 2.0**-20).tolist() == [3.0, -3 * 2.0**-20]
    assert one.variance_in_sum(2.0**-20) == one.noise_variance * 4.0**-20
    result = one.decode_reports(reports, 2.0**-20)
    assert result.values.tolist() == [[1.0, -4 * 2.0**-20], [2.0, 2.0**-20]]
    assert result.noise_scale == pytest.approx(700 * 2.0**-20)


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("kind", [RandomisedResponse, UnaryEncoding])
def test_the_stated_variance_of_a_count_is_the_largest_that_it_can_have(kind: Any, k: int) -> None:
    """Of n clients in all ways to hold the category, another or none, the sum's variance is n times it at most."""
    one = kind(0.7, k)
    p, q = map(float, one.probabilities)
    laws = [p, q, one.stray_of_missing]
    variances = [
        sum(x * (1 - x) for x in held) / (p - q) ** 2 for held in itertools.combinations_with_replacement(laws, 3)
    ]
    assert max(variances) == pytest.approx(3 * one.variance_in_sum(1.0))
    reports = one.randomise([0, 1, 1], KEY)
    assert one.summed(reports, 1.0) == pytest.approx(3 * one.estimate(reports).mean)


# By the figures of a round


@pytest.mark.parametrize(
    ("name", "delta", "expected"),
    [
        ("analytic-gaussian", 1e-6, AnalyticGaussian),
        ("grid-laplace", 0.0, GridLaplace),
        ("randomised-response", 0.0, RandomisedResponse),
        ("unary-encoding", 0.0, UnaryEncoding),
    ],
)
def test_a_round_has_all_of_a_mechanisms_parameters(name: str, delta: float, expected: type) -> None:
    sensitivity = client_sensitivity(HISTOGRAM, 1, 24)
    one = mechanism_of(name, HISTOGRAM, sensitivity, 1, 0.5, delta)
    assert isinstance(one, expected)
    figures = {"epsilon": 0.5, "delta": delta, "sensitivity": sensitivity, "dimension": 4, "categories": 4}
    figures["mu"] = mu_of(0.5, 1e-6)
    assert {field: getattr(one, field) for field in one.__struct_fields__}.items() <= figures.items()


def test_who_only_sums_does_not_load_them() -> None:
    """Neither a device nor a trainer imports the local mechanisms before a round of reports comes."""
    probe = (
        "import sys, dca_proto.runtime.device, dca_proto.protocol.client.actor, dca_proto.protocol.trainer.actor; "
        "sys.exit('dca_proto.privacy.local' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", probe], cwd=ROOT, check=False).returncode == 0
