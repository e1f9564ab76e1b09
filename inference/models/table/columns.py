"""Which columns a table has, and how its one sum shares the budget between them.

**Weights.** The noise of an estimate is worth what it adds to chance. With weights w_i and squared sensitivities S_i, a
part of the sum has noise of variance σ² ΣwS/w_i² in its own units. If q_i is the square of noise over chance at equal
weights, the sum of all q_i/w_i² at a fixed budget is least for w_i² in proportion to √(q_i/S_i). Chance is that of n
clients; n divides out. Public guesses stand for the rest: a standard deviation of a quarter of the bounds' half-width,
and a share of one half.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, sqrt

from dca_proto.statistics import Table
from dca_proto.statistics.moments import FREE_BOUND
from dca_proto.statistics.table import CODES_MAX, GROUPED_BOUND, GROUPS_MAX
from dca_proto.wording import counted
from inference.bounds import Interval
from inference.contraction import percent
from inference.errors import DataError, unknown
from inference.problem import Schema

LEVELS = 4
_SD = 0.25  # of a column of numbers, in half-widths of its bounds
_CUMULATIVE = 1.336  # noise of a cumulative count from four levels of bins, for noise 1 in each
_FINE = 16  # weights are whole numbers of about this size


@dataclass(frozen=True)
class Columns:
    """The columns of a table.

    Attributes:
        names: the described ones. coded: whether each has codes. bounds: of each.
        group: the group's column, or None. of_group: its bounds, which are its codes.
    """

    names: tuple[str, ...]
    coded: tuple[bool, ...]
    bounds: tuple[Interval, ...]
    group: str | None = None
    of_group: Interval | None = None

    @classmethod
    def of(cls, schema: Schema, names: tuple[str, ...], group: str | None, codes: str | None) -> Columns:
        """Return these columns of a schema.

        Args:
            codes: names of columns of codes, separated by commas. None: those with bounds 0:1. Those with labels always
                are.

        Raises:
            DataError: a column is unknown or used twice, its bounds are no codes, or there are too many of them.
        """
        for name in (*names, *([group] if group else [])):
            if name not in schema.columns:
                raise unknown("column", name, "the data", schema.columns)
        described = tuple(name for name in names if name != group)
        if not described:
            raise DataError(f"no column beside the group {group!r}; name one to describe")
        ends = {name: schema.bounds[name] for name in (*names, *([group or names[0]]))}
        listed = {name for name, given in ends.items() if (given.lower, given.upper) == (0, 1)}
        if codes is not None:
            listed = {part.strip() for part in codes.split(",") if part.strip()}
            for name in sorted(listed):
                if name not in ends:
                    raise unknown("column of codes", name, "the data", list(ends))
        listed |= {name for name, given in ends.items() if given.labels}
        for name in described:
            if name in listed:
                _require_codes(name, ends[name], CODES_MAX)
        if group is not None:
            _require_codes(group, ends[group], GROUPS_MAX)
        coded = tuple(name in listed for name in described)
        of_group = None if group is None else ends[group]
        return cls(described, coded, tuple(ends[name] for name in described), group, of_group)

    @property
    def groups(self) -> int:
        """The number of groups."""
        return 1 if self.of_group is None else int(self.of_group.upper - self.of_group.lower) + 1

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the groups, such as "arm 0" or "arm=placebo"; "all" without groups."""
        if self.group is None or self.of_group is None:
            return ("all",)
        return tuple(self.of_group.level(self.group, self.of_group.lower + place) for place in range(self.groups))

    def statistic(self, levels: int = LEVELS) -> Table:
        """Return the statistic of the one round, with its weights.

        Args:
            levels: of the bins of numbers; 0 for means and standard deviations without quantiles.
        """
        grouped = self.groups > 1
        c = GROUPED_BOUND if grouped else FREE_BOUND
        moments = round(_FINE * sqrt((1 / _SD / c) / (2 * c)))
        bins = round(_FINE * sqrt(2 * _CUMULATIVE / sqrt(2 * LEVELS))) if levels else 0
        codes = round(_FINE * sqrt(2 / sqrt(2)))
        room = levels * bins**2 + moments**2 * (3 * c**2 - c**4 / 4)
        if grouped:
            room = moments**2 * (c**2 - c**4 / 4)
        return Table(
            columns=(*self.names, *([self.group] if self.group else [])),
            lower=tuple(ends.lower for ends in self.bounds),
            upper=tuple(ends.upper for ends in self.bounds),
            coded=self.coded,
            levels=levels,
            groups=self.groups,
            first_group=0 if self.of_group is None else int(self.of_group.lower),
            moment_weight=moments,
            bin_weight=bins or 1,
            number_count_weight=floor(sqrt(room)),
            code_weight=codes,
            code_count_weight=0 if grouped else codes,
        )


def purpose(statistic: Table) -> str:
    """Return the parts of the budget, as text, such as "mean and sd 13 % and quartiles 10 % of each of 4 columns"."""
    c, b = statistic.reach, statistic.bin_weight
    moments, bins = 4 * (c * statistic.moment_weight) ** 2, 2 * b**2 * len(statistic.level_bins)
    codes, coded = 2.0 * statistic.code_weight**2, sum(statistic.coded)
    numbers = len(statistic.coded) - coded
    whole = numbers * (moments + bins) + coded * codes
    parts = []
    if numbers:
        quartiles = f" and {percent(bins / whole)} on quartiles" if bins else ""
        parts.append(
            f"{percent(moments / whole)} on mean and sd{quartiles} of each of {counted(numbers, 'column')} of numbers"
        )
    if coded:
        parts.append(f"{percent(codes / whole)} on shares of each of {counted(coded, 'column')} of codes")
    return ", ".join(parts)


def _require_codes(name: str, ends: Interval, most: int) -> None:
    """Raise `DataError` unless bounds are those of few codes."""
    low, high = ends.lower, ends.upper
    if not (low == int(low) and high == int(high) and high - low < most):
        raise DataError(
            f"column {name!r} has bounds {low:g}:{high:g}; expected those of at most {most} whole numbers, one for "
            "each code, as in 0:3 for four; of texts, list the labels"
        )
