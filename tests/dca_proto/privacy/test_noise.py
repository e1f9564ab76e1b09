"""The discrete Gaussian sampler: its law, its steps against each other, its streams, its refusals.

Keys are fixed, so a test that passes keeps passing. The statistical ones state with what probability they would fail
for a correct sampler and a key chosen at random: altogether below 1e-2.
"""

from __future__ import annotations

import decimal
import dis
import math
from collections.abc import Iterator
from types import FunctionType

import mpmath
import numpy as np
import pytest
from scipy import stats

from dca_proto.errors import UsageError
from dca_proto.privacy import noise
from dca_proto.privacy.noise import DiscreteGaussian, discrete_gaussian


def key_of(number: int) -> bytes:
    return number.to_bytes(32, "little")


def law(variance: int, reach: int) -> np.ndarray:
    """P(-reach..reach) and, at the ends, what lies beyond."""
    x = np.arange(-12 * math.isqrt(variance), 12 * math.isqrt(variance) + 1, dtype=float)
    p = np.exp(-x * x / (2 * variance))
    p /= p.sum()
    return np.bincount(np.clip(x, -reach - 1, reach + 1).astype(int) + reach + 1, weights=p)


def chi_square_p(samples: np.ndarray, variance: int) -> float:
    """p-value over single values (cells of an eighth of σ for large S), both tails beyond 3.5 σ pooled."""
    reach = int(3.5 * math.sqrt(variance))
    seen = np.bincount(np.clip(samples, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)
    expected = law(variance, reach) * len(samples)
    cells = np.arange(0, len(seen), max(1, math.isqrt(variance) // 8))
    return float(stats.chisquare(np.add.reduceat(seen, cells), np.add.reduceat(expected, cells)).pvalue)


@pytest.mark.parametrize("variance", [64, 100, 10**4, 2**14, 2**16 - 1, 10**6 + 7])
def test_law(variance: int) -> None:
    """χ² over 10^6 samples. False alarm: 1e-4 each."""
    assert chi_square_p(discrete_gaussian(variance).sample(10**6, key_of(variance)), variance) > 1e-4


@pytest.mark.parametrize("variance", [64, 2**14 - 1, 2**14, 3**20, 2**48, 2**70, 2**80])
def test_mean_and_variance(variance: int) -> None:
    """10^6 samples; each moment within 4 standard errors. False alarm: 1.3e-4 for each variance."""
    count = 10**6
    z = discrete_gaussian(variance).sample(count, key_of(variance % 1000 + 1)) / math.sqrt(variance)
    assert abs(z.mean()) < 4 / math.sqrt(count)
    assert abs(np.square(z).mean() - 1) < 4 * math.sqrt(2 / count)


def test_law_at_large_variance() -> None:
    """Kolmogorov-Smirnov against the normal at S = 2^70, and uniform low bits. False alarm: 2e-4."""
    samples = discrete_gaussian(2**70).sample(200_000, key_of(70))
    assert stats.kstest(samples / 2.0**35, "norm").pvalue > 1e-4
    assert stats.chisquare(np.bincount(samples & 255)).pvalue > 1e-4


def test_far_tail_is_populated() -> None:
    """Beyond 4 σ: 63.3 of 10^6 expected; within 4.5 standard deviations. False alarm: 1e-5."""
    samples = discrete_gaussian(2**40).sample(10**6, key_of(4))
    assert abs((np.abs(samples) > 4 * 2**20).sum() - 63.3) < 4.5 * math.sqrt(63.3)


@pytest.mark.parametrize("variance", [64, 10**4, 2**16 - 1, 2**44])
def test_slow_steps_agree_with_the_fast_one(variance: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One stream gives the same samples by whole-block bounds, by integer brackets, and by decimal digits alone."""
    fast = DiscreteGaussian(variance).sample(3000, key_of(1))
    bracketed = DiscreteGaussian(variance, _fast=False)
    assert np.array_equal(bracketed.sample(3000, key_of(1)), fast)
    monkeypatch.setattr(noise, "_accepts", lambda *_: None)
    assert np.array_equal(bracketed.sample(3000, key_of(1)), fast)


@pytest.mark.parametrize(("variance", "table_bits"), [(64, 1), (100, 3), (2**14, 1), (10**5, 2)])
def test_short_table_draws_the_tail_exactly(variance: int, table_bits: int) -> None:
    """The table ends where exp(-y²/2S) < 2^-bits: 4 to 24 % of samples are from the tail. False alarm: 1e-4 each."""
    short = DiscreteGaussian(variance, _table_bits=table_bits)
    samples = short.sample(20_000, key_of(9))
    assert (np.abs(samples) >= short._table.lows[-1]).mean() > 0.01
    assert chi_square_p(samples, variance) > 1e-4


@pytest.mark.parametrize("variance", [64, 100, 2**14 - 1, 2**14, 2**16 - 1, 2**48 + 1, 2**80])
def test_table_bounds_the_law(variance: int) -> None:
    """Weights sum to 2^64 and bound the blocks, the tail's bounds the tail, and the sure acceptances are sure."""
    sampler = DiscreteGaussian(variance)
    m, numerator, lows, weights, tail_bits = sampler._table
    width, half = 1 << m, 1 << m >> 1
    assert weights[0] + 2 * sum(weights[1:-1]) + 2 * (weights[-1] << tail_bits) == 2**64
    sure = sampler._sure[len(lows) - 1 :].tolist()
    assert np.array_equal(sampler._sure[: len(lows)][::-1], sure)
    assert sampler._start[len(lows) - 1 :].tolist() == [j * width - half for j in range(len(lows))]
    with mpmath.workdps(60):

        def density(y: int) -> mpmath.mpf:
            return mpmath.exp(-mpmath.mpf(y * y) / (2 * variance))

        for j in range(len(lows) - 1):
            least, largest = max(0, j * width - half), j * width + half
            assert lows[j] == least
            assert numerator * density(least) <= weights[j] <= numerator * density(least) * (1 + mpmath.mpf(2) ** -20)
            assert sure[j] + width <= numerator * density(largest) / weights[j] * 2**64
        assert numerator * density(lows[-1]) <= weights[-1]
        assert sure[-1] == 0
        for i in range(0, 400, 7):
            shrink = (1 - mpmath.mpf(2) ** -tail_bits) ** i
            assert density(lows[-1] + i * width) <= density(lows[-1]) * shrink


def test_alias_table_shares_out_every_unit() -> None:
    masses = [3, 2**62, 0, 2**61 + 5, 2**64 - 2**62 - 2**61 - 8]
    below, alias = noise._alias_table(masses)
    room, total = 2**53, [0] * 2048
    for column, (start, other) in enumerate(zip(below.tolist(), alias.tolist(), strict=True)):
        own = start - column * room
        assert 0 <= own < room
        total[column] += own
        total[other] += room - own
    assert total == [*masses, *[0] * 2043]


@pytest.mark.parametrize("variance", [100, 2**14, 2**60])
def test_brackets_prove_what_they_claim(variance: int) -> None:
    """`_accepts` says yes or no only where the exact exponential does, at random and at adversarial near-ties."""
    source = np.random.default_rng(5)
    decided = 0
    for trial in range(300):
        excess = int(source.integers(0, max(2, variance // 20))) >> trial % 24
        with mpmath.workdps(60):
            height = mpmath.exp(-mpmath.mpf(excess) / (2 * variance)) * 2**64
            low, high = int(height * (1 - mpmath.mpf(2) ** -20)), int(mpmath.ceil(height))
        unknown = 1 << trial % 35
        near = (low - unknown, low - unknown + 1, low, high - 1, high)
        for uniform in (*source.integers(0, 2**63, 3).tolist(), *near):
            decided += (verdict := noise._accepts(excess, variance, uniform, unknown)) is not None
            assert verdict is not True or uniform + unknown <= low
            assert verdict is not False or uniform >= high
    assert decided > 300


def test_a_tie_to_the_last_known_bit_is_left_to_further_bits() -> None:
    """At S = 2^80 only 30 bits of U come with a candidate: where they equal those of p, what follows decides."""
    sampler = DiscreteGaussian(2**80)
    m, numerator, lows, weights, _ = sampler._table
    j, offset = 70, 2**33 + 12345
    x = (j << m) - (1 << m >> 1) + offset
    with mpmath.workdps(60):
        p = numerator * mpmath.exp(-mpmath.mpf(x * x) / (2 * 2**80)) / weights[j]
        known = int(p * 2 ** (64 - m))
        further = int(p * 2 ** (128 - m)) & (2**64 - 1)
    second = offset << (64 - m) | known
    assert x - lows[j] == offset
    assert sampler._settle(x, second, iter([further - 1])) == x
    assert sampler._settle(x, second, iter([further + 1])) is None


def test_every_candidate_has_further_bits_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over chunks, no position is used twice; positions count from the start of a key's stream."""
    asked: list[tuple[bytes, int]] = []
    original = noise._spare_words
    monkeypatch.setattr(noise, "_spare_words", lambda key, n: asked.append((key, n)) or original(key, n))
    sampler = DiscreteGaussian(64, _fast=False)  # at S = 64 nearly no candidate is lost
    sampler.sample(9000, key_of(1))
    positions = [n for _, n in asked]
    assert positions == list(range(len(positions)))
    assert len(positions) > 9000
    assert next(original(key_of(1), 0)) != next(original(key_of(1), 1)) != next(original(key_of(2), 1))


def test_decision_draws_bits_until_it_is_clear() -> None:
    """U is given as the bits of p itself: the first differing bit decides, however late it comes."""
    variance, square, weight, numerator = 10**6, 123456, 7 * 10**9, 6 * 10**9
    with mpmath.workdps(400):
        p = mpmath.mpf(numerator) / weight * mpmath.exp(-mpmath.mpf(square) / (2 * variance))
        bits = int(p * 2**1000)
    for length in (64, 128, 640):
        digits = bits >> (1000 - length)
        for change, expected in ((-1, True), (1, False)):
            words = _words(digits + change, length)
            assert noise._decide(square, variance, weight, numerator, next(words), 64, words) is expected
    assert noise._decide(square, variance, weight, numerator, 0, 1, iter(())) is True


def _words(number: int, length: int) -> Iterator[int]:
    """The words of a number of that many bits, then more of them without end."""
    yield from ((number >> shift) & (2**64 - 1) for shift in range(length - 64, -1, -64))
    while True:
        yield 2**63


@pytest.mark.parametrize("candidates", [1, 3])
def test_too_few_candidates_are_made_up_for(candidates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With buffers that never suffice at first, every sample is the same."""
    sampler = discrete_gaussian(2**14)
    alone = sampler.sample(10_000, key_of(0))
    monkeypatch.setattr(DiscreteGaussian, "_candidates", lambda _, wanted: min(wanted, candidates) or 1)
    assert np.array_equal(sampler.sample(10_000, key_of(0)), alone)


@pytest.mark.parametrize("number", [1309, 1658])
def test_few_samples_with_too_many_rejected_candidates_come_from_the_general_path(number: int) -> None:
    """Two candidates are spare. Of the first 34 of these keys, found by search, three are rejected."""
    sampler, key = discrete_gaussian(2**14), key_of(number)
    assert sampler._sample_few(key, 32) is None
    assert np.array_equal(sampler.sample(32, key), sampler._sample_chunk(key, 0, 32))
    assert np.array_equal(sampler.sample(32, key), sampler.sample(64, key)[:32])


def test_fewer_samples_are_a_prefix_of_more() -> None:
    sampler = discrete_gaussian(2**14)
    longest = sampler.sample(20_000, key_of(3))
    for count in (0, 1, 10, 4000, 4096, 4097, 12_000):
        assert np.array_equal(sampler.sample(count, key_of(3)), longest[:count])


def test_streams_of_keys_and_chunks_are_independent() -> None:
    """Correlations of 16,000 samples within 4.5 standard errors. False alarm: 2e-5."""
    samples = np.stack([discrete_gaussian(2**40).sample(16_000, key_of(n)) for n in (1, 2)]) / 2.0**20
    between_keys = (samples[0] * samples[1]).mean()
    between_chunks = (samples[0, :4000] * samples[0, 4096:8096]).mean()
    assert abs(between_keys) < 4.5 / math.sqrt(16_000)
    assert abs(between_chunks) < 4.5 / math.sqrt(4000)
    assert (
        len({noise._chunk_seed(key_of(k), c) for k in range(9) for c in range(9)} | {key_of(k) for k in range(9)}) == 90
    )


def test_known_answers() -> None:
    """Devices of any kind and version must draw the same from the same key."""
    key = bytes(range(32))
    assert discrete_gaussian(100).sample(8, key).tolist() == [-8, -17, -6, -9, -15, 3, -6, 2]
    assert discrete_gaussian(2**40).sample(4, key).tolist() == [1066608, -1286617, -892684, 66164]
    assert discrete_gaussian(2**16 - 1).sample(9000, key)[-4:].tolist() == [-290, -174, 111, -240]


@pytest.mark.parametrize(
    ("variance", "words"), [(63, "more fraction bits"), (0, "more"), (2**80 + 1, "fewer fraction")]
)
def test_variance_out_of_range_is_refused(variance: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        discrete_gaussian(variance)


@pytest.mark.parametrize("key", [b"", b"k" * 31, b"k" * 33, "k" * 32, bytearray(32), 32, None])
def test_bad_key_is_refused_and_not_shown(key: bytes) -> None:
    sampler = discrete_gaussian(100)
    with pytest.raises(UsageError, match="expected 32 secret bytes") as caught:
        sampler.sample(1, key)
    assert "kk" not in str(caught.value)


def test_negative_count_is_refused() -> None:
    with pytest.raises(UsageError, match="-1"):
        discrete_gaussian(100).sample(-1, key_of(1))


def test_repr_shows_the_variance_only() -> None:
    assert repr(discrete_gaussian(100)) == "DiscreteGaussian(variance=100)"


def test_the_sampler_of_a_variance_is_built_once() -> None:
    assert discrete_gaussian(12345) is discrete_gaussian(12345)


def test_no_float_takes_part() -> None:
    """No table or candidate array is of a float dtype; no code holds a float constant; "/" divides decimals alone."""
    for variance in (64, 2**14, 2**80):
        sampler = DiscreteGaussian(variance)
        arrays = [value for value in vars(sampler).values() if isinstance(value, np.ndarray | np.generic)]
        assert len(arrays) == 7
        arrays += sampler._propose(np.frombuffer(bytes(range(256)), dtype="<u8"))
        assert {array.dtype.kind for array in arrays} <= {"i", "u"}
        assert not [
            value for field in sampler._table for value in np.ravel([field]).tolist() if isinstance(value, float)
        ]
    functions = [f for f in (*vars(noise).values(), *vars(DiscreteGaussian).values()) if isinstance(f, FunctionType)]
    codes = {f.__name__: f.__code__ for f in functions if f.__module__ == noise.__name__}
    assert not [name for name, code in codes.items() for constant in code.co_consts if isinstance(constant, float)]
    divides = {
        name
        for name, code in codes.items()
        for step in dis.get_instructions(code)
        if step.opname == "BINARY_OP" and step.argrepr in {"/", "/="}
    }
    assert divides == {"_decide", "_tabulate"}


def test_callers_decimal_context_does_not_matter() -> None:
    expected = DiscreteGaussian(2**16 - 1, _fast=False).sample(2000, key_of(8))
    with decimal.localcontext() as context:
        context.prec, context.rounding = 3, decimal.ROUND_UP
        assert np.array_equal(DiscreteGaussian(2**16 - 1, _fast=False).sample(2000, key_of(8)), expected)
