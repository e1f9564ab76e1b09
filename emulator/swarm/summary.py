"""What a swarm's run amounts to, as plain data for programs (`--json`) and for the tables that people see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dca_proto.aggregate import LdpReportRequest, NodeReleaseRequest, NoisyAggregate
from dca_proto.cli.learn_view import reports_row
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.privacy.price import Price, total
from dca_proto.request import KINDS
from dca_proto.wording import listed
from emulator.swarm.live import Swarm, SwarmOptions
from emulator.swarm.timeline import RoundLog
from inference.jobs.summary import Summary


class SwarmSummary(Summary, total=False):
    """What `dca swarm` tells of a run: the job's summary and all else that is public about the run.

    Attributes:
        rounds: each as of `round_row`, with who is missing. nodes: of the last round of data nodes.
        contributors_found, contributors_needed: of a round that failed for that.
    """

    kind: str
    job: str
    settings: dict[str, Any]
    clients: int
    batch: int | None
    computes: int
    tolerated: int
    colluders: int
    unknown_noises: int | None
    round_kind: str
    epsilon_spent: float | None
    not_private_because: list[str]
    mechanism: str
    broker: str
    broker_version: str
    connections: str
    seed: int
    rounds: list[dict[str, Any]]
    dropped: int | None
    contributors: int | None
    relation: str | None
    nodes: list[dict[str, Any]]
    reported: int
    error: str | None
    contributors_found: int | None
    contributors_needed: int | None
    wall_s: float


def doubts(read_columns: Sequence[str], mechanism: Mechanism) -> tuple[str, ...]:
    """Why no epsilon may be claimed; empty where one may.

    Args:
        read_columns: whose bounds come from the data themselves.
    """
    bounds = [f"the bounds were read from the data ({listed(read_columns)})"] if read_columns else []
    return (*bounds, *(() if mechanism.private else ("the noise is inexact",)))


def summarise(
    swarm: Swarm, options: SwarmOptions, clients: int, doubts: tuple[str, ...], outcome: SwarmSummary
) -> SwarmSummary:
    """One object with everything that is public about a run.

    Args:
        doubts: why no epsilon may be claimed, if so. outcome: of the job: its summary, or `failed`.
    """
    private = not doubts
    rounds = [{**round_row(log, private), **_who(log, options, swarm.numbers)} for log in swarm.timeline.rounds]
    released = [row for row in rounds if row["ok"]] if outcome["ok"] else rounds
    last = released[-1] if released else {}
    fewest, tolerated = options.smallest(clients)
    summary: SwarmSummary = {
        "kind": "swarm",
        "clients": clients,
        "batch": options.batch or None,
        "computes": options.computes,
        "tolerated": options.tolerated,
        "colluders": options.colluders,
        "unknown_noises": fewest - tolerated - 1 if options.is_summed else None,
        "round_kind": next(name for name, kind in KINDS.items() if kind is options.kind),
        "reports": options.reports or None,
        "epsilon": options.budget.epsilon if private else None,
        "delta": options.delta if private else None,
        "epsilon_spent": spent(swarm.timeline.charges, options.delta) if private else None,
        "private": private,
        "not_private_because": list(doubts),
        "mechanism": options.reports or options.mechanism.name,
        "broker": swarm.broker_kind,
        "broker_version": swarm.broker_version,
        "connections": options.connections,
        "seed": options.seed,
        **outcome,
        "rounds": rounds,
        "dropped": last.get("dropped"),
        "contributors": last.get("contributors"),
        "relation": last.get("relation"),
    }
    if options.kind is NodeReleaseRequest:
        summary["nodes"] = last.get("nodes", [])
    if options.reports:
        summary["reported"] = sum(row["contributors"] or 0 for row in rounds)
    return summary


def spent(charges: Mapping[tuple[bytes, bytes], Price], delta: float) -> float:
    """The epsilon, at that delta, of the client that spent the most.

    Whoever was charged has spent, with or without a result, until M signed aborts give it back.

    Args:
        charges: by client and round id.
    """
    prices: dict[bytes, list[Price]] = defaultdict(list)
    for (client, _), price in charges.items():
        prices[client].append(price)
    return max((total(one).epsilon(delta) for one in prices.values()), default=0.0)


def failed(reason: str, contributors: int | None, needed: int | None) -> SwarmSummary:
    """An abort: there is no result."""
    return {
        "ok": False,
        "error": reason,
        "contributors_found": contributors,
        "contributors_needed": needed,
        "test": None,
    }


def round_row(log: RoundLog, private: bool) -> dict[str, Any]:
    """What is public about a round; ``value`` is the noisy sum, in the statistic's own units."""
    return {
        "name": log.statistic,
        "dimension": log.dimension,
        "arrived": log.arrived,
        "closed": log.closed or None,
        "declined": log.why,
        "wall_s": log.wall_s,
        "phases": log.phase_s(),
        "messages": log.messages,
        "bytes": log.bytes,
        **(_released(log.aggregate, private) if log.aggregate else _aborted(log)),
    }


def _released(aggregate: NoisyAggregate, private: bool) -> dict[str, Any]:
    return {
        "ok": True,
        "contributors": aggregate.contributors,
        "sigma_local": aggregate.sigma_local,
        "noise_variance": aggregate.noise_variance,
        "value": aggregate.value.tolist(),
        "sensitivity": aggregate.sensitivity,
        "relation": aggregate.relation,
        "epsilon": aggregate.epsilon if private else None,
        "mu": aggregate.mu if private else None,
    }


def _who(log: RoundLog, options: SwarmOptions, numbers: Mapping[bytes, int]) -> dict[str, Any]:
    """Who was asked, who is missing, and what each has released by itself where they do."""
    asked = {"expected": len(log.asked)}
    if options.kind is LdpReportRequest:
        return {**asked, **_reported_by(log, options, numbers)}
    if options.kind is NodeReleaseRequest:
        return {**asked, **_released_by(log, numbers)}
    if log.aggregate is None:  # nobody knows whose contributions there were
        return {**asked, "dropped": len(log.asked) - log.declined - log.contributed}
    return {**asked, **_missing(log, log.clients, numbers)}


def _missing(log: RoundLog, found: Iterable[bytes], numbers: Mapping[bytes, int]) -> dict[str, Any]:
    """Who was asked and is not in the result, by id and by number."""
    absent = sorted(set(log.asked).difference(found), key=numbers.__getitem__)
    return {
        "absent": [client.hex() for client in absent],
        "absent_clients": [numbers[client] for client in absent],
        "dropped": len(absent) - log.declined,
    }


def _reported_by(log: RoundLog, options: SwarmOptions, numbers: Mapping[bytes, int]) -> dict[str, Any]:
    """What clients reported; who has not is not told of a mini-batch, whose invitations are the trainer's affair."""
    released = log.aggregate.reports if log.aggregate else None
    told = {"reports": None if released is None else reports_row(released)}
    if options.batch:
        return {"dropped": len(log.asked) - log.arrived - log.declined, **told}
    return {**_missing(log, log.rows, numbers), **told}


def _released_by(log: RoundLog, numbers: Mapping[bytes, int]) -> dict[str, Any]:
    """What each data node has released, and which have not."""
    found: dict[str, Any] = {**_missing(log, log.rows, numbers), "nodes": []}
    if log.aggregate is None:
        return found
    names = [client for client, rows in sorted(log.rows.items()) if rows]  # as the aggregate has them
    nodes = [_node(numbers[client], client, node) for client, node in zip(names, log.aggregate.nodes, strict=True)]
    return {**found, "nodes": sorted(nodes, key=lambda one: one["number"])}


def _node(number: int, client: bytes, node: NoisyAggregate) -> dict[str, Any]:
    return {
        "number": number,
        "id": client.hex(),
        "rows": node.contributors,
        "noise_variance": node.noise_variance,
        "noise_sd": node.noise_variance**0.5,
        "value": node.value.tolist(),
    }


def _aborted(log: RoundLog) -> dict[str, Any]:
    return {
        "ok": False,
        "contributors": log.failure.contributors if log.failure else None,
        "needed": log.failure.needed if log.failure else None,
        "sigma_local": None,
        "noise_variance": None,
        "value": None,
    }
