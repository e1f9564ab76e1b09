"""What a person sees of `dca learn`: its rounds as they end, then estimates and scores; also as plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.spinner import Spinner
from rich.table import Table

from dca_proto.aggregate import LocalReports, NoisyAggregate
from dca_proto.cli.output import say
from dca_proto.cli.reporter import Reporter
from dca_proto.errors import UsageError
from dca_proto.jobs.runner import HeldRound
from dca_proto.protocol import facts
from dca_proto.protocol.federation import Federation
from dca_proto.runtime.outcome import report_values
from dca_proto.runtime.request import NODE_RELEASE
from dca_proto.wording import to_install
from inference.jobs.base import Stage
from inference.jobs.estimates import UNCOVERED, claim, learned_lines, rounded, rows_of, sampling_words, table_of
from inference.jobs.summary import INTERVAL_NOTE, Iterated, Summary
from inference.variational.progress import Iteration

NARRATED_MAX = 4  # rounds whose phases are told; of more, only their ends are
BY_ITSELF = "each report is private by itself; nobody had to be trusted"
_SHOWN_ESTIMATES = 40
_NUMBERS_MAX = 10**6  # of reports, that are written to a file
_BINS = 30
_PHASES = (facts.Announced, facts.Closed)


class ProgressReporter(Reporter):
    """Tells a trainer's facts, and how far the job has come; a job of many rounds gets a line for each.

    On a terminal, a bar shows how many iterations are done, with the score after the last one, in place of their lines.

    Args:
        console, federation, expected: as of `Reporter`. stages: of the job.
    """

    def __init__(self, console: Console, federation: Federation, expected: int, stages: Sequence[Stage]) -> None:
        super().__init__(console, federation, expected)
        self._rounds = sum(stage.rounds for stage in stages)
        self._ended: HeldRound | None = None
        self._recalled = 0
        self._bar = IterationBar(console) if console.is_terminal and self._rounds > NARRATED_MAX else None

    def __enter__(self) -> ProgressReporter:
        if self._bar is None:
            super().__enter__()
        else:
            self._bar.start()
        return self

    def waiting(self, line: str) -> None:
        """Below the bar, where there is one: a console has room for one moving display."""
        if self._bar is None:
            super().waiting(line)
        else:
            self._bar.waiting(line)

    def __call__(self, fact: object) -> None:
        self._tell_recalled()
        if self._rounds <= NARRATED_MAX or not isinstance(fact, _PHASES):
            super().__call__(fact)

    def ended(self, held: HeldRound) -> None:
        """A request of the job has ended; it is told once its sum was used, with the score then."""
        if held.recalled:
            self._recalled += 1
            return
        self._tell_recalled()
        self._tell_ended("")
        self._ended = held

    def iterated(self, iteration: Iteration) -> None:
        """The sum of the round before was used."""
        self._rounds = max(self._rounds, iteration.total + 1)
        if self._bar is not None:
            self._bar.iterated(iteration)
        score = score_words(iteration)
        self._tell_ended(f"; {score}" if score else "", is_shown=self._bar is not None)

    def _tell_ended(self, score: str, *, is_shown: bool = False) -> None:
        """The round that has ended, once; nothing more where the bar shows all that there is to say."""
        held, self._ended = self._ended, None
        if held is None:
            return
        done = f"round {held.number} of {max(self._rounds, held.number)}: {held.request.statistic}"
        if held.aggregate is None:
            self.say(f"{done}: no sum: {held.reason}")
            return
        if is_shown and held.attempts == 1:
            return
        again = f", attempt {held.attempts}" if held.attempts > 1 else ""
        self.say(f"{done}: {_contributed(held.aggregate)}{again}{score}")

    def _tell_recalled(self) -> None:
        """Once, before anything new: how many rounds an earlier call has held."""
        if self._recalled:
            self.say(f"resumed: {self._recalled} of {max(self._rounds, self._recalled)} rounds were held before")
            self._recalled = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell_recalled()
        self._tell_ended("")
        if self._bar is None:
            super().__exit__(kind, error, trace)
        else:
            self._bar.stop()


def _contributed(aggregate: NoisyAggregate) -> str:
    if aggregate.reports is not None:
        return f"{counted(aggregate.contributors, 'client')} reported by {aggregate.mechanism}"
    if aggregate.nodes:
        return f"{counted(aggregate.clients, 'data node')} released, of {counted(aggregate.contributors, 'row')}"
    return f"{aggregate.contributors} of {aggregate.clients} clients contributed"


class IterationBar:
    """On a terminal: a bar over a job's iterations with the score after the last one, and what is waited for now."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[score]}"),
        )
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("iteration", total=None, score="")
        self._now = Spinner("dots")
        self._live = Live(Group(self._progress, self._now), console=console, refresh_per_second=10)

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        """Leave the bar as it is; nothing is waited for any more."""
        self._live.update(self._progress)
        self._live.stop()

    def waiting(self, line: str) -> None:
        self._now.update(text=escape(line))

    def iterated(self, iteration: Iteration) -> None:
        """One is done."""
        score = score_words(iteration)
        self._progress.update(self._task, completed=iteration.number, total=iteration.total, score=score)


def score_words(iteration: Iteration) -> str:
    """Such as "held-out AUC 0.942"; nothing where there is no score."""
    return "" if math.isnan(iteration.value) else f"{iteration.name} {iteration.value:.4g}"


def require_arviz() -> None:
    """Refuse draws that nothing here can write. Raises `UsageError`."""
    if find_spec("arviz") is None:
        raise UsageError(f"--draws needs ArviZ, which is not installed: {to_install('samplers')}")


class LearnSummary(Summary, total=False):
    """What `dca learn` tells of a run: the job's summary and what the trainer knows of the rounds.

    Attributes:
        rounds: each as of `round_row`. contributors_found, contributors_needed: of a round that failed for that.
    """

    kind: str
    error: str | None
    job: str
    federation: str
    settings: dict[str, Any]
    rounds: list[dict[str, Any]]
    contributors_found: int | None
    contributors_needed: int | None


def counted(count: int, noun: str) -> str:
    """Such as "1 round" and "2 rounds"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def round_row(held: HeldRound) -> dict[str, Any]:
    """What is public about a request that has ended; `value` is the noisy sum, in the statistic's own units."""
    aggregate = held.aggregate
    row: dict[str, Any] = {
        "number": held.number,
        "name": held.request.statistic,
        "ok": aggregate is not None,
        "attempts": held.attempts,
        "recalled": held.recalled,
    }
    if aggregate is None:
        return {**row, "error": held.reason, "contributors": None}
    return {
        **row,
        "round_id": aggregate.round_id.hex(),
        "dimension": aggregate.dimension,
        "clients": aggregate.clients,
        "contributors": aggregate.contributors,
        "fewest": aggregate.fewest,
        "noise_variance": aggregate.noise_variance,
        "sensitivity": aggregate.sensitivity,
        "epsilon": aggregate.epsilon,
        "mu": aggregate.mu,
        "value": aggregate.value.tolist(),
        "relation": aggregate.relation,
        "mechanism": aggregate.mechanism,
        "nodes": [_node_row(node) for node in aggregate.nodes],
        "reports": None if aggregate.reports is None else reports_row(aggregate.reports),
    }


def reports_row(reports: LocalReports) -> dict[str, Any]:
    """What clients reported in one round, in the order of their ids; very many numbers are left out."""
    told = msgspec.to_builtins(report_values(reports, most=_NUMBERS_MAX))
    if reports.categories:
        return {**told, "told": _named(reports)}
    return {**told, "histogram": _histogram(reports) if reports.values.shape[1] == 1 else None}


def _named(reports: LocalReports) -> list[int]:
    """How many reports name each category."""
    if reports.values.ndim == 2:
        return [int(count) for count in reports.values.sum(axis=0)]
    return [int(count) for count in np.bincount(reports.values, minlength=reports.categories)]


def _histogram(reports: LocalReports) -> dict[str, Any]:
    """How many reports of one number lie in each of some bins of equal width."""
    counts, edges = np.histogram(reports.values[:, 0], _BINS)
    return {"low": float(edges[0]), "high": float(edges[-1]), "counts": counts.tolist()}


def _node_row(node: NoisyAggregate) -> dict[str, Any]:
    """What one data node released; all that is not here it has in common with the round."""
    return {
        "rows": node.contributors,
        "noise_variance": node.noise_variance,
        "noise_sd": node.noise_variance**0.5,
        "value": node.value.tolist(),
    }


def iteration_row(iteration: Iteration) -> Iterated:
    """The score after an iteration; None where it has none."""
    value = None if math.isnan(iteration.value) else iteration.value
    return {"number": iteration.number, "name": iteration.name, "value": value}


def show(console: Console, summary: LearnSummary) -> None:
    """The answer: estimates with their spreads, what speaks against them, and scores on the trainer's own rows."""
    console.print(_estimates_table(summary))
    for label, text in learned_lines(summary):
        say(console, label, text)
    if summary.get(INTERVAL_NOTE):
        say(console, "intervals", summary[INTERVAL_NOTE])
    for label, text in summary.get("remarks", {}).items():
        say(console, label, text)
    if repair := summary.get("repair"):
        say(console, "repair", repair)
    if sampling := summary.get("sampling"):
        say(console, "sampling", sampling_words(sampling))
    test = summary["test"]
    rows = f"{test['rows']} rows of your own; {UNCOVERED}" if test else ""
    if test and "rmse_private" in test:
        others = f"predicting the mean {test['rmse_zero']:.4g}; {rows}"
        say(console, "test", f"RMSE {test['rmse_private']:.4g} {test.get('unit', '')} ({others})".replace("  ", " "))
    if summary.get("stopped"):
        say(console, "stopped", f"before all planned rounds were held: {summary['stopped']}")
    for score in test.get("scores", []) if test else []:
        others = f"constant prediction {rounded(score['constant'])}; {rows}"
        say(console, "test", f"{score['name']} {rounded(score['private'])} ({others})")
    if summary["private"]:
        whose = "row's" if summary.get("settings", {}).get("kind") == NODE_RELEASE else "participant's"
        spent = f"at most {claim(summary)} of every {whose} budget"
        say(console, "spent", spent + (f"; {BY_ITSELF}" if summary.get("reports") else ""))
    else:
        say(console, "spent", "nothing is claimed: this is not private")


def _estimates_table(summary: Summary) -> Table:
    title, names, rows = table_of(summary, rows_of(summary)[:_SHOWN_ESTIMATES], compared=False)
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in names:
        table.add_column(name, justify="right" if name else "left", no_wrap=name not in ("", "unit"), overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
