"""The client checks each round against its policy and ledger, and contributes or declines (DESIGN §4.3-§4.8, §5).

`round` defines its rounds and their phases. Whether it takes part depends on policy, ledger and announcement, never on
its rows. It stores a charge and the message that the charge pays for in one transaction, so both survive a crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from dca_proto.crypto.masks import TAG_BYTES, ask_tag
from dca_proto.crypto.sealing import Identity, Random, same
from dca_proto.errors import PeerError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol import facts
from dca_proto.protocol.actor import EPOCH, RESEND
from dca_proto.protocol.announcement import (
    OpenedAnnouncement,
    check_invitation,
    check_time,
    open_announcement,
    recall,
    seal_answer,
)
from dca_proto.protocol.charges import check_reused
from dca_proto.protocol.client.answer import Composer, Consent
from dca_proto.protocol.client.asking import ASK_NODES, Asking
from dca_proto.protocol.client.round import (
    ANNOUNCEMENTS,
    ASK,
    CLOSE,
    ROUNDS,
    ClientRoom,
    ClientRound,
    DeclinedRounds,
    StoredClientRound,
)
from dca_proto.protocol.client.rows import Rows
from dca_proto.protocol.client.trust import Trust
from dca_proto.protocol.effects import Address, Channel, Effect, Forget, Persist, Report, Send, SetTimer
from dca_proto.protocol.events import Timer
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.keyring import SeenEpochs
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge, Ledger
from dca_proto.protocol.own_session import OwnSession
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.policy import Policy, Refusal
from dca_proto.protocol.records import Records, loaded, signed
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.waiting import Waiting
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode, verify_signed
from dca_proto.protocol.wire.fields import TEXT_CHARS_MAX

HELLO = b"hello"


class Client(Asking):
    """A client, which holds the data of one person or of many.

    Args:
        identity: its Ed25519 identity.
        certificate: proves its membership; signed with the enrolment key.
        federation: the content of the federation file.
        columns: names of its data's columns, known without reading a row.
        rows: reads the rows. window_s: from how many seconds ago they are, by its source; 0 without a window.
        random: returns random bytes; on a device, the operating system's.
        policy: its own limits.
        mechanism: its noise mechanism for sums; it declines rounds with any other.
        records: all (table, key, value) records of its store.
    """

    messages: ClassVar = {
        m.Announcement: "_on_announcement",
        m.Invitation: "_on_invitation",
        m.Receipt: "_on_receipt",
        m.Abort: "_on_abort",
        m.ChargeReused: "_on_reused",
        m.ChargesStated: "_on_charges_stated",
        m.HelloWanted: "_on_hello_wanted",
        m.FederationFile: "_on_file",
    }
    timers: ClassVar = {
        EPOCH: "_greet",
        ASK_NODES: "_ask_nodes",
        RESEND: "_resend",
        ASK: "_ask",
        CLOSE: "_forget",
    }

    def __init__(
        self,
        identity: Identity,
        certificate: m.Certificate,
        federation: Federation,
        *,
        columns: Iterable[str],
        rows: Rows,
        window_s: int = 0,
        random: Random,
        policy: Policy | None = None,
        mechanism: Mechanism | None = None,
        limits: Limits | None = None,
        timing: Timing | None = None,
        records: Records = (),
    ) -> None:
        records = tuple(records)
        super().__init__(identity, federation, random, mechanism, limits, timing, records)
        self._certificate = certificate
        self._consent = Consent(
            policy or Policy(), self._mechanism, self._limits, certificate, frozenset(columns), window_s
        )
        self._restore(records)
        self._composer = Composer(rows, self._session, self._mechanism, identity, certificate, self._sign, self._random)

    def _restore(self, records: Records) -> None:
        self.ledger = Ledger(loaded(records, LEDGER, Charge).values())
        self.declines = DeclinedRounds(records)
        self._seen = SeenEpochs(records, self._timing)
        self._session = OwnSession(
            self._identity,
            self._certificate,
            self._federation,
            records=records,
            timing=self._timing,
            random=self._random,
        )
        self._trust = Trust(self._consent.policy, records)
        self._restore_mark(records)
        self._rounds = {}
        self._pending_charges: dict[bytes, int] = {}  # charge numbers of contributions without a receipt, by round
        self._room = ClientRoom()
        self._foreign: list[bytes] = []  # stored rounds of trainers that the file does not name
        self._outdated: Refusal | None = None  # set once a Compute node has shown that the ledger lost charges
        announcements = {key: value for table, key, value in records if table == ANNOUNCEMENTS}
        rounds = loaded(records, ROUNDS, StoredClientRound).items()
        for round_id, stored in sorted(rounds, key=lambda item: item[1].commit_by_ms):
            opened = None
            if round_id in announcements:
                frame = signed(ANNOUNCEMENTS, announcements[round_id])
                try:
                    opened = open_announcement(frame, self._federation, self._limits, is_stored=True)
                except PeerError:
                    self._foreign.append(round_id)
                    continue
            self._hold(ClientRound(round_id, stored, self.id, opened))

    # --- start and messages ----------------------------------------------------------------------------------------

    def _on_start_up(self, now_ms: int) -> list[Effect]:
        tables = (ROUNDS, ANNOUNCEMENTS)
        forgotten = [Forget(table, round_id) for round_id in self._foreign for table in tables]
        begun = [*self._file_effects(), *self._trust.pin(self._federation), *forgotten, *self._recount(now_ms)]
        resumed = [effect for _, current in sorted(self._rounds.items()) for effect in self._resume(current, now_ms)]
        begun += self._greet(now_ms)
        return [*begun, *self._ask_nodes(now_ms), *resumed]

    def _waits(self, current: ClientRound, now_ms: int) -> Waiting:
        """Wait for the receipt."""
        statistic = current.opened.body.statistic if current.opened is not None else ""
        return Waiting(current.id, statistic, current.phase, current.stored.commit_by_ms, (current.holder.id,))

    def _on_changed_file(self, now_ms: int) -> list[Effect]:
        self._session.adopt(self._federation)  # everything else reads `self._federation` at each message
        return [*self._trust.pin(self._federation), *self._recount(now_ms), *self._book_when_known(now_ms)]

    def _receive(self, sender: bytes, payload: bytes, now_ms: int) -> list[Effect]:
        known = recall(payload, self._federation)  # verified before in this process, maybe by another client
        return self._consent_to(known, None, now_ms) if known else super()._receive(sender, payload, now_ms)

    def needs_data(self, payload: bytes) -> bool:
        """Return True if a message may announce a round that the client does not know, so that it will read its rows.

        Only a trainer of the federation can send such a message. A newer federation file may make one of a later
        message.
        """
        try:
            frame = decode_frame(payload)
            signed = frame.announcement if isinstance(frame, m.Invitation) else frame
            if not isinstance(signed, m.Signed):
                return False
            if isinstance(decode_body(signed.body), m.FederationFile):
                return self._federation.newer(self._federation.opened(signed)) is not None
            body = open_announcement(signed, self._federation, self._limits).body
        except PeerError:
            return False
        return body.round_id not in self._rounds and body.round_id not in self.ledger

    # --- the session (§2.3) ---------------------------------------------------------------------------------------

    def _greet(self, now_ms: int) -> list[Effect]:
        """Publish the session's `Hello`, with a new key if a new epoch has begun."""
        writes = self._session.renew(now_ms)
        self._pace.note(HELLO, now_ms)
        spread = self._random(2)
        return [
            *writes,
            Send(Address(Channel.HELLO), b"", self._session.hello, retain=True),
            SetTimer(Timer(EPOCH), self._session.turn_ms(now_ms, int.from_bytes(spread, "little") / 65536)),
        ]

    def _on_hello_wanted(self, sender: bytes, frame: m.Signed, body: m.HelloWanted, now_ms: int) -> list[Effect]:
        if body.client != self.id:
            raise PeerError("sender", found=body.client.hex(), expected="the id of this client")
        verify_signed(frame, self._federation.compute(sender).key, self._federation_id)
        if not self._pace.is_due(HELLO, now_ms):
            return []
        waiting = [current for current in self._rounds.values() if current.takes(RESEND) and current.is_summed]
        return [*self._greet(now_ms), *(effect for current in waiting for effect in current.answers())]

    # --- announcement: contribute or decline (§4.3, §4.4) -------------------------------------------------------------

    def _on_announcement(self, sender: bytes, frame: m.Signed, body: m.Announcement, now_ms: int) -> list[Effect]:
        return self._consent_to(open_announcement(frame, self._federation, self._limits), None, now_ms)

    def _on_invitation(self, sender: bytes, frame: m.Invitation, now_ms: int) -> list[Effect]:
        return self._consent_to(open_announcement(frame.announcement, self._federation, self._limits), frame, now_ms)

    def _consent_to(self, opened: OpenedAnnouncement, invitation: m.Invitation | None, now_ms: int) -> list[Effect]:
        """Contribute, or decline; repeat the answer to a repeated announcement."""
        body = opened.body
        current = self._rounds.get(body.round_id)
        if current is not None:
            if opened.hash != current.hash:
                raise PeerError("known-round", found="another announcement", expected="the one that is known")
            current.step("repeated announcement")
            return self._answer_again(current, now_ms) if self._pace.is_due(current.id, now_ms) else []
        if body.round_id in self.ledger:
            raise PeerError("replay", found="a round that is over", expected="a new round id")
        refusal = self._room.open.refusal(self._limits.client_open, body.trainer, 1)
        if refusal is not None:  # no room even for a decline
            raise PeerError("room", found=refusal.found, expected=refusal.expected)
        check_invitation(invitation, self.id, body)
        check_time(opened, self._timing, now_ms, until_ms=body.close_by_ms)
        ended = self._take_ended(opened, now_ms) if body.ended else []
        return [*ended, *self._decide(opened, now_ms)]

    def _decide(self, opened: OpenedAnnouncement, now_ms: int) -> list[Effect]:
        """Contribute or decline."""
        current = ClientRound.announced(opened, self.id)
        wrong = self._seen.wrong(opened.epochs, now_ms)
        if wrong is not None:
            found = f"epoch {wrong[0].epoch} of Compute node {self._federation.name_of(wrong[0].compute)}"
            return self._refuse(current, opened, Refusal("epoch", found, wrong[1]), now_ms)
        seen = self._seen.note(opened.epochs, now_ms)
        validated = self._consider(opened, now_ms)
        if isinstance(validated, Refusal):
            return [*seen, *self._refuse(current, opened, validated, now_ms)]
        return [*seen, *self._contribute(current, opened, validated, now_ms)]

    def _hold(self, current: ClientRound) -> None:
        self._rounds[current.id] = current
        self._room.note(current)
        if current.stored.outbound is not None and current.is_summed and current.id in self.ledger:
            self._pending_charges[current.id] = self.ledger[current.id].number

    def _consider(self, opened: OpenedAnnouncement, now_ms: int) -> ValidatedRound | Refusal:
        """Check the round against the client's limits, without reading a row."""
        if (unknown := self._asks_nodes()) is not None:
            return unknown
        if self._outdated is not None:
            return self._outdated  # the remaining budget of a ledger that lost charges is unknown
        validated = self._consent.to_terms(opened, self._federation, self._trust.p(self._federation))
        if isinstance(validated, Refusal):
            return validated
        message_bytes = validated.vector_bytes + TAG_BYTES * len(opened.computes)
        refusal = self._room.refusal(self._limits, opened, message_bytes)
        if refusal is not None:
            return refusal
        pending = self._pending_charges.values()
        return self._consent.to_charge(opened.body, validated, self.ledger, pending, now_ms) or validated

    def _contribute(
        self, current: ClientRound, opened: OpenedAnnouncement, validated: ValidatedRound, now_ms: int
    ) -> list[Effect]:
        """Charge the budget, and store the contribution in the same transaction."""
        body = opened.body
        greeting = [] if self._session.covers(body.commit_by_ms) else self._greet(now_ms)
        charge = Charge(
            body.round_id,
            body.statistic,
            body.trainer,
            validated.mu,
            body.epsilon,
            body.delta,
            now_ms,
            self.ledger.next_number,
            relation=validated.sensitivity.relation,
            slack=validated.cost.slack,
        )
        outbound, errors = self._composer.compose(opened, validated, charge.number)
        charged = self.ledger.charge(charge)
        current.attempt = 1  # skips the shortest wait: the node writes to disk before it sends the receipt
        trusted = self._consent.policy.trusted_ids(self._federation) if opened.computes else ()
        promise = {"colluding": self._trust.p(self._federation) if opened.computes else 0, "trusted": trusted}
        stored = current.advance("announcement", outbound=outbound, **promise)
        self._hold(current)
        current.sent_ms, answers = now_ms, current.answers()
        return [
            *greeting,
            charged,
            Persist(ANNOUNCEMENTS, current.id, opened.payload),
            stored,
            *answers,
            current.resend_timer(self._timing, self.id, now_ms, answers),  # spread by the id, not by data
            Report(facts.Contributed(current.id, charge.statistic, charge.mu, validated.cost.pure, charge.slack)),
            *(Report(facts.DataFailed(current.id, body.statistic, error)) for error in errors),
        ]

    def _refuse(self, current: ClientRound, opened: OpenedAnnouncement, refusal: Refusal, now_ms: int) -> list[Effect]:
        """Decline the round, with the reason. Of the announcement, only the hash and the deadlines are kept."""
        found, expected = map(self._federation.named, (refusal.found, refusal.expected))
        cut = Refusal(refusal.reason, found[:TEXT_CHARS_MAX], expected[:TEXT_CHARS_MAX])
        fields = (cut.reason, cut.found, cut.expected)
        body = m.Decline(current.id, current.hash, self._certificate, *fields)
        decline = seal_answer(self._sign(body), opened, self._random)
        stored = current.advance("refusal", decline=decline)
        current.opened = None
        self._hold(current)
        return [
            stored,
            *self.declines.note(opened.body, cut, now_ms),
            self._close_timer(current, now_ms),
            *current.answers(),
            Report(facts.Declined(current.id, self.id, *fields)),
        ]

    # --- answers from its holder and the nodes (§4.5, §4.6, §4.8) ---------------------------------------------------

    def _on_receipt(self, sender: bytes, receipt: m.Receipt, now_ms: int) -> list[Effect]:
        current = self._rounds.get(receipt.round_id)
        if current is None:
            raise PeerError("phase", found="a receipt of an unknown round", expected="an announcement first")
        waiting = current.stored.outbound
        if waiting is None:
            current.step("repeated receipt")
            return []
        if sender != current.holder.id:
            raise PeerError("sender", found=sender.hex(), expected="the holder of the contribution")
        kept, late = same(waiting.receipt, receipt.tag), same(waiting.late, receipt.tag)
        if receipt.contribution != waiting.contribution or not (kept or late):
            raise PeerError("receipt", found="a tag that does not match", expected="the tag for this contribution")
        stored = current.advance("late" if late else "receipt", outbound=None)
        return [
            stored,
            *self._settle(current),
            *current.cancel(RESEND),
            self._close_timer(current, now_ms),
            Report(facts.Missed(current.id) if late else facts.Acknowledged(current.id)),
        ]

    def _on_reused(self, sender: bytes, frame: m.Signed, body: m.ChargeReused, now_ms: int) -> list[Effect]:
        """Handle a refused charge number: the ledger lost charges, or another copy of it is running."""
        current = self._rounds.get(body.round_id)
        if current is None or body.client != self.id:
            raise PeerError("phase", found="a reused charge of an unknown round", expected="a round of this client")
        self._node_round(sender, frame, body)
        current.step("charge reused")
        number = self.ledger[current.id].number
        check_reused(body, number, self.ledger.next_number)
        if self._outdated is not None:
            return []
        name = self._federation.compute(sender).name
        found = f"Compute node {name} reports that charge number {number} was used before"
        highest = max(body.highest, number)
        self._outdated = Refusal("ledger", found, f"a number that no Compute node has seen; the highest is {highest}")
        return [Report(facts.LedgerReused(current.id, sender, number, body.highest))]

    # --- time and restarts ----------------------------------------------------------------------------------------

    def _resend(self, current: ClientRound, now_ms: int) -> list[Effect]:
        """Until the round's end, resend the message that has no receipt; afterwards, ask the nodes for aborts."""
        if now_ms < current.stored.commit_by_ms:
            current.sent_ms, answers = now_ms, current.answers()
            return [*answers, current.resend_timer(self._timing, self._random(1), now_ms, answers)]
        return [self._close_timer(current, now_ms), *self._ask(current, now_ms)]

    def _answer_again(self, current: ClientRound, now_ms: int) -> list[Effect]:
        """Answer a repeated announcement, unless the last copy of the answer is large and may be on its way."""
        answers = current.answers()
        size = max((len(one.payload) for one in answers if isinstance(one, Send)), default=0)
        is_large = size > self._timing.resend_free_bytes
        if is_large and 0 <= now_ms - current.sent_ms < self._timing.resend_after_ms(0, b"\0", size):
            return []
        current.sent_ms = now_ms if answers else current.sent_ms
        return answers

    def _ask(self, current: ClientRound, now_ms: int) -> list[Effect]:
        """After the round's end, ask its nodes for missing aborts (§4.8): also one that has aborted, for its peers'."""
        opened = current.opened
        if not current.takes(ASK) or not current.is_summed or opened is None:
            return []
        if now_ms < current.stored.commit_by_ms:
            return [current.timer(ASK, current.stored.commit_by_ms + self._timing.resend_first_ms)]
        known = current.stored.aborted_by
        missing = [node for node in current.computes if node not in known]
        questions: list[Effect] = []
        for node in (*missing, *([known[current.asked % len(known)]] if known else ())):
            key = self._session.pair_keys(opened.epochs)[current.computes.index(node)]
            tag = ask_tag(key, current.hash)
            questions.append(current.send(encode(m.AbortWanted(opened.frame, tag)), Channel.COMPUTE, node))
        back_off = msgspec.structs.replace(self._timing, resend_max_ms=self._timing.abort_grace_ms)
        wait_ms = back_off.resend_after_ms(current.asked, self._random(1))
        current.asked += 1
        return [*current.cancel(RESEND), *questions, current.timer(ASK, now_ms + wait_ms)]  # one back-off, not two

    def _resume(self, current: ClientRound, now_ms: int) -> list[Effect]:
        again = self._resend if current.takes(RESEND) else self._ask
        return [self._close_timer(current, now_ms), *again(current, now_ms)]
