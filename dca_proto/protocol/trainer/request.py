"""The command that opens a round (DESIGN §4.1, §5), and the requests that wait for keys."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dca_proto.crypto.masks import ENTRY_BYTES, TAG_BYTES
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, Random
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.announcement import invitation_root, last_commit_ms, open_epoch_key
from dca_proto.protocol.facts import RoundFailed
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.keyring import too_far_ahead
from dca_proto.protocol.ledger import Charge, CostToClients
from dca_proto.protocol.params import MESSAGE_BYTES_MAX, MIB, Limits, Timing
from dca_proto.protocol.terms import Windows, check_ranges
from dca_proto.protocol.validation import ValidatedRound, relation_of, validate_announcement
from dca_proto.protocol.verified import slack_of, with_noise
from dca_proto.protocol.wire.codec import decode_body, encode
from dca_proto.protocol.wire.fields import REPEATS_MAX, WindowSeconds
from dca_proto.protocol.wire.kinds import Kind, VerifiedSum
from dca_proto.protocol.wire.messages import Announcement, EpochKey, Sessions, Signed
from dca_proto.statistics import resolve
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.reach import require_reach
from dca_proto.wording import duration, moment

_EPOCH_KEY_BYTES_MAX = 128


class OpenRound(Windows, frozen=True, kw_only=True):
    """Command: open a round.

    Attributes:
        round_id: 16 fresh random bytes.
        kind: the kind of the round, with its own terms. Its `clients` is N. For a secure sum, 0 asks the Compute nodes
            how many clients have a session. Without Compute nodes, the round ends once N clients have answered; 0 waits
            for all invited clients, or for `commit_by`.
        computes: ids of the M Compute nodes; empty in a round without them.
        statistic: name of a registered statistic.
        parameters: its public parameters.
        epsilon, delta: quote the cost of the round.
        mu: is charged and determines the noise; 0 for the largest that (epsilon, delta) allows.
        rows_max: 0 for the mean of a client's rows, R for the sum of at most R.
        fraction_bits: f, the number of fraction bits of the fixed-point grid.
        window_s: from how many seconds ago a client's rows have to be; 0 for any.
        invited: ids of the only clients that receive the announcement and are charged; empty for everybody.
        repeats: ids of the cancelled rounds that this one repeats, without the Compute nodes that were silent (§4.8).
    """

    round_id: bytes
    kind: Kind
    computes: tuple[bytes, ...] = ()
    statistic: str
    parameters: dict[str, Any]
    epsilon: float
    delta: float
    mu: float = 0.0
    rows_max: int = 0
    fraction_bits: int = 24
    window_s: WindowSeconds = 0
    invited: tuple[bytes, ...] = ()
    repeats: tuple[bytes, ...] = ()

    @property
    def answers_expected(self) -> int:
        """Number of clients that may answer; 0 if unknown."""
        return self.kind.clients or len(self.invited)

    @property
    def cost_to_clients(self) -> CostToClients:
        """The round's cost, and the clients that it costs."""
        return CostToClients(self.cost, frozenset(self.invited))

    @property
    def cost(self) -> PrivacyCost:
        """The round's cost to a client. Raises `UsageError` for values out of range."""
        if self.kind.is_verified:
            slack = slack_of(resolve(self.statistic, self.parameters).dimension)
            largest = accounting.mu_of(float(self.epsilon), float(self.delta), slack)
            return PrivacyCost.of_mu(min(self.mu or largest, largest), slack)
        return PrivacyCost.of_mu(self.mu) if self.mu and self.delta else PrivacyCost.of(self.epsilon, self.delta)

    def charge(self, trainer: bytes, number: int, now_ms: int) -> Charge:
        """Return the charge of this round in the trainer's account."""
        cost = (self.cost.mu, float(self.epsilon), float(self.delta))
        identity = (self.round_id, self.statistic, trainer)
        clients, relation = self.invited, relation_of(self.kind)
        return Charge(*identity, *cost, now_ms, number, clients=clients, relation=relation, slack=self.cost.slack)

    def announcement(
        self,
        trainer: bytes,
        file: tuple[int, bytes],
        mechanism: Mechanism,
        epochs: tuple[Signed, ...],
        reply_key: bytes,
        now_ms: int,
        ended: tuple[Signed, ...] = (),
    ) -> Announcement:
        """Return the announcement of this round at `now_ms`. Raises `UsageError`.

        `file` is the number and hash of the trainer's federation file. `mechanism` is the trainer's own, for kinds that
        name none. `ended` are the aborts of the rounds that it repeats.
        """
        close_by_ms = now_ms + self.collect_ms
        kind = msgspec.structs.replace(self.kind, clients=self.answers_expected)
        mu, fraction_bits = self.cost.mu, self.fraction_bits
        if isinstance(kind, VerifiedSum):
            statistic = resolve(self.statistic, self.parameters)
            kind, fraction_bits = with_noise(kind, statistic, self.rows_max, fraction_bits, mu, mechanism)
        else:
            kind = msgspec.structs.replace(kind, mechanism=kind.mechanism or mechanism.name)
        return Announcement(
            round_id=self.round_id,
            trainer=trainer,
            federation_number=file[0],
            federation_hash=file[1],
            statistic=self.statistic,
            parameters=self.parameters,
            rows_max=self.rows_max,
            fraction_bits=fraction_bits,
            mu=mu,
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            kind=kind,
            epochs=epochs,
            reply_key=reply_key,
            invited=invitation_root(sorted(self.invited)),
            close_by_ms=close_by_ms,
            commit_by_ms=close_by_ms + self.commit_ms,
            ended=ended,
            window_s=self.window_s,
        )

    def draft(self, mechanism: Mechanism, limits: Limits) -> tuple[Announcement, ValidatedRound]:
        """Return the announcement with placeholder keys, and its numbers, as every participant checks them.

        Raises `UsageError` if the round is invalid.
        """
        epochs = tuple(Signed(bytes(_EPOCH_KEY_BYTES_MAX), bytes(64)) for _ in self.computes)
        placeholders = (bytes(ID_BYTES), (1, bytes(KEY_BYTES)), mechanism, epochs, bytes(KEY_BYTES))
        draft = self.announcement(*placeholders, now_ms=0)
        validated = validate_announcement(draft, mechanism, limits)
        require_reach(validated.statistic, self.fraction_bits)
        return draft, validated

    def check_statistic(self) -> None:
        """Check what does not depend on the number of clients. Raises `UsageError`."""
        statistic = resolve(self.statistic, self.parameters)
        client_sensitivity(statistic, self.rows_max, self.fraction_bits)
        require_reach(statistic, self.fraction_bits)

    def check(self, federation: Federation, mechanism: Mechanism, limits: Limits, timing: Timing) -> None:
        """Check in advance what every participant will check. Raises `UsageError` if the round is invalid."""
        known = {member.id for member in federation.computes}
        unknown = [compute.hex() for compute in self.computes if compute not in known]
        if unknown:
            raise UsageError(
                f"not in the federation file (any more): Compute node {', '.join(unknown)}; name only nodes of the file"
            )
        if len(self.repeats) > REPEATS_MAX:
            raise UsageError(f"a request is repeated at most {REPEATS_MAX} times, found {len(self.repeats)}")
        if len(set(self.computes)) < len(self.computes):
            raise UsageError("a Compute node is named twice; name each once")
        self._check_invited(limits)
        self._check_windows(timing)
        if self.kind.is_summed and not self.answers_expected:
            self.check_statistic()
            return  # checked again when the Compute nodes have reported how many clients have a session
        self._check_lists()
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

    def _check_lists(self) -> None:
        """Check that each Compute node's list of the clients that it holds fits a message to the others."""
        nodes, clients = len(self.computes), self.answers_expected
        if nodes < 2 or _list_bytes(clients / nodes) <= MESSAGE_BYTES_MAX:
            return
        while _list_bytes(clients / nodes) > MESSAGE_BYTES_MAX:
            nodes += 1
        raise UsageError(
            f"{clients:,} clients at {len(self.computes)} Compute nodes make lists of more than "
            f"{MESSAGE_BYTES_MAX // MIB} MiB, the largest message; name at least {nodes} Compute nodes, or ask for "
            "fewer clients"
        )

    def _check_windows(self, timing: Timing) -> None:
        check_ranges(self)
        longest_ms = timing.epoch_ms + timing.epoch_grace_ms - timing.abort_grace_ms
        if self.collect_ms + self.commit_ms >= longest_ms and self.computes:
            raise UsageError(
                f"the windows add up to {duration(self.collect_ms + self.commit_ms)}, longer than a "
                f"round may use a Compute node's key ({duration(longest_ms)}); shorten them"
            )

    def _check_invited(self, limits: Limits) -> None:
        invited = set(self.invited)
        if len(invited) < len(self.invited) or any(len(client) != ID_BYTES for client in invited):
            raise UsageError(f"a client is invited twice, or an id is not {ID_BYTES} bytes; give each client's id once")
        if len(invited) > limits.invited_max:
            raise UsageError(
                f"{len(invited)} clients are invited, expected at most {limits.invited_max}; invite fewer, or none"
            )
        if self.kind.clients > len(invited) > 0:
            raise UsageError(
                f"{self.kind.clients} clients are expected and {len(invited)} are invited; expect at most "
                f"{len(invited)}, or invite more"
            )


def _list_bytes(held: float) -> float:
    """Return the most bytes of a node's list that holds so many clients on average, but once in 10⁹ rounds."""
    return (ENTRY_BYTES + TAG_BYTES) * (held + 6 * math.sqrt(held)) + 4096


class WaitingRequests:
    """Requests that a trainer cannot announce yet, because it needs every node's epoch key first (DESIGN §2.2).

    It also keeps the newest published key of each Compute node.

    Attributes:
        requests: the waiting requests, by round id.
        sessions: how many clients have a session, by each Compute node's latest answer; and when it came.
        ahead_ms: by how much each Compute node's clock was ahead of this one then, to half of the time that the answer
            took.
    """

    def __init__(self, federation: Federation, timing: Timing) -> None:
        self.requests: dict[bytes, OpenRound] = {}
        self._federation = federation
        self._timing = timing
        self._keys: dict[bytes, tuple[EpochKey, Signed]] = {}
        self.sessions: dict[bytes, tuple[int, int]] = {}
        self.ahead_ms: dict[bytes, float] = {}
        self._asked_ms: dict[bytes, int] = {}
        self._nonces: dict[bytes, bytes] = {}  # of the questions without an answer, by Compute node
        self._questions: Counter[bytes] = Counter()  # how often the nodes were asked, by round
        self._lost: dict[bytes, dict[bytes, int]] = {}  # nodes that were left out, and since when, by round

    def count_question(self, round_id: bytes) -> int:
        """Count a question for a waiting request; return how many there were before it."""
        self._questions[round_id] += 1
        return self._questions[round_id] - 1

    def nonce_of(self, compute: bytes, random: Random, now_ms: int) -> bytes:
        """Return the nonce for a question: a fresh one, or the one of an earlier question that has no answer yet."""
        if compute not in self._nonces:
            self._nonces[compute] = random(ID_BYTES)
        self._asked_ms[compute] = now_ms
        return self._nonces[compute]

    def note_sessions(self, compute: bytes, answer: Sessions, now_ms: int) -> None:
        """Record an answer. Raises `PeerError("nonce")` if it answers no open question: it was replayed."""
        if self._nonces.get(compute) != answer.nonce:
            found = f"an answer to {answer.nonce.hex()}"
            raise PeerError("nonce", found=found, expected="one to the latest question")
        del self._nonces[compute]
        self.sessions[compute] = (answer.count, now_ms)
        self.ahead_ms[compute] = answer.at_ms - (self._asked_ms[compute] + now_ms) / 2

    def forget_sessions(self, until_ms: int) -> None:
        """Forget all answers that came until then."""
        self.sessions = {compute: known for compute, known in self.sessions.items() if known[1] > until_ms}

    def note(self, sender: bytes, frame: Signed, now_ms: int) -> None:
        """Keep a published key. Raises `PeerError` if it is forged, outdated, or far ahead of the clock."""
        key = open_epoch_key(frame, self._federation)
        if sender != key.compute:
            raise PeerError("sender", found=sender.hex(), expected=key.compute.hex())
        name = self._federation.name_of(sender)
        known, latest = self._keys.get(sender), now_ms // self._timing.epoch_ms + 1
        if key.epoch > latest:
            expected = too_far_ahead(key.epoch, self._timing.epoch_ms, now_ms)
            raise PeerError("epoch", found=f"epoch {key.epoch} of Compute node {name}", expected=expected)
        if known is not None and key.epoch < known[0].epoch <= latest:
            raise PeerError("epoch", found=f"epoch {key.epoch} of Compute node {name}", expected=f">= {known[0].epoch}")
        self._keys[sender] = (key, frame)

    def adopt(self, federation: Federation) -> list[RoundFailed]:
        """Switch to a newer federation file. If its Compute nodes differ, waiting secure sums fail, at no cost."""
        is_changed, self._federation = federation.computes != self._federation.computes, federation
        failed = [request.round_id for request in self.requests.values() if request.computes and is_changed]
        for round_id in failed:
            self._remove(round_id)
            self.take_lost(round_id)
        reason = f"{federation.title} names other Compute nodes; request the round again"
        return [RoundFailed(round_id, reason, None, None) for round_id in failed]

    def reserved(self, others: Iterable[OpenRound]) -> list[CostToClients]:
        """Return the costs of the waiting requests and of `others`."""
        requests = {request.round_id: request for request in (*self.requests.values(), *others)}
        return [request.cost_to_clients for request in requests.values()]

    def take_ready(self, now_ms: int) -> list[OpenRound]:
        """Remove and return the requests for which all keys and the number of clients are known."""
        ready = [r for r in self.requests.values() if not self.missing(r, now_ms) and not self.uncounted(r)]
        for request in ready:
            self._remove(request.round_id)
        return [self._counted(request) for request in ready]

    def _remove(self, round_id: bytes) -> OpenRound | None:
        self._questions.pop(round_id, None)
        return self.requests.pop(round_id, None)

    def note_lost(self, round_id: bytes, nodes: dict[bytes, int]) -> None:
        """Note nodes without which a request goes on, and since when they are lost."""
        self._lost[round_id] = nodes | self._lost.get(round_id, {})

    def take_lost(self, round_id: bytes) -> tuple[tuple[bytes, int], ...]:
        """Forget and return these nodes."""
        return tuple(self._lost.pop(round_id, {}).items())

    def leave_out(self, round_id: bytes, fewest: int, now_ms: int) -> tuple[bytes, ...]:
        """Leave the nodes that have no lasting key or count out of a waiting request, if `fewest` others remain.

        Return the nodes that are left out.
        """
        request = self.requests.get(round_id)
        if request is None:
            return ()
        lacking = dict.fromkeys((*self.missing(request, now_ms), *self.uncounted(request)))
        others = tuple(compute for compute in request.computes if compute not in lacking)
        if not lacking or len(others) < fewest:
            return ()
        self.requests[round_id] = msgspec.structs.replace(request, computes=others)
        return tuple(lacking)

    def key_of(self, compute: bytes) -> bytes:
        """Return the public key that a Compute node last published; empty if it has published none."""
        return self._keys[compute][0].public if compute in self._keys else b""

    def missing(self, request: OpenRound, now_ms: int) -> tuple[bytes, ...]:
        """Return the request's Compute nodes without a known key that outlasts the round."""
        commit_ms = now_ms + request.collect_ms + request.commit_ms
        lasting = {
            compute
            for compute, (key, _) in self._keys.items()
            if commit_ms <= last_commit_ms(key.expires_ms, self._timing)
        }
        return tuple(compute for compute in request.computes if compute not in lasting)

    def lacking(self, request: OpenRound, now_ms: int) -> tuple[bytes, ...]:
        """Return the Compute nodes of which the request still needs a key or the number of sessions."""
        return tuple(dict.fromkeys((*self.missing(request, now_ms), *self.uncounted(request))))

    def uncounted(self, request: OpenRound) -> tuple[bytes, ...]:
        """Return the Compute nodes whose number of sessions the request still needs."""
        if request.answers_expected:
            return ()
        return tuple(compute for compute in request.computes if compute not in self.sessions)

    def _counted(self, request: OpenRound) -> OpenRound:
        """Return the request with its number of clients: if not given, the smallest number of sessions at a node."""
        if request.answers_expected or not request.computes:
            return request
        clients = min(self.sessions[compute][0] for compute in request.computes)
        return msgspec.structs.replace(request, kind=msgspec.structs.replace(request.kind, clients=clients))

    def keys_of(self, request: OpenRound) -> tuple[Signed, ...]:
        """Return the signed keys of a ready request's Compute nodes."""
        return tuple(self._keys[compute][1] for compute in request.computes)

    def give_up(self, round_id: bytes, now_ms: int, dropped: Mapping[bytes, str]) -> RoundFailed | None:
        """Remove a request that has waited too long. Return its failure, or None if it no longer waits.

        `dropped` has, by Compute node, the error for which its last dropped message was dropped.
        """
        request = self._remove(round_id)
        if request is None:
            return None
        self.take_lost(round_id)
        reasons: list[tuple[bytes, str]] = []
        for compute in self.missing(request, now_ms):
            why = "has published no epoch key; is it up?"
            if compute in self._keys:
                ends = self._keys[compute][0].expires_ms
                why = f"has published no key for times after {moment(ends)}; is it up, and is its clock right?"
                if ends < now_ms:
                    why = f"{why[:-1]}, which may be {duration(now_ms - ends)} behind?"
            elif compute in dropped:
                why = f"has no epoch key here; what came in its name was dropped: {dropped[compute]}"
            reasons.append((compute, why))
        uncounted = "has not reported how many clients have a session"
        reasons = reasons or [(compute, uncounted) for compute in self.uncounted(request)]
        text = "; ".join(f"Compute node {self._federation.name_of(compute)} {why}" for compute, why in reasons)
        return RoundFailed(round_id, text, None, None)
