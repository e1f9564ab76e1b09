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


def estimates(aggregate: NoisyAggregate) -> tuple[Estimate, ...]:
    """The estimate of each coordinate. `Statistic.estimate` scales and shifts coordinates, so noise scales alike."""
    statistic = resolve(aggregate.statistic, aggregate.parameters)
    found = statistic.estimate(aggregate.value, aggregate.contributors)
    shifted = statistic.estimate(aggregate.value + math.sqrt(aggregate.noise_variance), aggregate.contributors)
    triples = zip(statistic.labels(), found, abs(shifted - found), strict=True)
    return tuple(Estimate(label, float(value), float(noise_std)) for label, value, noise_std in triples)


def outcome(aggregate: NoisyAggregate) -> dict[str, Any]:
    """Everything about a result as plain JSON values; hashes in hexadecimal, epsilon None where none can be claimed."""
    found = estimates(aggregate)
    return {
        "ok": True,
        "statistic": aggregate.statistic,
        "parameters": aggregate.parameters,
        "labels": [estimate.label for estimate in found],
        "estimate": [estimate.value for estimate in found],
        "noise_std": [estimate.noise_std for estimate in found],
        "sum": aggregate.value.tolist(),
        "noise_variance": aggregate.noise_variance,
        "sigma_local": aggregate.sigma_local,
        "contributors": aggregate.contributors,
        "clients": aggregate.clients,
        "fewest": aggregate.fewest,
        "colluders": aggregate.colluders,
        "private": aggregate.private,
        "epsilon": aggregate.epsilon,
        "delta": aggregate.delta,
        "mechanism": aggregate.mechanism,
        "sensitivity": aggregate.sensitivity,
        "relation": aggregate.relation,
        "round_id": aggregate.round_id.hex(),
        "announcement_hash": aggregate.announcement_hash.hex(),
        "contributors_hash": aggregate.contributors_hash.hex(),
        "nodes": list(map(_node, aggregate.nodes)),
        "reports": None if aggregate.reports is None else plain_reports(aggregate.reports),
    }


def _node(node: NoisyAggregate) -> dict[str, Any]:
    """What one data node released; all that is not here it has in common with the sum."""
    return {
        "rows": node.contributors,
        "estimates": [estimate.value for estimate in estimates(node)],
        "sum": node.value.tolist(),
        "noise_variance": node.noise_variance,
        "contributors_hash": node.contributors_hash.hex(),
    }


def plain_reports(reports: LocalReports, *, most: float = math.inf) -> dict[str, Any]:
    """What each client reported, in the order of their ids, bits as 0 and 1; epsilon and delta stand beside.

    Args:
        most: how many numbers are told; with more of them ``values`` is None.
    """
    told = None
    if reports.values.size <= most:
        told = (reports.values.astype(int) if reports.categories else reports.values).tolist()
    return {"values": told, "noise_scale": reports.noise_scale, "probabilities": reports.probabilities}


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
