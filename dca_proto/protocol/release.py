"""A release by a data node, or a client's report: made, checked and added up, both sides of the wire (DESIGN §5).

A *local randomiser* (Kasiviswanathan et al. 2008) turns one client's value into what it releases, private by itself. A
data node releases the sum over its rows with the whole noise, and how many rows that is of; a client reports by a local
mechanism, and nobody learns whether it has a row. All else about these rounds is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from dca_proto.crypto.fixedpoint import ring_from_bytes, ring_to_bytes, to_ring
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, Identity, Random, derive, digest
from dca_proto.errors import PeerError
from dca_proto.privacy.mechanism import LocalMechanism, Mechanism
from dca_proto.protocol.announcement import OpenedAnnouncement, seal_answer
from dca_proto.protocol.contribution import Outbound, hedged_root
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.trainer.combine import Hashes, merge_reports, release_of, sum_releases
from dca_proto.protocol.validated import ValidatedRound
from dca_proto.protocol.wire.codec import body_of, encode, verify_signed
from dca_proto.protocol.wire.messages import Announcement, Body, Certificate, Receipt, Release, Signed

Members = Sequence[tuple[bytes, Signed]]
"""Signed releases, each with its client's id, sorted by these."""


class WholeNoise(msgspec.Struct, frozen=True):
    """A data node's: the ring's bytes of its sum with the noise of one honest share.

    Attributes:
        validated: the round. mechanism: of the noise. who: takes part, in words.
    """

    validated: ValidatedRound
    mechanism: Mechanism
    who: str = "data node"

    def release(self, value: NDArray[np.int64], rows: int, key: bytes) -> tuple[int, bytes]:
        """At the client: the `rows` and the `vector` of its `Release`.

        Args:
            value: its contribution, in grid units, shape ``(dimension,)``. rows: how many of its rows count.
            key: 32 fresh secret bytes, for this call alone.
        """
        noise = self.mechanism.sample(self.validated.noise_variance, self.validated.dimension, key)
        return rows, ring_to_bytes(to_ring(value + noise))

    def check(self, body: Release, asked: Announcement) -> None:
        """At the trainer. Raises `PeerError` for what no client of this round can have released."""
        if body.rows > asked.rows_max:
            raise PeerError("release", found=f"{body.rows} rows", expected=f"<= {asked.rows_max}")
        ring_from_bytes(body.vector, self.validated.dimension)

    def result(self, opened: OpenedAnnouncement, members: Members) -> NoisyAggregate:
        """Each node's release, and their sum, of one or more that were checked."""
        private, nodes = self.mechanism.private, []
        for member in members:
            body, hashes = body_of(member[1], Release), _hashes(opened, [member])
            noisy = ring_from_bytes(body.vector, self.validated.dimension)
            nodes.append(release_of(opened.body, self.validated, noisy, body.rows, hashes, private=private))
        return sum_releases(nodes, _hashes(opened, members))


class Reporting(msgspec.Struct, frozen=True):
    """A client's report, encoded by its mechanism. Its `rows` is 1: how many it has is its data.

    Attributes:
        validated: the round. mechanism: by which all report.
    """

    validated: ValidatedRound
    mechanism: LocalMechanism
    who: str = "client"

    def release(self, value: NDArray[np.int64], rows: int, key: bytes) -> tuple[int, bytes]:
        (report,) = self.mechanism.randomise(self.mechanism.to_inputs(value[np.newaxis]), key)
        return 1, self.mechanism.encode(report)

    def check(self, body: Release, asked: Announcement) -> None:
        if body.rows != 1:
            raise PeerError("release", found=f"a report of {body.rows} rows", expected="1, whatever a client has")
        self.mechanism.decode(body.vector)

    def result(self, opened: OpenedAnnouncement, members: Members) -> NoisyAggregate:
        """All reports, and the sum that they stand for."""
        reports = np.array([self.mechanism.decode(body_of(frame, Release).vector) for _, frame in members])
        clients = tuple(client for client, _ in members)
        return merge_reports(opened.body, self.validated, self.mechanism, reports, clients, _hashes(opened, members))


Randomiser = WholeNoise | Reporting
"""How the clients of one round release."""


def randomiser_of(validated: ValidatedRound, mechanism: Mechanism) -> Randomiser:
    """How the clients of a round without Compute nodes release.

    Args:
        mechanism: that the actor offers for data nodes.
    """
    report = validated.report
    return WholeNoise(validated, mechanism) if report is None else Reporting(validated, report)


def make_release(
    value: NDArray[np.int64],
    rows: int,
    *,
    randomiser: Randomiser,
    opened: OpenedAnnouncement,
    identity: Identity,
    certificate: Certificate,
    charge: int,
    sign: Callable[[Body], Signed],
    random: Random,
) -> Outbound:
    """Randomise, sign and seal a client's value.

    Args:
        value: its clipped, encoded contribution, shape ``(dimension,)``, in grid units. rows: how many rows that is of.
        charge: the number in the ledger of the charge that pays. sign: with the client's identity.
    """
    key, contribution = hedged_root(identity, random(KEY_BYTES), b"", opened.hash, charge, value)
    rows_stated, vector = randomiser.release(value, rows, derive(key, b"dca4-noise"))
    receipt_key = derive(key, b"dca4-receiptkey")
    body = Release(
        round_id=opened.body.round_id,
        announcement_hash=opened.hash,
        certificate=certificate,
        rows=rows_stated,
        contribution=contribution,
        receipt_key=receipt_key,
        vector=vector,
    )
    return Outbound(contribution, seal_answer(sign(body), opened, random), *_words(receipt_key))


def check_release(
    frame: Signed,
    body: Release,
    opened: OpenedAnnouncement,
    federation: Federation,
    randomiser: Randomiser,
    now_ms: int,
) -> bytes:
    """The client's id, if certificate and signature hold and it is a release of this round. Raises `PeerError`.

    Args:
        body: the decoded body of `frame`.
    """
    client = federation.check_certificate(body.certificate, now_ms)
    verify_signed(frame, body.certificate.client_key, federation.id)
    if body.announcement_hash != opened.hash or body.round_id != opened.body.round_id:
        found = f"a release of another round by {client.hex()}"
        raise PeerError("release", found=found, expected=opened.hash.hex())
    randomiser.check(body, opened.body)
    return client


def receipt_of(body: Release) -> Receipt:
    """The trainer's proof to the client that it keeps the release."""
    return Receipt(body.round_id, body.contribution, _words(body.receipt_key)[0])


def late_word_of(body: Release) -> Receipt:
    """The trainer's word to the client that its release came after the round had ended."""
    return Receipt(body.round_id, body.contribution, _words(body.receipt_key)[1])


def _words(key: bytes) -> tuple[bytes, bytes]:
    """The tags by which a trainer says that it keeps a release, and that it came too late."""
    return derive(key, b"dca4-receipt", size=ID_BYTES), derive(key, b"dca4-late", size=ID_BYTES)


def _hashes(opened: OpenedAnnouncement, members: Members) -> Hashes:
    """What identifies some releases: the announcement, and the signed bytes of all."""
    parts = (part for client, frame in members for part in (client, encode(frame)))
    return Hashes(opened.hash, digest(b"dca4-releases", opened.hash, *parts))
