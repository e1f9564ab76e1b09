"""The three kinds of rounds, one type each, and the numbers of a round that follow from its announcement.

| kind | noise | receiver of the clients' messages | protected data |
| --- | --- | --- | --- |
| `SecureSum` | each client adds a share | Compute nodes, masked | all data of one client |
| `NodeRelease` | each data node adds all of it | the trainer | one row |
| `LdpReport` | each client adds all of it | the trainer | all data of one client |

A kind defines its terms on the wire, its consent rule and its noise (DESIGN §4, §5). A job requests a kind by a type of
`RoundRequest` (`aggregate`), which names no participants. The trainer's command names them (`AskSecureSum` and others
in `trainer.request`). Every participant computes all numbers for itself (`validate_announcement`).

Theorem 1 of the DCA paper: each client adds noise of variance σ_std² / (N - T - 1). A sum is released only if it holds
at least n_min = N - T + c contributions. So at least n_min - 1 - c noises are unknown to a curious client with c
colluders. If each data node or client releases by itself, its own noise must suffice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS, PURE_MECHANISMS, Mechanism
from dca_proto.privacy.rounding import at_least
from dca_proto.protocol.params import Limits
from dca_proto.protocol.wire.fields import COMPUTES_MAX, Count, Signed, Wire
from dca_proto.statistics import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW, Sensitivity, Statistic, resolve
from dca_proto.statistics.contribution import client_sensitivity, row_sensitivity

if TYPE_CHECKING:  # `messages` and `policy` import this module
    from dca_proto.privacy.local import LocalMechanism
    from dca_proto.protocol.policy import Policy, Refusal
    from dca_proto.protocol.wire.messages import Announcement


class _Kind(Wire, frozen=True, array_like=True):
    """The base of the kinds.

    Attributes:
        is_summed: True if Compute nodes add up the clients' messages.
        relation: the neighbouring relation under which the noise protects.
    """

    is_summed: ClassVar[bool] = False
    relation: ClassVar[str] = REPLACE_ONE_CLIENT

    @property
    def fewest(self) -> int:
        """n_min of a secure sum, otherwise 0."""
        return 0

    @property
    def colluders(self) -> int:
        """c of a secure sum, otherwise 0."""
        return 0

    @property
    def computes(self) -> tuple[Signed, ...]:
        """The Compute nodes' signed epoch keys of a secure sum, otherwise none."""
        return ()

    @property
    def honest(self) -> int:
        """The number of noises that a coalition does not know, at least; together they must suffice."""
        return 1

    def cost(self, asked: Announcement) -> PrivacyCost:
        """Return the round's cost to each participant. Raises `UsageError` if μ exceeds what (ε, δ) allow."""
        accounting.check_mu(asked.mu, asked.epsilon, asked.delta)
        return PrivacyCost.of_mu(asked.mu)

    def sensitivity(self, statistic: Statistic, rows_max: int, fraction_bits: int) -> Sensitivity:
        """Return how far the protected data can move a contribution, in grid units. Raises `UsageError`."""
        return client_sensitivity(statistic, rows_max, fraction_bits)

    def noise(
        self, asked: Announcement, statistic: Statistic, sensitivity: Sensitivity, mechanism: Mechanism
    ) -> tuple[int, LocalMechanism | None]:
        """Return S, the variance of one client's noise in squared grid units, and an LDP report's mechanism or None.

        Raises `UsageError` if no variance fits these terms, or if the largest sum does not fit in the ring.
        """
        if asked.mechanism != mechanism.name:
            raise UsageError(f"mechanism {asked.mechanism!r} is not offered here; use {mechanism.name!r}")
        most = self.contributions_max()
        variance = mechanism.share_variance(sensitivity.l2, asked.mu, self.honest, statistic.dimension)
        accounting.check_ring(sensitivity.bound, most, variance, statistic.dimension)
        return variance, None

    def contributions_max(self) -> int:
        """Return the largest number of contributions in a sum. Raises `UsageError` if the terms are inconsistent."""
        return 1

    def refusals(self, policy: Policy, missing: frozenset[str]) -> Iterator[Refusal]:
        """Yield a client policy's refusals of this kind's terms. `missing`: trusted Compute nodes that are left out."""
        yield from ()


class SecureSum(_Kind, frozen=True, array_like=True, tag=1):
    """§4: a sum over Compute nodes.

    `fewest` is n_min, `most` is n_max, `colluders` is c. `computes` are the nodes' signed epoch keys.
    """

    is_summed: ClassVar[bool] = True
    fewest: Count
    most: Count
    colluders: Count
    computes: Annotated[tuple[Signed, ...], Meta(max_length=COMPUTES_MAX)]

    @property
    def honest(self) -> int:
        """n_min - 1 - c."""
        return self.fewest - 1 - self.colluders

    def contributions_max(self) -> int:
        if not 2 <= len(self.computes) <= COMPUTES_MAX:
            raise UsageError(f"M = {len(self.computes)} Compute nodes; use 2 to {COMPUTES_MAX}")
        if self.honest < 1:
            raise UsageError(
                f"n_min - 1 - c = {self.fewest} - 1 - {self.colluders} is below 1: no honest noise would be left; "
                "ask for more clients, or tolerate fewer"
            )
        if self.most < self.fewest:
            raise UsageError(f"n_max = {self.most} is below n_min = {self.fewest}; raise n_max")
        return self.most

    def refusals(self, policy: Policy, missing: frozenset[str]) -> Iterator[Refusal]:
        yield from policy.refusals_of_sum(self, missing)


class NodeRelease(_Kind, frozen=True, array_like=True, tag=2):
    """§5.1: a release by each data node."""

    relation: ClassVar[str] = REPLACE_ONE_ROW

    def sensitivity(self, statistic: Statistic, rows_max: int, fraction_bits: int) -> Sensitivity:
        return row_sensitivity(statistic, rows_max, fraction_bits)

    def refusals(self, policy: Policy, missing: frozenset[str]) -> Iterator[Refusal]:
        yield from policy.refusals_of_node_release()


class LdpReport(_Kind, frozen=True, array_like=True, tag=3):
    """§5.2: a report by each client, by the announcement's mechanism."""

    def cost(self, asked: Announcement) -> PrivacyCost:
        if asked.mechanism not in PURE_MECHANISMS:
            return super().cost(asked)
        cost = PrivacyCost.of_pure(asked.epsilon)
        if asked.delta != 0 or asked.mu != cost.mu:
            raise UsageError(
                f"mechanism {asked.mechanism!r} is private by epsilon alone: found delta {at_least(asked.delta)} and "
                f"mu {asked.mu!r}, expected delta 0 and mu {cost.mu!r}"
            )
        return cost

    def noise(
        self, asked: Announcement, statistic: Statistic, sensitivity: Sensitivity, mechanism: Mechanism
    ) -> tuple[int, LocalMechanism | None]:
        from dca_proto.privacy.local import mechanism_of  # late: devices that only take part in sums start faster

        if asked.mechanism not in LOCAL_MECHANISMS:
            known = ", ".join(LOCAL_MECHANISMS)
            raise UsageError(f"mechanism {asked.mechanism!r} makes no reports; use one of {known}")
        cost = (asked.epsilon, asked.delta, asked.mu)
        report = mechanism_of(asked.mechanism, statistic, sensitivity, asked.rows_max, *cost)
        unit = math.ldexp(1.0, -asked.fraction_bits)
        return math.ceil(report.variance_in_sum(unit) / unit**2), report


Terms = SecureSum | NodeRelease | LdpReport


class ValidatedRound(msgspec.Struct, frozen=True):
    """The numbers of a valid announcement.

    Attributes:
        terms: the kind of the round, with its terms.
        statistic: the named statistic.
        sensitivity: how far the protected data can move a contribution, in grid units.
        cost: the round's cost to each participant.
        noise_variance: S, the variance of one client's noise (of a report: of its noise in the sum), in squared grid
            units.
        unit: 2^-f, the size of a grid unit in the statistic's units.
        report: the mechanism of each client's LDP report; None for the other kinds.
    """

    terms: Terms
    statistic: Statistic
    sensitivity: Sensitivity
    cost: PrivacyCost
    noise_variance: int
    unit: float
    report: LocalMechanism | None = None

    @property
    def dimension(self) -> int:
        """d, the number of the statistic's coordinates."""
        return self.statistic.dimension

    @property
    def honest(self) -> int:
        """The number of noises that a coalition does not know, at least: n_min - 1 - c in a secure sum, otherwise 1."""
        return self.terms.honest

    @property
    def mu(self) -> float:
        """The Gaussian DP parameter that is charged; of a report at delta 0, the smallest that its ε implies."""
        return self.cost.mu

    @property
    def sensitivity_l2(self) -> float:
        """Δ, the L2 sensitivity in the statistic's units."""
        return self.sensitivity.l2 * self.unit

    @property
    def noise_std(self) -> float:
        """Standard deviation of one client's noise, in the statistic's units."""
        return math.sqrt(self.noise_variance) * self.unit


def validate_announcement(announcement: Announcement, mechanism: Mechanism, limits: Limits) -> ValidatedRound:
    """Check an announcement's numbers, and compute all numbers that follow from them.

    `mechanism` is the one that the actor offers for sums and for data nodes' releases. Raises `UsageError`, which names
    the wrong number.
    """
    statistic = resolve(announcement.statistic, announcement.parameters)
    if statistic.dimension > limits.dimension_max:
        raise UsageError(f"dimension {statistic.dimension} exceeds {limits.dimension_max}; ask for fewer columns")
    terms = announcement.terms
    sensitivity = terms.sensitivity(statistic, announcement.rows_max, announcement.fraction_bits)
    unit = math.ldexp(1.0, -announcement.fraction_bits)
    sensitivity.require(terms.relation)
    cost = terms.cost(announcement)
    variance, report = terms.noise(announcement, statistic, sensitivity, mechanism)
    return ValidatedRound(terms, statistic, sensitivity, cost, variance, unit, report)
