"""Members that are stopped and started one after another, as for an upgrade, lose no round and no charge."""

from __future__ import annotations

import pytest
from round_helpers import begin, exact_actors, losing, passing, results, until_the_end

from dca_proto.protocol.effects import Channel
from dca_proto.protocol.wire.messages import Close, Contribution

AWAY_MS = 30_000
"""Shorter than a round's windows (docs/reference/compatibility.md)."""


@pytest.mark.parametrize("lost", [Contribution, Close])
@pytest.mark.parametrize("channel", [Channel.COMPUTE, Channel.TRAINER, Channel.CLIENT])
def test_each_member_in_turn_is_away_in_the_middle_of_a_round(channel: Channel, lost: type) -> None:
    """Each round has its result, and each client has paid for each round once, by its own ledger."""
    actors = exact_actors(4, 3)
    members = {
        Channel.COMPUTE: actors.computes,
        Channel.TRAINER: (actors.trainer_identity.id,),
        Channel.CLIENT: actors.clients,
    }[channel]
    network = actors.network()
    for number, member in enumerate(members, start=1):
        network.tamper = losing(lost)  # until the member is back, the round goes no further
        begin(actors, network)
        assert len(results(network)) == number - 1
        network.crash(member)
        network.advance(network.now_ms + AWAY_MS)
        network.tamper = passing
        network.restart(member)
        until_the_end(network)
        assert len(results(network)) == number
    for client in actors.clients:
        assert [charge.number for charge in network.actors[client].ledger.charges] == [*range(1, len(members) + 1)]
    assert network.actors[actors.trainer_identity.id].ledger.spent().mu > 0
