"""Changes of a federation: which file members follow, and what becomes of those who come and go (DESIGN §2.7)."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec
import pytest
from changes import (
    NEW_NODE,
    NEW_TRAINER,
    THIEF,
    codes,
    following,
    hand,
    hostile,
    last_sum,
    numbers,
    payload_of,
    without,
)
from round_helpers import (
    begin,
    body_of,
    exact_actors,
    exact_sum,
    failures,
    ignored,
    losing,
    refused,
    results,
    until_the_end,
)

from dca_proto.crypto.sealing import Identity
from dca_proto.errors import PeerError, UsageError
from dca_proto.protocol import facts
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.federation import Federation, Member, newest_file, sign_federation
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.wire.codec import encode, sign
from dca_proto.protocol.wire.messages import Answer, Contribution, FileStamp
from dca_proto.testing import Network, TestFederation

# --- what is no newer file --------------------------------------------------------------------------------------------


def test_a_sender_that_follows_another_file_of_one_number_is_refused_and_one_behind_or_ahead_is_not() -> None:
    federation = exact_actors(4).federation
    for number in (federation.number - 1, federation.number + 1):
        federation.check_stamp(FileStamp(number, bytes(32)))
    federation.check_stamp(FileStamp(federation.number, federation.hash))
    with pytest.raises(PeerError, match="give both the owner's newest file"):
        federation.check_stamp(FileStamp(federation.number, bytes(32)))


def test_old_files_are_ignored_also_after_a_restart_with_an_old_copy() -> None:
    actors = exact_actors(4)
    network = actors.network()
    network.deliver()
    first, second = actors.federation, without(actors, 3)
    third = following(actors, second)
    hand(network, actors.computes[0], third)
    network.deliver()
    for member in network.actors:
        ignored(network, member, actors.computes[0], payload_of(second))
        ignored(network, member, actors.computes[0], payload_of(third))
    assert actors.federation == first, "all restart with the first file"
    for member in list(network.actors):
        if member != actors.clients[3]:
            assert network.restart(member).federation == third


def forgeries(actors: TestFederation) -> Iterable[tuple[str, Federation]]:
    """What a member may be sent, and why it takes none of it."""
    next_file = without(actors, 3)
    bad = bytes(64)
    yield "signature", msgspec.structs.replace(next_file, signature=bad)
    member_signed = msgspec.structs.replace(
        next_file, signature=sign(actors.compute_identities[0], actors.federation.id, next_file.frame.body).signature
    )
    yield "signature", member_signed
    yield "signature", msgspec.structs.replace(next_file, number=9)
    other = sign_federation(THIEF, msgspec.structs.replace(next_file, enrolment_key=THIEF.public_key))
    yield "signature", other
    renamed = sign_federation(actors.authority, msgspec.structs.replace(next_file, name="other"))
    yield "signature", renamed
    yield "federation", following(actors, number=2, revoked=(bytes(16),))
    yield "federation", following(actors, number=3)


@pytest.mark.parametrize("case", range(7))
def test_federation_files_that_every_member_refuses(case: int) -> None:
    actors = exact_actors(4)
    network = actors.network()
    network.deliver()
    code, file = list(forgeries(actors))[case]
    if code == "federation":  # two files of the enrolment key contradict each other
        hand(network, actors.computes[0], without(actors, 3))
        network.deliver()
    for member in network.actors:
        refused(network, member, THIEF.id, payload_of(file), code)


def test_a_round_under_another_file_of_the_same_number_is_refused() -> None:
    actors = exact_actors(5)
    network = hostile(actors)
    network.kept_from = tuple(network.actors)
    for member in (*actors.computes, *actors.clients):
        hand(network, member, without(actors, 3))
    hand(network, actors.trainer_identity.id, without(actors, 2))
    begin(actors, network)
    assert all(codes(network, member) == {"federation"} for member in actors.clients)
    assert not network.reported(facts.Contributed)


def test_two_files_of_one_number_stop_the_start_with_a_reason() -> None:
    actors = exact_actors(4)
    network = actors.network()
    hand(network, actors.computes[0], without(actors, 3))
    actors.federation = without(actors, 2)
    with pytest.raises(UsageError, match=r"federation file 2 .* two files of one number"):
        network.restart(actors.computes[0])


def test_a_damaged_file_in_a_store_stops_the_start() -> None:
    actors = exact_actors(4)
    frame = without(actors, 3).frame
    damaged = msgspec.structs.replace(frame, body=frame.body[:-1] + bytes([frame.body[-1] ^ 1]))
    with pytest.raises(UsageError, match="table 'federation' cannot be read"):
        newest_file(actors.federation, [("federation", actors.federation.id, encode(damaged))])


def test_a_member_that_moves_to_another_federation_leaves_the_old_file_behind() -> None:
    actors, other = exact_actors(4), exact_actors(4, name="other")
    kept = [("federation", actors.federation.id, payload_of(without(actors, 3)))]
    assert newest_file(other.federation, kept) == other.federation
    assert newest_file(actors.federation, kept).number == 2


# --- Compute nodes and trainers come and go ---------------------------------------------------------------------------


def members_with(actors: TestFederation, network: Network, node: Identity, replaced: int | None = None) -> Federation:
    """The next file, with a new node (in the place of another one), which has an empty store."""
    kept = [one for index, one in enumerate(actors.federation.computes) if index != replaced]
    gone = () if replaced is None else (actors.computes[replaced],)
    file = following(actors, computes=(*kept, Member("newcomer", node.public_key)), revoked=gone)
    actors.compute_identities = [one for one in actors.compute_identities if one.id not in gone] + [node]
    actors.federation = file
    network.add(Channel.COMPUTE, functools.partial(actors.compute, len(actors.compute_identities) - 1))
    network.deliver()
    return file


def hellos_of(network: Network) -> int:
    return sum(one.to.channel is Channel.HELLO for one in network.sent)


def test_a_new_node_takes_part_without_new_certificates_or_sessions() -> None:
    actors = exact_actors(5, 2)
    network, _ = begin(actors)
    until_the_end(network, 0.1)
    before = hellos_of(network)
    members_with(actors, network, NEW_NODE)
    assert numbers(network) == {2}
    _, request = begin(actors, network)
    until_the_end(network, 0.1)
    assert len(request.computes) == 3
    assert last_sum(network) == exact_sum(range(5))
    assert hellos_of(network) == before
    assert [len(actor.ledger.charges) for actor in (network.actors[one] for one in actors.clients)] == [2] * 5


def test_a_replaced_node_is_believed_no_more_and_its_successor_is() -> None:
    actors = exact_actors(5, 3)
    network, _ = begin(actors)
    until_the_end(network, 0.1)
    old = actors.computes[1]
    members_with(actors, network, NEW_NODE, replaced=1)
    network.deliver()
    begin(actors, network)
    until_the_end(network, 0.1)
    assert last_sum(network) == exact_sum(range(5))
    epoch = [one.payload for one in network.sent if one.sender == old and one.to.channel is Channel.EPOCH][-1]
    refused(network, actors.trainer_identity.id, old, epoch, "unknown-compute")


@pytest.mark.parametrize("phase", ["collecting", "frozen", "answered"])
def test_a_round_with_a_removed_node_ends_cleanly_everywhere(phase: str) -> None:
    actors = exact_actors(5, 3)
    network = actors.network()
    lost = {"collecting": (Contribution,), "frozen": (), "answered": (Answer,)}[phase]
    network.tamper = losing(*lost)
    if phase == "frozen":
        network.tamper = lambda e: () if e.to.channel is Channel.COMPUTE and e.sender in actors.computes else (e,)
    _, request = begin(actors, network)
    network.advance(network.now_ms + 1000)
    nodes = [network.actors[one] for one in actors.computes]
    assert {node.phase(request.round_id) for node in nodes} == {phase}
    network.tamper = lambda envelope: (envelope,)
    members_with(actors, network, NEW_NODE, replaced=1)
    assert {node.phase(request.round_id) for node in nodes} == {"aborted"}
    until_the_end(network, 0.1)
    assert not results(network)
    assert "federation file 2" in failures(network)[0].reason
    begin(actors, network)
    until_the_end(network, 0.1)
    assert last_sum(network) == exact_sum(range(5))


def test_a_request_that_waits_for_a_removed_node_fails_with_a_reason() -> None:
    actors = exact_actors(5, 3)
    network = Network()
    network.tamper = lambda e: () if e.sender == actors.computes[1] else (e,)
    actors.network(network)
    network._retained.clear()
    network.restart(actors.trainer_identity.id)
    for node in actors.computes:
        network.restart(node)
    network.command(actors.trainer_identity.id, actors.request())
    members_with(actors, network, NEW_NODE, replaced=1)
    (failed,) = failures(network)
    assert "federation file 2" in failed.reason
    assert "request the round again" in failed.reason
    until_the_end(network, 0.1)
    assert failures(network) == [failed]
    assert network.actors[actors.trainer_identity.id].ledger.spent().mu == 0


def test_a_new_trainer_holds_a_round_that_all_take_part_in() -> None:
    actors = exact_actors(5)
    network, _ = begin(actors)
    until_the_end(network, 0.1)
    actors.federation = following(
        actors, trainers=(*actors.federation.trainers, Member("second", NEW_TRAINER.public_key))
    )

    def newcomer(records: Iterable[tuple[str, bytes, bytes]] = ()) -> Trainer:
        return Trainer(NEW_TRAINER, actors.federation, **actors._common(records, "second"))

    network.add(Channel.TRAINER, newcomer)
    network.deliver()
    network.command(NEW_TRAINER.id, actors.request())
    until_the_end(network, 0.1)
    assert [
        len(network.reported(facts.RoundCompleted, one)) for one in (actors.trainer_identity.id, NEW_TRAINER.id)
    ] == [
        1,
        1,
    ]


def test_messages_of_a_revoked_trainer_are_dropped_and_its_open_round_returns_its_charge() -> None:
    actors = exact_actors(5)
    network = actors.network()
    network.tamper = losing(Answer)
    _, request = begin(actors, network)
    network.tamper = lambda envelope: (envelope,)
    file = following(
        actors, trainers=(Member("second", NEW_TRAINER.public_key),), revoked=(actors.trainer_identity.id,)
    )
    hand(network, actors.computes[0], file)
    network.deliver()
    assert {network.actors[node].phase(request.round_id) for node in actors.computes} == {"aborted"}
    assert len(network.reported(facts.ChargeReturned)) >= 5
    announcements = [e for e in network.sent if e.to.channel is Channel.ANNOUNCE]
    del network.actors[actors.clients[0]]._rounds[request.round_id]
    refused(network, actors.clients[0], actors.trainer_identity.id, announcements[-1].payload, "unknown-trainer")
    network.command(actors.trainer_identity.id, actors.request())
    until_the_end(network, 0.1)
    assert not results(network)


def test_a_node_that_starts_with_the_revocation_of_a_trainer_sends_it_no_sum_again() -> None:
    actors = exact_actors(5)
    network = actors.network()
    _, request = begin(actors, network)
    until_the_end(network, 0.1)
    node, trainer = actors.computes[0], actors.trainer_identity.id
    assert network.actors[node].phase(request.round_id) == "released"

    def sums() -> int:
        return sum(one.sender == node and one.to.id == trainer and one.round_id != b"" for one in network.sent)

    before = sums()
    network.restart(node)
    network.deliver()
    assert sums() > before, "a start sends the sum again"
    member = (Member("second", NEW_TRAINER.public_key),)
    hand(network, node, following(actors, trainers=member, revoked=(trainer,)))
    network.deliver()
    before = sums()
    network.restart(node)
    network.deliver()
    assert sums() == before


def test_a_file_that_is_given_by_hand_takes_no_revocation_back() -> None:
    actors = exact_actors(4)
    kept = [("federation", actors.federation.id, payload_of(without(actors, 3)))]
    with pytest.raises(UsageError, match="takes a revocation back"):
        newest_file(following(actors, number=3), kept)
    assert newest_file(following(actors, without(actors, 3)), kept).number == 3


def test_a_node_publishes_its_file_at_its_start_and_when_its_epoch_keys_turn() -> None:
    """A file may be large, and goes to all clients; a broker may forget it."""
    actors = exact_actors(4)
    actors.federation = without(actors, 3)
    network = Network()
    network.add(Channel.COMPUTE, functools.partial(actors.compute, 0))
    began = len([one for one in network.sent if one.to.channel is Channel.FEDERATION])
    days = 3
    network.advance(network.now_ms + days * actors.timing.epoch_ms)
    files = [one for one in network.sent if one.to.channel is Channel.FEDERATION]
    assert began == 1, "once, although it makes a key as well"
    assert len(files) == began + 2 * days, "a key comes, and two hours later one goes"
    assert network._retained[actors.computes[0], Channel.FEDERATION].payload == payload_of(actors.federation)


def test_a_round_with_a_removed_node_also_ends_at_a_restart_with_the_new_file() -> None:
    actors = exact_actors(5, 3)
    network = actors.network()
    network.tamper = losing(Answer)
    _, request = begin(actors, network)
    network.tamper = lambda envelope: (envelope,)
    kept = [one for index, one in enumerate(actors.federation.computes) if index != 1]
    actors.federation = following(
        actors, computes=(*kept, Member("newcomer", NEW_NODE.public_key)), revoked=(actors.computes[1],)
    )
    for member in (actors.computes[0], actors.clients[0], actors.trainer_identity.id):
        network.restart(member)
    until_the_end(network, 0.1)
    assert {network.actors[actors.computes[index]].phase(request.round_id) for index in (0, 2)} == {"aborted"}
    assert network.actors[actors.clients[0]].ledger.spent().mu > 0
    assert not results(network)


def test_a_file_that_was_given_by_hand_is_remembered_when_an_older_one_takes_its_place() -> None:
    actors = exact_actors(4)
    first, actors.federation = actors.federation, without(actors, 3)
    network = Network()
    network.add(Channel.CLIENT, functools.partial(actors.client, 0))
    network.add(Channel.COMPUTE, functools.partial(actors.compute, 0))
    network.add(Channel.TRAINER, actors.trainer)
    network._retained.clear()
    actors.federation = first
    for member in list(network.actors):
        network.crash(member)
    for member in list(network.actors):
        assert network.restart(member).federation.number == 2


def test_a_clients_next_session_names_the_file_that_it_follows_now() -> None:
    actors = exact_actors(4)
    network = actors.network()
    hand(network, actors.computes[0], without(actors, 3))
    network.advance(network.now_ms + actors.timing.epoch_ms)
    assert body_of(network._retained[actors.clients[0], Channel.HELLO].payload).file.number == 2
    assert body_of(network._retained[actors.computes[2], Channel.EPOCH].payload).file.number == 2
