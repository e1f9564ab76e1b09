"""A sweep over seeds: how many scenarios were held, what faults they reached, and how to replay those that failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from emulator.report.bars import ROWS_MAX, Bar, bars
from emulator.report.figures import count, counted, listed, number, seconds
from emulator.report.markup import Child, code, element
from emulator.report.page import Page, Section, folded, note
from emulator.report.types import Amount, Count

_FAILURES_MAX, _FACTS_MAX = 50, 100


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario that broke an invariant; 0 is liveness, None that there was no result."""

    seed: int | str
    invariant: int | str | None = None
    detail: str | None = None
    replay: str | None = None
    shrunk: dict[str, Any] | None = None
    facts: list[str] = []


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """What the page reads of `dca emulate sweep --json`."""

    ok: bool
    run: Count
    failed: list[Failure]
    coverage: dict[str, Count]
    checked: dict[str, Count] = {}
    rounds: dict[str, Count] = {}
    interrupted: bool = False
    seeds: tuple[Count, Count] | None = None
    wall_s: Amount | None = None
    scenarios_per_s: Amount | None = None


def page(run: Sweep) -> Page:
    """The page of a sweep."""
    sections = [
        Section("Failures", [*_failures(run)]),
        Section("Fault kinds reached", [*_coverage(run)]),
        Section("Checks made", [*_checked(run)]),
    ]
    failed = len({one.seed for one in run.failed})
    title = f"{counted(failed, 'scenario')} of {count(run.run)} broke an invariant" if failed else (
        f"No invariant was broken in {counted(run.run, 'random scenario')}"
    )  # fmt: skip
    return Page(
        kind="Sweep over random scenarios",
        title=title,
        badge="nothing broken" if run.ok else "broken",
        verdict="good" if run.ok else "bad",
        answer=_answer(run),
        facts=[*_facts(run)],
        sections=[section for section in sections if section.content],
    )


def _answer(run: Sweep) -> str:
    missed = [kind for kind, times in run.coverage.items() if not times]
    kinds = f"{count(len(run.coverage) - len(missed))} of {counted(len(run.coverage), 'fault kind')} came to pass"
    took = f" The sweep took {seconds(run.wall_s)}." if run.wall_s is not None else ""
    stopped = " It was interrupted before all seeds were run." if run.interrupted else ""
    return f"{kinds}{'; see below which did not' if missed else ''}.{took}{stopped}"


def _facts(run: Sweep) -> Iterator[tuple[str, str]]:
    if run.seeds is not None:
        yield "seeds", f"{run.seeds[0]} to {run.seeds[1]}"  # names: without separators
    yield "scenarios run", count(run.run)
    yield "failed", count(len(run.failed))
    for result, rounds in run.rounds.items():
        yield f"rounds {result}", count(rounds)
    yield "wall time", seconds(run.wall_s)
    yield "scenarios per second", number(run.scenarios_per_s)


def _failures(run: Sweep) -> Iterator[Child]:
    for one in run.failed[:_FAILURES_MAX]:
        which = "" if one.invariant is None else f", invariant {one.invariant}" if one.invariant else ", not live"
        yield element("h3", f"Seed {one.seed}{which}")
        yield note(one.detail) if one.detail else None
        yield code(one.replay) if one.replay else None
        yield folded("the smaller scenario", one.shrunk) if one.shrunk else None
        yield folded("what was told before", one.facts[-_FACTS_MAX:]) if one.facts else None
    if len(run.failed) > _FAILURES_MAX:
        yield note(f"{count(len(run.failed) - _FAILURES_MAX)} more are in the JSON.")


def _coverage(run: Sweep) -> Iterator[Child]:
    reached = sorted((item for item in run.coverage.items() if item[1]), key=lambda item: -item[1])
    if reached:
        rows = [Bar(kind, times, count(times), 0) for kind, times in reached]
        yield bars(rows, caption="In how many scenarios each kind of fault or hostile actor came to pass.")
    missed = [kind for kind, times in run.coverage.items() if not times]
    if missed:
        yield note(f"Never came to pass: {listed(missed, ROWS_MAX)}.")


def _checked(run: Sweep) -> Iterator[Child]:
    if run.checked:
        rows = [
            Bar(f"invariant {name}", made, count(made) if made else "never", 2) for name, made in run.checked.items()
        ]
        yield bars(rows, caption="How often each invariant was checked, over all scenarios.")
