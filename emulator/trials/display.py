"""What a person sees of trials and sweeps: tables, and for a failure all that is needed to look into it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from dca_proto.cli.output import say
from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE
from emulator.trials.scenario import LDP_REPORT, NODE_RELEASE, Adversary, Fault, Scenario
from emulator.trials.scenario_file import from_plain, to_toml
from emulator.trials.sweep import Failure, Sweep

LIVENESS_NAME = "live after healing"
_FACTS_SHOWN = 12
_FAILURES_SHOWN = 5


def show_trial(console: Console, result: dict[str, Any]) -> None:
    """Everything about one trial; `result` is its JSON."""
    say(console, "scenario", _scenario(result))
    console.print(rounds_table(result))
    if result["faults"] or _adversaries(result):
        console.print(faults_table(result))
    console.print(invariants_table(result))
    say(console, "digest", result["digest"])
    say(console, "time", f"{result['virtual_s']:.0f} s of virtual time in {result['wall_s']:.2f} s")


def _scenario(result: dict[str, Any]) -> str:
    population, rounds = result["options"]["population"], result["options"]["rounds"]
    asked = f"{population['statistic']} with d = {population['dimension']}"
    if rounds["kind"] == LDP_REPORT:
        return f"seed {result['seed']}: {population['clients']} clients that report by {rounds['mechanism']}; {asked}"
    if rounds["kind"] == NODE_RELEASE:
        return (
            f"seed {result['seed']}: {population['clients']} data nodes, releases of at most {rounds['rows_max']} "
            f"rows of each; {asked}"
        )
    return (
        f"seed {result['seed']}: {population['clients']} clients, {population['computes']} Compute nodes, "
        f"T = {rounds['tolerated']}, c = {rounds['colluders']}; {asked}"
    )


def rounds_table(result: dict[str, Any]) -> Table:
    """How each round ended."""
    table = _table("round", "N", "in sum", "needed", "noise / floor", "ended")
    asked_for = result["options"]["rounds"]["count"]
    for number, one in enumerate(result["outcome"]["rounds"], 1):
        ratio = "" if not one["noise_floor"] else f"{one['noise_variance'] / one['noise_floor']:.2f}"
        ended = one["result"] if not one["reason"] else f"{one['result']}: {one['reason']}"
        if number > asked_for:
            ended += " (the one after healing)"
        counts = (_number(one["clients"]), _number(one["contributors"]), _number(one["needed"]))
        table.add_row(one["round_id"][:8], *counts, ratio, ended)
    return table


def faults_table(result: dict[str, Any]) -> Table:
    """What was to go wrong, and whether it did."""
    table = _table("fault", "at", "from", "to", "reached", "what it is")
    for one in result["faults"]:
        until = "" if one["until_ms"] is None else _seconds(one["until_ms"])
        reached = "yes" if one["reached"] else "no"
        table.add_row(one["kind"], one["actor"], _seconds(one["at_ms"]), until, reached, FAULTS[one["kind"]].does)
    for one in _adversaries(result):
        table.add_row(one["kind"], one["actor"], "", "", "", HOSTILE[one["kind"]].does)
    return table


def invariants_table(result: dict[str, Any]) -> Table:
    """The ten, and liveness."""
    table = _table("", "invariant", "checked", "result")
    for one in result["invariants"]:
        table.add_row(str(one["number"]), one["name"], f"{one['checked']:,}", _verdict(one["ok"], one["detail"]))
    outcome = result["outcome"]
    table.add_row("", LIVENESS_NAME, "", _verdict(outcome["live"], "; ".join(outcome["why"]), outcome["further"]))
    return table


def _verdict(holds: bool, detail: str | None, note: str = "") -> str:
    if holds:
        return f"holds ({note})" if note.startswith("not") else "holds"
    return f"BROKEN: {detail}"


def show_sweep(console: Console, found: Sweep) -> None:
    """The sum of a sweep, then its failures."""
    if found.run:
        console.print(coverage_table(found))
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


def coverage_table(found: Sweep) -> Table:
    """In how many trials each kind was reached, in two columns."""
    table = _table("fault", "trials", "fault", "trials")
    kinds = sorted(found.coverage.items(), key=lambda item: (-item[1], item[0]))
    cells = [(kind, str(count)) for kind, count in kinds] + [("", "")] * (len(kinds) % 2)
    half = len(cells) // 2
    for left, right in zip(cells[:half], cells[half:], strict=True):
        table.add_row(*left, *right)
    return table


def show_failure(console: Console, failure: Failure) -> None:
    """What was broken, by which scenario, and what to do next."""
    what = f"seed {failure.seed}: {_invariant(failure)}"
    if failure.invariant is None:
        say(console, "FAILED", what)
        _print(console, failure.detail.splitlines())
    else:
        say(console, "FAILED", f"{what}: {failure.detail}")
    plain = failure.shrunk or failure.options
    if plain is not None:
        say(console, "scenario", "shrunk, as TOML:" if failure.shrunk else "as TOML:")
        _print(console, _short_toml(plain))
    if failure.facts:
        say(console, "before", "")
        _print(console, failure.facts[-_FACTS_SHOWN:])
    say(console, "replay", failure.replay)


def _invariant(failure: Failure) -> str:
    if failure.invariant is None:
        return "no result"
    return f"invariant {failure.invariant} ({failure.name})" if failure.invariant else LIVENESS_NAME


def _short_toml(plain: dict[str, Any]) -> list[str]:
    """Only what differs from the defaults, which `dca emulate run` fills in again."""
    usual = Scenario(faults=(Fault(kind="", actor=""),), adversaries=(Adversary(kind="", actor=""),))
    defaults = {head: set(lines) for head, lines in _tables(to_toml(usual))}
    kept = [
        (head, [line for line in lines if line not in defaults[head]])
        for head, lines in _tables(to_toml(from_plain(plain)))
    ]
    return [line for head, lines in kept if lines for line in (head, *lines) if line]


def _tables(toml: str) -> list[tuple[str, list[str]]]:
    """A TOML file's tables: each head with its lines, what stands before all of them first."""
    tables: list[tuple[str, list[str]]] = [("", [])]
    for line in toml.splitlines():
        if line.startswith("["):
            tables.append((line, []))
        elif line:
            tables[-1][1].append(line)
    return tables


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(f"    {line}", highlight=False, markup=False, soft_wrap=True)


def _adversaries(result: dict[str, Any]) -> list[dict[str, Any]]:
    return list(result["options"].get("adversaries", []))


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        right = name in ("N", "in sum", "needed", "noise / floor", "checked", "trials", "from", "to")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    return table


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _seconds(at_ms: int) -> str:
    return f"{at_ms / 1000:.1f} s"
