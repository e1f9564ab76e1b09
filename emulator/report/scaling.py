"""A scaling sweep: seconds per round against the number of clients, beside Table 1 of the DCA paper, and the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from emulator.report.bars import Bar, bars
from emulator.report.collusion import said
from emulator.report.figures import UNKNOWN, count, counted, number, percent, seconds, short, size
from emulator.report.markup import Child, element, table
from emulator.report.page import Page, Section, folded, note
from emulator.report.plot import Series, axis_over, plot
from emulator.report.prediction import Growth, HeldOut, Prediction, growth, held_out, predicted
from emulator.report.types import MIB, Amount, Count

_TONES = 6
_ROWS_MAX = 500
_GROUPS_MAX = 12


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One size of a round, as measured: medians over its repeats, per round."""

    clients: Count
    dimension: Count
    computes: Count
    wall_s: Amount
    backend: str = UNKNOWN
    tolerated: Count | None = None
    drop_rate: Amount = 0.0
    repeats: Count = 1
    wall_s_spread: tuple[Amount, Amount] | None = None
    core_s: Amount | None = None
    phases: dict[str, Amount] = {}
    bytes: dict[str, Amount] = {}
    messages: dict[str, Amount] = {}
    core_s_by_role: dict[str, Amount] = {}
    us_per_contribution: dict[str, Amount] | None = None
    floor_us: dict[str, Amount] = {}
    sessions_wall_s: Amount | None = None
    agreement_s: Amount | None = None
    peak_rss_mb: Amount | None = None
    compute_memory_bytes: Amount | None = None
    compute_memory_least_bytes: Amount | None = None
    compute_memory_after_bytes: Amount | None = None
    paper_s: Amount | None = None
    success_rate: Amount | None = None
    noise_sd: Amount | None = None
    noise_sd_ideal: Amount | None = None

    @property
    def ratio(self) -> float | None:
        """Our seconds over the paper's."""
        return self.wall_s / self.paper_s if self.paper_s else None

    @property
    def size(self) -> tuple[int, int]:
        """d and N."""
        return self.dimension, self.clients


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """What the page reads of `dca scaling --json`."""

    cells: list[Cell]
    versions: Any = None
    machine: Any = None
    options: Any = None
    fits: dict[str, Growth] = {}
    calibration: Any = None
    held_out: list[HeldOut] = []
    prediction: Prediction | None = None


def page(run: Scaling) -> Page:
    """The page of a scaling sweep."""
    compared = [one for one in run.cells if one.ratio is not None]
    faster = sum(one.wall_s < (one.paper_s or 0) for one in compared)
    sections = [
        Section("Seconds per round", [*_curves(run.cells)]),
        Section("Beside the paper's Table 1", [*_ratios(compared)]),
        Section("Dropouts and noise", [*_swept(run.cells)]),
        Section("Where the largest round spends", [*_largest(run.cells)]),
        Section("Every cell", [*_cells(run.cells)]),
        Section("Beyond this machine", [*predicted(run.prediction)]),
        Section("How it grows", [*growth(run.fits)]),
        Section("Measured, not fitted", [*held_out(run.held_out)]),
        Section("Costs fitted", [folded("each cost, as JSON", run.calibration)] if run.calibration else []),
        Section(
            "How it was measured", [*_data({"machine": run.machine, "versions": run.versions, "options": run.options})]
        ),
    ]
    slower = len(compared) - faster
    return Page(
        kind="How rounds scale",
        title=_title(run.cells, compared, faster),
        badge=f"{count(faster)} of {count(len(compared))} faster than the paper" if compared else "measured",
        verdict="neutral" if not compared else "neutral" if slower else "good",
        answer=_answer(run.cells),
        facts=[*_facts(run.cells, compared)],
        sections=[section for section in sections if section.content],
    )


def _title(cells: Sequence[Cell], compared: Sequence[Cell], faster: int) -> str:
    if not cells:
        return "No cell was measured"
    largest = max(cells, key=lambda one: one.clients * one.dimension)
    held = f"{count(largest.clients)} clients sum {counted(largest.dimension, 'value')} in {seconds(largest.wall_s)}"
    if not compared:
        return held
    which = "all" if faster == len(compared) else f"{count(faster)} of"
    which = f"{which} {counted(len(compared), 'measured cell')}"
    return f"{held}; {which} of the paper's Table 1 {'is' if faster == 1 else 'are'} faster here"


def _answer(cells: Sequence[Cell]) -> str:
    if not cells:
        return "The sweep may have been interrupted before its first cell was done."
    backends = sorted({one.backend for one in cells})
    rounds = sum(one.repeats for one in cells)
    return (
        f"{counted(len(cells), 'cell')}, {counted(rounds, 'round')} in all, on backend {' and '.join(backends)}. The "
        "seconds are medians over a cell's rounds, with encryption, signatures and exact noise; sessions and keys, "
        "once a day, are timed apart. A process that holds many clients verifies an announcement once."
    )


def _facts(cells: Sequence[Cell], compared: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    if not cells:
        return
    yield "clients (N)", _range([one.clients for one in cells])
    yield "values per sum (d)", _range([one.dimension for one in cells])
    yield "Compute nodes (M)", _range([one.computes for one in cells])
    memory = [one.peak_rss_mb for one in cells if one.peak_rss_mb is not None]
    if memory:
        yield "most memory", size(max(memory) * MIB)
    gains = [1 / one.ratio for one in compared if one.ratio]
    if gains:
        yield "speed beside the paper", f"{number(min(gains), 2)} to {number(max(gains), 2)} times"


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return count(low) if low == high else f"{count(low)} to {count(high)}"


def _groups(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells that differ in nothing but size; T apart only where a size was measured with more than one."""
    apart = len({(one.size, *_conditions(one)) for one in cells}) < len(cells)
    groups: dict[str, list[Cell]] = {}
    for one in cells:
        computes, backend, rate = _conditions(one)
        name = f"{backend}, M = {computes}"
        name += f", {percent(rate)} drop out" if rate else ""
        if apart and one.tolerated is not None and one.clients:
            name += f", T = {percent(round(one.tolerated / one.clients, 2))} of N"
        groups.setdefault(name, []).append(one)
    return dict(list(groups.items())[:_GROUPS_MAX])


def _conditions(one: Cell) -> tuple[int, str, float]:
    return one.computes, one.backend, one.drop_rate


def _curves(cells: Sequence[Cell]) -> Iterator[Child]:
    """Log-log, a line for each d; the paper's seconds are hollow."""
    for name, group in _groups(cells).items():
        if len({one.clients for one in group}) < 2:
            continue  # no curve: it stands in the tables
        series = [one for place, d in enumerate(_dimensions(group)) for one in _series(group, d, place % _TONES)]
        values = [value for one in series for _, value in one.points]
        values += [edge for one in series for _, *edges in one.spread for edge in edges]
        x = axis_over("clients (N)", [one.clients for one in group], log=True, say=lambda n: short(n, 6))
        y = axis_over("wall seconds per round", values, log=True)
        if any(one.paper_s for one in group):
            series.append(Series("the DCA paper's Table 1, each d in its colour", [], -1, "dashed", "ring"))
        yield element("h3", name)
        yield plot(series, x, y, caption="Both axes are logarithmic. Bars reach from the fastest to the slowest round.")


def _dimensions(cells: Sequence[Cell]) -> list[int]:
    return sorted({one.dimension for one in cells})


def _series(group: Sequence[Cell], dimension: int, tone: int) -> Iterator[Series]:
    mine = sorted((one for one in group if one.dimension == dimension), key=lambda one: one.clients)
    ours = [(float(one.clients), one.wall_s) for one in mine]
    spread = [(float(one.clients), *one.wall_s_spread) for one in mine if one.wall_s_spread is not None]
    yield Series(f"d = {count(dimension)}", ours, tone, "solid", "disc", spread)
    paper = [(float(one.clients), one.paper_s) for one in mine if one.paper_s is not None]
    if paper:
        yield Series(f"paper, d = {count(dimension)}", paper, tone, "dashed", "ring", in_legend=False)


def _ratios(compared: Sequence[Cell]) -> Iterator[Child]:
    for name, group in _groups(compared).items():
        clients = sorted({one.clients for one in group})
        found = {one.size: one for one in group}
        rows = [
            [element("span", f"d = {count(d)}", class_="whole"), *(_ratio(found.get((d, n))) for n in clients)]
            for d in _dimensions(group)
        ]
        yield element("h3", name)
        yield table(["", *(f"N = {count(n)}" for n in clients)], rows)
    if compared:
        yield note(
            "Our seconds over the paper's, and both: below 1 is faster here. The paper's were measured on a Spark "
            "cluster, without encryption; ours, from the announcement to the result, on the machine named below."
        )


def _ratio(one: Cell | None) -> Child:
    if one is None or one.ratio is None:
        return UNKNOWN
    tone = "good-text" if one.ratio < 1 else "bad-text"
    both = f"{seconds(one.wall_s)} / {seconds(one.paper_s)}"
    sign = "" if one.ratio < 1 else " (slower)"
    return element(
        "span", element("span", number(one.ratio, 2) + sign, class_=tone), element("br"), element("small", both)
    )


def _swept(cells: Sequence[Cell]) -> Iterator[Child]:
    """What T and dropouts cost, where they were swept."""
    tolerated = {(one.size, one.computes) for one in cells}
    if len({(one.size, one.computes, one.tolerated, one.drop_rate) for one in cells}) == len(tolerated):
        return
    rows = [
        (_size(one), count(one.tolerated), percent(one.drop_rate), number(one.noise_sd), number(one.noise_sd_ideal),
         UNKNOWN if one.success_rate is None else percent(one.success_rate), seconds(one.wall_s))
        for one in sorted(cells, key=lambda one: (one.size, one.drop_rate, one.tolerated or 0))[:_ROWS_MAX]
    ]  # fmt: skip
    series = [*_noise_series(cells)]
    if series:
        x = axis_over("tolerated dropouts (T)", [a for one in series for a, _ in one.points], log=False)
        y = axis_over("sd of the noise in each value", [b for one in series for _, b in one.points], log=False)
        yield plot(series, x, y, caption="What it costs to tolerate more dropouts or colluders: noise in the sum.")
    yield table(("N × d", "T", "drop out", "noise sd", "of a trusted curator", "rounds completed", "wall time"), rows)


def _noise_series(cells: Sequence[Cell]) -> Iterator[Series]:
    """Noise against T, for each size that was measured with more than one."""
    for place, (d, n) in enumerate(sorted({one.size for one in cells})):
        points = {
            float(one.tolerated): one.noise_sd
            for one in cells
            if one.size == (d, n) and one.tolerated is not None and one.noise_sd is not None
        }
        if len(points) > 1:
            yield Series(f"N = {count(n)}, d = {count(d)}", sorted(points.items()), place % _TONES, "solid", "disc")


def _largest(cells: Sequence[Cell]) -> Iterator[Child]:
    if not cells:
        return
    one = max(cells, key=lambda one: (one.clients * one.dimension, one.wall_s))
    where = f"Of one round with N = {count(one.clients)}, d = {count(one.dimension)}, M = {count(one.computes)}"
    charts = (
        ("wall time by phase", one.phases, seconds, 0),
        ("core time by role", one.core_s_by_role, seconds, 2),
        ("core time of a contribution", _of_a_contribution(one), _us, 2),
        ("messages sent by role", one.messages, _messages, 1),
        ("bytes sent by role", one.bytes, size, 3),
    )
    for name, parts, say, tone in charts:
        if parts:
            rows = [Bar(part, value, say(value), tone) for part, value in parts.items()]
            yield element("h3", name.capitalize())
            yield bars(rows, caption=where)


def _of_a_contribution(one: Cell) -> dict[str, float]:
    """Microseconds by role, each beside its floor."""
    floors = {f"{role}, bare cryptography": floor for role, floor in one.floor_us.items() if floor}
    return dict(sorted({**(one.us_per_contribution or {}), **floors}.items()))


def _us(value: float) -> str:
    return f"{number(value, 3)} µs"


def _size(one: Cell) -> Child:
    return element("span", f"{count(one.clients)} × {count(one.dimension)}", class_="whole")


def _messages(value: float) -> str:
    return count(round(value))


def _cells(cells: Sequence[Cell]) -> Iterator[Child]:
    rows = [
        (_size(one), count(one.computes), seconds(one.wall_s), _spread(one),
         seconds(one.core_s), size(math.fsum(one.bytes.values())) if one.bytes else UNKNOWN,
         seconds(one.sessions_wall_s), seconds(one.agreement_s),
         UNKNOWN if one.peak_rss_mb is None else size(one.peak_rss_mb * MIB),
         size(one.compute_memory_bytes))
        for one in sorted(cells, key=lambda one: (*one.size, one.computes))[:_ROWS_MAX]
    ]  # fmt: skip
    if rows:
        header = (
            "N × d",
            "M",
            "wall",
            "from–to",
            "cores",
            "bytes",
            "sessions",
            "key agreement",
            "peak memory",
            "one Compute node",
        )
        yield element("details", element("summary", counted(len(cells), "cell")), table(header, rows))
    yield from _kept(cells)


def _kept(cells: Sequence[Cell]) -> Iterator[Child]:
    """What a Compute node must keep of each client, in the cell with the most of them."""
    weighed = [one for one in cells if one.compute_memory_bytes and one.compute_memory_least_bytes and one.clients]
    if not weighed:
        return
    one = max(weighed, key=lambda one: (one.clients, one.dimension))
    held, least = (
        value / one.clients for value in (one.compute_memory_bytes or 0, one.compute_memory_least_bytes or 0)
    )
    after = one.compute_memory_after_bytes
    stays = "" if after is None else f" {size(round(after / one.clients))} of it stay when the round is over."
    yield note(
        f"At N = {count(one.clients)}, d = {count(one.dimension)} a Compute node holds {size(round(held))} for each "
        f"client as it freezes its list. {size(round(least))} are contributions, kept until the set is agreed; the "
        f"rest is sessions and keys, which do not depend on d, and a few vectors.{stays}"
    )


def _spread(one: Cell) -> str:
    return UNKNOWN if one.wall_s_spread is None else "–".join(seconds(edge) for edge in one.wall_s_spread)


def _data(value: Any) -> Iterator[Child]:
    """Whatever a producer put there, as names and values."""
    if isinstance(value, dict):
        rows = [(str(key), said(one)) for key, one in value.items() if one not in (None, {}, [])]
        if rows:
            yield table(("", ""), rows, text_columns=(0, 1))
