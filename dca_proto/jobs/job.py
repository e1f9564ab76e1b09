"""A learning job's rounds: their common terms, and the request to the trainer for each.

A job states the total (epsilon, delta); each round gets its share of mu², or of epsilon where it is of epsilon-private
reports (`dca_proto.privacy.budget`).

**Mini-batches** are random, those clients first that were used least (DCA, section 3.2). "The model trainer selects a
random mini-batch of fixed public size from the available clients." A batch is filled from the clients that were used
least often, and where not all of these fit in, it is a uniformly random subset of them. So nobody is used an (e + 1)-th
time before everyone available was used e times: E epochs, ⌊E N/B⌋ rounds of B of N clients, cost each client at most E
rounds. With batches drawn independently, some client would soon be far above the mean, and its budget would end the
job. Nothing is claimed for the secrecy of the choice: the broker and the Compute nodes see who takes part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from dca_proto.aggregate import LdpReportRequest, NodeReleaseRequest, RoundRequest
from dca_proto.crypto.sealing import Random
from dca_proto.errors import UsageError
from dca_proto.privacy.budget import Budget, RoundCost
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.protocol.trainer.request import Ask, AskLdpReport, AskNodeRelease, AskSecureSum, OpenRound, tolerated_of

FRACTION_BITS = 24


class JobTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all rounds of a job share.

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
        """The command for one round of the job, to the `invited` clients of a mini-batch; without any, to everybody.

        Raises `UsageError` if the request's share of the budget cannot be.
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


_WORD_BYTES = 8
_WORD = 1 << 8 * _WORD_BYTES


class Batches:
    """How often each client was used, and who is next."""

    def __init__(self) -> None:
        self._uses: Counter[bytes] = Counter()
        self._failures: Counter[bytes] = Counter()

    def pick(self, available: Sequence[bytes], size: int, random: Random) -> tuple[bytes, ...]:
        """A batch, sorted by id; uniformly random among those that were used least. Changes nothing but `random`.

        Among equals, those come first who were in fewer rounds that were given back (`give_back`). `available` are ids
        of distinct clients. Raises `UsageError` if the size is below 1, or above their number.
        """
        if not 1 <= size <= len(available):
            raise UsageError(
                f"a batch of {size} clients is asked for and {len(available)} are available; "
                f"ask for 1 to {len(available)}"
            )
        groups: dict[tuple[int, int], list[bytes]] = {}
        for client in available:
            groups.setdefault((self._uses[client], self._failures[client]), []).append(client)
        chosen: list[bytes] = []
        for _, equals in sorted(groups.items()):
            missing = size - len(chosen)
            chosen += equals if len(equals) <= missing else _subset(equals, missing, random)
            if len(chosen) == size:
                break
        return tuple(sorted(chosen))

    def note(self, chosen: Iterable[bytes]) -> None:
        """Count one use of each."""
        self._uses.update(chosen)

    def give_back(self, chosen: Iterable[bytes]) -> None:
        """Take one use of each back: their round ended without a result, and has cost them nothing."""
        batch = tuple(chosen)
        self._uses.subtract(batch)
        self._failures.update(batch)


def _subset(clients: Sequence[bytes], size: int, random: Random) -> list[bytes]:
    """A uniformly random subset (the first steps of Fisher and Yates' shuffle).

    Words beyond the last whole multiple of the numbers to choose among are refused.
    """
    pool = list(clients)
    for place in range(size):
        bound = len(pool) - place
        while (word := int.from_bytes(random(_WORD_BYTES), "little")) >= _WORD - _WORD % bound:
            pass
        other = place + word % bound
        pool[place], pool[other] = pool[other], pool[place]
    return pool[:size]
