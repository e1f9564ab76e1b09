"""Categorical local mechanisms: a report names the client's own category more often than any other.

A client has one of k categories, numbered from 0, or none (`MISSING`) because it has no row or its value is missing. It
still reports, by a distribution that is ε-private beside those of the categories, so reports hide that, too
("Reports of categories" in PRIVACY.md).

*Randomised response*: Warner (1965) for k = 2; Kairouz, Bonawitz and Ramage (2016) for any k; "RR" in section 2.1 of
the LDP paper. A client without a category draws one uniformly, and counts as 1/k in every category.

*Optimal unary encoding*: Wang, Blocki, Li and Jha (2017), section 4.2.2; section 3.2.2 of the LDP paper, whose eq. (9)
calls our p "q" and our 1 - q "p". Its error hardly grows with the number of categories; it is better than randomised
response if e^ε + 2 < k. A client without a category sets each bit with probability q, and counts in no category.
"""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.aggregate import LocalReports
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy.local.chance import Chance
from dca_proto.privacy.local.stream import Stream
from dca_proto.privacy.local.values import LocalEstimate, check_range, integers, report_count, require_epsilon
from dca_proto.privacy.mechanism import RANDOMISED_RESPONSE, UNARY_ENCODING
from dca_proto.privacy.rounding import at_least, at_most

MISSING = -1
"""The value of a client that has no category."""
EPSILON_LEAST, EPSILON_MAX = 2.0**-50, 36.0
"""Limits between which p and q differ from each other, and p from 1, as floats."""
_ONE, _HALF = 2**64, 2**63
_CATEGORIES_MAX = 2**20
_REPORT_BYTES = 4


class Categorical:
    """Base class: a report names the client's own category with probability p, and any other with probability q.

    Only mypy enforces its abstract methods, since a struct cannot have the metaclass of abstract classes.

    Attributes:
        name: on the wire. epsilon: ε of each report. categories: k.
    """

    __slots__ = ()
    name: ClassVar[str]
    delta: ClassVar[float] = 0.0
    epsilon: float
    categories: int

    @property
    @abstractmethod
    def _weights(self) -> tuple[int, int]:
        """p and q in units of 2^-64."""

    @property
    @abstractmethod
    def stray_of_missing(self) -> float:
        """The probability that the report of a client without a category names a given one."""

    @abstractmethod
    def _counts(self, reports: ArrayLike) -> tuple[NDArray[np.int64], int]:
        """Count the reports that name each category, and all reports. Raises `UsageError` for an impossible report."""

    def _check(self, least: float) -> None:
        """Refuse an ε or k out of range, and an ε for which p = q or p = 1 as floats: they allow no estimate.

        `least` is the smallest ε that is sure to work. Raises `UsageError`.
        """
        require_epsilon(self.epsilon)
        if not 2 <= self.categories <= _CATEGORIES_MAX:
            raise UsageError(f"categories is {self.categories}, expected 2 to {_CATEGORIES_MAX}")
        p, q = map(float, self.probabilities)
        if not q < p:
            raise UsageError(
                f"epsilon {at_least(self.epsilon)} is too small for {self.categories} categories, expected at least "
                f"{at_least(least, 1)}"
            )
        if not p < 1:
            raise UsageError(
                f"epsilon {at_least(self.epsilon)} is too large: reports would hardly ever differ from the data; "
                f"expected at most {at_most(EPSILON_MAX)}"
            )

    @property
    def probabilities(self) -> tuple[Fraction, Fraction]:
        """p, the probability that a report names the client's own category, and q, that it names another; exact."""
        own, stray = self._weights
        return Fraction(own, _ONE), Fraction(stray, _ONE)

    def to_inputs(self, contributions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the categories of one-hot rows, shape ``(n,)``; `MISSING` for rows of zeros."""
        return np.where(contributions.max(axis=1) > 0, contributions.argmax(axis=1), MISSING)

    def estimate(self, reports: ArrayLike) -> LocalEstimate:
        """Estimate the share of clients in each category, shape ``(k,)``: the unbiased (mean - q)/(p - q).

        Raises `UsageError` for an impossible report.
        """
        (counts, count), (own, stray) = self._counts(reports), self._weights
        mean = (counts / count - stray / _ONE) / ((own - stray) / _ONE)
        return LocalEstimate(mean, self.variance(mean, count), count)

    def variance(self, shares: ArrayLike, reports: int) -> NDArray[np.float64]:
        """(f p(1-p) + (1-f) q(1-q)) / (n (p-q)²), the variance of an estimated share; f is the true one of `shares`.

        This is exact. As it is linear in f, an unbiased estimate of f gives an unbiased estimate of the variance.
        """
        f, (own, stray) = np.asarray(shares, dtype=np.float64), self._weights
        p_var, q_var = (number / _ONE * ((_ONE - number) / _ONE) for number in (own, stray))
        variance: NDArray[np.float64] = (f * p_var + (1 - f) * q_var) / (reports * ((own - stray) / _ONE) ** 2)
        return variance

    def variance_in_sum(self, unit: float) -> float:
        """The largest variance of one report's noise in a category's estimated count, over all values of a client."""
        p, q = self.probabilities
        chances = float(p), float(q), self.stray_of_missing
        return max(chance * (1 - chance) for chance in chances) / float(p - q) ** 2

    def summed(self, reports: NDArray[Any], unit: float) -> NDArray[np.float64]:
        """Return the estimated count of each category, shape ``(k,)``: n times the unbiased shares."""
        total: NDArray[np.float64] = len(reports) * self.estimate(reports).mean
        return total

    def decode_reports(self, reports: NDArray[Any], unit: float) -> LocalReports:
        """Return the reports unchanged, with p and q."""
        p, q = map(float, self.probabilities)
        return LocalReports(
            values=reports,
            mechanism=self.name,
            epsilon=self.epsilon,
            delta=0.0,
            noise_scale=0.0,
            probabilities=(p, q),
            categories=self.categories,
        )

    def _checked(self, values: ArrayLike) -> NDArray[np.int64]:
        """Return categories, or `MISSING`. Raises `UsageError`, which does not quote a value."""
        categories = integers("values", values)
        check_range("values", categories[categories != MISSING], 0, self.categories - 1, "number the categories from 0")
        return categories


class RandomisedResponse(Categorical, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report is the client's own category with probability p, each of the k - 1 others with probability q.

    Exactly (ε, 0)-locally private: q = ⌈2^64/(e^ε + k - 1)⌉ / 2^64 and p = 1 - (k - 1) q. As q (e^ε + k - 1) >= 1,
    p <= e^ε q. Every report has probability p or q under every category, so no ratio exceeds p/q <= e^ε. One uniform
    word of 64 bits decides a report, which thus has exactly these probabilities.

    Attributes:
        epsilon: ε, as the exact binary fraction that the float is. categories: k, 2 to 2^20.

    Raises:
        UsageError: ε or k is out of range, or ε so small for k that p and q are the same, or so large that p is 1.
    """

    epsilon: float
    categories: int
    name: ClassVar[str] = RANDOMISED_RESPONSE

    def __post_init__(self) -> None:
        self._check(max(self.categories**2 / 2**63, EPSILON_LEAST))

    @property
    def _weights(self) -> tuple[int, int]:
        stray = _stray(self.epsilon, self.categories)
        return _ONE - (self.categories - 1) * stray, stray

    @property
    def stray_of_missing(self) -> float:
        """1/k."""
        return 1 / self.categories

    def randomise(self, values: ArrayLike, key: bytes) -> NDArray[Any]:
        """Return one report per client: categories, shape ``(n,)``.

        The values are categories 0 to k - 1 or `MISSING`, shape ``(n,)``; `key` is 32 fresh secret bytes, for this call
        alone. Raises `UsageError` for values of another type or out of range (without the value), or a wrong key.
        """
        stream, (own, stray) = Stream(key), self._weights
        categories = self._with_drawn(self._checked(values), stream)
        reports = np.empty_like(categories)
        for part, words in stream.rows(len(categories), 1, np.uint64):
            word = words[:, 0]
            shift = np.where(word < np.uint64(own), np.uint64(0), (word - np.uint64(own)) // np.uint64(stray) + 1)
            reports[part] = (categories[part] + shift.astype(np.int64)) % self.categories
        return reports

    def _with_drawn(self, categories: NDArray[np.int64], stream: Stream) -> NDArray[np.int64]:
        """Replace each `MISSING` by a uniformly drawn category, from words of the stream that nothing else uses.

        Words of 64 bits beyond the last whole multiple of k are skipped, so that all categories are equally probable.
        """
        filled, fitting = categories.copy(), _ONE - _ONE % self.categories
        for row in np.flatnonzero(categories == MISSING).tolist():
            filled[row] = next(word for word in stream.further(row, 0) if word < fitting) % self.categories
        return filled

    def encode(self, report: NDArray[Any]) -> bytes:
        """Encode the category's number in 4 bytes, little-endian."""
        return int(report).to_bytes(_REPORT_BYTES, "little")

    def decode(self, data: bytes) -> NDArray[np.int64]:
        """Inverse of `encode`, shape ``()``. Raises `PeerError` for another length or a category of k or more."""
        _require_length(data, _REPORT_BYTES)
        category = int.from_bytes(data, "little")
        if category >= self.categories:
            raise PeerError("release", found=f"category {category}", expected=f"< {self.categories}")
        return np.array(category, dtype=np.int64)

    def _counts(self, reports: ArrayLike) -> tuple[NDArray[np.int64], int]:
        table = check_range(
            "reports", integers("reports", reports), 0, self.categories - 1, "number the categories from 0"
        )
        return np.bincount(table, minlength=self.categories), report_count(table)


class UnaryEncoding(Categorical, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report is k bits: the client's own is 1 with probability p = 1/2, each other with q, independently.

    Exactly (ε, 0)-locally private: q = ⌈2^64/(e^ε + 1)⌉ / 2^64. Two categories differ in two bits, one of each; a
    report's probabilities have a ratio of at most (p/q) · ((1-q)/(1-p)) = (1-q)/q <= e^ε, as q (e^ε + 1) >= 1. One
    uniform word of 64 bits decides each bit, which thus has exactly these probabilities.

    Attributes:
        epsilon: ε, as the exact binary fraction that the float is. categories: k, 2 to 2^20.

    Raises:
        UsageError: ε or k is out of range, or ε so small that p and q are the same.
    """

    epsilon: float
    categories: int
    name: ClassVar[str] = UNARY_ENCODING

    def __post_init__(self) -> None:
        self._check(EPSILON_LEAST)

    @property
    def _weights(self) -> tuple[int, int]:
        return _HALF, _stray(self.epsilon, 2)

    @property
    def stray_of_missing(self) -> float:
        """q."""
        return self._weights[1] / _ONE

    def randomise(self, values: ArrayLike, key: bytes) -> NDArray[Any]:
        """Return one report per client: bits, shape ``(n, k)``. See `RandomisedResponse` for arguments and errors."""
        categories, stray = self._checked(values), np.uint64(self._weights[1])
        reports = np.empty((len(categories), self.categories), dtype=np.bool_)
        for part, words in Stream(key).rows(len(categories), self.categories, np.uint64):
            np.less(words, stray, out=reports[part])
            present = np.flatnonzero(categories[part] != MISSING)
            own = present, categories[part][present]
            reports[part][own] = words[own] < np.uint64(_HALF)
        return reports

    def encode(self, report: NDArray[Any]) -> bytes:
        """Pack the bits: category j is bit j mod 8 of byte ⌊j/8⌋, from the lowest on; unused bits are 0."""
        return np.packbits(report, bitorder="little").tobytes()

    def decode(self, data: bytes) -> NDArray[np.bool_]:
        """Inverse of `encode`, shape ``(k,)``. Raises `PeerError` for another length or a bit beyond the k-th."""
        _require_length(data, -(-self.categories // 8))
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little").astype(np.bool_)
        if bits[self.categories :].any():
            raise PeerError("release", found=f"a bit beyond the first {self.categories}", expected="0 there")
        return bits[: self.categories]

    def _counts(self, reports: ArrayLike) -> tuple[NDArray[np.int64], int]:
        given = np.asarray(reports)  # bits, or counts of 0 and 1
        bits = given.astype(np.int64) if given.dtype == np.bool_ else given
        table = integers("reports", bits, columns=self.categories)
        check_range("reports", table, 0, 1, "give each category's bit")
        return table.sum(axis=0), report_count(table)


@lru_cache(maxsize=64)
def _stray(epsilon: float, categories: int) -> int:
    """Return ⌈2^64/(e^ε + k - 1)⌉; the quotient is irrational."""
    return Chance(Fraction(epsilon), categories - 1).first_bits(64) + 1


def _require_length(data: bytes, expected: int) -> None:
    if len(data) != expected:
        raise PeerError("length", found=f"{len(data)} bytes", expected=f"{expected} bytes")
