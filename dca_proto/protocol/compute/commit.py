"""The second half of a round at a Compute node: freeze, list, answer, release or abort (DESIGN §4.7, §4.8).

`actor.ComputeNode` extends `Committing`, which handles a round once it accepts no further contribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dca_proto.crypto.fixedpoint import ring_to_bytes
from dca_proto.crypto.sealing import seal_to
from dca_proto.errors import PeerError
from dca_proto.protocol import facts
from dca_proto.protocol.actor import RESEND, BaseActor
from dca_proto.protocol.announcement import open_answer, seal_answer
from dca_proto.protocol.charges import SeenCharges
from dca_proto.protocol.compute.agreement import Agreement
from dca_proto.protocol.compute.round import (
    COMMIT,
    CONTRIBUTIONS,
    FORGET,
    FREEZE,
    LISTS,
    PROGRESS,
    Round,
    StoredList,
)
from dca_proto.protocol.effects import Channel, Effect, Forget, Persist, Report
from dca_proto.protocol.keyring import Keyring
from dca_proto.protocol.lists import TOO_FEW, TOO_MANY, answer_hash, check_list, encode_places, list_hash
from dca_proto.protocol.sessions import Sessions
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import encode, open_signed
from dca_proto.protocol.wire.fields import TEXT_CHARS_MAX


class Committing(BaseActor[Round]):
    """The part of a Compute node that ends a round."""

    _keys: Keyring
    _sessions: Sessions
    _charges: SeenCharges
    _open: set[bytes]  # ids of the rounds that have not ended

    # --- freeze and lists -----------------------------------------------------------------------------------------

    def _freeze(self, current: Round, now_ms: int) -> list[Effect]:
        """Accept no further contribution: store this node's list, then send it to every peer."""
        entries = current.sorted_entries()
        own_hash = list_hash(current.hash, self.id, entries)
        count = len(current.kept)
        header = self._sign(m.ListHeader(current.id, current.hash, own_hash, count))
        stored = current.advance(FREEZE, entries=entries, header=header)
        current.lists[self.id] = current.own_list()
        return [
            stored,
            *current.cancel(FREEZE, PROGRESS),
            Report(facts.ListFrozen(current.id, count)),
            *(self._list_to(current, peer) for peer in current.peers),
            current.resend_timer(self._timing, self._random(1), now_ms),
            *self._answer_when_complete(current, now_ms),
        ]

    def _list_to(self, current: Round, peer: bytes) -> Effect:
        """Send this node's list to a peer, sealed to the peer's epoch key."""
        assert current.stored.header is not None, "a frozen list is signed"
        place = current.computes.index(peer)
        body = m.FrozenList(current.id, peer, current.stored.header, current.stored.entries, current.tags_for(place))
        public = current.opened.epochs[place].public
        sealed = seal_to(public, encode(self._sign(body)), current.hash, self._random)
        return current.send(encode(m.Sealed(current.id, *sealed)), Channel.COMPUTE, peer)

    def _on_sealed(self, sender: bytes, frame: m.Sealed, now_ms: int) -> list[Effect]:
        """Handle a peer's list."""
        current = self._known_round(frame.round_id)
        if not current.is_open:
            current.step("repeated list")
            return []
        own = self._keys.key(current.own_key.epoch)
        if own is None:
            raise PeerError("epoch", found="a list of a past epoch", expected="one whose key is kept here")
        inner = open_answer(frame, own, current.hash)
        body = open_signed(inner, self._federation.compute(sender).key, self._federation_id, m.FrozenList)
        header = self._header(current, sender, body)
        known = current.lists.get(sender)
        if known is not None:
            current.step("repeated list")
            if known.header.body == body.header.body:
                return []
            return self._abort(
                current, "equivocation", self._equivocation_detail(sender, "lists"), (known.header, body.header)
            )
        if list_hash(current.hash, sender, body.entries) != header.list_hash:
            raise PeerError("list", found="a list with another hash", expected="the hash in its header")
        frozen = self._freeze(current, now_ms) if current.takes(FREEZE) else []
        current.step("list")
        try:
            place = current.computes.index(sender)
            check_list(current.hash, body.entries, body.tags, place, len(current.computes), current.terms.most)
        except PeerError as error:
            name = self._federation.compute(sender).name
            return [*frozen, *self._abort(current, "invalid-list", f"{name}: {error}", (body.header,))]
        current.lists[sender] = StoredList(body.header, header.list_hash, body.entries, body.tags)
        return [*frozen, *self._answer_when_complete(current, now_ms)]

    def _header(self, current: Round, sender: bytes, body: m.FrozenList) -> m.ListHeader:
        """Return the signed header of a peer's list, if it belongs to this round. Raises `PeerError`."""
        if body.receiver != self.id:
            raise PeerError("receiver", found=body.receiver.hex(), expected=self.id.hex())
        key = self._federation.compute(sender).key
        header = open_signed(body.header, key, self._federation_id, m.ListHeader)
        if header.announcement_hash != current.hash or header.round_id != current.id:
            raise PeerError("announcement", found="a list of another announcement", expected=current.hash.hex())
        if sender not in current.peers:
            raise PeerError("unknown-compute", found=sender.hex(), expected="another Compute node of the round")
        return header

    def _equivocation_detail(self, compute: bytes, messages: str) -> str:
        return f"{self._federation.compute(compute).name} signed two {messages}"

    # --- answers --------------------------------------------------------------------------------------------------

    def _answer_when_complete(self, current: Round, now_ms: int) -> list[Effect]:
        """Once all M lists are there, compute this node's objections, store them, then send them."""
        if not current.takes("all lists") or len(current.lists) < len(current.computes):
            return []
        current.agreement = Agreement(current, self._sessions, now_ms)
        judgement = current.agreement.judge(self._charges)
        hashes = tuple(current.lists[compute].hash for compute in current.computes)
        body = m.Answer(current.id, current.hash, hashes, encode_places(judgement.objections))
        signed = self._sign(body)
        current.answers[self.id] = (signed, body)
        lists = [Persist(LISTS, current.id + peer, encode(current.lists[peer])) for peer in current.peers]
        payload = encode(signed)
        return [
            *judgement.writes,
            *lists,
            current.advance("all lists", answer=signed),
            *(self._reused(current, client, charge) for client, charge in judgement.reused),
            *(effect for client in judgement.unknown for effect in self._want_hello(client, now_ms)),
            *(current.send(payload, Channel.COMPUTE, peer) for peer in current.peers),
            *self._release_when_complete(current, now_ms),
        ]

    def _reused(self, current: Round, client: bytes, charge: int) -> Effect:
        """Notify a client that its charge number was used before."""
        slot = self._sessions.slots.get(client)
        highest = 0 if slot is None else self._charges.highest(slot)
        body = m.ChargeReused(current.id, current.hash, client, charge, highest)
        return current.send(encode(self._sign(body)), Channel.CLIENT, client)

    def _on_answer(self, sender: bytes, frame: m.Signed, body: m.Answer, now_ms: int) -> list[Effect]:
        current = self._node_round(sender, frame, body)
        if not current.is_open:
            current.step("repeated answer")
            return []
        current.step("peer answer")
        bytes_max = 4 * current.terms.most * len(current.computes)  # 4 for each position in the union of M lists
        if len(body.objections) > bytes_max:
            raise PeerError("answer", found=f"{len(body.objections)} bytes of objections", expected=f"<= {bytes_max}")
        known = current.answers.get(sender)
        if known is not None:
            current.step("repeated answer")
            if known[1] != body:
                return self._abort(current, "equivocation", self._equivocation_detail(sender, "answers"))
            return []
        current.answers[sender] = (frame, body)
        return self._release_when_complete(current, now_ms)

    # --- release --------------------------------------------------------------------------------------------------

    def _release_when_complete(self, current: Round, now_ms: int) -> list[Effect]:
        """Once all M answers are there, release one sum over the agreed set, or abort."""
        if not current.takes("all answers") or len(current.answers) < len(current.computes):
            return []
        own = current.answers[self.id][1]
        for compute in current.peers:
            if current.answers[compute][1].lists != own.lists:
                detail = f"{self._federation.compute(compute).name} names other lists"
                headers = [current.lists[node].header for node in current.computes]
                return self._abort(current, "equivocation", detail, headers)
        agreement = current.agreement or Agreement(current, self._sessions, now_ms)
        try:
            answers = [current.answers[compute][1] for compute in current.computes]
            chosen = agreement.agree(answer.objections for answer in answers)
            fewest, most = current.terms.fewest, current.terms.most
            if not fewest <= chosen.count <= most:
                is_few = chosen.count < fewest
                limit = f"{fewest} were needed" if is_few else f"{most} are allowed"
                detail = f"{chosen.count} contributed, {limit}"
                return self._abort(current, TOO_FEW if is_few else TOO_MANY, detail, contributors=chosen.count)
            clients, vector = agreement.partial_sum(chosen)
        except PeerError as error:
            return self._abort(current, "invalid-answer", str(error))
        hashes = tuple(
            answer_hash(current.hash, compute, answer.lists, answer.objections)
            for compute, answer in zip(current.computes, answers, strict=True)
        )
        partial = m.PartialSum(
            current.id, current.hash, chosen.hash, chosen.count, hashes, clients, ring_to_bytes(vector)
        )
        message = seal_answer(self._sign(partial), current.opened, self._random)
        return [
            *self._finish(current, "all answers", message),
            current.send(message, Channel.TRAINER, current.stored.trainer),
            Report(facts.Released(current.id, chosen.count, chosen.hash)),
        ]

    # --- aborts and the end of a round ----------------------------------------------------------------------------

    def _abort(
        self, current: Round, reason: str, detail: str, evidence: Sequence[m.Signed] = (), *, contributors: int = 0
    ) -> list[Effect]:
        """Abort for good: sign that this node has released nothing and never will."""
        body = m.Abort(
            current.id,
            current.hash,
            self.id,
            reason,
            detail[:TEXT_CHARS_MAX],
            contributors,
            current.stored.fewest,
            tuple(evidence),
        )
        message = encode(self._sign(body))
        return [
            *self._finish(current, "abort", message),
            current.send(message, Channel.ABORT),
            Report(facts.NodeAborted(current.id, self.id, reason, detail)),
        ]

    def _finish(self, current: Round, event: str, message: bytes) -> list[Effect]:
        """Store the final message and delete the contributions, in one transaction."""
        forgotten = [Forget(CONTRIBUTIONS, current.id + client) for client in current.kept]
        if current.takes("all answers"):
            forgotten += [Forget(LISTS, current.id + peer) for peer in current.peers]
        timers = current.cancel(FREEZE, COMMIT, RESEND, PROGRESS)
        stored = current.advance(event, final_message=message)
        current.forget_work()
        self._open.discard(current.id)
        grace_ms = self._timing.abort_grace_ms if current.takes("delete sum") else 0  # the trainer may ask again
        close = current.timer(FORGET, current.stored.commit_by_ms + grace_ms)
        return [stored, *forgotten, *timers, close]

    def _on_abort(self, sender: bytes, frame: m.Signed, body: m.Abort, now_ms: int) -> list[Effect]:
        """Store a peer's abort for clients that ask, and abort as well: the round can have no result any more."""
        current = self._rounds.get(body.round_id)
        if body.compute == self.id or current is None or body.announcement_hash != current.hash:
            return []  # aborts are broadcast
        self._node_round(body.compute, frame, body)
        if body.compute in dict(current.stored.peer_aborts):
            return []
        stored = current.store(peer_aborts=(*current.stored.peer_aborts, (body.compute, encode(frame))))
        if not current.is_open:
            current.step("late abort")
            return [stored]
        name = self._federation.compute(body.compute).name
        return [stored, *self._abort(current, body.reason, f"{name}: {body.detail}", contributors=body.contributors)]

    def _give_up(self, current: Round, now_ms: int) -> list[Effect]:
        """At `commit_by`, abort a round that has not been released."""
        missing, received = ("answer", current.answers) if current.takes("all answers") else ("list", current.lists)
        silent = [peer for peer in current.peers if peer not in received]
        names = ", ".join(self._federation.compute(peer).name for peer in silent)
        return self._abort(current, "peer-silent", f"no {missing} from {names} at commit_by")

    # --- queries and resends --------------------------------------------------------------------------------------

    def _resend(self, current: Round, now_ms: int) -> list[Effect]:
        """Repeat this node's message to each peer whose next message is missing, and ask for that."""
        own = current.stored.answer
        silent = [peer for peer in current.peers if peer not in (current.answers if own else current.lists)]
        query = encode(self._sign(m.Query(current.id, current.hash)))
        again: list[Effect] = []
        for peer in silent:
            again.append(current.send(encode(own), Channel.COMPUTE, peer) if own else self._list_to(current, peer))
            again.append(current.send(query, Channel.COMPUTE, peer))
        return [*again, current.resend_timer(self._timing, self._random(1), now_ms)]

    def _messages_for_peer(self, current: Round, peer: bytes) -> Iterable[Effect]:
        """Repeat this node's messages of the round for a peer."""
        if current.takes("abort wanted"):
            return [current.send(current.stored.final_message, Channel.COMPUTE, peer)]
        messages = [self._list_to(current, peer)] if current.takes("peer answer") else []
        if current.stored.answer is not None:
            messages.append(current.send(encode(current.stored.answer), Channel.COMPUTE, peer))
        return messages

    # --- bookkeeping ----------------------------------------------------------------------------------------------

    def _want_hello(self, client: bytes, now_ms: int) -> list[Effect]:
        """Ask a client for its Hello, unless it was asked a moment ago or is revoked."""
        if self._federation.is_revoked(client) or not self._pace.is_due(client, now_ms):
            return []
        return [self._send(m.HelloWanted(client), Channel.CLIENT, client)]
