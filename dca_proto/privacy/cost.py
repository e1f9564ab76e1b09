"""What releases of two kinds cost a client: Gaussian ones a μ, ε-private ones an ε, and the total of all.

Gaussian releases compose exactly in Gaussian DP: μ² adds up (`accounting`). A report by Laplace noise, randomised
response or unary encoding is ε-private, δ being 0. A `PrivacyCost` keeps Σμ² of Gaussian releases, and Σε and Σμ(ε)² of
ε-private ones, with μ(ε) = 2 Φ⁻¹(e^ε/(1 + e^ε)). They are `within` (ε, δ) where one of these holds:

    (1)  none is Gaussian, and Σε_r <= ε,        (2)  √(Σμ_r² + Σμ(ε_r)²) <= μ(ε, δ),

μ(ε, δ) being the largest μ that is (ε, δ)-private. So they come to ε_G(√(Σμ_r² + Σμ(ε_r)²), δ), with ε_G(μ, δ) for
`accounting.epsilon_of`, and where none is Gaussian, to Σε_r if that is less.

**(1)** is basic composition, good for few reports. **(2)** is good for many small ones, whose ε would add up to far
more than they reveal together. It takes each for a Gaussian release that reveals more. Let T(α) be the least error of
the second kind of a test of level α between the outputs for two neighbours (Dong, Roth and Su 2022). ε-private means T
>= f, and μ-private means T >= G, with

    f(α) = max(1 - e^ε α, e^-ε (1 - α)),     G(α) = Φ(Φ⁻¹(1 - α) - μ).

*f >= G just where μ >= μ(ε).* The two lines of f lead from (0, 1) to the kink (a, a) and on to (1, 0), a = 1/(1 + e^ε).
G is convex, with G(0) = 1 and G(1) = 0. So if G(a) <= a, then on [0, a] G is below its own chord, which is below f, as
both start at (0, 1) and f ends no lower; and so on [a, 1]. If G(a) > a = f(a), then f >= G fails. And G(a) <= a says
Φ⁻¹(1 - a) - μ <= Φ⁻¹(a) = -Φ⁻¹(1 - a), which is μ >= 2 Φ⁻¹(1 - a) = μ(ε). Binary randomised response has T = f, so that
no smaller μ would do for all that is ε-private. Composition keeps the order of trade-off functions, and Gaussian ones
compose to √Σμ² (their section 3 and corollary 3.3). As μ(ε) is about √(π/2) ε for small ε, and very many small reports
are like a Gaussian release of √Σε², the μ of (2) is then 1.25 times too large.

**In view of results.** *Who chooses each release, its kind and its figure, by all results before gets no more than
(ε, δ), if after each choice "(1) or (2)" holds for one (ε, δ) that is fixed.* Proof. Let L be the loss of what is seen
in all, ln(p/q) for two neighbours: δ at ε is E[(1 - e^(ε - L))⁺] under p. Cut the interaction off where a choice would
leave (2). What remains is (ε, δ)-private: within a fixed budget of μ² adaptive choice gains nothing (Smith and Thakurta
2022; Koskela, Tobaben and Honkela 2023), since a μ_r-private release, followed by a Gaussian one of √(ρ² - μ_r²), never
reveals more than one Gaussian release of ρ. Paths that are not cut off have in it the loss that they had. A path that
is cut off ended outside (2), for sums only grow; hence within (1), with no Gaussian release and L <= Σε_r <= ε; so it
had no part in δ. Hence δ is at most what it is of the interaction that was cut off. ∎

Results may come late, and charges come back for which nothing was released: let each release stand where its result
is known. What is known by then is a part of what is charged, and "(1) or (2)" goes over to parts.

**A part for reports.** Who commits beforehand to a part ε₁ of ε for ε-private releases lets through what is

    (3)  Σε_r <= ε₁  and  √Σμ_r² <= μ(ε - ε₁, δ),

in place of "(1) or (2)". That is (ε, δ)-private however each is chosen in view of results (proof: PRIVACY.md).

*Why a mixture is not let through by basic composition*, Σε_r + ε_G(√Σμ_r², δ) <= ε: that is for what is fixed
beforehand. Who stops asking for Gaussian releases when they happen to have revealed much, and takes all that is left by
randomised response, has 11 times δ in 150 rounds and 19 times in 10,000 (ε = 4, δ = 1e-5, by optimal stopping).

**Rounding.** μ(ε) is rounded up, and sums of squares are off by some 2^-52 of themselves, far less than `mu_of` and
`epsilon_of` keep back. Decimals that add up to ε may as floats exceed it (0.1 + 0.2 > 0.3), so that (1) has room for
that: what is promised is, strictly, (ε (1 + 2^-49), δ).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from dca_proto.privacy import accounting

_ROUNDING = 2.0**-50  # of ε, which a sum of ε may exceed it by: a few roundings of decimals and of floats
_SQUARE_MAX = 1e150
_SHAVED, _SLACK = 1 - 1e-9, 2.0**-48  # so that what is called left is let through, although ε and μ are rounded


class PrivacyCost(msgspec.Struct, frozen=True, gc=False):
    """What releases on the same data cost; the default is nothing.

    Attributes:
        gaussian: Σμ² of the Gaussian ones. pure: Σε of the ε-private ones. converted: Σμ(ε)² of the ε-private ones.
    """

    gaussian: float = 0.0
    pure: float = 0.0
    converted: float = 0.0

    @classmethod
    def of_mu(cls, mu: float) -> PrivacyCost:
        """Of one Gaussian release; infinite for one that no round can be planned with."""
        return cls(gaussian=mu**2 if mu < _SQUARE_MAX else math.inf)

    @classmethod
    def of_pure(cls, epsilon: float) -> PrivacyCost:
        """Of one ε-private release. Raises `UsageError` for an ε outside (0, 500]."""
        return cls(pure=float(epsilon), converted=accounting.mu_of_pure(epsilon) ** 2)

    @classmethod
    def of(cls, epsilon: float, delta: float) -> PrivacyCost:
        """Of one release as it is announced: ε-private where δ = 0, and otherwise Gaussian with the μ of (ε, δ).

        Raises `UsageError` for an ε or a δ out of range.
        """
        return cls.of_pure(epsilon) if delta == 0 else cls.of_mu(accounting.mu_of(epsilon, delta))

    @property
    def mu(self) -> float:
        """The Gaussian DP parameter of all together, each ε-private one taken for a Gaussian one of μ(ε)."""
        return math.sqrt(self.gaussian + self.converted)

    @property
    def is_pure(self) -> bool:
        """Whether there are ε-private releases, and no others."""
        return self.pure > 0 and not self.gaussian

    def __add__(self, other: PrivacyCost) -> PrivacyCost:
        pure, converted = self.pure + other.pure, self.converted + other.converted
        return PrivacyCost(self.gaussian + other.gaussian, pure, converted)

    def epsilon(self, delta: float, *, apart: bool = False) -> float:
        """The least ε that is known for which the releases together are (ε, δ)-private; infinite for a Gaussian at 0.

        It is so for releases that were fixed beforehand; of those chosen in view of results a limit says it (`within`).
        With `apart` a part of ε is kept for the ε-private ones. Raises `UsageError` for a δ outside [0, 1).
        """
        if apart:
            return self.pure_epsilon + PrivacyCost(self.gaussian).epsilon(delta)
        if delta == 0:
            return math.inf if self.gaussian else self.pure_epsilon
        together = accounting.epsilon_of(self.mu, delta)
        return together if self.gaussian else min(self.pure_epsilon, together)

    @property
    def pure_epsilon(self) -> float:
        """Σε of the ε-private releases for people: that of the decimals they were given as (0.1 + 0.2 = 0.3)."""
        return _decimal(self.pure)

    def within(self, epsilon: float, delta: float, for_reports: float = 0.0) -> bool:
        """Whether (1) or (2) holds, so that the releases together are (ε, δ)-private; δ in [0, 1).

        `epsilon` returns a figure that is rounded up; here exactly one Gaussian release of (ε, δ) fits, or a report of
        ε. With `for_reports`, which is ε₁ < ε kept for the ε-private ones, it is whether (3) holds.
        """
        if for_reports:
            others = PrivacyCost(self.gaussian).within(epsilon - for_reports, delta)
            return others and self.pure <= for_reports * (1 + _ROUNDING)
        if not self.gaussian and self.pure <= epsilon * (1 + _ROUNDING):
            return True
        return delta > 0 and self.mu <= accounting.mu_of(epsilon, delta)

    def left(self, epsilon: float, delta: float, for_reports: float = 0.0) -> float:
        """The ε at δ of the largest further Gaussian release that fits (as `within`); 0.0 where none does."""
        if for_reports:
            return PrivacyCost(self.gaussian).left(epsilon - for_reports, delta)
        return epsilon if self == PrivacyCost() else accounting.epsilon_of(self._rest(epsilon, delta), delta)

    def left_pure(self, epsilon: float, delta: float, for_reports: float = 0.0) -> float:
        """The ε of the largest further ε-private release that fits (as `within`); 0.0 where none does."""
        if for_reports:
            return max(_decimal(for_reports - self.pure), 0.0)
        converted = accounting.pure_of_mu(self._rest(epsilon, delta))
        return converted if self.gaussian else max(_decimal(epsilon - self.pure), converted)

    def _rest(self, epsilon: float, delta: float) -> float:
        """The μ of what (2) leaves, or 0.0."""
        allowed, spent = accounting.mu_of(epsilon, delta), self.mu
        return _SHAVED * math.sqrt(max(0.0, (allowed - spent) * (allowed + spent) - _SLACK * allowed**2))


def _decimal(value: float) -> float:
    """A sum of decimals without the dust that floats leave, at most 2^-50 of it."""
    short = float(f"{value:.15g}")
    return short if abs(short - value) <= _ROUNDING * abs(value) else value


def total(prices: Iterable[PrivacyCost]) -> PrivacyCost:
    """The price of all together."""
    parts = tuple(prices)
    if len(parts) <= 1:
        return parts[0] if parts else PrivacyCost()
    return PrivacyCost(
        math.fsum(one.gaussian for one in parts),
        math.fsum(one.pure for one in parts),
        math.fsum(one.converted for one in parts),
    )
