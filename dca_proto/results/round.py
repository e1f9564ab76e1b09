"""The record of one round, whoever ran it: `dca trainer`, a job at a federation's trainer, or a swarm.

`round_of` makes it from a result, `aborted_round` from an abort. Whoever knows more adds fields: a job its number and
attempts, a swarm who was missing and what the round used. A field that does not apply is None or empty.

Each client that was invited is in one of four groups: it contributed, it declined, it came late (its contribution
arrived after the close), or it dropped (nothing arrived).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from dca_proto.aggregate import LocalReports, NoisyAggregate, PublicParameters
from dca_proto.errors import ImplausibleSum, RoundAborted
from dca_proto.privacy.mechanism import ANALYTIC_GAUSSIAN
from dca_proto.results.figure import Amount, Count, Real, Whole, about, compute_fields, figure
from dca_proto.results.lost import Lost, fields_of
from dca_proto.statistics import resolve
from dca_proto.statistics.counting import Counting, about_missing
from dca_proto.wording import digits, listed, printable

NORMAL_SDS, REPORT_SDS = 1.96, 2.12
"""Half-widths of a 95 % interval, in standard deviations of the noise: for Gaussian noise, and for one Laplace number.

The second also holds for sums of Laplace numbers (more than 95 %), and for counts of categories in many reports."""
_NUMBERS_MAX = 10**6  # more numbers of reports are not written to the file of a job
_BINS = 30
_NAMED = 8


class Traffic(msgspec.Struct, frozen=True):
    """Messages and bytes sent by the actors of a role."""

    messages: Count = 0
    bytes: Amount = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.messages + other.messages, self.bytes + other.bytes)

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.messages - other.messages, self.bytes - other.bytes)


class Slow(msgspec.Struct, frozen=True):
    """A slow client of a round."""

    client: Annotated[Count, figure("client", "Its number, from 0.", table="slowest")]
    s: Annotated[Amount, figure("after", "From the announcement to its receipt.", unit="s", table="slowest")]


class NoisyValue(msgspec.Struct, frozen=True):
    """One coordinate of a result, in the units of the data."""

    label: Annotated[str, about("Its name.")]
    value: Annotated[float, about("The estimate from the noisy sum.")]
    noise_std: Annotated[
        float,
        about("Standard deviation of the privacy noise in it, without the sampling error of the clients' data."),
    ]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """The release of one data node; all other terms are those of the round."""

    number: Annotated[Count | None, about("The node's number, in a swarm.")] = None
    id: Annotated[str, about("Its id, in hexadecimal, in a swarm.")] = ""
    rows: Annotated[Count, about("Number of rows in it.")]
    value: Annotated[list[Real], about("The noisy sum, in the statistic's units.")] = []
    estimates: Annotated[list[NoisyValue], about("As those of the round.")] = []
    noise_variance: Annotated[Amount | None, about("Of the noise in each value.")] = None
    noise_sd: Annotated[Amount, about("Its square root.")]
    contributors_hash: Annotated[str, about("Identifies the release, in hexadecimal.")] = ""


class Histogram(msgspec.Struct, frozen=True):
    """Counts of reports in bins of equal width between `low` and `high`, in units of the scale."""

    low: Real
    high: Real
    counts: list[Count]


class Reports(msgspec.Struct, frozen=True, kw_only=True):
    """The LDP reports of a round, in the order of their clients' ids."""

    values: Annotated[
        list[Any] | None,
        about("The reports, bits as 0 and 1; null if there are too many numbers."),
    ] = None
    noise_scale: Annotated[Amount, about("Of an additive mechanism, in units of the values; else 0.")] = 0.0
    probabilities: Annotated[
        tuple[Amount, Amount] | None,
        about("Of a mechanism on categories: that a report names its own category, and each other one."),
    ] = None
    counts: Annotated[list[Count] | None, about("Number of reports of each category.")] = None
    histogram: Annotated[Histogram | None, about("Of reports of one number.")] = None


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round. In a job at a federation's trainer: one request of the job, with all its attempts."""

    ok: Annotated[bool, about("Whether it has a result.")]
    statistic: Annotated[str, about("What was asked for.")] = ""
    number: Annotated[Count | None, about("The number of the job's request: 1, 2, ...")] = None
    recalled: Annotated[bool, about("Whether it ended in an earlier process.")] = False
    round_id: Annotated[str | None, about("Of the last attempt, in hexadecimal.")] = None
    announcement_hash: Annotated[str | None, about("Identifies the announcement, in hexadecimal.")] = None
    contributors_hash: Annotated[str | None, about("Identifies the contributions in the sum, in hexadecimal.")] = None
    dimension: Annotated[Count | None, figure("values", "Numbers in the sum.", table="rounds")] = None
    clients: Annotated[
        Count | None,
        figure("asked", "Clients that were asked; in a round without Compute nodes, those that released, if only they "
               "are known.", table="rounds"),
    ] = None  # fmt: skip
    arrived: Annotated[
        Count | None, figure("arrived", "Contributions that holders keep, or releases or reports.", table="rounds")
    ] = None
    contributors: Annotated[
        Count | None,
        figure("contributed", "Contributions in the sum, or rows of data nodes, or reports. In an aborted round: those "
               "kept in time, as far as known.", table="rounds"),
    ] = None  # fmt: skip
    declined: Annotated[dict[str, Count], figure("declined", "Clients that refused, by reason.", table="rounds")] = {}
    late: Annotated[Count, figure("late", "Clients whose contribution came after the close.", table="rounds")] = 0
    dropped: Annotated[Count | None, figure("dropped", "Clients of which nothing arrived.", table="rounds")] = None
    computes: Annotated[
        list[str], about("K, the names of the round's Compute nodes; of the last attempt. Empty without them.")
    ] = []
    p: Annotated[
        Count | None,
        figure("may collude (p)", "p, the most Compute nodes that may be corrupt.", table="rounds", page_only=True),
    ] = None  # fmt: skip
    verified: Annotated[
        bool, about("Whether each contribution was proven to be within its bounds. A lying Compute node can pass or "
                    "fail any of them, unseen.")
    ] = False  # fmt: skip
    proven: Annotated[
        str,
        about("Of a verified sum: what each contribution was proven to keep: bounds, bounds and norm, or bounds "
              "without the norm, as the squares of so many numbers do not fit a proof."),
    ] = ""  # fmt: skip
    liar_factor: Annotated[
        Amount,
        about("Of a verified sum: how much farther a lying client can move it than an honest one can, in L2 norm."),
    ] = 0.0
    unproven: Annotated[
        list[str], about("Ids of the clients whose proofs failed, in hexadecimal. The sum leaves them out.")
    ] = []
    unproven_clients: Annotated[
        Count,
        figure("unproven", "Clients whose proofs failed; the sum leaves them out. In an aborted round: as a Compute "
               "node says.", table="rounds"),
    ] = 0  # fmt: skip
    lost: Annotated[
        list[Lost], about("Compute nodes whose answer the round or one that it repeats lacked; some may be back.")
    ] = []
    attempts: Annotated[Count, figure("attempts", "Rounds that were run for the request.", table="rounds")] = 1
    closed: Annotated[str | None, figure("closed", "Why the trainer closed the round.", table="rounds")] = None
    error: Annotated[str | None, about("Why it has no result.")] = None
    implausible: Annotated[
        bool, about("Whether no honest clients can have made the sum, so that at least one lied.")
    ] = False
    absent: Annotated[list[str], about("Ids of the clients that are not in the result, in hexadecimal.")] = []
    absent_clients: Annotated[list[Count], about("Their numbers, from 0.")] = []
    vanished_clients: Annotated[list[Count], about("Numbers of the clients that were made to vanish.")] = []
    failed: Annotated[
        Whole | None,
        about("In a synthetic sum: clients that neither declined nor contributed nor were made to vanish."),
    ] = None
    slowest: Annotated[list[Slow], about("The clients with the latest receipts, at most five.")] = []
    phases: Annotated[dict[str, Amount], about("Seconds of each phase.")] = {}
    wall_s: Annotated[
        Amount | None, figure("in all", "From the announcement to the end.", unit="s", table="times", several="sum")
    ] = None
    messages: Annotated[Count | None, figure("messages", "Sent by all actors.", table="times", several="sum")] = None
    bytes: Annotated[
        Amount | None, figure("bytes", "Sent by all actors.", unit="bytes", table="times", several="sum")
    ] = None
    roles: Annotated[dict[str, Traffic], about("Sent by each role.")] = {}
    core_s: Annotated[Amount | None, about("Processor seconds of all roles.", of=_core_s)] = None
    core_s_by_role: Annotated[dict[str, Amount], about("Processor seconds of each role.")] = {}
    n_min: Annotated[
        Count | None, about("The fewest contributions that the sum may have; 0 without Compute nodes.")
    ] = None
    colluders: Annotated[Count | None, about("c, the clients that may collude.")] = None
    private: Annotated[bool, about("Whether epsilon is claimed.")] = True
    epsilon: Annotated[Amount | None, about("The cost to each participant; null if none is claimed.")] = None
    delta: Annotated[Amount | None, about("As epsilon.")] = None
    mu: Annotated[Amount | None, about("The same cost as a parameter of Gaussian differential privacy.")] = None
    slack: Annotated[Amount | None, about("Of a verified sum, beside mu: it takes (1 + e^epsilon)·slack of delta.")] = (
        None
    )
    relation: Annotated[str | None, about("The neighbouring relation of the sensitivity.")] = None
    mechanism: Annotated[str | None, about("Of the noise.")] = None
    sigma_local: Annotated[Amount | None, about("Standard deviation of one client's share of the noise.")] = None
    noise_variance: Annotated[Amount | None, about("Of the noise in each value of the sum.")] = None
    sensitivity: Annotated[
        Amount | None,
        figure("sensitivity", "L2 sensitivity of the sum, in its units.", table="rounds", page_only=True),
    ] = None
    parameters: Annotated[
        PublicParameters, about("The statistic's public parameters, in a round that is no part of a job.")
    ] = {}
    estimates: Annotated[list[NoisyValue], about("In the units of the data, in a round that is no part of a job.")] = []
    value: Annotated[list[Real] | None, about("The noisy sum, in the statistic's units.")] = None
    exact: Annotated[list[Real] | None, about("The sum without noise, of synthetic data.")] = None
    nodes: Annotated[list[Node], about("The releases of the data nodes.")] = []
    reports: Annotated[Reports | None, about("The LDP reports behind the sum.")] = None
    doubts: Annotated[
        list[str],
        about("Warnings that the sum is hardly possible, that releases were left out, or that values are missing."),
    ] = []

    def __post_init__(self) -> None:
        compute_fields(self)

    @property
    def over(self) -> Annotated[str, figure("Compute nodes (K)", table="rounds", page_only=True)]:
        """The names of its Compute nodes."""
        return listed(self.computes, _NAMED)

    @property
    def noise_sd(self) -> Annotated[float | None, figure("noise (sd)", table="rounds")]:
        """The standard deviation of the noise in each coordinate of the sum."""
        return None if self.noise_variance is None else math.sqrt(self.noise_variance)

    @property
    def floor_sd(self) -> Annotated[float | None, figure("needed (sd)", table="rounds", page_only=True)]:
        """The least standard deviation that the claim needs: sensitivity / mu. No such floor holds for reports."""
        is_summed = self.reports is None and self.sensitivity is not None
        return self.sensitivity / self.mu if is_summed and self.sensitivity and self.mu else None


def _core_s(found: Round) -> float | None:
    return sum(found.core_s_by_role.values()) if found.core_s_by_role else None


# --- made from results and aborts -------------------------------------------------------------------------------------


def round_of(aggregate: NoisyAggregate, *, alone: bool = False, **fields: Any) -> Round:
    """Return the record of a round with a result. Without a privacy claim, it has no epsilon.

    Fields of the same name have the aggregate's values, unless JSON needs another form.

    Args:
        alone: whether the round is no part of a job, so that its record has parameters and estimates.
        fields: further fields, or other values of these.
    """
    found: dict[str, Any] = {
        **{name: getattr(aggregate, name) for name in Round.__struct_fields__ if hasattr(aggregate, name)},
        "slack": aggregate.slack or None,
        "round_id": aggregate.round_id.hex(),
        "announcement_hash": aggregate.announcement_hash.hex(),
        "contributors_hash": aggregate.contributors_hash.hex(),
        "value": aggregate.value.tolist(),
        "unproven": [client.hex() for client in aggregate.unproven],
        "unproven_clients": len(aggregate.unproven),
        **fields_of(aggregate.quorum),
        "nodes": [node_of(node, alone=alone) for node in aggregate.nodes],
        "doubts": [*doubts(aggregate)] if alone else [*aggregate.doubts],
        "parameters": aggregate.parameters if alone else {},
        "estimates": [*estimates(aggregate)] if alone else [],
    }
    if aggregate.reports is not None:
        states_presence = aggregate.parameters.get("count_weight", 0.0) > 0
        most = math.inf if alone else _NUMBERS_MAX
        found["reports"] = reports_of(aggregate.reports, states_presence=states_presence, most=most)
    return Round(ok=True, **{**found, **fields})


NODES_NAME_ABSENT = "dca status of each Compute node names those of its own that were absent"


def remedy_of(error: RoundAborted, usual: str = "") -> str:
    """Return what to do about an aborted round. An abort for too few has their number; a node's status names them."""
    remedy = error.remedy or usual
    is_few = error.contributors is not None and error.needed is not None and error.quorum.nodes
    return "; ".join(filter(None, [NODES_NAME_ABSENT if is_few else "", remedy]))


def aborted_round(error: RoundAborted, clients: int | None = None) -> Round:
    """Return the record of an aborted round: the reason, and how many contributed and were needed, if known.

    Args:
        clients: how many were asked, if known.
    """
    remedy = remedy_of(error)
    return Round(
        ok=False,
        error=abort_line(error) + (f"; {remedy}" if remedy else ""),
        clients=clients,
        contributors=error.contributors,
        n_min=error.needed,
        implausible=isinstance(error, ImplausibleSum),
        unproven_clients=error.unproven,
        **fields_of(error.quorum),
    )


def over_words(found: Round) -> str:
    """Return the Compute nodes of a round, and how many of them may collude; "" without them."""
    if not found.computes:
        return ""
    proven = ""
    if found.verified:
        proven = f"; contributions are proven ({found.proven}): {liar_words(found.liar_factor)}, and one lying node "
        proven += "passes or fails any client unseen"
    return f"{listed(found.computes, _NAMED)}; at most {found.p} of them may collude (p){proven}"


def liar_words(factor: float) -> str:
    """Return how far a lying client can move a verified sum."""
    if factor <= 1:
        return "a lying client moves the sum no farther than an honest one can"
    return f"a lying client moves the sum up to {math.ceil(10 * factor) / 10:g} times as far as an honest one can"


def lost_words(lost: Sequence[Lost]) -> str:
    """Return the lost Compute nodes with the time of each loss; "" without any."""
    return listed([f"{one.node}, not heard since {one.since}" for one in lost], _NAMED)


def node_of(node: NoisyAggregate, *, alone: bool = False, **fields: Any) -> Node:
    """Return the record of one data node's release. Arguments: see `round_of`."""
    variance = node.noise_variance
    return Node(
        rows=node.contributors,
        value=node.value.tolist(),
        estimates=[*estimates(node)] if alone else [],
        noise_variance=variance,
        noise_sd=math.sqrt(variance),
        contributors_hash=node.contributors_hash.hex(),
        **fields,
    )


def reports_of(reports: LocalReports, *, states_presence: bool = False, most: float = _NUMBERS_MAX) -> Reports:
    """Return the record of a round's LDP reports, without their values if they are more than `most` numbers.

    Args:
        states_presence: whether the last number of a report states if its client has a value.
    """
    values, plain, counts, histogram = reports.values, None, None, None
    if values.size <= most:
        plain = (values.astype(int) if reports.categories else values).tolist()
    if reports.categories:
        totals = values.sum(axis=0) if values.ndim == 2 else np.bincount(values, minlength=reports.categories)
        counts = [int(total) for total in totals]
    elif values.shape[1] - states_presence == 1:
        bins, edges = np.histogram(values[:, 0], _BINS)
        histogram = Histogram(float(edges[0]), float(edges[-1]), bins.tolist())
    return Reports(
        values=plain, noise_scale=reports.noise_scale, probabilities=reports.probabilities, counts=counts,
        histogram=histogram,
    )  # fmt: skip


def estimates(aggregate: NoisyAggregate) -> tuple[NoisyValue, ...]:
    """Return the estimate of each coordinate."""
    statistic = resolve(aggregate.statistic, aggregate.parameters)
    sd = math.sqrt(aggregate.noise_variance)
    found = statistic.estimate_with_noise(aggregate.value, aggregate.contributors, sd)
    triples = zip(statistic.labels(), *found, strict=True)
    return tuple(NoisyValue(label, float(value), float(noise_std)) for label, value, noise_std in triples)


def doubts(aggregate: NoisyAggregate) -> tuple[str, ...]:
    """Return the aggregate's doubts, and those about means beyond their bounds and, with a count, missing values."""
    statistic = resolve(aggregate.statistic, aggregate.parameters)
    found = (*aggregate.doubts, *_about_means(aggregate, statistic.ranges()))
    if not (isinstance(statistic, Counting) and statistic.counts):
        return found
    _, rows = statistic.sums_and_rows(aggregate.value, aggregate.contributors)
    sd = math.sqrt(aggregate.noise_variance) / statistic.count_weight
    missing = about_missing(rows, sd, aggregate.contributors, of="rows" if aggregate.nodes else "clients")
    return (*found, *missing)


def _about_means(aggregate: NoisyAggregate, bounds: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return a doubt for each of the first means that its bounds make useless."""
    if not bounds or aggregate.statistic == "sum":  # a sum is not in the units of its bounds
        return []
    sds = sds_of(aggregate)
    means = [(one, bounds[one.label]) for one in estimates(aggregate) if one.label in bounds][:_NAMED]
    found = [about_bounds(one.label, sds * one.noise_std, ends, value=one.value) for one, ends in means]
    return [doubt for doubt in found if doubt]


def about_bounds(
    label: str, half: float, bounds: tuple[float, float], *, value: float | None = None, unit: str = ""
) -> str:
    """Return a warning if noise hides a mean, or "".

    Args:
        half: half of its interval's width. bounds: its column's public ones. value: the mean, None if not known yet.
        unit: of all these, for people.
    """
    lower, upper = bounds
    expected = f"{digits(lower, 4)} to {digits(upper, 4)} {unit}".rstrip()
    if 2 * half > upper - lower:
        found = f"found ± {digits(half, 2)} {unit}".rstrip()
        return (
            f"the interval of {label} is wider than its public bounds: {found}, expected less than the bounds "
            f"{expected}; take more clients, a larger epsilon, or fewer rounds"
        )
    if value is not None and not lower <= value <= upper:
        found = f"{digits(value, 4)} ± {digits(half, 2)} {unit}".rstrip()
        return (
            f"the estimate of {label} is outside its public bounds: found {found}, expected {expected}; noise can "
            "move it there, and the nearer bound is the better estimate"
        )
    return ""


def sds_of(aggregate: NoisyAggregate) -> float:
    """Return the half-width of an estimate's 95 % interval, in standard deviations of its noise."""
    reports = aggregate.reports
    return NORMAL_SDS if reports is None or reports.mechanism == ANALYTIC_GAUSSIAN else REPORT_SDS


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
