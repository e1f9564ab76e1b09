"""Marginal likelihoods of one perturbed category: against exact fractions, summing to 1, and by counts of patterns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from math import log
from typing import Any

import jax
import numpy as np
import pytest
from compiling import quick_and_double
from likelihood_check import planted

from dca_proto.privacy.local import RandomisedResponse, UnaryEncoding
from inference.errors import DataError
from inference.models.column import categories

EPSILONS = [0.01, 0.5, 3.0, 20.0]
SHARES = [
    [Fraction(1, 2), Fraction(1, 2)],
    [Fraction(7, 10), Fraction(2, 10), Fraction(1, 10)],
    [Fraction(1, 10**30), Fraction(1, 3), Fraction(2, 3) - Fraction(1, 10**30), Fraction(0)],
]

unary = jax.jit(categories.unary_encoding)


@jax.jit
def response(reports: Any, *given: Any) -> Any:
    """ln P of each report."""
    return categories.randomised_response(*given)[reports]


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with quick_and_double():
        yield


def all_bits(k: int) -> Any:
    return np.array(list(itertools.product([0, 1], repeat=k)))


def log_of(shares: list[Fraction]) -> Any:
    return np.array([log(share) if share else -np.inf for share in shares])


def unary_given(bits: Any, own: int, p: Fraction, q: Fraction) -> Fraction:
    """P(bits | own category), bit by bit (eq. 31)."""
    product = Fraction(1)
    for j, bit in enumerate(bits):
        chance = p if j == own else q
        product *= chance if bit else 1 - chance
    return product


def response_given(reported: int, own: int, p: Fraction, q: Fraction) -> Fraction:
    return p if reported == own else q


def exact(reports: Any, shares: list[Fraction], given: Any, p: Fraction, q: Fraction) -> list[Fraction]:
    return [sum((t * given(one, k, p, q) for k, t in enumerate(shares)), Fraction(0)) for one in reports]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("shares", SHARES, ids=len)
def test_unary_encoding_is_the_mixture_of_its_bits(epsilon: float, shares: list[Fraction]) -> None:
    p, q = UnaryEncoding(epsilon, len(shares)).probabilities
    bits = all_bits(len(shares))
    true = [log(value) for value in exact(bits.tolist(), shares, unary_given, p, q)]
    found = unary(bits, log_of(shares), float(p), float(q))
    np.testing.assert_allclose(found, true, atol=1e-12)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("shares", SHARES, ids=len)
def test_randomised_response_is_the_mixture_of_its_categories(epsilon: float, shares: list[Fraction]) -> None:
    k = len(shares)
    p, q = RandomisedResponse(epsilon, k).probabilities
    true = [log(value) for value in exact(range(k), shares, response_given, p, q)]
    found = response(np.arange(k), log_of(shares), float(p), float(q))
    np.testing.assert_allclose(found, true, atol=1e-12)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("k", [2, 3, 9])
def test_probabilities_sum_to_one(epsilon: float, k: int) -> None:
    log_theta = np.log(np.random.default_rng(k).dirichlet(np.full(k, 0.3)))
    p, q = map(float, UnaryEncoding(epsilon, k).probabilities)
    assert np.exp(unary(all_bits(k), log_theta, p, q)).sum() == pytest.approx(1, abs=1e-12)
    p, q = map(float, RandomisedResponse(epsilon, k).probabilities)
    assert np.exp(response(np.arange(k), log_theta, p, q)).sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("mechanism", "given", "function", "reports"),
    [
        (UnaryEncoding, unary_given, unary, all_bits(4)),
        (RandomisedResponse, response_given, response, np.arange(4)),
    ],
)
def test_gradients_are_exact(mechanism: Any, given: Any, function: Any, reports: Any) -> None:
    """∂ ln P/∂ ln θ_k = θ_k P(z | k)/P(z), finite also where a share is 0 or e^-10^6."""
    shares = SHARES[2]
    slopes = jax.jit(jax.jacrev(function, 1))
    for epsilon in EPSILONS:
        p, q = mechanism(epsilon, 4).probabilities
        totals = exact(reports.tolist(), shares, given, p, q)
        true = [
            [float(t * given(one, k, p, q) / total) for k, t in enumerate(shares)]
            for one, total in zip(reports.tolist(), totals, strict=True)
        ]
        np.testing.assert_allclose(slopes(reports, log_of(shares), float(p), float(q)), true, atol=1e-12)
        assert np.isfinite(slopes(reports, np.array([-1e6, -1000.0, 0.0, -1.0]), float(p), float(q))).all()


@pytest.mark.long
@pytest.mark.parametrize("n", [20, 1000])
def test_patterns_count_all_reports(n: int) -> None:
    """With fewer reports than patterns the reports themselves."""
    k = 6
    bits = np.random.default_rng(n).random((n, k)) < 0.3
    patterns, counts = categories.patterns(bits)
    assert patterns.shape == (min(n, 2**k), k)
    assert patterns.dtype == bool
    assert counts.sum() == n
    assert sorted(np.repeat(patterns, counts.astype(int), axis=0).tolist()) == sorted(bits.tolist())
    p, q = map(float, UnaryEncoding(1.0, k).probabilities)
    log_theta = np.log(np.arange(1, k + 1) / 21)
    every = unary(bits, log_theta, p, q).sum()
    assert float(counts @ unary(patterns, log_theta, p, q)) == pytest.approx(float(every), rel=1e-13)


def test_many_categories() -> None:
    """2^k has no part in it."""
    bits = np.random.default_rng(1).random((30, 2000)) < 0.3
    patterns, counts = categories.patterns(bits)
    assert (patterns == bits).all()
    p, q = map(float, UnaryEncoding(1.0, 2000).probabilities)
    assert np.isfinite(counts @ unary(patterns, np.full(2000, -log(2000)), p, q))


@pytest.mark.parametrize("bits", [[0, 1], [[0, 2]], [[0.5, 1]], np.zeros((0, 3)), [[np.nan, 1]]])
def test_patterns_refuse_values_other_than_bits(bits: Any) -> None:
    with pytest.raises(DataError, match="expected 0 and 1"):
        categories.patterns(bits)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("p / q, (1 - p) / (1 - q)", "(1 - p) / (1 - q), p / q"),
        ("p / q, (1 - p) / (1 - q)", "p / q, 1"),
        ("jnp.log1p(-q)", "jnp.log1p(-p)"),
        ("(if_named - if_not) * named(theta)", "if_named * named(theta)"),
    ],
)
def test_a_planted_error_is_seen(right: str, wrong: str) -> None:
    shares = SHARES[1]
    p, q = UnaryEncoding(1.0, 3).probabilities
    true = [log(value) for value in exact(all_bits(3).tolist(), shares, unary_given, p, q)]
    found = jax.jit(planted(categories, right, wrong).unary_encoding)(all_bits(3), log_of(shares), float(p), float(q))
    assert np.abs(found - np.array(true)).max() > 1e-3
