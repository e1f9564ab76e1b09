"""Requests to a trainer for rounds of the three kinds (DESIGN §4.1, §5), and the requests that wait for keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS, Mechanism
from dca_proto.protocol.announcement import invitation_root, last_commit_ms, open_epoch_key
from dca_proto.protocol.facts import RoundFailed
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.kinds import LdpReport, NodeRelease, SecureSum, ValidatedRound, validate_announcement
from dca_proto.protocol.ledger import Charge, CostToClients
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.wire.codec import decode_body, encode
from dca_proto.protocol.wire.messages import Announcement, EpochKey, Signed
from dca_proto.statistics import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW

_EPOCH_KEY_BYTES_MAX = 128


class _Ask(msgspec.Struct, frozen=True, kw_only=True):
    """The base of the three kinds of requests; `relation` is the neighbouring relation under which noise protects."""

    relation: ClassVar[str] = REPLACE_ONE_CLIENT

    @property
    def computes(self) -> tuple[bytes, ...]:
        """Ids of the M Compute nodes; empty in a round without them."""
        return ()


class AskSecureSum(_Ask, frozen=True, kw_only=True, tag="secure-sum"):
    """A secure sum.

    Attributes:
        computes: ids of the M Compute nodes.
        tolerated: T, how many of the expected clients may drop out or collude.
        colluders: c, how many of these may collude.
        most: n_max, the most contributions in a sum; 0 for twice the number of expected clients.
    """

    computes: tuple[bytes, ...]
    tolerated: int
    colluders: int = 0
    most: int = 0

    def terms(self, epochs: tuple[Signed, ...], expected: int) -> SecureSum:
        """Return the terms: at least n_min = N - T + c contributions (DCA, Theorem 1). Raises `UsageError`.

        `expected` is N.
        """
        if self.colluders > self.tolerated:
            raise UsageError(
                f"c = {self.colluders} colluders exceed T = {self.tolerated}; lower c to {self.tolerated}, or raise T "
                f"to {self.colluders}"
            )
        fewest = expected - self.tolerated + self.colluders
        if fewest - 1 - self.colluders < 1:
            raise UsageError(
                f"N - T - 1 = {expected} - {self.tolerated} - 1 is below 1: no honest noise would be left; "
                + (f"lower T to at most {expected - 2}, or find at least" if expected > 1 else "find at least")
                + f" {self.tolerated + 2} clients"
            )
        return SecureSum(fewest, self.most or 2 * expected, self.colluders, epochs)


class AskNodeRelease(_Ask, frozen=True, kw_only=True, tag="node-release"):
    """A release by each data node."""

    relation: ClassVar[str] = REPLACE_ONE_ROW

    def terms(self, epochs: tuple[Signed, ...], expected: int) -> NodeRelease:
        return NodeRelease()


class AskLdpReport(_Ask, frozen=True, kw_only=True, tag="ldp-report"):
    """A report by each client, by a local mechanism."""

    mechanism: str

    def terms(self, epochs: tuple[Signed, ...], expected: int) -> LdpReport:
        if self.mechanism not in LOCAL_MECHANISMS:
            raise UsageError(f"mechanism {self.mechanism!r} makes no reports; use one of {', '.join(LOCAL_MECHANISMS)}")
        return LdpReport()


Ask = AskSecureSum | AskNodeRelease | AskLdpReport


class OpenRound(msgspec.Struct, frozen=True, kw_only=True):
    """Command: open a round.

    Attributes:
        round_id: 16 fresh random bytes.
        ask: the kind of the round, with its own terms.
        statistic: name of a registered statistic.
        parameters: its public parameters.
        epsilon, delta: quote the cost of the round.
        mu: is charged and determines the noise; 0 for the largest that (epsilon, delta) allows.
        rows_max: 0 for the mean of a client's rows, R for the sum of at most R.
        fraction_bits: f, the number of fraction bits of the fixed-point grid.
        clients_expected: N. For a secure sum, 0 asks the Compute nodes how many clients have a session. Without Compute
            nodes, the round ends once N clients have answered; 0 waits for all invited clients, or for `commit_by`.
        collect_window_ms: how long clients may contribute.
        commit_window_ms: how long the nodes may take to agree.
        invited: ids of the only clients that receive the announcement and are charged; empty for everybody.
    """

    round_id: bytes
    ask: Ask
    statistic: str
    parameters: dict[str, Any]
    epsilon: float
    delta: float
    mu: float = 0.0
    rows_max: int = 0
    fraction_bits: int = 24
    clients_expected: int = 0
    collect_window_ms: int = 60_000
    commit_window_ms: int = 60_000
    invited: tuple[bytes, ...] = ()

    @property
    def answers_expected(self) -> int:
        """Number of clients that may answer; 0 if unknown."""
        return self.clients_expected or len(self.invited)

    @property
    def cost_to_clients(self) -> CostToClients:
        """The round's cost, and the clients that it costs."""
        return CostToClients(self.cost, frozenset(self.invited))

    @property
    def cost(self) -> PrivacyCost:
        """The round's cost to a client. Raises `UsageError` for values out of range."""
        return PrivacyCost.of_mu(self.mu) if self.mu and self.delta else PrivacyCost.of(self.epsilon, self.delta)

    def charge(self, trainer: bytes, number: int, now_ms: int) -> Charge:
        """Return the charge of this round in the trainer's account."""
        cost = (self.cost.mu, float(self.epsilon), float(self.delta))
        identity = (self.round_id, self.statistic, trainer)
        return Charge(*identity, *cost, now_ms, number, clients=self.invited, relation=self.ask.relation)

    def announcement(
        self,
        trainer: bytes,
        file: tuple[int, bytes],
        mechanism: str,
        epochs: tuple[Signed, ...],
        reply_key: bytes,
        now_ms: int,
    ) -> Announcement:
        """Return the announcement of this round at `now_ms`. Raises `UsageError`.

        `file` is the number and hash of the trainer's federation file. `mechanism` is the trainer's own, for kinds that
        name none.
        """
        close_by_ms = now_ms + self.collect_window_ms
        return Announcement(
            round_id=self.round_id,
            trainer=trainer,
            federation_number=file[0],
            federation_hash=file[1],
            statistic=self.statistic,
            parameters=self.parameters,
            rows_max=self.rows_max,
            fraction_bits=self.fraction_bits,
            mechanism=self.ask.mechanism if isinstance(self.ask, AskLdpReport) else mechanism,
            mu=self.cost.mu,
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            terms=self.ask.terms(epochs, self.answers_expected),
            reply_key=reply_key,
            invited=invitation_root(sorted(self.invited)),
            close_by_ms=close_by_ms,
            commit_by_ms=close_by_ms + self.commit_window_ms,
        )

    def draft(self, mechanism: Mechanism, limits: Limits) -> tuple[Announcement, ValidatedRound]:
        """Return the announcement with placeholder keys, and its numbers, as every participant checks them.

        Raises `UsageError` if the round is invalid.
        """
        epochs = tuple(Signed(bytes(_EPOCH_KEY_BYTES_MAX), bytes(64)) for _ in self.ask.computes)
        placeholders = (bytes(ID_BYTES), (1, bytes(KEY_BYTES)), mechanism.name, epochs, bytes(KEY_BYTES))
        draft = self.announcement(*placeholders, now_ms=0)
        return draft, validate_announcement(draft, mechanism, limits)

    def check(self, federation: Federation, mechanism: Mechanism, limits: Limits, timing: Timing) -> None:
        """Check in advance what every participant will check. Raises `UsageError` if the round is invalid."""
        known = {member.id for member in federation.computes}
        unknown = [compute.hex() for compute in self.ask.computes if compute not in known]
        if unknown:
            raise UsageError(
                f"not in the federation file (any more): Compute node {', '.join(unknown)}; name only nodes of the file"
            )
        if len(set(self.ask.computes)) < len(self.ask.computes):
            raise UsageError("a Compute node is named twice; name each once")
        self._check_invited(limits)
        self._check_windows(timing)
        if isinstance(self.ask, AskSecureSum) and not self.answers_expected:
            return  # checked again when the Compute nodes have reported how many clients have a session
        draft, _ = self.draft(mechanism, limits)
        try:
            encoded = encode(draft)
            decode_body(encoded)
        except (PeerError, TypeError, OverflowError) as error:
            raise UsageError(f"round {self.round_id.hex()} cannot be announced: {error}") from None
        if len(encoded) > limits.announcement_bytes_max:
            raise UsageError(
                f"the announcement would have {len(encoded)} bytes, expected at most {limits.announcement_bytes_max}; "
                "ask for fewer columns or bins"
            )

    def _check_windows(self, timing: Timing) -> None:
        if min(self.collect_window_ms, self.commit_window_ms) < 1:
            raise UsageError("a window of the round is shorter than 1 ms; give each at least 1 ms")
        longest_ms = timing.epoch_ms + timing.epoch_grace_ms - timing.abort_grace_ms
        if self.collect_window_ms + self.commit_window_ms >= longest_ms and self.ask.computes:
            raise UsageError(
                f"the windows add up to {self.collect_window_ms + self.commit_window_ms} ms, longer than a round may "
                f"use a Compute node's key ({longest_ms} ms); shorten them"
            )

    def _check_invited(self, limits: Limits) -> None:
        invited = set(self.invited)
        if len(invited) < len(self.invited) or any(len(client) != ID_BYTES for client in invited):
            raise UsageError(f"a client is invited twice, or an id is not {ID_BYTES} bytes; give each client's id once")
        if len(invited) > limits.invited_max:
            raise UsageError(
                f"{len(invited)} clients are invited, expected at most {limits.invited_max}; invite fewer, or none"
            )
        if invited and self.clients_expected > len(invited):
            raise UsageError(
                f"{self.clients_expected} clients are expected and {len(invited)} are invited; expect at most "
                f"{len(invited)}, or invite more"
            )


def tolerated_of(batch: int, clients: int, tolerated: int, colluders: int) -> int:
    """Return T for a mini-batch of B clients: the same fraction may drop out, and all c colluders may be in it.

    `clients`, `tolerated` and `colluders` are N, T and c of a round open to all clients.
    """
    return colluders + math.ceil((tolerated - colluders) * batch / clients)


class WaitingRequests:
    """Requests that a trainer cannot announce yet, because it needs every node's epoch key first (DESIGN §2.2).

    It also keeps the newest published key of each Compute node.

    Attributes:
        requests: the waiting requests, by round id.
        sessions: how many clients have a session, by each Compute node's latest answer.
    """

    def __init__(self, federation: Federation, timing: Timing) -> None:
        self.requests: dict[bytes, OpenRound] = {}
        self._federation = federation
        self._timing = timing
        self._keys: dict[bytes, tuple[EpochKey, Signed]] = {}
        self.sessions: dict[bytes, int] = {}

    def note(self, sender: bytes, frame: Signed, now_ms: int) -> None:
        """Keep a published key. Raises `PeerError` if it is forged, outdated, or far ahead of the clock."""
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
        """Switch to a newer federation file. If its Compute nodes differ, waiting secure sums fail, at no cost."""
        is_changed, self._federation = federation.computes != self._federation.computes, federation
        failed = [request.round_id for request in self.requests.values() if request.ask.computes and is_changed]
        for round_id in failed:
            del self.requests[round_id]
        reason = f"{federation.title} names other Compute nodes; request the round again"
        return [RoundFailed(round_id, reason, None, None) for round_id in failed]

    def reserved(self, beside: Iterable[OpenRound]) -> list[CostToClients]:
        """Return the costs of the waiting requests and of others `beside` them."""
        requests = {request.round_id: request for request in (*self.requests.values(), *beside)}
        return [request.cost_to_clients for request in requests.values()]

    def take_ready(self, now_ms: int) -> list[OpenRound]:
        """Remove and return the requests for which all keys and the number of clients are known."""
        ready = [r for r in self.requests.values() if not self.missing(r, now_ms) and not self.uncounted(r)]
        for request in ready:
            del self.requests[request.round_id]
        return [self._counted(request) for request in ready]

    def missing(self, request: OpenRound, now_ms: int) -> tuple[bytes, ...]:
        """Return the request's Compute nodes without a known key that outlasts the round."""
        commit_ms = now_ms + request.collect_window_ms + request.commit_window_ms
        lasting = {
            compute
            for compute, (key, _) in self._keys.items()
            if commit_ms <= last_commit_ms(key.expires_ms, self._timing)
        }
        return tuple(compute for compute in request.ask.computes if compute not in lasting)

    def uncounted(self, request: OpenRound) -> tuple[bytes, ...]:
        """Return the Compute nodes whose number of sessions the request still needs."""
        if request.answers_expected:
            return ()
        return tuple(compute for compute in request.ask.computes if compute not in self.sessions)

    def _counted(self, request: OpenRound) -> OpenRound:
        """Return the request with its number of clients: if not given, the smallest number of sessions at a node."""
        if request.answers_expected or not request.ask.computes:
            return request
        clients = min(self.sessions[compute] for compute in request.ask.computes)
        return msgspec.structs.replace(request, clients_expected=clients)

    def keys_of(self, request: OpenRound) -> tuple[Signed, ...]:
        """Return the signed keys of a ready request's Compute nodes."""
        return tuple(self._keys[compute][1] for compute in request.ask.computes)

    def give_up(self, round_id: bytes, now_ms: int, dropped: Mapping[bytes, str]) -> RoundFailed | None:
        """Remove a request that has waited too long. Return its failure, or None if it no longer waits.

        `dropped` has, by Compute node, the error for which its last dropped message was dropped.
        """
        request = self.requests.pop(round_id, None)
        if request is None:
            return None
        reasons: list[tuple[bytes, str]] = []
        for compute in self.missing(request, now_ms):
            why = "has published no epoch key; is it up?"
            if compute in self._keys:
                why = "has an epoch key that ends before the round does; is its clock right?"
            elif compute in dropped:
                why = f"has no epoch key here; what came in its name was dropped: {dropped[compute]}"
            reasons.append((compute, why))
        uncounted = "has not reported how many clients have a session"
        reasons = reasons or [(compute, uncounted) for compute in self.uncounted(request)]
        text = "; ".join(f"Compute node {self._federation.name_of(compute)} {why}" for compute, why in reasons)
        return RoundFailed(round_id, text, None, None)
