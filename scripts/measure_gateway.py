#!/usr/bin/env python3
"""Measures the gateway of docs/howto/gateway.md: time awake, CPU, memory and bytes of a wake with and without a round.

    scripts/measure_gateway.py
    scripts/measure_gateway.py --python /path/to/python --rounds 10 --json -

The program is that of the page. It runs in a process of its own, by the Python that is named: make an environment that
has the base install alone. A proxy between it and the broker counts bytes, MQTT's own and those that acknowledge
included, TCP's and TLS's not. The other actors run in this process. A reading is every 0.1 s instead of every minute.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import re
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dca_proto import RoundSettings, Table, device, open_round
from dca_proto.cli import main as dca
from dca_proto.protocol.facts import SessionKept
from dca_proto.runtime.broker import BrokerOptions, launch_broker
from dca_proto.runtime.files import STDOUT, write_json
from dca_proto.runtime.logs import configure_logs

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "gateway.md"
SMALL = "clients_min = 1\nhonest_min = 1\n"
OTHERS, SLEEP_S = 4, 2
LINE = re.compile(r"awake ([\d.]+) s, CPU ([\d.]+) s, memory (\d+) MiB, answered (\d+)")


class CountingProxy:
    """Passes bytes on to the broker, and counts them in both directions."""

    def __init__(self, host: str, port: int) -> None:
        self._target, self.sent, self.received = (host, port), 0, 0

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Yield the proxy's URL."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection(*self._target)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._copy(reader, there, up=True), self._copy(there_reader, writer, up=False))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        while data := await reader.read(1 << 16):
            self.sent += len(data) * up
            self.received += len(data) * (not up)
            writer.write(data)
            await writer.drain()
        writer.close()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds")
    parser.add_argument("--python", default=sys.executable, help="runs the gateway")
    parser.add_argument("--broker", default="auto", choices=["auto", "mosquitto", "embedded"], help="the broker")
    given = parser.parse_args()
    configure_logs(level=logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="dca-gateway-") as folder, contextlib.redirect_stdout(sys.stderr):
        wakes = asyncio.run(_measure(Path(folder), given))
    figures = {
        "rounds": given.rounds,
        "with_a_round": _medians([wake for wake in wakes if wake["answered"]]),
        "without": _medians([wake for wake in wakes if not wake["answered"]]),
        "wakes": wakes,
    }
    write_json(figures, given.json)
    print(_text(figures), file=sys.stderr if given.json == STDOUT else sys.stdout)
    return 0


async def _measure(folder: Path, options: Any) -> list[dict[str, float]]:
    (program,) = re.findall(r"(?s)```python\n(# gateway\.py\n.*?)```", PAGE.read_text(encoding="utf-8"))
    (folder / "gateway.py").write_text(program)
    async with launch_broker(folder / "broker", BrokerOptions(kind=options.broker)) as broker:
        host, _, port = broker.url.removeprefix("mqtt://").partition(":")
        proxy = CountingProxy(host, int(port))
        async with proxy.serve() as through:
            demo, others = _federation(folder, broker.url, through)
            sessions, all_there = set(), asyncio.Event()

            def note(fact: object) -> None:
                if isinstance(fact, SessionKept):
                    sessions.add(fact.client)
                    if len(sessions) == OTHERS + 1:
                        all_there.set()

            running = asyncio.gather(*(one.run(note) for one in others))
            command = [options.python, "-u", "gateway.py", str(demo / "client-1.toml"), "0.1", str(SLEEP_S)]
            gateway = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=asyncio.subprocess.PIPE)
            try:
                await asyncio.gather(all_there.wait(), _wake(gateway, proxy))  # the first has the Hello and the keys
                reading = asyncio.create_task(_wakes(gateway, proxy, options.rounds))
                trainer = device.load(demo / "trainer.toml")
                for _ in range(options.rounds):
                    await trainer.run_round(open_round(_ROUND, trainer.config.federation))
                    await asyncio.sleep(2 * SLEEP_S + 4)  # a wake without a round
                return await reading
            finally:
                gateway.terminate()
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running


_ROUND = RoundSettings(
    statistic="mean",
    columns=("temperature",),
    bounds={"temperature": (15, 27)},
    epsilon=0.1,
    delta=1e-6,
    clients=OTHERS + 1,
    collect_s=60,
)


def _federation(folder: Path, url: str, through: str) -> tuple[Path, list[device.Device]]:
    """Return the folder of a federation whose first client is the gateway, and all other actors but the trainer."""
    demo = folder / "demo"
    given = ("--computes", "2", "--clients", str(OTHERS + 1), "--broker", url)
    assert dca(["federation", "init", str(demo), "--name", "gateway", *given]) == 0
    for path in (*demo.glob("client-?.toml"), *demo.glob("compute-?.toml")):
        section = "policy" if path.name.startswith("client") else "floors"
        path.write_text(f"{path.read_text()}[{section}]\n{SMALL}")
    first = demo / "client-1.toml"
    first.write_text(first.read_text().replace(url, through))
    table = Table(["temperature"], [[20.0]])
    nodes = [device.load(path) for path in sorted(demo.glob("compute-?.toml"))]
    return demo, nodes + [device.load(demo / f"client-{n}.toml", table) for n in range(2, OTHERS + 2)]


async def _wakes(gateway: asyncio.subprocess.Process, proxy: CountingProxy, rounds: int) -> list[dict[str, float]]:
    """Return the figures of each wake, until all rounds are answered and one has none to answer."""
    wakes: list[dict[str, float]] = []
    while sum(wake["answered"] for wake in wakes) < rounds or wakes[-1]["answered"]:
        wakes.append(await _wake(gateway, proxy))
        print(wakes[-1], flush=True)
    return wakes


async def _wake(gateway: asyncio.subprocess.Process, proxy: CountingProxy) -> dict[str, float]:
    assert gateway.stdout is not None
    sent, received = proxy.sent, proxy.received
    while (found := LINE.match((line := await gateway.stdout.readline()).decode())) is None:
        if not line:
            raise SystemExit(f"the gateway ended with code {await gateway.wait()}")
    names = ("awake_s", "cpu_s", "memory_mib", "answered")
    figures = dict(zip(names, map(float, found.groups()), strict=True))
    return {**figures, "sent": proxy.sent - sent, "received": proxy.received - received}


def _medians(wakes: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(wake[name] for wake in wakes) for name in wakes[0]} if wakes else {}


def _text(figures: dict[str, Any]) -> str:
    rows = []
    for name in ("with_a_round", "without"):
        of = figures[name]
        rows.append(
            f"{name.replace('_', ' '):<13} awake {of['awake_s']:.1f} s, CPU {of['cpu_s']:.2f} s, memory "
            f"{of['memory_mib']:.0f} MiB, sent {of['sent']:.0f} bytes, received {of['received']:.0f}"
            if of
            else f"{name}: no wake"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
