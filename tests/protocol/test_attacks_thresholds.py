"""Attacks on the thresholds: how many must contribute, how much noise there is, and what a client agrees to."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from scene import (
    begin,
    body_of,
    exact_cast,
    exact_sum,
    failures,
    losing,
    refused,
    resigned,
    results,
    sent,
    the_sum,
    until_the_end,
)

from dca_proto.core import accounting
from dca_proto.core.errors import UsageError
from dca_proto.core.facts import Declined, NodeAborted, Released
from dca_proto.core.messages import Announcement, Share, Start, Terms
from dca_proto.core.policy import Floors, Policy
from dca_proto.testing import Cast, Network


def dropping(clients: int, tolerated: int, dropped: int, colluders: int = 0, mechanism: Any = None) -> Network:
    """A round in which the first `dropped` clients join and then send nothing."""
    cast = exact_cast(clients, 3, **({"mechanism": mechanism} if mechanism else {}))
    network = cast.network()
    silent = set(cast.clients[:dropped])
    network.tamper = lambda one: [] if isinstance(body_of(one.payload), Share) and one.sender in silent else [one]
    begin(cast, network, tolerated=tolerated, colluders=colluders)
    until_the_end(network)
    return network


@pytest.mark.parametrize(("tolerated", "colluders"), [(0, 0), (1, 0), (3, 0), (3, 1), (3, 3)])
def test_attack_13_exactly_as_many_as_needed_give_a_result(tolerated: int, colluders: int) -> None:
    """|S| = N - T + c is enough."""
    network = dropping(8, tolerated, tolerated - colluders, colluders)
    assert the_sum(network).tolist() == [exact_sum(range(tolerated - colluders, 8))]
    (result,) = results(network)
    assert (result.contributors, result.tolerated, result.colluders) == (
        8 - tolerated + colluders,
        tolerated,
        colluders,
    )


@pytest.mark.parametrize(("tolerated", "colluders"), [(0, 0), (1, 0), (3, 0), (3, 1), (3, 3)])
def test_attack_13_one_fewer_aborts_with_the_figures_and_releases_nothing(tolerated: int, colluders: int) -> None:
    network = dropping(8, tolerated, tolerated - colluders + 1, colluders)
    assert results(network) == []
    assert network.reported(Released) == []
    needed = 8 - tolerated + colluders
    assert (failures(network)[0].contributors, failures(network)[0].needed) == (needed - 1, needed)
    assert f"{needed - 1} contributed, {needed} were needed" in failures(network)[0].reason
    assert {fact.reason for fact in network.reported(NodeAborted)} == {"too-few"}


def test_attack_13_nobody_contributes() -> None:
    network = dropping(4, 2, 4)
    assert (failures(network)[0].contributors, failures(network)[0].needed) == (0, 2)


def test_attack_13_drops_after_the_roster_do_not_change_n() -> None:
    """Each noise share is for N - T - 1 of the roster, whoever drops; the result carries the noise that is there."""
    cast = Cast(8, 3)
    network = cast.network()
    network.tamper = losing(Share, sender=cast.clients[0])
    begin(cast, network, tolerated=2)
    until_the_end(network)
    (result,) = results(network)
    assert result.clients == 8
    assert result.noise_variance == pytest.approx(7 * result.sigma_local**2)
    assert 5 * result.sigma_local**2 >= (result.sensitivity / result.mu) ** 2


# 16: an announcement that is worse than it looks


def declined(policy: Policy, computes: int = 3, **changes: Any) -> Declined:
    cast = Cast(4, computes, policy=policy)
    network, _ = begin(cast, **changes)
    until_the_end(network)
    assert results(network) == []
    assert all(network.actors[client].ledger.charges == () for client in cast.clients)
    facts = network.reported(Declined, cast.clients[0])
    at_trainer = network.reported(Declined, cast.trainer_identity.id)
    assert facts[0] in at_trainer, "the trainer is told why"
    return facts[0]


BINS = {"columns": ["x"], "edges": [0.0, 5.0, 10.0]}
LENIENT = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=20, epsilon_per_period_max=40)


@pytest.mark.parametrize(
    ("policy", "changes", "reason", "found"),
    [
        ({"epsilon_per_round_max": 1.0}, {"epsilon": 1.3}, "epsilon", "1.3 at delta 1e-06"),
        ({"delta_max": 1e-5}, {"delta": 1e-4}, "delta", "0.0001"),
        ({"epsilon_per_period_max": 0.5}, {"epsilon": 0.7}, "budget", "with this round"),
        ({"clients_min": 5}, {}, "clients", "N = 4"),
        ({"honest_min": 3}, {}, "honest", "N - T - 1 = 2"),
        ({"colluders_min": 1}, {}, "colluders", "c = 0"),
        ({"statistics": ("mean",)}, {}, "statistic", "sum"),
        ({"trainers": ("00" * 16,)}, {}, "trainer", ""),
        ({"computes_min": 4}, {}, "computes", "M = 3"),
        ({"dimension_max": 1}, {"statistic": "histogram", "parameters": BINS}, "dimension", "d = 2"),
        ({"bounds": {"x": (-0.5, 1.0)}}, {}, "bounds", "x within -1 to 1"),
        ({"bounds": {"x": (0.0, 9.0)}}, {"statistic": "histogram", "parameters": BINS}, "bounds", "x within 0 to 10"),
        ({"trusted_computes": ("compute-9",)}, {}, "trusted-computes", "without compute-9"),
        ({}, {"parameters": {"columns": ["y"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}}, "columns", "y"),
    ],
)
def test_attack_16_clients_decline_and_say_why(policy: dict, changes: dict, reason: str, found: str) -> None:
    """Held against the client's own policy; it recomputes what it can and trusts no figure."""
    fact = declined(msgspec.structs.replace(LENIENT, **policy), **changes)
    assert fact.reason == reason
    assert found in fact.found
    assert fact.expected


def test_attack_16_nothing_in_an_announcement_or_start_says_how_much_noise() -> None:
    """A weaker σ cannot be announced: every client works it out from bounds, ε, δ, N and T."""
    fields = {field.name for kind in (Announcement, Start, Terms) for field in msgspec.structs.fields(kind)}
    assert not {name for name in fields if any(word in name for word in ("sigma", "noise", "variance", "sensitivity"))}


def test_attack_16_larger_bounds_mean_more_noise_and_not_less_privacy() -> None:
    sigmas = []
    for bound in (1.0, 10.0):
        question = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [bound]}
        network, _ = begin(Cast(4, 3), parameters=question)
        sigmas.append(results(network)[0].sigma_local)
    assert sigmas[1] == pytest.approx(10 * sigmas[0], rel=1e-6)


def test_attack_16_a_smaller_n_at_the_start_is_declined_and_not_charged() -> None:
    """The floor on N bites at the start, where N is known; and the noise is worked out for that N."""
    cast = Cast(6, 3, policy=msgspec.structs.replace(LENIENT, clients_min=6))
    network = cast.network()
    network.down.add(cast.clients[5])
    begin(cast, network)
    until_the_end(network)
    assert {fact.reason for fact in network.reported(Declined)} == {"clients"}
    assert results(network) == []


@pytest.mark.parametrize("change", [{"tolerated": 0}, {"tolerated": 2}, {"colluders": 1}])
def test_attack_16_another_t_or_c_at_the_start_than_announced_is_refused(change: dict) -> None:
    cast = Cast(6, 3)
    network = cast.network()
    network.tamper = losing(Start)
    begin(cast, network)
    start = sent(network, Start, to=cast.clients[0])[0]
    terms = msgspec.structs.replace(body_of(start.payload).terms, **change)
    other = resigned(cast, cast.trainer_identity, start.payload, terms=terms)
    refused(network, cast.clients[0], start.sender, other, "terms")


# The Compute nodes' own floors


@pytest.mark.parametrize(
    ("floors", "reason", "detail"),
    [
        (Floors(clients_min=5, honest_min=1), "clients", "N = 4; needs N >= 5"),
        (Floors(clients_min=1, honest_min=3), "honest", "N - T - 1 = 2; needs N - T - 1 >= 3"),
        (Floors(clients_min=1, honest_min=1, trainers=("00" * 16,)), "trainer", "one of this node's trainers"),
    ],
)
def test_a_compute_node_below_its_floors_aborts_and_says_why(floors: Floors, reason: str, detail: str) -> None:
    cast = Cast(4, 3, floors=floors)
    network, _ = begin(cast)
    until_the_end(network)
    assert {fact.reason for fact in network.reported(NodeAborted)} == {reason}
    assert detail in network.reported(NodeAborted)[0].detail
    assert detail in failures(network)[0].reason
    assert results(network) == []
    assert all(network.actors[client].ledger.charges == () for client in cast.clients)


# 18: the ring


def test_attack_18_a_round_whose_sum_could_wrap_around_is_refused() -> None:
    """N·bound + the noise's tail must stay below 2^63; the plan that every actor makes for itself checks it."""
    variance = 1 << 60
    noise = math.sqrt(4 * variance * 2 * (math.log(2) + 40 * math.log(2)))
    largest = int((2**63 - noise) / 4)
    accounting.check_ring(int(largest * 0.999), 4, variance, 1)
    with pytest.raises(UsageError, match=r"expected less than 2\^63"):
        accounting.check_ring(int(largest * 1.001), 4, variance, 1)


def test_attack_18_a_sum_near_the_edge_is_exact() -> None:
    """Values of almost 2^52 grid units, 40 fraction bits: the ring wraps for shares and not for the sum."""
    bound = 4095.0
    question = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [bound]}
    for sign in (1, -1):
        rows = [np.array([[sign * 1e300]]) for _ in range(8)]
        cast = exact_cast(8, 3, rows=rows)
        network, _ = begin(cast, parameters=question, fraction_bits=40)
        assert the_sum(network).tolist() == [sign * 8 * bound]
