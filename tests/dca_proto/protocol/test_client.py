"""The client's state machine: what each phase takes, and that nothing else changes anything."""

from __future__ import annotations

import functools

import msgspec
import pytest
from failing_rounds import abort_of
from round_helpers import (
    EASY,
    announced,
    begin,
    exact_actors,
    forged,
    hand_over,
    ignored,
    losing,
    passing,
    refused,
    sends,
    sent,
    snapshot,
    until_the_end,
)

from dca_proto.errors import UsageError
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.round import ROUNDS, TABLE, StoredClientRound
from dca_proto.protocol.effects import Forget, Persist, SetTimer
from dca_proto.protocol.events import Command, Received, Started, Timer, TimerFired
from dca_proto.protocol.facts import Acknowledged, Declined, Missed
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import (
    AbortWanted,
    Announcement,
    ChargeReused,
    Close,
    Contribution,
    Receipt,
    Sealed,
)
from dca_proto.testing import TestFederation

PHASES = ("new", "declined", "sent", "kept", "missed", "returned")
EVENTS = {
    "announcement": ("announcement", "refusal", "repeated announcement"),
    "charge reused": ("charge reused",),
    "receipt": ("receipt", "late", "repeated receipt"),
    "abort": ("abort", "last abort", "repeated abort"),
}
"""What arrives, and the events of the table that it can be."""
KEPT_TABLES = {LEDGER, "seen", "epoch", "hello", "pin"}


class ActorInPhase:
    """Client 0 of four, brought to a phase; the rest of the round goes on as far as it can."""

    def __init__(self, phase: str) -> None:
        self.actors = TestFederation(4, 3, policy=Policy(computes_min=9) if phase == "declined" else None)
        self.client = self.actors.clients[0]
        self.network = self.actors.network()
        self.network.tamper = losing(*{"sent": (Receipt, Close), "kept": (Close,)}.get(phase, ()))
        if phase == "missed":
            self.network.tamper = losing(Contribution, sender=self.client)
        if phase == "new":
            self.network.tamper = losing(Announcement, to=b"")  # the broadcast
        begin(self.actors, self.network, tolerate=1 if phase == "missed" else 0)
        self.opened = announced(self.network, self.actors)
        self.round_id = self.opened.body.round_id
        if phase == "missed":
            self.network.advance(self.network.now_ms + 1000)
            self.network.tamper = lambda one: [one]
            self.network.advance(self.network.now_ms + 10_000)
        if phase == "returned":
            self.network.tamper = lambda one: ()
            self.network = self._fresh()
        assert self.actor.phase(self.round_id) == phase

    def _fresh(self):
        """A round whose nodes all abort."""
        phased = ActorInPhase("kept")
        for node in range(3):
            phased.network.handle(phased.client, Received(*abort_of(phased.actors, phased.network, node)))
        self.actors, self.opened, self.round_id = phased.actors, phased.opened, phased.round_id
        return phased.network

    @property
    def actor(self) -> Client:
        return self.network.actors[self.client]

    @functools.cached_property
    def holder(self) -> bytes:
        return self.opened.holder(self.client).id

    def message(self, event: str, node: int = 0) -> tuple[bytes, bytes]:
        """(sender, payload) of a valid message of that kind."""
        identity = self.actors.compute_identities[node]
        match event:
            case "announcement":
                return self.actors.trainer_identity.id, encode(self.opened.frame)
            case "charge reused":
                body = ChargeReused(self.round_id, self.opened.hash, self.client, 1, 1)
                return identity.id, forged(self.actors, identity, body)
            case "receipt":
                known = sent(self.network, Receipt, to=self.client)
                return self.holder, known[0].payload if known else encode(Receipt(self.round_id, bytes(16), bytes(16)))
            case _:
                return abort_of(self.actors, self.network, node)


def is_legal(phase: str, event: str) -> bool:
    return any((phase, name) in TABLE for name in EVENTS[event])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("event", EVENTS)
def test_a_message_outside_the_table_changes_nothing(phase: str, event: str) -> None:
    phased = ActorInPhase(phase)
    sender, payload = phased.message(event)
    if is_legal(phase, event):
        before = dict(phased.actor.dropped)
        phased.network.handle(phased.client, Received(sender, payload))
        assert dict(phased.actor.dropped) == before
    elif event == "abort":  # broadcast: most are of rounds that were none of this client's
        ignored(phased.network, phased.client, sender, payload)
    else:
        refused(phased.network, phased.client, sender, payload)


@pytest.mark.parametrize("phase", PHASES)
def test_a_timer_that_has_lost_its_purpose_changes_nothing(phase: str) -> None:
    phased = ActorInPhase(phase)
    before = snapshot(phased.actor)
    if phase != "sent":  # which resends
        assert phased.actor.handle(TimerFired(Timer("resend", phased.round_id)), phased.network.now_ms) == []
    for purpose in ("resend", "close", "ask"):
        assert phased.actor.handle(TimerFired(Timer(purpose, bytes(16))), phased.network.now_ms) == []
    assert snapshot(phased.actor) == before


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_takes_no_commands(phase: str) -> None:
    phased = ActorInPhase(phase)
    before = snapshot(phased.actor)
    with pytest.raises(UsageError, match="takes no command"):
        phased.actor.handle(Command(object()), phased.network.now_ms)
    assert snapshot(phased.actor) == before


@pytest.mark.parametrize("phase", PHASES[1:])
def test_a_restart_restores_the_phase_and_all_that_was_promised(phase: str) -> None:
    phased = ActorInPhase(phase)
    before = phased.actor._rounds[phased.round_id]
    phased.network.tamper = lambda one: ()
    phased.network.restart(phased.client)
    after = phased.actor._rounds[phased.round_id]
    opened = [current.opened and current.opened.hash for current in (before, after)]
    assert (after.stored, after.hash, opened[1]) == (before.stored, before.hash, opened[0])
    assert (opened[1] is None) == (phase == "declined"), "of a declined round, the hash is kept"


def test_every_entry_of_the_table_is_taken() -> None:
    """By the messages above, and by timers."""
    taken = {(phase, name) for phase in PHASES for event in EVENTS for name in EVENTS[event] if (phase, name) in TABLE}
    timers = {(phase, "close") for phase in PHASES if phase != "new"}
    timers |= {("sent", "resend"), *((phase, "ask") for phase in ("sent", "kept", "missed"))}
    assert taken | timers == set(TABLE)


# What each step does.


def stored_round(phased: ActorInPhase) -> StoredClientRound:
    """The round as the client's store has it."""
    return msgspec.msgpack.decode(phased.network.stores[phased.client][ROUNDS, phased.round_id], type=StoredClientRound)


def test_the_charge_and_the_message_are_stored_before_the_first_send() -> None:
    phased = ActorInPhase("new")
    effects = phased.actor.handle(Received(*phased.message("announcement")), phased.network.now_ms)
    kinds = [effect.table if isinstance(effect, Persist) else type(effect).__name__ for effect in effects]
    assert kinds.count("Send") == 1, "one message, to its holder"
    before = kinds[: kinds.index("Send")]
    assert {LEDGER, "announcement", ROUNDS} <= set(before)


def test_a_decline_is_stored_and_resent_byte_for_byte_and_costs_nothing() -> None:
    phased = ActorInPhase("declined")
    (answer, *_) = sent(phased.network, Sealed, sender=phased.client)
    again = phased.actor.handle(Received(*phased.message("announcement")), phased.network.now_ms)
    assert [send.payload for send in sends(again)] == [answer.payload]
    assert phased.actor.ledger.charges == ()
    assert (ROUNDS, phased.round_id) in phased.network.stores[phased.client]


def test_a_contribution_is_resent_with_back_off_until_the_receipt() -> None:
    phased = ActorInPhase("sent")
    waits, now_ms = [], phased.network.now_ms
    for _ in range(8):
        effects = phased.actor.handle(TimerFired(Timer("resend", phased.round_id)), now_ms)
        (timer,) = [effect for effect in effects if isinstance(effect, SetTimer)]
        waits.append(timer.at_ms - now_ms)
        assert len(sends(effects)) == 1
    assert waits[0] >= 4_000
    assert max(waits) <= 90_000, "60 s and half of it again as jitter"
    assert waits[-1] >= 60_000


def test_the_receipt_forgets_the_ciphertext() -> None:
    phased = ActorInPhase("sent")
    ciphertext = stored_round(phased).outbound.payload
    phased.network.handle(phased.client, Received(*phased.message("receipt")))
    assert stored_round(phased).outbound is None
    assert not [value for value in phased.network.stores[phased.client].values() if ciphertext in value]


@pytest.mark.parametrize("phase", ["sent", "kept", "missed"])
def test_the_charge_is_returned_with_the_last_abort_and_not_before(phase: str) -> None:
    phased = ActorInPhase(phase)
    for compute in (0, 1, 1, 0):
        phased.network.handle(phased.client, Received(*phased.message("abort", compute)))
        assert not phased.actor.ledger.charges[0].returned
    phased.network.handle(phased.client, Received(*phased.message("abort", 2)))
    assert phased.actor.ledger.charges[0].returned
    assert phased.actor.phase(phased.round_id) == "returned"


def test_the_notice_of_lateness_ends_the_sending_and_frees_room_and_number_but_no_charge() -> None:
    phased = ActorInPhase("missed")
    assert phased.network.reported(Missed, phased.client) == [Missed(phased.round_id)]
    assert phased.network.reported(Acknowledged, phased.client) == []
    room = phased.actor._room
    assert (room.open.total, room.announcements.total, room.messages.total) == (0, 0, 0)
    assert phased.actor._pending_charges == {}
    assert stored_round(phased).outbound is None
    before = len(sent(phased.network, Contribution, sender=phased.client))
    phased.network.advance(phased.opened.body.commit_by_ms)
    assert len(sent(phased.network, Contribution, sender=phased.client)) == before
    until_the_end(phased.network)
    assert sent(phased.network, AbortWanted, sender=phased.client) == [], "nobody aborted"
    assert phased.actor.ledger.is_charged(phased.round_id)


@pytest.mark.parametrize("phase", ["kept", "missed"])
def test_a_client_that_starts_again_asks_for_aborts_once_the_round_has_ended(phase: str) -> None:
    """They may have been sent while it was off."""
    phased = ActorInPhase(phase)
    phased.network.restart(phased.client)
    phased.network.tamper = lambda one: ()
    phased.network.advance(phased.opened.body.commit_by_ms)
    assert sent(phased.network, AbortWanted, sender=phased.client) == []
    phased.network.advance(phased.opened.body.commit_by_ms + 5_000)
    queries = sent(phased.network, AbortWanted, sender=phased.client)
    assert {one.to.id for one in queries} == set(phased.actors.computes)


@pytest.mark.long
def test_one_missed_round_stops_no_client_from_taking_part_in_200_more() -> None:
    """Without the notice that it was late, its charge number would block the client 64 charges later (§4.3)."""
    actors = exact_actors(4, 2, policy=EASY)
    network, client = actors.network(), actors.clients[0]
    network.tamper = losing(Contribution, sender=client)
    begin(actors, network)
    network.advance(network.now_ms + 1000)
    network.tamper = passing
    hand_over(network, sent(network, Contribution, sender=client)[0])
    for _ in range(200):
        begin(actors, network)
    assert [len(network.reported(kind, client)) for kind in (Missed, Acknowledged, Declined)] == [1, 200, 0]


def test_closing_forgets_the_round_and_keeps_the_charge() -> None:
    phased = ActorInPhase("sent")
    phased.network.down |= set(phased.actors.computes)
    until_the_end(phased.network)
    assert phased.actor.phase(phased.round_id) == "new"
    assert {table for table, _ in phased.network.stores[phased.client]} == KEPT_TABLES
    assert len(phased.actor.ledger.charges) == 1


def test_no_row_is_read_to_decline() -> None:
    phased = ActorInPhase("declined")
    phased.actor._composer = None  # nothing to call
    phased.network.handle(phased.client, Received(*phased.message("announcement")))
    assert not phased.actor.dropped


def test_a_restart_resumes_the_timers() -> None:
    phased = ActorInPhase("sent")
    records = [(table, key, value) for (table, key), value in phased.network.stores[phased.client].items()]
    effects = phased.actors.client(0, records).handle(Started(), phased.network.now_ms)
    assert {effect.timer.purpose for effect in effects if isinstance(effect, SetTimer)} >= {"close", "resend", "epoch"}
    (again,) = [send for send in sends(effects) if not send.retain]
    assert again.payload == sent(phased.network, Contribution, sender=phased.client)[0].payload


def test_epoch_keys_are_deleted_with_their_epoch_also_by_a_client_that_does_nothing_more() -> None:
    """Forward secrecy: who opens the device a day later finds no key to the recorded contributions."""
    phased = ActorInPhase("kept")
    ring = phased.actor._session._keys
    epoch, expires_ms = ring.epoch, ring.expires_ms + phased.actors.timing.epoch_grace_ms
    key = ("epoch", epoch.to_bytes(4, "big"))
    phased.network.advance(expires_ms - 1)
    assert key in phased.network.stores[phased.client]
    phased.network.advance(expires_ms + phased.actors.timing.hello_spread_ms)
    assert key not in phased.network.stores[phased.client]
    assert ring.key(epoch) is None


def test_a_key_that_expired_while_the_device_was_off_is_deleted_at_its_start() -> None:
    phased = ActorInPhase("kept")
    records = [(table, key, value) for (table, key), value in phased.network.stores[phased.client].items()]
    over_ms = phased.actor._session._keys.expires_ms + phased.actors.timing.epoch_grace_ms
    effects = phased.actors.client(0, records).handle(Started(), over_ms)
    assert "epoch" in [effect.table for effect in effects if isinstance(effect, Forget)]
