"""A learning job's rounds: what is the same for all of them, and what the trainer is asked for each.

A job states the total (epsilon, delta); each round gets its share of mu², or of epsilon where it is of epsilon-private
reports (`dca_proto.core.budget`).
"""

from __future__ import annotations

import math

import msgspec

from dca_proto.aggregate import RoundRequest
from dca_proto.core.budget import Budget
from dca_proto.core.errors import UsageError
from dca_proto.core.mechanism import PURE_MECHANISMS
from dca_proto.core.shares import LOCAL, SEED
from dca_proto.core.trainer_round import OpenRound

FRACTION_BITS = 24


class JobTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all rounds of a job.

    Attributes:
        budget: in all. clients: N, how many are expected. tolerated: T, of a round of everybody. colluders: c.
        encoding: of shares.
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

    def open(self, request: RoundRequest, round_id: bytes, invited: tuple[bytes, ...] = ()) -> OpenRound:
        """The command for one round of the job; one of data nodes or of reports has no Compute nodes, and T = c = 0.

        Args:
            invited: ids of the clients of a mini-batch; empty for a round of everybody.

        Raises:
            UsageError: the request's share of the budget cannot be, or it asks for data nodes and for reports.
        """
        if request.local and request.mechanism:
            raise UsageError(f"a request is local and names the mechanism {request.mechanism!r}; ask for one of both")
        local, pure = request.local or bool(request.mechanism), request.mechanism in PURE_MECHANISMS
        expected, colluders = len(invited) or self.clients, 0 if local else self.colluders
        share_of = self.budget.round_pure if pure else self.budget.round_epsilon
        return OpenRound(
            round_id=round_id,
            statistic=request.statistic,
            parameters=request.parameters,
            rows_max=request.rows_max,
            fraction_bits=FRACTION_BITS,
            epsilon=share_of(request.budget_share),
            delta=0.0 if pure else self.budget.delta,
            tolerated=0 if local else tolerated_of(expected, self.clients, self.tolerated, colluders),
            colluders=colluders,
            computes=() if local else self.computes,
            encoding=LOCAL if local else self.encoding,
            mechanism=request.mechanism,
            clients_expected=expected,
            join_window_ms=self.join_window_ms,
            share_window_ms=self.share_window_ms,
            commit_window_ms=self.commit_window_ms,
            invited=invited,
        )


def tolerated_of(batch: int, clients: int, tolerated: int, colluders: int) -> int:
    """T of a mini-batch's round: as large a part of it may drop as of everybody; colluders may all be in it.

    Args:
        batch: B. clients, tolerated, colluders: N, T and c of a round of everybody.
    """
    return colluders + math.ceil((tolerated - colluders) * batch / clients)
