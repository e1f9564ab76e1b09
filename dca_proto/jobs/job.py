"""Defines the terms that all rounds of a learning job share, makes the trainer's commands, and picks mini-batches.

A job states the total (epsilon, delta). Each round gets a share of mu², or of epsilon if its reports are
epsilon-private (`dca_proto.privacy.budget`).

**Mini-batches** are random and take the least used clients first (DCA, section 3.2: "The model trainer selects a random
mini-batch of fixed public size from the available clients."). A batch takes the clients that were used least often, or
a uniformly random subset of them if they are too many. So no client is used e + 1 times before every available client
was used e times: E epochs, which are ⌊E N/B⌋ rounds of B of N clients, cost each client at most E rounds. With
independent batches, some client would soon be used far more than average, and its budget would end the job. The choice
is not secret: the broker and the Compute nodes see who takes part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dca_proto.aggregate import RoundRequest
from dca_proto.crypto.sealing import Random
from dca_proto.errors import UsageError
from dca_proto.privacy.budget import RoundCost
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.protocol.terms import ComputeIds, LiveTerms
from dca_proto.protocol.trainer.request import OpenRound

FRACTION_BITS = 24


class JobTerms(LiveTerms[ComputeIds], frozen=True, kw_only=True):
    """The terms that all rounds of a job share. T is that of a round open to all."""

    def open(self, request: RoundRequest, round_id: bytes, invited: tuple[bytes, ...] = ()) -> OpenRound:
        """Return the command for one round, to the `invited` clients of a mini-batch, or to everybody if empty.

        Raises `UsageError` if the request's share of the budget is invalid.
        """
        expected = len(invited) or self.clients
        cost = self._cost(request)
        round_ = {
            "kind": self.in_batch(expected).fill(request.kind),
            "computes": self.computes if request.kind.is_summed else (),
            "mu": cost.mu,
            "epsilon": cost.epsilon,
            "delta": cost.delta,
        }
        return OpenRound(
            **{**self.shared(OpenRound), **round_},
            round_id=round_id,
            statistic=request.statistic,
            parameters=request.parameters,
            rows_max=request.rows_max,
            fraction_bits=FRACTION_BITS,
            invited=invited,
        )

    def _cost(self, request: RoundRequest) -> RoundCost:
        pure = request.kind.mechanism in PURE_MECHANISMS
        return (self.budget.pure_share if pure else self.budget.share)(request.budget_share)


_WORD_BYTES = 8
_WORD = 1 << 8 * _WORD_BYTES


class Batches:
    """Counts how often each client was used, and picks mini-batches."""

    def __init__(self) -> None:
        self._uses: Counter[bytes] = Counter()
        self._failures: Counter[bytes] = Counter()

    def pick(self, available: Sequence[bytes], size: int, random: Random) -> tuple[bytes, ...]:
        """Return a batch of the least used clients, sorted by id; uniformly random among equals.

        Among clients used equally often, those with fewer failed rounds (`give_back`) come first. The ids in
        `available` are distinct. Changes no state but that of `random`. Raises `UsageError` if the size is below 1 or
        above their number.
        """
        if not 1 <= size <= len(available):
            raise UsageError(
                f"a batch of {size} clients was requested and {len(available)} are available; "
                f"request 1 to {len(available)}"
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
        """Take back one use of each: their round failed and cost them nothing."""
        batch = tuple(chosen)
        self._uses.subtract(batch)
        self._failures.update(batch)


def _subset(clients: Sequence[bytes], size: int, random: Random) -> list[bytes]:
    """Return a uniformly random subset, by the first steps of the Fisher-Yates shuffle.

    Rejects random words above the largest multiple of the number of choices, so that no choice is favoured.
    """
    pool = list(clients)
    for place in range(size):
        bound = len(pool) - place
        while (word := int.from_bytes(random(_WORD_BYTES), "little")) >= _WORD - _WORD % bound:
            pass
        other = place + word % bound
        pool[place], pool[other] = pool[other], pool[place]
    return pool[:size]
