"""Verified sums with the production actors: exact sums, cheats that are left out and named, openings that come once.

The cheats are those of `scripts/check_proofs.py`. A wrong proof passes with a probability below 2^-47, and all keys are
seeded, so no test here has a chance of a false alarm that could be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from round_helpers import (
    EASY,
    announced,
    begin,
    body_of,
    changed,
    exact_actors,
    exact_sum,
    failures,
    forged,
    hand_over,
    kind_of,
    losing,
    opened_list,
    passing,
    refused,
    resigned,
    results,
    sealed_list,
    sent,
    until_the_end,
)  # fmt: skip

from check_proofs import CHEATS
from dca_proto.crypto.bounded import Statement
from dca_proto.crypto.field import PRIME, Elements
from dca_proto.protocol import contribution
from dca_proto.protocol.charges import SeenCharges
from dca_proto.protocol.compute.agreement import Agreement, Judgement
from dca_proto.protocol.compute.round import ROUNDS
from dca_proto.protocol.effects import Effect, Persist, Send
from dca_proto.protocol.facts import Declined, Dropped, NodeAborted, Released
from dca_proto.protocol.lists import list_hash
from dca_proto.protocol.policy import Floors
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import decode_body, sign
from dca_proto.protocol.wire.kinds import SecureSum, VerifiedSum
from dca_proto.statistics import resolve
from dca_proto.statistics.contribution import contribution as contribution_of
from dca_proto.testing import Envelope, Network, NoNoise, TestFederation

Words = Callable[[Statement, NDArray[np.int64], bytes], Elements]
HONEST: Words = contribution.proven_words
SUM = VerifiedSum(tolerate=3)
BINS = {"columns": ["x"], "edges": [0.0, 1.0, 2.0, 3.0]}


def cheating(monkeypatch: pytest.MonkeyPatch, network: Network, cheats: dict[bytes, Words]) -> None:
    """Make some clients send other words from now on."""
    sending: list[bytes] = []

    def words(statement: Statement, value: NDArray[np.int64], root: bytes) -> Elements:
        return cheats.get(sending[-1], HONEST)(statement, value, root)

    monkeypatch.setattr(contribution, "proven_words", words)
    for client in network.actors:
        composer = getattr(network.actors[client], "_composer", None)
        if composer is None:
            continue

        def compose(*given: Any, of: bytes = client, honest: Any = composer.compose) -> Any:
            sending.append(of)
            return honest(*given)

        network.actors[client]._composer = type("Cheating", (), {"compose": staticmethod(compose)})()


def cheat(name: str) -> Words:
    rng = np.random.default_rng(sum(name.encode()))
    return lambda statement, value, root: CHEATS[name](statement, rng)


def played(
    actors: TestFederation, monkeypatch: pytest.MonkeyPatch, cheats: dict[int, Words], **changes: Any
) -> Network:
    network = actors.network()
    network.deliver()
    cheating(monkeypatch, network, {actors.clients[index]: words for index, words in cheats.items()})
    begin(actors, network, **{"kind": SUM, **changes})
    until_the_end(network)
    return network


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_without_noise_a_sum_is_exact(nodes: int) -> None:
    network, _ = begin(exact_actors(7, nodes), kind=SUM)
    until_the_end(network)
    (result,) = results(network)
    assert result.value.tolist() == [exact_sum(range(7))]
    assert (result.verified, result.unproven, result.contributors, result.private) == (True, (), 7, False)


def test_counts_and_several_rows_are_exact() -> None:
    """A count beside two columns, and up to two rows of each client, one of them incomplete."""
    rows = [np.array([[index / 8, -index / 4], [0.5, np.nan], [9, 9]]) for index in range(6)]
    actors = TestFederation(6, 3, columns=("x", "y"), rows=rows, mechanism=NoNoise())
    both = {"columns": ["x", "y"], "centre": [0.0] * 2, "scale": [1.0] * 2, "bound": [2.0] * 2, "count_weight": 2.0}
    network, _ = begin(actors, kind=SUM, parameters=both, rows_max=2)
    until_the_end(network)
    assert results(network)[0].value.tolist() == [sum(range(6)) / 8, -sum(range(6)) / 4, 12.0]


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_left_out_and_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    actors = exact_actors(8, 3)
    network = played(actors, monkeypatch, {2: cheat(name), 5: cheat(name)})
    (result,) = results(network)
    liars = sorted((actors.clients[2], actors.clients[5]))
    assert result.unproven == tuple(liars)
    assert result.value.tolist() == [exact_sum({*range(8)} - {2, 5})]
    assert result.contributors == 6
    assert network.actors[actors.trainer_identity.id].contributors(result.round_id) == tuple(
        sorted({*actors.clients} - {*liars})
    )


def with_bits(bits: Callable[[Statement], NDArray[np.int64]]) -> Words:
    """Words that prove these bits as an honest client would."""
    rng = np.random.default_rng(4)

    def words(statement: Statement, value: NDArray[np.int64], root: bytes) -> Elements:
        return statement.prove(bits(statement), rng.integers(0, PRIME, statement.blinds).astype(np.uint64))

    return words


def test_a_vote_in_every_bin_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """All bits are bits, so only the limit of the bins' sum shows it, whatever number stands for that sum."""
    actors = TestFederation(8, 3, rows=[np.array([[index % 3]]) for index in range(8)], mechanism=NoNoise())
    liar = with_bits(lambda statement: np.ones(statement.block.bits, dtype=np.int64))
    network = played(actors, monkeypatch, {0: liar}, statistic="histogram", parameters=BINS, rows_max=1)
    (result,) = results(network)
    assert result.unproven == (actors.clients[0],)
    assert result.value.tolist() == [2.0, 3.0, 2.0]


GRADIENT = {
    "columns": ["x", "z", "y"], "centre": [0.0] * 3, "scale": [1.0] * 3, "bound": [1.0] * 3, "theta": [0.0] * 3,
    "clip": 1.0, "family": "bernoulli", "intercept": True, "information": 1.0, "count_weight": 1.732,
}  # fmt: skip


def corner(statement: Statement) -> NDArray[np.int64]:
    """The bits of the box's corner, as if the squares fitted: only the norm shows that they do not."""
    x = np.array(statement.lows) + np.array(statement.sizes)
    return statement.encode(x, np.zeros(statement.noise_size, dtype=np.int64))


def outside(statement: Statement) -> NDArray[np.int64]:
    """Of a row that is as long as the radius in two coordinates."""
    x = np.zeros(len(statement.sizes), dtype=np.int64)
    x[:2] = np.array(statement.lows[:2]) + np.array(statement.sizes[:2])
    x[-1] = statement.sizes[-1]
    return statement.encode(x, np.zeros(statement.noise_size, dtype=np.int64))


def test_a_gradient_outside_its_ball_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores and information of a logistic regression, with a count: nine numbers in a ball, whose box is three times
    as wide. Two clients send rows within the box and outside the ball; all others' gradients are in the sum."""
    rng = np.random.default_rng(6)
    rows = [np.array([[*rng.uniform(-1, 1, 2), float(index % 2)]]) for index in range(9)]
    actors = TestFederation(9, 3, columns=("x", "z", "y"), rows=rows, mechanism=NoNoise())
    liars = {0: with_bits(corner), 4: with_bits(outside)}
    network = played(actors, monkeypatch, liars, statistic="gradient", parameters=GRADIENT, rows_max=1)
    (result,) = results(network)
    assert result.unproven == tuple(sorted(actors.clients[index] for index in liars))
    assert {fact.unproven for fact in network.reported(Released)} == {result.unproven}, "nodes name them, too"
    statistic = resolve("gradient", GRADIENT)
    fine = [contribution_of(statistic, rows[index], 1, 30) for index in range(9) if index not in liars]
    unit = 2.0**-result.fraction_bits
    assert np.abs(result.value - np.sum(fine, axis=0) * 2.0**-30).max() < 7 * unit, "each is rounded"
    assert 1 <= result.liar_factor < 1.03
    assert result.proven == "bounds and norm"
    assert len(result.value) == 10


def test_the_largest_value_within_the_bounds_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no proof can see: a lie within the bounds."""
    liar = with_bits(lambda statement: np.ones(statement.block.bits, dtype=np.int64))
    network = played(exact_actors(8, 3), monkeypatch, {0: liar})
    (result,) = results(network)
    assert result.unproven == ()
    assert result.value.tolist() == [1.0 + exact_sum(range(1, 8))]


def test_too_few_without_those_who_failed_is_an_abort_that_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = exact_actors(6, 3)
    network = played(actors, monkeypatch, {one: cheat("random words") for one in range(4)})
    (failure,) = failures(network)
    assert (failure.contributors, failure.needed) == (2, 3)
    assert "the proofs of 4 failed: " in failure.reason
    assert (failure.unproven, failure.hopeless) == (4, True), "2 others are fewer than the 3 that are needed"
    assert min(actors.clients[:4]).hex()[:12] in failure.reason
    named = {fact.unproven for fact in network.reported(NodeAborted)}
    assert named == {tuple(sorted(actors.clients[:4]))}


def test_too_few_of_whom_some_dropped_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two failed and two were lost: the four that have not failed would be enough."""
    actors = exact_actors(6, 3)
    network = actors.network()
    network.deliver()
    cheating(monkeypatch, network, {actors.clients[one]: cheat("random words") for one in range(2)})
    for lost in actors.clients[4:]:
        network.crash(lost)
    begin(actors, network, kind=SUM)
    until_the_end(network)
    (failure,) = failures(network)
    assert (failure.contributors, failure.needed, failure.unproven, failure.hopeless) == (2, 3, 2, False)


def test_another_batch_may_be_asked_although_most_proofs_of_one_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = exact_actors(8, 3)
    batch = tuple(sorted(actors.clients[:6]))
    of_six = VerifiedSum(clients=6, tolerate=3)
    network = played(actors, monkeypatch, {one: cheat("random words") for one in range(4)}, kind=of_six, invited=batch)
    (failure,) = failures(network)
    assert (failure.contributors, failure.unproven, failure.hopeless) == (2, 4, False)


# --- noise and cost ---------------------------------------------------------------------------------------------------


def test_the_noise_of_a_sum_has_the_stated_variance_whatever_clients_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty coordinates; half of the clients choose noise bits of 1. False alarms: 1e-6, and keys are seeded."""
    columns = tuple(f"x{index}" for index in range(30))
    flat = {"columns": list(columns), "centre": [0.0] * 30, "scale": [1.0] * 30, "bound": [1.0] * 30}
    actors = TestFederation(20, 2, columns=columns, rows=[np.zeros((1, 30))] * 20)

    def loud(statement: Statement, value: NDArray[np.int64], root: bytes) -> Elements:
        chosen = statement.encode(value, np.ones(statement.noise_size, dtype=np.int64))
        return statement.prove(chosen, np.arange(statement.blinds, dtype=np.uint64))

    network = played(actors, monkeypatch, dict.fromkeys(range(10), loud), parameters=flat)
    (result,) = results(network)
    assert (result.unproven, result.private) == ((), True)
    scaled = float((result.value**2).sum() / result.noise_variance)
    assert 8 < scaled < 77, "chi-squared of 30 degrees: the 5e-7 quantiles are 5.5 and 80"


# --- coins, openings and restarts -------------------------------------------------------------------------------------


def test_unverified_rounds_have_plain_messages() -> None:
    network, _ = begin(exact_actors(4), kind=SecureSum(tolerate=1))
    until_the_end(network)
    assert not [one for one in network.sent if kind_of(one) in (m.VerifiedAnswer, m.VerifiedHeader)]
    assert results(network)[0].verified is False


def begun(actors: TestFederation, *lost: type, **of: bytes) -> Network:
    """A round in which messages of some kinds are lost."""
    network = actors.network()
    network.deliver()
    network.tamper = losing(*lost, **of)
    begin(actors, network, kind=SUM)
    network.advance(network.now_ms + 5_000)
    return network


def opened_by(network: Network) -> dict[bytes, set[bytes]]:
    """All openings of each node that were ever sent, by itself or passed on."""
    found: dict[bytes, set[bytes]] = {}
    for one in sent(network, m.VerifiedAnswer):
        body = body_of(one.payload)
        found.setdefault(body.compute, set()).add(body.openings)
    return found


def test_restarted_nodes_open_the_same_and_release_the_same_sum() -> None:
    """Nodes are killed once they have answered, and once they have released: what they stored is sent again."""
    actors = exact_actors(5, 3)
    network = begun(actors, m.VerifiedAnswer)
    for node in actors.computes:
        network.restart(node)
    network.tamper = losing(m.VerifiedAnswer, to=actors.computes[1])
    network.advance(network.now_ms + 10_000)
    for node in actors.computes:
        network.restart(node)
    network.tamper = passing
    until_the_end(network)
    openings = opened_by(network)
    assert len(openings) == 3
    assert {len(ever) for ever in openings.values()} == {1}
    assert [one.value.tolist() for one in results(network)] == [[exact_sum(range(5))]]


def test_an_answer_is_durable_before_it_is_sent() -> None:
    actors = exact_actors(5, 2)
    network = begun(actors, m.Close)
    effects: list[Effect] = []
    for node in actors.computes:
        handle = network.actors[node].handle
        network.actors[node].handle = lambda event, now_ms, of=handle: effects.extend(made := of(event, now_ms)) or made
    network.tamper = passing
    until_the_end(network)
    at = next(place for place, one in enumerate(effects) if isinstance(one, Send) and is_answer(one.payload))
    stored = [one for one in effects[:at] if isinstance(one, Persist) and one.table == ROUNDS]
    assert effects[at].payload[2:40] in stored[-1].value, "the record has the signed answer"


def is_answer(payload: bytes) -> bool:
    return isinstance(body_of(payload), m.VerifiedAnswer)


def test_a_node_that_sends_two_coins_ends_the_round() -> None:
    """The challenge would differ between honest nodes. Their answers name other lists, and no sum is released."""
    actors = exact_actors(6, 3)
    network = begun(actors, m.FrozenList)
    liar, victim = actors.compute_identities[0], actors.computes[2]

    def tamper(envelope: Envelope) -> list[Envelope]:
        if (envelope.sender, envelope.to.id, kind_of(envelope)) != (liar.id, victim, m.FrozenList):
            return [envelope]
        return [other_coin(network, actors, envelope, hashed=True)]

    network.tamper = tamper
    until_the_end(network)
    assert results(network) == []
    reasons = {fact.reason for fact in network.reported(NodeAborted)}
    assert "equivocation" in reasons


def other_coin(network: Network, actors: TestFederation, envelope: Envelope, *, hashed: bool) -> Envelope:
    """A list with another coin in its header; `hashed` if the list's hash covers it."""
    body, identity = opened_list(network, actors, envelope), actors.compute_identities[0]
    header, coin = decode_body(body.header.body), bytes(range(16))
    changes: dict[str, Any] = {"coin": coin}
    if hashed:
        changes["list_hash"] = list_hash(announced(network, actors).hash, envelope.sender, body.entries, coin)
    signed = sign(identity, actors.federation.id, msgspec.structs.replace(header, **changes))
    changed_list, opened = msgspec.structs.replace(body, header=signed), announced(network, actors)
    return changed(envelope, sealed_list(actors, identity, changed_list, opened, envelope.to.id))


def test_a_coin_that_the_hash_does_not_cover_is_refused() -> None:
    actors = exact_actors(6, 3)
    network = begun(actors, m.FrozenList)
    envelope = sent(network, m.FrozenList, sender=actors.computes[0], to=actors.computes[1])[0]
    wrong = other_coin(network, actors, envelope, hashed=False)
    refused(network, actors.computes[1], actors.computes[0], wrong.payload, "list")


def answered(actors: TestFederation) -> tuple[Network, Envelope]:
    """A round in which the first node's answer is lost, and that answer."""
    network = begun(actors, m.VerifiedAnswer, sender=actors.computes[0])
    return network, sent(network, m.VerifiedAnswer, sender=actors.computes[0])[0]


def test_an_answer_without_openings_is_refused() -> None:
    actors = exact_actors(6, 2)
    network, envelope = answered(actors)
    body = body_of(envelope.payload)
    plain = m.Answer(body.round_id, body.announcement_hash, body.compute, body.lists, body.objections)
    wrong = forged(actors, actors.compute_identities[0], plain)
    refused(network, actors.computes[1], actors.computes[0], wrong, "kind")


@pytest.mark.parametrize("openings", [b"", bytes(16), bytes(16 * 7), b"\xff" * 16 * 6])
def test_openings_that_do_not_fit_end_the_round(openings: bytes) -> None:
    actors = exact_actors(6, 2)
    network, envelope = answered(actors)
    wrong = resigned(actors, actors.compute_identities[0], envelope.payload, openings=openings)
    network.tamper = passing
    hand_over(network, changed(envelope, wrong))
    until_the_end(network)
    assert results(network) == []
    assert "invalid-answer" in {fact.reason for fact in network.reported(NodeAborted)}


def test_a_lying_node_fails_an_honest_client_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no node can prove: the result names the client, and not the node."""
    actors, judge = exact_actors(6, 2), Agreement.judge

    def lying(agreement: Agreement, charges: SeenCharges) -> Judgement:
        honest = judge(agreement, charges)
        if agreement._round.own != actors.computes[0]:
            return honest
        return msgspec.structs.replace(honest, openings=bytes(16) + honest.openings[16:])

    monkeypatch.setattr(Agreement, "judge", lying)
    network, _ = begin(actors, kind=SUM)
    until_the_end(network)
    (result,) = results(network)
    assert len(result.unproven) == 1
    assert result.contributors == 5


def test_sums_of_the_same_wrong_length_make_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Agreement.partial_sum

    def longer(agreement: Agreement, chosen: Any) -> tuple[bytes, bytes]:
        clients, vector = honest(agreement, chosen)
        return clients, vector + bytes(4)

    monkeypatch.setattr(Agreement, "partial_sum", longer)
    network, _ = begin(exact_actors(5, 3), kind=SUM)
    until_the_end(network)
    (failure,) = failures(network)
    assert "a sum of the wrong length" in failure.reason


def test_a_contribution_with_a_word_of_p_is_dropped_at_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = exact_actors(8, 3)
    network = actors.network()
    network.deliver()
    monkeypatch.setattr(contribution, "pack", lambda words: b"\xff" * 4 * len(words))
    begin(actors, network, kind=SUM)
    dropped = [fact for fact in network.reported(Dropped) if fact.code == "contribution"]
    assert len({fact.sender for fact in dropped}) == 8
    assert all("a word that is P or more" in fact.detail for fact in dropped)


@pytest.mark.parametrize("wanted", [True, False])
def test_owners_may_want_verified_sums_only(wanted: bool) -> None:
    policy = msgspec.structs.replace(EASY, verified=wanted)
    actors = exact_actors(5, 3, policy=policy)
    network, _ = begin(actors)
    until_the_end(network)
    assert bool(results(network)) is not wanted
    assert {fact.reason for fact in network.reported(Declined)} == ({"verified"} if wanted else set())
    network, _ = begin(actors, kind=SUM)
    until_the_end(network)
    assert len(results(network)) == 1


def test_a_node_may_want_verified_sums_only() -> None:
    actors = exact_actors(5, 3, floors=Floors(clients_min=1, honest_min=1, verified=True))
    network, _ = begin(actors)
    until_the_end(network)
    assert {fact.reason for fact in network.reported(NodeAborted)} == {"verified"}
