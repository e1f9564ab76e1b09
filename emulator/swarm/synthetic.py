"""`dca fleet`: rounds of a synthetic sum of d numbers, with as many clients as the machines can run.

The sum is a histogram of one column. Client i holds one row of category i modulo d, so the exact counts are known. An
announcement takes 9 bytes for each number; a sum of columns takes thirty, and would reach the limit of 1 MiB with fewer
numbers. After a client has its vector, its work is the same for every statistic of d numbers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator

import numpy as np

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import UsageError
from dca_proto.protocol.params import Limits
from dca_proto.results.run import Run
from dca_proto.statistics.histogram import BINS_MAX
from emulator.swarm.live import Swarm, Watcher, run_swarm
from emulator.swarm.options import SwarmOptions
from emulator.swarm.summary import not_private_because, summarise

CLIENTS = 1000
COLUMN = "category"


def request(options: SwarmOptions) -> RoundRequest:
    """Return the request for one round: how many clients are in each of d categories."""
    edges = [place - 0.5 for place in range(options.dimension + 1)]
    parameters = {"columns": [COLUMN], "edges": edges}
    return RoundRequest("histogram", parameters, 1 / options.rounds, rows_max=int(options.verified))


def check(options: SwarmOptions) -> None:
    """Refuse options that no round can have, before anything is started. Raises `UsageError`."""
    options.check_counts()
    if not 1 <= options.dimension <= BINS_MAX:
        raise UsageError(f"--dimension {options.dimension}: expected 1 to {BINS_MAX}")
    if options.rounds < 1:
        raise UsageError(f"--rounds {options.rounds}: expected 1 or more")
    options.check()
    computes = tuple(place.to_bytes(ID_BYTES, "big") for place in range(options.computes))
    options.terms(computes).open(request(options), bytes(ID_BYTES)).draft(options.mechanism, Limits())


def run_rounds(options: SwarmOptions, watcher: Watcher | None = None) -> Run:
    """Run the rounds in a swarm of their own, and return their measurements. The result states an abort, if any.

    Args:
        watcher: is notified of progress.

    Raises:
        UsageError: the options are unusable, or a process, the broker or an actor failed.
        TransportError: the broker cannot be reached.
    """
    return asyncio.run(hold_rounds(options, watcher or Watcher()))


async def hold_rounds(
    options: SwarmOptions, watcher: Watcher, on_start: Callable[[Swarm], None] = lambda _: None
) -> Run:
    """As `run_rounds`, in a running event loop; `on_start` is called once the broker runs."""
    check(options)
    began_s = time.monotonic()
    rows = [np.array([[float(place % options.dimension)]]) for place in range(options.clients)]
    result = await run_swarm(options, rows, (COLUMN,), _job(options), watcher, on_start)
    return summarise(result, not_private_because((), options.mechanism), wall_s=time.monotonic() - began_s)


def _job(options: SwarmOptions) -> Generator[RoundRequest, NoisyAggregate, None]:
    for _ in range(options.rounds):
        yield request(options)
