"""A client proves a sum of squares of numbers of which Compute nodes have shares (DESIGN §12, step 13).

p numbers y_k are cut into g *wires* of h numbers each, h a divisor of P - 1. u_j is the polynomial of degree below h
with the numbers of wire j at the h-th roots of unity. With 2k uniform blinds of its own as the coefficients of b_j,

    f_j = u_j + b_j·(X^h - 1),        G = Σ f_j²

so the values of G at all roots together are Σ y_k². They are also h·(G_0 + G_h + G_2h + …). The client shares the
blinds, and G without G_0. Nodes know what Σ y_k² has to be, as a linear function of the words, and take the G_0 that
fits to it. They open each f_j(r) and G(r), and accept if Σ f_j(r)² = G(r). A wrong sum passes with a probability of at
most (2h + 4k - 2) / (P² - P).

The f_j(r) are uniform, as blinds make them, and G(r) follows from them: an opening reveals nothing (PRIVACY.md, P1).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dca_proto.crypto.bit_proof import QUERIES, at_roots, divisors, vanishing
from dca_proto.crypto.field import DEFAULT, AnyElements, Elements, Factor, Field, factor_of, transform_length

_WIRE_COST = 16
"""Words that one more wire costs: four blinds, and with three nodes, six times two elements of an opening."""


class Wires(NamedTuple):
    """The sizes of a proof about the squares of so many numbers.

    Attributes:
        numbers: p, at least 1.
        field: where words live.
    """

    numbers: int
    field: Field = DEFAULT

    @property
    def order(self) -> int:
        """h: the divisor of P - 1 with the least 2h + 16g, the smallest of those."""
        return _order(self.numbers, self.field.prime)

    @property
    def wires(self) -> int:
        """g: as many as p numbers need, with h in each."""
        return -(-self.numbers // self.order)

    @property
    def blinds(self) -> int:
        """Uniform elements that the client draws: 2k for each wire."""
        return 2 * QUERIES * self.wires

    @property
    def coefficients(self) -> int:
        """Coefficients of G but the lowest: 2h + 4k - 2."""
        return 2 * self.order + 4 * QUERIES - 2

    @property
    def words(self) -> int:
        """Elements that the client shares: blinds and coefficients."""
        return self.blinds + self.coefficients

    @property
    def opened(self) -> int:
        """Elements of an opening: G(r), and f_j(r) of each wire."""
        return 2 + 2 * self.wires


@lru_cache(maxsize=256)
def _order(count: int, prime: int) -> int:
    return min(divisors(prime), key=lambda h: (2 * h + _WIRE_COST * -(-count // h), h))


def prove(wires: Wires, values: Elements, blinds: Elements) -> Elements:
    """Return the words that prove the squares of numbers: blinds, then coefficients of G, ``(wires.words,)``.

    Args:
        values: y, ``(wires.numbers,)``. blinds: fresh uniform elements, ``(wires.blinds,)``.
    """
    field, order, width = wires.field, wires.order, 2 * QUERIES
    each = arranged(wires, values[np.newaxis], blinds[np.newaxis])
    f, own = np.zeros_like(each), each[:, order:]
    f[:, :order] = field.product_with(each[:, :order], _coefficients_of(field, order))
    f[:, :width] = field.minus(f[:, :width], own)
    f[:, order:] = (f[:, order:] + own) % np.uint64(field.prime)  # for toy sizes, where h < 2k, some are not 0 here
    return np.concatenate([blinds, _sum_of_squares(field, f)[1:]])


def arranged(wires: Wires, values: Elements, blinds: AnyElements) -> Elements:
    """Return the numbers of each wire beside its blinds, client by client, ``(n g, h + 2k)``.

    Args:
        values: y, or shares of them, ``(n, wires.numbers)``. blinds: the same, ``(n, wires.blinds)``.
    """
    found = np.zeros((len(values), wires.wires, wires.order + 2 * QUERIES), dtype=np.uint64)
    padded = np.zeros((len(values), wires.wires * wires.order), dtype=np.uint64)
    padded[:, : wires.numbers] = values
    found[..., : wires.order] = padded.reshape(len(values), wires.wires, -1)
    found[..., wires.order :] = blinds.reshape(len(values), wires.wires, -1)
    return found.reshape(-1, found.shape[2])


@lru_cache(maxsize=8)
def _coefficients_of(field: Field, order: int) -> Factor:
    """Return what the value at each root adds to each coefficient of the polynomial through all, ``(h, h)``."""
    exponents = np.arange(order, dtype=np.int64)
    powers = field.multiply(
        field.powers(field.root_of_unity(order), order), np.uint64(pow(order, field.prime - 2, field.prime))
    )
    return factor_of(powers[-np.outer(exponents, exponents) % order])


def _sum_of_squares(field: Field, polynomials: Elements) -> Elements:
    """Return the coefficients of the sum of the squares of polynomials, the rows, of the same length."""
    size = 2 * polynomials.shape[1] - 1
    squares = field.cyclic_square(polynomials, transform_length(size), slice(size))
    total: Elements = squares.sum(axis=0) % np.uint64(field.prime)
    return total


class NormQuery(NamedTuple):
    """Public weights of an opening at r, each with two components.

    Attributes:
        values: of the numbers of a wire in f_j, ``(h, 2)``.
        blinds: of its blinds, ``(2k, 2)``.
        coefficients: of G's coefficients, from G_1 on, in G, ``(coefficients, 2)``.
    """

    values: Elements
    blinds: Elements
    coefficients: Elements


def query(wires: Wires, r: Elements) -> NormQuery:
    """Return the weights of an opening at r; all wires have the same. What Σ y_k² has to be is left out of G."""
    field, order = wires.field, wires.order
    powers = field.extension_powers(r, wires.coefficients + 1)
    coefficients = powers[1:].copy()
    coefficients[order - 1 :: order, 0] += np.uint64(field.prime - 1)
    coefficients %= np.uint64(field.prime)
    of_blinds = field.times(powers[: 2 * QUERIES], vanishing(field, order, r))
    return NormQuery(at_roots(field, order, r, order), of_blinds, coefficients)


def squares_of(field: Field, opened: Elements) -> Elements:
    """Return Σ f_j(r)² for many clients, ``(n, 2)``, of the sums of all nodes' f_j(r), ``(n, 2g)``."""
    each = opened.reshape(len(opened), -1, 2)
    total: Elements = field.times(each, each).sum(axis=1) % np.uint64(field.prime)
    return total
