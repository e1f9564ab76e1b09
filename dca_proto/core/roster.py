"""The roster as a Compute node checks it: every join, its enrolment, N, and its own floors (DESIGN §4.3)."""

from __future__ import annotations

import itertools

import msgspec

from dca_proto.core.codec import decode_body, open_signed
from dca_proto.core.errors import PeerError, UsageError
from dca_proto.core.federation import Federation
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.messages import EpochKey, Join, Roster, Signed, Terms
from dca_proto.core.params import Limits
from dca_proto.core.plan import Plan, ask, plan_round
from dca_proto.core.policy import Floors, Refusal
from dca_proto.core.round import OpenedAnnouncement, check_terms, open_announcement, roster_hash, session_hash
from dca_proto.core.sealing import actor_id
from dca_proto.core.shares import VECTOR, vector_node


class CheckedRoster(msgspec.Struct, frozen=True):
    """A roster whose signatures hold and whose numbers fit.

    Attributes:
        announcement: opened. terms: of the start. session: their hash.
        clients: ids, sorted. positions: id -> index. client_keys: X25519 public keys, in the same order.
        plan: the round's numbers. own: the Compute node's own epoch key. own_index: its place among the M.
    """

    announcement: OpenedAnnouncement
    terms: Terms
    session: bytes
    clients: tuple[bytes, ...]
    positions: dict[bytes, int]
    client_keys: tuple[bytes, ...]
    plan: Plan
    own: EpochKey
    own_index: int

    @property
    def round_id(self) -> bytes:
        return self.announcement.body.round_id

    @property
    def trainer(self) -> bytes:
        return self.announcement.body.trainer

    def sends_vector(self, client: bytes) -> bool:
        """Whether that client's share for this node is a full vector rather than a seed."""
        if self.announcement.body.encoding == VECTOR:
            return True
        return vector_node(self.round_id, client, len(self.announcement.epochs)) == self.own_index

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
    claimed = decode_body(frame.body)
    if not isinstance(claimed, Roster):
        raise PeerError("kind", found=type(claimed).__name__, expected="Roster")
    announcement = open_announcement(claimed.announcement, federation, limits)
    body = open_signed(frame, federation.trainer(announcement.body.trainer).key, federation.hash, Roster)
    if body.round_id != announcement.body.round_id or body.terms.announcement_hash != announcement.hash:
        raise PeerError("announcement", found="a roster of another announcement", expected=announcement.hash.hex())
    if own not in announcement.computes:
        raise PeerError("computes", found="a round without this Compute node", expected="one that names it")
    if not len(body.joins) == body.terms.clients <= limits.clients_max:
        raise PeerError("roster", found=f"{len(body.joins)} joins", expected=f"N = {body.terms.clients}")
    members = [_check_join(join, announcement, federation, now_ms) for join in body.joins]
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
        plan=_plan(announcement, len(clients), mechanism, limits),
        own=announcement.epochs[own_index],
        own_index=own_index,
    )


def _check_join(
    frame: Signed, announcement: OpenedAnnouncement, federation: Federation, now_ms: int
) -> tuple[bytes, Join]:
    claimed = decode_body(frame.body)
    if not isinstance(claimed, Join):
        raise PeerError("kind", found=type(claimed).__name__, expected="Join")
    return open_join(frame, claimed, announcement, federation, now_ms)


def open_join(
    frame: Signed, claimed: Join, announcement: OpenedAnnouncement, federation: Federation, now_ms: int
) -> tuple[bytes, Join]:
    """The client's id and its join, if certificate and signature hold and it joins this round. Raises `PeerError`."""
    client = federation.check_certificate(claimed.certificate, now_ms)
    join = open_signed(frame, claimed.certificate.client_key, federation.hash, Join)
    if join.announcement_hash != announcement.hash or join.round_id != announcement.body.round_id:
        raise PeerError("join", found=f"a join of another round by {actor_id(join.certificate.client_key).hex()}",
                        expected=announcement.hash.hex())  # fmt: skip
    return client, join


def _plan(announcement: OpenedAnnouncement, clients: int, mechanism: Mechanism, limits: Limits) -> Plan:
    try:
        return plan_round(announcement.body, ask(announcement.body, mechanism, limits), clients, mechanism)
    except UsageError as error:
        raise PeerError("plan", found=str(error), expected="a round whose noise and sum fit") from None
