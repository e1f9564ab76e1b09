"""What a fleet is made of and what it is asked: checked before anything is started.

The sum is a histogram of one column: client i holds one row of category i modulo d, so the exact counts are known, and
an announcement takes 9 bytes for each number, where a sum of columns takes thirty and reaches the largest announcement,
1 MiB, with fewer numbers. What a client does and sends once it has its vector is the same for every statistic of d
numbers.

Windows. A round closes when all have contributed, or when enough have and the rest are quiet, so windows are generous.
Only where more clients vanish than may, which no round survives, the window is waited for to its end.
"""

from __future__ import annotations

from itertools import accumulate

import msgspec

from dca_proto.aggregate import SecureSumRequest
from dca_proto.core.errors import UsageError
from dca_proto.core.params import Limits
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.learning.forecast import EXACT
from dca_proto.learning.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.statistics.histogram import BINS_MAX
from emulator.counts import check_counts
from emulator.swarm.live import check_broker, check_connections
from emulator.swarm.worker import COLUMN, MECHANISMS


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet is made of, and what it is asked.

    Attributes:
        clients: N. dimension: d, how many numbers are summed. computes: M. rounds: how many are held.
        tolerated: T. colluders: c. dropped: K clients that vanish in each round.
        connections: one for ``each`` client, or ``shared`` by all clients of a process.
        processes: P, that run clients; one more runs the Compute nodes.
        broker: ``auto``, ``embedded``, ``mosquitto``, or the URL of one that runs.
        budget: of all rounds together. seed: of drops and waiting times, never of keys or noise.
        mechanism: of every actor: the exact one, or the fast inexact one, which is not private.
    """

    clients: int
    dimension: int
    computes: int = 3
    rounds: int = 1
    tolerated: int = 0
    colluders: int = 0
    dropped: int = 0
    connections: str = "each"
    processes: int = 2
    broker: str = "auto"
    budget: Budget = Budget(2.0, 1e-5)
    seed: int = 0
    mechanism: Mechanism = EXACT

    def check(self) -> None:
        """Refuse what cannot be held, before anything is started. Raises `UsageError`."""
        check_counts(self.clients, self.computes, self.tolerated, self.colluders, self.dropped)
        for name, value, most in (("dimension", self.dimension, BINS_MAX), ("processes", self.processes, self.clients)):
            if not 1 <= value <= most:
                raise UsageError(f"--{name} {value}: expected 1 to {most}")
        if self.rounds < 1:
            raise UsageError(f"--rounds {self.rounds}: expected 1 or more")
        check_connections(self.connections)
        if self.mechanism.name not in MECHANISMS:
            raise UsageError(f"mechanism {self.mechanism.name!r}: a fleet knows {' and '.join(MECHANISMS)}")
        check_broker(self.broker)
        nobody = tuple(place.to_bytes(ID_BYTES, "big") for place in range(self.computes))
        self.terms(nobody).open(self.request(), bytes(ID_BYTES)).draft(self.mechanism, Limits())

    def request(self) -> SecureSumRequest:
        """One round: how many clients are in each of d categories."""
        edges = [place - 0.5 for place in range(self.dimension + 1)]
        return SecureSumRequest("histogram", {"columns": [COLUMN], "edges": edges}, 1 / self.rounds)

    def terms(self, computes: tuple[bytes, ...]) -> JobTerms:
        """What is the same for all rounds."""
        return JobTerms(
            budget=self.budget,
            clients=self.clients,
            tolerated=self.tolerated,
            colluders=self.colluders,
            computes=computes,
            collect_window_ms=self.collect_window_ms(),
            commit_window_ms=self.window_ms(),
        )

    def window_ms(self) -> int:
        """How long a phase may take, generously: ten times what it takes on two busy cores."""
        return int(60_000 + self.clients * self.computes * (5 + self.dimension / 50))

    def collect_window_ms(self) -> int:
        """How long contributions are waited for; less where so many vanish that the round cannot close before."""
        is_vain = self.dropped > self.tolerated - self.colluders
        return int(2_000 + self.clients * (2 + self.dimension / 100)) if is_vain else self.window_ms()

    def resend_ms(self) -> int:
        """When a message without an answer is first repeated: not while the others' are still on their way."""
        return int(5_000 + self.clients * (2 + self.dimension / 100))

    @property
    def connected(self) -> int:
        """Connections at the broker."""
        return (self.clients if self.connections == "each" else self.processes) + self.computes + 1

    def splits(self) -> list[tuple[int, int]]:
        """(first, count) of each process's clients."""
        counts = [len(range(place, self.clients, self.processes)) for place in range(self.processes)]
        return list(zip(accumulate([0, *counts[:-1]]), counts, strict=True))
