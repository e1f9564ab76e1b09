"""The trainer's last step: M partial sums, or releases, become one `NoisyAggregate`, or nothing (DESIGN §4.7, §5.4)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from dca_proto.crypto.fixedpoint import dequantise, from_ring
from dca_proto.crypto.masks import WORD_BYTES, RingVector, sum_words
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import RoundAborted
from dca_proto.privacy.mechanism import LocalMechanism
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.kinds import SecureSum
from dca_proto.protocol.validated import ValidatedRound
from dca_proto.protocol.wire.messages import Announcement, PartialSum


class Hashes(msgspec.Struct, frozen=True):
    """What identifies a result: the announcement, and the set S or the releases; zeros where there was no protocol."""

    announcement: bytes = bytes(32)
    contributors: bytes = bytes(32)


def combine(
    opened: OpenedAnnouncement,
    validated: ValidatedRound,
    partials: Mapping[bytes, PartialSum],
    *,
    expected: int,
    private: bool,
) -> tuple[NoisyAggregate, tuple[bytes, ...]]:
    """Add the partial sums, centre them in the ring, and scale; with the ids of the clients that are in the sum.

    Args:
        partials: one of each Compute node, by its id. expected: how many clients were expected.
        private: whether an epsilon may be claimed for the mechanism.

    Raises:
        RoundAborted: where the nodes released over different sets or a set below n_min: nothing is learned.
    """
    ordered = [partials[compute] for compute in opened.computes]
    clients = _agreed_clients(ordered, validated)
    if any(len(partial.vector) != WORD_BYTES * validated.dimension for partial in ordered):
        raise RoundAborted("a Compute node released a sum of the wrong length")
    total = sum_words((partial.vector for partial in ordered), validated.dimension)
    hashes = Hashes(opened.hash, ordered[0].set_hash)
    aggregate = aggregate_of(
        opened.body, validated, total, len(clients), hashes, clients=max(expected, len(clients)), private=private
    )
    return aggregate, clients


def _agreed_clients(partials: Sequence[PartialSum], validated: ValidatedRound) -> tuple[bytes, ...]:
    """The clients of the one set that all nodes name, sorted."""
    first, terms = partials[0], validated.terms
    assert isinstance(terms, SecureSum), "only such a round has partial sums"
    if any(partial.answers != first.answers for partial in partials):
        raise RoundAborted("the Compute nodes name different answers; the released sums do not fit together")
    if any((partial.set_hash, partial.count) != (first.set_hash, first.count) for partial in partials):
        raise RoundAborted("the Compute nodes released sums over different sets of clients")
    joined = b"".join([partial.clients for partial in partials])
    ids = [joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES)]
    if len(ids) != first.count or len(set(ids)) != first.count:
        raise RoundAborted(f"the Compute nodes name {len(set(ids))} clients, and a set of {first.count}")
    if not terms.fewest <= first.count <= terms.most:
        raise RoundAborted(
            f"the Compute nodes released sums over {first.count} clients, expected {terms.fewest} to {terms.most}",
            contributors=first.count,
            needed=terms.fewest,
        )
    return tuple(sorted(ids))


def aggregate_of(
    body: Announcement,
    validated: ValidatedRound,
    total: RingVector,
    contributors: int,
    hashes: Hashes,
    *,
    clients: int,
    private: bool,
) -> NoisyAggregate:
    """A noisy sum in the ring, centred, scaled, and with all that is known of it.

    Args:
        contributors: how many clients' noises are in it. clients: how many were expected.
    """
    return _described(
        body,
        validated,
        hashes,
        value=dequantise(from_ring(total), body.fraction_bits),
        noise_variance=contributors * validated.noise_variance * validated.unit**2,
        contributors=contributors,
        clients=clients,
        sigma_local=validated.noise_std,
        private=private,
    )


def _described(body: Announcement, validated: ValidatedRound, hashes: Hashes, **found: Any) -> NoisyAggregate:
    """What was found, with all that is known of the round."""
    terms = body.terms
    fewest, colluders = (terms.fewest, terms.colluders) if isinstance(terms, SecureSum) else (0, 0)
    return NoisyAggregate(
        statistic=body.statistic,
        parameters=body.parameters,
        fewest=fewest,
        colluders=colluders,
        mechanism=body.mechanism,
        sensitivity=validated.sensitivity_l2,
        relation=validated.sensitivity.relation,
        epsilon=body.epsilon,
        delta=body.delta,
        mu=validated.mu,
        round_id=body.round_id,
        announcement_hash=hashes.announcement,
        contributors_hash=hashes.contributors,
        **found,
    )


def release_of(
    body: Announcement, validated: ValidatedRound, noisy: RingVector, rows: int, hashes: Hashes, *, private: bool
) -> NoisyAggregate:
    """What one data node released.

    Args:
        noisy: its sum with its whole noise. rows: how many of its rows count.
    """
    one = aggregate_of(body, validated, noisy, 1, hashes, clients=1, private=private)
    return dataclasses.replace(one, contributors=rows)


def sum_releases(nodes: Sequence[NoisyAggregate], hashes: Hashes) -> NoisyAggregate:
    """The sum of what data nodes released in one round: its value, noise and rows are theirs, added up.

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
        nodes=tuple(nodes),
    )


def merge_reports(
    body: Announcement,
    validated: ValidatedRound,
    mechanism: LocalMechanism,
    reports: NDArray[Any],
    clients: tuple[bytes, ...],
    hashes: Hashes,
) -> NoisyAggregate:
    """What clients reported in one round, and the sum over them that it stands for.

    Args:
        mechanism: by which they report. reports: one or more, as it decodes them. clients: the ids of those who
            reported, sorted.
    """
    count, variance = len(reports), mechanism.variance_in_sum(validated.unit)
    return _described(
        body,
        validated,
        hashes,
        value=mechanism.summed(reports, validated.unit),
        noise_variance=count * variance,
        contributors=count,
        clients=count,
        sigma_local=math.sqrt(variance),
        reports=dataclasses.replace(mechanism.decode_reports(reports, validated.unit), clients=clients),
    )
