"""Attacks on who may say what: foreign Compute nodes, forged joins and starts, old keys, expired certificates."""

from __future__ import annotations

import msgspec
import pytest
from scene import (
    announced,
    begin,
    body_of,
    changed,
    exact_cast,
    exact_sum,
    failures,
    forged,
    losing,
    refused,
    resigned,
    results,
    sealed_by,
    sealed_kind,
    sent,
    the_sum,
    unsealed,
    until_the_end,
)

from dca_proto.core.codec import decode_frame, encode, sign
from dca_proto.core.events import Received, Timer, TimerFired
from dca_proto.core.facts import Released
from dca_proto.core.federation import Member, enrol
from dca_proto.core.messages import (
    Announcement,
    Certificate,
    Decline,
    EpochKey,
    Frozen,
    Join,
    Ready,
    Roster,
    Sealed,
    Signed,
    Start,
)
from dca_proto.core.params import PROTOCOL_VERSION, Timing
from dca_proto.core.round import roster_hash
from dca_proto.core.sealing import KEY_BYTES, Identity, actor_id
from dca_proto.testing import Cast, Network, seeded


def stranger(name: str = "stranger") -> Identity:
    return Identity(seeded(name)(KEY_BYTES))


def epoch_key_of(identity: Identity, now_ms: int) -> EpochKey:
    day = 24 * 3600 * 1000
    epoch = now_ms // day
    return EpochKey(PROTOCOL_VERSION, identity.id, epoch, stranger("epoch").public_key, (epoch + 1) * day)


def only_announced(cast: Cast) -> tuple[Network, bytes]:
    """A network whose clients have not seen the announcement yet."""
    network = cast.network()
    network.tamper = losing(Announcement)
    begin(cast, network)
    return network, sent(network, Announcement)[0].payload


# 35: Compute nodes of the trainer's own making


def test_attack_35_compute_nodes_that_the_federation_file_does_not_name() -> None:
    """Clients take keys from the file alone: the announcement is dropped whole."""
    cast = Cast(4, 3)
    network, announcement = only_announced(cast)
    mine = stranger()
    key = sign(mine, cast.federation.hash, epoch_key_of(mine, network.now_ms))
    computes = (*body_of(announcement).computes[:2], key)
    bad = resigned(cast, cast.trainer_identity, announcement, computes=computes)
    refused(network, cast.clients[0], cast.trainer_identity.id, bad, "unknown-compute")


def test_attack_35_keys_that_a_compute_node_never_signed() -> None:
    """A key of the trainer's own under an honest node's name would let it read that node's shares."""
    cast = Cast(4, 3)
    network, announcement = only_announced(cast)
    honest = cast.compute_identities[2]
    for signer in (cast.trainer_identity, cast.compute_identities[0], stranger()):
        key = sign(signer, cast.federation.hash, epoch_key_of(honest, network.now_ms))
        computes = (*body_of(announcement).computes[:2], key)
        bad = resigned(cast, cast.trainer_identity, announcement, computes=computes)
        refused(network, cast.clients[0], cast.trainer_identity.id, bad, "signature")


def test_attack_35_one_compute_node_standing_for_two() -> None:
    cast = Cast(4, 3)
    network, announcement = only_announced(cast)
    first, second, _ = body_of(announcement).computes
    bad = resigned(cast, cast.trainer_identity, announcement, computes=(first, second, first))
    refused(network, cast.clients[0], cast.trainer_identity.id, bad, "computes")


def test_attack_35_a_roster_with_foreign_compute_nodes_is_refused_by_the_real_ones() -> None:
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Roster)
    begin(cast, network)
    roster = sent(network, Roster, to=cast.computes[0])[0]
    body = body_of(roster.payload)
    mine = stranger()
    key = sign(mine, cast.federation.hash, epoch_key_of(mine, network.now_ms))
    inner = msgspec.structs.replace(body_of(encode(body.announcement)), computes=(body_of_computes(body)[0], key))
    announcement = sign(cast.trainer_identity, cast.federation.hash, inner)
    bad = resigned(cast, cast.trainer_identity, roster.payload, announcement=announcement)
    refused(network, cast.computes[0], roster.sender, bad, "unknown-compute")


def body_of_computes(roster: Roster) -> tuple[Signed, ...]:
    return body_of(encode(roster.announcement)).computes


# 37: forged joins


def forged_join(cast: Cast, network: Network, victim: int, signer: Identity, **changes: object) -> Signed:
    opened = announced(network, cast)
    body = Join(PROTOCOL_VERSION, opened.body.round_id, opened.hash, cast.certificate(victim), 0, bytes(KEY_BYTES))
    return sign(signer, cast.federation.hash, msgspec.structs.replace(body, **changes))


@pytest.mark.parametrize("signer", ["stranger", "trainer", "another client", "self-made certificate"])
def test_attack_37_joins_forged_in_absent_clients_names(signer: str) -> None:
    """A join is signed by the key that the certificate names; else more than T would "drop" at will."""
    cast = Cast(4, 3)
    network, _ = only_announced(cast)
    other = {"trainer": cast.trainer_identity, "another client": cast.client_identities[1]}.get(signer, stranger())
    changes: dict = {}
    if signer == "self-made certificate":
        changes["certificate"] = Certificate(other.public_key, 1 << 52, bytes(64))
    join = forged_join(cast, network, 0, other, **changes)
    opened = announced(network, cast)
    sealed = sealed_by(cast, other, body_of(encode(join)), opened)
    refused(network, cast.trainer_identity.id, cast.clients[0], sealed, "signature")


def test_attack_37_a_join_in_anothers_topic() -> None:
    """The sender that the topic claims must be the one who signed."""
    cast = Cast(4, 3)
    network, _ = only_announced(cast)
    join = body_of(encode(forged_join(cast, network, 1, cast.client_identities[1])))
    sealed = sealed_by(cast, cast.client_identities[1], join, announced(network, cast))
    refused(network, cast.trainer_identity.id, cast.clients[0], sealed, "sender")


@pytest.mark.parametrize("what", ["forged signature", "another round", "expired", "of no member"])
def test_attack_37_a_roster_with_a_join_that_does_not_hold_is_refused(what: str) -> None:
    """The Compute nodes check every join themselves: a trainer cannot fill a roster with absent clients."""
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Roster)
    begin(cast, network)
    roster = sent(network, Roster, to=cast.computes[0])[0]
    body = body_of(roster.payload)
    members = dict(zip(sorted(cast.clients), body.joins, strict=True))
    victim = cast.clients[0]
    code = {"forged signature": "signature", "another round": "join", "expired": "certificate"}.get(what, "signature")
    match what:
        case "forged signature":
            members[victim] = forged_join(cast, network, 0, cast.trainer_identity)
        case "another round":
            members[victim] = forged_join(cast, network, 0, cast.client_identities[0], announcement_hash=bytes(32))
        case "expired":
            certificate = cast.certificate(0, expires_ms=network.now_ms)
            members[victim] = forged_join(cast, network, 0, cast.client_identities[0], certificate=certificate)
        case _:
            mine = stranger()
            del members[victim]
            certificate = Certificate(mine.public_key, 1 << 52, cast.certificate(0).signature)
            members[mine.id] = forged_join(cast, network, 0, mine, certificate=certificate)
    pairs = sorted(members.items())
    terms = msgspec.structs.replace(body.terms, roster_hash=roster_hash(pairs))
    joins = tuple(join for _, join in pairs)
    bad = resigned(cast, cast.trainer_identity, roster.payload, joins=joins, terms=terms)
    refused(network, cast.computes[0], roster.sender, bad, code)


def test_attack_37_declines_forged_in_others_names() -> None:
    cast = Cast(4, 3)
    network, _ = only_announced(cast)
    opened = announced(network, cast)
    body = Decline(PROTOCOL_VERSION, opened.body.round_id, opened.hash, cast.certificate(0), "busy", "", "")
    for signer in (cast.client_identities[1], cast.trainer_identity, stranger()):
        sealed = sealed_by(cast, signer, body, opened)
        refused(network, cast.trainer_identity.id, cast.clients[0], sealed, "signature")
    sealed = sealed_by(cast, cast.client_identities[0], body, opened)
    refused(network, cast.trainer_identity.id, cast.clients[1], sealed, "sender")


# Others


def test_an_expired_certificate_joins_nothing() -> None:
    cast = Cast(4, 3)
    network, _ = only_announced(cast)
    expired = cast.certificate(0, expires_ms=network.now_ms)
    join = body_of(encode(forged_join(cast, network, 0, cast.client_identities[0], certificate=expired)))
    sealed = sealed_by(cast, cast.client_identities[0], join, announced(network, cast))
    refused(network, cast.trainer_identity.id, cast.clients[0], sealed, "certificate")


def test_a_certificate_of_another_federation_is_worth_nothing() -> None:
    cast = Cast(4, 3)
    other = msgspec.structs.replace(cast.federation, name="elsewhere")
    foreign = enrol(cast.authority, other, cast.client_identities[0].public_key, 1 << 52)
    network, _ = only_announced(cast)
    join = body_of(encode(forged_join(cast, network, 0, cast.client_identities[0], certificate=foreign)))
    sealed = sealed_by(cast, cast.client_identities[0], join, announced(network, cast))
    refused(network, cast.trainer_identity.id, cast.clients[0], sealed, "signature")


def test_forged_announcements_and_starts_are_dropped() -> None:
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Start)
    begin(cast, network)
    victim, trainer = cast.clients[0], cast.trainer_identity
    start = sent(network, Start, to=victim)[0].payload
    announcement = body_of(sent(network, Announcement)[0].payload)
    fresh = msgspec.structs.replace(announcement, round_id=bytes(16))
    for signer in (stranger(), cast.compute_identities[0], cast.client_identities[1], cast.authority):
        refused(network, victim, trainer.id, forged(cast, signer, body_of(start)), "signature")
        refused(network, victim, trainer.id, forged(cast, signer, fresh), "signature")
        own = msgspec.structs.replace(fresh, trainer=signer.id)
        refused(network, victim, signer.id, forged(cast, signer, own), "unknown-trainer")
    assert network.actors[victim].ledger.charges == ()


def test_forged_lists_and_readiness_are_dropped() -> None:
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Frozen)
    begin(cast, network)
    told = sent(network, Frozen, sender=cast.computes[1], to=cast.computes[0])[0]
    for signer in (stranger(), cast.compute_identities[2], cast.trainer_identity):
        refused(network, cast.computes[0], told.sender, forged(cast, signer, body_of(told.payload)), "signature")
        refused(network, cast.computes[0], stranger().id, forged(cast, signer, body_of(told.payload)))
    ready = sent(network, Ready, sender=cast.computes[1])[0]
    for signer in (stranger(), cast.compute_identities[2]):
        forgery = forged(cast, signer, body_of(ready.payload))
        refused(network, cast.trainer_identity.id, ready.sender, forgery, "signature")


@pytest.mark.parametrize(("back", "over", "refusal"), [(1, False, None), (1, True, "epoch"), (2, False, "epoch")])
def test_a_compute_nodes_epoch_never_goes_back(back: int, over: bool, refusal: str | None) -> None:
    """A node restored from an old copy, or its old key replayed, is refused by whoever saw a newer one. Only the epoch
    before is good, in its time of grace: a round announced at its end may come after one of the new epoch."""
    cast = Cast(4, 3)
    network, announcement = only_announced(cast)
    node, trainer = cast.compute_identities[0], cast.trainer_identity
    body = body_of(announcement)
    old = body_of(encode(body.computes[0]))
    ended_ms = network.now_ms - 1 - (Timing().epoch_grace_ms if over else 0)
    newer = msgspec.structs.replace(old, epoch=old.epoch + back)
    for number, key in ((1, newer), (2, msgspec.structs.replace(old, expires_ms=ended_ms))):
        computes = (sign(node, cast.federation.hash, key), *body.computes[1:])
        payload = resigned(cast, trainer, announcement, round_id=bytes((number,)) * 16, computes=computes)
        if number == 2 and refusal is not None:
            refused(network, cast.clients[0], trainer.id, payload, refusal)
        else:
            network.handle(cast.clients[0], Received(trainer.id, payload))
            network.restart(cast.clients[0])  # it is remembered durably
            assert network.actors[cast.clients[0]].phase(bytes((number,)) * 16) == "joined"


def test_a_roster_for_an_epoch_key_that_is_deleted_is_refused() -> None:
    """Rather than start a round of which no share could be opened."""
    cast = Cast(4, 3)
    network = cast.network()
    network.tamper = losing(Roster)
    begin(cast, network)
    roster, node = sent(network, Roster, to=cast.computes[0])[0], network.actors[cast.computes[0]]
    node.handle(TimerFired(Timer("epoch")), node._keys.expires_ms + Timing().epoch_grace_ms)
    refused(network, node.id, roster.sender, roster.payload, "epoch")


def test_expired_epoch_keys_are_refused() -> None:
    cast = Cast(4, 3)
    network, announcement = only_announced(cast)
    day = 24 * 3600 * 1000
    network.now_ms = body_of(encode(body_of(announcement).computes[0])).expires_ms + Timing().epoch_grace_ms
    soon = network.now_ms + 1000
    late = resigned(cast, cast.trainer_identity, announcement, join_by_ms=soon, close_by_ms=soon + day)
    refused(network, cast.clients[0], cast.trainer_identity.id, late, "epoch")


def test_deadlines_far_ahead_are_refused() -> None:
    cast = Cast(4, 3)
    network, announcement = only_announced(cast)
    year = 365 * 24 * 3600 * 1000
    far = resigned(cast, cast.trainer_identity, announcement, close_by_ms=network.now_ms + year)
    refused(network, cast.clients[0], cast.trainer_identity.id, far, "deadline")


def test_a_reply_key_of_low_order_is_refused() -> None:
    cast = Cast(4, 3)
    network, announcement = only_announced(cast)
    bad = resigned(cast, cast.trainer_identity, announcement, reply_key=bytes(KEY_BYTES))
    refused(network, cast.clients[0], cast.trainer_identity.id, bad, "key")


@pytest.mark.parametrize("altered", [b"\xff" * 8, bytes(8)])
def test_attack_26_an_altered_sum_changes_the_value_and_nothing_else(altered: bytes) -> None:
    """Documented limit: a Compute node can spoil the value undetected; it learns nothing by it."""
    cast = exact_cast(4, 3)
    network = cast.network()
    liar = cast.compute_identities[1]

    def lie(one):
        if one.sender != liar.id or not isinstance(body_of(one.payload), Sealed):
            return [one]
        body = msgspec.structs.replace(unsealed(network, cast, one.payload), vector=altered)
        return [changed(one, sealed_by(cast, liar, body, announced(network, cast)))]

    network.tamper = lie
    begin(cast, network)
    assert len(results(network)) == 1
    assert the_sum(network).tolist() != [exact_sum(range(4))]


def test_a_sum_of_the_wrong_length_ends_the_round_in_words() -> None:
    cast = exact_cast(4, 3)
    network = cast.network()
    liar = cast.compute_identities[1]

    def lie(one):
        if one.sender != liar.id or sealed_kind(network, cast, one.payload) is None:
            return [one]
        body = msgspec.structs.replace(unsealed(network, cast, one.payload), vector=bytes(7))
        return [changed(one, sealed_by(cast, liar, body, announced(network, cast)))]

    network.tamper = lie
    begin(cast, network)
    assert failures(network)[0].reason.startswith("a Compute node released a sum of the wrong length")


def test_a_withheld_sum_means_nothing_is_learned() -> None:
    """A node that answers nobody: the trainer asks until the end, then the round has failed with the node's name."""
    cast = exact_cast(4, 3)
    network = cast.network()
    silent = cast.computes[1]
    network.tamper = lambda one: [] if one.sender == silent and isinstance(decode_frame(one.payload), Sealed) else [one]
    begin(cast, network)
    until_the_end(network)
    assert results(network) == []
    assert len(network.reported(Released)) == 3
    assert failures(network)[0].reason.startswith("no answer from Compute node compute-1 while running")


def test_members_are_named_by_their_keys_alone() -> None:
    """A name of the file is for people: the id that signs is a hash of the key."""
    one = stranger()
    assert Member("compute-0", one.public_key).id == actor_id(one.public_key) == one.id
