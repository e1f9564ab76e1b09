"""The Compute node's state machine: what each phase takes, and that nothing else changes anything."""

from __future__ import annotations

import msgspec
import pytest
from scene import (
    announced,
    begin,
    body_of,
    exact_cast,
    exact_sum,
    forged,
    losing,
    refused,
    resigned,
    results,
    sends,
    sent,
    snapshot,
    the_sum,
)

from dca_proto.core import facts
from dca_proto.core.codec import encode
from dca_proto.core.compute import TABLE, ComputeActor
from dca_proto.core.effects import Channel, Forget, Persist, Report, Send
from dca_proto.core.errors import UsageError
from dca_proto.core.events import Command, Received, Started, TimerFired
from dca_proto.core.events import Timer as TimerName
from dca_proto.core.messages import Abort, EpochKey, Frozen, FrozenList, Query, Receipt, Roster, Share
from dca_proto.core.params import PROTOCOL_VERSION, Timing
from dca_proto.core.round import list_hash, session_hash
from dca_proto.core.sealing import KEY_BYTES
from dca_proto.testing import Cast, seeded

PHASES = ("new", "collecting", "frozen", "released", "aborted")
EVENTS = {
    "roster": ("roster",),
    "share": ("share", "repeated share", "late share"),
    "view": ("view",),
    "list": ("view",),
    "query": ("query",),
    "peer abort": ("abort", "late abort"),
}
"""What arrives, and the events of the table that it can be."""

GRACE_MS = Timing().epoch_grace_ms


class Scene:
    """Compute node 0 of three, brought to a phase with four clients; the other two go on as far as they can."""

    def __init__(self, phase: str, cast: Cast | None = None) -> None:
        self.cast = cast or Cast(4, 3)
        self.node, self.peer = self.cast.computes[0], self.cast.compute_identities[1]
        self.network = self.cast.network()
        tampers = {
            "new": losing(Roster, to=self.node),
            "collecting": losing(Share, sender=self.cast.clients[0]),
            "frozen": losing(Frozen, FrozenList),
            "aborted": losing(Frozen, FrozenList),
        }
        if phase in tampers:
            self.network.tamper = tampers[phase]
        begin(self.cast, self.network)
        self.round_id = announced(self.network, self.cast).body.round_id
        if phase == "aborted":
            self._fire("commit")
        assert self.actor.phase(self.round_id) == phase

    def _fire(self, purpose: str) -> list:
        return self.network.handle(self.node, TimerFired(TimerName(purpose, self.round_id)))

    @property
    def actor(self) -> ComputeActor:
        return self.network.actors[self.node]

    @property
    def session(self) -> bytes:
        return session_hash(body_of(sent(self.network, Roster)[0].payload).terms)

    def view(self, entries: bytes = b"") -> Frozen:
        known = sent(self.network, Frozen, sender=self.peer.id, to=self.node)
        if known and not entries:
            return body_of(known[0].payload)
        hashed = list_hash(self.session, entries)
        return Frozen(PROTOCOL_VERSION, self.round_id, self.session, hashed, len(entries) // 20, False)

    def message(self, event: str) -> tuple[bytes, bytes]:
        """(sender, payload) of a valid message of that kind."""
        trainer = self.cast.trainer_identity
        match event:
            case "roster":
                return trainer.id, sent(self.network, Roster, to=self.node)[0].payload
            case "share":
                client = self.cast.clients[0]
                known = sent(self.network, Share, sender=client, to=self.node)
                return client, known[0].payload if known else encode(
                    Share(self.round_id, bytes(16), bytes(24), bytes(48))
                )
            case "view":
                return self.peer.id, forged(self.cast, self.peer, self.view())
            case "list":
                self.network.handle(self.node, Received(*self.message("view")))
                known = self.actor._rounds.get(self.round_id)
                entries = known.stored.entries if known else b""
                body = FrozenList(PROTOCOL_VERSION, self.round_id, self.session, entries)
                return self.peer.id, forged(self.cast, self.peer, body)
            case "query":
                return trainer.id, forged(self.cast, trainer, Query(PROTOCOL_VERSION, self.round_id, self.session))
            case _:
                abort = Abort(PROTOCOL_VERSION, self.round_id, self.session, "too-few", "2 of 4", 2, 3)
                return self.peer.id, forged(self.cast, self.peer, abort)


def is_legal(phase: str, event: str) -> bool:
    repeated = event == "roster" and phase != "new"  # a known one is answered again
    return repeated or any((phase, name) in TABLE for name in EVENTS[event])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("event", EVENTS)
def test_a_message_outside_the_table_changes_nothing(phase: str, event: str) -> None:
    scene = Scene(phase)
    if event == "peer abort" and phase == "new":  # broadcast: most are of rounds that were none of this node's
        assert scene.actor.handle(Received(*scene.message(event)), scene.network.now_ms) == []
    elif is_legal(phase, event) and not (event == "list" and phase == "collecting"):
        message = scene.message(event)
        before = dict(scene.actor.dropped)
        scene.network.handle(scene.node, Received(*message))
        assert dict(scene.actor.dropped) == before
    elif event != "list":
        refused(scene.network, scene.node, *scene.message(event))


def test_a_share_of_a_client_that_is_not_yet_kept_has_no_place_after_the_freeze() -> None:
    scene = Scene("collecting")
    late = sent(scene.network, Share, sender=scene.cast.clients[0], to=scene.node)[0].payload
    scene._fire("freeze")
    refused(scene.network, scene.node, scene.cast.clients[0], late, "phase")


@pytest.mark.parametrize("phase", PHASES)
def test_a_timer_that_has_lost_its_purpose_changes_nothing(phase: str) -> None:
    """Above all, no timer closes a round that is still open: a closed one could be opened again."""
    scene = Scene(phase)
    stale = {
        "new": ("freeze", "commit", "resend", "close"),
        "collecting": ("resend", "close"),
        "frozen": ("freeze", "close"),
    }.get(phase, ("freeze", "commit", "resend"))
    for purpose in stale:
        before = snapshot(scene.actor)
        effects = scene.actor.handle(TimerFired(TimerName(purpose, scene.round_id)), scene.network.now_ms)
        assert sends(effects) == []
        assert not [effect for effect in effects if isinstance(effect, Persist | Forget)]
        assert snapshot(scene.actor) == before


@pytest.mark.parametrize("phase", PHASES)
def test_a_compute_node_takes_no_commands(phase: str) -> None:
    scene = Scene(phase)
    before = snapshot(scene.actor)
    with pytest.raises(UsageError, match="takes no command"):
        scene.actor.handle(Command(object()), scene.network.now_ms)
    assert snapshot(scene.actor) == before


@pytest.mark.parametrize("phase", ["collecting", "frozen", "released", "aborted"])
def test_a_restart_restores_the_phase_and_the_kept_shares(phase: str) -> None:
    scene = Scene(phase)
    before = scene.actor._rounds[scene.round_id]
    scene.network.down |= set(scene.cast.computes[1:]) | {scene.cast.trainer_identity.id}
    scene.network.restart(scene.node)
    after = scene.actor._rounds[scene.round_id]
    assert (after.stored, after.shares) == (before.stored, before.shares)
    if phase not in ("released", "aborted"):  # an ended round needs no list any more
        assert after.entries == before.entries


def test_closing_forgets_all_but_keys_and_charge_numbers_after_the_retention() -> None:
    scene = Scene("released")
    scene.network.tamper = lambda envelope: ()
    scene.network.advance(scene.network.now_ms + 8 * 24 * 3600 * 1000)
    assert scene.actor.phase(scene.round_id) == "new"
    assert {table for table, _ in scene.network.stores[scene.node]} == {"epoch", "seen", "charges"}


# What each step does.


def test_a_share_is_durable_before_its_receipt_leaves() -> None:
    scene = Scene("collecting")
    late = sent(scene.network, Share, sender=scene.cast.clients[0], to=scene.node)[0]
    effects = scene.actor.handle(Received(late.sender, late.payload), scene.network.now_ms)
    assert [effect.table for effect in effects[:2] if isinstance(effect, Persist)] == ["share", "charges"]
    assert isinstance(effects[2], Send)
    assert isinstance(body_of(effects[2].payload), Receipt)
    assert Report(facts.ShareKept(scene.round_id, 4, 4)) in effects


def test_the_final_word_is_durable_before_it_leaves_and_the_shares_go_with_it() -> None:
    scene = Scene("frozen")
    for envelope in sent(scene.network, Frozen, to=scene.node):
        effects = scene.actor.handle(Received(envelope.sender, envelope.payload), scene.network.now_ms)
    stored = next(at for at, effect in enumerate(effects) if isinstance(effect, Persist))
    released = next(
        at for at, effect in enumerate(effects) if isinstance(effect, Send) and effect.to.channel is Channel.TRAINER
    )
    assert stored < released
    assert sum(isinstance(effect, Forget) for effect in effects) == 4
    assert scene.actor._rounds[scene.round_id].shares == {}


def test_lists_that_differ_are_exchanged_and_the_common_pairs_are_summed() -> None:
    cast = exact_cast(5, 3)
    network = cast.network()
    network.tamper = losing(Share, sender=cast.clients[2], to=cast.computes[1])
    begin(cast, network, tolerated=1)
    network.advance(network.now_ms + 61_000)
    assert the_sum(network).tolist() == [exact_sum((0, 1, 3, 4))]
    assert len(sent(network, FrozenList)) >= 2


def test_equal_lists_are_not_exchanged() -> None:
    network, _ = begin(exact_cast(5, 3))
    assert sent(network, FrozenList) == []
    assert len(results(network)) == 1


@pytest.mark.parametrize("silent", [0, 2])
def test_a_silent_peer_means_an_abort_that_names_it(silent: int) -> None:
    cast = exact_cast(4, 3)
    network = cast.network()
    network.tamper = losing(Frozen, sender=cast.computes[silent])
    begin(cast, network)
    network.advance(network.now_ms + 200_000)
    details = [fact.detail for fact in network.reported(facts.NodeAborted)]
    assert any(f"no list from compute-{silent} at commit_by" in detail for detail in details)
    assert results(network) == []


def test_a_new_epoch_publishes_a_new_key_and_deletes_the_old_one() -> None:
    cast = Cast(4, 2)
    network = cast.network()
    first = body_of(network.sent[0].payload)
    network.advance(first.expires_ms + GRACE_MS)
    keys = {
        body.epoch: body.public for body in (body_of(one.payload) for one in sent(network, EpochKey, cast.computes[0]))
    }
    assert sorted(keys) == [first.epoch, first.epoch + 1]
    assert len(set(keys.values())) == 2
    stored = [key for table, key in network.stores[cast.computes[0]] if table == "epoch"]
    assert stored == [(first.epoch + 1).to_bytes(4, "big")]


def test_the_epoch_key_of_an_open_round_is_kept_until_it_is_over() -> None:
    scene = Scene("collecting")
    scene.network.tamper = lambda envelope: ()
    actor, epoch = scene.actor, scene.actor._keys.epoch
    actor.handle(TimerFired(TimerName("epoch")), actor._keys.expires_ms + GRACE_MS)
    assert sorted(actor._keys._keys) == [epoch, epoch + 1]
    scene._fire("commit")
    actor.handle(TimerFired(TimerName("epoch")), actor._keys.expires_ms + GRACE_MS)
    assert sorted(actor._keys._keys) == [epoch + 2]


def test_a_reply_key_of_low_order_is_refused_before_the_roster_is_stored() -> None:
    """Found at the release it would have left a frozen list in memory that no store knows of."""
    scene = Scene("new")
    trainer, roster = scene.cast.trainer_identity, body_of(scene.message("roster")[1])
    bad = resigned(scene.cast, trainer, encode(roster.announcement), reply_key=bytes(KEY_BYTES))
    forged_roster = msgspec.structs.replace(
        roster, announcement=msgspec.msgpack.decode(bad, type=type(roster.announcement))
    )
    refused(scene.network, scene.node, trainer.id, forged(scene.cast, trainer, forged_roster), "key")


def test_no_more_rounds_than_the_limit_are_open_at_the_same_time() -> None:
    scene = Scene("new")
    scene.actor._limits = msgspec.structs.replace(scene.actor._limits, rounds_open_max=0)
    refused(scene.network, scene.node, *scene.message("roster"), "rounds")


def test_randomness_is_an_argument() -> None:
    """Two nodes of one stream write the same bytes."""
    cast = Cast(4, 2)
    nodes = [ComputeActor(cast.compute_identities[0], cast.federation, random=seeded("same")) for _ in range(2)]
    first, second = (node.handle(Started(), 10**12) for node in nodes)
    assert first == second
