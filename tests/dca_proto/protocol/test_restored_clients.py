"""Clients that are restored from a backup ask the nodes first, and no budget is overspent (DESIGN §8.1)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest
from round_helpers import (
    EASY,
    begin,
    body_of,
    exact_actors,
    exact_sum,
    forged,
    losing,
    passing,
    refused,
    restore,
    results,
    sent,
    until_the_end,
)

from dca_proto.protocol import restore as backups
from dca_proto.protocol.charges import NUMBER_MAX
from dca_proto.protocol.effects import Channel, Send
from dca_proto.protocol.facts import Declined, LedgerRestored, LedgerReused
from dca_proto.protocol.federation import sign_federation
from dca_proto.protocol.keyring import TABLE as EPOCH_KEYS
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.restore import RESTORED
from dca_proto.protocol.wire.messages import (
    Abort,
    ChargesStated,
    ChargesWanted,
    FederationFile,
    FileStamp,
    FrozenList,
    Hello,
    Sealed,
)
from dca_proto.testing import Envelope, Network, TestFederation

SUMS_ONLY = msgspec.structs.replace(EASY, sums_only=True, epsilon_per_round_max=2.0, epsilon_per_period_max=20.0)
HOUR_MS = 3_600_000


def at(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def backup_of(network: Network, actor: bytes, role: str = "client") -> tuple[backups.Rows, int]:
    """A backup, and its time."""
    records = [(table, key, value) for (table, key), value in sorted(network.stores[actor].items())]
    running = network.actors[actor]
    policy = running._consent.policy if role == "client" else None
    return backups.kept_in_backup(role, records, running._federation, network.now_ms, policy), network.now_ms


def from_backup(network: Network, actor: bytes, backup: tuple[backups.Rows, int]) -> None:
    """Restart an actor with a store that was made from a backup."""
    restore(network, actor, {(t, k): v for t, k, v in backup[0]})


def lived(
    kept: int, lost: int, policy: Policy = SUMS_ONLY, **about: object
) -> tuple[TestFederation, Network, bytes, tuple[backups.Rows, int]]:
    """A client that took part in `kept` rounds before its backup, and in `lost` after it."""
    actors = exact_actors(policy=policy, **about)
    network, victim = actors.network(), actors.clients[0]
    network.advance(network.now_ms + HOUR_MS)
    backup = backup_of(network, victim)
    for number in range(kept + lost):
        if number == kept:
            backup = backup_of(network, victim)
        begin(actors, network)
        until_the_end(network)
    return actors, network, victim, backup if lost else backup_of(network, victim)


def numbers(network: Network, client: bytes) -> list[int]:
    return [charge.number for charge in network.actors[client].ledger.charges]


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_restored_client_books_what_it_has_forgotten_and_goes_on(lost: int) -> None:
    actors, network, victim, backup = lived(2, lost)
    from_backup(network, victim, backup)
    network.deliver()
    assert [(one.forgotten, one.epsilon_left > 0) for one in network.reported(LedgerRestored, victim)] == [(lost, True)]
    assert numbers(network, victim) == [*range(1, 3 + lost)]
    booked = network.actors[victim].ledger.charges[2:]
    assert {(one.statistic, one.epsilon) for one in booked} == ({(RESTORED, 2.0)} if lost else set())
    assert (RESTORED, b"") not in network.stores[victim]
    begin(actors, network)
    until_the_end(network)
    assert results(network)[-1].value.tolist() == [exact_sum(range(4))], "it takes part again, under a fresh number"
    assert network.reported(LedgerReused) == []


def test_it_declines_until_the_last_node_has_answered() -> None:
    actors, network, victim, backup = lived(1, 1)
    last = actors.computes[2]
    network.tamper = losing(ChargesWanted, to=last)
    from_backup(network, victim, backup)
    begin(actors, network)
    until_the_end(network)
    (declined,) = network.reported(Declined, victim)
    assert declined.reason == "restored"
    assert "1 of 3 Compute nodes are silent: compute-2" in network.actors[victim].lacks_charges
    assert "1 of 3 Compute nodes are silent" in declined.found
    assert numbers(network, victim) == [1]
    network.restart(victim)
    assert network.actors[victim].ledger.next_number == 2, "a restart forgets the answers, not the mark"
    network.tamper = passing
    until_the_end(network)
    assert numbers(network, victim) == [1, 2]


def test_a_client_whose_policy_allows_other_rounds_books_all_its_budget() -> None:
    """Nobody has counted those."""
    actors, network, victim, backup = lived(1, 1, EASY)
    from_backup(network, victim, backup)
    network.deliver()
    assert [one.epsilon_left for one in network.reported(LedgerRestored, victim)] == [0.0]
    begin(actors, network)
    assert [one.reason for one in network.reported(Declined, victim)] == ["budget"]


def test_more_forgotten_charges_than_the_budget_has_room_for_book_all_of_it() -> None:
    tight = msgspec.structs.replace(SUMS_ONLY, epsilon_per_round_max=3.0, epsilon_per_period_max=4.0)
    _, network, victim, backup = lived(0, 3, tight)
    from_backup(network, victim, backup)
    network.deliver()
    assert numbers(network, victim) == [3]
    assert network.reported(LedgerRestored, victim)[0].epsilon_left == 0.0


# --- in flight --------------------------------------------------------------------------------------------------------


def test_a_forgotten_contribution_that_is_still_on_its_way_is_in_no_sum() -> None:
    """The nodes state the number before that round is agreed on, so only their objections keep it out."""
    actors, network, victim, backup = lived(1, 1)
    network.tamper = losing(FrozenList)
    begin(actors, network)  # the client pays with its third charge, and the nodes hold it
    assert numbers(network, victim) == [1, 2, 3]
    from_backup(network, victim, backup)
    network.deliver()
    assert numbers(network, victim) == [1, 2], "no node has recorded the third"
    network.tamper = passing
    until_the_end(network)
    assert results(network)[-1].value.tolist() == [exact_sum(range(1, 4))]


def test_that_test_bites_if_nodes_keep_the_earlier_session(monkeypatch: pytest.MonkeyPatch) -> None:
    from dca_proto.protocol.sessions import SessionTable

    monkeypatch.setattr(SessionTable, "take_alone", SessionTable.take)
    actors, network, victim, backup = lived(1, 1)
    network.tamper = losing(FrozenList)
    begin(actors, network)
    from_backup(network, victim, backup)
    network.deliver()
    network.tamper = passing
    until_the_end(network)
    assert results(network)[-1].value.tolist() == [exact_sum(range(4))], "seen, and forgotten by the ledger"
    assert numbers(network, victim) == [1, 2]


def test_a_lost_hello_that_comes_again_revives_no_session() -> None:
    actors, network, victim, backup = lived(1, 1)
    old = [one for one in network.sent if one.sender == victim and isinstance(body_of(one.payload), Hello)][-1]
    from_backup(network, victim, backup)
    network.deliver()
    for node in actors.computes:
        refused(network, node, victim, old.payload, "hello")


# --- lies -------------------------------------------------------------------------------------------------------------


def lying(actors: TestFederation, node: int, **lies: int) -> Callable[[Envelope], list[Envelope]]:
    """A node's statements, with other figures."""

    def hook(envelope: Envelope) -> list[Envelope]:
        body = body_of(envelope.payload)
        if not isinstance(body, ChargesStated) or envelope.sender != actors.computes[node]:
            return [envelope]
        payload = forged(actors, actors.compute_identities[node], msgspec.structs.replace(body, **lies))
        return [Envelope(envelope.sender, Send(envelope.to, b"", payload))]

    return hook


@pytest.mark.parametrize("lie", [0, 1, NUMBER_MAX])
@pytest.mark.parametrize("liars", [1, 2])
def test_lying_nodes_only_raise_what_is_booked(lie: int, liars: int) -> None:
    actors, network, victim, backup = lived(1, 2)

    def hook(envelope: Envelope) -> list[Envelope]:
        found = [envelope]
        for node in range(liars):
            found = [other for one in found for other in lying(actors, node, highest=lie)(one)]
        return found

    network.tamper = hook
    from_backup(network, victim, backup)
    network.deliver()
    assert numbers(network, victim)[-1] == max(lie, 3), "an honest node's statement is the least"
    assert network.reported(LedgerRestored, victim)[0].forgotten == max(lie, 3) - 1


def test_a_node_with_a_store_from_after_the_backup_does_not_count() -> None:
    """Neither does one with a restored store: it begins to count anew."""
    actors, network, victim, backup = lived(1, 1)
    node = actors.computes[1]
    from_backup(network, node, backup_of(network, node, "compute"))
    from_backup(network, victim, backup)
    begin(actors, network)
    (declined,) = network.reported(Declined, victim)
    began_ms = network.actors[node]._since_ms
    assert declined.found.endswith(
        f"; the store of Compute node {actors.federation.name_of(node)} began on {at(began_ms)}"
    )
    assert "stores that began 10 minutes before the backup or earlier" in declined.expected
    assert numbers(network, victim) == [1]


@pytest.mark.parametrize("ahead_ms", [0, 1])
def test_a_nodes_store_has_to_be_older_than_the_backup_by_what_clocks_may_differ(ahead_ms: int) -> None:
    actors, network, victim, backup = lived(1, 0)
    since_ms = backup[1] - actors.timing.clocks_ms + ahead_ms
    network.tamper = lying(actors, 0, since_ms=since_ms)
    from_backup(network, victim, backup)
    network.deliver()
    assert len(network.reported(LedgerRestored, victim)) == 1 - ahead_ms
    named = f"the store of Compute node {actors.federation.computes[0].name} began on {at(since_ms)}"
    assert (named in network.actors[victim].lacks_charges) == bool(ahead_ms)


def test_a_node_that_has_left_since_the_backup_is_missed_for_good() -> None:
    actors, network, victim, backup = lived(1, 1)
    federation = actors.federation
    without = msgspec.structs.replace(
        federation,
        number=2,
        computes=federation.computes[:2],
        revoked=(federation.computes[2].id,),
    )
    actors.federation = sign_federation(actors.authority, without)  # the owner gives the newest file to the restore
    from_backup(network, victim, backup)
    assert network.actors[victim]._federation.number == 2
    network.deliver()
    assert network.reported(LedgerRestored, victim) == []
    assert network.actors[victim]._unusable() == [federation.computes[2].id]
    assert "Compute node " in (lacks := network.actors[victim].lacks_charges)
    assert "has left; expected Compute nodes that stay" in lacks


def test_a_client_with_an_old_federation_file_waits_for_the_newest() -> None:
    """A node that it does not know may have been the only honest one of a round that it has forgotten."""
    actors, network, victim, backup = lived(1, 1)
    old = actors.federation
    actors.federation = sign_federation(actors.authority, msgspec.structs.replace(old, number=2))
    network.tamper = losing(FederationFile)
    for node in actors.computes:
        network.restart(node)
        del network._retained[node, Channel.FEDERATION]
    actors.federation = old
    from_backup(network, victim, backup)
    network.deliver()
    assert network.reported(LedgerRestored, victim) == []
    refusal = network.actors[victim]._asks_nodes()
    assert refusal is not None
    assert "a Compute node has number 2" in refusal.found
    network.tamper = passing
    actors.federation = sign_federation(actors.authority, msgspec.structs.replace(old, number=2))
    network.restart(actors.computes[0])  # it publishes the file again
    network.deliver()
    assert network.actors[victim]._federation.number == 2
    assert numbers(network, victim) == [1, 2]
    assert network.actors[victim].lacks_charges == ""


def test_a_node_that_has_joined_and_left_since_the_backup_delays_nobody() -> None:
    actors, network, victim, backup = lived(1, 1)
    network.tamper = losing(ChargesWanted, to=actors.computes[2])
    from_backup(network, victim, backup)
    network.deliver()
    client = network.actors[victim]
    stated = client._stated[actors.computes[0]]
    client._stated[bytes(16)] = msgspec.structs.replace(stated, file=FileStamp(1_000, bytes(32)))
    network.tamper = passing
    until_the_end(network)
    assert numbers(network, victim) == [1, 2]


@pytest.mark.parametrize("then", [False, True])
def test_sums_only_counts_if_it_was_set_when_the_backup_was_made(then: bool) -> None:
    """Nobody has counted the reports of a client whose owner sets it only afterwards."""
    actors, network, victim, backup = lived(1, 1, SUMS_ONLY if then else EASY)
    actors.policy = SUMS_ONLY
    from_backup(network, victim, backup)
    network.deliver()
    assert [one.epsilon_left > 0 for one in network.reported(LedgerRestored, victim)] == [then]


def test_forgotten_rounds_cost_what_the_policy_allowed_then_and_the_slack_of_verified_ones() -> None:
    actors, network, victim, backup = lived(1, 1)
    actors.policy = msgspec.structs.replace(SUMS_ONLY, epsilon_per_round_max=0.1)
    from_backup(network, victim, backup)
    network.deliver()
    booked = network.actors[victim].ledger.charges[-1]
    assert (booked.statistic, booked.epsilon) == (RESTORED, SUMS_ONLY.epsilon_per_round_max)
    assert booked.slack == SUMS_ONLY.dimension_max * 2.0**-64


def test_a_store_that_is_restored_twice_counts_from_the_older_backup() -> None:
    _, network, victim, backup = lived(1, 1)
    network.tamper = losing(ChargesWanted)
    from_backup(network, victim, backup)
    network.deliver()
    until_the_end(network)
    again = backup_of(network, victim)
    from_backup(network, victim, again)
    assert network.actors[victim]._mark.backup_ms == backup[1]


# --- messages ---------------------------------------------------------------------------------------------------------


def test_answers_to_earlier_questions_and_of_others_count_for_nothing() -> None:
    actors, network, victim, backup = lived(1, 1)
    network.tamper = losing(ChargesWanted)
    from_backup(network, victim, backup)
    network.deliver()
    node, identity = actors.computes[0], actors.compute_identities[0]
    nonce, file = network.actors[victim]._nonce, actors.federation.stamp
    for client, named in ((victim, bytes(16)), (actors.clients[1], nonce)):
        refused(network, victim, node, forged(actors, identity, ChargesStated(client, named, 1, 1, file)), "phase")
    own = forged(actors, identity, ChargesStated(victim, nonce, 1, 1, file))
    refused(network, victim, actors.computes[1], own, "signature")
    refused(network, victim, actors.clients[1], own, "unknown-compute")
    refused(network, actors.clients[1], node, own, "phase")
    assert network.actors[victim]._stated == {}


def test_questions_need_the_clients_own_newest_hello() -> None:
    actors, network, victim, backup = lived(1, 1)
    from_backup(network, victim, backup)
    network.deliver()
    questions = sent(network, ChargesWanted, victim)
    assert [one.to.id for one in questions] == list(actors.computes)
    node, question = actors.computes[0], questions[0].payload
    slot = network.actors[node]._sessions.slots[victim]
    before = network.actors[node]._sessions._stored(slot)
    network.advance(network.now_ms + HOUR_MS)
    refused(network, node, actors.clients[1], question, "sender")
    other = forged(actors, actors.client_identities[1], body_of(question))
    refused(network, node, victim, other, "signature")
    network.restart(victim)
    network.now_ms += actors.timing.epoch_ms
    network.advance(network.now_ms + 1)  # its Hello of the next epoch
    assert network.actors[node]._sessions._stored(slot).previous is not None, "an ordinary renewal keeps it"
    assert before.previous is None
    network.advance(network.now_ms + HOUR_MS)
    known = network.actors[node]._sessions._stored(slot)
    refused(network, node, victim, question, "hello")
    assert network.actors[node]._sessions._stored(slot) == known, "an old question makes nobody forget a newer session"


def test_a_backup_has_no_secret_of_an_epoch_and_no_round() -> None:
    actors, network, victim, _ = lived(1, 0)
    begin(actors, network)
    for role, actor in (("client", victim), ("compute", actors.computes[0]), ("trainer", actors.trainer_identity.id)):
        rows, _ = backup_of(network, actor, role)
        tables = {table for table, _, _ in rows}
        assert EPOCH_KEYS not in tables
        assert not any("round" in table or "announce" in table or table in ("list", "contribution") for table in tables)
        whole = b"".join(value for _, _, value in rows)
        for secret in (value for (table, _), value in network.stores[actor].items() if table == EPOCH_KEYS):
            assert secret not in whole


def test_a_restored_node_is_as_one_with_a_fresh_store_but_knows_older_numbers() -> None:
    actors, network, victim, _ = lived(2, 0)
    node = actors.computes[0]
    backup = backup_of(network, node, "compute")
    network.tamper = losing(Sealed)  # no lists arrive
    _, request = begin(actors, network)
    network.tamper = passing
    from_backup(network, node, backup)
    assert not network.actors[node].knows(request.round_id)
    assert network.actors[node]._charges.highest(network.actors[node]._sessions.slots[victim]) == 2
    until_the_end(network)
    assert request.round_id not in {body_of(one.payload).round_id for one in sent(network, Abort, node)}
    assert len(results(network)) == 2, "the open round has no result: the node has another key"
    begin(actors, network)
    until_the_end(network)
    assert len(results(network)) == 3


def test_a_restored_trainers_account_counts_what_its_owner_states() -> None:
    actors, network, _, _ = lived(1, 0)
    trainer, limit = actors.trainer_identity.id, SUMS_ONLY.budget_limit
    rows, at_ms = backup_of(network, trainer, "trainer")
    for stated, left in ((1.5, True), (None, False)):
        charge = backups.spent_since(rows, limit, stated, bytes(16), trainer, at_ms)
        assert charge[0] == LEDGER
        restore(network, trainer, {(t, k): v for t, k, v in [*rows, charge]})
        assert (limit.left(network.actors[trainer].ledger, at_ms) > 0) == left
