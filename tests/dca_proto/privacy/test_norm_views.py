"""What coalitions see of verified sums with a norm: P5 and P6 of PRIVACY.md, by ranks over several fields.

`test_verified_views.py` enumerates all pads of a model without a norm. With one, the smallest statement has 27 words,
so its pads alone have 3^27 values. But all that nodes show are linear functions of pads that are uniform. So each law
is uniform on a coset, and two words have the same law if and only if they agree on the functions that are free of pads:
on those that lie in the span of what every honest node shows. Their dimension is a rank, and this file computes it from
the weights that nodes use.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from dca_proto.crypto import norm as norms
from dca_proto.crypto.bit_proof import OPENED, point
from dca_proto.crypto.bounded import Limit, Norm, Statement
from dca_proto.crypto.field import DEFAULT, Elements, Field

SMALL = {3: Field(3, 2), 7: Field(7, 3), 11: Field(11, 2)}
Rows = NDArray[np.int64]


def rank(rows: Rows, prime: int) -> int:
    """The rank over F_P, by elimination."""
    left, found = rows % prime, 0
    for column in range(left.shape[1]):
        at = np.flatnonzero(left[found:, column])
        if not at.size:
            continue
        left[[found, found + at[0]]] = left[[found + at[0], found]]
        left[found] = left[found] * pow(int(left[found, column]), -1, prime) % prime
        for other in range(found + 1, len(left)):
            left[other] = (left[other] - left[other, column] * left[found]) % prime
        found += 1
        if found == len(left):
            break
    return found


def opening_at(statement: Statement, r: Elements) -> Rows:
    """The functions of the words that a node shows at r, a row for each element: A, C, E, G(r), f_0(r), …"""
    unit = np.eye(statement.words, dtype=np.uint64)
    return statement.opening(unit, statement.query(r)).T.astype(np.int64)


def noisy_sum(statement: Statement, coins: NDArray[np.bool_]) -> Rows:
    """The functions of a client's words that are its part of the noisy sum, a row for each coordinate."""
    unit = np.eye(statement.words, dtype=np.uint64)
    each = [statement.sum_of_shares(row[np.newaxis], coins[np.newaxis]) for row in unit]
    return np.stack(each, axis=1).astype(np.int64)


def points_of(field: Field) -> list[Elements]:
    """All points outside F_P, or some of a large field."""
    if field == DEFAULT:
        rng = np.random.default_rng(1)
        return [point(rng.bytes(64)) for _ in range(4)]
    pairs = itertools.product(range(field.prime), range(1, field.prime))
    return [np.array(one, dtype=np.uint64) for one in pairs]


def is_same(r: Elements, s: Elements, prime: int) -> bool:
    """Whether two points are equal or conjugate."""
    return r[0] == s[0] and int(r[1]) in (int(s[1]), (prime - int(s[1])) % prime)


def statements() -> Iterator[tuple[Statement, bool]]:
    """Statements with a norm, and whether each number has a wire of its own."""
    one = Norm(1, 1)
    yield Statement((-1,), (1,), 0, 1, (), one, SMALL[3]), False
    yield Statement((0,), (1,), 1, 1, (), one, SMALL[7]), False
    for alone in (False, True):
        yield Statement((0, 0), (1, 1), 1, 1, (), Norm(2, 2), SMALL[7]), alone
        yield Statement((0, 0), (1, 1), 1, 1, (Limit((1, 1), 0, 1),), Norm(2, 2), SMALL[11]), alone
        yield Statement((0, -1), (1, 1), 1, 1, (Limit((1, -1), 0, 1), Limit((1, 2))), Norm(2, 2), SMALL[11]), alone
    yield Statement((-2,) * 3, (4,) * 3, 2, 2, (), Norm(3, 5)), True
    yield Statement((-2,) * 3 + (0,), (4,) * 3 + (2,), 2, 2, (Limit((1, 0, 0, 0), -2, 3),), Norm(3, 2, 3)), False


CASES = list(statements())


@pytest.fixture(params=CASES, ids=[f"{one.field.prime}-{at}" for at, (one, _) in enumerate(CASES)])
def statement(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Statement]:
    """A statement; in toy fields, some have as many wires as numbers, as large ones have."""
    found, alone = request.param
    norms._order.cache_clear()
    if alone:
        monkeypatch.setattr(norms, "_WIRE_COST", 0)
    fresh = Statement(*(getattr(found, name) for name in found.__struct_fields__))  # without what it keeps
    assert fresh.wires is not None
    assert fresh.norm is not None
    assert fresh.wires.wires == (fresh.norm.count if alone else 1)
    yield fresh
    norms._order.cache_clear()


def limits_of(statement: Statement) -> int:
    """The dimension of combinations of limits in an opening: E has two elements."""
    return min(len(statement.limits), 2)


def test_nodes_that_open_at_two_points_reveal_nothing_of_a_norm(statement: Statement) -> None:
    """P5: what both nodes' openings have in common are combinations of limits, which are public. At equal or conjugate
    points it is the whole opening, and the two are one."""
    prime, points = statement.field.prime, points_of(statement.field)
    functions = [opening_at(statement, r) for r in points]
    whole = statement.opened - (2 * bool(statement.limits) - limits_of(statement))
    assert {rank(one, prime) for one in functions[:: max(1, len(points) // 12)]} == {whole}
    first, seen = len(points) // 2, []
    for second, r in enumerate(points):
        same = is_same(points[first], r, prime)
        if same or second % max(1, len(points) // 12) == 0:
            together = rank(np.concatenate([functions[first], functions[second]]), prime)
            assert together == (whole if same else 2 * whole - limits_of(statement)), (points[first], r)
            seen.append(same)
    assert seen.count(True) == 1 + (statement.field != DEFAULT)
    assert len(seen) >= 4


def test_a_node_that_aborts_leaves_an_opening_that_blinds_make_uniform(statement: Statement) -> None:
    """P6: one node opens, another one opens and releases its part of the sum.

    No function of the sum is among those of the opening, so what both show is the opening alone. Nor is any other
    function of the bits alone, but for limits. Whatever the bits are, blinds make A and all f_j(r) uniform. They have
    no part in the sum, and C and G(r) follow.
    """
    prime, rng, bits = statement.field.prime, np.random.default_rng(2), statement.block.bits
    assert statement.wires is not None
    of_blinds = [*range(bits, bits + statement.block.blinds)]
    of_blinds += range(statement.block.words, statement.block.words + statement.wires.blinds)
    uniform = [0, 1, *range(statement.opened - 2 * statement.wires.wires, statement.opened)]
    limited = range(OPENED, OPENED + 2 * bool(statement.limits))
    for r in points_of(statement.field)[:4]:
        opened, released = opening_at(statement, r), noisy_sum(statement, rng.random(statement.noise_size) < 0.5)
        whole = rank(opened, prime)
        assert rank(np.concatenate([opened, released]), prime) == whole + len(statement.sizes)
        assert rank(opened[:, bits:], prime) == whole - limits_of(statement)
        assert not opened[limited, bits:].any()
        assert rank(opened[np.ix_(uniform, of_blinds)], prime) == len(uniform)
        assert not released[:, of_blinds].any()
        rest = [at for at in range(statement.opened) if at not in (*uniform, *limited)]
        assert not opened[np.ix_(rest, of_blinds)].any(), "C and G have no blinds of their own"


def test_ranks_show_what_fewer_blinds_would_reveal(statement: Statement) -> None:
    """The check can fail: without a wire's blinds, an opening shows a combination of its numbers."""
    prime, bits, wires = statement.field.prime, statement.block.bits, statement.wires
    assert wires is not None
    hidden = [*range(bits, statement.block.words), *range(statement.block.words + wires.blinds, statement.words)]
    opened = opening_at(statement, points_of(statement.field)[0])
    assert rank(opened[:, hidden], prime) < rank(opened[:, bits:], prime)
