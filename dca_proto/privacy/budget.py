"""A job's privacy budget per participant, and its division among the job's rounds.

Gaussian rounds compose exactly in the Gaussian DP parameter: μ² adds up (Dong, Roth and Su 2022, corollary 3.3). So a
job's budget is divided by shares of μ², and each round is announced with its μ, quoted as an ε at the job's own δ.
Dividing ε and δ instead wastes budget: at ε = 1, δ = 1e-4, a second round with 90 % of μ² has σ = 3.36 Δ. With 70 % of
ε and of δ and the classical rule, as in the DCA paper's experiments, it has 6.32 Δ.

A job of rounds of ε-private reports divides ε: its shares are of ε, and its δ is not spent. A job that mixes both kinds
costs more than its shares add up to; it is checked against (ε, δ) as a whole, round by round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.rounding import at_least

_ROUNDING = 1 - 2.0**-40  # each round stays this much below its share, so that float sums never exceed the budget
_SUM_ERROR = 1e-9  # tolerance for shares written as decimals that add up to more than 1


class RoundCost(msgspec.Struct, frozen=True):
    """The cost of one round: μ, which is charged, and the (ε, δ) that quotes it; δ is 0 for ε-private reports."""

    mu: float
    epsilon: float
    delta: float


def quoted(mu: float, delta: float) -> float:
    """Return the ε at δ that announces a μ: the least one found with ``mu <= mu_of(ε, δ)`` in floats."""
    epsilon = accounting.epsilon_of(mu, delta)
    while epsilon and mu > accounting.mu_of(epsilon, delta):
        epsilon *= 1 + 1e-12
    return epsilon


class Budget(msgspec.Struct, frozen=True):
    """The privacy budget (ε, δ) of a job, or of one of its rounds; `slack` is that of its verified sums together."""

    epsilon: float
    delta: float
    slack: float = 0.0

    @property
    def mu(self) -> float:
        """The Gaussian DP parameter that this budget allows. Raises `UsageError` for values out of range."""
        return accounting.mu_of(self.epsilon, self.delta, self.slack)

    @property
    def cost(self) -> PrivacyCost:
        """The cost of Gaussian rounds that use the whole budget. Raises `UsageError` for values out of range."""
        return PrivacyCost.of_mu(self.mu, self.slack)

    def share(self, part: float) -> RoundCost:
        """Return the cost of a Gaussian round that gets `part` of μ²; the budget's own (ε, δ) for a part of 1.

        Its μ is announced and charged; its ε only quotes that μ at the budget's δ. Raises `UsageError` if the part is
        outside (0, 1], or so small that ε would be 0 (an announcement states an ε above 0).
        """
        _check_share(part)
        if part >= 1:
            return RoundCost(self.mu, self.epsilon, self.delta)
        mu = self.mu * math.sqrt(part) * _ROUNDING
        epsilon = quoted(mu, self.delta)
        if epsilon == 0:
            least = (accounting.mu_of(1e-6, self.delta) / self.mu) ** 2
            raise UsageError(
                f"a share of {part:g} of epsilon {at_least(self.epsilon)} needs no epsilon at delta "
                f"{at_least(self.delta)}; give the round a share above {1.01 * least:.3g}, or lower delta"
            )
        return RoundCost(mu, epsilon, self.delta)

    def pure_share(self, part: float) -> RoundCost:
        """Return the cost of a round of ε-private reports that gets `part` of ε; the budget's own for a part of 1.

        Raises `UsageError` for a part outside (0, 1].
        """
        _check_share(part)
        epsilon = self.epsilon if part >= 1 else self.epsilon * part * _ROUNDING
        return RoundCost(accounting.mu_of_pure(epsilon), epsilon, 0.0)

    def repeated(self, part: float, times: int, *, pure: bool = False, alone: bool = True) -> RoundCost:
        """Return the cost of each of `times` equal rounds that together get `part` of μ².

        ε-private rounds (`pure`) may have the larger of two ε, each of which suffices (`privacy.cost`): what their μ(ε)
        allows, and, if the budget has no other rounds (`alone`), an equal part of ε. Raises `UsageError` as `share`.
        """
        if times < 1:
            raise UsageError(f"a budget for {times} rounds, expected at least 1")
        if not pure:
            return self.share(part / times)
        _check_share(part)
        epsilon = self.epsilon * part / times if alone else 0.0
        if self.delta:
            epsilon = max(epsilon, accounting.pure_of_mu(self.mu * math.sqrt(part / times)))
        if times * part != 1 or not alone:
            epsilon *= _ROUNDING
        return RoundCost(accounting.mu_of_pure(epsilon), epsilon, 0.0)

    def repeated_all(self, parts: Sequence[float], times: Sequence[int], pure: Sequence[bool]) -> list[RoundCost]:
        """Return the cost of a round of each of several series, which have `parts` of the budget together.

        All series count by one rule of `privacy.cost`: if some used their part of ε and others their part of μ², both
        rules would fail. Series of ε-private rounds alone use the rule that gives all rounds more ε together. Raises
        `UsageError` as `repeated`.
        """
        each = list(zip(parts, times, pure, strict=True))
        if len(each) == 1:
            return [self.repeated(part, number, pure=is_pure) for part, number, is_pure in each]
        by_sum = [self.pure_share(part / number) for part, number, _ in each] if all(pure) else []
        if by_sum and not self.delta:
            return by_sum
        by_mu = [self.repeated(part, number, pure=is_pure, alone=False) for part, number, is_pure in each]
        if by_sum and sum(n * one.epsilon for n, one in zip(times, by_mu, strict=True)) < sum(parts) * self.epsilon:
            return by_sum
        return by_mu

    def covers(self, cost: PrivacyCost) -> bool:
        """Return True if rounds of that total cost fit into the budget, up to rounding of their shares.

        If all rounds are ε-private, they spend no δ: the sum of their ε must not exceed the budget's, whatever its δ.
        """
        return cost.within(self.epsilon * (1 + _SUM_ERROR), 0.0 if cost.is_pure else self.delta)

    def split(self, shares: Sequence[float]) -> tuple[RoundCost, ...]:
        """Return each round's cost, given the rounds' shares of μ²; their total does not exceed this budget.

        Raises `UsageError` if there are no shares, one is out of range (1 beside others, too), or their sum exceeds 1.
        """
        check_shares(shares)
        if len(shares) > 1 and max(shares) >= 1:
            raise UsageError("a round's share of the budget is 1, which leaves nothing for the others; lower it")
        return tuple(self.share(share) for share in shares)


def _check_share(share: float) -> None:
    if not 0 < share <= 1 + _SUM_ERROR:
        raise UsageError(f"a round's share of the budget is {share:g}, expected above 0 and at most 1")


def check_shares(shares: Sequence[float]) -> None:
    """Raise `UsageError` if there are no shares, or their sum exceeds 1."""
    total = math.fsum(shares)
    if not shares or not total <= 1 + _SUM_ERROR:
        raise UsageError(f"{len(shares)} shares of the budget add up to {total:g}, expected at most 1 in all")


def best_shares(errors: Iterable[float]) -> tuple[float, ...]:
    """Return the split of μ² that minimises the total error Σ_r e_r / s_r over s_r > 0 with Σ s_r = 1: s_r ∝ √e_r.

    A round with share s has noise of variance Δ²/(s μ²) on each of d coordinates, so a job whose round r matters with
    weight w_r has e_r = w_r Δ_r² d_r, and its total weighted noise variance is Σ_r e_r / s_r over μ².

    Proof: by Cauchy and Schwarz, (Σ √e_r)² = (Σ √(e_r/s_r) √s_r)² <= (Σ e_r/s_r) (Σ s_r) = Σ e_r/s_r, with equality
    exactly if √(e_r/s_r) is proportional to √s_r, that is if s_r is proportional to √e_r.

    Raises `UsageError` if there are no rounds, or an error e_r is not above 0 and finite.
    """
    roots = []
    for error in errors:
        if not 0 < error < math.inf:
            raise UsageError(f"the error of a round is {error:g}, expected a finite number above 0")
        roots.append(math.sqrt(error))
    if not roots:
        raise UsageError("no rounds to divide a budget among; name at least one")
    total = math.fsum(roots)
    return tuple(root / total for root in roots)
