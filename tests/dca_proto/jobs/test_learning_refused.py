"""A learning job whose rounds are refused for reasons that a repeat would meet again: it ends after one round."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_swarm import CLIENTS, ROWS, WHOLE, Swarm, job_of, means

from dca_proto.errors import RoundAborted
from dca_proto.jobs.journal import journal_path
from dca_proto.protocol.policy import Floors, Policy
from dca_proto.testing import NoNoise, TestFederation

LENIENT = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=20, epsilon_per_period_max=40)


def refused(path: Path, swarm: Swarm) -> RoundAborted:
    with pytest.raises(RoundAborted) as caught:
        job_of(swarm, path, lambda: means(0))
    return caught.value


def swarm_of(policy: Policy = LENIENT, floors: Floors | None = None) -> Swarm:
    return Swarm(actors=TestFederation(CLIENTS, 3, rows=ROWS, mechanism=NoNoise(), policy=policy, floors=floors))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_path(tmp_path / "trainer.db", "means")


def test_a_nodes_floor_ends_a_job_at_once_and_the_node_is_named(path: Path) -> None:
    swarm = swarm_of(floors=Floors(clients_min=CLIENTS + 1, honest_min=1))
    ended = refused(path, swarm)
    assert len(swarm.announced) == 1
    assert f"needs n_min >= {CLIENTS + 1} (clients_min)" in ended.reason
    assert "compute-" in ended.reason
    assert "n_min = " in ended.reason
    assert "once the Compute node accepts these terms ([floors] of its file)" in ended.remedy
    assert swarm.charges() == [0] * CLIENTS


def test_clients_that_would_decline_again_end_a_job_at_once(path: Path) -> None:
    swarm = swarm_of(Policy(clients_min=1, honest_min=1, epsilon_per_round_max=1e-3, epsilon_per_period_max=40))
    ended = refused(path, swarm)
    assert len(swarm.announced) == 1
    assert "once the clients accept these terms" in ended.remedy


def test_clients_that_may_take_part_later_are_asked_again(path: Path) -> None:
    """The period's budget has no room for a round: what was spent in it counts no more some time later."""
    swarm = swarm_of(Policy(clients_min=1, honest_min=1, epsilon_per_round_max=20, epsilon_per_period_max=1e-3))
    assert refused(path, swarm).remedy == ""
    assert len(swarm.announced) == 3


def test_a_job_that_nobody_refuses_is_done(path: Path) -> None:
    assert job_of(swarm_of(), path, lambda: means(0)) == [WHOLE]
