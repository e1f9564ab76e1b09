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
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dca_proto.aggregate import PublicParameters
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import UsageError
from dca_proto.privacy.accounting import check_mu
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.params import Limits
from dca_proto.protocol.terms import (
    Clients,
    ComputeNames,
    Delta,
    FractionBits,
    KindName,
    LiveTerms,
    MechanismName,
    RowsMax,
    kind_of,
)
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.kinds import (
    LDP_REPORT,
    NODE_RELEASE,
    SECURE_SUM,
)
from dca_proto.statistics import Mean, Moments, SecondMoments, Sum, resolve
from dca_proto.statistics.base import parameter_names
from dca_proto.statistics.scaled import MAGNITUDE_MAX, MAGNITUDE_MIN

_CLIENTS = "N, the number of clients; the round ends when all have answered. 0: all with a session."
_RATIOS = (Sum, Mean, Moments, SecondMoments)


class RoundSettings(LiveTerms[ComputeNames], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The statistic and the terms of one round.

    Attributes:
        kind: ``secure-sum``; ``node-release``, in which each client is a data node with many people's rows, sums at
            most `rows_max` >= 1 of them and adds all the noise; or ``ldp-report``, in which each client sends a
            report that is private by itself.
        columns: those of the clients' data that the statistic uses.
        bounds: public lower and upper bound of each column, in its own units.
        parameters: further public parameters of the statistic (a histogram's ``edges``).
        epsilon, delta: the round's cost to each participant; delta is 0 for epsilon-private reports.
        mechanism: the mechanism of LDP reports. One for categories needs `rows_max` = 1.
        clients: with 0, a secure sum asks the Compute nodes how many clients have a session; the other kinds wait
            until collect_s and commit_s are over.
    """

    statistic: Annotated[str, Meta(description="Statistic: mean, sum, histogram, ...")]
    columns: tuple[str, ...]
    bounds: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    parameters: PublicParameters = msgspec.field(default_factory=dict)
    delta: Delta = 0.0
    clients: Annotated[Clients, Meta(description=_CLIENTS)] = 0
    computes: ComputeNames = ()
    rows_max: RowsMax = 0
    fraction_bits: FractionBits = 24
    kind: KindName = SECURE_SUM
    mechanism: MechanismName = ""


def open_round(settings: RoundSettings, federation: Federation) -> OpenRound:
    """Check the settings and return the command for a trainer of the federation, with a fresh round id.

    Raises `UsageError` that names the wrong setting.
    """
    kind = settings.fill(kind_of(settings.kind, settings.mechanism))
    settings.check_terms(is_summed=kind.is_summed, needs_n=False)
    checked = {
        "kind": kind,
        "computes": compute_ids(settings.computes, federation) if kind.is_summed else (),
        "parameters": parameters_of(settings.statistic, settings.columns, settings.bounds, settings.parameters),
    }
    request = OpenRound(**{**settings.shared(OpenRound), **checked}, round_id=secrets.token_bytes(ID_BYTES))
    if kind.clients or not kind.is_summed:
        request.draft(DistributedDiscreteGaussian(), Limits())
        return _counting(request, settings)
    request.check_statistic()
    check_mu(request.cost.mu, request.epsilon, request.delta, request.cost.slack)
    return _counting(request, settings)


def _counting(request: OpenRound, settings: RoundSettings) -> OpenRound:
    """Return the round with a count of complete rows beside means and sums, as far as that costs nothing.

    Reports have a count only if it is asked for, since its noise would be that of all clients.
    """
    if settings.kind == LDP_REPORT:
        return request
    parameters = with_free_count(request.statistic, request.parameters, request.fraction_bits)
    return msgspec.structs.replace(request, parameters=parameters)


def with_free_count(statistic: str, parameters: PublicParameters, fraction_bits: int) -> PublicParameters:
    """Return the parameters of a secure sum or a node release, with a free count of complete rows beside means.

    A ``count_weight`` that is given stays, also 0, which leaves the count out.
    """
    if "count_weight" in parameters or not isinstance(resolved := resolve(statistic, parameters), _RATIOS):
        return parameters
    return {**parameters, "count_weight": resolved.free_weight(fraction_bits)}


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
    if len(chosen) <= federation.p:
        raise UsageError(
            f"computes: found {len(chosen)} Compute nodes, expected at least {federation.p + 1}, as p = {federation.p} "
            "in the federation file; name more, or leave computes out to take all"
        )
    return tuple(by_name[name] for name in chosen)
