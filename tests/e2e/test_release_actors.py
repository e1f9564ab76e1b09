"""A node release of actors from their files on a real broker, and what `dca ledger` and `dca inspect` make of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from patience import PATIENCE_S

from dca_proto.cli import main
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.device import load
from dca_proto.runtime.request import open_round

ROUND = """
[round]
statistic = "mean"
columns = ["x"]
bounds = { x = [0, 10] }
epsilon = 1
delta = 1e-6
clients = 2
kind = "node-release"
rows_max = 1000
"""


async def run_round(folder: Path) -> tuple[float, list[int]]:
    """The round's result: two hospitals, and a trainer, until all that was sent is confirmed."""
    confirmed = [asyncio.Event(), asyncio.Event()]
    hospitals = [
        asyncio.create_task(
            load(folder / f"client-{index}.toml").run(
                lambda fact, done=done: done.set() if type(fact).__name__ == "Acknowledged" else None
            )
        )
        for index, done in enumerate(confirmed, start=1)
    ]
    trainer = load(folder / "trainer.toml")
    assert trainer.config.round is not None
    result = await trainer.run_round(open_round(trainer.config.round, trainer.config.federation))
    await asyncio.gather(*(done.wait() for done in confirmed))
    for task in hospitals:
        task.cancel()
    await asyncio.gather(*hospitals, return_exceptions=True)
    return float(result.value[0]), sorted(node.contributors for node in result.nodes)


def test_a_node_release_from_files(any_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--name", "node-release", "--without-computes", "--clients", "2", "--broker", any_broker.url)
    assert main(["federation", "init", str(tmp_path / "it"), *given]) == 0
    folder = tmp_path / "it"
    for index, rows in ((1, 400), (2, 200)):
        (folder / f"client-{index}.csv").write_text("x\n" + "7.5\n" * rows)
        with (folder / f"client-{index}.toml").open("a") as file:
            file.write("[policy]\nrows_of_many = true\n")
    with (folder / "trainer.toml").open("a") as file:
        file.write(ROUND)
    value, rows = asyncio.run(asyncio.wait_for(run_round(folder), PATIENCE_S))
    assert rows == [200, 400]
    # 600 rows of 0.5; each node's noise deviates by 2/mu, about 9.5. False alarms: beyond 8 deviations, 1e-14.
    assert abs(value - 300) < 8 * 14
    capsys.readouterr()
    for name in ("client-1", "trainer"):
        assert main(["ledger", str(folder / f"{name}.toml"), "--json", "-"]) == 0
        spent = json.loads(capsys.readouterr().out)
        assert [one["epsilon"] for one in spent["charges"]] == [1.0]
        assert [one["relation"] for one in spent["charges"]] == ["replace-one-row"]
        assert spent["warnings"] == []
        assert main(["ledger", str(folder / f"{name}.toml")]) == 0
        assert "counts, of one row" in " ".join(capsys.readouterr().out.split())
        assert main(["inspect", str(folder / f"{name}.db")]) == 0
        shown = capsys.readouterr().out
        assert "trainer-release" in shown or name != "trainer"
        assert "unreadable" not in shown
