"""What a trainer reports of keys that are spoilt at the broker, and of federation files that differ."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import msgspec
from round_helpers import begin, failures, losing, results, until_the_end

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


def under(actors: TestFederation, tamper: Callable[[Envelope], list[Envelope]]) -> Network:
    """A federation whose trainer starts last, under a broker that tampers from the beginning."""
    network = Network()
    network.tamper = tamper
    for role, build, count in (
        (Channel.COMPUTE, actors.compute, len(actors.computes)),
        (Channel.CLIENT, actors.client, len(actors.clients)),
    ):
        for index in range(count):
            network.add(role, functools.partial(build, index))
    network.add(Channel.TRAINER, actors.trainer)
    return network


def test_hardening_7_retained_garbage_on_an_epoch_topic_stops_no_round() -> None:
    """The trainer asks each node whose key it does not have; the answer comes to its own inbox."""
    actors = TestFederation(4, 3)
    network = under(actors, spoilt(actors.computes[1]))
    begin(actors, network)
    until_the_end(network)
    assert len(results(network)) == 1


def test_hardening_7_a_spoilt_key_and_a_node_that_is_down_give_different_errors() -> None:
    actors = TestFederation(4, 3)
    network = under(actors, spoilt(actors.computes[1], answers=False))
    begin(actors, network)
    until_the_end(network)
    (failure,) = failures(network)
    expected = "Compute node compute-1 has no epoch key here; what came in its name was dropped: malformed: found "
    assert failure.reason.startswith(expected)


def with_another_file(actors: TestFederation, role: Channel, index: int) -> tuple[Network, Federation]:
    """A federation of which one member has the file of another `dca federation init`, of the same name and members."""
    plain = TestFederation(len(actors.clients), len(actors.computes))
    plain.authority = Identity(seeded("another authority")(KEY_BYTES))
    unsigned = msgspec.structs.replace(actors.federation, enrolment_key=plain.authority.public_key)
    plain.federation = sign_federation(plain.authority, unsigned)
    network = Network()
    for one in range(len(actors.computes)):
        of = plain if (role, index) == (Channel.COMPUTE, one) else actors
        network.add(Channel.COMPUTE, functools.partial(of.compute, one))
    for one in range(len(actors.clients)):
        of = plain if (role, index) == (Channel.CLIENT, one) else actors
        network.add(Channel.CLIENT, functools.partial(of.client, one))
    network.add(Channel.TRAINER, actors.trainer)
    return network, plain.federation


def title(federation: Federation) -> str:
    return f"federation file 1 (hash {federation.hash.hex()[:16]})"


def dropped(network: Network, at: bytes, of: bytes) -> Sequence[Dropped]:
    return [fact for fact in network.reported(Dropped, at) if fact.sender == of and fact.code == "federation"]


def test_hardening_8_a_node_and_a_trainer_with_different_files_name_each_others_file() -> None:
    actors = TestFederation(4, 3)
    node, trainer = actors.computes[1], actors.trainer_identity.id
    network, other = with_another_file(actors, Channel.COMPUTE, 1)
    begin(actors, network)
    until_the_end(network)
    (failure,) = failures(network)
    assert failure.reason == (
        "Compute node compute-1 has no epoch key here; what came in its name was dropped: "
        f"federation: found {title(other)}, expected {title(actors.federation)}; give both the owner's newest file"
        " (waited 60 s; nothing was charged)"
    )
    assert failure.lost == (), "it is up"
    assert title(actors.federation) in dropped(network, node, trainer)[0].detail
    assert title(other) in dropped(network, node, trainer)[0].detail
    for client in actors.clients:
        assert title(actors.federation) in dropped(network, node, client)[0].detail


def test_hardening_8_a_client_with_another_file_is_named_by_the_nodes_and_names_the_trainers() -> None:
    actors = TestFederation(5, 3)
    client, trainer = actors.clients[1], actors.trainer_identity.id
    network, other = with_another_file(actors, Channel.CLIENT, 1)
    begin(actors, network, tolerate=1)
    until_the_end(network)
    (result,) = results(network)
    assert result.contributors == 4
    for node in actors.computes:
        assert title(other) in dropped(network, node, client)[0].detail
    assert title(actors.federation) in dropped(network, client, trainer)[0].detail


def test_hardening_8_two_valid_files_of_one_number_are_distinguished() -> None:
    """The owner has signed two files of number 1: their id is one, and so every signature holds."""
    actors = TestFederation(4, 3)
    fewer = sign_federation(
        actors.authority, msgspec.structs.replace(actors.federation, computes=actors.federation.computes[:2])
    )
    network = actors.network()
    key = network.actors[actors.computes[0]]._sign(network.actors[actors.computes[0]]._epoch_key())
    assert open_epoch_key(key, actors.federation).compute == actors.computes[0]
    actor = Trainer(actors.trainer_identity, fewer, random=bytes)
    (report,) = actor.handle(Received(actors.computes[0], encode(key)), network.now_ms)
    assert report.fact.code == "federation"
    assert title(fewer) in report.fact.detail
    assert title(actors.federation) in report.fact.detail
