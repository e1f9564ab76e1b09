"""A round that one client has spoilt is refused, stays spent, and can be dropped from the journal and run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_swarm import SETTINGS, WHOLE, Swarm, job_of, means, rounds_in
from virtual_time import run

from dca_proto.errors import ImplausibleSum, UsageError
from dca_proto.jobs.journal import Failed, Journal, Summed
from dca_proto.jobs.runner import JobRounds, learn
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.testing import make_lie

FAR = 1 << 50


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job.journal"


def lying(swarm: Swarm, number: int = FAR) -> Any:
    """Make a client lie; return its honest composer."""
    honest = swarm.clients[1]._composer
    make_lie(swarm.clients[1], lambda size: np.full(size, number))
    return honest


def discard(path: Path, which: str) -> list[int]:
    with Journal(path, SETTINGS) as journal:
        return journal.discard(which)


def test_a_refused_round_is_charged_once_and_runs_again_when_it_is_discarded(path: Path) -> None:
    swarm = Swarm()
    honest = lying(swarm)
    with pytest.raises(ImplausibleSum, match=r"at least one of the 4 contributions was outside its bounds") as caught:
        job_of(swarm, path, lambda: means(0), retries=2)
    assert "revoke it" in caught.value.remedy
    ((_, end),) = rounds_in(path)
    assert isinstance(end, Failed)
    assert (end.charged, end.implausible) == (True, True)
    assert max(swarm.charges()) == len(swarm.announced) == 1, "it is not tried again by itself"
    swarm.clients[1]._composer = honest
    assert discard(path, "last") == [1]
    assert job_of(swarm, path, lambda: means(0)) == [pytest.approx(WHOLE)]
    assert len(swarm.announced) == 2


def test_a_round_and_those_after_it_run_anew_and_their_cost_is_counted(path: Path) -> None:
    swarm = Swarm()
    lying(swarm, 3 << 22)  # within what four clients can give
    first = job_of(swarm, path, lambda: means(0, 0, 0))
    assert first == [pytest.approx((10 - 2 + 12) / 16)] * 3
    swarm.clients[1]._composer = Swarm().clients[1]._composer
    swarm = Swarm()
    assert discard(path, "2") == [2, 3]
    assert [isinstance(end, Summed) for _, end in rounds_in(path)] == [True]

    async def story() -> tuple[list[float], PrivacyCost]:
        with Journal(path, SETTINGS) as journal:
            assert len(journal.discarded) == 2
            async with swarm.up(), swarm.trainer() as trainer:
                result = await learn(means(0, 0, 0), trainer, swarm.terms(), journal)
                again = JobRounds(trainer, swarm.terms(), journal)
                return result, again.spent

    result, spent = run(story())
    assert result == [first[0], pytest.approx(WHOLE), pytest.approx(WHOLE)]
    assert len(swarm.announced) == 2
    assert spent.mu**2 == pytest.approx(2 * 0.1 * swarm.terms().budget.mu ** 2)


def test_the_round_to_discard_is_named_by_number_by_id_or_as_the_last(path: Path) -> None:
    job_of(Swarm(), path, lambda: means(0, 0))
    (first, _), (second, _) = rounds_in(path)
    with pytest.raises(
        UsageError, match=rf"'9' is not in the journal .*; it has: 1 \({first.round.round_id.hex()[:8]}\), 2"
    ):
        discard(path, "9")
    assert discard(path, second.round.round_id.hex()[:8].upper()) == [2]
    assert discard(path, "last") == [1]
    with pytest.raises(UsageError, match="it has: none"):
        discard(path, "last")
    with Journal(path, SETTINGS) as journal:
        assert [one.round_id for one in journal.discarded] == [second.round.round_id, first.round.round_id]


def test_a_journal_that_holds_an_impossible_sum_is_refused_whenever_it_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier version wrote it: the error returns at each start until the round is discarded."""
    swarm = Swarm()
    honest = lying(swarm)
    with monkeypatch.context() as earlier:
        earlier.setattr("dca_proto.protocol.release.checked", lambda aggregate: aggregate)
        assert job_of(swarm, path, lambda: means(0))[0] > 1e6
    swarm.clients[1]._composer = honest
    for _ in range(2):
        with pytest.raises(ImplausibleSum, match="outside its bounds"):
            job_of(swarm, path, lambda: means(0))
    discard(path, "1")
    assert job_of(swarm, path, lambda: means(0)) == [pytest.approx(WHOLE)]
