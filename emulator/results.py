"""Records of the rounds and runs of `dca swarm` and `dca learn`. `--json` writes them, terminals and pages show them.

The results of a job are in its own summary (`inference.jobs.summary`), whose fields join those of the run in the JSON
object. A field that does not apply is None or empty.

Each client that was invited to a round is in one of four groups:

    contributed   in the sum; in an aborted round, kept in time, as far as known
    declined      refused, with a reason
    late          sent a contribution that arrived after the close
    dropped       all others: nothing arrived from them
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from dca_proto.aggregate import LocalReports, NoisyAggregate
from dca_proto.runtime.outcome import report_values
from dca_proto.runtime.request import LDP_REPORT, NODE_RELEASE, SECURE_SUM

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Whole = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e100)]
Real = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]
"""Numbers that a page can show. A file with other numbers is refused."""
Setting = bool | int | float | str | list[float | str] | dict[str, float | str | list[float | str] | None] | None
"""A setting of a job: a scalar, a list, or a table of a federation's file, such as the bounds."""


class Traffic(msgspec.Struct, frozen=True):
    """Messages and bytes sent by the actors of a role."""

    messages: Count = 0
    bytes: Amount = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.messages + other.messages, self.bytes + other.bytes)

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.messages - other.messages, self.bytes - other.bytes)


class Slow(msgspec.Struct, frozen=True):
    """A slow client of a round. `s`: seconds from the announcement to its receipt."""

    client: Count
    s: Amount


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A data node's release. `rows`: number of rows in it. `noise_sd`: of the noise in each value."""

    rows: Count
    noise_sd: Amount
    noise_variance: Amount | None = None
    number: Count | None = None
    id: str = ""
    value: list[Real] = []


class Histogram(msgspec.Struct, frozen=True):
    """Counts of reports in bins of equal width between `low` and `high`, in units of the scale."""

    low: Real
    high: Real
    counts: list[Count]


class Reports(msgspec.Struct, frozen=True, kw_only=True):
    """The LDP reports of a round.

    Attributes:
        values, noise_scale, probabilities: as in `dca_proto.aggregate.LocalReports`; values are omitted if many.
        counts: number of reports of each category. histogram: of reports of one number.
    """

    values: list[float | list[float]] | None = None
    noise_scale: Amount = 0.0
    probabilities: tuple[Amount, Amount] | None = None
    counts: list[Count] | None = None
    histogram: Histogram | None = None


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round. In a job at a federation's trainer: one request of the job, with all its attempts.

    Attributes:
        name, dimension: of the request. expected: number of clients expected. ok: it has a result.
        error: why it has none. needed: contributions needed, in an aborted round.
        number: of the job's request: 1, 2, ... attempts: number of rounds run for it.
        recalled: it ended in an earlier process. round_id: of the last attempt, in hexadecimal.
        arrived: contributions kept by holders. closed: why the trainer closed the round.
        contributors, declined, late, dropped: see the module; `declined` by reason. absent, absent_clients: ids and
            numbers of clients not in the result. vanished_clients: numbers of clients made to vanish.
        failed: with worker processes, clients that neither declined nor contributed nor were made to vanish.
        wall_s, phases: seconds in total, and of each phase. messages, bytes: sent by all actors; roles: by each role.
        core_s, core_s_by_role: processor seconds. slowest: the clients with the latest receipts, at most five.
        clients, fewest, sigma_local, noise_variance, sensitivity, relation, mechanism, epsilon, mu, value: as in the
            aggregate. exact: the sum without noise, of synthetic data. nodes, reports: the single releases.
        doubts: warnings about the sum, as in the aggregate.
    """

    name: str
    ok: bool
    number: Count | None = None
    attempts: Count = 1
    recalled: bool = False
    round_id: str | None = None
    dimension: Count | None = None
    arrived: Count | None = None
    wall_s: Amount | None = None
    phases: dict[str, Amount] = {}
    messages: Count | None = None
    bytes: Amount | None = None
    expected: Count | None = None
    clients: Count | None = None
    fewest: Count | None = None
    doubts: list[str] = []
    error: str | None = None
    needed: Count | None = None
    closed: str | None = None
    contributors: Count | None = None
    declined: dict[str, Count] = {}
    late: Count = 0
    dropped: Count | None = None
    absent: list[str] = []
    absent_clients: list[Count] = []
    vanished_clients: list[Count] = []
    failed: Whole | None = None
    slowest: list[Slow] = []
    roles: dict[str, Traffic] = {}
    core_s: Amount | None = None
    core_s_by_role: dict[str, Amount] = {}
    sigma_local: Amount | None = None
    noise_variance: Amount | None = None
    sensitivity: Amount | None = None
    relation: str | None = None
    mechanism: str | None = None
    epsilon: Amount | None = None
    mu: Amount | None = None
    value: list[Real] | None = None
    exact: list[Real] | None = None
    nodes: list[Node] = []
    reports: Reports | None = None

    @property
    def noise_sd(self) -> float | None:
        """The standard deviation of the noise in each coordinate of the sum."""
        return None if self.noise_variance is None else math.sqrt(self.noise_variance)

    @property
    def floor_sd(self) -> float | None:
        """The least standard deviation that the claim needs: sensitivity / mu."""
        return self.sensitivity / self.mu if self.sensitivity is not None and self.mu else None


class Sessions(msgspec.Struct, frozen=True):
    """Wall seconds until every Compute node had a session of every client, and core seconds of all roles until then."""

    wall_s: Amount
    core_s: Amount | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a swarm (`kind` "swarm"), or of a job at a federation's trainer ("learn").

    Attributes:
        ok, error, contributors_found, contributors_needed: whether there is a result, and why not.
        remedy: what to do about the error. federation: name of the trainer's federation.
        clients, batch, computes, tolerated, colluders: N, B, M, T and c. dimension: of a synthetic sum.
        unknown_noises: number of honest noises in the smallest sum. round_kind, reports, mechanism: how noise enters.
        epsilon, delta, epsilon_spent: None unless `private`. not_private_because: reasons why it is not.
        connections, processes, store, broker, broker_version, seed: how the swarm ran.
        rounds: in order. contributors, dropped, relation, failed, nodes: of the last round with a result.
        reported: reports in all rounds. wall_s: of the whole run.
        connect_s: from the start of the first process until all are connected, with making keys and certificates.
        sessions: times measured from the same start. agreement_s: extra time of the first round, in which pairs agree
            on keys, over the mean of the later ones.
        roles, core_s, core_s_by_role, facts: messages sent, processor time used, and facts reported since the start.
        peak_rss_mb, peak_rss_mb_by_process: peak memory of the largest process and of each, in MiB.
    """

    ok: bool
    clients: Count
    computes: Count
    tolerated: Count
    rounds: list[Round]
    kind: str = "swarm"
    error: str | None = None
    contributors_found: Count | None = None
    contributors_needed: Count | None = None
    remedy: str | None = None
    federation: str | None = None
    job: str | None = None
    settings: dict[str, Setting] = {}
    dimension: Count | None = None
    batch: Count | None = None
    colluders: Count = 0
    unknown_noises: Whole | None = None
    round_kind: str = SECURE_SUM
    reports: str | None = None
    mechanism: str = ""
    epsilon: Amount | None = None
    delta: Amount | None = None
    epsilon_spent: Amount | None = None
    private: bool = True
    not_private_because: list[str] = []
    broker: str = ""
    broker_version: str | None = None
    connections: str | None = None
    processes: Count | None = None
    store: str | None = None
    seed: Whole | None = None
    connect_s: Amount | None = None
    sessions: Sessions | None = None
    agreement_s: Real | None = None
    dropped: Count | None = None
    contributors: Count | None = None
    relation: str | None = None
    failed: Whole | None = None
    nodes: list[Node] = []
    reported: Count | None = None
    roles: dict[str, Traffic] = {}
    core_s: Amount | None = None
    core_s_by_role: dict[str, Amount] = {}
    peak_rss_mb: Amount | None = None
    peak_rss_mb_by_process: dict[str, Amount] = {}
    facts: dict[str, Count] = {}
    wall_s: Amount | None = None

    @property
    def is_summed(self) -> bool:
        """True if rounds are secure sums, with Compute nodes."""
        return self.round_kind == SECURE_SUM

    @property
    def has_nodes(self) -> bool:
        """True if clients are data nodes, each with a release of its own."""
        return self.round_kind == NODE_RELEASE

    @property
    def who(self) -> str:
        """The name of a participant."""
        return "data node" if self.has_nodes else "client"

    @property
    def came(self) -> str:
        """The verb for what participants did."""
        return {NODE_RELEASE: "released", LDP_REPORT: "reported"}.get(self.round_kind, "contributed")

    @property
    def aborts(self) -> dict[str, list[int]]:
        """The reasons of aborts, each with the numbers of its rounds, from 1."""
        reasons: dict[str, list[int]] = {}
        for number, entry in enumerate(self.rounds, 1):
            if not entry.ok:
                reasons.setdefault(entry.error or "the reason was not recorded", []).append(number)
        return reasons


GROUPED_FROM = 5
"""The number of rounds from which similar ones are grouped."""


def grouped(rounds: Sequence[Round]) -> list[list[Round]]:
    """Return each round by itself; if there are many, those of the same name, size and outcome together."""
    if len(rounds) < GROUPED_FROM:
        return [[entry] for entry in rounds]
    groups: dict[tuple[str, int | None, bool], list[Round]] = {}
    for entry in rounds:
        groups.setdefault((entry.name, entry.dimension, entry.ok), []).append(entry)
    return list(groups.values())


_NUMBERS_MAX = 10**6  # more numbers of reports are not written to a file
_BINS = 30
_FIGURES = ("dimension", "clients", "contributors", "fewest", "sigma_local", "noise_variance", "sensitivity",
            "relation", "mechanism")  # fmt: skip


def reports_of(reports: LocalReports) -> Reports:
    """Return the record of a round's LDP reports, without their values if they are too many."""
    plain, values, counts, histogram = report_values(reports, most=_NUMBERS_MAX), reports.values, None, None
    if reports.categories:
        totals = values.sum(axis=0) if values.ndim == 2 else np.bincount(values, minlength=reports.categories)
        counts = [int(total) for total in totals]
    elif values.shape[1] == 1:
        bins, edges = np.histogram(values[:, 0], _BINS)
        histogram = Histogram(float(edges[0]), float(edges[-1]), bins.tolist())
    return Reports(**msgspec.structs.asdict(plain), counts=counts, histogram=histogram)


def node_of(node: NoisyAggregate, **known: Any) -> Node:
    """Return the record of one data node's release."""
    variance = node.noise_variance
    return Node(
        rows=node.contributors, noise_variance=variance, noise_sd=variance**0.5, value=node.value.tolist(), **known
    )


def figures_of(aggregate: NoisyAggregate) -> dict[str, Any]:
    """Return the fields of a round that come from its result, without epsilon if the noise is not private."""
    is_private = aggregate.private
    return {
        **{name: getattr(aggregate, name) for name in _FIGURES},
        "ok": True,
        "round_id": aggregate.round_id.hex(),
        "epsilon": aggregate.epsilon if is_private else None,
        "mu": aggregate.mu if is_private else None,
        "value": aggregate.value.tolist(),
        "reports": None if aggregate.reports is None else reports_of(aggregate.reports),
        "doubts": list(aggregate.doubts),
    }
