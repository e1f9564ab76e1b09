"""Contributions that overtook their announcement: what is kept, and how much of it at most."""

from __future__ import annotations

from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.round import EARLY_BYTES_MAX, EARLY_KEPT_MS, EARLY_MESSAGES_MAX, EarlyContributions
from dca_proto.protocol.params import Timing
from dca_proto.protocol.wire.messages import Contribution
from dca_proto.testing import TestFederation

ROUND, OTHER, CLIENT = (bytes((number,)) * 16 for number in range(3))


def message(round_id: bytes = ROUND, size: int = 64) -> Contribution:
    return Contribution(round_id, bytes(16), bytes(size))


def test_one_message_of_each_sender_is_kept_for_its_round_and_taken_once() -> None:
    early = EarlyContributions()
    for round_id in (ROUND, OTHER):
        assert early.keep(CLIENT, message(round_id), 0)
    assert early.keep(CLIENT, message(size=65), 1)
    assert early.take(ROUND) == {CLIENT: message(size=65)}
    assert early.take(ROUND) == {}
    assert early.take(OTHER) == {CLIENT: message(OTHER)}


def test_they_are_kept_for_a_moment() -> None:
    early = EarlyContributions()
    early.keep(CLIENT, message(), 0)
    early.keep(CLIENT, message(OTHER), EARLY_KEPT_MS)
    assert early.take(ROUND) != {}
    early.keep(CLIENT, message(), EARLY_KEPT_MS + 1)
    assert early.take(OTHER) == {}
    assert early.take(ROUND) != {}


def test_their_number_and_their_bytes_are_bounded_whatever_is_named_in_them() -> None:
    """Nobody has signed them: senders and rounds may be made up."""
    early = EarlyContributions()
    kept = [early.keep(number.to_bytes(16, "big"), message(number.to_bytes(16, "little")), 0) for number in range(5000)]
    assert (sum(kept), kept[EARLY_MESSAGES_MAX]) == (EARLY_MESSAGES_MAX, False)
    early = EarlyContributions()
    large = EARLY_BYTES_MAX // 4
    assert [early.keep(bytes((number,)), message(size=large), 0) for number in range(5)] == [True] * 4 + [False]
    assert early.keep(CLIENT, message(), EARLY_KEPT_MS + 1), "there is room again"


def test_a_node_to_which_nothing_more_comes_forgets_them_too() -> None:
    """By a timer: what arrives later makes room by itself."""
    actors = TestFederation(3, 2, timing=Timing())
    network = actors.network()
    network.deliver()
    node = network.actors[actors.computes[0]]
    assert isinstance(node, ComputeNode)
    node._early.keep(CLIENT, message(), network.now_ms)
    network.advance(network.now_ms + EARLY_KEPT_MS + 2 * Timing().epoch_publish_ms)
    assert node._early.take(ROUND) == {}
