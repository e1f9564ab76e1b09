"""The trainer's state machine: what each phase takes, and that nothing else changes anything."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest
from round_helpers import (
    announced,
    begin,
    body_of,
    exact_actors,
    exact_sum,
    failures,
    forged,
    kind_of,
    losing,
    passing,
    refused,
    results,
    sealed_by,
    sealed_kind,
    sent,
    snapshot,
    the_sum,
    until_the_end,
)

from dca_proto.errors import UsageError
from dca_proto.protocol.effects import Channel, SetTimer
from dca_proto.protocol.events import Command, Received, Started, Timer, TimerFired
from dca_proto.protocol.facts import Closed
from dca_proto.protocol.params import Timing
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.round import TABLE
from dca_proto.protocol.wire.messages import (
    Abort,
    Announcement,
    Close,
    Contribution,
    Decline,
    EpochKey,
    FrozenList,
    PartialSum,
    Progress,
    Query,
    Sessions,
    SessionsWanted,
)
from dca_proto.testing import Network, TestFederation

PHASES = ("new", "collecting", "committing", "done", "failed")
EVENTS = {
    "decline": ("decline",),
    "progress": ("progress",),
    "partial": ("partial", "last partial", "repeated partial", "late partial"),
    "abort": ("abort", "late abort", "fail"),
}
"""What arrives, and the events of the table that it can be."""


class ActorInPhase:
    """The trainer of a round with four clients and three Compute nodes, brought to a phase."""

    def __init__(self, phase: str) -> None:
        self.actors = TestFederation(4, 3)
        self.id = self.actors.trainer_identity.id
        self.network = self.actors.network()
        lost = {"collecting": (Contribution,), "committing": (Close,), "failed": (Contribution, Abort)}.get(phase, ())
        self.network.tamper = losing(*lost)
        begin(self.actors, self.network)
        self.opened = announced(self.network, self.actors)
        self.round_id = bytes(16) if phase == "new" else self.opened.body.round_id
        if phase == "failed":
            self.network.advance(self.network.now_ms + 185_001)
        assert self.actor.phase(self.round_id) == phase

    @property
    def actor(self) -> Trainer:
        return self.network.actors[self.id]

    def message(self, event: str, index: int = 0) -> tuple[bytes, bytes]:
        """(sender, payload) of a valid message of that kind."""
        client, node = self.actors.client_identities[index], self.actors.compute_identities[index % 3]
        head = (self.round_id,)
        opened = msgspec.structs.replace(
            self.opened, body=msgspec.structs.replace(self.opened.body, round_id=self.round_id)
        )
        match event:
            case "decline":
                why = ("clients", "n_min = 3", "n_min >= 5 (clients_min)")
                body = Decline(*head, self.opened.hash, self.actors.certificate(index), *why)
                return client.id, sealed_by(self.actors, client, body, opened)
            case "progress":
                return node.id, forged(self.actors, node, Progress(*head, self.opened.hash, 1, 0, 0))
            case "partial":
                body = PartialSum(*head, self.opened.hash, bytes(32), 4, (bytes(32),) * 3, bytes(64), bytes(8))
                return node.id, sealed_by(self.actors, node, body, opened)
            case _:
                abort = Abort(*head, self.opened.hash, node.id, "too-few", "2 of 4", 2, 3, ())
                return node.id, forged(self.actors, node, abort)


def is_legal(phase: str, event: str) -> bool:
    return any((phase, name) in TABLE for name in EVENTS[event])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("event", EVENTS)
def test_a_message_outside_the_table_changes_nothing(phase: str, event: str) -> None:
    phased = ActorInPhase(phase)
    message = phased.message(event)
    if event == "abort" and phase == "new":  # broadcast: most are of another trainer's rounds
        assert phased.actor.handle(Received(*message), phased.network.now_ms) == []
    elif is_legal(phase, event):
        phased.network.handle(phased.id, Received(*message))
        assert not phased.actor.dropped
    else:
        refused(phased.network, phased.id, *message)


@pytest.mark.parametrize("phase", PHASES)
def test_a_timer_that_has_lost_its_purpose_changes_nothing(phase: str) -> None:
    phased = ActorInPhase(phase)
    stale = {
        "collecting": ("keys", "settle", "quiet", "forget"),  # an open round is not forgotten
        "committing": ("keys", "settle", "quiet", "close-by", "forget"),
    }
    for purpose in stale.get(phase, ("keys", "quiet", "close-by", "end")):
        before = snapshot(phased.actor)
        assert phased.actor.handle(TimerFired(Timer(purpose, phased.round_id)), phased.network.now_ms) == []
        assert snapshot(phased.actor) == before


@pytest.mark.parametrize("phase", PHASES[1:])
def test_a_restart_restores_the_phase(phase: str) -> None:
    phased = ActorInPhase(phase)
    before = phased.actor._rounds[phased.round_id]
    phased.network.tamper = lambda envelope: ()
    phased.network.restart(phased.id)
    after = phased.actor._rounds[phased.round_id]
    assert after.stored == before.stored
    assert after.partials == before.partials


# Commands


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"computes": (b"\0" * 16, b"\1" * 16)}, "not in the federation file"),
        ({"statistic": "median"}, "unknown here"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"colluders": 2}, "exceed T"),
        ({"tolerate": -1, "colluders": -1}, "cannot be announced"),
        ({"most": 2}, "n_max = 2 is below n_min = 3"),
        ({"mu": 0.3}, "mu is 0.3, expected above 0"),
        ({"fraction_bits": 41}, "fraction_bits"),
        ({"rows_max": -1}, "rows_max"),
        ({"round_id": b"short"}, "cannot be announced"),
        ({"parameters": {"columns": ["x"], "centre": [0.0], "scale": [2**70], "bound": [1.0]}}, "cannot be announced"),
        ({"collect_s": 0}, "_s is 0; give a number from 0.001"),
        ({"commit_s": 0}, "_s is 0; give a number from 0.001"),
        ({"parameters": {"columns": ["x"], "centre": [0.0], "scale": [1.0]}}, "bound"),
        ({"parameters": {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0], "more": []}}, "more"),
    ],
)
def test_an_impossible_request_is_the_callers_error(changes: dict[str, Any], message: str) -> None:
    phased = ActorInPhase("done")
    before = snapshot(phased.actor)
    with pytest.raises(UsageError, match=message):
        phased.actor.handle(Command(phased.actors.request(**changes)), phased.network.now_ms)
    assert snapshot(phased.actor) == before


def test_an_announcement_too_large_to_be_read_is_the_callers_error() -> None:
    """Otherwise every actor would drop it, the trainer's own included, and the caller would wait for ever."""
    phased = ActorInPhase("done")
    phased.actor._limits = msgspec.structs.replace(phased.actor._limits, announcement_bytes_max=1000)
    edges = {"columns": ["x"], "edges": [float(edge) for edge in range(100)]}
    with pytest.raises(UsageError, match=r"would have \d+ bytes, expected at most 1000"):
        phased.actor.handle(Command(phased.actors.request(statistic="histogram", parameters=edges)), 0)


def test_whole_numbers_for_epsilon_are_taken_as_such() -> None:
    network, _ = begin(TestFederation(4, 3), epsilon=1)
    assert [result.epsilon for result in results(network)] == [1.0]


def test_a_known_round_and_an_unknown_command_are_the_callers_errors() -> None:
    phased = ActorInPhase("done")
    before = snapshot(phased.actor)
    with pytest.raises(UsageError, match="known already"):
        phased.actor.handle(Command(phased.actors.request(round_id=phased.round_id)), phased.network.now_ms)
    with pytest.raises(UsageError, match="takes OpenRound, found int"):
        phased.actor.handle(Command(3), phased.network.now_ms)
    assert snapshot(phased.actor) == before


def test_the_id_of_a_round_that_is_over_and_forgotten_is_not_used_again() -> None:
    """Its charge is there for good, and a round is charged once."""
    phased = ActorInPhase("done")
    until_the_end(phased.network, 24 * 8)
    assert phased.actor.phase(phased.round_id) == "new"
    with pytest.raises(UsageError, match="known already"):
        phased.actor.check_request(phased.actors.request(round_id=phased.round_id), phased.network.now_ms)


def test_the_id_of_an_unreadable_round_is_not_reused() -> None:
    phased = ActorInPhase("collecting")
    records = [(table, key, value) for (table, key), value in phased.network.stores[phased.id].items()]
    other = msgspec.structs.replace(phased.actors.federation, name="other")
    actor = Trainer(phased.actors.trainer_identity, other, random=bytes, records=records)
    assert actor.phase(phased.round_id) == "new"
    with pytest.raises(UsageError, match="known already"):
        actor.check_request(phased.actors.request(round_id=phased.round_id), phased.network.now_ms)


# Epoch keys


def test_a_round_waits_for_the_compute_nodes_keys_and_reports_which_is_missing() -> None:
    actors = TestFederation(4, 3)
    network = Network()
    network.tamper = losing(EpochKey, sender=actors.computes[1])
    for index in (0, 2):
        network.add(Channel.COMPUTE, functools.partial(actors.compute, index))
    network.add(Channel.TRAINER, actors.trainer)
    begin(actors, network)
    assert sent(network, Announcement) == []
    until_the_end(network, 0.1)
    (failure,) = failures(network)
    assert failure.reason == ("Compute node compute-1 published no epoch key (waited 60 s; nothing was charged)")
    assert failure.lost == ("compute-1",)


def test_an_epoch_key_never_gets_older() -> None:
    phased = ActorInPhase("done")
    node = phased.actors.compute_identities[0]
    known = phased.actor._waiting._keys[node.id][0]
    older = msgspec.structs.replace(known, epoch=known.epoch - 1)
    refused(phased.network, phased.id, node.id, forged(phased.actors, node, older), "epoch")


@pytest.mark.parametrize("trouble", ["too large", "too few sessions", "a number too large"])
def test_a_round_that_cannot_be_announced_after_the_count_fails_and_others_continue(trouble: str) -> None:
    """How many clients there are is known only when all nodes have reported it; until then nothing can be refused."""
    actors = exact_actors(4, 3)
    network, trainer = actors.network(), actors.trainer_identity.id
    network.deliver()
    if trouble == "too few sessions":
        bad, message = actors.request(clients=0, tolerate=3), "N - T - 1 = 4 - 3 - 1 is below 1"
    elif trouble != "too large":
        plain, message = {"columns": ["x"], "centre": [0.0], "scale": [2**70], "bound": [1.0]}, "ints"
        bad = actors.request(clients=0, parameters=plain)
    else:
        actor = network.actors[trainer]
        actor._limits = msgspec.structs.replace(actor._limits, announcement_bytes_max=2500)
        edges = {"columns": ["x"], "edges": [float(edge) for edge in range(500)]}
        bad, message = actors.request(clients=0, statistic="histogram", parameters=edges), "bytes"
    good = [actors.request(clients=0) for _ in range(2)]
    for request in (good[0], bad, good[1]):
        network.command(trainer, request)
    network.advance(network.now_ms + 100)
    (failure,) = failures(network)
    assert failure.round_id == bad.round_id
    assert message in failure.reason
    assert len(results(network)) == 2
    assert len(network.actors[trainer].ledger.charges) == 2, "what was not announced cost nothing"


def test_a_wrong_parameter_is_refused_before_the_clients_are_counted() -> None:
    actors = exact_actors(4, 3)
    plain = {"columns": ["x"], "centre": [0.0], "scale": [object()], "bound": [1.0]}
    with pytest.raises(UsageError, match="parameters of statistic 'sum'"):
        actors.trainer().check_request(actors.request(clients=0, parameters=plain), 0)


@pytest.mark.parametrize("lost", [SessionsWanted, Sessions])
def test_a_lost_count_of_sessions_is_requested_again_with_back_off(lost: type) -> None:
    actors = exact_actors(4, 3)
    network, node, timing = actors.network(), actors.computes[1], actors.timing
    network.deliver()
    network.tamper = losing(lost)
    network.command(actors.trainer_identity.id, actors.request(clients=0))
    network.advance(network.now_ms + timing.resend_first_ms - 1)
    assert len(sent(network, SessionsWanted, to=node)) == 1
    network.advance(network.now_ms + 4 * timing.resend_first_ms)
    assert 2 <= len(sent(network, SessionsWanted, to=node)) <= 3
    network.tamper = passing
    network.advance(network.now_ms + 4 * timing.resend_first_ms * 3 // 2)
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    queries = len(sent(network, SessionsWanted))
    network.advance(network.now_ms + Timing().epoch_publish_ms)
    assert len(sent(network, SessionsWanted)) == queries, "no round waits for it any more"


def test_a_key_of_a_far_epoch_does_not_block_a_lower_one_that_comes_later() -> None:
    """A node whose clock ran ahead has published it; the broker retained it."""
    actors = exact_actors(4, 3)
    network, node = actors.network(), actors.compute_identities[0]
    network.deliver()
    trainer = network.actors[actors.trainer_identity.id]
    true = trainer._waiting._keys[node.id][0]
    far = msgspec.structs.replace(true, epoch=true.epoch + 1000, public=actors.computes[1] * 2)
    for key in (far, true):
        network.handle(trainer.id, Received(node.id, forged(actors, node, key)))
    assert trainer.dropped["epoch"] <= 1, "the far one may be refused, and no other"
    begin(actors, network)
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    assert announced(network, actors).epochs[0] == true


def test_an_epoch_key_is_taken_from_its_node_alone() -> None:
    phased = ActorInPhase("done")
    node, other = phased.actors.compute_identities[:2]
    key = phased.actor._waiting._keys[node.id][0]
    newer = msgspec.structs.replace(key, epoch=key.epoch + 1)
    refused(phased.network, phased.id, node.id, forged(phased.actors, other, newer), "signature")
    refused(phased.network, phased.id, other.id, forged(phased.actors, node, newer), "sender")
    stranger = phased.actors.client_identities[0]
    refused(phased.network, phased.id, stranger.id, forged(phased.actors, stranger, newer), "signature")


# Arrivals, and the rule of closing


def closing(network: Network) -> list[str]:
    return [fact.why for fact in network.reported(Closed)]


def test_a_round_closes_when_all_expected_have_come_those_that_declined_not_counted() -> None:
    actors = exact_actors(4)
    network, _ = begin(actors)
    assert closing(network) == ["all"]
    phased = ActorInPhase("collecting")
    for number in range(3):
        phased.network.handle(phased.id, Received(*phased.message("progress", number)))
    assert phased.actor.phase(phased.round_id) == "collecting"
    phased.network.handle(phased.id, Received(*phased.message("decline", 3)))
    assert phased.actor.phase(phased.round_id) == "collecting", "the client's holder may have its contribution"
    holder = phased.opened.holder(phased.actors.clients[3]).id
    node = next(one for one in phased.actors.compute_identities if one.id == holder)
    body = Progress(phased.round_id, phased.opened.hash, 1, 1, 0)
    phased.network.handle(phased.id, Received(node.id, forged(phased.actors, node, body)))
    assert phased.actor.phase(phased.round_id) == "committing"


def test_a_count_that_shrinks_or_is_repeated_is_no_news() -> None:
    phased = ActorInPhase("collecting")
    node = phased.actors.compute_identities[0]
    for count in (2, 2, 1, 0):
        body = Progress(phased.round_id, phased.opened.hash, count, 0, 0)
        phased.network.handle(phased.id, Received(node.id, forged(phased.actors, node, body)))
    assert phased.actor._rounds[phased.round_id].arrivals.total == 2
    assert phased.actor.phase(phased.round_id) == "collecting"


def test_a_round_closes_when_enough_have_come_and_arrivals_are_quiet() -> None:
    """Nothing has come for 500 ms, and for half of the time that arrivals have taken."""
    actors = exact_actors(5)
    network = actors.network()
    network.tamper = losing(Contribution, sender=actors.clients[0])
    begin(actors, network)
    network.advance(network.now_ms + 499)
    assert closing(network) == []
    network.advance(network.now_ms + 60)
    assert closing(network) == ["quiet"]
    assert the_sum(network).tolist() == [exact_sum(range(1, 5))]


def test_slow_arrivals_are_waited_for_longer() -> None:
    actors = exact_actors(5)
    network = actors.network()
    network.tamper = losing(Contribution)
    begin(actors, network, tolerate=2)
    start_ms = network.now_ms
    for number, client in enumerate(actors.clients[1:4]):
        network.advance(start_ms + 600 * (number + 1))
        one = sent(network, Contribution, sender=client)[0]
        network.handle(one.to.id, Received(one.sender, one.payload))
    last_ms = network.now_ms
    network.advance(last_ms + 900)
    assert closing(network) == [], "arrivals took 1.9 s, so that quiet takes 0.95 s"
    network.advance(last_ms + 1100)
    assert closing(network) == ["quiet"]


def test_a_lost_last_count_is_requested_and_closes_the_round_before_its_deadline() -> None:
    """A node reports contributions once, when they come; what was lost comes with the answer to a Query."""
    actors = exact_actors(4)
    network = actors.network()
    network.tamper = lambda one: [] if kind_of(one) is Progress and body_of(one.payload).count else [one]
    begin(actors, network)
    network.tamper = passing
    began_ms = network.now_ms
    network.advance(began_ms + 1500)
    assert closing(network) == []
    network.advance(began_ms + 5000)
    assert closing(network) == ["all"]
    assert the_sum(network).tolist() == [exact_sum(range(4))]


def test_too_few_contributions_wait_for_the_deadline_and_a_full_round_closes() -> None:
    actors = exact_actors(5)
    network = actors.network()
    network.tamper = losing(Contribution, sender=actors.clients[0])
    begin(actors, network, tolerate=0)
    network.advance(network.now_ms + 59_000)
    assert closing(network) == []
    network.advance(network.now_ms + 2_000)
    assert closing(network) == ["deadline"]
    network, _ = begin(exact_actors(5), tolerate=3, most=2, clients=5)
    assert closing(network) == ["full"]


# Results


def test_the_result_is_the_same_however_often_the_trainer_restarts() -> None:
    actors = exact_actors(4)
    network, _ = begin(actors)
    for _ in range(3):
        network.restart(actors.trainer_identity.id)
    assert [result.value.tolist() for result in results(network)] == [[exact_sum(range(4))]] * 4


def test_a_lost_partial_sum_is_requested_again() -> None:
    actors = exact_actors(4)
    network = actors.network()
    lost = []

    def lose_the_first(envelope: Any) -> list[Any]:
        if (
            envelope.sender == actors.computes[2]
            and not lost
            and sealed_kind(network, actors, envelope.payload) is PartialSum
        ):
            lost.append(envelope)
            return []
        return [envelope]

    network.tamper = lose_the_first
    begin(actors, network)
    until_the_end(network)
    assert len(lost) == 1
    assert {query.to.id for query in sent(network, Query, sender=actors.trainer_identity.id)} == {actors.computes[2]}
    assert the_sum(network).tolist() == [exact_sum(range(4))]


def test_the_round_fails_when_a_compute_node_is_silent() -> None:
    actors = exact_actors(4)
    network = actors.network()
    network.tamper = losing(FrozenList, Abort)
    begin(actors, network)
    until_the_end(network)
    assert failures(network)[0].reason.startswith("no answer came from compute-")


def test_a_finished_round_is_forgotten_after_the_retention() -> None:
    phased = ActorInPhase("done")
    until_the_end(phased.network, 24 * 8)
    assert phased.actor.phase(phased.round_id) == "new"
    assert {table for table, _ in phased.network.stores[phased.id]} == {"ledger"}, "all but its charge"


def test_a_restart_in_mid_round_sets_its_timers() -> None:
    for phase, timers in (
        ("collecting", {"close-by", "end", "resend", "watch"}),
        ("committing", {"resend", "end", "watch"}),
    ):
        phased = ActorInPhase(phase)
        records = [(table, key, value) for (table, key), value in phased.network.stores[phased.id].items()]
        effects = phased.actors.trainer(records).handle(Started(), phased.network.now_ms)
        assert {effect.timer.purpose for effect in effects if isinstance(effect, SetTimer)} == timers
