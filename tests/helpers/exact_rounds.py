"""Rounds without noise: exact sums of clients' statistics, for tests of jobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.errors import NoAggregate
from dca_proto.statistics import resolve
from dca_proto.statistics.contribution import client_sensitivity, joint_contribution

BITS = 24


class ExactRounds:
    """Rounds of one row per client, with noise of the given standard deviation per unit of sensitivity (default: none).

    Attributes:
        requests: all requests so far.
    """

    def __init__(self, rows: np.ndarray, columns: Sequence[str], noise: float = 0.0, rounds: int | None = None) -> None:
        self.requests: list[RoundRequest] = []
        self._rows, self._columns = rows, list(columns)
        self._noise, self._left = noise, rounds
        self._rng = np.random.default_rng(1)

    def run_round(self, request: RoundRequest) -> NoisyAggregate:
        if self._left is not None and len(self.requests) >= self._left:
            raise NoAggregate("the account is spent")
        self.requests.append(request)
        statistic = resolve(request.statistic, request.parameters)
        chosen = [self._columns.index(column) for column in statistic.columns]
        rows = self._rows
        if request.batch:
            rows = rows[self._rng.permutation(len(rows))[: request.batch]]
        total = joint_contribution(statistic, rows[:, None, chosen], 0, BITS).astype(float) * 2.0**-BITS
        sensitivity = client_sensitivity(statistic, 0, BITS).l2 * 2.0**-BITS
        sd = self._noise * sensitivity / np.sqrt(request.budget_share)
        value = total + sd * self._rng.standard_normal(total.size)
        return aggregate(value, sd**2, request, len(rows), sensitivity)


def aggregate(
    value: np.ndarray, variance: float, request: RoundRequest, contributors: int, sensitivity: float = 1.0
) -> NoisyAggregate:
    return NoisyAggregate(
        value=value,
        noise_variance=variance,
        statistic=request.statistic,
        parameters=request.parameters,
        contributors=contributors,
        clients=contributors,
        n_min=0,
        colluders=0,
        mechanism="test",
        sensitivity=sensitivity,
        relation="replace-one-client",
        sigma_local=1.0,
        epsilon=1.0,
        delta=1e-5,
        mu=0.3 * float(np.sqrt(request.budget_share)),
        round_id=bytes(16),
        announcement_hash=bytes(32),
        contributors_hash=bytes(32),
    )
