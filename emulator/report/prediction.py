"""What a scaling sweep says beyond its cells: how figures grow, what a larger round would take, how far off that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from emulator.report.bars import Bar, bars
from emulator.report.figures import UNKNOWN, count, number, percent, seconds, size
from emulator.report.markup import Child, element, table
from emulator.report.page import note
from emulator.report.types import Amount, Count, Real

_ROWS_MAX = 200
_ROUGH = "key agreement"


class Exponent(msgspec.Struct, frozen=True):
    """An exponent and its 95 % interval."""

    value: Real
    interval: tuple[Real, Real]


class Growth(msgspec.Struct, frozen=True):
    """A power law; `spread` is about the relative error of a cell."""

    exponents: dict[str, Exponent]
    cells: Count
    spread: Amount


class HeldOut(msgspec.Struct, frozen=True):
    """A figure of a cell that was measured and not fitted; `error` is predicted / measured - 1."""

    clients: Count
    dimension: Count
    computes: Count
    quantity: str
    measured: Amount
    predicted: Amount
    error: Real


class Figure(msgspec.Struct, frozen=True):
    """A predicted figure and its 95 % interval."""

    value: Amount
    interval: tuple[Amount, Amount]


class Role(msgspec.Struct, frozen=True):
    """What the actors of a role take in a round, together and each."""

    actors: Count
    core_s: Figure
    core_s_each: Amount
    bytes_each: Amount
    messages: Amount
    memory_bytes_each: Amount | None = None
    machines: Count | None = None
    tightest: str = ""


class Broker(msgspec.Struct, frozen=True):
    """What passes through the broker."""

    messages_s: Amount
    bytes_s: Amount
    machines: Count
    tightest: str = ""


class Prediction(msgspec.Struct, frozen=True):
    """A round that is too large for the machine that measured."""

    clients: Count
    dimension: Count
    computes: Count
    round_s: Amount
    roles: dict[str, Role]
    broker: Broker
    assumptions: list[str]
    agreement_s: Amount | None = None


def predicted(found: Prediction | None) -> Iterator[Child]:
    """What a round of another size would take."""
    if found is None:
        return
    yield note(
        f"A round of N = {count(found.clients)}, d = {count(found.dimension)}, M = {count(found.computes)} in "
        f"{seconds(found.round_s)}; intervals hold 95 of 100 refits of the costs, and say nothing of other terms."
    )
    rows = [_role(name, one) for name, one in found.roles.items()]
    rows.append(
        ("broker", UNKNOWN, UNKNOWN, f"{size(found.broker.bytes_s)}/s", UNKNOWN, count(found.broker.machines),
         found.broker.tightest)
    )  # fmt: skip
    header = ("role", "actors", "core time, all", "bytes, each", "memory, each", "machines", "decided by")
    yield table(header, rows, text_columns=(0, 6))
    yield note(f"The broker passes {count(round(found.broker.messages_s))} messages a second, in and out.")
    if found.agreement_s is not None:
        yield note(f"The first round of an epoch takes roughly {seconds(found.agreement_s)} more, to agree on keys.")
    core = [Bar(name, one.core_s.value, seconds(one.core_s.value)) for name, one in found.roles.items()]
    yield bars(core, caption="Predicted core time by role, all its actors together.")
    if found.assumptions:
        yield element("h3", "Assumed")
        yield element("ul", *(element("li", one) for one in found.assumptions[:_ROWS_MAX]))


def _role(name: str, one: Role) -> Sequence[Child]:
    low, high = one.core_s.interval
    core = element(
        "span", seconds(one.core_s.value), element("br"), element("small", f"{seconds(low)} to {seconds(high)}")
    )
    machines = "their own" if one.machines is None else count(one.machines)
    return name, count(one.actors), core, size(one.bytes_each), size(one.memory_bytes_each), machines, one.tightest


def growth(fits: Mapping[str, Growth]) -> Iterator[Child]:
    """Exponents of N, d and M."""
    symbols = list(dict.fromkeys(symbol for one in fits.values() for symbol in one.exponents))
    rows = [
        [_name(figure), *(_exponent(one.exponents.get(symbol)) for symbol in symbols), percent(one.spread),
         count(one.cells)]
        for figure, one in fits.items()
    ]  # fmt: skip
    if rows:
        yield table(("", *(f"exponent of {symbol}" for symbol in symbols), "residuals", "cells"), rows)
        yield note(
            "Fitted powers of the sizes measured, with 95 % intervals; at 1, twice the size takes twice as much."
        )


def _exponent(one: Exponent | None) -> Child:
    if one is None:
        return UNKNOWN
    low, high = one.interval
    both = element("small", f"{number(low, 2)} to {number(high, 2)}")
    return element("span", number(one.value, 2), element("br"), both)


def _name(figure: str) -> str:
    return {"wall_s": "wall time", "core_s": "core time"}.get(figure, figure)


def held_out(cells: Sequence[HeldOut]) -> Iterator[Child]:
    """Predicted beside measured, for cells that the fit had not seen."""
    rows = [
        (_size(one), count(one.computes), one.quantity, _figure(one, one.measured), _figure(one, one.predicted),
         ("+" if one.error > 0 else "") + number(100 * one.error, 2) + "\u00a0%")
        for one in cells[:_ROWS_MAX]
    ]  # fmt: skip
    if rows:
        sure = [abs(one.error) for one in cells if not one.quantity.startswith(_ROUGH)]
        most = f": off by at most {percent(max(sure))}, key agreement aside" if sure else ""
        yield note(f"The largest cells, predicted from the others{most}.")
        yield table(("N × d", "M", "figure", "measured", "predicted", "error"), rows, text_columns=(0, 2))


def _size(one: HeldOut) -> Child:
    return element("span", f"{count(one.clients)} × {count(one.dimension)}", class_="whole")


def _figure(one: HeldOut, value: float) -> str:
    if one.quantity == "messages":
        return count(round(value))
    return seconds(value) if "seconds" in one.quantity else size(value)
