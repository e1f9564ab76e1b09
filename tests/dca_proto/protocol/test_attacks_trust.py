"""Attacks on who may send what: foreign Compute nodes, forged declines, invitations, hostile trainers, altered sums."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from round_helpers import (
    announced,
    begin,
    body_of,
    changed,
    exact_actors,
    exact_sum,
    failures,
    forged,
    losing,
    passing,
    refused,
    resigned,
    results,
    sealed_by,
    sealed_kind,
    sends,
    sent,
    the_sum,
    unsealed,
    until_the_end,
)

from dca_proto.crypto.sealing import KEY_BYTES, Identity, actor_id
from dca_proto.errors import PeerError
from dca_proto.privacy import accounting
from dca_proto.protocol.announcement import check_invitation, invitation_root, invitations
from dca_proto.protocol.client import actor as client_module
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Contributed, Declined, NodeAborted, Released
from dca_proto.protocol.federation import Member, enrol
from dca_proto.protocol.params import Room, Timing
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.codec import decode_frame, encode, sign
from dca_proto.protocol.wire.messages import (
    Announcement,
    Contribution,
    Decline,
    EpochKey,
    Invitation,
    InvitedRound,
    PartialSum,
    Signed,
)
from dca_proto.testing import Envelope, Network, TestFederation, seeded

DAY_MS = 24 * 3600 * 1000


def stranger(name: str = "stranger") -> Identity:
    return Identity(seeded(name)(KEY_BYTES))


def epoch_key_of(actors: TestFederation, identity: Identity, now_ms: int) -> EpochKey:
    epoch = now_ms // DAY_MS
    return EpochKey(identity.id, epoch, stranger("epoch").public_key, (epoch + 1) * DAY_MS, actors.federation.stamp)


def only_announced(actors: TestFederation) -> tuple[Network, bytes]:
    """A round that no member knows, and its announcement."""
    network = actors.network()
    network.tamper = losing(Announcement)
    begin(actors, network)
    return network, sent(network, Announcement)[-1].payload


def with_computes(actors: TestFederation, payload: bytes, computes: tuple[Signed, ...], **changes: Any) -> bytes:
    """The announcement with other signed epoch keys."""
    return resigned(actors, actors.trainer_identity, payload, epochs=computes, **changes)


# 35: Compute nodes of the trainer's own making


def test_attack_35_compute_nodes_that_the_federation_file_does_not_name() -> None:
    """Clients take keys from the file alone: the announcement is dropped whole; by the real nodes, too."""
    actors = TestFederation(4, 3)
    network, announcement = only_announced(actors)
    mine = stranger()
    key = sign(mine, actors.federation.id, epoch_key_of(actors, mine, network.now_ms))
    bad = with_computes(actors, announcement, (*body_of(announcement).epochs[:2], key))
    for actor in (actors.clients[0], actors.computes[0]):
        refused(network, actor, actors.trainer_identity.id, bad, "unknown-compute")


def test_attack_35_keys_that_a_compute_node_never_signed() -> None:
    """A key of the trainer's own under an honest node's name would let it stand in for that node."""
    actors = TestFederation(4, 3)
    network, announcement = only_announced(actors)
    honest = actors.compute_identities[2]
    for signer in (actors.trainer_identity, actors.compute_identities[0], stranger()):
        key = sign(signer, actors.federation.id, epoch_key_of(actors, honest, network.now_ms))
        bad = with_computes(actors, announcement, (*body_of(announcement).epochs[:2], key))
        refused(network, actors.clients[0], actors.trainer_identity.id, bad, "signature")


def test_attack_35_one_compute_node_standing_for_two() -> None:
    actors = TestFederation(4, 3)
    network, announcement = only_announced(actors)
    first, second, _ = body_of(announcement).epochs
    bad = with_computes(actors, announcement, (first, second, first))
    refused(network, actors.clients[0], actors.trainer_identity.id, bad, "computes")


def test_attack_35_a_round_without_one_of_the_federations_nodes_is_declined() -> None:
    actors = TestFederation(4, 3)
    network, announcement = only_announced(actors)
    fewer = with_computes(actors, announcement, body_of(announcement).epochs[:2])
    network.handle(actors.clients[0], Received(actors.trainer_identity.id, fewer))
    assert [fact.reason for fact in network.reported(Declined, actors.clients[0])] == ["p"]
    refused(network, actors.computes[2], actors.trainer_identity.id, fewer, "computes")


def test_forged_announcements_are_dropped() -> None:
    actors = TestFederation(4, 3)
    network, announcement = only_announced(actors)
    victim, trainer, body = actors.clients[0], actors.trainer_identity, body_of(announcement)
    for signer in (stranger(), actors.compute_identities[0], actors.client_identities[1], actors.authority):
        refused(network, victim, trainer.id, forged(actors, signer, body), "signature")
        own = msgspec.structs.replace(body, trainer=signer.id)
        refused(network, victim, signer.id, forged(actors, signer, own), "unknown-trainer")
    assert network.actors[victim].ledger.charges == ()


# 37: forged answers


def test_attack_37_declines_forged_in_others_names() -> None:
    """Else a trainer would expect fewer, and close early."""
    actors = TestFederation(4, 3)
    network, _ = only_announced(actors)
    opened = announced(network, actors)
    body = Decline(opened.body.round_id, opened.hash, actors.certificate(0), "busy", "", "")
    for signer in (actors.client_identities[1], actors.trainer_identity, stranger()):
        sealed = sealed_by(actors, signer, body, opened)
        refused(network, actors.trainer_identity.id, actors.clients[0], sealed, "signature")
    genuine = sealed_by(actors, actors.client_identities[0], body, opened)
    refused(network, actors.trainer_identity.id, actors.clients[1], genuine, "sender")
    expired = msgspec.structs.replace(body, certificate=actors.certificate(0, expires_ms=network.now_ms))
    late = sealed_by(actors, actors.client_identities[0], expired, opened)
    refused(network, actors.trainer_identity.id, actors.clients[0], late, "certificate")
    other = msgspec.structs.replace(actors.federation, name="elsewhere")
    foreign = enrol(actors.authority, other, actors.client_identities[0].public_key, 1 << 52)
    moved = msgspec.structs.replace(body, certificate=foreign)
    sealed = sealed_by(actors, actors.client_identities[0], moved, opened)
    refused(network, actors.trainer_identity.id, actors.clients[0], sealed, "signature")


# Invitations


def invited_round(numbers: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[TestFederation, Network]:
    """A mini-batch that no member knows."""
    actors = exact_actors(7, 3)
    network = actors.network()
    network.tamper = losing(Invitation)
    begin(actors, network, invited=tuple(actors.clients[number] for number in numbers), clients=0)
    network.tamper = passing
    return actors, network


def test_a_relayed_batch_announcement_charges_nobody_else() -> None:
    """G3: a client checks its path before it charges; the announcement alone, or another's path, is nothing to it."""
    actors, network = invited_round()
    trainer = actors.trainer_identity.id
    invitations = sent(network, Invitation)
    assert len(invitations) == 4
    for victim in actors.clients[4:]:
        for one in invitations:
            refused(network, victim, trainer, one.payload, "invited")
            bare = encode(decode_frame(one.payload).announcement)
            refused(network, victim, trainer, bare, "invited")
        assert network.actors[victim].ledger.charges == ()
    for one in invitations:
        network.handle(one.to.id, Received(trainer, one.payload))
    network.advance(network.now_ms + 1000)
    assert the_sum(network).tolist() == [exact_sum(range(4))]
    assert {who for who, fact in network.facts if isinstance(fact, Contributed)} == set(actors.clients[:4])


@pytest.mark.parametrize(
    "changes",
    [{"position": 1}, {"position": 4}, {"leaves": 5}, {"leaves": 1}, {"leaves": 2**32 - 1}, {"path": ()},
     {"path": (bytes(32),) * 2}, {"path": (bytes(32),) * 32}],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_invites_nobody(changes: dict[str, Any]) -> None:
    actors, network = invited_round()
    one = next(each for each in sent(network, Invitation) if decode_frame(each.payload).position == 0)
    wrong = encode(msgspec.structs.replace(decode_frame(one.payload), **changes))
    refused(network, one.to.id, actors.trainer_identity.id, wrong, "invited")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_every_invited_clients_path_leads_to_the_root_and_no_other_ones(size: int) -> None:
    ids = [bytes((number,)) * 16 for number in range(size)]
    actors = exact_actors(4, 2)
    network, _ = begin(actors)
    body = msgspec.structs.replace(announced(network, actors).body, invited=invitation_root(ids))
    made = invitations(announced(network, actors).frame, ids)
    for holder in (*ids, b"\xff" * 16):
        for owner, invitation in made.items():
            if holder == owner:
                check_invitation(invitation, holder, body)
            else:
                with pytest.raises(PeerError, match="another root"):
                    check_invitation(invitation, holder, body)


def test_a_node_accepts_only_ids_and_contributions_that_the_root_covers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that was not invited, and runs other software, is refused by its holder."""
    actors, network = invited_round()
    trainer = actors.trainer_identity.id
    opened = announced(network, actors)
    hostile = network.actors[actors.clients[5]]
    genuine = decode_frame(sent(network, Invitation)[0].payload)
    monkeypatch.setattr(client_module, "check_invitation", lambda *_: None)
    made = sends(hostile.handle(Received(trainer, encode(genuine)), network.now_ms))
    (contribution,) = [one for one in made if isinstance(body_of(one.payload), Contribution)]
    refused(network, contribution.to.id, hostile.id, contribution.payload, "invited")
    other = exact_actors(7, 3)
    late = other.network()
    late.tamper = losing(InvitedRound)
    begin(other, late, invited=other.clients[:4], clients=0)
    frame = decode_frame(sent(late, InvitedRound)[0].payload)
    node, payload = other.computes[0], frame.announcement
    for clients in (b"", frame.clients[:-16], frame.clients + bytes(16), b"".join(sorted(other.clients))):
        refused(late, node, trainer, encode(InvitedRound(payload, clients)), "invited")
    refused(late, node, trainer, encode(InvitedRound(payload, frame.clients[:-1])))
    refused(late, node, trainer, encode(payload), "invited")
    assert opened.body.invited == invitation_root(sorted(actors.clients[:4]))


def test_a_node_drops_malformed_invited_rounds_and_accepts_the_trainers_own() -> None:
    """Nobody, somebody where nobody is invited, another order, too many, and another sender."""
    actors = exact_actors(6, 3)
    network, node, trainer = actors.network(), actors.computes[0], actors.trainer_identity.id
    network.tamper = losing(InvitedRound, Invitation)
    _, request = begin(actors, network, invited=actors.clients[:4], clients=0)
    genuine = sent(network, InvitedRound, to=node)[0].payload
    frame = decode_frame(genuine)
    ids = [frame.clients[at : at + 16] for at in range(0, 64, 16)]
    for clients in (b"", b"".join(reversed(ids)), b"".join([ids[1], ids[0], *ids[2:]]), ids[0] + frame.clients):
        refused(network, node, trainer, encode(InvitedRound(frame.announcement, clients)), "invited")
    open_to_all = sign(
        actors.trainer_identity,
        actors.federation.id,
        msgspec.structs.replace(announced(network, actors).body, invited=b"", round_id=bytes(16)),
    )
    refused(network, node, trainer, encode(InvitedRound(open_to_all, frame.clients)), "invited")
    for sender in (actors.computes[1], actors.clients[0], bytes(16)):
        refused(network, node, sender, genuine, "sender")
    actor = network.actors[node]
    usual, actor._limits = actor._limits, msgspec.structs.replace(actor._limits, invited_max=3)
    refused(network, node, trainer, genuine, "invited")
    actor._limits = usual
    network.tamper = passing
    until_the_end(network)
    assert actor.phase(request.round_id) == "released"
    assert the_sum(network).tolist() == [exact_sum(range(4))]


# 52: a hostile trainer


def test_attack_52_a_flood_of_announcements_is_bounded_by_budget_and_limits() -> None:
    """It announces without end: a client charges what its policy allows, and rounds are limited in number.

    A quarter of each limit is one trainer's. A client declines up to that number; a node refuses up to that number.
    """
    actors = exact_actors(4, 3, policy=Policy(clients_min=1, honest_min=1, epsilon_per_period_max=2.0))
    network = actors.network()
    network.tamper = losing(Contribution, Announcement)
    begin(actors, network)
    victim, trainer = network.actors[actors.clients[0]], actors.trainer_identity
    victim._limits = msgspec.structs.replace(victim._limits, client_open=Room("rounds without a receipt", 40))
    node = network.actors[actors.computes[0]]
    few = {"node_open": Room("open rounds", 40), "node_rounds": Room("rounds", 80)}
    node._limits = msgspec.structs.replace(node._limits, **few)
    announcement = sent(network, Announcement)[0].payload
    for number in range(30):
        payload = resigned(actors, trainer, announcement, round_id=bytes((number,)) * 16)
        for actor in (victim.id, node.id):
            network.handle(actor, Received(trainer.id, payload))
    assert accounting.compose(charge.mu for charge in victim.ledger.charges) <= accounting.mu_of(2.0, 1e-5)
    assert (len(victim._rounds), victim.dropped["room"]) == (10, 20)
    assert (len(node._open), len(node._rounds), node.dropped["room"]) == (10, 20, 10)
    reasons = {fact.detail for fact in network.reported(NodeAborted, node.id)}
    assert reasons == {"found open rounds: 11 with this one; needs at most 10 for one trainer"}


def test_attack_52_a_trainer_that_targets_one_client_meets_the_floors() -> None:
    """It invites one client and Sybils of its own making: n_min is announced, and all compare it with their floors."""
    actors = exact_actors(4, 3, policy=Policy(clients_min=4, honest_min=2, epsilon_per_round_max=20))
    network = actors.network()
    network.deliver()
    begin(actors, network, invited=actors.clients[:3], clients=0, tolerate=0)
    until_the_end(network)
    assert {fact.reason for fact in network.reported(Declined)} == {"clients"}
    begin(actors, network, tolerate=0, colluders=0)
    network.tamper = losing(Announcement)
    begin(actors, network, tolerate=0)
    payload = resigned(actors, actors.trainer_identity, sent(network, Announcement)[-1].payload, clients=10)
    network.tamper = passing
    for actor in (*actors.clients, *actors.computes):
        network.handle(actor, Received(actors.trainer_identity.id, payload))
    released = len(network.reported(Released))
    until_the_end(network)
    assert len(network.reported(Released)) == released, "a sum of four is below n_min = 10: nobody releases it"


def test_deadlines_far_ahead_are_refused() -> None:
    actors = TestFederation(4, 3)
    network, announcement = only_announced(actors)
    for change in (
        {"commit_by_ms": network.now_ms + 365 * DAY_MS},
        {"commit_by_ms": body_of(announcement).close_by_ms},
    ):
        far = resigned(actors, actors.trainer_identity, announcement, **change)
        for actor in (actors.clients[0], actors.computes[0]):
            refused(network, actor, actors.trainer_identity.id, far, "deadline")


def test_a_reply_key_of_low_order_is_refused() -> None:
    actors = TestFederation(4, 3)
    network, announcement = only_announced(actors)
    bad = resigned(actors, actors.trainer_identity, announcement, reply_key=bytes(KEY_BYTES))
    for actor in (actors.clients[0], actors.computes[0]):
        refused(network, actor, actors.trainer_identity.id, bad, "key")


def test_a_root_of_another_length_is_refused() -> None:
    actors = TestFederation(4, 3)
    network, announcement = only_announced(actors)
    bad = resigned(actors, actors.trainer_identity, announcement, invited=bytes(16))
    refused(network, actors.clients[0], actors.trainer_identity.id, bad, "invited")


@pytest.mark.parametrize(("back", "over", "refusal"), [(1, False, None), (1, True, "epoch"), (2, False, "epoch")])
def test_a_compute_nodes_epoch_never_decreases(back: int, over: bool, refusal: str | None) -> None:
    """A node restored from an old copy, or its old key replayed, is refused by whoever saw a newer one. Only the epoch
    before is good, in its time of grace: a round announced at its end may come after one of the new epoch."""
    actors = TestFederation(4, 3)
    network, announcement = only_announced(actors)
    node, trainer = actors.compute_identities[0], actors.trainer_identity
    keys = body_of(announcement).epochs
    old = body_of(encode(keys[0]))
    network.now_ms += DAY_MS * (back - 1)
    times = {"close_by_ms": network.now_ms + 1000, "commit_by_ms": network.now_ms + 2000}
    ended_ms = network.now_ms + 1 - Timing().epoch_grace_ms if over else network.now_ms + Timing().abort_grace_ms
    newer = msgspec.structs.replace(old, epoch=old.epoch + back, expires_ms=network.now_ms + DAY_MS)
    others = tuple(
        sign(
            one, actors.federation.id, msgspec.structs.replace(body_of(encode(key)), expires_ms=network.now_ms + DAY_MS)
        )
        for one, key in zip(actors.compute_identities[1:], keys[1:], strict=True)
    )
    for number, key in ((1, newer), (2, msgspec.structs.replace(old, expires_ms=ended_ms))):
        computes = (sign(node, actors.federation.id, key), *others)
        payload = with_computes(actors, announcement, computes, round_id=bytes((number,)) * 16, **times)
        if number == 2 and over:
            refused(network, actors.clients[0], trainer.id, payload, refusal)
        elif number == 2 and refusal is not None:
            network.handle(actors.clients[0], Received(trainer.id, payload))
            assert [fact.reason for fact in network.reported(Declined, actors.clients[0])] == [refusal]
        else:
            network.handle(actors.clients[0], Received(trainer.id, payload))
            network.restart(actors.clients[0])  # it is remembered durably
            assert network.actors[actors.clients[0]].phase(bytes((number,)) * 16) == "sent"


# 26: servers that lie or are silent


def lying(actors: TestFederation, network: Network, **changes: Any) -> None:
    """Node 1 releases something else."""
    liar = actors.compute_identities[1]

    def lie(one: Envelope) -> list[Envelope]:
        if one.sender != liar.id or sealed_kind(network, actors, one.payload) is not PartialSum:
            return [one]
        body = msgspec.structs.replace(unsealed(network, actors, one.payload), **changes)
        return [changed(one, sealed_by(actors, liar, body, announced(network, actors)))]

    network.tamper = lie


@pytest.mark.parametrize("altered", [b"\xff" * 8, bytes(8)])
def test_attack_26_an_altered_sum_spoils_the_round_and_nothing_else(altered: bytes) -> None:
    """Documented limit: a Compute node can spoil a round, or the value within its bounds; it learns nothing by it."""
    actors = exact_actors(4, 3)
    network = actors.network()
    lying(actors, network, vector=altered)
    begin(actors, network)
    assert results(network) == []
    assert failures(network)[0].implausible


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vector": bytes(7)}, "a sum of the wrong length"),
        ({"count": 3}, "different sets"),
        ({"answers": (bytes(32),) * 3}, "each rests on other answers"),
        ({"clients": b""}, "sums over 6 clients, and name "),
        ({"clients": bytes(16 * 50)}, "sums over 6 clients, and name "),
    ],
)
def test_a_partial_sum_that_does_not_fit_ends_the_round_with_a_reason(changes: dict[str, Any], message: str) -> None:
    actors = exact_actors(6, 3)
    network = actors.network()
    lying(actors, network, **changes)
    begin(actors, network)
    if changes.get("clients") == b"" and results(network):
        return  # the node holds nobody
    assert message in failures(network)[0].reason


def test_a_withheld_sum_means_nothing_is_learned() -> None:
    """A node that answers nobody: the trainer asks until the end, then the round has failed with the node's name."""
    actors = exact_actors(4, 3)
    network = actors.network()
    silent = actors.computes[1]
    network.tamper = lambda one: (
        [] if one.sender == silent and sealed_kind(network, actors, one.payload) is PartialSum else [one]
    )
    begin(actors, network)
    until_the_end(network)
    assert results(network) == []
    assert len(network.reported(Released)) == 3
    assert failures(network)[0].reason.startswith("no answer came from compute-1 until the end of the round; is it up")


def test_members_are_named_by_their_keys_alone() -> None:
    """A name of the file is for people: the id that signs is a hash of the key."""
    one = stranger()
    assert Member("compute-0", one.public_key).id == actor_id(one.public_key) == one.id
