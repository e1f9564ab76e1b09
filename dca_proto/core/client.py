"""The client: holds its data, its policy and its ledger against each round (DESIGN §4.2, §4.4, §4.7).

    new ── announcement ──> joined ── start ──> sharing ── M receipts ──> shared
     └── refusal ──> declined <── refusal ──┘      │                         │
                                                   └── M signed aborts ──> returned

Whether it joins, declines or shares depends on policy, ledger and announcement, never on its rows. What must survive a
crash is stored in the transaction in which it is decided: the charge together with the ciphertexts that it pays for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.core import facts
from dca_proto.core.codec import decode_body, decode_frame, encode, open_signed
from dca_proto.core.effects import Address, CancelTimer, Channel, Effect, Forget, Persist, Report, Send, SetTimer
from dca_proto.core.errors import PeerError, UsageError
from dca_proto.core.events import Timer
from dca_proto.core.federation import Federation
from dca_proto.core.keyring import Keyring, SeenEpochs
from dca_proto.core.ledger import TABLE as LEDGER
from dca_proto.core.ledger import Charge, Ledger
from dca_proto.core.machine import Actor, Table, step
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.messages import (
    TEXT_CHARS_MAX,
    Abort,
    Announcement,
    Certificate,
    Decline,
    Join,
    Receipt,
    Signed,
    Start,
)
from dca_proto.core.params import PROTOCOL_VERSION, Limits, Timing
from dca_proto.core.plan import Plan, Question, ask, plan_round
from dca_proto.core.policy import Policy, Refusal
from dca_proto.core.round import (
    OpenedAnnouncement,
    check_join_time,
    check_terms,
    open_announcement,
    seal_answer,
    session_hash,
)
from dca_proto.core.sealing import Identity, Random
from dca_proto.core.upload import Contribution, make_contribution
from dca_proto.statistics import Statistic
from dca_proto.statistics.contribution import contribution

NEW, JOINED, SHARING, SHARED = "new", "joined", "sharing", "shared"
DECLINED, RETURNED, CLOSED = "declined", "returned", "closed"
TABLE: Table = {
    (NEW, "announcement"): JOINED,
    (NEW, "refusal"): DECLINED,
    (JOINED, "start"): SHARING,
    (JOINED, "refusal"): DECLINED,
    (SHARING, "receipt"): SHARING,
    (SHARING, "last receipt"): SHARED,
    (SHARING, "abort"): SHARING,
    (SHARING, "last abort"): RETURNED,
    (SHARED, "abort"): SHARED,
    (SHARED, "last abort"): RETURNED,
    **{(phase, "repeated announcement"): phase for phase in (JOINED, SHARING, SHARED, DECLINED, RETURNED)},
    **{(phase, "repeated start"): phase for phase in (SHARING, SHARED, RETURNED)},
    **{(phase, "repeated receipt"): phase for phase in (SHARED, RETURNED)},
    **{(phase, "repeated abort"): phase for phase in (SHARING, SHARED, RETURNED)},
    **{(phase, "close"): CLOSED for phase in (JOINED, SHARING, SHARED, DECLINED, RETURNED)},
}

SESSIONS, CONTRIBUTIONS = "session", "contribution"
EPOCH, RESEND, CLOSE = "epoch", "resend", "close"
Rows = Callable[[tuple[str, ...]], NDArray[np.float64]]
"""A client's data: returns the rows, shape (m, number of columns), of the named columns. NaN marks a missing value."""


class Session(msgspec.Struct, frozen=True):
    """One round at the client, as it is stored.

    Attributes:
        phase: a phase of `TABLE`. announcement: as it came. epoch: of the client's own key in its join.
        answer: the sealed join or decline, resent byte for byte. session: the session hash, once started.
        aborted_by: ids of the Compute nodes whose signed aborts came.
    """

    phase: str
    announcement: Signed
    epoch: int
    answer: bytes
    session: bytes = b""
    aborted_by: tuple[bytes, ...] = ()


class ClientActor(Actor):
    """A data holder.

    Args:
        identity: its Ed25519 identity. certificate: the federation's word for it.
        federation: the file given out of band.
        columns: names of the columns that its data have, known without reading a row. rows: reads them.
        random: returns random bytes; the operating system's on a device.
        policy: its own limits.
        mechanism: the noise mechanism it offers; any other is declined.
        records: (table, key, value) of its store.
    """

    def __init__(
        self,
        identity: Identity,
        certificate: Certificate,
        federation: Federation,
        *,
        columns: Iterable[str],
        rows: Rows,
        random: Random,
        policy: Policy | None = None,
        mechanism: Mechanism | None = None,
        limits: Limits | None = None,
        timing: Timing | None = None,
        records: Iterable[tuple[str, bytes, bytes]] = (),
    ) -> None:
        super().__init__(identity, federation, random, mechanism, limits, timing)
        self._certificate = certificate
        self._columns = frozenset(columns)
        self._rows = rows
        self._policy = policy or Policy()
        self._restore(tuple(records))

    def _restore(self, records: Sequence[tuple[str, bytes, bytes]]) -> None:
        def stored(name: str) -> list[tuple[bytes, bytes]]:
            return [(key, value) for table, key, value in records if table == name]

        decode = msgspec.msgpack.decode
        self.ledger = Ledger(decode(value, type=Charge) for _, value in stored(LEDGER))
        self._sessions = {key: decode(value, type=Session) for key, value in stored(SESSIONS)}
        self._pending = {key: decode(value, type=Contribution) for key, value in stored(CONTRIBUTIONS)}
        self._seen = SeenEpochs(records, self._timing)
        self._keys = Keyring(records, self._timing, self._random)
        self._receipts: dict[bytes, set[bytes]] = {}
        self._attempts: dict[bytes, int] = {}
        self._opened: dict[bytes, OpenedAnnouncement] = {}
        self._questions: dict[bytes, Question] = {}
        self._foreign = [round_id for round_id in self._sessions if not self._is_own(round_id)]

    def _is_own(self, round_id: bytes) -> bool:
        """Whether a stored session is of this federation file, and not of one that it has replaced."""
        try:
            self._open(round_id, self._sessions[round_id])
        except PeerError:
            return False
        return True

    def phase(self, round_id: bytes) -> str:
        """The phase of a round here: a phase of `TABLE`."""
        session = self._sessions.get(round_id)
        return session.phase if session else NEW

    # --- start and messages ----------------------------------------------------------------------------------------

    def _on_start_up(self, now_ms: int) -> list[Effect]:
        dropped = [effect for round_id in self._foreign for effect in self._forget(round_id)]
        resumed = [effect for round_id in sorted(self._sessions) for effect in self._resume(round_id, now_ms)]
        return [*dropped, *self._expire_keys(now_ms), *resumed]

    def _receive(self, sender: bytes, payload: bytes, now_ms: int) -> list[Effect]:
        frame = decode_frame(payload)
        if isinstance(frame, Receipt):
            return self._on_receipt(sender, frame, now_ms)
        if not isinstance(frame, Signed):
            raise PeerError("kind", found=type(frame).__name__, expected="Signed or Receipt")
        body = decode_body(frame.body)
        if isinstance(body, Announcement):
            return self._on_announcement(frame, body, now_ms)
        if isinstance(body, Start):
            return self._on_start(frame, body, now_ms)
        if isinstance(body, Abort):
            return self._on_abort(sender, frame, body)
        raise PeerError("kind", found=type(body).__name__, expected="Announcement, Start or Abort")

    # --- announcement: join or decline ----------------------------------------------------------------------------

    def _on_announcement(self, frame: Signed, body: Announcement, now_ms: int) -> list[Effect]:
        known = self._sessions.get(body.round_id)
        if known is not None:
            return self._repeat_answer(body, frame, known)
        if body.round_id in self.ledger:
            raise PeerError("replay", found="a round that is over", expected="a new round id")
        self._check_room(frame)
        opened = open_announcement(frame, self._federation, self._limits)
        check_join_time(opened, self._timing, now_ms)
        self._seen.check(opened.epochs, now_ms)
        refusal = self._consider(opened, now_ms)
        seen: list[Effect] = [*self._seen.note(opened.epochs)]
        if refusal is not None:
            return seen + self._refuse(opened, refusal, now_ms)
        return seen + self._join(opened, now_ms)

    def _check_room(self, frame: Signed) -> None:
        """Rounds at the same time are limited in number and in bytes."""
        held = sum(len(session.announcement.body) for session in self._sessions.values())
        if len(self._sessions) >= self._limits.rounds_open_max:
            raise PeerError("rounds", found=f"{len(self._sessions)} rounds", expected="fewer at the same time")
        if held + len(frame.body) > self._limits.announcements_bytes_max:
            raise PeerError("rounds", found=f"{held} bytes of announcements", expected="fewer at the same time")

    def _repeat_answer(self, body: Announcement, frame: Signed, known: Session) -> list[Effect]:
        if frame != known.announcement:
            raise PeerError("known-round", found="another announcement", expected="the one that is known")
        step(TABLE, known.phase, "repeated announcement")
        return [Send(Address(Channel.TRAINER, body.trainer), body.round_id, known.answer)]

    def _consider(self, opened: OpenedAnnouncement, now_ms: int) -> Refusal | None:
        """What the client's own limits say. Looks at no row."""
        body = opened.body
        try:
            question = self._ask(body)
        except UsageError as error:
            return Refusal("announcement", str(error), "a question that can be answered")
        missing = [column for column in question.statistic.columns if column not in self._columns]
        if missing:
            return Refusal("columns", f"no column {', '.join(missing)}", "columns that this client has")
        named = [self._federation.compute(compute) for compute in opened.computes]
        announced = frozenset(name for member in named for name in (member.name, member.id.hex()))
        everyone = tuple(member.name for member in self._federation.computes)
        trusted = frozenset(self._policy.trusted_computes or everyone)
        return self._policy.check_announcement(body, question, trusted - announced, self.ledger, now_ms)

    def _join(self, opened: OpenedAnnouncement, now_ms: int) -> list[Effect]:
        body = opened.body
        renewed = self._keys.renew(now_ms, self._epochs_in_use())
        keys = self._keys
        join = Join(PROTOCOL_VERSION, body.round_id, opened.hash, self._certificate, keys.epoch, keys.public)
        answer = seal_answer(self._sign(join), opened, self._random)
        self._opened[body.round_id] = opened
        return [
            *renewed,
            *self._epoch_timer(now_ms),
            self._store(body.round_id, Session(step(TABLE, NEW, "announcement"), opened.frame, keys.epoch, answer)),
            SetTimer(Timer(CLOSE, body.round_id), body.close_by_ms + self._timing.abort_grace_ms),
            Send(Address(Channel.TRAINER, body.trainer), body.round_id, answer),
            self._resend_timer(body.round_id, now_ms),
            Report(facts.Joined(body.round_id, self.id)),
        ]

    def _refuse(self, opened: OpenedAnnouncement, refusal: Refusal, now_ms: int) -> list[Effect]:
        """Decline, at the announcement or at the start."""
        body = opened.body
        phase = step(TABLE, self.phase(body.round_id), "refusal")
        why = (refusal.reason, refusal.found[:TEXT_CHARS_MAX], refusal.expected[:TEXT_CHARS_MAX])
        decline = Decline(PROTOCOL_VERSION, body.round_id, opened.hash, self._certificate, *why)
        answer = seal_answer(self._sign(decline), opened, self._random)
        return [
            self._store(body.round_id, Session(phase, opened.frame, 0, answer)),
            CancelTimer(Timer(RESEND, body.round_id)),
            SetTimer(Timer(CLOSE, body.round_id), max(body.close_by_ms, now_ms)),
            Send(Address(Channel.TRAINER, body.trainer), body.round_id, answer),
            Report(facts.Declined(body.round_id, self.id, *why)),
        ]

    # --- start: charge and share ----------------------------------------------------------------------------------

    def _on_start(self, frame: Signed, body: Start, now_ms: int) -> list[Effect]:
        session = self._sessions.get(body.round_id)
        if session is None:
            raise PeerError("phase", found="a start of an unknown round", expected="an announcement first")
        opened = self._open(body.round_id, session)
        open_signed(frame, self._federation.trainer(opened.body.trainer).key, self._federation_hash, Start)
        started = session_hash(body.terms)
        if session.session:
            if started != session.session:
                raise PeerError("known-round", found="another start", expected="the one that is known")
            step(TABLE, session.phase, "repeated start")
            return []
        phase = step(TABLE, session.phase, "start")
        if body.client != self.id or body.position >= body.terms.clients:
            raise PeerError("position", found=f"{body.position} of another", expected="an own place on the roster")
        check_terms(body.terms, opened, now_ms)
        plan = self._plan(opened, body.terms.clients, now_ms)
        if isinstance(plan, Refusal):
            return self._refuse(opened, plan, now_ms)
        started_session = msgspec.structs.replace(session, phase=phase, session=started)
        return self._share(opened, started_session, plan, body.position, now_ms)

    def _plan(self, opened: OpenedAnnouncement, clients: int, now_ms: int) -> Plan | Refusal:
        """The round's own numbers, held against the policy and once more against the budget."""
        body = opened.body
        try:
            question = self._ask(body)
            plan = plan_round(body, question, clients, self._mechanism)
        except UsageError as error:
            return Refusal("plan", str(error), "a round whose noise and sum fit")
        too_small = self._policy.check_size(clients, body.tolerated)
        return too_small or self._policy.check_budget(question.mu, self.ledger, now_ms) or plan

    def _share(
        self, opened: OpenedAnnouncement, session: Session, plan: Plan, position: int, now_ms: int
    ) -> list[Effect]:
        body = opened.body
        statistic = plan.question.statistic
        value, trouble = self._contribution(statistic, body)
        made = make_contribution(
            value,
            plan=plan,
            mechanism=self._mechanism,
            encoding=body.encoding,
            round_id=body.round_id,
            session_hash=session.session,
            client=self.id,
            position=position,
            computes=opened.computes,
            pair_keys=[self._keys.agree(session.epoch, epoch.public) for epoch in opened.epochs],
            random=self._random,
        )
        self._pending[body.round_id] = made
        mu = plan.question.mu
        charge = Charge(body.round_id, body.statistic, body.trainer, mu, body.epsilon, body.delta, now_ms)
        self._attempts[body.round_id] = 0
        return [
            self.ledger.charge(charge),
            Persist(CONTRIBUTIONS, body.round_id, encode(made)),
            self._store(body.round_id, session),
            *self._sends(opened, made),
            self._resend_timer(body.round_id, now_ms),
            Report(facts.Contributed(body.round_id, body.statistic, mu)),
            *trouble,
        ]

    def _contribution(self, statistic: Statistic, body: Announcement) -> tuple[NDArray[np.int64], list[Effect]]:
        """The client's value. Data that cannot be read count as zero: taking part never depends on rows."""
        try:
            rows = self._rows(statistic.columns)
            return contribution(statistic, rows, body.rows_max, body.fraction_bits), []
        except Exception as error:  # whatever a data source or a user's statistic does; its text may hold data
            trouble = Report(facts.DataFailed(body.round_id, body.statistic, type(error).__name__))
            return np.zeros(statistic.dimension, dtype=np.int64), [trouble]

    def _sends(self, opened: OpenedAnnouncement, made: Contribution) -> list[Effect]:
        """The shares that have no receipt yet."""
        received = self._receipts.get(opened.body.round_id, set())
        return [
            Send(Address(Channel.COMPUTE, compute), opened.body.round_id, message)
            for compute, message in zip(opened.computes, made.messages, strict=True)
            if compute not in received
        ]

    # --- receipts and aborts --------------------------------------------------------------------------------------

    def _on_receipt(self, sender: bytes, receipt: Receipt, now_ms: int) -> list[Effect]:
        made, session = self._pending.get(receipt.round_id), self._sessions.get(receipt.round_id)
        if session is None:
            raise PeerError("phase", found="a receipt of an unknown round", expected="an announcement first")
        if made is None:
            step(TABLE, session.phase, "repeated receipt")
            return []
        opened = self._open(receipt.round_id, session)
        if sender not in opened.computes:
            raise PeerError("unknown-compute", found=sender.hex(), expected="a Compute node of the round")
        proof = (made.contribution, made.receipt_tags[opened.computes.index(sender)])
        if (receipt.contribution, receipt.tag) != proof:
            raise PeerError("receipt", found="a tag that does not match", expected="proof of the stored share")
        received = self._receipts.setdefault(receipt.round_id, set())
        if len(received | {sender}) < len(opened.computes):
            step(TABLE, session.phase, "receipt")
            received.add(sender)
            return []
        phase = step(TABLE, session.phase, "last receipt")
        del self._receipts[receipt.round_id], self._pending[receipt.round_id]
        return [
            self._store(receipt.round_id, msgspec.structs.replace(session, phase=phase)),
            Forget(CONTRIBUTIONS, receipt.round_id),
            CancelTimer(Timer(RESEND, receipt.round_id)),
            Report(facts.AllReceived(receipt.round_id)),
        ]

    def _on_abort(self, sender: bytes, frame: Signed, body: Abort) -> list[Effect]:
        session = self._sessions.get(body.round_id)
        if session is None or not session.session:
            return []  # aborts are broadcast: most rounds that end so are none of ours to undo
        opened = self._open(body.round_id, session)
        if sender not in opened.computes:
            raise PeerError("unknown-compute", found=sender.hex(), expected="a Compute node of the round")
        open_signed(frame, self._federation.compute(sender).key, self._federation_hash, Abort)
        if body.session_hash != session.session:
            raise PeerError("session", found="an abort of another session", expected=session.session.hex())
        if sender in session.aborted_by:
            step(TABLE, session.phase, "repeated abort")
            return []
        aborted_by = (*session.aborted_by, sender)
        last = len(aborted_by) == len(opened.computes)
        phase = step(TABLE, session.phase, "last abort" if last else "abort")
        stored = self._store(body.round_id, msgspec.structs.replace(session, phase=phase, aborted_by=aborted_by))
        if not last:
            return [stored]
        return [
            self.ledger.give_back(body.round_id),
            stored,
            *self._forget_contribution(body.round_id),
            CancelTimer(Timer(RESEND, body.round_id)),
            Report(facts.ChargeReturned(body.round_id)),
        ]

    # --- time and restarts ----------------------------------------------------------------------------------------

    def _on_timer(self, timer: Timer, now_ms: int) -> list[Effect]:
        if timer.purpose == EPOCH:
            return self._expire_keys(now_ms)
        session = self._sessions.get(timer.round_id)
        if session is None:
            return []
        if timer.purpose == RESEND:
            return self._resend(timer.round_id, session, now_ms)
        step(TABLE, session.phase, "close")
        return [*self._forget(timer.round_id), *self._expire_keys(now_ms)]

    def _forget(self, round_id: bytes) -> list[Effect]:
        """Everything of a round but its charge."""
        del self._sessions[round_id]
        for memory in (self._opened, self._attempts, self._questions):
            memory.pop(round_id, None)
        return [Forget(SESSIONS, round_id), *self._forget_contribution(round_id)]

    def _expire_keys(self, now_ms: int) -> list[Effect]:
        """Delete the keys of past epochs, also where no further round is ever joined."""
        expired: list[Effect] = list(self._keys.expire(now_ms, self._epochs_in_use()))
        return [*expired, *self._epoch_timer(now_ms)]

    def _epoch_timer(self, now_ms: int) -> list[Effect]:
        turn_ms = self._keys.next_turn_ms(now_ms)
        return [] if turn_ms is None else [SetTimer(Timer(EPOCH), turn_ms)]

    def _epochs_in_use(self) -> set[int]:
        """The epochs of joins that wait for their start; shares that were made need no key any more."""
        return {session.epoch for session in self._sessions.values() if session.phase == JOINED}

    def _resend(self, round_id: bytes, session: Session, now_ms: int) -> list[Effect]:
        """A join until the start has come, shares until their receipts have; nothing after the round's end."""
        opened = self._open(round_id, session)
        if now_ms >= opened.body.close_by_ms or session.phase not in (JOINED, SHARING):
            return []
        if session.phase == JOINED:
            sends: list[Effect] = [Send(Address(Channel.TRAINER, opened.body.trainer), round_id, session.answer)]
        else:
            sends = self._sends(opened, self._pending[round_id])
        return [*sends, self._resend_timer(round_id, now_ms)]

    def _resend_timer(self, round_id: bytes, now_ms: int) -> SetTimer:
        attempt = self._attempts[round_id] = self._attempts.get(round_id, -1) + 1
        wait_ms = self._timing.resend_after_ms(attempt, self._random(1))
        return SetTimer(Timer(RESEND, round_id), now_ms + wait_ms)

    def _resume(self, round_id: bytes, now_ms: int) -> list[Effect]:
        session = self._sessions[round_id]
        close_ms = self._open(round_id, session).body.close_by_ms + self._timing.abort_grace_ms
        return [SetTimer(Timer(CLOSE, round_id), close_ms), *self._resend(round_id, session, now_ms)]

    # --- bookkeeping ----------------------------------------------------------------------------------------------

    def _store(self, round_id: bytes, session: Session) -> Persist:
        self._sessions[round_id] = session
        return Persist(SESSIONS, round_id, encode(session))

    def _open(self, round_id: bytes, session: Session) -> OpenedAnnouncement:
        """The session's announcement, opened once per process."""
        if round_id not in self._opened:
            self._opened[round_id] = open_announcement(session.announcement, self._federation, self._limits)
        return self._opened[round_id]

    def _ask(self, body: Announcement) -> Question:
        """The announcement's question, worked out once per process."""
        if body.round_id not in self._questions:
            self._questions[body.round_id] = ask(body, self._mechanism, self._limits)
        return self._questions[body.round_id]

    def _forget_contribution(self, round_id: bytes) -> list[Effect]:
        self._receipts.pop(round_id, None)
        return [Forget(CONTRIBUTIONS, round_id)] if self._pending.pop(round_id, None) else []
