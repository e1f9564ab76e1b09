"""What coalitions see of verified sums, by enumeration in the smallest field: P2, P4, P5 and P6 of PRIVACY.md.

A model of its own, with no code of the protocol: P = 3, one client with a data bit and a noise bit, one pair of blinds,
one query. The words are the bits, the blinds and the quotient. All laws are exact counts over all blinds, noise bits
and pads of honest nodes, so there is no chance of a false alarm.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

P = 3
WORDS = 9  # two bits, two blinds, five coefficients of the quotient
Matrix = NDArray[np.int64]
Point = tuple[int, int]
POINTS: list[Point] = [(a, b) for a in range(P) for b in (1, 2)]  # a + bi, outside F_3


def times(a: Point, b: Point) -> Point:
    return (a[0] * b[0] - a[1] * b[1]) % P, (a[0] * b[1] + a[1] * b[0]) % P


def plus(a: Point, b: Point) -> Point:
    return (a[0] + b[0]) % P, (a[1] + b[1]) % P


def conjugate(r: Point) -> Point:
    return r[0], -r[1] % P


def product(f: list[int], g: list[int]) -> list[int]:
    found = [0] * (len(f) + len(g) - 1)
    for (i, a), (j, b) in itertools.product(enumerate(f), enumerate(g)):
        found[i + j] = (found[i + j] + a * b) % P
    return found


def words_of(data: int, noise: int, blinds: tuple[int, ...]) -> list[int]:
    """f has the bits at 1 and 2, and f² - f is divided by X² - 1 step by step, without a remainder."""
    u = [(-(data * -2) + noise * -1) % P, (-data + noise) % P]  # data·(X - 2)/(1 - 2) + noise·(X - 1)/(2 - 1)
    assert (u[0] + u[1]) % P == data
    assert (u[0] + 2 * u[1]) % P == noise
    f = [(a + b) % P for a, b in zip([*u, 0, 0], product(list(blinds), [-1, 0, 1]), strict=True)]
    rest = [(a - b) % P for a, b in itertools.zip_longest(product(f, f), f, fillvalue=0)]
    quotient = [0] * (len(rest) - 2)
    for k in reversed(range(len(quotient))):
        quotient[k] = rest[k + 2]
        rest[k + 2], rest[k] = 0, (rest[k] + quotient[k]) % P
    assert not any(rest)
    return [data, noise, *blinds, *quotient]


def opening_at(r: Point) -> Matrix:
    """The weights of all words in A and C, each of two components, ``(WORDS, 4)``."""
    vanishing = plus(times(r, r), (P - 1, 0))
    powers: list[Point] = [(1, 0)]
    for _ in range(4):
        powers.append(times(powers[-1], r))
    of_data, of_noise = times(plus(r, (P - 2, 0)), (P - 1, 0)), plus(r, (P - 1, 0))
    in_a = [of_data, of_noise, *(times(vanishing, power) for power in powers[:2]), *[(0, 0)] * 5]
    in_c = [(0, 0)] * 4 + [times(vanishing, power) for power in powers]
    return np.array([[*a, *c] for a, c in zip(in_a, in_c, strict=True)])


ALL = [
    (data, noise, np.array(words_of(data, noise, blinds)))
    for data, noise in itertools.product((0, 1), repeat=2)
    for blinds in itertools.product(range(P), repeat=2)
]
EACH = [words for _, _, words in ALL]
PADS = np.array(list(itertools.product(range(P), repeat=WORDS)))
OPENING = {r: opening_at(r) for r in POINTS}


def flipped(coin: int) -> Matrix:
    """The weights of the words in the noisy number, without what the coin adds by itself: x + (1 - 2c)·noise."""
    return np.array([1, 1 - 2 * coin, *[0] * (WORDS - 2)])


def law(rows: Matrix) -> Matrix:
    """How often each row occurs, modulo P: at the place whose digits it has."""
    return np.bincount((rows % P) @ P ** np.arange(rows.shape[1]), minlength=P ** rows.shape[1])


def by_bits(laws: Iterable[Matrix]) -> dict[tuple[int, int], Matrix]:
    """Add up the laws of `ALL` over the blinds."""
    found: dict[tuple[int, int], Matrix] = {}
    for (data, noise, _), one in zip(ALL, laws, strict=True):
        found[data, noise] = found.get((data, noise), np.zeros_like(one)) + one
    return found


def alike(laws: Iterable[Matrix]) -> bool:
    first, *others = laws
    return all(np.array_equal(first, other) for other in others)


def test_the_model_is_sound() -> None:
    for data, noise, words in ALL:
        for r, weights in OPENING.items():
            a, c = np.split(words @ weights % P, 2)
            square = times(tuple(a), tuple(a))  # type: ignore[arg-type]
            assert plus(square, tuple(-a % P)) == tuple(c), (data, noise, r)  # type: ignore[arg-type]


# --- P2: the last coin ------------------------------------------------------------------------------------------------


def views(data: int, choose: Callable[[Matrix, Matrix], tuple[Point, int]]) -> Iterator[tuple[bytes, int]]:
    """All that the coalition sees if it chooses point and coin: what is not masked, its choice, A and C; and the sum.

    `choose` gets what it sees before, and the words, which it must not use.
    """
    seen = PADS[:: len(PADS) // 81]  # v = words - pad is uniform: some of its values
    for v, (_, noise, words) in itertools.product(seen, [one for one in ALL if one[0] == data]):
        r, coin = choose(v, words)
        opened = words @ OPENING[r] % P
        yield bytes([*v, *r, coin, *opened]), data + (noise ^ coin)


def late_choice(v: Matrix, _: Matrix) -> tuple[Point, int]:
    """As an adversary that grinds: it depends on all that was sent."""
    return POINTS[int(v @ np.arange(1, WORDS + 1)) % len(POINTS)], int(v.sum() % 2)


def test_the_last_coin_gains_nothing() -> None:
    """Given the sum, the view has one law for both data; and the noise in the sum is uniform, whatever was chosen."""
    seen = [Counter(views(data, late_choice)) for data in (0, 1)]
    assert {view: count for view, count in seen[0].items() if view[1] == 1} == {
        view: count for view, count in seen[1].items() if view[1] == 1
    }
    for data, found in enumerate(seen):
        for (view, total), count in found.items():
            assert total - data in (0, 1)
            assert found[view, 2 * data + 1 - total] == count, "the other noise is as likely"


def test_a_coin_that_knew_the_words_would_gain() -> None:
    """The enumeration can fail: with a coin equal to the noise bit, the sum is the data."""
    seen = [Counter(total for _, total in views(data, lambda v, words: (POINTS[0], int(words[1])))) for data in (0, 1)]
    assert set(seen[0]) == {0}
    assert set(seen[1]) == {1}


def test_coins_make_noise_of_fixed_bits() -> None:
    """For the sum's noise, a liar's bits do not matter if the coin comes after them."""
    for noise in (0, 1):
        assert sorted(noise ^ coin for coin in (0, 1)) == [0, 1]


# --- P4: copies -------------------------------------------------------------------------------------------------------


def test_a_copied_contribution_is_no_proof_and_tells_nothing() -> None:
    """A liar sends an honest client's vector as its own. Its words are then what it knows plus what masks the words.

    So they are uniform, whatever the honest client has: they pass as random words do, with one law for both data.
    """
    known = np.arange(WORDS)  # pads of the liar's own
    laws = by_bits(law((words - PADS + known) @ OPENING[POINTS[0]]) for _, _, words in ALL)
    assert alike(laws.values())
    assert set(laws[0, 0].tolist()) == {len(PADS) * P**2 // P**4}


# --- P5: equivocated coins --------------------------------------------------------------------------------------------


def two_nodes(words: Iterable[Matrix], v: Matrix, first: Matrix, second: Matrix) -> Iterator[Matrix]:
    """For each words, the law of what two honest nodes show of their pads, which mask the words with v.

    The first node's pads are all that there are, so the second has words - v - these.
    """
    of_first, of_second = PADS @ first % P, PADS @ second % P
    for each in words:
        yield law(np.concatenate([of_first, (each - v) @ second - of_second], axis=1))


V = [np.zeros(WORDS, dtype=np.int64), np.arange(WORDS) % P]


@pytest.mark.parametrize("v", V)
def test_nodes_that_open_at_two_points_reveal_nothing(v: Matrix) -> None:
    """One law for all words, data and noise: the two openings have no common part. At one point, or one and its
    conjugate, they add up to the opening, which is on the curve C = A² - A."""
    for r in POINTS:
        laws = list(two_nodes(EACH, v, OPENING[POINTS[0]], OPENING[r]))
        if r in (POINTS[0], conjugate(POINTS[0])):
            assert not alike(laws), "blinds alone hide the bits here"
            assert alike(by_bits(laws).values())
        else:
            assert alike(laws), r
            assert laws[0].all()


def test_one_node_that_opens_at_two_points_reveals_bits() -> None:
    """What the durable answer prevents; with one pair of blinds, one opening is all that is hidden."""
    both = np.concatenate([OPENING[POINTS[0]], OPENING[POINTS[2]]], axis=1)
    assert not alike(by_bits(law((words @ both)[np.newaxis]) for _, _, words in ALL).values())


# --- P6: aborts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coin", [0, 1])
@pytest.mark.parametrize("v", V)
def test_a_node_that_aborts_after_its_opening_leaves_nothing(v: Matrix, coin: int) -> None:
    """Both open, and only the second releases its part of the sum: one law for all data and noise."""
    opening = OPENING[POINTS[3]]
    released = np.concatenate([opening, flipped(coin)[:, np.newaxis]], axis=1)
    assert alike(by_bits(two_nodes(EACH, v, opening, released)).values())


def test_if_both_release_the_sum_is_seen_and_nothing_else() -> None:
    """The same with both parts: words with the same noisy number have one law, others do not."""
    opening, coin = OPENING[POINTS[3]], 1
    released = np.concatenate([opening, flipped(coin)[:, np.newaxis]], axis=1)
    laws = by_bits(two_nodes(EACH, V[0], released, released))
    assert alike([laws[0, 0], laws[1, 1]]), "0 + (0 xor 1) = 1 + (1 xor 1)"
    assert not alike([laws[0, 0], laws[1, 0]])
