"""Converts the options of `dca account` to statistics with their parameters.

Without public bounds, the columns are x1, x2, ... around 0, each within ± the bound in its own units. Their number, or
that of a histogram's bins, is the smallest possible by default. Other parameters without a default are those of
`Statistic.planned`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from dca_proto.aggregate import PublicParameters
from dca_proto.cli.options import require_known
from dca_proto.errors import UsageError
from dca_proto.jobs.plan import NamedStatistic
from dca_proto.privacy import composition as privacy_loss
from dca_proto.runtime.request import parameters_of
from dca_proto.statistics import registered, resolve
from dca_proto.statistics.base import COLUMNS_MAX, parameter_names, planned
from dca_proto.statistics.histogram import BINS_MAX
from dca_proto.statistics.survival_score import BEYOND, CODE
from dca_proto.wording import nearest

_FEWEST_BINS, _COLUMNS_TRIED = 2, 8
_TIMES_DIGITS = 5
_ALSO: dict[str, tuple[type[privacy_loss.Release], str]] = {
    "gaussian": (privacy_loss.Gaussian, "gaussian:MU"),
    "laplace": (privacy_loss.Laplace, "laplace:EPSILON or, on a grid, laplace:EPSILON,STEPS"),
    "randomised-response": (privacy_loss.RandomisedResponse, "randomised-response:EPSILON,CATEGORIES"),
    "unary-encoding": (privacy_loss.UnaryEncoding, "unary-encoding:EPSILON"),
    "pure": (privacy_loss.PureDP, "pure:EPSILON"),
}


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """The options about columns.

    Attributes:
        names: of the columns; None for x1, x2, ... or those of `bounds`.
        dimension: the number of columns, or of a histogram's bins. bound: of every column, in its own units.
        bounds: public [LO, HI] by column; it excludes `bound`.
    """

    names: list[str] | None = None
    dimension: int | None = None
    bound: float | None = None
    bounds: dict[str, list[float]] | None = None

    def __post_init__(self) -> None:
        if self.bound is not None and self.bounds is not None:
            raise UsageError("--bound and --bounds exclude each other; keep one")

    def size(self, fewest: int, most: int = COLUMNS_MAX, what: str = "columns") -> int:
        """Return the number of columns or bins, by default the `fewest`. Raises `UsageError` beyond 1 to `most`."""
        size = fewest if self.dimension is None else self.dimension
        if not 1 <= size <= most:
            raise UsageError(f"--dimension {size}: expected 1 to {most} {what}")
        return size

    def named(self, statistic: str) -> list[str]:
        """Return the columns' names. Raises `UsageError` if two options give their number."""
        given = self.names or list(self.bounds or ())
        if given and self.dimension is not None:
            option = "--columns" if self.names else "--bounds"
            raise UsageError(f"{option} names the columns of a {statistic}, and so excludes --dimension; keep one")
        fewest = 1 if given or self.dimension is not None else _fewest(statistic)
        return given or [f"x{j}" for j in range(1, self.size(fewest) + 1)]

    def about_zero(self, names: Sequence[str]) -> PublicParameters:
        """Return the parameters of unscaled columns, each within ± the bound."""
        bound = 1.0 if self.bound is None else self.bound
        return {"centre": [0.0] * len(names), "scale": [1.0] * len(names), "bound": [bound] * len(names)}


def named_statistics(
    statistics: Sequence[str], columns: Columns, parameters: PublicParameters
) -> tuple[NamedStatistic, ...]:
    """Return the statistic of each round, from texts ``A`` or ``A,B``, with these parameters.

    Raises `UsageError` for an unknown name (it names the nearest), or options that contradict each other.
    """
    names = [name.strip() for text in statistics for name in text.split(",")]
    if "" in names:
        raise UsageError(f"--statistic {','.join(statistics)!r}: a name is missing beside a comma; expected A or A,B")
    for name in names:
        require_known("--statistic", name, registered())
    known = sorted({key for name in names for key in parameter_names(name)})
    for key in parameters:
        if key not in known:
            raise UsageError(
                f"--parameter {key}: no such parameter of {', '.join(names)}{nearest(key, known)}; "
                f"known: {', '.join(known)}"
            )
    return tuple(named_statistic(name, columns, parameters) for name in names)


def named_statistic(name: str, columns: Columns, parameters: PublicParameters) -> NamedStatistic:
    """Return a statistic with all of its parameters, of those given the ones that it has. Raises `UsageError`."""
    known = parameter_names(name)
    mine = {key: value for key, value in parameters.items() if key in known}
    if "edges" in known:
        return name, {**_binned(columns), **mine}
    if "times" in known:
        return name, {**_survival(columns, "theta" in known), **mine}
    if "lower" in known:
        return name, {**_between(name, columns, mine), **mine}
    names = columns.named(name)
    chosen = {**planned(name, names, mine), "columns": names}
    if "bound" not in known:
        return name, {**chosen, **mine}
    if columns.bounds is None:
        return name, {**chosen, **columns.about_zero(names), **mine}
    bounds = {key: (low, high) for key, (low, high) in columns.bounds.items()}
    return name, parameters_of(name, names, bounds, {**chosen, **mine})


def _fewest(name: str) -> int:
    """Return the least number of columns with which a statistic is valid; 1 if it needs more parameters."""
    for size in range(1, _COLUMNS_TRIED):
        with suppress(UsageError):
            resolve(*named_statistic(name, Columns(dimension=size), {}))
            return size
    return 1


def _between(name: str, columns: Columns, parameters: PublicParameters) -> PublicParameters:
    """Return columns with their bounds, in lists; or the first column alone, if the statistic has one."""
    bounds = columns.bounds or {}
    if not isinstance(planned(name, ["x1"], parameters).get("lower"), list):
        column = (columns.names or [*bounds, "x1"])[0]
        sides = dict(zip(("lower", "upper"), bounds[column], strict=True)) if column in bounds else {}
        return {**planned(name, [column], parameters), "columns": [column], **sides}
    names = columns.named(name)
    chosen = planned(name, names, parameters)
    ends = zip(names, chosen["lower"], chosen["upper"], strict=True)
    known = [bounds.get(column, (low, high)) for column, low, high in ends]
    return {**chosen, "columns": names, "lower": [low for low, _ in known], "upper": [high for _, high in known]}


def _binned(columns: Columns) -> PublicParameters:
    """Return one column, and the edges of equal bins between its bounds, or of bins of width 1."""
    bins = columns.size(_FEWEST_BINS, BINS_MAX, "bins")
    column = (columns.names or list(columns.bounds or ()) or ["x1"])[0]
    low, high = (columns.bounds or {}).get(column, (0.0, float(bins)))
    return {"columns": [column], "edges": [low + (high - low) * k / bins for k in range(bins + 1)]}


def _survival(columns: Columns, has_features: bool) -> PublicParameters:
    """Return a time grid with one group; `has_features` adds one feature, and parameters of zero."""
    intervals = columns.size(1, what="intervals")
    names = columns.names or ["duration", "event", *["x1"] * has_features]
    times = [float(k) for k in range(1, intervals + 1)]
    if not has_features:
        return {"columns": names, "times": times}
    own = columns.about_zero(names[2:])
    scaled = {"centre": [0.0, 0.5], "scale": [times[-1], 0.5], "bound": [BEYOND, 1 + CODE]}
    theta = [0.0] * (intervals + len(names) - 2)
    return {"columns": names, "times": times, "theta": theta, "clip": 1.0} | {
        key: [*scaled[key], *own[key]] for key in own
    }


def parse_also(text: str) -> tuple[privacy_loss.Release, ...]:
    """Parse ``KIND:VALUE``, or ``KIND:VALUE*TIMES`` for equal ones. Raises `UsageError` that lists the kinds."""
    once, star, times = text.partition("*")
    if star and not (times.isdecimal() and len(times) <= _TIMES_DIGITS and int(times)):
        raise UsageError(f"--also {text[:64]!r}: expected a number after *, as in laplace:0.01*365")
    return (_parse_once(once),) * (int(times) if star else 1)


def _parse_once(text: str) -> privacy_loss.Release:
    kind, _, values = text.partition(":")
    if kind not in _ALSO:
        forms = ", ".join(form for _, form in _ALSO.values())
        raise UsageError(f"--also {text!r}: {kind!r} is unknown{nearest(kind, _ALSO)}; expected one of {forms}")
    release, form = _ALSO[kind]
    try:
        first, *rest = values.split(",")
        return release(float(first), *map(int, rest))
    except UsageError as error:
        raise UsageError(f"--also {text!r}: {error}") from None
    except (TypeError, ValueError):
        raise UsageError(f"--also {text!r}: expected {form}") from None


def parse_shares(text: str) -> tuple[float, ...] | None:
    """Parse ``A,B,...``, or ``best`` as None. Raises `UsageError` for anything else."""
    if text == "best":
        return None
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError:
        raise UsageError(f"--shares {text!r}: expected one number for each round, as in 0.1,0.9, or best") from None
