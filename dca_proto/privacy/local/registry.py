"""The local mechanisms by name, as an announcement carries it. Another one is one more entry."""

from __future__ import annotations

from typing import Any

import msgspec

from dca_proto.errors import UsageError
from dca_proto.privacy.local.gaussian import AnalyticGaussian
from dca_proto.privacy.local.laplace import GridLaplace
from dca_proto.privacy.local.response import RandomisedResponse
from dca_proto.privacy.local.unary import UnaryEncoding
from dca_proto.privacy.mechanism import LocalMechanism
from dca_proto.privacy.rounding import at_least
from dca_proto.statistics import Sensitivity, Statistic

_KINDS: dict[str, type[AnalyticGaussian | GridLaplace | RandomisedResponse | UnaryEncoding]] = {
    kind.name: kind for kind in (AnalyticGaussian, GridLaplace, RandomisedResponse, UnaryEncoding)
}


def registered() -> tuple[str, ...]:
    """The names that `resolve` knows."""
    return tuple(sorted(_KINDS))


def resolve(name: str, parameters: dict[str, Any]) -> LocalMechanism:
    """The mechanism of that name. Raises `UsageError` for an unknown name or wrong parameters."""
    if name not in _KINDS:
        raise UsageError(f"local mechanism {name[:64]!r} is unknown here; known: {', '.join(registered())}")
    try:
        return msgspec.convert(parameters, _KINDS[name], strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"parameters of local mechanism {name!r}: {error}") from None


def mechanism_of(
    name: str,
    statistic: Statistic,
    sensitivity: Sensitivity,
    rows_max: int,
    epsilon: float,
    delta: float,
    mu: float = 0.0,
) -> LocalMechanism:
    """The mechanism of a round's reports; which of these figures are its parameters, its fields say by their names.

    Args:
        name: a registered one.
        sensitivity: of one client's contribution to the statistic. rows_max: as of `contribution`.
        epsilon, delta: of each report. mu: the same as a Gaussian DP parameter, which is what is charged and
            calibrated; 0 for all that ε and δ allow.

    Raises:
        UsageError: a figure that the mechanism does not take, or a statistic without categories for one of categories.
    """
    kind = _KINDS[name]
    fields = kind.__struct_fields__
    if "delta" not in fields and delta != 0:
        raise UsageError(
            f"delta is {at_least(delta)}, expected 0: a report by {name} is epsilon-private without any delta"
        )
    if "categories" in fields:
        _check_categories(name, statistic, rows_max)
    figures: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "mu": mu,
        "sensitivity": sensitivity,
        "dimension": statistic.dimension,
        "categories": statistic.categories,
    }
    return kind(**{field: figures[field] for field in fields})


def _check_categories(name: str, statistic: Statistic, rows_max: int) -> None:
    if not statistic.categories:
        raise UsageError(
            f"statistic {statistic.name!r} has no categories, one of which a report by {name} names; ask for a "
            "'histogram', or use 'analytic-gaussian' or 'grid-laplace'"
        )
    if statistic.categories != statistic.dimension:
        found = f"{statistic.categories} categories and {statistic.dimension} coordinates"
        raise UsageError(f"statistic {statistic.name!r} has {found}; expected one coordinate for each category")
    if rows_max != 1:
        raise UsageError(f"rows_max is {rows_max}, expected 1: a report by {name} is of one row's category")
