"""Questions that a Compute node answers, and requests to abort (DESIGN §4.7, §4.8).

`actor.ComputeNode` extends `Queried`. An abort is final and stored before it is sent. For a round that it does not
know, a node signs one only if it holds the secret of exactly the epoch key that the announcement names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from dca_proto.crypto.masks import ask_tag
from dca_proto.crypto.sealing import same
from dca_proto.errors import PeerError
from dca_proto.protocol.actor import NEW
from dca_proto.protocol.announcement import (
    OpenedAnnouncement,
    announcement_hash,
    check_time,
    open_announcement,
)
from dca_proto.protocol.compute.commit import CANCELLED, Committing
from dca_proto.protocol.compute.round import ComputeRound, StoredComputeRound
from dca_proto.protocol.effects import Channel, Effect, Send
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import body_of, encode, verify_signed
from dca_proto.protocol.wire.kinds import SecureSum


class Queried(Committing):
    """The part of a Compute node that repeats its messages, and aborts rounds when it is asked to."""

    @abstractmethod
    def _load(self, stored: StoredComputeRound, payload: bytes | None) -> ComputeRound:
        """Return a round, loaded from its announcement's payload if that is given."""

    def _on_query(self, sender: bytes, frame: m.Signed, body: m.Query, now_ms: int) -> list[Effect]:
        current = self._known_round(body.round_id)
        is_trainer = sender == current.stored.trainer
        if is_trainer:
            self._trainer_round(sender, frame, body)
        else:
            self._node_round(sender, frame, body)
        current.step("query")
        sent_ms, arrives_ms = current.echoed.get(sender, (0, 0))
        if not self._pace.is_due(current.id + sender, now_ms) or sent_ms <= now_ms < arrives_ms:
            return []
        if is_trainer:
            return self._messages_for_trainer(current)
        answers = list(self._messages_for_peer(current, sender))
        more = sum(len(one.payload) for one in answers if isinstance(one, Send)) - self._timing.resend_free_bytes
        current.echoed[sender] = (now_ms, now_ms + more // self._timing.resend_rate)
        return answers

    def _messages_for_trainer(self, current: ComputeRound) -> list[Effect]:
        """Send the trainer the final message of a round, or the number of its contributions so far."""
        message = current.stored.final_message
        if current.is_open:
            current.reported = count = current.listed_count or len(current.kept)
            figures = (count, len(current.declined), current.declined_kept, current.stage, current.waits_for)
            message = encode(self._sign(m.Progress(current.id, current.hash, *figures)))
        return [current.send(message, Channel.TRAINER, current.stored.trainer)] if message else []

    def _messages_for_peer(self, current: ComputeRound, peer: bytes) -> Iterable[Effect]:
        """Repeat this node's messages of the round for a peer, and pass on the answers of the others (§4.7)."""
        if current.is_aborted:
            return [current.send(current.stored.final_message, Channel.COMPUTE, peer)]
        has_lists = peer in current.answers  # else it could not have answered
        messages = [self._list_to(current, peer)] if current.takes("peer answer") and not has_lists else []
        answers = [frame for author, (frame, _) in sorted(current.answers.items()) if author != peer]
        return [*messages, *(current.send(encode(frame), Channel.COMPUTE, peer) for frame in answers)]

    def _on_abort_wanted(self, sender: bytes, wanted: m.AbortWanted, now_ms: int) -> list[Effect]:
        """Answer a client that asks for the aborts of a round (§4.8).

        A record is enough: the newest file may lack another node of the round, or its trainer.
        """
        current, begun = self._recorded(wanted.announcement), None
        if current is None:
            opened = open_announcement(wanted.announcement, self._federation, self._limits)
            begun = opened, self._kind_with_own_key(opened)
            if now_ms < opened.body.commit_by_ms:
                raise PeerError("phase", found="a request for aborts before the round's end", expected="one after it")
            ah, epoch = opened.hash, opened.epochs[opened.computes.index(self.id)].epoch
        else:
            ah, epoch = current.hash, current.stored.epoch
        if self._keys.key(epoch) is None:
            raise PeerError("epoch", found="a round of an epoch key that is not kept here", expected="the current one")
        keys = tuple(self._sessions.keys_of(sender, epoch, now_ms))
        if not keys:
            return self._want_hello(sender, now_ms)
        if not any(same(ask_tag(key, ah), wanted.tag) for key in keys):
            raise PeerError("ask", found="a tag that does not match", expected="a client with a session")
        aborted: list[Effect] = []
        if begun is not None:
            self._room.require_record(self._limits, begun[0].body.trainer)
            current = self._begin(*begun, encode(wanted.announcement))
            aborted = self._abort(current, "unheard", "this node had not heard of the round when it ended")
        assert current is not None, "it is recorded now"
        return [*aborted, *self._aborts_to(current, sender, now_ms)]

    def _recorded(self, frame: m.Signed) -> ComputeRound | None:
        """Return the round of an announcement that this node has recorded. Raises `PeerError` if that is another one.

        What it has recorded, it has verified then.
        """
        if len(frame.body) > self._limits.announcement_bytes_max:
            return None
        current = self._rounds.get(body_of(frame, m.Announcement).round_id)
        if current is not None and current.hash != announcement_hash(encode(frame)):
            raise PeerError("known-round", found="another announcement", expected="the one that is known")
        return current

    def _on_cancel(self, sender: bytes, frame: m.Signed, body: m.Cancel, now_ms: int) -> list[Effect]:
        """Abort a round that its trainer ends; one that is unknown here, if this node holds the named key (§4.8)."""
        current = self._recorded(body.announcement)
        opened = open_announcement(body.announcement, self._federation, self._limits) if current is None else None
        about = (opened.body.trainer, opened.body.round_id, opened.hash) if opened is not None else ()
        if current is not None:
            about = (current.stored.trainer, current.id, current.hash)
        if (sender, body.round_id, body.announcement_hash) != about:
            raise PeerError("sender", found=sender.hex(), expected="the round's trainer, about its announcement")
        verify_signed(frame, self._federation.trainer(sender).key, self._federation_id)
        if opened is not None:
            kind = self._kind_with_own_key(opened)
            self._check_not_ahead(opened, now_ms)
            self._room.require_record(self._limits, sender)
            current = self._begin(opened, kind, None)
        assert current is not None, "it is recorded now"
        if not current.is_open:
            current.step("query")
            return self._messages_for_trainer(current) if self._pace.is_due(current.id + sender, now_ms) else []
        return self._abort(current, CANCELLED, "the trainer ended the round")

    def _check_not_ahead(self, opened: OpenedAnnouncement, now_ms: int) -> None:
        """Check an announcement's deadlines, except that they may be over. Raises `PeerError`."""
        try:
            check_time(opened, self._timing, now_ms, until_ms=opened.body.commit_by_ms)
        except PeerError as error:
            if error.code != "late":
                raise

    def _aborts_to(self, current: ComputeRound, client: bytes, now_ms: int) -> list[Effect]:
        """Send an authenticated client the aborts that this node has: its peers', and its own if there is one."""
        own = [current.stored.final_message] if current.is_aborted else []
        messages = (*own, *dict(current.stored.peer_aborts).values())
        if current.is_open or not messages or not self._pace.is_due(current.id + client, now_ms):
            return []  # a question without an answer delays no receipt
        return [current.send(message, Channel.CLIENT, client) for message in messages]

    def _trainer_round(self, sender: bytes, frame: m.Signed, body: m.Close | m.Query | m.Declines) -> ComputeRound:
        """Return the round of a trainer's message after checking who sent it. Raises `PeerError`."""
        current = self._known_round(body.round_id)
        if sender != current.stored.trainer or body.announcement_hash != current.hash:
            raise PeerError("sender", found=sender.hex(), expected="the round's trainer, about its announcement")
        verify_signed(frame, self._federation.trainer(sender).key, self._federation_id)
        return current

    def _kind_with_own_key(self, opened: OpenedAnnouncement) -> SecureSum:
        """Return the secure sum that names this node and a present key of it. Raises `PeerError`."""
        kind = opened.body.kind
        if not isinstance(kind, SecureSum) or self.id not in opened.computes:
            raise PeerError("computes", found="a round without this Compute node", expected="one that names it")
        named = opened.epochs[opened.computes.index(self.id)]
        own = self._keys.key(named.epoch)
        if own is None or own.public != named.public:
            raise PeerError("epoch", found="an epoch key that is not kept here", expected="the current one")
        return kind

    def _begin(self, opened: OpenedAnnouncement, kind: SecureSum, payload: bytes | None) -> ComputeRound:
        """Return a new round, loaded from its payload if that is given."""
        body = opened.body
        fields = (body.round_id, opened.hash, body.trainer, opened.computes)
        epoch = opened.epochs[opened.computes.index(self.id)].epoch
        current = self._load(StoredComputeRound(NEW, *fields, kind.n_min, body.commit_by_ms, epoch), payload)
        if current.is_loaded:
            current.store(vector_bytes=current.validated.vector_bytes)
        self._rounds[current.id] = current
        self._open.add(current.id)
        self._room.note(current)
        return current
