"""What a person sees of a swarm: progress bars by phase while it runs, then tables. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from emulator.timeline import PHASES, RoundLog

_SHOWN_ABSENT = 6


class LiveView:
    """Progress of a swarm, a bar for each phase of each round.

    Args:
        console: where to draw; bars vanish when it is not a terminal.
        clients: N.
    """

    def __init__(self, console: Console, clients: int) -> None:
        columns = (
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console)
        self._clients = clients
        self._connecting = self._progress.add_task("connect", total=None)
        self._bars: dict[tuple[float, str], TaskID] = {}
        self._rounds: list[float] = []

    def __enter__(self) -> LiveView:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._progress.stop()

    def connected(self, count: int, total: int) -> None:
        """So many actors of so many have a connection."""
        self._progress.update(self._connecting, completed=count, total=total)

    def changed(self, log: RoundLog) -> None:
        """A round has gone on."""
        if log.began_s not in self._rounds:
            self._rounds.append(log.began_s)
        self._show(log, "join", log.joined, self._clients)
        if "join" in log.ends_s:
            held = min(log.shares.values()) if log.shares else 0
            self._show(log, "share", held, len(log.clients))
        if "share" in log.ends_s:
            self._show(log, "commit", int(log.aggregate is not None), 1)

    def _show(self, log: RoundLog, phase: str, count: int, total: int) -> None:
        key = (log.began_s, phase)
        if key not in self._bars:
            number = self._rounds.index(log.began_s) + 1
            self._bars[key] = self._progress.add_task(f"round {number} {log.statistic}: {phase}", total=total)
        self._progress.update(self._bars[key], completed=count)
        if phase in log.ends_s or log.failure is not None:
            self._progress.stop_task(self._bars[key])


def rounds_table(summary: dict[str, Any]) -> Table:
    """Who took part in each round, and the noise in its sum."""
    names = ("round", "numbers", "joined", "shared", "dropped", "σ of noise")
    rows = [
        (
            row["name"],
            str(row["dimension"]),
            str(row["joined"]),
            _known(row["contributors"]),
            _known(row["dropped"]),
            "not released" if row["noise_variance"] is None else f"{row['noise_variance'] ** 0.5:.3g}",
        )
        for row in summary["rounds"]
    ]
    return _table("rounds", names, rows)


def times_table(summary: dict[str, Any]) -> Table:
    """Seconds of each round and phase, and what all actors sent."""
    names = ("seconds", *PHASES, "in all", "messages", "MB")
    rows = [
        (
            row["name"],
            *(f"{row['phases'][phase]:.2f}" if phase in row["phases"] else "–" for phase in PHASES),
            f"{row['wall_s']:.2f}",
            str(row["messages"]),
            f"{row['bytes'] / 1e6:.2f}",
        )
        for row in summary["rounds"]
    ]
    return _table("times", names, rows)


def dropped_lines(summary: dict[str, Any]) -> list[str]:
    """Who dropped, by the first digits of their ids."""
    lines = []
    for number, row in enumerate(summary["rounds"], 1):
        absent = row.get("absent", [])
        if absent:
            names = ", ".join(name[:6] for name in absent[:_SHOWN_ABSENT])
            more = f" and {len(absent) - _SHOWN_ABSENT} more" if len(absent) > _SHOWN_ABSENT else ""
            lines.append(f"dropped    round {number}: {names}{more}")
    return lines


def _known(count: int | None) -> str:
    return "–" if count is None else str(count)


def _table(title: str, names: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table whose first column is text and whose others are figures."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def coefficients_table(summary: dict[str, Any]) -> Table:
    """Posterior means and standard deviations, private beside non-private, in the user's units."""
    entries = [*summary["coefficients"], {"name": "intercept", "unit": "", **summary["intercept"]}]
    rows = [(row["name"], _pair(row, "private"), _pair(row, "nonprivate"), row["unit"]) for row in entries]
    return _table("posterior, mean ± standard deviation", ("", "private", "without privacy", "unit"), rows)


def _pair(row: dict[str, Any], kind: str) -> str:
    return f"{row[kind]:.4g} ± {row[f'{kind}_sd']:.2g}"


def closing_lines(summary: dict[str, Any]) -> list[str]:
    """The answer in words: test error, what was spent, what the guarantee assumes."""
    test, clients = summary["test"], summary["clients"]
    lines = [
        f"test RMSE  {test['rmse_private']:.4g}   (without privacy {test['rmse_nonprivate']:.4g}; "
        f"predicting the mean {test['rmse_zero']:.4g}; {test['rows']} held-out rows)"
    ]
    if not summary["private"]:
        return [*lines, "not private: the bounds were read from the data, so no privacy may be claimed (a trial only)"]
    honest = clients - summary["tolerated"] - 1
    reserved = summary["colluders"]
    beyond = f"{reserved} more colluding clients" if reserved else "no colluding client beside the one who looks"
    return [
        *lines,
        f"spent      epsilon {summary['epsilon_spent']:.3g} of {summary['epsilon']:.3g} per client, "
        f"delta {summary['delta']:.1g}; nobody saw a single client's numbers",
        f"holds for  up to {summary['computes'] - 1} of {summary['computes']} Compute nodes and the broker colluding, "
        f"and {beyond}: at least {honest} unknown noises are in each sum",
    ]
