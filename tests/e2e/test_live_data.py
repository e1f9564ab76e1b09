"""A running client sees new data: each round uses the rows that are there when it is announced."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE_S

from dca_proto import Table
from dca_proto.cli import main
from dca_proto.protocol.facts import DataFailed, SessionKept
from dca_proto.runtime import device
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.request import RoundSettings, open_round

CLIENTS, COLUMN = 5, "temperature"
ROUND = RoundSettings(
    statistic="mean",
    columns=(COLUMN,),
    bounds={COLUMN: (18, 32)},
    epsilon=90,
    delta=1e-6,
    clients=CLIENTS,
    collect_s=PATIENCE_S,
)
SMALL = "clients_min = 1\nhonest_min = 1\n"
LIMITS = {
    "compute-?.toml": f"[floors]\n{SMALL}",
    "client-?.toml": f"[policy]\n{SMALL}epsilon_per_round_max = 100\nepsilon_per_period_max = 1000\n",
    "trainer.toml": "[account]\nepsilon = 1000\n",
}
NEAR = 2.0
"""Six standard deviations of the noise in a mean are less: a false alarm in 10⁸ runs."""


class Running:
    """A federation whose first client gets its data from this program, and the others from their files."""

    def __init__(self, folder: Path, url: str) -> None:
        given = ("--computes", "2", "--clients", str(CLIENTS), "--broker", url)
        assert main(["federation", "init", str(folder), "--name", "live-data", *given]) == 0
        self.folder, self.failed, self._kept, self._ready = folder, 0, 0, asyncio.Event()
        self.table = Table([COLUMN], [[20.0]])
        for number in range(2, CLIENTS + 1):
            self.write(number, 20)
        for pattern, limits in LIMITS.items():
            for path in folder.glob(pattern):
                path.write_text(f"{path.read_text()}{limits}")

    def file(self, number: int) -> Path:
        return self.folder / f"client-{number}.csv"

    def write(self, number: int, value: float) -> None:
        self.file(number).write_text(f"{COLUMN}\n{value}\n")

    def note(self, fact: object) -> None:
        self._kept += isinstance(fact, SessionKept)
        if self._kept == 2 * CLIENTS:
            self._ready.set()
        self.failed += isinstance(fact, DataFailed)

    async def mean(self) -> float:
        loaded = device.load(self.folder / "trainer.toml")
        aggregate = await loaded.run_round(open_round(ROUND, loaded.config.federation))
        assert aggregate.contributors == CLIENTS, "whether one takes part does not depend on its data"
        assert 6 * 7 * math.sqrt(aggregate.noise_variance) / CLIENTS < NEAR
        return 25 + 7 * float(aggregate.value[0]) / CLIENTS  # the middle of the bounds, and half their width

    @contextlib.asynccontextmanager
    async def all(self) -> AsyncIterator[Running]:
        loaded = [device.load(path) for path in sorted(self.folder.glob("compute-?.toml"))]
        for number in range(1, CLIENTS + 1):
            data = self.table if number == 1 else None
            loaded.append(device.load(self.folder / f"client-{number}.toml", data))
        everyone = asyncio.gather(*(one.run(self.note) for one in loaded))
        try:
            await asyncio.wait_for(self._ready.wait(), PATIENCE_S)
            yield self
        finally:
            everyone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await everyone


def test_a_round_uses_the_data_as_they_are_when_it_is_announced(
    tmp_path: Path, embedded_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All data changed from 20 to 26 while the clients ran, and the mean stayed 19.98.

    The Compute nodes take these few clients for many, and end their rounds in a thread.
    """
    monkeypatch.setattr("dca_proto.protocol.compute.commit.MANY_SESSIONS", 2)

    async def story() -> None:
        async with Running(tmp_path, embedded_broker.url).all() as running:
            assert abs(await running.mean() - 20) < NEAR
            running.table.replace(np.array([[26.0]]))
            for number in range(2, CLIENTS + 1):
                running.write(number, 26)
            assert abs(await running.mean() - 26) < NEAR
            assert running.failed == 0
            running.table.append([[32.0]])  # this client's mean is 29
            running.file(2).unlink()  # counts as zero, which is the middle of the bounds, 25
            assert abs(await running.mean() - (29 + 25 + 3 * 26) / CLIENTS) < NEAR
            assert running.failed == 1
            running.write(2, 18)
            assert abs(await running.mean() - (29 + 18 + 3 * 26) / CLIENTS) < NEAR
            assert running.failed == 1

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
