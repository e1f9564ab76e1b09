"""What open rounds wait for: clients by name at their holder, nodes at the trainer, the holder at a client."""

from __future__ import annotations

import pytest
from round_helpers import losing

from dca_proto.protocol import facts
from dca_proto.protocol.compute import commit
from dca_proto.protocol.events import Command, Received, Started, Timer, TimerFired
from dca_proto.protocol.names import short_id
from dca_proto.protocol.policy import Refusal
from dca_proto.protocol.sessions import SessionTable
from dca_proto.protocol.wire.messages import Contribution
from dca_proto.testing import TestFederation

NOW_MS = 1_800_000_000_000


def test_a_holder_waits_for_each_client_whose_contribution_is_lost() -> None:
    actors = TestFederation(6, 2, name="waiting")
    network = actors.network()
    network.deliver()
    lost = actors.clients[4]
    network.tamper = losing(Contribution, sender=lost)
    network.command(actors.trainer_identity.id, actors.request(clients=6, tolerate=2))
    network.deliver()
    waiting = {node: network.actors[node].waiting(network.now_ms, 10) for node in actors.computes}
    assert [one.members for (one,) in waiting.values() if one.members] == [(lost,)]
    assert sum(one.arrived for (one,) in waiting.values()) == 5
    assert sum(one.expected for (one,) in waiting.values()) == 6
    (at_trainer,) = network.actors[actors.trainer_identity.id].waiting(network.now_ms, 10)
    assert set(at_trainer.members) == set(actors.computes)
    (at_client,) = network.actors[lost].waiting(network.now_ms, 10)
    assert at_client.members[0] in actors.computes
    assert network.actors[lost].name_of(at_client.members[0]).endswith(f"({short_id(at_client.members[0])})")
    network.advance(network.now_ms + 3_600_000)
    absent = network.reported(facts.Absent)
    assert [fact.clients for fact in absent] == [(lost,)], "its holder names it when it freezes its list"
    servers = (*actors.computes, actors.trainer_identity.id)
    assert [network.actors[actor].waiting(network.now_ms, 10) for actor in servers] == [[]] * 3


def test_a_holder_names_the_client_for_which_a_round_is_aborted() -> None:
    """The trainer learns how many contributed, not who."""
    actors = TestFederation(6, 2, name="aborted")
    network = actors.network()
    network.deliver()
    lost = actors.clients[4]
    network.tamper = losing(Contribution, sender=lost)
    network.command(actors.trainer_identity.id, actors.request(clients=6, tolerate=0))
    network.advance(network.now_ms + 3_600_000)
    (holder,) = [actor for actor, fact in network.facts if isinstance(fact, facts.Absent)]
    ends = [
        fact for actor, fact in network.facts if actor == holder and isinstance(fact, facts.Absent | facts.NodeAborted)
    ]
    assert [type(fact) for fact in ends] == [facts.Absent, facts.NodeAborted], "a status keeps both, in this order"
    assert ends[0].clients == (lost,)
    assert (ends[1].reason, ends[1].round_id) == ("too-few", ends[0].round_id)
    assert network.reported(facts.Absent, actors.trainer_identity.id) == []


def test_a_client_that_declined_waits_for_nothing() -> None:
    actors = TestFederation(6, 2, name="declined")
    network = actors.network()
    network.deliver()
    network.actors[actors.clients[4]]._consider = lambda *_: Refusal("columns", "none", "some")
    network.command(actors.trainer_identity.id, actors.request(clients=6, tolerate=2))
    network.deliver()
    assert [fact.client for fact in network.reported(facts.Declined, actors.clients[4])] == [actors.clients[4]]
    assert network.actors[actors.clients[4]].waiting(network.now_ms, 10) == []


def test_a_trainer_waits_for_the_silent_node_alone_once_it_is_known() -> None:
    actors = TestFederation(6, 3, name="silent")
    network = actors.network()
    network.deliver()
    network.crash(actors.computes[1])
    network.command(actors.trainer_identity.id, actors.request(clients=6, tolerate=2))
    network.deliver()
    trainer = network.actors[actors.trainer_identity.id]
    (before,) = trainer.waiting(network.now_ms, 10)
    assert set(before.members) == set(actors.computes)
    network.advance(network.now_ms + 20_000)
    (after,) = trainer.waiting(network.now_ms, 10)
    assert after.members == (actors.computes[1],)


def test_a_status_stays_cheap_with_many_rounds_and_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = TestFederation(6, 2, name="many")
    network = actors.network()
    network.deliver()
    network.tamper = losing(Contribution, sender=actors.clients[4])
    for _ in range(3):
        network.command(actors.trainer_identity.id, actors.request(clients=6, tolerate=2))
    network.deliver()
    servers = [network.actors[one] for one in (*actors.computes, actors.trainer_identity.id)]
    assert [len(one.waiting(network.now_ms, most)) for one in servers for most in (0, 2, 9)] == 3 * [0, 2, 3]
    monkeypatch.setattr(commit, "MANY_SESSIONS", 5)
    monkeypatch.setattr(SessionTable, "valid", None)
    waiting = [one for node in servers[:2] for one in node.waiting(network.now_ms, 9)]
    assert sum(one.arrived for one in waiting) == 3 * 5
    assert {(one.members, one.expected) for one in waiting} == {((), None)}


def test_a_node_of_many_clients_takes_long_for_all_but_their_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = TestFederation(3, 2, name="long")
    network = actors.network()
    network.deliver()
    node = network.actors[actors.computes[0]]
    events = [Received(actors.clients[0], b""), Received(actors.computes[1], b""), TimerFired(Timer("freeze"))]
    assert [node.takes_long(event) for event in events] == [False] * 3
    monkeypatch.setattr(commit, "MANY_SESSIONS", 2)
    assert [node.takes_long(event) for event in events] == [False, True, True]


def test_an_unannounced_round_waits_for_nodes_without_a_key() -> None:
    actors = TestFederation(3, 2, name="keyless")
    trainer = actors.trainer()
    trainer.handle(Started(), NOW_MS)
    trainer.handle(Command(actors.request()), NOW_MS)
    (waiting,) = trainer.waiting(NOW_MS, 10)
    assert (waiting.phase, waiting.until_ms, set(waiting.members)) == ("unannounced", None, set(actors.computes))


def test_the_trainer_names_invited_clients_that_are_absent() -> None:
    actors = TestFederation(7, 2, name="invited")
    network = actors.network()
    network.deliver()
    lost, invited = actors.clients[4], actors.clients[:6]
    network.tamper = losing(Contribution, sender=lost)
    network.command(actors.trainer_identity.id, actors.request(clients=6, tolerate=2, invited=invited))
    network.advance(network.now_ms + 3_600_000)
    (absent,) = network.reported(facts.Absent, actors.trainer_identity.id)
    assert absent.clients == (lost,)
    assert network.reported(facts.RoundCompleted)


def test_a_trainer_knows_by_how_much_a_nodes_clock_is_ahead() -> None:
    actors = TestFederation(3, 2, name="clocks")
    network, trainer = actors.network(), actors.trainer_identity.id
    network.deliver()
    fast = network.actors[actors.computes[0]]
    handle = fast.handle
    fast.handle = lambda event, now_ms: handle(event, now_ms + 90_000)
    network.command(trainer, actors.request(clients=0))
    network.advance(network.now_ms + 1000)
    ahead = network.actors[trainer].ahead_ms
    assert ahead == {actors.computes[0]: 90_000, actors.computes[1]: 0}
