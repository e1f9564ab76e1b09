"""k-ary randomised response: a client tells its category, or with some probability any other one.

Warner (1965) for k = 2; Kairouz, Bonawitz and Ramage (2016) for any k; "RR" in section 2.1 of the LDP paper.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.core.errors import UsageError
from dca_proto.local.chance import Chance
from dca_proto.local.estimate import LocalEstimate, shares, variance_of_shares
from dca_proto.local.stream import Stream
from dca_proto.local.values import counted, integers, require_categories, require_epsilon, within

_ONE = 2**64
_CATEGORIES_MAX = 2**20


class RandomisedResponse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report is the client's own category with probability p, each of the k - 1 others with probability q.

    Exactly (ε, 0)-locally private: q = ⌈2^64/(e^ε + k - 1)⌉ / 2^64 and p = 1 - (k - 1) q. As q (e^ε + k - 1) >= 1,
    p <= e^ε q. Every report has probability p or q under every category, so no ratio exceeds p/q <= e^ε. One uniform
    word of 64 bits decides a report, which thus has exactly these probabilities.

    Attributes:
        epsilon: ε, as the exact binary fraction that the float is. categories: k, 2 to 2^20.

    Raises:
        UsageError: ε or k out of range, or ε so small for k that p and q are the same to 64 bits.
    """

    epsilon: float
    categories: int
    name: ClassVar[str] = "randomised-response"
    delta: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_categories(self.categories, _CATEGORIES_MAX)
        own, stray = self._weights
        if own <= stray:
            least = self.categories**2 / 2**63
            raise UsageError(
                f"epsilon {self.epsilon:g} is too small for {self.categories} categories, expected at least {least:.1g}"
            )

    @property
    def probabilities(self) -> tuple[Fraction, Fraction]:
        """p, of a report of the client's own category, and q, of each other one; exact."""
        own, stray = self._weights
        return Fraction(own, _ONE), Fraction(stray, _ONE)

    def randomise(self, values: ArrayLike, key: bytes) -> NDArray[np.int64]:
        """One report for each client.

        Args:
            values: categories 0 to k - 1, shape ``(n,)``. key: 32 fresh secret bytes, for this call alone.

        Returns:
            Categories, shape ``(n,)``.

        Raises:
            UsageError: values of another kind or out of range (it does not say which), or a wrong key.
        """
        held = self._checked("values", values)
        own, stray = self._weights
        reports = np.empty_like(held)
        for part, words in Stream(key).rows(len(held), 1, np.uint64):
            word = words[:, 0]
            shift = np.where(word < np.uint64(own), np.uint64(0), (word - np.uint64(own)) // np.uint64(stray) + 1)
            reports[part] = (held[part] + shift.astype(np.int64)) % self.categories
        return reports

    def estimate(self, reports: ArrayLike) -> LocalEstimate:
        """The share of clients in each category, shape ``(k,)``. Raises `UsageError` where a report cannot be one."""
        told = self._checked("reports", reports)
        counts = np.bincount(told, minlength=self.categories)
        return shares(counts, counted(told), *self._weights, _ONE)

    def variance(self, held: ArrayLike, reports: int) -> NDArray[np.float64]:
        """Exact variance of an estimated share where a share `held` of the reporting clients is in the category."""
        return variance_of_shares(held, reports, *self._weights, _ONE)

    @property
    def _weights(self) -> tuple[int, int]:
        return _weights(self.epsilon, self.categories)

    def _checked(self, what: str, values: ArrayLike) -> NDArray[np.int64]:
        return within(what, integers(what, values), 0, self.categories - 1, "number the categories from 0")


@lru_cache(maxsize=64)
def _weights(epsilon: float, categories: int) -> tuple[int, int]:
    """p and q in units of 2^-64. (What q is the ceiling of is irrational.)"""
    stray = Chance(Fraction(epsilon), categories - 1).first_bits(64) + 1
    return _ONE - (categories - 1) * stray, stray
