"""Privacy cost of releases: Gaussian releases have a μ, ε-private releases an ε, and both count towards one total.

A `PrivacyCost` keeps Σμ² of Gaussian releases, and Σε and Σμ(ε)² of ε-private ones, with μ(ε) = 2 Φ⁻¹(e^ε/(1 + e^ε)).
They are `within` (ε, δ) if one of (1) and (2) holds, where μ(ε, δ) is the largest μ that is (ε, δ)-private:

    (1)  none is Gaussian, and Σε_r <= ε,        (2)  √(Σμ_r² + Σμ(ε_r)²) <= μ(ε, δ).

A release of a verified sum has a slack besides its μ (`privacy.verified`). Slacks add up, and in (2) and (3) the
largest μ is that for δ - (1 + e^ε')·slack, where ε' is at most the ε of the Gaussian releases together.

If a part ε₁ of ε is set aside for ε-private releases, they are `within` if (3)  Σε_r <= ε₁ and √Σμ_r² <= μ(ε - ε₁, δ).

"Costs that add up" in PRIVACY.md proves that both hold for releases chosen by earlier results, and shows why a mixture
may not use basic composition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from dca_proto.privacy import accounting

_ROUNDING = 2.0**-50  # relative; a float sum of decimals may exceed ε by a few roundings
_SQUARE_MAX = 1e150
_SHAVED, _SLACK = 1 - 1e-9, 2.0**-48  # margins: a release of exactly the remaining ε fits, in spite of rounding


class PrivacyCost(msgspec.Struct, frozen=True, gc=False):
    """The cost of releases on the same data; the default is zero.

    Attributes:
        gaussian: Σμ² of the Gaussian releases. pure: Σε of the ε-private ones. converted: Σμ(ε)² of the ε-private ones.
        slack: how far the releases are, in total variation, from Gaussian ones of that μ; 0 without verified sums.
    """

    gaussian: float = 0.0
    pure: float = 0.0
    converted: float = 0.0
    slack: float = 0.0

    @classmethod
    def of_mu(cls, mu: float, slack: float = 0.0) -> PrivacyCost:
        """The cost of one Gaussian release; infinite if μ is too large for any round."""
        return cls(gaussian=mu**2 if mu < _SQUARE_MAX else math.inf, slack=slack)

    @classmethod
    def of_pure(cls, epsilon: float) -> PrivacyCost:
        """The cost of one ε-private release. Raises `UsageError` for an ε outside (0, 500]."""
        return cls(pure=float(epsilon), converted=accounting.mu_of_pure(epsilon) ** 2)

    @classmethod
    def of(cls, epsilon: float, delta: float) -> PrivacyCost:
        """The cost of one announced release: ε-private if δ = 0, otherwise Gaussian with the μ of (ε, δ).

        Raises `UsageError` for an ε or a δ out of range.
        """
        return cls.of_pure(epsilon) if delta == 0 else cls.of_mu(accounting.mu_of(epsilon, delta))

    @property
    def mu(self) -> float:
        """The Gaussian DP parameter of all releases, with each ε-private one counted as a Gaussian one of μ(ε)."""
        return math.sqrt(self.gaussian + self.converted)

    @property
    def is_pure(self) -> bool:
        """True if there are ε-private releases, and no others."""
        return self.pure > 0 and not self.gaussian

    def __add__(self, other: PrivacyCost) -> PrivacyCost:
        pure, converted = self.pure + other.pure, self.converted + other.converted
        return PrivacyCost(self.gaussian + other.gaussian, pure, converted, self.slack + other.slack)

    def epsilon(self, delta: float, *, apart: bool = False) -> float:
        """Return the least known ε for which the releases together are (ε, δ)-private.

        It is infinite for a Gaussian release at δ = 0. It holds for releases fixed beforehand; use `within` for
        adaptively chosen ones. With `apart`, the ε-private ones have a part of ε of their own. Raises `UsageError` for
        a δ outside [0, 1).
        """
        if apart:
            return self.pure_epsilon + self._gaussian.epsilon(delta)
        if delta == 0:
            return math.inf if self.gaussian else self.pure_epsilon
        together = accounting.epsilon_of(self.mu, delta, self.slack)
        return together if self.gaussian else min(self.pure_epsilon, together)

    @property
    def _gaussian(self) -> PrivacyCost:
        """The cost of the Gaussian releases alone."""
        return PrivacyCost(self.gaussian, slack=self.slack)

    @property
    def pure_epsilon(self) -> float:
        """Σε of the ε-private releases, for people: without float dust (0.1 + 0.2 = 0.3)."""
        return _decimal(self.pure)

    def within(self, epsilon: float, delta: float, for_reports: float = 0.0) -> bool:
        """Return True if (1) or (2) holds, so that the releases together are (ε, δ)-private; δ in [0, 1).

        `epsilon` is rounded up; this is not, so that one Gaussian release of (ε, δ), or one report of ε, fits exactly.
        With `for_reports` > 0, which is ε₁ < ε for the ε-private ones, return True if (3) holds.
        """
        if for_reports:
            rest = self._gaussian.within(epsilon - for_reports, delta)
            return rest and self.pure <= for_reports * (1 + _ROUNDING)
        if not self.gaussian and self.pure <= epsilon * (1 + _ROUNDING):
            return True
        return delta > 0 and self.mu <= accounting.mu_of(epsilon, delta, self.slack)

    def left(self, epsilon: float, delta: float, for_reports: float = 0.0) -> float:
        """Return the ε at δ of the largest further Gaussian release that fits (see `within`); 0.0 if none does."""
        if for_reports:
            return self._gaussian.left(epsilon - for_reports, delta)
        return epsilon if self == PrivacyCost() else accounting.epsilon_of(self._rest(epsilon, delta), delta)

    def left_pure(self, epsilon: float, delta: float, for_reports: float = 0.0) -> float:
        """Return the ε of the largest further ε-private release that fits (see `within`); 0.0 if none does."""
        if for_reports:
            return max(_decimal(for_reports - self.pure), 0.0)
        converted = accounting.pure_of_mu(self._rest(epsilon, delta))
        return converted if self.gaussian else max(_decimal(epsilon - self.pure), converted)

    def _rest(self, epsilon: float, delta: float) -> float:
        """Return the μ that (2) leaves, or 0.0."""
        allowed, spent = accounting.mu_of(epsilon, delta, self.slack), self.mu
        return _SHAVED * math.sqrt(max(0.0, (allowed - spent) * (allowed + spent) - _SLACK * allowed**2))


def _decimal(value: float) -> float:
    """Round a sum of decimals to remove float dust, at most 2^-50 of it."""
    short = float(f"{value:.15g}")
    return short if abs(short - value) <= _ROUNDING * abs(value) else value


def total(costs: Iterable[PrivacyCost]) -> PrivacyCost:
    """Return the cost of all releases together."""
    parts = tuple(costs)
    if len(parts) <= 1:
        return parts[0] if parts else PrivacyCost()
    return PrivacyCost(
        math.fsum(cost.gaussian for cost in parts),
        math.fsum(cost.pure for cost in parts),
        math.fsum(cost.converted for cost in parts),
        math.fsum(cost.slack for cost in parts),
    )
