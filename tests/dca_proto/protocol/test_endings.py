"""A round ends once: whatever a Compute node lacks when it starts again, it never reopens a round that it knew."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from round_helpers import (
    begin,
    body_of,
    exact_actors,
    exact_sum,
    kind_of,
    losing,
    passing,
    recompose,
    refused,
    sent,
    the_sum,
)

from dca_proto.protocol import facts
from dca_proto.protocol.announcement import _verified
from dca_proto.protocol.compute.round import ROUNDS, StoredComputeRound
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.events import Received
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.records import decoded
from dca_proto.protocol.wire.messages import Announcement, Close, Contribution, HelloWanted, Receipt, Sealed
from dca_proto.statistics import base
from dca_proto.testing import Envelope, Network, TestFederation

MINUTE_MS = 60_000


class Missing:
    """Something that a node's next start lacks, and that is there again at a later one."""

    def __init__(self, actors: TestFederation, what: str) -> None:
        self._actors = actors
        self._what = what
        self._kept = actors.federation

    def take_away(self) -> None:
        old = self._kept
        if self._what == "federation file":
            self._actors.federation = Federation(old.name, bytes(range(32)), old.computes, old.trainers)
        else:
            self._statistic = base._REGISTRY.pop("sum")
            forget_validated()

    def give_back(self) -> None:
        self._actors.federation = self._kept
        if self._what == "statistic":
            base._REGISTRY["sum"] = self._statistic


@pytest.fixture(params=["federation file", "statistic"])
def missing(request: pytest.FixtureRequest) -> Iterator[Callable[[TestFederation], Missing]]:
    made: list[Missing] = []

    def make(actors: TestFederation) -> Missing:
        made.append(Missing(actors, request.param))
        return made[0]

    yield make
    made[0].give_back()


def forget_validated() -> None:
    """What another process would not remember, either."""
    for opened in list(_verified.values()):
        opened._validated.clear()


def partial_sums(net: Network, node: bytes) -> set[bytes]:
    """The distinct releases of a node, by their bytes."""
    own = [one.payload for one in net.sent if one.sender == node and one.to.channel is Channel.TRAINER]
    return {payload for payload in own if payload[1] == 2}  # the tag of `Sealed`


def replay(net: Network, actors: TestFederation, leaving_out: bytes) -> None:
    """The broker hands the recorded announcement and contributions to a node once more, without one client's."""
    node = actors.computes[0]
    for one in [*sent(net, Announcement, to=node), *sent(net, Contribution, to=node)]:
        if one.sender != leaving_out:
            net._queue.append(one)
    net.deliver()
    net.advance(net.now_ms + 3 * MINUTE_MS)


@pytest.mark.parametrize("ending", ["released", "aborted", "collecting"])
def test_no_second_release_after_a_start_that_could_not_read_the_round(
    ending: str, missing: Callable[[TestFederation], Missing]
) -> None:
    actors = TestFederation(6, 2)
    net, node, left_out = actors.network(), actors.computes[0], actors.clients[5]
    silent = set(actors.clients[: {"released": 0, "aborted": 3, "collecting": 3}[ending]])
    net.tamper = lambda e: () if e.sender in silent and e.to.channel is Channel.COMPUTE else (e,)
    request = actors.request(collect_s=MINUTE_MS / 1000)
    net.command(actors.trainer_identity.id, request)
    net.advance(net.now_ms + 100)
    if ending == "aborted":
        net.advance(net.now_ms + 2 * MINUTE_MS)
    assert net.actors[node].phase(request.round_id) == ending
    released = partial_sums(net, node)
    absent = missing(actors)
    absent.take_away()
    net.restart(node)
    absent.give_back()
    net.restart(node)
    after = "released" if ending == "released" else "aborted"
    assert net.actors[node].phase(request.round_id) == after
    replay(net, actors, left_out)
    assert net.actors[node].phase(request.round_id) == after
    assert partial_sums(net, node) == released
    assert len(released) == (ending == "released")


def test_a_receipt_that_was_lost_with_the_process_comes_when_the_contribution_is_sent_again() -> None:
    """The contribution was stored, and the power failed before its receipt left; then the round was released."""
    actors = TestFederation(6, 2)
    net, client = actors.network(), actors.clients[0]
    net.tamper = losing(Receipt, to=client)
    request = actors.request()
    net.command(actors.trainer_identity.id, request)
    net.advance(net.now_ms + 100)
    node = sent(net, Contribution, sender=client)[0].to.id
    assert net.actors[node].phase(request.round_id) == "released"
    assert net.actors[client].phase(request.round_id) == "sent"
    net.tamper = lambda e: (e,)
    net.restart(node)
    net.advance(net.now_ms + MINUTE_MS)
    assert net.actors[client].phase(request.round_id) == "kept"
    assert len(partial_sums(net, node)) == 1


def test_contributions_sent_again_to_a_node_that_cannot_read_its_released_round(
    missing: Callable[[TestFederation], Missing],
) -> None:
    """They get their receipt again, by the round's record alone, and the round is what it was."""
    actors = TestFederation(6, 2)
    net, node = actors.network(), actors.computes[0]
    request = actors.request()
    net.command(actors.trainer_identity.id, request)
    net.advance(net.now_ms + 100)
    missing(actors).take_away()
    net.restart(node)
    stored = dict(net.stores[node])
    for one in sent(net, Contribution, to=node):
        (receipt,) = net.handle(node, Received(one.sender, one.payload))
        assert isinstance(body_of(receipt.payload), Receipt | HelloWanted), "another file ends the sessions"
    assert net.stores[node] == stored
    assert net.actors[node].phase(request.round_id) == "released"


@pytest.mark.parametrize("nodes_start_again", [False, True])
def test_a_trainer_that_is_away_from_the_release_until_after_commit_by_gets_its_result(nodes_start_again: bool) -> None:
    """Nodes keep what they released for an hour beyond the end (§4.8)."""
    actors = exact_actors(4, 3)
    net, trainer = actors.network(), actors.trainer_identity.id
    net.tamper = losing(Sealed, to=trainer)
    _, request = begin(actors, net)
    assert {net.actors[node].phase(request.round_id) for node in actors.computes} == {"released"}
    net.crash(trainer)
    net.tamper = passing
    end_ms = net.actors[actors.computes[0]]._rounds[request.round_id].stored.commit_by_ms
    net.advance(end_ms + 1)
    for node in actors.computes if nodes_start_again else ():
        net.restart(node)
    net.restart(trainer)
    net.deliver()
    assert the_sum(net).tolist() == [exact_sum(range(4))]


@pytest.mark.parametrize("start", ["none", "before the end", "after the end"])
def test_a_released_round_lets_go_of_its_sum_an_hour_after_its_end(start: str) -> None:
    """Whether or not the node was started again in between; what is left is the fact of the round."""
    actors = TestFederation(6, 2)
    net = actors.network()
    request = actors.request()
    net.command(actors.trainer_identity.id, request)
    net.advance(net.now_ms + 100)
    one = sent(net, Contribution)[0]
    node = one.to.id
    key = ROUNDS, request.round_id

    def kept() -> StoredComputeRound:
        return decoded(ROUNDS, net.stores[node][key], StoredComputeRound)

    assert kept().final_message
    if start == "before the end":
        net.restart(node)
    if start == "after the end":
        net.crash(node)
    end_ms = kept().commit_by_ms + actors.timing.abort_grace_ms
    net.advance(end_ms - 1)
    assert kept().final_message, "the trainer may ask for it"
    net.advance(end_ms)
    if start == "after the end":
        net.restart(node)
        net.advance(net.now_ms)
    assert not net.actors[node]._rounds[request.round_id].is_loaded, "nobody can ask for it any more"
    assert (kept().phase, kept().entries, kept().final_message, kept().answer) == ("released", b"", b"", None)
    refused(net, node, one.sender, one.payload, "phase")


def test_records_may_come_from_anything_that_can_be_read_once() -> None:
    """A reader that had used them up would leave a node without its rounds, as a lost store does."""
    actors = TestFederation(6, 2)
    net = actors.network()
    request = actors.request()
    net.command(actors.trainer_identity.id, request)
    net.advance(net.now_ms + 100)
    builders = {actors.clients[0]: actors.client, actors.computes[0]: actors.compute}
    for owner, build in builders.items():
        records = ((table, key, value) for (table, key), value in net.stores[owner].items())
        assert build(0, records).phase(request.round_id) in ("kept", "released")


def test_an_abort_stored_before_a_crash_is_broadcast_by_the_next_start() -> None:
    """Else clients that have their receipt would never get their charge back."""
    actors = TestFederation(6, 2)
    net = actors.network()
    silent = set(actors.clients[:3])

    def tamper(envelope: Envelope) -> tuple[Envelope, ...]:
        lost = envelope.to.channel is Channel.ABORT
        return () if lost or (envelope.sender in silent and envelope.to.channel is Channel.COMPUTE) else (envelope,)

    net.tamper = tamper
    request = actors.request(collect_s=MINUTE_MS / 1000, commit_s=5 * MINUTE_MS / 1000)
    net.command(actors.trainer_identity.id, request)
    net.advance(net.now_ms + 2 * MINUTE_MS)
    kept = net.actors[actors.clients[5]]
    assert kept.phase(request.round_id) == "kept"
    net.tamper = lambda e: (e,)
    for node in actors.computes:
        net.restart(node)
    net.deliver()
    assert kept.phase(request.round_id) == "returned"


def test_an_announcement_that_was_lost_is_sent_again_while_clients_may_contribute() -> None:
    actors = TestFederation(6, 2)
    net = actors.network()
    net.tamper = losing(Announcement)
    net.command(actors.trainer_identity.id, actors.request())
    net.deliver()
    assert not net.reported(facts.Contributed)
    net.tamper = lambda e: (e,)
    net.advance(net.now_ms + MINUTE_MS // 2)
    assert net.reported(facts.RoundCompleted)
    assert len(sent(net, Announcement)) > 1


def test_a_lost_partial_sum_is_requested_again_after_all_windows_are_used_up() -> None:
    actors = TestFederation(6, 2)
    net = actors.network()
    lost: list[Envelope] = []

    def tamper(envelope: Envelope) -> tuple[Envelope, ...]:
        if kind_of(envelope) is Close:
            return ()
        if kind_of(envelope) is Sealed and envelope.sender in actors.computes and not lost:
            lost.append(envelope)
            return ()
        return (envelope,)

    net.tamper = tamper
    net.command(actors.trainer_identity.id, actors.request())
    net.advance(net.now_ms + 10 * MINUTE_MS)
    assert lost
    assert net.reported(facts.RoundCompleted)


def test_the_node_that_misses_lists_reports_them() -> None:
    """And not as the silence of the nodes that waited."""
    actors = TestFederation(6, 3)
    net, mute = actors.network(), actors.computes[2]
    net.tamper = lambda e: () if e.sender == mute and e.to.channel in (Channel.COMPUTE, Channel.ABORT) else (e,)
    net.command(actors.trainer_identity.id, actors.request())
    net.advance(net.now_ms + 10 * MINUTE_MS)
    (failure,) = net.reported(facts.RoundFailed)
    assert "no list of contributions came from compute-2 until the end of the round, " in failure.reason


def test_a_broker_that_forgot_its_retained_keys_gets_them_again() -> None:
    actors = TestFederation(6, 2)
    net = actors.network()
    net.restart(actors.trainer_identity.id)
    net._retained.clear()
    fresh = net.actors[actors.trainer_identity.id] = actors.trainer()
    assert fresh.id == actors.trainer_identity.id
    net.command(fresh.id, actors.request(collect_s=10 * MINUTE_MS / 1000))
    assert not net.reported(facts.Announced)
    net.advance(net.now_ms + 6 * MINUTE_MS)
    assert net.reported(facts.RoundCompleted)


def test_nodes_that_are_away_for_a_while_are_asked_again_and_named() -> None:
    """For 100 seconds no message of a node arrives, as after a loss of the broker; then the round runs."""
    actors = TestFederation(6, 2)
    net, trainer = actors.network(), actors.trainer_identity.id
    net.deliver()
    net._retained.clear()
    net.actors[trainer] = actors.trainer()
    net.tamper = lambda e: () if e.sender in actors.computes else (e,)
    net.command(trainer, actors.request(collect_s=600))
    assert not net.reported(facts.WaitingForKeys), "nothing is wrong yet"
    net.advance(net.now_ms + 100_000)
    waits = net.reported(facts.WaitingForKeys, trainer)
    assert len(waits) >= 4
    assert {fact.computes for fact in waits} == {actors.computes}
    net.tamper = passing
    net.advance(net.now_ms + 100_000)
    assert net.reported(facts.RoundCompleted)


def test_a_round_says_nothing_of_keys_when_all_is_well() -> None:
    actors = TestFederation(6, 2)
    net = actors.network()
    net.deliver()
    net.command(actors.trainer_identity.id, actors.request(clients=0))
    net.advance(net.now_ms + 10 * MINUTE_MS)
    assert net.reported(facts.RoundCompleted)
    assert not net.reported(facts.WaitingForKeys)


def test_data_that_cannot_be_read_count_as_zero() -> None:
    actors = TestFederation(6, 2)
    net = actors.network()

    def broken(columns: tuple[str, ...]) -> None:
        raise OSError("the sensor shows 36.6")

    recompose(net.actors[actors.clients[0]], rows=broken)
    net.command(actors.trainer_identity.id, actors.request())
    net.advance(net.now_ms + 100)
    (done,) = net.reported(facts.RoundCompleted)
    assert done.aggregate.contributors == 6
    (trouble,) = net.reported(facts.DataFailed)
    assert trouble.error == "OSError"
    assert "36.6" not in repr(net.facts)


def test_by_default_no_compute_node_of_the_federation_may_be_left_out() -> None:
    """Else a trainer could hold a round with only those nodes that collude with it."""
    actors = TestFederation(6, 3)
    net = actors.network()
    trainer = actors.trainer_identity.id
    net.actors[trainer]._present = lambda request: request  # a hostile one
    net.command(trainer, actors.request(computes=actors.computes[:2]))
    net.deliver()
    assert len(net.reported(facts.Declined, actors.clients[0])) == 1
    assert net.reported(facts.Declined)[0].reason == "p"


def test_a_trainer_starts_without_the_statistic_of_a_past_round() -> None:
    actors = TestFederation(6, 2)
    net, trainer = actors.network(), actors.trainer_identity.id
    first = actors.request()
    net.command(trainer, first)
    net.advance(net.now_ms + 100)
    forgotten = base._REGISTRY.pop("sum")
    forget_validated()
    try:
        net.restart(trainer)
        assert net.actors[trainer].phase(first.round_id) == "new"
    finally:
        base._REGISTRY["sum"] = forgotten
    net.restart(trainer)
    assert net.actors[trainer].phase(first.round_id) == "done"


def test_a_trainers_round_is_forgotten_at_its_time_however_often_it_starts() -> None:
    actors = TestFederation(6, 2)
    net, trainer = actors.network(), actors.trainer_identity.id
    net.command(trainer, actors.request())
    net.advance(net.now_ms + 100)
    for _ in range(3):
        net.advance(net.now_ms + 3 * 24 * 60 * MINUTE_MS)
        net.restart(trainer)
        net.deliver()
    assert not [table for table, _ in net.stores[trainer] if table == "trainer-round"]


def test_a_released_sum_is_kept_an_hour_and_no_longer() -> None:
    actors = TestFederation(6, 2)
    net, node = actors.network(), actors.computes[0]
    request = actors.request()
    net.command(actors.trainer_identity.id, request)
    net.advance(net.now_ms + 100)
    (stored,) = [value for (table, _), value in net.stores[node].items() if table == "round"]
    net.advance(net.now_ms + 65 * MINUTE_MS)
    (left,) = [value for (table, _), value in net.stores[node].items() if table == "round"]
    assert len(left) < len(stored) - 100
    net.restart(node)
    assert net.actors[node].phase(request.round_id) == "released"
    replay(net, actors, actors.clients[5])
    assert len(partial_sums(net, node)) == 1
