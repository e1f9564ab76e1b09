"""What rounds cost together, as a ledger has it (`dca_proto.privacy.price`)."""

from __future__ import annotations

from collections.abc import Sequence

from dca_proto.aggregate import NoisyAggregate
from dca_proto.privacy.price import Price, total


def together(aggregates: Sequence[NoisyAggregate]) -> tuple[float, float] | None:
    """(ε, δ) of all these rounds for whoever took part in each of them, at the largest δ that a round had.

    None where one of them was not private, so that nothing can be claimed.
    """
    prices = [_price(one.mu, one.epsilon, one.delta) for one in aggregates]
    known = [price for price in prices if price is not None]
    if not known or len(known) < len(prices):
        return None
    delta = max(one.delta or 0.0 for one in aggregates)
    if len(known) == 1 and aggregates[0].epsilon is not None:
        return aggregates[0].epsilon, delta
    return total(known).epsilon(delta), delta


def _price(mu: float | None, epsilon: float | None, delta: float | None) -> Price | None:
    if mu is None or epsilon is None:
        return None
    return Price.of_mu(mu) if delta else Price.of_pure(epsilon)
