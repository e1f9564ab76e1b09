"""Point 4 of the hardening: a clock that ran ahead, or is behind, is reported, and leaves nothing behind."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from round_helpers import announced, begin, failures, forged, losing, refused, results, sends, until_the_end

from dca_proto.protocol import facts
from dca_proto.protocol.effects import Channel, Persist
from dca_proto.protocol.events import Received, Started
from dca_proto.protocol.keyring import SEEN
from dca_proto.protocol.params import Timing
from dca_proto.protocol.sessions import SESSIONS
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.messages import Announcement, EpochKey, Hello
from dca_proto.testing import Network, TestFederation

DAY_MS = Timing().epoch_ms
NOW_MS = 1_700_000_000_000
EPOCH = NOW_MS // DAY_MS


def to_nobody(actors: TestFederation) -> tuple[Network, bytes]:
    """A round that only the nodes know, and its announcement."""
    network = actors.network()
    network.tamper = losing(Announcement, to=b"")
    begin(actors, network, collect_s=600)
    return network, encode(announced(network, actors).frame)


def facts_of(effects: Any, kind: type) -> list[Any]:
    return [effect.fact for effect in effects if isinstance(getattr(effect, "fact", None), kind)]


def test_hardening_4_a_client_whose_clock_is_behind_sends_the_trainer_a_decline_with_a_reason() -> None:
    """It dropped the announcement, and nobody learned why it never took part."""
    actors = TestFederation(4, 2)
    network, payload = to_nobody(actors)
    actor, at_ms = actors.client(0), NOW_MS - 3 * DAY_MS
    effects = actor.handle(Received(actors.trainer_identity.id, payload), at_ms)
    (declined,) = facts_of(effects, facts.Declined)
    assert (declined.reason, declined.found) == ("epoch", f"epoch {EPOCH} of Compute node compute-0")
    by = f"at most {EPOCH - 2} by this clock, 2023-11-11 22:13:20 UTC"
    assert declined.expected == f"{by}; one of the two clocks is wrong by 2.1 days or more"
    assert (actor.ledger.charges, actor.declines.rounds[0].reason) == ((), "epoch")
    (decline,) = sends(effects)
    network.handle(actors.trainer_identity.id, Received(actor.id, decline.payload))
    (received,) = network.reported(facts.Declined, actors.trainer_identity.id)
    assert (received.client, received.reason, received.found) == (actor.id, "epoch", declined.found)


def test_hardening_4_a_client_that_has_seen_a_later_epoch_declines_with_a_reason() -> None:
    """The node shows an old key, as one that was restored from a copy does."""
    actors = TestFederation(4, 2)
    network, _ = to_nobody(actors)
    opened, node = announced(network, actors), actors.compute_identities[1]
    old = msgspec.structs.replace(opened.epochs[1], epoch=EPOCH - 1)
    computes = (opened.body.epochs[0], decode_frame(forged(actors, node, old)))
    payload = forged(actors, actors.trainer_identity, msgspec.structs.replace(opened.body, epochs=computes))
    actor = actors.client(0, [(SEEN, node.id, (EPOCH + 1).to_bytes(4, "big"))])
    (declined,) = facts_of(actor.handle(Received(actors.trainer_identity.id, payload), NOW_MS), facts.Declined)
    assert (declined.reason, declined.found) == ("epoch", f"epoch {EPOCH - 1} of Compute node compute-1")
    assert declined.expected == f"{EPOCH + 1} or later, as this node has shown before"


def test_hardening_4_an_epoch_that_a_clock_ahead_has_left_behind_is_replaced() -> None:
    """Of a client that once ran years ahead; its record then is the present epoch's again, and guards it."""
    actors = TestFederation(4, 2)
    _, payload = to_nobody(actors)
    actor = actors.client(0, [(SEEN, one, (EPOCH + 3000).to_bytes(4, "big")) for one in actors.computes])
    effects = actor.handle(Received(actors.trainer_identity.id, payload), NOW_MS)
    assert facts_of(effects, facts.Contributed)
    noted = {effect.key: effect.value for effect in effects if isinstance(effect, Persist) and effect.table == SEEN}
    assert noted == {one: EPOCH.to_bytes(4, "big") for one in actors.computes}


def test_hardening_4_sessions_of_clocks_that_ran_ahead_lock_no_client_out() -> None:
    """A client and a node were both years ahead, as on one host; both are right again, and go on at once."""
    actors = TestFederation(4, 2)
    network = actors.network(Network(NOW_MS + 3000 * DAY_MS))
    network.deliver()
    assert {table for table, _ in network.stores[actors.computes[0]]} >= {SESSIONS}
    for actor in (*actors.clients, *actors.computes, actors.trainer_identity.id):
        network.crash(actor)
    network.now_ms = NOW_MS
    for actor in (actors.trainer_identity.id, *actors.computes, *actors.clients):
        network.restart(actor)
    begin(actors, network)
    until_the_end(network, 0.1)
    (result,) = results(network)
    assert result.contributors == 4


@pytest.mark.parametrize("who", ["clients", "computes", "trainer"])
def test_hardening_4_a_clock_that_is_set_back_while_an_actor_runs_costs_no_restart(who: str) -> None:
    """The runner has it start up anew: keys of the far epoch are replaced, and the timers are of the present."""
    actors = TestFederation(4, 2)
    network = actors.network()
    network.deliver()
    wrong = {"clients": actors.clients, "computes": actors.computes, "trainer": (actors.trainer_identity.id,)}[who]
    for actor in wrong:  # its clock alone runs ahead for a while: it turns its epoch, as its timer would
        for effect in network.actors[actor].handle(Started(), NOW_MS + 3000 * DAY_MS):
            network._carry_out(actor, effect)
    network.deliver()
    for actor in wrong:
        network.handle(actor, Started())
    network.deliver()
    begin(actors, network)
    until_the_end(network, 0.1)
    (result,) = results(network)
    assert result.contributors == 4
    assert network.now_ms < NOW_MS + DAY_MS


def test_hardening_4_a_trainer_accepts_no_key_far_ahead_and_reports_the_node() -> None:
    actors = TestFederation(4, 2)
    network = Network()
    network.add(Channel.COMPUTE, lambda records: actors.compute(0, records))
    network.add(Channel.TRAINER, actors.trainer)
    network.deliver()
    trainer, node = actors.trainer_identity.id, actors.compute_identities[1]
    ahead = EpochKey(node.id, EPOCH + 2, bytes([9]) * 32, (EPOCH + 3) * DAY_MS, actors.federation.stamp)
    effects = network.handle(trainer, Received(node.id, forged(actors, node, ahead)))
    assert [one.code for one in facts_of(effects, facts.Dropped)] == ["epoch"]
    begin(actors, network)
    until_the_end(network, 0.1)
    (failure,) = failures(network)
    for part in (
        "Compute node compute-1",
        f"epoch {EPOCH + 2}",
        f"at most {EPOCH + 1} by this clock",
        "clocks is wrong",
    ):
        assert part in failure.reason


def test_hardening_4_a_hello_and_an_announcement_far_ahead_are_refused_by_a_node() -> None:
    actors = TestFederation(4, 2)
    network, payload = to_nobody(actors)
    actor = actors.client(0)
    greeting = sends(actor.handle(Started(), NOW_MS + 3 * DAY_MS))[0].payload
    assert isinstance(decode_body(decode_frame(greeting).body), Hello)  # type: ignore[union-attr]
    refused(network, actors.computes[0], actor.id, greeting, "hello")
    node = actors.compute(0)
    effects = node.handle(Received(actors.trainer_identity.id, payload), NOW_MS - 3 * DAY_MS)
    assert [one.code for one in facts_of(effects, facts.Dropped)] == ["epoch"]


def test_a_client_whose_clock_is_ahead_names_both_clocks_and_the_difference() -> None:
    """Its owner reads the times as dates, and the trainer's name."""
    actors = TestFederation(4, 2)
    _, payload = to_nobody(actors)
    effects = actors.client(0).handle(Received(actors.trainer_identity.id, payload), NOW_MS + 3 * 3_600_000)
    (dropped,) = facts_of(effects, facts.Dropped)
    assert dropped.detail == (
        "late: found a round's announcement at 2023-11-15 01:13:20 UTC by this clock, expected before 2023-11-14 "
        "22:23:20 UTC, 2.8 hours earlier; this clock or that of trainer is wrong, or the message was delayed"
    )


def test_a_node_whose_clock_is_ahead_ends_the_round_with_its_name_and_the_difference() -> None:
    """The trainer waited for it until the end before, and then reported "no answer"."""
    actors = TestFederation(4, 2)
    network = actors.network()
    network.tamper = losing(Announcement)
    begin(actors, network, collect_s=600)
    payload, node = encode(announced(network, actors).frame), network.actors[actors.computes[0]]
    late = node.handle(Received(actors.trainer_identity.id, payload), network.now_ms + 5 * 3_600_000)
    (abort,) = [one for one in sends(late) if one.to.channel is Channel.ABORT]
    network.handle(actors.trainer_identity.id, Received(node.id, abort.payload))
    until_the_end(network, 0.1)
    (failure,) = failures(network)
    found = r"compute-0 aborted the round: found a round's announcement at 2023-11-15 03:13:\S+ UTC by this clock"
    expected = r"expected before 2023-11-14 22:2\S+ UTC, 4.8 hours earlier; this clock or that of trainer"
    assert re.match(f"{found}; {expected}", failure.reason)
