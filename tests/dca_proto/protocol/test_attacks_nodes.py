"""Attacks by a Compute node that was restored from an old copy: what it can still do, and until when."""

from __future__ import annotations

import numpy as np
import pytest
from round_helpers import (
    announced,
    begin,
    copy_of,
    exact_actors,
    exact_sum,
    hand_over,
    losing,
    passing,
    restore,
    restored_client,
    results,
    sealed_kind,
    sent,
    unsealed,
    until_the_end,
)

from dca_proto.crypto.fixedpoint import ring_from_bytes
from dca_proto.protocol.announcement import open_epoch_key
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Declined, Dropped, LedgerReused, NodeAborted, Released
from dca_proto.protocol.trainer.unannounced import WaitingRequests
from dca_proto.protocol.wire.messages import Close, Contribution, PartialSum, Signed
from dca_proto.testing import Network, StoreContents, TestFederation


def collecting_copies(actors: TestFederation, network: Network, nodes: tuple[bytes, ...]) -> dict[bytes, StoreContents]:
    """Copies of nodes that hold all contributions but the last client's; then the round goes on to its release."""
    network.tamper = losing(Contribution, Close, sender=None)
    begin(actors, network, tolerate=1)
    network.tamper = losing(Close)
    for client in actors.clients[:3]:
        hand_over(network, sent(network, Contribution, sender=client)[0])
    copies = {node: copy_of(network, node) for node in nodes}
    hand_over(network, sent(network, Contribution, sender=actors.clients[3])[0])
    network.tamper = passing
    network.advance(network.now_ms + 20_000)
    assert len(network.reported(Released)) == len(actors.computes)
    return copies


def test_attack_39_one_restored_node_finds_no_peer_for_a_second_set() -> None:
    """It freezes the smaller set of its copy; its peers have its first list and are done. It aborts, which can undo
    nothing: there is one sum, and a charge comes back only against all M aborts."""
    actors = exact_actors(4, 3)
    network = actors.network()
    opened_by = actors.computes
    network.deliver()
    copies = collecting_copies(actors, network, opened_by)
    old = announced(network, actors).holder(actors.clients[3]).id
    restore(network, old, copies[old])
    until_the_end(network)
    assert network.reported(NodeAborted, old)[0].reason == "peer-silent"
    assert len(network.reported(Released)) == 3
    assert [result.value.tolist() for result in results(network)] == [[exact_sum(range(4))]]
    assert all(network.actors[client].ledger.spent().mu > 0 for client in actors.clients)


def test_attack_39_all_nodes_restored_within_the_round_release_twice() -> None:
    """The documented break: nobody is left who remembers. The two sums differ by one client's contribution, with its
    own small share of the noise and nothing more."""
    actors = exact_actors(4, 3)
    network = actors.network()
    copies = collecting_copies(actors, network, actors.computes)
    network.tamper = losing(Contribution)
    for node, copy in copies.items():
        network.stores[node] = dict(copy)
        network.crash(node)
    for node in actors.computes:
        network.restart(node)
    network.advance(network.now_ms + 100_000)
    partials: dict[int, list[PartialSum]] = {4: [], 3: []}
    for payload in dict.fromkeys(one.payload for one in network.sent):
        if sealed_kind(network, actors, payload) is PartialSum:
            partial = unsealed(network, actors, payload)
            partials[partial.count].append(partial)
    assert [len(found) for found in partials.values()] == [3, 3], "three nodes, two releases each"
    totals = [
        np.sum([ring_from_bytes(partial.vector, 1) for partial in found], axis=0, dtype=np.uint64)
        for found in partials.values()
    ]
    scale = 2 ** announced(network, actors).body.fraction_bits
    assert int((totals[0] - totals[1])[0]) / scale == 4 / 16, "the last client's own value"
    assert len(results(network)) == 1, "an honest trainer takes the first"


def test_attack_39_after_the_rounds_deadline_an_old_copy_releases_nothing() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    copies = collecting_copies(actors, network, actors.computes)
    network.advance(announced(network, actors).body.commit_by_ms)
    network.tamper = lambda one: []
    for node, copy in copies.items():
        restore(network, node, copy)
    network.tamper = passing
    for one in sent(network, Contribution):
        network.handle(one.to.id, Received(one.sender, one.payload))
    until_the_end(network)
    assert len(network.reported(Released)) == 3
    assert len(network.reported(NodeAborted)) == 3


def test_a_node_that_starts_between_close_by_and_commit_by_takes_no_contribution_any_more() -> None:
    """It freezes with its start, whenever its timers would come."""
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Contribution)
    begin(actors, network)
    one = sent(network, Contribution)[0]
    network.now_ms = announced(network, actors).body.close_by_ms
    network.restart(one.to.id)
    network.handle(one.to.id, Received(one.sender, one.payload))
    current = network.actors[one.to.id]._rounds[one.round_id]
    assert (current.phase, current.kept, current.stored.entries) == ("frozen", {}, b"")


def take_any_key(waiting: WaitingRequests, sender: bytes, frame: Signed, now_ms: int) -> None:
    """As a hostile trainer does."""
    waiting._keys[sender] = (open_epoch_key(frame, waiting._federation), frame)


def test_attack_39_clients_refuse_a_lower_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old copy, with the clocks of its time, offers its old key: whoever saw a newer one refuses the announcement
    that names it. So what an old copy could still open ends with its epoch."""
    monkeypatch.setattr(WaitingRequests, "note", take_any_key)
    actors = TestFederation(6, 3)
    network = actors.network()
    network.deliver()
    node, trainer, then_ms = actors.computes[0], actors.trainer_identity.id, network.now_ms
    copies = {actor: copy_of(network, actor) for actor in (node, trainer)}
    network.down = set(actors.clients[3:])
    network.advance(then_ms + 2 * 24 * 3600 * 1000)
    begin(actors, network, clients=3, tolerate=0)
    network.down = set()
    network.now_ms = then_ms
    for actor, copy in copies.items():
        restore(network, actor, copy)
    network.deliver()
    before = len(network.facts)
    begin(actors, network, clients=3, tolerate=0)
    older, *newer = [key.epoch for key in announced(network, actors).epochs]
    assert {older + 2} == set(newer)
    dropped = {(who, fact.code) for who, fact in network.facts[before:] if isinstance(fact, Dropped)}
    declined = {(who, fact.reason) for who, fact in network.facts[before:] if isinstance(fact, Declined)}
    assert {(node, "epoch") for node in actors.computes[1:]} <= dropped
    assert {(client, "epoch") for client in actors.clients[:3]} <= declined
    assert len(results(network)) == 1


def test_attack_39_a_restored_node_forgets_charge_numbers_and_the_others_do_not() -> None:
    actors, network, victim = restored_client(rounds=1, forgotten=1)
    node = actors.computes[0]
    fresh = {key: value for key, value in copy_of(network, node).items() if key[0] != "charges"}
    restore(network, node, fresh)
    begin(actors, network)
    until_the_end(network)
    reporting = {fact.compute for fact in network.reported(LedgerReused, victim)}
    assert reporting
    assert node not in reporting
    assert results(network)[-1].value.tolist() == [exact_sum(range(1, 4))]
