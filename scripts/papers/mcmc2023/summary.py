"""Tables 1 and 2 from their cells: means and intervals, as plain data, as tables, and held against the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from dca_proto.privacy.rounding import at_least
from emulator.experiments.runner import Check, table
from inference.bounds import PUBLISHED_WITH_ROWS
from papers.mcmc2023.data import BIKE, DATA_SETS, POWER_PLANT, PUBLISHED, REAL, ROAD, VALID
from papers.mcmc2023.fits import SAMPLERS, interval
from papers.mcmc2023.paper import FAST, METHODS, NODES, TABLES, Printed
from papers.mcmc2023.tables import EPSILON, NON_PRIVATE, ZERO, Cell
from papers.mcmc2023.tables import METHODS as ALL

LEAST_SQUARES_POWER_PLANT = 0.01269
FIRST_CELL = (0.0128, 0.0130)
_TITLES = {
    PUBLISHED: "as published, NOT private as claimed: mean squared error of predictions",
    VALID: "valid: mean squared error of predictions, in the published unit of the target",
}
_ROAD_SAID = "3droad could not be had: rows of its number and width are simulated in its place."
DIGITS = 4


@dataclass(frozen=True)
class Found:
    """A cell with what became of it: mean and 90 % interval over its repeats, and all else that its work reported."""

    cell: Cell
    mean: float
    low: float
    high: float
    result: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, int, str]:
        """As in the paper's tables."""
        return self.cell.name, self.cell.nodes, self.cell.method


def gathered(cells: Sequence[Cell], results: Sequence[Mapping[str, Any]]) -> list[Found]:
    """All cells with their results."""
    found = []
    for cell, result in zip(cells, results, strict=True):
        errors = np.array(result["errors"])
        found.append(Found(cell, float(errors.mean()), *interval(errors), result))
    return found


def figures(found: Sequence[Found]) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    return {
        "kind": "mcmc-tables",
        "epsilon": EPSILON,
        "delta": "1 / rows learnt from",
        "interval": "90 %, Student's t over repeats",
        "chains": "one for each repeat, half of its iterations warm-up; all repeats in one call",
        "3droad": _ROAD_SAID,
        "not_private_because": {BIKE: [PUBLISHED_WITH_ROWS]},
        "cells": [
            {
                "setting": one.cell.setting,
                "data": one.cell.name,
                "nodes": one.cell.nodes,
                "method": one.cell.method,
                "mean": one.mean,
                "low": one.low,
                "high": one.high,
                "printed": TABLES[one.key]._asdict() if _is_printed(one) else None,
                **one.result,
            }
            for one in found
        ],
    }


def _is_printed(one: Found) -> bool:
    return one.cell.setting == PUBLISHED and one.key in TABLES


def tables(found: Sequence[Found]) -> list[Table]:
    """One of each setting, with the paper's figures below ours in the published one."""
    settings = dict.fromkeys(one.cell.setting for one in found)
    return [_table(setting, [one for one in found if one.cell.setting == setting]) for setting in settings]


def _table(setting: str, found: Sequence[Found]) -> Table:
    methods = [method for method in ALL if any(one.cell.method == method for one in found)]
    made = table(f"{_TITLES[setting]}, ε = {at_least(EPSILON)}", "data, J", *methods)
    by_key = {one.key: one for one in found}
    for name in dict.fromkeys(one.cell.name for one in found):
        made.add_section()
        for nodes in dict.fromkeys(one.cell.nodes for one in found if one.cell.name == name):
            row = [by_key.get((name, nodes, method)) for method in methods]
            made.add_row(f"{name}, J = {nodes}", *("" if one is None else _shown(one) for one in row))
            if setting == PUBLISHED:
                printed = [TABLES.get((name, nodes, method)) for method in methods]
                made.add_row("  the paper", *("" if one is None else _printed(one) for one in printed), style="dim")
    if any(one.cell.name == ROAD for one in found):
        made.caption, made.caption_justify = _ROAD_SAID, "left"
    return made


def _shown(one: Found) -> str:
    if one.cell.method in (ZERO, NON_PRIVATE) and one.cell.setting == PUBLISHED:
        return f"{one.mean:.4f}"
    return f"{one.mean:.4f} [{one.low:.4f}, {one.high:.4f}]"


def _printed(one: Printed) -> str:
    return f"{one.mean:.4f} [{one.low:.4f}, {one.high:.4f}]"


def checks(found: Sequence[Found]) -> list[Check]:
    """What the tables must show, of the cells that there are."""
    published = {one.key: one for one in found if one.cell.setting == PUBLISHED}
    valid = {one.key: one for one in found if one.cell.setting == VALID}
    return [*_against_paper(published), *_first_cell(published), *_useful(valid)]


def _against_paper(published: Mapping[tuple[str, int, str], Found]) -> Iterator[Check]:
    for method in METHODS:
        keys = [(name, nodes, method) for name in REAL for nodes in NODES if (name, nodes, method) in published]
        if not keys:
            continue
        missed = [key for key in keys if not is_near(published[key].mean, TABLES[key])]
        words = [f"{len(keys) - len(missed)} of {len(keys)}", *(_miss(published[key]) for key in missed)]
        asked = "means in Table 2's intervals, widened by their width at both ends"
        yield Check(f"{method}, as published", asked, "; ".join(words), not missed)


def is_near(mean: float, printed: Printed) -> bool:
    """Whether a mean, rounded as printed, lies in the printed interval or within its width of it."""
    low, high = widened(printed)
    return low <= round(mean, DIGITS) <= high


def widened(printed: Printed) -> tuple[float, float]:
    """The printed interval with its width added at both ends."""
    width = printed.high - printed.low
    return round(printed.low - width, DIGITS), round(printed.high + width, DIGITS)


def _miss(one: Found) -> str:
    low, high = widened(TABLES[one.key])
    name, nodes, _ = one.key
    return f"{name}, J = {nodes}: {one.mean:.4f}, asked {low:.4f} to {high:.4f}"


def _first_cell(published: Mapping[tuple[str, int, str], Found]) -> Iterator[Check]:
    low, high = FIRST_CELL
    own = [one for key, one in published.items() if key[:2] == (POWER_PLANT, 1) and key[2] in (*SAMPLERS, FAST)]
    if own:
        means = [round(one.mean, DIGITS) for one in own]
        holds = all(low <= mean <= high for mean in means)
        found = f"{min(means):.4f} to {max(means):.4f}"
        yield Check("power plant at J = 1, all but adaSSP", f"{low:.4f} to {high:.4f}", found, holds)
    if exact := published.get((POWER_PLANT, 1, NON_PRIVATE)):
        close = abs(exact.mean - LEAST_SQUARES_POWER_PLANT) < 5e-6
        yield Check("power plant without privacy", f"{LEAST_SQUARES_POWER_PLANT}", f"{exact.mean:.5f}", close)


def _useful(valid: Mapping[tuple[str, int, str], Found]) -> Iterator[Check]:
    for name in DATA_SETS:
        own = [one for key, one in valid.items() if key[:2] == (name, 1) and key[2] in (*SAMPLERS, FAST)]
        zero = valid.get((name, 1, ZERO))
        if own and zero:
            worst = max(own, key=lambda one: one.mean)
            found = f"{worst.mean:.4f} at most ({worst.cell.method})"
            asked = f"below the zero predictor, {zero.mean:.4f}"
            yield Check(f"valid, {name}, J = 1", asked, found, worst.mean < zero.mean)
