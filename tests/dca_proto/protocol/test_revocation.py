"""A client is revoked, and members know different files of the federation (DESIGN §2.7)."""

from __future__ import annotations

import pytest
from changes import PlaysOn, codes, hand, hostile, last_sum, numbers, payload_of, without
from reporters import Reporters
from round_helpers import begin, exact_actors, exact_sum, failures, losing, refused, results, until_the_end

from dca_proto.privacy.mechanism import ANALYTIC_GAUSSIAN
from dca_proto.protocol import facts
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.events import Received
from dca_proto.protocol.policy import Refusal
from dca_proto.protocol.wire.messages import Close

# --- a client is revoked ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["a trainer's restart", "a node's restart", "a message"])
def test_hardening_6_a_client_that_is_revoked_between_rounds_is_not_in_the_next_and_the_others_go_on(by: str) -> None:
    actors = exact_actors(5)
    network, _ = begin(actors, tolerate=2)
    until_the_end(network, 0.1)
    assert last_sum(network) == exact_sum(range(5))
    certificates = [actors.certificate(index) for index in (0, 1, 2, 4)]
    hellos = [one.payload for one in network.sent if one.to.channel is Channel.HELLO]
    if by == "a message":
        hand(network, actors.computes[1], without(actors, 3))
    else:
        actors.federation = without(actors, 3)
        network.restart(actors.trainer_identity.id if "trainer" in by else actors.computes[0])
    network.deliver()
    assert numbers(network) == {2}
    begin(actors, network, tolerate=2)
    until_the_end(network, 0.1)
    assert last_sum(network) == exact_sum([0, 1, 2, 4])
    assert [fact.reason for fact in network.reported(facts.Declined, actors.clients[3])] == ["revoked"]
    assert {network.actors[node]._sessions.count_valid(network.now_ms) for node in actors.computes} == {4}
    file = network.actors[actors.computes[0]].federation
    assert all(file.check_certificate(one, network.now_ms) for one in certificates)
    assert hellos == [one.payload for one in network.sent if one.to.channel is Channel.HELLO], "no new sessions"


def test_hardening_6_a_revoked_client_that_plays_on_is_in_no_sum_and_gets_no_query() -> None:
    actors = exact_actors(5)
    network = hostile(actors)
    hand(network, actors.computes[0], without(actors, 3))
    network.deliver()
    sent = len(network.sent)
    begin(actors, network, tolerate=2)
    until_the_end(network, 0.1)
    assert any(one.sender == actors.clients[3] for one in network.sent[sent:]), "it sent its contribution"
    assert not [one for one in network.sent[sent:] if one.to.id == actors.clients[3]], "nobody answered it"
    assert last_sum(network) == exact_sum([0, 1, 2, 4])


def test_hardening_6_a_revoked_client_has_no_new_session() -> None:
    actors = exact_actors(5)
    network = hostile(actors)
    hello = next(e.payload for e in network.sent if e.sender == actors.clients[3] and e.to.channel is Channel.HELLO)
    hand(network, actors.computes[0], without(actors, 3))
    refused(network, actors.computes[0], actors.clients[3], hello, "revoked")
    network.restart(actors.computes[0])
    refused(network, actors.computes[0], actors.clients[3], hello, "revoked")


@pytest.mark.parametrize("knowing", [0, 1, 2])
def test_hardening_6_one_informed_node_keeps_a_revoked_client_out_and_the_round_completes(knowing: int) -> None:
    """A broker withholds the file from the trainer, from all clients, and from all nodes but one."""
    actors = exact_actors(5)
    network = hostile(actors)
    network.kept_from = tuple(network.actors)
    hand(network, actors.computes[knowing], without(actors, 3))
    network.deliver()
    begin(actors, network, tolerate=2)
    until_the_end(network, 0.1)
    assert numbers(network) == {1, 2}
    assert last_sum(network) == exact_sum([0, 1, 2, 4])


def test_hardening_6_a_client_that_is_revoked_while_its_contribution_is_kept_is_objected_to() -> None:
    actors = exact_actors(5)
    network = hostile(actors)
    network.tamper = losing(Close)
    begin(actors, network, tolerate=2)
    assert len(network.reported(facts.ContributionKept)) == 5
    hand(network, actors.computes[0], without(actors, 3))
    network.tamper = lambda envelope: (envelope,)
    until_the_end(network, 0.1)
    assert last_sum(network) == exact_sum([0, 1, 2, 4])


def test_hardening_6_reports_and_declines_of_a_revoked_client_are_dropped() -> None:
    actors = exact_actors(5)
    network = hostile(actors)
    hand(network, actors.computes[0], without(actors, 3))
    network.deliver()
    decline = Refusal("columns", "none", "some")
    network.actors[actors.clients[3]]._consider = lambda *_: decline
    begin(actors, network, tolerate=2)
    assert "revoked" in codes(network, actors.trainer_identity.id)
    assert not network.reported(facts.Declined, actors.trainer_identity.id)


def test_hardening_6_a_revoked_clients_report_does_not_count() -> None:
    actors = Reporters(ANALYTIC_GAUSSIAN, [1, 2, 3, 4])
    network = actors.network()
    network.actors[actors.clients[3]].__class__ = PlaysOn
    hand(network, actors.trainer_identity.id, without(actors, 3))
    begin(actors, network)
    until_the_end(network, 0.1)
    assert results(network)[-1].contributors == 3
    assert codes(network, actors.trainer_identity.id) == {"revoked"}


# --- members that know different files --------------------------------------------------------------------------------


def test_hardening_6_a_member_that_lacks_the_trainers_file_waits_for_it_and_reports_it() -> None:
    actors = exact_actors(5)
    network = hostile(actors)
    late = (actors.computes[2], actors.clients[0])
    network.kept_from = late
    file = without(actors, 3)
    hand(network, actors.trainer_identity.id, file)
    network.deliver()
    begin(actors, network)
    for member in late:
        assert codes(network, member) == {"federation"}
        (detail,) = {fact.detail for fact in network.reported(facts.Dropped, member)}
        assert file.title in detail
        assert actors.federation.title in detail
    assert not network.actors[actors.clients[0]].ledger.spent().mu
    network.kept_from = ()
    for member in late:
        network.handle(member, Received(actors.trainer_identity.id, payload_of(file)))
    until_the_end(network, 0.1)  # the trainer has repeated its announcement
    assert last_sum(network) == exact_sum([0, 1, 2, 4])


def test_hardening_6_a_permanently_withheld_file_stops_rounds_of_a_trainer_that_knows_it() -> None:
    actors = exact_actors(5)
    network = hostile(actors)
    network.kept_from = (actors.computes[2],)
    hand(network, actors.trainer_identity.id, without(actors, 3))
    begin(actors, network, tolerate=2)
    until_the_end(network, 0.1)
    assert not results(network)
    assert "compute-2" in failures(network)[0].reason
