"""The second half of a round at a Compute node: freeze, list, answer, release or abort (DESIGN §4.7, §4.8).

`actor.ComputeNode` extends `Committing`, which handles a round once it accepts no further contribution.
"""

from __future__ import annotations

from collections.abc import Sequence

from dca_proto.errors import PeerError
from dca_proto.protocol import facts
from dca_proto.protocol.actor import RESEND, BaseActor
from dca_proto.protocol.announcement import open_list, seal_answer, seal_list
from dca_proto.protocol.charges import SeenCharges
from dca_proto.protocol.compute import proofs
from dca_proto.protocol.compute.agreement import Agreement
from dca_proto.protocol.compute.room import NodeRoom
from dca_proto.protocol.compute.round import (
    ANNOUNCEMENTS,
    ANSWERS,
    COMMIT,
    CONTRIBUTIONS,
    FORGET,
    FREEZE,
    LISTS,
    PROGRESS,
    ROUNDS,
    ComputeRound,
    StoredList,
)
from dca_proto.protocol.effects import Channel, Effect, Forget, Persist, Report, SetTimer
from dca_proto.protocol.events import Event, Received
from dca_proto.protocol.keyring import Keyring
from dca_proto.protocol.lists import PEER_SILENT, check_list, list_hash
from dca_proto.protocol.pool import Pool
from dca_proto.protocol.sessions import SessionTable
from dca_proto.protocol.waiting import Waiting
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import encode, open_signed
from dca_proto.protocol.wire.fields import COUNT_MAX, TEXT_CHARS_MAX
from dca_proto.wording import moment

CANCELLED = "cancelled"
"""Abort reason: the trainer ended the round."""
_ABORT_BYTES_MAX, _HEADER_BYTES_MAX = 4096, 256  # an abort's texts, and each signed header of its evidence
MANY_SESSIONS = 20_000
"""With more sessions than that, nobody reads who is absent, and work on all of them takes long."""


class Committing(BaseActor[ComputeRound]):
    """The part of a Compute node that ends a round."""

    _keys: Keyring
    _sessions: SessionTable
    _charges: SeenCharges
    _open: set[bytes]  # ids of the rounds that have not ended
    _room: NodeRoom
    _pool: Pool

    def look_ahead(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """Prepare the next messages, (sender, payload) pairs, in many processes; no effect depends on it."""
        self._sessions.look_ahead(messages)

    def takes_long(self, event: Event) -> bool:
        """Return True for an event that may be work on all clients: of many, all but clients' messages."""
        is_of_client = isinstance(event, Received) and not self._federation.is_server(event.sender)
        return len(self._sessions) > MANY_SESSIONS and not is_of_client

    def client_name(self, client: bytes) -> str:
        return self._sessions.name_of(client)

    @property
    def sessions(self) -> SessionTable:
        """All clients' sessions at this node."""
        return self._sessions

    def _waits(self, current: ComputeRound, now_ms: int) -> Waiting:
        """Wait for the clients that this node holds, then for the other nodes' lists and answers."""
        statistic = current.opened.body.statistic if current.is_loaded else ""
        about = (current.id, statistic, current.phase, current.stored.commit_by_ms)
        if not current.takes("contribution"):
            has = current.lists if current.takes("list") else current.answers
            return Waiting(*about, tuple(peer for peer in current.peers if peer not in has))
        if len(self._sessions) > MANY_SESSIONS:  # a status must not hold up a node of a million clients
            return Waiting(*about, (), len(current.kept))
        held = current.held_of(self._sessions.valid(now_ms))
        missing = tuple(one for one in held if one not in current.kept and one not in current.declined)
        return Waiting(*about, missing, len(current.kept), len(held))

    # --- freeze and lists -----------------------------------------------------------------------------------------

    def _freeze(self, current: ComputeRound, now_ms: int) -> list[Effect]:
        """Accept no further contribution: store this node's list, then send it to every peer."""
        count, absent = len(current.kept), self._waits(current, now_ms).members
        entries = current.sorted_entries()
        header = self._sign(proofs.new_header(current, entries, self._identity, self._random))
        stored = current.advance(FREEZE, entries=entries, header=header)
        current.lists[self.id] = current.own_list()
        self._room.note_contributions(current)
        return [
            stored,
            *current.cancel(FREEZE, PROGRESS),
            Report(facts.ListFrozen(current.id, count)),
            *([Report(facts.Absent(current.id, absent))] if absent else []),
            *(lists := [self._list_to(current, peer) for peer in current.peers]),
            current.resend_timer(self._timing, self._random(1), now_ms, lists),
            *self._answer_when_complete(current, now_ms),
        ]

    def _list_to(self, current: ComputeRound, peer: bytes) -> Effect:
        """Send this node's list to a peer, sealed to the peer's epoch key."""
        assert current.stored.header is not None, "a frozen list is signed"
        place = current.computes.index(peer)
        body = m.FrozenList(current.id, peer, current.stored.header, current.stored.entries, current.tags_for(place))
        public = current.opened.epochs[place].public
        sealed = seal_list(self._sign(body), current.opened, public, self._random)
        return current.send(sealed, Channel.COMPUTE, peer)

    def _on_sealed(self, sender: bytes, frame: m.Sealed, now_ms: int) -> list[Effect]:
        """Handle a peer's list."""
        current = self._known_round(frame.round_id)
        if not current.is_open:
            current.step("repeated list")
            return []
        own = self._keys.key(current.stored.epoch)
        if own is None:
            raise PeerError("epoch", found="a list of a past epoch", expected="one whose key is kept here")
        inner = open_list(frame, own, current.hash)
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
        if list_hash(current.hash, sender, body.entries, proofs.coin_of(header)) != header.list_hash:
            raise PeerError("list", found="a list with another hash", expected="the hash in its header")
        self._room.require(self._limits, current, len(body.entries) + len(body.tags))
        frozen = self._freeze(current, now_ms) if current.takes(FREEZE) else []
        current.step("list")
        try:
            place = current.computes.index(sender)
            check_list(current.hash, body.entries, body.tags, place, len(current.computes), current.kind.n_max)
        except PeerError as error:
            wrong = f"found {error.found}, expected {error.expected}"
            detail = f"the list of {self._federation.compute(sender).name} is wrong: {wrong}"
            return [*frozen, *self._abort(current, "invalid-list", detail, (body.header,))]
        current.lists[sender] = StoredList(body.header, header.list_hash, body.entries, body.tags)
        self._room.note_contributions(current)
        return [*frozen, *self._answer_when_complete(current, now_ms)]

    def _header(self, current: ComputeRound, sender: bytes, body: m.FrozenList) -> m.ListHeader:
        """Return the signed header of a peer's list, if it belongs to this round. Raises `PeerError`."""
        if body.receiver != self.id:
            raise PeerError("receiver", found=body.receiver.hex(), expected=self.id.hex())
        key = self._federation.compute(sender).key
        header = open_signed(body.header, key, self._federation_id, m.ListHeader)
        if header.announcement_hash != current.hash or header.round_id != current.id:
            raise PeerError("announcement", found="a list of another announcement", expected=current.hash.hex())
        if sender not in current.peers:
            raise PeerError("unknown-compute", found=sender.hex(), expected="another Compute node of the round")
        proofs.check_kind(header, is_verified=current.is_verified)
        return header

    def _equivocation_detail(self, compute: bytes, messages: str) -> str:
        return f"{self._federation.compute(compute).name} signed two different {messages}"

    # --- answers --------------------------------------------------------------------------------------------------

    def _answer_when_complete(self, current: ComputeRound, now_ms: int) -> list[Effect]:
        """Once all M lists are there, compute this node's objections, store them, then send them."""
        if not current.takes("all lists") or len(current.lists) < len(current.computes):
            return []
        current.agreement = Agreement(current, self._sessions, now_ms, self._pool)
        judgement = current.agreement.judge(self._charges)
        body = proofs.new_answer(current, judgement)
        signed = self._sign(body)
        current.answers[self.id] = (signed, body)
        self._room.note_contributions(current)
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

    def _reused(self, current: ComputeRound, client: bytes, charge: int) -> Effect:
        """Notify a client that its charge number was used before."""
        slot = self._sessions.slots.get(client)
        highest = 0 if slot is None else self._charges.highest(slot)
        body = m.ChargeReused(current.id, current.hash, client, charge, highest)
        return current.send(encode(self._sign(body)), Channel.CLIENT, client)

    def _on_answer(self, sender: bytes, frame: m.Signed, body: m.Answer, now_ms: int) -> list[Effect]:
        """Handle a peer's answer, from the peer itself or passed on by another one."""
        author = body.compute
        current = self._node_round(author, frame, body)
        if not current.is_open:
            current.step("repeated answer")
            return []
        current.step("peer answer")
        proofs.check_answer(body, current.validated, current.kind.n_max * len(current.computes))
        known = current.answers.get(author)
        if known is not None:
            current.step("repeated answer")
            if known[1] != body:
                return self._abort(current, "equivocation", self._equivocation_detail(author, "answers"))
            return []
        self._room.require(self._limits, current, len(frame.body) + proofs.answer_bytes(body))
        current.answers[author] = (frame, body)
        self._room.note_contributions(current)
        stored = Persist(ANSWERS, current.id + author, encode(frame))
        return [stored, *self._ask_when_late(current, now_ms), *self._release_when_complete(current, now_ms)]

    def _ask_when_late(self, current: ComputeRound, now_ms: int) -> list[Effect]:
        """After `commit_by`, ask the peers first: of one that was cut off, aborts are behind old answers in a queue."""
        if now_ms < current.stored.commit_by_ms or len(current.answers) < len(current.computes):
            return []
        current.asks_first, current.attempt = True, 0
        return [*self._queries(current), current.resend_timer(self._timing, self._random(1), now_ms)]

    # --- release --------------------------------------------------------------------------------------------------

    def _release_when_complete(self, current: ComputeRound, now_ms: int) -> list[Effect]:
        """Once all answers are there, release one sum over the agreed set, or abort.

        A node that has started again first asks its peers: they may have aborted, and then its sum would be in vain.
        """
        if not current.takes("all answers") or len(current.answers) < len(current.computes) or current.asks_first:
            return []
        own = current.answers[self.id][1]
        for compute in current.peers:
            if current.answers[compute][1].lists != own.lists:
                detail = f"{self._federation.compute(compute).name} has other lists of contributions than this node"
                headers = [current.lists[node].header for node in current.computes]
                return self._abort(current, "equivocation", detail, headers)
        over_ms = current.stored.commit_by_ms - 1  # sessions last as long; the answer may be older than this start
        agreement = current.agreement or Agreement(current, self._sessions, min(now_ms, over_ms), self._pool)
        try:
            answers = [current.answers[compute][1] for compute in current.computes]
            chosen = agreement.agree(answers)
            if not current.kind.n_min <= chosen.count <= current.kind.n_max:
                why, detail = proofs.size_words(current.kind, chosen.count, chosen.failed, self.client_name)
                return self._abort(current, why, detail, contributors=chosen.count, unproven=chosen.failed)
            clients, vector = agreement.partial_sum(chosen)
        except PeerError as error:
            wrong = f"found {error.found}, expected {error.expected}"
            return self._abort(current, "invalid-answer", f"the answers make no sum: {wrong}")
        partial = proofs.new_part(current, chosen, answers, clients, vector)
        message = seal_answer(self._sign(partial), current.opened, self._random)
        return [
            *self._finish(current, "all answers", message),
            current.send(message, Channel.TRAINER, current.stored.trainer),
            Report(facts.Released(current.id, chosen.count, chosen.hash, chosen.failed)),
        ]

    # --- aborts and the end of a round ----------------------------------------------------------------------------

    def _abort(
        self,
        current: ComputeRound,
        reason: str,
        detail: str,
        evidence: Sequence[m.Signed] = (),
        *,
        contributors: int = 0,
        unproven: tuple[bytes, ...] = (),
    ) -> list[Effect]:
        """Abort for good: sign that this node has released nothing and never will."""
        body = m.Abort(
            current.id,
            current.hash,
            self.id,
            reason,
            detail.encode()[:TEXT_CHARS_MAX].decode(errors="ignore"),  # bytes: a repeat carries short aborts only
            contributors,
            min(max(current.stored.n_min, 0), COUNT_MAX),  # N, T and c that a node refuses may give any number
            tuple(evidence),
        )
        message = encode(self._sign(body))
        return [
            *self._finish(current, "abort", message),
            current.send(message, Channel.ABORT),
            Report(facts.NodeAborted(current.id, self.id, reason, detail, unproven)),
        ]

    def _finish(self, current: ComputeRound, event: str, message: bytes) -> list[Effect]:
        """Store the final message and delete the contributions, in one transaction."""
        forgotten = [Forget(CONTRIBUTIONS, current.id + client) for client in current.kept]
        if not current.takes("announcement"):  # it was stored
            forgotten.append(Forget(ANNOUNCEMENTS, current.id))
        if current.takes("all answers"):
            forgotten += [Forget(LISTS, current.id + peer) for peer in current.peers]
        if event == "abort":
            forgotten += current.forgotten_answers()
        timers = current.cancel(FREEZE, COMMIT, RESEND, PROGRESS)
        useless = {} if event == "all answers" else {"entries": b"", "header": None, "answer": None}
        stored = current.advance(event, final_message=message, **useless)
        current.forget_work()
        self._open.discard(current.id)
        self._room.note(current)
        close = current.timer(FORGET, self._answers_until_ms(current))
        return [stored, *forgotten, *timers, close]

    def _on_abort(self, sender: bytes, frame: m.Signed, body: m.Abort, now_ms: int) -> list[Effect]:
        """Store a peer's abort for clients that ask, and abort as well: the round can have no result any more."""
        current = self._rounds.get(body.round_id)
        if body.compute == self.id or current is None or body.announcement_hash != current.hash:
            return []  # aborts are broadcast
        self._node_round(body.compute, frame, body)
        if body.compute in dict(current.stored.peer_aborts):
            return []
        message = encode(frame)
        bytes_max = _ABORT_BYTES_MAX + 2 * _HEADER_BYTES_MAX * len(current.computes)
        if len(message) > bytes_max:
            raise PeerError("size", found=f"an abort of {len(message)} bytes", expected=f"<= {bytes_max}")
        if not current.is_open:  # an open one aborts in any case, and its record is one of few
            self._room.require_record(self._limits, current.stored.trainer, len(message), rounds=0)
        stored = current.store(peer_aborts=(*current.stored.peer_aborts, (body.compute, message)))
        self._room.note(current)
        if not current.is_open:
            current.step("late abort")
            return [stored]
        name = self._federation.compute(body.compute).name
        detail = f"{name} aborted: {body.detail}"
        return [stored, *self._abort(current, body.reason, detail, contributors=body.contributors)]

    def _give_up(self, current: ComputeRound, now_ms: int) -> list[Effect]:
        """At `commit_by`, abort a round that this node has not answered; half an hour later, one that it has (§4.7).

        Meanwhile the answers that it lacks may come, as their authors start again or other peers pass them on.
        """
        late_ms, is_late = self._gives_up_ms(current), current.takes("all answers")
        if is_late and now_ms < late_ms:
            return [current.timer(COMMIT, late_ms)]
        missing, received = ("answer", current.answers) if is_late else ("list of contributions", current.lists)
        names = ", ".join(self._federation.compute(peer).name for peer in current.peers if peer not in received)
        when = f"{'half an hour after ' * is_late}the end of the round, {moment(current.stored.commit_by_ms)}"
        late = f"no {missing} came from {names} until {when}" + proofs.busy_words(current.validated) * is_late
        return self._abort(current, PEER_SILENT, late if names else f"the last {missing} came too late")

    def _gives_up_ms(self, current: ComputeRound) -> int:
        """Return when this node aborts an open round if nothing more comes."""
        late_ms = self._timing.late_ms if current.takes("all answers") else 0
        return current.stored.commit_by_ms + late_ms

    # --- queries and resends --------------------------------------------------------------------------------------

    def _resend(self, current: ComputeRound, now_ms: int, *, starts: bool = False) -> list[Effect]:
        """Repeat this node's message to each peer whose next message is missing, and ask for that.

        It asks all peers: another one may have the answer, too, or may have aborted.
        """
        current.asks_first = starts
        released = self._release_when_complete(current, now_ms)
        if released:
            return released
        own = current.stored.answer
        silent = [peer for peer in current.peers if peer not in (current.answers if own else current.lists)]
        return [
            *(again := [self._own_message(current, peer) for peer in silent]),
            *(self._queries(current) if silent or starts else ()),
            current.resend_timer(self._timing, self._random(1), now_ms, again),
        ]

    def _queries(self, current: ComputeRound) -> list[Effect]:
        """Ask all peers for their messages."""
        query = encode(self._sign(m.Query(current.id, current.hash)))
        return [current.send(query, Channel.COMPUTE, peer) for peer in current.peers]

    def _own_message(self, current: ComputeRound, peer: bytes) -> Effect:
        """Send a peer this node's answer; before that, its list."""
        own = current.stored.answer
        return current.send(encode(own), Channel.COMPUTE, peer) if own else self._list_to(current, peer)

    # --- the end of the record ------------------------------------------------------------------------------------

    def _forget(self, current: ComputeRound, now_ms: int) -> list[Effect]:
        """After a round's end, delete a released sum; after the retention, forget the round.

        The record outlives the epoch key of the round: a node without the record would sign a fresh abort (§4.8).
        """
        self._pace.forget(current.id)
        is_over = now_ms >= self._forget_ms(current)
        if is_over and self._keys.key(current.stored.epoch) is None:
            return self._forgotten(current)
        holds_sum = current.is_released and current.stored.final_message
        deleted: list[Effect] = []
        if holds_sum:
            deleted = [current.store(final_message=b"", entries=b"", answer=None), *current.forgotten_answers()]
            current.answers.clear()
        self._room.note(current)
        return [*deleted, self._close_timer(current, now_ms + self._timing.again_ms if is_over else now_ms)]

    def _forgotten(self, current: ComputeRound) -> list[Effect]:
        current.step(FORGET)
        del self._rounds[current.id]
        self._room.forget(current)
        self._pace.forget(current.id)
        return [Forget(ROUNDS, current.id), *current.forgotten_answers()]

    def _make_room(self, now_ms: int) -> list[Effect]:
        """Forget the oldest ended rounds whose epoch key is deleted, if records take more than half of their room.

        Such a round can neither be taken part in nor aborted again (§4.8): without the record, the node drops its
        announcement.
        """
        keys, over = self._keys, []
        ended = [current for current in self._rounds.values() if not current.is_open]
        for current in sorted(ended, key=lambda current: current.stored.commit_by_ms):
            is_past = keys.key(current.stored.epoch) is None and now_ms >= self._answers_until_ms(current)
            if is_past and self._room.is_half_full(self._limits, current.stored.trainer):
                over += [*current.cancel(FORGET), *self._forgotten(current)]
        return over

    def _answers_until_ms(self, current: ComputeRound) -> int:
        """Return until when contributions to a round are answered, and its released sum is kept."""
        grace_ms = self._timing.abort_grace_ms if current.is_released else 0  # the trainer may ask again
        return current.stored.commit_by_ms + grace_ms

    def _forget_ms(self, current: ComputeRound) -> int:
        timing, stored = self._timing, current.stored
        kept_ms = max(timing.retention_ms, 2 * timing.epoch_ms + timing.epoch_grace_ms)
        key_ends_ms = (stored.epoch + 1) * timing.epoch_ms + timing.epoch_grace_ms
        return max(stored.commit_by_ms + kept_ms, key_ends_ms)  # `commit_by` may be any time in the past

    def _close_timer(self, current: ComputeRound, now_ms: int) -> SetTimer:
        """Set the time to delete a released sum (an hour after the round's end), or else to forget the round."""
        holds_sum = current.is_released and current.stored.final_message
        at_ms = self._answers_until_ms(current) if holds_sum else self._forget_ms(current)
        return current.timer(FORGET, max(now_ms, at_ms))

    # --- bookkeeping ----------------------------------------------------------------------------------------------

    def _want_hello(self, client: bytes, now_ms: int) -> list[Effect]:
        """Ask a client for its Hello, unless it was asked a moment ago or is revoked."""
        if self._federation.is_revoked(client) or not self._pace.is_due(client, now_ms):
            return []
        return [self._send(m.HelloWanted(client), Channel.CLIENT, client)]
