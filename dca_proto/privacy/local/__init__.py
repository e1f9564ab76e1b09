"""Local differential privacy: each report is private by itself, against everybody, whoever collects it.

A mechanism M is (ε, δ)-locally private if for all values v, v' of one client and all sets Z of reports
P(M(v) in Z) <= e^ε P(M(v') in Z) + δ (Kasiviswanathan et al. 2008; definition 2.1 of the LDP paper). Nobody has to be
trusted: no Compute node, no session, no other client's noise. The price is much more noise than the Distributed Compute
Algorithm's: each of n reports carries about what there the whole sum does, so a mean is about √n times less exact.

    AnalyticGaussian(epsilon, delta, sensitivity, dimension)   vectors of integers on the grid, (ε, δ)
    GridLaplace(epsilon, sensitivity, dimension)               vectors of integers on the grid, ε
    RandomisedResponse(epsilon, categories)                    one of k categories, or none, reported as one, ε
    UnaryEncoding(epsilon, categories)                         one of k categories, or none, reported as k bits, ε

**Over the protocol** they are the mechanisms of report rounds (DESIGN §5.2), which a trainer asks for by their names:
policy, ledger, replays and bytes are the protocol's affair (`dca_proto.protocol.release`). Beside `randomise`, the
protocol uses `to_inputs` (a contribution becomes a value), `encode` and `decode` (a report becomes bytes, and back),
`summed` and `decode_reports` (reports become a sum). By themselves, for any named statistic at f fraction bits:

    sensitivity = client_sensitivity(statistic, rows_max, f)
    mechanism = AnalyticGaussian(1.0, 1e-6, sensitivity, statistic.dimension)
    report = mechanism.randomise([contribution(statistic, rows, rows_max, f)], os.urandom(32))

Each has `randomise(values, key)` for clients and `estimate(reports)` for whoever collects. All randomness is a ChaCha20
stream of a key of 32 bytes, fresh from the operating system for every call: the same key with another value gives the
two away. Decisions are exact, in integers. A client that reports twice spends twice: `privacy.cost` says what. Nothing
here is charged to a ledger; in a report round the client's is.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from dca_proto.errors import UsageError
from dca_proto.privacy.local.additive import AnalyticGaussian, GridLaplace
from dca_proto.privacy.local.categorical import MISSING, RandomisedResponse, UnaryEncoding
from dca_proto.privacy.local.values import LocalEstimate
from dca_proto.privacy.rounding import at_least
from dca_proto.statistics import Sensitivity, Statistic

__all__ = [
    "MISSING",
    "AnalyticGaussian",
    "GridLaplace",
    "LocalEstimate",
    "LocalMechanism",
    "RandomisedResponse",
    "UnaryEncoding",
    "mechanism_of",
    "registered",
    "resolve",
]
LocalMechanism = AnalyticGaussian | GridLaplace | RandomisedResponse | UnaryEncoding
"""A local randomiser: each client's report is private by itself. Its fields are its parameters."""
_KINDS: dict[str, type[LocalMechanism]] = {
    kind.name: kind for kind in (AnalyticGaussian, GridLaplace, RandomisedResponse, UnaryEncoding)
}


def registered() -> tuple[str, ...]:
    """The names that `resolve` knows."""
    return tuple(sorted(_KINDS))


def resolve(name: str, parameters: Mapping[str, object]) -> LocalMechanism:
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
    """The mechanism of a round's reports; the names of its fields say which of these figures are its parameters.

    `sensitivity` is that of one client's contribution to the statistic, `rows_max` as of `contribution`, and (ε, δ)
    that of each report. `mu` is the same as a Gaussian DP parameter, which is charged and calibrated; 0 for all that ε
    and δ allow. Raises `UsageError` for a figure that the mechanism does not take, or a statistic without categories
    for one of categories.
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
