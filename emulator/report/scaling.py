"""A scaling sweep: seconds beside Table 1 of the DCA paper, what they are spent on, how they grow, what is predicted.

Terminals show the tables and the lines of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from dca_proto.wording import counted
from emulator.report.blocks import (
    Block,
    Cell,
    Folded,
    Heading,
    Line,
    Note,
    Page,
    Section,
    Table,
    as_json,
    fields,
    roles_table,
    settings,
    table,
)
from emulator.report.charts import Axis, Series, bars, lines
from emulator.report.figures import MIB, UNKNOWN, count, number, percent, seconds, short, size
from emulator.results import Traffic
from emulator.scaling.cell import Size
from emulator.scaling.costs import CLAIMED, Growth, HeldOut, verdict
from emulator.scaling.held import ROLES, Figures
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
"""A column of the table of held-out cells, and the quantity in it."""
Columns = dict[str, Callable[[Figures], str | Cell]]


def page(run: Scaling) -> Page:
    """The page of a scaling sweep."""
    compared = [one for one in run.cells if one.paper_s]
    faster = sum(one.wall_s < (one.paper_s or 0) for one in compared)
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
        lead=[("Warnings", [Note(f"{text[:1].upper()}{text[1:]}.") for text in run.warnings])],
    )


def _title(cells: Sequence[Figures], compared: Sequence[Figures], faster: int) -> str:
    if not cells:
        return "No cell was measured"
    largest = max(cells, key=lambda one: one.clients * one.dimension)
    held = f"{count(largest.clients)} clients sum {counted(largest.dimension, 'value')} in {seconds(largest.wall_s)}"
    if largest.first_round_wall_s is not None:
        held += f", {seconds(largest.first_round_wall_s)} with key agreement"
    if not compared:
        return held
    which = "all" if faster == len(compared) else f"{count(faster)} of"
    which = f"{which} {counted(len(compared), 'measured cell')}"
    return f"{held}; {which} of the paper's Table 1 {'is' if faster == 1 else 'are'} faster here"


def _answer(cells: Sequence[Figures]) -> str:
    if not cells:
        return "The sweep may have been interrupted before its first cell was done."
    backends, held = sorted({one.backend for one in cells}), sum(one.repeats for one in cells)
    return (
        f"{counted(len(cells), 'cell')}, {counted(held, 'round')} in all, on backend {' and '.join(backends)}. The "
        "seconds are medians over a cell's rounds, with encryption, signatures and exact noise. Pairs agree on keys in "
        "the first round of a day, which is timed apart. A process that holds many clients verifies an announcement "
        "once."
    )


def _facts(cells: Sequence[Figures], compared: Sequence[Figures]) -> Iterator[Line]:
    def ends(values: Sequence[int]) -> str:
        low, high = min(values), max(values)
        return count(low) if low == high else f"{count(low)} to {count(high)}"

    if not cells:
        return
    yield "clients (N)", ends([one.clients for one in cells])
    yield "values per sum (d)", ends([one.dimension for one in cells])
    yield "Compute nodes (M)", ends([one.computes for one in cells])
    yield "most memory", size(max(one.peak_rss_mb for one in cells) * MIB)
    gains = [one.paper_s / one.wall_s for one in compared if one.paper_s and one.wall_s]
    if gains:
        yield "speed beside the paper", f"{number(min(gains), 2)} to {number(max(gains), 2)} times"


# --- tables of cells --------------------------------------------------------------------------------------------------


def base_cells(cells: Sequence[Figures]) -> list[Figures]:
    """Of each N, d and M the cell with the lowest drop rate and, of these, the lowest T."""
    base: dict[tuple[int, int, int], Figures] = {}
    for one in sorted(cells, key=lambda one: (one.drop_rate, one.tolerated)):
        base.setdefault((one.clients, one.dimension, one.computes), one)
    return list(base.values())


def rounds(cells: Sequence[Figures]) -> list[Block]:
    """Times, without key agreement and with it, and the paper's beside them."""
    columns: Columns = {
        **_SIZE,
        "wall": lambda one: number(one.wall_s),
        "with keys": lambda one: number(one.first_round_wall_s),
        "spread": lambda one: "–".join(number(end) for end in one.spread),
        "agree": lambda one: number(one.phases.get("agree"), 2),
        "core": lambda one: number(one.core_s),
        "paper": lambda one: UNKNOWN if one.paper_s is None else short(one.paper_s, 6),
        "ratio": _ratio,
    }
    told = 'Wall time of a round is a median, with the fastest and the slowest. "With keys" is that of the first round '
    told += 'of an epoch, in which pairs agree on keys. "Agree" lasts from the close to the result.'
    if any(one.paper_s for one in cells):
        told += " A ratio to the paper's Table 1 below 1 is faster here; the paper's was a Spark cluster, without "
        told += "encryption."
    return table(cells, columns, title="seconds of a round", note=told)


def _ratio(one: Figures) -> str | Cell:
    if not one.paper_s:
        return UNKNOWN
    return Cell(number(one.wall_s / one.paper_s, 2), tone="good" if one.wall_s < one.paper_s else "bad")


def uses(cells: Sequence[Figures]) -> list[Block]:
    """Where core time goes for each contribution, beside the floor, and what a client sends and gets."""

    def us(role: str) -> Callable[[Figures], str]:
        def say(one: Figures) -> str:
            used, floor = (one.us_per_contribution or {}).get(role), one.floor_us.get(role)
            return UNKNOWN if used is None else f"{number(used, 2)}{f' ({number(floor, 2)})' if floor else ''}"

        return say

    def each(figure: str, say: Callable[[float], str]) -> Callable[[Figures], str]:
        """Of one client, in the mean."""

        def of_client(one: Figures) -> str:
            by_role: dict[str, float] = getattr(one, figure) or {}
            return say(by_role["client"] / max(one.clients, 1)) if "client" in by_role else UNKNOWN

        return of_client

    others = sorted({role for one in cells for role in one.core_s_by_role} - {*ROLES})
    columns: Columns = {
        **_SIZE,
        "client": us("client"),
        "node": us("compute"),
        **{role: us(role) for role in others},
        "msgs\nout": each("messages", short),
        "msgs\nin": each("received", short),
        "bytes\nout": each("bytes", size),
        "bytes\nin": each("received_bytes", size),
        "bytes\nall": lambda one: size(math.fsum(one.bytes.values())) if one.bytes else UNKNOWN,
    }
    told = (
        "Core time in microseconds, in brackets the bare cryptography. Messages and bytes are those of one client, and "
    )
    title = "core time of a contribution, and traffic"
    return table(cells, columns, title=title, note=f"{told}the bytes that all sent.")


def setup(cells: Sequence[Figures]) -> list[Block]:
    """What is done once an epoch, and what it all takes in memory."""
    columns: Columns = {
        **_SIZE,
        "sessions": lambda one: number(one.sessions_wall_s),
        "core": lambda one: number(one.sessions_s),
        "keys": lambda one: number(one.agreement_s),
        "peak": lambda one: size(one.peak_rss_mb * MIB),
        "a node": lambda one: size(one.compute_memory_bytes),
        "of it kept": lambda one: size(one.compute_memory_least_bytes),
        "after": lambda one: size(one.compute_memory_after_bytes),
    }
    told = "Seconds until all sessions stand, core seconds of that, and core seconds more in the round in which pairs "
    told += "agree on keys: once an epoch, which is a day."
    weighed = [one for one in cells if one.compute_memory_bytes and one.compute_memory_least_bytes and one.clients]
    blocks = table(cells, columns, title="set-up and memory", note=told)
    return [*blocks, *([Note(_kept(max(weighed, key=lambda one: (one.clients, one.dimension))))] if weighed else [])]


def _kept(one: Figures) -> str:
    held, least, after = (
        size(round((value or 0) / one.clients))
        for value in (one.compute_memory_bytes, one.compute_memory_least_bytes, one.compute_memory_after_bytes)
    )
    return (
        f"With {one} a Compute node holds {held} for each client as it freezes its list. {least} are contributions, "
        "kept until the set is agreed. The rest is sessions and keys, which do not depend on d, and a few vectors, "
        f"which do not depend on N. {after} stay when the round is over."
    )


def dropouts(cells: Sequence[Figures]) -> list[Block]:
    """What T costs in noise, and what it buys, where these were swept."""
    if len(base_cells(cells)) == len(cells) and not any(one.drop_rate for one in cells):
        return []
    ordered = sorted(cells, key=lambda one: (one.dimension, one.clients, one.computes, one.drop_rate, one.tolerated))
    columns: Columns = {
        **_SIZE,
        "T": lambda one: count(one.tolerated),
        "drop out": lambda one: percent(one.drop_rate),
        "noise sd": lambda one: number(one.noise_sd),
        "of ideal": lambda one: (
            number(one.noise_sd / one.noise_sd_ideal, 4) if one.noise_sd and one.noise_sd_ideal else UNKNOWN
        ),
        "results": lambda one: percent(one.success_rate),
        "expected": lambda one: percent(round(one.success_expected, 3)),
        "wall": lambda one: number(one.wall_s),
    }
    told = (
        "Of ideal: over the noise of one trusted curator. Results: rounds that have one, and how many a binomial law "
    )
    return table(ordered, columns, title="drop-outs", note=f"{told}expects.")


_SIZE: Columns = {
    "N": lambda one: count(one.clients),
    "d": lambda one: count(one.dimension),
    "M": lambda one: count(one.computes),
}


# --- growth, costs, prediction ----------------------------------------------------------------------------------------


def growth(fits: Mapping[str, Growth]) -> list[Block]:
    """Exponents of N, d and M."""

    def exponent(symbol: str) -> Callable[[tuple[str, Growth]], str]:
        def say(one: tuple[str, Growth]) -> str:
            if (found := one[1].exponents.get(symbol)) is None:
                return UNKNOWN
            value, low, high = (f"{figure:.2f}".replace("-", "−") for figure in (found.value, *found.interval))
            return f"{value} [{low}, {high}]"

        return say

    symbols = dict.fromkeys(symbol for one in fits.values() for symbol in one.exponents)
    columns: dict[str, Callable[[tuple[str, Growth]], str]] = {
        "": lambda one: {"wall_s": "wall time", "core_s": "core time"}.get(one[0], one[0]),
        **{symbol: exponent(symbol) for symbol in symbols},
        "residuals": lambda one: percent(one[1].spread),
        "cells": lambda one: count(one[1].cells),
    }
    told = "Powers fitted to the sizes measured, in brackets 95 % intervals; at 1, twice the size takes twice as much."
    return table(fits.items(), columns, title="exponents of growth", note=told)


def held_out(cells: Sequence[HeldOut]) -> list[Block]:
    """Cells that were measured and not fitted: the error of each figure, a row for each cell; and the worst of them."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for one in cells:
        rows.setdefault(_of_size(one), {})[one.quantity] = percent(round(one.error, 2), signed=True)
    columns: dict[str, Callable[[tuple[tuple[str, str, str], dict[str, str]]], str]] = {
        **{name: lambda row, at=at: row[0][at] for at, name in enumerate(_SIZE)},  # type: ignore[misc]
        **{name: lambda row, key=key: row[1].get(key, "") for name, key in _ERRORS.items()},  # type: ignore[misc]
    }
    told = "Predicted from the other cells; from msgs on, figures of a Compute node. "
    if any(one.quantity in CLAIMED for one in cells):
        found = verdict(cells)
        told += f"{found[0].upper()}{found[1:]}."
    return table(rows.items(), columns, title="errors of the largest cells", note=told)


def _each_held_out(cells: Sequence[HeldOut]) -> list[Block]:

    def figure(one: HeldOut, value: float) -> str:
        if "messages" in one.quantity:
            return count(round(value))
        return seconds(value) if "seconds" in one.quantity else size(value)

    columns: dict[str, Callable[[HeldOut], str]] = {
        **{name: lambda one, at=at: _of_size(one)[at] for at, name in enumerate(_SIZE)},  # type: ignore[misc]
        "figure": lambda one: one.quantity,
        "measured": lambda one: figure(one, one.measured),
        "predicted": lambda one: figure(one, one.predicted),
        "error": lambda one: percent(round(one.error, 4), signed=True),
    }
    return [Folded("each figure, measured and predicted", one) for one in table(cells, columns)]


def _of_size(one: Size) -> tuple[str, str, str]:
    return count(one.clients), count(one.dimension), count(one.computes)


def predicted(found: Prediction) -> list[Block]:
    """What a round of another size would take: a column for each role; and what that assumes."""
    needs, broker = found.roles.values(), found.broker
    intervals = [[f"{100 * (end / need.core_s.value - 1):+.0f}".replace("-", "−") for end in need.core_s.interval]
                 if need.core_s.value else ["0", "0"] for need in needs]  # fmt: skip
    machines: list[RoleNeed | BrokerNeed] = [*needs, broker]
    rows = {
        "there are": [*(count(need.actors) for need in needs), ""],
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
    header = ("", *(_NAMES.get(role, role) for role in found.roles), "broker")
    told = (
        "Intervals hold 95 of 100 refits of the costs, and say nothing of other terms. Roles send their messages; the "
    )
    told += "broker's are in and out."
    if found.agreement_s is not None and found.sessions_s is not None:
        agreed, sessions = seconds(found.agreement_s), seconds(found.sessions_s)
        told += f" Once an epoch, roughly {agreed} of core time go to agree on keys, and {sessions} to sessions."
    assumed = [("" if place else "assumed", text) for place, text in enumerate(found.assumptions)]
    title = f"a round of {found} in {seconds(found.round_s)}"
    return [Table(header, [(name, *row) for name, row in rows.items()], title), Note(told), *settings(assumed)]


# --- charts -----------------------------------------------------------------------------------------------------------


def _groups(cells: Sequence[Figures]) -> dict[str, list[Figures]]:
    """Cells that differ in nothing but size; T apart only where a size was measured with more than one."""
    apart = len({(*_of_size(one), one.backend, one.drop_rate) for one in cells}) < len(cells)
    groups: dict[str, list[Figures]] = {}
    for one in cells:
        name = f"{one.backend}, M = {one.computes}"
        name += f", {percent(one.drop_rate)} drop out" if one.drop_rate else ""
        if apart and one.clients:
            name += f", T = {percent(round(one.tolerated / one.clients, 2))} of N"
        groups.setdefault(name, []).append(one)
    return dict(list(groups.items())[:_GROUPS_MAX])


def _curves(cells: Sequence[Figures]) -> Iterator[Block]:
    """Log-log, a line for each d; the paper's seconds are hollow."""
    for name, group in _groups(cells).items():
        if len({one.clients for one in group}) < 2:
            continue  # no curve: it stands in the tables
        series = []
        for place, dimension in enumerate(sorted({one.dimension for one in group})):
            mine = sorted((one for one in group if one.dimension == dimension), key=lambda one: one.clients)
            ours = [(float(one.clients), one.wall_s) for one in mine]
            spread = [(float(one.clients), *one.wall_s_spread) for one in mine if one.wall_s_spread is not None]
            series.append(Series(f"d = {count(dimension)}", ours, place % _TONES, "-", "o", spread))
            if paper := [(float(one.clients), one.paper_s) for one in mine if one.paper_s is not None]:
                series.append(Series(_PAPER, paper, place % _TONES, "--", "s"))
        x = Axis("clients (N)", log=True, say=lambda n: short(n, 6))
        yield Heading(name)
        told = "Both axes are logarithmic. Bars reach from the fastest to the slowest round, without key agreement."
        yield lines(series, x, Axis("wall seconds per round", log=True), caption=told)


def _swept(cells: Sequence[Figures]) -> Iterator[Block]:
    """What T and dropouts cost, where they were swept: noise against T, and results against the rate of drop-outs."""
    noise = []
    for place, (d, n) in enumerate(sorted({(one.dimension, one.clients) for one in cells})):
        own = [one for one in cells if (one.dimension, one.clients) == (d, n) and one.noise_sd is not None]
        points = {float(one.tolerated): one.noise_sd or 0.0 for one in own}
        if len(points) > 1:
            noise.append(Series(f"N = {count(n)}, d = {count(d)}", sorted(points.items()), place % _TONES, "-", "o"))
    if noise:
        x, y = Axis("tolerated dropouts (T)"), Axis("sd of the noise in each value")
        yield lines(noise, x, y, caption="What it costs to tolerate more dropouts or colluders: noise in the sum.")
    success, rates = [], dict[float, dict[float, list[Figures]]]()
    for one in cells:
        rates.setdefault(round(one.tolerated / max(one.clients, 1), 3), {}).setdefault(one.drop_rate, []).append(one)
    for place, (share, swept) in enumerate(sorted(rates.items())):
        if len(swept) > 1:
            found, expected = (  # means over sizes
                [(rate, math.fsum(getattr(one, key) for one in row) / len(row)) for rate, row in sorted(swept.items())]
                for key in ("success_rate", "success_expected")
            )
            success.append(Series(f"T = {percent(share)} of N", found, place % _TONES, "", "o"))
            success.append(Series(f"expected at {percent(share)}", expected, place % _TONES, ":"))
    if success:
        x, y = Axis("how likely a client drops out", say=percent), Axis("rounds completed", low=-0.05, high=1.05)
        yield lines(success, x, y, caption="What it buys: more rounds complete. Dotted: as a binomial law expects.")


def _largest(cells: Sequence[Figures]) -> Iterator[Block]:
    if not cells:
        return
    one = max(cells, key=lambda one: (one.clients * one.dimension, one.wall_s))
    parts = {"Wall time by phase": (one.phases, 0), "Core time by role": (one.core_s_by_role, 2)}
    for what, (found, tone) in parts.items():
        if found:
            drawn = [(name, took, seconds(took)) for name, took in found.items()]
            yield bars(drawn, caption=f"{what}, of one round with {one}.", tone=tone)
    messages, sent = one.messages or {}, one.bytes or {}
    traffic = {role: Traffic(round(messages.get(role, 0)), sent.get(role, 0)) for role in {**messages, **sent}}
    yield from roles_table(traffic, one.core_s_by_role)
