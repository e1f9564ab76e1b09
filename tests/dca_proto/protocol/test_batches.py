"""Mini-batches: who is picked, whose messages alone count, and what that costs whom."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
from failing_rounds import MU, TWO_ROUNDS, AccountedFederation, abort_of, trainer_of
from hypothesis import given, settings
from hypothesis import strategies as st
from round_helpers import (
    PowerCuts,
    announced,
    begin,
    exact_actors,
    exact_sum,
    losing,
    refused,
    results,
    sealed_by,
    sent,
    the_sum,
    until_the_end,
)

from dca_proto.aggregate import RoundRequest
from dca_proto.cli import main
from dca_proto.errors import UsageError
from dca_proto.jobs.job import Batches, JobTerms
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.protocol.effects import Channel, Persist
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Contributed, Declined
from dca_proto.protocol.ledger import CostToClients, max_client_cost
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import BudgetError
from dca_proto.protocol.trainer.round import ROUNDS, StoredTrainerRound
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Close, Contribution, Decline, Invitation, Progress
from dca_proto.runtime.store import SqliteStore
from dca_proto.testing import Network, NoNoise, TestFederation, seeded


def ids(count: int) -> tuple[bytes, ...]:
    return tuple(number.to_bytes(16, "big") for number in range(count))


# Who is picked


def words(*numbers: int) -> Callable[[int], bytes]:
    """Random bytes that were chosen: these numbers, one after the other."""
    left = iter(numbers)
    return lambda count: next(left).to_bytes(count, "little")


def test_every_batch_is_equally_likely() -> None:
    """Exactly: of the 5 * 4 * 3 equally likely outcomes of the draws, each of the batches has 3!."""
    drawn = itertools.product(range(5), range(4), range(3))
    batches = Counter(Batches().pick(ids(5), 3, words(*numbers)) for numbers in drawn)
    assert batches == dict.fromkeys(itertools.combinations(ids(5), 3), 6)


def test_a_draw_is_uniform_because_values_beyond_the_last_whole_multiple_are_drawn_again() -> None:
    """2^64 = 1 modulo 3 and 5: the one value 2^64 - 1 would make the first of three, or of five, more likely."""
    one, two, three = ids(3)
    assert Batches().pick((one, two, three), 1, words(2**64 - 1, 2)) == (three,)
    assert Batches().pick((one, two, three), 1, words(2**64 - 2)) == (three,), "that one counts"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.data())
def test_every_client_is_used_once_before_any_is_used_again(clients: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, clients))
    batches, uses, draw = Batches(), Counter(dict.fromkeys(ids(clients), 0)), seeded(f"{clients} {size}")
    for _ in range(2 * clients):
        batch = batches.pick(ids(clients), size, draw)
        assert len(set(batch)) == size
        assert batch == tuple(sorted(batch))
        batches.note(batch)
        uses.update(batch)
        assert max(uses.values()) - min(uses.values()) <= 1
    assert set(uses.values()) == {2 * size}, "N rounds of B are B epochs"


def test_a_late_client_is_used_first() -> None:
    batches = Batches()
    for _ in range(2):
        batches.note(ids(3))
    assert batches.pick(ids(5), 2, words()) == ids(5)[3:], "nothing is drawn where all of the least used fit"


def test_a_batch_that_was_given_back_waits_for_its_equals() -> None:
    """Its clients may not be there; but nobody else pays twice for that."""
    batches, (one, two, three, four) = Batches(), ids(4)
    batches.note((one, two))
    batches.give_back((one, two))
    assert batches.pick(ids(4), 2, words()) == (three, four)
    batches.note((three, four))
    assert batches.pick(ids(4), 2, words()) == (one, two)


@pytest.mark.parametrize("size", [0, -1, 4])
def test_a_batch_has_at_least_one_client_and_no_more_than_there_are(size: int) -> None:
    with pytest.raises(
        UsageError, match=f"a batch of {size} clients was requested and 3 are available; request 1 to 3"
    ):
        Batches().pick(ids(3), size, seeded("x"))


def test_the_terms_of_a_batch_expect_the_batch() -> None:
    terms = JobTerms(epsilon=1.0, delta=1e-6, clients=100, tolerate=1, computes=ids(2))
    request = RoundRequest("sum", {}, batch=3)
    assert terms.open(request, bytes(16), ids(3)).answers_expected == 3
    assert terms.open(request, bytes(16)).answers_expected == 100


# Who is invited, and whose messages count


def invite(actors: TestFederation, numbers: Iterable[int], network: Network | None = None, **changes: object):
    invited = tuple(actors.clients[number] for number in numbers)
    return begin(actors, network, invited=invited, **{"clients": 0, **changes})


@pytest.mark.parametrize(("batch", "tolerate", "colluders", "expected"), [
    (10, 10, 0, 1),  # a tenth may drop, of 100 clients or of 10
    (15, 10, 0, 2),  # rounded up
    (10, 10, 4, 5),  # all four colluders may have been picked
    (100, 10, 4, 10),
])  # fmt: skip
def test_a_batch_tolerates_as_large_a_part_as_a_round_of_everybody(
    batch: int, tolerate: int, colluders: int, expected: int
) -> None:
    terms = JobTerms(epsilon=1.0, delta=1e-6, clients=100, tolerate=tolerate, computes=(), colluders=colluders)
    invited = tuple(number.to_bytes(16, "big") for number in range(batch))
    opened = terms.open(RoundRequest("sum", {"columns": ["x"]}, batch=batch), bytes(16), invited)
    assert (opened.kind.tolerate, opened.kind.colluders, opened.kind.clients) == (expected, colluders, batch)


def test_only_the_invited_get_invitations_and_the_sum_is_theirs() -> None:
    actors = exact_actors(6)
    network, _ = invite(actors, (4, 0, 2))
    invitations = sent(network, Invitation)
    assert sorted(one.to.id for one in invitations) == sorted(actors.clients[n] for n in (4, 0, 2))
    assert {one.to.channel for one in invitations} == {Channel.CLIENT}
    frames = [decode_frame(one.payload) for one in invitations]
    assert len({frame.announcement for frame in frames}) == 1, "one signed announcement"
    assert [frame.position for frame in frames] == [0, 1, 2], "and each one's path"
    assert network.now_ms - Network().now_ms == 50, "nobody else was waited for"
    assert the_sum(network) == pytest.approx(exact_sum((0, 2, 4)))
    members = trainer_of(actors, network).contributors(invitations[0].round_id)
    assert members == tuple(sorted(actors.clients[n] for n in (0, 2, 4)))
    spent = [network.actors[client].ledger.spent().mu > 0 for client in actors.clients]
    assert spent == [True, False, True, False, True, False]


def test_invitations_are_repeated_until_the_close() -> None:
    """The trainer does not know who has contributed, only how many have: it repeats them to all who did not decline."""
    actors = exact_actors(6)
    network = actors.network()
    network.tamper = losing(Invitation, to=actors.clients[0])
    invite(actors, (0, 1, 2), network, tolerate=0)
    network.advance(network.now_ms + 10_000)
    invitation_counts = Counter(one.to.id for one in sent(network, Invitation))
    assert invitation_counts[actors.clients[0]] == invitation_counts[actors.clients[1]] >= 3
    network.tamper = lambda one: [one]
    network.advance(network.now_ms + 20_000)
    assert len(results(network)) == 1
    count = len(sent(network, Invitation))
    until_the_end(network)
    assert len(sent(network, Invitation)) == count


def test_a_batch_continues_without_absent_clients() -> None:
    actors = exact_actors(6)
    network = actors.network()
    network.crash(actors.clients[3])
    invite(actors, (0, 1, 3, 4), network)
    assert results(network) == []
    until_the_end(network)
    assert the_sum(network) == pytest.approx(exact_sum((0, 1, 4)))


def test_an_unrequested_decline_is_dropped() -> None:
    actors = exact_actors(6)
    network = actors.network()
    network.tamper = losing(Invitation)
    _, request = invite(actors, (0, 1, 2), network)
    opened, identity = announced(network, actors), actors.client_identities[5]
    body = Decline(request.round_id, opened.hash, actors.certificate(5), "no", "x", "y")
    payload = sealed_by(actors, identity, body, opened)
    refused(network, actors.trainer_identity.id, identity.id, payload, "invited")
    refused(network, actors.trainer_identity.id, actors.clients[0], payload, "sender")


def test_a_decline_of_an_invited_client_is_counted_and_not_waited_for() -> None:
    actors = exact_actors(6)
    network = actors.network()
    network.tamper = losing(Invitation, to=actors.clients[0])
    network, request = invite(actors, (0, 1, 2, 3), network)
    opened, identity = announced(network, actors), actors.client_identities[0]
    body = Decline(request.round_id, opened.hash, actors.certificate(0), "no", "x", "y")
    network.handle(actors.trainer_identity.id, Received(identity.id, sealed_by(actors, identity, body, opened)))
    network.advance(network.now_ms + actors.timing.progress_ms)
    assert len([fact for fact in network.reported(Declined) if fact.client == identity.id]) == 1
    assert the_sum(network) == pytest.approx(exact_sum((1, 2, 3)))


@pytest.mark.parametrize("lost", [Invitation, Contribution, Progress, Close])
def test_a_restarted_trainer_keeps_the_invitation(lost: type) -> None:
    actors = exact_actors(6)
    network = actors.network()
    network.tamper = losing(lost)
    invite(actors, (1, 2, 5), network)
    network.tamper = lambda one: [one]
    network.restart(actors.trainer_identity.id)
    until_the_end(network)
    assert {one.to.id for one in sent(network, Invitation)} == {actors.clients[n] for n in (1, 2, 5)}
    assert the_sum(network) == pytest.approx(exact_sum((1, 2, 5)))
    (charge,) = trainer_of(actors, network).ledger.charges
    assert charge.clients == tuple(actors.clients[n] for n in (1, 2, 5))


def test_an_impossible_invitation_is_the_callers_error() -> None:
    actors = exact_actors(6)
    network = actors.network()
    network.deliver()
    trainer, one = trainer_of(actors, network), actors.clients[0]

    def refusal(**changes: object) -> str:
        with pytest.raises(UsageError) as caught:
            trainer.check_request(actors.request(**{"clients": 0, **changes}), network.now_ms)
        return str(caught.value)

    assert "invited twice, or an id is not 16 bytes" in refusal(invited=(one, one))
    assert "invited twice, or an id is not 16 bytes" in refusal(invited=(one[1:],))
    assert "4 clients are expected and 1 are invited" in refusal(invited=(one,), clients=4)
    many = tuple(number.to_bytes(16, "big") for number in range(Limits().invited_max + 1))
    assert "65537 clients are invited, expected at most 65536" in refusal(invited=many)


# What it costs whom


each_cost = st.builds(PrivacyCost, *[st.just(0.0) | st.floats(1e-6, 4.0)] * 3)
costs = st.lists(st.builds(CostToClients, each_cost, st.frozensets(st.sampled_from(ids(4)), max_size=4)), max_size=8)


@settings(max_examples=100, deadline=None)
@given(costs, st.frozensets(st.sampled_from(ids(5)), max_size=5))
def test_the_worst_is_over_the_clients_that_are_looked_at(borne: list[CostToClients], among: frozenset[bytes]) -> None:
    everybody = ids(6)  # one of them in no batch at all
    each = [
        total(cost.each for cost in borne if not cost.clients or client in cost.clients)
        for client in (among or everybody)
    ]
    found = max_client_cost(borne, among)
    for part in ("gaussian", "pure", "converted"):
        assert getattr(found, part) == pytest.approx(max(getattr(one, part) for one in each), rel=1e-12)


def epoch_lab() -> tuple[AccountedFederation, Network]:
    actors = AccountedFederation(6, 3, mechanism=NoNoise())
    network = actors.network()
    network.deliver()
    return actors, network


def refusal(actors: TestFederation, network: Network, numbers: Iterable[int], **changes: object) -> str | None:
    invited = tuple(actors.clients[number] for number in numbers)
    request = actors.request(invited=invited, clients=0, **changes)
    try:
        trainer_of(actors, network).check_request(request, network.now_ms)
    except BudgetError as error:
        return str(error)
    return None


def test_epochs_charge_each_client_its_own_rounds_up_to_the_budget() -> None:
    """The account has room for two rounds: four batches of half of the clients, two epochs; not for a third use."""
    actors, network = epoch_lab()
    for numbers in ((0, 1, 2), (3, 4, 5), (0, 2, 4), (1, 3)):
        assert refusal(actors, network, numbers, tolerate=0) is None
        invite(actors, numbers, network, tolerate=0)
    assert len(results(network)) == 4
    ledger = trainer_of(actors, network).ledger
    assert ledger.spent().mu == pytest.approx(MU * 2**0.5)
    assert ledger.spent(of=[actors.clients[5]]).mu == pytest.approx(MU)
    left = trainer_of(actors, network)._account.left(ledger, network.now_ms)
    assert refusal(actors, network, (0, 5), tolerate=0) == (
        "the federation's account: found a total of epsilon "
        f"{at_least(accounting.epsilon_of(MU * 3**0.5, 1e-6))} with this round; "
        f"expected <= 1.6 at delta 1e-06 in 365 days; "
        f"at most {at_most(left)} is left; ask for less, wait, or raise epsilon of [account]"
    ), "client 0 was in two rounds"
    with pytest.raises(BudgetError):
        trainer_of(actors, network).check_request(actors.request(), network.now_ms)
    trainer_of(actors, network).check_job([PrivacyCost.of_mu(MU)], network.now_ms, invited=[actors.clients[5]])
    with pytest.raises(BudgetError):
        trainer_of(actors, network).check_job([PrivacyCost.of_mu(MU)] * 2, network.now_ms, invited=[actors.clients[5]])


def test_a_round_of_everybody_counts_for_all_of_a_batch() -> None:
    actors, network = epoch_lab()
    begin(actors, network)
    invite(actors, (0, 1, 2), network)
    assert refusal(actors, network, (0, 4, 5)) is not None
    assert refusal(actors, network, (3, 4, 5)) is None
    invite(actors, (3, 4, 5), network)
    assert refusal(actors, network, (3, 4), tolerate=0) is not None
    assert trainer_of(actors, network).ledger.spent().mu == pytest.approx(MU * 2**0.5)


def test_the_charge_of_a_batch_is_returned_to_its_clients() -> None:
    actors, network = epoch_lab()
    network.tamper = losing(Contribution)
    _, request = invite(actors, (0, 1, 2), network)
    network.tamper = lambda one: ()
    ledger = trainer_of(actors, network).ledger
    assert ledger.is_charged(request.round_id)
    for node in range(3):
        network.handle(actors.trainer_identity.id, Received(*abort_of(actors, network, node)))
    assert not ledger.is_charged(request.round_id)
    assert ledger.spent().mu == 0


def test_an_invitation_is_stored_with_its_round() -> None:
    actors = exact_actors(6)
    network = actors.network()
    network.tamper = losing(Contribution)
    _, request = invite(actors, (1, 3, 4), network)
    stored = network.stores[actors.trainer_identity.id][ROUNDS, request.round_id]
    assert msgspec.msgpack.decode(stored, type=StoredTrainerRound).request.invited == tuple(
        actors.clients[n] for n in (1, 3, 4)
    )


def test_dca_ledger_shows_the_maximal_client_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    actors, network = epoch_lab()
    begin(actors, network)
    for numbers in ((0, 1, 2), (3, 4, 5)):
        invite(actors, numbers, network)

    async def save() -> None:
        store = SqliteStore(tmp_path / "trainer.db", bytes(32))
        records = network.stores[actors.trainer_identity.id].items()
        await store.commit([Persist(table, key, value) for (table, key), value in records])
        await store.close()

    asyncio.run(save())
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["ledger", str(tmp_path / "trainer.db"), "--json", "-"]) == 0
    out, shown = capsys.readouterr()
    ledger = json.loads(out)
    assert ledger["mu_spent"] == pytest.approx(MU * 2**0.5), "nobody was in both of the batches"
    assert [one["invited"] for one in ledger["charges"]] == [None, 3, 3]
    assert shown.count("counts for 3") == 2
    assert "mu = 0.3348, of the client charged most" in shown


# Power failures


KILLS = 15


def test_power_failures_never_spend_more_of_a_client_than_its_own_batches() -> None:
    """The trainer is killed before, within and after its transactions, in concurrent batches that overlap."""
    kills, completed, seed = 0, 0, 0
    while kills < KILLS:
        seed += 1
        generator = random.Random(seed)
        actors = AccountedFederation(6, 2, mechanism=NoNoise())
        network = actors.network(PowerCuts(generator))
        network.deliver()
        trainer = actors.trainer_identity.id
        network.victims = {trainer}
        for _ in range(5):
            if trainer not in network.down:
                invited = tuple(generator.sample(actors.clients, 3))
                request = actors.request(invited=invited, clients=0, epsilon=0.9)
                network.command(trainer, request)
            network.deliver_some(generator.randint(5, 60))
            network.restart_some(0.5)
        network.victims = set()
        network.restart_some(1.0)
        until_the_end(network)
        kills += network.kills["before"] + network.kills["after"] + network.kills["between"]
        ledger, spent = trainer_of(actors, network).ledger, defaultdict(float)
        for who, fact in network.facts:
            if isinstance(fact, Contributed):
                assert who in ledger[fact.round_id].clients, "nobody shares whom the account does not charge"
                spent[who] += 0 if ledger[fact.round_id].returned else fact.mu**2
        assert ledger.spent().mu <= TWO_ROUNDS.mu
        assert all(spent[who] ** 0.5 <= ledger.spent(of=[who]).mu * (1 + 1e-12) for who in spent)
        completed += len(results(network))
    assert completed >= KILLS / 8
