#!/usr/bin/env python
"""A verified mean of live clients, some of which lie: who is named, and how far the mean is from the honest truth.

All actors are those of production, with a connection each to a broker that is started here. Every liar sends the words
of a cheat of `scripts/check_proofs.py`, each a different one in turn. The result must leave out exactly the liars, and
name them. Its mean must be that of the honest clients up to the stated noise: beyond five standard deviations, which
happens once in 1.7 million correct runs, is a fault: exit code 4.

At most T = N/10 clients may lie: a round with fewer proven contributions is aborted.

Examples:

    scripts/check_verified.py                                1,000 clients on mosquitto, 30 of them liars
    scripts/check_verified.py --clients 100 --liars 3 --broker embedded --json -
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from rich.console import Console

from check_proofs import CHEATS
from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.crypto.bounded import Statement
from dca_proto.crypto.field import Elements
from dca_proto.jobs.forecast import EXACT
from dca_proto.protocol import contribution
from dca_proto.protocol.client import answer
from dca_proto.results.round import estimates
from dca_proto.runtime.files import write_json
from dca_proto.wording import counted
from emulator.swarm.live import Swarm, Watcher
from emulator.swarm.options import SwarmOptions

FAULT = 4
FAR = 5.0
"""Standard deviations of the noise: a correct run is beyond them once in 1.7 million."""
WINDOW_S = 1_200.0
"""For clients, and for the nodes: long, as the machine may be busy. A round ends as soon as it can."""
COLUMN = "x"
MEAN = {"columns": [COLUMN], "centre": [0.5], "scale": [0.5], "bound": [1.0], "count_weight": 1.0}
"""Values from 0 to 1, and a count of the rows beside them."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found. Standard deviations are those of the noise that the result states."""

    clients: int
    liars: int
    broker: str
    contributors: int
    named: int
    missed: int
    accused: int
    mean: float
    honest_mean: float
    noise_sd: float
    from_truth_sds: float
    rows: float
    rows_from_truth_sds: float
    setup_s: float
    round_s: float

    @property
    def is_right(self) -> bool:
        """Whether exactly the liars are named, and the result is as far from the truth as noise is."""
        near = max(abs(self.from_truth_sds), abs(self.rows_from_truth_sds)) < FAR
        return near and (self.missed, self.accused, self.named) == (0, 0, self.liars)


@contextlib.contextmanager
def lying(liars: dict[bytes, str], seed: int) -> Iterator[None]:
    """Make these clients of this process send the words of a cheat; they may still be added inside."""
    rng, sending = np.random.default_rng(seed), list[bytes]()
    honest_words, honest_message = contribution.proven_words, contribution.make_contribution

    def words(statement: Statement, value: np.ndarray, root: bytes) -> Elements:
        cheat = liars.get(sending[-1])
        return honest_words(statement, value, root) if cheat is None else CHEATS[cheat](statement, rng)

    def message(*positional: Any, **named: Any) -> Any:
        sending[:] = [named["identity"].id]
        return honest_message(*positional, **named)

    with (
        mock.patch.object(contribution, "proven_words", words),
        mock.patch.object(answer, "make_contribution", message),
    ):
        yield


async def run(clients: int, liars: int, broker: str, seed: int, epsilon: float = 1.0) -> Found:
    """Run one round in a swarm of its own."""
    rng = np.random.default_rng(seed)
    values = rng.beta(2.0, 4.0, clients)
    options = SwarmOptions(
        clients=clients, tolerate=clients // 10, epsilon=epsilon, verified=True, broker=broker, mechanism=EXACT,
        dimension=2, collect_s=WINDOW_S, commit_s=WINDOW_S,
    )  # fmt: skip
    options.check()
    lie: dict[bytes, str] = {}
    with TemporaryDirectory(prefix="dca-liars-") as directory, lying(lie, seed):
        began_s = time.monotonic()
        async with Swarm(options, [np.array([[x]]) for x in values], (COLUMN,), Path(directory), Watcher()) as swarm:
            chosen = rng.choice(clients, liars, replace=False).tolist()
            places = {place: name for name, place in swarm.numbers.items()}
            lie.update({places[place]: [*CHEATS][turn % len(CHEATS)] for turn, place in enumerate(chosen)})
            ready_s = time.monotonic()
            aggregate = await swarm.learn(_mean())
            ended_s = time.monotonic()
    mean, rows = estimates(aggregate)
    named, honest = set(aggregate.unproven), np.delete(values, chosen)
    return Found(
        clients=clients,
        liars=liars,
        broker=f"{swarm.broker_kind} {swarm.broker_version}".strip(),
        contributors=aggregate.contributors,
        named=len(named),
        missed=len(set(lie) - named),
        accused=len(named - set(lie)),
        mean=mean.value,
        honest_mean=float(honest.mean()),
        noise_sd=mean.noise_std,
        from_truth_sds=(mean.value - float(honest.mean())) / mean.noise_std,
        rows=rows.value,
        rows_from_truth_sds=(rows.value - len(honest)) / rows.noise_std,
        setup_s=ready_s - began_s,
        round_s=ended_s - ready_s,
    )


def _mean() -> Any:
    aggregate: NoisyAggregate = yield RoundRequest("mean", MEAN, rows_max=1)
    return aggregate


def main() -> int:
    """Run a round and print what it found."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--liars", type=int, default=30)
    parser.add_argument("--broker", default="mosquitto", help="auto, embedded, mosquitto, or mqtt://host:port")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1, help="of values, and of who lies how; never of keys or noise")
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    given = parser.parse_args()
    console = Console(file=sys.stderr if given.json == "-" else sys.stdout)
    found = asyncio.run(run(given.clients, given.liars, given.broker, given.seed, given.epsilon))
    console.print(
        f"{counted(found.clients, 'client')}, {counted(found.liars, 'liar')}, {found.broker}: {found.named} named, "
        f"{found.missed} of the liars missed, {found.accused} of the honest accused"
    )
    console.print(
        f"mean {found.mean:.5f} of {found.contributors} clients; honest clients have {found.honest_mean:.5f}: "
        f"{found.from_truth_sds:+.2f} standard deviations of the noise, {found.noise_sd:.5f}"
    )
    console.print(f"rows {found.rows:.1f}: {found.rows_from_truth_sds:+.2f} standard deviations of the noise")
    console.print(f"{found.setup_s:.1f} s to start all, {found.round_s:.1f} s for the round")
    if given.json:
        write_json({**msgspec.structs.asdict(found), "is_right": found.is_right}, given.json)
    if not found.is_right:
        console.print("wrong: expected exactly the liars, and a result within five standard deviations")
    return 0 if found.is_right else FAULT


if __name__ == "__main__":
    sys.exit(main())
