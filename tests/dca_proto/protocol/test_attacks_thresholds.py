"""Attacks on the thresholds: how many must contribute, how much noise there is, and what a client agrees to."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from round_helpers import (
    announced,
    begin,
    body_of,
    exact_actors,
    exact_sum,
    failures,
    losing,
    resigned,
    results,
    sent,
    the_sum,
    until_the_end,
)

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.protocol.effects import Send
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Declined, NodeAborted, Released
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Floors, Policy, Refusal
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.kinds import SecureSum
from dca_proto.protocol.wire.messages import Abort, Announcement, Contribution
from dca_proto.testing import Network, TestFederation


def dropping(clients: int, tolerate: int, dropped: int, colluders: int = 0, mechanism: Any = None) -> Network:
    """A round in which the first `dropped` clients' contributions are lost."""
    actors = exact_actors(clients, 3, **({"mechanism": mechanism} if mechanism else {}))
    network = actors.network()
    silent = set(actors.clients[:dropped])
    network.tamper = lambda one: (
        [] if isinstance(body_of(one.payload), Contribution) and one.sender in silent else [one]
    )
    begin(actors, network, tolerate=tolerate, colluders=colluders)
    until_the_end(network)
    return network


@pytest.mark.parametrize(("tolerate", "colluders"), [(0, 0), (1, 0), (3, 0), (3, 1), (3, 3)])
def test_attack_13_exactly_as_many_as_needed_give_a_result(tolerate: int, colluders: int) -> None:
    """|A| = n_min = N - T + c is enough."""
    network = dropping(8, tolerate, tolerate - colluders, colluders)
    assert the_sum(network).tolist() == [exact_sum(range(tolerate - colluders, 8))]
    (result,) = results(network)
    assert result.contributors == result.n_min == 8 - tolerate + colluders
    assert result.colluders == colluders


@pytest.mark.parametrize(("tolerate", "colluders"), [(0, 0), (1, 0), (3, 0), (3, 1), (3, 3)])
def test_attack_13_one_fewer_aborts_with_the_figures_and_releases_nothing(tolerate: int, colluders: int) -> None:
    network = dropping(8, tolerate, tolerate - colluders + 1, colluders)
    assert results(network) == []
    assert network.reported(Released) == []
    needed = 8 - tolerate + colluders
    assert (failures(network)[0].contributors, failures(network)[0].needed) == (needed - 1, needed)
    assert f"contributed, {needed} were needed" in failures(network)[0].reason
    assert {fact.reason for fact in network.reported(NodeAborted)} == {"too-few"}


def test_attack_13_nobody_contributes() -> None:
    network = dropping(4, 2, 4)
    assert (failures(network)[0].contributors, failures(network)[0].needed) == (0, 2)


def test_attack_13_drops_do_not_change_the_noise() -> None:
    """Each client's noise is for n_min - 1 - c of them, whoever drops; the result carries the noise that is there."""
    actors = TestFederation(8, 3)
    network = actors.network()
    network.tamper = losing(Contribution, sender=actors.clients[0])
    begin(actors, network, tolerate=2)
    until_the_end(network)
    (result,) = results(network)
    assert result.clients == 8
    assert result.noise_variance == pytest.approx(7 * result.sigma_local**2)
    assert 5 * result.sigma_local**2 >= (result.sensitivity / result.mu) ** 2


# 16: an announcement that is worse than it looks


def declined(policy: Policy, computes: int = 3, **changes: Any) -> Declined:
    actors = TestFederation(4, computes, policy=policy)
    network, _ = begin(actors, **changes)
    until_the_end(network)
    assert results(network) == []
    assert all(network.actors[client].ledger.charges == () for client in actors.clients)
    facts = network.reported(Declined, actors.clients[0])
    at_trainer = network.reported(Declined, actors.trainer_identity.id)
    assert facts[0] in at_trainer, "the trainer receives the reason"
    return facts[0]


BINS = {"columns": ["x"], "edges": [0.0, 5.0, 10.0]}
LENIENT = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=20, epsilon_per_period_max=40)


@pytest.mark.parametrize(
    ("policy", "changes", "reason", "found"),
    [
        ({"epsilon_per_round_max": 1.0}, {"epsilon": 1.3}, "epsilon", "1.3 at delta 1e-06"),
        ({"delta_max": 1e-5}, {"delta": 1e-4}, "delta", "0.0001"),
        ({"epsilon_per_period_max": 0.5}, {"epsilon": 0.7}, "budget", "with this round"),
        ({"clients_min": 4}, {}, "clients", "n_min = 3"),
        ({"honest_min": 3}, {}, "honest", "n_min - 1 - c = 2"),
        ({"colluders_min": 1}, {}, "colluders", "c = 0"),
        ({"colluders_part_min": 0.3}, {}, "colluders", "c = 0"),
        ({"statistics": ("mean",)}, {}, "statistic", "sum"),
        ({"trainers": ("00" * 16,)}, {}, "trainer", ""),
        ({"computes_min": 4}, {}, "computes", "3 Compute nodes"),
        ({"dimension_max": 1}, {"statistic": "histogram", "parameters": BINS}, "dimension", "d = 2"),
        ({"bounds": {"x": (-0.5, 1.0)}}, {}, "bounds", "x within -1 to 1"),
        ({"bounds": {"x": (0.0, 9.0)}}, {"statistic": "histogram", "parameters": BINS}, "bounds", "x within 0 to 10"),
        ({"trusted_computes": ("compute-9",)}, {}, "trusted-computes", "without compute-9"),
        ({}, {"parameters": {"columns": ["y"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}}, "columns", "y"),
    ],
)
def test_attack_16_clients_decline_with_a_reason(policy: dict, changes: dict, reason: str, found: str) -> None:
    """Held against the client's own policy; it recomputes what it can and trusts no figure."""
    fact = declined(msgspec.structs.replace(LENIENT, **policy), **changes)
    assert fact.reason == reason
    assert found in fact.found
    assert fact.expected


def test_attack_16_no_field_of_an_announcement_sets_the_noise() -> None:
    """A weaker σ cannot be announced: every client works it out from bounds, μ, n_min and c."""
    fields = {field.name for kind in (Announcement, SecureSum) for field in msgspec.structs.fields(kind)}
    assert not {name for name in fields if any(word in name for word in ("sigma", "noise", "variance", "sensitivity"))}


def test_attack_16_larger_bounds_mean_more_noise_and_not_less_privacy() -> None:
    sigmas = []
    for bound in (1.0, 10.0):
        question = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [bound]}
        network, _ = begin(TestFederation(4, 3), parameters=question)
        sigmas.append(results(network)[0].sigma_local)
    assert sigmas[1] == pytest.approx(10 * sigmas[0], rel=1e-6)


@pytest.mark.parametrize("mu", [0.24, -0.1, 0.0, float("nan"), float("inf"), 1e-60])
def test_attack_16_a_mu_that_is_not_quoted_is_declined(mu: float) -> None:
    """What is charged is μ, and it is compared with (ε, δ): a larger one would spend more than was announced."""
    actors = TestFederation(4, 3)
    network = actors.network()
    network.tamper = losing(Announcement)
    begin(actors, network)
    payload = resigned(actors, actors.trainer_identity, sent(network, Announcement)[0].payload, mu=mu)
    network.handle(actors.clients[0], Received(actors.trainer_identity.id, payload))
    (fact,) = network.reported(Declined, actors.clients[0])
    assert fact.reason == "announcement"
    assert network.actors[actors.clients[0]].ledger.charges == ()


def test_attack_16_a_smaller_mu_than_quoted_is_charged() -> None:
    actors = TestFederation(4, 3)
    network, _ = begin(actors, mu=0.1)
    assert [charge.mu for charge in network.actors[actors.clients[0]].ledger.charges] == [0.1]
    assert results(network)[0].mu == 0.1
    assert 2 * results(network)[0].sigma_local ** 2 >= (results(network)[0].sensitivity / 0.1) ** 2


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"tolerate": 3}, "is below 1"),
        ({"clients": 2}, "is below 1"),
        ({"clients": 0}, "is below 1"),
        ({"colluders": 2}, "c = 2 colluders exceed T = 1"),
        ({"most": 2}, "n_max = 2 is below n_min"),
        ({"most": 2**31}, "2^63"),
    ],
)
def test_attack_16_terms_that_leave_no_noise_are_declined(terms: dict, message: str) -> None:
    actors = TestFederation(4, 3)
    network = actors.network()
    network.tamper = losing(Announcement)
    begin(actors, network, fraction_bits=36)
    announcement = sent(network, Announcement)[0].payload
    payload = resigned(actors, actors.trainer_identity, announcement, **terms)
    network.handle(actors.clients[0], Received(actors.trainer_identity.id, payload))
    (fact,) = network.reported(Declined, actors.clients[0])
    assert fact.reason == "announcement"
    assert message in fact.found
    assert network.actors[actors.clients[0]].ledger.charges == ()


@pytest.mark.parametrize(
    "terms",
    [
        {"clients": 1, "tolerate": 5},
        {"clients": 2**32 - 1, "tolerate": 0, "colluders": 2**32 - 1},
    ],
)
def test_attack_16_a_node_aborts_with_a_message_that_decodes_whatever_n_min_the_terms_give(terms: dict) -> None:
    actors = TestFederation(4, 3)
    network = actors.network()
    network.tamper = losing(Announcement)
    begin(actors, network)
    announcement = sent(network, Announcement)[0].payload
    payload = resigned(actors, actors.trainer_identity, announcement, **terms)
    effects = network.actors[actors.computes[0]].handle(Received(actors.trainer_identity.id, payload), network.now_ms)
    (abort,) = [body_of(effect.payload) for effect in effects if isinstance(effect, Send)]
    assert isinstance(abort, Abort)
    assert abort.needed in (0, 2**32 - 1)


def test_attack_16_the_consent_of_one_client_is_not_that_of_another_with_a_lower_limit() -> None:
    """Clients of one process share decisions about an announcement."""
    actors = TestFederation(4, 3)
    network, _ = begin(actors, statistic="histogram", parameters=BINS)
    opened, lenient = announced(network, actors), network.actors[actors.clients[0]]._consent
    strict = msgspec.structs.replace(lenient, limits=Limits(dimension_max=1))
    assert isinstance(lenient.to_terms(opened, actors.federation, actors.federation.p), ValidatedRound)
    refusal = strict.to_terms(opened, actors.federation, actors.federation.p)
    assert isinstance(refusal, Refusal)
    assert "dimension 2 exceeds 1" in refusal.found


# The Compute nodes' own floors


@pytest.mark.parametrize(
    ("floors", "reason", "detail"),
    [
        (Floors(clients_min=5, honest_min=1), "clients", "n_min = 3; needs n_min >= 5 (clients_min)"),
        (Floors(clients_min=1, honest_min=3), "honest", "n_min - 1 - c = 2; needs n_min - 1 - c >= 3 (honest_min)"),
        (Floors(clients_min=1, honest_min=1, trainers=("00" * 16,)), "trainer", "one of this node's trainers"),
    ],
)
def test_a_compute_node_below_its_floors_aborts_with_a_reason(floors: Floors, reason: str, detail: str) -> None:
    actors = TestFederation(4, 3, floors=floors)
    network, _ = begin(actors)
    until_the_end(network)
    assert {fact.reason for fact in network.reported(NodeAborted)} == {reason}
    assert detail in network.reported(NodeAborted)[0].detail
    assert detail in failures(network)[0].reason
    assert results(network) == []
    assert all(network.actors[client].ledger.spent().mu == 0 for client in actors.clients), "and all charges came back"


# 18: the ring


def test_attack_18_a_round_that_could_overflow_the_ring_is_refused() -> None:
    """n_max·bound + the noise's tail must stay below 2^63; every actor checks it for itself."""
    variance = 1 << 60
    noise = math.sqrt(4 * variance * 2 * (math.log(2) + 40 * math.log(2)))
    largest = int((2**63 - noise) / 4)
    accounting.check_ring(int(largest * 0.999), 4, variance, 1)
    with pytest.raises(UsageError, match=r"expected less than 2\^63"):
        accounting.check_ring(int(largest * 1.001), 4, variance, 1)


def test_attack_18_a_sum_near_the_edge_is_exact() -> None:
    """Values of almost 2^52 grid units, 40 fraction bits: the ring wraps for masks and not for the sum."""
    bound = 4095.0
    question = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [bound]}
    for sign in (1, -1):
        rows = [np.array([[sign * 1e300]]) for _ in range(8)]
        actors = exact_actors(8, 3, rows=rows)
        network, _ = begin(actors, parameters=question, fraction_bits=40)
        assert the_sum(network).tolist() == [sign * 8 * bound]
