#!/usr/bin/env python3
"""Counts the requests that get a result although Compute nodes are lost or rebooted, in virtual time.

Each scenario has one request of 8 clients, M Compute nodes and a stated p. `emulator/trials/losses.py` draws it, and
checks invariants 1, 2, 4, 7, 8 and 11 as well. Five tables:

    lost      0 to M - (p + 1) nodes are lost for good, at random times and phases
    rebooted  every node is rebooted once, and is back after 5 to 90 s; p = M - 1
    late      a node that has stored its answer comes back after the announced end; p = M - 1. Then there is a
              result, or all charges have come back
    absent    M - p nodes are down when the request comes, so p are left, too few by one. It ends within a minute
    stranded  so many are lost during the request, and are back after 20 minutes. At p = M - 1, it states that it waits
              45 s (`wait_s`). It ends within a minute of the last loss, and all charges come back

The scenarios of all rows run side by side, in blocks. So a run that was interrupted has equally many of each row:
with its `--journal`, a smaller `--scenarios` shows them at once, and a larger one goes on. `--only` and `--computes`
choose rows.

Without a result, *end* is the time from the last loss, or else from the request, to the end of the request.

*Skew*: a node was lost after its answer had left and before its sum had reached the trainer. *Race*: a silent node came
back as the trainer cancelled. Both can cost a request its result. Exit code 4 if a request without one of these has no
result, if a client bears two charges for a result or one for none, if a request with too few nodes takes more than a
minute to end, or if an invariant breaks.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import msgspec
from rich.table import Table

from dca_proto.errors import UsageError
from emulator.trials.losses import ABSENT, LATE, LOST, REBOOTED, STRANDED, Fate, LossScenario, fate_of
from papers.experiment import Experiment, Result, option
from papers.runner import Check, positive, table

SIZES = ((3, 2), (3, 1), (4, 1), (5, 2), (7, 3))
BLOCK = 20
MINUTE_MS = 60_000


class Row(NamedTuple):
    """A row of a table: what strikes, M, p, and how many nodes."""

    strikes: str
    computes: int
    colluding: int
    nodes: int


class Cell(NamedTuple):
    """Some scenarios of one row: their first seed, and how many."""

    row: Row
    first: int
    count: int


ROWS = (
    *(Row(LOST, m, p, lost) for m, p in SIZES for lost in range(m - p)),
    *(Row(REBOOTED, m, m - 1, m) for m in (2, 3, 4, 5)),
    *(Row(LATE, m, m - 1, 1) for m in (2, 3, 4)),
    *(Row(strikes, m, p, m - p) for strikes in (ABSENT, STRANDED) for m, p in SIZES),
)


@dataclass(frozen=True, kw_only=True)
class Availability(Experiment[Cell, dict[Row, list[Fate]]]):
    __doc__ = __doc__
    KIND, LABEL, QUICK_CHECKS, DEPENDS = "check-availability", "scenarios", True, ("seed",)
    QUICK: ClassVar = {"scenarios": 20}

    scenarios: int = option(1_000, "scenarios of each row", type=positive)
    only: str | None = option(None, "the rows of one kind", choices=(LOST, REBOOTED, LATE, ABSENT, STRANDED))
    computes: int | None = option(None, "the rows of so many Compute nodes (M)", type=positive)

    @property
    def rows(self) -> list[Row]:
        chosen = [row for row in ROWS if self.only in (None, row.strikes) and self.computes in (None, row.computes)]
        if not chosen:
            raise UsageError(f"no row of --only {self.only} has {self.computes} Compute nodes; choose others")
        return chosen

    def cells(self) -> list[Cell]:
        first, end = self.seed, self.seed + self.scenarios
        starts = range(first, end, BLOCK)
        return [Cell(row, start, min(BLOCK, end - start)) for start in starts for row in self.rows]

    def work(self, cell: Cell) -> Result:
        (strikes, *size, nodes), seeds = cell.row, range(cell.first, cell.first + cell.count)
        fates = [fate_of(LossScenario(*size, strikes, nodes, seed)) for seed in seeds]
        return {"fates": msgspec.to_builtins(fates, str_keys=True)}

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> dict[Row, list[Fate]]:
        found: dict[Row, list[Fate]] = {row: [] for row in self.rows}
        for cell, result in zip(cells, results, strict=True):
            found[cell.row] += msgspec.convert(result["fates"], list[Fate], strict=False)
        return found

    def notes(self, found: dict[Row, list[Fate]]) -> dict[str, Any]:
        return {"rows": [{**row._asdict(), **_figures(fates)} for row, fates in found.items()]}

    def tables(self, found: dict[Row, list[Fate]]) -> Iterator[Table]:
        for strikes in dict.fromkeys(row.strikes for row in found):
            heads = ("M", "p", "nodes", "requests", "with a result", "without, in the skew", "without, in a race",
                     "without, else", "skew", "race", "repeats", "wait, median s", "worst s",
                     "end, median s", "worst s")  # fmt: skip
            shown = table(_TITLES.get(strikes, f"nodes {strikes}"), *heads)
            for row, fates in found.items():
                if row.strikes == strikes:
                    one = _figures(fates)
                    total, shares = len(fates), ("skew", "race")
                    shown.add_row(
                        *map(str, row[1:]), str(total), *(str(one[name]) for name in _COUNTS),
                        *(f"{100 * one[name] / total:.1f} %" for name in shares), f"{one['repeats']:.2f}",
                        *(f"{one[name]:.1f}" if one[name] is not None else "" for name in _TIMES),
                    )  # fmt: skip
            yield shown

    def checks(self, found: dict[Row, list[Fate]]) -> Iterator[Check]:
        everything = [(row, fate) for row, fates in found.items() for fate in fates]
        lost = [(row, fate) for row, fate in everything if not (fate.has_result or _is_excused(row, fate))]
        slow = [(row, fate) for row, fate in everything if _is_slow(row, fate)]
        yield Check("requests with too few nodes", "end within a minute", _first(slow), not slow)
        yield Check("requests outside skew and race", "all have a result", _first(lost), not lost)
        twice = [(row, fate) for row, fate in everything if fate.has_result and max(fate.charges) > 1]
        yield Check("charges of a result", "one a client", _first(twice), not twice)
        vain = [(row, fate) for row, fate in everything if not (fate.has_result or fate.skew) and fate.charges[1]]
        yield Check("charges without a result", "none", _first(vain), not vain)
        broken = [(row, fate) for row, fate in everything if fate.broken]
        yield Check("invariants", "none breaks", _first(broken), not broken)


def _is_slow(row: Row, fate: Fate) -> bool:
    """Return True if a request takes more than a minute to end with too few nodes."""
    if row.strikes == STRANDED and not (fate.has_result or fate.is_excused):
        return (fate.left_ms or 0) > MINUTE_MS
    return row.strikes == ABSENT and fate.taken_ms > MINUTE_MS


def _is_excused(row: Row, fate: Fate) -> bool:
    """Return True if a request may lack a result: of a node that is back too late, if all charges have come back."""
    if row.strikes == ABSENT:
        return fate.charges == (0, 0)
    if row.strikes == STRANDED:
        return fate.is_excused or not fate.charges[1]
    return fate.is_excused if row.strikes == LOST else row.strikes == LATE and (fate.skew or not fate.charges[1])


_TITLES = {LATE: "nodes back after the end", ABSENT: "too few nodes are up", STRANDED: "too few nodes are left"}
_TIMES = ("wait_s", "worst_s", "end_s", "last_s")
_COUNTS = ("results", "in_skew", "in_race", "unexcused")


def _figures(fates: list[Fate]) -> dict[str, Any]:
    """Return the figures of a row."""
    without = [fate for fate in fates if not fate.has_result]
    waits = [fate.wait_ms / 1000 for fate in fates if fate.wait_ms is not None]
    ends = [(fate.taken_ms if fate.left_ms is None else fate.left_ms) / 1000 for fate in without if not fate.is_excused]
    return {
        "requests": len(fates),
        "results": len(fates) - len(without),
        "in_skew": sum(fate.skew for fate in without),
        "in_race": sum(fate.race and not fate.skew for fate in without),
        "unexcused": sum(not fate.is_excused for fate in without),
        "skew": sum(fate.skew for fate in fates),
        "race": sum(fate.race for fate in fates),
        "repeats": statistics.fmean(fate.repeats for fate in fates),
        "wait_s": statistics.median(waits) if waits else None,
        "worst_s": max(waits, default=None),
        "end_s": statistics.median(ends) if ends else None,
        "last_s": max(ends, default=None),
        "taken_s": max(fate.taken_ms for fate in fates) / 1000,
    }


def _first(cases: list[tuple[Row, Fate]]) -> str:
    """Describe the first case, and count the others."""
    if not cases:
        return "all"
    row, fate = cases[0]
    what = "; ".join(fate.broken.values()) or fate.reason or f"{max(fate.charges)} charges"
    return f"{len(cases)}, first {row.strikes} M = {row.computes}, p = {row.colluding}, {row.nodes}: {what[:120]}"


if __name__ == "__main__":
    sys.exit(Availability.main())
