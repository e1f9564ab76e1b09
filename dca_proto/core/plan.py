"""All numbers of a round that follow from its announcement and N: every participant computes them for itself.

Theorem 1 of the DCA paper: each client adds noise of variance σ_std² / (N - T - 1); the sum is released only if at
least N - T + c contributions are in it, so that N - T - 1 noises remain unknown to a curious client with c colluders.

In a local round (DESIGN §4.8) each data node releases by itself: its own noise is the only one, and has to suffice.
"""

from __future__ import annotations

import math

import msgspec

from dca_proto.core import accounting
from dca_proto.core.errors import UsageError
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.messages import Announcement
from dca_proto.core.params import Limits
from dca_proto.core.shares import ENCODINGS, LOCAL
from dca_proto.statistics import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW, Sensitivity, Statistic, resolve
from dca_proto.statistics.contribution import client_sensitivity, row_sensitivity


class Question(msgspec.Struct, frozen=True):
    """What a valid announcement asks, before N is known.

    Attributes:
        statistic: the named statistic. dimension: d.
        sensitivity: of one client's contribution, in grid units; in a local round of one row of it.
        mu: the Gaussian DP parameter that (epsilon, delta) allow.
    """

    statistic: Statistic
    dimension: int
    sensitivity: Sensitivity
    mu: float


class Plan(msgspec.Struct, frozen=True):
    """A round's numbers, once N is known; of a local round, those of each release.

    Attributes:
        question: what is asked.
        clients, tolerated, colluders: N, T and c; of a release 1, 0 and 0.
        honest: N - T - 1, the number of noises that must suffice; of a release 1, its own.
        share_variance: S, the variance of one client's noise share in squared grid units.
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
    if announcement.mechanism != mechanism.name:
        raise UsageError(f"mechanism {announcement.mechanism!r} is not offered here; use {mechanism.name!r}")
    if announcement.local:
        _check_alone(announcement)
    else:
        _check_together(announcement, limits)
    statistic = resolve(announcement.statistic, announcement.parameters)
    if statistic.dimension > limits.dimension_max:
        raise UsageError(f"dimension {statistic.dimension} exceeds {limits.dimension_max}; ask for fewer columns")
    mu = _mu(announcement)
    sensitivity_of = row_sensitivity if announcement.local else client_sensitivity
    sensitivity = sensitivity_of(statistic, announcement.rows_max, announcement.fraction_bits)
    sensitivity.require(REPLACE_ONE_ROW if announcement.local else REPLACE_ONE_CLIENT)
    return Question(statistic, statistic.dimension, sensitivity, mu)


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
            "for each data node adds the whole noise itself"
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
    """The numbers for N clients, or of each release of a local round.

    Raises:
        UsageError: the noise or the ring would not fit.
    """
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
    unit = math.ldexp(1.0, -announcement.fraction_bits)
    return Plan(question, clients, announcement.tolerated, announcement.colluders, honest, variance, unit)
