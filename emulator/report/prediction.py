"""A scaling sweep's predictions: how figures grow, what a larger round takes, and the error of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from emulator.report.blocks import Block, Cell, Heading, Items, Note, Table, table
from emulator.report.figures import UNKNOWN, count, percent, seconds, size
from emulator.scaling.costs import Exponent, Growth, HeldOut
from emulator.scaling.predict import Prediction, RoleNeed

_ROUGH = ("key agreement", "session")


def predicted(found: Prediction | None) -> Iterator[Block]:
    """What a round of another size would take."""
    if found is None:
        return
    yield Note(
        f"A round of N = {count(found.clients)}, d = {count(found.dimension)}, M = {count(found.computes)} in "
        f"{seconds(found.round_s)}. Intervals hold 95 of 100 refits of the costs, and say nothing of other terms."
    )
    broker = found.broker
    header = ("role", "actors", "core time, all", "bytes, each", "memory, each", "machines")
    machines = Cell(count(broker.machines), broker.tightest)
    passed = ("broker", UNKNOWN, UNKNOWN, f"{size(broker.bytes_s)}/s", UNKNOWN, machines)
    yield Table(header, [*(_role(name, one) for name, one in found.roles.items()), passed])
    yield Note(f"The broker passes {count(round(broker.messages_s))} messages a second, in and out.")
    if found.agreement_s is not None and found.sessions_s is not None:
        agreed, sessions = seconds(found.agreement_s), seconds(found.sessions_s)
        yield Note(f"Once an epoch, roughly {agreed} of core time go to agree on keys, and {sessions} to sessions.")
    if found.assumptions:
        yield Heading("Assumed")
        yield Items(found.assumptions)


def _role(name: str, one: RoleNeed) -> Sequence[str | Cell]:
    low, high = one.core_s.interval
    core = Cell(seconds(one.core_s.value), f"[{seconds(low)}, {seconds(high)}]")
    machines = Cell("their own" if one.machines is None else count(one.machines), one.tightest)
    return name, count(one.actors), core, size(one.bytes_each), size(one.memory_bytes_each), machines


def growth(fits: Mapping[str, Growth]) -> list[Block]:
    """Exponents of N, d and M."""
    symbols = list(dict.fromkeys(symbol for one in fits.values() for symbol in one.exponents))
    rows = [
        (_name(figure), *(_exponent(one.exponents.get(symbol)) for symbol in symbols), percent(one.spread),
         count(one.cells))
        for figure, one in fits.items()
    ]  # fmt: skip
    if not rows:
        return []
    told = "Fitted powers of the sizes measured, with 95 % intervals in brackets; at 1, twice the size takes twice as "
    header = ("", *(f"exponent of {symbol}" for symbol in symbols), "residuals", "cells")
    return [Table(header, rows), Note(f"{told}much.")]


def _exponent(one: Exponent | None) -> str | Cell:
    if one is None:
        return UNKNOWN
    low, high = (f"{end:.2f}".replace("-", "−") for end in one.interval)
    return Cell(f"{one.value:.2f}".replace("-", "−"), f"[{low}, {high}]")


def _name(figure: str) -> str:
    return {"wall_s": "wall time", "core_s": "core time"}.get(figure, figure)


def held_out(cells: Sequence[HeldOut]) -> list[Block]:
    """Predicted beside measured, for cells that the fit had not seen."""
    sure = [abs(one.error) for one in cells if not one.quantity.startswith(_ROUGH)]
    most = f": off by at most {percent(max(sure))}, sessions and key agreement aside" if sure else ""
    return table(
        cells,
        {
            "N × d": lambda one: f"{count(one.clients)} × {count(one.dimension)}",
            "M": lambda one: count(one.computes),
            "figure": lambda one: one.quantity,
            "measured": lambda one: _figure(one, one.measured),
            "predicted": lambda one: _figure(one, one.predicted),
            "error": lambda one: percent(round(one.error, 4), signed=True),
        },
        note=f"The largest cells, predicted from the others{most}.",
    )


def _figure(one: HeldOut, value: float) -> str:
    if "messages" in one.quantity:
        return count(round(value))
    return seconds(value) if "seconds" in one.quantity else size(value)
