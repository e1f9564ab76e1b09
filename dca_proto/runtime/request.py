"""The settings of one round: the section `[round]` of a trainer's file, or the options of `dca trainer`.

[round]
statistic = "mean"
columns = ["x"]
bounds = { x = [0, 10] }      # public, from what is known of the measurement; never read from the data
epsilon = 1
delta = 1e-6
tolerate = 2                  # T clients may drop out or collude; `colluders` of them are reserved for colluders

For data nodes that each have many people's rows: kind = "node-release" and rows_max = 5000. For one report by each
client, private against everybody: kind = "ldp-report" and mechanism = "grid-laplace". Neither needs Compute nodes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dca_proto.aggregate import LdpReportRequest, NodeReleaseRequest, RoundRequest, SecureSumRequest
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import UsageError
from dca_proto.privacy.accounting import check_mu
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS, DistributedDiscreteGaussian
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.trainer.request import Ask, AskLdpReport, AskNodeRelease, AskSecureSum, OpenRound
from dca_proto.statistics import Mean, Moments, SecondMoments, Sum, resolve
from dca_proto.statistics.base import parameter_names
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.scaled import MAGNITUDE_MAX, MAGNITUDE_MIN
from dca_proto.wording import nearest

SECURE_SUM, NODE_RELEASE, LDP_REPORT = "secure-sum", "node-release", "ldp-report"
KINDS: dict[str, type[RoundRequest]] = {
    SECURE_SUM: SecureSumRequest,
    NODE_RELEASE: NodeReleaseRequest,
    LDP_REPORT: LdpReportRequest,
}
"""The kinds of rounds by their names in files and options, with the type of a job's request."""
_RATIOS = (Sum, Mean, Moments, SecondMoments)


class RoundSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The statistic and the terms of one round.

    Attributes:
        kind: ``secure-sum``; ``node-release``, in which each client is a data node with many people's rows, sums at
            most `rows_max` >= 1 of them and adds all the noise; or ``ldp-report``, in which each client sends a
            report that is private by itself.
        statistic, columns: the statistic, and the columns of the clients' data that it uses.
        bounds: public lower and upper bound of each column, in its own units.
        parameters: further public parameters of the statistic (a histogram's ``edges``).
        epsilon, delta: the round's cost to each participant; delta is 0 for epsilon-private reports.
        mechanism: the mechanism of LDP reports. One for categories needs `rows_max` = 1.
        tolerate: T of a secure sum, how many clients may drop out or collude. colluders: c, how many of the T are
            reserved for colluders. computes: names of the Compute nodes; by default all of the federation.
        clients: N, how many may answer; the round ends as soon as they have. With 0, a secure sum asks the Compute
            nodes how many clients have a session; the other kinds wait until collect_s and commit_s are over.
        rows_max: 0 for the mean of a client's rows, R for the sum of at most R.
        fraction_bits: fraction bits of fixed-point numbers, even.
        collect_s: how long clients may contribute. commit_s: how long the Compute nodes may take to agree.
    """

    kind: str = SECURE_SUM
    statistic: str
    columns: tuple[str, ...]
    bounds: dict[str, tuple[float, float]] = {}
    parameters: dict[str, Any] = {}
    epsilon: float
    delta: float = 0.0
    mechanism: str = ""
    tolerate: int = 0
    colluders: int = 0
    computes: tuple[str, ...] = ()
    clients: int = 0
    rows_max: int = 0
    fraction_bits: int = 24
    collect_s: float = 60.0
    commit_s: float = 60.0


def open_round(settings: RoundSettings, federation: Federation) -> OpenRound:
    """Check the settings and return the command for a trainer of the federation, with a fresh round id.

    Raises `UsageError` that names the wrong setting.
    """
    check_windows(settings.collect_s, settings.commit_s)
    request = OpenRound(
        round_id=secrets.token_bytes(ID_BYTES),
        ask=_ask(settings, federation),
        statistic=settings.statistic,
        parameters=parameters_of(settings.statistic, settings.columns, settings.bounds, settings.parameters),
        epsilon=settings.epsilon,
        delta=settings.delta,
        rows_max=settings.rows_max,
        fraction_bits=settings.fraction_bits,
        clients_expected=settings.clients,
        collect_window_ms=round(1000 * settings.collect_s),
        commit_window_ms=round(1000 * settings.commit_s),
    )
    if request.clients_expected or not isinstance(request.ask, AskSecureSum):
        request.draft(DistributedDiscreteGaussian(), Limits())
        return _counting(request, settings)
    statistic = resolve(request.statistic, request.parameters)  # check what does not depend on the number of clients
    client_sensitivity(statistic, request.rows_max, request.fraction_bits)
    check_mu(request.cost.mu, request.epsilon, request.delta)
    return _counting(request, settings)


def _counting(request: OpenRound, settings: RoundSettings) -> OpenRound:
    """Return the round with a count of complete rows beside means and sums, as far as that costs nothing.

    Reports have a count only if it is asked for, since its noise would be that of all clients.
    """
    statistic = resolve(request.statistic, request.parameters)
    if settings.kind == LDP_REPORT or "count_weight" in settings.parameters or not isinstance(statistic, _RATIOS):
        return request
    weight = statistic.free_weight(request.fraction_bits)
    return msgspec.structs.replace(request, parameters={**request.parameters, "count_weight": weight})


def _ask(settings: RoundSettings, federation: Federation) -> Ask:
    """Return the round's kind with the terms that only this kind has."""
    check_kind(settings.kind)
    if min(settings.clients, settings.tolerate, settings.colluders) < 0:
        found = f"found {settings.clients}, {settings.tolerate} and {settings.colluders}"
        raise UsageError(f"clients, tolerate and colluders cannot be below 0: {found}")
    if settings.mechanism and settings.kind != LDP_REPORT:
        raise UsageError(f'mechanism {settings.mechanism!r} needs kind = "{LDP_REPORT}"; give that, or leave it out')
    if settings.kind == SECURE_SUM:
        if settings.colluders > settings.tolerate:
            found = f"c = {settings.colluders} exceeds T = {settings.tolerate}"
            raise UsageError(f"{found}; lower colluders or raise tolerate")
        computes = compute_ids(settings.computes, federation)
        return AskSecureSum(computes=computes, tolerated=settings.tolerate, colluders=settings.colluders)
    require_without_computes(settings.kind, settings.tolerate, settings.colluders, settings.computes)
    if settings.kind == NODE_RELEASE:
        return AskNodeRelease()
    if settings.mechanism not in LOCAL_MECHANISMS:
        hint = nearest(settings.mechanism, LOCAL_MECHANISMS)
        known = ", ".join(LOCAL_MECHANISMS)
        raise UsageError(f"mechanism {settings.mechanism!r} makes no reports{hint}; use one of {known}")
    return AskLdpReport(mechanism=settings.mechanism)


def check_kind(name: str) -> type[RoundRequest]:
    """Return the kind with this name. Raises `UsageError` for an unknown one."""
    if name not in KINDS:
        raise UsageError(f"kind {name!r} is unknown{nearest(name, KINDS)}; use one of {', '.join(KINDS)}")
    return KINDS[name]


def require_without_computes(kind: str, tolerate: int, colluders: int, computes: Sequence[str]) -> None:
    """Raise `UsageError` for terms of a secure sum in a round without Compute nodes."""
    if tolerate or colluders or computes:
        raise UsageError(
            f"a round of kind {kind} has no Compute nodes, and each client adds all the noise: leave out tolerate, "
            "colluders and computes"
        )


def check_windows(collect_s: float, commit_s: float) -> None:
    """Raise `UsageError` for a phase that is too short or too long."""
    most_s = Timing().deadline_ahead_ms_max / 1000
    for name, seconds in (("collect_s", collect_s), ("commit_s", commit_s)):
        if not 0.001 <= seconds <= most_s:
            raise UsageError(f"{name} is {seconds:g}; give a number of seconds from 0.001 to {most_s:.0f}")


def parameters_of(
    statistic: str,
    columns: Sequence[str],
    bounds: Mapping[str, tuple[float, float]],
    further: Mapping[str, Any],
) -> dict[str, object]:
    """Return a statistic's parameters: the columns, the scaling by their public bounds, and the `further` ones.

    Raises `UsageError` if bounds are missing or are not intervals.
    """
    plain: dict[str, object] = {"columns": list(columns), **further}
    if not bounds:
        if "centre" in parameter_names(statistic) and "centre" not in further:
            raise UsageError(f"public bounds are missing for: {', '.join(columns)}; give column=LO:HI for each")
        resolve(statistic, plain)
        return plain
    missing = [column for column in columns if column not in bounds]
    if missing:
        raise UsageError(f"public bounds are missing for: {', '.join(missing)}; give column=LO:HI for each")
    unknown = [column for column in bounds if column not in columns]
    if unknown:
        raise UsageError(f"bounds of {', '.join(unknown)}: expected bounds of the columns {', '.join(columns)} only")
    ends = [bounds[column] for column in columns]
    for column, (low, high) in zip(columns, ends, strict=True):
        if not (low < high and low >= -MAGNITUDE_MAX and high <= MAGNITUDE_MAX and high - low >= 2 * MAGNITUDE_MIN):
            expected = f"finite LO < HI, {2 * MAGNITUDE_MIN:g} or more apart, within ±{MAGNITUDE_MAX:g}"
            raise UsageError(f"bounds of {column!r}: found {low:g}:{high:g}, expected {expected}")
    return {
        **plain,  # each column is mapped from its bounds to [-1, 1], so its noise is proportional to its range
        "centre": [(low + high) / 2 for low, high in ends],
        "scale": [(high - low) / 2 for low, high in ends],
        "bound": [1.0] * len(ends),
    }


def compute_ids(names: Sequence[str], federation: Federation) -> tuple[bytes, ...]:
    """Return the ids of the named Compute nodes, or of all if none is named. Raises `UsageError`."""
    by_name = {member.name: member.id for member in federation.computes}
    chosen = tuple(names) or tuple(by_name)
    unknown = [name for name in chosen if name not in by_name]
    if unknown:
        raise UsageError(
            f"Compute node {', '.join(unknown)} is not in the federation file; known: {', '.join(by_name)}"
        )
    if len(chosen) < 2 or len(set(chosen)) < len(chosen):
        without = f'; the federation has none: take kind = "{NODE_RELEASE}" or "{LDP_REPORT}"' if not by_name else ""
        found = f"computes: found {len(set(chosen))} Compute nodes"
        raise UsageError(f"{found}, expected at least 2, each named once{without}")
    return tuple(by_name[name] for name in chosen)
