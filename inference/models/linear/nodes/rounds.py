"""The learning job: one release by each data node, and a posterior from what they released.

Columns are measured in half-widths of their public bounds, about the bounds' centres, as in `one_round`; a
constant feature is a third of a half-width. Methods that refuse a constant feature (`methods`) get none: how far the
target's mean is off its public centre is then not in the model, so take them for centred columns.

What a round gave serves several methods: those that refuse a constant have one request, but for MCMC-B&S, whose request
has yᵀy too, and all others have another. A method that takes what was released for some other one says for which.

**Averages** (appendix B.1): with ``group`` = k > 1 nodes release the statistic of averages of k rows, which are closer
to normal than rows are, without a constant and yᵀy. It is dear: a kth of the rows, with more noise than single rows
have, 1.3 times at k = 2 and 2.4 at 10 (in a unit ball; `dca_proto.statistics.averaged_sensitivity`).

**Small nodes.** In the model of Algorithm 1 and its variants S_j is Wishart, with a density from d rows on. Nodes with
fewer are left out, and the result says so; how many rows a node has is public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dca_proto.aggregate import NodeReleaseRequest, NoisyAggregate, RoundRequest, SecureSumRequest
from inference.draws import CHAINS, attributes
from inference.errors import DataError
from inference.models.linear.aggregate_stats import STATISTIC, columns_of
from inference.models.linear.nodes.methods import (
    DRAWS,
    METHODS,
    NAMES,
    REFUSED,
    REQUIRED,
    WARMUP,
    Method,
    OnProgress,
    check_statistic,
    find,
    fit,
    ready,
    rows_least,
)
from inference.models.linear.nodes.observed import (
    AVERAGED,
    AVERAGED_GROUP,
    nodes_of,
    prior_of,
    regressions,
)
from inference.models.linear.nodes.own_units import DistributedFit, in_own_units
from inference.models.linear.one_round import INTERCEPT_BOUND
from inference.problem import Schema
from inference.rounds import Job

ROWS_MAX = 100_000  # of one node, unless asked for more
INTERCEPT = "intercept"


def distributed_regression(
    schema: Schema,
    method: str = NAMES[0],
    *,
    rows_max: int = ROWS_MAX,
    group: int = 1,
    released_for: str | None = None,
    chains: int = CHAINS,
    warmup: int = WARMUP,
    draws: int = DRAWS,
    thin: int | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    options: Mapping[str, Any] | None = None,
) -> Job[DistributedFit]:
    """The job: yields one `NodeReleaseRequest`, is sent its `NoisyAggregate`, returns the regression.

    Args:
        schema: columns and their public bounds. method: one of `methods.NAMES`.
        rows_max: rows of a node that count, at least 1. group, released_for: as of `request_of`.
        chains, warmup, draws, thin, seed, on_progress, options: as of `methods.fit`; "fast" knows the target's bound.

    Raises:
        DataError: as `methods.fit`. Unknown methods and options, and missing packages, are refused before the round.
    """
    request = request_of(schema, method, rows_max, options, group=group, released_for=released_for)
    released: NoisyAggregate = yield request
    return fit_released(
        released,
        schema,
        method,
        chains=chains,
        warmup=warmup,
        draws=draws,
        thin=thin,
        seed=seed,
        on_progress=on_progress,
        options=options,
    )


def request_of(
    schema: Schema,
    method: str,
    rows_max: int = ROWS_MAX,
    options: Mapping[str, Any] | None = None,
    *,
    group: int = 1,
    released_for: str | None = None,
) -> RoundRequest:
    """What a method learns from, as the request of one round.

    Args:
        rows_max: rows of a node that count; 0 asks for one secure sum over all clients, which is one node.
        options: of the method, to be refused now if they are unknown.
        group: k rows that a data node averages; 1 for rows as they are.
        released_for: the method whose statistics are asked for, by default this one.

    Raises:
        DataError: a method or an option is unknown, the method cannot learn from such statistics, or JAX is missing.
    """
    chosen, asked = ready(method, options or {}), find(released_for or method)
    if group > 1:
        _check_averages(chosen, group, rows_max)
        parameters, name = {**_columns(schema), "group": group}, AVERAGED
    else:
        parameters, name = _parameters(schema, asked), STATISTIC
    has_constant, has_square = "intercept" in parameters, bool(parameters.get("target_square"))
    check_statistic(chosen, constant=has_constant, target_square=has_square)
    return NodeReleaseRequest(name, parameters, rows_max=rows_max) if rows_max else SecureSumRequest(name, parameters)


def least_rows(method: str, request: RoundRequest) -> int:
    """Rows that a data node must have to count in what a method makes of its release."""
    parameters = request.parameters
    features = len(parameters["columns"]) - 1 + bool(parameters.get("intercept"))
    return rows_least(find(method), features) * int(parameters.get("group", 1))


def fit_released(
    released: NoisyAggregate,
    schema: Schema,
    method: str = NAMES[0],
    *,
    chains: int = CHAINS,
    warmup: int = WARMUP,
    draws: int = DRAWS,
    thin: int | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    options: Mapping[str, Any] | None = None,
) -> DistributedFit:
    """The regression from what a round of `request_of` gave; a sum over all clients is one node.

    Nodes with too few rows for the method are left out, which the result's warnings say.

    Args: as of `distributed_regression`.

    Raises:
        DataError: as `methods.fit` and `observed.nodes_of`; or all nodes have too few rows.
    """
    given = dict(options or {})
    chosen = ready(method, given)
    if chosen.module is None and "sigma_y2" not in given:
        given.setdefault("bound_y", 1.0)
    nodes, left_out = _large_enough(released, chosen)
    observed = nodes_of(nodes)
    sampled = fit(
        method,
        observed,
        prior_of(nodes),
        chains=chains,
        warmup=warmup,
        draws=draws,
        thin=thin,
        seed=seed,
        names=[*([INTERCEPT] if observed.constant else []), *columns_of(regressions(nodes))[:-1]],
        on_progress=on_progress,
        options=given,
        attrs={"nodes": observed.nodes, **attributes(released)},
    )
    return replace(in_own_units(nodes, sampled, schema), left_out=left_out)


def _large_enough(released: NoisyAggregate, method: Method) -> tuple[list[NoisyAggregate], str]:
    """The nodes with rows enough, and in words which are left out. Raises `DataError` if none is left."""
    nodes, observed = list(released.nodes or (released,)), nodes_of(released)
    least = rows_least(method, observed.features)
    is_enough = observed.n >= least
    if is_enough.all():
        return nodes, ""
    k = released.parameters.get("group", AVERAGED_GROUP)
    unit = f"averages of {k} rows" if released.statistic == AVERAGED else "rows"
    needs = f"method {method.name!r} needs {least} of each"
    if not is_enough.any():
        who = f"the largest of {len(nodes)} data nodes has" if len(nodes) > 1 else "there are"
        raise DataError(f"{who} {observed.n.max():g} {unit}, and {needs}; take 'fixed-s' or 'fast', which need 1")
    return [node for node, enough in zip(nodes, is_enough, strict=True) if enough], (
        f"{np.sum(~is_enough)} of {len(nodes)} data nodes are left out: the smallest has {observed.n.min():g} {unit}, "
        f"and {needs}; 'fixed-s' and 'fast' learn from all that have any"
    )


def _check_averages(method: Method, group: int, rows_max: int) -> None:
    """Raise `DataError` where averages of rows are not for a method or not for a round."""
    if not rows_max:
        raise DataError(
            f"averages of {group} rows are for data nodes that release by themselves; in a sum over clients they carry "
            "the noise of single rows and tell less, so leave out group"
        )
    takers = [one.name for one in METHODS.values() if one.constant != REQUIRED and not one.target_square]
    if method.name not in takers:
        raise DataError(
            f"averages of {group} rows have neither a constant nor yᵀy, so method {method.name!r} cannot learn from "
            f"them; take one of {', '.join(map(repr, takers))}, or leave out group"
        )


def _columns(schema: Schema) -> dict[str, object]:
    return {
        "columns": list(schema.columns),
        "centre": [float(centre) for centre in schema.centres],
        "scale": [float(width) for width in schema.half_widths],
        "bound": [1.0] * len(schema.columns),
    }


def _parameters(schema: Schema, method: Method) -> dict[str, object]:
    parameters = {**_columns(schema), "target_square": method.target_square}
    if method.constant == REFUSED:
        return parameters
    return {**parameters, "intercept": True, "intercept_bound": INTERCEPT_BOUND}
