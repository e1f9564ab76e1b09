"""Invariant 17: a client never takes part in a round against its policy.

The checker reads the announced terms and the policy's fields by itself; it calls no check of the product. Budgets over
time are part of invariant 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dca_proto.aggregate import PublicParameters
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.kinds import NodeRelease, SecureSum, VerifiedSum
from dca_proto.protocol.wire.messages import Announcement
from emulator import reference
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, about
from emulator.wire import Accepted, counts_of, slack_of

_ROUNDING = 1e-9


class Policies(Checker):
    """Compares each round that a client pays for with its policy."""

    number, name = 17, "no round against a policy"

    def on_charge(self, process: Process, charge: Charge) -> None:
        """All limits of the policy allow the announced round."""
        accepted = self.log.accepted.get((process.id, charge.round_id))
        if process.role is not Channel.CLIENT or accepted is None or charge.returned:
            return
        policy = self.world.actors.policy_of(process.id)
        against = ", ".join(self._against(policy, accepted, process))
        self.expect(not against, f"{about(process, charge.round_id)}: it pays against its policy's {against}")

    def _against(self, policy: Policy, accepted: Accepted, client: Process) -> Iterator[str]:
        """Yield the names of the limits that forbid a round."""
        body, kind = accepted.body, accepted.body.kind
        if policy.trainers and body.trainer.hex() not in policy.trainers:
            yield "trainers"
        if policy.statistics and body.statistic not in policy.statistics:
            yield "statistics"
        if self.world.scenario.population.dimension > policy.dimension_max:
            yield "dimension_max"
        if body.delta > policy.delta_max:
            yield "delta_max"
        if not _costs_at_most(body, policy.epsilon_per_round_max, policy.delta_max):
            yield "epsilon_per_round_max"
        if policy.sums_only and not isinstance(kind, SecureSum):
            yield "sums_only"
        if isinstance(kind, NodeRelease) and not policy.rows_of_many:
            yield "rows_of_many"
        if not _within_bounds(body, policy):
            yield "bounds"
        if isinstance(kind, SecureSum):
            yield from _against_sum(policy, kind, len(body.epochs))
            yield from self._against_nodes(policy, accepted, client)

    def _against_nodes(self, policy: Policy, accepted: Accepted, client: Process) -> Iterator[str]:
        """Yield a name if the round has too few Compute nodes, or leaves out one that the policy trusts (§4.3)."""
        known = {member.id: member.name for member in self.world.follows(client).computes}
        used = {known[compute] for compute in accepted.computes if compute in known}
        used |= {compute.hex() for compute in accepted.computes}
        if not used.issuperset(policy.trusted_computes):
            yield "trusted_computes"
        if len(accepted.computes) <= self.log.colluding.of(client):
            yield "p"


def _against_sum(policy: Policy, kind: SecureSum, computes: int) -> Iterator[str]:
    counts = counts_of(kind)
    if computes < policy.computes_min:
        yield "computes_min"
    if policy.verified and not isinstance(kind, VerifiedSum):
        yield "verified"
    if counts.n_min < policy.clients_min:
        yield "clients_min"
    if counts.honest < policy.honest_min:
        yield "honest_min"
    if kind.colluders < policy.colluders_min:
        yield "colluders_min"
    if kind.colluders < math.ceil(policy.colluders_part_min * counts.n_min):
        yield "colluders_part_min"


def _costs_at_most(body: Announcement, epsilon: float, delta: float) -> bool:
    """Return True if a round is (epsilon, delta)-private, by its ε if that suffices, else by its μ."""
    if body.kind.mechanism in PURE_MECHANISMS:
        return body.epsilon <= epsilon * (1 + _ROUNDING) or reference.epsilon_of(body.mu, delta) <= epsilon
    spent = reference.composed([(body.mu, body.epsilon, body.delta, slack_of(body))])
    return reference.is_within(spent, epsilon * (1 + _ROUNDING), delta)


def _within_bounds(body: Announcement, policy: Policy) -> bool:
    """Return True if the announced interval of each column is within the policy's."""
    given: PublicParameters = dict(body.parameters)
    if "edges" in given:
        ranges = {given["columns"][0]: (given["edges"][0], given["edges"][-1])}
    else:
        rows = zip(given["columns"], given["centre"], given["scale"], given["bound"], strict=True)
        ranges = {name: (centre - scale * bound, centre + scale * bound) for name, centre, scale, bound in rows}
    limited = [(ranges[name], policy.bounds[name]) for name in ranges if name in policy.bounds]
    return all(
        low - _ROUNDING * (high - low) <= asked_low and asked_high <= high + _ROUNDING * (high - low)
        for (asked_low, asked_high), (low, high) in limited
    )
