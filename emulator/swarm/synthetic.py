"""`dca swarm --dimension`: plain rounds of a synthetic sum of d numbers, with as many clients as the machines can run.

The sum is a histogram of one column: client i holds one row of category i modulo d, so the exact counts are known, and
an announcement takes 9 bytes for each number, where a sum of columns takes thirty and reaches the largest announcement,
1 MiB, with fewer numbers. What a client does and sends once it has its vector is the same for every statistic of d
numbers.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console

from dca_proto.aggregate import NoisyAggregate, SecureSumRequest
from dca_proto.cli.output import STDOUT, require_json_target, say, write_json
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import RoundAborted, UsageError
from dca_proto.privacy.rounding import claim_words
from dca_proto.protocol.params import Limits
from dca_proto.runtime.device import complete
from dca_proto.statistics.histogram import BINS_MAX
from emulator.counts import check_counts
from emulator.results import Run
from emulator.swarm.live import Swarm, Watcher
from emulator.swarm.options import SwarmOptions
from emulator.swarm.progress import Bars, Lines
from emulator.swarm.summary import Failure, doubts, summarise
from emulator.swarm.timeline import RoundLog
from emulator.swarm.view import aborted_lines, fleet_lines, roles_table, rounds_table, times_table

CLIENTS = 1000
TERMINATED = 143
COLUMN = "category"
OnProgress = Callable[[str, int, int], None]
"""Is called with a phase (connect, sessions, collect or agree), how many are through with it, and of how many."""


def request(options: SwarmOptions) -> SecureSumRequest:
    """One round: how many clients are in each of d categories."""
    edges = [place - 0.5 for place in range(options.dimension + 1)]
    return SecureSumRequest("histogram", {"columns": [COLUMN], "edges": edges}, 1 / options.rounds)


def check(options: SwarmOptions) -> None:
    """Refuse what cannot be held, before anything is started. Raises `UsageError`."""
    check_counts(options.clients, options.computes, options.tolerated, options.colluders, options.dropped)
    if not 1 <= options.dimension <= BINS_MAX:
        raise UsageError(f"--dimension {options.dimension}: expected 1 to {BINS_MAX}")
    if options.rounds < 1:
        raise UsageError(f"--rounds {options.rounds}: expected 1 or more")
    options.check()
    nobody = tuple(place.to_bytes(ID_BYTES, "big") for place in range(options.computes))
    options.terms(nobody).open(request(options), bytes(ID_BYTES)).draft(options.mechanism, Limits())


def run_rounds(options: SwarmOptions, on_progress: OnProgress = lambda *_: None) -> Run:
    """Start a swarm, hold its rounds, end it, and say what they took; an abort is an outcome, told in the result.

    Raises:
        UsageError: it cannot be held, or a process, the broker or an actor failed.
        TransportError: the broker cannot be reached.
    """
    return asyncio.run(hold_rounds(options, _Progress(options.clients, on_progress)))


async def hold_rounds(
    options: SwarmOptions, watcher: Watcher, on_start: Callable[[Swarm], None] = lambda _: None
) -> Run:
    """As `run_rounds`, in a running loop; `on_start` is called once the broker runs."""
    check(options)
    began_s = time.monotonic()
    rows = [np.array([[float(place % options.dimension)]]) for place in range(options.clients)]
    failure: Failure | None = None
    with tempfile.TemporaryDirectory(prefix="dca-swarm-") as directory:
        async with Swarm(options, rows, (COLUMN,), Path(directory), watcher, on_start) as swarm:
            try:
                await swarm.learn(_job(options))
            except RoundAborted as error:
                failure = Failure(error.reason, error.contributors, error.needed)
    return msgspec.structs.replace(
        summarise(swarm, doubts((), options.mechanism), failure), wall_s=time.monotonic() - began_s
    )


def _job(options: SwarmOptions) -> Generator[SecureSumRequest, NoisyAggregate, None]:
    for _ in range(options.rounds):
        yield request(options)


class _Progress:
    """A watcher that tells a function."""

    def __init__(self, clients: int, tell: OnProgress) -> None:
        self._clients = clients
        self._tell = tell

    def connected(self, count: int, total: int) -> None:
        self._tell("connect", count, total)

    def sessions(self, count: int, total: int) -> None:
        self._tell("sessions", count, total)

    def changed(self, log: RoundLog) -> None:
        if "collect" not in log.ends_s:
            self._tell("collect", log.arrived, self._clients)
        else:
            self._tell("agree", int(log.aggregate is not None), 1)


# --- on a console ----------------------------------------------------------------------------------------------------


def show_rounds(options: SwarmOptions, json_to: str | None) -> int:
    """Hold the rounds, show and write what they took; the exit code.

    Raises:
        RoundAborted: one was aborted; what they took is shown all the same.
        UsageError, TransportError: as `run_rounds`.
    """
    require_json_target(json_to)
    check(options)
    console = Console(stderr=json_to == STDOUT)
    _say_plan(console, options)
    view = (Bars if console.is_terminal else Lines)(console, options.clients)
    with view:
        run = complete(hold_rounds(options, view, lambda swarm: _say_broker(console, swarm)))
    if run is None:
        return TERMINATED
    write_json(msgspec.to_builtins(run), json_to)
    console.print(rounds_table(run), times_table(run))
    if run.roles:
        console.print(roles_table(run))
    for line in (*aborted_lines(run), *fleet_lines(run)):
        say(console, *line)
    if not run.ok:
        raise RoundAborted(run.error or "", contributors=run.contributors_found, needed=run.contributors_needed)
    return 0


def _say_plan(console: Console, options: SwarmOptions) -> None:
    where = f"{options.processes} processes" if options.processes else "this process"
    say(
        console,
        "federation",
        f"{options.clients} clients in {where}, {options.computes} Compute nodes, "
        f"T = {options.tolerated} (c = {options.colluders} reserved for colluders), "
        f"K = {options.dropped} drop in each round",
    )
    doubted, budget = doubts((), options.mechanism), options.budget
    cost = f"{claim_words(budget.epsilon, budget.delta)} in all"
    counted = f"{options.rounds} rounds" if options.rounds > 1 else "1 round"
    numbers = f"{options.dimension} numbers" if options.dimension > 1 else "1 number"
    terms = f"not private: {'; '.join(doubted)}" if doubted else cost
    say(console, "plan", f"{counted} of a synthetic sum of {numbers}; {terms}")


def _say_broker(console: Console, swarm: Swarm) -> None:
    options, name = swarm.options, f"{swarm.broker_kind} {swarm.broker_version}".strip()
    kind = "one for each client" if options.connections == "each" else "clients share one in each process"
    say(console, "broker", f"{name} at {swarm.broker_url}, {options.connected} connections ({kind})")
