"""Arithmetic modulo P agrees with Python's integers, also at its extremes."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from dca_proto.crypto.field import DEFAULT, PRIME, Elements, Field, factor_of, interpolate, transform_length

FACTORS = {2: 1, 3: 2, 7: 1, 11: 1, 31: 1, 151: 1, 331: 1}
TOY = Field(7, 3)


def drawn(*shape: int, seed: int = 1, field: Field = DEFAULT) -> Elements:
    return np.random.default_rng(seed).integers(0, field.prime, shape).astype(np.uint64)


@pytest.mark.parametrize(("field", "factors"), [(DEFAULT, [*FACTORS]), (TOY, [2, 3]), (Field(3, 2), [2])])
def test_the_generator_reaches_all_elements_but_0(field: Field, factors: list[int]) -> None:
    assert field.prime % 4 == 3
    assert all(pow(field.generator, (field.prime - 1) // factor, field.prime) != 1 for factor in factors)


def test_the_factors_are_those_of_the_fields_order() -> None:
    assert prod(factor**power for factor, power in FACTORS.items()) == PRIME - 1


@pytest.mark.parametrize("terms", [1, 7, 5_000])
@pytest.mark.parametrize("is_largest", [False, True])
def test_a_matrix_product_is_exact(terms: int, is_largest: bool) -> None:
    a, b = drawn(3, terms), drawn(terms, 2, seed=2)
    if is_largest:
        a[:], b[:] = PRIME - 1, PRIME - 1
    expected = [[sum(int(x) * int(y) for x, y in zip(row, column, strict=True)) % PRIME for column in b.T] for row in a]
    assert DEFAULT.matrix_product(a, b).tolist() == expected


@pytest.mark.parametrize("seed", range(6))
def test_a_product_with_a_factor_of_many_zeros_is_exact(seed: int) -> None:
    """Of random sizes; columns have terms in some rows each, or none; the left factor has each type of elements."""
    rng = np.random.default_rng(seed)
    rows, terms, columns = rng.integers(1, 5), rng.integers(1, 4_500), rng.integers(1, 7)
    a, b = drawn(rows, terms, seed=seed), drawn(terms, columns, seed=seed + 9)
    for column in b.T:
        start, end = sorted(rng.integers(0, terms + 1, 2))
        column[:start] = column[end:] = 0
    factor = factor_of(b)
    expected = (a.astype(object) @ b.astype(object) % PRIME).tolist()
    for left in (a, a.astype(np.uint32), a.astype(np.float64)):
        assert DEFAULT.product_with(left, factor).tolist() == expected


@pytest.mark.parametrize("terms", [1 << 20, (1 << 20) + 5])  # the words of the largest block are more than 2^20
def test_the_longest_sum_of_the_largest_products_is_exact(terms: int) -> None:
    row = np.full((1, terms), PRIME - 1, dtype=np.uint64)
    assert DEFAULT.matrix_product(row, row.T) == terms % PRIME


def product_of(a: Elements, b: Elements) -> list[int]:
    """Python's integers multiply polynomials whose coefficients stand 80 bits apart."""
    packed = [int.from_bytes(b"".join(int(x).to_bytes(10, "little") for x in p), "little") for p in (a, b)]
    whole = (packed[0] * packed[1]).to_bytes(10 * (len(a) + len(b) - 1), "little")
    return [int.from_bytes(whole[at : at + 10], "little") % PRIME for at in range(0, len(whole), 10)]


@pytest.mark.parametrize("size", [1, 2, 93, 9_362])
@pytest.mark.parametrize("value", ["drawn", "largest", "half"])
def test_a_square_of_a_polynomial_is_exact(size: int, value: str) -> None:
    a, length = drawn(size), transform_length(3 * size // 2)
    if value != "drawn":
        a[:] = PRIME - 1 if value == "largest" else PRIME // 2  # of which the second has the largest digits
    expected = [0] * length
    for k, coefficient in enumerate(product_of(a, a)):
        expected[k % length] = (expected[k % length] + coefficient) % PRIME
    assert DEFAULT.cyclic_square(a, length, slice(None)).tolist() == expected
    assert DEFAULT.cyclic_square(a, length, slice(1, size)).tolist() == expected[1:size]


@pytest.mark.parametrize(("size", "short"), [(1, 4), (2, 4), (93, 32), (9_362, 4)])
@pytest.mark.parametrize("is_largest", [False, True])
def test_a_product_with_a_short_polynomial_is_exact(size: int, short: int, is_largest: bool) -> None:
    a, b = drawn(size), drawn(short, seed=2)
    if is_largest:
        a[:], b[:] = PRIME - 1, PRIME - 1
    assert DEFAULT.short_product(a, b).tolist() == product_of(a, b)


@pytest.mark.parametrize(
    ("field", "order"), [*((DEFAULT, n) for n in (1, 2, 31, 93, 331, 906, 5_958)), (TOY, 6), (Field(3, 2), 2)]
)
@pytest.mark.parametrize("are_bits", [False, True])
def test_an_interpolated_polynomial_has_its_values(field: Field, order: int, are_bits: bool) -> None:
    values = drawn(order, field=field) % np.uint64(2 if are_bits else field.prime)
    coefficients, root = interpolate(field, values), field.root_of_unity(order)
    for j in {0, order // 2, order - 1}:
        x = pow(root, j, field.prime)
        assert sum(int(c) * pow(x, k, field.prime) for k, c in enumerate(coefficients)) % field.prime == values[j]


def test_a_transform_has_the_next_even_length_of_small_factors() -> None:
    def is_smooth(length: int) -> bool:
        for factor in (2, 3, 5):
            while length % factor == 0:
                length //= factor
        return length == 1

    for size in (1, 2, 3, 7, 93, 185, 1_817, 18_730, 699_733, 2_031_685):
        expected = next(n for n in range(size, 2 * size + 2) if n % 2 == 0 and is_smooth(n))
        assert transform_length(size) == expected, size


@pytest.mark.parametrize("field", [DEFAULT, TOY])
def test_the_extension_is_a_field(field: Field) -> None:
    z, w = drawn(40, 2, field=field), drawn(40, 2, seed=2, field=field)
    z = z[z.any(axis=1)]
    assert (field.times(z, field.inverses(z)) == [1, 0]).all()
    for (a, b), (c, d), found in zip(z.astype(object), w.astype(object), field.times(z, w[: len(z)]), strict=False):
        assert found.tolist() == [(a * c - b * d) % field.prime, (a * d + b * c) % field.prime]
    assert field.power(z[0], 5).tolist() == field.extension_powers(z[0], 6)[5].tolist()
    assert field.power(z[0], field.prime**2 - 1).tolist() == [1, 0]
