"""Attack 54: rounds that are refused, ended or nearly free, in great number and size. Memory and disk stay bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from floods import COLUMNS, FLOOD, WIDE, Flooded, collecting, flood, flood_ids, invited_flood, recounted, totals
from round_helpers import (
    EASY,
    announced,
    begin,
    exact_actors,
    forged,
    kind_of,
    losing,
    passing,
    refused,
    results,
    sends,
    until_the_end,
)

import dca_proto
from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.protocol.client.round import ANNOUNCEMENTS as OF_CLIENT
from dca_proto.protocol.compute.round import ANNOUNCEMENTS, FORGET
from dca_proto.protocol.effects import Effect, Send, SetTimer
from dca_proto.protocol.events import Received, Timer, TimerFired
from dca_proto.protocol.facts import Acknowledged, ChargeReturned, Contributed, Declined, Dropped, NodeAborted
from dca_proto.protocol.ledger import Charge, Ledger
from dca_proto.protocol.params import MIB, MU_MIN, ROUNDS_MAX, Limits, Room
from dca_proto.protocol.policy import BudgetLimit, Floors, Policy
from dca_proto.protocol.wire.codec import decode_frame, encode, sign
from dca_proto.protocol.wire.messages import (
    Abort,
    Announcement,
    Answer,
    Close,
    Contribution,
    ListHeader,
    Receipt,
)
from dca_proto.testing import Envelope, TestFederation

# Compute nodes


def test_attack_54_a_refused_round_is_kept_as_its_hash_and_answered_alike() -> None:
    """248 announcements below the node's floors, 20 KB each: less than 3 KB of each remains, 1 KB on disk."""
    actors = exact_actors(4, 3, floors=Floors(clients_min=3, honest_min=1))
    network, like = collecting(actors)
    node, trainer = actors.computes[0], actors.trainer_identity.id
    few = msgspec.structs.replace(like.kind, clients=2, tolerate=0)
    payloads = invited_flood(actors, like, kind=few, parameters=WIDE)
    flooded = Flooded(network, node, trainer, payloads)
    assert Counter(fact.reason for fact in flooded.reported(NodeAborted)) == {"clients": FLOOD}
    assert flooded.gained[-1] < 3 * FLOOD / 1024, flooded.gained
    assert flooded.stored < FLOOD / 1024
    assert [key for table, key in network.stores[node] if table == ANNOUNCEMENTS] == [like.round_id]
    answers = []
    for restart in (False, True):
        if restart:
            network.restart(node)
        network.now_ms += 1_000
        effects = network.actors[node].handle(Received(trainer, payloads[0]), network.now_ms)
        answers.append([effect.payload for effect in sends(effects)])
    assert answers[0] == answers[1]
    assert len(answers[0]) == 1
    assert totals(network.actors[node]._room) == recounted(network, node)


def test_attack_54_open_rounds_take_a_quarter_of_the_room_and_further_ones_are_aborted_in_words() -> None:
    """248 valid announcements of one trainer, 20 KB each: 1 MiB of them stays open, and memory is flat from there."""
    actors = exact_actors(4, 3)
    network, like = collecting(actors)
    node, trainer = actors.computes[0], actors.trainer_identity.id
    limits = Limits(node_announcements=Room("announcements of open rounds", 4 * MIB, MIB))
    network.actors[node]._limits = limits
    flooded = Flooded(network, node, trainer, invited_flood(actors, like, parameters=WIDE))
    aborts = flooded.reported(NodeAborted)
    assert {fact.reason for fact in aborts} == {"room"}
    words = "found announcements of open rounds: 1.1 MiB with this one; needs at most 1.0 MiB for one trainer"
    assert {fact.detail for fact in aborts} == {words}
    open_rounds = FLOOD - len(aborts)
    assert 40 < open_rounds < 60
    first, last = flooded.gained
    assert first < 8
    assert last - first < 0.5, flooded.gained
    assert flooded.stored < 1.5
    assert totals(network.actors[node]._room) == recounted(network, node)
    network.restart(node)
    assert totals(network.actors[node]._room) == recounted(network, node)


def test_attack_54_a_client_of_a_round_without_room_gets_the_aborts_for_its_contribution() -> None:
    """The broadcast aborts came before the client had the round. It stops sending, and its charge comes back."""
    actors = exact_actors(4, 3)
    network = actors.network()
    network.deliver()
    for node in actors.computes:
        network.actors[node]._limits = Limits(node_announcements=Room("announcements of open rounds", 100, MIB))
    aborts: list[Envelope] = []
    network.tamper = lambda one: () if kind_of(one) is Abort and not one.to.id and not aborts.append(one) else (one,)
    begin(actors, network)
    assert len(aborts) == 3
    assert {fact.reason for fact in network.reported(NodeAborted)} == {"room"}
    network.advance(network.now_ms + 130_000)
    assert len(network.reported(ChargeReturned)) >= 4


def test_attack_54_another_trainers_rounds_have_room_beside_a_flood() -> None:
    actors = exact_actors(4, 3)
    network, like = collecting(actors)
    node, trainer = network.actors[actors.computes[0]], actors.trainer_identity.id
    limits = node._limits = Limits(node_open=Room("open rounds", 8))
    Flooded(network, node.id, trainer, flood(actors, like, 20))
    refusal = node._room.refusal(limits, trainer, 1)
    assert refusal is not None
    assert refusal.expected == "at most 2 for one trainer"
    assert node._room.refusal(limits, bytes(16), 1) is None


def test_attack_54_a_record_without_room_is_no_record_and_nothing_is_signed() -> None:
    """Beyond the number of remembered rounds, an announcement is dropped: an abort has to be kept."""
    actors = exact_actors(4, 3)
    network, like = collecting(actors)
    node, trainer = actors.computes[0], actors.trainer_identity.id
    limits = Limits(node_rounds=Room("rounds", 40), node_open=Room("open rounds", 16))
    network.actors[node]._limits = limits
    flooded = Flooded(network, node, trainer, flood(actors, like, 100))
    assert len(network.actors[node]._rounds) == 10
    assert len(flooded.reported(NodeAborted)) == 6
    dropped = {fact.detail for fact in flooded.reported(Dropped)}
    assert dropped == {"room: found rounds: 11 with this one, expected at most 10 for one trainer"}
    assert flooded.sent <= 10


def test_attack_54_records_make_room_once_their_epoch_key_is_deleted_and_not_before() -> None:
    """Until then, a node without the record would sign a second, fresh abort (§4.8), or take part again."""
    actors = exact_actors(4, 3)
    network, like = collecting(actors)
    node, trainer = actors.computes[0], actors.trainer_identity.id
    limits = Limits(node_rounds=Room("rounds", 40), node_open=Room("open rounds", 4))
    network.actors[node]._limits = limits
    payloads = flood(actors, like, 30)
    for payload in payloads:
        network.handle(node, Received(trainer, payload))
    assert len(network.actors[node]._rounds) == 10
    network.tamper = passing
    epoch = next(iter(network.actors[node]._keys.epochs))
    timing = network.actors[node]._timing
    network.advance((epoch + 1) * timing.epoch_ms + timing.epoch_grace_ms - 1)
    assert len(network.actors[node]._rounds) == 10
    network.advance(network.now_ms + 2)
    assert epoch not in network.actors[node]._keys.epochs
    assert len(network.actors[node]._rounds) == 5, "half of the room is free again"
    for payload in payloads:
        effects = network.actors[node].handle(Received(trainer, payload), network.now_ms)
        assert not sends(effects) or len(effects) == 1, "the stored abort, or nothing"
    assert len(network.actors[node]._rounds) == 5


def test_attack_54_an_honest_batch_frees_its_ids_at_its_end_and_still_answers_everybody() -> None:
    """Its root, hash and count remain; the list of contributions as well, until an hour after the round."""
    actors = exact_actors(6, 3)
    network = actors.network()
    network.tamper = losing(Receipt)
    _, request = begin(actors, network, invited=tuple(sorted(actors.clients[:5])), clients=0)
    assert len(results(network)) == 1
    for node in actors.computes:
        current = network.actors[node]._rounds[request.round_id]
        assert (current.is_loaded, current.invited, current.kept, current.lists) == (False, None, {}, {})
        assert ANNOUNCEMENTS not in {table for table, _ in network.stores[node]}
        assert network.actors[node]._room.announcements.total == 0
    for node in actors.computes:
        network.restart(node)
    network.tamper = passing
    network.advance(network.now_ms + 20_000)
    acknowledged = {reporter for reporter, fact in network.facts if isinstance(fact, Acknowledged)}
    assert acknowledged == set(actors.clients[:5]), "a receipt comes after the release as well"
    until_the_end(network, 3)
    for node in actors.computes:
        assert network.actors[node]._room.contributions.total == 0
        assert network.actors[node]._rounds[request.round_id].stored.entries == b""


def test_attack_54_contributions_have_room_and_beyond_it_get_no_receipt() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.deliver()
    for node in actors.computes:
        network.actors[node]._limits = Limits(node_contributions=Room("contributions, lists and sums", 4 * 100))
    begin(actors, network)
    kept = {node: network.actors[node]._room.contributions.total for node in actors.computes}
    assert max(kept.values()) <= 100
    details = [fact.detail for fact in network.reported(Dropped) if fact.code == "room"]
    assert details
    assert all("expected at most 100 for one trainer" in detail for detail in details)


def test_attack_54_an_abort_of_any_size_is_no_record() -> None:
    """Nodes keep their peers' aborts for clients. Evidence is two headers for each node at most."""
    actors = exact_actors(4, 3)
    network, like = collecting(actors)
    node, peer = actors.computes[0], actors.compute_identities[1]
    opened = announced(network, actors)
    header = sign(peer, actors.federation.id, ListHeader(like.round_id, opened.hash, bytes(32), 0))
    padded = msgspec.structs.replace(header, body=bytes(20_000))
    head = (like.round_id, opened.hash, peer.id, "equivocation", "x" * 500, 0, 0)
    refused(network, node, peer.id, forged(actors, peer, Abort(*head, (padded,))), "size")
    network.handle(node, Received(peer.id, forged(actors, peer, Abort(*head, (header,) * 6))))
    assert network.actors[node].phase(like.round_id) == "aborted"
    assert totals(network.actors[node]._room) == recounted(network, node)


def test_attack_54_a_record_outlives_its_epoch_key_however_old_the_round_claims_to_be() -> None:
    """Otherwise each copy of the announcement would be one more fresh abort, and fill no room."""
    actors = exact_actors(4, 3)
    network, like = collecting(actors)
    node, trainer = network.actors[actors.computes[0]], actors.trainer_identity.id
    (payload,) = flood(actors, like, 1, close_by_ms=1, commit_by_ms=2)
    (round_id,) = flood_ids(1)
    network.handle(node.id, Received(trainer, payload))
    for _ in range(3):
        network.advance(network.now_ms + 3_600_000)
        assert node.phase(round_id) == "aborted"
        effects = node.handle(Received(trainer, payload), network.now_ms)
        assert not [one for one in sends(effects) if not one.to.id], "the stored abort, to the trainer alone"
    far = network.now_ms + 100 * node._timing.epoch_ms  # the clock was set ahead, and this timer fires first
    (again,) = [one for one in node.handle(TimerFired(Timer(FORGET, round_id)), far) if isinstance(one, SetTimer)]
    assert (node.phase(round_id), again.at_ms) == ("aborted", far + node._timing.again_ms)
    network.advance(network.now_ms + 3 * node._timing.epoch_ms)
    assert node.phase(round_id) == "new"


def test_attack_54_aborts_of_peers_have_room_in_a_record_and_answers_in_a_round() -> None:
    """A hostile node signs long aborts for each round of a hostile trainer, and answers full of objections."""
    actors = exact_actors(4, 3)
    network, like = collecting(actors)
    node, peer = network.actors[actors.computes[0]], actors.compute_identities[1]
    opened = announced(network, actors)
    head = (like.round_id, opened.hash)
    answer = forged(actors, peer, Answer(*head, peer.id, (bytes(32),) * 3, bytes(60)))
    open_round = node._rounds[like.round_id]
    node.handle(
        Received(actors.trainer_identity.id, forged(actors, actors.trainer_identity, Close(*head))), network.now_ms
    )
    node._limits = Limits(node_contributions=Room("contributions, lists and sums", 4 * 100))
    refused(network, node.id, peer.id, answer, "room")
    node._limits = Limits()
    node.handle(Received(peer.id, answer), network.now_ms)
    assert peer.id in open_round.answers
    assert totals(node._room) == recounted(network, node.id)
    node._abort(open_round, "test", "")
    node._limits = Limits(node_records=Room("records of ended rounds", 4 * 1_000))
    abort = Abort(*head, peer.id, "equivocation", "x" * 500, 0, 0, ())
    refused(network, node.id, peer.id, forged(actors, peer, abort), "room")
    assert open_round.stored.peer_aborts == ()


# Clients


def nearly_free(actors: TestFederation, like: Announcement, count: int = 300) -> list[bytes]:
    """Return announcements that cost as little as a round may."""
    epsilon = 2 * accounting.epsilon_of(MU_MIN, 1e-6)
    return flood(actors, like, count, mu=MU_MIN, epsilon=epsilon, delta=1e-6, parameters=WIDE, fraction_bits=8)


def test_attack_54_a_round_that_is_nearly_free_is_refused_everywhere_in_words() -> None:
    """By the trainer's own check, at nodes, and at clients: one check, before anything is charged or kept."""
    actors = exact_actors(4, 3)
    network, like = collecting(actors)
    with pytest.raises(UsageError, match=r"mu is 1e-09, expected at least 0\.0001"):
        actors.request(mu=1e-9, fraction_bits=0).draft(actors.mechanism, Limits())
    payloads = flood(actors, like, 4, mu=1e-9, fraction_bits=0)
    node = Flooded(network, actors.computes[0], actors.trainer_identity.id, payloads)
    client = Flooded(network, actors.clients[0], actors.trainer_identity.id, payloads)
    assert {fact.reason for fact in node.reported(NodeAborted)} == {"announcement"}
    (words,) = {fact.found for fact in client.reported(Declined)}
    assert words.startswith("mu is 1e-09, expected at least 0.0001: a round that costs less has more noise")
    assert not client.reported(Contributed)


def wide_actors() -> TestFederation:
    """Return a federation whose clients have all columns of the flood."""
    rows = [np.zeros((1, COLUMNS)) for _ in range(4)]
    return TestFederation(4, 3, rows=rows, columns=tuple(WIDE["columns"]), policy=EASY)


def test_attack_54_300_nearly_free_rounds_without_receipts_are_declined_beyond_the_room() -> None:
    """16 KB each, and 3 KB of contribution. Of a declined round, its hash and its decline remain."""
    actors = wide_actors()
    network, like = collecting(actors)
    client = actors.clients[0]
    room = Room("announcements", MIB, MIB)
    network.actors[client]._limits = Limits(client_announcements=room)
    flooded = Flooded(network, client, actors.trainer_identity.id, nearly_free(actors, like))
    taken, declined = flooded.reported(Contributed), flooded.reported(Declined)
    assert len(taken) + len(declined) == 300, declined[:1]
    assert 10 < len(taken) < 20, declined[0]
    assert {(fact.reason, fact.expected) for fact in declined} == {("room", "at most 0.3 MiB for one trainer")}
    first, last = flooded.gained
    assert last - first < 2, flooded.gained
    assert flooded.stored < 1.5
    assert len([key for table, key in network.stores[client] if table == OF_CLIENT]) == len(taken)


def test_attack_54_the_messages_of_open_rounds_have_a_limit_of_their_own() -> None:
    actors = wide_actors()
    network, like = collecting(actors)
    client = network.actors[actors.clients[0]]
    client._limits = Limits(client_messages=Room("messages without a receipt", 4 * 16_000))
    flooded = Flooded(network, client.id, actors.trainer_identity.id, nearly_free(actors, like, 20))
    assert 3 < len(flooded.reported(Contributed)) < 7
    assert {fact.expected for fact in flooded.reported(Declined)} == {"at most 16,000 for one trainer"}


def test_attack_54_300_nearly_free_rounds_with_receipts_give_way_and_keep_their_charges() -> None:
    """Every round is taken. The announcements of the oldest give way, then their records; no charge does."""
    actors = wide_actors()
    network, like = collecting(actors)
    client = network.actors[actors.clients[0]]
    few = {"client_announcements": Room("announcements", MIB, MIB), "client_kept": Room("rounds", 400)}
    client._limits = Limits(**few)

    def acknowledge(send: Send) -> Sequence[Effect]:
        if not isinstance(decode_frame(send.payload), Contribution):
            return ()
        outbound = client._rounds[send.round_id].stored.outbound
        receipt = encode(Receipt(send.round_id, outbound.contribution, outbound.receipt))
        return client.handle(Received(send.to.id, receipt), network.now_ms)

    flooded = Flooded(network, client.id, actors.trainer_identity.id, nearly_free(actors, like), acknowledge)
    assert len(flooded.reported(Contributed)) == 300
    first, last = flooded.gained
    assert last - first < 1, flooded.gained
    assert len(client._rounds) == 101, "a quarter of 400, and the one without a receipt"
    assert client._room.kept_announcements.total <= MIB // 4
    assert len(client.ledger.charges) == 300
    before = {name: used.total for name, used in vars(client._room).items()}
    network.tamper = losing(Contribution)
    network.restart(client.id)
    again = network.actors[client.id]
    assert {name: used.total for name, used in vars(again._room).items()} == before
    assert again.phase(flood_ids(1)[0]) == "new"
    (dropped,) = again.handle(Received(actors.trainer_identity.id, nearly_free(actors, like, 1)[0]), network.now_ms)
    assert dropped.fact.code == "replay"


def test_attack_54_the_number_of_rounds_in_a_period_is_limited_and_named() -> None:
    """At clients and in the account, by one check: charges cannot fill a ledger, whatever they cost."""
    assert (Policy().rounds_per_period_max, BudgetLimit().rounds_max) == (ROUNDS_MAX, ROUNDS_MAX)
    actors = exact_actors(4, 3, policy=msgspec.structs.replace(EASY, rounds_per_period_max=3))
    network = actors.network()
    for _ in range(3):
        begin(actors, network)
    assert len(results(network)) == 3
    begin(actors, network)
    declined = network.reported(Declined, actors.clients[0])
    assert [(fact.reason, fact.found, fact.expected) for fact in declined] == [
        ("rounds", "4 rounds with this one", "<= 3 in 365 days, whatever they cost")
    ]
    trainer = network.actors[actors.trainer_identity.id]
    trainer._account = BudgetLimit(epsilon=1000.0, rounds_max=4)
    trainer.check_request(actors.request(), network.now_ms)
    with pytest.raises(UsageError, match="found 5 rounds with this one; expected <= 4 in 365 days"):
        trainer.check_job([actors.request().cost] * 2, network.now_ms)


def test_an_account_counts_the_rounds_of_the_client_that_has_most() -> None:
    charges = [
        Charge(bytes((n,)) * 16, "sum", bytes(16), 0.1, 0.1, 1e-6, n, n, clients=c)
        for n, c in enumerate([(b"a",), (b"a", b"b"), (b"b",), (b"a",), ()], start=1)
    ]
    ledger = Ledger(charges)
    assert [ledger.rounds(), ledger.rounds(of=(b"b",)), ledger.rounds(3)] == [4, 3, 2]
    ledger.give_back(charges[3].round_id)
    assert ledger.rounds() == 3


def test_the_limits_on_rounds_stand_in_design() -> None:
    design = (Path(dca_proto.__file__).parent / "DESIGN.md").read_text()
    table = design.split("**State of rounds.**")[1].split("\n\n")[1]
    rooms = [value for value in msgspec.structs.astuple(Limits()) if isinstance(value, Room)]
    figures = [f"{room.most // MIB:,} MiB" if room.unit == MIB else f"{room.most:,}" for room in rooms]
    shown = [figure.replace("4,096 MiB", "4 GiB") for figure in figures]
    assert [figure for figure in [*shown, f"{ROUNDS_MAX:,}"] if figure not in table] == []
    assert f"at most {Limits().node_open.most_of_trainer:,} for one trainer" in design.replace("\n", " ")
