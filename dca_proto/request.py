"""What a trainer asks for, in words that people use: `[round]` of its file, or the options of `dca trainer`.

[round]
statistic = "mean"
columns = ["x"]
bounds = { x = [0, 10] }      # public, from what is known of the measurement; never read from the data
epsilon = 1
delta = 1e-6
tolerate = 2                  # T, of which `colluders` are reserved for colluders

Or, of data nodes that have the rows of many people each: local = true and rows_max = 5000, and no Compute nodes. Or, of
clients that report by themselves, each private against everybody: mechanism = "grid-laplace", and no Compute nodes.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dca_proto.core import accounting
from dca_proto.core.errors import UsageError
from dca_proto.core.federation import Federation
from dca_proto.core.forecast import planned
from dca_proto.core.mechanism import LOCAL_MECHANISMS
from dca_proto.core.sealing import ID_BYTES
from dca_proto.core.shares import ENCODINGS, LOCAL, SEED
from dca_proto.core.trainer_round import OpenRound
from dca_proto.core.wording import nearest
from dca_proto.statistics import resolve
from dca_proto.statistics.base import parameter_names
from dca_proto.statistics.contribution import client_sensitivity, row_sensitivity


class RoundSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One round's question and terms.

    Attributes:
        statistic, columns: what is computed of which columns of the clients' data.
        bounds: public lower and upper bound of each column, in its own units.
        parameters: further public parameters that the statistic has (a histogram's ``edges``).
        epsilon, delta: what the round costs each participant; delta is 0 of reports that are epsilon-private.
        tolerate: T, how many clients may drop out or collude. colluders: c, how many of the T are for colluders only.
        clients: start as soon as so many have answered; 0 waits for `join_s`. A local round ends then; 0 waits for its
            close, `join_s` and `share_s` later.
        computes: names of the Compute nodes; by default all of the federation.
        rows_max: 0 for the mean of a client's rows, R for the sum of at most R.
        local: whether it is a local round: clients are data nodes, each row another person's; each sums at most
            `rows_max` >= 1 of its rows, adds the whole noise and releases to the trainer. There are no Compute nodes.
        mechanism: asks for a round of reports, by a local mechanism: each client tells the trainer one that is private
            by itself. There are no Compute nodes. Of a mechanism for categories `rows_max` is 1.
        fraction_bits: of fixed-point numbers, even. encoding: of shares.
        join_s, share_s, commit_s: how long the phases may last; of a round without Compute nodes the first two.
    """

    statistic: str
    columns: tuple[str, ...]
    bounds: dict[str, tuple[float, float]] = {}
    parameters: dict[str, Any] = {}
    epsilon: float
    delta: float = 0.0
    tolerate: int = 0
    colluders: int = 0
    clients: int = 0
    computes: tuple[str, ...] = ()
    rows_max: int = 0
    fraction_bits: int = 24
    encoding: str = SEED
    join_s: float = 60.0
    share_s: float = 60.0
    commit_s: float = 60.0
    local: bool = False
    mechanism: str = ""

    @property
    def alone(self) -> bool:
        """Whether each participant releases by itself, without Compute nodes."""
        return self.local or bool(self.mechanism)


def open_round(settings: RoundSettings, federation: Federation) -> OpenRound:
    """The command for a trainer of the federation, under a fresh round id; everything checked that can be beforehand.

    Raises:
        UsageError: naming the setting that cannot be.
    """
    _check_terms(settings)
    parameters = parameters_of(settings.statistic, settings.columns, settings.bounds, settings.parameters)
    sensitivity_of = row_sensitivity if settings.local else client_sensitivity
    sensitivity_of(resolve(settings.statistic, parameters), settings.rows_max, settings.fraction_bits)
    request = OpenRound(
        round_id=secrets.token_bytes(ID_BYTES),
        statistic=settings.statistic,
        parameters=parameters,
        epsilon=settings.epsilon,
        delta=settings.delta,
        tolerated=settings.tolerate,
        colluders=settings.colluders,
        computes=() if settings.alone else _computes(settings, federation),
        rows_max=settings.rows_max,
        fraction_bits=settings.fraction_bits,
        encoding=LOCAL if settings.alone else settings.encoding,
        mechanism=settings.mechanism,
        clients_expected=settings.clients,
        join_window_ms=round(1000 * settings.join_s),
        share_window_ms=round(1000 * settings.share_s),
        commit_window_ms=round(1000 * settings.commit_s),
    )
    if settings.mechanism:
        planned(request, 1)
    return request


def _check_terms(settings: RoundSettings) -> None:
    if settings.mechanism:
        _check_mechanism(settings)
    else:
        accounting.mu_of(settings.epsilon, settings.delta)
    clients, tolerated = settings.clients, settings.tolerate
    if min(clients, tolerated, settings.colluders) < 0:
        raise UsageError("clients, tolerate and colluders cannot be below 0")
    if settings.alone and (tolerated or settings.colluders or settings.computes or settings.encoding != SEED):
        why = "each report is private by itself" if settings.mechanism else "each data node adds the whole noise"
        raise UsageError(
            f"a local round has no Compute nodes and no shares, and {why}: leave out computes, encoding, tolerate and "
            "colluders"
        )
    if settings.colluders > tolerated:
        raise UsageError(f"c = {settings.colluders} exceeds T = {tolerated}; lower colluders or raise tolerate")
    if clients and clients - tolerated - 1 < 1 and not settings.alone:
        raise UsageError(
            f"N - T - 1 = {clients - tolerated - 1} is below 1: nobody's noise would be left; lower tolerate"
        )
    if settings.encoding not in ENCODINGS:
        raise UsageError(f"encoding {settings.encoding!r} is unknown; use one of {', '.join(ENCODINGS)}")
    for name in ("join_s", "share_s", "commit_s"):
        if not 0 < getattr(settings, name) < math.inf:
            raise UsageError(f"{name} is {getattr(settings, name):g}; give a number of seconds above 0")


def _check_mechanism(settings: RoundSettings) -> None:
    """A mechanism of reports, and none where data nodes are asked; its figures are checked with the round's."""
    if settings.mechanism not in LOCAL_MECHANISMS:
        hint = nearest(settings.mechanism, LOCAL_MECHANISMS)
        raise UsageError(
            f"mechanism {settings.mechanism!r} is none of reports{hint}; use one of {', '.join(LOCAL_MECHANISMS)}, or "
            "leave it out for sums"
        )
    if settings.local:
        raise UsageError(
            "local asks data nodes for sums over many people's rows, mechanism asks each client for a report; give one "
            "of the two"
        )


def parameters_of(
    statistic: str,
    columns: Sequence[str],
    bounds: Mapping[str, tuple[float, float]],
    further: Mapping[str, Any],
) -> dict[str, object]:
    """A statistic's parameters: the columns, what their public bounds say, and the further ones.

    Raises:
        UsageError: bounds are missing, or are no intervals.
    """
    plain: dict[str, object] = {"columns": list(columns), **further}
    if bounds:
        return {**plain, **_scaling(columns, bounds)}
    if "centre" in parameter_names(statistic) and "centre" not in further:
        raise UsageError(f"public bounds are missing for: {', '.join(columns)}; give column=LO:HI for each")
    resolve(statistic, plain)
    return plain


def _scaling(columns: Sequence[str], bounds: Mapping[str, tuple[float, float]]) -> dict[str, object]:
    """Columns mapped from their bounds to [-1, 1], so that each gets noise in proportion to its own range."""
    missing = [column for column in columns if column not in bounds]
    if missing:
        raise UsageError(f"public bounds are missing for: {', '.join(missing)}; give column=LO:HI for each")
    strange = [column for column in bounds if column not in columns]
    if strange:
        raise UsageError(f"bounds of {', '.join(strange)}: no such column is asked for: {', '.join(columns)}")
    ends = [bounds[column] for column in columns]
    for column, (low, high) in zip(columns, ends, strict=True):
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UsageError(f"bounds of {column!r}: found {low:g}:{high:g}, expected finite LO < HI")
    return {
        "centre": [(low + high) / 2 for low, high in ends],
        "scale": [(high - low) / 2 for low, high in ends],
        "bound": [1.0] * len(ends),
    }


def _computes(settings: RoundSettings, federation: Federation) -> tuple[bytes, ...]:
    by_name = {member.name: member.id for member in federation.computes}
    names = settings.computes or tuple(by_name)
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise UsageError(
            f"Compute node {', '.join(unknown)} is not in the federation file; known: {', '.join(by_name)}"
        )
    if len(names) < 2 or len(set(names)) < len(names):
        alone = "" if by_name else "; the federation has none: hold local rounds, with local = true or a mechanism"
        found = f"computes: found {len(set(names))} Compute nodes"
        raise UsageError(f"{found}, expected at least 2, each named once{alone}")
    return tuple(by_name[name] for name in names)
