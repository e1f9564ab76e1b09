"""A learning job's rounds: what is the same for all of them, and what the trainer is asked for each.

A job states the total (epsilon, delta); each round gets its share of mu², or of epsilon where it is of epsilon-private
reports (`dca_proto.privacy.budget`).
"""

from __future__ import annotations

import msgspec

from dca_proto.aggregate import LdpReportRequest, NodeReleaseRequest, RoundRequest
from dca_proto.privacy.budget import Budget, RoundCost
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.protocol.trainer.request import Ask, AskLdpReport, AskNodeRelease, AskSecureSum, OpenRound, tolerated_of

FRACTION_BITS = 24


class JobTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all rounds of a job.

    Attributes:
        budget: in all. clients: N, how many are expected. tolerated: T, of a round of everybody. colluders: c.
        computes: ids of the M Compute nodes. collect_window_ms, commit_window_ms: of each round.
    """

    budget: Budget
    clients: int
    tolerated: int
    computes: tuple[bytes, ...]
    colluders: int = 0
    collect_window_ms: int = 60_000
    commit_window_ms: int = 60_000

    def open(self, request: RoundRequest, round_id: bytes, invited: tuple[bytes, ...] = ()) -> OpenRound:
        """The command for one round of the job.

        Args:
            invited: ids of the clients of a mini-batch; empty for a round of everybody.

        Raises:
            UsageError: the request's share of the budget cannot be.
        """
        expected = len(invited) or self.clients
        cost = self._cost(request)
        return OpenRound(
            round_id=round_id,
            ask=self._ask(request, expected),
            statistic=request.statistic,
            parameters=request.parameters,
            rows_max=request.rows_max,
            fraction_bits=FRACTION_BITS,
            mu=cost.mu,
            epsilon=cost.epsilon,
            delta=cost.delta,
            clients_expected=expected,
            collect_window_ms=self.collect_window_ms,
            commit_window_ms=self.commit_window_ms,
            invited=invited,
        )

    def _cost(self, request: RoundRequest) -> RoundCost:
        pure = isinstance(request, LdpReportRequest) and request.mechanism in PURE_MECHANISMS
        return (self.budget.pure_share if pure else self.budget.share)(request.budget_share)

    def _ask(self, request: RoundRequest, expected: int) -> Ask:
        match request:
            case NodeReleaseRequest():
                return AskNodeRelease()
            case LdpReportRequest():
                return AskLdpReport(mechanism=request.mechanism)
            case _:
                tolerated = tolerated_of(expected, self.clients, self.tolerated, self.colluders)
                return AskSecureSum(computes=self.computes, tolerated=tolerated, colluders=self.colluders)
