"""Registrars sign clients' certificates within limits that Compute nodes hold, and can be revoked (DESIGN §2.8)."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from changes import PlaysOn, codes, following, hand, last_sum
from round_helpers import begin, exact_sum, until_the_end

from dca_proto.crypto.sealing import KEY_BYTES, Identity
from dca_proto.errors import PeerError, UsageError
from dca_proto.protocol import facts
from dca_proto.protocol.federation import Federation, enrol, sign_federation
from dca_proto.protocol.names import open_name
from dca_proto.protocol.pool import Pool
from dca_proto.protocol.wire.codec import sign
from dca_proto.protocol.wire.messages import Certificate, Registrar
from dca_proto.testing import Network, NoNoise, TestFederation, seeded

DAY_MS = 24 * 3600 * 1000
NOW_MS = Network().now_ms


def identity(name: str) -> Identity:
    return Identity(seeded(name)(KEY_BYTES))


DOOR = identity("door")


def registrar(**changes: Any) -> Registrar:
    plain = Registrar("door", DOOR.public_key, b"", NOW_MS + 400 * DAY_MS, 9, 30, 20)
    return msgspec.structs.replace(plain, **changes)


class Registered(TestFederation):
    """A federation of clients that a registrar enrolled, but for those that the owner did; client i has (i + 1) / 16.

    `certified_under` is the file by which certificates are made; `federation` the one that actors start with.
    """

    def __init__(self, members: int, *, by_the_owner: tuple[int, ...] = (), pool: Pool | None = None, **limits: Any):
        rows = [np.array([[(index + 1) / 16]]) for index in range(members)]
        super().__init__(members, 3, rows=rows, mechanism=NoNoise(), pool=pool)
        self.federation = self.certified_under = following(self, registrars=(registrar(**limits),), number=1)
        self._by_the_owner = by_the_owner

    def certificate(self, index: int, expires_ms: int = NOW_MS + 20 * DAY_MS) -> Certificate:
        signer = self.authority if index in self._by_the_owner else DOOR
        key = self.client_identities[index].public_key
        return enrol(signer, self.certified_under, key, expires_ms, f"device {index}")

    def without_the_registrar(self) -> Federation:
        return following(self, registrars=(), revoked=(DOOR.id,))


def sessions(network: Network, actors: TestFederation) -> set[int]:
    """How many clients have a session, at each Compute node."""
    return {network.actors[node]._sessions.count_valid(network.now_ms) for node in actors.computes}


class Eager(Pool):
    """A pool that is always worth its while."""

    def pays(self, count: int, us: float) -> bool:
        return count > 0

    def size(self, count: int, us: float) -> int:
        return 2


@pytest.mark.parametrize("pool", [Pool(), Eager()], ids=["one by one", "ahead"])
def test_clients_of_a_registrar_take_part_as_those_of_the_owner(pool: Pool) -> None:
    actors = Registered(5, by_the_owner=(1, 3), pool=pool)
    network, _ = begin(actors)
    until_the_end(network, 0.1)
    assert last_sum(network) == exact_sum(range(5))
    node = network.actors[actors.computes[0]]
    assert [node.client_name(client) for client in actors.clients] == [f"device {index}" for index in range(5)]
    again, trainer = actors.certificate(0), actors.trainer_identity
    assert open_name(actors.federation.name_key(trainer) or b"", again) == "device 0"
    assert sessions(network, actors) == {5}


@pytest.mark.parametrize("pool", [Pool(), Eager()], ids=["one by one", "ahead"])
def test_a_node_takes_no_more_clients_of_a_registrar_than_its_limit(pool: Pool) -> None:
    actors = Registered(6, by_the_owner=(0,), pool=pool, clients=3)
    network, _ = begin(actors, tolerate=3, clients=6)
    assert sessions(network, actors) == {4}, "three of the registrar, and the owner's"
    for node in actors.computes:
        assert "registrar" in codes(network, node)
    for node in actors.computes:
        network.restart(node)
    network.deliver()
    assert sessions(network, actors) == {4}, "a node counts by its store"
    node = network.actors[actors.computes[0]]
    assert max(node._sessions._certified.values()) == 3


def test_a_renewed_certificate_counts_once() -> None:
    actors = Registered(3, clients=3)
    network = actors.network()
    network.deliver()
    actors.certificate = partial(actors.certificate, expires_ms=NOW_MS + 25 * DAY_MS)  # type: ignore[method-assign]
    for client in actors.clients:
        network.restart(client)
    network.deliver()
    begin(actors, network)
    until_the_end(network, 0.1)
    assert last_sum(network) == exact_sum(range(3))
    assert {fact.code for fact in network.reported(facts.Dropped)} == set()


@pytest.mark.parametrize("by", ["a message", "a restart"])
def test_a_revoked_registrars_clients_have_no_session_and_decline(by: str) -> None:
    actors = Registered(6, by_the_owner=(0, 1, 2))
    network, _ = begin(actors, tolerate=3)
    until_the_end(network, 0.1)
    assert last_sum(network) == exact_sum(range(6))
    gone = actors.without_the_registrar()
    if by == "a message":
        hand(network, actors.computes[1], gone)
    else:
        actors.federation = gone
        network.restart(actors.computes[0])
    network.deliver()
    assert sessions(network, actors) == {3}
    begin(actors, network, tolerate=3)
    until_the_end(network, 0.1)
    assert last_sum(network) == exact_sum([0, 1, 2])
    declined = {fact.client for fact in network.reported(facts.Declined) if fact.reason == "revoked"}
    assert declined >= set(actors.clients[3:])


def test_a_thief_of_a_revoked_registrars_key_gets_nobody_in() -> None:
    """Neither by certificates from before, which nodes know, nor by new ones for keys that they know."""
    actors = Registered(6, by_the_owner=(0, 1, 2))
    network = actors.network()
    network.deliver()
    for client in actors.clients[3:]:
        network.actors[client].__class__ = PlaysOn
    hand(network, actors.computes[1], actors.without_the_registrar())
    network.deliver()
    for client in actors.clients[3:]:
        network.restart(client)  # greets again, with the certificate that nodes know
        network.actors[client].__class__ = PlaysOn
    actors.certificate = partial(actors.certificate, expires_ms=NOW_MS + 25 * DAY_MS)  # type: ignore[method-assign]
    network.restart(actors.clients[5])
    network.actors[actors.clients[5]].__class__ = PlaysOn
    network.deliver()
    assert sessions(network, actors) == {3}
    begin(actors, network, tolerate=3)
    until_the_end(network, 0.1)
    assert last_sum(network) == exact_sum([0, 1, 2])


def test_an_enrolment_by_another_key_brings_a_client_back() -> None:
    actors = Registered(4, by_the_owner=(0, 1, 2))
    network = actors.network()
    network.deliver()
    hand(network, actors.computes[0], actors.without_the_registrar())
    network.deliver()
    actors._by_the_owner = (0, 1, 2, 3)
    network.restart(actors.clients[3])
    network.deliver()
    assert sessions(network, actors) == {4}


def checked(certificate: Certificate, file: Federation, now_ms: int = NOW_MS) -> str:
    """The code with which members refuse a certificate; empty if they accept it."""
    try:
        file.check_certificate(certificate, now_ms)
    except PeerError as error:
        return error.code
    return ""


def test_a_registrars_certificate_ends_within_its_limits() -> None:
    actors = Registered(1, days=30, until_ms=NOW_MS + 60 * DAY_MS)
    file = actors.federation
    for days, now_days, code in (
        (30, 0, ""),
        (31, 0, ""),
        (32, 0, "certificate"),
        (59, 30, ""),
        (61, 40, "certificate"),
    ):
        certificate = actors.certificate(0, NOW_MS + days * DAY_MS)
        assert checked(certificate, file, NOW_MS + now_days * DAY_MS) == code, (days, now_days)
    by_owner = enrol(actors.authority, file, actors.client_identities[0].public_key, NOW_MS + 999 * DAY_MS)
    assert checked(by_owner, file) == ""


def test_a_stranger_and_another_federations_registrar_certify_nobody() -> None:
    actors, key = Registered(1), identity("client").public_key
    unnamed = TestFederation(1, 3)
    assert checked(actors.certificate(0), unnamed.federation) == "signature"
    with pytest.raises(UsageError, match="not the federation file's enrolment key"):
        enrol(identity("stranger"), actors.federation, key, NOW_MS + DAY_MS)
    certificate = msgspec.structs.replace(actors.certificate(0), client_key=key)
    assert checked(certificate, actors.federation) == "signature"


def test_a_registrar_signs_no_federation_file_and_is_no_server() -> None:
    actors = Registered(1)
    assert not actors.federation.is_server(DOOR.id)
    with pytest.raises(UsageError, match="enrolment key"):
        sign_federation(DOOR, actors.federation)
    forged = sign(DOOR, actors.federation.id, following(actors).frame.body)
    with pytest.raises(PeerError) as caught:
        actors.federation.opened(forged)
    assert caught.value.code == "signature"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"registrars": (registrar(), registrar(name="other"))}, "two members have the same key"),
        ({"registrars": (registrar(name="compute-0"),)}, "two members have the same name"),
        ({"registrars": (registrar(name="../x"),)}, "a member is named"),
        ({"registrars": (registrar(),), "revoked": (DOOR.id,)}, "the key of door is revoked"),
        ({"registrars": (registrar(clients=0),)}, "members would refuse its content"),
        ({"registrars": (registrar(days=9999),)}, "members would refuse its content"),
    ],
)
def test_odd_registrars_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        following(Registered(1), **changes)


def test_the_files_text_has_its_registrars() -> None:
    file = Registered(1).federation
    assert Federation.from_toml(file.to_toml()) == file
    assert file.registrars[0] == registrar(name_key=file.registrars[0].name_key)
    assert len(file.registrars[0].name_key) == 48
