"""What a person sees of a sweep: progress with the time left, then tables. Nothing here decides anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dca_proto.cli.output import say
from emulator.scaling.cell import EMULATED, Cell, Size
from emulator.scaling.costs import ERROR_MAX, Growth, HeldOut, worst
from emulator.scaling.held import Figures
from emulator.scaling.predict import Prediction

_Cells = Sequence[Figures]
_Columns = Mapping[str, Callable[[Figures], str]]
_ROLES = {"client": "clients", "compute": "Compute nodes", "trainer": "trainer"}
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
_BUSY = 1.2
_FIGURES = {"wall_s": "wall time", "core_s": "core time"}


class Progressing:
    """A bar on a terminal, a line for each finished cell elsewhere; as a context.

    Args:
        console: where to show. cells: those that are to be measured, in their order.
    """

    def __init__(self, console: Console, cells: Sequence[Cell]) -> None:
        columns = (
            TextColumn("{task.description:<36}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._console = console
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._estimate_s = sum(cell.estimate_s for cell in cells)
        self._total, self._finished, self._done_s = len(cells), 0, 0.0
        self._task = self._progress.add_task("", total=max(self._estimate_s, 1e-9), left="")
        self._began_s = time.monotonic()

    def __enter__(self) -> Progressing:
        self._progress.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._progress.stop()

    def began(self, cell: Cell) -> None:
        """A cell is being measured."""
        self._progress.update(self._task, description=f"{self._finished + 1}/{self._total} {cell}")

    def ended(self, cell: Cell, figures: Figures) -> None:
        """A cell is finished; what is left is estimated from how fast the finished ones were."""
        self._finished += 1
        self._done_s += cell.estimate_s
        elapsed_s = time.monotonic() - self._began_s
        left_s = elapsed_s / self._done_s * (self._estimate_s - self._done_s)
        left = f"about {duration(left_s)} left" if self._finished < self._total else ""
        self._progress.update(self._task, completed=self._done_s, left=left)
        if not self._console.is_terminal:
            line = f"{cell}: {figures.wall_s:.3g} s a round; {left or 'all measured'}"
            say(self._console, f"{self._finished}/{self._total}", line)


def duration(seconds: float) -> str:
    """In the unit that reads best."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def cells_table(cells: _Cells) -> Table:
    """Times, with the paper's beside them, and what came before the rounds."""
    title = "seconds of a round; ratio to the paper's: below 1 is faster; set-up once a day"
    columns: _Columns = {
        "wall": lambda one: f"{one.wall_s:.3g}",
        "spread": lambda one: "{:.3g}-{:.3g}".format(*one.spread),
        "agree": lambda one: f"{one.phases['agree']:.2g}",
        "paper": lambda one: _optional(one.paper_s, "g"),
        "ratio": lambda one: _optional(one.ratio, ".2f"),
        "set-up": lambda one: f"{one.sessions_wall_s + (one.first_round_wall_s or 0.0):.3g}",
    }
    return _of_cells(title, cells, columns)


def uses_table(cells: _Cells) -> Table:
    """Where core time goes for each contribution, beside the floor; what a client sends and gets; and memory."""

    def us(role: str, one: Figures) -> str:
        return _optional((one.us_per_contribution or {}).get(role), ".0f")

    def each(figure: str, one: Figures, show: Callable[[float], str], unknown: str = "") -> str:
        """Of one client, in the mean."""
        by_role: dict[str, float] | None = getattr(one, figure)
        return unknown if by_role is None else show(by_role["client"] / one.clients)

    others = sorted({role for one in cells for role in one.core_s_by_role} - _ROLES.keys())
    columns: _Columns = {
        "client": lambda one: f"{us('client', one)} ({one.floor_us['client']:.0f})",
        "nodes": lambda one: f"{us('compute', one)} ({one.floor_us['compute']:.0f})",
        **{role: lambda one, role=role: us(role, one) for role in others},  # type: ignore[misc]
        "msgs": lambda one: " + ".join(each(way, one, "{:.3g}".format, "?") for way in ("messages", "received")),
        "sent": lambda one: each("bytes", one, _bytes),
        "got": lambda one: each("received_bytes", one, _bytes),
        "peak": lambda one: f"{one.peak_rss_mb:.0f}",
    }
    return _of_cells("core µs of a contribution (bare cryptography); a client's traffic; peak MiB", cells, columns)


def dropouts_table(cells: _Cells) -> Table:
    """What T costs in noise, and what it buys."""

    def of_ideal(one: Figures) -> str:
        return f"{one.noise_sd / one.noise_sd_ideal:.3f}" if one.noise_sd and one.noise_sd_ideal else ""

    columns: _Columns = {
        "T": lambda one: f"{one.tolerated:,}",
        "drop rate": lambda one: f"{100 * one.drop_rate:g} %",
        "noise sd": lambda one: _optional(one.noise_sd, ".4g"),
        "of ideal": of_ideal,
        "results": lambda one: f"{100 * one.success_rate:.0f} %",
        "expected": lambda one: f"{100 * one.success_expected:.1f} %",
        "wall s": lambda one: f"{one.wall_s:.3g}",
    }
    return _of_cells("drop-outs", cells, columns)


def busy_lines(cells: _Cells) -> Iterator[tuple[str, str]]:
    """A doubt about wall times: processes in virtual time wait for each other, and else for nothing but a core."""
    waits = [
        (one.processes * one.wall_s - (one.waiting_s or 0.0)) / one.core_s for one in cells if one.backend == EMULATED
    ]
    if waits and max(waits) > _BUSY:
        awake = f"processes were awake for up to {max(waits):.1f} times their core time"
        yield "busy", f"{awake}: other work, or more processes than cores, took the cores; measure anew"


def slower_lines(cells: _Cells) -> Iterator[tuple[str, str]]:
    """Where the time of a cell goes that is slower than the paper's."""
    for one in cells:
        if (one.ratio or 0) <= 1:
            continue
        phases = ", ".join(f"{name} {seconds:.3g}" for name, seconds in one.phases.items())
        roles = ", ".join(f"{_ROLES.get(role, role)} {seconds:.3g}" for role, seconds in one.core_s_by_role.items())
        size = "N = {}, d = {}, M = {}".format(*_size(one))
        yield "slower", f"{size} than the paper: wall seconds: {phases}; core seconds: {roles}"


def growth_lines(fits: Mapping[str, Growth]) -> Iterator[tuple[str, str]]:
    """Exponents with their intervals."""
    for figure, fit in fits.items():
        powers = ", ".join(
            f"{symbol}^{one.value:.2f} ({one.interval[0]:.2f} to {one.interval[1]:.2f})"
            for symbol, one in fit.exponents.items()
        )
        yield "growth", f"{_FIGURES[figure]} of {fit.cells} cells as {powers}, 95 %; residuals {100 * fit.spread:.0f} %"


def memory_lines(cells: _Cells) -> Iterator[tuple[str, str]]:
    """What a Compute node holds for each client, at the smallest and the largest N of the largest d."""
    weighed = [one for one in cells if one.compute_memory_bytes]
    if not weighed:
        return
    dimension, computes = max((one.dimension, one.computes) for one in weighed)
    row = [one for one in weighed if (one.dimension, one.computes) == (dimension, computes)]
    each = {one.clients: (one.compute_memory_bytes or 0) / one.clients for one in row}
    ends = ", ".join(f"{each[clients]:,.0f} B at N = {clients:,}" for clients in sorted({min(each), max(each)}))
    most = max(row, key=lambda one: one.clients)
    kept, after = (
        (value or 0) / most.clients for value in (most.compute_memory_least_bytes, most.compute_memory_after_bytes)
    )
    yield (
        "memory",
        f"a Compute node holds for each client, d = {dimension:,}, M = {computes}: {ends}; {kept:,.0f} B of it are the "
        f"contributions that it holds, kept until the set is agreed; the rest is sessions and keys, whatever d is, "
        f"and a few vectors, whatever N is; {after:,.0f} B stay when the round is over",
    )


def held_out_table(held_out: Iterable[HeldOut]) -> Table:
    """Cells that were measured and not fitted: the error of each figure, a row for each cell."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for one in held_out:
        rows.setdefault(_size(one), {})[one.quantity] = f"{100 * one.error:+.0f}"
    title = "largest cells, predicted from others, errors in %; from msgs on a node's"
    found = [(*size, *(errors.get(quantity, "") for quantity in _ERRORS.values())) for size, errors in rows.items()]
    return _table(title, ("N", "d", "M", *_ERRORS), found)


def is_far_off(held_out: Sequence[HeldOut]) -> bool:
    """Whether a prediction of a held-out cell errs by more than predictions may."""
    return abs(worst(held_out).error) > ERROR_MAX


def held_out_line(held_out: Sequence[HeldOut]) -> str:
    """Whether predictions are worth their name."""
    one = worst(held_out)
    verdict = "MORE than" if is_far_off(held_out) else "within"
    return (
        f"of held-out cells, all that is predicted errs by at most {100 * abs(one.error):.0f} % ({one.quantity}): "
        f"{verdict} {100 * ERROR_MAX:.0f} %; sessions and key agreement are rough figures"
    )


def prediction_table(prediction: Prediction) -> Table:
    """What a round needs: a column for each role."""
    title = f"a round of N = {prediction.clients:,}, d = {prediction.dimension:,}, M = {prediction.computes}"
    needs = prediction.roles.values()
    reaches = [[100 * (end / need.core_s.value - 1) for end in need.core_s.interval] for need in needs]
    rows = {
        "there are": [f"{need.actors:,}" for need in needs],
        "core seconds, each": [f"{need.core_s_each:,.3g}" for need in needs],
        "core seconds, all": [f"{need.core_s.value:,.3g}" for need in needs],
        "  refits, 95 %": ["{:+.0f} to {:+.0f} %".format(*reach) for reach in reaches],
        "traffic, each": [_bytes(need.bytes_each) for need in needs],
        "memory, each": ["" if need.memory_bytes_each is None else _bytes(need.memory_bytes_each) for need in needs],
        "messages sent, all": [f"{need.messages:,.4g}" for need in needs],
        "machines, all": [
            "their own" if need.machines is None else f"{need.machines:,} ({need.tightest})" for need in needs
        ],
    }
    header = ("", *(_ROLES[role] for role in prediction.roles))
    return _table(f"{title} in {duration(prediction.round_s)}", header, [(name, *row) for name, row in rows.items()])


def broker_line(prediction: Prediction) -> str:
    """What passes through the broker."""
    need = prediction.broker
    return (
        f"{need.messages:,.4g} messages in and out, {need.messages_s:,.0f} a second, {need.bytes_s / 1e6:,.1f} MB/s: "
        f"{need.machines:,} {'machine' if need.machines == 1 else 'machines'} ({need.tightest})"
    )


def _size(one: Size) -> tuple[str, str, str]:
    return f"{one.clients:,}", f"{one.dimension:,}", str(one.computes)


def _of_cells(title: str, cells: _Cells, columns: _Columns) -> Table:
    """A table with a row for each cell."""
    rows = [(*_size(one), *(say_it(one) for say_it in columns.values())) for one in cells]
    return _table(title, ("N", "d", "M", *columns), rows)


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in header:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"
