"""The roster as a Compute node checks it: every join, its enrolment, N, and its own floors (DESIGN §4.3)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import msgspec

from dca_proto.core.codec import decode_body, verify_signed
from dca_proto.core.errors import PeerError, UsageError
from dca_proto.core.federation import Federation
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.messages import Announcement, EpochKey, Join, Roster, Signed, Terms
from dca_proto.core.params import Limits
from dca_proto.core.plan import Plan, ask, plan_round
from dca_proto.core.policy import Floors, Refusal
from dca_proto.core.round import OpenedAnnouncement, check_terms, open_announcement, roster_hash, session_hash
from dca_proto.core.shares import VECTOR, vector_node


class CheckedRoster(msgspec.Struct, frozen=True):
    """A roster whose signatures hold and whose numbers fit.

    Attributes:
        announcement: opened. terms: of the start. session: their hash.
        clients: ids, sorted. positions: id -> index. client_keys: X25519 public keys, in the same order.
        vectors: the positions of the clients whose share for this node is a full vector rather than a seed.
        plan: the round's numbers. own: the Compute node's own epoch key. own_index: its place among the M.
    """

    announcement: OpenedAnnouncement
    terms: Terms
    session: bytes
    clients: tuple[bytes, ...]
    positions: dict[bytes, int]
    client_keys: tuple[bytes, ...]
    vectors: Collection[int]
    plan: Plan
    own: EpochKey
    own_index: int

    @property
    def round_id(self) -> bytes:
        return self.announcement.body.round_id

    @property
    def trainer(self) -> bytes:
        return self.announcement.body.trainer

    def check_fresh(self, sender: bytes, now_ms: int) -> None:
        """No round opens after its deadline, or from another than its trainer. Raises `PeerError`."""
        if sender != self.trainer:
            raise PeerError("sender", found=sender.hex(), expected=self.trainer.hex())
        check_terms(self.terms, self.announcement, now_ms)

    def refusal(self, floors: Floors) -> Refusal | None:
        """What the Compute node's own floors say."""
        if floors.trainers and self.trainer.hex() not in floors.trainers:
            return Refusal("trainer", self.trainer.hex(), "one of this node's trainers")
        return floors.check_size(self.plan.clients, self.plan.tolerated)


def check_roster(
    frame: Signed, federation: Federation, mechanism: Mechanism, limits: Limits, own: bytes, now_ms: int
) -> CheckedRoster:
    """Check a roster against the federation file. Raises `PeerError` that names what is wrong.

    Args:
        own: id of the Compute node that checks. now_ms: for the certificates' expiry.
    """
    body = decode_body(frame.body)
    if not isinstance(body, Roster):
        raise PeerError("kind", found=type(body).__name__, expected="Roster")
    announcement = open_announcement(body.announcement, federation, limits)
    verify_signed(frame, federation.trainer(announcement.body.trainer).key, federation.hash)
    if body.round_id != announcement.body.round_id or body.terms.announcement_hash != announcement.hash:
        raise PeerError("announcement", found="a roster of another announcement", expected=announcement.hash.hex())
    if own not in announcement.computes:
        raise PeerError("computes", found="a round without this Compute node", expected="one that names it")
    if not len(body.joins) == body.terms.clients <= limits.clients_max:
        raise PeerError("roster", found=f"{len(body.joins)} joins", expected=f"N = {body.terms.clients}")
    members = [_open_join(join, announcement, federation, now_ms) for join in body.joins]
    clients = tuple(client for client, _ in members)
    if any(later <= earlier for earlier, later in itertools.pairwise(clients)):
        raise PeerError("roster", found="clients out of order or twice", expected="ids sorted, each once")
    if roster_hash(list(zip(clients, body.joins, strict=True))) != body.terms.roster_hash:
        raise PeerError("roster", found="another roster's hash", expected="the hash of the joins")
    own_index = announcement.computes.index(own)
    return CheckedRoster(
        announcement=announcement,
        terms=body.terms,
        session=session_hash(body.terms),
        clients=clients,
        positions={client: position for position, client in enumerate(clients)},
        client_keys=tuple(join.public for _, join in members),
        vectors=_vectors(announcement.body, clients, own_index),
        plan=_plan(announcement, len(clients), mechanism, limits),
        own=announcement.epochs[own_index],
        own_index=own_index,
    )


def _open_join(
    frame: Signed, announcement: OpenedAnnouncement, federation: Federation, now_ms: int
) -> tuple[bytes, Join]:
    join = decode_body(frame.body)
    if not isinstance(join, Join):
        raise PeerError("kind", found=type(join).__name__, expected="Join")
    return check_join(frame, join, announcement, federation, now_ms), join


def check_join(
    frame: Signed, join: Join, announcement: OpenedAnnouncement, federation: Federation, now_ms: int
) -> bytes:
    """The client's id, if certificate and signature hold and it joins this round. Raises `PeerError`.

    Args:
        join: the decoded body of `frame`.
    """
    client = federation.check_certificate(join.certificate, now_ms)
    verify_signed(frame, join.certificate.client_key, federation.hash)
    if join.announcement_hash != announcement.hash or join.round_id != announcement.body.round_id:
        found = f"a join of another round by {client.hex()}"
        raise PeerError("join", found=found, expected=announcement.hash.hex())
    return client


def _vectors(body: Announcement, clients: Sequence[bytes], own_index: int) -> Collection[int]:
    if body.encoding == VECTOR:
        return range(len(clients))
    nodes = (vector_node(body.round_id, client, len(body.computes)) for client in clients)
    return frozenset(position for position, node in enumerate(nodes) if node == own_index)


def _plan(announcement: OpenedAnnouncement, clients: int, mechanism: Mechanism, limits: Limits) -> Plan:
    try:
        return plan_round(announcement.body, ask(announcement.body, mechanism, limits), clients, mechanism)
    except UsageError as error:
        raise PeerError("plan", found=str(error), expected="a round whose noise and sum fit") from None
