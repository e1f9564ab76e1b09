"""A job whose process ended in a round that is then cancelled for a lost Compute node: the next one repeats it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import RoundAborted
from dca_proto.jobs.job import JobTerms
from dca_proto.jobs.journal import Failed, Journal, Opened
from dca_proto.jobs.runner import JobRounds
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.fields import REPEATS_MAX

CLIENTS = tuple(bytes([index]) * 16 for index in range(6))
TERMS = JobTerms(epsilon=1.0, delta=1e-6, clients=6, tolerate=1, computes=(b"a" * 16, b"b" * 16))
BATCH = RoundRequest("sum", {}, 0.5, batch=3)


class Cancelling:
    """A trainer that cancels every round, and gives its charge back."""

    def __init__(self) -> None:
        self.asked: list[OpenRound] = []

    async def check(self, request: OpenRound) -> None:
        """All is well."""

    async def run_round(self, request: OpenRound) -> NoisyAggregate:
        self.asked.append(request)
        raise RoundAborted("compute-1 has not answered", repeatable=True)

    async def resume_round(self, request: OpenRound) -> NoisyAggregate:
        raise RoundAborted("compute-1 has not answered", repeatable=True)

    def contributors(self, round_id: bytes) -> tuple[bytes, ...]:
        return CLIENTS

    def is_charged(self, round_id: bytes) -> bool:
        return False


def opened(number: int, *repeats: int) -> Opened:
    """Return the entry of a round with this id."""
    before = tuple(bytes([one]) * 16 for one in repeats)
    plain = TERMS.open(BATCH, bytes([number]) * 16, CLIENTS[1:4])
    return Opened(1, msgspec.structs.replace(plain, repeats=before))


@pytest.mark.parametrize("before", range(3))
def test_a_round_that_is_cancelled_after_a_resume_is_repeated_with_its_aborts_and_its_clients(
    before: int, tmp_path: Path
) -> None:
    """Before, the next round carried no aborts, so that clients who had missed them bore two charges, of other clients.

    `before` rounds of the request were cancelled in the earlier process, too.
    """
    path, rounds = tmp_path / "job.journal", range(1, before + 2)
    with Journal(path, {}) as journal:
        for number in rounds:
            journal.append(opened(number, *range(1, number)))
            if number <= before:
                journal.append(Failed(bytes([number]) * 16, "lost", None, None, False, repeatable=True))
    trainer: Any = Cancelling()
    with Journal(path, {}) as journal:
        job = JobRounds(trainer, TERMS, journal, clients=CLIENTS, retries=0)
        with pytest.raises(RoundAborted):
            asyncio.run(job.run_round(BATCH))
    first, *others = trainer.asked
    assert first.repeats == tuple(bytes([number]) * 16 for number in rounds)
    assert [len(one.repeats) for one in others] == [*range(before + 2, REPEATS_MAX + 1)]
    assert {one.invited for one in trainer.asked} == {CLIENTS[1:4]}
