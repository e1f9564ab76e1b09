"""A learning job's rounds: what is the same for all of them, and what the trainer is asked for each.

A job states the total (epsilon, delta); each round gets its share of mu² (`dca_proto.core.budget`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from dca_proto.aggregate import RoundRequest
from dca_proto.core.budget import Budget
from dca_proto.core.errors import UsageError
from dca_proto.core.params import Limits
from dca_proto.core.shares import SEED
from dca_proto.core.trainer_round import OpenRound
from dca_proto.statistics import Regression
from dca_proto.statistics.contribution import client_sensitivity

FRACTION_BITS = 24


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all rounds of a job.

    Attributes:
        budget: in all. clients: N, how many are expected. tolerated: T. colluders: c. encoding: of shares.
        computes: ids of the M Compute nodes. join_window_ms, share_window_ms, commit_window_ms: of each round.
    """

    budget: Budget
    clients: int
    tolerated: int
    computes: tuple[bytes, ...]
    colluders: int = 0
    encoding: str = SEED
    join_window_ms: int = 60_000
    share_window_ms: int = 60_000
    commit_window_ms: int = 60_000

    def open(self, request: RoundRequest, round_id: bytes) -> OpenRound:
        """The command for one round of the job."""
        return OpenRound(
            round_id=round_id,
            statistic=request.statistic,
            parameters=request.parameters,
            rows_max=request.rows_max,
            fraction_bits=FRACTION_BITS,
            epsilon=self.budget.round_epsilon(request.budget_share),
            delta=self.budget.delta,
            tolerated=self.tolerated,
            colluders=self.colluders,
            computes=self.computes,
            encoding=self.encoding,
            clients_expected=self.clients,
            join_window_ms=self.join_window_ms,
            share_window_ms=self.share_window_ms,
            commit_window_ms=self.commit_window_ms,
        )


def check_counts(clients: int, computes: int, tolerated: int, colluders: int, dropped: int) -> None:
    """Refuse numbers that no round can have. Raises `UsageError` that says which to change."""
    if computes < 2:
        raise UsageError(f"M = {computes} Compute nodes; need at least 2, so that no one of them sees a sum")
    if computes > Limits().computes_max:
        raise UsageError(
            f"M = {computes} Compute nodes; at most {Limits().computes_max} may take part, lower --computes"
        )
    if min(tolerated, colluders, dropped) < 0:
        raise UsageError("T, c and K cannot be below 0")
    if tolerated >= clients:
        raise UsageError(f"T = {tolerated} is not below N = {clients}; lower --tolerate")
    if dropped >= clients:
        raise UsageError(f"K = {dropped} dropping clients is not below N = {clients}; lower --drop")
    if colluders > tolerated:
        raise UsageError(f"c = {colluders} exceeds T = {tolerated}; lower --colluders or raise --tolerate")
    if clients - tolerated - 1 < 1:
        raise UsageError(f"N - T - 1 = {clients - tolerated - 1} is below 1: no noise would be left; lower --tolerate")


def regression_sensitivity(features: tuple[str, ...], target: str) -> Callable[[tuple[float, ...]], float]:
    """L2 sensitivity of the regression round's sum, given the bounds (constant, features..., target) of one row."""

    def sensitivity(bounds: tuple[float, ...]) -> float:
        columns = (*features, target)
        ones, zeros = (1.0,) * len(columns), (0.0,) * len(columns)
        statistic = Regression(
            columns=columns,
            centre=zeros,
            scale=ones,
            bound=tuple(bounds[1:]),
            intercept=True,
            intercept_bound=bounds[0],
            target_square=True,
        )
        return math.ldexp(client_sensitivity(statistic, 0, FRACTION_BITS).l2, -FRACTION_BITS)

    return sensitivity
