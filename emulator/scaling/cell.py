"""A cell of a sweep: one size of a round, how it is measured, and the paper's time for that size.

The user gives lists of sizes; their product is the sweep, ordered by cost. T is a share of N (below 1) or a number of
clients, because a sweep over N can keep only one of them constant.

Table 1 has the seconds of a round, mean of 5, with M = 10 Compute nodes on Spark, without encryption: Heikkilä,
Lagerspetz, Kaski, Shimizu, Tarkoma, Honkela: Differentially private Bayesian learning on distributed data. NeurIPS
2017. The paper timed the sharing and summing of vectors. Sessions, agreement and all cryptography have no counterpart
there.
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated

import msgspec

from dca_proto.crypto.masks import ENTRY_BYTES, TAG_BYTES, WORD_BYTES
from dca_proto.errors import UsageError
from dca_proto.protocol.params import Limits
from dca_proto.protocol.terms import check_sum
from dca_proto.protocol.wire.kinds import SecureSum
from dca_proto.results.figure import about
from dca_proto.statistics.histogram import BINS_MAX
from dca_proto.wording import nearest

EMULATED, MOSQUITTO = "emulated", "mosquitto"
BACKENDS = (EMULATED, MOSQUITTO)
CLIENTS_MIN, REPEATS_MAX = 3, 100
PAPER_COMPUTES, PAPER_CLIENTS = 10, (100, 1_000, 10_000, 100_000)
TABLE_1 = {
    10: (1.72, 1.89, 2.99, 8.58),
    100: (2.03, 2.86, 12.36, 65.64),
    1_000: (3.43, 10.56, 101.2, 610.55),
    10_000: (15.30, 84.95, 994.96, 1592.29),
}
"""By dimension, the seconds for each of `PAPER_CLIENTS`."""
_SECONDS = {"client": 9e-5, "pair": 8e-6, "coordinate": 5e-9, "session": 4e-4, "agreement": 2e-4, "connection": 3e-3}
"""Rough costs on one core. They order the cells and estimate the time left; no figure uses them."""


class Size(msgspec.Struct, frozen=True):
    """N, d and M of a round."""

    clients: Annotated[int, about("N.")]
    dimension: Annotated[int, about("d.")]
    computes: Annotated[int, about("M.")]

    @property
    def largeness(self) -> tuple[int, int]:
        """The key that orders rounds by size: N·d, then N·M."""
        return self.clients * self.dimension, self.clients * self.computes

    def __str__(self) -> str:
        return f"N = {self.clients:,}, d = {self.dimension:,}, M = {self.computes}"


class Cell(Size, frozen=True, kw_only=True):
    """One size of a round, and how it is measured."""

    backend: Annotated[str, about("One of `BACKENDS`.")]
    tolerate: Annotated[int, about("T.")]
    drop_rate: Annotated[
        float, about("The probability that a client drops out of a round, independently of the others.")
    ]
    repeats: Annotated[int, about("How many rounds are measured.")]
    processes: Annotated[int, about("P processes for the actors; live, for the clients.")] = 1
    verified: Annotated[bool, about("Whether clients prove their bounds.")] = False

    def check(self) -> None:
        """Refuse a size that no round can have. Raises `UsageError`."""
        most, known = Limits().clients_max, " or ".join(BACKENDS)
        rules = {
            f"--backend {self.backend!r} is unknown{nearest(self.backend, BACKENDS)}; use {known}":
                self.backend in BACKENDS,
            f"--rounds {self.repeats}: expected 1 to {REPEATS_MAX}": 1 <= self.repeats <= REPEATS_MAX,
            f"--clients {self.clients}: expected {CLIENTS_MIN} to {most:,}": CLIENTS_MIN <= self.clients <= most,
            f"--dimension {self.dimension}: expected 1 to {BINS_MAX:,}, the bins of a histogram":
                1 <= self.dimension <= BINS_MAX,
            f"--drop-rate {self.drop_rate:g}: expected 0 to below 1": 0 <= self.drop_rate < 1,
            f"--processes {self.processes}: expected 1 to {self.clients}, the number of clients":
                1 <= self.processes <= self.clients,
        }  # fmt: skip
        for refusal, holds in rules.items():
            if not holds:
                raise UsageError(refusal)
        check_sum(SecureSum(clients=self.clients, tolerate=self.tolerate), self.computes)

    @property
    def is_plain(self) -> bool:
        """True if no client drops out, as in the paper."""
        return self.drop_rate == 0

    @property
    def estimate_s(self) -> float:
        """A rough estimate of the seconds for all its rounds, with a core for each process."""
        n, d, m, cost = self.clients, self.dimension, self.computes, _SECONDS
        each = n * (cost["client"] + m * cost["pair"] + (m * d + 10 * d) * cost["coordinate"])
        connected = n * cost["connection"] if self.backend == MOSQUITTO else 0.0
        sessions = n * (cost["session"] + m * cost["agreement"])
        return 1.5 + connected + (sessions + (self.repeats + 1) * each) / self.processes

    @property
    def table_1_s(self) -> float | None:
        """The paper's seconds for this N, d and M; None if it has none."""
        if self.computes != PAPER_COMPUTES or self.clients not in PAPER_CLIENTS or not self.is_plain:
            return None
        row = TABLE_1.get(self.dimension)
        return row[PAPER_CLIENTS.index(self.clients)] if row else None

    @property
    def kept_bytes(self) -> float:
        """Bytes that a Compute node must keep for each client until the set is agreed, averaged over the nodes.

        Only the client's holder keeps anything: its entry, M tags and the masked vector.
        """
        return (ENTRY_BYTES + TAG_BYTES * self.computes + WORD_BYTES * self.dimension) / self.computes

    @property
    def expected_success(self) -> float:
        """P(K <= T) if K of N clients drop out independently: a binomial tail. Live, K is fixed."""
        if self.backend == MOSQUITTO or self.is_plain:
            return float(round(self.drop_rate * self.clients) <= self.tolerate)
        n, log_in, log_out = self.clients, math.log(self.drop_rate), math.log1p(-self.drop_rate)
        terms = (
            math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * log_in + (n - k) * log_out)
            for k in range(self.tolerate + 1)
        )
        return min(1.0, math.fsum(terms))

    def __str__(self) -> str:
        drops = f", {100 * self.drop_rate:g} % drop" if self.drop_rate else ""
        return super().__str__() + drops + ", verified" * self.verified


class SweepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that define a sweep; for `tolerate` see `tolerated_of`."""

    clients: list[int]
    dimension: list[int]
    computes: list[int]
    tolerate: list[float]
    drop_rates: list[float]
    backend: str
    repeats: int
    processes: int = 1
    verified: bool = False

    def cells(self) -> list[Cell]:
        """Return all cells, cheapest first. Raises `UsageError` if one is impossible."""
        axes = (self.clients, self.dimension, self.computes, self.tolerate, self.drop_rates)
        cells = [
            Cell(
                clients=n, dimension=d, computes=m, tolerate=tolerated_of(t, n), drop_rate=rate,
                backend=self.backend, repeats=self.repeats, processes=self.processes,
                verified=self.verified,
            )
            for n, d, m, t, rate in itertools.product(*axes)
        ]  # fmt: skip
        for cell in cells:
            cell.check()
        unique = list(dict.fromkeys(cells))  # with few clients, two shares may give the same T
        return sorted(unique, key=lambda cell: cell.estimate_s)


def tolerated_of(tolerate: float, clients: int) -> int:
    """Return T for N clients; `tolerate` is a share of N if below 1, else a number. Raises `UsageError`."""
    if not 0 <= tolerate < math.inf or (tolerate >= 1 and tolerate != int(tolerate)):
        raise UsageError(f"--tolerate {tolerate:g}: expected a share of N below 1, or a whole number of clients")
    return int(tolerate) if tolerate >= 1 else math.floor(tolerate * clients + 1e-9)
