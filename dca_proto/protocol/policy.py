"""The limits that each actor sets for itself: a client's policy, a Compute node's floors, and budgets over time.

The announcement cannot change them (DESIGN §4.3). Each check returns None, or a `Refusal` with the value that was found
and the one that was expected. A client sends its refusal to the trainer as a decline. No check reads a client's rows.

"Who keeps the account" in PRIVACY.md explains how a budget and a trainer's account count rounds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import Annotated, assert_never

import msgspec

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.ledger import CostToClients, Ledger
from dca_proto.protocol.params import DAY_MS, RETURNED_PART, ROUNDS_MAX, Limits
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.fields import COLLUDING_MAX
from dca_proto.protocol.wire.kinds import Kind, LdpReport, NodeRelease, SecureSum
from dca_proto.protocol.wire.messages import Announcement
from dca_proto.statistics import Statistic
from dca_proto.statistics.categories import plain_name
from dca_proto.wording import counted

_PERIOD_DAYS_MIN, _PERIOD_DAYS_MAX = 0.01, 100 * 366
_ROUNDING = 1e-9  # relative to an interval's width: centre ± scale·bound does not restore its ends exactly


class Refusal(msgspec.Struct, frozen=True):
    """The refusal of a round: a fixed reason, the value that was found, and what would be accepted."""

    reason: str
    found: str
    expected: str


LASTING = frozenset(
    {
        *("announcement", "bounds", "clients", "colluders", "columns", "delta", "dimension", "epsilon", "honest"),
        *("rows-of-many", "statistic", "sums-only", "trainer", "verified", "window"),
    }
)
"""Reasons for which the same round is refused again: they depend only on its terms and on the actor's settings.

Those that depend on a round's Compute nodes are not among them, because a repeat may have other nodes.
"""


class BudgetLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit on the privacy budget spent in any `period_days`, by one client or in a trainer's account.

    Attributes:
        epsilon, delta: all charges of a period together must be (epsilon, delta)-private.
        period_days: how long a charge counts, by the actor's own clock.
        epsilon_for_reports: the part of epsilon set aside for reports of delta 0; all other rounds share the rest. 0
            sets nothing aside. Do not change it in view of results: the guarantee would no longer hold.
        rounds_max: the largest number of rounds in a period, whatever they cost. It bounds the ledger's size.
    """

    epsilon: float = 4.0
    delta: float = accounting.DELTA
    period_days: float = 365.0
    epsilon_for_reports: float = 0.0
    rounds_max: int = ROUNDS_MAX

    def __post_init__(self) -> None:
        _check_privacy("account", {"epsilon": self.epsilon}, "delta", self.delta)
        _check_minima("account", self, {"rounds_max": 1})
        _check_part("account", self.epsilon_for_reports, self.epsilon)
        _check_period("account", self.period_days)

    @property
    def mu(self) -> float:
        """The largest μ that is within (epsilon, delta)."""
        return accounting.mu_of(self.epsilon, self.delta)

    def since_ms(self, now_ms: int) -> int:
        """Return the time from which charges count."""
        return now_ms - int(self.period_days * DAY_MS)

    def check(
        self,
        cost: PrivacyCost,
        ledger: Ledger,
        now_ms: int,
        *,
        of: Collection[bytes] = (),
        reserved: Collection[CostToClients] = (),
        rounds: int = 1,
        remedy: str = "",
    ) -> Refusal | None:
        """Return a refusal if a number of rounds of this total cost exceeds the limit, given the ledger's charges.

        In a trainer's account, the rounds cost only the clients `of`; if it is empty, everybody. `reserved` costs are
        planned but not yet charged. `remedy` is further advice if rounds of the two kinds do not fit together.
        """
        since_ms = self.since_ms(now_ms)
        number = ledger.rounds(since_ms, of=of, reserved=reserved) + rounds
        if number > self.rounds_max:
            allowed = f"<= {self.rounds_max:,} in {self.period_days:g} days, whatever they cost"
            return Refusal("rounds", f"{counted(number, 'round')} with this one", allowed)
        spent = ledger.spent(since_ms, of=of, reserved=reserved)
        new_total, kept = spent + cost, self.epsilon_for_reports
        if new_total.within(self.epsilon, self.delta, kept):
            return None
        found = f"a total of epsilon {at_least(self.epsilon_of(new_total))} with this round"
        allowed = f"<= {at_most(self.epsilon)} at delta {at_most(self.delta)} in {self.period_days:g} days"
        if kept:
            found += f", {at_least(new_total.pure_epsilon)} of it for reports of delta 0"
            allowed += f", {at_most(kept)} of it kept for these"
        allowed += f"; at most {at_most(self._left(spent, cost.is_pure))} is left"
        if new_total.gaussian and new_total.pure and not kept:
            allowed += (
                "; reports of delta 0 and Gaussian rounds cost more together than apart: keep them to different "
                "periods, or set epsilon_for_reports before the first" + remedy
            )
        return Refusal("budget", found, allowed)

    def require(
        self,
        costs: Iterable[PrivacyCost],
        ledger: Ledger,
        now_ms: int,
        *,
        invited: Collection[bytes] = (),
        reserved: Collection[CostToClients] = (),
        failed: int = 0,
    ) -> None:
        """Refuse a trainer's rounds if they exceed its account, together with the rounds under way.

        Args:
            costs: the costs of the new rounds.
            ledger: the account.
            now_ms: the time now.
            invited: the clients of the new rounds; empty for everybody.
            reserved: the costs of rounds under way that are not charged yet.
            failed: number of failed rounds whose charge may still come back.

        Raises:
            BudgetError: names the total, the limit, what is left and what to do.
        """
        costs = tuple(costs)
        refusal = self.check(total(costs), ledger, now_ms, of=invited, reserved=reserved, rounds=len(costs))
        if refusal is None:
            return
        under_way = f", {counted(len(reserved), 'round')} under way included" if reserved else ""
        open_ends = [f"finishes {counted(len(reserved), 'round')}"] * bool(reserved)
        open_ends += [f"may bring back the charge of {counted(failed, 'round')} that failed"] * bool(failed)
        resume = f"`dca trainer FILE --resume` {' and '.join(open_ends)}; " if open_ends else ""
        raise BudgetError(
            f"the federation's account: found {refusal.found}{under_way}; expected {refusal.expected}; "
            f"{resume}ask for less, wait, or raise epsilon of [account]"
        )

    def epsilon_of(self, spent: PrivacyCost) -> float:
        """Return the ε of rounds at `delta`, as this budget counts them."""
        return spent.epsilon(self.delta, apart=bool(self.epsilon_for_reports))

    def _left(self, spent: PrivacyCost, pure: bool) -> float:
        return (spent.left_pure if pure else spent.left)(self.epsilon, self.delta, self.epsilon_for_reports)

    def left(
        self, ledger: Ledger, now_ms: int, reserved: Collection[CostToClients] = (), *, pure: bool = False
    ) -> float:
        """Return the ε of the largest single round of all clients that the limit still allows, or 0.0.

        With `pure`, it is a round of ε-private reports, otherwise a Gaussian round at `delta`. `reserved` is as for
        `check`.
        """
        return self._left(ledger.spent(self.since_ms(now_ms), reserved=reserved), pure)


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A client's own limits. The defaults favour privacy over taking part.

    `clients_min`, `honest_min`, `colluders_min`, `colluders_part_min`, `computes_min`, `trusted_computes` and
    `verified` apply to secure sums only.

    Attributes:
        epsilon_per_round_max: largest ε of one round, at `delta_max`.
        epsilon_per_period_max: largest ε of all rounds of any `period_days` together, at `delta_max`.
        epsilon_for_reports: as in `BudgetLimit`, a part of `epsilon_per_period_max`.
        period_days: how long a charge counts, by the client's own clock.
        rounds_per_period_max: largest number of rounds of any `period_days`, whatever they cost; four times as many
            with those whose charge came back.
        delta_max: largest δ of a round, and the δ of both limits above. A round with a smaller δ is compared with them
            by its μ. A round with δ = 0 fits if either its ε or its μ does.
        clients_min: smallest n_min, the fewest contributions that a released sum may hold.
        honest_min: smallest n_min - 1 - c.
        colluders_min: smallest c.
        colluders_part_min: smallest c, as a fraction of n_min.
        computes_min: smallest number of Compute nodes of a round.
        accept_p: if not 0, the owner accepts a federation file that states this p, or a larger one, even if an earlier
            file stated a larger p.
        dimension_max: largest number of coordinates.
        statistics: names of allowed statistics; empty allows every registered one.
        bounds: widest allowed public interval of each column, in units of the data. The client declines a round with a
            wider interval for such a column, or with none.
        trainers: ids (hex) of allowed trainers; empty allows every trainer of the federation file.
        trusted_computes: names or ids (hex) of Compute nodes that every round must include, beside the p + 1 nodes that
            the federation file asks for. A charge comes back only if all of them have aborted.
        verified: True for verified sums only, so that no lying client makes a result useless.
        rows_of_many: True if each row is another person's data. Only then does the client release as a data node, which
            protects single rows instead of all its data. Its budget is then each row's.
        sums_only: True if the client takes part in secure sums only. Then Compute nodes have counted all its rounds, so
            a store that is restored from a backup need not count the whole budget as spent. Set it before the backup.
    """

    epsilon_per_round_max: float = 1.0
    epsilon_per_period_max: float = 4.0
    epsilon_for_reports: float = 0.0
    period_days: float = 365.0
    rounds_per_period_max: int = ROUNDS_MAX
    delta_max: float = accounting.DELTA
    clients_min: int = 20
    honest_min: int = 10
    colluders_min: int = 0
    colluders_part_min: float = 0.0
    computes_min: int = 2
    dimension_max: int = Limits().dimension_max
    statistics: tuple[str, ...] = ()
    bounds: dict[str, tuple[float, float]] = {}
    trainers: tuple[str, ...] = ()
    trusted_computes: tuple[str, ...] = ()
    accept_p: Annotated[int, msgspec.Meta(ge=0, le=COLLUDING_MAX)] = 0
    verified: bool = False
    rows_of_many: bool = False
    sums_only: bool = False

    def __post_init__(self) -> None:
        epsilons = {name: getattr(self, name) for name in ("epsilon_per_round_max", "epsilon_per_period_max")}
        _check_privacy("policy", epsilons, "delta_max", self.delta_max)
        _check_part("policy", self.epsilon_for_reports, self.epsilon_per_period_max)
        _check_period("policy", self.period_days)
        minima = {"clients_min": 1, "honest_min": 1, "colluders_min": 0, "computes_min": 2, "dimension_max": 1}
        minima["rounds_per_period_max"] = 1
        _check_minima("policy", self, minima)
        if not 0 <= self.colluders_part_min < 1:
            raise UsageError(f"policy: colluders_part_min is {self.colluders_part_min:g}; give a part of n_min below 1")
        for column, (low, high) in self.bounds.items():
            if not (low < high and math.isfinite(high - low)):
                raise UsageError(f"policy: bounds of {column!r} are [{low:g}, {high:g}]; give finite LOW < HIGH")

    @cached_property
    def budget_limit(self) -> BudgetLimit:
        """The limit on what may be spent in any period."""
        return BudgetLimit(
            epsilon=self.epsilon_per_period_max,
            delta=self.delta_max,
            period_days=self.period_days,
            epsilon_for_reports=self.epsilon_for_reports,
            rounds_max=self.rounds_per_period_max,
        )

    def check_announcement(
        self, announcement: Announcement, validated: ValidatedRound, missing: frozenset[str]
    ) -> Refusal | None:
        """Check an announcement against the policy, except for the remaining budget (`check_budget`).

        `missing` are the trusted Compute nodes that the announcement leaves out.
        """
        refusal = next(self.refusals(announcement, validated, missing), None)
        return refusal or self.check_bounds(validated.statistic)

    def refusals(
        self, announcement: Announcement, validated: ValidatedRound, missing: frozenset[str]
    ) -> Iterator[Refusal]:
        """Yield a refusal for each limit that the announcement's figures exceed."""
        if self.trainers and announcement.trainer.hex() not in self.trainers:
            yield Refusal("trainer", announcement.trainer.hex(), f"one of {', '.join(self.trainers)}")
        if self.statistics and announcement.statistic not in self.statistics:
            yield Refusal("statistic", announcement.statistic, f"one of {', '.join(self.statistics)}")
        if validated.dimension > self.dimension_max:
            yield Refusal("dimension", f"d = {validated.dimension}", f"d <= {self.dimension_max}")
        yield from self.refusals_of_kind(announcement.kind, len(announcement.epochs), missing)
        if not announcement.delta <= self.delta_max:
            yield Refusal("delta", at_least(announcement.delta), f"<= {at_most(self.delta_max)}")
        if not validated.cost.within(self.epsilon_per_round_max, self.delta_max):
            expected = f"<= {at_most(self.epsilon_per_round_max)} at delta {at_most(self.delta_max)}"
            yield Refusal(
                "epsilon", f"{at_least(announcement.epsilon)} at delta {at_least(announcement.delta)}", expected
            )

    def refusals_of_kind(self, kind: Kind, computes: int, missing: frozenset[str]) -> Iterator[Refusal]:
        """Yield the refusals that depend on the round's kind; `computes` is M."""
        match kind:
            case SecureSum():
                yield from self._refusals_of_sum(kind, computes, missing)
            case NodeRelease() | LdpReport() if self.sums_only:
                yield Refusal("sums-only", "a round without Compute nodes", "a secure sum, by sums_only of the policy")
            case NodeRelease() if not self.rows_of_many:
                found = "a node release, which protects one row and not all rows of a client"
                expected = "a secure sum or an LDP report, because the policy does not set rows_of_many = true"
                yield Refusal("rows-of-many", found, expected)
            case NodeRelease() | LdpReport():
                return
            case _:
                assert_never(kind)

    def _refusals_of_sum(self, kind: SecureSum, computes: int, missing: frozenset[str]) -> Iterator[Refusal]:
        if computes < self.computes_min:
            yield Refusal("computes", f"{computes} Compute nodes", f">= {self.computes_min}")
        if self.verified and not kind.is_verified:
            yield _NOT_VERIFIED
        if missing:
            yield Refusal("trusted-computes", f"without {', '.join(sorted(missing))}", "every trusted Compute node")
        size = _check_size(kind, self.clients_min, self.honest_min)
        if size is not None:
            yield size
        least = max(self.colluders_min, math.ceil(self.colluders_part_min * kind.n_min))
        if kind.colluders < least:
            yield Refusal("colluders", f"c = {kind.colluders}", f"c >= {least}")

    def missing_computes(self, federation: Federation, computes: Iterable[bytes]) -> frozenset[str]:
        """Return the trusted Compute nodes that are not among `computes`, ids of the federation's nodes."""
        named = [federation.compute(compute) for compute in computes]
        return frozenset(self.trusted_computes) - {name for node in named for name in (node.name, node.id.hex())}

    def trusted_ids(self, federation: Federation) -> tuple[bytes, ...]:
        """Return the ids of the trusted Compute nodes."""
        if not self.trusted_computes:
            return ()
        named = frozenset(self.trusted_computes)
        return tuple(node.id for node in federation.computes if not named.isdisjoint((node.name, node.id.hex())))

    def check_bounds(self, statistic: Statistic) -> Refusal | None:
        """Check the intervals to which a statistic clamps its columns against the policy's `bounds`."""
        asked = [(plain_name(name), name) for name in statistic.columns] if self.bounds else []
        limited = [(column, name) for column, name in asked if column in self.bounds]
        ranges = statistic.ranges() if limited else {}
        for column, name in limited:
            low, high = self.bounds[column]
            expected = f"{column} within {low:.9g} to {high:.9g}"
            if name not in ranges:
                return Refusal("bounds", f"{column} without a range", expected)
            asked_low, asked_high = ranges[name]
            slack = _ROUNDING * (high - low)
            if not (low - slack <= asked_low and asked_high <= high + slack):
                return Refusal("bounds", f"{column} within {asked_low:.9g} to {asked_high:.9g}", expected)
        return None

    def check_budget(self, cost: PrivacyCost, ledger: Ledger, now_ms: int) -> Refusal | None:
        """Return a refusal if another round of this cost exceeds the period's budget.

        A returned charge costs no budget, but its record stays. So rounds that are announced and cancelled are limited.
        """
        most = RETURNED_PART * self.rounds_per_period_max
        if ledger.has_charged(most, self.budget_limit.since_ms(now_ms)):
            found = f"{most:,} rounds or more, those included whose charge came back"
            return Refusal("rounds", found, f"fewer than {most:,} in {self.period_days:g} days")
        return self.budget_limit.check(cost, ledger, now_ms, remedy=", or raise epsilon_per_period_max")


class Floors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Compute node's own limits.

    Attributes:
        clients_min: smallest n_min.
        honest_min: smallest n_min - 1 - c.
        verified: True for verified sums only.
        trainers: ids (hex) of allowed trainers; empty allows every trainer of the federation file.
    """

    clients_min: int = 20
    honest_min: int = 10
    verified: bool = False
    trainers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_minima("floors", self, {"clients_min": 1, "honest_min": 1})

    def check(self, announcement: Announcement, kind: SecureSum) -> Refusal | None:
        """Check the announcement of a secure sum against the floors."""
        if self.trainers and announcement.trainer.hex() not in self.trainers:
            return Refusal("trainer", announcement.trainer.hex(), "one of this node's trainers")
        if self.verified and not kind.is_verified:
            return _NOT_VERIFIED
        return _check_size(kind, self.clients_min, self.honest_min)


_NOT_VERIFIED = Refusal("verified", "a sum whose contributions are not proven", "a verified sum")


def _check_size(kind: SecureSum, clients_min: int, honest_min: int) -> Refusal | None:
    if kind.n_min < clients_min:
        return Refusal("clients", f"n_min = {kind.n_min}", f"n_min >= {clients_min} (clients_min)")
    if kind.honest < honest_min:
        return Refusal("honest", f"n_min - 1 - c = {kind.honest}", f"n_min - 1 - c >= {honest_min} (honest_min)")
    return None


def _check_privacy(where: str, epsilons: dict[str, float], delta_name: str, delta: float) -> None:
    """Refuse an ε or a δ that is invalid for a budget."""
    if not 0 < delta < 1:
        raise UsageError(f"{where}: {delta_name} is {at_least(delta)}; give a number above 0 and below 1, such as 1e-5")
    for name, epsilon in epsilons.items():
        if not 0 < epsilon < math.inf:
            raise UsageError(f"{where}: {name} is {at_least(epsilon)}; give a finite number above 0, such as 1")
        accounting.mu_of(epsilon, delta)


def _check_part(where: str, part: float, epsilon: float) -> None:
    if not 0 <= part < epsilon:
        raise UsageError(
            f"{where}: epsilon_for_reports is {at_least(part)}; give a part of epsilon {at_least(epsilon)}, "
            "at least 0 and below it"
        )


def _check_period(where: str, days: float) -> None:
    if not _PERIOD_DAYS_MIN <= days <= _PERIOD_DAYS_MAX:
        limits = f"from {_PERIOD_DAYS_MIN:g} to {_PERIOD_DAYS_MAX:g}"
        raise UsageError(f"{where}: period_days is {days:g}; give a number of days {limits}, such as 365")


def _check_minima(where: str, limits: msgspec.Struct, minima: dict[str, int]) -> None:
    for name, lowest in minima.items():
        if getattr(limits, name) < lowest:
            raise UsageError(f"{where}: {name} is {getattr(limits, name)}; give at least {lowest}")


class BudgetError(UsageError):
    """Rounds exceed what the account has left now. They may fit later."""
