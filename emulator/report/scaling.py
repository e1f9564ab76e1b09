"""The page of a scaling sweep: round times against Table 1 of the DCA paper, where time goes, growth, predictions.

Terminals show the page's tables and warnings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from dca_proto.report.blocks import (
    Block,
    Folded,
    Heading,
    Line,
    Note,
    Page,
    PageTable,
    Section,
    StyledCell,
    as_json,
    fields,
    roles_table,
    settings,
    table,
)
from dca_proto.report.charts import Axis, Curve, bars, lines
from dca_proto.report.formats import MIB, UNKNOWN, count, number, percent, seconds, short, size
from dca_proto.results.round import Traffic
from dca_proto.wording import counted, with_minus
from emulator.scaling.cell import Size
from emulator.scaling.costs import CLAIMED, Growth, HeldOut, verdict
from emulator.scaling.figures import ROLES, Figures
from emulator.scaling.predict import BrokerNeed, Prediction, RoleNeed
from emulator.scaling.record import Scaling

_TONES, _GROUPS_MAX = 6, 12
_NAMES = {"client": "clients", "compute": "Compute nodes"}
_PAPER = "the DCA paper's Table 1, each d in its colour"
_ERRORS = {
    "client": "client core seconds",
    "nodes": "compute core seconds",
    "trainer": "trainer core seconds",
    "msgs": "compute messages",
    "bytes": "compute bytes",
    "memory": "compute memory",
    "keys": "key agreement core seconds",
    "hellos": "session core seconds",
}
"""Quantity by column of the table of held-out cells."""
Columns = dict[str, Callable[[Figures], str | StyledCell]]


def page(run: Scaling) -> Page:
    """Return the page of a scaling sweep."""
    compared = [cell for cell in run.cells if cell.paper_s]
    faster = sum(cell.wall_s < (cell.paper_s or 0) for cell in compared)
    base = base_cells(run.cells)
    sections: list[Section] = [
        ("Seconds of a round", [*_curves(run.cells), *rounds(base)]),
        ("Set-up and memory", setup(base)),
        ("Where time goes", [*uses(base), *_largest(run.cells)]),
        ("Drop-outs and noise", [*_swept(run.cells), *dropouts(run.cells)]),
        ("Beyond this machine", predicted(run.prediction) if run.prediction else []),
        ("How it grows", growth(run.fits)),
        ("Measured, not fitted", [*held_out(run.held_out), *_each_held_out(run.held_out)]),
        ("Costs fitted", as_json("each cost, as JSON", run.calibration)),
        ("How it was measured", [*fields(run.options), *fields(run.machine), *fields(run.versions)]),
    ]
    return Page(
        kind="How rounds scale",
        title=_title(run.cells, compared, faster),
        badge=f"{count(faster)} of {count(len(compared))} faster than the paper" if compared else "measured",
        verdict="good" if compared and faster == len(compared) else "neutral",
        answer=_answer(run.cells),
        facts=[*_facts(run.cells, compared)],
        sections=sections,
        warnings=run.warnings,
    )


def _title(cells: Sequence[Figures], compared: Sequence[Figures], faster: int) -> str:
    if not cells:
        return "No cell was measured"
    largest = max(cells, key=lambda cell: cell.clients * cell.dimension)
    result = f"{count(largest.clients)} clients sum {counted(largest.dimension, 'value')} in {seconds(largest.wall_s)}"
    if largest.first_round_wall_s is not None:
        result += f", {seconds(largest.first_round_wall_s)} with key agreement"
    if not compared:
        return result
    which = "all" if faster == len(compared) else f"{count(faster)} of"
    which = f"{which} {counted(len(compared), 'measured cell')}"
    return f"{result}; {which} of the paper's Table 1 {'is' if faster == 1 else 'are'} faster here"


def _answer(cells: Sequence[Figures]) -> str:
    if not cells:
        return "The sweep may have been interrupted before its first cell was done."
    backends, rounds_total = sorted({cell.backend for cell in cells}), sum(cell.repeats for cell in cells)
    return (
        f"{counted(len(cells), 'cell')}, {counted(rounds_total, 'round')} in all, on backend {' and '.join(backends)}. "
        "Times are medians over a cell's rounds, with encryption, signatures and exact noise. Pairs agree on keys in "
        "the first round of a day, which is timed separately. A process that runs many clients verifies an "
        "announcement once for all of them."
    )


def _facts(cells: Sequence[Figures], compared: Sequence[Figures]) -> Iterator[Line]:
    def ends(values: Sequence[int]) -> str:
        low, high = min(values), max(values)
        return count(low) if low == high else f"{count(low)} to {count(high)}"

    if not cells:
        return
    yield "clients (N)", ends([cell.clients for cell in cells])
    yield "values per sum (d)", ends([cell.dimension for cell in cells])
    yield "Compute nodes (M)", ends([cell.computes for cell in cells])
    yield "peak memory", size(max(cell.peak_rss_mb for cell in cells) * MIB)
    gains = [cell.paper_s / cell.wall_s for cell in compared if cell.paper_s and cell.wall_s]
    if gains:
        yield "speed relative to the paper", f"{number(min(gains), 2)} to {number(max(gains), 2)} times"


# --- tables of cells --------------------------------------------------------------------------------------------------


def base_cells(cells: Sequence[Figures]) -> list[Figures]:
    """Return, for each N, d and M, the cell with the lowest drop rate and, among equals, the lowest T."""
    base: dict[tuple[int, int, int], Figures] = {}
    for cell in sorted(cells, key=lambda cell: (cell.drop_rate, cell.tolerate)):
        base.setdefault((cell.clients, cell.dimension, cell.computes), cell)
    return list(base.values())


def rounds(cells: Sequence[Figures]) -> list[Block]:
    """Return a table of round times, without and with key agreement, and the paper's."""
    columns: Columns = {
        **_SIZE,
        "wall": lambda cell: number(cell.wall_s),
        "with keys": lambda cell: number(cell.first_round_wall_s),
        "spread": lambda cell: "–".join(number(end) for end in cell.spread),
        "agree": lambda cell: number(cell.phases.get("agree"), 2),
        "core": lambda cell: number(cell.core_s),
        "paper": lambda cell: UNKNOWN if cell.paper_s is None else short(cell.paper_s, 6),
        "ratio": _ratio,
    }
    note = '"Wall" is the median wall time of a round, "spread" its range. "With keys" is the first round of an epoch, '
    note += 'in which pairs agree on keys. "Agree" lasts from the close to the result.'
    if any(cell.paper_s for cell in cells):
        note += " A ratio below 1 is faster than the paper's Table 1, which ran on a Spark cluster without encryption."
    return table(cells, columns, title="seconds of a round", note=note)


def _ratio(cell: Figures) -> str | StyledCell:
    if not cell.paper_s:
        return UNKNOWN
    return StyledCell(number(cell.wall_s / cell.paper_s, 2), tone="good" if cell.wall_s < cell.paper_s else "bad")


def uses(cells: Sequence[Figures]) -> list[Block]:
    """Return a table of the core time per contribution, against the floor, and of a client's traffic."""

    def us(role: str) -> Callable[[Figures], str]:
        def say(cell: Figures) -> str:
            used, floor = (cell.us_per_contribution or {}).get(role), cell.floor_us.get(role)
            return UNKNOWN if used is None else f"{number(used, 2)}{f' ({number(floor, 2)})' if floor else ''}"

        return say

    def per_client(figure: str, say: Callable[[float], str]) -> Callable[[Figures], str]:
        def mean(cell: Figures) -> str:
            by_role: dict[str, float] = getattr(cell, figure) or {}
            return say(by_role["client"] / max(cell.clients, 1)) if "client" in by_role else UNKNOWN

        return mean

    others = sorted({role for cell in cells for role in cell.core_s_by_role} - {*ROLES})
    columns: Columns = {
        **_SIZE,
        "client": us("client"),
        "node": us("compute"),
        **{role: us(role) for role in others},
        "msgs\nout": per_client("messages", short),
        "msgs\nin": per_client("received", short),
        "bytes\nout": per_client("bytes", size),
        "bytes\nin": per_client("received_bytes", size),
        "bytes\nall": lambda cell: size(math.fsum(cell.bytes.values())) if cell.bytes else UNKNOWN,
    }
    note = "Core time is in microseconds; brackets hold the bare cryptography. Messages and bytes in and out are those "
    note += "of one client; the last column is all bytes sent."
    return table(cells, columns, title="core time of a contribution, and traffic", note=note)


def setup(cells: Sequence[Figures]) -> list[Block]:
    """Return a table of the work done once an epoch, and of memory."""
    columns: Columns = {
        **_SIZE,
        "sessions": lambda cell: number(cell.sessions_wall_s),
        "core": lambda cell: number(cell.sessions_s),
        "keys": lambda cell: number(cell.agreement_s),
        "peak": lambda cell: size(cell.peak_rss_mb * MIB),
        "node": lambda cell: size(cell.compute_memory_bytes),
        "least": lambda cell: size(cell.compute_memory_least_bytes),
        "after": lambda cell: size(cell.compute_memory_after_bytes),
    }
    note = '"Sessions" is the seconds until all sessions exist, "core" the core seconds that this takes, and "keys" '
    note += 'the core seconds for key agreement, all once an epoch, which is a day. "Node" is the peak memory of a '
    note += 'Compute node, "least" the contributions in it, and "after" what remains after the round.'
    weighed = [cell for cell in cells if cell.compute_memory_bytes and cell.compute_memory_least_bytes and cell.clients]
    blocks = table(cells, columns, title="set-up and memory", note=note)
    largest = max(weighed, key=lambda cell: (cell.clients, cell.dimension), default=None)
    return [*blocks, *([] if largest is None else [Note(_memory_of_node(largest))])]


def _memory_of_node(cell: Figures) -> str:
    peak, contributions, after = (
        size(round((value or 0) / cell.clients))
        for value in (cell.compute_memory_bytes, cell.compute_memory_least_bytes, cell.compute_memory_after_bytes)
    )
    return (
        f"With {cell}, a Compute node uses {peak} for each client when it freezes its list. {contributions} of that "
        "are contributions, kept until the set is agreed. The rest is sessions and keys, which do not depend on d, and "
        f"a few vectors, which do not depend on N. After the round, {after} remain."
    )


def dropouts(cells: Sequence[Figures]) -> list[Block]:
    """Return a table of the noise and the success rate by T and drop rate, if either was swept."""
    if len(base_cells(cells)) == len(cells) and not any(cell.drop_rate for cell in cells):
        return []
    ordered = sorted(cells, key=lambda cell: (*_key(cell), cell.drop_rate, cell.tolerate))
    columns: Columns = {
        **_SIZE,
        "T": lambda cell: count(cell.tolerate),
        "drop out": lambda cell: percent(cell.drop_rate),
        "noise sd": lambda cell: number(cell.noise_sd),
        "of ideal": lambda cell: (
            number(cell.noise_sd / cell.noise_sd_ideal, 4) if cell.noise_sd and cell.noise_sd_ideal else UNKNOWN
        ),
        "results": lambda cell: percent(cell.success_rate),
        "expected": lambda cell: percent(round(cell.success_expected, 3)),
        "wall": lambda cell: number(cell.wall_s),
    }
    note = '"Of ideal" is the noise relative to that of one trusted curator. "Results" is the part of rounds with a '
    note += 'result, "expected" the part that a binomial law predicts.'
    return table(ordered, columns, title="drop-outs", note=note)


_SIZE: Columns = {
    "N": lambda cell: count(cell.clients),
    "d": lambda cell: count(cell.dimension),
    "M": lambda cell: count(cell.computes),
}


# --- growth, costs, prediction ----------------------------------------------------------------------------------------


def growth(fits: Mapping[str, Growth]) -> list[Block]:
    """Return a table of the exponents of N, d and M."""

    def exponent(symbol: str) -> Callable[[tuple[str, Growth]], str]:
        def say(item: tuple[str, Growth]) -> str:
            if (estimate := item[1].exponents.get(symbol)) is None:
                return UNKNOWN
            value, low, high = (with_minus(f"{figure:.2f}") for figure in (estimate.value, *estimate.interval))
            return f"{value} [{low}, {high}]"

        return say

    symbols = dict.fromkeys(symbol for fit in fits.values() for symbol in fit.exponents)
    columns: dict[str, Callable[[tuple[str, Growth]], str]] = {
        "": lambda item: {"wall_s": "wall time", "core_s": "core time"}.get(item[0], item[0]),
        **{symbol: exponent(symbol) for symbol in symbols},
        "residuals": lambda item: percent(item[1].spread),
        "cells": lambda item: count(item[1].cells),
    }
    note = "Power laws fitted to the measured sizes; brackets hold 95 % intervals. With exponent 1, twice the size "
    note += "takes twice the time."
    return table(fits.items(), columns, title="exponents of growth", note=note)


def held_out(cells: Sequence[HeldOut]) -> list[Block]:
    """Return a table of prediction errors on cells that were not fitted, a row for each cell; and the worst error."""
    rows: dict[tuple[int, int, int], dict[str, str]] = {}
    for cell in cells:
        rows.setdefault(_key(cell), {})[cell.quantity] = percent(round(cell.error, 2), signed=True)
    columns: dict[str, Callable[[tuple[tuple[int, int, int], dict[str, str]]], str]] = {
        "N": lambda row: count(row[0][1]),
        "d": lambda row: count(row[0][0]),
        "M": lambda row: count(row[0][2]),
        **{name: lambda row, key=key: row[1].get(key, "") for name, key in _ERRORS.items()},  # type: ignore[misc]
    }
    note = "Predicted from the other cells. Columns from msgs on are figures of a Compute node. "
    if any(cell.quantity in CLAIMED for cell in cells):
        worst = verdict(cells)
        note += f"{worst[0].upper()}{worst[1:]}."
    return table(rows.items(), columns, title="errors of the largest cells", note=note)


def _each_held_out(cells: Sequence[HeldOut]) -> list[Block]:
    def figure(cell: HeldOut, value: float) -> str:
        if "messages" in cell.quantity:
            return count(round(value))
        return seconds(value) if "seconds" in cell.quantity else size(value)

    columns: dict[str, Callable[[HeldOut], str]] = {
        "N": lambda cell: count(cell.clients),
        "d": lambda cell: count(cell.dimension),
        "M": lambda cell: count(cell.computes),
        "figure": lambda cell: cell.quantity,
        "measured": lambda cell: figure(cell, cell.measured),
        "predicted": lambda cell: figure(cell, cell.predicted),
        "error": lambda cell: percent(round(cell.error, 4), signed=True),
    }
    return [Folded("each figure, measured and predicted", block) for block in table(cells, columns)]


def _key(cell: Size) -> tuple[int, int, int]:
    return cell.dimension, cell.clients, cell.computes


def predicted(prediction: Prediction) -> list[Block]:
    """Return a table of what a predicted round takes, a column for each role; and the assumptions."""
    needs, broker = prediction.roles.values(), prediction.broker
    intervals = [[with_minus(f"{100 * (end / need.core_s.value - 1):+.0f}") for end in need.core_s.interval]
                 if need.core_s.value else ["0", "0"] for need in needs]  # fmt: skip
    machines: list[RoleNeed | BrokerNeed] = [*needs, broker]
    rows = {
        "number": [*(count(need.actors) for need in needs), ""],
        "core time, each": [*(seconds(need.core_s_each) for need in needs), ""],
        "core time, all": [*(seconds(need.core_s.value) for need in needs), ""],
        "its 95 % interval": [*(f"{low} to {high} %" for low, high in intervals), ""],
        "bytes, each": [*(size(need.bytes_each) for need in needs), f"{size(broker.bytes_s)}/s"],
        "memory, each": [*(size(need.memory_bytes_each) for need in needs), ""],
        "messages, all": [*(number(need.messages) for need in needs), f"{count(round(broker.messages_s))}/s"],
        "machines, all": [
            "their own" if need.machines is None else f"{count(need.machines)} ({need.tightest})" for need in machines
        ],
    }
    header = ("", *(_NAMES.get(role, role) for role in prediction.roles), "broker")
    note = "Intervals hold 95 of 100 refits of the costs; they do not cover missing terms. A role's messages are those "
    note += "it sends; the broker's are in and out."
    if prediction.agreement_s is not None and prediction.sessions_s is not None:
        agreed, sessions = seconds(prediction.agreement_s), seconds(prediction.sessions_s)
        note += f" Once an epoch, key agreement takes roughly {agreed} of core time, and sessions {sessions}."
    assumed = [("" if place else "assumed", text) for place, text in enumerate(prediction.assumptions)]
    title = f"a round of {prediction} in {seconds(prediction.round_s)}"
    return [PageTable(header, [(name, *row) for name, row in rows.items()], title), Note(note), *settings(assumed)]


# --- charts -----------------------------------------------------------------------------------------------------------


def _groups(cells: Sequence[Figures]) -> dict[str, list[Figures]]:
    """Return cells by the settings that they share; T is one of them only if a size was measured with several."""
    has_many_t = len({(*_key(cell), cell.backend, cell.drop_rate) for cell in cells}) < len(cells)
    groups: dict[str, list[Figures]] = {}
    for cell in cells:
        name = f"{cell.backend}, M = {cell.computes}"
        name += f", {percent(cell.drop_rate)} drop out" if cell.drop_rate else ""
        if has_many_t and cell.clients:
            name += f", T = {percent(round(cell.tolerate / cell.clients, 2))} of N"
        groups.setdefault(name, []).append(cell)
    return dict(list(groups.items())[:_GROUPS_MAX])


def _curves(cells: Sequence[Figures]) -> Iterator[Block]:
    """Yield log-log charts of time against N, with a line for each d; the paper's times are hollow squares."""
    for name, group in _groups(cells).items():
        if len({cell.clients for cell in group}) < 2:
            continue  # no curve; the tables have the point
        series = []
        for place, dimension in enumerate(sorted({cell.dimension for cell in group})):
            own = sorted((cell for cell in group if cell.dimension == dimension), key=lambda cell: cell.clients)
            ours = [(float(cell.clients), cell.wall_s) for cell in own]
            spread = [(float(cell.clients), *cell.wall_s_spread) for cell in own if cell.wall_s_spread is not None]
            series.append(Curve(f"d = {count(dimension)}", ours, place % _TONES, "-", "o", spread))
            if paper := [(float(cell.clients), cell.paper_s) for cell in own if cell.paper_s is not None]:
                series.append(Curve(_PAPER, paper, place % _TONES, "--", "s"))
        x = Axis("clients (N)", log=True, say=lambda n: short(n, 6))
        yield Heading(name)
        caption = "Both axes are logarithmic. Bars reach from the fastest to the slowest round, without key agreement."
        yield lines(series, x, Axis("wall seconds per round", log=True), caption=caption)


def _swept(cells: Sequence[Figures]) -> Iterator[Block]:
    """Yield charts of noise against T, and of the success rate against the drop rate, if these were swept."""
    noise = []
    for place, (d, n) in enumerate(sorted({(cell.dimension, cell.clients) for cell in cells})):
        own = [cell for cell in cells if (cell.dimension, cell.clients) == (d, n) and cell.noise_sd is not None]
        points = {float(cell.tolerate): cell.noise_sd or 0.0 for cell in own}
        if len(points) > 1:
            noise.append(Curve(f"N = {count(n)}, d = {count(d)}", sorted(points.items()), place % _TONES, "-", "o"))
    if noise:
        x, y = Axis("tolerated dropouts (T)"), Axis("sd of the noise in each value")
        yield lines(noise, x, y, caption="Tolerating more dropouts or colluders costs noise in the sum.")
    success, rates = [], dict[float, dict[float, list[Figures]]]()
    for cell in cells:
        share = round(cell.tolerate / max(cell.clients, 1), 3)
        rates.setdefault(share, {}).setdefault(cell.drop_rate, []).append(cell)
    for place, (share, swept) in enumerate(sorted(rates.items())):
        if len(swept) > 1:
            completed, expected = (  # means over sizes
                [
                    (rate, math.fsum(getattr(cell, key) for cell in row) / len(row))
                    for rate, row in sorted(swept.items())
                ]
                for key in ("success_rate", "success_expected")
            )
            success.append(Curve(f"T = {percent(share)} of N", completed, place % _TONES, "", "o"))
            success.append(Curve(f"expected at {percent(share)}", expected, place % _TONES, ":"))
    if success:
        x, y = Axis("probability that a client drops out", say=percent), Axis("rounds completed", low=-0.05, high=1.05)
        yield lines(success, x, y, caption="In return, more rounds complete. Dotted: the prediction of a binomial law.")


def _largest(cells: Sequence[Figures]) -> Iterator[Block]:
    if not cells:
        return
    largest = max(cells, key=lambda cell: (cell.clients * cell.dimension, cell.wall_s))
    parts = {"Wall time by phase": (largest.phases, 0), "Core time by role": (largest.core_s_by_role, 2)}
    for what, (times, tone) in parts.items():
        if times:
            rows = [(name, time_s, seconds(time_s)) for name, time_s in times.items()]
            yield bars(rows, caption=f"{what}, of one round with {largest}.", tone=tone)
    messages, sent = largest.messages or {}, largest.bytes or {}
    traffic = {role: Traffic(round(messages.get(role, 0)), sent.get(role, 0)) for role in {**messages, **sent}}
    yield from roles_table(traffic, largest.core_s_by_role)
