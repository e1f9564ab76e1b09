"""Refusals that no random scenario reaches, each by itself (`scripts/rare_refusals.toml` lists them all)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from round_helpers import announced, begin, exact_actors, hand_over, losing, passing, refused, sealed_list, sent

from dca_proto.errors import PeerError, RoundAborted
from dca_proto.protocol.compute.round import SortedIds
from dca_proto.protocol.lists import list_hash
from dca_proto.protocol.params import Limits
from dca_proto.protocol.release import combine
from dca_proto.protocol.wire.codec import sign
from dca_proto.protocol.wire.messages import Answer, FrozenList, ListHeader, PartialSum
from dca_proto.testing import Network, NoNoise, TestFederation


def without_lists(**changes: object) -> tuple[TestFederation, Network]:
    """Return a round of three Compute nodes in which all have frozen, and no list has arrived."""
    actors = exact_actors(5, colluding=1)
    network = actors.network()
    network.tamper = losing(FrozenList)
    begin(actors, network, **changes)
    network.advance(network.now_ms + 3_000)
    return actors, network


def test_a_list_of_a_node_outside_the_round_is_dropped() -> None:
    actors = exact_actors(5, colluding=1)
    actors, network = without_lists(computes=actors.computes[:2])
    outsider, opened = actors.compute_identities[2], announced(network, actors)
    node, round_id = actors.computes[0], opened.body.round_id
    header = ListHeader(round_id, opened.hash, list_hash(opened.hash, outsider.id, b""), 0)
    body = FrozenList(round_id, node, sign(outsider, actors.federation.id, header), b"", b"")
    refused(network, node, outsider.id, sealed_list(actors, outsider, body, opened, node), "unknown-compute")


def test_a_list_after_the_epochs_key_is_deleted_is_dropped() -> None:
    actors, network = without_lists()
    node = actors.computes[0]
    late = sent(network, FrozenList, to=node)[0]
    network.tamper = passing
    keys = network.actors[node]._keys
    secret = keys._keys.pop(keys.epoch)
    try:
        refused(network, node, late.sender, late.payload, "epoch")
    finally:
        keys._keys[announced(network, actors).epochs[0].epoch] = secret
    hand_over(network, late)


@pytest.mark.parametrize("count", [1, 9])
def test_sums_over_too_few_or_too_many_clients_make_no_result(count: int) -> None:
    """Honest nodes release none (§4.7); all nodes together could."""
    actors = exact_actors(5)
    network = actors.network()
    network.tamper = losing(Answer)
    begin(actors, network, most=6)
    opened = announced(network, actors)
    ids = b"".join(bytes([number]) * 16 for number in range(1, count + 1))
    about, hashes = (opened.body.round_id, opened.hash), (bytes(32),) * 3
    partials = {
        node: PartialSum(*about, bytes(32), count, hashes, ids * (node == actors.computes[0]), bytes(8))
        for node in actors.computes
    }
    validated = opened.validated(NoNoise(), Limits())
    with pytest.raises(RoundAborted, match=f"released sums over {count} clients, expected 4 to 6"):
        combine(opened, validated, partials, expected=5, private=False)


def test_ids_out_of_order_or_of_clients_of_others_are_refused() -> None:
    """The trainer's lists of clients that declined ascend, and name clients of their node alone."""
    alone: Any = SimpleNamespace(hash=bytes(32), computes=(b"own",), own=b"own")
    first, second = bytes(15) + b"\1", bytes(15) + b"\2"
    SortedIds(first + second).check(alone)
    for wrong, why in ((second + first, "order"), (first + first, "twice"), (first + second[:-1], "31 bytes")):
        with pytest.raises(PeerError, match=why):
            SortedIds(wrong).check(alone)
    beside: Any = SimpleNamespace(hash=bytes(range(32)), computes=(b"own", b"another"), own=b"own")
    with pytest.raises(PeerError, match="another holder"):
        SortedIds(b"".join(bytes([number]) * 16 for number in range(1, 200))).check(beside)
