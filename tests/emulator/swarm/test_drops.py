"""Clients that drop out of a swarm: who, in which round, and what of them is lost."""

from __future__ import annotations

from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.wire.topics import topic_of
from emulator.swarm.host import Vanished
from emulator.swarm.live import Dropouts


def test_drops_are_drawn_by_place_anew_for_each_round() -> None:
    def drawn(ids: list[bytes], seed: int) -> list[set[int]]:
        drops = Dropouts(ids, 5, seed)
        return [{ids.index(bytes.fromhex(one)) for one in drops.next_round()} for _ in range(3)]

    some, others = ([bytes([kind, place]) for place in range(40)] for kind in (1, 2))
    assert drawn(some, 7) == drawn(others, 7)
    assert drawn(some, 7) != drawn(some, 8)
    assert [len(places) for places in drawn(some, 7)] == [5, 5, 5]
    assert drawn(some, 7)[0] != drawn(some, 7)[1]


def test_a_dropped_client_loses_its_shares_and_nothing_else() -> None:
    client, node = bytes(16), bytes([1]) * 16
    drops = Vanished()
    share, join = (
        topic_of(bytes(32), Address(channel, node), client) for channel in (Channel.COMPUTE, Channel.TRAINER)
    )
    assert not drops.swallows(share), "before the round"
    drops.ids = frozenset({client.hex()})
    assert drops.swallows(share)
    assert not drops.swallows(join)
    assert not drops.swallows(topic_of(bytes(32), Address(Channel.COMPUTE, node), bytes([2]) * 16))
