"""All numbers of a round that follow from its announcement and N: every participant computes them for itself.

Theorem 1 of the DCA paper: each client adds noise of variance σ_std² / (N - T - 1); the sum is released only if at
least N - T + c contributions are in it, so that N - T - 1 noises remain unknown to a curious client with c colluders.

In a local round each data node (DESIGN §4.8) or client (§4.9) releases by itself: its own noise is the only one, and
has to suffice, for one of its rows or for all of its data.
"""

from __future__ import annotations

import math

import msgspec

from dca_proto.core import accounting
from dca_proto.core.errors import UsageError
from dca_proto.core.mechanism import LOCAL_MECHANISMS, LocalMechanism, Mechanism
from dca_proto.core.messages import Announcement
from dca_proto.core.params import Limits
from dca_proto.core.price import Price
from dca_proto.core.shares import ENCODINGS, LOCAL
from dca_proto.statistics import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW, Sensitivity, Statistic, resolve
from dca_proto.statistics.contribution import client_sensitivity, row_sensitivity


class Question(msgspec.Struct, frozen=True):
    """What a valid announcement asks, before N is known.

    Attributes:
        statistic: the named statistic. dimension: d.
        sensitivity: of one client's contribution, in grid units; of a data node's, of one row of it.
        price: what (epsilon, delta) cost whoever takes part.
        report: of a report round, the mechanism by which each client reports; None of any other.
    """

    statistic: Statistic
    dimension: int
    sensitivity: Sensitivity
    price: Price
    report: LocalMechanism | None = None

    @property
    def mu(self) -> float:
        """The Gaussian DP parameter that (epsilon, delta) allow; where delta is 0, the one that the round is within."""
        return self.price.mu


class Plan(msgspec.Struct, frozen=True):
    """A round's numbers, once N is known; of a local round, those of each release or report.

    Attributes:
        question: what is asked.
        clients, tolerated, colluders: N, T and c; of a release 1, 0 and 0.
        honest: N - T - 1, the number of noises that must suffice; of a release 1, its own.
        share_variance: S, the variance of one client's noise share in squared grid units; of a report that of its noise
            in the sum, rounded up.
        unit: 2^-f, the size of a grid unit in the statistic's units.
    """

    question: Question
    clients: int
    tolerated: int
    colluders: int
    honest: int
    share_variance: int
    unit: float

    @property
    def dimension(self) -> int:
        return self.question.dimension

    @property
    def needed(self) -> int:
        """N - T + c: a sum of fewer contributions is never released."""
        return self.clients - self.tolerated + self.colluders

    @property
    def sensitivity(self) -> float:
        """Δ, L2, in the statistic's units."""
        return self.question.sensitivity.l2 * self.unit

    @property
    def sigma_local(self) -> float:
        """Standard deviation of one client's noise share, in the statistic's units."""
        return math.sqrt(self.share_variance) * self.unit


def ask(announcement: Announcement, mechanism: Mechanism, limits: Limits) -> Question:
    """Check an announcement's own numbers. Raises `UsageError` that names the wrong one."""
    reports = announcement.local and announcement.mechanism in LOCAL_MECHANISMS
    if not reports and announcement.mechanism != mechanism.name:
        raise UsageError(_not_offered(announcement, mechanism))
    if announcement.local:
        _check_alone(announcement)
    else:
        _check_together(announcement, limits)
    statistic = resolve(announcement.statistic, announcement.parameters)
    if statistic.dimension > limits.dimension_max:
        raise UsageError(f"dimension {statistic.dimension} exceeds {limits.dimension_max}; ask for fewer columns")
    of_row = announcement.local and not reports
    sensitivity_of = row_sensitivity if of_row else client_sensitivity
    sensitivity = sensitivity_of(statistic, announcement.rows_max, announcement.fraction_bits)
    sensitivity.require(REPLACE_ONE_ROW if of_row else REPLACE_ONE_CLIENT)
    report = _report(announcement, statistic, sensitivity) if reports else None
    is_pure = report is not None and report.delta == 0
    price = Price.of_pure(announcement.epsilon) if is_pure else Price.of_mu(_mu(announcement))
    return Question(statistic, statistic.dimension, sensitivity, price, report)


def _not_offered(announcement: Announcement, mechanism: Mechanism) -> str:
    """What is wrong with an announcement's mechanism."""
    found = announcement.mechanism
    if found in LOCAL_MECHANISMS:
        return f"mechanism {found!r} is one of reports: the encoding is {announcement.encoding!r}, expected {LOCAL!r}"
    other = f", or for reports one of {', '.join(LOCAL_MECHANISMS)}" if announcement.local else ""
    return f"mechanism {found!r} is not offered here; use {mechanism.name!r}{other}"


def _report(announcement: Announcement, statistic: Statistic, sensitivity: Sensitivity) -> LocalMechanism:
    """The mechanism of a report round, with all that follows from the announcement."""
    from dca_proto.local.registry import mechanism_of  # who only ever sums starts faster without it

    asked = announcement
    return mechanism_of(asked.mechanism, statistic, sensitivity, asked.rows_max, asked.epsilon, asked.delta)


def _check_together(announcement: Announcement, limits: Limits) -> None:
    """The terms of a round whose clients share one noise."""
    if announcement.encoding not in ENCODINGS:
        known = ", ".join((*ENCODINGS, LOCAL))
        raise UsageError(f"share encoding {announcement.encoding!r} is unknown; use one of {known}")
    if announcement.colluders > announcement.tolerated:
        raise UsageError(
            f"c = {announcement.colluders} colluders exceed T = {announcement.tolerated}; "
            f"lower c to {announcement.tolerated}, or raise T to {announcement.colluders}"
        )
    if not 2 <= len(announcement.computes) <= limits.computes_max:
        raise UsageError(f"M = {len(announcement.computes)} Compute nodes; use 2 to {limits.computes_max}")


def _check_alone(announcement: Announcement) -> None:
    """The terms of a local round."""
    computes, tolerated, colluders = len(announcement.computes), announcement.tolerated, announcement.colluders
    if computes or tolerated or colluders:
        raise UsageError(
            f"a local round has M = {computes} Compute nodes, T = {tolerated}, c = {colluders}; expected none and 0, "
            "for whoever takes part adds the whole noise itself"
        )


def _mu(announcement: Announcement) -> float:
    mu = accounting.mu_of(announcement.epsilon, announcement.delta)
    if mu > accounting.MU_MAX:
        largest = math.floor(accounting.epsilon_of(accounting.MU_MAX, announcement.delta))
        raise UsageError(
            f"epsilon {announcement.epsilon:g} at delta {announcement.delta:g} is more than can be planned with, "
            f"{largest}; that protects nobody either: lower epsilon to 10 at most, better to 1"
        )
    return mu


def plan_round(announcement: Announcement, question: Question, clients: int, mechanism: Mechanism) -> Plan:
    """The numbers for N clients, or of each release or report of a local round.

    Raises:
        UsageError: the noise or the ring would not fit.
    """
    if question.report is not None:
        unit = _unit(announcement)
        return Plan(question, 1, 0, 0, 1, math.ceil(question.report.variance_in_sum(unit) / unit**2), unit)
    if announcement.local:
        return _planned(announcement, question, 1, 1, mechanism)
    honest = clients - announcement.tolerated - 1
    if honest < 1:
        raise UsageError(
            f"N - T - 1 = {clients} - {announcement.tolerated} - 1 is below 1: nobody's noise would be left; "
            + (f"lower T to at most {clients - 2}, or find at least" if clients >= 2 else "find at least")
            + f" {announcement.tolerated + 2} clients"
        )
    return _planned(announcement, question, clients, honest, mechanism)


def _planned(announcement: Announcement, question: Question, clients: int, honest: int, mechanism: Mechanism) -> Plan:
    variance = mechanism.share_variance(question.sensitivity.l2, question.mu, honest, question.dimension)
    accounting.check_ring(question.sensitivity.bound, clients, variance, question.dimension)
    tolerated, colluders, unit = announcement.tolerated, announcement.colluders, _unit(announcement)
    return Plan(question, clients, tolerated, colluders, honest, variance, unit)


def _unit(announcement: Announcement) -> float:
    return math.ldexp(1.0, -announcement.fraction_bits)
