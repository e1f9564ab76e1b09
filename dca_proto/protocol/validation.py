"""The numbers of a round that follow from its announcement; every participant computes them for itself (DESIGN §4, §5).

Each kind has its branch in `check_terms`, `cost_of`, `sensitivity_of` and `noise_of`, which take plain numbers.

In a secure sum, the noises that a coalition does not know must suffice (docs/concepts/protocol.md). If each data node
or client releases by itself, its own noise must.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, assert_never

import msgspec

from dca_proto.crypto.bounded import Statement
from dca_proto.crypto.field import ELEMENT_BYTES
from dca_proto.crypto.masks import WORD_BYTES
from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS, PURE_MECHANISMS, Mechanism
from dca_proto.privacy.rounding import at_least
from dca_proto.protocol.params import MU_MIN, Limits
from dca_proto.protocol.terms import check_sum
from dca_proto.protocol.verified import (
    ROUNDING_VARIANCE,
    Work,
    check_statement,
    mechanism_name,
    noise_variance,
    slack_of,
    statement_of,
)
from dca_proto.protocol.wire.kinds import Kind, LdpReport, NodeRelease, SecureSum, VerifiedSum
from dca_proto.protocol.wire.messages import Announcement
from dca_proto.statistics import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW, Sensitivity, Statistic, resolve
from dca_proto.statistics.contribution import client_sensitivity, row_sensitivity
from dca_proto.statistics.statement import moved, proven_sensitivity

if TYPE_CHECKING:  # devices that only take part in sums start faster
    from dca_proto.privacy.local import LocalMechanism


class ValidatedRound(msgspec.Struct, frozen=True):
    """The numbers of a valid announcement.

    Attributes:
        kind: the kind of the round, with its terms.
        statistic: the named statistic.
        sensitivity: how far the protected data can move a contribution, in grid units.
        cost: the round's cost to each participant.
        noise_variance: S, the variance of one client's noise (of a report: of its noise in the sum), in squared grid
            units; of a verified sum, rounded up.
        unit: 2^-f, the size of a grid unit in the statistic's units.
        report: the mechanism of each client's LDP report; None for the other kinds.
        statement: what each client of a verified sum proves; None for the other kinds.
    """

    kind: Kind
    statistic: Statistic
    sensitivity: Sensitivity
    cost: PrivacyCost
    noise_variance: int
    unit: float
    report: LocalMechanism | None = None
    statement: Statement | None = None

    @property
    def dimension(self) -> int:
        """d, the number of the statistic's coordinates."""
        return self.statistic.dimension

    @property
    def vector_bytes(self) -> int:
        """Size of the masked vector in a contribution to a sum."""
        return WORD_BYTES * self.dimension if self.statement is None else ELEMENT_BYTES * self.statement.words

    @property
    def work(self) -> Work | None:
        """What the proofs of a verified sum ask of its members; None for the other kinds."""
        return None if self.statement is None else Work(self.statement.words, self.kind.clients)

    @property
    def honest(self) -> int:
        """The number of noises that a coalition does not know, at least: n_min - 1 - c in a secure sum, otherwise 1."""
        return self.kind.honest

    @property
    def local(self) -> LocalMechanism:
        """The mechanism of each client's LDP report, in a round of that kind."""
        assert self.report is not None, "the caller matched the kind"
        return self.report

    @property
    def mu(self) -> float:
        """The Gaussian DP parameter that is charged; of a report at delta 0, the smallest that its ε implies."""
        return self.cost.mu

    @property
    def sensitivity_l2(self) -> float:
        """Δ, the L2 sensitivity in the statistic's units."""
        return self.sensitivity.l2 * self.unit

    @property
    def client_variance(self) -> float:
        """The variance of one client's noise, in squared units of the statistic."""
        variance = self.noise_variance if self.statement is None else self.statement.noise_variance(1)
        return variance * self.unit**2

    @property
    def noise_std(self) -> float:
        """Standard deviation of one client's noise, in the statistic's units."""
        return math.sqrt(self.client_variance)

    def variance_of_sum(self, contributors: int) -> float:
        """Return the variance of the noise in a sum of so many contributions, in squared units of the statistic.

        That of a verified sum includes the most that rounding to its coarse grid adds.
        """
        rounding = 0.0 if self.statement is None else ROUNDING_VARIANCE * self.unit**2
        return contributors * (self.client_variance + rounding)


def validate_announcement(announcement: Announcement, mechanism: Mechanism, limits: Limits) -> ValidatedRound:
    """Check an announcement's numbers, and compute all numbers that follow from them.

    `mechanism` is the one that the actor offers for sums and for data nodes' releases. Raises `UsageError`, which names
    the wrong number.
    """
    statistic = resolve(announcement.statistic, announcement.parameters)
    if statistic.dimension > limits.dimension_max:
        raise UsageError(f"dimension {statistic.dimension} exceeds {limits.dimension_max}; ask for fewer columns")
    kind, rows_max, bits = announcement.kind, announcement.rows_max, announcement.fraction_bits
    privacy = (announcement.mu, announcement.epsilon, announcement.delta)
    check_terms(kind, len(announcement.epochs), mechanism)
    sensitivity = sensitivity_of(kind, statistic, rows_max, bits)
    cost = cost_of(kind, *privacy, statistic.dimension)
    unit, report, statement = math.ldexp(1.0, -bits), None, None
    if isinstance(kind, LdpReport):
        report = report_of(kind, statistic, sensitivity, rows_max, *privacy)
        variance = math.ceil(report.variance_in_sum(unit) / unit**2)
    elif isinstance(kind, VerifiedSum):
        statement = statement_of(kind, statistic, rows_max, bits)
        check_statement(statement, kind, limits)
        sensitivity, reach = proven_sensitivity(statistic, rows_max, bits), moved(statistic, rows_max, bits)
        variance = math.ceil(noise_variance(kind, statement, reach, announcement.mu, mechanism))
    else:
        variance = noise_of(kind, mechanism, sensitivity, announcement.mu, statistic.dimension)
    if cost.mu < MU_MIN:
        few = "a round that costs less has more noise than any federation averages out; ask for another epsilon"
        raise UsageError(f"mu is {cost.mu!r}, expected at least {MU_MIN!r}: {few}")
    return ValidatedRound(kind, statistic, sensitivity, cost, variance, unit, report, statement)


def check_terms(kind: Kind, computes: int, mechanism: Mechanism) -> None:
    """Check a kind's mechanism, and N, T, c and n_max of a secure sum. Raises `UsageError`.

    `computes` is M. `mechanism` is the one that the actor offers for sums and for data nodes' releases.
    """
    offered = mechanism_name(mechanism) if kind.is_verified else mechanism.name
    match kind:
        case SecureSum() | NodeRelease() if kind.mechanism != offered:
            raise UsageError(f"mechanism {kind.mechanism!r} is not offered here; use {offered!r}")
        case LdpReport() if kind.mechanism not in LOCAL_MECHANISMS:
            named = ", ".join(LOCAL_MECHANISMS)
            raise UsageError(f"mechanism {kind.mechanism!r} makes no reports; use one of {named}")
        case SecureSum():
            check_sum(kind, computes)
            if kind.n_max < kind.n_min:
                raise UsageError(f"n_max = {kind.n_max} is below n_min = {kind.n_min}; raise n_max")
        case NodeRelease() | LdpReport():
            if computes:
                raise UsageError(f"M = {computes} Compute nodes in a round of a kind that has none; name none")
        case _:
            assert_never(kind)


def relation_of(kind: Kind) -> str:
    """Return the neighbouring relation under which a kind's noise protects."""
    match kind:
        case NodeRelease():
            return REPLACE_ONE_ROW
        case SecureSum() | LdpReport():
            return REPLACE_ONE_CLIENT
        case _:
            assert_never(kind)


def sensitivity_of(kind: Kind, statistic: Statistic, rows_max: int, fraction_bits: int) -> Sensitivity:
    """Return how far the protected data can move a contribution, in grid units. Raises `UsageError`."""
    of_data = row_sensitivity if relation_of(kind) == REPLACE_ONE_ROW else client_sensitivity
    sensitivity = of_data(statistic, rows_max, fraction_bits)
    sensitivity.require(relation_of(kind))
    return sensitivity


def cost_of(kind: Kind, mu: float, epsilon: float, delta: float, dimension: int) -> PrivacyCost:
    """Return a round's cost to each participant. Raises `UsageError` if μ exceeds what (ε, δ) allow.

    `dimension` is d: each coordinate of a verified sum has its slack.
    """
    match kind:
        case LdpReport(mechanism=mechanism) if mechanism in PURE_MECHANISMS:
            cost = PrivacyCost.of_pure(epsilon)
            if delta != 0 or mu != cost.mu:
                raise UsageError(
                    f"mechanism {mechanism!r} is private by epsilon alone: found delta {at_least(delta)} and "
                    f"mu {mu!r}, expected delta 0 and mu {cost.mu!r}"
                )
            return cost
        case VerifiedSum():
            slack = slack_of(dimension)
            accounting.check_mu(mu, epsilon, delta, slack)
            return PrivacyCost.of_mu(mu, slack)
        case SecureSum() | NodeRelease() | LdpReport():
            accounting.check_mu(mu, epsilon, delta)
            return PrivacyCost.of_mu(mu)
        case _:
            assert_never(kind)


def noise_of(
    kind: SecureSum | NodeRelease, mechanism: Mechanism, sensitivity: Sensitivity, mu: float, dimension: int
) -> int:
    """Return S, the variance of one client's noise, in squared grid units.

    Raises `UsageError` if no variance fits these terms, or if the largest sum does not fit in the ring.
    """
    variance = mechanism.share_variance(sensitivity.l2, mu, kind.honest, dimension)
    most = kind.n_max if isinstance(kind, SecureSum) else 1
    accounting.check_ring(sensitivity.bound, most, variance, dimension)
    return variance


def report_of(
    kind: LdpReport,
    statistic: Statistic,
    sensitivity: Sensitivity,
    rows_max: int,
    mu: float,
    epsilon: float,
    delta: float,
) -> LocalMechanism:
    """Return the mechanism of each client's report. Raises `UsageError` for terms that it cannot have."""
    from dca_proto.privacy.local import mechanism_of  # late: devices that only take part in sums start faster

    return mechanism_of(kind.mechanism, statistic, sensitivity, rows_max, epsilon, delta, mu)
