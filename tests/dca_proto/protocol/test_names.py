"""Names of clients: who can read them, who cannot, and that people see them."""

from __future__ import annotations

import msgspec
import pytest

from dca_proto.crypto.sealing import Identity
from dca_proto.errors import InputError
from dca_proto.protocol import facts
from dca_proto.protocol.federation import Federation, Member, enrol, sign_federation
from dca_proto.protocol.names import KNOWN_MAX, KnownNames, open_name, short_id
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import Certificate
from dca_proto.testing import TestFederation, seeded


class Named(TestFederation):
    """A federation whose clients have names."""

    def certificate(self, index: int, expires_ms: int = 1 << 52) -> Certificate:
        key = self.client_identities[index].public_key
        return enrol(self.authority, self.federation, key, expires_ms, f"Station {index}")


ACTORS = Named(3, 2, name="named")
CERTIFICATE = ACTORS.certificate(1)
LATER = Identity(seeded("a node that came later")(32))


def test_each_node_and_trainer_reads_a_name_and_no_other_key_does() -> None:
    for identity in (*ACTORS.compute_identities, ACTORS.trainer_identity):
        key = ACTORS.federation.name_key(identity)
        assert key is not None
        assert open_name(key, CERTIFICATE) == "Station 1"
    assert ACTORS.federation.name_key(ACTORS.client_identities[1]) is None
    for key in (bytes(32), ACTORS.federation.enrolment_key, LATER.seed):
        assert open_name(key, CERTIFICATE) == ""
    assert ACTORS.federation.name_key(ACTORS.trainer_identity) not in encode(ACTORS.federation.frame)


def test_the_broker_sees_neither_a_name_nor_its_length() -> None:
    network = ACTORS.network()
    network.deliver()
    sent = b"".join(one.payload for one in network.sent)
    assert ACTORS.certificate(0).name in sent, "certificates are on the wire"
    assert b"Station" not in sent
    lengths = {
        len(enrol(ACTORS.authority, ACTORS.federation, bytes(32), 1, name).name)
        for name in ("a", "Station 17", "b" * 48)
    }
    assert lengths == {88}
    assert enrol(ACTORS.authority, ACTORS.federation, bytes(32), 1).name == b""


def test_equal_names_look_different_in_two_certificates() -> None:
    """No two ciphertexts under one key share a nonce, unless all that they seal is equal."""
    sealed = [
        enrol(ACTORS.authority, ACTORS.federation, key, expires_ms, name).name
        for key, expires_ms, name in (
            (bytes(32), 1, "a"),
            (bytes(31) + b"1", 1, "a"),
            (bytes(32), 2, "a"),
            (bytes(32), 1, "b"),
        )
    ]
    assert len({one[:24] for one in sealed}) == 4
    assert sealed[0] == enrol(ACTORS.authority, ACTORS.federation, bytes(32), 1, "a").name


def test_a_node_that_joins_later_reads_earlier_names() -> None:
    file = ACTORS.federation
    members = (*file.computes, Member("later", LATER.public_key))
    newer = sign_federation(ACTORS.authority, msgspec.structs.replace(file, computes=members, number=2))
    key = newer.name_key(LATER)
    assert key is not None
    assert open_name(key, CERTIFICATE) == "Station 1"
    assert Federation.from_toml(newer.to_toml()) == newer


@pytest.mark.parametrize("name", [" begins with a space", "a\nb", "a/b", "x" * 49, "\u00e4" * 25, "a\x1b[2J"])
def test_a_name_that_a_certificate_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="a client is named"):
        enrol(ACTORS.authority, ACTORS.federation, bytes(32), 1, name)


def test_nodes_know_names_from_sessions_and_after_a_restart() -> None:
    network = ACTORS.network()
    network.deliver()
    client, node = ACTORS.clients[2], ACTORS.computes[0]
    shown = f"Station 2 ({short_id(client)})"
    assert network.actors[node].name_of(client) == shown
    network.restart(node)
    assert network.actors[node].name_of(client) == shown
    assert network.actors[node].name_of(ACTORS.computes[1]) == f"compute-1 ({short_id(ACTORS.computes[1])})"
    assert network.actors[node].name_of(bytes(16)) == "00000000"


def test_a_trainer_learns_the_name_of_a_client_that_declines() -> None:
    actors = Named(3, 2, name="decliners", policy=Policy(clients_min=1, honest_min=1, epsilon_per_round_max=1e-9))
    network = actors.network()
    network.deliver()
    network.command(actors.trainer_identity.id, actors.request())
    network.advance(network.now_ms + 1000)
    (first, *_) = network.reported(facts.Declined, actors.trainer_identity.id)
    place = actors.clients.index(first.client)
    assert network.actors[actors.trainer_identity.id].name_of(first.client).startswith(f"Station {place} (")


def test_a_trainer_remembers_a_bounded_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dca_proto.protocol.names.KNOWN_MAX", 2)
    assert KNOWN_MAX == 65536
    known = KnownNames(ACTORS.federation.name_key(ACTORS.trainer_identity))
    for index in (0, 1, 0, 2):
        known.learn(ACTORS.certificate(index))
    assert [known.get(client) for client in ACTORS.clients] == ["Station 0", "", "Station 2"]
