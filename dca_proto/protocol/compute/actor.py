"""A Compute node stores sessions and contributions, agrees on one set, and releases one sum (DESIGN §2.3, §4.5, §4.7).

`round` has its rounds and their phases, `commit` the second half of a round, `agreement` the computation of the agreed
set and its sum. A release or an abort is final, and stored before it is sent. The node does not rely on the
announcement's numbers alone: it enforces its own floors, and checks each client's session, tag and charge number.
"""

from __future__ import annotations

from typing import ClassVar

from dca_proto.crypto.masks import ContributionKeys
from dca_proto.crypto.sealing import Identity, Random, actor_id
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol import facts
from dca_proto.protocol.actor import EPOCH, RESEND, BurstLimit
from dca_proto.protocol.announcement import OpenedAnnouncement, check_invited, check_time, open_announcement
from dca_proto.protocol.charges import SeenCharges
from dca_proto.protocol.compute.queries import Queried
from dca_proto.protocol.compute.room import NodeRoom
from dca_proto.protocol.compute.round import (
    ANNOUNCEMENTS,
    COMMIT,
    CONTRIBUTIONS,
    FORGET,
    FREEZE,
    PROGRESS,
    ComputeRound,
    EarlyContributions,
    SortedIds,
    StoredComputeRound,
    announced,
    restored_rounds,
)
from dca_proto.protocol.contribution import HeldContribution, open_contribution, vector_bytes_of
from dca_proto.protocol.effects import Channel, Effect, Persist, Report, SetTimer, Write
from dca_proto.protocol.events import Timer
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.keyring import Keyring, SeenEpochs
from dca_proto.protocol.params import QUESTIONS_BURST, Limits, Timing
from dca_proto.protocol.policy import Floors, Refusal
from dca_proto.protocol.pool import Pool
from dca_proto.protocol.records import Records, sized
from dca_proto.protocol.sessions import SessionTable
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import decode_body, encode, verify_signed

SINCE = "since"
"""The store's table of the time since when it has recorded charge numbers."""
_SINCE_BYTES = 8


class ComputeNode(Queried):
    """A Compute node: holds clients' contributions, and releases a partial sum of each round.

    Args:
        identity: its Ed25519 identity, named in the federation file.
        federation: the federation file given out of band.
        floors: its own limits.
        random: returns random bytes; on a real node, the operating system's.
        mechanism: the noise mechanism of rounds in which it takes part.
        records: all (table, key, value) records of its store.
        pool: does work on many clients at once; by default in this process.
    """

    messages: ClassVar = {
        m.Hello: "_on_hello",
        m.ChargesWanted: "_on_charges_wanted",
        m.SessionsWanted: "_on_sessions_wanted",
        m.Announcement: "_on_announcement",
        m.InvitedRound: "_take_part",
        m.Contribution: "_on_contribution",
        m.Declines: "_on_declines",
        m.Close: "_on_close",
        m.Sealed: "_on_sealed",
        m.Answer: "_on_answer",
        m.VerifiedAnswer: "_on_answer",
        m.Abort: "_on_abort",
        m.Query: "_on_query",
        m.Cancel: "_on_cancel",
        m.AbortWanted: "_on_abort_wanted",
        m.FederationFile: "_on_file",
    }
    timers: ClassVar = {
        EPOCH: "_turn_epoch",
        FREEZE: "_freeze",
        PROGRESS: "_send_progress",
        RESEND: "_resend",
        COMMIT: "_give_up",
        FORGET: "_forget",
    }

    def __init__(
        self,
        identity: Identity,
        federation: Federation,
        *,
        random: Random,
        floors: Floors | None = None,
        mechanism: Mechanism | None = None,
        limits: Limits | None = None,
        timing: Timing | None = None,
        records: Records = (),
        pool: Pool | None = None,
    ) -> None:
        records = tuple(records)
        super().__init__(identity, federation, random, mechanism, limits, timing, records)
        self._floors = floors or Floors()
        self._pool = pool or Pool()
        self._early = EarlyContributions()
        self._questions = BurstLimit(self._timing.progress_ms, QUESTIONS_BURST)
        self._restore(records)

    def _restore(self, records: Records) -> None:
        self._seen = SeenEpochs(records, self._timing)
        self._keys = Keyring(records, self._timing, self._identity, self._random)
        self._charges = SeenCharges(records)
        since = [sized(SINCE, value, _SINCE_BYTES) for table, _, value in records if table == SINCE]
        self._since_ms = int.from_bytes(since[0], "big") if since else -1
        self._sessions = SessionTable(
            records, self._federation, self.id, self._keys, self._pool, limits=self._limits, timing=self._timing,
            name_key=self._federation.name_key(self._identity),
        )  # fmt: skip
        self._rounds = restored_rounds(records, self._load)
        self._open = {current.id for current in self._rounds.values() if current.is_open}
        self._room = NodeRoom()
        for current in self._rounds.values():
            self._room.note(current)

    def _load(self, stored: StoredComputeRound, payload: bytes | None) -> ComputeRound:
        return ComputeRound.loaded(self.id, stored, payload, self._federation, self._mechanism, self._limits)

    def _on_start_up(self, now_ms: int) -> list[Effect]:
        detail = "the federation file was replaced during the round, or this node no longer knows the round's statistic"
        rounds = [current for _, current in sorted(self._rounds.items())]
        lost = [current for current in rounds if current.is_open and not current.is_loaded]
        aborted = [effect for current in lost for effect in self._abort(current, "unreadable", detail)]
        resumed = [effect for current in rounds if current not in lost for effect in self._resume(current, now_ms)]
        ended = [*self._begin_counting(now_ms), *self._sessions.adopt(self._federation)]
        return [*ended, *aborted, *self._turn_epoch(now_ms, starts=True), *resumed]

    def _begin_counting(self, now_ms: int) -> list[Write]:
        """Store since when this store records charge numbers; a restored one begins anew (§8.1)."""
        if self._since_ms >= 0:
            return []
        self._since_ms = max(now_ms, 0)
        return [Persist(SINCE, b"", self._since_ms.to_bytes(_SINCE_BYTES, "big"))]

    def _on_changed_file(self, now_ms: int) -> list[Effect]:
        """Abort open rounds whose trainer or Compute nodes the file no longer names; end revoked clients' sessions."""
        detail = f"{self._federation.title} lacks a member of the round"
        rounds = [self._rounds[round_id] for round_id in sorted(self._open)]
        ended = [r for r in rounds if not self._federation.has(r.stored.trainer, r.stored.computes)]
        aborted = [effect for current in ended for effect in self._abort(current, "federation", detail)]
        return [*self._sessions.adopt(self._federation), *aborted]

    def _resume(self, current: ComputeRound, now_ms: int) -> list[Effect]:
        if not current.is_open:
            again: list[Effect] = []
            if now_ms < current.stored.commit_by_ms + self._timing.abort_grace_ms:
                abort = current.send(current.stored.final_message, Channel.ABORT)
                is_named = self._federation.is_server(current.stored.trainer)  # a revoked trainer gets no sum
                summed = self._messages_for_trainer(current) if is_named else []
                again = [abort] if current.is_aborted else summed
            return [*again, self._close_timer(current, now_ms)]
        body = current.opened.body
        if now_ms >= self._gives_up_ms(current):
            return self._give_up(current, now_ms)
        if current.takes(FREEZE):
            frozen = self._freeze(current, now_ms) if now_ms >= body.close_by_ms else []
            return [*self._timers(current), *self._messages_for_trainer(current), *frozen]
        return [
            *self._timers(current),
            *self._resend(current, now_ms, starts=True),
            *self._answer_when_complete(current, now_ms),
        ]

    # --- sessions (§2.3) ------------------------------------------------------------------------------------------

    def _on_hello(self, sender: bytes, frame: m.Signed, body: m.Hello, now_ms: int) -> list[Effect]:
        self._check_needless(sender, frame, body, now_ms)
        writes = self._sessions.take(sender, frame, body, now_ms)
        return [*writes, Report(facts.SessionKept(sender, len(self._sessions)))] if writes else []

    def _check_needless(
        self, client: bytes, frame: m.Signed, body: m.Hello, now_ms: int, *, alone: bool = False
    ) -> None:
        """Check that no answered round needs a session that a Hello would end. Raises `PeerError`.

        From these sessions the node derives its masks again if it starts again before its release (§4.7).
        """
        answered = [one for one in map(self._rounds.__getitem__, self._open) if one.takes("all answers")]
        for current in answered:
            at_ms = min(now_ms, current.stored.commit_by_ms - 1)
            if current.lists_client(client) and self._sessions.ends_one(client, frame, body, at_ms, alone=alone):
                found = "a third session while a round needs the other two"
                raise PeerError("hello", found=found, expected="one after the round")

    def _on_charges_wanted(self, sender: bytes, frame: m.Signed, body: m.ChargesWanted, now_ms: int) -> list[Effect]:
        """Tell a restored client its highest charge number; its earlier session counts no more (§8.1)."""
        if self._pace.waits(sender + SINCE.encode(), now_ms):
            return []
        hello = decode_body(body.hello.body)
        if not isinstance(hello, m.Hello) or actor_id(hello.certificate.client_key) != sender:
            raise PeerError("sender", found=sender.hex(), expected="the client of the enclosed Hello")
        verify_signed(frame, hello.certificate.client_key, self._federation_id)
        self._check_needless(sender, body.hello, hello, now_ms, alone=True)
        writes = self._sessions.take_alone(sender, body.hello, hello, now_ms)
        self._pace.note(sender + SINCE.encode(), now_ms)
        highest = self._charges.highest(self._sessions.slots[sender])
        answer = m.ChargesStated(sender, body.nonce, highest, self._since_ms, self._federation.stamp)
        kept = [Report(facts.SessionKept(sender, len(self._sessions)))] if writes else []
        return [*writes, *kept, self._send(answer, Channel.CLIENT, sender)]

    def _on_sessions_wanted(self, sender: bytes, frame: m.Signed, body: m.SessionsWanted, now_ms: int) -> list[Effect]:
        trainer = self._federation.trainer(sender)
        self._federation.check_stamp(body.file)
        verify_signed(frame, trainer.key, self._federation_id)
        if self._pace.waits(sender + body.nonce, now_ms) or not self._questions.is_due(sender, now_ms):
            return []
        self._pace.note(sender + body.nonce, now_ms)  # of copies
        count = m.Sessions(body.nonce, self._sessions.count_valid(now_ms), max(now_ms, 0))
        key = [self._send(self._epoch_key(), Channel.TRAINER, sender)] if body.is_keyless else []
        return [*key, self._send(count, Channel.TRAINER, sender)]

    # --- announcement (§4.1, §4.5) --------------------------------------------------------------------------------

    def _on_announcement(self, sender: bytes, frame: m.Signed, body: m.Announcement, now_ms: int) -> list[Effect]:
        return self._take_part(sender, frame, now_ms)

    def _take_part(self, sender: bytes, message: m.Signed | m.InvitedRound, now_ms: int) -> list[Effect]:
        """Begin the announced round; if it is known, repeat this node's message to the trainer."""
        frame = message.announcement if isinstance(message, m.InvitedRound) else message
        opened = open_announcement(frame, self._federation, self._limits)
        body = opened.body
        if sender != body.trainer:
            raise PeerError("sender", found=sender.hex(), expected="the trainer that signed the announcement")
        known = self._rounds.get(body.round_id)
        if known is not None:
            if known.hash != opened.hash:
                raise PeerError("known-round", found="another announcement", expected="the one that is known")
            return self._messages_for_trainer(known) if self._pace.is_due(known.id, now_ms) else []
        kind = self._kind_with_own_key(opened)
        self._room.require_record(self._limits, body.trainer)
        try:
            check_time(opened, self._timing, now_ms, until_ms=body.commit_by_ms)
        except PeerError as error:
            if error.code != "late":
                raise
            late = self._federation.named(f"found {error.found}; expected {error.expected}")
            return self._abort(self._begin(opened, kind, None), "late", late)
        self._seen.check(opened.epochs, now_ms)
        payload = encode(message)
        refusal = self._room.refusal(self._limits, body.trainer, len(payload)) or self._floors.check(body, kind)
        refusal = refusal or self._refuse_few(opened)
        if refusal is None:  # what follows takes longest
            check_invited(announced(message)[1], body, self._limits)
            refusal = self._refuse_numbers(opened)
        current = self._begin(opened, kind, payload if refusal is None else None)
        seen = self._seen.note(opened.epochs, now_ms)
        if refusal is not None:
            detail = self._federation.named(f"found {refusal.found}; needs {refusal.expected}")
            return [*seen, *self._abort(current, refusal.reason, detail)]
        stored = [Persist(ANNOUNCEMENTS, current.id, payload), current.advance("announcement")]
        begun = [*seen, *stored, *self._timers(current), *self._messages_for_trainer(current)]
        if now_ms >= body.close_by_ms:
            return [*begun, *self._freeze(current, now_ms)]
        return [*begun, *self._open_early(current, now_ms)]

    def _open_early(self, current: ComputeRound, now_ms: int) -> list[Effect]:
        """Handle the contributions that overtook the announcement."""
        opened: list[Effect] = []
        for sender, message in self._early.take(current.id).items():
            try:
                opened += self._on_contribution(sender, message, now_ms)
            except PeerError as error:
                opened.append(self._drop(error, sender))
        return opened

    def _refuse_few(self, opened: OpenedAnnouncement) -> Refusal | None:
        """Return a refusal if all nodes of the round may be corrupt."""
        count, p = len(opened.computes), self._federation.p
        return None if count > p else Refusal("p", f"{count} Compute nodes", f"at least {p + 1}")

    def _refuse_numbers(self, opened: OpenedAnnouncement) -> Refusal | None:
        """Return a refusal if this node cannot work out the round's numbers."""
        try:
            opened.validated(self._mechanism, self._limits)
        except UsageError as error:
            return Refusal("announcement", str(error), "a valid round whose numbers this node can work out")
        return None

    # --- contributions (§4.5) -------------------------------------------------------------------------------------

    def _on_contribution(self, sender: bytes, message: m.Contribution, now_ms: int) -> list[Effect]:
        if message.round_id not in self._rounds and self._early.keep(sender, message, now_ms):
            return []
        current = self._known_round(message.round_id)
        if now_ms >= self._answers_until_ms(current):
            raise PeerError("phase", found="a contribution to a round that is over", expected="none")
        if current.invited is not None and sender not in current.invited:
            raise PeerError("invited", found=sender.hex(), expected="one of the clients that are invited")
        if not current.is_held(sender):
            raise PeerError("holder", found="a contribution for another holder", expected="one for this node")
        opened = self._open_contribution(current, sender, message, now_ms)
        if opened is None:
            return self._want_hello(sender, now_ms)
        if current.is_aborted:
            current.step("late contribution")
            return self._aborts_to(current, sender, now_ms)
        kept, keys = opened
        receipt = m.Receipt(current.id, message.contribution, keys.receipt)
        reply = current.send(encode(receipt), Channel.CLIENT, sender)
        collects = current.takes("contribution")
        if not collects and not current.is_listed(sender, message.contribution):
            current.step("late contribution")
            late = m.Receipt(current.id, message.contribution, keys.late)
            answer = current.send(encode(late), Channel.CLIENT, sender)
            return [answer] if self._pace.is_due(current.id + sender, now_ms) else []
        known = current.kept.get(sender)
        if not collects or (known is not None and known.contribution == message.contribution):
            current.step("repeated contribution")
            return [reply] if self._pace.is_due(current.id + sender, now_ms) else []
        return self._keep(current, sender, kept, reply, now_ms)

    def _open_contribution(
        self, current: ComputeRound, client: bytes, message: m.Contribution, now_ms: int
    ) -> tuple[HeldContribution, ContributionKeys] | None:
        """Open a contribution with the client's newest session or the previous one; None if neither opens it."""
        for key in self._sessions.keys_of(client, current.stored.epoch, now_ms):
            try:
                return open_contribution(
                    message,
                    pair_key=key,
                    announcement_hash=current.hash,
                    client=client,
                    holder=self.id,
                    nodes=len(current.computes),
                    vector_bytes=current.stored.vector_bytes or vector_bytes_of(message, len(current.computes)),
                    is_verified=current.is_verified,
                )
            except PeerError as error:
                if error.code != "ciphertext":
                    raise
        return None

    def _keep(
        self, current: ComputeRound, client: bytes, kept: HeldContribution, reply: Effect, now_ms: int
    ) -> list[Effect]:
        """Store a client's first contribution, unless its charge number was used or the round is full."""
        try:
            if client in current.kept:
                raise PeerError("second-contribution", found="another contribution id", expected="the first one")
            slot = self._sessions.slots[client]
            if self._charges.is_used(slot, kept.charge):
                found, expected = f"charge {kept.charge} again", f"one above {self._charges.highest(slot)}"
                raise PeerError("ledger-rollback", found=found, expected=expected)
        except PeerError as error:
            is_due = self._pace.is_due(current.id + client, now_ms)  # each `ChargeReused` costs a signature
            return [self._drop(error, client), *([self._reused(current, client, kept.charge)] if is_due else [])]
        if len(current.kept) >= current.kind.n_max:
            raise PeerError("full", found=f"{len(current.kept)} contributions", expected="fewer")
        self._room.require(self._limits, current, len(kept.record))
        current.step("contribution")
        current.keep(client, kept)
        self._room.note_contributions(current)
        is_first = len(current.kept) == current.reported + 1  # since the last `Progress`
        timer = [current.timer(PROGRESS, now_ms + self._timing.progress_ms)] if is_first else []
        count = Report(facts.ContributionKept(current.id, client, len(current.kept)))
        return [Persist(CONTRIBUTIONS, current.id + client, kept.record), reply, *timer, count]

    def _on_declines(self, sender: bytes, frame: m.Signed, body: m.Declines, now_ms: int) -> list[Effect]:
        """Note which clients have declined, to report how many of them contribute: each counts once (§4.8)."""
        current = self._trainer_round(sender, frame, body)
        if not current.takes("declines"):
            return []  # the round has closed meanwhile
        if len(body.clients) <= len(current.declined.ids):  # repeated, or overtaken: the list only grows
            is_due = self._pace.is_due(current.id + b"declines", now_ms)
            return self._messages_for_trainer(current) if is_due else []
        declined = SortedIds(body.clients)
        declined.check(current)
        self._room.require(self._limits, current, len(body.clients) - len(current.declined.ids))
        current.decline(declined)
        self._room.note_contributions(current)
        return self._messages_for_trainer(current)

    def _on_close(self, sender: bytes, frame: m.Signed, body: m.Close, now_ms: int) -> list[Effect]:
        current = self._trainer_round(sender, frame, body)
        if current.takes(FREEZE):
            return self._freeze(current, now_ms)
        current.step("close")
        return []

    # --- time -----------------------------------------------------------------------------------------------------

    def _send_progress(self, current: ComputeRound, now_ms: int) -> list[Effect]:
        return self._messages_for_trainer(current) if current.reported != len(current.kept) else []

    def _turn_epoch(self, now_ms: int, *, starts: bool = False) -> list[Effect]:
        """Make the current epoch's key, delete expired ones, and publish the signed key as a retained message.

        The key is published repeatedly, because a broker may lose retained messages.
        """
        renewed = self._keys.renew(now_ms)
        self._sessions.expire(self._keys.epochs)
        self._early.expire(now_ms)
        again_ms = now_ms + self._timing.epoch_publish_ms
        return [
            *renewed,
            *(self._make_room(now_ms) if renewed else []),
            *(self._file_effects() if renewed or starts else []),  # a broker may lose it, too
            self._send(self._epoch_key(), Channel.EPOCH, retain=True),
            SetTimer(Timer(EPOCH), min(self._keys.next_turn_ms(now_ms), again_ms)),
        ]

    def _epoch_key(self) -> m.EpochKey:
        keys = self._keys
        return m.EpochKey(self.id, keys.epoch, keys.public, keys.expires_ms, self._federation.stamp)

    def _timers(self, current: ComputeRound) -> list[Effect]:
        body = current.opened.body
        freeze = [current.timer(FREEZE, body.close_by_ms)] if current.takes(FREEZE) else []
        return [*freeze, current.timer(COMMIT, self._gives_up_ms(current))]
