"""Rounds that a trainer is asked for and cannot announce yet, for it needs every node's epoch key (DESIGN §2)."""

from __future__ import annotations

from collections.abc import Iterable

from dca_proto.core.errors import PeerError
from dca_proto.core.facts import RoundFailed
from dca_proto.core.federation import Federation
from dca_proto.core.ledger import Cost
from dca_proto.core.messages import EpochKey, Signed
from dca_proto.core.params import Timing
from dca_proto.core.round import open_epoch_key
from dca_proto.core.trainer_round import OpenRound


class Waiting:
    """Requests, and the newest key of each Compute node as it was published.

    Args:
        federation: whose Compute nodes are believed.

    Attributes:
        requests: those that wait, by round id.
    """

    def __init__(self, federation: Federation, timing: Timing) -> None:
        self.requests: dict[bytes, OpenRound] = {}
        self._federation = federation
        self._timing = timing
        self._keys: dict[bytes, tuple[EpochKey, Signed]] = {}

    def note(self, sender: bytes, frame: Signed) -> None:
        """Keep a published key. Raises `PeerError` for a forged or an older one."""
        key = open_epoch_key(frame, self._federation)
        if sender != key.compute:
            raise PeerError("sender", found=sender.hex(), expected=key.compute.hex())
        known = self._keys.get(sender)
        if known is not None and key.epoch < known[0].epoch:
            raise PeerError("epoch", found=f"epoch {key.epoch}", expected=f">= {known[0].epoch}")
        self._keys[sender] = (key, frame)

    def reserved(self, beside: Iterable[OpenRound]) -> list[Cost]:
        """What the requests that wait cost, and others beside them."""
        requests = {one.round_id: one for one in (*self.requests.values(), *beside)}
        return [request.cost for request in requests.values()]

    def take_ready(self, now_ms: int) -> list[OpenRound]:
        """The requests whose Compute nodes' current keys are all known; they wait no longer."""
        ready = [request for request in self.requests.values() if not self.missing(request, now_ms)]
        for request in ready:
            del self.requests[request.round_id]
        return ready

    def missing(self, request: OpenRound, now_ms: int) -> tuple[bytes, ...]:
        """The Compute nodes without a key that is current, and still will be kept when the roster comes."""
        roster_ms = now_ms + request.join_window_ms - self._timing.epoch_grace_ms
        latest_ms = max(now_ms, roster_ms)
        current = {compute for compute, (key, _) in self._keys.items() if latest_ms < key.expires_ms}
        return tuple(compute for compute in request.computes if compute not in current)

    def keys_of(self, request: OpenRound) -> tuple[Signed, ...]:
        """The signed keys of a request's Compute nodes, none of which is missing."""
        return tuple(self._keys[compute][1] for compute in request.computes)

    def give_up(self, round_id: bytes, now_ms: int) -> RoundFailed | None:
        """Drop a request that has waited long enough, if it still waits."""
        request = self.requests.pop(round_id, None)
        if request is None:
            return None
        names = ", ".join(self._federation.compute(one).name for one in self.missing(request, now_ms))
        reason = f"no epoch key of Compute node {names} that lasts until the roster; is it up?"
        return RoundFailed(round_id, reason, None, None)
