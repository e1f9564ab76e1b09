"""What the categorical local mechanisms have in common: values are categories, reports name one's own more often.

A client holds one of k categories, numbered from 0, or none (`MISSING`): it has no row, or its value is missing. It
reports all the same, by a law of its own that is ε-private beside those of the categories, so that nobody learns it.
"""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.aggregate import LocalReports
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy.local.estimate import LocalEstimate
from dca_proto.privacy.local.values import integers, within
from dca_proto.privacy.rounding import at_least, at_most

MISSING = -1
"""The value of a client that has no category."""
EPSILON_LEAST, EPSILON_MAX = 2.0**-50, 36.0
"""Between which p and q are told apart from each other, and p from 1, as floats."""


class Categorical:
    """Base of a mechanism by which a report names a category with probability p if it is the client's own, else q.

    What is abstract mypy checks: a struct's metaclass is not that of abstract classes.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """On the wire."""

    @property
    @abstractmethod
    def epsilon(self) -> float:
        """ε of each report."""

    @property
    @abstractmethod
    def categories(self) -> int:
        """k."""

    @property
    @abstractmethod
    def probabilities(self) -> tuple[Fraction, Fraction]:
        """p and q, exact."""

    @property
    @abstractmethod
    def stray_of_missing(self) -> float:
        """How probably the report of a client without a category names any one of them."""

    @abstractmethod
    def estimate(self, reports: ArrayLike) -> LocalEstimate:
        """The share of clients in each category, shape ``(k,)``."""

    def to_inputs(self, contributions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The categories of one-hot rows, shape ``(n,)``; `MISSING` of rows of zeros."""
        return np.where(contributions.max(axis=1) > 0, contributions.argmax(axis=1), MISSING)

    def variance_in_sum(self, unit: float) -> float:
        """The largest of one report's noise in the estimated count of a category, whatever its client holds."""
        p, q = self.probabilities
        odds = float(p), float(q), self.stray_of_missing
        return max(one * (1 - one) for one in odds) / float(p - q) ** 2

    def summed(self, reports: NDArray[Any], unit: float) -> NDArray[np.float64]:
        """The estimated count of each category, shape ``(k,)``: n times the unbiased shares."""
        total: NDArray[np.float64] = len(reports) * self.estimate(reports).mean
        return total

    def decode_reports(self, reports: NDArray[Any], unit: float) -> LocalReports:
        """The reports as they are, with p and q."""
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

    def _require_odds(self, least: float) -> None:
        """Refuse an ε at which p and q, as floats, are the same, or p is 1: no estimate could be made of reports.

        Args:
            least: the smallest ε that is promised.

        Raises:
            UsageError: it is too small or too large.
        """
        p, q = map(float, self.probabilities)
        if not q < p:
            raise UsageError(
                f"epsilon {at_least(self.epsilon)} is too small for {self.categories} categories, expected at least "
                f"{at_least(least, 1)}"
            )
        if not p < 1:
            raise UsageError(
                f"epsilon {at_least(self.epsilon)} is too large: reports would hardly ever differ from what is held; "
                f"expected at most {at_most(EPSILON_MAX)}"
            )

    def _checked(self, values: ArrayLike) -> NDArray[np.int64]:
        """Categories, or `MISSING`. Raises `UsageError`, which does not say what a value is."""
        held = integers("values", values)
        within("values", held[held != MISSING], 0, self.categories - 1, "number the categories from 0")
        return held


def require_length(data: bytes, expected: int) -> None:
    """Raises `PeerError` for a report of another length."""
    if len(data) != expected:
        raise PeerError("length", found=f"{len(data)} bytes", expected=f"{expected} bytes")
