"""Releases: clients randomise them; the trainer checks and combines them to a `NoisyAggregate` (DESIGN §4.7, §5).

A *local randomiser* (Kasiviswanathan et al. 2008) turns one client's value into a release that is private by itself. A
data node releases the sum over its rows with the whole noise, and the number of rows. A client reports by a local
mechanism, and nobody learns whether it has a row. Otherwise these two kinds of rounds are the same.

`combine` is the trainer's last step of a secure sum: it turns M partial sums into one result.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from dca_proto.crypto import labels
from dca_proto.crypto.bit_proof import unpack
from dca_proto.crypto.bounded import Statement
from dca_proto.crypto.field import Elements
from dca_proto.crypto.fixedpoint import dequantise, from_ring, ring_from_bytes, ring_to_bytes, to_ring
from dca_proto.crypto.masks import WORD_BYTES, RingVector, sum_words
from dca_proto.crypto.sealing import ID_BYTES, derive, digest
from dca_proto.errors import ImplausibleSum, PeerError, RoundAborted
from dca_proto.plausibility import checked, doubts_of, possible_reports
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.codec import body_of, encode, verify_signed
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, SecureSum
from dca_proto.protocol.wire.messages import Announcement, PartialSum, Receipt, Release, Signed, VerifiedPart
from dca_proto.statistics.statement import liar_factor, proven_limit
from dca_proto.wording import counted, ids_in_words

if TYPE_CHECKING:  # devices that only take part in sums start faster
    from dca_proto.privacy.local import LocalMechanism

Members = Sequence[tuple[bytes, Signed]]
"""(client id, signed release) pairs, sorted by client id."""


Result = tuple[NoisyAggregate, tuple[bytes, ...]]
"""The aggregate of a round, and the sorted ids of the clients whose messages it holds."""


def randomised(
    validated: ValidatedRound, mechanism: Mechanism, value: NDArray[np.int64], rows: int, key: bytes
) -> tuple[int, bytes]:
    """Return, at the client, the `rows` and the `vector` of its `Release`.

    A report's `rows` is always 1, because the number of a client's rows is private.

    Args:
        validated: the round.
        mechanism: of data nodes' noise; a report has its own.
        value: the client's contribution in grid units, shape ``(dimension,)``.
        rows: how many of its rows count.
        key: 32 fresh secret bytes, used for this call only.
    """
    match validated.kind:
        case NodeRelease():
            noise = mechanism.sample(validated.noise_variance, validated.dimension, key)
            return rows, ring_to_bytes(to_ring(value + noise))
        case LdpReport():
            report = validated.local
            (drawn,) = report.randomise(report.to_inputs(value[np.newaxis]), key)
            return 1, report.encode(drawn)
        case SecureSum():
            raise AssertionError("a client of a secure sum sends a contribution")


def check_release(
    frame: Signed,
    body: Release,
    opened: OpenedAnnouncement,
    validated: ValidatedRound,
    federation: Federation,
    now_ms: int,
) -> bytes:
    """Check, at the trainer, certificate, signature, round and content of a release. Return the client's id.

    Raises `PeerError`.
    """
    client = federation.check_certificate(body.certificate, now_ms)
    verify_signed(frame, body.certificate.client_key, federation.id)
    if body.announcement_hash != opened.hash or body.round_id != opened.body.round_id:
        found = f"a release of another round by {client.hex()}"
        raise PeerError("release", found=found, expected=opened.hash.hex())
    match validated.kind:
        case NodeRelease():
            if body.rows > opened.body.rows_max:
                raise PeerError("release", found=f"{body.rows} rows", expected=f"<= {opened.body.rows_max}")
            ring_from_bytes(body.vector, validated.dimension)
            return client
        case LdpReport():
            if body.rows != 1:
                raise PeerError("release", found=f"a report of {body.rows} rows", expected="1, for every client")
            validated.local.decode(body.vector)
            return client
        case SecureSum():
            raise PeerError("kind", found="a release in a secure sum", expected="a contribution, to its holder")


def result_of(opened: OpenedAnnouncement, validated: ValidatedRound, members: Members, *, private: bool) -> Result:
    """Return the sum of one or more checked releases or reports. It holds each of them as well.

    `private` is True if an epsilon may be claimed for the data nodes' mechanism. Raises `ImplausibleSum` if honest
    clients cannot have made them (`_sum_of_nodes`, `_sum_of_reports`).
    """
    match validated.kind:
        case NodeRelease():
            return _sum_of_nodes(opened, validated, members, private)
        case LdpReport():
            return _sum_of_reports(opened, validated, members)
        case SecureSum():
            raise AssertionError("a secure sum has partial sums")


def _sum_of_nodes(opened: OpenedAnnouncement, validated: ValidatedRound, members: Members, private: bool) -> Result:
    """Leave out releases that no honest data node can have made. Raises `ImplausibleSum` if no other is left."""
    nodes, kept, left_out = [], [], []
    for member in members:
        body, hashes = body_of(member[1], Release), _hashes(opened, [member])
        noisy = ring_from_bytes(body.vector, validated.dimension)
        node = release_of(opened.body, validated, noisy, body.rows, hashes, client=member[0], private=private)
        try:
            nodes.append(checked(node))
            kept.append(member)
        except ImplausibleSum as error:
            left_out.append(f"data node {member[0].hex()[:12]} was left out: {error.reason}")
    if not nodes:
        raise ImplausibleSum("; ".join(left_out))
    total = sum_releases(nodes, _hashes(opened, kept))
    doubts = (*left_out, *doubts_of(nodes))
    return dataclasses.replace(total, doubts=doubts), tuple(client for client, _ in kept)


def _sum_of_reports(opened: OpenedAnnouncement, validated: ValidatedRound, members: Members) -> Result:
    """Leave out reports that no honest client can have made. Raises `ImplausibleSum` if these are most of them."""
    body, mechanism = opened.body, validated.local
    reports = np.array([mechanism.decode(body_of(frame, Release).vector) for _, frame in members])
    is_possible = possible_reports(mechanism, validated.statistic, body.rows_max, body.fraction_bits, reports)
    kept = [member for member, possible in zip(members, is_possible.tolist(), strict=True) if possible]
    clients = tuple(client for client, _ in kept)
    doubts: tuple[str, ...] = ()
    if len(kept) < len(members):
        liars = sorted({client for client, _ in members}.difference(clients))
        named = ids_in_words(liars)
        where = f"{len(liars)} of {len(members)} reports are where the noise does not reach from the bounds"
        if 2 * len(kept) < len(members):
            raise ImplausibleSum(f"{where}: those of {named}")
        doubts = (f"{where}, and were left out: those of {named}",)
    merged = merge_reports(body, validated, mechanism, reports[is_possible], clients, _hashes(opened, kept))
    return dataclasses.replace(merged, doubts=doubts), clients


def receipt_of(body: Release, *, late: bool = False) -> Receipt:
    """Return the trainer's proof to the client that it stored the release; with `late`, that the round had ended."""
    return Receipt(body.round_id, body.contribution, receipt_tags(body.receipt_key)[late])


def receipt_tags(key: bytes) -> tuple[bytes, bytes]:
    """Return two tags: the trainer stored the release, or the release came too late."""
    return derive(key, labels.RECEIPT, size=ID_BYTES), derive(key, labels.LATE, size=ID_BYTES)


def _hashes(opened: OpenedAnnouncement, members: Members) -> Hashes:
    parts = (part for client, frame in members for part in (client, encode(frame)))
    return Hashes(opened.hash, digest(labels.RELEASES, opened.hash, *parts))


class Hashes(msgspec.Struct, frozen=True):
    """Identify a result: the hash of the announcement, and that of A or of the releases; zeros without a protocol."""

    announcement: bytes = bytes(32)
    contributors: bytes = bytes(32)


def combine(
    opened: OpenedAnnouncement,
    validated: ValidatedRound,
    partials: Mapping[bytes, PartialSum],
    *,
    expected: int,
    private: bool,
) -> Result:
    """Add the partial sums, one of each Compute node. Return the aggregate, and the sorted ids of its clients.

    `expected` is how many clients were expected; `private` is True if an epsilon may be claimed for the mechanism.
    Raises `RoundAborted` if the partial sums do not fit together, if the size of their set is outside n_min to n_max,
    or if no honest clients can have made the sum (`ImplausibleSum`).
    """
    ordered, kind = [partials[compute] for compute in opened.computes], validated.kind
    assert isinstance(kind, SecureSum), "only a secure sum has partial sums"
    first = ordered[0]
    if any(partial.answers != first.answers for partial in ordered):
        raise RoundAborted("the Compute nodes released sums that do not fit together: each rests on other answers")
    if any((partial.set_hash, partial.count) != (first.set_hash, first.count) for partial in ordered):
        raise RoundAborted("the Compute nodes released sums over different sets of clients")
    joined = b"".join([partial.clients for partial in ordered])
    ids = [joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES)]
    if len(ids) != first.count or len(set(ids)) != first.count:
        raise RoundAborted(f"the Compute nodes released sums over {first.count} clients, and name {len(set(ids))}")
    if not kind.n_min <= first.count <= kind.n_max:
        raise RoundAborted(
            f"the Compute nodes released sums over {first.count} clients, expected {kind.n_min} to {kind.n_max}",
            contributors=first.count,
            needed=kind.n_min,
        )
    about = Hashes(opened.hash, first.set_hash)
    known: dict[str, Any] = {"clients": max(expected, len(ids)), "private": private}
    if validated.statement is None:
        if any(len(partial.vector) != WORD_BYTES * validated.dimension for partial in ordered):
            raise RoundAborted("a Compute node released a sum of the wrong length")
        total = sum_words((partial.vector for partial in ordered), validated.dimension)
        aggregate = aggregate_of(opened.body, validated, total, len(ids), about, **known)
    else:
        summed = _verified_total(validated.statement, ordered)
        aggregate = verified_aggregate(
            opened.body, validated, summed, len(ids), about, failed=_failed(ordered), **known
        )
    found = checked(aggregate)
    return dataclasses.replace(found, doubts=(*_left_out(found.unproven), *found.doubts)), tuple(sorted(ids))


def _left_out(failed: tuple[bytes, ...]) -> tuple[str, ...]:
    """Return a warning that names the clients whose proofs failed, if there are any."""
    if not failed:
        return ()
    who = counted(len(failed), "client")
    return (f"{who} did not prove to be within the bounds, and were left out: {ids_in_words(failed)}",)


def _verified_total(statement: Statement, partials: Sequence[PartialSum]) -> Elements:
    """Return the sum of the nodes' shares. Raises `RoundAborted` if one has no d elements."""
    try:
        parts = np.stack([unpack(partial.vector) for partial in partials])
    except (PeerError, ValueError) as error:
        raise RoundAborted(f"a Compute node released a sum that cannot be read: {error}") from None
    if parts.shape[1] != len(statement.sizes):
        raise RoundAborted("a Compute node released a sum of the wrong length")
    total: Elements = parts.sum(axis=0) % np.uint64(statement.field.prime)
    return total


def _failed(partials: Sequence[PartialSum]) -> tuple[bytes, ...]:
    """Return the clients whose proofs failed. Raises `RoundAborted` if the nodes name different ones."""
    named = {partial.failed if isinstance(partial, VerifiedPart) else b"" for partial in partials}
    (joined, *others) = named
    if others or len(joined) % ID_BYTES:
        raise RoundAborted("the Compute nodes name different clients whose proofs failed")
    return tuple(joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES))


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
    """Return the aggregate of a noisy sum in the ring: the value in the statistic's units, and the round's numbers.

    The sum has the noises of `contributors` clients; `clients` were expected.
    """
    return _described(body, validated, hashes)(
        value=dequantise(from_ring(total), body.fraction_bits),
        noise_variance=validated.variance_of_sum(contributors),
        contributors=contributors,
        clients=clients,
        sigma_local=validated.noise_std,
        private=private,
    )


def verified_aggregate(
    body: Announcement,
    validated: ValidatedRound,
    total: Elements,
    contributors: int,
    hashes: Hashes,
    *,
    clients: int,
    private: bool,
    failed: tuple[bytes, ...] = (),
) -> NoisyAggregate:
    """Return the aggregate of a verified sum: `total` has elements of the field; `failed` are the ids of clients."""
    assert validated.statement is not None, "the caller looked"
    proven = validated.statement, validated.statistic, body.rows_max, body.fraction_bits
    return _described(body, validated, hashes)(
        value=validated.statement.decode(total, contributors) * validated.unit,
        noise_variance=validated.variance_of_sum(contributors),
        contributors=contributors,
        clients=clients,
        sigma_local=validated.noise_std,
        private=private,
        verified=True,
        proven=proven_limit(*proven),
        liar_factor=liar_factor(*proven),
        unproven=failed,
    )


def _described(body: Announcement, validated: ValidatedRound, hashes: Hashes) -> partial[NoisyAggregate]:
    """Return an aggregate's constructor with all fields filled in that the announcement determines."""
    return partial(
        NoisyAggregate,
        statistic=body.statistic,
        parameters=body.parameters,
        n_min=body.kind.n_min,
        colluders=body.kind.colluders,
        mechanism=body.kind.mechanism,
        sensitivity=validated.sensitivity_l2,
        relation=validated.sensitivity.relation,
        epsilon=body.epsilon,
        delta=body.delta,
        mu=validated.mu,
        slack=validated.cost.slack,
        round_id=body.round_id,
        announcement_hash=hashes.announcement,
        contributors_hash=hashes.contributors,
        rows_max=body.rows_max,
        fraction_bits=body.fraction_bits,
    )


def release_of(
    body: Announcement,
    validated: ValidatedRound,
    noisy: RingVector,
    rows: int,
    hashes: Hashes,
    *,
    client: bytes,
    private: bool,
) -> NoisyAggregate:
    """Return the aggregate of one data node's release: `noisy` is its sum over `rows` rows with the whole noise."""
    release = aggregate_of(body, validated, noisy, 1, hashes, clients=1, private=private)
    return dataclasses.replace(release, contributors=rows, client=client)


def sum_releases(nodes: Sequence[NoisyAggregate], hashes: Hashes) -> NoisyAggregate:
    """Add up the data nodes' releases of one round, sorted by client id: values, noise variances and rows."""
    return dataclasses.replace(
        nodes[0],
        value=np.sum([node.value for node in nodes], axis=0),
        noise_variance=len(nodes) * nodes[0].noise_variance,
        contributors=sum(node.contributors for node in nodes),
        clients=len(nodes),
        contributors_hash=hashes.contributors,
        nodes=tuple(nodes),
        client=b"",
    )


def merge_reports(
    body: Announcement,
    validated: ValidatedRound,
    mechanism: LocalMechanism,
    reports: NDArray[Any],
    clients: tuple[bytes, ...],
    hashes: Hashes,
) -> NoisyAggregate:
    """Return the sum that the decoded LDP reports of one round stand for, which holds the reports as well.

    There is at least one report; `clients` are the sorted ids of the clients, in the order of the reports.
    """
    count, variance = len(reports), mechanism.variance_in_sum(validated.unit)
    return _described(body, validated, hashes)(
        value=mechanism.summed(reports, validated.unit),
        noise_variance=count * variance,
        contributors=count,
        clients=count,
        sigma_local=math.sqrt(variance),
        reports=dataclasses.replace(mechanism.decode_reports(reports, validated.unit), clients=clients),
    )
