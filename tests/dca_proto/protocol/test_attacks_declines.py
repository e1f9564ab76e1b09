"""Attack 55: a client that contributes and declines. It counts once, and no round closes over honest stragglers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from reporters import Reporters
from round_helpers import (
    announced,
    exact_actors,
    exact_sum,
    forged,
    hand_over,
    kind_of,
    losing,
    passing,
    refused,
    sealed_by,
    the_sum,
)

from dca_proto.crypto.sealing import Identity
from dca_proto.privacy.mechanism import GRID_LAPLACE
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Closed, RoundCompleted
from dca_proto.protocol.wire.messages import Contribution, Decline, Declines
from dca_proto.testing import Envelope, Network, TestFederation


def decline_of(actors: TestFederation, network: Network, client: int) -> Received:
    """Return a valid decline of the newest round by a client."""
    opened = announced(network, actors)
    body = Decline(opened.body.round_id, opened.hash, actors.certificate(client), "budget", "none left", "more")
    sealed = sealed_by(actors, actors.client_identities[client], body, opened)
    return Received(actors.clients[client], sealed)


class WithStragglers:
    """Six clients, all needed. Clients 0 and 1 contribute and decline; client 5 contributes only with `arrive`."""

    def __init__(self, *, declines_first: bool = False, **changes: Any) -> None:
        self.actors = exact_actors(6, 3)
        self.network = self.actors.network()
        self.trainer = self.actors.trainer_identity.id
        self.late: list[Envelope] = []
        self.network.tamper = self._hold
        self.network.deliver()
        request = self.actors.request(**{"tolerate": 0, "collect_s": 600, **changes})
        self.round_id = request.round_id
        if declines_first:
            held: list[Envelope] = []
            self.network.tamper = lambda one: () if is_contribution(one) and not held.append(one) else (one,)
            self.network.command(self.trainer, request)
            self.network.deliver()
            self.decline()
            self.network.advance(self.network.now_ms + 200)
            self.network.tamper = self._hold
            for one in held:
                self.network._queue.extend(self._hold(one))
            self.network.deliver()
        else:
            self.network.command(self.trainer, request)
            self.network.advance(self.network.now_ms + 60)
            self.decline()
        self.network.advance(self.network.now_ms + 2_000)

    def decline(self) -> None:
        for client in (0, 1):
            self.network.handle(self.trainer, decline_of(self.actors, self.network, client))

    def _hold(self, one: Envelope) -> tuple[Envelope, ...]:
        if is_contribution(one) and one.sender == self.actors.clients[5]:
            self.late.append(one)
            return ()
        return (one,)

    def arrive(self) -> None:
        self.network.tamper = passing
        hand_over(self.network, self.late[0])
        self.network.advance(self.network.now_ms + 200)


def is_contribution(one: Envelope) -> bool:
    return kind_of(one) is Contribution


@pytest.mark.parametrize("declines_first", [False, True])
def test_attack_55_a_client_that_contributes_and_declines_counts_once(declines_first: bool) -> None:
    """Otherwise five contributions would be all that are expected: the round would close over client 5, and abort."""
    swarm = WithStragglers(declines_first=declines_first)
    assert swarm.network.reported(Closed) == []
    trainer = swarm.network.actors[swarm.trainer]._rounds[swarm.round_id]
    assert (trainer.arrivals.total, trainer.expected) == (5, 6)
    swarm.arrive()
    assert [fact.why for fact in swarm.network.reported(Closed)] == ["all"]
    assert the_sum(swarm.network).tolist() == [exact_sum(range(6))], "their contributions stay in the sum"


def test_attack_55_nodes_and_trainer_that_start_again_count_everybody_once() -> None:
    """They forget who declined. The trainer tells a node again; clients decline again."""
    swarm = WithStragglers()
    for node in swarm.actors.computes:
        swarm.network.restart(node)
        swarm.network.advance(swarm.network.now_ms + 2_000)
    assert swarm.network.reported(Closed) == []
    current = swarm.network.actors[swarm.trainer]._rounds[swarm.round_id]
    assert (current.arrivals.total, current.expected) == (5, 6)
    swarm.network.restart(swarm.trainer)
    swarm.network.advance(swarm.network.now_ms + 2_000)
    assert swarm.network.reported(Closed) == [], "it expects all six, and hears of five"
    swarm.decline()
    swarm.network.advance(swarm.network.now_ms + 2_000)
    assert swarm.network.reported(Closed) == []
    swarm.arrive()
    assert [fact.why for fact in swarm.network.reported(Closed)] == ["all"]


def test_attack_55_a_node_that_has_forgotten_who_declined_confirms_no_decline_any_more() -> None:
    """It confirms a decline, starts again, and takes a contribution of that client before it is told again."""
    swarm = WithStragglers(declines_first=True)
    arrivals = swarm.network.actors[swarm.trainer]._rounds[swarm.round_id].arrivals
    node = swarm.actors.computes[0]
    arrivals.counts[node], arrivals.declined[node] = 1, (1, 0)
    assert arrivals.absent(node) == 1
    assert not arrivals.note(node, 0, 0, (9, 0)), "an old copy: a count never shrinks"
    assert not arrivals.note(node, 1, 0, (0, 0))
    assert arrivals.note(node, 2, 0, (0, 0))
    assert (arrivals.counts[node], arrivals.absent(node)) == (2, 0)
    assert arrivals.note(node, 2, 0, (1, 1)), "it was told again"
    assert arrivals.absent(node) == 0


def test_attack_55_declines_that_were_lost_are_told_again() -> None:
    """As long as no node knows of a decline, the trainer expects the client: the round stays open."""
    actors = OneDeclines(4, 3)
    network = actors.network()
    network.tamper = losing(Declines)
    network.command(actors.trainer_identity.id, actors.request(tolerate=0, collect_s=600))
    network.advance(network.now_ms + 1_000)
    assert network.reported(Closed) == []
    network.tamper = passing
    network.advance(network.now_ms + 5_000)
    assert [fact.why for fact in network.reported(Closed)] == ["all"], "n_min cannot be reached, and all is quiet"


class OneDeclines(TestFederation):
    """Client 0 declines every round."""

    def client(self, index: int, records: Any = ()) -> Client:
        usual, self.policy = self.policy, msgspec.structs.replace(self.policy, clients_min=100 if index == 0 else 1)
        made = super().client(index, records)
        self.policy = usual
        return made


def test_attack_55_a_node_takes_the_trainers_declines_only_and_only_of_clients_that_it_holds() -> None:
    swarm = WithStragglers()
    actors, network, trainer = swarm.actors, swarm.network, swarm.actors.trainer_identity
    opened = announced(network, actors)
    node = opened.holder(actors.clients[0]).id
    own = sorted(client for client in actors.clients if opened.holder(client).id == node)
    made_up = next(one for number in range(99) if opened.holder(one := bytes((number,)) * 16).id != node)
    peer = next(one for one in actors.compute_identities if one.id != node)

    def told(clients: list[bytes], ah: bytes = opened.hash, signer: Identity = trainer) -> bytes:
        return forged(actors, signer, Declines(opened.body.round_id, ah, b"".join(clients)))

    refused(network, node, peer.id, told(own, signer=peer), "sender")
    refused(network, node, trainer.id, told(own, ah=bytes(32)), "sender")
    refused(network, node, trainer.id, told([own[0]] * 9), "ids")
    refused(network, node, trainer.id, told(sorted([*own, made_up])), "ids")
    refused(network, node, trainer.id, told([*own, b"x" * 7]), "ids")


def test_attack_55_without_compute_nodes_a_client_that_declines_and_reports_counts_once() -> None:
    """The round ends when four have answered, not when four answers have come."""
    actors = Reporters(GRID_LAPLACE, [0.5] * 4)
    network = actors.network()
    network.deliver()
    straggler = actors.clients[3]
    held: list[Envelope] = []

    def hold(one: Envelope) -> tuple[Envelope, ...]:
        if one.sender == straggler:
            held.append(one)
            return ()
        return (one,)

    network.tamper = hold
    trainer = actors.trainer_identity.id
    network.command(trainer, actors.request(collect_s=600))
    network.deliver()
    for client in (0, 1, 2, 0):
        network.handle(trainer, decline_of(actors, network, client))
    network.advance(network.now_ms + 10_000)
    assert network.reported(RoundCompleted) == []
    network.tamper = passing
    hand_over(network, held[0])
    (completed,) = network.reported(RoundCompleted)
    assert completed.aggregate.contributors == 4
