"""`dca federation run` runs a trial in one process: a broker, the Compute nodes and the clients with data."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from dca_proto.cli.deployed import is_deployment, run_deployment
from dca_proto.cli.output import tell
from dca_proto.cli.restarts import keep_running
from dca_proto.errors import UsageError
from dca_proto.runtime.broker import BrokerOptions, launch_broker
from dca_proto.runtime.config import read_config
from dca_proto.runtime.device import Device, load
from dca_proto.runtime.logs import FactLog, configure_logs
from dca_proto.runtime.process import complete
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.transport import Connected
from dca_proto.wording import duration


def run(
    folder: Annotated[Path, typer.Argument(help="The folder of `federation init --broker URL`, or of `deploy`.")],
) -> None:
    """Run a trial in one process, with a broker if none answers; or a deployment's units, each in its own."""
    if is_deployment(folder):
        complete(run_deployment(folder.absolute()))
        return
    configure_logs(level=logging.WARNING)
    paths = sorted(path for path in folder.glob("*.toml") if path.name.startswith(("compute-", "client-")))
    devices = [load(path) for path in paths if _has_data(path)]
    without_data = len(paths) - len(devices)
    if not devices:
        raise UsageError(
            f"{folder} has no Compute node and no client with data; "
            "make a trial: dca federation init DIR --computes 3 --clients 25 --broker mqtt://127.0.0.1"
        )
    complete(_serve(devices, without_data))


def _has_data(path: Path) -> bool:
    """Return False for a client without a source of data: a program will run it. A Compute node needs no data."""
    config = read_config(path)
    return config.role != "client" or (config.source is not None and config.source.is_there)


async def _serve(devices: Sequence[Device], without_data: int) -> None:
    async with _broker(devices[0].config.broker) as line:
        roles = [device.role for device in devices]
        tell(f"broker  {line}")
        waiting = f"; {without_data} clients have no data file" if without_data else ""
        tell(f"actors  {roles.count('compute')} Compute nodes, {roles.count('client')} clients{waiting}")
        tell("        Ctrl-C stops them")
        await asyncio.gather(*(device.run(_Told(device)) for device in devices))


class _Told:
    """Logs an actor's facts, and prints when it loses its connection and when it is back."""

    def __init__(self, device: Device) -> None:
        self._log = FactLog(device.name_of)
        self._name = f"{device.role} {device.name}"

    def __call__(self, fact: object) -> None:
        if isinstance(fact, Connected) and fact.away_s:
            tell(f"{self._name}: connected again after {duration(1000 * fact.away_s)}")
        self._log(fact)


async def _run_broker(folder: Path, options: BrokerOptions, began: asyncio.Future[str]) -> str:
    """Run a broker until it ends, and return why it did. Raises `UsageError` if not even the first one starts."""
    why = ""
    try:
        async with launch_broker(folder, options) as broker:
            if not began.done():
                began.set_result(f"{broker.kind} {broker.version} at {broker.url}")
            else:
                tell(f"broker  started again at {broker.url}")
            await broker.ended()
    except UsageError as error:
        if not began.done():
            raise
        why = str(error)
    return why


@contextlib.asynccontextmanager
async def _broker(settings: BrokerSettings) -> AsyncIterator[str]:
    """Use the broker at the URL, or run one until the context ends. Yield its description."""
    try:
        _, writer = await asyncio.open_connection(settings.host, settings.port)
    except OSError as error:
        if settings.tls:
            raise UsageError(f"no broker answers at {settings.url}; start one: dca broker --help") from error
        with tempfile.TemporaryDirectory(prefix="dca-broker-") as folder:
            options = BrokerOptions(host=settings.host, port=settings.port)
            began: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            run = partial(_run_broker, Path(folder), options, began)
            keeping = asyncio.create_task(keep_running("broker ", run))
            try:
                either: list[asyncio.Future[Any]] = [keeping, began]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if keeping.done():
                    keeping.result()  # it could not start
                yield await began
            finally:
                keeping.cancel()
                await asyncio.wait([keeping])
    else:
        writer.close()
        yield f"already running at {settings.url}"
