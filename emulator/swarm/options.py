"""A swarm's settings, and what follows from them: windows, policies, and how clients are split over processes.

Windows. A round closes when all have contributed, or when enough have and no more arrive. So windows are generous. A
round waits to the end of its window in two cases only: more clients vanish than are tolerated, or clients vanish in a
round without Compute nodes. In these cases windows are short.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated

import msgspec
from msgspec import Meta

from dca_proto.engine import HELP, LOCAL
from dca_proto.errors import UsageError
from dca_proto.jobs.forecast import EXACT
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.mechanism import PURE_MECHANISMS, Mechanism
from dca_proto.protocol.params import Timing
from dca_proto.protocol.policy import Floors, Policy
from dca_proto.protocol.terms import CollectSeconds, CommitSeconds, CountedTerms, Epsilon
from dca_proto.protocol.wire.kinds import Kind, LdpReport, NodeRelease, SecureSum
from dca_proto.runtime.settings import check_url
from emulator.counts import check_dropped
from emulator.swarm import usage

CONNECTIONS = ("each", "shared")
_BROKERS = ("auto", "embedded", "mosquitto")
_RELEASING_MS, _RELEASING_EACH_MS = 2_000, 20  # each of two windows of a round without Compute nodes, if clients vanish
_PROVING_MS = 60_000  # how long an actor may wait for its turn while others of its machine make proofs
_CONNECTING_MAX, _CONNECTING_EACH_MAX = 96, 32  # in all processes (mosquitto's backlog is 100), and in one


class SwarmOptions(CountedTerms, frozen=True, kw_only=True):
    """The settings of a swarm.

    With data nodes, `clients` is J. Without Compute nodes M = T = c = 0. `collect_s` and `commit_s` are 0 for ten times
    the norm of a swarm of this size.

    Attributes:
        dropped: K clients that vanish in each round.
        batch: B, the least number of clients in a round; 0 if every round asks all clients.
        processes: there is one more for the Compute nodes. With 0, this process runs all actors.
        mechanism: of every actor; only the default, the exact one, is private.
        kind: of all rounds. reports: the local mechanism of LDP reports; "" for other kinds.
        dimension: 0 if the swarm learns. rounds: of a synthetic sum.
    """

    epsilon: Epsilon = 2.0
    collect_s: Annotated[CollectSeconds, Meta(ge=0)] = 0.0
    commit_s: Annotated[CommitSeconds, Meta(ge=0)] = 0.0
    broker: Annotated[str, Meta(description="auto, embedded, mosquitto, or mqtt://host:port.")] = "auto"
    connections: Annotated[
        str, Meta(description="each: one for each client; shared: one for all clients of a process.")
    ] = CONNECTIONS[0]
    processes: Annotated[int, Meta(description="P processes for clients; 0: one process for all.")] = 0
    engine: Annotated[str, Meta(description=HELP)] = LOCAL
    seed: Annotated[int, Meta(description="Seed of data splits, drops and waits; never of keys or noise.")] = 0
    dropped: int = 0
    batch: int = 0
    mechanism: Mechanism = EXACT
    kind: type[Kind] = SecureSum
    reports: str = ""
    dimension: Annotated[int, Meta(description="How many numbers are summed.")] = 0
    rounds: Annotated[int, Meta(description="How many rounds.")] = 1

    def check(self, advice: str = "use --connections shared") -> None:
        """Refuse an unusable broker, connections or processes, before anything is started.

        Args:
            advice: what to do if there are too many connections.

        Raises:
            UsageError: an option cannot be used; the message says what to change.
        """
        if not 0 <= self.processes <= self.clients:
            raise UsageError(f"--processes {self.processes}: expected 0 to {self.clients}, the number of clients")
        if self.connections not in CONNECTIONS:
            raise UsageError(f"--connections {self.connections}: expected {' or '.join(CONNECTIONS)}")
        if "://" in self.broker:
            check_url("--broker", self.broker)
        elif self.broker not in _BROKERS:
            raise UsageError(f"--broker {self.broker}: expected {', '.join(_BROKERS)} or mqtt://host:port")
        elif self.engine != LOCAL:
            raise UsageError(
                f"--broker {self.broker} with --engine {self.engine}: other machines cannot reach a broker that is "
                "started here; give the URL of one that they can reach, mqtt://host:port"
            )
        if self.engine != LOCAL and not self.processes:
            raise UsageError(f"--engine {self.engine}: expected --processes P, the number of processes with clients")
        each = -(-self.clients // max(1, self.processes)) if self.connections == CONNECTIONS[0] else 1
        here = each if self.processes else self.connected
        usage.require_connections(here, self.connected if "://" not in self.broker else None, advice)

    def check_counts(self) -> None:
        """Check the terms of all rounds, and how many clients drop out. Raises `UsageError`."""
        self.check_terms(batch=self.batch)
        check_dropped(self.dropped, self.smallest.clients)

    @property
    def connected(self) -> int:
        """Number of connections at the broker: of the clients, the Compute nodes and the trainer."""
        of_clients = self.clients if self.connections == CONNECTIONS[0] else max(1, self.processes)
        return of_clients + self.computes + 1

    @property
    def connecting_max(self) -> int:
        """How many actors of a process connect at once."""
        return max(1, min(_CONNECTING_EACH_MAX, _CONNECTING_MAX // (self.processes + 1)))

    @property
    def is_summed(self) -> bool:
        """True if the rounds are secure sums, with Compute nodes."""
        return self.kind is SecureSum

    @property
    def spent_delta(self) -> float:
        """The delta that the rounds spend: 0 if reports are private by epsilon alone."""
        return 0.0 if self.reports in PURE_MECHANISMS else self.delta

    @property
    def smallest(self) -> SwarmOptions:
        """The terms of the smallest round."""
        return self.in_batch(self.batch) if self.batch else self

    @property
    def room(self) -> int:
        """How many clients may drop out of the smallest round."""
        return self.smallest.tolerate - self.colluders if self.is_summed else self.clients - 1

    @property
    def floors(self) -> Floors:
        """The least numbers that a Compute node accepts: those of the smallest round."""
        return Floors(clients_min=self.smallest.n_min, honest_min=self.smallest.honest, verified=self.verified)

    def policy(self) -> Policy:
        """Return the policy of a client: one round may spend its whole budget.

        The rows of a data node belong to different people, each of whom spends the budget once. A client that sends
        LDP reports relies on no one else.
        """
        limits = Policy(epsilon_per_round_max=self.epsilon, epsilon_per_period_max=self.epsilon, delta_max=self.delta)
        if self.kind is NodeRelease:
            return msgspec.structs.replace(limits, rows_of_many=True)
        if self.kind is LdpReport:
            return limits
        floors = self.floors
        return msgspec.structs.replace(
            limits,
            clients_min=floors.clients_min,
            honest_min=floors.honest_min,
            colluders_min=self.colluders,
            computes_min=self.computes,
            verified=self.verified,
        )

    def terms(self, computes: tuple[bytes, ...]) -> JobTerms:
        """Return the terms that all rounds share."""
        collect_ms, commit_ms = self.windows_ms()
        windows = {"collect_s": self.collect_s or collect_ms / 1000, "commit_s": self.commit_s or commit_ms / 1000}
        return JobTerms(**{**self.shared(JobTerms), **windows, "computes": computes})

    def windows_ms(self) -> tuple[int, int]:
        """Return how long a round waits for contributions, and how long nodes may take to agree: ten times the norm."""
        window_ms = int(120_000 + self.clients * self.computes * (5 + self.dimension / 50))
        if self.dropped and not self.is_summed:
            return (_RELEASING_MS + _RELEASING_EACH_MS * self.clients,) * 2
        if self.dropped > self.room:
            return int(2_000 + self.clients * (10 + self.dimension / 100)), window_ms
        return window_ms, window_ms

    def timing(self) -> Timing:
        """Return when unanswered messages are sent again: not before the messages of all clients can have passed.

        Where one machine makes all proofs, nodes that wait for it are not lost.
        """
        first_ms = int(5_000 + self.clients * (2 + self.dimension / 100))
        silent_ms = _PROVING_MS if self.verified else Timing().silent_ms
        return Timing(resend_first_ms=first_ms, resend_max_ms=4 * first_ms, silent_ms=silent_ms)

    def splits(self) -> list[tuple[int, int]]:
        """Return (first, count) of the clients of each process."""
        parts = max(1, self.processes)
        counts = [len(range(place, self.clients, parts)) for place in range(parts)]
        return list(zip(accumulate([0, *counts[:-1]]), counts, strict=True))
