"""What a client agrees to, and the floors of a Compute node: their own limits, never the announcement's (DESIGN §2).

Each check returns a `Refusal` with the figure that was found and the one that was expected, or None. A client sends its
refusal to the trainer as a decline. No check looks at the client's rows.
"""

from __future__ import annotations

import functools
import math

import msgspec

from dca_proto.core import accounting
from dca_proto.core.errors import UsageError
from dca_proto.core.ledger import Ledger
from dca_proto.core.messages import Announcement
from dca_proto.core.plan import Question

DAY_MS = 24 * 3600 * 1000


class Refusal(msgspec.Struct, frozen=True):
    """Why not: a fixed word, what was found, and what would be accepted."""

    reason: str
    found: str
    expected: str


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client's own limits; the defaults are safe rather than obliging.

    Attributes:
        epsilon_per_round_max, epsilon_per_period_max: budgets at `delta_max`; the second one over `period_days`.
        clients_min: smallest N. honest_min: smallest N - T - 1. colluders_min: smallest c. computes_min: smallest M.
        statistics: names that may be asked; empty allows every registered one.
        trainers: ids (hex) that may ask; empty allows every trainer of the federation file.
        trusted_computes: names or ids (hex) of Compute nodes without which the client refuses a round; empty asks for
            every Compute node of the federation file, so that a trainer cannot leave out those who would not collude.
    """

    epsilon_per_round_max: float = 1.0
    epsilon_per_period_max: float = 4.0
    period_days: float = 365.0
    delta_max: float = 1e-5
    clients_min: int = 20
    honest_min: int = 10
    colluders_min: int = 0
    computes_min: int = 2
    statistics: tuple[str, ...] = ()
    trainers: tuple[str, ...] = ()
    trusted_computes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _mu(self.epsilon_per_round_max, self.delta_max)
        _mu(self.epsilon_per_period_max, self.delta_max)
        if not (math.isfinite(self.period_days) and self.period_days > 0):
            raise UsageError(f"policy: period_days is {self.period_days}; give a number of days above 0")
        if self.computes_min < 2 or self.honest_min < 1:
            raise UsageError("policy: computes_min must be at least 2 and honest_min at least 1")

    def check_announcement(
        self, announcement: Announcement, question: Question, missing: frozenset[str], ledger: Ledger, now_ms: int
    ) -> Refusal | None:
        """Hold an announcement against the policy and the remaining budget.

        Args:
            missing: the trusted Compute nodes that the announcement leaves out.
        """
        checks = (
            (not self.trainers or announcement.trainer.hex() in self.trainers, "trainer", announcement.trainer.hex(),
             "one of the policy's trainers"),
            (not self.statistics or announcement.statistic in self.statistics, "statistic", announcement.statistic,
             f"one of {', '.join(self.statistics)}"),
            (len(announcement.computes) >= self.computes_min, "computes", f"M = {len(announcement.computes)}",
             f"M >= {self.computes_min}"),
            (not missing, "trusted-computes", f"without {', '.join(sorted(missing))}", "every trusted Compute node"),
            (announcement.colluders >= self.colluders_min, "colluders", f"c = {announcement.colluders}",
             f"c >= {self.colluders_min}"),
            (announcement.delta <= self.delta_max, "delta", f"{announcement.delta:g}", f"<= {self.delta_max:g}"),
            (question.mu <= _mu(self.epsilon_per_round_max, self.delta_max), "epsilon",
             f"{announcement.epsilon:g} at delta {announcement.delta:g}",
             f"<= {self.epsilon_per_round_max:g} at delta {self.delta_max:g}"),
        )  # fmt: skip
        for holds, reason, found, expected in checks:
            if not holds:
                return Refusal(reason, found, expected)
        return self.check_budget(question.mu, ledger, now_ms)

    def check_budget(self, mu: float, ledger: Ledger, now_ms: int) -> Refusal | None:
        """Whether a further `mu` fits into what is left of the period's budget."""
        since_ms = now_ms - int(self.period_days * DAY_MS)
        total = accounting.compose((ledger.spent(since_ms), mu))
        if total <= _mu(self.epsilon_per_period_max, self.delta_max):
            return None
        epsilon = accounting.epsilon_of(total, self.delta_max)
        allowed = f"<= {self.epsilon_per_period_max:g} at delta {self.delta_max:g} in {self.period_days:g} days"
        return Refusal("budget", f"a total of epsilon {epsilon:.4g} with this round", allowed)

    def check_size(self, clients: int, tolerated: int) -> Refusal | None:
        """Hold N and N - T - 1 of a start against the policy."""
        return _check_size(clients, tolerated, self.clients_min, self.honest_min)


class Floors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Compute node's own limits.

    Attributes:
        clients_min: smallest N. honest_min: smallest N - T - 1.
        trainers: ids (hex) that may start rounds; empty allows every trainer of the federation file.
    """

    clients_min: int = 20
    honest_min: int = 10
    trainers: tuple[str, ...] = ()

    def check_size(self, clients: int, tolerated: int) -> Refusal | None:
        """Hold N and N - T - 1 of a roster against the floors."""
        return _check_size(clients, tolerated, self.clients_min, self.honest_min)


def _check_size(clients: int, tolerated: int, clients_min: int, honest_min: int) -> Refusal | None:
    if clients < clients_min:
        return Refusal("clients", f"N = {clients}", f"N >= {clients_min}")
    if clients - tolerated - 1 < honest_min:
        return Refusal("honest", f"N - T - 1 = {clients - tolerated - 1}", f"N - T - 1 >= {honest_min}")
    return None


@functools.lru_cache(maxsize=256)
def _mu(epsilon: float, delta: float) -> float:
    return accounting.mu_of(epsilon, delta)
