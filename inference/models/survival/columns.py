"""Which columns and times a survival job reads."""

from __future__ import annotations

from dataclasses import dataclass

from inference.errors import DataError, unknown
from inference.problem import Schema

INTERVALS_MAX = 100  # whose codes take about a second; the time grows with their cube


@dataclass(frozen=True)
class Columns:
    """Which columns a survival job reads, and its grid.

    Attributes:
        duration, event: the columns. times: t_1 < ... < t_K, in units of the duration.
        group: a column of 0, 1, ..., G - 1, or None. groups: G. features: in a regression.

    Raises:
        DataError: no times, or more than `INTERVALS_MAX`.
    """

    duration: str
    event: str
    times: tuple[float, ...]
    group: str | None = None
    groups: int = 1
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.times) <= INTERVALS_MAX:
            raise DataError(f"a grid of {len(self.times)} times; expected 1 to {INTERVALS_MAX}, the ends of intervals")

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of the statistics."""
        return (self.duration, self.event, *([self.group] if self.group else []), *self.features)

    @property
    def group_labels(self) -> tuple[str, ...]:
        """Such as "arm 0" and "arm 1"; "all" without groups."""
        return tuple(f"{self.group} {g}" for g in range(self.groups)) if self.group else ("all",)

    @classmethod
    def of(
        cls, schema: Schema, event: str, group: str | None, times: tuple[float, ...] | None, intervals: int
    ) -> Columns:
        """The columns that a schema has: its target is the duration.

        Args:
            times: the grid; by default as many intervals of one length, up to the duration's upper bound.

        Raises:
            DataError: a column is not there, groups are not numbered from 0, or there is no grid.
        """
        for kind, name in (("event", event), ("group", group)):
            if name is not None and name not in schema.features:
                raise unknown(f"{kind} column", name, "the data", schema.features)
        if group == event:
            raise DataError(f"column {event!r} is both the event and the group; name two columns")
        groups, end = 1, schema.bounds[schema.target].upper
        if group is not None:
            bounds = schema.bounds[group]
            if bounds.lower != 0 or not float(bounds.upper).is_integer():
                found = f"group column {group!r} has bounds {bounds.lower:g}:{bounds.upper:g}"
                raise DataError(f"{found}; number the groups from 0, as in 0:1 for two")
            groups = int(bounds.upper) + 1
        if not times and (intervals < 1 or end <= 0):
            found = f"{intervals} intervals up to {end:g}"
            raise DataError(f"{found}; expected at least one, and a duration bounded above 0")
        grid = times or tuple(float(end * k / intervals) for k in range(1, intervals + 1))
        others = tuple(name for name in schema.features if name not in (event, group))
        return cls(schema.target, event, grid, group, groups, others)
