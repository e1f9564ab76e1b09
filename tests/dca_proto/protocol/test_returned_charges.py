"""A client's charge comes back against aborts of p + 1 nodes of its round, counted by its own file (DESIGN §4.8)."""

from __future__ import annotations

import msgspec
import pytest

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.effects import Effect, Persist
from dca_proto.protocol.events import Received
from dca_proto.protocol.federation import Federation, sign_federation
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.codec import encode, sign
from dca_proto.protocol.wire.messages import Abort
from dca_proto.testing import Network, TestFederation

OPEN = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=20, epsilon_per_period_max=40)
HOUR_MS = 3_600_000


class Paid:
    """A client of four Compute nodes that has paid for a round of which it hears no more."""

    def __init__(self, colluding: int, used: int = 4, policy: Policy = OPEN) -> None:
        self.actors = TestFederation(4, 4, colluding=colluding, policy=policy)
        self.network = self.actors.network()
        request = self.actors.request(computes=self.actors.computes[:used])
        self.network.command(self.actors.trainer_identity.id, request)
        self.network.tamper = lambda envelope: (envelope,) if envelope.to.channel.is_broadcast else ()
        self.network.deliver()
        self.round_id = request.round_id
        self.client = self.network.actors[self.actors.clients[0]]
        assert isinstance(self.client, Client)

    @property
    def hash(self) -> bytes:
        assert isinstance(self.client, Client)
        return self.client._rounds[self.round_id].hash

    @property
    def is_back(self) -> bool:
        assert isinstance(self.client, Client)
        return self.client.ledger[self.round_id].returned

    def abort(self, node: int, about: bytes = b"", detail: str = "") -> list[Effect]:
        identity = self.actors.compute_identities[node]
        body = Abort(self.round_id, about or self.hash, identity.id, "cancelled", detail, 0, 0, ())
        frame = encode(sign(identity, self.actors.federation.id, body))
        return self.network.handle(self.client.id, Received(identity.id, frame))

    def follow(self, file: Federation) -> None:
        signed = sign_federation(self.actors.authority, file)
        self.network.handle(self.client.id, Received(self.actors.trainer_identity.id, encode(signed.frame)))

    def next_file(self, **changes: object) -> Federation:
        file = self.client.federation
        return msgspec.structs.replace(file, number=file.number + 1, signature=bytes(64), **changes)


@pytest.mark.parametrize(("colluding", "needed"), [(1, 2), (2, 3), (3, 4), (0, 4)])
def test_a_charge_comes_back_once_against_p_and_one_nodes(colluding: int, needed: int) -> None:
    paid = Paid(colluding)
    for node in range(needed):
        assert not paid.is_back
        paid.abort(node)
    assert paid.is_back
    later = [effect for node in range(4) for effect in paid.abort(node)]
    assert not [effect for effect in later if isinstance(effect, Persist) and effect.table == LEDGER]


def test_a_nodes_second_abort_and_one_of_another_announcement_do_not_count() -> None:
    paid = Paid(1)
    paid.abort(0)
    paid.abort(0, detail="with another text")
    paid.abort(1, about=bytes(32))
    assert not paid.is_back
    paid.abort(2)
    assert paid.is_back


def test_a_node_that_is_not_of_the_round_does_not_count() -> None:
    paid = Paid(1, used=3)
    paid.abort(3)
    paid.abort(0)
    assert not paid.is_back
    paid.abort(1)
    assert paid.is_back


def test_a_removed_node_does_not_count_any_more() -> None:
    paid = Paid(1)
    paid.abort(0)
    gone = paid.client.federation.computes[0]
    paid.follow(paid.next_file(computes=paid.client.federation.computes[1:], revoked=(gone.id,)))
    paid.abort(1)
    assert not paid.is_back
    paid.abort(2)
    assert paid.is_back


def test_a_node_that_is_a_trainer_now_does_not_count_and_hinders_nobody() -> None:
    """Before, it counted as a member of the file, and the search for its name stopped each later abort."""
    paid = Paid(1)
    paid.abort(0)
    first, *others = paid.client.federation.computes
    moved = msgspec.structs.replace(first, name="moved", name_key=b"")
    paid.follow(paid.next_file(computes=tuple(others), trainers=(*paid.client.federation.trainers, moved)))
    paid.abort(1)
    assert not paid.is_back
    paid.abort(2)
    assert paid.is_back


def test_the_larger_p_counts_whichever_file_states_it() -> None:
    raised = Paid(1)
    raised.follow(raised.next_file(colluding=2))
    lowered = Paid(2, policy=msgspec.structs.replace(OPEN, accept_p=1))
    lowered.follow(lowered.next_file(colluding=1))
    for paid in (raised, lowered):
        paid.abort(0)
        paid.abort(1)
        assert not paid.is_back
        paid.abort(2)
        assert paid.is_back


def test_aborts_are_counted_anew_when_the_file_or_the_policy_changes() -> None:
    """Before, only at the next abort: if all had come, the charge stayed for good."""
    accepting = msgspec.structs.replace(OPEN, accept_p=1)
    for policy in (accepting, OPEN):
        paid = Paid(1, policy=policy)
        paid.follow(paid.next_file(colluding=2))
        paid.abort(0)
        paid.abort(1)
        assert not paid.is_back
        paid.follow(paid.next_file(colluding=1))
        assert paid.is_back is (policy is accepting)
        paid.actors.policy = accepting
        paid.client = paid.network.restart(paid.client.id)
        assert paid.is_back


def test_a_trusted_node_must_be_among_them() -> None:
    paid = Paid(1, policy=msgspec.structs.replace(OPEN, trusted_computes=("compute-3",)))
    paid.abort(0)
    paid.abort(1)
    assert not paid.is_back
    paid.abort(3)
    assert paid.is_back


@pytest.mark.parametrize(("at_first", "later"), [(("compute-3",), ()), ((), ("compute-3",))])
def test_what_a_policy_trusted_at_the_charge_counts_beside_what_it_trusts_now(
    at_first: tuple[str, ...], later: tuple[str, ...]
) -> None:
    paid = Paid(1, policy=msgspec.structs.replace(OPEN, trusted_computes=at_first))
    paid.actors.policy = msgspec.structs.replace(OPEN, trusted_computes=later)
    paid.client = paid.network.restart(paid.client.id)
    paid.abort(0)
    paid.abort(1)
    assert not paid.is_back
    paid.abort(3)
    assert paid.is_back


def test_a_node_that_replaces_a_trusted_one_under_its_name_is_not_the_trusted_one() -> None:
    paid = Paid(1, policy=msgspec.structs.replace(OPEN, trusted_computes=("compute-3",)))
    *others, old = paid.client.federation.computes
    new = msgspec.structs.replace(old, key=paid.actors.client_identities[3].public_key, name_key=b"")
    paid.follow(paid.next_file(computes=(*others, new), revoked=(old.id,)))
    for node in range(3):
        paid.abort(node)
    assert not paid.is_back


def test_no_abort_counts_once_the_time_is_over() -> None:
    """Even if the client was off and has not forgotten the round yet."""
    paid = Paid(1)
    paid.abort(0)
    paid.network.now_ms += 3 * HOUR_MS
    paid.abort(1)
    assert not paid.is_back


def test_aborts_count_over_a_restart() -> None:
    paid = Paid(1)
    paid.abort(0)
    paid.client = paid.network.restart(paid.client.id)
    assert not paid.is_back
    paid.abort(1)
    assert paid.is_back


def declines(actors: TestFederation, network: Network, used: int) -> bool:
    """Whether clients decline a round of so many nodes."""
    request = actors.request(computes=actors.computes[:used])
    network.actors[actors.trainer_identity.id]._present = lambda request: request  # a hostile one
    network.command(actors.trainer_identity.id, request)
    network.deliver()
    client = network.actors[actors.clients[0]]
    assert isinstance(client, Client)
    return bool(client._rounds[request.round_id].stored.decline)


def test_a_client_needs_more_nodes_than_may_be_corrupt() -> None:
    actors = TestFederation(4, 4, colluding=1)
    network = actors.network()
    assert not declines(actors, network, 2)
    actors = TestFederation(4, 4, colluding=2)
    network = actors.network()
    assert declines(actors, network, 2)
    assert not declines(actors, network, 3)
    actors = TestFederation(4, 4)
    network = actors.network()
    assert declines(actors, network, 3)
    assert not declines(actors, network, 4)


def test_a_client_that_keeps_to_an_earlier_p_says_how_to_accept_the_smaller_one() -> None:
    paid = Paid(3)
    paid.network.tamper = lambda envelope: (envelope,)
    file = sign_federation(paid.actors.authority, paid.next_file(colluding=1))
    for member in paid.network.actors:
        paid.network.handle(member, Received(bytes(16), encode(file.frame)))
    request = paid.actors.request(computes=paid.actors.computes[:2])
    paid.network.command(paid.actors.trainer_identity.id, request)
    paid.network.deliver()
    (declined,) = paid.client.declines.rounds
    assert (declined.reason, declined.found) == ("p", "2 Compute nodes")
    assert declined.expected.endswith("by an earlier federation file; with accept_p = 1, 2 are enough")


@pytest.mark.parametrize("first", [0, 2])
def test_a_smaller_p_needs_the_owners_consent(first: int) -> None:
    """All but one is larger than any number, also if there are more nodes later; a restart does not forget it."""
    for accepted, obeys in ((0, True), (1, False)):
        paid = Paid(first, policy=msgspec.structs.replace(OPEN, accept_p=accepted))
        paid.follow(paid.next_file(colluding=1))
        paid.client = paid.network.restart(paid.client.id)
        assert isinstance(paid.client, Client)
        assert paid.client._trust.p(paid.client.federation) == (paid.actors.federation.p if obeys else 1)
