"""No client spends more on a job than the job states, also where aborted rounds keep their charges."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from dca_proto.aggregate import RoundRequest
from dca_proto.errors import NoAggregate, RoundAborted, TransportError
from dca_proto.jobs.job import JobTerms
from dca_proto.jobs.runner import JobRounds, learn
from dca_proto.protocol.trainer.request import OpenRound

CLIENTS = tuple(bytes([index]) * 16 for index in range(6))
TERMS = JobTerms(epsilon=1.0, delta=1e-6, clients=6, tolerate=1, computes=(b"a" * 16, b"b" * 16))


class Silent:
    """A trainer some of whose rounds are aborted without all nodes' signatures, so that they stay charged."""

    def __init__(self, *fail: int) -> None:
        self._fail = fail
        self._charged: set[bytes] = set()
        self.spent: Counter[bytes] = Counter()

    async def check(self, request: OpenRound) -> None:
        """All is well."""

    async def run_round(self, request: OpenRound) -> Any:
        self._charged.add(request.round_id)
        self.spent.update(dict.fromkeys(request.invited or CLIENTS, request.mu**2))
        if len(self._charged) in self._fail:
            raise RoundAborted("a Compute node is silent")
        return object()

    resume_round = run_round

    def contributors(self, round_id: bytes) -> tuple[bytes, ...]:
        return CLIENTS

    def is_charged(self, round_id: bytes) -> bool:
        return round_id in self._charged


def job(*requests: RoundRequest) -> Generator[RoundRequest, Any, int]:
    """How many of the requests were answered before one was not."""
    for done, request in enumerate(requests):
        try:
            yield request
        except NoAggregate as ended:
            return done if "the job's budget has no room" in ended.reason else -1
    return len(requests)


FIRST, LAST, BATCH = (RoundRequest("sum", {}, share, batch=size) for share, size in ((0.1, 0), (0.9, 0), (0.45, 3)))


@pytest.mark.parametrize(
    ("requests", "fail", "answered"),
    [
        ((FIRST, LAST), (), 2),
        ((FIRST, LAST), (2,), 1),
        ((FIRST, LAST), (1,), 1),
        ((FIRST, BATCH, BATCH, BATCH, BATCH), (), 5),  # two epochs of two batches
        ((FIRST, BATCH, BATCH, BATCH, BATCH), (3,), 4),  # half of the clients were used once in vain
    ],
)
def test_a_job_ends_before_it_costs_a_client_more_than_its_budget(
    requests: tuple[RoundRequest, ...], fail: tuple[int, ...], answered: int
) -> None:
    trainer = Silent(*fail)
    assert asyncio.run(learn(job(*requests), trainer, TERMS)) == answered
    assert max(trainer.spent.values()) <= TERMS.budget.mu**2


class Cut(Silent):
    """A trainer that loses its broker after the account was charged."""

    async def run_round(self, request: OpenRound) -> Any:
        await super().run_round(request)
        raise TransportError("the connection is lost")


def test_a_round_without_a_known_end_counts_as_long_as_it_is_charged() -> None:
    rounds = JobRounds(Cut(), TERMS, None)
    for _ in range(3):
        with pytest.raises((TransportError, RoundAborted)):
            asyncio.run(rounds.run_round(RoundRequest("sum", {"columns": ["x"]}, budget_share=0.8)))
    assert rounds.spent.mu == pytest.approx(0.8**0.5 * TERMS.budget.mu, rel=1e-5), "the others found no room"


def test_the_cost_of_a_sum_does_not_depend_on_the_ledgers_memory() -> None:
    trainer = Silent()
    rounds = JobRounds(trainer, TERMS, None)
    asyncio.run(rounds.run_round(RoundRequest("sum", {"columns": ["x"]}, budget_share=0.5)))
    trainer._charged.clear()  # another store
    assert rounds.spent.mu == pytest.approx(0.5**0.5 * TERMS.budget.mu, rel=1e-5)
