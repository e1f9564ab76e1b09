"""What rounds cost together: Gaussian rounds compose exactly in the Gaussian DP parameter (Dong, Roth and Su 2022).

μ² = Σ μ_r²,     δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)      (their corollaries 3.3 and 2.13)

Rounds of ε-private reports, whose δ is 0, add up in ε; beside Gaussian rounds each counts with the μ that it is within,
as in a ledger (`dca_proto.core.price`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, hypot

from dca_proto.aggregate import NoisyAggregate
from inference.errors import DataError


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε >= 0 at which a μ-Gaussian DP mechanism is (ε, δ)-DP.

    Raises:
        DataError: μ is not above 0, or δ not inside (0, 1).
    """
    from scipy.optimize import brentq

    if not (mu > 0 and 0 < delta < 1):
        raise DataError(f"mu is {mu:g} and delta {delta:g}; expected mu above 0 and delta between 0 and 1")
    if _delta(0.0, mu) <= delta:
        return 0.0
    above = mu * mu / 2 + mu * 40  # there Φ(μ/2 - ε/μ) is below any δ
    return float(brentq(lambda epsilon: _delta(epsilon, mu) - delta, 0.0, above, xtol=1e-12))


def _delta(epsilon: float, mu: float) -> float:
    from scipy.special import log_ndtr

    return exp(log_ndtr(mu / 2 - epsilon / mu)) - exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def together(aggregates: Sequence[NoisyAggregate]) -> tuple[float, float] | None:
    """(ε, δ) of all these rounds for whoever took part in each of them, at the largest δ that a round had.

    None where one of them was not private, so that nothing can be claimed.
    """
    mus = [one.mu for one in aggregates if one.mu is not None]
    if not aggregates or len(mus) < len(aggregates):
        return None
    delta = max(one.delta or 0.0 for one in aggregates)
    (only, *others) = aggregates
    if not others and only.epsilon is not None:
        return only.epsilon, delta
    return epsilon_of(hypot(*mus), delta) if delta else sum(one.epsilon or 0.0 for one in aggregates), delta
