"""The trainer's last step: M partial sums become one `NoisyAggregate`, or nothing (DESIGN §4.6).

In a local round it is what the data nodes released, one aggregate each, and their sum (DESIGN §4.8); or what clients
reported, and the sum that it tells of (§4.9).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from dca_proto.core.commit import positions_of
from dca_proto.core.errors import PeerError, RoundAborted
from dca_proto.core.fixedpoint import dequantise, from_ring, ring_from_bytes, ring_sum
from dca_proto.core.mechanism import LocalMechanism
from dca_proto.core.messages import Announcement, PartialSum, Terms
from dca_proto.core.plan import Plan
from dca_proto.core.round import OpenedAnnouncement, session_hash
from dca_proto.core.shares import RingVector


class Hashes(msgspec.Struct, frozen=True):
    """What identifies a result: the session, the set S and the roster; zeros where there was no protocol."""

    session: bytes = bytes(32)
    contributors: bytes = bytes(32)
    roster: bytes = bytes(32)


def combine(
    opened: OpenedAnnouncement,
    terms: Terms,
    plan: Plan,
    partials: Mapping[bytes, PartialSum],
    *,
    private: bool,
) -> NoisyAggregate:
    """Add the partial sums, centre them in the ring, and scale.

    Args:
        partials: one of each Compute node, by its id.
        private: whether an epsilon may be claimed for the mechanism.

    Raises:
        RoundAborted: where the nodes released over different sets or a set below N - T + c: nothing is learned.
    """
    ordered = [partials[compute] for compute in opened.computes]
    absent = _check_one_set(ordered, plan)
    total = add_partials([partial.vector for partial in ordered], plan.dimension)
    hashes = Hashes(session_hash(terms), ordered[0].contributors_hash, terms.roster_hash)
    return aggregate_of(opened.body, plan, total, absent, hashes, private=private)


def aggregate_of(
    body: Announcement, plan: Plan, total: RingVector, absent: tuple[int, ...], hashes: Hashes, *, private: bool
) -> NoisyAggregate:
    """A noisy sum in the ring, centred, scaled, and with all that is known of it."""
    contributors = plan.clients - len(absent)
    return _described(
        body,
        plan,
        hashes,
        value=dequantise(from_ring(total), body.fraction_bits),
        noise_variance=contributors * plan.share_variance * plan.unit**2,
        contributors=contributors,
        clients=plan.clients,
        sigma_local=plan.sigma_local,
        absent=absent,
        private=private,
    )


def _described(body: Announcement, plan: Plan, hashes: Hashes, **found: Any) -> NoisyAggregate:
    """What was found, with all that is known of the round."""
    return NoisyAggregate(
        statistic=body.statistic,
        parameters=body.parameters,
        tolerated=plan.tolerated,
        colluders=plan.colluders,
        mechanism=body.mechanism,
        sensitivity=plan.sensitivity,
        relation=plan.question.sensitivity.relation,
        epsilon=body.epsilon,
        delta=body.delta,
        mu=plan.question.mu,
        round_id=body.round_id,
        session_hash=hashes.session,
        contributors_hash=hashes.contributors,
        roster_hash=hashes.roster,
        **found,
    )


def release_of(
    body: Announcement, plan: Plan, noisy: RingVector, rows: int, hashes: Hashes, *, private: bool
) -> NoisyAggregate:
    """What one data node released in a local round.

    Args:
        plan: of the round. noisy: its sum with its whole noise. rows: how many of its rows count.
    """
    alone = aggregate_of(body, plan, noisy, (), hashes, private=private)
    return dataclasses.replace(alone, contributors=rows)


def together(nodes: Sequence[NoisyAggregate], hashes: Hashes) -> NoisyAggregate:
    """The sum of what data nodes released in one local round: its value, noise and rows are theirs, added up.

    Args:
        nodes: one or more, sorted by client id. hashes: of the sum.
    """
    return dataclasses.replace(
        nodes[0],
        value=np.sum([node.value for node in nodes], axis=0),
        noise_variance=len(nodes) * nodes[0].noise_variance,
        contributors=sum(node.contributors for node in nodes),
        clients=len(nodes),
        contributors_hash=hashes.contributors,
        roster_hash=hashes.roster,
        nodes=tuple(nodes),
    )


def reported(
    body: Announcement,
    plan: Plan,
    mechanism: LocalMechanism,
    reports: NDArray[Any],
    clients: tuple[bytes, ...],
    hashes: Hashes,
) -> NoisyAggregate:
    """What clients reported in one round, and the sum over them that it tells of.

    Args:
        plan: of each report. mechanism: by which they report. reports: one or more, as it decodes them. clients: the
            ids of those who told them, sorted.
    """
    count, variance = len(reports), mechanism.variance_in_sum(plan.unit)
    return _described(
        body,
        plan,
        hashes,
        value=mechanism.summed(reports, plan.unit),
        noise_variance=count * variance,
        contributors=count,
        clients=count,
        sigma_local=math.sqrt(variance),
        reports=dataclasses.replace(mechanism.told(reports, plan.unit), clients=clients),
    )


def add_partials(vectors: Sequence[bytes], dimension: int) -> RingVector:
    """The sum of the M partial sums modulo 2^64, in which all masks cancel. Raises `RoundAborted` for a length."""
    try:
        return ring_sum([ring_from_bytes(vector, dimension) for vector in vectors], dimension)
    except PeerError as error:
        raise RoundAborted(f"a Compute node released a sum of the wrong length ({error})") from None


def _check_one_set(partials: Sequence[PartialSum], plan: Plan) -> tuple[int, ...]:
    """The positions that are missing in the one set that all nodes name."""
    if len({partial.views for partial in partials}) > 1:
        raise RoundAborted("a Compute node told its peers different lists; the released sums do not fit together")
    first = partials[0]
    if any((p.contributors_hash, p.contributors) != (first.contributors_hash, first.contributors) for p in partials):
        raise RoundAborted("the Compute nodes released sums over different sets of clients")
    try:
        present = positions_of(first.contributors, plan.clients)
    except PeerError as error:
        raise RoundAborted(f"the Compute nodes named clients that are not on the roster ({error})") from None
    if len(present) < plan.needed:
        raise RoundAborted(f"the Compute nodes released sums over {len(present)} clients, {plan.needed} were needed")
    return tuple(sorted(set(range(plan.clients)) - set(present.tolist())))
