"""What a trainer is told of keys that are spoilt at the broker, and of federation files that differ."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import msgspec
from scene import begin, failures, losing, results, until_the_end

from dca_proto.crypto.sealing import KEY_BYTES, Identity
from dca_proto.protocol.announcement import open_epoch_key
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Dropped
from dca_proto.protocol.federation import Federation, sign_federation
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import EpochKey
from dca_proto.testing import Envelope, Network, TestFederation, seeded

GARBAGE = b"\xc1 no message"


def spoilt(node: bytes, *, answers: bool = True) -> Callable[[Envelope], list[Envelope]]:
    """A broker at which garbage stands in place of a node's retained key; without `answers` it loses all others."""

    def tamper(envelope: Envelope) -> list[Envelope]:
        if envelope.sender == node and envelope.to.channel is Channel.EPOCH:
            envelope.payload = GARBAGE
            return [envelope]
        return [envelope] if answers else losing(EpochKey, sender=node)(envelope)

    return tamper


def under(cast: TestFederation, tamper: Callable[[Envelope], list[Envelope]]) -> Network:
    """A federation whose trainer starts last, under a broker that tampers from the beginning."""
    network = Network()
    network.tamper = tamper
    for role, build, count in (
        (Channel.COMPUTE, cast.compute, len(cast.computes)),
        (Channel.CLIENT, cast.client, len(cast.clients)),
    ):
        for index in range(count):
            network.add(role, functools.partial(build, index))
    network.add(Channel.TRAINER, cast.trainer)
    return network


def test_hardening_7_retained_garbage_on_an_epoch_topic_stops_no_round() -> None:
    """The trainer asks each node whose key it does not have; the answer comes to its own inbox."""
    cast = TestFederation(4, 3)
    network = under(cast, spoilt(cast.computes[1]))
    begin(cast, network)
    until_the_end(network)
    assert len(results(network)) == 1


def test_hardening_7_a_key_that_is_spoilt_is_told_apart_from_a_node_that_is_down() -> None:
    cast = TestFederation(4, 3)
    network = under(cast, spoilt(cast.computes[1], answers=False))
    begin(cast, network)
    until_the_end(network)
    (failure,) = failures(network)
    expected = "Compute node compute-1 has no epoch key here; what came in its name was dropped: malformed: found "
    assert failure.reason.startswith(expected)


def with_another_file(cast: TestFederation, role: Channel, index: int) -> tuple[Network, Federation]:
    """A federation of which one member has the file of another `dca federation init`, of the same name and members."""
    plain = TestFederation(len(cast.clients), len(cast.computes))
    plain.authority = Identity(seeded("another authority")(KEY_BYTES))
    unsigned = msgspec.structs.replace(cast.federation, enrolment_key=plain.authority.public_key)
    plain.federation = sign_federation(plain.authority, unsigned)
    network = Network()
    for one in range(len(cast.computes)):
        of = plain if (role, index) == (Channel.COMPUTE, one) else cast
        network.add(Channel.COMPUTE, functools.partial(of.compute, one))
    for one in range(len(cast.clients)):
        of = plain if (role, index) == (Channel.CLIENT, one) else cast
        network.add(Channel.CLIENT, functools.partial(of.client, one))
    network.add(Channel.TRAINER, cast.trainer)
    return network, plain.federation


def title(federation: Federation) -> str:
    return f"federation file 1 (hash {federation.hash.hex()[:16]})"


def dropped(network: Network, at: bytes, of: bytes) -> Sequence[Dropped]:
    return [fact for fact in network.reported(Dropped, at) if fact.sender == of and fact.code == "federation"]


def test_hardening_8_a_node_with_another_file_and_the_trainer_name_each_others() -> None:
    cast = TestFederation(4, 3)
    node, trainer = cast.computes[1], cast.trainer_identity.id
    network, other = with_another_file(cast, Channel.COMPUTE, 1)
    begin(cast, network)
    until_the_end(network)
    (failure,) = failures(network)
    assert failure.reason == (
        "Compute node compute-1 has no epoch key here; what came in its name was dropped: "
        f"federation: found {title(other)}, expected {title(cast.federation)}; give both the owner's newest file"
    )
    assert title(cast.federation) in dropped(network, node, trainer)[0].detail
    assert title(other) in dropped(network, node, trainer)[0].detail
    for client in cast.clients:
        assert title(cast.federation) in dropped(network, node, client)[0].detail


def test_hardening_8_a_client_with_another_file_is_named_by_the_nodes_and_names_the_trainers() -> None:
    cast = TestFederation(5, 3)
    client, trainer = cast.clients[1], cast.trainer_identity.id
    network, other = with_another_file(cast, Channel.CLIENT, 1)
    begin(cast, network, tolerated=1)
    until_the_end(network)
    (result,) = results(network)
    assert result.contributors == 4
    for node in cast.computes:
        assert title(other) in dropped(network, node, client)[0].detail
    assert title(cast.federation) in dropped(network, client, trainer)[0].detail


def test_hardening_8_two_files_of_one_number_are_told_apart_where_their_signatures_would_hold() -> None:
    """The owner has signed two files of number 1: their id is one, and so every signature holds."""
    cast = TestFederation(4, 3)
    fewer = sign_federation(
        cast.authority, msgspec.structs.replace(cast.federation, computes=cast.federation.computes[:2])
    )
    network = cast.network()
    key = network.actors[cast.computes[0]]._sign(network.actors[cast.computes[0]]._epoch_key())
    assert open_epoch_key(key, cast.federation).compute == cast.computes[0]
    actor = Trainer(cast.trainer_identity, fewer, random=bytes)
    (report,) = actor.handle(Received(cast.computes[0], encode(key)), network.now_ms)
    assert report.fact.code == "federation"
    assert title(fewer) in report.fact.detail
    assert title(cast.federation) in report.fact.detail
