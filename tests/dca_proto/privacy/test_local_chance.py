"""Exact probabilities, the stream's bits, and the Laplace sampler built from them: no statistics, only exact facts."""

from __future__ import annotations

import decimal
import dis
import itertools
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from types import FunctionType

import mpmath
import numpy as np
import pytest
from scripted import KEY, scripted

from dca_proto.errors import UsageError
from dca_proto.privacy.local import additive, categorical, stream
from dca_proto.privacy.local import chance as chances
from dca_proto.privacy.local.chance import HEAD_BITS, Chance
from dca_proto.privacy.local.stream import Stream

SOME = [Chance(Fraction(1), 1), Chance(Fraction(1, 3 * 10**9), 1), Chance(Fraction(12), 0), Chance(Fraction(0.1), 99)]


def exact(one: Chance) -> mpmath.mpf:
    return 1 / (mpmath.exp(mpmath.mpf(one.exponent.numerator) / one.exponent.denominator) + one.rest)


@pytest.mark.parametrize("one", [*SOME, Chance(Fraction(100), 0), Chance(Fraction(2) ** -60, 2**20)])
@pytest.mark.parametrize("count", [0, 1, 32, 64, 96, 1000])
def test_first_bits_are_those_of_the_number(one: Chance, count: int) -> None:
    with mpmath.workdps(400):
        assert one.first_bits(count) == int(mpmath.floor(exact(one) * mpmath.mpf(2) ** count))


def test_digits_are_added_until_the_bits_are_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an error bound 10^60 times too large the first rounds cannot tell, and the answer is the same."""
    expected = [one.first_bits(64) for one in SOME]
    monkeypatch.setattr(chances, "_ERROR", decimal.Decimal(10) ** 61)
    assert [one.first_bits(64) for one in SOME] == expected


def test_the_callers_decimal_context_does_not_matter() -> None:
    expected = [one.first_bits(64) for one in SOME]
    with decimal.localcontext() as context:
        context.prec, context.rounding = 3, decimal.ROUND_UP
        assert [one.first_bits(64) for one in SOME] == expected


@pytest.mark.parametrize("one", SOME)
def test_the_first_bit_that_differs_decides_however_late_it_comes(one: Chance) -> None:
    for words in (1, 2, 10):
        bits = one.first_bits(64 * words)
        assert one.decides(words_of(bits - 1, words))
        assert not one.decides(words_of(bits + 1, words))
        head, rest = bits >> 64 * words - HEAD_BITS, (bits << 32) % 2 ** (64 * words)
        assert one.decides(words_of(rest - 2**32, words), head, HEAD_BITS)
        assert not one.decides(words_of(rest + 2**32, words), head, HEAD_BITS)


def words_of(number: int, words: int) -> Iterator[int]:
    """The words of a number, and nothing after them: who asks for more has not decided."""
    return iter([number >> 64 * place & 2**64 - 1 for place in reversed(range(words))])


def test_a_run_counts_until_it_fails() -> None:
    one = Chance(Fraction(1), 0)
    limit = one.first_bits(64)
    assert one.run(iter([limit - 1, 0, limit - 1, limit + 1, 0])) == 3
    assert one.run(iter([2**64 - 1])) == 0


# The stream.


def test_the_first_rows_do_not_depend_on_how_many_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_CHUNK_BYTES", 100)
    longest = rows_of(50, 3)
    for count in (0, 1, 8, 9, 49):
        assert np.array_equal(rows_of(count, 3), longest[:count])
    assert len(np.unique(longest)) == longest.size


def rows_of(count: int, words: int) -> np.ndarray:
    parts = list(Stream(KEY).rows(count, words, np.uint32))
    covered = [row for part, found in parts for row in range(part.start, part.stop) if len(found)]
    assert covered == list(range(count))
    return np.concatenate([np.empty((0, words), np.uint32), *(found for _, found in parts)])


def test_a_row_wider_than_a_chunk_is_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_CHUNK_BYTES", 100)
    assert rows_of(3, 1000).shape == (3, 1000)


def test_every_word_has_further_bits_of_its_own() -> None:
    one = Stream(KEY)
    places = itertools.product(range(20), range(20))
    found = {word for row, place in places for word in itertools.islice(one.further(row, place), 20)}
    assert len(found) == 20 * 20 * 20
    assert list(itertools.islice(one.further(3, 4), 20)) == list(itertools.islice(Stream(KEY).further(3, 4), 20))


@pytest.mark.parametrize("key", [b"", b"k" * 31, b"k" * 33, "k" * 32, bytearray(32)])
def test_a_wrong_key_is_refused_and_not_shown(key: bytes) -> None:
    with pytest.raises(UsageError, match="expected 32 secret bytes") as caught:
        Stream(key)
    assert "kk" not in str(caught.value)
    assert KEY.hex() not in repr(Stream(KEY))
    assert "x01" not in repr(Stream(KEY))


# The Laplace sampler.


@pytest.mark.parametrize("rate", [Fraction(1), Fraction(3), Fraction(20), Fraction(2, 3), Fraction(1, 4)])
def test_the_parts_make_up_the_law(rate: Fraction) -> None:
    """All outcomes of all events, with their exact probabilities: together P(x) = (1-a)/(1+a) a^|x|, to 40 digits."""
    parts, _ = additive._events(rate)
    law: defaultdict[int, mpmath.mpf] = defaultdict(mpmath.mpf)
    with mpmath.workdps(50):
        p = [exact(one) for one in parts]
        for outcome in itertools.product([False, True], repeat=len(parts) - 1):
            weight = mpmath.fprod(p[i] if hit else 1 - p[i] for i, hit in enumerate(outcome))
            for above in range(3):
                x = additive._assemble(np.array([[*outcome, above > 0]]), np.array([above], dtype=np.uint64))
                law[int(x[0])] += weight * (1 - p[-1]) * p[-1] ** above
        a = mpmath.exp(-mpmath.mpf(rate.numerator) / rate.denominator)
        top = 3 * 2 ** (len(parts) - 2)
        assert sorted(law) == list(range(-top, top))
        for x, probability in law.items():
            assert mpmath.almosteq(probability, (1 - a) / (1 + a) * a ** abs(x), mpmath.mpf(10) ** -40)


def test_what_is_above_the_low_bits_is_rare() -> None:
    for rate in (Fraction(1), Fraction(1, 2**40), Fraction(100)):
        assert additive._events(rate).heads[-1] <= 2 ** (HEAD_BITS - 17)


@pytest.mark.parametrize("rate", [Fraction(1), Fraction(1, 3)])
def test_a_tie_is_settled_by_further_bits(rate: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each event in turn the word equals the head of the probability; the next bit that differs decides."""
    parts, heads = additive._events(rate)
    low_bits = len(parts) - 2
    values = [*(1 << bit for bit in range(low_bits)), -1, 1 << low_bits]
    for event, (one, value) in enumerate(zip(parts, values, strict=True)):
        words = np.full((1, len(parts)), 2**32 - 1, dtype=np.uint32)
        words[0, event] = heads[event]
        rest = one.first_bits(HEAD_BITS + 128) % 2**128
        for change, happens in ((-1, True), (1, False)):
            later = (*words_of(rest + change, 2), 2**64 - 1)
            scripted(monkeypatch, additive, words, later)
            assert additive.sample(rate, 1, KEY).tolist() == [value if happens else 0]


def test_what_is_above_the_low_bits_goes_on_until_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, _ = additive._events(Fraction(1))
    low_bits = len(parts) - 2
    words = np.full((2, len(parts)), 2**32 - 1, dtype=np.uint32)
    words[0, -1] = words[0, -2] = words[0, 0] = 0
    scripted(monkeypatch, additive, words, (0, 0, 2**64 - 1))
    assert additive.sample(Fraction(1), 2, KEY).tolist() == [-1 - (3 << low_bits | 1), 0]


def test_every_tie_asks_for_the_bits_of_its_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are counted through all chunks."""
    _, heads = additive._events(Fraction(1))
    asked = []

    class Told(Stream):
        def rows(self, rows: int, words: int, dtype: object) -> Iterator[tuple[slice, np.ndarray]]:
            yield slice(0, 2), np.array([heads, heads])
            yield slice(2, 3), np.array([heads])

        def further(self, row: int, word: int) -> Iterator[int]:
            asked.append((row, word))
            return super().further(row, word)

    monkeypatch.setattr(additive, "Stream", Told)
    additive.sample(Fraction(1), 3, KEY)
    assert asked == list(itertools.product(range(3), range(len(heads))))


def test_noise_beyond_the_ring_wraps() -> None:
    happened = np.zeros((1, 58), dtype=np.bool_)
    assert additive._assemble(happened, np.array([2**8 + 1], dtype=np.uint64)).tolist() == [2**56]


def test_no_float_takes_part_in_a_decision() -> None:
    """No float constant, no array of floats; "/" divides decimals alone, and probabilities are integers."""
    deciding = [
        *(value for module in (chances, stream) for value in vars(module).values()),
        *vars(Chance).values(),
        *vars(Stream).values(),
        *(additive._events.__wrapped__, additive.sample, additive._assemble),
        *(additive.GridLaplace.randomise, additive.GridLaplace.rate.fget),
        *(categorical.RandomisedResponse._weights.fget, categorical.RandomisedResponse._with_drawn),
        categorical.RandomisedResponse.randomise,
        *(categorical._stray.__wrapped__, categorical.UnaryEncoding.randomise),
    ]
    codes = [one.__code__ for one in deciding if isinstance(one, FunctionType)]
    assert len(codes) >= 15
    assert not [code.co_name for code in codes for constant in code.co_consts if isinstance(constant, float)]
    divides = {
        code.co_name
        for code in codes
        for step in dis.get_instructions(code)
        if step.opname == "BINARY_OP" and step.argrepr in {"/", "/="}
    }
    assert divides == {"first_bits", "rate"}, "in decimals and in fractions"
    assert isinstance(additive.GridLaplace(0.1, sensitivity_of(3)).rate, Fraction)
    assert additive._events(Fraction(1, 7)).heads.dtype == np.uint32


def sensitivity_of(l1: int) -> additive.Sensitivity:
    return additive.Sensitivity(l1=l1, l2_squared=l1 * l1, bound=l1)
