"""What `dca account` is asked of which columns: a statistic's name and all of its parameters, from what options say.

Without public bounds there are columns x1, x2, ... about 0, in units of their own, each within ± the bound; where the
statistic is a histogram, as many bins; by default as few as it takes. The noise of a gradient follows from its clip
alone, so by default it is at θ = 0, and clipped at 1. That of a mixture does not depend on its components either: by
default they are two, and all at the centre.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dca_proto.cli.options import parse_parameter, require_known
from dca_proto.errors import UsageError
from dca_proto.runtime.request import parameters_of
from dca_proto.statistics import registered
from dca_proto.statistics.base import COLUMNS_MAX, parameter_names
from dca_proto.statistics.histogram import BINS_MAX
from dca_proto.wording import nearest

_PLAINEST = {"regression": 2, "averaged-regression": 2, "gradient": 2, "histogram": 2}
"""Columns (bins) of the plainest question that a statistic can be asked, where it is not 1."""
Question = tuple[str, dict[str, Any]]
"""A statistic's name and its parameters."""


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """What options say of the columns.

    Attributes:
        names: of the columns; None for x1, x2, ... or those of the bounds.
        dimension: how many columns, or a histogram's bins. bound: of every column, in units of its own.
        bounds: public [LO, HI] of each.

    Raises:
        UsageError: options that exclude each other.
    """

    names: list[str] | None = None
    dimension: int | None = None
    bound: float | None = None
    bounds: dict[str, list[float]] | None = None

    def __post_init__(self) -> None:
        if self.bound is not None and self.bounds is not None:
            raise UsageError("--bound and --bounds exclude each other; keep one")

    def size(self, statistic: str, most: int, what: str) -> int:
        """How many columns or bins. Raises `UsageError` for more than a round can have."""
        found = _PLAINEST.get(statistic, 1) if self.dimension is None else self.dimension
        if not 1 <= found <= most:
            raise UsageError(f"--dimension {found}: expected 1 to {most} {what}")
        return found

    def named(self, statistic: str) -> list[str]:
        """The columns' names. Raises `UsageError` where two options say how many."""
        given = self.names or list(self.bounds or ())
        if given and self.dimension is not None:
            option = "--columns" if self.names else "--bounds"
            raise UsageError(f"{option} names the columns of a {statistic}, and so excludes --dimension; keep one")
        return given or [f"x{j}" for j in range(1, self.size(statistic, COLUMNS_MAX, "columns") + 1)]


def questions(statistics: Sequence[str], columns: Columns, further: Sequence[str]) -> tuple[Question, ...]:
    """Of each round, in the order of the options' names ``A`` or ``A,B``; `further` are texts ``NAME=JSON``.

    Raises:
        UsageError: an unknown name, naming the nearest, or options that do not go together.
    """
    names = [name.strip() for text in statistics for name in text.split(",")]
    if "" in names:
        raise UsageError(f"--statistic {','.join(statistics)!r}: a name is missing beside a comma; expected A or A,B")
    for name in names:
        require_known("--statistic", name, registered())
    given = dict(map(parse_parameter, further))
    known = sorted({key for name in names for key in parameter_names(name)})
    for key in given:
        if key not in known:
            raise UsageError(
                f"--parameter {key}: no such parameter of {', '.join(names)}{nearest(key, known)}; "
                f"known: {', '.join(known)}"
            )
    return tuple(question(name, columns, given) for name in names)


def question(name: str, columns: Columns, given: dict[str, Any]) -> Question:
    """One round's; of what is given, a statistic takes what it knows. Raises `UsageError` for what cannot be."""
    known = parameter_names(name)
    mine = {key: value for key, value in given.items() if key in known}
    if "edges" in known:
        return name, {**_binned(name, columns), **mine}
    if "times" in known:
        return name, {**_survival(name, columns, "feature_codes" in known), **mine}
    names = columns.named(name)
    if "theta" in known:
        mine = {**_at_zero(names, mine), **mine}
    if "log_weights" in known:
        mine = {**_alike(names, mine), **mine}
    if "bound" not in known:
        return name, {"columns": names, **mine}
    if columns.bounds is None:
        return name, {"columns": names, **_about_zero(names, columns.bound), **mine}
    return name, parameters_of(
        name, names, {column: (low, high) for column, (low, high) in columns.bounds.items()}, mine
    )


def _binned(name: str, columns: Columns) -> dict[str, Any]:
    """One column, and the edges of equal bins between its bounds, or of bins of 1."""
    bins = columns.size(name, BINS_MAX, "bins")
    column = (columns.names or list(columns.bounds or ()) or ["x1"])[0]
    low, high = (columns.bounds or {}).get(column, (0.0, float(bins)))
    return {"columns": [column], "edges": [low + (high - low) * k / bins for k in range(bins + 1)]}


def _survival(name: str, columns: Columns, has_features: bool) -> dict[str, Any]:
    """A time grid of so many intervals, one group, and a code of its own for each cell; perhaps one feature."""
    intervals = columns.size(name, COLUMNS_MAX, "intervals")
    names = columns.names or ["duration", "event", *["x1"] * has_features]
    grid = {"columns": names, "times": [float(k) for k in range(1, intervals + 1)]}
    if not has_features:
        return grid
    cells = range(2 * intervals + 1)
    codes = [[int(cell == place) for place in cells] for cell in cells]
    features = _about_zero(names[2:], columns.bound)
    return {**grid, **features, "radius": 1.0, "codes": codes, "feature_codes": codes}


def _at_zero(names: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """A gradient's parameters; the last column is the target."""
    return {"theta": [0.0] * (len(names) - 1 + bool(given.get("intercept"))), "clip": 1.0}


def _alike(names: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """A mixture's components: as many as some parameter speaks of, all the same."""
    lists = [given[key] for key in ("log_weights", "means", "precisions") if isinstance(given.get(key), list)]
    count = len(lists[0]) if lists else 2
    return {
        "log_weights": [0.0] * count,
        "means": [[0.0] * len(names) for _ in range(count)],
        "precisions": [[1.0] * len(names) for _ in range(count)],
    }


def _about_zero(names: Sequence[str], bound: float | None) -> dict[str, Any]:
    """Columns in units of their own, each within ± the bound."""
    ones = [1.0] * len(names)
    return {"centre": [0.0] * len(names), "scale": ones, "bound": [1.0 if bound is None else bound] * len(names)}
