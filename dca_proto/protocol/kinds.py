"""The three kinds of rounds, one type each, and all numbers of a round that follow from its announcement.

| kind | who adds which noise | who holds what is sent | what is protected |
| --- | --- | --- | --- |
| `SecureSum` | each client a share | Compute nodes, masked | all data of one client |
| `NodeRelease` | each data node all of it | the trainer | one row |
| `LdpReport` | each client all of it | the trainer | all data of one client |

A kind has its terms on the wire, its consent rule and its noise (DESIGN §4, §5). Actors ask the kind; nobody compares
flags. A job asks for a kind by a type of `RoundRequest` (`aggregate`), which does not name the participants. The
trainer's command names them (`trainer.request`: `AskSecureSum` and its like). Every participant computes all
numbers for itself (`validate_announcement`).

Theorem 1 of the DCA paper: each client adds noise of variance σ_std² / (N - T - 1). A sum is released only if it holds
at least n_min = N - T + c contributions: n_min - 1 - c noises stay unknown to a curious client with c colluders.
Where each data node or client releases by itself, its own noise is the only one, and has to suffice.
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

if TYPE_CHECKING:  # the announcement holds a kind, and the policy asks it
    from dca_proto.privacy.local import LocalMechanism
    from dca_proto.protocol.policy import Policy, Refusal
    from dca_proto.protocol.wire.messages import Announcement


class _Kind(Wire, frozen=True, array_like=True):
    """What kinds have in common.

    Attributes:
        is_summed: whether Compute nodes hold what clients send. relation: whose data's replacement the noise hides.
    """

    is_summed: ClassVar[bool] = False
    relation: ClassVar[str] = REPLACE_ONE_CLIENT

    @property
    def honest(self) -> int:
        """How many clients' noises must suffice, at least."""
        return 1

    def price(self, asked: Announcement) -> PrivacyCost:
        """What the round costs each participant: its μ. Raises `UsageError` if μ exceeds what (ε, δ) allow."""
        accounting.check_mu(asked.mu, asked.epsilon, asked.delta)
        return PrivacyCost.of_mu(asked.mu)

    def sensitivity(self, statistic: Statistic, rows_max: int, fraction_bits: int) -> Sensitivity:
        """How far the protected data can move a contribution, in grid units. Raises `UsageError`."""
        return client_sensitivity(statistic, rows_max, fraction_bits)

    def noise(
        self, asked: Announcement, statistic: Statistic, sensitivity: Sensitivity, mechanism: Mechanism
    ) -> tuple[int, LocalMechanism | None]:
        """S, the variance of one client's noise, in squared grid units; and the mechanism of an LDP report, or None.

        Raises `UsageError` if no variance fits these terms, or if the largest sum does not fit in the ring.
        """
        if asked.mechanism != mechanism.name:
            raise UsageError(f"mechanism {asked.mechanism!r} is not offered here; use {mechanism.name!r}")
        most = self.contributions_max()
        variance = mechanism.share_variance(sensitivity.l2, asked.mu, self.honest, statistic.dimension)
        accounting.check_ring(sensitivity.bound, most, variance, statistic.dimension)
        return variance, None

    def contributions_max(self) -> int:
        """How many contributions are added up at most. Raises `UsageError` if the terms contradict each other."""
        return 1

    def refusals(self, policy: Policy, missing: frozenset[str]) -> Iterator[Refusal]:
        """What a client's policy has against this kind's own terms; `missing` names trusted Compute nodes left out."""
        yield from ()


class SecureSum(_Kind, frozen=True, array_like=True, tag=1):
    """§4: a sum over Compute nodes.

    `fewest` is n_min, `most` is n_max, `colluders` is c; `computes` are the nodes' signed epoch keys.
    """

    is_summed: ClassVar[bool] = True
    fewest: Count
    most: Count
    colluders: Count
    computes: Annotated[tuple[Signed, ...], Meta(max_length=COMPUTES_MAX)]

    @property
    def honest(self) -> int:
        """n_min - 1 - c: how many noises nobody knows, at least."""
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
    """§5.1: each data node releases by itself."""

    relation: ClassVar[str] = REPLACE_ONE_ROW

    def sensitivity(self, statistic: Statistic, rows_max: int, fraction_bits: int) -> Sensitivity:
        return row_sensitivity(statistic, rows_max, fraction_bits)

    def refusals(self, policy: Policy, missing: frozenset[str]) -> Iterator[Refusal]:
        yield from policy.refusals_of_node_release()


class LdpReport(_Kind, frozen=True, array_like=True, tag=3):
    """§5.2: each client reports by itself, by the announcement's mechanism."""

    def price(self, asked: Announcement) -> PrivacyCost:
        if asked.mechanism not in PURE_MECHANISMS:
            return super().price(asked)
        price = PrivacyCost.of_pure(asked.epsilon)
        if asked.delta != 0 or asked.mu != price.mu:
            raise UsageError(
                f"mechanism {asked.mechanism!r} is private by epsilon alone: found delta {at_least(asked.delta)} and "
                f"mu {asked.mu!r}, expected delta 0 and mu {price.mu!r}"
            )
        return price

    def noise(
        self, asked: Announcement, statistic: Statistic, sensitivity: Sensitivity, mechanism: Mechanism
    ) -> tuple[int, LocalMechanism | None]:
        from dca_proto.privacy.local import mechanism_of  # devices that only take part in sums start faster without it

        if asked.mechanism not in LOCAL_MECHANISMS:
            known = ", ".join(LOCAL_MECHANISMS)
            raise UsageError(f"mechanism {asked.mechanism!r} makes no reports; use one of {known}")
        cost = (asked.epsilon, asked.delta, asked.mu)
        report = mechanism_of(asked.mechanism, statistic, sensitivity, asked.rows_max, *cost)
        unit = math.ldexp(1.0, -asked.fraction_bits)
        return math.ceil(report.variance_in_sum(unit) / unit**2), report


Terms = SecureSum | NodeRelease | LdpReport


class ValidatedRound(msgspec.Struct, frozen=True):
    """What a valid announcement asks.

    Attributes:
        terms: the kind of the round, with its own terms.
        statistic: the named statistic.
        sensitivity: how far the protected data can move a contribution, in grid units.
        price: what the round costs whoever takes part.
        noise_variance: S, of one client's noise, in squared grid units. For a report: of its noise in the sum.
        unit: 2^-f, the size of a grid unit in the statistic's units.
        report: the mechanism by which each client makes its LDP report; None for the other kinds.
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
        """d, how many coordinates the statistic has."""
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

    `mechanism` is the one that the actor offers for sums and for data nodes' releases. Raises `UsageError` that names
    the number that is wrong.
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
