"""A round's result in the units of the data: for people (estimates with their noise) and for programs (one object)."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from dca_proto.aggregate import LocalReports, NoisyAggregate
from dca_proto.errors import RoundAborted
from dca_proto.runtime.logs import printable
from dca_proto.statistics import resolve


class Estimate(msgspec.Struct, frozen=True):
    """One coordinate of a result.

    Attributes:
        label: what it is. value: what the noisy sum says, in the units of the data.
        noise_std: standard deviation of the privacy noise in `value`, in the same units. The sampling error of the
            clients' data is not in it.
    """

    label: str
    value: float
    noise_std: float


class ReportValues(msgspec.Struct, frozen=True):
    """What each client reported, in the order of their ids, bits as 0 and 1; epsilon and delta stand beside.

    Attributes:
        values: null where there are too many to be written.
        noise_scale, probabilities: of the mechanism, as in `dca_proto.aggregate.LocalReports`.
    """

    values: list[Any] | None
    noise_scale: float
    probabilities: tuple[float, float] | None


class NodeOutcome(msgspec.Struct, frozen=True):
    """What one data node released; all that is not here it has in common with the sum."""

    rows: int
    estimates: list[float]
    sum: list[float]
    noise_variance: float
    contributors_hash: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="result"):
    """A round's result.

    Attributes:
        labels, estimate, noise_std: of each coordinate, as of `Estimate`. sum: the noisy sum, in the statistic's units.
        noise_variance: in each coordinate of the sum. sigma_local: the noise of one client's share.
        contributors: how many are in the sum, of `clients` who were asked. fewest: n_min. colluders: c.
        private: whether epsilon is claimed. epsilon, delta: what it cost each participant; null where none is claimed.
        relation: the neighbours that the sensitivity is for. nodes, reports: what was released one by one.
        contributors_hash, announcement_hash: in hexadecimal, as round_id.
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


class Aborted(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="abort"):
    """A round that ended without a result: why, and how many contributed and were needed, where that is known."""

    ok: bool = False
    error: str
    contributors: int | None
    needed: int | None


def estimates(aggregate: NoisyAggregate) -> tuple[Estimate, ...]:
    """The estimate of each coordinate. `Statistic.estimate` scales and shifts coordinates, so noise scales alike."""
    statistic = resolve(aggregate.statistic, aggregate.parameters)
    found = statistic.estimate(aggregate.value, aggregate.contributors)
    shifted = statistic.estimate(aggregate.value + math.sqrt(aggregate.noise_variance), aggregate.contributors)
    triples = zip(statistic.labels(), found, abs(shifted - found), strict=True)
    return tuple(Estimate(label, float(value), float(noise_std)) for label, value, noise_std in triples)


def outcome(aggregate: NoisyAggregate) -> Outcome:
    """Everything about a result."""
    found = estimates(aggregate)
    same = ("statistic", "parameters", "noise_variance", "sigma_local", "contributors", "clients", "fewest",
            "colluders", "private", "epsilon", "delta", "mechanism", "sensitivity", "relation")  # fmt: skip
    return Outcome(
        **{name: getattr(aggregate, name) for name in same},
        labels=[one.label for one in found],
        estimate=[one.value for one in found],
        noise_std=[one.noise_std for one in found],
        sum=aggregate.value.tolist(),
        round_id=aggregate.round_id.hex(),
        announcement_hash=aggregate.announcement_hash.hex(),
        contributors_hash=aggregate.contributors_hash.hex(),
        nodes=[
            NodeOutcome(
                rows=node.contributors,
                estimates=[one.value for one in estimates(node)],
                sum=node.value.tolist(),
                noise_variance=node.noise_variance,
                contributors_hash=node.contributors_hash.hex(),
            )
            for node in aggregate.nodes
        ],
        reports=None if aggregate.reports is None else report_values(aggregate.reports),
    )


def report_values(reports: LocalReports, *, most: float = math.inf) -> ReportValues:
    """What each client reported; no values if they are more than `most` numbers."""
    values = None
    if reports.values.size <= most:
        values = (reports.values.astype(int) if reports.categories else reports.values).tolist()
    return ReportValues(values, reports.noise_scale, reports.probabilities)


def aborted(error: RoundAborted) -> Aborted:
    """The record of a round that was aborted."""
    return Aborted(error=abort_line(error), contributors=error.contributors, needed=error.needed)


def abort_line(error: RoundAborted) -> str:
    """Why a round was aborted, in one line, with how many contributed and how many were needed where that is known.

    The figures come from the Compute nodes' own aborts, and a node that aborts releases nothing; without figures it is
    not known what was released.
    """
    if error.contributors is None or error.needed is None:
        return printable(f"the round was aborted: {error.reason}")
    return printable(
        f"the round was aborted: {error.contributors} clients contributed, at least {error.needed} were needed; "
        f"nothing was released ({error.reason})"
    )
