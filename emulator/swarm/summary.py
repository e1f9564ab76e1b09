"""What a swarm's run amounts to: from the logs of its rounds to the records of `emulator.results`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dca_proto.aggregate import NodeReleaseRequest, NoisyAggregate
from dca_proto.cli.learn_view import reports_row
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.privacy.price import Price, total
from dca_proto.request import KINDS
from dca_proto.wording import listed
from emulator.results import Node, Reports, Round, Run
from emulator.swarm.live import Swarm, SwarmOptions
from emulator.swarm.timeline import RELEASE_PHASES, RoundLog


class Failure(msgspec.Struct, frozen=True):
    """Why there is no result, with the figures of a round that failed for them."""

    error: str
    found: int | None = None
    needed: int | None = None


def doubts(read_columns: Sequence[str], mechanism: Mechanism) -> tuple[str, ...]:
    """Why no epsilon may be claimed; empty where one may.

    Args:
        read_columns: whose bounds come from the data themselves.
    """
    bounds = [f"the bounds were read from the data ({listed(read_columns)})"] if read_columns else []
    return (*bounds, *(() if mechanism.private else ("the noise is inexact",)))


def summarise(
    swarm: Swarm, options: SwarmOptions, clients: int, doubts: tuple[str, ...], failure: Failure | None
) -> Run:
    """Everything that is public about a run, but what a job has learned.

    Args:
        doubts: why no epsilon may be claimed, if so. failure: why the job has no result, if so.
    """
    private = not doubts
    rounds = [_round(log, options, private, swarm.numbers) for log in swarm.timeline.rounds]
    released = [one for one in rounds if one.ok] if failure is None else rounds
    last = msgspec.structs.asdict(released[-1]) if released else {}
    of_the_last = {name: last[name] for name in ("dropped", "contributors", "relation", "nodes") if last}
    fewest, tolerated = options.smallest(clients)
    return Run(
        ok=failure is None,
        error=None if failure is None else failure.error,
        contributors_found=None if failure is None else failure.found,
        contributors_needed=None if failure is None else failure.needed,
        clients=clients,
        batch=options.batch or None,
        computes=options.computes,
        tolerated=options.tolerated,
        colluders=options.colluders,
        unknown_noises=fewest - tolerated - 1 if options.is_summed else None,
        round_kind=next(name for name, kind in KINDS.items() if kind is options.kind),
        reports=options.reports or None,
        epsilon=options.budget.epsilon if private else None,
        delta=options.delta if private else None,
        epsilon_spent=spent(swarm.timeline.charges, options.delta) if private else None,
        private=private,
        not_private_because=list(doubts),
        mechanism=options.reports or options.mechanism.name,
        broker=swarm.broker_kind,
        broker_version=swarm.broker_version,
        connections=options.connections,
        seed=options.seed,
        rounds=rounds,
        **of_the_last,
        reported=sum(one.contributors or 0 for one in rounds) if options.reports else None,
    )


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


def round_figures(log: RoundLog, private: bool) -> dict[str, Any]:
    """The fields of a `Round` that follow from its log alone; ``value`` is the noisy sum, in the statistic's units."""
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


def _aborted(log: RoundLog) -> dict[str, Any]:
    failure = log.failure
    if failure is None:
        return {"ok": False}
    return {"ok": False, "error": failure.reason, "contributors": failure.contributors, "needed": failure.needed}


def missing(asked: int, log: RoundLog, sent: int) -> dict[str, int]:
    """How many clients came late, and how many dropped.

    Args:
        asked: how many were. sent: how many sent what did not get lost, contributions in the sum among them.
    """
    came = log.arrived if log.phases == RELEASE_PHASES else log.contributed
    late = max(0, sent - came)
    return {"late": late, "dropped": max(0, asked - log.declined - came - late)}


def _round(log: RoundLog, options: SwarmOptions, private: bool, numbers: Mapping[bytes, int]) -> Round:
    """A round, with who was asked, who is missing, and what each has released by itself where they do."""
    figures = round_figures(log, private) | {"expected": len(log.asked)}
    figures |= missing(len(log.asked), log, len(log.sent - log.vanished))
    if log.aggregate is not None and log.aggregate.reports is not None:
        figures["reports"] = msgspec.convert(reports_row(log.aggregate.reports), Reports)
    if options.kind is NodeReleaseRequest and log.aggregate is not None:
        figures["nodes"] = _nodes(log, log.aggregate, numbers)
    if options.is_summed and log.aggregate is not None:
        figures |= _absent(log, log.clients, numbers)
    elif not options.is_summed and not options.batch:  # whom a mini-batch invites is the trainer's affair
        figures |= _absent(log, log.rows, numbers)
    return Round(**figures)


def _absent(log: RoundLog, found: Iterable[bytes], numbers: Mapping[bytes, int]) -> dict[str, Any]:
    """Who was asked and is not in the result, by id and by number."""
    absent = sorted(set(log.asked).difference(found), key=numbers.__getitem__)
    return {"absent": [one.hex() for one in absent], "absent_clients": [numbers[one] for one in absent]}


def _nodes(log: RoundLog, aggregate: NoisyAggregate, numbers: Mapping[bytes, int]) -> list[Node]:
    """What each data node has released."""
    names = [client for client, rows in sorted(log.rows.items()) if rows]  # as the aggregate has them
    found = [
        Node(
            number=numbers[client],
            id=client.hex(),
            rows=node.contributors,
            noise_variance=node.noise_variance,
            noise_sd=node.noise_variance**0.5,
            value=node.value.tolist(),
        )
        for client, node in zip(names, aggregate.nodes, strict=True)
    ]
    return sorted(found, key=lambda one: numbers[bytes.fromhex(one.id)])
