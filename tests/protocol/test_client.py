"""The client's state machine: what each phase takes, and that nothing else changes anything."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest
from scene import announced, begin, forged, ignored, losing, refused, sends, sent, snapshot, until_the_end

from dca_proto.core import facts
from dca_proto.core.client import ClientActor
from dca_proto.core.client_round import SESSIONS, TABLE
from dca_proto.core.codec import encode
from dca_proto.core.effects import Channel, Forget, Persist, SetTimer
from dca_proto.core.errors import UsageError
from dca_proto.core.events import Command, Received, Started, Timer, TimerFired
from dca_proto.core.ledger import TABLE as LEDGER
from dca_proto.core.messages import Abort, Announcement, Behind, Frozen, Receipt, Share, Start, Terms
from dca_proto.core.params import PROTOCOL_VERSION, Timing
from dca_proto.core.policy import Policy
from dca_proto.core.round import session_hash
from dca_proto.testing import Cast, Network

PHASES = ("new", "joined", "declined", "sharing", "shared", "returned")
EVENTS = {
    "announcement": ("announcement", "refusal", "repeated announcement"),
    "start": ("start", "repeated start"),
    "behind": ("behind",),
    "receipt": ("receipt", "last receipt", "repeated receipt"),
    "abort": ("abort", "last abort", "repeated abort"),
}
"""What arrives, and the events of the table that it can be."""

GRACE_MS = Timing().epoch_grace_ms


class Scene:
    """Client 0 of four, brought to a phase; the rest of the round goes on as far as it can."""

    def __init__(self, phase: str) -> None:
        self.cast = Cast(4, 3)
        self.client = self.cast.clients[0]
        self.network = Network()
        self._add_actors(Policy(computes_min=9) if phase == "declined" else self.cast.policy)
        lost = {"joined": (Start,), "sharing": (Receipt,), "shared": (Frozen,)}
        self.network.tamper = losing(*lost.get(phase, ()))
        if phase == "new":
            self.network.down.add(self.client)
        if phase == "returned":  # one share is lost and none may be: all nodes abort
            self.network.tamper = losing(Share, sender=self.cast.clients[1])
        begin(self.cast, self.network, tolerated=0, clients_expected=3 if phase == "new" else 4)
        if phase == "returned":
            self.network.advance(self.network.now_ms + 61_000)
        self.network.down.discard(self.client)
        self.round_id = announced(self.network, self.cast).body.round_id
        assert self.actor.phase(self.round_id) == phase

    def _add_actors(self, policy: Policy) -> None:
        for index in range(3):
            self.network.add(Channel.COMPUTE, functools.partial(self.cast.compute, index))
        for index in range(4):
            self.network.add(Channel.CLIENT, functools.partial(self._client, index, policy))
        self.network.add(Channel.TRAINER, self.cast.trainer)

    def _client(self, index: int, policy: Policy, records: Any) -> ClientActor:
        self.cast.policy, usual = (policy if index == 0 else self.cast.policy), self.cast.policy
        client = self.cast.client(index, records)
        self.cast.policy = usual
        return client

    @property
    def actor(self) -> ClientActor:
        return self.network.actors[self.client]

    @property
    def terms(self) -> Terms:
        """Those of the start that was sent, or such as could have been."""
        opened = announced(self.network, self.cast)
        starts = sent(self.network, Start, to=self.client)
        if starts:
            return msgspec.msgpack.decode(msgspec.msgpack.decode(starts[0].payload)[1], type=Start).terms
        soon = self.network.now_ms + 1000
        return Terms(opened.hash, 4, 0, 0, bytes(32), soon, soon + 1000)

    def message(self, event: str, compute: int = 0) -> tuple[bytes, bytes]:
        """(sender, payload) of a valid message of that kind."""
        trainer, node = self.cast.trainer_identity, self.cast.compute_identities[compute]
        session = session_hash(self.terms)
        match event:
            case "announcement":
                return trainer.id, sent(self.network, Announcement)[0].payload
            case "start":
                body = Start(PROTOCOL_VERSION, self.round_id, self.terms, self.client, 0)
                return trainer.id, forged(self.cast, trainer, body)
            case "behind":
                behind = Behind(PROTOCOL_VERSION, self.round_id, session, self.client, 1, 1)
                return node.id, forged(self.cast, node, behind)
            case "receipt":
                known = sent(self.network, Receipt, sender=node.id, to=self.client)
                return node.id, known[0].payload if known else encode(Receipt(self.round_id, bytes(16), bytes(16)))
            case _:
                abort = Abort(PROTOCOL_VERSION, self.round_id, session, "too-few", "3 of 4", 3, 4)
                return node.id, forged(self.cast, node, abort)


@functools.cache
def is_legal(phase: str, event: str) -> bool:
    return any((phase, name) in TABLE for name in EVENTS[event])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("event", EVENTS)
def test_a_message_outside_the_table_changes_nothing(phase: str, event: str) -> None:
    scene = Scene(phase)
    sender, payload = scene.message(event)
    if is_legal(phase, event):
        assert not scene.network.actors[scene.client].dropped
        scene.network.handle(scene.client, Received(sender, payload))
        assert not scene.actor.dropped
    elif event == "abort":  # broadcast: most are of rounds that were none of this client's
        ignored(scene.network, scene.client, sender, payload)
    else:
        refused(scene.network, scene.client, sender, payload)


@pytest.mark.parametrize("phase", PHASES)
def test_a_timer_that_has_lost_its_purpose_changes_nothing(phase: str) -> None:
    scene = Scene(phase)
    before = snapshot(scene.actor)
    if phase not in ("joined", "sharing"):  # those two resend
        assert scene.actor.handle(TimerFired(Timer("resend", scene.round_id)), scene.network.now_ms) == []
    for purpose in ("resend", "close"):
        assert scene.actor.handle(TimerFired(Timer(purpose, bytes(16))), scene.network.now_ms) == []
    assert snapshot(scene.actor) == before


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_takes_no_commands(phase: str) -> None:
    scene = Scene(phase)
    before = snapshot(scene.actor)
    with pytest.raises(UsageError, match="takes no command"):
        scene.actor.handle(Command(object()), scene.network.now_ms)
    assert snapshot(scene.actor) == before


@pytest.mark.parametrize("phase", PHASES)
def test_a_restart_restores_the_phase_and_all_that_was_promised(phase: str) -> None:
    scene = Scene(phase)
    for current in scene.actor._rounds.values():  # what is asked for again, or worked out again
        current.received, current.attempt = set(), 1
    before = snapshot(scene.actor)
    scene.network.down |= set(scene.cast.computes) | {scene.cast.trainer_identity.id}
    scene.network.restart(scene.client)
    for current in scene.actor._rounds.values():
        current.attempt = 1
    assert snapshot(scene.actor) == before


def test_every_entry_of_the_table_is_taken() -> None:
    """The paths of the scenes above, the refusal at the start and the aborts cover the table; none is decoration.

    A local round's first step is taken in `test_local_round.py`.
    """
    taken = {(phase, name) for phase in PHASES for event in EVENTS for name in EVENTS[event] if (phase, name) in TABLE}
    closes = {(phase, "close") for phase in PHASES if phase != "new"}
    assert taken | closes | {("joined", "refusal"), ("new", "release")} == set(TABLE)


# What each step does.


def test_joining_sends_one_sealed_answer_and_stores_it() -> None:
    scene = Scene("joined")
    session = msgspec.msgpack.decode(scene.network.stores[scene.client][SESSIONS, scene.round_id])
    (answer, *_) = [one for one in scene.network.sent if one.sender == scene.client]
    assert session["answer"] == answer.payload
    again = scene.actor.handle(Received(*scene.message("announcement")), scene.network.now_ms)
    assert [send.payload for send in sends(again)] == [answer.payload]


def test_a_join_is_resent_with_back_off_until_the_start() -> None:
    scene = Scene("joined")
    waits, now_ms = [], scene.network.now_ms
    for _ in range(8):
        effects = scene.actor.handle(TimerFired(Timer("resend", scene.round_id)), now_ms)
        (timer,) = [effect for effect in effects if isinstance(effect, SetTimer)]
        waits.append(timer.at_ms - now_ms)
        assert len(sends(effects)) == 1
    assert waits[0] >= 4_000
    assert max(waits) <= 90_000, "60 s and half of it again as jitter"
    assert waits[-1] >= 60_000


def test_the_charge_and_the_ciphertexts_are_stored_before_the_first_send() -> None:
    scene = Scene("joined")
    effects = scene.actor.handle(Received(*scene.message("start")), scene.network.now_ms)
    kinds = [effect.table if isinstance(effect, Persist) else type(effect).__name__ for effect in effects]
    assert kinds == ["ledger", "contribution", "session", "Send", "Send", "Send", "SetTimer", "Report"]


def test_a_start_that_does_not_fit_the_policy_is_declined_and_not_charged() -> None:
    scene = Scene("joined")
    scene.actor._policy = Policy(clients_min=5, epsilon_per_round_max=20, epsilon_per_period_max=40)
    effects = scene.actor.handle(Received(*scene.message("start")), scene.network.now_ms)
    (declined,) = [effect.fact for effect in effects if isinstance(getattr(effect, "fact", None), facts.Declined)]
    assert (declined.reason, declined.found, declined.expected) == ("clients", "N = 4", "N >= 5")
    assert scene.actor.ledger.charges == ()
    assert scene.actor.phase(scene.round_id) == "declined"


def test_only_the_shares_without_a_receipt_are_resent() -> None:
    scene = Scene("sharing")
    scene.network.handle(scene.client, Received(*scene.message("receipt", compute=1)))
    again = scene.actor.handle(TimerFired(Timer("resend", scene.round_id)), scene.network.now_ms)
    assert {send.to.id for send in sends(again)} == {scene.cast.computes[0], scene.cast.computes[2]}


def test_the_last_receipt_forgets_the_ciphertexts() -> None:
    scene = Scene("sharing")
    for compute in (0, 1):
        scene.network.handle(scene.client, Received(*scene.message("receipt", compute)))
    effects = scene.network.handle(scene.client, Received(*scene.message("receipt", 2)))
    assert Forget("contribution", scene.round_id) in effects
    assert ("contribution", scene.round_id) not in scene.network.stores[scene.client]


@pytest.mark.parametrize("phase", ["sharing", "shared"])
def test_the_charge_comes_back_with_the_last_abort_and_not_before(phase: str) -> None:
    scene = Scene(phase)
    for compute in (0, 1, 1, 0):
        scene.network.handle(scene.client, Received(*scene.message("abort", compute)))
        assert not scene.actor.ledger.charges[0].returned
    scene.network.handle(scene.client, Received(*scene.message("abort", 2)))
    assert scene.actor.ledger.charges[0].returned
    assert scene.actor.phase(scene.round_id) == "returned"


def test_closing_forgets_the_round_and_keeps_the_charge() -> None:
    scene = Scene("sharing")
    scene.network.down |= set(scene.cast.computes)
    until_the_end(scene.network)
    assert scene.actor.phase(scene.round_id) == "new"
    assert {table for table, _ in scene.network.stores[scene.client]} == {LEDGER, "seen"}
    assert len(scene.actor.ledger.charges) == 1


def test_no_row_is_read_before_the_start() -> None:
    """Joining and declining cannot depend on the rows: they are not looked at."""
    for phase in ("joined", "declined"):
        scene = Scene(phase)
        scene.actor._rows = None  # nothing to call
        scene.network.handle(scene.client, Received(*scene.message("announcement")))


def test_a_restart_resumes_the_timers() -> None:
    scene = Scene("sharing")
    records = [(table, key, value) for (table, key), value in scene.network.stores[scene.client].items()]
    effects = scene.cast.client(0, records).handle(Started(), scene.network.now_ms)
    assert {effect.timer.purpose for effect in effects if isinstance(effect, SetTimer)} >= {"close", "resend"}
    assert len(sends(effects)) == 3, "the stored ciphertexts, byte for byte"
    assert {send.payload for send in sends(effects)} <= {one.payload for one in sent(scene.network, Share)}


def test_epoch_keys_are_deleted_with_their_epoch_also_by_a_client_that_joins_nothing_more() -> None:
    """Forward secrecy: who opens the device a day later finds no key to the recorded shares."""
    scene = Scene("shared")
    expires_ms = scene.actor._keys.expires_ms + GRACE_MS
    scene.network.advance(expires_ms - 1)
    assert [table for table, _ in scene.network.stores[scene.client] if table == "epoch"] == ["epoch"]
    scene.network.advance(expires_ms)
    assert [table for table, _ in scene.network.stores[scene.client] if table == "epoch"] == []
    assert scene.actor._keys._keys == {}


def test_an_epoch_key_that_a_start_still_needs_is_kept_until_the_round_is_closed() -> None:
    scene = Scene("joined")
    close_ms = announced(scene.network, scene.cast).body.close_by_ms + scene.actor._timing.abort_grace_ms
    expires_ms = scene.actor._keys.expires_ms + GRACE_MS
    effects = scene.actor.handle(TimerFired(Timer("epoch")), expires_ms)
    assert not any(isinstance(effect, Forget) for effect in effects)
    effects = scene.actor.handle(TimerFired(Timer("close", scene.round_id)), max(close_ms, expires_ms))
    assert [effect.table for effect in effects if isinstance(effect, Forget)] == ["session", "epoch"]


def test_a_key_that_expired_while_the_device_was_off_is_deleted_at_its_start() -> None:
    scene = Scene("shared")
    records = [(table, key, value) for (table, key), value in scene.network.stores[scene.client].items()]
    effects = scene.cast.client(0, records).handle(Started(), scene.actor._keys.expires_ms + GRACE_MS)
    assert "epoch" in [effect.table for effect in effects if isinstance(effect, Forget)]
