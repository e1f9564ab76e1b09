"""Local differential privacy: each report is private by itself, whoever collects it.

A mechanism M is (ε, δ)-locally private if for all values v, v' of one client and all sets Z of reports
P(M(v) in Z) <= e^ε P(M(v') in Z) + δ (Kasiviswanathan et al. 2008; definition 2.1 of the LDP paper). A client trusts
nobody: no Compute node, no session, no other client's noise. The cost is much more noise than with secure
sums: each report carries about as much as a whole secure sum, so a mean of n reports is about √n times less exact.

    AnalyticGaussian(epsilon, delta, sensitivity, dimension)   vectors of integers on the grid, (ε, δ)
    GridLaplace(epsilon, sensitivity, dimension)               vectors of integers on the grid, ε
    RandomisedResponse(epsilon, categories)                    one of k categories, or none, reported as one, ε
    UnaryEncoding(epsilon, categories)                         one of k categories, or none, reported as k bits, ε

**Over the protocol** they are the mechanisms of report rounds (DESIGN §5.2), which a trainer requests by name. The
protocol handles policy, ledger, replays and bytes (`dca_proto.protocol.release`). Besides `randomise`, it uses
`to_inputs` (contribution to value), `encode` and `decode` (report to bytes, and back), `summed` and `decode_reports`
(reports to a sum). Without the protocol, for any named statistic at f fraction bits:

    sensitivity = client_sensitivity(statistic, rows_max, f)
    mechanism = AnalyticGaussian(1.0, 1e-6, sensitivity, statistic.dimension)
    report = mechanism.randomise([contribution(statistic, rows, rows_max, f)], os.urandom(32))

Clients call `randomise(values, key)`; the collector calls `estimate(reports)`. All randomness is a ChaCha20 stream from
a key of 32 bytes, fresh from the operating system for every call: using one key with two values would reveal both.
Decisions are exact, in integers. A client that reports twice spends twice (`privacy.cost`). Nothing here charges a
ledger; in a report round, the client charges its own.
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
    """The names that `resolve` accepts."""
    return tuple(sorted(_KINDS))


def resolve(name: str, parameters: Mapping[str, object]) -> LocalMechanism:
    """Return the mechanism of that name. Raises `UsageError` for an unknown name or wrong parameters."""
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
    """Return the mechanism of a round's reports; each kind takes the figures that match its field names.

    `sensitivity` is that of one client's contribution to the statistic, and `rows_max` is that of `contribution`. Each
    report is (ε, δ)-private; `mu` is the Gaussian DP parameter that is charged and calibrated, or 0 for the largest
    that ε and δ allow. Raises `UsageError` for a figure that the mechanism does not take, or if a categorical mechanism
    gets a statistic without categories.
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
            f"statistic {statistic.name!r} has no categories, but a report by {name} names a category; ask for a "
            "'histogram', or use 'analytic-gaussian' or 'grid-laplace'"
        )
    if statistic.categories != statistic.dimension:
        found = f"{statistic.categories} categories and {statistic.dimension} coordinates"
        raise UsageError(f"statistic {statistic.name!r} has {found}; expected one coordinate for each category")
    if rows_max != 1:
        raise UsageError(f"rows_max is {rows_max}, expected 1: a report by {name} is of one row's category")
