"""A whole round in one function, and the oracle of exactness."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import numpy as np
import pytest
from round_helpers import begin, exact_actors, exact_sum, failures, results, the_sum, until_the_end

import dca_proto.privacy.mechanism as mechanisms
from dca_proto.aggregate import NoisyAggregate
from dca_proto.errors import UsageError
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import Declined, NodeAborted
from dca_proto.protocol.play import play, play_releases
from dca_proto.protocol.policy import Floors, Policy
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease
from dca_proto.testing import Network, NoNoise, TestFederation

NOW_MS = 1_700_000_000_000


def played(actors: TestFederation, **changes: Any) -> NoisyAggregate:
    computes = [actors.compute(index) for index in range(len(actors.computes))]
    clients = [actors.client(index) for index in range(len(actors.clients))]
    return play(actors.trainer(), computes, clients, actors.request(**changes), NOW_MS)


def one_hot(size: int, **changes: Any) -> tuple[TestFederation, dict[str, Any]]:
    """Each client sets one coordinate of its own."""
    columns = tuple(f"x{index}" for index in range(size))
    rows = [np.eye(size)[index : index + 1] for index in range(size)]
    flat = {"columns": columns, "centre": [0.0] * size, "scale": [1.0] * size, "bound": [1.0] * size}
    return TestFederation(size, 3, columns=columns, rows=rows, **changes), {"parameters": flat}


def test_a_round_gives_the_noisy_sum_with_all_that_inference_needs() -> None:
    actors = TestFederation(30, 3)
    result = played(actors, tolerate=4, colluders=1)
    assert (result.contributors, result.clients, result.n_min, result.colluders) == (30, 30, 27, 1)
    assert (result.epsilon, result.delta, result.relation) == (1.0, 1e-6, "replace-one-client")
    assert result.private
    assert result.mechanism == "distributed-discrete-gaussian"
    assert result.noise_variance == pytest.approx(30 * result.sigma_local**2)
    # Theorem 1: N - T - 1 shares suffice for the sensitivity of a mean of values within [-1, 1] (2 and rounding).
    assert 25 * result.sigma_local**2 == pytest.approx((result.sensitivity / result.mu) ** 2, rel=1e-6)
    assert result.sensitivity == pytest.approx(2.0, rel=1e-6)
    # 30 clients of 0.5. False alarms: |noise| beyond 6 standard deviations, 2e-9; the keys are seeded anyway.
    assert abs(result.value[0] - 15) < 6 * result.noise_variance**0.5
    assert result.announcement_hash != result.contributors_hash


def test_without_noise_the_sum_is_exact() -> None:
    assert played(exact_actors(7)).value.tolist() == [exact_sum(range(7))]


def test_the_sum_does_not_depend_on_the_number_of_compute_nodes() -> None:
    sums = {played(exact_actors(5, computes, name="test")).value.tobytes() for computes in (2, 3, 5, 10)}
    assert len(sums) == 1


def test_oracle_each_client_sets_a_coordinate_of_its_own() -> None:
    """0 or 1 everywhere: 2 would be a contribution counted twice, a huge value masks that do not cancel."""
    actors, question = one_hot(8, mechanism=NoNoise())
    assert played(actors, **question).value.tolist() == [1.0] * 8


def test_oracle_with_clients_that_drop() -> None:
    """The coordinates of those who drop are 0, all others 1, and the trainer names exactly those who are in."""
    actors, question = one_hot(8, mechanism=NoNoise())
    network = actors.network()
    dropped = set(actors.clients[:3])
    network.tamper = lambda envelope: (
        [] if envelope.sender in dropped and envelope.to.id in actors.computes else [envelope]
    )
    _, request = begin(actors, network, tolerate=3, **question)
    until_the_end(network)
    assert the_sum(network).tolist() == [0.0] * 3 + [1.0] * 5
    trainer = network.actors[actors.trainer_identity.id]
    assert trainer.contributors(request.round_id) == tuple(sorted(set(actors.clients) - dropped))
    (result,) = results(network)
    assert (result.contributors, result.clients) == (5, 8)
    assert not result.private


def test_a_round_of_data_nodes_without_noise_is_exact() -> None:
    """Each releases by itself; the sum is that of their releases."""
    actors = exact_actors(5, policy=Policy(clients_min=1, honest_min=1, rows_of_many=True))
    clients = [actors.client(index) for index in range(5)]
    request = actors.request(kind=NodeRelease(), rows_max=1)
    assert play_releases(actors.trainer(), clients, request, NOW_MS).value.tolist() == [exact_sum(range(5))]


# The mode without noise cannot be reached in production.


def test_no_configuration_names_the_mechanism() -> None:
    """But for LDP reports, by one of the exact local ones (see the last test of this file)."""
    for configured in (Policy, Floors, OpenRound):
        fields = {field.name for field in msgspec.structs.fields(configured)}
        assert not {name for name in fields if "mechanism" in name or "noise" in name}


def test_the_core_has_the_one_private_mechanism_only() -> None:
    offered = [
        kind for kind in vars(mechanisms).values() if isinstance(kind, type) and kind.__module__ == mechanisms.__name__
    ]
    described = {mechanisms.Mechanism}
    assert {kind.name for kind in offered if kind not in described} == {"distributed-discrete-gaussian"}
    assert DistributedDiscreteGaussian().private
    assert not NoNoise().private


@pytest.fixture
def mixed() -> tuple[Network, TestFederation]:
    """A trainer of no noise among production Compute nodes and clients, all of one federation."""
    unsafe, production, network = exact_actors(4), TestFederation(4, 3), Network()
    for index in range(3):
        network.add(Channel.COMPUTE, functools.partial(production.compute, index))
    for index in range(4):
        network.add(Channel.CLIENT, functools.partial((production if index else unsafe).client, index))
    network.add(Channel.TRAINER, unsafe.trainer)
    return network, unsafe


def test_a_production_client_declines_a_round_without_noise(mixed: tuple[Network, TestFederation]) -> None:
    network, unsafe = mixed
    begin(unsafe, network)
    for client in unsafe.clients[1:]:
        (declined,) = network.reported(Declined, client)
        assert declined.reason == "announcement"
        assert "'no-noise-for-tests' is not offered here" in declined.found
        assert network.actors[client].ledger.charges == ()


def test_production_compute_nodes_abort_a_round_without_noise(mixed: tuple[Network, TestFederation]) -> None:
    network, unsafe = mixed
    begin(unsafe, network)
    aborted = network.reported(NodeAborted)
    assert {fact.compute for fact in aborted if fact.reason == "announcement"} == set(unsafe.computes)
    until_the_end(network)
    assert results(network) == []
    assert len(failures(network)) == 1


@pytest.mark.parametrize("mechanism", [NoNoise.name, DistributedDiscreteGaussian.name])
def test_no_request_to_a_trainer_chooses_a_mechanism_but_one_of_reports(mechanism: str) -> None:
    """Not even to a trainer that offers it."""
    for actors in (exact_actors(4, 3), TestFederation(4, 3)):
        network = actors.network()
        with pytest.raises(UsageError, match=f"mechanism '{mechanism}' makes no reports; use one of analytic-"):
            network.command(actors.trainer_identity.id, actors.request(kind=LdpReport(mechanism), rows_max=1))
