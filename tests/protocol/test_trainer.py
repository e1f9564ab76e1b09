"""The trainer's state machine: what each phase takes, and that nothing else changes anything."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest
from scene import (
    announced,
    begin,
    body_of,
    exact_cast,
    exact_sum,
    failures,
    forged,
    losing,
    refused,
    results,
    sealed_by,
    sealed_kind,
    sends,
    sent,
    snapshot,
    the_sum,
    until_the_end,
)

from dca_proto.core.effects import Channel, SetTimer
from dca_proto.core.errors import UsageError
from dca_proto.core.events import Command, Received, Started, Timer, TimerFired
from dca_proto.core.facts import RoundCompleted, RoundFailed
from dca_proto.core.messages import (
    Abort,
    Announcement,
    Decline,
    EpochKey,
    Join,
    PartialSum,
    Query,
    Ready,
    Roster,
    Share,
    Start,
    Terms,
)
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.round import session_hash
from dca_proto.core.trainer import TrainerActor
from dca_proto.core.trainer_round import TABLE
from dca_proto.testing import Cast, Network

PHASES = ("new", "joining", "starting", "running", "done", "failed")
EVENTS = {
    "join": ("join",),
    "decline": ("decline",),
    "ready": ("ready", "all ready"),
    "partial": ("partial", "last partial", "repeated partial"),
    "abort": ("abort", "late abort"),
}
"""What arrives, and the events of the table that it can be."""


class Scene:
    """The trainer of a round with four clients and three Compute nodes, brought to a phase."""

    def __init__(self, phase: str) -> None:
        self.cast = Cast(4, 3)
        self.id = self.cast.trainer_identity.id
        self.network = self.cast.network()
        lost = {"joining": (Announcement,), "starting": (Ready,), "running": (Share,)}.get(phase, ())
        self.network.tamper = losing(*lost)
        if phase == "failed":
            self.network.tamper = losing(Announcement)
        begin(self.cast, self.network)
        self.opened = announced(self.network, self.cast)
        self.round_id = bytes(16) if phase == "new" else self.opened.body.round_id
        if phase == "failed":
            self.network.advance(self.network.now_ms + 60_001)
        assert self.actor.phase(self.round_id) == phase

    @property
    def actor(self) -> TrainerActor:
        return self.network.actors[self.id]

    @property
    def terms(self) -> Terms:
        rosters = sent(self.network, Roster)
        if rosters:
            return body_of(rosters[0].payload).terms
        soon = self.network.now_ms + 1000
        return Terms(self.opened.hash, 4, 1, 0, bytes(32), soon, soon + 1000)

    def message(self, event: str, index: int = 0) -> tuple[bytes, bytes]:
        """(sender, payload) of a valid message of that kind."""
        client, node = self.cast.client_identities[index], self.cast.compute_identities[index % 3]
        head = (PROTOCOL_VERSION, self.round_id)
        session = session_hash(self.terms)
        opened = msgspec.structs.replace(
            self.opened, body=msgspec.structs.replace(self.opened.body, round_id=self.round_id)
        )
        match event:
            case "join":
                body = Join(*head, self.opened.hash, self.cast.certificate(index), 0, bytes(32))
                return client.id, sealed_by(self.cast, client, body, opened)
            case "decline":
                why = ("clients", "N = 4", "N >= 5")
                body = Decline(*head, self.opened.hash, self.cast.certificate(index), *why)
                return client.id, sealed_by(self.cast, client, body, opened)
            case "ready":
                return node.id, forged(self.cast, node, Ready(*head, session))
            case "partial":
                body = PartialSum(*head, session, bytes(32), b"\xf0", (bytes(32),) * 3, bytes(8))
                return node.id, sealed_by(self.cast, node, body, opened)
            case _:
                return node.id, forged(self.cast, node, Abort(*head, session, "too-few", "2 of 4", 2, 3))


def is_legal(phase: str, event: str) -> bool:
    if event in ("abort", "ready") and phase == "failed":
        return False  # before the roster there is no session that they could be of
    if event == "abort":
        return phase in ("starting", "running", "done")
    return any((phase, name) in TABLE for name in EVENTS[event])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("event", EVENTS)
def test_a_message_outside_the_table_changes_nothing(phase: str, event: str) -> None:
    scene = Scene(phase)
    message = scene.message(event)
    if event == "abort" and phase == "new":  # broadcast: most are of another trainer's rounds
        assert scene.actor.handle(Received(*message), scene.network.now_ms) == []
    elif is_legal(phase, event):
        scene.network.handle(scene.id, Received(*message))
        assert not scene.actor.dropped
    else:
        refused(scene.network, scene.id, *message)


@pytest.mark.parametrize("phase", PHASES)
def test_a_timer_that_has_lost_its_purpose_changes_nothing(phase: str) -> None:
    scene = Scene(phase)
    stale = {"joining": ("keys",), "starting": ("keys", "join"), "running": ("keys", "join")}
    for purpose in stale.get(phase, ("keys", "join", "resend", "end")):
        before = snapshot(scene.actor)
        assert scene.actor.handle(TimerFired(Timer(purpose, scene.round_id)), scene.network.now_ms) == []
        assert snapshot(scene.actor) == before
    if phase in ("joining", "starting", "running"):
        before = snapshot(scene.actor)
        scene.actor.handle(TimerFired(Timer("close", scene.round_id)), scene.network.now_ms)
        assert snapshot(scene.actor) == before, "an open round is not closed"


@pytest.mark.parametrize("phase", ["joining", "starting", "running", "done", "failed"])
def test_a_restart_restores_the_phase(phase: str) -> None:
    scene = Scene(phase)
    before = scene.actor._rounds[scene.round_id]
    scene.network.tamper = lambda envelope: ()
    scene.network.restart(scene.id)
    after = scene.actor._rounds[scene.round_id]
    assert after.stored == before.stored
    assert (after.clients, after.terms, after.partials) == (before.clients, before.terms, before.partials)


# Commands


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"computes": (b"\0" * 16, b"\1" * 16)}, "not in the federation file"),
        ({"statistic": "median"}, "unknown here"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"colluders": 2}, "exceed T"),
        ({"tolerated": -1, "colluders": -1}, "cannot be announced"),
        ({"encoding": "plain"}, "share encoding"),
        ({"fraction_bits": 41}, "fraction_bits"),
        ({"rows_max": -1}, "rows_max"),
        ({"round_id": b"short"}, "cannot be announced"),
        ({"join_window_ms": 0}, "no time"),
        ({"commit_window_ms": 0}, "no time"),
        ({"parameters": {"columns": ["x"], "centre": [0.0], "scale": [1.0]}}, "bound"),
        ({"parameters": {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0], "more": []}}, "more"),
    ],
)
def test_a_request_that_cannot_be_is_the_callers_error(changes: dict[str, Any], says: str) -> None:
    scene = Scene("done")
    before = snapshot(scene.actor)
    with pytest.raises(UsageError, match=says):
        scene.actor.handle(Command(scene.cast.request(**changes)), scene.network.now_ms)
    assert snapshot(scene.actor) == before


def test_an_announcement_too_large_to_be_read_is_the_callers_error() -> None:
    """Otherwise every actor would drop it, the trainer's own included, and the caller would wait for ever."""
    scene = Scene("done")
    scene.actor._limits = msgspec.structs.replace(scene.actor._limits, announcement_bytes_max=1000)
    edges = {"columns": ["x"], "edges": [float(edge) for edge in range(100)]}
    with pytest.raises(UsageError, match=r"would have \d+ bytes, expected at most 1000"):
        scene.actor.handle(Command(scene.cast.request(statistic="histogram", parameters=edges)), 0)


def test_whole_numbers_for_epsilon_are_taken_as_such() -> None:
    network, _ = begin(Cast(4, 3), epsilon=1)
    assert [result.epsilon for result in results(network)] == [1.0]


def test_a_known_round_and_an_unknown_command_are_the_callers_errors() -> None:
    scene = Scene("done")
    before = snapshot(scene.actor)
    with pytest.raises(UsageError, match="known already"):
        scene.actor.handle(Command(scene.cast.request(round_id=scene.round_id)), scene.network.now_ms)
    with pytest.raises(UsageError, match="takes OpenRound, found int"):
        scene.actor.handle(Command(3), scene.network.now_ms)
    assert snapshot(scene.actor) == before


def test_the_id_of_a_round_that_is_over_and_forgotten_is_not_used_again() -> None:
    """Its charge is there for good, and a round is charged once."""
    scene = Scene("done")
    until_the_end(scene.network, 24 * 8)
    assert scene.actor.phase(scene.round_id) == "new"
    with pytest.raises(UsageError, match="known already"):
        scene.actor.check_request(scene.cast.request(round_id=scene.round_id), scene.network.now_ms)


def test_the_id_of_a_round_that_cannot_be_read_now_is_not_used_again() -> None:
    scene = Scene("joining")
    records = [(table, key, value) for (table, key), value in scene.network.stores[scene.id].items()]
    other = msgspec.structs.replace(scene.cast.federation, name="other")
    actor = TrainerActor(scene.cast.trainer_identity, other, random=bytes, records=records)
    assert actor.phase(scene.round_id) == "new"
    with pytest.raises(UsageError, match="known already"):
        actor.check_request(scene.cast.request(round_id=scene.round_id), scene.network.now_ms)


# Epoch keys


def test_a_round_waits_for_the_compute_nodes_keys_and_says_which_is_missing() -> None:
    cast = Cast(4, 3)
    network = Network()
    network.tamper = losing(EpochKey, sender=cast.computes[1])
    for index in (0, 2):
        network.add(Channel.COMPUTE, functools.partial(cast.compute, index))
    network.add(Channel.TRAINER, cast.trainer)
    begin(cast, network)
    assert sent(network, Announcement) == []
    until_the_end(network, 0.1)
    (failure,) = failures(network)
    assert failure.reason == "no epoch key of Compute node compute-1 that lasts until the roster; is it up?"


def test_an_epoch_key_never_goes_back() -> None:
    scene = Scene("done")
    node = scene.cast.compute_identities[0]
    known = scene.actor._waiting._keys[node.id][0]
    older = msgspec.structs.replace(known, epoch=known.epoch - 1)
    refused(scene.network, scene.id, node.id, forged(scene.cast, node, older), "epoch")


def test_an_epoch_key_is_taken_from_its_node_alone() -> None:
    scene = Scene("done")
    node, other = scene.cast.compute_identities[:2]
    key = scene.actor._waiting._keys[node.id][0]
    newer = msgspec.structs.replace(key, epoch=key.epoch + 1)
    refused(scene.network, scene.id, node.id, forged(scene.cast, other, newer), "signature")
    refused(scene.network, scene.id, other.id, forged(scene.cast, node, newer), "sender")
    stranger = scene.cast.client_identities[0]
    refused(scene.network, scene.id, stranger.id, forged(scene.cast, stranger, newer), "signature")


# Joins


def test_the_roster_is_fixed_when_all_expected_have_answered() -> None:
    scene = Scene("joining")
    for index in range(3):
        scene.network.handle(scene.id, Received(*scene.message("join", index)))
    assert scene.actor.phase(scene.round_id) == "joining"
    scene.network.handle(scene.id, Received(*scene.message("decline", 3)))
    assert scene.actor.phase(scene.round_id) == "starting"
    assert len(scene.actor._rounds[scene.round_id].clients) == 3


def test_a_client_that_joins_and_declines_counts_once() -> None:
    """Counted twice, it would fix the roster before a slower client has answered."""
    scene = Scene("joining")
    for message in ("join", "decline"):
        for index in range(2):
            scene.network.handle(scene.id, Received(*scene.message(message, index)))
    assert scene.actor.phase(scene.round_id) == "joining"


def test_a_join_after_the_roster_is_dropped_and_a_repeated_one_gets_its_start_again() -> None:
    scene = Scene("running")
    member = scene.cast.clients[1]
    (again,) = sends(scene.actor.handle(Received(*scene.message("join", 1)), scene.network.now_ms))
    assert again.to.id == member
    assert again.payload == sent(scene.network, Start, to=member)[0].payload
    scene.actor._rounds[scene.round_id].joins.pop(member)
    refused(scene.network, scene.id, *scene.message("join", 1), "late")


def test_too_few_joins_end_the_round_in_words() -> None:
    cast = Cast(4, 3)
    network = cast.network()
    network.down |= set(cast.clients[2:])
    begin(cast, network, tolerated=1)
    until_the_end(network)
    assert failures(network)[0].reason.startswith("2 clients joined: N - T - 1 = 2 - 1 - 1 is below 1")


# Results


def test_the_result_is_the_same_however_often_the_trainer_restarts() -> None:
    cast = exact_cast(4)
    network, _ = begin(cast)
    for _ in range(3):
        network.restart(cast.trainer_identity.id)
    assert [result.value.tolist() for result in results(network)] == [[exact_sum(range(4))]] * 4


def test_a_lost_partial_sum_is_asked_for_again() -> None:
    cast = exact_cast(4)
    network = cast.network()
    lost = []

    def lose_the_first(envelope: Any) -> list[Any]:
        if (
            envelope.sender == cast.computes[2]
            and not lost
            and sealed_kind(network, cast, envelope.payload) is PartialSum
        ):
            lost.append(envelope)
            return []
        return [envelope]

    network.tamper = lose_the_first
    begin(cast, network)
    until_the_end(network)
    assert len(lost) == 1
    assert [query.to.id for query in sent(network, Query)] == [cast.computes[2]]
    assert the_sum(network).tolist() == [exact_sum(range(4))]


def test_the_round_fails_when_a_compute_node_is_silent() -> None:
    cast = exact_cast(4)
    network = cast.network()
    network.tamper = losing(Ready, Abort)
    begin(cast, network)
    until_the_end(network)
    assert failures(network)[0].reason.startswith("no answer from Compute node compute-")
    assert failures(network)[0].reason.endswith("while starting")


def test_contributors_beyond_the_roster_end_the_round_in_words() -> None:
    scene = Scene("running")
    session = session_hash(scene.terms)
    body = PartialSum(PROTOCOL_VERSION, scene.round_id, session, bytes(32), b"\xff\xff", (bytes(32),) * 3, bytes(8))
    for node in scene.cast.compute_identities:
        scene.network.handle(scene.id, Received(node.id, sealed_by(scene.cast, node, body, scene.opened)))
    assert not scene.actor.dropped
    (failure,) = scene.network.reported(RoundFailed)
    assert "not on the roster" in failure.reason
    assert scene.network.reported(RoundCompleted) == []


def test_a_finished_round_is_forgotten_after_the_retention() -> None:
    scene = Scene("done")
    until_the_end(scene.network, 24 * 8)
    assert scene.actor.phase(scene.round_id) == "new"
    assert {table for table, _ in scene.network.stores[scene.id]} == {"ledger"}, "all but its charge"


def test_a_restart_in_mid_round_sets_its_timers() -> None:
    for phase, timers in (
        ("joining", {"join", "end", "resend"}),
        ("starting", {"resend", "end"}),
        ("running", {"resend", "end"}),
    ):
        scene = Scene(phase)
        records = [(table, key, value) for (table, key), value in scene.network.stores[scene.id].items()]
        effects = scene.cast.trainer(records).handle(Started(), scene.network.now_ms)
        assert {effect.timer.purpose for effect in effects if isinstance(effect, SetTimer)} == timers
