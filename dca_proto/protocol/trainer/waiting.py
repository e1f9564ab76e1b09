"""Requested rounds that a trainer cannot announce yet, because it lacks a node's epoch key (DESIGN §2.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dca_proto.errors import PeerError
from dca_proto.protocol.announcement import last_commit_ms, open_epoch_key
from dca_proto.protocol.facts import RoundFailed
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.ledger import Cost
from dca_proto.protocol.params import Timing
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.messages import EpochKey, SessionsWanted, Signed


class Waiting:
    """Requests, and the newest key of each Compute node as it was published.

    Args:
        federation: only its Compute nodes' keys are accepted.

    Attributes:
        requests: those that wait, by round id.
        sessions: how many clients have a session, by each Compute node's latest answer.
    """

    def __init__(self, federation: Federation, timing: Timing) -> None:
        self.requests: dict[bytes, OpenRound] = {}
        self._federation = federation
        self._timing = timing
        self._keys: dict[bytes, tuple[EpochKey, Signed]] = {}
        self.sessions: dict[bytes, int] = {}

    def note(self, sender: bytes, frame: Signed, now_ms: int) -> None:
        """Keep a published key. Raises `PeerError` for a forged one, an older one, and one far ahead of the clock."""
        key = open_epoch_key(frame, self._federation)
        if sender != key.compute:
            raise PeerError("sender", found=sender.hex(), expected=key.compute.hex())
        known, latest = self._keys.get(sender), now_ms // self._timing.epoch_ms + 1
        if key.epoch > latest:
            expected = f"at most {latest} by this clock; one of the two clocks is wrong"
            raise PeerError("epoch", found=f"epoch {key.epoch}", expected=expected)
        if known is not None and key.epoch < known[0].epoch <= latest:
            raise PeerError("epoch", found=f"epoch {key.epoch}", expected=f">= {known[0].epoch}")
        self._keys[sender] = (key, frame)

    def adopt(self, federation: Federation) -> list[RoundFailed]:
        """Believe this file's Compute nodes from now on; requests for others' fail, and have cost nothing."""
        others, self._federation = federation.computes != self._federation.computes, federation
        failed = [one.round_id for one in self.requests.values() if one.ask.computes and others]
        for round_id in failed:
            del self.requests[round_id]
        reason = f"{federation.title} has come, which names other Compute nodes: hold the round again"
        return [RoundFailed(round_id, reason, None, None) for round_id in failed]

    def question(self, is_keyless: bool) -> SessionsWanted:
        """What a Compute node is asked; of one whose retained key is missing or was spoilt, the key is wanted, too."""
        return SessionsWanted(self._federation.stamp, is_keyless)

    def reserved(self, beside: Iterable[OpenRound]) -> list[Cost]:
        """What the requests that wait cost, and others beside them."""
        requests = {one.round_id: one for one in (*self.requests.values(), *beside)}
        return [request.cost for request in requests.values()]

    def take_ready(self, now_ms: int) -> list[OpenRound]:
        """Remove and return the requests for which all keys and the number of clients are known."""
        ready = [one for one in self.requests.values() if not self.missing(one, now_ms) and not self.uncounted(one)]
        for request in ready:
            del self.requests[request.round_id]
        return [self._counted(request) for request in ready]

    def missing(self, request: OpenRound, now_ms: int) -> tuple[bytes, ...]:
        """The Compute nodes without a key that outlasts the round."""
        commit_ms = now_ms + request.collect_window_ms + request.commit_window_ms
        lasting = {
            compute
            for compute, (key, _) in self._keys.items()
            if commit_ms <= last_commit_ms(key.expires_ms, self._timing)
        }
        return tuple(compute for compute in request.ask.computes if compute not in lasting)

    def uncounted_at(self, compute: bytes) -> tuple[bytes, ...]:
        """The Compute node, if a round waits for its number of sessions."""
        waits = any(compute in self.uncounted(request) for request in self.requests.values())
        return (compute,) if waits else ()

    def uncounted(self, request: OpenRound) -> tuple[bytes, ...]:
        """The Compute nodes that have not yet reported how many clients have a session."""
        if request.answers_expected:
            return ()
        return tuple(compute for compute in request.ask.computes if compute not in self.sessions)

    def _counted(self, request: OpenRound) -> OpenRound:
        """The request with its number of clients: of a secure sum without one, the least that a node said."""
        if request.answers_expected or not request.ask.computes:
            return request
        clients = min(self.sessions[compute] for compute in request.ask.computes)
        return msgspec.structs.replace(request, clients_expected=clients)

    def keys_of(self, request: OpenRound) -> tuple[Signed, ...]:
        """The signed keys of a request's Compute nodes, none of which is missing."""
        return tuple(self._keys[compute][1] for compute in request.ask.computes)

    def give_up(self, round_id: bytes, now_ms: int, dropped: Mapping[bytes, str]) -> RoundFailed | None:
        """Drop a request that has waited long enough, if it still waits.

        Args:
            dropped: why the last message in a Compute node's name was dropped.
        """
        request = self.requests.pop(round_id, None)
        if request is None:
            return None
        reasons = [(one, self._why_missing(one, dropped)) for one in self.missing(request, now_ms)]
        reasons = reasons or [(one, "has not said how many clients have a session") for one in self.uncounted(request)]
        told = "; ".join(f"Compute node {self._federation.name_of(one)} {why}" for one, why in reasons)
        return RoundFailed(round_id, told, None, None)

    def _why_missing(self, compute: bytes, dropped: Mapping[bytes, str]) -> str:
        """Why a node has no epoch key that suffices for a round."""
        if compute in self._keys:
            return "has an epoch key that ends before the round does; is its clock right?"
        if compute in dropped:
            return f"has no epoch key here; what came in its name was dropped: {dropped[compute]}"
        return "has published no epoch key; is it up?"
