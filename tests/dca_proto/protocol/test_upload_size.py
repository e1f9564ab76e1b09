"""How many bytes and messages a client sends and receives for one contribution."""

from __future__ import annotations

from collections import Counter

import msgpack
import pytest
from round_helpers import begin, results

from dca_proto.protocol.effects import Channel
from dca_proto.testing import Envelope, Network, TestFederation

EDGES = [float(edge) for edge in range(10_001)]  # d = 10,000


def completed_round(clients: int, computes: int, dimension: int) -> tuple[TestFederation, Network, list[Envelope]]:
    """A round that comes to its end, and all messages of it."""
    actors = TestFederation(clients, computes)
    network = actors.network()
    network.deliver()
    before = len(network.sent)
    begin(actors, network, statistic="histogram", parameters={"columns": ["x"], "edges": EDGES[: dimension + 1]})
    assert len(results(network)) == 1
    return actors, network, network.sent[before:]


@pytest.mark.parametrize(("computes", "dimension", "most"), [(10, 10, 300), (3, 10, 250), (10, 10_000, 1.01 * 80_000)])
def test_a_contribution_is_little_more_than_one_plain_vector(computes: int, dimension: int, most: float) -> None:
    actors, _, sent = completed_round(3, computes, dimension)
    uploads = [one.payload for one in sent if one.sender in actors.clients]
    assert [len(payload) <= most for payload in uploads] == [True] * 3
    tag, *_, ciphertext = msgpack.unpackb(uploads[0])
    assert (tag, len(ciphertext)) == (3, 4 + 8 * computes + 8 * dimension + 16), "charge, M tags, y and the AEAD's tag"


def test_a_client_sends_one_message_and_receives_two() -> None:
    """The announcement and the receipt; nothing else of the round is for clients."""
    actors, _, sent = completed_round(12, 5, 10)
    uploads = Counter(one.sender for one in sent if one.sender in actors.clients)
    assert uploads == dict.fromkeys(actors.clients, 1)
    broadcasts = [one for one in sent if one.to.channel in (Channel.ANNOUNCE, Channel.ABORT)]
    inboxes = Counter(one.to.id for one in sent if one.to.channel is Channel.CLIENT)
    assert {len(broadcasts) + inboxes[client] for client in actors.clients} == {2}
    assert set(inboxes) == set(actors.clients)
