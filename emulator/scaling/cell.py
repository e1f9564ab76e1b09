"""A cell of a sweep: one size of a round, and how it is held.

Sizes are given as lists; their product is the sweep, in the order of growing cost. T is given as a share of N (below 1)
or as a number of clients, because a sweep over N keeps one and not the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import msgspec

from dca_proto.crypto.masks import ENTRY_BYTES, TAG_BYTES, WORD_BYTES
from dca_proto.errors import UsageError
from dca_proto.protocol.params import Limits
from dca_proto.protocol.wire.fields import COMPUTES_MAX
from dca_proto.statistics.histogram import BINS_MAX
from dca_proto.wording import nearest

EMULATED, MOSQUITTO = "emulated", "mosquitto"
BACKENDS = (EMULATED, MOSQUITTO)
CLIENTS_MIN, REPEATS_MAX = 3, 100
_SECONDS = {"client": 9e-5, "pair": 8e-6, "coordinate": 5e-9, "session": 4e-4, "agreement": 2e-4, "connection": 3e-3}
"""Rough costs on one core, for the order of cells and a first estimate of the time left; never for a figure."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One size of a round.

    Attributes:
        clients: N. dimension: d. computes: M. backend: one of `BACKENDS`.
        tolerated: T. drop_rate: the probability with which each client, on its own, is away in a round.
        repeats: how many rounds are measured.
        processes: P, that run the actors; live, that run the clients.
    """

    clients: int
    dimension: int
    computes: int
    backend: str
    tolerated: int
    drop_rate: float
    repeats: int
    processes: int = 1

    def check(self) -> None:
        """Refuse a size that no round can have. Raises `UsageError`."""
        limits = Limits()
        if not CLIENTS_MIN <= self.clients <= limits.clients_max:
            raise UsageError(f"--clients {self.clients}: expected {CLIENTS_MIN} to {limits.clients_max:,}")
        if not 1 <= self.dimension <= BINS_MAX:
            raise UsageError(f"--dimension {self.dimension}: expected 1 to {BINS_MAX:,}, the bins of a histogram")
        if not 2 <= self.computes <= COMPUTES_MAX:
            raise UsageError(f"--computes {self.computes}: expected 2 to {COMPUTES_MAX}")
        if not 0 <= self.tolerated <= self.clients - 2:
            raise UsageError(
                f"--tolerate: T = {self.tolerated} of N = {self.clients} leaves nobody's noise (N - T - 1 < 1); "
                f"expected 0 to {self.clients - 2}"
            )
        if not 0 <= self.drop_rate < 1:
            raise UsageError(f"--drop {self.drop_rate:g}: expected 0 to below 1")

        if not 1 <= self.processes <= self.clients:
            raise UsageError(f"--processes {self.processes}: expected 1 to {self.clients}, the number of clients")

    @property
    def is_plain(self) -> bool:
        """Whether nobody drops out, as in the paper."""
        return self.drop_rate == 0

    @property
    def estimate_s(self) -> float:
        """Roughly how long all its rounds take together, with a core for each process."""
        n, d, m, cost = self.clients, self.dimension, self.computes, _SECONDS
        each = n * (cost["client"] + m * cost["pair"] + (m * d + 10 * d) * cost["coordinate"])
        connected = n * cost["connection"] if self.backend == MOSQUITTO else 0.0
        sessions = n * (cost["session"] + m * cost["agreement"])
        return 1.5 + connected + (sessions + (self.repeats + 1) * each) / self.processes


def sweep(
    clients: Iterable[int],
    dimensions: Iterable[int],
    computes: Iterable[int],
    tolerated: Iterable[float],
    drop_rates: Iterable[float],
    *,
    backend: str,
    repeats: int,
    processes: int = 1,
) -> list[Cell]:
    """All cells of a sweep, cheapest first. Raises `UsageError` for one that cannot be."""
    _check_words(backend, repeats)
    cells = [
        Cell(
            clients=n,
            dimension=d,
            computes=m,
            backend=backend,
            tolerated=tolerated_of(t, n),
            drop_rate=rate,
            repeats=repeats,
            processes=processes,
        )
        for n, d, m, t, rate in itertools.product(clients, dimensions, computes, tolerated, drop_rates)
    ]
    for cell in cells:
        cell.check()
    different = list(dict.fromkeys(cells))  # two T may be the same number of few clients
    return sorted(different, key=lambda cell: cell.estimate_s)


def tolerated_of(given: float, clients: int) -> int:
    """T of N clients: a share of N below 1, a number from 1. Raises `UsageError`."""
    if not 0 <= given < math.inf or (given >= 1 and given != int(given)):
        raise UsageError(f"--tolerate {given:g}: expected a share of N below 1, or a whole number of clients")
    return int(given) if given >= 1 else math.floor(given * clients + 1e-9)


def _check_words(backend: str, repeats: int) -> None:
    if backend not in BACKENDS:
        raise UsageError(f"--backend {backend!r} is unknown{nearest(backend, BACKENDS)}; use {' or '.join(BACKENDS)}")
    if not 1 <= repeats <= REPEATS_MAX:
        raise UsageError(f"--repeats {repeats}: expected 1 to {REPEATS_MAX}")


def kept_bytes(cell: Cell) -> float:
    """Bytes that one Compute node must keep for one client until the set is agreed, in the mean over nodes.

    The holder keeps the client's entry, M tags and the masked vector.
    """
    return (ENTRY_BYTES + TAG_BYTES * cell.computes + WORD_BYTES * cell.dimension) / cell.computes
