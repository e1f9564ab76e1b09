#!/usr/bin/env python3
"""Compares each result with the truth at its time, while the data of all clients change.

    scripts/check_live_data.py --minutes 60
    scripts/check_live_data.py --minutes 10 --every 10 --json -

Clients with all kinds of sources run as production actors over mosquitto or the embedded broker: a CSV, an SQLite
query, Home Assistant's database, a function, a topic and a program's table. Each client's value swings, and jumps at
random; a writer changes all sources about twice a second. Every `--every` seconds a trainer asks for the mean.

While a round runs, the true mean moves. Its range is that from a change before the round began until the result came.
A result is right if its 95 % interval meets this range; at 95 %, one in twenty may not. An interval that is wide enough
for all rounds of a run together (a false alarm in 10,000 runs) has to meet it in every round. The last column compares
with the truth of the round before: live data are told from old ones only where these miss.

Exit code 4 if a wide interval misses, a client is missing, or a round fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import math
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiomqtt

from dca_proto import RoundSettings, Table, device, estimates, open_round
from dca_proto.cli import main as dca
from dca_proto.errors import RoundAborted
from dca_proto.protocol.facts import DataFailed, SessionKept
from dca_proto.runtime.broker import BrokerOptions, launch_broker
from dca_proto.runtime.files import STDOUT, write_json
from dca_proto.runtime.logs import configure_logs
from dca_proto.runtime.settings import BrokerSettings

COMPUTES, LOW, HIGH = 3, 0.0, 40.0
SMALL = "clients_min = 1\nhonest_min = 1\n"
PERIOD_S, SWING, WRITE_S, FALSE_ALARM = 67.0, 8.0, 0.5, 1e-4
RECORDER = """
CREATE TABLE schema_changes (schema_version INTEGER);
CREATE TABLE states_meta (metadata_id INTEGER PRIMARY KEY, entity_id TEXT);
CREATE TABLE states (metadata_id INTEGER, state TEXT, last_updated_ts FLOAT);
CREATE INDEX ix ON states (metadata_id, last_updated_ts);
CREATE INDEX last ON states (last_updated_ts);
INSERT INTO schema_changes VALUES (50);
INSERT INTO states_meta VALUES (1, 'sensor.x');
"""
VALUES: dict[int, float] = {}
"""Each client's present value, where the functions of the kind `python` find it."""
NEW_STATE = "INSERT INTO states VALUES (1, ?, ?)"


class Kind(NamedTuple):
    """A kind of source: its section [data] for a client's number, and how it is made and changed."""

    section: str
    make: Callable[[Path, int], object]
    write: Callable[[Path, int, float], object]


def _sql(path: Path, *statements: tuple[str, tuple[object, ...]]) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA synchronous = OFF")
        for statement, values in statements:
            database.execute(statement, values)


def _make_recorder(folder: Path, number: int) -> None:
    with contextlib.closing(sqlite3.connect(folder / f"ha-{number}.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(RECORDER)


def _write_csv(folder: Path, number: int, value: float) -> None:
    new = folder / f"new-{number}"
    new.write_text(f"x\n{value}\n")
    new.replace(folder / f"data-{number}.csv")


KINDS = {
    "file": Kind('file = "data-{n}.csv"', lambda folder, n: None, _write_csv),
    "sqlite": Kind(
        'sqlite = "data-{n}.db"\nwindow_s = 60\n'
        'query = "SELECT x FROM r WHERE time >= :since ORDER BY time DESC LIMIT 1"',
        lambda folder, n: _sql(folder / f"data-{n}.db", ("CREATE TABLE r (time, x)", ())),
        lambda folder, n, value: _sql(
            folder / f"data-{n}.db",
            ("INSERT INTO r VALUES (?, ?)", (time.time(), value)),
            ("DELETE FROM r WHERE time < ?", (time.time() - 600,)),
        ),
    ),
    "home_assistant": Kind(
        'home_assistant = "ha-{n}.db"\nentities = {{ x = "sensor.x" }}\nwindow_s = 60',
        _make_recorder,
        lambda folder, n, value: _sql(folder / f"ha-{n}.db", (NEW_STATE, (str(value), time.time()))),
    ),
    "python": Kind('python = "live_values:of_{n}"\ncolumns = ["x"]', lambda folder, n: None, lambda *_: None),
    "topic": Kind('topic = "sensors/{n}"\ncolumns = ["x"]\nwindow_s = 60', lambda folder, n: None, lambda *_: None),
    "table": Kind("", lambda folder, n: None, lambda *_: None),
}


class Truth:
    """The clients' values: each swings around a mean of its own and jumps at random, all in the same direction."""

    def __init__(self, clients: int, rng: random.Random) -> None:
        self._base = [rng.uniform(14, 26) for _ in range(clients)]
        self._rng = rng
        self._jump = 0.0
        self.history: list[tuple[float, float]] = []  # of the mean, by the time of the change

    def change(self) -> dict[int, float]:
        """Return the present values, by client from 1."""
        if self._rng.random() < 0.03:
            self._jump = self._rng.uniform(-5, 5)
        shift = SWING * math.sin(2 * math.pi * time.monotonic() / PERIOD_S) + self._jump
        return {n: min(max(base + shift, LOW), HIGH) for n, base in enumerate(self._base, 1)}

    def note(self, values: dict[int, float]) -> None:
        """Note that all sources have these values now."""
        self.history.append((time.monotonic(), statistics.fmean(values.values())))

    def between(self, since_s: float, until_s: float) -> tuple[float, float]:
        """Return the least and the greatest mean from the last change but one before a time until another."""
        before = [place for place, (at_s, _) in enumerate(self.history) if at_s <= since_s]
        first = max(before[-1] - 1, 0) if before else 0
        found = [mean for at_s, mean in self.history[first:] if at_s <= until_s + 2 * WRITE_S]
        return min(found), max(found)


class Federation:
    """All actors but the trainer, in this process."""

    def __init__(self, folder: Path, url: str, clients: int) -> None:
        given = ("--computes", str(COMPUTES), "--clients", str(clients), "--broker", url)
        assert dca(["federation", "init", str(folder), "--name", "live", *given]) == 0
        self.folder, self.tables, self.kinds = folder, {}, {}
        self.failed, self._sessions, self.ready = 0, 0, asyncio.Event()
        for path in folder.glob("compute-?.toml"):
            path.write_text(f"{path.read_text()}[floors]\n{SMALL}")
        trainer = folder / "trainer.toml"
        trainer.write_text(f"{trainer.read_text()}[account]\nepsilon = 100000\n")
        for n in range(1, clients + 1):
            self._add(n, list(KINDS)[n % len(KINDS)])

    def _add(self, n: int, kind: str) -> None:
        self.kinds[n] = kind
        path = self.folder / f"client-{n}.toml"
        text = path.read_text().replace(f'data = "client-{n}.csv"\n', "")
        policy = f"[policy]\n{SMALL}epsilon_per_round_max = 1000\nepsilon_per_period_max = 100000\n"
        section = f"[data]\n{KINDS[kind].section.format(n=n)}\n" if kind != "table" else ""
        path.write_text(f"{text}{policy}{section}")
        KINDS[kind].make(self.folder, n)
        if kind == "table":
            self.tables[n] = Table(["x"], [[20.0]])

    def note(self, fact: object) -> None:
        self.failed += isinstance(fact, DataFailed)
        self._sessions += isinstance(fact, SessionKept)
        if self._sessions == COMPUTES * len(self.kinds):
            self.ready.set()

    async def write(self, values: dict[int, float], broker: aiomqtt.Client) -> None:
        """Change all sources."""
        VALUES.update(values)
        await asyncio.to_thread(self._write_files, values)
        for n, value in values.items():
            if self.kinds[n] == "table":
                self.tables[n].replace([[value]])
            if self.kinds[n] == "topic":
                await broker.publish(f"sensors/{n}", f'{{"x": {value}}}', qos=1)

    def _write_files(self, values: dict[int, float]) -> None:
        for n, value in values.items():
            KINDS[self.kinds[n]].write(self.folder, n, value)

    def devices(self) -> Iterator[device.Device]:
        """Yield all actors but the trainer, from their files."""
        for path in sorted(self.folder.glob("compute-?.toml")):
            yield device.load(path)
        for n in self.kinds:
            yield device.load(self.folder / f"client-{n}.toml", self.tables.get(n))


def main() -> int:
    """Run, print, and fail if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="how long")
    parser.add_argument("--every", type=float, default=60, help="seconds from the begin of a round to the next")
    parser.add_argument("--clients", type=int, default=50, help="number of clients")
    parser.add_argument("--epsilon", type=float, default=20, help="of each round; so large that old data would show")
    parser.add_argument("--broker", default="auto", choices=["auto", "mosquitto", "embedded"], help="the broker")
    parser.add_argument("--seed", type=int, default=1, help="of the clients' values")
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    given = parser.parse_args()
    configure_logs(level=logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="dca-live-") as folder, contextlib.redirect_stdout(sys.stderr):
        figures = asyncio.run(_run(Path(folder), given))
    write_json(figures, given.json)
    print(figures["summary"], file=sys.stderr if given.json == STDOUT else sys.stdout)
    return 0 if figures["ok"] else 4


async def _run(folder: Path, options: Any) -> dict[str, Any]:
    functions = "import sys\nvalues = sys.modules['__main__'].VALUES\n"
    functions += "".join(f"def of_{n}(): return [[values[{n}]]]\n" for n in range(1, options.clients + 1))
    (folder / "live_values.py").write_text(functions)
    sys.path.insert(0, str(folder))
    rounds = max(1, int(60 * options.minutes / options.every))
    wide = statistics.NormalDist().inv_cdf(1 - FALSE_ALARM / 2 / rounds)
    async with launch_broker(folder / "broker", BrokerOptions(kind=options.broker)) as broker:
        settings = BrokerSettings(url=broker.url)
        federation, truth = (
            Federation(folder / "live", broker.url, options.clients),
            Truth(options.clients, _rng(options)),
        )
        async with aiomqtt.Client(settings.host, settings.port) as sensors, asyncio.TaskGroup() as tasks:
            await federation.write(values := truth.change(), sensors)
            truth.note(values)
            actors = [tasks.create_task(one.run(federation.note)) for one in federation.devices()]
            await federation.ready.wait()
            writer = tasks.create_task(_write(federation, truth, sensors))
            await asyncio.sleep(5)  # topics
            before, rows = federation.failed, []
            trainer = device.load(federation.folder / "trainer.toml")
            async with trainer.live() as live:
                for number in range(rounds):
                    began_s = time.monotonic()
                    rows.append(await _round(live, trainer, truth, options, wide))
                    print(_line(number + 1, rows[-1], rows[-2:-1]), flush=True)
                    await asyncio.sleep(max(0.0, options.every - (time.monotonic() - began_s)))
            for task in (writer, *actors):
                task.cancel()
    return _figures(rows, federation.failed - before, options)


def _rng(options: Any) -> random.Random:
    return random.Random(options.seed)


async def _write(federation: Federation, truth: Truth, sensors: aiomqtt.Client) -> None:
    while True:
        values = truth.change()
        await federation.write(values, sensors)
        truth.note(values)
        await asyncio.sleep(WRITE_S)


async def _round(live: Any, trainer: device.Device, truth: Truth, options: Any, wide: float) -> dict[str, Any]:
    settings = RoundSettings(
        statistic="mean",
        columns=("x",),
        bounds={"x": (LOW, HIGH)},
        epsilon=options.epsilon,
        delta=1e-6,
        clients=options.clients,
        collect_s=30,
    )
    began_s = time.monotonic()
    try:
        aggregate = await live.run_round(open_round(settings, trainer.config.federation))
    except RoundAborted as error:
        return {"failed": str(error)}
    ended_s = time.monotonic()
    await asyncio.sleep(2 * WRITE_S)  # until the changes during the round are noted
    found = next(one for one in estimates(aggregate) if one.label == "x")
    low, high = truth.between(began_s, ended_s)
    off = max(low - found.value, found.value - high, 0.0)
    return {
        "mean": found.value,
        "noise_std": found.noise_std,
        "truth": [low, high],
        "seconds": ended_s - began_s,
        "contributors": aggregate.contributors,
        "in_95": off <= 1.96 * found.noise_std,
        "in_wide": off <= wide * found.noise_std,
        "wide": wide,
    }


def _line(number: int, row: dict[str, Any], before: list[dict[str, Any]]) -> str:
    if "failed" in row:
        return f"{number:>4}  failed: {row['failed']}"
    low, high = row["truth"]
    verdict = "" if row["in_95"] else "  outside 95 %" if row["in_wide"] else "  WRONG"
    old = f"  {_is_old(row, before[0])}" if before and "truth" in before[0] else ""
    return (
        f"{number:>4}  {row['mean']:6.2f} ± {1.96 * row['noise_std']:.2f}  truth {low:6.2f} to {high:6.2f}  "
        f"{row['contributors']} clients, {row['seconds']:.1f} s{verdict}{old}"
    )


def _is_old(row: dict[str, Any], before: dict[str, Any]) -> str:
    low, high = before["truth"]
    off = max(low - row["mean"], row["mean"] - high, 0.0)
    return "not the truth before" if off > row["wide"] * row["noise_std"] else "as before"


def _figures(rows: list[dict[str, Any]], failed: int, options: Any) -> dict[str, Any]:
    good = [row for row in rows if "failed" not in row]
    right, right_95 = sum(row["in_wide"] for row in good), sum(row["in_95"] for row in good)
    missing = sum(row["contributors"] < options.clients for row in good)
    told = sum(_is_old(row, last) == "not the truth before" for last, row in itertools.pairwise(good))
    summary = (
        f"{len(rows)} rounds of {options.clients} clients: {right} within the wide interval of the truth at their "
        f"time, {right_95} within the 95 % interval; {len(rows) - len(good)} failed, {missing} without a client, "
        f"{failed} reads failed; {told} differ from the truth before"
    )
    ok = right == len(rows) and not missing and not failed and told > 0
    return {"ok": ok, "summary": summary, "rounds": rows, "reads_failed": failed}


if __name__ == "__main__":
    sys.exit(main())
