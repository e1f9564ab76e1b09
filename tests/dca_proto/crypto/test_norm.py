"""Proofs of norms: honest ones are accepted, rows outside the ball are not, and openings reveal nothing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from dca_proto.crypto.bit_proof import QUERIES, BlockSizes, point
from dca_proto.crypto.bounded import Norm, Statement
from dca_proto.crypto.field import DEFAULT, PRIME, Elements, Field
from dca_proto.crypto.norm import Wires, arranged, prove, query, squares_of
from dca_proto.errors import UsageError

SMALLEST = Field(3, 2)
POINTS = [np.array(one, dtype=np.uint64) for one in itertools.product(range(3), (1, 2))]
"""All of F_9 outside F_3."""


def drawn(*shape: int, seed: int = 1, prime: int = PRIME) -> Elements:
    return np.random.default_rng(seed).integers(0, prime, shape).astype(np.uint64)


def ball(radius: int, bounds: tuple[int, ...], *, noises: int = 1) -> Statement:
    within = Statement.within(*bounds, noises=noises, noise_bits=2)
    return msgspec.structs.replace(within, norm=Norm(len(bounds), radius**2))


def beside_count(statement: Statement, most: int, slope: int, rows: int) -> Statement:
    """The same beside a count on 0..rows."""
    assert statement.norm is not None
    norm = Norm(statement.norm.count, most, slope)
    return msgspec.structs.replace(statement, lows=(*statement.lows, 0), sizes=(*statement.sizes, rows), norm=norm)


def proven(statement: Statement, x: list[int], seed: int = 2) -> Elements:
    bits = statement.encode(np.array(x), np.random.default_rng(seed).integers(0, 2, statement.noise_size))
    return statement.prove(bits, drawn(statement.blinds, seed=seed, prime=statement.field.prime))


def is_accepted(
    statement: Statement, words: Elements, nodes: int = 3, seed: int = 5, r: Elements | None = None
) -> bool:
    """Share the words among nodes, draw a point, open, and decide."""
    field = statement.field
    at = point(np.random.default_rng(seed).bytes(64), field)
    pads, weights = drawn(nodes - 1, 1, len(words), seed=seed, prime=field.prime), statement.query(at)
    shares = [*pads, field.minus(words[np.newaxis], pads.sum(axis=0) % np.uint64(field.prime))]
    total = np.sum([statement.opening(share, weights) for share in shares], axis=0)
    return bool(statement.accepted(total % np.uint64(field.prime), at)[0])


def in_ball(rng: np.random.Generator, count: int, radius: float) -> list[int]:
    x = rng.normal(size=count)
    return [int(one) for one in np.trunc(x / np.linalg.norm(x) * radius * rng.choice([0.3, 1.0]))]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 50, 300])
@pytest.mark.parametrize("nodes", [2, 3, 10])
def test_rows_in_the_ball_are_accepted(count: int, nodes: int) -> None:
    rng, statement = np.random.default_rng(count), ball(1000, (1000,) * count)
    statement.check(10)
    for seed in range(4):
        x = in_ball(rng, count, 1000)
        assert statement.holds(np.array(x))
        assert is_accepted(statement, proven(statement, x, seed), nodes, seed)
    corner = [1000, *[0] * (count - 1)]
    assert is_accepted(statement, proven(statement, corner), nodes)


@pytest.mark.parametrize("count", [2, 3, 10, 50])
def test_a_row_outside_the_ball_is_not_accepted_whatever_it_claims(count: int) -> None:
    """One unit² too long, the corner of the box, and a row of √2 times the radius; z has any of its bits."""
    statement, rng = ball(1000, (1000,) * count), np.random.default_rng(count)
    for x in ([1000, 1, *[0] * (count - 2)], [1000] * count, [-1000, 1000, *[0] * (count - 2)]):
        assert not statement.holds(np.array(x))
        honest = statement.encode(np.array(x), np.zeros(statement.noise_size, dtype=np.int64))
        end = len(honest) - statement.noise_size
        at = slice(end - statement.numbers[-1].bit_length(), end)
        for claimed in (honest[at], np.ones_like(honest[at]), *rng.integers(0, 2, (3, at.stop - at.start))):
            bits = honest.copy()
            bits[at] = claimed
            assert set(bits) <= {0, 1}
            assert not is_accepted(statement, statement.prove(bits, drawn(statement.blinds)))


def test_every_claim_of_a_small_row_but_the_true_one_is_refused() -> None:
    """All rows within ±3 and all bits of z: 7 is the largest square norm, and z has three bits."""
    statement = Statement((-3, -3), (6, 6), 0, 1, (), Norm(2, 7))
    places = slice(6, 9)
    for x in itertools.product(range(-3, 4), repeat=2):
        bits = statement.encode(np.array(x), np.zeros(0, dtype=np.int64))
        accepted = []
        for claimed in itertools.product((0, 1), repeat=3):
            bits[places] = claimed
            if is_accepted(statement, statement.prove(bits, drawn(statement.blinds))):
                accepted.append(claimed[0] + 2 * claimed[1] + 4 * claimed[2])
        left = 7 - x[0] ** 2 - x[1] ** 2
        assert accepted == ([left] if left >= 0 else [])


@pytest.mark.parametrize("count", [1, 5])
def test_no_changed_word_is_accepted(count: int) -> None:
    """Of bits, blinds, quotient, wires' blinds and G."""
    statement = ball(100, (90,) * count)
    words = proven(statement, [90, *[0] * (count - 1)])
    assert len(words) == statement.words
    for at in range(len(words)):
        changed = words.copy()
        changed[at] = (changed[at] + 1) % PRIME
        assert not is_accepted(statement, changed), at


def test_the_norm_of_other_numbers_is_no_proof() -> None:
    """The wires must have the numbers in the sum: those of another client, or of a shorter row, have not."""
    statement = ball(1000, (1000,) * 10)
    long, short = proven(statement, [900] * 10), proven(statement, [1] * 10)
    mixed = np.concatenate([long[: statement.block.words], short[statement.block.words :]])
    assert not is_accepted(statement, mixed)
    another = proven(statement, [0, *[1] * 9], seed=3)
    for first, second in ((short, another), (another, short)):
        copied = np.concatenate([first[: statement.block.words], second[statement.block.words :]])
        assert not is_accepted(statement, copied)


def test_a_norm_that_is_right_modulo_p_alone_needs_the_limit() -> None:
    """Squares that add up to P + 4 satisfy the equation of a ball of radius 2. So such bounds are refused."""
    large = [46340, 296]
    rest = PRIME + 4 - sum(one**2 for one in large)
    x = next([*large, *more] for more in itertools.product(range(22), repeat=3) if sum(k**2 for k in more) == rest)
    assert sum(one**2 for one in x) == PRIME + 4
    wide = ball(2, (50_000,) * 5)
    bits = wide.encode(np.array(x), np.zeros(wide.noise_size, dtype=np.int64))
    end = len(bits) - wide.noise_size
    bits[end - 3 : end] = 0  # the norm is 4: z = 0
    assert is_accepted(wide, wide.prove(bits, drawn(wide.blinds)))
    with pytest.raises(UsageError, match=f"a norm of a verified sum reaches {5 * 50_000**2}, and has to stay below"):
        wide.check(1)


@pytest.mark.parametrize(
    ("lows", "sizes", "norm", "reach"),
    [
        ((-46340,), (46341,), Norm(1, 1), 46340**2),
        ((0, 0), (46340, 46340), Norm(2, 1), 2 * 46340**2),
        ((5, -3), (10, 1), Norm(2, 7), 15**2 + 3**2),
        ((0, 0), (10, 7), Norm(1, 3, 20), 10**2 + 20 * 7),
        ((0,), (3,), Norm(1, PRIME), PRIME),
        ((0, 0), (3, 2), Norm(1, 5, PRIME // 2), PRIME + 8),
    ],
)
def test_how_far_a_norm_reaches(lows: tuple[int, ...], sizes: tuple[int, ...], norm: Norm, reach: int) -> None:
    statement = Statement(lows, sizes, 0, 1, (), norm)
    assert statement.norm_reach == reach
    if reach < PRIME:
        statement.check(1)
    else:
        with pytest.raises(UsageError, match="a norm of a verified sum reaches"):
            statement.check(1)


def test_beside_a_count_a_row_needs_complete_rows() -> None:
    """Σ x² <= 9 + 50·c for c complete rows of 2: without one, a length of 3; with both, of 10."""
    statement = beside_count(ball(1, (12, 12)), 9, 50, 2)
    statement.check(10)
    for x, is_right in (
        ([3, 0, 0], True), ([3, 1, 0], False), ([7, 3, 1], True), ([7, 4, 1], False), ([10, 3, 2], True),
        ([10, 4, 2], False), ([12, 12, 2], False),
    ):  # fmt: skip
        assert statement.holds(np.array(x)) == is_right
        assert is_accepted(statement, proven(statement, x)) == is_right


def test_large_batches_are_opened_as_one_client_is() -> None:
    """500 rows of 40 numbers at once, of which every tenth is too long."""
    statement, rng = ball(1000, (1000,) * 40), np.random.default_rng(3)
    rows = [in_ball(rng, 40, 1000) if at % 10 else [999] * 40 for at in range(500)]
    words = np.stack([proven(statement, x, seed) for seed, x in enumerate(rows)])
    r = point(rng.bytes(64))
    pads, weights = drawn(*words.shape), statement.query(r)
    total = statement.opening(pads, weights) + statement.opening(DEFAULT.minus(words, pads), weights)
    assert statement.accepted(total % np.uint64(PRIME), r).tolist() == [at % 10 > 0 for at in range(500)]
    assert statement.opening(words[:1].astype(np.uint32), weights).tolist() == (total[:1] % PRIME).tolist()


def test_the_sizes_are_those_of_the_specification() -> None:
    """h divides 2 · 3² · 7 · 11 · 31 · 151 · 331, and 2h + 16⌈p/h⌉ is the least: found by trying all."""
    for count, order, wires in ((1, 1, 1), (2, 2, 1), (10, 11, 1), (12, 6, 2), (100, 21, 5), (1_000, 77, 13)):
        sizes = Wires(count)
        assert (sizes.order, sizes.wires) == (order, wires)
        costs = {2 * h + 16 * -(-count // h) for h in range(1, 2_000) if (PRIME - 1) % h == 0}
        assert 2 * order + 16 * wires == min(costs)
        assert sizes.blinds == 4 * wires
        assert sizes.coefficients == 2 * order + 6
        assert (sizes.words, sizes.opened) == (4 * wires + 2 * order + 6, 2 + 2 * wires)
    statement = ball(100, (100,) * 100)
    assert (statement.blinds, statement.opened) == (24, 4 + 12)
    assert statement.words == statement.block.words + Wires(100).words
    assert statement.numbers == (*(200,) * 100, 100**2)


def test_the_error_is_below_that_of_bits_and_below_2_to_minus_40() -> None:
    points = PRIME**2 - PRIME
    for count in [*range(1, 3_000), 10_000, 100_000, 300_000, 1_015_838]:
        degree, order = 2 * Wires(count).order + 4 * QUERIES - 2, BlockSizes(count + 1).order
        assert degree <= 2 * order + 4 * QUERIES - 2 < points * 2.0**-40


def test_a_wrong_norm_passes_at_no_more_points_than_its_degree() -> None:
    """Over F_11² \\ F_11, for all points: the bound of P3 is a count of roots."""
    field = Field(11, 2)
    wires = Wires(2, field)
    degree = 2 * wires.order + 4 * QUERIES - 2
    points = [np.array(one, dtype=np.uint64) for one in itertools.product(range(11), range(1, 11))]
    for seed in range(20):
        values = drawn(1, 2, seed=seed, prime=11)
        words = prove(wires, values[0], drawn(wires.blinds, seed=seed, prime=11))
        claimed = int((values.astype(np.int64) ** 2).sum()) + 1 + seed % 9
        passed = sum(
            np.array_equal(found, squares)
            for found, squares in (opened(wires, values, words[np.newaxis], claimed, r) for r in points)
        )
        assert passed <= degree < len(points)


def opened(wires: Wires, values: Elements, words: Elements, total: int, r: Elements) -> tuple[Elements, Elements]:
    """G(r) and Σ f_j(r)², by the weights of the nodes, where the squares are said to add up to `total`."""
    found, of_wires = views(wires, values, words, total, r)
    return found, squares_of(wires.field, of_wires)


def views(wires: Wires, values: Elements, words: Elements, total: int, r: Elements) -> tuple[Elements, Elements]:
    field, weights = wires.field, query(wires, r)
    each = arranged(wires, values, words[:, : wires.blinds])
    of_wires = field.matrix_product(each, np.concatenate([weights.values, weights.blinds])).reshape(len(words), -1)
    found = field.matrix_product(words[:, wires.blinds :], weights.coefficients)
    found[:, 0] = (found[:, 0] + np.uint64(total * pow(wires.order, -1, field.prime) % field.prime)) % field.prime
    return found, of_wires


# --- an opening reveals nothing ---------------------------------------------------------------------------------------


def all_blinds(count: int, free: int) -> NDArray[np.uint64]:
    """All values of the first `free` blinds; the others are 0."""
    every = np.array(list(itertools.product(range(3), repeat=free)), dtype=np.uint64)
    return np.concatenate([every, np.zeros((len(every), count - free), dtype=np.uint64)], axis=1)


def laws(wires: Wires, blinds: NDArray[np.uint64], rows: list[tuple[int, ...]]) -> Iterator[list[Counter[bytes]]]:
    """For each two points, in one order, the law of both openings for each row of numbers."""
    by_row = []
    for row in rows:
        values = np.repeat(np.array([row], dtype=np.uint64), len(blinds), axis=0)
        words = np.stack([prove(wires, values[0], own) for own in blinds])
        total = sum(one**2 for one in row)
        seen = [np.concatenate(views(wires, values, words, total, r), axis=1) for r in POINTS]
        for found, r in zip(seen, POINTS, strict=True):
            squares = squares_of(SMALLEST, found[:, 2:])
            assert np.array_equal(found[:, :2], squares), r
        by_row.append(seen)
    for first, second in itertools.combinations_with_replacement(range(len(POINTS)), 2):
        yield [Counter(map(bytes, np.concatenate([seen[first], seen[second]], axis=1))) for seen in by_row]


@pytest.mark.parametrize("count", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_two_openings_have_the_same_law_for_all_numbers(count: int) -> None:
    """The smallest field, exhaustively: all blinds, all pairs of points. Three numbers have two wires."""
    wires = Wires(count, SMALLEST)
    assert wires.wires == (count + 1) // 2
    rows = [*itertools.product(range(3), repeat=count)][:: max(1, count * count // 2)]
    for found in laws(wires, all_blinds(wires.blinds, wires.blinds), rows):
        assert all(law == found[0] for law in found)
        assert sum(found[0].values()) == 3**wires.blinds


def test_one_pair_of_blinds_a_wire_would_not_hide_a_second_query() -> None:
    """The enumeration can fail: with the last two blinds fixed, the numbers show."""
    wires = Wires(2, SMALLEST)
    found = list(laws(wires, all_blinds(wires.blinds, 2), [(0, 0), (0, 1), (1, 2)]))
    assert any(law != of_pair[0] for of_pair in found for law in of_pair)


@pytest.mark.long
def test_openings_of_a_whole_statement_have_the_same_law_for_all_rows() -> None:
    """Bits, quotient, wire and G together, over all blinds and pairs of points: x = -1 and x = 0, z = 1 - x²."""
    statement = Statement((-1,), (1,), 0, 1, (), Norm(1, 1), SMALLEST)
    statement.check(1)
    queries, blinds = [statement.query(r) for r in POINTS], all_blinds(statement.blinds, statement.blinds)
    by_row = []
    for x in (-1, 0):
        bits = statement.encode(np.array([x]), np.zeros(0, dtype=np.int64))
        words = np.stack([statement.prove(bits, own) for own in blinds])
        by_row.append([statement.opening(words, weights) for weights in queries])
        assert all(statement.accepted(seen, r).all() for seen, r in zip(by_row[-1], POINTS, strict=True))
    for first, second in itertools.combinations_with_replacement(range(len(POINTS)), 2):
        both = [Counter(map(bytes, np.concatenate([seen[first], seen[second]], axis=1))) for seen in by_row]
        assert both[0] == both[1], (POINTS[first], POINTS[second])
        if first == second:
            assert len(both[0]) == 81, "A and f are uniform over the extension, and C and G follow from them"
