"""Converts a round's result into estimates in the units of the data, and into one record for programs."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from dca_proto.aggregate import LocalReports, NoisyAggregate
from dca_proto.errors import ImplausibleSum, RoundAborted
from dca_proto.runtime.logs import printable
from dca_proto.statistics import resolve
from dca_proto.statistics.counting import Counting, about_missing


class Estimate(msgspec.Struct, frozen=True):
    """One coordinate of a result.

    Attributes:
        label: its name. value: the estimate from the noisy sum, in the units of the data.
        noise_std: standard deviation of the privacy noise in `value`, in the same units, without the sampling error of
            the clients' data.
    """

    label: str
    value: float
    noise_std: float


class ReportValues(msgspec.Struct, frozen=True):
    """The clients' LDP reports, in the order of their ids, with bits as 0 and 1.

    Attributes:
        values: null if there are too many to write.
        noise_scale, probabilities: of the mechanism, as in `dca_proto.aggregate.LocalReports`.
    """

    values: list[Any] | None
    noise_scale: float
    probabilities: tuple[float, float] | None


class NodeOutcome(msgspec.Struct, frozen=True):
    """The release of one data node; all other fields are those of the sum."""

    rows: int
    estimates: list[float]
    sum: list[float]
    noise_variance: float
    contributors_hash: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="result"):
    """A round's result.

    Attributes:
        labels, estimate, noise_std: by coordinate, as in `Estimate`. sum: the noisy sum, in the statistic's units.
        noise_variance: in each coordinate of the sum. sigma_local: the noise of one client's share.
        contributors: the number of clients in the sum. clients: the number asked. fewest: n_min. colluders: c.
        private: whether epsilon is claimed. epsilon, delta: the cost to each participant; null if none is claimed.
        relation: the neighbouring relation of the sensitivity. nodes, reports: the single releases or reports.
        doubts: warnings that the sum is hardly possible, that releases were left out, or that values are missing.
        round_id, contributors_hash, announcement_hash: in hexadecimal.
    """

    ok: bool = True
    statistic: str
    parameters: dict[str, Any]
    labels: list[str]
    estimate: list[float]
    noise_std: list[float]
    sum: list[float]
    noise_variance: float
    sigma_local: float
    contributors: int
    clients: int
    fewest: int
    colluders: int
    private: bool
    epsilon: float | None
    delta: float | None
    mechanism: str
    sensitivity: float
    relation: str
    round_id: str
    announcement_hash: str
    contributors_hash: str
    nodes: list[NodeOutcome]
    reports: ReportValues | None
    doubts: list[str] = []


class Aborted(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="abort"):
    """A round that ended without a result: the reason, and how many contributed and were needed, if known.

    `implausible`: no honest clients can have made the sum, so at least one lied.
    """

    ok: bool = False
    error: str
    contributors: int | None
    needed: int | None
    implausible: bool = False


def estimates(aggregate: NoisyAggregate) -> tuple[Estimate, ...]:
    """Return the estimate of each coordinate."""
    statistic = resolve(aggregate.statistic, aggregate.parameters)
    sd = math.sqrt(aggregate.noise_variance)
    found = statistic.estimate_with_noise(aggregate.value, aggregate.contributors, sd)
    triples = zip(statistic.labels(), *found, strict=True)
    return tuple(Estimate(label, float(value), float(noise_std)) for label, value, noise_std in triples)


def outcome(aggregate: NoisyAggregate) -> Outcome:
    """Return the record of a result."""
    coordinates = estimates(aggregate)
    copied = ("statistic", "parameters", "noise_variance", "sigma_local", "contributors", "clients", "fewest",
              "colluders", "private", "epsilon", "delta", "mechanism", "sensitivity", "relation")  # fmt: skip
    return Outcome(
        **{name: getattr(aggregate, name) for name in copied},
        labels=[estimate.label for estimate in coordinates],
        estimate=[estimate.value for estimate in coordinates],
        noise_std=[estimate.noise_std for estimate in coordinates],
        sum=aggregate.value.tolist(),
        round_id=aggregate.round_id.hex(),
        announcement_hash=aggregate.announcement_hash.hex(),
        contributors_hash=aggregate.contributors_hash.hex(),
        nodes=[
            NodeOutcome(
                rows=node.contributors,
                estimates=[estimate.value for estimate in estimates(node)],
                sum=node.value.tolist(),
                noise_variance=node.noise_variance,
                contributors_hash=node.contributors_hash.hex(),
            )
            for node in aggregate.nodes
        ],
        reports=None if aggregate.reports is None else report_values(aggregate.reports),
        doubts=list(doubts(aggregate)),
    )


def doubts(aggregate: NoisyAggregate) -> tuple[str, ...]:
    """Return the aggregate's doubts, and one about missing values if the statistic counts complete rows."""
    statistic = resolve(aggregate.statistic, aggregate.parameters)
    if not (isinstance(statistic, Counting) and statistic.counts):
        return aggregate.doubts
    _, rows = statistic.counted(aggregate.value, aggregate.contributors)
    sd = math.sqrt(aggregate.noise_variance) / statistic.count_weight
    missing = about_missing(rows, sd, aggregate.contributors, of="rows" if aggregate.nodes else "clients")
    return (*aggregate.doubts, *missing)


def report_values(reports: LocalReports, *, most: float = math.inf) -> ReportValues:
    """Return the record of LDP reports, without values if they are more than `most` numbers."""
    values = None
    if reports.values.size <= most:
        values = (reports.values.astype(int) if reports.categories else reports.values).tolist()
    return ReportValues(values, reports.noise_scale, reports.probabilities)


def aborted(error: RoundAborted) -> Aborted:
    """Return the record of an aborted round."""
    return Aborted(
        error=abort_line(error),
        contributors=error.contributors,
        needed=error.needed,
        implausible=isinstance(error, ImplausibleSum),
    )


def abort_line(error: RoundAborted) -> str:
    """Return one line: why a round was aborted, and how many clients contributed and were needed, if known.

    The counts come from the Compute nodes' aborts, and a node that aborts releases nothing. Without counts it is not
    known whether anything was released.
    """
    if error.contributors is None or error.needed is None:
        return printable(f"the round was aborted: {error.reason}")
    return printable(
        f"the round was aborted: {error.contributors} clients contributed, at least {error.needed} were needed; "
        f"nothing was released ({error.reason})"
    )
