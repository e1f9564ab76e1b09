"""A trainer's account of its federation: what its rounds have cost the client that they cost most.

A round that is announced to everybody is charged as if everybody took part. One to which some clients are invited is
charged to these, and weighed against what these have spent: a job of mini-batches costs each client its own rounds. Of
Gaussian rounds and of ε-private reports it is the most that any of these has spent in each kind (`ledger.worst`), which
may be two clients: an upper bound for all of them, and a mixture (`price`) even where no client has taken part in both.

A round is charged in the transaction before its starts leave, a local one before its announcement does; from then on
clients charge, too. Rounds that are asked for and have neither started nor ended are reserved for. A charge comes back
as it does at a client: against the signed aborts of all M Compute nodes, once; a local round's, where all whom it
asked have signed that they decline (DESIGN §4.3, §4.7, §4.8; `failures`).

It is this trainer's word to itself. What protects a client is the client's own ledger, which also knows what other
trainers ask for, and keeps a charge whose aborts it has not seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dca_proto.errors import UsageError
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.protocol.ledger import Charge, Cost, Ledger
from dca_proto.protocol.policy import BudgetLimit


class BudgetError(UsageError):
    """Rounds that do not fit into the account now; later they may."""


class FederationBudget:
    """The charges of a federation, and their limit.

    Args:
        budget_limit: what all rounds of a period together may cost; None sets no limit, but everything is recorded.
        charges: all stored entries.
    """

    def __init__(self, budget_limit: BudgetLimit | None, charges: Iterable[Charge]) -> None:
        self.ledger = Ledger(charges)
        self._limit = budget_limit

    def require(
        self,
        prices: Iterable[PrivacyCost],
        now_ms: int,
        *,
        invited: Collection[bytes] = (),
        reserved: Collection[Cost] = (),
        failed: int = 0,
    ) -> None:
        """Refuse rounds that do not fit beside those that are under way.

        Args:
            invited: the clients of these rounds; empty: everybody. reserved: of each round under way that is not
                charged yet. failed: how many charges may still come back.

        Raises:
            BudgetError: what they come to, what is allowed, what is left and what to do.
        """
        if self._limit is None:
            return
        refusal = self._limit.check(total(prices), self.ledger, now_ms, of=invited, reserved=reserved)
        if refusal is None:
            return
        under_way = f", {_rounds(len(reserved))} under way included" if reserved else ""
        open_ends = [f"finishes {_rounds(len(reserved))}"] * bool(reserved)
        open_ends += [f"may bring back the charge of {_rounds(failed)} that failed"] * bool(failed)
        resume = f"`dca trainer FILE --resume` {' and '.join(open_ends)}; " if open_ends else ""
        raise BudgetError(
            f"the federation's account: found {refusal.found}{under_way}; expected {refusal.expected}; "
            f"{resume}ask for less, wait, or raise epsilon of [account]"
        )


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"
