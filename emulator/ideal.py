"""The ideal functionality: the exact noisy sum of a round, drawn directly.

The same encoding, the same exact noise shares and the same thresholds as the protocol, without messages: what a trusted
party would hand out that adds up the clients' noisy contributions. Its result has the protocol's distribution, so it
stands in for it where an experiment needs many repeats. With another mechanism than the exact one it is only an
emulation, whose result says that it is not private.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.core.combine import Hashes, aggregate_of
from dca_proto.core.errors import RoundAborted
from dca_proto.core.forecast import EXACT, planned
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.plan import Plan
from dca_proto.core.sealing import KEY_BYTES, Random
from dca_proto.core.trainer_round import OpenRound
from dca_proto.statistics.contribution import contribution
from emulator.job import Terms

R = TypeVar("R")
Rows = Sequence[NDArray[np.float64]]


@runtime_checkable
class DrawsMany(Protocol):
    """A mechanism that draws the noise of many clients at once, shape ``(len(keys), dimension)``."""

    def sample_many(self, variance: int, dimension: int, keys: Sequence[bytes]) -> NDArray[np.int64]: ...


def drive(
    job: Generator[RoundRequest, NoisyAggregate, R],
    terms: Terms,
    rows: Rows,
    columns: Sequence[str],
    absent: Sequence[frozenset[int]],
    random: Random = os.urandom,
    mechanism: Mechanism = EXACT,
) -> R:
    """Run a job of several rounds to its result.

    Args:
        rows: each client's rows, of shape (m, number of columns). columns: their names.
        absent: for each round, the indices of the clients that drop out.
        random: for round ids and noise keys. mechanism: of the noise; only with the exact one is anything private.
    """
    try:
        request = next(job)
        for dropped in absent:
            opened = terms.open(request, random(16))
            request = job.send(noisy_sum(opened, rows, columns, dropped, random, mechanism))
    except StopIteration as end:
        result: R = end.value
        return result
    raise ValueError(f"the job wants more than {len(absent)} rounds; say who drops out in each")


def noisy_sum(
    request: OpenRound,
    rows: Rows,
    columns: Sequence[str],
    absent: frozenset[int],
    random: Random = os.urandom,
    mechanism: Mechanism = EXACT,
) -> NoisyAggregate:
    """One round, of the arguments of `drive`. Raises `RoundAborted` where fewer than N - T + c clients are left."""
    announcement, plan = planned(request, len(rows), mechanism)
    present = [index for index in range(len(rows)) if index not in absent]
    if len(present) < plan.needed:
        raise RoundAborted("too few contributions", contributors=len(present), needed=plan.needed)
    statistic = plan.question.statistic
    chosen = [list(columns).index(column) for column in statistic.columns]
    total = np.zeros(plan.dimension, dtype=np.int64)
    for index in present:
        total += contribution(statistic, rows[index][:, chosen], request.rows_max, request.fraction_bits)
    keys = [random(KEY_BYTES) for _ in present]
    total += _shares(mechanism, plan, keys).sum(axis=0)
    ring, dropped = total.view(np.uint64), tuple(sorted(absent))
    return aggregate_of(announcement, plan, ring, dropped, Hashes(), private=mechanism.private)


def _shares(mechanism: Mechanism, plan: Plan, keys: Sequence[bytes]) -> NDArray[np.int64]:
    """The noise of each client, shape ``(len(keys), dimension)``."""
    if isinstance(mechanism, DrawsMany):
        return mechanism.sample_many(plan.share_variance, plan.dimension, keys)
    return np.stack([mechanism.sample(plan.share_variance, plan.dimension, key) for key in keys])
