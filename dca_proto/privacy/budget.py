"""What a job may cost each participant in all, and how it is divided among the job's rounds.

Gaussian rounds compose exactly in the Gaussian DP parameter: μ² adds up (Dong, Roth and Su 2022, corollary 3.3). So a
job's budget is divided by shares of μ², and each round is announced with its μ, quoted as an ε at the job's own δ.
Dividing ε and δ instead wastes: at ε = 1, δ = 1e-4, a second round with 90 % of μ² has σ = 3.36 Δ; with 70 % of ε and
of δ, by the classical rule, as the DCA paper's experiments have it, it has 6.32 Δ.

A job of rounds of ε-private reports divides ε: its shares are of ε, and its δ pays for nothing (`price`). A job that
mixes both kinds costs more than its shares say, and is checked against (ε, δ) as a whole, round by round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.rounding import at_least

_ROUNDING = 1 - 2.0**-40  # each round stays this much below its share, so that floats never add up to too much
_SUM_ERROR = 1e-9  # what shares that were written down in decimals may exceed 1 by; far below what _ROUNDING keeps back


class RoundCost(msgspec.Struct, frozen=True):
    """What one round costs: μ, which is charged, and the (ε, δ) that it is quoted at; of ε-private reports δ is 0."""

    mu: float
    epsilon: float
    delta: float


def quoted(mu: float, delta: float) -> float:
    """The ε at δ by which a μ is announced: the least found for which ``mu <= mu_of(ε, δ)`` holds as floats."""
    epsilon = accounting.epsilon_of(mu, delta)
    while epsilon and mu > accounting.mu_of(epsilon, delta):
        epsilon *= 1 + 1e-12
    return epsilon


class Budget(msgspec.Struct, frozen=True):
    """The privacy budget (ε, δ) of a job, or of one of its rounds."""

    epsilon: float
    delta: float

    @property
    def mu(self) -> float:
        """The Gaussian DP parameter that this allows. Raises `UsageError` for values out of range."""
        return accounting.mu_of(self.epsilon, self.delta)

    @property
    def price(self) -> PrivacyCost:
        """What Gaussian rounds cost if they use the whole budget. Raises `UsageError` for values out of range."""
        return PrivacyCost.of_mu(self.mu)

    def share(self, part: float) -> RoundCost:
        """What a Gaussian round costs that gets `part` of μ²; the budget's own (ε, δ) for a part of 1.

        Its μ is what is announced and charged. ε is only how that is quoted at the budget's δ. Raises `UsageError`: the
        part is outside (0, 1], or so small that δ alone would pay for it (an announcement states an ε above 0).
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
        """What a round of ε-private reports costs that gets `part` of ε; the budget's own for a part of 1.

        Raises `UsageError` for a part outside (0, 1].
        """
        _check_share(part)
        epsilon = self.epsilon if part >= 1 else self.epsilon * part * _ROUNDING
        return RoundCost(accounting.mu_of_pure(epsilon), epsilon, 0.0)

    def covers(self, price: PrivacyCost) -> bool:
        """Whether rounds of that total price fit into the budget, up to rounding of their shares.

        Rounds that are ε-private alone spend no δ: their ε have to add up to no more than the budget's, whatever its δ.
        """
        return price.within(self.epsilon * (1 + _SUM_ERROR), 0.0 if price.is_pure else self.delta)

    def split(self, shares: Sequence[float]) -> tuple[RoundCost, ...]:
        """What each round costs, given their shares of μ²; together they cost no more than this budget.

        Raises `UsageError`: no shares, one out of range (1 beside others, too), or a sum above 1.
        """
        total = math.fsum(shares)
        if not shares or not total <= 1 + _SUM_ERROR:
            raise UsageError(f"{len(shares)} shares of the budget add up to {total:g}, expected at most 1 in all")
        if len(shares) > 1 and max(shares) >= 1:
            raise UsageError("a round's share of the budget is 1, which leaves nothing to the others; lower it")
        return tuple(self.share(share) for share in shares)


def _check_share(share: float) -> None:
    if not 0 < share <= 1 + _SUM_ERROR:
        raise UsageError(f"a round's share of the budget is {share:g}, expected above 0 and at most 1")


def best_shares(errors: Iterable[float]) -> tuple[float, ...]:
    """The split of μ² that minimises the total error Σ_r e_r / s_r over shares s_r > 0 with Σ s_r = 1: s_r ∝ √e_r.

    A round with share s has noise of variance Δ²/(s μ²) on each of d coordinates, so a job whose round r matters with
    weight w_r has e_r = w_r Δ_r² d_r, and its total weighted noise variance is Σ_r e_r / s_r over μ².

    Proof: by Cauchy and Schwarz, (Σ √e_r)² = (Σ √(e_r/s_r) √s_r)² <= (Σ e_r/s_r) (Σ s_r) = Σ e_r/s_r, with equality
    just where √(e_r/s_r) is proportional to √s_r, that is where s_r is proportional to √e_r.

    Raises `UsageError` for no rounds, or an error e_r that is not above 0 and finite.
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
