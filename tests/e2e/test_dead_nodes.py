"""With too few Compute nodes up, commands on a real broker end after a wait, at no charge, and name them (§4.1).

The wait is shorter here than the usual one.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import one_line
from live_actors import WIDE, Actors, federation
from patience import PATIENCE_S
from schemas import parsed

from dca_proto.protocol.facts import SessionKept
from dca_proto.protocol.params import Timing
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.spending import read_ledger_view
from dca_proto.wording import listed

CLIENTS = 4
WAIT_S = 15
PATIENT = f"""
import functools, sys
from dca_proto.runtime import config
config.Timing = functools.partial(config.Timing, hopeless_ms={WAIT_S * 1000})
from dca_proto.cli import main
sys.exit(main(sys.argv[1:]))
"""
COMMAND = [sys.executable, "-c", PATIENT]
ROUND = ["--statistic", "mean", "--columns", "x", "--bounds", "x=0:1", "--epsilon", "1", "--delta", "1e-6"]
JOB = f"""
[job]
name = "regression-bounded"
features = ["x"]
target = "y"
bounds = {{ x = [-3, 3], y = [-6, 6] }}
epsilon = 30
delta = 1e-5
clients = {CLIENTS}
tolerate = 0
"""
CALLS = {"trainer": [*ROUND, "--tolerate", "0", "--clients", str(CLIENTS)], "learn": []}
SIZES = ((3, 0, 1), (4, 1, 3))
"""M; p, where 0 stands for M - 1; and how many nodes have died: each round needs all nodes, or two of four."""


class Call:
    """A command in a federation whose last nodes have died. `run` notes how it ended."""

    def __init__(self, folder: Path, url: str, command: str, size: tuple[int, int, int]) -> None:
        self._folder, self._command = folder, command
        computes, colluding, dead = size
        self._needed = (colluding or computes - 1) + 1
        self._up = [f"compute-{number}" for number in range(1, computes - dead + 1)]
        self.dead = [f"compute-{number}" for number in range(computes - dead + 1, computes + 1)]
        account = f"[account]\nepsilon = 60\n{JOB}"
        data = ["x,y\n0.5,0.25\n"] * CLIENTS
        federation(folder, url, data, computes=computes, colluding=colluding, policy=WIDE, trainer=account)

    def run(self) -> None:
        with Actors(self._folder, "client-*", *self._up):
            with Actors(self._folder, *self.dead) as nodes:
                nodes.wait_for(SessionKept, CLIENTS * len(self.dead))  # after that, the broker keeps their epoch keys
            command = [*COMMAND, self._command, "trainer.toml", *CALLS[self._command], "--json", "-"]
            began_s = time.monotonic()
            self.done = subprocess.run(command, cwd=self._folder, text=True, capture_output=True, check=False)
            self.taken_s = time.monotonic() - began_s

    def check(self) -> None:
        lines = self.done.stderr.splitlines()
        assert self.done.returncode == 3, lines
        nodes = f"Compute node{'s' * (len(self.dead) > 1)} {listed(self.dead)}"
        assert f"{nodes} did not answer" in lines[-1]
        assert f"(waited {WAIT_S} s; nothing was charged)" in lines[-1]
        log = one_line(self.done.stderr)
        assert f"start {listed(self.dead)} again, then run the same command" in log
        assert f"a round needs {self._needed} Compute nodes, and " in log, "said after ten seconds"
        assert parsed(self.done.stdout, self._command)["ok"] is False
        files = [self._folder / "trainer.toml", *self._folder.glob("client-*.toml")]
        assert sum(len(read_ledger_view(path).ledger.charges) for path in files) == 0
        assert WAIT_S < self.taken_s < PATIENCE_S


@pytest.mark.long
def test_a_command_ends_after_a_wait_at_no_charge(embedded_broker: Broker, tmp_path: Path) -> None:
    cases = [(command, size) for command in CALLS for size in SIZES]
    calls = [Call(tmp_path / str(number), embedded_broker.url, *case) for number, case in enumerate(cases)]
    with ThreadPoolExecutor(len(calls)) as pool:
        for running in [pool.submit(call.run) for call in calls]:
            running.result()
    for call in calls:
        call.check()
    assert Timing().hopeless_ms < 60_000
