"""Bounded numbers with noise: exact sums, no way beyond the bounds, and noise that no client chooses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from dca_proto.crypto.bounded import Limit, Statement, weights_of
from dca_proto.crypto.field import DEFAULT, PRIME, Elements
from dca_proto.errors import UsageError

BOUNDS = (1, 3, 100, 128, 7, 2**20 + 1)
UGLY = Statement.within(*BOUNDS, noises=2, noise_bits=3)


def shares_of(words: Elements, nodes: int) -> list[Elements]:
    pads = np.random.default_rng(3).integers(0, PRIME, (nodes - 1, *words.shape)).astype(np.uint64)
    return [*pads, DEFAULT.minus(words, pads.sum(axis=0) % PRIME)]


def noisy_sum(statement: Statement, bits: NDArray[np.int64], coins: NDArray[np.bool_], nodes: int = 3) -> list[float]:
    words = DEFAULT.of(bits)
    total = sum((statement.sum_of_shares(share, coins) for share in shares_of(words, nodes)), np.uint64(0))
    return list(statement.decode(total + statement.coins_part(coins), len(bits)))


@pytest.mark.parametrize("largest", [*range(1, 40), 255, 256, 257])
def test_every_choice_of_bits_is_within_the_bound_and_every_number_has_one(largest: int) -> None:
    weights = weights_of(largest)
    reached = {int(np.dot(bits, weights)) for bits in itertools.product((0, 1), repeat=len(weights))}
    assert reached == set(range(largest + 1))


@pytest.mark.parametrize("nodes", [2, 10])
def test_a_sum_is_that_of_the_numbers_and_the_flipped_noise(nodes: int) -> None:
    rng, count = np.random.default_rng(1), 40
    bounds = np.array(BOUNDS)
    x = rng.integers(-bounds, bounds + 1, (count, len(bounds)))
    x[0], x[1] = bounds, -bounds
    noise, coins = rng.integers(0, 2, (2, count, UGLY.noise_size))
    bits = np.stack([UGLY.encode(a, z) for a, z in zip(x, noise, strict=True)])
    assert set(np.unique(bits)) == {0, 1}
    flipped = (noise ^ coins).reshape(count, len(bounds), 2, 3) @ [1, 2, 4]
    expected = x.sum(axis=0) + (flipped - 3.5).sum(axis=(0, 2))
    assert noisy_sum(UGLY, bits, coins.astype(bool), nodes) == expected.tolist()


def test_no_bits_reach_beyond_a_bound() -> None:
    quiet = Statement.within(5, 9, noises=0)
    width = quiet.block.bits
    coins = np.zeros((1, 0), dtype=bool)
    sums = np.array([noisy_sum(quiet, np.array([bits]), coins) for bits in itertools.product((0, 1), repeat=width)])
    assert (np.abs(sums) <= [5, 9]).all()
    assert set(sums[:, 0]) == set(range(-5, 6))


def test_coins_make_the_noise_uniform_whatever_a_client_chose() -> None:
    statement = Statement.within(1, noises=1, noise_bits=3)
    all_coins = np.array(list(itertools.product((False, True), repeat=3)))
    for chosen in itertools.product((0, 1), repeat=3):
        bits = statement.encode(np.array([0]), np.array(chosen))
        found = sorted(noisy_sum(statement, bits[np.newaxis], coins[np.newaxis])[0] for coins in all_coins)
        assert found == [-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5]
    assert statement.noise_variance(1) == pytest.approx(np.var(np.arange(8)))


@pytest.mark.parametrize(
    ("statement", "clients", "expected"),
    [
        (Statement.within(), 1, "R of 1 or more"),
        (Statement.within(0), 1, "R of 1 or more"),
        (Statement.within(1, noise_bits=17), 1, "1 to 16 bits"),
        (Statement.within(2**20), 1024, "has to stay below 2147483647"),
        (Statement.within(1, noises=4, noise_bits=16), 10_000, "has to stay below 2147483647"),
        (Statement.within(*(2**10,) * 100_000), 2, "the most is 1015839"),
    ],
)
def test_a_statement_beyond_the_field_is_refused(statement: Statement, clients: int, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        statement.check(clients)


def limited(weight: int, low: int, size: int) -> Statement:
    return Statement((0,), (2**10,), 0, 1, (Limit((weight,), low, size),))


@pytest.mark.parametrize(
    ("statement", "reach"),
    [
        (limited(2**21, 0, 5), 2**31),  # x = 1,024 and the number 1 have the same Σ w x - number, modulo P
        (limited(-(2**21), 0, 5), 2**31 + 5),
        (limited(1, 0, PRIME), PRIME),
        (limited(1, -PRIME, 5), PRIME + 2**10),
    ],
)
def test_a_limit_that_could_wrap_around_is_refused(statement: Statement, reach: int) -> None:
    with pytest.raises(UsageError, match=f"a limit of a verified sum reaches {reach}, and has to stay below {PRIME}"):
        statement.check(1)
    for within in (limited(2**21 - 1, 0, 5), limited(-(2**21) + 1, 0, 5), limited(1, 0, PRIME - 1)):
        within.check(1)


def test_a_limit_of_terms_that_floats_round_is_refused() -> None:
    """3x reaches P beyond the limit's least number, and P - 1 where 3x is rounded to an even number."""
    least = 2**52 - 3
    limit = Limit((3,), 3 * least - 3, PRIME + 3)
    assert limit.size - (3 * least - limit.low) == PRIME
    with pytest.raises(UsageError, match="a limit of a verified sum reaches"):
        Statement((least,), (1,), 0, 1, (limit,)).check(1)


def test_a_statement_at_the_fields_limit_is_right() -> None:
    statement = Statement.within(2**20, noises=0)
    count = (PRIME - 1) // 2**21
    statement.check(count)
    bits = np.repeat(statement.encode(np.array([2**20]), np.zeros(0, dtype=np.int64))[np.newaxis], count, axis=0)
    assert noisy_sum(statement, bits, np.zeros((count, 0), dtype=bool)) == [count * 2.0**20]
