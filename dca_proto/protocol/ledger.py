"""The ledger of spent budget: charged before a message leaves, returned only against aborts (DESIGN §4.4, §4.8).

A client keeps a ledger for itself, and a trainer keeps one for its federation (the account). The total is a
`PrivacyCost`. A charge with delta = 0 is a report's. A trainer's charge may cost only the clients that it invited; the
account's total is then the maximum over clients, for Gaussian rounds and for reports apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import lru_cache

import msgspec

from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.protocol.effects import Persist
from dca_proto.statistics import REPLACE_ONE_CLIENT

TABLE = "ledger"
_NEVER_MS = 1 << 63  # later than any charge


class Charge(msgspec.Struct, frozen=True, gc=False):
    """The charge of one round.

    Attributes:
        round_id: 16 bytes.
        statistic: the round's statistic.
        trainer: id of the trainer that announced the round, 16 bytes.
        mu, epsilon, delta: the cost. For an ε-private report, delta is 0 and mu is its μ(ε) (`cost`).
        slack: of a verified sum, beside mu (`privacy.verified`).
        at_ms: time of the charge.
        number: 1, 2, ... in the order of charging; never reused, even after a return.
        returned: True if p + 1 Compute nodes have signed that they released nothing and never will. In the account, for
            a round without Compute nodes: True if all invited clients (or as many as expected) have signed declines.
        clients: in a trainer's account, ids of the invited clients, the only ones charged; empty if all are.
        relation: the neighbouring relation: all data of a client, or one row. Charges of both together protect one row.
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
    clients: tuple[bytes, ...] = ()
    relation: str = REPLACE_ONE_CLIENT
    slack: float = 0.0

    @property
    def cost(self) -> PrivacyCost:
        """The privacy cost of the charge."""
        return PrivacyCost.of_mu(self.mu, self.slack) if self.delta else PrivacyCost.of_pure(self.epsilon)


class CostToClients(msgspec.Struct, frozen=True, gc=False):
    """The cost of a round to each client that bears it, and the ids of these clients; empty if all do."""

    each: PrivacyCost
    clients: frozenset[bytes] = frozenset()


def max_client_cost(costs: Iterable[CostToClients], of: Collection[bytes] = ()) -> PrivacyCost:
    """Return the largest total cost of any one client; for costs of two kinds, the largest total of each kind.

    Only the clients `of` are considered; if it is empty, all.
    """
    costs = tuple(costs)
    if not any(cost.clients for cost in costs):
        return total(cost.each for cost in costs)
    among = frozenset(of)
    return PrivacyCost(
        _largest([(cost.each.gaussian, cost.clients) for cost in costs], among),
        _largest([(cost.each.pure, cost.clients) for cost in costs], among),
        _largest([(cost.each.converted, cost.clients) for cost in costs], among),
        _largest([(cost.each.slack, cost.clients) for cost in costs], among),
    )


def _largest(amounts: list[tuple[float, frozenset[bytes]]], among: frozenset[bytes]) -> float:
    """Return the largest sum of amounts of any one client."""
    common = math.fsum([amount for amount, clients in amounts if not clients])
    each: defaultdict[bytes, float] = defaultdict(float)
    for amount, clients in amounts:
        if amount:
            for client in clients & among if among else clients:
                each[client] += amount
    return common + max(each.values(), default=0.0)


@lru_cache(maxsize=256)
def _to_all(cost: PrivacyCost) -> CostToClients:
    """Return a cost to all clients; one object for equal costs, since a standing job's rounds all cost the same."""
    return CostToClients(cost)


@lru_cache(maxsize=4096)
def _shared_names(statistic: str, trainer: bytes, relation: str) -> tuple[str, bytes, str]:
    """Return equal values of an earlier charge, so that a device keeps one copy."""
    return statistic, trainer, relation


@lru_cache(maxsize=4096, typed=True)
def _shared_cost(mu: float, epsilon: float, delta: float, slack: float) -> tuple[float, float, float, float]:
    """Return equal values of an earlier charge, as `_shared_names` does."""
    return mu, epsilon, delta, slack


def _slim(charge: Charge) -> Charge:
    """Return the charge with values that it shares with others: a ledger keeps one for each round of a year."""
    statistic, trainer, relation = _shared_names(charge.statistic, charge.trainer, charge.relation)
    mu, epsilon, delta, slack = _shared_cost(charge.mu, charge.epsilon, charge.delta, charge.slack)
    return msgspec.structs.replace(
        charge,
        statistic=statistic,
        trainer=trainer,
        relation=relation,
        mu=mu,
        epsilon=epsilon,
        delta=delta,
        slack=slack,
    )


class Ledger:
    """The charges of a client or a trainer, restored from its store."""

    def __init__(self, charges: Iterable[Charge] = ()) -> None:
        self._charges = {charge.round_id: _slim(charge) for charge in charges}
        self._highest = max((charge.number for charge in self._charges.values()), default=0)
        # Time and cost of each charge that was not returned, which every announcement needs.
        self._counting: dict[bytes, tuple[int, CostToClients]] = {}
        self._oldest_ms = _NEVER_MS  # none of these charges is older
        self._total: PrivacyCost | None = None  # cached total of `_counting`
        for charge in self._charges.values():
            if not charge.returned:
                self._count(charge)
        self._has_batches = any(cost.clients for _, cost in self._counting.values())

    def __contains__(self, round_id: bytes) -> bool:
        return round_id in self._charges

    def __getitem__(self, round_id: bytes) -> Charge:
        return self._charges[round_id]

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All charges, in the order of charging."""
        return tuple(sorted(self._charges.values(), key=lambda charge: charge.number))

    @property
    def next_number(self) -> int:
        """The number of the next charge: above all in this ledger, including returned ones."""
        return self._highest + 1

    def is_charged(self, round_id: bytes) -> bool:
        """Return True if a round has a charge that was not returned."""
        return round_id in self._counting

    def spent(
        self, since_ms: int = 0, *, of: Collection[bytes] = (), reserved: Collection[CostToClients] = ()
    ) -> PrivacyCost:
        """Return the total of charges since `since_ms` that were not returned, as `max_client_cost` adds them up.

        Only the clients `of` are considered; if it is empty, all. `reserved` costs are added, but not charged.
        """
        if self._total is None:
            self._total = max_client_cost(cost for _, cost in self._counting.values())
            self._oldest_ms = min((at_ms for at_ms, _ in self._counting.values()), default=_NEVER_MS)
        if since_ms <= self._oldest_ms and not of and not reserved:
            return self._total  # the usual call: a client's, at each announcement
        charged = [cost for at_ms, cost in self._counting.values() if at_ms >= since_ms]
        return max_client_cost([*charged, *reserved], of)

    def rounds(self, since_ms: int = 0, *, of: Collection[bytes] = (), reserved: Collection[CostToClients] = ()) -> int:
        """Return the number of charges that `spent` adds up; in an account, the largest number of any one client."""
        if since_ms <= self._oldest_ms and not of and not reserved and not self._has_batches:
            return len(self._counting)
        costs = [*(cost for at_ms, cost in self._counting.values() if at_ms >= since_ms), *reserved]
        return int(_largest([(1.0, cost.clients) for cost in costs], frozenset(of)))

    def has_charged(self, number: int, since_ms: int) -> bool:
        """Return True if at least so many rounds were charged since `since_ms`, returned charges included."""
        made = self._charges.values()
        return len(made) >= number and sum(charge.at_ms >= since_ms for charge in made) >= number

    def charge(self, charge: Charge, *, skips: bool = False) -> Persist:
        """Record a charge; the effect must be durable before any message of the round leaves.

        Raises `RuntimeError` if the round is charged already or the number is not the next. That would be a bug. With
        `skips`, the number may be higher: a restored ledger lacks some (DESIGN §8.1).
        """
        if charge.round_id in self._charges:
            raise RuntimeError("a round is charged once")
        next_number = self._highest + 1
        if charge.number < next_number or (charge.number > next_number and not skips):
            raise RuntimeError(f"charges are numbered in order: found {charge.number}, next is {next_number}")
        self._highest = charge.number
        self._has_batches |= bool(charge.clients)
        cost = self._count(charge)
        if self._total is not None:
            self._total = None if charge.clients else self._total + cost
        return self._store(charge)

    def give_back(self, round_id: bytes) -> Persist:
        """Mark a charge as returned. Raises `RuntimeError` if it was returned before, which would be a bug."""
        charge = self._charges[round_id]
        if charge.returned:
            raise RuntimeError("a charge is returned once")
        del self._counting[round_id]
        self._total = None
        return self._store(msgspec.structs.replace(charge, returned=True))

    def count_again(self, round_id: bytes) -> Persist:
        """Undo `give_back`, because a client has released after all."""
        charge = msgspec.structs.replace(self._charges[round_id], returned=False)
        self._count(charge)
        self._total = None
        return self._store(charge)

    def _count(self, charge: Charge) -> PrivacyCost:
        """Count a charge towards the totals; return its cost."""
        cost = charge.cost
        to_clients = CostToClients(cost, frozenset(charge.clients)) if charge.clients else _to_all(cost)
        self._counting[charge.round_id] = (charge.at_ms, to_clients)
        self._oldest_ms = min(self._oldest_ms, charge.at_ms)
        return cost

    def _store(self, charge: Charge) -> Persist:
        self._charges[charge.round_id] = charge = _slim(charge)
        return Persist(TABLE, charge.round_id, msgspec.msgpack.encode(charge))
