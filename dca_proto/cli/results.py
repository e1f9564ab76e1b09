"""`dca results` shows what standing jobs have found: a series of estimates with intervals, and why it has gaps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from dca_proto import drawing
from dca_proto.cli.options import Json, Plot, require_known
from dca_proto.cli.output import draw, require_plot_target, result_console, say, table
from dca_proto.cli.schedule_file import results_path
from dca_proto.errors import UsageError
from dca_proto.jobs.series import Series
from dca_proto.privacy.rounding import at_least
from dca_proto.results.figure import about
from dca_proto.results.series import BEGUN, DONE, SeriesEstimate, SeriesSlot
from dca_proto.runtime.files import write_json
from dca_proto.wording import counted
from inference.jobs.estimates import interval_words

EXAMPLES = """Examples:

  dca results                                          the jobs, how many slots are done, and the last result of each
  dca results "daily mean" --last 7 --plot week.png
  dca results "daily mean" --json - | jq '.slots[] | {slot, reason, mean: .result.estimates[0].estimate}'
  dca results "daily mean" --schedule other.toml --estimate mean

The schedule may run meanwhile.
"""
_PANELS_MAX, _SHOWN_MAX = 4, 4


class SeriesOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A job's series at a glance."""

    title: Annotated[str, about("The job.")]
    done: Annotated[int, about("Slots with a result.")]
    gaps: Annotated[int, about("Slots that ended without one.")]
    last: Annotated[SeriesSlot | None, about("The last slot with a result.")]


class SeriesResults(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dca results --json`: all jobs, or the slots of one."""

    file: Annotated[str, about("The database.")]
    jobs: Annotated[list[SeriesOverview], about("All jobs; empty if one is named.")] = []
    title: Annotated[str, about("The named job.")] = ""
    slots: Annotated[list[SeriesSlot], about("Its slots, in order, gaps included.")] = []


OUTPUT = SeriesResults


def results(
    title: Annotated[str | None, typer.Argument(help="The job's title; by default all jobs at a glance.")] = None,
    schedule: Annotated[Path, typer.Option(help="The file of standing jobs, or its database of results.")] = Path(
        "jobs.toml"
    ),
    last: Annotated[int | None, typer.Option(min=1, help="Only the last so many slots.")] = None,
    estimate: Annotated[str | None, typer.Option(help="Only the estimate of this name.")] = None,
    plot: Plot = None,
    json_to: Json = None,
) -> None:
    """Show the results of standing jobs: estimates with 95 % intervals, and the reasons of gaps."""
    console = result_console(json_to)
    require_plot_target(plot)
    if title is None and (last, estimate, plot) != (None, None, None):
        raise UsageError(
            "--last, --estimate and --plot are of one job; name it first, as in: dca results TITLE --last 7"
        )
    with Series(results_path(schedule), read_only=True) as series:
        if title is None:
            found = SeriesResults(file=str(series.path), jobs=[_overview(series, each) for each in series.jobs()])
        else:
            slots = [_only(one, estimate) for one in series.slots(title, last)]
            found = SeriesResults(file=str(series.path), title=title, slots=slots)
    write_json(found, json_to)
    if title is None:
        _show_overview(console, found.jobs)
        return
    show(console, found.slots, title)
    if plot is not None and draw(console, plot, lambda place: plot_series(found.slots, title, place)):
        say(console, "picture", str(plot))


def _overview(series: Series, title: str) -> SeriesOverview:
    counts = series.all_counts(title)
    return SeriesOverview(
        title=title, done=counts.done, gaps=counts.failed + counts.missed, last=series.last_done(title)
    )


def _only(slot: SeriesSlot, estimate: str | None) -> SeriesSlot:
    """Return a slot with the named estimate only. Raises `UsageError` if its result lacks it."""
    if estimate is None or slot.result is None:
        return slot
    names = [one.name for one in slot.result.estimates]
    require_known("--estimate", estimate, names)
    kept = [one for one in slot.result.estimates if one.name == estimate]
    return msgspec.structs.replace(slot, result=msgspec.structs.replace(slot.result, estimates=kept))


def _show_overview(console: Console, jobs: Sequence[SeriesOverview]) -> None:
    if not jobs:
        say(console, "results", "no slot has begun yet")
        return
    rows = [(job.title, f"{job.done:,}", f"{job.gaps:,}", *_last_words(job.last)) for job in jobs]
    console.print(table(("", "done", "gaps", "last", "result"), rows))


def _last_words(last: SeriesSlot | None) -> tuple[str, str]:
    if last is None or last.result is None:
        return "–", "–"
    return last.slot, ", ".join(f"{one.name} {_words(one)}" for one in last.result.estimates[:_SHOWN_MAX])


def _words(one: SeriesEstimate) -> str:
    if one.estimate is None:
        return "–"
    return f"{interval_words(one.estimate, one.interval_95)}{f' {one.unit}' if one.unit else ''}"


def show(console: Console, slots: Sequence[SeriesSlot], title: str) -> None:
    """Print a row for each slot; gaps with their reasons below the table, those with one reason together."""
    names = list(dict.fromkeys(one.name for slot in slots if slot.result for one in slot.result.estimates))[:_SHOWN_MAX]
    rows = []
    for slot in slots:
        by_name = {one.name: _words(one) for one in slot.result.estimates} if slot.result else {}
        without = "runs now" if slot.state == BEGUN else "gap"
        cells = [by_name.get(name, without) for name in names or [""]]
        contributors = f"{slot.result.contributors:,}" if slot.result and slot.result.contributors else ""
        rows.append((slot.slot, *cells, contributors))
    console.print(table((title, *(names or [""]), "contributors"), rows))
    done = [slot.result for slot in slots if slot.result]
    costs = {(one.epsilon, one.delta) for one in done if one.epsilon is not None and one.delta is not None}
    for epsilon, delta in sorted(costs):
        say(console, "spent", f"epsilon {at_least(epsilon or 0)}, delta {at_least(delta or 0)} by each slot")
    reasons: dict[str, list[str]] = {}
    for slot in slots:
        if slot.reason:
            kept = " (its charge remains)" * slot.charged
            reasons.setdefault(slot.reason + kept, []).append(slot.slot)
    for reason, named in reasons.items():
        which = named[0] if len(named) == 1 else f"{named[0]} to {named[-1]}, {counted(len(named), 'slot')}"
        say(console, "gap", f"{which}: {reason}")
    for warning in dict.fromkeys(text for one in done for text in one.warnings):
        say(console, "warning", warning)


# --- the picture ------------------------------------------------------------------------------------------------------


def plot_series(slots: Sequence[SeriesSlot], title: str, path: Path) -> None:
    """Draw each estimate over time with its intervals; gaps are marked. The suffix selects the format."""
    first = next((slot.result for slot in slots if slot.result), None)
    if first is None:
        raise ValueError("no slot has a result")
    names = [one.name for one in first.estimates][:_PANELS_MAX]
    with drawing.picture(8, 1.2 + 2.4 * len(names)) as figure:
        panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
        for axes, name in zip(panels, names, strict=True):
            _panel(axes, slots, name)
        handles, labels = panels[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", frameon=False)
        figure.suptitle(drawing.name(f"{title}: estimates with 95 % intervals"), fontsize=11)
        figure.savefig(path, dpi=drawing.DPI)


def _panel(axes: Any, slots: Sequence[SeriesSlot], name: str) -> None:
    found = [
        (_time(slot), one.estimate, one.interval_95 or [one.estimate, one.estimate], one.unit)
        for slot in slots
        for one in (slot.result.estimates if slot.result else [])
        if one.name == name and one.estimate is not None
    ]
    times, values, ends = [each[0] for each in found], [each[1] for each in found], [each[2] for each in found]
    below = [value - low for value, (low, _) in zip(values, ends, strict=True)]
    above = [high - value for value, (_, high) in zip(values, ends, strict=True)]
    colour = drawing.PALETTE[0]
    size = 4 if len(found) <= 60 else 2
    axes.errorbar(
        times, values, yerr=[below, above], fmt="o", markersize=size, capsize=2, color=colour, elinewidth=1, linewidth=0
    )
    gaps = [_time(slot) for slot in slots if slot.state not in (DONE, BEGUN)]
    for number, at in enumerate(gaps):
        axes.axvline(at, color=drawing.WARNING, linestyle=":", linewidth=1, label="gap" if not number else None)
    unit = next((each[3] for each in found if each[3]), "")
    axes.set_ylabel(drawing.name(f"{name} ({unit})" if unit else name))
    axes.grid(color=drawing.GRID, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", rotation=30)


def _time(slot: SeriesSlot) -> datetime:
    return datetime.fromtimestamp(slot.at_ms / 1000, UTC)
