"""Failed rounds at the trainer: charges come back against the aborts of all M nodes, once, and however late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest
from failing_rounds import MU, abort_of, collecting, trainer_of, with_account
from round_helpers import (
    EASY,
    begin,
    body_of,
    failures,
    forged,
    kind_of,
    losing,
    refused,
    results,
    sealed_by,
    sent,
    until_the_end,
)

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import ChargeReturned, RoundFailed
from dca_proto.protocol.params import DAY_MS, Timing
from dca_proto.protocol.policy import BudgetError, BudgetLimit
from dca_proto.protocol.wire.messages import (
    Abort,
    Announcement,
    Answer,
    Contribution,
    FrozenList,
    PartialSum,
    Progress,
    Query,
    Sealed,
)
from dca_proto.quorum import Quorum
from dca_proto.testing import Envelope, Network, TestFederation

SETTLE_MS = Timing().settle_ms


def queried_after_abort(actors: TestFederation, network: Network) -> list[bytes]:
    """Return the nodes that the trainer has queried since the first abort left."""
    first = next(at for at, one in enumerate(network.sent) if kind_of(one) is Abort)
    trainer = actors.trainer_identity.id
    return [one.to.id for one in network.sent[first:] if kind_of(one) is Query and one.sender == trainer]


@pytest.mark.parametrize("restarts", [False, True])
def test_the_aborts_of_all_nodes_bring_the_charge_back_once(restarts: bool) -> None:
    actors, network, round_id = collecting()
    trainer = actors.trainer_identity.id

    def hand_over_abort(node: int) -> None:
        network.handle(trainer, Received(*abort_of(actors, network, node)))
        if restarts:
            network.restart(trainer)

    for node in (0, 0, 1, 1, 0):
        hand_over_abort(node)
        assert trainer_of(actors, network).phase(round_id) == "failed"
        assert trainer_of(actors, network).ledger.spent().mu == MU
    for node in (2, 2, 0):
        hand_over_abort(node)
        assert trainer_of(actors, network).phase(round_id) == "returned"
        assert trainer_of(actors, network).ledger.spent().mu == 0
    assert network.reported(ChargeReturned, trainer) == [ChargeReturned(round_id)]
    assert len(set(network.reported(RoundFailed))) == 1, "each start reports it again, in the same text"
    assert trainer_of(actors, network).ledger.next_number == 2, "its number is not used again"


def test_a_returned_charge_can_be_spent_again() -> None:
    actors, network, _ = collecting()
    for node in range(3):
        network.handle(actors.trainer_identity.id, Received(*abort_of(actors, network, node)))
    network.tamper = lambda one: [one]
    for _ in range(2):
        begin(actors, network)
    assert len(results(network)) == 2
    with pytest.raises(BudgetError):
        trainer_of(actors, network).check_request(actors.request(), network.now_ms)


def test_forged_aborts_bring_nothing_back() -> None:
    actors, network, _ = collecting()
    trainer = actors.trainer_identity.id
    network.handle(trainer, Received(*abort_of(actors, network, 0)))
    node, genuine = abort_of(actors, network, 1)
    foreign = msgspec.structs.replace(body_of(genuine), compute=actors.client_identities[0].id)
    refused(network, trainer, node, forged(actors, actors.client_identities[0], foreign), "unknown-compute")
    refused(network, trainer, node, forged(actors, actors.client_identities[0], body_of(genuine)), "signature")
    refused(network, trainer, *abort_of(actors, network, 1, announcement_hash=bytes(32)), "announcement")
    assert trainer_of(actors, network).ledger.spent().mu == MU


def test_the_charge_stays_when_some_have_released() -> None:
    """One node never receives the others' lists and aborts, the others release: nobody knows who has what."""
    actors, network = with_account()
    odd = actors.computes[2]
    network.tamper = losing(Answer, Query, Abort, to=odd)
    begin(actors, network)
    network.tamper = lambda one: [one] if one.to.channel in (Channel.TRAINER, Channel.ABORT) else []
    until_the_end(network)
    assert [one.sender for one in sent(network, Abort)] == [odd]
    assert len(failures(network)) == 1
    assert trainer_of(actors, network).ledger.spent().mu == MU
    until_the_end(network, 24 * 8)
    assert trainer_of(actors, network).ledger.spent().mu == MU, "for good"


def test_a_result_keeps_the_charge_whatever_is_signed_afterwards() -> None:
    actors, network = with_account()
    _, request = begin(actors, network)
    for node in range(3):
        network.handle(actors.trainer_identity.id, Received(*abort_of(actors, network, node)))
    assert trainer_of(actors, network).phase(request.round_id) == "done"
    assert not trainer_of(actors, network).dropped
    assert trainer_of(actors, network).ledger.spent().mu == MU


@pytest.mark.parametrize("restarted", [False, True])
def test_lost_aborts_are_requested_again(restarted: bool) -> None:
    """The round fails with the first abort; the other nodes' were lost, and come when the trainer queries them."""
    actors, network = with_account()
    first = actors.computes[0]

    def tamper(one):
        lost = one.to.channel is Channel.ABORT and one.sender != first
        return [] if lost or isinstance(body_of(one.payload), Contribution) else [one]

    network.tamper = tamper
    _, request = begin(actors, network)
    network.advance(network.now_ms + 60_001)
    if restarted:
        network.restart(actors.trainer_identity.id)
    until_the_end(network)
    assert set(queried_after_abort(actors, network)) == set(actors.computes[1:])
    assert len(failures(network)) == 1
    assert trainer_of(actors, network).phase(request.round_id) == "returned"
    assert trainer_of(actors, network).ledger.spent().mu == 0


def test_a_node_that_has_released_is_not_queried_forever() -> None:
    actors, network = with_account()
    odd, trainer = actors.computes[2], actors.trainer_identity.id
    network.tamper = losing(Answer, Abort, to=odd)
    queried: list[bytes] = []

    def lose_partials_at_first(one):
        if isinstance(body_of(one.payload), Query) and one.sender == trainer and failures(network):
            queried.append(one.to.id)
        lost = kind_of(one) is Sealed and one.sender in actors.computes
        odd_is_cut_off = one.to.id == odd and kind_of(one) is Answer
        return [] if odd_is_cut_off or (lost and not failures(network)) else [one]

    network.tamper = lose_partials_at_first
    begin(actors, network)
    until_the_end(network)
    after = [query for query in queried if query in actors.computes[:2]]
    assert after.count(actors.computes[0]) <= 3
    assert not network.actors[trainer].dropped, "a partial sum that is too late is no mistake of the node's"
    assert trainer_of(actors, network).ledger.spent().mu == MU


# Reported when its cost is known


def test_the_failure_is_reported_with_the_last_abort_and_the_returned_charge() -> None:
    actors, network, round_id = collecting()
    for node in range(3):
        assert failures(network) == []
        network.handle(actors.trainer_identity.id, Received(*abort_of(actors, network, node)))
    aborted = "compute-0 aborted the round: 1 client contributed, 3 were needed (too-few)"
    reason = f"{aborted}; its charge came back to the account"
    quorum = Quorum(("compute-0", "compute-1", "compute-2"), p=2)
    assert failures(network) == [RoundFailed(round_id, reason, 1, 3, quorum=quorum)]
    network.advance(network.now_ms + 2 * SETTLE_MS)
    assert len(failures(network)) == 1


def test_silent_nodes_hold_the_failure_up_for_some_seconds_and_the_charge_until_they_speak() -> None:
    actors, network, round_id = collecting()
    trainer = actors.trainer_identity.id
    network.handle(trainer, Received(*abort_of(actors, network, 0)))
    assert trainer_of(actors, network).is_settling(network.now_ms)
    network.advance(network.now_ms + SETTLE_MS - 1)
    assert failures(network) == []
    network.advance(network.now_ms + 1)
    (failure,) = failures(network)
    assert failure.reason == (
        "compute-0 aborted the round: 1 client contributed, 3 were needed (too-few); until compute-1, compute-2 have "
        "confirmed that they released nothing, the account and the clients keep the charge: `dca trainer FILE "
        "--resume` asks again"
    )
    assert not trainer_of(actors, network).is_settling(network.now_ms)
    for node in (1, 2):
        network.handle(trainer, Received(*abort_of(actors, network, node)))
    assert network.reported(ChargeReturned, trainer) == [ChargeReturned(round_id)]
    assert len(failures(network)) == 1, "it is reported once"
    assert trainer_of(actors, network).ledger.spent().mu == 0


def with_a_partial_sum(actors: TestFederation, network: Network, round_id: bytes) -> None:
    """The first node releases."""
    opened = trainer_of(actors, network)._rounds[round_id].opened
    body = PartialSum(round_id, opened.hash, bytes(32), 4, (bytes(32),) * 3, bytes(64), bytes(8))
    identity = actors.compute_identities[0]
    payload = sealed_by(actors, identity, body, opened)
    network.handle(actors.trainer_identity.id, Received(identity.id, payload))


@pytest.mark.parametrize("released_first", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_node_that_has_released_settles_that_the_charge_stays(released_first: bool, restarted: bool) -> None:
    """Also against the aborts of all nodes, of which one then lies."""
    actors, network, round_id = collecting()
    trainer = actors.trainer_identity.id
    if released_first:
        with_a_partial_sum(actors, network, round_id)
    network.handle(trainer, Received(*abort_of(actors, network, 1)))
    assert len(failures(network)) == released_first
    if not released_first:
        with_a_partial_sum(actors, network, round_id)
    (failure,) = failures(network)
    assert failure.reason.endswith(
        "; a Compute node has released its part, so the account and the clients keep the charge"
    )
    assert (failure.contributors, failure.needed) == (None, None), "with figures, nothing was released"
    if restarted:
        network.restart(trainer)
    assert trainer_of(actors, network).unfinished(network.now_ms) == set()
    for node in range(3):
        network.handle(trainer, Received(*abort_of(actors, network, node)))
    with_a_partial_sum(actors, network, round_id)
    until_the_end(network, 24 * 2)
    assert sent(network, Query, sender=trainer) == []
    assert set(failures(network)) == {failure}, "each start reports it again, in the same text"
    assert trainer_of(actors, network).ledger.spent().mu == MU
    assert not network.actors[trainer].dropped


# However late


def aborted_by_one() -> tuple[TestFederation, Network, bytes, int]:
    """A round in which no share comes and all aborts but the first are lost; with its id and its close."""
    actors, network = with_account()
    first = actors.computes[0]

    def tamper(one: Envelope) -> list[Envelope]:
        body = body_of(one.payload)
        return [] if isinstance(body, Contribution) or (isinstance(body, Abort) and one.sender != first) else [one]

    network.tamper = tamper
    _, request = begin(actors, network)
    network.advance(network.now_ms + 60_001)
    assert trainer_of(actors, network).phase(request.round_id) == "failed"
    return actors, network, request.round_id, body_of(sent(network, Announcement)[0].payload).commit_by_ms


@pytest.mark.parametrize("restarted", [False, True])
def test_nodes_are_queried_ever_more_rarely_until_they_forget(restarted: bool) -> None:
    actors, network, round_id, close_ms = aborted_by_one()
    network.advance(close_ms + 3 * DAY_MS)
    queries = Counter(queried_after_abort(actors, network))
    assert queries.keys() == set(actors.computes[1:])
    assert max(queries.values()) <= 20
    assert network.reported(ChargeReturned, actors.trainer_identity.id) == []
    network.tamper = lambda one: [one]
    if restarted:
        network.restart(actors.trainer_identity.id)
        network.deliver()
        assert trainer_of(actors, network).phase(round_id) == "returned", "at once"
        assert len(failures(network)) == 2, "reported again, now with its charge"
        assert failures(network)[1].reason.endswith("its charge came back to the account")
    network.advance(close_ms + 7 * DAY_MS - 1)
    assert network.reported(ChargeReturned, actors.trainer_identity.id) == [ChargeReturned(round_id)]
    assert trainer_of(actors, network).ledger.spent().mu == 0


def test_nodes_that_have_forgotten_get_no_more_queries() -> None:
    actors, network, round_id, close_ms = aborted_by_one()
    network.advance(close_ms + 7 * DAY_MS - 1)
    before = len(sent(network, Query, sender=actors.trainer_identity.id))
    assert trainer_of(actors, network).unfinished(network.now_ms) == set(), "this process has reported it"
    network.restart(actors.trainer_identity.id)
    assert len(sent(network, Query, sender=actors.trainer_identity.id)) == before + 2
    assert trainer_of(actors, network).unfinished(network.now_ms) == {round_id}
    assert trainer_of(actors, network).unfinished(network.now_ms + 1) == set()
    network.advance(close_ms + 8 * DAY_MS)
    assert trainer_of(actors, network).phase(round_id) == "new"
    assert len(sent(network, Query, sender=actors.trainer_identity.id)) == before + 2
    assert trainer_of(actors, network).ledger.spent().mu == MU


def test_a_failure_is_reported_at_the_latest_when_its_round_is_forgotten() -> None:
    """A trainer that starts a moment before the retention ends does not keep its caller waiting for ever."""
    actors, network, round_id, close_ms = aborted_by_one()
    network.advance(close_ms + 7 * DAY_MS - 100)
    network.down.update(actors.computes)
    network.restart(actors.trainer_identity.id)
    assert trainer_of(actors, network).unfinished(network.now_ms) == {round_id}
    before = len(network.reported(RoundFailed))
    network.advance(close_ms + 8 * DAY_MS)
    reasons = [fact.reason for fact in network.reported(RoundFailed)[before:]]
    assert len(reasons) == 1
    assert reasons[0].endswith("the account and the clients keep the charge")


def test_a_trainer_that_returns_after_all_nodes_forgot_does_not_advise_to_query_them() -> None:
    actors, network, _, close_ms = aborted_by_one()
    network.crash(actors.trainer_identity.id)
    before = len(failures(network))
    network.now_ms = close_ms + 7 * DAY_MS
    network.restart(actors.trainer_identity.id)
    (failure,) = failures(network)[before:]
    assert "keep the charge" in failure.reason
    assert "--resume" not in failure.reason


def test_a_node_that_missed_the_end_answers_so_and_is_queried_again() -> None:
    """Queried before its own deadline, it is still ready."""
    actors, network = with_account()
    late = actors.computes[2]
    network.tamper = losing(Contribution, Answer, FrozenList)
    begin(actors, network)
    network.handle(actors.trainer_identity.id, Received(*abort_of(actors, network, 0)))
    network.advance(network.now_ms + SETTLE_MS)
    assert len(sent(network, Progress, sender=late)) > 1
    assert not network.actors[actors.trainer_identity.id].dropped
    until_the_end(network)
    assert len(sent(network, Query, to=late)) >= 2
    assert trainer_of(actors, network).ledger.spent().mu == 0


def test_a_budget_refusal_names_the_charges_that_may_be_returned() -> None:
    actors, network, *_ = aborted_by_one()
    actors.account = BudgetLimit(epsilon=1.2, delta=1e-6)
    network.restart(actors.trainer_identity.id)
    with pytest.raises(
        BudgetError, match="`dca trainer FILE --resume` may bring back the charge of 1 round that failed"
    ):
        trainer_of(actors, network).check_request(actors.request(), network.now_ms)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_a_lasting_refusal_is_named_whichever_abort_comes_first(order: tuple[int, ...]) -> None:
    """Node 0 refuses the round's terms. The others abort because of a newer federation file, at the same moment."""
    actors, network, _ = collecting()
    refusal = {"reason": "clients", "detail": "needs n_min >= 5; the round has n_min = 3"}
    other = {"reason": "federation", "detail": "federation file 2 lacks a member of the round"}
    for node in order:
        sender, abort = abort_of(actors, network, node, **(other if node else refusal))
        network.handle(actors.trainer_identity.id, Received(sender, abort))
    until_the_end(network)
    (failed,) = failures(network)
    assert failed.refused
    assert failed.reason.startswith("compute-0 aborted the round: needs n_min >= 5; ")


class Strict(TestFederation):
    """A federation whose first five clients accept no round, and the others any."""

    def client(self, index: int, records: Iterable[tuple[str, bytes, bytes]] = ()) -> Client:
        self.policy = msgspec.structs.replace(EASY, epsilon_per_round_max=1e-3) if index < 5 else EASY
        return super().client(index, records)


@pytest.mark.parametrize(("stated", "is_over"), [(12, True), (9, False)])
def test_clients_that_decline_for_good_end_a_request_only_if_those_that_there_may_be_are_too_few(
    stated: int, is_over: bool
) -> None:
    """Seven of twelve clients contribute, and more than those seven are needed.

    Where more answer than the trainer stated, there may be still more, up to n_max; another round may have enough.
    """
    network, _ = begin(Strict(12, 2), clients=stated, tolerate=0)
    until_the_end(network)
    (failed,) = failures(network)
    assert (failed.contributors, failed.needed, failed.declined) == (7, stated, is_over)
