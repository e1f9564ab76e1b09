"""Messages that a broker may drop once they are of no use: a round's announcement to clients, and nothing else."""

from __future__ import annotations

import pytest
from round_helpers import begin, exact_actors, kind_of, refused, results, until_the_end

from dca_proto.protocol.effects import Send
from dca_proto.protocol.events import Received
from dca_proto.protocol.wire.messages import Announcement, Invitation
from dca_proto.testing import Envelope, Network, TestFederation


class Noting(Network):
    """Notes every message with its expiry."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Envelope, Send]] = []

    def _post(self, sender: bytes, send: Send) -> None:
        self.noted.append((Envelope(sender, send), send))
        super()._post(sender, send)


def whole_round(*, everybody: bool) -> tuple[TestFederation, Noting, int]:
    """A round over all clients, of which one was away, and its `commit_by`."""
    actors = exact_actors(clients=6)
    network = actors.network(Noting())
    network.deliver()
    network.crash(actors.clients[0])
    invited = {} if everybody else {"invited": tuple(sorted(actors.clients)), "clients": 0}
    network, request = begin(actors, network, tolerate=2, **invited)
    opened = network.actors[actors.trainer_identity.id]._rounds[request.round_id].opened  # type: ignore[attr-defined]
    until_the_end(network, hours=1)
    assert len(results(network)) == 1
    return actors, network, opened.body.commit_by_ms


@pytest.mark.parametrize("everybody", [True, False])
def test_announcements_to_clients_expire_with_the_round_and_nothing_else_does(everybody: bool) -> None:
    actors, network, commit_by_ms = whole_round(everybody=everybody)
    to_clients = (Announcement,) if everybody else (Invitation,)
    expiring = [(envelope, send) for envelope, send in network.noted if send.expires_ms is not None]
    assert {send.expires_ms for _, send in expiring} == {commit_by_ms}
    assert {envelope.sender for envelope, _ in expiring} == {actors.trainer_identity.id}
    assert {kind_of(envelope) for envelope, _ in expiring} == set(to_clients)
    assert not any(send.retain for _, send in expiring)
    computes = {compute.id for compute in actors.federation.computes}
    announced = [send for envelope, send in network.noted if kind_of(envelope) in to_clients]
    assert all((send.expires_ms is None) == (send.to.id in computes) for send in announced)


@pytest.mark.parametrize("everybody", [True, False])
def test_what_has_expired_is_refused_by_a_client_that_was_away_and_news_to_none(everybody: bool) -> None:
    actors, network, commit_by_ms = whole_round(everybody=everybody)
    expiring = [envelope for envelope, send in network.noted if send.expires_ms is not None]
    network.restart(actors.clients[0])
    network.now_ms = commit_by_ms
    for envelope in expiring:
        if everybody or envelope.to.id == actors.clients[0]:
            refused(network, actors.clients[0], envelope.sender, envelope.payload, "late")
        for client in actors.clients[1:]:
            if everybody or envelope.to.id == client:
                assert network.actors[client].handle(Received(envelope.sender, envelope.payload), network.now_ms) == []
