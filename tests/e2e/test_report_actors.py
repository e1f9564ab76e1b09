"""LDP reports through the command line on a real broker: clients from their files, `dca trainer`, and what
`dca ledger` and `dca inspect` make of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE_S

from dca_proto.cli import main
from dca_proto.privacy.mechanism import GRID_LAPLACE, UNARY_ENCODING
from dca_proto.protocol.facts import Acknowledged
from dca_proto.runtime.broker import Broker
from dca_proto.runtime.device import load

VALUES = ("0", "1", "2", "1", '""', "")
"""Each client's only line: of the last two, one has a missing value and one no row at all."""
ROUND = """
[round]
statistic = "histogram"
columns = ["x"]
parameters = { edges = [-0.5, 0.5, 1.5, 2.5] }
kind = "ldp-report"
mechanism = "unary-encoding"
rows_max = 1
epsilon = 1
clients = 6
"""


@contextmanager
def clients_of(folder: Path, rounds: int) -> Iterator[None]:
    """All clients, running beside the test until each has the receipts of so many rounds."""
    confirmed = threading.Semaphore(0)

    def on_report(fact: object) -> None:
        if isinstance(fact, Acknowledged):
            confirmed.release()

    loop = asyncio.new_event_loop()
    devices = [load(folder / f"client-{index}.toml") for index in range(1, len(VALUES) + 1)]
    running = [loop.create_task(device.run(on_report)) for device in devices]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield
        assert all(confirmed.acquire(timeout=PATIENCE_S) for _ in range(rounds * len(VALUES)))
    finally:
        asyncio.run_coroutine_threadsafe(_end(running), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(running: list[asyncio.Task[None]]) -> None:
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize("any_broker", ["mosquitto", pytest.param("embedded", marks=pytest.mark.long)], indirect=True)
def test_two_rounds_of_reports_from_files(
    any_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("--name", "report-round", "--without-computes", "--clients", str(len(VALUES)), "--broker", any_broker.url)
    assert main(["federation", "init", "it", *given]) == 0
    folder = tmp_path / "it"
    for index, value in enumerate(VALUES, start=1):
        (folder / f"client-{index}.csv").write_text(f"x\n{value}\n" if value else "x\n")
    with (folder / "trainer.toml").open("a") as file:
        file.write(ROUND)
    trainer = str(folder / "trainer.toml")
    capsys.readouterr()
    with clients_of(folder, rounds=2):
        assert main(["trainer", trainer, "--json", "categories.json"]) == 0
        shown = capsys.readouterr()
        assert main(["trainer", trainer, "--delta", "1e-6"]) == 2
        assert "mechanism 'unary-encoding' is private by epsilon alone: found delta 1e-06" in capsys.readouterr().err
        (folder / "trainer.toml").write_text((folder / "trainer.toml").read_text().partition("[round]")[0])
        means = ("--statistic", "mean", "--columns", "x", "--bounds", "x=0:2")
        kind = ("--kind", "ldp-report", "--mechanism", "grid-laplace")
        cost = ("--epsilon", "0.5", "--clients", "6")
        assert main(["trainer", trainer, *means, *kind, *cost, "--json", "means.json"]) == 0
    assert "from       6 reports by unary-encoding, each private by itself" in shown.out
    assert "spent      epsilon 1, delta 0 of every participant's budget" in shown.out
    result = json.loads(Path("categories.json").read_text())
    assert (result["mechanism"], result["delta"], result["contributors"]) == (UNARY_ENCODING, 0.0, 6)
    bits, (p, q) = result["reports"]["values"], result["reports"]["probabilities"]
    assert {len(row) for row in bits} == {3}
    named = [sum(row[place] for row in bits) for place in range(3)]
    assert result["value"] == pytest.approx([(count - 6 * q) / (p - q) for count in named])
    means = json.loads(Path("means.json").read_text())
    assert (means["mechanism"], len(means["reports"]["values"])) == (GRID_LAPLACE, 6)
    # Values of -1, 0, 1 and 0, one missing and no row: 0 in all; six Laplace noises of scale 4. False alarms: 1e-9.
    assert abs(means["value"][0]) < 120
    capsys.readouterr()
    for name in ("client-1", "client-6", "trainer"):
        assert main(["ledger", str(folder / f"{name}.toml"), "--json", "-"]) == 0
        plain = json.loads(capsys.readouterr().out)
        assert [(one["epsilon"], one["delta"]) for one in plain["charges"]] == [(1.0, 0.0), (0.5, 0.0)]
        assert [one["relation"] for one in plain["charges"]] == ["replace-one-client"] * 2
        assert main(["inspect", str(folder / f"{name}.db")]) == 0
        listed = capsys.readouterr().out
        assert "unreadable" not in listed
        assert "unary-encoding" in listed or name != "trainer"
