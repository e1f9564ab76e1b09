"""Privacy cost of releases: Gaussian releases have a μ, ε-private releases an ε, and both count towards one total.

Gaussian releases compose exactly in Gaussian DP: μ² adds up (`accounting`). A report by Laplace noise, randomised
response or unary encoding is ε-private, with δ = 0. A `PrivacyCost` keeps Σμ² of Gaussian releases, and Σε and Σμ(ε)²
of ε-private ones, with μ(ε) = 2 Φ⁻¹(e^ε/(1 + e^ε)). They are `within` (ε, δ) if one of these holds:

    (1)  none is Gaussian, and Σε_r <= ε,        (2)  √(Σμ_r² + Σμ(ε_r)²) <= μ(ε, δ),

where μ(ε, δ) is the largest μ that is (ε, δ)-private. So their total ε at δ is ε_G(√(Σμ_r² + Σμ(ε_r)²), δ), with
ε_G(μ, δ) from `accounting.epsilon_of`; if none is Gaussian, it is Σε_r if that is less.

**(1)** is basic composition, good for few reports. **(2)** is good for many small ones, whose ε would add up to far
more than they reveal together. It replaces each by a Gaussian release that reveals more. Let T(α) be the least error of
the second kind of a test of level α between the outputs for two neighbours (Dong, Roth and Su 2022). ε-private means T
>= f, and μ-private means T >= G, with

    f(α) = max(1 - e^ε α, e^-ε (1 - α)),     G(α) = Φ(Φ⁻¹(1 - α) - μ).

*f >= G if and only if μ >= μ(ε).* The two lines of f lead from (0, 1) to the kink (a, a) and on to (1, 0),
a = 1/(1 + e^ε). G is convex, with G(0) = 1 and G(1) = 0. If G(a) <= a, then on [0, a] G is below its own chord, which
is below f, as both start at (0, 1) and f ends no lower; likewise on [a, 1]. If G(a) > a = f(a), then f >= G fails. And
G(a) <= a means Φ⁻¹(1 - a) - μ <= Φ⁻¹(a) = -Φ⁻¹(1 - a), that is μ >= 2 Φ⁻¹(1 - a) = μ(ε). Binary randomised response has
T = f, so no smaller μ holds for every ε-private release. Composition preserves the order of trade-off functions, and
Gaussian ones compose to √Σμ² (their section 3 and corollary 3.3). For small ε, μ(ε) is about √(π/2) ε. Very many small
reports are like a Gaussian release of √Σε², so the μ of (2) is then 1.25 times too large.

**Adaptive choice.** *Suppose that an adversary knows all results so far when it chooses each release, its kind and its
figure. Suppose that after each choice "(1) or (2)" holds for one fixed (ε, δ). Then the interaction is (ε, δ)-private.*
Proof. Let L = ln(p/q) be the privacy loss of the whole transcript, for two neighbours: δ at ε is E[(1 - e^(ε - L))⁺]
under p. Cut the interaction off before a choice that would violate (2). The part that remains is (ε, δ)-private: within
a fixed budget of μ², adaptive choice gains nothing (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023), since
a μ_r-private release, followed by a Gaussian one of √(ρ² - μ_r²), never reveals more than one Gaussian release of ρ. A
path that is not cut off has the same loss in both interactions. A path that is cut off ends outside (2), as sums only
grow; hence it ends within (1), with no Gaussian release and L <= Σε_r <= ε; so it adds nothing to δ. Hence δ is at most
that of the interaction cut off. ∎

Results may arrive late, and charges come back if nothing was released. To cover this, place each release at the time
its result is known. The results known by then are a part of what is charged, and "(1) or (2)" also holds for parts.

**A part for reports.** A policy that commits beforehand to a part ε₁ of ε for ε-private releases requires

    (3)  Σε_r <= ε₁  and  √Σμ_r² <= μ(ε - ε₁, δ)

instead of "(1) or (2)". That is (ε, δ)-private for any adaptive choice of releases. Proof. Let P and Q be the
distributions of everything seen, for neighbours x and x'. Let H be a third one: ε-private releases are drawn for x, the
others for x'. In all three, each choice depends in the same way on what was seen.

H and Q differ in the ε-private releases only. The likelihood ratio of each, given what was seen before it, is at most
e^ε_r, and on every path these multiply to dH/dQ <= e^Σε_r <= e^ε₁, for a filter of ε-privacy holds on every path
(Rogers et al. 2016). So H(A) <= e^ε₁ Q(A) for all A. P and H differ in the other releases only. The ε-private ones are
drawn for x in both, from distributions that depend only on what was seen, so they count as the adversary's own random
choices. Against every adversary, random choices included, √Σμ_r² <= μ keeps the others μ-private (as above). So
P(A) <= e^(ε - ε₁) H(A) + δ. Together, P(A) <= e^ε Q(A) + δ. ∎

*Why (1) does not admit a mixture by basic composition*, Σε_r + ε_G(√Σμ_r², δ) <= ε: that holds only for releases fixed
beforehand. Suppose an adversary stops asking for Gaussian releases when they happen to have revealed much, and spends
the rest on randomised response. It reaches 11 times δ in 150 rounds and 19 times in 10,000 (ε = 4, δ = 1e-5, by optimal
stopping).

**Rounding.** μ(ε) is rounded up. Sums of squares have a relative error of some 2^-52, far less than the margins of
`mu_of` and `epsilon_of`. Decimals that add up to ε may exceed it as floats (0.1 + 0.2 > 0.3), so (1) tolerates that:
strictly, the promise is (ε (1 + 2^-49), δ).
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
    """

    gaussian: float = 0.0
    pure: float = 0.0
    converted: float = 0.0

    @classmethod
    def of_mu(cls, mu: float) -> PrivacyCost:
        """The cost of one Gaussian release; infinite if μ is too large for any round."""
        return cls(gaussian=mu**2 if mu < _SQUARE_MAX else math.inf)

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
        return PrivacyCost(self.gaussian + other.gaussian, pure, converted)

    def epsilon(self, delta: float, *, apart: bool = False) -> float:
        """Return the least known ε for which the releases together are (ε, δ)-private.

        It is infinite for a Gaussian release at δ = 0. It holds for releases fixed beforehand; use `within` for
        adaptively chosen ones. With `apart`, the ε-private ones have a part of ε of their own. Raises `UsageError` for
        a δ outside [0, 1).
        """
        if apart:
            return self.pure_epsilon + PrivacyCost(self.gaussian).epsilon(delta)
        if delta == 0:
            return math.inf if self.gaussian else self.pure_epsilon
        together = accounting.epsilon_of(self.mu, delta)
        return together if self.gaussian else min(self.pure_epsilon, together)

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
            rest = PrivacyCost(self.gaussian).within(epsilon - for_reports, delta)
            return rest and self.pure <= for_reports * (1 + _ROUNDING)
        if not self.gaussian and self.pure <= epsilon * (1 + _ROUNDING):
            return True
        return delta > 0 and self.mu <= accounting.mu_of(epsilon, delta)

    def left(self, epsilon: float, delta: float, for_reports: float = 0.0) -> float:
        """Return the ε at δ of the largest further Gaussian release that fits (see `within`); 0.0 if none does."""
        if for_reports:
            return PrivacyCost(self.gaussian).left(epsilon - for_reports, delta)
        return epsilon if self == PrivacyCost() else accounting.epsilon_of(self._rest(epsilon, delta), delta)

    def left_pure(self, epsilon: float, delta: float, for_reports: float = 0.0) -> float:
        """Return the ε of the largest further ε-private release that fits (see `within`); 0.0 if none does."""
        if for_reports:
            return max(_decimal(for_reports - self.pure), 0.0)
        converted = accounting.pure_of_mu(self._rest(epsilon, delta))
        return converted if self.gaussian else max(_decimal(epsilon - self.pure), converted)

    def _rest(self, epsilon: float, delta: float) -> float:
        """Return the μ that (2) leaves, or 0.0."""
        allowed, spent = accounting.mu_of(epsilon, delta), self.mu
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
    )
