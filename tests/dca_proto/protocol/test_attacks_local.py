"""Attacks on node releases; the numbers are those of the list that the other attacks' tests cite."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hospitals import OPEN, Hospitals, check_replayed_announcement, completed_round, release_of, released
from round_helpers import announced as opened_of
from round_helpers import (
    begin,
    body_of,
    copy_of,
    exact_actors,
    failures,
    forged,
    ignored,
    losing,
    refused,
    resigned,
    restore,
    results,
    sealed_by,
    sent,
    the_sum,
    until_the_end,
)

from dca_proto.privacy.accounting import mu_of
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol import facts
from dca_proto.protocol.events import Received
from dca_proto.protocol.params import Limits
from dca_proto.protocol.trainer.round import RELEASES
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, SecureSum
from dca_proto.protocol.wire.messages import (
    Abort,
    Announcement,
    Certificate,
    ChargeReused,
    Close,
    Contribution,
    Invitation,
    PartialSum,
    Query,
    Receipt,
    Release,
    Signed,
)
from dca_proto.statistics import ADD_OR_REMOVE_ONE_CLIENT, Sensitivity
from dca_proto.statistics.sum import Sum
from dca_proto.testing import Network, NoNoise, TestFederation


def gathering(count: int = 3) -> tuple[Hospitals, Network]:
    """A round in which the last data node is not there: it goes on."""
    actors = Hospitals(count)
    network = actors.network()
    network.down.add(actors.clients[-1])
    begin(actors, network)
    assert results(network) == []
    return actors, network


def give(network: Network, actors: TestFederation, sender: bytes, payload: bytes, code: str) -> None:
    """The trainer drops it for that reason, and nothing has changed."""
    refused(network, actors.trainer_identity.id, sender, payload, code)


# Replay


def test_attack_7_the_same_release_again_after_the_end_after_a_restart_and_after_the_clean_up() -> None:
    """It is acknowledged again as long as it is kept, counts once, and is nothing to anybody afterwards."""
    actors, network = completed_round()
    trainer, again = actors.trainer_identity.id, released(network, actors.clients[0])[0]
    for restarted in (False, True):
        if restarted:
            network.restart(trainer)
        effects = network.handle(trainer, Received(again.sender, again.payload))
        assert [body_of(one.payload) for one in effects] == [
            body_of(sent(network, Receipt, to=again.sender)[0].payload)
        ]
    assert {result.value[0] for result in results(network)} == {1.25}
    until_the_end(network, hours=24 * 8)
    give(network, actors, again.sender, again.payload, "unknown-round")


def test_attack_7_an_announcement_again_after_the_end_and_after_a_restart() -> None:
    """A data node never releases twice: while it knows the round it resends or is silent, and then its ledger knows."""
    actors, network = completed_round()
    check_replayed_announcement(network, actors.clients[0], actors.trainer_identity.id)


def test_attack_41_another_announcement_under_a_known_id() -> None:
    actors, network = completed_round()
    payload = resigned(actors, actors.trainer_identity, sent(network, Announcement)[0].payload, rows_max=7)
    refused(network, actors.clients[0], actors.trainer_identity.id, payload, "known-round")


def test_attack_41_another_release_under_a_known_id() -> None:
    """The first of each data node counts, whatever its identity signs later; before the end, and after."""
    actors, network = gathering()
    identity, opened = actors.client_identities[0], opened_of(network, actors)
    other = sealed_by(actors, identity, release_of(actors, network, 0, vector=bytes(8)), opened)
    give(network, actors, identity.id, other, "known-release")
    until_the_end(network)
    give(network, actors, identity.id, other, "known-release")
    assert the_sum(network) == pytest.approx([0.125 + 0.375])


def test_attack_24_a_release_of_another_round() -> None:
    """Neither the sealed bytes nor the signed body fit another announcement."""
    actors, network = completed_round()
    old = released(network, actors.clients[0])[0]
    body = release_of(actors, network, 0)
    network.tamper = losing(Announcement)
    begin(actors, network)
    opened = opened_of(network, actors)
    moved = msgspec.structs.replace(body_of(old.payload), round_id=opened.body.round_id)
    give(network, actors, old.sender, encode(moved), "ciphertext")
    give(network, actors, old.sender, sealed_by(actors, actors.client_identities[0], body, opened), "release")


def test_attack_25_after_the_deadline_nothing_is_released() -> None:
    actors = Hospitals(1)
    network = actors.network()
    network.down.add(actors.clients[0])
    begin(actors, network)
    network.advance(network.now_ms + 60_000)
    payload = sent(network, Announcement)[0].payload
    refused(network, actors.clients[0], actors.trainer_identity.id, payload, "late")


# Terms


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epsilon": 1.5, "mu": mu_of(1.5, 1e-6)}, "epsilon"),
        ({"delta": 1e-4}, "delta"),
        ({"statistic": "mean"}, "statistic"),
        ({"parameters": {"columns": ["x"], "centre": [0.0], "scale": [2.0], "bound": [1.0]}}, "bounds"),
        (
            {"parameters": {"columns": ["x", "y"], "centre": [0.0] * 2, "scale": [1.0] * 2, "bound": [1.0] * 2}},
            "columns",
        ),
        ({"rows_max": 0}, "announcement"),
        ({"mechanism": "none"}, "announcement"),
        ({"mu": 0.5}, "announcement"),
        ({"kind": SecureSum(NoNoise.name, 4, 2)}, "announcement"),
        ({"kind": LdpReport(NoNoise.name)}, "announcement"),
    ],
)
def test_attack_16_weaker_terms_are_declined_with_a_reason(changes: dict[str, Any], reason: str) -> None:
    """A trainer announces whatever it likes: each hospital holds it against its own policy, and charges nothing."""
    policy = msgspec.structs.replace(OPEN, statistics=("sum",), bounds={"x": (-1.0, 1.0)})
    actors = Hospitals(1, policy=policy)
    network = actors.network()
    network.tamper = losing(Announcement)
    begin(actors, network)
    genuine = sent(network, Announcement)[0].payload
    payload = resigned(actors, actors.trainer_identity, genuine, round_id=bytes(16), **changes)
    network.handle(actors.clients[0], Received(actors.trainer_identity.id, payload))
    (declined,) = network.reported(facts.Declined)
    assert (declined.reason, network.actors[actors.clients[0]].ledger.charges) == (reason, ())
    assert not network.reported(facts.Contributed)


def test_attack_16_hospitals_take_part_only_if_they_opt_in() -> None:
    """The default protects all of a client's rows, and no announcement changes that."""
    actors = exact_actors(4, 3)
    network, _ = begin(actors, kind=NodeRelease(), rows_max=8)
    declined = network.reported(facts.Declined, actors.clients[0])
    assert [(one.reason, one.found) for one in declined] == [
        ("rows-of-many", "a node release, which protects one row and not all rows of a client")
    ]
    until_the_end(network)
    assert len(failures(network)) == 1
    assert network.actors[actors.clients[0]].ledger.charges == ()


class OneSided(Sum, frozen=True, kw_only=True):  # type: ignore[misc]
    """States how far removing a row moves the sum, where replacing one moves it twice as far."""

    name = "one-sided"

    def row_sensitivity(self, fraction_bits: int) -> Sensitivity:
        true = super().row_sensitivity(fraction_bits)
        return msgspec.structs.replace(true, relation=ADD_OR_REMOVE_ONE_CLIENT)


def test_attack_16_a_sensitivity_of_another_relation_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    from dca_proto.statistics import base

    monkeypatch.setitem(base._REGISTRY, "one-sided", OneSided)
    actors = Hospitals(1)
    network = actors.network()
    network.tamper = losing(Announcement)
    begin(actors, network)
    payload = resigned(actors, actors.trainer_identity, sent(network, Announcement)[0].payload, statistic="one-sided")
    network.handle(actors.clients[0], Received(actors.trainer_identity.id, payload))
    (declined,) = network.reported(facts.Declined)
    assert declined.reason == "announcement"
    assert "a sensitivity under 'add-or-remove-one-client' was given" in declined.found


def test_attack_15_the_budget_ends_and_concurrent_rounds_do_not_race_it() -> None:
    actors = Hospitals(2, policy=msgspec.structs.replace(OPEN, epsilon_per_period_max=2.0, delta_max=1e-6))
    network = actors.network()
    for _ in range(5):  # all announced before anything is delivered
        network.command(actors.trainer_identity.id, actors.request())
    network.deliver()
    assert len(results(network)) == 3
    assert {fact.reason for fact in network.reported(facts.Declined)} == {"budget"}
    assert [len(network.actors[client].ledger.charges) for client in actors.clients] == [3, 3]


def test_attack_35_a_trainer_that_the_federation_file_does_not_name() -> None:
    actors, network = completed_round()
    genuine = sent(network, Announcement)[0].payload
    forged_one = resigned(actors, actors.authority, genuine, trainer=actors.authority.id, round_id=bytes(16))
    refused(network, actors.clients[0], actors.authority.id, forged_one, "unknown-trainer")


# Releases that are not


def test_attack_22_a_release_copied_from_another_data_node() -> None:
    """The bytes are bound to who signed them: under another name they are nobody's."""
    actors, network = gathering()
    stolen = released(network, actors.clients[0])[0].payload
    give(network, actors, actors.clients[2], stolen, "sender")
    give(network, actors, actors.clients[1], stolen, "known-release")


def test_attack_37_a_release_in_another_name_or_with_a_forged_certificate() -> None:
    actors, network = gathering()
    sybil, victim, opened = actors.client_identities[0], actors.client_identities[2], opened_of(network, actors)
    plain = release_of(actors, network, 0)
    stolen = msgspec.structs.replace(plain, certificate=actors.certificate(2))
    give(network, actors, victim.id, sealed_by(actors, sybil, stolen, opened), "signature")
    own = Certificate(victim.public_key, 1 << 52, victim.sign(actors.federation.id, b"dca5-certificate"), b"")
    self_made = msgspec.structs.replace(plain, certificate=own)
    give(network, actors, victim.id, sealed_by(actors, victim, self_made, opened), "signature")
    expired = msgspec.structs.replace(plain, certificate=actors.certificate(2, expires_ms=network.now_ms))
    give(network, actors, victim.id, sealed_by(actors, victim, expired, opened), "certificate")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"rows": 9}, "release"),
        ({"vector": bytes(7)}, "length"),
        ({"vector": bytes(16)}, "length"),
        ({"vector": b""}, "length"),
        ({"announcement_hash": bytes(32)}, "release"),
        ({"round_id": bytes(16)}, "release"),
    ],
)
def test_attack_20_a_release_that_does_not_fit(changes: dict[str, Any], code: str) -> None:
    actors, network = gathering()
    identity = actors.client_identities[2]
    body = release_of(actors, network, 0, certificate=actors.certificate(2), **changes)
    give(network, actors, identity.id, sealed_by(actors, identity, body, opened_of(network, actors)), code)
    assert len(network.reported(facts.ReleaseKept)) == 2


def test_attack_23_messages_of_the_uninvited_are_dropped() -> None:
    actors = Hospitals(3)
    network = actors.network()
    network.tamper = losing(Invitation, to=actors.clients[1])
    begin(actors, network, invited=actors.clients[:2], clients=0)
    identity = actors.client_identities[2]
    body = release_of(actors, network, 0, certificate=actors.certificate(2))
    give(network, actors, identity.id, sealed_by(actors, identity, body, opened_of(network, actors)), "invited")


def test_attack_23_a_flood_of_enrolled_clients_is_kept_up_to_the_limit() -> None:
    actors = Hospitals(3)
    network = actors.network()
    network.actors[actors.trainer_identity.id]._limits = Limits(clients_max=2)
    begin(actors, network, clients=0)
    assert len(network.reported(facts.ReleaseKept)) == 2
    assert network.actors[actors.trainer_identity.id].dropped["releases"] == 1
    until_the_end(network)
    assert results(network)[0].clients == 2


def test_attack_24_a_release_in_a_sum_and_a_contribution_or_partial_sum_among_releases() -> None:
    rows = [np.full((2, 1), 0.25)] * 3
    actors = TestFederation(
        3, 2, rows=rows, policy=msgspec.structs.replace(OPEN, clients_min=1, honest_min=1), mechanism=NoNoise()
    )
    network = actors.network()
    network.tamper = losing(Announcement)
    begin(actors, network)
    summed, identity = opened_of(network, actors), actors.client_identities[0]
    release = Release(summed.body.round_id, summed.hash, actors.certificate(0), 0, bytes(16), bytes(32),
                      bytes(8))  # fmt: skip
    give(network, actors, identity.id, sealed_by(actors, identity, release, summed), "kind")
    begin(actors, network, kind=NodeRelease(), rows_max=8)
    local = opened_of(network, actors)
    give(network, actors, identity.id, encode(Contribution(local.body.round_id, bytes(16), bytes(64))), "kind")
    node = actors.compute_identities[0]
    partial = PartialSum(local.body.round_id, local.hash, bytes(32), 1, (), bytes(16), bytes(8))
    give(network, actors, node.id, sealed_by(actors, node, partial, local), "unknown-compute")


def test_attack_24_a_compute_node_takes_no_part_in_a_node_release() -> None:
    actors = exact_actors(3, 2, policy=OPEN)
    network = actors.network()
    network.tamper = losing(Announcement)
    begin(actors, network, kind=NodeRelease(), rows_max=8)
    payload = encode(opened_of(network, actors).frame)
    refused(network, actors.computes[0], actors.trainer_identity.id, payload, "computes")


# Answers to data nodes


def test_attack_31_a_forged_receipt_stops_nothing() -> None:
    """Only the trainer can read the key in the release, so only it can acknowledge that the release is stored."""
    actors = Hospitals(2)
    network = actors.network()
    network.tamper = losing(Receipt)
    begin(actors, network)
    client, trainer = actors.clients[0], actors.trainer_identity.id
    genuine = body_of(sent(network, Receipt, to=client)[0].payload)
    for changes in ({"tag": bytes(16)}, {"contribution": bytes(16)}):
        refused(network, client, trainer, encode(msgspec.structs.replace(genuine, **changes)), "receipt")
    other = body_of(sent(network, Receipt, to=actors.clients[1])[0].payload)
    refused(network, client, trainer, encode(other), "receipt")
    refused(network, client, actors.clients[1], encode(genuine), "sender")
    count = len(released(network, client))
    network.advance(network.now_ms + 30_000)
    assert len(released(network, client)) > count, "it is still sent"
    network.tamper = lambda one: [one]
    network.advance(network.now_ms + 60_000)
    assert len(network.reported(facts.Acknowledged, client)) == 1
    ignored(network, client, trainer, encode(genuine))


def test_attack_31_nothing_of_a_sum_moves_a_release() -> None:
    """No close, abort or report of an old ledger reaches a charge or a release that is on its way."""
    rows = [np.full((2, 1), 0.25)] * 2
    actors = TestFederation(2, 2, rows=rows, policy=OPEN, mechanism=NoNoise())
    network = actors.network()
    network.tamper = losing(Receipt)
    begin(actors, network, kind=NodeRelease(), rows_max=8)
    client, opened, node = actors.clients[0], opened_of(network, actors), actors.compute_identities[0]
    head = (opened.body.round_id,)
    abort = forged(actors, node, Abort(*head, opened.hash, node.id, "too-few", "", 0, 1, ()))
    refused(network, client, node.id, abort, "unknown-compute")
    reused = forged(actors, node, ChargeReused(*head, opened.hash, client, 1, 5))
    refused(network, client, node.id, reused, "unknown-compute")
    for body in (Query(*head, opened.hash), Close(*head, opened.hash)):
        refused(network, client, actors.trainer_identity.id, forged(actors, actors.trainer_identity, body), "kind")


# Secrets and copies


def test_attack_34_no_text_shows_the_release() -> None:
    """Not the vector before the result is reported, not the receipt's key; nor does a store's record of a release."""
    actors, network = gathering()
    body = release_of(actors, network, 0)
    give(network, actors, actors.clients[2], released(network, actors.clients[0])[0].payload, "sender")
    trainer = network.actors[actors.trainer_identity.id]
    shown = [repr(fact) for _, fact in network.facts] + [repr(value) for value in vars(trainer).values()]
    shown += [repr(one) for one in network.sent] + [repr(body)]
    shown += [repr(one.stored) for one in network.actors[actors.clients[0]]._rounds.values()]
    for secret in (body.vector, body.receipt_key):
        for text in shown:
            assert secret.hex() not in text
            assert repr(secret)[2:-1] not in text


def test_attack_17_a_restored_copy_repeats_no_noise_and_the_first_release_counts() -> None:
    """Documented break: a ledger restored from an old copy has forgotten the charge, and nobody notices.

    It releases once more for the same announcement, with other noise; an honest trainer keeps the first.
    """
    actors = Hospitals(2, mechanism=DistributedDiscreteGaussian())
    network = actors.network()
    client, trainer = actors.clients[0], actors.trainer_identity.id
    network.down.add(actors.clients[1])
    copy = copy_of(network, client)
    begin(actors, network)
    first = release_of(actors, network, 0)
    restore(network, client, copy)
    network.handle(client, Received(trainer, sent(network, Announcement)[0].payload))
    second = release_of(actors, network, 0)
    assert second.vector != first.vector
    assert [charge.number for charge in network.actors[client].ledger.charges] == [1]
    give(network, actors, client, released(network, client)[-1].payload, "known-release")
    until_the_end(network)
    kept = np.frombuffer(first.vector, dtype="<i8") / 2**24
    assert results(network)[0].value.tolist() == kept.tolist()


@pytest.mark.parametrize("number", [7, 1000, -1000, 2**38, -(2**39)])
def test_attack_55_a_data_nodes_lie_is_accepted_only_within_its_bounds(number: int) -> None:
    """Documented break: any numbers within the bounds of its rows, up to the limit, count as the data node sent them.

    A release outside is left out and named; the others count.
    """
    actors, network = gathering()
    identity = actors.client_identities[2]
    vector = np.array([number << 24], dtype="<i8").tobytes()
    lie = release_of(actors, network, 0, certificate=actors.certificate(2), vector=vector, rows=8)
    network.handle(
        actors.trainer_identity.id, Received(identity.id, sealed_by(actors, identity, lie, opened_of(network, actors)))
    )
    (result,) = results(network)
    trainer = network.actors[actors.trainer_identity.id]
    if number == 7:
        assert the_sum(network) == pytest.approx([7.5])
        assert (result.contributors, result.doubts) == (2 + 3 + 8, ())
        assert trainer.contributors(result.round_id) == tuple(sorted(actors.clients))
    else:
        assert the_sum(network) == pytest.approx([0.5])
        assert result.contributors == 2 + 3
        (doubt,) = result.doubts
        assert doubt.startswith(
            f"data node {identity.id.hex()[:12]} was left out: a data node's release over 8 rows is"
        )
        assert f"x is {number:.4g}, and honest clients give -8 to 8" in doubt
        assert identity.id not in trainer.contributors(result.round_id)


def test_attack_20_a_stored_release_is_signed() -> None:
    """The record of a release is the data node's own signed message, as it came."""
    actors, network = completed_round(1)
    stored = network.stores[actors.trainer_identity.id]
    ((record, value),) = [(key, value) for (table, key), value in stored.items() if table == RELEASES]
    frame = msgspec.msgpack.decode(value, type=Signed)
    assert record == release_of(actors, network, 0).round_id + actors.clients[0]
    assert resigned(actors, actors.client_identities[0], encode(frame)) == encode(frame)
