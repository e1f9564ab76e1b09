"""Optimal unary encoding: one bit for each category, the client's own told at random, the others seldom set.

Wang, Blocki, Li and Jha (2017), section 4.2.2; section 3.2.2 of the LDP paper, whose eq. (9) calls our p "q" and our
1 - q "p". Its estimator as printed, (mean - q)/(p - q) in its letters, is biased: with P(1 | bit 0) = 1 - p the
unbiased one is (mean - (1 - p))/(q - (1 - p)), which is what stands here. Against randomised response its error hardly
grows with the number of categories: better where e^ε + 2 < k.

**A client without a category** (`MISSING`) has no bit of its own: each is 1 with q. Beside any category's one bit then
has another law, with ratios of p/q = 1/(2q) and (1-q)/(1-p) = 2(1-q) at most. As q <= 1/2 <= 1-q, both are at most
(1-q)/q <= e^ε. In an estimate it counts in no category.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.errors import PeerError
from dca_proto.privacy.local.categorical import EPSILON_LEAST, MISSING, Categorical, require_length
from dca_proto.privacy.local.chance import Chance
from dca_proto.privacy.local.estimate import LocalEstimate, shares, variance_of_shares
from dca_proto.privacy.local.stream import Stream
from dca_proto.privacy.local.values import counted, integers, require_categories, require_epsilon, within
from dca_proto.privacy.mechanism import UNARY_ENCODING

_ONE = 2**64
_HALF = 2**63
_CATEGORIES_MAX = 2**20


class UnaryEncoding(Categorical, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report is k bits: the client's own is 1 with probability p = 1/2, each other with q, independently.

    Exactly (ε, 0)-locally private: q = ⌈2^64/(e^ε + 1)⌉ / 2^64. Two categories differ in two bits, one of each; a
    report's probabilities have at most the ratio (p/q) · ((1-q)/(1-p)) = (1-q)/q <= e^ε, as q (e^ε + 1) >= 1. One
    uniform word of 64 bits decides each bit, which thus has exactly these probabilities.

    Attributes:
        epsilon: ε, as the exact binary fraction that the float is. categories: k, 2 to 2^20.

    Raises:
        UsageError: ε or k out of range, or ε so small that p and q are the same.
    """

    epsilon: float
    categories: int
    name: ClassVar[str] = UNARY_ENCODING
    delta: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_categories(self.categories, _CATEGORIES_MAX)
        self._require_odds(EPSILON_LEAST)

    @property
    def probabilities(self) -> tuple[Fraction, Fraction]:
        """p, of a 1 at the client's own category, and q, of a 1 at each other one; exact."""
        return Fraction(1, 2), Fraction(self._stray, _ONE)

    @property
    def stray_of_missing(self) -> float:
        """q."""
        return self._stray / _ONE

    def randomise(self, values: ArrayLike, key: bytes) -> NDArray[np.bool_]:
        """One report for each client.

        Args:
            values: categories 0 to k - 1 or `MISSING`, shape ``(n,)``. key: 32 fresh secret bytes, for this call alone.

        Returns:
            Bits, shape ``(n, k)``.

        Raises:
            UsageError: values of another kind or out of range (it does not say which), or a wrong key.
        """
        held = self._checked(values)
        reports = np.empty((len(held), self.categories), dtype=np.bool_)
        for part, words in Stream(key).rows(len(held), self.categories, np.uint64):
            np.less(words, np.uint64(self._stray), out=reports[part])
            having = np.flatnonzero(held[part] != MISSING)
            own = having, held[part][having]
            reports[part][own] = words[own] < np.uint64(_HALF)
        return reports

    def encode(self, report: NDArray[np.bool_]) -> bytes:
        """Category j's bit is bit j mod 8 of byte ⌊j/8⌋, from the lowest on; what is left of the last byte is 0."""
        return np.packbits(report, bitorder="little").tobytes()

    def decode(self, data: bytes) -> NDArray[np.bool_]:
        """Inverse of `encode`, shape ``(k,)``. Raises `PeerError` for another length or a bit beyond the k-th."""
        require_length(data, -(-self.categories // 8))
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little").astype(np.bool_)
        if bits[self.categories :].any():
            raise PeerError("release", found=f"a bit beyond the first {self.categories}", expected="0 there")
        return bits[: self.categories]

    def estimate(self, reports: ArrayLike) -> LocalEstimate:
        """The share of clients in each category, shape ``(k,)``, from bits or counts of 0 and 1.

        Raises:
            UsageError: a report cannot be one.
        """
        told = np.asarray(reports)
        table = integers("reports", told.astype(np.int64) if told.dtype == np.bool_ else told, columns=self.categories)
        within("reports", table, 0, 1, "give each category's bit")
        return shares(table.sum(axis=0), counted(table), _HALF, self._stray, _ONE)

    def variance(self, held: ArrayLike, reports: int) -> NDArray[np.float64]:
        """Exact variance of an estimated share where a share `held` of the reporting clients is in the category."""
        return variance_of_shares(held, reports, _HALF, self._stray, _ONE)

    @property
    def _stray(self) -> int:
        return _weight(self.epsilon)


@lru_cache(maxsize=64)
def _weight(epsilon: float) -> int:
    """q in units of 2^-64. (What it is the ceiling of is irrational.)"""
    return Chance(Fraction(epsilon), 1).first_bits(64) + 1
