"""What is read of a swarm's run: `dca swarm --json`, with or without learning."""

from __future__ import annotations

import math

import msgspec

from emulator.report.figures import UNKNOWN
from emulator.report.learned import Learned
from emulator.report.nodes import Node
from emulator.report.reports import Reports
from emulator.report.types import Amount, Count, Real, Traffic

SECURE_SUM, NODE_RELEASE = "secure-sum", "node-release"
SUM_PHASES = ("collect", "agree")
RELEASE_PHASES = ("release",)


class Slow(msgspec.Struct, frozen=True):
    """A client that a round waited for, and how long after the announcement."""

    client: Count
    s: Amount


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round, as `dca swarm --json` tells of it; what an aborted one has not is None."""

    name: str
    ok: bool
    dimension: Count
    arrived: Count
    wall_s: Amount
    phases: dict[str, Amount]
    messages: Count
    bytes: Amount
    expected: Count | None = None
    closed: str | None = None
    contributors: Count | None = None
    dropped: Count | None = None
    needed: Count | None = None
    declined: dict[str, Count] = {}
    absent_clients: list[Count] = []
    slowest: list[Slow] = []
    noise_variance: Amount | None = None
    sensitivity: Amount | None = None
    epsilon: Amount | None = None
    mu: Amount | None = None
    value: list[Real] | None = None
    exact: list[Real] | None = None
    reports: Reports | None = None
    vanished_clients: list[Count] = []

    @property
    def noise_sd(self) -> float | None:
        """Of the noise in each coordinate of the sum."""
        return None if self.noise_variance is None else math.sqrt(self.noise_variance)

    @property
    def floor_sd(self) -> float | None:
        """The least that the claim needs: sensitivity / mu."""
        return self.sensitivity / self.mu if self.sensitivity is not None and self.mu else None


class Sessions(msgspec.Struct, frozen=True):
    """Seconds until every Compute node had a session of every client."""

    wall_s: Amount


class Swarm(Learned, frozen=True, kw_only=True):
    """What the page reads of `dca swarm --json`; the optional parts are a learning job's, or a fleet's.

    Of data nodes' rounds, clients are data nodes, and contributors their rows. `reports` is the mechanism of a job on
    clients' reports, `reported` how many came in all rounds.
    """

    ok: bool
    clients: Count
    computes: Count
    rounds: list[Round]
    tolerated: Count
    colluders: Count = 0
    batch: Count | None = None
    unknown_noises: Count | None = None
    epsilon_spent: Amount | None = None
    not_private_because: list[str] = msgspec.field(default_factory=list)
    error: str | None = None
    broker: str = UNKNOWN
    broker_version: str | None = None
    job: str | None = None
    contributors: Count | None = None
    dropped: Count | None = None
    wall_s: Amount | None = None
    connections: str | None = None
    processes: Count | None = None
    roles: dict[str, Traffic] = msgspec.field(default_factory=dict)
    peak_rss_mb: Amount | None = None
    connect_s: Amount | None = None
    sessions: Sessions | None = None
    core_s_by_role: dict[str, Amount] = msgspec.field(default_factory=dict)
    peak_rss_mb_by_process: dict[str, Amount] = msgspec.field(default_factory=dict)
    round_kind: str = SECURE_SUM
    nodes: list[Node] = msgspec.field(default_factory=list)
    reported: Count | None = None

    @property
    def is_summed(self) -> bool:
        """Whether there are Compute nodes."""
        return self.round_kind == SECURE_SUM

    @property
    def has_nodes(self) -> bool:
        """Whether clients are data nodes, which release by themselves."""
        return self.round_kind == NODE_RELEASE

    @property
    def who(self) -> str:
        """What takes part."""
        return "data node" if self.has_nodes else "client"

    @property
    def phases(self) -> tuple[str, ...]:
        """Of each round."""
        return SUM_PHASES if self.is_summed else RELEASE_PHASES
