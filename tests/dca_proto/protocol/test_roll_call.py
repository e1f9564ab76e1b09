"""A trainer asks nodes that it has not heard lately before it announces a round (DESIGN §4.1)."""

from __future__ import annotations

import pytest
from roll_call import up
from round_helpers import begin, failures, kind_of, losing, passing, results, sent, the_sum

from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Announced, Dropped, NodesSilent
from dca_proto.protocol.wire.messages import Abort, Announcement, FrozenList, Sealed, Sessions, SessionsWanted
from dca_proto.quorum import LostNode, Quorum
from dca_proto.runtime.live import abort_of
from dca_proto.runtime.silence import silent_words
from dca_proto.testing import Network, TestFederation
from dca_proto.wording import moment

SECONDS, WHOLE = 1000, sum(index / 16 for index in range(4))


def charges(network: Network, actors: TestFederation) -> int:
    return sum(len(network.actors[one].ledger.charges) for one in (*actors.clients, actors.trainer_identity.id))


@pytest.mark.parametrize("clients", [0, 4])
@pytest.mark.parametrize(("computes", "colluding", "dead"), [(3, 0, 1), (2, 0, 2), (4, 1, 3), (5, 3, 2)])
def test_with_too_many_nodes_dead_a_request_ends_within_a_minute_at_no_charge(
    computes: int, colluding: int, dead: int, clients: int
) -> None:
    """The retained keys of the dead nodes are known, so the round could be announced, and would charge everybody."""
    actors, network = up(computes, colluding)
    for node in actors.computes[-dead:]:
        network.crash(node)
    begun_ms = network.now_ms
    begin(actors, network, clients=clients, tolerate=1, collect_s=120.0)
    network.advance(begun_ms + 11 * SECONDS)
    (silent,) = network.reported(NodesSilent)
    assert (silent.computes, silent.others) == (actors.computes[-dead:], actors.computes[:-dead])
    assert silent.spare < 0
    assert (silent.waited_ms, silent.until_ms) == (10 * SECONDS, begun_ms + 45 * SECONDS)
    words = silent_words(silent, lambda node: f"compute-{actors.computes.index(node)}")
    assert "answered for 10 s" in words
    assert words.endswith(f" until {moment(begun_ms + 45 * SECONDS)}; nothing is charged")
    network.advance(begun_ms + 46 * SECONDS)
    (failure,) = failures(network)
    names = tuple(f"compute-{number}" for number in range(computes - dead, computes))
    expected = f"Compute node{'s' * (dead > 1)} {', '.join(names)} did not answer"
    assert failure.reason == f"{expected} (waited 45 s; nothing was charged)"
    nodes = tuple(f"compute-{number}" for number in range(computes))
    lost = tuple(LostNode(name, begun_ms) for name in names)
    assert (failure.lost, failure.quorum) == (names, Quorum(nodes, colluding or computes - 1, lost))
    assert abort_of(failure).remedy.startswith("start compute-")
    assert charges(network, actors) == 0
    assert sent(network, Announcement) == []


def test_a_dead_node_is_left_out_before_anybody_is_charged_for_it() -> None:
    """Without the roll call, the round is announced with the dead node, cancelled, and repeated."""
    actors, network = up(4, 1)
    network.crash(actors.computes[2])
    begin(actors, network)
    network.advance(network.now_ms + 15 * SECONDS)
    assert the_sum(network) == WHOLE
    assert [one.node for one in results(network)[0].quorum.lost] == ["compute-2"]
    assert charges(network, actors) == 5


def test_a_node_that_comes_up_in_time_is_waited_for() -> None:
    actors, network = up(3, 0)
    network.crash(actors.computes[2])
    begin(actors, network)
    network.advance(network.now_ms + 40 * SECONDS)
    assert failures(network) == []
    network.restart(actors.computes[2])
    network.advance(network.now_ms + 15 * SECONDS)
    assert the_sum(network) == WHOLE


def test_too_many_dead_nodes_do_not_keep_a_request_waiting_for_all_of_them() -> None:
    """Two of four nodes are enough: the second one comes up after ten seconds."""
    actors, network = up(4, 1)
    for node in actors.computes[1:]:
        network.crash(node)
    begin(actors, network)
    network.advance(network.now_ms + 20 * SECONDS)
    network.restart(actors.computes[3])
    network.advance(network.now_ms + 20 * SECONDS)
    assert the_sum(network) == WHOLE
    assert results(network)[0].quorum.nodes == ("compute-0", "compute-3")


def test_nodes_that_were_heard_lately_are_not_asked_again() -> None:
    actors, network = up(3, 0)
    begin(actors, network)
    network.advance(network.now_ms + 5 * SECONDS)
    assert len(sent(network, SessionsWanted)) == 3
    begin(actors, network)
    network.advance(network.now_ms + 5 * SECONDS)
    assert (len(sent(network, SessionsWanted)), len(results(network))) == (3, 2)
    network.advance(network.now_ms + 121 * SECONDS)
    begin(actors, network)
    network.advance(network.now_ms + 5 * SECONDS)
    assert (len(sent(network, SessionsWanted)), len(results(network))) == (6, 3)


@pytest.mark.parametrize("computes", [3, 10])
def test_a_roll_call_costs_a_question_and_an_answer_of_each_node_whatever_the_clients(computes: int) -> None:
    """docs/measurements.md has these figures."""
    actors, network = up(computes, 0)
    begin(actors, network)
    network.advance(network.now_ms + 5 * SECONDS)
    called = [*sent(network, SessionsWanted), *sent(network, Sessions)]
    assert len(called) == 2 * computes
    assert sum(len(one.payload) for one in called) == 229 * computes


def test_a_reboot_of_90_seconds_between_rounds_is_waited_for() -> None:
    """The node has answered this process before, so it has its time to collect."""
    actors, network = up(3, 0)
    begin(actors, network)
    network.advance(network.now_ms + 200 * SECONDS)
    network.crash(actors.computes[1])
    begin(actors, network, collect_s=120.0)
    network.advance(network.now_ms + 90 * SECONDS)
    network.restart(actors.computes[1])
    network.advance(network.now_ms + 20 * SECONDS)
    assert (failures(network), len(results(network))) == ([], 2)


def test_a_copy_that_was_dropped_long_ago_does_not_keep_a_dead_node_from_being_named() -> None:
    """A broker may deliver an answer twice. The second one is dropped, and says nothing about a later request."""
    actors, network = up(3, 0)
    begin(actors, network)
    network.advance(network.now_ms + 5 * SECONDS)
    dead, trainer = actors.computes[1], actors.trainer_identity.id
    (answer,) = (one for one in sent(network, Sessions) if one.sender == dead)
    network.handle(trainer, Received(dead, answer.payload))
    assert network.reported(Dropped, trainer)[-1].code == "nonce"
    network.advance(network.now_ms + 200 * SECONDS)
    network.crash(dead)
    begin(actors, network, collect_s=60.0)
    network.advance(network.now_ms + 61 * SECONDS)
    (failure,) = failures(network)
    assert failure.lost == ("compute-1",)
    assert abort_of(failure).remedy.startswith("start compute-1 again")


def test_after_a_round_that_ended_for_its_silence_a_node_gets_no_more_time() -> None:
    actors, network = up(3, 0)
    lost = actors.computes[2]
    network.tamper = losing(FrozenList, sender=lost)
    begin(actors, network)
    network.crash(lost)
    network.advance(network.now_ms + 200 * SECONDS)
    (first,) = failures(network)
    assert "compute-2 has not answered for " in first.reason
    begun_ms = network.now_ms
    begin(actors, network)
    network.advance(begun_ms + 46 * SECONDS)
    assert failures(network)[1].reason.startswith("Compute node compute-2 did not answer (waited 45 s;")
    assert len(network.reported(Announced)) == 1


@pytest.mark.parametrize("dead", [(1,), (0, 1)])
def test_a_flapping_node_that_is_up_takes_the_place_of_a_dead_one(dead: tuple[int, ...]) -> None:
    """It is left out of a request only while enough others answer: otherwise a federation with p + 1 nodes up could do
    nothing, and since no round is announced, the flapping node would be left out of every request."""
    actors, network = up(3, 1) if len(dead) == 1 else up(4, 1)
    begin(actors, network)
    network.advance(network.now_ms + 5 * SECONDS)
    flapping = actors.computes[len(actors.computes) - 1]
    for _ in range(2):
        network.crash(flapping)
        begin(actors, network)
        network.advance(network.now_ms + 12 * SECONDS)
        network.restart(flapping)
        network.advance(network.now_ms + 10 * SECONDS)
    assert [failure.lost for failure in failures(network)] == [(f"compute-{len(actors.computes) - 1}",)] * 2
    network.advance(network.now_ms + 200 * SECONDS)
    for node in dead:
        network.crash(actors.computes[node])
    begin(actors, network, collect_s=120.0)
    network.advance(network.now_ms + 30 * SECONDS)
    assert len(results(network)) == 2
    others = tuple(f"compute-{node}" for node in range(len(actors.computes)) if node not in dead)
    assert results(network)[1].quorum.nodes == others
    assert {one.node for one in results(network)[1].quorum.lost} == {f"compute-{node}" for node in dead}


@pytest.mark.parametrize("ends", ["with a sum", "with an abort"])
def test_old_messages_of_a_dead_node_do_not_pass_for_its_answer(ends: str) -> None:
    """A broker can deliver them again, and anybody an abort, which all may see: the node is called all the same."""
    actors, network = up(4, 1)
    dead, trainer = actors.computes[3], actors.trainer_identity.id
    if ends == "with an abort":
        network.tamper = losing(FrozenList, sender=actors.computes[2])
    begin(actors, network)
    network.advance(network.now_ms + 300 * SECONDS)
    network.tamper = passing
    assert (len(results(network)), len(failures(network))) == ((0, 1) if ends == "with an abort" else (1, 0))
    old = [one for one in network.sent if one.sender == dead and one.to.id in (b"", trainer)]
    assert kind_of(old[-1]) is (Abort if ends == "with an abort" else Sealed)
    network.crash(dead)
    network.advance(network.now_ms + 200 * SECONDS)
    for one in old:
        network.handle(trainer, Received(dead, one.payload))
    before = len(sent(network, SessionsWanted, to=dead))
    network.command(trainer, actors.request())
    network.deliver()
    assert len(sent(network, SessionsWanted, to=dead)) == before + 1
    network.advance(network.now_ms + 15 * SECONDS)
    assert results(network)[-1].quorum.nodes == tuple(f"compute-{node}" for node in range(3))


@pytest.mark.parametrize("collect_s", [2.0, 10.0])
def test_a_request_with_a_short_time_to_collect_goes_on_without_a_dead_node(collect_s: float) -> None:
    """It waits for answers in half of that time: otherwise it would end before it has left out anybody."""
    actors, network = up(4, 1)
    network.crash(actors.computes[2])
    begun_ms = network.now_ms
    begin(actors, network, collect_s=collect_s)
    network.advance(begun_ms + 15 * SECONDS)
    assert failures(network) == []
    assert results(network)[0].quorum.lost == (LostNode("compute-2", begun_ms),)


@pytest.mark.parametrize("wait_s", [20, 100])
def test_a_request_waits_for_a_roll_call_as_long_as_it_states(wait_s: int) -> None:
    actors, network = up(3, 0)
    network.crash(actors.computes[2])
    begun_ms = network.now_ms
    begin(actors, network, wait_s=wait_s)
    network.advance(begun_ms + (wait_s - 1) * SECONDS)
    assert failures(network) == []
    assert network.reported(NodesSilent)[-1].until_ms == begun_ms + wait_s * SECONDS
    network.advance(begun_ms + wait_s * SECONDS)
    (failure,) = failures(network)
    assert failure.lost == ("compute-2",)
    assert network.reported(Announced) == []


def test_a_stated_wait_does_not_keep_a_request_from_going_on_without_a_dead_node() -> None:
    actors, network = up(3, 1)
    network.crash(actors.computes[2])
    begin(actors, network, wait_s=15)
    network.advance(network.now_ms + 20 * SECONDS)
    assert len(results(network)) == 1
