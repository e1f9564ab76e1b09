"""The learning job: one local round of all data nodes, and a posterior from what they released.

Columns are measured in half-widths of their public bounds, about the bounds' centres, as in `bounded_regression`; a
constant feature is a third of a half-width. Methods that refuse a constant feature (`methods`) get none: how far the
target's mean is off its public centre is then not in the model, so take them for centred columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from inference.bounded_regression import INTERCEPT_BOUND
from inference.distributed_regression.methods import DRAWS, NAMES, REFUSED, WARMUP, Method, OnProgress, fit, ready
from inference.distributed_regression.observed import nodes_of, prior_of
from inference.distributed_regression.own_units import DistributedFit, in_own_units
from inference.draws import CHAINS, attributes
from inference.problem import Schema
from inference.released import STATISTIC, columns_of
from inference.rounds import Job

ROWS_MAX = 100_000  # of one node, unless asked for more
INTERCEPT = "intercept"


def distributed_regression(
    schema: Schema,
    method: str = NAMES[0],
    *,
    rows_max: int = ROWS_MAX,
    chains: int = CHAINS,
    warmup: int = WARMUP,
    draws: int = DRAWS,
    thin: int | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    options: Mapping[str, Any] | None = None,
) -> Job[DistributedFit]:
    """The job: yields one `RoundRequest` of a local round, is sent its `NoisyAggregate`, returns the regression.

    Args:
        schema: columns and their public bounds. method: one of `methods.NAMES`.
        rows_max: rows of a node that count, at least 1.
        chains, warmup, draws, thin, seed, on_progress, options: as of `methods.fit`; "fast" knows the target's bound.

    Raises:
        DataError: as `methods.fit`. Unknown methods and options, and missing packages, are refused before the round.
    """
    released: NoisyAggregate = yield request_of(schema, method, rows_max, options)
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
    schema: Schema, method: str, rows_max: int = ROWS_MAX, options: Mapping[str, Any] | None = None
) -> RoundRequest:
    """What a method learns from, as the request of one round.

    Args:
        rows_max: rows of a node that count, in a local round; 0 asks for one sum over all clients, which is one node.
        options: of the method, to be refused now if they are unknown.

    Raises:
        DataError: the method or an option is unknown, or JAX is missing.
    """
    chosen = ready(method, options or {})
    return RoundRequest(STATISTIC, _parameters(schema, chosen), rows_max=rows_max, local=rows_max > 0)


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

    Args: as of `distributed_regression`.

    Raises:
        DataError: as `methods.fit` and `observed.nodes_of`.
    """
    given = dict(options or {})
    if ready(method, given).module is None and "sigma_y2" not in given:
        given.setdefault("bound_y", 1.0)
    observed = nodes_of(released)
    sampled = fit(
        method,
        observed,
        prior_of(released),
        chains=chains,
        warmup=warmup,
        draws=draws,
        thin=thin,
        seed=seed,
        names=[*([INTERCEPT] if observed.constant else []), *columns_of(released)[:-1]],
        on_progress=on_progress,
        options=given,
        attrs={"nodes": observed.nodes, **attributes(released)},
    )
    return in_own_units(released, sampled, schema)


def _parameters(schema: Schema, method: Method) -> dict[str, object]:
    parameters = {
        "columns": list(schema.columns),
        "centre": [float(centre) for centre in schema.centres],
        "scale": [float(width) for width in schema.half_widths],
        "bound": [1.0] * len(schema.columns),
        "target_square": method.target_square,
    }
    if method.constant == REFUSED:
        return parameters
    return {**parameters, "intercept": True, "intercept_bound": INTERCEPT_BOUND}
