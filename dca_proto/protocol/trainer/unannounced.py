"""The requests that a trainer cannot announce yet: they wait for Compute nodes' keys and answers (DESIGN §4.1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping

import msgspec

from dca_proto.crypto.sealing import ID_BYTES, Random
from dca_proto.errors import PeerError
from dca_proto.protocol.announcement import last_commit_ms, open_epoch_key
from dca_proto.protocol.facts import RoundFailed
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.keyring import too_far_ahead
from dca_proto.protocol.ledger import CostToClients
from dca_proto.protocol.params import Timing
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.messages import EpochKey, Sessions, Signed
from dca_proto.quorum import LostNode, Quorum
from dca_proto.wording import duration, listed, moment


class WaitingRequests:
    """Requests that a trainer cannot announce yet, because it needs every node's epoch key first (DESIGN §2.2).

    It also keeps the newest published key of each Compute node.

    Args:
        roll_call: a request also waits for an answer of each node that was not heard for `Timing.lately_ms`.

    Attributes:
        requests: the waiting requests, by round id.
        heard: when each Compute node last answered this process, without those for whose silence a round has ended.
        sessions: how many clients have a session, by each Compute node's latest answer; and when it came.
        ahead_ms: by how much each Compute node's clock was ahead of this one then, to half of the time that the answer
            took.
    """

    def __init__(self, federation: Federation, timing: Timing, *, roll_call: bool = False) -> None:
        self.requests: dict[bytes, OpenRound] = {}
        self.heard: dict[bytes, int] = {}
        self._roll_call = roll_call
        self._since_ms: dict[bytes, int] = {}  # when each request began to wait
        self._told: dict[bytes, tuple[bytes, ...]] = {}  # the nodes that were last reported to be lacking, by round
        self._federation = federation
        self._timing = timing
        self._keys: dict[bytes, tuple[EpochKey, Signed]] = {}
        self.sessions: dict[bytes, tuple[int, int]] = {}
        self.ahead_ms: dict[bytes, float] = {}
        self._asked_ms: dict[bytes, int] = {}
        self._nonces: dict[bytes, bytes] = {}  # of the questions without an answer, by Compute node
        self._questions: Counter[bytes] = Counter()  # how often the nodes were asked, by round
        self._debtors: dict[bytes, set[bytes]] = {}  # nodes that owe something and may still pay, by round
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
        self.heard[compute] = now_ms
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
        """Switch to a newer federation file. If it needs other Compute nodes, waiting secure sums fail, at no cost."""
        is_changed, self._federation = federation.computes != self._federation.computes, federation
        sums = [request for request in self.requests.values() if request.computes]
        failed = [one.round_id for one in sums if is_changed or len(one.computes) <= federation.p]
        for round_id in failed:
            self._remove(round_id)
            self.take_lost(round_id)
        reason = f"{federation.title} needs other Compute nodes; request the round again"
        return [RoundFailed(round_id, reason, None, None) for round_id in failed]

    def reserved(self, others: Iterable[OpenRound]) -> list[CostToClients]:
        """Return the costs of the waiting requests and of `others`."""
        requests = {request.round_id: request for request in (*self.requests.values(), *others)}
        return [request.cost_to_clients for request in requests.values()]

    def forget_future(self, now_ms: int) -> None:
        """After the clock was set back, forget when nodes were heard, and let the requests wait anew."""
        self.heard = {node: at_ms for node, at_ms in self.heard.items() if at_ms <= now_ms}
        self.sessions = {node: known for node, known in self.sessions.items() if known[1] <= now_ms}
        self._since_ms = {round_id: min(at_ms, now_ms) for round_id, at_ms in self._since_ms.items()}

    def take_ready(self, now_ms: int) -> list[OpenRound]:
        """Remove and return the requests for which all keys and the number of clients are known."""
        waiting = [request for request in self.requests.values() if not self.lacking(request, now_ms)]
        ready = [self._counted(request, now_ms) for request in waiting]
        for request in waiting:
            self._remove(request.round_id)
        return ready

    def add(self, request: OpenRound, now_ms: int, debtors: Iterable[bytes] = ()) -> None:
        """Let a request wait, also for nodes that owe a cancelled round something."""
        self.requests[request.round_id] = request
        self._debtors[request.round_id] = {*debtors}
        self._since_ms[request.round_id] = now_ms

    def until_ms(self, request: OpenRound, now_ms: int) -> int:
        """Return until when a request waits: its time to collect, if it states no other.

        It waits for `Timing.hopeless_ms` at most if it lacks a node that has never answered this process, or for whose
        silence a round has ended; no charge is at stake yet.
        """
        is_dead = self._roll_call and any(node not in self.heard for node in self.lacking(request, now_ms))
        wait_ms = min(request.collect_ms, self._timing.hopeless_ms) if is_dead else request.collect_ms
        wait_ms = request.wait_ms or wait_ms
        return self._since_ms[request.round_id] + wait_ms

    def waits_ms(self, request: OpenRound, now_ms: int) -> tuple[int, int]:
        """Return for how long a request has waited, and until when it waits at most."""
        return now_ms - self._since_ms[request.round_id], max(self.until_ms(request, now_ms), now_ms)

    def is_news(self, round_id: bytes, lacking: tuple[bytes, ...]) -> bool:
        """Return True if a request was not reported to lack these nodes before."""
        is_known, self._told[round_id] = self._told.get(round_id, ()) == lacking, lacking
        return not is_known

    @property
    def has_debtors(self) -> bool:
        """True if a request waits for what a node owes."""
        return any(self._debtors.values())

    def note_paid(self, owing: Container[bytes]) -> bool:
        """Wait no longer for what nodes owe that are not `owing` any more. Return True if there was one."""
        before = sum(map(len, self._debtors.values()))
        self._debtors = {one: {node for node in nodes if node in owing} for one, nodes in self._debtors.items()}
        return sum(map(len, self._debtors.values())) < before

    def leave_debtors(self, round_id: bytes) -> tuple[bytes, ...]:
        """Leave the nodes that still owe something out of a waiting request, and return them."""
        debtors, request = self._debtors.pop(round_id, set()), self.requests.get(round_id)
        if request is None or not debtors:
            return ()
        others = tuple(node for node in request.computes if node not in debtors)
        self.requests[round_id] = msgspec.structs.replace(request, computes=others)
        return tuple(node for node in request.computes if node in debtors)

    def _remove(self, round_id: bytes) -> OpenRound | None:
        self._debtors.pop(round_id, None)
        self._questions.pop(round_id, None)
        self._since_ms.pop(round_id, None)
        self._told.pop(round_id, None)
        return self.requests.pop(round_id, None)

    def forget_heard(self, nodes: Iterable[bytes]) -> None:
        """Note that a round ends because nodes were silent."""
        for node in nodes:
            self.heard.pop(node, None)

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
        lacking = self.lacking(request, now_ms)
        others = tuple(compute for compute in request.computes if compute not in lacking)
        if not lacking or len(others) < fewest:
            return ()
        self.requests[round_id] = msgspec.structs.replace(request, computes=others)
        return lacking

    def take_back(self, round_id: bytes, other_than: Container[bytes] = ()) -> tuple[bytes, ...]:
        """Take the nodes without which a waiting request was to go on into it again, but for some; return them."""
        lost = self._lost.get(round_id, {})
        back = tuple(node for node in lost if node not in other_than)
        if back:
            request = self.requests[round_id]
            self._lost[round_id] = {node: since_ms for node, since_ms in lost.items() if node not in back}
            self.requests[round_id] = msgspec.structs.replace(request, computes=(*request.computes, *back))
        return back

    def newest_key(self, compute: bytes) -> EpochKey | None:
        """Return the key that a Compute node last published; None if it has published none."""
        return self._keys[compute][0] if compute in self._keys else None

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
        """Return the nodes of which a request still needs a key, a number of sessions, an answer, or what they owe."""
        further = (*self._unheard(request), *self._debtors.get(request.round_id, ()))
        return tuple(dict.fromkeys((*self.missing(request, now_ms), *self.uncounted(request), *further)))

    def silent(self, request: OpenRound, now_ms: int) -> tuple[bytes, ...]:
        """Return the Compute nodes that a request lacks, and that have not answered since it began to wait."""
        since_ms = self._since_ms[request.round_id]
        return tuple(node for node in self.lacking(request, now_ms) if self.heard.get(node, 0) < since_ms)

    def awaits(self, compute: bytes) -> bool:
        """Return True if a request still needs an answer of a Compute node, beside its key."""
        return any(compute in (*self.uncounted(request), *self._unheard(request)) for request in self.requests.values())

    def _unheard(self, request: OpenRound) -> tuple[bytes, ...]:
        """Return the Compute nodes that have to answer first, since they were not heard for a while before it."""
        if not self._roll_call:
            return ()
        since_ms = self._since_ms[request.round_id]
        latest_ms = since_ms - self._timing.lately_ms
        poor = self._poor(request, self.sessions)  # clients may have come since
        again = [node for node in poor if self.sessions[node][1] < since_ms]
        return tuple(node for node in request.computes if self.heard.get(node, latest_ms) <= latest_ms or node in again)

    def _poor(self, request: OpenRound, sessions: Mapping[bytes, tuple[int, int]]) -> tuple[bytes, ...]:
        """Return the Compute nodes that have fewer clients than the round needs, by these answers.

        If the number of clients is not given, it is at most the number that p + 1 nodes have.
        """
        counts = {node: sessions[node][0] for node in request.computes if node in sessions}
        largest = sorted(counts.values(), reverse=True)[: self._federation.p + 1]
        clients = request.answers_expected or min(largest, default=0)
        n_min = msgspec.structs.replace(request.kind, clients=clients).n_min
        return tuple(node for node, count in counts.items() if count < n_min)

    def uncounted(self, request: OpenRound) -> tuple[bytes, ...]:
        """Return the Compute nodes whose number of sessions the request still needs."""
        if request.answers_expected:
            return ()
        return tuple(compute for compute in request.computes if compute not in self.sessions)

    def _counted(self, request: OpenRound, now_ms: int) -> OpenRound:
        """Return the request with its number of clients: if not given, the smallest number of sessions at a node.

        It goes on without nodes that have just said that they have too few clients, if p + 1 others remain.
        """
        if not request.computes:
            return request
        since_ms = self._since_ms[request.round_id] - self._timing.progress_ms
        poor = self._poor(request, {node: known for node, known in self.sessions.items() if known[1] >= since_ms})
        others = tuple(node for node in request.computes if node not in poor)
        if poor and len(others) > self._federation.p:
            request = msgspec.structs.replace(request, computes=others)
            self.note_lost(request.round_id, dict.fromkeys(poor, now_ms))
        if request.answers_expected:
            return request
        clients = min(self.sessions[compute][0] for compute in request.computes)
        return msgspec.structs.replace(request, kind=msgspec.structs.replace(request.kind, clients=clients))

    def lasting_ms(self, request: OpenRound) -> float:
        """Return the latest end of a ready request's round that the keys of its Compute nodes allow."""
        keys = (self._keys[compute][0] for compute in request.computes)
        return min((last_commit_ms(key.expires_ms, self._timing) for key in keys), default=math.inf)

    def keys_of(self, request: OpenRound) -> tuple[Signed, ...]:
        """Return the signed keys of a ready request's Compute nodes."""
        return tuple(self._keys[compute][1] for compute in request.computes)

    def give_up(self, round_id: bytes, now_ms: int, dropped: Mapping[bytes, str]) -> RoundFailed | None:
        """Remove a request that has waited too long. Return its failure, or None if it no longer waits.

        `dropped` has, by Compute node, the error for which its last dropped message was dropped.
        """
        request = self.requests.get(round_id)
        if request is None:
            return None
        reasons, name_of = self._reasons(request, now_ms, dropped), self._federation.name_of
        since_ms = self._since_ms[round_id]
        heard = dropped.keys() - self._keys.keys()  # they are up: what they publish comes, and is dropped
        lost = [(node, since_ms) for node in self.silent(request, now_ms) if node not in heard]
        self._remove(round_id)
        gone = [*self.take_lost(round_id), *lost]
        text = "; ".join(
            f"Compute node{'s' * (len(nodes) > 1)} {listed([*map(name_of, nodes)], len(nodes))} {why}"
            for why, nodes in reasons.items()
        )
        self.forget_heard([node for node, _ in lost])
        names = tuple(name_of(node) for node, _ in lost)
        nodes, gone_since = tuple(map(name_of, request.computes)), (LostNode(name_of(node), at) for node, at in gone)
        quorum = Quorum(nodes, self._federation.p, tuple(gone_since))
        reason = f"{text} (waited {duration(now_ms - since_ms)}; nothing was charged)"
        return RoundFailed(round_id, reason, None, None, lost=names, quorum=quorum)

    def _reasons(self, request: OpenRound, now_ms: int, dropped: Mapping[bytes, str]) -> dict[str, list[bytes]]:
        """Return why a request waits, as the ends of sentences, each with the nodes to which that applies."""
        reasons: dict[str, list[bytes]] = {}
        missing = self.missing(request, now_ms)
        for compute in self.lacking(request, now_ms):
            why = "published no epoch key" if compute in missing else "did not answer"
            if compute in missing and compute in self._keys:
                ends = self._keys[compute][0].expires_ms
                behind = f", by up to {duration(now_ms - ends)}" * (ends < now_ms)
                why = f"published no key for times after {moment(ends)}: it is down, or its clock is behind{behind}"
            elif compute in missing and compute in dropped:
                why = f"has no epoch key here; what came in its name was dropped: {dropped[compute]}"
            reasons.setdefault(why, []).append(compute)
        return reasons
