"""The ideal functionality: the exact noisy sum of a round, drawn directly.

The same encoding, the same exact noise shares and the same thresholds as the protocol, without messages: what a trusted
party would hand out that adds up the clients' noisy contributions. Its result has the protocol's distribution, so it
stands in for it where an experiment needs many repeats.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.core.combine import Hashes, aggregate_of
from dca_proto.core.errors import RoundAborted
from dca_proto.core.mechanism import DistributedDiscreteGaussian
from dca_proto.core.messages import Announcement, Signed
from dca_proto.core.noise import discrete_gaussian
from dca_proto.core.params import Limits
from dca_proto.core.plan import Plan, ask, plan_round
from dca_proto.core.sealing import KEY_BYTES, Random
from dca_proto.core.trainer_round import OpenRound
from dca_proto.statistics.contribution import contribution
from emulator.job import Terms

R = TypeVar("R")
Rows = Sequence[NDArray[np.float64]]


def drive(
    job: Generator[RoundRequest, NoisyAggregate, R],
    terms: Terms,
    rows: Rows,
    columns: Sequence[str],
    absent: Sequence[frozenset[int]],
    random: Random = os.urandom,
) -> R:
    """Run a job of several rounds to its result.

    Args:
        rows: each client's rows, of shape (m, number of columns). columns: their names.
        absent: for each round, the indices of the clients that drop out.
        random: for round ids and noise keys.
    """
    try:
        request = next(job)
        for dropped in absent:
            opened = terms.open(request, random(16))
            request = job.send(noisy_sum(opened, rows, columns, dropped, random))
    except StopIteration as end:
        result: R = end.value
        return result
    raise ValueError(f"the job wants more than {len(absent)} rounds; say who drops out in each")


def planned(request: OpenRound, clients: int) -> tuple[Announcement, Plan]:
    """A round's announcement and numbers, as every participant checks them. Raises `UsageError` where none can be."""
    mechanism = DistributedDiscreteGaussian()
    nobody = tuple(Signed(b"", bytes(64)) for _ in request.computes)
    announcement = request.announcement(bytes(16), mechanism.name, nobody, bytes(KEY_BYTES), now_ms=0)
    return announcement, plan_round(announcement, ask(announcement, mechanism, Limits()), clients, mechanism)


def noisy_sum(
    request: OpenRound, rows: Rows, columns: Sequence[str], absent: frozenset[int], random: Random = os.urandom
) -> NoisyAggregate:
    """One round. Raises `RoundAborted` where fewer than N - T + c clients are left."""
    announcement, plan = planned(request, len(rows))
    present = [index for index in range(len(rows)) if index not in absent]
    if len(present) < plan.needed:
        raise RoundAborted("too few contributions", contributors=len(present), needed=plan.needed)
    statistic = plan.question.statistic
    chosen = [list(columns).index(column) for column in statistic.columns]
    total = np.zeros(plan.dimension, dtype=np.int64)
    for index in present:
        total += contribution(statistic, rows[index][:, chosen], request.rows_max, request.fraction_bits)
    keys = [random(KEY_BYTES) for _ in present]
    total += discrete_gaussian(plan.share_variance).sample_many(keys, plan.dimension).sum(axis=0)
    return aggregate_of(announcement, plan, total.view(np.uint64), tuple(sorted(absent)), Hashes(), private=True)
