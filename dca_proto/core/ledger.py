"""A record of what was spent: written before a share (or a start) leaves, returned only against aborts (DESIGN §4).

A client keeps one for itself, and a trainer one for its federation (`account`).
Budgets are kept in Gaussian DP, where rounds compose exactly: the spent mu is the root of the sum of squares.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from dca_proto.core.effects import Persist

TABLE = "ledger"


class Charge(msgspec.Struct, frozen=True):
    """One round's entry.

    Attributes:
        round_id: 16 bytes. statistic: what was asked. trainer: who asked, an id of 16 bytes.
        mu, epsilon, delta: what it cost. at_ms: when it was charged.
        number: 1, 2, ... in the order of charging, never used twice, also not after a return.
        returned: whether all Compute nodes have signed that they released nothing and never will.
    """

    round_id: bytes
    statistic: str
    trainer: bytes
    mu: float
    epsilon: float
    delta: float
    at_ms: int
    number: int
    returned: bool = False


class Ledger:
    """The charges of one client or one trainer, restored from its store.

    Args:
        charges: all stored entries.
    """

    def __init__(self, charges: Iterable[Charge] = ()) -> None:
        self._charges = {charge.round_id: charge for charge in charges}
        self._highest = max((charge.number for charge in self._charges.values()), default=0)
        # When and mu², of the charges that count: all that is looked at for every announcement.
        self._counting = {c.round_id: (c.at_ms, c.mu**2) for c in self._charges.values() if not c.returned}

    def __contains__(self, round_id: bytes) -> bool:
        return round_id in self._charges

    def __getitem__(self, round_id: bytes) -> Charge:
        return self._charges[round_id]

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All entries, in the order of charging."""
        return tuple(sorted(self._charges.values(), key=lambda charge: charge.number))

    @property
    def next_number(self) -> int:
        """The number of the next charge: above all that this ledger remembers, returned ones too."""
        return self._highest + 1

    def spent(self, since_ms: int = 0) -> float:
        """The mu of all charges made at or after `since_ms` and not returned."""
        return math.sqrt(math.fsum([square for at_ms, square in self._counting.values() if at_ms >= since_ms]))

    def charge(self, charge: Charge) -> Persist:
        """Record a charge; the effect must be durable before anything of the round leaves.

        Raises:
            RuntimeError: the round is charged already, or the number is not the next: a bug, which must not spend.
        """
        if charge.round_id in self._charges:
            raise RuntimeError("a round is charged once")
        if charge.number != self.next_number:
            raise RuntimeError(f"charges are numbered in order: found {charge.number}, next is {self.next_number}")
        self._highest = charge.number
        self._counting[charge.round_id] = (charge.at_ms, charge.mu**2)
        return self._store(charge)

    def give_back(self, round_id: bytes) -> Persist:
        """Mark a charge as returned. Raises `RuntimeError` where it was before: a bug."""
        charge = self._charges[round_id]
        if charge.returned:
            raise RuntimeError("a charge is returned once")
        del self._counting[round_id]
        return self._store(msgspec.structs.replace(charge, returned=True))

    def _store(self, charge: Charge) -> Persist:
        self._charges[charge.round_id] = charge
        return Persist(TABLE, charge.round_id, msgspec.msgpack.encode(charge))
