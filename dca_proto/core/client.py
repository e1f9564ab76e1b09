"""The client: holds its data, its policy and its ledger against each round (DESIGN §4.2, §4.4, §4.7).

Its rounds and their phases stand in `client_round`. Whether it joins, declines or shares depends on policy, ledger and
announcement, never on its rows. What must survive a crash is stored in the transaction in which it is decided: the
charge together with the ciphertexts that it pays for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from dca_proto.core import facts
from dca_proto.core.charges import check_behind
from dca_proto.core.client_round import CONTRIBUTIONS, JOINED, NEW, SESSIONS, SHARING, TABLE, Round, Session
from dca_proto.core.codec import decode_body, decode_frame, encode, verify_signed
from dca_proto.core.declines import DeclinedRound, Declines
from dca_proto.core.effects import CancelTimer, Effect, Forget, Persist, Report, SetTimer
from dca_proto.core.errors import PeerError, UsageError
from dca_proto.core.events import Timer
from dca_proto.core.federation import Federation
from dca_proto.core.keyring import Keyring, SeenEpochs
from dca_proto.core.ledger import TABLE as LEDGER
from dca_proto.core.ledger import Charge, Ledger
from dca_proto.core.machine import Actor, step
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.messages import (
    TEXT_CHARS_MAX,
    Abort,
    Announcement,
    Behind,
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
from dca_proto.core.randomiser import randomiser_of
from dca_proto.core.records import decoded
from dca_proto.core.release import make_release
from dca_proto.core.round import check_join_time, check_terms, open_announcement, seal_answer, session_hash
from dca_proto.core.sealing import Identity, Random
from dca_proto.core.upload import Contribution, make_contribution
from dca_proto.statistics import Statistic
from dca_proto.statistics.contribution import contribution, counted_rows

EPOCH, RESEND, CLOSE = "epoch", "resend", "close"
Rows = Callable[[tuple[str, ...]], NDArray[np.float64]]
"""A client's data: returns the rows, shape (m, number of columns), of the named columns. NaN marks a missing value."""
Make = Callable[[NDArray[np.int64], int, int], Contribution]


class ClientActor(Actor):
    """A data holder.

    Args:
        identity: its Ed25519 identity. certificate: the federation's word for it.
        federation: the file given out of band.
        columns: names of the columns that its data have, known without reading a row. rows: reads them.
        random: returns random bytes; the operating system's on a device.
        policy: its own limits.
        mechanism: the noise mechanism it offers for sums; any other is declined.
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
        def stored(name: str) -> dict[bytes, bytes]:
            return {key: value for table, key, value in records if table == name}

        self.ledger = Ledger(decoded(LEDGER, value, Charge) for value in stored(LEDGER).values())
        self.declines = Declines(records)
        self._seen = SeenEpochs(records, self._timing)
        self._keys = Keyring(records, self._timing, self._random)
        self._rounds: dict[bytes, Round] = {}
        self._held_bytes = 0  # of the announcements of these rounds
        self._foreign: list[bytes] = []  # rounds of a federation file that was replaced
        self._outdated: Refusal | None = None  # whose word it is that the ledger has forgotten charges
        contributions = stored(CONTRIBUTIONS)
        for round_id, value in stored(SESSIONS).items():
            made = contributions.get(round_id)
            contribution = None if made is None else decoded(CONTRIBUTIONS, made, Contribution)
            self._restore_round(round_id, decoded(SESSIONS, value, Session), contribution)

    def _restore_round(self, round_id: bytes, session: Session, contribution: Contribution | None) -> None:
        try:
            opened = open_announcement(session.announcement, self._federation, self._limits)
        except PeerError:
            self._foreign.append(round_id)
        else:
            self._hold(Round(msgspec.structs.replace(session, announcement=opened.frame), opened, contribution))

    def phase(self, round_id: bytes) -> str:
        """The phase of a round here: a phase of `TABLE`."""
        known = self._rounds.get(round_id)
        return known.phase if known else NEW

    # --- start and messages ----------------------------------------------------------------------------------------

    def _on_start_up(self, now_ms: int) -> list[Effect]:
        dropped = [Forget(table, round_id) for round_id in self._foreign for table in (SESSIONS, CONTRIBUTIONS)]
        resumed = [effect for _, current in sorted(self._rounds.items()) for effect in self._resume(current, now_ms)]
        return [*dropped, *self._expire_keys(now_ms), *resumed]

    def _receive(self, sender: bytes, payload: bytes, now_ms: int) -> list[Effect]:
        frame = decode_frame(payload)
        if isinstance(frame, Receipt):
            return self._on_receipt(sender, frame)
        if not isinstance(frame, Signed):
            raise PeerError("kind", found=type(frame).__name__, expected="Signed or Receipt")
        body = decode_body(frame.body)
        match body:
            case Announcement():
                return self._on_announcement(frame, body, now_ms)
            case Start():
                return self._on_start(frame, body, now_ms)
            case Abort():
                return self._on_abort(sender, frame, body)
            case Behind():
                return self._on_behind(sender, frame, body)
            case _:
                raise PeerError("kind", found=type(body).__name__, expected="a message for a client")

    # --- announcement: join or decline ----------------------------------------------------------------------------

    def _on_announcement(self, frame: Signed, body: Announcement, now_ms: int) -> list[Effect]:
        known = self._rounds.get(body.round_id)
        if known is not None:
            if frame != known.stored.announcement:
                raise PeerError("known-round", found="another announcement", expected="the one that is known")
            step(TABLE, known.phase, "repeated announcement")
            return known.answers()
        if body.round_id in self.ledger:
            raise PeerError("replay", found="a round that is over", expected="a new round id")
        self._check_room(frame)
        opened = open_announcement(frame, self._federation, self._limits)
        check_join_time(opened, self._timing, now_ms)
        self._seen.check(opened.epochs, now_ms)
        current = Round(Session(NEW, opened.frame), opened)
        refusal = self._consider(current, now_ms)
        seen: list[Effect] = [*self._seen.note(opened.epochs)]
        if refusal is not None:
            return seen + self._refuse(current, refusal, now_ms)
        return seen + (self._release if body.local else self._join)(current, now_ms)

    def _check_room(self, frame: Signed) -> None:
        """Rounds at the same time are limited in number and in bytes."""
        if len(self._rounds) >= self._limits.rounds_open_max:
            raise PeerError("rounds", found=f"{len(self._rounds)} rounds", expected="fewer at the same time")
        if self._held_bytes + len(frame.body) > self._limits.announcements_bytes_max:
            found = f"{self._held_bytes} bytes of announcements"
            raise PeerError("rounds", found=found, expected="fewer at the same time")

    def _hold(self, current: Round) -> None:
        if current.id not in self._rounds:
            self._held_bytes += len(current.stored.announcement.body)
        self._rounds[current.id] = current

    def _consider(self, current: Round, now_ms: int) -> Refusal | None:
        """What the client's own limits say. Looks at no row."""
        if self._outdated is not None:
            return self._outdated  # a ledger that forgot charges must not say what is left
        try:
            question = self._ask(current)
        except UsageError as error:
            return Refusal("announcement", str(error), "a question that can be answered")
        if not self._columns.issuperset(question.statistic.columns):
            missing = [column for column in question.statistic.columns if column not in self._columns]
            return Refusal("columns", f"no column {', '.join(missing)}", "columns that this client has")
        without = self._policy.missing_computes(self._federation, current.opened.computes)
        return self._policy.check_announcement(current.body, question, without, self.ledger, now_ms)

    def _ask(self, current: Round) -> Question:
        """The announcement's question, worked out once per process."""
        if current.question is None:
            question = ask(current.body, self._mechanism, self._limits)
            question.statistic.require_libraries()  # or else its contribution would be zero
            current.question = question
        return current.question

    def _join(self, current: Round, now_ms: int) -> list[Effect]:
        renewed = self._keys.renew(now_ms, self._epochs_in_use())
        keys, opened = self._keys, current.opened
        join = Join(PROTOCOL_VERSION, current.id, opened.hash, self._certificate, keys.epoch, keys.public)
        answer = seal_answer(self._sign(join), opened, self._random)
        self._hold(current)
        return [
            *renewed,
            *self._epoch_timer(now_ms),
            current.store(phase=step(TABLE, NEW, "announcement"), epoch=keys.epoch, answer=answer),
            self._close_timer(current),
            *current.answers(),
            self._resend_timer(current, now_ms),
            Report(facts.Joined(current.id, self.id)),
        ]

    def _release(self, current: Round, now_ms: int) -> list[Effect]:
        """Of a local round: charge, and release or report to the trainer (DESIGN §4.8, §4.9)."""
        plan = self._plan(current, 1, now_ms)
        if isinstance(plan, Refusal):
            return self._refuse(current, plan, now_ms)

        def make(value: NDArray[np.int64], rows: int, _: int) -> Contribution:
            return make_release(
                value,
                rows,
                randomiser=randomiser_of(plan, self._mechanism),
                opened=current.opened,
                certificate=self._certificate,
                sign=self._sign,
                random=self._random,
            )

        phase = step(TABLE, NEW, "release")
        self._hold(current)
        return [self._close_timer(current), *self._spend(current, phase, plan, make, now_ms)]

    def _refuse(self, current: Round, refusal: Refusal, now_ms: int) -> list[Effect]:
        """Decline, at the announcement or at the start."""
        phase = step(TABLE, current.phase, "refusal")
        cut = Refusal(refusal.reason, refusal.found[:TEXT_CHARS_MAX], refusal.expected[:TEXT_CHARS_MAX])
        known_as, why = (PROTOCOL_VERSION, current.id, current.opened.hash, self._certificate), astuple(cut)
        answer = seal_answer(self._sign(Decline(*known_as, *why)), current.opened, self._random)
        self._hold(current)
        return [
            current.store(phase=phase, answer=answer),
            *self.declines.note(DeclinedRound.of(current.body, cut, self.declines.next_number, now_ms)),
            CancelTimer(Timer(RESEND, current.id)),
            SetTimer(Timer(CLOSE, current.id), max(current.body.close_by_ms, now_ms)),
            *current.answers(),
            Report(facts.Declined(current.id, self.id, *why)),
        ]

    # --- start: charge and share ----------------------------------------------------------------------------------

    def _on_start(self, frame: Signed, body: Start, now_ms: int) -> list[Effect]:
        current = self._rounds.get(body.round_id)
        if current is None:
            raise PeerError("phase", found="a start of an unknown round", expected="an announcement first")
        verify_signed(frame, self._federation.trainer(current.body.trainer).key, self._federation_hash)
        started = session_hash(body.terms)
        if current.stored.session:
            if started != current.stored.session:
                raise PeerError("known-round", found="another start", expected="the one that is known")
            step(TABLE, current.phase, "repeated start")
            return []
        phase = step(TABLE, current.phase, "start")
        if body.client != self.id or body.position >= body.terms.clients:
            raise PeerError("position", found=f"{body.position} of another", expected="an own place on the roster")
        check_terms(body.terms, current.opened, now_ms)
        plan = self._plan(current, body.terms.clients, now_ms)
        if isinstance(plan, Refusal):
            return self._refuse(current, plan, now_ms)

        def make(value: NDArray[np.int64], _: int, charge: int) -> Contribution:
            return self._make(current, plan, value, started, body.position, charge)

        return self._spend(current, phase, plan, make, now_ms, session=started)

    def _spend(
        self, current: Round, phase: str, plan: Plan, make: Make, now_ms: int, session: bytes = b""
    ) -> list[Effect]:
        """Charge, and store in the same transaction what is sent for it.

        Args:
            make: the contribution, of the value, how many rows it is of, and its charge's number.
        """
        charge = self._charge(current, plan, now_ms)
        value, rows, trouble = self._contribution(plan.question.statistic, current.body)
        made = make(value, rows, charge.number)
        current.contribution, current.attempt = made, 1  # the first receipts wait for durable writes
        current.question = None  # answered
        return [
            self.ledger.charge(charge),
            Persist(CONTRIBUTIONS, current.id, encode(made)),
            current.store(phase=phase, session=session),
            *current.shares(),
            self._resend_timer(current, now_ms),
            Report(facts.Contributed(current.id, charge.statistic, charge.mu, charge.price.pure)),
            *trouble,
        ]

    def _plan(self, current: Round, clients: int, now_ms: int) -> Plan | Refusal:
        """The round's own numbers, held against the policy and once more against the ledger."""
        if self._outdated is not None:
            return self._outdated
        try:
            question = self._ask(current)
            plan = plan_round(current.body, question, clients, self._mechanism)
        except UsageError as error:
            return Refusal("plan", str(error), "a round whose noise and sum fit")
        refusal = None if current.body.local else self._policy.check_size(clients, current.body.tolerated)
        return refusal or self._policy.check_budget(question.price, self.ledger, now_ms) or plan

    def _charge(self, current: Round, plan: Plan, now_ms: int) -> Charge:
        body, number, question = current.body, self.ledger.next_number, plan.question
        cost, relation = (question.mu, body.epsilon, body.delta), question.sensitivity.relation
        return Charge(body.round_id, body.statistic, body.trainer, *cost, now_ms, number, relation=relation)

    def _contribution(self, statistic: Statistic, body: Announcement) -> tuple[NDArray[np.int64], int, list[Effect]]:
        """The client's value, and how many rows it is of, whatever is in them.

        Data that cannot be read count as zero, and so does a row on which the statistic fails: taking part never
        depends on rows.
        """
        value, counted = np.zeros(statistic.dimension, dtype=np.int64), 0
        failures: list[Exception] = []
        try:
            rows = self._rows(statistic.columns)
            counted = counted_rows(statistic, len(rows), body.rows_max)
            value = contribution(statistic, rows, body.rows_max, body.fraction_bits, failures=failures)
        except Exception as error:  # whatever a data source does
            failures.append(error)
        kinds = [type(error).__name__ for error in failures[:1]]  # without their texts, which may hold data
        return value, counted, [Report(facts.DataFailed(body.round_id, body.statistic, kind)) for kind in kinds]

    def _make(
        self, current: Round, plan: Plan, value: NDArray[np.int64], session: bytes, position: int, charge: int
    ) -> Contribution:
        opened, epoch = current.opened, current.stored.epoch
        return make_contribution(
            value,
            plan=plan,
            mechanism=self._mechanism,
            encoding=current.body.encoding,
            round_id=current.id,
            session_hash=session,
            client=self.id,
            position=position,
            charge=charge,
            computes=opened.computes,
            pair_keys=[self._keys.agree(epoch, compute.public) for compute in opened.epochs],
            random=self._random,
        )

    # --- what its holders answer ----------------------------------------------------------------------------------

    def _on_receipt(self, sender: bytes, receipt: Receipt) -> list[Effect]:
        current = self._rounds.get(receipt.round_id)
        if current is None:
            raise PeerError("phase", found="a receipt of an unknown round", expected="an announcement first")
        if current.contribution is None:
            step(TABLE, current.phase, "repeated receipt")
            return []
        if sender not in current.holders:
            raise PeerError("unknown-compute", found=sender.hex(), expected="one to whom a part of it was sent")
        if not current.is_proof(sender, receipt):
            raise PeerError("receipt", found="a tag that does not match", expected="proof of the stored share")
        last = len(current.received | {sender}) == len(current.holders)
        phase = step(TABLE, current.phase, "last receipt" if last else "receipt")
        current.received.add(sender)
        if not last:
            return []
        return [
            current.store(phase=phase),
            *self._forget_contribution(current),
            CancelTimer(Timer(RESEND, current.id)),
            Report(facts.AllReceived(current.id)),
        ]

    def _on_behind(self, sender: bytes, frame: Signed, body: Behind) -> list[Effect]:
        """A Compute node has seen this number before: the ledger has forgotten charges, or another copy of it runs."""
        current = self._rounds.get(body.round_id)
        if current is None or body.client != self.id:
            raise PeerError("phase", found="word of an unknown round", expected="an own round")
        self._check_compute(current, sender, frame, body)
        number = self.ledger[current.id].number
        check_behind(body, number, self.ledger.next_number)
        step(TABLE, current.phase, "behind")
        if sender in current.refused:
            return []
        current.refused.add(sender)
        found = f"Compute node {self._federation.compute(sender).name} says that charge number {number} was used before"
        highest = max(body.highest, number)
        self._outdated = Refusal("ledger", found, f"a number that no Compute node has seen; the highest is {highest}")
        return [Report(facts.LedgerBehind(current.id, sender, number, body.highest))]

    def _on_abort(self, sender: bytes, frame: Signed, body: Abort) -> list[Effect]:
        current = self._rounds.get(body.round_id)
        if current is None or not current.stored.session:
            return []  # aborts are broadcast: most rounds that end so are none of ours to undo
        self._check_compute(current, sender, frame, body)
        if sender in current.stored.aborted_by:
            step(TABLE, current.phase, "repeated abort")
            return []
        aborted_by = (*current.stored.aborted_by, sender)
        last = len(aborted_by) == len(current.opened.computes)
        phase = step(TABLE, current.phase, "last abort" if last else "abort")
        stored = current.store(phase=phase, aborted_by=aborted_by)
        if not last:
            return [stored]
        return [
            self.ledger.give_back(current.id),
            stored,
            *self._forget_contribution(current),
            CancelTimer(Timer(RESEND, current.id)),
            Report(facts.ChargeReturned(current.id)),
        ]

    def _check_compute(self, current: Round, sender: bytes, frame: Signed, body: Abort | Behind) -> None:
        """The word of a Compute node of the round, about its session. Raises `PeerError`."""
        if sender not in current.opened.computes:
            raise PeerError("unknown-compute", found=sender.hex(), expected="a Compute node of the round")
        verify_signed(frame, self._federation.compute(sender).key, self._federation_hash)
        if body.session_hash != current.stored.session:
            raise PeerError("session", found="word of another session", expected=current.stored.session.hex())

    # --- time and restarts ----------------------------------------------------------------------------------------

    def _on_timer(self, timer: Timer, now_ms: int) -> list[Effect]:
        if timer.purpose == EPOCH:
            return self._expire_keys(now_ms)
        current = self._rounds.get(timer.round_id)
        if current is None:
            return []
        if timer.purpose == RESEND:
            return self._resend(current, now_ms)
        step(TABLE, current.phase, "close")
        return [*self._forget(current), *self._expire_keys(now_ms)]

    def _forget(self, current: Round) -> list[Effect]:
        """Everything of a round but its charge."""
        del self._rounds[current.id]
        self._held_bytes -= len(current.stored.announcement.body)
        return [Forget(SESSIONS, current.id), *self._forget_contribution(current)]

    def _forget_contribution(self, current: Round) -> list[Effect]:
        if current.contribution is None:
            return []
        current.contribution = None
        current.received.clear()
        return [Forget(CONTRIBUTIONS, current.id)]

    def _expire_keys(self, now_ms: int) -> list[Effect]:
        """Delete the keys of past epochs, also where no further round is ever joined."""
        expired: list[Effect] = list(self._keys.expire(now_ms, self._epochs_in_use()))
        return [*expired, *self._epoch_timer(now_ms)]

    def _epoch_timer(self, now_ms: int) -> list[Effect]:
        turn_ms = self._keys.next_turn_ms(now_ms)
        return [] if turn_ms is None else [SetTimer(Timer(EPOCH), turn_ms)]

    def _epochs_in_use(self) -> Iterator[int]:
        """The epochs of joins that wait for their start; shares that were made need no key any more."""
        return (current.stored.epoch for current in self._rounds.values() if current.phase == JOINED)

    def _resend(self, current: Round, now_ms: int) -> list[Effect]:
        """A join until the start has come, shares until their receipts have; nothing after the round's end."""
        if now_ms >= current.body.close_by_ms or current.phase not in (JOINED, SHARING):
            return []
        sends = current.answers() if current.phase == JOINED else current.shares()
        return [*sends, self._resend_timer(current, now_ms)]

    def _resend_timer(self, current: Round, now_ms: int) -> SetTimer:
        wait_ms = self._timing.resend_after_ms(current.attempt, self._random(1))
        current.attempt += 1
        return SetTimer(Timer(RESEND, current.id), now_ms + wait_ms)

    def _close_timer(self, current: Round) -> SetTimer:
        """When a round in which it takes part is forgotten: aborts may come for a while yet."""
        return SetTimer(Timer(CLOSE, current.id), current.body.close_by_ms + self._timing.abort_grace_ms)

    def _resume(self, current: Round, now_ms: int) -> list[Effect]:
        return [self._close_timer(current), *self._resend(current, now_ms)]
