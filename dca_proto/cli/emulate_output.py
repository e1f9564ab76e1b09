"""Terminal output of trials and sweeps: tables, and for each failure its scenario and the facts before it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from dca_proto.cli.output import say
from dca_proto.cli.show import show
from dca_proto.protocol.wire.kinds import LDP_REPORT, NODE_RELEASE
from dca_proto.report.blocks import PageTable
from emulator.report import emulation as view
from emulator.report import sweep as view_of_sweep
from emulator.trials.outcome import LIVENESS_NAME, Outcome
from emulator.trials.scenario_file import from_plain, to_toml
from emulator.trials.sweep import Failure, Sweep

_FACTS_SHOWN = 12
_FAILURES_SHOWN = 5


def show_trial(console: Console, outcome: Outcome) -> None:
    """Print one trial."""
    say(console, "scenario", _scenario(outcome))
    parts = (view.rounds, view.faults, view.adversaries, view.invariants)
    show(console, [block for part in parts for block in part(outcome)])
    if why := view.all_declined(outcome):
        say(console, "declined", why)
    say(console, "digest", outcome.digest)
    say(console, "time", f"{outcome.virtual_s:.0f} s of virtual time in {outcome.wall_s:.2f} s")


def _scenario(outcome: Outcome) -> str:
    population, rounds = outcome.options["population"], outcome.options["rounds"]
    asked = f"{population['statistic']} with d = {population['dimension']}"
    who = f"seed {outcome.seed}: {population['clients']}"
    if rounds["kind"] == LDP_REPORT:
        return f"{who} clients that report by {rounds['mechanism']}; {asked}"
    if rounds["kind"] == NODE_RELEASE:
        return f"{who} data nodes, releases of at most {rounds['rows_max']} rows of each; {asked}"
    limits = f"T = {rounds['tolerate']}, c = {rounds['colluders']}"
    return f"{who} clients, {population['computes']} Compute nodes, {limits}; {asked}"


def show_sweep(console: Console, sweep: Sweep) -> None:
    """Print the totals of a sweep, then its failures."""
    if sweep.run:
        show(console, [_coverage(sweep)])
    rounds = ", ".join(f"{count} {result}" for result, count in sorted(sweep.rounds.items()))
    say(console, "rounds", rounds or "none")
    if sweep.declined:
        why = ", ".join(
            f"{count} {reason}" for reason, count in sorted(sweep.declined.items(), key=lambda one: -one[1])
        )
        say(console, "declined", f"{sum(sweep.declined.values())} rounds by everybody: {why}")
    say(console, "checked", f"{sum(sweep.checked.values()):,} facts against {len(sweep.invariants)} invariants")
    if sweep.noise is not None:
        say(console, "noise", view_of_sweep.noise_line(sweep.noise))
    if sweep.run and (never := sweep.never_reached):
        all_of = len(sweep.coverage) + len(sweep.transitions)
        say(console, "not reached", f"{len(never)} of {all_of} kinds and transitions: {'; '.join(never)}")
    for failure in sweep.failed[:_FAILURES_SHOWN]:
        show_failure(console, failure)
    rest = sweep.failed[_FAILURES_SHOWN:]
    if rest:
        say(console, "and", f"{len(rest)} more: seeds {', '.join(str(failure.seed) for failure in rest[:20])}")
    rate = f"{sweep.run / sweep.wall_s:.1f} a second" if sweep.wall_s else "none done"
    say(console, "sweep", f"{sweep.run} scenarios in {sweep.wall_s:.0f} s, {rate}; {len(sweep.failed)} failures")


def _coverage(sweep: Sweep) -> PageTable:
    """Return a table, two kinds to a row, of the number of trials that reached each kind."""
    kinds = sorted(sweep.coverage.items(), key=lambda item: (-item[1], item[0]))
    cells = [(kind, str(count)) for kind, count in kinds] + [("", "")] * (len(kinds) % 2)
    half = len(cells) // 2
    pairs = zip(cells[:half], cells[half:], strict=True)
    return PageTable(("fault", "trials", "fault", "trials"), [(*left, *right) for left, right in pairs])


def show_failure(console: Console, failure: Failure) -> None:
    """Print which invariant broke, the scenario, the facts before, and the command that replays it."""
    if failure.invariant is None:
        say(console, "FAILED", f"seed {failure.seed}: no result")
        _print(console, (failure.detail or "").splitlines())
    else:
        name = f"invariant {failure.invariant} ({failure.name})" if failure.invariant else LIVENESS_NAME
        say(console, "FAILED", f"seed {failure.seed}: {name}: {failure.detail}")
    plain = failure.shrunk or failure.options
    if plain is not None:
        say(console, "scenario", "shrunk, as TOML:" if failure.shrunk else "as TOML:")
        _print(console, to_toml(from_plain(plain), short=True).splitlines())
    if failure.facts:
        say(console, "before", "")
        _print(console, failure.facts[-_FACTS_SHOWN:])
    say(console, "replay", failure.replay or "")


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(f"    {line}", soft_wrap=True)
