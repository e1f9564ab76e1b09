"""What one client says by itself in a local round, and what the trainer makes of all: both sides of the wire.

A *local randomiser* (Kasiviswanathan et al. 2008) turns one client's value into what it releases, private by itself. A
data node releases the sum over its rows with the whole noise, and how many rows that is of (DESIGN §4.8); a client
reports by a local mechanism, and nobody learns whether it has a row (§4.9). All else about these rounds is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from dca_proto.core.codec import decode_body
from dca_proto.core.combine import Hashes, release_of, reported, together
from dca_proto.core.errors import PeerError
from dca_proto.core.fixedpoint import ring_from_bytes, ring_to_bytes
from dca_proto.core.mechanism import LocalMechanism, Mechanism
from dca_proto.core.messages import Announcement, Release, Signed
from dca_proto.core.plan import Plan
from dca_proto.core.round import OpenedAnnouncement, list_hash, roster_hash
from dca_proto.core.upload import add_noise

Members = Sequence[tuple[bytes, Signed]]
"""Signed releases, each with its client's id, sorted by these."""


class Randomiser(Protocol):
    """How the clients of one local round release."""

    @property
    def who(self) -> str:
        """Who takes part, in words."""

    def release(self, value: NDArray[np.int64], rows: int, key: bytes) -> tuple[int, bytes]:
        """At the client: the `rows` and the `vector` of its `Release`.

        Args:
            value: its contribution, in grid units, shape ``(dimension,)``. rows: how many of its rows count.
            key: 32 fresh secret bytes, for this call alone.
        """

    def check(self, body: Release, asked: Announcement) -> None:
        """At the trainer. Raises `PeerError` for what no client of this round can have released."""

    def result(self, opened: OpenedAnnouncement, members: Members) -> NoisyAggregate:
        """What releases that were checked come to, one or more."""


class WholeNoise(msgspec.Struct, frozen=True):
    """A data node's: the ring's bytes of its sum with the noise of one honest share.

    Attributes:
        plan: of each release. mechanism: of the noise.
    """

    plan: Plan
    mechanism: Mechanism
    who: str = "data node"

    def release(self, value: NDArray[np.int64], rows: int, key: bytes) -> tuple[int, bytes]:
        return rows, ring_to_bytes(add_noise(value, self.plan, self.mechanism, key))

    def check(self, body: Release, asked: Announcement) -> None:
        if body.rows > asked.rows_max:
            raise PeerError("release", found=f"{body.rows} rows", expected=f"<= {asked.rows_max}")
        ring_from_bytes(body.vector, self.plan.dimension)

    def result(self, opened: OpenedAnnouncement, members: Members) -> NoisyAggregate:
        """Each node's release, and their sum."""
        private, nodes = self.mechanism.private, []
        for member in members:
            body, hashes = opened_release(member[1]), _hashes(opened, [member])
            noisy = ring_from_bytes(body.vector, self.plan.dimension)
            nodes.append(release_of(opened.body, self.plan, noisy, body.rows, hashes, private=private))
        return together(nodes, _hashes(opened, members))


class Reporting(msgspec.Struct, frozen=True):
    """A client's report, encoded by its mechanism. Its `rows` is 1: how many it has is its data.

    Attributes:
        plan: of each report. mechanism: by which all report.
    """

    plan: Plan
    mechanism: LocalMechanism
    who: str = "client"

    def release(self, value: NDArray[np.int64], rows: int, key: bytes) -> tuple[int, bytes]:
        (report,) = self.mechanism.randomise(self.mechanism.held(value[np.newaxis]), key)
        return 1, self.mechanism.encode(report)

    def check(self, body: Release, asked: Announcement) -> None:
        if body.rows != 1:
            raise PeerError("release", found=f"a report of {body.rows} rows", expected="1, whatever a client has")
        self.mechanism.decode(body.vector)

    def result(self, opened: OpenedAnnouncement, members: Members) -> NoisyAggregate:
        """All reports, and the sum that they tell of."""
        reports = np.array([self.mechanism.decode(opened_release(frame).vector) for _, frame in members])
        clients = tuple(client for client, _ in members)
        return reported(opened.body, self.plan, self.mechanism, reports, clients, _hashes(opened, members))


def randomiser_of(plan: Plan, mechanism: Mechanism) -> Randomiser:
    """How the clients of a local round release.

    Args:
        plan: of each release or report. mechanism: that the actor offers for data nodes.
    """
    report = plan.question.report
    return WholeNoise(plan, mechanism) if report is None else Reporting(plan, report)


def opened_release(frame: Signed) -> Release:
    """A release that was checked when it came."""
    body = decode_body(frame.body)
    assert isinstance(body, Release), "it was kept as one"
    return body


def _hashes(opened: OpenedAnnouncement, members: Members) -> Hashes:
    """What identifies some releases: the announcement, who they are of, and their signed bytes."""
    listed = list_hash(opened.hash, b"".join(client for client, _ in members))
    return Hashes(opened.hash, listed, roster_hash(members))
