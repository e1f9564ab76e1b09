"""Rounds that go on without lost Compute nodes: cancelled for silence, and repeated (DESIGN §4.8)."""

from __future__ import annotations

import msgspec
import pytest
from changes import following, hand
from round_helpers import (
    begin,
    body_of,
    exact_actors,
    exact_sum,
    failures,
    forged,
    hand_over,
    kind_of,
    losing,
    passing,
    refused,
    results,
    sent,
    the_sum,
)

from dca_proto.errors import UsageError
from dca_proto.protocol.events import Command, Received
from dca_proto.protocol.facts import Announced, ChargeReturned, Closed, Dropped, NodeAborted, NodesSilent
from dca_proto.protocol.wire.codec import decode_frame, encode
from dca_proto.protocol.wire.messages import Abort, Answer, Cancel, Close, FrozenList, Progress
from dca_proto.quorum import LostNode, Quorum
from dca_proto.runtime.silence import silent_words
from dca_proto.testing import Envelope, Network, TestFederation
from dca_proto.wording import duration, moment

SECONDS = 1000


def four(**changes) -> TestFederation:
    """Four Compute nodes, one of which may be corrupt; four clients."""
    return exact_actors(4, 4, colluding=1, **changes)


def names(nodes) -> tuple[str, ...]:
    return tuple(f"compute-{node}" for node in nodes)


def repeated(network: Network, actors: TestFederation, request, **changes):
    """Repeat a cancelled round, and deliver everything until the trainer knows of all contributions."""
    again = {"repeats": (*request.repeats, request.round_id)} | changes
    return begin(actors, network, **again)[1]


def charged(network: Network, actors: TestFederation) -> list[list[bool]]:
    """For each client, whether each of its charges counts."""
    return [[not charge.returned for charge in network.actors[one].ledger.charges] for one in actors.clients]


def newest(network: Network, actors: TestFederation):
    trainer = network.actors[actors.trainer_identity.id]
    return list(trainer._rounds.values())[-1].opened


def test_a_node_lost_while_the_round_collects_is_left_out_of_the_repeat() -> None:
    actors = four()
    network = actors.network()
    network.deliver()
    lost = actors.computes[2]
    network.crash(lost)
    _, request = begin(actors, network)
    begun_ms = network.now_ms
    network.advance(begun_ms + 12 * SECONDS)
    (failure,) = failures(network)
    assert failure.repeatable
    assert failure.reason.startswith("compute-2 has not answered for 8 s; its charge came back to the account")
    (silent,) = network.reported(NodesSilent)
    assert (silent.computes, silent.others, silent.spare) == (
        (lost,), tuple(node for node in actors.computes if node != lost), 1,
    )  # fmt: skip
    assert charged(network, actors) == [[False]] * 4
    repeated(network, actors, request)
    network.advance(network.now_ms + 5 * SECONDS)
    assert the_sum(network) == exact_sum(range(4))
    assert lost not in newest(network, actors).computes
    assert charged(network, actors) == [[False, True]] * 4
    (result,) = results(network)
    left = [node for node in range(4) if node != 2]
    heard_ms = failure.quorum.lost[0].since_ms
    assert failure.quorum == Quorum(names(range(4)), 1, (LostNode("compute-2", heard_ms),))
    assert result.quorum == Quorum(names(left), 1, failure.quorum.lost)
    assert abs(heard_ms - begun_ms) < SECONDS


@pytest.mark.parametrize("step", [FrozenList, Answer])
def test_nodes_lost_while_the_others_agree_are_left_out_of_the_repeat(step: type) -> None:
    """Two of four: the other two report that they wait for them."""
    actors = four()
    network = actors.network()
    lost = actors.computes[1], actors.computes[3]
    tampers = [losing(step, sender=node) for node in lost]
    network.tamper = lambda one: [one] if all(tamper(one) for tamper in tampers) else []
    _, request = begin(actors, network)
    for node in lost:
        network.crash(node)
    network.tamper = passing
    network.advance(network.now_ms + 30 * SECONDS)
    (failure,) = failures(network)
    assert failure.repeatable
    assert failure.reason.startswith("compute-1, compute-3 have not answered for ")
    assert {fact.compute for fact in network.reported(NodeAborted)} == {actors.computes[0], actors.computes[2]}
    repeated(network, actors, request)
    network.advance(network.now_ms + 5 * SECONDS)
    assert the_sum(network) == exact_sum(range(4))
    assert set(newest(network, actors).computes) == {actors.computes[0], actors.computes[2]}
    assert charged(network, actors) == [[False, True]] * 4


def test_a_node_that_is_back_joins_the_next_round_once_it_has_aborted() -> None:
    actors = four()
    network = actors.network()
    network.deliver()
    lost = actors.computes[2]
    network.crash(lost)
    _, request = begin(actors, network)
    network.advance(network.now_ms + 12 * SECONDS)
    begin(actors, network)  # not a repeat
    network.advance(network.now_ms + 5 * SECONDS)
    assert lost not in newest(network, actors).computes
    assert [one.node for one in results(network)[-1].quorum.lost] == ["compute-2"]
    found = network.actors[actors.trainer_identity.id].lost_nodes(network.now_ms)
    assert found is not None, "between rounds, as long as it owes its abort"
    assert (found[0].computes, found[0].spare) == ((lost,), 1)
    network.restart(lost)
    network.advance(network.now_ms + 5 * SECONDS)
    assert lost in {one.sender for one in sent(network, Abort)}, "it never heard of the round before"
    begin(actors, network)
    network.advance(network.now_ms + 5 * SECONDS)
    assert lost in newest(network, actors).computes
    assert len(results(network)) == 2
    assert network.actors[actors.trainer_identity.id].lost_nodes(network.now_ms) is None
    assert network.actors[actors.trainer_identity.id].phase(request.round_id) == "returned"


def test_a_debt_survives_a_restart_of_the_trainer_and_ends_with_a_new_epoch_key() -> None:
    actors = four()
    network = actors.network()
    network.deliver()
    lost, trainer = actors.computes[2], actors.trainer_identity.id
    network.crash(lost)
    begin(actors, network)
    network.advance(network.now_ms + 12 * SECONDS)
    network.restart(trainer)
    chosen = network.actors[trainer]._chosen(actors.computes)
    assert set(chosen) == {*actors.computes} - {lost}
    network.stores[lost] = {}  # its owner starts it with a fresh store, as DESIGN §8 asks
    network.restart(lost)
    network.advance(network.now_ms + 2 * SECONDS)
    assert network.actors[trainer]._chosen(actors.computes) == actors.computes
    assert lost not in {one.sender for one in sent(network, Abort)}, "it does not hold the named key any more"


def test_without_a_spare_node_the_trainer_waits_for_the_lost_one() -> None:
    """p = M - 1: a cancelled round could not be repeated, and a node that is back finishes it."""
    actors = exact_actors(4, 3)
    network = actors.network()
    lost = actors.computes[2]
    network.tamper = losing(FrozenList, sender=lost)
    begin(actors, network)
    network.crash(lost)
    network.tamper = passing
    network.advance(network.now_ms + 50 * SECONDS)
    assert (failures(network), sent(network, Cancel)) == ([], [])
    (silent,) = network.reported(NodesSilent)
    assert (silent.computes, silent.spare) == ((lost,), -1)
    commit_by_ms = newest(network, actors).body.commit_by_ms
    assert (silent.until_ms, silent.is_charged) == (commit_by_ms, True)
    assert silent.waited_ms < 12 * SECONDS, "whoever waits reads it within a minute"
    found = network.actors[actors.trainer_identity.id].lost_nodes(network.now_ms)
    assert found is not None
    assert (found[0].computes, found[0].spare, [*found[1]]) == ((lost,), -1, [lost])
    assert silent_words(found[0], lambda node: f"compute-{actors.computes.index(node)}") == (
        f"compute-2 has not answered for {duration(found[0].waited_ms)}; a round needs 3 Compute nodes, and "
        f"2 answer, so it waits until {moment(commit_by_ms)}; "
        "clients have paid, and charges stay at least until it is back"
    )
    network.restart(lost)
    network.advance(network.now_ms + 65 * SECONDS)
    assert the_sum(network) == exact_sum(range(4))
    assert results(network)[-1].quorum == Quorum(names(range(3)), 2), "it is back, and the sum has its part"


def test_a_flapping_node_is_left_out_of_one_request_then_of_two_until_it_has_completed_one() -> None:
    """It dies as each round begins, and is back once the round has been cancelled, with its abort."""
    actors = four()
    network = actors.network()
    network.deliver()
    flapping = actors.computes[2]
    included = []
    for number in range(9):
        if number < 6:
            network.crash(flapping)
        _, request = begin(actors, network)
        asked = flapping in newest(network, actors).computes
        included.append(asked)
        network.advance(network.now_ms + 12 * SECONDS)
        if asked and number < 6:
            repeated(network, actors, request)
        if number < 6:
            network.restart(flapping)
        network.advance(network.now_ms + 5 * SECONDS)
        assert len(results(network)) == number + 1
    assert included == [True, True, False, True, False, False, True, True, True]
    assert charged(network, actors)[0].count(True) == 9


@pytest.mark.parametrize("step", ["collecting", "committing"])
def test_a_round_that_was_charged_under_a_larger_p_waits_as_it_would_have(step: str) -> None:
    """The owner lowers p from 2 to 1 while a node reboots. Before, the trainer cancelled: p + 1 aborts by the new
    file, which return no charge of the round, and no result when the node was back."""
    actors = exact_actors(4, 3)
    network = actors.network()
    network.deliver()
    lost = actors.computes[2]
    network.tamper = losing(FrozenList, sender=lost)
    if step == "collecting":
        network.crash(lost)
    begin(actors, network)
    if step == "committing":
        network.crash(lost)
    network.tamper = passing
    newer = following(actors, colluding=1)
    for member in (*actors.computes[:2], actors.trainer_identity.id, *actors.clients):
        hand(network, member, newer)
    network.advance(network.now_ms + 40 * SECONDS)
    assert (failures(network), sent(network, Cancel)) == ([], [])
    assert network.reported(NodesSilent)[0].spare == -1
    network.restart(lost)
    network.advance(network.now_ms + 70 * SECONDS)
    assert the_sum(network) == exact_sum(range(4))
    assert charged(network, actors) == [[True]] * 4


def test_a_trainer_asks_no_node_that_it_has_heard_and_signs_no_question_for_nobody() -> None:
    actors = four()
    network = actors.network()
    begin(actors, network, clients=5, tolerate=1)
    trainer = network.actors[actors.trainer_identity.id]
    signed: list[object] = []
    trainer._sign, honest = (lambda body: (signed.append(body), honest(body))[1]), trainer._sign
    (current,) = trainer._rounds.values()
    current.heard = dict.fromkeys(actors.computes, network.now_ms + 2 * SECONDS)
    trainer._on_watch(current, network.now_ms + 2 * SECONDS)
    assert signed == []


@pytest.mark.parametrize("late_ms", [0, 1, 7, 300])
def test_only_the_frozen_node_is_named_while_the_others_wait_for_it(late_ms: int) -> None:
    """Each round needs all three nodes. Answers travel for 2 ms, and the trainer's timers fire some ms late."""
    actors = exact_actors(3, 3)
    network = actors.network()
    network.deliver()
    trainer = network.actors[actors.trainer_identity.id]
    at_once, punctual = trainer.handle, trainer._watch_again
    trainer.handle = lambda event, now_ms: at_once(event, now_ms + 2 * isinstance(event, Received))
    trainer._watch_again = lambda current, now_ms: punctual(current, now_ms + late_ms)
    begin(actors, network, clients=4)
    frozen = actors.computes[2]
    network.crash(frozen)
    network.advance(network.now_ms + 80 * SECONDS)
    assert {fact.computes for fact in network.reported(NodesSilent)} == {(frozen,)}


def test_a_round_with_too_few_nodes_left_ends_within_a_minute_and_names_them() -> None:
    """Three of four are lost, and p = 1: one alone cannot make a round."""
    actors = four()
    network = actors.network()
    network.deliver()
    for node in actors.computes[1:]:
        network.crash(node)
    begin(actors, network)
    begun_ms = network.now_ms
    network.advance(begun_ms + 40 * SECONDS)
    assert (failures(network), sent(network, Cancel)) == ([], [])
    (silent,) = network.reported(NodesSilent)
    assert (len(silent.computes), silent.spare) == (3, -1)
    network.advance(begun_ms + 60 * SECONDS)
    (failure,) = failures(network)
    assert failure.reason.startswith("compute-1, compute-2, compute-3 have not answered for 4")
    assert "the account and the clients keep the charge" in failure.reason
    assert (failure.repeatable, failure.lost) == (False, ("compute-1", "compute-2", "compute-3"))


def test_a_trainer_that_was_cut_off_itself_gives_the_other_nodes_time() -> None:
    """Two of four nodes are heard again a few seconds before the other two."""
    actors = four()
    network = actors.network()
    begin(actors, network, clients=5, tolerate=0)
    cut_off = set(actors.computes)
    network.tamper = lambda envelope: [] if envelope.sender in cut_off else [envelope]
    network.advance(network.now_ms + 15 * SECONDS)
    cut_off -= set(actors.computes[:2])
    network.advance(network.now_ms + 4 * SECONDS)
    cut_off.clear()
    network.advance(network.now_ms + 20 * SECONDS)
    assert sent(network, Cancel) == []


def test_a_cancelled_round_does_not_close_any_more() -> None:
    """The last contributions are reported after the trainer has cancelled."""
    actors = four()
    network = actors.network()
    late = []

    def tamper(envelope: Envelope) -> list[Envelope]:
        is_late = envelope.sender == actors.computes[2] and kind_of(envelope) is Progress
        late.extend([envelope] * is_late)
        return [] if is_late or kind_of(envelope) is Cancel else [envelope]

    network.tamper = tamper
    begin(actors, network)
    network.advance(network.now_ms + 11 * SECONDS)
    assert network.reported(NodesSilent)
    hand_over(network, late[-1])
    assert network.reported(Closed) == []


def test_nodes_that_answer_questions_are_not_silent_however_long_nothing_arrives() -> None:
    actors = four()
    network = actors.network()
    begin(actors, network, clients=5, tolerate=1)
    network.tamper = losing(Close)
    network.advance(network.now_ms + 40 * SECONDS)
    assert sent(network, Cancel) == []
    assert network.reported(NodesSilent) == []


def test_a_repeat_carries_the_aborts_and_a_client_that_missed_them_pays_once() -> None:
    """One transaction returns the charge, decides, and charges anew; the budget has room for one round only."""
    tight = msgspec.structs.replace(exact_actors().policy, epsilon_per_period_max=1.0, delta_max=1e-6)
    actors = four(policy=tight)
    network = actors.network()
    network.deliver()
    deaf = actors.clients[0]
    network.crash(actors.computes[2])
    _, request = begin(actors, network)
    network.crash(deaf)  # it hears no abort
    network.advance(network.now_ms + 12 * SECONDS)
    network.restart(deaf)
    assert network.actors[deaf].ledger.is_charged(request.round_id)
    repeated(network, actors, request)
    network.advance(network.now_ms + 5 * SECONDS)
    assert charged(network, actors) == [[False, True]] * 4
    assert the_sum(network) == exact_sum(range(4))
    carried = newest(network, actors).body.ended
    assert {body_of(encode(frame)).compute for frame in carried} == {
        node for node in actors.computes if node != actors.computes[2]
    }


def test_bad_aborts_in_a_repeat_are_ignored() -> None:
    """Forged, doubled, of another announcement, of another kind."""
    actors = four()
    network = actors.network()
    network.deliver()
    deaf = actors.clients[0]
    network.crash(actors.computes[2])
    _, request = begin(actors, network)
    opened = newest(network, actors)
    network.crash(deaf)
    network.advance(network.now_ms + 12 * SECONDS)
    network.restart(deaf)
    good = network.actors[actors.trainer_identity.id]._rounds[request.round_id].stored.aborts[0]
    other = Abort(request.round_id, bytes(32), actors.computes[1], "cancelled", "x", 0, 3, ())
    forger, node = actors.compute_identities[0], actors.computes[1]
    frames = [
        good, good, opened.frame,
        decode_frame(forged(actors, forger, Abort(request.round_id, opened.hash, node, "cancelled", "x", 0, 3, ()))),
        decode_frame(forged(actors, actors.compute_identities[1], other)),
    ]  # fmt: skip
    body = msgspec.structs.replace(opened.body, round_id=bytes(16), ended=tuple(frames))
    before = len(network.reported(Dropped, deaf))
    network.handle(deaf, Received(actors.trainer_identity.id, forged(actors, actors.trainer_identity, body)))
    assert len(network.reported(Dropped, deaf)) == before + 1, "three are bad; a report of each would fill a log"
    assert network.actors[deaf].ledger.is_charged(request.round_id), "one abort is not two"
    assert network.reported(ChargeReturned, deaf) == []


def test_only_a_cancelled_round_whose_charge_came_back_is_repeated() -> None:
    actors = four()
    network, request = begin(actors)
    network.advance(network.now_ms + 5 * SECONDS)
    trainer = network.actors[actors.trainer_identity.id]
    with pytest.raises(UsageError, match="was not cancelled"):
        trainer.handle(Command(actors.request(repeats=(request.round_id,))), network.now_ms)


def test_a_request_is_repeated_three_times_at_most() -> None:
    actors = four()
    network = actors.network()
    network.deliver()
    trainer = network.actors[actors.trainer_identity.id]
    ended = tuple(bytes([number]) * 16 for number in range(1, 5))
    with pytest.raises(UsageError, match="at most 3 times, found 4"):
        trainer.handle(Command(actors.request(repeats=ended)), network.now_ms)


def test_an_abort_of_more_than_a_kilobyte_stays_out_of_a_repeat() -> None:
    """A repeat reaches devices with the aborts in it. Those with evidence may be long; they still return the charge."""
    actors = four()
    network = actors.network()
    network.deliver()
    network.crash(actors.computes[2])
    _, request = begin(actors, network)
    opened, trainer = newest(network, actors), actors.trainer_identity.id
    for node, evidence in ((0, ()), (1, (opened.frame,) * 8)):
        head = (request.round_id, opened.hash, actors.computes[node])
        body = Abort(*head, "peer-silent", "compute-2 is silent", 0, 3, evidence)
        network.handle(trainer, Received(actors.computes[node], forged(actors, actors.compute_identities[node], body)))
    stored = network.actors[trainer]._rounds[request.round_id].stored
    assert stored.aborted_by == actors.computes[:2]
    assert [body_of(encode(frame)).compute for frame in stored.aborts] == [actors.computes[0]]


def test_a_job_goes_on_when_a_node_is_replaced() -> None:
    """Its later requests still name the old node. Before, the trainer refused them."""
    actors = four()
    network = actors.network()
    network.deliver()
    newer = following(actors, computes=actors.federation.computes[:3])
    for member in (*actors.computes[:3], actors.trainer_identity.id, *actors.clients):
        hand(network, member, newer)
    network.crash(actors.computes[3])
    begin(actors, network)
    network.advance(network.now_ms + 5 * SECONDS)
    assert the_sum(network) == exact_sum(range(4))
    assert set(newest(network, actors).computes) == {*actors.computes[:3]}
    (told,) = network.reported(Announced)
    assert (set(told.computes), told.p) == ({*actors.computes[:3]}, 1)


def test_a_replayed_report_does_not_take_back_a_later_one() -> None:
    actors = four()
    network = actors.network()
    lost = actors.computes[3]
    network.tamper = losing(Answer, sender=lost)
    begin(actors, network)
    network.advance(network.now_ms + 3 * SECONDS)
    trainer = network.actors[actors.trainer_identity.id]
    (current,) = trainer._rounds.values()
    node = actors.compute_identities[0]
    report = current.reports[node.id]
    assert report.stage == 2
    assert [current.computes[place] for place in report.waits_for] == [lost]
    early = Progress(current.id, current.hash, report.count, 0, 0, 0, b"")
    network.handle(trainer.id, Received(node.id, forged(actors, node, early)))
    more = Progress(current.id, current.hash, report.count, 0, 0, 2, bytes(range(4)))
    network.handle(trainer.id, Received(node.id, forged(actors, node, more)))
    strange = Progress(current.id, current.hash, report.count, 0, 0, 2, bytes([9]))
    network.handle(trainer.id, Received(node.id, forged(actors, node, strange)))
    assert current.reports[node.id] == report


def test_attack_58_old_reports_of_a_dead_node_delay_the_end_until_commit_by_and_cost_nothing() -> None:
    """A broker delivers them again and again: they are signed, and a live node would send the same. See DESIGN §10."""
    actors = four()
    network = actors.network()
    lost, trainer = actors.computes[3], actors.trainer_identity.id
    network.tamper = losing(FrozenList, sender=lost)
    begin(actors, network, collect_s=60.0, commit_s=60.0)
    network.advance(network.now_ms + 3 * SECONDS)
    network.crash(lost)
    network.tamper = passing
    old = [one.payload for one in network.sent if one.sender == lost and kind_of(one) is Progress][-1]
    commit_by_ms = newest(network, actors).body.commit_by_ms
    while network.now_ms < commit_by_ms - 5 * SECONDS:
        network.handle(trainer, Received(lost, old))
        network.advance(network.now_ms + 5 * SECONDS)
    assert (failures(network), sent(network, Cancel)) == ([], [])
    network.advance(commit_by_ms + 10 * SECONDS)
    (failure,) = failures(network)
    late = f"no list of contributions came from compute-3 until the end of the round, {moment(commit_by_ms)}"
    assert failure.reason.endswith(f"{late} (peer-silent); its charge came back to the account")
    assert len(network.reported(ChargeReturned)) == 5, "of four clients and the account"


def test_nobody_but_the_trainer_cancels() -> None:
    actors = four()
    network, request = begin(actors, clients=5, tolerate=1)
    opened = newest(network, actors)
    client = actors.client_identities[0]
    cancel = forged(actors, client, Cancel(request.round_id, opened.hash, opened.frame))
    refused(network, actors.computes[0], client.id, cancel, "sender")
