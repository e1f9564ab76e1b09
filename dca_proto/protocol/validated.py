"""All numbers of a round that follow from its announcement: every participant computes them for itself.

Theorem 1 of the DCA paper: each client adds noise of variance σ_std² / (N - T - 1). A sum is released only if it holds
at least n_min = N - T + c contributions: n_min - 1 - c noises stay unknown to a curious client with c colluders.
Where each data node or client releases by itself, its own noise is the only one, and has to suffice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from dca_proto.errors import UsageError
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import LocalMechanism, Mechanism
from dca_proto.protocol.kinds import Terms
from dca_proto.protocol.params import Limits
from dca_proto.statistics import Sensitivity, Statistic, resolve

if TYPE_CHECKING:
    from dca_proto.protocol.wire.messages import Announcement


class ValidatedRound(msgspec.Struct, frozen=True):
    """What a valid announcement asks.

    Attributes:
        terms: the kind of the round, with its own terms.
        statistic: the named statistic.
        sensitivity: of what is protected, in grid units.
        price: what the round costs whoever takes part.
        noise_variance: S, of one client's noise, in squared grid units; of a report that of its noise in the sum.
        unit: 2^-f, the size of a grid unit in the statistic's units.
        report: of an LDP report, the mechanism by which each client reports; None of any other.
    """

    terms: Terms
    statistic: Statistic
    sensitivity: Sensitivity
    price: PrivacyCost
    noise_variance: int
    unit: float
    report: LocalMechanism | None = None

    @property
    def dimension(self) -> int:
        """d."""
        return self.statistic.dimension

    @property
    def honest(self) -> int:
        """How many clients' noises must suffice, at least: n_min - 1 - c of a secure sum, otherwise 1."""
        return self.terms.honest

    @property
    def mu(self) -> float:
        """The Gaussian DP parameter that is charged; of a report at delta 0 the one that it is within."""
        return self.price.mu

    @property
    def sensitivity_l2(self) -> float:
        """Δ, L2, in the statistic's units."""
        return self.sensitivity.l2 * self.unit

    @property
    def noise_std(self) -> float:
        """Standard deviation of one client's noise, in the statistic's units."""
        return math.sqrt(self.noise_variance) * self.unit


def validate_announcement(announcement: Announcement, mechanism: Mechanism, limits: Limits) -> ValidatedRound:
    """Check an announcement's own numbers, and work out what follows from them.

    Args:
        mechanism: that the actor offers for sums and data nodes' releases.

    Raises:
        UsageError: naming the number that is wrong.
    """
    statistic = resolve(announcement.statistic, announcement.parameters)
    if statistic.dimension > limits.dimension_max:
        raise UsageError(f"dimension {statistic.dimension} exceeds {limits.dimension_max}; ask for fewer columns")
    terms = announcement.terms
    sensitivity = terms.sensitivity(statistic, announcement.rows_max, announcement.fraction_bits)
    unit = math.ldexp(1.0, -announcement.fraction_bits)
    sensitivity.require(terms.relation)
    price = terms.price(announcement)
    variance, report = terms.noise(announcement, statistic, sensitivity, mechanism)
    return ValidatedRound(terms, statistic, sensitivity, price, variance, unit, report)
