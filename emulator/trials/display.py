"""What the terminal shows of trials and sweeps: tables, and all that is needed to look into a failure."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

from dca_proto.cli.output import say
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.outcome import Outcome
from emulator.trials.scenario import LDP_REPORT, NODE_RELEASE
from emulator.trials.scenario_file import from_plain, to_toml
from emulator.trials.sweep import Failure, Sweep

LIVENESS_NAME = "live after healing"
_FACTS_SHOWN = 12
_FAILURES_SHOWN = 5


def show_trial(console: Console, outcome: Outcome) -> None:
    """Everything about one trial."""
    say(console, "scenario", _scenario(outcome))
    console.print(_rounds_table(outcome))
    if outcome.faults or outcome.options.get("adversaries"):
        console.print(_faults_table(outcome))
    table, ended = _table("", "invariant", "checked", "result"), outcome.ended
    for one in outcome.invariants:
        table.add_row(str(one.number), one.name, f"{one.checked:,}", "holds" if one.ok else f"BROKEN: {one.detail}")
    note = f" ({ended.further})" if (ended.further or "").startswith("not") else ""
    table.add_row("", LIVENESS_NAME, "", f"holds{note}" if ended.live else f"BROKEN: {'; '.join(ended.why)}")
    console.print(table)
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
    limits = f"T = {rounds['tolerated']}, c = {rounds['colluders']}"
    return f"{who} clients, {population['computes']} Compute nodes, {limits}; {asked}"


def _rounds_table(outcome: Outcome) -> Table:
    table = _table("round", "N", "in sum", "needed", "noise / floor", "ended")
    for number, one in enumerate(outcome.ended.rounds, 1):
        ratio = f"{one.noise_variance / one.noise_floor:.2f}" if one.noise_floor and one.noise_variance else ""
        ended = one.result if not one.reason else f"{one.result}: {one.reason}"
        if number > outcome.options["rounds"]["count"]:
            ended += " (the one after healing)"
        counts = ("" if count is None else str(count) for count in (one.clients, one.contributors, one.needed))
        table.add_row(one.round_id[:8], *counts, ratio, ended)
    return table


def _faults_table(outcome: Outcome) -> Table:
    table = _table("fault", "at", "from", "to", "reached", "what it is")
    for one in outcome.faults:
        until = "" if one.until_ms is None else _seconds(one.until_ms)
        reached = "yes" if one.reached else "no"
        table.add_row(one.kind, one.actor, _seconds(one.at_ms), until, reached, FAULTS[one.kind].does)
    for hostile in outcome.options.get("adversaries", ()):
        table.add_row(hostile["kind"], hostile["actor"], "", "", "", HOSTILE[hostile["kind"]].does)
    return table


def show_sweep(console: Console, found: Sweep) -> None:
    """The sum of a sweep, then its failures."""
    if found.run:  # in how many trials each kind was reached, in two columns
        table = _table("fault", "trials", "fault", "trials")
        kinds = sorted(found.coverage.items(), key=lambda item: (-item[1], item[0]))
        cells = [(kind, str(count)) for kind, count in kinds] + [("", "")] * (len(kinds) % 2)
        half = len(cells) // 2
        for left, right in zip(cells[:half], cells[half:], strict=True):
            table.add_row(*left, *right)
        console.print(table)
    rounds = ", ".join(f"{count} {result}" for result, count in sorted(found.rounds.items()))
    say(console, "rounds", rounds or "none")
    say(console, "checked", f"{sum(found.checked.values()):,} facts against eleven invariants")
    if found.run and (never := found.never_reached):
        all_of = len(found.coverage) + len(found.transitions)
        say(console, "not reached", f"{len(never)} of {all_of} kinds and transitions: {'; '.join(never)}")
    for failure in found.failed[:_FAILURES_SHOWN]:
        show_failure(console, failure)
    rest = found.failed[_FAILURES_SHOWN:]
    if rest:
        say(console, "and", f"{len(rest)} more: seeds {', '.join(str(one.seed) for one in rest[:20])}")
    rate = f"{found.run / found.wall_s:.1f} a second" if found.wall_s else "none done"
    say(console, "sweep", f"{found.run} scenarios in {found.wall_s:.0f} s, {rate}; {len(found.failed)} failures")


def show_failure(console: Console, failure: Failure) -> None:
    """What was broken, by which scenario, and what to do next."""
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
        console.print(f"    {line}", highlight=False, markup=False, soft_wrap=True)


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        right = name in ("N", "in sum", "needed", "noise / floor", "checked", "trials", "from", "to")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    return table


def _seconds(at_ms: int) -> str:
    return f"{at_ms / 1000:.1f} s"
