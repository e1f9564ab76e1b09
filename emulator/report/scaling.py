"""A scaling sweep: seconds per round against the number of clients, beside Table 1 of the DCA paper, and the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from dca_proto.wording import counted
from emulator.report.blocks import Block, Cell, Folded, Heading, Note, Page, Section, Table, as_json, settings, table
from emulator.report.charts import Axis, Series, bars, lines
from emulator.report.collusion import said
from emulator.report.figures import UNKNOWN, count, number, percent, seconds, short, size
from emulator.report.prediction import growth, held_out, predicted
from emulator.scaling.held import Figures
from emulator.scaling.record import Scaling

_TONES, _GROUPS_MAX = 6, 12
_MIB = 1 << 20
_ONCE = "Pairs agree on keys, and sessions are set up, once an epoch, which is a day."
_PAPER = "the DCA paper's Table 1, each d in its colour"


def page(run: Scaling) -> Page:
    """The page of a scaling sweep."""
    compared = [one for one in run.cells if one.paper_s]
    faster = sum(one.wall_s < (one.paper_s or 0) for one in compared)
    measured = {"machine": run.machine, "versions": run.versions, "options": run.options}
    timed = [one for one in _ordered(run.cells) if one.first_round_wall_s is not None]
    sections: list[Section] = [
        ("Seconds per round", [*_curves(run.cells), *table(timed, _WITH_KEYS, note=_ONCE)]),
        ("Beside the paper's Table 1", [*_ratios(compared)]),
        ("Dropouts and noise", [*_swept(run.cells)]),
        ("Where the largest round spends", [*_largest(run.cells)]),
        ("Every cell", [*_cells(run.cells)]),
        ("Beyond this machine", [*predicted(run.prediction)]),
        ("How it grows", growth(run.fits)),
        ("Measured, not fitted", held_out(run.held_out)),
        ("Costs fitted", as_json("each cost, as JSON", run.calibration)),
        ("How it was measured", settings((key, said(one)) for key, one in measured.items() if one)),
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
    backends = sorted({one.backend for one in cells})
    rounds = sum(one.repeats for one in cells)
    return (
        f"{counted(len(cells), 'cell')}, {counted(rounds, 'round')} in all, on backend {' and '.join(backends)}. The "
        "seconds are medians over a cell's rounds, with encryption, signatures and exact noise. Pairs agree on keys in "
        "the first round of a day, which is timed apart. A process that holds many clients verifies an announcement "
        "once."
    )


def _facts(cells: Sequence[Figures], compared: Sequence[Figures]) -> Iterator[tuple[str, str]]:
    if not cells:
        return
    yield "clients (N)", _range([one.clients for one in cells])
    yield "values per sum (d)", _range([one.dimension for one in cells])
    yield "Compute nodes (M)", _range([one.computes for one in cells])
    memory = [one.peak_rss_mb for one in cells if one.peak_rss_mb is not None]
    if memory:
        yield "most memory", size(max(memory) * _MIB)
    gains = [one.paper_s / one.wall_s for one in compared if one.paper_s and one.wall_s]
    if gains:
        yield "speed beside the paper", f"{number(min(gains), 2)} to {number(max(gains), 2)} times"


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return count(low) if low == high else f"{count(low)} to {count(high)}"


def _key(one: Figures) -> tuple[int, int]:
    return one.dimension, one.clients


def _groups(cells: Sequence[Figures]) -> dict[str, list[Figures]]:
    """Cells that differ in nothing but size; T apart only where a size was measured with more than one."""
    apart = len({(_key(one), one.computes, one.backend, one.drop_rate) for one in cells}) < len(cells)
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
        series = [one for place, d in enumerate(_dimensions(group)) for one in _series(group, d, place % _TONES)]
        x = Axis("clients (N)", log=True, say=lambda n: short(n, 6))
        yield Heading(name)
        told = "Both axes are logarithmic. Bars reach from the fastest to the slowest round, without key agreement."
        yield lines(series, x, Axis("wall seconds per round", log=True), caption=told)


def _dimensions(cells: Sequence[Figures]) -> list[int]:
    return sorted({one.dimension for one in cells})


def _series(group: Sequence[Figures], dimension: int, tone: int) -> Iterator[Series]:
    mine = sorted((one for one in group if one.dimension == dimension), key=lambda one: one.clients)
    ours = [(float(one.clients), one.wall_s) for one in mine]
    spread = [(float(one.clients), *one.wall_s_spread) for one in mine if one.wall_s_spread is not None]
    yield Series(f"d = {count(dimension)}", ours, tone, "-", "o", spread)
    paper = [(float(one.clients), one.paper_s) for one in mine if one.paper_s is not None]
    if paper:
        yield Series(_PAPER, paper, tone, "--", "s")


def _ordered(cells: Sequence[Figures]) -> list[Figures]:
    return sorted(cells, key=lambda one: (_key(one), one.computes, one.drop_rate, one.tolerated))


def _size(one: Figures) -> str:
    return f"{count(one.clients)} × {count(one.dimension)}"


def _ratios(compared: Sequence[Figures]) -> Iterator[Block]:
    for name, group in _groups(compared).items():
        clients = sorted({one.clients for one in group})
        found = {_key(one): one for one in group}
        rows = [[f"d = {count(d)}", *(_ratio(found.get((d, n))) for n in clients)] for d in _dimensions(group)]
        yield Heading(name)
        yield Table(["", *(f"N = {count(n)}" for n in clients)], rows)
    if compared:
        yield Note(
            "Our seconds over the paper's, and both: below 1 is faster here. The paper's were measured on a Spark "
            "cluster, without encryption; ours, from the announcement to the result, on the machine named below."
        )


def _ratio(one: Figures | None) -> str | Cell:
    if one is None or not one.paper_s:
        return UNKNOWN
    ratio = one.wall_s / one.paper_s
    both = f"{seconds(one.wall_s)} / {seconds(one.paper_s)}"
    return Cell(number(ratio, 2) + ("" if ratio < 1 else " (slower)"), both, "good" if ratio < 1 else "bad")


def _swept(cells: Sequence[Figures]) -> Iterator[Block]:
    """What T and dropouts cost, where they were swept."""
    sizes = {(_key(one), one.computes) for one in cells}
    if len({(_key(one), one.computes, one.tolerated, one.drop_rate) for one in cells}) == len(sizes):
        return
    series = [*_noise_series(cells)]
    if series:
        x, y = Axis("tolerated dropouts (T)"), Axis("sd of the noise in each value")
        yield lines(series, x, y, caption="What it costs to tolerate more dropouts or colluders: noise in the sum.")
    series = [*_success_series(cells)]
    if series:
        x, y = Axis("how likely a client drops out", say=percent), Axis("rounds completed", low=-0.05, high=1.05)
        yield lines(series, x, y, caption="What it buys: more rounds complete. Dotted: as a binomial law expects.")
    yield from table(_ordered(cells), _SWEPT)


def _noise_series(cells: Sequence[Figures]) -> Iterator[Series]:
    """Noise against T, for each size that was measured with more than one."""
    for place, (d, n) in enumerate(sorted({_key(one) for one in cells})):
        own = [one for one in cells if _key(one) == (d, n) and one.noise_sd is not None]
        points = {float(one.tolerated): one.noise_sd or 0.0 for one in own}
        if len(points) > 1:
            yield Series(f"N = {count(n)}, d = {count(d)}", sorted(points.items()), place % _TONES, "-", "o")


def _success_series(cells: Sequence[Figures]) -> Iterator[Series]:
    """Rounds with a result against the rate of drop-outs, for each share T / N; the mean over sizes."""
    rates: dict[float, dict[float, list[Figures]]] = {}
    for one in cells:
        rates.setdefault(round(one.tolerated / max(one.clients, 1), 3), {}).setdefault(one.drop_rate, []).append(one)
    for place, (share, swept) in enumerate(sorted(rates.items())):
        if len(swept) > 1:
            found, expected = (
                [(rate, math.fsum(getattr(one, key) for one in row) / len(row)) for rate, row in sorted(swept.items())]
                for key in ("success_rate", "success_expected")
            )
            yield Series(f"T = {percent(share)} of N", found, place % _TONES, "", "o")
            yield Series(f"expected at {percent(share)}", expected, place % _TONES, ":")


def _largest(cells: Sequence[Figures]) -> Iterator[Block]:
    if not cells:
        return
    one = max(cells, key=lambda one: (one.clients * one.dimension, one.wall_s))
    where = f"of one round with N = {count(one.clients)}, d = {count(one.dimension)}, M = {count(one.computes)}"
    phases = [(phase, took, seconds(took)) for phase, took in one.phases.items()]
    if phases:
        yield bars(phases, caption=f"Wall time by phase, {where}.")
    roles = [(role, took, seconds(took)) for role, took in one.core_s_by_role.items()]
    if roles:
        yield bars(roles, caption=f"Core time by role, {where}.", tone=2)
    used, messages, sent = one.us_per_contribution or {}, one.messages or {}, one.bytes or {}
    yield from table(
        dict.fromkeys([*used, *messages, *sent]),
        {
            "role": lambda role: role,
            "core time of a contribution": lambda role: _us(used.get(role)),
            "bare cryptography": lambda role: _us(one.floor_us.get(role)),
            "messages sent": lambda role: count(round(messages.get(role, 0))),
            "bytes sent": lambda role: size(sent.get(role)),
        },
    )


def _us(value: float | None) -> str:
    return f"{number(value, 3)} µs" if value else UNKNOWN


def _cells(cells: Sequence[Figures]) -> Iterator[Block]:
    for block in table(_ordered(cells), _CELLS):
        yield Folded(counted(len(cells), "cell"), block)
    weighed = [one for one in cells if one.compute_memory_bytes and one.compute_memory_least_bytes and one.clients]
    if weighed:
        yield Note(_kept(max(weighed, key=lambda one: (one.clients, one.dimension))))


def _kept(one: Figures) -> str:
    """What a Compute node must keep of each client, in the cell with the most of them."""
    held, least = (
        round(value / one.clients) for value in (one.compute_memory_bytes or 0, one.compute_memory_least_bytes or 0)
    )
    after = one.compute_memory_after_bytes
    stays = "" if after is None else f" {size(round(after / one.clients))} of it stay when the round is over."
    return (
        f"At N = {count(one.clients)}, d = {count(one.dimension)} a Compute node holds {size(held)} for each client "
        f"as it freezes its list. {size(least)} are contributions, kept until the set is agreed. The rest is sessions "
        f"and keys, which do not depend on d, and a few vectors.{stays}"
    )


def _spread(one: Figures) -> str:
    return "" if one.wall_s_spread is None else " to ".join(seconds(edge) for edge in one.wall_s_spread)


_CELLS: dict[str, Callable[[Figures], str | Cell]] = {
    "N × d": _size,
    "M": lambda one: count(one.computes),
    "wall time": lambda one: Cell(seconds(one.wall_s), _spread(one)),
    "with key agreement": lambda one: seconds(one.first_round_wall_s),
    "core time": lambda one: seconds(one.core_s),
    "bytes": lambda one: size(math.fsum(one.bytes.values())) if one.bytes else UNKNOWN,
    "sessions": lambda one: seconds(one.sessions_wall_s),
    "core time of key agreement": lambda one: seconds(one.agreement_s),
    "peak memory": lambda one: UNKNOWN if one.peak_rss_mb is None else size(one.peak_rss_mb * _MIB),
    "one Compute node's memory": lambda one: size(one.compute_memory_bytes),
}
_WITH_KEYS = {name: _CELLS[name] for name in ("N × d", "M", "wall time", "with key agreement", "sessions")}
_SWEPT: dict[str, Callable[[Figures], str | Cell]] = {
    "N × d": _size,
    "T": lambda one: count(one.tolerated),
    "drop out": lambda one: percent(one.drop_rate),
    "noise sd": lambda one: number(one.noise_sd),
    "of a trusted curator": lambda one: number(one.noise_sd_ideal),
    "rounds completed": lambda one: UNKNOWN if one.success_rate is None else percent(one.success_rate),
    "wall time": _CELLS["wall time"],
}
