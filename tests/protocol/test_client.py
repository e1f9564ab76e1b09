"""The client's state machine: what each phase takes, and that nothing else changes anything."""

from __future__ import annotations

import functools

import msgspec
import pytest
from lab import abort_of
from scene import (
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
from dca_proto.protocol.client.round import ROUNDS, TABLE, StoredRound
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
KEPT_TABLES = {LEDGER, "seen", "epoch", "hello"}


class Scene:
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
        begin(self.actors, self.network, tolerated=1 if phase == "missed" else 0)
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
        scene = Scene("kept")
        for node in range(3):
            scene.network.handle(scene.client, Received(*abort_of(scene.actors, scene.network, node)))
        self.actors, self.opened, self.round_id = scene.actors, scene.opened, scene.round_id
        return scene.network

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
    scene = Scene(phase)
    sender, payload = scene.message(event)
    if is_legal(phase, event):
        before = dict(scene.actor.dropped)
        scene.network.handle(scene.client, Received(sender, payload))
        assert dict(scene.actor.dropped) == before
    elif event == "abort":  # broadcast: most are of rounds that were none of this client's
        ignored(scene.network, scene.client, sender, payload)
    else:
        refused(scene.network, scene.client, sender, payload)


@pytest.mark.parametrize("phase", PHASES)
def test_a_timer_that_has_lost_its_purpose_changes_nothing(phase: str) -> None:
    scene = Scene(phase)
    before = snapshot(scene.actor)
    if phase != "sent":  # which resends
        assert scene.actor.handle(TimerFired(Timer("resend", scene.round_id)), scene.network.now_ms) == []
    for purpose in ("resend", "close", "ask"):
        assert scene.actor.handle(TimerFired(Timer(purpose, bytes(16))), scene.network.now_ms) == []
    assert snapshot(scene.actor) == before


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_takes_no_commands(phase: str) -> None:
    scene = Scene(phase)
    before = snapshot(scene.actor)
    with pytest.raises(UsageError, match="takes no command"):
        scene.actor.handle(Command(object()), scene.network.now_ms)
    assert snapshot(scene.actor) == before


@pytest.mark.parametrize("phase", PHASES[1:])
def test_a_restart_restores_the_phase_and_all_that_was_promised(phase: str) -> None:
    scene = Scene(phase)
    before = scene.actor._rounds[scene.round_id]
    scene.network.tamper = lambda one: ()
    scene.network.restart(scene.client)
    after = scene.actor._rounds[scene.round_id]
    assert (after.stored, after.opened.hash) == (before.stored, before.opened.hash)


def test_every_entry_of_the_table_is_taken() -> None:
    """By the messages above, and by timers."""
    taken = {(phase, name) for phase in PHASES for event in EVENTS for name in EVENTS[event] if (phase, name) in TABLE}
    timers = {(phase, "close") for phase in PHASES if phase != "new"}
    timers |= {("sent", "resend"), *((phase, "ask") for phase in ("sent", "kept", "missed"))}
    assert taken | timers == set(TABLE)


# What each step does.


def stored_round(scene: Scene) -> StoredRound:
    """The round as the client's store has it."""
    return msgspec.msgpack.decode(scene.network.stores[scene.client][ROUNDS, scene.round_id], type=StoredRound)


def test_the_charge_and_the_message_are_stored_before_the_first_send() -> None:
    scene = Scene("new")
    effects = scene.actor.handle(Received(*scene.message("announcement")), scene.network.now_ms)
    kinds = [effect.table if isinstance(effect, Persist) else type(effect).__name__ for effect in effects]
    assert kinds.count("Send") == 1, "one message, to its holder"
    before = kinds[: kinds.index("Send")]
    assert {LEDGER, "announcement", ROUNDS} <= set(before)


def test_a_decline_is_stored_and_resent_byte_for_byte_and_costs_nothing() -> None:
    scene = Scene("declined")
    (answer, *_) = sent(scene.network, Sealed, sender=scene.client)
    again = scene.actor.handle(Received(*scene.message("announcement")), scene.network.now_ms)
    assert [send.payload for send in sends(again)] == [answer.payload]
    assert scene.actor.ledger.charges == ()
    assert (ROUNDS, scene.round_id) in scene.network.stores[scene.client]


def test_a_contribution_is_resent_with_back_off_until_the_receipt() -> None:
    scene = Scene("sent")
    waits, now_ms = [], scene.network.now_ms
    for _ in range(8):
        effects = scene.actor.handle(TimerFired(Timer("resend", scene.round_id)), now_ms)
        (timer,) = [effect for effect in effects if isinstance(effect, SetTimer)]
        waits.append(timer.at_ms - now_ms)
        assert len(sends(effects)) == 1
    assert waits[0] >= 4_000
    assert max(waits) <= 90_000, "60 s and half of it again as jitter"
    assert waits[-1] >= 60_000


def test_the_receipt_forgets_the_ciphertext() -> None:
    scene = Scene("sent")
    ciphertext = stored_round(scene).outbound.payload
    scene.network.handle(scene.client, Received(*scene.message("receipt")))
    assert stored_round(scene).outbound is None
    assert not [value for value in scene.network.stores[scene.client].values() if ciphertext in value]


@pytest.mark.parametrize("phase", ["sent", "kept", "missed"])
def test_the_charge_comes_back_with_the_last_abort_and_not_before(phase: str) -> None:
    scene = Scene(phase)
    for compute in (0, 1, 1, 0):
        scene.network.handle(scene.client, Received(*scene.message("abort", compute)))
        assert not scene.actor.ledger.charges[0].returned
    scene.network.handle(scene.client, Received(*scene.message("abort", 2)))
    assert scene.actor.ledger.charges[0].returned
    assert scene.actor.phase(scene.round_id) == "returned"


def test_word_that_it_was_late_ends_the_sending_and_frees_room_and_number_but_no_charge() -> None:
    scene = Scene("missed")
    assert scene.network.reported(Missed, scene.client) == [Missed(scene.round_id)]
    assert scene.network.reported(Acknowledged, scene.client) == []
    assert (scene.actor._waiting, scene.actor._waiting_bytes, scene.actor._unsent) == (set(), 0, {})
    assert stored_round(scene).outbound is None
    before = len(sent(scene.network, Contribution, sender=scene.client))
    scene.network.advance(scene.opened.body.commit_by_ms)
    assert len(sent(scene.network, Contribution, sender=scene.client)) == before
    until_the_end(scene.network)
    assert sent(scene.network, AbortWanted, sender=scene.client) == [], "nobody aborted"
    assert scene.actor.ledger.is_charged(scene.round_id)


@pytest.mark.parametrize("phase", ["kept", "missed"])
def test_a_client_that_starts_again_asks_for_aborts_once_the_round_has_ended(phase: str) -> None:
    """They may have been sent while it was off."""
    scene = Scene(phase)
    scene.network.restart(scene.client)
    scene.network.tamper = lambda one: ()
    scene.network.advance(scene.opened.body.commit_by_ms)
    assert sent(scene.network, AbortWanted, sender=scene.client) == []
    scene.network.advance(scene.opened.body.commit_by_ms + 5_000)
    asked = sent(scene.network, AbortWanted, sender=scene.client)
    assert {one.to.id for one in asked} == set(scene.actors.computes)


def test_one_missed_round_stops_no_client_from_taking_part_in_200_more() -> None:
    """Without word that it was late, its charge number would block the client 64 charges later (§4.3)."""
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
    scene = Scene("sent")
    scene.network.down |= set(scene.actors.computes)
    until_the_end(scene.network)
    assert scene.actor.phase(scene.round_id) == "new"
    assert {table for table, _ in scene.network.stores[scene.client]} == KEPT_TABLES
    assert len(scene.actor.ledger.charges) == 1


def test_no_row_is_read_to_decline() -> None:
    scene = Scene("declined")
    scene.actor._composer = None  # nothing to call
    scene.network.handle(scene.client, Received(*scene.message("announcement")))
    assert not scene.actor.dropped


def test_a_restart_resumes_the_timers() -> None:
    scene = Scene("sent")
    records = [(table, key, value) for (table, key), value in scene.network.stores[scene.client].items()]
    effects = scene.actors.client(0, records).handle(Started(), scene.network.now_ms)
    assert {effect.timer.purpose for effect in effects if isinstance(effect, SetTimer)} >= {"close", "resend", "epoch"}
    (again,) = [send for send in sends(effects) if not send.retain]
    assert again.payload == sent(scene.network, Contribution, sender=scene.client)[0].payload


def test_epoch_keys_are_deleted_with_their_epoch_also_by_a_client_that_does_nothing_more() -> None:
    """Forward secrecy: who opens the device a day later finds no key to the recorded contributions."""
    scene = Scene("kept")
    ring = scene.actor._session._keys
    epoch, expires_ms = ring.epoch, ring.expires_ms + scene.actors.timing.epoch_grace_ms
    key = ("epoch", epoch.to_bytes(4, "big"))
    scene.network.advance(expires_ms - 1)
    assert key in scene.network.stores[scene.client]
    scene.network.advance(expires_ms + scene.actors.timing.hello_spread_ms)
    assert key not in scene.network.stores[scene.client]
    assert ring.key(epoch) is None


def test_a_key_that_expired_while_the_device_was_off_is_deleted_at_its_start() -> None:
    scene = Scene("kept")
    records = [(table, key, value) for (table, key), value in scene.network.stores[scene.client].items()]
    over_ms = scene.actor._session._keys.expires_ms + scene.actors.timing.epoch_grace_ms
    effects = scene.actors.client(0, records).handle(Started(), over_ms)
    assert "epoch" in [effect.table for effect in effects if isinstance(effect, Forget)]
