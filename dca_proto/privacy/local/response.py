"""k-ary randomised response: a client tells its category, or with some probability any other one.

Warner (1965) for k = 2; Kairouz, Bonawitz and Ramage (2016) for any k; "RR" in section 2.1 of the LDP paper.

**A client without a category** (`MISSING`) gives the randomised response of one that is drawn evenly. The law of its
report is then a mean of the k laws of the categories (it names each with probability 1/k), so that no report has a
smaller probability than q or a larger one than p: beside any category's, too, the ratio is at most p/q <= e^ε. In an
estimate it counts 1/k in every category, for (1/k - q)/(p - q) = 1/k where p + (k - 1) q = 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.errors import PeerError
from dca_proto.privacy.local.categorical import EPSILON_LEAST, MISSING, Categorical, require_length
from dca_proto.privacy.local.chance import Chance
from dca_proto.privacy.local.estimate import LocalEstimate, shares, variance_of_shares
from dca_proto.privacy.local.stream import Stream
from dca_proto.privacy.local.values import counted, integers, require_categories, require_epsilon, within
from dca_proto.privacy.mechanism import RANDOMISED_RESPONSE

_ONE = 2**64
_CATEGORIES_MAX = 2**20
_REPORT_BYTES = 4


class RandomisedResponse(Categorical, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report is the client's own category with probability p, each of the k - 1 others with probability q.

    Exactly (ε, 0)-locally private: q = ⌈2^64/(e^ε + k - 1)⌉ / 2^64 and p = 1 - (k - 1) q. As q (e^ε + k - 1) >= 1,
    p <= e^ε q. Every report has probability p or q under every category, so no ratio exceeds p/q <= e^ε. One uniform
    word of 64 bits decides a report, which thus has exactly these probabilities.

    Attributes:
        epsilon: ε, as the exact binary fraction that the float is. categories: k, 2 to 2^20.

    Raises:
        UsageError: ε or k out of range, ε so small for k that p and q are the same, or so large that p is 1.
    """

    epsilon: float
    categories: int
    name: ClassVar[str] = RANDOMISED_RESPONSE
    delta: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_categories(self.categories, _CATEGORIES_MAX)
        self._require_odds(max(self.categories**2 / 2**63, EPSILON_LEAST))

    @property
    def probabilities(self) -> tuple[Fraction, Fraction]:
        """p, of a report of the client's own category, and q, of each other one; exact."""
        own, stray = self._weights
        return Fraction(own, _ONE), Fraction(stray, _ONE)

    @property
    def stray_of_missing(self) -> float:
        """1/k."""
        return 1 / self.categories

    def randomise(self, values: ArrayLike, key: bytes) -> NDArray[np.int64]:
        """One report for each client.

        Args:
            values: categories 0 to k - 1 or `MISSING`, shape ``(n,)``. key: 32 fresh secret bytes, for this call alone.

        Returns:
            Categories, shape ``(n,)``.

        Raises:
            UsageError: values of another kind or out of range (it does not say which), or a wrong key.
        """
        stream, (own, stray) = Stream(key), self._weights
        held = self._with_drawn(self._checked(values), stream)
        reports = np.empty_like(held)
        for part, words in stream.rows(len(held), 1, np.uint64):
            word = words[:, 0]
            shift = np.where(word < np.uint64(own), np.uint64(0), (word - np.uint64(own)) // np.uint64(stray) + 1)
            reports[part] = (held[part] + shift.astype(np.int64)) % self.categories
        return reports

    def _with_drawn(self, held: NDArray[np.int64], stream: Stream) -> NDArray[np.int64]:
        """The categories, with one drawn evenly for each `MISSING`, by words of the stream that nothing else uses."""
        filled = held.copy()
        for row in np.flatnonzero(held == MISSING).tolist():
            filled[row] = _evenly(stream.further(row, 0), self.categories)
        return filled

    def encode(self, report: NDArray[Any]) -> bytes:
        """Its number in 4 bytes, little-endian."""
        return int(report).to_bytes(_REPORT_BYTES, "little")

    def decode(self, data: bytes) -> NDArray[np.int64]:
        """Inverse of `encode`, shape ``()``. Raises `PeerError` for another length or a category of k or more."""
        require_length(data, _REPORT_BYTES)
        category = int.from_bytes(data, "little")
        if category >= self.categories:
            raise PeerError("release", found=f"category {category}", expected=f"< {self.categories}")
        return np.array(category, dtype=np.int64)

    def estimate(self, reports: ArrayLike) -> LocalEstimate:
        """The share of clients in each category, shape ``(k,)``. Raises `UsageError` where a report cannot be one."""
        told = within("reports", integers("reports", reports), 0, self.categories - 1, "number the categories from 0")
        counts = np.bincount(told, minlength=self.categories)
        return shares(counts, counted(told), *self._weights, _ONE)

    def variance(self, held: ArrayLike, reports: int) -> NDArray[np.float64]:
        """Exact variance of an estimated share where a share `held` of the reporting clients is in the category."""
        return variance_of_shares(held, reports, *self._weights, _ONE)

    @property
    def _weights(self) -> tuple[int, int]:
        return _weights(self.epsilon, self.categories)


@lru_cache(maxsize=64)
def _weights(epsilon: float, categories: int) -> tuple[int, int]:
    """p and q in units of 2^-64. (What q is the ceiling of is irrational.)"""
    stray = Chance(Fraction(epsilon), categories - 1).first_bits(64) + 1
    return _ONE - (categories - 1) * stray, stray


def _evenly(words: Iterator[int], categories: int) -> int:
    """A category, each as probable as the others: words of 64 bits beyond the last whole multiple of k are skipped."""
    fitting = _ONE - _ONE % categories
    return next(word for word in words if word < fitting) % categories
