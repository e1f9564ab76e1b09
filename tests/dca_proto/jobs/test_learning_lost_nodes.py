"""A learning job whose federation loses Compute nodes (DESIGN §4.8). Real actors, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_swarm import CLIENTS, ROWS, WHOLE, Swarm, job_of, means, rounds_in

from dca_proto.errors import RoundAborted
from dca_proto.jobs.journal import Failed, Summed, journal_path
from dca_proto.testing import NoNoise, TestFederation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_path(tmp_path / "trainer.db", "means")


def swarm_of(computes: int, colluding: int) -> Swarm:
    return Swarm(actors=TestFederation(CLIENTS, computes, rows=ROWS, mechanism=NoNoise(), colluding=colluding))


def losing_at(swarm: Swarm, number: int, nodes: int) -> None:
    """Lose the last nodes, for good, just after the round with this number was announced."""

    def lose() -> bool:
        if len(swarm.announced) == number:
            for node in swarm.actors.computes[-nodes:]:
                swarm.running[node].cancel()
        return False

    swarm.mute(lose)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_job_continues_without_lost_nodes_at_one_charge_a_result(lost: int, path: Path) -> None:
    """Before, it ended here, and every client had paid three times for nothing."""
    swarm = swarm_of(4, 1)
    losing_at(swarm, 2, lost)
    assert job_of(swarm, path, lambda: means(0, 0, 0, 0)) == [WHOLE] * 4
    assert swarm.charges() == [4] * CLIENTS
    ends = [end for _, end in rounds_in(path)]
    assert [type(end) for end in ends] == [Summed, Failed, Summed, Summed, Summed]
    assert isinstance(ends[1], Failed)
    assert (ends[1].charged, ends[1].repeatable) == (False, True)
    repeats = [opened.round.repeats for opened, _ in rounds_in(path)]
    assert repeats == [(), (), (swarm.announced[1],), (), ()]


def test_a_batch_is_repeated_with_the_same_clients(path: Path) -> None:
    swarm = swarm_of(4, 1)
    losing_at(swarm, 2, 1)
    job_of(swarm, path, lambda: means(0, 2, 2))
    _, first, again, last = (set(opened.round.invited) for opened, _ in rounds_in(path))
    assert first == again
    assert not first & last
    assert swarm.charges() == [2] * CLIENTS


def test_a_job_that_cannot_go_on_is_not_charged_again_and_names_the_node(path: Path) -> None:
    """p = M - 1: no round can do without it. Before, the job asked, and charged, three times."""
    swarm = swarm_of(3, 0)
    losing_at(swarm, 2, 1)
    with pytest.raises(RoundAborted) as caught:
        job_of(swarm, path, lambda: means(0, 0))
    assert "compute-2 has not answered for 4 minutes; until compute-2 has confirmed" in caught.value.reason
    assert caught.value.remedy == "start compute-2 again, then run the same command"
    assert len(swarm.announced) == 2
    assert max(swarm.charges()) <= 2


def test_a_resumed_job_may_use_other_nodes(path: Path) -> None:
    swarm = swarm_of(4, 1)
    assert job_of(swarm, path, lambda: means(0)) == [WHOLE]
    three = swarm.actors.computes[:3]
    swarm.terms = lambda **changes: Swarm.terms(swarm, computes=three, **changes)
    assert job_of(swarm, path, lambda: means(0, 0)) == [WHOLE] * 2
