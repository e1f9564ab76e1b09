"""The judge of the shape of noise: its laws are exact, it accuses no correct noise, and it finds each kind of fault."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, fsum

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dca_proto.privacy.noise import discrete_gaussian
from emulator import shape
from emulator.shape import ALARM, ALARM_POOLED, NoiseTable, Shape

VARIANCE = 2**32
DEVIATION = 2**16
Values = NDArray[np.int64]


class Middle(np.random.Generator):
    """Dither of exactly one half."""

    def __init__(self, part: float = 0.5) -> None:
        super().__init__(np.random.PCG64(0))
        self.part = part

    def random(self, size: tuple[int, ...] = ()) -> NDArray[np.float64]:  # type: ignore[override]
        return np.full(size, self.part)


def counted(noise: Values, seed: int = 0, values: Values | None = None, clients: int = 1) -> Shape:
    """Return the counts of Gaussian noise of one round by some clients, a row for each draw."""
    dither, made = np.random.default_rng(seed), Shape()
    names = tuple(f"client {row % clients}" for row in range(len(noise)))
    places = shape.of_gaussian(noise, VARIANCE, dither)
    largest = shape.largest_of_gaussian(VARIANCE)
    rounds = tuple(row // clients for row in range(len(noise)))
    made.count(NoiseTable("Gaussian noise", places, noise, largest, values, names, rounds), dither)
    return made


def normal(rows: int, columns: int, seed: int = 0, deviation: float = DEVIATION) -> Values:
    """Return rounded normal noise, which has the law at this width to one part in 10¹⁰."""
    return np.rint(np.random.default_rng((seed, rows)).normal(0, deviation, (rows, columns))).astype(np.int64)


@pytest.mark.parametrize("variance", [64, 101, 5000])
def test_a_place_is_the_exact_probability_of_less(variance: int) -> None:
    values = np.arange(-40, 41)
    weights = [exp(-(x**2) / (2 * variance)) for x in range(-1000, 1001)]
    total = fsum(weights)
    below = [fsum(weights[: x + 1000]) / total for x in values]
    upto = [fsum(weights[: x + 1001]) / total for x in values]
    found = [shape.of_gaussian(values, variance, Middle(part)) for part in (0.0, 1.0)]
    np.testing.assert_allclose(found[1][:41], upto[:41], rtol=2e-4)  # at five standard deviations; 10⁻⁷ near the median
    np.testing.assert_allclose(found[0][41:], upto[41:], rtol=1e-6)
    np.testing.assert_allclose(found[1][41:], below[41:], rtol=1e-6)
    decay = 0.07
    law = stats.dlaplace(decay)
    np.testing.assert_allclose(
        shape.of_laplace(values, decay, Middle(0.5))[41:], (law.cdf(values) - law.pmf(values) / 2)[41:]
    )
    np.testing.assert_allclose(shape.of_laplace(values, decay, Middle(1.0))[:41], law.cdf(values)[:41])


def test_correct_noise_is_accused_no_more_often_than_stated() -> None:
    """At an alarm of 5 %, at most 5 % of 400 small trials: 20, and 42 but once in a million times."""
    sampler, accused = discrete_gaussian(VARIANCE), 0
    for seed in range(400):
        rows, columns = 2 + seed % 9, 1 + seed % 7
        noise = sampler.sample(rows * columns, seed.to_bytes(32, "big")).reshape(rows, columns)
        accused += bool(counted(noise, seed, clients=2).verdict(0.05).broken)
    assert accused <= 42


def test_exact_draws_have_their_shape_at_any_width() -> None:
    """False-alarm rate: once in a million, for each of the widths."""
    for variance in (64, 500, VARIANCE):
        noise = discrete_gaussian(variance).sample(200_000, bytes(32)).reshape(-1, 8)
        dither, made = np.random.default_rng(1), Shape()
        places = shape.of_gaussian(noise, variance, dither)
        made.count(NoiseTable("noise", places, noise, shape.largest_of_gaussian(variance)), dither)
        assert made.verdict(ALARM_POOLED).broken == ()


def test_counts_add_up_in_any_order() -> None:
    parts = [counted(normal(6, 5, seed), seed, clients=3) for seed in range(6)]
    one, other = Shape(), Shape()
    for part in parts:
        one.add(part)
    for part in reversed(parts):
        other.add(part)
    assert one.verdict(ALARM) == other.verdict(ALARM)
    assert {name: sorted(counts) for name, counts in one.cells.items()} == {
        name: sorted(counts) for name, counts in other.cells.items()
    }
    one.add(parts[0])
    assert "two trials have the same noise" in one.verdict(ALARM).broken


def test_no_noise_at_all_needs_no_test() -> None:
    assert Shape().verdict(ALARM) == (0, 1.0, ())


# --- faults ---------------------------------------------------------------------------------------------------------


def mixture(rows: int, columns: int) -> Values:
    """Return noise of two variances with the right mean square."""
    wide = np.random.default_rng(7).random((rows, columns)) < 0.5
    return np.where(
        wide, normal(rows, columns, 1, DEVIATION * 1.8**0.5), normal(rows, columns, 2, DEVIATION * 0.2**0.5)
    )


def correlated(rows: int, columns: int) -> Values:
    noise = normal(rows, columns).astype(float)
    for column in range(1, columns):
        noise[:, column] = 0.3 * noise[:, column - 1] + (1 - 0.09) ** 0.5 * noise[:, column]
    return np.rint(noise).astype(np.int64)


def repeating(period: int) -> Callable[[int, int], Values]:
    return lambda rows, columns: np.resize(normal(1, period)[0], (rows, columns))


def clipped(deviations: float) -> Callable[[int, int], Values]:
    limit = int(deviations * DEVIATION)
    return lambda rows, columns: np.clip(normal(rows, columns), -limit, limit)


def spread(law: str) -> Callable[[int, int], Values]:
    """Return noise of another law and the right variance."""
    rng = np.random.default_rng(3)
    draws: dict[str, Callable[[int, int], NDArray[np.float64]]] = {
        "uniform": lambda *size: rng.uniform(-(3**0.5), 3**0.5, size),
        "two points": lambda *size: np.sign(rng.random(size) - 0.5),
        "Laplace": lambda *size: rng.laplace(0, 0.5**0.5, size),
        "Student": lambda *size: rng.standard_t(5, size) / (5 / 3) ** 0.5,
        "triangular": lambda *size: rng.triangular(-(6**0.5), 0, 6**0.5, size),
    }
    return lambda rows, columns: np.rint(draws[law](rows, columns) * DEVIATION).astype(np.int64)


FAULTS: dict[str, tuple[Callable[[int, int], Values], int]] = {
    "|x|": (lambda *size: np.abs(normal(*size)), 40),
    "|x| in one of ten": (lambda *size: np.where(normal(*size, 5) % 10, normal(*size), np.abs(normal(*size))), 8_000),
    "clipped at 3 sd": (clipped(3), 12_000),
    "clipped at 4 sd": (clipped(4), 350_000),
    "one draw for all coordinates": (lambda rows, columns: np.repeat(normal(rows, 1), columns, axis=1), 200),
    "period of 4,096": (repeating(4096), 5_000),
    "period of 3": (repeating(3), 40),
    "only even values": (lambda *size: normal(*size) // 2 * 2, 64),
    "a grid of 1,001 units": (lambda *size: normal(*size) // 1001 * 1001, 64),
    "half of them even": (lambda *size: np.where(normal(*size, 5) % 2, normal(*size) // 2 * 2, normal(*size)), 1_000),
    "two variances": (mixture, 2_000),
    "correlated neighbours": (correlated, 4_000),
    "a tenth too little": (lambda *size: normal(*size, 0, 0.949 * DEVIATION), 20_000),
    "a tenth too much": (lambda *size: normal(*size, 0, 1.049 * DEVIATION), 20_000),
    "a mean": (lambda *size: normal(*size) + DEVIATION // 10, 8_000),
    "mirrored": (lambda rows, columns: np.hstack([normal(rows, columns // 2), -normal(rows, columns // 2)]), 400),
    **{law: (spread(law), 6_000) for law in ("uniform", "two points", "Laplace", "Student", "triangular")},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_by_that_many_draws(fault: str) -> None:
    make, draws = FAULTS[fault]
    columns = 8 if draws < 5_000 else draws // 8
    assert counted(make(draws // columns, columns)).verdict(ALARM_POOLED).broken


@pytest.mark.parametrize("what", ["the same for all clients", "the same in two rounds", "shifted by one coordinate"])
def test_noise_shared_by_draws_is_found(what: str) -> None:
    noise = normal(200, 2)
    if what == "the same for all clients":  # of a round; two coordinates are too few to be sure that none is chance
        noise = np.repeat(noise[::2], 2, axis=0)
    elif what == "the same in two rounds":
        noise[2::4], noise[3::4] = noise[::4], noise[1::4]
    else:
        noise[1::2, 1] = noise[::2, 0]
    assert counted(noise, clients=2).verdict(ALARM_POOLED).broken


def test_noise_that_depends_on_the_sign_of_the_data_is_found() -> None:
    values, noise = normal(100, 4, 9), normal(100, 4)
    assert counted(noise, values=values).verdict(ALARM_POOLED).broken == ()
    away = np.abs(noise) * np.sign(values)
    assert any("values" in sentence for sentence in counted(away, values=values).verdict(ALARM_POOLED).broken)
    assert counted(np.where(values > 0, noise, noise // 2), values=values).verdict(ALARM_POOLED).broken


def test_noise_of_few_digits_has_too_many_equal_values() -> None:
    noise = discrete_gaussian(VARIANCE).sample(2_000, bytes(32))[None]
    assert not counted(noise).repeats
    rounded = np.rint((noise / DEVIATION).astype(np.float16).astype(float) * DEVIATION).astype(np.int64)
    (sentence,) = counted(rounded).repeats
    assert "of 2,000 values of Gaussian noise are different" in sentence
    assert shape.equal_pairs(2_000, shape.largest_of_gaussian(VARIANCE)) < 100


def test_a_failure_is_a_sentence_with_figures() -> None:
    first = counted(clipped(3)(1, 12_000)).verdict(ALARM_POOLED).broken[0]
    assert first.startswith(
        "Gaussian noise: 0 of 12,000 lie in the outer 0.00195 of both tails, expected 23.4375 (p < "
    )


def test_biased_bits_and_categories_are_found() -> None:
    rng, dither = np.random.default_rng(1), np.random.default_rng(2)
    for chance, real, sound in ((0.3, 0.3, True), (0.3, 0.2, False), (0.5, 0.6, False)):
        bits, made = rng.random((300, 8)) < real, Shape()
        places = shape.of_choice(np.where(bits, 0, chance), np.where(bits, chance, 1 - chance), dither)
        made.count(NoiseTable("bits", places), dither)
        assert (made.verdict(ALARM_POOLED).broken == ()) is sound
    same, made = np.repeat(rng.random((300, 1)) < 0.3, 8, axis=1), Shape()
    places = shape.of_choice(np.where(same, 0, 0.3), np.where(same, 0.3, 0.7), dither)
    made.count(NoiseTable("bits", places), dither)
    assert any("apart" in sentence for sentence in made.verdict(ALARM_POOLED).broken), "one coin for all bits"
