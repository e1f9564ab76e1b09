"""What a person sees of a swarm: its progress by phase while it runs, then tables. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from dca_proto.cli.output import say
from emulator.swarm.timeline import PHASES, RoundLog

_SHOWN_ABSENT = 4
_ENDED = {"join": "joined", "share": "shared", "commit": "sum released"}
Line = tuple[str, str]
"""A label and a text, as `say` prints them."""


class Lines:
    """Progress of a swarm in a log or a pipe: a line for each phase as it ends.

    Args:
        console: where to print. clients: N.
    """

    def __init__(self, console: Console, clients: int) -> None:
        self._console = console
        self._clients = clients
        self._told: dict[float, set[str]] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *failure: object) -> None:
        """Nothing to close."""

    def connected(self, count: int, total: int) -> None:
        """The line about the broker says so."""

    def changed(self, log: RoundLog) -> None:
        """A round has gone on."""
        told = self._told.setdefault(log.began_s, set())
        for phase in _ENDED.keys() & log.ends_s.keys() - told:
            told.add(phase)
            say(self._console, f"round {len(self._told)}", f"{log.statistic}: {self._ended(log, phase)}")

    def _ended(self, log: RoundLog, phase: str) -> str:
        counts = {
            "join": f"{log.joined} of {self._clients} ",
            "share": f"{min(log.shares.values(), default=0)} of {len(log.clients)} ",
        }
        return f"{counts.get(phase, '')}{_ENDED[phase]}, {log.phase_s()[phase]:.1f} s"


class Bars:
    """Progress of a swarm on a terminal: a bar for each phase of each round.

    Args:
        console: where to draw. clients: N.
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

    def __enter__(self) -> Bars:
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
            "no result" if row["noise_variance"] is None else f"{row['noise_variance'] ** 0.5:.3g}",
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


def roles_table(summary: dict[str, Any]) -> Table:
    """What each role of a fleet sent and what processor time it took, in all rounds and before."""
    names = ("role", "messages", "MB", "core seconds", "MiB at most")
    peaks = summary["peak_rss_mb_by_process"]
    rows = []
    for role, core_s in summary["core_s_by_role"].items():
        sent = summary["roles"].get(role)
        figures = (str(sent["messages"]), f"{sent['bytes'] / 1e6:.2f}") if sent else ("–", "–")
        peak = max(size for name, size in peaks.items() if name.startswith(role))
        rows.append((role, *figures, f"{core_s:.1f}", f"{peak:.0f}"))
    return _table("roles; memory of the largest process of each", names, rows)


def fleet_lines(summary: dict[str, Any]) -> list[Line]:
    """Who was missing in a fleet's rounds and why, how far off the last sum is, and how long it took to connect."""
    lines = [("connected", f"in {summary['connect_s']:.1f} s, keys and certificates included")]
    for number, row in enumerate(summary["rounds"], 1):
        if row["failed"]:
            lines.append(("failed", f"round {number}: {row['failed']} clients neither declined nor contributed"))
        lines += [("declined", f"round {number}: {count} clients, {why}") for why, count in row["declined"].items()]
    last = summary["rounds"][-1]
    if last["value"] is not None:
        off = max(abs(value - exact) for value, exact in zip(last["value"], last["exact"], strict=True))
        noise = last["noise_variance"] ** 0.5
        lines.append(("sum", f"at most {off:.3g} off the exact one, with noise of standard deviation {noise:.3g}"))
    return lines


def dropped_lines(summary: dict[str, Any]) -> list[Line]:
    """Who dropped, by number (which the seed fixes) and the first digits of the id (which is new in each run)."""
    lines = []
    for number, row in enumerate(summary["rounds"], 1):
        absent = list(zip(row.get("absent_clients", []), row.get("absent", []), strict=True))
        if absent:
            names = ", ".join(f"{place} ({name[:6]})" for place, name in absent[:_SHOWN_ABSENT])
            more = f" and {len(absent) - _SHOWN_ABSENT} more" if len(absent) > _SHOWN_ABSENT else ""
            lines.append(("dropped", f"round {number}: clients {names}{more}"))
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
    rows = [(row["name"], _pair(row, "estimate"), _pair(row, "nonprivate"), row["unit"]) for row in entries]
    label = "private" if summary["private"] else "not private"
    return _table("posterior, mean ± standard deviation", ("", label, "without privacy", "unit"), rows)


def _pair(row: dict[str, Any], kind: str) -> str:
    return f"{row[kind]:.4g} ± {row[f'{kind}_sd']:.2g}"


def closing_lines(summary: dict[str, Any]) -> list[Line]:
    """The answer in words: test error, what was spent, what the guarantee assumes."""
    return [*_error_lines(summary["test"]), *(_privacy_lines(summary) if summary["private"] else _trial_lines(summary))]


def _error_lines(test: dict[str, Any]) -> list[Line]:
    others = (
        f"without privacy {test['rmse_nonprivate']:.4g}; predicting the mean {test['rmse_zero']:.4g}; "
        f"{test['rows']} held-out rows"
    )
    lines = [("test RMSE", f"{test['rmse_private']:.4g} ({others})")]
    if test["rmse_private"] >= test["rmse_zero"]:
        lines.append(("", "no better than predicting the mean: more clients or a larger epsilon would help"))
    return lines


def _trial_lines(summary: dict[str, Any]) -> list[Line]:
    return [("not private", f"{'; '.join(summary['not_private_because'])}: no privacy may be claimed (a trial only)")]


def _privacy_lines(summary: dict[str, Any]) -> list[Line]:
    reserved = summary["colluders"]
    beyond = f"{reserved} more colluding clients" if reserved else "no colluding client beside the one who looks"
    return [
        (
            "spent",
            f"epsilon {summary['epsilon_spent']:.3g} of {summary['epsilon']:.3g} per client, "
            f"delta {summary['delta']:.1g}; nobody saw a single client's numbers",
        ),
        (
            "holds for",
            f"up to {summary['computes'] - 1} of {summary['computes']} Compute nodes and the broker colluding, and "
            f"{beyond}: at least {summary['clients'] - summary['tolerated'] - 1} unknown noises are in each sum",
        ),
    ]
