"""`dca swarm --dimension`: holds a fleet's rounds with their progress on the console, then shows what they took."""

from __future__ import annotations

import msgspec
from rich.console import Console

from dca_proto.cli.output import STDOUT, require_json_target, say, write_json
from dca_proto.core.errors import RoundAborted
from dca_proto.device import complete
from dca_proto.privacy.rounding import claim_words
from emulator.results import Run
from emulator.swarm.fleet import Fleet, hold_rounds
from emulator.swarm.fleet_options import FleetOptions
from emulator.swarm.progress import Bars, Lines
from emulator.swarm.summary import doubts
from emulator.swarm.view import aborted_lines, fleet_lines, roles_table, rounds_table, times_table

CLIENTS = 1000
TERMINATED = 143


def hold_fleet(options: FleetOptions, json_to: str | None) -> int:
    """Hold the rounds, show and write what they took; the exit code.

    Raises:
        RoundAborted: one was aborted; what they took is shown all the same.
        UsageError, TransportError: as `run_fleet`.
    """
    require_json_target(json_to)
    options.check()
    console = Console(stderr=json_to == STDOUT)
    _say_plan(console, options)
    view = (Bars if console.is_terminal else Lines)(console, options.clients)
    with view:
        run = complete(hold_rounds(options, view, lambda fleet: _say_broker(console, options, fleet)))
    if run is None:
        return TERMINATED
    write_json(msgspec.to_builtins(run), json_to)
    _show(console, run)
    if not run.ok:
        raise RoundAborted(run.error or "", contributors=run.contributors_found, needed=run.contributors_needed)
    return 0


def _say_plan(console: Console, options: FleetOptions) -> None:
    say(
        console,
        "federation",
        f"{options.clients} clients in {options.processes} processes, {options.computes} Compute nodes, "
        f"T = {options.tolerated} (c = {options.colluders} reserved for colluders), "
        f"K = {options.dropped} drop in each round",
    )
    doubted, budget = doubts((), options.mechanism), options.budget
    cost = f"{claim_words(budget.epsilon, budget.delta)} in all"
    counted = f"{options.rounds} rounds" if options.rounds > 1 else "1 round"
    numbers = f"{options.dimension} numbers" if options.dimension > 1 else "1 number"
    terms = f"not private: {'; '.join(doubted)}" if doubted else cost
    say(console, "plan", f"{counted} of a synthetic sum of {numbers}; {terms}")


def _say_broker(console: Console, options: FleetOptions, fleet: Fleet) -> None:
    name = f"{fleet.broker_kind} {fleet.broker_version}".strip()
    kind = "one for each client" if options.connections == "each" else "clients share one in each process"
    say(console, "broker", f"{name} at {fleet.broker_url}, {options.connected} connections ({kind})")


def _show(console: Console, run: Run) -> None:
    console.print(rounds_table(run), times_table(run), roles_table(run))
    for line in (*aborted_lines(run), *fleet_lines(run)):
        say(console, *line)
